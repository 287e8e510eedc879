/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga_mysql.c - sagas on MySQL and MariaDB: what saga_postgres.c asks of functions, as
 * statements. They read and write and decide nothing.
 *
 * What starts a saga is a statement of the program's own account, which needs SELECT
 * and INSERT on once_saga, once_saga_step and once_outbox.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "messages/tables/rows.h"
#include "messages/tables/saga.h"

/* ---- Calls ---------------------------------------------------------------- */

/* The body's fingerprint is not needed: no other call has this id. */
static int call(const once_tx *tx, const char *gid,
                const struct once__saga_call *c, once_error *err)
{
    struct once__saga_name name = once__saga_name(gid, c);
    uint64_t made = 0;
    int rc;

    rc = once__mysql_run(
        tx, "saga", &made, err,
        "INSERT INTO once_outbox(phase,kept,due_ms,at_ms,route,id,saga,type,"
        "headers,body,fingerprint) SELECT 0,1,0,?4,CASE ?3 WHEN 1 THEN try_to"
        " WHEN 2 THEN confirm_to ELSE cancel_to END,?5,?1,type,?6,body,"
        "UNHEX(SHA2(body,256)) FROM once_saga_step WHERE gid=?1 AND branch=?2",
        ONCE__TEXT(gid), ONCE__NUMBER(c->step + 1), ONCE__NUMBER(c->op),
        ONCE__NOW, ONCE__TEXT(name.id), ONCE__TEXT(name.headers));
    if (rc == ONCE_REPEATED)
        return once__fail(err, ONCE_EOPEN,
                          "saga: a row of the outbox has the id of its call");
    return rc != ONCE_OK || made == 1
               ? rc
               : once__fail(err, ONCE_ECORRUPT, "saga: a step is missing");
}

/* ---- Starting ------------------------------------------------------------- */

#define DIFFERS "SELECT fingerprint<>?2 FROM once_saga WHERE gid=?1"

struct beginning {
    const once_saga *saga;
    const char *gid;
    uint64_t now, deadline;
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
};

/* Error 1305 is what the server says here of a savepoint that is gone at once. */
static int check_open(const once_tx *tx, once_error *err)
{
    int rc = once__mysql_durable(tx, "saga_start", err);

    if (rc == ONCE_OK)
        rc = once__mysql_run_values(tx, "saga_start", NULL, err,
                                    "SAVEPOINT once_open", NULL);
    if (rc == ONCE_OK &&
        once__mysql_run_values(tx, "saga_start", NULL, NULL,
                               "RELEASE SAVEPOINT once_open", NULL) != ONCE_OK)
        rc = once__fail(err, ONCE_ETX, "tx: no transaction is open");
    return rc;
}

/* What can be read may not be durable yet: the caller's COMMIT waits for it. */
static int touch(const once_tx *tx, once_error *err)
{
    uint64_t touched = 0;
    int rc = once__mysql_run_values(tx, "saga_start", &touched, err,
                                    "UPDATE once_message_touch SET"
                                    " n=(n+1)&4294967295"
                                    " WHERE slot=CONNECTION_ID() & 255",
                                    NULL);

    return rc != ONCE_OK || touched == 1
               ? rc
               : once__fail(
                     err, ONCE_EVERSION,
                     "saga_start: a row of once_message_touch is missing:"
                     " `once messages init`");
}

/* `sql` reads with a lock where others may have committed since this transaction
 * began. ONCE_FREE: there is none. */
static int started_before(const once_tx *tx, const struct beginning *b,
                          const char *sql, once_error *err)
{
    struct once__mysql q = once__mysql(tx, "saga_start", sql);
    int answer = ONCE_FREE, rc;

    once__mysql_with(&q, ONCE__TEXT(b->gid), ONCE__SUM(b->fingerprint));
    if (once__mysql_next(&q, err))
        answer = once__mysql_int(&q, 0) ? ONCE_MISMATCH : ONCE_REPEATED;
    rc = once__mysql_end(&q, err);
    if (rc == ONCE_OK && answer != ONCE_FREE)
        rc = touch(tx, err);
    return rc == ONCE_OK ? answer : rc;
}

static int insert_saga(const once_tx *tx, const struct beginning *b,
                       once_error *err)
{
    return once__mysql_run(
        tx, "saga_start", NULL, err,
        "INSERT INTO once_saga(gid,kind,state,version,deadline_ms,at_ms,"
        "since_ms,fingerprint) VALUES(?1,?2,0,1,?3,?4,?4,?5)",
        ONCE__TEXT(b->gid), ONCE__TEXT(b->saga->kind),
        ONCE__NUMBER(b->deadline), ONCE__NUMBER(b->now),
        ONCE__SUM(b->fingerprint));
}

static int insert_step(const once_tx *tx, const struct beginning *b, size_t i,
                       int state, once_error *err)
{
    const once_saga_step *t = &b->saga->steps[i];

    return once__mysql_run(
        tx, "saga_start", NULL, err,
        "INSERT INTO once_saga_step(gid,branch,state,try_to,confirm_to,"
        "cancel_to,type,body) VALUES(?1,?2,?3,?4,?5,?6,?7,?8)",
        ONCE__TEXT(b->gid), ONCE__NUMBER(i + 1), ONCE__NUMBER(state),
        ONCE__TEXT(t->try_to), ONCE__TEXT(t->confirm_to),
        ONCE__TEXT(t->cancel_to), ONCE__TEXT(once__text_of(t->type)),
        ONCE__BYTES(t->body.data, t->body.size));
}

static int insert_all(const once_tx *tx, const struct beginning *b,
                      once_error *err)
{
    struct once__saga s = {.n = b->saga->n};
    struct once__saga_event e = {.what = ONCE__SAGA_BEGIN};
    struct once__saga_next next = once__saga_next(&s, &e);
    int rc = insert_saga(tx, b, err);
    size_t i;

    if (rc == ONCE_REPEATED) /* another has started it meanwhile */
        return started_before(tx, b, DIFFERS " LOCK IN SHARE MODE", err);
    for (i = 0; rc == ONCE_OK && i < s.n; i++)
        rc = insert_step(tx, b, i, s.step[i].state, err);
    for (i = 0; rc == ONCE_OK && i < next.n; i++)
        rc = call(tx, b->gid, &next.call[i], err);
    return rc;
}

/* The time, how long ids are remembered, and before what time they are refused. */
static int read_window(const once_tx *tx, struct beginning *b, uint64_t *keep,
                       uint64_t *oldest, once_error *err)
{
    struct once__mysql q =
        once__mysql(tx, "saga_start",
                    "SELECT t.now,keep_ms,greatest(t.now-keep_ms,floor_ms)"
                    " FROM once_message_meta,(SELECT ?1 AS now) t");

    once__mysql_with(&q, ONCE__NOW);
    if (once__mysql_next(&q, err)) {
        b->now = (uint64_t)once__mysql_int(&q, 0);
        *keep = (uint64_t)once__mysql_int(&q, 1);
        *oldest = (uint64_t)once__mysql_int(&q, 2);
    }
    return once__mysql_end(&q, err);
}

static int start_at(const once_tx *tx, struct beginning *b, once_error *err)
{
    uint64_t keep = ONCE__KEEP_MS, oldest = 0, half;
    int rc = read_window(tx, b, &keep, &oldest, err);

    if (rc != ONCE_OK)
        return rc;
    half = keep / 2 < 3600000 ? keep / 2 : 3600000;
    b->deadline =
        b->saga->deadline_ms != 0 ? b->saga->deadline_ms : b->now + half;
    if (b->deadline >= b->now + keep)
        return once__fail(err, ONCE_EINVAL,
                          "deadline_ms: it is after the window in which ids "
                          "are remembered");
    rc = started_before(tx, b, DIFFERS, err);
    if (rc != ONCE_FREE)
        return rc;
    if (once__id_ms(b->gid) > 0 && once__id_ms(b->gid) < oldest)
        return ONCE_OUTSIDE;
    return insert_all(tx, b, err);
}

static int start(const once_tx *tx, const once_saga *saga, const char *json,
                 char gid[ONCE_ID_SIZE], once_error *err)
{
    struct beginning b = {.saga = saga, .gid = gid};
    int rc = once__saga_fingerprint(saga, json, b.fingerprint, err);

    if (rc == ONCE_OK)
        rc = check_open(tx, err);
    if (rc != ONCE_OK)
        return rc;
    if (saga->gid != NULL)
        (void)snprintf(gid, ONCE_ID_SIZE, "%s", saga->gid);
    else if (!once__lite_draw_id(once__lite_now(), gid))
        return once__fail(err, ONCE_ENOMEM, "saga_start: no random bytes");
    return once__mysql_no_wait(start_at(tx, &b, err), "saga_start", err);
}

/* ---- Moving on ------------------------------------------------------------ */

/* since_ms first: an assignment sees those before it. */
static int write_saga(const once_tx *tx, const char *gid,
                      const struct once__saga_plan *plan, uint64_t *written,
                      once_error *err)
{
    return once__mysql_run(
        tx, "saga", written, err,
        "UPDATE once_saga SET since_ms=CASE state WHEN ?3 THEN since_ms"
        " ELSE ?4 END,version=version+1,state=?3,note=coalesce(?5,note)"
        " WHERE gid=?1 AND version=?2",
        ONCE__TEXT(gid), ONCE__NUMBER(plan->version),
        ONCE__NUMBER(plan->after.state), ONCE__NOW, ONCE__TEXT(plan->note));
}

static int write_step(const once_tx *tx, const char *gid, size_t i,
                      const struct once__step *t, once_error *err)
{
    return once__mysql_run(
        tx, "saga", NULL, err,
        "UPDATE once_saga_step SET state=?3,failed=?4,round=?5"
        " WHERE gid=?1 AND branch=?2",
        ONCE__TEXT(gid), ONCE__NUMBER(i + 1), ONCE__NUMBER(t->state),
        ONCE__NUMBER(t->failed), ONCE__NUMBER(t->round));
}

/* A call whose end the row does not hold. */
static int settle_call(const once_tx *tx, const char *gid,
                       const struct once__saga_taken *t, uint64_t *taken,
                       once_error *err)
{
    const struct once__settlement *how = t->seen->how;
    char error[ONCE_ID_SIZE];
    int rc;

    once__copy_visible(error, once__text_of(how->error));
    rc = once__mysql_run(
        tx, "saga", NULL, err,
        "UPDATE once_saga_step SET status=?3,reply=?4,error=?5"
        " WHERE gid=?1 AND branch=?2",
        ONCE__TEXT(gid), ONCE__NUMBER(t->branch), ONCE__NUMBER(how->status),
        ONCE__MAYBE(how->reply.data, how->reply.size), ONCE__TEXT(error));
    if (rc != ONCE_OK)
        return rc;
    return once__mysql_run(tx, "saga", taken, err,
                           "DELETE FROM once_outbox" ONCE__UNSETTLED
                           " AND saga=?3",
                           ONCE__NUMBER(t->seen->seq),
                           ONCE__NUMBER(t->seen->attempts), ONCE__TEXT(gid));
}

static int take_call(const once_tx *tx, const char *gid,
                     const struct once__saga_taken *t, uint64_t *taken,
                     once_error *err)
{
    int rc;

    if (t->seen->how != NULL)
        return settle_call(tx, gid, t, taken, err);
    rc = once__mysql_run(
        tx, "saga", NULL, err,
        "UPDATE once_saga_step t JOIN once_outbox o ON o.seq=?3 SET"
        " t.status=o.status,t.reply=o.reply,t.error=o.error"
        " WHERE t.gid=?1 AND t.branch=?2",
        ONCE__TEXT(gid), ONCE__NUMBER(t->branch), ONCE__NUMBER(t->seen->seq));

    if (rc != ONCE_OK)
        return rc;
    return once__mysql_run(
        tx, "saga", taken, err,
        "DELETE FROM once_outbox WHERE seq=?1 AND saga=?2 AND phase=?3"
        " AND attempts=?4",
        ONCE__NUMBER(t->seen->seq), ONCE__TEXT(gid),
        ONCE__NUMBER(t->seen->phase), ONCE__NUMBER(t->seen->attempts));
}

struct writing {
    const char *gid;
    const struct once__saga_plan *plan;
};

/* ONCE_AGAIN: something has changed since it was read. */
static int write_work(const once_tx *tx, void *user, once_error *err)
{
    const struct writing *w = user;
    const struct once__saga_plan *plan = w->plan;
    uint64_t same = 0;
    int rc = write_saga(tx, w->gid, plan, &same, err);
    size_t i;

    for (i = 0; rc == ONCE_OK && same && i < plan->n_taken; i++)
        rc = take_call(tx, w->gid, &plan->taken[i], &same, err);
    if (rc == ONCE_OK && !same)
        return ONCE_AGAIN;
    for (i = 0; rc == ONCE_OK && i < plan->after.n; i++)
        rc = write_step(tx, w->gid, i, &plan->after.step[i], err);
    for (i = 0; rc == ONCE_OK && i < plan->n_calls; i++)
        rc = call(tx, w->gid, &plan->calls[i], err);
    return rc;
}

static int write_(const once_tx *tx, const char *gid,
                  const struct once__saga_plan *plan, once_error *err)
{
    struct writing w = {gid, plan};

    return once__mysql_transaction(tx, "saga", write_work, &w, err);
}

const struct once__saga_ops once__saga_mysql = {start, write_};
