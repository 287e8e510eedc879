/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c - DIR/index: the index beside the log, so that who opens a long
 * log walks its end only.
 *
 *                  pages copied, a few at a time
 *                  ,--------------------------.
 *    log   ... ---|-- others go on meanwhile --| MARK |--- ...
 *                from                                to
 *
 *    index.tmp: blocks of slots -> head -> flushed -> log durable up to `to`
 *    -> renamed to "index" -> folder flushed
 *
 * It is no picture of one moment. Yet who loads it and then takes the frames
 * from `from` on has exactly what a walk through the whole log finds, since
 *
 * - a name that has a frame after `from`: its last frame wins, whatever was
 *   loaded. What was copied of it, once, twice or not at all, does not matter;
 * - a name that has none was not changed while pages were copied. It was in a
 *   page when that began. A page that is split moves slots to a new page behind
 *   all others, which is copied later. So it was copied, and if twice then the
 *   same. A name that was not there at `from` has a frame after it, or is not
 *   there now either;
 * - so a slot never stays that is in a segment that was dropped. When that was
 *   dropped no name had its last frame there. If it was before `from`, no such
 *   slot was there to be copied; if after, its name has a frame after `from`.
 *
 * For that, the log must be the very one. So when all pages were copied a MARK
 * is appended that has a random number, the *stamp*: a log that has it at that
 * place has all that was copied. The log of an older copy of the folder does
 * not, nor that of a copy which went on by itself. If the index was repaired
 * meanwhile, since a process died, its pages may be others: then the log's
 * generation is another one, too, and what was begun is thrown away.
 *
 * It is only a cache. Whatever does not fit or check, is missing or damaged is
 * said in an event, and the whole log is walked, as if there were no such file
 * (saved.c, recover.c). One that is not finished when its process closes the
 * journal is thrown away, so that closing takes no longer.
 */
#include "calls/store/journal/handle.h"
#include "calls/store/journal/saved.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

#define LEAST (UINT64_C(64) << 20) /* bytes of the log that are soon walked */

/* Blocks that may wait in the kernel's memory, and a pause after them: the disk
 * is the log's first, whose flushes wait for what was written before. */
enum { WRITTEN = 4, PAUSE_NS = 2000000 };

struct once__checkpoint {
    struct once__journal *j;
    int fd;
    uint32_t page; /* the next to be copied */
    struct once__saved_head head;
    struct once__saved_block block;
};

/* Bytes of the log from `at` on, or all. */
static uint64_t log_since(struct once__shared *s, uint64_t at)
{
    uint64_t id = s->first, last = s->last, tail = s->tail, sum = 0;

    if (once__journal_id(at) >= id) {
        id = once__journal_id(at);
        sum -= once__journal_offset(at);
    }
    for (; id < last; id++)
        sum += once__segment(s, id)->size;
    return sum + once__journal_offset(tail);
}

int once__checkpoint_is_due(struct once__shared *s)
{
    uint64_t size = s->records * sizeof(struct once__slot);

    return log_since(s, s->saved) > (size > LEAST ? size : LEAST);
}

static int failed(const struct once__checkpoint *k, once_error *err)
{
    return once__fail(err, ONCE_ESTORE, "%s/%s: writing it: %s", k->j->path,
                      ONCE__JOURNAL_NEXT_INDEX, strerror(errno));
}

/* All the room that it will need at once, or it would take the last there is. */
static int make_file(struct once__checkpoint *k, once_error *err)
{
    uint64_t blocks =
        k->j->shared->records / (ONCE__SAVED_SLOTS - ONCE__PAGE_SLOTS + 1) + 1;

    (void)unlinkat(k->j->folder, ONCE__JOURNAL_NEXT_INDEX, 0);
    k->fd = once__file_create(k->j->folder, ONCE__JOURNAL_NEXT_INDEX);
    if (k->fd < 0)
        return failed(k, err);
    errno = posix_fallocate(k->fd, 0, (off_t)once__saved_block_at(blocks));
    return errno == 0 ? ONCE_OK : failed(k, err);
}

static int note_begin(struct once__checkpoint *k, once_error *err)
{
    const struct once__shared *s = k->j->shared;
    int code = once__journal_lock(k->j, err);

    if (code != ONCE_OK)
        return code;
    k->head.magic = ONCE__SAVED_MAGIC;
    k->head.version = ONCE__JOURNAL_VERSION;
    k->head.from = s->tail;
    k->head.generation = s->generation;
    k->head.average = s->average;
    memcpy(k->head.key, s->key, sizeof(s->key));
    once__journal_unlock(k->j);
    return ONCE_OK;
}

int once__checkpoint_begin(struct once__journal *j, once_error *err,
                           struct once__checkpoint **out)
{
    struct once__checkpoint *k = calloc(1, sizeof(*k));
    int code;

    if (k == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    k->j = j;
    k->fd = -1;
    code = make_file(k, err);
    if (code == ONCE_OK)
        code = note_begin(k, err);
    if (code == ONCE_OK)
        *out = k;
    else
        once__checkpoint_end(k);
    return code;
}

void once__checkpoint_end(struct once__checkpoint *k)
{
    if (k == NULL)
        return;
    if (k->fd >= 0) {
        (void)close(k->fd);
        (void)unlinkat(k->j->folder, ONCE__JOURNAL_NEXT_INDEX, 0);
    }
    free(k);
}

/* The lock, with the pages that were there at the beginning. */
static int lock_again(const struct once__checkpoint *k, once_error *err)
{
    int code = once__journal_lock(k->j, err);

    if (code != ONCE_OK || k->j->shared->generation == k->head.generation)
        return code;
    once__journal_unlock(k->j);
    return once__fail(err, ONCE_ESTORE,
                      "%s/%s: thrown away: the index was rebuilt meanwhile",
                      k->j->path, ONCE__JOURNAL_NEXT_INDEX);
}

/* As many pages as the block has room for. 1: there are more. */
static int copy_pages(struct once__checkpoint *k)
{
    const struct once__shared *s = k->j->shared;
    struct once__saved_block *b = &k->block;
    const struct once__page *p;

    for (; k->page < s->pages; k->page++) {
        if (!once__index_bucket(s, k->page))
            continue;
        p = once__shared_page(k->j, k->page);
        if (b->count + p->count > ONCE__SAVED_SLOTS)
            return 1;
        if (p->count == 0)
            continue;
        memcpy(b->slots + b->count, p->slots, p->count * sizeof(p->slots[0]));
        b->slots[b->count].spare[0] = (uint8_t)(p->depth + 1);
        b->count += p->count;
    }
    return 0;
}

/* Or one flush of all blocks would keep the log's waiting. Whether they could be
 * written the last flush says. */
static void let_others_write(const struct once__checkpoint *k, uint64_t from)
{
    const struct timespec pause = {0, PAUSE_NS};

    (void)sync_file_range(k->fd, (off_t)once__saved_block_at(from),
                          (off_t)(WRITTEN * sizeof(k->block)),
                          SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    (void)nanosleep(&pause, NULL);
}

static int write_block(struct once__checkpoint *k, once_error *err)
{
    struct once__saved_block *b = &k->block;
    uint64_t number = k->head.blocks++;

    k->head.slots += b->count;
    b->number = number;
    b->from = k->head.from;
    memset(b->slots + b->count, 0,
           (ONCE__SAVED_SLOTS - b->count) * sizeof(b->slots[0]));
    b->sum = once__saved_block_sum(b);
    if (once__file_write(k->fd, b, sizeof(*b), once__saved_block_at(number)) !=
        0)
        return failed(k, err);
    b->count = 0;
    if (k->head.blocks % WRITTEN == 0)
        let_others_write(k, number + 1 - WRITTEN);
    return ONCE_OK;
}

/* Appends the MARK that says which log this is. */
static int append_mark(struct once__checkpoint *k, once_error *err)
{
    struct once__shared *s = k->j->shared;
    struct once__frame f = {.kind = ONCE__FRAME_MARK,
                            .before = s->generation,
                            .fence = s->fence,
                            .due = s->marked};
    int code = once__journal_room(k->j, ONCE__FRAME_HEAD, 0, err);

    if (code != ONCE_OK)
        return code;
    memcpy(f.name + ONCE_NAME_SIZE - ONCE__SAVED_STAMP, k->head.stamp,
           ONCE__SAVED_STAMP);
    if (once__journal_append(k->j, &f, NULL) == 0)
        return once__fail(err, ONCE_ENOMEM, "%s: out of memory", k->j->path);
    code = once__journal_flush(k->j, err);
    k->head.to = s->tail;
    return code;
}

static int finish(struct once__checkpoint *k, once_error *err)
{
    int code;

    if (getrandom(k->head.stamp, ONCE__SAVED_STAMP, 0) != ONCE__SAVED_STAMP)
        return once__fail(err, ONCE_ESTORE, "%s: no random numbers",
                          k->j->path);
    code = lock_again(k, err);
    if (code != ONCE_OK)
        return code;
    code = append_mark(k, err);
    once__journal_unlock(k->j);
    return code;
}

/* From the rename on it is the one that counts, so that must be durable what it
 * speaks of: a log that ends before `to` does not fit. */
static int publish(struct once__checkpoint *k, once_error *err)
{
    struct once__journal *j = k->j;
    int code;

    k->head.sum = once__saved_head_sum(&k->head);
    if (once__file_write(k->fd, &k->head, sizeof(k->head), 0) != 0 ||
        fdatasync(k->fd) != 0)
        return failed(k, err);
    code = once__journal_sync(j, k->head.to, err);
    if (code != ONCE_OK)
        return code;
    if (renameat(j->folder, ONCE__JOURNAL_NEXT_INDEX, j->folder,
                 ONCE__JOURNAL_INDEX) != 0 ||
        fsync(j->folder) != 0)
        return failed(k, err);
    j->shared->saved = k->head.from;
    return ONCE_OK;
}

int once__checkpoint_step(struct once__checkpoint *k, once_error *err)
{
    int code = lock_again(k, err), more;

    if (code != ONCE_OK)
        return code;
    more = copy_pages(k);
    once__journal_unlock(k->j);
    code = write_block(k, err);
    if (code == ONCE_OK && more)
        return 1;
    if (code == ONCE_OK)
        code = finish(k, err);
    return code == ONCE_OK ? publish(k, err) : code;
}
