/* SPDX-License-Identifier: Apache-2.0 */
/* resolve_lines.h - `once resolve --records`: one decision about many
 * records. */
#ifndef ONCE_ONCE_RECORDS_RESOLVE_LINES_H
#define ONCE_ONCE_RECORDS_RESOLVE_LINES_H

#include "programs/once/cli.h"

struct cli_batch {
    once__batch_line lines[ONCE__BATCH_MAX];
    size_t n;
};

/* Reads `path`, "-" for stdin: JSON objects, one a line, with `name`, `fence`
 * and perhaps `attempt`, as once ls --json prints them. All of it or nothing. */
int cli_batch_read(const struct cli *c, const char *path,
                   struct cli_batch *out);
/* Decides `what` about each; prints a line for each, and a sum at the end. */
int cli_batch_resolve(const struct cli *c, once_engine *e,
                      const once__resolution *what,
                      const struct cli_batch *batch);

#endif /* ONCE_ONCE_RECORDS_RESOLVE_LINES_H */
