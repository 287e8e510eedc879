
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Directives, their limits and their merging.  What could weaken the guarantee
 * is refused here, when the configuration is read: see README.md in this
 * folder.
 */


#include "ngx_http_once_conf.h"
#include "ngx_http_once_status.h"
#include "store/named.h"


static ngx_int_t ngx_http_once_check_location(ngx_conf_t *cf,
    void **loc_conf);
static ngx_int_t ngx_http_once_find_handler(ngx_conf_t *cf,
    ngx_http_once_upstream_t *upstream);
static ngx_int_t ngx_http_once_check_upstream(ngx_conf_t *cf,
    void **loc_conf);

static char *ngx_http_once_store(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_once_once(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_once_label(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_once_key_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_once_methods(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_once_fingerprint(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_once_in_flight(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_once_final(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_once_release(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_once_hide_header(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_once_enum(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static ngx_int_t ngx_http_once_set_route(ngx_conf_t *cf,
    ngx_http_once_loc_conf_t *olcf);
static ngx_uint_t ngx_http_once_is_name(ngx_str_t *name);
static char *ngx_http_once_route_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static void ngx_http_once_set_policy(ngx_http_once_loc_conf_t *olcf);
static ngx_int_t ngx_http_once_check_values(ngx_conf_t *cf,
    ngx_http_once_loc_conf_t *olcf);
static ngx_http_complex_value_t *ngx_http_once_compile(ngx_conf_t *cf,
    const char *text);
static void ngx_http_once_warn_of_ends(ngx_conf_t *cf,
    ngx_http_once_main_conf_t *omcf);


static ngx_conf_enum_t  ngx_http_once_lost[] = {
    { ngx_string("hold"), NGX_HTTP_ONCE_HOLD_LOST },
    { ngx_string("takeover"), NGX_HTTP_ONCE_TAKE_LOST },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_once_store_failure[] = {
    { ngx_string("deny"), NGX_HTTP_ONCE_DENY },
    { ngx_string("bypass"), NGX_HTTP_ONCE_BYPASS },
    { ngx_null_string, 0 }
};


static const struct {
    ngx_str_t   name;
    ngx_uint_t  method;
} ngx_http_once_method_names[] = {
    { ngx_string("POST"), NGX_HTTP_POST },
    { ngx_string("PATCH"), NGX_HTTP_PATCH },
    { ngx_string("PUT"), NGX_HTTP_PUT },
    { ngx_string("DELETE"), NGX_HTTP_DELETE },
    { ngx_string("MKCOL"), NGX_HTTP_MKCOL },
    { ngx_string("COPY"), NGX_HTTP_COPY },
    { ngx_string("MOVE"), NGX_HTTP_MOVE },
    { ngx_string("PROPPATCH"), NGX_HTTP_PROPPATCH },
    { ngx_string("LOCK"), NGX_HTTP_LOCK },
    { ngx_string("UNLOCK"), NGX_HTTP_UNLOCK }
};

#define NGX_HTTP_ONCE_NMETHODS                                                \
    (sizeof(ngx_http_once_method_names)                                       \
     / sizeof(ngx_http_once_method_names[0]))


#define NGX_HTTP_ONCE_ANY                                                     \
    NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF


ngx_command_t  ngx_http_once_commands[] = {

    { ngx_string("once_store"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE2|NGX_CONF_TAKE3|NGX_CONF_TAKE4,
      ngx_http_once_store,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_http_once_once,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_scope"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_http_once_scope_directive,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_key"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_http_once_key_directive,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_key_required"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, key_required),
      NULL },

    { ngx_string("once_realm"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, realm),
      NULL },

    { ngx_string("once_label"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_http_once_label,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_methods"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_1MORE,
      ngx_http_once_methods,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_fingerprint"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_1MORE,
      ngx_http_once_fingerprint,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_in_flight"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_http_once_in_flight,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_final"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_1MORE,
      ngx_http_once_final,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_release"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_1MORE,
      ngx_http_once_release,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_lost"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_http_once_enum,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, lost),
      &ngx_http_once_lost },

    { ngx_string("once_two_phase"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, two_phase),
      NULL },

    { ngx_string("once_store_failure"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_http_once_enum,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, store_failure),
      &ngx_http_once_store_failure },

    { ngx_string("once_ttl"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, ttl),
      NULL },

    { ngx_string("once_lease"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, lease),
      NULL },

    { ngx_string("once_max_response"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, max_response),
      NULL },

    { ngx_string("once_hide_header"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_http_once_hide_header,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_store_cookies"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, store_cookies),
      NULL },

    { ngx_string("once_cors_expose"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, cors_expose),
      NULL },

    { ngx_string("once_dry_run"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_once_loc_conf_t, dry_run),
      NULL },

    { ngx_string("once_route"),
      NGX_HTTP_ONCE_ANY|NGX_CONF_TAKE1,
      ngx_http_once_route_directive,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("once_status"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_once_status_directive,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


/* --- made and merged --- */

void *
ngx_http_once_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_once_main_conf_t  *omcf;

    omcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_main_conf_t));
    if (omcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&omcf->stores, cf->pool, 2,
                       sizeof(ngx_http_once_store_t *))
        != NGX_OK
        || ngx_array_init(&omcf->locations, cf->pool, 4, sizeof(void **))
           != NGX_OK)
    {
        return NULL;
    }

    return omcf;
}


void *
ngx_http_once_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_once_loc_conf_t  *olcf;

    olcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_loc_conf_t));
    if (olcf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     olcf->name = { 0, NULL };
     *     olcf->store = NULL;
     *     olcf->scope = NULL;
     *     olcf->key = NULL;
     *     olcf->key_header = { 0, NULL };
     *     olcf->realm = NULL;
     *     olcf->label = NULL;
     *     olcf->counts = 0;
     *     olcf->fingerprint = NULL;
     *     olcf->methods = 0;
     *     olcf->final = NULL;
     *     olcf->release = NULL;
     *     olcf->route_name = { 0, NULL };
     *     olcf->route = NULL;
     */

    olcf->scope_off = NGX_CONF_UNSET;
    olcf->label_off = NGX_CONF_UNSET;
    olcf->key_required = NGX_CONF_UNSET;
    olcf->wait = NGX_CONF_UNSET_MSEC;
    olcf->lost = NGX_CONF_UNSET_UINT;
    olcf->two_phase = NGX_CONF_UNSET;
    olcf->store_failure = NGX_CONF_UNSET_UINT;
    olcf->ttl = NGX_CONF_UNSET_MSEC;
    olcf->lease = NGX_CONF_UNSET_MSEC;
    olcf->max_response = NGX_CONF_UNSET_SIZE;
    olcf->hide = NGX_CONF_UNSET_PTR;
    olcf->store_cookies = NGX_CONF_UNSET;
    olcf->cors_expose = NGX_CONF_UNSET;
    olcf->dry_run = NGX_CONF_UNSET;

    return olcf;
}


static ngx_http_complex_value_t *
ngx_http_once_compile(ngx_conf_t *cf, const char *text)
{
    ngx_str_t                          value;
    ngx_http_complex_value_t          *cv;
    ngx_http_compile_complex_value_t   ccv;

    value.data = (u_char *) text;
    value.len = ngx_strlen(text);

    cv = ngx_palloc(cf->pool, sizeof(ngx_http_complex_value_t));
    if (cv == NULL) {
        return NULL;
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));
    ccv.cf = cf;
    ccv.value = &value;
    ccv.complex_value = cv;

    return ngx_http_compile_complex_value(&ccv) == NGX_OK ? cv : NULL;
}


char *
ngx_http_once_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_once_loc_conf_t *prev = parent;
    ngx_http_once_loc_conf_t *conf = child;

    void                     ***location;
    int                         both;
    ngx_http_conf_ctx_t        *ctx;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_once_main_conf_t  *omcf;

    conf->direct = (conf->name.data != NULL);

    if (!conf->direct) {
        conf->name = prev->name;
        conf->file = prev->file;
        conf->line = prev->line;
    }

    /* "if" and "limit_except" keep the handler of their location */

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    conf->handler = clcf->handler;
    conf->srv_conf = ((ngx_http_conf_ctx_t *) cf->ctx)->srv_conf;

    if (ngx_http_once_set_wire(cf, conf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (conf->handler == NULL && clcf->noname) {
        conf->handler = prev->handler;
    }

    if (conf->scope == NULL && conf->scope_off == NGX_CONF_UNSET) {
        conf->scope = prev->scope;
        conf->scope_off = prev->scope_off;
    }

    if (conf->label == NULL && conf->label_off == NGX_CONF_UNSET) {
        conf->label = prev->label;
        conf->label_off = prev->label_off;
    }

    if (conf->key == NULL && conf->key_header.len == 0) {
        conf->key = prev->key;
        conf->key_header = prev->key_header;
    }

    if (conf->key == NULL && conf->key_header.len == 0) {
        ngx_str_set(&conf->key_header, "idempotency_key");
    }

    if (conf->realm == NULL) {
        conf->realm = prev->realm;
    }

    if (conf->methods == 0) {
        conf->methods = prev->methods ? prev->methods
                                      : (NGX_HTTP_POST|NGX_HTTP_PATCH);
    }

    if (conf->counts == 0) {
        conf->counts = prev->counts ? prev->counts : ONCE__COUNT_ALL;
        conf->fingerprint = prev->fingerprint;
    }

    if (conf->final == NULL) {
        conf->final = prev->final;
    }

    if (conf->release == NULL) {
        conf->release = prev->release;
    }

    ngx_conf_merge_str_value(conf->route_name, prev->route_name, "-");
    ngx_conf_merge_value(conf->key_required, prev->key_required, 0);
    ngx_conf_merge_msec_value(conf->wait, prev->wait, 0);
    ngx_conf_merge_uint_value(conf->lost, prev->lost, NGX_HTTP_ONCE_HOLD_LOST);
    ngx_conf_merge_value(conf->two_phase, prev->two_phase, 0);
    ngx_conf_merge_uint_value(conf->store_failure, prev->store_failure,
                              NGX_HTTP_ONCE_DENY);
    ngx_conf_merge_msec_value(conf->ttl, prev->ttl, 86400000);
    ngx_conf_merge_msec_value(conf->lease, prev->lease, 30000);
    ngx_conf_merge_size_value(conf->max_response, prev->max_response,
                              1024 * 1024);
    ngx_conf_merge_ptr_value(conf->hide, prev->hide, NULL);
    ngx_conf_merge_value(conf->store_cookies, prev->store_cookies, 0);
    ngx_conf_merge_value(conf->cors_expose, prev->cors_expose, 0);
    ngx_conf_merge_value(conf->dry_run, prev->dry_run, 0);

    if (conf->name.len == 0) {
        return NGX_CONF_OK;
    }

    if (conf->realm == NULL) {
        conf->realm = ngx_http_once_compile(cf, "$host");
        if (conf->realm == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    both = once__rules_make(conf->final, conf->release, &conf->policy.rules);

    if (both != 0) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "%d is both in \"once_final\" and in \"once_release\": "
                      "it cannot be an outcome and free the key in %V:%ui",
                      both, &conf->file, conf->line);
        return NGX_CONF_ERROR;
    }

    /* checked when all is merged */

    omcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_once_module);

    location = ngx_array_push(&omcf->locations);
    if (location == NULL) {
        return NGX_CONF_ERROR;
    }

    ctx = cf->ctx;
    *location = ctx->loc_conf;

    return NGX_CONF_OK;
}


/* --- checked --- */

/* when the whole configuration has been read and merged */

ngx_int_t
ngx_http_once_check_conf(ngx_conf_t *cf, ngx_http_once_main_conf_t *omcf)
{
    void        ***locations;
    ngx_uint_t     i;

    for (i = 0; omcf->locations.nelts && i < NGX_HTTP_ONCE_NUPSTREAMS; i++) {
        if (ngx_http_once_find_handler(cf, &ngx_http_once_upstreams[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    locations = omcf->locations.elts;

    for (i = 0; i < omcf->locations.nelts; i++) {
        if (ngx_http_once_check_location(cf, locations[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    ngx_http_once_warn_of_ends(cf, omcf);

    return ngx_http_once_watch_pages(cf, omcf);
}


static ngx_int_t
ngx_http_once_check_location(ngx_conf_t *cf, void **loc_conf)
{
    ngx_uint_t                  i;
    ngx_http_once_store_t     **store;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_once_loc_conf_t   *olcf;
    ngx_http_once_main_conf_t  *omcf;

    omcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_once_module);
    olcf = loc_conf[ngx_http_once_module.ctx_index];
    clcf = loc_conf[ngx_http_core_module.ctx_index];

    store = omcf->stores.elts;

    for (i = 0; i < omcf->stores.nelts; i++) {
        if (store[i]->name.len == olcf->name.len
            && ngx_strncmp(store[i]->name.data, olcf->name.data,
                           olcf->name.len)
               == 0)
        {
            olcf->store = store[i];
        }
    }

    if (olcf->store == NULL) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"once %V\": there is no \"once_store\" of this name "
                      "in %V:%ui", &olcf->name, &olcf->file, olcf->line);
        return NGX_ERROR;
    }

    ngx_http_once_set_policy(olcf);

    if (ngx_http_once_set_route(cf, olcf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (olcf->handler == NULL) {

        if (ngx_http_once_dav(loc_conf, olcf->methods)) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"once\" cannot guard \"dav_methods\" in %V:%ui",
                          &olcf->file, olcf->line);
            return NGX_ERROR;
        }

        if (!olcf->direct || clcf->name.len == 0 || clcf->noname) {
            return NGX_OK;      /* inherited, and nothing to be guarded */
        }

        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"once\" guards proxied locations only, and "
                      "location \"%V\" has no \"proxy_pass\" in %V:%ui",
                      &clcf->name, &olcf->file, olcf->line);
        return NGX_ERROR;
    }

    if (ngx_http_once_check_scope(cf, loc_conf) != NGX_OK
        || ngx_http_once_check_values(cf, olcf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_once_check_upstream(cf, loc_conf);
}


/* locations of one name and one store count together */

static ngx_int_t
ngx_http_once_set_route(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf)
{
    ngx_uint_t               i;
    ngx_array_t             *routes;
    ngx_http_once_route_t  **route;

    routes = &olcf->store->routes;
    route = routes->elts;

    for (i = 0; i < routes->nelts; i++) {
        if (route[i]->name.len == olcf->route_name.len
            && ngx_strncmp(route[i]->name.data, olcf->route_name.data,
                           olcf->route_name.len)
               == 0)
        {
            olcf->route = route[i];
            return NGX_OK;
        }
    }

    if (routes->nelts == NGX_HTTP_ONCE_NROUTES) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "there are more than %ui names of \"once_route\" for "
                      "one store in %V:%ui",
                      (ngx_uint_t) NGX_HTTP_ONCE_NROUTES, &olcf->file,
                      olcf->line);
        return NGX_ERROR;
    }

    olcf->route = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_route_t));
    route = ngx_array_push(routes);

    if (olcf->route == NULL || route == NULL) {
        return NGX_ERROR;
    }

    olcf->route->name = olcf->route_name;
    *route = olcf->route;

    return NGX_OK;
}


/* the rules are there already */

static void
ngx_http_once_set_policy(ngx_http_once_loc_conf_t *olcf)
{
    once__policy  *policy;

    policy = &olcf->policy;

    policy->takeover = (olcf->lost == NGX_HTTP_ONCE_TAKE_LOST);
    policy->bypass = (olcf->store_failure == NGX_HTTP_ONCE_BYPASS);
    policy->dry_run = (int) olcf->dry_run;
    policy->two_phase = (int) olcf->two_phase;
    policy->lease_ms = (uint32_t) olcf->lease;
    policy->wait_ms = (uint32_t) olcf->wait;
    policy->store_ms = (uint32_t) olcf->store->timeout;
    policy->keep_ms = olcf->ttl;
}



static ngx_int_t
ngx_http_once_check_values(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf)
{
    if (olcf->lease < ONCE_LEASE_MIN_MS || olcf->lease > ONCE_LEASE_MAX_MS) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"once_lease\" is %Mms, it must be %ui ms to %ui ms "
                      "in %V:%ui", olcf->lease,
                      (ngx_uint_t) ONCE_LEASE_MIN_MS,
                      (ngx_uint_t) ONCE_LEASE_MAX_MS,
                      &olcf->file, olcf->line);
        return NGX_ERROR;
    }

    if (olcf->ttl < olcf->lease || olcf->ttl > ONCE_KEEP_MAX_MS) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"once_ttl\" is %Mms, it must not be below "
                      "\"once_lease\" (%Mms), nor over ten years in %V:%ui",
                      olcf->ttl, olcf->lease, &olcf->file, olcf->line);
        return NGX_ERROR;
    }

    if (olcf->max_response > NGX_HTTP_ONCE_RESPONSE_MAX) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"once_max_response\" is %uz, the limit is %ui "
                      "in %V:%ui", olcf->max_response,
                      (ngx_uint_t) NGX_HTTP_ONCE_RESPONSE_MAX,
                      &olcf->file, olcf->line);
        return NGX_ERROR;
    }

    if (olcf->store_failure == NGX_HTTP_ONCE_BYPASS
        && olcf->lost != NGX_HTTP_ONCE_TAKE_LOST)
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"once_store_failure bypass\" needs "
                      "\"once_lost takeover\": there is no failing open "
                      "under \"hold\" in %V:%ui", &olcf->file, olcf->line);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_check_upstream(ngx_conf_t *cf, void **loc_conf)
{
    ngx_uint_t                 i;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_once_loc_conf_t  *olcf;
#if (NGX_HTTP_CACHE)
    ngx_http_upstream_conf_t  *uc;
#endif

    olcf = loc_conf[ngx_http_once_module.ctx_index];
    clcf = loc_conf[ngx_http_core_module.ctx_index];

    for (i = 0; i < NGX_HTTP_ONCE_NUPSTREAMS; i++) {
        if (olcf->handler == ngx_http_once_upstreams[i].handler) {
            break;
        }
    }

    if (i == NGX_HTTP_ONCE_NUPSTREAMS) {
        return NGX_OK;
    }

    if (i == NGX_HTTP_ONCE_GRPC) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"once\" cannot guard \"grpc_pass\" of location "
                      "\"%V\" in %V:%ui",
                      &clcf->name, &olcf->file, olcf->line);
        return NGX_ERROR;
    }

#if (NGX_HTTP_CACHE)

    uc = loc_conf[ngx_http_once_upstreams[i].module->ctx_index];

    if (uc->cache && (uc->cache_methods & olcf->methods)) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"once\" cannot guard a method that is in "
                      "\"%s_cache_methods\" of location \"%V\": a cached "
                      "response is not the outcome of a request in %V:%ui",
                      ngx_http_once_upstreams[i].name, &clcf->name,
                      &olcf->file, olcf->line);
        return NGX_ERROR;
    }

#endif

    return NGX_OK;
}


/*
 * The content handlers of nginx's modules have no names outside of them, and
 * "proxy_pass" with a variable leaves nothing else that could be looked at.
 * So the directive is run once, for a location that no request can reach.
 */

static ngx_int_t
ngx_http_once_find_handler(ngx_conf_t *cf, ngx_http_once_upstream_t *upstream)
{
    char                      *rv;
    size_t                     len;
    ngx_str_t                  args[2];
    ngx_conf_t                 conf;
    ngx_array_t                array;
    ngx_command_t             *cmd;
    ngx_http_module_t         *core, *module;
    ngx_http_conf_ctx_t        ctx;
    ngx_http_core_loc_conf_t  *clcf;

    upstream->handler = NULL;

    if (upstream->module == NULL) {
        return NGX_OK;
    }

    core = ngx_http_core_module.ctx;
    module = upstream->module->ctx;
    len = ngx_strlen(upstream->name);

    ctx = *(ngx_http_conf_ctx_t *) cf->ctx;

    ctx.loc_conf = ngx_pcalloc(cf->pool, sizeof(void *) * ngx_http_max_module);
    if (ctx.loc_conf == NULL) {
        return NGX_ERROR;
    }

    clcf = core->create_loc_conf(cf);
    ctx.loc_conf[ngx_http_core_module.ctx_index] = clcf;
    ctx.loc_conf[upstream->module->ctx_index] = module->create_loc_conf(cf);

    if (clcf == NULL
        || ctx.loc_conf[upstream->module->ctx_index] == NULL)
    {
        return NGX_ERROR;
    }

    ngx_str_null(&args[0]);
    ngx_str_set(&args[1], "$host");

    ngx_memzero(&array, sizeof(ngx_array_t));
    array.elts = args;
    array.nelts = 2;

    conf = *cf;
    conf.ctx = &ctx;
    conf.args = &array;

    for (cmd = upstream->module->commands; cmd->name.len; cmd++) {

        if (cmd->name.len == len + sizeof("_pass") - 1
            && ngx_strncmp(cmd->name.data, upstream->name, len) == 0
            && ngx_strcmp(cmd->name.data + len, "_pass") == 0)
        {
            rv = cmd->set(&conf, cmd,
                          ctx.loc_conf[upstream->module->ctx_index]);

            if (rv == NGX_CONF_OK && clcf->handler != NULL) {
                upstream->handler = clcf->handler;
                return NGX_OK;
            }
        }
    }

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "once: the handler of \"%s_pass\" was not found",
                  upstream->name);

    return NGX_ERROR;
}


/*
 * Where the end of the connection ends a response, a response that was cut
 * looks like a whole one.  Nobody can know later, so the log says it here.
 */

static void
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
                      "\"Content-Length\" looks like the loss of its "
                      "connection: %s for location \"%V\" in %V:%ui",
                      upstream->protocol,
                      cmd ? "use \"proxy_http_version 1.1\""
                          : "let the service send that header",
                      &clcf->name, &olcf->file, olcf->line);
    }
}


/* --- directives --- */

/*
 * The URL of a store that was named is read now: by the user that starts nginx,
 * and once for all workers.
 */

static char *
ngx_http_once_url(ngx_conf_t *cf, ngx_str_t *url)
{
    size_t              len;
    const char         *found;
    once_error          err;
    struct once__named  named;

    err.text[0] = '\0';

    if (once__named_url((char *) url->data, &named, &found, &err) != ONCE_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"once_store\": %s",
                           err.text);
        return NGX_CONF_ERROR;
    }

    if (found == (char *) url->data) {
        return NGX_CONF_OK;
    }

    len = ngx_strlen(found);
    url->data = ngx_pnalloc(cf->pool, len + 1);

    if (url->data == NULL) {
        return NGX_CONF_ERROR;
    }

    url->len = len;
    ngx_memcpy(url->data, found, len + 1);

    return NGX_CONF_OK;
}


static char *
ngx_http_once_store(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_main_conf_t *omcf = conf;

    char                    *witness;
    ngx_str_t               *value, time;
    ngx_int_t                timeout;
    ngx_uint_t               i;
    ngx_http_once_store_t   *store, **elt;

    value = cf->args->elts;
    elt = omcf->stores.elts;

    if (value[1].len == 0 || value[1].len > 64
        || ngx_strcmp(value[1].data, "off") == 0)
    {
        return "needs a name of 1 to 64 characters that is not \"off\"";
    }

    if (!ngx_http_once_is_name(&value[1])) {
        return "needs a name of letters, digits, \"_\" and \"-\"";
    }

    for (i = 0; i < omcf->stores.nelts; i++) {
        if (ngx_strcmp(elt[i]->name.data, value[1].data) == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"once_store\": \"%V\" is defined already",
                               &value[1]);
            return NGX_CONF_ERROR;
        }
    }

    timeout = 1000;

    witness = NULL;

    for (i = 3; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "witness=", 8) == 0) {
            witness = (char *) value[i].data + 8;

            if (witness[0] != '/' && ngx_strcmp(witness, "off") != 0) {
                return "needs a witness that is a folder, or \"off\"";
            }

            continue;
        }

        if (ngx_strncmp(value[i].data, "timeout=", 8) != 0) {
            return "knows \"timeout=\" and \"witness=\" only";
        }

        time.data = value[i].data + 8;
        time.len = value[i].len - 8;
        timeout = ngx_parse_time(&time, 0);

        if (timeout == NGX_ERROR || timeout < 10 || timeout > 60000) {
            return "needs a timeout of 10ms to 60s";
        }
    }

    if (witness == NULL && access(NGX_HTTP_ONCE_WITNESS, X_OK) == 0) {
        witness = NGX_HTTP_ONCE_WITNESS;
    }

    if (witness != NULL && ngx_strcmp(witness, "off") == 0) {
        witness = NULL;
    }

    store = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_store_t));
    elt = ngx_array_push(&omcf->stores);

    if (store == NULL || elt == NULL) {
        return NGX_CONF_ERROR;
    }

    store->name = value[1];
    store->url = value[2];
    store->timeout = (ngx_msec_t) timeout;
    store->witness = witness;
    store->file = cf->conf_file->file.name;
    store->line = cf->conf_file->line;
    *elt = store;

    if (ngx_array_init(&store->routes, cf->pool, 2,
                       sizeof(ngx_http_once_route_t *))
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return ngx_http_once_url(cf, &store->url);
}


static ngx_uint_t
ngx_http_once_is_name(ngx_str_t *name)
{
    u_char  *p;

    for (p = name->data; *p; p++) {
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z')
              || (*p >= '0' && *p <= '9') || *p == '_' || *p == '-'))
        {
            return 0;
        }
    }

    return 1;
}


static char *
ngx_http_once_route_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t  *value;

    if (olcf->route_name.data != NULL) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0 || value[1].len > NGX_HTTP_ONCE_ROUTE_LEN
        || !ngx_http_once_is_name(&value[1]))
    {
        return "needs a name of 1 to 64 letters, digits, \"_\" and \"-\"";
    }

    olcf->route_name = value[1];

    return NGX_CONF_OK;
}


static char *
ngx_http_once_once(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t  *value;

    if (olcf->name.data != NULL) {
        return "is duplicate";
    }

    value = cf->args->elts;

    olcf->name = value[1];
    olcf->file = cf->conf_file->file.name;
    olcf->line = cf->conf_file->line;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        olcf->name.len = 0;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_once_label(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t  *value;

    if (olcf->label != NULL || olcf->label_off != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        olcf->label_off = 1;
        return NGX_CONF_OK;
    }

    olcf->label_off = 0;
    olcf->label = ngx_http_once_compile(cf, (char *) value[1].data);

    return olcf->label ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static char *
ngx_http_once_key_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    u_char     *p;
    ngx_str_t  *value;

    if (olcf->key != NULL || olcf->key_header.len) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len > sizeof("$http_") - 1
        && ngx_strncmp(value[1].data, "$http_", 6) == 0)
    {
        for (p = value[1].data + 6; *p; p++) {

            /* names of variables know no case */

            *p = ngx_tolower(*p);

            if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9')
                  || *p == '_'))
            {
                break;
            }
        }

        if (*p == '\0') {

            /* one header: its lines can be counted */

            olcf->key_header.len = value[1].len - 6;
            olcf->key_header.data = value[1].data + 6;

            return NGX_CONF_OK;
        }
    }

    olcf->key = ngx_http_once_compile(cf, (char *) value[1].data);

    return olcf->key ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static char *
ngx_http_once_methods(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i, n;

    if (olcf->methods) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        for (n = 0; n < NGX_HTTP_ONCE_NMETHODS; n++) {
            if (ngx_strcmp(value[i].data,
                           ngx_http_once_method_names[n].name.data)
                == 0)
            {
                olcf->methods |= ngx_http_once_method_names[n].method;
                break;
            }
        }

        if (n == NGX_HTTP_ONCE_NMETHODS) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"once_methods\": \"%V\" is not a method "
                               "that changes something", &value[i]);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_once_fingerprint(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    unsigned     counts;
    ngx_str_t   *value;
    ngx_uint_t   i;
    once_bytes   text;

    if (olcf->counts) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strchr(value[1].data, '$') != NULL) {
        olcf->counts = ONCE__COUNT_ALL;
        olcf->fingerprint = ngx_http_once_compile(cf, (char *) value[1].data);

        return olcf->fingerprint ? NGX_CONF_OK : NGX_CONF_ERROR;
    }

    counts = 0;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strchr(value[i].data, '$') != NULL) {
            return "takes a variable alone";
        }

        text.data = value[i].data;
        text.size = value[i].len;

        if (!once__counts_add(&counts, text)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"once_fingerprint\" takes \"body\", \"query\" "
                               "and \"type\", or a variable, not \"%V\"",
                               &value[i]);
            return NGX_CONF_ERROR;
        }
    }

    olcf->counts = counts;

    return NGX_CONF_OK;
}


static char *
ngx_http_once_in_flight(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t  *value, time;
    ngx_int_t   wait;

    if (olcf->wait != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "reject") == 0) {
        olcf->wait = 0;
        return NGX_CONF_OK;
    }

    if (ngx_strncmp(value[1].data, "wait=", 5) != 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"once_in_flight\" takes \"reject\" or "
                           "\"wait=TIME\", not \"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    time.data = value[1].data + 5;
    time.len = value[1].len - 5;
    wait = ngx_parse_time(&time, 0);

    if (wait == NGX_ERROR || wait < 1 || wait > NGX_HTTP_ONCE_WAIT_MAX) {
        return "needs a time of 1ms to 10m";
    }

    olcf->wait = (ngx_msec_t) wait;

    return NGX_CONF_OK;
}


static char *
ngx_http_once_statuses(ngx_conf_t *cf, once__statuses **set,
    int (*add)(once__statuses *set, once_bytes text, once_error *err))
{
    ngx_str_t   *value;
    ngx_uint_t   i;
    once_bytes   text;
    once_error   err;

    if (*set != NULL) {
        return "is duplicate";
    }

    *set = ngx_pcalloc(cf->pool, sizeof(once__statuses));
    if (*set == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        text.data = value[i].data;
        text.size = value[i].len;

        if (add(*set, text, &err) != ONCE_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" does not know \"%V\": %s",
                               &value[0], &value[i], err.text);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_once_final(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    return ngx_http_once_statuses(cf, &olcf->final, once__statuses_add);
}


static char *
ngx_http_once_release(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    return ngx_http_once_statuses(cf, &olcf->release,
                                  once__statuses_add_released);
}


static char *
ngx_http_once_hide_header(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t   *value;
    once_bytes  *name;

    if (olcf->hide == NGX_CONF_UNSET_PTR) {
        olcf->hide = ngx_array_create(cf->pool, 4, sizeof(once_bytes));
        if (olcf->hide == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    value = cf->args->elts;

    name = ngx_array_push(olcf->hide);
    if (name == NULL) {
        return NGX_CONF_ERROR;
    }

    name->data = value[1].data;
    name->size = value[1].len;

    return NGX_CONF_OK;
}


/* as ngx_conf_set_enum_slot(), but says what it would take */

static char *
ngx_http_once_enum(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t        *value;
    ngx_uint_t       *np;
    ngx_conf_enum_t  *e;

    np = (ngx_uint_t *) (p + cmd->offset);

    if (*np != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (e = cmd->post; e->name.len; e++) {
        if (ngx_strcmp(e->name.data, value[1].data) == 0) {
            *np = e->value;
            return NGX_CONF_OK;
        }
    }

    e = cmd->post;
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"%V\" takes \"%V\" or \"%V\", not \"%V\"",
                       &cmd->name, &e[0].name, &e[1].name, &value[1]);

    return NGX_CONF_ERROR;
}
