/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clockshim.c - moves the wall clock of one process tree, for LD_PRELOAD.
 *
 * ONCE_CLOCKSHIM names a file with one or two int64_t: how many milliseconds the
 * wall clock is ahead, and CLOCK_BOOTTIME: both, and time has passed; the first
 * alone, and the clock was set. Every process that has mapped it sees a change
 * at once, also those that were forked. Other clocks are left alone.
 *
 * With ONCE_CLOCKSHIM_WAITS the process waits at condition variables until a time
 * of its wall clock, as MariaDB does: the kernel is told that time by its own.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_ms;
static int waits;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("ONCE_CLOCKSHIM");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED
                       : mmap(NULL, 2 * sizeof(*ahead_ms), PROT_READ,
                              MAP_SHARED, fd, 0);

    if (map == MAP_FAILED)
        abort(); /* without a clock to move the test would prove nothing */
    ahead_ms = map;
    waits = getenv("ONCE_CLOCKSHIM_WAITS") != NULL;
    (void)close(fd);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t id,
                                                         struct timespec *t)
{
    int (*real)(clockid_t, struct timespec *);
    int64_t ms = 0;
    int rc;

    if (ahead_ms != NULL && id == CLOCK_REALTIME)
        ms = ahead_ms[0];
    if (ahead_ms != NULL && id == CLOCK_BOOTTIME)
        ms = ahead_ms[1]; /* behind the end of a short file: 0 */

    *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    rc = real(id, t);
    t->tv_sec += rc == 0 ? ms / 1000 : 0;
    return rc;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *t,
                                                        void *zone)
{
    struct timespec now;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

__attribute__((visibility("default"))) int
pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                       const struct timespec *until)
{
    int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec t = *until;

    if (ahead_ms != NULL && waits)
        t.tv_sec -= ahead_ms[0] / 1000;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return real(cond, mutex, &t);
}
