/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - how much time has certainly passed.
 *
 * A clock that is set ahead must not cause records to be forgotten. So
 * retention is not measured by the store's clock alone, but by the time that
 * was *seen to pass*: it follows the store's clock, but is never faster than a
 * clock that cannot be set. It is kept in the store, so that a wrong clock at
 * the start of a host is noticed as well. These functions read no clock.
 */
#ifndef ONCE_CORE_CLOCK_H
#define ONCE_CORE_CLOCK_H

#include <once/store.h>

/* When reading the store's clock began and ended, by a clock of this host that
 * cannot be set. */
struct once__asked {
    uint64_t before_ms, after_ms;
};

/*
 * The time seen to pass, `elapsed_ms` after it was `seen_ms`, when the store's
 * clock is `now_ms`. It is a little faster than `elapsed_ms`, so that small
 * differences of the clocks do not add up.
 */
uint64_t once__clock_pass(uint64_t seen_ms, uint64_t elapsed_ms,
                          uint64_t now_ms);

/* Updates `*c` from `*t`, which the store has returned. `*c` is all zero before
 * the first call except its host and `every_ms`. Returns 1 if once__clock_put()
 * must be stored, 0 if what is stored is recent enough. */
ONCE_CHECK int once__clock_take(once_clock *c, const once_store_time *t,
                                const struct once__asked *asked);

/* Fills `*t` with what must be stored. once__clock_was_put() is to be called
 * when the store has accepted it. */
void once__clock_put(const once_clock *c, once_store_time *t);
void once__clock_was_put(once_clock *c);

#endif /* ONCE_CORE_CLOCK_H */
