
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Error pages: where they lead a guarded request.
 */


#ifndef _NGX_HTTP_ONCE_PAGES_H_INCLUDED_
#define _NGX_HTTP_ONCE_PAGES_H_INCLUDED_


#include "ngx_http_once_identity.h"
#include "ngx_http_once_upstream.h"


ngx_int_t ngx_http_once_watch_pages(ngx_conf_t *cf,
    ngx_http_once_main_conf_t *omcf);

ngx_uint_t ngx_http_once_chosen(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
ngx_int_t ngx_http_once_refuse_page(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);


#endif /* _NGX_HTTP_ONCE_PAGES_H_INCLUDED_ */
