/* SPDX-License-Identifier: Apache-2.0 */
/*
 * purge_mysql.h - what is remembered no longer, and rows of the outbox that are done.
 */
#ifndef ONCE_MESSAGES_TABLES_PURGE_MYSQL_H
#define ONCE_MESSAGES_TABLES_PURGE_MYSQL_H

#include <once/message.h>

ONCE_CHECK int once__mysql_purge(const once_tx *tx, uint64_t *removed,
                                 once_error *err);
/* Rows of the outbox that were done before `until_ms`. */
ONCE_CHECK int once__mysql_purge_done(const once_tx *tx, int64_t until_ms,
                                      uint64_t *removed, once_error *err);

#endif /* ONCE_MESSAGES_TABLES_PURGE_MYSQL_H */
