/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sender.h - a sender, which is one worker of a route, as its own files see it:
 *
 *    route.c      its rounds, one after the other
 *    pipeline.c   the same by two threads: a carrier and a clerk
 *    target.c     whether the target is there       (the carrier's)
 *    source.c     claims, and sleeps                (the clerk's)
 *    settle.c     settles                           (the clerk's)
 *    sender.c     what it says, and how long it pauses
 *
 * The others see route.h.
 */
#ifndef ONCE_MESSAGES_RELAY_SENDER_H
#define ONCE_MESSAGES_RELAY_SENDER_H

#include <pthread.h>

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

/* What one claim has brought, on its way through a pipeline. */
struct once__load {
    struct once__load *next;
    struct once__outgoing_list list;
    uint64_t claimed_ms;
    struct once__batch batch;
};

/* What lies between a carrier and a clerk; pipeline.c. */
struct once__desk {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct once__load *claimed, *carried; /* first come, first taken */
    size_t want;  /* how many rows may be claimed; 0: none */
    size_t out;   /* claimed and not carried yet */
    int claiming; /* the clerk is at it */
    int closed;   /* it claims no more */
    int over;     /* the carrier has brought all */
};
void once__desk_init(struct once__desk *d);
void once__desk_clear(struct once__desk *d);

struct once__sender {
    struct once__relay *r;
    struct once__route *route;
    struct once__desk desk;

    /* With the target: the carrier's. */
    struct once__wire wire;
    uint32_t failures; /* of the target, in a row */
    int failed;        /* once more, and there was no pause since */
    int open;          /* the circuit */
    int unreached;     /* ... since it could not be reached */
    int open_said;
    uint64_t opened_ms; /* when that was last said */

    /* With the database: the clerk's. */
    struct once__base *base;
    size_t batch; /* rows of the next claim */
    int leads;    /* ... for others, too, if the route shares claims */
    uint32_t base_failures; /* in a row */
    uint64_t stopped_ms;    /* since when it settles after the stop; 0 */
    uint64_t empty_ms;      /* since when there is nothing to do; 0: there is */
    uint32_t poll_ms;
    int idle;         /* the outbox was told so */
    uint64_t idle_ms; /* ... then */

    /* Each kind has one thread that says it. */
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

/* How long what took so long is not done again: ten times that, so that it costs a
 * tenth of the time; but `least_ms` at least, and `most_ms` at most. */
uint64_t once__sender_rest_ms(uint64_t took_ms, uint64_t least_ms,
                              uint64_t most_ms);

/* These rows, which were claimed at `claimed_ms`, as they are to be sent. */
struct once__batch once__sender_batch(struct once__sender *w,
                                      const struct once__outgoing_list *list,
                                      uint64_t claimed_ms);

/* ---- The target, target.c ------------------------------------------------ */

/* Connects if it is not connected. 1: it is. 0: the circuit is open. */
int once__target_there(struct once__sender *w);
/* What the ends of a batch say about the target. */
void once__target_judge(struct once__sender *w, const struct once__batch *b);
/* The sender ends. */
void once__circuit_end(struct once__sender *w);

/* ---- The database, source.c ---------------------------------------------- */

/* Connects if it is not connected. */
int once__source_there(struct once__sender *w);
/* Up to `n` rows; the caller ends the list. 1: there are some. 0: there are none.
 * -1: the database is away. */
int once__source_claim(struct once__sender *w, size_t n,
                       struct once__outgoing_list *out, uint64_t *claimed_ms);
/* There was nothing to do: sleeps. */
void once__source_rest(struct once__sender *w);
/* There is something to do: programs need not wake it. */
void once__source_awake(struct once__sender *w);
/* With `drain`: is anything left? */
void once__source_look(struct once__sender *w);

/* ---- Two threads, pipeline.c --------------------------------------------- */

/* Carries rows until the relay is to stop. 0: there is no second thread, and
 * nothing was done. */
int once__pipeline_run(struct once__sender *w);

/* ---- Settling, settle.c -------------------------------------------------- */

/* Settles a batch that was claimed at `claimed_ms` of once__relay_ms(). */
void once__sender_settle(struct once__sender *w, const struct once__batch *b,
                         uint64_t claimed_ms);

#endif /* ONCE_MESSAGES_RELAY_SENDER_H */
