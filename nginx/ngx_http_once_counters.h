
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Counters of all workers, in shared memory.
 */


#ifndef _NGX_HTTP_ONCE_COUNTERS_H_INCLUDED_
#define _NGX_HTTP_ONCE_COUNTERS_H_INCLUDED_


#include "ngx_http_once_context.h"
#include "base/metrics.h"


/*
 * of one process, or of all of them; where none is, all up to `counted` are 0,
 * and what follows it does not count
 */

typedef struct {
    ngx_atomic_t   live;
    ngx_atomic_t   waiting;
    ngx_atomic_t   queued;
    ngx_atomic_t   oldest;      /* ms since 1970 of its grant, or 0 */
    ngx_atomic_t   open;        /* 0: no process, 1: no answer, or: */
#define NGX_HTTP_ONCE_UP  2
    ngx_atomic_t   durable;     /* 0: not known, 1: no, 2: yes */
    ngx_atomic_t   swept;       /* ms since 1970, or 0 */
    ngx_atomic_t   late;
    ngx_atomic_t   incarnation;
    ngx_atomic_t   gap_until;
    ngx_atomic_t   counted;     /* the rest is known, and was written before */
    ngx_atomic_t   claimed;
    ngx_atomic_t   dispatched;
    ngx_atomic_t   indeterminate;
    ngx_atomic_t   oldest_indeterminate;
} ngx_http_once_gauges_t;


typedef struct {
    ngx_atomic_t   sum_us;
    ngx_atomic_t   counts[ONCE__BUCKETS_MAX];
} ngx_http_once_times_t;


/* of one "once_route"; a slot keeps its name for as long as the zone lives */

typedef struct {
    size_t                  len;
    u_char                  name[NGX_HTTP_ONCE_NAME_LEN];
    ngx_atomic_t            requests[ONCE__STATUS_COUNT];
    ngx_atomic_t            would[ONCE__WOULD_COUNT];
    ngx_atomic_t            attempts[ONCE__OUTCOME_COUNT][ONCE__REASON_END];
    ngx_atomic_t            probes[ONCE__PROBE_COUNT];
    ngx_http_once_times_t   attempt;
    ngx_http_once_times_t   claim;
    ngx_http_once_times_t   complete;
} ngx_http_once_route_counts_t;


typedef struct {
    ngx_atomic_t                   operations;
    ngx_atomic_t                   batches;
    ngx_atomic_t                   unanswered;
    ngx_atomic_t                   repeated;
    ngx_atomic_t                   busy;
    ngx_atomic_t                   renewed;
    ngx_atomic_t                   reaped;
    ngx_atomic_t                   forgotten;
    ngx_atomic_t                   corrupt;
    ngx_atomic_t                   rollbacks;
    ngx_http_once_times_t          batch;
    ngx_http_once_gauges_t         gauges[NGX_MAX_PROCESSES];

    /*
     * the first one is "-"; slots are only added, by the master, while workers
     * read: how many there are by ngx_http_once_nroutes()
     */
    ngx_atomic_t                   nroutes;
    ngx_http_once_route_counts_t   routes[NGX_HTTP_ONCE_NROUTES];
} ngx_http_once_shared_t;


/* the plain counters, with their names in JSON */

typedef struct {
    const char    *name;
    ngx_uint_t     family;      /* enum once__family_name */
    size_t         shared;
    size_t         stats;
} ngx_http_once_counter_t;


#define NGX_HTTP_ONCE_NCOUNTERS     10


extern const ngx_http_once_counter_t
    ngx_http_once_counters[NGX_HTTP_ONCE_NCOUNTERS];
extern ngx_str_t  ngx_http_once_status_names[ONCE__STATUS_COUNT];


ngx_int_t ngx_http_once_add_zone(ngx_conf_t *cf,
    ngx_http_once_store_t *store);
ngx_http_once_shared_t *ngx_http_once_shared(ngx_http_once_store_t *store);
ngx_http_once_route_counts_t *ngx_http_once_route_counts(
    ngx_http_once_loc_conf_t *olcf);
ngx_int_t ngx_http_once_log_handler(ngx_http_request_t *r);
void ngx_http_once_count_ending(ngx_http_once_route_counts_t *counts,
    once__ending ending, ngx_uint_t n);
void ngx_http_once_count_time(ngx_http_once_times_t *times,
    const struct once__buckets *buckets, uint64_t us);
ngx_uint_t ngx_http_once_nroutes(ngx_http_once_shared_t *shared);
void ngx_http_once_clear_slot(ngx_http_once_store_t *store);
void ngx_http_once_add_stats(ngx_http_once_store_t *store, once_stats *stats,
    once_stats *last);
void ngx_http_once_sum(ngx_http_once_shared_t *shared,
    ngx_http_once_gauges_t *sum);


#endif /* _NGX_HTTP_ONCE_COUNTERS_H_INCLUDED_ */
