/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_beside.c - `once console` and `once serve`: they start once-console and
 * once-serve, programs of their own, so that this one needs no HTTP server.
 *
 * They are looked for beside this program, and then on the PATH.
 */
#include "programs/console/options.h"
#include "programs/serve/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The file beside this program, or NULL; free() it. */
static char *beside(const char *program)
{
    char self[4096], *path = NULL, *slash;
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n <= 0)
        return NULL;
    self[n] = '\0';
    slash = strrchr(self, '/');
    if (slash == NULL ||
        asprintf(&path, "%.*s/%s", (int)(slash - self), self, program) < 0)
        return NULL;
    return path;
}

/* once-NAME of `once NAME`. Our own --store is its, unless it has one. */
static int run(struct cli *c, int argc, char **argv)
{
    char program[32], *path;

    /* Its page is known here, also where it is not installed. */
    if (argc == 2 &&
        (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(c->command->help, stdout);
        return cli_flush(c);
    }
    snprintf(program, sizeof(program), "once-%s", c->command->name);
    path = beside(program);
    if (c->store != NULL && setenv("ONCE_STORE", c->store, 1) < 0) {
        free(path);
        return cli_say(c, CLI_STORE, "out of memory");
    }
    argv[0] = program;
    if (path != NULL)
        (void)execv(path, argv);
    free(path);
    (void)execvp(program, argv);
    return cli_say(c, CLI_STORE,
                   "%s cannot be started: %s. It is in the package of the same "
                   "name",
                   program, strerror(errno));
}

const struct cli_command cli_cmd_console = {
    "console",    "the web console: see what waits, and decide it",
    console_help, console_options,
    NULL,         run};

const struct cli_command cli_cmd_serve = {
    "serve",    "the contract for services in any language",
    serve_help, serve_options,
    NULL,       run};
