/* SPDX-License-Identifier: Apache-2.0 */
/* jitter.c - once__client_jitter() with random bits of the system. */
#include "messages/relay/jitter.h"

#include <sys/random.h>

#include "client/client.h"

uint64_t once__relay_jitter(uint64_t most)
{
    uint64_t random = 0;

    return getrandom(&random, sizeof(random), 0) == (ssize_t)sizeof(random)
               ? once__client_jitter(most, random)
               : most;
}
