/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claims.c - attempts on the engine's thread: what once__machine decides is
 * asked here, and what was heard goes back to it.
 *
 *    call arrives --> drive --> ASK --> step ends --> drive ... --> tell
 *                       |                  |
 *                       |                  +-- in flight: waiting, look again
 *                       +--> SEND: live, renewed every third of the lease
 *
 * It decides how long to be patient and nothing else: who may do what is
 * src/core/machine.c. It refuses to touch an attempt after its caller was told,
 * because the caller may have freed it by then.
 *
 * An attempt that is freed while it owns is given up; its memory lives until
 * that was answered and its renewal has come home.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { LOOK_MS = 10, LOOK_MAX_MS = 250, RENEWALS = 3 };

static void drive(once_engine *e, once_attempt *a, int action);

/* ---- Lists of those that wait and those that own ----------------------- */

/* The first live attempt is the oldest: grants only ever append. */
static void note_oldest(once_engine *e)
{
    const struct once__link *first = e->live.next;
    uint64_t since = 0;

    if (first != &e->live)
        since = ONCE__OF(first, once_attempt, link)->since_ms;
    atomic_store_explicit(&e->count.oldest_since_ms, since,
                          memory_order_relaxed);
}

static void unlist(once_engine *e, once_attempt *a)
{
    enum once__listed was = a->listed;

    once__timer_cancel(&e->timers, &a->timer);
    if (was == ONCE__UNLISTED)
        return;
    a->link.previous->next = a->link.next;
    a->link.next->previous = a->link.previous;
    a->listed = ONCE__UNLISTED;
    once__uncount(was == ONCE__LIVE ? &e->count.live : &e->count.waiting);
    if (was == ONCE__LIVE)
        note_oldest(e);
}

static void list(once_engine *e, once_attempt *a, enum once__listed as)
{
    struct once__link *head = as == ONCE__LIVE ? &e->live : &e->waiting;

    unlist(e, a);
    a->link.next = head;
    a->link.previous = head->previous;
    head->previous->next = &a->link;
    head->previous = &a->link;
    a->listed = as;
    a->since_ms = once__now_ms();
    once__count(as == ONCE__LIVE ? &e->count.live : &e->count.waiting, 1);
    if (as == ONCE__LIVE)
        note_oldest(e);
}

/* ---- Telling, and the end of the memory -------------------------------- */

static void destroy_if_idle(once_attempt *a)
{
    if (a->freeing && !a->step_out && !a->renewal_out)
        once__attempt_destroy(a);
}

/* The last that is done with an attempt before it is its caller's again. */
static void tell(once_engine *e, once_attempt *a, int rc)
{
    once_done *done = a->done;
    void *user = a->user;

    if (a->freeing) {
        destroy_if_idle(a);
        return;
    }
    assert(a->calling);
    a->calling = 0;
    e->told = 1;
    done(a, rc, user);
}

/* ---- Renewal ----------------------------------------------------------- */

static uint64_t third(const once_attempt *a)
{
    return a->lease_ms / RENEWALS;
}

static void renewed(once_engine *e, once__task *task, int rc)
{
    once_attempt *a = ONCE__OF(task, once_attempt, renewal);
    uint64_t now = once__now_ms(), due;

    a->renewal_out = 0;
    if (a->freeing) {
        destroy_if_idle(a);
        return;
    }
    if (rc == ONCE_OK) {
        once__count(&e->count.renewed, 1);
        a->lease_until_ms = task->first_ms + a->lease_ms;
    }
    /* A renewal that went missing is no error. A record that is no longer ours
     * to renew may still take our late outcome (rule 9). */
    if (a->listed != ONCE__LIVE || a->machine.phase != ONCE__PHASE_SENT ||
        rc == ONCE_LOST || rc == ONCE_FENCED || e->over)
        return;
    due = task->first_ms + third(a);
    once__timer_arm(&e->timers, &a->timer, due > now ? due : now + 1);
}

static void renew(once_engine *e, once_attempt *a)
{
    if (e->over || a->renewal_out || a->machine.phase != ONCE__PHASE_SENT)
        return;
    a->renewal_out = 1;
    a->renewal_op.fence = a->machine.fence;
    once__ask(e, &a->renewal, once__now_ms() + third(a));
}

/* ---- Steps ------------------------------------------------------------- */

/* How long this step is repeated while nobody answers. What follows a deed is
 * worth asking as long as the lease runs. */
static uint64_t patience(const once_attempt *a)
{
    uint64_t until = once__now_ms() + a->store_ms;
    int deed = a->machine.phase == ONCE__PHASE_COMPLETE ||
               a->machine.phase == ONCE__PHASE_GIVE_UP ||
               (a->machine.phase == ONCE__PHASE_RELEASE && a->deed != 0);

    return deed && a->lease_until_ms > until ? a->lease_until_ms : until;
}

static void ask(once_engine *e, once_attempt *a, int action)
{
    once_op *op = &a->step_op;

    op->verb = once__action_verb(action);
    op->fence = a->machine.fence;
    op->result = (once_bytes){NULL, 0};
    if (action == ONCE__ASK_COMPLETE)
        op->result = (once_bytes){a->outcome->bytes, a->outcome->size};
    a->step_out = 1;
    once__ask(e, &a->step, patience(a));
}

/* Bytes of the store go away with its next batch. Without memory for them
 * nobody can be told the outcome. */
static int keep_shown(once_attempt *a, const once_record *r)
{
    uint8_t *bytes = malloc(r->result.size + r->note.size + 1);

    if (bytes == NULL)
        return 0;
    free(a->shown);
    a->shown = bytes;
    if (r->result.size > 0)
        memcpy(bytes, r->result.data, r->result.size);
    if (r->note.size > 0)
        memcpy(bytes + r->result.size, r->note.data, r->note.size);
    a->record.result = (once_bytes){bytes, r->result.size};
    a->record.note = (once_bytes){bytes + r->result.size, r->note.size};
    return 1;
}

/* Returns `rc`, or an error in its place: a claim changed nothing, but after
 * a deed it is not known what stands there. */
static int keep_answer(once_attempt *a, const once_op *op, int rc)
{
    a->record = op->record;
    a->record.result = (once_bytes){NULL, 0};
    a->record.note = (once_bytes){NULL, 0};
    a->left_ms = rc == ONCE_IN_FLIGHT ? op->left_ms : 0;
    if (rc == ONCE_REPLAY && !keep_shown(a, &op->record))
        return a->deed != 0 ? ONCE_ESTORE : ONCE_ENOMEM;
    return rc;
}

static void note_lease(once_attempt *a, int rc)
{
    int verb = a->step_op.verb;

    if ((verb == ONCE_OP_CLAIM && rc == ONCE_OWNER) ||
        (verb == ONCE_OP_DISPATCH && rc == ONCE_OK))
        a->lease_until_ms = a->step.first_ms + a->lease_ms;
}

/* ---- Waiting ----------------------------------------------------------- */

static int may_wait(const once_engine *e, const once_attempt *a)
{
    if (a->stopped || e->over || atomic_load(&e->closing) ||
        once__now_ms() >= a->wait_until_ms)
        return 0;
    return a->listed == ONCE__WAITING ||
           atomic_load_explicit(&e->count.waiting, memory_order_relaxed) <
               e->options.waiters_max;
}

/* 10 ms, half as much again each time up to 250; the last look is at the
 * deadline itself. */
static void wait(once_engine *e, once_attempt *a)
{
    uint64_t now = once__now_ms(), ms = LOOK_MS, left = a->wait_until_ms - now;
    uint32_t i;

    if (a->listed != ONCE__WAITING)
        list(e, a, ONCE__WAITING);
    for (i = 0; i < a->looks && ms < LOOK_MAX_MS; i++)
        ms += ms / 2;
    ms = ms < LOOK_MAX_MS ? ms : LOOK_MAX_MS;
    a->looks++;
    ms = once__jitter(e, ms);
    once__timer_arm(&e->timers, &a->timer, now + (ms < left ? ms : left));
}

static void timer_fired(void *engine, struct once__timer *timer)
{
    once_attempt *a = ONCE__OF(timer, once_attempt, timer);
    once_engine *e = engine;

    if (a->listed == ONCE__LIVE) {
        renew(e, a);
    } else if (e->over) {
        unlist(e, a);
        tell(e, a, ONCE_IN_FLIGHT);
    } else {
        drive(e, a, once__machine_again(&a->machine));
    }
}

static void end_waiting(once_engine *e, once_attempt *a)
{
    if (a->listed != ONCE__WAITING || a->step_out)
        return; /* a look is under way: its answer ends it */
    unlist(e, a);
    tell(e, a, ONCE_IN_FLIGHT);
}

/* ---- The machine's driver ---------------------------------------------- */

/* When nothing is asked any more, nobody answers either. */
static void drive(once_engine *e, once_attempt *a, int action)
{
    int rc;

    while (action != ONCE__SEND && action != ONCE__RETURN) {
        if (!e->over) {
            ask(e, a, action);
            return;
        }
        action = once__machine_unanswered(&a->machine);
    }
    rc = action == ONCE__SEND ? ONCE_OWNER : a->machine.told;
    unlist(e, a);
    if (action == ONCE__RETURN) {
        once__outcome_free(a);
        tell(e, a, rc);
        return;
    }
    list(e, a, ONCE__LIVE);
    once__timer_arm(&e->timers, &a->timer,
                    once__now_ms() + once__jitter(e, third(a)) * 4 / 5);
    tell(e, a, rc);
}

/*
 * A definite refusal for want of memory or room does not end a deed: the
 * outcome is known and must be recorded if that can be done at all before the
 * lease is over.
 */
static int refused_for_now(const once_attempt *a, int rc)
{
    return (rc == ONCE_ENOMEM || rc == ONCE_EFULL) &&
           (a->machine.phase == ONCE__PHASE_COMPLETE ||
            a->machine.phase == ONCE__PHASE_GIVE_UP ||
            a->machine.phase == ONCE__PHASE_RELEASE);
}

/* What an owner said is worth asking on when its lease is over. A claim that
 * is taken back is not: there may be one for each request of an outage. */
static int is_known(const once_attempt *a)
{
    return a->machine.phase == ONCE__PHASE_COMPLETE ||
           (a->machine.phase == ONCE__PHASE_RELEASE && a->deed != 0);
}

static void step_ended(once_engine *e, once__task *task, int rc)
{
    once_attempt *a = ONCE__OF(task, once_attempt, step);
    int verb = a->step_op.verb, action;

    if (refused_for_now(a, rc)) {
        if (once__ask_again(e, task))
            return;
        rc = ONCE_ESTORE;
    }
    rc = once__told(task, rc);
    a->step_out = 0;
    if (rc == ONCE_ECLOSED && a->machine.phase != ONCE__PHASE_CLAIM)
        rc = ONCE_ESTORE; /* it owns something, so "nothing changed" is wrong */
    if (rc != ONCE_ESTORE) {
        note_lease(a, rc);
        rc = keep_answer(a, &a->step_op, rc);
    }
    if (rc == ONCE_ESTORE) {
        if (is_known(a) && !e->over)
            once__late_begin(e, a);
        drive(e, a, once__machine_unanswered(&a->machine));
        return;
    }
    action = once__machine_answer(&a->machine, rc, &a->step_op.record);
    if (verb == ONCE_OP_CLAIM && rc == ONCE_IN_FLIGHT && may_wait(e, a))
        wait(e, a); /* it never was the owner, so it may claim again */
    else
        drive(e, a, action);
}

/* ---- What arrives ------------------------------------------------------ */

static void begin_deed(once_engine *e, once_attempt *a)
{
    once__timer_cancel(&e->timers, &a->timer); /* no renewal from here on */
    drive(e, a, once__machine_end(&a->machine, a->deed));
}

void once__attempt_arrived(void *engine, struct once__node *node)
{
    once_attempt *a = ONCE__OF(node, once_attempt, call);
    once_engine *e = engine;

    once__queue_leave(e);
    if (a->deed != 0) {
        begin_deed(e, a);
        return;
    }
    if (once__absent(e) != ONCE_OK) {
        tell(e, a, once__absent(e));
        return;
    }
    a->wait_until_ms = once__now_ms() + a->wait_ms;
    drive(e, a, once__machine_begin(&a->machine, (int)a->step_op.two_phase));
}

void once__attempt_stopped(void *engine, struct once__node *node)
{
    once_attempt *a = ONCE__OF(node, once_attempt, stop);

    a->stopped = 1;
    end_waiting(engine, a);
}

void once__attempt_freed(void *engine, struct once__node *node)
{
    once_attempt *a = ONCE__OF(node, once_attempt, bye);
    once_engine *e = engine;

    assert(!a->calling); /* its `done` would find nobody */
    a->freeing = 1;
    if (a->listed == ONCE__LIVE && !e->over) {
        a->deed = ONCE__PHASE_GIVE_UP;
        begin_deed(e, a);
        return;
    }
    unlist(e, a);
    destroy_if_idle(a);
}

void once__live_abandon(once_engine *e)
{
    while (e->live.next != &e->live)
        unlist(e, ONCE__OF(e->live.next, once_attempt, link));
}

void once__attempt_setup(once_attempt *a)
{
    a->timer.fire = timer_fired;
    a->step.op = &a->step_op;
    a->step.end = step_ended;
    a->renewal.op = &a->renewal_op;
    a->renewal.end = renewed;
}

void once__outcome_free(once_attempt *a)
{
    free(a->outcome);
    a->outcome = NULL;
}

void once__attempt_destroy(once_attempt *a)
{
    once_engine *e = a->engine;

    once__outcome_free(a);
    free(a->shown);
    free(a);
    once__drop(e);
}
