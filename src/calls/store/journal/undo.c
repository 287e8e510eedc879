/* SPDX-License-Identifier: Apache-2.0 */
/*
 * undo.c - what shared memory was like before the lock's holder changed it.
 *
 * The holder of the lock notes the old bytes of each place first, and changes
 * the place then. If it dies, the next one puts them back, the last note first:
 * then all is as it was before the first frame that was not written. That costs
 * what the dead one had begun, and not what the store holds.
 *
 *              first change              the log's tail is moved, by flushing
 *    nothing -------------> from == tail ------------------------> from != tail
 *    to undo                    |  ^ |                                nothing to
 *       ^                       |  | | each change: its note,         undo
 *       |  put back by the      |  `-' the number of notes, itself      |
 *       |  next one, or nothing |                                       |
 *       |  was written          |                    first change       |
 *       `-----------------------'          from == tail <---------------'
 *
 * The notes count as long as the log ends where it ended at the first of them.
 * So one store, that of the new tail, says of all frames of a batch that they
 * are in the log and of all notes that they are not needed: no death falls
 * between the two. A dead process' stores are all seen: it stopped between two
 * instructions, and the kernel marked the lock as left by a dead holder after
 * all stores before that. Only their order in the program matters, so the compiler
 * is kept from changing it, and the processor need not be, whichever it is.
 *
 * Putting back is repeated from the beginning if the process that does it dies.
 * What only grows is not put back: the fence, since a grant may be on the disk
 * in half a batch; sizes of files; and how much memory there is.
 *
 * It refuses notes that cannot be true: then the index is rebuilt from the
 * log.
 */
#include "calls/store/journal/handle.h"

#include <string.h>

#include "base/must.h"

/* Pages that one new name may cut. More than one is hardly ever seen: all 62
 * names of a page would have to fall into the same half. */
enum { CUTS = 4 };

#define NOWHERE UINT64_MAX /* no log ends there */

static struct once__undo *undo_of(const struct once__journal *j)
{
    return &j->shared->undo;
}

/* ---- Noting -------------------------------------------------------------- */

static void note_sums(struct once__shared *s, struct once__undo *u)
{
    u->count = 0;
    u->images = 0;
    u->marked = s->marked;
    u->forgotten = s->forgotten;
    u->records = s->records;
    u->bytes = s->bytes;
    u->owned = s->owned;
    u->dispatched = s->dispatched;
    u->waiting = s->waiting;
    u->average = s->average;
    u->generation = s->generation;
    u->pages = s->pages;
    u->depth = s->depth;
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&u->from, s->tail, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

/* 1 if notes are to be made. */
static inline int begin(struct once__shared *s)
{
    if (s->undo.from == s->tail)
        return 1;
    if (s->building)
        return 0;
    note_sums(s, &s->undo);
    return 1;
}

void once__undo_begin(struct once__journal *j)
{
    (void)begin(j->shared);
}

void once__undo_end(struct once__journal *j)
{
    atomic_store_explicit(&undo_of(j)->from, NOWHERE, memory_order_release);
}

int once__undo_is_full(const struct once__journal *j)
{
    const struct once__undo *u = undo_of(j);

    return u->from == j->shared->tail &&
           (u->count > ONCE__UNDO_NOTES - CUTS - 1 ||
            u->images > ONCE__UNDO_IMAGES - CUTS);
}

/* The next note, which does not count yet. */
static inline struct once__note_of *next_note(struct once__undo *u)
{
    ONCE__MUST(u->count < ONCE__UNDO_NOTES);
    return &u->notes[u->count];
}

/* Now it does, before anything that follows. */
static inline void add_note(struct once__undo *u)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&u->count, u->count + 1, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

static inline uint64_t *mark_of(struct once__shared *s, uint32_t page)
{
    return &s->marks[page / 64];
}

static inline void note_segment(const struct once__shared *s,
                                struct once__note_of *n, int i, uint64_t at)
{
    uint32_t place = once__journal_id(at) % ONCE__JOURNAL_SEGMENTS;

    n->segments[i] = place;
    n->live[i] = s->segments[place].live;
    n->bytes[i] = s->segments[place].bytes;
}

void once__undo_slot(struct once__journal *j, uint32_t page,
                     const struct once__page *p, unsigned slot, uint64_t before,
                     uint64_t after)
{
    struct once__shared *s = j->shared;
    struct once__undo *u = &s->undo;
    struct once__note_of *n;

    if (!begin(s))
        return;
    n = next_note(u);
    n->page = page;
    n->twin = 0;
    n->slot = slot;
    n->marks[0] = *mark_of(s, page);
    note_segment(s, n, 0, before);
    note_segment(s, n, 1, after);
    n->lease_from = p->lease_from;
    n->keep_from = p->keep_from;
    n->count = p->count;
    n->tag = p->tags[slot];
    n->page_live = p->live;
    n->page_waiting = p->waiting;
    n->old = p->slots[slot];
    add_note(u);
}

int once__undo_cut(struct once__journal *j, uint32_t page, uint32_t first,
                   uint32_t twin)
{
    struct once__shared *s = j->shared;
    struct once__undo *u = undo_of(j);
    struct once__note_of *n;

    if (!begin(s))
        return 1;
    if (u->images == ONCE__UNDO_IMAGES || u->count >= ONCE__UNDO_NOTES - 1)
        return 0;
    n = next_note(u);
    n->page = page;
    n->twin = twin;
    n->slot = u->images;
    n->first = first;
    n->marks[0] = *mark_of(s, page);
    n->marks[1] = *mark_of(s, twin);
    memcpy(&u->pages_were[u->images], once__shared_page(j, page),
           ONCE__PAGE_SIZE);
    u->images++;
    add_note(u);
    return 1;
}

/* ---- Putting back -------------------------------------------------------- */

static int is_page(const struct once__journal *j, uint32_t page)
{
    return page > 0 && page < j->shared->room &&
           !once__directory_holds(j->shared, page);
}

/* Against bounds that putting back does not change. */
static int can_be(const struct once__journal *j, const struct once__note_of *n)
{
    const struct once__undo *u = undo_of(j);
    const struct once__page *p;

    if (!is_page(j, n->page))
        return 0;
    if (n->twin == 0)
        return n->slot < ONCE__PAGE_SLOTS && n->count <= ONCE__PAGE_SLOTS &&
               n->segments[0] < ONCE__JOURNAL_SEGMENTS &&
               n->segments[1] < ONCE__JOURNAL_SEGMENTS;
    if (!is_page(j, n->twin) || n->slot >= u->images)
        return 0;
    p = &u->pages_were[n->slot];
    return p->count == ONCE__PAGE_SLOTS && p->depth < 32 &&
           n->first < UINT64_C(1) << p->depth;
}

static int all_can_be(const struct once__journal *j)
{
    const struct once__undo *u = undo_of(j);
    uint32_t i;

    if (u->count > ONCE__UNDO_NOTES || u->images > ONCE__UNDO_IMAGES ||
        u->pages > j->shared->room || !once__directory_is_depth(u->depth))
        return 0;
    for (i = 0; i < u->count; i++)
        if (!can_be(j, &u->notes[i]))
            return 0;
    return 1;
}

static void put_back_slot(struct once__journal *j,
                          const struct once__note_of *n)
{
    struct once__shared *s = j->shared;
    struct once__page *p = once__shared_page(j, n->page);
    int i;

    p->slots[n->slot] = n->old;
    p->tags[n->slot] = n->tag;
    p->count = n->count;
    p->live = n->page_live;
    p->waiting = n->page_waiting;
    p->lease_from = n->lease_from;
    p->keep_from = n->keep_from;
    *mark_of(s, n->page) = n->marks[0];
    for (i = 0; i < 2; i++) {
        s->segments[n->segments[i]].live = n->live[i];
        s->segments[n->segments[i]].bytes = n->bytes[i];
    }
}

/* The other half is given back with `pages`. */
static void put_back_cut(struct once__journal *j, const struct once__note_of *n)
{
    const struct once__page *was = &undo_of(j)->pages_were[n->slot];

    memcpy(once__shared_page(j, n->page), was, ONCE__PAGE_SIZE);
    once__directory_point(j, n->first, was->depth, n->page);
    *mark_of(j->shared, n->page) = n->marks[0];
    *mark_of(j->shared, n->twin) = n->marks[1];
}

/* After the pages, which lie deeper. */
static void put_back_sums(struct once__journal *j)
{
    struct once__shared *s = j->shared;
    const struct once__undo *u = undo_of(j);

    s->marked = u->marked;
    s->forgotten = u->forgotten;
    s->records = u->records;
    s->bytes = u->bytes;
    s->owned = u->owned;
    s->dispatched = u->dispatched;
    s->waiting = u->waiting;
    s->average = u->average;
    s->generation = u->generation;
    s->pages = u->pages;
    s->depth = u->depth;
}

int once__undo_apply(struct once__journal *j)
{
    struct once__undo *u = undo_of(j);
    uint32_t i;

    if (j->shared->building)
        return 0;
    if (u->from != j->shared->tail)
        return 1;
    if (!all_can_be(j))
        return 0;
    for (i = u->count; i-- > 0;)
        if (u->notes[i].twin != 0)
            put_back_cut(j, &u->notes[i]);
        else
            put_back_slot(j, &u->notes[i]);
    put_back_sums(j);
    atomic_signal_fence(memory_order_seq_cst);
    once__undo_end(j);
    return 1;
}
