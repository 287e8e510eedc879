/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.c - the engine of `once messages outbox`, `parked` and `saga`.
 *
 * A decision is a compare-and-set on what the operator was shown, and is
 * refused for what a relay or a consumer has under way.
 */
#include "programs/once/messages/rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "messages/tables/backend.h"
#include "messages/tables/outbox.h"

enum { MAX_DEFAULT = 1000, MAX_MOST = 1000000000 };

#define OLDER_DEFAULT_MS UINT64_C(604800000)

struct cli_rows_verb {
    const char *name;
    unsigned takes, needs; /* options: BIT(...) */
    int one;               /* a name follows    */
    int (*run)(const struct cli *c, const once_tx *tx, struct cli_rows *r);
};

int64_t cli_rows_number(const char *name)
{
    return name != NULL ? strtoll(name, NULL, 10) : 0;
}

const char *cli_name_of(const char *const *names, size_t n, int number)
{
    return number >= 0 && (size_t)number < n ? names[number] : "corrupt";
}

/* ---- ls and show -------------------------------------------------------- */

struct printing {
    const struct cli *c;
    const struct cli_rows *r;
    size_t n;
    int rc;
    char last[ONCE_ID_SIZE]; /* the name of the last one */
};

static void print_line(void *user, const struct cli_rows_one *one)
{
    struct printing *p = user;

    p->n++;
    (void)snprintf(p->last, sizeof(p->last), "%s", one->name);
    if (p->rc == CLI_OK)
        p->rc = cli_list_line(p->c, p->r->kind->fields, one->values);
}

static int ls(const struct cli *c, const once_tx *tx, struct cli_rows *r)
{
    struct printing p = {.c = c, .r = r};
    uint64_t left = r->max;
    once_error err = {0, ""};
    size_t n;
    int rc;

    p.rc = cli_list_heading(c, r->kind->fields);
    do {
        n = left < r->kind->page ? (size_t)left : r->kind->page;
        p.n = 0;
        rc = r->kind->ask(tx, r, n, print_line, &p, &err);
        if (rc != ONCE_OK)
            return cli_trouble(c, rc, &err);
        left -= p.n;
        r->after = p.last;
    } while (p.rc == CLI_OK && p.n == n && left > 0);
    if (p.rc == CLI_OK && left == 0)
        cli_say(c, 0, "stopped at --max %llu; what follows: --after %s",
                (unsigned long long)r->max, p.last);
    r->after = NULL;
    return p.rc;
}

static int print_bytes(const struct cli *c, once_bytes bytes, const char *none)
{
    if (bytes.data == NULL)
        return cli_say(c, CLI_NO, "%s", none);
    if (bytes.size > 0)
        fwrite(bytes.data, 1, bytes.size, stdout);
    return CLI_OK;
}

static void print_one(void *user, const struct cli_rows_one *one)
{
    struct printing *p = user;
    const struct cli_rows_kind *kind = p->r->kind;
    json_t *o = p->c->json ? cli_fields_json(kind->fields, one->values) : NULL;

    p->n++;
    if (p->r->body)
        p->rc = print_bytes(p->c, one->body,
                            "the row is done: its body was not kept");
    else if (p->r->reply)
        p->rc = print_bytes(p->c, one->reply, "there is no reply");
    else if (!p->c->json)
        cli_fields_print(p->c, kind->fields, one->values);
    if (!p->r->body && !p->r->reply && kind->rest != NULL)
        kind->rest(p->c, one->row, o);
    if (p->c->json)
        p->rc = cli_print_json(p->c, o);
}

static int no_such(const struct cli *c, const struct cli_rows *r)
{
    return cli_say(c, CLI_NO, "there is no %s %s",
                   r->kind->numbered ? "row" : "saga", r->name);
}

static int show(const struct cli *c, const once_tx *tx, struct cli_rows *r)
{
    struct printing p = {.c = c, .r = r};
    once_error err = {0, ""};
    int rc = r->kind->ask(tx, r, 1, print_one, &p, &err);

    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    return p.n == 0 ? no_such(c, r) : p.rc;
}

/* ---- Decisions ---------------------------------------------------------- */

static int say_decided(const struct cli *c, const struct cli_rows *r, int rc,
                       const once_error *err)
{
    switch (rc) {
    case ONCE_OK:
        return CLI_OK;
    case ONCE_FREE:
        return no_such(c, r);
    case ONCE_REFUSED:
        return cli_say(c, CLI_NO,
                       "refused: %s %s has changed since, is under way, or %s "
                       "does not fit its phase. Look again with once %s show",
                       r->kind->numbered ? "row" : "saga", r->name,
                       r->verb->name, c->command->name);
    case ONCE_EABORTED:
        return cli_say(c, CLI_UNKNOWN,
                       "%s: it may be written or not. Look again with once %s "
                       "show",
                       err->text, c->command->name);
    default:
        return cli_trouble_of_decision(c, rc, err);
    }
}

static int print_decided(const struct cli *c, const once_tx *tx,
                         struct cli_rows *r)
{
    if (!r->kind->numbered)
        return show(c, tx, r);
    if (c->json)
        return cli_print_json(c, json_pack("{s:I,s:s}", "row",
                                           (json_int_t)cli_rows_number(r->name),
                                           "decision", r->verb->name));
    printf("%s\t%s\n", r->name, r->verb->name);
    return CLI_OK;
}

static int decide(const struct cli *c, const once_tx *tx, struct cli_rows *r)
{
    once__audit_who who;
    once__message_choice choice = {
        .kind = r->kind->what,
        .verb = r->verb->name,
        .no = r->kind->numbered ? cli_rows_number(r->name) : 0,
        .gid = r->kind->numbered ? NULL : r->name,
        .phase = r->phase,
        .seen = (uint32_t)r->seen,
        .step = (size_t)r->step,
        .why = r->why,
        .program = "once",
        .who = &who};
    once_error err = {0, ""}, log = {0, ""};
    int rc = cli_audit_open(c, &choice.audit);

    if (rc != CLI_OK)
        return rc;
    once__audit_me("command line", &who);
    rc = once__message_decide(tx, &choice, &err, &log);
    once__audit_close(choice.audit);
    rc = say_decided(c, r, rc, &err);
    if (log.code != 0)
        rc = cli_unlogged(c, rc == CLI_OK ? CLI_STORE : rc, &log);
    return rc == CLI_OK ? print_decided(c, tx, r) : rc;
}

/* ---- purge and stats ---------------------------------------------------- */

static int purge(const struct cli *c, const once_tx *tx, struct cli_rows *r)
{
    once_error err = {0, ""};
    uint64_t n = 0;
    int rc = once__outbox_purge(tx, r->older_ms, &n, &err);

    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    if (c->json)
        return cli_print_json(c,
                              json_pack("{s:I}", "forgotten", (json_int_t)n));
    cli_number(c, "forgotten", n);
    return CLI_OK;
}

static void print_count(void *user, const struct cli_rows_one *one)
{
    struct printing *p = user;

    if (p->rc == CLI_OK)
        p->rc = cli_list_line(p->c, p->r->kind->counts, one->values);
}

static int stats(const struct cli *c, const once_tx *tx, struct cli_rows *r)
{
    struct printing p = {.c = c, .r = r};
    once_error err = {0, ""};
    int rc;

    p.rc = cli_list_heading(c, r->kind->counts);
    rc = r->kind->stats(tx, print_count, &p, &err);
    return rc == ONCE_OK ? p.rc : cli_trouble(c, rc, &err);
}

/* ---- The command line --------------------------------------------------- */

#define BIT(o) (1u << CLI_ROWS_##o)
#define DECIDES (BIT(SEEN) | BIT(WHY))

enum {
    RETRIED = 1 << ONCE__ROW_WAITING | 1 << ONCE__ROW_DEAD |
              1 << ONCE__ROW_INDETERMINATE
};

static const struct cli_rows_verb verbs[] = {
    {"ls", BIT(OF) | BIT(AFTER) | BIT(MAX) | BIT(ALL) | BIT(IDS), 0, 0, ls},
    {"show", BIT(IDS) | BIT(BODY) | BIT(REPLY), 0, 1, show},
    {"retry", DECIDES, BIT(SEEN), 1, decide},
    {"drop", DECIDES, BIT(SEEN), 1, decide},
    {"abort", DECIDES, BIT(SEEN), 1, decide},
    {"resolve", DECIDES | BIT(STEP), BIT(SEEN) | BIT(STEP), 1, decide},
    {"purge", BIT(OLDER), 0, 0, purge},
    {"stats", 0, 0, 0, stats},
    {NULL, 0, 0, 0, NULL},
};

static const struct cli_rows_verb retry_many = {
    "retry",
    BIT(OF) | BIT(SINCE) | BIT(RECORDS) | BIT(MAX) | BIT(ALL) | BIT(WHY), 0, 0,
    cli_rows_retry_many};

/* The name of the first of these options that the command has, or NULL. */
static const char *option_of(const struct cli *c, unsigned bits)
{
    const struct cli_option *o = c->command->options;

    while (o->name != NULL &&
           (o->id >= CLI_OPT_STORE || (bits & 1u << o->id) == 0))
        o++;
    return o->name;
}

static int take(const struct cli *c, void *user, int o)
{
    struct cli_rows *r = user;

    r->given |= 1u << o;
    switch (o) {
    case CLI_ROWS_OF:
        r->of = optarg;
        return CLI_OK;
    case CLI_ROWS_AFTER:
        r->after = optarg;
        return CLI_OK;
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
    case CLI_ROWS_SEEN:
        return cli_read_number(c, "what show printed", optarg,
                               !r->kind->numbered, INT32_MAX, &r->seen);
    case CLI_ROWS_STEP:
        return cli_read_number(c, "--step", optarg, 1, ONCE_SAGA_STEPS_MAX,
                               &r->step);
    case CLI_ROWS_WHY:
        r->why = optarg;
        return CLI_OK;
    case CLI_ROWS_SINCE:
        return cli_read_when(c, "--since", optarg, &r->since_ms);
    case CLI_ROWS_RECORDS:
        r->records = optarg;
        return CLI_OK;
    default:
        return cli_read_time(c, "--older", optarg, &r->older_ms);
    }
}

/* A row keeps the note as its error, which is shorter than a note may be. */
static int check_why(const struct cli *c, const struct cli_rows *r)
{
    char note[CLI_NOTE_SIZE];
    int rc = cli_check_why(c, r->why);

    if (rc != CLI_OK)
        return rc;
    cli_make_note(r->verb->name, r->why, note);
    if (r->kind->numbered && strlen(note) > ONCE_ID_MAX)
        return cli_usage(c, "--why is %zu characters too long",
                         strlen(note) - ONCE_ID_MAX);
    return CLI_OK;
}

static int check_options(const struct cli *c, const struct cli_rows *r)
{
    const char *bad = option_of(c, r->given & ~r->verb->takes),
               *missing = option_of(c, r->verb->needs & ~r->given);

    if (bad != NULL)
        return cli_usage(c, "--%s does not go with %s", bad, r->verb->name);
    if (missing != NULL)
        return cli_usage(c, "%s requires --%s, as show prints it",
                         r->verb->name, missing);
    if (r->records != NULL &&
        (r->phase >= 0 || (r->given & ~(BIT(RECORDS) | BIT(WHY))) != 0))
        return cli_usage(c, "the lines of --records have their own phases, and "
                            "no filter goes with them");
    if (r->verb == &retry_many && r->records == NULL && r->phase < 0)
        return cli_usage(c,
                         "say which rows: SEQ and PHASE of one, the PHASE of "
                         "all, or --records FILE");
    if (r->verb == &retry_many && r->phase >= 0 &&
        (1 << r->phase & RETRIED) == 0)
        return cli_usage(c, "retry is for waiting, dead or indeterminate rows");
    if (r->of != NULL && once__check_name("", r->of, NULL) != ONCE_OK)
        return cli_usage(c,
                         "--%s requires 1 to %zu characters of visible "
                         "ASCII",
                         option_of(c, BIT(OF)), ONCE_ID_MAX);
    if (r->body + r->reply + c->json > 1)
        return cli_usage(c, "--body, --reply and --json exclude each other");
    return (r->verb->takes & BIT(WHY)) != 0 ? check_why(c, r) : CLI_OK;
}

static int read_phase(const struct cli *c, struct cli_rows *r, const char *text)
{
    char all[128] = "";
    size_t n = 0;
    int i;

    for (i = 0; r->kind->choose >> i != 0; i++) {
        if ((r->kind->choose >> i & 1) == 0)
            continue;
        if (strcmp(r->kind->phases[i], text) == 0) {
            r->phase = i;
            return CLI_OK;
        }
        n += (size_t)snprintf(all + n, sizeof(all) - n, " %s",
                              r->kind->phases[i]);
    }
    return cli_usage(c, "the phase is one of%s", all);
}

static int check_number(const struct cli *c, const struct cli_rows *r,
                        const char *what, const char *text)
{
    uint64_t n;

    return r->kind->numbered && text != NULL
               ? cli_read_number(c, what, text, 0, INT64_MAX, &n)
               : CLI_OK;
}

static int words_of(const struct cli_rows_verb *v,
                    const struct cli_rows_kind *kind)
{
    return 1 + v->one + (v->run == decide && kind->numbered);
}

static const char *requires(const struct cli_rows_verb *v,
                            const struct cli_rows_kind *kind)
{
    if (words_of(v, kind) == 3)
        return "the number and the phase of one, as ls prints them";
    if (v->one)
        return "the number or the gid of one, as ls prints it";
    return "no further word";
}

static int read_words(const struct cli *c, struct cli_rows *r, int n,
                      char **words)
{
    const struct cli_rows_verb *v = verbs;
    int rc = CLI_OK;

    while (n > 0 && v->name != NULL &&
           (strcmp(v->name, words[0]) != 0 ||
            !cli_has_word(r->kind->words, v->name)))
        v++;
    if (n == 0 || v->name == NULL)
        return cli_usage(c, "say one of %s", r->kind->words);
    if (r->kind->what == ONCE__MESSAGE_OUTBOX && n < 3 &&
        strcmp(v->name, "retry") == 0 && (n == 1 || !once__is_digit(*words[1])))
        v = &retry_many;
    r->verb = v;
    if (v == &retry_many && n == 2)
        rc = read_phase(c, r, words[1]);
    if (rc != CLI_OK || v == &retry_many)
        return rc == CLI_OK ? check_options(c, r) : rc;
    if (n != words_of(v, r->kind) && (v->run != ls || n != 2))
        return cli_usage(c, "%s requires %s", v->name, requires(v, r->kind));
    if (v->one)
        r->name = words[1];
    if (n == 3 || (n == 2 && !v->one))
        rc = read_phase(c, r, words[n - 1]);
    if (rc == CLI_OK)
        rc = check_number(c, r, "the row's number", r->name);
    if (rc == CLI_OK)
        rc = check_number(c, r, "--after", r->after);
    return rc == CLI_OK ? check_options(c, r) : rc;
}

int cli_rows_run(struct cli *c, int argc, char **argv,
                 const struct cli_rows_kind *kind)
{
    struct cli_rows r = {.kind = kind,
                         .phase = -1,
                         .max = MAX_DEFAULT,
                         .older_ms = OLDER_DEFAULT_MS};
    struct once__base *b = NULL;
    int rc = cli_read_args(c, argc, argv, take, &r);

    if (rc == CLI_OK)
        rc = read_words(c, &r, argc - optind, argv + optind);
    if (rc == CLI_OK && r.records != NULL)
        rc = cli_rows_read(c, r.records, &r.list);
    if (rc == CLI_OK)
        rc = cli_base_open(c, ONCE__BASE_READY, &b);
    if (rc == CLI_OK)
        rc = cli_base_connect(c, b);
    if (rc == CLI_OK)
        rc = r.verb->run(c, once__base_tx(b), &r);
    once__base_close(b);
    free(r.list.rows);
    return rc == CLI_OK ? cli_flush(c) : rc;
}
