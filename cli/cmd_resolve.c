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
 *    arguments, FILE --> encoded response, note --> show --> resolve --> report
 *                                                    |         ^
 *                      dispatched, lease expired, --+- reap --+
 *                      no gateway left to reap it
 */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "http/http.h"

/* clang-format off */
static const char help[] =
    "usage: once resolve WHICH --fence N [--attempt N] ACTION --why TEXT\n"
    "\n"
    "Records the outcome of an indeterminate request, for ever: every repeat gets\n"
    "it as its answer. Find out at the upstream first. ACTION is one of\n"
    "  --success FILE   it took effect; FILE (- is stdin) is the answer's body\n"
    "  --failure FILE   it did not, or is refused; FILE likewise\n"
    "  --applied        it took effect, but its answer is lost: repeats get\n"
    "                   409 response-unavailable\n"
    "  --reopen         let the next repeat execute; only for records made under\n"
    "                   takeover (the upstream recognises the key)\n"
    "With --success and --failure say what FILE is:\n"
    "  --status N       an HTTP response with this status, 200 to 599, for records\n"
    "                   of the gateway; 204 and 304 want /dev/null\n"
    "  --header 'Name: value'   one more header of it, like Content-Type\n"
    "  --raw            the result's bytes as they are, for programs of your own\n"
    "And\n"
    "  --fence N, --attempt N   as once show prints them; refused if changed\n"
    "  --why TEXT       1 to 512 bytes, kept with your name and the time (UTC)\n"
    "  --keep TIME      how long repeats are answered, 1s to 3650d (24h)\n"
    "WHICH is as for once show. The common case:\n"
    "  once resolve 51e8ab03 --fence 7 --success answer.json --status 201\n"
    "    --header 'Content-Type: application/json' --why 'ticket 12'\n";
/* clang-format on */

enum {
    OPT_FENCE = 1,
    OPT_ATTEMPT,
    OPT_SUCCESS,
    OPT_FAILURE,
    OPT_APPLIED,
    OPT_REOPEN,
    OPT_STATUS,
    OPT_HEADER,
    OPT_RAW,
    OPT_WHY,
    OPT_KEEP
};

/* clang-format off */
static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_PICK_OPTIONS,
    {"fence", "", OPT_FENCE},
    {"attempt", "", OPT_ATTEMPT},
    {"success", CLI_FILES, OPT_SUCCESS},
    {"failure", CLI_FILES, OPT_FAILURE},
    {"applied", NULL, OPT_APPLIED},
    {"reopen", NULL, OPT_REOPEN},
    {"status", "", OPT_STATUS},
    {"header", "", OPT_HEADER},
    {"raw", NULL, OPT_RAW},
    {"why", "", OPT_WHY},
    {"keep", "", OPT_KEEP},
    {NULL, NULL, 0},
};
/* clang-format on */

#define KEEP_DEFAULT_MS UINT64_C(86400000)
enum { HEADERS_MAX = 64 };

struct resolve {
    struct cli_pick pick;
    uint64_t fence;   /* 0: not given */
    uint64_t attempt; /* 0: not given */
    int action;       /* the option, 0: not given */
    int actions;      /* how many were given */
    const char *file;
    uint64_t status; /* 0: not given */
    int raw;
    once__header headers[HEADERS_MAX];
    size_t n;
    const char *why;
    uint64_t keep_ms;
    once_bytes body;   /* of FILE, ours  */
    once_bytes result; /* encoded, ours  */
    char note[CLI_NOTE_SIZE];
};

/* ---- The command line ---------------------------------------------------- */

/* RFC 9110, 5.6.2: what a header's name is made of. */
static int is_token(once_bytes name)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    const char *p = name.data;
    size_t i;

    for (i = 0; i < name.size; i++)
        if (!(p[i] >= '0' && p[i] <= '9') && !(p[i] >= 'a' && p[i] <= 'z') &&
            !(p[i] >= 'A' && p[i] <= 'Z') &&
            (p[i] == '\0' || strchr(marks, p[i]) == NULL))
            return 0;
    return name.size > 0;
}

static int is_called(once_bytes name, const char *text)
{
    return name.size == strlen(text) &&
           strncasecmp(name.data, text, name.size) == 0;
}

static int has_control(const char *text)
{
    for (; *text != '\0'; text++)
        if (((unsigned char)*text < 0x20 && *text != '\t') || *text == 0x7f)
            return 1;
    return 0;
}

/* Would the gateway have stored this header? If not it must not replay it. */
static int check_header(const struct cli *c, once_bytes name)
{
    static const once__header_policy policy = {0};
    int length = (int)name.size;

    if (is_called(name, "Content-Length"))
        return cli_usage(c, "--header: Content-Length is counted, not given");
    if (once__header_internal(name) || !once__header_stored(name, &policy))
        return cli_usage(c,
                         "--header: %.*s is never replayed, so it cannot be "
                         "given",
                         length, (const char *)name.data);
    return CLI_OK;
}

static int add_header(const struct cli *c, struct resolve *r, const char *text)
{
    const char *colon = strchr(text, ':');
    once__header h = {{NULL, 0}, {NULL, 0}, 0};
    const char *value, *end;

    if (r->n == HEADERS_MAX)
        return cli_usage(c, "--header may be given %d times", HEADERS_MAX);
    h.name = (once_bytes){text, colon ? (size_t)(colon - text) : 0};
    if (!is_token(h.name) || has_control(text))
        return cli_usage(c, "--header is 'Name: value', of one line");
    value = colon + 1 + strspn(colon + 1, " \t");
    end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    h.value = (once_bytes){value, (size_t)(end - value)};
    if (h.name.size > ONCE__HEADER_MAX || h.value.size > ONCE__HEADER_MAX)
        return cli_usage(c, "--header: a name or value has up to %zu bytes",
                         ONCE__HEADER_MAX);
    r->headers[r->n++] = h;
    return check_header(c, h.name);
}

static int take(const struct cli *c, void *user, int o)
{
    struct resolve *r = user;

    if (cli_pick_option(&r->pick, o))
        return CLI_OK;
    switch (o) {
    case OPT_FENCE:
        return cli_read_number(c, "--fence", optarg, 1, UINT64_MAX, &r->fence);
    case OPT_ATTEMPT:
        return cli_read_number(c, "--attempt", optarg, 1, UINT32_MAX,
                               &r->attempt);
    case OPT_SUCCESS:
    case OPT_FAILURE:
    case OPT_APPLIED:
    case OPT_REOPEN:
        r->action = o;
        r->actions++;
        if (optarg != NULL)
            r->file = optarg;
        break;
    case OPT_STATUS:
        return cli_read_number(c, "--status", optarg, 200, 599, &r->status);
    case OPT_HEADER:
        return add_header(c, r, optarg);
    case OPT_RAW:
        r->raw = 1;
        break;
    case OPT_WHY:
        r->why = optarg;
        break;
    case OPT_KEEP:
        return cli_read_time(c, "--keep", optarg, &r->keep_ms);
    default:
        break;
    }
    return CLI_OK;
}

static int check_args(const struct cli *c, const struct resolve *r)
{
    int answers = r->action == OPT_SUCCESS || r->action == OPT_FAILURE;

    if (r->actions != 1)
        return cli_usage(c, "say one of --success FILE, --failure FILE, "
                            "--applied, --reopen");
    if (r->fence == 0)
        return cli_usage(c, "--fence N is needed, as once show prints it");
    if (answers && (r->status != 0) + r->raw != 1)
        return cli_usage(c, "say what FILE is: --status N for an HTTP response "
                            "(the gateway's records), or --raw");
    if (!answers && (r->status != 0 || r->raw || r->n > 0))
        return cli_usage(c, "--status, --header and --raw go with --success "
                            "and --failure only");
    if (r->raw && r->n > 0)
        return cli_usage(c, "--header goes with --status");
    return cli_check_why(c, r->why);
}

static int read_args(struct cli *c, int argc, char **argv, struct resolve *r)
{
    int rc = cli_read_args(c, argc, argv, take, r);

    if (rc == CLI_OK)
        rc = cli_pick_end(c, &r->pick, argc, argv);
    return rc == CLI_OK ? check_args(c, r) : rc;
}

/* ---- Result and note ----------------------------------------------------- */

static int make_result(const struct cli *c, struct resolve *r)
{
    once__response response = {.status = 200, .flags = ONCE__NO_BODY};
    int rc;

    if (r->action == OPT_REOPEN)
        return CLI_OK;
    if (r->action == OPT_APPLIED)
        return cli_encode(c, &response, &r->result);
    rc = cli_read_file(c, r->file, ONCE_RESULT_MAX, &r->body);
    if (rc != CLI_OK)
        return rc;
    if (r->raw) {
        r->result = r->body;
        r->body = (once_bytes){NULL, 0}; /* moved */
        return CLI_OK;
    }
    /* RFC 9110, 15.3.5 and 15.4.5: these end with their headers. */
    if ((r->status == 204 || r->status == 304) && r->body.size > 0)
        return cli_usage(c, "a %d has no body: give /dev/null as FILE",
                         (int)r->status);
    response = (once__response){.status = (int)r->status,
                                .headers = r->headers,
                                .n = r->n,
                                .body = r->body};
    return cli_encode(c, &response, &r->result);
}

static const char *action(const struct resolve *r)
{
    switch (r->action) {
    case OPT_SUCCESS:
        return "success";
    case OPT_FAILURE:
        return "failure";
    case OPT_APPLIED:
        return "applied, response lost";
    default:
        return "reopened";
    }
}

/* ---- The store ----------------------------------------------------------- */

static int refused(const struct cli *c, const struct resolve *r,
                   const once_record *now)
{
    char until[CLI_TIME_SIZE];

    if (cli_changed(c, now, r->fence) != CLI_OK)
        return CLI_NO;
    if (now->state == ONCE_INDETERMINATE)
        return cli_say(c, CLI_NO,
                       "refused: --reopen may execute it twice and needs "
                       "once_lost takeover, which this record was not made "
                       "under. Give --success, --failure or --applied");
    cli_time(now->lease_ms, until);
    if (now->state == ONCE_CLAIMED || now->state == ONCE_DISPATCHED)
        return cli_say(c, CLI_NO,
                       "refused: it is %s, its owner may still answer (lease "
                       "until %s). Look again after that",
                       cli_state(now->state), until);
    return cli_say(c, CLI_NO,
                   "refused: it is %s, and only an indeterminate record can be "
                   "resolved. See once show",
                   cli_state(now->state));
}

static int report(const struct cli *c, const uint8_t name[ONCE_NAME_SIZE],
                  const once_record *r)
{
    char hex[CLI_HEX_SIZE], until[CLI_TIME_SIZE];

    int rc = CLI_OK;

    cli_hex(name, CLI_DIGITS, hex);
    cli_time(cli_until(r), until);
    if (c->json)
        rc = cli_print_json(c, cli_json_record(name, r));
    else
        printf("%s\t%s\t%s\tkept until %s\n", hex, cli_state(r->state),
               cli_kind(r->kind), until);
    if (rc == CLI_OK)
        rc = cli_flush(c);
    if (rc != CLI_OK)
        cli_say(c, rc, "the record is resolved all the same");
    return rc;
}

static int settle(const struct cli *c, once_engine *e, const struct resolve *r,
                  const uint8_t name[ONCE_NAME_SIZE])
{
    once_op op = {.verb = r->action == OPT_REOPEN ? ONCE_OP_REOPEN
                                                  : ONCE_OP_RESOLVE,
                  .kind = r->action == OPT_REOPEN    ? ONCE_NO_KIND
                          : r->action == OPT_FAILURE ? ONCE_FAILURE
                                                     : ONCE_SUCCESS,
                  .keep_ms = r->keep_ms,
                  .fence = r->fence,
                  .result = r->result,
                  .note = cli_bytes(r->note),
                  .store_ms = CLI_STORE_MS};
    once_error err = {0, ""};
    int rc;

    memcpy(op.name, name, ONCE_NAME_SIZE);
    rc = once_apply(e, &op, &err);
    if (rc == ONCE_OK)
        rc = report(c, name, &op.record);
    else if (rc < 0)
        rc = cli_trouble_of_change(c, rc, &err);
    else
        rc = refused(c, r, &op.record);
    once_op_clear(&op);
    return rc;
}

/* The record that the operator was shown: the store compares the fence once
 * more, in the same step in which it decides. */
static int check_shown(const struct cli *c, const struct resolve *r,
                       const once_record *now)
{
    if (cli_changed(c, now, r->fence) != CLI_OK)
        return CLI_NO;
    if (r->attempt != 0 && r->attempt != now->attempt)
        return cli_say(c, CLI_NO,
                       "refused: the attempt is %" PRIu32 ", not %" PRIu64
                       ": something happened since. Look again with once show",
                       now->attempt, r->attempt);
    return CLI_OK;
}

static int resolve(const struct cli *c, once_engine *e, const struct resolve *r)
{
    uint8_t name[ONCE_NAME_SIZE];
    once_op seen = {0};
    int rc;

    rc = cli_find(c, e, &r->pick.name, name);
    if (rc != CLI_OK)
        return rc;
    rc = cli_look(c, e, name, &seen);
    if (rc == CLI_OK)
        rc = check_shown(c, r, &seen.record);
    /* The gateway may be gone for good, and with it the reaper. A lease whose
     * owner sent nothing is not ours to end: the next claim does. */
    if (rc == CLI_OK && seen.record.state == ONCE_DISPATCHED)
        rc = cli_reap(c, e, &seen, r->keep_ms);
    once_op_clear(&seen);
    return rc == CLI_OK ? settle(c, e, r, name) : rc;
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
    if (rc != CLI_OK)
        goto out;
    cli_make_note(action(r), r->why, r->note);
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
