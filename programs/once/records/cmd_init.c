/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_init.c - `once init`: creates a store, or prints the schema that it needs
 * for a person who reads it first.
 *
 * What a store needs is the driver's business: this file only asks for it.
 */
#include "programs/once/cli.h"
#include "programs/once/run/run.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] init [--print | --json] [--audit FILE]\n"
    "\n"
    "Creates the store: a file, a folder, or the tables in a database. Of a store\n"
    "that is there already nothing is changed, except that an older schema is\n"
    "brought up to date. Nothing else creates one, but for restore: a gateway, run\n"
    "and all others refuse a store that is missing, since an empty one in its place\n"
    "would execute all that it had recorded once more. Without --store it is the\n"
    "user's own, that of once run.\n"
    "\n"
    "  --print    print the schema for an administrator, and change nothing\n"
    "  --json     one JSON object\n"
    "  --audit FILE   the log that it is written to first (or off)\n"
    "\n"
    "It prints whether the store is durable (an acknowledged record survives a\n"
    "crash), and if not, why; and whether several processes may share it. A file\n"
    "belongs to who calls this, with mode 600: call it as the gateway's user. What\n"
    "is made in a journal's folder belongs to the folder's owner.\n";

/* clang-format on */

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_AUDIT_OPTION,
    {"print", NULL, .into = CLI_FLAG},
    {.name = NULL},
};

static void print_line(void *user, const char *text)
{
    (void)user;
    cli_print_text(stdout, cli_bytes(text));
    putchar('\n');
}

/* Without a name: that of `once run`, in `*own`. */
static int choose_store(struct cli *c, char **own)
{
    if (c->store != NULL && c->store[0] != '\0')
        return CLI_OK;
    *own = run_state_store();
    if (*own == NULL)
        return cli_usage(c, "which store? Say --store URL or set ONCE_STORE");
    c->store = c->user_store = *own;
    return cli_say(c, CLI_OK,
                   "no store was named, so this is that of once "
                   "run: %s",
                   *own);
}

static int print_schema(const struct cli *c)
{
    once_error err = {0, ""};
    int rc = once_store_print_schema(c->store, print_line, NULL, &err);

    if (rc == ONCE_ENOSYS)
        return cli_say(c, CLI_NO,
                       "this store needs no schema: once init creates all of "
                       "it");
    return rc < 0 ? cli_trouble(c, rc, &err) : CLI_OK;
}

static int report(const struct cli *c, const struct cli_promise *promise)
{
    const char *caveat = promise->caveat[0] ? promise->caveat : NULL;

    if (c->json)
        return cli_print_json(c,
                              json_pack("{s:b, s:b, s:s?, s:b}", "ready", 1,
                                        "durable", promise->durable, "caveat",
                                        caveat, "shared", promise->shared));
    cli_line(c, "store", "ready");
    cli_line(c, "durable", promise->durable ? "yes" : "no");
    if (caveat != NULL)
        cli_line(c, "caveat", caveat);
    cli_line(c, "shared", promise->shared ? "yes" : "no");
    return CLI_OK;
}

/* A store that needs no schema is made by opening it. */
static int make(const struct cli *c, struct cli_decision *d,
                struct cli_promise *promise)
{
    once_store *s = NULL;
    once_error err = {0, ""};
    int rc = once_store_init(c->store, &err);

    if (rc >= 0)
        rc = once_store_open(c->store, NULL, &err, &s);
    if (rc < 0)
        return cli_trouble(c, rc, &err);
    cli_promise_of(s, promise);
    cli_about(d, NULL, s); /* it has an id now */
    once_store_close(s);
    return CLI_OK;
}

static int create(const struct cli *c)
{
    struct cli_decision d = {.entry = {.action = "init"}};
    struct cli_promise promise;
    int rc;

    if (cli_in_process(c->store))
        return cli_usage(c, "memory: lives inside one process and needs no "
                            "once init");
    rc = cli_intend(c, &d);
    if (rc != CLI_OK)
        return rc;
    rc = make(c, &d, &promise);
    rc = cli_audited(c, &d, rc, NULL);
    return rc == CLI_OK ? report(c, &promise) : rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    const char *store, *user_store = c->user_store;
    int print = 0, rc = cli_read_args(c, argc, argv, NULL, &print);
    char *own = NULL;

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "; the store is named by --store URL");
    if (rc != CLI_OK)
        return rc;
    if (print && c->json)
        return cli_usage(c, "--print and --json exclude each other");
    store = c->store;
    rc = choose_store(c, &own);
    if (rc == CLI_OK)
        rc = print ? print_schema(c) : create(c);
    c->store = store;
    c->user_store = user_store;
    free(own);
    return rc;
}

const struct cli_command cli_cmd_init = {
    "init", "create a store, or print its schema", help, options, NULL, run};
