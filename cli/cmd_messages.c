/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_messages.c - `once messages`: the tables of messages in a program's own
 * database, made, looked at, or freed of ids that are remembered no longer.
 *
 * It uses the public functions of once/message.h. All it adds is a connection,
 * made by the rules that hold for stores.
 */
#include "cli.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include <once/message.h>

#ifdef ONCE_WITH_POSTGRES
#include "store/postgres/postgres.h"
#endif

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] messages init [--keep TIME] [--print]\n"
    "       once [--store URL] messages check | purge [--json]\n"
    "\n"
    "Messages and calls in a program's own transaction (docs/messages.md). The URL\n"
    "is that of the program's database, postgres://... or sqlite:FILE; no store of\n"
    "a gateway has to be in it.\n"
    "\n"
    "  init       make the tables, and on PostgreSQL the functions, or bring them up\n"
    "             to date; what is there is kept\n"
    "  check      whether they are there, of this version, and what is committed on\n"
    "             such a connection stays\n"
    "  purge      forget ids that are older than the window, in small steps\n"
    "\n"
    "  --keep TIME  how long an id is remembered, for new tables (7d)\n"
    "  --print      print the text of init instead, and change nothing\n"
    "  --json       one JSON object\n";
/* clang-format on */

enum { OPT_KEEP = 1, OPT_PRINT, CONNECT_MS = 10000, BUSY_MS = 10000 };

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {"keep", "", OPT_KEEP},
    {"print", NULL, OPT_PRINT},
    {NULL, NULL, 0},
};

struct args {
    uint64_t keep_ms; /* 0: as the library has it */
    int print;
};

/* A connection, and the transaction handle for it. */
struct base {
    once_tx tx;
#ifdef ONCE_WITH_POSTGRES
    struct once__pg_config config;
    struct once__pg_link link;
#endif
};

/* ---- Connections -------------------------------------------------------- */

static const char *sqlite_path(const char *url)
{
    return strncmp(url, "sqlite:", 7) == 0 ? url + 7 : NULL;
}

static int open_sqlite(const struct cli *c, const char *path, int create,
                       struct base *b)
{
    int flags = SQLITE_OPEN_READWRITE | (create ? SQLITE_OPEN_CREATE : 0);
    int rc = sqlite3_open_v2(path, &b->tx.sqlite, flags, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(b->tx.sqlite, BUSY_MS);
    return rc == SQLITE_OK
               ? CLI_OK
               : cli_say(c, CLI_STORE, "%s: %s", path, sqlite3_errstr(rc));
}

#ifdef ONCE_WITH_POSTGRES
static const char *postgres_rest(const char *url)
{
    const char *rest = strchr(url, ':');

    return strncmp(url, "postgres:", 9) == 0 ||
                   strncmp(url, "postgresql:", 11) == 0
               ? rest + 1
               : NULL;
}

static int open_postgres(const struct cli *c, const char *rest, struct base *b)
{
    once_error err = {0, ""};
    int rc = once__pg_config_read(&b->config, rest, &err);

    b->link.config = &b->config;
    b->config.async = 1; /* once_message_check() looks for itself */
    if (rc == ONCE_OK)
        rc =
            once__pg_connect(&b->link, 1, once__pg_now_ms() + CONNECT_MS, &err);
    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    b->tx.postgres = b->link.conn;
    b->tx.schema = b->config.schema;
    return CLI_OK;
}
#endif

static int base_open(const struct cli *c, int create, struct base *b)
{
    const char *url = cli_url(c);

    memset(b, 0, sizeof(*b));
    b->tx = (once_tx)ONCE_TX_INIT;
    if (url == NULL)
        return cli_usage(c, "which database? Say --store URL or set "
                            "ONCE_STORE");
    if (sqlite_path(url) != NULL)
        return open_sqlite(c, sqlite_path(url), create, b);
#ifdef ONCE_WITH_POSTGRES
    if (postgres_rest(url) != NULL)
        return open_postgres(c, postgres_rest(url), b);
#endif
    return cli_usage(c, "the URL is not postgres://... or sqlite:FILE");
}

static void base_close(struct base *b)
{
    (void)sqlite3_close(b->tx.sqlite);
#ifdef ONCE_WITH_POSTGRES
    once__pg_disconnect(&b->link);
    once__pg_config_clear(&b->config);
#endif
}

/* ---- What is asked for -------------------------------------------------- */

static int say_done(const struct cli *c, const char *what, uint64_t n)
{
    if (c->json)
        return cli_print_json(c, json_pack("{s:I}", what, (json_int_t)n));
    printf("%s: %llu\n", what, (unsigned long long)n);
    return CLI_OK;
}

static int print_text(const struct cli *c, const struct base *b,
                      const struct args *a)
{
    once_error err = {0, ""};
    char *text = NULL;
    int rc = once_message_schema(b->tx.sqlite != NULL ? NULL : b->tx.schema,
                                 a->keep_ms, &text, &err);

    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    fputs(text, stdout);
    free(text);
    return CLI_OK;
}

static int act(const struct cli *c, const struct base *b, const char *action,
               const struct args *a)
{
    once_error err = {0, ""};
    uint64_t n = 0;
    int rc;

    if (a->print)
        return print_text(c, b, a);
    if (strcmp(action, "init") == 0)
        rc = once_message_init(&b->tx, a->keep_ms, &err);
    else if (strcmp(action, "check") == 0)
        rc = once_message_check(&b->tx, &err);
    else
        rc = once_message_purge(&b->tx, &n, &err);
    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    return strcmp(action, "purge") == 0 ? say_done(c, "forgotten", n)
                                        : say_done(c, "ready", 1);
}

static int take(const struct cli *c, void *user, int o)
{
    struct args *a = user;

    if (o == OPT_KEEP)
        return cli_read_time(c, "--keep", optarg, &a->keep_ms);
    a->print = 1;
    return CLI_OK;
}

static int is_action(const char *text)
{
    return strcmp(text, "init") == 0 || strcmp(text, "check") == 0 ||
           strcmp(text, "purge") == 0;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct args a = {0, 0};
    struct base b;
    const char *action;
    int rc = cli_read_args(c, argc, argv, take, &a);

    if (rc != CLI_OK)
        return rc;
    if (argc - optind != 1 || !is_action(argv[optind]))
        return cli_usage(c, "say init, check or purge");
    action = argv[optind];
    if ((a.print || a.keep_ms != 0) && strcmp(action, "init") != 0)
        return cli_usage(c, "--keep and --print are of init alone");
    rc = base_open(c, strcmp(action, "init") == 0 && !a.print, &b);
    if (rc == CLI_OK)
        rc = act(c, &b, action, &a);
    base_close(&b);
    return rc;
}

const struct cli_command cli_cmd_messages = {
    "messages",
    "tables of messages in a program's own database",
    help,
    options,
    "init check purge",
    run};
