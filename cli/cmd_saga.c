/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_saga.c - `once saga`: sagas of a program's own database, listed, shown, and
 * moved on where an operator has to decide.
 *
 * A decision is a compare-and-set on the version that the operator was shown: if
 * anything has happened since, it is refused and nothing changes. Who, when and
 * why are kept with the saga.
 */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "message/saga.h"

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] saga ls [STATE] [--after GID] [--max N | --all]\n"
    "       once [--store URL] saga show GID\n"
    "       once [--store URL] saga retry | abort GID --version N --why TEXT\n"
    "       once [--store URL] saga resolve GID --step N --version N --why TEXT\n"
    "\n"
    "Sagas of a program's database, postgres://... or sqlite:FILE (docs/messages.md).\n"
    "\n"
    "  ls         in the order of their gids; STATE is going, confirming, undoing,\n"
    "             done, undone or stuck. Columns: gid, kind, state, version, since\n"
    "             when it is in this state, deadline, note\n"
    "  show       one saga, its steps, and their calls that are under way\n"
    "  retry      of one that is stuck: make the calls again that failed. What was\n"
    "             refused gets a new id, what is in doubt keeps its own\n"
    "  resolve    of one that is stuck: what failed in this step was done, by hand\n"
    "  abort      of one that is going: undo it\n"
    "\n"
    "  --version N  as show prints it; refused if anything happened since\n"
    "  --step N     which step, from 1\n"
    "  --why TEXT   1 to 512 bytes, kept with your name and the time (UTC)\n"
    "  --audit FILE   the log that it is written to first (or off)\n"
    "  --after GID, --max N   those after this one; at most so many (1000), or --all\n"
    "  --json       one JSON object a line\n"
    "\n"
    "Status 1: refused, or no such saga. What waits for you: once saga ls stuck\n";
/* clang-format on */

enum {
    OPT_VERSION = 1,
    OPT_STEP,
    OPT_WHY,
    OPT_AFTER,
    OPT_MAX,
    OPT_ALL,
    MAX_DEFAULT = 1000,
    MAX_MOST = 1000000000,
    PAGE = 100
};

/* clang-format off */
static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {"version", "", OPT_VERSION},
    {"step", "", OPT_STEP},
    {"why", "", OPT_WHY},
    {"after", "", OPT_AFTER},
    {"max", "", OPT_MAX},
    {"all", NULL, OPT_ALL},
    CLI_AUDIT_OPTION,
    {NULL, NULL, 0},
};
/* clang-format on */

static const char *const saga_states[] = {
    [ONCE__SAGA_GOING] = "going",     [ONCE__SAGA_CONFIRMING] = "confirming",
    [ONCE__SAGA_UNDOING] = "undoing", [ONCE__SAGA_DONE] = "done",
    [ONCE__SAGA_UNDONE] = "undone",   [ONCE__SAGA_STUCK] = "stuck"};

static const char *const step_states[] = {
    [ONCE__STEP_WAITING] = "waiting",
    [ONCE__STEP_TRYING] = "trying",
    [ONCE__STEP_TRIED] = "tried",
    [ONCE__STEP_CONFIRMING] = "confirming",
    [ONCE__STEP_CONFIRMED] = "confirmed",
    [ONCE__STEP_CANCELLING] = "cancelling",
    [ONCE__STEP_CANCELLED] = "cancelled"};

static const char *const row_phases[] = {[ONCE__ROW_READY] = "ready",
                                         [ONCE__ROW_WAITING] = "waiting",
                                         [ONCE__ROW_DONE] = "done",
                                         [ONCE__ROW_DEAD] = "dead",
                                         [ONCE__ROW_INDETERMINATE] =
                                             "indeterminate"};

#define NAME_OF(names, n)                                                      \
    ((n) >= 0 && (size_t)(n) < sizeof(names) / sizeof(names[0]) ? names[n]     \
                                                                : "corrupt")

struct args {
    const char *action, *gid, *why, *after;
    uint64_t version, step, max; /* 0: not given */
    int state;                   /* -1: all */
};

/* ---- Lists ---------------------------------------------------------------- */

static json_t *json_of(const struct once__saga_row *s)
{
    return json_pack("{s:s,s:s,s:s,s:I,s:I,s:o,s:o,s:o,s:o}", "gid", s->gid,
                     "kind", s->kind, "state", NAME_OF(saga_states, s->state),
                     "version", (json_int_t)s->version, "step_count",
                     (json_int_t)s->steps, "started", cli_json_time(s->at_ms),
                     "since", cli_json_time(s->since_ms), "deadline",
                     cli_json_time(s->deadline_ms), "note",
                     cli_json_text(cli_bytes(s->note)));
}

static void print_row(const struct cli *c, const struct once__saga_row *s)
{
    char since[CLI_TIME_SIZE], deadline[CLI_TIME_SIZE];

    cli_time(s->since_ms, since);
    cli_time(s->deadline_ms, deadline);
    printf(c->tty ? "%-36s  %-12s  %-10s  %7u  %-24s  %-24s  "
                  : "%s\t%s\t%s\t%u\t%s\t%s\t",
           s->gid, s->kind, NAME_OF(saga_states, s->state), s->version, since,
           deadline);
    cli_print_text(stdout, cli_bytes(s->note[0] != '\0' ? s->note : "-"));
    putchar('\n');
}

static int print_page(const struct cli *c, const struct once__saga_row *rows,
                      size_t n, int first)
{
    size_t i;
    int rc = CLI_OK;

    if (first && n > 0 && c->tty && !c->json)
        printf("%-36s  %-12s  %-10s  %7s  %-24s  %-24s  %s\n", "GID", "KIND",
               "STATE", "VERSION", "SINCE", "DEADLINE", "NOTE");
    for (i = 0; rc == CLI_OK && i < n; i++)
        if (c->json)
            rc = cli_print_json(c, json_of(&rows[i]));
        else
            print_row(c, &rows[i]);
    return rc == CLI_OK && ferror(stdout) ? cli_flush(c) : rc;
}

static int list(const struct cli *c, const once_tx *tx, const struct args *a)
{
    struct once__saga_row *rows = calloc(PAGE, sizeof(*rows));
    struct once__saga_filter filter = {a->state, a->after};
    once_error err = {0, ""};
    char after[ONCE__GID_SIZE];
    uint64_t left = a->max;
    size_t n = PAGE;
    int rc = CLI_OK, code, first = 1;

    if (rows == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    while (rc == CLI_OK && n == PAGE && left > 0) {
        n = left < PAGE ? (size_t)left : PAGE;
        left -= n;
        code = once__saga_list(tx, &filter, rows, &n, &err);
        rc = code == ONCE_OK ? print_page(c, rows, n, first)
                             : cli_trouble(c, code, &err);
        first = 0;
        if (n > 0)
            (void)snprintf(after, sizeof(after), "%s", rows[n - 1].gid);
        filter.after = after;
    }
    if (rc == CLI_OK && left == 0 && n > 0)
        cli_say(c, 0, "stopped at --max %" PRIu64 "; what follows: --after %s",
                a->max, after);
    free(rows);
    return rc == CLI_OK ? cli_flush(c) : rc;
}

/* ---- One saga ------------------------------------------------------------- */

/* What its last Confirm or Cancel came to, if the saga is stuck in it. */
static const char *failed(const struct once__step *t)
{
    return t->failed == 0                ? ""
           : t->failed == ONCE__ROW_DEAD ? "refused"
                                         : "outcome unknown";
}

static json_t *json_or_null(const char *text)
{
    return text[0] != '\0' ? json_string(text) : json_null();
}

static json_t *json_of_call(const struct once__saga_step_row *t)
{
    if (t->seq == 0)
        return json_null();
    return json_pack("{s:I,s:s,s:I,s:o}", "row", (json_int_t)t->seq, "phase",
                     NAME_OF(row_phases, t->phase), "attempts",
                     (json_int_t)t->attempts, "error",
                     cli_json_text(cli_bytes(t->trouble)));
}

static json_t *json_of_step(const struct once__saga_step_row *t, size_t number)
{
    return json_pack(
        "{s:I,s:s,s:o,s:I,s:s,s:o,s:o,s:I,s:o,s:o}", "step", (json_int_t)number,
        "state", NAME_OF(step_states, t->step.state), "failed",
        json_or_null(failed(&t->step)), "round", (json_int_t)t->step.round,
        "try", t->try_to, "confirm", json_or_null(t->confirm_to), "cancel",
        json_or_null(t->cancel_to), "status", (json_int_t)t->status, "error",
        cli_json_text(cli_bytes(t->error)), "call", json_of_call(t));
}

static int print_json(const struct cli *c, const struct once__saga_row *s,
                      const struct once__saga_step_row *steps)
{
    json_t *value = json_of(s), *array = json_array();
    size_t i;

    for (i = 0; i < s->steps; i++)
        (void)json_array_append_new(array, json_of_step(&steps[i], i + 1));
    (void)json_object_set_new(value, "steps", array);
    return cli_print_json(c, value);
}

static void print_step(const struct cli *c, const struct once__saga_step_row *t,
                       size_t number)
{
    char name[24];

    (void)snprintf(name, sizeof(name), "step %zu", number);
    cli_label(c, name);
    printf("%s", NAME_OF(step_states, t->step.state));
    if (t->step.failed)
        printf(", %s", failed(&t->step));
    printf("  try %s", t->try_to);
    if (t->confirm_to[0] != '\0')
        printf("  confirm %s", t->confirm_to);
    if (t->cancel_to[0] != '\0')
        printf("  cancel %s", t->cancel_to);
    if (t->seq != 0)
        printf("  row %" PRId64 " %s, attempt %u", t->seq,
               NAME_OF(row_phases, t->phase), t->attempts);
    if (t->status != 0)
        printf("  status %d", t->status);
    if (t->error[0] != '\0' || t->trouble[0] != '\0') {
        printf("  ");
        cli_print_text(
            stdout, cli_bytes(t->trouble[0] != '\0' ? t->trouble : t->error));
    }
    putchar('\n');
}

static void print_saga(const struct cli *c, const struct once__saga_row *s,
                       const struct once__saga_step_row *steps)
{
    size_t i;

    cli_line(c, "gid", s->gid);
    cli_line(c, "kind", s->kind);
    cli_line(c, "state", NAME_OF(saga_states, s->state));
    cli_number(c, "version", s->version);
    cli_moment(c, "started", s->at_ms);
    cli_moment(c, "since", s->since_ms);
    cli_moment(c, "deadline", s->deadline_ms);
    cli_label(c, "note");
    cli_print_text(stdout, cli_bytes(s->note[0] != '\0' ? s->note : "-"));
    putchar('\n');
    for (i = 0; i < s->steps; i++)
        print_step(c, &steps[i], i + 1);
}

static int show(const struct cli *c, const once_tx *tx, const struct args *a)
{
    struct once__saga_step_row *steps =
        calloc(ONCE_SAGA_STEPS_MAX, sizeof(*steps));
    struct once__saga_row row;
    once_error err = {0, ""};
    int code, rc;

    if (steps == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    code = once__saga_get(tx, a->gid, &row, steps, &err);
    if (code == ONCE_FREE)
        rc = cli_say(c, CLI_NO, "there is no such saga; see once saga ls");
    else if (code != ONCE_OK)
        rc = cli_trouble(c, code, &err);
    else if (c->json)
        rc = print_json(c, &row, steps);
    else
        print_saga(c, &row, steps), rc = CLI_OK;
    free(steps);
    return rc == CLI_OK ? cli_flush(c) : rc;
}

/* ---- Decisions ------------------------------------------------------------ */

static const struct {
    const char *name;
    int what; /* 0: no decision */
} actions[] = {
    {"ls", 0},
    {"show", 0},
    {"retry", ONCE__SAGA_RETRY},
    {"resolve", ONCE__SAGA_RESOLVE},
    {"abort", ONCE__SAGA_ABORT},
};

static int what_of(const char *action)
{
    size_t i;

    for (i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        if (strcmp(action, actions[i].name) == 0)
            return actions[i].what;
    return -1;
}

/* What became of a decision. */
static int said(const struct cli *c, const struct args *a, int rc,
                const once_error *err)
{
    switch (rc) {
    case ONCE_OK:
        return CLI_OK;
    case ONCE_FREE:
        return cli_say(c, CLI_NO, "there is no such saga; see once saga ls");
    case ONCE_REFUSED:
        return cli_say(c, CLI_NO,
                       "refused: its version is not %" PRIu64
                       " any more, or its state does not allow it. Look again "
                       "with once saga show",
                       a->version);
    case ONCE_EABORTED:
        return cli_say(c, CLI_UNKNOWN,
                       "%s: it may be written or not. Look again with once "
                       "saga show",
                       err->text);
    default:
        return cli_trouble(c, rc, err);
    }
}

static int decide(const struct cli *c, const once_tx *tx, const struct args *a)
{
    char note[CLI_NOTE_SIZE];
    struct cli_decision d;
    struct once__saga_order order = {what_of(a->action), (uint32_t)a->version,
                                     a->step == 0 ? 0 : (size_t)a->step - 1,
                                     note};
    once_error err = {0, ""};
    int rc;

    cli_make_note(a->action, a->why, note);
    rc = cli_intend_row(c, &d, a->action, a->gid, 0, a->why);
    if (rc != CLI_OK)
        return rc;
    rc = once__saga_decide(tx, a->gid, &order, &err);
    rc = cli_audited(c, &d, said(c, a, rc, &err), NULL);
    return rc == CLI_OK ? show(c, tx, a) : rc;
}

/* ---- The command line ----------------------------------------------------- */

static int take(const struct cli *c, void *user, int o)
{
    struct args *a = user;

    switch (o) {
    case OPT_VERSION:
        return cli_read_number(c, "--version", optarg, 1, INT32_MAX,
                               &a->version);
    case OPT_STEP:
        return cli_read_number(c, "--step", optarg, 1, ONCE_SAGA_STEPS_MAX,
                               &a->step);
    case OPT_WHY:
        a->why = optarg;
        return CLI_OK;
    case OPT_AFTER:
        a->after = optarg;
        return CLI_OK;
    case OPT_MAX:
        return cli_read_number(c, "--max", optarg, 1, MAX_MOST, &a->max);
    default:
        a->max = UINT64_MAX;
        return CLI_OK;
    }
}

static int read_state(const struct cli *c, const char *text, int *out)
{
    for (*out = ONCE__SAGA_GOING; *out <= ONCE__SAGA_STUCK; ++*out)
        if (strcmp(text, saga_states[*out]) == 0)
            return CLI_OK;
    return cli_usage(c, "the state is going, confirming, undoing, done, undone "
                        "or stuck");
}

static int check_args(const struct cli *c, const struct args *a)
{
    int what = what_of(a->action), lists = strcmp(a->action, "ls") == 0;

    if (lists ? a->gid != NULL : a->gid == NULL)
        return cli_usage(c, lists ? "ls takes a state"
                                  : "which saga? Give its gid; once saga ls "
                                    "has them");
    if (!lists && (a->after != NULL || a->max != 0))
        return cli_usage(c, "--after, --max and --all are of ls alone");
    if (what == 0 && (a->version != 0 || a->why != NULL))
        return cli_usage(c, "--version and --why are for retry, resolve and "
                            "abort");
    if ((what == ONCE__SAGA_RESOLVE) != (a->step != 0))
        return cli_usage(c, "--step N goes with resolve, and resolve needs it");
    if (what > 0 && a->version == 0)
        return cli_usage(c, "--version N is needed, as once saga show prints "
                            "it");
    return what > 0 ? cli_check_why(c, a->why) : CLI_OK;
}

static int read_args(struct cli *c, int argc, char **argv, struct args *a)
{
    int n, rc = cli_read_args(c, argc, argv, take, a);

    if (rc != CLI_OK)
        return rc;
    n = argc - optind;
    if (n < 1 || n > 2 || what_of(argv[optind]) < 0)
        return cli_usage(c, "say ls, or show, retry, resolve or abort and a "
                            "gid");
    a->action = argv[optind];
    if (n == 2 && strcmp(a->action, "ls") == 0)
        rc = read_state(c, argv[optind + 1], &a->state);
    else if (n == 2)
        a->gid = argv[optind + 1];
    return rc == CLI_OK ? check_args(c, a) : rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct args a = {.state = -1};
    struct once__base *b = NULL;
    int rc = read_args(c, argc, argv, &a);

    if (rc != CLI_OK)
        return rc;
    if (a.max == 0)
        a.max = MAX_DEFAULT;
    rc = cli_base_open(c, ONCE__BASE_READY, &b);
    if (rc == CLI_OK)
        rc = cli_base_connect(c, b);
    if (rc == CLI_OK && what_of(a.action) > 0)
        rc = decide(c, once__base_tx(b), &a);
    else if (rc == CLI_OK && a.gid != NULL)
        rc = show(c, once__base_tx(b), &a);
    else if (rc == CLI_OK)
        rc = list(c, once__base_tx(b), &a);
    once__base_close(b);
    return rc;
}

const struct cli_command cli_cmd_saga = {
    "saga",
    "sagas of a program's database, and those that are stuck",
    help,
    options,
    "ls show retry resolve abort",
    run};
