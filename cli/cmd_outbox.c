/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_outbox.c - `once outbox`: rows that wait for a relay, were sent, or need
 * somebody who decides.
 *
 * A decision is a compare-and-set on the phase and the attempts that were shown.
 * It refuses rows that a relay has under way.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#include "message/outbox.h"
#include "rows.h"

/* clang-format off */
static const char help[] =
    "usage: once outbox ls [--route R] [--phase P] [--after SEQ] [--max N | --all]\n"
    "       once outbox show SEQ [--body | --reply]\n"
    "       once outbox retry|drop|resolve SEQ --attempt N --why TEXT\n"
    "       once outbox purge [--older TIME]\n"
    "       once outbox stats\n"
    "\n"
    "Messages that a program emitted, in its own database (docs/relay.md): a\n"
    "line for each row, everything about one row, rows counted by route and phase.\n"
    "\n"
    "  retry    send a dead, indeterminate or waiting row again, under its id\n"
    "  drop     the row goes, sent or not; not for steps of a saga\n"
    "  resolve  a dead or indeterminate row is done: somebody saw to it\n"
    "  purge    forget rows that are done; then their ids may be emitted again\n"
    "\n"
    "  --phase P      ready, waiting, done, dead or indeterminate\n"
    "  --max N        at most so many (1000), after row SEQ\n"
    "  --ids          ids, keys and sagas as they are: who has an id can use it.\n"
    "                 Otherwise the first 16 digits of their SHA-256\n"
    "  --body, --reply   the message's body, or the target's reply, and nothing else\n"
    "  --attempt N    attempts as ls and show print them; refused if changed\n"
    "  --why TEXT     kept with the row, with your name and the time (UTC)\n"
    "  --audit FILE   the log that it is written to first (or off)\n"
    "  --older TIME   done longer ago than this (7d)\n"
    "  --json         one JSON object a line\n";
/* clang-format on */

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {"route", "", CLI_ROWS_OF},
    {"phase", CLI_ROWS_PHASES, CLI_ROWS_PHASE},
    {"after", "", CLI_ROWS_AFTER},
    {"max", "", CLI_ROWS_MAX},
    {"all", NULL, CLI_ROWS_ALL},
    {"ids", NULL, CLI_ROWS_IDS},
    {"body", NULL, CLI_ROWS_BODY},
    {"reply", NULL, CLI_ROWS_REPLY},
    {"attempt", "", CLI_ROWS_ATTEMPT},
    {"why", "", CLI_ROWS_WHY},
    {"older", "", CLI_ROWS_OLDER},
    CLI_AUDIT_OPTION,
    {NULL, NULL, 0},
};

enum { PAGE = 500, LEASE_MOST_MS = 3600000 };

/* ---- One row -------------------------------------------------------------- */

static int is_leased(const struct once__outgoing *o, uint64_t now_ms)
{
    return o->phase == ONCE__ROW_READY && o->lease_ms > now_ms &&
           o->lease_ms - now_ms <= LEASE_MOST_MS;
}

static const char *phase_of(const struct once__outgoing *o, uint64_t now_ms)
{
    return is_leased(o, now_ms) ? "leased" : cli_phase(o->phase);
}

/* When it is due, its lease ends, or it was done; 0: none of these. */
static uint64_t until(const struct once__outgoing *o, uint64_t now_ms)
{
    if (is_leased(o, now_ms))
        return o->lease_ms;
    return o->phase == ONCE__ROW_WAITING || o->phase == ONCE__ROW_DONE
               ? o->due_ms
               : 0;
}

static json_t *json_row(const struct once__outgoing *o, uint64_t now_ms,
                        int ids)
{
    json_t *j = json_pack(
        "{s:I,s:s,s:s,s:b,s:I,s:I,s:I,s:o,s:o,s:o,s:i,s:s,s:o}", "seq",
        (json_int_t)o->seq, "route", o->m.route, "phase", cli_phase(o->phase),
        "leased", is_leased(o, now_ms), "attempts", (json_int_t)o->attempts,
        "doubt", (json_int_t)o->row.doubt, "refused",
        (json_int_t)o->row.refused, "emitted", cli_json_time(o->at_ms), "until",
        cli_json_time(until(o, now_ms)), "doubt_since",
        cli_json_time(o->row.doubt > 0 ? o->row.doubt_ms : 0), "status",
        o->status, "type", o->m.type, "error",
        cli_json_text(cli_bytes(o->error)));

    if (j == NULL || cli_json_secret(j, "id", o->m.id, ids) != 0 ||
        cli_json_secret(j, "key", o->m.key, ids) != 0 ||
        cli_json_secret(j, "saga", o->saga, ids) != 0) {
        json_decref(j);
        return NULL;
    }
    return j;
}

/* ---- ls ------------------------------------------------------------------- */

static void print_row(const struct cli *c, const struct once__outgoing *o,
                      uint64_t now_ms, int ids)
{
    char at[CLI_TIME_SIZE], end[CLI_TIME_SIZE], id[CLI_SHOWN_SIZE],
        key[CLI_SHOWN_SIZE];

    cli_time(o->at_ms, at);
    cli_time(until(o, now_ms), end);
    cli_shown(o->m.id, ids, id);
    cli_shown(o->m.key, ids, key);
    printf(c->tty ? "%8lld  %-16s  %-13s  %8u  %5u  %7u  %-24s  %-24s  %-16s  "
                    "%-16s  "
                  : "%lld\t%s\t%s\t%u\t%u\t%u\t%s\t%s\t%s\t%s\t",
           (long long)o->seq, o->m.route, phase_of(o, now_ms), o->attempts,
           o->row.doubt, o->row.refused, at, end, id, key);
    cli_print_text(stdout, cli_bytes(o->error[0] ? o->error : "-"));
    putchar('\n');
}

static void print_heading(const struct cli *c)
{
    if (c->tty && !c->json)
        printf("%8s  %-16s  %-13s  %8s  %5s  %7s  %-24s  %-24s  %-16s  %-16s  "
               "%s\n",
               "SEQ", "ROUTE", "PHASE", "ATTEMPTS", "DOUBT", "REFUSED",
               "EMITTED", "UNTIL", "ID", "KEY", "ERROR");
}

static int print_page(const struct cli *c, const struct cli_rows *r,
                      const struct once__outgoing_list *l)
{
    int rc = CLI_OK;
    size_t i;

    for (i = 0; i < l->n && rc == CLI_OK; i++) {
        if (c->json)
            rc = cli_print_json(c, json_row(&l->rows[i], l->now_ms, r->ids));
        else
            print_row(c, &l->rows[i], l->now_ms, r->ids);
        if (rc == CLI_OK && ferror(stdout))
            rc = cli_flush(c);
    }
    return rc;
}

static int ls(const struct cli *c, const struct once__base *b,
              const struct cli_rows *r)
{
    struct once__outbox_filter f = {r->of, r->phase, (int64_t)r->after, 0};
    uint64_t left = r->max;
    struct once__outgoing_list l;
    once_error err = {0, ""};
    int rc = CLI_OK;

    print_heading(c);
    do {
        f.n = left < PAGE ? (size_t)left : PAGE;
        rc = once__outbox_list(once__base_tx(b), &f, &l, &err);
        if (rc != ONCE_OK)
            return cli_trouble(c, rc, &err);
        rc = print_page(c, r, &l);
        left -= l.n;
        if (l.n > 0)
            f.after = l.rows[l.n - 1].seq;
        if (l.n < f.n)
            f.n = 0; /* that was the last page */
        once__outgoing_clear(&l);
    } while (rc == CLI_OK && f.n > 0 && left > 0);
    if (rc == CLI_OK && left == 0)
        cli_say(c, 0, "stopped at --max %llu; what follows: --after %lld",
                (unsigned long long)r->max, (long long)f.after);
    return rc == CLI_OK ? cli_flush(c) : rc;
}

/* ---- show ----------------------------------------------------------------- */

static void print_whole(const struct cli *c, const struct once__outgoing *o,
                        uint64_t now_ms, int ids)
{
    char id[CLI_SHOWN_SIZE], key[CLI_SHOWN_SIZE], saga[CLI_SHOWN_SIZE];

    cli_shown(o->m.id, ids, id);
    cli_shown(o->m.key, ids, key);
    cli_shown(o->saga, ids, saga);
    cli_number(c, "seq", (uint64_t)o->seq);
    cli_line(c, "route", o->m.route);
    cli_line(c, "phase", phase_of(o, now_ms));
    cli_number(c, "attempts", o->attempts);
    cli_number(c, "in doubt", o->row.doubt);
    cli_number(c, "refused", o->row.refused);
    cli_moment(c, "emitted", o->at_ms);
    cli_moment(c, "until", until(o, now_ms));
    cli_moment(c, "doubt since", o->row.doubt > 0 ? o->row.doubt_ms : 0);
    cli_line(c, "id", id);
    cli_line(c, "key", key);
    cli_line(c, "saga", saga);
    cli_line(c, "kept", o->m.keep ? "yes" : "no");
    cli_line(c, "type", o->m.type[0] ? o->m.type : "-");
    cli_label(c, "headers");
    cli_print_header_names(o->m.headers);
    cli_number(c, "body", o->m.body.size);
    cli_number(c, "status", (uint64_t)o->status);
    cli_number(c, "reply", o->reply.size);
    cli_label(c, "error");
    cli_print_text(stdout, cli_bytes(o->error[0] ? o->error : "-"));
    putchar('\n');
}

static void print_next(const struct once__outgoing *o)
{
    printf("\n%s Then say what becomes of it:\n"
           "  once outbox retry %lld --attempt %u --why TEXT   (or drop, "
           "resolve; see once outbox --help)\n",
           o->phase == ONCE__ROW_DEAD
               ? "It was not taken."
               : "Nobody knows whether it was taken. Find out.",
           (long long)o->seq, o->attempts);
}

static int print_bytes(const struct cli *c, once_bytes bytes)
{
    if (bytes.size > 0)
        fwrite(bytes.data, 1, bytes.size, stdout);
    return cli_flush(c);
}

static int print_one(const struct cli *c, const struct cli_rows *r,
                     const struct once__outgoing *o, uint64_t now_ms)
{
    if (r->body && o->phase == ONCE__ROW_DONE)
        return cli_say(c, CLI_NO, "the row is done: its body was not kept");
    if (r->body)
        return print_bytes(c, o->m.body);
    if (r->reply && o->reply.data == NULL)
        return cli_say(c, CLI_NO, "there is no reply");
    if (r->reply)
        return print_bytes(c, o->reply);
    if (c->json) {
        json_t *j = json_row(o, now_ms, r->ids);

        if (json_object_set_new(j, "body_bytes",
                                json_integer((json_int_t)o->m.body.size)) ||
            json_object_set_new(j, "reply_bytes",
                                json_integer((json_int_t)o->reply.size))) {
            json_decref(j);
            j = NULL;
        }
        return cli_print_json(c, j);
    }
    print_whole(c, o, now_ms, r->ids);
    if (c->tty &&
        (o->phase == ONCE__ROW_DEAD || o->phase == ONCE__ROW_INDETERMINATE))
        print_next(o);
    return cli_flush(c);
}

static int show(const struct cli *c, const struct once__base *b,
                const struct cli_rows *r)
{
    struct once__outgoing_list l;
    once_error err = {0, ""};
    int rc = once__outbox_get(once__base_tx(b), (int64_t)r->no, &l, &err);

    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    rc = l.n == 1 ? print_one(c, r, &l.rows[0], l.now_ms) : cli_no_row(c, r);
    once__outgoing_clear(&l);
    return rc;
}

/* ---- Decisions ------------------------------------------------------------ */

/* The phase is read here, and the database compares it with the attempts that
 * the operator was shown in the same step in which it decides. */
static int decide(const struct cli *c, const struct once__base *b,
                  const struct cli_rows *r)
{
    struct once__outgoing_list l;
    once_error err = {0, ""};
    int rc = once__outbox_get(once__base_tx(b), (int64_t)r->no, &l, &err);

    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    rc = l.n == 1 ? cli_decide_row(c, b, r, l.rows[0].m.id, l.rows[0].phase,
                                   once__outbox_decide)
                  : cli_no_row(c, r);
    once__outgoing_clear(&l);
    return rc;
}

/* ---- purge and stats ------------------------------------------------------ */

static int purge(const struct cli *c, const struct once__base *b,
                 const struct cli_rows *r)
{
    once_error err = {0, ""};
    uint64_t n = 0;
    int rc = once__outbox_purge(once__base_tx(b), r->older_ms, &n, &err);

    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    if (c->json)
        return cli_print_json(c,
                              json_pack("{s:I}", "forgotten", (json_int_t)n));
    cli_number(c, "forgotten", n);
    return cli_flush(c);
}

static int print_count(const struct cli *c, const struct once__outbox_count *n)
{
    if (c->json)
        return cli_print_json(
            c, json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "route", n->route,
                         "ready", (json_int_t)n->n[ONCE__ROW_READY], "leased",
                         (json_int_t)n->leased, "waiting",
                         (json_int_t)n->n[ONCE__ROW_WAITING], "done",
                         (json_int_t)n->n[ONCE__ROW_DONE], "dead",
                         (json_int_t)n->n[ONCE__ROW_DEAD], "indeterminate",
                         (json_int_t)n->n[ONCE__ROW_INDETERMINATE], "oldest_ms",
                         (json_int_t)n->oldest_ms));
    printf(c->tty ? "%-24s  %10llu  %10llu  %10llu  %10llu  %10llu  %13llu  "
                    "%12llu\n"
                  : "%s\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\n",
           n->route, (unsigned long long)n->n[ONCE__ROW_READY],
           (unsigned long long)n->leased,
           (unsigned long long)n->n[ONCE__ROW_WAITING],
           (unsigned long long)n->n[ONCE__ROW_DONE],
           (unsigned long long)n->n[ONCE__ROW_DEAD],
           (unsigned long long)n->n[ONCE__ROW_INDETERMINATE],
           (unsigned long long)(n->oldest_ms / 1000));
    return CLI_OK;
}

static int stats(const struct cli *c, const struct once__base *b,
                 const struct cli_rows *r)
{
    struct once__outbox_count *counts = NULL;
    once_error err = {0, ""};
    size_t n = 0, i;
    int rc = once__outbox_stats(once__base_tx(b), 1, &counts, &n, &err);

    (void)r;
    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    if (c->tty && !c->json)
        printf("%-24s  %10s  %10s  %10s  %10s  %10s  %13s  %12s\n", "ROUTE",
               "READY", "LEASED", "WAITING", "DONE", "DEAD", "INDETERMINATE",
               "OLDEST (s)");
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
    {"show", BIT(IDS) | BIT(BODY) | BIT(REPLY), 0, 1, 0, show},
    {"retry", DECIDES, BIT(ATTEMPT), 1, ONCE__OUTBOX_RETRY, decide},
    {"drop", DECIDES, BIT(ATTEMPT), 1, ONCE__OUTBOX_DROP, decide},
    {"resolve", DECIDES, BIT(ATTEMPT), 1, ONCE__OUTBOX_RESOLVE, decide},
    {"purge", BIT(OLDER), 0, 0, 0, purge},
    {"stats", 0, 0, 0, 0, stats},
};

static int run(struct cli *c, int argc, char **argv)
{
    return cli_rows_run(c, argc, argv, actions,
                        actions + sizeof(actions) / sizeof(actions[0]));
}

const struct cli_command cli_cmd_outbox = {
    "outbox",
    "messages that wait for a relay, or for a decision",
    help,
    options,
    "ls show retry drop resolve purge stats",
    run};
