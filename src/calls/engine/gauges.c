/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gauges.c - how many records the store has, for once_engine_stats(): asked by
 * the engine's thread every `count_ms`, so that a caller who looks waits for
 * nothing and does not make the store busier by looking more often.
 */
#include <string.h>

#include "calls/engine/engine.h"

static int first(void *user, const uint8_t name[ONCE_NAME_SIZE],
                 const once_record *r)
{
    uint64_t *ended_ms = user;

    (void)name;
    *ended_ms = r->ended_ms;
    return 1;
}

/* 0: the store did not say. */
static int look(once_engine *e, once_counts *counts, uint64_t *oldest_ms)
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
    known = look(e, &counts, &oldest_ms);
    if (known) {
        once__set(&c->claimed, counts.claimed);
        once__set(&c->dispatched, counts.dispatched);
        once__set(&c->indeterminate, counts.indeterminate);
        once__set(&c->oldest_indeterminate_ms, oldest_ms);
    }
    once__publish(&c->counted, (uint64_t)known);
}
