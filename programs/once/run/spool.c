/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spool.c - output that is too long for a record: a file in the state folder,
 * to which the record refers by name, size and SHA-256.
 *
 *    spool/part-ID-FENCE          while the command runs
 *    spool/UNTIL-ID-FENCE.out     durable, and needed until UNTIL (ms of 1970)
 *
 * The name says until when the file is needed, since the record that says so may
 * have been forgotten. Each run that spools removes the files that expired a day
 * ago. A part that a crash has left stays for a month: an operator may want to
 * read it. A name that is read from a record is checked, so that no file outside
 * of the folder is opened.
 */
#include "programs/once/run/run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/steady.h"

#define DAY_MS UINT64_C(86400000)
#define PART_DAYS 30

static const char part_head[] = "part-", tail[] = ".out";

/* Flushed also where it is there: its maker may have died before that. */
static int make_durably(const char *path)
{
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -1;
    return run_flush_name(path);
}

/* -1 and errno. */
static int open_folder(void)
{
    char *state = run_state_folder(), *path = NULL;
    int fd = -1;

    if (state == NULL)
        return -1;
    if (asprintf(&path, "%s/spool", state) < 0) {
        path = NULL;
        errno = ENOMEM;
    } else if (make_durably(path) == 0) {
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    free(path);
    free(state);
    return fd;
}

/* ---- What is no longer needed -------------------------------------------- */

static int is_over(int folder, const char *name, uint64_t now)
{
    size_t n = strlen(name);
    struct stat st;
    char *end;

    if (strncmp(name, part_head, sizeof(part_head) - 1) == 0)
        return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
               (uint64_t)st.st_mtime * 1000 + PART_DAYS * DAY_MS < now;
    if (n < sizeof(tail) || strcmp(name + n - (sizeof(tail) - 1), tail) != 0 ||
        name[0] < '0' || name[0] > '9')
        return 0;
    return strtoull(name, &end, 10) + DAY_MS < now && *end == '-';
}

static void remove_old(int folder)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    uint64_t now = once__clock_us(CLOCK_REALTIME) / 1000;
    const struct dirent *entry;

    if (d == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    while ((entry = readdir(d)) != NULL)
        if (is_over(folder, entry->d_name, now))
            (void)unlinkat(folder, entry->d_name, 0);
    (void)closedir(d);
}

/* ---- Writing ------------------------------------------------------------- */

void run_spool_init(struct run_spool *s)
{
    memset(s, 0, sizeof(*s));
    s->folder = s->fd = -1;
}

int run_spool_open(struct run_spool *s, const char *id, uint64_t fence)
{
    s->fence = fence;
    (void)snprintf(s->id, sizeof(s->id), "%s", id);
    (void)snprintf(s->part, sizeof(s->part), "%s%s-%llu", part_head, id,
                   (unsigned long long)fence);
    s->folder = open_folder();
    if (s->folder < 0)
        return errno;
    remove_old(s->folder);
    s->md = EVP_MD_CTX_new();
    if (s->md == NULL || !EVP_DigestInit_ex(s->md, EVP_sha256(), NULL))
        return ENOMEM;
    s->fd = openat(s->folder, s->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                   0600);
    return s->fd < 0 ? errno : 0;
}

int run_write(int fd, const void *data, size_t size)
{
    const uint8_t *p = data;

    while (size > 0) {
        ssize_t n = write(fd, p, size);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        p += n;
        size -= (size_t)n;
    }
    return 0;
}

int run_spool_write(struct run_spool *s, const void *data, size_t size)
{
    if (!EVP_DigestUpdate(s->md, data, size))
        return ENOMEM;
    s->size += size;
    return run_write(s->fd, data, size);
}

int run_spool_end(struct run_spool *s, uint64_t until_ms,
                  char name[RUN_FILE_SIZE], uint8_t sha[RUN_SHA_SIZE])
{
    unsigned int size = 0;
    int fd = s->fd;

    if (!EVP_DigestFinal_ex(s->md, sha, &size) || size != RUN_SHA_SIZE)
        return ENOMEM;
    (void)snprintf(name, RUN_FILE_SIZE, "%llu-%s-%llu%s",
                   (unsigned long long)until_ms, s->id,
                   (unsigned long long)s->fence, tail);
    if (fsync(fd) < 0)
        return errno;
    s->fd = -1;
    if (close(fd) < 0 || renameat(s->folder, s->part, s->folder, name) < 0 ||
        fsync(s->folder) < 0)
        return errno;
    return 0;
}

void run_spool_close(struct run_spool *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    if (s->folder >= 0)
        (void)close(s->folder);
    EVP_MD_CTX_free(s->md);
    run_spool_init(s);
}

void run_spool_discard(struct run_spool *s)
{
    if (s->fd >= 0)
        (void)unlinkat(s->folder, s->part, 0);
    run_spool_close(s);
}

/* ---- Reading ------------------------------------------------------------- */

int run_spool_find(const char *name)
{
    size_t n = strspn(name, "0123456789abcdef-");
    int folder, fd, saved;

    if (n == 0 || strcmp(name + n, tail) != 0) {
        errno = EINVAL;
        return -1;
    }
    folder = open_folder();
    if (folder < 0)
        return -1;
    fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    saved = errno;
    (void)close(folder);
    errno = saved;
    return fd;
}
