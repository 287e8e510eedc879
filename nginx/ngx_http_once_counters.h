
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Counters of all workers, in shared memory.
 */


#ifndef _NGX_HTTP_ONCE_COUNTERS_H_INCLUDED_
#define _NGX_HTTP_ONCE_COUNTERS_H_INCLUDED_


#include "ngx_http_once_context.h"


typedef struct {
    ngx_atomic_t   live;
    ngx_atomic_t   waiting;
    ngx_atomic_t   queued;
    ngx_atomic_t   oldest;      /* ms since 1970 of its grant, or 0 */
} ngx_http_once_gauges_t;


typedef struct {
    ngx_atomic_t            requests[ONCE__STATUS_COUNT];
    ngx_atomic_t            operations;
    ngx_atomic_t            batches;
    ngx_atomic_t            unanswered;
    ngx_atomic_t            repeated;
    ngx_atomic_t            busy;
    ngx_atomic_t            renewed;
    ngx_atomic_t            reaped;
    ngx_atomic_t            forgotten;
    ngx_atomic_t            corrupt;
    ngx_atomic_t            apply_us;
    ngx_atomic_t            latency[ONCE_LATENCY_BUCKETS];
    ngx_http_once_gauges_t  gauges[NGX_MAX_PROCESSES];
} ngx_http_once_shared_t;


/* the plain counters, with their names on the page */

typedef struct {
    const char    *name;
    const char    *help;
    size_t         shared;
    size_t         stats;
} ngx_http_once_counter_t;


#define NGX_HTTP_ONCE_NCOUNTERS     9


/* the gauges of all workers */

typedef struct {
    uint64_t   live;
    uint64_t   waiting;
    uint64_t   queued;
    uint64_t   oldest_ms;   /* age */
} ngx_http_once_sum_t;


extern const ngx_http_once_counter_t
    ngx_http_once_counters[NGX_HTTP_ONCE_NCOUNTERS];
extern ngx_str_t  ngx_http_once_status_names[ONCE__STATUS_COUNT];


ngx_int_t ngx_http_once_add_zone(ngx_conf_t *cf,
    ngx_http_once_store_t *store);
ngx_http_once_shared_t *ngx_http_once_shared(ngx_http_once_store_t *store);
void ngx_http_once_count(ngx_http_once_ctx_t *ctx);
void ngx_http_once_clear_slot(ngx_http_once_store_t *store);
void ngx_http_once_add_stats(ngx_http_once_store_t *store, once_stats *stats,
    once_stats *last);
ngx_http_once_sum_t ngx_http_once_sum(ngx_http_once_shared_t *shared);


#endif /* _NGX_HTTP_ONCE_COUNTERS_H_INCLUDED_ */
