/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga_postgres.c - sagas on PostgreSQL: calls the functions of pg.sql, which read and
 * write and decide nothing.
 */
#ifdef ONCE_WITH_POSTGRES

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "message/query.h"
#include "message/saga.h"

/* ---- Fields --------------------------------------------------------------- */

static int64_t number(const PGresult *r, int row, int column)
{
    const uint8_t *p = (const uint8_t *)PQgetvalue(r, row, column);
    uint64_t n = 0;
    int i, size = PQgetlength(r, row, column);

    for (i = 0; i < size && i < 8; i++)
        n = n << 8 | p[i];
    return (int64_t)n;
}

static void text(const PGresult *r, int row, int column, char *out, size_t size)
{
    (void)snprintf(out, size, "%s", PQgetvalue(r, row, column));
}

/* An array of arrays of numbers, as PostgreSQL reads it. */
struct list {
    char text[8192];
    size_t size;
};

static void put(struct list *l, int n, ...)
{
    va_list args;
    int i;

    va_start(args, n);
    for (i = 0; i < n; i++)
        l->size += (size_t)snprintf(l->text + l->size,
                                    sizeof(l->text) - l->size, "%s%" PRId64,
                                    i > 0         ? ","
                                    : l->size > 1 ? ",{"
                                                  : "{",
                                    va_arg(args, int64_t));
    va_end(args);
    l->size +=
        (size_t)snprintf(l->text + l->size, sizeof(l->text) - l->size, "}");
}

static const char *ended(struct list *l)
{
    (void)snprintf(l->text + l->size, sizeof(l->text) - l->size, "}");
    return l->text;
}

/* ---- Starting ------------------------------------------------------------- */

static int start(const once_tx *tx, const once_saga *saga, const char *json,
                 char gid[ONCE_ID_SIZE], once_error *err)
{
    struct once__query a = {.sql = "SELECT @.saga_start($1,$2::json,$3,"
                                   "to_timestamp($4::bigint/1000.0::float8))"};
    char deadline[24];
    PGresult *r = NULL;
    int rc;

    once__query_text(&a, saga->kind);
    once__query_text(&a, json);
    once__query_text(&a, saga->gid);
    if (saga->deadline_ms == 0)
        once__query_text(&a, NULL);
    else
        once__query_number(&a, deadline, saga->deadline_ms);
    rc = once__query_one(tx, &a, "saga_start", &r, err);
    rc = once__query_no_wait(rc, "saga_start", err);
    if (rc != ONCE_OK)
        return rc;
    if (PQgetisnull(r, 0, 0)) {
        rc = ONCE_REPEATED;
        (void)snprintf(gid, ONCE_ID_SIZE, "%s", saga->gid);
    } else {
        text(r, 0, 0, gid, ONCE_ID_SIZE);
    }
    PQclear(r);
    return rc;
}

/* ---- Moving on ------------------------------------------------------------ */

enum { WHAT, NO, STATE, N, M, FLAGS, ID };
enum { A_SAGA, A_STEP, A_CALL };

static void read_row(const PGresult *r, int row, struct once__saga_now *out)
{
    struct once__step *t = &out->saga.step[out->saga.n];
    struct once__saga_seen *seen = &out->seen[out->n];

    switch (number(r, row, WHAT)) {
    case A_SAGA:
        out->version = number(r, row, NO);
        out->saga.state = (int)number(r, row, STATE);
        out->late = (int)number(r, row, N);
        break;
    case A_STEP:
        if (out->saga.n == ONCE_SAGA_STEPS_MAX)
            break;
        t->state = (int)number(r, row, STATE);
        t->failed = (int)number(r, row, N);
        t->round = (uint32_t)number(r, row, M);
        t->has_confirm = number(r, row, FLAGS) & 1;
        t->has_cancel = (number(r, row, FLAGS) & 2) != 0;
        out->saga.n++;
        break;
    default:
        if (out->n == ONCE__SAGA_CALLS_MAX)
            break;
        seen->seq = number(r, row, NO);
        seen->phase = (int)number(r, row, STATE);
        seen->attempts = (uint32_t)number(r, row, N);
        text(r, row, ID, seen->id, sizeof(seen->id));
        out->n++;
    }
}

static int read_(const once_tx *tx, const char *gid, struct once__saga_now *out,
                 once_error *err)
{
    struct once__query a = {.sql = "SELECT * FROM @.saga_read_1($1)"};
    PGresult *r = NULL;
    int row, rc;

    once__query_text(&a, gid);
    rc = once__query_rows(tx, &a, "saga", &r, err);
    if (rc != ONCE_OK)
        return once__query_no_wait(rc, "saga", err);
    memset(out, 0, sizeof(*out));
    for (row = 0; row < PQntuples(r); row++)
        read_row(r, row, out);
    PQclear(r);
    return out->version > 0 ? ONCE_OK : ONCE_FREE;
}

static void put_steps(struct list *l, const struct once__saga_plan *plan)
{
    size_t i;

    for (i = 0; i < plan->after.n; i++) {
        const struct once__step *t = &plan->after.step[i];

        if (memcmp(t, &plan->before.step[i], sizeof(*t)) != 0)
            put(l, 4, (int64_t)i + 1, (int64_t)t->state, (int64_t)t->failed,
                (int64_t)t->round);
    }
}

static int write_(const once_tx *tx, const char *gid,
                  const struct once__saga_plan *plan, once_error *err)
{
    struct once__query a = {.sql =
                                "SELECT @.saga_write_1($1,$2,$3,$4,$5,$6,$7)"};
    struct list steps = {"{", 1}, taken = {"{", 1}, calls = {"{", 1};
    char version[24], state[24];
    PGresult *r = NULL;
    size_t i;
    int rc;

    put_steps(&steps, plan);
    for (i = 0; i < plan->n_taken; i++)
        put(&taken, 4, plan->taken[i].seen->seq,
            (int64_t)plan->taken[i].seen->phase,
            (int64_t)plan->taken[i].seen->attempts,
            (int64_t)plan->taken[i].branch);
    for (i = 0; i < plan->n_calls; i++)
        put(&calls, 2, (int64_t)plan->calls[i].step + 1,
            (int64_t)plan->calls[i].op);
    once__query_text(&a, gid);
    once__query_number(&a, version, (uint64_t)plan->version);
    once__query_number(&a, state, (uint64_t)plan->after.state);
    once__query_text(&a, plan->note);
    once__query_text(&a, ended(&steps));
    once__query_text(&a, ended(&taken));
    once__query_text(&a, ended(&calls));
    rc = once__query_one(tx, &a, "saga", &r, err);
    rc = once__query_no_wait(rc, "saga", err);
    if (rc == ONCE_OK && strcmp(PQgetvalue(r, 0, 0), "ok") != 0)
        rc = ONCE_AGAIN;
    PQclear(r);
    return rc;
}

static int due(const once_tx *tx, char (*gids)[ONCE__GID_SIZE], size_t *n,
               once_error *err)
{
    struct once__query a = {.sql = "SELECT * FROM @.saga_due_1($1)"};
    char most[24];
    PGresult *r = NULL;
    size_t i;
    int rc;

    once__query_number(&a, most, *n);
    rc = once__query_rows(tx, &a, "saga_due", &r, err);
    if (rc != ONCE_OK)
        return once__query_no_wait(rc, "saga_due", err);
    *n = (size_t)PQntuples(r);
    for (i = 0; i < *n; i++)
        text(r, (int)i, 0, gids[i], ONCE__GID_SIZE);
    PQclear(r);
    return ONCE_OK;
}

/* ---- Operators ------------------------------------------------------------ */

static void take_saga(const PGresult *r, int row, struct once__saga_row *s)
{
    text(r, row, 0, s->gid, sizeof(s->gid));
    text(r, row, 1, s->kind, sizeof(s->kind));
    text(r, row, 2, s->note, sizeof(s->note));
    s->state = (int)number(r, row, 3);
    s->version = (uint32_t)number(r, row, 4);
    s->steps = (uint32_t)number(r, row, 5);
    s->deadline_ms = (uint64_t)number(r, row, 6);
    s->at_ms = (uint64_t)number(r, row, 7);
    s->since_ms = (uint64_t)number(r, row, 8);
}

static int sagas(const once_tx *tx, const char *gid, int state,
                 const char *after, struct once__saga_row *rows, size_t *n,
                 once_error *err)
{
    struct once__query a = {.sql = "SELECT * FROM @.saga_list_1($1,$2,$3,$4)"};
    char number_[24], most[24];
    PGresult *r = NULL;
    size_t i;
    int rc;

    once__query_text(&a, gid);
    if (state < 0)
        once__query_text(&a, NULL);
    else
        once__query_number(&a, number_, (uint64_t)state);
    once__query_text(&a, once__text_of(after));
    once__query_number(&a, most, *n);
    rc = once__query_rows(tx, &a, "saga_list", &r, err);
    if (rc != ONCE_OK)
        return once__query_no_wait(rc, "saga_list", err);
    *n = (size_t)PQntuples(r);
    for (i = 0; i < *n; i++)
        take_saga(r, (int)i, &rows[i]);
    PQclear(r);
    return ONCE_OK;
}

static int list_(const once_tx *tx, const struct once__saga_filter *filter,
                 struct once__saga_row *rows, size_t *n, once_error *err)
{
    return sagas(tx, NULL, filter->state, filter->after, rows, n, err);
}

static void take_step(const PGresult *r, int row, struct once__saga_step_row *t)
{
    text(r, row, 0, t->try_to, sizeof(t->try_to));
    text(r, row, 1, t->confirm_to, sizeof(t->confirm_to));
    text(r, row, 2, t->cancel_to, sizeof(t->cancel_to));
    text(r, row, 3, t->error, sizeof(t->error));
    text(r, row, 4, t->trouble, sizeof(t->trouble));
    t->step =
        (struct once__step){(int)number(r, row, 5), (int)number(r, row, 6),
                            (uint32_t)number(r, row, 7),
                            t->confirm_to[0] != '\0', t->cancel_to[0] != '\0'};
    t->status = (int)number(r, row, 8);
    t->seq = number(r, row, 9);
    t->phase = (int)number(r, row, 10);
    t->attempts = (uint32_t)number(r, row, 11);
}

static int get(const once_tx *tx, const char *gid, struct once__saga_row *row,
               struct once__saga_step_row *steps, once_error *err)
{
    struct once__query a = {.sql = "SELECT * FROM @.saga_steps_1($1)"};
    PGresult *r = NULL;
    size_t n = 1;
    int i, rc = sagas(tx, gid, -1, NULL, row, &n, err);

    if (rc == ONCE_OK && n == 0)
        return ONCE_FREE;
    once__query_text(&a, gid);
    if (rc == ONCE_OK)
        rc = once__query_rows(tx, &a, "saga_steps", &r, err);
    if (rc != ONCE_OK)
        return once__query_no_wait(rc, "saga_steps", err);
    for (i = 0; i < PQntuples(r) && i < (int)ONCE_SAGA_STEPS_MAX; i++)
        take_step(r, i, &steps[i]);
    row->steps = (uint32_t)i;
    PQclear(r);
    return ONCE_OK;
}

static int stats(const once_tx *tx, struct once__saga_count *out,
                 once_error *err)
{
    struct once__query a = {.sql = "SELECT * FROM @.saga_stats_1()"};
    PGresult *r = NULL;
    int rc = once__query_one(tx, &a, "saga_stats", &r, err);

    if (rc != ONCE_OK)
        return once__query_no_wait(rc, "saga_stats", err);
    *out = (struct once__saga_count){{0}, 0};
    out->n[ONCE__SAGA_GOING] = (uint64_t)number(r, 0, 0);
    out->n[ONCE__SAGA_CONFIRMING] = (uint64_t)number(r, 0, 1);
    out->n[ONCE__SAGA_UNDOING] = (uint64_t)number(r, 0, 2);
    out->n[ONCE__SAGA_STUCK] = (uint64_t)number(r, 0, 3);
    out->stuck_ms = (uint64_t)number(r, 0, 4);
    PQclear(r);
    return ONCE_OK;
}

const struct once__saga_ops once__saga_postgres = {start, read_, write_, due,
                                                   list_, get,   stats};

#else
/* An empty file is not a program that ISO C knows. */
typedef int once__no_saga_postgres;
#endif
