/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_twins.c - the same random calls on a server and on SQLite: each answer and
 * each table must be the same.
 *
 *    with-server postgres -- test_twins [SEED [CALLS]]
 *    with-server mysql -- test_twins [SEED [CALLS]]
 */
#include "db.h"

#include "messages/tables/outbox.h"
#include "messages/tables/saga.h"

enum { SEEDS = 3, CALLS = 200, ANSWER = 4000, NAMES = 5 };

static const char *const ids[NAMES] = {"a", "b", "a#0",
                                       "00000001-0000-7abc-8def-0123456789ab",
                                       "70000000-0000-7abc-8def-0123456789ab"};
static const char *const keys[] = {NULL, "k", "l"};
static const char *const bodies[] = {"", "x", "y"};

/* A random call is drawn once, and made on both. */
struct call {
    unsigned what, id, key, body, n, state, attempt, end;
    int64_t no;
};

enum {
    CLAIM,
    PARK,
    EMIT,
    BRANCH,
    TX_CALL,
    START,
    OUT_CLAIM,
    OUT_SETTLE,
    OUT_DECIDE,
    TAKE,
    PUT_BACK,
    PARKED_DECIDE,
    HAS_KEY,
    ADVANCE,
    SAGA_DECIDE,
    LEASES_END,
    PURGE,
    KINDS
};

static struct call draw_call(unsigned *seed)
{
    struct call c;

    c.what = draw(seed, KINDS);
    c.id = draw(seed, NAMES);
    c.key = draw(seed, 3);
    c.body = draw(seed, 3);
    c.n = draw(seed, 8);
    c.state = draw(seed, 5);
    c.attempt = draw(seed, 4);
    c.end = draw(seed, 4);
    c.no = 1 + (int64_t)draw(seed, 6);
    return c;
}

/* ---- What was answered ------------------------------------------------- */

struct answer {
    char text[ANSWER];
    size_t n;
};

ONCE_PRINTF(2, 3)
static void say(struct answer *a, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    a->n +=
        (size_t)vsnprintf(a->text + a->n, sizeof(a->text) - a->n, format, args);
    va_end(args);
    assert(a->n < sizeof(a->text));
}

static const char *or_none(const char *text)
{
    return text == NULL ? "-" : text;
}

/* ---- Calls in the caller's transaction ---------------------------------- */

static once_message message_of(const struct call *c)
{
    once_message m = ONCE_MESSAGE_INIT;

    m.route = c->state < 3 ? "r" : "s";
    m.consumer = c->state < 3 ? "c" : "d";
    m.id = ids[c->id];
    m.key = keys[c->key];
    m.type = "t";
    m.headers = c->n == 0 ? NULL : "A: b\n";
    m.body = (once_bytes){bodies[c->body], strlen(bodies[c->body])};
    m.attempt = c->attempt;
    m.any_body = c->n == 1;
    m.keep = c->n == 2;
    return m;
}

static int work(const once_tx *tx, void *user, once_bytes *result)
{
    const struct call *c = user;

    (void)tx;
    *result = (once_bytes){"result", 1 + c->n % 5};
    return c->attempt == 0   ? ONCE_AGAIN
           : c->attempt == 1 ? ONCE_FAILURE
                             : ONCE_SUCCESS;
}

static int has_id(int rc)
{
    return rc == ONCE_OK || rc == ONCE_REPEATED;
}

static int emit(struct db *d, const struct call *c, struct answer *a)
{
    once_message m = message_of(c);
    char id[ONCE_ID_SIZE] = "";
    int rc;

    m.due_ms = c->end == 3 ? now_ms() + 600000 : 0;
    if (c->n > 5) {
        m.id = NULL;
        m.keep = 1;
    }
    rc = once_emit(&d->tx, &m, id, NULL);
    say(a, "%d %s", rc, m.id != NULL && has_id(rc) ? id : "");
    return rc;
}

static int tx_call(struct db *d, struct call *c, struct answer *a)
{
    once_tx_result out = ONCE_TX_RESULT_INIT;
    once_message m = message_of(c);
    int rc =
        once_tx_call(&d->tx, m.consumer, m.id, m.body, work, c, &out, NULL);

    say(a, "%d %d %.*s", rc, out.kind, (int)out.bytes.size,
        out.bytes.size == 0 ? "" : (const char *)out.bytes.data);
    once_tx_result_clear(&out);
    return rc;
}

static int start(struct db *d, const struct call *c, struct answer *a)
{
    once_saga_step steps[2] = {ONCE_SAGA_STEP_INIT, ONCE_SAGA_STEP_INIT};
    once_saga s = ONCE_SAGA_INIT;
    char gid[ONCE_ID_SIZE] = "";
    int rc;

    steps[0].try_to = "r";
    steps[0].cancel_to = "s";
    steps[1].try_to = "s";
    steps[1].confirm_to = c->key == 1 ? "r" : NULL;
    steps[1].cancel_to = c->key == 2 ? "r" : NULL;
    steps[1].body = (once_bytes){bodies[c->body], strlen(bodies[c->body])};
    s.gid = ids[c->id];
    s.kind = "kind";
    s.steps = steps;
    s.n = 1 + c->n % 2;
    rc = once_saga_start(&d->tx, &s, gid, NULL);
    say(a, "%d %s", rc, has_id(rc) ? gid : "");
    return rc;
}

static int inside(struct db *d, struct call *c, struct answer *a)
{
    once_message m = message_of(c);
    int rc = 0;

    switch (c->what) {
    case CLAIM:
        rc = once_inbox_claim(&d->tx, &m, NULL);
        break;
    case PARK:
        rc = once_inbox_park(&d->tx, &m, (int)c->state, c->n > 3 ? 0 : 600000,
                             "why", NULL);
        break;
    case BRANCH:
        rc = once_barrier_enter(&d->tx, m.id, m.route, (int)c->attempt, NULL);
        break;
    case EMIT:
        return emit(d, c, a);
    case TX_CALL:
        return tx_call(d, c, a);
    default:
        return start(d, c, a);
    }
    say(a, "%d", rc);
    return rc;
}

/* ---- Calls that are a transaction ---------------------------------------- */

static void say_rows(struct answer *a, struct once__outgoing_list *l)
{
    size_t i;

    for (i = 0; i < l->n; i++) {
        const struct once__outgoing *o = &l->rows[i];

        say(a, " %lld:%u:%u:%u:%s:%s:%s:%s:%.*s:%u", (long long)o->seq,
            o->attempts, o->row.doubt, o->row.refused, o->m.route,
            or_none(o->m.key), or_none(o->saga), o->m.headers,
            (int)o->m.body.size,
            o->m.body.size == 0 ? "" : (const char *)o->m.body.data, o->m.keep);
    }
    once__outgoing_clear(l);
}

static void out_claim(struct db *d, const struct call *c, struct answer *a)
{
    struct once__outbox_ask ask = {c->state < 3 ? "r" : "s", 1 + c->n, 60000,
                                   c->key == 1, c->body == 1};
    struct once__outgoing_list l;

    say(a, "%d", once__outbox_claim(&d->tx, &ask, &l, NULL));
    say_rows(a, &l);
}

static void out_settle(struct db *d, const struct call *c, struct answer *a)
{
    struct once__settlement s[2] = {
        {c->no,
         c->attempt,
         {(int)c->state, c->key == 0, c->body == 0, 0},
         (int)c->n,
         {NULL, 0},
         "why",
         0},
        {c->no + 1, 1, {ONCE__ROW_DONE, 0, 0, 0}, 200, {"reply", 5}, "", 0}};

    if (c->n > 3)
        s[0].to.wait_ms = 600000;
    say(a, "%d", once__outbox_settle(&d->tx, s, 2, NULL));
    say(a, " %d %d", s[0].ours, s[1].ours);
}

static void take(struct db *d, const struct call *c, struct answer *a)
{
    struct once__parked_list l;
    size_t i;

    say(a, "%d",
        once__parked_take(&d->tx, c->state < 3 ? "c" : "d", 60000, c->key == 1,
                          &l, NULL));
    for (i = 0; i < l.n; i++)
        say(a, " %lld:%s:%u:%s", (long long)l.rows[i].no, l.rows[i].m.id,
            l.rows[i].m.attempt, or_none(l.rows[i].m.key));
    once__parked_clear(&l);
}

static void saga_decide(struct db *d, const struct call *c, struct answer *a)
{
    struct once__saga_order o = {ONCE__SAGA_ABORT + (int)(c->key % 3),
                                 1 + c->n % 6, c->body, "note"};

    say(a, "%d", once__saga_decide(&d->tx, ids[c->id], &o, NULL));
}

/* Whoever held something has died. */
static void leases_end(struct db *d)
{
    sql(d, NULL, "UPDATE @outbox SET lease_ms=1 WHERE lease_ms>0");
    sql(d, NULL, "UPDATE @outbox SET due_ms=1 WHERE phase=1");
    sql(d, NULL, "UPDATE @parked SET due_ms=no WHERE state=1");
}

static void purge(struct db *d, struct answer *a)
{
    uint64_t n = 0;

    sql(d, NULL, "UPDATE @inbox SET at_ms=1 WHERE id='a'");
    sql(d, NULL, "UPDATE @saga SET since_ms=1");
    sql(d, NULL, "UPDATE @outbox SET due_ms=1 WHERE phase=2");
    say(a, "%d", once_message_purge(&d->tx, &n, NULL));
    say(a, " %llu", (unsigned long long)n);
    say(a, " %d", once__outbox_purge(&d->tx, 60000, &n, NULL));
    say(a, " %llu", (unsigned long long)n);
}

static void outside(struct db *d, const struct call *c, struct answer *a)
{
    struct once__saga_tally tally = {0};
    int stopped = 0;

    switch (c->what) {
    case OUT_CLAIM:
        out_claim(d, c, a);
        break;
    case OUT_SETTLE:
        out_settle(d, c, a);
        break;
    case OUT_DECIDE:
        say(a, "%d",
            once__outbox_decide(&d->tx, c->no, (int)c->state, c->attempt,
                                (int)c->key, "why", NULL));
        break;
    case TAKE:
        take(d, c, a);
        break;
    case PUT_BACK:
        say(a, "%d",
            once__parked_put_back(&d->tx, c->no, c->attempt, (int)c->state,
                                  c->n > 3 ? 0 : 600000, "why", NULL));
        break;
    case PARKED_DECIDE:
        say(a, "%d",
            once__parked_decide(&d->tx, c->no, (int)c->state, c->attempt,
                                (int)c->key, "why", NULL));
        break;
    case HAS_KEY:
        say(a, "%d",
            once__parked_has_key(&d->tx, "c", c->key == 1 ? "k" : "l", &stopped,
                                 NULL));
        say(a, " %d", stopped);
        break;
    case ADVANCE:
        say(a, "%d", once__saga_advance(&d->tx, ids[c->id], &tally, NULL));
        say(a, " %llu %llu %llu %llu", (unsigned long long)tally.advanced,
            (unsigned long long)tally.done, (unsigned long long)tally.undone,
            (unsigned long long)tally.stuck);
        break;
    case SAGA_DECIDE:
        saga_decide(d, c, a);
        break;
    case LEASES_END:
        leases_end(d);
        break;
    default:
        purge(d, a);
    }
}

static void make(struct db *d, struct call *c, struct answer *a)
{
    int rc;

    a->n = 0;
    a->text[0] = '\0';
    if (c->what > START) {
        outside(d, c, a);
        return;
    }
    begin(d);
    rc = inside(d, c, a);
    if (c->end == 0 || rc < 0 || rc == ONCE_MISMATCH || rc == ONCE_OUTSIDE ||
        rc == ONCE_AGAIN)
        roll_back(d);
    else
        commit(d);
}

/* ---- Tables --------------------------------------------------------------- */

/* Each row as one text, without times and drawn ids. */
static const char *const tables[] = {
    "SELECT consumer||' '||id||' '||kind||' '||CASE WHEN fingerprint IS NULL "
    "THEN 'any' ELSE '' END"
    " FROM @inbox ORDER BY consumer,id",
    "SELECT no||' '||consumer||' '||id||' '||state||' '||attempts||' '||"
    "coalesce(key,'-')||' '||error FROM @parked ORDER BY no",
    "SELECT seq||' '||phase||' '||attempts||' '||doubt||' '||refused||' '||"
    "route||' '||coalesce(key,'-')||' '||coalesce(saga,'-')||' '||error||' '||"
    "coalesce(status,-1) FROM @outbox ORDER BY seq",
    "SELECT gid||' '||branch||' '||phase FROM @barrier ORDER BY gid,branch",
    "SELECT gid||' '||state||' '||version||' '||note FROM @saga ORDER BY gid",
    "SELECT gid||' '||branch||' '||state||' '||failed||' '||round||' '||"
    "coalesce(status,-1) FROM @saga_step ORDER BY gid,branch",
};

static void pg_rows(struct db *d, const char *text, struct answer *a)
{
    PGresult *r = PQexec(d->pg, text);
    int i;

    T_EQ(PQresultStatus(r), PGRES_TUPLES_OK);
    for (i = 0; i < PQntuples(r); i++)
        say(a, "%s\n", PQgetvalue(r, i, 0));
    PQclear(r);
}

static void lite_rows(struct db *d, const char *text, struct answer *a)
{
    sqlite3_stmt *q = NULL;

    T_EQ(sqlite3_prepare_v2(d->lite, text, -1, &q, NULL), SQLITE_OK);
    while (sqlite3_step(q) == SQLITE_ROW)
        say(a, "%s\n", (const char *)sqlite3_column_text(q, 0));
    T_EQ(sqlite3_finalize(q), SQLITE_OK);
}

#ifdef ONCE_WITH_MYSQL
static void my_rows(struct db *d, const char *text, struct answer *a)
{
    struct once__my_text quoted = {0};
    MYSQL_RES *r;
    MYSQL_ROW row;

    once__mysql_fill(&quoted, text, NULL, 0);
    T_EQ(mysql_real_query(d->my, quoted.at, quoted.size), 0);
    once__my_text_clear(&quoted);
    r = mysql_store_result(d->my);
    while (r != NULL && (row = mysql_fetch_row(r)) != NULL)
        say(a, "%s\n", row[0]);
    mysql_free_result(r);
}
#endif

static void rows_of(struct db *d, const char *query, struct answer *a)
{
    const char *at = strchr(query, '@');
    char text[600];

    (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - query), query,
                   d->pg != NULL ? place : "once", d->pg != NULL ? "." : "_");
    (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s",
                   at + 1);
    a->n = 0;
    a->text[0] = '\0';
    if (d->pg != NULL)
        pg_rows(d, text, a);
#ifdef ONCE_WITH_MYSQL
    else if (d->my != NULL)
        my_rows(d, text, a);
#endif
    else
        lite_rows(d, text, a);
}

/* A transaction that was rolled back has drawn numbers on the server alone. */
static void same_numbers(struct db *server, struct db *lite)
{
    static const char *const names[] = {"outbox", "seq", "parked", "no"};
    size_t i;

    for (i = 0; i < 4; i += 2) {
        long next =
            1 + number(lite,
                       "SELECT coalesce(max(seq),0) FROM sqlite_sequence"
                       " WHERE name='once_%s'",
                       names[i]);

        if (server->pg != NULL)
            sql(server, NULL, "SELECT setval('@%s_%s_seq',%ld,false)", names[i],
                names[i + 1], next);
        else
            sql(server, NULL, "ALTER TABLE @%s AUTO_INCREMENT=%ld", names[i],
                next);
    }
}

static int same(const struct call *c, unsigned i, const char *what,
                const struct answer *server, const struct answer *lite)
{
    if (strcmp(server->text, lite->text) == 0)
        return 1;
    printf("#   call %u: kind %u id %u key %u body %u n %u state %u attempt %u "
           "end %u no %lld: %s\n#   server: %s\n#   SQLite: %s\n",
           i, c->what, c->id, c->key, c->body, c->n, c->state, c->attempt,
           c->end, (long long)c->no, what, server->text, lite->text);
    t__bad++;
    return 0;
}

static int same_tables(const struct call *c, unsigned i, struct db *server,
                       struct db *lite)
{
    static struct answer a, b;
    size_t k;

    for (k = 0; k < sizeof(tables) / sizeof(tables[0]); k++) {
        rows_of(server, tables[k], &a);
        rows_of(lite, tables[k], &b);
        if (!same(c, i, tables[k], &a, &b))
            return 0;
    }
    return 1;
}

static void compare(const char *url, unsigned seed, unsigned calls)
{
    static struct answer a, b;
    struct db server, lite;
    char path[sizeof(place)];
    unsigned i, of = seed;
    int alike = 1;

    server_url = NULL;
    lite = db_new();
    (void)snprintf(path, sizeof(path), "%s", place);
    server_url = url;
    server = db_new();
    for (i = 0; i < calls && alike; i++) {
        struct call c = draw_call(&seed);

        make(&lite, &c, &b);
        make(&server, &c, &a);
        alike =
            same(&c, i, "answer", &a, &b) && same_tables(&c, i, &server, &lite);
        same_numbers(&server, &lite);
    }
    if (!alike)
        printf("#   seed %u\n", of);
    db_end(&server);
    server_url = NULL;
    (void)snprintf(place, sizeof(place), "%s", path);
    db_end(&lite);
}

static const char *url;
static unsigned first = 1, calls = CALLS;

static void both_databases_answer_alike(void)
{
    unsigned i;

    for (i = 0; i < SEEDS; i++)
        compare(url, first + i, calls);
}

int main(int argc, char **argv)
{
    url = getenv("ONCE_TEST_URL");
    if (url == NULL) {
        puts("1..0 # SKIP ONCE_TEST_URL names no server");
        return 0;
    }
    if (argc > 1)
        first = (unsigned)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        calls = (unsigned)strtoul(argv[2], NULL, 10);
    T_RUN(both_databases_answer_alike);
    return t_done();
}
