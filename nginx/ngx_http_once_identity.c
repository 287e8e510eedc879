
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Which request is it?  Its key, the name of its record and its fingerprint,
 * from the client's own bytes.  It refuses to guess: a key that cannot be read
 * is not "no key".
 */


#include "ngx_http_once_identity.h"
#include "ngx_http_once_text.h"


static ngx_http_request_body_filter_pt   ngx_http_next_request_body_filter;


/* what counts of the body, and what is to be read as JSON */

static void
ngx_http_once_take_body(ngx_http_once_ctx_t *ctx, u_char *data, size_t size)
{
    once__fingerprint_body(ctx->fingerprint, data, size);

    if (ctx->collect) {
        once__json_add(&ctx->json, data, size);
    }
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
                ngx_http_once_take_body(ctx, cl->buf->pos,
                                 (size_t) (cl->buf->last - cl->buf->pos));
            }
        }
    }

    return ngx_http_next_request_body_filter(r, in);
}


void
ngx_http_once_identity_init(void)
{
    ngx_http_next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = ngx_http_once_request_body_filter;
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
 * A key of several parts, as a String of RFC 8941.  Each part is read as a key
 * of its own.  What cannot be read is given back alone: it is refused later.
 */

static ngx_int_t
ngx_http_once_join_key(ngx_http_request_t *r, ngx_http_once_text_t *key,
    ngx_str_t *values, ngx_str_t *raw)
{
    char                  *text;
    u_char                *p;
    ngx_str_t              joined;
    ngx_uint_t             i;
    ngx_http_once_part_t  *part;

    part = key->parts.elts;

    for (i = 0; i < key->parts.nelts; i++) {

        if (!part[i].variable) {
            continue;
        }

        text = ngx_pnalloc(r->pool, ONCE__KEY_MAX);
        if (text == NULL) {
            return NGX_ERROR;
        }

        if (once__key_parse(ngx_http_once_bytes(&values[i]), text,
                            &values[i].len, NULL)
            != ONCE_OK)
        {
            *raw = values[i];
            return NGX_OK;
        }

        values[i].data = (u_char *) text;
    }

    if (ngx_http_once_join(r, key, values, &joined) != NGX_OK) {
        return NGX_ERROR;
    }

    p = ngx_pnalloc(r->pool, 2 * joined.len + 2);
    if (p == NULL) {
        return NGX_ERROR;
    }

    raw->data = p;
    *p++ = '"';

    for (i = 0; i < joined.len; i++) {
        if (joined.data[i] == '"' || joined.data[i] == '\\') {
            *p++ = '\\';
        }

        *p++ = joined.data[i];
    }

    *p++ = '"';
    raw->len = (size_t) (p - raw->data);

    return NGX_OK;
}


/*
 * A variable that says, alone, that a program has no key.  The literals around
 * it would make it look like one.
 */

static ngx_str_t *
ngx_http_once_find_placeholder(ngx_http_once_text_t *key, ngx_str_t *values)
{
    char                   text[ONCE__KEY_MAX];
    once_bytes             read;
    ngx_uint_t             i;
    ngx_http_once_part_t  *part;

    part = key->parts.elts;
    read.data = text;

    for (i = 0; i < key->parts.nelts; i++) {

        if (!part[i].variable) {
            continue;
        }

        if (once__key_refuse_placeholder(ngx_http_once_bytes(&values[i]), NULL)
            != ONCE_OK)
        {
            return &values[i];
        }

        if (once__key_parse(ngx_http_once_bytes(&values[i]), text, &read.size,
                            NULL)
            == ONCE_OK
            && once__key_refuse_placeholder(read, NULL) != ONCE_OK)
        {
            return &values[i];
        }
    }

    return NULL;
}


/*
 * As ngx_http_once_find_key().  A text whose variables are all empty is no key,
 * whatever stands between them; where one of several is empty, the value is,
 * too, and is refused as malformed.
 */

static ngx_int_t
ngx_http_once_key_of_text(ngx_http_request_t *r, ngx_http_once_text_t *key,
    ngx_str_t *raw)
{
    ngx_str_t   *values, *placeholder;
    ngx_uint_t   empty;

    ngx_str_null(raw);
    values = ngx_http_once_text_values(r, key, &empty);

    if (values == NULL) {
        return NGX_ERROR;
    }

    if (empty == key->nvariables) {
        return NGX_DECLINED;
    }

    if (empty) {
        return NGX_OK;
    }

    placeholder = ngx_http_once_find_placeholder(key, values);

    if (placeholder != NULL) {
        *raw = *placeholder;            /* ngx_http_once_read_key() refuses it */
        return NGX_OK;
    }

    return (key->nvariables > 1) ? ngx_http_once_join_key(r, key, values, raw)
                                 : ngx_http_once_plain(r, key, values, raw);
}


/*
 * NGX_OK and the raw value, NGX_DECLINED if there is none, NGX_ABORT if there
 * are several lines.  What stands in the body is found later.
 */

ngx_int_t
ngx_http_once_find_key(ngx_http_request_t *r, ngx_http_once_loc_conf_t *olcf,
    ngx_str_t *raw)
{
    ngx_uint_t             n;
    ngx_table_elt_t       *h;
    ngx_http_once_walk_t   walk;

    if (olcf->key_json != NULL) {
        ngx_str_null(raw);
        return NGX_OK;
    }

    if (olcf->key_header.len == 0) {
        return ngx_http_once_key_of_text(r, olcf->key, raw);
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


#define ngx_http_once_header_in(r, name)                                      \
    ngx_http_once_find_header(r, name, sizeof(name) - 1)

static once_bytes
ngx_http_once_find_header(ngx_http_request_t *r, const char *name, size_t len)
{
    once_bytes             none;
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

    none.data = NULL;
    none.size = 0;

    return none;
}


/*
 * The path and the query are the client's own bytes: the normalised ones would
 * make "/a%2Fb" and "/a/b" one record.
 */

static void
ngx_http_once_split_uri(ngx_http_request_t *r, once_bytes *path,
    once_bytes *query)
{
    u_char  *p, *last;

    last = r->unparsed_uri.data + r->unparsed_uri.len;
    p = ngx_strlchr(r->unparsed_uri.data, last, '?');

    path->data = r->unparsed_uri.data;
    path->size = (size_t) ((p ? p : last) - r->unparsed_uri.data);
    query->data = p ? p + 1 : NULL;
    query->size = p ? (size_t) (last - p - 1) : 0;
}


once_bytes
ngx_http_once_path(ngx_http_request_t *r)
{
    once_bytes  path, query;

    ngx_http_once_split_uri(r, &path, &query);

    return path;
}


static once__request_head
ngx_http_once_head(ngx_http_request_t *r, ngx_http_once_loc_conf_t *olcf)
{
    ngx_uint_t          i;
    once__request_head  head;

    ngx_memzero(&head, sizeof(once__request_head));
    ngx_http_once_split_uri(r, &head.path, &head.query);

    if (r->headers_in.content_type) {
        head.type = ngx_http_once_bytes(&r->headers_in.content_type->value);
    }

    head.encoding = ngx_http_once_header_in(r, "content-encoding");
    head.method = ngx_http_once_bytes(&r->method_name);

    for (i = 0; i < ONCE__OVERRIDES; i++) {
        head.override[i] = ngx_http_once_find_header(r,
                               once__override_headers[i],
                               ngx_strlen(once__override_headers[i]));
    }

    head.of_path = (olcf->key_space == NGX_HTTP_ONCE_OF_PATH);

    return head;
}


static ngx_int_t
ngx_http_once_refuse_key(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    once_error *err, int *problem)
{
    ctx->detail = (const char *) ngx_pstrdup(r->pool, &(ngx_str_t) {
                      ngx_strlen(err->text) + 1, (u_char *) err->text });

    *problem = ONCE__PROBLEM_KEY_INVALID;

    return NGX_DECLINED;
}


/* NGX_DECLINED and a problem if the key cannot be used */

static ngx_int_t
ngx_http_once_read_key(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_str_t *raw, char *text, once_bytes *key, int *problem)
{
    once_error  err;

    key->data = text;

    if (once__key_parse(ngx_http_once_bytes(raw), text, &key->size, &err)
        != ONCE_OK
        || once__key_refuse_placeholder(*key, &err) != ONCE_OK
        || once__key_birth(ctx->conf->policy.key_form, *key, &ctx->born, &err)
           != ONCE_OK)
    {
        return ngx_http_once_refuse_key(r, ctx, &err, problem);
    }

    return NGX_OK;
}


/* NGX_DECLINED and a problem if it is unknown whose key it is */

static ngx_int_t
ngx_http_once_find_caller(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    int *problem)
{
    ngx_int_t    rc;
    ngx_str_t   *values, plain;
    ngx_uint_t   empty;

    rc = ngx_http_once_scope(r, ctx->conf, &ctx->scope);

    if (rc != NGX_OK) {
        *problem = ONCE__PROBLEM_SCOPE_MISSING;
        return rc;
    }

    values = ngx_http_once_text_values(r, ctx->conf->realm, &empty);

    if (values == NULL
        || ngx_http_once_join(r, ctx->conf->realm, values, &ctx->realm)
           != NGX_OK
        || ngx_http_once_plain(r, ctx->conf->realm, values, &plain) != NGX_OK)
    {
        return NGX_ERROR;
    }

    once__group(ngx_http_once_bytes(&plain), ctx->group);   /* for people */

    return NGX_OK;
}


static void
ngx_http_once_name(ngx_http_once_ctx_t *ctx, once__request_head *head,
    once_bytes key)
{
    once__name(ngx_http_once_bytes(&ctx->scope),
               ngx_http_once_bytes(&ctx->realm), head, key, ctx->name);
    once__name_hex(ctx->name, (char *) ctx->key_hash);
}


/* of the key in the header */

ngx_int_t
ngx_http_once_name_of(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_str_t *raw, int *problem)
{
    char                text[ONCE__KEY_MAX];
    ngx_int_t           rc;
    once_bytes          key;
    once__request_head  head;

    head = ngx_http_once_head(r, ctx->conf);
    rc = ngx_http_once_read_key(r, ctx, raw, text, &key, problem);

    if (rc == NGX_OK) {
        rc = ngx_http_once_find_caller(r, ctx, problem);
    }

    if (rc == NGX_OK) {
        ngx_http_once_name(ctx, &head, key);
    }

    return rc;
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
            ngx_http_once_take_body(ctx, b->pos,
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

            ngx_http_once_take_body(ctx, buf, (size_t) n);
        }
    }

    return NGX_OK;
}


/* the name, unless the key is in the body, and the fingerprint's beginning */

ngx_int_t
ngx_http_once_identify(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_str_t *raw, int *problem)
{
    ngx_int_t           rc;
    once__request_head  head;

    rc = ctx->conf->key_json ? ngx_http_once_find_caller(r, ctx, problem)
                             : ngx_http_once_name_of(r, ctx, raw, problem);

    if (rc != NGX_OK) {
        return rc;
    }

    head = ngx_http_once_head(r, ctx->conf);

    if (once__fingerprint_new(ctx->conf->compared->counts, &head,
                              &ctx->fingerprint)
        != ONCE_OK)
    {
        return NGX_ERROR;
    }

    ctx->collect = ctx->conf->key_json != NULL
                   || once__fingerprint_is_json(ctx->fingerprint);

    return r->request_body ? ngx_http_once_digest_read_body(r, ctx) : NGX_OK;
}


/* the name, of the key that stands in the body */

static ngx_int_t
ngx_http_once_name_by_body(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    once__json *doc, int *problem)
{
    char                text[ONCE__KEY_MAX];
    once_bytes          key;
    once_error          err;
    once__request_head  head;

    head = ngx_http_once_head(r, ctx->conf);
    key.data = text;

    if (once__key_of_body(ctx->conf->key_json, head.encoding, doc,
                          ctx->conf->policy.key_form, text, &key.size,
                          &ctx->born, &err)
        != ONCE_OK)
    {
        return ngx_http_once_refuse_key(r, ctx, &err, problem);
    }

    if (key.size == 0) {
        *problem = ONCE__PROBLEM_KEY_MISSING;
        return NGX_DECLINED;
    }

    ctx->key_line.data = ngx_pnalloc(r->pool, ONCE__KEY_LINE);
    if (ctx->key_line.data == NULL) {
        return NGX_ERROR;
    }

    ctx->key_line.len = once__key_write(key, (char *) ctx->key_line.data);
    ngx_http_once_name(ctx, &head, key);

    return NGX_OK;
}


/* what of the body was to be read as JSON: its key, and its part in "digest" */

static ngx_int_t
ngx_http_once_end_body(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    int *problem)
{
    int          rc;
    ngx_int_t    ret;
    once__json  *doc;
    once_error   err;

    doc = NULL;
    rc = ONCE_OK;
    ret = NGX_OK;

    if (ctx->collect) {
        rc = once__json_read(&ctx->json, &doc, &err);
        once__json_clear(&ctx->json);
    }

    if (rc == ONCE_ENOMEM) {
        return NGX_ERROR;
    }

    if (ctx->conf->key_json != NULL) {
        ret = (rc != ONCE_OK)
              ? ngx_http_once_refuse_key(r, ctx, &err, problem)
              : ngx_http_once_name_by_body(r, ctx, doc, problem);
    }

    if (ret == NGX_OK
        && once__fingerprint_end_json(ctx->fingerprint, doc,
                                      ctx->conf->compared, ctx->digest)
           != ONCE_OK)
    {
        ret = NGX_ERROR;
    }

    free(doc);

    return ret;
}


/*
 * The body has been read: a variable may be computed from it.  NGX_DECLINED and
 * a problem if there is no key in it, or none that can be used.
 */

ngx_int_t
ngx_http_once_digest(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    int *problem)
{
    ngx_int_t           rc;
    ngx_str_t          *values, text;
    ngx_uint_t          empty;
    once__request_head  head;

    rc = ngx_http_once_end_body(r, ctx, problem);
    once__fingerprint_free(ctx->fingerprint);
    ctx->fingerprint = NULL;

    if (rc != NGX_OK || ctx->conf->fingerprint == NULL) {
        return rc;
    }

    values = ngx_http_once_text_values(r, ctx->conf->fingerprint, &empty);

    if (values == NULL) {
        return NGX_ERROR;
    }

    if (empty == ctx->conf->fingerprint->nvariables) {
        return NGX_OK;                  /* all that counts by default */
    }

    if (ngx_http_once_join(r, ctx->conf->fingerprint, values, &text)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    head = ngx_http_once_head(r, ctx->conf);
    once__fingerprint_of_text(&head, ngx_http_once_bytes(&text), ctx->digest);

    return NGX_OK;
}


/*
 * What the record says for operators.  Unless they chose another text, the
 * client's own method and path, without the query, which may hold secrets.
 */

ngx_int_t
ngx_http_once_describe(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    u_char                     text[ONCE_LABEL_MAX];
    ngx_str_t                  value;
    once_bytes                 path, query;
    ngx_http_once_loc_conf_t  *olcf;

    olcf = ctx->conf;

    (void) once__trace_read(ngx_http_once_header_in(r, "traceparent"),
                            ctx->trace);

    if (olcf->label_off == 1) {
        return NGX_OK;
    }

    if (olcf->label != NULL) {

        if (ngx_http_complex_value(r, olcf->label, &value) != NGX_OK) {
            return NGX_ERROR;
        }

    } else {
        ngx_http_once_split_uri(r, &path, &query);
        value.data = text;
        value.len = (size_t) (ngx_slprintf(text, text + sizeof(text), "%V %*s",
                                           &r->method_name, path.size,
                                           path.data)
                              - text);
    }

    ctx->label[once__label_clean(ngx_http_once_bytes(&value), ctx->label)]
        = '\0';

    return NGX_OK;
}
