/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - how much time has certainly passed.
 *
 * A clock that is set ahead must not make anybody forget. So retention is not
 * counted by the store's clock alone, but by the time that was *seen to pass*:
 * it follows the store's clock, but never faster than a clock that cannot be
 * set. It is kept in the store, so that a host that starts with a wrong clock
 * is noticed as well. Values in, values out: no clock is read here.
 */
#ifndef ONCE_CORE_CLOCK_H
#define ONCE_CORE_CLOCK_H

#include <once/store.h>

/* The two moments around a question to the store, by a clock of this host that
 * cannot be set. */
struct once__asked {
    uint64_t before_ms, after_ms;
};

/*
 * What is sure to have passed when `elapsed_ms` have gone by since it was
 * `seen_ms`, and the store's clock says `now_ms`. A little faster than the
 * other clock, so that small differences come to nothing.
 */
uint64_t once__clock_pass(uint64_t seen_ms, uint64_t elapsed_ms,
                          uint64_t now_ms);

/* Takes what the store said. `*c` is zeros at first but for its host and
 * `every_ms`. Returns 1 if the store must be told (once__clock_put()), 0 if what
 * it keeps is good enough. */
ONCE_CHECK int once__clock_take(once_clock *c, const once_store_time *t,
                                const struct once__asked *asked);

/* What the store is to be told; and it was. */
void once__clock_put(const once_clock *c, once_store_time *t);
void once__clock_was_put(once_clock *c);

#endif /* ONCE_CORE_CLOCK_H */
