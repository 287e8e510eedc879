/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h - memory for the bytes of answers, which last until the next call:
 * taken in pieces, given back at once. */
#ifndef ONCE_CALLS_STORE_ARENA_H
#define ONCE_CALLS_STORE_ARENA_H

#include <stddef.h>

/* Zero it; end it with once__arena_clear(). */
struct once__arena {
    struct once__arena_block *blocks;
};

/* `size` bytes for any type, which stay where they are until the next reset, or
 * NULL. */
void *once__arena_take(struct once__arena *a, size_t size);
/* All that was taken is gone; one block of average size is kept. */
void once__arena_reset(struct once__arena *a);
void once__arena_clear(struct once__arena *a);

#endif /* ONCE_CALLS_STORE_ARENA_H */
