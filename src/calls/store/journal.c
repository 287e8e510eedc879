/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.c - the durable store that costs little:
 * "journal:DIR[?busy_ms=N][&segment=BYTES]".
 *
 * An append-only log in a folder, shared by the processes of one host. A batch
 * is decided under one lock against an index in shared memory, is one write at
 * the end of the log, and then waits for a flush that it shares with all calls
 * that wait. Nothing is answered from a frame that is not durable yet, but for
 * "in flight", which promises nothing.
 *
 *    journal.c    this file: the driver, deciding, scanning
 *    journal/     handle.h has a picture of the files. session: opening,
 *                 closing; recover: from the log to memory; frame, walk,
 *                 segment, log, file: bytes, files, appending, flushing; lock:
 *                 who appends, and repair; poison: failed writes; shared,
 *                 index, directory: memory of all processes; undo: what a
 *                 change of it replaced; compactor: making room;
 *                 checkpoint, saved: the index beside the log, and back;
 *                 recent: what we wrote last; list: records in order; head:
 *                 which store it is; time: what was seen of it; check: verify
 *                 and dump
 *
 * It refuses a folder of something else, a log that is damaged where it was
 * durable, to go on after a flush that failed, and to answer from a folder that
 * was moved away or replaced meanwhile. Durable means here: an
 * acknowledged step is on the disk, as far as the disk says so; and of a
 * sector that is written again with the same first bytes, these stay.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls/core/bounds.h"
#include "calls/core/transition.h"
#include "base/error.h"
#include "base/must.h"
#include "calls/store/arena.h"
#include "calls/store/journal/handle.h"
#include "base/path.h"
#include "calls/store/place.h"
#include "calls/store/store.h"
#include "base/url.h"

enum {
    BUSY_MAX_MS = 600000,
    WRITE_AT = 1 << 20, /* more frames than this are written at once */
    AHEAD = 8,          /* operations whose place is looked up early */
    DAMAGED = 255,      /* state of a record that cannot be read     */
    DUE_AT_ONCE = 256,  /* slots                                     */
    PAGES_AT_ONCE = 256 /* of the index, under one lock              */
};

#define SEGMENT_MIN UINT64_C(65536)
#define SEGMENT_MAX (UINT64_C(1) << 30)
#define SEGMENT_DEFAULT (UINT64_C(64) << 20)

struct journal {
    once_store store;
    once_store_options options;
    struct once__journal log;
    struct once__compactor *compactor;
    struct once__places places; /* the folder, and the lock in it */
    struct once__arena arena;   /* bytes of answers, until the next call */
    struct once__list list;
    uint64_t last;   /* segment that was the last one when we looked */
    uint32_t cursor; /* page of the index where the next scan begins */
};

/* ---- Opening ------------------------------------------------------------- */

static int parse(struct once__journal *j, const char *rest, once_error *err)
{
    uint64_t busy_ms = j->busy_ms;
    char *url = strdup(rest);
    size_t length;
    int code;

    if (url == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    code = once__url_take_number(url, "busy_ms", 1, BUSY_MAX_MS, &busy_ms, err);
    if (code >= 0)
        code = once__url_take_number(url, "segment", SEGMENT_MIN, SEGMENT_MAX,
                                     &j->segment_max, err);
    if (code >= 0)
        code = once__url_end("journal", url, "busy_ms and segment", err);
    if (code == ONCE_OK && *url == '\0')
        code = once__fail(err, ONCE_EURL, "journal: a folder is missing");
    j->busy_ms = (uint32_t)busy_ms;
    j->segment_max = j->segment_max / 4096 * 4096;
    for (length = strlen(url); length > 1 && url[length - 1] == '/'; length--)
        url[length - 1] = '\0';
    if (code == ONCE_OK)
        code = once__path_resolve("journal", url, &j->path, err);
    if (code == ONCE_EOPEN && errno == ENOENT && !j->create)
        code = once__missing(err, url, "the folder around it does not exist");
    free(url);
    return code;
}

static void journal_close(once_store *store)
{
    struct journal *s = (struct journal *)store;

    if (s == NULL)
        return;
    once__compactor_close(s->compactor);
    once__session_close(&s->log);
    once__places_clear(&s->places);
    once__arena_clear(&s->arena);
    free(s->list.places);
    free(s);
}

static int journal_open(const char *rest, const once_store_options *options,
                        once_error *err, once_store **out)
{
    struct journal *s = calloc(1, sizeof(*s));
    size_t path = strcspn(rest, "?"); /* its length */
    int code;

    if (s == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    s->store.ops = &once__store_journal;
    s->options = *options;
    once__handle_init(&s->log);
    s->log.busy_ms = options->busy_ms;
    s->log.segment_max = SEGMENT_DEFAULT;
    s->log.create = options->create != 0;
    s->log.look = options->look != 0;
    s->log.event = options->event;
    s->log.event_user = options->event_user;
    code = parse(&s->log, rest, err);
    if (code == ONCE_OK)
        code = once__session_open(&s->log, err);
    if (code == ONCE_OK)
        code =
            once__places_note(&s->places, rest, path, "", s->log.folder, err);
    if (code == ONCE_OK)
        code = once__places_note(&s->places, rest, path, "/lock",
                                 s->log.lock_fd, err);
    if (code == ONCE_OK && !s->log.read_only)
        code = once__compactor_open(&s->log, err, &s->compactor);
    if (code != ONCE_OK) {
        journal_close(&s->store);
        return code;
    }
    once__compactor_wake(s->compactor);
    *out = &s->store;
    return ONCE_OK;
}

/* ---- Deciding ------------------------------------------------------------ */

/* What was read for an operation while no other process waited. */
struct ahead {
    struct once__slot slot; /* at 0: nothing */
    int code;
    once_record record;
};

enum { ASIDE = 2 }; /* beside ONCE__LATER: read it aside, then decide */

/* One batch under way. */
struct batch {
    struct ahead *ahead; /* NULL: all was at hand so far; for each operation: */
    size_t count;        /* 0: what is needed is read with the lock           */
    uint64_t generation; /* of the log when they were looked up               */
    uint64_t now_ms;
    uint64_t wait; /* no answer before the log is durable up to here */
    int changed;   /* the log has grown */
    int locked;
    int late;              /* no room for claims, and no time to wait for it */
    struct timespec until; /* then it is late; 0: there was room so far    */
    once_error *err;
};

static void refuse(once_op *op, int code)
{
    op->rc = code;
    op->left_ms = 0;
    memset(&op->record, 0, sizeof(op->record));
}

static void wait_for(struct batch *b, uint64_t at)
{
    if (at > b->wait)
        b->wait = at;
}

static int load(struct journal *s, const struct once__slot *slot,
                once_record *r)
{
    uint8_t *bytes = once__arena_take(&s->arena, slot->length);

    if (bytes == NULL)
        return ONCE_ENOMEM;
    return once__journal_load(&s->log, slot, bytes, r);
}

/* The record of operation `i`, which is at `slot` now. ASIDE: it has to be read
 * from the file, and that was not tried yet. */
static int load_for(struct journal *s, const struct batch *b, size_t i,
                    const struct once__slot *slot, once_record *r)
{
    const struct ahead *a = i < b->count ? &b->ahead[i] : NULL;

    if (once__journal_at_hand(&s->log, slot))
        return load(s, slot, r);
    if (b->ahead == NULL)
        return ASIDE;
    /* A repair may give a position to another frame. */
    if (a == NULL || a->slot.at != slot->at || a->code != ONCE_OK ||
        b->generation != s->log.shared->generation)
        return load(s, slot, r);
    *r = a->record;
    return ONCE_OK;
}

/* Appends what there is to say of `name` now: 1, or an error and nothing was
 * changed. */
static int append(struct journal *s, const uint8_t *name, const once_record *r,
                  uint64_t reserve, struct batch *b)
{
    struct once__journal *j = &s->log;
    struct once__frame f = {.kind = ONCE__FRAME_RECORD,
                            .state = r->state,
                            .fence = r->fence,
                            .due = once__journal_due(r)};
    struct once__slot slot;
    int code = once__journal_room(j, once__frame_size_of(r), reserve, b->err);

    if (code != ONCE_OK)
        return code;
    memset(&slot, 0, sizeof(slot));
    memcpy(f.name, name, ONCE_NAME_SIZE);
    memcpy(slot.name, name, ONCE_NAME_SIZE);
    slot.at = once__journal_append(j, &f, r);
    if (slot.at == 0)
        return ONCE_ENOMEM;
    slot.due = f.due;
    slot.fence = f.fence;
    slot.length = f.length;
    slot.state = f.state;
    if (!once__index_put(j, &slot)) {
        j->used -= f.length;
        return ONCE_EFULL;
    }
    /* Not before: the next writer may put another frame at that place. */
    once__recent_put(&j->recent, slot.at, j->buffer + j->used - f.length,
                     f.length);
    if (r->state == ONCE_COMPLETED)
        once__sum_add(&j->shared->average,
                      f.length / 16 - j->shared->average / 16);
    return ONCE_OK;
}

static int append_forgotten(struct journal *s, const uint8_t *name,
                            uint64_t reserve, struct batch *b)
{
    struct once__journal *j = &s->log;
    struct once__frame f = {.kind = ONCE__FRAME_FORGOTTEN};
    int code = once__journal_room(j, ONCE__FRAME_HEAD, reserve, b->err);

    if (code != ONCE_OK)
        return code;
    memcpy(f.name, name, ONCE_NAME_SIZE);
    if (once__journal_append(j, &f, NULL) == 0)
        return ONCE_ENOMEM;
    once__index_remove(j, name);
    j->shared->forgotten = j->start + j->used;
    return ONCE_OK;
}

/*
 * Most forgetting is decided by what the index knows, without reading a result
 * that is about to be forgotten. 1: decided.
 */
static int forget_unread(const struct once__slot *slot, once_op *op,
                         uint64_t now_ms)
{
    once_record r;
    uint64_t fence = 0;

    if (op->verb != ONCE_OP_FORGET ||
        (slot->state != ONCE_COMPLETED && slot->state != ONCE_ABSENT))
        return 0;
    memset(&r, 0, sizeof(r));
    r.state = slot->state;
    r.kind = slot->state == ONCE_COMPLETED ? ONCE_SUCCESS : ONCE_NO_KIND;
    r.attempt = 1;
    r.fence = slot->fence;
    r.keep_ms = slot->due;
    return once__transition(&r, op, now_ms, &fence) && op->rc == ONCE_OK;
}

/* Appends what has changed. ONCE_OK, or why not: then it has not changed. */
static int keep(struct journal *s, struct batch *b, once_op *op,
                const once_record *r, uint64_t fence)
{
    struct once__shared *shared = s->log.shared;
    uint64_t reserve = ONCE__JOURNAL_SPARE;
    int code;

    if (s->log.read_only)
        return once__fail(b->err, ONCE_ESTORE,
                          "%s: its file system is mounted read-only",
                          s->log.path);
    if (fence != shared->fence) /* a grant: those who have one come first */
        reserve = once__segment_reserve(&s->log);
    code = r->attempt == 0 ? append_forgotten(s, op->name, reserve, b)
                           : append(s, op->name, r, reserve, b);
    if (code != ONCE_OK)
        return code;
    ONCE__MUST(fence >= shared->fence); /* never the same one twice */
    shared->fence = fence;
    b->changed = 1;
    wait_for(b, s->log.start + s->log.used);
    return s->log.used < WRITE_AT ? ONCE_OK
                                  : once__journal_flush(&s->log, b->err);
}

/* ONCE_OK, also if the operation itself was refused; ONCE__LATER, ASIDE: it was
 * not decided yet, for want of room or of what it says; else the batch ends. */
static int decide(struct journal *s, struct batch *b, once_op *op, size_t i)
{
    struct once__shared *shared = s->log.shared;
    const struct once__slot *slot = once__index_find(&s->log, op->name);
    uint64_t fence = shared->fence, seen = shared->forgotten;
    uint64_t now_ms =
        once__time_of(&s->store, op->verb == ONCE_OP_FORGET, b->now_ms);
    once_record r, before;
    int code = ONCE_OK, changed = 0;

    memset(&r, 0, sizeof(r));
    if (slot != NULL) {
        seen = slot->at + slot->length;
        changed = forget_unread(slot, op, now_ms);
        if (!changed)
            code = load_for(s, b, i, slot, &r);
    }
    if (code == ASIDE)
        return code;
    if (code != ONCE_OK) {
        refuse(op, code);
        return ONCE_OK;
    }
    before = r;
    if (!changed)
        changed = once__transition(&r, op, now_ms, &fence);
    if (op->rc != ONCE_IN_FLIGHT)
        wait_for(b, seen);
    code = changed ? keep(s, b, op, &r, fence) : ONCE_OK;
    if (code == ONCE_OK || (code == ONCE__LATER && !b->late))
        return code;
    if (code == ONCE__LATER) { /* as if it had not been asked */
        refuse(op, ONCE_ESTORE);
        return ONCE_OK;
    }
    if (code == ONCE_EFULL) /* maybe there is something to drop */
        once__compactor_wake(s->compactor);
    refuse(op, code);
    op->record = before;
    return code == ONCE_ESTORE ? ONCE_ESTORE : ONCE_OK;
}

/* Segments are made ahead: whenever one was begun, or claims have taken much of
 * what is there, the compactor looks. Where the disk is full it does that once
 * a second, and when a claim was refused. */
static void look_after(struct journal *s)
{
    uint64_t last = s->log.shared->last;

    if (last == s->last &&
        (s->log.shared->full || !once__segment_short(&s->log)))
        return;
    s->last = last;
    once__compactor_wake(s->compactor);
}

static void set_until(const struct journal *s, struct timespec *until)
{
    (void)clock_gettime(CLOCK_MONOTONIC, until);
    until->tv_sec += s->log.busy_ms / 1000;
    until->tv_nsec += (long)(s->log.busy_ms % 1000) * 1000000;
    if (until->tv_nsec >= 1000000000) {
        until->tv_nsec -= 1000000000;
        until->tv_sec++;
    }
}

/*
 * What is kept back for the next claim is being made, and all others may
 * go on meanwhile. What was decided so far stays so.
 */
static int step_aside(struct journal *s, struct batch *b)
{
    int code = once__journal_flush(&s->log, b->err);

    once__journal_unlock(&s->log);
    b->locked = 0;
    if (code != ONCE_OK)
        return code;
    if (b->until.tv_sec == 0)
        set_until(s, &b->until);
    b->late = once__compactor_await(s->compactor, &b->until) != 0;
    code = once__journal_lock(&s->log, b->err);
    b->locked = code == ONCE_OK;
    b->now_ms = s->options.clock(s->options.user);
    return code;
}

/* What has to be read for the operations from `i` on; with the lock. */
static void look_ahead(struct journal *s, struct batch *b, once_op **ops,
                       size_t i, size_t n)
{
    const struct once__slot *slot;

    b->count = n;
    b->generation = s->log.shared->generation;
    for (; i < n; i++) {
        slot = once__index_find(&s->log, ops[i]->name);
        if (slot != NULL && ops[i]->verb != ONCE_OP_FORGET &&
            !once__journal_at_hand(&s->log, slot))
            b->ahead[i].slot = *slot;
    }
}

/*
 * Reads them with the lock let go: a process without a processor, or with a
 * slow disk, keeps no process waiting. What has changed meanwhile is read
 * again.
 */
static int read_aside(struct journal *s, struct batch *b, once_op **ops,
                      size_t i, size_t n)
{
    static struct ahead none;
    int code = once__journal_flush(&s->log, b->err);

    b->ahead = once__arena_take(&s->arena, n * sizeof(*b->ahead));
    if (b->ahead == NULL) { /* then with the lock */
        b->ahead = &none;
        return code;
    }
    memset(b->ahead, 0, n * sizeof(*b->ahead));
    if (code == ONCE_OK)
        look_ahead(s, b, ops, i, n);
    once__journal_unlock(&s->log);
    b->locked = 0;
    for (; code == ONCE_OK && i < n; i++)
        if (b->ahead[i].slot.at != 0)
            b->ahead[i].code = load(s, &b->ahead[i].slot, &b->ahead[i].record);
    if (code == ONCE_OK)
        code = once__journal_lock(&s->log, b->err);
    b->locked = code == ONCE_OK;
    b->now_ms = s->options.clock(s->options.user);
    return code;
}

/* Decides in order. All that was written counts, also where it ends early. */
static int decide_all(struct journal *s, struct batch *b, once_op **ops,
                      size_t n)
{
    size_t i = 0;
    int code = ONCE_OK, written;

    while (i < n && code == ONCE_OK) {
        if (i + AHEAD < n)
            once__index_expect(&s->log, ops[i + AHEAD]->name);
        code = decide(s, b, ops[i], i);
        if (code == ONCE__LATER)
            code = step_aside(s, b);
        else if (code == ASIDE)
            code = read_aside(s, b, ops, i, n);
        else
            i++;
    }
    if (!b->locked)
        return code;
    /* Also what will not be answered: the index knows it already. */
    written = once__journal_flush(&s->log, b->err);
    once__journal_unlock(&s->log);
    return code == ONCE_OK ? written : code;
}

static int journal_apply(once_store *store, once_op **ops, size_t n,
                         once_error *err)
{
    struct journal *s = (struct journal *)store;
    struct batch b = {.err = err};
    int code;

    once__arena_reset(&s->arena);
    if (n == 0)
        return ONCE_OK;
    code = once__places_glance(&s->places, err);
    if (code == ONCE_OK)
        code = once__journal_lock(&s->log, err);
    if (code != ONCE_OK)
        return code;
    b.locked = 1;
    b.now_ms = s->options.clock(s->options.user);
    code = decide_all(s, &b, ops, n);
    if (code == ONCE_OK)
        code = once__journal_sync(&s->log, b.wait, err);
    /* Not one answer before what it says is durable. */
    ONCE__MUST(code != ONCE_OK || s->log.shared->durable >= b.wait);
    if (code == ONCE_OK && b.changed)
        code = once__places_look(&s->places, err);
    look_after(s);
    return code;
}

/* ---- Scanning: what is due ---------------------------------------------- */

struct view {
    once_each *each;
    void *user;
    uint32_t max;
    int shown, enough;
};

static void show(struct view *v, const uint8_t *name, const once_record *r)
{
    v->shown++;
    v->enough = v->each(v->user, name, r) != 0 || (uint32_t)v->shown >= v->max;
}

/* Where the record of `name` is now: 1; 0: there is none. */
static int find_slot(struct journal *s, const uint8_t *name,
                     struct once__slot *out, once_error *err)
{
    const struct once__slot *slot;
    int code = once__journal_lock(&s->log, err);

    if (code != ONCE_OK)
        return code;
    slot = once__index_find(&s->log, name);
    if (slot != NULL)
        *out = *slot;
    once__journal_unlock(&s->log);
    return slot != NULL;
}

/*
 * 1: `*r` is the record of `name` as it was a moment ago. 0: there is none. It is
 * read without the lock: what fails its checksum may have moved meanwhile, and
 * is damaged if it has not.
 */
static int look_up(struct journal *s, const uint8_t *name, once_record *r,
                   once_error *err)
{
    struct once__slot slot = {.at = 0};
    uint64_t before;
    int code;

    do {
        before = slot.at;
        code = find_slot(s, name, &slot, err);
        if (code != 1)
            return code;
        code = load(s, &slot, r);
        if (code != ONCE_ECORRUPT && code != ONCE_EVERSION)
            return code == ONCE_OK ? 1 : code;
    } while (slot.at != before);
    memset(r, 0, sizeof(*r));
    r->state = DAMAGED;
    return 1;
}

/* Read without the lock: if it fails its checksum it may have moved meanwhile.
 * */
static int show_slot(struct journal *s, struct view *v,
                     const struct once__slot *slot, once_error *err)
{
    once_record r;
    int code, there = 1;

    once__arena_reset(&s->arena);
    code = load(s, slot, &r);
    if (code != ONCE_OK) {
        there = look_up(s, slot->name, &r, err);
        if (there <= 0)
            return there;
    }
    r.result.data = NULL;
    show(v, slot->name, &r);
    return ONCE_OK;
}

/* Copies slots from the next pages. Returns how many, or an error. */
static int next_due(struct journal *s, int what, uint32_t pages,
                    struct once__slot *out, once_error *err)
{
    int n, code = once__journal_lock(&s->log, err);
    uint64_t now_ms;

    if (code != ONCE_OK)
        return code;
    now_ms = once__time_of(&s->store, what == ONCE_SCAN_KEEP,
                           s->options.clock(s->options.user));
    n = (int)once__index_due(&s->log, what, now_ms, &s->cursor, pages, out,
                             DUE_AT_ONCE);
    if (s->cursor >= s->log.shared->pages)
        s->cursor = 0;
    once__journal_unlock(&s->log);
    return n;
}

/* Once around the index, from where the last scan ended. Where nothing is due
 * that is one look at each page's head. */
static int scan_due(struct journal *s, int what, struct view *v,
                    once_error *err)
{
    struct once__slot slots[DUE_AT_ONCE];
    uint32_t begin = s->cursor, from, step = PAGES_AT_ONCE;
    int i, n, code = ONCE_OK, wrapped = 0;

    while (code == ONCE_OK && !v->enough && !(wrapped && s->cursor == begin)) {
        from = s->cursor;
        if (wrapped && begin - from < step)
            step = begin - from;
        n = next_due(s, what, step, slots, err);
        for (i = 0; code == ONCE_OK && i < n && !v->enough; i++)
            code = show_slot(s, v, &slots[i], err);
        if (n < 0)
            code = n;
        if (wrapped && s->cursor <= from)
            break; /* the index is smaller than it was */
        wrapped |= s->cursor <= from;
    }
    return code;
}

/* ---- Scanning: in order ------------------------------------------------- */

/* Is the record still where the list has it? */
static int is_at(int what, const once_position *place, const once_record *r)
{
    switch (what) {
    case ONCE_SCAN_WAITING:
        return r->state == ONCE_INDETERMINATE && r->ended_ms == place->ms;
    case ONCE_SCAN_LIVE:
        return (r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED) &&
               r->lease_ms == place->ms;
    default:
        return 1;
    }
}

static int scan_in_order(struct journal *s, int what,
                         const once_position *after, struct view *v,
                         once_error *err)
{
    once_position place;
    once_record r;
    int code;

    while (!v->enough) {
        code = once__list_next(&s->log, &s->list, what, after,
                               v->max - (uint32_t)v->shown, &place, err);
        if (code <= 0)
            return code;
        after = &place;
        once__arena_reset(&s->arena);
        code = look_up(s, place.name, &r, err);
        if (code < 0)
            return code;
        if (code == 1 && r.state == DAMAGED) /* a page may end with it */
            r.lease_ms = r.ended_ms = place.ms;
        else if (code == 0 || !is_at(what, &place, &r))
            continue; /* it has changed meanwhile */
        r.result.data = NULL;
        show(v, place.name, &r);
    }
    return ONCE_OK;
}

static int journal_scan(once_store *store, int what, const once_position *after,
                        uint32_t max, once_each *each, void *user,
                        once_error *err)
{
    struct journal *s = (struct journal *)store;
    struct view v = {each, user, max > INT_MAX ? INT_MAX : max, 0, max == 0};
    once_position begin = {0, {0}};
    int code;

    if (what < ONCE_SCAN_ALL || what >= ONCE__SCAN_END)
        return once__fail(err, ONCE_EINVAL, "what: %d is not a scan", what);
    code = once__places_glance(&s->places, err);
    if (code != ONCE_OK)
        return code;
    if (after != NULL) {
        begin = *after;
        begin.ms = what == ONCE_SCAN_ALL ? 0 : after->ms;
    }
    if (what == ONCE_SCAN_LEASE || what == ONCE_SCAN_KEEP)
        code = scan_due(s, what, &v, err);
    else
        code = scan_in_order(s, what, after == NULL ? NULL : &begin, &v, err);
    return code == ONCE_OK ? v.shown : code;
}

static int journal_count(once_store *store, once_counts *out, once_error *err)
{
    struct journal *s = (struct journal *)store;
    const struct once__shared *shared = s->log.shared;
    int code = once__places_glance(&s->places, err);

    if (code == ONCE_OK)
        code = once__journal_lock(&s->log, err);
    if (code != ONCE_OK)
        return code;
    memset(out, 0, sizeof(*out));
    out->claimed = shared->owned - shared->dispatched;
    out->dispatched = shared->dispatched;
    out->indeterminate = shared->waiting;
    out->rest = shared->records - shared->owned - shared->waiting;
    once__journal_unlock(&s->log);
    return ONCE_OK;
}

/* ---- Importing ---------------------------------------------------------- */

/* ONCE_OK; ONCE__LATER: there is no room for it yet; or why it cannot be. */
static int import_one(struct journal *s, const once_named *r, struct batch *b)
{
    struct once__shared *shared = s->log.shared;
    int code;

    if (once__index_find(&s->log, r->name) != NULL)
        return once__fail(b->err, ONCE_EINVAL, "%s: a record is there",
                          s->log.path);
    code = append(s, r->name, &r->record, once__segment_reserve(&s->log), b);
    if (code == ONCE_OK && r->record.fence > shared->fence)
        shared->fence = r->record.fence;
    if (code == ONCE_EFULL || (code == ONCE__LATER && b->late))
        code = once__fail(b->err, ONCE_ESTORE, "%s: there is no room",
                          s->log.path);
    if (code != ONCE_OK)
        return code;
    return s->log.used < WRITE_AT ? ONCE_OK
                                  : once__journal_flush(&s->log, b->err);
}

static int import_all(struct journal *s, struct batch *b, const once_named *r,
                      size_t n)
{
    size_t i = 0;
    int code = ONCE_OK, written;

    while (i < n && code == ONCE_OK) {
        code = import_one(s, &r[i], b);
        if (code == ONCE__LATER) {
            code = step_aside(s, b);
        } else {
            b->until.tv_sec = 0; /* each has its time */
            i++;
        }
    }
    if (!b->locked)
        return code;
    written = once__journal_flush(&s->log, b->err);
    b->wait = s->log.start;
    once__journal_unlock(&s->log);
    return code == ONCE_OK ? written : code;
}

static int journal_import(once_store *store, const once_named *r, size_t n,
                          once_error *err)
{
    struct journal *s = (struct journal *)store;
    struct batch b = {.err = err};
    int code = once__places_look(&s->places, err);

    if (code == ONCE_OK)
        code = once__journal_lock(&s->log, err);
    if (code != ONCE_OK)
        return code;
    b.locked = 1;
    code = import_all(s, &b, r, n);
    if (code == ONCE_OK)
        code = once__journal_sync(&s->log, b.wait, err);
    if (code == ONCE_OK)
        code = once__places_look(&s->places, err);
    look_after(s);
    return code == ONCE_ENOMEM ? once__fail(err, code, "out of memory") : code;
}

/* ---- The rest ----------------------------------------------------------- */

static int journal_tend(once_store *store, once_error *err)
{
    struct journal *s = (struct journal *)store;
    int code = once__places_look(&s->places, err);

    if (code != ONCE_OK || s->compactor == NULL)
        return code;
    once__compactor_wake(s->compactor);
    return once__compactor_trouble(s->compactor, err);
}

static int journal_time(once_store *store, const once_store_time *put,
                        once_store_time *out, once_error *err)
{
    struct journal *s = (struct journal *)store;
    int code = once__journal_time(&s->log, put, out, err);

    out->now_ms = s->options.clock(s->options.user);
    return code;
}

/* What is in the file then counts, also where it is not known whether it is
 * durable. */
static int put_head(struct journal *s, const once_store_head *put,
                    once_store_head *out, once_error *err)
{
    struct once__shared *shared = s->log.shared;
    int code, now;

    if (!once__head_sane(put))
        return once__fail(err, ONCE_EINVAL, "%s: no such head", s->log.path);
    code = once__journal_lock(&s->log, err);
    if (code != ONCE_OK)
        return code;
    code = once__journal_head_save(&s->log, put, err);
    now = once__journal_head_load(s->log.folder, s->log.path, out,
                                  code == ONCE_OK ? err : NULL);
    if (now == ONCE_OK)
        shared->fence = once__fence_floor(out, shared->fence);
    once__journal_unlock(&s->log);
    if (code == ONCE_OK)
        code = now;
    return code == ONCE_OK ? once__places_look(&s->places, err) : code;
}

static int journal_head(once_store *store, const once_store_head *put,
                        once_store_head *out, once_error *err)
{
    struct journal *s = (struct journal *)store;
    int code = once__places_look(&s->places, err);

    if (code == ONCE_OK && put != NULL)
        code = put_head(s, put, out, err);
    else if (code == ONCE_OK)
        code = once__journal_head_load(s->log.folder, s->log.path, out, err);
    if (code == ONCE_EOPEN) {
        code = ONCE_ESTORE;
        if (err != NULL)
            err->code = code;
    }
    return code;
}

static int journal_fence(once_store *store, uint64_t *out, once_error *err)
{
    struct journal *s = (struct journal *)store;
    int code = once__places_glance(&s->places, err);

    if (code == ONCE_OK)
        code = once__journal_lock(&s->log, err);
    if (code != ONCE_OK)
        return code;
    *out = s->log.shared->fence;
    once__journal_unlock(&s->log);
    return ONCE_OK;
}

static int
with_path(const char *rest, once_line *line, void *user, once_error *err,
          int (*check)(const char *, once_line *, void *, once_error *))
{
    struct once__journal j = {.busy_ms = 1, .segment_max = SEGMENT_DEFAULT};
    int code = parse(&j, rest, err);

    if (code == ONCE_OK)
        code = check(j.path, line, user, err);
    free(j.path);
    return code;
}

static int journal_verify(const char *rest, once_line *line, void *user,
                          once_error *err)
{
    return with_path(rest, line, user, err, once__journal_verify);
}

static int journal_dump(const char *rest, once_line *line, void *user,
                        once_error *err)
{
    return with_path(rest, line, user, err, once__journal_dump);
}

const once_store_ops once__store_journal = {
    .size = sizeof(once_store_ops),
    .name = "journal",
    .durable = 1,
    .shared = 1,
    .open = journal_open,
    .close = journal_close,
    .apply = journal_apply,
    .scan = journal_scan,
    .maintain = journal_tend,
    .verify = journal_verify,
    .dump = journal_dump,
    .time = journal_time,
    .count = journal_count,
    .head = journal_head,
    .import = journal_import,
    .fence = journal_fence,
};
