/* SPDX-License-Identifier: Apache-2.0 */
/* steady.h - a time to wait by. It cannot be set, and says nothing of the date. */
#ifndef ONCE_BASE_STEADY_H
#define ONCE_BASE_STEADY_H

#include <stdint.h>
#include <time.h>

/* Milliseconds of CLOCK_MONOTONIC. */
static inline uint64_t once__steady_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

#endif /* ONCE_BASE_STEADY_H */
