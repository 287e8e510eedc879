/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_redis.c - what only the Redis store promises, on real servers.
 *
 *    test/lib/with-server --clock redis   -- test_redis single
 *    test/lib/with-server redis           -- test_redis batch, of which `single`
 *                                            is more
 *    test/lib/with-server redis-tls       -- test_redis tls
 *    test/lib/with-server redis-sentinel  -- test_redis sentinel
 *    test/lib/with-server redis-cluster   -- test_redis cluster
 *
 * Servers are killed, filled, flushed and moved for real, by with-server and
 * by connections of our own. It refuses to time anything: what takes a while
 * is asked until it is so, or the test fails after very long.
 */
#include <assert.h>
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <once/store.h>
#include <sys/stat.h>

#include "calls/store/redis/redis.h"
#include "t.h"

enum { TRIES = 600, HEAD = 184 };

static const char *base;
static unsigned prefixes;

/* ---- Tools ---------------------------------------------------------------- */

static void nap(long ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    (void)nanosleep(&t, NULL);
}

static const char *need(const char *name)
{
    const char *value = getenv(name);

    if (value == NULL) {
        printf("Bail out! %s is not set: run it under with-server\n", name);
        exit(1);
    }
    return value;
}

/* with-server ctl VERB SERVER [ARGUMENT] */
static int ctl(const char *words)
{
    char command[512];

    (void)snprintf(command, sizeof(command), "%s ctl %s >/dev/null",
                   need("ONCE_TEST_WITH_SERVER"), words);
    return system(command) == 0;
}

static redisContext *dial(const char *server)
{
    char name[64];
    redisContext *c;

    (void)snprintf(name, sizeof(name), "ONCE_TEST_%s_SOCKET", server);
    c = redisConnectUnix(need(name));
    assert(c != NULL);
    if (c->err != 0)
        printf("#   %s: %s\n", server, c->errstr);
    return c;
}

/* One command; its reply as text in `out`, errors with a "-" in front. */
static const char *say(redisContext *c, char *out, size_t size,
                       const char *format, ...)
{
    va_list args;
    redisReply *r;

    va_start(args, format);
    r = redisvCommand(c, format, args);
    va_end(args);
    if (r == NULL)
        (void)snprintf(out, size, "-gone");
    else if (r->type == REDIS_REPLY_INTEGER)
        (void)snprintf(out, size, "%lld", r->integer);
    else if (r->type == REDIS_REPLY_NIL || r->type == REDIS_REPLY_ARRAY)
        (void)snprintf(out, size, "nil");
    else
        (void)snprintf(out, size, "%s%s",
                       r->type == REDIS_REPLY_ERROR ? "-" : "", r->str);
    freeReplyObject(r);
    return out;
}

static void must(redisContext *c, const char *command)
{
    char out[256];

    if (say(c, out, sizeof(out), command)[0] == '-') {
        T_STR(out, command);
    }
}

/* A URL with a prefix of its own and more parameters. */
static void url_of(char *out, size_t size, const char *from, const char *more)
{
    (void)snprintf(out, size, "%s%cprefix=t%d_%u:%s", from,
                   strchr(from, '?') == NULL ? '?' : '&', (int)getpid(),
                   prefixes++, more);
}

static once_store *open_url(const char *url)
{
    once_store *s = NULL;
    once_error err = {0, ""};

    if (once_store_init(url, &err) != ONCE_OK ||
        once_store_open(url, NULL, &err, &s) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return s;
}

static once_store *open_new(const char *more, char *url, size_t size)
{
    url_of(url, size, base, more);
    return open_url(url);
}

/* Opening is refused with a text that has `why` and does not have `secret`. */
static void refused(const char *url, int code, const char *why,
                    const char *secret)
{
    once_store *s = NULL;
    once_error err = {0, ""};

    T_EQ(once_store_open(url, NULL, &err, &s), code);
    T_OK(s == NULL);
    if (strstr(err.text, why) == NULL)
        T_STR(err.text, why);
    if (secret != NULL)
        T_OK(strstr(err.text, secret) == NULL);
    once_store_close(s);
}

static void name_of(uint8_t *name, uint32_t n)
{
    memset(name, 0x5a, ONCE_NAME_SIZE);
    n = n * 2654435761u;
    memcpy(name, &n, sizeof(n));
}

static void fill(once_op *op, int verb, uint32_t n, unsigned who)
{
    memset(op, 0, sizeof(*op));
    op->verb = verb;
    op->kind = ONCE_SUCCESS;
    op->lease_ms = 60000;
    op->keep_ms = 3600000;
    name_of(op->name, n);
    memset(op->token, (int)who, ONCE_TOKEN_SIZE);
    memset(op->fingerprint, 0x22, ONCE_FINGERPRINT_SIZE);
}

static int one(once_store *s, once_op *op)
{
    once_error err = {0, ""};
    int rc = s->ops->apply(s, &op, 1, &err);

    return rc == ONCE_OK ? op->rc : rc;
}

/* The same until it is answered. */
static int answer(once_store *s, once_op *op)
{
    int tries, rc = ONCE_ESTORE;

    for (tries = 0; tries < TRIES && rc == ONCE_ESTORE; tries++) {
        if (tries > 0)
            nap(100);
        rc = one(s, op);
    }
    return rc;
}

static int simple(once_store *s, int verb, uint32_t n, unsigned who)
{
    once_op op;

    fill(&op, verb, n, who);
    return one(s, &op);
}

/* Claims and completes; returns the answers of both, or what went wrong. */
static int cycle(once_store *s, uint32_t n, once_bytes result)
{
    once_op op;
    uint64_t fence;
    int rc;

    fill(&op, ONCE_OP_CLAIM, n, 1);
    rc = answer(s, &op);
    if (rc != ONCE_OWNER)
        return rc;
    fence = op.record.fence;
    fill(&op, ONCE_OP_COMPLETE, n, 1);
    op.fence = fence;
    op.result = result;
    return answer(s, &op);
}

static int shows(once_store *s, uint32_t n, once_bytes result)
{
    once_op op;

    fill(&op, ONCE_OP_READ, n, 9);
    return answer(s, &op) == ONCE_REPLAY &&
           op.record.result.size == result.size &&
           memcmp(op.record.result.data, result.data, result.size) == 0;
}

static const char *prefix_in(const char *url)
{
    static char prefix[80];
    const char *at = strstr(url, "prefix=") + 7;

    (void)snprintf(prefix, sizeof(prefix), "%.*s", (int)strcspn(at, "&"), at);
    return prefix;
}

/* A key's bytes as the server has them. */
static redisReply *raw(redisContext *c, const char *url, const char *command,
                       uint32_t n)
{
    uint8_t name[ONCE_NAME_SIZE];
    const char *prefix = prefix_in(url);

    name_of(name, n);
    if (strcmp(command, "KEYSLOT") == 0)
        return redisCommand(c, "CLUSTER KEYSLOT %b%b", prefix, strlen(prefix),
                            name, sizeof(name));
    return redisCommand(c, "%s %b%b", command, prefix, strlen(prefix), name,
                        sizeof(name));
}

static void set_raw(redisContext *c, const char *url, uint32_t n,
                    const void *bytes, size_t size)
{
    uint8_t name[ONCE_NAME_SIZE];
    const char *prefix = prefix_in(url);

    name_of(name, n);
    freeReplyObject(redisCommand(c, "SET %b%b %b", prefix, strlen(prefix), name,
                                 sizeof(name), bytes, size));
}

/* The number behind "field:..." in a section of INFO. */
static long stat_of(redisContext *c, const char *section, const char *field)
{
    redisReply *r = redisCommand(c, "INFO %s", section);
    const char *at = r == NULL ? NULL : strstr(r->str, field);
    long n = at == NULL ? 0 : strtol(at + strlen(field), NULL, 10);

    freeReplyObject(r);
    return n;
}

static const once_bytes done = {"done", 4};

/* ---- One server ------------------------------------------------------------- */

static void a_script_that_was_flushed_is_loaded_again(void)
{
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    once_op op;
    int i;

    for (i = 0; i < 3; i++) {
        fill(&op, ONCE_OP_CLAIM, (uint32_t)i, 1);
        T_EQ(one(s, &op), ONCE_OWNER);
        must(c, "SCRIPT FLUSH");
        op.verb = ONCE_OP_COMPLETE;
        op.fence = op.record.fence;
        op.result = done;
        T_EQ(one(s, &op), ONCE_OK); /* at once, nobody is told "unknown" */
        T_OK(shows(s, (uint32_t)i, done));
    }
    redisFree(c);
    once_store_close(s);
}

static void only_what_may_be_forgotten_has_a_ttl(void)
{
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    redisReply *r;

    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 1), ONCE_OWNER);
    r = raw(c, url, "PTTL", 1);
    T_EQ(r->integer, -1); /* none */
    freeReplyObject(r);
    T_EQ(cycle(s, 1, done), ONCE_OK);
    r = raw(c, url, "PTTL", 1);
    T_OK(r->integer > 3600000 && r->integer <= 3 * 3600000 + 600000);
    freeReplyObject(r);
    redisFree(c);
    once_store_close(s);
}

static int ignore_due(void *user, const uint8_t *name, const once_record *r)
{
    (void)user, (void)name, (void)r;
    return 0;
}

/* Claims wait while it goes on, also past keys that are not ours. */
static void a_step_of_the_reapers_walk_is_short(void)
{
    enum { FOREIGN = 60000, CALLS = 1, STEPS = 32 };
    static const char script[] =
        "for i = 1, ARGV[1] do redis.call(ARGV[2], 'other' .. i, ARGV[3]) end";
    char url[512], out[256];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    once_error err = {0, ""};
    long before;
    int i;

    (void)say(c, out, sizeof(out), "EVAL %s 0 %d SET x", script, FOREIGN);
    before = stat_of(c, "commandstats", "cmdstat_scan:calls=");
    for (i = 0; i < CALLS; i++)
        T_EQ(s->ops->scan(s, ONCE_SCAN_LEASE, NULL, 10, ignore_due, NULL, &err),
             0);
    T_EQ(stat_of(c, "commandstats", "cmdstat_scan:calls=") - before,
         CALLS * STEPS);
    T_STR(say(c, out, sizeof(out), "EVAL %s 0 %d UNLINK x", script, FOREIGN),
          "nil");
    redisFree(c);
    once_store_close(s);
}

struct killer {
    atomic_int stop, kills;
};

static void *kill_clients(void *user)
{
    struct killer *k = user;
    redisContext *c = dial("REDIS");
    char out[256];

    /* Bounded: on a busy machine nobody would ever get through. */
    while (!atomic_load(&k->stop) && atomic_load(&k->kills) < 40) {
        (void)say(c, out, sizeof(out), "CLIENT KILL TYPE normal SKIPME yes");
        atomic_fetch_add(&k->kills, out[0] > '0' && out[0] <= '9');
        nap(10);
    }
    redisFree(c);
    return NULL;
}

/* Whatever a broken connection leaves unknown is the same when asked again. */
static void connections_may_be_killed_at_any_moment(void)
{
    enum { N = 300 };
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    struct killer k = {0, 0};
    pthread_t thread;
    uint32_t i;

    T_EQ(pthread_create(&thread, NULL, kill_clients, &k), 0);
    for (i = 0; i < N || atomic_load(&k.kills) < 5; i++)
        T_EQ(cycle(s, i, (once_bytes){&i, sizeof(i)}), ONCE_OK);
    atomic_store(&k.stop, 1);
    T_EQ(pthread_join(thread, NULL), 0);
    while (i-- > 0)
        T_OK(shows(s, i, (once_bytes){&i, sizeof(i)}));
    once_store_close(s);
}

static void *kill_server(void *user)
{
    (void)user;
    nap(150);
    if (!ctl("kill redis"))
        return (void *)1;
    nap(50);
    return ctl("start redis") ? NULL : (void *)1;
}

/* What was asked of a server that hung is unknown, and may be done later. */
static void a_server_that_hangs_is_unknown_and_bounded(void)
{
    char url[512];
    once_store *s = open_new("&timeout_ms=100", url, sizeof(url));
    once_op op;
    uint64_t fence;

    T_EQ(simple(s, ONCE_OP_READ, 9, 1), ONCE_FREE); /* connected, clock heard */
    T_OK(ctl("pause redis"));
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 1), ONCE_ESTORE);
    T_OK(ctl("resume redis"));
    fill(&op, ONCE_OP_CLAIM, 1, 1);
    T_EQ(answer(s, &op), ONCE_OWNER);
    fence = op.record.fence;
    T_EQ(op.record.attempt, 1); /* the same grant, whichever call made it */
    op.verb = ONCE_OP_COMPLETE;
    op.fence = fence;
    op.result = done;
    T_EQ(answer(s, &op), ONCE_OK);
    once_store_close(s);
}

static void what_was_acknowledged_survives_a_kill_of_the_server(void)
{
    enum { ROUNDS = 3, N = 2000 };
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    pthread_t thread;
    uint32_t i = 0, end, first;
    void *failed;
    int round;

    T_OK(strstr(s->caveat, "appendfsync always") != NULL);
    for (round = 0; round < ROUNDS; round++) {
        first = i;
        T_EQ(pthread_create(&thread, NULL, kill_server, NULL), 0);
        for (end = i + N; i < end; i++)
            T_EQ(cycle(s, i, (once_bytes){&i, sizeof(i)}), ONCE_OK);
        T_EQ(pthread_join(thread, &failed), 0);
        T_OK(failed == NULL);
        for (end = first; end < i; end++)
            T_OK(shows(s, end, (once_bytes){&end, sizeof(end)}));
    }
    once_store_close(s);
}

static void a_full_server_refuses_claims_and_takes_outcomes(void)
{
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    once_op op;
    uint64_t fence;

    fill(&op, ONCE_OP_CLAIM, 1, 1);
    T_EQ(one(s, &op), ONCE_OWNER);
    fence = op.record.fence;
    must(c, "CONFIG SET maxmemory 1");
    T_EQ(simple(s, ONCE_OP_CLAIM, 2, 1), ONCE_EFULL);
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2), ONCE_IN_FLIGHT);
    fill(&op, ONCE_OP_RENEW, 1, 1);
    op.fence = fence;
    T_EQ(one(s, &op), ONCE_OK);
    op.verb = ONCE_OP_COMPLETE;
    op.result = done;
    T_EQ(one(s, &op), ONCE_OK);
    T_OK(shows(s, 1, done));
    must(c, "CONFIG SET maxmemory 0");
    T_EQ(simple(s, ONCE_OP_READ, 2, 1), ONCE_FREE); /* it was definite */
    T_EQ(simple(s, ONCE_OP_CLAIM, 2, 1), ONCE_OWNER);
    redisFree(c);
    once_store_close(s);
}

static void a_server_that_evicts_is_refused(void)
{
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");

    must(c, "CONFIG SET maxmemory-policy allkeys-lru");
    refused(url, ONCE_EOPEN, "maxmemory-policy", NULL);
    must(c, "CLIENT KILL TYPE normal SKIPME yes");
    nap(20);
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 1), ONCE_ESTORE);
    nap(50); /* not only at the first connection */
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 1), ONCE_ESTORE);
    must(c, "CONFIG SET maxmemory-policy noeviction");
    T_EQ(cycle(s, 1, done), ONCE_OK);
    redisFree(c);
    once_store_close(s);
}

static int one_told(once_store *s, uint32_t n, once_error *err)
{
    once_op op, *ops = &op;
    int rc;

    fill(&op, ONCE_OP_CLAIM, n, 1);
    *err = (once_error){0, ""};
    rc = s->ops->apply(s, &ops, 1, err);
    return rc == ONCE_OK ? op.rc : rc;
}

/* On a connection that stands, and with no load in between. */
static void a_server_that_begins_to_evict_is_refused(void)
{
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    once_error err;

    T_EQ(cycle(s, 1, done), ONCE_OK);
    must(c, "CONFIG SET maxmemory-policy allkeys-random");
    nap(1100); /* longer than what it said is believed */
    T_EQ(one_told(s, 2, &err), ONCE_ESTORE);
    T_OK(strstr(err.text, "maxmemory-policy is not noeviction") != NULL);
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2), ONCE_ESTORE);
    must(c, "CONFIG SET maxmemory-policy noeviction");
    T_OK(shows(s, 1, done));
    T_EQ(cycle(s, 2, done), ONCE_OK);
    redisFree(c);
    once_store_close(s);
}

/* The policy was another one between two looks. */
static void keys_that_were_dropped_between_two_looks_are_told_of(void)
{
    char url[512], out[64];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    once_error err;
    int i;

    T_EQ(cycle(s, 1, done), ONCE_OK);
    must(c, "CONFIG SET maxmemory-policy volatile-ttl");
    for (i = 0; i < 20; i++)
        (void)say(c, out, sizeof(out), "SET drop%d x EX 100", i);
    must(c, "CONFIG SET maxmemory 1");
    (void)say(c, out, sizeof(out), "SET more x EX 100");
    must(c, "CONFIG SET maxmemory 0");
    must(c, "CONFIG SET maxmemory-policy noeviction");
    nap(1100);
    T_EQ(one_told(s, 2, &err), ONCE_ESTORE);
    T_OK(strstr(err.text, "it has dropped keys") != NULL);
    T_EQ(cycle(s, 2, done), ONCE_OK); /* it was told, and goes on */
    redisFree(c);
    once_store_close(s);
}

/* ---- The least rights ---------------------------------------------------------- */

struct rule {
    char text[512];
};

static void take_rule(void *user, const char *text)
{
    struct rule *rule = user;

    if (strncmp(text, "user once ", 10) == 0)
        (void)snprintf(rule->text, sizeof(rule->text), "%s", text + 10);
}

/* What print_schema() tells an administrator, with a password put in. */
static void grant(redisContext *c, const once_store *s)
{
    struct rule rule = {""};
    char command[700], *at;

    T_EQ(s->ops->print_schema("//127.0.0.1", take_rule, &rule, NULL), ONCE_OK);
    at = strstr(rule.text, "><password>");
    T_OK(at != NULL);
    if (at == NULL)
        return;
    (void)snprintf(command, sizeof(command),
                   "ACL SETUSER once reset %.*s>s:e/c%%ret%s",
                   (int)(at - rule.text), rule.text, at + 11);
    at = strstr(command, "%"); /* redisCommand() reads formats */
    memmove(at + 1, at, strlen(at) + 1);
    must(c, command);
}

/* Whether the page for operators has a line, whatever stands around it. */
static void is_documented(void *user, const char *text)
{
    const char *page = user;

    if (text[0] != '#' && strstr(page, text) == NULL)
        T_STR("docs/redis.md", text);
}

static void the_page_for_operators_says_what_print_schema_says(void)
{
    static char page[1 << 16];
    char path[512], url[512];
    const char *slash = strrchr(__FILE__, '/');
    once_store *s = open_new("", url, sizeof(url));
    FILE *f;
    size_t n = 0;

    (void)snprintf(path, sizeof(path), "%.*s/../../docs/redis.md",
                   slash == NULL ? 1 : (int)(slash - __FILE__),
                   slash == NULL ? "." : __FILE__);
    f = fopen(path, "r");
    T_OK(f != NULL);
    if (f != NULL) {
        n = fread(page, 1, sizeof(page) - 1, f);
        (void)fclose(f);
    }
    T_OK(n > 1000);
    T_EQ(s->ops->print_schema("//127.0.0.1", is_documented, page, NULL),
         ONCE_OK);
    once_store_close(s);
}

static int show_none(void *user, const uint8_t *name, const once_record *r)
{
    (void)user;
    (void)name;
    return r->state > ONCE_INDETERMINATE;
}

static void ignore(void *user, const char *text)
{
    (void)user;
    printf("#   %s\n", text);
}

static void the_documented_user_can_do_all_and_no_more(void)
{
    char url[512], other[512], out[256];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    redisContext *as = dial("REDIS");
    int port = (int)strtol(need("ONCE_TEST_REDIS_PORT"), NULL, 10);

    grant(c, s);
    once_store_close(s);
    (void)snprintf(url, sizeof(url),
                   "redis://once:s%%3Ae%%2Fc%%25ret@127.0.0.1:%d", port);
    s = open_url(url);
    T_EQ(cycle(s, 1, done), ONCE_OK);
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2), ONCE_REPLAY);
    T_EQ(simple(s, ONCE_OP_CLAIM, 2, 2), ONCE_OWNER);
    T_EQ(simple(s, ONCE_OP_RELEASE, 2, 2), ONCE_OK);
    T_EQ(s->ops->scan(s, ONCE_SCAN_ALL, NULL, 10, show_none, NULL, NULL), 2);
    T_EQ(s->ops->scan(s, ONCE_SCAN_KEEP, NULL, 10, show_none, NULL, NULL), 0);
    T_EQ(s->ops->verify(url + 6, ignore, NULL, NULL), 0);
    T_EQ(s->ops->dump(url + 6, ignore, NULL, NULL), 2);
    T_OK(strstr(s->caveat, "appendfsync always") != NULL);
    must(as, "AUTH once s:e/c%%ret");
    T_STR(say(as, out, 8, "GET other"), "-NOPERM");
    T_STR(say(as, out, 8, "FLUSHALL"), "-NOPERM");
    T_STR(say(as, out, 8, "KEYS *"), "-NOPERM");
    (void)snprintf(other, sizeof(other), "redis://once:wr0ng@127.0.0.1:%d",
                   port);
    refused(other, ONCE_EOPEN, "password", "wr0ng");
    once_store_close(s);
    redisFree(as);
    redisFree(c);
}

static void a_password_may_stand_in_a_file(void)
{
    char path[256], url[600];
    redisContext *c = dial("REDIS");
    once_store *s;
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/secret", need("ONCE_TEST_DIR"));
    f = fopen(path, "w");
    T_OK(f != NULL && fputs("hidden\n", f) > 0);
    if (f != NULL)
        (void)fclose(f);
    T_EQ(chmod(path, 0600), 0);
    must(c, "ACL SETUSER filed reset on >hidden ~* +@all");
    (void)snprintf(url, sizeof(url),
                   "redis://filed@127.0.0.1:%s?password_file=%s",
                   need("ONCE_TEST_REDIS_PORT"), path);
    s = open_url(url);
    T_EQ(cycle(s, 77, done), ONCE_OK);
    once_store_close(s);
    (void)snprintf(url, sizeof(url),
                   "redis://filed@127.0.0.1:%s?password_file=%s.not",
                   need("ONCE_TEST_REDIS_PORT"), path);
    refused(url, ONCE_EOPEN, "secret.not", "hidden");
    redisFree(c);
}

/* Whoever forgot it may have been ahead of the clock with its fences. */
static void a_forgotten_name_gets_a_larger_fence_from_anybody(void)
{
    uint8_t name[ONCE_NAME_SIZE], value[ONCE__REDIS_HEAD];
    once_record grave;
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    once_op op;

    fill(&op, ONCE_OP_CLAIM, 1, 1);
    T_EQ(one(s, &op), ONCE_OWNER);
    memset(&grave, 0, sizeof(grave));
    grave.fence = op.record.fence + (UINT64_C(1) << 40);
    name_of(name, 2);
    once__redis_value_encode(&grave, name, value);
    set_raw(c, url, 2, value, sizeof(value));
    redisFree(c);
    T_EQ(simple(s, ONCE_OP_SHOW, 2, 1), ONCE_FREE);
    fill(&op, ONCE_OP_CLAIM, 2, 2);
    T_EQ(one(s, &op), ONCE_OWNER);
    T_OK(op.record.fence > grave.fence);
    once_store_close(s);
}

static void bad_urls_are_refused_without_repeating_them(void)
{
    static const char *const urls[] = {
        "redis:",
        "redis:127.0.0.1",
        "redis://",
        "redis://u:S3cr3t@",
        "redis://u:S3cr3t@h:port",
        "redis://u:S3cr3t@h/db",
        "redis://u:S3cr3t@a,b",
        "redis://u:S3cr3t@h?wiat=1",
        "redis://u:S3cr3t@h?wait=99",
        "redis://u:S3cr3t@h?cacert=x",
        "redis://u:S3cr3t@h?prefix=%7Btag%7D",
        "redis://u:S3cr3t@h?prefix=",
        "redis://u:%zz@h",
        "redis://u:%00@h",
        "redis://u:S3cr3t@[::1",
        "redis://u:x?S3cr3t@h",
        "redis://u:x?S3cr3t=1@h",
        "redis://S3cr3t@h",
        "redis+unix://u:S3cr3t@",
        "redis+sentinel://u:S3cr3t@h",
        "redis+cluster://u:S3cr3t@h/1",
        "rediss://u:S3cr3t@h?cert=x",
    };
    size_t i;

    for (i = 0; i < sizeof(urls) / sizeof(urls[0]); i++)
        refused(urls[i], ONCE_EURL, "", "S3cr3t");
}

static void a_unix_socket_is_a_server_too(void)
{
    char url[512];
    once_store *s;

    (void)snprintf(url, sizeof(url), "redis+unix://%s?db=3&prefix=u:",
                   need("ONCE_TEST_REDIS_SOCKET"));
    s = open_url(url);
    T_EQ(cycle(s, 1, done), ONCE_OK);
    T_OK(shows(s, 1, done));
    once_store_close(s);
}

static void a_short_count_of_replicas_is_unknown(void)
{
    char url[512], plain[512];
    once_store *s = open_new("&wait=1&wait_ms=20", url, sizeof(url)), *t;

    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 1), ONCE_ESTORE);
    /* It is there, and still nobody vouches for it. */
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 1), ONCE_ESTORE);
    (void)snprintf(plain, sizeof(plain), "%.*s",
                   (int)(strstr(url, "&wait=") - url), url);
    t = open_url(plain);
    T_EQ(simple(t, ONCE_OP_CLAIM, 1, 2), ONCE_IN_FLIGHT);
    T_EQ(cycle(t, 1, done), ONCE_OK);
    T_EQ(simple(s, ONCE_OP_READ, 1, 2), ONCE_ESTORE);
    T_EQ(simple(s, ONCE_OP_READ, 2, 2), ONCE_FREE); /* nothing to lose */
    once_store_close(t);
    once_store_close(s);
}

/* ---- Damage -------------------------------------------------------------------- */

/* Asks in every way; none may take damage for a free key. */
static void is_damage(once_store *s, uint32_t n, int code)
{
    static const int verbs[] = {ONCE_OP_CLAIM, ONCE_OP_READ, ONCE_OP_COMPLETE,
                                ONCE_OP_FORGET, ONCE_OP_REAP};
    size_t i;

    for (i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        T_EQ(simple(s, verbs[i], n, 3), code);
}

static int count_damage(void *user, const uint8_t *name, const once_record *r)
{
    (void)name;
    *(int *)user += r->state == 255;
    return 0;
}

static void a_value_that_does_not_check_is_never_a_miss(void)
{
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    redisReply *r;
    size_t i, size;
    char *bytes;
    int damaged = 0;

    T_EQ(cycle(s, 1, done), ONCE_OK);
    r = raw(c, url, "GET", 1);
    T_EQ(r->len, HEAD + 4);
    size = r->len;
    bytes = malloc(size + 1);
    assert(bytes != NULL);
    for (i = 0; i < size; i++) { /* each byte with one bit turned over */
        memcpy(bytes, r->str, size);
        bytes[i] = (char)(bytes[i] ^ 1 << i % 8);
        set_raw(c, url, 1, bytes, size);
        T_EQ(simple(s, ONCE_OP_CLAIM, 1, 3), ONCE_ECORRUPT);
    }
    for (i = 0; i < size; i += 9) { /* cut short */
        set_raw(c, url, 1, r->str, i);
        T_EQ(simple(s, ONCE_OP_CLAIM, 1, 3), ONCE_ECORRUPT);
    }
    set_raw(c, url, 2, r->str, size); /* in another one's place */
    is_damage(s, 2, ONCE_ECORRUPT);
    memcpy(bytes, r->str, size);
    bytes[size] = 'x'; /* too long */
    set_raw(c, url, 1, bytes, size + 1);
    is_damage(s, 1, ONCE_ECORRUPT);
    freeReplyObject(raw(c, url, "DEL", 1));
    freeReplyObject(raw(c, url, "INCR", 3));
    is_damage(s, 3, ONCE_ECORRUPT);
    T_EQ(s->ops->scan(s, ONCE_SCAN_ALL, NULL, 9, count_damage, &damaged, NULL),
         2);
    T_EQ(damaged, 2);
    T_EQ(s->ops->verify(url + 6, ignore, NULL, NULL), 2);
    free(bytes);
    freeReplyObject(r);
    redisFree(c);
    once_store_close(s);
}

static void somebody_elses_key_is_never_a_miss(void)
{
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    uint8_t name[ONCE_NAME_SIZE];
    const char *prefix = prefix_in(url);

    name_of(name, 1);
    freeReplyObject(redisCommand(c, "RPUSH %b%b element", prefix,
                                 strlen(prefix), name, sizeof(name)));
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 1), ONCE_ECORRUPT);
    T_EQ(simple(s, ONCE_OP_READ, 1, 1), ONCE_ECORRUPT);
    T_EQ(simple(s, ONCE_OP_CLAIM, 2, 1), ONCE_OWNER);
    redisFree(c);
    once_store_close(s);
}

static void a_result_of_twenty_megabytes_comes_back(void)
{
    enum { SIZE = 20 << 20 };
    char url[512];
    once_store *s = open_new("&timeout_ms=20000", url, sizeof(url));
    uint8_t *bytes = malloc(SIZE);
    once_bytes result = {bytes, SIZE};
    size_t i;

    assert(bytes != NULL);
    for (i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i * 31 + (i >> 12));
    T_EQ(cycle(s, 1, result), ONCE_OK);
    T_OK(shows(s, 1, result));
    T_EQ(cycle(s, 2, done), ONCE_OK); /* and life goes on */
    free(bytes);
    once_store_close(s);
}

/* ---- Clocks --------------------------------------------------------------------- */

/* Two-phase: only there can a lease that is over be granted anew under hold. */
static void a_step_of_the_servers_clock_grants_nothing_twice(void)
{
    static const char *const steps[] = {"clock redis 60000",
                                        "clock redis -60000", "clock redis 0"};
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    once_op op;
    uint64_t last = 0;
    uint32_t i;

    for (i = 0; i < 3; i++) {
        fill(&op, ONCE_OP_CLAIM, i, 1);
        op.lease_ms = 30000;
        T_EQ(one(s, &op), ONCE_OWNER);
        T_OK(op.record.fence > last); /* also behind a step back */
        last = op.record.fence;
        T_OK(ctl(steps[i]));
        nap(1100); /* longer than what we heard of the clock is believed */
        fill(&op, ONCE_OP_CLAIM, i, 2);
        /* Ahead: the lease is over, and nobody knows. Back: it still runs. */
        T_EQ(one(s, &op), i == 1 ? ONCE_IN_FLIGHT : ONCE_UNKNOWN);
        fill(&op, ONCE_OP_COMPLETE, i, 1);
        op.fence = last;
        op.result = done;
        T_EQ(one(s, &op), ONCE_OK); /* the late answer counts */
        T_OK(shows(s, i, done));
    }
    once_store_close(s);
}

static void clock_event(void *user, const char *text)
{
    if (strstr(text, "the store's clock jumped ahead") != NULL)
        atomic_fetch_add((atomic_int *)user, 1);
}

/* A gateway's reaper, and a server that is 25 hours ahead; a day is kept. */
static void a_server_that_is_ahead_makes_nobody_forget(void)
{
    enum { KEPT = 100 };
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_clock c = {.now_ms = 0};
    once_engine *e = NULL;
    once_stats stats;
    atomic_int jumps = 0;
    once_op op;
    uint64_t fence;
    uint32_t i;
    int tries;

    o.reap_ms = 20;
    o.event = clock_event;
    o.user = &jumps;
    T_EQ(once_engine_open(url, &o, NULL, &e), ONCE_OK);
    for (i = 0; i < KEPT; i++) {
        fill(&op, ONCE_OP_CLAIM, i, 1);
        T_EQ(one(s, &op), ONCE_OWNER);
        fence = op.record.fence;
        fill(&op, ONCE_OP_COMPLETE, i, 1);
        op.fence = fence;
        op.keep_ms = 86400000;
        op.result = done;
        T_EQ(one(s, &op), ONCE_OK);
    }
    T_EQ(once_store_clock(s, &c, NULL), ONCE_OK);
    T_OK(ctl("clock redis 90000000"));
    for (tries = 0; tries < TRIES && jumps == 0; tries++)
        nap(100);
    T_EQ(jumps, 1);
    nap(1100); /* longer than what we heard of the clock is believed */
    for (i = 0; i < KEPT; i++) /* no key is free */
        T_EQ(simple(s, ONCE_OP_CLAIM, i, 2), ONCE_REPLAY);
    once_engine_stats(e, &stats);
    T_EQ(stats.forgotten, 0);
    once_engine_close(e);
    T_EQ(once_store_clock_accept(s, &c, NULL), ONCE_OK);
    T_EQ(simple(s, ONCE_OP_FORGET, 0, 2), ONCE_OK);
    T_OK(ctl("clock redis 0"));
    once_store_close(s);
}

/* It takes no puts of the time, and forgetting is what makes room in it: only a
 * step back that nobody else knows of stops that. */
static void a_full_server_is_made_room_in_unless_its_clock_was_set_back(void)
{
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    once_clock clock = {.now_ms = 0};
    once_error err = {0, ""};
    once_op op;
    uint32_t i;

    for (i = 0; i < 2; i++) {
        fill(&op, ONCE_OP_CLAIM, i, 1);
        T_EQ(one(s, &op), ONCE_OWNER);
        op.verb = ONCE_OP_COMPLETE;
        op.fence = op.record.fence;
        op.keep_ms = 1;
        op.result = done;
        T_EQ(one(s, &op), ONCE_OK);
    }
    nap(50);
    must(c, "CONFIG SET maxmemory 1");
    T_EQ(once_store_clock(s, &clock, NULL), ONCE_OK);
    T_OK(s->forget_ms > 0);
    T_EQ(simple(s, ONCE_OP_FORGET, 0, 2), ONCE_OK);
    must(c, "CONFIG SET maxmemory 0");
    T_EQ(once_store_clock(s, &clock, NULL), ONCE_OK); /* is put now */
    T_OK(ctl("clock redis -3600000"));
    must(c, "CONFIG SET maxmemory 1");
    for (i = 0; i < 2; i++) {
        err.text[0] = '\0';
        T_EQ(once_store_clock(s, &clock, &err), ONCE_ESTORE);
        T_OK(strstr(err.text, "clock is refused") != NULL);
    }
    must(c, "CONFIG SET maxmemory 0");
    T_EQ(once_store_clock(s, &clock, NULL), ONCE_OK);
    T_EQ(clock.backs, 1);
    T_OK(ctl("clock redis 0"));
    redisFree(c);
    once_store_close(s);
}

/* ---- Many in one call of the script ----------------------------------------- */

enum { MANY = 150, LIST = 3, LARGE = 10, ENDED = 70, GONE = 100 };

/* A batch of completions of what these claims were granted. */
static void complete_many(once_store *s, once_op *op, once_bytes large)
{
    once_op *ops[MANY];
    once_error err = {0, ""};
    uint64_t fence;
    uint32_t i;

    for (i = 0; i < MANY; i++) {
        fence = op[i].record.fence;
        fill(&op[i], ONCE_OP_COMPLETE, i, 1);
        op[i].fence = fence;
        op[i].result = i == LARGE ? large : done;
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, MANY, &err), ONCE_OK);
}

static void claim_many(once_store *s, once_op *op)
{
    once_op *ops[MANY];
    once_error err = {0, ""};
    uint32_t i;

    for (i = 0; i < MANY; i++) {
        fill(&op[i], ONCE_OP_CLAIM, i, 1);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, MANY, &err), ONCE_OK);
    for (i = 0; i < MANY; i++)
        T_EQ(op[i].rc, ONCE_OWNER);
}

static void del(redisContext *c, const char *url, uint32_t n)
{
    freeReplyObject(raw(c, url, "DEL", n));
}

/* Three records are not what this handle wrote any more. */
static void spoil(redisContext *c, const char *url, uint64_t fence)
{
    once_store *other = open_url(url);
    const once_bytes first = {"first", 5};
    const char *prefix = prefix_in(url);
    uint8_t name[ONCE_NAME_SIZE];
    once_op op;

    del(c, url, LIST);
    name_of(name, LIST);
    freeReplyObject(redisCommand(c, "RPUSH %b%b element", prefix,
                                 strlen(prefix), name, sizeof(name)));
    del(c, url, GONE);
    fill(&op, ONCE_OP_COMPLETE, ENDED, 1);
    op.fence = fence;
    op.result = first;
    T_EQ(one(other, &op), ONCE_OK);
    once_store_close(other);
}

static void each_of_a_batch_is_written_or_refused_by_itself(void)
{
    static uint8_t bytes[600000]; /* more than is put beside others */
    const once_bytes large = {bytes, sizeof(bytes)}, first = {"first", 5};
    static once_op op[MANY];
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");
    uint32_t i;

    memset(bytes, 'x', sizeof(bytes));
    claim_many(s, op);
    spoil(c, url, op[ENDED].record.fence);
    must(c, "SCRIPT FLUSH"); /* for all of them */
    complete_many(s, op, large);
    T_EQ(op[LIST].rc, ONCE_ECORRUPT);
    T_EQ(op[GONE].rc, ONCE_FENCED);
    for (i = 0; i < MANY; i++) {
        if (i == LIST || i == GONE)
            continue;
        T_EQ(op[i].rc, i == ENDED ? ONCE_FENCED : ONCE_OK);
        T_OK(shows(s, i, i == LARGE ? large : i == ENDED ? first : done));
    }
    T_EQ(simple(s, ONCE_OP_READ, LIST, 1), ONCE_ECORRUPT);
    T_EQ(simple(s, ONCE_OP_READ, GONE, 1), ONCE_FREE);
    redisFree(c);
    once_store_close(s);
}

static void one_call_of_the_script_takes_many(void)
{
    static once_op op[MANY];
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS");

    claim_many(s, op);
    must(c, "CONFIG RESETSTAT");
    complete_many(s, op, done);
    T_EQ(stat_of(c, "commandstats", "cmdstat_evalsha:calls="), 3);
    redisFree(c);
    once_store_close(s);
}

static void different_event(void *user, const char *text)
{
    /* Other events come from the engine's thread, and are left alone. */
    if (strstr(text, "different store") != NULL)
        ++*(int *)user;
}

/* How often an engine with this witness says that the store is another one. */
static int differs(const char *url, const char *witness)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_engine *e = NULL;
    once_stats stats;
    int said = 0;

    o.witness = witness;
    o.event = different_event;
    o.user = &said;
    T_EQ(once_store_init(url, NULL), ONCE_OK);
    T_EQ(once_engine_open(url, &o, NULL, &e), ONCE_OK);
    once_engine_stats(e, &stats);
    T_EQ(stats.rollbacks, said);
    once_engine_close(e);
    return said;
}

/* Nobody could accept it: it knows no gap. */
static void a_different_store_is_reported_and_used(void)
{
    char folder[] = "/tmp/once-witness-XXXXXX", url[600], text[128];
    redisContext *c = dial("REDIS");
    const char *prefix;

    T_OK(mkdtemp(folder) != NULL);
    url_of(url, sizeof(url), base, "");
    prefix = strstr(url, "prefix=") + strlen("prefix=");
    T_EQ(differs(url, folder), 0);
    T_EQ(differs(url, folder), 0);
    T_STR(say(c, text, sizeof(text), "DEL %sstore", prefix), "1");
    T_EQ(differs(url, folder), 1);
    T_EQ(differs(url, folder), 0); /* it is the one that is expected now */
    redisFree(c);
    (void)snprintf(text, sizeof(text), "rm -r %s", folder);
    T_EQ(system(text), 0);
}

static void run_batch(void)
{
    T_RUN(a_different_store_is_reported_and_used);
    T_RUN(each_of_a_batch_is_written_or_refused_by_itself);
    T_RUN(one_call_of_the_script_takes_many);
}

static void run_single(void)
{
    run_batch();
    T_RUN(a_script_that_was_flushed_is_loaded_again);
    T_RUN(only_what_may_be_forgotten_has_a_ttl);
    T_RUN(a_step_of_the_reapers_walk_is_short);
    T_RUN(connections_may_be_killed_at_any_moment);
    T_RUN(a_server_that_hangs_is_unknown_and_bounded);
    T_RUN(a_full_server_refuses_claims_and_takes_outcomes);
    T_RUN(a_server_that_evicts_is_refused);
    T_RUN(a_server_that_begins_to_evict_is_refused);
    T_RUN(keys_that_were_dropped_between_two_looks_are_told_of);
    T_RUN(the_page_for_operators_says_what_print_schema_says);
    T_RUN(the_documented_user_can_do_all_and_no_more);
    T_RUN(a_password_may_stand_in_a_file);
    T_RUN(a_forgotten_name_gets_a_larger_fence_from_anybody);
    T_RUN(bad_urls_are_refused_without_repeating_them);
    T_RUN(a_unix_socket_is_a_server_too);
    T_RUN(a_short_count_of_replicas_is_unknown);
    T_RUN(a_value_that_does_not_check_is_never_a_miss);
    T_RUN(somebody_elses_key_is_never_a_miss);
    T_RUN(a_result_of_twenty_megabytes_comes_back);
    T_RUN(a_step_of_the_servers_clock_grants_nothing_twice);
    T_RUN(a_server_that_is_ahead_makes_nobody_forget);
    T_RUN(a_full_server_is_made_room_in_unless_its_clock_was_set_back);
    T_RUN(what_was_acknowledged_survives_a_kill_of_the_server);
}

/* ---- TLS ------------------------------------------------------------------------ */

static void a_good_certificate_is_taken(void)
{
    char url[512];
    once_store *s = open_new("", url, sizeof(url));

    T_EQ(cycle(s, 1, done), ONCE_OK);
    T_OK(shows(s, 1, done));
    once_store_close(s);
}

static void another_authority_is_refused(void)
{
    char url[512];

    (void)snprintf(url, sizeof(url),
                   "rediss://127.0.0.1:%s?cacert=%s/other-ca.crt",
                   need("ONCE_TEST_REDIS_TLS_PORT"), need("ONCE_TEST_TLS_DIR"));
    refused(url, ONCE_EOPEN, "TLS", NULL);
    *strchr(url, '?') = '\0'; /* the system's authorities do not know it */
    refused(url, ONCE_EOPEN, "TLS", NULL);
}

static void a_wrong_certificate(const char *which, const char *why)
{
    char words[64];

    (void)snprintf(words, sizeof(words), "cert redis-tls %s", which);
    T_OK(ctl(words));
    refused(base, ONCE_EOPEN, why, NULL);
    T_OK(ctl("cert redis-tls good"));
}

static void another_hosts_certificate_is_refused(void)
{
    a_wrong_certificate("wronghost", "mismatch");
}

static void an_expired_certificate_is_refused(void)
{
    a_wrong_certificate("expired", "expired");
}

static void run_tls(void)
{
    T_RUN(a_good_certificate_is_taken);
    T_RUN(another_authority_is_refused);
    T_RUN(another_hosts_certificate_is_refused);
    T_RUN(an_expired_certificate_is_refused);
    T_RUN(a_good_certificate_is_taken);
}

/* ---- Sentinel -------------------------------------------------------------------- */

static void the_primary_is_found_again_after_a_failover(void)
{
    enum { N = 50 };
    char url[512];
    once_store *s = open_new("", url, sizeof(url));
    uint32_t i;

    for (i = 0; i < N; i++)
        T_EQ(cycle(s, i, done), ONCE_OK);
    T_OK(ctl("kill redis-primary"));
    T_EQ(simple(s, ONCE_OP_READ, 1, 2), ONCE_ESTORE); /* unknown, not free */
    T_EQ(cycle(s, N, done), ONCE_OK); /* asked until it is answered */
    T_OK(shows(s, N, done));
    T_EQ(simple(s, ONCE_OP_CLAIM, N, 2), ONCE_REPLAY);
    once_store_close(s);
    s = open_url(url); /* also by those who come later */
    T_OK(shows(s, N, done));
    once_store_close(s);
}

static void what_replicas_confirmed_is_acknowledged(void)
{
    char url[512];
    once_store *s = open_new("&wait=1&wait_ms=5000", url, sizeof(url));

    T_EQ(cycle(s, 1, done), ONCE_OK);
    T_EQ(cycle(s, 1, done), ONCE_REPLAY); /* another attempt, another write */
    T_OK(strstr(s->caveat, "wait=1") != NULL);
    once_store_close(s);
}

static void a_replica_is_refused(void)
{
    char url[512];

    (void)snprintf(url, sizeof(url), "redis+unix://%s",
                   need("ONCE_TEST_REDIS_REPLICA_SOCKET"));
    refused(url, ONCE_EAWAY, "replica", NULL);
}

static void run_sentinel(void)
{
    T_RUN(what_replicas_confirmed_is_acknowledged);
    T_RUN(a_replica_is_refused);
    T_RUN(the_primary_is_found_again_after_a_failover);
}

/* ---- Cluster --------------------------------------------------------------------- */

static void all_primaries_get_their_share(void)
{
    enum { N = 600 };
    static once_op op[N];
    once_op *ops[N];
    char url[512], out[64];
    once_store *s = open_new("", url, sizeof(url));
    static const char *const servers[] = {"REDIS1", "REDIS2", "REDIS3"};
    redisContext *c;
    int i;

    for (i = 0; i < N; i++) {
        fill(&op[i], ONCE_OP_CLAIM, (uint32_t)i, 1);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, N, NULL), ONCE_OK);
    for (i = 0; i < N; i++)
        T_EQ(op[i].rc, ONCE_OWNER);
    for (i = 0; i < 3; i++) {
        c = dial(servers[i]);
        T_OK(strtol(say(c, out, sizeof(out), "DBSIZE"), NULL, 10) > N / 6);
        redisFree(c);
    }
    T_EQ(s->ops->scan(s, ONCE_SCAN_ALL, NULL, 2 * N, show_none, NULL, NULL), N);
    once_store_close(s);
}

/* Names whose keys share the slot of the first. */
static uint32_t in_slot(redisContext *c, const char *url, long long slot,
                        uint32_t from)
{
    redisReply *r;
    long long is = -1;

    while (is != slot) {
        r = raw(c, url, "KEYSLOT", from++);
        is = r->integer;
        freeReplyObject(r);
    }
    return from - 1;
}

struct move {
    redisContext *from, *to;
    char from_id[64], to_id[64], port[8];
    int slot;
};

/* The node that serves a slot, and another one. */
static void find_move(struct move *m, int slot)
{
    static const char *const servers[] = {"REDIS1", "REDIS2", "REDIS3"};
    char out[64], port[64];
    int i;

    memset(m, 0, sizeof(*m));
    m->slot = slot;
    for (i = 0; i < 3; i++) {
        redisContext *c = dial(servers[i]);

        (void)snprintf(port, sizeof(port), "ONCE_TEST_%s_PORT", servers[i]);
        (void)say(c, out, sizeof(out), "CLUSTER COUNTKEYSINSLOT %d", slot);
        if (m->from == NULL && strtol(out, NULL, 10) > 0) {
            m->from = c;
            (void)say(c, m->from_id, sizeof(m->from_id), "CLUSTER MYID");
        } else if (m->to == NULL) {
            m->to = c;
            (void)say(c, m->to_id, sizeof(m->to_id), "CLUSTER MYID");
            (void)snprintf(m->port, sizeof(m->port), "%s", need(port));
        } else {
            redisFree(c);
        }
    }
}

static void move_keys(struct move *m)
{
    redisReply *r, *done_;
    size_t i;

    r = redisCommand(m->from, "CLUSTER GETKEYSINSLOT %d 100", m->slot);
    for (i = 0; i < r->elements; i++) {
        done_ = redisCommand(m->from, "MIGRATE 127.0.0.1 %s %b 0 5000", m->port,
                             r->element[i]->str, r->element[i]->len);
        T_OK(done_ != NULL && done_->type == REDIS_REPLY_STATUS);
        freeReplyObject(done_);
    }
    freeReplyObject(r);
}

static void a_slot_may_move_while_it_is_in_use(void)
{
    char url[512], out[256];
    once_store *s = open_new("", url, sizeof(url));
    redisContext *c = dial("REDIS1");
    redisReply *r;
    struct move m;
    uint32_t first = 1000, moved, fresh, late;
    int slot;

    r = raw(c, url, "KEYSLOT", first);
    slot = (int)r->integer;
    freeReplyObject(r);
    moved = in_slot(c, url, slot, first + 1);
    fresh = in_slot(c, url, slot, moved + 1);
    late = in_slot(c, url, slot, fresh + 1);
    T_EQ(cycle(s, first, done), ONCE_OK);
    T_EQ(simple(s, ONCE_OP_CLAIM, moved, 1), ONCE_OWNER);
    find_move(&m, slot);
    (void)say(m.to, out, sizeof(out), "CLUSTER SETSLOT %d IMPORTING %s", slot,
              m.from_id);
    T_STR(out, "OK");
    (void)say(m.from, out, sizeof(out), "CLUSTER SETSLOT %d MIGRATING %s", slot,
              m.to_id);
    T_STR(out, "OK");
    T_OK(shows(s, first, done)); /* still where it was */
    T_EQ(simple(s, ONCE_OP_CLAIM, fresh, 1), ONCE_OWNER); /* ASK */
    move_keys(&m);
    T_OK(shows(s, first, done));          /* ASK */
    T_EQ(cycle(s, moved, done), ONCE_OK); /* ASK, and by the script */
    T_OK(stat_of(m.from, "errorstats", "errorstat_ASK:count=") >= 3);
    (void)say(m.to, out, sizeof(out), "CLUSTER SETSLOT %d NODE %s", slot,
              m.to_id);
    (void)say(m.from, out, sizeof(out), "CLUSTER SETSLOT %d NODE %s", slot,
              m.to_id);
    T_EQ(cycle(s, fresh, done), ONCE_OK); /* MOVED */
    T_EQ(cycle(s, late, done), ONCE_OK);
    T_OK(shows(s, moved, done));
    T_OK(stat_of(m.from, "errorstats", "errorstat_MOVED:count=") >= 1);
    T_EQ(s->ops->scan(s, ONCE_SCAN_ALL, NULL, 10, show_none, NULL, NULL), 4);
    redisFree(m.from);
    redisFree(m.to);
    redisFree(c);
    once_store_close(s);
}

/* A new store whose mark (which store it is) another server has: one whose mark
 * is out of reach cannot be opened. */
static once_store *open_marked_elsewhere(const char *server, char *url,
                                         size_t size)
{
    redisContext *c = dial(server);
    once_store *s = NULL;
    char slot[16], there[16] = "1";

    while (strcmp(there, "0") != 0) {
        once_store_close(s);
        s = open_new("", url, size);
        (void)say(c, slot, sizeof(slot), "CLUSTER KEYSLOT %sstore",
                  prefix_in(url));
        (void)say(c, there, sizeof(there), "CLUSTER COUNTKEYSINSLOT %s", slot);
    }
    redisFree(c);
    return s;
}

static void a_dead_primary_takes_only_its_own_keys_along(void)
{
    enum { N = 90 };
    static once_op op[N];
    once_op *ops[N];
    char url[512];
    once_store *s;
    redisContext *c = dial("REDIS1");
    int i, dead = 0, alive = 0;

    /* Otherwise all of them stop: cluster-require-full-coverage. */
    must(c, "CONFIG SET cluster-require-full-coverage no");
    redisFree(c);
    c = dial("REDIS2");
    must(c, "CONFIG SET cluster-require-full-coverage no");
    redisFree(c);
    s = open_marked_elsewhere("REDIS3", url, sizeof(url));
    T_OK(ctl("kill redis3"));
    for (i = 0; i < N; i++) {
        fill(&op[i], ONCE_OP_CLAIM, (uint32_t)i, 1);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, N, NULL), ONCE_OK);
    for (i = 0; i < N; i++) {
        T_OK(op[i].rc == ONCE_OWNER || op[i].rc == ONCE_ESTORE);
        dead += op[i].rc == ONCE_ESTORE;
        alive += op[i].rc == ONCE_OWNER;
    }
    T_OK(dead > N / 6 && alive > N / 3);
    once_store_close(s);
    s = open_url(url); /* who comes now can work with the others, too */
    T_OK(ctl("start redis3"));
    for (i = 0; i < N; i++)
        T_EQ(answer(s, &op[i]), ONCE_OWNER); /* the same call, asked again */
    once_store_close(s);
}

static void one_server_of_a_cluster_is_refused(void)
{
    char url[512];

    (void)snprintf(url, sizeof(url), "redis+unix://%s",
                   need("ONCE_TEST_REDIS1_SOCKET"));
    refused(url, ONCE_EOPEN, "redis+cluster", NULL);
}

static void run_cluster(void)
{
    T_RUN(all_primaries_get_their_share);
    T_RUN(one_server_of_a_cluster_is_refused);
    T_RUN(a_slot_may_move_while_it_is_in_use);
    T_RUN(a_dead_primary_takes_only_its_own_keys_along);
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";

    base = getenv("ONCE_TEST_URL");
    if (base == NULL)
        t_skip_all("ONCE_TEST_URL names no server: run it under with-server");
    if (strcmp(what, "single") == 0)
        run_single();
    else if (strcmp(what, "batch") == 0)
        run_batch();
    else if (strcmp(what, "tls") == 0)
        run_tls();
    else if (strcmp(what, "sentinel") == 0)
        run_sentinel();
    else if (strcmp(what, "cluster") == 0)
        run_cluster();
    else {
        fprintf(
            stderr,
            "usage: test_redis single | batch | tls | sentinel | cluster\n");
        return 2;
    }
    return t_done();
}
