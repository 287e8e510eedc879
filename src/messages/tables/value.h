/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value.h - parameters of statements, the same for all databases: a list of
 * them, which ends with one of no type.
 */
#ifndef ONCE_MESSAGES_TABLES_VALUE_H
#define ONCE_MESSAGES_TABLES_VALUE_H

#include "messages/tables/backend.h"

enum once__value_type {
    ONCE__VALUE_END,
    ONCE__VALUE_TEXT,
    ONCE__VALUE_NUMBER,
    ONCE__VALUE_BYTES,
    ONCE__VALUE_NOW
};

struct once__value {
    enum once__value_type type;
    int64_t number;
    const void *data; /* NULL: it is NULL */
    size_t size;      /* of bytes         */
};

#define ONCE__TEXT(text) ((struct once__value){ONCE__VALUE_TEXT, 0, text, 0})
#define ONCE__NUMBER(n)                                                        \
    ((struct once__value){ONCE__VALUE_NUMBER, (int64_t)(n), NULL, 0})
/* Bytes, of which there may be none; or NULL where they have no address. */
#define ONCE__BYTES(data, size)                                                \
    ((struct once__value){ONCE__VALUE_BYTES, 0,                                \
                          (size) == 0 ? (const void *)"" : (data), size})
#define ONCE__MAYBE(data, size)                                                \
    ((struct once__value){ONCE__VALUE_BYTES, 0, data, size})
#define ONCE__SUM(fingerprint) ONCE__MAYBE(fingerprint, ONCE_FINGERPRINT_SIZE)
/* On SQLite, whose statements have no clock: the time. On MySQL: what reads the
 * server's clock. On PostgreSQL no parameter. */
#define ONCE__NOW ((struct once__value){ONCE__VALUE_NOW, 0, NULL, 0})

#define ONCE__VALUES(...)                                                      \
    ((const struct once__value[]){__VA_ARGS__, {ONCE__VALUE_END, 0, NULL, 0}})

#endif /* ONCE_MESSAGES_TABLES_VALUE_H */
