/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_report.c - `once report`: what a dry run has shown, on one page.
 *
 * It reads access logs and nothing else. A line may be anything and of any
 * length, and there may be any number of routes: memory is bounded, and what
 * was not counted is said.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "calls/http/http.h"
#include "programs/once/cli.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* clang-format off */
static const char help[] =
    "usage: once report LOG... [--json]\n"
    "\n"
    "How many duplicates a dry run has let through, on which routes, and how long\n"
    "after the first: from access logs in the format once_json, while\n"
    "\"once_dry_run on\" was set. LOG is a file, or - for stdin:\n"
    "\n"
    "  zcat once.log.2.gz | once report - once.log\n"
    "\n"
    "  duplicates   the service got a request again that it had been given: Once\n"
    "               would have replayed the first answer, or refused it\n"
    "  conflict     the key came with another request, which would be a 422\n"
    "  refused      no key, a bad key, too old, or no store: no duplicate\n"
    "\n"
    "A route is the name of once_route, or method and path where there is none.\n"
    "\n"
    "  --json       one object\n"
    "\n"
    "Status 1 if no line is of a dry run.\n";
/* clang-format on */

enum {
    LINE_MAX_BYTES = 65536,
    ROUTE_MAX = 96,   /* bytes of its name; more is cut      */
    ROUTES_MAX = 256, /* the last one has all that are left  */
    AGES = 6
};

/* How long apart: below so many seconds, the last without a bound. */
static const struct {
    uint64_t below_s;
    const char *text;
} ages[AGES] = {
    {1, "below 1 s"},    {10, "below 10 s"},     {60, "below 1 min"},
    {3600, "below 1 h"}, {86400, "below 1 day"}, {UINT64_MAX, "a day or more"},
};

static const char others[] = "(other routes)";

struct route {
    char name[ROUTE_MAX + 1];
    uint64_t requests, duplicates, longest_s;
    uint64_t would[ONCE__WOULD_COUNT];
};

struct report {
    uint64_t lines;
    uint64_t outside; /* of no dry run                       */
    uint64_t unread;  /* not in the format, or too long      */
    uint64_t apart[AGES];
    struct route total;
    struct route *routes;
    size_t n;
};

/* What one line says. */
struct request {
    char route[ROUTE_MAX + 1];
    int would;
    int has_apart, executed;
    uint64_t apart_s;
};

static const struct cli_option options[] = {
    CLI_JSON_OPTION,
    CLI_HELP_OPTION,
    {.name = NULL},
};

/* ---- One line ----------------------------------------------------------- */

/* A member's text, or NULL; "-" is what the gateway writes for nothing. */
static const char *member(const json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

static int is_said(const char *text)
{
    return text != NULL && text[0] != '\0' && strcmp(text, "-") != 0;
}

static int read_would(const char *text, int *would)
{
    int i;

    for (i = 0; i < ONCE__WOULD_COUNT; i++)
        if (strcmp(text, once__would_text(i)) == 0) {
            *would = i;
            return 1;
        }
    return 0;
}

/* 0: it is neither "-" nor a number of seconds. */
static int read_apart(const char *text, struct request *r)
{
    char *end;

    if (!is_said(text))
        return text != NULL;
    if (text[strspn(text, "0123456789")] != '\0')
        return 0;
    errno = 0;
    r->apart_s = strtoull(text, &end, 10);
    r->has_apart = 1;
    return errno == 0 && r->apart_s <= INT64_MAX;
}

static void read_route(const json_t *o, struct request *r)
{
    const char *route = member(o, "once_route");
    const char *method = member(o, "method"), *uri = member(o, "uri");

    if (is_said(route))
        snprintf(r->route, sizeof(r->route), "%s", route);
    else
        snprintf(r->route, sizeof(r->route), "%.16s %s",
                 method != NULL ? method : "-", uri != NULL ? uri : "-");
}

/* A line without this member was written where the service is not known to have
 * been left out. */
static int was_executed(const json_t *o)
{
    const char *status = member(o, "upstream_status");

    return status == NULL || is_said(status);
}

/* nginx writes the bytes of a path as they are, and JSON is UTF-8. */
static json_t *parse(char *line, size_t size)
{
    json_t *o = json_loadb(line, size, 0, NULL);
    size_t i;

    if (o != NULL)
        return o;
    for (i = 0; i < size; i++)
        if ((unsigned char)line[i] >= 0x80)
            line[i] = '?';
    return json_loadb(line, size, 0, NULL);
}

/* 0: the line is not in the format. */
static int read_line(char *line, size_t size, struct request *r)
{
    json_t *o = parse(line, size);
    const char *would = member(o, "once_would");
    int ok;

    ok = would != NULL && read_would(would, &r->would) &&
         read_apart(member(o, "once_apart"), r);
    if (ok) {
        read_route(o, r);
        r->executed = r->would == ONCE__WOULD_RUN_AGAIN || was_executed(o);
    }
    json_decref(o);
    return ok;
}

/* ---- What is counted ---------------------------------------------------- */

/* The service had been given this request, and was given it again. */
static int is_duplicate(const struct request *r)
{
    switch (r->would) {
    case ONCE__WOULD_RUN_AGAIN:
        return 1;
    case ONCE__WOULD_IN_FLIGHT:
    case ONCE__WOULD_UNKNOWN:
    case ONCE__WOULD_REFUSE: /* of a repeat, which has a first */
        return r->has_apart && r->executed;
    default:
        return 0;
    }
}

static struct route *route_of(struct report *p, const char *name)
{
    size_t i;

    for (i = 0; i < p->n; i++)
        if (strcmp(p->routes[i].name, name) == 0)
            return &p->routes[i];
    if (p->n == ROUTES_MAX)
        return &p->routes[ROUTES_MAX - 1];
    if (p->n == ROUTES_MAX - 1)
        name = others;
    snprintf(p->routes[p->n].name, sizeof(p->routes->name), "%s", name);
    return &p->routes[p->n++];
}

static void add(struct route *to, const struct request *r, int duplicate)
{
    to->requests++;
    to->would[r->would]++;
    to->duplicates += (uint64_t)duplicate;
    if (duplicate && r->has_apart && r->apart_s > to->longest_s)
        to->longest_s = r->apart_s;
}

static void take_line(struct report *p, char *line, size_t size)
{
    struct request r = {.would = ONCE__WOULD_NONE};
    int duplicate;
    size_t i = 0;

    if (!read_line(line, size, &r)) {
        p->unread++;
        return;
    }
    if (r.would == ONCE__WOULD_NONE) {
        p->outside++;
        return;
    }
    duplicate = is_duplicate(&r);
    add(&p->total, &r, duplicate);
    add(route_of(p, r.route), &r, duplicate);
    if (!duplicate || !r.has_apart)
        return;
    while (r.apart_s >= ages[i].below_s && i < AGES - 1)
        i++;
    p->apart[i]++;
}

/* A line of `n` bytes has ended: one that is too long is not looked at. */
static void end_line(struct report *p, char *line, size_t n)
{
    p->lines++;
    if (n > LINE_MAX_BYTES)
        p->unread++;
    else
        take_line(p, line, n);
}

/* Lines may hold NUL, and the last one may lack its end. */
static void read_lines(FILE *in, char *line, struct report *p)
{
    size_t n = 0;
    int c;

    flockfile(in);
    while ((c = getc_unlocked(in)) != EOF) {
        if (c == '\n') {
            end_line(p, line, n);
            n = 0;
            continue;
        }
        if (n < LINE_MAX_BYTES)
            line[n] = (char)c;
        n += n <= LINE_MAX_BYTES;
    }
    funlockfile(in);
    if (n > 0 && !ferror(in))
        end_line(p, line, n);
}

static int read_log(const struct cli *c, const char *path, char *line,
                    struct report *p)
{
    int is_stdin = strcmp(path, "-") == 0, rc = CLI_OK;
    FILE *in = is_stdin ? stdin : fopen(path, "rbe");

    if (in == NULL)
        return cli_say(c, CLI_STORE, "%s: cannot be opened: %s", path,
                       strerror(errno));
    read_lines(in, line, p);
    if (ferror(in))
        rc = cli_say(c, CLI_STORE, "%s: cannot be read: %s", path,
                     strerror(errno));
    if (!is_stdin)
        fclose(in);
    return rc;
}

/* ---- The page ----------------------------------------------------------- */

/* Most duplicates first, then by name. */
static int by_duplicates(const void *a, const void *b)
{
    const struct route *x = a, *y = b;

    if (x->duplicates != y->duplicates)
        return x->duplicates > y->duplicates ? -1 : 1;
    return strcmp(x->name, y->name);
}

static json_t *words_json(const struct route *r)
{
    json_t *o = json_object();
    int i;

    for (i = ONCE__WOULD_RUN; i < ONCE__WOULD_COUNT; i++)
        json_object_set_new(o, once__would_text(i),
                            json_integer((json_int_t)r->would[i]));
    return o;
}

static json_t *route_json(const struct route *r)
{
    once_bytes name = {r->name, strlen(r->name)};

    return json_pack("{s:o, s:I, s:I, s:I, s:o}", "route", cli_json_text(name),
                     "requests", (json_int_t)r->requests, "duplicates",
                     (json_int_t)r->duplicates, "longest_s",
                     (json_int_t)r->longest_s, "would", words_json(r));
}

static int print_json(const struct cli *c, const struct report *p)
{
    json_t *routes = json_array(), *apart = json_array();
    size_t i;

    for (i = 0; i < p->n; i++)
        json_array_append_new(routes, route_json(&p->routes[i]));
    for (i = 0; i < AGES; i++)
        json_array_append_new(
            apart,
            json_pack("{s:o, s:I}", "below_s",
                      i < AGES - 1 ? json_integer((json_int_t)ages[i].below_s)
                                   : json_null(),
                      "duplicates", (json_int_t)p->apart[i]));
    return cli_print_json(
        c, json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "lines",
                     (json_int_t)p->lines, "unread", (json_int_t)p->unread,
                     "outside", (json_int_t)p->outside, "requests",
                     (json_int_t)p->total.requests, "duplicates",
                     (json_int_t)p->total.duplicates, "would",
                     words_json(&p->total), "apart", apart, "routes", routes));
}

static int print_routes(const struct cli *c, const struct report *p)
{
    static const struct cli_field fields[] = {
        {"duplicates", CLI_F_NUMBER, CLI_IN_LIST, 10},
        {"requests", CLI_F_NUMBER, CLI_IN_LIST, 9},
        {"conflict", CLI_F_NUMBER, CLI_IN_LIST, 8},
        {"refused", CLI_F_NUMBER, CLI_IN_LIST, 7},
        {"longest_s", CLI_F_NUMBER, CLI_IN_LIST, 9},
        {"route", CLI_F_TEXT, CLI_IN_LIST, 0},
        {.name = NULL},
    };
    int rc = cli_list_heading(c, fields);
    size_t i;

    for (i = 0; i < p->n && rc == CLI_OK; i++) {
        const struct route *r = &p->routes[i];
        struct cli_value values[] = {
            {r->duplicates, NULL},
            {r->requests, NULL},
            {r->would[ONCE__WOULD_CONFLICT], NULL},
            {r->would[ONCE__WOULD_REFUSE], NULL},
            {r->longest_s, NULL},
            {0, r->name},
        };

        rc = cli_list_line(c, fields, values);
    }
    return rc;
}

static int print_page(const struct cli *c, const struct report *p)
{
    size_t i;

    cli_cut_lines(c);
    cli_number(c, "lines", p->lines);
    cli_number(c, "not read", p->unread);
    cli_number(c, "no dry run", p->outside);
    cli_number(c, "requests", p->total.requests);
    cli_number(c, "duplicates", p->total.duplicates);
    for (i = ONCE__WOULD_RUN; i < ONCE__WOULD_COUNT; i++)
        cli_number(c, once__would_text((int)i), p->total.would[i]);
    if (p->total.duplicates > 0)
        puts("\nDuplicates by the time since the first:");
    for (i = 0; i < AGES && p->total.duplicates > 0; i++)
        cli_number(c, ages[i].text, p->apart[i]);
    putchar('\n');
    return print_routes(c, p);
}

static int finish(const struct cli *c, struct report *p)
{
    int rc;

    if (p->n > 0)
        qsort(p->routes, p->n, sizeof(*p->routes), by_duplicates);
    rc = c->json ? print_json(c, p) : print_page(c, p);
    if (rc == CLI_OK)
        rc = cli_flush(c);
    if (rc == CLI_OK && p->unread > 0)
        (void)cli_say(c, 0,
                      "%llu of %llu lines were not read: not in the format "
                      "once_json with $once_would, or over %d bytes",
                      (unsigned long long)p->unread,
                      (unsigned long long)p->lines, LINE_MAX_BYTES);
    if (rc == CLI_OK && p->n == ROUTES_MAX)
        (void)cli_say(c, 0,
                      "there are more than %d routes: name them by once_route",
                      ROUTES_MAX - 1);
    if (rc == CLI_OK && p->total.requests == 0)
        rc = cli_say(c, CLI_NO,
                     "no line is of a dry run: set \"once_dry_run on\"");
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct report p = {.lines = 0};
    char *line = NULL;
    int rc = cli_read_args(c, argc, argv, NULL, NULL), i;

    if (rc != CLI_OK)
        return rc;
    if (optind == argc)
        return cli_usage(c, "no LOG was given; - is stdin");
    line = malloc(LINE_MAX_BYTES);
    p.routes = calloc(ROUTES_MAX, sizeof(*p.routes));
    if (line == NULL || p.routes == NULL)
        rc = cli_say(c, CLI_STORE, "out of memory");
    for (i = optind; i < argc && rc == CLI_OK; i++)
        rc = read_log(c, argv[i], line, &p);
    if (rc == CLI_OK)
        rc = finish(c, &p);
    free(p.routes);
    free(line);
    return rc;
}

const struct cli_command cli_cmd_report = {
    "report",  "what a dry run has shown: duplicates, where, how long apart",
    help,      options,
    CLI_FILES, run};
