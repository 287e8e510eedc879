/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.c - see arena.h. Blocks double up to a megabyte, so that a busy store
 * soon has one that is enough; what is larger is made for one answer and not
 * kept.
 */
#include "calls/store/arena.h"

#include <stdint.h>
#include <stdlib.h>

enum { BLOCK_MIN = 16 * 1024, BLOCK_MAX = 1 << 20 };
enum { ALIGNED = _Alignof(max_align_t) };

struct once__arena_block {
    struct once__arena_block *next;
    size_t size, used;
    _Alignas(max_align_t) unsigned char bytes[];
};

void *once__arena_take(struct once__arena *a, size_t size)
{
    struct once__arena_block *b = a->blocks;
    size_t room = b == NULL ? BLOCK_MIN : 2 * b->size;

    if (size > SIZE_MAX - ALIGNED)
        return NULL;
    size = (size + ALIGNED - 1) / ALIGNED * ALIGNED;
    if (b == NULL || b->size - b->used < size) {
        room = room > BLOCK_MAX ? BLOCK_MAX : room;
        room = room < size ? size : room;
        b = malloc(sizeof(*b) + room);
        if (b == NULL)
            return NULL;
        b->next = a->blocks;
        b->size = room;
        b->used = 0;
        a->blocks = b;
    }
    b->used += size;
    return b->bytes + b->used - size;
}

static void release(struct once__arena *a, size_t keep)
{
    struct once__arena_block *b = a->blocks, *next;

    a->blocks = NULL;
    for (; b != NULL; b = next) {
        next = b->next;
        if (a->blocks == NULL && b->size <= keep) {
            b->used = 0;
            b->next = NULL;
            a->blocks = b;
        } else {
            free(b);
        }
    }
}

void once__arena_reset(struct once__arena *a)
{
    release(a, BLOCK_MAX);
}

void once__arena_clear(struct once__arena *a)
{
    release(a, 0);
}
