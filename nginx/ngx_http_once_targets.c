
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The locations that "once_probe" and "accept=" of "once_in_flight" lead to.
 * Nobody would notice a wrong one before the first outcome is unknown, so they
 * are looked up when the configuration is read, as nginx looks up a request.
 * The gateway itself sends the request of a probe: a wrong one is refused.  The
 * path of "accept=" is one for the client, and a proxy in front or a rewrite
 * may change it: a wrong one is warned of.
 */


#include "ngx_http_once_targets.h"
#include "ngx_http_once_upstream.h"


#if !(angie_version)    /* it keeps its locations in another way */


/* the one of the tree, and whether nginx looks no further */

static ngx_http_core_loc_conf_t *
ngx_http_once_find_static(ngx_http_location_tree_node_t *node, ngx_str_t uri,
    ngx_uint_t *last)
{
    size_t                     n;
    ngx_int_t                  rc;
    ngx_http_core_loc_conf_t  *found;

    found = NULL;
    *last = 0;

    while (node != NULL) {
        n = ngx_min(uri.len, (size_t) node->len);
        rc = ngx_filename_cmp(uri.data, node->name, n);

        if (rc != 0) {
            node = (rc < 0) ? node->left : node->right;

        } else if (uri.len > n && node->inclusive != NULL) {
            found = node->inclusive;
            node = node->tree;
            uri.data += n;
            uri.len -= n;

        } else if (uri.len > n) {
            node = node->right;

        } else if (uri.len == node->len) {
            *last = (node->exact != NULL);
            return node->exact ? node->exact : node->inclusive;

        } else {
            node = node->left;
        }
    }

    return found;
}


/* the innermost location of a path, or NULL */

static ngx_http_core_loc_conf_t *
ngx_http_once_find_location(ngx_http_core_loc_conf_t *clcf, ngx_str_t *uri,
    ngx_uint_t *last)
{
    ngx_http_core_loc_conf_t   *found, *inner;
#if (NGX_PCRE)
    ngx_uint_t                  ignored;
    ngx_http_core_loc_conf_t  **regex;
#endif

    found = ngx_http_once_find_static(clcf->static_locations, *uri, last);

    if (*last) {
        return found;
    }

    inner = (found != NULL) ? ngx_http_once_find_location(found, uri, last)
                            : NULL;

    if (*last) {
        return inner;
    }

#if (NGX_PCRE)

    regex = (found != NULL && found->noregex) ? NULL : clcf->regex_locations;

    for ( /* void */ ; regex != NULL && *regex != NULL; regex++) {
        if (ngx_regex_exec((*regex)->regex->regex, uri, NULL, 0) >= 0) {
            inner = ngx_http_once_find_location(*regex, uri, &ignored);
            *last = 1;
            return inner ? inner : *regex;
        }
    }

#endif

    return inner ? inner : found;
}


/* the contexts of the location that a path of this server comes to, or NULL */

static void **
ngx_http_once_location_of(ngx_http_once_loc_conf_t *olcf, ngx_str_t *uri)
{
    ngx_uint_t                 last;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_core_srv_conf_t  *cscf;

    cscf = olcf->srv_conf[ngx_http_core_module.ctx_index];
    clcf = cscf->ctx->loc_conf[ngx_http_core_module.ctx_index];
    clcf = ngx_http_once_find_location(clcf, uri, &last);

    return clcf ? clcf->loc_conf : NULL;
}


/* see ngx_http_once_may_ask() */

static ngx_uint_t
ngx_http_once_is_probe(void **loc_conf)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_once_loc_conf_t  *olcf;

    if (loc_conf == NULL) {
        return 0;
    }

    clcf = loc_conf[ngx_http_core_module.ctx_index];
    olcf = loc_conf[ngx_http_once_module.ctx_index];

    return clcf->internal && olcf->name.len == 0 && olcf->handler != NULL
           && olcf->handler
              == ngx_http_once_upstreams[NGX_HTTP_ONCE_PROXY].handler;
}


static ngx_uint_t
ngx_http_once_is_lookup(void **loc_conf)
{
    ngx_http_once_loc_conf_t  *olcf;

    if (loc_conf == NULL) {
        return 0;
    }

    olcf = loc_conf[ngx_http_once_module.ctx_index];

    return olcf->lookup != NULL;
}


static ngx_int_t
ngx_http_once_check_target(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf)
{
    if (olcf->policy.probe
        && !ngx_http_once_is_probe(ngx_http_once_location_of(olcf,
                                                             olcf->probe)))
    {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cf, olcf,
                      "\"once_probe %V\" leads to no location of this server "
                      "that can ask the service: it needs one that is "
                      "\"internal\", has \"proxy_pass\" and is not guarded "
                      "(\"once off\")", olcf->probe);
        return NGX_ERROR;
    }

    if (olcf->policy.accept
        && !ngx_http_once_is_lookup(ngx_http_once_location_of(olcf,
                                                              &olcf->accept)))
    {
        ngx_http_once_log_conf(NGX_LOG_WARN, cf, olcf,
                      "once: \"accept=%V\" of \"once_in_flight\" leads to no "
                      "location of this server with \"once_lookup\": clients "
                      "get that path as \"Location\", and need a proxy in "
                      "front or a \"rewrite\" that leads it to one",
                      &olcf->accept);
    }

    return NGX_OK;
}


#else


static ngx_int_t
ngx_http_once_check_target(ngx_conf_t *cf, ngx_http_once_loc_conf_t *olcf)
{
    return NGX_OK;
}


#endif


ngx_int_t
ngx_http_once_check_targets(ngx_conf_t *cf, ngx_http_once_main_conf_t *omcf)
{
    void                      ***locations;
    ngx_uint_t                   i;
    ngx_http_once_loc_conf_t    *olcf;

    locations = omcf->locations.elts;

    for (i = 0; i < omcf->locations.nelts; i++) {
        olcf = locations[i][ngx_http_once_module.ctx_index];

        if (olcf->handler != NULL
            && ngx_http_once_check_target(cf, olcf) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
