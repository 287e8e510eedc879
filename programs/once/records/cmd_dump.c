/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_dump.c - `once dump`: what lies in a store, as its driver prints it.
 *
 * This file only asks the driver. Its text is escaped like any other: it may
 * hold what was on a disk.
 */
#include "programs/once/cli.h"

#include <stdlib.h>

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] dump [URL | FOLDER | FILE]\n"
    "\n"
    "Prints what is stored, in the store's own terms and its own order, a line for\n"
    "each thing: for support, and to look into a store that once ls cannot open.\n"
    "No token and no result is shown. Not every store has this; records are\n"
    "listed from every store by once ls --all --json.\n";
/* clang-format on */

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {.name = NULL},
};

static void print_line(void *user, const char *text)
{
    (void)user;
    cli_print_text(stdout, cli_bytes(text));
    putchar('\n');
}

static int dump(const struct cli *c)
{
    once_error err = {0, ""};
    int rc = cli_named(c);

    if (rc != CLI_OK)
        return rc;
    rc = once_store_dump(cli_url(c), print_line, NULL, &err);
    if (rc == ONCE_ENOSYS)
        return cli_say(c, CLI_NO, "%s. Its records: once ls --all --json",
                       err.text);
    return rc < 0 ? cli_trouble(c, rc, &err) : CLI_OK;
}

static int run(struct cli *c, int argc, char **argv)
{
    char *url = NULL;
    int rc = cli_read_args(c, argc, argv, NULL, NULL);

    if (rc != CLI_OK)
        return rc;
    if (c->json)
        return cli_usage(c, "a dump is in the store's own terms: for JSON "
                            "once ls --all --json");
    rc = cli_take_store(c, argc, argv, &url);
    if (rc == CLI_OK)
        rc = dump(c);
    free(url);
    return rc;
}

const struct cli_command cli_cmd_dump = {
    "dump", "the store in its own terms, a line for each thing",
    help,   options,
    NULL,   run};
