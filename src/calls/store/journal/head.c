/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head.c - DIR/head: which store this is, and how often it was restored.
 *
 *    0 "oncehead"  8 id (16)  24 incarnation (4)  28 gap (4)
 *   32 gap_from_ms (8)       40 gap_until_ms (8)
 *   48 CRC-32C of the 48 bytes before
 *
 * It is written whole beside the old one, flushed and renamed: there is always
 * one that is whole. It is on the disk before the first segment is, so a
 * journal without it was damaged, and is refused: what fences were granted by
 * an earlier incarnation cannot be told without it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "calls/core/bounds.h"
#include "calls/store/journal/handle.h"

enum { SUMMED = 48, SIZE = 52 };

static const char magic[8] = {'o', 'n', 'c', 'e', 'h', 'e', 'a', 'd'};

static void encode(uint8_t *p, const once_store_head *h)
{
    memcpy(p, magic, sizeof(magic));
    memcpy(p + 8, h->id, ONCE_STORE_ID_SIZE);
    once__put(p + 24, h->incarnation, 4);
    once__put(p + 28, h->gap, 4);
    once__put(p + 32, h->gap_from_ms, 8);
    once__put(p + 40, h->gap_until_ms, 8);
    once__put(p + SUMMED, once__crc32c(0, p, SUMMED), 4);
}

/* 1 if the bytes are ours. */
static int decode(const uint8_t *p, once_store_head *h)
{
    if (memcmp(p, magic, sizeof(magic)) != 0 ||
        once__get(p + SUMMED, 4) != once__crc32c(0, p, SUMMED))
        return 0;
    memset(h, 0, sizeof(*h));
    memcpy(h->id, p + 8, ONCE_STORE_ID_SIZE);
    h->incarnation = (uint32_t)once__get(p + 24, 4);
    h->gap = (uint32_t)once__get(p + 28, 4);
    h->gap_from_ms = once__get(p + 32, 8);
    h->gap_until_ms = once__get(p + 40, 8);
    return once__head_sane(h);
}

int once__journal_head_load(int folder, const char *path, once_store_head *out,
                            once_error *err)
{
    uint8_t bytes[SIZE];
    int fd = once__file_open_in(folder, ONCE__JOURNAL_STORE_HEAD, O_RDONLY);
    int rc = fd < 0 ? -1 : once__file_read(fd, bytes, sizeof(bytes), 0);
    int number = errno;

    if (fd >= 0)
        (void)close(fd);
    if (fd < 0 && number == ENOENT)
        return once__fail(err, ONCE_ECORRUPT,
                          "%s/%s: the file is missing: without it fences might "
                          "be granted twice",
                          path, ONCE__JOURNAL_STORE_HEAD);
    if (rc < 0)
        return once__fail(err, ONCE_EOPEN, "%s/%s: %s", path,
                          ONCE__JOURNAL_STORE_HEAD, strerror(number));
    if (rc == 0 || !decode(bytes, out))
        return once__fail(err, ONCE_ECORRUPT, "%s/%s: it fails its checksum",
                          path, ONCE__JOURNAL_STORE_HEAD);
    return ONCE_OK;
}

static int write_next(int folder, const uint8_t bytes[SIZE])
{
    int fd, rc;

    (void)unlinkat(folder, ONCE__JOURNAL_NEXT_HEAD, 0);
    fd = once__file_create(folder, ONCE__JOURNAL_NEXT_HEAD);
    if (fd < 0)
        return -1;
    rc = once__file_write(fd, bytes, SIZE, 0);
    if (rc == 0)
        rc = fsync(fd);
    (void)close(fd);
    return rc;
}

int once__journal_head_save(const struct once__journal *j,
                            const once_store_head *h, once_error *err)
{
    uint8_t bytes[SIZE];

    encode(bytes, h);
    if (write_next(j->folder, bytes) == 0 &&
        renameat(j->folder, ONCE__JOURNAL_NEXT_HEAD, j->folder,
                 ONCE__JOURNAL_STORE_HEAD) == 0 &&
        fsync(j->folder) == 0)
        return ONCE_OK;
    return once__fail(err, ONCE_EOPEN, "%s/%s: writing it: %s", j->path,
                      ONCE__JOURNAL_STORE_HEAD, strerror(errno));
}

int once__journal_head_make(const struct once__journal *j, once_error *err)
{
    once_store_head h = {.incarnation = 0};

    if (faccessat(j->folder, ONCE__JOURNAL_STORE_HEAD, F_OK, 0) == 0)
        return ONCE_OK; /* one who died while making the journal made it */
    if (getrandom(h.id, sizeof(h.id), 0) != (ssize_t)sizeof(h.id))
        return once__fail(err, ONCE_EOPEN, "%s: no random numbers", j->path);
    return once__journal_head_save(j, &h, err);
}
