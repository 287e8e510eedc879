/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_sqlite.c - a file of SQLite.
 */
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "messages/relay/base_driver.h"
#include "messages/tables/stmt.h"

enum { BUSY_MS = 10000 };

/* `own` is the path. */
static int read_(struct once__base *b, const char *rest, once_error *err)
{
    b->own = strdup(rest);
    return b->own != NULL ? ONCE_OK
                          : once__fail(err, ONCE_ENOMEM, "out of memory");
}

static void clear(struct once__base *b)
{
    free(b->own);
}

/* SQLite's own pauses grow to 100 ms: with a few workers the file is free most
 * of the time and all of them sleep. Counts its pauses, as SQLite does. */
static int wait_for_lock(void *unused, int pauses)
{
    const struct timespec ms = {0, 1000000};

    (void)unused;
    if (pauses >= BUSY_MS)
        return 0;
    (void)nanosleep(&ms, NULL);
    return 1;
}

static int connect_(struct once__base *b, once_error *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    int rc;

    if (((const char *)b->own)[0] == '\0') /* a database in memory */
        return once__fail(err, ONCE_EURL, "sqlite: the URL names no file");
    if (b->use == ONCE__BASE_CREATE)
        flags |= SQLITE_OPEN_CREATE;
    rc = sqlite3_open_v2(b->own, &b->tx.sqlite, flags, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_handler(b->tx.sqlite, wait_for_lock, NULL);
    if (rc == SQLITE_OK)
        return once_prepared_new(b->tx.sqlite, &b->tx.prepared, err);
    return once__fail(err, rc == SQLITE_NOMEM ? ONCE_ENOMEM : ONCE_EOPEN,
                      "the database's file: %s", sqlite3_errstr(rc));
}

static int is_up(const struct once__base *b)
{
    return b->tx.sqlite != NULL && once__lite_in_place(b->tx.sqlite);
}

static void drop(struct once__base *b)
{
    once_prepared_free(b->tx.prepared);
    b->tx.prepared = NULL;
    (void)sqlite3_close(b->tx.sqlite);
    b->tx.sqlite = NULL;
}

static int begin(struct once__base *b, once_error *err)
{
    int rc = sqlite3_exec(b->tx.sqlite, "BEGIN IMMEDIATE", NULL, NULL, NULL);

    return rc == SQLITE_OK ? ONCE_OK
                           : once__fail(err, ONCE_EABORTED, "BEGIN: %s",
                                        sqlite3_errstr(rc));
}

static int rollback(struct once__base *b)
{
    return sqlite3_get_autocommit(b->tx.sqlite) ||
           sqlite3_exec(b->tx.sqlite, "ROLLBACK", NULL, NULL, NULL) ==
               SQLITE_OK;
}

/*
 * SQLITE_BUSY leaves the transaction open, an I/O error may have written the
 * commit or not: what the file says after it is opened again is the truth.
 */
static int commit(struct once__base *b, once_error *err)
{
    int rc;

    if (!is_up(b)) {
        drop(b);
        return once__fail(err, ONCE_EABORTED, "COMMIT: the file was replaced");
    }
    rc = sqlite3_exec(b->tx.sqlite, "COMMIT", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        return ONCE_OK;
    (void)once__fail(err, ONCE_EAWAY, "COMMIT: %s", sqlite3_errstr(rc));
    if (rc != SQLITE_BUSY && rc != SQLITE_FULL && rc != SQLITE_NOMEM &&
        rc != SQLITE_CONSTRAINT) {
        drop(b);
        return ONCE_EAWAY;
    }
    if (!rollback(b))
        drop(b);
    return once__fail(err, ONCE_EABORTED, "COMMIT: %s", sqlite3_errstr(rc));
}

const struct once__base_driver once__base_sqlite = {
    .database = ONCE_SQLITE,
    .schemes = {"sqlite:"},
    .read = read_,
    .clear = clear,
    .connect = connect_,
    .is_up = is_up,
    .drop = drop,
    .begin = begin,
    .commit = commit,
    .rollback = rollback,
};
