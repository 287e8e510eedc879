/* SPDX-License-Identifier: Apache-2.0 */
/* listen.h - where a program of Once may be reached: see listen.c. */
#ifndef ONCE_TERMINAL_LISTEN_H
#define ONCE_TERMINAL_LISTEN_H

#include <stdint.h>

#include "programs/terminal/terminal.h"

struct cli_listen {
    const struct cli *c;
    const char *group; /* of a socket file, if there is such a group */
    int fd;
    int local;     /* a socket file */
    uint16_t port; /* else */
    const char *unlink_path;
};

/*
 * `where` is unix:PATH, 127.0.0.1:PORT, [::1]:PORT or systemd, and borrowed until
 * cli_unlisten(). CLI_OK: `fd` listens; otherwise it has said why not.
 */
int cli_listen(struct cli_listen *l, const char *where);
void cli_unlisten(struct cli_listen *l);

#endif /* ONCE_TERMINAL_LISTEN_H */
