/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flushshim.c - lets the disk of a process fail, for LD_PRELOAD.
 *
 * ONCE_FLUSHSHIM names a file with two int64_t. While bit 0 of the first is set,
 * fsync() and fdatasync() fail with EIO in every process that has mapped it;
 * while bit 1 is set, writes to files do. The second counts the failures. The
 * writes are those that PostgreSQL and Redis call.
 *
 * When a flush fails, what was appended since the last one is lost, in a file
 * that write() appends to, as Redis's is: who answered before the flush is found
 * out. Otherwise it stays where it is, as in the kernel's memory.
 */
#undef _FILE_OFFSET_BITS /* they were built without: pwrite, not pwrite64 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FLUSHES = 1, WRITES = 2 };

static struct {
    _Atomic int64_t failing, failed;
} * plan;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("ONCE_FLUSHSHIM");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED
                       : mmap(NULL, sizeof(*plan), PROT_READ | PROT_WRITE,
                              MAP_SHARED, fd, 0);

    if (map == MAP_FAILED)
        abort(); /* without a flush to fail the test would prove nothing */
    plan = map;
    (void)close(fd);
}

static int fails(int64_t what)
{
    if (plan == NULL || (atomic_load(&plan->failing) & what) == 0)
        return 0;
    atomic_fetch_add(&plan->failed, 1);
    errno = EIO;
    return 1;
}

/* Not of sockets and pipes, and not of what a server writes into its log. */
static int write_fails(int fd)
{
    struct stat st;

    return plan != NULL && (atomic_load(&plan->failing) & WRITES) != 0 &&
           fd > STDERR_FILENO && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
           fails(WRITES);
}

/* How much of a file that is appended to was flushed, by descriptor. */
static struct {
    ino_t node;
    off_t flushed;
} appended[1024];

static int is_appended(int fd, struct stat *st)
{
    return fd > STDERR_FILENO &&
           (size_t)fd < sizeof(appended) / sizeof(appended[0]) &&
           fstat(fd, st) == 0 && S_ISREG(st->st_mode) &&
           (fcntl(fd, F_GETFL) & O_APPEND) != 0;
}

/* What is there when the first byte is appended was flushed before. */
static void note_append(int fd)
{
    struct stat st;

    if (is_appended(fd, &st) && appended[fd].node != st.st_ino) {
        appended[fd].node = st.st_ino;
        appended[fd].flushed = st.st_size;
    }
}

static void lose_appended(int fd)
{
    struct stat st;

    if (is_appended(fd, &st) && appended[fd].node == st.st_ino &&
        ftruncate(fd, appended[fd].flushed) != 0)
        abort();
    errno = EIO;
}

#define SHOWN __attribute__((visibility("default")))

/* The function of this name, as the program would have had it. */
#define REAL(name) *(void **)&real = dlsym(RTLD_NEXT, name)

static int flush(const char *name, int fd)
{
    int (*real)(int);
    int rc, known;
    struct stat st;

    if (fails(FLUSHES)) {
        lose_appended(fd);
        return -1;
    }
    known = is_appended(fd, &st) && appended[fd].node == st.st_ino;
    REAL(name);
    rc = real(fd);
    if (rc == 0 && known)
        appended[fd].flushed = st.st_size;
    return rc;
}

SHOWN int fsync(int fd)
{
    return flush("fsync", fd);
}

SHOWN int fdatasync(int fd)
{
    return flush("fdatasync", fd);
}

SHOWN ssize_t write(int fd, const void *bytes, size_t size)
{
    ssize_t (*real)(int, const void *, size_t);

    if (write_fails(fd))
        return -1;
    note_append(fd);
    REAL("write");
    return real(fd, bytes, size);
}

SHOWN ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at)
{
    ssize_t (*real)(int, const void *, size_t, off_t);

    if (write_fails(fd))
        return -1;
    REAL("pwrite");
    return real(fd, bytes, size, at);
}

SHOWN ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
    ssize_t (*real)(int, const struct iovec *, int, off_t);

    if (write_fails(fd))
        return -1;
    REAL("pwritev");
    return real(fd, parts, count, at);
}
