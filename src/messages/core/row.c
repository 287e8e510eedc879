/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row.c - a table of what each end of an attempt proves, and the rule for rows
 * that were refused too often or have been in doubt for too long.
 */
#include "messages/core/row.h"

#include "base/must.h"

/* What follows when neither limit is reached. */
static const struct {
    int phase, harmless, refused, final;
} ends[] = {
    [ONCE__END_TAKEN] = {ONCE__ROW_DONE, 0, 0, 1},
    [ONCE__END_UNSENT] = {ONCE__ROW_READY, 1, 0, 0},
    [ONCE__END_AWAY] = {ONCE__ROW_WAITING, 1, 0, 0},
    [ONCE__END_REFUSED] = {ONCE__ROW_WAITING, 1, 1, 0},
    [ONCE__END_NACKED] = {ONCE__ROW_WAITING, 0, 1, 0},
    [ONCE__END_SILENT] = {ONCE__ROW_WAITING, 0, 0, 0},
    [ONCE__END_REJECTED] = {ONCE__ROW_DEAD, 1, 1, 0},
    [ONCE__END_FAILED] = {ONCE__ROW_DEAD, 1, 1, 1},
    [ONCE__END_UNKNOWN] = {ONCE__ROW_INDETERMINATE, 0, 0, 1},
};

/* The longest pause before the next attempt: doubles with each refusal or
 * attempt in doubt. A target may ask for one that is longer, up to the limit:
 * what it sends must not keep a row for a year. */
static uint64_t pause_ms(const struct once__row *row,
                         const struct once__row_policy *p, uint64_t retry_ms)
{
    uint64_t ms = p->first_ms, n = (uint64_t)row->refused + row->doubt;

    for (; n > 1 && ms > 0 && ms < p->most_ms; n--)
        ms *= 2;
    ms = ms > retry_ms ? ms : retry_ms;
    return ms < p->most_ms ? ms : p->most_ms;
}

struct once__row_next once__row_settle(const struct once__row *row, int end,
                                       const struct once__row_policy *policy,
                                       uint64_t now_ms, uint64_t retry_ms)
{
    struct once__row_next next;
    uint32_t doubt;

    ONCE__MUST(end >= ONCE__END_TAKEN && end <= ONCE__END_UNKNOWN);
    ONCE__MUST(row->doubt > 0);
    if (end == ONCE__END_UNKNOWN && row->doubt <= policy->unknowns)
        end = ONCE__END_SILENT;
    next = (struct once__row_next){ends[end].phase, ends[end].harmless,
                                   ends[end].refused, 0};
    if (ends[end].final)
        return next;
    doubt = row->doubt - (uint32_t)next.harmless;
    if (next.refused && row->refused + 1 >= policy->attempts)
        next.phase = ONCE__ROW_DEAD;
    if (doubt > 0 && (policy->hold || next.phase == ONCE__ROW_DEAD ||
                      (policy->horizon_ms != 0 && now_ms >= row->doubt_ms &&
                       now_ms - row->doubt_ms >= policy->horizon_ms)))
        next.phase = ONCE__ROW_INDETERMINATE;
    if (next.phase == ONCE__ROW_WAITING)
        next.wait_ms = pause_ms(row, policy, retry_ms);
    return next;
}
