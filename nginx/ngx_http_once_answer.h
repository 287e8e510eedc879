
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * What the client gets, and what is recorded of it.
 */


#ifndef _NGX_HTTP_ONCE_ANSWER_H_INCLUDED_
#define _NGX_HTTP_ONCE_ANSWER_H_INCLUDED_


#include "ngx_http_once_context.h"


ngx_int_t ngx_http_once_answer_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_once_set_problem(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, ngx_buf_t *b);
ngx_int_t ngx_http_once_tell(ngx_http_request_t *r, ngx_http_once_ctx_t *ctx,
    int rc, const once_record *record);
ngx_int_t ngx_http_once_set_replay(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, ngx_buf_t *b);
void ngx_http_once_whole(ngx_buf_t *b, ngx_chain_t *out);
ngx_int_t ngx_http_once_mark_new(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
ngx_int_t ngx_http_once_set_last_modified(ngx_http_request_t *r);
ngx_int_t ngx_http_once_encode(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, int keep, once_bytes *out);


#endif /* _NGX_HTTP_ONCE_ANSWER_H_INCLUDED_ */
