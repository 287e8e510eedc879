/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.c - one call on the record, one answer to an attempt, and the rules
 * that are checked right there: I1 to I6 of docs/protocol.md, section 10.
 *
 * The checks are written from the page, not from the code: they look at what
 * was sent, recorded and told, never at how once__transition() came to its answer.
 */
#include <assert.h>
#include <string.h>

#include "calls/core/transition.h"
#include "calls/core/machine.h"

#include "explore.h"

/* Leases are over, or not, at one of these two moments of the store. */
enum { NOW = 0, LATER = 10, LEASE = 10, LONG_AFTER = 1000000 };

/* Results are told apart by one byte. */
static const uint8_t bytes[RESOLVED + 1] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60};

int row_owned(const struct row *r)
{
    return r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED;
}

static int live(const struct row *r)
{
    return row_owned(r) || r->state == ONCE_INDETERMINATE;
}

static uint8_t print_of(const struct try *t)
{
    return (t->role & OTHER_REQUEST) ? 8 : 7;
}

void try_begin(const struct config *c, struct world *w, unsigned who)
{
    struct try *t = &w->tries[who];

    memset(t, 0, sizeof(*t));
    t->alive = 1;
    t->verb = ONCE_OP_CLAIM;
    t->phase = ONCE__PHASE_CLAIM;
    t->role = c->retry ? ONCE_RETRY_FAILED : 0;
    if (c->take || (c->mixed && who > 0))
        t->role |= ONCE_TAKEOVER;
    if (c->other_print && who == c->n - 1)
        t->role |= OTHER_REQUEST;
    if (c->other_body && who == c->n - 1)
        t->role |= OTHER_BODY;
}

void world_begin(const struct config *c, struct world *w)
{
    unsigned i;

    memset(w, 0, sizeof(*w));
    w->left = c->budget;
    for (i = 0; i < c->n; i++)
        try_begin(c, w, i);
}

/* ---- Symmetry ---------------------------------------------------------- */

static uint8_t renamed(const uint8_t *to, uint8_t owner)
{
    return owner == 0 ? 0 : (uint8_t)(to[owner - 1] + 1);
}

static void rename_all(struct world *w, unsigned n, const uint8_t *to)
{
    uint8_t open = 0;
    unsigned i;

    for (i = 0; i < n; i++)
        if (w->open >> i & 1)
            open = (uint8_t)(open | 1u << to[i]);
    w->open = open;
    w->row.owner = renamed(to, w->row.owner);
    w->replica.owner = renamed(to, w->replica.owner);
    for (i = 0; i < RESULTS_MAX; i++)
        w->outcomes[i].by = renamed(to, w->outcomes[i].by);
}

/* What orders two attempts must not depend on their places, or two worlds that
 * differ by a permutation only would both be kept: slower, never wrong. */
static int before(const struct world *w, unsigned a, unsigned b)
{
    int order = memcmp(&w->tries[a], &w->tries[b], sizeof(w->tries[a]));

    if (order == 0)
        order = (w->row.owner == b + 1) - (w->row.owner == a + 1);
    if (order == 0)
        order = (w->open >> a & 1) - (w->open >> b & 1);
    return order < 0 || (order == 0 && a < b);
}

void world_sort(const struct config *c, struct world *w)
{
    struct try tries[TRIES_MAX];
    uint8_t order[TRIES_MAX], to[TRIES_MAX], place;
    unsigned i, k;

    if (c->plain)
        return;
    for (i = 0; i < c->n; i++) {
        for (k = i; k > 0 && before(w, i, order[k - 1]); k--)
            order[k] = order[k - 1];
        order[k] = (uint8_t)i;
    }
    for (place = 0; place < c->n; place++) {
        to[order[place]] = place;
        tries[place] = w->tries[order[place]];
    }
    rename_all(w, c->n, to);
    memcpy(w->tries, tries, c->n * sizeof(tries[0]));
}

/* ---- Between bytes and the core's own types ---------------------------- */

static void set_token(uint8_t token[ONCE_TOKEN_SIZE], int owner)
{
    memset(token, owner, ONCE_TOKEN_SIZE);
}

static void to_record(const struct row *row, once_record *r)
{
    memset(r, 0, sizeof(*r));
    r->state = row->state;
    r->kind = row->kind;
    r->policy = row->policy;
    r->doubt = row->doubt;
    r->attempt = row->attempt;
    r->fence = row->fence;
    r->lease_ms = row_owned(row) ? LEASE : 0;
    r->keep_ms = row->attempt > 0 ? LEASE : 0;
    set_token(r->token, row->owner);
    memset(r->fingerprint, row->print, ONCE_FINGERPRINT_SIZE);
    if (row->result != 0)
        r->result = (once_bytes){&bytes[row->result], 1};
}

static uint8_t result_of(const once_record *r)
{
    return r->result.size == 0 ? 0 : *(const uint8_t *)r->result.data;
}

static void to_row(const once_record *r, struct row *row)
{
    memset(row, 0, sizeof(*row));
    row->state = r->state;
    row->kind = r->kind;
    row->policy = r->policy;
    row->doubt = r->doubt;
    row->attempt = (uint8_t)r->attempt;
    row->fence = (uint8_t)r->fence;
    row->owner = r->token[0];
    row->print = r->fingerprint[0];
    row->result = result_of(r);
}

static void to_op(const struct config *c, const struct world *w, int who,
                  struct late call, once_op *op)
{
    memset(op, 0, sizeof(*op));
    op->verb = call.verb;
    op->kind = call.kind;
    op->fence = call.fence;
    op->lease_ms = LEASE;
    op->keep_ms = LEASE;
    if (call.result != 0)
        op->result = (once_bytes){&bytes[call.result], 1};
    if (who < 0)
        return;
    op->two_phase = c->two_phase != 0;
    op->policy = w->tries[who].role & (ONCE_TAKEOVER | ONCE_RETRY_FAILED);
    set_token(op->token, who + 1);
    memset(op->fingerprint, print_of(&w->tries[who]), ONCE_FINGERPRINT_SIZE);
}

/* ---- Checks ------------------------------------------------------------ */

static struct outcome *known(struct world *w, uint8_t result)
{
    assert(result == RESOLVED || result < RESULTS_MAX);
    return result == RESOLVED ? &w->resolved : &w->outcomes[result];
}

static int holds_all(const struct config *c)
{
    return !c->take && !c->mixed;
}

static int may_change(int verb, int rc)
{
    switch (rc) {
    case ONCE_OWNER:
    case ONCE_OK:
        return verb != ONCE_OP_READ;
    case ONCE_UNKNOWN: /* a lease that was found over */
        return verb == ONCE_OP_CLAIM;
    default:
        return 0;
    }
}

static void check_unchanged(struct search *s, const struct row *was,
                            const struct row *is, int verb, int rc, int changed)
{
    int same = memcmp(was, is, sizeof(*was)) == 0;

    if (!same && !may_change(verb, rc))
        broken(s, "I6: a refused call changed the record");
    if (was->state == ONCE_INDETERMINATE && row_owned(is) &&
        was->fence == is->fence)
        broken(s, "I5: what was unknown is owned again without a grant");
    if (!same && !changed)
        broken(s, "the record changed and nobody was to persist it");
}

static void check_grant(struct search *s, struct world *w,
                        const struct row *was, const once_record *r,
                        uint8_t counter)
{
    if (r->fence == was->fence)
        return;
    if (r->fence != (uint64_t)counter + 1 || r->fence != w->fence)
        broken(s, "the fence is not new");
    if (r->attempt != was->attempt + 1u || r->attempt <= w->grants)
        broken(s, "the attempt number is not the next one");
    w->grants = (uint8_t)r->attempt;
    if (was->state == ONCE_DISPATCHED || was->state == ONCE_INDETERMINATE)
        search_result(s)->takeovers++;
    if (was->doubt && !r->doubt)
        broken(s, "I5: a grant forgot the doubt");
    if (was->state != ONCE_COMPLETED)
        return;
    search_result(s)->retries++;
    w->done = 0;
    if (known(w, was->result)->by != 0)
        w->open &= (uint8_t) ~(1u << (known(w, was->result)->by - 1));
    if (known(w, was->result)->final)
        broken(s, "I2: a final result was thrown away");
}

static void check_outcome(struct search *s, struct world *w, int who,
                          const struct row *was, const struct row *is)
{
    if (was->state == ONCE_COMPLETED && is->state == ONCE_COMPLETED &&
        (was->result != is->result || was->kind != is->kind))
        broken(s, "I2: a recorded result was replaced");
    if (is->state != ONCE_COMPLETED || was->state == ONCE_COMPLETED)
        return;
    if (was->print != is->print)
        broken(s, "I4: a result was recorded for another request");
    *known(w, is->result) = (struct outcome){
        .kind = is->kind,
        .period = w->period,
        .print = is->print,
        .final = is->kind == ONCE_SUCCESS || !(is->policy & ONCE_RETRY_FAILED),
        .by = (uint8_t)(who + 1)};
}

/* I1' : whoever shows token and fence of nobody's grant changes nothing. */
static void check_owner(struct search *s, const struct row *was, int who,
                        struct late call, int rc)
{
    int own = was->attempt > 0 && was->owner == who + 1;

    if (who < 0 || rc != ONCE_OK)
        return;
    if (!own || (call.fence != was->fence &&
                 (call.verb != ONCE_OP_RELEASE || call.fence != 0)))
        broken(s, "I1': somebody else's call was accepted");
}

static void check_claim(struct search *s, const struct world *w,
                        const struct row *was, int who, int late, int rc)
{
    const struct try *t = &w->tries[who];

    if (row_owned(was) && was->owner == who + 1 && rc != ONCE_OWNER)
        broken(s, "its own claim, repeated, was not answered owner");
    if (!late && row_owned(was) && was->owner != who + 1 &&
        was->print == print_of(t) && rc != ONCE_IN_FLIGHT)
        broken(s, "a lease that runs was not honoured");
    if (late && rc == ONCE_IN_FLIGHT)
        broken(s, "L2: a lease that is over still keeps others out");
    if (late && was->state == ONCE_CLAIMED && !was->doubt &&
        was->print == print_of(t) && rc != ONCE_OWNER)
        broken(s, "an unsent claim whose lease is over cannot be replaced");
    if (was->state == ONCE_ABSENT && was->attempt > 0 &&
        was->owner == who + 1 && rc != ONCE_FENCED)
        broken(s, "a late copy of a claim that was taken back was granted");
    if (was->state == ONCE_ABSENT && was->owner != who + 1 && rc != ONCE_OWNER)
        broken(s, "a free key was not granted");
    if (was->attempt > 0 && was->state != ONCE_ABSENT &&
        was->print != print_of(t) && rc != ONCE_MISMATCH)
        broken(s, "I4: another request got in");
}

/* By nobody's attempt: by the operator, or by a probe. */
static int is_decided(struct world *w)
{
    return w->row.result != 0 && known(w, w->row.result)->by == 0;
}

/* Under hold nobody else comes between an owner and its record. */
static void check_own_result(struct search *s, struct world *w, int who,
                             struct late call, int rc)
{
    const struct try *t = &w->tries[who];

    if (holds_all(search_config(s)) && call.verb == ONCE_OP_COMPLETE &&
        rc == ONCE_FENCED && t->alive && w->open == 1u << who &&
        t->period == w->period && !is_decided(w) &&
        w->row.result != call.result)
        broken(s, "the owner's own result was refused");
}

/* Nothing that may have executed becomes absent, or free for a first try. */
static void check_open(struct search *s, const struct world *w)
{
    if (w->open == 0)
        return;
    if (w->row.state == ONCE_ABSENT)
        broken(s, "I5: a dispatch that may have executed became absent");
    if (w->row.state == ONCE_CLAIMED && !w->row.doubt)
        broken(s, "I5: a dispatch that may have executed was forgotten");
}

static void follow_ghosts(struct search *s, struct world *w, int who,
                          const struct row *was, struct late call, int rc)
{
    struct result *seen = search_result(s);
    const struct config *c = search_config(s);
    int behind_us = c->tx && c->budget.doubles > 0;

    if (rc == ONCE_OK && call.verb == ONCE_OP_RELEASE && live(was)) {
        w->open &= (uint8_t) ~(1u << who);
        if (w->tries[who].ran && w->tries[who].period == w->period &&
            !behind_us)
            broken(s, "I5: what was executed was released as not executed");
    }
    if (rc == ONCE_OK && call.verb == ONCE_OP_REOPEN)
        w->open = 0;
    if (rc == ONCE_OK && call.verb == ONCE_OP_FORGET) {
        w->period++;
        w->open = w->first = w->done = w->grants = w->happened = 0;
    }
    seen->losts += rc == ONCE_LOST;
    seen->fenceds += rc == ONCE_FENCED;
    seen->doubts += w->row.doubt;
    seen->lates += call.verb == ONCE_OP_COMPLETE && rc == ONCE_OK &&
                   was->state == ONCE_INDETERMINATE;
}

static void check_operator(struct search *s, const struct row *was,
                           struct late call, int rc, int late)
{
    if (rc == ONCE_OK && call.verb == ONCE_OP_FORGET && live(was))
        broken(s, "I5: a live record was forgotten");
    if (rc != ONCE_OK && call.verb == ONCE_OP_REAP && late && row_owned(was))
        broken(s, "L2: a lease that is over was not reaped");
    if (rc == ONCE_OK &&
        (call.verb == ONCE_OP_RESOLVE || call.verb == ONCE_OP_REOPEN) &&
        (was->state != ONCE_INDETERMINATE || was->fence != call.fence))
        broken(s, "I6: an operator decided what he had not been shown");
}

int serve(struct search *s, struct world *w, int who, struct late call,
          int late)
{
    const struct row was = w->row;
    uint8_t counter = w->fence;
    uint64_t fence = w->fence;
    once_record *r = search_answer(s);
    once_op op;
    int changed;

    to_record(&was, r);
    to_op(search_config(s), w, who, call, &op);
    changed = once__transition(r, &op,
                               call.verb == ONCE_OP_FORGET ? LONG_AFTER
                               : late                      ? LATER
                                                           : NOW,
                               &fence);
    to_row(r, &w->row);
    w->fence = (uint8_t)fence;
    check_unchanged(s, &was, &w->row, call.verb, op.rc, changed);
    if (call.verb != ONCE_OP_FORGET)
        check_grant(s, w, &was, r, counter);
    check_outcome(s, w, who, &was, &w->row);
    if (who >= 0 && call.verb != ONCE_OP_CLAIM && call.verb != ONCE_OP_READ)
        check_owner(s, &was, who, call, op.rc);
    if (call.verb == ONCE_OP_CLAIM)
        check_claim(s, w, &was, who, late, op.rc);
    if (who >= 0)
        check_own_result(s, w, who, call, op.rc);
    else
        check_operator(s, &was, call, op.rc, late);
    follow_ghosts(s, w, who, &was, call, op.rc);
    check_open(s, w);
    return op.rc;
}

/* ---- The attempt ------------------------------------------------------- */

static void sent(struct search *s, struct world *w, int who)
{
    struct try *t = &w->tries[who];
    unsigned i;

    if (t->sent)
        broken(s, "I1: one attempt sent twice");
    for (i = 0; i < search_config(s)->n; i++)
        if ((w->open >> i & 1) && !(t->role & w->tries[i].role & ONCE_TAKEOVER))
            broken(s, "I1: a second dispatch while an earlier one may have "
                      "executed");
    if (search_config(s)->timed && w->period > 0)
        broken(s, "A1: a key was executed again after it was forgotten");
    w->open |= (uint8_t)(1u << who);
    t->period = w->period;
    t->wire = t->sent = 1;
    if (w->left.ends > 0)
        t->grant = t->fence;
}

/* Somebody was told the bytes of `result`. */
static void told_result(struct search *s, struct world *w, int who,
                        uint8_t result)
{
    struct outcome *o = known(w, result);

    if (o->kind == 0)
        broken(s, "I3: told a result that is not recorded");
    else if (o->print != print_of(&w->tries[who]))
        broken(s, "I4: told the result of another request");
    else if (o->final && o->period == w->period) {
        if (w->first != 0 && w->first != result)
            broken(s, "I2: two were told different final results");
        w->first = result;
    }
    search_result(s)->answers++;
    if (search_config(s)->tx)
        service_told(s, w, result);
}

static void told(struct search *s, struct world *w, int who, int completes)
{
    struct try *t = &w->tries[who];
    int rc = (int8_t)t->told;

    if (rc == ONCE_REPLAY || (rc == ONCE_OK && completes))
        told_result(s, w, who, t->result);
    if (rc == ONCE_FREE && w->row.owner == who + 1 && live(&w->row) &&
        w->row.fence == t->fence)
        broken(s, "told \"nothing is recorded\", and its own claim stands");
    if (rc == ONCE_MISMATCH && w->row.attempt > 0 &&
        w->row.print == print_of(t) && !search_config(s)->other_print)
        broken(s, "a mismatch was told to the same request");
    /* Nothing of it matters from here on, but that a waiter may look again. */
    t->kind = t->result = t->fence = 0;
    if (rc != ONCE_IN_FLIGHT || w->left.waits == 0 || t->sent)
        t->told = 0;
}

static once__machine machine(const struct config *c, const struct try *t)
{
    return (once__machine){.phase = t->phase,
                           .two_phase = c->two_phase != 0,
                           .fence = t->fence,
                           .reported = (int8_t)t->told};
}

/* The attempt's next action is carried out as far as it can be at once. */
static void act(struct search *s, struct world *w, int who,
                const once__machine *a, int action)
{
    struct try *t = &w->tries[who];
    int completes = t->phase == ONCE__PHASE_COMPLETE;

    t->phase = a->phase;
    t->fence = (uint8_t)a->fence;
    t->told = (uint8_t)a->reported;
    t->verb = (uint8_t)once__action_verb(action);
    if (action == ONCE__SEND)
        sent(s, w, who);
    else if (action == ONCE__RETURN)
        told(s, w, who, completes);
}

void hear(struct search *s, struct world *w, int who, int rc)
{
    struct try *t = &w->tries[who];
    const once_record *r = search_answer(s);
    once__machine a = machine(search_config(s), t);
    int claims = t->verb == ONCE_OP_CLAIM;
    int action;

    if (claims && rc == ONCE_FREE) /* it was a READ: the key is too old */
        rc = ONCE_EXPIRED;
    action = once__machine_answer(&a, rc, r);

    if (rc == ONCE_REPLAY)
        t->result = result_of(r);
    if (action == ONCE__SEND && rc != ONCE_OWNER && rc != ONCE_OK)
        broken(s, "R3: sent without being the owner");
    if (rc == ONCE_FENCED && action == ONCE__ASK_CLAIM)
        broken(s, "R5: a fenced attempt claims again");
    act(s, w, who, &a, action);
    if (claims)
        probe_offered(w, who, rc);
}

void hear_nothing(struct search *s, struct world *w, int who)
{
    once__machine a = machine(search_config(s), &w->tries[who]);
    int action = once__machine_unanswered(&a);

    act(s, w, who, &a, action);
}

void say_deed(struct search *s, struct world *w, int who, int phase)
{
    struct try *t = &w->tries[who];
    once__machine a = machine(search_config(s), t);
    int action = once__machine_end(&a, phase);

    t->reply = t->reply_kind = 0;
    if (phase == ONCE__PHASE_COMPLETE && search_config(s)->reply_first)
        told_result(s, w, who, t->result);
    act(s, w, who, &a, action);
}

void look_again(struct search *s, struct world *w, int who)
{
    once__machine a = machine(search_config(s), &w->tries[who]);
    int action = once__machine_again(&a);

    act(s, w, who, &a, action);
}
