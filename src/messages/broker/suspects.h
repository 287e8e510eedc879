/* SPDX-License-Identifier: Apache-2.0 */
/*
 * suspects.h - messages that a broker may have refused, where it answers for
 * several at once and does not say which. Each of them is alone in flight when
 * it is sent again, so that the next time it is known. They are known by the
 * checksums of their ids.
 */
#ifndef ONCE_MESSAGES_BROKER_SUSPECTS_H
#define ONCE_MESSAGES_BROKER_SUSPECTS_H

#include <stddef.h>
#include <stdint.h>

struct once__suspects {
    uint32_t *sums;
    size_t n, room;
};

uint32_t once__suspects_sum(const char *id);
int once__suspects_has(const struct once__suspects *s, uint32_t sum);
/* Without memory it is not added: then it is found the next time. */
void once__suspects_add(struct once__suspects *s, uint32_t sum);
void once__suspects_remove(struct once__suspects *s, uint32_t sum);
void once__suspects_clear(struct once__suspects *s);

#endif /* ONCE_MESSAGES_BROKER_SUSPECTS_H */
