/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - appending frames, reading them again, and making them durable.
 *
 *    lock -> decide, append to a buffer -> one write -> unlock -> sync
 *
 * One write a batch, under the lock, so that others may read it at once. Then
 * whoever gets the second lock flushes for all who wait: a flush covers all
 * that was written when it began. The next batch is decided meanwhile.
 *
 *                    all written,                a flush or a
 *    durable = tail ------------> durable < tail ------------> poisoned
 *          ^                         |    write failed
 *          `----- flushed -----------'
 *
 * It refuses to retry a flush that failed: the kernel may have dropped the
 * pages and call the next one a success. Poisoned, nobody gets an answer until
 * all have closed, and the next to open cuts the log where it was durable. Of
 * somebody who died flushing nobody knows how it ended, so what was not known
 * to be durable is written again, first.
 *
 * Shared memory is *broken* when a holder of the lock died, or could not write
 * what the index knows already: whoever takes the lock next repairs it from the
 * log. One that cannot, because it has no descriptor or memory left, gets no
 * answer itself and leaves the repair to the next one.
 */
#include "store/journal/journal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/record.h"

enum {
    BUFFER_MIN = 64 * 1024,
    BUFFER_KEEP = 4 << 20, /* a larger one is given back after the batch  */
    FULL_BUFFER = 1 << 20, /* is written before the batch is over         */
    PAGE = 4096,           /* of the kernel's memory                      */
    LIVE = 512             /* bytes kept back for each claim's next frame */
};

int once__journal_poison(struct once__journal *j, int number, const char *what,
                         once_error *err)
{
    j->shared->poisoned = (uint32_t)(number == 0 ? EIO : number);
    return once__fail(err, ONCE_ESTORE,
                      "%s: %s failed: %s: no more answers until all have "
                      "closed it",
                      j->path, what, strerror(number));
}

/* What another process may have although this one has not. */
static int is_local(int number)
{
    return number == EMFILE || number == ENFILE || number == ENOMEM;
}

int once__journal_unwritten(struct once__journal *j, int number,
                            const char *what, once_error *err)
{
    if (!is_local(number))
        return once__journal_poison(j, number, what, err);
    j->shared->broken = 1;
    return once__fail(err, ONCE_ESTORE, "%s: %s failed: %s", j->path, what,
                      strerror(number));
}

static int is_poisoned(struct once__journal *j, once_error *err)
{
    uint32_t number = j->shared->poisoned;

    if (number == 0)
        return 0;
    (void)once__fail(err, ONCE_ESTORE,
                     "%s: an earlier flush or write failed: %s: no more "
                     "answers until all have closed it",
                     j->path, strerror((int)number));
    return 1;
}

static int no_lock(const struct once__journal *j, int rc, once_error *err)
{
    if (rc == ETIMEDOUT)
        return once__fail(err, ONCE_ESTORE,
                          "%s: others have kept it busy for %u ms", j->path,
                          j->busy_ms);
    return once__fail(err, ONCE_ESTORE, "%s: its lock: %s", j->path,
                      strerror(rc));
}

/* ---- The lock ------------------------------------------------------------- */

/* The log is whole, or it ends in half a batch that nobody was told of. What
 * is in shared memory may be half done, so it is made anew. */
static int repair(struct once__journal *j, once_error *err)
{
    int code = once__recover_locked(j, err);

    if (code == ONCE_OK)
        j->shared->broken = 0;
    else if (code == ONCE_EFULL)
        (void)once__fail(err, ONCE_ESTORE, "%s: repairing it: %s", j->path,
                         strerror(ENOSPC));
    else if (err != NULL)
        err->code = ONCE_ESTORE;
    return code;
}

/* Positions that were cut off may be given away again. */
static void forget_recent(struct once__journal *j)
{
    free(j->recent);
    j->recent = NULL;
    j->recent_generation = j->shared->generation;
}

int once__journal_lock(struct once__journal *j, once_error *err)
{
    struct once__shared *s = j->shared;
    int rc = once__shared_lock(&s->lock, j->busy_ms), code = ONCE_OK;

    if (rc != 0 && rc != EOWNERDEAD)
        return no_lock(j, rc, err);
    if (rc == EOWNERDEAD) {
        s->broken = 1;
        (void)pthread_mutex_consistent(&s->lock);
    }
    if (is_poisoned(j, err))
        code = ONCE_ESTORE;
    else if (s->broken)
        code = repair(j, err);
    if (code == ONCE_OK && !once__shared_view(j))
        code = once__fail(err, ONCE_ESTORE, "%s: no memory for the index",
                          j->path);
    /* Now, when it can be refused, and not when there is something to write. */
    if (code == ONCE_OK && once__segment_file(j, s->last) < 0)
        code = once__fail(err, ONCE_ESTORE, "%s: a segment: %s", j->path,
                          strerror(errno));
    j->start = s->tail;
    j->used = 0;
    if (j->recent_generation != s->generation)
        forget_recent(j);
    if (code == ONCE_OK)
        return ONCE_OK;
    (void)pthread_mutex_unlock(&s->lock);
    return ONCE_ESTORE;
}

void once__journal_unlock(struct once__journal *j)
{
    (void)pthread_mutex_unlock(&j->shared->lock);
    if (j->space > BUFFER_KEEP) {
        free(j->buffer);
        j->buffer = NULL;
        j->space = 0;
    }
}

/* ---- Durable -------------------------------------------------------------- */

static void raise_durable(struct once__shared *s, uint64_t at)
{
    uint64_t was = s->durable;

    while (was < at && !atomic_compare_exchange_weak(&s->durable, &was, at))
        ;
}

static int rewrite_piece(int fd, uint8_t *bytes, uint64_t from, size_t n)
{
    if (once__journal_read(fd, bytes, n, from) != 1)
        return -1;
    return once__journal_write(fd, bytes, n, from);
}

int once__journal_rewrite(int fd, uint64_t from, uint64_t to)
{
    uint8_t *bytes = malloc(FULL_BUFFER);
    int rc = bytes == NULL ? -1 : 0;
    size_t n;

    for (; rc == 0 && from < to; from += n) {
        n = to - from < FULL_BUFFER ? (size_t)(to - from) : FULL_BUFFER;
        rc = rewrite_piece(fd, bytes, from, n);
    }
    free(bytes);
    return rc;
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
        once__journal_rewrite(fd, from, once__journal_offset(tail)) != 0)
        return is_local(errno) /* `flushing` stays: the next one does it */
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
        return no_lock(j, rc, err);
    if (s->durable < at) /* or somebody has done it for us */
        code = is_poisoned(j, err) ? ONCE_ESTORE : flush_to(j, s->tail, err);
    (void)pthread_mutex_unlock(&s->sync);
    return code;
}

/* ---- Writing -------------------------------------------------------------- */

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
    fd = once__segment_file(j, s->last);
    if (fd < 0 || once__journal_write(fd, j->buffer, whole_pages(j),
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
    if (once__journal_write(fd, block, sizeof(block), 0) != 0)
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

    assert(next <= s->ready);
    if (fd < 0)
        return once__fail(err, ONCE_ESTORE, "%s: the next segment: %s", j->path,
                          strerror(errno));
    code = once__journal_flush(j, err);
    if (code == ONCE_OK)
        code = once__journal_sync(j, j->start, err);
    if (code == ONCE_OK)
        code = write_head(j, next, fd, err);
    if (code != ONCE_OK)
        return code;
    s->last = next;
    j->start = once__journal_at(next, ONCE__JOURNAL_HEADER);
    s->tail = j->start;
    return ONCE_OK;
}

/* ---- Room ----------------------------------------------------------------- */

static uint64_t room_here(const struct once__journal *j)
{
    struct once__shared *s = j->shared;
    uint64_t at = once__journal_offset(j->start) + j->used;

    assert(at <= once__segment(s, s->last)->size);
    return once__segment(s, s->last)->size - at;
}

static uint64_t room_ahead(struct once__shared *s)
{
    uint64_t id, ready = s->ready, sum = 0;

    for (id = s->last + 1; id <= ready; id++)
        sum += once__segment(s, id)->size - ONCE__JOURNAL_HEADER;
    return sum;
}

/* The next frames of those who hold claims, and half a segment for the sweep,
 * which is what makes room again; or what it can need at the most. */
uint64_t once__journal_reserve(const struct once__journal *j)
{
    struct once__shared *s = j->shared;
    uint64_t live = s->owned * (LIVE + 2 * s->usual);
    uint64_t half = once__segment(s, s->last)->size / 2;
    uint64_t sweep =
        s->records * ONCE__FRAME_HEAD + s->bytes + ONCE__JOURNAL_SWEEP;

    if (half > j->segment_max / 2) /* it was made longer */
        half = j->segment_max / 2;
    if (half > sweep)
        half = sweep;
    return live > half ? live : half;
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

    while (code == ONCE_OK) {
        here = room_here(j);
        ahead = room_ahead(j->shared);
        if (here >= length && here - length + ahead >= reserve)
            return ONCE_OK;
        if (here < length && fits_next(j->shared, length) &&
            ahead >= length + reserve)
            code = roll_over(j, err);
        else if (reserve <= ONCE__JOURNAL_SWEEP)
            code = extend(j, length, err);
        else
            return j->shared->full ? ONCE_EFULL : ONCE__LATER;
    }
    return code;
}

/* ---- Appending and reading ------------------------------------------------ */

size_t once__frame_length(const once_record *r)
{
    size_t size = ONCE__FRAME_HEAD + once__record_size(r);

    return (size + ONCE__FRAME_ALIGN - 1) & ~(size_t)(ONCE__FRAME_ALIGN - 1);
}

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

    f->generation = j->shared->generation;
    f->durable = j->shared->durable;
    once__frame_put(f, at, to);
    j->used += f->length;
    return at;
}

uint64_t once__journal_append(struct once__journal *j, struct once__frame *f,
                              const once_record *r)
{
    size_t size = r == NULL ? 0 : once__record_size(r);
    uint8_t *to;

    f->length =
        (uint32_t)(r == NULL ? ONCE__FRAME_HEAD : once__frame_length(r));
    f->pad = (uint8_t)(f->length - ONCE__FRAME_HEAD - size);
    f->sum = 0;
    to = buffer_take(j, f->length);
    if (to == NULL)
        return 0;
    if (r != NULL) {
        once__record_encode(r, f->name, to + ONCE__FRAME_HEAD);
        memset(to + ONCE__FRAME_HEAD + size, 0, f->pad);
        f->sum = (uint32_t)once__get(
            to + ONCE__FRAME_HEAD + size - ONCE__RECORD_SUM, ONCE__RECORD_SUM);
    }
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

int once__frame_record(const struct once__frame *f, const uint8_t *bytes,
                       once_record *out)
{
    once_bytes record = {bytes + ONCE__FRAME_HEAD,
                         f->length - ONCE__FRAME_HEAD - f->pad};
    int code = once__record_decode(record, f->name, out, NULL);

    if (code == ONCE_OK &&
        once__get(bytes + f->length - f->pad - ONCE__RECORD_SUM,
                  ONCE__RECORD_SUM) != f->sum)
        code = ONCE_ECORRUPT;
    return code;
}

static int read_frame(struct once__journal *j, const struct once__slot *slot,
                      uint8_t *out)
{
    int fd, rc;

    if (slot->at >= j->start) {
        assert(slot->at - j->start + slot->length <= j->used);
        memcpy(out, j->buffer + (slot->at - j->start), slot->length);
        return ONCE_OK;
    }
    fd = once__segment_file(j, once__journal_id(slot->at));
    if (fd < 0)
        return errno == ENOENT ? ONCE_ECORRUPT : ONCE_ESTORE;
    rc = once__journal_read(fd, out, slot->length,
                            once__journal_offset(slot->at));
    return rc == 1 ? ONCE_OK : rc == 0 ? ONCE_ECORRUPT : ONCE_ESTORE;
}

static int take_apart(const struct once__slot *slot, const uint8_t *bytes,
                      once_record *r)
{
    struct once__frame f;

    if (!once__frame_get(bytes, slot->at, &f) || f.length != slot->length ||
        f.kind != ONCE__FRAME_RECORD ||
        memcmp(f.name, slot->name, ONCE_NAME_SIZE) != 0)
        return ONCE_ECORRUPT;
    return once__frame_record(&f, bytes, r);
}

int once__journal_load(struct once__journal *j, const struct once__slot *slot,
                       uint8_t *out, once_record *r)
{
    const uint8_t *at = once__recent_find(j->recent, slot->at, slot->length);
    int code;

    if (at != NULL) {
        memcpy(out, at, slot->length);
        if (take_apart(slot, out, r) == ONCE_OK)
            return ONCE_OK;
    }
    code = read_frame(j, slot, out);
    return code == ONCE_OK ? take_apart(slot, out, r) : code;
}
