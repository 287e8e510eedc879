
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The response of an owner, held until its record is durable.
 */


#ifndef _NGX_HTTP_ONCE_CAPTURE_H_INCLUDED_
#define _NGX_HTTP_ONCE_CAPTURE_H_INCLUDED_


#include "ngx_http_once_upstream.h"
#include "ngx_http_once_worker.h"
#include "ngx_http_once_probe.h"


void ngx_http_once_capture_init(void);
void ngx_http_once_stored(ngx_http_once_ctx_t *ctx, int rc);


#endif /* _NGX_HTTP_ONCE_CAPTURE_H_INCLUDED_ */
