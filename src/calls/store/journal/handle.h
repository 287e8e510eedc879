/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.h - one process's view of a journal, and what the files of this folder
 * do with it.
 *
 * Each file uses only files that stand below it; there is no circle:
 *
 *    check   session       list   compactor     reading for people, opening,
 *      |  \______ |           |     |           listing, dropping segments
 *      |         |            |  checkpoint     saving the index
 *      |         |           lock --'
 *      |         recover ------'                from the log to the memory
 *      |         |    |
 *      |------ saved log                        the index beside the log;
 *      |         |    |                         appending, reading, flushing
 *      |         |    |
 *      |  handle, recent, poison, index         one user's view; the index
 *      |         |    |             |
 *      |         |    |           undo          what its changes replaced
 *      |         |    |             |
 *      |      segment |         directory       files of the log; its pages
 *      |         |    |             |
 *      |------- walk -'     shared -'  time     frames in order; memory
 *     head       |           |         |        which store it is
 *      |       frame        file ------'        bytes
 *      `---------------------'
 */
#ifndef ONCE_CALLS_STORE_JOURNAL_HANDLE_H
#define ONCE_CALLS_STORE_JOURNAL_HANDLE_H

#include <time.h>

#include "calls/store/journal/shared.h"

enum { ONCE__FILES = 64 };

/* One user's view of a journal: an open handle, or its compactor. */
struct once__journal {
    char *path;  /* of the folder, absolute                                 */
    int folder;  /* the same, opened                                        */
    int lock_fd; /* DIR/lock; the compactor has none                        */
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
    int create;      /* make a new one where there is none */
    int look;        /* one that cannot be written to will do, ...          */
    int read_only;   /* ... and it is one                                   */

    /* With the lock held: frames that were not written yet. */
    uint8_t *buffer;
    size_t used, space;
    uint64_t start; /* position of buffer[0] */

    struct once__recent *recent; /* or NULL; of this generation:             */
    uint64_t recent_generation;
};

/* ---- handle.c: a handle's life ------------------------------------------ */

/* All that it has is nothing yet. */
void once__handle_init(struct once__journal *j);
/* A second view of the same, for a thread of its own. */
ONCE_CHECK int once__handle_share(const struct once__journal *from,
                                  struct once__journal *out, once_error *err);
/* Gives back all that it has. It may be one that was not opened whole. */
void once__handle_close(struct once__journal *j);

/* ---- segment.c: files of the log, and the room in them ------------------ */

enum {
    ONCE__SEGMENT_NAME = 32,
    ONCE__JOURNAL_SPARE = 4096 /* bytes that only the compactor may use     */
};

void once__segment_name(uint64_t id, char out[ONCE__SEGMENT_NAME]);
/* The number in a segment's name, or 0. */
uint64_t once__segment_number(const char *name);
/* The numbers of the first and the last segment there are, or 0. 0, or -1 and
 * errno. */
int once__segment_range(int folder, uint64_t *lowest, uint64_t *highest);
/* A descriptor owned by `j`, or -1 and errno. */
int once__segment_file(struct once__journal *j, uint64_t id);
void once__segment_close_all(struct once__journal *j);
/* What must be left for those who hold claims. */
uint64_t once__segment_reserve(const struct once__journal *j);
/* Bytes for frames in the segments that are ready after the last. */
uint64_t once__segment_room_ahead(struct once__shared *s);
/* 1 if another segment should be made: none is ready, there is hardly more room
 * than what is kept back for claims, or there was none on the disk when one was
 * wanted last. */
int once__segment_short(const struct once__journal *j);
/* 1 if hardly more segments may be made, whatever room the disk has. */
int once__segment_scarce(const struct once__shared *s);
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

/* ---- recent.c: what this handle wrote last ------------------------------ */

struct once__recent;

/* Remembers the frame at position `at`, for a while. *r may be NULL. */
void once__recent_put(struct once__recent **r, uint64_t at,
                      const uint8_t *bytes, size_t length);
/* `length` bytes that were put for position `at`, or NULL; to be checked.
 * Valid until the next put. */
const uint8_t *once__recent_find(const struct once__recent *r, uint64_t at,
                                 size_t length);

/* ---- poison.c: writes and flushes that failed --------------------------- */

/* After this nothing is answered until all have closed. */
int once__journal_poison(struct once__journal *j, int number, const char *what,
                         once_error *err);
/* 1 if that has happened, and `err` says so. */
int once__journal_is_poisoned(struct once__journal *j, once_error *err);
/* With the lock: a write failed. Where only this process is short of something
 * the next one repairs it, otherwise the same as once__journal_poison(). */
int once__journal_unwritten(struct once__journal *j, int number,
                            const char *what, once_error *err);
/* 1 if another process may have what this one lacks: descriptors, memory. */
int once__journal_is_local(int number);
/* A lock was not to be had; ONCE_ESTORE. */
int once__journal_no_lock(const struct once__journal *j, int rc,
                          once_error *err);

/* ---- log.c: appending, reading, flushing -------------------------------- */

enum { ONCE__LATER = 1 };

/* Makes sure that a frame of `length` bytes fits and `reserve` bytes are left.
 * ONCE_OK, ONCE_EFULL, ONCE_ESTORE; or ONCE__LATER: not before another segment
 * has been made, which takes too long to be done with the lock. */
ONCE_CHECK int once__journal_room(struct once__journal *j, size_t length,
                                  uint64_t reserve, once_error *err);
/* Appends a frame, for which there is room. `record` may be NULL. Returns its
 * position, or 0: out of memory. */
uint64_t once__journal_append(struct once__journal *j, struct once__frame *f,
                              const once_record *record);
/* The same with the record's bytes as they stand in the log. */
uint64_t once__journal_append_raw(struct once__journal *j,
                                  struct once__frame *f, const void *record);
/* Appends a MARK, which follows frames of the generation `before`. */
ONCE_CHECK int once__journal_mark(struct once__journal *j, uint64_t before,
                                  once_error *err);
/* Writes what was appended. */
ONCE_CHECK int once__journal_flush(struct once__journal *j, once_error *err);
/* Without the lock: returns when all before `at` is durable. */
ONCE_CHECK int once__journal_sync(struct once__journal *j, uint64_t at,
                                  once_error *err);
/* 1 if once__journal_load() need not ask the file. */
int once__journal_at_hand(const struct once__journal *j,
                          const struct once__slot *slot);
/* Reads the frame of `slot` into `out`, of slot->length bytes, and takes it
 * apart; the record borrows from `out`. ONCE_OK, ONCE_ECORRUPT,
 * ONCE_EVERSION, ONCE_ESTORE. */
ONCE_CHECK int once__journal_load(struct once__journal *j,
                                  const struct once__slot *slot, uint8_t *out,
                                  once_record *r);

/* ---- saved.c: the index beside the log ---------------------------------- */

/* What was loaded: the index at `from`, or at 0 if there is none. */
struct once__saved {
    uint64_t from;
    uint64_t generation; /* of the log there */
};

/* Loads it into the index, which is empty, if it is of the log that ends at
 * `end` and of which no segment before `needed` is needed. NULL: done, or there
 * is none; or why not, and the index is half full. */
const char *once__saved_load(struct once__journal *j, uint64_t needed,
                             uint64_t end, struct once__saved *out);
void once__saved_remove(const struct once__journal *j);
/* NULL: the file in `folder` is whole, or there is none; or what it is. */
const char *once__saved_check(int folder);

/* ---- recover.c: from the log to shared memory --------------------------- */

/* How a journal was left. */
struct once__left {
    uint32_t state; /* enum once__left_state */
    uint64_t at;    /* CLEAN: the end of the log. CUT: where to cut it      */
    uint64_t known; /* this was durable, as far as is known                 */
};

/* Fills shared memory from the files. DIR/lock is locked for us alone. */
ONCE_CHECK int once__recover(struct once__journal *j,
                             const struct once__left *left, once_error *err);
/* The same, with the memory of those who were all killed: the log goes on with
 * that. ONCE_ECORRUPT: the two do not belong together. */
ONCE_CHECK int once__recover_kept(struct once__journal *j, once_error *err);
/* With the lock of a holder who died, and memory that is as the log says up to
 * its tail: the log goes on there. */
ONCE_CHECK int once__recover_undone(struct once__journal *j, once_error *err);
/* The same, with memory that is worth nothing: fills it from the files. */
ONCE_CHECK int once__recover_locked(struct once__journal *j, once_error *err);

/* ---- lock.c: who decides and appends ------------------------------------ */

/* Takes the lock, repairing what a dead holder left. ONCE_OK or ONCE_ESTORE. */
ONCE_CHECK int once__journal_lock(struct once__journal *j, once_error *err);
void once__journal_unlock(struct once__journal *j);

/* ---- list.c: records in the order of a scan ----------------------------- */

struct once__list {
    once_position *places; /* on the heap, or NULL                          */
    size_t room, count, next;
    int what;         /* of enum once_scan_what                             */
    int more;         /* there may be some after the last                   */
    uint64_t made_ms; /* of CLOCK_MONOTONIC                                 */
};

/* The first place after `after`, or of all if that is NULL, in the scan ALL,
 * WAITING or LIVE, where up to `max` (not 0) will be asked for, one by one. 1, 0
 * at the end, or an error. Takes the lock. */
ONCE_CHECK int once__list_next(struct once__journal *j, struct once__list *l,
                               int what, const once_position *after,
                               uint32_t max, once_position *out,
                               once_error *err);

/* ---- session.c: opening and closing a journal --------------------------- */

/* Opens the folder, creating it, and the shared memory, recovering it. */
ONCE_CHECK int once__session_open(struct once__journal *j, once_error *err);
void once__session_close(struct once__journal *j);
/* Reads the file DIR/lock at `fd`, which may be empty. `path` is for the
 * error's text. ONCE_EOPEN, ONCE_EVERSION, ONCE_ECORRUPT. */
ONCE_CHECK int once__session_read(int fd, const char *path,
                                  struct once__note *out, once_error *err);

/* ---- head.c: the file DIR/head ------------------------------------------ */

/* ONCE_OK; ONCE_ECORRUPT: it is missing or damaged; ONCE_EOPEN: it cannot be
 * read. `path` is for the error's text. */
ONCE_CHECK int once__journal_head_load(int folder, const char *path,
                                       once_store_head *out, once_error *err);
/* ONCE_OK: it is durable. ONCE_EOPEN: it may be the old one or the new one. One
 * at a time may do that: with the lock, or alone in the folder. */
ONCE_CHECK int once__journal_head_save(const struct once__journal *j,
                                       const once_store_head *h,
                                       once_error *err);
/* The first one, with a new id, unless there is one. */
ONCE_CHECK int once__journal_head_make(const struct once__journal *j,
                                       once_error *err);

/* ---- time.c: the file DIR/clock ----------------------------------------- */

/* As once_store_ops.time, but for now_ms. */
ONCE_CHECK int once__journal_time(const struct once__journal *j,
                                  const once_store_time *put,
                                  once_store_time *out, once_error *err);

/* ---- checkpoint.c: saving the index beside the log ---------------------- */

struct once__checkpoint; /* in the making */

/* 1 if so much was appended since the last one that another is worth it. */
int once__checkpoint_is_due(struct once__shared *s);
/* One at a time: with the lock `compact`. */
ONCE_CHECK int once__checkpoint_begin(struct once__journal *j, once_error *err,
                                      struct once__checkpoint **out);
/* Takes the lock for a moment. 1: there is more to do; ONCE_OK: it is on the
 * disk and counts; or an error: what was there before counts. */
ONCE_CHECK int once__checkpoint_step(struct once__checkpoint *k,
                                     once_error *err);
/* Removes what was not finished. */
void once__checkpoint_end(struct once__checkpoint *k);

/* ---- compactor.c: a thread that makes and drops segments ---------------- */

struct once__compactor;

ONCE_CHECK int once__compactor_open(const struct once__journal *j,
                                    once_error *err,
                                    struct once__compactor **out);
void once__compactor_close(struct once__compactor *c);
/* Wakes it if there is something to do; accepts NULL. */
void once__compactor_wake(struct once__compactor *c);
/* Wakes it, and returns when it has made a segment or found that there are
 * enough: 0, or an errno. ETIMEDOUT: not before `until`, of CLOCK_MONOTONIC. */
int once__compactor_await(struct once__compactor *c,
                          const struct timespec *until);
/* ONCE_OK, or what went wrong since the last call. */
ONCE_CHECK int once__compactor_trouble(struct once__compactor *c,
                                       once_error *err);

/* ---- check.c: verify and dump, from the files alone --------------------- */

int once__journal_verify(const char *path, once_line *line, void *user,
                         once_error *err);
int once__journal_dump(const char *path, once_line *line, void *user,
                       once_error *err);

#endif /* ONCE_CALLS_STORE_JOURNAL_HANDLE_H */
