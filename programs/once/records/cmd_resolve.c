/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_resolve.c - `once resolve`: an operator has found out what became of a
 * request, and says so, once and for all.
 *
 * A compare-and-set on the fence that the operator was shown: if anything has
 * happened since, it is refused and nothing changes. Who, when and why are kept
 * with the record. It refuses what the gateway could not replay, and a
 * reopening where the upstream does not recognise keys (docs/protocol.md,
 * section 11).
 *
 *    arguments, FILE --> encoded response --> once__resolve() --> report
 */
#include "programs/once/records/resolve_lines.h"

#include <stdlib.h>
#include <string.h>

#include "operate/answer.h"

/* clang-format off */
static const char help[] =
    "usage: once resolve WHICH --fence N [--attempt N] ACTION --why TEXT\n"
    "       once resolve --records FILE [--dry-run] ACTION --why TEXT\n"
    "Records the outcome of an indeterminate request, for ever: every repeat gets\n"
    "it as its answer. Find out at the upstream first. ACTION is one of\n"
    "  --success FILE   it took effect; FILE (- is stdin) is the answer's body\n"
    "  --failure FILE   it did not, or is refused; FILE as above\n"
    "  --applied        took effect, answer lost: 409 response-unavailable\n"
    "  --reopen         the next repeat executes; only of records under takeover\n"
    "With --success and --failure say what FILE is:\n"
    "  --status N       an HTTP response with this status, 200 to 599, for records\n"
    "                   of the gateway; 204 and 304 want /dev/null\n"
    "  --header 'Name: value'   one more header of it, like Content-Type\n"
    "  --value          JSON: the value that callers of a function get (once.call)\n"
    "  --raw            the result's bytes as they are, for programs of your own\n"
    "And\n"
    "  --fence N, --attempt N   as once show prints them; refused if changed\n"
    "  --why TEXT       1 to 512 bytes, kept with your name and the time (UTC)\n"
    "  --keep TIME      how long repeats are answered, 1s to 3650d (24h)\n"
    "  --records FILE   up to 500 lines of once ls --json, each by its own fence\n"
    "  --dry-run        with --records: says what would be refused, changes nothing\n"
    "  --audit FILE     the log that it is written to first (or off)\n"
    "WHICH is as for once show. The common case:\n"
    "  once resolve 51e8ab03 --fence 7 --success answer.json --status 201\n"
    "    --header 'Content-Type: application/json' --why 'ticket 12'\n";
/* clang-format on */

enum { OPT_SUCCESS = 1, OPT_FAILURE, OPT_APPLIED, OPT_REOPEN, OPT_HEADER };

struct resolve {
    struct cli_pick pick;
    uint64_t fence;   /* 0: not given */
    uint64_t attempt; /* 0: not given */
    int action;       /* the option, 0: not given */
    int actions;      /* how many were given */
    const char *file;
    uint64_t status; /* 0: not given */
    int raw, value;
    once__header headers[ONCE__ANSWER_HEADERS];
    size_t n;
    const char *why;
    uint64_t keep_ms;
    once_bytes body;   /* of FILE, ours  */
    once_bytes result; /* encoded, ours  */
    const char *batch; /* NULL: one record */
    int dry;
    struct cli_batch lines;
};

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_PICK_OPTIONS(struct resolve),
    CLI_AUDIT_OPTION,
    {"records", CLI_FILES, CLI_AT(CLI_TEXT, struct resolve, batch)},
    {"dry-run", NULL, CLI_AT(CLI_FLAG, struct resolve, dry)},
    {"fence", "", CLI_AT(CLI_NUMBER, struct resolve, fence), .least = 1,
     .most = UINT64_MAX},
    {"attempt", "", CLI_AT(CLI_NUMBER, struct resolve, attempt), .least = 1,
     .most = UINT32_MAX},
    {"success", CLI_FILES, .id = OPT_SUCCESS},
    {"failure", CLI_FILES, .id = OPT_FAILURE},
    {"applied", NULL, .id = OPT_APPLIED},
    {"reopen", NULL, .id = OPT_REOPEN},
    {"status", "", CLI_AT(CLI_NUMBER, struct resolve, status), .least = 200,
     .most = 599},
    {"header", "", .id = OPT_HEADER},
    {"raw", NULL, CLI_AT(CLI_FLAG, struct resolve, raw)},
    {"value", NULL, CLI_AT(CLI_FLAG, struct resolve, value)},
    {"why", "", CLI_AT(CLI_TEXT, struct resolve, why)},
    {"keep", "", CLI_AT(CLI_TIME, struct resolve, keep_ms)},
    {.name = NULL},
};

#define KEEP_DEFAULT_MS UINT64_C(86400000)

/* ---- The command line ---------------------------------------------------- */

static int add_header(const struct cli *c, struct resolve *r, const char *text)
{
    const char *colon = strchr(text, ':');
    once__header h = {{NULL, 0}, {NULL, 0}, 0};
    once_error err = {0, ""};
    const char *value, *end;

    if (r->n == ONCE__ANSWER_HEADERS)
        return cli_usage(c, "--header may be given %d times",
                         ONCE__ANSWER_HEADERS);
    if (colon == NULL)
        return cli_usage(c, "--header is 'Name: value', of one line");
    h.name = (once_bytes){text, (size_t)(colon - text)};
    value = colon + 1 + strspn(colon + 1, " \t");
    end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    h.value = (once_bytes){value, (size_t)(end - value)};
    if (once__answer_header(&h, &err) < 0)
        return cli_usage(c, "--header: %s", err.text);
    r->headers[r->n++] = h;
    return CLI_OK;
}

static int take(const struct cli *c, void *user, int o)
{
    struct resolve *r = user;

    if (o == OPT_HEADER)
        return add_header(c, r, optarg);
    r->action = o;
    r->actions++;
    if (optarg != NULL)
        r->file = optarg;
    return CLI_OK;
}

static int check_args(const struct cli *c, const struct resolve *r)
{
    int answers = r->action == OPT_SUCCESS || r->action == OPT_FAILURE;
    int forms = (r->status != 0) + r->raw + r->value;

    if (r->actions != 1)
        return cli_usage(c, "say one of --success FILE, --failure FILE, "
                            "--applied, --reopen");
    if (r->fence == 0 && r->batch == NULL)
        return cli_usage(c, "--fence N is needed, as once show prints it");
    if (r->batch != NULL && (r->fence != 0 || r->attempt != 0))
        return cli_usage(c, "the lines of --records have their own fences");
    if (r->dry && r->batch == NULL)
        return cli_usage(c,
                         "--dry-run goes with --records; one record is shown "
                         "by once show");
    if (r->batch != NULL && r->file != NULL && strcmp(r->file, "-") == 0 &&
        strcmp(r->batch, "-") == 0)
        return cli_usage(c, "stdin cannot be both FILEs");
    if (answers && forms != 1)
        return cli_usage(c, "say what FILE is: --status N for an HTTP response "
                            "(the gateway's records), --value for the JSON of "
                            "a function's result (once.call), or --raw");
    if (!answers && (forms > 0 || r->n > 0))
        return cli_usage(c, "--status, --header, --value and --raw go with "
                            "--success and --failure only");
    if (r->status == 0 && r->n > 0)
        return cli_usage(c, "--header goes with --status");
    return cli_check_why(c, r->why);
}

static int read_args(struct cli *c, int argc, char **argv, struct resolve *r)
{
    int rc = cli_read_args(c, argc, argv, take, r);

    if (rc == CLI_OK && r->batch != NULL)
        rc = cli_no_operands(c, argc, ": the records are in --records FILE");
    else if (rc == CLI_OK)
        rc = cli_pick_end(c, &r->pick, argc, argv);
    return rc == CLI_OK ? check_args(c, r) : rc;
}

/* ---- The result ---------------------------------------------------------- */

static int make_result(const struct cli *c, struct resolve *r)
{
    once__response response;
    once_error err = {0, ""};
    int rc;

    if (r->file == NULL)
        return CLI_OK;
    rc = cli_read_file(c, r->file, ONCE_RESULT_MAX, &r->body);
    if (rc != CLI_OK)
        return rc;
    if (r->raw) {
        r->result = r->body;
        r->body = (once_bytes){NULL, 0}; /* moved */
        return CLI_OK;
    }
    if (r->value) {
        rc = once__answer_value(
            r->body, r->action == OPT_SUCCESS ? ONCE_SUCCESS : ONCE_FAILURE,
            &r->result, &err);
        return rc == ONCE_EINVAL ? cli_usage(c, "%s: %s", r->file, err.text)
               : rc < 0          ? cli_trouble(c, rc, &err)
                                 : CLI_OK;
    }
    response = (once__response){.status = (int)r->status,
                                .headers = r->headers,
                                .n = r->n,
                                .body = r->body};
    rc = once__answer_encode(&response, &r->result, &err);
    if (rc == ONCE_EINVAL)
        return cli_usage(c, "%s: give /dev/null as FILE", err.text);
    return rc < 0 ? cli_trouble(c, rc, &err) : CLI_OK;
}

static int action(const struct resolve *r)
{
    switch (r->action) {
    case OPT_SUCCESS:
        return ONCE__SUCCESS;
    case OPT_FAILURE:
        return ONCE__FAILURE;
    case OPT_APPLIED:
        return ONCE__APPLIED;
    default:
        return ONCE__REOPEN;
    }
}

/* ---- The store ----------------------------------------------------------- */

static int resolve_one(const struct cli *c, once_engine *e,
                       const struct resolve *r, once__resolution *what)
{
    once_error err = {0, ""};
    once_op now = {0};
    int rc = cli_find(c, e, &r->pick.name, what->name);

    if (rc != CLI_OK)
        return rc;
    rc = once__resolve(e, what, &now, &err);
    rc = cli_resolved(c, rc, what, &now.record, &err);
    if (rc == CLI_OK)
        rc = cli_report(c, what->name, &now.record,
                        "the record is resolved all the same");
    if (rc == CLI_OK && err.code != 0)
        rc = CLI_STORE; /* said above: the audit log lacks a line */
    once_op_clear(&now);
    return rc;
}

static int resolve(const struct cli *c, once_engine *e, const struct resolve *r)
{
    once__audit_who who;
    once_store_head head;
    once__resolution what = {.fence = r->fence,
                             .dry = r->dry,
                             .attempt = (uint32_t)r->attempt,
                             .action = action(r),
                             .result = r->result,
                             .keep_ms = r->keep_ms,
                             .why = r->why,
                             .program = "once",
                             .who = &who};
    int rc = r->dry ? CLI_OK : cli_audit_open(c, &what.audit);

    if (rc != CLI_OK)
        return rc;
    if (once_head(e, &head, NULL) == ONCE_OK) {
        what.store = head.id;
        what.incarnation = head.incarnation;
    }
    once__audit_me("command line", &who);
    if (r->batch != NULL)
        rc = cli_batch_resolve(c, e, &what, &r->lines);
    else
        rc = resolve_one(c, e, r, &what);
    once__audit_close(what.audit);
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct resolve *r = calloc(1, sizeof(*r));
    once_engine *e = NULL;
    int rc;

    if (r == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    r->keep_ms = KEEP_DEFAULT_MS;
    rc = read_args(c, argc, argv, r);
    if (rc != CLI_OK)
        goto out;
    rc = make_result(c, r);
    if (rc == CLI_OK && r->batch != NULL)
        rc = cli_batch_read(c, r->batch, &r->lines);
    if (rc != CLI_OK)
        goto out;
    rc = cli_open(c, &e);
    if (rc == CLI_OK)
        rc = resolve(c, e, r);
out:
    once_engine_close(e);
    free((void *)r->body.data);
    free((void *)r->result.data);
    free(r);
    return rc;
}

const struct cli_command cli_cmd_resolve = {
    "resolve", "say what became of an indeterminate record",
    help,      options,
    NULL,      run};
