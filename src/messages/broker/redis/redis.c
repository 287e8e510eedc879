/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.c - the driver for Redis Streams, which is durable for one server with
 * appendfsync always only.
 *
 *    redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]?stream=S     rediss: with TLS
 *
 *    sending    window_ms=7200000    how long the server remembers an id
 *               prefix=once:         of the keys in which it does
 *    receiving  group=G              needed; read from the stream's beginning
 *               min_idle_ms=300000   pending so long, an entry goes to another
 *                                    consumer: above the longest handler
 *    both       password_file=PATH cacert=PATH cert=PATH key=PATH sni=NAME
 *
 * Connections and their URLs are those of src/base/redis, which also says what a
 * server must be: a primary of version 7 that drops nothing to make room. An entry has the fields id, key, type, headers and
 * body; key, type and headers only if the message has them.
 */
#include "messages/broker/redis/redis.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "messages/broker/redis/retire.lua.h"
#include "messages/broker/redis/send.lua.h"
#include "base/error.h"
#include "base/url.h"

enum {
    URL_MAX = 8192,
    TIMEOUT_MS = 10000,
    WINDOW_MS = 7200000, /* two of the longest pauses between attempts */
    MIN_IDLE_MS = 300000,
    PREFETCH_MAX = 65536,
    DAY_MS = 86400000
};

extern const struct once__broker_ops once__broker_redis;

/* ---- The URL ------------------------------------------------------------ */

/* Parameters of a store that would promise nothing here. */
static int refuse_stores(char *url, once_error *err)
{
    static const char *const params[] = {"timeout_ms", "wait", "wait_ms"};
    char text[32];
    size_t i;
    int rc;

    for (i = 0; i < 3; i++) {
        rc = once__url_take(url, params[i], text, sizeof(text), err);
        if (rc != 0)
            return once__fail(err, ONCE_EURL,
                              "redis: parameter %s is one of stores, not of "
                              "streams",
                              params[i]);
    }
    return ONCE_OK;
}

static int take_name(char *url, const char *param, char out[ONCE_ID_SIZE],
                     once_error *err)
{
    int rc = once__url_take(url, param, out, ONCE_ID_SIZE, err);

    if (rc == 1 && !once__broker_is_name(out))
        return once__fail(err, ONCE_EURL,
                          "redis: parameter %s is not 1 to 255 visible ASCII "
                          "characters",
                          param);
    return rc;
}

static int take_parameters(struct once__redis_broker *b, char *url,
                           int receives, once_error *err)
{
    int rc = take_name(url, "stream", b->stream, err), group;

    if (rc == 0)
        return once__fail(err, ONCE_EURL,
                          "redis: the parameter stream is missing");
    if (rc < 0)
        return rc;
    group = take_name(url, "group", b->group, err);
    if (group < 0)
        return group;
    if (receives && !group)
        return once__fail(err, ONCE_EURL,
                          "redis: the parameter group is missing");
    if (!receives && group)
        return once__fail(err, ONCE_EURL,
                          "redis: parameter group is one of consumers");
    b->window_ms = WINDOW_MS;
    b->min_idle_ms = MIN_IDLE_MS;
    rc = receives ? once__url_take_number(url, "min_idle_ms", 100, DAY_MS,
                                          &b->min_idle_ms, err)
                  : once__url_take_number(url, "window_ms", 1000,
                                          (uint64_t)DAY_MS * 365, &b->window_ms,
                                          err);
    return rc < 0 ? rc : refuse_stores(url, err);
}

/* The marker of an id must live where the stream does, so the part in braces
 * that decides that must be known. */
static int check_braces(const char *stream, once_error *err)
{
    const char *open = strchr(stream, '{'), *close = strchr(stream, '}');

    if ((open == NULL && close == NULL) ||
        (open != NULL && close > open + 1 && strchr(open + 1, '{') == NULL &&
         strchr(close + 1, '}') == NULL))
        return ONCE_OK;
    return once__fail(err, ONCE_EURL,
                      "redis: parameter stream has braces other than one "
                      "\"{...}\"");
}

static int parse(struct once__redis_broker *b, const char *url,
                 const struct once__broker_options *o, once_error *err)
{
    char text[URL_MAX];
    size_t n = strlen(url), scheme = strcspn(url, ":") + 1;
    int tls = strncmp(url, "rediss:", 7) == 0, rc;

    if (n >= sizeof(text) || scheme > n)
        return once__fail(err, ONCE_EURL, "redis: longer than %d characters",
                          URL_MAX - 1);
    memcpy(text, url, n + 1);
    rc = take_parameters(b, text, o->consumer != NULL, err);
    if (rc == ONCE_OK)
        rc = check_braces(b->stream, err);
    if (rc == ONCE_OK)
        rc = once__redis_parse(ONCE__REDIS_SINGLE, tls, 0, text + scheme,
                               &b->config, err);
    explicit_bzero(text, sizeof(text));
    if (rc != ONCE_OK)
        return rc;
    b->config.timeout_ms = o->timeout_ms == 0 ? TIMEOUT_MS : o->timeout_ms;
    if (tls && b->config.cacert[0] == '\0' && o->ca_file != NULL &&
        (size_t)snprintf(b->config.cacert, sizeof(b->config.cacert), "%s",
                         o->ca_file) >= sizeof(b->config.cacert))
        return once__fail(err, ONCE_EINVAL, "ca_file: too long");
    return ONCE_OK;
}

/* A consumer is a connection: two that had one name would get each other's
 * pending entries. */
static void name_consumer(struct once__redis_broker *b, const char *name)
{
    char host[65] = "";
    uint64_t random = 0;

    (void)gethostname(host, sizeof(host) - 1);
    (void)!getrandom(&random, sizeof(random), 0);
    (void)snprintf(b->consumer, sizeof(b->consumer), "%.128s.%s.%ld.%016llx",
                   name, host, (long)getpid(), (unsigned long long)random);
}

/* ---- The driver --------------------------------------------------------- */

static void redis_close(struct once__broker *base)
{
    struct once__redis_broker *b = (struct once__redis_broker *)base;

    if (b == NULL)
        return;
    once__redis_leave(b);
    once__redis_link_clear(&b->link);
    once__redis_tls_free(b->tls);
    once__ended_clear(&b->ended);
    free(b->flights);
    explicit_bzero(b, sizeof(*b));
    free(b);
}

static int redis_open(const char *url, const struct once__broker_options *o,
                      struct once__broker **out, once_error *err)
{
    struct once__redis_broker *b = calloc(1, sizeof(*b));
    int rc;

    if (b == NULL)
        return once__fail(err, ONCE_ENOMEM, "redis: out of memory");
    b->base.ops = &once__broker_redis;
    b->link.fd = -1;
    rc = parse(b, url, o, err);
    if (rc == ONCE_OK && b->config.tls)
        rc = once__redis_tls_new(&b->config, err, &b->tls);
    if (rc != ONCE_OK)
        goto out;
    b->log = o->log;
    b->user = o->user;
    b->body_max = o->body_max;
    b->alone = o->alone;
    b->prefetch = o->prefetch == 0             ? 1
                  : o->prefetch > PREFETCH_MAX ? PREFETCH_MAX
                                               : o->prefetch;
    if (o->consumer != NULL)
        name_consumer(b, o->consumer);
    once__redis_link_init(&b->link, &b->config, b->tls, &b->config.hosts[0]);
    b->link.script = b->group[0] != '\0' ? once__retire_lua : once__send_lua;
    *out = &b->base;
    b = NULL;
out:
    redis_close((struct once__broker *)b);
    return rc;
}

/* Whether a connection on which nothing is to come has something to say: it is
 * closed, or it will not be understood. */
static int is_over(const struct once__redis_link *l)
{
    struct pollfd p = {l->fd, POLLIN, 0};

    return poll(&p, 1, 0) != 0;
}

static int look_at_stream(struct once__redis_broker *b, once_error *err)
{
    const once_bytes words[] = {{"TYPE", 4}, {b->stream, strlen(b->stream)}};
    const redisReply *r = once__redis_ask(b, 2, words, b->config.timeout_ms);

    if (r == NULL)
        return once__fail(err, ONCE_EAWAY, "redis: %s", b->link.trouble);
    if (r->type == REDIS_REPLY_STATUS && strcmp(r->str, "none") != 0 &&
        strcmp(r->str, "stream") != 0)
        return once__fail(
            err, ONCE_EOPEN,
            "redis: the key %s is not a stream: its type is %.20s. "
            "Name another one with the parameter stream",
            b->stream, r->str);
    return ONCE_OK;
}

static void log_class(struct once__redis_broker *b)
{
    const struct once__redis_link *l = &b->link;

    if (b->class_logged || (l->aof && l->fsync_always))
        return;
    b->class_logged = 1;
    once__redis_log(b,
                    "redis: %s, so a crash of the server may lose "
                    "messages that it has taken",
                    !l->aof          ? "appendonly is off"
                    : l->fsync_known ? "appendfsync is not always"
                                     : "it does not say its appendfsync");
}

static int redis_connect(struct once__broker *base, once_error *err)
{
    struct once__redis_broker *b = (struct once__redis_broker *)base;
    struct once__redis_link *l = &b->link;
    int rc;

    once__redis_harvest(b);
    if (l->fd >= 0 && b->n == 0 && (b->stale || is_over(l))) {
        once__redis_link_fail(l, "the connection is gone");
        l->failures = 0;
        l->retry_ms = 0;
    }
    if (l->fd >= 0)
        return ONCE_OK;
    once__redis_harvest(b);
    once__redis_link_reset(l);
    b->stale = 0;
    if (once__redis_link_up(l) != ONCE_OK)
        return once__fail(err, l->spoke ? ONCE_EOPEN : ONCE_EAWAY, "redis: %s",
                          l->trouble);
    log_class(b);
    rc = look_at_stream(b, err);
    if (rc == ONCE_OK && b->group[0] != '\0')
        rc = once__redis_join(b, err);
    if (rc != ONCE_OK && l->fd >= 0)
        once__redis_link_fail(l, "the stream cannot be used");
    once__redis_link_reset(l);
    return rc;
}

const struct once__broker_ops once__broker_redis = {
    .scheme = "redis",
    .knows_ids = 1,
    .at_once = 0,
    .open = redis_open,
    .close = redis_close,
    .connect = redis_connect,
    .send = once__redis_send,
    .proofs = once__redis_proofs,
    .abandon = once__redis_abandon,
    .receive = once__redis_receive,
    .ack = once__redis_ack,
};
