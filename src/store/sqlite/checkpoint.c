/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c - a thread that moves the write-ahead log into the file.
 *
 * SQLite's automatic checkpoint runs inside an unlucky commit and is felt as
 * p99. This thread has a connection of its own: past PASSIVE_FRAMES it copies
 * without stopping anybody, past RESTART_FRAMES it also makes the next writer
 * begin the log anew, which stops writers for a moment. It refuses to insist: a
 * checkpoint that is in another process's way is left for the next time.
 */
#include "store/sqlite/sqlite.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

enum {
    PASSIVE_FRAMES = 1000,
    RESTART_FRAMES = 16000,
    RESTART_WAIT_MS = 50 /* while it waits for readers, writers wait for it */
};

struct once__sqlite_keeper {
    sqlite3 *db; /* the thread's alone */
    struct once__sqlite_wait wait;
    char *path;
    pthread_t thread;
    pthread_mutex_t lock; /* for all below */
    pthread_cond_t wake;
    int frames; /* in the log after the last commit */
    int seen;   /* of these, before the last checkpoint */
    int stop;
    int trouble; /* what a checkpoint ended with, not told yet */
};

static int due(const struct once__sqlite_keeper *k)
{
    return k->frames - k->seen >= PASSIVE_FRAMES;
}

static int checkpoint(struct once__sqlite_keeper *k, int frames)
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
    struct once__sqlite_keeper *k = user;
    int rc, frames;

    (void)pthread_mutex_lock(&k->lock);
    for (;;) {
        while (!k->stop && !due(k))
            (void)pthread_cond_wait(&k->wake, &k->lock);
        if (k->stop)
            break;
        frames = k->seen = k->frames;
        (void)pthread_mutex_unlock(&k->lock);
        rc = checkpoint(k, frames);
        (void)pthread_mutex_lock(&k->lock);
        if (rc != SQLITE_OK && (rc & 255) != SQLITE_BUSY &&
            (rc & 255) != SQLITE_LOCKED)
            k->trouble = rc;
    }
    (void)pthread_mutex_unlock(&k->lock);
    return NULL;
}

static int committed(void *user, sqlite3 *db, const char *name, int frames)
{
    struct once__sqlite_keeper *k = user;

    (void)db;
    (void)name;
    (void)pthread_mutex_lock(&k->lock);
    k->frames = frames;
    if (frames < k->seen) /* the log has begun anew */
        k->seen = 0;
    if (due(k))
        (void)pthread_cond_signal(&k->wake);
    (void)pthread_mutex_unlock(&k->lock);
    return SQLITE_OK;
}

void once__sqlite_keeper_watch(struct once__sqlite_keeper *k, sqlite3 *db)
{
    (void)sqlite3_wal_hook(db, committed, k);
}

static int connect_keeper(struct once__sqlite_keeper *k, once_error *err)
{
    int rc = sqlite3_open_v2(k->path, &k->db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX |
                                 SQLITE_OPEN_EXRESCODE,
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
    if (rc != SQLITE_OK)
        return once__sqlite_fail(err, ONCE_EOPEN, k->path, "opening", k->db,
                                 rc);
    return ONCE_OK;
}

/* Signals are the program's: none of them shall arrive on our thread. */
static int start(struct once__sqlite_keeper *k)
{
    sigset_t all, before;
    int failed;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&k->thread, NULL, keep, k);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static void discard(struct once__sqlite_keeper *k)
{
    (void)sqlite3_close(k->db);
    (void)pthread_cond_destroy(&k->wake);
    (void)pthread_mutex_destroy(&k->lock);
    free(k->path);
    free(k);
}

int once__sqlite_keeper_open(const char *path, once_error *err,
                             struct once__sqlite_keeper **out)
{
    struct once__sqlite_keeper *k = calloc(1, sizeof(*k));
    int code;

    if (k == NULL)
        return once__fail(err, ONCE_ENOMEM, "%s: out of memory", path);
    (void)pthread_mutex_init(&k->lock, NULL);
    (void)pthread_cond_init(&k->wake, NULL);
    once__sqlite_wait_start(&k->wait, RESTART_WAIT_MS);
    k->path = strdup(path);
    if (k->path == NULL) {
        code = once__fail(err, ONCE_ENOMEM, "%s: out of memory", path);
        goto out;
    }
    code = connect_keeper(k, err);
    if (code != ONCE_OK)
        goto out;
    if (start(k) != 0) {
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

void once__sqlite_keeper_close(struct once__sqlite_keeper *k)
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

int once__sqlite_keeper_trouble(struct once__sqlite_keeper *k, once_error *err)
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
