
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Which request is it?  Its key, the name of its record and its fingerprint,
 * from the client's own bytes.  It refuses to guess: a key that cannot be read
 * is not "no key".
 */


#include "ngx_http_once_identity.h"


static ngx_int_t ngx_http_once_digest_read_body(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
static ngx_int_t ngx_http_once_request_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);


static ngx_http_request_body_filter_pt   ngx_http_next_request_body_filter;


void
ngx_http_once_identity_init(void)
{
    ngx_http_next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = ngx_http_once_request_body_filter;
}


static once_bytes
ngx_http_once_bytes(ngx_str_t *s)
{
    once_bytes  b;

    b.data = s->data;
    b.size = s->len;

    return b;
}


/* "-" and "_" are the same to the variables of nginx */

static ngx_uint_t
ngx_http_once_same_header(ngx_str_t *header, ngx_str_t *variable)
{
    u_char      c;
    ngx_uint_t  i;

    if (header->len != variable->len) {
        return 0;
    }

    for (i = 0; i < header->len; i++) {
        c = header->data[i];
        c = (c == '-') ? '_' : ngx_tolower(c);

        if (c != variable->data[i]) {
            return 0;
        }
    }

    return 1;
}


/*
 * NGX_OK and the raw value, NGX_DECLINED if there is none, NGX_ABORT if there
 * are several lines
 */

ngx_int_t
ngx_http_once_find_key(ngx_http_request_t *r, ngx_http_once_loc_conf_t *olcf,
    ngx_str_t *raw)
{
    ngx_uint_t             n;
    ngx_table_elt_t       *h;
    ngx_http_once_walk_t   walk;

    if (olcf->key_header.len == 0) {
        if (ngx_http_complex_value(r, olcf->key, raw) != NGX_OK) {
            return NGX_ERROR;
        }

        return raw->len ? NGX_OK : NGX_DECLINED;
    }

    n = 0;
    ngx_http_once_walk(&walk, &r->headers_in.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (ngx_http_once_same_header(&h->key, &olcf->key_header)) {
            *raw = h->value;
            n++;
        }
    }

    return (n == 0) ? NGX_DECLINED : (n == 1) ? NGX_OK : NGX_ABORT;
}


static once_bytes
ngx_http_once_header_in(ngx_http_request_t *r, const char *name, size_t len)
{
    once_bytes             b;
    ngx_table_elt_t       *h;
    ngx_http_once_walk_t   walk;

    ngx_http_once_walk(&walk, &r->headers_in.headers);

    while ((h = ngx_http_once_next(&walk)) != NULL) {
        if (h->key.len == len
            && ngx_strncasecmp(h->key.data, (u_char *) name, len) == 0)
        {
            return ngx_http_once_bytes(&h->value);
        }
    }

    b.data = NULL;
    b.size = 0;

    return b;
}


/*
 * Name and fingerprint.  The path and the query are the client's own bytes:
 * the normalised ones would make "/a%2Fb" and "/a/b" one record.  NGX_DECLINED
 * and a problem if the key or the caller cannot be used.
 */

ngx_int_t
ngx_http_once_identify(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_str_t *raw, int *problem)
{
    char                       text[ONCE__KEY_MAX];
    u_char                    *p, *last;
    ngx_int_t                  rc;
    ngx_str_t                  scope, realm;
    once_bytes                 key, path;
    once_error                 err;
    once__request_head         head;
    ngx_http_once_loc_conf_t  *olcf;

    olcf = ctx->conf;
    key.data = text;

    if (once__key_parse(ngx_http_once_bytes(raw), text, &key.size, &err)
        != ONCE_OK)
    {
        ctx->detail = (char *) ngx_pstrdup(r->pool, &(ngx_str_t) {
                          ngx_strlen(err.text) + 1, (u_char *) err.text });

        *problem = ONCE__PROBLEM_KEY_INVALID;
        return NGX_DECLINED;
    }

    rc = ngx_http_once_scope(r, olcf, &scope);

    if (rc != NGX_OK) {
        *problem = ONCE__PROBLEM_SCOPE_MISSING;
        return rc;
    }

    if (ngx_http_complex_value(r, olcf->realm, &realm) != NGX_OK) {
        return NGX_ERROR;
    }

    once__group(ngx_http_once_bytes(&realm), ctx->group);

    last = r->unparsed_uri.data + r->unparsed_uri.len;
    p = ngx_strlchr(r->unparsed_uri.data, last, '?');

    path.data = r->unparsed_uri.data;
    path.size = (size_t) ((p ? p : last) - r->unparsed_uri.data);

    ngx_memzero(&head, sizeof(once__request_head));

    if (p) {
        head.query.data = p + 1;
        head.query.size = (size_t) (last - p - 1);
    }

    once__name(ngx_http_once_bytes(&scope), ngx_http_once_bytes(&realm),
               ngx_http_once_bytes(&r->method_name), path, key, ctx->name);

    once__name_hex(ctx->name, (char *) ctx->key_hash);

    if (r->headers_in.content_type) {
        head.type = ngx_http_once_bytes(&r->headers_in.content_type->value);
    }

    head.encoding = ngx_http_once_header_in(r, "content-encoding",
                                            sizeof("content-encoding") - 1);

    if (once__fingerprint_new((unsigned) olcf->counts, &head,
                              &ctx->fingerprint)
        != ONCE_OK)
    {
        return NGX_ERROR;
    }

    return r->request_body ? ngx_http_once_digest_read_body(r, ctx) : NGX_OK;
}


/* an earlier phase has read the body: the filter has not seen it */

static ngx_int_t
ngx_http_once_digest_read_body(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    off_t         offset;
    u_char        buf[4096];
    size_t        size;
    ssize_t       n;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            once__fingerprint_body(ctx->fingerprint, b->pos,
                                   (size_t) (b->last - b->pos));
            continue;
        }

        for (offset = b->file_pos; offset < b->file_last; offset += n) {
            size = (size_t) ngx_min((off_t) sizeof(buf),
                                    b->file_last - offset);
            n = ngx_read_file(b->file, buf, size, offset);

            if (n <= 0) {
                return NGX_ERROR;
            }

            once__fingerprint_body(ctx->fingerprint, buf, (size_t) n);
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_request_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_chain_t          *cl;
    ngx_http_once_ctx_t  *ctx;

    if (r == r->main) {
        ctx = ngx_http_get_module_ctx(r, ngx_http_once_module);

        if (ctx != NULL && ctx->state == NGX_HTTP_ONCE_BODY
            && ctx->fingerprint != NULL)
        {
            for (cl = in; cl; cl = cl->next) {
                once__fingerprint_body(ctx->fingerprint, cl->buf->pos,
                                 (size_t) (cl->buf->last - cl->buf->pos));
            }
        }
    }

    return ngx_http_next_request_body_filter(r, in);
}


/* the body has been read: a variable may be computed from it */

ngx_int_t
ngx_http_once_digest(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_str_t  text;

    once__fingerprint_end(ctx->fingerprint, ctx->digest);
    once__fingerprint_free(ctx->fingerprint);
    ctx->fingerprint = NULL;

    if (ctx->conf->fingerprint == NULL) {
        return NGX_OK;
    }

    if (ngx_http_complex_value(r, ctx->conf->fingerprint, &text) != NGX_OK) {
        return NGX_ERROR;
    }

    if (text.len == 0) {
        return NGX_OK;                  /* all that counts by default */
    }

    once__fingerprint_of_text(ngx_http_once_bytes(&text), ctx->digest);

    return NGX_OK;
}


/*
 * What the record says for operators.  Unless they chose another text, the
 * client's own method and path, without the query, which may hold secrets.
 */

ngx_int_t
ngx_http_once_describe(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    u_char                    *p, *last, text[ONCE_LABEL_MAX];
    ngx_str_t                  value;
    ngx_http_once_loc_conf_t  *olcf;

    olcf = ctx->conf;

    (void) once__trace_read(ngx_http_once_header_in(r, "traceparent",
                                                sizeof("traceparent") - 1),
                            ctx->trace);

    if (olcf->label_off == 1) {
        return NGX_OK;
    }

    if (olcf->label != NULL) {

        if (ngx_http_complex_value(r, olcf->label, &value) != NGX_OK) {
            return NGX_ERROR;
        }

    } else {
        last = r->unparsed_uri.data + r->unparsed_uri.len;
        p = ngx_strlchr(r->unparsed_uri.data, last, '?');
        last = p ? p : last;

        value.data = text;
        value.len = (size_t) (ngx_slprintf(text, text + sizeof(text), "%V %*s",
                                           &r->method_name,
                                           (size_t) (last
                                                     - r->unparsed_uri.data),
                                           r->unparsed_uri.data)
                              - text);
    }

    ctx->label[once__label_clean(ngx_http_once_bytes(&value), ctx->label)]
        = '\0';

    return NGX_OK;
}
