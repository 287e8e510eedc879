/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga_rows.c - what is read of sagas, with one statement in any database.
 */
#include "messages/tables/saga.h"

#include <string.h>

#include "messages/tables/either.h"

/* The connection is one of ours. */
static int check(const once_tx *tx, once_error *err)
{
    const struct once__backend *b = NULL;

    return once__tx_backend(tx, &b, err);
}

/* ---- For the relay ------------------------------------------------------ */

enum { WHAT, NO, STATE, N, M, FLAGS, ID };
enum { A_SAGA, A_STEP, A_CALL };

static void read_row(struct once__either *q, struct once__saga_now *out)
{
    struct once__step *t = &out->saga.step[out->saga.n];
    struct once__saga_seen *seen = &out->seen[out->n];
    int64_t flags = once__either_int(q, FLAGS);

    switch (once__either_int(q, WHAT)) {
    case A_SAGA:
        out->version = once__either_int(q, NO);
        out->saga.state = (int)once__either_int(q, STATE);
        out->late = (int)once__either_int(q, N);
        break;
    case A_STEP:
        if (out->saga.n == ONCE_SAGA_STEPS_MAX)
            break;
        /* One that is missing: check_read() refuses that. */
        t->state = once__either_int(q, NO) == (int64_t)out->saga.n + 1
                       ? (int)once__either_int(q, STATE)
                       : -1;
        t->failed = (int)once__either_int(q, N);
        t->round = (uint32_t)once__either_int(q, M);
        t->has_confirm = flags & 1;
        t->has_cancel = (flags & 2) != 0;
        out->saga.n++;
        break;
    default:
        if (out->n == ONCE__SAGA_CALLS_MAX)
            break;
        seen->seq = once__either_int(q, NO);
        seen->phase = (int)once__either_int(q, STATE);
        seen->attempts = (uint32_t)once__either_int(q, N);
        once__either_copy(q, ID, seen->id, sizeof(seen->id));
        out->n++;
    }
}

/* As saga_read_1() in pg.sql, which says what the columns are. */
static const char read_lite[] =
    "SELECT 0,version,state,deadline_ms<=?2,0,0,'' FROM main.once_saga"
    " WHERE gid=?1"
    " UNION ALL SELECT 1,branch,state,failed,round,"
    "(confirm_to IS NOT NULL)+2*(cancel_to IS NOT NULL),''"
    " FROM main.once_saga_step WHERE gid=?1"
    " UNION ALL SELECT 2,seq,phase,attempts,0,0,id FROM main.once_outbox"
    " WHERE saga=?1 AND (phase>0 OR lease_ms-?2 NOT BETWEEN 1 AND 3600000)"
    " ORDER BY 1,2";

int once__saga_read(const once_tx *tx, const char *gid,
                    struct once__saga_now *out, once_error *err)
{
    struct once__either q;
    int rc;

    memset(out, 0, sizeof(*out));
    once__either(&q, tx, "saga", "SELECT * FROM @.saga_read_1($1)", read_lite,
                 err);
    once__either_with(&q, ONCE__TEXT(gid), ONCE__NOW);
    while (once__either_next(&q))
        read_row(&q, out);
    rc = once__either_end(&q);
    if (rc != ONCE_OK)
        return rc;
    return out->version > 0 ? ONCE_OK : ONCE_FREE;
}

int once__saga_gids(const once_tx *tx, char (*gids)[ONCE__GID_SIZE], size_t *n,
                    once_error *err)
{
    struct once__either q;
    size_t most = *n;

    once__either(&q, tx, "saga_due", "SELECT * FROM @.saga_due_1($1)",
                 "SELECT saga FROM main.once_outbox"
                 " WHERE saga IS NOT NULL AND phase IN (2,3,4)"
                 " UNION SELECT gid FROM main.once_saga WHERE state=0"
                 " AND deadline_ms<=?2 LIMIT ?1",
                 err);
    once__either_with(&q, ONCE__NUMBER(most), ONCE__NOW);
    for (*n = 0; *n < most && once__either_next(&q); ++*n)
        once__either_copy(&q, 0, gids[*n], ONCE__GID_SIZE);
    return once__either_end(&q);
}

/* ---- For operators ------------------------------------------------------ */

static void read_saga(struct once__either *q, struct once__saga_row *s)
{
    once__either_copy(q, 0, s->gid, sizeof(s->gid));
    once__either_copy(q, 1, s->kind, sizeof(s->kind));
    once__either_copy(q, 2, s->note, sizeof(s->note));
    s->state = (int)once__either_int(q, 3);
    s->version = (uint32_t)once__either_int(q, 4);
    s->steps = (uint32_t)once__either_int(q, 5);
    s->deadline_ms = (uint64_t)once__either_int(q, 6);
    s->at_ms = (uint64_t)once__either_int(q, 7);
    s->since_ms = (uint64_t)once__either_int(q, 8);
}

/* `gid` NULL: all, as `filter` says. */
static int list(const once_tx *tx, const char *gid,
                const struct once__saga_filter *filter,
                struct once__saga_row *rows, size_t *n, once_error *err)
{
    struct once__either q;
    size_t most = *n;
    int rc = check(tx, err);

    if (rc != ONCE_OK)
        return rc;
    once__either(&q, tx, "saga_list",
                 "SELECT * FROM @.saga_list_1($1,nullif($2::int,-1),$3,$4)",
                 "SELECT gid,kind,note,state,version,(SELECT count(*)"
                 " FROM main.once_saga_step t WHERE t.gid=s.gid),deadline_ms,"
                 "at_ms,since_ms FROM main.once_saga s WHERE gid>?3"
                 " AND (?1 IS NULL OR gid=?1) AND (?2<0 OR state=?2)"
                 " ORDER BY gid LIMIT ?4",
                 err);
    once__either_with(&q, ONCE__TEXT(gid), ONCE__NUMBER(filter->state),
                      ONCE__TEXT(once__text_of(filter->after)),
                      ONCE__NUMBER(most));
    for (*n = 0; *n < most && once__either_next(&q); ++*n)
        read_saga(&q, &rows[*n]);
    return once__either_end(&q);
}

int once__saga_list(const once_tx *tx, const struct once__saga_filter *filter,
                    struct once__saga_row *rows, size_t *n, once_error *err)
{
    return list(tx, NULL, filter, rows, n, err);
}

static void read_step(struct once__either *q, struct once__saga_step_row *t)
{
    once__either_copy(q, 0, t->try_to, sizeof(t->try_to));
    once__either_copy(q, 1, t->confirm_to, sizeof(t->confirm_to));
    once__either_copy(q, 2, t->cancel_to, sizeof(t->cancel_to));
    once__either_copy(q, 3, t->error, sizeof(t->error));
    once__either_copy(q, 4, t->trouble, sizeof(t->trouble));
    t->step.state = (int)once__either_int(q, 5);
    t->step.failed = (int)once__either_int(q, 6);
    t->step.round = (uint32_t)once__either_int(q, 7);
    t->step.has_confirm = t->confirm_to[0] != '\0';
    t->step.has_cancel = t->cancel_to[0] != '\0';
    t->status = (int)once__either_int(q, 8);
    t->seq = once__either_int(q, 9);
    t->phase = (int)once__either_int(q, 10);
    t->attempts = (uint32_t)once__either_int(q, 11);
}

#define STEPS(id)                                                              \
    "SELECT try_to,confirm_to,cancel_to,t.error,o.error,t.state,"              \
    "failed,round,t.status,o.seq,o.phase,o.attempts"                           \
    " FROM main.once_saga_step t LEFT JOIN main.once_outbox o ON o.saga=?1"    \
    " AND o.id=" id " WHERE t.gid=?1 ORDER BY branch"
static const char steps_my[] =
    STEPS("concat(?1,'/',branch,CASE t.state WHEN 1 THEN '/try'"
          " WHEN 3 THEN '/confirm' WHEN 5 THEN '/cancel' END,"
          "CASE round WHEN 0 THEN '' ELSE concat('/',round) END)");
static const char steps_lite[] =
    STEPS("?1||'/'||branch||CASE t.state WHEN 1 THEN '/try'"
          " WHEN 3 THEN '/confirm' WHEN 5 THEN '/cancel' END"
          "||CASE round WHEN 0 THEN '' ELSE '/'||round END");

int once__saga_get(const once_tx *tx, const char *gid,
                   struct once__saga_row *row,
                   struct once__saga_step_row steps[ONCE_SAGA_STEPS_MAX],
                   once_error *err)
{
    const struct once__saga_filter all = {-1, NULL};
    struct once__either q;
    size_t n = 1;
    int rc = list(tx, gid, &all, row, &n, err);

    if (rc != ONCE_OK || n == 0)
        return rc != ONCE_OK ? rc : ONCE_FREE;
    once__either(&q, tx, "saga_steps", "SELECT * FROM @.saga_steps_1($1)",
                 once__either_lite(tx, steps_lite, steps_my), err);
    once__either_with(&q, ONCE__TEXT(gid));
    for (n = 0; n < ONCE_SAGA_STEPS_MAX && once__either_next(&q); n++)
        read_step(&q, &steps[n]);
    row->steps = (uint32_t)n;
    return once__either_end(&q);
}

#define STATS(greatest)                                                        \
    "SELECT sum(state=0),sum(state=1),sum(state=2),sum(state=5)," greatest     \
    "(0,?1-min(CASE WHEN state=5 THEN since_ms END)) FROM main.once_saga"      \
    " WHERE state IN (0,1,2,5)"

int once__saga_stats(const once_tx *tx, struct once__saga_count *out,
                     once_error *err)
{
    struct once__either q;
    int rc = check(tx, err);

    *out = (struct once__saga_count){{0}, 0};
    if (rc != ONCE_OK)
        return rc;
    once__either(&q, tx, "saga_stats", "SELECT * FROM @.saga_stats_1()",
                 once__either_lite(tx, STATS("max"), STATS("greatest")), err);
    once__either_with(&q, ONCE__NOW);
    if (once__either_next(&q)) {
        out->n[ONCE__SAGA_GOING] = (uint64_t)once__either_int(&q, 0);
        out->n[ONCE__SAGA_CONFIRMING] = (uint64_t)once__either_int(&q, 1);
        out->n[ONCE__SAGA_UNDOING] = (uint64_t)once__either_int(&q, 2);
        out->n[ONCE__SAGA_STUCK] = (uint64_t)once__either_int(&q, 3);
        out->stuck_ms = (uint64_t)once__either_int(&q, 4);
    }
    return once__either_end(&q);
}
