
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * What became of a request: the content handler of "once_lookup".  It asks the
 * store once, or, while the request is in flight, until the time of "?wait=" is
 * over.  It refuses to take a request that is guarded, and it claims nothing,
 * changes nothing and knows no hot replay.
 */


#include "ngx_http_once_lookup.h"
#include "ngx_http_once_answer.h"


static void ngx_http_once_lookup_told(ngx_http_once_ctx_t *ctx, int rc);


/* the request is freed: nobody waits for the answer any more */

static void
ngx_http_once_lookup_leave(ngx_http_once_ctx_t *ctx)
{
    ngx_http_once_abandon(ctx, ONCE__NOT_SENT);
}


static void
ngx_http_once_lookup_timeout(ngx_event_t *ev)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = (ngx_http_once_ctx_t *)
              ((u_char *) ev - offsetof(ngx_http_once_ctx_t, timer));

    ngx_log_error(NGX_LOG_ALERT, ev->log, 0,
                  "once: the engine did not answer a lookup");
    ngx_http_once_abandon(ctx, ONCE__NOT_SENT);
    ngx_http_once_lookup_told(ctx, ONCE_ESTORE);
}


static ngx_int_t
ngx_http_once_lookup_send(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_ONCE_ANSWER;

    return ngx_http_once_answer_handler(r);
}


static ngx_int_t
ngx_http_once_lookup_refuse(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    int problem)
{
    ctx->decision = once__decide_lookup_refusal(problem);

    return ngx_http_once_lookup_send(r, ctx);
}


/* the store has answered "rc", or was not asked */

static ngx_int_t
ngx_http_once_lookup_answer(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    int rc)
{
    once_error  err;

    ctx->decision = once__decide_lookup(rc, ngx_http_once_record(ctx),
                                        &ctx->replay, &err);

    if (err.text[0]) {
        ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                      "once: record %s: %s", ctx->key_hash, err.text);
    }

    if (ctx->decision.next == ONCE__NEXT_TELL
        && ngx_http_once_tell(r, ctx, rc, ngx_http_once_record(ctx)) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_once_lookup_send(r, ctx);
}


static void
ngx_http_once_lookup_told(ngx_http_once_ctx_t *ctx, int rc)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ctx->request;
    c = r->connection;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_set_log_request(c->log, r);

    ngx_http_finalize_request(r, ngx_http_once_lookup_answer(r, ctx, rc));
    ngx_http_run_posted_requests(c);
}


static ngx_int_t
ngx_http_once_lookup_ask(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_msec_t                 limit;
    once_request               request;
    ngx_http_once_loc_conf_t  *olcf;

    olcf = ctx->conf;

    once__request_fill(&olcf->policy, ctx->name, ctx->digest, ctx->group,
                       &request);

    /* a worker that was told to quit keeps no client waiting */

    limit = ngx_exiting ? 0 : olcf->lookup->wait;
    request.wait_ms = once__lookup_wait(ngx_http_once_bytes(&r->args),
                                        (uint32_t) limit);

    if (ngx_http_once_peek(ctx, &request, ngx_http_once_lookup_told)
        != NGX_OK)
    {
        return ngx_http_once_lookup_answer(r, ctx, ONCE_ESTORE);
    }

    ctx->state = NGX_HTTP_ONCE_PASS;

    r->main->count++;
    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    /* as for a claim: a second lock, if the engine should not answer */

    ctx->timer.handler = ngx_http_once_lookup_timeout;
    ngx_add_timer(&ctx->timer,
                  request.wait_ms + 4 * olcf->store->timeout + 30000);

    return NGX_DONE;
}


/* only for its caller's own eyes, and only by the key that the caller knows */

static ngx_int_t
ngx_http_once_lookup_find(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    int        problem;
    ngx_int_t  rc;
    ngx_str_t  raw;

    problem = ONCE__NO_PROBLEM;
    rc = ngx_http_once_find_key(r, ctx->conf, &raw);

    if (rc == NGX_DECLINED) {
        return ngx_http_once_lookup_refuse(r, ctx, ONCE__PROBLEM_KEY_MISSING);
    }

    if (rc == NGX_ABORT) {
        ctx->detail = "There is more than one Idempotency-Key line.";
        return ngx_http_once_lookup_refuse(r, ctx, ONCE__PROBLEM_KEY_INVALID);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_once_name_of(r, ctx, &raw, &problem);
    }

    if (rc == NGX_DECLINED) {
        return ngx_http_once_lookup_refuse(r, ctx, problem);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_once_lookup_ask(r, ctx);
}


static ngx_int_t
ngx_http_once_lookup_not_allowed(ngx_http_request_t *r)
{
    if (ngx_http_once_add_header(r, "Allow", "GET, HEAD") != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return NGX_HTTP_NOT_ALLOWED;
}


ngx_int_t
ngx_http_once_lookup_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    ngx_http_once_ctx_t       *ctx;
    ngx_http_once_loc_conf_t  *olcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return ngx_http_once_lookup_not_allowed(r);
    }

    if (r != r->main || ngx_http_once_get_ctx(r) != NULL) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "once: a subrequest, or a guarded request, was led into "
                      "\"once_lookup\" and was refused");
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    olcf = ngx_http_get_module_loc_conf(r, ngx_http_once_module);

    ctx = ngx_http_once_create_ctx(r, olcf->lookup->conf,
                                   ngx_http_once_lookup_leave);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_once_lookup_find(r, ctx);
}
