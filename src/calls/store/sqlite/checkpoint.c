/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c - a thread that moves the write-ahead log into the file.
 *
 * SQLite's automatic checkpoint runs inside an unlucky commit and is felt as
 * p99. This thread has a connection of its own: past PASSIVE_FRAMES it copies
 * without stopping a call, past RESTART_FRAMES it also makes the next writer
 * begin the log again, which stops writers for a moment. It refuses to insist:
 * a checkpoint that is in another process's way is left for the next time. Who
 * writes without a pause is always in its way, and has to give it one: import
 * waits for it.
 *
 * It also makes room in the log before writers need it: a flush of a file that
 * has grown has to write its inode and block maps, too, which costs as much
 * again. Zeros after the last frame are no frames; recovery stops there.
 */
#include "calls/store/sqlite/sqlite.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "calls/store/place.h"
#include "base/thread.h"

enum {
    PASSIVE_FRAMES = 1000,
    RESTART_FRAMES = 16000,
    RESTART_WAIT_MS = 50, /* while it waits for readers, writers wait for it */
    FRAME = 4096 + 24,
    ROOM_FROM = 100,    /* frames: a store that is hardly used stays small */
    ROOM_AHEAD = 2000,  /* frames that shall fit after the last one       */
    ROOM_STEP = 4 << 20 /* bytes: writers wait while so much is written   */
};

/* Past this the log begins again. */
#define ROOM_MAX ((off_t)FRAME * (RESTART_FRAMES + ROOM_AHEAD))

struct once__sqlite_checkpointer {
    sqlite3 *db; /* the thread's alone */
    struct once__sqlite_wait wait;
    char *path;
    const struct once__place *log; /* the file that we may make longer */
    pthread_t thread;
    pthread_mutex_t lock; /* for all below */
    pthread_cond_t wake;
    pthread_cond_t ended; /* a checkpoint has */
    int frames;           /* in the log after the last commit */
    int seen;             /* of these, before the last checkpoint */
    int busy;             /* with a checkpoint */
    int stop;
    int trouble; /* what a checkpoint ended with, not reported yet */
    off_t room;  /* bytes of the log file, as far as we know */
    int asked;   /* how many frames there were when we last made room */
};

static int due(const struct once__sqlite_checkpointer *k)
{
    return k->frames - k->seen >= PASSIVE_FRAMES;
}

static off_t wanted(const struct once__sqlite_checkpointer *k)
{
    return (off_t)FRAME * (k->frames + ROOM_AHEAD);
}

static int is_tight(const struct once__sqlite_checkpointer *k)
{
    /* Where there was no lock to be had we wait for the next commit. */
    return k->frames >= ROOM_FROM && k->frames != k->asked &&
           k->room < ROOM_MAX && wanted(k) > k->room;
}

/* Writes zeros after the end of the log, unless it is large enough. Returns
 * its size, or -1. */
static off_t extend(int fd, off_t want)
{
    static const char zeros[65536];
    off_t end = lseek(fd, 0, SEEK_END), to = end < want ? end + ROOM_STEP : end;
    ssize_t n = end;

    while (n >= 0 && end < to) {
        n = pwrite(fd, zeros, sizeof(zeros), end);
        end += n;
    }
    return n < 0 ? -1 : end;
}

static int is_stopping(struct once__sqlite_checkpointer *k)
{
    int stop;

    (void)pthread_mutex_lock(&k->lock);
    stop = k->stop;
    (void)pthread_mutex_unlock(&k->lock);
    return stop;
}

/* Without memory even a rollback fails, and a lock that stays stops every
 * writer for ever. Closing the connection ends it, too. */
static void let_go(struct once__sqlite_checkpointer *k)
{
    const struct timespec nap = {0, 1000000};

    while (sqlite3_exec(k->db, "ROLLBACK", NULL, NULL, NULL) != SQLITE_OK &&
           sqlite3_get_autocommit(k->db) == 0 && !is_stopping(k))
        (void)nanosleep(&nap, NULL);
}

/*
 * Only the holder of the write lock may append to the log, and the lock is that
 * of the file we have open: a log that has taken its place is another's. A full
 * disk or an error is no news here: the next commit will meet it and say so.
 */
static off_t make_room(struct once__sqlite_checkpointer *k, off_t want)
{
    off_t room = ROOM_MAX;
    int fd;

    once__sqlite_wait_start(&k->wait, RESTART_WAIT_MS);
    if (sqlite3_exec(k->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK)
        return k->room;
    fd = open(k->log->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && once__place_is(k->log, fd))
        room = extend(fd, want);
    let_go(k);
    if (fd >= 0 && (room < 0 || fdatasync(fd) != 0))
        room = ROOM_MAX; /* do not try again */
    if (fd >= 0)
        (void)close(fd); /* SQLite takes no lock on this file */
    return room;
}

static int checkpoint(struct once__sqlite_checkpointer *k, int frames)
{
    int rc = sqlite3_wal_checkpoint_v2(k->db, NULL, SQLITE_CHECKPOINT_PASSIVE,
                                       NULL, NULL);

    if (rc != SQLITE_OK || frames < RESTART_FRAMES)
        return rc;
    once__sqlite_wait_start(&k->wait, RESTART_WAIT_MS);
    return sqlite3_wal_checkpoint_v2(k->db, NULL, SQLITE_CHECKPOINT_RESTART,
                                     NULL, NULL);
}

static void *keep(void *user)
{
    struct once__sqlite_checkpointer *k = user;
    int rc, frames;
    off_t room, want;

    (void)pthread_mutex_lock(&k->lock);
    for (;;) {
        while (!k->stop && !due(k) && !is_tight(k))
            (void)pthread_cond_wait(&k->wake, &k->lock);
        if (k->stop)
            break;
        if (is_tight(k)) {
            want = wanted(k);
            k->asked = k->frames;
            (void)pthread_mutex_unlock(&k->lock);
            room = make_room(k, want);
            (void)pthread_mutex_lock(&k->lock);
            k->room = room;
            continue;
        }
        frames = k->seen = k->frames;
        k->busy = 1;
        (void)pthread_mutex_unlock(&k->lock);
        rc = checkpoint(k, frames);
        (void)pthread_mutex_lock(&k->lock);
        k->busy = 0;
        (void)pthread_cond_signal(&k->ended);
        if (rc != SQLITE_OK && (rc & 255) != SQLITE_BUSY &&
            (rc & 255) != SQLITE_LOCKED)
            k->trouble = rc;
    }
    (void)pthread_mutex_unlock(&k->lock);
    return NULL;
}

static int committed(void *user, sqlite3 *db, const char *name, int frames)
{
    struct once__sqlite_checkpointer *k = user;

    (void)db;
    (void)name;
    (void)pthread_mutex_lock(&k->lock);
    k->frames = frames;
    if (frames < k->seen) /* the log has begun again */
        k->seen = 0;
    if (due(k) || is_tight(k))
        (void)pthread_cond_signal(&k->wake);
    (void)pthread_mutex_unlock(&k->lock);
    return SQLITE_OK;
}

void once__sqlite_checkpointer_await(struct once__sqlite_checkpointer *k)
{
    (void)pthread_mutex_lock(&k->lock);
    while (k->frames >= RESTART_FRAMES && (k->busy || due(k)))
        (void)pthread_cond_wait(&k->ended, &k->lock);
    (void)pthread_mutex_unlock(&k->lock);
}

void once__sqlite_checkpointer_watch(struct once__sqlite_checkpointer *k,
                                     sqlite3 *db)
{
    (void)sqlite3_wal_hook(db, committed, k);
}

static int connect_checkpointer(struct once__sqlite_checkpointer *k,
                                once_error *err)
{
    int rc = sqlite3_open_v2(k->path, &k->db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX |
                                 SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_NOFOLLOW,
                             NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_busy_handler(k->db, once__sqlite_wait_handler, &k->wait);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(k->db,
                          "PRAGMA synchronous=FULL;"
                          "PRAGMA wal_autocheckpoint=0;"
                          "PRAGMA cache_size=-256;"
                          "PRAGMA application_id",
                          NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = once__sqlite_keep_log(k->db);
    if (rc != SQLITE_OK)
        return once__sqlite_fail(err, ONCE_EOPEN, k->path, "opening", k->db,
                                 rc);
    return ONCE_OK;
}

static void discard(struct once__sqlite_checkpointer *k)
{
    (void)sqlite3_close(k->db);
    (void)pthread_cond_destroy(&k->ended);
    (void)pthread_cond_destroy(&k->wake);
    (void)pthread_mutex_destroy(&k->lock);
    free(k->path);
    free(k);
}

int once__sqlite_checkpointer_open(const char *path,
                                   const struct once__place *log,
                                   once_error *err,
                                   struct once__sqlite_checkpointer **out)
{
    struct once__sqlite_checkpointer *k = calloc(1, sizeof(*k));
    int code;

    if (k == NULL)
        return once__fail(err, ONCE_ENOMEM, "%s: out of memory", path);
    (void)pthread_mutex_init(&k->lock, NULL);
    (void)pthread_cond_init(&k->wake, NULL);
    (void)pthread_cond_init(&k->ended, NULL);
    once__sqlite_wait_start(&k->wait, RESTART_WAIT_MS);
    k->log = log;
    k->path = strdup(path);
    if (k->path == NULL) {
        code = once__fail(err, ONCE_ENOMEM, "%s: out of memory", path);
        goto out;
    }
    code = connect_checkpointer(k, err);
    if (code != ONCE_OK)
        goto out;
    if (once__thread_start(&k->thread, NULL, keep, k) != 0) {
        code = once__fail(err, ONCE_EOPEN, "%s: no thread to be had", path);
        goto out;
    }
    *out = k;
    k = NULL;
out:
    if (k != NULL)
        discard(k);
    return code;
}

void once__sqlite_checkpointer_close(struct once__sqlite_checkpointer *k)
{
    if (k == NULL)
        return;
    (void)pthread_mutex_lock(&k->lock);
    k->stop = 1;
    (void)pthread_cond_signal(&k->wake);
    (void)pthread_mutex_unlock(&k->lock);
    (void)pthread_join(k->thread, NULL);
    discard(k);
}

int once__sqlite_checkpointer_trouble(struct once__sqlite_checkpointer *k,
                                      once_error *err)
{
    int rc;

    (void)pthread_mutex_lock(&k->lock);
    rc = k->trouble;
    k->trouble = 0;
    (void)pthread_mutex_unlock(&k->lock);
    if (rc == SQLITE_OK)
        return ONCE_OK;
    return once__fail(err, ONCE_ESTORE, "%s: checkpoint: %s (%d)", k->path,
                      sqlite3_errstr(rc), rc);
}
