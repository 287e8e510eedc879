/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_stats.c - `once stats`: how many records there are, of which kind.
 *
 * Reads every record's head, but for --quick (quick.c), since stores keep no
 * counts by group. Groups are what
 * callers make of them, so it refuses to remember more than GROUPS of them; the
 * rest is counted together.
 */
#include "programs/once/cli.h"

#include <stdlib.h>
#include <string.h>

#include "base/metrics.h"
#include "programs/once/records/quick.h"

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] stats [--group G] [--json | --prometheus]\n"
    "       once [--store URL] stats --quick [--json]\n"
    "\n"
    "Counts records by group and state. On a terminal a table; otherwise lines with\n"
    "tabs between: group, absent, claimed, dispatched, completed, indeterminate,\n"
    "corrupt, over (expired, so once purge forgets them), bytes of all\n"
    "results, when the oldest indeterminate one was granted, when the oldest of\n"
    "all was. The last line is all groups together.\n"
    "\n"
    "  --group G      only this group\n"
    "  --json         one JSON object: \"groups\", a list, and \"all\"\n"
    "  --quick        without reading the store: how many are claimed, dispatched,\n"
    "                 indeterminate, and the rest; when the oldest indeterminate\n"
    "                 one ended; the store's id, incarnation and gap\n"
    "  --prometheus   metrics, for the textfile collector of the node exporter\n"
    "\n"
    "Reads the whole store, while others use it. Only the first 250 groups\n"
    "are counted each by itself. Times are UTC; what has expired, has so by this\n"
    "host's clock.\n";
/* clang-format on */

enum { OPT_GROUP = 1 };

enum { GROUPS = 250, SLOTS = 512, CORRUPT = ONCE_INDETERMINATE + 1, KINDS };

struct count {
    uint8_t group[ONCE_GROUP_SIZE];
    uint64_t of[KINDS]; /* by state, and the corrupt ones */
    uint64_t over;      /* expired */
    uint64_t bytes;
    uint64_t lost_ms;   /* when the oldest indeterminate one was granted */
    uint64_t oldest_ms; /* ... and the oldest of all; 0: none            */
};

struct stats {
    uint64_t now_ms;
    int by_group;
    uint8_t group[ONCE_GROUP_SIZE];
    int prometheus, quick;
    struct count all, others; /* others: of groups that found no place */
    struct count groups[GROUPS];
    size_t n;
    uint16_t slots[SLOTS]; /* 0: free, or an index and one more */
};

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {"group", "", .id = OPT_GROUP},
    {"prometheus", NULL, CLI_AT(CLI_FLAG, struct stats, prometheus)},
    {"quick", NULL, CLI_AT(CLI_FLAG, struct stats, quick)},
    {.name = NULL},
};

/* ---- Counting ------------------------------------------------------------ */

/* FNV-1a: the names of a few groups, not a defence. */
static size_t slot_of(const uint8_t group[ONCE_GROUP_SIZE])
{
    uint32_t h = 2166136261u;
    size_t i;

    for (i = 0; i < ONCE_GROUP_SIZE; i++)
        h = (h ^ group[i]) * 16777619u;
    return h % SLOTS;
}

/* More slots than groups: the search always ends at a free one. */
static struct count *count_of(struct stats *s,
                              const uint8_t group[ONCE_GROUP_SIZE])
{
    size_t slot = slot_of(group);
    struct count *count;

    for (; s->slots[slot] != 0; slot = (slot + 1) % SLOTS) {
        count = &s->groups[s->slots[slot] - 1];
        if (memcmp(count->group, group, ONCE_GROUP_SIZE) == 0)
            return count;
    }
    if (s->n == GROUPS)
        return &s->others;
    count = &s->groups[s->n++];
    s->slots[slot] = (uint16_t)s->n;
    memcpy(count->group, group, ONCE_GROUP_SIZE);
    return count;
}

static void earlier(uint64_t *ms, uint64_t granted_ms)
{
    if (*ms == 0 || granted_ms < *ms)
        *ms = granted_ms;
}

static void add(struct count *n, const once_record *r, uint64_t now_ms)
{
    int corrupt = r->state > ONCE_INDETERMINATE;

    n->of[corrupt ? CORRUPT : r->state]++;
    if (corrupt)
        return; /* nothing else in it can be trusted */
    n->bytes += r->result.size;
    n->over += (r->state == ONCE_COMPLETED || r->state == ONCE_ABSENT) &&
               now_ms >= r->keep_ms;
    earlier(&n->oldest_ms, r->granted_ms);
    if (r->state == ONCE_INDETERMINATE)
        earlier(&n->lost_ms, r->granted_ms);
}

static int see(void *user, const struct cli_row *row)
{
    static const uint8_t nobody[ONCE_GROUP_SIZE] = {0};
    struct stats *s = user;
    const once_record *r = &row->record;
    int corrupt = r->state > ONCE_INDETERMINATE;
    const uint8_t *group = corrupt ? nobody : r->group;

    if (s->by_group &&
        (corrupt || memcmp(group, s->group, ONCE_GROUP_SIZE) != 0))
        return CLI_OK;
    add(count_of(s, group), r, s->now_ms);
    add(&s->all, r, s->now_ms);
    return CLI_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct count *x = a, *y = b;

    return memcmp(x->group, y->group, ONCE_GROUP_SIZE);
}

static uint64_t total(const struct count *n)
{
    uint64_t sum = 0;
    int i;

    for (i = 0; i < KINDS; i++)
        sum += n->of[i];
    return sum;
}

/* ---- Output ------------------------------------------------------------- */

/* No group has a space in it: these cannot be mistaken for one. */
static const char *title(const struct stats *s, const struct count *n,
                         char out[CLI_GROUP_TEXT])
{
    if (n == &s->all)
        return "all groups";
    if (n == &s->others)
        return "other groups";
    cli_group(n->group, out);
    return out[0] ? out : "no group";
}

static void print_heading(const struct cli *c)
{
    int i;

    if (!c->tty)
        return;
    printf("%-20s", "GROUP");
    for (i = 0; i < KINDS; i++)
        printf(" %13s", cli_state(i));
    printf(" %10s %14s  %-24s  %s\n", "over", "bytes", "oldest indeterminate",
           "oldest");
}

static void print_row(const struct cli *c, const struct stats *s,
                      const struct count *n)
{
    char text[CLI_GROUP_TEXT], lost[CLI_TIME_SIZE], oldest[CLI_TIME_SIZE];
    int i;

    printf(c->tty ? "%-20s" : "%s", title(s, n, text));
    for (i = 0; i < KINDS; i++)
        printf(c->tty ? " %s%13llu%s" : "\t%s%llu%s",
               n->of[i] ? cli_color(c, i) : "", (unsigned long long)n->of[i],
               n->of[i] ? cli_plain(c, i) : "");
    cli_time(n->lost_ms, lost);
    cli_time(n->oldest_ms, oldest);
    printf(c->tty ? " %10llu %14llu  %-24s  %s\n" : "\t%llu\t%llu\t%s\t%s\n",
           (unsigned long long)n->over, (unsigned long long)n->bytes, lost,
           oldest);
}

static json_t *json_count(const struct stats *s, const struct count *n)
{
    char group[CLI_GROUP_TEXT];
    json_t *o;
    int i;

    cli_group(n->group, group);
    o = json_pack("{s:s?, s:I, s:I, s:o, s:o}", "group",
                  group[0] ? group : NULL, "over", (json_int_t)n->over, "bytes",
                  (json_int_t)n->bytes, "oldest_indeterminate",
                  cli_json_time(n->lost_ms), "oldest",
                  cli_json_time(n->oldest_ms));
    for (i = 0; i < KINDS; i++)
        json_object_set_new(o, cli_state(i),
                            json_integer((json_int_t)n->of[i]));
    if (n == &s->all)
        json_object_del(o, "group");
    if (n == &s->others)
        json_object_set_new(o, "others", json_true());
    return o;
}

static int print_json(const struct cli *c, const struct stats *s)
{
    json_t *list = json_array();
    size_t i;

    for (i = 0; i < s->n; i++)
        json_array_append_new(list, json_count(s, &s->groups[i]));
    if (total(&s->others) > 0)
        json_array_append_new(list, json_count(s, &s->others));
    return cli_print_json(c, json_pack("{s:o, s:o}", "groups", list, "all",
                                       json_count(s, &s->all)));
}

/* ---- Metrics ------------------------------------------------------------ */

static void put_text(void *user, const char *text, size_t size)
{
    (void)fwrite(text, 1, size, user);
}

static once_bytes bytes(const char *text)
{
    return (once_bytes){text, strlen(text)};
}

static void put_states(struct once__metrics_text *w, once_bytes *labels,
                       const struct count *n)
{
    int i;

    for (i = 0; i < KINDS; i++) {
        labels[1] = bytes(cli_state(i));
        once__metrics_value(w, labels, n->of[i]);
    }
}

static void put_expired(struct once__metrics_text *w, once_bytes *labels,
                        const struct count *n)
{
    once__metrics_value(w, labels, n->over);
}

static void put_bytes(struct once__metrics_text *w, once_bytes *labels,
                      const struct count *n)
{
    once__metrics_value(w, labels, n->bytes);
}

static void put_lost(struct once__metrics_text *w, once_bytes *labels,
                     const struct count *n)
{
    once__metrics_ms(w, labels, n->lost_ms);
}

static const struct family {
    int family;
    void (*put)(struct once__metrics_text *w, once_bytes *labels,
                const struct count *n);
} families[] = {
    {ONCE__FAMILY_GROUP_RECORDS, put_states},
    {ONCE__FAMILY_GROUP_EXPIRED, put_expired},
    {ONCE__FAMILY_GROUP_BYTES, put_bytes},
    {ONCE__FAMILY_GROUP_OLDEST, put_lost},
};

static void put_group(struct once__metrics_text *w, const struct family *f,
                      const struct stats *s, const struct count *n)
{
    char text[CLI_GROUP_TEXT];
    once_bytes labels[2];

    cli_group(n->group, text);
    labels[0] = bytes(n == &s->others ? "other groups" : text);
    f->put(w, labels, n);
}

static void print_prometheus(const struct stats *s)
{
    struct once__metrics_text w = {.put = put_text, .user = stdout};
    size_t i, k;

    for (i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        once__metrics_family(&w, &once__families[families[i].family]);
        for (k = 0; k < s->n; k++)
            put_group(&w, &families[i], s, &s->groups[k]);
        if (total(&s->others) > 0)
            put_group(&w, &families[i], s, &s->others);
    }
    once__metrics_end(&w);
}

static int report(const struct cli *c, const struct stats *s)
{
    size_t i;

    if (c->json)
        return print_json(c, s);
    if (s->prometheus) {
        print_prometheus(s);
        return CLI_OK;
    }
    cli_cut_lines(c);
    print_heading(c);
    for (i = 0; i < s->n; i++)
        print_row(c, s, &s->groups[i]);
    if (total(&s->others) > 0)
        print_row(c, s, &s->others);
    print_row(c, s, &s->all);
    return CLI_OK;
}

static int take(const struct cli *c, void *user, int o)
{
    struct stats *s = user;

    (void)o; /* --group: the only one */
    s->by_group = 1;
    return cli_read_filter(c, optarg, s->group);
}

static int read_args(struct cli *c, int argc, char **argv, struct stats *s)
{
    int rc = cli_read_args(c, argc, argv, take, s);

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "");
    if (rc == CLI_OK && c->json && s->prometheus)
        rc = cli_usage(c, "--json and --prometheus exclude each other");
    if (rc == CLI_OK && s->quick && (s->by_group || s->prometheus))
        rc = cli_usage(c, "--quick goes with --json only");
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct stats *s = calloc(1, sizeof(*s));
    struct cli_progress progress;
    once_engine *e = NULL;
    int rc;

    if (s == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    rc = read_args(c, argc, argv, s);
    if (rc != CLI_OK)
        goto out;
    if (s->quick) {
        rc = cli_quick(c);
        goto out;
    }
    rc = cli_open_to_look(c, &e);
    if (rc != CLI_OK)
        goto out;
    s->now_ms = cli_now_ms();
    cli_progress_start(&progress, c, "records");
    rc = cli_walk(c, e, ONCE_SCAN_ALL, NULL, &progress, see, s);
    cli_progress_end(&progress);
    once_engine_close(e);
    qsort(s->groups, s->n, sizeof(s->groups[0]), by_name);
    if (rc == CLI_OK)
        rc = report(c, s);
out:
    free(s);
    return rc;
}

const struct cli_command cli_cmd_stats = {
    "stats", "count records by state and group", help, options, NULL, run};
