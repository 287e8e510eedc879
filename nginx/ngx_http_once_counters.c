
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Counters of all workers in shared memory.  Counters only grow; gauges stand
 * in one slot for each process, so that those of a killed worker vanish when
 * its successor starts.  No engine and no page is known here.
 */


#include "ngx_http_once_counters.h"


#define ngx_http_once_counter(member, stat, family)                           \
    { #member, ONCE__FAMILY_##family,                                         \
      offsetof(ngx_http_once_shared_t, member), offsetof(once_stats, stat) }

const ngx_http_once_counter_t
    ngx_http_once_counters[NGX_HTTP_ONCE_NCOUNTERS] = {
    ngx_http_once_counter(operations, operations, OPERATIONS),
    ngx_http_once_counter(batches, batches, BATCHES),
    ngx_http_once_counter(unanswered, unknown, UNANSWERED),
    ngx_http_once_counter(repeated, repeated, REPEATED),
    ngx_http_once_counter(busy, busy, BUSY),
    ngx_http_once_counter(corrupt, corrupt, CORRUPT),
    ngx_http_once_counter(rollbacks, rollbacks, ROLLBACKS),
    ngx_http_once_counter(renewed, renewed, RENEWED),
    ngx_http_once_counter(reaped, reaped, REAPED),
    ngx_http_once_counter(forgotten, forgotten, FORGOTTEN)
};


#define ngx_http_once_status_name(name, text)  ngx_string(text),

ngx_str_t  ngx_http_once_status_names[ONCE__STATUS_COUNT] = {
    ONCE__STATUS_HEADERS(ngx_http_once_status_name)
};


/* 0, which is "-", where there is no more room */

static ngx_uint_t
ngx_http_once_find_slot(ngx_http_once_shared_t *shared, ngx_str_t *name)
{
    ngx_uint_t                     i;
    ngx_http_once_route_counts_t  *counts;

    for (i = 0; i < shared->nroutes; i++) {
        counts = &shared->routes[i];

        if (counts->len == name->len
            && ngx_strncmp(counts->name, name->data, name->len) == 0)
        {
            return i;
        }
    }

    if (i == NGX_HTTP_ONCE_NROUTES) {
        return 0;
    }

    counts = &shared->routes[i];
    counts->len = name->len;
    ngx_memcpy(counts->name, name->data, name->len);

    ngx_memory_barrier();       /* with that of ngx_http_once_nroutes() */
    shared->nroutes = i + 1;

    return i;
}


/* the master's, each time that it reads its configuration */

static ngx_int_t
ngx_http_once_init_zone(ngx_shm_zone_t *zone, void *data)
{
    ngx_uint_t               i;
    ngx_str_t                none = ngx_string("-");
    ngx_slab_pool_t         *shpool;
    ngx_http_once_route_t  **route;
    ngx_http_once_store_t   *store;

    shpool = (ngx_slab_pool_t *) zone->shm.addr;
    store = zone->data;

    if (data == NULL && !zone->shm.exists) {
        shpool->data = ngx_slab_calloc(shpool,
                                       sizeof(ngx_http_once_shared_t));
        if (shpool->data == NULL) {
            return NGX_ERROR;
        }
    }

    /* after a reload the counters go on */

    (void) ngx_http_once_find_slot(shpool->data, &none);

    route = store->routes.elts;

    for (i = 0; i < store->routes.nelts; i++) {
        route[i]->slot = ngx_http_once_find_slot(shpool->data,
                                                 &route[i]->name);

        if (route[i]->slot == 0 && !ngx_http_once_same(&route[i]->name, &none))
        {
            ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                          "once_store \"%V\": too many names of "
                          "\"once_route\" since the start: \"%V\" is "
                          "counted with \"-\"", &store->name,
                          &route[i]->name);
        }
    }

    return NGX_OK;
}


/* one zone for each store: the list may be another one after a reload */

ngx_int_t
ngx_http_once_add_zone(ngx_conf_t *cf, ngx_http_once_store_t *store)
{
    size_t     size;
    ngx_str_t  name;

    name.data = ngx_pnalloc(cf->pool, sizeof("ngx_http_once:") - 1
                                      + store->name.len);
    if (name.data == NULL) {
        return NGX_ERROR;
    }

    name.len = (size_t) (ngx_sprintf(name.data, "ngx_http_once:%V",
                                     &store->name)
                         - name.data);

    size = 8 * ngx_pagesize
           + ngx_align(sizeof(ngx_http_once_shared_t), ngx_pagesize);

    store->zone = ngx_shared_memory_add(cf, &name, size,
                                        &ngx_http_once_module);
    if (store->zone == NULL) {
        return NGX_ERROR;
    }

    store->zone->init = ngx_http_once_init_zone;
    store->zone->data = store;

    return NGX_OK;
}


ngx_http_once_shared_t *
ngx_http_once_shared(ngx_http_once_store_t *store)
{
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) store->zone->shm.addr;

    return shpool->data;
}


ngx_http_once_route_counts_t *
ngx_http_once_route_counts(ngx_http_once_loc_conf_t *olcf)
{
    return &ngx_http_once_shared(olcf->store)->routes[olcf->route->slot];
}


/* each request once, by what its client was told in the end */

ngx_int_t
ngx_http_once_log_handler(ngx_http_request_t *r)
{
    ngx_http_once_ctx_t           *ctx;
    ngx_http_once_route_counts_t  *counts;

    ctx = (r == r->main) ? ngx_http_once_get_ctx(r) : NULL;

    if (ctx != NULL && ctx->decision.header != ONCE__STATUS_NONE) {
        counts = ngx_http_once_route_counts(ctx->conf);
        (void) ngx_atomic_fetch_add(&counts->requests[ctx->decision.header],
                                    1);
    }

    if (ctx != NULL && ctx->would != ONCE__WOULD_NONE) {
        counts = ngx_http_once_route_counts(ctx->conf);
        (void) ngx_atomic_fetch_add(&counts->would[ctx->would], 1);
    }

    return NGX_OK;
}


void
ngx_http_once_count_ending(ngx_http_once_route_counts_t *counts,
    once__ending ending, ngx_uint_t n)
{
    (void) ngx_atomic_fetch_add(
                       &counts->attempts[ending.outcome][ending.reason],
                       (ngx_atomic_int_t) n);
}


void
ngx_http_once_count_time(ngx_http_once_times_t *times,
    const struct once__buckets *buckets, uint64_t us)
{
    (void) ngx_atomic_fetch_add(&times->sum_us, (ngx_atomic_int_t) us);
    (void) ngx_atomic_fetch_add(&times->counts[once__bucket_of(buckets, us)],
                                1);
}


/*
 * The counts of records stay: one who has just read that they are known may
 * still read them, and 0 would be good news.
 */

void
ngx_http_once_clear_slot(ngx_http_once_store_t *store)
{
    ngx_http_once_gauges_t  *gauges;

    gauges = &ngx_http_once_shared(store)->gauges[ngx_process_slot];
    gauges->counted = 0;
    ngx_memzero((void *) gauges, offsetof(ngx_http_once_gauges_t, counted));
}


/* the names of so many are there, also for one who runs beside the master */

ngx_uint_t
ngx_http_once_nroutes(ngx_http_once_shared_t *shared)
{
    ngx_uint_t  n;

    n = shared->nroutes;
    ngx_memory_barrier();       /* with that of ngx_http_once_find_slot() */

    return n;
}


static void
ngx_http_once_set_gauges(ngx_http_once_gauges_t *gauges, once_stats *stats)
{
    uint64_t     now;
    ngx_time_t  *tp;

    tp = ngx_timeofday();
    now = (uint64_t) tp->sec * 1000 + tp->msec;

    gauges->live = stats->live;
    gauges->waiting = stats->waiting;
    gauges->queued = stats->queued;
    gauges->oldest = stats->live ? now - stats->oldest_ms : 0;
    gauges->open = stats->up ? NGX_HTTP_ONCE_UP : 1;
    gauges->late = stats->late;

    /* what was known stays known while the store is away */

    if (stats->up) {
        gauges->durable = stats->durable ? 2 : 1;
        gauges->incarnation = stats->incarnation;
        gauges->gap_until = stats->gap_until_ms;
    }

    if (stats->counted) {
        gauges->claimed = stats->claimed;
        gauges->dispatched = stats->dispatched;
        gauges->indeterminate = stats->indeterminate;
        gauges->oldest_indeterminate = stats->oldest_indeterminate_ms;
        ngx_memory_barrier();   /* with that of ngx_http_once_counted() */
    }

    gauges->counted = stats->counted;

    if (stats->swept_ms != UINT64_MAX) {
        gauges->swept = now - stats->swept_ms;
    }
}


/* adds what this worker's engine counted between `last` and `stats` */

void
ngx_http_once_add_stats(ngx_http_once_store_t *store, once_stats *stats,
    once_stats *last)
{
    uint64_t                 before, after;
    ngx_uint_t               i;
    ngx_atomic_t            *counter;
    ngx_http_once_shared_t  *shared;

    shared = ngx_http_once_shared(store);

    for (i = 0; i < NGX_HTTP_ONCE_NCOUNTERS; i++) {
        ngx_memcpy(&before, (u_char *) last + ngx_http_once_counters[i].stats,
                   sizeof(before));
        ngx_memcpy(&after, (u_char *) stats + ngx_http_once_counters[i].stats,
                   sizeof(after));
        counter = (ngx_atomic_t *) ((u_char *) shared
                                    + ngx_http_once_counters[i].shared);
        (void) ngx_atomic_fetch_add(counter, (ngx_atomic_int_t)
                                             (after - before));
    }

    (void) ngx_atomic_fetch_add(&shared->batch.sum_us, (ngx_atomic_int_t)
                                (stats->apply_us - last->apply_us));

    for (i = 0; i < ONCE_LATENCY_BUCKETS; i++) {
        (void) ngx_atomic_fetch_add(&shared->batch.counts[i], (ngx_atomic_int_t)
                                    (stats->latency[i] - last->latency[i]));
    }

    ngx_http_once_set_gauges(&shared->gauges[ngx_process_slot], stats);

    *last = *stats;
}


/*
 * How the gauges of all processes become one.  The records are counted by one
 * worker, or by two while one is going and one has come.
 */

typedef enum {
    NGX_HTTP_ONCE_ADD = 0,
    NGX_HTTP_ONCE_MAX,
    NGX_HTTP_ONCE_LEAST         /* of those that are not 0 */
} ngx_http_once_fold_e;


#define ngx_http_once_fold(member, how)                                       \
    { offsetof(ngx_http_once_gauges_t, member), NGX_HTTP_ONCE_##how }

static const struct {
    size_t                offset;
    ngx_http_once_fold_e  how;
} ngx_http_once_folds[] = {
    ngx_http_once_fold(live, ADD),
    ngx_http_once_fold(waiting, ADD),
    ngx_http_once_fold(queued, ADD),
    ngx_http_once_fold(oldest, LEAST),

    /* one worker without an answer is enough to look for the cause */

    ngx_http_once_fold(open, LEAST),
    ngx_http_once_fold(durable, MAX),
    ngx_http_once_fold(swept, MAX),
    ngx_http_once_fold(late, MAX),
    ngx_http_once_fold(incarnation, MAX),
    ngx_http_once_fold(gap_until, MAX),
    ngx_http_once_fold(claimed, MAX),
    ngx_http_once_fold(dispatched, MAX),
    ngx_http_once_fold(indeterminate, MAX),
    ngx_http_once_fold(oldest_indeterminate, MAX)
};


/* 1 if the counts of records of this process may be read from now on */

static ngx_uint_t
ngx_http_once_counted(ngx_http_once_gauges_t *gauges)
{
    if (!gauges->counted) {
        return 0;
    }

    ngx_memory_barrier();       /* with that of ngx_http_once_set_gauges() */

    return 1;
}


static void
ngx_http_once_add(ngx_http_once_gauges_t *sum, ngx_http_once_gauges_t *gauges)
{
    size_t              offset;
    ngx_uint_t          k, counted;
    ngx_atomic_t       *total;
    ngx_atomic_uint_t   value;

    counted = ngx_http_once_counted(gauges);
    sum->counted |= counted;

    for (k = 0; k < ngx_http_once_count(ngx_http_once_folds); k++) {
        offset = ngx_http_once_folds[k].offset;

        if (!counted && offset > offsetof(ngx_http_once_gauges_t, counted)) {
            continue;
        }

        total = (ngx_atomic_t *) ((u_char *) sum + offset);
        value = *(ngx_atomic_t *) ((u_char *) gauges + offset);

        if (ngx_http_once_folds[k].how == NGX_HTTP_ONCE_ADD) {
            *total += value;

        } else if (ngx_http_once_folds[k].how == NGX_HTTP_ONCE_MAX) {
            *total = ngx_max(*total, value);

        } else if (value && (*total == 0 || value < *total)) {
            *total = value;
        }
    }
}


void
ngx_http_once_sum(ngx_http_once_shared_t *shared, ngx_http_once_gauges_t *sum)
{
    ngx_uint_t  i;

    ngx_memzero(sum, sizeof(ngx_http_once_gauges_t));

    for (i = 0; i < NGX_MAX_PROCESSES; i++) {
        ngx_http_once_add(sum, &shared->gauges[i]);
    }
}
