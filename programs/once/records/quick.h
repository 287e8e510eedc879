/* SPDX-License-Identifier: Apache-2.0 */
/* quick.h - `once stats --quick`, for cmd_stats.c. */
#ifndef ONCE_ONCE_RECORDS_QUICK_H
#define ONCE_ONCE_RECORDS_QUICK_H

struct cli;

/* Prints what the store knows of itself. Returns an exit status. */
int cli_quick(const struct cli *c);

#endif /* ONCE_ONCE_RECORDS_QUICK_H */
