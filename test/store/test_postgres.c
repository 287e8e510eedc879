/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_postgres.c - what only this store has: its schema, its roles, other
 * sessions, a server that goes away, certificates, standbys.
 *
 *    with-server KIND -- test_postgres PART
 *
 *    KIND --clock postgres    PART alone
 *    KIND pgbouncer           PART pooler
 *    KIND postgres-tls        PART tls
 *    KIND postgres-standby    PART standby
 *    KIND postgres            PART docs FILE: the SQL of docs/postgres.md
 *
 * Nothing is timed. What happens at the same time as something else is made to
 * happen often, and what must be so afterwards is checked.
 */
#include "t.h"

#include <assert.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

#include "calls/core/transition.h"
#include "base/steady.h"
#include "calls/store/postgres/postgres.h"
#include "calls/store/store.h"

static const char *server_url, *admin_url;
static unsigned schemas;

/* ---- Small things ------------------------------------------------------ */

static void with(char *out, size_t size, const char *url, const char *more)
{
    (void)snprintf(out, size, "%s%c%s", url,
                   strchr(url, '?') == NULL ? '?' : '&', more);
}

/* Runs SQL as superuser; returns the first field of the last row. */
ONCE_PRINTF(2, 3)
static void sql(char out[64], const char *format, ...)
{
    char text[768];
    PGconn *conn = PQconnectdb(admin_url);
    PGresult *r;
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    r = PQexec(conn, text);
    if (PQresultStatus(r) != PGRES_COMMAND_OK &&
        PQresultStatus(r) != PGRES_TUPLES_OK) {
        printf("#   %s: %s", text, PQerrorMessage(conn));
        t__bad++;
    }
    if (out != NULL)
        (void)snprintf(out, 64, "%s",
                       PQntuples(r) > 0 ? PQgetvalue(r, 0, 0) : "");
    PQclear(r);
    PQfinish(conn);
}

static void ctl(const char *words)
{
    char command[256];

    (void)snprintf(command, sizeof(command),
                   "\"$ONCE_TEST_WITH_SERVER\" ctl %s", words);
    T_EQ(system(command), 0);
}

/* A schema of its own for each test, so that none depends on another. */
struct place {
    char schema[32];
    char url[512];
};

static struct place new_place(const char *more)
{
    struct place p;
    char text[128];

    (void)snprintf(p.schema, sizeof(p.schema), "t%u", schemas++);
    (void)snprintf(text, sizeof(text), "schema=%s%s%s", p.schema,
                   more[0] != '\0' ? "&" : "", more);
    with(p.url, sizeof(p.url), server_url, text);
    return p;
}

static struct place made_place(const char *more)
{
    struct place p = new_place(more);
    once_error err = {0, ""};
    int rc = once_store_init(p.url, &err);

    if (rc != ONCE_OK)
        printf("#   %s\n", err.text);
    T_EQ(rc, ONCE_OK);
    return p;
}

static once_store *must_open(const char *url, const once_store_options *o)
{
    once_error err = {0, ""};
    once_store *s = NULL;

    if (once_store_open(url, o, &err, &s) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return s;
}

/* The server may be going down at this very moment. */
static once_store *open_patiently(const char *url)
{
    once_store *s = NULL;
    int tries;

    for (tries = 0; tries < 3000; tries++) {
        if (once_store_open(url, NULL, NULL, &s) == ONCE_OK)
            return s;
        once__sleep_ms(20);
    }
    return must_open(url, NULL);
}

static void refused(const char *url, int code, const char *text)
{
    once_error err = {0, ""};
    once_store *s = NULL;

    T_EQ(once_store_open(url, NULL, &err, &s), code);
    T_OK(s == NULL);
    if (err.code != code)
        printf("#   %s: %s\n", url, err.text);
    if (!T_OK(strstr(err.text, text) != NULL))
        printf("#   \"%s\" is not in \"%s\"\n", text, err.text);
    T_OK(strstr(err.text, "s3cret") == NULL);
}

static void fill(once_op *op, int verb, unsigned name, unsigned who)
{
    memset(op, 0, sizeof(*op));
    op->verb = verb;
    op->kind = ONCE_SUCCESS;
    op->lease_ms = 600000;
    op->keep_ms = 86400000;
    op->name[0] = (uint8_t)(name * 37);
    op->name[1] = (uint8_t)(name >> 8);
    op->name[2] = (uint8_t)name;
    memset(op->token, (int)who, ONCE_TOKEN_SIZE);
    memset(op->fingerprint, 7, ONCE_FINGERPRINT_SIZE);
}

/* Asks until it is answered. Gives up after a minute or so. */
static int ask(once_store *s, once_op *op)
{
    once_error err = {0, ""};
    int tries, rc = ONCE_ESTORE;

    for (tries = 0; tries < 3000; tries++) {
        rc = s->ops->apply(s, &op, 1, &err);
        if (rc == ONCE_OK && op->rc != ONCE_ESTORE)
            return op->rc;
        once__sleep_ms(20);
    }
    printf("#   %s\n", err.text);
    return rc;
}

static int simple(once_store *s, int verb, unsigned name, unsigned who,
                  uint64_t fence)
{
    once_op op;

    fill(&op, verb, name, who);
    op.fence = fence;
    return ask(s, &op);
}

static uint64_t claimed(once_store *s, unsigned name, unsigned who)
{
    once_op op;

    fill(&op, ONCE_OP_CLAIM, name, who);
    T_EQ(ask(s, &op), ONCE_OWNER);
    return op.record.fence;
}

static void count_line(void *user, const char *text)
{
    int *n = user;

    (*n)++;
    T_OK(strchr(text, '\n') == NULL);
}

/* ---- The schema -------------------------------------------------------- */

static void without_a_schema_it_says_what_makes_one(void)
{
    struct place p = new_place("");

    refused(p.url, ONCE_EOPEN, "once init");
}

static void *init_thread(void *url)
{
    return once_store_init(url, NULL) == ONCE_OK ? url : NULL;
}

static void making_it_twice_or_at_once_is_making_it_once(void)
{
    struct place p = new_place("partitions=3");
    pthread_t threads[4];
    void *good;
    uint64_t fence;
    once_store *s;
    int i;

    for (i = 0; i < 4; i++)
        T_EQ(pthread_create(&threads[i], NULL, init_thread, p.url), 0);
    for (i = 0; i < 4; i++) {
        T_EQ(pthread_join(threads[i], &good), 0);
        T_OK(good != NULL);
    }
    s = must_open(p.url, NULL);
    fence = claimed(s, 1, 1);
    T_EQ(once_store_init(p.url, NULL), ONCE_OK);
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_OK);
    once_store_close(s);
}

static void another_version_is_refused_with_both_numbers(void)
{
    struct place p = made_place("");

    sql(NULL, "UPDATE %s.meta SET version = 7", p.schema);
    refused(p.url, ONCE_EVERSION, "version 7, this program understands 2");
    T_EQ(once_store_init(p.url, NULL), ONCE_EVERSION);
    sql(NULL, "UPDATE %s.meta SET version = 1", p.schema);
    refused(p.url, ONCE_EVERSION, "version 1, this program understands 2");
    T_EQ(once_store_init(p.url, NULL), ONCE_EVERSION);
    sql(NULL, "UPDATE %s.meta SET version = 2", p.schema);
    once_store_close(must_open(p.url, NULL));
}

static void partitions_hold_all_and_their_number_stays(void)
{
    struct place p = made_place("partitions=4");
    once_store *s = must_open(p.url, NULL);
    once_op op[200], *ops[200];
    char url[512], n[64];
    int i, lines = 0;

    for (i = 0; i < 200; i++) {
        fill(&op[i], ONCE_OP_CLAIM, (unsigned)i, 1);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, 200, NULL), ONCE_OK);
    for (i = 0; i < 200; i++) {
        uint64_t fence = op[i].record.fence;

        T_EQ(op[i].rc, ONCE_OWNER);
        fill(&op[i], ONCE_OP_COMPLETE, (unsigned)i, 1);
        op[i].fence = fence;
        op[i].result = (once_bytes){"done", 4};
    }
    T_EQ(s->ops->apply(s, ops, 200, NULL), ONCE_OK);
    for (i = 0; i < 200; i++)
        T_EQ(op[i].rc, ONCE_OK);
    once_store_close(s);
    sql(n, "SELECT count(DISTINCT tableoid) FROM %s.record", p.schema);
    T_STR(n, "4");
    T_EQ(once_store_verify(p.url, count_line, &lines, NULL), 0);
    T_EQ(once_store_dump(p.url, count_line, &lines, NULL), 200);
    T_EQ(lines, 200);
    with(url, sizeof(url), server_url, "partitions=5&schema=");
    (void)strncat(url, p.schema, sizeof(url) - strlen(url) - 1);
    T_EQ(once_store_init(url, NULL), ONCE_EOPEN);
}

struct text {
    char *bytes;
    size_t size;
};

static void add_line(void *user, const char *line)
{
    struct text *t = user;
    size_t size = strlen(line);

    t->bytes = realloc(t->bytes, t->size + size + 2);
    assert(t->bytes != NULL);
    memcpy(t->bytes + t->size, line, size);
    t->size += size;
    t->bytes[t->size++] = '\n';
    t->bytes[t->size] = '\0';
}

static void the_printed_schema_is_one_that_works(void)
{
    struct place p = new_place("partitions=2");
    struct text t = {NULL, 0};
    PGconn *conn = PQconnectdb(server_url);
    once_store *s;

    T_EQ(once_store_print_schema(p.url, add_line, &t, NULL), ONCE_OK);
    PQclear(PQexec(conn, t.bytes));
    PQfinish(conn);
    s = must_open(p.url, NULL);
    (void)claimed(s, 1, 1);
    once_store_close(s);
    free(t.bytes);
}

/* ---- What is refused --------------------------------------------------- */

static void an_asynchronous_session_is_refused_unless_wanted(void)
{
    struct place p = made_place("");
    char url[600];
    once_store *s;

    sql(NULL, "ALTER ROLE once SET synchronous_commit = off");
    refused(p.url, ONCE_EOPEN, "async=allow");
    with(url, sizeof(url), p.url, "async=allow");
    s = must_open(url, NULL);
    T_OK(s->caveat != NULL && strstr(s->caveat, "synchronous_commit") != NULL);
    (void)claimed(s, 1, 1);
    once_store_close(s);
    sql(NULL, "ALTER ROLE once RESET synchronous_commit");
    s = must_open(p.url, NULL);
    T_OK(s->caveat == NULL);
    once_store_close(s);
}

static void urls_that_are_refused_are_not_repeated(void)
{
    static const char *const urls[] = {
        "postgres:once",
        "postgres://u:s3cret@h/db?statment_ms=5",
        "postgres://u:s3cret@h/db?statement_ms=5",
        "postgres://u:s3cret@h/db?statement_ms=1e3",
        "postgres://u:s3cret@h/db?schema=A",
        "postgres://u:s3cret@h/db?schema=a%22b",
        "postgres://u:s3cret@h/db?schema=",
        "postgres://u:s3cret@h/db?async=yes",
        "postgres://u:s3cret@h/db?partitions=257",
        "postgres://u:s3cret@h/db?target_session_attrs=standby",
        "postgres://u:s3cret@h/db?target_session_attrs=prefer-standby",
        "postgres://u:s3cret@h/db?lock_ms=5&lock_ms=6",
        "postgres://u:x@s3cret@h/db",
        "postgres://u:s3cret/x@h/db",
        "postgres://u:pa@s3cret/x@h/db",
        "postgres://u:s3cret@h/db?password",
        "postgres://u:s3cret@[::1/db",
        "postgres://u:s3cret@a,b/db?port=1,2,3",
        "postgresql://u:s3cret@h/db?application_nam=x",
    };
    size_t i;

    for (i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        refused(urls[i], ONCE_EURL, ""); /* without s3cret */
        T_EQ(once_store_init(urls[i], NULL), ONCE_EURL);
    }
}

static void a_server_that_is_not_there_is_named_without_a_password(void)
{
    refused("postgres://once:s3cret@127.0.0.1:1/once", ONCE_EAWAY,
            "127.0.0.1:1");
    refused("postgres://once:s3cret@127.0.0.1:1,127.0.0.1:1/once", ONCE_EAWAY,
            "127.0.0.1:1");
}

/* ---- Answers ----------------------------------------------------------- */

static void long_results_come_back_with_the_same_bytes(void)
{
    static const size_t sizes[] = {65536, 131072, 131073, 5 << 20, 20 << 20};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    struct place p = made_place("statement_ms=60000");
    once_store *s = must_open(p.url, NULL);
    uint8_t *bytes = malloc(sizes[N - 1]);
    once_op op[2 * N], *ops[2 * N];
    size_t i;

    assert(bytes != NULL);
    for (i = 0; i < sizes[N - 1]; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    for (i = 0; i < N; i++) {
        uint64_t fence = claimed(s, (unsigned)i, 1);

        fill(&op[i], ONCE_OP_COMPLETE, (unsigned)i, 1);
        op[i].fence = fence;
        op[i].result = (once_bytes){bytes, sizes[i]};
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, N, NULL), ONCE_OK);
    T_EQ(s->ops->apply(s, ops, N, NULL), ONCE_OK); /* repeated */
    for (i = 0; i < N; i++)
        T_EQ(op[i].rc, ONCE_OK);
    for (i = 0; i < 2 * N; i++) {
        fill(&op[i], ONCE_OP_CLAIM, (unsigned)(i % N), 2);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, 2 * N, NULL), ONCE_OK);
    for (i = 0; i < 2 * N; i++) {
        T_EQ(op[i].rc, ONCE_REPLAY);
        T_EQ(op[i].record.result.size, sizes[i % N]);
        T_MEM(op[i].record.result.data, bytes, sizes[i % N]);
    }
    free(bytes);
    once_store_close(s);
}

/* A thousand callers with one key are one question, not a thousand. */
static void a_crowd_on_one_name_is_answered_by_one_call(void)
{
    enum { N = 1024 };
    struct place p = made_place("");
    once_store *s = must_open(p.url, NULL);
    once_op *op = calloc(N, sizeof(*op)), *ops[N];
    int i, owners = 0, waiting = 0;
    char label[] = "order";

    assert(op != NULL);
    for (i = 0; i < N; i++) {
        fill(&op[i], ONCE_OP_CLAIM, 5, (unsigned)i % 200);
        op[i].label = (once_bytes){label, 5};
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, N, NULL), ONCE_OK);
    memset(label, 'x', sizeof(label)); /* its owner needs it no longer */
    for (i = 1; i < N; i++)
        T_OK(op[i].record.label.size == 5 &&
             memcmp(op[i].record.label.data, "order", 5) == 0);
    for (i = 0; i < N; i++) {
        owners += op[i].rc == ONCE_OWNER; /* with the token of the first */
        waiting += op[i].rc == ONCE_IN_FLIGHT;
        T_EQ(op[i].record.fence, op[0].record.fence);
    }
    T_EQ(owners, (N + 199) / 200);
    T_EQ(owners + waiting, N);
    free(op);
    once_store_close(s);
}

static void time_is_the_servers(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url, NULL);
    char before[64], after[64];
    once_op op;

    sql(before, "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)"
                "::bigint");
    fill(&op, ONCE_OP_CLAIM, 1, 1);
    T_EQ(ask(s, &op), ONCE_OWNER);
    sql(after, "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)"
               "::bigint");
    T_OK(op.record.granted_ms >= strtoull(before, NULL, 10));
    T_OK(op.record.granted_ms <= strtoull(after, NULL, 10));
    once_store_close(s);
}

static void a_row_that_does_not_check_is_an_error_and_stays(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url, NULL);
    uint64_t fence = claimed(s, 1, 1);
    char row[64], now[64];
    int lines = 0;

    sql(NULL, "UPDATE %s.record SET kind = 2", p.schema);
    sql(row, "SELECT md5(r::text) FROM %s.record r", p.schema);
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_ECORRUPT);
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2, 0), ONCE_ECORRUPT);
    T_EQ(simple(s, ONCE_OP_FORGET, 1, 2, 0), ONCE_ECORRUPT);
    sql(now, "SELECT md5(r::text) FROM %s.record r", p.schema);
    T_STR(now, row);
    T_EQ(once_store_verify(p.url, count_line, &lines, NULL), 1);
    T_EQ(lines, 1);
    sql(NULL, "UPDATE %s.record SET kind = 0, version = 1", p.schema);
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_EVERSION);
    sql(NULL, "UPDATE %s.record SET version = 2", p.schema);
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_OK);
    sql(NULL, "SELECT setval('%s.fence', 1, false)", p.schema);
    sql(NULL, "UPDATE %s.record SET fence = 99", p.schema);
    T_EQ(once_store_verify(p.url, count_line, &lines, NULL), 1);
    sql(NULL, "UPDATE %s.meta SET incarnation = 1", p.schema);
    T_EQ(once_store_verify(p.url, count_line, &lines, NULL), 2);
    sql(NULL, "DROP INDEX %s.record_waiting", p.schema);
    T_EQ(once_store_verify(p.url, count_line, &lines, NULL), 3);
    once_store_close(s);
}

/* An import is refused where a name is there, and raises the fences. */
static void what_is_there_is_not_imported(void)
{
    enum { N = 600 }; /* more than one call takes along */
    struct place p = made_place("");
    once_store *s = must_open(p.url, NULL);
    once_named *r = calloc(N, sizeof(*r));
    once_error err = {0, ""};
    once_op op;
    int i;

    assert(r != NULL);
    (void)claimed(s, 1, 1);
    fill(&op, ONCE_OP_SHOW, 1, 1);
    T_EQ(ask(s, &op), ONCE_IN_FLIGHT);
    for (i = 0; i < N; i++) {
        r[i].record = op.record;
        memset(r[i].name, i % 256, ONCE_NAME_SIZE);
        r[i].name[0] = (uint8_t)(i / 256);
        r[i].record.fence = (uint64_t)(1000 + i);
    }
    T_EQ(s->ops->import(s, r, N, &err), ONCE_OK);
    T_EQ(claimed(s, 2, 1), 1000 + N);
    T_EQ(s->ops->import(s, r, 1, &err), ONCE_EINVAL);
    T_OK(strstr(err.text, "same name") != NULL);
    free(r);
    once_store_close(s);
}

static int count_damaged(void *user, const uint8_t *name, const once_record *r)
{
    (void)name;
    (void)r;
    T_EQ(r->state, 255);
    ++*(int *)user;
    return 0;
}

/* A reader that goes on behind the last record that it was shown comes to the
 * end, also where that record is damaged. */
static void pages_go_on_behind_a_damaged_record(void)
{
    static const int scans[] = {ONCE_SCAN_ALL, ONCE_SCAN_WAITING,
                                ONCE_SCAN_LIVE};
    static const char *const harms[] = {
        "attempt = 0", "reason = 99", "version = 1",
        "label = decode(repeat('78', 129), 'hex')"};
    enum { N = 5000, WAITING = 4500 };
    struct place p = made_place("");
    once_store *s = must_open(p.url, NULL);
    once_op *op = calloc(N, sizeof(*op)), *ops[N];
    size_t i, k;
    int shown;

    assert(op != NULL);
    for (i = 0; i < N; i++) {
        fill(&op[i], ONCE_OP_CLAIM, (unsigned)i, 1);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, N, NULL), ONCE_OK);
    for (i = 0; i < WAITING; i++) {
        op[i].verb = ONCE_OP_GIVE_UP;
        op[i].fence = op[i].record.fence;
    }
    T_EQ(s->ops->apply(s, ops, WAITING, NULL), ONCE_OK);
    for (k = 0; k < sizeof(harms) / sizeof(harms[0]); k++) {
        sql(NULL, "UPDATE %s.record SET %s", p.schema, harms[k]);
        for (i = 0; i < 3; i++) { /* in more than one page */
            shown = 0;
            T_EQ(s->ops->scan(s, scans[i], NULL, 3 * N, count_damaged, &shown,
                              NULL),
                 i == 0   ? N
                 : i == 1 ? WAITING
                          : N - WAITING);
        }
    }
    free(op);
    once_store_close(s);
}

/* Rows that the server reads for pages and counts, besides those that wait or
 * are live: none of the thousands that are done. */
static void looking_at_what_waits_does_not_walk_over_the_rest(void)
{
    enum { N = 3000, OPEN = 20 };
    const char *const more[] = {"", "partitions=3"};
    once_op *op = calloc(N, sizeof(*op)), *ops[N];
    char n[64];
    size_t i, k;

    assert(op != NULL);
    for (k = 0; k < 2; k++) {
        struct place p = made_place(more[k]);
        once_store *s = must_open(p.url, NULL);
        once_counts c;

        for (i = 0; i < N; i++) {
            fill(&op[i], ONCE_OP_CLAIM, (unsigned)i, 1);
            ops[i] = &op[i];
        }
        T_EQ(s->ops->apply(s, ops, N, NULL), ONCE_OK);
        for (i = 0; i < N - OPEN; i++) {
            uint64_t fence = op[i].record.fence;

            fill(&op[i], i < OPEN ? ONCE_OP_GIVE_UP : ONCE_OP_COMPLETE,
                 (unsigned)i, 1);
            op[i].fence = fence;
        }
        T_EQ(s->ops->apply(s, ops, N - OPEN, NULL), ONCE_OK);
        T_EQ(s->ops->count(s, &c, NULL), ONCE_OK);
        T_EQ(c.claimed + c.dispatched, OPEN);
        T_EQ(c.indeterminate, OPEN);
        once_store_close(s);
        sql(NULL, "ANALYZE %s.record", p.schema);
        s = must_open(p.url, NULL);
        T_EQ(s->ops->count(s, &c, NULL), ONCE_OK);
        T_EQ(c.rest, N - 2 * OPEN);
        T_EQ(c.rest_estimated, 1);
        once_store_close(s);
        sql(n,
            "BEGIN; SELECT count(*) FROM %s.scan_1(3, NULL, 0, '', 10);"
            "SELECT count(*) FROM %s.scan_1(4, NULL, 0, '', 10);"
            "SELECT %s.count_1(); SELECT sum(seq_tup_read + idx_tup_fetch)"
            " BETWEEN %d AND %d FROM pg_stat_xact_user_tables"
            " WHERE schemaname = '%s' AND relname LIKE 'record%%'",
            p.schema, p.schema, p.schema, OPEN, 6 * OPEN, p.schema);
        T_STR(n, "t");
    }
    free(op);
}

/* ---- Other sessions ---------------------------------------------------- */

/* One name that somebody sits on does not keep the others waiting. */
static void a_locked_row_is_answered_alone(void)
{
    struct place p = made_place("lock_ms=50");
    once_store *s = must_open(p.url, NULL);
    PGconn *other = PQconnectdb(admin_url);
    uint64_t fence[2];
    char text[128];
    once_op op[4], *ops[4] = {&op[0], &op[1], &op[2], &op[3]};

    fence[0] = claimed(s, 1, 1);
    fence[1] = claimed(s, 2, 1);
    (void)snprintf(text, sizeof(text),
                   "BEGIN; SELECT FROM %s.record WHERE fence = %llu FOR UPDATE",
                   p.schema, (unsigned long long)fence[0]);
    PQclear(PQexec(other, text));
    fill(&op[0], ONCE_OP_RENEW, 1, 1);
    op[0].fence = fence[0];
    fill(&op[1], ONCE_OP_RENEW, 2, 1);
    op[1].fence = fence[1];
    fill(&op[2], ONCE_OP_CLAIM, 3, 1);
    fill(&op[3], ONCE_OP_CLAIM, 2, 2);
    T_EQ(s->ops->apply(s, ops, 4, NULL), ONCE_OK);
    T_EQ(op[0].rc, ONCE_ESTORE);
    T_EQ(op[1].rc, ONCE_OK);
    T_EQ(op[2].rc, ONCE_OWNER);
    T_EQ(op[3].rc, ONCE_IN_FLIGHT);
    fill(&op[0], ONCE_OP_CLAIM, 1, 2); /* only looks */
    fill(&op[1], ONCE_OP_SHOW, 1, 2);
    T_EQ(s->ops->apply(s, ops, 2, NULL), ONCE_OK);
    T_EQ(op[0].rc, ONCE_IN_FLIGHT);
    T_EQ(op[1].rc, ONCE_IN_FLIGHT);
    PQclear(PQexec(other, "ROLLBACK"));
    T_EQ(simple(s, ONCE_OP_RENEW, 1, 1, fence[0]), ONCE_OK);
    PQfinish(other);
    once_store_close(s);
}

/* A claim of the same name that is not committed yet. */
static void a_claim_under_way_elsewhere_is_waited_for_a_while(void)
{
    struct place p = made_place("lock_ms=50");
    once_store *s = must_open(p.url, NULL);
    PGconn *other = PQconnectdb(admin_url);
    once_op op, *ops[1] = {&op};
    char text[1024];

    (void)claimed(s, 1, 1);
    (void)snprintf(
        text, sizeof(text),
        "BEGIN; INSERT INTO %s.record SELECT 1000, lease_ms,"
        " keep_ms, granted_ms, created_ms, ended_ms, attempt,"
        " version, state, kind, policy, doubt, reason, token,"
        " trace, '\\x4a0002' || substr(name, 4),"
        " fingerprint, subject, grp, label, note, body FROM %s.record",
        p.schema, p.schema);
    PQclear(PQexec(other, text));
    fill(&op, ONCE_OP_CLAIM, 2, 2);
    T_EQ(s->ops->apply(s, ops, 1, NULL), ONCE_OK);
    T_EQ(op.rc, ONCE_ESTORE);
    PQclear(PQexec(other, "COMMIT"));
    PQfinish(other);
    T_EQ(simple(s, ONCE_OP_CLAIM, 2, 2, 0), ONCE_IN_FLIGHT);
    once_store_close(s);
}

/* Also the row of the time is waited for no longer than that. */
static void a_locked_time_is_not_waited_for(void)
{
    struct place p = made_place("lock_ms=50&statement_ms=3000");
    once_store *s = must_open(p.url, NULL);
    PGconn *other = PQconnectdb(admin_url);
    once_store_time t, now;
    once_error err = {0, ""};
    char text[128];

    T_EQ(s->ops->time(s, NULL, &t, NULL), ONCE_OK);
    t.seen_ms = t.now_ms;
    T_EQ(s->ops->time(s, &t, &now, NULL), ONCE_OK);
    (void)snprintf(text, sizeof(text), "BEGIN; SELECT FROM %s.clock FOR UPDATE",
                   p.schema);
    PQclear(PQexec(other, text));
    T_EQ(s->ops->time(s, &t, &now, &err), ONCE_ESTORE);
    T_OK(strstr(err.text, "locked") != NULL);
    T_EQ(s->ops->time(s, NULL, &now, NULL), ONCE_OK);
    T_EQ(now.seen_ms, t.seen_ms);
    PQclear(PQexec(other, "ROLLBACK"));
    PQfinish(other);
    T_EQ(s->ops->time(s, &t, &now, NULL), ONCE_OK);
    once_store_close(s);
}

/* The same in the middle of a batch: that one waits, the others go on. */
static void a_claim_under_way_elsewhere_keeps_no_other_waiting(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url, NULL);
    PGconn *other = PQconnectdb(admin_url);
    once_op op[9], *ops[9];
    char text[1024];
    unsigned i;

    (void)claimed(s, 100, 1);
    for (i = 0; i < 9; i++) {
        fill(&op[i], ONCE_OP_CLAIM, i, 2);
        ops[i] = &op[i];
    }
    (void)snprintf(
        text, sizeof(text),
        "BEGIN; INSERT INTO %s.record SELECT 1000, lease_ms,"
        " keep_ms, granted_ms, created_ms, ended_ms, attempt,"
        " version, state, kind, policy, doubt, reason, token,"
        " trace, '\\x%02x0005' || substr(name, 4),"
        " fingerprint, subject, grp, label, note, body FROM %s.record",
        p.schema, op[5].name[0], p.schema);
    PQclear(PQexec(other, text));
    T_EQ(s->ops->apply(s, ops, 9, NULL), ONCE_OK);
    for (i = 0; i < 9; i++)
        T_EQ(op[i].rc, i == 5 ? ONCE_ESTORE : ONCE_OWNER);
    T_EQ(s->ops->apply(s, ops, 9, NULL), ONCE_OK); /* asked again, likewise */
    for (i = 0; i < 9; i++) {
        T_EQ(op[i].rc, i == 5 ? ONCE_ESTORE : ONCE_OWNER);
        T_EQ(op[i].record.attempt, i == 5 ? 0 : 1);
    }
    PQclear(PQexec(other, "COMMIT"));
    PQfinish(other);
    T_EQ(simple(s, ONCE_OP_CLAIM, 5, 2, 0), ONCE_IN_FLIGHT);
    once_store_close(s);
}

/* Its functions were changed by hand, and do what this program would not. */
static void a_row_on_which_the_server_differs_is_answered_alone(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url, NULL);
    once_op op[3], *ops[3] = {&op[0], &op[1], &op[2]};
    once_error err = {0, ""};
    uint64_t fence[2] = {claimed(s, 1, 1), claimed(s, 2, 1)};

    once_store_close(s);
    sql(NULL, "ALTER FUNCTION %s.act RENAME TO act_0", p.schema);
    sql(NULL,
        "CREATE FUNCTION %s.act(r %s.record, v_now bigint, verb smallint,"
        " token uuid, fence bigint, policy smallint, fingerprint bytea)"
        " RETURNS integer LANGUAGE sql STABLE AS 'SELECT CASE WHEN"
        " r.fence = %llu THEN 0 ELSE %s.act_0(r, v_now, verb, token, fence,"
        " policy, fingerprint) END'",
        p.schema, p.schema, (unsigned long long)fence[0], p.schema);
    s = must_open(p.url, NULL);
    fill(&op[0], ONCE_OP_RENEW, 1, 1);
    op[0].fence = fence[0];
    fill(&op[1], ONCE_OP_RENEW, 2, 1);
    op[1].fence = fence[1];
    fill(&op[2], ONCE_OP_CLAIM, 3, 1);
    T_EQ(s->ops->apply(s, ops, 3, &err), ONCE_OK);
    T_EQ(op[0].rc, ONCE_ESTORE);
    T_EQ(op[1].rc, ONCE_OK);
    T_EQ(op[2].rc, ONCE_OWNER);
    T_EQ(s->ops->apply(s, ops, 1, &err), ONCE_ESTORE); /* then it says why */
    T_OK(strstr(err.text, "once init") != NULL);
    once_store_close(s);
}

static void end_backends(void)
{
    int i;

    for (i = 0; i < 10; i++)
        sql(NULL, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                  " WHERE usename = 'once'");
}

/* Who has a store open asks no other one that stands under its name since, and
 * goes on when it is back. */
static void another_store_in_its_place_is_asked_nothing(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url, NULL), *other;
    uint64_t fence = claimed(s, 1, 1);
    once_op op, *ops = &op;
    once_store_head head;
    char rows[64];
    once_error err = {0, ""};
    int i;

    sql(NULL, "ALTER SCHEMA %s RENAME TO %s_away", p.schema, p.schema);
    T_EQ(once_store_init(p.url, NULL), ONCE_OK);
    fill(&op, ONCE_OP_CLAIM, 1, 2);
    T_EQ(s->ops->apply(s, &ops, 1, &err), ONCE_ESTORE);
    T_OK(strstr(err.text, "another store") != NULL);
    end_backends(); /* nor on another connection */
    err.text[0] = '\0';
    for (i = 0; i < 3000 && strstr(err.text, "another store") == NULL; i++) {
        once__sleep_ms(20);
        T_EQ(s->ops->apply(s, &ops, 1, &err), ONCE_ESTORE);
    }
    T_OK(i < 3000);
    sql(rows, "SELECT count(*) FROM %s.record", p.schema);
    T_STR(rows, "0");

    other = must_open(p.url, NULL); /* as what it is */
    (void)claimed(other, 1, 3);
    once_store_close(other);
    sql(NULL, "ALTER SCHEMA %s RENAME TO %s_other", p.schema, p.schema);
    sql(NULL, "ALTER SCHEMA %s_away RENAME TO %s", p.schema, p.schema);
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_OK);

    /* Who gives it another head knows it. */
    T_EQ(s->ops->head(s, NULL, &head, NULL), ONCE_OK);
    head.id[0] ^= 1;
    T_EQ(s->ops->head(s, &head, &head, NULL), ONCE_OK);
    (void)claimed(s, 2, 1);
    once_store_close(s);
}

enum { RACERS = 4, NAMES = 48, ROUNDS = 30 };

struct race {
    const char *url;
    unsigned who;
    pthread_barrier_t *barrier;
    int rc[ROUNDS][NAMES];
    uint32_t attempt[ROUNDS][NAMES];
};

static _Atomic uint64_t race_ms;

static uint64_t race_clock(void *user)
{
    (void)user;
    return race_ms;
}

static void race_round(once_store *s, struct race *r, int round)
{
    once_op op[NAMES], *ops[NAMES];
    int i, tries;

    for (i = 0; i < NAMES; i++) {
        fill(&op[i], ONCE_OP_CLAIM, (unsigned)i, r->who + 10 * (unsigned)round);
        op[i].policy = ONCE_TAKEOVER;
        op[i].lease_ms = 1000;
        /* Half of them the other way round, to tempt a deadlock. */
        ops[r->who % 2 ? i : NAMES - 1 - i] = &op[i];
    }
    for (tries = 0; tries < 10; tries++)
        if (s->ops->apply(s, ops, NAMES, NULL) == ONCE_OK)
            break;
    T_OK(tries < 10);
    for (i = 0; i < NAMES; i++) {
        r->rc[round][i] = op[i].rc;
        r->attempt[round][i] = op[i].record.attempt;
    }
}

static void *racer(void *user)
{
    struct race *r = user;
    const once_store_options o = {.size = sizeof(o), .clock = race_clock};
    once_store *s = must_open(r->url, &o);
    int round;

    for (round = 0; round < ROUNDS; round++) {
        if (pthread_barrier_wait(r->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
            race_ms += 1000; /* each lease is over */
        pthread_barrier_wait(r->barrier);
        race_round(s, r, round);
    }
    once_store_close(s);
    return NULL;
}

/* Under READ COMMITTED, and without a deadlock. */
static void of_all_who_take_over_at_once_one_is_the_owner(void)
{
    static struct race r[RACERS];
    struct place p = made_place("lock_ms=30000&statement_ms=60000");
    pthread_t threads[RACERS];
    pthread_barrier_t barrier;
    char deadlocks[64];
    unsigned k, owners;
    int i, round;

    race_ms = UINT64_C(1700000000000);
    T_EQ(pthread_barrier_init(&barrier, NULL, RACERS), 0);
    for (k = 0; k < RACERS; k++) {
        r[k].url = p.url;
        r[k].who = k + 1;
        r[k].barrier = &barrier;
        T_EQ(pthread_create(&threads[k], NULL, racer, &r[k]), 0);
    }
    for (k = 0; k < RACERS; k++)
        T_EQ(pthread_join(threads[k], NULL), 0);
    for (round = 0; round < ROUNDS; round++)
        for (i = 0; i < NAMES; i++) {
            for (k = owners = 0; k < RACERS; k++) {
                owners += r[k].rc[round][i] == ONCE_OWNER;
                T_OK(r[k].rc[round][i] == ONCE_OWNER ||
                     r[k].rc[round][i] == ONCE_IN_FLIGHT);
                T_EQ(r[k].attempt[round][i], round + 1);
            }
            T_EQ(owners, 1);
        }
    pthread_barrier_destroy(&barrier);
    sql(deadlocks, "SELECT sum(deadlocks) FROM pg_stat_database");
    T_STR(deadlocks, "0");
}

/* ---- A server whose clock is set ----------------------------------------- */

static void clock_event(void *user, const char *text)
{
    if (strstr(text, "the store's clock jumped ahead") != NULL)
        atomic_fetch_add((atomic_int *)user, 1);
}

/* A gateway's reaper, and a server that is 25 hours ahead; a day is kept. */
static void a_server_that_is_ahead_makes_nobody_forget(void)
{
    enum { KEPT = 300 };
    struct place p = made_place("");
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_store *s = must_open(p.url, NULL);
    once_clock c = {.now_ms = 0};
    once_engine *e = NULL;
    once_stats stats;
    atomic_int jumps = 0;
    once_op op;
    unsigned i, tries;

    o.reap_ms = 20;
    o.event = clock_event;
    o.user = &jumps;
    T_EQ(once_engine_open(p.url, &o, NULL, &e), ONCE_OK);
    for (i = 0; i < KEPT; i++)
        T_EQ(simple(s, ONCE_OP_COMPLETE, i, 1, claimed(s, i, 1)), ONCE_OK);
    (void)claimed(s, KEPT, 1);
    T_EQ(once_store_clock(s, &c, NULL), ONCE_OK);
    ctl("clock postgres 90000000");
    for (tries = 0; tries < 3000 && jumps == 0; tries++)
        once__sleep_ms(20);
    T_EQ(jumps, 1);
    fill(&op, ONCE_OP_SHOW, KEPT, 2); /* leases are over all the same */
    for (tries = 0; tries < 3000 && ask(s, &op) != ONCE_UNKNOWN; tries++)
        once__sleep_ms(20);
    T_EQ(op.rc, ONCE_UNKNOWN);
    for (i = 0; i < KEPT; i++) /* no key is free */
        T_EQ(simple(s, ONCE_OP_CLAIM, i, 2, 0), ONCE_REPLAY);
    once_engine_stats(e, &stats);
    T_EQ(stats.forgotten, 0);
    once_engine_close(e);
    T_EQ(once_store_clock_accept(s, &c, NULL), ONCE_OK);
    T_EQ(simple(s, ONCE_OP_FORGET, 0, 2, 0), ONCE_OK);
    ctl("clock postgres 0");
    once_store_close(s);
}

static void blind_event(void *user, const char *text)
{
    if (strstr(text, "nothing is forgotten") != NULL &&
        strstr(text, "once init") != NULL)
        atomic_fetch_add((atomic_int *)user, 1);
}

/* A program that is newer than the schema works on, and says what is missing. */
static void without_a_function_for_the_time_nothing_is_forgotten(void)
{
    struct place p = made_place("");
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_engine *e = NULL;
    once_stats stats;
    atomic_int blind = 0;
    once_op op;
    unsigned tries;

    sql(NULL, "DROP FUNCTION %s.seen_1", p.schema);
    o.reap_ms = 20;
    o.event = blind_event;
    o.user = &blind;
    T_EQ(once_engine_open(p.url, &o, NULL, &e), ONCE_OK);
    fill(&op, ONCE_OP_CLAIM, 1, 1);
    op.keep_ms = 0;
    T_EQ(once_apply(e, &op, NULL), ONCE_OWNER);
    fill(&op, ONCE_OP_RELEASE, 1, 1);
    op.keep_ms = 0;
    T_EQ(once_apply(e, &op, NULL), ONCE_OK);
    for (tries = 0; tries < 3000 && blind == 0; tries++)
        once__sleep_ms(20);
    once__sleep_ms(200); /* some rounds more: it is said once */
    T_EQ(blind, 1);
    once_engine_stats(e, &stats);
    T_EQ(stats.forgotten, 0);
    T_EQ(once_store_init(p.url, NULL), ONCE_OK);
    for (tries = 0; tries < 3000 && stats.forgotten == 0; tries++) {
        once__sleep_ms(20);
        once_engine_stats(e, &stats);
    }
    T_EQ(stats.forgotten, 1);
    once_engine_close(e);
}

/* ---- A server that goes away ------------------------------------------- */

enum { WORKERS = 3, EACH = 120 };

struct work {
    const char *url;
    unsigned who;
    _Atomic unsigned *done, *harms;
    unsigned lost; /* batches without an answer */
};

/* Claims and completes names of its own, four at once, whatever happens. */
static void work_batch(once_store *s, struct work *w, unsigned first, int verb,
                       uint64_t fence[4])
{
    once_op op[4], *ops[4];
    unsigned i, tries, left;

    for (tries = 0; tries < 3000; tries++) {
        for (i = 0; i < 4; i++) {
            fill(&op[i], verb, w->who * 1000 + first + i, w->who);
            op[i].fence = verb == ONCE_OP_CLAIM ? 0 : fence[i];
            op[i].result = (once_bytes){&w->who, sizeof(w->who)};
            ops[i] = &op[i];
        }
        left = s->ops->apply(s, ops, 4, NULL) != ONCE_OK;
        for (i = 0; i < 4 && !left; i++)
            left = op[i].rc < 0;
        if (!left)
            break;
        w->lost++;
        once__sleep_ms(10);
    }
    for (i = 0; i < 4; i++) {
        T_EQ(op[i].rc, verb == ONCE_OP_CLAIM ? ONCE_OWNER : ONCE_OK);
        T_EQ(op[i].record.attempt, 1);
        fence[i] = op[i].record.fence;
    }
}

static void *worker(void *user)
{
    struct work *w = user;
    once_store *s = open_patiently(w->url);
    uint64_t fence[4];
    unsigned i;

    for (i = 0; i < EACH; i += 4) {
        work_batch(s, w, i, ONCE_OP_CLAIM, fence);
        work_batch(s, w, i, ONCE_OP_COMPLETE, fence);
        *w->done += 4;
        /* However slow who does the harm is: it comes while we ask. */
        while (i >= EACH / 2 && *w->harms < 3)
            work_batch(s, w, i, ONCE_OP_COMPLETE, fence);
    }
    once_store_close(s);
    return NULL;
}

/* Runs the workers, does `harm` now and then, and looks at what is there. */
static void work_while(void (*harm)(void), const char *more, int must_lose)
{
    struct place p = made_place(more);
    struct work w[WORKERS];
    pthread_t threads[WORKERS];
    _Atomic unsigned done = 0, harms = 0;
    unsigned i, k, lost = 0, next = 0;
    once_store *s;
    once_op op;

    for (k = 0; k < WORKERS; k++) {
        w[k] = (struct work){p.url, k + 1, &done, &harms, 0};
        T_EQ(pthread_create(&threads[k], NULL, worker, &w[k]), 0);
    }
    while (done < WORKERS * EACH) {
        if (done >= next && next < WORKERS * EACH) {
            harm();
            harms++;
            next += WORKERS * EACH / 6;
        }
        once__sleep_ms(3);
    }
    for (k = 0; k < WORKERS; k++) {
        T_EQ(pthread_join(threads[k], NULL), 0);
        lost += w[k].lost;
    }
    printf("# %u batches were not answered\n", lost);
    if (must_lose)
        T_OK(lost > 0);
    s = open_patiently(p.url);
    for (k = 1; k <= WORKERS; k++)
        for (i = 0; i < EACH; i++) {
            fill(&op, ONCE_OP_SHOW, k * 1000 + i, 99);
            T_EQ(ask(s, &op), ONCE_REPLAY);
            T_EQ(op.record.attempt, 1);
            T_OK(op.record.result.size == sizeof(k) &&
                 memcmp(op.record.result.data, &k, sizeof(k)) == 0);
        }
    once_store_close(s);
}

static void crash(void)
{
    ctl("quit postgres");
    ctl("start postgres");
}

static void kill_all(void)
{
    ctl("kill postgres");
    ctl("start postgres");
}

static void backends_that_are_ended_lose_answers_and_nothing_else(void)
{
    work_while(end_backends, "", 1);
}

static void an_immediate_stop_loses_answers_and_nothing_else(void)
{
    work_while(crash, "", 1);
}

static void killing_all_of_it_loses_answers_and_nothing_else(void)
{
    work_while(kill_all, "", 1);
}

/* The server is stopped in the middle: the caller is not. */
static void a_server_that_hangs_is_left_in_time(void)
{
    struct place p = made_place("statement_ms=300&connect_ms=200");
    once_store *s = must_open(p.url, NULL);
    once_op op, *ops[1] = {&op};
    once_error err = {0, ""};

    (void)claimed(s, 1, 1);
    ctl("pause postgres");
    fill(&op, ONCE_OP_CLAIM, 2, 1);
    T_EQ(s->ops->apply(s, ops, 1, &err), ONCE_ESTORE);
    T_EQ(s->ops->apply(s, ops, 1, &err), ONCE_ESTORE);
    ctl("resume postgres");
    T_EQ(ask(s, &op), ONCE_OWNER);
    T_EQ(op.record.attempt, 1);
    once_store_close(s);
}

/* ---- A full disk ------------------------------------------------------- */

/* Fills a small file system, in which the table lies, up to its last page. */
static unsigned fill_up(once_store *s, uint64_t *last_fence)
{
    static uint8_t bytes[100000];
    once_op op, *ops[1] = {&op};
    unsigned i;

    for (i = 0; i < 30000; i++) {
        fill(&op, ONCE_OP_CLAIM, i, 1);
        if (s->ops->apply(s, ops, 1, NULL) != ONCE_OK || op.rc != ONCE_OWNER)
            break;
        *last_fence = op.record.fence;
        fill(&op, ONCE_OP_COMPLETE, i, 1);
        op.fence = *last_fence;
        op.result = (once_bytes){bytes, i == 0 ? 10 : sizeof(bytes)};
        (void)s->ops->apply(s, ops, 1, NULL); /* no room for all of them */
    }
    T_OK(i > 10 && i < 30000);
    T_EQ(op.rc, ONCE_EFULL);
    return i;
}

static void a_full_disk_refuses_claims_and_nothing_else(void)
{
    struct place p = made_place("");
    once_op op[4], *ops[4] = {&op[0], &op[1], &op[2], &op[3]};
    uint64_t fence = 0;
    once_store *s;
    unsigned n;

    if (system("d=$ONCE_TEST_DIR/space; mkdir $d && "
               "mount -t tmpfs -o size=8m tmpfs $d 2>/dev/null && "
               "chown postgres: $d && chmod 700 $d") != 0) {
        printf("# skipped: no file system may be mounted here\n");
        return;
    }
    sql(NULL, "CREATE TABLESPACE small LOCATION '%s/space'",
        getenv("ONCE_TEST_DIR"));
    sql(NULL, "ALTER TABLE %s.record SET TABLESPACE small", p.schema);
    s = must_open(p.url, NULL);
    n = fill_up(s, &fence);
    fill(&op[0], ONCE_OP_CLAIM, n, 2);
    fill(&op[1], ONCE_OP_CLAIM, 0, 2);
    fill(&op[2], ONCE_OP_RENEW, n - 1, 1);
    op[2].fence = fence;
    fill(&op[3], ONCE_OP_SHOW, n + 1, 2);
    T_EQ(s->ops->apply(s, ops, 4, NULL), ONCE_OK);
    T_EQ(op[0].rc, ONCE_EFULL);
    T_EQ(op[1].rc, ONCE_REPLAY);
    T_EQ(op[2].rc, ONCE_OK);
    T_EQ(op[3].rc, ONCE_FREE);
    sql(NULL, "ALTER TABLE %s.record SET TABLESPACE pg_default", p.schema);
    T_EQ(simple(s, ONCE_OP_CLAIM, n, 2, 0), ONCE_OWNER);
    T_EQ(simple(s, ONCE_OP_COMPLETE, n - 1, 1, fence), ONCE_OK);
    once_store_close(s);
    sql(NULL, "CHECKPOINT");
    sql(NULL, "DROP TABLESPACE small");
    T_EQ(system("umount $ONCE_TEST_DIR/space"), 0);
}

/* ---- A role that may do nothing else ----------------------------------- */

static void may_not(PGconn *conn, const char *text)
{
    PGresult *r = PQexec(conn, text);

    T_EQ(PQresultStatus(r), PGRES_FATAL_ERROR);
    T_STR(PQresultErrorField(r, PG_DIAG_SQLSTATE), "42501");
    PQclear(r);
}

static void a_gateway_needs_functions_and_no_table(void)
{
    struct place p = made_place("");
    char url[512], port[16], text[128];
    const char *at = strrchr(admin_url, ':');
    once_error err = {0, ""};
    once_store_head head;
    once_store *s = NULL;
    once_counts n;
    PGconn *conn;
    uint64_t fence;

    (void)snprintf(port, sizeof(port), "%.*s",
                   (int)strspn(at + 1, "0123456789"), at + 1);
    (void)snprintf(url, sizeof(url),
                   "postgres://gateway@127.0.0.1:%s/once?schema=%s", port,
                   p.schema);
    sql(NULL, "DROP ROLE IF EXISTS gateway");
    sql(NULL, "CREATE ROLE gateway LOGIN");
    T_EQ(once_store_open(url, NULL, &err, &s), ONCE_EOPEN);
    T_OK(strstr(err.text, "42501") != NULL);
    sql(NULL, "GRANT USAGE ON SCHEMA %s TO gateway", p.schema);
    sql(NULL, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %s TO gateway",
        p.schema);
    s = must_open(url, NULL);
    fence = claimed(s, 1, 1);
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_OK);
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2, 0), ONCE_REPLAY);
    T_EQ(s->ops->count(s, &n, NULL), ONCE_OK);
    T_EQ(s->ops->head(s, NULL, &head, NULL), ONCE_OK);
    T_EQ(s->ops->head(s, &head, &head, &err), ONCE_ESTORE);
    T_OK(strstr(err.text, "42501") != NULL);
    once_store_close(s);
    T_EQ(once_store_verify(url, count_line, &(int){0}, NULL), 0);
    T_EQ(once_store_init(url, NULL), ONCE_EOPEN);
    conn = PQconnectdb(
        strchr(url, '?') != NULL ? (*strchr(url, '?') = '\0', url) : url);
    (void)snprintf(text, sizeof(text), "SELECT * FROM %s.record", p.schema);
    may_not(conn, text);
    (void)snprintf(text, sizeof(text), "DELETE FROM %s.record", p.schema);
    may_not(conn, text);
    (void)snprintf(text, sizeof(text), "SELECT nextval('%s.fence')", p.schema);
    may_not(conn, text);
    PQfinish(conn);
    sql(NULL, "DROP OWNED BY gateway");
    sql(NULL, "DROP ROLE gateway");
}

/* ---- Certificates ------------------------------------------------------ */

static const char *word_of(const char *rest, const char *key, char *out)
{
    const char *keys[ONCE__PG_WORDS_MAX], *values[ONCE__PG_WORDS_MAX];
    struct once__pg_config c;
    size_t i;

    out[0] = '\0';
    T_EQ(once__pg_config_read(&c, rest, NULL), ONCE_OK);
    once__pg_config_words(&c, c.host_count - 1, keys, values);
    for (i = 0; keys[i] != NULL; i++) /* of two, the last one counts */
        if (strcmp(keys[i], key) == 0)
            (void)snprintf(out, 64, "%s", values[i]);
    once__pg_config_clear(&c);
    return out;
}

static void a_server_elsewhere_must_prove_who_it_is(void)
{
    char v[64];

    T_STR(word_of("//once@db.example/once", "sslmode", v), "verify-full");
    T_STR(word_of("//once@10.0.0.1:5433/once", "sslmode", v), "verify-full");
    T_STR(word_of("//once@127.0.0.1,db.example/once", "sslmode", v),
          "verify-full");
    T_STR(word_of("//once@db.example/once?sslmode=require", "sslmode", v),
          "require");
    T_STR(word_of("//once@127.0.0.1/once", "sslmode", v), "");
    T_STR(word_of("//once@localhost/once", "sslmode", v), "");
    T_STR(word_of("//once@%2Frun%2Fpostgresql/once", "sslmode", v), "");
    T_STR(word_of("//a,b:2/once", "host", v), "b");
    T_STR(word_of("//a:1,b:2/once", "port", v), "2");
    T_STR(word_of("///once", "target_session_attrs", v), "read-write");
}

static void certificates_are_checked(void)
{
    struct place p = made_place("");
    const char *folder = getenv("ONCE_TEST_TLS_DIR");
    char url[512], ca[300];

    once_store_close(must_open(p.url, NULL));
    ctl("cert postgres wronghost");
    refused(p.url, ONCE_EOPEN, "postgres");
    ctl("cert postgres expired");
    refused(p.url, ONCE_EOPEN, "postgres");
    ctl("cert postgres stranger");
    refused(p.url, ONCE_EOPEN, "postgres");
    ctl("cert postgres good");
    once_store_close(must_open(p.url, NULL));
    (void)snprintf(ca, sizeof(ca),
                   "sslmode=verify-full&sslrootcert=%s/other-ca.crt&schema=%s",
                   folder, p.schema);
    (void)snprintf(url, sizeof(url), "%.*s", (int)strcspn(p.url, "?"), p.url);
    with(url + strlen(url), sizeof(url) - strlen(url), "", ca);
    refused(url, ONCE_EOPEN, "postgres");
}

/* ---- Standbys ---------------------------------------------------------- */

static void standby_url(char *out, size_t size, const char *schema)
{
    (void)snprintf(out, size, "postgres://once@127.0.0.1:%s/once?schema=%s",
                   getenv("ONCE_TEST_STANDBY_PORT"), schema);
}

static void a_standby_is_refused_and_passed_over(void)
{
    struct place p = made_place("");
    char url[600], any[700];
    once_store *s;

    standby_url(url, sizeof(url), p.schema);
    refused(url, ONCE_EAWAY, "postgres 127.0.0.1");
    with(any, sizeof(any), url, "target_session_attrs=any");
    refused(any, ONCE_EAWAY, "standby");
    (void)snprintf(url, sizeof(url),
                   "postgres://once@127.0.0.1:%s,127.0.0.1:%s/once?schema=%s",
                   getenv("ONCE_TEST_STANDBY_PORT"),
                   getenv("ONCE_TEST_POSTGRES_PORT"), p.schema);
    s = must_open(url, NULL);
    (void)claimed(s, 1, 1);
    once_store_close(s);
}

/* What a standby has only in its memory is not kept by its disk. */
static void a_standby_that_does_not_flush_makes_class_b(void)
{
    struct place p = made_place("");
    once_store *s;

    sql(NULL, "ALTER ROLE once SET synchronous_commit = remote_write");
    s = must_open(p.url, NULL);
    T_OK(s->caveat != NULL && strstr(s->caveat, "remote_write") != NULL);
    once_store_close(s);
    sql(NULL, "ALTER ROLE once SET synchronous_commit = remote_apply");
    s = must_open(p.url, NULL);
    T_OK(s->caveat == NULL);
    once_store_close(s);
    sql(NULL, "ALTER ROLE once RESET synchronous_commit");
}

/* Class A: the standby is synchronous, so it has all that was acknowledged. */
static void a_failover_loses_nothing_that_was_acknowledged(void)
{
    enum { N = 60 };
    struct place p = made_place("");
    once_store *s = must_open(p.url, NULL);
    uint64_t fence[N];
    unsigned i;

    for (i = 0; i < N; i++)
        fence[i] = claimed(s, i, 1);
    for (i = 0; i < N / 2; i++)
        T_EQ(simple(s, ONCE_OP_COMPLETE, i, 1, fence[i]), ONCE_OK);
    ctl("kill postgres");
    ctl("promote standby");
    for (i = 0; i < N; i++)
        T_EQ(simple(s, ONCE_OP_CLAIM, i, 2, 0),
             i < N / 2 ? ONCE_REPLAY : ONCE_IN_FLIGHT);
    for (i = N / 2; i < N; i++)
        T_EQ(simple(s, ONCE_OP_COMPLETE, i, 1, fence[i]), ONCE_OK);
    T_OK(claimed(s, N, 1) > fence[N - 1]);
    once_store_close(s);
}

/* ---- The manual's page ------------------------------------------------- */

static const char *page;

static char *read_page(void)
{
    FILE *f = fopen(page, "r");
    char *text = calloc(1, 1 << 16);
    size_t size = 0;

    assert(text != NULL);
    if (f != NULL) {
        size = fread(text, 1, (1 << 16) - 1, f);
        (void)fclose(f);
    }
    T_OK(size > 1000 && size < (1 << 16) - 1);
    return text;
}

/* `once init` comes behind the first block, as the page says. */
static void the_sql_of_the_page_works(void)
{
    char *text = read_page(), *at = text, *end, url[600];
    const char *port = getenv("ONCE_TEST_POSTGRES_PORT");
    PGconn *conn = PQconnectdb(admin_url);
    int blocks = 0;
    once_store *s;
    PGresult *r;

    while ((at = strstr(at, "```sql\n")) != NULL) {
        at += 7;
        end = strstr(at, "```");
        assert(end != NULL);
        *end = '\0';
        r = PQexec(conn, at);
        if (PQresultStatus(r) != PGRES_COMMAND_OK &&
            PQresultStatus(r) != PGRES_TUPLES_OK) {
            printf("#   %s#   %s", at, PQerrorMessage(conn));
            t__bad++;
        }
        PQclear(r);
        at = end + 1;
        if (++blocks > 1)
            continue;
        (void)snprintf(url, sizeof(url),
                       "postgres://once_owner@127.0.0.1:%s/once", port);
        T_EQ(once_store_init(url, NULL), ONCE_OK);
    }
    T_OK(blocks >= 6);
    PQfinish(conn);
    (void)snprintf(url, sizeof(url),
                   "postgres://once_gateway@127.0.0.1:%s/once", port);
    s = must_open(url, NULL);
    (void)claimed(s, 1, 1);
    once_store_close(s);
    free(text);
}

/* ---- All of them ------------------------------------------------------- */

static void alone(void)
{
    T_RUN(without_a_schema_it_says_what_makes_one);
    T_RUN(making_it_twice_or_at_once_is_making_it_once);
    T_RUN(another_version_is_refused_with_both_numbers);
    T_RUN(partitions_hold_all_and_their_number_stays);
    T_RUN(the_printed_schema_is_one_that_works);
    T_RUN(an_asynchronous_session_is_refused_unless_wanted);
    T_RUN(urls_that_are_refused_are_not_repeated);
    T_RUN(a_server_that_is_not_there_is_named_without_a_password);
    T_RUN(a_server_elsewhere_must_prove_who_it_is);
    T_RUN(long_results_come_back_with_the_same_bytes);
    T_RUN(a_crowd_on_one_name_is_answered_by_one_call);
    T_RUN(time_is_the_servers);
    T_RUN(a_row_that_does_not_check_is_an_error_and_stays);
    T_RUN(what_is_there_is_not_imported);
    T_RUN(pages_go_on_behind_a_damaged_record);
    T_RUN(looking_at_what_waits_does_not_walk_over_the_rest);
    T_RUN(a_locked_row_is_answered_alone);
    T_RUN(a_claim_under_way_elsewhere_is_waited_for_a_while);
    T_RUN(a_locked_time_is_not_waited_for);
    T_RUN(a_claim_under_way_elsewhere_keeps_no_other_waiting);
    T_RUN(a_row_on_which_the_server_differs_is_answered_alone);
    T_RUN(another_store_in_its_place_is_asked_nothing);
    T_RUN(of_all_who_take_over_at_once_one_is_the_owner);
    T_RUN(a_server_that_is_ahead_makes_nobody_forget);
    T_RUN(without_a_function_for_the_time_nothing_is_forgotten);
    T_RUN(a_gateway_needs_functions_and_no_table);
    T_RUN(a_full_disk_refuses_claims_and_nothing_else);
    T_RUN(backends_that_are_ended_lose_answers_and_nothing_else);
    T_RUN(an_immediate_stop_loses_answers_and_nothing_else);
    T_RUN(killing_all_of_it_loses_answers_and_nothing_else);
    T_RUN(a_server_that_hangs_is_left_in_time);
}

static void pooler(void)
{
    T_RUN(making_it_twice_or_at_once_is_making_it_once);
    T_RUN(long_results_come_back_with_the_same_bytes);
    T_RUN(of_all_who_take_over_at_once_one_is_the_owner);
    T_RUN(backends_that_are_ended_lose_answers_and_nothing_else);
    T_RUN(an_immediate_stop_loses_answers_and_nothing_else);
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";

    server_url = getenv("ONCE_TEST_URL");
    admin_url = getenv("ONCE_TEST_POSTGRES_ADMIN_URL");
    if (server_url == NULL || admin_url == NULL)
        t_skip_all("ONCE_TEST_URL names no server");
    if (strcmp(part, "alone") == 0) {
        alone();
    } else if (strcmp(part, "another") == 0) {
        T_RUN(another_store_in_its_place_is_asked_nothing);
    } else if (strcmp(part, "pooler") == 0) {
        pooler();
    } else if (strcmp(part, "tls") == 0) {
        T_RUN(certificates_are_checked);
    } else if (strcmp(part, "standby") == 0) {
        T_RUN(a_standby_is_refused_and_passed_over);
        T_RUN(a_standby_that_does_not_flush_makes_class_b);
        T_RUN(a_failover_loses_nothing_that_was_acknowledged);
    } else if (strcmp(part, "docs") == 0 && argc == 3) {
        page = argv[2];
        T_RUN(the_sql_of_the_page_works);
    } else {
        fprintf(stderr, "usage: test_postgres alone | another | pooler | tls | "
                        "standby | docs FILE\n");
        return 2;
    }
    return t_done();
}
