/* SPDX-License-Identifier: Apache-2.0 */
/*
 * witness.c - what this host was granted, and by which store, in files beside
 * the store.
 *
 *    FOLDER/<store id>     "once witness 1 FENCE\n"
 *    FOLDER/at-<where>     "once witness 1 at STORE ID\n"
 *
 * A store restored to an earlier state - a snapshot, a copy in its
 * place, a standby that lagged behind - has forgotten grants, and would execute
 * their requests again. It cannot know. The file knows the largest fence that
 * any process of this host was granted: a store that opens below it was rolled
 * back.
 *
 * Nor can an empty store that was made in the place of one that was moved away,
 * or one that a changed configuration leads to: its id is another one, and what
 * the other store has recorded would be executed again. The second file knows
 * which store has granted something at this name or URL (store/where.c). Another
 * one is used when an operator says so: as long as a gap runs, which is then
 * what the host remembers.
 *
 * All engines of a host share the files. It is written about each second and
 * flushed each ten, and when the engine closes: what was granted in the last
 * second before a crash is not in it. The second one is written with the first
 * grant. It refuses nothing when it cannot be
 * written; `event` says so once.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "calls/engine/engine.h"

enum { WRITE_MS = 1000, FLUSH_MS = 10000, TEXT = 64 };

/* "" if the path would be too long: then none is kept. */
static void make_path(const once_engine *e, const char *file,
                      char out[ONCE__WITNESS_PATH])
{
    if (snprintf(out, ONCE__WITNESS_PATH, "%s/%s", e->options.witness, file) >=
        ONCE__WITNESS_PATH)
        out[0] = '\0';
}

static void make_paths(once_engine *e)
{
    struct once__witness *w = &e->witness;
    char file[32];

    once__hex(e->store->head.id, ONCE_STORE_ID_SIZE, w->id);
    if (e->store->ops->fence != NULL)
        make_path(e, w->id, w->path);
    (void)snprintf(file, sizeof(file), "at-%016" PRIx64, e->store->where);
    if (e->store->where != 0)
        make_path(e, file, w->at_path);
}

/* 0: it cannot be read; errno says why. Nothing was written there yet: fence
 * 0. */
static int read_fence(int fd, uint64_t *fence)
{
    char text[TEXT + 1];
    ssize_t n = pread(fd, text, TEXT, 0);

    *fence = 0;
    if (n <= 0)
        return n == 0;
    text[n] = '\0';
    errno = EINVAL;
    return sscanf(text, "once witness 1 %" SCNu64 "\n", fence) == 1;
}

/* The same length always, so that no end of an older text stays. */
static int write_fence(int fd, uint64_t fence)
{
    char text[TEXT + 1];
    int n =
        snprintf(text, sizeof(text), "once witness 1 %020" PRIu64 "\n", fence);

    return pwrite(fd, text, (size_t)n, 0) == n;
}

/* Whose id it has, "": nothing was written there yet. 0: errno says why it
 * cannot be read. */
static int read_at(int fd, char id[ONCE__WITNESS_ID])
{
    char text[TEXT + 1];
    ssize_t n = pread(fd, text, TEXT, 0);

    id[0] = '\0';
    if (n <= 0)
        return n == 0;
    text[n] = '\0';
    errno = EINVAL;
    return sscanf(text, "once witness 1 at %32[0-9a-f]\n", id) == 1 &&
           strlen(id) == ONCE__WITNESS_ID - 1;
}

static int write_at(int fd, const char *id)
{
    char text[TEXT + 1];
    int n = snprintf(text, sizeof(text), "once witness 1 at %s\n", id);

    return pwrite(fd, text, (size_t)n, 0) == n && fdatasync(fd) == 0;
}

static int close_quietly(int fd, int good)
{
    int error = errno;

    (void)close(fd);
    errno = error;
    return good;
}

/* Names the store; over another one only if that was `accepted`. 0: errno says
 * why not. */
static int name_store(const char *path, const char *id, int accepted)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    char there[ONCE__WITNESS_ID];
    int good;

    if (fd < 0)
        return 0;
    good = flock(fd, LOCK_EX) == 0;
    if (good && (!read_at(fd, there) || there[0] == '\0' ||
                 (accepted && strcmp(there, id) != 0)))
        good = write_at(fd, id); /* what is damaged is replaced */
    return close_quietly(fd, good);
}

/* Raises what the file says to `fence`. 0: errno says why not. */
static int raise_file(const char *path, uint64_t fence, int flush)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    uint64_t there = 0;
    int good;

    if (fd < 0)
        return 0;
    /* What is damaged is written again. */
    good = flock(fd, LOCK_EX) == 0 &&
           ((read_fence(fd, &there) && there >= fence) ||
            write_fence(fd, fence)) &&
           (!flush || fdatasync(fd) == 0);
    return close_quietly(fd, good);
}

static void cannot_write(once_engine *e)
{
    once__event(e, "the witness cannot be written: %s", strerror(errno));
}

/* From now on this store is the one that is expected here. */
static void bind_place(once_engine *e, int accepted)
{
    struct once__witness *w = &e->witness;

    if (w->at_path[0] != '\0' && !w->bound &&
        !name_store(w->at_path, w->id, accepted))
        cannot_write(e);
    w->bound = 1; /* said once */
}

static void save(once_engine *e, int flush)
{
    struct once__witness *w = &e->witness;

    if (w->path[0] == '\0' || w->fence == (flush ? w->flushed : w->written))
        return;
    bind_place(e, 0);
    if (raise_file(w->path, w->fence, flush)) {
        w->written = w->fence;
        if (flush)
            w->flushed = w->fence;
        return;
    }
    cannot_write(e);
    w->path[0] = '\0'; /* said once */
}

/* What a file says, into one of both; nothing: 0, "". A file that cannot be read
 * is reported: it may be another user's, or damaged, and then no host notices a
 * restored store. */
static void look(once_engine *e, const char *path, uint64_t *fence, char *id)
{
    int fd =
        path[0] == '\0' ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int good = path[0] == '\0' || fd >= 0 || errno == ENOENT;

    if (fd >= 0)
        good = fence != NULL ? read_fence(fd, fence) : read_at(fd, id);
    if (!good) {
        once__event(e, "the witness cannot be read: %s", strerror(errno));
        if (id != NULL)
            id[0] = '\0';
    }
    if (fd >= 0)
        (void)close(fd);
}

/*
 * ONCE_OK, or ONCE_EROLLBACK: another store has granted something here. One that
 * knows no gap (Redis) could not be accepted, and is only reported.
 */
static int check_place(once_engine *e, once_error *err)
{
    struct once__witness *w = &e->witness;
    char there[ONCE__WITNESS_ID] = "";

    look(e, w->at_path, NULL, there);
    w->bound = strcmp(there, w->id) == 0;
    if (w->bound || there[0] == '\0')
        return ONCE_OK;
    if (!once__gap_runs(e)) {
        once__count(&e->count.rollbacks, 1);
        if (e->store->ops->head != NULL)
            return once__fail(
                err, ONCE_EROLLBACK,
                "this is a different store: here this host was granted fences "
                "by the store %.8s, and this is %.8s. What that one has "
                "recorded would be executed again: see once restore --adopt",
                there, w->id);
        once__event(e,
                    "this is a different store: here this host was granted "
                    "fences by the store %.8s, and this is %.8s",
                    there, w->id);
    }
    bind_place(e, 1);
    return ONCE_OK;
}

/* What was granted, `seen`, and what the store says. */
static int check_fence(once_engine *e, uint64_t seen, once_error *err)
{
    uint64_t fence = 0;
    int rc = e->store->ops->fence(e->store, &fence, err);

    if (rc != ONCE_OK || seen <= fence)
        return rc;
    once__count(&e->count.rollbacks, 1);
    if (e->store->caveat == NULL)
        return once__fail(err, ONCE_EROLLBACK,
                          "the store has forgotten what it granted: its last "
                          "fence is %" PRIu64 ", this host was granted %" PRIu64
                          ". It was restored to an earlier state: see "
                          "once restore --adopt",
                          fence, seen);
    once__event(e,
                "the store has forgotten what it granted: its last fence is "
                "%" PRIu64 ", this host was granted %" PRIu64,
                fence, seen);
    return ONCE_OK;
}

/* Memory is always another one; every other store says which it is. */
static int has_witness(const once_engine *e)
{
    const once_store_ops *ops = e->store->ops;

    return e->options.witness != NULL &&
           (ops->durable ? ops->fence != NULL : ops->head == NULL);
}

int once__witness_open(once_engine *e, once_error *err)
{
    struct once__witness *w = &e->witness;
    uint64_t seen = 0;
    int rc;

    memset(w, 0, sizeof(*w));
    if (!has_witness(e))
        return ONCE_OK;
    make_paths(e);
    rc = check_place(e, err);
    if (rc != ONCE_OK)
        return rc;
    if (e->store->ops->fence == NULL) {
        bind_place(e, 0);
        return ONCE_OK;
    }
    /* The file first: others are granted more while we look. */
    look(e, w->path, &seen, NULL);
    rc = check_fence(e, seen, err);
    if (rc == ONCE_OK && seen > 0)
        bind_place(e, 0); /* it has granted us something before */
    return rc;
}

void once__witness_note(once_engine *e, uint64_t fence)
{
    if (fence > e->witness.fence)
        e->witness.fence = fence;
}

void once__witness_turn(once_engine *e)
{
    struct once__witness *w = &e->witness;
    uint64_t now = once__now_ms();
    int flush = now - w->flushed_ms >= FLUSH_MS;

    if (w->path[0] == '\0' || w->fence == w->flushed ||
        now - w->saved_ms < WRITE_MS)
        return;
    w->saved_ms = now;
    save(e, flush);
    if (flush)
        w->flushed_ms = now;
}

void once__witness_close(once_engine *e)
{
    save(e, 1);
}
