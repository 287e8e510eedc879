
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The locations that "once_probe" and "accept=" lead to.
 */


#ifndef _NGX_HTTP_ONCE_TARGETS_H_INCLUDED_
#define _NGX_HTTP_ONCE_TARGETS_H_INCLUDED_


#include "ngx_http_once.h"


ngx_int_t ngx_http_once_check_targets(ngx_conf_t *cf,
    ngx_http_once_main_conf_t *omcf);


#endif /* _NGX_HTTP_ONCE_TARGETS_H_INCLUDED_ */
