/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_saga.c - `once messages saga`: sagas of a program's own database, listed,
 * shown, and moved on where an operator has to decide.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "messages/tables/saga.h"
#include "programs/once/messages/rows.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* clang-format off */
static const char help[] =
    "usage: once messages saga ls [STATE] [--after GID] [--max N | --all]\n"
    "       once messages saga show GID\n"
    "       once messages saga retry | abort GID --at-version N --why TEXT\n"
    "       once messages saga resolve GID --step N --at-version N --why TEXT\n"
    "\n"
    "Sagas of a program's database (docs/messages.md).\n"
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
    "  --at-version N  as show prints it; refused if anything happened since\n"
    "  --step N     which step, from 1\n"
    "  --why TEXT   1 to 512 bytes, kept with your name and the time (UTC)\n"
    "  --audit FILE   the log that it is written to first (or off)\n"
    "  --after GID, --max N   those after this one; at most so many (1000), or --all\n"
    "  --json       one JSON object a line\n"
    "\n"
    "Status 1: refused, or no such saga. What waits for you: ls stuck\n";
/* clang-format on */

static const struct cli_option options[] = {
    CLI_MESSAGES_OPTIONS,
    {"at-version", "", .id = CLI_ROWS_SEEN},
    {"step", "", .id = CLI_ROWS_STEP},
    {"why", "", .id = CLI_ROWS_WHY},
    {"after", "", .id = CLI_ROWS_AFTER},
    {"max", "", .id = CLI_ROWS_MAX},
    {"all", NULL, .id = CLI_ROWS_ALL},
    CLI_AUDIT_OPTION,
    {.name = NULL},
};

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

static const char *const row_phases[] = CLI_PHASES;

#define NAME_OF(names, n) cli_name_of(names, COUNT(names), n)

/* clang-format off */
static const struct cli_field fields[] = {
    {"gid", CLI_F_TEXT, CLI_ALL, 36},
    {"kind", CLI_F_TEXT, CLI_ALL, 12},
    {"state", CLI_F_TEXT, CLI_ALL, 10},
    {"version", CLI_F_NUMBER, CLI_ALL, 7},
    {"step_count", CLI_F_NUMBER, CLI_IN_JSON, 0},
    {"started", CLI_F_TIME, CLI_IN_PAGE | CLI_IN_JSON, 0},
    {"since", CLI_F_TIME, CLI_ALL, 24},
    {"deadline", CLI_F_TIME, CLI_ALL, 24},
    {"note", CLI_F_TEXT, CLI_ALL, 0},
    {NULL, 0, 0, 0},
};
/* clang-format on */

/* ---- Steps -------------------------------------------------------------- */

/* A saga, and of `show` its steps. */
struct whole {
    struct once__saga_row row;
    struct once__saga_step_row steps[ONCE_SAGA_STEPS_MAX];
};

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

static void tell_steps(const struct cli *c, const void *row, json_t *o)
{
    const struct whole *w = row;
    json_t *array = o != NULL ? json_array() : NULL;
    size_t i;

    for (i = 0; i < w->row.steps; i++)
        if (o != NULL)
            (void)json_array_append_new(array,
                                        json_of_step(&w->steps[i], i + 1));
        else if (!c->json)
            print_step(c, &w->steps[i], i + 1);
    if (o != NULL)
        (void)json_object_set_new(o, "steps", array);
}

/* ---- Sagas -------------------------------------------------------------- */

static void see_saga(const struct once__saga_row *s, cli_rows_see *see,
                     void *user)
{
    const struct cli_value values[] = {
        {0, s->gid},
        {0, s->kind},
        {0, NAME_OF(saga_states, s->state)},
        {s->version, NULL},
        {s->steps, NULL},
        {s->at_ms, NULL},
        {s->since_ms, NULL},
        {s->deadline_ms, NULL},
        {0, s->note},
    };

    see(user,
        &(struct cli_rows_one){.values = values, .name = s->gid, .row = s});
}

enum { PAGE = 100 };

static int ask_list(const once_tx *tx, const struct cli_rows *r, size_t n,
                    cli_rows_see *see, void *user, once_error *err)
{
    struct once__saga_row *rows = calloc(PAGE, sizeof(*rows));
    struct once__saga_filter f = {r->phase, r->after};
    size_t i;
    int rc;

    if (rows == NULL)
        return ONCE_ENOMEM;
    rc = once__saga_list(tx, &f, rows, &n, err);
    for (i = 0; rc == ONCE_OK && i < n; i++)
        see_saga(&rows[i], see, user);
    free(rows);
    return rc;
}

static int ask(const once_tx *tx, const struct cli_rows *r, size_t n,
               cli_rows_see *see, void *user, once_error *err)
{
    struct whole *w;
    int rc;

    if (r->name == NULL)
        return ask_list(tx, r, n, see, user, err);
    w = calloc(1, sizeof(*w));
    if (w == NULL)
        return ONCE_ENOMEM;
    rc = once__saga_get(tx, r->name, &w->row, w->steps, err);
    if (rc == ONCE_OK)
        see_saga(&w->row, see, user);
    free(w);
    return rc == ONCE_FREE ? ONCE_OK : rc;
}

#define WORDS "ls show retry resolve abort"

static const struct cli_rows_kind kind = {
    .what = ONCE__MESSAGE_SAGA,
    .words = WORDS,
    .phases = saga_states,
    .choose = 0x3f,
    .page = PAGE,
    .fields = fields,
    .ask = ask,
    .rest = tell_steps,
};

static int run(struct cli *c, int argc, char **argv)
{
    return cli_rows_run(c, argc, argv, &kind);
}

const struct cli_command cli_cmd_saga = {
    "messages saga",
    "sagas of a program's database, and those that are stuck",
    help,
    options,
    WORDS " going confirming undoing done undone stuck",
    run};
