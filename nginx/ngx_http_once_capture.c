
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The response of an owner: held, collected, judged, recorded, and only then
 * sent.  Our filters are the topmost ones, so that what is stored is what the
 * upstream sent, and every other filter works on replays as on the original.
 */


#include "ngx_http_once.h"
#include "engine/failpoint.h"


static ngx_int_t ngx_http_once_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_once_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_int_t ngx_http_once_hold(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
static ngx_uint_t ngx_http_once_streams(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
static ngx_uint_t ngx_http_once_bodiless(ngx_http_request_t *r);
static int ngx_http_once_hear(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
static void ngx_http_once_finalize_upstream(ngx_http_request_t *r,
    ngx_int_t rc);
static ngx_int_t ngx_http_once_filter_init(void *data);
static ngx_int_t ngx_http_once_filter(void *data, ssize_t bytes);
static ngx_int_t ngx_http_once_pipe_filter(ngx_event_pipe_t *p,
    ngx_buf_t *buf);
static void ngx_http_once_excess(ngx_http_once_ctx_t *ctx,
    ngx_http_upstream_t *u, off_t bytes, off_t length);
static ngx_uint_t ngx_http_once_at_end(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
static void ngx_http_once_consume(ngx_chain_t *cl);
static ngx_int_t ngx_http_once_collect(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, ngx_buf_t *b, size_t size);
static ngx_int_t ngx_http_once_read(ngx_buf_t *b, u_char *p, size_t size);
static ngx_int_t ngx_http_once_mark(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, ngx_chain_t *in);
static void ngx_http_once_be_patient(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
static ngx_int_t ngx_http_once_do(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
static ngx_uint_t ngx_http_once_end_upstream(ngx_http_request_t *r);
static ngx_int_t ngx_http_once_send_held(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
static ngx_int_t ngx_http_once_send_marked(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);


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


#define ngx_http_once_is_status(n)  ((n) >= NGX_HTTP_OK && (n) <= 599)


#define ngx_http_once_is_of(u, module)                                        \
    (&module != NULL && (u)->output.tag == (ngx_buf_tag_t) &module)


ngx_http_output_header_filter_pt  ngx_http_once_next_header_filter;
ngx_http_output_body_filter_pt    ngx_http_once_next_body_filter;


void
ngx_http_once_capture_init(void)
{
    ngx_http_once_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_once_header_filter;

    ngx_http_once_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_once_body_filter;
}


static ngx_int_t
ngx_http_once_header_filter(ngx_http_request_t *r)
{
    ngx_http_once_ctx_t       *ctx;
    ngx_http_once_loc_conf_t  *olcf;

    if (r != r->main) {
        return ngx_http_once_next_header_filter(r);
    }

    ctx = ngx_http_once_get_ctx(r);

    /* a handler that failed behind its header begins a second response */

    if (ctx != NULL
        && (ctx->state == NGX_HTTP_ONCE_OWNER
            || ctx->state == NGX_HTTP_ONCE_HOLD))
    {
        return ngx_http_once_hold(r, ctx);
    }

    if (ctx != NULL && ctx->state == NGX_HTTP_ONCE_PASS
        && ctx->decision.header == ONCE__STATUS_UNPROTECTED)
    {
        ngx_http_once_strip_headers(r);

        if (ngx_http_once_add_status(r, ctx) != NGX_OK) {
            return NGX_ERROR;
        }

        return ngx_http_once_next_header_filter(r);
    }

    olcf = ngx_http_get_module_loc_conf(r, ngx_http_once_module);

    if (olcf->store != NULL
        && (ctx == NULL
            || (ctx->state == NGX_HTTP_ONCE_PASS && !ctx->ours)))
    {
        ngx_http_once_strip_headers(r);
    }

    return ngx_http_once_next_header_filter(r);
}


static ngx_int_t
ngx_http_once_hold(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    ONCE_FAILPOINT("response-head");

    if (ctx->decided && !ctx->refused
        && (r->http_version != ctx->http_version
            || !ngx_http_once_is_status(r->headers_out.status)))
    {
        /* a page that is not HTTP cannot be shown, like one without a head */

        r->http_version = ctx->http_version;
        return NGX_HTTP_BAD_GATEWAY;
    }

    u = r->upstream;

    ctx->observed = ngx_http_once_hear(r, ctx);

    if (ctx->observed == ONCE__WHOLE
        && !(ngx_http_once_is_status(ctx->upstream_status)
             && ngx_http_once_is_status(r->headers_out.status)))
    {
        ctx->observed = ONCE__BROKEN;      /* 101: nobody asked for it */
    }

    ctx->state = NGX_HTTP_ONCE_HOLD;
    ctx->keepalive = r->keepalive;
    ctx->length = r->headers_out.content_length_n;
    ctx->body_len = 0;
    ctx->last = 0;

    /* ssi, addition and slice ask for it in header filters that run late */

    r->preserve_body = 1;

    if (ngx_http_once_set_last_modified(r) != NGX_OK) {
        return NGX_ERROR;
    }

    /* the whole response is recorded, and the whole response is repeated */

    r->allow_ranges = 0;
    r->disable_not_modified = 1;

    if (u != NULL && u->finalize_request != NULL
        && u->finalize_request != ngx_http_once_finalize_upstream)
    {
        ctx->finalize = u->finalize_request;
        u->finalize_request = ngx_http_once_finalize_upstream;

        /* a module of somebody else may have a context of its own */

        if (u->input_filter_init != NULL && u->input_filter_ctx == r
            && (u->pipe == NULL || u->pipe->input_ctx == r))
        {
            ctx->filter_init = u->input_filter_init;
            u->input_filter_init = ngx_http_once_filter_init;
        }
    }

    if (ctx->observed == ONCE__WHOLE && ngx_http_once_streams(r, ctx)) {
        if (u != NULL) {
            u->buffering = 0;
        }

        return ngx_http_once_mark(r, ctx, NULL);
    }

    return NGX_OK;
}


/*
 * A stream is passed on part by part, and not kept.  It has the type of one,
 * or the upstream or the configuration wants it unbuffered; in the latter case
 * a declared length says that it is none.
 */

static ngx_uint_t
ngx_http_once_streams(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    once_bytes            type;
    ngx_http_upstream_t  *u;

    type.data = r->headers_out.content_type.data;
    type.size = r->headers_out.content_type.len;

    if (once__type_streams(type)) {
        return 1;
    }

    u = r->upstream;

    if (u == NULL || u->cleanup == NULL || u->buffering
        || ngx_http_once_bodiless(r))
    {
        return 0;
    }

    return u->conf->buffering || ctx->length == -1;
}


static ngx_uint_t
ngx_http_once_bodiless(ngx_http_request_t *r)
{
    return r->headers_out.status == NGX_HTTP_NO_CONTENT
           || r->headers_out.status == NGX_HTTP_NOT_MODIFIED;
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


static ngx_int_t
ngx_http_once_pipe_filter(ngx_event_pipe_t *p, ngx_buf_t *buf)
{
    ngx_http_once_ctx_t      *ctx;
    ngx_http_request_t       *r;
    ngx_http_once_fastcgi_t  *f;

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

    if (p->upstream_done
        && ngx_http_once_is_of(r->upstream, ngx_http_fastcgi_module))
    {
        /*
         * nginx goes when stdout ends; the end of the request follows it, and
         * its head may be cut in two by the end of the buffer.  A record of
         * stdout with a length is more than was declared.
         */

        f = ngx_http_get_module_ctx(r, ngx_http_fastcgi_module);

        if (!(f->type == NGX_HTTP_ONCE_FASTCGI_STDOUT && f->length > 0)
            && !ngx_http_once_at_end(r, ctx))
        {
            p->upstream_done = 0;
        }
    }

    return NGX_OK;
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


/*
 * What do we know when a response begins?  "cleanup" is set while the upstream
 * module is at work: the response is the upstream's own.  Otherwise nginx made
 * it, and the state of the last peer tells why.
 */

static int
ngx_http_once_hear(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (ctx->decided && !ctx->refused) {
        return ctx->observed;      /* this is the error page */
    }

    ctx->upstream_status = r->headers_out.status;

    if (ctx->refused) {
        return ONCE__BROKEN;
    }

    if (u == NULL || u == ctx->upstream_before) {

        /*
         * A content handler of another kind: what it says is the outcome.
         * Before it has run, nginx itself speaks, and nothing was done.
         */

        return ctx->reached ? ONCE__WHOLE : ONCE__NOT_SENT;
    }

#if (NGX_HTTP_CACHE)

    if (r->cached && r->method == ctx->method) {

        /* it answers another request; this one may have been sent or not */

        return ONCE__BROKEN;
    }

#endif

    if (ngx_http_once_bytes_sent(ctx) == 0) {
        return ONCE__NOT_SENT;
    }

    if (u->cleanup == NULL) {

        /* after X-Accel-Redirect or an intercepted error the head was whole */

        if (!ngx_http_once_head_whole(u)) {
            return ONCE__BROKEN;
        }
    }

    /* what is shown may be another one: "error_page 405 @pay" */

    ctx->upstream_status = u->headers_in.status_n;

    if (r->http_version != ctx->http_version) {

        /* not HTTP: nginx takes it for HTTP/0.9, and would answer so */

        r->http_version = ctx->http_version;
        return ONCE__BROKEN;
    }

    ngx_http_once_find_word(u, &ctx->word);

    return ONCE__WHOLE;
}


ngx_uint_t
ngx_http_once_head_whole(ngx_http_upstream_t *u)
{
    return u->state != NULL && u->state->header_time != (ngx_msec_t) -1;
}


void
ngx_http_once_find_word(ngx_http_upstream_t *u, once_bytes *word)
{
    ngx_table_elt_t       *h;
    ngx_http_once_walk_t   walk;

    ngx_http_once_walk(&walk, &u->headers_in.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (h->key.len == sizeof("Idempotency-Outcome") - 1
            && ngx_strncasecmp(h->key.data,
                               (u_char *) "Idempotency-Outcome",
                               h->key.len)
               == 0)
        {
            word->data = h->value.data;
            word->size = h->value.len;
        }
    }
}


/* the true end of the upstream's response: 0, 502, 504, NGX_ERROR, ... */

static void
ngx_http_once_finalize_upstream(ngx_http_request_t *r, ngx_int_t rc)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r);
    ctx->upstream_rc = rc;

    ctx->finalize(r, rc);

    if (rc != NGX_OK || ngx_http_once_at_end(r, ctx)) {
        return;
    }

    ctx->upstream_rc = NGX_HTTP_BAD_GATEWAY;

    if ((ctx->state == NGX_HTTP_ONCE_MARK || ctx->state == NGX_HTTP_ONCE_PASS)
        && !ctx->conf->dry_run)
    {
        /*
         * A part of it has left, or will.  nginx closes the connection behind
         * the rest, as it does when it sees by itself that a stream breaks
         * off, and sends no last chunk.
         */

        r->keepalive = 0;
        (void) ngx_http_send_special(r, NGX_HTTP_FLUSH);
        r->upstream->pipe->downstream_error = 1;
    }
}


static ngx_int_t
ngx_http_once_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    size_t                size;
    ngx_buf_t            *b;
    ngx_uint_t            unseen;
    ngx_chain_t          *cl;
    ngx_http_once_ctx_t  *ctx;

    if (r != r->main) {
        return ngx_http_once_next_body_filter(r, in);
    }

    ctx = ngx_http_get_module_ctx(r, ngx_http_once_module);

    if (ctx == NULL) {
        return ngx_http_once_next_body_filter(r, in);
    }

    switch (ctx->state) {

    case NGX_HTTP_ONCE_HOLD:
        break;

    case NGX_HTTP_ONCE_MARK:
        if (in != NULL
            && ngx_chain_add_copy(r->pool, &ctx->held, in) != NGX_OK)
        {
            return NGX_ERROR;
        }

        return NGX_AGAIN;

    case NGX_HTTP_ONCE_STORE:
        return NGX_AGAIN;       /* a spurious write event */

    case NGX_HTTP_ONCE_DROP:
        if (in == NULL) {
            return ngx_http_once_next_body_filter(r, in);
        }

        ngx_http_once_consume(in);
        return NGX_OK;

    default:
        return ngx_http_once_next_body_filter(r, in);
    }

    /* a problem will stand in its place */

    unseen = (ctx->observed == ONCE__BROKEN && !ctx->conf->dry_run);

    for (cl = in; cl; cl = cl->next) {
        b = cl->buf;
        size = (size_t) ngx_buf_size(b);

        if (ngx_buf_special(b) || unseen) {
            size = 0;
        }

        if (ctx->body_len + size > ctx->conf->max_response) {
            return ngx_http_once_mark(r, ctx, cl);
        }

        if (size && ngx_http_once_collect(r, ctx, b, size) != NGX_OK) {
            return NGX_ERROR;
        }

        /* consumed: the buffers go back to the pipe */

        b->pos = b->last;
        b->file_pos = b->file_last;

        if (b->last_buf) {
            ctx->last = 1;
        }
    }

    if (ctx->upstream_rc >= NGX_HTTP_SPECIAL_RESPONSE) {

        /* it died in the middle, and nothing has been sent yet */

        if (ctx->observed == ONCE__WHOLE) {
            ctx->observed = ONCE__BROKEN;
        }

        ctx->last = 1;
    }

    if (!ctx->last) {
        return NGX_OK;
    }

    if (ctx->observed == ONCE__WHOLE && ctx->length != -1
        && ctx->length != (off_t) ctx->body_len
        && !ngx_http_once_bodiless(r))
    {
        ctx->observed = ONCE__BROKEN;      /* not what was declared */
    }

    return ngx_http_once_do(r, ctx);
}


static void
ngx_http_once_consume(ngx_chain_t *cl)
{
    for ( /* void */ ; cl; cl = cl->next) {
        cl->buf->pos = cl->buf->last;
        cl->buf->file_pos = cl->buf->file_last;
    }
}


static ngx_int_t
ngx_http_once_collect(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_buf_t *b, size_t size)
{
    off_t    length;
    size_t   room;
    u_char  *p;

    if (ctx->body_len + size > ctx->body_size) {
        length = r->headers_out.content_length_n;
        room = ngx_max(2 * ctx->body_size, ctx->body_len + size);

        if (length > (off_t) room
            && length <= (off_t) ctx->conf->max_response)
        {
            room = (size_t) length;
        }

        p = realloc(ctx->body, room);
        if (p == NULL) {
            return NGX_ERROR;
        }

        ctx->body = p;
        ctx->body_size = room;
    }

    p = ctx->body + ctx->body_len;

    if (ngx_buf_in_memory(b)) {
        ngx_memcpy(p, b->pos, size);

    } else if (ngx_http_once_read(b, p, size) != NGX_OK) {
        return NGX_ERROR;
    }

    ctx->body_len += size;

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_read(ngx_buf_t *b, u_char *p, size_t size)
{
    ssize_t      n;
    ngx_file_t  *file;

    file = b->file;

    /* under "directio" only aligned parts could be read, and only so */

    if (file->directio && ngx_directio_off(file->fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, file->log, ngx_errno,
                      ngx_directio_off_n " \"%s\" failed", file->name.data);
        return NGX_ERROR;
    }

    n = ngx_read_file(file, p, size, b->file_pos);

    if (file->directio && ngx_directio_on(file->fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, file->log, ngx_errno,
                      ngx_directio_on_n " \"%s\" failed", file->name.data);
        return NGX_ERROR;
    }

    return (n == (ssize_t) size) ? NGX_OK : NGX_ERROR;
}


/*
 * Streamed, or too large to keep: make "completed, not kept" durable, and let
 * the response pass behind that.  What is not consumed makes the event pipe
 * wait.
 */

static ngx_int_t
ngx_http_once_mark(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_chain_t *in)
{
    ngx_buf_t     *b;
    ngx_chain_t   *cl;
    once_bytes     bytes;
    once__verdict  verdict;

    if (ctx->body_len) {
        b = ngx_calloc_buf(r->pool);
        cl = ngx_alloc_chain_link(r->pool);

        if (b == NULL || cl == NULL) {
            return NGX_ERROR;
        }

        b->pos = ctx->body;
        b->last = ctx->body + ctx->body_len;
        b->memory = 1;
        cl->buf = b;
        cl->next = NULL;
        ctx->held = cl;
    }

    if (in != NULL && ngx_chain_add_copy(r->pool, &ctx->held, in) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->observed == ONCE__WHOLE) {
        ctx->observed = ONCE__UNSTORABLE;
    }

    ctx->state = NGX_HTTP_ONCE_MARK;

    verdict = once__judge(ctx->observed, (int) ctx->upstream_status, ctx->word,
                          &ctx->conf->policy.rules);
    ctx->action = verdict.action;

    if (ngx_http_once_encode(r, ctx, 0, &bytes) != NGX_OK
        || ngx_http_once_finish(ctx, verdict, bytes) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_once_be_patient(r, ctx);
    r->buffered |= NGX_HTTP_ONCE_BUFFERED;

    return in ? NGX_AGAIN : NGX_OK;
}


/*
 * The engine answers when the lease is over.  Nobody waits so long for a
 * release or a surrender, and who set a shorter send_timeout does not want to
 * wait longer for an outcome, either; but the store has its own time at least.
 * nginx's own timer for sending stands still: nothing is being sent.
 */

static void
ngx_http_once_be_patient(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_msec_t                 time;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    time = ctx->conf->store->timeout;

    if (ctx->action == ONCE__DO_COMPLETE || ctx->action == ONCE__DO_MARK) {
        time = ngx_max(time, clcf->send_timeout - clcf->send_timeout / 4);
        time = ngx_min(time, ctx->conf->lease + 1000);
    }

    r->connection->write->delayed = 1;

    if (r->connection->write->timer_set) {
        ngx_del_timer(r->connection->write);
    }

    ngx_add_timer(&ctx->timer, time);
}


/* the response is whole, or will never be */

static ngx_int_t
ngx_http_once_do(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    once_bytes     bytes;
    once__verdict  verdict;

    ONCE_FAILPOINT("response-end");

    verdict = once__judge(ctx->observed, (int) ctx->upstream_status, ctx->word,
                          &ctx->conf->policy.rules);
    ctx->action = verdict.action;
    ctx->state = NGX_HTTP_ONCE_STORE;

    bytes.data = NULL;
    bytes.size = 0;

    if (verdict.action == ONCE__DO_COMPLETE || verdict.action == ONCE__DO_MARK) {

        if (ngx_http_once_encode(r, ctx, verdict.action == ONCE__DO_COMPLETE,
                                 &bytes)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_once_finish(ctx, verdict, bytes) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_once_be_patient(r, ctx);
    r->buffered |= NGX_HTTP_ONCE_BUFFERED;

    return NGX_AGAIN;
}


/*
 * Nobody will hear the rest.  The upstream module holds the only reference to
 * a request at which it still works, and drops it: hence one more.
 */

static ngx_uint_t
ngx_http_once_end_upstream(ngx_http_request_t *r)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u == NULL || u->cleanup == NULL) {
        return 0;
    }

    r->main->count++;
    (*u->cleanup)(r);

    return 1;
}


static void
ngx_http_once_decide_end(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    int rc)
{
    once__end  end;

    end.action = ctx->action;
    end.observed = ctx->observed;
    end.timed_out = (r->headers_out.status == NGX_HTTP_GATEWAY_TIME_OUT
                     || ctx->upstream_rc == NGX_HTTP_GATEWAY_TIME_OUT);
    end.has_own = 1;
    end.rc = rc;
    end.record = ctx->task ? once_attempt_record(ctx->task->attempt) : NULL;

    ctx->decision = once__decide_end(&ctx->conf->policy, &end, &ctx->replay);
}


/* the engine has answered */

void
ngx_http_once_stored(ngx_http_once_ctx_t *ctx, int rc)
{
    ngx_int_t            ret;
    ngx_uint_t           dead;
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ctx->request;
    c = r->connection;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_set_log_request(c->log, r);

    r->buffered &= ~NGX_HTTP_ONCE_BUFFERED;
    c->write->delayed = 0;

    ngx_http_once_decide_end(r, ctx, rc);

    if (ctx->state == NGX_HTTP_ONCE_MARK
        && ctx->decision.next == ONCE__NEXT_OWN)
    {
        ret = ngx_http_once_send_marked(r, ctx);
        dead = 0;

    } else {
        dead = (ctx->state == NGX_HTTP_ONCE_MARK);
        ret = ngx_http_once_send_held(r, ctx);
    }

    if (ret == NGX_ERROR || ret > NGX_OK) {

        /* a header filter below us may want another response */

        (void) ngx_http_once_end_upstream(r);
        ngx_http_finalize_request(r, ret);

    } else if (dead && ngx_http_once_end_upstream(r)) {
        ngx_http_finalize_request(r, ret);

    } else {
        r->write_event_handler(r);
    }

    ngx_http_run_posted_requests(c);
}


static ngx_int_t
ngx_http_once_send_marked(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_int_t     rc;
    ngx_chain_t  *cl;

    ctx->state = NGX_HTTP_ONCE_PASS;

    if (ngx_http_once_mark_new(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = ngx_http_once_next_header_filter(r);

    if (rc == NGX_ERROR || rc > NGX_OK) {
        return rc;
    }

    /* the pipe calls us again only when the upstream has sent more */

    cl = ctx->held;
    ctx->held = NULL;

    return cl ? ngx_http_once_next_body_filter(r, cl) : NGX_OK;
}


static ngx_int_t
ngx_http_once_send_held(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_int_t     ret;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_ERROR;
    }

    /* in MARK the upstream may go on with what nobody will see */

    ctx->state = (ctx->state == NGX_HTTP_ONCE_MARK) ? NGX_HTTP_ONCE_DROP
                                                    : NGX_HTTP_ONCE_PASS;
    ngx_http_once_consume(ctx->held);
    ctx->held = NULL;

    /* nginx gives up a connection on which it would have to cut a response */

    r->keepalive = ctx->keepalive;

    if (ctx->decision.next == ONCE__NEXT_REPLAY) {
        ret = ngx_http_once_set_replay(r, ctx, b);

    } else if (ctx->decision.next == ONCE__NEXT_PROBLEM) {
        ret = ngx_http_once_set_problem(r, ctx, b);

    } else {
        b->pos = ctx->body;
        b->last = ctx->body + ctx->body_len;

        if (!ngx_http_once_bodiless(r)) {
            ngx_http_clear_content_length(r);
            r->headers_out.content_length_n = (off_t) ctx->body_len;
        }

        ret = ngx_http_once_mark_new(r, ctx);
    }

    if (ret != NGX_OK) {
        return NGX_ERROR;
    }

    ONCE_FAILPOINT("tell");

    ret = ngx_http_once_next_header_filter(r);

    if (ret == NGX_ERROR || ret > NGX_OK) {
        return ret;
    }

    if (r->header_only) {
        b->pos = b->last;
    }

    b->memory = (b->last > b->pos) ? 1 : 0;
    b->last_buf = 1;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    ret = ngx_http_once_next_body_filter(r, &out);

    ONCE_FAILPOINT("told");

    return ret;
}


/* --- at "nginx -t" --- */

static ngx_command_t *
ngx_http_once_command(ngx_module_t *module, const char *name)
{
    ngx_command_t  *cmd;

    for (cmd = module->commands; cmd->name.len; cmd++) {
        if (ngx_strcmp(cmd->name.data, name) == 0) {
            return cmd;
        }
    }

    return NULL;
}


/*
 * Where the end of the connection ends a response, a response that was cut
 * looks like a whole one.  Nobody can tell later, so it is said here.
 */

void
ngx_http_once_warn_of_ends(ngx_conf_t *cf, ngx_http_once_main_conf_t *omcf)
{
    void                     ***locations;
    ngx_uint_t                  i, k, *version;
    ngx_str_t                  *last;
    ngx_command_t              *cmd;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_once_loc_conf_t   *olcf;
    ngx_http_once_upstream_t   *upstream;

    last = NULL;
    locations = omcf->locations.elts;

    for (i = 0; i < omcf->locations.nelts; i++) {
        olcf = locations[i][ngx_http_once_module.ctx_index];
        clcf = locations[i][ngx_http_core_module.ctx_index];

        for (k = 0; k < NGX_HTTP_ONCE_NUPSTREAMS; k++) {
            if (olcf->handler != NULL
                && olcf->handler == ngx_http_once_upstreams[k].handler)
            {
                break;
            }
        }

        /* "if" has the name of the location around it */

        if (k == NGX_HTTP_ONCE_NUPSTREAMS
            || ngx_http_once_upstreams[k].protocol == NULL
            || (last != NULL && last->data == clcf->name.data))
        {
            continue;
        }

        upstream = &ngx_http_once_upstreams[k];
        cmd = ngx_http_once_command(upstream->module, "proxy_http_version");

        if (cmd != NULL) {
            version = (ngx_uint_t *)
                          ((u_char *) locations[i][upstream->module->ctx_index]
                           + cmd->offset);

            if (*version >= NGX_HTTP_VERSION_11) {
                continue;
            }
        }

        last = &clcf->name;

        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "once: over %s the end of a response without "
                      "\"Content-Length\" cannot be told from a lost "
                      "connection: %s for location \"%V\" in %V:%ui",
                      upstream->protocol,
                      cmd ? "use \"proxy_http_version 1.1\""
                          : "let the service send that header",
                      &clcf->name, &olcf->file, olcf->line);
    }
}
