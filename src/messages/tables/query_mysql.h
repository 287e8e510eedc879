/* SPDX-License-Identifier: Apache-2.0 */
/*
 * query_mysql.h - statements on a connection of MySQL or MariaDB.
 *
 *    struct once__mysql q = once__mysql(tx, "what", "SELECT a FROM t WHERE b=?1");
 *    once__mysql_with(&q, ONCE__TEXT(b));
 *    while (once__mysql_next(&q, err))
 *        take(once__mysql_int(&q, 0));
 *    rc = once__mysql_end(&q, err);
 *
 * Values stand in the text, bytes as x'...': that means the same in every session,
 * whatever its character set and sql_mode. Statements that are prepared would not
 * pass every pooler.
 *
 * A statement may be written for SQLite: "main." goes, and `key`, which is a word of
 * MySQL's language, is quoted.
 *
 * The first error stays with the statement and skips what follows, so only its end
 * needs to be looked at.
 */
#ifndef ONCE_MESSAGES_TABLES_QUERY_MYSQL_H
#define ONCE_MESSAGES_TABLES_QUERY_MYSQL_H

#include "base/mysql/mysql.h"
#include "messages/tables/value.h"

enum { ONCE__MYSQL_PARAMETERS = 12 };

/* What reads the server's clock, in ms since 1970, whatever the time zone of the
 * session is. */
#define ONCE__MYSQL_NOW                                                        \
    "(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(3)) DIV 1000)"

struct once__mysql {
    const once_tx *tx;
    const char *where, *sql;
    const struct once__my_text *text; /* in place of `sql`, or NULL */
    struct once__value values[ONCE__MYSQL_PARAMETERS];
    int n;
    int rc; /* ONCE_OK, or the answer or error that it has ended with */
    MYSQL_RES *rows; /* NULL: it was not asked yet, or has none */
    int asked;
    MYSQL_ROW row;
    unsigned long *lengths;
};

struct once__mysql once__mysql(const once_tx *tx, const char *where,
                               const char *sql);
/* For a text that is complete, borrowed until it was asked. */
struct once__mysql once__mysql_of_text(const once_tx *tx, const char *where,
                                       const struct once__my_text *text);
/* Adds the parameters ONCE__TEXT(...), ..., borrowed until it was asked. */
#define once__mysql_with(q, ...)                                               \
    once__mysql_values(q, ONCE__VALUES(__VA_ARGS__))
void once__mysql_values(struct once__mysql *q, const struct once__value *v);

/* 1: there is a row, which is readable until the next call. */
int once__mysql_next(struct once__mysql *q, once_error *err);
int64_t once__mysql_int(const struct once__mysql *q, int column); /* NULL: 0 */
const char *once__mysql_string(const struct once__mysql *q,
                               int column); /* or NULL */
once_bytes once__mysql_bytes(const struct once__mysql *q, int column);
/* Ends it: ONCE_OK, the answer that its SQLSTATE is, or an error. */
int once__mysql_end(struct once__mysql *q, once_error *err);

/* A whole statement; `*changed`, or NULL: how many rows it has changed. */
#define once__mysql_run(tx, where, changed, err, sql, ...)                     \
    once__mysql_run_values(tx, where, changed, err, sql,                       \
                           ONCE__VALUES(__VA_ARGS__))
int once__mysql_run_values(const once_tx *tx, const char *where,
                           uint64_t *changed, once_error *err, const char *sql,
                           const struct once__value *v); /* or NULL: none */
/* The same for a text that is complete. */
int once__mysql_run_text(const once_tx *tx, const char *where,
                         uint64_t *changed, once_error *err,
                         const struct once__my_text *text);
/* The first number of the first row; `*out` stays if there is none. */
int once__mysql_number(const once_tx *tx, const char *where, const char *sql,
                       int64_t *out, once_error *err);
/* One answer of several. 0: `*rows` are its rows, to be freed, or NULL. Else the
 * number of its error: a SELECT that fails while it runs has sent its columns by
 * then, so that the error comes in the place of the rows. Where the client has failed
 * rows may be unread, and the connection is shut down. */
unsigned once__mysql_take(MYSQL *conn, MYSQL_RES **rows);
/* A procedure whose first column is a word: what it means, or an error. Its row
 * is readable; with _end it is over. */
int once__mysql_word(struct once__mysql *q, once_error *err);
int once__mysql_word_end(struct once__mysql *q, once_error *err);

/* Writes the statement with its values; also for a part of one. */
void once__mysql_fill(struct once__my_text *to, const char *sql,
                      const struct once__value *values, int n);
/* ",1,2,3" without the first comma. */
void once__mysql_list(struct once__my_text *to, const int64_t *numbers,
                      size_t n);

/*
 * Runs `work` between START TRANSACTION and COMMIT, at READ COMMITTED. What it
 * returns but ONCE_OK is rolled back and returned. ONCE_EABORTED is
 * also a COMMIT without an answer, which may have been done.
 */
typedef int once__mysql_work(const once_tx *tx, void *user, once_error *err);
int once__mysql_transaction(const once_tx *tx, const char *where,
                            once__mysql_work *work, void *user,
                            once_error *err);

/* ONCE_OK, or ONCE_EOPEN: what this session commits may be lost. */
int once__mysql_durable(const once_tx *tx, const char *where, once_error *err);
/* ONCE_OK, or ONCE_ETX: a transaction is open. */
int once__mysql_idle(const once_tx *tx, once_error *err);
/* Where no copy can be under way a lock that was not granted means: again. */
int once__mysql_no_wait(int rc, const char *where, once_error *err);

#endif /* ONCE_MESSAGES_TABLES_QUERY_MYSQL_H */
