
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Counters of all workers in shared memory, and the page that shows them.
 * Counters only grow; gauges stand in one slot for each process, so that those
 * of a killed worker vanish when its successor starts.
 */


#include "ngx_http_once.h"


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


#define ngx_http_once_counter(member, stat, help)                             \
    { #member, help, offsetof(ngx_http_once_shared_t, member),                \
      offsetof(once_stats, stat) }

static const ngx_http_once_counter_t  ngx_http_once_counters[] = {
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
                          "Records whose lease was over."),
    ngx_http_once_counter(forgotten, forgotten,
                          "Records whose retention was over."),
    ngx_http_once_counter(corrupt, corrupt,
                          "Records that did not check.")
};

#define NGX_HTTP_ONCE_NCOUNTERS                                               \
    (sizeof(ngx_http_once_counters) / sizeof(ngx_http_once_counters[0]))


#define ngx_http_once_status_name(name, text)  ngx_string(text),

ngx_str_t  ngx_http_once_status_names[] = {
    ONCE__STATUS_HEADERS(ngx_http_once_status_name)
};


static ngx_int_t ngx_http_once_init_zone(ngx_shm_zone_t *zone, void *data);
static ngx_int_t ngx_http_once_status_handler(ngx_http_request_t *r);
static u_char *ngx_http_once_json(u_char *p, ngx_http_once_main_conf_t *omcf);
static u_char *ngx_http_once_prometheus(u_char *p,
    ngx_http_once_main_conf_t *omcf);


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


static ngx_http_once_shared_t *
ngx_http_once_shared(ngx_http_once_store_t *store)
{
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) store->zone->shm.addr;

    return shpool->data;
}


/* each request is counted once, by the first answer that it got */

void
ngx_http_once_count(ngx_http_once_ctx_t *ctx)
{
    ngx_http_once_shared_t  *shared;

    if (ctx->counted) {
        return;
    }

    ctx->counted = 1;
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


/* adds what this worker's engine counted since `last` */

void
ngx_http_once_publish(ngx_http_once_store_t *store, once_stats *last)
{
    uint64_t                 before, after;
    ngx_uint_t               i;
    once_stats               stats;
    ngx_atomic_t            *counter;
    ngx_http_once_gauges_t  *gauges;
    ngx_http_once_shared_t  *shared;

    once_engine_stats(ngx_http_once_engine(store), &stats);
    shared = ngx_http_once_shared(store);

    for (i = 0; i < NGX_HTTP_ONCE_NCOUNTERS; i++) {
        ngx_memcpy(&before, (u_char *) last + ngx_http_once_counters[i].stats,
                   sizeof(before));
        ngx_memcpy(&after, (u_char *) &stats + ngx_http_once_counters[i].stats,
                   sizeof(after));
        counter = (ngx_atomic_t *) ((u_char *) shared
                                    + ngx_http_once_counters[i].shared);
        (void) ngx_atomic_fetch_add(counter, (ngx_atomic_int_t)
                                             (after - before));
    }

    (void) ngx_atomic_fetch_add(&shared->apply_us, (ngx_atomic_int_t)
                                (stats.apply_us - last->apply_us));

    for (i = 0; i < ONCE_LATENCY_BUCKETS; i++) {
        (void) ngx_atomic_fetch_add(&shared->latency[i], (ngx_atomic_int_t)
                                    (stats.latency[i] - last->latency[i]));
    }

    gauges = &shared->gauges[ngx_process_slot];
    gauges->live = stats.live;
    gauges->waiting = stats.waiting;
    gauges->queued = stats.queued;
    gauges->oldest = stats.live ? ngx_http_once_now() - stats.oldest_ms : 0;

    *last = stats;
}


/* --- the page --- */

typedef struct {
    uint64_t   live;
    uint64_t   waiting;
    uint64_t   queued;
    uint64_t   oldest_ms;   /* age */
} ngx_http_once_sum_t;


static ngx_http_once_sum_t
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


char *
ngx_http_once_status_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_once_status_handler;

    return NGX_CONF_OK;
}


/* "?format=prometheus", or what a Prometheus server sends as Accept */

static ngx_uint_t
ngx_http_once_wants_text(ngx_http_request_t *r)
{
    ngx_str_t              value;
    ngx_table_elt_t       *h;
    ngx_http_once_walk_t   walk;

    if (ngx_http_arg(r, (u_char *) "format", 6, &value) == NGX_OK) {
        return value.len == sizeof("prometheus") - 1
               && ngx_strncmp(value.data, "prometheus", value.len) == 0;
    }

    ngx_http_once_walk(&walk, &r->headers_in.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (h->key.len == sizeof("Accept") - 1
            && ngx_strncasecmp(h->key.data, (u_char *) "Accept", 6) == 0)
        {
            return ngx_strlcasestrn(h->value.data,
                                    h->value.data + h->value.len,
                                    (u_char *) "openmetrics", 10) != NULL
                   || ngx_strlcasestrn(h->value.data,
                                       h->value.data + h->value.len,
                                       (u_char *) "text/plain", 9) != NULL;
        }
    }

    return 0;
}


static ngx_int_t
ngx_http_once_status_handler(ngx_http_request_t *r)
{
    size_t                      size;
    ngx_int_t                   rc;
    ngx_buf_t                  *b;
    ngx_uint_t                  text;
    ngx_chain_t                 out;
    ngx_http_once_main_conf_t  *omcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    ngx_http_once_publish_all();

    omcf = ngx_http_get_module_main_conf(r, ngx_http_once_module);
    text = ngx_http_once_wants_text(r);

    /* names are at most 64 bytes long, numbers 20; ample */

    size = 4096 + omcf->stores.nelts * 16384;

    b = ngx_create_temp_buf(r->pool, size);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last = text ? ngx_http_once_prometheus(b->last, omcf)
                   : ngx_http_once_json(b->last, omcf);

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = b->last - b->pos;

    if (text) {
        ngx_str_set(&r->headers_out.content_type,
                    "text/plain; version=0.0.4");
    } else {
        ngx_str_set(&r->headers_out.content_type, "application/json");
    }

    r->headers_out.content_type_len = r->headers_out.content_type.len;

    if (ngx_http_once_add_header(r, "Cache-Control", "no-store") != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


static u_char *
ngx_http_once_json(u_char *p, ngx_http_once_main_conf_t *omcf)
{
    ngx_uint_t                i, n;
    ngx_atomic_t             *counter;
    ngx_http_once_sum_t       sum;
    ngx_http_once_store_t   **store;
    ngx_http_once_shared_t   *shared;

    store = omcf->stores.elts;
    p = ngx_sprintf(p, "{\"version\":\"%s\",\"stores\":{", ONCE_VERSION);

    for (i = 0; i < omcf->stores.nelts; i++) {
        shared = ngx_http_once_shared(store[i]);
        sum = ngx_http_once_sum(shared);

        p = ngx_sprintf(p, "%s\"%V\":{\"requests\":{", i ? "," : "",
                        &store[i]->name);

        for (n = ONCE__STATUS_NEW; n < ONCE__STATUS_COUNT; n++) {
            p = ngx_sprintf(p, "%s\"%V\":%uA",
                            n > ONCE__STATUS_NEW ? "," : "",
                            &ngx_http_once_status_names[n],
                            shared->requests[n]);
        }

        p = ngx_sprintf(p, "},\"live\":%uL,\"oldest_ms\":%uL,"
                        "\"waiting\":%uL,\"queued\":%uL,\"store\":{",
                        sum.live, sum.oldest_ms, sum.waiting, sum.queued);

        for (n = 0; n < NGX_HTTP_ONCE_NCOUNTERS; n++) {
            counter = (ngx_atomic_t *) ((u_char *) shared
                                        + ngx_http_once_counters[n].shared);
            p = ngx_sprintf(p, "\"%s\":%uA,", ngx_http_once_counters[n].name,
                            *counter);
        }

        p = ngx_sprintf(p, "\"batch_us_sum\":%uA,\"batch_us\":{",
                        shared->apply_us);

        for (n = 0; n < ONCE_LATENCY_BUCKETS - 1; n++) {
            p = ngx_sprintf(p, "\"%uL\":%uA,", (uint64_t) 64 << n,
                            shared->latency[n]);
        }

        p = ngx_sprintf(p, "\"more\":%uA}}}", shared->latency[n]);
    }

    return ngx_sprintf(p, "}}\n");
}


static u_char *
ngx_http_once_prometheus(u_char *p, ngx_http_once_main_conf_t *omcf)
{
    uint64_t                  total;
    ngx_uint_t                i, n;
    ngx_atomic_t             *counter;
    ngx_http_once_sum_t       sum;
    ngx_http_once_store_t   **store;
    ngx_http_once_shared_t   *shared;

    store = omcf->stores.elts;

    p = ngx_sprintf(p, "# HELP once_requests_total Guarded requests by what "
                       "became of them.\n"
                       "# TYPE once_requests_total counter\n");

    for (i = 0; i < omcf->stores.nelts; i++) {
        shared = ngx_http_once_shared(store[i]);

        for (n = ONCE__STATUS_NEW; n < ONCE__STATUS_COUNT; n++) {
            p = ngx_sprintf(p, "once_requests_total{store=\"%V\","
                               "status=\"%V\"} %uA\n", &store[i]->name,
                            &ngx_http_once_status_names[n],
                            shared->requests[n]);
        }
    }

    for (n = 0; n < NGX_HTTP_ONCE_NCOUNTERS; n++) {
        p = ngx_sprintf(p, "# HELP once_store_%s_total %s\n"
                           "# TYPE once_store_%s_total counter\n",
                        ngx_http_once_counters[n].name,
                        ngx_http_once_counters[n].help,
                        ngx_http_once_counters[n].name);

        for (i = 0; i < omcf->stores.nelts; i++) {
            shared = ngx_http_once_shared(store[i]);
            counter = (ngx_atomic_t *) ((u_char *) shared
                                        + ngx_http_once_counters[n].shared);
            p = ngx_sprintf(p, "once_store_%s_total{store=\"%V\"} %uA\n",
                            ngx_http_once_counters[n].name, &store[i]->name,
                            *counter);
        }
    }

    p = ngx_sprintf(p, "# TYPE once_live_attempts gauge\n"
                       "# TYPE once_waiting_attempts gauge\n"
                       "# TYPE once_queued_operations gauge\n"
                       "# TYPE once_oldest_attempt_seconds gauge\n"
                       "# TYPE once_store_batch_seconds histogram\n");

    for (i = 0; i < omcf->stores.nelts; i++) {
        shared = ngx_http_once_shared(store[i]);
        sum = ngx_http_once_sum(shared);

        p = ngx_sprintf(p, "once_live_attempts{store=\"%V\"} %uL\n"
                           "once_waiting_attempts{store=\"%V\"} %uL\n"
                           "once_queued_operations{store=\"%V\"} %uL\n"
                           "once_oldest_attempt_seconds{store=\"%V\"} "
                           "%uL.%03uL\n",
                        &store[i]->name, sum.live, &store[i]->name,
                        sum.waiting, &store[i]->name, sum.queued,
                        &store[i]->name, sum.oldest_ms / 1000,
                        sum.oldest_ms % 1000);
        total = 0;

        for (n = 0; n < ONCE_LATENCY_BUCKETS - 1; n++) {
            total += shared->latency[n];
            p = ngx_sprintf(p, "once_store_batch_seconds_bucket{store=\"%V\","
                               "le=\"%uL.%06uL\"} %uL\n", &store[i]->name,
                            ((uint64_t) 64 << n) / 1000000,
                            ((uint64_t) 64 << n) % 1000000, total);
        }

        total += shared->latency[n];
        p = ngx_sprintf(p, "once_store_batch_seconds_bucket{store=\"%V\","
                           "le=\"+Inf\"} %uL\n"
                           "once_store_batch_seconds_sum{store=\"%V\"} "
                           "%uA.%06uA\n"
                           "once_store_batch_seconds_count{store=\"%V\"} "
                           "%uL\n",
                        &store[i]->name, total, &store[i]->name,
                        shared->apply_us / 1000000,
                        shared->apply_us % 1000000, &store[i]->name, total);
    }

    return p;
}
