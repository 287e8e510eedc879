/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h - the parts of the journal store, shared among its files.
 *
 *    DIR/lock              who has it open, and how it was left (door.c)
 *    DIR/00000001.log ...  segments: frames, one behind the other (segment.c)
 *    DIR/clock             what was seen of the time (time.c)
 *    /dev/shm/once-...     the index and the locks (shared.c, index.c)
 *
 * A *position* is where a frame begins: segment number and offset in one
 * number, so that positions grow as the log does.
 *
 *     first                       last            ready
 *    +-------+-------+-------+-------+---------+ +-------+
 *    | sealed, durable whole |  ... durable tail  | zeros |  or old bytes
 *    +-------+-------+-------+-------+---------+ +-------+
 *    dropped from this end           appended here
 *
 * All segments but the last are durable whole; of the last one what lies
 * before `durable` is. The log is the truth and shared memory only a cache of
 * it, but for one thing: how far an unfinished flush may be trusted.
 *
 * Locks, in the order in which they may be taken: tidy, lock, then sync or prep.
 * All are robust and shared by processes.
 */
#ifndef ONCE_STORE_JOURNAL_H
#define ONCE_STORE_JOURNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <once/store.h>

#include "core/bytes.h"

enum {
    ONCE__JOURNAL_VERSION = 2,
    ONCE__JOURNAL_HEADER = 4096, /* bytes before a segment's first frame  */
    ONCE__FRAME_HEAD = 88,       /* bytes of a frame before its record    */
    ONCE__FRAME_ALIGN = 8,
    ONCE__JOURNAL_SWEEP = 4096, /* bytes that only the keeper may use   */
    ONCE__JOURNAL_ID = 16,      /* random bytes of a shared memory's name */
    ONCE__SHARED_NAME = 128,
    ONCE__JOURNAL_SEGMENTS = 4096 /* that may exist at once                */
};

#define ONCE__FRAME_MAX                                                        \
    (ONCE__FRAME_HEAD + ONCE_RESULT_MAX + ONCE_NOTE_MAX + (size_t)512)

/* ---- frame.c: bytes of the log ------------------------------------------ */

enum { ONCE__JOURNAL_SHIFT = 36 };

static inline uint64_t once__journal_at(uint64_t id, uint64_t offset)
{
    return id << ONCE__JOURNAL_SHIFT | offset;
}

static inline uint64_t once__journal_id(uint64_t at)
{
    return at >> ONCE__JOURNAL_SHIFT;
}

static inline uint64_t once__journal_offset(uint64_t at)
{
    return at & ((UINT64_C(1) << ONCE__JOURNAL_SHIFT) - 1);
}

enum once__frame_kind {
    ONCE__FRAME_RECORD = 1, /* the record of `name` is this                 */
    ONCE__FRAME_FORGOTTEN,  /* there is no record of `name`                 */
    ONCE__FRAME_MARK        /* behind `before` the log goes on with this
                             * generation, this fence, and no segment before
                             * number `due`                                 */
};

/*
 * The head of a frame. `sum` is the checksum at the end of the record that
 * follows; `due` is when the record's lease or retention ends.
 *
 * A generation is the log between two recoveries. Its number is random, for it
 * must never be used twice: frames of one that never reached the disk, but for
 * some, may stand behind the end of every later one.
 */
struct once__frame {
    uint32_t length; /* all of it, a multiple of ONCE__FRAME_ALIGN           */
    uint32_t sum;
    uint8_t kind, state, pad;
    uint64_t generation;
    uint64_t durable; /* as it was known when the frame was written          */
    uint64_t fence, due;
    uint64_t
        before; /* MARK: the generation that it follows; stands in `name` */
    uint8_t name[ONCE_NAME_SIZE];
};

struct once__segment_head {
    uint64_t id;
    uint64_t before; /* position where the previous segment ends, or 0       */
    uint64_t first;  /* no segment before this one is needed                 */
    uint64_t fence;  /* the largest so far                                   */
    uint64_t generation;
};

void once__frame_put(const struct once__frame *f, uint64_t at,
                     uint8_t out[ONCE__FRAME_HEAD]);
/* 1 if `in` is the head of a frame at position `at`, else 0. */
int once__frame_get(const uint8_t in[ONCE__FRAME_HEAD], uint64_t at,
                    struct once__frame *out);
/* 1 if four bytes could begin a frame: for searching. */
int once__frame_hint(const uint8_t in[4]);

void once__segment_head_put(const struct once__segment_head *h,
                            uint8_t out[ONCE__JOURNAL_HEADER]);
/* ONCE_OK; ONCE_EVERSION; ONCE_ECORRUPT: not the header of segment `id`. */
int once__segment_head_get(const uint8_t in[ONCE__JOURNAL_HEADER], uint64_t id,
                           struct once__segment_head *out);

/* When a record's lease or retention ends; UINT64_MAX: never by itself. */
uint64_t once__journal_due(const once_record *r);

/* ---- index.c, shared.c: what processes share ---------------------------- */

/* Where the last frame of a name is. One cache line. */
struct once__slot {
    uint8_t name[ONCE_NAME_SIZE];
    uint64_t at;
    uint64_t due;
    uint64_t fence;
    uint32_t length;
    uint8_t state;
    uint8_t spare[3];
};

enum { ONCE__PAGE_SLOTS = 62, ONCE__PAGE_SIZE = 4096 };

/* A bucket of the index. `lease_from` and `keep_from`: nothing in here is due
 * earlier. */
struct once__page {
    uint8_t count, depth;
    uint8_t tags[ONCE__PAGE_SLOTS];
    uint64_t lease_from, keep_from;
    uint64_t spare[6];
    struct once__slot slots[ONCE__PAGE_SLOTS];
};

struct once__segment {
    uint64_t size;  /* of the file                                          */
    uint64_t bytes; /* of frames that are the last of their name            */
    uint64_t live;  /* number of these                                      */
};

enum { ONCE__DIRECTORIES = 14, ONCE__CHUNK_PAGES = 4096, ONCE__CHUNKS = 2048 };

/* Which file it is, whatever it is called and holds: a copy is another one. */
struct once__identity {
    uint64_t device, inode;
    uint64_t born; /* for inodes are used again; 0: not known */
};

/* A PID namespace. */
struct once__pids {
    uint64_t device, inode;
};

/*
 * The head of the shared memory. All below `lock` belongs to its holder, but
 * for what is atomic.
 */
struct once__shared {
    uint64_t magic;
    uint32_t version, size; /* of this struct: other programs' differ        */
    uint8_t id[ONCE__JOURNAL_ID];
    uint64_t key[4]; /* of the index's hash                                  */
    struct once__pids pids; /* of all who may take the locks                 */
    struct once__identity home; /* of the folder                              */

    pthread_mutex_t lock; /* who decides and appends                         */
    pthread_mutex_t sync; /* who flushes                                     */
    pthread_mutex_t prep; /* who makes segments                              */
    pthread_mutex_t tidy; /* who drops them                                  */

    _Atomic uint64_t tail;    /* behind the last frame written               */
    _Atomic uint64_t durable; /* what lies before has been flushed           */
    _Atomic uint64_t first, last;
    _Atomic uint64_t ready;     /* segments behind `last` up to this are made */
    _Atomic uint32_t poisoned;  /* errno of a flush or write that failed      */
    _Atomic uint32_t broken;    /* all below may be half done: repair it      */
    _Atomic uint32_t full;      /* no further segment could be made           */
    _Atomic uint32_t flushing;  /* a flush has begun and not ended            */
    _Atomic uint32_t open;      /* recovered: the rest may be used            */
    _Atomic uint64_t recovered; /* bytes read so far, for those who wait     */

    uint64_t fence;
    uint64_t marked; /* no segment before this one is needed                 */
    uint64_t forgotten; /* end of the last FORGOTTEN frame                   */
    uint64_t records, owned, bytes;
    uint64_t usual;  /* length of a completed record's frame, on average      */
    uint64_t tidied; /* offset up to which `first` was rewritten             */
    uint64_t generation;
    uint32_t pages, room, depth;
    uint32_t directory[ONCE__DIRECTORIES + 1];
    struct once__segment segments[ONCE__JOURNAL_SEGMENTS];
};

enum { ONCE__FILES = 64 };

/* One user's view of a journal: an open handle, or its keeper. */
struct once__journal {
    char *path; /* of the folder, absolute                                  */
    int folder; /* the same, opened                                         */
    int door;   /* DIR/lock; the keeper has none                            */
    struct once__identity self; /* of DIR/lock                              */
    struct once__identity home; /* of the folder                            */
    struct once__pids pids;     /* in which we are                          */
    void (*event)(void *user, const char *text); /* or NULL                 */
    void *event_user;
    int memory;
    uint32_t busy_ms;
    uint64_t segment_max;
    struct once__shared *shared;
    uint8_t *chunks[ONCE__CHUNKS];
    uint32_t mapped; /* of these */
    struct {
        uint64_t id;
        int fd;
    } files[ONCE__FILES];
    uint64_t oldest; /* files of segments before this one were closed       */
    int must_exist;  /* do not make a new one */

    /* With the lock held: frames that were not written yet. */
    uint8_t *buffer;
    size_t used, space;
    uint64_t start; /* position of buffer[0] */

    struct once__recent *recent; /* or NULL; of this generation:             */
    uint64_t recent_generation;
};

/* shared.c */
ONCE_CHECK int once__shared_create(struct once__journal *j,
                                   const uint8_t id[ONCE__JOURNAL_ID],
                                   once_error *err);
/* ONCE_OK, or ONCE_EOPEN: there is none, it is another program's, or it was
 * never finished. */
ONCE_CHECK int once__shared_attach(struct once__journal *j,
                                   const uint8_t id[ONCE__JOURNAL_ID],
                                   once_error *err);
void once__shared_detach(struct once__journal *j);
void once__shared_remove(const struct once__journal *j,
                         const uint8_t id[ONCE__JOURNAL_ID]);
/* As shm_open() wants it. */
void once__shared_name(const struct once__identity *self,
                       const uint8_t id[ONCE__JOURNAL_ID],
                       char out[ONCE__SHARED_NAME]);
/* Maps all pages that there are: with the lock, before they are looked at.
 * 0: out of memory. */
ONCE_CHECK int once__shared_view(struct once__journal *j);
struct once__page *once__shared_page(struct once__journal *j, uint32_t n);
/* `n` new pages of zeros behind each other, all in one chunk. 0: no room. */
uint32_t once__shared_grow(struct once__journal *j, uint32_t n);
/* 0, or an errno: ETIMEDOUT, EOWNERDEAD, ENOTRECOVERABLE. */
int once__shared_lock(pthread_mutex_t *m, uint32_t busy_ms);

/* index.c: all with the lock held. */
ONCE_CHECK int once__index_clear(struct once__journal *j);
struct once__slot *once__index_find(struct once__journal *j,
                                    const uint8_t name[ONCE_NAME_SIZE]);
/* The name will soon be asked for. */
void once__index_expect(struct once__journal *j,
                        const uint8_t name[ONCE_NAME_SIZE]);
/* Makes `slot` the one of its name. 0: there is no room; never for a name that
 * is there. */
ONCE_CHECK int once__index_put(struct once__journal *j,
                               const struct once__slot *slot);
void once__index_remove(struct once__journal *j,
                        const uint8_t name[ONCE_NAME_SIZE]);
/* Copies up to `max` slots that are due for the scan `what` at `now_ms`,
 * looking at at most `pages` pages from `*page` on, which moves on. */
size_t once__index_due(struct once__journal *j, int what, uint64_t now_ms,
                       uint32_t *page, uint32_t pages, struct once__slot *out,
                       size_t max);
/* 1 if page `n` is a bucket and no part of the directory. */
int once__index_bucket(const struct once__shared *s, uint32_t n);

/* ---- names.c: in order, for somebody who turns pages --------------------- */

struct once__names {
    uint8_t (*names)[ONCE_NAME_SIZE]; /* on the heap, or NULL               */
    size_t count, at;
    int more; /* there may be some behind the last                          */
};

/* The first name behind `after`, or of all if that is NULL. 1, 0 at the end, or
 * an error. Takes the lock. */
ONCE_CHECK int once__names_next(struct once__journal *j, struct once__names *l,
                                const uint8_t *after,
                                uint8_t out[ONCE_NAME_SIZE], once_error *err);

static inline struct once__segment *once__segment(struct once__shared *s,
                                                  uint64_t id)
{
    return &s->segments[id % ONCE__JOURNAL_SEGMENTS];
}

/* ---- segment.c: files ---------------------------------------------------- */

enum { ONCE__SEGMENT_NAME = 32 };

void once__segment_name(uint64_t id, char out[ONCE__SEGMENT_NAME]);
/* The number in a segment's name, or 0. */
uint64_t once__segment_number(const char *name);
/* The numbers of the first and the last segment there are, or 0. 0, or -1 and
 * errno. */
int once__segment_range(int folder, uint64_t *lowest, uint64_t *highest);
/* A descriptor owned by `j`, or -1 and errno. */
int once__segment_file(struct once__journal *j, uint64_t id);
void once__segment_close_all(struct once__journal *j);
/* Creates the file `name` in the folder, mode and owner as the folder's. */
int once__journal_create(int folder, const char *name);
/* Mode and owner as those of the folder. 0, or -1. */
int once__journal_dress(int folder, int fd);
/* Reads all of `size` bytes. 1, 0 at the end of the file, or -1 and errno. */
int once__journal_read(int fd, void *out, size_t size, uint64_t offset);
int once__journal_write(int fd, const void *bytes, size_t size,
                        uint64_t offset);
/* 1 if another segment should be made: none is ready, there is hardly more room
 * than what is kept back for claims, or there was none on the disk when one was
 * wanted last. */
int once__segment_short(const struct once__journal *j);
/* Makes the next segment, unless there is enough of them and room for `need`
 * bytes, or `*stop` becomes 1. 0, or an errno. */
int once__segment_prepare(struct once__journal *j, uint64_t need,
                          const atomic_int *stop);
/* With the lock: makes the last segment longer, by `size` bytes at least. 0, or
 * an errno. */
int once__segment_extend(struct once__journal *j, uint64_t size);
/* The file of segment `id`, which is no longer needed, becomes the next one
 * that is ready, or is removed. */
int once__segment_retire(struct once__journal *j, uint64_t id);

/* ---- log.c: appending, reading, flushing -------------------------------- */

/* Takes the lock, repairing what a dead holder left. ONCE_OK or ONCE_ESTORE. */
ONCE_CHECK int once__journal_lock(struct once__journal *j, once_error *err);
void once__journal_unlock(struct once__journal *j);
enum { ONCE__LATER = 1 };

/* Makes sure that a frame of `length` bytes fits and `reserve` bytes are left.
 * ONCE_OK, ONCE_EFULL, ONCE_ESTORE; or ONCE__LATER: not before another segment
 * has been made, which takes too long to be done with the lock. */
ONCE_CHECK int once__journal_room(struct once__journal *j, size_t length,
                                  uint64_t reserve, once_error *err);
/* What must be left for those who hold claims. */
uint64_t once__journal_reserve(const struct once__journal *j);
/* Appends a frame, for which there is room. `record` may be NULL. Returns its
 * position, or 0: out of memory. */
uint64_t once__journal_append(struct once__journal *j, struct once__frame *f,
                              const once_record *record);
/* The same with the record's bytes as they stand in the log. */
uint64_t once__journal_append_raw(struct once__journal *j,
                                  struct once__frame *f, const void *record);
/* Writes what was appended. */
ONCE_CHECK int once__journal_flush(struct once__journal *j, once_error *err);
/* Without the lock: returns when all before `at` is durable. */
ONCE_CHECK int once__journal_sync(struct once__journal *j, uint64_t at,
                                  once_error *err);
/* Reads the frame of `slot` into `out`, of slot->length bytes, and takes it
 * apart; the record borrows from `out`. ONCE_OK, ONCE_ECORRUPT,
 * ONCE_EVERSION, ONCE_ESTORE. */
ONCE_CHECK int once__journal_load(struct once__journal *j,
                                  const struct once__slot *slot, uint8_t *out,
                                  once_record *r);
size_t once__frame_length(const once_record *r);
/* The record in the whole frame at `bytes`, borrowed from there. */
ONCE_CHECK int once__frame_record(const struct once__frame *f,
                                  const uint8_t *bytes, once_record *out);
/* Writes once more what stands between two offsets. 0, or -1 and errno. */
int once__journal_rewrite(int fd, uint64_t from, uint64_t to);
/* After this nothing is answered until all have closed. */
int once__journal_poison(struct once__journal *j, int number, const char *what,
                         once_error *err);
/* With the lock: a write failed. Where only this process is short of something
 * the next one repairs it, otherwise the same as above. */
int once__journal_unwritten(struct once__journal *j, int number,
                            const char *what, once_error *err);
/* Appends a MARK, which follows frames of the generation `before`. */
ONCE_CHECK int once__journal_mark(struct once__journal *j, uint64_t before,
                                  once_error *err);

/* ---- recent.c: what this handle wrote last ------------------------------- */

struct once__recent;

/* Remembers the frame at position `at`, for a while. *r may be NULL. */
void once__recent_put(struct once__recent **r, uint64_t at,
                      const uint8_t *bytes, size_t length);
/* `length` bytes that were put for position `at`, or NULL; to be checked.
 * Valid until the next put. */
const uint8_t *once__recent_find(const struct once__recent *r, uint64_t at,
                                 size_t length);

/* ---- time.c: the file DIR/clock ------------------------------------------ */

#define ONCE__JOURNAL_CLOCK "clock"

/* As once_store_ops.time, but for now_ms. */
ONCE_CHECK int once__journal_time(const struct once__journal *j,
                                  const once_store_time *put,
                                  once_store_time *out, once_error *err);

/* ---- walk.c: frames in the order in which they were written -------------- */

struct once__walk {
    int fd;
    uint64_t id, offset; /* of the next frame                               */
    uint64_t end;        /* nothing is read behind this offset              */
    uint64_t generation;
    uint8_t *buffer;
    size_t space, got;
    uint64_t from;           /* offset of buffer[0] */
    _Atomic uint64_t *bytes; /* or NULL: adds up what was read              */
};

ONCE_CHECK int once__walk_begin(struct once__walk *w, int fd, uint64_t id,
                                uint64_t offset, uint64_t end,
                                uint64_t generation);
void once__walk_end(struct once__walk *w);
/* 1 and the next frame's head; 0: none begins here; -1 and errno. */
int once__walk_next(struct once__walk *w, struct once__frame *out);
/* The record of the frame that was returned last: ONCE_OK, ONCE_ECORRUPT,
 * ONCE_EVERSION, ONCE_ESTORE; borrowed until the next call. */
int once__walk_record(struct once__walk *w, const struct once__frame *f,
                      once_record *out);
/* The bytes of that frame, or NULL and errno. */
const uint8_t *once__walk_bytes(struct once__walk *w, uint64_t offset,
                                size_t size);
/* Looks for frames behind the place where the chain ends: the position of the
 * first one that knew something behind it to be durable, or 0. */
uint64_t once__walk_stray(struct once__walk *w);
/* 1 if the segment at `fd` goes on behind the end that the next one tells: there
 * may be what nobody was told of, but no log that followed that one. */
int once__walk_goes_on(int fd, const struct once__segment_head *next);

/* ---- recover.c: from the log to shared memory ---------------------------- */

/* How a journal was left. */
struct once__left {
    uint32_t state; /* enum once__left_state */
    uint64_t at;    /* CLEAN: the end of the log. CUT: where to cut it      */
    uint64_t known; /* this was durable, as far as is known                 */
};

/* Fills shared memory from the files. The door is locked for us alone. */
ONCE_CHECK int once__recover(struct once__journal *j,
                             const struct once__left *left, once_error *err);
/* The same, with the lock of a holder who died. */
ONCE_CHECK int once__recover_locked(struct once__journal *j, once_error *err);

/* ---- door.c: who is in --------------------------------------------------- */

enum once__left_state {
    ONCE__LEFT_NEW = 0,
    ONCE__LEFT_OPEN, /* somebody is in, or died */
    ONCE__LEFT_CLEAN,
    ONCE__LEFT_CUT
};

struct once__note {
    uint8_t id[ONCE__JOURNAL_ID]; /* of the shared memory */
    uint32_t state;
    uint64_t at;
};

/* 0, or -1 and errno. */
int once__identify(int fd, struct once__identity *out);
/* Reads the file at `fd`, which may be empty. `path` is for the error's text.
 * ONCE_EOPEN, ONCE_EVERSION, ONCE_ECORRUPT. */
ONCE_CHECK int once__door_read(int fd, const char *path, struct once__note *out,
                               once_error *err);
/* Opens the folder, creating it, and the shared memory, recovering it. */
ONCE_CHECK int once__door_enter(struct once__journal *j, once_error *err);
void once__door_leave(struct once__journal *j);
/* A second view of the same, for a thread of its own. */
ONCE_CHECK int once__journal_share(const struct once__journal *from,
                                   struct once__journal *out, once_error *err);
void once__journal_forget(struct once__journal *j);

/* ---- keeper.c: a thread that makes and drops segments -------------------- */

struct once__keeper;

ONCE_CHECK int once__keeper_open(const struct once__journal *j, once_error *err,
                                 struct once__keeper **out);
void once__keeper_close(struct once__keeper *k);
/* Wakes it if there is something to do. */
void once__keeper_nudge(struct once__keeper *k);
/* Wakes it, and returns when it has made a segment or found that there are
 * enough: 0, or an errno. ETIMEDOUT: not before `until`, of CLOCK_MONOTONIC. */
int once__keeper_await(struct once__keeper *k, const struct timespec *until);
/* ONCE_OK, or what went wrong since the last call. */
ONCE_CHECK int once__keeper_trouble(struct once__keeper *k, once_error *err);

/* ---- check.c: for people ------------------------------------------------- */

int once__journal_verify(const char *path, once_line *line, void *user,
                         once_error *err);
int once__journal_dump(const char *path, once_line *line, void *user,
                       once_error *err);

#endif /* ONCE_STORE_JOURNAL_H */
