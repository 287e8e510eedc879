/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.c - an upstream that deduplicates in its own transaction, as
 * docs/messages.md asks for where the gateway says `once_lost takeover`.
 *
 *    request --begin--> BEGUN --effect--> DONE --finish--> FINISHED --COMMIT-+
 *              |          +--a failure that repeats get--> FAILED ---COMMIT--+
 *              |          |                                                  |
 *              |          +-- at any stage: it dies, or rolls back           |
 *              +--> the row is there: its answer                             |
 *              +--> a copy is under way: waits, or is told no result         v
 *                                             the answer leaves <-- COMMITTED
 *
 * No result: "unknown", for all that is not committed; or "nothing was done", for
 * what was rolled back, or did not begin.
 *
 * The row belongs to the transaction: until COMMIT nobody else gets past begin,
 * and ROLLBACK takes row and effect back. A request that the gateway has given
 * up, or whose gateway is dead, goes on here.
 *
 * Three rules hold in every state, whatever happened before:
 *
 *    E1   there is at most one effect
 *    E2   who gets a final result gets that of the effect, which is there
 *    E3   once accidents stop, the next client that asks gets it, too
 *
 * The services that are planted show that each of them can be broken.
 */
#include <assert.h>
#include <string.h>

#include "calls/core/machine.h"

#include "explore.h"

enum { NOT_HERE, BEGUN, DONE, FINISHED, FAILED, COMMITTED };

enum {
    NO_ROWS = RESULTS_MAX - 1, /* an answer that stands in no row      */
    NO_RESULT = RESULTS_MAX    /* a row that was committed without one */
};

static void emit_one(struct search *s, const struct world *w, const char *what,
                     int who)
{
    emit(s, w, (struct step){what, who, 0, 0, -1});
}

static int under_way(const struct try *t)
{
    return t->stage >= BEGUN && t->stage <= FAILED;
}

/* The uncommitted row of one keeps the others at begin. */
static int locked(const struct config *c, const struct world *w)
{
    unsigned i;

    if (c->no_row || c->row_before || c->row_after)
        return 0;
    for (i = 0; i < TRIES_MAX; i++)
        if (under_way(&w->tries[i]))
            return 1;
    return 0;
}

/* If there is still somebody who waits for it. */
static void answers(struct try *t, uint8_t result, uint8_t kind)
{
    int heard = t->alive && t->phase == ONCE__PHASE_SENT;

    t->reply = heard ? result : 0;
    t->reply_kind = heard ? kind : 0;
}

/* It has no answer, and says so; or it makes one up. */
static void has_no_answer(struct try *t, int makes_one_up)
{
    answers(t, makes_one_up ? NO_ROWS : UNSURE,
            makes_one_up ? ONCE_FAILURE : 0);
}

static void replays(const struct world *w, struct try *t)
{
    if (w->kept_body != (t->role & OTHER_BODY))
        has_no_answer(t, 1); /* "this key was used for another request" */
    else if (w->kept == NO_RESULT)
        has_no_answer(t, 0);
    else
        answers(t, w->kept, w->kept_kind);
}

static void takes_effect(struct search *s, struct world *w, struct try *t)
{
    search_result(s)->executions++;
    if (++w->effects > 1)
        broken(s, "E1: two effects");
    t->ran = 1;
}

/* ---- A request --------------------------------------------------------- */

static void begins(const struct config *c, struct world *w, int who)
{
    struct try *t = &w->tries[who];

    if (w->kept != 0 && !c->no_row) {
        replays(w, t);
        return;
    }
    t->stage = BEGUN;
    if (c->row_before) {
        w->kept = NO_RESULT;
        w->kept_body = t->role & OTHER_BODY;
    }
}

static void commits(struct search *s, struct world *w, int who)
{
    const struct config *c = search_config(s);
    struct try *t = &w->tries[who];
    uint8_t kind = t->stage == FAILED ? ONCE_FAILURE : ONCE_SUCCESS;

    t->stage = COMMITTED;
    if (c->row_after && w->kept != 0) { /* its row was not the first */
        replays(w, t);
        return;
    }
    if (w->answer == NO_ROWS)
        broken(s, "E2: an effect, and somebody was told that there is none");
    if (kind == ONCE_SUCCESS && !c->row_after)
        takes_effect(s, w, t);
    w->executed++;
    assert(w->executed < NO_ROWS);
    if (w->answer == 0)
        w->answer = w->executed;
    if (!c->no_row) {
        w->kept = w->executed;
        w->kept_kind = kind;
        w->kept_body = t->role & OTHER_BODY;
    }
    answers(t, w->executed, kind);
    if (t->reply == 0)
        t->stage = NOT_HERE;
}

/* The next step of a transaction in which nothing goes wrong. */
static void goes_on(struct search *s, struct world *w, int who)
{
    struct try *t = &w->tries[who];

    switch (t->stage) {
    case BEGUN:
        t->stage = DONE;
        if (search_config(s)->row_after)
            takes_effect(s, w, t);
        return;
    case DONE:
        t->stage = FINISHED;
        return;
    case COMMITTED:
        t->stage = NOT_HERE;
        return;
    default:
        commits(s, w, who);
    }
}

static const char *stage_text(int stage)
{
    static const char *const texts[] = {
        [BEGUN] = "has its effect, not committed",
        [DONE] = "has its answer written, not committed",
        [FINISHED] = "is committed",
        [FAILED] = "is committed, as a failure",
        [COMMITTED] = "is answered"};

    return texts[stage];
}

static void arrives_there(struct search *s, const struct world *o, int who)
{
    const struct config *c = search_config(s);
    struct world w = *o;
    struct try *t = &w.tries[who];

    t->wire = 0;
    if (locked(c, o)) { /* it may wait, too: that is no step */
        has_no_answer(t, c->tells_in_flight);
        emit_one(s, &w, "meets a copy under way, and is answered so", who);
        answers(t, THROTTLED, 0);
        emit_one(s, &w, "meets a copy under way, and is refused", who);
        return;
    }
    begins(c, &w, who);
    emit_one(s, &w,
             t->stage == BEGUN ? "begins in the service"
                               : "is answered from the row",
             who);
    if (o->left.doubles > 0) {
        w.left.doubles--;
        w.tries[who].wire = 1;
        emit_one(s, &w, "reaches the service, and is repeated behind us", who);
    }
    if (o->left.throttles > 0) {
        w = *o;
        w.left.throttles--;
        w.tries[who].wire = 0;
        answers(&w.tries[who], THROTTLED, 0);
        emit_one(s, &w, "is refused: nothing was done", who);
    }
}

/* What was not committed is gone; nobody, or "unknown", answers. */
static void ends_badly(struct search *s, const struct world *o, int who)
{
    const struct config *c = search_config(s);
    struct world w = *o;

    if (o->left.deaths > 0) {
        w.left.deaths--;
        w.tries[who].wire = 0;
        w.tries[who].stage = NOT_HERE;
        has_no_answer(&w.tries[who], 0);
        emit_one(s, &w, "is lost: the service dies", who);
    }
    if (o->left.aborts == 0 || !under_way(&o->tries[who]))
        return;
    w = *o;
    w.left.aborts--;
    w.tries[who].stage = NOT_HERE;
    has_no_answer(&w.tries[who], c->tells_rollback);
    emit_one(s, &w, "is rolled back, and answered so", who);
    answers(&w.tries[who], THROTTLED, 0);
    emit_one(s, &w, "is rolled back, and refused", who);
    if (o->tries[who].stage < FINISHED)
        return;
    w = *o;
    w.left.aborts--;
    commits(s, &w, who);
    w.tries[who].stage = NOT_HERE;
    has_no_answer(&w.tries[who], 0);
    emit_one(s, &w, "is committed, and its COMMIT is not answered", who);
}

void service(struct search *s, const struct world *o, int who)
{
    const struct try *t = &o->tries[who];
    struct world w = *o;

    if (t->wire && t->stage == NOT_HERE)
        arrives_there(s, o, who);
    if (t->wire || t->stage != NOT_HERE)
        ends_badly(s, o, who);
    if (t->stage == NOT_HERE)
        return;
    goes_on(s, &w, who);
    emit_one(s, &w, stage_text(t->stage), who);
    if (o->left.fails > 0 && t->stage == BEGUN) {
        w = *o;
        w.left.fails--;
        w.tries[who].stage = FAILED;
        emit_one(s, &w, "fails, and that is its answer, not committed", who);
    }
}

/* ---- Time -------------------------------------------------------------- */

static void forgets(struct world *w)
{
    w->kept = w->kept_kind = w->kept_body = 0;
}

/* So long a time that nothing is under way any more, and that both forget what
 * they remember for a time. One who has not asked yet asks after it. */
static void time_passes(struct search *s, const struct world *o)
{
    const struct late forget = {.verb = ONCE_OP_FORGET};
    struct world w = *o;
    unsigned i;

    w.left.passes--;
    for (i = 0; i < search_config(s)->n; i++) {
        struct try *t = &w.tries[i];
        uint8_t role = t->role;

        if (t->verb == ONCE_OP_CLAIM && t->n_late == 0 &&
            w.row.owner != i + 1 && t->alive)
            continue;
        memset(t, 0, sizeof(*t));
        t->role = role;
    }
    forgets(&w);
    if (w.row.attempt > 0)
        (void)serve(s, &w, -1, forget, 0);
    emit_one(s, &w, "the retention time passes", -1);
}

void service_ages(struct search *s, const struct world *o)
{
    struct world w = *o;

    if (o->left.purges > 0 && o->kept != 0) {
        w.left.purges--;
        forgets(&w);
        emit_one(s, &w, "the service forgets its row", -1);
    }
    if (o->left.passes > 0)
        time_passes(s, o);
}

/* ---- Answers ----------------------------------------------------------- */

void service_told(struct search *s, struct world *w, uint8_t result)
{
    if (result == RESOLVED || !w->outcomes[result].final)
        return;
    if (w->answer == 0)
        w->answer = result;
    if (result != w->answer)
        broken(s, "E2: told a result that is not that of the effect");
    if (w->outcomes[result].kind == ONCE_SUCCESS && w->effects != 1)
        broken(s, "E1: told a success, and there is not one effect");
}

/* One client asks and has its way, at a time when leases are over. */
static void one_more_asks(struct search *s, struct world *w)
{
    int who = (int)search_config(s)->n, stage;
    struct try *t = &w->tries[who];

    try_begin(search_config(s), w, (unsigned)who);
    while (t->phase != ONCE__PHASE_OVER) {
        while (t->verb != 0) {
            struct late call = {.verb = t->verb, .fence = t->fence};

            if (t->verb == ONCE_OP_COMPLETE) {
                call.kind = t->kind;
                call.result = t->result;
            }
            hear(s, w, who, serve(s, w, who, call, 1));
        }
        if (t->phase != ONCE__PHASE_SENT)
            break;
        t->wire = 0;
        begins(search_config(s), w, who);
        for (stage = t->stage; stage != NOT_HERE; stage = t->stage)
            goes_on(s, w, who);
        t->result = t->reply;
        t->kind = t->reply_kind;
        say_deed(s, w, who,
                 t->reply == UNSURE ? ONCE__PHASE_GIVE_UP
                                    : ONCE__PHASE_COMPLETE);
    }
}

/* What is under way in the service ends, one way or the other; requests that
 * have not arrived there may stay away. */
static void ends_and_asks(struct search *s, const struct world *o, int commit)
{
    struct result *seen = search_result(s);
    const struct result before = *seen;
    const char *rule;
    struct world w = *o;
    unsigned i;

    for (i = 0; i < search_config(s)->n; i++)
        while (under_way(&w.tries[i])) {
            if (commit)
                goes_on(s, &w, (int)i);
            else
                w.tries[i].stage = NOT_HERE;
        }
    one_more_asks(s, &w);
    if (seen->answers == before.answers)
        broken(s, "E3: the next client that asks gets no answer");
    rule = seen->broken;
    *seen = before;
    seen->broken = rule;
    if (rule != NULL) /* only for the trail */
        emit_one(s, &w, "all accidents end, and one more client asks", -1);
}

void service_answers(struct search *s, const struct world *w)
{
    const struct config *c = search_config(s);

    if (!c->take && !c->mixed)
        return;
    ends_and_asks(s, w, 1);
    ends_and_asks(s, w, 0);
}
