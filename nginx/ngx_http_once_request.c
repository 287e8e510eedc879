
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * From the request to its claim and its dispatch, in the precontent phase:
 * after access control, so that bad credentials never see a replay, and before
 * mirror, try_files and the content handler.  It refuses to guard subrequests
 * and locations without a content handler, and to send a request twice.
 */


#include "ngx_http_once_request.h"
#include "calls/engine/failpoint.h"


static void ngx_http_once_resolved(ngx_http_once_ctx_t *ctx, int rc);


/* the request goes another way, and its answer will not be judged */

static void
ngx_http_once_leave(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_once_abandon(ctx, ngx_http_once_known(ctx));

    if (r->buffered & NGX_HTTP_ONCE_BUFFERED) {
        r->buffered &= ~NGX_HTTP_ONCE_BUFFERED;
        r->connection->write->delayed = 0;
    }
    ctx->state = NGX_HTTP_ONCE_PASS;
}


/*
 * With "underscores_in_headers on" a name has two spellings, which are one to
 * FastCGI, uwsgi and SCGI.
 */

static ngx_uint_t
ngx_http_once_is_stripped(ngx_table_elt_t *h, const char *name)
{
    char        text[32];
    size_t      i;
    once_bytes  b;

    if (h->key.len > sizeof(text)) {
        return 0;
    }

    for (i = 0; i < h->key.len; i++) {
        text[i] = (char) (h->key.data[i] == '_' ? '-' : h->key.data[i]);
    }

    b.data = text;
    b.size = h->key.len;

    if (name != NULL && b.size == ngx_strlen(name)
        && ngx_strncasecmp((u_char *) text, (u_char *) name, b.size) == 0)
    {
        return 1;
    }

    return (ngx_uint_t) once__header_internal(b);
}


/*
 * Headers of ours that the client sent must not reach the upstream, nor those
 * of this name, unless it is NULL.  The list is built again: pointers in
 * headers_in go on pointing to the old elements.
 */

static ngx_int_t
ngx_http_once_strip_request(ngx_http_request_t *r, const char *name)
{
    ngx_list_t             list;
    ngx_table_elt_t       *h, *copy;
    ngx_http_once_walk_t   walk;

    ngx_http_once_walk(&walk, &r->headers_in.headers);

    do {
        h = ngx_http_once_next(&walk);

        if (h == NULL) {
            return NGX_OK;
        }
    } while (!ngx_http_once_is_stripped(h, name));

    if (ngx_list_init(&list, r->pool, 20, sizeof(ngx_table_elt_t)) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_once_walk(&walk, &r->headers_in.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (ngx_http_once_is_stripped(h, name)) {
            continue;
        }

        copy = ngx_list_push(&list);
        if (copy == NULL) {
            return NGX_ERROR;
        }

        *copy = *h;
    }

    r->headers_in.headers = list;

    if (list.last == &list.part) {
        r->headers_in.headers.last = &r->headers_in.headers.part;
    }

    return NGX_OK;
}


/* its response cannot be held, and nobody would repeat it */

static ngx_int_t
ngx_http_once_refuse_sub(ngx_http_request_t *r, ngx_http_once_loc_conf_t *olcf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "once: a %s into location \"%V\" was refused, "
                  "because it cannot be guarded: send it to a location "
                  "with \"once off\"",
                  (r != r->main) ? "subrequest" : "post_action", &clcf->name);

    return olcf->dry_run ? NGX_DECLINED : NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/* the request is freed: the worker brings its attempt to an end */

static void
ngx_http_once_release_ctx(ngx_http_once_ctx_t *ctx)
{
    ngx_http_once_probe_drop(ctx);
    ngx_http_once_abandon(ctx, ngx_http_once_known(ctx));
}


/* what the log is to show of the record that a claim has found or made */

static void
ngx_http_once_note(ngx_http_once_ctx_t *ctx, int rc)
{
    const once_record  *record;

    record = ngx_http_once_record(ctx);

    if (ctx->attempt == 0 || record == NULL) {
        return;
    }

    ctx->fence = record->fence;

    if (rc == ONCE_REPLAY) {
        ctx->ending.outcome = (ctx->replay.flags & ONCE__NO_BODY)
                              ? ONCE__OUTCOME_UNSTORED
                              : once__outcome_of_kind(record->kind);
        ctx->ending.reason = ONCE_REASON_NONE;
        ctx->ended = 1;
    }
}


/* what a dry run would have done: the end of the attempt decides again */

static void
ngx_http_once_note_would(ngx_http_once_ctx_t *ctx, const once_record *record)
{
    ngx_time_t  *tp;

    tp = ngx_timeofday();

    ctx->would = ctx->decision.would;
    ctx->has_apart = once__apart(ctx->would, record,
                                 (uint64_t) tp->sec * 1000 + tp->msec,
                                 &ctx->apart);
}


/* does what was decided before the dispatch */

static void
ngx_http_once_follow(ngx_http_once_ctx_t *ctx)
{
    ctx->state = (ctx->decision.next == ONCE__NEXT_RUN) ? NGX_HTTP_ONCE_OWNER
                 : (ctx->decision.next == ONCE__NEXT_PASS) ? NGX_HTTP_ONCE_PASS
                 : NGX_HTTP_ONCE_ANSWER;
}


static void
ngx_http_once_decide(ngx_http_once_ctx_t *ctx, int rc)
{
    once_error  err;

    ctx->decision = once__decide_claim(&ctx->conf->policy, rc,
                                       ngx_http_once_record(ctx),
                                       ngx_http_once_left(ctx), &ctx->replay,
                                       &err);
    ctx->attempt = ctx->decision.attempt;
    ctx->detail = ctx->decision.detail;

    if (ctx->decision.problem == ONCE__PROBLEM_KEY_REUSED) {
        ctx->detail = once__leads_here(ngx_http_once_record(ctx),
                                       ngx_http_once_path(ctx->request));
    }

    ngx_http_once_note(ctx, rc);
    ngx_http_once_note_would(ctx, ngx_http_once_record(ctx));

    if (ctx->decision.next == ONCE__NEXT_REPLAY) {

        /* of the attempt that did the work */

        ngx_memcpy(ctx->trace, ngx_http_once_record(ctx)->trace,
                   ONCE_TRACE_SIZE);
    }

    if (err.text[0]) {
        ngx_log_error(NGX_LOG_ALERT, ctx->request->connection->log, 0,
                      "once: record %s: %s", ctx->key_hash, err.text);
    }

    if (ctx->decision.next == ONCE__NEXT_TELL) {

        /* without memory the answer is 500: see its handler */

        (void) ngx_http_once_tell(ctx->request, ctx, rc,
                                  ngx_http_once_record(ctx));
    }

    ngx_http_once_follow(ctx);
    ngx_http_once_probe_offer(ctx, rc);
}


static ngx_int_t
ngx_http_once_push_attempt(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    u_char  *p;

    if (ctx->conf->dry_run) {
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, NGX_INT32_LEN);

    if (p == NULL
        || ngx_http_once_push_request(r, "Idempotency-Attempt", p,
               (size_t) (ngx_sprintf(p, "%uD", ctx->attempt) - p))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_once_push_record(r, ctx);
}


static void
ngx_http_once_resume(ngx_http_request_t *r)
{
    ngx_connection_t  *c;

    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    r->write_event_handler = ngx_http_core_run_phases;
    r->read_event_handler = ngx_http_block_reading;

    ngx_http_core_run_phases(r);
    ngx_http_run_posted_requests(c);
}


static void
ngx_http_once_claimed(ngx_http_once_ctx_t *ctx, int rc)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_once_decide(ctx, rc);

    if (ctx->state == NGX_HTTP_ONCE_OWNER) {
        ONCE_FAILPOINT("owner");

        if (ngx_http_once_push_attempt(r, ctx) != NGX_OK) {
            ngx_http_once_abandon(ctx, ONCE__NOT_SENT);
            ctx->state = NGX_HTTP_ONCE_PASS;
            c = r->connection;
            ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
            ngx_http_run_posted_requests(c);
            return;
        }
    }

    ngx_http_once_resume(r);
}


static void
ngx_http_once_timeout(ngx_event_t *ev)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = (ngx_http_once_ctx_t *)
              ((u_char *) ev - offsetof(ngx_http_once_ctx_t, timer));

    if (ctx->state == NGX_HTTP_ONCE_CLAIM) {

        if (ctx->task != NULL) {
            ngx_log_error(NGX_LOG_ALERT, ev->log, 0,
                          "once: the engine did not answer a claim");
            ngx_http_once_abandon(ctx, ONCE__NOT_SENT);
        }

        ngx_http_once_claimed(ctx, ONCE_ESTORE);
        return;
    }

    if (ctx->state == NGX_HTTP_ONCE_DECIDE) {
        ngx_http_once_abandon(ctx, ONCE__NOT_SENT);
        ngx_http_once_resolved(ctx, ONCE_ESTORE);
        return;
    }

    if (ctx->state == NGX_HTTP_ONCE_STORE
        || ctx->state == NGX_HTTP_ONCE_MARK)
    {
        /* the engine goes on trying; the request does not wait longer */

        ngx_http_once_abandon(ctx, ONCE__NOT_SENT);
        ctx->ending = once__verdict_ending(ctx->verdict, ONCE_ESTORE, NULL);
        ctx->ended = 1;
        ngx_http_once_stored(ctx, ONCE_ESTORE);
    }
}


/* an upgrade could not be held until its record is durable */

static ngx_int_t
ngx_http_once_refuse_upgrade(ngx_http_request_t *r)
{
    if (r->headers_in.upgrade == NULL) {
        return NGX_OK;
    }

    r->headers_in.upgrade = NULL;

    return ngx_http_once_strip_request(r, "Upgrade");
}


/* who is it, or what is wrong with it?  "found" is of ngx_http_once_find_key */

static ngx_int_t
ngx_http_once_look(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_int_t found, ngx_str_t *raw)
{
    int        problem;
    ngx_int_t  rc;

    if (found == NGX_OK) {
        rc = ngx_http_once_identify(r, ctx, raw, &problem);

        if (rc == NGX_OK) {
            return ctx->conf->key_json ? NGX_OK
                                       : ngx_http_once_refuse_upgrade(r);
        }

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

    } else if (found == NGX_ABORT) {
        problem = ONCE__PROBLEM_KEY_INVALID;
        ctx->detail = "There is more than one Idempotency-Key line.";

    } else {
        problem = ONCE__PROBLEM_KEY_MISSING;
    }

    ctx->decision = once__decide_refusal(&ctx->conf->policy, problem);
    ngx_http_once_note_would(ctx, NULL);
    ngx_http_once_follow(ctx);

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_answer(ngx_http_request_t *r)
{
    ngx_http_once_clear_slices(r);
    r->content_handler = ngx_http_once_answer_handler;

    return NGX_OK;
}


/* the answer's handler drops the body unread */

static ngx_int_t
ngx_http_once_refuse_upload(ngx_http_request_t *r)
{
    /* no "100 Continue", and then it is unknown whether the body will come */

    if (r->headers_in.expect != NULL && r->request_body == NULL) {
        r->keepalive = 0;
    }

    r->expect_tested = 1;

    return ngx_http_once_answer(r);
}


/* from the handler of the body, in which the phases may still be running */

static void
ngx_http_once_go_on(ngx_http_request_t *r)
{
    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}


static void
ngx_http_once_submit(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_int_t                  rc;
    once_request               request;
    ngx_http_once_loc_conf_t  *olcf;

    olcf = ctx->conf;

    once__request_fill(&olcf->policy, ctx->name, ctx->digest, ctx->group,
                       &request);

    request.label.data = ctx->label;
    request.label.size = ngx_strlen(ctx->label);
    ngx_memcpy(request.trace, ctx->trace, ONCE_TRACE_SIZE);
    request.born_ms = ctx->born;

    ctx->state = NGX_HTTP_ONCE_CLAIM;

    rc = ngx_http_once_claim(ctx, &request, ngx_http_once_claimed);

    if (rc == NGX_OK) {
        ngx_http_once_decide(ctx, ONCE_REPLAY);
        ngx_http_once_go_on(r);
        return;
    }

    /* a write event would re-enter the phase */

    r->write_event_handler = ngx_http_request_empty_handler;

    /* a client that waits may leave; once granted, we go on without it */

    r->read_event_handler = olcf->wait ? ngx_http_test_reading
                                       : ngx_http_block_reading;

    /*
     * After an error the timer answers: here the phases of nginx are still
     * running.  The engine answers in time; a server that hangs holds it for as
     * long as the store's own limits allow.  The timer is a second lock, and
     * keeps a worker that exits gracefully alive until it has answered.
     */

    ngx_add_timer(&ctx->timer, (rc == NGX_ERROR) ? 1
                               : olcf->wait + 4 * olcf->store->timeout + 30000);
}


/*
 * The first decides, this probe or another decision: one claim more says what
 * stands recorded.  It is made by a new attempt, and not followed by a probe.
 */

static void
ngx_http_once_resolved(ngx_http_once_ctx_t *ctx, int rc)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ctx->request;
    c = r->connection;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    if (!once__probe_answered(rc)) {
        ctx->state = NGX_HTTP_ONCE_ANSWER;
        ngx_http_once_resume(r);
        return;
    }

    ngx_http_set_log_request(c->log, r);
    ngx_http_once_submit(r, ctx);
    ngx_http_run_posted_requests(c);
}


/* the outcome is unknown: does the service know it? */

static ngx_int_t
ngx_http_once_ask_service(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_int_t   rc;
    once_bytes  result;

    rc = ngx_http_once_probe(r, ctx, &result);

    if (rc == NGX_AGAIN) {
        return rc;
    }

    if (rc == NGX_OK) {
        ONCE_FAILPOINT("probed");

        if (ngx_http_once_resolve(ctx, result, ngx_http_once_resolved)
            == NGX_OK)
        {
            ctx->state = NGX_HTTP_ONCE_DECIDE;
            r->write_event_handler = ngx_http_request_empty_handler;
            ngx_add_timer(&ctx->timer, 4 * ctx->conf->store->timeout + 30000);
            return NGX_AGAIN;
        }
    }

    ctx->state = NGX_HTTP_ONCE_ANSWER;

    return ngx_http_once_answer(r);
}


/* the body has a key, which goes to the service in place of the client's */

static ngx_int_t
ngx_http_once_replace_key(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    if (ctx->key_line.len == 0) {
        return NGX_OK;
    }

    if (ngx_http_once_refuse_upgrade(r) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->conf->dry_run) {
        return NGX_OK;
    }

    if (ngx_http_once_strip_request(r, "Idempotency-Key") != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_once_push_request(r, "Idempotency-Key", ctx->key_line.data,
                                      ctx->key_line.len);
}


/* the body has no key, or none that can be used */

static void
ngx_http_once_without_key(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    int problem)
{
    if (problem == ONCE__PROBLEM_KEY_MISSING && !ctx->conf->key_required) {
        ctx->state = NGX_HTTP_ONCE_PASS;

    } else {
        ctx->decision = once__decide_refusal(&ctx->conf->policy, problem);
        ngx_http_once_note_would(ctx, NULL);
        ngx_http_once_follow(ctx);
    }

    ngx_http_once_go_on(r);
}


static void
ngx_http_once_body_handler(ngx_http_request_t *r)
{
    int                   problem;
    ngx_int_t             rc;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_once_module);

    if (ctx->decision.next != ONCE__NEXT_NONE) {
        ctx->state = NGX_HTTP_ONCE_ANSWER;
        ngx_http_once_go_on(r);
        return;
    }

    rc = ngx_http_once_digest(r, ctx, &problem);

    if (rc == NGX_DECLINED) {
        ngx_http_once_without_key(r, ctx, problem);
        return;
    }

    if (rc != NGX_OK || ngx_http_once_replace_key(r, ctx) != NGX_OK
        || ngx_http_once_describe(r, ctx) != NGX_OK)
    {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    ngx_http_once_submit(r, ctx);
}


static ngx_int_t
ngx_http_once_read_request(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (ctx->state == NGX_HTTP_ONCE_PASS) {
        return NGX_DECLINED;            /* a dry run */
    }

    /*
     * A problem is sent at once, except over HTTP/2 and later: curl takes the
     * answer to half a request there for an error.
     */

    if (ctx->decision.next != ONCE__NEXT_NONE
        && r->http_version < NGX_HTTP_VERSION_20)
    {
        return ngx_http_once_refuse_upload(r);
    }

    ctx->state = NGX_HTTP_ONCE_BODY;

    rc = ngx_http_read_client_request_body(r, ngx_http_once_body_handler);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;                      /* see BODY in ngx_http_once_enter() */
    }

    /* drop the reference that the body reader took */

    ngx_http_finalize_request(r, NGX_DONE);

    return NGX_DONE;
}


static ngx_int_t
ngx_http_once_begin(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    ngx_str_t                  raw;
    ngx_http_once_ctx_t       *ctx;
    ngx_http_once_loc_conf_t  *olcf;

    olcf = ngx_http_get_module_loc_conf(r, ngx_http_once_module);

    if (olcf->store == NULL) {
        return NGX_DECLINED;
    }

    if (ngx_http_once_strip_request(r, NULL) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!(r->method & olcf->methods) || r->content_handler == NULL) {
        return NGX_DECLINED;
    }

    rc = ngx_http_once_find_key(r, olcf, &raw);

    if (rc == NGX_DECLINED && !olcf->key_required) {
        return NGX_DECLINED;
    }

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (r != r->main || r->post_action) {
        return ngx_http_once_refuse_sub(r, olcf);
    }

    ctx = ngx_http_once_create_ctx(r, olcf, ngx_http_once_release_ctx);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->timer.handler = ngx_http_once_timeout;

    if (ngx_http_once_look(r, ctx, rc, &raw) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_once_read_request(r, ctx);
}


/* would this location pass the request on, and not ask for a page? */

static ngx_uint_t
ngx_http_once_passes_on(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    if (r->content_handler == NULL) {
        return r->method == ctx->method
               && ngx_http_once_dav(r->loc_conf, r->method);
    }

    return !ngx_http_once_is_page(r);
}


static int
ngx_http_once_destination(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    int sent)
{
    ngx_uint_t            unsent;
    ngx_http_upstream_t  *u;

    if (r->content_handler == NULL) {
        return ngx_http_once_passes_on(r, ctx) ? ONCE__TO_UNWATCHED
                                               : ONCE__TO_FILE;
    }

    if (r->content_handler
        == ngx_http_once_upstreams[NGX_HTTP_ONCE_GRPC].handler
        || r->content_handler == ngx_http_once_lookup_handler)
    {
        return ONCE__TO_UNWATCHED;
    }

    /* before it is sent, what keeps its method gets the request itself */

    unsent = (!sent && ctx->tries < ONCE__DECIDED);

    if (!(unsent && r->method == ctx->method) && ngx_http_once_is_page(r)) {
        return ONCE__TO_PAGE;
    }

    u = ngx_http_once_own_upstream(ctx);

    return (u != NULL && ngx_http_once_asked(r, u)) ? ONCE__TO_ASKED
                                                    : ONCE__TO_REQUEST;
}


static int
ngx_http_once_shown(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = ngx_http_once_own_upstream(ctx);

    if (u != NULL) {
        return ngx_http_once_head_whole(u) ? ONCE__SHOWN_HEAD
                                           : ONCE__SHOWN_NO_HEAD;
    }

    return (ctx->handler_rc >= NGX_HTTP_SPECIAL_RESPONSE || r->error_page)
           ? ONCE__SHOWN_FAILED : ONCE__SHOWN_RAN;
}


static ngx_int_t
ngx_http_once_forbid(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "once: a guarded request was led into a location with "
                  "\"grpc_pass\", \"dav_methods\" or \"once_lookup\" and was "
                  "refused");

    if (ctx->conf->dry_run) {
        ctx->would = ONCE__WOULD_REFUSE;
        ngx_http_once_leave(r, ctx);
        return NGX_DECLINED;
    }

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


static ngx_int_t
ngx_http_once_refuse(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    once__http_end  end;

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "once: a second dispatch of a guarded request "
                  "has been refused");

    if (ctx->conf->dry_run) {
        ctx->would = ONCE__WOULD_REFUSE;
        ngx_http_once_leave(r, ctx);    /* a dry run changes nothing of it */
        return NGX_DECLINED;
    }

    /* capture gets this page, gives the attempt up, and decides again */

    ctx->observed = ngx_http_once_cause(ctx);
    ctx->tries = ONCE__REFUSED;

    ngx_memzero(&end, sizeof(once__http_end));
    end.action = ONCE__DO_GIVE_UP;
    end.observed = ctx->observed;
    ctx->decision = once__decide_end(&ctx->conf->policy, &end, &ctx->replay);

    r->content_handler = ngx_http_once_answer_handler;

    return NGX_OK;
}


/* the content handler is about to run: for the first time, or once more */

static ngx_int_t
ngx_http_once_dispatch(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    once__way       way;
    once__redirect  facts;

    facts.tries = ctx->tries;
    facts.observed = ctx->observed;
    facts.sent = (int) ngx_http_once_was_sent(ctx);
    facts.to = ngx_http_once_destination(r, ctx, facts.sent);
    facts.shown = facts.sent ? ngx_http_once_shown(r, ctx)
                             : ONCE__SHOWN_NO_HEAD;

    way = once__decide_redirect(&facts);

    if (way.tries != ctx->tries && way.observed == ONCE__WHOLE) {
        ngx_http_once_note_shown(ctx);
    }

    ctx->tries = way.tries;
    ctx->observed = way.observed;

    switch (way.next) {

    case ONCE__WAY_FILE:
        return NGX_DECLINED;

    case ONCE__WAY_RUN:
    case ONCE__WAY_PAGE:
        ctx->page = (way.next == ONCE__WAY_PAGE);
        ngx_http_once_wrap(r, ctx);
        return NGX_DECLINED;

    case ONCE__WAY_FORBID:
        return ngx_http_once_forbid(r, ctx);

    case ONCE__WAY_NO_PAGE:
        if (!ctx->conf->dry_run) {
            return ngx_http_once_refuse_page(r, ctx);
        }

        /* fall through */

    default: /* ONCE__WAY_REFUSE */
        return ngx_http_once_refuse(r, ctx);
    }
}


static ngx_int_t
ngx_http_once_enter(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    switch (ctx->state) {

    case NGX_HTTP_ONCE_BODY:
    case NGX_HTTP_ONCE_CLAIM:

        /* the body could not be read, and this is the way to an error page */

        ngx_http_once_leave(r, ctx);
        ctx->state = NGX_HTTP_ONCE_REJECTED;

        /* fall through */

    case NGX_HTTP_ONCE_REJECTED:

        if (ngx_http_once_chosen(r, ctx)) {
            return ngx_http_once_begin(r);
        }

        break;

    case NGX_HTTP_ONCE_PROBE:
        return ngx_http_once_ask_service(r, ctx);

    case NGX_HTTP_ONCE_ANSWER:
        return ngx_http_once_answer(r);

    case NGX_HTTP_ONCE_OWNER:
        return ngx_http_once_dispatch(r, ctx);

    case NGX_HTTP_ONCE_PASS:
        if (r->content_handler != NULL) {
            ctx->would = once__would_passed(ctx->would);
        }

        if (ctx->decision.header == ONCE__STATUS_UNPROTECTED
            && r->content_handler != NULL)
        {
            ctx->page = (r->method != ctx->method);
            ngx_http_once_wrap(r, ctx);     /* no peer repeats it */
        }

        return NGX_DECLINED;

    default:

        /*
         * There is a response, and a filter asks for another one in its place.
         * A named location would send the request once more.
         */

        break;
    }

    return ngx_http_once_passes_on(r, ctx) ? ngx_http_once_refuse_page(r, ctx)
                                           : NGX_DECLINED;
}


ngx_int_t
ngx_http_once_handler(ngx_http_request_t *r)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_probe_of(r);

    if (ctx != NULL) {
        return ngx_http_once_probe_dispatch(r, ctx);
    }

    ctx = (r == r->main) ? ngx_http_once_get_ctx(r) : NULL;

    if (ctx != NULL && !r->post_action) {
        return ngx_http_once_enter(r, ctx);
    }

    if (ctx != NULL && ctx->state != NGX_HTTP_ONCE_SENT
        && ctx->state != NGX_HTTP_ONCE_PASS)
    {

        /* nginx has finished the request itself */

        ngx_http_once_leave(r, ctx);
    }

    return ngx_http_once_begin(r);
}
