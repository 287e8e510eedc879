/* SPDX-License-Identifier: Apache-2.0 */
/*
 * broken.c - drivers with a mistake, to prove that the history checker would
 * see it. Each is the real memory driver, asked the wrong thing or not asked:
 * what the mistake leaves behind are records that the real driver keeps.
 *
 * It refuses to be found out by timing alone: a mistake is made every time or
 * by a draw, never by an extra wait. (Torn claims wait between their two
 * halves, as a round trip would.)
 */
#include "broken.h"

#include <assert.h>
#include <string.h>
#include <time.h>

#include "calls/core/transition.h"

static const char *const names[] = {
#define FLAW(name, text, what) text,
    FLAWS(FLAW)
#undef FLAW
};

static const char *const texts[] = {
#define FLAW(name, text, what) what,
    FLAWS(FLAW)
#undef FLAW
};

const char *flaw_name(int flaw)
{
    return names[flaw];
}

const char *flaw_text(int flaw)
{
    return texts[flaw];
}

static once_bytes copied(once_bytes from, uint8_t *to)
{
    assert(from.size <= LIN_BODY);
    if (from.size > 0)
        memmove(to, from.data, from.size); /* it may be there already */
    return (once_bytes){to, from.size};
}

void lin_op_own(struct lin_op *o)
{
    o->op.record.result = copied(o->op.record.result, o->shown);
    o->op.record.note = copied(o->op.record.note, o->noted);
}

void shared_init(struct shared *s, once_store *inner, int flaw,
                 uint64_t (*clock)(void *user))
{
    int rc;

    memset(s, 0, sizeof(*s));
    rc = pthread_mutex_init(&s->lock, NULL);
    assert(rc == 0);
    (void)rc;
    s->inner = inner;
    s->flaw = flaw;
    s->random = 88172645463325252u;
    s->clock = clock;
}

void shared_end(struct shared *s)
{
    once_store_close(s->inner);
    pthread_mutex_destroy(&s->lock);
}

static int one_in(struct shared *s, unsigned n)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (s->random >> 33) % n == 0;
}

static int ask(struct shared *s, once_op *op)
{
    return s->inner->ops->apply(s->inner, &op, 1, NULL);
}

/* Another question about the same key, in the name of `op`. */
static once_op aside(const once_op *op, int verb)
{
    once_op other = *op;

    other.verb = verb;
    return other;
}

/* ---- The mistakes, each with the lock held ------------------------------ */

/* Another one's claim came in between: SET does not look. */
static int overwrite(struct shared *s, once_op *op)
{
    once_op look = aside(op, ONCE_OP_SHOW), drop;
    int rc = ask(s, &look);

    if (rc != ONCE_OK)
        return rc;
    drop = aside(op, ONCE_OP_RELEASE);
    drop.fence = look.record.fence;
    memcpy(drop.token, look.record.token, sizeof(drop.token));
    rc = look.record.attempt == 0 ? ONCE_OK : ask(s, &drop);
    return rc == ONCE_OK ? ask(s, op) : rc;
}

static int torn(struct shared *s, once_op *op)
{
    const struct timespec trip = {0, 100000};
    once_op look = aside(op, ONCE_OP_SHOW);
    int rc;

    if (op->verb != ONCE_OP_CLAIM)
        return ask(s, op);
    rc = ask(s, &look);
    if (rc != ONCE_OK || look.rc != ONCE_FREE)
        return rc == ONCE_OK ? ask(s, op) : rc;
    pthread_mutex_unlock(&s->lock);
    nanosleep(&trip, NULL);
    pthread_mutex_lock(&s->lock);
    return overwrite(s, op);
}

/* Keeps the last records of the key at hand, oldest first. */
static void remember(struct shared *s, const once_op *op)
{
    struct past *p = &s->past[LAG - 1];

    if (memcmp(s->name, op->name, sizeof(s->name)) != 0) {
        memset(s->past, 0, sizeof(s->past));
        memcpy(s->name, op->name, sizeof(s->name));
    }
    if (p->r.state == op->record.state && p->r.fence == op->record.fence)
        return;
    memmove(s->past, s->past + 1, sizeof(s->past) - sizeof(s->past[0]));
    p->r = op->record;
    (void)copied(op->record.result, p->body);
    (void)copied(op->record.note, p->note);
}

static int stale(struct shared *s, once_op *op)
{
    struct past old;
    uint64_t fence = 0;
    int rc;

    if (op->verb == ONCE_OP_READ || op->verb == ONCE_OP_SHOW) {
        old = s->past[0];
        old.r.result.data = s->past[0].body;
        old.r.note.data = s->past[0].note;
        if (memcmp(s->name, op->name, sizeof(s->name)) != 0)
            memset(&old, 0, sizeof(old));
        (void)once__transition(&old.r, op, s->clock(NULL), &fence);
        return ONCE_OK;
    }
    rc = ask(s, op);
    if (rc == ONCE_OK)
        remember(s, op);
    return rc;
}

/* Answers as if: what would have been, on a copy. */
static int lost(struct shared *s, once_op *op)
{
    once_op look = aside(op, ONCE_OP_SHOW);
    uint64_t fence = 0;
    int rc;

    if (op->verb != ONCE_OP_COMPLETE || !one_in(s, 3))
        return ask(s, op);
    rc = ask(s, &look);
    if (rc == ONCE_OK)
        (void)once__transition(&look.record, op, s->clock(NULL), &fence);
    return rc;
}

static int unfenced(struct shared *s, once_op *op)
{
    once_op look = aside(op, ONCE_OP_SHOW), forced;
    int rc;

    if (op->verb != ONCE_OP_COMPLETE)
        return ask(s, op);
    rc = ask(s, &look);
    if (rc != ONCE_OK)
        return rc;
    forced = aside(op, ONCE_OP_COMPLETE);
    forced.fence = look.record.fence;
    memcpy(forced.token, look.record.token, sizeof(forced.token));
    rc = ask(s, &forced);
    op->rc = forced.rc;
    op->left_ms = forced.left_ms;
    op->record = forced.record;
    return rc;
}

static int forgetful(struct shared *s, once_op *op)
{
    once_op look = aside(op, ONCE_OP_SHOW);
    int rc;

    if (op->verb != ONCE_OP_CLAIM)
        return ask(s, op);
    rc = ask(s, &look);
    if (rc != ONCE_OK || look.rc != ONCE_IN_FLIGHT || look.left_ms == 0)
        return rc == ONCE_OK ? ask(s, op) : rc;
    memset(op->token, 0, sizeof(op->token)); /* somebody's */
    rc = ask(s, op);
    return rc;
}

/* Cuts the lease short by renewing it for the least time, behind the back of
 * its owner, who keeps the answer that he was given. */
static int early(struct shared *s, once_op *op)
{
    once_op cut = aside(op, ONCE_OP_RENEW);
    int rc = ask(s, op);

    if (rc != ONCE_OK || op->verb != ONCE_OP_CLAIM || op->rc != ONCE_OWNER)
        return rc;
    op->record.note =
        copied(op->record.note, ((struct lin_op *)op->user)->noted);
    cut.fence = op->record.fence;
    cut.lease_ms = ONCE_LEASE_MIN_MS;
    (void)ask(s, &cut);
    return ONCE_OK;
}

/* The counter stands in the record and goes with it: what was fence 7 of the
 * store is fence 1 of the record, so every answer's is counted from there. */
static int aba(struct shared *s, once_op *op)
{
    int rc;

    if (op->fence != 0) {
        once_op look = aside(op, ONCE_OP_SHOW);

        rc = ask(s, &look);
        if (rc != ONCE_OK)
            return rc;
        if (look.record.attempt == op->fence)
            op->fence = look.record.fence;
    }
    rc = ask(s, op);
    op->record.fence = op->record.attempt;
    return rc;
}

/* ---- Asking ------------------------------------------------------------ */

int shared_ask(struct shared *s, struct lin_op *o)
{
    static int (*const flawed[FLAW_COUNT])(struct shared *, once_op *) = {
        [FLAW_NONE] = ask,
        [FLAW_TORN] = torn,
        [FLAW_STALE] = stale,
        [FLAW_LOST] = lost,
        [FLAW_UNFENCED] = unfenced,
        [FLAW_EARLY] = early,
        [FLAW_FORGETFUL] = forgetful,
        [FLAW_ABA] = aba,
    };
    once_op op = o->op; /* what was asked stays as it was asked */
    int rc;

    op.user = o;
    pthread_mutex_lock(&s->lock);
    rc = flawed[s->flaw](s, &op);
    if (rc == ONCE_OK) {
        o->op.rc = op.rc;
        o->op.left_ms = op.left_ms;
        o->op.record = op.record;
        lin_op_own(o);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}
