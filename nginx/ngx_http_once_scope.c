
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


/* "$name" and "${name}", as nginx itself reads them: what stands after "$" */

static u_char *
ngx_http_once_scope_name(u_char *p, u_char *last)
{
    if (p < last && *p == '{') {
        while (p < last && *p++ != '}') { /* void */ }
        return p;
    }

    while (p < last && (*p == '_' || (*p >= '0' && *p <= '9')
                        || (*p >= 'A' && *p <= 'Z')
                        || (*p >= 'a' && *p <= 'z')))
    {
        p++;
    }

    return p;
}


static ngx_int_t
ngx_http_once_scope_parts(ngx_conf_t *cf, ngx_http_once_scope_t *scope)
{
    u_char                    *p, *last;
    ngx_str_t                  text;
    ngx_http_complex_value_t  *part;

    if (ngx_array_init(&scope->parts, cf->pool, 2,
                       sizeof(ngx_http_complex_value_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    p = scope->text.value.data;
    last = p + scope->text.value.len;

    while (p < last) {

        if (*p++ != '$') {
            continue;
        }

        text.data = p - 1;
        p = ngx_http_once_scope_name(p, last);
        text.len = (size_t) (p - text.data);

        part = ngx_array_push(&scope->parts);

        if (part == NULL || ngx_http_once_compile(cf, &text, part) == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


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

    if (ngx_http_once_compile(cf, &value[1], &scope->text) == NULL
        || ngx_http_once_scope_parts(cf, scope) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (scope->parts.nelts == 0) {
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
    ngx_http_complex_value_t  *part;

    part = scope->parts.elts;

    for (i = 0; i < scope->parts.nelts; i++) {
        name.data = part[i].value.data + 1;
        name.len = part[i].value.len - 1;

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
                      &olcf->scope->text.value, &clcf->name, doubt);
    }

    return NGX_OK;
}


/* NGX_DECLINED: a variable is empty, and so the caller is not known */

ngx_int_t
ngx_http_once_scope(ngx_http_request_t *r, ngx_http_once_loc_conf_t *olcf,
    ngx_str_t *scope)
{
    ngx_str_t                  text;
    ngx_uint_t                 i;
    ngx_http_complex_value_t  *part;

    ngx_str_null(scope);

    if (olcf->scope == NULL) {
        return NGX_OK;
    }

    part = olcf->scope->parts.elts;

    for (i = 0; i < olcf->scope->parts.nelts; i++) {

        if (ngx_http_complex_value(r, &part[i], &text) != NGX_OK) {
            return NGX_ERROR;
        }

        if (text.len == 0) {
            return NGX_DECLINED;
        }
    }

    return ngx_http_complex_value(r, &olcf->scope->text, scope);
}
