/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive.c - runs attempts on the engine's thread. src/calls/core/machine.c
 * decides what an attempt does next; here the store is asked for it, and the
 * store's answer is passed back to the machine.
 *
 *    call arrives --> drive --> ASK --> step ends --> drive ... --> reply
 *                       |                  |
 *                       |                  +-- in flight: waiting, claim again
 *                       +--> SEND: live, renewed every third of the lease
 *
 * The deadlines are all that is decided here. An attempt is not touched after
 * its caller got the reply, because the caller may have freed it by then.
 *
 * An attempt that is freed while it is the owner is given up. Its memory lives
 * until that and a renewal that is under way have ended.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "calls/engine/engine.h"

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

/* ---- Replying, and the end of the memory ------------------------------- */

static void destroy_if_idle(once_attempt *a)
{
    if (a->freeing && !a->step_out && !a->renewal_out)
        once__attempt_destroy(a);
}

/* The attempt belongs to its caller again from here on. */
static void reply(once_engine *e, once_attempt *a, int rc)
{
    once_done *done = a->done;
    void *user = a->user;

    if (a->freeing) {
        destroy_if_idle(a);
        return;
    }
    assert(a->calling && !a->step_out);
    a->calling = 0;
    e->notified = 1;
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
    /* A renewal that was not answered is no error: the next one follows. A
     * record that we may not renew any more may still accept our outcome
     * (docs/protocol.md, section 6, rule 9). */
    if (a->listed != ONCE__LIVE || a->machine.phase != ONCE__PHASE_SENT ||
        rc == ONCE_LOST || rc == ONCE_FENCED || e->ended)
        return;
    due = task->first_ms + third(a);
    once__timer_arm(&e->timers, &a->timer, due > now ? due : now + 1);
}

static void renew(once_engine *e, once_attempt *a)
{
    if (e->ended || a->renewal_out || a->machine.phase != ONCE__PHASE_SENT)
        return;
    a->renewal_out = 1;
    a->renewal_op.fence = a->machine.fence;
    once__ask(e, &a->renewal, once__now_ms() + third(a));
}

/* ---- Steps ------------------------------------------------------------- */

/* Until when this step is repeated while the store does not answer. What an
 * owner says at its end is repeated for as long as its lease runs. */
static uint64_t deadline(const once_attempt *a)
{
    uint64_t until = once__now_ms() + a->store_ms;
    int ending = a->machine.phase == ONCE__PHASE_COMPLETE ||
                 a->machine.phase == ONCE__PHASE_GIVE_UP ||
                 (a->machine.phase == ONCE__PHASE_RELEASE && a->ending != 0);

    return ending && a->lease_until_ms > until ? a->lease_until_ms : until;
}

/* May nothing be granted to it now? What it is told then, or 0. Who only looks
 * is told what there is, however old the key. */
static int held(once_engine *e, const once_attempt *a)
{
    if (once__gap_holds(e))
        return ONCE_UNKNOWN;
    return a->look ? 0 : once__age_holds(e, a->born_ms, a->max_age_ms);
}

static int held_answer(const once__task *task, int rc)
{
    if (task->held == ONCE_UNKNOWN)
        return once__gap_answer(rc, &task->op->record);
    return rc == ONCE_FREE ? task->held : rc;
}

static void ask(once_engine *e, once_attempt *a, int action)
{
    once_op *op = &a->step_op;

    assert(!a->step_out); /* the store may still read the operation */
    op->verb = a->look ? ONCE_OP_SHOW : once__action_verb(action);
    a->step.held = a->look || op->verb == ONCE_OP_CLAIM ? held(e, a) : 0;
    if (a->step.held != 0 && !a->look)
        op->verb = ONCE_OP_READ;
    op->fence = a->machine.fence;
    op->reason = a->ending != 0 ? a->reason : ONCE_REASON_STORE_SILENT;
    op->result = (once_bytes){NULL, 0};
    if (action == ONCE__ASK_COMPLETE)
        op->result = (once_bytes){a->outcome->bytes, a->outcome->size};
    a->step_out = 1;
    once__ask(e, &a->step, deadline(a));
}

/* The store's bytes are valid until its next batch. Without memory for a copy
 * the outcome cannot be returned. */
static int keep_shown(once_attempt *a, const once_record *r)
{
    size_t head = r->result.size + r->note.size;
    uint8_t *bytes = malloc(head + r->label.size + 1);

    if (bytes == NULL)
        return 0;
    free(a->shown);
    a->shown = bytes;
    if (r->result.size > 0)
        memcpy(bytes, r->result.data, r->result.size);
    if (r->note.size > 0)
        memcpy(bytes + r->result.size, r->note.data, r->note.size);
    if (r->label.size > 0)
        memcpy(bytes + head, r->label.data, r->label.size);
    a->record.result = (once_bytes){bytes, r->result.size};
    a->record.note = (once_bytes){bytes + r->result.size, r->note.size};
    a->record.label = (once_bytes){bytes + head, r->label.size};
    return 1;
}

/* Another request's result, as far as the store has it at hand: it may say why
 * this one has the same key, as a redirect does. Nobody depends on it. */
enum { OTHERS_MAX = 4096 };

static int tells_why(const once_record *r, int rc)
{
    return rc == ONCE_MISMATCH && r->state == ONCE_COMPLETED &&
           r->result.data != NULL && r->result.size <= OTHERS_MAX;
}

/* Returns `rc`, or an error if there is no memory: ONCE_ENOMEM for a claim,
 * which changed nothing; ONCE_ESTORE for the end of an owner, because its
 * caller then does not know what is recorded. */
static int keep_answer(once_attempt *a, const once_op *op, int rc)
{
    a->record = op->record;
    a->record.result = (once_bytes){NULL, 0};
    a->record.note = (once_bytes){NULL, 0};
    a->record.label = (once_bytes){NULL, 0};
    a->left_ms = rc == ONCE_IN_FLIGHT ? op->left_ms : 0;
    if (rc == ONCE_REPLAY && !keep_shown(a, &op->record))
        return a->ending != 0 ? ONCE_ESTORE : ONCE_ENOMEM;
    if (tells_why(&op->record, rc))
        (void)keep_shown(a, &op->record);
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
    if (a->stopped || e->ended || atomic_load(&e->closing) ||
        once__now_ms() >= a->wait_until_ms)
        return 0;
    return a->listed == ONCE__WAITING ||
           atomic_load_explicit(&e->count.waiting, memory_order_relaxed) <
               e->options.waiters_max;
}

/* Claims again after 10 ms, then after half as much again each time, up to 250;
 * the last time is the deadline itself. */
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
    } else if (e->ended) {
        unlist(e, a);
        reply(e, a, ONCE_IN_FLIGHT);
    } else {
        drive(e, a,
              a->look ? once__machine_look(&a->machine)
                      : once__machine_again(&a->machine));
    }
}

static void end_waiting(once_engine *e, once_attempt *a)
{
    if (a->listed != ONCE__WAITING || a->step_out)
        return; /* a claim is under way: its answer ends the waiting */
    unlist(e, a);
    reply(e, a, ONCE_IN_FLIGHT);
}

/* ---- The machine's driver ---------------------------------------------- */

static void drop_outcome(once_attempt *a)
{
    once__engine_outcome_free(a->engine, a->outcome);
    a->outcome = NULL;
}

/* Once the engine has ended the store is not asked, so it does not answer. */
static void drive(once_engine *e, once_attempt *a, int action)
{
    int rc;

    while (action != ONCE__SEND && action != ONCE__RETURN) {
        if (!e->ended) {
            ask(e, a, action);
            return;
        }
        action = once__machine_unanswered(&a->machine);
    }
    rc = action == ONCE__SEND ? ONCE_OWNER : a->machine.reported;
    unlist(e, a);
    if (action == ONCE__RETURN) {
        drop_outcome(a);
        reply(e, a, rc);
        return;
    }
    list(e, a, ONCE__LIVE);
    once__timer_arm(&e->timers, &a->timer,
                    once__now_ms() + once__jitter(e, third(a)) * 4 / 5);
    reply(e, a, rc);
}

/*
 * A store without memory or room does not end a complete, release or give up:
 * the outcome is known, and must be recorded if that is possible at all before
 * the lease expires.
 */
static int refused_for_now(const once_attempt *a, int rc)
{
    return (rc == ONCE_ENOMEM || rc == ONCE_EFULL) &&
           (a->machine.phase == ONCE__PHASE_COMPLETE ||
            a->machine.phase == ONCE__PHASE_GIVE_UP ||
            a->machine.phase == ONCE__PHASE_RELEASE);
}

/* The end that an owner reported is repeated also after its lease has expired.
 * A claim that is taken back is not: in an outage there may be one for each
 * request. */
static int is_known(const once_attempt *a)
{
    return a->machine.phase == ONCE__PHASE_COMPLETE ||
           (a->machine.phase == ONCE__PHASE_RELEASE && a->ending != 0);
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
    rc = once__reportable(task, rc);
    if (task->held != 0)
        rc = held_answer(task, rc);
    if (task->held != 0 || a->look)
        verb = ONCE_OP_CLAIM; /* in whose place it was asked */
    if (verb == ONCE_OP_CLAIM && rc == ONCE_OWNER &&
        once__age_passed(e, a->born_ms, a->max_age_ms))
        rc = ONCE_LOST; /* the machine takes the claim back */
    a->step_out = 0;
    if (rc == ONCE_ECLOSED && a->machine.phase != ONCE__PHASE_CLAIM)
        rc =
            ONCE_ESTORE; /* its claim was applied: "nothing changed" is wrong */
    if (rc != ONCE_ESTORE) {
        note_lease(a, rc);
        rc = keep_answer(a, &a->step_op, rc);
    }
    if (rc == ONCE_ESTORE) {
        if (is_known(a) && !e->ended)
            once__late_begin(e, a);
        drive(e, a, once__machine_unanswered(&a->machine));
        return;
    }
    action = once__machine_answer(&a->machine, rc, &a->step_op.record);
    if (verb == ONCE_OP_CLAIM && rc == ONCE_IN_FLIGHT && may_wait(e, a))
        wait(e, a); /* it has never been the owner, so it may claim again */
    else
        drive(e, a, action);
}

/* ---- What arrives ------------------------------------------------------ */

static void begin_ending(once_engine *e, once_attempt *a)
{
    once__timer_cancel(&e->timers, &a->timer); /* no renewal from here on */
    drive(e, a, once__machine_end(&a->machine, a->ending));
}

void once__call_arrived(void *engine, struct once__node *node)
{
    once_attempt *a = ONCE__OF(node, once_attempt, call_node);
    once_engine *e = engine;

    once__queue_leave(e);
    if (a->ending != 0) {
        begin_ending(e, a);
        return;
    }
    if (once__absent(e) != ONCE_OK) {
        reply(e, a, once__absent(e));
        return;
    }
    a->wait_until_ms = once__now_ms() + a->wait_ms;
    drive(e, a,
          a->look
              ? once__machine_look(&a->machine)
              : once__machine_begin(&a->machine, (int)a->step_op.two_phase));
}

void once__stop_arrived(void *engine, struct once__node *node)
{
    once_attempt *a = ONCE__OF(node, once_attempt, stop_node);

    a->stopped = 1;
    end_waiting(engine, a);
}

void once__free_arrived(void *engine, struct once__node *node)
{
    once_attempt *a = ONCE__OF(node, once_attempt, free_node);
    once_engine *e = engine;

    assert(!a->calling); /* `done` would be called with freed memory */
    a->freeing = 1;
    if (a->listed == ONCE__LIVE && !e->ended) {
        a->ending = ONCE__PHASE_GIVE_UP;
        a->reason = ONCE_REASON_OWNER_GONE;
        begin_ending(e, a);
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

void once__attempt_destroy(once_attempt *a)
{
    once_engine *e = a->engine;

    assert(a->listed != ONCE__LIVE && !a->timer.armed);
    assert(!a->step_out && !a->renewal_out);
    drop_outcome(a);
    free(a->shown);
    once__spare_give(&e->spare, a, sizeof(*a));
    once__drop(e);
}
