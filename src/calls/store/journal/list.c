/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c - records in the order of a scan, out of an index without order.
 *
 * One walk over the index picks the next thousands of places after a given one,
 * the first there are, with a heap; they are then returned one by one until
 * that list ends or is old. So a million names are some sixty walks, and none
 * of them holds the lock for more than a few pages of the index. A page of
 * which nothing waits or is live costs a look at one bit, and is neither read
 * nor mapped: these are found among any number of completed records.
 *
 * If a page is split during a walk a record may be shown twice, but never
 * missed; a record that is made, changed or forgotten during a walk may be
 * shown or not.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "calls/core/transition.h"
#include "calls/store/journal/handle.h"
#include "base/steady.h"

enum {
    AT_ONCE = 1 << 14, /* places in a list                  */
    FEW = 64,          /* or as few as are asked for        */
    PAGES = 32,        /* of the index, under one lock      */
    AHEAD = 16,        /* pages whose tags are being read   */
    OLD_MS = 1000      /* then the list is made again       */
};

/* The last place is in front. */
static void sift_down(struct once__list *l, size_t at)
{
    once_position swap;
    size_t child;

    while ((child = 2 * at + 1) < l->count) {
        if (child + 1 < l->count &&
            once__position_order(&l->places[child + 1], &l->places[child]) > 0)
            child++;
        if (once__position_order(&l->places[at], &l->places[child]) >= 0)
            return;
        swap = l->places[at];
        l->places[at] = l->places[child];
        l->places[child] = swap;
        at = child;
    }
}

static void add(struct once__list *l, const once_position *place)
{
    size_t i;

    if (l->count < l->room) {
        l->places[l->count++] = *place;
        if (l->count == l->room)
            for (i = l->room / 2; i-- > 0;)
                sift_down(l, i);
        return;
    }
    l->more = 1;
    if (once__position_order(place, &l->places[0]) >= 0)
        return;
    l->places[0] = *place;
    sift_down(l, 0);
}

/*
 * The tags of names that may be in the list: `from`, and up to `span` more. When
 * a few names are wanted, those after the first digits of a hash, that leaves
 * few slots to be read, out of 60 times as much memory.
 */
static void tags_of(const struct once__list *l, const once_position *after,
                    unsigned *from, unsigned *span)
{
    *from = l->what == ONCE_SCAN_ALL && after != NULL ? after->name[0] : 0;
    *span = 255 - *from;
    if (l->what == ONCE_SCAN_ALL && l->count == l->room)
        *span = l->places[0].name[0] - *from;
}

/* The first slot from `i` on whose tag is one of these. */
static unsigned next_tag(const struct once__page *p, unsigned i, unsigned from,
                         unsigned span)
{
    const uint8_t *at;

    if (span == 0) { /* as soon as the list is full: many bytes at a time */
        at = memchr(p->tags + i, (int)from, p->count - i);
        return at != NULL ? (unsigned)(at - p->tags) : p->count;
    }
    while (i < p->count && p->tags[i] - from > span)
        i++;
    return i;
}

static void add_page(struct once__list *l, const struct once__page *p,
                     const once_position *after)
{
    unsigned left = once__index_in_page(p, l->what), i, from, span;
    once_position place;

    tags_of(l, after, &from, &span);
    if (span < 255 && l->count == l->room)
        l->more = 1; /* perhaps; a caller who asks for it makes another walk */
    for (i = next_tag(p, 0, from, span); left > 0 && i < p->count;
         i = next_tag(p, i + 1, from, span)) {
        if (!once__index_is_in(&p->slots[i], l->what))
            continue;
        left--;
        place.ms = l->what == ONCE_SCAN_ALL ? 0 : p->slots[i].due;
        memcpy(place.name, p->slots[i].name, ONCE_NAME_SIZE);
        if (after == NULL || once__position_order(&place, after) > 0)
            add(l, &place);
    }
}

/* Many at a time: each is in another page of memory. */
static void expect(struct once__journal *j, uint32_t page)
{
    if (page < j->shared->pages)
        __builtin_prefetch(once__shared_page(j, page)->tags);
}

static void walk(struct once__journal *j, struct once__list *l,
                 const once_position *after, uint32_t *page)
{
    int i;

    if (once__index_in_all(j->shared, l->what) == 0)
        *page = j->shared->pages;
    for (i = 0; i < PAGES && *page < j->shared->pages; i++, (*page)++) {
        *page = once__index_next(j->shared, l->what, *page);
        if (*page == j->shared->pages)
            break;
        if (l->what == ONCE_SCAN_ALL)
            expect(j, *page + AHEAD);
        if (once__index_bucket(j->shared, *page))
            add_page(l, once__shared_page(j, *page), after);
    }
}

static int collect(struct once__journal *j, struct once__list *l, int what,
                   const once_position *after, uint32_t max, once_error *err)
{
    uint32_t page = 0, pages;
    int code;

    if (l->places == NULL)
        l->places = malloc(sizeof(*l->places) * AT_ONCE);
    if (l->places == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    l->what = what;
    l->room = max < FEW ? max : AT_ONCE;
    l->count = l->next = 0;
    l->more = 0;
    l->made_ms = once__steady_ms();
    do {
        code = once__journal_lock(j, err);
        if (code != ONCE_OK)
            return code;
        pages = j->shared->pages;
        walk(j, l, after, &page);
        once__journal_unlock(j);
    } while (page < pages);
    qsort(l->places, l->count, sizeof(*l->places), once__position_order);
    return ONCE_OK;
}

/* Was `after` the last place that the list gave, and does it know the next? */
static int continues(const struct once__list *l, int what,
                     const once_position *after)
{
    return after != NULL && l->next > 0 && l->what == what &&
           once__position_order(&l->places[l->next - 1], after) == 0 &&
           (l->next < l->count || !l->more) &&
           once__steady_ms() - l->made_ms < OLD_MS;
}

int once__list_next(struct once__journal *j, struct once__list *l, int what,
                    const once_position *after, uint32_t max,
                    once_position *out, once_error *err)
{
    int code = ONCE_OK;

    while (code == ONCE_OK) {
        if (!continues(l, what, after))
            code = collect(j, l, what, after, max, err);
        while (l->next < l->count && after != NULL &&
               once__position_order(&l->places[l->next], after) == 0)
            l->next++; /* twice */
        if (code == ONCE_OK && l->next < l->count)
            break;
        if (code == ONCE_OK && !l->more) {
            l->next = 0; /* a caller who asks again needs what came since */
            return 0;
        }
    }
    if (code != ONCE_OK)
        return code;
    *out = l->places[l->next++];
    return 1;
}
