/* SPDX-License-Identifier: Apache-2.0 */
/*
 * db.h - databases for tests of messages: a schema or a database on a server, or a
 * file. Each test has one of its own.
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

#ifdef ONCE_WITH_MYSQL
#include "messages/tables/query_mysql.h"
#endif

enum { KEEP_MS = 60000 };

/* A connection of a program that uses the library. */
struct db {
    PGconn *pg;
    sqlite3 *lite;
    struct st_mysql *my;
    once_tx tx;
};

static const char *server_url; /* NULL: SQLite */
static int prepares;           /* SQLite: statements are kept */
static unsigned places;
static char place[64]; /* the schema, the database, or the file */

static inline int is_mysql(void)
{
    return server_url != NULL && strncmp(server_url, "mysql:", 6) == 0;
}

static inline int is_postgres(void)
{
    return server_url != NULL && !is_mysql();
}

/* 1: `what` is the name of a database, and it is used from now on. */
static inline int take_database(const char *what)
{
    if (strcmp(what, "postgres") == 0 || strcmp(what, "mysql") == 0) {
        server_url = getenv("ONCE_TEST_URL");
        if (server_url == NULL)
            t_skip_all("ONCE_TEST_URL names no server");
        return 1;
    }
    prepares = strcmp(what, "prepared") == 0;
    return prepares || strcmp(what, "sqlite") == 0;
}

/* What differs between the three. */
static inline const char *as(const struct db *d, const char *postgres,
                             const char *sqlite, const char *mysql)
{
    return d->pg != NULL ? postgres : d->lite != NULL ? sqlite : mysql;
}

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

#ifdef ONCE_WITH_MYSQL
static void my_sql(MYSQL *my, const char *text, char out[64])
{
    MYSQL_RES *r = NULL;
    MYSQL_ROW row = NULL;
    struct once__my_text quoted = {0};
    int bad;

    once__mysql_fill(&quoted, text, NULL, 0);
    bad = mysql_real_query(my, quoted.at, quoted.size);
    once__my_text_clear(&quoted);

    if (!bad)
        r = mysql_store_result(my);
    if (r != NULL)
        row = mysql_fetch_row(r);
    if (row != NULL && out != NULL)
        (void)snprintf(out, 64, "%s", row[0] == NULL ? "" : row[0]);
    mysql_free_result(r);
    while (!bad && (bad = mysql_next_result(my)) == 0)
        mysql_free_result(mysql_store_result(my));
    if (bad > 0) {
        printf("#   %s: %s\n", text, mysql_error(my));
        t__bad++;
    }
}

static MYSQL *my_open(const char *database)
{
    static const unsigned tcp = MYSQL_PROTOCOL_TCP;
    static struct once__my_config c;
    MYSQL *my = mysql_init(NULL);

    assert(once__my_config_read(&c, server_url + 6, NULL) == ONCE_OK);
    (void)mysql_options(my, MYSQL_OPT_PROTOCOL, &tcp);
    assert(mysql_real_connect(my, c.hosts[0].name, c.user, c.password, database,
                              (unsigned)strtoul(c.hosts[0].port, NULL, 10),
                              NULL, 0) != NULL);
    my_sql(my,
           "SET sql_mode=CONCAT(@@sql_mode,',PIPES_AS_CONCAT'),"
           "/*M! max_recursive_iterations=1000000 */"
           "/*!80000 cte_max_recursion_depth=1000000 */",
           NULL);
    return my;
}
#else
static void my_sql(struct st_mysql *my, const char *text, char out[64])
{
    (void)my, (void)text, (void)out;
}
#endif

/* `@` becomes "schema." or "once_". */
static void place_in(int in_schema, const char *text, char *out, size_t size)
{
    size_t i, n = 0;

    for (i = 0; text[i] != '\0' && n < size - 80; i++)
        if (text[i] == '@')
            n += (size_t)snprintf(out + n, size - n, "%s%s",
                                  in_schema ? place : "once",
                                  in_schema ? "." : "_");
        else
            out[n++] = text[i];
    out[n] = '\0';
}

/* Runs a statement; the first field. */
ONCE_PRINTF(3, 4)
static void sql(struct db *d, char out[64], const char *format, ...)
{
    char text[1000], full[1200];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    place_in(d->pg != NULL, text, full, sizeof(full));
    if (d->pg != NULL)
        pg_sql(d->pg, full, out);
    else if (d->my != NULL)
        my_sql(d->my, full, out);
    else
        lite_sql(d->lite, full, out);
}

ONCE_PRINTF(2, 3)
static long number(struct db *d, const char *format, ...)
{
    char text[1000], out[64] = "-1";
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    sql(d, out, "%s", text);
    return strtol(out, NULL, 10);
}

static inline void begin(struct db *d)
{
    sql(d, NULL, d->lite == NULL ? "BEGIN" : "BEGIN IMMEDIATE");
}

static inline void commit(struct db *d)
{
    sql(d, NULL, "COMMIT");
}

static inline void roll_back(struct db *d)
{
    sql(d, NULL, "ROLLBACK");
}

static struct db db_open(void)
{
    struct db d = {NULL, NULL, NULL, ONCE_TX_INIT};

#ifdef ONCE_WITH_MYSQL
    if (is_mysql()) {
        d.my = d.tx.mysql = my_open(place);
        return d;
    }
#endif
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
    if (prepares)
        T_EQ(once_prepared_new(d.lite, &d.tx.prepared, NULL), ONCE_OK);
    return d;
}

static void db_close(struct db *d)
{
    PQfinish(d->pg);
    once_prepared_free(d->tx.prepared);
    assert(sqlite3_close(d->lite) == SQLITE_OK);
#ifdef ONCE_WITH_MYSQL
    if (d->my != NULL)
        mysql_close(d->my);
#endif
    *d = (struct db){NULL, NULL, NULL, ONCE_TX_INIT};
}

/* A new place without tables, and a connection to it. */
static struct db db_bare(void)
{
    if (server_url != NULL)
        (void)snprintf(place, sizeof(place), "m%d_%u", (int)getpid(), places++);
    else
        (void)snprintf(place, sizeof(place), "/tmp/once-message-%d-%u.db",
                       (int)getpid(), places++);
#ifdef ONCE_WITH_MYSQL
    if (is_mysql()) {
        MYSQL *my = my_open(NULL);
        char text[96];

        (void)snprintf(text, sizeof(text), "CREATE DATABASE %s", place);
        my_sql(my, text, NULL);
        mysql_close(my);
    }
#endif
    return db_open();
}

/* The URL of this place. */
static inline void url_of_place(char *out, size_t size)
{
    if (server_url == NULL)
        (void)snprintf(out, size, "sqlite:%s", place);
    else if (is_mysql())
        (void)snprintf(out, size, "%.*s/%s",
                       (int)(strrchr(server_url, '/') - server_url), server_url,
                       place);
    else
        (void)snprintf(out, size, "%s%sschema=%s", server_url,
                       strchr(server_url, '?') == NULL ? "?" : "&", place);
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
    if (d->my != NULL)
        sql(d, NULL, "DROP DATABASE %s", place);
    db_close(d);
    if (server_url != NULL)
        return;
    (void)unlink(place);
    (void)snprintf(path, sizeof(path), "%s-wal", place);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s-shm", place);
    (void)unlink(path);
}

/* With a binlog MariaDB lets nobody else make triggers. */
static inline void allow_triggers(const struct db *d)
{
    if (d->my != NULL)
        T_EQ(system("\"$ONCE_TEST_WITH_SERVER\" ctl sql mysql "
                    "'SET GLOBAL log_bin_trust_function_creators=1'"
                    " >/dev/null"),
             0);
}

/* Lets no row of this table be written so; `event` NULL: lets it again. */
static inline void refuse(struct db *d, const char *event, const char *table)
{
    if (d->pg != NULL && event != NULL)
        sql(d, NULL,
            "CREATE FUNCTION @refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $f$ BEGIN RAISE EXCEPTION 'no'; END $f$");
    if (event == NULL)
        sql(d, NULL, "%s",
            as(d, "DROP FUNCTION @refuse() CASCADE", "DROP TRIGGER refuse",
               "DROP TRIGGER refuse"));
    else
        sql(d, NULL, "CREATE TRIGGER refuse BEFORE %s ON @%s %s", event, table,
            as(d, "FOR EACH ROW EXECUTE FUNCTION @refuse()",
               "BEGIN SELECT RAISE(ABORT,'no'); END",
               "FOR EACH ROW SIGNAL SQLSTATE '45000'"));
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
