/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_check.c - `once check`: can this store be used, and does every record in
 * it check?
 *
 * Reads everything and changes nothing: it does not repair, since a record
 * that does not check counts as taken, and that is the safe side.
 */
#include "cli.h"

#include <string.h>

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] check [--json]\n"
    "\n"
    "Opens the store, reads every record and counts them by state. Exit status\n"
    "3 if the store cannot be opened or a record does not check.\n"
    "\n"
    "  class     A: an acknowledged record survives a crash; B: it may be lost\n"
    "  oldest    when the oldest indeterminate record was granted\n";
/* clang-format on */

static const struct option options[] = {
    CLI_COMMON_OPTIONS,
    {NULL, 0, NULL, 0},
};

enum { PAGE = 1024, CORRUPT = ONCE_INDETERMINATE + 1, KINDS };

struct count {
    uint64_t of[KINDS]; /* by state, and the corrupt ones */
    uint64_t oldest_ms;
    uint8_t last[ONCE_NAME_SIZE];
};

static int see(void *user, const uint8_t name[ONCE_NAME_SIZE],
               const once_record *r)
{
    struct count *n = user;

    memcpy(n->last, name, ONCE_NAME_SIZE);
    n->of[r->state < CORRUPT ? r->state : CORRUPT]++;
    if (r->state == ONCE_INDETERMINATE &&
        (n->oldest_ms == 0 || r->granted_ms < n->oldest_ms))
        n->oldest_ms = r->granted_ms;
    return 0;
}

static int count_all(const struct cli *c, once_engine *e, struct count *n)
{
    const uint8_t *after = NULL;
    once_error err = {0, ""};
    int rc;

    do {
        rc = once_list(e, after, PAGE, see, n, &err);
        if (rc < 0)
            return cli_trouble(c, rc, &err);
        after = n->last;
    } while (rc == PAGE);
    return CLI_OK;
}

static void print_text(const struct cli *c, int durable, const struct count *n)
{
    char oldest[CLI_TIME_SIZE];
    int i;

    printf(c->tty ? "%-14s%c\n" : "%s\t%c\n", "class", durable ? 'A' : 'B');
    for (i = 0; i < KINDS; i++)
        printf(c->tty ? "%-14s%llu\n" : "%s\t%llu\n", cli_state(i),
               (unsigned long long)n->of[i]);
    cli_time(n->oldest_ms, oldest);
    printf(c->tty ? "%-14s%s\n" : "%s\t%s\n", "oldest", oldest);
}

static int print_json(const struct cli *c, int durable, const struct count *n)
{
    json_t *o = json_pack("{s:s}", "class", durable ? "A" : "B");
    char oldest[CLI_TIME_SIZE];
    int i, bad = o == NULL;

    for (i = 0; i < KINDS; i++)
        bad |= json_object_set_new(o, cli_state(i),
                                   json_integer((json_int_t)n->of[i]));
    cli_time(n->oldest_ms, oldest);
    bad |= json_object_set_new(
        o, "oldest", n->oldest_ms ? json_string(oldest) : json_null());
    if (bad) {
        json_decref(o);
        o = NULL;
    }
    return cli_print_json(c, o);
}

static int report(const struct cli *c, const struct count *n)
{
    once_error err = {0, ""};
    int durable = 0, shared = 0, rc;

    rc = once_store_check(c->store, &durable, &shared, &err);
    if (rc < 0)
        return cli_trouble(c, rc, &err);
    rc = CLI_OK;
    if (c->json)
        rc = print_json(c, durable, n);
    else
        print_text(c, durable, n);
    if (n->of[CORRUPT] > 0)
        return cli_say(c, CLI_STORE,
                       "some records do not check. They count as taken, so "
                       "nothing runs twice; once ls --state corrupt names "
                       "them. Keep a copy of the store and look at the disk");
    return rc;
}

int cli_check(struct cli *c, int argc, char **argv)
{
    struct count n = {{0}, 0, {0}};
    once_engine *e = NULL;
    int rc = CLI_OK;

    if (cli_option(c, argc, argv, options, help, &rc) != -1)
        return rc;
    if (optind < argc)
        return cli_usage(c, "takes options only");
    rc = cli_open(c, &e);
    if (rc != CLI_OK)
        return rc;
    rc = count_all(c, e, &n);
    once_engine_close(e);
    return rc == CLI_OK ? report(c, &n) : rc;
}
