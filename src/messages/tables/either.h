/* SPDX-License-Identifier: Apache-2.0 */
/*
 * either.h - one statement in any database, where all need no more than that: the
 * same parameters in the same order, the same columns, and two texts. The second
 * is understood by SQLite and, as query_mysql.h says, by MySQL; where they differ
 * once__either_lite() picks it.
 *
 *    once__either(&q, tx, "what", "SELECT @.f_1($1)", "SELECT ?1", err);
 *    once__either_with(&q, ONCE__NUMBER(7));
 *    while (once__either_next(&q))
 *        take(once__either_int(&q, 0));
 *    rc = once__either_end(&q);
 *
 * The first error stays with it and skips what follows, so only the end needs
 * to be looked at.
 */
#ifndef ONCE_MESSAGES_TABLES_EITHER_H
#define ONCE_MESSAGES_TABLES_EITHER_H

#include "messages/tables/stmt.h"
#ifdef ONCE_WITH_POSTGRES
#include "messages/tables/query.h"
#endif
#ifdef ONCE_WITH_MYSQL
#include "messages/tables/query_mysql.h"
#endif

struct once__either {
    const once_tx *tx;
    const char *where; /* for texts of errors */
    once_error *err;
    int rc; /* ONCE_OK, or what has gone wrong outside SQLite */
    struct once__stmt lite;
#ifdef ONCE_WITH_POSTGRES
    struct once__query query;
    PGresult *result; /* NULL: it was not asked yet */
    int row;
#endif
#ifdef ONCE_WITH_MYSQL
    struct once__mysql my;
#endif
};

/* PostgreSQL's text may be NULL where the connection is another's for certain. */
void once__either(struct once__either *q, const once_tx *tx, const char *where,
                  const char *postgres, const char *sqlite, once_error *err);
/* The text for this connection, if it is not PostgreSQL's. */
static inline const char *
once__either_lite(const once_tx *tx, const char *sqlite, const char *mysql)
{
    return tx->mysql != NULL ? mysql : sqlite;
}
/* Adds parameters; what they point to must live until the end. */
#define once__either_with(q, ...)                                              \
    once__either_values(q, ONCE__VALUES(__VA_ARGS__))
void once__either_values(struct once__either *q, const struct once__value *v);

/* 1: there is a row, which is readable until the next call. */
int once__either_next(struct once__either *q);
int64_t once__either_int(struct once__either *q, int column); /* NULL: 0 */
const char *once__either_string(struct once__either *q,
                                int column); /* or NULL */
once_bytes once__either_bytes(struct once__either *q, int column);
/* A copy that fits; NULL: "". */
void once__either_copy(struct once__either *q, int column, char *out,
                       size_t size);
/* There was no memory for a row: there is no next one. */
void once__either_no_memory(struct once__either *q);
/* Ends it: ONCE_OK, or the error. */
int once__either_end(struct once__either *q);
/* For a statement whose one row is a number; `*out` stays if there is none. */
int once__either_one(struct once__either *q, int64_t *out);
/* For a function of PostgreSQL that answers with a word: what it means. */
int once__either_word(struct once__either *q);

#endif /* ONCE_MESSAGES_TABLES_EITHER_H */
