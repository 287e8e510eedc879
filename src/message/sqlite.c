/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sqlite.c - what pg.sql does in functions, as statements on the caller's
 * handle, in the caller's write transaction.
 *
 * SQLite has one writer at a time. So nobody else is in the middle of anything
 * here: what a statement sees is committed, or the caller's own. It refuses a
 * transaction that was not begun with BEGIN IMMEDIATE: such a one reads first,
 * and then fails when another has written meanwhile.
 *
 * Ids and times are made here, since SQLite has neither.
 */
#include <assert.h>
#include <openssl/rand.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "message/backend.h"

enum { VERSION = 1, FULL = 2, STEP = 1000 };

/* A statement under way. The first error stays, and skips what follows. */
struct query {
    const once_tx *tx;
    sqlite3_stmt *stmt;
    int n;  /* parameters bound    */
    int rc; /* SQLITE_OK, or error */
};

static uint64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- Errors ------------------------------------------------------------ */

static int failed(int rc, const char *where, once_error *err)
{
    switch (rc & 255) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_INTERRUPT:
    case SQLITE_IOERR:
        return once__fail(err, ONCE_EABORTED, "%s: %s (%d)", where,
                          sqlite3_errstr(rc), rc);
    case SQLITE_FULL:
        return once__fail(err, ONCE_EFULL, "%s: the disk is full", where);
    case SQLITE_NOMEM:
        return once__fail(err, ONCE_ENOMEM, "%s: out of memory", where);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return once__fail(err, ONCE_ECORRUPT, "%s: the file is damaged (%d)",
                          where, rc);
    case SQLITE_ERROR: /* a statement that does not fit the tables */
        return once__fail(err, ONCE_EOPEN,
                          "%s: the tables are not there: `once messages "
                          "init`",
                          where);
    default:
        return once__fail(err, ONCE_EOPEN, "%s: %s (%d)", where,
                          sqlite3_errstr(rc), rc);
    }
}

/* ---- Statements -------------------------------------------------------- */

static struct query query(const once_tx *tx, const char *sql)
{
    struct query q = {.tx = tx};

    q.rc = sqlite3_prepare_v2(tx->sqlite, sql, -1, &q.stmt, NULL);
    return q;
}

static void text_in(struct query *q, const char *value)
{
    if (q->rc != SQLITE_OK)
        return;
    q->n++;
    q->rc = value == NULL
                ? sqlite3_bind_null(q->stmt, q->n)
                : sqlite3_bind_text(q->stmt, q->n, value, -1, SQLITE_STATIC);
}

static void number_in(struct query *q, uint64_t value)
{
    if (q->rc == SQLITE_OK)
        q->rc = sqlite3_bind_int64(q->stmt, ++q->n, (sqlite3_int64)value);
}

/* SQLite takes a blob without an address for NULL. */
static void bytes_in(struct query *q, const void *data, size_t size)
{
    if (q->rc == SQLITE_OK)
        q->rc = sqlite3_bind_blob64(q->stmt, ++q->n, size == 0 ? "" : data,
                                    size, SQLITE_STATIC);
}

static void fingerprint_in(struct query *q, const uint8_t *fingerprint)
{
    if (fingerprint != NULL)
        bytes_in(q, fingerprint, ONCE_FINGERPRINT_SIZE);
    else
        text_in(q, NULL);
}

/* 1: there is a row. 0: none, or an error. */
static int next(struct query *q)
{
    if (q->rc == SQLITE_OK)
        q->rc = sqlite3_step(q->stmt);
    if (q->rc != SQLITE_ROW)
        return 0;
    q->rc = SQLITE_OK;
    return 1;
}

/* Ends the statement: SQLITE_OK, or what went wrong. */
static int end(struct query *q)
{
    int rc = q->rc == SQLITE_DONE ? SQLITE_OK : q->rc;

    (void)sqlite3_finalize(q->stmt);
    q->stmt = NULL;
    return rc;
}

/* Runs it to its end; `*changed`: how many rows it wrote. */
static int run(struct query *q, int *changed)
{
    int rc;

    while (next(q))
        ;
    rc = end(q);
    *changed = rc == SQLITE_OK ? sqlite3_changes(q->tx->sqlite) : 0;
    return rc;
}

static int ask_number(const once_tx *tx, const char *sql, int64_t *out)
{
    struct query q = query(tx, sql);

    if (next(&q))
        *out = sqlite3_column_int64(q.stmt, 0);
    return end(&q);
}

/* ---- The caller's transaction ------------------------------------------ */

/*
 * 1 if what is committed on this handle survives a crash. Two PRAGMAs and not
 * one SELECT over their tables, which costs more than the claim itself.
 */
static int is_durable(const once_tx *tx, int *durable)
{
    const char *path = sqlite3_db_filename(tx->sqlite, "main"), *mode;
    int64_t level = FULL;
    int rc = ask_number(tx, "PRAGMA main.synchronous", &level);
    struct query q;

    if (rc != SQLITE_OK)
        return rc;
    q = query(tx, "PRAGMA main.journal_mode");
    mode = next(&q) ? (const char *)sqlite3_column_text(q.stmt, 0) : NULL;
    mode = once__text_of(mode);
    /* Without a path it is a database in memory. */
    *durable = level >= FULL &&
               (once__text_of(path)[0] == '\0' ||
                (strcmp(mode, "off") != 0 && strcmp(mode, "memory") != 0));
    return end(&q);
}

static int not_durable(const char *where, once_error *err)
{
    return once__fail(err, ONCE_EOPEN,
                      "%s: PRAGMA synchronous is below FULL, or journal_mode "
                      "is off or memory: what is committed may be lost",
                      where);
}

static int open_(const once_tx *tx, once_error *err)
{
    int durable = 1, rc;

    if (sqlite3_get_autocommit(tx->sqlite))
        return once__fail(err, ONCE_ETX, "tx: no transaction is open");
    if (sqlite3_txn_state(tx->sqlite, "main") != SQLITE_TXN_WRITE)
        return once__fail(err, ONCE_ETX,
                          "tx: it was not begun with BEGIN IMMEDIATE");
    rc = is_durable(tx, &durable);
    if (rc != SQLITE_OK)
        return failed(rc, "tx", err);
    return durable ? ONCE_OK : not_durable("tx", err);
}

static int idle(const once_tx *tx, once_error *err)
{
    return sqlite3_get_autocommit(tx->sqlite)
               ? ONCE_OK
               : once__fail(err, ONCE_ETX, "tx: a transaction is open");
}

/* ---- Inbox ------------------------------------------------------------- */

/* 1 if the id's own time is before what is remembered. */
static int is_old(const once_tx *tx, uint64_t id_ms, uint64_t now, int *old)
{
    struct query q = query(tx, "SELECT max(?1-keep_ms,floor_ms)"
                               " FROM once_message_meta");

    number_in(&q, now);
    if (next(&q))
        *old = (int64_t)id_ms < sqlite3_column_int64(q.stmt, 0);
    return end(&q);
}

/* Takes a parked message out with its claim; `keep_ms` counts from the effect. */
static int take_parked(const once_tx *tx, const struct once__claim *c,
                       uint64_t now, int *taken)
{
    struct query q = query(tx, "DELETE FROM once_parked"
                               " WHERE consumer=?1 AND id=?2 AND attempts=?3");
    int rc, changed;

    text_in(&q, c->consumer);
    text_in(&q, c->id);
    number_in(&q, c->attempt);
    rc = run(&q, taken);
    if (rc != SQLITE_OK || *taken == 0)
        return rc;
    q = query(tx, "UPDATE once_inbox SET at_ms=max(at_ms,?3)"
                  " WHERE consumer=?1 AND id=?2");
    text_in(&q, c->consumer);
    text_in(&q, c->id);
    number_in(&q, now);
    return run(&q, &changed);
}

static int insert(const once_tx *tx, const struct once__claim *c, uint64_t at,
                  const uint64_t xact[2], int *inserted)
{
    struct query q =
        query(tx, "INSERT INTO once_inbox VALUES(?1,?2,?3,?4,?5,?6,NULL)"
                  " ON CONFLICT DO NOTHING");

    text_in(&q, c->consumer);
    text_in(&q, c->id);
    number_in(&q, at);
    fingerprint_in(&q, c->fingerprint);
    number_in(&q, c->call ? ONCE_NO_KIND : ONCE_SUCCESS);
    if (c->call)
        bytes_in(&q, xact, 2 * sizeof(*xact));
    else
        text_in(&q, NULL);
    return run(&q, inserted);
}

static int explain(const once_tx *tx, const struct once__claim *c, int *found,
                   int *differs)
{
    struct query q = query(tx, "SELECT fingerprint IS NOT NULL AND"
                               " ?3 IS NOT NULL AND fingerprint<>?3"
                               " FROM once_inbox WHERE consumer=?1 AND id=?2");

    text_in(&q, c->consumer);
    text_in(&q, c->id);
    fingerprint_in(&q, c->fingerprint);
    *found = next(&q);
    if (*found)
        *differs = sqlite3_column_int(q.stmt, 0);
    return end(&q);
}

static int claim_with(const once_tx *tx, const struct once__claim *c,
                      const uint64_t xact[2], once_error *err)
{
    uint64_t now = now_ms(), id_ms = once__id_ms(c->id);
    int done = 0, old = 0, found = 0, differs = 0, rc = SQLITE_OK;

    if (c->attempt > 0)
        rc = take_parked(tx, c, now, &done);
    if (rc == SQLITE_OK && !done && id_ms > 0)
        rc = is_old(tx, id_ms, now, &old);
    if (rc == SQLITE_OK && !done && !old)
        rc = insert(tx, c, id_ms > now ? id_ms : now, xact, &done);
    if (rc == SQLITE_OK && !done)
        rc = explain(tx, c, &found, &differs);
    if (rc != SQLITE_OK)
        return failed(rc, "inbox_claim", err);
    if (done)
        return ONCE_OWNER;
    assert(found || old); /* nobody else writes meanwhile */
    return !found ? ONCE_OUTSIDE : differs ? ONCE_MISMATCH : ONCE_REPEATED;
}

static int claim(const once_tx *tx, const struct once__claim *c,
                 once_error *err)
{
    return claim_with(tx, c, NULL, err);
}

static void parked_id(const struct once__claim *c, int was, char *out,
                      size_t size)
{
    size_t i, at = (size_t)snprintf(out, size, "%s", c->id);

    if (was != ONCE_MISMATCH)
        return;
    out[at++] = '#';
    for (i = 0; i < ONCE_FINGERPRINT_SIZE; i++)
        at += (size_t)snprintf(out + at, size - at, "%02x", c->fingerprint[i]);
}

static int park(const once_tx *tx, const struct once__park *p, once_error *err)
{
    char id[ONCE_ID_SIZE + 2 * ONCE_FINGERPRINT_SIZE + 2];
    uint64_t now = now_ms();
    int was = claim_with(tx, &p->claim, NULL, err), rc, changed;
    int own = was == ONCE_OWNER;
    struct query q;

    if (was < 0 || was == ONCE_REPEATED)
        return was;
    parked_id(&p->claim, was, id, sizeof(id));
    q = query(tx, "INSERT INTO once_parked(consumer,id,state,due_ms,at_ms,key,"
                  "type,headers,body,error)"
                  "VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)"
                  " ON CONFLICT DO NOTHING");
    text_in(&q, p->claim.consumer);
    text_in(&q, id);
    number_in(&q, (uint64_t)(own ? p->state : ONCE_PARKED_DEAD));
    number_in(&q, now + p->wait_ms);
    number_in(&q, now);
    text_in(&q, p->m->key);
    text_in(&q, once__text_of(p->m->type));
    text_in(&q, once__text_of(p->m->headers));
    bytes_in(&q, p->m->body.data, p->m->body.size);
    text_in(&q, own ? p->why : was == ONCE_MISMATCH ? "mismatch" : "outside");
    rc = run(&q, &changed);
    return rc == SQLITE_OK ? ONCE_OK : failed(rc, "inbox_park", err);
}

/* ---- Outbox ------------------------------------------------------------ */

/* A UUID of version 7 (RFC 9562): 48 bits of time, 74 random ones. */
static int draw_id(uint64_t now, char out[ONCE_ID_SIZE])
{
    uint8_t b[16];
    size_t i, at = 0;

    if (RAND_bytes(b, sizeof(b)) != 1)
        return 0;
    for (i = 0; i < 6; i++)
        b[i] = (uint8_t)(now >> (40 - 8 * i));
    b[6] = (uint8_t)(0x70 | (b[6] & 0x0f));
    b[8] = (uint8_t)(0x80 | (b[8] & 0x3f));
    for (i = 0; i < sizeof(b); i++)
        at += (size_t)snprintf(out + at, ONCE_ID_SIZE - at, "%s%02x",
                               i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                               b[i]);
    return 1;
}

static int insert_row(const once_tx *tx, const once_message *m, const char *id,
                      uint64_t now, const uint8_t *fingerprint, int *inserted)
{
    struct query q =
        query(tx, "INSERT INTO once_outbox(phase,kept,due_ms,at_ms,route,id,"
                  "key,type,headers,body,fingerprint)"
                  "VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)"
                  " ON CONFLICT DO NOTHING");

    number_in(&q, m->due_ms > now);
    number_in(&q, m->keep || m->id != NULL);
    number_in(&q, m->due_ms);
    number_in(&q, now);
    text_in(&q, m->route);
    text_in(&q, id);
    text_in(&q, m->key);
    text_in(&q, once__text_of(m->type));
    text_in(&q, once__text_of(m->headers));
    bytes_in(&q, m->body.data, m->body.size);
    fingerprint_in(&q, fingerprint);
    return run(&q, inserted);
}

static int emitted_before(const once_tx *tx, const once_message *m,
                          const uint8_t *fingerprint, int *differs)
{
    struct query q = query(tx, "SELECT fingerprint IS NOT ?3 FROM once_outbox"
                               " WHERE route=?1 AND id=?2 AND kept=1");

    text_in(&q, m->route);
    text_in(&q, m->id);
    fingerprint_in(&q, fingerprint);
    if (next(&q))
        *differs = sqlite3_column_int(q.stmt, 0);
    return end(&q);
}

static int emit(const once_tx *tx, const once_message *m, char id[ONCE_ID_SIZE],
                once_error *err)
{
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint64_t now = now_ms();
    int rc, inserted = 0, differs = 1;

    if (m->id == NULL && !draw_id(now, id))
        return once__fail(err, ONCE_ENOMEM, "emit: no random bytes");
    if (m->id != NULL)
        (void)snprintf(id, ONCE_ID_SIZE, "%s", m->id);
    rc = m->id == NULL ? ONCE_OK
                       : once__fingerprint_bytes(m->body, fingerprint, err);
    if (rc != ONCE_OK)
        return rc;
    rc = insert_row(tx, m, id, now, m->id == NULL ? NULL : fingerprint,
                    &inserted);
    if (rc == SQLITE_OK && inserted)
        return ONCE_OK;
    if (rc == SQLITE_OK && m->id != NULL)
        rc = emitted_before(tx, m, fingerprint, &differs);
    if (rc != SQLITE_OK)
        return failed(rc, "emit", err);
    return differs ? ONCE_MISMATCH : ONCE_REPEATED;
}

/* ---- Branches ---------------------------------------------------------- */

enum { NONE = 0, TRIED = 1, CONFIRMED = 2, CANCELLED = 3, NEVER_TRIED = 4 };

/* What is answered, and the phase that is written; 0: none. */
static const struct {
    int answer, to;
} moves[4][5] = {
    [ONCE_TRY] = {[NONE] = {ONCE_OWNER, TRIED},
                  [TRIED] = {ONCE_REPEATED, 0},
                  [CONFIRMED] = {ONCE_REPEATED, 0},
                  [CANCELLED] = {ONCE_REFUSED, 0},
                  [NEVER_TRIED] = {ONCE_REFUSED, 0}},
    [ONCE_CONFIRM] = {[NONE] = {ONCE_EARLY, 0},
                      [TRIED] = {ONCE_OWNER, CONFIRMED},
                      [CONFIRMED] = {ONCE_REPEATED, 0},
                      [CANCELLED] = {ONCE_CONFLICT, 0},
                      [NEVER_TRIED] = {ONCE_CONFLICT, 0}},
    [ONCE_CANCEL] = {[NONE] = {ONCE_EMPTY, NEVER_TRIED},
                     [TRIED] = {ONCE_OWNER, CANCELLED},
                     [CONFIRMED] = {ONCE_CONFLICT, 0},
                     [CANCELLED] = {ONCE_REPEATED, 0},
                     [NEVER_TRIED] = {ONCE_REPEATED, 0}},
};

static int phase_of(const once_tx *tx, const char *gid, const char *branch,
                    int *phase)
{
    struct query q =
        query(tx, "SELECT phase FROM once_barrier WHERE gid=?1 AND branch=?2");

    *phase = NONE;
    text_in(&q, gid);
    text_in(&q, branch);
    if (next(&q))
        *phase = sqlite3_column_int(q.stmt, 0);
    return end(&q);
}

static int set_phase(const once_tx *tx, const char *gid, const char *branch,
                     int phase, uint64_t now)
{
    struct query q = query(tx, "INSERT INTO once_barrier VALUES(?1,?2,?3,?4)"
                               " ON CONFLICT DO UPDATE SET phase=?3,at_ms=?4");
    int changed;

    text_in(&q, gid);
    text_in(&q, branch);
    number_in(&q, (uint64_t)phase);
    number_in(&q, now);
    return run(&q, &changed);
}

static int enter(const once_tx *tx, const char *gid, const char *branch, int op,
                 once_error *err)
{
    uint64_t now = now_ms(), gid_ms = once__id_ms(gid);
    int phase = NONE, old = 0;
    int rc = phase_of(tx, gid, branch, &phase);

    if (rc == SQLITE_OK && (phase < NONE || phase > NEVER_TRIED))
        return once__fail(err, ONCE_ECORRUPT, "barrier_enter: phase %d", phase);
    if (rc == SQLITE_OK && phase == NONE && op == ONCE_TRY && gid_ms > 0)
        rc = is_old(tx, gid_ms, now, &old);
    if (rc == SQLITE_OK && !old && moves[op][phase].to != 0)
        rc = set_phase(tx, gid, branch, moves[op][phase].to, now);
    if (rc != SQLITE_OK)
        return failed(rc, "barrier_enter", err);
    return old ? ONCE_REFUSED : moves[op][phase].answer;
}

/* ---- Calls ------------------------------------------------------------- */

static int take_result(struct query *q, struct once__begun *out,
                       once_error *err)
{
    size_t size = (size_t)sqlite3_column_bytes(q->stmt, 1);
    const void *data = sqlite3_column_blob(q->stmt, 1);

    out->kind = sqlite3_column_int(q->stmt, 0);
    if (out->kind != ONCE_SUCCESS && out->kind != ONCE_FAILURE)
        return once__fail(err, ONCE_ECORRUPT, "begin: a kind that is not one");
    out->memory = malloc(size + 1);
    if (out->memory == NULL)
        return once__fail(err, ONCE_ENOMEM, "begin: no memory for the result");
    if (size > 0)
        memcpy(out->memory, data, size);
    out->result = (once_bytes){out->memory, size};
    return ONCE_REPLAY;
}

static int show(const once_tx *tx, const struct once__claim *c,
                struct once__begun *out, once_error *err)
{
    struct query q =
        query(tx, "SELECT kind,result FROM once_inbox"
                  " WHERE consumer=?1 AND id=?2 AND result IS NOT NULL");
    int rc = ONCE_REPEATED, ended;

    text_in(&q, c->consumer);
    text_in(&q, c->id);
    if (next(&q))
        rc = take_result(&q, out, err);
    ended = end(&q);
    return ended == SQLITE_OK ? rc : failed(ended, "begin", err);
}

static int begin(const once_tx *tx, const struct once__claim *c,
                 struct once__begun *out, once_error *err)
{
    int rc;

    if (RAND_bytes((unsigned char *)out->xact, sizeof(out->xact)) != 1)
        return once__fail(err, ONCE_ENOMEM, "begin: no random bytes");
    rc = claim_with(tx, c, out->xact, err);
    return rc == ONCE_REPEATED ? show(tx, c, out, err) : rc;
}

static int finish(const once_tx *tx, const struct once__claim *c,
                  const struct once__begun *b, int kind, once_bytes result,
                  once_error *err)
{
    struct query q =
        query(tx, "UPDATE once_inbox SET kind=?3,result=?4"
                  " WHERE consumer=?1 AND id=?2 AND kind=0 AND xact=?5");
    int rc, changed;

    text_in(&q, c->consumer);
    text_in(&q, c->id);
    number_in(&q, (uint64_t)kind);
    bytes_in(&q, result.data, result.size);
    bytes_in(&q, b->xact, sizeof(b->xact));
    rc = run(&q, &changed);
    if (rc != SQLITE_OK)
        return failed(rc, "finish", err);
    return changed == 1 ? ONCE_OK
                        : once__fail(err, ONCE_ETX,
                                     "finish: this call was rolled back "
                                     "to a savepoint");
}

/* ---- Tables ------------------------------------------------------------ */

static int check(const once_tx *tx, once_error *err)
{
    int64_t version = 0;
    int durable = 1;
    int rc = ask_number(tx, "SELECT version FROM once_message_meta", &version);

    if (rc == SQLITE_OK)
        rc = is_durable(tx, &durable);
    if (rc != SQLITE_OK)
        return failed(rc, "check", err);
    if (version != VERSION)
        return once__fail(err, ONCE_EVERSION,
                          "check: the tables are of version %lld",
                          (long long)version);
    return durable ? ONCE_OK : not_durable("check", err);
}

static int init(const once_tx *tx, uint64_t keep_ms, once_error *err)
{
    static const char begin_[] = "BEGIN IMMEDIATE;";
    int64_t tables = 0;
    char *text = NULL;
    int rc = once_message_schema(NULL, keep_ms, &text, err), code;

    if (rc != ONCE_OK)
        return rc;
    code = sqlite3_exec(tx->sqlite, begin_, NULL, NULL, NULL);
    if (code == SQLITE_OK)
        code = ask_number(tx,
                          "SELECT count(*) FROM sqlite_schema"
                          " WHERE name='once_message_meta'",
                          &tables);
    if (code == SQLITE_OK && tables > 0)
        rc = check(tx, err); /* tables of another version stay as they are */
    if (code == SQLITE_OK && (rc == ONCE_OK || rc == ONCE_EOPEN)) {
        rc = ONCE_OK;
        code = sqlite3_exec(tx->sqlite, text, NULL, NULL, NULL);
    }
    if (code == SQLITE_OK && rc == ONCE_OK)
        code = sqlite3_exec(tx->sqlite, "COMMIT", NULL, NULL, NULL);
    if (code != SQLITE_OK)
        rc = failed(code, "init", err);
    if (!sqlite3_get_autocommit(tx->sqlite))
        (void)sqlite3_exec(tx->sqlite, "ROLLBACK", NULL, NULL, NULL);
    free(text);
    return rc;
}

/* ---- Purge ------------------------------------------------------------- */

/* Where a walk over the inbox stands. */
struct place {
    char consumer[ONCE_ID_SIZE], id[ONCE_ID_SIZE];
    int last; /* this step is the last one */
};

static void keep_text(struct query *q, int column, char out[ONCE_ID_SIZE])
{
    const char *text = (const char *)sqlite3_column_text(q->stmt, column);

    (void)snprintf(out, ONCE_ID_SIZE, "%s", once__text_of(text));
}

static int step_end(const once_tx *tx, const struct place *from,
                    struct place *to)
{
    struct query q =
        query(tx, "SELECT consumer,id FROM once_inbox"
                  " WHERE (consumer,id)>(?1,?2) ORDER BY consumer,id"
                  " LIMIT 1 OFFSET ?3");

    text_in(&q, from->consumer);
    text_in(&q, from->id);
    number_in(&q, STEP);
    to->last = !next(&q);
    if (!to->last) {
        keep_text(&q, 0, to->consumer);
        keep_text(&q, 1, to->id);
    }
    return end(&q);
}

static int purge_step(const once_tx *tx, const struct place *from,
                      const struct place *to, int *removed)
{
    struct query q = query(
        tx, "DELETE FROM once_inbox WHERE (consumer,id)>(?1,?2)"
            " AND (?5 OR (consumer,id)<=(?3,?4))"
            " AND at_ms<(SELECT floor_ms FROM once_message_meta)"
            " AND NOT EXISTS(SELECT 1 FROM once_parked k"
            " WHERE k.consumer=once_inbox.consumer AND k.id=once_inbox.id)");

    text_in(&q, from->consumer);
    text_in(&q, from->id);
    text_in(&q, to->consumer);
    text_in(&q, to->id);
    number_in(&q, (uint64_t)to->last);
    return run(&q, removed);
}

/* Each statement is a transaction of its own, so that others get in between. */
static int purge(const once_tx *tx, uint64_t *removed, once_error *err)
{
    struct place from = {"", "", 0}, to = {"", "", 0};
    struct query q = query(tx, "UPDATE once_message_meta"
                               " SET floor_ms=max(floor_ms,?1-keep_ms-?2)");
    int rc, n = 0;

    number_in(&q, now_ms());
    number_in(&q, ONCE__SLACK_MS);
    rc = run(&q, &n);
    while (rc == SQLITE_OK && !to.last) {
        rc = step_end(tx, &from, &to);
        if (rc == SQLITE_OK)
            rc = purge_step(tx, &from, &to, &n);
        *removed += (uint64_t)n;
        from = to;
    }
    if (rc == SQLITE_OK) {
        q = query(tx, "DELETE FROM once_barrier WHERE phase>1 AND at_ms<"
                      "(SELECT floor_ms-keep_ms FROM once_message_meta)");
        rc = run(&q, &n);
    }
    return rc == SQLITE_OK ? ONCE_OK : failed(rc, "purge", err);
}

const struct once__backend once__message_sqlite = {
    open_, idle, init, check, purge, claim, park, emit, enter, begin, finish};
