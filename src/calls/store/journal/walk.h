/* SPDX-License-Identifier: Apache-2.0 */
/* walk.h - the frames of a segment in the order in which they were written. */
#ifndef ONCE_CALLS_STORE_JOURNAL_WALK_H
#define ONCE_CALLS_STORE_JOURNAL_WALK_H

#include <stdatomic.h>

#include "calls/store/journal/format.h"

struct once__walk {
    int fd;
    uint64_t id, offset; /* of the next frame                               */
    uint64_t end;        /* nothing is read past this offset                */
    uint64_t generation;
    uint8_t *buffer;
    size_t space, got;
    uint64_t from;           /* offset of buffer[0] */
    _Atomic uint64_t *bytes; /* or NULL: adds up what was read; a value for
                              * those who wait */
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
/* Looks for an orphan frame, one after the place where the chain ends: the
 * position of the first that knew something after that place to be durable, or
 * 0. */
uint64_t once__walk_orphan(struct once__walk *w);
/* 1 if the segment at `fd` goes on after the end that the next one's header
 * says: what was never acknowledged may lie there, but no log that followed. */
int once__walk_goes_on(int fd, const struct once__segment_head *next);

#endif /* ONCE_CALLS_STORE_JOURNAL_WALK_H */
