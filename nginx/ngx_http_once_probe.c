
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * "once_probe": a claim was answered "unknown", and a subrequest asks the
 * service what became of that record.  Its answer never reaches the client: our
 * filters swallow it, and src/calls/http says whether it counts.  It refuses to
 * ask through a location that a client could reach, or that is guarded.
 *
 * nginx gives a subrequest the headers, the body and the variables of its
 * request.  A service that reads "Content-Length: 7" waits for a body, so the
 * question gets its own of all three.
 */


#include "ngx_http_once_probe.h"
#include "base/bytes.h"


static once__probe_places  ngx_http_once_places;    /* of this process */


typedef struct {
    const char  *text;
    size_t       len;
    ngx_uint_t   prefix;
} ngx_http_once_prefix_t;

#define ngx_http_once_whole_name(text)  { text, sizeof(text) - 1, 0 }
#define ngx_http_once_prefix(text)      { text, sizeof(text) - 1, 1 }


/* of a body, or of a condition on the response */

static const ngx_http_once_prefix_t  ngx_http_once_not_asked[] = {
    ngx_http_once_prefix("content-"),
    ngx_http_once_prefix("if-"),
    ngx_http_once_whole_name("expect"),
    ngx_http_once_whole_name("range"),
    ngx_http_once_whole_name("te"),
    ngx_http_once_whole_name("trailer"),
    ngx_http_once_whole_name("transfer-encoding"),
    ngx_http_once_whole_name("upgrade"),
    ngx_http_once_whole_name("idempotency-attempt"),
    ngx_http_once_whole_name("idempotency-probe"),
    ngx_http_once_whole_name("idempotency-record")
};


/* variables that nginx keeps when it has computed them from the request */

static const ngx_http_once_prefix_t  ngx_http_once_not_shared[] = {
    ngx_http_once_prefix("http_"),
    ngx_http_once_prefix("content_"),
    ngx_http_once_prefix("request_body"),
    ngx_http_once_whole_name("request_length"),
    ngx_http_once_whole_name("request_method")
};


static ngx_uint_t
ngx_http_once_in(ngx_str_t *name, const ngx_http_once_prefix_t *table,
    ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {
        if (name->len >= table[i].len
            && (table[i].prefix || name->len == table[i].len)
            && ngx_strncasecmp(name->data, (u_char *) table[i].text,
                               table[i].len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* --- headers of a request --- */

static ngx_int_t
ngx_http_once_push_to(ngx_list_t *list, ngx_pool_t *pool, const char *name,
    u_char *value, size_t len)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(list);
    if (h == NULL) {
        return NGX_ERROR;
    }

    ngx_http_once_unlink(h);
    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->value.data = value;
    h->value.len = len;

    h->lowcase_key = ngx_pnalloc(pool, h->key.len);
    if (h->lowcase_key == NULL) {
        return NGX_ERROR;
    }

    h->hash = ngx_hash_strlow(h->lowcase_key, h->key.data, h->key.len);

    return NGX_OK;
}


ngx_int_t
ngx_http_once_push_request(ngx_http_request_t *r, const char *name,
    u_char *value, size_t len)
{
    return ngx_http_once_push_to(&r->headers_in.headers, r->pool, name, value,
                                 len);
}


static u_char *
ngx_http_once_record_text(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    u_char  *p;

    p = ngx_pnalloc(r->pool, ONCE__RECORD_TEXT);

    if (p != NULL) {
        once__hex(ctx->name, ONCE_NAME_SIZE, (char *) p);
    }

    return p;
}


ngx_int_t
ngx_http_once_push_record(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    u_char  *p;

    if (!ctx->conf->policy.probe) {
        return NGX_OK;
    }

    p = ngx_http_once_record_text(r, ctx);

    return (p != NULL)
           ? ngx_http_once_push_request(r, ONCE__HEADER_RECORD, p,
                                        ONCE__RECORD_TEXT - 1)
           : NGX_ERROR;
}


/* the client's headers, but for those of a body, and ours */

static ngx_int_t
ngx_http_once_question(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_list_t *list)
{
    u_char                *record, *number;
    ngx_table_elt_t       *h, *copy;
    ngx_http_once_walk_t   walk;

    if (ngx_list_init(list, r->pool, 20, sizeof(ngx_table_elt_t)) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_once_walk(&walk, &r->headers_in.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (ngx_http_once_in(&h->key, ngx_http_once_not_asked,
                             ngx_http_once_count(ngx_http_once_not_asked)))
        {
            continue;
        }

        copy = ngx_list_push(list);
        if (copy == NULL) {
            return NGX_ERROR;
        }

        *copy = *h;
    }

    record = ngx_http_once_record_text(r, ctx);
    number = ngx_pnalloc(r->pool, NGX_INT32_LEN);

    if (record == NULL || number == NULL
        || ngx_http_once_push_to(list, r->pool, ONCE__HEADER_RECORD, record,
                                 ONCE__RECORD_TEXT - 1)
           != NGX_OK
        || ngx_http_once_push_to(list, r->pool, ONCE__HEADER_PROBE,
                                 (u_char *) "1", 1)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_once_push_to(list, r->pool, "Idempotency-Attempt", number,
                                 (size_t) (ngx_sprintf(number, "%uD",
                                                       ctx->probe->number)
                                           - number));
}


/* those of the request, but for what was computed from its head and body */

static ngx_http_variable_value_t *
ngx_http_once_variables(ngx_http_request_t *r)
{
    size_t                      size;
    ngx_uint_t                  i;
    ngx_http_variable_t        *var;
    ngx_http_variable_value_t  *copy;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);
    size = cmcf->variables.nelts * sizeof(ngx_http_variable_value_t);
    copy = ngx_palloc(r->pool, size ? size : 1);

    if (copy == NULL) {
        return NULL;
    }

    ngx_memcpy(copy, r->variables, size);
    var = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {
        if (ngx_http_once_in(&var[i].name, ngx_http_once_not_shared,
                             ngx_http_once_count(ngx_http_once_not_shared)))
        {
            ngx_memzero(&copy[i], sizeof(ngx_http_variable_value_t));
        }
    }

    return copy;
}


static void
ngx_http_once_set_question(ngx_http_request_t *sr, ngx_list_t *list)
{
    ngx_http_headers_in_t  *in;

    in = &sr->headers_in;
    in->headers = *list;

    if (list->last == &list->part) {
        in->headers.last = &in->headers.part;
    }

    in->content_length = NULL;
    in->content_length_n = -1;
    in->content_type = NULL;
    in->transfer_encoding = NULL;
    in->chunked = 0;
    in->expect = NULL;
    in->range = NULL;
    in->if_range = NULL;
    in->if_match = NULL;
    in->if_none_match = NULL;
    in->if_modified_since = NULL;
    in->if_unmodified_since = NULL;
    in->upgrade = NULL;
}


/* --- the answer --- */

ngx_http_once_ctx_t *
ngx_http_once_probe_of(ngx_http_request_t *sr)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = (sr != sr->main) ? ngx_http_once_get_ctx(sr->main) : NULL;

    return (ctx != NULL && ctx->probe != NULL && ctx->probe->request == sr)
           ? ctx : NULL;
}


/* the true end of the service's answer, as for guarded responses */

static void
ngx_http_once_probe_finalize(ngx_http_request_t *sr, ngx_int_t rc)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_probe_of(sr);
    ctx->probe->upstream_rc = rc;
    ctx->probe->finalize(sr, rc);
}


/*
 * Is it the service's own, with an end that cannot be taken for the loss of its
 * connection?
 */

static ngx_uint_t
ngx_http_once_is_own(ngx_http_request_t *sr, ngx_http_once_probe_t *p)
{
    ngx_http_upstream_t  *u;

    u = sr->upstream;

    if (u == NULL || u->cleanup == NULL || u->finalize_request == NULL
        || sr->uri_changes != p->uri_changes
        || u->headers_in.x_accel_redirect != NULL)
    {
        return 0;
    }

#if (NGX_HTTP_CACHE)
    if (sr->cached) {
        return 0;
    }
#endif

    return u->headers_in.content_length_n != -1 || u->headers_in.chunked;
}


/* of the subrequest; the filters below see nothing of it */

ngx_int_t
ngx_http_once_probe_head(ngx_http_request_t *sr, ngx_http_once_ctx_t *ctx)
{
    ngx_table_elt_t        *h;
    ngx_http_upstream_t    *u;
    ngx_http_once_walk_t    walk;
    ngx_http_once_probe_t  *p;

    p = ctx->probe;
    u = sr->upstream;

    sr->header_sent = 1;
    ctx->body_len = 0;
    p->over = 0;
    p->bytes = 0;

    ngx_memzero(&p->reply, sizeof(once__probe_reply));
    p->reply.own = (int) ngx_http_once_is_own(sr, p);

    if (!p->reply.own) {
        return NGX_OK;
    }

    p->length = u->headers_in.content_length_n;
    p->reply.status = (int) u->headers_in.status_n;

    ngx_http_once_walk(&walk, &u->headers_in.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        once__probe_header(&p->reply, ngx_http_once_bytes(&h->key),
                           ngx_http_once_bytes(&h->value));
    }

    if (u->finalize_request != ngx_http_once_probe_finalize) {
        p->finalize = u->finalize_request;
        u->finalize_request = ngx_http_once_probe_finalize;
    }

    return NGX_OK;
}


/* NGX_ERROR: what it says cannot be recorded */

static ngx_int_t
ngx_http_once_probe_encode(ngx_http_request_t *sr, ngx_http_once_ctx_t *ctx,
    int status)
{
    ngx_http_once_probe_t  *p;

    p = ctx->probe;

    sr->headers_out.status = (ngx_uint_t) status;
    ngx_str_null(&sr->headers_out.status_line);

    if (ngx_http_once_bodiless(sr)) {
        ctx->body_len = 0;
        p->over = 0;
    }

    return ngx_http_once_encode(sr, ctx, !p->over, &p->recorded);
}


static void
ngx_http_once_probe_count(ngx_http_once_ctx_t *ctx, int result)
{
    ngx_http_once_route_counts_t  *counts;

    ctx->probe->result = result;
    counts = ngx_http_once_route_counts(ctx->conf);
    (void) ngx_atomic_fetch_add(&counts->probes[result], 1);
}


static int
ngx_http_once_probe_judge(ngx_http_request_t *sr, ngx_http_once_ctx_t *ctx,
    ngx_int_t rc)
{
    int                     result, status;
    ngx_http_once_probe_t  *p;

    p = ctx->probe;

    p->reply.observed = (sr->header_sent && rc == NGX_OK
                         && p->upstream_rc == NGX_OK
                         && (p->length == -1 || p->length == p->bytes))
                        ? ONCE__WHOLE : ONCE__GONE;

    result = once__judge_probe(&p->reply, ctx->name, &status);

    if (result == ONCE__PROBE_APPLIED
        && ngx_http_once_probe_encode(sr, ctx, status) != NGX_OK)
    {
        result = ONCE__PROBE_SILENT;
    }

    return p->refused ? ONCE__PROBE_INVALID : result;
}


/* the subrequest has ended; no page is made for its error */

static ngx_int_t
ngx_http_once_probe_ended(ngx_http_request_t *sr, void *data, ngx_int_t rc)
{
    ngx_http_once_ctx_t *ctx = data;

    int  result;

    if (ctx->probe->request != sr) {
        return rc;
    }

    result = ngx_http_once_probe_judge(sr, ctx, rc);

    ngx_http_once_probe_drop(ctx);
    ngx_http_once_probe_count(ctx, result);
    ctx->body_len = 0;

    /* a client that has left ends the request */

    return (rc == NGX_HTTP_CLIENT_CLOSED_REQUEST) ? rc : NGX_OK;
}


/* --- the question --- */

/*
 * The handler runs with caches off; what it begins has read that by then.  No
 * other request runs meanwhile.
 */

static ngx_int_t
ngx_http_once_probe_handler(ngx_http_request_t *sr)
{
    ngx_http_once_ctx_t  *ctx;

#if (NGX_HTTP_CACHE)

    void                      **loc_conf;
    int                         caches[NGX_HTTP_ONCE_NUPSTREAMS];
    ngx_int_t                   rc;
    ngx_uint_t                  i;
    ngx_module_t               *module;
    ngx_http_upstream_conf_t   *uc;

    loc_conf = sr->loc_conf;
    ctx = ngx_http_once_probe_of(sr);

    for (i = 0; i < NGX_HTTP_ONCE_NUPSTREAMS; i++) {
        module = ngx_http_once_upstreams[i].module;

        if (module != NULL) {
            uc = loc_conf[module->ctx_index];
            caches[i] = uc->cache;
            uc->cache = 0;
        }
    }

    rc = ctx->probe->handler(sr);

    for (i = 0; i < NGX_HTTP_ONCE_NUPSTREAMS; i++) {
        module = ngx_http_once_upstreams[i].module;

        if (module != NULL) {
            uc = loc_conf[module->ctx_index];
            uc->cache = caches[i];
        }
    }

    return rc;

#else

    ctx = ngx_http_once_probe_of(sr);

    return ctx->probe->handler(sr);

#endif
}


/*
 * "$request_method" and "$request_uri" are those of the main request, also in a
 * subrequest: over FastCGI, uwsgi and SCGI the question would arrive as the
 * request itself, and be executed.  So does "proxy_method $request_method".
 */

static ngx_uint_t
ngx_http_once_may_ask(ngx_http_request_t *sr)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_once_loc_conf_t  *olcf;

    clcf = ngx_http_get_module_loc_conf(sr, ngx_http_core_module);
    olcf = ngx_http_get_module_loc_conf(sr, ngx_http_once_module);

    return clcf->internal && olcf->name.len == 0
           && sr->content_handler != NULL
           && sr->content_handler
              == ngx_http_once_upstreams[NGX_HTTP_ONCE_PROXY].handler
           && ngx_http_once_is_page(sr);
}


/* the subrequest is in its location, before anything is sent */

ngx_int_t
ngx_http_once_probe_dispatch(ngx_http_request_t *sr, ngx_http_once_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t  *clcf;

    /* led elsewhere (an error page, a redirect) it would be no question */

    if (sr->uri_changes != ctx->probe->uri_changes) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (sr->content_handler == ngx_http_once_probe_handler) {
        return NGX_DECLINED;
    }

    if (!ngx_http_once_may_ask(sr)) {
        clcf = ngx_http_get_module_loc_conf(sr, ngx_http_core_module);
        ngx_log_error(NGX_LOG_ALERT, sr->connection->log, 0,
                      "once_probe \"%V\": nothing was asked: its location "
                      "\"%V\" has to be \"internal\", to have \"proxy_pass\" "
                      "with GET, and not to be guarded (\"once off\")",
                      ctx->conf->probe, &clcf->name);
        ctx->probe->refused = 1;
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->probe->handler = sr->content_handler;
    sr->content_handler = ngx_http_once_probe_handler;

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_once_probe_ask(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_list_t                    list;
    ngx_http_request_t           *sr;
    ngx_http_once_probe_t        *p;
    ngx_http_request_body_t      *body;
    ngx_http_variable_value_t    *variables;
    ngx_http_post_subrequest_t   *ps;

    p = ctx->probe;

    ps = ngx_palloc(r->pool, sizeof(ngx_http_post_subrequest_t));
    body = ngx_pcalloc(r->pool, sizeof(ngx_http_request_body_t));
    variables = ngx_http_once_variables(r);

    if (ps == NULL || body == NULL || variables == NULL
        || ngx_http_once_question(r, ctx, &list) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ps->handler = ngx_http_once_probe_ended;
    ps->data = ctx;

    if (ngx_http_subrequest(r, ctx->conf->probe, NULL, &sr, ps,
                            NGX_HTTP_SUBREQUEST_WAITED)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    /* it has not run yet */

    sr->request_body = body;
    sr->variables = variables;
    ngx_http_once_set_question(sr, &list);

    p->request = sr;
    p->uri_changes = sr->uri_changes;
    p->upstream_rc = NGX_ERROR;
    p->length = -1;

    return NGX_OK;
}


void
ngx_http_once_probe_offer(ngx_http_once_ctx_t *ctx, int rc)
{
    const once_record      *record;
    ngx_http_once_probe_t  *p;

    record = ngx_http_once_record(ctx);

    if (ctx->probe != NULL
        || !once__may_probe(&ctx->conf->policy, rc, record))
    {
        return;                     /* at most one in a request */
    }

    p = ngx_pcalloc(ctx->request->pool, sizeof(ngx_http_once_probe_t));
    if (p == NULL) {
        return;
    }

    p->fence = record->fence;
    p->number = record->attempt;
    p->place = -1;
    p->result = -1;

    ctx->probe = p;
    ctx->state = NGX_HTTP_ONCE_PROBE;
}


ngx_int_t
ngx_http_once_probe(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    once_bytes *result)
{
    ngx_http_once_probe_t  *p;

    p = ctx->probe;

    if (p->request != NULL) {
        return NGX_AGAIN;
    }

    if (p->result != -1) {
        *result = p->recorded;
        return (p->result == ONCE__PROBE_APPLIED) ? NGX_OK : NGX_DECLINED;
    }

    p->place = once__probe_enter(&ngx_http_once_places, ctx->name,
                                 ngx_current_msec);

    if (p->place >= 0 && ngx_http_once_probe_ask(r, ctx) == NGX_OK) {
        return NGX_AGAIN;
    }

    ngx_http_once_probe_drop(ctx);
    ngx_http_once_probe_count(ctx, ONCE__PROBE_BUSY);

    return NGX_DECLINED;
}


/* also when the request goes before its probe has ended */

void
ngx_http_once_probe_drop(ngx_http_once_ctx_t *ctx)
{
    ngx_http_once_probe_t  *p;

    p = ctx->probe;

    if (p == NULL) {
        return;
    }

    p->request = NULL;

    if (p->place >= 0) {
        once__probe_leave(&ngx_http_once_places, p->place);
        p->place = -1;
    }
}
