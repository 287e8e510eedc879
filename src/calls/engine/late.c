/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late.c - goes on recording an outcome after the caller got no answer.
 *
 *    complete, release --> no answer until the lease expires --> the caller
 *                                        |                       gets "unknown"
 *                                        +--> repeated here, until answered
 *
 * The caller does not wait longer, but the outcome is known and is not thrown
 * away: the store accepts it with the owner's token and fence as long as no one
 * else was granted the key (docs/protocol.md, section 5), also when the record
 * has become indeterminate. What is repeated here is limited in bytes
 * (`late_bytes`, the outcomes themselves) and in time (`late_ms`). What exceeds
 * a limit is dropped: its record stays as the reaper left it.
 */
#include <assert.h>

#include "calls/engine/engine.h"

/* The least that an outcome counts. This also limits how many there are: with
 * the default limits, to half of the engine's queue. */
enum { CHARGE_MIN = 2048 };

static uint64_t charge(const once_op *op)
{
    return op->result.size > CHARGE_MIN ? op->result.size : CHARGE_MIN;
}

static void hold(once_engine *e, int64_t n, const once_op *op)
{
    e->late.held += (uint64_t)n;
    e->late.bytes += (uint64_t)n * charge(op);
    once__set(&e->count.unrecorded, e->late.held);
}

/* One event when nothing is repeated any more, not one for each outcome. */
static void report(once_engine *e)
{
    struct once__late *l = &e->late;

    if (l->held > 0 || l->recorded + l->dropped == 0)
        return;
    once__event(e,
                "the store did not answer for longer than a lease: %llu "
                "outcomes were recorded late, %llu were not",
                (unsigned long long)l->recorded,
                (unsigned long long)l->dropped);
    l->recorded = l->dropped = 0;
}

static void ended(once_engine *e, once__task *task, int rc)
{
    struct once__engine_outcome *o =
        ONCE__OF(task, struct once__engine_outcome, task);

    if ((rc == ONCE_ENOMEM || rc == ONCE_EFULL) && once__ask_again(e, task))
        return;
    assert(e->late.held > 0 && e->late.bytes >= charge(&o->op));
    hold(e, -1, &o->op);
    if (rc == ONCE_OK)
        e->late.recorded++;
    else
        e->late.dropped++;
    once__engine_outcome_free(e, o);
    report(e);
}

void once__late_begin(once_engine *e, once_attempt *a)
{
    struct once__engine_outcome *o = a->outcome;

    assert(a->step_op.verb == ONCE_OP_COMPLETE ||
           a->step_op.verb == ONCE_OP_RELEASE);
    assert(o != NULL || a->step_op.verb == ONCE_OP_RELEASE);
    a->outcome = NULL;
    if (o == NULL) /* a release has no bytes */
        o = once__engine_outcome_new(e, 0);
    if (o == NULL ||
        e->late.bytes + charge(&a->step_op) > e->options.late_bytes)
        goto out;
    o->op = a->step_op;
    o->op.label = (once_bytes){NULL, 0}; /* the attempt's */
    o->task.op = &o->op;
    o->task.end = ended;
    hold(e, 1, &o->op);
    once__ask(e, &o->task, once__now_ms() + e->options.late_ms);
    return;
out:
    once__engine_outcome_free(e, o);
    e->late.dropped++;
    report(e);
}
