/* SPDX-License-Identifier: Apache-2.0 */
/* place.c - device and inode of what a store has open: see place.h. */
#include "calls/store/place.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/steady.h"

/* Short, since a claim that is written meanwhile takes its key with it until
 * its lease has expired, also when the file is back. */
enum { GLANCE_MS = 20 };

/* The program may change its folder, so the path must not depend on it. Links
 * stay in it: one that leads elsewhere tomorrow leads others there. */
static int absolute(const char *path, size_t length, const char *tail,
                    char *out)
{
    size_t used = 0;
    int n;

    if (length == 0 || path[0] != '/') {
        if (getcwd(out, PATH_MAX) == NULL)
            return 0;
        used = strlen(out);
    }
    n = snprintf(out + used, PATH_MAX - used, "%s%.*s%s", used > 1 ? "/" : "",
                 (int)length, path, tail);
    return n >= 0 && (size_t)n < PATH_MAX - used;
}

int once__places_note(struct once__places *p, const char *path, size_t length,
                      const char *tail, int fd, once_error *err)
{
    struct once__place *place = &p->place[p->count];
    char whole[PATH_MAX];
    struct stat st;

    errno = ENAMETOOLONG;
    if (length >= PATH_MAX || !absolute(path, length, tail, whole) ||
        (fd < 0 ? stat(whole, &st) : fstat(fd, &st)) != 0)
        return once__fail(err, ONCE_EOPEN, "%.*s%s: %s",
                          (int)(length < 200 ? length : 200), path, tail,
                          strerror(errno));
    place->path = strdup(whole);
    if (place->path == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    place->device = st.st_dev;
    place->inode = st.st_ino;
    p->count++;
    return ONCE_OK;
}

static int look(const struct once__place *p, once_error *err)
{
    struct stat st;

    if (stat(p->path, &st) != 0)
        return once__fail(err, ONCE_ESTORE,
                          "%s: it is open here, but no longer at its path "
                          "(%s): no answers until it is back or opened again",
                          p->path, strerror(errno));
    if (st.st_dev != p->device || st.st_ino != p->inode)
        return once__fail(err, ONCE_ESTORE,
                          "%s: it was replaced while it was open here: no "
                          "answers until it is back or opened again",
                          p->path);
    return ONCE_OK;
}

int once__places_look(struct once__places *p, once_error *err)
{
    size_t i;

    p->looked_ms = 0;
    for (i = 0; i < p->count; i++)
        if (look(&p->place[i], err) != ONCE_OK)
            return ONCE_ESTORE;
    p->looked_ms = once__steady_ms();
    return ONCE_OK;
}

int once__places_glance(struct once__places *p, once_error *err)
{
    if (p->looked_ms != 0 && once__steady_ms() - p->looked_ms < GLANCE_MS)
        return ONCE_OK;
    return once__places_look(p, err);
}

int once__place_is(const struct once__place *p, int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && st.st_dev == p->device &&
           st.st_ino == p->inode;
}

void once__places_clear(struct once__places *p)
{
    while (p->count > 0)
        free(p->place[--p->count].path);
}
