/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.c - counters that every thread may read at any time, and how many records
 * the store has.
 *
 * Relaxed atomics: each number is right, but they are not all of one moment.
 * `up` and `counted` say something of others, so they are published: read before
 * these, they are never newer than these.
 * Two decisions use the numbers: whether the queue is full, and whether what the
 * store has answered before may still be shown.
 */
#include <string.h>

#include "calls/engine/cache.h"
#include "calls/engine/engine.h"

static uint64_t look(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void once_engine_stats(once_engine *e, once_stats *out)
{
    const struct once__counters *c = &e->count;
    uint64_t since = look(&c->oldest_since_ms), swept = look(&c->swept_at_ms);
    uint64_t now = once__now_ms();
    size_t i;

    memset(out, 0, sizeof(*out));
    out->operations = look(&c->operations);
    out->batches = look(&c->batches);
    out->unknown = look(&c->unknown);
    out->repeated = look(&c->repeated);
    out->busy = look(&c->busy);
    out->renewed = look(&c->renewed);
    out->reaped = look(&c->reaped);
    out->forgotten = look(&c->forgotten);
    out->corrupt = look(&c->corrupt);
    out->rollbacks = look(&c->rollbacks);
    out->queued = look(&c->queued);
    out->live = look(&c->live);
    out->waiting = look(&c->waiting);
    out->oldest_ms = since == 0 || now < since ? 0 : now - since;
    out->up = once__published(&c->up);
    out->unrecorded = look(&c->unrecorded);
    out->durable = look(&c->durable);
    out->swept_ms = swept == 0 ? UINT64_MAX : now < swept ? 0 : now - swept;
    out->late = look(&c->late);
    out->incarnation = look(&c->incarnation);
    out->gap_until_ms = look(&c->gap_until_ms);
    out->counted = once__published(&c->counted);
    if (out->counted) {
        out->claimed = look(&c->claimed);
        out->dispatched = look(&c->dispatched);
        out->indeterminate = look(&c->indeterminate);
        out->oldest_indeterminate_ms = look(&c->oldest_indeterminate_ms);
    }
    out->apply_us = look(&c->apply_us);
    for (i = 0; i < ONCE_LATENCY_BUCKETS; i++)
        out->latency[i] = look(&c->latency[i]);
}

uint64_t once__engine_epoch(const once_engine *e)
{
    const struct once__counters *c = &e->count;

    /* A store that answers again is not seen without the failure before. */
    if (!once__published(&c->up) || !look(&c->of_host))
        return 0;
    return look(&c->unknown) + 1;
}

/* ---- How many records the store has ---------------------------------------
 *
 * Asked by the engine's thread every `count_ms`, so that a caller who looks
 * waits for nothing and does not make the store busier by looking more often. */

static int first(void *user, const uint8_t name[ONCE_NAME_SIZE],
                 const once_record *r)
{
    uint64_t *ended_ms = user;

    (void)name;
    *ended_ms = r->ended_ms;
    return 1;
}

/* 0: the store did not say. */
static int ask(once_engine *e, once_counts *counts, uint64_t *oldest_ms)
{
    const once_store_ops *ops = e->store->ops;
    once_error err;

    *oldest_ms = 0;
    if (ops->count == NULL || ops->count(e->store, counts, &err) != ONCE_OK)
        return 0;
    return counts->indeterminate == 0 ||
           ops->scan(e->store, ONCE_SCAN_WAITING, NULL, 1, first, oldest_ms,
                     &err) >= 0;
}

void once__gauges_turn(once_engine *e)
{
    struct once__counters *c = &e->count;
    uint64_t now = once__now_ms(), oldest_ms;
    once_counts counts;
    int known;

    if (e->options.count_ms == 0 || now < e->count_due_ms)
        return;
    e->count_due_ms = now + e->options.count_ms;
    memset(&counts, 0, sizeof(counts));
    known = ask(e, &counts, &oldest_ms);
    if (known) {
        once__set(&c->claimed, counts.claimed);
        once__set(&c->dispatched, counts.dispatched);
        once__set(&c->indeterminate, counts.indeterminate);
        once__set(&c->oldest_indeterminate_ms, oldest_ms);
    }
    once__publish(&c->counted, (uint64_t)known);
}
