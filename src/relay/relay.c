/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay.c - once_relay(): checks the options and starts a thread for each
 * worker of each route.
 */
#include <once/relay.h>

#include "core/error.h"

int once_relay(const once_relay_options *options, once_error *err)
{
    (void)options;
    return once__fail(err, ONCE_ENOSYS, "the relay is not there yet");
}
