/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tail.c - the end of an audit log, and of the one before it.
 *
 * Only the end is read, so a line costs the same in a log of any length. A line
 * that a crash cut short stays where it is: the next line names it.
 */
#include "operate/audit/tail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>

#include "base/error.h"

enum { WINDOW = 4 * ONCE__AUDIT_LINE_MAX, LOCK_MS = 5000, LOCK_PAUSE_MS = 10 };

int once__audit_lock(int fd, const char *path, int operation, once_error *err)
{
    const struct timespec pause = {0, LOCK_PAUSE_MS * 1000000};
    int i;

    for (i = 0; i < LOCK_MS / LOCK_PAUSE_MS; i++) {
        if (flock(fd, operation | LOCK_NB) == 0)
            return ONCE_OK;
        if (errno != EWOULDBLOCK && errno != EINTR)
            break;
        (void)nanosleep(&pause, NULL);
    }
    return once__fail(err, ONCE_EOPEN, "%s: cannot be locked: %s", path,
                      errno == EWOULDBLOCK ? "another process holds it"
                                           : strerror(errno));
}

/* Reads `size` bytes from `from` on; 0 or -1. */
static int read_at(int fd, char *to, size_t size, off_t from)
{
    while (size > 0) {
        ssize_t n = pread(fd, to, size, from);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        to += n;
        from += n;
        size -= (size_t)n;
    }
    return 0;
}

/* Where the line begins that ends before `end`. */
static size_t line_start(const char *text, size_t end)
{
    while (end > 0 && text[end - 1] != '\n')
        end--;
    return end;
}

/* From the last line backwards to the first good one. A line whose beginning is
 * outside of the window is none. */
static void find_good(const char *text, size_t size, once__audit_tail *out)
{
    size_t end = size - !out->open_end, start;
    once__audit_line line = {.number = 0};
    int last = 1;

    for (;; last = 0) {
        start = line_start(text, end);
        once__audit_parse((once_bytes){text + start, end - start}, &line);
        if (line.flaw == NULL) {
            out->seq = line.seq;
            snprintf(out->hash, sizeof(out->hash), "%s", line.hash);
            json_decref(line.json);
            return;
        }
        if (last) {
            once__audit_sum_of(line.text, out->fragment);
            out->cut = out->open_end;
        }
        if (start == 0)
            return;
        end = start - 1;
    }
}

/* The first line of a log, cut short. */
static int begins_a_log(const char *text, size_t size)
{
    static const char begin[] = "{\"seq\":";
    size_t n = size < sizeof(begin) - 1 ? size : sizeof(begin) - 1;

    return memcmp(text, begin, n) == 0;
}

static int read_window(int fd, const char *path, char *text, size_t size,
                       once__audit_tail *out, once_error *err)
{
    if (read_at(fd, text, size, out->size - (off_t)size) < 0)
        return once__fail(err, ONCE_EOPEN, "%s: cannot be read", path);
    out->open_end = text[size - 1] != '\n';
    find_good(text, size, out);
    if (out->seq != 0 ||
        ((off_t)size == out->size && memchr(text, '\n', size) == NULL &&
         begins_a_log(text, size)))
        return ONCE_OK;
    return once__fail(err, ONCE_ECORRUPT,
                      "%s: its end is no audit log; move it away, and look "
                      "who wrote to it",
                      path);
}

int once__audit_tail_read(int fd, const char *path, once__audit_tail *out,
                          once_error *err)
{
    struct stat st;
    size_t size;
    char *text;
    int rc;

    memset(out, 0, sizeof(*out));
    memcpy(out->hash, once__audit_nothing, sizeof(out->hash));
    if (fstat(fd, &st) < 0)
        return once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(errno));
    out->size = st.st_size;
    if (st.st_size == 0)
        return ONCE_OK;
    size = st.st_size < WINDOW ? (size_t)st.st_size : WINDOW;
    text = malloc(size);
    if (text == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    rc = read_window(fd, path, text, size, out, err);
    free(text);
    return rc;
}

/* ---- The file before ------------------------------------------------------ */

/* "audit.jsonl.1", "audit.jsonl-20261201"; not what cannot be read here. */
static int is_older(const char *name, const char *base)
{
    static const char *const packed[] = {".gz", ".xz", ".zst", ".bz2"};
    size_t n = strlen(base), size = strlen(name), i;

    if (strncmp(name, base, n) != 0 || (name[n] != '.' && name[n] != '-'))
        return 0;
    for (i = 0; i < sizeof(packed) / sizeof(packed[0]); i++) {
        size_t k = strlen(packed[i]);

        if (size > k && strcmp(name + size - k, packed[i]) == 0)
            return 0;
    }
    return 1;
}

/* Its end, if it is an audit log. A process that writes to it is waited
 * for. */
static int read_older(int folder, const char *name, struct timespec *when,
                      once__audit_tail *out)
{
    int fd =
        openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    int is = 0;

    if (fd < 0)
        return 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        once__audit_lock(fd, name, LOCK_SH, NULL) == ONCE_OK &&
        fstat(fd, &st) == 0 &&
        once__audit_tail_read(fd, name, out, NULL) == ONCE_OK && out->seq > 0)
        is = 1;
    *when = st.st_mtim;
    (void)close(fd);
    return is;
}

static int is_after(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec
                                  : a->tv_nsec > b->tv_nsec;
}

/* The newest; or, if `hash` is not NULL, that which ends so. */
static void find_older(DIR *folder, const char *base, const char *hash,
                       char name[256], once__audit_tail *out)
{
    struct timespec newest = {0, 0}, when;
    once__audit_tail tail;
    struct dirent *entry;

    while ((entry = readdir(folder)) != NULL) {
        if (!is_older(entry->d_name, base) ||
            !read_older(dirfd(folder), entry->d_name, &when, &tail) ||
            (hash != NULL ? strcmp(tail.hash, hash) != 0
                          : !is_after(&when, &newest)))
            continue;
        newest = when;
        *out = tail;
        snprintf(name, 256, "%s", entry->d_name);
    }
}

static void look_beside(const char *path, const char *hash, char name[256],
                        once__audit_tail *out)
{
    const char *slash = strrchr(path, '/'); /* the path is absolute */
    char *parent = strndup(path, (size_t)(slash - path) + 1);
    DIR *folder = parent != NULL ? opendir(parent) : NULL;

    name[0] = '\0';
    memset(out, 0, sizeof(*out));
    memcpy(out->hash, once__audit_nothing, sizeof(out->hash));
    if (folder != NULL) {
        find_older(folder, slash + 1, hash, name, out);
        (void)closedir(folder);
    }
    free(parent);
}

void once__audit_before(const char *path, char name[256], once__audit_tail *out)
{
    look_beside(path, NULL, name, out);
}

void once__audit_ending(const char *path, const char *hash, char name[256])
{
    once__audit_tail tail;

    look_beside(path, hash, name, &tail);
}
