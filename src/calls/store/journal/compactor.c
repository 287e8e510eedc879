/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compactor.c - a thread that makes segments before they are needed, drops the
 * oldest when it holds the latest frame of no name, and saves the index when
 * the log has grown much since that was done last (checkpoint.c).
 *
 * Only the oldest ever goes, so no frame can come back to life: whatever it
 * had replaced or forgotten is older, and gone before. Where few live frames
 * stand in the way they are appended again; also when more than half of the
 * log is waste, however many they are. Then a MARK says which segment is the
 * first now; when that is durable, with all that was appended before, the file
 * becomes a new segment.
 *
 *    read a piece without the lock -> lock -> append those that are still
 *    the latest -> unlock -> ... -> MARK -> sync -> drop
 *
 * Every handle has such a thread; a lock lets one at a time work. It also makes
 * the room that is kept back for claims, so that no process writes zeros while
 * holding the log's lock; a claim that finds too little room waits for this
 * thread without that lock. Where the disk had no room it tries again, since
 * others may have made some. It refuses to drop what it cannot read.
 */
#include "calls/store/journal/handle.h"
#include "calls/store/journal/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/must.h"
#include "base/steady.h"
#include "base/thread.h"

enum {
    FULL_MS = 100,      /* between two tries on a full disk           */
    PIECE = 128 * 1024, /* bytes of the oldest segment in one step    */
    FEW = 10,           /* one part in so many is "few live ones"     */
    WASTE = 3,          /* segments of waste that do no harm          */
    AGAIN_MS = 60000    /* after the index could not be saved         */
};

struct once__compactor {
    struct once__journal view; /* the thread's alone */
    uint64_t full_ms;          /* when the disk had no room            */
    uint64_t save_ms;          /* the index is not saved before this   */
    int said;                  /* it was said that segments are scarce */
    pthread_t thread;
    atomic_int stop;      /* set with `lock`, looked at without it: a value */
    pthread_mutex_t lock; /* for all below */
    pthread_cond_t wake;
    pthread_cond_t done;
    int asked;
    uint64_t tries;     /* to make a segment        */
    int result;         /* of the last one: an errno */
    once_error trouble; /* not reported yet, if code is not 0 */
};

/* ---- Dropping ----------------------------------------------------------- */

static uint64_t log_size(struct once__shared *s)
{
    uint64_t id, last = s->last, sum = 0;

    for (id = s->first; id <= last; id++)
        sum += once__segment(s, id)->size;
    return sum;
}

/* Is it worth to empty the oldest segment? */
static int is_worth(struct once__shared *s)
{
    const struct once__segment *old = once__segment(s, s->first);
    uint64_t waste;

    if (s->first >= s->last)
        return 0;
    if (old->bytes <= old->size / FEW)
        return 1;
    waste = log_size(s) - s->bytes;
    return waste > s->bytes + WASTE * once__segment(s, s->last)->size;
}

static int is_latest(struct once__journal *j, const struct once__frame *f,
                     uint64_t at)
{
    struct once__slot *slot;

    if (f->kind != ONCE__FRAME_RECORD)
        return 0;
    slot = once__index_find(j, f->name);
    return slot != NULL && slot->at == at;
}

/* Appends the frame at `at` again, as it stands there: what fails its checksum
 * in it will not check there either. */
static int move(struct once__journal *j, struct once__frame *f, uint64_t at,
                const uint8_t *bytes, once_error *err)
{
    struct once__slot slot;
    int code;

    if (!is_latest(j, f, at))
        return ONCE_OK;
    code = once__journal_room(j, f->length, 0, err);
    if (code != ONCE_OK)
        return code;
    slot = *once__index_find(j, f->name);
    ONCE__MUST(slot.length == f->length);
    slot.at = once__journal_append_raw(j, f, bytes + ONCE__FRAME_HEAD);
    if (slot.at == 0)
        return once__fail(err, ONCE_ENOMEM, "%s: out of memory", j->path);
    code = once__index_put(j, &slot); /* it is there: this needs no room */
    return code ? ONCE_OK : ONCE_ENOMEM;
}

/* Reads the next piece of the oldest segment and appends what still counts. */
static int move_piece(struct once__journal *j, struct once__walk *w,
                      once_error *err)
{
    struct once__frame f;
    uint64_t begin = w->offset;
    const uint8_t *bytes;
    int more = 1, code, written;

    (void)once__walk_bytes(w, begin, ONCE__FRAME_HEAD); /* reads ahead */
    code = once__journal_lock(j, err);
    if (code != ONCE_OK)
        return code;
    while (code == ONCE_OK && w->offset - begin < PIECE) {
        more = once__walk_next(w, &f);
        if (more != 1)
            break;
        bytes = NULL;
        if (f.kind == ONCE__FRAME_RECORD)
            bytes = once__walk_bytes(w, w->offset - f.length, f.length);
        if (f.kind == ONCE__FRAME_RECORD && bytes == NULL)
            more = -1;
        else if (bytes != NULL)
            code = move(j, &f, once__journal_at(w->id, w->offset - f.length),
                        bytes, err);
        if (more < 0)
            break;
    }
    written = once__journal_flush(j, err); /* the index knows of it already */
    if (code == ONCE_OK)
        code = written;
    once__journal_unlock(j);
    if (more < 0)
        code = once__fail(err, ONCE_ESTORE, "%s: reading segment %llu: %s",
                          j->path, (unsigned long long)w->id, strerror(errno));
    return code == ONCE_OK ? more : code;
}

static int read_head(struct once__journal *j, uint64_t id, int fd,
                     struct once__segment_head *out, once_error *err)
{
    uint8_t block[ONCE__JOURNAL_HEADER];

    if (once__file_read(fd, block, sizeof(block), 0) != 1 ||
        once__segment_head_get(block, id, out) != ONCE_OK)
        return once__fail(err, ONCE_ECORRUPT,
                          "%s: the header of segment %llu fails its checksum",
                          j->path, (unsigned long long)id);
    return ONCE_OK;
}

/* Is there room for what is to be moved, beside that which is kept back? */
static int has_room(struct once__journal *j, uint64_t bytes,
                    const atomic_int *stop, once_error *err)
{
    uint64_t need = bytes + j->shared->owned * 512;
    int rc = 0, code;

    do {
        code = once__journal_lock(j, err);
        if (code != ONCE_OK)
            return code;
        code = once__journal_room(j, ONCE__FRAME_HEAD, need, err);
        once__journal_unlock(j);
        if (code == ONCE__LATER)
            rc = once__segment_prepare(j, need + ONCE__JOURNAL_SPARE, stop);
    } while (code == ONCE__LATER && rc == 0);
    return code == ONCE__LATER ? ONCE_EFULL : code; /* later, maybe */
}

/* A descriptor of its own: the handle may need the place of the segment's for
 * another one meanwhile. Or -1. */
static int open_for_long(struct once__journal *j, uint64_t id)
{
    int fd = once__segment_file(j, id);

    return fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static int move_all(struct once__journal *j, uint64_t id,
                    const atomic_int *stop, once_error *err)
{
    struct once__segment_head head;
    struct once__walk w = {.buffer = NULL};
    int fd = open_for_long(j, id), more = 1, code;

    if (fd < 0)
        return once__fail(err, ONCE_ESTORE, "%s: opening segment %llu: %s",
                          j->path, (unsigned long long)id, strerror(errno));
    code = has_room(j, once__segment(j->shared, id)->bytes, stop, err);
    if (code == ONCE_OK)
        code = read_head(j, id, fd, &head, err);
    if (code == ONCE_OK)
        code = once__walk_begin(&w, fd, id, ONCE__JOURNAL_HEADER,
                                once__segment(j->shared, id)->size,
                                head.generation);
    while (code == ONCE_OK && more == 1 && !atomic_load(stop)) {
        more = move_piece(j, &w, err);
        if (more == 1)
            code = once__journal_sync(j, j->shared->tail, err);
        if (code != ONCE_OK)
            more = code;
    }
    once__walk_end(&w);
    (void)close(fd);
    return more < 0 ? more : code;
}

/* ONCE_OK: the segment is gone, or there is something alive in it. */
static int drop(struct once__journal *j, uint64_t id, once_error *err)
{
    struct once__shared *s = j->shared;
    uint64_t tail;
    int rc, code = once__journal_lock(j, err);

    if (code != ONCE_OK)
        return code;
    if (once__segment(s, id)->live > 0 || id == s->last) {
        once__journal_unlock(j);
        return ONCE_OK;
    }
    once__undo_begin(j);
    s->marked = id + 1;
    code = once__journal_mark(j, s->generation, err);
    if (code == ONCE_OK)
        code = once__journal_flush(j, err);
    tail = s->tail;
    once__journal_unlock(j);
    if (code == ONCE_OK)
        code = once__journal_sync(j, tail, err);
    if (code != ONCE_OK)
        return code;
    /* That it is not needed is on the disk before its bytes go. */
    ONCE__MUST(s->durable >= tail && s->marked > id);
    ONCE__MUST(once__segment(s, id)->live == 0 && id < s->last);
    rc = once__segment_retire(j, id);
    if (rc != 0)
        return once__fail(err, ONCE_ESTORE, "%s: dropping a segment: %s",
                          j->path, strerror(rc));
    s->first = id + 1; /* not before: the next process would leave it there */
    return ONCE_OK;
}

static int compact_one(struct once__journal *j, const atomic_int *stop,
                       once_error *err)
{
    uint64_t id = j->shared->first;
    int code = ONCE_OK;

    if (once__segment(j->shared, id)->live > 0)
        code = move_all(j, id, stop, err);
    if (code == ONCE_OK && !atomic_load(stop))
        code = drop(j, id, err);
    return code == ONCE_EFULL ? ONCE_OK : code; /* later, maybe */
}

/* One thread at a time drops segments or saves the index. 1: this one has the
 * lock for it. What a dead one had begun is begun again. */
static int is_our_turn(struct once__shared *s)
{
    int rc = pthread_mutex_trylock(&s->compact);

    if (rc == EOWNERDEAD)
        rc = pthread_mutex_consistent(&s->compact);
    return rc == 0;
}

static int compact(struct once__journal *j, const atomic_int *stop,
                   once_error *err)
{
    struct once__shared *s = j->shared;
    uint64_t before;
    int code = ONCE_OK;

    if (!is_worth(s) || !is_our_turn(s))
        return ONCE_OK;
    do {
        before = s->first;
        code = compact_one(j, stop, err);
    } while (code == ONCE_OK && s->first != before && is_worth(s) &&
             !atomic_load(stop));
    (void)pthread_mutex_unlock(&s->compact);
    return code;
}

/* ---- The thread --------------------------------------------------------- */

static void report(struct once__compactor *c, int rc)
{
    (void)pthread_mutex_lock(&c->lock);
    c->tries++;
    c->result = rc;
    (void)pthread_cond_broadcast(&c->done);
    (void)pthread_mutex_unlock(&c->lock);
}

static int is_no_room(int rc)
{
    return rc == ENOSPC || rc == EDQUOT;
}

/* Makes segments until there are enough. 0, or an errno. */
static int prepare(struct once__compactor *c)
{
    struct once__journal *j = &c->view;
    int rc = 0;

    if (j->shared->full && once__steady_ms() - c->full_ms < FULL_MS)
        return ENOSPC;
    while (rc == 0 && once__segment_short(j) && !atomic_load(&c->stop)) {
        rc = once__segment_prepare(j, 0, &c->stop);
        report(c, rc);
    }
    if (is_no_room(rc))
        c->full_ms = once__steady_ms();
    return rc;
}

/* A process may need a segment now, and waits for this thread. */
static void serve(struct once__compactor *c)
{
    int asked;

    (void)pthread_mutex_lock(&c->lock);
    asked = c->asked;
    c->asked = 0;
    (void)pthread_mutex_unlock(&c->lock);
    if (asked)
        report(c, prepare(c));
}

static int save_index_locked(struct once__compactor *c, once_error *err)
{
    struct once__checkpoint *k = NULL;
    int code = once__checkpoint_begin(&c->view, err, &k), more = 1;

    while (code == ONCE_OK && more == 1 && !atomic_load(&c->stop)) {
        more = once__checkpoint_step(k, err);
        serve(c);
    }
    once__checkpoint_end(k);
    return code == ONCE_OK && more < 0 ? more : code;
}

/* Where it fails it is tried again, but not all the time. */
static int save_index(struct once__compactor *c, once_error *err)
{
    struct once__shared *s = c->view.shared;
    int code;

    if (!once__checkpoint_is_due(s) || once__steady_ms() < c->save_ms ||
        !is_our_turn(s))
        return ONCE_OK;
    code = save_index_locked(c, err);
    (void)pthread_mutex_unlock(&s->compact);
    if (code != ONCE_OK)
        c->save_ms = once__steady_ms() + AGAIN_MS;
    return code;
}

/* Once, before claims are refused for it. */
static int say_scarce(struct once__compactor *c, once_error *err)
{
    int scarce = once__segment_scarce(c->view.shared), said = c->said;

    c->said = scarce;
    if (!scarce || said)
        return ONCE_OK;
    return once__fail(err, ONCE_EFULL,
                      "%s: nearly all of its %d segments are in use; then "
                      "claims are refused. Opened with a larger segment= it "
                      "holds more",
                      c->view.path, ONCE__JOURNAL_SEGMENTS);
}

/* 0, or why there is no further segment. */
static int work(struct once__compactor *c)
{
    struct once__journal *j = &c->view;
    once_error err = {0, ""};
    int rc, code;

    if (j->shared->poisoned)
        return EIO;
    rc = prepare(c);
    code = compact(j, &c->stop, &err);
    if (rc == 0 || is_no_room(rc)) /* there may be some now */
        rc = prepare(c);
    if (rc != 0 && !is_no_room(rc) && rc != ECANCELED && rc != ETIMEDOUT &&
        code == ONCE_OK)
        code = once__fail(&err, ONCE_ESTORE, "%s: making a segment: %s",
                          j->path, strerror(rc));
    if (code == ONCE_OK && rc == 0)
        code = save_index(c, &err);
    if (code == ONCE_OK)
        code = say_scarce(c, &err);
    if (code != ONCE_OK) {
        (void)pthread_mutex_lock(&c->lock);
        c->trouble = err;
        (void)pthread_mutex_unlock(&c->lock);
    }
    return rc;
}

static void *run(void *user)
{
    struct once__compactor *c = user;

    (void)pthread_mutex_lock(&c->lock);
    while (!atomic_load(&c->stop)) {
        while (!c->asked && !atomic_load(&c->stop))
            (void)pthread_cond_wait(&c->wake, &c->lock);
        c->asked = 0;
        (void)pthread_mutex_unlock(&c->lock);
        report(c, work(c));
        (void)pthread_mutex_lock(&c->lock);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void discard(struct once__compactor *c)
{
    once__handle_close(&c->view);
    (void)pthread_cond_destroy(&c->done);
    (void)pthread_cond_destroy(&c->wake);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

int once__compactor_open(const struct once__journal *j, once_error *err,
                         struct once__compactor **out)
{
    struct once__compactor *c = calloc(1, sizeof(*c));
    int code;

    if (c == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->wake, NULL);
    once__cond_init(&c->done);
    code = once__handle_share(j, &c->view, err);
    if (code == ONCE_OK && once__thread_start(&c->thread, NULL, run, c) != 0)
        code = once__fail(err, ONCE_EOPEN, "%s: no thread to be had", j->path);
    if (code == ONCE_OK) {
        *out = c;
        return ONCE_OK;
    }
    discard(c);
    return code;
}

void once__compactor_close(struct once__compactor *c)
{
    if (c == NULL)
        return;
    (void)pthread_mutex_lock(&c->lock);
    atomic_store(&c->stop, 1);
    (void)pthread_cond_signal(&c->wake);
    (void)pthread_mutex_unlock(&c->lock);
    (void)pthread_join(c->thread, NULL);
    discard(c);
}

void once__compactor_wake(struct once__compactor *c)
{
    if (c == NULL)
        return;
    if (!once__segment_short(&c->view) && !is_worth(c->view.shared) &&
        !once__checkpoint_is_due(c->view.shared))
        return;
    (void)pthread_mutex_lock(&c->lock);
    c->asked = 1;
    (void)pthread_cond_signal(&c->wake);
    (void)pthread_mutex_unlock(&c->lock);
}

int once__compactor_await(struct once__compactor *c,
                          const struct timespec *until)
{
    uint64_t seen;
    int rc = 0;

    (void)pthread_mutex_lock(&c->lock);
    seen = c->tries;
    c->asked = 1;
    (void)pthread_cond_signal(&c->wake);
    while (rc == 0 && c->tries == seen)
        rc = pthread_cond_timedwait(&c->done, &c->lock, until);
    if (c->tries != seen)
        rc = c->result;
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

int once__compactor_trouble(struct once__compactor *c, once_error *err)
{
    int code;

    (void)pthread_mutex_lock(&c->lock);
    code = c->trouble.code;
    if (code != ONCE_OK && err != NULL)
        *err = c->trouble;
    c->trouble.code = ONCE_OK;
    (void)pthread_mutex_unlock(&c->lock);
    return code;
}
