/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - the options of `once serve`, for the program and for the command
 * line, which starts it. */
#ifndef ONCE_SERVE_OPTIONS_H
#define ONCE_SERVE_OPTIONS_H

#include "programs/terminal/terminal.h"

enum {
    SERVE_OPT_LISTEN = 1,
    SERVE_OPT_TOKEN_FILE,
    SERVE_OPT_ROUTE,
    SERVE_OPT_ROUTES_ONLY,
    SERVE_OPT_REALM,
    SERVE_OPT_MAX_OPEN,
    SERVE_OPT_BUFFERS,
    SERVE_OPT_VOLATILE,
    SERVE_OPT_CHECK,
    SERVE_OPT_LOG
};

extern const struct cli_option serve_options[];
extern const char serve_help[];

#endif /* ONCE_SERVE_OPTIONS_H */
