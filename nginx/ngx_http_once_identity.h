
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Key, name and fingerprint of a request.
 */


#ifndef _NGX_HTTP_ONCE_IDENTITY_H_INCLUDED_
#define _NGX_HTTP_ONCE_IDENTITY_H_INCLUDED_


#include "ngx_http_once_context.h"
#include "ngx_http_once_scope.h"


void ngx_http_once_identity_init(void);

ngx_int_t ngx_http_once_find_key(ngx_http_request_t *r,
    ngx_http_once_loc_conf_t *olcf, ngx_str_t *raw);
once_bytes ngx_http_once_path(ngx_http_request_t *r);
ngx_int_t ngx_http_once_name_of(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, ngx_str_t *raw, int *problem);
ngx_int_t ngx_http_once_identify(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, ngx_str_t *raw, int *problem);
ngx_int_t ngx_http_once_describe(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
ngx_int_t ngx_http_once_digest(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, int *problem);


#endif /* _NGX_HTTP_ONCE_IDENTITY_H_INCLUDED_ */
