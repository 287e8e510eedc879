/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reaper.c - what is over: leases of owners that fell silent, and retention.
 *
 * A round looks for leases, then for retention; each step shows at most
 * `reap_max` records and asks for each by its own conditional operation, so a
 * stale list, a second reaper or a reaper that dies are harmless. It works in
 * quiet moments, and under load as soon as a period was missed (L2). A step
 * that was full is followed by another soon.
 *
 * Retention is the one place where a wrong clock could cost safety: before each
 * step that forgets, clock.c looks at the store's.
 */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "engine/engine.h"

enum { HURRY = 8 };

int once__reaper_init(once_engine *e)
{
    struct once__reaper *r = &e->reaper;
    uint32_t i;

    if (e->options.no_reaper)
        return ONCE_OK;
    r->ops = calloc(e->options.reap_max, sizeof(*r->ops));
    r->list = calloc(e->options.reap_max, sizeof(once_op *));
    if (r->ops == NULL || r->list == NULL)
        return ONCE_ENOMEM; /* once__reaper_clear() will free them */
    for (i = 0; i < e->options.reap_max; i++)
        r->list[i] = &r->ops[i];
    r->due_ms = once__now_ms() + e->options.reap_ms;
    r->must_ms = r->due_ms;
    return ONCE_OK;
}

void once__reaper_clear(once_engine *e)
{
    free(e->reaper.ops);
    free(e->reaper.list);
    e->reaper.ops = NULL;
    e->reaper.list = NULL;
}

static int found(void *user, const uint8_t name[ONCE_NAME_SIZE],
                 const once_record *record)
{
    once_engine *e = user;
    struct once__reaper *r = &e->reaper;
    once_op *op = &r->ops[r->found];

    if (record->state > ONCE_INDETERMINATE)
        return 0; /* does not check: an operator's list shows it */
    memset(op, 0, sizeof(*op));
    op->verb = r->forget ? ONCE_OP_FORGET : ONCE_OP_REAP;
    memcpy(op->name, name, ONCE_NAME_SIZE);
    op->fence = record->fence; /* a record that changed since is not it */
    return ++r->found == e->options.reap_max;
}

static void report_lost(once_engine *e, const once_op *op)
{
    if (op->verb == ONCE_OP_REAP && op->rc == ONCE_OK &&
        op->record.state == ONCE_INDETERMINATE && e->options.lost != NULL)
        e->options.lost(e->options.user, op->name, &op->record);
}

static void count(once_engine *e)
{
    struct once__reaper *r = &e->reaper;
    uint64_t done = 0;
    uint32_t i;

    for (i = 0; i < r->found; i++) {
        done += r->ops[i].rc == ONCE_OK;
        report_lost(e, &r->ops[i]);
        if (r->ops[i].rc == ONCE_ECORRUPT)
            once__count(&e->count.corrupt, 1);
    }
    once__count(&e->count.operations, r->found);
    once__count(r->forget ? &e->count.forgotten : &e->count.reaped, done);
}

/* Returns how many records the scan showed, or an error. An unknown outcome is
 * not repeated: the next round's scan says what is still to be done. */
static int step(once_engine *e)
{
    once_error err = {ONCE_ESTORE, "no reason given"};
    struct once__reaper *r = &e->reaper;
    uint64_t start;
    int shown, rc;

    r->found = 0;
    shown = e->store->ops->scan(e->store,
                                r->forget ? ONCE_SCAN_KEEP : ONCE_SCAN_LEASE,
                                NULL, e->options.reap_max, found, e, &err);
    if (shown < 0) {
        once__store_failed(e, &err);
        return shown;
    }
    if (r->found == 0)
        return shown;
    start = once__now_us();
    rc = e->store->ops->apply(e->store, r->list, r->found, &err);
    once__count_batch(e, once__now_us() - start);
    if (rc != ONCE_OK) {
        once__store_failed(e, &err);
        return rc;
    }
    once__store_answered(e);
    count(e);
    return shown;
}

static void next_step(once_engine *e, uint64_t in_ms, uint64_t hurry_ms)
{
    e->reaper.due_ms = once__now_ms() + in_ms;
    e->reaper.must_ms = e->reaper.due_ms + hurry_ms;
}

void once__reaper_turn(once_engine *e, int quiet)
{
    struct once__reaper *r = &e->reaper;
    uint64_t now = once__now_ms();
    int shown;

    if (!r->begun) /* a jump in the first period is one, too */
        (void)!once__clock_look(e);
    r->begun = 1;
    if (now < (quiet ? r->due_ms : r->must_ms))
        return;
    if (r->forget && !once__clock_look(e))
        shown = 0;
    else
        shown = step(e);
    if (shown >= (int)e->options.reap_max) {
        next_step(e, 0, e->options.reap_ms / HURRY);
        return;
    }
    r->forget = !r->forget && shown >= 0;
    if (r->forget)
        next_step(e, 0, e->options.reap_ms / HURRY);
    else
        next_step(e, e->options.reap_ms, e->options.reap_ms);
}
