/* SPDX-License-Identifier: Apache-2.0 */
/*
 * consume.c - once_consume(): checks the options, starts a thread for each worker
 * and one for parked messages, and waits until it is told to stop or nothing is
 * left.
 */
#include "messages/relay/consume.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "messages/broker/broker.h"
#include "base/error.h"
#include "base/steady.h"
#include "base/thread.h"
#include "messages/tables/backend.h"
#include "messages/relay/watch.h"

/* Of the bodies of one batch; a broker may send twice as much ahead. */
#define BATCH_BYTES_MAX (UINT64_C(1) << 30)

enum {
    BATCH_MAX = 1000,
    TURN_MS = 100,    /* between two looks at whether all is drained */
    REACH_MS = 10000, /* drain: how long the database may be away */
    TIMEOUT_MS = 10000
};

static const struct once__family metrics[] = {
#define ONCE_METRIC(name, kind, full, label, help)                             \
    {full, ONCE__##kind, label, help},
#include "messages/relay/consumer_metrics.def"
#undef ONCE_METRIC
};

/* ---- Options -------------------------------------------------------------- */

static void fill_in(once_consumer_options *o)
{
    static const once_consumer_options usual = {.workers = 1,
                                                .batch = 1,
                                                .attempts = 10,
                                                .first_ms = 1000,
                                                .most_ms = 3600000,
                                                .lease_ms = 300000,
                                                .body_max = 8 << 20};

#define DEFAULT(name)                                                          \
    if (o->name == 0)                                                          \
    o->name = usual.name
    DEFAULT(workers);
    DEFAULT(batch);
    DEFAULT(attempts);
    DEFAULT(first_ms);
    DEFAULT(most_ms);
    DEFAULT(lease_ms);
    DEFAULT(body_max);
#undef DEFAULT
    if (o->most_ms < o->first_ms)
        o->most_ms = o->first_ms;
}

static int check_limits(const once_consumer_options *o, once_error *err)
{
    if (o->workers > ONCE_WORKERS_MAX)
        return once__fail(err, ONCE_ELIMIT, "workers: over %d",
                          ONCE_WORKERS_MAX);
    if (o->batch > BATCH_MAX)
        return once__fail(err, ONCE_ELIMIT, "batch: over %d", BATCH_MAX);
    if (o->body_max > ONCE_BODY_MAX)
        return once__fail(err, ONCE_ELIMIT, "body_max: over %zu bytes",
                          ONCE_BODY_MAX);
    if ((uint64_t)o->batch * o->body_max > BATCH_BYTES_MAX)
        return once__fail(
            err, ONCE_ELIMIT,
            "batch: with bodies of up to %u bytes (body_max) over "
            "%llu",
            o->body_max, (unsigned long long)(BATCH_BYTES_MAX / o->body_max));
    if (o->keyed && o->workers != 1)
        return once__fail(
            err, ONCE_EINVAL,
            "keyed: it requires one worker, or messages of one key "
            "would overtake each other");
    if (o->inside && o->outside)
        return once__fail(err, ONCE_EINVAL,
                          "inside, outside: they exclude each other");
    if ((o->inside || o->outside) && o->batch != 1)
        return once__fail(err, ONCE_EINVAL,
                          "batch: with inside or outside there is no "
                          "transaction for it");
    return ONCE_OK;
}

static int check(const once_consumer_options *o, once_handler *handler,
                 once_error *err)
{
    if (o == NULL || o->size != sizeof(*o))
        return once__fail(err, ONCE_EINVAL,
                          "options: size is not that of "
                          "once_consumer_options");
    if (handler == NULL || o->db == NULL || o->from == NULL)
        return once__fail(err, ONCE_EINVAL,
                          "db, from, handler: one of them is missing");
    return once__check_name("consumer", o->consumer, err);
}

/* ---- Draining -------------------------------------------------------------- */

struct run {
    struct once__consumer c;
    struct once__hand hand; /* of the thread that has called */
    struct once__base *gauges;
    struct once__receiver *workers;
    struct once__metrics *metrics;
    pthread_t parked;
    int parked_started;
};

/* The counts of this consumer, all 0 where there is none. */
static int ask_counts(struct once__consumer *c, struct once__base *b,
                      struct once__parked_count *out, once_error *err)
{
    struct once__parked_count *all = NULL;
    size_t n = 0, i;
    int rc = once__base_connect(b, err);

    memset(out, 0, sizeof(*out));
    if (rc == ONCE_OK)
        rc = ONCE__ASK(b, once__parked_stats, &all, &n, err);
    for (i = 0; rc == ONCE_OK && i < n; i++)
        if (strcmp(all[i].consumer, c->o.consumer) == 0)
            *out = all[i];
    free(all);
    return rc;
}

static void refresh(void *user)
{
    struct run *r = user;
    struct once__parked_count n;
    once_error err = {0, ""};

    if (ask_counts(&r->c, r->gauges, &n, &err) != ONCE_OK)
        return;
    once__gauge(&r->c.series, ONCE__CONSUMER_N_WAITING, n.waiting);
    once__gauge(&r->c.series, ONCE__CONSUMER_N_DEAD, n.dead);
    once__gauge(&r->c.series, ONCE__CONSUMER_N_UNKNOWN, n.indeterminate);
    once__gauge_since(&r->c.series, ONCE__CONSUMER_OLDEST, n.oldest_ms);
}

static int all_idle(const struct run *r)
{
    uint64_t now = once__steady_ms();
    uint32_t i;

    for (i = 0; i < r->c.o.workers; i++) {
        uint64_t since = atomic_load(&r->workers[i].idle_ms);

        if (since == 0 || since + r->c.o.drain_ms > now)
            return 0;
    }
    return 1;
}

/* What waits behind a dead letter of its key is for an operator, as that is. */
static int none_waits(struct run *r, const struct once__parked_count *n)
{
    once_error err = {0, ""};
    uint64_t behind;

    return n->waiting == 0 ||
           (r->c.o.keyed &&
            ONCE__ASK(r->hand.b, once__parked_behind, r->c.o.consumer, &behind,
                      &err) == ONCE_OK &&
            behind >= n->waiting);
}

/* Idle before and after: nothing was parked while it was counted. */
static int is_drained(struct run *r, struct once__parked_count *n)
{
    once_error err = {0, ""};

    return all_idle(r) && ask_counts(&r->c, r->hand.b, n, &err) == ONCE_OK &&
           none_waits(r, n) && all_idle(r);
}

static int wait_for_end(struct run *r)
{
    struct pollfd fd = {r->c.o.stop_fd, POLLIN, 0};
    struct once__parked_count n;

    while (!atomic_load(&r->c.stop)) {
        if (poll(&fd, 1, TURN_MS) > 0)
            return ONCE_OK;
        if (r->c.o.drain_ms > 0 && is_drained(r, &n))
            return n.dead + n.indeterminate > 0 ? ONCE_DEAD : ONCE_OK;
    }
    return ONCE_OK;
}

/* ---- Starting and ending ---------------------------------------------------- */

/* Without `drain_ms` a database that is away is waited for by the threads. */
static int reach(struct run *r, once_error *err)
{
    uint64_t end = once__steady_ms() + REACH_MS;
    int rc;

    do {
        rc = once__base_connect(r->hand.b, err);
        if (rc != ONCE_EAWAY || r->c.o.drain_ms == 0)
            break;
        once__consumer_sleep(&r->c, once__steady_ms() + TURN_MS);
    } while (once__steady_ms() < end);
    return rc == ONCE_EAWAY && r->c.o.drain_ms == 0 ? ONCE_OK : rc;
}

static int open_brokers(struct run *r, once_error *err)
{
    const struct once__broker_ops *ops = once__broker_find(r->c.o.from, err);
    struct once__broker_options o = {.ca_file = r->c.o.ca_file,
                                     .timeout_ms = TIMEOUT_MS,
                                     .prefetch = once__consumer_room(&r->c),
                                     .body_max = r->c.o.body_max,
                                     .alone = (int)r->c.o.keyed,
                                     .consumer = r->c.o.consumer,
                                     .check = (int)r->c.o.check,
                                     .log = r->c.o.log,
                                     .user = r->c.o.user};
    uint32_t i;
    int rc = ONCE_OK;

    if (ops == NULL)
        return ONCE_EURL;
    if (ops->receive == NULL)
        return once__fail(err, ONCE_EURL,
                          "from: one cannot consume from %s:", ops->scheme);
    r->workers = calloc(r->c.o.workers, sizeof(*r->workers));
    if (r->workers == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    for (i = 0; i < r->c.o.workers && rc == ONCE_OK; i++) {
        r->workers[i].c = &r->c;
        r->workers[i].ops = ops;
        rc = once__hand_open(&r->workers[i].hand, &r->c, err);
        if (rc == ONCE_OK)
            rc = ops->open(r->c.o.from, &o, &r->workers[i].broker, err);
    }
    return rc;
}

static int start_metrics(struct run *r, once_error *err)
{
    struct once__metrics_options o = {
        .path = r->c.o.metrics,
        .families = metrics,
        .n = ONCE__CONSUMER_METRICS,
        .series = &r->c.series,
        .n_series = 1,
        .refresh = refresh,
        .user = r,
    };
    int rc;

    if (o.path == NULL)
        return ONCE_OK;
    rc = once__base_open(r->c.o.db, ONCE__BASE_READY, &r->gauges, err);
    if (rc == ONCE_OK)
        rc = once__watch_add(r->c.watch, r->gauges, err);
    return rc == ONCE_OK ? once__metrics_start(&o, &r->metrics, err) : rc;
}

static int start_threads(struct run *r, once_error *err)
{
    uint32_t i;
    int rc = pthread_create(&r->parked, NULL, once__parked_run, &r->c);

    r->parked_started = rc == 0;
    for (i = 0; i < r->c.o.workers && rc == 0; i++) {
        rc = pthread_create(&r->workers[i].thread, NULL, once__consumer_work,
                            &r->workers[i]);
        r->workers[i].started = rc == 0;
    }
    return rc == 0 ? ONCE_OK
                   : once__fail(err, ONCE_EAWAY, "no thread: %s", strerror(rc));
}

static void end_workers(struct run *r)
{
    uint32_t i;

    for (i = 0; r->workers != NULL && i < r->c.o.workers; i++) {
        struct once__receiver *w = &r->workers[i];

        if (w->started)
            (void)pthread_join(w->thread, NULL);
        if (w->broker != NULL)
            w->ops->close(w->broker);
        once__hand_close(&w->hand);
    }
    free(r->workers);
}

static void end(struct run *r)
{
    once__consumer_stop(&r->c);
    end_workers(r);
    if (r->parked_started)
        (void)pthread_join(r->parked, NULL);
    once__metrics_stop(r->metrics);
    once__watch_end(r->c.watch);
    r->c.watch = NULL;
    once__base_close(r->gauges);
    once__hand_close(&r->hand);
    (void)pthread_cond_destroy(&r->c.wake);
    (void)pthread_mutex_destroy(&r->c.lock);
}

static int open_all(struct run *r, once_error *err)
{
    int rc = check_limits(&r->c.o, err);

    if (rc == ONCE_OK)
        rc = once__watch_start(&r->c.stop, &r->c.watch, err);
    if (rc == ONCE_OK)
        rc = once__hand_open(&r->hand, &r->c, err);
    return rc == ONCE_OK ? open_brokers(r, err) : rc;
}

static int prepare(struct run *r, once_error *err)
{
    int rc = open_all(r, err);

    if (rc == ONCE_OK)
        rc = reach(r, err);
    if (rc == ONCE_OK)
        rc = start_metrics(r, err);
    return rc == ONCE_OK ? start_threads(r, err) : rc;
}

static void init(struct run *r)
{
    (void)pthread_mutex_init(&r->c.lock, NULL);
    once__cond_init(&r->c.wake);
    fill_in(&r->c.o);
    r->c.series.label = r->c.o.consumer;
}

/* Nothing is received: the database, and the first worker's broker. */
static int check_both(struct run *r, once_error *err)
{
    struct once__receiver *w;
    int rc = open_all(r, err);

    if (rc == ONCE_OK)
        rc = once__base_connect(r->hand.b, err);
    if (rc != ONCE_OK)
        return rc;
    once__consumer_log(&r->c, "the database: ready");
    w = &r->workers[0];
    rc = w->ops->connect(w->broker, err);
    if (rc == ONCE_OK)
        once__consumer_log(&r->c, "the broker: ready");
    return rc;
}

int once_consume(const once_consumer_options *options, once_handler *handler,
                 void *handler_user, once_error *err)
{
    struct run r = {.c = {.handler = handler, .handler_user = handler_user}};
    int rc = check(options, handler, err);

    if (rc != ONCE_OK)
        return rc;
    r.c.o = *options;
    init(&r);
    rc = r.c.o.check ? check_both(&r, err) : prepare(&r, err);
    if (rc == ONCE_OK && !r.c.o.check)
        rc = wait_for_end(&r);
    end(&r);
    if (rc >= ONCE_OK && r.c.failure != ONCE_OK)
        return once__fail(err, r.c.failure, "%s", r.c.why.text);
    return rc;
}
