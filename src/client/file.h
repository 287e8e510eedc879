/* SPDX-License-Identifier: Apache-2.0 */
/* file.h - the client's SQLite file: opening it, and its errors. It knows the
 * schema, but no orders: those are orders.c's. */
#ifndef ONCE_CLIENT_FILE_H
#define ONCE_CLIENT_FILE_H

#include <sqlite3.h>

#include "client/client.h"

/* Opens the file, or creates it. `*db` may be set after an error, too: end it
 * with sqlite3_close(). */
ONCE_CHECK int once__file_open(const char *path, uint32_t busy_ms,
                               once_error *err, sqlite3 **db);
/* Makes durable what a killed writer has left in the log, and the names of the
 * files. The last step of opening: before it nothing in the file counts. */
ONCE_CHECK int once__file_flush(sqlite3 *db, once_error *err);
/* What a result code of SQLite means; `what` was being done. */
int once__file_fail(int rc, const char *what, once_error *err);

#endif /* ONCE_CLIENT_FILE_H */
