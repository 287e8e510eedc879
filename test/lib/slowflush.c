/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slowflush.c - a disk that takes its time, for LD_PRELOAD into mariadbd or
 * mysqld.
 *
 * While the file that ONCE_SLOWFLUSH names exists, each flush of InnoDB's redo
 * log takes three seconds. So a test has the time to look at a commit that can
 * be seen and is not durable.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SECONDS = 3 };

static int is_slow(int fd)
{
    const char *path = getenv("ONCE_SLOWFLUSH");
    char link[64], name[512];
    ssize_t n;

    if (path == NULL || access(path, F_OK) != 0)
        return 0;
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, name, sizeof(name) - 1);
    if (n < 0)
        return 0;
    name[n] = '\0';
    return strstr(name, "ib_logfile") != NULL ||
           strstr(name, "ib_redo") != NULL;
}

static int flush(const char *call, int fd)
{
    int (*next)(int) = (int (*)(int))(size_t)dlsym(RTLD_NEXT, call);

    if (is_slow(fd))
        (void)sleep(SECONDS);
    return next(fd);
}

int fsync(int fd)
{
    return flush("fsync", fd);
}

int fdatasync(int fd)
{
    return flush("fdatasync", fd);
}
