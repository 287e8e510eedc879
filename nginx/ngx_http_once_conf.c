
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Directives, their limits and their merging.  What could weaken the guarantee
 * is refused here, when the configuration is read: see README.md in this
 * folder.
 */


#include "ngx_http_once_conf.h"
#include "ngx_http_once_check.h"
#include "ngx_http_once_lookup.h"
#include "ngx_http_once_status.h"
#include "base/named.h"


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


static ngx_conf_enum_t  ngx_http_once_key_space[] = {
    { ngx_string("realm"), NGX_HTTP_ONCE_OF_REALM },
    { ngx_string("path"), NGX_HTTP_ONCE_OF_PATH },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_once_repeat[] = {
    { ngx_string("replay"), NGX_HTTP_ONCE_REPLAY },
    { ngx_string("refuse"), NGX_HTTP_ONCE_REFUSE },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_once_method_names[] = {
    { ngx_string("POST"), NGX_HTTP_POST },
    { ngx_string("PATCH"), NGX_HTTP_PATCH },
    { ngx_string("PUT"), NGX_HTTP_PUT },
    { ngx_string("DELETE"), NGX_HTTP_DELETE },
    { ngx_string("MKCOL"), NGX_HTTP_MKCOL },
    { ngx_string("COPY"), NGX_HTTP_COPY },
    { ngx_string("MOVE"), NGX_HTTP_MOVE },
    { ngx_string("PROPPATCH"), NGX_HTTP_PROPPATCH },
    { ngx_string("LOCK"), NGX_HTTP_LOCK },
    { ngx_string("UNLOCK"), NGX_HTTP_UNLOCK },
    { ngx_null_string, 0 }
};


/* --- directives --- */

static ngx_conf_enum_t *
ngx_http_once_find_enum(ngx_conf_enum_t *e, ngx_str_t *value)
{
    for ( /* void */ ; e->name.len; e++) {
        if (ngx_strcmp(e->name.data, value->data) == 0) {
            return e;
        }
    }

    return NULL;
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

    return name->len >= 1 && name->len <= NGX_HTTP_ONCE_NAME_LEN;
}


/* NGX_DECLINED: it does not begin like this; NGX_ERROR: outside of the
 * limits */

static ngx_int_t
ngx_http_once_time(ngx_str_t *value, const char *prefix, ngx_int_t min,
    ngx_int_t max)
{
    size_t     len;
    ngx_int_t  ms;
    ngx_str_t  time;

    len = ngx_strlen(prefix);

    if (ngx_strncmp(value->data, prefix, len) != 0) {
        return NGX_DECLINED;
    }

    time.data = value->data + len;
    time.len = value->len - len;
    ms = ngx_parse_time(&time, 0);

    return (ms >= min && ms <= max) ? ms : NGX_ERROR;
}


/*
 * The URL of a store that was named is read now: by the user that starts nginx,
 * and once for all workers.
 */

static char *
ngx_http_once_url(ngx_conf_t *cf, ngx_http_once_store_t *store)
{
    size_t              len;
    ngx_str_t          *url = &store->url;
    ngx_uint_t          storeless;
    const char         *found;
    once_error          err;
    struct once__named  named;

    if (ngx_http_once_storeless(cf->log, &storeless) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    err.text[0] = '\0';

    if (once__named_url((char *) url->data, &named, &found, &err) != ONCE_OK) {

        if (storeless) {
            ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                               "\"once_store\": %s; ONCE_CHECK=off lets it "
                               "pass this test, and nginx will not start so",
                               err.text);
            store->unnamed = 1;
            return NGX_CONF_OK;
        }

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
ngx_http_once_store_params(ngx_conf_t *cf, ngx_http_once_store_t *store)
{
    ngx_int_t    timeout;
    ngx_str_t   *value;
    ngx_uint_t   i;

    value = cf->args->elts;
    store->timeout = 1000;

    for (i = 3; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "witness=", 8) == 0) {
            store->witness = (char *) value[i].data + 8;

            if (store->witness[0] != '/'
                && ngx_strcmp(store->witness, "off") != 0)
            {
                return "needs a witness that is a folder, or \"off\"";
            }

            continue;
        }

        timeout = ngx_http_once_time(&value[i], "timeout=", 10, 60000);

        if (timeout == NGX_DECLINED) {
            return "knows \"timeout=\" and \"witness=\" only";
        }

        if (timeout == NGX_ERROR) {
            return "needs a timeout of 10ms to 60s";
        }

        store->timeout = (ngx_msec_t) timeout;
    }

    if (store->witness == NULL && access(NGX_HTTP_ONCE_WITNESS, X_OK) == 0) {
        store->witness = NGX_HTTP_ONCE_WITNESS;
    }

    if (store->witness != NULL && ngx_strcmp(store->witness, "off") == 0) {
        store->witness = NULL;
    }

    return NGX_CONF_OK;
}


static ngx_http_once_store_t *
ngx_http_once_find_store(ngx_http_once_main_conf_t *omcf, ngx_str_t *name)
{
    ngx_uint_t               i;
    ngx_http_once_store_t  **store;

    store = omcf->stores.elts;

    for (i = 0; i < omcf->stores.nelts; i++) {
        if (ngx_http_once_same(&store[i]->name, name)) {
            return store[i];
        }
    }

    return NULL;
}


static char *
ngx_http_once_store(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_main_conf_t *omcf = conf;

    char                    *rv;
    ngx_str_t               *value;
    ngx_http_once_store_t   *store, **elt;

    value = cf->args->elts;

    if (!ngx_http_once_is_name(&value[1])
        || ngx_strcmp(value[1].data, "off") == 0)
    {
        return "needs a name of 1 to 64 letters, digits, \"_\" and \"-\" that "
               "is not \"off\"";
    }

    if (ngx_http_once_find_store(omcf, &value[1]) != NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"once_store\": \"%V\" is defined already",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    store = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_store_t));
    elt = ngx_array_push(&omcf->stores);

    if (store == NULL || elt == NULL
        || ngx_array_init(&store->routes, cf->pool, 2,
                          sizeof(ngx_http_once_route_t *))
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    store->name = value[1];
    store->url = value[2];
    store->file = cf->conf_file->file.name;
    store->line = cf->conf_file->line;
    *elt = store;

    rv = ngx_http_once_store_params(cf, store);

    return (rv == NGX_CONF_OK) ? ngx_http_once_url(cf, store) : rv;
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

    if (!ngx_http_once_is_name(&value[1])) {
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
    olcf->label = ngx_http_once_compile(cf, &value[1], NULL);

    return olcf->label ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* "$http_x" alone, in lower case, as names of variables know no case */

static ngx_uint_t
ngx_http_once_is_header_variable(ngx_str_t *value)
{
    u_char  *p;

    if (value->len <= sizeof("$http_") - 1
        || ngx_strncmp(value->data, "$http_", 6) != 0)
    {
        return 0;
    }

    for (p = value->data + 6; *p; p++) {
        *p = ngx_tolower(*p);

        if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9')
              || *p == '_'))
        {
            return 0;
        }
    }

    return 1;
}


static char *
ngx_http_once_key_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t  *value;

    if (olcf->key != NULL || olcf->key_header.len) {
        return "is duplicate";
    }

    if (olcf->key_json != NULL) {
        return "stands beside \"once_key_json\": the key is in one place";
    }

    value = cf->args->elts;

    if (ngx_http_once_is_header_variable(&value[1])) {

        /* one header: its lines can be counted */

        olcf->key_header.len = value[1].len - 6;
        olcf->key_header.data = value[1].data + 6;

        return NGX_CONF_OK;
    }

    olcf->key = ngx_http_once_compile_text(cf, &value[1], NULL);

    if (olcf->key == NULL) {
        return NGX_CONF_ERROR;
    }

    if (olcf->key->nvariables == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"once_key %V\" is the same for every request: "
                           "use a variable that holds the key",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_once_key_json(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t   *value;
    once_error   err;
    ngx_uint_t   i;

    if (olcf->key_json != NULL) {
        return "is duplicate";
    }

    if (olcf->key != NULL || olcf->key_header.len) {
        return "stands beside \"once_key\": the key is in one place";
    }

    olcf->key_json = ngx_pcalloc(cf->pool, sizeof(once__key_pointers));
    if (olcf->key_json == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        if (once__key_pointers_add(olcf->key_json,
                                   ngx_http_once_bytes(&value[i]), &err)
            != ONCE_OK)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"once_key_json\": %s",
                               err.text);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_once_methods(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t        *value;
    ngx_uint_t        i;
    ngx_conf_enum_t  *e;

    if (olcf->methods) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        e = ngx_http_once_find_enum(ngx_http_once_method_names, &value[i]);

        if (e == NULL) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"once_methods\": \"%V\" is not a method "
                               "that changes something", &value[i]);
            return NGX_CONF_ERROR;
        }

        olcf->methods |= e->value;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_once_fingerprint(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    int          rc;
    ngx_str_t   *value;
    once_error   err;
    ngx_uint_t   i;

    if (olcf->compared != NULL) {
        return "is duplicate";
    }

    olcf->compared = ngx_pcalloc(cf->pool, sizeof(once__compared));
    if (olcf->compared == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strchr(value[1].data, '$') != NULL
        && ngx_strncmp(value[1].data, "but=", 4) != 0)
    {
        olcf->compared->counts = ONCE__COUNT_ALL;
        olcf->fingerprint = ngx_http_once_compile_text(cf, &value[1], NULL);

        return olcf->fingerprint ? NGX_CONF_OK : NGX_CONF_ERROR;
    }

    rc = ONCE_OK;

    for (i = 1; rc == ONCE_OK && i < cf->args->nelts; i++) {

        if (ngx_strchr(value[i].data, '$') != NULL
            && ngx_strncmp(value[i].data, "but=", 4) != 0)
        {
            return "takes a variable alone";
        }

        rc = once__compared_add(olcf->compared, ngx_http_once_bytes(&value[i]),
                                &err);
    }

    if (rc == ONCE_OK) {
        rc = once__compared_check(olcf->compared, &err);
    }

    if (rc != ONCE_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"once_fingerprint\": %s",
                           err.text);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* "accept=" of "once_in_flight" */

static char *
ngx_http_once_accept(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf,
    ngx_str_t *value)
{
    once_error  err;

    olcf->accept.data = value->data + 7;
    olcf->accept.len = value->len - 7;

    if (once__accept_check(ngx_http_once_bytes(&olcf->accept), &err)
        != ONCE_OK)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"once_in_flight\": %s",
                           err.text);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_once_in_flight(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t  *value;
    ngx_int_t   wait;
    ngx_uint_t  i;

    if (olcf->wait != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;
    i = 1;

    wait = ngx_http_once_time(&value[1], "wait=", 1, NGX_HTTP_ONCE_WAIT_MAX);

    if (wait == NGX_ERROR) {
        return "needs a time of 1ms to 10m";
    }

    olcf->wait = (wait == NGX_DECLINED) ? 0 : (ngx_msec_t) wait;

    if (wait != NGX_DECLINED || (cf->args->nelts == 2
                                 && ngx_strcmp(value[1].data, "reject") == 0))
    {
        i++;
    }

    if (i == cf->args->nelts) {
        return NGX_CONF_OK;
    }

    if (i + 1 == cf->args->nelts
        && ngx_strncmp(value[i].data, "accept=", 7) == 0)
    {
        return ngx_http_once_accept(cf, olcf, &value[i]);
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"once_in_flight\" takes \"reject\", or \"wait=TIME\" "
                       "and \"accept=/URI\", not \"%V\"", &value[i]);

    return NGX_CONF_ERROR;
}


/* "once_lookup": the location is this, and nothing else */

static char *
ngx_http_once_lookup(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_int_t                  wait;
    ngx_str_t                 *value;
    ngx_http_core_loc_conf_t  *clcf;

    if (olcf->lookup != NULL) {
        return "is duplicate";
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler != NULL) {
        return "needs a location in which nothing else answers";
    }

    olcf->lookup = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_lookup_t));
    if (olcf->lookup == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    if (cf->args->nelts == 3) {
        wait = ngx_http_once_time(&value[2], "wait=", 1,
                                  NGX_HTTP_ONCE_WAIT_MAX);

        if (wait < 0) {
            return "takes \"wait=TIME\", of 1ms to 10m, behind its store";
        }

        olcf->lookup->wait = (ngx_msec_t) wait;
    }

    olcf->lookup->name = value[1];
    olcf->lookup->file = cf->conf_file->file.name;
    olcf->lookup->line = cf->conf_file->line;
    clcf->handler = ngx_http_once_lookup_handler;

    return NGX_CONF_OK;
}


static char *
ngx_http_once_ttl(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_int_t   ttl, failure;
    ngx_str_t  *value;

    if (olcf->ttl != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;
    ttl = ngx_http_once_time(&value[1], "", 0, NGX_MAX_INT_T_VALUE);
    failure = 0;

    if (cf->args->nelts == 3) {
        failure = ngx_http_once_time(&value[2], "failure=", 1,
                                     NGX_MAX_INT_T_VALUE);
    }

    if (ttl < 0 || failure < 0) {
        return "needs a time, and takes \"failure=TIME\" behind it";
    }

    olcf->ttl = (ngx_msec_t) ttl;
    olcf->ttl_failure = (ngx_msec_t) failure;

    return NGX_CONF_OK;
}


static char *
ngx_http_once_key_time(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    int         form;
    ngx_int_t   max_age;
    ngx_str_t  *value;

    if (olcf->key_form != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;
    form = once__key_form(ngx_http_once_bytes(&value[1]));
    max_age = 0;

    if (cf->args->nelts == 3) {
        max_age = ngx_http_once_time(&value[2], "max_age=", 1,
                                     NGX_MAX_INT_T_VALUE);
    }

    if (form == ONCE__KEY_ANY || max_age < 0) {
        return "needs \"uuid7\" or \"ulid\", and takes \"max_age=TIME\" "
               "behind it";
    }

    olcf->key_form = (ngx_uint_t) form;
    olcf->max_age = (ngx_msec_t) max_age;

    return NGX_CONF_OK;
}


/* "once_final", "once_release" and "once_unknown" */

typedef int (*ngx_http_once_add_status_pt)(once__statuses *set,
    once_bytes text, once_error *err);


static ngx_http_once_add_status_pt
ngx_http_once_status_adder(ngx_command_t *cmd)
{
    switch (cmd->offset) {

    case offsetof(ngx_http_once_loc_conf_t, release):
        return once__statuses_add_released;

    case offsetof(ngx_http_once_loc_conf_t, unknown):
        return once__statuses_add_unknown;

    default:
        return once__statuses_add;
    }
}


static char *
ngx_http_once_statuses(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t                    *value;
    once_error                    err;
    ngx_uint_t                    i;
    once__statuses              **set;
    ngx_http_once_add_status_pt   add;

    set = (once__statuses **) (p + cmd->offset);
    add = ngx_http_once_status_adder(cmd);

    if (*set != NULL) {
        return "is duplicate";
    }

    *set = ngx_pcalloc(cf->pool, sizeof(once__statuses));
    if (*set == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    if (add == once__statuses_add_unknown && cf->args->nelts == 2
        && ngx_strcmp(value[1].data, "off") == 0)
    {
        return NGX_CONF_OK;
    }

    for (i = 1; i < cf->args->nelts; i++) {

        if (add(*set, ngx_http_once_bytes(&value[i]), &err) != ONCE_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" does not know \"%V\": %s",
                               &value[0], &value[i], err.text);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_once_hide_header(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t   *value;
    once_bytes  *name;

    if (olcf->hide == NULL) {
        olcf->hide = ngx_array_create(cf->pool, 4, sizeof(once_bytes));
        if (olcf->hide == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    name = ngx_array_push(olcf->hide);
    if (name == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;
    *name = ngx_http_once_bytes(&value[1]);

    return NGX_CONF_OK;
}


/* a location of this server; it has no variables, so it is always the same */

static char *
ngx_http_once_probe_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t  *value;

    static ngx_str_t  off = ngx_string("");

    if (olcf->probe != NULL) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        olcf->probe = &off;
        return NGX_CONF_OK;
    }

    if (value[1].data[0] != '/'
        || strpbrk((char *) value[1].data, "$?#") != NULL)
    {
        return "needs a path without variables and \"?\", or \"off\"";
    }

    olcf->probe = ngx_palloc(cf->pool, sizeof(ngx_str_t));
    if (olcf->probe == NULL) {
        return NGX_CONF_ERROR;
    }

    *olcf->probe = value[1];

    return NGX_CONF_OK;
}


/* as ngx_conf_set_enum_slot(), but says what it would take */

static char *
ngx_http_once_enum(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t        *value;
    ngx_uint_t       *np;
    ngx_conf_enum_t  *e, *found;

    np = (ngx_uint_t *) (p + cmd->offset);

    if (*np != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;
    e = cmd->post;
    found = ngx_http_once_find_enum(e, &value[1]);

    if (found == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" takes \"%V\" or \"%V\", not \"%V\"",
                           &cmd->name, &e[0].name, &e[1].name, &value[1]);
        return NGX_CONF_ERROR;
    }

    *np = found->value;

    return NGX_CONF_OK;
}


#define ngx_http_once_own(name, args, set)                                    \
    { ngx_string(name),                                                       \
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|args,            \
      set, NGX_HTTP_LOC_CONF_OFFSET, 0, NULL }

#define ngx_http_once_slot(name, args, set, member, post)                     \
    { ngx_string(name),                                                       \
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|args,            \
      set, NGX_HTTP_LOC_CONF_OFFSET,                                          \
      offsetof(ngx_http_once_loc_conf_t, member), post }

#define ngx_http_once_flag(name, member)                                      \
    ngx_http_once_slot(name, NGX_CONF_FLAG, ngx_conf_set_flag_slot, member,   \
                       NULL)


ngx_command_t  ngx_http_once_commands[] = {

    { ngx_string("once_store"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE2|NGX_CONF_TAKE3|NGX_CONF_TAKE4,
      ngx_http_once_store,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    ngx_http_once_own("once", NGX_CONF_TAKE1, ngx_http_once_once),
    ngx_http_once_own("once_scope", NGX_CONF_TAKE1,
                      ngx_http_once_scope_directive),
    ngx_http_once_own("once_key", NGX_CONF_TAKE1, ngx_http_once_key_directive),
    ngx_http_once_own("once_key_json", NGX_CONF_1MORE, ngx_http_once_key_json),
    ngx_http_once_own("once_key_time", NGX_CONF_TAKE12,
                      ngx_http_once_key_time),
    ngx_http_once_flag("once_key_required", key_required),
    ngx_http_once_own("once_realm", NGX_CONF_TAKE1,
                      ngx_http_once_realm_directive),
    ngx_http_once_slot("once_key_space", NGX_CONF_TAKE1, ngx_http_once_enum,
                       key_space, &ngx_http_once_key_space),
    ngx_http_once_own("once_label", NGX_CONF_TAKE1, ngx_http_once_label),
    ngx_http_once_own("once_methods", NGX_CONF_1MORE, ngx_http_once_methods),
    ngx_http_once_own("once_fingerprint", NGX_CONF_1MORE,
                      ngx_http_once_fingerprint),
    ngx_http_once_own("once_in_flight", NGX_CONF_TAKE12,
                      ngx_http_once_in_flight),
    ngx_http_once_slot("once_repeat", NGX_CONF_TAKE1, ngx_http_once_enum,
                       repeat, &ngx_http_once_repeat),
    ngx_http_once_slot("once_final", NGX_CONF_1MORE, ngx_http_once_statuses,
                       final, NULL),
    ngx_http_once_slot("once_release", NGX_CONF_1MORE, ngx_http_once_statuses,
                       release, NULL),
    ngx_http_once_slot("once_unknown", NGX_CONF_1MORE, ngx_http_once_statuses,
                       unknown, NULL),
    ngx_http_once_slot("once_lost", NGX_CONF_TAKE1, ngx_http_once_enum, lost,
                       &ngx_http_once_lost),
    ngx_http_once_flag("once_two_phase", two_phase),
    ngx_http_once_slot("once_store_failure", NGX_CONF_TAKE1,
                       ngx_http_once_enum, store_failure,
                       &ngx_http_once_store_failure),
    ngx_http_once_own("once_ttl", NGX_CONF_TAKE12, ngx_http_once_ttl),
    ngx_http_once_slot("once_lease", NGX_CONF_TAKE1, ngx_conf_set_msec_slot,
                       lease, NULL),
    ngx_http_once_slot("once_max_response", NGX_CONF_TAKE1,
                       ngx_conf_set_size_slot, max_response, NULL),
    ngx_http_once_own("once_hide_header", NGX_CONF_TAKE1,
                      ngx_http_once_hide_header),
    ngx_http_once_flag("once_store_cookies", store_cookies),
    ngx_http_once_flag("once_cors_expose", cors_expose),
    ngx_http_once_flag("once_dry_run", dry_run),
    ngx_http_once_own("once_probe", NGX_CONF_TAKE1,
                      ngx_http_once_probe_directive),
    ngx_http_once_own("once_route", NGX_CONF_TAKE1,
                      ngx_http_once_route_directive),

    { ngx_string("once_lookup"),
      NGX_HTTP_LOC_CONF|NGX_CONF_TAKE12,
      ngx_http_once_lookup,
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

/*
 * Members of the size of a pointer: what stands there where no directive has
 * set it, and what is meant where no level has.
 */

#define ngx_http_once_member(member, unset, value)                            \
    { offsetof(ngx_http_once_loc_conf_t, member), unset, value }

static const struct {
    size_t    offset;
    intptr_t  unset;
    intptr_t  value;
} ngx_http_once_members[] = {
    ngx_http_once_member(key_required, NGX_CONF_UNSET, 0),
    ngx_http_once_member(key_form, NGX_CONF_UNSET, ONCE__KEY_ANY),
    ngx_http_once_member(max_age, NGX_CONF_UNSET, 0),
    ngx_http_once_member(key_space, NGX_CONF_UNSET, NGX_HTTP_ONCE_OF_REALM),
    ngx_http_once_member(wait, NGX_CONF_UNSET, 0),
    ngx_http_once_member(repeat, NGX_CONF_UNSET, NGX_HTTP_ONCE_REPLAY),
    ngx_http_once_member(lost, NGX_CONF_UNSET, NGX_HTTP_ONCE_HOLD_LOST),
    ngx_http_once_member(two_phase, NGX_CONF_UNSET, 0),
    ngx_http_once_member(store_failure, NGX_CONF_UNSET, NGX_HTTP_ONCE_DENY),
    ngx_http_once_member(ttl, NGX_CONF_UNSET, 86400000),
    ngx_http_once_member(ttl_failure, NGX_CONF_UNSET, 0),
    ngx_http_once_member(lease, NGX_CONF_UNSET, 30000),
    ngx_http_once_member(max_response, NGX_CONF_UNSET, 1024 * 1024),
    ngx_http_once_member(store_cookies, NGX_CONF_UNSET, 0),
    ngx_http_once_member(cors_expose, NGX_CONF_UNSET, 0),
    ngx_http_once_member(dry_run, NGX_CONF_UNSET, 0),
    ngx_http_once_member(methods, 0, NGX_HTTP_POST|NGX_HTTP_PATCH),
    ngx_http_once_member(realm, 0, 0),
    ngx_http_once_member(final, 0, 0),
    ngx_http_once_member(release, 0, 0),
    ngx_http_once_member(unknown, 0, 0),
    ngx_http_once_member(hide, 0, 0),
    ngx_http_once_member(probe, 0, 0)
};


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
           != NGX_OK
        || ngx_array_init(&omcf->lookups, cf->pool, 2, sizeof(void **))
           != NGX_OK)
    {
        return NULL;
    }

    return omcf;
}


void *
ngx_http_once_create_loc_conf(ngx_conf_t *cf)
{
    u_char                    *p;
    ngx_uint_t                 i;
    ngx_http_once_loc_conf_t  *olcf;

    olcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_loc_conf_t));
    if (olcf == NULL) {
        return NULL;
    }

    olcf->scope_off = NGX_CONF_UNSET;
    olcf->label_off = NGX_CONF_UNSET;

    for (i = 0; i < ngx_http_once_count(ngx_http_once_members); i++) {
        p = (u_char *) olcf + ngx_http_once_members[i].offset;
        ngx_memcpy(p, &ngx_http_once_members[i].unset, sizeof(intptr_t));
    }

    return olcf;
}


static void
ngx_http_once_merge_members(ngx_http_once_loc_conf_t *prev,
    ngx_http_once_loc_conf_t *conf)
{
    size_t      offset;
    intptr_t    value, above;
    ngx_uint_t  i;

    for (i = 0; i < ngx_http_once_count(ngx_http_once_members); i++) {
        offset = ngx_http_once_members[i].offset;
        ngx_memcpy(&value, (u_char *) conf + offset, sizeof(intptr_t));
        ngx_memcpy(&above, (u_char *) prev + offset, sizeof(intptr_t));

        if (value == ngx_http_once_members[i].unset) {
            value = (above == ngx_http_once_members[i].unset)
                    ? ngx_http_once_members[i].value : above;
            ngx_memcpy((u_char *) conf + offset, &value, sizeof(intptr_t));
        }
    }
}


static once__compared  ngx_http_once_all_compared = {
    ONCE__COUNT_ALL, { { NULL, 0 } }, 0
};


static ngx_uint_t
ngx_http_once_has_key(ngx_http_once_loc_conf_t *olcf)
{
    return olcf->key != NULL || olcf->key_header.len || olcf->key_json != NULL;
}



/* what one directive sets in several members */

static void
ngx_http_once_merge_groups(ngx_http_once_loc_conf_t *prev,
    ngx_http_once_loc_conf_t *conf)
{
    conf->direct = (conf->name.data != NULL);

    if (!conf->direct) {
        conf->name = prev->name;
        conf->file = prev->file;
        conf->line = prev->line;
    }

    if (conf->scope == NULL && conf->scope_off == NGX_CONF_UNSET) {
        conf->scope = prev->scope;
        conf->scope_off = prev->scope_off;
    }

    if (conf->label == NULL && conf->label_off == NGX_CONF_UNSET) {
        conf->label = prev->label;
        conf->label_off = prev->label_off;
    }

    if (!ngx_http_once_has_key(conf)) {
        conf->key = prev->key;
        conf->key_header = prev->key_header;
        conf->key_json = prev->key_json;
    }

    if (!ngx_http_once_has_key(conf)) {
        ngx_str_set(&conf->key_header, "idempotency_key");
    }

    if (conf->wait == NGX_CONF_UNSET_MSEC) {
        conf->accept = prev->accept;
    }

    if (conf->compared == NULL) {
        conf->compared = prev->compared ? prev->compared
                                        : &ngx_http_once_all_compared;
        conf->fingerprint = prev->fingerprint;
    }

    ngx_conf_merge_str_value(conf->route_name, prev->route_name, "-");
}


/*
 * A location of "once_lookup" is not guarded, whatever it inherits.  What stands
 * in it without a name, as "limit_except", is a part of it.
 */

static ngx_int_t
ngx_http_once_merge_lookup(ngx_conf_t *cf, ngx_http_once_loc_conf_t *prev,
    ngx_http_once_loc_conf_t *conf, ngx_http_core_loc_conf_t *clcf)
{
    if (conf->lookup == NULL && clcf->noname) {
        conf->lookup = prev->lookup;
    }

    if (conf->lookup == NULL) {
        return NGX_OK;
    }

    if (conf->direct && conf->name.len) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, conf,
                      "\"once\" and \"once_lookup\" need locations of their "
                      "own, and stand both in location \"%V\"", &clcf->name);
        return NGX_ERROR;
    }

    if (clcf->handler != ngx_http_once_lookup_handler
        && !(clcf->noname && clcf->handler == NULL))
    {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, conf->lookup,
                      "\"once_lookup\" needs a location in which nothing else "
                      "answers, and location \"%V\" is none", &clcf->name);
        return NGX_ERROR;
    }

    /* a lookup has no body: the key that others have there is in its header */

    if (conf->key_json != NULL) {
        conf->key_json = NULL;
        ngx_str_set(&conf->key_header, "idempotency_key");
    }

    conf->name.len = 0;
    conf->file = conf->lookup->file;
    conf->line = conf->lookup->line;

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_push_conf(ngx_conf_t *cf, ngx_array_t *to)
{
    void  ***location;

    location = ngx_array_push(to);
    if (location == NULL) {
        return NGX_ERROR;
    }

    *location = ((ngx_http_conf_ctx_t *) cf->ctx)->loc_conf;

    return NGX_OK;
}


/* a location with "once" or "once_lookup", to be checked when all is merged */

static ngx_int_t
ngx_http_once_add_location(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf)
{
    once__status_lists          lists;
    once__status_clash          clash;
    ngx_http_once_main_conf_t  *omcf;

    omcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_once_module);

    if (ngx_http_once_default_realm(cf, olcf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (olcf->lookup != NULL) {
        return ngx_http_once_push_conf(cf, &omcf->lookups);
    }

    lists.final = olcf->final;
    lists.released = olcf->release;
    lists.unknown = olcf->unknown;

    if (once__rules_make(&lists, &olcf->policy.rules, &clash) != ONCE_OK) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "%d is both in \"once_%s\" and in \"once_%s\": one "
                      "status cannot mean both", clash.status, clash.one,
                      clash.other);
        return NGX_ERROR;
    }

    return ngx_http_once_push_conf(cf, &omcf->locations);
}


char *
ngx_http_once_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_once_loc_conf_t *prev = parent;
    ngx_http_once_loc_conf_t *conf = child;

    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    conf->handler = clcf->handler;
    conf->srv_conf = ((ngx_http_conf_ctx_t *) cf->ctx)->srv_conf;

    /* "if" and "limit_except" keep the handler of their location */

    if (conf->handler == NULL && clcf->noname) {
        conf->handler = prev->handler;
    }

    if (ngx_http_once_set_wire(cf, conf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_http_once_merge_groups(prev, conf);
    ngx_http_once_merge_members(prev, conf);

    if (ngx_http_once_merge_lookup(cf, prev, conf, clcf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    /* a part of a lookup's location is checked with it */

    if ((conf->name.len || (conf->lookup != NULL && !clcf->noname))
        && ngx_http_once_add_location(cf, conf) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* --- checked --- */

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
        if (ngx_http_once_same(&route[i]->name, &olcf->route_name)) {
            olcf->route = route[i];
            return NGX_OK;
        }
    }

    if (routes->nelts == NGX_HTTP_ONCE_NROUTES) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "there are more than %ui names of \"once_route\" for "
                      "one store", (ngx_uint_t) NGX_HTTP_ONCE_NROUTES);
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
    policy->refuse = (olcf->repeat == NGX_HTTP_ONCE_REFUSE);
    policy->accept = (olcf->accept.len != 0);
    policy->probe = (olcf->probe != NULL && olcf->probe->len);
    policy->two_phase = (int) olcf->two_phase;
    policy->lease_ms = (uint32_t) olcf->lease;
    policy->wait_ms = (uint32_t) olcf->wait;
    policy->store_ms = (uint32_t) olcf->store->timeout;
    policy->keep_ms = olcf->ttl;
    policy->rules.failed_ms = olcf->ttl_failure;
}


static ngx_int_t
ngx_http_once_check_limits(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf)
{
    if (olcf->lease < ONCE_LEASE_MIN_MS || olcf->lease > ONCE_LEASE_MAX_MS) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once_lease\" is %Mms, it must be %ui ms to %ui ms",
                      olcf->lease, (ngx_uint_t) ONCE_LEASE_MIN_MS,
                      (ngx_uint_t) ONCE_LEASE_MAX_MS);
        return NGX_ERROR;
    }

    if (olcf->ttl < olcf->lease || olcf->ttl > ONCE_KEEP_MAX_MS) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once_ttl\" is %Mms, it must not be below "
                      "\"once_lease\" (%Mms), nor over ten years",
                      olcf->ttl, olcf->lease);
        return NGX_ERROR;
    }

    if (olcf->ttl_failure
        && (olcf->ttl_failure < olcf->lease || olcf->ttl_failure > olcf->ttl))
    {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"failure=\" of \"once_ttl\" is %Mms, it must not be "
                      "below \"once_lease\" (%Mms), nor above the ttl (%Mms)",
                      olcf->ttl_failure, olcf->lease, olcf->ttl);
        return NGX_ERROR;
    }

    if (olcf->max_response > NGX_HTTP_ONCE_RESPONSE_MAX) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once_max_response\" is %uz, the limit is %ui",
                      olcf->max_response,
                      (ngx_uint_t) NGX_HTTP_ONCE_RESPONSE_MAX);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* what cannot stand together */

static ngx_int_t
ngx_http_once_check_values(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf)
{
    once_error  err;

    if (ngx_http_once_check_limits(cf, olcf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (olcf->store_failure == NGX_HTTP_ONCE_BYPASS
        && olcf->lost != NGX_HTTP_ONCE_TAKE_LOST)
    {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once_store_failure bypass\" needs "
                      "\"once_lost takeover\": there is no failing open "
                      "under \"hold\"");
        return NGX_ERROR;
    }

    if (olcf->policy.accept && olcf->scope == NULL) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"accept=\" of \"once_in_flight\" needs a scope: with "
                      "\"once_scope off\" no lookup can answer");
        return NGX_ERROR;
    }

    if (olcf->policy.accept
        && olcf->key_space == NGX_HTTP_ONCE_OF_PATH)
    {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"accept=\" of \"once_in_flight\" needs "
                      "\"once_key_space realm\": by a name that has the path "
                      "in it no lookup finds a request");
        return NGX_ERROR;
    }

    if (olcf->policy.probe
        && (olcf->policy.takeover || olcf->policy.dry_run))
    {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once_probe\" is never asked with \"%s\"",
                      olcf->policy.takeover ? "once_lost takeover"
                                            : "once_dry_run on");
        return NGX_ERROR;
    }

    if (once__policy_key_time(&olcf->policy, (int) olcf->key_form,
                              olcf->max_age, &err)
        != ONCE_OK)
    {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once_key_time\": %s", err.text);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_check_upstream(ngx_conf_t *cf, void **loc_conf)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_once_loc_conf_t  *olcf;
    ngx_http_once_upstream_t  *upstream;
#if (NGX_HTTP_CACHE)
    ngx_http_upstream_conf_t  *uc;
#endif

    olcf = loc_conf[ngx_http_once_module.ctx_index];
    clcf = loc_conf[ngx_http_core_module.ctx_index];
    upstream = ngx_http_once_upstream_of(olcf);

    if (upstream == NULL) {
        return NGX_OK;
    }

    if (upstream == &ngx_http_once_upstreams[NGX_HTTP_ONCE_GRPC]) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once\" cannot guard \"grpc_pass\" of location "
                      "\"%V\"", &clcf->name);
        return NGX_ERROR;
    }

#if (NGX_HTTP_CACHE)

    uc = loc_conf[upstream->module->ctx_index];

    if (uc->cache && (uc->cache_methods & olcf->methods)) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once\" cannot guard a method that is in "
                      "\"%s_cache_methods\" of location \"%V\": a cached "
                      "response is not the outcome of a request",
                      upstream->name, &clcf->name);
        return NGX_ERROR;
    }

#endif

    return NGX_OK;
}


static ngx_int_t
ngx_http_once_check_unproxied(ngx_conf_t *cf, void **loc_conf)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_once_loc_conf_t  *olcf;

    olcf = loc_conf[ngx_http_once_module.ctx_index];
    clcf = loc_conf[ngx_http_core_module.ctx_index];

    if (ngx_http_once_dav(loc_conf, olcf->methods)) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once\" cannot guard \"dav_methods\"");
        return NGX_ERROR;
    }

    if (!olcf->direct || clcf->name.len == 0 || clcf->noname) {
        return NGX_OK;          /* inherited, and nothing to be guarded */
    }

    ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                  "\"once\" guards proxied locations only, and location "
                  "\"%V\" has no \"proxy_pass\"", &clcf->name);

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_once_check_location(ngx_conf_t *cf, void **loc_conf)
{
    ngx_http_once_loc_conf_t   *olcf;
    ngx_http_once_main_conf_t  *omcf;

    omcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_once_module);
    olcf = loc_conf[ngx_http_once_module.ctx_index];
    olcf->store = ngx_http_once_find_store(omcf, &olcf->name);

    if (olcf->store == NULL) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once %V\": there is no \"once_store\" of this name",
                      &olcf->name);
        return NGX_ERROR;
    }

    ngx_http_once_set_policy(olcf);

    if (ngx_http_once_set_route(cf, olcf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (olcf->handler == NULL) {
        return ngx_http_once_check_unproxied(cf, loc_conf);
    }

    if (ngx_http_once_check_scope(cf, loc_conf) != NGX_OK
        || ngx_http_once_check_values(cf, olcf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_once_check_upstream(cf, loc_conf);
}


/* a lookup reads by the names that the guarded location writes */

static ngx_int_t
ngx_http_once_check_lookup(ngx_conf_t *cf, void **loc_conf)
{
    ngx_http_once_lookup_t     *lookup;
    ngx_http_once_loc_conf_t   *olcf;
    ngx_http_once_main_conf_t  *omcf;

    omcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_once_module);
    olcf = loc_conf[ngx_http_once_module.ctx_index];
    lookup = olcf->lookup;

    if (olcf->scope == NULL) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, lookup,
                      "\"once_lookup\" needs \"once_scope\" with the "
                      "authenticated caller: without one anybody could ask "
                      "which keys exist");
        return NGX_ERROR;
    }

    if (olcf->key_space == NGX_HTTP_ONCE_OF_PATH) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, lookup,
                      "\"once_lookup\" needs \"once_key_space realm\": by a "
                      "name that has the path in it it finds no request");
        return NGX_ERROR;
    }

    lookup->conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_loc_conf_t));
    if (lookup->conf == NULL) {
        return NGX_ERROR;
    }

    *lookup->conf = *olcf;
    olcf = lookup->conf;
    olcf->accept.len = 0;
    olcf->store = ngx_http_once_find_store(omcf, &lookup->name);

    if (olcf->store == NULL) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once_lookup %V\": there is no \"once_store\" of "
                      "this name", &lookup->name);
        return NGX_ERROR;
    }

    ngx_http_once_set_policy(olcf);

    if (ngx_http_once_set_route(cf, olcf) != NGX_OK
        || ngx_http_once_check_scope(cf, loc_conf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_once_check_values(cf, olcf);
}


/* the contexts of a location that no request can reach */

static ngx_http_core_loc_conf_t *
ngx_http_once_scratch(ngx_conf_t *cf, ngx_module_t *module,
    ngx_http_conf_ctx_t *ctx)
{
    ngx_http_module_t         *core, *upstream;
    ngx_http_core_loc_conf_t  *clcf;

    core = ngx_http_core_module.ctx;
    upstream = module->ctx;

    *ctx = *(ngx_http_conf_ctx_t *) cf->ctx;

    ctx->loc_conf = ngx_pcalloc(cf->pool,
                                sizeof(void *) * ngx_http_max_module);
    if (ctx->loc_conf == NULL) {
        return NULL;
    }

    clcf = core->create_loc_conf(cf);
    ctx->loc_conf[ngx_http_core_module.ctx_index] = clcf;
    ctx->loc_conf[module->ctx_index] = upstream->create_loc_conf(cf);

    return ctx->loc_conf[module->ctx_index] ? clcf : NULL;
}


/*
 * The content handlers of nginx's modules have no names outside of them, and
 * "proxy_pass" with a variable leaves nothing else that could be looked at.
 * So the directive is run once, for a location that no request can reach.
 */

static ngx_int_t
ngx_http_once_find_handler(ngx_conf_t *cf, ngx_http_once_upstream_t *upstream)
{
    void                      *member;
    ngx_str_t                  args[] = { ngx_null_string,
                                          ngx_string("$host") };
    ngx_conf_t                 conf;
    ngx_array_t                array;
    ngx_command_t             *cmd;
    ngx_http_conf_ctx_t        ctx;
    ngx_http_core_loc_conf_t  *clcf;

    upstream->handler = NULL;

    if (upstream->module == NULL) {
        return NGX_OK;
    }

    clcf = ngx_http_once_scratch(cf, upstream->module, &ctx);
    if (clcf == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(&array, sizeof(ngx_array_t));
    array.elts = args;
    array.nelts = 2;

    conf = *cf;
    conf.ctx = &ctx;
    conf.args = &array;

    cmd = ngx_http_once_command(upstream->module, upstream->pass);
    member = ctx.loc_conf[upstream->module->ctx_index];

    if (cmd == NULL || cmd->set(&conf, cmd, member) != NGX_CONF_OK
        || clcf->handler == NULL)
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "once: the handler of \"%s\" was not found",
                      upstream->pass);
        return NGX_ERROR;
    }

    upstream->handler = clcf->handler;

    return NGX_OK;
}


/*
 * Where the end of the connection ends a response, a response that was cut
 * looks like a whole one.  Nobody can know later, so the log says it here.
 */

static ngx_uint_t
ngx_http_once_warn_of_end(ngx_conf_t *cf, void **loc_conf)
{
    u_char                    *conf;
    ngx_command_t             *cmd;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_once_loc_conf_t  *olcf;
    ngx_http_once_upstream_t  *upstream;

    olcf = loc_conf[ngx_http_once_module.ctx_index];
    clcf = loc_conf[ngx_http_core_module.ctx_index];
    upstream = ngx_http_once_upstream_of(olcf);

    if (upstream == NULL || upstream->protocol == NULL) {
        return 0;
    }

    cmd = ngx_http_once_command(upstream->module, "proxy_http_version");
    conf = loc_conf[upstream->module->ctx_index];

    if (cmd && *(ngx_uint_t *) (conf + cmd->offset) >= NGX_HTTP_VERSION_11) {
        return 0;
    }

    ngx_http_once_log_conf(NGX_LOG_WARN, cf, olcf,
                  "once: over %s the end of a response without "
                  "\"Content-Length\" looks like the loss of its "
                  "connection: %s for location \"%V\"", upstream->protocol,
                  cmd ? "use \"proxy_http_version 1.1\""
                      : "let the service send that header", &clcf->name);

    return 1;
}


static void
ngx_http_once_warn_of_ends(ngx_conf_t *cf, ngx_http_once_main_conf_t *omcf)
{
    void                      ***locations;
    u_char                      *last;
    ngx_uint_t                   i;
    ngx_http_core_loc_conf_t    *clcf;

    last = NULL;
    locations = omcf->locations.elts;

    for (i = 0; i < omcf->locations.nelts; i++) {
        clcf = locations[i][ngx_http_core_module.ctx_index];

        /* "if" has the name of the location around it */

        if ((last == NULL || last != clcf->name.data)
            && ngx_http_once_warn_of_end(cf, locations[i]))
        {
            last = clcf->name.data;
        }
    }
}


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

    locations = omcf->lookups.elts;

    for (i = 0; i < omcf->lookups.nelts; i++) {
        if (ngx_http_once_check_lookup(cf, locations[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_once_check_targets(cf, omcf) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_once_warn_of_ends(cf, omcf);
    ngx_http_once_warn_of_realms(cf, omcf);

    return ngx_http_once_watch_pages(cf, omcf);
}
