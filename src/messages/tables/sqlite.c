/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sqlite.c - what pg.sql does in functions, as statements on the caller's
 * handle, in the caller's write transaction.
 *
 * SQLite has one writer at a time. So no other process is in the middle of
 * anything here: what a statement sees is committed, or the caller's own. It
 * refuses a transaction that was not begun with BEGIN IMMEDIATE: such a one
 * reads first, and then fails when another has written meanwhile.
 *
 * Ids and times are made here, since SQLite has neither.
 */
#include <assert.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "messages/tables/shape.h"
#include "messages/tables/stmt.h"

enum { VERSION = 2, STEP = 1000 };

/* ---- The caller's transaction ------------------------------------------ */

static int open_(const once_tx *tx, once_error *err)
{
    int durable = 1, rc;

    if (sqlite3_get_autocommit(tx->sqlite))
        return once__fail(err, ONCE_ETX, "tx: no transaction is open");
    if (sqlite3_txn_state(tx->sqlite, "main") != SQLITE_TXN_WRITE)
        return once__fail(err, ONCE_ETX,
                          "tx: it was not begun with BEGIN IMMEDIATE");
    rc = once__lite_durable_here(tx, &durable);
    if (rc != SQLITE_OK)
        return once__lite_failed(rc, "tx", err);
    return durable ? ONCE_OK : once__lite_not_durable("tx", err);
}

/* ---- Inbox ------------------------------------------------------------- */

/* The time from which on ids are remembered. `now`: a parameter. */
#define REMEMBERED(now)                                                        \
    "SELECT max(" now "-keep_ms,floor_ms) FROM main.once_message_meta"

/* 1 if the id's own time is before what is remembered. */
static int is_old(const once_tx *tx, uint64_t id_ms, uint64_t now, int *old)
{
    struct once__stmt q = once__stmt(tx, REMEMBERED("?1"));

    once__stmt_with(&q, ONCE__NUMBER(now));
    if (once__stmt_next(&q))
        *old = (int64_t)id_ms < sqlite3_column_int64(q.stmt, 0);
    return once__stmt_end(&q);
}

/* Takes a parked message out with its claim; `keep_ms` counts from the effect. */
static int take_parked(const once_tx *tx, const struct once__claim *c,
                       uint64_t now, int *taken)
{
    int rc;

    rc = once__lite_run(tx, taken,
                        "DELETE FROM main.once_parked"
                        " WHERE consumer=?1 AND id=?2 AND attempts=?3",
                        ONCE__TEXT(c->consumer), ONCE__TEXT(c->id),
                        ONCE__NUMBER(c->attempt));
    if (rc != SQLITE_OK || *taken == 0)
        return rc;
    return once__lite_run(tx, NULL,
                          "UPDATE main.once_inbox SET at_ms=max(at_ms,?3)"
                          " WHERE consumer=?1 AND id=?2",
                          ONCE__TEXT(c->consumer), ONCE__TEXT(c->id),
                          ONCE__NUMBER(now));
}

/* An id whose own time is before what is remembered leaves no row. Not by OR IGNORE,
 * which would rule in triggers of the program's, too. */
static int insert(const once_tx *tx, const struct once__claim *c, uint64_t now,
                  uint64_t id_ms, const uint64_t xact[2], int *inserted)
{
    return once__lite_run(
        tx, inserted,
        "INSERT INTO main.once_inbox SELECT ?1,?2,max(?3,?7),?4,?5,?6,NULL"
        " WHERE (?7>0 AND ?7<(" REMEMBERED("?3") ")) IS NOT 1"
                                                 " ON CONFLICT DO NOTHING",
        ONCE__TEXT(c->consumer), ONCE__TEXT(c->id), ONCE__NUMBER(now),
        ONCE__SUM(c->fingerprint),
        ONCE__NUMBER(c->call ? ONCE_NO_KIND : ONCE_SUCCESS),
        ONCE__MAYBE(c->call ? xact : NULL, 2 * sizeof(*xact)),
        ONCE__NUMBER(id_ms));
}

static int explain(const once_tx *tx, const struct once__claim *c, int *found,
                   int *differs)
{
    struct once__stmt q =
        once__stmt(tx, "SELECT fingerprint IS NOT NULL AND"
                       " ?3 IS NOT NULL AND fingerprint<>?3"
                       " FROM main.once_inbox WHERE consumer=?1 AND id=?2");

    once__stmt_with(&q, ONCE__TEXT(c->consumer), ONCE__TEXT(c->id),
                    ONCE__SUM(c->fingerprint));
    *found = once__stmt_next(&q);
    if (*found)
        *differs = sqlite3_column_int(q.stmt, 0);
    return once__stmt_end(&q);
}

static int claim_with(const once_tx *tx, const struct once__claim *c,
                      const uint64_t xact[2], once_error *err)
{
    uint64_t now = once__lite_now(), id_ms = once__id_ms(c->id);
    int done = 0, old = 0, found = 0, differs = 0, rc = SQLITE_OK;

    if (c->attempt > 0)
        rc = take_parked(tx, c, now, &done);
    if (rc == SQLITE_OK && !done) {
        rc = insert(tx, c, now, id_ms, xact, &done);
        if (done)
            once__lite_mark_inbox(tx, c->consumer, c->id);
    }
    if (rc == SQLITE_OK && !done)
        rc = explain(tx, c, &found, &differs);
    if (rc == SQLITE_OK && !done && !found && id_ms > 0)
        rc = is_old(tx, id_ms, now, &old);
    if (rc != SQLITE_OK)
        return once__lite_failed(rc, "inbox_claim", err);
    if (done)
        return ONCE_OWNER;
    assert(found || old); /* no other process writes meanwhile */
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
    size_t at = (size_t)snprintf(out, size, "%s", c->id);

    if (was != ONCE_MISMATCH)
        return;
    out[at++] = '#';
    assert(at + 2 * ONCE_FINGERPRINT_SIZE < size);
    once__hex(c->fingerprint, ONCE_FINGERPRINT_SIZE, out + at);
}

static int park(const once_tx *tx, const struct once__park *p, once_error *err)
{
    char id[ONCE_ID_SIZE + 2 * ONCE_FINGERPRINT_SIZE + 2];
    uint64_t now = once__lite_now();
    int was = claim_with(tx, &p->claim, NULL, err), rc;
    int own = was == ONCE_OWNER;

    if (was < 0 || was == ONCE_REPEATED)
        return was;
    parked_id(&p->claim, was, id, sizeof(id));
    rc = once__lite_run(
        tx, NULL,
        "INSERT INTO main.once_parked(consumer,id,state,due_ms,at_ms,key,"
        "type,headers,body,error,filed)"
        "VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)"
        " ON CONFLICT DO NOTHING",
        ONCE__TEXT(p->claim.consumer), ONCE__TEXT(id),
        ONCE__NUMBER(own ? p->state : ONCE_PARKED_DEAD),
        ONCE__NUMBER(now + p->wait_ms), ONCE__NUMBER(now),
        ONCE__TEXT(p->m->key), ONCE__TEXT(once__text_of(p->m->type)),
        ONCE__TEXT(once__text_of(p->m->headers)),
        ONCE__BYTES(p->m->body.data, p->m->body.size),
        ONCE__TEXT(own                    ? p->why
                   : was == ONCE_MISMATCH ? "mismatch"
                                          : "outside"),
        ONCE__NUMBER(own));
    return rc == SQLITE_OK ? ONCE_OK : once__lite_failed(rc, "inbox_park", err);
}

/* ---- Outbox ------------------------------------------------------------ */

static int insert_row(const once_tx *tx, const once_message *m, const char *id,
                      uint64_t now, const uint8_t *fingerprint, int *inserted)
{
    return once__lite_run(
        tx, inserted,
        "INSERT INTO main.once_outbox(phase,kept,due_ms,at_ms,route,id,"
        "key,type,headers,body,fingerprint)"
        "VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)"
        " ON CONFLICT DO NOTHING",
        ONCE__NUMBER(m->due_ms > now), ONCE__NUMBER(m->keep || m->id != NULL),
        ONCE__NUMBER(m->due_ms), ONCE__NUMBER(now), ONCE__TEXT(m->route),
        ONCE__TEXT(id), ONCE__TEXT(m->key), ONCE__TEXT(once__text_of(m->type)),
        ONCE__TEXT(once__text_of(m->headers)),
        ONCE__BYTES(m->body.data, m->body.size), ONCE__SUM(fingerprint));
}

static int emitted_before(const once_tx *tx, const once_message *m,
                          const uint8_t *fingerprint, int *differs)
{
    struct once__stmt q =
        once__stmt(tx, "SELECT fingerprint IS NOT ?3 FROM main.once_outbox"
                       " WHERE route=?1 AND id=?2 AND kept=1");

    once__stmt_with(&q, ONCE__TEXT(m->route), ONCE__TEXT(m->id),
                    ONCE__SUM(fingerprint));
    if (once__stmt_next(&q))
        *differs = sqlite3_column_int(q.stmt, 0);
    return once__stmt_end(&q);
}

static int emit(const once_tx *tx, const once_message *m, char id[ONCE_ID_SIZE],
                once_error *err)
{
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint64_t now = once__lite_now();
    int rc, inserted = 0, differs = 1, kept = m->keep || m->id != NULL;

    if (m->id == NULL && !once__lite_draw_id(now, id))
        return once__fail(err, ONCE_ENOMEM, "emit: no random bytes");
    if (m->id != NULL)
        (void)snprintf(id, ONCE_ID_SIZE, "%s", m->id);
    rc = kept ? once__fingerprint_bytes(m->body, fingerprint, err) : ONCE_OK;
    if (rc != ONCE_OK)
        return rc;
    rc = insert_row(tx, m, id, now, kept ? fingerprint : NULL, &inserted);
    if (rc == SQLITE_OK && inserted) {
        once__lite_mark_outbox(tx);
        return ONCE_OK;
    }
    if (rc == SQLITE_OK && m->id != NULL)
        rc = emitted_before(tx, m, fingerprint, &differs);
    if (rc != SQLITE_OK)
        return once__lite_failed(rc, "emit", err);
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
    struct once__stmt q = once__stmt(
        tx, "SELECT phase FROM main.once_barrier WHERE gid=?1 AND branch=?2");

    *phase = NONE;
    once__stmt_with(&q, ONCE__TEXT(gid), ONCE__TEXT(branch));
    if (once__stmt_next(&q))
        *phase = sqlite3_column_int(q.stmt, 0);
    return once__stmt_end(&q);
}

static int set_phase(const once_tx *tx, const char *gid, const char *branch,
                     int phase, uint64_t now)
{
    return once__lite_run(tx, NULL,
                          "INSERT INTO main.once_barrier VALUES(?1,?2,?3,?4)"
                          " ON CONFLICT DO UPDATE SET phase=?3,"
                          "at_ms=max(at_ms,?4)",
                          ONCE__TEXT(gid), ONCE__TEXT(branch),
                          ONCE__NUMBER(phase), ONCE__NUMBER(now));
}

static int enter(const once_tx *tx, const char *gid, const char *branch, int op,
                 once_error *err)
{
    uint64_t now = once__lite_now(), gid_ms = once__id_ms(gid);
    int phase = NONE, old = 0;
    int rc = phase_of(tx, gid, branch, &phase);

    if (rc == SQLITE_OK && (phase < NONE || phase > NEVER_TRIED))
        return once__fail(err, ONCE_ECORRUPT, "barrier_enter: phase %d", phase);
    if (rc == SQLITE_OK && phase == NONE && op == ONCE_TRY && gid_ms > 0)
        rc = is_old(tx, gid_ms, now, &old);
    if (rc == SQLITE_OK && !old && moves[op][phase].to != 0)
        rc = set_phase(tx, gid, branch, moves[op][phase].to,
                       gid_ms > now ? gid_ms : now);
    if (rc != SQLITE_OK)
        return once__lite_failed(rc, "barrier_enter", err);
    return old ? ONCE_REFUSED : moves[op][phase].answer;
}

/* ---- Calls ------------------------------------------------------------- */

static int take_result(struct once__stmt *q, struct once__begun *out,
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
    struct once__stmt q =
        once__stmt(tx, "SELECT kind,result FROM main.once_inbox"
                       " WHERE consumer=?1 AND id=?2 AND result IS NOT NULL");
    int rc = ONCE_REPEATED, ended;

    once__stmt_with(&q, ONCE__TEXT(c->consumer), ONCE__TEXT(c->id));
    if (once__stmt_next(&q))
        rc = take_result(&q, out, err);
    ended = once__stmt_end(&q);
    return ended == SQLITE_OK ? rc : once__lite_failed(ended, "begin", err);
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
    int rc, changed;

    rc = once__lite_run(tx, &changed,
                        "UPDATE main.once_inbox SET kind=?3,result=?4"
                        " WHERE consumer=?1 AND id=?2 AND kind=0 AND xact=?5",
                        ONCE__TEXT(c->consumer), ONCE__TEXT(c->id),
                        ONCE__NUMBER(kind),
                        ONCE__BYTES(result.data, result.size),
                        ONCE__BYTES(b->xact, sizeof(b->xact)));
    if (rc != SQLITE_OK)
        return once__lite_failed(rc, "finish", err);
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
    int rc = once__lite_number(tx, "SELECT version FROM main.once_message_meta",
                               &version);

    if (rc == SQLITE_OK)
        rc = once__lite_durable(tx, &durable);
    if (rc != SQLITE_OK)
        return once__lite_failed(rc, "check", err);
    if (version != VERSION)
        return once__fail(err, ONCE_EVERSION,
                          "check: the tables are of version %lld",
                          (long long)version);
    if (!durable)
        return once__lite_not_durable("check", err);
    return once__shape_sqlite(tx, err);
}

/* The text takes what is older to this version. */
static int refuse_later(const once_tx *tx, int *code, once_error *err)
{
    int64_t version = 0;

    *code = once__lite_number(tx, "SELECT version FROM main.once_message_meta",
                              &version);
    if (version > VERSION)
        return once__fail(err, ONCE_EVERSION,
                          "init: the tables are of a later version, %lld",
                          (long long)version);
    return ONCE_OK;
}

static int init(const once_tx *tx, uint64_t keep_ms, once_error *err)
{
    static const char begin_[] = "BEGIN IMMEDIATE;";
    int64_t tables = 0;
    char *text = NULL;
    int rc = once_message_schema(ONCE_SQLITE, NULL, keep_ms, &text, err), code;

    if (rc != ONCE_OK)
        return rc;
    code = sqlite3_exec(tx->sqlite, begin_, NULL, NULL, NULL);
    if (code == SQLITE_OK)
        code = once__lite_number(tx,
                                 "SELECT count(*) FROM sqlite_schema"
                                 " WHERE name='once_message_meta'",
                                 &tables);
    if (code == SQLITE_OK && tables > 0)
        rc = refuse_later(tx, &code, err);
    if (code == SQLITE_OK && rc == ONCE_OK)
        code = sqlite3_exec(tx->sqlite, text, NULL, NULL, NULL);
    if (code == SQLITE_OK && rc == ONCE_OK)
        rc = once__shape_sqlite(tx, err);
    if (code == SQLITE_OK && rc == ONCE_OK)
        code = sqlite3_exec(tx->sqlite, "COMMIT", NULL, NULL, NULL);
    if (code != SQLITE_OK)
        rc = once__lite_failed(code, "init", err);
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

static void keep_text(struct once__stmt *q, int column, char out[ONCE_ID_SIZE])
{
    const char *text = (const char *)sqlite3_column_text(q->stmt, column);

    (void)snprintf(out, ONCE_ID_SIZE, "%s", once__text_of(text));
}

static int step_end(const once_tx *tx, const struct place *from,
                    struct place *to)
{
    struct once__stmt q =
        once__stmt(tx, "SELECT consumer,id FROM main.once_inbox"
                       " WHERE (consumer,id)>(?1,?2) ORDER BY consumer,id"
                       " LIMIT 1 OFFSET ?3");

    once__stmt_with(&q, ONCE__TEXT(from->consumer), ONCE__TEXT(from->id),
                    ONCE__NUMBER(STEP));
    to->last = !once__stmt_next(&q);
    if (!to->last) {
        keep_text(&q, 0, to->consumer);
        keep_text(&q, 1, to->id);
    }
    return once__stmt_end(&q);
}

static int purge_step(const once_tx *tx, const struct place *from,
                      const struct place *to, int *removed)
{
    return once__lite_run(
        tx, removed,
        "DELETE FROM main.once_inbox WHERE (consumer,id)>(?1,?2)"
        " AND (?5 OR (consumer,id)<=(?3,?4))"
        " AND at_ms<(SELECT floor_ms FROM main.once_message_meta)"
        " AND NOT EXISTS(SELECT 1 FROM main.once_parked k"
        " WHERE k.consumer=once_inbox.consumer AND k.id=once_inbox.id)",
        ONCE__TEXT(from->consumer), ONCE__TEXT(from->id),
        ONCE__TEXT(to->consumer), ONCE__TEXT(to->id), ONCE__NUMBER(to->last));
}

/* What was further ahead than the window counts from a window ahead of now. */
static int pull_back(const once_tx *tx, const struct place *from,
                     const struct place *to)
{
    return once__lite_run(
        tx, NULL,
        "UPDATE main.once_inbox SET at_ms=?6+m.keep_ms"
        " FROM main.once_message_meta m WHERE (consumer,id)>(?1,?2)"
        " AND (?5 OR (consumer,id)<=(?3,?4)) AND at_ms>?6+m.keep_ms",
        ONCE__TEXT(from->consumer), ONCE__TEXT(from->id),
        ONCE__TEXT(to->consumer), ONCE__TEXT(to->id), ONCE__NUMBER(to->last),
        ONCE__NUMBER(once__lite_now()));
}

/* Rows that are done and kept: as long as an id is remembered. */
static int purge_done(const once_tx *tx)
{
    int n = STEP, rc = SQLITE_OK;

    while (rc == SQLITE_OK && n == STEP) {
        rc = once__lite_run(
            tx, &n,
            "DELETE FROM main.once_outbox WHERE phase=2 AND seq IN("
            "SELECT o.seq FROM main.once_outbox o,main.once_message_meta m"
            " WHERE o.phase=2 AND o.due_ms<?1-m.keep_ms-?2"
            " AND o.saga IS NULL ORDER BY o.due_ms LIMIT ?3)",
            ONCE__NUMBER(once__lite_now()), ONCE__NUMBER(ONCE__SLACK_MS),
            ONCE__NUMBER(STEP));
    }
    return rc;
}

/* The steps go first: without their saga they would be found no more. */
static int purge_sagas(const once_tx *tx)
{
#define OVER                                                                   \
    "(SELECT gid FROM main.once_saga s WHERE state IN (3,4) AND since_ms<"     \
    "(SELECT floor_ms FROM main.once_message_meta) AND NOT EXISTS"             \
    "(SELECT 1 FROM main.once_outbox o WHERE o.saga=s.gid))"
    int rc = once__lite_run_values(
        tx, NULL, "DELETE FROM main.once_saga_step WHERE gid IN " OVER, NULL);

    if (rc != SQLITE_OK)
        return rc;
    return once__lite_run_values(
        tx, NULL, "DELETE FROM main.once_saga WHERE gid IN " OVER, NULL);
#undef OVER
}

/* Each statement is a transaction of its own, so that others get in between. */
static int purge(const once_tx *tx, uint64_t *removed, once_error *err)
{
    struct place from = {"", "", 0}, to = {"", "", 0};
    int rc, n = 0;

    rc = once__lite_run(tx, NULL,
                        "UPDATE main.once_message_meta"
                        " SET floor_ms=max(floor_ms,?1-keep_ms-?2)",
                        ONCE__NUMBER(once__lite_now()),
                        ONCE__NUMBER(ONCE__SLACK_MS));
    while (rc == SQLITE_OK && !to.last) {
        rc = step_end(tx, &from, &to);
        if (rc == SQLITE_OK)
            rc = purge_step(tx, &from, &to, &n);
        *removed += (uint64_t)n;
        if (rc == SQLITE_OK)
            rc = pull_back(tx, &from, &to);
        from = to;
    }
    if (rc == SQLITE_OK)
        rc = once__lite_run_values(
            tx, NULL,
            "DELETE FROM main.once_barrier WHERE phase>1 AND at_ms<"
            "(SELECT floor_ms-keep_ms FROM main.once_message_meta)",
            NULL);
    if (rc == SQLITE_OK)
        rc = purge_sagas(tx);
    if (rc == SQLITE_OK)
        rc = purge_done(tx);
    return rc == SQLITE_OK ? ONCE_OK : once__lite_failed(rc, "purge", err);
}

const struct once__backend once__message_sqlite = {
    open_, once__lite_idle, init,  check, purge, claim, park,
    emit,  enter,           begin, finish};
