
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The page of "once_status", as JSON or as Prometheus text.  It only reads the
 * counters, and shows no key, no scope and no path.
 */


#include "ngx_http_once_status.h"


static ngx_int_t ngx_http_once_status_handler(ngx_http_request_t *r);
static u_char *ngx_http_once_json(u_char *p, ngx_http_once_main_conf_t *omcf);
static u_char *ngx_http_once_prometheus(u_char *p,
    ngx_http_once_main_conf_t *omcf);


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
