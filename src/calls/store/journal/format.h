/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.h - what a journal has on the disk.
 *
 *    DIR/lock              who has it open, and how it was left (session.c)
 *    DIR/00000001.log ...  segments: a header, then frames (segment.c, frame.c)
 *    DIR/head              id, incarnation, gap (head.c)
 *    DIR/clock             what was observed of the time (time.c)
 *    DIR/index             the index as it was at one place of the log
 *                          (checkpoint.c), or nothing
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
 * it, with one exception: how far an unfinished flush may be trusted.
 */
#ifndef ONCE_CALLS_STORE_JOURNAL_FORMAT_H
#define ONCE_CALLS_STORE_JOURNAL_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include <once/store.h>

#include "base/bytes.h"

enum {
    ONCE__JOURNAL_VERSION = 4,
    ONCE__JOURNAL_HEADER = 4096, /* bytes before a segment's first frame  */
    ONCE__FRAME_HEAD = 88,       /* bytes of a frame before its record    */
    ONCE__FRAME_ALIGN = 8,
    ONCE__JOURNAL_ID = 16,        /* random bytes of a shared memory's name */
    ONCE__JOURNAL_SEGMENTS = 4096 /* that may exist at once; one fewer is
                                   * made, so all that was can be opened    */
};

#define ONCE__FRAME_MAX                                                        \
    (ONCE__FRAME_HEAD + ONCE_RESULT_MAX + ONCE_NOTE_MAX + (size_t)512)

/* Names of files in the folder, beside the segments'. */
#define ONCE__JOURNAL_LOCK "lock"
#define ONCE__JOURNAL_CLOCK "clock"
#define ONCE__JOURNAL_STORE_HEAD "head"
#define ONCE__JOURNAL_NEXT_HEAD "head.tmp"     /* a head in the making    */
#define ONCE__JOURNAL_UNFINISHED "prepare.tmp" /* a segment in the making */
#define ONCE__JOURNAL_INDEX "index"
#define ONCE__JOURNAL_NEXT_INDEX "index.tmp" /* an index in the making    */

/* ---- Positions ---------------------------------------------------------- */

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

/* ---- frame.c: frames and the headers of segments ------------------------ */

enum once__frame_kind {
    ONCE__FRAME_RECORD = 1, /* the record of `name` is this                 */
    ONCE__FRAME_FORGOTTEN,  /* there is no record of `name`                 */
    ONCE__FRAME_MARK        /* after `before` the log goes on with this
                             * generation, this fence, and no segment before
                             * number `due`                                 */
};

/*
 * The head of a frame. `sum` is the checksum at the end of the record that
 * follows; `due` is the record's time in the order of scans, by its state.
 *
 * A generation is the log between two recoveries. Its number is random, for it
 * must never be used twice: some frames of a generation whose other frames
 * never reached the disk may lie after the end of every later one.
 */
struct once__frame {
    uint32_t length; /* all of it, a multiple of ONCE__FRAME_ALIGN           */
    uint32_t sum;
    uint8_t kind, state, pad;
    uint64_t generation;
    uint64_t durable; /* as it was known when the frame was written          */
    uint64_t fence, due;
    uint64_t before; /* MARK: the generation that it follows; in `name`      */
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

/* Bytes of the frame of a record. */
size_t once__frame_size_of(const once_record *r);
/* Writes record and padding to out[ONCE__FRAME_HEAD..), which has room for
 * once__frame_size_of(), and sets `length`, `pad` and `sum`. `r` may be NULL:
 * then the frame has no record. */
void once__frame_encode(struct once__frame *f, const once_record *r,
                        uint8_t *out);
/* The record in the whole frame at `bytes`, borrowed from there: ONCE_OK,
 * ONCE_ECORRUPT, ONCE_EVERSION. */
ONCE_CHECK int once__frame_record(const struct once__frame *f,
                                  const uint8_t *bytes, once_record *out);

void once__segment_head_put(const struct once__segment_head *h,
                            uint8_t out[ONCE__JOURNAL_HEADER]);
/* ONCE_OK; ONCE_EVERSION; ONCE_ECORRUPT: not the header of segment `id`. */
int once__segment_head_get(const uint8_t in[ONCE__JOURNAL_HEADER], uint64_t id,
                           struct once__segment_head *out);

/* By a record's state: when its lease ends, when it ended (indeterminate), or
 * when its retention ends. */
uint64_t once__journal_due(const once_record *r);

/* ---- session.c: DIR/lock ------------------------------------------------ */

enum once__left_state {
    ONCE__LEFT_NEW = 0,
    ONCE__LEFT_OPEN,  /* a process has it open, or died with it open          */
    ONCE__LEFT_CLEAN, /* all is durable, and the log ends at `at`             */
    ONCE__LEFT_CUT    /* what lies after `at` was never acknowledged          */
};

/* The file's contents. */
struct once__note {
    uint8_t id[ONCE__JOURNAL_ID]; /* of the shared memory */
    uint32_t state;               /* enum once__left_state */
    uint64_t at;
    uint8_t host[ONCE_HOST_SIZE]; /* the start of the host that `id` is of  */
    uint64_t key[4];              /* of the index's hash; zeros: none drawn */
};

#endif /* ONCE_CALLS_STORE_JOURNAL_FORMAT_H */
