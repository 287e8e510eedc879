/* SPDX-License-Identifier: Apache-2.0 */
/* base.h - the commands' connection to a program's database. */
#ifndef ONCE_ONCE_MESSAGES_BASE_H
#define ONCE_ONCE_MESSAGES_BASE_H

#include "programs/once/cli.h"
#include "messages/relay/base.h"

/* The URL of --database or ONCE_DATABASE, or NULL: then say which is wanted. No
 * other store stands in for it, and least of all that of `once run`. */
const char *cli_database(const struct cli *c);
int cli_which_database(const struct cli *c);
/* Reads that URL; does not connect. `use` is an enum
 * once__base_use. The caller ends `*out` with once__base_close(), also after a
 * failure. */
int cli_base_open(const struct cli *c, int use, struct once__base **out);
int cli_base_connect(const struct cli *c, struct once__base *b);

#endif /* ONCE_ONCE_MESSAGES_BASE_H */
