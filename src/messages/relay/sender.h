/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sender.h - a sender, which is one worker of a route, as its own files see it:
 * sender.c, settle.c and route.c. The others see route.h.
 */
#ifndef ONCE_MESSAGES_RELAY_SENDER_H
#define ONCE_MESSAGES_RELAY_SENDER_H

#include "messages/relay/send_batch.h"
#include "messages/relay/route.h"

enum {
    ONCE__SENDER_FIRST_MS =
        200, /* pauses of a circuit, or without a database */
    ONCE__SENDER_MOST_MS = 30000,
    ONCE__SENDER_BASE_MS = 1000
};

/* Lines that are not said too often. */
enum once__said {
    ONCE__SAID_BASE,
    ONCE__SAID_SETTLE,
    ONCE__SAID_FENCED,
    ONCE__SAID_BROKER,
    ONCE__SAID_KINDS
};

struct once__sender {
    struct once__relay *r;
    struct once__route *route;
    struct once__base *base;
    struct once__broker *broker;
    size_t batch;      /* rows of the next claim */
    int leads;         /* ... for others, too, if the route shares claims */
    uint64_t tag;      /* of the next row that is sent */
    uint32_t failures; /* of the target, in a row */
    int open;          /* the circuit */
    int unreached;     /* ... since it could not be reached */
    int open_said;
    uint64_t opened_ms;     /* when that was last said */
    uint32_t base_failures; /* in a row */
    uint64_t empty_ms;      /* since when there is nothing to do; 0: there is */
    uint32_t poll_ms;
    int idle;         /* the outbox was told so */
    uint64_t idle_ms; /* ... then */
    struct {
        uint64_t ms;
        char text[80];
    } said[ONCE__SAID_KINDS];
};

static inline void once__sender_count(struct once__sender *w, int metric,
                                      uint64_t n)
{
    once__count(w->route->series, metric, n);
}

/* Says it, unless the like was said a moment ago. */
void once__sender_say(struct once__sender *w, enum once__said kind,
                      const char *format, ...) ONCE_PRINTF(3, 4);
/* Waits after so many failures in a row. */
void once__sender_pause(struct once__sender *w, uint32_t failures,
                        uint32_t most_ms);
/* A question to the database has ended with an error. */
void once__sender_failed(struct once__sender *w, enum once__said kind,
                         const char *what, const once_error *err);

/* Settles a batch that was claimed at `claimed_ms` of once__relay_ms(). */
void once__sender_settle(struct once__sender *w, const struct once__batch *b,
                         uint64_t claimed_ms);

#endif /* ONCE_MESSAGES_RELAY_SENDER_H */
