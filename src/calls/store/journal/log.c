/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - appending frames, reading them again, and making them durable.
 *
 *    lock -> decide, append to a buffer -> one write -> unlock -> sync
 *
 * One write a batch, under the lock, so that others may read it at once. Then
 * the holder of the second lock flushes for all who wait: a flush covers all
 * that was written when it began. The next batch is decided meanwhile.
 *
 *                    all written,                a flush or a
 *    durable = tail ------------> durable < tail ------------> poisoned
 *          ^                         |    write failed
 *          `----- flushed -----------'
 *
 * It refuses to retry a flush that failed: the kernel may have dropped the
 * pages and call the next one a success. Poisoned, no call gets an answer until
 * all have closed, and the next to open cuts the log where it was durable. If
 * a process died flushing, it is not known how that ended, so what was not
 * known to be durable is written again, first.
 */
#include "calls/store/journal/handle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/must.h"

enum {
    BUFFER_MIN = 64 * 1024,
    PAGE = 4096 /* a block of the file system, and most kernels' page */
};

/* ---- Durable ------------------------------------------------------------ */

static void raise_durable(struct once__shared *s, uint64_t at)
{
    uint64_t was = s->durable;

    while (was < at && !atomic_compare_exchange_weak(&s->durable, &was, at))
        ;
}

static int flush_to(struct once__journal *j, uint64_t tail, once_error *err)
{
    struct once__shared *s = j->shared;
    int fd = once__segment_file(j, once__journal_id(tail));
    uint64_t from = s->durable;

    if (fd < 0)
        return once__fail(err, ONCE_ESTORE, "%s: a segment: %s", j->path,
                          strerror(errno));
    from = once__journal_id(from) == once__journal_id(tail)
               ? once__journal_offset(from)
               : 0;
    if (s->flushing &&
        once__file_rewrite(fd, from, once__journal_offset(tail)) != 0)
        return once__journal_is_local(
                   errno) /* `flushing` stays: the next one does it */
                   ? once__fail(err, ONCE_ESTORE, "%s: writing again: %s",
                                j->path, strerror(errno))
                   : once__journal_poison(j, errno, "writing again", err);
    s->flushing = 1;
    if (fdatasync(fd) != 0)
        return once__journal_poison(j, errno, "a flush", err);
    s->flushing = 0;
    raise_durable(s, tail);
    return ONCE_OK;
}

int once__journal_sync(struct once__journal *j, uint64_t at, once_error *err)
{
    struct once__shared *s = j->shared;
    int rc, code = ONCE_OK;

    if (s->durable >= at)
        return ONCE_OK;
    rc = once__shared_lock(&s->sync, j->busy_ms);
    if (rc == EOWNERDEAD)
        rc = pthread_mutex_consistent(&s->sync);
    if (rc != 0)
        return once__journal_no_lock(j, rc, err);
    if (s->durable < at) /* or another has done it for us */
        code = once__journal_is_poisoned(j, err) ? ONCE_ESTORE
                                                 : flush_to(j, s->tail, err);
    (void)pthread_mutex_unlock(&s->sync);
    return code;
}

/* ---- Writing ------------------------------------------------------------ */

/*
 * Up to the end of a page: zeros, where zeros are or nothing that counts.
 * Otherwise the kernel would first have to read what the write leaves of it.
 */
static size_t whole_pages(struct once__journal *j)
{
    uint64_t end = once__journal_offset(j->start) + j->used;
    uint64_t room = once__segment(j->shared, j->shared->last)->size - end;
    size_t pad = (size_t)(0 - end) % PAGE;

    if (pad > room)
        pad = (size_t)room;
    memset(j->buffer + j->used, 0, pad);
    return j->used + pad;
}

int once__journal_flush(struct once__journal *j, once_error *err)
{
    struct once__shared *s = j->shared;
    int fd;

    if (j->used == 0)
        return ONCE_OK;
    ONCE__MUST(j->start == s->tail); /* or it would overwrite others' frames */
    fd = once__segment_file(j, s->last);
    if (fd < 0 || once__file_write(fd, j->buffer, whole_pages(j),
                                   once__journal_offset(j->start)) != 0)
        return once__journal_unwritten(j, errno, "a write", err);
    j->start += j->used;
    j->used = 0;
    s->tail = j->start;
    return ONCE_OK;
}

static int write_head(struct once__journal *j, uint64_t id, int fd,
                      once_error *err)
{
    struct once__shared *s = j->shared;
    struct once__segment_head h = {.id = id,
                                   .before = j->start,
                                   .first = s->marked,
                                   .fence = s->fence,
                                   .generation = s->generation};
    uint8_t block[ONCE__JOURNAL_HEADER];

    once__segment_head_put(&h, block);
    if (once__file_write(fd, block, sizeof(block), 0) != 0)
        return once__journal_unwritten(j, errno, "a write", err);
    return ONCE_OK;
}

/*
 * Goes on in the next segment, which is ready. The one that ends is durable
 * before the next has a header, so of all segments only the last can be torn.
 */
static int roll_over(struct once__journal *j, once_error *err)
{
    struct once__shared *s = j->shared;
    uint64_t next = s->last + 1;
    int fd = once__segment_file(j, next), code;

    ONCE__MUST(next <= s->ready);
    if (fd < 0)
        return once__fail(err, ONCE_ESTORE, "%s: the next segment: %s", j->path,
                          strerror(errno));
    code = once__journal_flush(j, err);
    if (code == ONCE_OK)
        code = once__journal_sync(j, j->start, err);
    if (code == ONCE_OK) {
        ONCE__MUST(j->used == 0 && s->tail == j->start);
        ONCE__MUST(s->durable >= s->tail);
        s->begun = next;
        code = write_head(j, next, fd, err);
    }
    if (code != ONCE_OK)
        return code;
    s->last = next;
    j->start = once__journal_at(next, ONCE__JOURNAL_HEADER);
    s->tail = j->start;
    return ONCE_OK;
}

/* ---- Room --------------------------------------------------------------- */

static uint64_t room_here(const struct once__journal *j)
{
    struct once__shared *s = j->shared;
    uint64_t at = once__journal_offset(j->start) + j->used;

    ONCE__MUST(at <= once__segment(s, s->last)->size);
    return once__segment(s, s->last)->size - at;
}

/* For an outcome, or what makes room. */
static int extend(struct once__journal *j, size_t length, once_error *err)
{
    int rc = once__segment_extend(j, length);

    if (rc == 0)
        return ONCE_OK;
    if (rc == ENOSPC || rc == EDQUOT)
        return ONCE_EFULL;
    return once__fail(err, ONCE_ESTORE, "%s: making room: %s", j->path,
                      strerror(rc));
}

static int fits_next(struct once__shared *s, size_t length)
{
    return s->ready > s->last &&
           once__segment(s, s->last + 1)->size >= ONCE__JOURNAL_HEADER + length;
}

int once__journal_room(struct once__journal *j, size_t length, uint64_t reserve,
                       once_error *err)
{
    uint64_t here, ahead;
    int code = ONCE_OK;

    if (once__undo_is_full(j)) /* what is written needs no undo */
        code = once__journal_flush(j, err);
    while (code == ONCE_OK) {
        here = room_here(j);
        ahead = once__segment_room_ahead(j->shared);
        if (here >= length && here - length + ahead >= reserve)
            return ONCE_OK;
        if (here < length && fits_next(j->shared, length) &&
            ahead >= length + reserve)
            code = roll_over(j, err);
        else if (reserve <= ONCE__JOURNAL_SPARE)
            code = extend(j, length, err);
        else
            return j->shared->full ? ONCE_EFULL : ONCE__LATER;
    }
    return code;
}

/* ---- Appending and reading ---------------------------------------------- */

static uint8_t *buffer_take(struct once__journal *j, size_t size)
{
    size_t space = j->space < BUFFER_MIN ? BUFFER_MIN : j->space;
    uint8_t *more;

    while (space - j->used < size + PAGE) /* see whole_pages() */
        space *= 2;
    if (space != j->space) {
        more = realloc(j->buffer, space);
        if (more == NULL)
            return NULL;
        j->buffer = more;
        j->space = space;
    }
    return j->buffer + j->used;
}

/* Completes the head of the frame at the buffer's end. */
static uint64_t buffer_add(struct once__journal *j, struct once__frame *f,
                           uint8_t *to)
{
    uint64_t at = j->start + j->used;

    ONCE__MUST(f->length <= room_here(j));
    f->generation = j->shared->generation;
    f->durable = j->shared->durable;
    once__frame_put(f, at, to);
    j->used += f->length;
    return at;
}

uint64_t once__journal_append(struct once__journal *j, struct once__frame *f,
                              const once_record *r)
{
    uint8_t *to =
        buffer_take(j, r == NULL ? ONCE__FRAME_HEAD : once__frame_size_of(r));

    if (to == NULL)
        return 0;
    once__frame_encode(f, r, to);
    return buffer_add(j, f, to);
}

uint64_t once__journal_append_raw(struct once__journal *j,
                                  struct once__frame *f, const void *record)
{
    uint8_t *to = buffer_take(j, f->length);

    if (to == NULL)
        return 0;
    memcpy(to + ONCE__FRAME_HEAD, record, f->length - ONCE__FRAME_HEAD);
    return buffer_add(j, f, to);
}

int once__journal_mark(struct once__journal *j, uint64_t before,
                       once_error *err)
{
    struct once__frame f = {.kind = ONCE__FRAME_MARK,
                            .before = before,
                            .fence = j->shared->fence,
                            .due = j->shared->marked};
    int code = once__journal_room(j, ONCE__FRAME_HEAD, 0, err);

    if (code == ONCE_OK && once__journal_append(j, &f, NULL) == 0)
        code = once__fail(err, ONCE_ESTORE, "%s: out of memory", j->path);
    return code;
}

static int read_frame(struct once__journal *j, const struct once__slot *slot,
                      uint8_t *out)
{
    int fd, rc;

    if (slot->at >= j->start) {
        ONCE__MUST(slot->at - j->start + slot->length <= j->used);
        memcpy(out, j->buffer + (slot->at - j->start), slot->length);
        return ONCE_OK;
    }
    fd = once__segment_file(j, once__journal_id(slot->at));
    if (fd < 0)
        return errno == ENOENT ? ONCE_ECORRUPT : ONCE_ESTORE;
    rc = once__file_read(fd, out, slot->length, once__journal_offset(slot->at));
    return rc == 1 ? ONCE_OK : rc == 0 ? ONCE_ECORRUPT : ONCE_ESTORE;
}

static int decode(const struct once__slot *slot, const uint8_t *bytes,
                  once_record *r)
{
    struct once__frame f;

    if (!once__frame_get(bytes, slot->at, &f) || f.length != slot->length ||
        f.kind != ONCE__FRAME_RECORD ||
        memcmp(f.name, slot->name, ONCE_NAME_SIZE) != 0)
        return ONCE_ECORRUPT;
    return once__frame_record(&f, bytes, r);
}

int once__journal_at_hand(const struct once__journal *j,
                          const struct once__slot *slot)
{
    return slot->at >= j->start ||
           once__recent_find(j->recent, slot->at, slot->length) != NULL;
}

int once__journal_load(struct once__journal *j, const struct once__slot *slot,
                       uint8_t *out, once_record *r)
{
    const uint8_t *at = once__recent_find(j->recent, slot->at, slot->length);
    int code;

    if (at != NULL) {
        memcpy(out, at, slot->length);
        if (decode(slot, out, r) == ONCE_OK)
            return ONCE_OK;
    }
    code = read_frame(j, slot, out);
    return code == ONCE_OK ? decode(slot, out, r) : code;
}
