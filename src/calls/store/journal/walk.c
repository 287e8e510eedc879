/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.c - the frames of one segment, in the order in which they were written.
 *
 * A chain goes on as long as frames pass their checksums and are of one
 * generation; a MARK begins another if it says that it follows this one. Frames
 * of other generations that lie after the place where the log was cut pass
 * their checksums too, MARKs included, but follow another log: the chain ends
 * there.
 *
 *    | frame a | frame a | MARK a->c | frame c | MARK a->b | frame b | 0 0 0
 *                                               ^ `- of a recovery that failed
 *                                               `- the chain ends here
 *
 * Results are skipped, not read, unless a caller asks for them.
 */
#include "calls/store/journal/walk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "calls/store/journal/file.h"

enum { WINDOW = 256 * 1024 };

int once__walk_begin(struct once__walk *w, int fd, uint64_t id, uint64_t offset,
                     uint64_t end, uint64_t generation)
{
    memset(w, 0, sizeof(*w));
    w->fd = fd;
    w->id = id;
    w->offset = offset;
    w->end = end;
    w->generation = generation;
    w->space = WINDOW;
    w->buffer = malloc(w->space);
    return w->buffer == NULL ? ONCE_ENOMEM : ONCE_OK;
}

void once__walk_end(struct once__walk *w)
{
    free(w->buffer);
    w->buffer = NULL;
}

static int make_space(struct once__walk *w, size_t size)
{
    uint8_t *more;

    if (size <= w->space)
        return 1;
    more = realloc(w->buffer, size);
    if (more == NULL) {
        errno = ENOMEM;
        return 0;
    }
    w->buffer = more;
    w->space = size;
    w->got = 0;
    return 1;
}

const uint8_t *once__walk_bytes(struct once__walk *w, uint64_t offset,
                                size_t size)
{
    size_t n;

    if (offset + size > w->end) {
        errno = 0;
        return NULL;
    }
    if (offset >= w->from && offset + size <= w->from + w->got)
        return w->buffer + (offset - w->from);
    if (!make_space(w, size))
        return NULL;
    n = size > WINDOW ? size : WINDOW;
    n = w->end - offset < n ? (size_t)(w->end - offset) : n;
    w->got = 0;
    errno = 0;
    if (once__file_read(w->fd, w->buffer, n, offset) != 1)
        return NULL;
    w->from = offset;
    w->got = n;
    if (w->bytes != NULL)
        atomic_fetch_add(w->bytes, n);
    return w->buffer;
}

static int goes_on(const struct once__walk *w, const struct once__frame *f)
{
    if (w->offset + f->length > w->end)
        return 0;
    return f->generation == w->generation ||
           (f->kind == ONCE__FRAME_MARK && f->before == w->generation);
}

int once__walk_next(struct once__walk *w, struct once__frame *out)
{
    const uint8_t *head = once__walk_bytes(w, w->offset, ONCE__FRAME_HEAD);

    if (head == NULL)
        return errno == 0 ? 0 : -1;
    if (!once__frame_get(head, once__journal_at(w->id, w->offset), out) ||
        !goes_on(w, out))
        return 0;
    w->generation = out->generation;
    w->offset += out->length;
    return 1;
}

int once__walk_record(struct once__walk *w, const struct once__frame *f,
                      once_record *out)
{
    const uint8_t *bytes =
        once__walk_bytes(w, w->offset - f->length, f->length);

    if (bytes == NULL)
        return errno == 0 ? ONCE_ECORRUPT : ONCE_ESTORE;
    return once__frame_record(f, bytes, out);
}

uint64_t once__walk_orphan(struct once__walk *w)
{
    uint64_t offset, here = once__journal_at(w->id, w->offset);
    struct once__frame f;
    const uint8_t *at;

    for (offset = w->offset; offset + ONCE__FRAME_HEAD <= w->end;
         offset += ONCE__FRAME_ALIGN) {
        at = once__walk_bytes(w, offset, ONCE__FRAME_HEAD);
        if (at == NULL)
            return 0;
        if (once__frame_hint(at) &&
            once__frame_get(at, once__journal_at(w->id, offset), &f) &&
            f.durable > here)
            return once__journal_at(w->id, offset);
    }
    return 0;
}

int once__walk_goes_on(int fd, const struct once__segment_head *next)
{
    uint8_t bytes[ONCE__FRAME_HEAD];
    struct once__frame f;

    return once__file_read(fd, bytes, sizeof(bytes),
                           once__journal_offset(next->before)) == 1 &&
           once__frame_get(bytes, next->before, &f) &&
           f.kind == ONCE__FRAME_MARK && f.before == next->generation;
}
