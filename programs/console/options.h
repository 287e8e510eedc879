/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - the options of the console, for the program and for the command
 * line, which starts it. */
#ifndef ONCE_CONSOLE_OPTIONS_H
#define ONCE_CONSOLE_OPTIONS_H

#include <stddef.h>

#include "programs/terminal/terminal.h"

enum {
    CONSOLE_OPT_STORE = 1,
    CONSOLE_OPT_LISTEN,
    CONSOLE_OPT_DECIDE,
    CONSOLE_OPT_OPERATORS,
    CONSOLE_OPT_AUDIT,
    CONSOLE_OPT_DATABASE,
    CONSOLE_OPT_WATCH,
    CONSOLE_OPT_LINK,
    CONSOLE_OPT_HOST,
    CONSOLE_OPT_TRUST_HEADER,
    CONSOLE_OPT_TRUST_UID
};

extern const struct cli_option console_options[];
extern const char console_help[];

/* "NAME=URL": what stands before "=", if that comes before any ":". */
size_t console_name_size(const char *text);

#endif /* ONCE_CONSOLE_OPTIONS_H */
