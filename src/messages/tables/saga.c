/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga.c - starts sagas for programs, and moves them on: reads one, lets
 * core/saga.c decide, and writes the decision if nothing has changed meanwhile.
 *
 * It holds no lock while it decides: a decision that comes too late is thrown
 * away and made again.
 */
#include "messages/tables/saga.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "messages/tables/backend.h"

enum {
    TRIES = 3,  /* of one decision, before it is left to the next second */
    PAGE = 100, /* sagas that are due, at a time */
    PAGES = 10
};

static const char *const op_names[] = {
    [ONCE_TRY] = "try", [ONCE_CONFIRM] = "confirm", [ONCE_CANCEL] = "cancel"};

static int ops_of(const once_tx *tx, const struct once__saga_ops **out,
                  once_error *err)
{
    const struct once__backend *b = NULL;
    int rc = once__tx_backend(tx, &b, err);

    *out = &once__saga_sqlite;
#ifdef ONCE_WITH_POSTGRES
    if (rc == ONCE_OK && tx->postgres != NULL)
        *out = &once__saga_postgres;
#endif
#ifdef ONCE_WITH_MYSQL
    if (rc == ONCE_OK && tx->mysql != NULL)
        *out = &once__saga_mysql;
#endif
    return rc;
}

/* ---- Starting ------------------------------------------------------------- */

static int check_gid(const char *gid, once_error *err)
{
    size_t size = strlen(gid);

    if (size > 0 && size <= ONCE_GID_MAX &&
        strspn(gid, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                    "0123456789-._~:") == size)
        return ONCE_OK;
    return once__fail(
        err, size > ONCE_GID_MAX ? ONCE_ELIMIT : ONCE_EINVAL,
        "gid: it is not 1 to %zu of A-Z a-z 0-9 - . _ ~ :", ONCE_GID_MAX);
}

static int check_step(const once_saga_step *t, once_error *err)
{
    once_message m = ONCE_MESSAGE_INIT;
    int rc;

    if (t->size != sizeof(*t))
        return once__fail(err, ONCE_EINVAL,
                          "step: size is not that of once_saga_step");
    rc = once__check_name("try_to", t->try_to, err);
    if (rc == ONCE_OK && t->confirm_to != NULL)
        rc = once__check_name("confirm_to", t->confirm_to, err);
    if (rc == ONCE_OK && t->cancel_to != NULL)
        rc = once__check_name("cancel_to", t->cancel_to, err);
    m.type = t->type;
    m.body = t->body;
    if (rc == ONCE_OK)
        rc = once__check_content(&m, err);
    if (rc == ONCE_OK && t->body.size > ONCE_SAGA_BODY_MAX)
        rc = once__fail(err, ONCE_ELIMIT, "body: over %zu bytes",
                        ONCE_SAGA_BODY_MAX);
    return rc;
}

static int check_saga(const once_saga *s, once_error *err)
{
    size_t i;
    int rc;

    if (s == NULL || s->size != sizeof(*s))
        return once__fail(err, ONCE_EINVAL,
                          "saga: size is not that of once_saga");
    rc = s->gid == NULL ? ONCE_OK : check_gid(s->gid, err);
    if (rc == ONCE_OK)
        rc = once__check_name("kind", s->kind, err);
    if (rc == ONCE_OK &&
        (s->steps == NULL || s->n == 0 || s->n > ONCE_SAGA_STEPS_MAX))
        rc = once__fail(err, ONCE_ELIMIT, "steps: they are not 1 to %zu",
                        ONCE_SAGA_STEPS_MAX);
    if (rc == ONCE_OK && s->deadline_ms > INT64_MAX / 1000)
        rc = once__fail(err, ONCE_EINVAL, "deadline_ms: it is not a time");
    for (i = 0; rc == ONCE_OK && i < s->n; i++)
        rc = check_step(&s->steps[i], err);
    return rc;
}

/* The steps as saga_start() in pg.sql takes them, which is also what two sagas
 * with one gid are compared by. */
static void put_member(FILE *to, const char *name, const char *text)
{
    if (text == NULL)
        return;
    (void)fprintf(to, "\"%s\":\"", name);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            (void)fputc('\\', to);
        (void)fputc(*text, to);
    }
    (void)fputs("\",", to);
}

static void put_step(FILE *to, const once_saga_step *t)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = t->body.data;
    size_t i;

    (void)fputc('{', to);
    put_member(to, "try", t->try_to);
    put_member(to, "confirm", t->confirm_to);
    put_member(to, "cancel", t->cancel_to);
    put_member(to, "type", once__text_of(t->type));
    (void)fputs("\"hex\":\"", to);
    for (i = 0; i < t->body.size; i++) {
        (void)fputc(digits[p[i] >> 4], to);
        (void)fputc(digits[p[i] & 15], to);
    }
    (void)fputs("\"}", to);
}

static char *json_of(const once_saga *s)
{
    char *text = NULL;
    size_t i, size = 0;
    FILE *to = open_memstream(&text, &size);
    int bad;

    if (to == NULL)
        return NULL;
    for (i = 0; i < s->n; i++) {
        (void)fputc(i == 0 ? '[' : ',', to);
        put_step(to, &s->steps[i]);
    }
    (void)fputc(']', to);
    bad = ferror(to);
    if (fclose(to) == 0 && !bad)
        return text;
    free(text);
    return NULL;
}

int once_saga_start(const once_tx *tx, const once_saga *saga,
                    char gid[ONCE_ID_SIZE], once_error *err)
{
    const struct once__backend *b = NULL;
    const struct once__saga_ops *ops = NULL;
    char room[ONCE_ID_SIZE], *json = NULL;
    int rc = once__tx_backend(tx, &b, err);

    if (rc == ONCE_OK)
        rc = ops_of(tx, &ops, err);
    if (rc == ONCE_OK)
        rc = check_saga(saga, err);
    if (rc == ONCE_OK)
        rc = b->open(tx, err);
    if (rc != ONCE_OK)
        return rc;
    json = json_of(saga);
    if (json == NULL)
        return once__fail(err, ONCE_ENOMEM, "saga_start: no memory");
    rc = ops->start(tx, saga, json, gid != NULL ? gid : room, err);
    free(json);
    return rc;
}

/* ---- Calls ---------------------------------------------------------------- */

/* Reads "GID/STEP/OP" or "GID/STEP/OP/ROUND" into an event. 0: it is not one. */
static int parse_id(const char *gid, const char *id,
                    struct once__saga_event *out)
{
    size_t size = strlen(gid);
    unsigned long step, round = 0;
    char *end;
    int op;

    if (strncmp(id, gid, size) != 0 || id[size] != '/')
        return 0;
    step = strtoul(id + size + 1, &end, 10);
    for (op = ONCE_TRY; op <= ONCE_CANCEL; op++) {
        size = strlen(op_names[op]);
        if (*end == '/' && strncmp(end + 1, op_names[op], size) == 0)
            break;
    }
    if (op > ONCE_CANCEL || step < 1 || step > ONCE_SAGA_STEPS_MAX)
        return 0;
    end += 1 + size;
    if (*end == '/')
        round = strtoul(end + 1, &end, 10);
    *out = (struct once__saga_event){ONCE__SAGA_ENDED, step - 1, op,
                                     (uint32_t)round, 0};
    return *end == '\0';
}

int once__saga_insists(const struct once__outgoing *row)
{
    struct once__saga_event e;

    return row->saga != NULL && row->m.id != NULL &&
           parse_id(row->saga, row->m.id, &e) && e.op != ONCE_TRY;
}

/* ---- Planning: no I/O ----------------------------------------------------- */

static void explain(char note[ONCE__NOTE_SIZE],
                    const struct once__saga_event *e)
{
    const char *how = e->phase == ONCE__ROW_DEAD
                          ? "was refused"
                          : "has an outcome that is not known";

    (void)snprintf(note, ONCE__NOTE_SIZE, "step %zu: its %s %s", e->step + 1,
                   op_names[e->op], how);
}

static int apply(struct once__saga_plan *plan, const struct once__saga_event *e)
{
    struct once__saga_next next = once__saga_next(&plan->after, e);
    size_t i;

    for (i = 0; i < next.n; i++) {
        assert(plan->n_calls < ONCE__SAGA_CALLS_MAX);
        plan->calls[plan->n_calls++] = next.call[i];
    }
    return next.fits;
}

/* What has ended, in the order in which it was asked for. */
static void apply_ends(const char *gid, const struct once__saga_now *now,
                       struct once__saga_plan *plan, int fits[],
                       char note[ONCE__NOTE_SIZE])
{
    struct once__saga_event e;
    size_t i;

    for (i = 0; i < now->n; i++) {
        fits[i] = 0;
        if (now->seen[i].phase < ONCE__ROW_DONE ||
            !parse_id(gid, now->seen[i].id, &e))
            continue;
        e.phase = now->seen[i].phase;
        fits[i] = apply(plan, &e);
        if (!fits[i] || e.phase == ONCE__ROW_DONE)
            continue;
        explain(note, &e);
        plan->note = note;
    }
}

/* Rows that have ended were looked at; a Try that is wanted no more must not be
 * begun. */
static void take_rows(const char *gid, const struct once__saga_now *now,
                      struct once__saga_plan *plan, const int fits[])
{
    struct once__saga_event e = {0};
    size_t i;

    for (i = 0; i < now->n; i++) {
        const struct once__saga_seen *seen = &now->seen[i];
        int known = parse_id(gid, seen->id, &e);

        if (seen->phase < ONCE__ROW_DONE &&
            !(known && once__saga_unwanted(&plan->after, e.op)))
            continue;
        plan->taken[plan->n_taken++] =
            (struct once__saga_taken){seen, fits[i] ? e.step + 1 : 0};
    }
}

/* 1 if there is something to write. `*obeyed`: the order fitted. */
static int make_plan(const char *gid, const struct once__saga_now *now,
                     const struct once__saga_order *order, int *obeyed,
                     struct once__saga_plan *plan, char note[ONCE__NOTE_SIZE])
{
    struct once__saga_event late = {.what = ONCE__SAGA_LATE};
    int fits[ONCE__SAGA_CALLS_MAX], changed = 0;
    size_t i;

    *plan = (struct once__saga_plan){
        .version = now->version, .before = now->saga, .after = now->saga};
    apply_ends(gid, now, plan, fits, note);
    for (i = 0; i < now->n; i++)
        changed |= fits[i];
    *obeyed = 0;
    if (order != NULL) {
        struct once__saga_event e = {.what = order->what, .step = order->step};

        *obeyed = apply(plan, &e);
        changed |= *obeyed;
        if (*obeyed)
            plan->note = order->note;
    }
    if (now->late && apply(plan, &late)) {
        plan->note = "its deadline has passed";
        changed = 1;
    }
    take_rows(gid, now, plan, fits);
    return changed || plan->n_taken > 0;
}

/* ---- Moving on ------------------------------------------------------------ */

static void count_change(const struct once__saga_plan *plan,
                         struct once__saga_tally *tally)
{
    int from = plan->before.state, to = plan->after.state;

    tally->advanced++;
    tally->done += from != to && to == ONCE__SAGA_DONE;
    tally->undone += from != to && to == ONCE__SAGA_UNDONE;
    tally->stuck += from != to && to == ONCE__SAGA_STUCK;
}

/* The database did not say whether it has written the plan. A saga that is stuck is
 * due for nobody, so no later look would find it. */
static void count_doubt(const struct once__saga_plan *plan,
                        struct once__saga_tally *tally)
{
    tally->doubts += plan->before.state != ONCE__SAGA_STUCK &&
                     plan->after.state == ONCE__SAGA_STUCK;
}

/* What a database holds may be damaged. */
static int check_read(const struct once__saga_now *now, once_error *err)
{
    const struct once__saga *s = &now->saga;
    int sane = s->n > 0 && s->state >= ONCE__SAGA_GOING &&
               s->state <= ONCE__SAGA_STUCK;
    size_t i;

    for (i = 0; i < s->n; i++)
        sane &= s->step[i].state >= ONCE__STEP_WAITING &&
                s->step[i].state <= ONCE__STEP_CANCELLED;
    return sane ? ONCE_OK
                : once__fail(err, ONCE_ECORRUPT,
                             "saga: a state that is not one, or a step is "
                             "missing");
}

/* What moves a saga besides what the database holds: an order, or the end of a call
 * that is still its claimer's. */
struct cause {
    const struct once__saga_order *order; /* or NULL */
    const struct once__outgoing *row;     /* or NULL */
    const struct once__settlement *how;   /* of `row` */
};

/* Adds the call as if its end were written. ONCE_AGAIN: it is there already, so it is
 * not under way any more. */
static int add_end(struct once__saga_now *now, const struct cause *why)
{
    struct once__saga_seen *seen = now->seen;
    size_t i, at = 0;

    for (i = 0; i < now->n; i++)
        if (seen[i].seq == why->row->seq)
            return ONCE_AGAIN;
    if (now->n == ONCE__SAGA_CALLS_MAX)
        return ONCE_AGAIN;
    while (at < now->n && seen[at].seq < why->row->seq)
        at++;
    memmove(&seen[at + 1], &seen[at], (now->n++ - at) * sizeof(*seen));
    seen[at] = (struct once__saga_seen){.seq = why->row->seq,
                                        .phase = why->how->to.phase,
                                        .attempts = why->how->attempts,
                                        .how = why->how};
    (void)snprintf(seen[at].id, sizeof(seen[at].id), "%s", why->row->m.id);
    return ONCE_OK;
}

/* Once: ONCE_AGAIN if something has changed meanwhile. */
static int move(const once_tx *tx, const struct once__saga_ops *ops,
                const char *gid, const struct cause *why,
                struct once__saga_tally *tally, once_error *err)
{
    struct once__saga_now *now = malloc(sizeof(*now));
    struct once__saga_plan *plan = malloc(sizeof(*plan));
    const struct once__saga_order *order = why->order;
    char note[ONCE__NOTE_SIZE];
    int rc, obeyed = 0, ordered = order != NULL;

    if (now == NULL || plan == NULL) {
        rc = once__fail(err, ONCE_ENOMEM, "saga: no memory");
        goto out;
    }
    rc = once__saga_read(tx, gid, now, err);
    if (rc == ONCE_OK)
        rc = check_read(now, err);
    if (rc == ONCE_OK && why->row != NULL)
        rc = add_end(now, why);
    if (rc != ONCE_OK)
        goto out;
    if (order != NULL && now->version != order->version)
        order = NULL; /* refused; but what has ended is looked at */
    if (make_plan(gid, now, order, &obeyed, plan, note)) {
        rc = ops->write(tx, gid, plan, err);
        if (rc == ONCE_OK)
            count_change(plan, tally);
        else if (rc < ONCE_OK)
            count_doubt(plan, tally);
    }
    if (rc == ONCE_OK && ordered && !obeyed)
        rc = ONCE_REFUSED;
out:
    free(now);
    free(plan);
    return rc;
}

int once__saga_settle(const once_tx *tx, const struct once__outgoing *row,
                      struct once__settlement *s,
                      struct once__saga_tally *tally, once_error *err)
{
    const struct cause why = {.row = row, .how = s};
    const struct once__saga_ops *ops = NULL;
    int i, rc = ops_of(tx, &ops, err);

    assert(row->saga != NULL && s->lease == 0);
    s->ours = 0;
    if (rc == ONCE_OK)
        rc = once__check_settlement(s, err);
    if (rc != ONCE_OK)
        return rc;
    for (i = 0, rc = ONCE_AGAIN; i < TRIES && rc == ONCE_AGAIN; i++)
        rc = move(tx, ops, row->saga, &why, tally, err);
    s->ours = rc == ONCE_OK;
    return rc;
}

int once__saga_advance(const once_tx *tx, const char *gid,
                       struct once__saga_tally *tally, once_error *err)
{
    const struct cause why = {.order = NULL};
    const struct once__saga_ops *ops = NULL;
    int i, rc = ops_of(tx, &ops, err);

    if (rc != ONCE_OK)
        return rc;
    for (i = 0; i < TRIES; i++) {
        rc = move(tx, ops, gid, &why, tally, err);
        if (rc != ONCE_AGAIN && rc != ONCE_EABORTED)
            return rc;
    }
    return rc == ONCE_AGAIN
               ? once__fail(err, ONCE_EABORTED, "saga: it changes all the time")
               : rc;
}

/* Those that are due, up to `*n` of them; then `*n` is how many there were. One
 * that cannot go on stops no other: its error is returned after theirs. */
static int advance_page(const once_tx *tx, char (*gids)[ONCE__GID_SIZE],
                        size_t *n, struct once__saga_tally *tally,
                        once_error *err)
{
    int rc = once__saga_gids(tx, gids, n, err), bad = ONCE_OK;
    size_t i;

    for (i = 0; rc == ONCE_OK && i < *n; i++) {
        rc = once__saga_advance(tx, gids[i], tally, err);
        if (rc == ONCE_EABORTED)
            break; /* the connection, or others are at it: next second */
        if (rc != ONCE_OK && rc != ONCE_FREE)
            bad = rc;
        rc = ONCE_OK;
    }
    return rc != ONCE_OK ? rc : bad;
}

int once__saga_due(const once_tx *tx, struct once__saga_tally *tally,
                   once_error *err)
{
    char(*gids)[ONCE__GID_SIZE] = malloc(PAGE * sizeof(*gids));
    const struct once__saga_ops *ops = NULL;
    int page, rc = ops_of(tx, &ops, err);
    size_t n = PAGE;

    if (rc == ONCE_OK && gids == NULL)
        rc = once__fail(err, ONCE_ENOMEM, "saga: no memory");
    for (page = 0; rc == ONCE_OK && n == PAGE && page < PAGES; page++)
        rc = advance_page(tx, gids, &n, tally, err);
    free(gids);
    return rc;
}

/* ---- Operators ------------------------------------------------------------ */

/* Any database takes it. */
static void copy_note(char out[ONCE__NOTE_SIZE], const char *text)
{
    size_t i;

    for (i = 0; i < ONCE__NOTE_SIZE - 1 && text[i] != '\0'; i++)
        out[i] = (char)(text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
    out[i] = '\0';
}

int once__saga_decide(const once_tx *tx, const char *gid,
                      const struct once__saga_order *order, once_error *err)
{
    const struct once__saga_ops *ops = NULL;
    struct once__saga_order copy = *order;
    const struct cause why = {.order = &copy};
    struct once__saga_tally tally = {0};
    char note[ONCE__NOTE_SIZE];
    int i, rc = ops_of(tx, &ops, err);

    assert(order->what >= ONCE__SAGA_ABORT);
    copy_note(note, once__text_of(order->note));
    copy.note = note;
    if (rc != ONCE_OK)
        return rc;
    for (i = 0, rc = ONCE_AGAIN; i < TRIES && rc == ONCE_AGAIN; i++)
        rc = move(tx, ops, gid, &why, &tally, err); /* nothing was written */
    return rc == ONCE_AGAIN ? ONCE_REFUSED : rc;
}
