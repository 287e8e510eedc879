
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Facts about the upstream, and what keeps nginx from sending a request twice.
 */


#ifndef _NGX_HTTP_ONCE_UPSTREAM_H_INCLUDED_
#define _NGX_HTTP_ONCE_UPSTREAM_H_INCLUDED_


#include "ngx_http_once_context.h"


/* a module of nginx that passes requests on */

typedef struct {
    ngx_module_t                *module;    /* NULL: not built in */
    const char                  *name;
    const char                  *pass;      /* its directive */
    const char                  *protocol;  /* NULL: with a sure end */
    const char                  *method;    /* the directive that changes it */
    ngx_http_handler_pt          handler;   /* what "pass" installs */
} ngx_http_once_upstream_t;

#define NGX_HTTP_ONCE_GRPC          0       /* its index */
#define NGX_HTTP_ONCE_PROXY         1

/* methods that nginx itself does not repeat once the request was sent */

#define NGX_HTTP_ONCE_NOT_REPEATED                                            \
    (NGX_HTTP_POST|NGX_HTTP_PATCH|NGX_HTTP_LOCK)


/* nginx may be built without some of them */

extern ngx_module_t  ngx_http_proxy_module;
extern ngx_module_t  ngx_http_fastcgi_module;
extern ngx_module_t  ngx_http_uwsgi_module;
extern ngx_module_t  ngx_http_scgi_module;
extern ngx_module_t  ngx_http_grpc_module;
extern ngx_module_t  ngx_http_dav_module;
extern ngx_module_t  ngx_http_slice_filter_module;

#pragma weak ngx_http_proxy_module
#pragma weak ngx_http_fastcgi_module
#pragma weak ngx_http_uwsgi_module
#pragma weak ngx_http_scgi_module
#pragma weak ngx_http_grpc_module
#pragma weak ngx_http_dav_module
#pragma weak ngx_http_slice_filter_module


extern ngx_http_once_upstream_t  ngx_http_once_upstreams[];


ngx_http_once_upstream_t *ngx_http_once_upstream_of(
    ngx_http_once_loc_conf_t *olcf);
ngx_int_t ngx_http_once_set_wire(ngx_conf_t *cf,
    ngx_http_once_loc_conf_t *olcf);

ngx_uint_t ngx_http_once_dav(void **loc_conf, ngx_uint_t methods);
ngx_uint_t ngx_http_once_is_page(ngx_http_request_t *r);

ngx_http_upstream_t *ngx_http_once_own_upstream(ngx_http_once_ctx_t *ctx);
int ngx_http_once_cause(ngx_http_once_ctx_t *ctx);
int ngx_http_once_observe(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx);
ngx_uint_t ngx_http_once_was_sent(ngx_http_once_ctx_t *ctx);
int ngx_http_once_known(ngx_http_once_ctx_t *ctx);
ngx_uint_t ngx_http_once_head_whole(ngx_http_upstream_t *u);
ngx_uint_t ngx_http_once_asked(ngx_http_request_t *r, ngx_http_upstream_t *u);
void ngx_http_once_note_shown(ngx_http_once_ctx_t *ctx);

void ngx_http_once_wrap(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx);
void ngx_http_once_clear_slices(ngx_http_request_t *r);
void ngx_http_once_watch(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx);


#endif /* _NGX_HTTP_ONCE_UPSTREAM_H_INCLUDED_ */
