/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row.h - what becomes of a row of the outbox after one attempt to deliver it:
 * (row, end of the attempt, policy) -> row. Values in and out; no clock, no
 * database.
 *
 * A row is the one-phase record of docs/protocol.md: claiming it is dispatching
 * it. `doubt` counts the attempts of which it is unknown whether the target
 * took them; the claim counts its own attempt in advance, so a relay that dies
 * leaves it counted.
 *
 *                 claim                     TAKEN
 *    READY  ----------------->  leased  ------------->  DONE
 *      ^                          | |  \
 *      |  UNSENT, or its lease    | |   \--> DEAD           provably not taken
 *      |  ran out                 | |
 *      +--------------------------+ +------> INDETERMINATE  may have been taken
 *      |                          |
 *      +------- WAITING <---------+          tried again after a pause
 */
#ifndef ONCE_MESSAGES_CORE_ROW_H
#define ONCE_MESSAGES_CORE_ROW_H

#include <stdint.h>

/* As stored in the column `phase`. */
enum once__row_phase {
    ONCE__ROW_READY = 0, /* leased while lease_ms runs */
    ONCE__ROW_WAITING = 1,
    ONCE__ROW_DONE = 2,
    ONCE__ROW_DEAD = 3,
    ONCE__ROW_INDETERMINATE = 4
};

/* How one attempt ended. */
enum once__row_end {
    ONCE__END_TAKEN,    /* the target proved that it has it                   */
    ONCE__END_UNSENT,   /* no byte left: given back, nothing is counted       */
    ONCE__END_AWAY,     /* the target was not reached, so provably not taken;
                         * not counted against the row                        */
    ONCE__END_REFUSED,  /* the target turned this attempt down: not taken     */
    ONCE__END_NACKED,   /* the same, but it may have kept it                  */
    ONCE__END_SILENT,   /* sent, and no proof: it may have been taken         */
    ONCE__END_REJECTED, /* this attempt was not taken, and no other would be  */
    ONCE__END_FAILED,   /* the target's record says: not taken, for good,
                         * whatever earlier attempts were                     */
    ONCE__END_UNKNOWN   /* the target says that it is unknown: not to be
                         * repeated                                           */
};

struct once__row_policy {
    uint32_t attempts; /* refusals that end a row                            */
    int hold;          /* the target does not recognise a repeat             */
    uint64_t
        horizon_ms; /* a row in doubt for so long ends; 0: never          */
    uint32_t first_ms,
        most_ms;       /* of the pause                                */
    uint32_t unknowns; /* UNKNOWN is asked again while so many attempts or
                        * fewer are in doubt; 0: it ends the row            */
};

/* The row as claimed: `doubt` and `attempts` include this attempt. */
struct once__row {
    uint32_t doubt, refused;
    uint64_t doubt_ms; /* since 1970: when doubt left 0 */
};

struct once__row_next {
    int phase;        /* enum once__row_phase                                 */
    int harmless;     /* this attempt is provably no effect: doubt - 1        */
    int refused;      /* one more refusal                                     */
    uint64_t wait_ms; /* WAITING: before it is tried again; the most: the
                       * caller draws between what the target asked for and
                       * this                                                 */
};

/*
 * `now_ms` is of the clock that wrote doubt_ms, `retry_ms` what the target asked
 * for, or 0; it counts up to most_ms.
 */
struct once__row_next once__row_settle(const struct once__row *row, int end,
                                       const struct once__row_policy *policy,
                                       uint64_t now_ms, uint64_t retry_ms);

#endif /* ONCE_MESSAGES_CORE_ROW_H */
