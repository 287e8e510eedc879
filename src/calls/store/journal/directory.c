/* SPDX-License-Identifier: Apache-2.0 */
/*
 * directory.c - which page of the index a hash leads to: as many entries as its
 * last `depth` bits have values, each the number of a page.
 *
 *    part 0         1                 2                     ...
 *    1,024 entries  the next 1,024    the next 2,048
 *
 * It doubles by copying: the new half lies in pages of its own and the old one
 * stays where it is. The depth is raised last, so no reader ever looks at a
 * half that is not whole. It refuses more than 2^23 entries.
 */
#include "calls/store/journal/handle.h"

#include <string.h>

enum {
    BASE = 10, /* the directory's first page: 1,024 entries */
    PER_PAGE = ONCE__PAGE_SIZE / 4,
    DEPTH_MAX = BASE + ONCE__DIRECTORIES - 1
};

static inline uint32_t *entry(struct once__journal *j, uint32_t i)
{
    unsigned part = 0;
    uint32_t begin = 0, *page;

    if (i >= 1u << BASE) {
        part = 32u - (unsigned)__builtin_clz(i) - BASE;
        begin = 1u << (BASE + part - 1);
    }
    page = (uint32_t *)(void *)once__shared_page(j, j->shared->directory[part] +
                                                        (i - begin) / PER_PAGE);
    return page + (i - begin) % PER_PAGE;
}

uint32_t once__directory_get(struct once__journal *j, uint64_t hash)
{
    return *entry(j, (uint32_t)hash & ((1u << j->shared->depth) - 1));
}

void once__directory_point(struct once__journal *j, uint32_t first,
                           unsigned bits, uint32_t page)
{
    uint64_t i, step = UINT64_C(1) << bits;

    for (i = first; i < UINT64_C(1) << j->shared->depth; i += step)
        *entry(j, (uint32_t)i) = page;
}

int once__directory_begin(struct once__journal *j)
{
    struct once__shared *s = j->shared;

    s->depth = BASE;
    memset(s->directory, 0, sizeof(s->directory));
    s->directory[0] = once__shared_grow(j, 1);
    return s->directory[0] != 0;
}

int once__directory_double(struct once__journal *j)
{
    struct once__shared *s = j->shared;
    uint32_t half = 1u << s->depth, i;
    uint32_t part = s->depth - BASE + 1, pages = half / PER_PAGE;

    if (s->depth >= DEPTH_MAX || pages > ONCE__CHUNK_PAGES)
        return 0;
    s->directory[part] = once__shared_grow(j, pages);
    if (s->directory[part] == 0)
        return 0;
    for (i = 0; i < half; i++)
        *entry(j, half + i) = *entry(j, i);
    atomic_signal_fence(memory_order_seq_cst);
    s->depth++;
    return 1;
}

int once__directory_holds(const struct once__shared *s, uint32_t page)
{
    uint32_t part, pages;

    for (part = 0; part <= s->depth - BASE; part++) {
        pages = part == 0 ? 1 : 1u << (part - 1);
        if (page >= s->directory[part] && page < s->directory[part] + pages)
            return 1;
    }
    return 0;
}

int once__directory_is_depth(uint32_t depth)
{
    return depth >= BASE && depth <= DEPTH_MAX;
}
