/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write.c - appending to the audit log.
 *
 *    open by its path --> lock --> is it still the file of that path? --+
 *      ^                                                                | no
 *      +----------------------------------------------------------------+
 *    read the end --> line --> one write --> on disk --> syslog
 *
 * The file is opened for each line, so that it may be renamed at any time. The
 * lock makes one order of all lines. What could not be written whole is taken
 * away again.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>

#include "operate/audit/tail.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/path.h"

struct once__audit {
    char *path; /* absolute; NULL: off */
    int own;    /* the user's own: its folder is made when it is needed */
};

/* ---- The place ------------------------------------------------------------ */

static int is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Makes the folders on the way to a file. */
static int make_folders(char *path)
{
    char *p;

    for (p = strchr(path + 1, '/'); p != NULL; p = strchr(p + 1, '/')) {
        int rc;

        *p = '\0';
        rc = mkdir(path, 0700);
        if (rc == 0)
            rc = once__path_sync_folder(path);
        else if (errno == EEXIST || is_folder(path))
            rc = 0;
        *p = '/';
        if (rc < 0)
            return -1;
    }
    return 0;
}

/* The user's own log: where no package has made a folder for the host's. */
static int own_path(char **out, once_error *err)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;

    if (xdg != NULL && xdg[0] == '/')
        n = asprintf(out, "%s/once/audit.jsonl", xdg);
    else if (home != NULL && home[0] == '/')
        n = asprintf(out, "%s/.local/state/once/audit.jsonl", home);
    else
        return once__fail(err, ONCE_EOPEN,
                          "there is neither the folder /var/log/once nor a "
                          "home for the audit log: make the folder, or say "
                          "where it is (or \"off\")");
    return n < 0 ? once__fail(err, ONCE_ENOMEM, "out of memory") : ONCE_OK;
}

static int find_path(once__audit *a, const char *path, once_error *err)
{
    if (path != NULL && path[0] == '\0')
        path = NULL;
    if (path != NULL && strcmp(path, "own") != 0)
        return once__path_absolute("audit log", path, &a->path, err);
    a->own = path != NULL || !is_folder("/var/log/once");
    if (a->own)
        return own_path(&a->path, err);
    a->path = strdup(ONCE__AUDIT_DEFAULT);
    return a->path != NULL ? ONCE_OK
                           : once__fail(err, ONCE_ENOMEM, "out of memory");
}

int once__audit_open(const char *path, once_error *err, once__audit **out)
{
    once__audit *a = calloc(1, sizeof(*a));
    int rc = ONCE_OK;

    if (a == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    if (path == NULL || strcmp(path, "off") != 0)
        rc = find_path(a, path, err);
    if (rc != ONCE_OK) {
        free(a);
        return rc;
    }
    *out = a;
    return ONCE_OK;
}

void once__audit_close(once__audit *a)
{
    if (a == NULL)
        return;
    free(a->path);
    free(a);
}

const char *once__audit_path(const once__audit *a)
{
    return a->path;
}

/* ---- The file ------------------------------------------------------------- */

/* A log that root begins belongs to who owns the folder: the console, which runs
 * as the store's user, must be able to go on. */
static int hand_over(int fd, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *parent = strndup(path, (size_t)(slash - path) + 1);
    struct stat st;
    int rc = -1;

    if (parent != NULL && stat(parent, &st) == 0)
        rc = geteuid() == 0 ? fchown(fd, st.st_uid, st.st_gid) : 0;
    free(parent);
    return rc;
}

static int is_named_so(int fd, const char *path)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

static int open_once(const char *path, once_error *err)
{
    const int flags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    struct stat st;
    int fd = open(path, flags);

    if (fd < 0 && errno == ENOENT) {
        fd = open(path, flags | O_CREAT | O_EXCL, 0640);
        if (fd < 0 && errno == EEXIST)
            fd = open(path, flags);
        else if (fd >= 0 && (hand_over(fd, path) < 0 ||
                             once__path_sync_folder(path) < 0)) {
            (void)close(fd);
            fd = -1;
        }
    }
    if (fd < 0)
        return once__fail(err, ONCE_EOPEN, "%s: cannot be written: %s", path,
                          strerror(errno));
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fd;
    (void)close(fd);
    return once__fail(err, ONCE_EOPEN, "%s: is no regular file", path);
}

/* The file of this path, locked; it may be renamed until the lock is had. */
static int open_locked(const char *path, once_error *err)
{
    int i, fd, rc;

    for (i = 0; i < 100; i++) {
        fd = open_once(path, err);
        if (fd < 0)
            return fd;
        rc = once__audit_lock(fd, path, LOCK_EX, err);
        if (rc == ONCE_OK && is_named_so(fd, path))
            return fd;
        (void)close(fd);
        if (rc != ONCE_OK)
            return rc;
    }
    return once__fail(err, ONCE_EOPEN, "%s: is renamed all the time", path);
}

/* All or nothing. */
static int write_all(int fd, const char *path, const char *text, size_t size,
                     off_t before, once_error *err)
{
    ssize_t n;
    int rc;

    do
        n = write(fd, text, size);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)size && fdatasync(fd) == 0)
        return ONCE_OK;
    rc = once__fail(err, ONCE_EOPEN, "%s: cannot be written: %s", path,
                    n < 0 || n == (ssize_t)size ? strerror(errno)
                                                : "the disk is full");
    if (n != (ssize_t)size && ftruncate(fd, before) < 0)
        return rc; /* the next line says that this one was cut short */
    return rc;
}

/* ---- Lines ---------------------------------------------------------------- */

static const char *const steps[ONCE__AUDIT_STEPS] = {
    [ONCE__AUDIT_INTENT] = "intent",
    [ONCE__AUDIT_DONE] = "done",
    [ONCE__AUDIT_REFUSED] = "refused",
    [ONCE__AUDIT_UNKNOWN] = "unknown",
};

/* 1 if it was taken: `value` may be NULL for want of memory. */
static int set(json_t *o, const char *name, json_t *value)
{
    return json_object_set_new(o, name, value) == 0;
}

static int set_text(json_t *o, const char *name, const char *text)
{
    return text == NULL || set(o, name, once__audit_text(text));
}

static int set_number(json_t *o, const char *name, uint64_t n)
{
    return n == 0 || set(o, name, json_integer((json_int_t)n));
}

static int set_hex(json_t *o, const char *name, const uint8_t *bytes, size_t n)
{
    char hex[ONCE__AUDIT_HEX];

    if (bytes == NULL)
        return 1;
    once__hex(bytes, n, hex);
    return set(o, name, json_string(hex));
}

/* A string: readers of JSON round large numbers. */
static int set_fence(json_t *o, uint64_t fence)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, fence);
    return fence == 0 || set(o, "fence", json_string(text));
}

static int set_uid(json_t *o, const char *name, int64_t uid)
{
    return set(o, name, uid < 0 ? json_null() : json_integer(uid));
}

static int set_host(json_t *o)
{
    char host[65] = "?";

    (void)gethostname(host, sizeof(host) - 1);
    return set_text(o, "host", host) &&
           set(o, "pid", json_integer((json_int_t)getpid()));
}

static int set_who(json_t *o, const once__audit_who *who)
{
    return set_text(o, "user", who->name) && set_uid(o, "uid", who->uid) &&
           set_uid(o, "login_uid", who->login_uid) &&
           set_text(o, "way", who->way);
}

/* 0 is that of a store that was never restored. */
static int set_incarnation(json_t *o, const once__audit_entry *e)
{
    return e->store == NULL ||
           set(o, "incarnation", json_integer((json_int_t)e->incarnation));
}

static json_t *fields_of(const once__audit_entry *e, uint64_t of,
                         enum once__audit_step step, const char *detail)
{
    json_t *o = json_object();

    if (o != NULL && set_text(o, "step", steps[step]) &&
        set_number(o, "of", of) && set_text(o, "action", e->action) &&
        set_text(o, "kind", e->kind) &&
        set_hex(o, "name", e->name, ONCE_NAME_SIZE) && set_fence(o, e->fence) &&
        set_number(o, "attempt", e->attempt) && set_text(o, "why", e->why) &&
        set_text(o, "detail", detail) &&
        set_hex(o, "outcome", e->digest, ONCE__AUDIT_HASH) &&
        set_text(o, "decision", e->decision) && set_who(o, e->who) &&
        set_host(o) && set_hex(o, "store", e->store, 16) &&
        set_incarnation(o, e))
        return o;
    json_decref(o);
    return NULL;
}

/* "log-start" at the beginning of a file, "log-cut" and "log-damaged" after
 * what is no line. `after` and `fragment` may be "". */
static json_t *fields_of_log(const char *action, const char *after,
                             const char *fragment)
{
    json_t *o = json_object();

    if (o != NULL && set_text(o, "step", "log") &&
        set_text(o, "action", action) && set_host(o) &&
        set_text(o, "after", after[0] ? after : NULL) &&
        set_text(o, "fragment", fragment[0] ? fragment : NULL))
        return o;
    json_decref(o);
    return NULL;
}

/* Adds the line that has to stand before ours, if there is one. */
static int log_line(const char *path, once__audit_tail *tail, FILE *to)
{
    const char *action = tail->cut ? "log-cut" : "log-damaged";
    char name[256] = "", *line;

    if (tail->open_end)
        fputc('\n', to);
    if (tail->seq == 0) {
        char fragment[ONCE__AUDIT_HEX];
        off_t size = tail->size;

        memcpy(fragment, tail->fragment, sizeof(fragment));
        once__audit_before(path, name, tail);
        tail->size = size;
        action = "log-start";
        if (fragment[0] != '\0')
            memcpy(tail->fragment, fragment, sizeof(fragment));
    } else if (tail->fragment[0] == '\0') {
        return ONCE_OK;
    }
    line = once__audit_make(tail->seq + 1, tail->hash,
                            fields_of_log(action, name, tail->fragment),
                            tail->hash);
    if (line == NULL)
        return ONCE_ENOMEM;
    fputs(line, to);
    free(line);
    tail->seq++;
    return ONCE_OK;
}

/* The text to append, and our own line in it. */
static int make_text(const char *path, once__audit_tail *tail, json_t *fields,
                     char **text, char **line)
{
    size_t size = 0;
    FILE *to = open_memstream(text, &size);
    int rc;

    *line = NULL;
    if (to == NULL) {
        json_decref(fields);
        return ONCE_ENOMEM;
    }
    rc = log_line(path, tail, to);
    if (rc == ONCE_OK)
        *line = once__audit_make(tail->seq + 1, tail->hash, fields, tail->hash);
    else
        json_decref(fields);
    if (*line != NULL)
        fputs(*line, to);
    if (fclose(to) != 0 || *line == NULL)
        rc = ONCE_ENOMEM;
    tail->seq++;
    return rc;
}

/* All that was written and of which log it is, in one that who decides cannot
 * change. */
static void tell_syslog(const char *path, const char *line)
{
    syslog(LOG_AUTHPRIV | LOG_NOTICE, "once audit: %s%s%.*s",
           path != NULL ? path : "", path != NULL ? ": " : "",
           (int)strcspn(line, "\n"), line);
}

static int append_to(int fd, const char *path, json_t *fields, uint64_t *seq,
                     once_error *err)
{
    char *text = NULL, *line = NULL;
    once__audit_tail tail;
    off_t before;
    int rc;

    rc = once__audit_tail_read(fd, path, &tail, err);
    if (rc != ONCE_OK) {
        json_decref(fields);
        return rc;
    }
    before = tail.size;
    rc = make_text(path, &tail, fields, &text, &line);
    if (rc != ONCE_OK)
        rc = once__fail(err, rc, "out of memory");
    else
        rc = write_all(fd, path, text, strlen(text), before, err);
    if (rc == ONCE_OK) {
        *seq = tail.seq;
        tell_syslog(path, line);
    }
    free(text);
    free(line);
    return rc;
}

static int append(once__audit *a, json_t *fields, uint64_t *seq,
                  once_error *err)
{
    int fd, rc;

    if (fields == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    if (a->own && make_folders(a->path) < 0)
        fd = once__fail(err, ONCE_EOPEN, "%s: its folder cannot be made: %s",
                        a->path, strerror(errno));
    else
        fd = open_locked(a->path, err);
    if (fd < 0) {
        json_decref(fields);
        return fd;
    }
    rc = append_to(fd, a->path, fields, seq, err);
    (void)close(fd);
    return rc;
}

/* Without a file there is no chain. */
static int only_syslog(json_t *fields, once_error *err)
{
    char *text = fields != NULL
                     ? json_dumps(fields, JSON_COMPACT | JSON_ENSURE_ASCII)
                     : NULL;

    json_decref(fields);
    if (text == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    tell_syslog(NULL, text);
    free(text);
    return ONCE_OK;
}

int once__audit_begin(once__audit *a, const once__audit_entry *e, uint64_t *seq,
                      once_error *err)
{
    json_t *fields = fields_of(e, 0, ONCE__AUDIT_INTENT, NULL);

    *seq = 0;
    if (a->path == NULL)
        return only_syslog(fields, err);
    return append(a, fields, seq, err);
}

int once__audit_end(once__audit *a, const once__audit_entry *e, uint64_t seq,
                    enum once__audit_step step, const char *detail,
                    once_error *err)
{
    json_t *fields = fields_of(e, seq, step, detail);
    uint64_t mine;

    if (a->path == NULL)
        return only_syslog(fields, err);
    return append(a, fields, &mine, err);
}
