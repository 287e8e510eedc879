/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_emit.c - `once messages emit`: writes one message to the outbox, in a
 * transaction of its own. A program emits in its own transaction, with
 * once_emit(); this is for scripts, and for trying things out.
 */
#include "programs/once/cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <once/message.h>

#include "programs/once/messages/base.h"

/* clang-format off */
static const char help[] =
    "usage: once messages emit --route ROUTE [OPTION ...] <BODY\n"
    "\n"
    "Writes one message to the outbox of a program's database, postgres://...,\n"
    "mysql://... or sqlite:FILE, in a transaction of its own, and prints its id.\n"
    "`once messages relay` carries it on (docs/relay.md).\n"
    "\n"
    "  --database URL  of the program; or ONCE_DATABASE\n"
    "  --route ROUTE   where to: a name that the relay knows\n"
    "  --id ID         emitted once under this id and route: a repeat writes nothing,\n"
    "                  prints the id and says so; with another body it is refused\n"
    "  --message-key KEY   order is kept among messages of one key\n"
    "  --type TYPE     content type\n"
    "  --header LINE   \"Name: value\"; may be repeated\n"
    "  --at TIME       not before, in UTC: 2027-01-31T08:00:00Z\n"
    "  --keep-row      the row and its answer stay when it is done\n"
    "  --json          one JSON object: the id, and whether it was there\n"
    "\n"
    "Status 4: it may be written or not; with --id the same command can be run again.\n";
/* clang-format on */

enum { OPT_HEADER = 1, OPT_AT, TRIES = 5 };

struct args {
    once_message m;
    char *headers;
};

static const struct cli_option options[] = {
    CLI_MESSAGES_OPTIONS,
    {"route", "", CLI_AT(CLI_TEXT, struct args, m.route)},
    {"id", "", CLI_AT(CLI_TEXT, struct args, m.id)},
    {"message-key", "", CLI_AT(CLI_TEXT, struct args, m.key)},
    {"type", "", CLI_AT(CLI_TEXT, struct args, m.type)},
    {"header", "", .id = OPT_HEADER},
    {"at", "", .id = OPT_AT},
    {"keep-row", NULL, CLI_AT(CLI_FLAG, struct args, m.keep)},
    {.name = NULL},
};

static int take_header(const struct cli *c, struct args *a)
{
    size_t had = a->headers != NULL ? strlen(a->headers) : 0;
    size_t n = strlen(optarg);
    char *text;

    if (strchr(optarg, ':') == NULL || strpbrk(optarg, "\r\n") != NULL)
        return cli_usage(c, "--header takes \"Name: value\"");
    if (had + n + 1 > ONCE_HEADERS_MAX)
        return cli_usage(c, "headers: %zu bytes at most", ONCE_HEADERS_MAX);
    text = realloc(a->headers, had + n + 2);
    if (text == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    memcpy(text + had, optarg, n);
    memcpy(text + had + n, "\n", 2);
    a->headers = text;
    a->m.headers = text;
    return CLI_OK;
}

static int take_at(const struct cli *c, struct args *a)
{
    struct tm tm;
    const char *end;
    time_t s;

    memset(&tm, 0, sizeof(tm));
    end = strptime(optarg, "%Y-%m-%dT%H:%M:%SZ", &tm);
    s = end != NULL && *end == '\0' ? timegm(&tm) : -1;
    if (s < 0)
        return cli_usage(c, "--at is a time in UTC like 2027-01-31T08:00:00Z");
    a->m.due_ms = (uint64_t)s * 1000;
    return CLI_OK;
}

static int take(const struct cli *c, void *user, int o)
{
    return o == OPT_HEADER ? take_header(c, user) : take_at(c, user);
}

/* One transaction. What once_emit() answers, or once__base_commit(). */
static int emit_once(struct once__base *b, const once_message *m,
                     char id[ONCE_ID_SIZE], once_error *err)
{
    int answer, rc = once__base_connect(b, err);

    if (rc == ONCE_OK)
        rc = once__base_begin(b, err);
    if (rc != ONCE_OK)
        return rc == ONCE_EAWAY ? ONCE_EABORTED : rc;
    answer = once_emit(once__base_tx(b), m, id, err);
    if (answer != ONCE_OK) {
        once__base_rollback(b);
        return answer;
    }
    return once__base_commit(b, err);
}

static int say_unknown(const struct cli *c, const once_message *m,
                       const once_error *err)
{
    return cli_say(c, CLI_UNKNOWN, "%s%s", err->text,
                   m->id != NULL ? "; the same command finds out, and writes "
                                   "it at most once"
                                 : "");
}

static int print_id(const struct cli *c, const char *id, int repeated)
{
    if (c->json)
        return cli_print_json(
            c, json_pack("{s:s, s:b}", "id", id, "repeated", repeated));
    puts(id);
    return cli_flush(c);
}

static int emit(const struct cli *c, struct once__base *b,
                const once_message *m)
{
    char id[ONCE_ID_SIZE] = "";
    once_error err = {0, ""};
    int rc = ONCE_EABORTED, i;

    for (i = 0; i < TRIES && rc == ONCE_EABORTED; i++)
        rc = emit_once(b, m, id, &err);
    switch (rc) {
    case ONCE_REPEATED:
        cli_say(c, 0, "it was emitted before, and nothing was written now");
        return print_id(c, m->id, 1);
    case ONCE_OK:
        return print_id(c, id, 0);
    case ONCE_MISMATCH:
        return cli_say(c, CLI_NO,
                       "this id was emitted with another body; nothing was "
                       "written");
    case ONCE_EAWAY:
        return say_unknown(c, m, &err);
    default:
        return cli_trouble(c, rc, &err);
    }
}

static int run(struct cli *c, int argc, char **argv)
{
    struct args a = {ONCE_MESSAGE_INIT, NULL};
    struct once__base *b = NULL;
    int rc = cli_read_args(c, argc, argv, take, &a);

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, ": the body is read from stdin");
    if (rc == CLI_OK && a.m.route == NULL)
        rc = cli_usage(c, "which route? Say --route");
    if (rc == CLI_OK)
        rc = cli_base_open(c, ONCE__BASE_READY, &b);
    if (rc == CLI_OK)
        rc = cli_read_file(c, "-", ONCE_BODY_MAX, &a.m.body);
    if (rc == CLI_OK)
        rc = emit(c, b, &a.m);
    free((void *)(uintptr_t)a.m.body.data);
    free(a.headers);
    once__base_close(b);
    return rc;
}

const struct cli_command cli_cmd_emit = {
    "messages emit",
    "write one message to the outbox of a program's database",
    help,
    options,
    NULL,
    run};
