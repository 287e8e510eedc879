/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newest.c - the lines of a log, the newest first: from the end of the file back
 * to its beginning, then of the file before it, which ends with the line that
 * this one's first line follows.
 *
 *    audit.jsonl.2 <--prev-- audit.jsonl.1 <--prev-- audit.jsonl <-- here
 *
 * So a page costs what stands behind its last line. Taking a line apart and
 * counting its hash is the dear part: it is done with those only whose text has
 * what is looked for.
 */
#include "operate/audit/tail.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/error.h"

enum {
    WINDOW = 64 << 10,
    LONGEST = ONCE__AUDIT_LINE_MAX + 2,
    NEEDLES = 4,
    FILES_MAX = 1000,
    DONE = 1
};

/* ---- Backwards --------------------------------------------------------------- */

struct back {
    int fd;
    off_t at;   /* of text[0] in the file             */
    char *text; /* [0, end): what was not given yet    */
    size_t end;
};

static int load(struct back *b)
{
    size_t n = b->at < WINDOW ? (size_t)b->at : WINDOW, got = 0;
    ssize_t r = 1;

    memmove(b->text + n, b->text, b->end);
    b->at -= (off_t)n;
    while (got < n && r > 0) {
        r = pread(b->fd, b->text + got, n - got, b->at + (off_t)got);
        if (r < 0 && errno == EINTR)
            r = 1;
        else if (r > 0)
            got += (size_t)r;
    }
    b->end += n;
    return got == n;
}

/* 1: *line is the line before, without its line break; 0: there is none; -1. */
static int previous(struct back *b, once_bytes *line)
{
    size_t size;
    char *p;

    for (;;) {
        size = b->end > 0 && b->text[b->end - 1] == '\n' ? b->end - 1 : b->end;
        p = size > 0 ? memrchr(b->text, '\n', size) : NULL;
        if (p != NULL || b->at == 0)
            break;
        if (b->end > LONGEST) { /* no line of a log: its end will do */
            b->text[0] = '?';
            b->end = 1;
        }
        if (!load(b))
            return -1;
    }
    if (b->end == 0)
        return 0;
    p = p != NULL ? p + 1 : b->text;
    *line = (once_bytes){p, size - (size_t)(p - b->text)};
    b->end = (size_t)(p - b->text);
    return 1;
}

/* ---- What the text shows -------------------------------------------------------- */

/* As a line of a log has a moment, which can be compared as a text. */
static void write_time(uint64_t ms, char out[ONCE__AUDIT_TIME])
{
    time_t s = (time_t)(ms / 1000);
    struct tm tm;
    size_t n;

    if (gmtime_r(&s, &tm) == NULL)
        memset(&tm, 0, sizeof(tm));
    n = strftime(out, ONCE__AUDIT_TIME, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, ONCE__AUDIT_TIME - n, ".%03uZ", (unsigned)(ms % 1000));
}

struct wanted {
    const once__audit_filter *f;
    uint64_t below; /* only lines with a smaller number; 0: all */
    char since[ONCE__AUDIT_TIME], until[ONCE__AUDIT_TIME];
    char needles[NEEDLES][ONCE__AUDIT_TEXT_MAX];
    size_t n;
};

/* What JSON would write in another way is not looked for. */
static void add_needle(struct wanted *w, const char *begin, const char *text,
                       const char *end)
{
    const char *p;

    if (text == NULL || strlen(text) > ONCE__AUDIT_TEXT_MAX - 32)
        return;
    for (p = text; *p != '\0'; p++)
        if (*p < 0x20 || *p >= 0x7f || strchr("\"\\/", *p) != NULL)
            return;
    snprintf(w->needles[w->n++], sizeof(w->needles[0]), "%s%s%s", begin, text,
             end);
}

static void prepare(struct wanted *w, const once__audit_filter *f)
{
    w->f = f;
    w->below = f->before;
    write_time(f->since_ms, w->since);
    write_time(f->until_ms, w->until);
    add_needle(w, "\"name\":\"", f->name, "");
    add_needle(w, "\"action\":\"", f->action, "\"");
    add_needle(w, "\"store\":\"", f->store, "");
    add_needle(w, "", f->who, "");
}

/* Its number, or 0. */
static uint64_t number_of(once_bytes text)
{
    static const char begin[] = "{\"seq\":";
    const char *p = text.data;
    size_t i = sizeof(begin) - 1;
    uint64_t n = 0;

    if (text.size <= i || memcmp(p, begin, i) != 0)
        return 0;
    for (; i < text.size && p[i] >= '0' && p[i] <= '9' && n < UINT64_MAX / 100;
         i++)
        n = n * 10 + (uint64_t)(p[i] - '0');
    return n;
}

static int is_in_time(const struct wanted *w, once_bytes text)
{
    static const char begin[] = "\"time\":\"";
    const size_t n = sizeof(begin) - 1,
                 size = strlen("2026-11-22T14:39:13.965Z");
    const char *p;

    if (w->f->since_ms == 0 && w->f->until_ms == 0)
        return 1;
    p = memmem(text.data, text.size, begin, n);
    if (p == NULL ||
        (size_t)((const char *)text.data + text.size - p) < n + size)
        return 0;
    return (w->f->since_ms == 0 || memcmp(p + n, w->since, size) >= 0) &&
           (w->f->until_ms == 0 || memcmp(p + n, w->until, size) < 0);
}

/* 0: it certainly does not fit. */
static int may_fit(const struct wanted *w, uint64_t number, once_bytes text)
{
    size_t i;

    if (number == 0 || (w->below != 0 && number >= w->below) ||
        !is_in_time(w, text))
        return 0;
    for (i = 0; i < w->n; i++)
        if (memmem(text.data, text.size, w->needles[i],
                   strlen(w->needles[i])) == NULL)
            return 0;
    return 1;
}

/* ---- File by file ---------------------------------------------------------------- */

struct reading {
    struct wanted wanted;
    size_t left;
    once__audit_each *each;
    void *user;
    char
        prev[ONCE__AUDIT_HEX]; /* of the first line of the file that was read */
    uint64_t first;            /* its number                                  */
};

static int show(struct reading *r, once_bytes text)
{
    once__audit_line line = {.whole = 1};
    int rc = ONCE_OK;

    once__audit_parse(text, &line);
    if (once__audit_fits(r->wanted.f, &line)) {
        rc = r->each(r->user, &line);
        r->left--;
    }
    json_decref(line.json);
    return rc;
}

/* An `each`: with what a file begins. */
static int take_first(void *user, const once__audit_line *line)
{
    struct reading *r = user;

    r->first = line->seq;
    snprintf(r->prev, sizeof(r->prev), "%s",
             line->flaw == NULL ? line->prev : once__audit_nothing);
    return DONE;
}

/* What the first line of the file follows. */
static void note_first(struct reading *r, once_bytes text)
{
    once__audit_line line = {.number = 1};

    once__audit_parse(text, &line);
    (void)take_first(r, &line);
    json_decref(line.json);
}

/* ONCE_OK: to its beginning; DONE; what `each` returned; or an error. */
static int read_back(struct reading *r, struct back *b)
{
    once_bytes text = {NULL, 0};
    uint64_t number;
    int rc = ONCE_OK, more = 1;

    while (rc == ONCE_OK && (more = previous(b, &text)) == 1) {
        number = number_of(text);
        if (b->end == 0 && b->at == 0)
            note_first(r, text);
        if (may_fit(&r->wanted, number, text))
            rc = show(r, text);
        if (rc == ONCE_OK &&
            (r->left == 0 || (number != 0 && number <= r->wanted.f->after)))
            return DONE;
    }
    return more < 0 ? ONCE_EOPEN : rc;
}

static int read_one(struct reading *r, int fd)
{
    struct back b = {.fd = fd};
    struct stat st;
    int rc = ONCE_ENOMEM;

    errno = EINVAL;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return ONCE_EOPEN;
    r->first = 0;
    snprintf(r->prev, sizeof(r->prev), "%s", once__audit_nothing);
    b.at = st.st_size;
    b.text = malloc(WINDOW + LONGEST + 1);
    if (b.text != NULL)
        rc = read_back(r, &b);
    free(b.text);
    return rc;
}

/* The file before: 1, and `path` is it; 0: there is none here. */
static int go_back(const struct reading *r, const char *log, int is_there,
                   char path[PATH_MAX])
{
    size_t folder = (size_t)(strrchr(log, '/') - log) + 1;
    once__audit_tail tail;
    char name[256] = "";

    if (!is_there)
        once__audit_before(log, name, &tail);
    else if (r->first > 1)
        once__audit_ending(log, r->prev, name);
    if (name[0] == '\0')
        return 0;
    return snprintf(path, PATH_MAX, "%.*s%s", (int)folder, log, name) <
           PATH_MAX;
}

static int read_all(struct reading *r, const char *log, once_error *err)
{
    char path[PATH_MAX];
    int rc = ONCE_OK, fd, i;

    snprintf(path, sizeof(path), "%s", log);
    for (i = 0; rc == ONCE_OK && i < FILES_MAX; i++) {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0)
            rc = read_one(r, fd);
        else if (i > 0 || errno != ENOENT)
            rc = ONCE_EOPEN;
        if (rc == ONCE_EOPEN || rc == ONCE_ENOMEM)
            (void)once__fail(err, rc, "%s: cannot be read: %s", path,
                             strerror(rc == ONCE_ENOMEM ? ENOMEM : errno));
        if (fd >= 0)
            (void)close(fd);
        /* A copy of the same lines is no file before. */
        if (r->first != 0 &&
            (r->wanted.below == 0 || r->first < r->wanted.below))
            r->wanted.below = r->first;
        if (rc == ONCE_OK && !go_back(r, log, fd >= 0, path))
            break;
    }
    return rc == DONE ? ONCE_OK : rc;
}

int once__audit_newest(const char *path, const once__audit_filter *f,
                       size_t max, once__audit_each *each, void *user,
                       once_error *err)
{
    struct reading *r;
    int rc;

    if (max < 1 || max > 1000)
        return once__fail(err, ONCE_EINVAL, "1 to 1000 lines at once");
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    prepare(&r->wanted, f);
    r->left = max;
    r->each = each;
    r->user = user;
    rc = read_all(r, path, err);
    free(r);
    return rc;
}

/* ---- Which files there are ----------------------------------------------------- */

static int add_part(char ***list, size_t *n, const char *path)
{
    char **more = realloc(*list, (*n + 1) * sizeof(*more));

    if (more == NULL)
        return 0;
    *list = more;
    memmove(more + 1, more, *n * sizeof(*more));
    more[0] = strdup(path);
    if (more[0] == NULL) {
        memmove(more, more + 1, *n * sizeof(*more));
        return 0;
    }
    (*n)++;
    return 1;
}

int once__audit_parts(const char *path, char ***out, size_t *n, once_error *err)
{
    struct reading r = {.first = 0};
    char part[PATH_MAX];
    uint64_t first = UINT64_MAX;

    *out = NULL;
    *n = 0;
    snprintf(part, sizeof(part), "%s", path);
    if (access(path, F_OK) < 0 && !go_back(&r, path, 0, part))
        snprintf(part, sizeof(part), "%s", path);
    do {
        if (!add_part(out, n, part)) {
            once__audit_parts_free(*out, *n);
            return once__fail(err, ONCE_ENOMEM, "out of memory");
        }
        r.first = 0;
        if (once__audit_read(part, take_first, &r, NULL) != DONE ||
            r.first >= first)
            break;
        first = r.first;
    } while (*n < FILES_MAX && go_back(&r, path, 1, part));
    return ONCE_OK;
}

void once__audit_parts_free(char **paths, size_t n)
{
    while (n > 0)
        free(paths[--n]);
    free(paths);
}
