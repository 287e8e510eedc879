
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Counters of all workers in shared memory.  Counters only grow; gauges stand
 * in one slot for each process, so that those of a killed worker vanish when
 * its successor starts.  No engine and no page is known here.
 */


#include "ngx_http_once_counters.h"


#define ngx_http_once_counter(member, stat, help)                             \
    { #member, help, offsetof(ngx_http_once_shared_t, member),                \
      offsetof(once_stats, stat) }

const ngx_http_once_counter_t
ngx_http_once_counters[NGX_HTTP_ONCE_NCOUNTERS] = {
    ngx_http_once_counter(operations, operations,
                          "Operations answered by the store."),
    ngx_http_once_counter(batches, batches,
                          "Batches with which the store was asked."),
    ngx_http_once_counter(unanswered, unknown,
                          "Batches that the store did not answer."),
    ngx_http_once_counter(repeated, repeated,
                          "Operations repeated after that."),
    ngx_http_once_counter(busy, busy,
                          "Operations refused because the queue was full."),
    ngx_http_once_counter(renewed, renewed, "Leases renewed."),
    ngx_http_once_counter(reaped, reaped,
                          "Records whose lease had expired."),
    ngx_http_once_counter(forgotten, forgotten,
                          "Records that expired and were deleted."),
    ngx_http_once_counter(corrupt, corrupt,
                          "Records that failed their checksum.")
};


#define ngx_http_once_status_name(name, text)  ngx_string(text),

ngx_str_t  ngx_http_once_status_names[ONCE__STATUS_COUNT] = {
    ONCE__STATUS_HEADERS(ngx_http_once_status_name)
};


static ngx_int_t ngx_http_once_init_zone(ngx_shm_zone_t *zone, void *data);


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


static ngx_int_t
ngx_http_once_init_zone(ngx_shm_zone_t *zone, void *data)
{
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    if (data != NULL || zone->shm.exists) {
        return NGX_OK;          /* a reload: the counters go on */
    }

    shpool->data = ngx_slab_calloc(shpool, sizeof(ngx_http_once_shared_t));

    return shpool->data ? NGX_OK : NGX_ERROR;
}


ngx_http_once_shared_t *
ngx_http_once_shared(ngx_http_once_store_t *store)
{
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) store->zone->shm.addr;

    return shpool->data;
}


/* to be called once for a request, by what its claim came to */

void
ngx_http_once_count(ngx_http_once_ctx_t *ctx)
{
    ngx_http_once_shared_t  *shared;

    shared = ngx_http_once_shared(ctx->conf->store);
    (void) ngx_atomic_fetch_add(&shared->requests[ctx->decision.header], 1);
}


void
ngx_http_once_clear_slot(ngx_http_once_store_t *store)
{
    ngx_http_once_shared_t  *shared;

    shared = ngx_http_once_shared(store);
    ngx_memzero((void *) &shared->gauges[ngx_process_slot],
                sizeof(ngx_http_once_gauges_t));
}


static uint64_t
ngx_http_once_now(void)
{
    ngx_time_t  *tp;

    tp = ngx_timeofday();

    return (uint64_t) tp->sec * 1000 + tp->msec;
}


/* adds what this worker's engine counted between `last` and `stats` */

void
ngx_http_once_add_stats(ngx_http_once_store_t *store, once_stats *stats,
    once_stats *last)
{
    uint64_t                 before, after;
    ngx_uint_t               i;
    ngx_atomic_t            *counter;
    ngx_http_once_gauges_t  *gauges;
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

    (void) ngx_atomic_fetch_add(&shared->apply_us, (ngx_atomic_int_t)
                                (stats->apply_us - last->apply_us));

    for (i = 0; i < ONCE_LATENCY_BUCKETS; i++) {
        (void) ngx_atomic_fetch_add(&shared->latency[i], (ngx_atomic_int_t)
                                    (stats->latency[i] - last->latency[i]));
    }

    gauges = &shared->gauges[ngx_process_slot];
    gauges->live = stats->live;
    gauges->waiting = stats->waiting;
    gauges->queued = stats->queued;
    gauges->oldest = stats->live ? ngx_http_once_now() - stats->oldest_ms : 0;

    *last = *stats;
}


ngx_http_once_sum_t
ngx_http_once_sum(ngx_http_once_shared_t *shared)
{
    uint64_t                 now, oldest;
    ngx_uint_t               i;
    ngx_http_once_sum_t      sum;
    ngx_http_once_gauges_t  *g;

    ngx_memzero(&sum, sizeof(ngx_http_once_sum_t));
    now = ngx_http_once_now();
    oldest = now;

    for (i = 0; i < NGX_MAX_PROCESSES; i++) {
        g = &shared->gauges[i];
        sum.live += g->live;
        sum.waiting += g->waiting;
        sum.queued += g->queued;

        if (g->oldest && g->oldest < oldest) {
            oldest = g->oldest;
        }
    }

    sum.oldest_ms = now - oldest;

    return sum;
}
