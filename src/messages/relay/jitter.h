/* SPDX-License-Identifier: Apache-2.0 */
/* jitter.h - pauses at random, so that many who lost one server do not come back
 * at one moment. */
#ifndef ONCE_MESSAGES_RELAY_JITTER_H
#define ONCE_MESSAGES_RELAY_JITTER_H

#include <stdint.h>

/* A whole number from 0 to `most`; `most` if the system has no random bits. */
uint64_t once__relay_jitter(uint64_t most);

#endif /* ONCE_MESSAGES_RELAY_JITTER_H */
