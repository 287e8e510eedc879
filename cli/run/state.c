/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - the folder in which `once run` keeps what it must find again: the
 * store, where none is named, and long output.
 *
 * The XDG Base Directory Specification: $XDG_STATE_HOME, if it is absolute, or
 * ~/.local/state; what is not there is made with mode 0700. It refuses a path
 * that could not stand in a store's URL.
 */
#include "run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

static const char *base(const char **behind)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");

    if (xdg != NULL && xdg[0] == '/') {
        *behind = "/once";
        return xdg;
    }
    if (home != NULL && home[0] == '/') {
        *behind = "/.local/state/once";
        return home;
    }
    errno = ENOENT;
    return NULL;
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
        rc = mkdir(path, 0700);
        *p = '/';
        if (rc < 0 && errno != EEXIST && errno != EROFS && errno != EACCES)
            return -1;
    }
    return mkdir(path, 0700) < 0 && errno != EEXIST ? -1 : 0;
}

char *run_state_folder(void)
{
    const char *behind = NULL, *in = base(&behind);
    char *path = NULL;

    if (in == NULL)
        return NULL;
    if (asprintf(&path, "%s%s", in, behind) < 0) {
        errno = ENOMEM;
        return NULL;
    }
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
