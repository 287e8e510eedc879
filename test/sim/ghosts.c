/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ghosts.c - what is known from outside, and the rules it is held against at
 * the very event: I1 to I6 of docs/protocol.md, section 10, and L4; and where
 * keys carry a time, A1: what was forgotten is never sent again.
 *
 * Written from the page: a ghost knows what was sent, executed, recorded and
 * told. It looks at a record only to see that a call that was refused changed
 * nothing, and what a call that was accepted made of it.
 */
#include <string.h>

#include "calls/core/transition.h"

#include "sim.h"

enum { SLACK_MS = 3000 };

static int name_of(const struct world *w, const once_op *op)
{
    int i;

    for (i = 0; i < NAMES - 1; i++)
        if (memcmp(w->names[i], op->name, ONCE_NAME_SIZE) == 0)
            break;
    return i;
}

static int owned(const once_record *r)
{
    return r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED;
}

static int live(const once_record *r)
{
    return owned(r) || r->state == ONCE_INDETERMINATE;
}

static int own(const once_record *r, const once_op *op)
{
    return r->attempt > 0 && memcmp(r->token, op->token, ONCE_TOKEN_SIZE) == 0;
}

static int holds_all(const struct world *w)
{
    return !w->swarm.takeover && !w->swarm.mixed;
}

/* The call that has chosen this token, or NULL. */
static struct call *call_of(struct world *w, const uint8_t *token)
{
    int i = w->n_calls;

    while (--i >= 0)
        if (memcmp(w->calls[i].token, token, ONCE_TOKEN_SIZE) == 0)
            return &w->calls[i];
    return NULL;
}

/* ---- Dispatches that may have executed --------------------------------- */

static int is_open(const struct ghost *g, int call)
{
    int i = 0;

    while (i < g->n_open && g->open[i] != call)
        i++;
    return i < g->n_open;
}

/* Returns the call whose token it is, or -1. */
static int close_open(struct world *w, struct ghost *g, const uint8_t *token)
{
    int i, call;

    for (i = 0; i < g->n_open; i++) {
        call = g->open[i];
        if (memcmp(w->calls[call].token, token, ONCE_TOKEN_SIZE) == 0) {
            g->open[i] = g->open[--g->n_open];
            return call;
        }
    }
    return -1;
}

static int both_take_over(const struct world *w, int a, int b)
{
    return (w->calls[a].policy & w->calls[b].policy & ONCE_TAKEOVER) != 0;
}

/* A fenced attempt looks once and ends (rule 5). */
void check_asked(struct world *w, const once_op *op)
{
    const struct call *c = NULL;

    if (op->verb == ONCE_OP_CLAIM || op->verb == ONCE_OP_COMPLETE ||
        op->verb == ONCE_OP_RELEASE)
        c = call_of(w, op->token);
    if (c != NULL && c->fenced && op->verb == ONCE_OP_CLAIM)
        violated(w, "R5", c->name, "a fenced attempt claims again");
    if (c != NULL && c->untold)
        saw(w, SEEN_LATE_ASKED);
}

void check_answered(struct world *w, const once_op *op)
{
    struct call *c = (op->rc == ONCE_FENCED && op->verb != ONCE_OP_RENEW) ||
                             op->rc == ONCE_ENOMEM
                         ? call_of(w, op->token)
                         : NULL;

    if (c != NULL && op->rc == ONCE_ENOMEM)
        c->refused = 1;
    else if (c != NULL)
        c->fenced = 1;
}

void check_sent(struct world *w, int call, uint64_t fence)
{
    struct call *c = &w->calls[call];
    struct ghost *g = &w->ghosts[c->name];
    int i;

    c->period = fence < FENCES_MAX ? w->periods[fence] : 0;
    if (fence <= g->reopened)
        c->reopened = 1; /* granted before, and observed of it only now */
    if (w->swarm.ages && c->period > 0 && !g->early)
        violated(w, "A1", c->name, "sent again after it was forgotten");
    if (c->period != g->period)
        return; /* it slept longer than the retention: nothing is promised */
    for (i = 0; i < g->n_open; i++)
        if (!both_take_over(w, g->open[i], call))
            violated(w, "I1", c->name,
                     "sent although an earlier dispatch may have executed");
    if (g->n_open == OPEN_MAX) {
        violated(w, "SIM", c->name, "too many open dispatches");
        return;
    }
    if (!c->reopened)
        g->open[g->n_open++] = call;
}

void check_executed(struct world *w, int call)
{
    struct call *c = &w->calls[call];
    struct ghost *g = &w->ghosts[c->name];
    const once_record *r = &store_row(w, w->names[c->name])->r;
    int i;

    saw(w, SEEN_EXECUTED);
    if (owned(r) && store_clock(w) >= r->lease_ms &&
        memcmp(r->token, c->token, ONCE_TOKEN_SIZE) == 0)
        saw(w, SEEN_LATE_EXECUTION);
    if (c->executed)
        violated(w, "I1", c->name, "one request was executed twice");
    c->executed = 1;
    if (c->period != g->period)
        return;
    if (!is_open(g, call) && !c->reopened)
        violated(w, "I1", c->name, "executed although it was released");
    for (i = 0; i < g->n_open; i++)
        if (g->open[i] != call && !both_take_over(w, g->open[i], call))
            violated(w, "I1", c->name,
                     "executed while another dispatch may have been");
    if (++g->executions > 1 && !w->swarm.retry && !w->swarm.mixed)
        violated(w, "I1", c->name, "executed twice");
}

/* ---- Outcomes ---------------------------------------------------------- */

static struct outcome *outcome_of(struct ghost *g, const uint8_t *bytes)
{
    int i;

    for (i = g->n_outcomes - 1; i >= 0; i--)
        if (memcmp(g->outcomes[i].bytes, bytes, BYTES) == 0)
            return &g->outcomes[i];
    return NULL;
}

static int print_of(const struct world *w, const uint8_t *fingerprint)
{
    int i;

    for (i = 0; i < PRINTS; i++)
        if (memcmp(w->prints[i], fingerprint, ONCE_FINGERPRINT_SIZE) == 0)
            return i;
    return -1;
}

static void recorded(struct world *w, int name, const once_record *r)
{
    struct ghost *g = &w->ghosts[name];
    int final = r->kind == ONCE_SUCCESS || !(r->policy & ONCE_RETRY_FAILED);
    struct outcome *o;

    if (((const uint8_t *)r->result.data)[2] == OUR_OWN / 100)
        violated(w, "I5", name, "our own time-out was recorded as an outcome");
    if (g->recorded)
        violated(w, "I2", name, "two final results in one period");
    if (g->n_outcomes == OUTCOMES_MAX) {
        violated(w, "SIM", name, "too many outcomes");
        return;
    }
    o = &g->outcomes[g->n_outcomes++];
    memcpy(o->bytes, r->result.data, BYTES);
    memcpy(o->token, r->token, ONCE_TOKEN_SIZE);
    o->print = print_of(w, r->fingerprint);
    o->final = final;
    o->period = g->period;
    g->recorded = final;
    g->completed_ms = w->now;
    g->stood_ms = w->jumped_ms;
    g->left_ms = 0;
    g->unseen = 0;
}

void check_told(struct world *w, const struct call *c, const uint8_t *bytes)
{
    struct ghost *g = &w->ghosts[c->name];
    const struct outcome *o = outcome_of(g, bytes);

    if (bytes[0] != (uint8_t)(1 + c->name / KEYS))
        violated(w, "I4", c->name, "told another tenant's result");
    else if (bytes[1] != (uint8_t)(c->name % KEYS))
        violated(w, "I4", c->name, "told another key's result");
    else if (o == NULL)
        violated(w, "I3", c->name, "told a result that is not recorded");
    else if (o->print != c->print)
        violated(w, "I4", c->name, "told the result of another request");
    else if (o->final && o->period == g->period) {
        int index = (int)(o - g->outcomes);

        if (g->first >= 0 && g->first != index)
            violated(w, "I2", c->name, "two were told different results");
        g->first = index;
    }
}

/* ---- One operation ----------------------------------------------------- */

static int same_record(const once_record *a, const once_record *b)
{
    once_record x = *a, y = *b;

    x.result.data = y.result.data = NULL;
    x.note.data = y.note.data = NULL;
    return memcmp(&x, &y, sizeof(x)) == 0 &&
           (a->result.size == 0 ||
            memcmp(a->result.data, b->result.data, a->result.size) == 0);
}

static int may_change(const once_op *op)
{
    switch (op->rc) {
    case ONCE_OWNER:
    case ONCE_OK:
        return op->verb != ONCE_OP_READ;
    case ONCE_UNKNOWN:
        return op->verb == ONCE_OP_CLAIM;
    default:
        return 0;
    }
}

static void check_grant(struct world *w, int name, const once_record *was,
                        const once_record *is)
{
    struct ghost *g = &w->ghosts[name];

    if (call_of(w, is->token) == NULL)
        violated(w, "R1", name, "granted to a token that nobody has chosen");
    if (is->fence < FENCES_MAX)
        w->periods[is->fence] = g->period;
    if (is->fence <= w->highest_fence)
        violated(w, "I1'", name, "the fence is not new");
    w->highest_fence = is->fence;
    if (is->attempt != was->attempt + 1 || is->attempt <= g->grants)
        violated(w, "I1'", name, "the attempt number is not the next one");
    g->grants = is->attempt;
    if (was->doubt && !is->doubt)
        violated(w, "I5", name, "a grant forgot the doubt");
    if (was->state == ONCE_CLAIMED)
        saw(w, SEEN_UNSENT_REPLACED);
    if (!was->doubt && is->doubt)
        saw(w, SEEN_TAKEN_OVER);
    if (was->state != ONCE_COMPLETED)
        return;
    saw(w, SEEN_RETRIED);
    if (g->recorded)
        violated(w, "I2", name, "a final result was thrown away");
    (void)close_open(w, g, was->token);
    g->executions = 0;
    g->known = 0;
}

static void check_claim(struct world *w, int name, const once_op *op,
                        const once_record *was)
{
    int over = owned(was) && store_clock(w) >= was->lease_ms;

    if (owned(was) && own(was, op)) {
        if (op->rc != ONCE_OWNER)
            violated(w, "R1", name, "its own claim was not answered owner");
        saw(w, SEEN_CLAIM_AGAIN);
    }
    if (owned(was) && !over && !own(was, op) && op->rc != ONCE_IN_FLIGHT &&
        op->rc != ONCE_MISMATCH)
        violated(w, "I1'", name, "a lease that runs was not honoured");
    if (over && op->rc == ONCE_IN_FLIGHT)
        violated(w, "L2", name, "a lease that is over keeps others out");
    if (was->state == ONCE_ABSENT && own(was, op) && op->rc != ONCE_FENCED)
        violated(w, "R4", name, "a claim that was taken back was granted");
    if (op->rc == ONCE_FENCED)
        saw(w, SEEN_CLAIM_FENCED);
    if (op->rc == ONCE_LOST)
        saw(w, SEEN_LOST_CLAIM);
    if (was->attempt > 0 && was->state != ONCE_ABSENT &&
        memcmp(was->fingerprint, op->fingerprint, ONCE_FINGERPRINT_SIZE) != 0 &&
        op->rc != ONCE_MISMATCH)
        violated(w, "I4", name, "another request got in");
}

static void check_own_result(struct world *w, int name, const once_op *op,
                             const once_record *was)
{
    const struct ghost *g = &w->ghosts[name];
    const struct call *c;

    if (!holds_all(w) || op->rc != ONCE_FENCED || g->n_open != 1)
        return;
    c = &w->calls[g->open[0]];
    if (memcmp(c->token, op->token, ONCE_TOKEN_SIZE) == 0 &&
        c->period == g->period && was->state != ONCE_COMPLETED)
        violated(w, "I5", name, "the owner's own result was refused");
}

static void check_owner_call(struct world *w, int name, const once_op *op,
                             const once_record *was)
{
    int by_token = op->verb == ONCE_OP_RELEASE && op->fence == 0;

    if (op->rc == ONCE_OK &&
        (!own(was, op) || (op->fence != was->fence && !by_token)))
        violated(w, "I1'", name, "somebody else's call was accepted");
    if (op->verb == ONCE_OP_DISPATCH) {
        if (op->rc == ONCE_FENCED)
            saw(w, SEEN_DISPATCH_FENCED);
        if (op->rc == ONCE_LOST)
            saw(w, SEEN_LOST_DISPATCH);
    }
    if (op->verb == ONCE_OP_RENEW)
        saw(w, op->rc == ONCE_OK ? SEEN_RENEWED : SEEN_RENEWAL_REFUSED);
    if (op->verb == ONCE_OP_GIVE_UP && op->rc == ONCE_OK)
        saw(w, SEEN_GIVEN_UP);
    if (op->verb != ONCE_OP_COMPLETE)
        return;
    check_own_result(w, name, op, was);
    if (op->rc == ONCE_FENCED)
        saw(w, SEEN_COMPLETE_FENCED);
    else if (op->rc == ONCE_OK && was->state == ONCE_INDETERMINATE)
        saw(w, SEEN_LATE_COMPLETE);
    else if (op->rc == ONCE_OK && was->state == ONCE_COMPLETED)
        saw(w, SEEN_COMPLETE_AGAIN);
}

static void check_release(struct world *w, int name, const once_op *op,
                          const once_record *was, const once_record *is)
{
    struct ghost *g = &w->ghosts[name];
    int call;

    if (op->rc != ONCE_OK || !live(was))
        return;
    saw(w, op->fence == 0 ? SEEN_TOKEN_RELEASE : SEEN_RELEASED);
    if (is->state == ONCE_INDETERMINATE)
        saw(w, SEEN_DOUBT_RELEASED);
    call = close_open(w, g, op->token);
    if (call >= 0 && w->calls[call].executed)
        violated(w, "I5", name, "what was executed was released");
}

static void check_reap(struct world *w, int name, const once_op *op,
                       const once_record *was)
{
    if (op->rc != ONCE_OK) {
        if (owned(was) && store_clock(w) >= was->lease_ms)
            violated(w, "L2", name, "a lease that is over was not reaped");
        return;
    }
    if (owned(was) && store_clock(w) < was->lease_ms)
        violated(w, "I5", name, "a lease that runs was reaped");
    saw(w,
        was->state == ONCE_CLAIMED ? SEEN_REAPED_CLAIM : SEEN_REAPED_DISPATCH);
}

void note_jump(struct world *w)
{
    int i;

    for (i = 0; i < NAMES; i++) {
        struct ghost *g = &w->ghosts[i];

        if (g->left_ms != 0)
            continue;
        g->left_ms = w->now;
        g->unseen = !w->looked;
    }
    w->jumped_ms = w->now;
    w->looked = 0;
}

/* Docs/protocol.md, section 8: nobody notices where the clock stood if nobody
 * looked, and a gateway does not if it stood there between two of its looks
 * that lie no further apart than four periods. */
void note_look(struct world *w, struct gateway *g)
{
    int i;

    for (i = 0; i < NAMES; i++) {
        struct ghost *of = &w->ghosts[i];

        if (g->looked_ms != 0 && g->looked_ms < of->stood_ms &&
            of->left_ms != 0 && w->now - g->looked_ms <= 4 * w->swarm.reap_ms)
            of->unseen = 1;
    }
    w->looked_before = w->looked;
    g->looked_before_ms = g->looked_ms;
    w->looked = 1;
    g->looked_ms = w->now;
}

/* What it saw it could not put: nobody else will know. If that was a step back
 * it counts as no look, also for itself. */
void note_unput(struct world *w, struct gateway *g, int back)
{
    w->looked = w->looked_before;
    if (back)
        g->looked_ms = g->looked_before_ms;
}

/* Retention, whatever the clock shows, whoever has started when; but for what
 * was completed where nobody noticed that the clock stood. */
static void check_kept(struct world *w, int name)
{
    uint64_t kept = w->now - w->ghosts[name].completed_ms;

    if (!w->ghosts[name].unseen && kept + SLACK_MS < w->swarm.keep_ms)
        violated(w, "L4", name, "a result was forgotten before its time");
}

static void check_forget(struct world *w, int name, const once_op *op,
                         const once_record *was)
{
    struct ghost *g = &w->ghosts[name];

    if (op->rc != ONCE_OK)
        return;
    if (live(was))
        violated(w, "I5", name, "a live record was forgotten");
    if (was->state == ONCE_COMPLETED)
        check_kept(w, name);
    saw(w, SEEN_FORGOTTEN);
    g->early |= g->unseen;
    g->period++;
    g->n_open = 0;
    g->recorded = 0;
    g->executions = 0;
    g->happened = 0;
    g->highest = g->grants = 0;
    g->first = -1;
    g->known = 0;
}

/* What was sent, or is just about to be by whoever was granted the name so far,
 * may still come to be executed: only an upstream that knows the key makes that
 * harmless, and only there may an operator reopen. */
static void reopened(struct world *w, struct ghost *g, uint64_t fence)
{
    while (g->n_open > 0)
        w->calls[g->open[--g->n_open]].reopened = 1;
    g->reopened = fence;
}

/* What a gateway resolves has happened. */
static void check_probe(struct world *w, int name)
{
    saw(w, SEEN_PROBED);
    if (!w->ghosts[name].happened)
        violated(w, "P1", name, "a probe recorded what has not happened");
}

static void check_operator(struct world *w, int name, const struct batch *b,
                           const once_op *op, const once_record *was,
                           const once_record *is)
{
    if (op->rc == ONCE_OK && same_record(was, is)) {
        saw(w, SEEN_DECIDED_AGAIN); /* a late copy, known by its note */
        return;
    }
    if (op->rc != ONCE_OK) {
        saw(w, b->gateway >= 0 ? SEEN_PROBED_LATE : SEEN_REFUSED);
        return;
    }
    if (b->gateway >= 0)
        check_probe(w, name);
    else
        saw(w, op->verb == ONCE_OP_REOPEN ? SEEN_REOPENED : SEEN_RESOLVED);
    if (was->state != ONCE_INDETERMINATE || was->fence != op->fence)
        violated(w, "I6", name, "an operator decided what he was not shown");
    if (op->verb == ONCE_OP_REOPEN)
        reopened(w, &w->ghosts[name], was->fence);
}

static const char *verb_text(int verb)
{
    static const char *const texts[ONCE__OP_END] = {
        "",     "claim", "dispatch", "renew",  "complete", "release", "give_up",
        "read", "reap",  "resolve",  "reopen", "forget",   "show"};

    return texts[verb];
}

static const char *state_text(int state)
{
    static const char *const texts[] = {"absent", "claimed", "dispatched",
                                        "completed", "indeterminate"};

    return texts[state];
}

static void trace_applied(struct world *w, int name, const struct batch *b,
                          const once_op *op, const once_record *was,
                          const once_record *is)
{
    if (w->trace)
        trace(w,
              "store: name %d, gateway %d, token %02x%02x fence %llu, %s: "
              "%s -> %s #%u fence %llu: \"%s\"",
              name, b->gateway, op->token[0], op->token[1],
              (unsigned long long)op->fence, verb_text(op->verb),
              state_text(was->state), state_text(is->state), is->attempt,
              (unsigned long long)is->fence, once_text(op->rc));
}

static void check_by_verb(struct world *w, int name, const struct batch *b,
                          const once_op *op, const once_record *was,
                          const once_record *is)
{
    switch (op->verb) {
    case ONCE_OP_CLAIM:
        check_claim(w, name, op, was);
        break;
    case ONCE_OP_RELEASE:
        check_release(w, name, op, was, is);
        check_owner_call(w, name, op, was);
        break;
    case ONCE_OP_DISPATCH:
    case ONCE_OP_RENEW:
    case ONCE_OP_COMPLETE:
    case ONCE_OP_GIVE_UP:
        check_owner_call(w, name, op, was);
        break;
    case ONCE_OP_REAP:
        check_reap(w, name, op, was);
        break;
    case ONCE_OP_FORGET:
        check_forget(w, name, op, was);
        break;
    case ONCE_OP_RESOLVE:
    case ONCE_OP_REOPEN:
        check_operator(w, name, b, op, was, is);
        break;
    default:
        break;
    }
}

void check_applied(struct world *w, const struct batch *b, const once_op *op,
                   const once_record *was, const once_record *is, int changed)
{
    int name = name_of(w, op), same = same_record(was, is);
    const struct ghost *g = &w->ghosts[name];

    trace_applied(w, name, b, op, was, is);
    if (!same && !may_change(op))
        violated(w, "I6", name, "a refused call changed the record");
    if (was->state == ONCE_INDETERMINATE && owned(is) &&
        was->fence == is->fence)
        violated(w, "I5", name, "what was unknown is owned without a grant");
    if (!same && !changed)
        violated(w, "I7", name, "a change was not to be persisted");
    if (was->state == ONCE_COMPLETED && is->state == ONCE_COMPLETED && !same)
        violated(w, "I2", name, "a recorded result was replaced");
    if (is->fence != was->fence && is->attempt > 0)
        check_grant(w, name, was, is);
    if (was->state == ONCE_COMPLETED && is->state == ONCE_ABSENT &&
        op->verb != ONCE_OP_FORGET)
        violated(w, "I7", name, "a recorded result became absent");
    check_by_verb(w, name, b, op, was, is);
    if (is->state == ONCE_COMPLETED && was->state != ONCE_COMPLETED)
        recorded(w, name, is);
    if (g->n_open > 0 && is->state == ONCE_ABSENT)
        violated(w, "I5", name, "what may have executed became absent");
    if (g->n_open > 0 && is->state == ONCE_CLAIMED && !is->doubt)
        violated(w, "I5", name, "what may have executed was forgotten");
}

/* ---- The end ----------------------------------------------------------- */

/* What an engine says of itself when there is nothing left to do. */
int gauges_at_zero(struct world *w)
{
    once_stats s;
    int i, zero = 1;

    for (i = 0; i < GATEWAYS && zero; i++) {
        struct gateway *g = &w->gateways[i];

        w->inside = g;
        once_engine_stats(g->engine, &s);
        w->inside = NULL;
        zero =
            s.live == 0 && s.waiting == 0 && s.queued == 0 && s.oldest_ms == 0;
    }
    return zero;
}

/* A process that lives on does not forget an outcome that it knows. */
static void check_late(struct world *w)
{
    int i;

    for (i = 0; i < w->n_calls; i++) {
        const struct call *c = &w->calls[i];
        const once_record *r = &store_row(w, w->names[c->name])->r;

        if (c->untold && c->life == w->gateways[c->gateway].life &&
            r->state == ONCE_INDETERMINATE &&
            memcmp(r->token, c->token, ONCE_TOKEN_SIZE) == 0 && !r->doubt)
            violated(w, "L5", c->name, "an outcome that is known is lost");
    }
}

void check_end(struct world *w)
{
    int i;

    for (i = 0; i < NAMES; i++) {
        const once_record *r = &store_row(w, w->names[i])->r;

        if (owned(r))
            violated(w, "L2", i, "a record stayed owned after the faults");
        if (w->ghosts[i].recorded && r->state != ONCE_COMPLETED)
            violated(w, "I7", i, "a recorded result is not there any more");
    }
    check_late(w);
    if (!gauges_at_zero(w))
        violated(w, "LEAK", -1, "a gauge did not stay at zero");
}
