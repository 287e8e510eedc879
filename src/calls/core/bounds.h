/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bounds.h - how large the numbers of a record, a store's head and a copy can be.
 *
 * once__record_sane() holds every record that is read to them, whatever store or
 * copy it comes from: larger ones are ECORRUPT, whatever their checksum. The
 * transitions stay within them, so no input and no clock reaches an assertion.
 */
#ifndef ONCE_CALLS_CORE_BOUNDS_H
#define ONCE_CALLS_CORE_BOUNDS_H

#include <once/store.h>

/* What signed columns of 64 bits take, and the last fence of the last incarnation
 * (ONCE_INCARNATION_MAX, ONCE__FENCE_BITS). */
#define ONCE__FENCE_MAX (UINT64_MAX >> 1)
/* Far above what one key can have been granted, and far below what PostgreSQL's
 * integer takes. */
#define ONCE__ATTEMPT_MAX (UINT32_C(1) << 30)
/* In ms since 1970: the last moment that a browser's Date has, in the year 275760.
 * Also of a span of time. */
#define ONCE__TIME_MAX UINT64_C(8640000000000000)

/* `ms` later than `now`, both of which may be anything. */
static inline uint64_t once__time_after(uint64_t now, uint64_t ms)
{
    if (now >= ONCE__TIME_MAX || ms >= ONCE__TIME_MAX - now)
        return ONCE__TIME_MAX;
    return now + ms;
}

/* 1: a store with this head can have granted this fence. */
static inline int once__fence_fits(uint64_t fence, uint32_t incarnation)
{
    return fence >> ONCE__FENCE_BITS <= incarnation;
}

static inline int once__head_sane(const once_store_head *h)
{
    return h->incarnation <= ONCE_INCARNATION_MAX &&
           h->gap <= ONCE_GAP_ACCEPT && h->gap_from_ms <= ONCE__TIME_MAX &&
           h->gap_until_ms <= ONCE__TIME_MAX;
}

#endif /* ONCE_CALLS_CORE_BOUNDS_H */
