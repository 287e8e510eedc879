/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga.c - a table of what each call of a saga is for, a table of what may come
 * in which state, and the two walks over the steps: forward and back.
 */
#include "messages/core/saga.h"

#include <assert.h>

#include "messages/core/row.h"

#define IN(state) (1u << (state))

static void call(struct once__saga *s, struct once__saga_next *next, size_t i,
                 int op)
{
    next->call[next->n++] = (struct once__saga_call){i, op, s->step[i].round};
}

/* ---- The walks ----------------------------------------------------------- */

static int has_failed(const struct once__saga *s)
{
    size_t i;

    for (i = 0; i < s->n; i++)
        if (s->step[i].failed)
            return 1;
    return 0;
}

static int is_confirmed(const struct once__step *t)
{
    return t->state == ONCE__STEP_CONFIRMED || !t->has_confirm;
}

/* Confirms stand side by side: nothing is called here. */
static void confirm(struct once__saga *s, struct once__saga_next *next)
{
    size_t i;

    (void)next;
    s->state = has_failed(s) ? ONCE__SAGA_STUCK : ONCE__SAGA_CONFIRMING;
    for (i = 0; i < s->n; i++)
        if (!is_confirmed(&s->step[i]))
            return;
    s->state = ONCE__SAGA_DONE;
}

/* The next Try; after the last one every Confirm. */
static void go_on(struct once__saga *s, struct once__saga_next *next)
{
    size_t i;

    for (i = 0; i < s->n && s->step[i].state == ONCE__STEP_TRIED; i++)
        ;
    if (i < s->n) {
        s->step[i].state = ONCE__STEP_TRYING;
        call(s, next, i, ONCE_TRY);
        return;
    }
    for (i = 0; i < s->n; i++)
        if (s->step[i].has_confirm) {
            s->step[i].state = ONCE__STEP_CONFIRMING;
            call(s, next, i, ONCE_CONFIRM);
        }
    confirm(s, next);
}

/* The Cancel of the last step that was begun and not yet cancelled. */
static void undo(struct once__saga *s, struct once__saga_next *next)
{
    size_t i;

    s->state = ONCE__SAGA_UNDOING;
    for (i = s->n; i-- > 0;) {
        struct once__step *t = &s->step[i];

        if (t->state == ONCE__STEP_CANCELLING)
            return; /* one after another */
        if (t->state != ONCE__STEP_TRYING && t->state != ONCE__STEP_TRIED)
            continue;
        t->state = t->has_cancel ? ONCE__STEP_CANCELLING : ONCE__STEP_CANCELLED;
        if (t->has_cancel) {
            call(s, next, i, ONCE_CANCEL);
            return;
        }
    }
    s->state = ONCE__SAGA_UNDONE;
}

/* ---- Calls that end ------------------------------------------------------ */

/* Of each kind of call: what its step is while it is under way, what the step
 * becomes when it was done, and what follows. `undoes` is what follows if it was
 * not done; without it the saga is stuck. */
static const struct {
    int state, done;
    void (*follows)(struct once__saga *, struct once__saga_next *);
    void (*undoes)(struct once__saga *, struct once__saga_next *);
} kinds[] = {
    [ONCE_TRY] = {ONCE__STEP_TRYING, ONCE__STEP_TRIED, go_on, undo},
    [ONCE_CONFIRM] = {ONCE__STEP_CONFIRMING, ONCE__STEP_CONFIRMED, confirm,
                      NULL},
    [ONCE_CANCEL] = {ONCE__STEP_CANCELLING, ONCE__STEP_CANCELLED, undo, NULL},
};

static void ended(struct once__saga *s, const struct once__saga_event *e,
                  struct once__saga_next *next)
{
    struct once__step *t = &s->step[e->step];
    int op = e->op;

    if (op < ONCE_TRY || op > ONCE_CANCEL || t->state != kinds[op].state ||
        t->failed || t->round != e->round || e->phase < ONCE__ROW_DONE ||
        e->phase > ONCE__ROW_INDETERMINATE)
        return;
    next->fits = 1;
    if (e->phase == ONCE__ROW_DONE) {
        t->state = kinds[op].done;
        kinds[op].follows(s, next);
    } else if (kinds[op].undoes != NULL) {
        kinds[op].undoes(s, next);
    } else {
        t->failed = e->phase;
        s->state = ONCE__SAGA_STUCK;
    }
}

/* ---- What an operator and the clock say ---------------------------------- */

static void turn_back(struct once__saga *s, const struct once__saga_event *e,
                      struct once__saga_next *next)
{
    (void)e;
    next->fits = 1;
    undo(s, next);
}

static void begin(struct once__saga *s, const struct once__saga_event *e,
                  struct once__saga_next *next)
{
    (void)e;
    if (s->step[0].state != ONCE__STEP_WAITING)
        return;
    next->fits = 1;
    go_on(s, next);
}

/* What was provably not done gets a new id: a target that keeps its answers
 * would repeat its refusal to the old one. What may have been done keeps its id,
 * by which the target recognises it. */
static void retry(struct once__saga *s, const struct once__saga_event *e,
                  struct once__saga_next *next)
{
    size_t i;

    (void)e;
    next->fits = 1;
    for (i = 0; i < s->n; i++) {
        struct once__step *t = &s->step[i];
        int confirming = t->state == ONCE__STEP_CONFIRMING;

        if (!t->failed)
            continue;
        t->round += t->failed == ONCE__ROW_DEAD;
        t->failed = 0;
        s->state = confirming ? ONCE__SAGA_CONFIRMING : ONCE__SAGA_UNDOING;
        call(s, next, i, confirming ? ONCE_CONFIRM : ONCE_CANCEL);
    }
}

static void resolve(struct once__saga *s, const struct once__saga_event *e,
                    struct once__saga_next *next)
{
    struct once__step *t = &s->step[e->step];
    int op = t->state == ONCE__STEP_CONFIRMING ? ONCE_CONFIRM : ONCE_CANCEL;

    if (!t->failed)
        return;
    next->fits = 1;
    t->failed = 0;
    t->state = kinds[op].done;
    kinds[op].follows(s, next);
}

/* ---- Events --------------------------------------------------------------- */

static const struct {
    unsigned fits;
    void (*apply)(struct once__saga *, const struct once__saga_event *,
                  struct once__saga_next *);
} events[] = {
    [ONCE__SAGA_BEGIN] = {IN(ONCE__SAGA_GOING), begin},
    [ONCE__SAGA_ENDED] = {~0u, ended},
    [ONCE__SAGA_LATE] = {IN(ONCE__SAGA_GOING), turn_back},
    [ONCE__SAGA_ABORT] = {IN(ONCE__SAGA_GOING), turn_back},
    [ONCE__SAGA_RETRY] = {IN(ONCE__SAGA_STUCK), retry},
    [ONCE__SAGA_RESOLVE] = {IN(ONCE__SAGA_STUCK), resolve},
};

struct once__saga_next once__saga_next(struct once__saga *saga,
                                       const struct once__saga_event *event)
{
    struct once__saga_next next = {.fits = 0};

    assert(event->what >= ONCE__SAGA_BEGIN &&
           event->what <= ONCE__SAGA_RESOLVE);
    if ((events[event->what].fits & IN(saga->state)) && event->step < saga->n)
        events[event->what].apply(saga, event, &next);
    return next;
}

int once__saga_unwanted(const struct once__saga *saga, int op)
{
    return op == ONCE_TRY && saga->state != ONCE__SAGA_GOING;
}
