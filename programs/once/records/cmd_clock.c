/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_clock.c - `once clock`: what the store's clock shows beside elapsed store
 * time, and --accept, which says that the clock is right.
 *
 * Records are forgotten by elapsed store time (docs/protocol.md, section 8). It
 * stays behind where the store's clock was set ahead, and where nothing used
 * the store for a while. Only an operator who compares it with another clock
 * can say which of the two it was.
 */
#include "programs/once/cli.h"

enum { LATE_MS = 3600000 };

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] clock [--accept [--audit FILE]] [--json]\n"
    "\n"
    "Shows the store's clock, the elapsed store time, and how far that is\n"
    "behind. Records are forgotten by the latter, so a clock that was set ahead\n"
    "makes no process forget too early. It is behind where the clock was set ahead,\n"
    "and where nothing that uses the store ran for a while, say while the host was\n"
    "off: then records are only kept longer by as much.\n"
    "\n"
    "  --accept   the store's clock is right (look at it first): what is due by it\n"
    "             is forgotten from now on, by all who use the store\n"
    "  --audit FILE   the log that --accept is written to first (or off)\n"
    "  --json     {\"clock\": ..., \"seen\": ..., \"behind_ms\": N}\n"
    "\n"
    "Status 1 if it is behind by an hour or more, for probes.\n";
/* clang-format on */

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_AUDIT_OPTION,
    {"accept", NULL, .into = CLI_FLAG},
    {.name = NULL},
};

static int report(const struct cli *c, const once_clock *clock)
{
    if (c->json)
        return cli_print_json(c, json_pack("{s:o, s:o, s:I}", "clock",
                                           cli_json_time(clock->now_ms), "seen",
                                           cli_json_time(clock->seen_ms),
                                           "behind_ms",
                                           (json_int_t)clock->behind_ms));
    cli_moment(c, "clock", clock->now_ms);
    cli_moment(c, "seen", clock->seen_ms);
    cli_number(c, "behind_ms", clock->behind_ms);
    return CLI_OK;
}

static int accept_clock(const struct cli *c, once_store *s, once_clock *clock)
{
    struct cli_decision d = {.entry = {.action = "clock"}};
    once_error err = {0, ""};
    int rc;

    cli_about(&d, NULL, s);
    rc = cli_intend(c, &d);

    if (rc != CLI_OK)
        return rc;
    rc = once_store_clock_accept(s, clock, &err);
    if (rc == ONCE_OK)
        return cli_audited(c, &d, CLI_OK, NULL);
    (void)cli_audited(c, &d, rc == ONCE_ESTORE ? CLI_UNKNOWN : CLI_STORE, NULL);
    return cli_trouble(c, rc, &err);
}

static int look_at(const struct cli *c, once_store *s, once_clock *clock)
{
    once_error err = {0, ""};
    int rc = once_store_clock(s, clock, &err);

    return rc == ONCE_OK ? CLI_OK : cli_trouble(c, rc, &err);
}

static int show_clock(const struct cli *c, int accept)
{
    once_clock clock = {.now_ms = 0};
    once_store *s = NULL;
    int rc = cli_named(c);

    if (rc == CLI_OK)
        rc = cli_open_store(c, &s);
    if (rc != CLI_OK)
        return rc;
    rc = accept ? accept_clock(c, s, &clock) : look_at(c, s, &clock);
    once_store_close(s);
    if (rc != CLI_OK)
        return rc;
    rc = report(c, &clock);
    if (rc == CLI_OK && clock.behind_ms >= LATE_MS)
        rc = cli_say(c, CLI_NO,
                     "the store's clock is ahead of elapsed store time. If it "
                     "is right, accept it with --accept");
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    int accept = 0, rc = cli_read_args(c, argc, argv, NULL, &accept);

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "");
    return rc == CLI_OK ? show_clock(c, accept) : rc;
}

const struct cli_command cli_cmd_clock = {
    "clock", "show or accept the store's clock", help, options, NULL, run};
