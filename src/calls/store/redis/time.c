/* SPDX-License-Identifier: Apache-2.0 */
/*
 * time.c - the key PREFIX"clock": what was seen of the time.
 *
 * Its value is one line of text: "1 SEEN STEADY BACKS HOST", times in
 * milliseconds, HOST in hexadecimal digits. It has no TTL. A value that is not
 * like that is an error: then nothing is forgotten.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "calls/store/redis/redis.h"

enum { LINE = 128, KEY = ONCE__REDIS_PREFIX + 8 };

static int decode(const redisReply *r, once_store_time *out)
{
    int at = 0;

    if (r->type == REDIS_REPLY_NIL)
        return 1; /* nothing was put yet */
    if (r->type != REDIS_REPLY_STRING ||
        sscanf(r->str, "1 %" SCNu64 " %" SCNu64 " %" SCNu64 " %n",
               &out->seen_ms, &out->steady_ms, &out->backs, &at) != 3 ||
        strlen(r->str + at) != (size_t)2 * ONCE_HOST_SIZE)
        return 0;
    return once__unhex(r->str + at, ONCE_HOST_SIZE, out->host);
}

static void encode(const once_store_time *t, char out[LINE])
{
    int n = snprintf(out, LINE, "1 %" PRIu64 " %" PRIu64 " %" PRIu64 " ",
                     t->seen_ms, t->steady_ms, t->backs);

    assert(n > 0 && n + 2 * ONCE_HOST_SIZE < LINE);
    once__hex(t->host, ONCE_HOST_SIZE, out + n);
}

static int read_now(const redisReply *r, once_store_time *out)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
        r->element[0]->type != REDIS_REPLY_STRING ||
        r->element[1]->type != REDIS_REPLY_STRING)
        return 0;
    out->now_ms = strtoull(r->element[0]->str, NULL, 10) * 1000 +
                  strtoull(r->element[1]->str, NULL, 10) / 1000;
    return out->now_ms != 0;
}

/* Queues SET, if there is something to put, GET and TIME. 0: no memory. */
static int ask(struct once__redis_link *l, const char *key, const char *line,
               size_t reply[3])
{
    const once_bytes set[] = {
        {"SET", 3}, {key, strlen(key)}, {line, strlen(line)}};
    const once_bytes get[] = {{"GET", 3}, {key, strlen(key)}};
    const once_bytes time = {"TIME", 4};

    return once__redis_link_watch(l) &&
           (line[0] == '\0' || once__redis_command(l, 3, set, &reply[0])) &&
           once__redis_command(l, 2, get, &reply[1]) &&
           once__redis_command(l, 1, &time, &reply[2]);
}

int once__redis_time(struct once__redis_net *net, const once_store_time *put,
                     once_store_time *out, once_error *err)
{
    char key[KEY], line[LINE] = "";
    struct once__redis_link *l;
    size_t reply[3] = {SIZE_MAX, SIZE_MAX, SIZE_MAX};
    const redisReply *set, *get, *now;

    memset(out, 0, sizeof(*out));
    (void)snprintf(key, sizeof(key), "%sclock", net->config.prefix);
    if (put != NULL)
        encode(put, line);
    l = once__redis_net_route(net, key, strlen(key));
    if (l == NULL)
        return once__fail(err, ONCE_ESTORE, "redis: %s", net->trouble);
    if (!ask(l, key, line, reply))
        return once__fail(err, ONCE_ESTORE, "redis: out of memory");
    once__redis_exchange(&l, 1);
    once__redis_link_watched(l);
    set = once__redis_reply(l, reply[0]);
    get = once__redis_reply(l, reply[1]);
    now = once__redis_reply(l, reply[2]);
    if (l->fd < 0 || get == NULL || now == NULL)
        return once__fail(err, ONCE_ESTORE, "redis: %s", l->trouble);
    if (once__redis_is(get, "MOVED"))
        net->stale = 1;
    if ((put != NULL && (set == NULL || set->type != REDIS_REPLY_STATUS)) ||
        !decode(get, out) || !read_now(now, out))
        return once__fail(err, ONCE_ESTORE,
                          "redis: %s:%s: the key %s is refused, or is not ours",
                          l->place.host, l->place.port, key);
    return ONCE_OK;
}
