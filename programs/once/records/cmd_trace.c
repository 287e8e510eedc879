/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_trace.c - `once trace`: what happened to one request, end to end.
 *
 * It reads and asks nothing else. A source that is not there is named, so that
 * nobody takes silence for "nothing happened".
 */
#include "programs/once/records/trace.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] trace WHICH [--log FILE]... [--audit FILE] [--json]\n"
    "\n"
    "One timeline of a request, from its record, from the audit log, and from the\n"
    "gateway's access logs in JSON (docs/audit.md has the format):\n"
    "  granted, ended and why, what repeats were told and how often, who resolved\n"
    "  it, what repeats got then. At its end it says which sources it had.\n"
    "WHICH is as for once show.\n"
    "\n"
    "  --log FILE     an access log, up to 32 of them; - is stdin:\n"
    "                   zcat access.json.2.gz | once trace 51e8ab03 --log -\n"
    "  --audit FILE   the audit log, where it is not the default one; or off\n"
    "  --json         an object for each line; the last one has the sources\n"
    "\n"
    "Times are UTC: of the record by the store's clock, of logs by their host's.\n"
    "Where the record is forgotten, or no store is named, the logs are searched\n"
    "for names that begin so. Status 1 if nothing was found.\n";
/* clang-format on */

enum { OPT_LOG = 1, LOGS_MAX = 32 };

struct args {
    struct cli_pick pick;
    const char *logs[LOGS_MAX];
    size_t n;
};

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS, CLI_PICK_OPTIONS(struct args),
    CLI_AUDIT_OPTION,   {"log", CLI_FILES, .id = OPT_LOG},
    {.name = NULL},
};

static int take(const struct cli *c, void *user, int o)
{
    struct args *a = user;

    (void)o; /* --log: the only one */
    if (a->n == LOGS_MAX)
        return cli_usage(c, "--log may be given %d times", LOGS_MAX);
    a->logs[a->n++] = optarg;
    return CLI_OK;
}

/* ---- The sources ------------------------------------------------------------ */

static int print_head(struct trace *t, const once_record *r)
{
    const struct cli *c = t->c;
    char group[CLI_GROUP_TEXT];

    cli_group(r->group, group);
    if (c->json)
        return cli_print_json(
            c, json_pack("{s:s, s:s, s:s?, s:o, s:o}", "name", t->hex, "state",
                         cli_state(r->state), "group", group[0] ? group : NULL,
                         "label", cli_json_text(r->label), "keep_until",
                         cli_json_time(r->keep_ms)));
    cli_line(c, "name", t->hex);
    cli_line(c, "state", cli_state(r->state));
    cli_line(c, "group", group[0] ? group : "-");
    if (r->label.size > 0) {
        cli_label(c, "label");
        cli_print_text(stdout, r->label);
        putchar('\n');
    }
    return CLI_OK;
}

/* Takes the one record that is meant, if it is there. */
static int read_record(struct trace *t, once_engine *e)
{
    uint8_t found[2][ONCE_NAME_SIZE];
    once_error err = {0, ""};
    int n = once__find(e, &t->name, found, &err), rc;
    once_op op = {0};

    if (n == 0)
        return trace_source(t, "record", 0, "there is none: forgotten?");
    if (n == 2)
        return cli_find(t->c, e, &t->name, found[0]);
    rc = n < 0 ? n : once__look(e, found[0], &op, &err);
    if (rc < 0) {
        rc = cli_trouble(t->c, rc, &err);
    } else if (op.record.attempt == 0) {
        rc = trace_source(t, "record", 0, "there is none: forgotten?");
    } else {
        cli_hex(found[0], CLI_DIGITS, t->hex);
        rc = print_head(t, &op.record);
        if (rc == CLI_OK)
            rc = trace_record(t, &op.record);
    }
    once_op_clear(&op);
    return rc;
}

static int read_store(struct trace *t)
{
    once_engine *e = NULL;
    int rc;

    if (cli_url(t->c) == NULL)
        return trace_source(t, "record", 0, "no store was named");
    rc = cli_open_to_look(t->c, &e);
    if (rc == CLI_OK)
        rc = read_record(t, e);
    once_engine_close(e);
    return rc;
}

static int read_audit(struct trace *t)
{
    once_error err = {0, ""};
    once__audit *log = NULL;
    int rc;

    if (once__audit_open(cli_audit_path(t->c), &err, &log) != ONCE_OK)
        return trace_source(t, "audit log", 0, "there is none");
    if (once__audit_path(log) == NULL)
        rc = trace_source(t, "audit log", 0, "it is off");
    else
        rc = trace_audit(t, once__audit_path(log));
    once__audit_close(log);
    return rc;
}

/* ---- What is printed -------------------------------------------------------- */

static json_t *json_event(const struct trace_event *e)
{
    return json_pack("{s:o, s:o, s:s, s:s, s:o, s:I, s:O?}", "time",
                     cli_json_time(e->ms), "until", cli_json_time(e->until_ms),
                     "source", e->source, "event", e->what, "text",
                     cli_json_text(cli_bytes(e->text)), "count",
                     (json_int_t)e->count, "line", e->more);
}

static void print_event(const struct cli *c, const struct trace_event *e)
{
    char at[CLI_TIME_SIZE], until[CLI_TIME_SIZE];

    cli_time(e->ms, at);
    printf(c->tty ? "%-24s  %-6s  %-10s  " : "%s\t%s\t%s\t", at, e->source,
           e->what);
    cli_print_text(stdout, cli_bytes(e->text));
    if (e->count > 1) {
        cli_time(e->until_ms, until);
        printf("  x%llu until %s", (unsigned long long)e->count, until);
    }
    putchar('\n');
}

static int print_sources(const struct trace *t)
{
    json_t *list = t->c->json ? json_array() : NULL;
    size_t i;

    for (i = 0; i < t->n_sources; i++) {
        const struct trace_source *s = &t->sources[i];

        if (t->c->json)
            json_array_append_new(
                list, json_pack("{s:s, s:I, s:s?}", "name", s->name, "found",
                                (json_int_t)s->found, "trouble", s->trouble));
        else if (s->trouble != NULL)
            printf("source\t%s\tnot read: %s\n", s->name, s->trouble);
        else
            printf("source\t%s\t%llu\n", s->name, (unsigned long long)s->found);
    }
    if (!t->c->json)
        return CLI_OK;
    return cli_print_json(t->c, json_pack("{s:o}", "sources", list));
}

static int print_all(struct trace *t)
{
    int rc = CLI_OK;
    size_t i;

    trace_sort(t);
    for (i = 0; i < t->n && rc == CLI_OK; i++)
        if (t->c->json)
            rc = cli_print_json(t->c, json_event(&t->events[i]));
        else
            print_event(t->c, &t->events[i]);
    if (rc == CLI_OK)
        rc = print_sources(t);
    if (rc == CLI_OK)
        rc = cli_flush(t->c);
    if (rc == CLI_OK && t->full)
        rc = cli_say(t->c, CLI_STORE,
                     "there are more than %d events: not all "
                     "of them are shown",
                     TRACE_MOST);
    if (rc == CLI_OK && t->n == 0)
        rc = cli_say(t->c, CLI_NO, "nothing is known of it: see the sources");
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct trace t = {.c = c};
    struct args a = {.n = 0};
    int rc = cli_read_args(c, argc, argv, take, &a);
    size_t i;

    if (rc == CLI_OK)
        rc = cli_pick_end(c, &a.pick, argc, argv);
    if (rc != CLI_OK)
        return rc;
    t.name = a.pick.name;
    cli_hex(t.name.bytes, t.name.digits, t.hex);
    rc = read_store(&t);
    if (rc == CLI_OK)
        rc = read_audit(&t);
    for (i = 0; i < a.n && rc == CLI_OK; i++)
        rc = trace_log(&t, a.logs[i]);
    if (rc == CLI_OK && a.n == 0)
        rc = trace_source(&t, "access log", 0, "none was given (--log)");
    if (rc == CLI_OK)
        rc = print_all(&t);
    trace_free(&t);
    return rc;
}

const struct cli_command cli_cmd_trace = {
    "trace", "what happened to one request, end to end", help, options, NULL,
    run};
