/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.c - files of a journal, whatever is in them: reading and writing all of
 * something, and whose a new file is.
 *
 * Files belong to the owner of the folder, also when root creates them: the
 * other processes of the store must be able to open them.
 */
#include "calls/store/journal/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { PIECE = 1 << 20 }; /* bytes that are written again at a time */

int once__file_identify(int fd, struct once__identity *out)
{
    struct statx st;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &st) != 0)
        return -1;
    out->device = makedev(st.stx_dev_major, st.stx_dev_minor);
    out->inode = st.stx_ino;
    out->born = 0;
    if (st.stx_mask & STATX_BTIME)
        out->born =
            (uint64_t)st.stx_btime.tv_sec * 1000000000 + st.stx_btime.tv_nsec;
    return 0;
}

int once__file_open_in(int folder, const char *name, int flags)
{
    int fd =
        openat(folder, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    struct stat st;

    if (fd < 0 || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)))
        return fd;
    (void)close(fd);
    errno = EMEDIUMTYPE;
    return -1;
}

static mode_t mode_like(const struct stat *like)
{
    return like->st_mode & S_IWGRP ? 0660 : 0600;
}

int once__file_set_owner(int like, int fd)
{
    struct stat st, own;
    mode_t mode;

    if (fstat(like, &st) != 0 || fstat(fd, &own) != 0)
        return -1;
    mode = mode_like(&st);
    if ((own.st_uid != st.st_uid || own.st_gid != st.st_gid) &&
        fchown(fd, geteuid() == 0 ? st.st_uid : (uid_t)-1, st.st_gid) != 0)
        mode = 0600; /* not ours to give away */
    return fchmod(fd, mode);
}

/* Of a folder or file of a group all its members are owners; what we own only we
 * can have made, or root. */
int once__file_is_owned_like(int like, int fd)
{
    struct stat st, own;
    mode_t mode;

    if (fstat(like, &st) != 0 || fstat(fd, &own) != 0)
        return 0;
    mode = own.st_mode & 07777;
    if (!S_ISREG(own.st_mode) || own.st_nlink > 1 ||
        (mode != 0600 && mode != mode_like(&st)))
        return 0;
    if (mode != 0600 && own.st_gid != st.st_gid)
        return 0;
    return own.st_uid == st.st_uid || own.st_uid == geteuid() ||
           own.st_uid == 0 || mode != 0600;
}

int once__file_create(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd >= 0 && once__file_set_owner(folder, fd) != 0) {
        (void)close(fd);
        (void)unlinkat(folder, name, 0);
        return -1;
    }
    return fd;
}

int once__file_read(int fd, void *out, size_t size, uint64_t offset)
{
    uint8_t *to = out;
    ssize_t n;

    while (size > 0) {
        n = pread(fd, to, size, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? 0 : -1;
        to += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 1;
}

int once__file_write(int fd, const void *bytes, size_t size, uint64_t offset)
{
    const uint8_t *from = bytes;
    ssize_t n;

    while (size > 0) {
        n = pwrite(fd, from, size, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? EIO : errno;
            return -1;
        }
        from += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static int rewrite_piece(int fd, uint8_t *bytes, uint64_t from, size_t n)
{
    if (once__file_read(fd, bytes, n, from) != 1)
        return -1;
    return once__file_write(fd, bytes, n, from);
}

int once__file_rewrite(int fd, uint64_t from, uint64_t to)
{
    uint8_t *bytes = malloc(PIECE);
    int rc = bytes == NULL ? -1 : 0;
    size_t n;

    for (; rc == 0 && from < to; from += n) {
        n = to - from < PIECE ? (size_t)(to - from) : PIECE;
        rc = rewrite_piece(fd, bytes, from, n);
    }
    free(bytes);
    return rc;
}
