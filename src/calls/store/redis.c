/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.c - the store for many hosts that can lose records: redis://,
 * rediss://, redis+unix://, redis+sentinel://, redis+cluster://
 * (docs/redis.md).
 *
 * The server keeps bytes and once__transition() decides here (redis/apply.c).
 * Time is the server's (redis/ask.c), leases are values compared with it, and
 * nothing that is live has a TTL.
 *
 * It refuses: a server that evicts, one that is a replica, a value that fails
 * its checksum. With `wait=N` nothing is acknowledged that fewer than N
 * replicas have confirmed, also where only an earlier write is answered for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "calls/store/redis/redis.h"
#include "calls/store/store.h"

struct redis {
    once_store base;
    once_store_options options;
    int servers_clock;
    struct once__redis_net net;
    struct once__redis_batch *batch;
    struct once__redis_scan scan;
    char caveat[320];
};

static int redis_apply(once_store *store, once_op **ops, size_t n,
                       once_error *err)
{
    struct redis *s = (struct redis *)store;

    return once__redis_apply(s->batch, ops, n, err);
}

static int redis_scan(once_store *store, int what, const once_position *after,
                      uint32_t max, once_each *each, void *user,
                      once_error *err)
{
    struct redis *s = (struct redis *)store;

    if (what < ONCE_SCAN_ALL || what >= ONCE__SCAN_END)
        return once__fail(err, ONCE_EINVAL, "what: %d is not a scan", what);
    once__redis_net_begin(&s->net);
    return once__redis_scan(&s->net, &s->scan,
                            s->servers_clock ? NULL : &s->options, &s->base,
                            what, after, max, each, user, err);
}

static int redis_time(once_store *store, const once_store_time *put,
                      once_store_time *out, once_error *err)
{
    struct redis *s = (struct redis *)store;
    int rc;

    once__redis_net_begin(&s->net);
    rc = once__redis_time(&s->net, put, out, err);
    if (!s->servers_clock)
        out->now_ms = s->options.clock(s->options.user);
    return rc;
}

/* ---- Opening ------------------------------------------------------------- */

static void redis_close(once_store *store)
{
    struct redis *s = (struct redis *)store;

    if (s == NULL)
        return;
    once__redis_batch_free(s->batch);
    once__redis_net_close(&s->net);
    once__redis_scan_clear(&s->scan);
    free(s);
}

/* What the servers, as they are set up, can lose. The weakest one counts. */
static void find_caveat(struct redis *s)
{
    const struct once__redis_config *c = &s->net.config;
    int aof = 1, always = 1, known = 1;
    char wait[64] = "";
    size_t i;

    for (i = 0; i < s->net.count; i++) {
        const struct once__redis_link *l = s->net.nodes[i];

        if (l->fd < 0)
            continue;
        aof &= l->aof;
        always &= l->fsync_always;
        known &= l->fsync_known;
    }
    if (c->wait > 0)
        (void)snprintf(wait, sizeof(wait),
                       ", which wait=%u makes rarer, not impossible",
                       (unsigned)c->wait);
    (void)snprintf(
        s->caveat, sizeof(s->caveat),
        "Redis: a failover can lose acknowledged records, because replicas "
        "follow later%s; %s",
        wait,
        !aof     ? "a restart loses all since the last snapshot (appendonly no)"
        : !known ? "a crash can lose the last second, or more (appendfsync is "
                   "not shown)"
        : !always ? "a crash can lose the last second, or more (appendfsync is "
                    "not always)"
                  : "a crash alone loses none (appendfsync always)");
    s->base.caveat = s->caveat;
}

static int redis_new(enum once__redis_mode mode, int tls, int socket,
                     const char *rest, int create, once_error *err,
                     struct redis **out)
{
    struct redis *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return once__fail(err, ONCE_ENOMEM, "redis: out of memory");
    rc = once__redis_parse(mode, tls, socket, rest, &s->net.config, err);
    s->net.mark.create = create;
    if (rc == ONCE_OK)
        rc = once__redis_net_open(&s->net, err);
    if (rc == ONCE_OK)
        rc = once__redis_mark(&s->net, s->base.head.id, err);
    if (rc != ONCE_OK) {
        redis_close(&s->base);
        return rc;
    }
    *out = s;
    return ONCE_OK;
}

static int redis_open(const once_store_ops *ops, enum once__redis_mode mode,
                      int tls, int socket, const char *rest,
                      const once_store_options *options, once_error *err,
                      once_store **out)
{
    struct redis *s = NULL;
    int rc = redis_new(mode, tls, socket, rest, options->create != 0, err, &s);

    if (rc != ONCE_OK)
        return rc;
    s->base.ops = ops;
    s->options = *options;
    s->servers_clock = options->clock == once__wall_clock;
    s->batch =
        once__redis_batch_new(&s->net, &s->options, s->servers_clock, &s->base);
    if (s->batch == NULL) {
        redis_close(&s->base);
        return once__fail(err, ONCE_ENOMEM, "redis: out of memory");
    }
    find_caveat(s);
    *out = &s->base;
    return ONCE_OK;
}

/* ---- For operators ------------------------------------------------------- */

struct report {
    once_line *line;
    void *user;
    int wrong, lines;
};

static int verify_one(void *user, const uint8_t *name, int rc,
                      const once_record *r)
{
    struct report *report = user;
    char text[128], hex[2 * ONCE_NAME_SIZE + 1];

    (void)r;
    if (rc == ONCE_OK)
        return 0;
    once__hex(name, ONCE_NAME_SIZE, hex);
    (void)snprintf(text, sizeof(text), "%s: %s", hex, once_text(rc));
    report->wrong++;
    report->line(report->user, text);
    return 0;
}

static int dump_one(void *user, const uint8_t *name, int rc,
                    const once_record *r)
{
    static const char *const states[] = {"absent", "claimed", "dispatched",
                                         "completed", "indeterminate"};
    struct report *report = user;
    char text[320], hex[2 * ONCE_NAME_SIZE + 1];

    once__hex(name, ONCE_NAME_SIZE, hex);
    if (rc != ONCE_OK)
        (void)snprintf(text, sizeof(text), "%s: %s", hex, once_text(rc));
    else
        (void)snprintf(
            text, sizeof(text),
            "%s %s attempt %u fence %llu granted %llu lease %llu "
            "keep %llu result %zu note %zu",
            hex, states[r->state], r->attempt, (unsigned long long)r->fence,
            (unsigned long long)r->granted_ms, (unsigned long long)r->lease_ms,
            (unsigned long long)r->keep_ms, r->result.size, r->note.size);
    report->lines++;
    report->line(report->user, text);
    return 0;
}

static int redis_report(enum once__redis_mode mode, int tls, int socket,
                        const char *rest, once__redis_seen *seen,
                        struct report *report, once_error *err)
{
    struct redis *s = NULL;
    int rc = redis_new(mode, tls, socket, rest, 0, err, &s);

    if (rc != ONCE_OK)
        return rc;
    rc = once__redis_walk(&s->net, &s->scan, seen, report, err);
    redis_close(&s->base);
    return rc;
}

/* What an administrator sets and grants; once init then makes one key. */
static int redis_schema(const char *rest, once_line *line, void *user,
                        once_error *err)
{
    static const char *const text[] = {
        "# redis.conf:",
        "maxmemory-policy noeviction",
        "appendonly yes",
        "appendfsync always",
        "# users.acl, or ACL SETUSER; put a password in place of <...>:",
    };
    struct once__redis_config config;
    char *url = strdup(rest), user_line[512];
    size_t i;
    int rc;

    if (url == NULL)
        return once__fail(err, ONCE_ENOMEM, "redis: out of memory");
    rc = once__redis_prefix(url, &config, err);
    free(url);
    if (rc != ONCE_OK)
        return rc;
    for (i = 0; i < sizeof(text) / sizeof(text[0]); i++)
        line(user, text[i]);
    (void)snprintf(user_line, sizeof(user_line),
                   "user once on ><password> resetkeys ~%s* resetchannels "
                   "-@all +set +get +getrange +setrange +evalsha +script|load "
                   "+time +scan +info +select +ping +wait +config|get "
                   "+cluster|slots +asking",
                   config.prefix);
    line(user, user_line);
    return ONCE_OK;
}

/* ---- One driver, a line for each scheme ---------------------------------- */

/* clang-format off */
#define SCHEME(id, text, mode, tls, socket)                                    \
    static int scheme_##id##_open(const char *rest, const once_store_options *options,  \
                         once_error *err, once_store **out)                    \
    {                                                                          \
        return redis_open(&once__store_##id, mode, tls, socket, rest, options, \
                          err, out);                                           \
    }                                                                          \
    static int scheme_##id##_verify(const char *rest, once_line *line, void *user,      \
                           once_error *err)                                    \
    {                                                                          \
        struct report report = {line, user, 0, 0};                             \
        int rc = redis_report(mode, tls, socket, rest, verify_one, &report,    \
                              err);                                            \
        return rc < 0 ? rc : report.wrong;                                     \
    }                                                                          \
    static int scheme_##id##_dump(const char *rest, once_line *line, void *user,        \
                         once_error *err)                                      \
    {                                                                          \
        struct report report = {line, user, 0, 0};                             \
        int rc = redis_report(mode, tls, socket, rest, dump_one, &report,      \
                              err);                                            \
        return rc < 0 ? rc : report.lines;                                     \
    }                                                                          \
    const once_store_ops once__store_##id = {                                  \
        .size = sizeof(once_store_ops),                                        \
        .name = text,                                                          \
        .durable = 0,                                                          \
        .shared = 1,                                                           \
        .open = scheme_##id##_open,                                                     \
        .close = redis_close,                                                  \
        .apply = redis_apply,                                                  \
        .scan = redis_scan,                                                    \
        .time = redis_time,                                                    \
        .print_schema = redis_schema,                                          \
        .verify = scheme_##id##_verify,                                                 \
        .dump = scheme_##id##_dump,                                                     \
    };

SCHEME(redis, "redis", ONCE__REDIS_SINGLE, 0, 0)
SCHEME(rediss, "rediss", ONCE__REDIS_SINGLE, 1, 0)
SCHEME(redis_unix, "redis+unix", ONCE__REDIS_SINGLE, 0, 1)
SCHEME(redis_sentinel, "redis+sentinel", ONCE__REDIS_SENTINEL, 0, 0)
SCHEME(rediss_sentinel, "rediss+sentinel", ONCE__REDIS_SENTINEL, 1, 0)
SCHEME(redis_cluster, "redis+cluster", ONCE__REDIS_CLUSTER, 0, 0)
SCHEME(rediss_cluster, "rediss+cluster", ONCE__REDIS_CLUSTER, 1, 0)
/* clang-format on */
