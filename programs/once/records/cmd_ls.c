/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_ls.c - `once ls`: one line for each record, in the order of names.
 *
 * Streams: a line is printed as soon as its page was read, so a million records
 * need no more memory than one page. What changes meanwhile may be seen or not.
 */
#include "programs/once/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEFAULT = 1000, MAX_MOST = 1000000000 };

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] ls [--state S] [--group G] [--older T] [--newer T]\n"
    "               [--max N | --all] [--after NAME] [--json]\n"
    "\n"
    "Lists records in the order of their names; with --state indeterminate those\n"
    "that wait longest first. On a terminal a table with the first 16 digits of\n"
    "each name; otherwise lines with tabs between, without a heading.\n"
    "\n"
    "  --state S      only those in this state: absent, claimed, dispatched,\n"
    "                 completed, indeterminate or corrupt\n"
    "  --group G      only those of this group; for the gateway, of this realm\n"
    "  --older TIME   only those granted longer ago, by this host's clock: 15m, 24h\n"
    "  --newer TIME   only those granted since then\n"
    "  --max N        at most so many, 1 to 1000000000 (1000); --all for all\n"
    "  --after NAME   only those after this one, as the list before said at its end\n"
    "  --json         one JSON object a line\n"
    "\n"
    "Columns: name, state, kind of the outcome, attempt, fence, granted, until (end\n"
    "of the lease, or of the time it is kept at least), bytes of the result, flags\n"
    "(doubt, takeover, retry, resolved), group, reason, label. Times are UTC. What\n"
    "waits for an operator: once ls --state indeterminate; its table has what is\n"
    "needed to resolve it: name, fence, when it ended, reason, label.\n";
/* clang-format on */

enum { OPT_STATE = 1, OPT_GROUP, OPT_ALL, OPT_AFTER };
enum { STATE_ANY = -1, STATE_CORRUPT = 255 };

struct ls {
    const struct cli *c;
    struct cli_progress progress;
    int state; /* enum once_state, STATE_ANY or STATE_CORRUPT */
    int by_group;
    uint8_t group[ONCE_GROUP_SIZE];
    uint64_t older_ms, newer_ms; /* 0: not given */
    uint64_t now_ms;
    uint64_t max;
    int has_after;
    once_position after; /* moves on with each line */
    uint64_t shown;
    uint64_t corrupt;
};

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {"state", "absent claimed dispatched completed indeterminate corrupt",
     .id = OPT_STATE},
    {"group", "", .id = OPT_GROUP},
    {"older", "", CLI_AT(CLI_TIME, struct ls, older_ms)},
    {"newer", "", CLI_AT(CLI_TIME, struct ls, newer_ms)},
    {"max", "", CLI_AT(CLI_NUMBER, struct ls, max), .least = 1,
     .most = MAX_MOST},
    {"all", NULL, .id = OPT_ALL},
    {"after", "", .id = OPT_AFTER},
    {.name = NULL},
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

/* The walk that costs no more than what it shows. */
static int scan_of(const struct ls *ls)
{
    switch (ls->state) {
    case ONCE_INDETERMINATE:
        return ONCE_SCAN_WAITING;
    case ONCE_CLAIMED:
    case ONCE_DISPATCHED:
        return ONCE_SCAN_LIVE;
    default:
        return ONCE_SCAN_ALL;
    }
}

/* NAME, or MS-NAME where the order is by time. */
static int read_after(const struct cli *c, const char *text, once_position *out)
{
    const char *dash = strchr(text, '-');
    char *end = NULL;
    once__prefix name;
    int rc;

    out->ms = 0;
    if (dash != NULL) {
        errno = 0;
        out->ms = strtoull(text, &end, 10);
        if (end != dash || errno != 0 || text[0] < '0' || text[0] > '9')
            return cli_usage(c, "--after is what the list before said");
        text = dash + 1;
    }
    rc = cli_read_name(c, text, CLI_DIGITS, &name);
    if (rc == CLI_OK)
        memcpy(out->name, name.bytes, ONCE_NAME_SIZE);
    return rc;
}

static int take(const struct cli *c, void *user, int o)
{
    struct ls *ls = user;

    switch (o) {
    case OPT_STATE:
        return read_state(c, optarg, &ls->state);
    case OPT_GROUP:
        ls->by_group = 1;
        return cli_read_filter(c, optarg, ls->group);
    case OPT_ALL:
        ls->max = UINT64_MAX;
        return CLI_OK;
    default:
        ls->has_after = 1;
        return read_after(c, optarg, &ls->after);
    }
}

/* What waits is looked at by people, on screens that are narrower than a record.
 * Their question is which order it is. */
static int is_short(const struct ls *ls)
{
    return ls->c->tty && ls->state == ONCE_INDETERMINATE;
}

static void print_heading(const struct ls *ls)
{
    if (is_short(ls)) {
        printf("%-16s  %7s  %-24s  %-13s  %s\n", "NAME", "FENCE", "SINCE",
               "REASON", "LABEL");
        return;
    }
    printf("%-16s  %-13s  %-7s  %7s  %10s  %-24s  %-24s  %8s  %-14s  %-20s  "
           "%-13s  %s\n",
           "NAME", "STATE", "KIND", "ATTEMPT", "FENCE", "GRANTED", "UNTIL",
           "RESULT", "FLAGS", "GROUP", "REASON", "LABEL");
}

static void print_short(const struct cli_row *row)
{
    const once_record *r = &row->record;
    char name[CLI_HEX_SIZE], since[CLI_TIME_SIZE];

    cli_hex(row->name, 16, name);
    cli_time(r->ended_ms, since);
    printf("%-16s  %7llu  %-24s  %-13s  %.*s\n", name,
           (unsigned long long)r->fence, since, once_reason_text(r->reason),
           r->label.size > 0 ? (int)r->label.size : 1,
           r->label.size > 0 ? row->label : "-");
}

static void print_row(const struct cli *c, const struct cli_row *row)
{
    const once_record *r = &row->record;
    char name[CLI_HEX_SIZE], granted[CLI_TIME_SIZE], until[CLI_TIME_SIZE],
        flags[CLI_FLAGS_SIZE], group[CLI_GROUP_TEXT];

    cli_hex(row->name, c->tty ? 16 : CLI_DIGITS, name);
    if (r->state > ONCE_INDETERMINATE) { /* nothing in it can be trusted */
        printf(c->tty ? "%-16s  %s%s%s\n"
                      : "%s\t%s%s%s\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-\n",
               name, cli_color(c, r->state), cli_state(r->state),
               cli_plain(c, r->state));
        return;
    }
    cli_time(r->granted_ms, granted);
    cli_time(cli_until(r), until);
    cli_flags(r, flags);
    cli_group(r->group, group);
    printf(c->tty ? "%-16s  %s%-13s%s  %-7s  %7u  %10llu  %-24s  %-24s  %8zu  "
                    "%-14s  %-20s  %-13s  %.*s\n"
                  : "%s\t%s%s%s\t%s\t%u\t%llu\t%s\t%s\t%zu\t%s\t%s\t%s\t"
                    "%.*s\n",
           name, cli_color(c, r->state), cli_state(r->state),
           cli_plain(c, r->state), cli_kind(r->kind), r->attempt,
           (unsigned long long)r->fence, granted, until, r->result.size, flags,
           group[0] ? group : "-", once_reason_text(r->reason),
           r->label.size > 0 ? (int)r->label.size : 1,
           r->label.size > 0 ? row->label : "-");
}

/* A corrupt record has neither a group nor an age that could be trusted. */
static int wanted(const struct ls *ls, const once_record *r)
{
    uint64_t age_ms = ls->now_ms - r->granted_ms;

    if (r->state > ONCE_INDETERMINATE)
        return (ls->state == STATE_ANY || ls->state == STATE_CORRUPT) &&
               !ls->by_group && ls->older_ms == 0 && ls->newer_ms == 0;
    if (r->granted_ms > ls->now_ms)
        age_ms = 0;
    return (ls->state == STATE_ANY || r->state == ls->state) &&
           (!ls->by_group ||
            memcmp(r->group, ls->group, ONCE_GROUP_SIZE) == 0) &&
           (ls->older_ms == 0 || age_ms > ls->older_ms) &&
           (ls->newer_ms == 0 || age_ms <= ls->newer_ms);
}

/* Prints what is wanted, and remembers how far it came. A reader that has gone
 * away ends the walk. */
static int see(void *user, const struct cli_row *row)
{
    struct ls *ls = user;
    int rc = CLI_OK;

    ls->after = once_position_of(scan_of(ls), row->name, &row->record);
    ls->corrupt += row->record.state > ONCE_INDETERMINATE;
    if (!wanted(ls, &row->record))
        return CLI_OK;
    if (ls->shown++ == 0 && ls->c->tty && !ls->c->json)
        print_heading(ls);
    if (ls->c->json)
        rc = cli_print_json(ls->c, cli_json_record(row->name, &row->record));
    else if (is_short(ls))
        print_short(row);
    else
        print_row(ls->c, row);
    if (rc == CLI_OK && ferror(stdout))
        rc = cli_flush(ls->c);
    return rc == CLI_OK && ls->shown == ls->max ? CLI_STOP : rc;
}

static int finish(const struct cli *c, const struct ls *ls)
{
    char name[CLI_HEX_SIZE], ms[24] = "";

    if (ls->shown == ls->max) {
        if (scan_of(ls) != ONCE_SCAN_ALL)
            (void)snprintf(ms, sizeof(ms), "%llu-",
                           (unsigned long long)ls->after.ms);
        cli_hex(ls->after.name, CLI_DIGITS, name);
        cli_say(c, 0, "stopped at --max %llu; what follows: --after %s%s",
                (unsigned long long)ls->max, ms, name);
    }
    if (ls->corrupt > 0)
        return cli_say(
            c, CLI_STORE,
            "corrupt records: %llu. They count as taken; keep a copy "
            "of the store and look at the disk",
            (unsigned long long)ls->corrupt);
    return CLI_OK;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct ls ls = {.c = c, .state = STATE_ANY, .max = MAX_DEFAULT};
    once_engine *e = NULL;
    once_position after;
    int rc = cli_read_args(c, argc, argv, take, &ls);

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "; one record is shown by once show");
    if (rc != CLI_OK)
        return rc;
    rc = cli_open_to_look(c, &e);
    if (rc != CLI_OK)
        return rc;
    after = ls.after;
    ls.now_ms = cli_now_ms();
    cli_cut_lines(c);
    cli_progress_start(&ls.progress, c, "records");
    if (c->tty)
        ls.progress.c = NULL; /* the lines themselves show how far it is */
    rc = cli_walk(c, e, scan_of(&ls), ls.has_after ? &after : NULL,
                  &ls.progress, see, &ls);
    cli_progress_end(&ls.progress);
    if (rc == CLI_OK)
        rc = finish(c, &ls);
    once_engine_close(e);
    return rc;
}

const struct cli_command cli_cmd_ls = {
    "ls", "list records, for example all that are indeterminate",
    help, options,
    NULL, run};
