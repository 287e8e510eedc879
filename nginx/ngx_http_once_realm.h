
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Which service the keys belong to: "once_realm", and what counts without it.
 */


#ifndef _NGX_HTTP_ONCE_REALM_H_INCLUDED_
#define _NGX_HTTP_ONCE_REALM_H_INCLUDED_


#include "ngx_http_once_text.h"


char *ngx_http_once_realm_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_int_t ngx_http_once_default_realm(ngx_conf_t *cf,
    ngx_http_once_loc_conf_t *olcf);
void ngx_http_once_warn_of_realms(ngx_conf_t *cf,
    ngx_http_once_main_conf_t *omcf);


#endif /* _NGX_HTTP_ONCE_REALM_H_INCLUDED_ */
