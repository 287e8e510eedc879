/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - the options of the console, for the program and for the command
 * line, which starts it. */
#ifndef ONCE_CONSOLE_OPTIONS_H
#define ONCE_CONSOLE_OPTIONS_H

#include "cli.h"

enum {
    CON_OPT_STORE = 1,
    CON_OPT_LISTEN,
    CON_OPT_DECIDE,
    CON_OPT_OPERATORS,
    CON_OPT_AUDIT,
    CON_OPT_HOST,
    CON_OPT_TRUST_HEADER,
    CON_OPT_TRUST_UID
};

extern const struct cli_option con_options[];
extern const char con_help[];

#endif /* ONCE_CONSOLE_OPTIONS_H */
