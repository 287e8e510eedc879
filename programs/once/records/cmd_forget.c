/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_forget.c - `once forget`: take one record out of the store.
 *
 * Only a record that has expired can be forgotten, since the next repeat of it
 * executes. The store decides that (docs/protocol.md, section 5), and no option
 * changes it, least of all for a live record: an attempt of it may have
 * executed (I5). --force resolves such a record as applied, with a note: it no
 * longer waits for an operator, repeats are still refused, and it expires like
 * any other completed record.
 *
 *                 expired                                   forgotten
 *    show --+---> completed, absent ---- forget ------------------->
 *           |     lease expired: reap     resolve, applied
 *           +---> live, --force -------> indeterminate ---> completed,
 *           |                                               kept for --keep
 *           +---> anything else: refused, nothing is changed
 */
#include "programs/once/cli.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] forget WHICH [--fence N] [--json]\n"
    "       once [--store URL] forget WHICH --force --why TEXT [--keep TIME]\n"
    "\n"
    "Forgets one record that has expired: the next repeat of its key executes.\n"
    "WHICH is as for once show. Before that time the store refuses, whatever the\n"
    "options: once show prints when the record expires.\n"
    "\n"
    "  --fence N      refuse if it is another one by now\n"
    "  --force        for a live record (claimed, dispatched, indeterminate) whose\n"
    "                 owner's lease has expired. It is NOT forgotten now: its work\n"
    "                 may have been done, and the next repeat would do it again.\n"
    "                 It is resolved as by `once resolve --applied`: it took effect\n"
    "                 or must count so, repeats get 409 response-unavailable,\n"
    "                 and after --keep it is forgotten like any other\n"
    "  --why TEXT     with --force: 1 to 512 bytes, kept with your name and the\n"
    "                 time\n"
    "  --keep TIME    with --force: 1s to 3650d (24h)\n"
    "  --audit FILE   the log that it is written to first (or off)\n"
    "\n"
    "If you know the outcome, record it: once resolve.\n";
/* clang-format on */

struct forget {
    struct cli_pick pick;
    uint64_t fence; /* 0: any */
    int force;
    const char *why;
    uint64_t keep_ms; /* 0: not given */
};

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_PICK_OPTIONS(struct forget),
    CLI_AUDIT_OPTION,
    {"fence", "", CLI_AT(CLI_NUMBER, struct forget, fence), .least = 1,
     .most = UINT64_MAX},
    {"force", NULL, CLI_AT(CLI_FLAG, struct forget, force)},
    {"why", "", CLI_AT(CLI_TEXT, struct forget, why)},
    {"keep", "", CLI_AT(CLI_TIME, struct forget, keep_ms)},
    {.name = NULL},
};

#define KEEP_DEFAULT_MS UINT64_C(86400000)

static int read_args(struct cli *c, int argc, char **argv, struct forget *f)
{
    int rc = cli_read_args(c, argc, argv, NULL, f);

    if (rc != CLI_OK)
        return rc;
    if (!f->force && (f->why != NULL || f->keep_ms != 0))
        return cli_usage(c, "--why and --keep go with --force");
    if (f->force)
        rc = cli_check_why(c, f->why);
    if (rc == CLI_OK)
        rc = cli_pick_end(c, &f->pick, argc, argv);
    if (f->keep_ms == 0)
        f->keep_ms = KEEP_DEFAULT_MS;
    return rc;
}

/* ---- Expired ---------------------------------------------------- */

static int too_early(const struct cli *c, const once_record *r)
{
    char until[CLI_TIME_SIZE];

    cli_time(r->keep_ms, until);
    if (r->keep_ms <= cli_now_ms())
        return cli_say(c, CLI_NO,
                       "refused: it is kept until %s, and the clock is ahead "
                       "of elapsed store time. See once clock",
                       until);
    return cli_say(c, CLI_NO,
                   "refused: it is kept until %s. Forget it after that; "
                   "gateways and once purge do so by themselves",
                   until);
}

static int ask(const struct cli *c, once_engine *e, const once_op *seen)
{
    once_op op = {.verb = ONCE_OP_FORGET,
                  .fence = seen->record.fence,
                  .store_ms = CLI_STORE_MS};
    once_error err = {0, ""};
    int rc;

    memcpy(op.name, seen->name, ONCE_NAME_SIZE);
    rc = once_apply(e, &op, &err);
    if (rc < 0)
        rc = cli_trouble_of_change(c, rc, &err);
    else if (rc == ONCE_OK || op.record.attempt == 0)
        /* Refused without a record: it is forgotten already, perhaps by an
         * earlier copy of this operation. */
        rc = CLI_OK;
    else if (cli_changed(c, &op.record, op.fence) != CLI_OK)
        rc = CLI_NO;
    else
        rc = too_early(c, &op.record);
    once_op_clear(&op);
    return rc;
}

static int forget(const struct cli *c, once_engine *e, const once_op *seen)
{
    struct cli_decision d = {.entry = {.action = "forget",
                                       .name = seen->name,
                                       .fence = seen->record.fence,
                                       .attempt = seen->record.attempt}};
    int rc;

    cli_about(&d, e, NULL);
    rc = cli_intend(c, &d);
    if (rc != CLI_OK)
        return rc;
    rc = ask(c, e, seen);
    rc = cli_audited(c, &d, rc, NULL);
    return rc == CLI_OK ? cli_report(c, seen->name, &(once_record){0},
                                     "it is done all the same")
                        : rc;
}

/* ---- Live, and --force --------------------------------------------------- */

/* A claim of which nothing was sent is absent when it was reaped, and needs no
 * decision. */
static int apply_by_force(const struct cli *c, once_engine *e,
                          const struct forget *f, const once_op *seen)
{
    once__audit_who who;
    once__resolution what = {.fence = seen->record.fence,
                             .action = ONCE__FORCE,
                             .keep_ms = f->keep_ms,
                             .why = f->why,
                             .program = "once",
                             .who = &who};
    once_store_head head;
    once_error err = {0, ""};
    once_op now;
    int rc = cli_audit_open(c, &what.audit);

    if (rc != CLI_OK)
        return rc;
    if (once_head(e, &head, NULL) == ONCE_OK) {
        what.store = head.id;
        what.incarnation = head.incarnation;
    }
    once__audit_me("command line", &who);
    memcpy(what.name, seen->name, ONCE_NAME_SIZE);
    rc = once__resolve(e, &what, &now, &err);
    rc = cli_resolved(c, rc, &what, &now.record, &err);
    if (rc == CLI_OK)
        rc = cli_report(c, what.name, &now.record, "it is done all the same");
    once_op_clear(&now);
    once__audit_close(what.audit);
    return rc;
}

static int refuse_live(const struct cli *c, const once_op *seen)
{
    const once_record *r = &seen->record;
    char until[CLI_TIME_SIZE];

    if (seen->left_ms > 0) {
        cli_time(r->lease_ms, until);
        return cli_say(c, CLI_NO,
                       "refused: it is %s, its owner may still answer (lease "
                       "until %s). Look again after that",
                       cli_state(r->state), until);
    }
    return cli_say(c, CLI_NO,
                   "refused: it is %s: its work may have been done, and once "
                   "it is forgotten a repeat does it again. Find out, and say "
                   "so with once resolve; or see --force in once forget --help",
                   cli_state(r->state));
}

static int look_and_forget(const struct cli *c, once_engine *e,
                           const struct forget *f)
{
    uint8_t name[ONCE_NAME_SIZE];
    once_op seen = {0};
    int rc;

    rc = cli_find(c, e, &f->pick.name, name);
    if (rc != CLI_OK)
        return rc;
    rc = cli_look(c, e, name, &seen);
    if (rc != CLI_OK)
        goto out;
    if (f->fence != 0 && cli_changed(c, &seen.record, f->fence) != CLI_OK)
        rc = CLI_NO;
    else if (seen.record.state == ONCE_COMPLETED ||
             seen.record.state == ONCE_ABSENT)
        rc = forget(c, e, &seen);
    else if (!f->force || seen.left_ms > 0)
        rc = refuse_live(c, &seen);
    else
        rc = apply_by_force(c, e, f, &seen);
out:
    once_op_clear(&seen);
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct forget f = {.force = 0};
    once_engine *e = NULL;
    int rc = read_args(c, argc, argv, &f);

    if (rc != CLI_OK)
        return rc;
    rc = cli_open(c, &e);
    if (rc == CLI_OK)
        rc = look_and_forget(c, e, &f);
    once_engine_close(e);
    return rc;
}

const struct cli_command cli_cmd_forget = {
    "forget", "forget one record that has expired", help, options, NULL, run};
