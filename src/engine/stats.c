/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.c - counters that every thread may read at any time.
 *
 * Relaxed atomics: each number is right, but a set of them is not of one
 * moment. Nothing is decided by them but whether the queue is full.
 */
#include <string.h>

#include "engine/engine.h"

void once__count(atomic_uint_fast64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void once__uncount(atomic_uint_fast64_t *gauge)
{
    atomic_fetch_sub_explicit(gauge, 1, memory_order_relaxed);
}

void once__count_batch(once_engine *e, uint64_t us)
{
    size_t i = 0;

    while (i < ONCE_LATENCY_BUCKETS - 1 && us >= (UINT64_C(64) << i))
        i++;
    once__count(&e->count.batches, 1);
    once__count(&e->count.apply_us, us);
    once__count(&e->count.latency[i], 1);
}

static uint64_t look(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void once_engine_stats(once_engine *e, once_stats *out)
{
    const struct once__counters *c = &e->count;
    uint64_t since = look(&c->oldest_since_ms), now = once__now_ms();
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
    out->queued = look(&c->queued);
    out->live = look(&c->live);
    out->waiting = look(&c->waiting);
    out->oldest_ms = since == 0 || now < since ? 0 : now - since;
    out->apply_us = look(&c->apply_us);
    for (i = 0; i < ONCE_LATENCY_BUCKETS; i++)
        out->latency[i] = look(&c->latency[i]);
}
