/* SPDX-License-Identifier: Apache-2.0 */
/* handle.h - what client.c and send.c know of a client. */
#ifndef ONCE_CLIENT_HANDLE_H
#define ONCE_CLIENT_HANDLE_H

#include <pthread.h>

#include "client/client.h"

enum { ONCE__IDLE_MAX = 16 }; /* libcurl's handles, each with connections */

struct once_client {
    once_client_options options; /* without zeros */
    char *ca_file;
    struct once__orders *orders;
    pthread_mutex_t lock; /* of what follows */
    struct once__breaker breaker;
    void *idle[ONCE__IDLE_MAX];
    size_t n_idle;
};

#endif /* ONCE_CLIENT_HANDLE_H */
