
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The module as nginx sees it: when its parts are called, and its variables.
 */


#include "ngx_http_once_check.h"
#include "ngx_http_once_conf.h"
#include "ngx_http_once_identity.h"
#include "ngx_http_once_request.h"


static ngx_int_t ngx_http_once_add_variables(ngx_conf_t *cf);
static ngx_int_t ngx_http_once_init(ngx_conf_t *cf);
static char *ngx_http_once_core_init_conf(ngx_cycle_t *cycle, void *conf);
static ngx_int_t ngx_http_once_status_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_once_outcome_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_once_reason_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_once_number_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_once_name_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_once_store_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_once_route_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_once_trace_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);


static ngx_http_module_t  ngx_http_once_module_ctx = {
    ngx_http_once_add_variables,           /* preconfiguration */
    ngx_http_once_init,                    /* postconfiguration */

    ngx_http_once_create_main_conf,        /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_once_create_loc_conf,         /* create location configuration */
    ngx_http_once_merge_loc_conf           /* merge location configuration */
};


ngx_module_t  ngx_http_once_module = {
    NGX_MODULE_V1,
    &ngx_http_once_module_ctx,             /* module context */
    ngx_http_once_commands,                /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    ngx_http_once_init_process,            /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_once_exit_process,            /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


/*
 * A core module besides, because only core modules see the whole configuration,
 * worker_processes and user included, and may still refuse it: a failing
 * init_module would end a running master.
 */

static ngx_core_module_t  ngx_once_module_ctx = {
    ngx_string("once"),
    NULL,                                  /* create configuration */
    ngx_http_once_core_init_conf           /* init configuration */
};


ngx_module_t  ngx_once_module = {
    NGX_MODULE_V1,
    &ngx_once_module_ctx,                  /* module context */
    NULL,                                  /* module directives */
    NGX_CORE_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    NULL,                                  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    NULL,                                  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_http_variable_t  ngx_http_once_vars[] = {

    { ngx_string("once_status"), NULL, ngx_http_once_status_variable, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("once_outcome"), NULL, ngx_http_once_outcome_variable, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("once_reason"), NULL, ngx_http_once_reason_variable, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("once_attempt"), NULL, ngx_http_once_number_variable,
      offsetof(ngx_http_once_ctx_t, attempt),
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("once_fence"), NULL, ngx_http_once_number_variable,
      offsetof(ngx_http_once_ctx_t, fence),
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("once_name"), NULL, ngx_http_once_name_variable, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("once_store"), NULL, ngx_http_once_store_variable, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("once_route"), NULL, ngx_http_once_route_variable, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("once_trace"), NULL, ngx_http_once_trace_variable, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


/* --- installed --- */

static ngx_int_t
ngx_http_once_init(ngx_conf_t *cf)
{
    ngx_uint_t                   i;
    ngx_http_handler_pt         *h;
    ngx_http_once_store_t      **store;
    ngx_http_core_main_conf_t   *cmcf;
    ngx_http_once_main_conf_t   *omcf;

    omcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_once_module);

    if (ngx_http_top_header_filter == NULL) {

        /* built in statically we would come before the write filter */

        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "once: has to be built as a dynamic module");
        return NGX_ERROR;
    }

    if (ngx_http_once_check_conf(cf, omcf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (omcf->stores.nelts == 0) {
        return NGX_OK;
    }

    store = omcf->stores.elts;

    for (i = 0; i < omcf->stores.nelts; i++) {
        if (ngx_http_once_add_zone(cf, store[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PRECONTENT_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_once_handler;

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_LOG_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_once_log_handler;

    ngx_http_once_identity_init();
    ngx_http_once_capture_init();

    return NGX_OK;
}


static char *
ngx_http_once_core_init_conf(ngx_cycle_t *cycle, void *conf)
{
    ngx_http_once_main_conf_t  *omcf;

    if (ngx_process == NGX_PROCESS_SIGNALLER) {
        return NGX_CONF_OK;
    }

    omcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_once_module);

    if (omcf == NULL || omcf->stores.nelts == 0) {
        return NGX_CONF_OK;
    }

    return ngx_http_once_check_stores(cycle, omcf) == NGX_OK
           ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* --- variables --- */

static ngx_int_t
ngx_http_once_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_once_vars; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


static void
ngx_http_once_set_variable(ngx_http_variable_value_t *v, u_char *data,
    size_t len)
{
    v->valid = 1;
    v->no_cacheable = 1;
    v->not_found = 0;
    v->data = data;
    v->len = (unsigned) len;
}


static ngx_int_t
ngx_http_once_status_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t            *name;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r->main);
    name = &ngx_http_once_status_names[ctx ? ctx->decision.header
                                           : ONCE__STATUS_NONE];
    ngx_http_once_set_variable(v, name->data, name->len);

    return NGX_OK;
}


static void
ngx_http_once_set_text(ngx_http_variable_value_t *v, const char *text)
{
    ngx_http_once_set_variable(v, (u_char *) text, ngx_strlen(text));
}


/* how the attempt ended, or how the one did whose response is repeated */

static ngx_int_t
ngx_http_once_outcome_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r->main);
    ngx_http_once_set_text(v, (ctx && ctx->ended)
                              ? once__outcome_text(ctx->ending.outcome) : "-");

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_reason_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r->main);
    ngx_http_once_set_text(v, (ctx && ctx->ended)
                              ? once_reason_text(ctx->ending.reason) : "-");

    return NGX_OK;
}


/* attempt and fence; neither is ever 0 */

static ngx_int_t
ngx_http_once_number_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char               *p;
    uint64_t              number;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r->main);
    number = 0;

    if (ctx != NULL) {
        number = (data == offsetof(ngx_http_once_ctx_t, fence))
                 ? ctx->fence : ctx->attempt;
    }

    if (number == 0) {
        ngx_http_once_set_text(v, "-");
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_http_once_set_variable(v, p,
                               (size_t) (ngx_sprintf(p, "%uL", number) - p));

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_name_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char               *p;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r->main);

    if (ctx == NULL || ctx->key_hash[0] == '\0') {
        ngx_http_once_set_text(v, "-");
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, 2 * ONCE_NAME_SIZE);
    if (p == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_hex_dump(p, ctx->name, ONCE_NAME_SIZE);
    ngx_http_once_set_variable(v, p, 2 * ONCE_NAME_SIZE);

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_store_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t            *name;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r->main);

    if (ctx == NULL) {
        ngx_http_once_set_text(v, "-");
        return NGX_OK;
    }

    name = &ctx->conf->store->name;
    ngx_http_once_set_variable(v, name->data, name->len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_route_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t            *name;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r->main);

    if (ctx == NULL) {
        ngx_http_once_set_text(v, "-");
        return NGX_OK;
    }

    name = &ctx->conf->route->name;
    ngx_http_once_set_variable(v, name->data, name->len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_trace_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char               *p;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r->main);

    p = ngx_pnalloc(r->pool, ONCE__TRACE_TEXT);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (ctx == NULL || !once__trace_text(ctx->trace, (char *) p)) {
        ngx_http_once_set_variable(v, (u_char *) "-", 1);

    } else {
        ngx_http_once_set_variable(v, p, ONCE__TRACE_TEXT - 1);
    }

    return NGX_OK;
}
