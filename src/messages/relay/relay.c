/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay.c - once_relay(): checks the options, starts a thread for each worker
 * of each route, and waits until it is told to stop or nothing is left.
 */
#include <once/relay.h>

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "messages/tables/backend.h"
#include "messages/tables/outbox.h"
#include "messages/relay/base.h"
#include "messages/relay/send_batch.h"
#include "messages/relay/route.h"
#include "messages/relay/watch.h"

enum {
    BATCH = 500,
    BATCH_MAX = 10000,
    HTTP_WORKERS = 8, /* each waits for one answer at a time */
    ATTEMPTS = 10,
    ATTEMPTS_MAX = 1000000,
    TIMEOUT_MS = 10000,
    TIMEOUT_MIN_MS = 100,
    LEASE_MS = 30000,
    LEASE_MAX_MS = 3600000,
    HORIZON_MS = 23 * 3600000, /* below a gateway's once_ttl */
    RETRY_MS = 500
};

static const struct once__family metrics[] = {
#define ONCE_METRIC(name, kind, full, label, help)                             \
    {full, ONCE__##kind, label, help},
#include "messages/relay/relay_metrics.def"
#undef ONCE_METRIC
};

/* ---- Options ------------------------------------------------------------- */

static int check_range(const char *what, uint32_t value, uint32_t least,
                       uint32_t most, once_error *err)
{
    if (value >= least && value <= most)
        return ONCE_OK;
    return once__fail(err, ONCE_ELIMIT, "%s is from %u to %u", what, least,
                      most);
}

static uint32_t or_else(uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static int is_http(const char *url)
{
    return strncmp(url, "http:", 5) == 0 || strncmp(url, "https:", 6) == 0;
}

static int check_route(const struct once__route *r, once_error *err)
{
    int rc = check_range("workers", r->o.workers, 1, ONCE_WORKERS_MAX, err);

    if (rc == ONCE_OK)
        rc = check_range("batch", r->o.batch, 1, BATCH_MAX, err);
    if (rc == ONCE_OK)
        rc = check_range("attempts", r->o.attempts, 1, ATTEMPTS_MAX, err);
    if (rc == ONCE_OK)
        rc = check_range("timeout_ms", r->o.timeout_ms, TIMEOUT_MIN_MS,
                         LEASE_MAX_MS / 3, err);
    if (rc == ONCE_OK && r->o.hold && r->o.no_hold)
        rc = once__fail(err, ONCE_EINVAL, "hold or no_hold, not both");
    if (rc == ONCE_OK && r->o.batch > 1 && (r->hold || r->ops->at_once))
        rc = once__fail(err, ONCE_EINVAL,
                        "the batch of a route that sends one row at a time, or "
                        "that holds, is 1; say more workers");
    return rc;
}

static int read_route(struct once__route *r, const once_route *given,
                      once_error *err)
{
    int one, rc;

    if (given->size != sizeof(r->o) || given->url == NULL)
        return once__fail(err, ONCE_EINVAL,
                          "a route needs its size, a name and a URL");
    rc = once__check_name("route", given->name, err);
    if (rc != ONCE_OK)
        return rc;
    r->o = *given;
    r->ops = once__broker_find(given->url, err);
    if (r->ops == NULL)
        return ONCE_EURL;
    r->hold = given->hold || (!r->ops->knows_ids && !given->no_hold);
    one = r->hold || r->ops->at_once;
    r->o.workers =
        or_else(given->workers, is_http(given->url) ? HTTP_WORKERS : 1);
    r->o.batch = or_else(given->batch, one ? 1 : BATCH);
    /* One row a worker, but under hold no two of a key: they would be in doubt
     * together. */
    r->shares = r->ops->at_once && !r->hold && r->o.workers > 1;
    r->ahead = !one && r->o.batch > 1;
    r->o.attempts = or_else(given->attempts, ATTEMPTS);
    r->o.timeout_ms = or_else(given->timeout_ms, TIMEOUT_MS);
    r->horizon_ms = is_http(given->url) && !r->hold ? HORIZON_MS : 0;
    return check_route(r, err);
}

static int read_routes(struct once__relay *r, const once_relay_options *o,
                       once_error *err)
{
    size_t i;
    int rc = ONCE_OK;

    for (i = 0; i < o->n && rc == ONCE_OK; i++) {
        struct once__route *route = &r->routes[i];
        once_error why = {0, ""};

        rc = read_route(route, &o->routes[i], &why);
        if (rc == ONCE_OK && once__relay_route(r, route->o.name) != NULL)
            rc = once__fail(&why, ONCE_EINVAL, "it is there twice");
        if (rc != ONCE_OK) {
            (void)once__fail(err, rc, "route %zu: %s", i + 1, why.text);
            break;
        }
        route->claims = (struct once__claims)ONCE__CLAIMS_INIT;
        route->series = &r->series[i];
        route->series->label = route->o.name;
        r->n_routes++;
    }
    return rc;
}

/* A worker waits for a proof as long as timeout_ms, and sends only what has so
 * much of its lease left. */
static int read_lease(struct once__relay *r, uint32_t given, once_error *err)
{
    uint32_t longest = 0;
    size_t i;

    for (i = 0; i < r->n_routes; i++)
        if (r->routes[i].o.timeout_ms > longest)
            longest = r->routes[i].o.timeout_ms;
    r->lease_ms = given;
    if (given == 0)
        r->lease_ms = LEASE_MS > 3 * longest ? LEASE_MS : 3 * longest;
    if (r->lease_ms > LEASE_MAX_MS || r->lease_ms < 3 * longest)
        return once__fail(
            err, ONCE_ELIMIT,
            "lease_ms is from three times the longest timeout_ms, "
            "%u, to %d",
            3 * longest, LEASE_MAX_MS);
    return ONCE_OK;
}

static int read_options(struct once__relay *r, const once_relay_options *o,
                        once_error *err)
{
    int rc;

    if (o == NULL || o->size != sizeof(*o) || o->from == NULL ||
        o->routes == NULL)
        return once__fail(err, ONCE_EINVAL,
                          "the options need their size, from and routes");
    if (o->n < 1 || o->n > ONCE_ROUTES_MAX)
        return once__fail(err, ONCE_ELIMIT, "routes: 1 to %d", ONCE_ROUTES_MAX);
    r->from = o->from;
    r->drain = o->drain != 0;
    r->check = o->check != 0;
    r->log = o->log;
    r->user = o->user;
    r->routes = calloc(o->n, sizeof(*r->routes));
    r->series = calloc(o->n + ONCE__STRAYS_MAX, sizeof(*r->series));
    if (r->routes == NULL || r->series == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    rc = read_routes(r, o, err);
    return rc == ONCE_OK ? read_lease(r, o->lease_ms, err) : rc;
}

/* ---- Threads ------------------------------------------------------------- */

/* The relay, its workers, and a connection for metrics. */
struct whole {
    struct once__relay relay;
    struct once__base *base;
    struct once__metrics *metrics;
    struct once__saga_timer *timer;
    struct once__sender **workers;
    struct once__watch *watch;
    pthread_t *threads;
    size_t n, started;
    struct once__stray strays[ONCE__STRAYS_MAX]; /* the thread's for metrics */
};

/* Routes that are not ours are shown as long as nobody has them. */
static int refresh_strays(struct whole *all)
{
    struct once__series *series = all->relay.series + all->relay.n_routes;
    size_t n = 0, i;
    int rc = ONCE__ASK(all->base, once__outbox_strays, ONCE__STRAY_MS,
                       all->strays, &n, NULL);

    for (i = 0; i < ONCE__STRAYS_MAX; i++) {
        series[i].label = i < n ? all->strays[i].route : NULL;
        series[i].first = ONCE__ROUTE_STRAY;
        once__gauge(&series[i], ONCE__ROUTE_STRAY,
                    i < n ? all->strays[i].rows : 0);
    }
    return rc;
}

static int refresh_held(struct whole *all)
{
    uint64_t age = 0;
    int rc = ONCE__ASK(all->base, once__outbox_held, &age, NULL);

    if (rc == ONCE_OK)
        once__gauge(all->relay.series, ONCE__ROUTE_HELD, age);
    return rc;
}

static void refresh(void *user)
{
    struct whole *all = user;
    uint64_t open, ended;

    if (atomic_load(&all->relay.stop) ||
        once__base_connect(all->base, NULL) != ONCE_OK)
        return;
    (void)pthread_mutex_lock(&all->relay.look);
    if (ONCE__ASK(all->base, once__relay_count, &all->relay, &open, &ended,
                  NULL) != ONCE_OK ||
        refresh_strays(all) != ONCE_OK || refresh_held(all) != ONCE_OK)
        once__base_rollback(all->base);
    (void)pthread_mutex_unlock(&all->relay.look);
}

static int start_metrics(struct whole *all, const char *path, once_error *err)
{
    const struct once__metrics_options o = {
        .path = path,
        .families = metrics,
        .n = ONCE__ROUTE_METRICS,
        .series = all->relay.series,
        .n_series = all->relay.n_routes + ONCE__STRAYS_MAX,
        .refresh = refresh,
        .user = all,
    };

    return path != NULL ? once__metrics_start(&o, &all->metrics, err) : ONCE_OK;
}

static int open_workers(struct whole *all, once_error *err)
{
    struct once__relay *r = &all->relay;
    size_t i, k, n = 0;
    int rc = ONCE_OK;

    for (i = 0; i < r->n_routes; i++)
        n += r->routes[i].o.workers;
    all->workers = calloc(n, sizeof(struct once__sender *));
    all->threads = calloc(n, sizeof(*all->threads));
    if (all->workers == NULL || all->threads == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    for (i = 0; i < r->n_routes && rc == ONCE_OK; i++)
        for (k = 0; k < r->routes[i].o.workers && rc == ONCE_OK; k++)
            rc = once__sender_open(r, &r->routes[i], &all->workers[all->n++],
                                   err);
    return rc;
}

static int start_watch(struct whole *all, once_error *err)
{
    int rc = once__watch_start(&all->relay.stop, &all->watch, err);
    size_t i;

    for (i = 0; i < all->n && rc == ONCE_OK; i++)
        rc = once__watch_add(all->watch, once__sender_base(all->workers[i]),
                             err);
    if (rc == ONCE_OK)
        rc =
            once__watch_add(all->watch, once__saga_timer_base(all->timer), err);
    return rc == ONCE_OK ? once__watch_add(all->watch, all->base, err) : rc;
}

static int start_workers(struct whole *all, once_error *err)
{
    for (; all->started < all->n; all->started++) {
        int failed =
            pthread_create(&all->threads[all->started], NULL, once__sender_run,
                           all->workers[all->started]);

        if (failed != 0)
            return once__fail(err, ONCE_ENOMEM, "a thread: %s",
                              strerror(failed));
    }
    return ONCE_OK;
}

/* Waits up to `ms`, -1: for ever. 1: to stop. */
static int wait_stop(struct once__relay *r, int stop_fd, int ms)
{
    struct pollfd p[2] = {{r->stop_fd, POLLIN, 0}, {stop_fd, POLLIN, 0}};
    int n;

    do
        n = poll(p, 2, ms);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        once__relay_stop(r);
    return n > 0;
}

/* A database that cannot be used is found before anything is begun; one that is
 * away is waited for, with `drain` as long as the longest time-out. */
static int reach_database(struct whole *all, int stop_fd, once_error *err)
{
    struct once__relay *r = &all->relay;
    uint64_t until = once__relay_ms() + r->lease_ms / 3;
    int rc = once__base_open(r->from, ONCE__BASE_READY, &all->base, err);

    if (rc == ONCE_OK)
        rc = once__base_connect(all->base, err);
    if (rc == ONCE_EAWAY && err != NULL && !r->drain)
        once__relay_say(r, "the database: %s", err->text);
    while (rc == ONCE_EAWAY && !(r->drain && once__relay_ms() >= until) &&
           !wait_stop(r, stop_fd, RETRY_MS))
        rc = once__base_connect(all->base, err);
    return rc == ONCE_EAWAY && (!r->drain || atomic_load(&r->stop)) ? ONCE_OK
                                                                    : rc;
}

/* Nothing is carried: the database once, and the first worker of each route. */
static int check(struct whole *all, once_error *err)
{
    const struct once__relay *r = &all->relay;
    const struct once__route *before = NULL;
    once_error why = {0, ""};
    int rc, worst = ONCE_OK;
    size_t i;

    rc = once__base_open(r->from, ONCE__BASE_READY, &all->base, err);
    if (rc == ONCE_OK)
        rc = once__base_connect(all->base, err);
    if (rc != ONCE_OK)
        return rc;
    once__relay_say(r, "the database: ready");
    for (i = 0; i < all->n; i++) {
        const struct once__route *route = once__sender_route(all->workers[i]);

        if (route == before)
            continue;
        before = route;
        rc = once__sender_check(all->workers[i], &why);
        if (rc != ONCE_OK && worst == ONCE_OK)
            worst = once__fail(err, rc, "%s", why.text);
    }
    return worst;
}

static int run(struct whole *all, const once_relay_options *o, once_error *err)
{
    struct once__relay *r = &all->relay;
    int rc = read_options(r, o, err);

    if (rc == ONCE_OK)
        rc = open_workers(all, err);
    if (rc == ONCE_OK && r->check)
        return check(all, err);
    if (rc == ONCE_OK)
        rc = reach_database(all, o->stop_fd, err);
    if (rc == ONCE_OK)
        rc = start_metrics(all, o->metrics, err);
    if (rc == ONCE_OK)
        rc = once__saga_timer_start(r, &all->timer, err);
    if (rc == ONCE_OK)
        rc = start_watch(all, err);
    if (rc == ONCE_OK)
        rc = start_workers(all, err);
    if (rc == ONCE_OK)
        (void)wait_stop(r, o->stop_fd, -1);
    once__relay_stop(r);
    while (all->started > 0)
        (void)pthread_join(all->threads[--all->started], NULL);
    once__saga_timer_join(all->timer);
    once__metrics_stop(all->metrics);
    once__watch_end(all->watch);
    if (rc == ONCE_OK && atomic_load(&r->left))
        rc = ONCE_DEAD;
    return rc;
}

int once_relay(const once_relay_options *options, once_error *err)
{
    struct whole all = {.relay = {.look = PTHREAD_MUTEX_INITIALIZER}};
    int rc;

    all.relay.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (all.relay.stop_fd < 0)
        return once__fail(err, ONCE_ENOMEM, "eventfd: %s", strerror(errno));
    rc = run(&all, options, err);
    while (all.n > 0)
        once__sender_close(all.workers[--all.n]);
    once__saga_timer_close(all.timer);
    free(all.workers);
    free(all.threads);
    once__base_close(all.base);
    while (all.relay.n_routes > 0)
        once__claims_close(&all.relay.routes[--all.relay.n_routes].claims);
    free(all.relay.routes);
    free(all.relay.series);
    (void)pthread_mutex_destroy(&all.relay.look);
    (void)close(all.relay.stop_fd);
    return rc;
}
