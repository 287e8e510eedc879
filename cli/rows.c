/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.c - rows of messages for operators: options, names, decisions.
 *
 * An id is a key: whoever knows it can claim it, or send under it. So it refuses
 * to show one, unless --ids asks for it.
 */
#include "rows.h"

#include <stdlib.h>
#include <string.h>

#include "message/backend.h"

enum { MAX_DEFAULT = 1000, MAX_MOST = 1000000000, HASH_DIGITS = 16 };

#define OLDER_DEFAULT_MS UINT64_C(604800000)

static const char *const phases[] = {
    [ONCE__ROW_READY] = "ready",
    [ONCE__ROW_WAITING] = "waiting",
    [ONCE__ROW_DONE] = "done",
    [ONCE__ROW_DEAD] = "dead",
    [ONCE__ROW_INDETERMINATE] = "indeterminate",
};

const char *cli_phase(int phase)
{
    return phase >= 0 && phase <= ONCE__ROW_INDETERMINATE ? phases[phase]
                                                          : "unknown";
}

/* ---- The command line ----------------------------------------------------- */

static int read_phase(const struct cli *c, const char *text, int *out)
{
    int i;

    for (i = 0; i <= ONCE__ROW_INDETERMINATE; i++)
        if (strcmp(phases[i], text) == 0) {
            *out = i;
            return CLI_OK;
        }
    return cli_usage(c, "--phase is ready, waiting, done, dead or "
                        "indeterminate");
}

static int take(const struct cli *c, void *user, int o)
{
    struct cli_rows *r = user;

    r->given |= 1u << o;
    switch (o) {
    case CLI_ROWS_OF:
        r->of = optarg;
        return CLI_OK;
    case CLI_ROWS_PHASE:
        return read_phase(c, optarg, &r->phase);
    case CLI_ROWS_AFTER:
        return cli_read_number(c, "--after", optarg, 0, INT64_MAX, &r->after);
    case CLI_ROWS_MAX:
        return cli_read_number(c, "--max", optarg, 1, MAX_MOST, &r->max);
    case CLI_ROWS_ALL:
        r->max = UINT64_MAX;
        return CLI_OK;
    case CLI_ROWS_IDS:
        r->ids = 1;
        return CLI_OK;
    case CLI_ROWS_BODY:
        r->body = 1;
        return CLI_OK;
    case CLI_ROWS_REPLY:
        r->reply = 1;
        return CLI_OK;
    case CLI_ROWS_ATTEMPT:
        return cli_read_number(c, "--attempt", optarg, 0, INT32_MAX,
                               &r->attempt);
    case CLI_ROWS_WHY:
        r->why = optarg;
        return CLI_OK;
    default:
        return cli_read_time(c, "--older", optarg, &r->older_ms);
    }
}

static const char *option_name(const struct cli *c, unsigned bits)
{
    const struct cli_option *o;

    for (o = c->command->options; o->name != NULL; o++)
        if (o->id < CLI_OPT_STORE && (bits & 1u << o->id) != 0)
            return o->name;
    return "";
}

static int check_decision(const struct cli *c, struct cli_rows *r)
{
    size_t size;
    int rc = cli_check_why(c, r->why);

    if (rc != CLI_OK)
        return rc;
    cli_make_note(r->do_->name, r->why, r->note);
    size = strlen(r->note);
    if (size > ONCE_ID_MAX)
        return cli_usage(c, "--why is %zu characters too long",
                         size - ONCE_ID_MAX);
    return CLI_OK;
}

static int check_args(const struct cli *c, struct cli_rows *r)
{
    unsigned bad = r->given & ~r->do_->takes,
             missing = r->do_->needs & ~r->given;

    if (bad != 0)
        return cli_usage(c, "--%s does not go with %s", option_name(c, bad),
                         r->do_->name);
    if (missing != 0)
        return cli_usage(c, "%s wants --%s, as %s show prints it", r->do_->name,
                         option_name(c, missing), c->command->name);
    if (r->of != NULL && once__check_name("", r->of, NULL) != ONCE_OK)
        return cli_usage(c,
                         "--%s: it is not 1 to %zu characters of visible "
                         "ASCII",
                         option_name(c, 1u << CLI_ROWS_OF), ONCE_ID_MAX);
    if (r->body + r->reply + c->json > 1)
        return cli_usage(c, "--body, --reply and --json exclude each other");
    return (r->do_->takes & 1u << CLI_ROWS_WHY) != 0 ? check_decision(c, r)
                                                     : CLI_OK;
}

static int read_action(const struct cli *c, int argc, char **argv,
                       const struct cli_rows_action *actions,
                       const struct cli_rows_action *last, struct cli_rows *r)
{
    const struct cli_rows_action *a;
    const char *name = argc > optind ? argv[optind] : "";

    for (a = actions; a < last && strcmp(a->name, name) != 0; a++)
        ;
    if (a == last)
        return cli_usage(c, "say one of %s", c->command->operands);
    r->do_ = a;
    if (argc - optind != 1 + a->one)
        return cli_usage(c,
                         a->one ? "%s wants the number of one row, as ls "
                                  "prints it"
                                : "%s takes no further word",
                         a->name);
    return a->one ? cli_read_number(c, "the row's number", argv[optind + 1], 1,
                                    INT64_MAX, &r->no)
                  : CLI_OK;
}

int cli_rows_run(struct cli *c, int argc, char **argv,
                 const struct cli_rows_action *actions,
                 const struct cli_rows_action *last)
{
    struct cli_rows r = {
        .phase = -1, .max = MAX_DEFAULT, .older_ms = OLDER_DEFAULT_MS};
    struct once__base *b = NULL;
    int rc = cli_read_args(c, argc, argv, take, &r);

    if (rc == CLI_OK)
        rc = read_action(c, argc, argv, actions, last, &r);
    if (rc == CLI_OK)
        rc = check_args(c, &r);
    if (rc == CLI_OK)
        rc = cli_base_open(c, ONCE__BASE_READY, &b);
    if (rc == CLI_OK)
        rc = cli_base_connect(c, b);
    if (rc == CLI_OK)
        rc = r.do_->run(c, b, &r);
    once__base_close(b);
    return rc;
}

/* ---- Output --------------------------------------------------------------- */

void cli_shown(const char *secret, int whole, char out[CLI_SHOWN_SIZE])
{
    uint8_t hash[ONCE_FINGERPRINT_SIZE];

    if (secret == NULL || whole)
        (void)snprintf(out, CLI_SHOWN_SIZE, "%s",
                       secret == NULL ? "-" : secret);
    else if (once__fingerprint_bytes(cli_bytes(secret), hash, NULL) == ONCE_OK)
        cli_hex(hash, HASH_DIGITS, out);
    else
        (void)snprintf(out, CLI_SHOWN_SIZE, "?");
}

void cli_print_header_names(const char *headers)
{
    const char *at = headers;

    for (; *at != '\0'; at = strchr(at, '\n') + 1) {
        if (at != headers)
            fputs(", ", stdout);
        cli_print_text(stdout, (once_bytes){at, strcspn(at, ":\n")});
        if (strchr(at, '\n') == NULL)
            break;
    }
    puts(at == headers ? "-" : "");
}

int cli_json_secret(json_t *o, const char *name, const char *secret, int whole)
{
    char shown[CLI_SHOWN_SIZE], field[32];

    if (secret == NULL)
        return 0;
    cli_shown(secret, 0, shown);
    (void)snprintf(field, sizeof(field), "%s_hash", name);
    if (json_object_set_new(o, field, json_string(shown)) != 0)
        return -1;
    return whole ? json_object_set_new(o, name, json_string(secret)) : 0;
}

/* ---- Errors and decisions ------------------------------------------------- */

int cli_no_row(const struct cli *c, const struct cli_rows *r)
{
    return cli_say(c, CLI_NO, "there is no row %llu",
                   (unsigned long long)r->no);
}

static int say_decided(const struct cli *c, const struct cli_rows *r, int rc,
                       const once_error *err)
{
    const char *name = c->command->name;

    if (rc == ONCE_FREE)
        return cli_no_row(c, r);
    if (rc == ONCE_REFUSED)
        return cli_say(c, CLI_NO,
                       "refused: row %llu has changed since, is under way, or "
                       "%s does not fit its phase. Look again with once %s "
                       "show",
                       (unsigned long long)r->no, r->do_->name, name);
    if (rc == ONCE_EABORTED) {
        (void)cli_trouble(c, rc, err);
        return CLI_UNKNOWN;
    }
    if (rc != ONCE_OK)
        return cli_trouble(c, rc, err);
    if (c->json)
        return cli_print_json(c,
                              json_pack("{s:I,s:s}", "row", (json_int_t)r->no,
                                        "decision", r->do_->name));
    printf("%llu\t%s\n", (unsigned long long)r->no, r->do_->name);
    return cli_flush(c);
}

int cli_decide_row(const struct cli *c, const struct once__base *b,
                   const struct cli_rows *r, const char *id, int phase,
                   cli_rows_decide *decide)
{
    struct cli_decision d;
    once_error err = {0, ""};
    char row[32];
    int rc = cli_intend_row(c, &d, r->do_->name, id, r->attempt, r->why);

    if (rc != CLI_OK)
        return rc;
    rc = decide(once__base_tx(b), (int64_t)r->no, phase, (uint32_t)r->attempt,
                r->do_->decision, r->note, &err);
    rc = say_decided(c, r, rc, &err);
    (void)snprintf(row, sizeof(row), "row %llu", (unsigned long long)r->no);
    return cli_audited(c, &d, rc, row);
}
