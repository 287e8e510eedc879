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
 * - a slot in a segment that was dropped: its name had a frame in a later one
 *   before that. If that was before `from`, the slot had gone from the index.
 *
 * For that, the log must be the very one. So when all pages were copied a MARK
 * is appended that has a random number, the *stamp*: a log that has it at that
 * place has all that was copied. The log of an older copy of the folder does
 * not, nor that of a copy which went on by itself. If the index was repaired
 * meanwhile, since a process died, its pages may be others: then the log's
 * generation is another one, too, and what was begun is thrown away.
 *
 * It is only a cache. Whatever does not fit or check, is missing or damaged is
 * said in an event, and the whole log is walked, as if there were no such file:
 * it refuses the file, never the folder. Who reads the log decides (recover.c).
 *
 * The file: a head, at 4096 blocks of 64 KiB; numbers as they are in memory, so
 * that a machine of another byte order does not know the magic number:
 *
 *    head    magic  version  sum  from  to  generation  stamp (16)  blocks
 *            slots  average  key (32)
 *    block   sum  number  from  count, then up to 1023 slots, of whole pages;
 *            the first slot of a page says how deep that was
 *
 * `key` is that of the index's hash. With it a page comes back as a page, and
 * not slot by slot, each to another place. So the key outlives the shared
 * memory, in a file that nobody can read who cannot read all names.
 */
#include "store/journal/handle.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/crc32c.h"
#include "core/error.h"

#define MAGIC UINT64_C(0x31786469656e6f6f)
#define LEAST (UINT64_C(64) << 20) /* bytes of the log that are soon walked */

enum {
    STAMP = 16,   /* bytes: the last ones of a MARK's name */
    SLOTS = 1023, /* in a block */
    HEAD = 4096,  /* bytes before the first block */
    PIECE = 16,   /* blocks that are read at a time */
    WRITTEN = 64, /* blocks that may wait in the kernel's memory */
    AHEAD = 128   /* blocks that are asked for in advance */
};

struct head {
    uint64_t magic;
    uint32_t version, sum;
    uint64_t from, to;   /* positions: the beginning, the end of the MARK */
    uint64_t generation; /* there                                         */
    uint8_t stamp[STAMP];
    uint64_t blocks, slots, average;
    uint64_t key[4];
};

struct block {
    uint32_t sum, spare;
    uint64_t number, from, count;
    uint64_t spares[4];
    struct once__slot slots[SLOTS];
};

static_assert(sizeof(struct block) == 65536, "of whole pages");
static_assert(sizeof(struct head) <= HEAD, "before the blocks");

static uint32_t head_sum(const struct head *h)
{
    return once__crc32c(0, &h->from, sizeof(*h) - offsetof(struct head, from));
}

static uint32_t block_sum(const struct block *b)
{
    return once__crc32c(0, &b->number,
                        sizeof(*b) - offsetof(struct block, number));
}

static off_t block_at(uint64_t number)
{
    return (off_t)(HEAD + number * sizeof(struct block));
}

/* ---- Making one -----------------------------------------------------------
 * */

struct once__checkpoint {
    struct once__journal *j;
    int fd;
    uint32_t page; /* the next to be copied */
    struct head head;
    struct block block;
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
        k->j->shared->records / (SLOTS - ONCE__PAGE_SLOTS + 1) + 1;

    (void)unlinkat(k->j->folder, ONCE__JOURNAL_NEXT_INDEX, 0);
    k->fd = once__file_create(k->j->folder, ONCE__JOURNAL_NEXT_INDEX);
    if (k->fd < 0)
        return failed(k, err);
    errno = posix_fallocate(k->fd, 0, block_at(blocks));
    return errno == 0 ? ONCE_OK : failed(k, err);
}

static int note_begin(struct once__checkpoint *k, once_error *err)
{
    const struct once__shared *s = k->j->shared;
    int code = once__journal_lock(k->j, err);

    if (code != ONCE_OK)
        return code;
    k->head.magic = MAGIC;
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
                      "%s/%s: thrown away: the index was made anew meanwhile",
                      k->j->path, ONCE__JOURNAL_NEXT_INDEX);
}

/* As many pages as the block has room for. 1: there are more. */
static int copy_pages(struct once__checkpoint *k)
{
    const struct once__shared *s = k->j->shared;
    struct block *b = &k->block;
    const struct once__page *p;

    for (; k->page < s->pages; k->page++) {
        if (!once__index_bucket(s, k->page))
            continue;
        p = once__shared_page(k->j, k->page);
        if (b->count + p->count > SLOTS)
            return 1;
        if (p->count == 0)
            continue;
        memcpy(b->slots + b->count, p->slots, p->count * sizeof(p->slots[0]));
        b->slots[b->count].spare[0] = (uint8_t)(p->depth + 1);
        b->count += p->count;
    }
    return 0;
}

static int write_block(struct once__checkpoint *k, once_error *err)
{
    struct block *b = &k->block;
    uint64_t number = k->head.blocks++;

    k->head.slots += b->count;
    b->number = number;
    b->from = k->head.from;
    memset(b->slots + b->count, 0, (SLOTS - b->count) * sizeof(b->slots[0]));
    b->sum = block_sum(b);
    if (once__file_write(k->fd, b, sizeof(*b), (uint64_t)block_at(number)) != 0)
        return failed(k, err);
    b->count = 0;
    /* Or one flush of them all would keep the log's waiting. Whether it could
     * be written the last one says. */
    if (k->head.blocks % WRITTEN == 0)
        (void)sync_file_range(k->fd, block_at(number + 1 - WRITTEN),
                              WRITTEN * sizeof(*b),
                              SYNC_FILE_RANGE_WRITE |
                                  SYNC_FILE_RANGE_WAIT_AFTER);
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
    memcpy(f.name + ONCE_NAME_SIZE - STAMP, k->head.stamp, STAMP);
    if (once__journal_append(k->j, &f, NULL) == 0)
        return once__fail(err, ONCE_ENOMEM, "%s: out of memory", k->j->path);
    code = once__journal_flush(k->j, err);
    k->head.to = s->tail;
    return code;
}

static int finish(struct once__checkpoint *k, once_error *err)
{
    int code;

    if (getrandom(k->head.stamp, STAMP, 0) != STAMP)
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

    k->head.sum = head_sum(&k->head);
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

/* ---- Loading one ----------------------------------------------------------
 * */

#define DAMAGED "it is damaged"

static const char *read_head(int fd, struct head *h)
{
    if (once__file_read(fd, h, sizeof(*h), 0) != 1 || h->magic != MAGIC)
        return DAMAGED;
    if (h->version != ONCE__JOURNAL_VERSION)
        return "it is of another version";
    return h->sum == head_sum(h) && h->average <= ONCE__FRAME_MAX ? NULL
                                                                  : DAMAGED;
}

/* Does the MARK stand in the log? */
static int has_mark(struct once__journal *j, const struct head *h)
{
    int fd = once__segment_file(j, once__journal_id(h->to));
    uint8_t bytes[ONCE__FRAME_HEAD];
    struct once__frame f;

    return fd >= 0 && h->from < h->to &&
           once__journal_offset(h->to) >=
               ONCE__JOURNAL_HEADER + ONCE__FRAME_HEAD &&
           once__file_read(fd, bytes, sizeof(bytes),
                           once__journal_offset(h->to) - ONCE__FRAME_HEAD) ==
               1 &&
           once__frame_get(bytes, h->to - ONCE__FRAME_HEAD, &f) &&
           f.kind == ONCE__FRAME_MARK &&
           memcmp(f.name + ONCE_NAME_SIZE - STAMP, h->stamp, STAMP) == 0;
}

static const char *fits(struct once__journal *j, const struct head *h,
                        uint64_t needed, uint64_t end)
{
    if (h->to > end)
        return "the log ends before it";
    if (once__journal_id(h->from) < needed)
        return "the log begins after it";
    return has_mark(j, h) ? NULL : "it is of another log";
}

/* What cannot be is not let in, whatever the checksum says. */
static int is_sane(const struct once__journal *j, const struct head *h,
                   const struct once__slot *slot)
{
    return slot->length >= ONCE__FRAME_HEAD && slot->length <= ONCE__FRAME_MAX &&
           slot->length % ONCE__FRAME_ALIGN == 0 &&
           slot->state <= ONCE_INDETERMINATE && slot->at < h->to &&
           slot->at + slot->length <= h->to &&
           once__journal_offset(slot->at) >= ONCE__JOURNAL_HEADER &&
           once__journal_id(slot->at) + ONCE__JOURNAL_SEGMENTS >
               j->shared->last;
}

/* The slots of one page: as many as there are before the next one begins. 0:
 * none begins here. */
static uint64_t page_of(const struct block *b, uint64_t begin)
{
    uint64_t end = begin + 1;

    if (b->slots[begin].spare[0] == 0)
        return 0;
    while (end < b->count && b->slots[end].spare[0] == 0)
        end++;
    return end - begin;
}

static const char *take_block(struct once__journal *j, const struct head *h,
                              struct block *b, uint64_t number)
{
    uint64_t i, n;
    unsigned depth;

    if (b->sum != block_sum(b) || b->number != number || b->from != h->from ||
        b->count > SLOTS)
        return DAMAGED;
    for (i = 0; i < b->count; i++)
        if (!is_sane(j, h, &b->slots[i]))
            return DAMAGED;
    for (i = 0; i < b->count; i += n) {
        n = page_of(b, i);
        if (n == 0)
            return DAMAGED;
        depth = b->slots[i].spare[0] - 1u;
        b->slots[i].spare[0] = 0;
        if (!once__index_put_page(j, depth, &b->slots[i], n))
            return "no room for the index in shared memory";
    }
    return NULL;
}

static const char *take_blocks(struct once__journal *j, const struct head *h,
                               int fd)
{
    struct block *blocks = malloc(PIECE * sizeof(*blocks));
    const char *why = blocks == NULL ? "out of memory" : NULL;
    uint64_t number, n, i, slots = 0;

    for (number = 0; why == NULL && number < h->blocks; number += n) {
        n = h->blocks - number < PIECE ? h->blocks - number : PIECE;
        if (number % AHEAD == 0)
            (void)posix_fadvise(fd, block_at(number + n),
                                2 * AHEAD * sizeof(*blocks),
                                POSIX_FADV_WILLNEED);
        if (once__file_read(fd, blocks, n * sizeof(*blocks),
                            (uint64_t)block_at(number)) != 1)
            why = DAMAGED;
        for (i = 0; why == NULL && i < n; i++) {
            why = take_block(j, h, &blocks[i], number + i);
            slots += blocks[i].count;
        }
        atomic_fetch_add(&j->shared->recovered, n * sizeof(*blocks));
    }
    free(blocks);
    return why == NULL && slots != h->slots ? DAMAGED : why;
}

const char *once__checkpoint_load(struct once__journal *j, uint64_t needed,
                                  uint64_t end, struct once__saved *out)
{
    int fd = openat(j->folder, ONCE__JOURNAL_INDEX, O_RDONLY | O_CLOEXEC);
    struct head h;
    const char *why;

    memset(out, 0, sizeof(*out));
    if (fd < 0)
        return errno == ENOENT ? NULL : strerror(errno);
    why = read_head(fd, &h);
    if (why == NULL)
        why = fits(j, &h, needed, end);
    if (why == NULL) {
        memcpy(j->shared->key, h.key, sizeof(h.key)); /* the index is empty */
        why = take_blocks(j, &h, fd);
    }
    (void)close(fd);
    if (why != NULL)
        return why;
    j->shared->average = h.average;
    *out = (struct once__saved){h.from, h.generation};
    return NULL;
}

void once__checkpoint_remove(const struct once__journal *j)
{
    (void)unlinkat(j->folder, ONCE__JOURNAL_INDEX, 0);
}
