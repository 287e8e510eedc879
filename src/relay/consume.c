/* SPDX-License-Identifier: Apache-2.0 */
/*
 * consume.c - once_consume(): checks the options and starts a thread for each
 * worker, and one for parked messages.
 */
#include <once/relay.h>

#include "core/error.h"

int once_consume(const once_consumer_options *options, once_handler *handler,
                 void *handler_user, once_error *err)
{
    (void)options;
    (void)handler;
    (void)handler_user;
    return once__fail(err, ONCE_ENOSYS, "the consumer is not there yet");
}
