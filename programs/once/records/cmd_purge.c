/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_purge.c - `once purge`: forget every record that has expired.
 *
 * A gateway's reaper does the same; this is for stores that no gateway uses:
 * those of `once run` and once_call(). In steps, so that no other process waits
 * for long; each record by its own conditional operation, with the fence that
 * was seen, so that a record that was created again meanwhile stays.
 *
 *    scan --> up to STEP names --> forget them in one batch --+--> nothing was
 *      ^                                                      |    forgotten,
 *      +------------------------------------------------------+    or no names
 *
 * Retention is the one place where a wrong clock could cost safety
 * (docs/protocol.md, section 8): before each step the store's clock is held
 * against elapsed store time, and what is due only by a clock that
 * is ahead of that stays.
 */
#include "programs/once/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "calls/store/journal/stray.h"

enum { STEP = 256, LATE_MS = 60000 };

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] purge [--max N] [--audit FILE] [--json]\n"
    "       once purge --shm [--json]\n"
    "\n"
    "Forgets every record that has expired: completed, or absent with a row, and\n"
    "kept as long as was promised. Never one that is claimed, dispatched or\n"
    "indeterminate. A gateway does this by itself; stores that only once run and\n"
    "programs use want a line in a crontab:\n"
    "  17 3 * * *  once --store sqlite:/var/lib/once/jobs.db purge\n"
    "\n"
    "  --max N    at most so many, 1 to 1000000000 (all)\n"
    "  --audit FILE   the log that it is written to first, if there is anything to\n"
    "             forget (or off)\n"
    "  --json     {\"forgotten\": N}\n"
    "  --shm      no store: as root, remove what killed processes left in /dev/shm\n"
    "             of journals that no process has open. {\"removed\": N, \"bytes\": N,\n"
    "             \"in_use\": N, \"others\": N}\n"
    "\n"
    "It works in small steps beside others that use the store, and may be stopped\n"
    "and started again at any time. The store's clock decides, as long as it is not\n"
    "ahead of elapsed store time: see once clock. Purge a store from one\n"
    "host, which knows how much time has passed since it did so last.\n";
/* clang-format on */

struct purge {
    int shm;
    uint64_t max;
    uint64_t forgotten;
    once_clock clock;
    struct cli_decision decision; /* its log is open when there was work */
    size_t n, most;
    once_op ops[STEP];
    once_op *list[STEP];
};

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_AUDIT_OPTION,
    {"max", "", CLI_AT(CLI_NUMBER, struct purge, max), .least = 1,
     .most = 1000000000},
    {"shm", NULL, CLI_AT(CLI_FLAG, struct purge, shm)},
    {.name = NULL},
};

static int found(void *user, const uint8_t name[ONCE_NAME_SIZE],
                 const once_record *r)
{
    struct purge *p = user;
    once_op *op = &p->ops[p->n];

    if (r->state > ONCE_INDETERMINATE)
        return 0; /* corrupt: once verify reports it */
    memset(op, 0, sizeof(*op));
    op->verb = ONCE_OP_FORGET;
    op->fence = r->fence;
    memcpy(op->name, name, ONCE_NAME_SIZE);
    p->list[p->n] = op;
    return ++p->n == p->most;
}

/* `*gone` is how many of this step are forgotten, by us or by another
 * process. */
static int step(const struct cli *c, once_store *s, struct purge *p,
                uint64_t *gone)
{
    uint64_t left = p->max - p->forgotten;
    once_error err = {0, ""};
    size_t i;
    int rc;

    *gone = 0;
    p->n = 0;
    p->most = left < STEP ? (size_t)left : STEP;
    rc = s->ops->scan(s, ONCE_SCAN_KEEP, NULL, STEP, found, p, &err);
    if (rc < 0)
        return cli_trouble(c, rc, &err);
    if (p->n == 0)
        return CLI_OK;
    if (p->decision.log == NULL) {
        cli_about(&p->decision, NULL, s);
        rc = cli_intend(c, &p->decision);
        if (rc != CLI_OK)
            return rc;
    }
    rc = cli_ask(c, s, p->list, p->n);
    for (i = 0; rc == CLI_OK && i < p->n; i++)
        *gone += p->ops[i].rc == ONCE_OK || (p->ops[i].rc == ONCE_REFUSED &&
                                             p->ops[i].record.attempt == 0);
    p->forgotten += *gone;
    return rc;
}

static int look(const struct cli *c, once_store *s, struct purge *p)
{
    once_error err = {0, ""};
    int rc = once_store_clock(s, &p->clock, &err);

    return rc == ONCE_OK || rc == ONCE_ENOSYS ? CLI_OK
                                              : cli_trouble(c, rc, &err);
}

static int purge(const struct cli *c, once_store *s, struct purge *p,
                 struct cli_progress *progress)
{
    uint64_t gone = 0;
    int rc;

    do {
        rc = look(c, s, p);
        if (rc != CLI_OK)
            return rc;
        rc = step(c, s, p, &gone);
        cli_progress(progress, -1, p->forgotten);
        if (rc == CLI_OK && s->ops->maintain != NULL)
            (void)s->ops->maintain(s, NULL); /* the place for a checkpoint */
    } while (rc == CLI_OK && gone > 0 && p->forgotten < p->max);
    return rc;
}

/* What was forgotten before it stopped is forgotten. */
static int write_down(const struct cli *c, struct purge *p, int rc)
{
    int step = rc == CLI_STORE && p->forgotten > 0 ? CLI_UNKNOWN : rc, written;
    char detail[40];

    snprintf(detail, sizeof(detail), "forgotten: %" PRIu64, p->forgotten);
    written = cli_audited(c, &p->decision, step, detail);
    return rc == CLI_OK ? written : rc;
}

static int purge_store(const struct cli *c, struct purge *p)
{
    struct cli_progress progress;
    once_store *s = NULL;
    int rc, printed;

    rc = cli_named(c);
    if (rc == CLI_OK)
        rc = cli_open_store(c, &s);
    if (rc != CLI_OK)
        return rc;
    cli_progress_start(&progress, c, "forgotten");
    rc = purge(c, s, p, &progress);
    cli_progress_end(&progress);
    once_store_close(s);
    rc = write_down(c, p, rc);
    if (rc == CLI_OK && p->clock.behind_ms >= LATE_MS)
        cli_say(c, 0,
                "the store's clock is %" PRIu64 " s ahead of the elapsed store "
                "time: what is due is forgotten later by as much. If "
                "it is right, accept it with once clock --accept",
                p->clock.behind_ms / 1000);
    printed = CLI_OK;
    if (c->json)
        printed = cli_print_json(
            c, json_pack("{s:I}", "forgotten", (json_int_t)p->forgotten));
    else
        cli_number(c, "forgotten", p->forgotten);
    return rc != CLI_OK ? rc : printed;
}

/* It is about a host, and about no store. */
static int purge_shm(const struct cli *c)
{
    struct once__strays strays;
    once_error err = {0, ""};

    if (once__journal_strays(&strays, &err) != ONCE_OK)
        return cli_say(c, CLI_STORE, "%s; nothing was removed", err.text);
    if (c->json)
        return cli_print_json(c, json_pack("{s:I, s:I, s:I, s:I}", "removed",
                                           (json_int_t)strays.removed, "bytes",
                                           (json_int_t)strays.bytes, "in_use",
                                           (json_int_t)strays.in_use, "others",
                                           (json_int_t)strays.others));
    cli_number(c, "removed", strays.removed);
    cli_number(c, "bytes", strays.bytes);
    cli_number(c, "in use", strays.in_use);
    cli_number(c, "others", strays.others);
    return CLI_OK;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct purge *p = calloc(1, sizeof(*p));
    int rc;

    if (p == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    p->max = UINT64_MAX;
    p->decision.entry.action = "purge";
    rc = cli_read_args(c, argc, argv, NULL, p);
    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc,
                             "; one record is forgotten by once forget");
    if (rc == CLI_OK && p->shm && p->max != UINT64_MAX)
        rc = cli_usage(c, "--shm and --max exclude each other");
    if (rc == CLI_OK)
        rc = p->shm ? purge_shm(c) : purge_store(c, p);
    free(p);
    return rc;
}

const struct cli_command cli_cmd_purge = {
    "purge", "forget every record that has expired", help, options, NULL, run};
