/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_audit.c - `once audit`: who decided what, and is that log whole?
 *
 * It opens no store, and writes nothing.
 */
#include "programs/once/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const char help[] =
    "usage: once audit ls [--since T] [--until T] [--action A] [--who W]\n"
    "               [--name HASH] [--json] [FILE...]\n"
    "       once audit verify [--against KEPT] [--json] [FILE...]\n"
    "\n"
    "Shows the log of what operators decided (docs/audit.md), oldest first, and\n"
    "checks that no line in it was changed, cut, swapped or taken out. FILEs are\n"
    "parts of one log, the oldest first (- is stdin); by default it is that of\n"
    "--audit or ONCE_AUDIT, /var/log/once/audit.jsonl where that folder exists,\n"
    "or your own in ~/.local/state/once.\n"
    "\n"
    "  --since T, --until T   24h ago; a day, 2026-03-01; 2026-03-01T08:00:00Z\n"
    "  --action A             resolve, reopen, forget, purge, init, clock, body ...\n"
    "  --who W                a user's name, or the number of user or login\n"
    "  --name HASH            the first 8 or more digits of a record's name\n"
    "  --against KEPT         lines that were kept where who may write to the log\n"
    "                         may not: a syslog, or what verify --json has printed\n"
    "  --audit FILE           the log\n"
    "  --json                 the lines as they are; verify: an object a line\n"
    "\n"
    "Columns of ls: number, time (UTC), step (intent, then done, refused or\n"
    "unknown), action, kind, user, name, fence, why. Status of verify: 0 the chain\n"
    "is whole, 3 it is not. The last lines of a log can be missing without a trace\n"
    "in it, or all of it be written again: --against finds that up to the last line\n"
    "that was kept. Without FILEs the files that the log was before are read, too.\n";
/* clang-format on */

enum { OPT_NAME = 1 };

struct audit {
    const struct cli *c;
    once__audit_filter filter;
    char name[CLI_HEX_SIZE];
    const char *file; /* that is read */
    const char *against;
    once__audit *log; /* the default one, or NULL */
    const char *own[1];
    char **parts; /* it, and the files that it was before */
    size_t n_parts;
    const char *const *paths;
    size_t n;
    uint64_t flaws, shown;
};

static const struct cli_option options[] = {
    {"since", "", CLI_AT(CLI_WHEN, struct audit, filter.since_ms)},
    {"until", "", CLI_AT(CLI_WHEN, struct audit, filter.until_ms)},
    {"action", "resolve reopen forget purge init clock body restore adopt", 0,
     CLI_AT(CLI_TEXT, struct audit, filter.action)},
    {"who", "", CLI_AT(CLI_TEXT, struct audit, filter.who)},
    {"name", "", .id = OPT_NAME},
    {"against", CLI_FILES, CLI_AT(CLI_TEXT, struct audit, against)},
    CLI_AUDIT_OPTION,
    CLI_JSON_OPTION,
    CLI_HELP_OPTION,
    {.name = NULL},
};

static int take(const struct cli *c, void *user, int o)
{
    struct audit *a = user;
    once__prefix prefix;
    int rc = cli_read_name(c, optarg, CLI_DIGITS_MIN, &prefix);

    (void)o; /* --name: the only one */
    if (rc == CLI_OK) {
        cli_hex(prefix.bytes, prefix.digits, a->name);
        a->filter.name = a->name;
    }
    return rc;
}

/* ---- ls ------------------------------------------------------------------- */

static void print_field(const once__audit_line *line, const char *field,
                        int most)
{
    const char *text = json_string_value(json_object_get(line->json, field));
    size_t size = text != NULL ? strlen(text) : 0;

    if (most > 0 && size > (size_t)most)
        size = (size_t)most;
    cli_print_text(stdout, size ? (once_bytes){text, size} : cli_bytes("-"));
}

/* Columns of a width that fits most, so that a terminal shows a table. */
static void print_row(const struct cli *c, const once__audit_line *line)
{
    static const struct {
        const char *field;
        int width, most;
    } columns[] = {
        {"time", 24, 0}, {"step", 7, 0},   {"action", 9, 0}, {"kind", 7, 0},
        {"user", 12, 0}, {"name", 16, 16}, {"fence", 6, 0},
    };
    size_t i;

    printf(c->tty ? "%6" PRIu64 "  " : "%" PRIu64 "\t", line->seq);
    for (i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        const char *text =
            json_string_value(json_object_get(line->json, columns[i].field));
        int size = text != NULL ? (int)strlen(text) : 1;

        print_field(line, columns[i].field, c->tty ? columns[i].most : 0);
        if (c->tty)
            printf("%*s",
                   2 + (size < columns[i].width ? columns[i].width - size : 0),
                   "");
        else
            putchar('\t');
    }
    print_field(line, "why", 0);
    if (json_object_get(line->json, "detail") != NULL) {
        fputs(c->tty ? "  " : "\t", stdout);
        print_field(line, "detail", 0);
    }
    putchar('\n');
}

static int see(void *user, const once__audit_line *line)
{
    struct audit *a = user;

    a->flaws += line->flaw != NULL;
    if (!once__audit_fits(&a->filter, line))
        return 0;
    if (a->shown++ == 0 && a->c->tty && !a->c->json)
        printf("%6s  %-24s  %-7s  %-9s  %-7s  %-12s  %-16s  %-6s  %s\n", "NO",
               "TIME", "STEP", "ACTION", "KIND", "USER", "NAME", "FENCE",
               "WHY");
    if (a->c->json) {
        fwrite(line->text.data, 1, line->text.size, stdout);
        putchar('\n');
    } else {
        print_row(a->c, line);
    }
    return ferror(stdout) ? ONCE_ECLOSED : 0;
}

static int list(const struct cli *c, struct audit *a)
{
    once_error err = {0, ""};
    int rc = ONCE_OK;
    size_t i;

    for (i = 0; i < a->n && rc == ONCE_OK; i++)
        rc = once__audit_read(a->paths[i], see, a, &err);
    if (rc != ONCE_OK && rc != ONCE_ECLOSED)
        return cli_say(c, CLI_STORE, "%s", err.text);
    if (a->flaws > 0)
        cli_say(c, 0,
                "lines that are damaged, and not shown: %" PRIu64
                ". See once audit verify",
                a->flaws);
    return cli_flush(c);
}

/* ---- verify ----------------------------------------------------------------- */

static void report(void *user, const char *path, uint64_t number, int bad,
                   const char *text)
{
    const struct audit *a = user;

    if (a->c->json)
        (void)cli_print_json(a->c, json_pack("{s:b, s:s, s:I, s:s}", "bad", bad,
                                             "file", path, "line",
                                             (json_int_t)number, "text", text));
    else
        printf("%s\t%s:%" PRIu64 "\t%s\n", bad ? "bad" : "note", path, number,
               text);
}

static int print_sum(const struct cli *c, const struct audit *a,
                     const once__audit_sum *sum)
{
    json_t *o;

    if (c->json) {
        o = json_pack("{s:I, s:I, s:I, s:I, s:I, s:s}", "lines",
                      (json_int_t)sum->lines, "defects", (json_int_t)sum->bad,
                      "notes", (json_int_t)sum->notes, "first",
                      (json_int_t)sum->first_seq, "last",
                      (json_int_t)sum->last_seq, "hash", sum->last_hash);
        if (o != NULL && a->against != NULL)
            json_object_set_new(o, "anchored",
                                json_integer((json_int_t)sum->anchored_seq));
        return cli_print_json(c, o);
    }
    cli_number(c, "lines", sum->lines);
    cli_number(c, "defects", sum->bad);
    cli_number(c, "notes", sum->notes);
    cli_number(c, "first", sum->first_seq);
    cli_number(c, "last", sum->last_seq);
    cli_line(c, "hash", sum->last_hash);
    if (a->against != NULL)
        cli_number(c, "anchored", sum->anchored_seq);
    return CLI_OK;
}

static int verify(const struct cli *c, struct audit *a)
{
    once__audit_anchors *kept = NULL;
    once_error err = {0, ""};
    once__audit_sum sum;
    int rc;

    if (a->filter.since_ms || a->filter.until_ms || a->filter.action ||
        a->filter.who || a->filter.name)
        return cli_usage(c, "verify reads all lines: a part of a chain proves "
                            "nothing");
    rc = ONCE_OK;
    if (a->against != NULL)
        rc = once__audit_anchors_read(a->against, a->own[0], &kept, &err);
    if (rc == ONCE_OK)
        rc = once__audit_check(a->paths, a->n, kept, report, a, &sum, &err);
    once__audit_anchors_free(kept);
    if (rc != ONCE_OK)
        return cli_say(c, CLI_STORE, "%s", err.text);
    rc = print_sum(c, a, &sum);
    if (rc == CLI_OK)
        rc = cli_flush(c);
    if (rc == CLI_OK && sum.bad > 0)
        rc = cli_say(c, CLI_STORE, "the log is not whole");
    return rc;
}

/* ---- The command ------------------------------------------------------------ */

/* The files that were named, or the log. */
static int find_paths(const struct cli *c, struct audit *a, int argc,
                      char **argv)
{
    once_error err = {0, ""};

    a->paths = (const char *const *)(argv + optind);
    a->n = (size_t)(argc - optind);
    if (a->n > 0 && a->against == NULL)
        return CLI_OK;
    if (once__audit_open(c->audit, &err, &a->log) != ONCE_OK)
        return cli_say(c, CLI_STORE, "%s", err.text);
    a->own[0] = once__audit_path(a->log);
    if (a->n > 0)
        return CLI_OK;
    if (a->against != NULL && a->own[0] != NULL) {
        if (once__audit_parts(a->own[0], &a->parts, &a->n_parts, &err) !=
            ONCE_OK)
            return cli_say(c, CLI_STORE, "%s", err.text);
        a->paths = (const char *const *)a->parts;
        a->n = a->n_parts;
        return CLI_OK;
    }
    a->paths = a->own;
    a->n = 1;
    return a->own[0] != NULL ? CLI_OK
                             : cli_usage(c, "the audit log is off: ONCE_AUDIT");
}

static int run(struct cli *c, int argc, char **argv)
{
    struct audit a = {.c = c};
    int rc = cli_read_args(c, argc, argv, take, &a), is_ls;

    if (rc != CLI_OK)
        return rc;
    is_ls = optind < argc && strcmp(argv[optind], "ls") == 0;
    if (is_ls && a.against != NULL)
        return cli_usage(c, "--against goes with verify");
    if (!is_ls && (optind == argc || strcmp(argv[optind], "verify") != 0))
        return cli_usage(c, "ls or verify?");
    optind++;
    rc = find_paths(c, &a, argc, argv);
    if (rc == CLI_OK)
        rc = is_ls ? list(c, &a) : verify(c, &a);
    once__audit_parts_free(a.parts, a.n_parts);
    once__audit_close(a.log);
    return rc;
}

const struct cli_command cli_cmd_audit = {
    "audit",     "list and verify the log of operator decisions",
    help,        options,
    "ls verify", run};
