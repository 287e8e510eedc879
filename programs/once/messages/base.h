/* SPDX-License-Identifier: Apache-2.0 */
/* base.h - the commands' connection to a program's database. */
#ifndef ONCE_CLI_BASE_H
#define ONCE_CLI_BASE_H

#include "cli.h"
#include "relay/base.h"

/* Reads the URL of --store or ONCE_STORE; does not connect. `use` is an enum
 * once__base_use. The caller ends `*out` with once__base_close(), also after a
 * failure. */
int cli_base_open(const struct cli *c, int use, struct once__base **out);
int cli_base_connect(const struct cli *c, struct once__base *b);

#endif /* ONCE_CLI_BASE_H */
