/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_name.c - `once name`: compute the record name of a gateway request
 *
 * It opens no store. `once show --request` does the same and shows the record.
 */
#include "programs/once/cli.h"

/* clang-format off */
static const char help[] =
    "usage: once name --realm R --key-file FILE (--scope-file FILE | --no-scope)\n"
    "               [--method M --path P] [--json]\n"
    "\n"
    "Prints the name, 64 hex digits, under which a gateway keeps the record of a\n"
    "request. It opens no store; once show --request takes the same options and\n"
    "shows the record. It is $once_name in the gateway's log.\n"
    "\n"
    "  --realm R          the value of once_realm: by default the first\n"
    "                     server_name, in lower case\n"
    "  --method M         POST, PATCH ...; with --path, where the gateway has\n"
    "                     once_key_space path, and nowhere else\n"
    "  --path P           as the client sent it, not decoded; a query does not count\n"
    "  --key-file FILE    the value of the header Idempotency-Key\n"
    "  --scope-file FILE  the value of once_scope, which tells who sent it\n"
    "  --no-scope         where the gateway has once_scope off\n"
    "  --json             {\"name\": ...}\n"
    "\n"
    "FILE may be - for stdin, for one of them. One line break at its end does not\n"
    "count. Keys and scopes are secrets, and all users of a host can read arguments.\n";
/* clang-format on */

struct name {
    struct cli_request request;
    const char *key_file;
};

static const struct cli_option options[] = {
    CLI_REQUEST_OPTIONS(struct name, request),
    {"key-file", CLI_FILES, CLI_AT(CLI_TEXT, struct name, key_file)},
    CLI_JSON_OPTION,
    CLI_HELP_OPTION,
    {.name = NULL},
};

static int run(struct cli *c, int argc, char **argv)
{
    uint8_t name[ONCE_NAME_SIZE];
    struct name n = {.key_file = NULL};
    char hex[CLI_HEX_SIZE];
    int rc = cli_read_args(c, argc, argv, NULL, &n);

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "");
    if (rc == CLI_OK)
        rc = cli_request_name(c, &n.request, n.key_file, name);
    if (rc != CLI_OK)
        return rc;
    cli_hex(name, CLI_DIGITS, hex);
    if (c->json)
        return cli_print_json(c, json_pack("{s:s}", "name", hex));
    puts(hex);
    return CLI_OK;
}

const struct cli_command cli_cmd_name = {
    "name", "compute the record name of a gateway request", help, options, NULL,
    run};
