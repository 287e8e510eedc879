
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Texts of the configuration that make one name of several variables.
 */


#ifndef _NGX_HTTP_ONCE_TEXT_H_INCLUDED_
#define _NGX_HTTP_ONCE_TEXT_H_INCLUDED_


#include "ngx_http_once_context.h"


/* into `text`, or, where that is NULL, into one of its own; NULL: an error */
ngx_http_once_text_t *ngx_http_once_compile_text(ngx_conf_t *cf,
    ngx_str_t *value, ngx_http_once_text_t *text);

/* was the same written? */
ngx_uint_t ngx_http_once_same_text(ngx_http_once_text_t *a,
    ngx_http_once_text_t *b);

/* the values of the parts, in their order, and how many variables are empty */
ngx_str_t *ngx_http_once_text_values(ngx_http_request_t *r,
    ngx_http_once_text_t *text, ngx_uint_t *empty);

/* one text of these values, from which each of them can be told */
ngx_int_t ngx_http_once_join(ngx_http_request_t *r,
    ngx_http_once_text_t *text, ngx_str_t *values, ngx_str_t *joined);

/* as it was written, with the values in the places of the variables */
ngx_int_t ngx_http_once_plain(ngx_http_request_t *r,
    ngx_http_once_text_t *text, ngx_str_t *values, ngx_str_t *plain);


#endif /* _NGX_HTTP_ONCE_TEXT_H_INCLUDED_ */
