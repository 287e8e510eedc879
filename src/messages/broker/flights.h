/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flights.h - messages that were sent and have no proof yet, for drivers whose
 * broker confirms later and by number.
 *
 *    add() -> number 1, 2, 3 ...       the broker: "number 2 is taken"
 *                \                        |
 *                 +--- in flight --- end(2, TAKEN) ---> take(): proofs
 *                                    lose()        ---> all of them: SILENT
 *
 * Each message that was added ends exactly once. lose() begins again at 1, as a
 * broker does on a new connection.
 */
#ifndef ONCE_MESSAGES_BROKER_FLIGHTS_H
#define ONCE_MESSAGES_BROKER_FLIGHTS_H

#include "messages/broker/share.h"

struct once__flight {
    uint64_t tag;
    uint32_t note;         /* the driver's own, 0 at first */
    int open, end, status; /* `end`: how it ends when the broker confirms it, if
                            * that was said before; -1: it was not */
    const char *why;
};

struct once__flights {
    struct once__flight *ring; /* by number, modulo cap */
    size_t cap, open;
    uint64_t first, next;     /* numbers from first to next - 1 may be open */
    struct once__ended ended; /* with room for all that are open */
};

void once__flights_clear(struct once__flights *f);
/* Adds a message: its number, or 0: no memory, and nothing was added. */
uint64_t once__flights_add(struct once__flights *f, uint64_t tag);
/* Takes the last one back, which was not sent: it has no end. */
void once__flights_cancel(struct once__flights *f);
/* The driver's note of a message that is open, or NULL. */
uint32_t *once__flights_note(const struct once__flights *f, uint64_t number);
/* It will end like this, whatever the broker confirms. */
void once__flights_mark(struct once__flights *f, uint64_t number, int end,
                        int status, const char *why);
/* Ends it, if it is open. `why` lives for ever, or is NULL. */
void once__flights_end(struct once__flights *f, uint64_t number, int end,
                       int status, const char *why);
/* Ends all that are open up to `number`. */
void once__flights_end_to(struct once__flights *f, uint64_t number, int end,
                          const char *why);
/* Ends a message that was never added, and has no number. ONCE_OK, or
 * ONCE_ENOMEM: it has no end. */
ONCE_CHECK int once__flights_unsent(struct once__flights *f, uint64_t tag,
                                    int end, const char *why);
/* The connection is gone: all that are open are ONCE__END_SILENT, or as marked. */
void once__flights_lose(struct once__flights *f, const char *why);
/* How many have ended and were not taken by once__ended_take(). */
static inline size_t once__flights_ready(const struct once__flights *f)
{
    return f->ended.n - f->ended.used;
}

#endif /* ONCE_MESSAGES_BROKER_FLIGHTS_H */
