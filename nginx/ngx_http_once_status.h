
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The page of "once_status".
 */


#ifndef _NGX_HTTP_ONCE_STATUS_H_INCLUDED_
#define _NGX_HTTP_ONCE_STATUS_H_INCLUDED_


#include "ngx_http_once_worker.h"


char *ngx_http_once_status_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


#endif /* _NGX_HTTP_ONCE_STATUS_H_INCLUDED_ */
