/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_outbox.c - `once messages outbox`: rows that wait for a relay, were sent,
 * or need a decision.
 */
#include <stdlib.h>
#include <string.h>

#include "messages/tables/outbox.h"
#include "programs/once/messages/rows.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* clang-format off */
static const char help[] =
    "usage: once messages outbox ls [PHASE] [--route R] [--after SEQ]\n"
    "                               [--max N | --all]\n"
    "       once messages outbox show SEQ [--body | --reply]\n"
    "       once messages outbox retry|drop|resolve SEQ PHASE --attempt N --why TEXT\n"
    "       once messages outbox retry PHASE [--route R] [--since TIME] --why TEXT\n"
    "       once messages outbox retry --records FILE --why TEXT\n"
    "       once messages outbox purge [--older TIME]\n"
    "       once messages outbox stats\n"
    "\n"
    "Messages that a program emitted, in its own database (docs/relay.md): a\n"
    "line for each row, everything about one row, rows counted by route and phase.\n"
    "\n"
    "  retry    send a dead, indeterminate or waiting row again, under its id\n"
    "  drop     the row goes, sent or not; not for steps of a saga\n"
    "  resolve  a dead or indeterminate row is done: you have seen to it\n"
    "  purge    forget rows that are done; then their ids may be emitted again\n"
    "\n"
    "  PHASE          ready, waiting, done, dead or indeterminate\n"
    "  --max N        at most so many (1000), after row SEQ\n"
    "  --ids          ids, keys and sagas as they are: who has an id can use it.\n"
    "                 Otherwise the first 16 digits of their SHA-256\n"
    "  --body, --reply   the message's body, or the target's reply, and nothing else\n"
    "  --attempt N    with PHASE as ls and show print them; refused if changed\n"
    "  --since TIME   retry: emitted since then: 24h ago, 2026-03-01, ...T08:00:00Z\n"
    "  --records FILE retry: lines of ls --json, each by its own phase and attempt\n"
    "  --why TEXT     kept with the row, with your name and the time (UTC)\n"
    "  --audit FILE   the log that it is written to first (or off)\n"
    "  --older TIME   done longer ago than this (7d)\n"
    "  --json         one JSON object a line\n";
/* clang-format on */

static const struct cli_option options[] = {
    CLI_MESSAGES_OPTIONS,
    {"route", "", .id = CLI_ROWS_OF},
    {"after", "", .id = CLI_ROWS_AFTER},
    {"max", "", .id = CLI_ROWS_MAX},
    {"all", NULL, .id = CLI_ROWS_ALL},
    {"ids", NULL, .id = CLI_ROWS_IDS},
    {"body", NULL, .id = CLI_ROWS_BODY},
    {"reply", NULL, .id = CLI_ROWS_REPLY},
    {"attempt", "", .id = CLI_ROWS_SEEN},
    {"why", "", .id = CLI_ROWS_WHY},
    {"older", "", .id = CLI_ROWS_OLDER},
    {"since", "", .id = CLI_ROWS_SINCE},
    {"records", CLI_FILES, .id = CLI_ROWS_RECORDS},
    CLI_AUDIT_OPTION,
    {.name = NULL},
};

enum { LEASE_MOST_MS = 3600000 };

static const char *const phases[] = CLI_PHASES;

/* clang-format off */
static const struct cli_field fields[] = {
    {"seq", CLI_F_NUMBER, CLI_ALL, 8},
    {"route", CLI_F_TEXT, CLI_ALL, 16},
    {"phase", CLI_F_TEXT, CLI_IN_LIST | CLI_IN_PAGE, 13}, /* or "leased" */
    {"phase", CLI_F_TEXT, CLI_IN_JSON, 0},
    {"leased", CLI_F_YES, CLI_IN_JSON, 0},
    {"attempts", CLI_F_NUMBER, CLI_ALL, 8},
    {"doubt", CLI_F_NUMBER, CLI_ALL, 5},
    {"refused", CLI_F_NUMBER, CLI_ALL, 7},
    {"emitted", CLI_F_TIME, CLI_ALL, 24},
    {"until", CLI_F_TIME, CLI_ALL, 24},
    {"doubt_since", CLI_F_TIME, CLI_IN_PAGE | CLI_IN_JSON, 0},
    {"id", CLI_F_SECRET, CLI_ALL, 16},
    {"key", CLI_F_SECRET, CLI_ALL, 16},
    {"saga", CLI_F_SECRET, CLI_IN_PAGE | CLI_IN_JSON, 0},
    {"kept", CLI_F_YES, CLI_IN_PAGE, 0},
    {"type", CLI_F_TEXT, CLI_IN_PAGE | CLI_IN_JSON, 0},
    {"headers", CLI_F_NAMES, CLI_IN_PAGE, 0},
    {"body", CLI_F_BYTES, CLI_IN_PAGE | CLI_IN_JSON, 0},
    {"status", CLI_F_NUMBER, CLI_IN_PAGE | CLI_IN_JSON, 0},
    {"reply", CLI_F_BYTES, CLI_IN_PAGE | CLI_IN_JSON, 0},
    {"error", CLI_F_TEXT, CLI_ALL, 0},
    {NULL, 0, 0, 0},
};

static const struct cli_field counts[] = {
    {"route", CLI_F_TEXT, CLI_ALL, 24},
    {"ready", CLI_F_NUMBER, CLI_ALL, 10},
    {"leased", CLI_F_NUMBER, CLI_ALL, 10},
    {"waiting", CLI_F_NUMBER, CLI_ALL, 10},
    {"done", CLI_F_NUMBER, CLI_ALL, 10},
    {"dead", CLI_F_NUMBER, CLI_ALL, 10},
    {"indeterminate", CLI_F_NUMBER, CLI_ALL, 13},
    {"oldest", CLI_F_AGE, CLI_ALL, 12},
    {NULL, 0, 0, 0},
};
/* clang-format on */

static int is_leased(const struct once__outgoing *o, uint64_t now_ms)
{
    return o->phase == ONCE__ROW_READY && o->lease_ms > now_ms &&
           o->lease_ms - now_ms <= LEASE_MOST_MS;
}

/* When it is due, its lease ends, or it was done; 0: none of these. */
static uint64_t until(const struct once__outgoing *o, int leased)
{
    if (leased)
        return o->lease_ms;
    return o->phase == ONCE__ROW_WAITING || o->phase == ONCE__ROW_DONE
               ? o->due_ms
               : 0;
}

static void see_row(const struct once__outgoing *o, uint64_t now_ms, int ids,
                    cli_rows_see *see, void *user)
{
    const char *phase = cli_name_of(phases, COUNT(phases), o->phase);
    uint64_t secret = ids != 0;
    int leased = is_leased(o, now_ms);
    char name[24];
    const struct cli_value values[] = {
        {(uint64_t)o->seq, NULL},
        {0, o->m.route},
        {0, leased ? "leased" : phase},
        {0, phase},
        {leased != 0, NULL},
        {o->attempts, NULL},
        {o->row.doubt, NULL},
        {o->row.refused, NULL},
        {o->at_ms, NULL},
        {until(o, leased), NULL},
        {o->row.doubt > 0 ? o->row.doubt_ms : 0, NULL},
        {secret, o->m.id},
        {secret, o->m.key},
        {secret, o->saga},
        {o->m.keep != 0, NULL},
        {0, o->m.type},
        {0, o->m.headers},
        {o->m.body.size, NULL},
        {(uint64_t)o->status, NULL},
        {o->reply.size, NULL},
        {0, o->error},
    };
    once_bytes body = o->m.body;

    if (o->phase == ONCE__ROW_DONE)
        body.data = NULL; /* is not kept */
    else if (body.size == 0)
        body.data = "";
    (void)snprintf(name, sizeof(name), "%lld", (long long)o->seq);
    see(user, &(struct cli_rows_one){values, name, body, o->reply, o});
}

static int ask(const once_tx *tx, const struct cli_rows *r, size_t n,
               cli_rows_see *see, void *user, once_error *err)
{
    struct once__outbox_filter f = {r->of, r->phase, cli_rows_number(r->after),
                                    n};
    struct once__outgoing_list l;
    size_t i;
    int rc = r->name != NULL
                 ? once__outbox_get(tx, cli_rows_number(r->name), &l, err)
                 : once__outbox_list(tx, &f, &l, err);

    if (rc != ONCE_OK)
        return rc;
    for (i = 0; i < l.n; i++)
        see_row(&l.rows[i], l.now_ms, r->ids, see, user);
    once__outgoing_clear(&l);
    return ONCE_OK;
}

static int stats(const once_tx *tx, cli_rows_see *see, void *user,
                 once_error *err)
{
    struct once__outbox_count *found = NULL, *k;
    size_t n = 0;
    int rc = once__outbox_stats(tx, 1, &found, &n, err);

    if (rc != ONCE_OK)
        return rc;
    for (k = found; k < found + n; k++) {
        const struct cli_value values[] = {
            {0, k->route},
            {k->n[ONCE__ROW_READY], NULL},
            {k->leased, NULL},
            {k->n[ONCE__ROW_WAITING], NULL},
            {k->n[ONCE__ROW_DONE], NULL},
            {k->n[ONCE__ROW_DEAD], NULL},
            {k->n[ONCE__ROW_INDETERMINATE], NULL},
            {k->oldest_ms, NULL},
        };

        see(user, &(struct cli_rows_one){.values = values});
    }
    free(found);
    return ONCE_OK;
}

static void say_next(const struct cli *c, const void *row, json_t *o)
{
    const struct once__outgoing *out = row;

    if (!c->tty || o != NULL ||
        (out->phase != ONCE__ROW_DEAD && out->phase != ONCE__ROW_INDETERMINATE))
        return;
    printf("\n%s Then say what becomes of it:\n"
           "  once messages outbox retry %lld %s --attempt %u --why TEXT   (or "
           "drop, resolve)\n",
           out->phase == ONCE__ROW_DEAD
               ? "It was not taken."
               : "It is not known whether it was taken. Find out.",
           (long long)out->seq, phases[out->phase], out->attempts);
}

#define WORDS "ls show retry drop resolve purge stats"

static const struct cli_rows_kind kind = {
    .what = ONCE__MESSAGE_OUTBOX,
    .numbered = 1,
    .words = WORDS,
    .phases = phases,
    .choose = 0x1f,
    .page = 500,
    .fields = fields,
    .counts = counts,
    .ask = ask,
    .stats = stats,
    .rest = say_next,
};

static int run(struct cli *c, int argc, char **argv)
{
    return cli_rows_run(c, argc, argv, &kind);
}

const struct cli_command cli_cmd_outbox = {
    "messages outbox",
    "messages that wait for a relay, or for a decision",
    help,
    options,
    WORDS " ready waiting done dead indeterminate",
    run};
