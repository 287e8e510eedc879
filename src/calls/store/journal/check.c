/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - verify and dump: reading a journal's files and nothing else.
 *
 * Both work beside those who write, and on what no one can open any more. So
 * they take no lock, touch no shared memory, and look twice at a place that may
 * just have been written, and at a segment that may just have been dropped.
 *
 * Verify says what is wrong. A torn tail is not: it was never
 * acknowledged, and the next to open goes on from there.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "calls/store/journal/handle.h"
#include "calls/store/journal/walk.h"
#include "base/bytes.h"

enum { LOOKS = 3 };

struct check {
    int folder;
    const char *path;
    once_line *line;
    void *user;
    once_error *err;
    int count; /* lines */
    int dump;  /* 1: a line for each frame */
    uint64_t lowest, highest, last;
    uint64_t first; /* no segment before this one is needed         */
    uint64_t known; /* what the last segment says has been durable  */
    struct once__segment_head head; /* of the last                  */
};

static void say(struct check *c, const char *format, ...) ONCE_PRINTF(2, 3);

static void say(struct check *c, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    c->count++;
    c->line(c->user, text);
}

static void say_at(struct check *c, uint64_t at, const char *what)
{
    char name[ONCE__SEGMENT_NAME];

    once__segment_name(once__journal_id(at), name);
    say(c, "%s: offset %" PRIu64 ": %s", name, once__journal_offset(at), what);
}

static int open_segment(const struct check *c, uint64_t id)
{
    char name[ONCE__SEGMENT_NAME];

    once__segment_name(id, name);
    return once__file_open_in(c->folder, name, O_RDONLY);
}

static int read_head(const struct check *c, uint64_t id,
                     struct once__segment_head *out)
{
    uint8_t block[ONCE__JOURNAL_HEADER];
    int fd = open_segment(c, id), code = ONCE_ECORRUPT;

    if (fd < 0)
        return ONCE_ECORRUPT;
    if (once__file_read(fd, block, sizeof(block), 0) == 1)
        code = once__segment_head_get(block, id, out);
    (void)close(fd);
    return code;
}

/* ---- Frames ------------------------------------------------------------- */

static const char *state_name(uint8_t state)
{
    static const char *const names[] = {"absent", "claimed", "dispatched",
                                        "completed", "indeterminate"};

    return state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

static void dump_frame(struct check *c, const struct once__frame *f,
                       uint64_t at, const once_record *r)
{
    char name[2 * ONCE_NAME_SIZE + 1];

    once__hex(f->name, ONCE_NAME_SIZE, name);
    if (f->kind == ONCE__FRAME_MARK)
        say(c,
            "%" PRIu64 ":%" PRIu64 " mark generation=%016" PRIx64
            " fence=%" PRIu64 " first=%" PRIu64,
            once__journal_id(at), once__journal_offset(at), f->generation,
            f->fence, f->due);
    else if (f->kind == ONCE__FRAME_FORGOTTEN)
        say(c, "%" PRIu64 ":%" PRIu64 " %s forgotten", once__journal_id(at),
            once__journal_offset(at), name);
    else if (r == NULL)
        say(c, "%" PRIu64 ":%" PRIu64 " %s damaged", once__journal_id(at),
            once__journal_offset(at), name);
    else
        say(c,
            "%" PRIu64 ":%" PRIu64 " %s %s attempt=%" PRIu32 " fence=%" PRIu64
            " lease=%" PRIu64 " keep=%" PRIu64 " group=%.*s result=%zu"
            " note=%zu label=%zu ended=%" PRIu64 " reason=%s",
            once__journal_id(at), once__journal_offset(at), name,
            state_name(r->state), r->attempt, r->fence, r->lease_ms, r->keep_ms,
            (int)strnlen((const char *)r->group, ONCE_GROUP_SIZE),
            (const char *)r->group, r->result.size, r->note.size, r->label.size,
            r->ended_ms, once_reason_text(r->reason));
}

static void check_frame(struct check *c, struct once__walk *w,
                        const struct once__frame *f)
{
    uint64_t at = once__journal_at(w->id, w->offset - f->length);
    once_record r;
    int code = ONCE_OK;

    if (f->kind == ONCE__FRAME_RECORD)
        code = once__walk_record(w, f, &r);
    if (c->dump)
        dump_frame(c, f, at,
                   f->kind == ONCE__FRAME_RECORD && code == ONCE_OK ? &r
                                                                    : NULL);
    else if (code != ONCE_OK &&
             (w->id != c->last || at + f->length <= c->known))
        say_at(c, at,
               code == ONCE_EVERSION
                   ? "a record of a version that is not understood"
                   : "a record fails its checksum");
}

/* ---- Segments ----------------------------------------------------------- */

/* What the last segment says of itself and of the first. */
static int ask_last(struct check *c)
{
    struct once__walk w;
    struct once__frame f;
    struct stat st;
    int fd = open_segment(c, c->last), code = ONCE_EOPEN;

    c->first = c->head.first;
    if (fd >= 0 && fstat(fd, &st) == 0)
        code = once__walk_begin(&w, fd, c->last, ONCE__JOURNAL_HEADER,
                                (uint64_t)st.st_size, c->head.generation);
    while (code == ONCE_OK && once__walk_next(&w, &f) == 1) {
        if (f.durable > c->known)
            c->known = f.durable;
        if (f.kind == ONCE__FRAME_MARK && f.due > c->first)
            c->first = f.due;
    }
    if (code == ONCE_OK)
        once__walk_end(&w);
    if (fd >= 0)
        (void)close(fd);
    return code;
}

/* The highest with a header is the last. 0: there is none. */
static int find_last(struct check *c)
{
    if (once__segment_range(c->folder, &c->lowest, &c->highest) != 0)
        return 0;
    for (c->last = c->highest; c->last > 0 && c->last >= c->lowest; c->last--)
        if (read_head(c, c->last, &c->head) == ONCE_OK)
            return ask_last(c) == ONCE_OK;
    return 0;
}

/* Was the segment dropped while we looked at others? */
static int is_dropped(const struct check *c, uint64_t id)
{
    struct check now = *c;

    return find_last(&now) && id < now.first;
}

/* Where the chain ends; looks again where a writer may be at work. */
static int walk_frames(struct check *c, struct once__walk *w, int look_again)
{
    struct once__frame f;
    int more, looks = look_again ? LOOKS : 1;

    while (looks > 0) {
        more = once__walk_next(w, &f);
        if (more < 0)
            return -1;
        if (more == 0) {
            w->got = 0;
            looks--;
            continue;
        }
        check_frame(c, w, &f);
        looks = look_again ? LOOKS : 1;
    }
    return 0;
}

static int no_segment(const struct check *c, uint64_t id)
{
    int number = errno;

    if (number == ENOENT && is_dropped(c, id))
        return ONCE_OK;
    return once__fail(c->err, ONCE_EOPEN, "%s: segment %" PRIu64 ": %s",
                      c->path, id, strerror(number));
}

static int check_segment(struct check *c, uint64_t id,
                         const struct once__segment_head *head, uint64_t end)
{
    struct once__walk w;
    uint64_t stop;
    int fd = open_segment(c, id), code;

    if (fd < 0)
        return no_segment(c, id);
    code = once__walk_begin(&w, fd, id, ONCE__JOURNAL_HEADER, end,
                            head->generation);
    if (code == ONCE_OK && walk_frames(c, &w, id == c->last) != 0)
        say_at(c, once__journal_at(id, w.offset), strerror(errno));
    stop = once__journal_at(id, w.offset);
    if (code == ONCE_OK && id != c->last && w.offset != end)
        say_at(c, stop, "a frame fails its checksum");
    if (code == ONCE_OK && id == c->last &&
        (stop < c->known || once__walk_orphan(&w) != 0)) {
        w.got = 0; /* a process may have written on meanwhile */
        if (walk_frames(c, &w, 1) == 0 &&
            once__journal_at(id, w.offset) == stop)
            say_at(c, stop, "a frame that was durable fails its checksum");
    }
    once__walk_end(&w);
    (void)close(fd);
    return code;
}

static int check_end(struct check *c, uint64_t id,
                     const struct once__segment_head *next)
{
    int fd = open_segment(c, id);

    if (fd < 0)
        return no_segment(c, id);
    if (once__walk_goes_on(fd, next))
        say_at(c, next->before, "the log goes on after its end");
    (void)close(fd);
    return ONCE_OK;
}

static int check_sealed(struct check *c, uint64_t id)
{
    struct once__segment_head head, next = c->head;
    int code = read_head(c, id, &head);

    if (code == ONCE_OK && id + 1 != c->last)
        code = read_head(c, id + 1, &next);
    if (code == ONCE_OK && once__journal_id(next.before) == id) {
        code = check_segment(c, id, &head, once__journal_offset(next.before));
        return code == ONCE_OK ? check_end(c, id, &next) : code;
    }
    if (is_dropped(c, id))
        return ONCE_OK;
    say_at(c, once__journal_at(id, 0),
           "the segment is missing, or its header or the next one's does not "
           "check");
    return ONCE_OK;
}

static int check_last(struct check *c)
{
    struct stat st;
    int fd = open_segment(c, c->last), code;

    if (fd < 0 || fstat(fd, &st) != 0)
        code = no_segment(c, c->last);
    else
        code = check_segment(c, c->last, &c->head, (uint64_t)st.st_size);
    if (fd >= 0)
        (void)close(fd);
    return code;
}

/* A segment after the last has no header. It never had one, or is damaged. */
static void check_unused(struct check *c, uint64_t id)
{
    struct once__walk w;
    struct stat st;
    int fd = open_segment(c, id);

    if (fd < 0 && errno == ENOENT && !is_dropped(c, id))
        say_at(c, once__journal_at(id, 0), "the segment is missing");
    if (fd < 0 || fstat(fd, &st) != 0)
        return;
    if (once__walk_begin(&w, fd, id, ONCE__JOURNAL_HEADER, (uint64_t)st.st_size,
                         0) == ONCE_OK) {
        if (once__walk_orphan(&w) != 0 && read_head(c, id, &c->head) != ONCE_OK)
            say_at(c, once__journal_at(id, 0), "the header fails its checksum");
        once__walk_end(&w);
    }
    (void)close(fd);
}

/* ---- All ---------------------------------------------------------------- */

static int read_lock(struct check *c)
{
    struct once__note note;
    int fd = once__file_open_in(c->folder, ONCE__JOURNAL_LOCK, O_RDONLY), code;

    if (fd < 0 && errno == ENOENT)
        return once__fail(c->err, ONCE_EOPEN,
                          "%s: not a journal: it holds no file \"lock\"",
                          c->path);
    if (fd < 0)
        return once__fail(c->err, ONCE_EOPEN, "%s/lock: %s", c->path,
                          strerror(errno));
    code = once__session_read(fd, c->path, &note, c->err);
    if (code == ONCE_OK && note.state == ONCE__LEFT_CLEAN)
        c->known = note.at;
    if (code == ONCE_ECORRUPT) {
        say(c, "lock: it fails its checksum");
        code = ONCE_OK;
    }
    (void)close(fd);
    return code;
}

static int check_head(struct check *c)
{
    once_store_head head;
    once_error err = {0, ""};
    int code = once__journal_head_load(c->folder, c->path, &head, &err);

    if (code == ONCE_ECORRUPT) { /* without the folder's path, as all lines */
        say(c, "%s", err.text + strlen(c->path) + 1);
        return ONCE_OK;
    }
    return code == ONCE_OK ? ONCE_OK : once__fail(c->err, code, "%s", err.text);
}

/* It is only a cache, but one who looks after a disk should know. */
static void check_index(struct check *c)
{
    const char *why = once__saved_check(c->folder);

    if (why != NULL)
        say(c, "%s: %s: it is not needed, and not used", ONCE__JOURNAL_INDEX,
            why);
}

static int check_all(struct check *c)
{
    uint64_t id;
    int code = read_lock(c);

    if (code == ONCE_OK && !c->dump)
        code = check_head(c);
    if (code == ONCE_OK && !c->dump)
        check_index(c);
    if (code != ONCE_OK)
        return code;
    if (!find_last(c)) {
        say(c, "there is no segment with a good header");
        return ONCE_OK;
    }
    for (id = c->first; code == ONCE_OK && id < c->last; id++)
        code = check_sealed(c, id);
    if (code == ONCE_OK)
        code = check_last(c);
    for (id = c->last + 1; code == ONCE_OK && id <= c->highest; id++)
        check_unused(c, id);
    return code;
}

static int check(const char *path, int dump, once_line *line, void *user,
                 once_error *err)
{
    struct check c = {
        .path = path, .line = line, .user = user, .err = err, .dump = dump};
    int code;

    c.folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (c.folder < 0)
        return once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(errno));
    code = check_all(&c);
    (void)close(c.folder);
    return code == ONCE_OK ? c.count : code;
}

int once__journal_verify(const char *path, once_line *line, void *user,
                         once_error *err)
{
    return check(path, 0, line, user, err);
}

int once__journal_dump(const char *path, once_line *line, void *user,
                       once_error *err)
{
    return check(path, 1, line, user, err);
}
