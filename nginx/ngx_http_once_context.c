
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The context of a guarded request: how it is made, found again after an
 * internal redirect, and let go with its request; and walks over headers.  It
 * decides nothing, and knows no file above it.
 */


#include "ngx_http_once_context.h"


static void ngx_http_once_cleanup(void *data);


ngx_http_once_ctx_t *
ngx_http_once_create_ctx(ngx_http_request_t *r,
    ngx_http_once_loc_conf_t *olcf, ngx_http_once_leave_pt leave)
{
    ngx_pool_cleanup_t   *cln;
    ngx_http_once_ctx_t  *ctx;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_once_ctx_t));
    if (cln == NULL) {
        return NULL;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_once_ctx_t));

    ctx->request = r;
    ctx->conf = olcf;
    ctx->leave = leave;
    ctx->method = r->method;
    ctx->http_version = r->http_version;
    ctx->upstream_before = r->upstream;
    ctx->states_before = r->upstream_states ? r->upstream_states->nelts : 0;
    ctx->timer.data = r->connection;    /* as nginx's debug lines have it */
    ctx->timer.log = r->connection->log;

    cln->handler = ngx_http_once_cleanup;
    ngx_http_set_ctx(r, ctx, ngx_http_once_module);

    return ctx;
}


/* the request's pool goes */

static void
ngx_http_once_cleanup(void *data)
{
    ngx_http_once_ctx_t  *ctx = data;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ctx->leave(ctx);

    once__fingerprint_free(ctx->fingerprint);
    once__json_clear(&ctx->json);

    if (ctx->body != NULL) {
        ngx_free(ctx->body);
    }
}


ngx_http_once_ctx_t *
ngx_http_once_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t   *cln;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_once_module);

    if (ctx == NULL && (r->internal || r->filter_finalize)) {

        /* internal redirects clear the contexts, as realip knows too */

        for (cln = r->pool->cleanup; cln; cln = cln->next) {
            if (cln->handler == ngx_http_once_cleanup) {
                ctx = cln->data;
                ngx_http_set_ctx(r, ctx, ngx_http_once_module);
                break;
            }
        }
    }

    return ctx;
}


/* --- headers --- */

/* to the response; name and value are borrowed until the request ends */

ngx_table_elt_t *
ngx_http_once_push_header(ngx_http_request_t *r, once_bytes name,
    once_bytes value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NULL;
    }

    h->hash = 0;
    ngx_http_once_unlink(h);
    h->key.data = (u_char *) name.data;
    h->key.len = name.size;
    h->value.data = (u_char *) value.data;
    h->value.len = value.size;

    h->lowcase_key = ngx_pnalloc(r->pool, h->key.len);
    if (h->lowcase_key == NULL) {
        return NULL;
    }

    h->hash = ngx_hash_strlow(h->lowcase_key, h->key.data, h->key.len);

    if (h->hash == 0) {
        h->hash = 1;
    }

    return h;
}


ngx_int_t
ngx_http_once_add_header(ngx_http_request_t *r, const char *name,
    const char *value)
{
    once_bytes  n, v;

    n.data = name;
    n.size = ngx_strlen(name);
    v.data = value;
    v.size = ngx_strlen(value);

    return ngx_http_once_push_header(r, n, v) ? NGX_OK : NGX_ERROR;
}


ngx_int_t
ngx_http_once_add_status(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    return ngx_http_once_add_header(r, "Idempotency-Status",
                                    once__status_text(ctx->decision.header));
}


/* our headers do not come from the upstream */

void
ngx_http_once_strip_headers(ngx_http_request_t *r)
{
    ngx_table_elt_t       *h;
    ngx_http_once_walk_t   walk;

    ngx_http_once_walk(&walk, &r->headers_out.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (once__header_internal(ngx_http_once_bytes(&h->key))) {
            h->hash = 0;
        }
    }
}
