
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * What is known about the upstream: whether it got the request, whether its
 * head and its body came whole, what it says of the effect.  And what is
 * changed in nginx's upstream module so that this can be known, and so that no
 * request is sent twice.  It refuses to judge: src/calls/http does.
 */


#include "ngx_http_once_upstream.h"


/* what is changed in a location while its content handler runs */

typedef struct {
    ngx_http_upstream_conf_t     upstreams[NGX_HTTP_ONCE_NUPSTREAMS];
    size_t                       slice;
} ngx_http_once_passing_conf_t;


/*
 * What the FastCGI module keeps of a response begins like this in every nginx
 * since 0.8.55.  The record that it read last is all we want to know.
 */

typedef struct {
    unsigned     state;
    u_char      *pos;
    u_char      *last;
    ngx_uint_t   type;
    size_t       length;
    size_t       padding;
} ngx_http_once_fastcgi_t;

#define NGX_HTTP_ONCE_FASTCGI_IN_RECORD  8  /* the record's header was read */
#define NGX_HTTP_ONCE_FASTCGI_END        3  /* FCGI_END_REQUEST */
#define NGX_HTTP_ONCE_FASTCGI_STDOUT     6


#define ngx_http_once_is_of(u, module)                                        \
    (&module != NULL && (u)->output.tag == (ngx_buf_tag_t) &module)


/* in each of them an upstream configuration is the first member of the conf */

ngx_http_once_upstream_t  ngx_http_once_upstreams[] = {
    { &ngx_http_grpc_module, "grpc", "grpc_pass", NULL, NULL, NULL },
    { &ngx_http_proxy_module, "proxy", "proxy_pass", "HTTP/1.0",
      "proxy_method", NULL },
    { &ngx_http_fastcgi_module, "fastcgi", "fastcgi_pass", NULL,
      "fastcgi_param", NULL },
    { &ngx_http_uwsgi_module, "uwsgi", "uwsgi_pass", "uwsgi", "uwsgi_param",
      NULL },
    { &ngx_http_scgi_module, "scgi", "scgi_pass", "SCGI", "scgi_param", NULL }
};


/* --- the method on the wire --- */

/* the last REQUEST_METHOD, as the application sees it */

static ngx_int_t
ngx_http_once_param_method(ngx_conf_t *cf, ngx_array_t *params,
    ngx_http_complex_value_t **method)
{
    ngx_uint_t                  i;
    ngx_http_upstream_param_t  *param;

    static ngx_str_t  name = ngx_string("REQUEST_METHOD");

    param = params->elts;

    for (i = params->nelts; i; i--) {
        if (ngx_http_once_same(&param[i - 1].key, &name)) {
            *method = ngx_http_once_compile(cf, &param[i - 1].value, NULL);
            return *method ? NGX_OK : NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* of the module that passes on what comes to this location, or NULL */

ngx_http_once_upstream_t *
ngx_http_once_upstream_of(ngx_http_once_loc_conf_t *olcf)
{
    ngx_uint_t  i;

    for (i = 0; olcf->handler && i < NGX_HTTP_ONCE_NUPSTREAMS; i++) {
        if (olcf->handler == ngx_http_once_upstreams[i].handler) {
            return &ngx_http_once_upstreams[i];
        }
    }

    return NULL;
}


/* when the location has been merged: these modules stand before ours */

ngx_int_t
ngx_http_once_set_wire(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf)
{
    void                      *member, *conf;
    ngx_uint_t                 i;
    ngx_command_t             *cmd;
    ngx_http_once_upstream_t  *upstream;

    for (i = 0; i < NGX_HTTP_ONCE_NUPSTREAMS; i++) {
        upstream = &ngx_http_once_upstreams[i];

        if (upstream->module == NULL || upstream->method == NULL) {
            continue;
        }

        cmd = ngx_http_once_command(upstream->module, upstream->method);

        if (cmd == NULL) {
            continue;
        }

        conf = ngx_http_conf_get_module_loc_conf(cf, (*upstream->module));
        member = *(void **) ((u_char *) conf + cmd->offset);

        if (member == NULL || member == NGX_CONF_UNSET_PTR) {
            continue;
        }

        if (upstream->module == &ngx_http_proxy_module) {
            olcf->wire[i] = member;

        } else if (ngx_http_once_param_method(cf, member, &olcf->wire[i])
                   != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/*
 * Does the content handler of this location ask for a page, or could what it
 * sends be taken for the request?  What the upstream reads is what counts.
 */

ngx_uint_t
ngx_http_once_is_page(ngx_http_request_t *r)
{
    ngx_str_t                  method;
    ngx_uint_t                 i;
    ngx_http_once_loc_conf_t  *olcf;

    olcf = ngx_http_get_module_loc_conf(r, ngx_http_once_module);
    method = r->method_name;

    for (i = 0; i < NGX_HTTP_ONCE_NUPSTREAMS; i++) {

        if (r->content_handler == NULL
            || r->content_handler != ngx_http_once_upstreams[i].handler
            || olcf->wire[i] == NULL)
        {
            continue;
        }

        if (ngx_http_complex_value(r, olcf->wire[i], &method) != NGX_OK) {
            return 0;
        }
    }

    return (method.len == 3 && ngx_strncmp(method.data, "GET", 3) == 0)
           || (method.len == 4 && ngx_strncmp(method.data, "HEAD", 4) == 0)
           || (method.len == 7 && ngx_strncmp(method.data, "OPTIONS", 7) == 0);
}


/* does "dav_methods" of this location have one of these? */

ngx_uint_t
ngx_http_once_dav(void **loc_conf, ngx_uint_t methods)
{
    ngx_uint_t  *dav;

    if (&ngx_http_dav_module == NULL) {
        return 0;
    }

    dav = loc_conf[ngx_http_dav_module.ctx_index];  /* methods */

    return (*dav & methods) != 0;
}


/* --- facts --- */

/* not that of an unguarded location, from which the request came */

ngx_http_upstream_t *
ngx_http_once_own_upstream(ngx_http_once_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = ctx->request->upstream;

    return (u != ctx->upstream_before) ? u : NULL;
}


static off_t
ngx_http_once_bytes_sent(ngx_http_once_ctx_t *ctx)
{
    off_t                       sent;
    ngx_uint_t                  i;
    ngx_http_request_t         *r;
    ngx_http_upstream_t        *u;
    ngx_http_upstream_state_t  *state;

    r = ctx->request;
    u = ngx_http_once_own_upstream(ctx);
    sent = 0;

    if (r->upstream_states != NULL) {
        state = r->upstream_states->elts;

        for (i = ctx->states_before; i < r->upstream_states->nelts; i++) {
            sent += state[i].bytes_sent;
        }
    }

    if (u != NULL && u->peer.connection != NULL) {
        sent += u->peer.connection->sent;
    }

    return sent;
}


/* may the request have had an effect? */

ngx_uint_t
ngx_http_once_was_sent(ngx_http_once_ctx_t *ctx)
{
    if (ctx->tries == ONCE__REFUSED) {
        return 1;
    }

    if (ctx->tries == ONCE__DECIDED) {
        return ctx->observed != ONCE__NOT_SENT;
    }

    if (ctx->tries == ONCE__TRIED && ngx_http_once_own_upstream(ctx) == NULL) {
        return 1;       /* a content handler that is no upstream */
    }

    return ngx_http_once_bytes_sent(ctx) > 0;
}


ngx_uint_t
ngx_http_once_head_whole(ngx_http_upstream_t *u)
{
    return u->state != NULL && u->state->header_time != (ngx_msec_t) -1;
}


/* what the service has said of its effect, by its status and its header */

void
ngx_http_once_note_shown(ngx_http_once_ctx_t *ctx)
{
    ngx_table_elt_t       *h;
    ngx_http_upstream_t   *u;
    ngx_http_once_walk_t   walk;

    u = ngx_http_once_own_upstream(ctx);

    if (u == NULL) {
        ctx->upstream_status = (ctx->handler_rc >= NGX_HTTP_SPECIAL_RESPONSE)
                               ? (ngx_uint_t) ctx->handler_rc
                               : NGX_HTTP_INTERNAL_SERVER_ERROR;
        return;
    }

    ctx->upstream_status = u->headers_in.status_n;
    ngx_http_once_walk(&walk, &u->headers_in.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (ngx_http_once_is_header(h, "Idempotency-Outcome")) {
            ctx->outcome = ngx_http_once_bytes(&h->value);
        }
    }
}


/*
 * What is known if the request ends now?  When nginx went on to a page or to
 * the target of X-Accel-Redirect, the service had answered, and only what shows
 * its answer is missing.
 */

int
ngx_http_once_known(ngx_http_once_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = ngx_http_once_own_upstream(ctx);

    if (ctx->tries == ONCE__DECIDED) {
        return (ctx->observed == ONCE__WHOLE) ? ONCE__UNSTORABLE
                                              : ctx->observed;
    }

    if (ctx->tries == ONCE__TRIED && ctx->state == NGX_HTTP_ONCE_OWNER
        && u != NULL && ngx_http_once_bytes_sent(ctx) > 0
        && ngx_http_once_head_whole(u))
    {
        ngx_http_once_note_shown(ctx);
        return ONCE__UNSTORABLE;
    }

    return ngx_http_once_was_sent(ctx) ? ONCE__GONE : ONCE__NOT_SENT;
}


/*
 * Did the upstream ask for the location we are in?  Its X-Accel-Redirect may
 * have been ignored or in vain, and then an error page has led here.  Only to
 * named locations does nginx take the method along.
 */

ngx_uint_t
ngx_http_once_asked(ngx_http_request_t *r, ngx_http_upstream_t *u)
{
    ngx_table_elt_t           *h;
    ngx_http_core_loc_conf_t  *clcf;

    h = u->headers_in.x_accel_redirect;

    if (h == NULL || h->value.len == 0 || h->value.data[0] != '@'
        || (u->conf->ignore_headers & NGX_HTTP_UPSTREAM_IGN_XA_REDIRECT))
    {
        return 0;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    return ngx_http_once_same(&h->value, &clcf->name);
}


/* it was sent, and no whole head came of it: why? */

int
ngx_http_once_cause(ngx_http_once_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = ngx_http_once_own_upstream(ctx);

    if (u == NULL || u->state == NULL) {
        return ONCE__GONE;
    }

    if (u->state->status == NGX_HTTP_GATEWAY_TIME_OUT) {
        return ONCE__TIMED_OUT;
    }

    return u->state->bytes_received ? ONCE__BAD_RESPONSE : ONCE__RESET;
}


static int
ngx_http_once_observe_head(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_http_upstream_t *u)
{
    /* after X-Accel-Redirect or an intercepted error the head was whole */

    if (u->cleanup == NULL && !ngx_http_once_head_whole(u)) {
        return ngx_http_once_cause(ctx);
    }

    /* what is shown may be another one: "error_page 405 @pay" */

    ngx_http_once_note_shown(ctx);

    if (r->http_version != ctx->http_version) {

        /* not HTTP: nginx takes it for HTTP/0.9, and would answer so */

        r->http_version = ctx->http_version;
        return ONCE__BAD_RESPONSE;
    }

    return ONCE__WHOLE;
}


/*
 * What do we know when a response begins?  "cleanup" is set while the upstream
 * module is at work: the response is the upstream's own.  Otherwise nginx made
 * it, and the state of the last peer says why.
 */

int
ngx_http_once_observe(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    if (ctx->tries == ONCE__DECIDED) {
        return ctx->observed;      /* this is the error page */
    }

    ctx->upstream_status = r->headers_out.status;

    if (ctx->tries == ONCE__REFUSED) {
        return ctx->observed;
    }

    u = ngx_http_once_own_upstream(ctx);

    if (u == NULL) {

        /*
         * A content handler of another kind: what it says is the outcome, and
         * not what a page says for it.  Before it has run, nginx itself speaks,
         * and nothing was done.
         */

        if (ctx->tries == ONCE__TRIED
            && ctx->handler_rc >= NGX_HTTP_SPECIAL_RESPONSE)
        {
            ngx_http_once_note_shown(ctx);
        }

        return (ctx->tries == ONCE__TRIED) ? ONCE__WHOLE : ONCE__NOT_SENT;
    }

#if (NGX_HTTP_CACHE)

    if (r->cached && !ctx->page) {

        /* it answers another request; this one may have been sent or not */

        return ONCE__BAD_RESPONSE;
    }

#endif

    return ngx_http_once_bytes_sent(ctx) > 0
           ? ngx_http_once_observe_head(r, ctx, u) : ONCE__NOT_SENT;
}


/* --- one dispatch, and not more --- */

static void
ngx_http_once_narrow(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_http_upstream_conf_t *uc)
{
    uc->ignore_client_abort = 1;

#if (nginx_version >= 1027002 && !(angie_version))
    uc->pass_trailers = 0;      /* they would not be repeated */
#endif

    if (ctx->page) {
        return;
    }

    if (r->method & NGX_HTTP_ONCE_NOT_REPEATED) {
        uc->next_upstream &= ~NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT;

    } else {
        uc->next_upstream = NGX_CONF_BITMASK_SET|NGX_HTTP_UPSTREAM_FT_OFF;
    }

#if (NGX_HTTP_CACHE)
    uc->cache = 0;
#endif
}


/* "set $x $slice_range" has made slices of the response already */

void
ngx_http_once_clear_slices(ngx_http_request_t *r)
{
    if (&ngx_http_slice_filter_module != NULL) {
        ngx_http_set_ctx(r, NULL, ngx_http_slice_filter_module);
    }
}


static void
ngx_http_once_lend(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    void **loc_conf, ngx_http_once_passing_conf_t *saved)
{
    size_t                    *slice;
    ngx_uint_t                 i;
    ngx_module_t              *module;
    ngx_http_upstream_conf_t  *uc;

    for (i = 0; i < NGX_HTTP_ONCE_NUPSTREAMS; i++) {
        module = ngx_http_once_upstreams[i].module;

        if (module != NULL) {
            uc = loc_conf[module->ctx_index];
            saved->upstreams[i] = *uc;
            ngx_http_once_narrow(r, ctx, uc);
        }
    }

    if (&ngx_http_slice_filter_module != NULL) {

        /* it sends copies of the request, one for each part of the response */

        slice = loc_conf[ngx_http_slice_filter_module.ctx_index];
        saved->slice = *slice;
        *slice = 0;
    }

    ngx_http_once_clear_slices(r);
}


static void
ngx_http_once_restore(void **loc_conf, ngx_http_once_passing_conf_t *saved)
{
    ngx_uint_t     i;
    ngx_module_t  *module;

    for (i = 0; i < NGX_HTTP_ONCE_NUPSTREAMS; i++) {
        module = ngx_http_once_upstreams[i].module;

        if (module != NULL) {
            *(ngx_http_upstream_conf_t *) loc_conf[module->ctx_index]
                = saved->upstreams[i];
        }
    }

    if (&ngx_http_slice_filter_module != NULL) {
        *(size_t *) loc_conf[ngx_http_slice_filter_module.ctx_index]
            = saved->slice;
    }
}


/*
 * Over HTTP/2 nginx ends a request whose client has left as soon as it goes on
 * to a page, and the response would be lost.  So it must not see that until the
 * response begins.  Nothing is sent before that.
 */

static void
ngx_http_once_hide_loss(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    if (r->connection->error && ctx->state == NGX_HTTP_ONCE_OWNER) {
        r->connection->error = 0;
        ctx->client_left = 1;
    }
}


/* the client has left while a handler without an upstream is at work */

static void
ngx_http_once_block_reading(ngx_http_request_t *r)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r);

    if (ctx != NULL) {
        ngx_http_once_hide_loss(r, ctx);
    }

    ngx_http_block_reading(r);
}


/* the service has answered, and nginx goes on to what shows its answer */

static void
ngx_http_once_finalize_unshown(ngx_http_request_t *r, ngx_int_t rc)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r);
    ctx->finalize(r, rc);

    if ((rc == NGX_DECLINED || rc >= NGX_HTTP_SPECIAL_RESPONSE)
        && ngx_http_once_bytes_sent(ctx) > 0
        && ngx_http_once_head_whole(r->upstream))
    {
        ngx_http_once_hide_loss(r, ctx);
    }
}


/*
 * Whatever block of the configuration the request is in: its upstream gets a
 * configuration of its own, by which nginx neither repeats the request, nor
 * drops it with its client, nor answers it from a cache.
 *
 * The upstream begins to work while the content handler runs, and nothing of
 * ours is called between.  So the configuration that the handler will use is
 * changed for as long as the handler runs: no other request runs meanwhile.
 * Then the upstream gets the changed copy.
 */

static ngx_int_t
ngx_http_once_content_handler(ngx_http_request_t *r)
{
    void                        **loc_conf;
    ngx_int_t                     rc;
    ngx_http_once_ctx_t          *ctx;
    ngx_http_upstream_t          *u;
    ngx_http_upstream_conf_t     *own;
    ngx_http_once_passing_conf_t  saved;

    ctx = ngx_http_once_get_ctx(r);

    own = ngx_palloc(r->pool, sizeof(ngx_http_upstream_conf_t));
    if (own == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* a redirect inside of the handler changes the request's */

    loc_conf = r->loc_conf;
    u = r->upstream;

    if (ctx->tries <= ONCE__TRIED) {

        /* what was tried before it has sent nothing, and says nothing of it */

        ctx->tries = ONCE__TRIED;
        ctx->upstream_before = u;
    }

    ngx_http_once_lend(r, ctx, loc_conf, &saved);
    rc = ctx->content_handler(r);
    ngx_http_once_restore(loc_conf, &saved);

    ctx->handler_rc = (r->upstream == u) ? rc : NGX_OK;

    if (r->upstream == u && rc == NGX_DONE
        && r->read_event_handler == ngx_http_block_reading)
    {
        r->read_event_handler = ngx_http_once_block_reading;
    }

    if (r->upstream != u && r->upstream->conf != NULL
        && r->upstream->conf != ctx->upstream_conf)
    {
        *own = *r->upstream->conf;
        ngx_http_once_narrow(r, ctx, own);

        ctx->upstream_conf = own;
        r->upstream->conf = own;

        if (r->upstream->finalize_request != NULL
            && r->upstream->cleanup != NULL)
        {
            ctx->finalize = r->upstream->finalize_request;
            r->upstream->finalize_request = ngx_http_once_finalize_unshown;
        }
    }

    return rc;
}


void
ngx_http_once_wrap(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    if (r->content_handler != ngx_http_once_content_handler) {
        ctx->content_handler = r->content_handler;
        r->content_handler = ngx_http_once_content_handler;
    }
}


/* --- the end of the response --- */

/*
 * nginx found no fault with the end of the response.  Is it one, or has the
 * connection been lost?
 */

static ngx_uint_t
ngx_http_once_at_end(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_http_once_fastcgi_t  *f;

    if (ctx->broken) {
        return 0;
    }

    if (!ngx_http_once_is_of(r->upstream, ngx_http_fastcgi_module)) {
        return 1;
    }

    f = ngx_http_get_module_ctx(r, ngx_http_fastcgi_module);

    return f != NULL && f->type == NGX_HTTP_ONCE_FASTCGI_END
           && f->state >= NGX_HTTP_ONCE_FASTCGI_IN_RECORD;
}


/* the true end of the upstream's response: 0, 502, 504, NGX_ERROR, ... */

static void
ngx_http_once_finalize_upstream(ngx_http_request_t *r, ngx_int_t rc)
{
    ngx_connection_t     *c;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r);
    ctx->upstream_rc = rc;

    /* in the middle of a body that nginx buffers, it says 502 of both */

    c = r->upstream->peer.connection;

    if (rc == NGX_HTTP_BAD_GATEWAY && c != NULL && c->read->timedout) {
        ctx->upstream_rc = NGX_HTTP_GATEWAY_TIME_OUT;
    }

    ctx->finalize(r, rc);

    if (rc != NGX_OK || ngx_http_once_at_end(r, ctx)) {
        return;
    }

    ctx->upstream_rc = NGX_HTTP_BAD_GATEWAY;

    if ((ctx->state == NGX_HTTP_ONCE_MARK || ctx->state == NGX_HTTP_ONCE_SENT
         || ctx->state == NGX_HTTP_ONCE_PASS)
        && !ctx->conf->dry_run)
    {
        /*
         * A part of it has left, or will.  nginx closes the connection after
         * the rest, as it does when it sees by itself that a stream breaks
         * off, and sends no last chunk.
         */

        r->keepalive = 0;
        (void) ngx_http_send_special(r, NGX_HTTP_FLUSH);
        r->upstream->pipe->downstream_error = 1;
    }
}


/* more than was declared, where a connection carries one response only */

static void
ngx_http_once_excess(ngx_http_once_ctx_t *ctx, ngx_http_upstream_t *u,
    off_t bytes, off_t length)
{
    if (u->headers_in.content_length_n != -1 && bytes > length
        && (ngx_http_once_is_of(u, ngx_http_uwsgi_module)
            || ngx_http_once_is_of(u, ngx_http_scgi_module)))
    {
        ctx->broken = 1;
    }
}


static ngx_int_t
ngx_http_once_filter(void *data, ssize_t bytes)
{
    ngx_http_request_t *r = data;

    ngx_http_once_ctx_t  *ctx;
    ngx_http_upstream_t  *u;

    u = r->upstream;
    ctx = ngx_http_once_get_ctx(r);

    if (ctx->broken) {
        return NGX_OK;          /* what follows is no part of the response */
    }

    ngx_http_once_excess(ctx, u, bytes, u->length);

    if (ctx->filter(data, bytes) == NGX_ERROR) {
        ctx->broken = 1;
        u->error = 1;
    }

    if (u->error) {
        u->length = 1;          /* the end of the connection is not its end */
    }

    return NGX_OK;
}


/*
 * nginx goes when FastCGI's stdout ends; the end of the request follows it, and
 * its head may be cut in two by the end of the buffer.  A record of stdout with
 * a length is more than was declared.
 */

static ngx_uint_t
ngx_http_once_end_follows(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_http_once_fastcgi_t  *f;

    if (!ngx_http_once_is_of(r->upstream, ngx_http_fastcgi_module)) {
        return 0;
    }

    f = ngx_http_get_module_ctx(r, ngx_http_fastcgi_module);

    return !(f->type == NGX_HTTP_ONCE_FASTCGI_STDOUT && f->length > 0)
           && !ngx_http_once_at_end(r, ctx);
}


static ngx_int_t
ngx_http_once_pipe_filter(ngx_event_pipe_t *p, ngx_buf_t *buf)
{
    ngx_http_once_ctx_t  *ctx;
    ngx_http_request_t   *r;

    r = p->input_ctx;
    ctx = ngx_http_once_get_ctx(r);

    if (ctx->broken) {
        return NGX_OK;
    }

    ngx_http_once_excess(ctx, r->upstream, buf->last - buf->pos, p->length);

    if (ctx->pipe_filter(p, buf) == NGX_ERROR) {
        ctx->broken = 1;
        p->upstream_error = 1;
        return NGX_OK;
    }

    if (p->upstream_done && ngx_http_once_end_follows(r, ctx)) {
        p->upstream_done = 0;
    }

    return NGX_OK;
}


/*
 * A body that does not parse (a bad chunk size) would end the request at once,
 * even before its header has left.  Instead the upstream has broken off there.
 * The parsers are set when the body begins, hence the detour.
 */

static ngx_int_t
ngx_http_once_filter_init(void *data)
{
    ngx_http_request_t *r = data;

    ngx_int_t             rc;
    ngx_http_once_ctx_t  *ctx;
    ngx_http_upstream_t  *u;

    u = r->upstream;
    ctx = ngx_http_once_get_ctx(r);

    rc = ctx->filter_init(data);

    ctx->filter = u->input_filter;
    u->input_filter = ngx_http_once_filter;

    if (u->pipe != NULL) {
        ctx->pipe_filter = u->pipe->input_filter;
        u->pipe->input_filter = ngx_http_once_pipe_filter;
    }

    return rc;
}


/* has to be called when the header of a response is there */

void
ngx_http_once_watch(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u == NULL || u->finalize_request == NULL
        || u->finalize_request == ngx_http_once_finalize_upstream)
    {
        return;
    }

    if (u->finalize_request != ngx_http_once_finalize_unshown) {
        ctx->finalize = u->finalize_request;
    }

    u->finalize_request = ngx_http_once_finalize_upstream;

    /* a module of another process may have a context of its own */

    if (u->input_filter_init != NULL && u->input_filter_ctx == r
        && (u->pipe == NULL || u->pipe->input_ctx == r))
    {
        ctx->filter_init = u->input_filter_init;
        u->input_filter_init = ngx_http_once_filter_init;
    }
}
