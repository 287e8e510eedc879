/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.c - asks a store for the time, and holds its forgetting to
 * elapsed store time (core/clock.h).
 *
 * The clock that decides is the store's: that of its server, or for the stores
 * of one host that host's. What it is held against is CLOCK_BOOTTIME here,
 * which cannot be set and counts while the machine sleeps.
 */
#include <time.h>

#include "calls/core/clock.h"
#include "base/error.h"
#include "base/steady.h"
#include "calls/store/store.h"

uint64_t once__wall_clock(void *user)
{
    (void)user;
    return once__clock_us(CLOCK_REALTIME) / 1000;
}

static int put(once_store *s, once_clock *c, once_error *err)
{
    once_store_time now, seen = {.now_ms = 0};

    int rc;

    once__clock_put(c, &seen);
    rc = s->ops->time(s, &seen, &now, err);
    if (rc == ONCE_OK)
        once__clock_was_put(c);
    return rc;
}

int once_store_clock(once_store *s, once_clock *c, once_error *err)
{
    once_clock next = *c; /* what could not be put is found out once more */
    struct once__asked asked;
    once_store_time t;
    int rc;

    if (s->ops->time == NULL)
        return once__fail(err, ONCE_ENOSYS, "%s: this store says no time",
                          s->ops->name);
    if (next.seen_ms == 0)
        once__host(next.host);
    asked.before_ms = once__clock_us(CLOCK_BOOTTIME) / 1000;
    rc = s->ops->time(s, NULL, &t, err);
    asked.after_ms = once__clock_us(CLOCK_BOOTTIME) / 1000;
    if (rc != ONCE_OK)
        return rc;
    if (once__clock_take(&next, &t, &asked)) {
        rc = put(s, &next, err);
        /* Elapsed store time is certain. A store that is full takes no
         * puts, and to forget is what makes room in it. But a step back that
         * only we know of must not be lost. */
        if (rc != ONCE_OK && next.backs != t.backs)
            return rc;
    }
    *c = next;
    s->forget_ms = c->seen_ms;
    return ONCE_OK;
}

uint64_t once__store_clock_age(const once_clock *c)
{
    uint64_t now_ms = once__clock_us(CLOCK_BOOTTIME) / 1000;

    if (c->seen_ms == 0)
        return UINT64_MAX;
    return now_ms > c->before_ms ? now_ms - c->before_ms : 0;
}

int once__store_clock_behind(once_store *s, once_clock *c, uint64_t behind_ms,
                             once_error *err)
{
    int rc = once_store_clock(s, c, err);

    if (rc != ONCE_OK)
        return rc;
    c->behind_ms = behind_ms < c->now_ms ? behind_ms : 0;
    c->seen_ms = c->now_ms - c->behind_ms;
    c->backs += c->behind_ms > 0; /* others do not go on from what they know */
    rc = put(s, c, err);
    if (rc == ONCE_OK)
        s->forget_ms = c->seen_ms;
    return rc;
}

int once_store_clock_accept(once_store *s, once_clock *c, once_error *err)
{
    return once__store_clock_behind(s, c, 0, err);
}
