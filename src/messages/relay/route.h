/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.h - what the threads of one relay share, and one worker of a route.
 *
 *    relay.c    options, threads, stop
 *    route.c    a worker: claim, send, settle, again (carrier.h)
 *    claim.c    how workers that send one row at a time share a claim
 *    batch.c    what is sent at one time
 *    tender.c   sagas that wait for a deadline, or that nobody moved on
 *    shared.c   what all of these use
 */
#ifndef ONCE_RELAY_ROUTE_H
#define ONCE_RELAY_ROUTE_H

#include <pthread.h>
#include <stdatomic.h>

#include <once/relay.h>

#include "broker/broker.h"
#include "message/outbox.h"
#include "message/saga.h"
#include "relay/base.h"
#include "relay/claim.h"
#include "relay/metrics.h"

enum once__route_metric {
    ONCE__ROUTE_CLAIMED,
    ONCE__ROUTE_SENT,
    ONCE__ROUTE_TAKEN,
    ONCE__ROUTE_REFUSED,
    ONCE__ROUTE_REJECTED,
    ONCE__ROUTE_SILENT,
    ONCE__ROUTE_AWAY,
    ONCE__ROUTE_UNSENT,
    ONCE__ROUTE_FENCED,
    ONCE__ROUTE_DEAD,
    ONCE__ROUTE_INDETERMINATE,
    ONCE__ROUTE_CIRCUIT,    /* workers whose circuit is open */
    ONCE__ROUTE_ROWS_READY, /* the table as it is, from here on */
    ONCE__ROUTE_ROWS_LEASED,
    ONCE__ROUTE_ROWS_WAITING,
    ONCE__ROUTE_ROWS_DEAD,
    ONCE__ROUTE_ROWS_INDETERMINATE,
    ONCE__ROUTE_OLDEST,
    ONCE__ROUTE_STRAY, /* also of routes that are not ours */
    ONCE__ROUTE_HELD,  /* without a label: of the database */
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
    int shares; /* its workers claim for each other, by `claims` */
    struct once__claims claims;
    struct once__series *series;
    atomic_ullong empty_ms; /* when the last claim without a row began */
    /* By the relay's `look`: since when so many rows are ready that may all
     * stand behind a dead one; 0: they do not. */
    uint64_t blocked_ms, blocked;
};

struct once__relay {
    const char *from;
    uint32_t lease_ms;
    int drain;
    once_relay_log *log;
    void *user;
    struct once__route *routes;
    size_t n_routes;
    struct once__series *series; /* one for each route, and for each stray */
    int stop_fd;                 /* an eventfd: readable when `stop` is set */
    atomic_int stop;
    atomic_int left;      /* drained, and dead or indeterminate rows are left */
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
ONCE_CHECK int once__relay_count(struct once__relay *r, const once_tx *tx,
                                 uint64_t *open, uint64_t *ended,
                                 once_error *err);

/* Says that a route has rows and no relay. */
void once__relay_stray(const struct once__relay *r,
                       const struct once__stray *stray);

/* Says what has become of sagas, if somebody must know. */
void once__relay_tell(const struct once__relay *r,
                      const struct once__saga_tally *tally);

/* The route of this name, or NULL. */
struct once__route *once__relay_route(struct once__relay *r, const char *name);

/* ---- A worker of a route, route.c ---------------------------------------- */

struct once__carrier;

/* Reads the URLs; does not connect. The caller ends it with
 * once__carrier_close(). */
ONCE_CHECK int once__carrier_open(struct once__relay *r,
                                  struct once__route *route,
                                  struct once__carrier **out, once_error *err);
void once__carrier_close(struct once__carrier *w); /* accepts NULL */
struct once__base *once__carrier_base(const struct once__carrier *w);
/* A thread's function: returns when `stop` is set. */
void *once__carrier_run(void *worker);

/* ---- Sagas, tender.c ----------------------------------------------------- */

struct once__tender;

/* Starts the thread. When `stop` is set, once__tender_join() waits for its end;
 * then once__tender_close(), when nobody watches its connection. Both accept
 * NULL. */
ONCE_CHECK int once__tender_start(struct once__relay *r,
                                  struct once__tender **out, once_error *err);
void once__tender_join(struct once__tender *t);
void once__tender_close(struct once__tender *t);
struct once__base *once__tender_base(const struct once__tender *t);

#endif /* ONCE_RELAY_ROUTE_H */
