
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The precontent phase: from the request to its claim and its dispatch.
 */


#ifndef _NGX_HTTP_ONCE_REQUEST_H_INCLUDED_
#define _NGX_HTTP_ONCE_REQUEST_H_INCLUDED_


#include "ngx_http_once_capture.h"
#include "ngx_http_once_lookup.h"
#include "ngx_http_once_pages.h"


ngx_int_t ngx_http_once_handler(ngx_http_request_t *r);


#endif /* _NGX_HTTP_ONCE_REQUEST_H_INCLUDED_ */
