
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Whose keys these are: "once_scope".
 */


#ifndef _NGX_HTTP_ONCE_SCOPE_H_INCLUDED_
#define _NGX_HTTP_ONCE_SCOPE_H_INCLUDED_


#include "ngx_http_once_text.h"


char *ngx_http_once_scope_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_int_t ngx_http_once_check_scope(ngx_conf_t *cf, void **loc_conf);

ngx_int_t ngx_http_once_scope(ngx_http_request_t *r,
    ngx_http_once_loc_conf_t *olcf, ngx_str_t *scope);


#endif /* _NGX_HTTP_ONCE_SCOPE_H_INCLUDED_ */
