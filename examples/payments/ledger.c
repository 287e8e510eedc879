/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ledger.c - the charges, in an SQLite file (see payments.h).
 *
 * Each answer comes from one statement, so its sums and its rows are of the
 * same moment.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "payments.h"

enum { SCHEMA = 2 }; /* PRAGMA user_version of the file */

/* clang-format off */
/*
 * A charge survives the death of this process at any moment, which is what the
 * sample is about. A power cut may take the last ones with it; a real ledger
 * says FULL and pays a sync for each charge.
 */
static const char setup_sql[] =
    "PRAGMA journal_mode=WAL;"
    "PRAGMA synchronous=NORMAL;"
    "BEGIN IMMEDIATE;"
    "CREATE TABLE IF NOT EXISTS charges ("
    " id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " name TEXT NOT NULL,"
    " amount INTEGER NOT NULL,"
    " at_ms INTEGER NOT NULL,"
    " record TEXT);" /* Idempotency-Record, if the request had one */
    "CREATE INDEX IF NOT EXISTS charges_by_name ON charges (name, amount);"
    "CREATE INDEX IF NOT EXISTS charges_by_record ON charges (record);"
    "PRAGMA user_version=2;"
    "COMMIT;";

static const char check_sql[] =
    "SELECT user_version, (SELECT COUNT(*) FROM sqlite_master)"
    " FROM pragma_user_version";

static const char charge_sql[] =
    "INSERT INTO charges (name, amount, at_ms, record) VALUES (?1, ?2, ?3, ?4)"
    " RETURNING json_object('charge', id, 'order', name, 'amount', amount)"
    "  || char(10)";

/* The line that the first charge of this record was answered with. */
static const char record_sql[] =
    "SELECT json_object('charge', id, 'order', name, 'amount', amount)"
    "  || char(10) FROM charges WHERE record = ?1 ORDER BY id LIMIT 1";

static const char order_sql[] = /* ?1 name, ?2 after, ?3 limit */
    "WITH asked AS (SELECT * FROM charges WHERE name = ?1),"
    " page AS (SELECT * FROM asked WHERE id > ?2 ORDER BY id LIMIT ?3)"
    "SELECT CASE WHEN EXISTS (SELECT * FROM asked) THEN json_object("
    "  'order', ?1,"
    "  'count', (SELECT COUNT(*) FROM asked),"
    "  'total', (SELECT SUM(amount) FROM asked),"
    "  'charges', json_group_array("
    "    json_object('charge', id, 'amount', amount, 'at_ms', at_ms)),"
    "  'next', CASE WHEN MAX(id) < (SELECT MAX(id) FROM asked)"
    "    THEN MAX(id) END"
    ") || char(10) ELSE '' END FROM page";

static const char page_sql[] = /* ?1 after, ?3 limit */
    "WITH page AS ("
    "  SELECT name, COUNT(*) AS charges, SUM(amount) AS total FROM charges"
    "  WHERE name > ?1 GROUP BY name ORDER BY name LIMIT ?3)"
    "SELECT json_object("
    "  'orders', (SELECT COUNT(DISTINCT name) FROM charges),"
    "  'charges', (SELECT COUNT(*) FROM charges),"
    "  'total', (SELECT IFNULL(SUM(amount), 0) FROM charges),"
    "  'ledger', json_group_array("
    "    json_object('order', name, 'charges', charges, 'total', total)),"
    "  'next', CASE WHEN MAX(name) < (SELECT MAX(name) FROM charges)"
    "    THEN MAX(name) END"
    ") || char(10) FROM page";
/* clang-format on */

static bool complain(struct ledger *l, const char *what)
{
    fprintf(stderr, "payments: ledger: %s: %s\n", what,
            l->db == NULL ? "out of memory" : sqlite3_errmsg(l->db));
    return false;
}

/* Is it a new file or a ledger of ours? */
static bool ledger_check(struct ledger *l)
{
    sqlite3_stmt *s = NULL;
    bool good = false;

    if (sqlite3_prepare_v2(l->db, check_sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW) {
        int version = sqlite3_column_int(s, 0);
        int tables = sqlite3_column_int(s, 1);

        good = version == SCHEMA || (version == 0 && tables == 0);
        if (!good)
            fprintf(stderr,
                    "payments: ledger: the file has schema version %d and %d "
                    "tables; version %d is understood\n",
                    version, tables, SCHEMA);
    } else {
        complain(l, "cannot be read");
    }
    sqlite3_finalize(s);
    return good;
}

bool ledger_open(struct ledger *l, const char *path)
{
    l->db = NULL;
    pthread_mutex_init(&l->lock, NULL);
    if (sqlite3_open(path, &l->db) != SQLITE_OK)
        return complain(l, "cannot be opened");
    sqlite3_busy_timeout(l->db, 5000);
    /* First look, then set: what is not ours is left as it is. */
    if (!ledger_check(l))
        return false;
    if (sqlite3_exec(l->db, setup_sql, NULL, NULL, NULL) != SQLITE_OK)
        return complain(l, "cannot be set up");
    return true;
}

void ledger_close(struct ledger *l)
{
    sqlite3_close(l->db);
    pthread_mutex_destroy(&l->lock);
}

/* A statement with up to four values, whose answer is one text. */
static bool ledger_ask(struct ledger *l, const char *sql, const char *name,
                       int64_t second, int64_t third, const char *fourth,
                       char **line)
{
    sqlite3_stmt *s = NULL;
    const unsigned char *text;
    int rc;

    *line = NULL;
    pthread_mutex_lock(&l->lock);
    rc = sqlite3_prepare_v2(l->db, sql, -1, &s, NULL);
    if (rc != SQLITE_OK)
        goto out;
    sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 2, second);
    sqlite3_bind_int64(s, 3, third);
    sqlite3_bind_text(s, 4, fourth, -1, SQLITE_STATIC);
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        text = sqlite3_column_text(s, 0);
        *line = text == NULL ? NULL : strdup((const char *)text);
        /* Only when the statement has come to its end it is committed. */
        rc = sqlite3_step(s);
    }
out:
    if (rc != SQLITE_DONE) {
        complain(l, "a statement");
        free(*line);
        *line = NULL;
    }
    sqlite3_finalize(s);
    pthread_mutex_unlock(&l->lock);
    return rc == SQLITE_DONE;
}

bool ledger_charge(struct ledger *l, const char *order, int64_t amount,
                   const char *record, char **line)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return ledger_ask(l, charge_sql, order, amount,
                      (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000,
                      record, line);
}

bool ledger_order(struct ledger *l, const char *order, uint32_t after,
                  uint32_t limit, char **line)
{
    return ledger_ask(l, order_sql, order, after, limit, NULL, line);
}

bool ledger_page(struct ledger *l, const char *after, uint32_t limit,
                 char **line)
{
    return ledger_ask(l, page_sql, after, 0, limit, NULL, line);
}

bool ledger_record(struct ledger *l, const char *record, char **line)
{
    return ledger_ask(l, record_sql, record, 0, 0, NULL, line);
}
