
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The content handler of "once_lookup".
 */


#ifndef _NGX_HTTP_ONCE_LOOKUP_H_INCLUDED_
#define _NGX_HTTP_ONCE_LOOKUP_H_INCLUDED_


#include "ngx_http_once_identity.h"
#include "ngx_http_once_worker.h"


ngx_int_t ngx_http_once_lookup_handler(ngx_http_request_t *r);


#endif /* _NGX_HTTP_ONCE_LOOKUP_H_INCLUDED_ */
