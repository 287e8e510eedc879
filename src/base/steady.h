/* SPDX-License-Identifier: Apache-2.0 */
/* steady.h - the system's clocks; and a time to wait by, which cannot be set and
 * says nothing of the date. */
#ifndef ONCE_BASE_STEADY_H
#define ONCE_BASE_STEADY_H

#include <errno.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t once__clock_us(clockid_t clock)
{
    struct timespec t;

    (void)clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Of CLOCK_MONOTONIC. */
static inline uint64_t once__steady_us(void)
{
    return once__clock_us(CLOCK_MONOTONIC);
}

static inline uint64_t once__steady_ms(void)
{
    return once__steady_us() / 1000;
}

static inline void once__sleep_ms(uint64_t ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};

    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

#endif /* ONCE_BASE_STEADY_H */
