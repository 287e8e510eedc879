/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stmt.c - statements on a handle of SQLite, and what their errors mean.
 */
#include "messages/tables/stmt.h"

#include <assert.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/steady.h"

enum { FULL = 2 };

uint64_t once__lite_now(void)
{
    return once__clock_us(CLOCK_REALTIME) / 1000;
}

/* ---- Errors ------------------------------------------------------------ */

int once__lite_failed(int rc, const char *where, once_error *err)
{
    switch (rc & 255) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_INTERRUPT:
    case SQLITE_IOERR:
        return once__fail(err, ONCE_EABORTED, "%s: %s (%d)", where,
                          sqlite3_errstr(rc), rc);
    case SQLITE_FULL:
        return once__fail(err, ONCE_EFULL, "%s: the disk is full", where);
    case SQLITE_NOMEM:
        return once__fail(err, ONCE_ENOMEM, "%s: out of memory", where);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return once__fail(err, ONCE_ECORRUPT, "%s: the file is damaged (%d)",
                          where, rc);
    case SQLITE_ERROR: /* a statement that does not fit the tables */
        return once__fail(err, ONCE_EOPEN,
                          "%s: the tables are not there: `once messages "
                          "init`",
                          where);
    default:
        return once__fail(err, ONCE_EOPEN, "%s: %s (%d)", where,
                          sqlite3_errstr(rc), rc);
    }
}

/* ---- Statements -------------------------------------------------------- */

/* More than there are texts. */
enum { PREPARED_MAX = 128 };

/* Where the row is that marks a transaction. */
enum mark { NO_MARK, INBOX, OUTBOX };

struct once_prepared {
    sqlite3 *sqlite;
    struct {
        int kind;         /* an enum mark */
        unsigned version; /* of the database, when the row was written */
        char consumer[ONCE_ID_SIZE], id[ONCE_ID_SIZE];
        int64_t seq;
    } mark;
    size_t n;
    struct {
        const char *sql;
        sqlite3_stmt *stmt;
        int busy; /* under way: another one with this text has its own */
    } list[PREPARED_MAX];
};

int once_prepared_new(sqlite3 *sqlite, once_prepared **out, once_error *err)
{
    struct once_prepared *p = sqlite == NULL ? NULL : calloc(1, sizeof(*p));

    *out = p;
    if (sqlite == NULL)
        return once__fail(err, ONCE_EINVAL, "sqlite: there is no handle");
    if (p == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    p->sqlite = sqlite;
    return ONCE_OK;
}

void once_prepared_free(once_prepared *p)
{
    size_t i;

    for (i = 0; p != NULL && i < p->n; i++) {
        assert(!p->list[i].busy);
        (void)sqlite3_finalize(p->list[i].stmt);
    }
    free(p);
}

int once__prepared_fits(const once_tx *tx)
{
    return tx->prepared == NULL || tx->prepared->sqlite == tx->sqlite;
}

/* A PRAGMA may have its answer in its program, so SQLite prepares it again before
 * each run but the first: it is never kept, which would save nothing. */
static int is_kept(const char *sql)
{
    return strncmp(sql, "PRAGMA", 6) != 0;
}

/* The one with this text, which is under way now; 0: there is none to be had. */
static int prepared(struct once__stmt *q, once_prepared *p, const char *sql)
{
    size_t i;

    for (i = 0; i < p->n && p->list[i].sql != sql; i++)
        ;
    if (i == p->n && i < PREPARED_MAX &&
        sqlite3_prepare_v3(p->sqlite, sql, -1, SQLITE_PREPARE_PERSISTENT,
                           &p->list[i].stmt, NULL) == SQLITE_OK) {
        p->list[i].sql = sql;
        p->n++;
    }
    if (i == p->n || p->list[i].busy)
        return 0;
    p->list[i].busy = 1;
    q->busy = &p->list[i].busy;
    q->stmt = p->list[i].stmt;
    return 1;
}

struct once__stmt once__stmt(const once_tx *tx, const char *sql)
{
    struct once__stmt q = {.tx = tx};

    if (tx->prepared == NULL || !is_kept(sql) ||
        !prepared(&q, tx->prepared, sql))
        q.rc = sqlite3_prepare_v2(tx->sqlite, sql, -1, &q.stmt, NULL);
    return q;
}

static int bind(struct once__stmt *q, const struct once__value *v)
{
    switch (v->data == NULL ? ONCE__VALUE_END : v->type) {
    case ONCE__VALUE_TEXT:
        return sqlite3_bind_text(q->stmt, q->n, v->data, -1, SQLITE_STATIC);
    case ONCE__VALUE_BYTES:
        return sqlite3_bind_blob64(q->stmt, q->n, v->data, v->size,
                                   SQLITE_STATIC);
    default:
        return sqlite3_bind_null(q->stmt, q->n);
    }
}

void once__stmt_values(struct once__stmt *q, const struct once__value *v)
{
    for (; q->rc == SQLITE_OK && v->type != ONCE__VALUE_END; v++) {
        q->n++;
        if (v->type == ONCE__VALUE_NUMBER)
            q->rc = sqlite3_bind_int64(q->stmt, q->n, v->number);
        else if (v->type == ONCE__VALUE_NOW)
            q->rc = sqlite3_bind_int64(q->stmt, q->n,
                                       (sqlite3_int64)once__lite_now());
        else
            q->rc = bind(q, v);
    }
}

void once__stmt_again(struct once__stmt *q)
{
    if (q->rc == SQLITE_OK || q->rc == SQLITE_DONE)
        q->rc = sqlite3_reset(q->stmt);
    q->n = 0;
}

int once__stmt_next(struct once__stmt *q)
{
    if (q->rc == SQLITE_OK)
        q->rc = sqlite3_step(q->stmt);
    if (q->rc != SQLITE_ROW)
        return 0;
    q->rc = SQLITE_OK;
    return 1;
}

int once__stmt_end(struct once__stmt *q)
{
    int rc = q->rc == SQLITE_DONE ? SQLITE_OK : q->rc;

    if (q->busy != NULL) {
        (void)sqlite3_reset(q->stmt);
        (void)sqlite3_clear_bindings(q->stmt);
        *q->busy = 0;
    } else {
        (void)sqlite3_finalize(q->stmt);
    }
    q->busy = NULL;
    q->stmt = NULL;
    return rc;
}

int once__lite_run_values(const once_tx *tx, int *changed, const char *sql,
                          const struct once__value *v)
{
    struct once__stmt q = once__stmt(tx, sql);
    int rc;

    if (v != NULL)
        once__stmt_values(&q, v);
    while (once__stmt_next(&q))
        ;
    rc = once__stmt_end(&q);
    if (changed != NULL)
        *changed = rc == SQLITE_OK ? sqlite3_changes(tx->sqlite) : 0;
    return rc;
}

int once__lite_number(const once_tx *tx, const char *sql, int64_t *out)
{
    struct once__stmt q = once__stmt(tx, sql);

    if (once__stmt_next(&q))
        *out = sqlite3_column_int64(q.stmt, 0);
    return once__stmt_end(&q);
}

/* ---- The handle -------------------------------------------------------- */

/* Two PRAGMAs and not one SELECT over their tables, which costs more than a
 * claim itself. */
int once__lite_durable(const once_tx *tx, int *durable)
{
    const char *path = sqlite3_db_filename(tx->sqlite, "main"), *mode;
    int64_t level = FULL;
    int rc = once__lite_number(tx, "PRAGMA main.synchronous", &level);
    struct once__stmt q;

    if (rc != SQLITE_OK)
        return rc;
    q = once__stmt(tx, "PRAGMA main.journal_mode");
    mode = once__stmt_next(&q) ? (const char *)sqlite3_column_text(q.stmt, 0)
                               : NULL;
    mode = once__text_of(mode);
    /* Without a path it is a database in memory. */
    *durable = level >= FULL &&
               (once__text_of(path)[0] == '\0' ||
                (strcmp(mode, "off") != 0 && strcmp(mode, "memory") != 0));
    return once__stmt_end(&q);
}

/* 1: `*out` is another number after each commit that has changed the database, of
 * this handle or of another one. */
static int version_of(const once_tx *tx, unsigned *out)
{
    return sqlite3_file_control(tx->sqlite, "main", SQLITE_FCNTL_DATA_VERSION,
                                out) == SQLITE_OK;
}

static int has_mark(const once_tx *tx)
{
    const struct once_prepared *p = tx->prepared;
    struct once__stmt q;
    int found;

    if (p->mark.kind == INBOX) {
        q = once__stmt(tx, "SELECT 1 FROM main.once_inbox"
                           " WHERE consumer=?1 AND id=?2");
        once__stmt_with(&q, ONCE__TEXT(p->mark.consumer),
                        ONCE__TEXT(p->mark.id));
    } else {
        q = once__stmt(tx, "SELECT 1 FROM main.once_outbox WHERE seq=?1");
        once__stmt_with(&q, ONCE__NUMBER(p->mark.seq));
    }
    found = once__stmt_next(&q);
    return once__stmt_end(&q) == SQLITE_OK && found;
}

int once__lite_durable_here(const once_tx *tx, int *durable)
{
    struct once_prepared *p = tx->prepared;
    unsigned version = 0;

    *durable = 1;
    if (p != NULL && p->mark.kind != NO_MARK && version_of(tx, &version) &&
        version == p->mark.version && has_mark(tx))
        return SQLITE_OK;
    if (p != NULL)
        p->mark.kind = NO_MARK;
    return once__lite_durable(tx, durable);
}

/* 1: the row that is written now is to mark the transaction. */
static int is_unmarked(const once_tx *tx)
{
    return tx->prepared != NULL && tx->prepared->mark.kind == NO_MARK &&
           version_of(tx, &tx->prepared->mark.version);
}

void once__lite_mark_inbox(const once_tx *tx, const char *consumer,
                           const char *id)
{
    if (!is_unmarked(tx))
        return;
    tx->prepared->mark.kind = INBOX;
    memcpy(tx->prepared->mark.consumer, consumer, strlen(consumer) + 1);
    memcpy(tx->prepared->mark.id, id, strlen(id) + 1);
}

void once__lite_mark_outbox(const once_tx *tx)
{
    if (!is_unmarked(tx))
        return;
    tx->prepared->mark.kind = OUTBOX;
    tx->prepared->mark.seq = sqlite3_last_insert_rowid(tx->sqlite);
}

int once__lite_not_durable(const char *where, once_error *err)
{
    return once__fail(err, ONCE_EOPEN,
                      "%s: PRAGMA synchronous is below FULL, or journal_mode "
                      "is off or memory: what is committed may be lost",
                      where);
}

int once__lite_idle(const once_tx *tx, once_error *err)
{
    return sqlite3_get_autocommit(tx->sqlite)
               ? ONCE_OK
               : once__fail(err, ONCE_ETX, "tx: a transaction is open");
}

/* ---- Transactions ------------------------------------------------------- */

static int exec(const once_tx *tx, const char *sql)
{
    return sqlite3_exec(tx->sqlite, sql, NULL, NULL, NULL);
}

int once__lite_transaction(const once_tx *tx, const char *where,
                           int (*work)(const once_tx *tx, void *user),
                           void *user, once_error *err)
{
    int durable = 1, committing = 0, rc;

    rc = once__lite_durable(tx, &durable);
    if (rc == SQLITE_OK && !durable)
        return once__lite_not_durable(where, err);
    if (rc == SQLITE_OK)
        rc = exec(tx, "BEGIN IMMEDIATE");
    if (rc == SQLITE_OK)
        rc = work(tx, user);
    if (rc == SQLITE_OK) {
        committing = 1;
        rc = exec(tx, "COMMIT");
    }
    if (rc == SQLITE_OK)
        return ONCE_OK;
    if (!sqlite3_get_autocommit(tx->sqlite))
        (void)exec(tx, "ROLLBACK");
    if (committing && (rc & 255) != SQLITE_FULL)
        return once__fail(err, ONCE_EABORTED, "%s: COMMIT: %s (%d)", where,
                          sqlite3_errstr(rc), rc);
    return once__lite_failed(rc, where, err);
}

/* ---- Ids ---------------------------------------------------------------- */

int once__lite_draw_id(uint64_t now, char out[ONCE_ID_SIZE])
{
    uint8_t b[16];
    size_t i, at = 0;

    if (RAND_bytes(b, sizeof(b)) != 1)
        return 0;
    for (i = 0; i < 6; i++)
        b[i] = (uint8_t)(now >> (40 - 8 * i));
    b[6] = (uint8_t)(0x70 | (b[6] & 0x0f));
    b[8] = (uint8_t)(0x80 | (b[8] & 0x3f));
    for (i = 0; i < sizeof(b); i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            out[at++] = '-';
        once__hex(&b[i], 1, out + at);
        at += 2;
    }
    return 1;
}
