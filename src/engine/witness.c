/* SPDX-License-Identifier: Apache-2.0 */
/*
 * witness.c - what this host was granted, in a file beside the store.
 *
 *    FOLDER/<store id>    "once witness 1 FENCE\n"
 *
 * A store that was put back to an earlier time - a snapshot, a copy in its
 * place, a standby that lagged behind - has forgotten grants, and would execute
 * their requests again. It cannot know. The file knows the largest fence that
 * any process of this host was granted: a store that opens below it was rolled
 * back.
 *
 * All engines of a host share the file. It is written about each second and
 * flushed each ten, and when the engine closes: what was granted in the last
 * second before a crash is not in it. It refuses nothing when it cannot be
 * written; `event` says so once.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/error.h"
#include "engine/engine.h"

enum { WRITE_MS = 1000, FLUSH_MS = 10000, TEXT = 64 };

/* "" if the path would be too long: then none is kept. */
static void make_path(once_engine *e)
{
    struct once__witness *w = &e->witness;
    char id[2 * ONCE_STORE_ID_SIZE + 1];

    once__hex(e->store->head.id, ONCE_STORE_ID_SIZE, id);
    if ((size_t)snprintf(w->path, sizeof(w->path), "%s/%s", e->options.witness,
                         id) >= sizeof(w->path))
        w->path[0] = '\0';
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

/* Raises what the file says to `fence`. 0: errno says why not. */
static int raise_file(const char *path, uint64_t fence, int flush)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    uint64_t there = 0;
    int good, error;

    if (fd < 0)
        return 0;
    /* What is damaged is written anew. */
    good = flock(fd, LOCK_EX) == 0 &&
           ((read_fence(fd, &there) && there >= fence) ||
            write_fence(fd, fence)) &&
           (!flush || fdatasync(fd) == 0);
    error = errno;
    (void)close(fd);
    errno = error;
    return good;
}

static void save(once_engine *e, int flush)
{
    struct once__witness *w = &e->witness;

    if (w->path[0] == '\0' || w->fence == (flush ? w->flushed : w->written))
        return;
    if (raise_file(w->path, w->fence, flush)) {
        w->written = w->fence;
        if (flush)
            w->flushed = w->fence;
        return;
    }
    once__event(e, "the witness cannot be written: %s", strerror(errno));
    w->path[0] = '\0'; /* said once */
}

/* What the file says, 0: nothing. A file that cannot be read is reported: it may
 * be another user's, or damaged, and then nobody notices a store put back. */
static uint64_t look(once_engine *e)
{
    int fd = open(e->witness.path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int good = fd >= 0 || errno == ENOENT;
    uint64_t fence = 0;

    if (fd >= 0)
        good = read_fence(fd, &fence);
    if (!good)
        once__event(e, "the witness cannot be read: %s", strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    return fence;
}

int once__witness_open(once_engine *e, once_error *err)
{
    struct once__witness *w = &e->witness;
    const once_store_ops *ops = e->store->ops;
    uint64_t fence = 0, seen;
    int rc;

    memset(w, 0, sizeof(*w));
    if (e->options.witness == NULL || ops->fence == NULL || !ops->durable)
        return ONCE_OK;
    make_path(e);
    /* The file first: others are granted more while we look. */
    seen = look(e);
    rc = ops->fence(e->store, &fence, err);
    if (rc != ONCE_OK)
        return rc;
    if (seen <= fence)
        return ONCE_OK;
    once__count(&e->count.rollbacks, 1);
    if (e->store->caveat == NULL)
        return once__fail(err, ONCE_EROLLBACK,
                          "the store has forgotten what it granted: its last "
                          "fence is %" PRIu64 ", this host was granted %" PRIu64
                          ". It was put back to an earlier time: see once "
                          "restore --adopt",
                          fence, seen);
    once__event(e,
                "the store has forgotten what it granted: its last fence is "
                "%" PRIu64 ", this host was granted %" PRIu64,
                fence, seen);
    return ONCE_OK;
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
