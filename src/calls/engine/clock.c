/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.c - reads the store's clock before anything is forgotten, and reports
 * what an operator should know of it.
 *
 * Records are forgotten by elapsed store time (store/clock.c):
 *
 *    set ahead        what is due is forgotten later by as much, until the
 *                     clock is set right or an operator accepts it
 *    set back         all is kept longer, which is safe
 *    ahead at once    no process saw the time pass: the host was off or stopped
 *                     for long, or has started with a wrong clock
 */
#include "base/error.h"
#include "calls/engine/engine.h"

enum { LATE_MS = 3600000, AGREE_MS = 1000 };

static void clock_unknown(once_engine *e, const once_error *err)
{
    if (!e->clock_unknown)
        once__event(e,
                    "the store's clock cannot be read, so nothing is "
                    "forgotten: %s",
                    err->text);
    e->clock_unknown = 1;
    once__set(&e->count.late, 1);
}

static void report(once_engine *e, int first)
{
    const once_clock *c = &e->clock;

    if (c->jumped_ms > 0)
        once__event(e,
                    "the store's clock jumped ahead by %lld ms: what is due is "
                    "forgotten later by as much, until it is set right or "
                    "accepted with `once clock --accept`",
                    (long long)c->jumped_ms);
    else if (c->jumped_ms < 0)
        once__event(e,
                    "the store's clock was set back by %lld ms: what is due "
                    "will be forgotten later",
                    (long long)-c->jumped_ms);
    else if (first && c->behind_ms >= LATE_MS)
        once__event(e,
                    "the store's clock is %llu s ahead of the elapsed store "
                    "time: what is due is forgotten later by as much. "
                    "If it is right, accept it with `once clock --accept`",
                    (unsigned long long)c->behind_ms / 1000);
    else if (e->ahead && c->behind_ms < AGREE_MS)
        once__event(e, "the clocks agree again");
    e->ahead = c->behind_ms >= AGREE_MS;
    once__set(&e->count.late, (uint64_t)e->ahead);
}

int once__clock_look(once_engine *e)
{
    once_error err = {ONCE_ESTORE, "no reason given"};
    int first = e->clock.seen_ms == 0;
    int rc;

    e->clock.every_ms = e->options.reap_ms;
    rc = once_store_clock(e->store, &e->clock, &err);
    if (rc == ONCE_ENOSYS)
        return 1; /* a store without time(): it forgets by its own clock */
    if (rc != ONCE_OK) {
        clock_unknown(e, &err);
        return 0;
    }
    e->clock_unknown = 0;
    report(e, first);
    return 1;
}
