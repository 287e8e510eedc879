/* SPDX-License-Identifier: Apache-2.0 */
/* saved.h - the bytes of DIR/index: who writes them is checkpoint.c, who reads
 * them saved.c, which says what they mean. */
#ifndef ONCE_CALLS_STORE_JOURNAL_SAVED_H
#define ONCE_CALLS_STORE_JOURNAL_SAVED_H

#include <stddef.h>

#include "base/crc32c.h"
#include "calls/store/journal/shared.h"

#define ONCE__SAVED_MAGIC UINT64_C(0x31786469656e6f6f)

enum {
    ONCE__SAVED_STAMP = 16,  /* bytes: the last ones of a MARK's name */
    ONCE__SAVED_SLOTS = 1023 /* in a block                            */
};

struct once__saved_head {
    uint64_t magic;
    uint32_t version, sum;
    uint64_t from, to;   /* positions: the beginning, the end of the MARK */
    uint64_t generation; /* there                                         */
    uint8_t stamp[ONCE__SAVED_STAMP];
    uint64_t blocks, slots, average;
    uint64_t key[4];
};

struct once__saved_block {
    uint32_t sum, spare;
    uint64_t number, from, count;
    uint64_t spares[4];
    struct once__slot slots[ONCE__SAVED_SLOTS];
};

static inline uint32_t once__saved_head_sum(const struct once__saved_head *h)
{
    return once__crc32c(0, &h->from,
                        sizeof(*h) - offsetof(struct once__saved_head, from));
}

static inline uint32_t once__saved_block_sum(const struct once__saved_block *b)
{
    return once__crc32c(
        0, &b->number, sizeof(*b) - offsetof(struct once__saved_block, number));
}

/* Where a block begins; where the file ends that has so many. */
static inline uint64_t once__saved_block_at(uint64_t number)
{
    return ONCE__JOURNAL_HEADER + number * sizeof(struct once__saved_block);
}

#endif /* ONCE_CALLS_STORE_JOURNAL_SAVED_H */
