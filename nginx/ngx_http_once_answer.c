
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * What the client gets: a problem, a replay, or the upstream's own response
 * with our headers; and the way back, from a response to the bytes of a record.
 * Which of them it is was decided before.
 */


#include "ngx_http_once_answer.h"


/*
 * Members of headers_out that point to an element of its list.  A replay has
 * to set those that were set: the upstream module leaves "location" NULL for
 * relative redirects on purpose.
 */

#define ngx_http_once_offset(f)  offsetof(ngx_http_headers_out_t, f)

static const size_t  ngx_http_once_special[] = {
    ngx_http_once_offset(location),
    ngx_http_once_offset(etag),
    ngx_http_once_offset(last_modified),
    ngx_http_once_offset(content_encoding),
    ngx_http_once_offset(www_authenticate),
    ngx_http_once_offset(refresh),
    ngx_http_once_offset(accept_ranges),
    ngx_http_once_offset(expires),
    ngx_http_once_offset(content_range)
};

#define NGX_HTTP_ONCE_NSPECIAL  ngx_http_once_count(ngx_http_once_special)


static uint8_t
ngx_http_once_tag(ngx_http_request_t *r, ngx_table_elt_t *h)
{
    u_char      *out;
    ngx_uint_t   i;

    out = (u_char *) &r->headers_out;

    for (i = 0; i < NGX_HTTP_ONCE_NSPECIAL; i++) {
        if (*(ngx_table_elt_t **) (out + ngx_http_once_special[i]) == h) {
            return (uint8_t) (i + 1);
        }
    }

    return 0;
}


/*
 * nginx knows only the time of a file, and makes the header from it when the
 * response leaves.  The record needs the header, so it is made here.
 */

ngx_int_t
ngx_http_once_set_last_modified(ngx_http_request_t *r)
{
    u_char           *p;
    ngx_table_elt_t  *h;

    if (r->headers_out.last_modified != NULL
        || r->headers_out.last_modified_time == -1
        || (r->headers_out.status != NGX_HTTP_OK
            && r->headers_out.status != NGX_HTTP_NO_CONTENT))
    {
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, sizeof("Mon, 28 Sep 1970 06:00:00 GMT"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    ngx_http_once_unlink(h);
    ngx_str_set(&h->key, "Last-Modified");
    h->lowcase_key = (u_char *) "last-modified";
    h->value.data = p;
    h->value.len = (size_t)
                   (ngx_http_time(p, r->headers_out.last_modified_time) - p);

    r->headers_out.last_modified = h;

    return NGX_OK;
}


/* scripts of another origin see only the headers that are named here */

static ngx_int_t
ngx_http_once_expose(ngx_http_request_t *r)
{
    u_char                *p;
    ngx_str_t             *value;
    ngx_table_elt_t       *h;
    ngx_http_once_walk_t   walk;

    static char  ours[] = "Idempotent-Replayed, Idempotency-Status";

    ngx_http_once_walk(&walk, &r->headers_out.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (h->hash == 0
            || !ngx_http_once_is_header(h, "Access-Control-Expose-Headers"))
        {
            continue;
        }

        value = &h->value;

        p = ngx_pnalloc(r->pool, value->len + 2 + sizeof(ours));
        if (p == NULL) {
            return NGX_ERROR;
        }

        value->len = (size_t) (ngx_sprintf(p, "%V, %s", value, ours) - p);
        value->data = p;

        return NGX_OK;
    }

    return ngx_http_once_add_header(r, "Access-Control-Expose-Headers", ours);
}


static ngx_int_t
ngx_http_once_add_ours(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    if (ngx_http_once_add_status(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    return ctx->conf->cors_expose ? ngx_http_once_expose(r) : NGX_OK;
}


ngx_int_t
ngx_http_once_mark_new(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_http_once_strip_headers(r);

    return ctx->decision.marked ? ngx_http_once_add_ours(r, ctx) : NGX_OK;
}


/* --- problems --- */

static ngx_int_t
ngx_http_once_add_retry_after(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    u_char  *p;

    if (ctx->decision.retry_after == 0) {
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, NGX_INT_T_LEN + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    *ngx_sprintf(p, "%ud", ctx->decision.retry_after) = '\0';

    return ngx_http_once_add_header(r, "Retry-After", (char *) p);
}


/* of our own, with the status that was decided; `text` is borrowed */

static ngx_int_t
ngx_http_once_set_document(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    const char *type, ngx_str_t *text, ngx_buf_t *b)
{
    ngx_http_clean_header(r);

    r->headers_out.status = (ngx_uint_t) ctx->decision.status;
    r->headers_out.status_line.len = 0;
    r->headers_out.content_length_n = (off_t) text->len;
    r->headers_out.content_type.data = (u_char *) type;
    r->headers_out.content_type.len = ngx_strlen(type);
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    b->pos = text->data;
    b->last = text->data + text->len;

    if (ngx_http_once_add_header(r, "Cache-Control", "no-store") != NGX_OK
        || ngx_http_once_add_retry_after(r, ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ctx->decision.marked ? ngx_http_once_add_ours(r, ctx) : NGX_OK;
}


ngx_int_t
ngx_http_once_set_problem(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_buf_t *b)
{
    ngx_str_t  text;

    text.data = ngx_pnalloc(r->pool, ONCE__PROBLEM_MAX);
    if (text.data == NULL) {
        return NGX_ERROR;
    }

    text.len = once__problem_body(ctx->decision.problem, ctx->decision.status,
                                  ctx->decision.recorded, ctx->detail,
                                  (char *) text.data);

    return ngx_http_once_set_document(r, ctx, "application/problem+json",
                                      &text, b);
}


/* --- what became of a request --- */

/* keeps what is told for the answer, as long as the record is at hand */

ngx_int_t
ngx_http_once_tell(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx, int rc,
    const once_record *record)
{
    ctx->told.data = ngx_pnalloc(r->pool, ONCE__LOOKUP_MAX);
    if (ctx->told.data == NULL) {
        return NGX_ERROR;
    }

    ctx->told.len = once__lookup_body(rc, record, &ctx->replay,
                                      (char *) ctx->told.data);

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_set_told(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_buf_t *b)
{
    once_bytes  name;

    if (ctx->told.data == NULL
        || ngx_http_once_set_document(r, ctx, "application/json", &ctx->told,
                                      b)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    r->allow_ranges = 0;
    r->disable_not_modified = 1;

    if (!ctx->decision.located) {
        return NGX_OK;
    }

    /* as it is written: headers_out.location would be made absolute */

    name.data = "Location";
    name.size = sizeof("Location") - 1;

    return ngx_http_once_push_header(r, name,
                                     ngx_http_once_bytes(&ctx->conf->accept))
           ? NGX_OK : NGX_ERROR;
}


/* --- replays --- */

static ngx_int_t
ngx_http_once_restore_reason(ngx_http_request_t *r, once_bytes *reason)
{
    u_char  *p;

    if (reason->size == 0) {
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, reason->size + 4);
    if (p == NULL) {
        return NGX_ERROR;
    }

    r->headers_out.status_line.data = p;
    r->headers_out.status_line.len = reason->size + 4;

    p = ngx_sprintf(p, "%03ui ", r->headers_out.status);
    ngx_memcpy(p, reason->data, reason->size);

    return NGX_OK;
}


/* as the upstream module takes it apart */

static void
ngx_http_once_set_content_type(ngx_http_request_t *r, once_bytes value)
{
    u_char  *p, *name, *end;

    p = (u_char *) value.data;
    end = p + value.size;

    r->headers_out.content_type.data = p;
    r->headers_out.content_type.len = value.size;
    r->headers_out.content_type_len = value.size;
    r->headers_out.content_type_lowcase = NULL;

    for ( /* void */ ; p < end; p++) {

        if (*p != ';') {
            continue;
        }

        for (name = p + 1; name < end && *name == ' '; name++) { /* void */ }

        if (end - name < (ssize_t) sizeof("charset=") - 1
            || ngx_strncasecmp(name, (u_char *) "charset=", 8) != 0)
        {
            continue;
        }

        r->headers_out.content_type_len = (size_t) (p - (u_char *) value.data);

        p = name + 8;
        p += (p < end && *p == '"');
        end -= (end > p && *(end - 1) == '"');

        r->headers_out.charset.data = p;
        r->headers_out.charset.len = (size_t) (end - p);

        return;
    }
}


/* "expires" and gzip_proxied look for it there */

static ngx_int_t
ngx_http_once_link_cache_control(ngx_http_request_t *r, ngx_table_elt_t *h)
{
    ngx_table_elt_t  **ph;

#if (nginx_version >= 1023000)

    for (ph = &r->headers_out.cache_control; *ph; ph = &(*ph)->next) {
        /* void */
    }

#else

    if (r->headers_out.cache_control.elts == NULL
        && ngx_array_init(&r->headers_out.cache_control, r->pool, 1,
                          sizeof(ngx_table_elt_t *))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ph = ngx_array_push(&r->headers_out.cache_control);
    if (ph == NULL) {
        return NGX_ERROR;
    }

#endif

    *ph = h;

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_restore_header(ngx_http_request_t *r, once__header *header)
{
    u_char           *out;
    ngx_table_elt_t  *h;

    if (header->tag == 0 && header->name.size == sizeof("Content-Type") - 1
        && ngx_strncasecmp((u_char *) header->name.data,
                           (u_char *) "Content-Type", header->name.size)
           == 0)
    {
        ngx_http_once_set_content_type(r, header->value);
        return NGX_OK;
    }

    h = ngx_http_once_push_header(r, header->name, header->value);
    if (h == NULL) {
        return NGX_ERROR;
    }

    if (header->tag == 0 || header->tag > NGX_HTTP_ONCE_NSPECIAL) {
        return ngx_http_once_is_header(h, "Cache-Control")
               ? ngx_http_once_link_cache_control(r, h) : NGX_OK;
    }

    out = (u_char *) &r->headers_out;
    *(ngx_table_elt_t **) (out + ngx_http_once_special[header->tag - 1]) = h;

    if (r->headers_out.last_modified == h) {
        r->headers_out.last_modified_time =
                            ngx_parse_http_time(h->value.data, h->value.len);
    }

    return NGX_OK;
}


/* sets the response from the record */

ngx_int_t
ngx_http_once_set_replay(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_buf_t *b)
{
    size_t           at;
    once__header     header;
    once__response  *response;

    response = &ctx->replay;

    ngx_http_clean_header(r);

    r->allow_ranges = 0;
    r->disable_not_modified = 1;
    r->headers_out.status = (ngx_uint_t) response->status;

    if (ngx_http_once_restore_reason(r, &response->reason) != NGX_OK) {
        return NGX_ERROR;
    }

    at = 0;

    while (once__response_next(response, &at, &header)) {
        if (ngx_http_once_restore_header(r, &header) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (!ngx_http_once_bodiless(r)) {
        r->headers_out.content_length_n = (off_t) response->body.size;
        b->pos = (u_char *) response->body.data;
        b->last = b->pos + response->body.size;
    }

    if (ngx_http_once_add_header(r, "Idempotent-Replayed", "true") != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_once_add_ours(r, ctx);
}


/* a response in one buffer, which may be empty */

void
ngx_http_once_whole(ngx_buf_t *b, ngx_chain_t *out)
{
    b->memory = (b->last > b->pos) ? 1 : 0;
    b->last_buf = 1;
    b->last_in_chain = 1;

    out->buf = b;
    out->next = NULL;
}


static ngx_int_t
ngx_http_once_send(ngx_http_request_t *r, ngx_buf_t *b)
{
    ngx_int_t    rc;
    ngx_chain_t  out;

    /* of an error_page that led here: the status is ours to choose */

    r->err_status = 0;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    ngx_http_once_whole(b, &out);

    return ngx_http_output_filter(r, &out);
}


/* the content handler of what is answered without the upstream */

ngx_int_t
ngx_http_once_answer_handler(ngx_http_request_t *r)
{
    ngx_int_t             rc;
    ngx_buf_t            *b;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r);

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    b = ngx_calloc_buf(r->pool);

    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = (ctx->decision.next == ONCE__NEXT_REPLAY)
         ? ngx_http_once_set_replay(r, ctx, b)
         : (ctx->decision.next == ONCE__NEXT_TELL)
         ? ngx_http_once_set_told(r, ctx, b)
         : ngx_http_once_set_problem(r, ctx, b);

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ctx->state == NGX_HTTP_ONCE_ANSWER) {
        ctx->state = NGX_HTTP_ONCE_SENT;
    }

    return ngx_http_once_send(r, b);
}


/* --- from a response to bytes --- */

/* Connection may have several lines, and nginx keeps one */

static ngx_uint_t
ngx_http_once_is_stored(ngx_http_request_t *r, once_bytes name,
    const once__header_policy *policy)
{
    ngx_table_elt_t       *h;
    ngx_http_once_walk_t   walk;

    if (!once__header_stored(name, policy)) {
        return 0;
    }

    if (r->upstream == NULL || r->upstream->headers_in.connection == NULL) {
        return 1;
    }

    ngx_http_once_walk(&walk, &r->upstream->headers_in.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (ngx_http_once_is_header(h, "Connection")
            && once__header_named(name, ngx_http_once_bytes(&h->value)))
        {
            return 0;
        }
    }

    return 1;
}


static once__header *
ngx_http_once_headers_room(ngx_http_request_t *r)
{
    ngx_uint_t        n;
    ngx_list_part_t  *part;

    n = 1;                              /* Content-Type */

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        n += part->nelts;
    }

    return ngx_palloc(r->pool, n * sizeof(once__header));
}


static ngx_int_t
ngx_http_once_stored_headers(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    once__response *response)
{
    once__header          *out;
    ngx_table_elt_t       *h;
    once__header_policy    policy;
    ngx_http_once_walk_t   walk;

    ngx_memzero(&policy, sizeof(once__header_policy));
    policy.store_cookies = ctx->conf->store_cookies ? 1 : 0;

    if (ctx->conf->hide != NULL) {
        policy.hide = ctx->conf->hide->elts;
        policy.n_hide = ctx->conf->hide->nelts;
    }

    out = ngx_http_once_headers_room(r);
    if (out == NULL) {
        return NGX_ERROR;
    }

    response->headers = out;

    out->name.data = "Content-Type";
    out->name.size = sizeof("Content-Type") - 1;
    out->value = ngx_http_once_bytes(&r->headers_out.content_type);
    out->tag = 0;

    if (out->value.size && ngx_http_once_is_stored(r, out->name, &policy)) {
        out++;
    }

    ngx_http_once_walk(&walk, &r->headers_out.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        out->name = ngx_http_once_bytes(&h->key);
        out->value = ngx_http_once_bytes(&h->value);

        if (h->hash && ngx_http_once_is_stored(r, out->name, &policy)) {
            out->tag = ngx_http_once_tag(r, h);
            out++;
        }
    }

    response->n = (size_t) (out - response->headers);

    return NGX_OK;
}


/* NGX_DECLINED, and in the log why: it cannot be kept */

static ngx_int_t
ngx_http_once_encode_whole(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    once_bytes *out)
{
    void            *data;
    ngx_str_t       *line;
    once_error       err;
    once__response   response;

    ngx_memzero(&response, sizeof(once__response));
    response.status = (int) r->headers_out.status;
    response.body.data = ctx->body;
    response.body.size = ctx->body_len;

    line = &r->headers_out.status_line;

    if (line->len > 4) {
        response.reason.data = line->data + 4;
        response.reason.size = line->len - 4;
    }

    if (ngx_http_once_stored_headers(r, ctx, &response) != NGX_OK) {
        return NGX_ERROR;
    }

    if (once__response_size(&response, &out->size, &err) != ONCE_OK) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "once: response not kept: %s", err.text);
        return NGX_DECLINED;
    }

    data = ngx_palloc(r->pool, out->size);
    if (data == NULL) {
        return NGX_ERROR;
    }

    once__response_encode(&response, data);
    out->data = data;

    return NGX_OK;
}


ngx_int_t
ngx_http_once_encode(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx, int keep,
    once_bytes *out)
{
    void       *data;
    ngx_int_t   rc;

    rc = keep ? ngx_http_once_encode_whole(r, ctx, out) : NGX_DECLINED;

    if (rc != NGX_DECLINED) {
        return rc;
    }

    data = ngx_palloc(r->pool, ONCE__RESPONSE_BARE);
    if (data == NULL) {
        return NGX_ERROR;
    }

    out->data = data;
    out->size = once__response_bare((int) r->headers_out.status, data);

    return out->size ? NGX_OK : NGX_ERROR;
}
