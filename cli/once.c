/* SPDX-License-Identifier: Apache-2.0 */
/*
 * once.c - the command line program: for those who run commands and send
 * requests at most once, and for operators who ask what became of them and,
 * where nobody can know, say what they have found out.
 *
 * This file holds the table of subcommands, each in its own cmd_*.c. It
 * refuses to guess: an unknown word is an error, also as a prefix of a command.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct cli_command commands[] = {
    {"run", cli_run_command, "run a command at most once for its key"},
    {"send", cli_send, "send a request until its outcome is known"},
    {"ls", cli_ls, "list records, for example all that are indeterminate"},
    {"show", cli_show, "everything about one record, but its body"},
    {"resolve", cli_resolve, "say what became of an indeterminate record"},
    {"forget", cli_forget, "forget one record that was kept long enough"},
    {"purge", cli_purge, "forget every record that was kept long enough"},
    {"stats", cli_stats, "count records by state and group"},
    {"check", cli_check, "a canary for probes: claim, complete, replay"},
    {"verify", cli_verify, "read the whole store: does every record check?"},
    {"clock", cli_clock, "the store's clock: is it ahead of time that passed?"},
    {"init", cli_init, "create a store, or print its schema"},
    {"dump", cli_dump, "the store in its own words, a line for each thing"},
    {"bench", cli_bench, "measure a store"},
    {"completion", cli_completion, "print a completion for bash or zsh"},
};

const struct cli_command *cli_commands(size_t *n)
{
    *n = COUNT(commands);
    return commands;
}

static void print_help(FILE *to)
{
    size_t i;

    fputs("usage: once [--store URL] COMMAND ...\n"
          "\n"
          "Makes commands and requests take effect at most once, and tells "
          "their outcome.\n",
          to);
    for (i = 0; i < COUNT(commands); i++)
        fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].what);
    fputs("Each has a page of its own: once COMMAND --help, and man 1 once.\n"
          "  --store URL  or from ONCE_STORE; one of ",
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

static const struct option options[] = {
    CLI_COMMON_OPTIONS,
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

static const struct cli_command *find(const char *name)
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

static int run(struct cli *c, int argc, char **argv, const char *help)
{
    int words = count_words(argc, argv);
    const struct cli_command *command;
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
        return cli_usage(c, "which command?");
    command = find(argv[words]);
    if (command == NULL)
        return cli_usage(c, "no such command");
    c->command = command->name;
    optind = 0; /* start anew, on the command's own words */
    rc = command->run(c, argc - words, argv + words);
    if (rc == CLI_OK)
        rc = cli_flush(c);
    return rc;
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
    struct cli c = {.store = getenv("ONCE_STORE"), .tty = isatty(1)};
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
    user_store = cli_user_store();
    c.user_store = user_store;
    rc = run(&c, argc, argv, help);
    free(user_store);
    free(help);
    return rc;
}
