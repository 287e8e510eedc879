/* SPDX-License-Identifier: Apache-2.0 */
/* backoff.h - when to try again to reach a server: longer each time. */
#ifndef ONCE_BASE_BACKOFF_H
#define ONCE_BASE_BACKOFF_H

#include "base/steady.h"

enum { ONCE__BACKOFF_MS = 20, ONCE__BACKOFF_STEPS = 7 }; /* up to 2.5 s */

/* Not before this time, in once__steady_ms(), after so many failures in a row
 * before this one. */
static inline uint64_t once__backoff_until(uint32_t failures)
{
    uint64_t ms =
        (uint64_t)ONCE__BACKOFF_MS
        << (failures < ONCE__BACKOFF_STEPS ? failures : ONCE__BACKOFF_STEPS);

    /* Half to all of it: many gateways lose their server at one moment. */
    return once__steady_ms() + ms - once__clock_us(CLOCK_MONOTONIC) % (ms / 2);
}

#endif /* ONCE_BASE_BACKOFF_H */
