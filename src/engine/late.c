/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late.c - what an owner said, when the store did not answer until its lease
 * was over.
 *
 *    complete, release --> silent until the end of the lease --> the caller is
 *                                        |                       told "unknown"
 *                                        +--> asked again here, until answered
 *
 * The caller does not wait longer, but what is known is not thrown away: the
 * store accepts it from the owner's token and fence as long as nobody else was
 * granted the key (docs/protocol.md, section 5), also when the record has
 * become indeterminate. What waits here is bounded in bytes (`late_bytes`, the
 * outcomes themselves) and in time (`late_ms`). What is over a limit is
 * dropped: its record stays as the reaper left it.
 */
#include <stdlib.h>

#include "engine/engine.h"

/* Also bounds how many there are, to half of the usual queue. */
enum { CHARGE_MIN = 2048 };

static uint64_t charge(const once_op *op)
{
    return op->result.size > CHARGE_MIN ? op->result.size : CHARGE_MIN;
}

/* One line when all is over, not one for each of them. */
static void report(once_engine *e)
{
    struct once__late *l = &e->late;

    if (l->bytes > 0 || l->recorded + l->dropped == 0)
        return;
    once__event(e,
                "the store was silent for longer than a lease: %llu outcomes "
                "were recorded late, %llu were not",
                (unsigned long long)l->recorded,
                (unsigned long long)l->dropped);
    l->recorded = l->dropped = 0;
}

static void ended(once_engine *e, once__task *task, int rc)
{
    struct once__outcome *o = ONCE__OF(task, struct once__outcome, task);

    if ((rc == ONCE_ENOMEM || rc == ONCE_EFULL) && once__ask_again(e, task))
        return;
    e->late.bytes -= charge(&o->op);
    if (rc == ONCE_OK)
        e->late.recorded++;
    else
        e->late.dropped++;
    free(o);
    report(e);
}

void once__late_begin(once_engine *e, once_attempt *a)
{
    struct once__outcome *o = a->outcome;

    a->outcome = NULL;
    if (o == NULL) /* a release has no bytes */
        o = calloc(1, sizeof(*o));
    if (o == NULL ||
        e->late.bytes + charge(&a->step_op) > e->options.late_bytes)
        goto out;
    o->op = a->step_op;
    o->task.op = &o->op;
    o->task.end = ended;
    e->late.bytes += charge(&o->op);
    once__ask(e, &o->task, once__now_ms() + e->options.late_ms);
    return;
out:
    free(o);
    e->late.dropped++;
    report(e);
}
