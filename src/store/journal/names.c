/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names.c - the names of all records in order, out of an index without order.
 *
 * One walk over the index picks the next thousands of names after a given one,
 * the smallest there are, with a heap; they are then returned one by one until
 * that list ends. So a million names are some sixty walks, and none of them
 * holds the lock for more than a few pages of the index. If a page is split
 * during a walk a name may be shown twice, but never missed; a record that is
 * made or forgotten during a walk may be shown or not.
 */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "store/journal/handle.h"

enum {
    AT_ONCE = 1 << 14, /* names in a list                   */
    PAGES = 128        /* of the index, under one lock      */
};

static int by_name(const void *a, const void *b)
{
    return memcmp(a, b, ONCE_NAME_SIZE);
}

/* The largest name is in front. */
static void sift_down(struct once__names *l, size_t at)
{
    uint8_t swap[ONCE_NAME_SIZE];
    size_t child;

    while ((child = 2 * at + 1) < l->count) {
        if (child + 1 < l->count &&
            by_name(l->names[child + 1], l->names[child]) > 0)
            child++;
        if (by_name(l->names[at], l->names[child]) >= 0)
            return;
        memcpy(swap, l->names[at], ONCE_NAME_SIZE);
        memcpy(l->names[at], l->names[child], ONCE_NAME_SIZE);
        memcpy(l->names[child], swap, ONCE_NAME_SIZE);
        at = child;
    }
}

static void add(struct once__names *l, const uint8_t *name)
{
    size_t i;

    if (l->count < AT_ONCE) {
        memcpy(l->names[l->count++], name, ONCE_NAME_SIZE);
        if (l->count == AT_ONCE)
            for (i = AT_ONCE / 2; i-- > 0;)
                sift_down(l, i);
        return;
    }
    l->more = 1;
    if (by_name(name, l->names[0]) >= 0)
        return;
    memcpy(l->names[0], name, ONCE_NAME_SIZE);
    sift_down(l, 0);
}

static void walk(struct once__journal *j, struct once__names *l,
                 const uint8_t *after, uint32_t *page)
{
    uint32_t end = *page + PAGES;
    const struct once__page *p;
    unsigned i;

    for (; *page < end && *page < j->shared->pages; (*page)++) {
        if (!once__index_bucket(j->shared, *page))
            continue;
        p = once__shared_page(j, *page);
        for (i = 0; i < p->count; i++)
            if (after == NULL || by_name(p->slots[i].name, after) > 0)
                add(l, p->slots[i].name);
    }
}

static int collect(struct once__journal *j, struct once__names *l,
                   const uint8_t *after, once_error *err)
{
    uint32_t page = 0, pages;
    int code;

    if (l->names == NULL)
        l->names = malloc(sizeof(*l->names) * AT_ONCE);
    if (l->names == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    l->count = l->at = 0;
    l->more = 0;
    do {
        code = once__journal_lock(j, err);
        if (code != ONCE_OK)
            return code;
        pages = j->shared->pages;
        walk(j, l, after, &page);
        once__journal_unlock(j);
    } while (page < pages);
    qsort(l->names, l->count, sizeof(*l->names), by_name);
    return ONCE_OK;
}

/* Was `after` the last name that the list gave, and does it know the next? */
static int continues(const struct once__names *l, const uint8_t *after)
{
    return after != NULL && l->at > 0 &&
           by_name(l->names[l->at - 1], after) == 0 &&
           (l->at < l->count || !l->more);
}

int once__names_next(struct once__journal *j, struct once__names *l,
                     const uint8_t *after, uint8_t out[ONCE_NAME_SIZE],
                     once_error *err)
{
    int code = ONCE_OK;

    while (code == ONCE_OK) {
        if (!continues(l, after))
            code = collect(j, l, after, err);
        while (l->at < l->count && after != NULL &&
               by_name(l->names[l->at], after) == 0)
            l->at++; /* twice */
        if (code == ONCE_OK && l->at < l->count)
            break;
        if (code == ONCE_OK && !l->more)
            return 0;
    }
    if (code != ONCE_OK)
        return code;
    memcpy(out, l->names[l->at++], ONCE_NAME_SIZE);
    return 1;
}
