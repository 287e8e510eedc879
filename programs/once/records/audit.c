/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit.c - what all decisions of an operator have in common: a reason, two
 * lines in the audit log, and that they are refused when something happened
 * since.
 */
#include "programs/once/cli.h"

#include <inttypes.h>
#include <string.h>

once_bytes cli_bytes(const char *text)
{
    return (once_bytes){text, strlen(text)};
}

int cli_check_why(const struct cli *c, const char *why)
{
    if (!once__why_good(why))
        return cli_usage(c, "--why TEXT is needed: 1 to %d bytes on one line",
                         ONCE__WHY_MAX);
    return CLI_OK;
}

void cli_make_note(const char *action, const char *why, char out[CLI_NOTE_SIZE])
{
    once__audit_who who;

    once__audit_me("command line", &who);
    once__note_make(&who, "once", NULL, action, why, out);
}

/* ---- The audit log ------------------------------------------------------- */

static int not_written(const struct cli *c, const once_error *err)
{
    return cli_say(c, CLI_STORE,
                   "audit log: %s. Nothing was decided. Say where with --audit "
                   "FILE, or --audit off",
                   err->text);
}

/* What is done to a user's own store is no other process's affair, and the
 * host's log may be closed to him. */
const char *cli_audit_path(const struct cli *c)
{
    if (c->audit != NULL && c->audit[0] != '\0')
        return c->audit;
    return c->user_store != NULL && cli_url(c) == c->user_store ? "own" : NULL;
}

int cli_audit_open(const struct cli *c, once__audit **out)
{
    once_error err = {0, ""};
    int rc = once__audit_open(cli_audit_path(c), &err, out);

    return rc == ONCE_OK ? CLI_OK : not_written(c, &err);
}

void cli_about(struct cli_decision *d, once_engine *e, once_store *s)
{
    int rc = ONCE_ENOSYS;

    if (e != NULL)
        rc = once_head(e, &d->head, NULL);
    else if (s->ops->head != NULL)
        rc = s->ops->head(s, NULL, &d->head, NULL);
    if (rc != ONCE_OK)
        return;
    d->entry.store = d->head.id;
    d->entry.incarnation = d->head.incarnation;
}

int cli_intend(const struct cli *c, struct cli_decision *d)
{
    once_error err = {0, ""};
    int rc = cli_audit_open(c, &d->log);

    if (rc != CLI_OK)
        return rc;
    once__audit_me("command line", &d->who);
    d->entry.who = &d->who;
    if (once__audit_begin(d->log, &d->entry, &d->seq, &err) == ONCE_OK)
        return CLI_OK;
    once__audit_close(d->log);
    d->log = NULL;
    return not_written(c, &err);
}

static enum once__audit_step step_of(int rc)
{
    if (rc == CLI_OK)
        return ONCE__AUDIT_DONE;
    return rc == CLI_UNKNOWN ? ONCE__AUDIT_UNKNOWN : ONCE__AUDIT_REFUSED;
}

int cli_unlogged(const struct cli *c, int rc, const once_error *err)
{
    return cli_say(c, rc,
                   "audit log: %s. The log has the decision but not its result",
                   err->text);
}

int cli_trouble_of_decision(const struct cli *c, int code,
                            const once_error *err)
{
    if (strncmp(err->text, ONCE__UNAUDITED, sizeof(ONCE__UNAUDITED) - 1) == 0)
        return cli_say(c, CLI_STORE,
                       "%s. Say where with --audit FILE, or --audit off",
                       err->text);
    return cli_trouble_of_change(c, code, err);
}

int cli_audited(const struct cli *c, struct cli_decision *d, int rc,
                const char *detail)
{
    once_error err = {0, ""};

    if (d->log == NULL)
        return rc;
    if (once__audit_end(d->log, &d->entry, d->seq, step_of(rc), detail, &err) !=
        ONCE_OK)
        rc = cli_unlogged(c, rc == CLI_OK ? CLI_STORE : rc, &err);
    once__audit_close(d->log);
    d->log = NULL;
    return rc;
}

/* ---- What once__resolve() refused ---------------------------------------- */

static void changed(const once_record *now, uint64_t fence, char *out,
                    size_t size)
{
    if (now->attempt == 0)
        snprintf(out, size,
                 "there is no such record: it has been forgotten, or is in "
                 "another store. See once ls");
    else
        snprintf(out, size,
                 "the fence is %" PRIu64 ", not %" PRIu64
                 ": something happened since. Look again with once show",
                 now->fence, fence);
}

void cli_refusal(int verdict, const once__resolution *r, const once_record *now,
                 char *out, size_t size)
{
    char until[CLI_TIME_SIZE];

    switch (verdict) {
    case ONCE__UNRESOLVED_GONE:
    case ONCE__UNRESOLVED_FENCE:
        changed(now, r->fence, out, size);
        break;
    case ONCE__UNRESOLVED_ATTEMPT:
        snprintf(out, size,
                 "the attempt is %" PRIu32 ", not %" PRIu32
                 ": something happened since. Look again with once show",
                 now->attempt, r->attempt);
        break;
    case ONCE__UNRESOLVED_TAKEOVER:
        snprintf(out, size,
                 "--reopen may execute it twice and needs once_lost takeover, "
                 "which this record was not made under. Give --success, "
                 "--failure or --applied");
        break;
    case ONCE__UNRESOLVED_OWNED:
        cli_time(now->lease_ms, until);
        snprintf(out, size,
                 "it is %s, its owner may still answer (lease until %s). Look "
                 "again after that",
                 cli_state(now->state), until);
        break;
    default:
        snprintf(out, size,
                 "it is %s, and only an indeterminate record can be resolved. "
                 "See once show",
                 cli_state(now->state));
        break;
    }
}

int cli_resolved(const struct cli *c, int verdict, const once__resolution *r,
                 const once_record *now, const once_error *err)
{
    char text[256];

    if (verdict < 0)
        return cli_trouble_of_decision(c, verdict, err);
    if (verdict != ONCE__RESOLVED) {
        cli_refusal(verdict, r, now, text, sizeof(text));
        return cli_say(c, CLI_NO, "refused: %s", text);
    }
    return err->code != 0 ? cli_unlogged(c, CLI_OK, err) : CLI_OK;
}

int cli_report(const struct cli *c, const uint8_t name[ONCE_NAME_SIZE],
               const once_record *r, const char *done)
{
    char hex[CLI_HEX_SIZE], until[CLI_TIME_SIZE];
    int gone = r->attempt == 0, rc = CLI_OK;

    cli_hex(name, CLI_DIGITS, hex);
    cli_time(cli_until(r), until);
    if (c->json)
        rc = cli_print_json(
            c, gone ? json_pack("{s:s, s:b}", "name", hex, "forgotten", 1)
                    : cli_json_record(name, r));
    else if (gone)
        printf("%s\tforgotten\n", hex);
    else
        printf("%s\t%s\t%s\tkept until %s\n", hex, cli_state(r->state),
               cli_kind(r->kind), until);
    if (rc == CLI_OK)
        rc = cli_flush(c);
    if (rc != CLI_OK)
        cli_say(c, rc, "%s", done);
    return rc;
}

int cli_changed(const struct cli *c, const once_record *now, uint64_t fence)
{
    char text[256];

    if (now->attempt != 0 && now->fence == fence)
        return CLI_OK;
    changed(now, fence, text, sizeof(text));
    return cli_say(c, CLI_NO, "refused: %s", text);
}
