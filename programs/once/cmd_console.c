/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_console.c - `once console`: starts once-console, a program of its own, so
 * that this one needs no HTTP server.
 *
 * It is looked for beside this program, and then on the PATH.
 */
#include "programs/console/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "once-console"

/* The file beside this program, or NULL; free() it. */
static char *beside(void)
{
    char self[4096], *path = NULL, *slash;
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n <= 0)
        return NULL;
    self[n] = '\0';
    slash = strrchr(self, '/');
    if (slash == NULL ||
        asprintf(&path, "%.*s/" PROGRAM, (int)(slash - self), self) < 0)
        return NULL;
    return path;
}

/* Our own --store is its, unless it has one. */
static int run(struct cli *c, int argc, char **argv)
{
    char *path = beside();

    (void)argc;
    if (c->store != NULL && setenv("ONCE_STORE", c->store, 1) < 0) {
        free(path);
        return cli_say(c, CLI_STORE, "out of memory");
    }
    argv[0] = PROGRAM;
    if (path != NULL)
        (void)execv(path, argv);
    free(path);
    (void)execvp(PROGRAM, argv);
    return cli_say(c, CLI_STORE,
                   PROGRAM " cannot be started: %s. It is in the "
                           "package of the same name",
                   strerror(errno));
}

const struct cli_command cli_cmd_console = {
    "console",    "the web console: see what waits, and decide it",
    console_help, console_options,
    NULL,         run};
