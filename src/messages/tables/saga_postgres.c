/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga_postgres.c - sagas on PostgreSQL: calls the functions of pg.sql, which
 * read and write and decide nothing.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "messages/tables/either.h"
#include "messages/tables/saga.h"

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

/* ---- Starting ----------------------------------------------------------- */

static int start(const once_tx *tx, const once_saga *saga, const char *json,
                 char gid[ONCE_ID_SIZE], once_error *err)
{
    struct once__either q;
    int rc, before = 0;

    once__either(&q, tx, "saga_start",
                 "SELECT @.saga_start($1,$2::json,$3,"
                 "to_timestamp(nullif($4::bigint,0)/1000.0::float8))",
                 NULL, err);
    once__either_with(&q, ONCE__TEXT(saga->kind), ONCE__TEXT(json),
                      ONCE__TEXT(saga->gid), ONCE__NUMBER(saga->deadline_ms));
    if (once__either_next(&q)) {
        before = once__either_string(&q, 0) == NULL;
        if (!before)
            once__either_copy(&q, 0, gid, ONCE_ID_SIZE);
    }
    rc = once__either_end(&q);
    if (rc != ONCE_OK || !before)
        return rc;
    (void)snprintf(gid, ONCE_ID_SIZE, "%s", saga->gid);
    return ONCE_REPEATED;
}

/* ---- Moving on ---------------------------------------------------------- */

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

/* Those whose ends are written. Returns the one whose end is not, or NULL. */
static const struct once__saga_taken *
put_taken(struct list *l, const struct once__saga_plan *plan)
{
    const struct once__saga_taken *own = NULL;
    size_t i;

    for (i = 0; i < plan->n_taken; i++) {
        const struct once__saga_taken *t = &plan->taken[i];

        if (t->seen->how != NULL)
            own = t;
        else
            put(l, 4, t->seen->seq, (int64_t)t->seen->phase,
                (int64_t)t->seen->attempts, (int64_t)t->branch);
    }
    return own;
}

static const char *numbers_of(const struct once__saga_taken *own, char out[96])
{
    (void)snprintf(out, 96, "{%" PRId64 ",%" PRIu32 ",%zu,%d}", own->seen->seq,
                   own->seen->attempts, own->branch, own->seen->how->status);
    return out;
}

static int write_(const once_tx *tx, const char *gid,
                  const struct once__saga_plan *plan, once_error *err)
{
    struct list steps = {"{", 1}, taken = {"{", 1}, calls = {"{", 1};
    const struct once__saga_taken *own;
    char numbers[96], error[ONCE_ID_SIZE];
    struct once__either q;
    int rc, same = 0;
    size_t i;

    put_steps(&steps, plan);
    own = put_taken(&taken, plan);
    for (i = 0; i < plan->n_calls; i++)
        put(&calls, 2, (int64_t)plan->calls[i].step + 1,
            (int64_t)plan->calls[i].op);
    once__either(&q, tx, "saga",
                 own == NULL
                     ? "SELECT @.saga_write_1($1,$2,$3,$4,$5,$6,$7)"
                     : "SELECT @.saga_settle_1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)",
                 NULL, err);
    once__either_with(&q, ONCE__TEXT(gid), ONCE__NUMBER(plan->version),
                      ONCE__NUMBER(plan->after.state), ONCE__TEXT(plan->note),
                      ONCE__TEXT(ended(&steps)), ONCE__TEXT(ended(&taken)),
                      ONCE__TEXT(ended(&calls)));
    if (own != NULL) {
        const struct once__settlement *how = own->seen->how;

        once__copy_visible(error, once__text_of(how->error));
        once__either_with(&q, ONCE__TEXT(numbers_of(own, numbers)),
                          ONCE__MAYBE(how->reply.data, how->reply.size),
                          ONCE__TEXT(error));
    }
    if (once__either_next(&q))
        same = strcmp(once__text_of(once__either_string(&q, 0)), "ok") == 0;
    rc = once__either_end(&q);
    return rc != ONCE_OK || same ? rc : ONCE_AGAIN;
}

const struct once__saga_ops once__saga_postgres = {start, write_};
