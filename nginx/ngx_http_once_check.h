
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The check of the stores at "nginx -t", at each start and at each reload.
 */


#ifndef _NGX_HTTP_ONCE_CHECK_H_INCLUDED_
#define _NGX_HTTP_ONCE_CHECK_H_INCLUDED_


#include "ngx_http_once.h"


ngx_int_t ngx_http_once_storeless(ngx_log_t *log, ngx_uint_t *storeless);
ngx_int_t ngx_http_once_check_stores(ngx_cycle_t *cycle,
    ngx_http_once_main_conf_t *omcf);


#endif /* _NGX_HTTP_ONCE_CHECK_H_INCLUDED_ */
