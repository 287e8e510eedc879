
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Whose keys these are: "once_scope".  It refuses a text that is the same for
 * every caller, and a caller of whom a part of the text is not known: both
 * would show one caller's response to another.
 */


#include "ngx_http_once_scope.h"


/* nginx may be built without it */

extern ngx_module_t  ngx_http_auth_basic_module;

#pragma weak ngx_http_auth_basic_module


char *
ngx_http_once_scope_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t              *value;
    ngx_http_once_scope_t  *scope;

    if (olcf->scope != NULL || olcf->scope_off != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        olcf->scope_off = 1;
        return NGX_CONF_OK;
    }

    scope = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_scope_t));
    if (scope == NULL) {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_once_compile_text(cf, &value[1], &scope->text) == NULL) {
        return NGX_CONF_ERROR;
    }

    if (scope->text.nvariables == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"once_scope %V\" is the same for every caller: "
                           "use a variable that names the authenticated "
                           "caller, or write \"once_scope off\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    olcf->scope_off = 0;
    olcf->scope = scope;

    return NGX_CONF_OK;
}


/* its realm is the one thing of that module that has to be known here */

static ngx_uint_t
ngx_http_once_basic_auth(void **loc_conf)
{
    void                      *conf;
    ngx_command_t             *cmd;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_complex_value_t  *realm;

    clcf = loc_conf[ngx_http_core_module.ctx_index];

    if (&ngx_http_auth_basic_module == NULL
        || clcf->satisfy == NGX_HTTP_SATISFY_ANY)
    {
        return 0;
    }

    conf = loc_conf[ngx_http_auth_basic_module.ctx_index];
    cmd = ngx_http_once_command(&ngx_http_auth_basic_module, "auth_basic");

    if (cmd == NULL) {
        return 1;           /* not known */
    }

    realm = *(ngx_http_complex_value_t **) ((u_char *) conf + cmd->offset);

    return realm != NULL
           && !(realm->value.len == 3
                && ngx_strncmp(realm->value.data, "off", 3) == 0);
}


static const char *
ngx_http_once_scope_doubt(ngx_http_once_scope_t *scope, void **loc_conf)
{
    ngx_str_t                  name;
    ngx_uint_t                 i;
    ngx_http_once_part_t      *part;

    part = scope->text.parts.elts;

    for (i = 0; i < scope->text.parts.nelts; i++) {

        if (!part[i].variable) {
            continue;
        }

        name.data = part[i].value.value.data + 1;
        name.len = part[i].value.value.len - 1;

        if (name.len > 2 && name.data[0] == '{') {
            name.data++;
            name.len -= 2;
        }

        if (ngx_strncasecmp(name.data, (u_char *) "http_", 5) == 0
            || ngx_strncasecmp(name.data, (u_char *) "arg_", 4) == 0
            || ngx_strncasecmp(name.data, (u_char *) "cookie_", 7) == 0)
        {
            return "the client chooses that text";
        }

        if (ngx_http_once_is(&name, "remote_user")
            && !ngx_http_once_basic_auth(loc_conf))
        {
            return "without \"auth_basic\" no password is checked";
        }
    }

    return NULL;
}


/* warns, once for each directive, of what no authentication stands behind */

ngx_int_t
ngx_http_once_check_scope(ngx_conf_t *cf, void **loc_conf)
{
    const char                *doubt;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_once_loc_conf_t  *olcf;

    olcf = loc_conf[ngx_http_once_module.ctx_index];
    clcf = loc_conf[ngx_http_core_module.ctx_index];

    if (olcf->scope == NULL) {

        if (olcf->scope_off == 1) {
            return NGX_OK;
        }

        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once\" needs \"once_scope\": name the authenticated "
                      "caller, or write \"once_scope off\"");
        return NGX_ERROR;
    }

    doubt = ngx_http_once_scope_doubt(olcf->scope, loc_conf);

    if (doubt != NULL && !olcf->scope->warned) {
        olcf->scope->warned = 1;
        ngx_http_once_log_conf(NGX_LOG_WARN, cf, olcf,
                      "once: \"once_scope %V\" for location \"%V\": %s, so "
                      "that one caller can get another's response",
                      &olcf->scope->text.written, &clcf->name, doubt);
    }

    return NGX_OK;
}


/* NGX_DECLINED: a variable is empty, and so the caller is not known */

ngx_int_t
ngx_http_once_scope(ngx_http_request_t *r, ngx_http_once_loc_conf_t *olcf,
    ngx_str_t *scope)
{
    ngx_str_t   *values;
    ngx_uint_t   empty;

    ngx_str_null(scope);

    if (olcf->scope == NULL) {
        return NGX_OK;
    }

    values = ngx_http_once_text_values(r, &olcf->scope->text, &empty);

    if (values == NULL) {
        return NGX_ERROR;
    }

    if (empty) {
        return NGX_DECLINED;
    }

    return ngx_http_once_join(r, &olcf->scope->text, values, scope);
}
