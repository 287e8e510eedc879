/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - how much time has certainly passed.
 *
 * A clock that is set ahead must not cause records to be forgotten. So
 * retention is not measured by the store's clock alone, but by *elapsed store
 * time*: it follows the store's clock, but is never faster than a clock that
 * cannot be set. It is kept in the store, so that a wrong clock at
 * the start of a host is noticed as well. These functions read no clock.
 */
#ifndef ONCE_CALLS_CORE_CLOCK_H
#define ONCE_CALLS_CORE_CLOCK_H

#include <once/store.h>

/* When reading the store's clock began and ended, by a clock of this host that
 * cannot be set. */
struct once__asked {
    uint64_t before_ms, after_ms;
};

/*
 * Elapsed store time, `elapsed_ms` after it was `seen_ms`, when the store's
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

/*
 * May a key that was born then still be claimed? `host_ms` and `store_ms` are
 * two clocks, and each of them may be wrong: the later one says how old the key
 * is, the earlier one whether it is from the future. Returns ONCE_OK,
 * ONCE_EXPIRED or ONCE_TOO_SOON.
 */
ONCE_CHECK int once__key_fits(uint64_t born_ms, uint64_t max_age_ms,
                              uint64_t host_ms, uint64_t store_ms);

#endif /* ONCE_CALLS_CORE_CLOCK_H */
