/* SPDX-License-Identifier: Apache-2.0 */
/*
 * time.c - DIR/clock: what was seen of the time.
 *
 *    0 "oncetime"  8 number  16 seen_ms  24 steady_ms  32 host (16)
 *   48 backs  56 CRC-32C of the 56 bytes before
 *
 * Twice, in two sectors: the older one is written over, so that a torn write
 * leaves the other. The larger number is the younger one. It is no part of the
 * log: a host that loses it has lost a guard against a wrong clock, and no
 * record.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "calls/store/journal/handle.h"

enum { SIZE = 60, SECTOR = 512 };

static const char magic[8] = {'o', 'n', 'c', 'e', 't', 'i', 'm', 'e'};

/* 1 if the bytes are ours. */
static int decode(const uint8_t *p, uint64_t *number, once_store_time *out)
{
    if (memcmp(p, magic, sizeof(magic)) != 0 ||
        once__get(p + 56, 4) != once__crc32c(0, p, 56))
        return 0;
    *number = once__get(p + 8, 8);
    out->seen_ms = once__get(p + 16, 8);
    out->steady_ms = once__get(p + 24, 8);
    memcpy(out->host, p + 32, ONCE_HOST_SIZE);
    out->backs = once__get(p + 48, 8);
    return 1;
}

static void encode(uint8_t *p, uint64_t number, const once_store_time *t)
{
    memcpy(p, magic, sizeof(magic));
    once__put(p + 8, number, 8);
    once__put(p + 16, t->seen_ms, 8);
    once__put(p + 24, t->steady_ms, 8);
    memcpy(p + 32, t->host, ONCE_HOST_SIZE);
    once__put(p + 48, t->backs, 8);
    once__put(p + 56, once__crc32c(0, p, 56), 4);
}

/* The younger one, and its number; 0 if there is none. -1: damaged. */
static int load(int fd, uint64_t *number, once_store_time *out)
{
    uint8_t bytes[SECTOR + SIZE];
    ssize_t n = pread(fd, bytes, sizeof(bytes), 0);
    once_store_time t = {.now_ms = 0};
    uint64_t one;
    int i, good = 0;

    *number = 0;
    if (n < 0)
        return -1;
    for (i = 0; i < 2 && n >= i * SECTOR + SIZE; i++) {
        if (!decode(bytes + i * SECTOR, &one, &t))
            continue;
        good = 1;
        if (one > *number) {
            *number = one;
            *out = t;
        }
    }
    return good || n == 0 ? 0 : -1;
}

static int save(int fd, uint64_t number, const once_store_time *t)
{
    uint8_t bytes[SIZE];

    encode(bytes, number, t);
    if (pwrite(fd, bytes, SIZE, number % 2 == 0 ? SECTOR : 0) != SIZE)
        return -1;
    return fdatasync(fd);
}

static int open_file(const struct once__journal *j, int make)
{
    int fd = once__file_open_in(j->folder, ONCE__JOURNAL_CLOCK,
                                j->read_only ? O_RDONLY : O_RDWR);

    if (fd >= 0 || errno != ENOENT || !make)
        return fd;
    fd = once__file_create(j->folder, ONCE__JOURNAL_CLOCK);
    if (fd >= 0)
        (void)fsync(j->folder);
    else if (errno == EEXIST)
        fd = once__file_open_in(j->folder, ONCE__JOURNAL_CLOCK, O_RDWR);
    return fd;
}

int once__journal_time(const struct once__journal *j,
                       const once_store_time *put, once_store_time *out,
                       once_error *err)
{
    uint64_t number = 0;
    int fd = open_file(j, put != NULL), code = ONCE_OK;

    memset(out, 0, sizeof(*out));
    if (fd < 0 && errno == ENOENT)
        return ONCE_OK; /* nothing was put yet */
    if (fd < 0 || load(fd, &number, out) != 0 ||
        (put != NULL && save(fd, number + 1, put) != 0))
        code = once__fail(err, ONCE_ESTORE,
                          "%s/%s: it cannot be used, or is damaged", j->path,
                          ONCE__JOURNAL_CLOCK);
    else if (put != NULL)
        *out = *put;
    if (fd >= 0)
        (void)close(fd);
    return code;
}
