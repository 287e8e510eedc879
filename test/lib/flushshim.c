/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flushshim.c - lets the flushes of a process fail, for LD_PRELOAD.
 *
 * ONCE_FLUSHSHIM names a file with one int64_t. While it is not 0, fsync() and
 * fdatasync() fail with EIO in every process that has mapped it; what was
 * written stays where it is, as in the kernel's memory after a failed write.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static const volatile int64_t *failing;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("ONCE_FLUSHSHIM");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *map =
        fd < 0 ? MAP_FAILED
               : mmap(NULL, sizeof(*failing), PROT_READ, MAP_SHARED, fd, 0);

    if (map == MAP_FAILED)
        abort(); /* without a flush to fail the test would prove nothing */
    failing = map;
    (void)close(fd);
}

static int flush(const char *name, int fd)
{
    int (*real)(int);

    if (failing != NULL && *failing != 0) {
        errno = EIO;
        return -1;
    }
    *(void **)&real = dlsym(RTLD_NEXT, name);
    return real(fd);
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    return flush("fsync", fd);
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    return flush("fdatasync", fd);
}
