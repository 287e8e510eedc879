/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows_many.c - `once messages outbox retry` of many rows: those of a filter, or the
 * lines of `once messages outbox ls --json` that an operator has kept.
 *
 *    filter, FILE --> rows as they were seen --> one decision for each
 *
 * Each row is decided about by its own phase and attempts, so one that has changed
 * meanwhile is refused and the others are not. A line that is not understood stops
 * all of it before the database is opened.
 */
#include "programs/once/messages/rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "messages/tables/outbox.h"

enum { RECORDS_MAX = 10000, RECORDS_BYTES = RECORDS_MAX * 4096 };

static const char *const phases[] = CLI_PHASES;

enum { PHASES = sizeof(phases) / sizeof(phases[0]) };

/* ---- Lines of ls --json ---------------------------------------------------- */

static int read_line(const char *text, size_t size, struct cli_rows_seen *out)
{
    json_t *o = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    const json_t *no = json_object_get(o, "seq"),
                 *attempts = json_object_get(o, "attempts");
    const char *phase = json_string_value(json_object_get(o, "phase"));
    int is = 0, i;

    for (i = 0; i < PHASES && phase != NULL && !is; i++)
        if (strcmp(phases[i], phase) == 0) {
            out->phase = i;
            is = 1;
        }
    out->no = json_integer_value(no);
    out->seen = (uint32_t)json_integer_value(attempts);
    is = is && out->no > 0 && json_is_integer(attempts) &&
         json_integer_value(attempts) >= 0 &&
         json_integer_value(attempts) <= INT32_MAX;
    json_decref(o);
    return is;
}

static int add(struct cli_rows_list *l, const struct cli_rows_seen *one)
{
    struct cli_rows_seen *more =
        once__grown(l->rows, &l->room, l->n + 1, sizeof(*more));

    if (more == NULL)
        return 0;
    l->rows = more;
    l->rows[l->n++] = *one;
    return 1;
}

int cli_rows_read(const struct cli *c, const char *path,
                  struct cli_rows_list *out)
{
    once_bytes all = {NULL, 0};
    int rc = cli_read_file(c, path, RECORDS_BYTES, &all);
    const char *at = all.data, *end = rc == CLI_OK ? at + all.size : at, *stop;
    struct cli_rows_seen one;
    size_t number;

    for (number = 1; rc == CLI_OK && at < end; number++, at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL)
            stop = end;
        if (stop == at)
            continue;
        if (out->n == RECORDS_MAX)
            rc =
                cli_usage(c, "--records: at most %d rows at once", RECORDS_MAX);
        else if (!read_line(at, (size_t)(stop - at), &one))
            rc = cli_usage(c,
                           "--records: line %zu is no JSON object with seq, "
                           "phase and attempts, as once messages outbox ls "
                           "--json prints it",
                           number);
        else if (!add(out, &one))
            rc = cli_say(c, CLI_STORE, "out of memory");
    }
    free((void *)(uintptr_t)all.data);
    if (rc == CLI_OK && out->n == 0)
        rc = cli_say(c, CLI_NO, "--records: there is no row in it");
    return rc;
}

/* ---- Rows of a filter ------------------------------------------------------ */

struct finding {
    const struct cli_rows *r;
    struct cli_rows_list *out;
    size_t n; /* of this page */
    int64_t last;
    int no_memory;
};

static void find(void *user, const struct cli_rows_one *one)
{
    struct finding *f = user;
    const struct once__outgoing *row = one->row;
    struct cli_rows_seen seen = {row->seq, row->phase, row->attempts};

    f->n++;
    f->last = row->seq;
    if (row->at_ms >= f->r->since_ms && f->out->n < f->r->max &&
        !add(f->out, &seen))
        f->no_memory = 1;
}

/* All of them, before the first decision: a relay may be at work meanwhile. */
static int find_all(const struct cli *c, const once_tx *tx, struct cli_rows *r,
                    struct cli_rows_list *out)
{
    struct finding f = {.r = r, .out = out};
    once_error err = {0, ""};
    char after[24];
    int rc;

    do {
        f.n = 0;
        rc = r->kind->ask(tx, r, r->kind->page, find, &f, &err);
        if (rc != ONCE_OK)
            return cli_trouble(c, rc, &err);
        if (f.no_memory)
            return cli_say(c, CLI_STORE, "out of memory");
        (void)snprintf(after, sizeof(after), "%" PRId64, f.last);
        r->after = after;
    } while (f.n == r->kind->page && out->n < r->max);
    r->after = NULL;
    if (out->n == r->max)
        cli_say(c, 0,
                "stopped at --max %llu; say the same once more for those "
                "that follow",
                (unsigned long long)r->max);
    return CLI_OK;
}

/* ---- Decisions -------------------------------------------------------------- */

static int print(const struct cli *c, int64_t no, const char *word)
{
    int rc = CLI_OK;

    if (c->json)
        rc = cli_print_json(
            c, json_pack("{s:I,s:s}", "row", (json_int_t)no, "decision", word));
    else
        printf("%" PRId64 "\t%s\n", no, word);
    return rc == CLI_OK ? cli_flush(c) : rc;
}

static int decide(const struct cli *c, const once_tx *tx,
                  once__message_choice *choice, const struct cli_rows_seen *row,
                  size_t *refused)
{
    once_error err = {0, ""}, log = {0, ""};
    int rc;

    choice->no = row->no;
    choice->phase = row->phase;
    choice->seen = row->seen;
    rc = once__message_decide(tx, choice, &err, &log);
    if (log.code != 0)
        return cli_unlogged(c, CLI_STORE, &log);
    if (rc == ONCE_FREE || rc == ONCE_REFUSED) {
        ++*refused;
        return print(c, row->no, "refused");
    }
    if (rc == ONCE_OK)
        return print(c, row->no, choice->verb);
    if (rc == ONCE_EABORTED)
        return cli_say(c, CLI_UNKNOWN,
                       "row %" PRId64 ": %s: it may be written or not. Look "
                       "again with once %s show",
                       row->no, err.text, c->command->name);
    return cli_trouble_of_decision(c, rc, &err);
}

int cli_rows_retry_many(const struct cli *c, const once_tx *tx,
                        struct cli_rows *r)
{
    once__audit_who who;
    once__message_choice choice = {.kind = r->kind->what,
                                   .verb = "retry",
                                   .why = r->why,
                                   .program = "once",
                                   .who = &who};
    size_t refused = 0, i;
    int rc = r->records != NULL ? CLI_OK : find_all(c, tx, r, &r->list);

    if (rc == CLI_OK)
        rc = cli_audit_open(c, &choice.audit);
    if (rc != CLI_OK)
        return rc;
    once__audit_me("command line", &who);
    for (i = 0; i < r->list.n && rc == CLI_OK; i++)
        rc = decide(c, tx, &choice, &r->list.rows[i], &refused);
    once__audit_close(choice.audit);
    cli_say(c, 0, "%zu to be sent again, %zu refused, %zu not asked",
            i - refused - (rc != CLI_OK), refused,
            r->list.n - i + (rc != CLI_OK));
    if (rc == CLI_OK && (refused > 0 || r->list.n == 0))
        rc = CLI_NO;
    return rc;
}
