
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The directives: read, merged and checked.
 */


#ifndef _NGX_HTTP_ONCE_CONF_H_INCLUDED_
#define _NGX_HTTP_ONCE_CONF_H_INCLUDED_


#include "ngx_http_once_pages.h"
#include "ngx_http_once_realm.h"
#include "ngx_http_once_scope.h"
#include "ngx_http_once_targets.h"


extern ngx_command_t  ngx_http_once_commands[];


void *ngx_http_once_create_main_conf(ngx_conf_t *cf);
void *ngx_http_once_create_loc_conf(ngx_conf_t *cf);
char *ngx_http_once_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
ngx_int_t ngx_http_once_check_conf(ngx_conf_t *cf,
    ngx_http_once_main_conf_t *omcf);


#endif /* _NGX_HTTP_ONCE_CONF_H_INCLUDED_ */
