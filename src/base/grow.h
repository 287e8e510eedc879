/* SPDX-License-Identifier: Apache-2.0 */
/* grow.h - lists that grow. */
#ifndef ONCE_BASE_GROW_H
#define ONCE_BASE_GROW_H

#include <stdint.h>
#include <stdlib.h>

/*
 * `list` with room for `n` elements of `size` bytes: the same, or moved, with at
 * least twice the room, so that adding one after the other costs the same each
 * time. NULL: no memory, and `list` and `*room` are as they were.
 */
static inline void *once__grown(void *list, size_t *room, size_t n, size_t size)
{
    size_t more = *room == 0 ? (size == 1 ? 4096 : 64) : *room;
    void *moved;

    if (n <= *room && list != NULL)
        return list;
    while (more < n && more <= SIZE_MAX / 2 / size)
        more *= 2;
    moved = more < n ? NULL : realloc(list, more * size);
    if (moved != NULL)
        *room = more;
    return moved;
}

#endif /* ONCE_BASE_GROW_H */
