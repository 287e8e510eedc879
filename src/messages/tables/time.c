/* SPDX-License-Identifier: Apache-2.0 */
/*
 * time.c - a clock for waiting, which nobody can set. Times of rows are the
 * database's, or for SQLite those of the host's own clock.
 */
#include <time.h>

#include "messages/tables/backend.h"

uint64_t once__steady_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}
