/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.c - from the log to shared memory.
 *
 * Files are sorted out first: segments below the first that is needed are left
 * over from a compaction, those after the last with a header are ready. Then
 * all frames are walked in order and the last one of a name wins. Where the
 * index was saved (checkpoint.c) it is loaded (saved.c), and the frames after it are
 * walked.
 *
 *    what fails its checksum           it is
 *    ---------------------------------------------------------------------
 *    in a segment that has a next one   damage: that one began when this one
 *                                       was durable to its end
 *    in the last one, before something  damage: a later frame, DIR/lock or
 *    that was known to be durable       shared memory say so
 *    else, in the last one              a torn tail, never acknowledged: the
 *                                       log goes on from there
 *
 * Damage is an error and nothing is skipped: a frame whose head is gone may be
 * about any name. A result that is damaged alone does not stop the others: its
 * record is an error when it is read (I9).
 *
 * Frames before the place that the index was saved at are not walked. There a
 * frame whose head is damaged is an error when its record is read, too: the
 * saved index says which name it is about, so it hides no other. What was saved
 * is never believed against the log: where it does not fit, all is walked.
 *
 * After anything but a clean end the log goes on with a MARK of a new
 * generation, so that frames after a cut are never taken for its continuation:
 * not those that were cut off, and not those of an earlier recovery whose MARK
 * was lost. It goes on with a fence far ahead of all that may have been shown,
 * too. What is taken over without having been known to be durable is written
 * again and flushed.
 *
 * Where a holder of the lock has died the index need not be made again (undo.c):
 * only the log's end is looked after, in the same way. Where all have died their
 * memory is kept if the last segment is, up to its tail, what it knows.
 */
#include "calls/store/journal/handle.h"
#include "calls/store/journal/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "calls/store/store.h"

enum { QUEUE = 16, PIECE = 16 << 20 };

#define FENCE_JUMP (UINT64_C(1) << 20)

struct recovery {
    struct once__journal *j;
    const struct once__left *left;
    once_error *err;
    uint64_t lowest, highest; /* numbers of files there are; 0: none  */
    uint64_t needed;          /* no segment before this one is needed */
    uint64_t known;           /* durable, as far as is known          */
    uint64_t end;             /* of the log                           */
    uint64_t generation;
    struct once__saved saved; /* the log is walked from here            */
    struct once__segment_head last;
};

static int damage(const struct recovery *r, uint64_t at, const char *what)
{
    char name[ONCE__SEGMENT_NAME];

    once__segment_name(once__journal_id(at), name);
    return once__fail(r->err, ONCE_ECORRUPT, "%s/%s: offset %llu: %s",
                      r->j->path, name,
                      (unsigned long long)once__journal_offset(at), what);
}

static int trouble(const struct recovery *r, uint64_t id, const char *what)
{
    char name[ONCE__SEGMENT_NAME];

    once__segment_name(id, name);
    return once__fail(r->err, ONCE_EOPEN, "%s/%s: %s: %s", r->j->path, name,
                      what, strerror(errno));
}

/* ---- Which files there are ---------------------------------------------- */

/* ONCE_OK, ONCE_ECORRUPT: there is no header (yet), or another error. */
static int read_head(struct recovery *r, uint64_t id,
                     struct once__segment_head *out)
{
    uint8_t block[ONCE__JOURNAL_HEADER];
    int fd = once__segment_file(r->j, id), rc, code;

    if (fd < 0)
        return errno == ENOENT ? ONCE_ECORRUPT : trouble(r, id, "opening");
    rc = once__file_read(fd, block, sizeof(block), 0);
    if (rc < 0)
        return trouble(r, id, "reading");
    code = rc == 0 ? ONCE_ECORRUPT : once__segment_head_get(block, id, out);
    if (code == ONCE_EVERSION)
        return once__fail(r->err, ONCE_EVERSION,
                          "%s: written by a version that is not understood",
                          r->j->path);
    return code;
}

/* Begins to walk segment `id` up to offset `end`; those who wait can see it. */
static int walk_begin(struct recovery *r, struct once__walk *w, uint64_t id,
                      uint64_t end, uint64_t generation)
{
    int fd = once__segment_file(r->j, id);

    if (fd < 0)
        return trouble(r, id, "opening");
    if (once__walk_begin(w, fd, id, ONCE__JOURNAL_HEADER, end, generation) !=
        ONCE_OK)
        return once__fail(r->err, ONCE_ENOMEM, "out of memory");
    w->bytes = &r->j->shared->recovered;
    return ONCE_OK;
}

/* The last segment is the highest with a header. */
static int find_last(struct recovery *r)
{
    uint64_t id;
    int code = ONCE_ECORRUPT;

    for (id = r->highest; id >= r->lowest && id > 0; id--) {
        code = read_head(r, id, &r->last);
        if (code != ONCE_ECORRUPT)
            return code;
    }
    return once__fail(r->err, ONCE_ECORRUPT,
                      "%s: there is no segment with a good header", r->j->path);
}

static int note_size(struct recovery *r, uint64_t id)
{
    int fd = once__segment_file(r->j, id);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) != 0)
        return trouble(r, id, "opening");
    once__segment(r->j->shared, id)->size = (uint64_t)st.st_size;
    return ONCE_OK;
}

/* A segment without a header must not hold what was durable: then it had one,
 * and is the last. */
static int check_unused(struct recovery *r, uint64_t id)
{
    struct once__walk w;
    uint64_t orphan;
    int code = walk_begin(r, &w, id, once__segment(r->j->shared, id)->size, 0);

    if (code != ONCE_OK)
        return code;
    orphan = once__walk_orphan(&w);
    once__walk_end(&w);
    if (orphan != 0)
        return damage(r, once__journal_at(id, 0),
                      "the header fails its checksum");
    return ONCE_OK;
}

/* Files after the last are ready; there is no gap between them. */
static int find_ready(struct recovery *r)
{
    uint64_t id;
    int code = ONCE_OK;

    for (id = r->last.id + 1; code == ONCE_OK && id <= r->highest; id++) {
        if (once__segment_file(r->j, id) < 0)
            return errno == ENOENT ? damage(r, once__journal_at(id, 0),
                                            "the segment is missing")
                                   : trouble(r, id, "opening");
        code = note_size(r, id);
        if (code == ONCE_OK)
            code = check_unused(r, id);
    }
    r->j->shared->ready = r->highest;
    return code;
}

static int find_files(struct recovery *r)
{
    struct once__shared *s = r->j->shared;
    uint64_t id;
    int code = ONCE_OK;

    s->first = r->lowest;
    s->last = r->last.id;
    for (id = r->lowest; code == ONCE_OK && id <= r->last.id; id++)
        if (once__segment_file(r->j, id) >= 0)
            code = note_size(r, id);
    return code == ONCE_OK ? find_ready(r) : code;
}

/* ---- Walking ------------------------------------------------------------ */

static int take_frame(struct recovery *r, const struct once__frame *f,
                      uint64_t at)
{
    struct once__shared *s = r->j->shared;
    struct once__slot slot;

    if (f->fence > s->fence)
        s->fence = f->fence;
    if (f->kind == ONCE__FRAME_FORGOTTEN)
        once__index_remove(r->j, f->name);
    if (f->kind != ONCE__FRAME_RECORD)
        return ONCE_OK;
    memset(&slot, 0, sizeof(slot));
    memcpy(slot.name, f->name, ONCE_NAME_SIZE);
    slot.at = at;
    slot.due = f->due;
    slot.fence = f->fence;
    slot.length = f->length;
    slot.state = f->state;
    if (f->state == ONCE_COMPLETED)
        once__sum_add(&s->average, f->length / 16 - s->average / 16);
    if (once__index_put(r->j, &slot))
        return ONCE_OK;
    return once__fail(r->err, ONCE_ENOMEM,
                      "%s: no room for the index in shared memory", r->j->path);
}

/* Frames that were read and not taken yet. Names lie all over the index: by
 * the time that one is taken its page has come from memory. */
struct queue {
    struct once__frame frames[QUEUE];
    uint64_t at[QUEUE];
    unsigned begin, count;
};

static int queue_pop(struct recovery *r, struct queue *q)
{
    unsigned i = q->begin;

    q->begin = (q->begin + 1) % QUEUE;
    q->count--;
    return take_frame(r, &q->frames[i], q->at[i]);
}

static int queue_push(struct recovery *r, struct queue *q,
                      const struct once__frame *f, uint64_t at)
{
    unsigned i;
    int code = q->count == QUEUE ? queue_pop(r, q) : ONCE_OK;

    i = (q->begin + q->count++) % QUEUE;
    q->frames[i] = *f;
    q->at[i] = at;
    once__index_expect(r->j, f->name);
    return code;
}

static int take_frames(struct recovery *r, struct once__walk *w)
{
    struct queue q = {.count = 0};
    struct once__frame f;
    int more = 0, code = ONCE_OK;

    while (code == ONCE_OK && (more = once__walk_next(w, &f)) == 1)
        code = queue_push(r, &q, &f,
                          once__journal_at(w->id, w->offset - f.length));
    while (code == ONCE_OK && q.count > 0)
        code = queue_pop(r, &q);
    if (code == ONCE_OK && more < 0)
        code = trouble(r, w->id, "reading");
    return code;
}

/* Walks a segment up to `end`, from where the index was saved if that is in it.
 * Where its chain ended is in *stop. */
static int take_segment(struct recovery *r, uint64_t id, uint64_t end,
                        uint64_t *stop)
{
    struct once__walk w;
    int fd = once__segment_file(r->j, id), code;

    if (fd < 0)
        return errno == ENOENT
                   ? damage(r, once__journal_at(id, 0), "the file is missing")
                   : trouble(r, id, "opening");
    code = walk_begin(r, &w, id, end, r->generation);
    if (code != ONCE_OK)
        return code;
    if (id == once__journal_id(r->saved.from)) {
        w.offset = once__journal_offset(r->saved.from);
        w.generation = r->saved.generation;
    }
    code = take_frames(r, &w);
    r->generation = w.generation;
    *stop = once__journal_at(id, w.offset);
    once__walk_end(&w);
    return code;
}

/* A segment that has a next one, which says where this one ends. */
static int take_sealed(struct recovery *r, uint64_t id)
{
    struct once__segment_head head, next = r->last;
    uint64_t stop = 0;
    int code = read_head(r, id, &head);

    if (code == ONCE_ECORRUPT)
        return damage(
            r, once__journal_at(id, 0),
            "the segment is missing, or its header fails its checksum");
    if (code == ONCE_OK && id + 1 < r->last.id)
        code = read_head(r, id + 1, &next);
    if (code == ONCE_ECORRUPT)
        return damage(
            r, once__journal_at(id + 1, 0),
            "the segment is missing, or its header fails its checksum");
    if (code != ONCE_OK)
        return code;
    r->generation = head.generation;
    if (head.fence > r->j->shared->fence)
        r->j->shared->fence = head.fence;
    if (once__journal_id(next.before) != id)
        return damage(r, once__journal_at(id + 1, 0),
                      "its header does not fit the segment before");
    stop = next.before;
    if (id >= once__journal_id(r->saved.from))
        code = take_segment(r, id, once__journal_offset(next.before), &stop);
    if (code == ONCE_OK && stop != next.before)
        code = damage(r, stop, "a frame fails its checksum");
    if (code == ONCE_OK &&
        once__walk_goes_on(once__segment_file(r->j, id), &next))
        code = damage(r, stop, "the log goes on after its end");
    return code;
}

/* How far the last segment's frames say that it was durable. */
static int look_ahead(struct recovery *r, uint64_t *chain, uint64_t *orphan)
{
    struct once__walk w;
    struct once__frame f;
    uint64_t id = r->last.id;
    int code, more;

    code = walk_begin(r, &w, id, once__segment(r->j->shared, id)->size,
                      r->last.generation);
    if (code != ONCE_OK)
        return code;
    while ((more = once__walk_next(&w, &f)) == 1)
        if (f.durable > r->known)
            r->known = f.durable;
    *chain = once__journal_at(id, w.offset);
    *orphan = more < 0 ? 0 : once__walk_orphan(&w);
    once__walk_end(&w);
    return more < 0 ? trouble(r, id, "reading") : ONCE_OK;
}

/* After what is known to be durable a frame counts only with its record: the
 * position of the first that fails its checksum, or of the end of the chain. */
static int whole_up_to(struct recovery *r, uint64_t chain, uint64_t *out)
{
    struct once__walk w;
    struct once__frame f;
    once_record record;
    uint64_t id = r->last.id;
    int code;

    code =
        walk_begin(r, &w, id, once__journal_offset(chain), r->last.generation);
    if (code != ONCE_OK)
        return code;
    *out = chain;
    while (code == ONCE_OK && once__walk_next(&w, &f) == 1) {
        if (once__journal_at(id, w.offset) <= r->known ||
            f.kind != ONCE__FRAME_RECORD)
            continue;
        code = once__walk_record(&w, &f, &record);
        if (code != ONCE_OK)
            *out = once__journal_at(id, w.offset - f.length);
    }
    once__walk_end(&w);
    return code == ONCE_ESTORE || code == ONCE_ENOMEM
               ? trouble(r, id, "reading")
               : ONCE_OK;
}

/* Where the log ends. */
static int find_end(struct recovery *r)
{
    uint64_t chain = 0, orphan = 0, start;
    int code;

    start = once__journal_at(r->last.id, ONCE__JOURNAL_HEADER);
    code = look_ahead(r, &chain, &orphan);
    if (code != ONCE_OK)
        return code;
    if (r->left->state == ONCE__LEFT_CUT) {
        r->end = r->left->at < start ? start : r->left->at;
        return chain < r->left->at
                   ? damage(r, chain,
                            "a frame that was durable fails its checksum")
                   : ONCE_OK;
    }
    if (chain < r->known || orphan != 0)
        return damage(r, chain, "a frame that was durable fails its checksum");
    return whole_up_to(r, chain, &r->end);
}

/* Which segments there must be: the last header says, and MARKs after it. */
static int find_needed(struct recovery *r)
{
    struct once__walk w;
    struct once__frame f;
    int code;

    r->needed = r->last.first;
    code = walk_begin(r, &w, r->last.id, once__journal_offset(r->end),
                      r->last.generation);
    if (code != ONCE_OK)
        return code;
    while (once__walk_next(&w, &f) == 1)
        if (f.kind == ONCE__FRAME_MARK && f.due > r->needed)
            r->needed = f.due;
    once__walk_end(&w);
    if (r->lowest > r->needed)
        return damage(r, once__journal_at(r->needed, 0),
                      "the segment is missing");
    if (r->j->shared->ready - r->needed >= ONCE__JOURNAL_SEGMENTS)
        return once__fail(r->err, ONCE_EOPEN,
                          "%s: there are more than %d segments", r->j->path,
                          ONCE__JOURNAL_SEGMENTS);
    return ONCE_OK;
}

static int take_all(struct recovery *r)
{
    struct once__shared *s = r->j->shared;
    uint64_t id, stop = 0;
    int code = ONCE_OK;

    for (id = r->needed; code == ONCE_OK && id < r->last.id; id++)
        code = take_sealed(r, id);
    if (code != ONCE_OK)
        return code;
    r->generation = r->last.generation;
    if (r->last.fence > s->fence)
        s->fence = r->last.fence;
    code = take_segment(r, r->last.id, once__journal_offset(r->end), &stop);
    if (code == ONCE_OK && stop != r->end)
        code = damage(r, stop, "a frame fails its checksum");
    return code;
}

/* ---- With an index that was saved --------------------------------------- */

static int clear_index(struct recovery *r)
{
    struct once__shared *s = r->j->shared;
    unsigned i;

    for (i = 0; i < ONCE__JOURNAL_SEGMENTS; i++)
        s->segments[i].live = s->segments[i].bytes = 0;
    s->average = 512;
    s->saved = 0;
    if (once__index_clear(r->j) == ONCE_OK)
        return ONCE_OK;
    return once__fail(r->err, ONCE_ENOMEM,
                      "%s: no room for the index in shared memory", r->j->path);
}

/* 1 if no name is in a segment that was dropped. */
static int all_are_here(const struct recovery *r)
{
    struct once__shared *s = r->j->shared;
    uint64_t id, live = 0;

    for (id = r->needed; id <= r->last.id; id++)
        live += once__segment(s, id)->live;
    return live == s->records;
}

/* While it is opened; later no one listens. */
static void say_refused(const struct recovery *r, const char *why)
{
    char text[PATH_MAX + 128];

    if (r->j->event == NULL || r->j->shared->open)
        return;
    (void)snprintf(text, sizeof(text),
                   "%s/%s: %s: not used, the whole log is read", r->j->path,
                   ONCE__JOURNAL_INDEX, why);
    r->j->event(r->j->event_user, text);
}

/* What was saved, and the log from there on; all of it where that does not go
 * well: what is wrong then is wrong with the log. */
static int take_log(struct recovery *r)
{
    once_error *err = r->err;
    const char *why = once__saved_load(r->j, r->needed, r->end, &r->saved);
    int code;

    if (why == NULL && r->saved.from != 0) {
        r->err = NULL;
        code = take_all(r);
        r->err = err;
        if (code == ONCE_OK && all_are_here(r)) {
            r->j->shared->saved = r->saved.from;
            return ONCE_OK;
        }
        why = code == ONCE_OK ? "it has names in segments that are gone"
                              : "the log after it cannot be taken";
    }
    if (why != NULL) {
        say_refused(r, why);
        if (!r->j->read_only)
            once__saved_remove(r->j);
        r->saved.from = 0;
        code = clear_index(r);
        if (code != ONCE_OK)
            return code;
    }
    return take_all(r);
}

/* A CUT may lie in a segment before the last: those after it are removed, or
 * the next to come would take them for the log's end. */
static int drop_behind_cut(struct recovery *r)
{
    uint64_t id = once__journal_id(r->left->at);

    if (r->left->state != ONCE__LEFT_CUT || id >= r->last.id)
        return ONCE_OK;
    if (read_head(r, id, &r->last) != ONCE_OK)
        return damage(r, r->left->at, "the log was cut here and is gone");
    r->j->shared->last = r->j->shared->ready = id;
    return ONCE_OK;
}

/* ---- Going on ----------------------------------------------------------- */

static int begin(struct recovery *r)
{
    struct once__shared *s = r->j->shared;

    s->building = 1;
    once__undo_end(r->j);
    s->forgotten = 0;
    s->generation = 0;
    s->full = 0;
    return clear_index(r);
}

/* No fence is granted again that an earlier incarnation may have granted. */
static int begin_fences(struct recovery *r)
{
    once_store_head head;
    int code = once__journal_head_load(r->j->folder, r->j->path, &head, r->err);

    if (code == ONCE_OK)
        r->j->shared->fence = once__fence_floor(&head, r->j->shared->fence);
    return code;
}

/* A number that no log here has ever had, nor will have. */
static int new_generation(struct recovery *r)
{
    uint64_t number;

    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number))
        return once__fail(r->err, ONCE_EOPEN, "%s: no random numbers",
                          r->j->path);
    r->j->shared->generation = number;
    return ONCE_OK;
}

/* The log goes on, in a new generation. */
static int go_on(struct recovery *r)
{
    uint64_t before = r->j->shared->generation;
    int code;

    once__undo_begin(r->j);
    code = new_generation(r);
    if (code == ONCE_OK)
        code = once__journal_mark(r->j, before, r->err);
    return code == ONCE_OK ? once__journal_flush(r->j, r->err) : code;
}

/* Writes again what was not known to be durable, and flushes it. */
static int write_again(struct recovery *r)
{
    uint64_t from = 0, to = once__journal_offset(r->end), end;
    int fd = once__segment_file(r->j, r->last.id);

    if (once__journal_id(r->known) == r->last.id)
        from = once__journal_offset(r->known);
    for (; from < to; from = end) {
        end = to - from < PIECE ? to : from + PIECE;
        if (once__file_rewrite(fd, from, end) != 0)
            return trouble(r, r->last.id, "writing");
        if (fdatasync(fd) != 0)
            return trouble(r, r->last.id, "flushing");
        atomic_fetch_add(&r->j->shared->recovered, end - from);
    }
    return ONCE_OK;
}

/* What was taken over is made durable before an answer comes from it. */
static int settle(struct recovery *r)
{
    struct once__shared *s = r->j->shared;
    int code = write_again(r);

    if (code != ONCE_OK)
        return code;
    s->fence += FENCE_JUMP;
    code = go_on(r);
    if (code == ONCE_OK && fdatasync(once__segment_file(r->j, s->last)) != 0)
        code = trouble(r, s->last, "flushing");
    return code;
}

static int remove_leftovers(struct recovery *r)
{
    char name[ONCE__SEGMENT_NAME];
    uint64_t id;
    int removed = 0;

    for (id = r->lowest; id <= r->highest; id++) {
        if (id >= r->needed && id <= r->j->shared->ready)
            continue;
        once__segment_name(id, name);
        removed |= unlinkat(r->j->folder, name, 0) == 0;
    }
    once__segment_close_all(r->j); /* these, too */
    if (removed && fsync(r->j->folder) != 0)
        return trouble(r, r->last.id, "removing others");
    return ONCE_OK;
}

/* The very first segment. */
static int make_first(struct recovery *r)
{
    struct once__shared *s = r->j->shared;
    struct once__segment_head h = {.id = 1, .first = 1};
    uint8_t block[ONCE__JOURNAL_HEADER];
    int fd, rc, code = new_generation(r);

    if (code != ONCE_OK)
        return code;
    h.generation = s->generation;
    s->first = s->marked = 1;
    s->last = s->ready = 0;
    rc = once__segment_prepare(r->j, 0, NULL);
    if (rc != 0)
        return once__fail(r->err, ONCE_EOPEN, "%s: making a segment: %s",
                          r->j->path, strerror(rc));
    once__segment_head_put(&h, block);
    fd = once__segment_file(r->j, 1);
    if (fd < 0 || once__file_write(fd, block, sizeof(block), 0) != 0 ||
        fdatasync(fd) != 0)
        return trouble(r, 1, "writing");
    s->last = 1;
    s->tail = s->durable = once__journal_at(1, ONCE__JOURNAL_HEADER);
    return ONCE_OK;
}

/* What is there is taken over; the same after a start and after a death. */
static int take_over(struct recovery *r)
{
    struct once__shared *s = r->j->shared;
    int code = find_end(r);

    if (code == ONCE_OK)
        code = find_needed(r);
    if (code == ONCE_OK)
        code = take_log(r);
    if (code != ONCE_OK)
        return code;
    s->marked = r->needed;
    s->generation = r->generation;
    s->tail = r->end;
    r->j->start = r->end;
    r->j->used = 0;
    return ONCE_OK;
}

static int recover_files(struct recovery *r)
{
    int code = find_files(r);

    if (code == ONCE_OK)
        code = drop_behind_cut(r);
    if (code == ONCE_OK)
        code = take_over(r);
    if (code != ONCE_OK)
        return code;
    r->j->shared->first = r->needed; /* what is before it is removed below */
    if (r->j->read_only)
        return ONCE_OK;
    if (r->left->state != ONCE__LEFT_CLEAN || r->left->at != r->end)
        code = settle(r);
    if (code == ONCE_EFULL)
        code = once__fail(r->err, ONCE_EOPEN, "%s: %s", r->j->path,
                          strerror(ENOSPC));
    return code == ONCE_OK ? remove_leftovers(r) : code;
}

int once__recover(struct once__journal *j, const struct once__left *left,
                  once_error *err)
{
    struct recovery r = {
        .j = j, .left = left, .err = err, .known = left->known};
    int code = begin(&r), is_new;

    if (!j->read_only) {
        (void)unlinkat(j->folder, ONCE__JOURNAL_UNFINISHED, 0);
        (void)unlinkat(j->folder, ONCE__JOURNAL_NEXT_HEAD, 0);
        (void)unlinkat(j->folder, ONCE__JOURNAL_NEXT_INDEX, 0);
    }
    if (code == ONCE_OK &&
        once__segment_range(j->folder, &r.lowest, &r.highest) != 0)
        code = once__fail(err, ONCE_EOPEN, "%s: %s", j->path, strerror(errno));
    if (code != ONCE_OK)
        return code;
    code = find_last(&r);
    is_new = code == ONCE_ECORRUPT && left->state == ONCE__LEFT_NEW;
    if (is_new) /* a file of a segment is made after the head */
        code = r.highest == 0 ? once__journal_head_make(j, err) : ONCE_OK;
    if (code == ONCE_OK)
        code = begin_fences(&r);
    if (code == ONCE_OK)
        code = is_new ? make_first(&r) : recover_files(&r);
    if (code != ONCE_OK)
        return code;
    j->shared->durable = j->shared->tail;
    j->shared->building = 0;
    return ONCE_OK;
}

/*
 * The dead one may have begun the next segment, which says that this one ends
 * here. But the log goes on in this one: that header shall never be read.
 */
static int forget_next(struct recovery *r)
{
    static const uint8_t nothing[ONCE__JOURNAL_HEADER];
    struct once__journal *j = r->j;
    uint64_t id = j->shared->last + 1;
    int fd;

    if (j->shared->begun != id)
        return ONCE_OK;
    fd = once__segment_file(j, id);
    if (fd < 0)
        return trouble(r, id, "opening");
    if (once__file_write(fd, nothing, sizeof(nothing), 0) != 0)
        return once__journal_unwritten(j, errno, "a write", r->err);
    if (fdatasync(fd) != 0)
        return once__journal_poison(j, errno, "a flush", r->err);
    j->shared->begun = 0;
    return ONCE_OK;
}

int once__recover_undone(struct once__journal *j, once_error *err)
{
    struct recovery r = {.j = j, .err = err};
    int code;

    j->start = j->shared->tail;
    j->used = 0;
    j->shared->last = once__journal_id(j->shared->tail);
    code = begin_fences(&r); /* it may have been changing DIR/head */
    if (code == ONCE_OK)
        code = forget_next(&r);
    /* What the dead one wrote and no other read ends here. */
    return code == ONCE_OK ? go_on(&r) : code;
}

int once__recover_locked(struct once__journal *j, once_error *err)
{
    struct once__shared *s = j->shared;
    struct once__left left = {ONCE__LEFT_OPEN, 0, s->durable};
    struct recovery r = {.j = j,
                         .left = &left,
                         .err = err,
                         .known = s->durable,
                         .lowest = s->first};
    int code;

    s->last = once__journal_id(s->tail);
    code = begin(&r);
    if (code == ONCE_OK)
        code = begin_fences(&r);
    if (code == ONCE_OK)
        code = read_head(&r, s->last, &r.last);
    if (code == ONCE_ECORRUPT)
        code = damage(&r, once__journal_at(s->last, 0),
                      "the header fails its checksum");
    if (code == ONCE_OK)
        code = take_over(&r);
    if (code != ONCE_OK)
        return code;
    s->building = 0;
    return once__recover_undone(j, err);
}

/* Of a log that was replaced, memory knows nothing. All of the last segment must
 * be there up to the tail, and with its records where that is not durable. */
static int is_log_of_memory(struct recovery *r)
{
    const struct once__shared *s = r->j->shared;
    struct once__walk w;
    struct once__frame f;
    uint64_t whole = 0;
    int code = read_head(r, s->last, &r->last), same;

    if (code == ONCE_OK)
        code = walk_begin(r, &w, s->last, once__journal_offset(s->tail),
                          r->last.generation);
    if (code != ONCE_OK)
        return code;
    while (once__walk_next(&w, &f) == 1)
        ;
    same = once__journal_at(s->last, w.offset) == s->tail &&
           w.generation == s->generation;
    once__walk_end(&w);
    if (same)
        code = whole_up_to(r, s->tail, &whole);
    return code == ONCE_OK && whole != s->tail ? ONCE_ECORRUPT : code;
}

int once__recover_kept(struct once__journal *j, once_error *err)
{
    struct once__shared *s = j->shared;
    struct recovery r = {.j = j, .err = err, .known = s->durable};
    int code = ONCE_ENOMEM;

    if (once__shared_view(j))
        code = once__undo_apply(j) ? ONCE_OK : ONCE_ECORRUPT;
    if (code != ONCE_OK)
        return code;
    j->start = r.end = s->tail;
    j->used = 0;
    s->last = once__journal_id(s->tail);
    code = is_log_of_memory(&r);
    if (code == ONCE_OK)
        code = begin_fences(&r);
    if (code == ONCE_OK)
        code = forget_next(&r);
    if (code == ONCE_OK)
        code = settle(&r);
    if (code != ONCE_OK)
        return code;
    s->durable = s->tail;
    s->flushing = 0;
    s->broken = 0;
    return ONCE_OK;
}
