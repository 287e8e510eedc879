/* SPDX-License-Identifier: Apache-2.0 */
/* path.c - see path.h. */
#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

enum { LINKS = 8 }; /* that are followed, one after the other */

/* "FOLDER/LAST", or ENAMETOOLONG. */
static char *join(const char *folder, const char *last)
{
    const char *head = strcmp(folder, "/") == 0 ? "" : folder;
    const size_t n = strlen(head), m = strlen(last);
    char *out;

    if (n + m + 2 > PATH_MAX) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    out = malloc(n + m + 2);
    if (out != NULL) {
        memcpy(out, head, n);
        out[n] = '/';
        memcpy(out + n + 1, last, m + 1);
    }
    return out;
}

int once__path_absolute(const char *store, const char *path, char **out,
                        once_error *err)
{
    const char *slash = strrchr(path, '/');
    const char *last = slash == NULL ? path : slash + 1;
    char folder[PATH_MAX], real[PATH_MAX];
    size_t length =
        slash == NULL ? 0 : (size_t)(slash - path) + (slash == path);

    if (*last == '\0')
        return once__fail(err, ONCE_EURL, "%s: \"%s\" names no file", store,
                          path);
    if (length >= sizeof(folder))
        return once__fail(err, ONCE_EURL, "%s: the path is too long", store);
    memcpy(folder, slash == NULL ? "." : path, slash == NULL ? 1 : length);
    folder[slash == NULL ? 1 : length] = '\0';
    if (realpath(folder, real) == NULL) {
        int number = errno;

        (void)once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(number));
        errno = number;
        return ONCE_EOPEN;
    }
    *out = join(real, last);
    if (*out != NULL)
        return ONCE_OK;
    return errno == ENAMETOOLONG
               ? once__fail(err, ONCE_EURL, "%s: the path is too long", store)
               : once__fail(err, ONCE_ENOMEM, "out of memory");
}

/* The text of the link at `path`, to be freed; NULL: it is none. */
static char *read_link(const char *path)
{
    char target[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof(target) - 1);

    while (n > 1 && target[n - 1] == '/')
        n--;
    return n < 0 ? NULL : strndup(target, (size_t)n);
}

/* 1 if a link may be followed. */
static int is_link_of_ours(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && (st.st_uid == 0 || st.st_uid == geteuid());
}

/* Where the link at `from` leads, if it says `target`. */
static int follow(const char *store, const char *from, const char *target,
                  char **out, once_error *err)
{
    char *folder = strndup(from, (size_t)(strrchr(from, '/') - from) + 1);
    char *path = NULL;
    int code = ONCE_ENOMEM;

    if (folder != NULL)
        path = target[0] == '/' ? strdup(target) : join(folder, target);
    if (path != NULL)
        code = once__path_absolute(store, path, out, err);
    else
        (void)once__fail(err, code, "out of memory");
    free(path);
    free(folder);
    return code;
}

int once__path_resolve(const char *store, const char *path, char **out,
                       once_error *err)
{
    char *target, *link = NULL;
    int links, code = once__path_absolute(store, path, out, err);

    for (links = 0; code == ONCE_OK; links++) {
        target = read_link(*out);
        if (target == NULL)
            return ONCE_OK;
        link = *out;
        *out = NULL;
        if (links == LINKS)
            code = once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(ELOOP));
        else if (!is_link_of_ours(link))
            code = once__fail(err, ONCE_EOPEN,
                              "%s: a link that belongs to another user is not "
                              "followed",
                              link);
        else
            code = follow(store, link, target, out, err);
        free(link);
        free(target);
    }
    return code;
}

int once__path_sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder =
        slash == NULL ? strdup(".")
                      : strndup(path, (size_t)(slash - path) + (slash == path));
    int fd, failed;

    if (folder == NULL)
        return -1;
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    if (fd < 0)
        return -1;
    failed = fsync(fd);
    (void)close(fd);
    return failed;
}
