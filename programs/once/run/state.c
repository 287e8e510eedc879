/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - the folder in which `once run` keeps what it must find again: the
 * store, where none is named, and long output.
 *
 * The XDG Base Directory Specification: $XDG_STATE_HOME, if it is absolute, or
 * ~/.local/state; what is not there is made with mode 0700. It refuses a path
 * that could not stand in a store's URL.
 */
#include "programs/once/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/path.h"

char *run_state_path(void)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int n;

    if (xdg != NULL && xdg[0] == '/') {
        n = asprintf(&path, "%s/once", xdg);
    } else if (home != NULL && home[0] == '/') {
        n = asprintf(&path, "%s/.local/state/once", home);
    } else {
        errno = ENOENT;
        return NULL;
    }
    if (n >= 0)
        return path;
    errno = ENOMEM;
    return NULL;
}

/* Whoever may make entries in a folder need not be allowed to read it, and then
 * cannot open it. What was made in it leads to the same file system. */
int run_flush_name(const char *path)
{
    int fd, rc = once__path_sync_folder(path);

    if (rc == 0 || errno != EACCES)
        return rc;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    rc = syncfs(fd);
    (void)close(fd);
    return rc;
}

/* A folder that a power cut takes away would take the store along. */
static int make(const char *path)
{
    return mkdir(path, 0700) < 0 ? -1 : run_flush_name(path);
}

/* Makes every folder on the way; 0 or -1 and errno. */
static int make_all(char *path)
{
    char *p;

    for (p = path + 1; *p != '\0'; p++) {
        int rc;

        if (*p != '/')
            continue;
        *p = '\0';
        rc = make(path);
        *p = '/';
        if (rc < 0 && errno != EEXIST && errno != EROFS && errno != EACCES)
            return -1;
    }
    return make(path) < 0 && errno != EEXIST ? -1 : 0;
}

char *run_state_folder(void)
{
    char *path = run_state_path();

    if (path == NULL)
        return NULL;
    if (make_all(path) == 0)
        return path;
    free(path);
    return NULL;
}

char *run_state_store(void)
{
    char *folder = run_state_folder(), *url = NULL;

    if (folder == NULL)
        return NULL;
    if (strchr(folder, '?') != NULL)
        errno = EINVAL;
    else if (asprintf(&url, "sqlite:%s/store.db", folder) < 0) {
        url = NULL;
        errno = ENOMEM;
    }
    free(folder);
    return url;
}
