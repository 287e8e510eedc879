/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_restore.c - `once restore`: put a copy into an empty store, or accept a
 * store restored to an earlier state by other means.
 *
 * What was recorded after the copy was made is lost, and nobody can tell which
 * keys that were. So it refuses to guess what to do with keys that are absent:
 * --gap says it.
 */
#include "programs/once/cli.h"

#include <inttypes.h>
#include <string.h>

#include "operate/copy/copy.h"

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] restore --copy FILE --gap hold|accept --why TEXT\n"
    "       once [--store URL] restore --adopt --gap hold|accept --why TEXT\n"
    "                          [--longest T] [--audit FILE] [--json]\n"
    "\n"
    "Stop all gateways first. --copy puts a copy (once backup) into an empty store\n"
    "of any kind, and creates it. --adopt accepts a store restored to an\n"
    "earlier state by other means, and that gateways refuse.\n"
    "\n"
    "What was recorded after the copy is lost. Until the longest retention is over,\n"
    "a key that is absent may have been used:\n"
    "  --gap hold     it is refused as unknown; nothing new is executed. Known keys\n"
    "                 are replayed\n"
    "  --gap accept   it is executed. Requests completed after the copy and then\n"
    "                 repeated are executed twice; until the gap is over the store\n"
    "                 is not durable\n"
    "  --longest T    the longest time for which a route keeps outcomes (once_ttl):\n"
    "                 90s, 24h, 7d. At least 24h, and what is seen in the copy\n"
    "What was under way in the copy becomes indeterminate, with the reason \"gap\".\n"
    "Fences go on above all that the copied store had granted. Two restores of one\n"
    "copy grant the same ones: throw the first away.\n"
    "\n"
    "  --why TEXT   for the audit log, which is written first (--audit FILE, or off)\n";
/* clang-format on */

enum { OPT_GAP = 1 };

struct restore {
    const char *from, *why;
    int adopt;
    once__restore how;
    struct cli_progress progress;
    struct cli_decision decision;
    once_store_head head;
    uint8_t id[ONCE_STORE_ID_SIZE]; /* of the store, for the audit log */
};

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_AUDIT_OPTION,
    {"copy", CLI_FILES, CLI_AT(CLI_TEXT, struct restore, from)},
    {"adopt", NULL, CLI_AT(CLI_FLAG, struct restore, adopt)},
    {"gap", "hold accept", .id = OPT_GAP},
    {"longest", "", CLI_AT(CLI_TIME, struct restore, how.keep_ms)},
    {"why", "", CLI_AT(CLI_TEXT, struct restore, why)},
    {.name = NULL},
};

static int take(const struct cli *c, void *user, int o)
{
    struct restore *r = user;

    (void)o; /* --gap: the only one */
    r->how.gap = strcmp(optarg, "hold") == 0     ? ONCE_GAP_HOLD
                 : strcmp(optarg, "accept") == 0 ? ONCE_GAP_ACCEPT
                                                 : ONCE_GAP_NONE;
    return r->how.gap != ONCE_GAP_NONE
               ? CLI_OK
               : cli_usage(c, "--gap is hold or accept");
}

static int check(const struct cli *c, const struct restore *r)
{
    if ((r->from != NULL) == r->adopt)
        return cli_usage(c, "--copy FILE, or --adopt");
    if (r->how.gap == ONCE_GAP_NONE)
        return cli_usage(c, "--gap hold or --gap accept is needed: what is to "
                            "be done with keys that are absent?");
    if (r->how.keep_ms > ONCE_KEEP_MAX_MS)
        return cli_usage(c, "--longest is at most ten years");
    return cli_check_why(c, r->why);
}

static void progressed(void *user, uint64_t records)
{
    cli_progress(user, -1, records);
}

static int report(const struct cli *c, const struct restore *r,
                  const once__copy_about *about)
{
    const once_store_head *h = &r->head;
    int hold = h->gap == ONCE_GAP_HOLD;

    if (c->json)
        return cli_print_json(
            c,
            json_pack("{s:o, s:I, s:s, s:o, s:o}", "records",
                      about == NULL ? json_null()
                                    : json_integer((json_int_t)about->records),
                      "incarnation", (json_int_t)h->incarnation, "gap",
                      hold ? "hold" : "accept", "gap_from",
                      cli_json_time(h->gap_from_ms), "gap_until",
                      cli_json_time(h->gap_until_ms)));
    if (about != NULL)
        cli_number(c, "records", about->records);
    cli_number(c, "incarnation", h->incarnation);
    cli_line(c, "gap", hold ? "hold" : "accept");
    cli_moment(c, "gap from", h->gap_from_ms);
    cli_moment(c, "gap until", h->gap_until_ms);
    return cli_say(c, 0,
                   hold ? "until then a key that is absent is refused as "
                          "unknown, and nothing new is executed"
                        : "until then a key that is absent is executed: "
                          "requests completed after the copy was made and "
                          "then repeated are executed twice, and the store "
                          "is not durable");
}

static int change(const struct cli *c, struct restore *r, once_store *s,
                  once__copy *copy)
{
    once_error err = {0, ""};
    int rc;

    if (copy != NULL)
        memcpy(r->head.id, once__copy_about_of(copy)->id, sizeof(r->head.id));
    else if (s->ops->head != NULL)
        (void)s->ops->head(s, NULL, &r->head, NULL);
    memcpy(r->id, r->head.id, sizeof(r->id));
    r->decision.entry.store = r->id;
    rc = cli_intend(c, &r->decision);
    if (rc != CLI_OK)
        return rc;
    cli_progress_start(&r->progress, c, "records");
    r->how.progress = progressed;
    r->how.user = &r->progress;
    rc = copy != NULL ? once__copy_restore(copy, s, &r->how, &r->head, &err)
                      : once__copy_adopt(s, &r->how, &r->head, &err);
    cli_progress_end(&r->progress);
    if (rc == ONCE_EINVAL)
        rc = cli_say(c, CLI_NO, "%s", err.text);
    else if (rc != ONCE_OK)
        rc = cli_trouble_of_change(c, rc, &err);
    return cli_audited(c, &r->decision, rc,
                       r->how.gap == ONCE_GAP_HOLD ? "gap: hold"
                                                   : "gap: accept");
}

/* A new store is created; adopting needs one that is there. */
static int open_store(const struct cli *c, const struct restore *r,
                      once_store **out)
{
    once_store_options how = {.size = sizeof(how), .create = 1};
    once_error err = {0, ""};
    int rc;

    if (r->adopt)
        return cli_open_store(c, out);
    rc = once_store_open(cli_url(c), &how, &err, out);
    return rc == ONCE_OK ? CLI_OK : cli_trouble(c, rc, &err);
}

static int restore(const struct cli *c, struct restore *r)
{
    once__copy *copy = NULL;
    once_store *s = NULL;
    once_error err = {0, ""};
    int rc = cli_named(c);

    if (rc == CLI_OK && r->from != NULL &&
        once__copy_open(r->from, &err, &copy) != ONCE_OK)
        rc = cli_say(c, CLI_STORE, "%s", err.text);
    if (rc == CLI_OK)
        rc = open_store(c, r, &s);
    if (rc == CLI_OK)
        rc = change(c, r, s, copy);
    if (rc == CLI_OK)
        rc = report(c, r, copy != NULL ? once__copy_about_of(copy) : NULL);
    once_store_close(s);
    once__copy_close(copy);
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct restore r;
    int rc;

    memset(&r, 0, sizeof(r));
    rc = cli_read_args(c, argc, argv, take, &r);
    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "");
    if (rc == CLI_OK)
        rc = check(c, &r);
    if (rc != CLI_OK)
        return rc;
    r.decision.entry.action = r.adopt ? "adopt" : "restore";
    r.decision.entry.why = r.why;
    return restore(c, &r);
}

const struct cli_command cli_cmd_restore = {
    "restore", "put a copy into an empty store, or accept a restored one",
    help,      options,
    NULL,      run};
