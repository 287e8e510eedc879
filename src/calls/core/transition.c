/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transition.c - the transition table of docs/protocol.md, section 5.
 *
 *  ABSENT --claim--> CLAIMED --dispatch--> DISPATCHED --complete--> COMPLETED
 *   ^ ^ | (two-phase)  |                    ^ |  |                   ^ |   |
 *   | | +--claim-------|--(one-phase)-------+ |  | give up,          | |   |
 *   | +----------------+                      |  | lease expired     | |   |
 *   |   release, lease expired                |  v                   | |   |
 *   +---------------- release (not executed) -+-- INDETERMINATE -----+ |   |
 *   |                                              |  late complete,   |   |
 *   |                                              |  resolve          |   |
 *   |                                              +--claim, takeover->|   |
 *   |                                     claim, failed=retry, grants <+   |
 *   +----------------------------- forget, after the retention time -------+
 *
 * One function for each call, one branch for each row of the table. A call that
 * does not match changes nothing and is answered so (invariant I6).
 */
#include "calls/core/transition.h"

#include <assert.h>
#include <string.h>

#include <once/store.h>

#include "base/error.h"
#include "calls/core/bounds.h"

/* What one decision uses; `op` and `r` belong to the caller. */
struct step {
    once_record *r;
    once_op *op;
    uint64_t now_ms;
    uint64_t *fence;
    int changed;
};

static int owned(const once_record *r)
{
    return r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED;
}

static int live(const once_record *r)
{
    return owned(r) || r->state == ONCE_INDETERMINATE;
}

static int own(const struct step *s)
{
    return s->r->attempt > 0 &&
           memcmp(s->r->token, s->op->token, ONCE_TOKEN_SIZE) == 0;
}

/* Token *and* fence: the token alone would accept a late copy of an earlier
 * grant; the fence alone would accept one that a restored backup draws
 * again. */
static int match(const struct step *s)
{
    return own(s) && s->r->fence == s->op->fence;
}

static int same_request(const struct step *s)
{
    return memcmp(s->r->fingerprint, s->op->fingerprint,
                  ONCE_FINGERPRINT_SIZE) == 0;
}

static int same_bytes(once_bytes a, once_bytes b)
{
    return a.size == b.size &&
           (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static int lease_expired(const struct step *s)
{
    return s->now_ms >= s->r->lease_ms;
}

/* The stricter of record and call wins. */
static int may_take_over(const struct step *s)
{
    return (s->r->policy & s->op->policy & ONCE_TAKEOVER) != 0;
}

static int may_retry(const struct step *s)
{
    return s->r->kind == ONCE_FAILURE &&
           (s->r->policy & s->op->policy & ONCE_RETRY_FAILED) != 0 &&
           (may_take_over(s) || !s->r->doubt);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static int left(struct step *s)
{
    s->op->left_ms = lease_expired(s) ? 0 : s->r->lease_ms - s->now_ms;
    return ONCE_IN_FLIGHT;
}

static int grant(struct step *s)
{
    once_record *r = s->r;
    const once_op *op = s->op;

    if (r->attempt >= ONCE__ATTEMPT_MAX || *s->fence >= ONCE__FENCE_MAX)
        return ONCE_ECORRUPT; /* nobody has counted so far */
    if (r->state == ONCE_ABSENT)
        r->created_ms = s->now_ms;
    r->doubt = r->doubt || r->state == ONCE_DISPATCHED ||
               r->state == ONCE_INDETERMINATE;
    r->state = op->two_phase ? ONCE_CLAIMED : ONCE_DISPATCHED;
    r->kind = ONCE_NO_KIND;
    r->policy = (uint8_t)op->policy;
    r->attempt++;
    r->fence = ++*s->fence;
    r->lease_ms = once__time_after(s->now_ms, op->lease_ms);
    r->keep_ms = once__time_after(s->now_ms, op->keep_ms);
    r->granted_ms = s->now_ms;
    r->ended_ms = 0;
    r->reason = ONCE_REASON_NONE;
    memcpy(r->token, op->token, ONCE_TOKEN_SIZE);
    memcpy(r->fingerprint, op->fingerprint, ONCE_FINGERPRINT_SIZE);
    memcpy(r->group, op->group, ONCE_GROUP_SIZE);
    memcpy(r->trace, op->trace, ONCE_TRACE_SIZE);
    memcpy(r->subject, op->subject, ONCE_SUBJECT_SIZE);
    r->label = op->label;
    r->result = (once_bytes){NULL, 0};
    s->changed = 1;
    return ONCE_OWNER;
}

static void make_indeterminate(struct step *s, int reason)
{
    assert(live(s->r));
    if (s->r->state != ONCE_INDETERMINATE)
        s->r->ended_ms = s->now_ms;
    s->r->state = ONCE_INDETERMINATE;
    s->r->reason = (uint8_t)reason;
    s->r->lease_ms = 0;
    s->changed = 1;
}

/*
 * Absent again, but the row stays for a while: attempt numbers go on from here,
 * and a late copy of the last owner's claim meets its own token. With doubt
 * this attempt did nothing, but an earlier one, whose owner is gone, may have.
 */
static void make_absent(struct step *s, int reason)
{
    once_record *r = s->r;

    if (r->doubt) {
        make_indeterminate(s, ONCE_REASON_OWNER_GONE);
        return;
    }
    r->state = ONCE_ABSENT;
    r->reason = (uint8_t)reason;
    r->ended_ms = s->now_ms;
    r->policy = 0;
    r->lease_ms = 0;
    r->keep_ms = later(r->keep_ms, once__time_after(s->now_ms, s->op->keep_ms));
    memset(r->fingerprint, 0, ONCE_FINGERPRINT_SIZE);
    s->changed = 1;
}

static void finish(struct step *s)
{
    once_record *r = s->r;

    assert(s->op->kind == ONCE_SUCCESS || s->op->kind == ONCE_FAILURE);
    r->state = ONCE_COMPLETED;
    r->kind = (uint8_t)s->op->kind;
    r->result = s->op->result;
    r->lease_ms = 0;
    r->ended_ms = s->now_ms;
    r->keep_ms = once__time_after(s->now_ms, s->op->keep_ms);
    s->changed = 1;
}

static int claim_owned(struct step *s)
{
    if (own(s))
        return ONCE_OWNER; /* a repeated call: the same fence, no new lease */
    if (!lease_expired(s))
        return left(s);
    if (may_take_over(s) || (s->r->state == ONCE_CLAIMED && !s->r->doubt))
        return grant(s); /* claimed: provably nothing was sent */
    make_indeterminate(s, ONCE_REASON_OWNER_GONE);
    return ONCE_UNKNOWN;
}

static int claim(struct step *s)
{
    if (s->r->state == ONCE_ABSENT)
        return own(s) ? ONCE_FENCED : grant(s);
    if (!same_request(s))
        return ONCE_MISMATCH;
    if (owned(s->r))
        return claim_owned(s);
    if (s->r->state == ONCE_COMPLETED) /* also after the retention time */
        return may_retry(s) && !own(s) ? grant(s) : ONCE_REPLAY;
    if (own(s))
        return ONCE_LOST;
    return may_take_over(s) ? grant(s) : ONCE_UNKNOWN;
}

static int dispatch_or_renew(struct step *s)
{
    if (!live(s->r) || !match(s))
        return ONCE_FENCED;
    if (s->r->state == ONCE_INDETERMINATE)
        return ONCE_LOST;
    if (s->op->verb == ONCE_OP_DISPATCH)
        s->r->state = ONCE_DISPATCHED;
    s->r->lease_ms = once__time_after(s->now_ms, s->op->lease_ms);
    s->changed = 1;
    return ONCE_OK;
}

static int complete(struct step *s)
{
    if (!match(s))
        return ONCE_FENCED;
    if (s->r->state == ONCE_COMPLETED)
        return s->r->kind == s->op->kind &&
                       same_bytes(s->r->result, s->op->result)
                   ? ONCE_OK
                   : ONCE_FENCED;
    if (!live(s->r))
        return ONCE_FENCED;
    finish(s); /* from indeterminate too: the late answer is accepted */
    s->r->reason = ONCE_REASON_NONE;
    return ONCE_OK;
}

/* Fence 0: the claim was never answered; the token alone identifies it. */
static int release(struct step *s)
{
    if (!own(s) || (s->op->fence != 0 && s->op->fence != s->r->fence) ||
        s->r->state == ONCE_COMPLETED)
        return ONCE_FENCED;
    if (live(s->r))
        make_absent(s, s->op->reason);
    return ONCE_OK;
}

static int give_up(struct step *s)
{
    if (!live(s->r) || !match(s))
        return ONCE_FENCED;
    if (s->r->state != ONCE_INDETERMINATE)
        make_indeterminate(s, s->op->reason);
    return ONCE_OK;
}

static int read_record(struct step *s)
{
    if (s->r->state == ONCE_ABSENT)
        return ONCE_FREE;
    if (s->op->verb == ONCE_OP_READ && !same_request(s))
        return ONCE_MISMATCH;
    if (owned(s->r))
        return left(s);
    return s->r->state == ONCE_COMPLETED ? ONCE_REPLAY : ONCE_UNKNOWN;
}

static int reap(struct step *s)
{
    if (!owned(s->r) || !lease_expired(s))
        return ONCE_REFUSED;
    if (s->r->state == ONCE_CLAIMED)
        make_absent(s, ONCE_REASON_OWNER_GONE);
    else
        make_indeterminate(s, ONCE_REASON_OWNER_GONE);
    return ONCE_OK;
}

/* A decision is repeated when its answer was lost. Its note shows that it is
 * the same one. */
static int decided_before(const struct step *s)
{
    const once_record *r = s->r;

    if (r->fence != s->op->fence || r->note.size == 0 ||
        !same_bytes(r->note, s->op->note))
        return 0;
    return s->op->verb == ONCE_OP_REOPEN
               ? r->state == ONCE_ABSENT
               : r->state == ONCE_COMPLETED && r->kind == s->op->kind &&
                     same_bytes(r->result, s->op->result);
}

/* The fence is the one that the operator saw. */
static int resolve(struct step *s)
{
    once_record *r = s->r;

    if (decided_before(s))
        return ONCE_OK;
    if (r->state != ONCE_INDETERMINATE || r->fence != s->op->fence)
        return ONCE_REFUSED;
    if (s->op->verb == ONCE_OP_REOPEN) {
        if ((r->policy & ONCE_TAKEOVER) == 0)
            return ONCE_REFUSED;
        r->doubt = 0;
        make_absent(s, ONCE_REASON_OPERATOR);
    } else {
        finish(s);
        r->policy &= (uint8_t)~ONCE_RETRY_FAILED; /* final */
        r->doubt = 0;
    }
    r->note = s->op->note;
    return ONCE_OK;
}

static int forget(struct step *s)
{
    once_record *r = s->r;

    if (r->attempt == 0 || live(r) || s->now_ms < r->keep_ms ||
        (s->op->fence != 0 && s->op->fence != r->fence))
        return ONCE_REFUSED;
    memset(r, 0, sizeof(*r));
    s->changed = 1;
    return ONCE_OK;
}

static int (*const calls[ONCE__OP_END])(struct step *) = {
    [ONCE_OP_CLAIM] = claim,
    [ONCE_OP_DISPATCH] = dispatch_or_renew,
    [ONCE_OP_RENEW] = dispatch_or_renew,
    [ONCE_OP_COMPLETE] = complete,
    [ONCE_OP_RELEASE] = release,
    [ONCE_OP_GIVE_UP] = give_up,
    [ONCE_OP_READ] = read_record,
    [ONCE_OP_REAP] = reap,
    [ONCE_OP_RESOLVE] = resolve,
    [ONCE_OP_REOPEN] = resolve,
    [ONCE_OP_FORGET] = forget,
    [ONCE_OP_SHOW] = read_record,
};

/* The store's clock was set back: a lease further ahead than the longest one
 * allowed is cut to it, or no reaper could reap it for so long. */
static void cut_lease(struct step *s)
{
    uint64_t most = once__time_after(s->now_ms, ONCE_LEASE_MAX_MS);

    if (owned(s->r) && s->r->lease_ms > most) {
        s->r->lease_ms = most;
        s->changed = 1;
    }
}

int once__transition(once_record *r, once_op *op, uint64_t now_ms,
                     uint64_t *fence)
{
    struct step s = {r, op, once__time_after(now_ms, 0), fence, 0};

    assert(op->verb > 0 && op->verb < ONCE__OP_END);
    assert(once__record_sane(r));
    op->left_ms = 0;
    if (op->verb == ONCE_OP_CLAIM || op->verb == ONCE_OP_REAP)
        cut_lease(&s);
    op->rc = calls[op->verb](&s);
    op->record = *r;
    assert(once__record_sane(r));
    assert(op->rc != ONCE_OWNER || own(&s));
    return s.changed;
}

static int within_bounds(const once_record *r)
{
    const uint64_t times[] = {r->lease_ms, r->keep_ms, r->granted_ms,
                              r->created_ms, r->ended_ms};
    size_t i;

    for (i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        if (times[i] > ONCE__TIME_MAX)
            return 0;
    return r->attempt <= ONCE__ATTEMPT_MAX && r->fence <= ONCE__FENCE_MAX;
}

int once__record_sane(const once_record *r)
{
    if (r->attempt == 0)
        return r->state == ONCE_ABSENT && r->fence == 0;
    return within_bounds(r) && r->state <= ONCE_INDETERMINATE && r->fence > 0 &&
           r->kind <= ONCE_FAILURE && r->doubt <= 1 &&
           (r->policy & ~(ONCE_TAKEOVER | ONCE_RETRY_FAILED)) == 0 &&
           (r->kind != ONCE_NO_KIND) == (r->state == ONCE_COMPLETED) &&
           (r->state == ONCE_COMPLETED || r->result.size == 0) &&
           (r->lease_ms != 0) == owned(r) && r->reason < ONCE__REASON_END &&
           r->label.size <= ONCE_LABEL_MAX &&
           (!owned(r) || (r->ended_ms == 0 && r->reason == 0)) &&
           (r->state != ONCE_ABSENT || !r->doubt);
}

int once__record_due(const once_record *r, uint64_t now_ms)
{
    if (owned(r))
        return now_ms >= r->lease_ms ? ONCE_SCAN_LEASE : 0;
    if (r->attempt > 0 && !live(r))
        return now_ms >= r->keep_ms ? ONCE_SCAN_KEEP : 0;
    return 0;
}

once_position once_position_of(int what, const uint8_t name[ONCE_NAME_SIZE],
                               const once_record *r)
{
    once_position p = {0, {0}};

    if (what == ONCE_SCAN_WAITING)
        p.ms = r->ended_ms;
    else if (what == ONCE_SCAN_LIVE)
        p.ms = r->lease_ms;
    memcpy(p.name, name, ONCE_NAME_SIZE);
    return p;
}

int once__position_order(const void *a, const void *b)
{
    const once_position *x = a, *y = b;

    if (x->ms != y->ms)
        return x->ms < y->ms ? -1 : 1;
    return memcmp(x->name, y->name, ONCE_NAME_SIZE);
}

/* Which members of an operation are used: only those are checked. */
enum { LEASE = 1, KEEP = 2, KIND = 4, REASON = 8, LABEL = 16 };

static const uint8_t uses[ONCE__OP_END] = {
    [ONCE_OP_CLAIM] = LEASE | KEEP | LABEL,
    [ONCE_OP_DISPATCH] = LEASE,
    [ONCE_OP_RENEW] = LEASE,
    [ONCE_OP_COMPLETE] = KEEP | KIND,
    [ONCE_OP_RELEASE] = KEEP | REASON,
    [ONCE_OP_GIVE_UP] = REASON,
    [ONCE_OP_REAP] = KEEP,
    [ONCE_OP_RESOLVE] = KEEP | KIND,
    [ONCE_OP_REOPEN] = KEEP,
};

int once__label_check(once_bytes label, once_error *err)
{
    const uint8_t *at = label.data;
    size_t i;

    if (label.size > ONCE_LABEL_MAX)
        return once__fail(err, ONCE_ELIMIT, "label: %zu bytes are over %d",
                          label.size, ONCE_LABEL_MAX);
    for (i = 0; i < label.size; i++)
        if (at[i] < ' ' || at[i] > '~')
            return once__fail(err, ONCE_EINVAL,
                              "label: byte %zu is not printable ASCII", i + 1);
    return ONCE_OK;
}

int once__op_check(const once_op *op, once_error *err)
{
    int use;

    if (op->verb <= 0 || op->verb >= ONCE__OP_END)
        return once__fail(err, ONCE_EINVAL, "verb: %d is not one", op->verb);
    use = uses[op->verb];
    if ((use & LEASE) &&
        (op->lease_ms < ONCE_LEASE_MIN_MS || op->lease_ms > ONCE_LEASE_MAX_MS))
        return once__fail(err, ONCE_EINVAL, "lease_ms: %u is not in %u..%u",
                          op->lease_ms, ONCE_LEASE_MIN_MS, ONCE_LEASE_MAX_MS);
    if ((use & KEEP) && op->keep_ms > ONCE_KEEP_MAX_MS)
        return once__fail(err, ONCE_EINVAL, "keep_ms: over ten years");
    if ((use & KIND) && op->kind != ONCE_SUCCESS && op->kind != ONCE_FAILURE)
        return once__fail(err, ONCE_EINVAL, "kind: %d is not one", op->kind);
    if ((use & REASON) && (op->reason < 0 || op->reason >= ONCE__REASON_END))
        return once__fail(err, ONCE_EINVAL, "reason: %d is not one",
                          op->reason);
    if (op->policy & ~(uint32_t)(ONCE_TAKEOVER | ONCE_RETRY_FAILED))
        return once__fail(err, ONCE_EINVAL, "policy: unknown bits in %#x",
                          op->policy);
    if (op->result.size > ONCE_RESULT_MAX)
        return once__fail(err, ONCE_ELIMIT, "result: %zu bytes are over %zu",
                          op->result.size, ONCE_RESULT_MAX);
    if (op->note.size > ONCE_NOTE_MAX)
        return once__fail(err, ONCE_ELIMIT, "note: %zu bytes are over %zu",
                          op->note.size, ONCE_NOTE_MAX);
    return use & LABEL ? once__label_check(op->label, err) : ONCE_OK;
}
