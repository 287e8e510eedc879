
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The page of "once_status", as JSON or as Prometheus text.  It only reads the
 * counters, and shows no key, no scope and no path.
 */


#include "ngx_http_once_status.h"


#define NGX_HTTP_ONCE_PAGE_BUF  16384


typedef enum {
    NGX_HTTP_ONCE_JSON = 0,
    NGX_HTTP_ONCE_TEXT,         /* of Prometheus, 0.0.4 */
    NGX_HTTP_ONCE_OPENMETRICS,
    NGX_HTTP_ONCE_NO_FORMAT
} ngx_http_once_format_e;


/* a page of any length */

typedef struct {
    ngx_pool_t    *pool;
    ngx_chain_t   *first;
    ngx_chain_t  **last;        /* where the next link goes */
    ngx_buf_t     *buf;         /* of the last link */
    off_t          size;
    ngx_uint_t     failed;
} ngx_http_once_page_t;


static ngx_int_t ngx_http_once_status_handler(ngx_http_request_t *r);
static void ngx_http_once_json(ngx_http_once_page_t *page,
    ngx_http_once_main_conf_t *omcf);
static void ngx_http_once_metrics(ngx_http_once_page_t *page,
    ngx_http_once_main_conf_t *omcf, ngx_uint_t openmetrics);


char *
ngx_http_once_status_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_once_status_handler;

    return NGX_CONF_OK;
}


#define ngx_http_once_accepts(value, type)                                    \
    (ngx_strlcasestrn((value)->data, (value)->data + (value)->len,            \
                      (u_char *) type, sizeof(type) - 2)                      \
     != NULL)


/* "?format=", or what a Prometheus server sends as Accept */

static ngx_http_once_format_e
ngx_http_once_find_format(ngx_http_request_t *r)
{
    ngx_str_t              value;
    ngx_uint_t             i;
    ngx_table_elt_t       *h;
    ngx_http_once_walk_t   walk;

    static ngx_str_t  names[] = {
        ngx_string("json"), ngx_string("prometheus"),
        ngx_string("openmetrics")
    };

    if (ngx_http_arg(r, (u_char *) "format", 6, &value) == NGX_OK) {

        for (i = 0; i < NGX_HTTP_ONCE_NO_FORMAT; i++) {
            if (ngx_http_once_same(&value, &names[i])) {
                break;
            }
        }

        return i;
    }

    ngx_http_once_walk(&walk, &r->headers_in.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (!ngx_http_once_is_header(h, "Accept")) {
            continue;
        }

        if (ngx_http_once_accepts(&h->value, "application/openmetrics-text")) {
            return NGX_HTTP_ONCE_OPENMETRICS;
        }

        if (ngx_http_once_accepts(&h->value, "text/plain")) {
            return NGX_HTTP_ONCE_TEXT;
        }
    }

    return NGX_HTTP_ONCE_JSON;
}


static ngx_int_t
ngx_http_once_send_page(ngx_http_request_t *r, ngx_http_once_page_t *page,
    const char *type)
{
    ngx_int_t  rc;

    if (page->failed
        || ngx_http_once_add_header(r, "Cache-Control", "no-store") != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = page->size;
    r->headers_out.content_type.data = (u_char *) type;
    r->headers_out.content_type.len = ngx_strlen(type);
    r->headers_out.content_type_len = r->headers_out.content_type.len;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    page->buf->last_buf = (r == r->main) ? 1 : 0;
    page->buf->last_in_chain = 1;

    return ngx_http_output_filter(r, page->first);
}


static ngx_int_t
ngx_http_once_status_handler(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    ngx_uint_t                  openmetrics;
    ngx_http_once_page_t        page;
    ngx_http_once_format_e      format;
    ngx_http_once_main_conf_t  *omcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    format = ngx_http_once_find_format(r);

    if (format == NGX_HTTP_ONCE_NO_FORMAT) {
        return NGX_HTTP_BAD_REQUEST;
    }

    ngx_http_once_publish_all();

    omcf = ngx_http_get_module_main_conf(r, ngx_http_once_module);

    ngx_memzero(&page, sizeof(ngx_http_once_page_t));
    page.pool = r->pool;
    page.last = &page.first;

    if (format == NGX_HTTP_ONCE_JSON) {
        ngx_http_once_json(&page, omcf);
        return ngx_http_once_send_page(r, &page, "application/json");
    }

    openmetrics = (format == NGX_HTTP_ONCE_OPENMETRICS);
    ngx_http_once_metrics(&page, omcf, openmetrics);

    return ngx_http_once_send_page(r, &page,
                                   once__metrics_content_type(openmetrics));
}


/* for once__metrics_text, too */

static void
ngx_http_once_put(void *user, const char *text, size_t size)
{
    ngx_http_once_page_t *page = user;

    size_t        n;
    ngx_chain_t  *cl;

    page->size += size;

    while (size && !page->failed) {

        if (page->buf == NULL || page->buf->last == page->buf->end) {
            cl = ngx_alloc_chain_link(page->pool);
            page->buf = ngx_create_temp_buf(page->pool,
                                            NGX_HTTP_ONCE_PAGE_BUF);

            if (cl == NULL || page->buf == NULL) {
                page->failed = 1;
                return;
            }

            cl->buf = page->buf;
            cl->next = NULL;
            *page->last = cl;
            page->last = &cl->next;
        }

        n = ngx_min(size, (size_t) (page->buf->end - page->buf->last));
        page->buf->last = ngx_cpymem(page->buf->last, text, n);
        text += n;
        size -= n;
    }
}


/* one member of an object, at most 256 bytes long */

static void
ngx_http_once_printf(ngx_http_once_page_t *page, const char *format, ...)
{
    u_char    text[256], *last;
    va_list   args;

    va_start(args, format);
    last = ngx_vslprintf(text, text + sizeof(text), format, args);
    va_end(args);

    ngx_http_once_put(page, (char *) text, (size_t) (last - text));
}


static uint64_t
ngx_http_once_counter(ngx_http_once_shared_t *shared, ngx_uint_t i)
{
    return *(ngx_atomic_t *) ((u_char *) shared
                              + ngx_http_once_counters[i].shared);
}


/* the counters of all routes by their words, of which the first one is "-" */

static void
ngx_http_once_json_words(ngx_http_once_page_t *page,
    ngx_http_once_shared_t *shared, int count, size_t offset,
    const char *(*text)(int word))
{
    int            n;
    uint64_t       total;
    ngx_uint_t     k, nroutes;
    ngx_atomic_t  *counters;

    nroutes = ngx_http_once_nroutes(shared);

    for (n = 1; n < count; n++) {
        total = 0;

        for (k = 0; k < nroutes; k++) {
            counters = (ngx_atomic_t *) ((u_char *) &shared->routes[k]
                                         + offset);
            total += counters[n];
        }

        ngx_http_once_printf(page, "%s\"%s\":%uL", n > 1 ? "," : "",
                             text(n), total);
    }
}


static void
ngx_http_once_json_store(ngx_http_once_page_t *page,
    ngx_http_once_store_t *store)
{
    ngx_uint_t               n;
    ngx_http_once_gauges_t   sum;
    ngx_http_once_shared_t  *shared;

    shared = ngx_http_once_shared(store);
    ngx_http_once_sum(shared, &sum);

    ngx_http_once_printf(page, "\"%V\":{\"up\":%s,\"requests\":{",
                         &store->name,
                         sum.open == NGX_HTTP_ONCE_UP ? "true" : "false");

    ngx_http_once_json_words(page, shared, ONCE__STATUS_COUNT,
                             offsetof(ngx_http_once_route_counts_t, requests),
                             once__status_text);

    ngx_http_once_printf(page, "},\"would\":{");

    ngx_http_once_json_words(page, shared, ONCE__WOULD_COUNT,
                             offsetof(ngx_http_once_route_counts_t, would),
                             once__would_text);

    ngx_http_once_printf(page, "},\"in_flight\":%uA,\"oldest_ms\":%uA,"
                         "\"waiting\":%uA,\"queued\":%uA,\"store\":{",
                         sum.live, sum.oldest, sum.waiting, sum.queued);

    for (n = 0; n < NGX_HTTP_ONCE_NCOUNTERS; n++) {
        ngx_http_once_printf(page, "%s\"%s\":%uL", n ? "," : "",
                             ngx_http_once_counters[n].name,
                             ngx_http_once_counter(shared, n));
    }

    ngx_http_once_printf(page, "}}");
}


static void
ngx_http_once_json(ngx_http_once_page_t *page,
    ngx_http_once_main_conf_t *omcf)
{
    ngx_uint_t               i;
    ngx_http_once_store_t  **store;

    store = omcf->stores.elts;
    ngx_http_once_printf(page, "{\"version\":\"%s\",\"stores\":{",
                         ONCE_VERSION);

    for (i = 0; i < omcf->stores.nelts; i++) {
        ngx_http_once_printf(page, i ? "," : "");
        ngx_http_once_json_store(page, store[i]);
    }

    ngx_http_once_printf(page, "}}\n");
}


/* --- the families --- */

typedef struct {
    struct once__metrics_text    text;
    ngx_http_once_main_conf_t   *omcf;
} ngx_http_once_metrics_t;


/* labels and values of one route, or of one store; `arg` is the row's */

typedef void (*ngx_http_once_route_pt)(ngx_http_once_metrics_t *m,
    once_bytes *labels, ngx_http_once_route_counts_t *counts, size_t arg);
typedef void (*ngx_http_once_store_pt)(ngx_http_once_metrics_t *m,
    once_bytes *labels, ngx_http_once_store_t *store, size_t arg);

#define NGX_HTTP_ONCE_NLABELS  4        /* the longest list */


static void
ngx_http_once_label_text(once_bytes *label, const char *value)
{
    label->data = value;
    label->size = ngx_strlen(value);
}


static void
ngx_http_once_times(ngx_http_once_metrics_t *m, once_bytes *labels,
    const struct once__buckets *buckets, ngx_http_once_times_t *times)
{
    uint64_t    counts[ONCE__BUCKETS_MAX];
    ngx_uint_t  i;

    for (i = 0; i < ONCE__BUCKETS_MAX; i++) {
        counts[i] = times->counts[i];
    }

    once__metrics_histogram(&m->text, labels, buckets, counts, times->sum_us);
}


static void
ngx_http_once_requests(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_route_counts_t *counts, size_t arg)
{
    ngx_uint_t  n;

    for (n = ONCE__STATUS_NEW; n < ONCE__STATUS_COUNT; n++) {
        labels[2] = ngx_http_once_bytes(&ngx_http_once_status_names[n]);
        once__metrics_value(&m->text, labels, counts->requests[n]);
    }
}


/* what can happen is there before it does, so that its increase can be seen */

static void
ngx_http_once_attempts(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_route_counts_t *counts, size_t arg)
{
    int  outcome, reason;

    for (outcome = 0; outcome < ONCE__OUTCOME_COUNT; outcome++) {
        ngx_http_once_label_text(&labels[2], once__outcome_text(outcome));

        for (reason = 0; reason < ONCE__REASON_END; reason++) {
            if (counts->attempts[outcome][reason] == 0
                && !once__ending_is_usual(outcome, reason))
            {
                continue;
            }

            ngx_http_once_label_text(&labels[3], once_reason_text(reason));
            once__metrics_value(&m->text, labels,
                                counts->attempts[outcome][reason]);
        }
    }
}


static void
ngx_http_once_probes(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_route_counts_t *counts, size_t arg)
{
    int  n;

    for (n = 0; n < ONCE__PROBE_COUNT; n++) {
        ngx_http_once_label_text(&labels[2], once__probe_text(n));
        once__metrics_value(&m->text, labels, counts->probes[n]);
    }
}


static void
ngx_http_once_woulds(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_route_counts_t *counts, size_t arg)
{
    int  n;

    for (n = ONCE__WOULD_RUN; n < ONCE__WOULD_COUNT; n++) {
        ngx_http_once_label_text(&labels[2], once__would_text(n));
        once__metrics_value(&m->text, labels, counts->would[n]);
    }
}


static void
ngx_http_once_route_times(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_route_counts_t *counts, size_t arg)
{
    ngx_http_once_times(m, labels,
                        arg == offsetof(ngx_http_once_route_counts_t, attempt)
                        ? &once__service_buckets : &once__store_buckets,
                        (ngx_http_once_times_t *) ((u_char *) counts + arg));
}


static void
ngx_http_once_each_route(ngx_http_once_metrics_t *m, ngx_uint_t family,
    ngx_http_once_route_pt put, size_t arg)
{
    ngx_uint_t                     i, k, nroutes;
    once_bytes                     labels[NGX_HTTP_ONCE_NLABELS];
    ngx_http_once_store_t        **store;
    ngx_http_once_shared_t        *shared;
    ngx_http_once_route_counts_t  *counts;

    once__metrics_family(&m->text, &once__families[family]);
    store = m->omcf->stores.elts;

    for (i = 0; i < m->omcf->stores.nelts; i++) {
        shared = ngx_http_once_shared(store[i]);
        nroutes = ngx_http_once_nroutes(shared);
        labels[0] = ngx_http_once_bytes(&store[i]->name);

        for (k = 0; k < nroutes; k++) {
            counts = &shared->routes[k];
            labels[1].data = counts->name;
            labels[1].size = counts->len;
            put(m, labels, counts, arg);
        }
    }
}


static void
ngx_http_once_store_info(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_store_t *store, size_t arg)
{
    ngx_http_once_gauges_t  sum;

    static const char *durable[] = { "-", "no", "yes" };

    ngx_http_once_sum(ngx_http_once_shared(store), &sum);

    labels[1].data = store->url.data;
    labels[1].size = strcspn((char *) store->url.data, ":");

    ngx_http_once_label_text(&labels[2], durable[sum.durable]);
    once__metrics_value(&m->text, labels, 1);
}


/* only what was counted: 0 would be good news */

static void
ngx_http_once_records(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_store_t *store, size_t arg)
{
    ngx_http_once_gauges_t  sum;

    ngx_http_once_sum(ngx_http_once_shared(store), &sum);

    if (!sum.counted) {
        return;
    }

    ngx_http_once_label_text(&labels[1], "claimed");
    once__metrics_value(&m->text, labels, sum.claimed);
    ngx_http_once_label_text(&labels[1], "dispatched");
    once__metrics_value(&m->text, labels, sum.dispatched);
    ngx_http_once_label_text(&labels[1], "indeterminate");
    once__metrics_value(&m->text, labels, sum.indeterminate);
}


static void
ngx_http_once_oldest_indeterminate(ngx_http_once_metrics_t *m,
    once_bytes *labels, ngx_http_once_store_t *store, size_t arg)
{
    ngx_http_once_gauges_t  sum;

    ngx_http_once_sum(ngx_http_once_shared(store), &sum);

    if (sum.counted) {
        once__metrics_ms(&m->text, labels, sum.oldest_indeterminate);
    }
}


static void
ngx_http_once_batch_times(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_store_t *store, size_t arg)
{
    ngx_http_once_times(m, labels, &once__store_buckets,
                        &ngx_http_once_shared(store)->batch);
}


static void
ngx_http_once_up(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_store_t *store, size_t arg)
{
    ngx_http_once_gauges_t  sum;

    ngx_http_once_sum(ngx_http_once_shared(store), &sum);
    once__metrics_value(&m->text, labels, sum.open == NGX_HTTP_ONCE_UP);
}


static void
ngx_http_once_gauge(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_store_t *store, size_t arg)
{
    ngx_http_once_gauges_t  sum;

    ngx_http_once_sum(ngx_http_once_shared(store), &sum);
    once__metrics_value(&m->text, labels,
                        *(ngx_atomic_t *) ((u_char *) &sum + arg));
}


static void
ngx_http_once_time_gauge(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_store_t *store, size_t arg)
{
    ngx_http_once_gauges_t  sum;

    ngx_http_once_sum(ngx_http_once_shared(store), &sum);
    once__metrics_ms(&m->text, labels,
                     *(ngx_atomic_t *) ((u_char *) &sum + arg));
}


static void
ngx_http_once_put_counter(ngx_http_once_metrics_t *m, once_bytes *labels,
    ngx_http_once_store_t *store, size_t arg)
{
    once__metrics_value(&m->text, labels,
                        ngx_http_once_counter(ngx_http_once_shared(store),
                                              arg));
}


static void
ngx_http_once_each_store(ngx_http_once_metrics_t *m, ngx_uint_t family,
    ngx_http_once_store_pt put, size_t arg)
{
    ngx_uint_t               i;
    once_bytes               labels[NGX_HTTP_ONCE_NLABELS];
    ngx_http_once_store_t  **store;

    once__metrics_family(&m->text, &once__families[family]);
    store = m->omcf->stores.elts;

    for (i = 0; i < m->omcf->stores.nelts; i++) {
        labels[0] = ngx_http_once_bytes(&store[i]->name);
        put(m, labels, store[i], arg);
    }
}


static const struct {
    ngx_uint_t               family;
    ngx_http_once_route_pt   put;
    size_t                   arg;
} ngx_http_once_of_routes[] = {
    { ONCE__FAMILY_REQUESTS, ngx_http_once_requests, 0 },
    { ONCE__FAMILY_ATTEMPTS, ngx_http_once_attempts, 0 },
    { ONCE__FAMILY_WOULD, ngx_http_once_woulds, 0 },
    { ONCE__FAMILY_PROBES, ngx_http_once_probes, 0 },
    { ONCE__FAMILY_ATTEMPT_DURATION, ngx_http_once_route_times,
      offsetof(ngx_http_once_route_counts_t, attempt) },
    { ONCE__FAMILY_CLAIM_DURATION, ngx_http_once_route_times,
      offsetof(ngx_http_once_route_counts_t, claim) },
    { ONCE__FAMILY_COMPLETE_DURATION, ngx_http_once_route_times,
      offsetof(ngx_http_once_route_counts_t, complete) }
};


#define ngx_http_once_of(family, put, member)                                 \
    { ONCE__FAMILY_##family, put, offsetof(ngx_http_once_gauges_t, member) }

static const struct {
    ngx_uint_t               family;
    ngx_http_once_store_pt   put;
    size_t                   arg;
} ngx_http_once_of_stores[] = {
    ngx_http_once_of(IN_FLIGHT, ngx_http_once_gauge, live),
    ngx_http_once_of(WAITING, ngx_http_once_gauge, waiting),
    ngx_http_once_of(QUEUED, ngx_http_once_gauge, queued),
    ngx_http_once_of(OLDEST_ATTEMPT, ngx_http_once_time_gauge, oldest),
    ngx_http_once_of(STORE_UP, ngx_http_once_up, open),
    ngx_http_once_of(STORE_INCARNATION, ngx_http_once_gauge, incarnation),
    ngx_http_once_of(STORE_GAP_UNTIL, ngx_http_once_time_gauge, gap_until),
    ngx_http_once_of(SWEEP_LAST, ngx_http_once_time_gauge, swept),
    ngx_http_once_of(SWEEP_STOPPED, ngx_http_once_gauge, late),
    { ONCE__FAMILY_RECORDS, ngx_http_once_records, 0 },
    { ONCE__FAMILY_OLDEST_INDETERMINATE, ngx_http_once_oldest_indeterminate,
      0 },
    { ONCE__FAMILY_STORE_INFO, ngx_http_once_store_info, 0 },
    { ONCE__FAMILY_BATCH_DURATION, ngx_http_once_batch_times, 0 }
};


static void
ngx_http_once_metrics(ngx_http_once_page_t *page,
    ngx_http_once_main_conf_t *omcf, ngx_uint_t openmetrics)
{
    ngx_uint_t               i;
    once_bytes               labels[NGX_HTTP_ONCE_NLABELS];
    ngx_http_once_metrics_t  m;

    ngx_memzero(&m, sizeof(ngx_http_once_metrics_t));
    m.text.put = ngx_http_once_put;
    m.text.user = page;
    m.text.openmetrics = (int) openmetrics;
    m.omcf = omcf;

    once__metrics_family(&m.text, &once__families[ONCE__FAMILY_BUILD_INFO]);
    ngx_http_once_label_text(&labels[0], ONCE_VERSION);
    ngx_http_once_label_text(&labels[1], NGINX_VERSION);
    once__metrics_value(&m.text, labels, 1);

    for (i = 0; i < ngx_http_once_count(ngx_http_once_of_routes); i++) {
        ngx_http_once_each_route(&m, ngx_http_once_of_routes[i].family,
                                 ngx_http_once_of_routes[i].put,
                                 ngx_http_once_of_routes[i].arg);
    }

    for (i = 0; i < ngx_http_once_count(ngx_http_once_of_stores); i++) {
        ngx_http_once_each_store(&m, ngx_http_once_of_stores[i].family,
                                 ngx_http_once_of_stores[i].put,
                                 ngx_http_once_of_stores[i].arg);
    }

    for (i = 0; i < NGX_HTTP_ONCE_NCOUNTERS; i++) {
        ngx_http_once_each_store(&m, ngx_http_once_counters[i].family,
                                 ngx_http_once_put_counter, i);
    }

    once__metrics_end(&m.text);
}
