/* SPDX-License-Identifier: Apache-2.0 */
/*
 * db.h - databases for tests of messages: a schema on a server, or a file. Each
 * test has one of its own.
 */
#ifndef TEST_MESSAGE_DB_H
#define TEST_MESSAGE_DB_H

#include "t.h"

#include <assert.h>
#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <once/message.h>

enum { KEEP_MS = 60000 };

/* A connection of a program that uses the library. */
struct db {
    PGconn *pg;
    sqlite3 *lite;
    once_tx tx;
};

static const char *server_url; /* NULL: SQLite */
static unsigned places;
static char place[64]; /* the schema, or the file */

/* ---- Databases --------------------------------------------------------- */

static void pg_sql(PGconn *pg, const char *text, char out[64])
{
    PGresult *r = PQexec(pg, text);
    ExecStatusType status = PQresultStatus(r);

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
        printf("#   %s: %s", text, PQerrorMessage(pg));
        t__bad++;
    }
    if (out != NULL && status == PGRES_TUPLES_OK && PQntuples(r) > 0)
        (void)snprintf(out, 64, "%s", PQgetvalue(r, 0, 0));
    PQclear(r);
}

static void lite_sql(sqlite3 *lite, const char *text, char out[64])
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(lite, text, -1, &q, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    if (rc == SQLITE_ROW && out != NULL)
        (void)snprintf(out, 64, "%s", (const char *)sqlite3_column_text(q, 0));
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) {
        printf("#   %s: %s\n", text, sqlite3_errmsg(lite));
        t__bad++;
    }
    (void)sqlite3_finalize(q);
}

/* Runs a statement; `@` becomes "schema." or "once_". The first field. */
ONCE_PRINTF(3, 4)
static void sql(struct db *d, char out[64], const char *format, ...)
{
    char text[512], full[600];
    size_t i, n = 0;
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    for (i = 0; text[i] != '\0' && n < sizeof(full) - 80; i++)
        if (text[i] == '@')
            n += (size_t)snprintf(full + n, sizeof(full) - n, "%s%s",
                                  d->pg != NULL ? place : "once",
                                  d->pg != NULL ? "." : "_");
        else
            full[n++] = text[i];
    full[n] = '\0';
    if (d->pg != NULL)
        pg_sql(d->pg, full, out);
    else
        lite_sql(d->lite, full, out);
}

ONCE_PRINTF(2, 3)
static long number(struct db *d, const char *format, ...)
{
    char text[512], out[64] = "-1";
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    sql(d, out, "%s", text);
    return strtol(out, NULL, 10);
}

static void begin(struct db *d)
{
    sql(d, NULL, d->pg != NULL ? "BEGIN" : "BEGIN IMMEDIATE");
}

static void commit(struct db *d)
{
    sql(d, NULL, "COMMIT");
}

static inline void roll_back(struct db *d)
{
    sql(d, NULL, "ROLLBACK");
}

static struct db db_open(void)
{
    struct db d = {NULL, NULL, ONCE_TX_INIT};

    if (server_url != NULL) {
        d.pg = PQconnectdb(server_url);
        assert(PQstatus(d.pg) == CONNECTION_OK);
        pg_sql(d.pg, "SET client_min_messages=warning", NULL);
        d.tx.postgres = d.pg;
        d.tx.schema = place;
        return d;
    }
    assert(sqlite3_open(place, &d.lite) == SQLITE_OK);
    assert(sqlite3_busy_timeout(d.lite, 60000) == SQLITE_OK);
    lite_sql(d.lite, "PRAGMA journal_mode=WAL", NULL);
    d.tx.sqlite = d.lite;
    return d;
}

static void db_close(struct db *d)
{
    PQfinish(d->pg);
    assert(sqlite3_close(d->lite) == SQLITE_OK);
    *d = (struct db){NULL, NULL, ONCE_TX_INIT};
}

/* A new place without tables, and a connection to it. */
static struct db db_bare(void)
{
    if (server_url != NULL)
        (void)snprintf(place, sizeof(place), "m%d_%u", (int)getpid(), places++);
    else
        (void)snprintf(place, sizeof(place), "/tmp/once-message-%d-%u.db",
                       (int)getpid(), places++);
    return db_open();
}

static struct db db_new(void)
{
    struct db d = db_bare();
    once_error err = {0, ""};

    T_EQ(once_message_init(&d.tx, KEEP_MS, &err), ONCE_OK);
    if (err.code != 0)
        printf("#   %s\n", err.text);
    sql(&d, NULL, "CREATE TABLE @effect(id TEXT NOT NULL)");
    return d;
}

static void db_end(struct db *d)
{
    char path[80];

    if (d->pg != NULL)
        sql(d, NULL, "DROP SCHEMA %s CASCADE", place);
    db_close(d);
    if (server_url != NULL)
        return;
    (void)unlink(place);
    (void)snprintf(path, sizeof(path), "%s-wal", place);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s-shm", place);
    (void)unlink(path);
}

static inline uint64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static inline unsigned draw(unsigned *seed, unsigned n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

#endif /* TEST_MESSAGE_DB_H */
