/* SPDX-License-Identifier: Apache-2.0 */
/* backoff.h - when to try again: later after each failure, and in part by chance,
 * so that many who lost one server do not come back at one moment. */
#ifndef ONCE_BASE_BACKOFF_H
#define ONCE_BASE_BACKOFF_H

#include <sys/random.h>

#include "base/steady.h"

enum { ONCE__BACKOFF_MS = 20, ONCE__BACKOFF_MOST_MS = 2560 };

/* The longest pause before attempt `n`, 1 being the first repetition. */
static inline uint64_t once__backoff(uint32_t first_ms, uint32_t most_ms,
                                     uint32_t n)
{
    uint64_t ms = first_ms;

    for (; n > 1 && ms < most_ms; n--)
        ms *= 2;
    return ms < most_ms ? ms : most_ms;
}

/* A whole number from 0 to `most`, evenly, made of 64 random bits. */
static inline uint64_t once__spread(uint64_t most, uint64_t random)
{
    uint64_t share, n;

    if (most == UINT64_MAX)
        return random;
    /* Equal shares, but for the last, which is larger by a rest. */
    share = UINT64_MAX / (most + 1);
    n = random / share;
    return n < most ? n : most;
}

/* The same with random bits of the system; `most` if it has none. */
static inline uint64_t once__up_to(uint64_t most)
{
    uint64_t random = 0;

    return getrandom(&random, sizeof(random), 0) == (ssize_t)sizeof(random)
               ? once__spread(most, random)
               : most;
}

/* Half of it to all of it. */
static inline uint64_t once__half_to_all(uint64_t ms)
{
    return ms / 2 + once__up_to(ms / 2);
}

/* Not before this time, in once__steady_ms(), after so many failures in a row
 * before this one. */
static inline uint64_t once__backoff_until(uint32_t failures)
{
    return once__steady_ms() +
           once__half_to_all(once__backoff(
               ONCE__BACKOFF_MS, ONCE__BACKOFF_MOST_MS, failures + 1));
}

#endif /* ONCE_BASE_BACKOFF_H */
