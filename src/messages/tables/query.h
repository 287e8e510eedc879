/* SPDX-License-Identifier: Apache-2.0 */
/*
 * query.h - statements on a connection of PostgreSQL. What comes back is in the
 * binary format.
 */
#ifndef ONCE_MESSAGES_TABLES_QUERY_H
#define ONCE_MESSAGES_TABLES_QUERY_H

#include <libpq-fe.h>

#include "messages/tables/value.h"

enum { ONCE__QUERY_PARAMETERS = 10 };

/* One statement. `@` in it is the schema. */
struct once__query {
    const char *sql;
    int n;
    char numbers[ONCE__QUERY_PARAMETERS][24];
    const char *value[ONCE__QUERY_PARAMETERS];
    int length[ONCE__QUERY_PARAMETERS], format[ONCE__QUERY_PARAMETERS];
};

/* Adds the parameters ONCE__TEXT(...), ..., borrowed until it was asked. */
#define once__query_with(q, ...)                                               \
    once__query_values(q, ONCE__VALUES(__VA_ARGS__))
void once__query_values(struct once__query *q, const struct once__value *v);

/* One dimension of numbers, or of bytes. */
struct once__array {
    uint8_t *bytes;
    size_t size, room;
    int failed; /* no memory: the rest is skipped */
};

/* Of `n` elements, which are to be added; `type` is the OID of one. */
struct once__array once__array(unsigned type, size_t n);
void once__array_number(struct once__array *a, int64_t value, size_t size);
void once__array_bytes(struct once__array *a, const void *data, /* or NULL */
                       size_t size);
void once__array_clear(struct once__array *a);
/* Adds it as a parameter: ONCE_OK, ONCE_ENOMEM, or ONCE_ELIMIT. */
int once__query_array(struct once__query *q, const struct once__array *a,
                      const char *where, once_error *err);

/* ONCE_OK and rows in `*out`, an answer that SQLSTATE gives, or an error. */
int once__query_rows(const once_tx *tx, const struct once__query *a,
                     const char *where, PGresult **out, once_error *err);
/* The same, exactly one row. */
int once__query_one(const once_tx *tx, const struct once__query *a,
                    const char *where, PGresult **out, once_error *err);
/* For functions that answer with a word alone: what it means. */
int once__query_word(const once_tx *tx, const struct once__query *a,
                     const char *where, once_error *err);
/* The same of the first field of a row. */
int once__query_answer(const PGresult *r, const char *where, once_error *err);
/* The answer, or the error, that a result without rows is. */
int once__query_failed(const PGresult *r, const char *where, once_error *err);
/* Where no copy can be under way a lock that was not granted means: again. */
int once__query_no_wait(int rc, const char *where, once_error *err);
/* ONCE_OK, or ONCE_ETX: a transaction is open. */
int once__query_idle(const once_tx *tx, once_error *err);

#endif /* ONCE_MESSAGES_TABLES_QUERY_H */
