/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - where the last frame of each name is: extendible hashing.
 *
 *    directory, by the last bits of a hash    0 1 2 3 4 5 6 7
 *                                             | | | | | | | |
 *    pages of up to 62 slots                  a b c d a b e d
 *
 * A page that is full is cut in two by one more bit of the hash; where it had
 * the directory's last bit already, the directory doubles (directory.c). So no
 * step ever touches more than two pages and, rarely, four bytes a page: a
 * million records stall no process. What a step replaces is noted first
 * (undo.c). The hash is keyed with random words, or a caller who chooses names
 * could fill one page.
 *
 * Pages are never given back: it keeps the largest size it has had.
 */
#include "calls/store/journal/handle.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/must.h"

static_assert(sizeof(struct once__page) == ONCE__PAGE_SIZE, "one page");
static_assert(sizeof(struct once__slot) == 64, "one cache line");

__extension__ typedef unsigned __int128 product;

/* Pairwise products under secret words: collisions cannot be searched for. */
uint64_t once__index_hash(const struct once__shared *s,
                          const uint8_t name[ONCE_NAME_SIZE])
{
    uint64_t w[4];
    product a, b;

    memcpy(w, name, sizeof(w));
    a = (product)(w[0] ^ s->key[0]) * (w[1] ^ s->key[1] ^ w[3]);
    b = (product)(w[2] + s->key[2]) * (w[3] + s->key[3] + w[0]);
    w[0] = (uint64_t)a ^ (uint64_t)(a >> 64);
    w[1] = (uint64_t)b ^ (uint64_t)(b >> 64);
    w[0] = (w[0] ^ w[1] << 23 ^ w[1] >> 41) * UINT64_C(0x9e3779b97f4a7c15);
    return w[0] ^ w[0] >> 32;
}

/* Names are hashes, so their first bytes differ; and to have the names in
 * order reads no slot that is far from them (list.c). */
static uint8_t tag(const uint8_t name[ONCE_NAME_SIZE])
{
    return name[0];
}

static struct once__page *page_of(struct once__journal *j, uint64_t h)
{
    return once__shared_page(j, once__directory_get(j, h));
}

int once__index_clear(struct once__journal *j)
{
    struct once__shared *s = j->shared;
    struct once__page *first;
    uint32_t bucket;

    s->pages = 0;
    memset(s->marks, 0, sizeof(s->marks));
    /* Page 0 is not used: zero means that there is no room. */
    if (once__shared_grow(j, 1) != 0 || s->pages != 1)
        return ONCE_ENOMEM;
    if (!once__directory_begin(j))
        return ONCE_ENOMEM;
    bucket = once__shared_grow(j, 1);
    if (bucket == 0)
        return ONCE_ENOMEM;
    first = once__shared_page(j, bucket);
    first->lease_from = first->keep_from = UINT64_MAX;
    once__directory_point(j, 0, 0, bucket);
    s->records = s->bytes = s->owned = s->dispatched = s->waiting = 0;
    return ONCE_OK;
}

int once__index_bucket(const struct once__shared *s, uint32_t n)
{
    return n != 0 && !once__directory_holds(s, n);
}

/* ---- Times and counts ---------------------------------------------------- */

static int is_owned(const struct once__slot *slot)
{
    return slot->state == ONCE_CLAIMED || slot->state == ONCE_DISPATCHED;
}

static int is_waiting(const struct once__slot *slot)
{
    return slot->state == ONCE_INDETERMINATE;
}

static void note_due(const struct once__slot *slot, uint64_t *lease_from,
                     uint64_t *keep_from)
{
    uint64_t *from = is_owned(slot) ? lease_from : keep_from;

    if (!is_waiting(slot) && slot->due < *from)
        *from = slot->due;
}

/* Who only looks notes no undo: so neither is ever later than what is due. */
static void note_all(struct once__page *p)
{
    uint64_t lease_from = UINT64_MAX, keep_from = UINT64_MAX;
    unsigned i;

    for (i = 0; i < p->count; i++)
        note_due(&p->slots[i], &lease_from, &keep_from);
    p->lease_from = lease_from;
    p->keep_from = keep_from;
}

/* In page `n`. */
static void count_here(struct once__journal *j, uint32_t n,
                       const struct once__slot *slot, int sign)
{
    struct once__page *p = once__shared_page(j, n);
    uint64_t *marks = &j->shared->marks[n / 64], mark = UINT64_C(1) << n % 64;

    if (is_owned(slot))
        p->live = (uint8_t)(p->live + sign);
    if (is_waiting(slot))
        p->waiting = (uint8_t)(p->waiting + sign);
    ONCE__MUST(p->live + p->waiting <= ONCE__PAGE_SLOTS);
    *marks = p->live + p->waiting > 0 ? *marks | mark : *marks & ~mark;
}

static void count(struct once__shared *s, const struct once__slot *slot,
                  int sign)
{
    struct once__segment *seg = once__segment(s, once__journal_id(slot->at));
    uint64_t one = sign < 0 ? UINT64_MAX : 1;
    uint64_t length = sign < 0 ? 0 - (uint64_t)slot->length : slot->length;

    ONCE__MUST(sign > 0 || (seg->live > 0 && seg->bytes >= slot->length));
    ONCE__MUST(sign > 0 ||
               (s->records > 0 && (!is_owned(slot) || s->owned > 0)));
    once__sum_add(&seg->live, one);
    once__sum_add(&seg->bytes, length);
    once__sum_add(&s->bytes, length);
    once__sum_add(&s->records, one);
    if (is_owned(slot))
        once__sum_add(&s->owned, one);
    if (slot->state == ONCE_DISPATCHED)
        s->dispatched += one;
    if (is_waiting(slot))
        s->waiting += one;
}

int once__index_is_in(const struct once__slot *slot, int what)
{
    return what == ONCE_SCAN_LIVE      ? is_owned(slot)
           : what == ONCE_SCAN_WAITING ? is_waiting(slot)
                                       : 1;
}

unsigned once__index_in_page(const struct once__page *p, int what)
{
    return what == ONCE_SCAN_LIVE      ? p->live
           : what == ONCE_SCAN_WAITING ? p->waiting
                                       : p->count;
}

uint64_t once__index_in_all(const struct once__shared *s, int what)
{
    return what == ONCE_SCAN_LIVE      ? s->owned
           : what == ONCE_SCAN_WAITING ? s->waiting
                                       : s->records;
}

uint32_t once__index_next(const struct once__shared *s, int what, uint32_t n)
{
    uint64_t marks;

    if (what == ONCE_SCAN_ALL)
        return n;
    while (n < s->pages) {
        marks = s->marks[n / 64] >> n % 64;
        if (marks != 0)
            return n + (uint32_t)__builtin_ctzll(marks);
        n = (n / 64 + 1) * 64;
    }
    return s->pages;
}

/* ---- Finding and changing ------------------------------------------------ */

static int search(const struct once__page *p,
                  const uint8_t name[ONCE_NAME_SIZE])
{
    int i;

    for (i = 0; i < p->count; i++)
        if (p->tags[i] == tag(name) &&
            memcmp(p->slots[i].name, name, ONCE_NAME_SIZE) == 0)
            return i;
    return -1;
}

struct once__slot *once__index_find(struct once__journal *j,
                                    const uint8_t name[ONCE_NAME_SIZE])
{
    uint64_t h = once__index_hash(j->shared, name);
    struct once__page *p = page_of(j, h);
    int i = search(p, name);

    return i < 0 ? NULL : &p->slots[i];
}

void once__index_expect(struct once__journal *j,
                        const uint8_t name[ONCE_NAME_SIZE])
{
    const struct once__page *p = page_of(j, once__index_hash(j->shared, name));

    __builtin_prefetch(p);
    __builtin_prefetch(&p->lease_from, 1);
}

static void move_up(struct once__journal *j, uint32_t from, uint32_t to)
{
    struct once__page *p = once__shared_page(j, from);
    struct once__page *q = once__shared_page(j, to);
    unsigned i = 0, bit = p->depth;
    uint64_t h;

    while (i < p->count) {
        h = once__index_hash(j->shared, p->slots[i].name);
        if ((h >> bit & 1) == 0) {
            i++;
            continue;
        }
        count_here(j, from, &p->slots[i], -1);
        count_here(j, to, &p->slots[i], 1);
        q->slots[q->count] = p->slots[i];
        q->tags[q->count++] = p->tags[i];
        p->slots[i] = p->slots[--p->count];
        p->tags[i] = p->tags[p->count];
    }
}

/* Cuts the page of hash `h` in two. 0: no room, and nothing was changed. */
static int split(struct once__journal *j, uint64_t h)
{
    uint32_t from = once__directory_get(j, h), n, bit, first;
    struct once__page *p = once__shared_page(j, from), *q;

    once__undo_begin(j);
    if (p->depth == j->shared->depth && !once__directory_double(j))
        return 0;
    n = once__shared_grow(j, 1);
    bit = 1u << p->depth;
    first = (uint32_t)h & (bit - 1);
    if (n == 0 || !once__undo_cut(j, from, first, n))
        return 0;
    q = once__shared_page(j, n);
    once__directory_point(j, first | bit, p->depth + 1u, n);
    move_up(j, from, n);
    p->depth++;
    q->depth = p->depth;
    note_all(p);
    note_all(q);
    return 1;
}

int once__index_put(struct once__journal *j, const struct once__slot *slot)
{
    uint64_t h = once__index_hash(j->shared, slot->name);
    uint32_t n = once__directory_get(j, h);
    struct once__page *p = once__shared_page(j, n);
    int i = search(p, slot->name);

    while (i < 0 && p->count == ONCE__PAGE_SLOTS) {
        if (!split(j, h))
            return 0;
        n = once__directory_get(j, h);
        p = once__shared_page(j, n);
    }
    once__undo_slot(j, n, p, i < 0 ? p->count : (unsigned)i,
                    i < 0 ? slot->at : p->slots[i].at, slot->at);
    if (i < 0) {
        i = p->count++;
        p->tags[i] = tag(slot->name);
    } else {
        count(j->shared, &p->slots[i], -1);
        count_here(j, n, &p->slots[i], -1);
    }
    ONCE__MUST(p->count <= ONCE__PAGE_SLOTS && i < p->count);
    p->slots[i] = *slot;
    count(j->shared, slot, 1);
    count_here(j, n, slot, 1);
    note_due(slot, &p->lease_from, &p->keep_from);
    return 1;
}

/* 1 if all belong to one page of that depth. */
static int belong_together(const struct once__shared *s, unsigned depth,
                           const struct once__slot *slots, size_t n)
{
    uint64_t h = once__index_hash(s, slots[0].name), differ = 0;
    size_t i;

    for (i = 1; i < n; i++)
        differ |= once__index_hash(s, slots[i].name) ^ h;
    return n <= ONCE__PAGE_SLOTS && depth < 32 &&
           (differ & ((UINT64_C(1) << depth) - 1)) == 0;
}

/* The empty page `n`. */
static void fill_page(struct once__journal *j, uint32_t n,
                      const struct once__slot *slots, size_t size)
{
    struct once__page *p = once__shared_page(j, n);
    size_t i;

    memcpy(p->slots, slots, size * sizeof(slots[0]));
    p->count = (uint8_t)size;
    for (i = 0; i < size; i++) {
        p->tags[i] = tag(slots[i].name);
        count(j->shared, &slots[i], 1);
        count_here(j, n, &slots[i], 1);
        note_due(&slots[i], &p->lease_from, &p->keep_from);
    }
}

static int put_each(struct once__journal *j, const struct once__slot *slots,
                    size_t n)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (!once__index_put(j, &slots[i]))
            return 0;
    return 1;
}

int once__index_put_page(struct once__journal *j, unsigned depth,
                         const struct once__slot *slots, size_t n)
{
    uint64_t h = once__index_hash(j->shared, slots[0].name);
    struct once__page *p = page_of(j, h);

    if (!belong_together(j->shared, depth, slots, n))
        return put_each(j, slots, n);
    while (p->count == 0 && p->depth < depth) {
        if (!split(j, h))
            return 0;
        p = page_of(j, h);
    }
    if (p->count > 0 || p->depth > depth)
        return put_each(j, slots, n);
    fill_page(j, once__directory_get(j, h), slots, n);
    return 1;
}

void once__index_remove(struct once__journal *j,
                        const uint8_t name[ONCE_NAME_SIZE])
{
    uint32_t n = once__directory_get(j, once__index_hash(j->shared, name));
    struct once__page *p = once__shared_page(j, n);
    int i = search(p, name);

    if (i < 0)
        return;
    once__undo_slot(j, n, p, (unsigned)i, p->slots[i].at, p->slots[i].at);
    count(j->shared, &p->slots[i], -1);
    count_here(j, n, &p->slots[i], -1);
    p->slots[i] = p->slots[--p->count];
    p->tags[i] = p->tags[p->count];
}

/* ---- What is due --------------------------------------------------------- */

static size_t due_of(struct once__page *p, int what, uint64_t now_ms,
                     struct once__slot *out, size_t max)
{
    uint64_t from = what == ONCE_SCAN_LEASE ? p->lease_from : p->keep_from;
    size_t n = 0;
    unsigned i;

    if (now_ms < from)
        return 0;
    for (i = 0; i < p->count && n < max; i++)
        if (p->slots[i].due <= now_ms && !is_waiting(&p->slots[i]) &&
            is_owned(&p->slots[i]) == (what == ONCE_SCAN_LEASE))
            out[n++] = p->slots[i];
    if (n == 0) /* leases were renewed, records are gone */
        note_all(p);
    return n;
}

size_t once__index_due(struct once__journal *j, int what, uint64_t now_ms,
                       uint32_t *page, uint32_t pages, struct once__slot *out,
                       size_t max)
{
    struct once__shared *s = j->shared;
    struct once__page *p;
    size_t n = 0;

    /* A page is shown whole or not at all. */
    for (; pages > 0 && *page < s->pages && n + ONCE__PAGE_SLOTS <= max;
         pages--, (*page)++) {
        if (!once__index_bucket(s, *page))
            continue;
        p = once__shared_page(j, *page);
        n += due_of(p, what, now_ms, out + n, max - n);
    }
    return n;
}
