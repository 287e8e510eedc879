/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stray.c - finds and removes shared memory of journals that no process has
 * open.
 *
 * A process that uses it has it open, from the moment at which it is made
 * (shared.c): if it is not among any open files, its journal is closed, and
 * the next to open that makes another one where this one is gone. So it need
 * not be known which journal it was of.
 *
 * A process that was opening the journal when the last other one was killed may
 * attach after we looked. It is in the midst of a few system calls, so we look
 * again a second later.
 *
 * Processes in another PID namespace cannot be seen. What belongs to one, as it
 * says itself, is left alone.
 */
#include "calls/store/journal/stray.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "calls/store/journal/shared.h"

struct stray {
    struct stray *next;
    char name[ONCE__SHARED_NAME]; /* as shm_unlink() needs it */
    dev_t device;
    ino_t inode;
    uint64_t bytes;
    int used;
};

/* ---- What is there ------------------------------------------------------- */

/* Of a journal, of this version, made in this PID namespace. */
static int is_ours(int fd, const struct stat *pids)
{
    struct once__shared *s = malloc(sizeof(*s));
    int ours = 0;

    if (s == NULL)
        return 0;
    if (once__file_read(fd, s, offsetof(struct once__shared, home), 0) == 1)
        ours = s->magic == ONCE__SHARED_MAGIC &&
               s->version == ONCE__JOURNAL_VERSION && s->size == sizeof(*s) &&
               s->pids.device == pids->st_dev && s->pids.inode == pids->st_ino;
    free(s);
    return ours;
}

/* 0: no file. Adds it to the list if it is one of ours. */
static int look_at(int folder, const char *name, const struct stat *pids,
                   struct stray **list, struct once__strays *out)
{
    int fd = once__file_open_in(folder, name, O_RDONLY);
    struct stray *found = NULL;
    struct stat st;

    if (fd < 0)
        return ONCE_OK; /* gone, or not ours to judge */
    if (fstat(fd, &st) != 0 || !is_ours(fd, pids) ||
        strlen(name) + 2 > sizeof(found->name)) {
        (void)close(fd);
        out->others++;
        return ONCE_OK;
    }
    (void)close(fd);
    found = calloc(1, sizeof(*found));
    if (found == NULL)
        return ONCE_ENOMEM;
    found->name[0] = '/';
    memcpy(found->name + 1, name, strlen(name));
    found->device = st.st_dev;
    found->inode = st.st_ino;
    found->bytes = (uint64_t)st.st_blocks * 512;
    found->next = *list;
    *list = found;
    return ONCE_OK;
}

static int list_all(struct stray **list, struct once__strays *out,
                    once_error *err)
{
    DIR *folder = opendir("/dev/shm");
    struct dirent *entry;
    struct stat pids;
    int rc = ONCE_OK;

    if (folder == NULL || stat("/proc/self/ns/pid", &pids) != 0) {
        rc =
            once__fail(err, ONCE_EOPEN, "/dev/shm, /proc: %s", strerror(errno));
        goto out;
    }
    while (rc == ONCE_OK && (entry = readdir(folder)) != NULL)
        if (strncmp(entry->d_name, &ONCE__SHARED_PREFIX[1],
                    sizeof(ONCE__SHARED_PREFIX) - 2) == 0)
            rc = look_at(dirfd(folder), entry->d_name, &pids, list, out);
    if (rc != ONCE_OK)
        rc = once__fail(err, rc, "out of memory");
out:
    if (folder != NULL)
        (void)closedir(folder);
    return rc;
}

/* ---- Who has it open ----------------------------------------------------- */

static void mark(struct stray *list, const struct stat *st)
{
    for (; list != NULL; list = list->next)
        if (list->device == st->st_dev && list->inode == st->st_ino)
            list->used = 1;
}

/* A process that ends meanwhile has nothing open. */
static int has_ended(int code)
{
    return code == ENOENT || code == ESRCH;
}

/* 0, or an errno: not all that this process has open was seen. */
static int look_into(const char *pid, struct stray *list)
{
    char path[64];
    struct dirent *entry;
    struct stat st;
    DIR *folder;
    int rc = 0;

    snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
    folder = opendir(path);
    if (folder == NULL)
        return has_ended(errno) ? 0 : errno;
    for (;;) {
        errno = 0;
        entry = readdir(folder);
        if (entry == NULL)
            break;
        if (entry->d_name[0] == '.')
            continue;
        errno = 0;
        if (fstatat(dirfd(folder), entry->d_name, &st, 0) == 0)
            mark(list, &st);
        else if (!has_ended(errno))
            break;
    }
    rc = has_ended(errno) ? 0 : errno;
    (void)closedir(folder);
    return rc;
}

static int look_everywhere(struct stray *list, once_error *err)
{
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    int rc = folder == NULL ? errno : 0;

    while (rc == 0 && (entry = readdir(folder)) != NULL)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            rc = look_into(entry->d_name, list);
    if (rc != 0)
        (void)once__fail(err, ONCE_EOPEN,
                         "what other processes have open cannot be seen: %s",
                         strerror(rc));
    if (folder != NULL)
        (void)closedir(folder);
    return rc == 0 ? ONCE_OK : ONCE_EOPEN;
}

static int unused(const struct stray *list)
{
    for (; list != NULL; list = list->next)
        if (!list->used)
            return 1;
    return 0;
}

static void count(const struct stray *s, struct once__strays *out)
{
    if (s->used) {
        out->in_use++;
    } else if (shm_unlink(s->name) == 0) {
        out->removed++;
        out->bytes += s->bytes;
    }
}

int once__journal_strays(struct once__strays *out, once_error *err)
{
    static const struct timespec second = {1, 0};
    struct stray *list = NULL, *next;
    int rc;

    memset(out, 0, sizeof(*out));
    /* /proc may hide other users' processes from all but root. */
    if (geteuid() != 0)
        return once__fail(err, ONCE_EOPEN,
                          "only root sees what other processes have open");
    rc = list_all(&list, out, err);
    if (rc == ONCE_OK)
        rc = look_everywhere(list, err);
    if (rc == ONCE_OK && unused(list)) {
        (void)nanosleep(&second, NULL);
        rc = look_everywhere(list, err);
    }
    for (; list != NULL; list = next) {
        next = list->next;
        if (rc == ONCE_OK)
            count(list, out);
        free(list);
    }
    return rc;
}
