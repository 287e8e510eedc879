/* SPDX-License-Identifier: Apache-2.0 */
/* path.c - see path.h. */
#include "store/path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

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
    if (realpath(folder, real) == NULL)
        return once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(errno));
    *out = join(real, last);
    if (*out != NULL)
        return ONCE_OK;
    return errno == ENAMETOOLONG
               ? once__fail(err, ONCE_EURL, "%s: the path is too long", store)
               : once__fail(err, ONCE_ENOMEM, "out of memory");
}

int once__path_sync_folder(const char *path)
{
    char *copy = strdup(path), *slash;
    int fd, failed;

    if (copy == NULL)
        return -1;
    slash = strrchr(copy, '/');
    slash[slash == copy] = '\0';
    fd = open(copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(copy);
    if (fd < 0)
        return -1;
    failed = fsync(fd);
    (void)close(fd);
    return failed;
}
