/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga_sqlite.c - sagas on SQLite: what saga_postgres.c asks of functions, as statements.
 * They read and write and decide nothing.
 */
#include <stdio.h>

#include "base/error.h"
#include "messages/tables/rows.h"
#include "messages/tables/saga.h"

static void text(struct once__stmt *q, int column, char *out, size_t size)
{
    const char *value = (const char *)sqlite3_column_text(q->stmt, column);

    (void)snprintf(out, size, "%s", once__text_of(value));
}

static int64_t number(struct once__stmt *q, int column)
{
    return sqlite3_column_int64(q->stmt, column);
}

/* ---- Calls ---------------------------------------------------------------- */

/* Where a call goes. */
static int find_route(const once_tx *tx, const char *gid,
                      const struct once__saga_call *c, char out[ONCE_ID_SIZE])
{
    struct once__stmt q = once__stmt(
        tx, "SELECT CASE ?3 WHEN 1 THEN try_to WHEN 2 THEN confirm_to"
            " ELSE cancel_to END FROM main.once_saga_step WHERE gid=?1 AND "
            "branch=?2");

    once__stmt_with(&q, ONCE__TEXT(gid), ONCE__NUMBER(c->step + 1),
                    ONCE__NUMBER(c->op));
    if (once__stmt_next(&q))
        text(&q, 0, out, ONCE_ID_SIZE);
    return once__stmt_end(&q);
}

/* The body's fingerprint is not needed: no other call has this id. */
static int call(const once_tx *tx, const char *gid,
                const struct once__saga_call *c)
{
    struct once__saga_name name = once__saga_name(gid, c);
    char route[ONCE_ID_SIZE] = "";
    int rc = find_route(tx, gid, c, route), made = 0;

    if (rc != SQLITE_OK)
        return rc;
    rc = once__lite_run(
        tx, &made,
        "INSERT INTO main.once_outbox(phase,kept,due_ms,at_ms,route,"
        "id,saga,type,headers,body)"
        "SELECT 0,1,0,?3,?4,?5,?1,type,?6,body"
        " FROM main.once_saga_step WHERE gid=?1 AND branch=?2",
        ONCE__TEXT(gid), ONCE__NUMBER(c->step + 1),
        ONCE__NUMBER(once__lite_now()), ONCE__TEXT(route), ONCE__TEXT(name.id),
        ONCE__TEXT(name.headers));
    return rc != SQLITE_OK || made == 1 ? rc : SQLITE_CORRUPT;
}

/* ---- Starting ------------------------------------------------------------- */

struct beginning {
    const once_saga *saga;
    const char *gid;
    uint64_t now, deadline;
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
};

static int started_before(const once_tx *tx, const struct beginning *b,
                          int *found, int *differs)
{
    struct once__stmt q = once__stmt(
        tx, "SELECT fingerprint<>?2 FROM main.once_saga WHERE gid=?1");

    once__stmt_with(&q, ONCE__TEXT(b->gid), ONCE__SUM(b->fingerprint));
    *found = once__stmt_next(&q);
    if (*found)
        *differs = (int)number(&q, 0);
    return once__stmt_end(&q);
}

static int insert_saga(const once_tx *tx, const struct beginning *b)
{
    return once__lite_run(
        tx, NULL, "INSERT INTO main.once_saga VALUES(?1,?2,0,1,?3,?4,?4,?5,'')",
        ONCE__TEXT(b->gid), ONCE__TEXT(b->saga->kind),
        ONCE__NUMBER(b->deadline), ONCE__NUMBER(b->now),
        ONCE__SUM(b->fingerprint));
}

static int insert_step(const once_tx *tx, const struct beginning *b, size_t i,
                       int state)
{
    const once_saga_step *t = &b->saga->steps[i];
    return once__lite_run(
        tx, NULL,
        "INSERT INTO main.once_saga_step(gid,branch,state,try_to,"
        "confirm_to,cancel_to,type,body)"
        "VALUES(?1,?2,?3,?4,?5,?6,?7,?8)",
        ONCE__TEXT(b->gid), ONCE__NUMBER(i + 1), ONCE__NUMBER(state),
        ONCE__TEXT(t->try_to), ONCE__TEXT(t->confirm_to),
        ONCE__TEXT(t->cancel_to), ONCE__TEXT(once__text_of(t->type)),
        ONCE__BYTES(t->body.data, t->body.size));
}

static int insert_all(const once_tx *tx, const struct beginning *b)
{
    struct once__saga s = {.n = b->saga->n};
    struct once__saga_event e = {.what = ONCE__SAGA_BEGIN};
    struct once__saga_next next = once__saga_next(&s, &e);
    int rc = insert_saga(tx, b);
    size_t i;

    for (i = 0; rc == SQLITE_OK && i < s.n; i++)
        rc = insert_step(tx, b, i, s.step[i].state);
    for (i = 0; rc == SQLITE_OK && i < next.n; i++)
        rc = call(tx, b->gid, &next.call[i]);
    return rc;
}

/* How long ids are remembered, and before what time they are refused. */
static int read_window(const once_tx *tx, uint64_t now, uint64_t *keep,
                       uint64_t *oldest)
{
    struct once__stmt q =
        once__stmt(tx, "SELECT keep_ms,max(?1-keep_ms,"
                       "floor_ms) FROM main.once_message_meta");

    once__stmt_with(&q, ONCE__NUMBER(now));
    if (once__stmt_next(&q)) {
        *keep = (uint64_t)number(&q, 0);
        *oldest = (uint64_t)number(&q, 1);
    }
    return once__stmt_end(&q);
}

static int start(const once_tx *tx, const once_saga *saga, const char *json,
                 char gid[ONCE_ID_SIZE], once_error *err)
{
    struct beginning b = {.saga = saga, .gid = gid, .now = once__lite_now()};
    uint64_t keep = ONCE__KEEP_MS, oldest = 0, half;
    int found = 0, differs = 0, code;
    int rc = once__saga_fingerprint(saga, json, b.fingerprint, err);

    if (rc != ONCE_OK)
        return rc;
    if (saga->gid == NULL && !once__lite_draw_id(b.now, gid))
        return once__fail(err, ONCE_ENOMEM, "saga_start: no random bytes");
    if (saga->gid != NULL)
        (void)snprintf(gid, ONCE_ID_SIZE, "%s", saga->gid);
    code = read_window(tx, b.now, &keep, &oldest);
    half = keep / 2 < 3600000 ? keep / 2 : 3600000;
    b.deadline = saga->deadline_ms != 0 ? saga->deadline_ms : b.now + half;
    if (code == SQLITE_OK && b.deadline >= b.now + keep)
        return once__fail(err, ONCE_EINVAL,
                          "deadline_ms: it is after the window in which ids "
                          "are remembered");
    if (code == SQLITE_OK)
        code = started_before(tx, &b, &found, &differs);
    if (code == SQLITE_OK && found)
        return differs ? ONCE_MISMATCH : ONCE_REPEATED;
    if (code == SQLITE_OK && once__id_ms(gid) > 0 && once__id_ms(gid) < oldest)
        return ONCE_OUTSIDE;
    if (code == SQLITE_OK)
        code = insert_all(tx, &b);
    return code == SQLITE_OK ? ONCE_OK
                             : once__lite_failed(code, "saga_start", err);
}

/* ---- Moving on ------------------------------------------------------------ */

static int write_saga(const once_tx *tx, const char *gid,
                      const struct once__saga_plan *plan, int *written)
{
    return once__lite_run(
        tx, written,
        "UPDATE main.once_saga SET version=version+1,state=?3,"
        "since_ms=CASE state WHEN ?3 THEN since_ms ELSE ?4 END,"
        "note=coalesce(?5,note) WHERE gid=?1 AND version=?2",
        ONCE__TEXT(gid), ONCE__NUMBER(plan->version),
        ONCE__NUMBER(plan->after.state), ONCE__NUMBER(once__lite_now()),
        ONCE__TEXT(plan->note));
}

static int write_step(const once_tx *tx, const char *gid, size_t i,
                      const struct once__step *t)
{
    return once__lite_run(
        tx, NULL,
        "UPDATE main.once_saga_step SET state=?3,failed=?4,round=?5"
        " WHERE gid=?1 AND branch=?2",
        ONCE__TEXT(gid), ONCE__NUMBER(i + 1), ONCE__NUMBER(t->state),
        ONCE__NUMBER(t->failed), ONCE__NUMBER(t->round));
}

/* A call whose end the row does not hold. */
static int settle_call(const once_tx *tx, const char *gid,
                       const struct once__saga_taken *t, int *taken)
{
    const struct once__settlement *how = t->seen->how;
    char error[ONCE_ID_SIZE];
    int rc;

    once__copy_visible(error, once__text_of(how->error));
    rc = once__lite_run(
        tx, NULL,
        "UPDATE main.once_saga_step SET status=?3,reply=?4,error=?5"
        " WHERE gid=?1 AND branch=?2",
        ONCE__TEXT(gid), ONCE__NUMBER(t->branch), ONCE__NUMBER(how->status),
        ONCE__MAYBE(how->reply.data, how->reply.size), ONCE__TEXT(error));
    if (rc != SQLITE_OK)
        return rc;
    return once__lite_run(tx, taken,
                          "DELETE FROM main.once_outbox" ONCE__UNSETTLED
                          " AND saga=?3",
                          ONCE__NUMBER(t->seen->seq),
                          ONCE__NUMBER(t->seen->attempts), ONCE__TEXT(gid));
}

static int take_call(const once_tx *tx, const char *gid,
                     const struct once__saga_taken *t, int *taken)
{
    int rc;

    if (t->seen->how != NULL)
        return settle_call(tx, gid, t, taken);
    rc = once__lite_run(
        tx, NULL,
        "UPDATE main.once_saga_step SET (status,reply,error)="
        "(SELECT status,reply,error FROM main.once_outbox WHERE seq=?3)"
        " WHERE gid=?1 AND branch=?2",
        ONCE__TEXT(gid), ONCE__NUMBER(t->branch), ONCE__NUMBER(t->seen->seq));
    if (rc != SQLITE_OK)
        return rc;
    return once__lite_run(
        tx, taken,
        "DELETE FROM main.once_outbox WHERE seq=?1 AND saga=?2"
        " AND phase=?3 AND attempts=?4",
        ONCE__NUMBER(t->seen->seq), ONCE__TEXT(gid),
        ONCE__NUMBER(t->seen->phase), ONCE__NUMBER(t->seen->attempts));
}

struct writing {
    const char *gid;
    const struct once__saga_plan *plan;
    int changed; /* out: something has, since it was read */
};

static int write_work(const once_tx *tx, void *user)
{
    struct writing *w = user;
    const struct once__saga_plan *plan = w->plan;
    int same = 0, rc = write_saga(tx, w->gid, plan, &same);
    size_t i;

    for (i = 0; rc == SQLITE_OK && same && i < plan->n_taken; i++)
        rc = take_call(tx, w->gid, &plan->taken[i], &same);
    w->changed = rc == SQLITE_OK && !same;
    if (w->changed)
        return SQLITE_ABORT;
    for (i = 0; rc == SQLITE_OK && i < plan->after.n; i++)
        rc = write_step(tx, w->gid, i, &plan->after.step[i]);
    for (i = 0; rc == SQLITE_OK && i < plan->n_calls; i++)
        rc = call(tx, w->gid, &plan->calls[i]);
    return rc;
}

static int write_(const once_tx *tx, const char *gid,
                  const struct once__saga_plan *plan, once_error *err)
{
    struct writing w = {gid, plan, 0};
    int rc = once__lite_transaction(tx, "saga", write_work, &w, err);

    return w.changed ? ONCE_AGAIN : rc;
}

const struct once__saga_ops once__saga_sqlite = {start, write_};
