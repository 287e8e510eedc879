/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_parked.c - `once parked`: messages that a consumer could not finish, and
 * dead letters that need somebody who decides.
 *
 * A decision is a compare-and-set on the state and the count that were shown.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#include "message/outbox.h"
#include "rows.h"

/* clang-format off */
static const char help[] =
    "usage: once parked ls [--consumer C] [--phase P] [--after NO] [--max N | --all]\n"
    "       once parked show NO [--body]\n"
    "       once parked retry|drop|resolve NO --attempt N --why TEXT\n"
    "       once parked stats\n"
    "\n"
    "Messages that a database keeps because their handler has not finished\n"
    "(docs/relay.md): a line for each, everything about one, how many there are\n"
    "by consumer and phase.\n"
    "\n"
    "  retry    run it again now, counting from 0\n"
    "  drop     the message goes; a copy that arrives later does not run\n"
    "  resolve  likewise, for one that is indeterminate: somebody saw to it\n"
    "\n"
    "  --phase P      waiting, dead or indeterminate\n"
    "  --max N        at most so many (1000), after number NO\n"
    "  --ids          ids and keys as they are: who has an id can use it. Otherwise\n"
    "                 the first 16 digits of their SHA-256\n"
    "  --body         the message's body, and nothing else\n"
    "  --attempt N    how often it was begun, as ls and show print it; refused if\n"
    "                 changed\n"
    "  --why TEXT     kept with the message, with your name and the time (UTC)\n"
    "  --audit FILE   the log that it is written to first (or off)\n"
    "  --json         one JSON object a line\n";
/* clang-format on */

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {"consumer", "", CLI_ROWS_OF},
    {"phase", CLI_ROWS_PHASES, CLI_ROWS_PHASE},
    {"after", "", CLI_ROWS_AFTER},
    {"max", "", CLI_ROWS_MAX},
    {"all", NULL, CLI_ROWS_ALL},
    {"ids", NULL, CLI_ROWS_IDS},
    {"body", NULL, CLI_ROWS_BODY},
    {"attempt", "", CLI_ROWS_ATTEMPT},
    {"why", "", CLI_ROWS_WHY},
    CLI_AUDIT_OPTION,
    {NULL, NULL, 0},
};

enum { PAGE = 500 };

/* ---- One message ---------------------------------------------------------- */

static json_t *json_row(const struct once__parked *k, int ids)
{
    json_t *j = json_pack(
        "{s:I,s:s,s:s,s:I,s:o,s:o,s:s,s:o}", "no", (json_int_t)k->no,
        "consumer", k->m.consumer, "phase", cli_phase(k->state), "attempts",
        (json_int_t)k->m.attempt, "parked", cli_json_time(k->at_ms), "due",
        cli_json_time(k->state == ONCE_PARKED_WAITING ? k->due_ms : 0), "type",
        k->m.type, "error", cli_json_text(cli_bytes(k->error)));

    if (j == NULL || cli_json_secret(j, "id", k->m.id, ids) != 0 ||
        cli_json_secret(j, "key", k->m.key, ids) != 0) {
        json_decref(j);
        return NULL;
    }
    return j;
}

/* ---- ls ------------------------------------------------------------------- */

static void print_row(const struct cli *c, const struct once__parked *k,
                      int ids)
{
    char at[CLI_TIME_SIZE], due[CLI_TIME_SIZE], id[CLI_SHOWN_SIZE],
        key[CLI_SHOWN_SIZE];

    cli_time(k->at_ms, at);
    cli_time(k->state == ONCE_PARKED_WAITING ? k->due_ms : 0, due);
    cli_shown(k->m.id, ids, id);
    cli_shown(k->m.key, ids, key);
    printf(c->tty ? "%8lld  %-16s  %-13s  %8u  %-24s  %-24s  %-16s  %-16s  "
                  : "%lld\t%s\t%s\t%u\t%s\t%s\t%s\t%s\t",
           (long long)k->no, k->m.consumer, cli_phase(k->state), k->m.attempt,
           at, due, id, key);
    cli_print_text(stdout, cli_bytes(k->error[0] ? k->error : "-"));
    putchar('\n');
}

static void print_heading(const struct cli *c)
{
    if (c->tty && !c->json)
        printf("%8s  %-16s  %-13s  %8s  %-24s  %-24s  %-16s  %-16s  %s\n", "NO",
               "CONSUMER", "PHASE", "ATTEMPTS", "PARKED", "DUE", "ID", "KEY",
               "ERROR");
}

static int print_page(const struct cli *c, const struct cli_rows *r,
                      const struct once__parked_list *l)
{
    int rc = CLI_OK;
    size_t i;

    for (i = 0; i < l->n && rc == CLI_OK; i++) {
        if (c->json)
            rc = cli_print_json(c, json_row(&l->rows[i], r->ids));
        else
            print_row(c, &l->rows[i], r->ids);
        if (rc == CLI_OK && ferror(stdout))
            rc = cli_flush(c);
    }
    return rc;
}

static int ls(const struct cli *c, const struct once__base *b,
              const struct cli_rows *r)
{
    struct once__parked_filter f = {r->of, r->phase < 0 ? 0 : r->phase,
                                    (int64_t)r->after, 0};
    uint64_t left = r->max;
    struct once__parked_list l;
    once_error err = {0, ""};
    int rc = CLI_OK;

    if (r->phase == ONCE__ROW_READY || r->phase == ONCE__ROW_DONE)
        return cli_usage(c, "--phase of a parked message is waiting, dead or "
                            "indeterminate");
    print_heading(c);
    do {
        f.n = left < PAGE ? (size_t)left : PAGE;
        rc = once__parked_list(once__base_tx(b), &f, &l, &err);
        if (rc != ONCE_OK)
            return cli_trouble(c, rc, &err);
        rc = print_page(c, r, &l);
        left -= l.n;
        if (l.n > 0)
            f.after = l.rows[l.n - 1].no;
        if (l.n < f.n)
            f.n = 0; /* that was the last page */
        once__parked_clear(&l);
    } while (rc == CLI_OK && f.n > 0 && left > 0);
    if (rc == CLI_OK && left == 0)
        cli_say(c, 0, "stopped at --max %llu; what follows: --after %lld",
                (unsigned long long)r->max, (long long)f.after);
    return rc == CLI_OK ? cli_flush(c) : rc;
}

/* ---- show ----------------------------------------------------------------- */

static void print_whole(const struct cli *c, const struct once__parked *k,
                        int ids)
{
    char id[CLI_SHOWN_SIZE], key[CLI_SHOWN_SIZE];

    cli_shown(k->m.id, ids, id);
    cli_shown(k->m.key, ids, key);
    cli_number(c, "no", (uint64_t)k->no);
    cli_line(c, "consumer", k->m.consumer);
    cli_line(c, "phase", cli_phase(k->state));
    cli_number(c, "attempts", k->m.attempt);
    cli_moment(c, "parked", k->at_ms);
    cli_moment(c, "due", k->state == ONCE_PARKED_WAITING ? k->due_ms : 0);
    cli_line(c, "id", id);
    cli_line(c, "key", key);
    cli_line(c, "type", k->m.type[0] ? k->m.type : "-");
    cli_label(c, "headers");
    cli_print_header_names(k->m.headers);
    cli_number(c, "body", k->m.body.size);
    cli_label(c, "error");
    cli_print_text(stdout, cli_bytes(k->error[0] ? k->error : "-"));
    putchar('\n');
}

static int print_one(const struct cli *c, const struct cli_rows *r,
                     const struct once__parked *k)
{
    json_t *j;

    if (r->body) {
        if (k->m.body.size > 0)
            fwrite(k->m.body.data, 1, k->m.body.size, stdout);
        return cli_flush(c);
    }
    if (!c->json) {
        print_whole(c, k, r->ids);
        return cli_flush(c);
    }
    j = json_row(k, r->ids);
    if (json_object_set_new(j, "body_bytes",
                            json_integer((json_int_t)k->m.body.size)) != 0) {
        json_decref(j);
        j = NULL;
    }
    return cli_print_json(c, j);
}

static int show(const struct cli *c, const struct once__base *b,
                const struct cli_rows *r)
{
    struct once__parked_list l;
    once_error err = {0, ""};
    int rc = once__parked_get(once__base_tx(b), (int64_t)r->no, &l, &err);

    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    rc = l.n == 1 ? print_one(c, r, &l.rows[0]) : cli_no_row(c, r);
    once__parked_clear(&l);
    return rc;
}

/* ---- Decisions and stats -------------------------------------------------- */

static int decide(const struct cli *c, const struct once__base *b,
                  const struct cli_rows *r)
{
    struct once__parked_list l;
    once_error err = {0, ""};
    int rc = once__parked_get(once__base_tx(b), (int64_t)r->no, &l, &err);

    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    rc = l.n == 1 ? cli_decide_row(c, b, r, l.rows[0].m.id, l.rows[0].state,
                                   once__parked_decide)
                  : cli_no_row(c, r);
    once__parked_clear(&l);
    return rc;
}

static int print_count(const struct cli *c, const struct once__parked_count *n)
{
    if (c->json)
        return cli_print_json(
            c, json_pack("{s:s,s:I,s:I,s:I,s:I}", "consumer", n->consumer,
                         "waiting", (json_int_t)n->waiting, "dead",
                         (json_int_t)n->dead, "indeterminate",
                         (json_int_t)n->indeterminate, "oldest_ms",
                         (json_int_t)n->oldest_ms));
    printf(c->tty ? "%-24s  %10llu  %10llu  %13llu  %12llu\n"
                  : "%s\t%llu\t%llu\t%llu\t%llu\n",
           n->consumer, (unsigned long long)n->waiting,
           (unsigned long long)n->dead, (unsigned long long)n->indeterminate,
           (unsigned long long)(n->oldest_ms / 1000));
    return CLI_OK;
}

static int stats(const struct cli *c, const struct once__base *b,
                 const struct cli_rows *r)
{
    struct once__parked_count *counts = NULL;
    once_error err = {0, ""};
    size_t n = 0, i;
    int rc = once__parked_stats(once__base_tx(b), &counts, &n, &err);

    (void)r;
    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    if (c->tty && !c->json)
        printf("%-24s  %10s  %10s  %13s  %12s\n", "CONSUMER", "WAITING", "DEAD",
               "INDETERMINATE", "OLDEST (s)");
    for (i = 0, rc = CLI_OK; i < n && rc == CLI_OK; i++)
        rc = print_count(c, &counts[i]);
    free(counts);
    return rc == CLI_OK ? cli_flush(c) : rc;
}

/* ---- The command ---------------------------------------------------------- */

#define BIT(o) (1u << CLI_ROWS_##o)
#define DECIDES (BIT(ATTEMPT) | BIT(WHY))

static const struct cli_rows_action actions[] = {
    {"ls", BIT(OF) | BIT(PHASE) | BIT(AFTER) | BIT(MAX) | BIT(ALL) | BIT(IDS),
     0, 0, 0, ls},
    {"show", BIT(IDS) | BIT(BODY), 0, 1, 0, show},
    {"retry", DECIDES, BIT(ATTEMPT), 1, ONCE__PARKED_RETRY, decide},
    {"drop", DECIDES, BIT(ATTEMPT), 1, ONCE__PARKED_DROP, decide},
    {"resolve", DECIDES, BIT(ATTEMPT), 1, ONCE__PARKED_RESOLVE, decide},
    {"stats", 0, 0, 0, 0, stats},
};

static int run(struct cli *c, int argc, char **argv)
{
    return cli_rows_run(c, argc, argv, actions,
                        actions + sizeof(actions) / sizeof(actions[0]));
}

const struct cli_command cli_cmd_parked = {
    "parked", "messages that a consumer could not finish", help,
    options,  "ls show retry drop resolve stats",          run};
