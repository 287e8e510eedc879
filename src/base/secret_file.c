/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret_file.c - the one place that reads a file with a password or a token.
 *
 * The mode that is checked (secret.h) is that of the file that was opened.
 */
#include "base/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/secret.h"

/* nginx starts as root, and its workers run as another user: the text names the user. */
int once__secret_fail(const char *path, const char *why, once_error *err)
{
    char space[4096], number[24];
    struct passwd entry, *found = NULL;
    uid_t user = geteuid();

    (void)snprintf(number, sizeof(number), "%ld", (long)user);
    if (getpwuid_r(user, &entry, space, sizeof(space), &found) != 0)
        found = NULL;
    return once__fail(err, ONCE_EOPEN, "secret file \"%s\" for user %s: %s",
                      path, found != NULL ? found->pw_name : number, why);
}

/* The first line is there, or the end of the file, or `size` bytes are: how many, or
 * below zero. */
static ssize_t read_line(int fd, char *out, size_t size)
{
    size_t got = 0;
    ssize_t n;

    while (got < size && memchr(out, '\n', got) == NULL) {
        n = read(fd, out + got, size - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return n;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

int once__secret_read(const char *path, char *out, size_t size, once_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    size_t used;
    ssize_t n;
    int failed;

    if (fd < 0 || fstat(fd, &st) != 0) {
        n = errno;
        if (fd >= 0)
            (void)close(fd);
        return once__secret_fail(path, strerror((int)n), err);
    }
    if (once__secret_mode(path, &st, err) != ONCE_OK) {
        (void)close(fd);
        return ONCE_EOPEN;
    }
    n = read_line(fd, out, size);
    failed = n < 0 ? errno : 0;
    (void)close(fd);
    if (n <= 0 || ((size_t)n == size && memchr(out, '\n', size) == NULL)) {
        explicit_bzero(out, size);
        return once__secret_fail(path,
                                 failed != 0 ? strerror(failed)
                                 : n == 0    ? "it is empty"
                                             : "its first line is too long",
                                 err);
    }
    for (used = 0; used < (size_t)n && strchr("\r\n", out[used]) == NULL;
         used++)
        ;
    explicit_bzero(out + used, size - used); /* what follows may be one, too */
    return ONCE_OK;
}
