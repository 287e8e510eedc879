/* SPDX-License-Identifier: Apache-2.0 */
/*
 * messages.c - what a program's database has of messages: rows of its outbox,
 * parked messages, sagas; and deciding about one (operate/messages/decide.c).
 *
 * A database has one connection, which is made when it is asked for and used by
 * one request at a time; one that does not answer is ended (main.c, each second).
 * Meanwhile other requests do not wait for it: they are told so, that a database
 * which is silent hides neither the others nor the stores.
 * Ids and keys are shown as the beginning of their SHA-256, since who has one
 * can use it; bodies are not shown. Questions are POSTs, so that no id stands in
 * an address.
 */
#include "programs/console/console.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/error.h"
#include "messages/relay/base.h"
#include "messages/tables/saga.h"
#include "operate/messages/decide.h"

enum { ANSWER_MS = 8000, BUSY_S = 1, PAGE = 100, HASH_DIGITS = 16 };

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char *const kinds[] = {
    [ONCE__MESSAGE_OUTBOX] = "outbox",
    [ONCE__MESSAGE_PARKED] = "parked",
    [ONCE__MESSAGE_SAGA] = "saga",
};
static const char *const phases[] = {
    [ONCE__ROW_READY] = "ready",
    [ONCE__ROW_WAITING] = "waiting",
    [ONCE__ROW_DONE] = "done",
    [ONCE__ROW_DEAD] = "dead",
    [ONCE__ROW_INDETERMINATE] = "indeterminate",
};
static const char *const states[] = {
    [ONCE__SAGA_GOING] = "going",     [ONCE__SAGA_CONFIRMING] = "confirming",
    [ONCE__SAGA_UNDOING] = "undoing", [ONCE__SAGA_DONE] = "done",
    [ONCE__SAGA_UNDONE] = "undone",   [ONCE__SAGA_STUCK] = "stuck",
};
static const char *const step_states[] = {
    [ONCE__STEP_WAITING] = "waiting",
    [ONCE__STEP_TRYING] = "trying",
    [ONCE__STEP_TRIED] = "tried",
    [ONCE__STEP_CONFIRMING] = "confirming",
    [ONCE__STEP_CONFIRMED] = "confirmed",
    [ONCE__STEP_CANCELLING] = "cancelling",
    [ONCE__STEP_CANCELLED] = "cancelled",
};

/* Of what is asked for. */
struct question {
    int kind;         /* enum once__message_kind */
    int phase;        /* -1: all */
    const char *of;   /* route or consumer, or NULL: all */
    const char *name; /* the one, or the one before; or NULL */
    size_t limit;
};

/* ---- One connection at a time -------------------------------------------- */

int console_database_open(struct console_database *d, once_error *err)
{
    pthread_mutex_init(&d->lock, NULL);
    return once__base_open(d->url, ONCE__BASE_READY, &d->base, err);
}

void console_database_close(struct console_database *d)
{
    once__base_close(d->base);
}

void console_databases_watch(struct console *con)
{
    size_t i;

    for (i = 0; i < con->n_databases; i++)
        once__base_watch(con->databases[i].base, ANSWER_MS);
}

/* Until when a request waits for the connections that others use. */
static struct timespec wait_until(void)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += BUSY_S;
    return until;
}

/* ONCE_OK: the connection is the caller's, until leave(). */
static int enter(struct console_database *d, const struct timespec *until,
                 once_error *err)
{
    int rc;

    if (pthread_mutex_clocklock(&d->lock, CLOCK_MONOTONIC, until) != 0)
        return once__fail(err, ONCE_EAWAY,
                          "it is still being asked, and has not answered");
    rc = once__base_connect(d->base, err);
    if (rc != ONCE_OK)
        pthread_mutex_unlock(&d->lock);
    return rc;
}

static void leave(struct console_database *d)
{
    pthread_mutex_unlock(&d->lock);
}

/* ---- JSON ---------------------------------------------------------------- */

static const char *word(const char *const *words, size_t n, int number)
{
    return number >= 0 && (size_t)number < n ? words[number] : "corrupt";
}

static json_t *text_or_null(const char *text)
{
    return text != NULL && text[0] != '\0'
               ? cli_json_text((once_bytes){text, strlen(text)})
               : json_null();
}

/* The beginning of its SHA-256. */
static json_t *hash_or_null(const char *secret)
{
    uint8_t hash[ONCE__AUDIT_HASH];
    char hex[2 * ONCE__AUDIT_HASH + 1];

    if (secret == NULL)
        return json_null();
    once__audit_digest((once_bytes){secret, strlen(secret)}, hash);
    once__hex(hash, HASH_DIGITS / 2, hex);
    return json_string(hex);
}

static json_t *json_message(int64_t no, const char *of, const char *phase,
                            uint32_t seen, const once_message *m)
{
    return json_pack("{s:o, s:o, s:s, s:I, s:o, s:o, s:o, s:I}", "name",
                     json_sprintf("%lld", (long long)no), "of",
                     text_or_null(of), "phase", phase, "seen", (json_int_t)seen,
                     "id", hash_or_null(m->id), "key", hash_or_null(m->key),
                     "type", text_or_null(m->type), "bytes",
                     (json_int_t)m->body.size);
}

static json_t *json_outgoing(const struct once__outgoing *o, uint64_t now_ms)
{
    int leased = o->phase == ONCE__ROW_READY && o->lease_ms > now_ms;
    json_t *one =
        json_message(o->seq, o->m.route,
                     leased ? "leased" : word(phases, COUNT(phases), o->phase),
                     o->attempts, &o->m);

    json_object_set_new(one, "at", cli_json_time(o->at_ms));
    json_object_set_new(one, "due",
                        cli_json_time(leased ? o->lease_ms : o->due_ms));
    json_object_set_new(one, "text", text_or_null(o->error));
    json_object_set_new(one, "status",
                        o->status ? json_integer(o->status) : json_null());
    json_object_set_new(one, "in_saga", json_boolean(o->saga != NULL));
    return one;
}

static json_t *json_parked(const struct once__parked *p)
{
    json_t *one = json_message(p->no, p->m.consumer,
                               word(phases, COUNT(phases), p->state),
                               p->m.attempt, &p->m);

    json_object_set_new(one, "at", cli_json_time(p->at_ms));
    json_object_set_new(
        one, "due",
        cli_json_time(p->state == ONCE_PARKED_WAITING ? p->due_ms : 0));
    json_object_set_new(one, "text", text_or_null(p->error));
    return one;
}

static json_t *json_saga(const struct once__saga_row *s)
{
    return json_pack(
        "{s:o, s:o, s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "name",
        text_or_null(s->gid), "of", text_or_null(s->kind), "phase",
        word(states, COUNT(states), s->state), "seen", (json_int_t)s->version,
        "step_count", (json_int_t)s->steps, "at", cli_json_time(s->at_ms),
        "since", cli_json_time(s->since_ms), "due",
        cli_json_time(s->deadline_ms), "text", text_or_null(s->note));
}

static json_t *json_step(const struct once__saga_step_row *t)
{
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "state",
        word(step_states, COUNT(step_states), t->step.state), "failed",
        t->step.failed == 0                ? json_null()
        : t->step.failed == ONCE__ROW_DEAD ? json_string("refused")
                                           : json_string("outcome unknown"),
        "try", text_or_null(t->try_to), "confirm", text_or_null(t->confirm_to),
        "cancel", text_or_null(t->cancel_to), "text",
        text_or_null(t->trouble[0] != '\0' ? t->trouble : t->error), "status",
        t->status ? json_integer(t->status) : json_null());
}

/* ---- How many there are -------------------------------------------------- */

static int count_outbox(struct console_database *d, json_t *list,
                        once_error *err)
{
    struct once__outbox_count *found = NULL;
    size_t n = 0, i;
    int rc = ONCE__ASK(d->base, once__outbox_stats, 0, &found, &n, err);

    for (i = 0; rc == ONCE_OK && i < n; i++)
        json_array_append_new(
            list,
            json_pack("{s:o, s:I, s:I, s:I, s:I, s:I}", "of",
                      text_or_null(found[i].route), "ready",
                      (json_int_t)found[i].n[ONCE__ROW_READY], "waiting",
                      (json_int_t)found[i].n[ONCE__ROW_WAITING], "dead",
                      (json_int_t)found[i].n[ONCE__ROW_DEAD], "indeterminate",
                      (json_int_t)found[i].n[ONCE__ROW_INDETERMINATE],
                      "oldest_ms", (json_int_t)found[i].oldest_ms));
    free(found);
    return rc;
}

static int count_parked(struct console_database *d, json_t *list,
                        once_error *err)
{
    struct once__parked_count *found = NULL;
    size_t n = 0, i;
    int rc = ONCE__ASK(d->base, once__parked_stats, &found, &n, err);

    for (i = 0; rc == ONCE_OK && i < n; i++)
        json_array_append_new(
            list, json_pack("{s:o, s:I, s:I, s:I, s:I}", "of",
                            text_or_null(found[i].consumer), "waiting",
                            (json_int_t)found[i].waiting, "dead",
                            (json_int_t)found[i].dead, "indeterminate",
                            (json_int_t)found[i].indeterminate, "oldest_ms",
                            (json_int_t)found[i].oldest_ms));
    free(found);
    return rc;
}

static int count_sagas(struct console_database *d, json_t *o, once_error *err)
{
    struct once__saga_count n;
    int rc = ONCE__ASK(d->base, once__saga_stats, &n, err), i;

    for (i = ONCE__SAGA_GOING; rc == ONCE_OK && i <= ONCE__SAGA_STUCK; i++)
        if (i != ONCE__SAGA_DONE && i != ONCE__SAGA_UNDONE)
            json_object_set_new(o, states[i], json_integer((json_int_t)n.n[i]));
    if (rc == ONCE_OK)
        json_object_set_new(o, "stuck_ms",
                            json_integer((json_int_t)n.stuck_ms));
    return rc;
}

static int count_all(struct console_database *d, json_t *outbox, json_t *parked,
                     json_t *sagas, once_error *err)
{
    int rc = count_outbox(d, outbox, err);

    if (rc == ONCE_OK)
        rc = count_parked(d, parked, err);
    if (rc == ONCE_OK)
        rc = count_sagas(d, sagas, err);
    return rc;
}

static json_t *json_database(struct console_database *d,
                             const struct timespec *until)
{
    json_t *outbox = json_array(), *parked = json_array(),
           *sagas = json_object();
    once_error err = {0, ""};
    int rc = enter(d, until, &err);

    if (rc == ONCE_OK) {
        rc = count_all(d, outbox, parked, sagas, &err);
        leave(d);
    }
    return json_pack("{s:s, s:b, s:o, s:o, s:o, s:o}", "name", d->name,
                     "answers", rc == ONCE_OK, "trouble",
                     rc == ONCE_OK
                         ? json_null()
                         : text_or_null(err.text[0] ? err.text : once_text(rc)),
                     "outbox", outbox, "parked", parked, "sagas", sagas);
}

enum MHD_Result console_databases(struct console_request *ask)
{
    const struct timespec until = wait_until(); /* for all of them together */
    json_t *list = json_array();
    size_t i;

    for (i = 0; i < ask->con->n_databases; i++)
        json_array_append_new(list,
                              json_database(&ask->con->databases[i], &until));
    return console_reply(ask, MHD_HTTP_OK,
                         json_pack("{s:o, s:o}", "now",
                                   cli_json_time(cli_now_ms()), "databases",
                                   list));
}

/* ---- Lists, and one ------------------------------------------------------ */

static int number_of(const char *const *words, size_t n, const char *text)
{
    size_t i;

    for (i = 0; text != NULL && i < n; i++)
        if (words[i] != NULL && strcmp(words[i], text) == 0)
            return (int)i;
    return -1;
}

static int is_number(const char *text)
{
    return strlen(text) <= 18 && strspn(text, "0123456789") == strlen(text);
}

/* NULL, or the member that is wrong. `name`: which member has it. */
static const char *read_question(const json_t *body, const char *name,
                                 struct question *q)
{
    int bad = 0;
    const char *phase = console_text(body, "phase", &bad);

    q->kind = number_of(kinds, COUNT(kinds), console_text(body, "kind", &bad));
    if (bad || q->kind < 0)
        return "kind";
    q->phase = q->kind == ONCE__MESSAGE_SAGA
                   ? number_of(states, COUNT(states), phase)
                   : number_of(phases, COUNT(phases), phase);
    if (phase != NULL && (q->phase < 0 || (q->kind == ONCE__MESSAGE_PARKED &&
                                           (q->phase == ONCE__ROW_READY ||
                                            q->phase == ONCE__ROW_DONE))))
        return "phase";
    q->of = console_text(body, "of", &bad);
    if (bad ||
        (q->of != NULL && (q->of[0] == '\0' || strlen(q->of) > ONCE_ID_MAX)))
        return "of";
    q->name = console_text(body, name, &bad);
    if (bad || (q->name != NULL &&
                (strlen(q->name) > ONCE_ID_MAX ||
                 (q->kind != ONCE__MESSAGE_SAGA && !is_number(q->name)))))
        return name;
    q->limit = (size_t)console_number(body, "limit", 1, PAGE, 50, &bad);
    return bad ? "limit" : NULL;
}

static int64_t number(const char *name)
{
    return name != NULL ? strtoll(name, NULL, 10) : 0;
}

static int list_outbox(struct console_database *d, const struct question *q,
                       int one, json_t *list, once_error *err)
{
    struct once__outbox_filter f = {q->of, q->phase, number(q->name), q->limit};
    struct once__outgoing_list l;
    size_t i;
    int rc =
        one ? ONCE__ASK(d->base, once__outbox_get, number(q->name), &l, err)
            : ONCE__ASK(d->base, once__outbox_list, &f, &l, err);

    if (rc != ONCE_OK)
        return rc;
    for (i = 0; i < l.n; i++)
        json_array_append_new(list, json_outgoing(&l.rows[i], l.now_ms));
    once__outgoing_clear(&l);
    return rc;
}

static int list_parked(struct console_database *d, const struct question *q,
                       int one, json_t *list, once_error *err)
{
    struct once__parked_filter f = {q->of, q->phase < 0 ? 0 : q->phase,
                                    number(q->name), q->limit};
    struct once__parked_list l;
    size_t i;
    int rc =
        one ? ONCE__ASK(d->base, once__parked_get, number(q->name), &l, err)
            : ONCE__ASK(d->base, once__parked_list, &f, &l, err);

    if (rc != ONCE_OK)
        return rc;
    for (i = 0; i < l.n; i++)
        json_array_append_new(list, json_parked(&l.rows[i]));
    once__parked_clear(&l);
    return rc;
}

static int list_sagas(struct console_database *d, const struct question *q,
                      json_t *list, once_error *err)
{
    struct once__saga_row *rows = calloc(PAGE, sizeof(*rows));
    struct once__saga_filter f = {q->phase, q->name};
    size_t n = q->limit, i;
    int rc = ONCE_ENOMEM;

    if (rows != NULL)
        rc = ONCE__ASK(d->base, once__saga_list, &f, rows, &n, err);
    for (i = 0; rc == ONCE_OK && i < n; i++)
        json_array_append_new(list, json_saga(&rows[i]));
    free(rows);
    return rc;
}

static int one_saga(struct console_database *d, const char *gid, json_t *list,
                    once_error *err)
{
    struct whole {
        struct once__saga_row row;
        struct once__saga_step_row steps[ONCE_SAGA_STEPS_MAX];
    } *w = calloc(1, sizeof(*w));
    json_t *one, *steps;
    size_t i;
    int rc = ONCE_ENOMEM;

    if (w != NULL)
        rc = ONCE__ASK(d->base, once__saga_get, gid, &w->row, w->steps, err);
    if (rc == ONCE_OK) {
        one = json_saga(&w->row);
        steps = json_array();
        for (i = 0; i < w->row.steps && i < ONCE_SAGA_STEPS_MAX; i++)
            json_array_append_new(steps, json_step(&w->steps[i]));
        json_object_set_new(one, "steps", steps);
        json_array_append_new(list, one);
    }
    free(w);
    return rc == ONCE_FREE ? ONCE_OK : rc;
}

static int list_of(struct console_database *d, const struct question *q,
                   int one, json_t *list, once_error *err)
{
    const struct timespec until = wait_until();
    int rc = enter(d, &until, err);

    if (rc != ONCE_OK)
        return rc;
    if (q->kind == ONCE__MESSAGE_OUTBOX)
        rc = list_outbox(d, q, one, list, err);
    else if (q->kind == ONCE__MESSAGE_PARKED)
        rc = list_parked(d, q, one, list, err);
    else
        rc =
            one ? one_saga(d, q->name, list, err) : list_sagas(d, q, list, err);
    leave(d);
    return rc;
}

static enum MHD_Result wrong(struct console_request *ask, const char *member)
{
    return console_problem(ask, MHD_HTTP_BAD_REQUEST, "invalid",
                           "%s is not understood.", member);
}

enum MHD_Result console_rows(struct console_request *ask)
{
    struct question q;
    const char *bad = read_question(ask->body, "after", &q);
    json_t *list, *last;
    once_error err = {0, ""};
    int rc;

    if (bad != NULL)
        return wrong(ask, bad);
    list = json_array();
    rc = list_of(ask->database, &q, 0, list, &err);
    if (rc != ONCE_OK) {
        json_decref(list);
        return console_store_error(ask, rc, &err);
    }
    last = json_array_size(list) == q.limit
               ? json_object_get(json_array_get(list, q.limit - 1), "name")
               : NULL;
    return console_reply(ask, MHD_HTTP_OK,
                         json_pack("{s:o, s:o, s:O?}", "now",
                                   cli_json_time(cli_now_ms()), "rows", list,
                                   "next", last));
}

enum MHD_Result console_row(struct console_request *ask)
{
    struct question q;
    const char *bad = read_question(ask->body, "name", &q);
    json_t *list, *one;
    once_error err = {0, ""};
    int rc;

    if (bad != NULL || q.name == NULL)
        return wrong(ask, bad != NULL ? bad : "name");
    list = json_array();
    rc = list_of(ask->database, &q, 1, list, &err);
    one = json_incref(json_array_get(list, 0));
    json_decref(list);
    if (rc != ONCE_OK)
        return console_store_error(ask, rc, &err);
    if (one == NULL)
        return console_problem(ask, MHD_HTTP_NOT_FOUND, "gone",
                               "It is not there. It may be done, and "
                               "forgotten.");
    return console_reply(ask, MHD_HTTP_OK,
                         json_pack("{s:o, s:o}", "now",
                                   cli_json_time(cli_now_ms()), "row", one));
}

/* ---- Deciding ------------------------------------------------------------ */

/* A row keeps the note as its error, which is shorter than a note may be. */
static int is_too_long(const once__message_choice *c)
{
    char note[ONCE__NOTE_SIZE];

    once__note_make(c->who, c->program, NULL, c->verb, c->why, note);
    return c->kind != ONCE__MESSAGE_SAGA && strlen(note) > ONCE_ID_MAX;
}

static const char *read_choice(struct console_request *ask,
                               once__message_choice *c)
{
    struct question q;
    int bad = 0;
    const char *wrong_one = read_question(ask->body, "name", &q);

    if (wrong_one != NULL || q.name == NULL)
        return wrong_one != NULL ? wrong_one : "name";
    *c = (once__message_choice){
        .kind = q.kind,
        .verb = console_text(ask->body, "verb", &bad),
        .no = q.kind == ONCE__MESSAGE_SAGA ? 0 : number(q.name),
        .gid = q.kind == ONCE__MESSAGE_SAGA ? q.name : NULL,
        .phase = q.phase,
        .why = console_text(ask->body, "why", &bad),
        .program = "once-console",
        .who = &ask->caller.who,
        .audit = ask->con->audit};
    if (bad || c->verb == NULL || strlen(c->verb) > 16)
        return "verb";
    if (!once__why_good(c->why) || is_too_long(c))
        return "why: 1 to 512 bytes on one line are needed, of a row less; it";
    if (q.kind != ONCE__MESSAGE_SAGA && q.phase < 0)
        return "phase";
    if (json_object_get(ask->body, "seen") == NULL)
        return "seen";
    c->seen =
        (uint32_t)console_number(ask->body, "seen", 0, INT32_MAX, 0, &bad);
    c->step = (size_t)console_number(ask->body, "step", 1, ONCE_SAGA_STEPS_MAX,
                                     0, &bad);
    return bad ? "seen or step" : NULL;
}

static enum MHD_Result answer(struct console_request *ask, int rc,
                              const once_error *err, const once_error *log)
{
    switch (rc) {
    case ONCE_OK:
        return console_reply(ask, MHD_HTTP_OK,
                             json_pack("{s:b, s:s?}", "ok", 1, "audit_lacks",
                                       log->code != 0 ? log->text : NULL));
    case ONCE_FREE:
        return console_problem(ask, MHD_HTTP_NOT_FOUND, "gone",
                               "It is not there any more.");
    case ONCE_REFUSED:
        return console_problem(ask, MHD_HTTP_CONFLICT, "state",
                               "It has changed since you looked, is under way, "
                               "or this does not fit its state.");
    case ONCE_EABORTED:
        return console_problem(ask, MHD_HTTP_SERVICE_UNAVAILABLE, "unknown",
                               "The database did not answer: it may have been "
                               "decided. Look again.");
    default:
        return console_store_error(ask, rc, err);
    }
}

enum MHD_Result console_message_decision(struct console_request *ask)
{
    const struct timespec until = wait_until();
    struct console_database *d = ask->database;
    once_error err = {0, ""}, log = {0, ""};
    once__message_choice choice;
    const char *bad = read_choice(ask, &choice);
    int rc;

    if (bad != NULL)
        return wrong(ask, bad);
    rc = enter(d, &until, &err);
    if (rc == ONCE_OK) {
        rc = ONCE__ASK(d->base, once__message_decide, &choice, &err, &log);
        leave(d);
    }
    return answer(ask, rc, &err, &log);
}
