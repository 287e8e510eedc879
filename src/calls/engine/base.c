/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.c - what every other file of the engine uses: time, chance, counters,
 * events, the way to the engine's thread, and how long its memory lives.
 *
 * It asks no store and calls no other file of the engine but queue.c.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "calls/engine/engine.h"

/* ---- Time and chance ---------------------------------------------------- */

uint64_t once__now_us(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

uint64_t once__now_ms(void)
{
    return once__now_us() / 1000;
}

/* xorshift64*. It only spreads times: tokens come from the system. */
static uint64_t random_below(once_engine *e, uint64_t limit)
{
    assert(e->random != 0 && limit > 0);
    e->random ^= e->random >> 12;
    e->random ^= e->random << 25;
    e->random ^= e->random >> 27;
    return e->random * UINT64_C(0x2545f4914f6cdd1d) % limit;
}

uint64_t once__jitter(once_engine *e, uint64_t ms)
{
    uint64_t spread = ms / 2 + 1;

    ms = ms - ms / 4 + random_below(e, spread);
    return ms > 0 ? ms : 1;
}

/* ---- Counters ----------------------------------------------------------- */

void once__count(atomic_uint_fast64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void once__uncount(atomic_uint_fast64_t *gauge)
{
    uint64_t before = atomic_fetch_sub_explicit(gauge, 1, memory_order_relaxed);

    assert(before > 0);
    (void)before;
}

void once__set(atomic_uint_fast64_t *gauge, uint64_t n)
{
    atomic_store_explicit(gauge, n, memory_order_relaxed);
}

void once__publish(atomic_uint_fast64_t *gauge, uint64_t n)
{
    atomic_store_explicit(gauge, n, memory_order_release);
}

uint64_t once__published(const atomic_uint_fast64_t *gauge)
{
    return atomic_load_explicit(gauge, memory_order_acquire);
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

int once__queue_enter(once_engine *e)
{
    uint64_t before =
        atomic_fetch_add_explicit(&e->count.queued, 1, memory_order_relaxed);

    if (before < e->options.queue_max)
        return 1;
    once__uncount(&e->count.queued);
    once__count(&e->count.busy, 1);
    return 0;
}

void once__queue_leave(once_engine *e)
{
    once__uncount(&e->count.queued);
}

/* ---- Events ------------------------------------------------------------- */

void once__event(once_engine *e, const char *format, ...)
{
    char text[400];
    va_list args;

    if (e->options.event == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    e->options.event(e->options.user, text);
}

/* ---- The way to the engine's thread -------------------------------------- */

int once__on_thread(const once_engine *e)
{
    return pthread_equal(pthread_self(), e->thread);
}

int once__send(once_engine *e, struct once__node *node)
{
    assert(node->arrive != NULL);
    if (!once__queue_push(&e->queue, node))
        return 0;
    if (!e->options.manual_wake)
        once__queue_wake(&e->queue);
    return 1;
}

int once__absent(const once_engine *e)
{
    if (e->ended)
        return ONCE_ECLOSED;
    return e->store == NULL ? ONCE_EAWAY : ONCE_OK;
}

int once__refusal(once_engine *e, once_error *err)
{
    int rc = ONCE_OK;

    if (atomic_load(&e->closing))
        rc = ONCE_ECLOSED;
    else if (atomic_load(&e->away))
        rc = ONCE_EAWAY;
    return rc == ONCE_OK ? rc : once__fail(err, rc, "%s", once_text(rc));
}

/* ---- The engine's memory ------------------------------------------------- */

void once__hold(once_engine *e)
{
    unsigned before =
        atomic_fetch_add_explicit(&e->references, 1, memory_order_relaxed);

    assert(before > 0);
    (void)before;
}

void once__drop(once_engine *e)
{
    /* Whatever others did with it is over before the last one frees it. */
    unsigned before = atomic_fetch_sub(&e->references, 1);

    assert(before > 0);
    if (before > 1)
        return;
    once__queue_clear(&e->queue);
    once__spare_clear(&e->spare);
    free(e);
}

struct once__engine_outcome *once__engine_outcome_new(once_engine *e,
                                                      size_t size)
{
    struct once__engine_outcome *o =
        once__spare_take(&e->spare, sizeof(*o) + size);

    if (o == NULL)
        return NULL;
    memset(o, 0, sizeof(*o));
    o->size = size;
    return o;
}

void once__engine_outcome_free(once_engine *e, struct once__engine_outcome *o)
{
    if (o != NULL)
        once__spare_give(&e->spare, o, sizeof(*o) + o->size);
}
