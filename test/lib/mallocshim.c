/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mallocshim.c - refuses allocations of a process tree, for LD_PRELOAD.
 *
 * ONCE_MALLOCSHIM names a file with three int64_t: after how many more
 * allocations one is refused (0: never), how many are refused from there on,
 * and how many have been. All who have mapped it count down together, so that
 * a test arms it when its gateway is up, and reads there whether it was met.
 * aligned_alloc and mmap are left alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct plan {
    _Atomic int64_t left, refusals, refused;
};

static struct plan *plan;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("ONCE_MALLOCSHIM");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED
                       : mmap(NULL, sizeof(*plan), PROT_READ | PROT_WRITE,
                              MAP_SHARED, fd, 0);

    if (map == MAP_FAILED)
        abort(); /* without a plan the test would prove nothing */
    plan = map;
    (void)close(fd);
}

static int refused(void)
{
    if (plan == NULL || atomic_load(&plan->refusals) <= 0)
        return 0;
    if (atomic_fetch_sub(&plan->left, 1) > 1)
        return 0;
    if (atomic_fetch_sub(&plan->refusals, 1) <= 0)
        return 0;
    atomic_fetch_add(&plan->refused, 1);
    errno = ENOMEM;
    return 1;
}

#define SHOWN __attribute__((visibility("default")))

SHOWN void *malloc(size_t size)
{
    return refused() ? NULL : __libc_malloc(size);
}

SHOWN void *calloc(size_t n, size_t size)
{
    return refused() ? NULL : __libc_calloc(n, size);
}

SHOWN void *realloc(void *old, size_t size)
{
    return refused() ? NULL : __libc_realloc(old, size);
}

SHOWN int posix_memalign(void **out, size_t alignment, size_t size)
{
    void *block;

    if (refused())
        return ENOMEM;
    block = __libc_memalign(alignment, size);
    if (block == NULL)
        return ENOMEM;
    *out = block;
    return 0;
}
