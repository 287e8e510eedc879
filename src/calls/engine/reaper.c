/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reaper.c - reaps records whose lease has expired, and forgets records whose
 * retention time has ended.
 *
 * A round reaps and then forgets, in steps. A step scans for at most `reap_max`
 * records and begins one conditional operation for each, so an outdated scan, a
 * second reaper or a reaper that dies are harmless. The operations are tasks
 * like all others (ask_store.c), and the next step begins when they have ended.
 * A step begins when the engine has nothing else to do, and under load as soon
 * as a period was missed (docs/protocol.md, L2). If a step found as many
 * records as it may, the next one follows soon.
 *
 * Retention is the one place where a wrong clock could cost safety: before each
 * step that forgets, clock.c reads the store's clock.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "calls/engine/engine.h"

enum { HURRY = 8 };

int once__reaper_init(once_engine *e)
{
    struct once__reaper *r = &e->reaper;

    if (e->options.no_reaper)
        return ONCE_OK;
    r->expired = calloc(e->options.reap_max, sizeof(*r->expired));
    if (r->expired == NULL)
        return ONCE_ENOMEM;
    r->due_ms = once__now_ms() + e->options.reap_ms;
    r->must_ms = r->due_ms;
    return ONCE_OK;
}

void once__reaper_clear(once_engine *e)
{
    free(e->reaper.expired);
    e->reaper.expired = NULL;
}

static void next_step(once_engine *e, uint64_t in_ms, uint64_t hurry_ms)
{
    e->reaper.due_ms = once__now_ms() + in_ms;
    e->reaper.must_ms = e->reaper.due_ms + hurry_ms;
}

/* A step has ended; `found`: its scan was answered. */
static void plan(once_engine *e, int found)
{
    struct once__reaper *r = &e->reaper;

    if (r->full && r->done > 0) {
        next_step(e, 0, e->options.reap_ms / HURRY);
        return;
    }
    r->forget = !r->forget && found;
    if (r->forget)
        next_step(e, 0, e->options.reap_ms / HURRY);
    else
        next_step(e, e->options.reap_ms, e->options.reap_ms);
}

/* An operation that was not answered needs no more than that: the next round's
 * scan shows what is still to be done. */
static void ended(once_engine *e, once__task *task, int rc)
{
    struct once__reaper *r = &e->reaper;
    const once_op *op = task->op;

    r->done += rc == ONCE_OK;
    if (rc == ONCE_OK)
        once__count(r->forget ? &e->count.forgotten : &e->count.reaped, 1);
    if (rc == ONCE_OK && op->verb == ONCE_OP_REAP &&
        op->record.state == ONCE_INDETERMINATE && e->options.lost != NULL)
        e->options.lost(e->options.user, op->name, &op->record);
    assert(r->out > 0);
    if (--r->out == 0)
        plan(e, 1);
}

static int found(void *user, const uint8_t name[ONCE_NAME_SIZE],
                 const once_record *record)
{
    once_engine *e = user;
    struct once__reaper *r = &e->reaper;
    struct once__expired *o = &r->expired[r->found];

    if (record->state > ONCE_INDETERMINATE)
        return 0; /* it fails its checksum: an operator's list shows it */
    memset(o, 0, sizeof(*o));
    o->task.op = &o->op;
    o->task.end = ended;
    o->task.unlimited = 1;
    o->op.verb = r->forget ? ONCE_OP_FORGET : ONCE_OP_REAP;
    memcpy(o->op.name, name, ONCE_NAME_SIZE);
    o->op.fence = record->fence; /* a record that changed since is not it */
    return ++r->found == e->options.reap_max;
}

/* 0: the scan was not answered. */
static int step(once_engine *e)
{
    once_error err = {ONCE_ESTORE, "no reason given"};
    struct once__reaper *r = &e->reaper;
    uint64_t until = once__now_ms() + e->options.reap_ms;
    uint32_t i;
    int shown;

    assert(r->out == 0); /* the store still uses the operations of a step */
    r->found = r->done = 0;
    shown = e->store->ops->scan(e->store,
                                r->forget ? ONCE_SCAN_KEEP : ONCE_SCAN_LEASE,
                                NULL, e->options.reap_max, found, e, &err);
    if (shown < 0) {
        once__store_failed(e, &err);
        return 0;
    }
    if (r->forget)
        once__set(&e->count.swept_at_ms, once__now_ms());
    r->full = shown >= (int)e->options.reap_max;
    r->out = r->found;
    for (i = 0; i < r->found; i++)
        once__ask(e, &r->expired[i].task, until);
    return 1;
}

void once__reaper_turn(once_engine *e, int quiet)
{
    struct once__reaper *r = &e->reaper;
    uint64_t now = once__now_ms();
    int found = 1;

    if (!r->begun) /* to notice a jump of the clock in the first period, too */
        (void)!once__clock_look(e);
    r->begun = 1;
    if (now < (quiet ? r->due_ms : r->must_ms))
        return;
    r->full = 0;
    r->due_ms = r->must_ms = UINT64_MAX; /* until the step has ended */
    if (!r->forget || once__clock_look(e))
        found = step(e);
    if (r->out == 0)
        plan(e, found);
}
