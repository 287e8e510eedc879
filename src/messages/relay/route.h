/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.h - what the threads of one relay share. A relay has
 *
 *    senders        a route's workers: each has a connection to the database
 *                   and one to the target, claims rows, sends and settles them;
 *                   where it sends many at a time it has a second thread
 *    a saga timer   one thread that moves on sagas whose deadline has passed,
 *                   or whose call ended in a relay that died
 *    a watch        one thread that ends questions the database never answers
 *
 *    relay.c        options, threads, stop
 *    route.c        a sender's rounds: claim, send, settle, again
 *    pipeline.c     the same by two threads
 *    target.c       a sender and its target
 *    source.c       a sender and its database
 *    settle.c       what becomes of the rows that a sender has sent
 *    send_batch.c   what a sender sends at one time, and how each row ended
 *    claim.c        how senders of one row at a time share a claim
 *    sender.c       what a sender says, and how long it pauses
 *    saga_timer.c   the saga timer
 *    watch.c        the watch, also the consumer's
 *    metrics.c      the file for Prometheus, also the consumer's
 *    base.c         the connection to the database, also the consumer's
 *    shared.c       what all of these use
 */
#ifndef ONCE_MESSAGES_RELAY_ROUTE_H
#define ONCE_MESSAGES_RELAY_ROUTE_H

#include <pthread.h>
#include <stdatomic.h>

#include <once/relay.h>

#include "messages/broker/broker.h"
#include "messages/tables/outbox.h"
#include "messages/tables/saga.h"
#include "messages/relay/base.h"
#include "messages/relay/claim.h"
#include "messages/relay/metrics.h"

enum once__route_metric {
#define ONCE_METRIC(name, kind, full, label, help) ONCE__ROUTE_##name,
#include "messages/relay/relay_metrics.def"
#undef ONCE_METRIC
    ONCE__ROUTE_METRICS
};

enum {
    ONCE__STRAY_MS = 60000
}; /* rows that wait so long for a relay are said */

struct once__route {
    once_route o; /* with its defaults */
    const struct once__broker_ops *ops;
    int hold;
    uint64_t horizon_ms;
    int ahead;  /* many rows at a time: claimed while others are sent */
    int shares; /* its workers claim for each other, by `claims` */
    struct once__claims claims;
    struct once__series *series;
    atomic_ullong
        empty_ms; /* when the last claim without a row began; a value */
    /* Values: when a refusal was last reported, and how many came since. */
    atomic_ullong refusal_ms, refusals;
    /* By the relay's `look`: since when so many rows are ready that may all
     * stand behind a dead one; 0: they do not. */
    uint64_t blocked_ms, blocked;
};

struct once__relay {
    const char *from;
    uint32_t lease_ms;
    int drain, check;
    once_relay_log *log;
    void *user;
    struct once__route *routes;
    size_t n_routes;
    struct once__series *series; /* one for each route, and for each stray */
    int stop_fd;                 /* an eventfd: readable when `stop` is set */
    atomic_int stop;             /* written before that: a value */
    /* How often a worker began to settle calls of sagas, and had moved their sagas
     * on: in between a saga has no row that is to be carried. Sequentially
     * consistent: `moved` is read before a look at the database, `moving` after. */
    atomic_ullong moving, moved;
    atomic_int left; /* drained, and dead or indeterminate rows are left; read
                           * when the workers have been joined */
    pthread_mutex_t look; /* held by the one that counts rows */
    uint64_t look_ms;     /* by `look`: not again before */
};

/* ---- What all threads use, shared.c -------------------------------------- */

void once__relay_say(const struct once__relay *r, const char *format, ...)
    ONCE_PRINTF(2, 3);
void once__relay_stop(struct once__relay *r);
/* Waits, but not longer than until `stop` is set. */
void once__relay_pause(const struct once__relay *r, uint32_t ms);
/* By `look`: sets the gauges of the table. ONCE_OK and how many rows of our routes
 * are yet to be carried, and how many are left for an operator: dead,
 * indeterminate, or behind such a row of their key. */
ONCE_CHECK int once__relay_count(const once_tx *tx, struct once__relay *r,
                                 uint64_t *open, uint64_t *ended,
                                 once_error *err);

/* Says that a route has rows and no relay. */
void once__relay_stray(const struct once__relay *r,
                       const struct once__stray *stray);

/* Says what has become of sagas, if an operator must know. */
void once__relay_tell(const struct once__relay *r,
                      const struct once__saga_tally *tally);

/* The route of this name, or NULL. */
struct once__route *once__relay_route(struct once__relay *r, const char *name);

/* ---- A sender, route.c -------------------------------------------------- */

struct once__sender;

/* Reads the URLs; does not connect. The caller ends it with
 * once__sender_close(). */
ONCE_CHECK int once__sender_open(struct once__relay *r,
                                 struct once__route *route,
                                 struct once__sender **out, once_error *err);
void once__sender_close(struct once__sender *w); /* accepts NULL */
struct once__base *once__sender_base(const struct once__sender *w);
const struct once__route *once__sender_route(const struct once__sender *w);
/* Connects to the target, and reports whether it can be used. */
ONCE_CHECK int once__sender_check(struct once__sender *w, once_error *err);
/* A thread's function: returns when `stop` is set. */
void *once__sender_run(void *worker);

/* ---- The saga timer, saga_timer.c --------------------------------------- */

struct once__saga_timer;

/* Starts the thread. When `stop` is set, once__saga_timer_join() waits for its
 * end; then once__saga_timer_close(), when nobody watches its connection. Both
 * accept NULL. */
ONCE_CHECK int once__saga_timer_start(struct once__relay *r,
                                      struct once__saga_timer **out,
                                      once_error *err);
void once__saga_timer_join(struct once__saga_timer *t);
void once__saga_timer_close(struct once__saga_timer *t);
struct once__base *once__saga_timer_base(const struct once__saga_timer *t);

#endif /* ONCE_MESSAGES_RELAY_ROUTE_H */
