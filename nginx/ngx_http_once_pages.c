
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Error pages: where they lead a guarded request.
 *
 *    guarded location          error_page 503 = @other;
 *      nginx refuses  -------> the value is evaluated -------> @other
 *      before the claim        here: it is noted               sends nothing
 *
 * nginx refuses requests before they can be claimed: limit_req, auth_request, a
 * body that is too large, "return".  A named location of error_page would get
 * the request itself, and execute it at each repeat.  nginx tells nobody where
 * a redirect began, but it evaluates the value of error_page while the request
 * is still there: a code of ours stands before each of these values.
 *
 * It refuses to claim in the fallback: a caller who was refused was not let in,
 * and must not see a replay.
 */


#include "ngx_http_once_pages.h"


/* stands in the place of the value of one error_page */

typedef struct {
    ngx_http_script_len_code_pt  len;
    uintptr_t                    len_end;
    ngx_http_script_code_pt      code;
    uintptr_t                    code_end;
    ngx_int_t                    status;
    ngx_http_complex_value_t     value;     /* as it was written */
    ngx_str_t                    args;
} ngx_http_once_page_t;


/* --- where the page is --- */

static ngx_uint_t
ngx_http_once_same_pointers(once__key_pointers *a, once__key_pointers *b)
{
    size_t  i;

    if (a == NULL || b == NULL || a->n != b->n) {
        return a == b;
    }

    for (i = 0; i < a->n; i++) {
        if (a->at[i].size != b->at[i].size
            || ngx_memcmp(a->at[i].data, b->at[i].data, a->at[i].size) != 0)
        {
            return 0;
        }
    }

    return 1;
}


/* does a key have one name in both, and is the same guarded? */

static ngx_uint_t
ngx_http_once_same_guard(ngx_http_once_loc_conf_t *a,
    ngx_http_once_loc_conf_t *b)
{
    return a->store == b->store
           && a->methods == b->methods
           && a->key_space == b->key_space
           && ngx_http_once_same_text(a->scope ? &a->scope->text : NULL,
                                      b->scope ? &b->scope->text : NULL)
           && ngx_http_once_same_text(a->realm, b->realm)
           && ngx_http_once_same_text(a->key, b->key)
           && ngx_http_once_same(&a->key_header, &b->key_header)
           && ngx_http_once_same_pointers(a->key_json, b->key_json);
}


/*
 * "error_page 418 = @other; return 418;" in a location is no refusal, but the
 * choice of another one.  Where that one guards alike, the request is claimed
 * there.  A page is a GET, which is not guarded, whatever its location makes
 * of it on the wire: it is never the request itself.
 */

ngx_uint_t
ngx_http_once_chosen(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_http_once_loc_conf_t  *olcf;

    olcf = ngx_http_get_module_loc_conf(r, ngx_http_once_module);

    return ctx->returned && r->method == ctx->method
           && ngx_http_once_same_guard(ctx->conf, olcf);
}


/* the client gets the status of the error, and nginx's own page for it */

ngx_int_t
ngx_http_once_refuse_page(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx)
{
    ngx_int_t                  status;
    const char                *why;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    status = ctx->error_status ? ctx->error_status : NGX_HTTP_BAD_GATEWAY;

    why = (ctx->state == NGX_HTTP_ONCE_REJECTED)
          ? "nginx refused it before its claim"
          : "its service had already answered it";

    if (ctx->conf->dry_run) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "once: a guarded request would not have been sent to "
                      "location \"%V\", because %s", &clcf->name, why);
        return NGX_DECLINED;
    }

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "once: a guarded request was not sent to location \"%V\", "
                  "because %s: the client gets the status %i without that "
                  "page", &clcf->name, why, status);

    r->error_page = 1;          /* no page for this one */

    return status;
}


/* --- while a request is on its way to the page --- */

static size_t
ngx_http_once_page_len(ngx_http_script_engine_t *e)
{
    e->ip += offsetof(ngx_http_once_page_t, len_end);

    return 1;           /* the other code allocates by itself */
}


/* the configuration of a request that has come to no location yet */

static void **
ngx_http_once_server(ngx_http_request_t *r)
{
    ngx_http_core_srv_conf_t  *cscf;

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);

    return cscf->ctx->loc_conf;
}


static ngx_uint_t
ngx_http_once_guards(ngx_http_request_t *r, ngx_http_once_loc_conf_t *olcf)
{
    ngx_str_t  raw;

    if (olcf->store == NULL || olcf->handler == NULL
        || !(r->method & olcf->methods))
    {
        return 0;
    }

    return olcf->key_required
           || ngx_http_once_find_key(r, olcf, &raw) != NGX_DECLINED;
}


/* what would have guarded this request, had nginx not refused it; or NULL */

static ngx_http_once_loc_conf_t *
ngx_http_once_guard_of(ngx_http_request_t *r)
{
    void                      ***locations;
    ngx_uint_t                   i;
    ngx_http_once_loc_conf_t    *olcf;
    ngx_http_once_main_conf_t   *omcf;

    if (r->loc_conf != ngx_http_once_server(r)) {
        olcf = ngx_http_get_module_loc_conf(r, ngx_http_once_module);

        return ngx_http_once_guards(r, olcf) ? olcf : NULL;
    }

    /* refused by the server, before its location was known: any of them */

    omcf = ngx_http_get_module_main_conf(r, ngx_http_once_module);
    locations = omcf->locations.elts;

    for (i = 0; i < omcf->locations.nelts; i++) {
        olcf = locations[i][ngx_http_once_module.ctx_index];

        if (olcf->srv_conf == r->srv_conf && ngx_http_once_guards(r, olcf)) {
            return olcf;
        }
    }

    return NULL;
}


static void
ngx_http_once_owns_nothing(ngx_http_once_ctx_t *ctx)
{
    /* void */
}


/*
 * The context of a request that was refused before it had one.  A request that
 * has one keeps it: there the status is all that is new.
 */

static ngx_int_t
ngx_http_once_note_refusal(ngx_http_request_t *r, ngx_int_t status)
{
    ngx_http_once_ctx_t        *ctx;
    ngx_http_once_loc_conf_t   *olcf;
    ngx_http_core_main_conf_t  *cmcf;

    if (r != r->main || r->post_action) {
        return NGX_OK;
    }

    ctx = ngx_http_once_get_ctx(r);

    if (ctx == NULL) {
        olcf = ngx_http_once_guard_of(r);

        if (olcf == NULL) {
            return NGX_OK;
        }

        ctx = ngx_http_once_create_ctx(r, olcf, ngx_http_once_owns_nothing);

        if (ctx == NULL) {
            return NGX_ERROR;
        }

        cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);

        ctx->state = NGX_HTTP_ONCE_REJECTED;
        ctx->returned = (r->loc_conf != ngx_http_once_server(r)
                         && cmcf->phase_engine.handlers[r->phase_handler]
                            .checker
                            == ngx_http_core_rewrite_phase);
    }

    ctx->error_status = status;

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_page_text(ngx_http_request_t *r, ngx_http_once_page_t *page,
    ngx_str_t *text)
{
    u_char     *p;
    ngx_str_t   uri;

    if (ngx_http_complex_value(r, &page->value, &uri) != NGX_OK) {
        return NGX_ERROR;
    }

    if (page->args.len == 0) {
        *text = uri;
        return NGX_OK;
    }

    /* nginx takes the text of a code apart again */

    p = ngx_pnalloc(r->pool, uri.len + 1 + page->args.len);

    if (p == NULL) {
        return NGX_ERROR;
    }

    text->data = p;
    text->len = (size_t) (ngx_sprintf(p, "%V?%V", &uri, &page->args) - p);

    return NGX_OK;
}


static void
ngx_http_once_page_code(ngx_http_script_engine_t *e)
{
    ngx_http_once_page_t  *page;

    page = (ngx_http_once_page_t *)
               (e->ip - offsetof(ngx_http_once_page_t, code));
    e->ip += sizeof(ngx_http_script_code_pt);

    if (ngx_http_once_note_refusal(e->request, page->status) != NGX_OK
        || ngx_http_once_page_text(e->request, page, &e->buf) != NGX_OK)
    {
        /* a location that cannot be there: nginx answers with a 500 */

        ngx_str_set(&e->buf, "@");
    }

    /* where nginx looks for the end depends on its version */

    e->pos = e->buf.data + e->buf.len;
}


/* --- when the configuration has been read --- */

/* another location that would pass on what nginx refused here, or NULL */

static ngx_http_once_loc_conf_t *
ngx_http_once_find_fallback(ngx_http_core_srv_conf_t *cscf, ngx_str_t *name)
{
#if (angie_version)

    /* Angie has a location's name and its configuration in two structures */

    ngx_http_core_loc_t  **named;

    for (named = cscf->named_locations; *named; named++) {
        if (ngx_http_once_same(&(*named)->name, name)) {
            return (*named)->conf->loc_conf[ngx_http_once_module.ctx_index];
        }
    }

#else

    ngx_http_core_loc_conf_t  **named;

    for (named = cscf->named_locations; *named; named++) {
        if (ngx_http_once_same(&(*named)->name, name)) {
            return (*named)->loc_conf[ngx_http_once_module.ctx_index];
        }
    }

#endif

    return NULL;
}


/*
 * 502 and 504 come from upstreams, and nothing was sent where their pages lead
 * a request that was granted: that goes on, guarded.
 */

static void
ngx_http_once_warn_of_pages(ngx_conf_t *cf, ngx_http_core_srv_conf_t *cscf,
    void **loc_conf)
{
    u_char                    *last;
    ngx_str_t                  name;
    ngx_uint_t                 i;
    ngx_http_err_page_t       *page;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_once_loc_conf_t  *olcf, *other;

    clcf = loc_conf[ngx_http_core_module.ctx_index];
    olcf = loc_conf[ngx_http_once_module.ctx_index];

    if (clcf->error_pages == NULL || cscf->named_locations == NULL
        || clcf->noname)
    {
        return;
    }

    page = clcf->error_pages->elts;
    last = NULL;

    for (i = 0; i < clcf->error_pages->nelts; i++) {
        name = page[i].value.value;

        if (page[i].status == NGX_HTTP_INTERNAL_SERVER_ERROR
            || page[i].status == NGX_HTTP_BAD_GATEWAY
            || page[i].status == NGX_HTTP_GATEWAY_TIME_OUT
            || name.data == last)
        {
            continue;           /* the last: of the same directive */
        }

        last = name.data;
        other = ngx_http_once_find_fallback(cscf, &name);

        if (other != NULL && other->handler != NULL
            && !ngx_http_once_same_guard(olcf, other))
        {
            ngx_http_once_log_conf(NGX_LOG_WARN, cf, olcf,
                          "once: a request with a key that nginx refuses "
                          "with %i before its claim is not sent to "
                          "location \"%V\": \"error_page\" of location "
                          "\"%V\" has no effect for it",
                          page[i].status, &name, &clcf->name);
        }
    }
}


/* levels that have none of their own share those of the level above */

static ngx_int_t
ngx_http_once_watch_array(ngx_conf_t *cf, ngx_array_t *pages)
{
    ngx_uint_t             i;
    ngx_http_err_page_t   *page;
    ngx_http_once_page_t  *own;

    if (pages == NULL) {
        return NGX_OK;
    }

    page = pages->elts;

    for (i = 0; i < pages->nelts; i++) {
        own = page[i].value.lengths;

        if (own != NULL && own->len == ngx_http_once_page_len) {
            continue;
        }

        own = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_page_t));
        if (own == NULL) {
            return NGX_ERROR;
        }

        own->len = ngx_http_once_page_len;
        own->code = ngx_http_once_page_code;
        own->status = page[i].status;
        own->value = page[i].value;
        own->args = page[i].args;

        page[i].value.flushes = NULL;
        page[i].value.lengths = own;
        page[i].value.values = &own->code;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_once_watch_pages(ngx_conf_t *cf, ngx_http_once_main_conf_t *omcf)
{
    void                     ***locations;
    ngx_uint_t                  i;
    ngx_http_core_srv_conf_t   *cscf;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_once_loc_conf_t   *olcf;

    locations = omcf->locations.elts;

    for (i = 0; i < omcf->locations.nelts; i++) {
        olcf = locations[i][ngx_http_once_module.ctx_index];

        if (olcf->handler == NULL) {
            continue;
        }

        cscf = olcf->srv_conf[ngx_http_core_module.ctx_index];

        ngx_http_once_warn_of_pages(cf, cscf, locations[i]);

        /* what the server refuses never came to a location */

        clcf = cscf->ctx->loc_conf[ngx_http_core_module.ctx_index];

        if (ngx_http_once_watch_array(cf, clcf->error_pages) != NGX_OK) {
            return NGX_ERROR;
        }

        clcf = locations[i][ngx_http_core_module.ctx_index];

        if (ngx_http_once_watch_array(cf, clcf->error_pages) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
