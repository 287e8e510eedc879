/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shape.h - whether the tables and functions that are there are those that
 * pg.sql, lite.sql and my.sql make: ONCE_OK, ONCE_EVERSION and what is different first, or
 * another error.
 */
#ifndef ONCE_MESSAGES_TABLES_SHAPE_H
#define ONCE_MESSAGES_TABLES_SHAPE_H

#include "messages/tables/backend.h"

ONCE_CHECK int once__shape_postgres(const once_tx *tx, once_error *err);
ONCE_CHECK int once__shape_sqlite(const once_tx *tx, once_error *err);
ONCE_CHECK int once__shape_mysql(const once_tx *tx, once_error *err);

#endif /* ONCE_MESSAGES_TABLES_SHAPE_H */
