/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps.c - all that can happen next in a world.
 *
 *    a call of an attempt     answered, now or when the lease is over
 *                             applied, and the answer is lost: asked again
 *                             still under way while it is asked again: late
 *                             nobody answers until patience ends (applied,
 *                             lost, or still under way)
 *    a late copy              arrives, whenever; also when its owner is dead
 *    a request                executed, failing, refused ("I did nothing"),
 *                             executed twice behind us (a limit)
 *    an owner                 hears its answer, is cut off, learns that no
 *                             byte was sent, renews, dies
 *    a waiter                 looks again
 *    a probe                  see probe.c
 *    a service                that outlives its server: see outlive.c
 *    everybody's              reaper, operator, retention, failover (a limit);
 *                             the key becomes too old
 *
 * It refuses to be clever: a step that changes nothing is emitted too, and the
 * search finds out. What it leaves out: a call that never arrives and is asked
 * again changes nothing, so it is not a step.
 */
#include <assert.h>

#include "calls/core/machine.h"

#include "explore.h"

static struct step one(const char *what, int who, int verb, int late, int rc)
{
    return (struct step){what, who, verb, late, rc};
}

/* ---- Calls ------------------------------------------------------------- */

static struct late call_of(const struct try *t)
{
    int complete = t->verb == ONCE_OP_COMPLETE;

    return (struct late){.verb = t->verb,
                         .fence = t->fence,
                         .kind = complete ? t->kind : 0,
                         .result = complete ? t->result : 0};
}

/* What the engine asks in place of a claim when the key is too old. */
static struct late asked_of(struct search *s, const struct world *w, int who)
{
    struct late call = call_of(&w->tries[who]);

    if (call.verb == ONCE_OP_CLAIM && w->old && !search_config(s)->old_claims)
        call.verb = ONCE_OP_READ;
    return call;
}

/* Only a claim looks at the lease. */
static int moments(const struct world *w, int verb)
{
    return verb == ONCE_OP_CLAIM && row_owned(&w->row) ? 2 : 1;
}

/* 1 if a late copy could be noted; a late read is of no use to anybody. */
static int stays_under_way(struct try *t)
{
    if (t->verb == 0 || t->verb == ONCE_OP_READ || t->n_late == LATE_MAX)
        return 0;
    t->late[t->n_late++] = call_of(t);
    return 1;
}

static void arrives(struct search *s, const struct world *o, int who, int late)
{
    const struct late call = asked_of(s, o, who);
    struct world w = *o;
    int rc = serve(s, &w, who, call, late);

    hear(s, &w, who, rc);
    emit(s, &w, one("asks", who, call.verb, late, rc));
    if (o->left.lost > 0) {
        w = *o;
        w.left.lost--;
        rc = serve(s, &w, who, call, late);
        emit(s, &w,
             one("asks, answer lost, asks again", who, call.verb, late, rc));
    }
    if (o->left.silent > 0) {
        w = *o;
        w.left.silent--;
        rc = serve(s, &w, who, call, late);
        hear_nothing(s, &w, who);
        emit(s, &w,
             one("asks, hears nothing and is out of patience", who, call.verb,
                 late, rc));
    }
}

static void does_not_arrive(struct search *s, const struct world *o, int who)
{
    int verb = o->tries[who].verb;
    struct world w = *o;

    if (o->left.lost > 0 && stays_under_way(&w.tries[who])) {
        w.left.lost--;
        emit(s, &w,
             one("asks again while the first copy is under way", who, verb, 0,
                 -1));
    }
    if (o->left.silent == 0)
        return;
    w = *o;
    w.left.silent--;
    hear_nothing(s, &w, who);
    emit(s, &w,
         one("is out of patience, nothing had arrived of", who, verb, 0, -1));
    w = *o;
    if (stays_under_way(&w.tries[who])) {
        w.left.silent--;
        hear_nothing(s, &w, who);
        emit(s, &w,
             one("is out of patience, still under way is", who, verb, 0, -1));
    }
}

static void late_copies(struct search *s, const struct world *o, int who)
{
    const struct try *t = &o->tries[who];
    int i, late;

    for (i = 0; i < t->n_late; i++)
        for (late = 0; late < moments(o, t->late[i].verb); late++) {
            struct world w = *o;
            struct try *x = &w.tries[who];
            int rc = t->late[i].verb == ONCE_OP_RESOLVE
                         ? probe_decide(s, &w, t->late[i])
                         : serve(s, &w, who, t->late[i], late);

            x->n_late--;
            x->late[i] = x->late[x->n_late];
            x->late[x->n_late] = (struct late){0};
            emit(s, &w,
                 one("sees nothing of it: late arrives a", who, t->late[i].verb,
                     late, rc));
        }
}

/* ---- Upstream ---------------------------------------------------------- */

static void executes(struct search *s, struct world *w, int who, int kind)
{
    const struct config *c = search_config(s);
    struct try *t = &w->tries[who];

    if (t->ran && !c->dedup)
        broken(s, "I1: one request was executed twice");
    t->ran = 1;
    if (c->dedup) {
        w->executed = 1;
        t->reply = 1;
        t->reply_kind = ONCE_SUCCESS;
        return;
    }
    search_result(s)->executions++;
    if (t->period == w->period) {
        if (!(w->open >> who & 1))
            broken(s, "I1: executed although it was released");
        if (!c->take && !c->mixed && w->open != 1u << who)
            broken(s, "I1: executed while another dispatch is open");
        if (++w->done > 1 && c->take)
            broken(s, "I1: executed twice");
        w->happened |= kind == ONCE_SUCCESS;
    }
    t->reply = ++w->executed;
    t->reply_kind = (uint8_t)kind;
    if (w->left.ends > 0) {
        t->made = t->reply;
        t->made_kind = t->reply_kind;
    }
    assert(w->executed < RESULTS_MAX);
}

static void upstream(struct search *s, const struct world *o, int who)
{
    struct world w = *o;

    w.tries[who].wire = 0;
    executes(s, &w, who, ONCE_SUCCESS);
    emit(s, &w, one("is executed", who, 0, 0, -1));
    if (o->left.fails > 0) {
        w = *o;
        w.left.fails--;
        w.tries[who].wire = 0;
        executes(s, &w, who, ONCE_FAILURE);
        emit(s, &w, one("is executed and fails", who, 0, 0, -1));
    }
    if (o->left.throttles > 0) {
        w = *o;
        w.left.throttles--;
        w.tries[who].wire = 0;
        w.tries[who].reply = THROTTLED;
        emit(s, &w, one("is refused: nothing was done", who, 0, 0, -1));
    }
    if (o->left.doubles > 0) {
        w = *o;
        w.left.doubles--;
        executes(s, &w, who, ONCE_SUCCESS);
        emit(s, &w, one("is executed, and repeated behind us", who, 0, 0, -1));
    }
}

/* ---- Owners ------------------------------------------------------------ */

static void reply_comes(struct search *s, const struct world *o, int who)
{
    const struct config *c = search_config(s);
    struct world w = *o;
    struct try *t = &w.tries[who];

    if (t->reply == THROTTLED || t->reply == UNSURE) {
        int unsure = t->reply == UNSURE;

        say_deed(s, &w, who,
                 unsure ? ONCE__PHASE_GIVE_UP : ONCE__PHASE_RELEASE);
        emit(s, &w,
             one(unsure ? "hears \"unknown\", or nothing more"
                        : "hears \"nothing was done\"",
                 who, 0, 0, -1));
        return;
    }
    t->result = t->reply;
    t->kind = t->reply_kind;
    say_deed(s, &w, who,
             c->oversize_releases ? ONCE__PHASE_RELEASE : ONCE__PHASE_COMPLETE);
    emit(s, &w, one("hears its answer", who, 0, 0, -1));
}

static void owner(struct search *s, const struct world *o, int who)
{
    const struct config *c = search_config(s);
    struct world w = *o;

    if (o->tries[who].reply != 0 && o->tries[who].stage == 0)
        reply_comes(s, o, who);
    if (o->left.breaks > 0) {
        w.left.breaks--;
        say_deed(s, &w, who,
                 c->reset_releases ? ONCE__PHASE_RELEASE : ONCE__PHASE_GIVE_UP);
        emit(s, &w, one("is cut off from the upstream", who, 0, 0, -1));
    }
    if (o->left.misses > 0 && o->tries[who].wire) {
        w = *o;
        w.left.misses--;
        w.tries[who].wire = 0;
        say_deed(s, &w, who, ONCE__PHASE_RELEASE);
        emit(s, &w, one("learns that not a byte was sent", who, 0, 0, -1));
    }
    w = *o;
    if (o->left.renewals > 0 && w.tries[who].n_late < LATE_MAX) {
        struct try *t = &w.tries[who];

        w.left.renewals--;
        t->late[t->n_late++] =
            (struct late){.verb = ONCE_OP_RENEW, .fence = t->fence};
        emit(s, &w, one("renews", who, 0, 0, -1));
    }
}

static void die(struct search *s, struct world *w, int who, const char *what)
{
    struct try *t = &w->tries[who];

    t->alive = t->phase = t->told = t->fence = t->verb = 0;
    t->asks = t->heard = t->probed = 0;
    t->kind = t->result = t->reply = t->reply_kind = 0;
    emit(s, w, one(what, who, 0, 0, -1));
}

static void crash(struct search *s, const struct world *o, int who)
{
    struct world w = *o;

    w.left.crashes--;
    if (stays_under_way(&w.tries[who]))
        die(s, &w, who, "dies, and its last call is under way");
    w = *o;
    w.left.crashes--;
    die(s, &w, who, "dies");
}

static void alive(struct search *s, const struct world *o, int who)
{
    const struct try *t = &o->tries[who];
    int late;

    if (t->verb != 0) {
        for (late = 0; late < moments(o, t->verb); late++)
            arrives(s, o, who, late);
        does_not_arrive(s, o, who);
    }
    if (t->phase == ONCE__PHASE_SENT)
        owner(s, o, who);
    if (t->phase == ONCE__PHASE_OVER && t->told == ONCE_IN_FLIGHT &&
        o->left.waits > 0) {
        struct world w = *o;

        w.left.waits--;
        look_again(s, &w, who);
        emit(s, &w, one("has waited and looks again", who, 0, 0, -1));
    }
    probe(s, o, who);
    if (t->phase != ONCE__PHASE_OVER && o->left.crashes > 0)
        crash(s, o, who);
}

/* ---- Everybody's ------------------------------------------------------- */

static void nobodys(struct search *s, const struct world *o, int verb,
                    struct late call, int late, struct world *w)
{
    int rc;

    call.verb = (uint8_t)verb;
    rc = serve(s, w, -1, call, late);
    (void)o;
    emit(s, w, one("", -1, verb, late, rc));
}

/* He looks at one moment and decides at another. */
static void operator(struct search *s, const struct world *o)
{
    struct late call = {.fence = o->shown};
    struct world w = *o;

    if (o->left.resolves > 0 && o->row.state == ONCE_INDETERMINATE &&
        o->shown != o->row.fence) {
        w.shown = o->row.fence;
        emit(s, &w, one("the operator looks at it", -1, 0, 0, -1));
    }
    if (o->left.resolves == 0 || o->shown == 0)
        return;
    w = *o;
    w.left.resolves--;
    w.shown = 0;
    if (search_config(s)->reopen)
        nobodys(s, o, ONCE_OP_REOPEN, call, 0, &w);
    w = *o;
    w.left.resolves--;
    w.shown = 0;
    call.kind = ONCE_SUCCESS;
    call.result = RESOLVED;
    nobodys(s, o, ONCE_OP_RESOLVE, call, 0, &w);
}

static void failover(struct search *s, const struct world *o)
{
    struct world w = *o;

    if (o->left.failovers == 0)
        return;
    w.replica = w.row;
    emit(s, &w, one("the replica catches up", -1, 0, 0, -1));
    w = *o;
    w.left.failovers--;
    w.row = w.replica;
    if (search_config(s)->tx) { /* only what the service promises is left */
        w.fence = w.replica.fence;
        w.open = w.grants = 0;
    }
    emit(s, &w, one("the store falls back to its replica", -1, 0, 0, -1));
}

static void everybodys(struct search *s, const struct world *o)
{
    struct late none = {0};
    struct world w = *o;

    if (row_owned(&o->row))
        nobodys(s, o, ONCE_OP_REAP, none, 1, &w);
    operator(s, o);
    w = *o;
    if (o->left.keeps > 0 && o->row.attempt > 0 &&
        (!search_config(s)->timed || o->old)) {
        w.left.keeps--;
        nobodys(s, o, ONCE_OP_FORGET, none, 0, &w);
    }
    if (o->left.ages > 0 && o->row.attempt > 0) {
        w = *o;
        w.left.ages--;
        w.old = 1;
        emit(s, &w, one("the key is too old from now on", -1, 0, 0, -1));
    }
    failover(s, o);
}

/* An attempt that lives, is not over, waits for no call and has neither a
 * request nor an answer under way would wait for ever, were it not for its
 * upstream's time-out, which the breaks stand for. */
static void check_not_stuck(struct search *s, const struct try *t)
{
    int waits = t->verb != 0 || t->wire || t->stage != 0 || t->reply != 0;

    if (t->alive && t->phase != ONCE__PHASE_OVER && !waits)
        broken(s, "L1: an attempt is stuck");
}

void expand(struct search *s, const struct world *w)
{
    unsigned i;

    for (i = 0; i < search_config(s)->n; i++) {
        const struct try *t = &w->tries[i];

        check_not_stuck(s, t);
        if (t->alive)
            alive(s, w, (int)i);
        late_copies(s, w, (int)i);
        outlive(s, w, (int)i);
        if (search_config(s)->tx)
            service(s, w, (int)i);
        else if (t->wire)
            upstream(s, w, (int)i);
    }
    everybodys(s, w);
    if (search_config(s)->tx) {
        service_ages(s, w);
        service_answers(s, w);
    }
}
