/* SPDX-License-Identifier: Apache-2.0 */
/*
 * once.c - the command line program: for those who run commands and send
 * requests at most once, and for operators who ask what became of them and,
 * where nobody can know, say what they have found out.
 *
 * This file finds the command, which has a file of its own, cmd_*.c. It does
 * not guess: an unknown name is an error, and so is the beginning of a name.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct cli_command *const commands[] = {
#define ADDRESS(name) &cli_cmd_##name,
    CLI_COMMANDS(ADDRESS)
#undef ADDRESS
};

const struct cli_command *const *cli_commands(size_t *n)
{
    *n = COUNT(commands);
    return commands;
}

static void print_help(FILE *to)
{
    size_t i;

    fputs("usage: once [--store URL] COMMAND ...\n"
          "\n"
          "Makes commands and requests take effect at most once, and shows "
          "their outcome.\n",
          to);
    for (i = 0; i < COUNT(commands); i++)
        fprintf(to, "  %-12s %s\n", commands[i]->name, commands[i]->what);
    fputs("Each has a page of its own: once COMMAND --help, and man 1 once.\n"
          "  --store URL  or NAME, or ONCE_STORE; one of ",
          to);
    cli_print_schemes(to, 0);
    fputs("\n"
          "  --json       JSON instead of a table, after every command\n"
          "Exit status:",
          to);
#define CLI_EXIT(name, number, text)                                           \
    fprintf(to, "%s %d %s", number ? ";" : "", number, text);
    CLI_EXITS(CLI_EXIT)
#undef CLI_EXIT
    fputc('\n', to);
}

enum { OPT_VERSION = 1 };

const struct cli_option cli_own_options[] = {
    CLI_COMMON_OPTIONS,
    {"version", NULL, OPT_VERSION},
    {NULL, NULL, 0},
};

static const struct cli_command *find(const char *name)
{
    size_t i;

    for (i = 0; i < COUNT(commands); i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

/* How many arguments come before the command, which is the first one that is no
 * option: those after it belong to it. */
static int count_own(int argc, char **argv)
{
    static const char store[] = "--store";
    int i = 1;

    while (i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0)
        i += strcmp(argv[i], store) == 0 ? 2 : 1;
    return i < argc ? i : argc;
}

static int take(const struct cli *c, void *user, int o)
{
    int rc;

    (void)user;
    (void)o; /* --version: the only one */
    puts("once " ONCE_VERSION);
    rc = cli_flush(c);
    return rc == CLI_OK ? CLI_STOP : rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    int own_argc = count_own(argc, argv);
    const struct cli_command *command;
    int rc;

    rc = cli_read_args(c, own_argc, argv, take, NULL);
    if (rc != CLI_OK)
        return rc;
    if (own_argc < argc && strcmp(argv[own_argc], "--") == 0)
        own_argc++;
    if (own_argc >= argc)
        return cli_usage(c, "which command?");
    command = find(argv[own_argc]);
    if (command == NULL)
        return cli_usage(c, "no such command");
    c->command = command;
    optind = 0; /* start anew, on the command's arguments */
    rc = command->run(c, argc - own_argc, argv + own_argc);
    return rc == CLI_OK ? cli_flush(c) : rc;
}

/* https://no-color.org: the variable counts if it is not empty. */
static int may_color(void)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

    return (no == NULL || no[0] == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}

int main(int argc, char **argv)
{
    struct cli_command own = {.name = "", .options = cli_own_options};
    struct cli c = {.command = &own,
                    .store = getenv("ONCE_STORE"),
                    .audit = getenv("ONCE_AUDIT"),
                    .tty = isatty(1)};
    char *help = NULL, *user_store = NULL;
    size_t size = 0;
    FILE *to;
    int rc;

    opterr = 0; /* messages are ours */
    c.color = c.tty && may_color();
    to = open_memstream(&help, &size);
    if (to == NULL)
        return cli_say(&c, CLI_STORE, "out of memory");
    print_help(to);
    if (fclose(to) != 0) {
        free(help);
        return cli_say(&c, CLI_STORE, "out of memory");
    }
    own.help = help;
    user_store = cli_user_store();
    c.user_store = user_store;
    rc = run(&c, argc, argv);
    free(user_store);
    free(help);
    return rc == CLI_STOP ? CLI_OK : rc;
}
