
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The engines of this worker process, and the attempts under way in them.
 */


#ifndef _NGX_HTTP_ONCE_WORKER_H_INCLUDED_
#define _NGX_HTTP_ONCE_WORKER_H_INCLUDED_


#include "ngx_http_once_counters.h"


/* what the engine reported: enum once_result, or an error below zero */

typedef void (*ngx_http_once_result_pt)(ngx_http_once_ctx_t *ctx, int rc);


ngx_int_t ngx_http_once_init_process(ngx_cycle_t *cycle);
void ngx_http_once_exit_process(ngx_cycle_t *cycle);

/*
 * NGX_OK: it is a replay, and its record is known; NGX_AGAIN: the handler is
 * called with the answer; NGX_ERROR: nothing was asked.
 */

ngx_int_t ngx_http_once_claim(ngx_http_once_ctx_t *ctx,
    const once_request *request, ngx_http_once_result_pt handler);

/*
 * Asks what became of the key, and claims nothing.  NGX_OK: the handler is
 * called with the answer, which has a record; NGX_ERROR: nothing was asked.
 */

ngx_int_t ngx_http_once_peek(ngx_http_once_ctx_t *ctx,
    const once_request *request, ngx_http_once_result_pt handler);

ngx_int_t ngx_http_once_finish(ngx_http_once_ctx_t *ctx,
    once__verdict verdict, once_bytes result,
    ngx_http_once_result_pt handler);
void ngx_http_once_abandon(ngx_http_once_ctx_t *ctx, int observed);

/*
 * Records what a probe was told, whether a request waits for it or not.  NGX_OK: the handler is
 * called with the answer, unless the request has gone.
 */

ngx_int_t ngx_http_once_resolve(ngx_http_once_ctx_t *ctx, once_bytes result,
    ngx_http_once_result_pt handler);

/* of the request's attempt, or a known replay; NULL and 0 if it has none */

const once_record *ngx_http_once_record(ngx_http_once_ctx_t *ctx);
uint64_t ngx_http_once_left(ngx_http_once_ctx_t *ctx);

void ngx_http_once_publish_all(void);


#endif /* _NGX_HTTP_ONCE_WORKER_H_INCLUDED_ */
