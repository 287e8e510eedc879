/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_parked.c - `once messages parked`: messages that a consumer could not
 * finish, and dead letters that need a decision.
 */
#include <stdlib.h>
#include <string.h>

#include "messages/tables/outbox.h"
#include "programs/once/messages/rows.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* clang-format off */
static const char help[] =
    "usage: once messages parked ls [PHASE] [--consumer C] [--after NO]\n"
    "                               [--max N | --all]\n"
    "       once messages parked show NO [--body]\n"
    "       once messages parked retry|drop|resolve NO PHASE --attempt N --why TEXT\n"
    "       once messages parked stats\n"
    "\n"
    "Messages that a database keeps because their handler has not finished\n"
    "(docs/relay.md): a line for each, everything about one, how many there are\n"
    "by consumer and phase.\n"
    "\n"
    "  retry    run it again now, counting from 0\n"
    "  drop     the message goes; a copy that arrives later does not run\n"
    "  resolve  the same for one that is indeterminate: you have seen to it\n"
    "\n"
    "  PHASE          waiting, dead or indeterminate\n"
    "  --max N        at most so many (1000), after number NO\n"
    "  --ids          ids and keys as they are: who has an id can use it. Otherwise\n"
    "                 the first 16 digits of their SHA-256\n"
    "  --body         the message's body, and nothing else\n"
    "  --attempt N    how often it was begun, with PHASE as ls and show print them;\n"
    "                 refused if changed\n"
    "  --why TEXT     kept with the message, with your name and the time (UTC)\n"
    "  --audit FILE   the log that it is written to first (or off)\n"
    "  --json         one JSON object a line\n";
/* clang-format on */

static const struct cli_option options[] = {
    CLI_MESSAGES_OPTIONS,
    {"consumer", "", .id = CLI_ROWS_OF},
    {"after", "", .id = CLI_ROWS_AFTER},
    {"max", "", .id = CLI_ROWS_MAX},
    {"all", NULL, .id = CLI_ROWS_ALL},
    {"ids", NULL, .id = CLI_ROWS_IDS},
    {"body", NULL, .id = CLI_ROWS_BODY},
    {"attempt", "", .id = CLI_ROWS_SEEN},
    {"why", "", .id = CLI_ROWS_WHY},
    CLI_AUDIT_OPTION,
    {.name = NULL},
};

static const char *const phases[] = CLI_PHASES;

/* clang-format off */
static const struct cli_field fields[] = {
    {"no", CLI_F_NUMBER, CLI_ALL, 8},
    {"consumer", CLI_F_TEXT, CLI_ALL, 16},
    {"phase", CLI_F_TEXT, CLI_ALL, 13},
    {"attempts", CLI_F_NUMBER, CLI_ALL, 8},
    {"parked", CLI_F_TIME, CLI_ALL, 24},
    {"due", CLI_F_TIME, CLI_ALL, 24},
    {"id", CLI_F_SECRET, CLI_ALL, 16},
    {"key", CLI_F_SECRET, CLI_ALL, 16},
    {"type", CLI_F_TEXT, CLI_IN_PAGE | CLI_IN_JSON, 0},
    {"headers", CLI_F_NAMES, CLI_IN_PAGE, 0},
    {"body", CLI_F_BYTES, CLI_IN_PAGE | CLI_IN_JSON, 0},
    {"error", CLI_F_TEXT, CLI_ALL, 0},
    {NULL, 0, 0, 0},
};

static const struct cli_field counts[] = {
    {"consumer", CLI_F_TEXT, CLI_ALL, 24},
    {"waiting", CLI_F_NUMBER, CLI_ALL, 10},
    {"dead", CLI_F_NUMBER, CLI_ALL, 10},
    {"indeterminate", CLI_F_NUMBER, CLI_ALL, 13},
    {"oldest", CLI_F_AGE, CLI_ALL, 12},
    {NULL, 0, 0, 0},
};
/* clang-format on */

static void see_one(const struct once__parked *k, int ids, cli_rows_see *see,
                    void *user)
{
    uint64_t secret = ids != 0;
    char name[24];
    const struct cli_value values[] = {
        {(uint64_t)k->no, NULL},
        {0, k->m.consumer},
        {0, cli_name_of(phases, COUNT(phases), k->state)},
        {k->m.attempt, NULL},
        {k->at_ms, NULL},
        {k->state == ONCE_PARKED_WAITING ? k->due_ms : 0, NULL},
        {secret, k->m.id},
        {secret, k->m.key},
        {0, k->m.type},
        {0, k->m.headers},
        {k->m.body.size, NULL},
        {0, k->error},
    };
    once_bytes body = k->m.body;

    if (body.size == 0)
        body.data = "";
    (void)snprintf(name, sizeof(name), "%lld", (long long)k->no);
    see(user, &(struct cli_rows_one){values, name, body, {NULL, 0}, k});
}

static int ask(const once_tx *tx, const struct cli_rows *r, size_t n,
               cli_rows_see *see, void *user, once_error *err)
{
    struct once__parked_filter f = {r->of, r->phase < 0 ? 0 : r->phase,
                                    cli_rows_number(r->after), n};
    struct once__parked_list l;
    size_t i;
    int rc = r->name != NULL
                 ? once__parked_get(tx, cli_rows_number(r->name), &l, err)
                 : once__parked_list(tx, &f, &l, err);

    if (rc != ONCE_OK)
        return rc;
    for (i = 0; i < l.n; i++)
        see_one(&l.rows[i], r->ids, see, user);
    once__parked_clear(&l);
    return ONCE_OK;
}

static int stats(const once_tx *tx, cli_rows_see *see, void *user,
                 once_error *err)
{
    struct once__parked_count *found = NULL, *k;
    size_t n = 0;
    int rc = once__parked_stats(tx, &found, &n, err);

    if (rc != ONCE_OK)
        return rc;
    for (k = found; k < found + n; k++) {
        const struct cli_value values[] = {
            {0, k->consumer},         {k->waiting, NULL},   {k->dead, NULL},
            {k->indeterminate, NULL}, {k->oldest_ms, NULL},
        };

        see(user, &(struct cli_rows_one){.values = values});
    }
    free(found);
    return ONCE_OK;
}

#define WORDS "ls show retry drop resolve stats"

static const struct cli_rows_kind kind = {
    .what = ONCE__MESSAGE_PARKED,
    .numbered = 1,
    .words = WORDS,
    .phases = phases,
    .choose = 1u << ONCE__ROW_WAITING | 1u << ONCE__ROW_DEAD |
              1u << ONCE__ROW_INDETERMINATE,
    .page = 500,
    .fields = fields,
    .counts = counts,
    .ask = ask,
    .stats = stats,
};

static int run(struct cli *c, int argc, char **argv)
{
    return cli_rows_run(c, argc, argv, &kind);
}

const struct cli_command cli_cmd_parked = {
    "messages parked", "messages that a consumer could not finish", help,
    options,           WORDS " waiting dead indeterminate",         run};
