/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spare.h - memory and random numbers for attempts, kept ready. See spare.c.
 */
#ifndef ONCE_CALLS_ENGINE_SPARE_H
#define ONCE_CALLS_ENGINE_SPARE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <once/once.h>

enum { ONCE__SPARE_RANDOM = 16 * ONCE_TOKEN_SIZE };

struct once__spare {
    atomic_flag busy; /* one thread uses what is below: a lock, taken with
                       * acquire and let go with release */
    struct once__spare_block *first;
    int count;
    size_t left; /* of `random`: not used yet */
    uint8_t random[ONCE__SPARE_RANDOM];
};

void once__spare_init(struct once__spare *s);
void once__spare_clear(struct once__spare *s);
/* `size` bytes, not cleared, or NULL. From any thread, like the others. */
void *once__spare_take(struct once__spare *s, size_t size);
/* Takes back what was taken with the same size. NULL is accepted. */
void once__spare_give(struct once__spare *s, void *memory, size_t size);
/* 0: there are no random numbers. */
ONCE_CHECK int once__spare_token(struct once__spare *s,
                                 uint8_t out[ONCE_TOKEN_SIZE]);

#endif /* ONCE_CALLS_ENGINE_SPARE_H */
