/* SPDX-License-Identifier: Apache-2.0 */
/*
 * either.c - one statement in any database.
 */
#include "messages/tables/either.h"

#include <stdio.h>

#include "base/error.h"

void once__either(struct once__either *q, const once_tx *tx, const char *where,
                  const char *postgres, const char *sqlite, once_error *err)
{
    *q = (struct once__either){.tx = tx, .where = where, .err = err};
    if (tx->sqlite != NULL)
        q->lite = once__stmt(tx, sqlite);
#ifdef ONCE_WITH_MYSQL
    q->my = once__mysql(tx, where, sqlite);
#endif
#ifdef ONCE_WITH_POSTGRES
    q->query.sql = postgres;
#else
    (void)postgres;
#endif
}

void once__either_values(struct once__either *q, const struct once__value *v)
{
    if (q->tx->sqlite != NULL)
        once__stmt_values(&q->lite, v);
#ifdef ONCE_WITH_MYSQL
    if (q->tx->mysql != NULL)
        once__mysql_values(&q->my, v);
#endif
#ifdef ONCE_WITH_POSTGRES
    if (q->tx->postgres != NULL)
        once__query_values(&q->query, v);
#endif
}

/* ---- Rows --------------------------------------------------------------- */

#ifdef ONCE_WITH_POSTGRES
static int next_postgres(struct once__either *q)
{
    if (q->rc == ONCE_OK && q->result == NULL) {
        q->rc = once__query_no_wait(
            once__query_rows(q->tx, &q->query, q->where, &q->result, q->err),
            q->where, q->err);
        q->row = -1;
    }
    return q->rc == ONCE_OK && ++q->row < PQntuples(q->result);
}

static int64_t int_postgres(const struct once__either *q, int column)
{
    const uint8_t *p = (const uint8_t *)PQgetvalue(q->result, q->row, column);
    int i, n = PQgetlength(q->result, q->row, column);
    uint64_t value = n > 0 && (p[0] & 0x80) != 0 ? UINT64_MAX : 0;

    for (i = 0; i < n; i++)
        value = value << 8 | p[i];
    return (int64_t)value;
}
#endif

int once__either_next(struct once__either *q)
{
#ifdef ONCE_WITH_MYSQL
    if (q->tx->mysql != NULL)
        return q->rc == ONCE_OK && once__mysql_next(&q->my, q->err);
#endif
#ifdef ONCE_WITH_POSTGRES
    if (q->tx->postgres != NULL)
        return next_postgres(q);
#endif
    return q->rc == ONCE_OK && once__stmt_next(&q->lite);
}

int64_t once__either_int(struct once__either *q, int column)
{
#ifdef ONCE_WITH_MYSQL
    if (q->tx->mysql != NULL)
        return once__mysql_int(&q->my, column);
#endif
#ifdef ONCE_WITH_POSTGRES
    if (q->tx->postgres != NULL)
        return int_postgres(q, column);
#endif
    return sqlite3_column_int64(q->lite.stmt, column);
}

/* libpq puts a NUL behind each field. */
const char *once__either_string(struct once__either *q, int column)
{
#ifdef ONCE_WITH_MYSQL
    if (q->tx->mysql != NULL)
        return once__mysql_string(&q->my, column);
#endif
#ifdef ONCE_WITH_POSTGRES
    if (q->tx->postgres != NULL)
        return PQgetisnull(q->result, q->row, column)
                   ? NULL
                   : PQgetvalue(q->result, q->row, column);
#endif
    return (const char *)sqlite3_column_text(q->lite.stmt, column);
}

/* An empty blob of SQLite has no address. */
once_bytes once__either_bytes(struct once__either *q, int column)
{
    const void *data;
    size_t size;

#ifdef ONCE_WITH_MYSQL
    if (q->tx->mysql != NULL)
        return once__mysql_bytes(&q->my, column);
#endif
#ifdef ONCE_WITH_POSTGRES
    if (q->tx->postgres != NULL)
        return (once_bytes){once__either_string(q, column),
                            (size_t)PQgetlength(q->result, q->row, column)};
#endif
    if (sqlite3_column_type(q->lite.stmt, column) == SQLITE_NULL)
        return (once_bytes){NULL, 0};
    data = sqlite3_column_blob(q->lite.stmt, column);
    size = (size_t)sqlite3_column_bytes(q->lite.stmt, column);
    return (once_bytes){size == 0 ? "" : data, size};
}

void once__either_copy(struct once__either *q, int column, char *out,
                       size_t size)
{
    (void)snprintf(out, size, "%s",
                   once__text_of(once__either_string(q, column)));
}

void once__either_no_memory(struct once__either *q)
{
    q->rc =
        once__fail(q->err, ONCE_ENOMEM, "%s: no memory for the rows", q->where);
}

int once__either_end(struct once__either *q)
{
    int rc = once__stmt_end(&q->lite);

#ifdef ONCE_WITH_MYSQL
    if (q->tx->mysql != NULL) {
        rc = once__mysql_no_wait(once__mysql_end(&q->my, q->err), q->where,
                                 q->err);
        return q->rc != ONCE_OK ? q->rc : rc;
    }
#endif
#ifdef ONCE_WITH_POSTGRES
    PQclear(q->result);
    q->result = NULL;
#endif
    return q->rc != ONCE_OK || rc == SQLITE_OK
               ? q->rc
               : once__lite_failed(rc, q->where, q->err);
}

int once__either_one(struct once__either *q, int64_t *out)
{
    if (once__either_next(q))
        *out = once__either_int(q, 0);
    return once__either_end(q);
}

#ifdef ONCE_WITH_POSTGRES
int once__either_word(struct once__either *q)
{
    int answer = once__either_next(q)
                     ? once__query_answer(q->result, q->where, q->err)
                     : ONCE_EOPEN;
    int rc = once__either_end(q);

    return rc == ONCE_OK ? answer : rc;
}
#endif
