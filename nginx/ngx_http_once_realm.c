
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Which service the keys belong to: "once_realm".  Without it, it is the
 * smallest name of the server, so that the aliases of a server are one service.
 * Servers with the same names in another order have the same realm.  A server
 * that takes any name has only the "Host" that the client chooses.  A caller
 * can send one key under two of them: "nginx -t" warns of that.
 */


#include "ngx_http_once_realm.h"
#include "ngx_http_once_upstream.h"


char *
ngx_http_once_realm_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_once_loc_conf_t *olcf = conf;

    ngx_str_t  *value;

    if (olcf->realm != NULL) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "needs a text that is not empty";
    }

    olcf->realm = ngx_http_once_compile_text(cf, &value[1], NULL);
    olcf->realm_own = 1;

    return olcf->realm ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* --- without "once_realm" --- */

/*
 * A name that one host has, and no other.  "_" and the like are no names, but
 * stand for a server that takes all, and "$hostname" is another one on each
 * gateway of a store.
 */

static ngx_uint_t
ngx_http_once_is_exact(ngx_conf_t *cf, ngx_http_server_name_t *name)
{
    size_t      i;
    u_char     *p;
    ngx_uint_t  named;

#if (NGX_PCRE)
    if (name->regex) {
        return 0;
    }
#endif

    p = name->name.data;
    named = 0;

    if (p == cf->cycle->hostname.data || p[0] == '.') {
        return 0;
    }

    for (i = 0; i < name->name.len; i++) {
        if (p[i] == '*' || p[i] == '$') {
            return 0;
        }

        named |= (p[i] >= 'a' && p[i] <= 'z') || (p[i] >= '0' && p[i] <= '9')
                 || p[i] >= 0x80;
    }

    return named;
}


/*
 * The smallest name, byte by byte, of a server whose names are all exact, or
 * NULL.  nginx has made them lower case.
 */

static ngx_str_t *
ngx_http_once_server_name(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf)
{
    ngx_str_t                 *smallest;
    ngx_uint_t                 i;
    ngx_http_server_name_t    *name;
    ngx_http_core_srv_conf_t  *cscf;

    cscf = olcf->srv_conf[ngx_http_core_module.ctx_index];
    name = cscf->server_names.elts;
    smallest = NULL;

    for (i = 0; i < cscf->server_names.nelts; i++) {

        if (name[i].name.len == 0) {
            continue;                   /* requests without "Host" */
        }

        if (!ngx_http_once_is_exact(cf, &name[i])) {
            return NULL;
        }

        if (smallest == NULL
            || ngx_memn2cmp(name[i].name.data, smallest->data,
                            name[i].name.len, smallest->len)
               < 0)
        {
            smallest = &name[i].name;
        }
    }

    return smallest;
}


ngx_int_t
ngx_http_once_default_realm(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf)
{
    ngx_str_t  *name, host = ngx_string("$host");

    if (olcf->realm != NULL) {
        return NGX_OK;
    }

    name = ngx_http_once_server_name(cf, olcf);
    olcf->realm = ngx_http_once_compile_text(cf, name ? name : &host, NULL);

    if (olcf->realm == NULL) {
        return NGX_ERROR;
    }

    olcf->realm->assumed = 1;

    return NGX_OK;
}


/* --- warnings --- */

static void
ngx_http_once_warn_of_hosts(ngx_conf_t *cf, ngx_array_t *locations)
{
    void                      ***location, **last;
    ngx_uint_t                   i;
    ngx_http_core_loc_conf_t    *clcf;
    ngx_http_once_loc_conf_t    *olcf;

    last = NULL;
    location = locations->elts;

    for (i = 0; i < locations->nelts; i++) {
        clcf = location[i][ngx_http_core_module.ctx_index];
        olcf = location[i][ngx_http_once_module.ctx_index];

        /* once for each server, whose locations follow each other */

        if (olcf->srv_conf == last || !olcf->realm->assumed
            || olcf->realm->nvariables == 0
            || (olcf->handler == NULL && olcf->lookup == NULL))
        {
            continue;
        }

        last = olcf->srv_conf;

        ngx_http_once_log_conf(NGX_LOG_WARN, cf, olcf,
                      "once: the keys of location \"%V\" belong to the "
                      "\"Host\" that the client sends, because its server has "
                      "no exact \"server_name\": the same key under two host "
                      "names executes twice; name the service with "
                      "\"once_realm\"", &clcf->name);
    }
}


/* a location that clients reach, and where it always sends them; or NULL */

static void *
ngx_http_once_target(void **loc_conf)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_once_loc_conf_t  *olcf;
    ngx_http_once_upstream_t  *upstream;
    ngx_http_upstream_conf_t  *uc;

    clcf = loc_conf[ngx_http_core_module.ctx_index];
    olcf = loc_conf[ngx_http_once_module.ctx_index];
    upstream = ngx_http_once_upstream_of(olcf);

    if (upstream == NULL || clcf->noname || clcf->internal
        || (clcf->name.len && clcf->name.data[0] == '@')
        || olcf->key_space == NGX_HTTP_ONCE_OF_PATH)
    {
        return NULL;
    }

    uc = loc_conf[upstream->module->ctx_index];

    return uc->upstream;
}


static ngx_uint_t
ngx_http_once_share_keys(ngx_http_once_loc_conf_t *a,
    ngx_http_once_loc_conf_t *b)
{
    return a->store == b->store
           && (a->methods & b->methods)
           && !(a->realm_own && b->realm_own)
           && ngx_http_once_same_text(a->realm, b->realm)
           && (a->realm->nvariables == 0 || a->srv_conf == b->srv_conf)
           && ngx_http_once_same_text(a->scope ? &a->scope->text : NULL,
                                      b->scope ? &b->scope->text : NULL);
}


/* once for each location: two services have one name for a key */

static void
ngx_http_once_warn_of_services(ngx_conf_t *cf, ngx_array_t *locations)
{
    void                      ***location, *target, *other;
    ngx_uint_t                   i, j;
    ngx_http_core_loc_conf_t    *clcf, *first;
    ngx_http_once_loc_conf_t    *olcf;

    location = locations->elts;

    for (i = 0; i < locations->nelts; i++) {
        clcf = location[i][ngx_http_core_module.ctx_index];
        olcf = location[i][ngx_http_once_module.ctx_index];
        target = ngx_http_once_target(location[i]);

        for (j = 0; target != NULL && j < i; j++) {
            other = ngx_http_once_target(location[j]);

            if (other == NULL || other == target
                || !ngx_http_once_share_keys(olcf,
                              location[j][ngx_http_once_module.ctx_index]))
            {
                continue;
            }

            first = location[j][ngx_http_core_module.ctx_index];

            ngx_http_once_log_conf(NGX_LOG_WARN, cf, olcf,
                          "once: locations \"%V\" and \"%V\" pass to "
                          "different upstreams with one realm and one scope: "
                          "a key that a caller sends to both is refused with "
                          "422 at the second; if these are two services, give "
                          "each location a \"once_realm\"",
                          &first->name, &clcf->name);
            break;
        }
    }
}


/* a name that is exact in both servers, or NULL */

static ngx_str_t *
ngx_http_once_shared_name(ngx_http_once_loc_conf_t *a,
    ngx_http_once_loc_conf_t *b)
{
    ngx_uint_t                 i, j;
    ngx_http_server_name_t    *one, *two;
    ngx_http_core_srv_conf_t  *first, *second;

    first = a->srv_conf[ngx_http_core_module.ctx_index];
    second = b->srv_conf[ngx_http_core_module.ctx_index];
    one = first->server_names.elts;
    two = second->server_names.elts;

    for (i = 0; i < first->server_names.nelts; i++) {
        for (j = 0; j < second->server_names.nelts; j++) {
            if (one[i].name.len != 0
                && ngx_http_once_same(&one[i].name, &two[j].name))
            {
                return &one[i].name;
            }
        }
    }

    return NULL;
}


/* a host whose requests have two realms, by the server that takes them */

static ngx_str_t *
ngx_http_once_split_host(ngx_http_once_loc_conf_t *a,
    ngx_http_once_loc_conf_t *b)
{
    if (a->srv_conf == b->srv_conf
        || a->handler == NULL || b->handler == NULL
        || a->store != b->store || !(a->methods & b->methods)
        || !a->realm->assumed || a->realm->nvariables != 0
        || !b->realm->assumed || b->realm->nvariables != 0
        || ngx_http_once_same_text(a->realm, b->realm)
        || !ngx_http_once_same_text(a->scope ? &a->scope->text : NULL,
                                    b->scope ? &b->scope->text : NULL))
    {
        return NULL;
    }

    return ngx_http_once_shared_name(a, b);
}


/* once for each server, whose locations follow each other */

static void
ngx_http_once_warn_of_names(ngx_conf_t *cf, ngx_array_t *locations)
{
    void                      ***location, **last;
    ngx_str_t                   *host;
    ngx_uint_t                   i, j;
    ngx_http_core_loc_conf_t    *clcf, *first;
    ngx_http_once_loc_conf_t    *olcf, *other;

    last = NULL;
    location = locations->elts;

    for (i = 0; i < locations->nelts; i++) {
        clcf = location[i][ngx_http_core_module.ctx_index];
        olcf = location[i][ngx_http_once_module.ctx_index];

        for (j = 0; olcf->srv_conf != last && j < i; j++) {
            other = location[j][ngx_http_once_module.ctx_index];
            host = ngx_http_once_split_host(other, olcf);

            if (host == NULL) {
                continue;
            }

            first = location[j][ngx_http_core_module.ctx_index];
            last = olcf->srv_conf;

            ngx_http_once_log_conf(NGX_LOG_WARN, cf, olcf,
                          "once: the servers of locations \"%V\" and \"%V\" "
                          "have the name \"%V\" in common, and the realms "
                          "\"%V\" and \"%V\": the same key at both executes "
                          "twice; if they lead to one service, give both the "
                          "same \"once_realm\", otherwise one of their own",
                          &first->name, &clcf->name, host,
                          &other->realm->written, &olcf->realm->written);
        }
    }
}


void
ngx_http_once_warn_of_realms(ngx_conf_t *cf, ngx_http_once_main_conf_t *omcf)
{
    ngx_http_once_warn_of_hosts(cf, &omcf->locations);
    ngx_http_once_warn_of_hosts(cf, &omcf->lookups);
    ngx_http_once_warn_of_names(cf, &omcf->locations);
    ngx_http_once_warn_of_services(cf, &omcf->locations);
}
