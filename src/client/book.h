/* SPDX-License-Identifier: Apache-2.0 */
/* book.h - what book.c, which knows orders, and file.c, which knows files, have
 * of each other. */
#ifndef ONCE_CLIENT_BOOK_H
#define ONCE_CLIENT_BOOK_H

#include <pthread.h>

#include <sqlite3.h>

#include "client/client.h"

enum { ONCE__BOOK_QUERIES = 15 };

struct once__book {
    sqlite3 *db;
    pthread_mutex_t lock;
    sqlite3_stmt *query[ONCE__BOOK_QUERIES];
};

/* Prepares all statements: a result code of SQLite. */
int once__book_prepare(struct once__book *b);
/* What a result code of SQLite means; `what` was being done. */
int once__book_fail(int rc, const char *what, once_error *err);

#endif /* ONCE_CLIENT_BOOK_H */
