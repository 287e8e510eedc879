/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.h - what a relay or a consumer counts, and a thread that replaces a
 * file with it every ten seconds, in the text format of Prometheus.
 *
 * The caller says once which metrics there are, and has one series of values
 * for each label: each route, each consumer. Its threads count in them at any
 * time, without a lock.
 *
 *    static const struct once__family metrics[] = {
 *        [RUN] = {"once_consumer_run_total", ONCE__COUNTER, "consumer",
 *                 "Handlers that ..."},
 *    };
 *    struct once__series series = {.label = "billing"};
 *    once__count(&series, RUN, 1);
 */
#ifndef ONCE_MESSAGES_RELAY_METRICS_H
#define ONCE_MESSAGES_RELAY_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

#include <once/once.h>

#include "base/metrics.h"

enum { ONCE__METRICS_MAX = 24, ONCE__METRICS_MS = 10000 };

/* The values of one label, all 0 in the beginning. */
struct once__series {
    const char *label; /* its value: any text. NULL: it is not shown */
    size_t first;      /* metrics before this one are not shown */
    _Atomic uint64_t value[ONCE__METRICS_MAX]; /* relaxed: each by itself */
};

static inline void once__count(struct once__series *s, int metric, uint64_t n)
{
    atomic_fetch_add_explicit(&s->value[metric], n, memory_order_relaxed);
}

static inline void once__gauge(struct once__series *s, int metric, uint64_t n)
{
    atomic_store_explicit(&s->value[metric], n, memory_order_relaxed);
}

/* A time that was `age_ms` ago, 0: there is none. */
void once__gauge_since(struct once__series *s, int metric, uint64_t age_ms);

/* All of it stays valid until once__metrics_stop(). */
struct once__metrics_options {
    const char *path; /* the file */
    /* With one label each, or none: then the first series has it. Values of "..._seconds" are in milliseconds. */
    const struct once__family *families;
    size_t n; /* up to ONCE__METRICS_MAX */
    struct once__series *series;
    size_t n_series;
    /* Sets gauges before each file but the last one; may take its time, but
     * stop() waits for it. NULL: nothing to do. */
    void (*refresh)(void *user);
    void *user;
};

struct once__metrics;

/*
 * Writes the file, so that a path that cannot be used is found at once, and
 * starts the thread. ONCE_OK, ONCE_EINVAL (the file), ONCE_ENOMEM.
 */
ONCE_CHECK int once__metrics_start(const struct once__metrics_options *o,
                                   struct once__metrics **out, once_error *err);
/* Ends the thread and writes the file once more; accepts NULL. */
void once__metrics_stop(struct once__metrics *m);

#endif /* ONCE_MESSAGES_RELAY_METRICS_H */
