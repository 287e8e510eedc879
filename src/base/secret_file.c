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

/* The user need not be the one who has started the program. */
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

int once__secret_read(const char *path, char *out, size_t size, once_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    ssize_t n;

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
    n = read(fd, out, size);
    (void)close(fd);
    if (n <= 0 || (size_t)n == size) {
        explicit_bzero(out, size);
        return once__secret_fail(
            path, n < 0 ? strerror(errno) : "it is empty or too long", err);
    }
    out[n] = '\0';
    out[strcspn(out, "\r\n")] = '\0';
    return ONCE_OK;
}
