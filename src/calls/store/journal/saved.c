/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saved.c - DIR/index: loading the index that checkpoint.c saved beside the log.
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
 * memory, in a file that only those can read who can read all names.
 *
 * It refuses the file, never the folder: one that is damaged, of another log,
 * of one that ends before `to`, or of which `from` was dropped is as good as
 * none, and who asked for it walks the whole log (recover.c).
 */
#include "calls/store/journal/handle.h"
#include "calls/store/journal/saved.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PIECE = 16, /* blocks that are read at a time            */
    AHEAD = 128 /* and so many are asked for in advance      */
};

static_assert(sizeof(struct once__saved_block) == 65536, "of whole pages");
static_assert(sizeof(struct once__saved_head) <= ONCE__JOURNAL_HEADER,
              "before the blocks");

#define DAMAGED "it is damaged"

static const char *read_head(int fd, struct once__saved_head *h)
{
    if (once__file_read(fd, h, sizeof(*h), 0) != 1 ||
        h->magic != ONCE__SAVED_MAGIC)
        return DAMAGED;
    if (h->version != ONCE__JOURNAL_VERSION)
        return "it is of another version";
    return h->sum == once__saved_head_sum(h) && h->average <= ONCE__FRAME_MAX
               ? NULL
               : DAMAGED;
}

/* Does the MARK stand in the log? */
static int has_mark(struct once__journal *j, const struct once__saved_head *h)
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
           memcmp(f.name + ONCE_NAME_SIZE - ONCE__SAVED_STAMP, h->stamp,
                  ONCE__SAVED_STAMP) == 0;
}

static const char *fits(struct once__journal *j,
                        const struct once__saved_head *h, uint64_t needed,
                        uint64_t end)
{
    if (h->to > end)
        return "the log ends before it";
    if (once__journal_id(h->from) < needed)
        return "the log begins after it";
    return has_mark(j, h) ? NULL : "it is of another log";
}

/* What cannot be is not let in, whatever the checksum says. */
static int is_sane(const struct once__saved_head *h,
                   const struct once__slot *slot)
{
    return slot->length >= ONCE__FRAME_HEAD &&
           slot->length <= ONCE__FRAME_MAX &&
           slot->length % ONCE__FRAME_ALIGN == 0 &&
           slot->state <= ONCE_INDETERMINATE && slot->at < h->to &&
           slot->at + slot->length <= h->to &&
           once__journal_offset(slot->at) >= ONCE__JOURNAL_HEADER;
}

/* 1 if its segment would be counted with another of today. */
static int is_ancient(const struct once__journal *j,
                      const struct once__slot *slot)
{
    return once__journal_id(slot->at) + ONCE__JOURNAL_SEGMENTS <=
           j->shared->last;
}

/* The slots of one page: as many as there are before the next one begins. 0:
 * none begins here. */
static uint64_t page_of(const struct once__saved_block *b, uint64_t begin)
{
    uint64_t end = begin + 1;

    if (b->slots[begin].spare[0] == 0)
        return 0;
    while (end < b->count && b->slots[end].spare[0] == 0)
        end++;
    return end - begin;
}

static const char *check_block(const struct once__saved_head *h,
                               const struct once__saved_block *b,
                               uint64_t number)
{
    uint64_t i;

    if (b->sum != once__saved_block_sum(b) || b->number != number ||
        b->from != h->from || b->count > ONCE__SAVED_SLOTS)
        return DAMAGED;
    for (i = 0; i < b->count; i++)
        if (!is_sane(h, &b->slots[i]))
            return DAMAGED;
    return NULL;
}

static const char *load_block(struct once__journal *j,
                              struct once__saved_block *b)
{
    uint64_t i, n;
    unsigned depth;

    for (i = 0; i < b->count; i++)
        if (is_ancient(j, &b->slots[i]))
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

/* `j` may be NULL: then they are only checked. */
static const char *take_piece(struct once__journal *j,
                              const struct once__saved_head *h,
                              struct once__saved_block *blocks, uint64_t number,
                              uint64_t n, uint64_t *slots)
{
    const char *why = NULL;
    uint64_t i;

    for (i = 0; why == NULL && i < n; i++) {
        why = check_block(h, &blocks[i], number + i);
        *slots += blocks[i].count;
        if (why == NULL && j != NULL)
            why = load_block(j, &blocks[i]);
    }
    if (j != NULL)
        atomic_fetch_add(&j->shared->recovered, n * sizeof(*blocks));
    return why;
}

static const char *take_blocks(struct once__journal *j,
                               const struct once__saved_head *h, int fd)
{
    struct once__saved_block *blocks = malloc(PIECE * sizeof(*blocks));
    const char *why = blocks == NULL ? "out of memory" : NULL;
    uint64_t number, n, slots = 0;

    for (number = 0; why == NULL && number < h->blocks; number += n) {
        n = h->blocks - number < PIECE ? h->blocks - number : PIECE;
        if (number % AHEAD == 0)
            (void)posix_fadvise(fd, (off_t)once__saved_block_at(number + n),
                                (off_t)(2 * AHEAD * sizeof(*blocks)),
                                POSIX_FADV_WILLNEED);
        if (once__file_read(fd, blocks, n * sizeof(*blocks),
                            once__saved_block_at(number)) != 1)
            why = DAMAGED;
        else
            why = take_piece(j, h, blocks, number, n, &slots);
    }
    free(blocks);
    return why == NULL && slots != h->slots ? DAMAGED : why;
}

const char *once__saved_load(struct once__journal *j, uint64_t needed,
                             uint64_t end, struct once__saved *out)
{
    int fd = once__file_open_in(j->folder, ONCE__JOURNAL_INDEX, O_RDONLY);
    struct once__saved_head h;
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

void once__saved_remove(const struct once__journal *j)
{
    (void)unlinkat(j->folder, ONCE__JOURNAL_INDEX, 0);
}

const char *once__saved_check(int folder)
{
    int fd = once__file_open_in(folder, ONCE__JOURNAL_INDEX, O_RDONLY);
    struct once__saved_head h;
    const char *why;

    if (fd < 0)
        return errno == ENOENT ? NULL : strerror(errno);
    why = read_head(fd, &h);
    if (why == NULL)
        why = take_blocks(NULL, &h, fd);
    (void)close(fd);
    return why;
}
