/* SPDX-License-Identifier: Apache-2.0 */
/* statement.h - `once messages consume --sql` on MySQL and MariaDB. */
#ifndef ONCE_ONCE_MESSAGES_STATEMENT_H
#define ONCE_ONCE_MESSAGES_STATEMENT_H

#include <mysql.h>

#include <once/message.h>

#include "programs/once/cli.h"

/* Executes every statement of the operator's text, up to one that fails, which it
 * reports. $1 or ?1 is the message's id, 2 its body, 3 its key, 4 its type.
 * ONCE_OK or ONCE_AGAIN. */
int cli_statement_mysql(const struct cli *c, const char *text, MYSQL *conn,
                        const once_message *m);

#endif /* ONCE_ONCE_MESSAGES_STATEMENT_H */
