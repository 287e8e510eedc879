/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_messages.c - `once messages`: the tables of messages in a program's own
 * database, made, looked at, or freed of ids that are remembered no longer.
 *
 * It uses the public functions of once/message.h. All it adds is a connection,
 * made by the rules that hold for stores.
 */
#include "programs/once/cli.h"

#include <stdlib.h>
#include <string.h>

#include <once/message.h>

#include "programs/once/messages/base.h"

/* clang-format off */
static const char help[] =
    "usage: once messages init [--window TIME] [--print]\n"
    "       once messages check | purge [--json]\n"
    "       once messages WORD ...\n"
    "\n"
    "Messages and calls in a program's own transaction (docs/messages.md). The URL\n"
    "is that of the program's database, postgres://..., mysql://... or sqlite:FILE;\n"
    "no store of a gateway has to be in it.\n"
    "\n"
    "  init       make the tables, and on a server the functions, or bring them up\n"
    "             to date; what is there is kept\n"
    "  check      whether they are there, of this version, and what is committed on\n"
    "             such a connection stays\n"
    "  purge      forget ids that are older than the window, and rows of the outbox\n"
    "             that were done before it, in small steps\n"
    "\n"
    "Each WORD has a page of its own: once messages WORD --help.\n"
    "  emit       write one message to the outbox\n"
    "  relay      carry rows of the outbox to their targets\n"
    "  consume    hand messages of a broker to a command or a statement\n"
    "  outbox, parked, saga   show and decide\n"
    "\n"
    "  --database URL   or ONCE_DATABASE\n"
    "  --window TIME  how long an id is remembered, for new tables (7d)\n"
    "  --print      print the text of init instead, and change nothing\n"
    "  --json       one JSON object\n";
/* clang-format on */

struct args {
    uint64_t keep_ms; /* 0: as the library has it */
    int print;
};

static const struct cli_option options[] = {
    CLI_MESSAGES_OPTIONS,
    {"window", "", CLI_AT(CLI_TIME, struct args, keep_ms)},
    {"print", NULL, CLI_AT(CLI_FLAG, struct args, print)},
    {.name = NULL},
};

/* ---- What is asked for -------------------------------------------------- */

static int say_done(const struct cli *c, const char *what, uint64_t n)
{
    if (c->json)
        return cli_print_json(c, json_pack("{s:I}", what, (json_int_t)n));
    printf("%s: %llu\n", what, (unsigned long long)n);
    return CLI_OK;
}

static int print_text(const struct cli *c, const struct once__base *b,
                      const struct args *a)
{
    once_error err = {0, ""};
    char *text = NULL;
    int rc = once_message_schema(once__base_database(b), once__base_schema(b),
                                 a->keep_ms, &text, &err);

    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    fputs(text, stdout);
    free(text);
    return CLI_OK;
}

static int act(const struct cli *c, const struct once__base *b,
               const char *action, const struct args *a)
{
    const once_tx *tx = once__base_tx(b);
    once_error err = {0, ""};
    uint64_t n = 0;
    int rc;

    if (strcmp(action, "init") == 0)
        rc = once_message_init(tx, a->keep_ms, &err);
    else if (strcmp(action, "check") == 0)
        rc = once_message_check(tx, &err);
    else
        rc = once_message_purge(tx, &n, &err);
    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    return strcmp(action, "purge") == 0 ? say_done(c, "forgotten", n)
                                        : say_done(c, "ready", 1);
}

static int is_action(const char *text)
{
    return strcmp(text, "init") == 0 || strcmp(text, "check") == 0 ||
           strcmp(text, "purge") == 0;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct args a = {0, 0};
    struct once__base *b = NULL;
    const char *action;
    int rc = cli_read_args(c, argc, argv, NULL, &a);

    if (rc != CLI_OK)
        return rc;
    if (argc - optind != 1 || !is_action(argv[optind]))
        return cli_usage(c, "say one of %s", c->command->operands);
    action = argv[optind];
    if ((a.print || a.keep_ms != 0) && strcmp(action, "init") != 0)
        return cli_usage(c, "--window and --print require init");
    rc = cli_base_open(
        c, strcmp(action, "init") == 0 ? ONCE__BASE_CREATE : ONCE__BASE_BARE,
        &b);
    if (rc == CLI_OK && a.print)
        rc = print_text(c, b, &a);
    else if (rc == CLI_OK)
        rc = cli_base_connect(c, b);
    if (rc == CLI_OK && !a.print)
        rc = act(c, b, action, &a);
    once__base_close(b);
    return rc;
}

const struct cli_command cli_cmd_messages = {
    "messages", "tables of messages in a program's own database",         help,
    options,    "init check purge emit relay consume outbox parked saga", run};
