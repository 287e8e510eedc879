/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.h - the memory that all processes of a journal share,
 * /dev/shm/once-...: locks, positions, counts, and the index of names.
 *
 * All of it is a cache of the log, made from it by recover.c, and repaired by
 * undo.c when a process dies that holds `lock`. Locks, in the
 * order in which they may be taken: compact, lock, then sync or prep. All are
 * robust and shared by processes.
 */
#ifndef ONCE_CALLS_STORE_JOURNAL_SHARED_H
#define ONCE_CALLS_STORE_JOURNAL_SHARED_H

#include <pthread.h>
#include <stdatomic.h>

#include "calls/store/journal/file.h"
#include "calls/store/journal/format.h"

struct once__journal;

/* ---- The index ---------------------------------------------------------- */

/* Where the last frame of a name is, and what that says. One cache line. */
struct once__slot {
    uint8_t name[ONCE_NAME_SIZE];
    uint64_t at;
    uint64_t due; /* as in the frame */
    uint64_t fence;
    uint32_t length;
    uint8_t state;
    uint8_t spare[3];
};

enum { ONCE__PAGE_SLOTS = 62, ONCE__PAGE_SIZE = 4096 };

/* A bucket of the index. `lease_from` and `keep_from`: nothing in here is due
 * earlier. `live` slots are claimed or dispatched, `waiting` ones are
 * indeterminate. */
struct once__page {
    uint8_t count, depth;
    uint8_t tags[ONCE__PAGE_SLOTS]; /* the names' first bytes */
    uint64_t lease_from, keep_from;
    uint8_t live, waiting;
    uint8_t spare[46];
    struct once__slot slots[ONCE__PAGE_SLOTS];
};

enum {
    ONCE__DIRECTORIES = 14,
    ONCE__CHUNK_PAGES = 4096,
    ONCE__CHUNKS = 2048,
    ONCE__MARKS = ONCE__CHUNKS * ONCE__CHUNK_PAGES / 64,
    ONCE__SHARED_NAME = 128
};

#define ONCE__SHARED_MAGIC UINT64_C(0x3330636e6f6a6d65)
#define ONCE__SHARED_PREFIX "/once-"

/* ---- The undo list ------------------------------------------------------ */

enum { ONCE__UNDO_NOTES = 512, ONCE__UNDO_IMAGES = 32 };

/* What one change replaced: a slot and what its page says, or a whole page that
 * was cut in two. */
struct once__note_of {
    uint32_t page;
    uint32_t twin;        /* 0; of a cut, the page with the other half       */
    uint32_t slot;        /* of the page; of a cut, which image              */
    uint32_t first;       /* of a cut: the page's first entry of the
                           * directory                                       */
    uint32_t segments[2]; /* their places; their counts:                     */
    uint64_t live[2], bytes[2];
    uint64_t marks[2]; /* the words of `marks` with page and twin            */
    uint64_t lease_from, keep_from; /* of the page; and the slot's tag:      */
    uint8_t count, tag, page_live, page_waiting;
    struct once__slot old;
};

/* See undo.c. `from` and `count` are read by others only after a death: they are
 * stored after the notes that they speak of and before what these replace. */
struct once__undo {
    _Atomic uint64_t from; /* the log's tail at the first note; at any other
                            * tail they do not count                         */
    _Atomic uint32_t count;
    uint32_t images;
    /* As these were at the first note, see below. */
    uint64_t marked, forgotten, records, bytes, owned, dispatched, waiting;
    uint64_t average, generation;
    uint32_t pages, depth;
    struct once__note_of notes[ONCE__UNDO_NOTES];
    struct once__page pages_were[ONCE__UNDO_IMAGES];
};

/* ---- The head ----------------------------------------------------------- */

struct once__segment {
    _Atomic uint64_t size;  /* of the file; written before `ready` counts it */
    _Atomic uint64_t bytes; /* of frames that are the last of their name    */
    _Atomic uint64_t live;  /* number of these                              */
};

/* A PID namespace. */
struct once__pids {
    uint64_t device, inode;
};

/*
 * The head of the shared memory. All below `lock` belongs to its holder, but
 * for what is atomic. Sums are atomic for those who read them without the lock,
 * to guess whether there is work for the compactor; only the holder changes them.
 *
 * What is written and read as if it were no atomic is sequentially consistent. Less
 * would do (docs/atomics.md): each is
 *
 *    guess     read without the lock, and looked at again with it: relaxed
 *    value     read without the lock for itself alone: relaxed
 *    release   written after what it speaks of, read with acquire before that
 *    death     read by the one who takes a lock of a dead holder, whose stores it
 *              sees all: only their order in the program counts
 */
struct once__shared {
    uint64_t magic;
    uint32_t version, size; /* of this struct: other programs' differ        */
    uint8_t id[ONCE__JOURNAL_ID];
    uint64_t key[4]; /* of the index's hash                                  */
    struct once__pids pids;     /* of all who may take the locks             */
    struct once__identity home; /* of the folder                             */

    pthread_mutex_t lock;    /* who decides and appends                      */
    pthread_mutex_t sync;    /* who flushes                                  */
    pthread_mutex_t prep;    /* who makes segments                           */
    pthread_mutex_t compact; /* who drops them                               */

    _Atomic uint64_t tail;    /* after the last frame written: value, death  */
    _Atomic uint64_t durable; /* what lies before has been flushed: value    */
    _Atomic uint64_t first, last; /* guess, death                            */
    _Atomic uint64_t ready;       /* segments after `last` up to this are made:
                                 * release, of their sizes                   */
    _Atomic uint32_t poisoned;    /* errno of a flush or write that failed:
                                 * value                                     */
    _Atomic uint32_t broken;      /* all below may be half done: repair it;
                                 * death                                     */
    _Atomic uint32_t building;    /* from the log: that must come to its end;
                                 * death                                     */
    _Atomic uint32_t full;      /* no further segment could be made: guess   */
    _Atomic uint32_t flushing;  /* a flush has begun and not ended: death    */
    _Atomic uint32_t open;      /* recovered: the rest may be used; release  */
    _Atomic uint64_t recovered; /* bytes read so far, for those who wait:
                                 * value                                     */
    _Atomic uint64_t saved;     /* place that DIR/index is of, or 0: guess   */
    _Atomic uint64_t begun;     /* this segment may have got a header: death */
    uint64_t kept_ms;           /* steady time when it was last taken over   */

    uint64_t fence;
    uint64_t marked;    /* no segment before this one is needed              */
    uint64_t forgotten; /* end of the last FORGOTTEN frame                   */
    _Atomic uint64_t records, bytes; /* guess, like all that follows it here */
    _Atomic uint64_t owned; /* records that are claimed or dispatched, ...   */
    uint64_t dispatched; /* ... of these                                     */
    uint64_t waiting;    /* and those that are indeterminate                 */
    _Atomic uint64_t average; /* length of a completed record's frame        */
    uint64_t generation;
    uint32_t pages, room, depth;
    uint32_t directory[ONCE__DIRECTORIES + 1];
    uint64_t marks[ONCE__MARKS]; /* a bit a page: something is live or waits */
    struct once__segment segments[ONCE__JOURNAL_SEGMENTS];
    struct once__undo undo;
};

/* Adds to a sum, as the holder of the lock: no other writes, so it need not be one
 * step, and others guess. */
static inline void once__sum_add(_Atomic uint64_t *sum, uint64_t n)
{
    atomic_store_explicit(sum,
                          atomic_load_explicit(sum, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

static inline struct once__segment *once__segment(struct once__shared *s,
                                                  uint64_t id)
{
    return &s->segments[id % ONCE__JOURNAL_SEGMENTS];
}

/* ---- shared.c ----------------------------------------------------------- */

ONCE_CHECK int once__shared_create(struct once__journal *j,
                                   const uint8_t id[ONCE__JOURNAL_ID],
                                   const uint64_t key[4], once_error *err);
/* Memory of our own, which no other process sees. */
ONCE_CHECK int once__shared_alone(struct once__journal *j,
                                  const uint64_t key[4], once_error *err);
/* ONCE_OK, or ONCE_EOPEN: there is none, it is another program's or user's, or
 * it was never finished. */
ONCE_CHECK int once__shared_attach(struct once__journal *j,
                                   const uint8_t id[ONCE__JOURNAL_ID],
                                   once_error *err);
/* A second view of the memory that `from` has. */
ONCE_CHECK int once__shared_share(const struct once__journal *from,
                                  struct once__journal *out, once_error *err);
/* Alone with memory that others have left: makes new locks in it. 0: that is
 * refused, and it must be made from the log. */
ONCE_CHECK int once__shared_keep(struct once__journal *j);
void once__shared_detach(struct once__journal *j);
void once__shared_remove(const struct once__journal *j,
                         const uint8_t id[ONCE__JOURNAL_ID]);
/* As shm_open() needs it. */
void once__shared_name(const struct once__identity *self,
                       const uint8_t id[ONCE__JOURNAL_ID],
                       char out[ONCE__SHARED_NAME]);
/* Maps all pages that there are: with the lock, before they are looked at.
 * 0: out of memory. */
ONCE_CHECK int once__shared_view(struct once__journal *j);
struct once__page *once__shared_page(struct once__journal *j, uint32_t n);
/* `n` new pages of zeros, one after the other, all in one chunk. 0: no room. */
uint32_t once__shared_grow(struct once__journal *j, uint32_t n);
/* Takes one of the locks above. 0, or an errno: ETIMEDOUT, EOWNERDEAD,
 * ENOTRECOVERABLE. */
int once__shared_lock(pthread_mutex_t *m, uint32_t busy_ms);

/* ---- directory.c: all with the lock held -------------------------------- */

/* The page that this hash leads to. */
uint32_t once__directory_get(struct once__journal *j, uint64_t hash);
/* All entries that end in the last `bits` bits of `first` lead to `page`. */
void once__directory_point(struct once__journal *j, uint32_t first,
                           unsigned bits, uint32_t page);
/* The first 1,024 entries. 0: no room. */
ONCE_CHECK int once__directory_begin(struct once__journal *j);
/* One more bit; the new half is a copy of the old one. 0: no room. */
ONCE_CHECK int once__directory_double(struct once__journal *j);
/* 1 if the page is a part of the directory. */
int once__directory_holds(const struct once__shared *s, uint32_t page);
/* 1 if it may be so deep. */
int once__directory_is_depth(uint32_t depth);

/* ---- undo.c: all with the lock held ------------------------------------- */

/* Before one of the sums is changed: notes them all, unless they are noted. */
void once__undo_begin(struct once__journal *j);
/* Nothing is to be undone: all is as the log says. */
void once__undo_end(struct once__journal *j);
/* 1 if there may be too few notes left for one more name: what there is must be
 * written. */
int once__undo_is_full(const struct once__journal *j);
/* Before a slot of `p`, which is `page`, is changed. Its frame is at `before` and
 * will be at `after`; if one of them is none it is the other one. */
void once__undo_slot(struct once__journal *j, uint32_t page,
                     const struct once__page *p, unsigned slot, uint64_t before,
                     uint64_t after);
/* Before `page`, which the directory has at `first`, is cut in two and `twin`
 * gets the other half. 0: there is no room to note it. */
ONCE_CHECK int once__undo_cut(struct once__journal *j, uint32_t page,
                              uint32_t first, uint32_t twin);
/* Puts back what the log does not say. 0: it cannot be told. */
ONCE_CHECK int once__undo_apply(struct once__journal *j);

/* ---- index.c: all with the lock held ------------------------------------ */

ONCE_CHECK int once__index_clear(struct once__journal *j);
/* Its last bits say in which page a name is. */
uint64_t once__index_hash(const struct once__shared *s,
                          const uint8_t name[ONCE_NAME_SIZE]);
struct once__slot *once__index_find(struct once__journal *j,
                                    const uint8_t name[ONCE_NAME_SIZE]);
/* The name will soon be asked for. */
void once__index_expect(struct once__journal *j,
                        const uint8_t name[ONCE_NAME_SIZE]);
/* Makes `slot` the one of its name. 0: there is no room; never for a name that
 * is there. */
ONCE_CHECK int once__index_put(struct once__journal *j,
                               const struct once__slot *slot);
/* The same for all `n` (not 0) slots that were a page of that depth, under the
 * same key; quicker than one by one where it is a page of this index, too. */
ONCE_CHECK int once__index_put_page(struct once__journal *j, unsigned depth,
                                    const struct once__slot *slots, size_t n);
void once__index_remove(struct once__journal *j,
                        const uint8_t name[ONCE_NAME_SIZE]);
/* Copies up to `max` slots that are due for the scan `what` at `now_ms`,
 * looking at at most `pages` pages from `*page` on, which moves on. */
size_t once__index_due(struct once__journal *j, int what, uint64_t now_ms,
                       uint32_t *page, uint32_t pages, struct once__slot *out,
                       size_t max);
/* 1 if the scan `what` shows all records that are in this state. */
int once__index_is_in(const struct once__slot *slot, int what);
/* How many slots of a page are in the scan `what`, and how many of all. */
unsigned once__index_in_page(const struct once__page *p, int what);
uint64_t once__index_in_all(const struct once__shared *s, int what);
/* The first page from `n` on that may have slots of the scan `what`. */
uint32_t once__index_next(const struct once__shared *s, int what, uint32_t n);
/* 1 if page `n` is a bucket and no part of the directory. */
int once__index_bucket(const struct once__shared *s, uint32_t n);

#endif /* ONCE_CALLS_STORE_JOURNAL_SHARED_H */
