/* SPDX-License-Identifier: Apache-2.0 */
/*
 * age.c - keys that carry the time at which they were made.
 *
 *        born               may be claimed          its record may be forgotten
 *    ------+-----------------------+-----------+-----------------+------->
 *          |      max_age_ms       |   slack   |                 |
 *          `------------------- keep_ms -------------------------'
 *
 * A key whose record may have been forgotten is not claimed, or its request
 * would execute a second time. It is asked as a READ, as in a gap (gap.c). The
 * time is that of two clocks: this host's, and the store's as it was last read
 * and has gone on since. While the store's is not known nothing is granted.
 *
 * It is looked at each time that a claim is asked, also by those that wait; and
 * once more when it was granted. A process may sleep, and its claim may be under
 * way, for longer than the slack: what is young enough after the grant was so at
 * the grant, and nothing had been forgotten. Else the grant is given back.
 */
#include "calls/core/clock.h"
#include "calls/engine/engine.h"
#include "calls/store/store.h"

enum { STALE_MS = 60000, APART_MS = 300000 };

static void report(once_engine *e, uint64_t host_ms, uint64_t store_ms)
{
    uint64_t apart =
        host_ms > store_ms ? host_ms - store_ms : store_ms - host_ms;

    if (apart > APART_MS && !e->apart)
        once__event(e,
                    "the store's clock is %llu s %s this host's: keys that "
                    "carry a time are refused as too old or too soon by as "
                    "much",
                    (unsigned long long)apart / 1000,
                    store_ms > host_ms ? "ahead of" : "behind");
    e->apart = apart > APART_MS;
}

static int look(once_engine *e, uint64_t born_ms, uint64_t max_age_ms)
{
    uint64_t host_ms = once__wall_clock(NULL);
    uint64_t store_ms = e->clock.now_ms + once__store_clock_age(&e->clock);

    report(e, host_ms, store_ms);
    return once__key_fits(born_ms, max_age_ms, host_ms, store_ms);
}

int once__age_holds(once_engine *e, uint64_t born_ms, uint64_t max_age_ms)
{
    int rc;

    if (max_age_ms == 0)
        return 0;
    if (once__store_clock_age(&e->clock) > STALE_MS &&
        (!once__clock_look(e) || e->clock.seen_ms == 0))
        return ONCE_EAWAY;
    rc = look(e, born_ms, max_age_ms);
    return rc == ONCE_OK ? 0 : rc;
}

int once__age_passed(once_engine *e, uint64_t born_ms, uint64_t max_age_ms)
{
    return max_age_ms != 0 && (once__store_clock_age(&e->clock) > STALE_MS ||
                               look(e, born_ms, max_age_ms) != ONCE_OK);
}
