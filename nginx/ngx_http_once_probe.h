
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * "once_probe": the service is asked what became of a record.
 */


#ifndef _NGX_HTTP_ONCE_PROBE_H_INCLUDED_
#define _NGX_HTTP_ONCE_PROBE_H_INCLUDED_


#include "ngx_http_once_answer.h"
#include "ngx_http_once_upstream.h"
#include "ngx_http_once_worker.h"


/* after a claim: is the service to be asked?  Then the state is PROBE */

void ngx_http_once_probe_offer(ngx_http_once_ctx_t *ctx, int rc);

/*
 * NGX_AGAIN: it is being asked, and the phases run again when it has answered;
 * NGX_OK: it was applied, and this is to be recorded; NGX_DECLINED: it stays
 * unknown.
 */

ngx_int_t ngx_http_once_probe(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, once_bytes *result);
void ngx_http_once_probe_drop(ngx_http_once_ctx_t *ctx);

/* the context of the request that this subrequest asks for, or NULL */

ngx_http_once_ctx_t *ngx_http_once_probe_of(ngx_http_request_t *sr);

ngx_int_t ngx_http_once_probe_dispatch(ngx_http_request_t *sr,
    ngx_http_once_ctx_t *ctx);
ngx_int_t ngx_http_once_probe_head(ngx_http_request_t *sr,
    ngx_http_once_ctx_t *ctx);

/* to the request that is passed on, what the probe will ask about */

ngx_int_t ngx_http_once_push_record(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
ngx_int_t ngx_http_once_push_request(ngx_http_request_t *r, const char *name,
    u_char *value, size_t len);


#endif /* _NGX_HTTP_ONCE_PROBE_H_INCLUDED_ */
