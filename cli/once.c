/* SPDX-License-Identifier: Apache-2.0 */
/*
 * once.c - the command line program: for operators who ask what became of a
 * request and, where nobody can know, say what they have found out.
 *
 * This file holds the table of subcommands, each in its own cmd_*.c. It
 * refuses to guess: an unknown word is an error, also as a prefix of a command.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct command {
    const char *name;
    cli_run *run;
} commands[] = {
    {"ls", cli_ls},
    {"show", cli_show},
    {"resolve", cli_resolve},
    {"check", cli_check},
};

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] COMMAND ...\n"
    "\n"
    "Shows what a store remembers about requests, and records what an operator\n"
    "found out about those whose outcome is not known.\n"
    "\n"
    "  ls         list records, for example all that are indeterminate\n"
    "  show       everything about one record, but its body\n"
    "  resolve    record the outcome of an indeterminate record\n"
    "  check      open the store, read every record, count\n"
    "\n"
    "Each has a page of its own: once COMMAND --help, and man 1 once.\n"
    "\n"
    "  --store URL    such as sqlite:/var/lib/once/store.db; without it the\n"
    "                 environment's ONCE_STORE\n"
    "  --json         JSON instead of a table, after every command\n"
    "  --version\n"
    "\n"
    "Exit status: 0 done; 1 not found, not unique or refused, nothing changed;\n"
    "2 wrong usage or over a limit, nothing changed; 3 trouble with the store or\n"
    "a file, nothing changed, or with the output, when all else was done; 4 the\n"
    "store did not answer, so a change may have been made: look with once show.\n";
/* clang-format on */

enum { OPT_VERSION = 1 };

static const struct option options[] = {
    CLI_COMMON_OPTIONS,
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

static const struct command *find(const char *name)
{
    size_t i;

    for (i = 0; i < COUNT(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* How many words come before the command: options stop at the first word that
 * is none, since the others belong to the command. */
static int count_words(int argc, char **argv)
{
    static const char store[] = "--store";
    int i = 1;

    while (i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0)
        i += strcmp(argv[i], store) == 0 ? 2 : 1;
    return i < argc ? i : argc;
}

static int run(struct cli *c, int argc, char **argv)
{
    int words = count_words(argc, argv);
    const struct command *command;
    int o, rc = CLI_OK;

    while ((o = cli_option(c, words, argv, options, help, &rc)) != -1) {
        if (o == '?')
            return rc;
        puts("once " ONCE_VERSION);
        return cli_flush(c);
    }
    if (words < argc && strcmp(argv[words], "--") == 0)
        words++;
    if (words >= argc)
        return cli_usage(c, "which command? ls, show, resolve or check");
    command = find(argv[words]);
    if (command == NULL)
        return cli_usage(c, "no such command: ls, show, resolve or check");
    c->command = command->name;
    optind = 0; /* start anew, on the command's own words */
    rc = command->run(c, argc - words, argv + words);
    if (rc == CLI_OK)
        rc = cli_flush(c);
    return rc;
}

int main(int argc, char **argv)
{
    struct cli c = {NULL, getenv("ONCE_STORE"), 0, isatty(STDOUT_FILENO)};

    opterr = 0; /* messages are ours */
    return run(&c, argc, argv);
}
