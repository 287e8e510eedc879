/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.c - opens the client's file: application, schema, log, permissions.
 *
 * It looks before it writes: a file of another application or version is
 * refused and left as it is. A new file can be read by its owner only. What a
 * killed writer has left in the log is made durable before it is read.
 */
#include "client/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/path.h"

enum { APPLICATION = 0x4f6e6363, SCHEMA = 1 }; /* "Oncc" */

static const char schema[] =
    "CREATE TABLE orders(id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " grp TEXT NOT NULL, name BLOB NOT NULL, key TEXT NOT NULL UNIQUE,"
    " state INTEGER NOT NULL, reason INTEGER NOT NULL,"
    " status INTEGER NOT NULL, replayed INTEGER NOT NULL,"
    " attempts INTEGER NOT NULL, doubt INTEGER NOT NULL,"
    " created INTEGER NOT NULL, sent INTEGER NOT NULL,"
    " changed INTEGER NOT NULL, method TEXT NOT NULL, url TEXT NOT NULL,"
    " digest BLOB NOT NULL, headers BLOB NOT NULL, body BLOB NOT NULL,"
    " answer_headers BLOB NOT NULL, answer BLOB NOT NULL,"
    " UNIQUE(grp,name));"
    "CREATE INDEX orders_open ON orders(id) WHERE state NOT IN (3,4);"
    "CREATE INDEX orders_done ON orders(changed) WHERE state IN (3,4);"
    "PRAGMA application_id=0x4f6e6363;"
    "PRAGMA user_version=1;";

/* SQLite's own message may quote a value; the number's text does not. */
int once__file_fail(int rc, const char *what, once_error *err)
{
    int code = ONCE_ESTORE;

    switch (rc & 255) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        code = ONCE_ECORRUPT;
        break;
    case SQLITE_FULL:
        code = ONCE_EFULL;
        break;
    case SQLITE_NOMEM:
        code = ONCE_ENOMEM;
        break;
    default:
        break;
    }
    return once__fail(err, code, "the client's file: %s: %s (%d)", what,
                      sqlite3_errstr(rc), rc);
}

static int ask(sqlite3 *db, const char *sql, int64_t *value)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &q, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        *value = sqlite3_column_int64(q, 0);
        rc = SQLITE_OK;
    }
    (void)sqlite3_finalize(q);
    return rc;
}

struct identity {
    int64_t application, version, tables;
};

static int identify(sqlite3 *db, struct identity *id)
{
    int rc = ask(db, "PRAGMA application_id", &id->application);

    if (rc == SQLITE_OK)
        rc = ask(db, "PRAGMA user_version", &id->version);
    if (rc == SQLITE_OK)
        rc = ask(db, "SELECT count(*) FROM sqlite_schema", &id->tables);
    return rc;
}

/* Under the write lock, since other processes may be creating the file, too.
 * Nothing is written into a file of another application. */
static int look_or_create(sqlite3 *db, once_error *err)
{
    struct identity id = {0, 0, 0};
    int rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    int code = ONCE_OK;

    if (rc == SQLITE_OK)
        rc = identify(db, &id);
    if (rc == SQLITE_OK && id.application == 0 && id.version == 0 &&
        id.tables == 0)
        rc = sqlite3_exec(db, schema, NULL, NULL, NULL);
    else if (rc == SQLITE_OK && id.application != APPLICATION)
        code = once__fail(err, ONCE_EOPEN,
                          "the client's file belongs to something else");
    else if (rc == SQLITE_OK && id.version != SCHEMA)
        code = once__fail(err, ONCE_EVERSION,
                          "the client's file has version %d, this program "
                          "understands %d",
                          (int)id.version, SCHEMA);
    if (rc == SQLITE_OK && code == ONCE_OK)
        rc = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
    else
        (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    return rc == SQLITE_OK ? code : once__file_fail(rc, "opening", err);
}

/* The journal mode is changed without asking the busy handler. */
static int use_log(sqlite3 *db, uint32_t busy_ms, once_error *err)
{
    sqlite3_stmt *q = NULL;
    uint32_t waited;
    int rc, wal = 0;

    for (waited = 0;; waited += 10) {
        rc = sqlite3_prepare_v2(db, "PRAGMA journal_mode=WAL", -1, &q, NULL);
        if (rc == SQLITE_OK)
            rc = sqlite3_step(q);
        if (rc == SQLITE_ROW)
            wal = strcmp((const char *)sqlite3_column_text(q, 0), "wal") == 0;
        (void)sqlite3_finalize(q);
        if ((rc & 255) != SQLITE_BUSY || waited >= busy_ms)
            break;
        (void)sqlite3_sleep(10);
    }
    if (rc != SQLITE_ROW)
        return once__file_fail(rc, "opening", err);
    if (!wal)
        return once__fail(err, ONCE_EOPEN,
                          "the client's file: no write-ahead log is possible "
                          "where it is");
    return ONCE_OK;
}

/* Where it is, without links on the way, on the heap. NULL and errno: its folder
 * is not there. */
static char *find(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *last = slash == NULL ? path : slash + 1;
    char *part = slash == NULL
                     ? strdup(".")
                     : strndup(path, (size_t)(slash - path) + (slash == path));
    char *folder = part == NULL ? NULL : realpath(part, NULL), *out = NULL;

    if (folder != NULL && asprintf(&out, "%s/%s", folder, last) < 0)
        out = NULL;
    free(folder);
    free(part);
    return out;
}

/* A file that SQLite creates can be read by everybody. Its log files get the
 * mode of the database. It is no link: another user who may write to the folder
 * must not lead root elsewhere. */
static int create(const char *path, once_error *err)
{
    int fd = -1;

    if (path != NULL)
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return once__fail(err, ONCE_EOPEN, "the client's file: %s",
                          strerror(errno));
    (void)close(fd);
    return ONCE_OK;
}

/*
 * If a power cut removes the name of the file, the keys in it are lost. SQLite
 * flushes the folder as well, but ignores an error. The process that created
 * the file may have died before it flushed the folder, so every process that
 * opens the file flushes it again. The log has its name by now, and keeps it as
 * long as a process has the file open.
 */
static int flush_names(sqlite3 *db, once_error *err)
{
    if (once__path_sync_folder(sqlite3_db_filename(db, "main")) == 0)
        return ONCE_OK;
    return once__fail(err, ONCE_EOPEN,
                      "the client's file: flushing its folder: %s",
                      strerror(errno));
}

int once__file_open(const char *path, uint32_t busy_ms, once_error *err,
                    sqlite3 **db)
{
    char *where = find(path);
    int code = create(where, err), rc = SQLITE_OK;

    if (code == ONCE_OK)
        rc = sqlite3_open_v2(where, db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX |
                                 SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_NOFOLLOW,
                             NULL);
    free(where);
    if (code != ONCE_OK)
        return code;
    if (rc != SQLITE_OK)
        return once__file_fail(rc, "opening", err);
    (void)sqlite3_busy_timeout(*db, (int)busy_ms);
    code = look_or_create(*db, err);
    if (code == ONCE_OK)
        code = use_log(*db, busy_ms, err);
    if (code != ONCE_OK)
        return code;
    (void)sqlite3_db_config(*db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    rc = sqlite3_exec(*db,
                      "PRAGMA synchronous=FULL;"
                      "PRAGMA trusted_schema=OFF;"
                      "PRAGMA cell_size_check=ON;"
                      "PRAGMA secure_delete=FAST",
                      NULL, NULL, NULL);
    return rc == SQLITE_OK ? ONCE_OK : once__file_fail(rc, "opening", err);
}

int once__file_flush(sqlite3 *db, once_error *err)
{
    int rc = sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_PASSIVE,
                                       NULL, NULL);

    if ((rc & 255) == SQLITE_BUSY || (rc & 255) == SQLITE_LOCKED)
        rc = SQLITE_OK; /* others are here: they flush what they write */
    return rc == SQLITE_OK ? flush_names(db, err)
                           : once__file_fail(rc, "opening", err);
}
