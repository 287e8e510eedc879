
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The response of an owner: held, collected, judged, recorded, and only then
 * sent.  Our filters are the topmost ones, so that what is stored is what the
 * upstream sent, and every other filter works on replays as on the original.
 * It refuses to send a byte before the record is durable, also one of an
 * interim response.
 */


#include "ngx_http_once_capture.h"
#include "calls/engine/failpoint.h"


#define ngx_http_once_is_status(n)  ((n) >= NGX_HTTP_OK && (n) <= 599)


static ngx_http_output_header_filter_pt  ngx_http_once_next_header_filter;
static ngx_http_output_body_filter_pt    ngx_http_once_next_body_filter;
#if (nginx_version >= 1029000)
static ngx_http_output_header_filter_pt  ngx_http_once_next_early_hints_filter;
#endif


/* the whole response is recorded, and the whole response is repeated */

static void
ngx_http_once_want_whole(ngx_http_request_t *r)
{
    r->allow_ranges = 0;
    r->disable_not_modified = 1;

    /* ssi, addition and slice ask for it in header filters that run late */

    r->preserve_body = 1;
}


/*
 * A stream is passed on part by part, and not kept.  It has the type of one,
 * or the upstream or the configuration has it unbuffered; in the latter case
 * a declared length says that it is none.
 */

static ngx_uint_t
ngx_http_once_streams(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    if (once__type_streams(ngx_http_once_bytes(&r->headers_out.content_type)))
    {
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


static void
ngx_http_once_decide_end(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    int rc)
{
    once__http_end  end;

    end.action = ctx->verdict.action;
    end.observed = ctx->observed;
    end.status = (int) ctx->upstream_status;
    end.has_own = !ctx->not_shown;
    end.rc = rc;
    end.record = ngx_http_once_record(ctx);

    ctx->decision = once__decide_end(&ctx->conf->policy, &end, &ctx->replay);
}


static ngx_int_t
ngx_http_once_send_marked(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_int_t     rc;
    ngx_chain_t  *cl;

    ctx->state = NGX_HTTP_ONCE_SENT;

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


static void
ngx_http_once_consume(ngx_chain_t *cl)
{
    for ( /* void */ ; cl; cl = cl->next) {
        cl->buf->pos = cl->buf->last;
        cl->buf->file_pos = cl->buf->file_last;
    }
}


static ngx_int_t
ngx_http_once_set_own(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_buf_t *b)
{
    b->pos = ctx->body;
    b->last = ctx->body + ctx->body_len;

    if (!ngx_http_once_bodiless(r)) {
        ngx_http_clear_content_length(r);
        r->headers_out.content_length_n = (off_t) ctx->body_len;
    }

    return ngx_http_once_mark_new(r, ctx);
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

    /* in MARK the upstream may still send; that is dropped */

    ctx->state = (ctx->state == NGX_HTTP_ONCE_MARK) ? NGX_HTTP_ONCE_DROP
                                                    : NGX_HTTP_ONCE_SENT;
    ngx_http_once_consume(ctx->held);
    ctx->held = NULL;

    /* what came behind the body is not recorded */

    r->headers_out.trailers.part.nelts = 0;
    r->headers_out.trailers.part.next = NULL;
    r->headers_out.trailers.last = &r->headers_out.trailers.part;

    /* nginx has switched it off if the upstream broke off; ours is whole */

    r->keepalive = ctx->keepalive;

    ret = (ctx->decision.next == ONCE__NEXT_REPLAY)
          ? ngx_http_once_set_replay(r, ctx, b)
          : (ctx->decision.next == ONCE__NEXT_PROBLEM)
          ? ngx_http_once_set_problem(r, ctx, b)
          : ngx_http_once_set_own(r, ctx, b);

    if (ret != NGX_OK) {
        return NGX_ERROR;
    }

    ONCE_FAILPOINT("reply");

    ret = ngx_http_once_next_header_filter(r);

    if (ret == NGX_ERROR || ret > NGX_OK) {
        return ret;
    }

    if (r->header_only) {
        b->pos = b->last;
    }

    ngx_http_once_whole(b, &out);

    ret = ngx_http_once_next_body_filter(r, &out);

    ONCE_FAILPOINT("replied");

    return ret;
}


/*
 * Ends the upstream module's work, because nobody gets the rest.  It holds the
 * only reference to a request at which it works, and drops it: hence one more.
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


/* the engine has reported what became of the end */

void
ngx_http_once_stored(ngx_http_once_ctx_t *ctx, int rc)
{
    ngx_int_t            ret;
    ngx_uint_t           own, dead, failed;
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

    own = (ctx->decision.next == ONCE__NEXT_OWN);
    dead = (ctx->state == NGX_HTTP_ONCE_MARK && !own);

    ret = (ctx->state == NGX_HTTP_ONCE_MARK && own)
          ? ngx_http_once_send_marked(r, ctx) : ngx_http_once_send_held(r, ctx);

    /* after an error: a header filter below us may want another response */

    failed = (ret == NGX_ERROR || ret > NGX_OK);

    if (((failed || dead) && ngx_http_once_end_upstream(r)) || failed) {
        ngx_http_finalize_request(r, ret);

    } else {
        r->write_event_handler(r);
    }

    ngx_http_run_posted_requests(c);
}


/*
 * The engine reports at the latest when the lease has expired.  That is too
 * long for a release or for giving up: they wait for the timeout of the store.
 * An outcome waits for three quarters of send_timeout, but not shorter than
 * that timeout and not longer than the lease.  nginx's own timer for sending is
 * off meanwhile, because nothing is being sent.
 */

static void
ngx_http_once_limit_wait(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_msec_t                 time;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    time = ctx->conf->store->timeout;

    if (once__verdict_keeps(ctx->verdict)) {
        time = ngx_max(time, clcf->send_timeout - clcf->send_timeout / 4);
        time = ngx_min(time, ctx->conf->lease + 1000);
    }

    r->connection->write->delayed = 1;

    if (r->connection->write->timer_set) {
        ngx_del_timer(r->connection->write);
    }

    ngx_add_timer(&ctx->timer, time);
}


static ngx_int_t
ngx_http_once_store_end(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_http_once_state_e state)
{
    once_bytes  bytes;

    ctx->state = state;
    ctx->verdict = once__judge(ctx->observed, (int) ctx->upstream_status,
                               ctx->outcome, &ctx->conf->policy.rules);
    bytes.data = NULL;
    bytes.size = 0;

    if (once__verdict_keeps(ctx->verdict)
        && ngx_http_once_encode(r, ctx,
                                ctx->verdict.action == ONCE__DO_COMPLETE,
                                &bytes)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_once_finish(ctx, ctx->verdict, bytes, ngx_http_once_stored)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_once_limit_wait(r, ctx);
    r->buffered |= NGX_HTTP_ONCE_BUFFERED;

    return NGX_OK;
}


/*
 * Streamed, or too large to keep: make "completed, not kept" durable, and let
 * the response pass after that.  What is not consumed makes the event pipe
 * wait.
 */

static ngx_int_t
ngx_http_once_mark(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_chain_t *in)
{
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

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

    if (ngx_http_once_store_end(r, ctx, NGX_HTTP_ONCE_MARK) != NGX_OK) {
        return NGX_ERROR;
    }

    return in ? NGX_AGAIN : NGX_OK;
}


static ngx_int_t
ngx_http_once_hold(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ONCE_FAILPOINT("response-head");

    if (ctx->tries == ONCE__DECIDED
        && (r->http_version != ctx->http_version
            || !ngx_http_once_is_status(r->headers_out.status)))
    {
        /* a page that is not HTTP cannot be shown, like one without a head */

        r->http_version = ctx->http_version;
        return NGX_HTTP_BAD_GATEWAY;
    }

    if (ctx->client_left) {
        r->connection->error = 1;
        ctx->client_left = 0;
    }

    ctx->observed = ngx_http_once_observe(r, ctx);

    if (ctx->observed == ONCE__WHOLE
        && !(ngx_http_once_is_status(ctx->upstream_status)
             && ngx_http_once_is_status(r->headers_out.status)))
    {
        ctx->observed = ONCE__BAD_RESPONSE;    /* 101: nobody asked for it */
    }

    ctx->observed = once__observe_status(ctx->observed,
                                         (int) ctx->upstream_status,
                                         ctx->outcome,
                                         &ctx->conf->policy.rules);

    ctx->state = NGX_HTTP_ONCE_HOLD;
    ctx->keepalive = r->keepalive;
    ctx->length = r->headers_out.content_length_n;
    ctx->body_len = 0;

    if (ngx_http_once_set_last_modified(r) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_once_want_whole(r);
    ngx_http_once_watch(r, ctx);

    if ((ctx->observed != ONCE__WHOLE && ctx->observed != ONCE__SERVICE_LOST)
        || !ngx_http_once_streams(r, ctx))
    {
        return NGX_OK;
    }

    if (r->upstream != NULL) {
        r->upstream->buffering = 0;
    }

    return ngx_http_once_mark(r, ctx, NULL);
}


static ngx_int_t
ngx_http_once_header_filter(ngx_http_request_t *r)
{
    ngx_http_once_ctx_t       *ctx;
    ngx_http_once_loc_conf_t  *olcf;

    if (r != r->main) {
        ctx = ngx_http_once_probe_of(r);

        return ctx ? ngx_http_once_probe_head(r, ctx)
                   : ngx_http_once_next_header_filter(r);
    }

    ctx = ngx_http_once_get_ctx(r);
    olcf = ngx_http_get_module_loc_conf(r, ngx_http_once_module);

    switch (ctx ? ctx->state : NGX_HTTP_ONCE_REJECTED) {

    case NGX_HTTP_ONCE_OWNER:
    case NGX_HTTP_ONCE_HOLD:

        /* HOLD: a handler that failed after its header begins a second one */

        return ngx_http_once_hold(r, ctx);

    case NGX_HTTP_ONCE_PASS:
        if (ctx->decision.header == ONCE__STATUS_UNPROTECTED) {
            ngx_http_once_strip_headers(r);

            if (ngx_http_once_add_status(r, ctx) != NGX_OK) {
                return NGX_ERROR;
            }

            break;
        }

        /* fall through */

    case NGX_HTTP_ONCE_REJECTED:
        if (olcf->store != NULL) {
            ngx_http_once_strip_headers(r);
        }

        break;

    default:
        break;
    }

    return ngx_http_once_next_header_filter(r);
}


#if (nginx_version >= 1029000)

/*
 * Lines of a 103 are the service's own, and the outcome is not recorded yet:
 * they are dropped.
 */

static ngx_int_t
ngx_http_once_early_hints_filter(ngx_http_request_t *r)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = (r == r->main) ? ngx_http_once_get_ctx(r) : NULL;

    if (ctx != NULL
        && (ctx->state == NGX_HTTP_ONCE_OWNER
            || ctx->state == NGX_HTTP_ONCE_HOLD))
    {
        return NGX_OK;
    }

    return ngx_http_once_next_early_hints_filter(r);
}

#endif


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


/* a page, or the target of X-Accel-Redirect, does not decide */

static void
ngx_http_once_broke_off(ngx_http_once_ctx_t *ctx, int observed)
{
    if (ctx->observed != ONCE__WHOLE) {
        return;
    }

    if (ctx->tries == ONCE__DECIDED) {
        ctx->not_shown = 1;
        observed = ONCE__UNSTORABLE;
    }

    ctx->observed = observed;
}


/* the response has ended, whole or not */

static ngx_int_t
ngx_http_once_end(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ONCE_FAILPOINT("response-end");

    if (ctx->length != -1 && ctx->length != (off_t) ctx->body_len
        && !ngx_http_once_bodiless(r))
    {
        ngx_http_once_broke_off(ctx, ONCE__TRUNCATED);
    }

    return ngx_http_once_store_end(r, ctx, NGX_HTTP_ONCE_STORE) == NGX_OK
           ? NGX_AGAIN : NGX_ERROR;
}


static ngx_int_t
ngx_http_once_take_part(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_chain_t *in)
{
    size_t       size;
    ngx_buf_t   *b;
    ngx_uint_t   last, unseen;

    /* a problem is sent in its place */

    unseen = (once__is_broken(ctx->observed) && !ctx->conf->dry_run);
    last = 0;

    for ( /* void */ ; in; in = in->next) {
        b = in->buf;
        size = (ngx_buf_special(b) || unseen) ? 0 : (size_t) ngx_buf_size(b);

        if (ctx->body_len + size > ctx->conf->max_response) {
            return ngx_http_once_mark(r, ctx, in);
        }

        if (size && ngx_http_once_collect(r, ctx, b, size) != NGX_OK) {
            return NGX_ERROR;
        }

        /* consumed: the buffers go back to the pipe */

        b->pos = b->last;
        b->file_pos = b->file_last;
        last |= b->last_buf;
    }

    if (ctx->upstream_rc >= NGX_HTTP_SPECIAL_RESPONSE) {

        /* the upstream broke off, and nothing has been sent yet */

        ngx_http_once_broke_off(ctx,
            (ctx->upstream_rc == NGX_HTTP_GATEWAY_TIME_OUT)
            ? ONCE__TIMED_OUT
            : ctx->broken ? ONCE__BAD_RESPONSE : ONCE__TRUNCATED);

        last = 1;
    }

    return last ? ngx_http_once_end(r, ctx) : NGX_OK;
}


/* of a probe's answer: nothing of it goes on */

static ngx_int_t
ngx_http_once_probe_part(ngx_http_request_t *sr, ngx_http_once_ctx_t *ctx,
    ngx_chain_t *in)
{
    size_t                  size;
    ngx_chain_t            *cl;
    ngx_http_once_probe_t  *p;

    p = ctx->probe;

    for (cl = in; cl; cl = cl->next) {
        size = ngx_buf_special(cl->buf) ? 0 : (size_t) ngx_buf_size(cl->buf);
        p->bytes += size;
        p->over |= (ctx->body_len + size > ctx->conf->max_response);

        if (size && !p->over
            && ngx_http_once_collect(sr, ctx, cl->buf, size) != NGX_OK)
        {
            p->over = 1;
        }
    }

    ngx_http_once_consume(in);

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_http_once_ctx_t  *ctx;

    if (r != r->main) {
        ctx = ngx_http_once_probe_of(r);

        return ctx ? ngx_http_once_probe_part(r, ctx, in)
                   : ngx_http_once_next_body_filter(r, in);
    }

    ctx = ngx_http_get_module_ctx(r, ngx_http_once_module);

    switch (ctx ? ctx->state : NGX_HTTP_ONCE_PASS) {

    case NGX_HTTP_ONCE_HOLD:
        return ngx_http_once_take_part(r, ctx, in);

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
        if (in != NULL) {
            ngx_http_once_consume(in);
            return NGX_OK;
        }

        /* fall through */

    default:
        return ngx_http_once_next_body_filter(r, in);
    }
}


void
ngx_http_once_capture_init(void)
{
    ngx_http_once_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_once_header_filter;

    ngx_http_once_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_once_body_filter;

#if (nginx_version >= 1029000)
    ngx_http_once_next_early_hints_filter = ngx_http_top_early_hints_filter;
    ngx_http_top_early_hints_filter = ngx_http_once_early_hints_filter;
#endif
}
