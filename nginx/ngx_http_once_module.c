
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
static ngx_int_t ngx_http_once_variable(ngx_http_request_t *r,
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


typedef enum {
    NGX_HTTP_ONCE_VAR_STATUS = 0,
    NGX_HTTP_ONCE_VAR_OUTCOME,
    NGX_HTTP_ONCE_VAR_REASON,
    NGX_HTTP_ONCE_VAR_STORE,
    NGX_HTTP_ONCE_VAR_ROUTE,
    NGX_HTTP_ONCE_VAR_PROBE,
    NGX_HTTP_ONCE_VAR_WOULD,
    NGX_HTTP_ONCE_VAR_ATTEMPT,  /* from here on, made in the pool */
    NGX_HTTP_ONCE_VAR_FENCE,
    NGX_HTTP_ONCE_VAR_APART,
    NGX_HTTP_ONCE_VAR_NAME,
    NGX_HTTP_ONCE_VAR_TRACE
} ngx_http_once_var_e;


#define ngx_http_once_var(name, which)                                        \
    { ngx_string(name), NULL, ngx_http_once_variable,                         \
      NGX_HTTP_ONCE_VAR_##which, NGX_HTTP_VAR_NOCACHEABLE, 0 }

static ngx_http_variable_t  ngx_http_once_vars[] = {
    ngx_http_once_var("once_status", STATUS),
    ngx_http_once_var("once_outcome", OUTCOME),
    ngx_http_once_var("once_reason", REASON),
    ngx_http_once_var("once_attempt", ATTEMPT),
    ngx_http_once_var("once_fence", FENCE),
    ngx_http_once_var("once_name", NAME),
    ngx_http_once_var("once_store", STORE),
    ngx_http_once_var("once_route", ROUTE),
    ngx_http_once_var("once_trace", TRACE),
    ngx_http_once_var("once_probe", PROBE),
    ngx_http_once_var("once_would", WOULD),
    ngx_http_once_var("once_apart", APART),
    ngx_http_null_variable
};


/* --- installed --- */

static ngx_int_t
ngx_http_once_add_handler(ngx_conf_t *cf, ngx_http_phases phase,
    ngx_http_handler_pt handler)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[phase].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = handler;

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_init(ngx_conf_t *cf)
{
    ngx_uint_t                  i;
    ngx_http_once_store_t     **store;
    ngx_http_once_main_conf_t  *omcf;

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

    store = omcf->stores.elts;

    for (i = 0; i < omcf->stores.nelts; i++) {
        if (ngx_http_once_add_zone(cf, store[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (i == 0) {
        return NGX_OK;
    }

    ngx_http_once_identity_init();
    ngx_http_once_capture_init();

    if (ngx_http_once_add_handler(cf, NGX_HTTP_PRECONTENT_PHASE,
                                  ngx_http_once_handler)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_once_add_handler(cf, NGX_HTTP_LOG_PHASE,
                                     ngx_http_once_log_handler);
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


/* what is not known stays "-"; attempt and fence are never 0 */

static ngx_int_t
ngx_http_once_print(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    ngx_http_once_var_e which, ngx_str_t *text)
{
    u_char  *p, *last;

    p = ngx_pnalloc(r->pool, 2 * ONCE_NAME_SIZE);
    if (p == NULL) {
        return NGX_ERROR;
    }

    last = p;

    if (which == NGX_HTTP_ONCE_VAR_ATTEMPT && ctx->attempt) {
        last = ngx_sprintf(p, "%uD", ctx->attempt);

    } else if (which == NGX_HTTP_ONCE_VAR_FENCE && ctx->fence) {
        last = ngx_sprintf(p, "%uL", ctx->fence);

    } else if (which == NGX_HTTP_ONCE_VAR_APART && ctx->has_apart) {
        last = ngx_sprintf(p, "%uL", ctx->apart);

    } else if (which == NGX_HTTP_ONCE_VAR_NAME && ctx->key_hash[0]) {
        last = ngx_hex_dump(p, ctx->name, ONCE_NAME_SIZE);

    } else if (which == NGX_HTTP_ONCE_VAR_TRACE
               && once__trace_text(ctx->trace, (char *) p))
    {
        last = p + ONCE__TRACE_TEXT - 1;
    }

    if (last != p) {
        text->data = p;
        text->len = (size_t) (last - p);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_str_t             text = ngx_string("-");
    const char           *word;
    ngx_http_once_ctx_t  *ctx;

    ctx = ngx_http_once_get_ctx(r->main);

    if (ctx != NULL && data >= NGX_HTTP_ONCE_VAR_ATTEMPT) {
        if (ngx_http_once_print(r, ctx, data, &text) != NGX_OK) {
            return NGX_ERROR;
        }

    } else if (ctx != NULL && data == NGX_HTTP_ONCE_VAR_STORE) {
        text = ctx->conf->store->name;

    } else if (ctx != NULL && data == NGX_HTTP_ONCE_VAR_ROUTE) {
        text = ctx->conf->route->name;

    } else if (ctx != NULL && data == NGX_HTTP_ONCE_VAR_STATUS) {
        text = ngx_http_once_status_names[ctx->decision.header];

    } else if (ctx != NULL && data == NGX_HTTP_ONCE_VAR_WOULD) {
        word = once__would_text(ctx->would);
        text.data = (u_char *) word;
        text.len = ngx_strlen(word);

    } else if (ctx != NULL && data == NGX_HTTP_ONCE_VAR_PROBE) {
        if (ctx->probe != NULL && ctx->probe->result != -1) {
            word = once__probe_text(ctx->probe->result);
            text.data = (u_char *) word;
            text.len = ngx_strlen(word);
        }

    } else if (ctx != NULL && ctx->ended) {

        /* of the attempt, or of the one whose response is repeated */

        word = (data == NGX_HTTP_ONCE_VAR_OUTCOME)
               ? once__outcome_text(ctx->ending.outcome)
               : once_reason_text(ctx->ending.reason);
        text.data = (u_char *) word;
        text.len = ngx_strlen(word);
    }

    v->valid = 1;
    v->no_cacheable = 1;
    v->not_found = 0;
    v->data = text.data;
    v->len = (unsigned) text.len;

    return NGX_OK;
}
