/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_ls.c - `once ls`: one line for each record, in the order of names.
 *
 * Walks in pages, so that neither a million records nor a slow reader of our
 * output holds up the store. What changes meanwhile may be seen or not.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 256, MAX_DEFAULT = 1000, MAX_MOST = 1000000000 };

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] ls [--state S] [--max N] [--after NAME] [--json]\n"
    "\n"
    "Lists records in the order of their names. On a terminal a table with the\n"
    "first 16 digits of each name (the gateway's log calls them $once_key_hash);\n"
    "otherwise lines with tabs between, the whole name first, without a heading.\n"
    "\n"
    "  --state S      only those in this state: absent, claimed, dispatched,\n"
    "                 completed, indeterminate or corrupt\n"
    "  --max N        at most so many, 1 to 1000000000 (1000)\n"
    "  --after NAME   only those behind this name, all of its 64 digits\n"
    "  --json         one JSON object a line\n"
    "\n"
    "Columns: name, state, kind of the outcome, attempt, fence, granted, until\n"
    "(end of the lease, or of the time it is kept at least), bytes of the result,\n"
    "flags (doubt, takeover, retry, resolved). Times are UTC.\n"
    "\n"
    "What is indeterminate waits for somebody to resolve it:\n"
    "  once ls --state indeterminate\n";
/* clang-format on */

enum { OPT_STATE = 1, OPT_MAX, OPT_AFTER };

static const struct option options[] = {
    CLI_COMMON_OPTIONS,
    {"state", required_argument, NULL, OPT_STATE},
    {"max", required_argument, NULL, OPT_MAX},
    {"after", required_argument, NULL, OPT_AFTER},
    {NULL, 0, NULL, 0},
};

enum { STATE_ANY = -1, STATE_CORRUPT = 255 };

struct row {
    uint8_t name[ONCE_NAME_SIZE];
    once_record record; /* without its bytes */
};

struct ls {
    int state; /* enum once_state, STATE_ANY or STATE_CORRUPT */
    uint64_t max;
    int has_after;
    struct cli_name after; /* moves on with each page */
    uint64_t shown;
    uint64_t corrupt;
    size_t n;
    struct row page[PAGE];
};

static int read_state(const struct cli *c, const char *text, int *out)
{
    int state = cli_state_of(text);

    if (strcmp(text, "corrupt") == 0)
        state = STATE_CORRUPT;
    if (state < 0)
        return cli_usage(c, "--state is absent, claimed, dispatched, "
                            "completed, indeterminate or corrupt");
    *out = state;
    return CLI_OK;
}

static int read_args(struct cli *c, int argc, char **argv, struct ls *ls,
                     int *go)
{
    int o, rc = CLI_OK;

    while ((o = cli_option(c, argc, argv, options, help, &rc)) != -1) {
        if (o == OPT_STATE)
            rc = read_state(c, optarg, &ls->state);
        else if (o == OPT_MAX)
            rc = cli_read_number(c, "--max", optarg, 1, MAX_MOST, &ls->max);
        else if (o == OPT_AFTER)
            rc = cli_read_name(c, optarg, CLI_DIGITS, &ls->after);
        ls->has_after |= o == OPT_AFTER;
        if (o == '?' || rc != CLI_OK)
            return rc;
    }
    if (optind < argc)
        return cli_usage(c, "takes options only; one record is shown by "
                            "once show");
    *go = 1;
    return CLI_OK;
}

/* On the engine's thread: copies, and nothing else. */
static int collect(void *user, const uint8_t name[ONCE_NAME_SIZE],
                   const once_record *r)
{
    struct ls *ls = user;
    struct row *row = &ls->page[ls->n];

    if (ls->n == PAGE)
        return 1;
    memcpy(row->name, name, ONCE_NAME_SIZE);
    row->record = *r;
    row->record.result.data = NULL;
    row->record.note.data = NULL;
    ls->n++;
    return 0;
}

static void print_heading(void)
{
    printf("%-16s  %-13s  %-7s  %7s  %10s  %-24s  %-24s  %8s  %s\n", "NAME",
           "STATE", "KIND", "ATTEMPT", "FENCE", "GRANTED", "UNTIL", "RESULT",
           "FLAGS");
}

static void print_row(const struct cli *c, const struct row *row)
{
    const once_record *r = &row->record;
    int corrupt = r->state > ONCE_INDETERMINATE;
    char name[CLI_HEX_SIZE], granted[CLI_TIME_SIZE], until[CLI_TIME_SIZE],
        flags[CLI_FLAGS_SIZE];

    cli_hex(row->name, c->tty ? 16 : CLI_DIGITS, name);
    if (corrupt) { /* nothing else in it can be believed */
        printf(c->tty ? "%-16s  %s\n" : "%s\t%s\t-\t-\t-\t-\t-\t-\t-\n", name,
               cli_state(r->state));
        return;
    }
    cli_time(r->granted_ms, granted);
    cli_time(cli_until(r), until);
    cli_flags(r, flags);
    printf(c->tty ? "%-16s  %-13s  %-7s  %7u  %10llu  %-24s  %-24s  %8zu  %s\n"
                  : "%s\t%s\t%s\t%u\t%llu\t%s\t%s\t%zu\t%s\n",
           name, cli_state(r->state), cli_kind(r->kind), r->attempt,
           (unsigned long long)r->fence, granted, until, r->result.size, flags);
}

static int wanted(const struct ls *ls, const once_record *r)
{
    if (ls->state == STATE_CORRUPT)
        return r->state > ONCE_INDETERMINATE;
    return ls->state == STATE_ANY || r->state == ls->state;
}

/* Prints what is wanted of the page, and remembers how far it came. */
static int print_page(const struct cli *c, struct ls *ls)
{
    int rc = CLI_OK;
    size_t i;

    for (i = 0; i < ls->n && ls->shown < ls->max && rc == CLI_OK; i++) {
        struct row *row = &ls->page[i];

        memcpy(ls->after.bytes, row->name, ONCE_NAME_SIZE);
        ls->has_after = 1;
        ls->corrupt += row->record.state > ONCE_INDETERMINATE;
        if (!wanted(ls, &row->record))
            continue;
        if (ls->shown++ == 0 && c->tty && !c->json)
            print_heading();
        if (c->json)
            rc = cli_print_json(c, cli_json_record(row->name, &row->record));
        else
            print_row(c, row);
    }
    /* A reader that has gone away ends the walk. */
    return rc == CLI_OK && ferror(stdout) ? cli_flush(c) : rc;
}

static int walk(const struct cli *c, once_engine *e, struct ls *ls)
{
    once_error err = {0, ""};
    int rc;

    do {
        ls->n = 0;
        rc = once_list(e, ls->has_after ? ls->after.bytes : NULL, PAGE, collect,
                       ls, &err);
        if (rc < 0)
            return cli_trouble(c, rc, &err);
        rc = print_page(c, ls);
        if (rc != CLI_OK)
            return rc;
    } while (ls->n == PAGE && ls->shown < ls->max);
    return CLI_OK;
}

static int finish(const struct cli *c, const struct ls *ls)
{
    char name[CLI_HEX_SIZE];

    if (ls->shown == ls->max) {
        cli_hex(ls->after.bytes, CLI_DIGITS, name);
        cli_say(c, 0, "stopped at --max %llu; what follows: --after %s",
                (unsigned long long)ls->max, name);
    }
    if (ls->corrupt > 0)
        return cli_say(c, CLI_STORE,
                       "records that do not check: %llu. They count as taken; "
                       "keep a copy of the store and look at the disk",
                       (unsigned long long)ls->corrupt);
    return CLI_OK;
}

int cli_ls(struct cli *c, int argc, char **argv)
{
    struct ls *ls = calloc(1, sizeof(*ls));
    once_engine *e = NULL;
    int rc, go = 0;

    if (ls == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    ls->state = STATE_ANY;
    ls->max = MAX_DEFAULT;
    rc = read_args(c, argc, argv, ls, &go);
    if (!go)
        goto out;
    rc = cli_open(c, &e);
    if (rc != CLI_OK)
        goto out;
    rc = walk(c, e, ls);
    if (rc == CLI_OK)
        rc = finish(c, ls);
out:
    once_engine_close(e);
    free(ls);
    return rc;
}
