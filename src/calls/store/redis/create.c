/* SPDX-License-Identifier: Apache-2.0 */
/* create.c - makes a store: sets its mark (mark.c), where that was asked for,
 * and reads which one it is. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/error.h"
#include "calls/store/redis/redis.h"

enum { LINE = 2 * ONCE_STORE_ID_SIZE + 2 };

/* Sets it, unless it is there, and reads it. */
static int ask(struct once__redis_net *net, const char *line, once_error *err)
{
    char key[ONCE__REDIS_MARK_KEY];
    const char *const set[] = {"SET", key, line, "NX"};
    const char *const get[] = {"GET", key};
    struct once__redis_link *l;
    const redisReply *r;
    const char *why;

    once__redis_mark_key(&net->config, key);
    l = once__redis_net_route(net, key, strlen(key));
    if (l == NULL)
        return once__fail(err, ONCE_EAWAY, "redis: %s", net->trouble);
    r = line == NULL ? NULL : once__redis_call(l, 4, set);
    if (line != NULL && (r == NULL || r->type == REDIS_REPLY_ERROR))
        return once__fail(err, r == NULL ? ONCE_EAWAY : ONCE_EOPEN,
                          "redis: %s:%s: the key %s cannot be set",
                          l->place.host, l->place.port, key);
    r = once__redis_call(l, 2, get);
    if (r == NULL)
        return once__fail(err, ONCE_EAWAY, "redis: %s", l->trouble);
    why = once__redis_mark_judge(&net->mark, r);
    if (why == NULL && net->mark.id[0] == '\0')
        why = "no node of the cluster says which store it is";
    return why == NULL ? ONCE_OK
                       : once__fail(err, ONCE_EOPEN, "redis: %s:%s: %s",
                                    l->place.host, l->place.port, why);
}

int once__redis_mark(struct once__redis_net *net, uint8_t *id, once_error *err)
{
    uint8_t random[ONCE_STORE_ID_SIZE];
    char line[LINE + 1] = "1 ";
    unsigned value;
    int i, rc;

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return once__fail(err, ONCE_EOPEN, "redis: no random numbers");
    once__hex(random, sizeof(random), line + 2);
    rc = ask(net, net->mark.create && net->mark.id[0] == '\0' ? line : NULL,
             err);
    net->mark.create = 0;
    for (i = 0; rc == ONCE_OK && i < ONCE_STORE_ID_SIZE; i++) {
        (void)sscanf(net->mark.id + 2 * i, "%2x", &value);
        id[i] = (uint8_t)value;
    }
    return rc;
}
