/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange.c - the life of one request in front of a handler.
 *
 *    READ ---------> CLAIM ---------> OWNER ---------> STORE ----------> SEND
 *     |  body whole    |    granted     |    answered    |   answered     ^
 *     |                |                |    or broken   |   by the store |
 *     | key, scope,    | in flight,     |                | dry run,       |
 *     | size refused   | replay, ...    +- abandoned     | and broken     |
 *     +--------------- | ---------------------------------|--------------->|
 *                      +---------------------------------|--------------->+
 *    PASS <- other method, no key,                       v                ^
 *     |      dry run, unprotected                       DROP              |
 *     +-------------------- answered -------------------------------------+
 *
 *    CLAIM -> PROBE -> DECIDE -> as CLAIM: unknown; the caller asks the service,
 *                                and what was applied is recorded
 *
 * The engine's thread writes `rc`, sets `ready` and calls `wake`, and touches
 * nothing else. All the rest belongs to the thread that serves the request.
 *
 * It refuses to let an answer out before its record is durable, and to take a
 * handler that was called for one that was not.
 */
#include "calls/guard/guard.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/error.h"
#include "calls/http/json.h"

enum state { PASS, READ, CLAIM, PROBE, DECIDE, OWNER, STORE, SEND, DROP };

/* What the service was asked about an unknown outcome, and what follows. */
struct probe {
    int asked, place; /* -1: none                                           */
    uint64_t fence;   /* that the claim has seen                            */
    once_op op;       /* the decision, and its bytes                        */
    void *result;
    once_attempt *again; /* claims when the decision was answered           */
    int undecided;       /* it was not, or nothing was claimed              */
};

/* What makes the name, but for the key, which is in the body. The head has no
 * more than that, and with it the body's encoding. */
struct caller {
    once_bytes scope, realm;
    once__request_head head;
    char bytes[]; /* to which they point */
};

struct once_exchange {
    once_guard *guard;
    enum state state;
    once__http_decision
        decision;          /* what the client gets, as far as it is known */
    once__response stored; /* for a replay, borrowed from the record      */
    int would;             /* enum once__would, of a dry run              */
    uint64_t apart_s;      /* since the first request, if has_apart       */
    int has_apart;

    uint64_t born_ms; /* of a key that says it                             */
    char *path;       /* as the client sent it; NULL without memory        */
    int has_id;       /* the caller has drawn the owner's token            */
    uint8_t id[ONCE_TOKEN_SIZE];
    uint8_t name[ONCE_NAME_SIZE];
    char hash[17];
    char record[ONCE__RECORD_TEXT];
    char label[ONCE_LABEL_MAX];
    size_t n_label;
    uint8_t trace[ONCE_TRACE_SIZE];
    once__fingerprint *fingerprint; /* NULL: `print` has it already         */
    uint8_t print[ONCE_FINGERPRINT_SIZE];
    struct caller *caller; /* NULL: the key is not in the body              */
    char key_line[ONCE__KEY_LINE];
    int collect; /* 1: the body, in `json`                                 */
    once__json_text json;
    size_t body; /* bytes so far                                          */
    int too_large;
    int not_allowed;
    int look;         /* it only asks what became of the key               */
    uint32_t look_ms; /* and for how long it waits                         */
    char detail[252];

    once_attempt *attempt;
    uint32_t number;
    once_http_wake *wake;
    void *user;
    atomic_int
        ready; /* the engine has answered: `rc` is there, which is written
                       * before with release and read after with acquire    */
    /* For the one who cancels. Both are sequentially consistent: each side writes
     * one and then reads the other. */
    _Atomic(once_attempt *) claiming;
    atomic_int cancelled;
    int rc;

    /* After a handler that broke: what is recorded, if anything is. */
    once_attempt *after;
    int found; /* it has an outcome */

    struct probe probe;
    int observed; /* of the handler: enum once__observed                    */
    int action;   /* what the engine was asked: enum once__verdict_action   */
    struct once__reply reply;
};

/* ---- The engine's thread ------------------------------------------------ */

static void answered(once_attempt *a, int rc, void *user)
{
    once_exchange *x = user;
    once_http_wake *wake = x->wake;
    void *whom = x->user;

    (void)a;
    x->rc = rc;
    atomic_store_explicit(&x->ready, 1, memory_order_release);
    wake(whom); /* From here on `x` may be gone. */
}

static void looked(once_attempt *a, int rc, void *user)
{
    once_exchange *x = user;
    once_http_wake *wake = x->wake;
    void *whom = x->user;

    (void)a;
    x->found = rc == ONCE_REPLAY;
    atomic_store_explicit(&x->ready, 1, memory_order_release);
    wake(whom);
}

/*
 * A handler that broke is given up, also one whose end was told before. The store
 * says the same to both: one look more tells them apart.
 */
static void given_up(once_attempt *a, int rc, void *user)
{
    once_exchange *x = user;
    once_engine *e = x->guard->engine;

    x->rc = rc;
    if (rc == ONCE_OK && once_look_start(x->after, looked, x) == ONCE_OK)
        once_engine_wake(e); /* From here on `x` may be gone. */
    else
        answered(a, rc, user);
}

/*
 * The store has answered a decision, or has not. The first decides: one claim
 * more, of a new attempt, says what stands recorded.
 */
static void decided(once_op *op)
{
    once_exchange *x = op->user;
    once_http_wake *wake = x->wake;
    once_engine *e = x->guard->engine;
    void *whom = x->user;

    if (once__probe_answered(op->rc)) {
        atomic_store(&x->claiming, x->probe.again);
        if (atomic_load(&x->cancelled))
            once_attempt_cancel(x->probe.again);
        if (once_claim_start(x->probe.again, answered, x) == ONCE_OK) {
            once_engine_wake(e);
            return;
        }
    }
    x->probe.undecided = 1;
    atomic_store_explicit(&x->ready, 1, memory_order_release);
    wake(whom);
}

static void released(once_attempt *a, int rc, void *user)
{
    (void)rc;
    (void)user;
    once_attempt_free(a);
}

/* ---- The request -------------------------------------------------------- */

const char *once_http_find(const once_http_request *r, const char *name)
{
    size_t i;

    for (i = 0; i < r->n; i++)
        if (once__same_name(once__text(r->headers[i].name), once__text(name)))
            return r->headers[i].value;
    return NULL;
}

int once_http_is_internal(const char *name)
{
    return once__header_internal(once__text(name));
}

static uint64_t clock_ms(clockid_t which)
{
    struct timespec t;

    (void)clock_gettime(which, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* What a dry run would have done: the end of the attempt decides again. */
static void note_would(once_exchange *x, const once_record *record)
{
    x->would = once__would_passed(x->decision.would);
    x->has_apart =
        once__apart(x->would, record, clock_ms(CLOCK_REALTIME), &x->apart_s);
}

static void refuse(once_exchange *x, int problem, const char *detail)
{
    x->decision = x->look ? once__decide_lookup_refusal(problem)
                          : once__decide_refusal(&x->guard->policy, problem);
    note_would(x, NULL);
    if (detail != NULL)
        memcpy(x->detail, detail, strnlen(detail, sizeof(x->detail) - 1));
}

static int is_decided(const once_exchange *x)
{
    return x->decision.next != ONCE__NEXT_NONE;
}

/* A lookup has no body: its key is in the header. */
static int has_key_in_body(const once_exchange *x)
{
    return x->guard->pointers.n > 0 && !x->look;
}

/* 1 and the key's bytes; 0: there is none, or it was refused. A key in the body
 * is found later. */
static int find_key(once_exchange *x, const once_http_request *r, char *out,
                    size_t max, once_bytes *raw)
{
    const once_guard *g = x->guard;
    size_t i, lines = 0;
    int size;

    if (has_key_in_body(x))
        return 1;
    if (g->options.key_of != NULL) {
        size = g->options.key_of(g->options.user, r, out, max);
        if (size < 0 || (size_t)size > max)
            refuse(x, ONCE__PROBLEM_KEY_INVALID, NULL);
        *raw = (once_bytes){out, size > 0 ? (size_t)size : 0};
        return size > 0 && !is_decided(x);
    }
    for (i = 0; i < r->n; i++) {
        if (!once__same_name(once__text(r->headers[i].name),
                             once__text(g->key)))
            continue;
        *raw = once__text(r->headers[i].value);
        lines++;
    }
    if (lines > 1)
        refuse(x, ONCE__PROBLEM_KEY_INVALID,
               "There is more than one Idempotency-Key line.");
    return lines == 1;
}

/* The parts of a target, which may be absolute ("http://h:1/a?b"). */
struct target {
    once_bytes path, query;
};

static void split_target(const char *text, struct target *t)
{
    const char *slashes = strstr(text, "://");
    size_t size;

    memset(t, 0, sizeof(*t));
    if (*text != '/' && slashes != NULL) {
        text = slashes + 3;
        text += strcspn(text, "/?");
    }
    size = strcspn(text, "?");
    t->path = (once_bytes){text, size};
    if (text[size] == '?')
        t->query = once__text(text + size + 1);
}

static void make_name(once_exchange *x, once_bytes scope, once_bytes realm,
                      const once__request_head *head, once_bytes key)
{
    once__name(scope, realm, head, key, x->name);
    once__name_hex(x->name, x->hash);
    once__hex(x->name, sizeof(x->name), x->record);
}

static once_bytes keep(char **at, once_bytes from)
{
    once_bytes out = {*at, from.size};

    if (from.size > 0)
        memcpy(*at, from.data, from.size);
    *at += from.size;
    return out;
}

/* For make_name(), when the body is there. */
static int keep_caller(once_exchange *x, once_bytes scope, once_bytes realm,
                       const once__request_head *head)
{
    struct caller *c =
        malloc(sizeof(*c) + scope.size + realm.size + head->method.size +
               head->path.size + head->encoding.size);
    char *at;

    if (c == NULL)
        return ONCE_ENOMEM;
    at = c->bytes;
    c->scope = keep(&at, scope);
    c->realm = keep(&at, realm);
    c->head = *head;
    c->head.query = c->head.type = (once_bytes){NULL, 0};
    memset(c->head.override, 0, sizeof(c->head.override));
    c->head.method = keep(&at, head->method);
    c->head.path = keep(&at, head->path);
    c->head.encoding = keep(&at, head->encoding);
    x->caller = c;
    return ONCE_OK;
}

static int name_it(once_exchange *x, const once__request_head *head,
                   once_bytes scope, once_bytes key)
{
    once_bytes realm = once__text(x->guard->realm);

    if (has_key_in_body(x))
        return keep_caller(x, scope, realm, head);
    make_name(x, scope, realm, head, key);
    return ONCE_OK;
}

static once_bytes header_or_nothing(const once_http_request *r,
                                    const char *name)
{
    const char *value = once_http_find(r, name);

    return value != NULL ? once__text(value) : (once_bytes){NULL, 0};
}

/* 1: the operator's function has said what counts, and it is in `print`. */
static int print_text(once_exchange *x, const once_http_request *r,
                      const once__request_head *head)
{
    const once_guard_options *o = &x->guard->options;
    char text[ONCE_HTTP_TEXT_MAX];
    int size;

    if (o->fingerprint_of == NULL)
        return 0;
    size = o->fingerprint_of(o->user, r, text, sizeof(text));
    if (size <= 0 || (size_t)size > sizeof(text))
        return 0;
    once__fingerprint_of_text(head, (once_bytes){text, (size_t)size}, x->print);
    return 1;
}

static int begin_print(once_exchange *x, const once_http_request *r,
                       const once__request_head *head)
{
    int rc;

    if (print_text(x, r, head))
        return ONCE_OK;
    rc =
        once__fingerprint_new(x->guard->compared.counts, head, &x->fingerprint);
    if (rc == ONCE_OK)
        x->collect |= once__fingerprint_is_json(x->fingerprint);
    return rc;
}

static once__request_head
head_of(const once_guard *g, const once_http_request *r, const struct target *t)
{
    once__request_head head = {
        .query = t->query,
        .type = header_or_nothing(r, "Content-Type"),
        .encoding = header_or_nothing(r, "Content-Encoding"),
        .method = once__text(r->method),
        .path = t->path,
        .of_path = g->options.key_space == ONCE_KEY_SPACE_PATH,
    };
    size_t i;

    for (i = 0; i < ONCE__OVERRIDES; i++)
        head.override[i] = header_or_nothing(r, once__override_headers[i]);
    return head;
}

/* What the record will say for operators. */
static void describe(once_exchange *x, const once_http_request *r,
                     const struct target *t)
{
    const once_guard_options *o = &x->guard->options;
    char text[ONCE_HTTP_TEXT_MAX];
    int size;

    if (o->label != NULL)
        size = o->label(o->user, r, text, sizeof(text));
    else
        size = snprintf(
            text, sizeof(text), "%s %.*s", r->method,
            (int)(t->path.size < sizeof(text) ? t->path.size : sizeof(text)),
            (const char *)t->path.data);
    if (size > (int)sizeof(text))
        size = sizeof(text) - 1;
    if (size > 0)
        x->n_label =
            once__label_clean((once_bytes){text, (size_t)size}, x->label);
    (void)once__trace_read(header_or_nothing(r, "traceparent"), x->trace);
}

/* Name and fingerprint, over the client's own bytes. */
static int identify(once_exchange *x, const once_http_request *r,
                    once_bytes raw)
{
    const once_guard_options *o = &x->guard->options;
    char key[ONCE__KEY_MAX], scope[ONCE_HTTP_TEXT_MAX];
    once_bytes k = {key, 0}, s = {scope, 0};
    once__request_head head;
    struct target t;
    once_error err;
    int rc, size = 0;

    x->collect = has_key_in_body(x);
    if (!x->collect && (once__key_parse(raw, key, &k.size, &err) != ONCE_OK ||
                        once__key_refuse_placeholder(k, &err) != ONCE_OK ||
                        once__key_birth(x->guard->policy.key_form, k,
                                        &x->born_ms, &err) != ONCE_OK)) {
        refuse(x, ONCE__PROBLEM_KEY_INVALID, err.text);
        return ONCE_OK;
    }
    if (o->scope != NULL)
        size = o->scope(o->user, r, scope, sizeof(scope));
    if (o->scope != NULL && (size <= 0 || (size_t)size > sizeof(scope))) {
        refuse(x, ONCE__PROBLEM_SCOPE_MISSING, NULL);
        return ONCE_OK;
    }
    s.size = (size_t)size;
    split_target(r->target, &t);
    describe(x, r, &t);
    x->look_ms = once__lookup_wait(t.query, x->look_ms);
    x->path = strndup(t.path.data, t.path.size);
    head = head_of(x->guard, r, &t);
    rc = name_it(x, &head, s, k);
    if (rc == ONCE_OK && !x->look)
        rc = begin_print(x, r, &head);
    return rc;
}

static int look_at(once_exchange *x, const once_http_request *r)
{
    const once_guard *g = x->guard;
    char text[ONCE_HTTP_TEXT_MAX];
    once_bytes raw = {NULL, 0};
    int rc = ONCE_OK;

    x->not_allowed = x->look && strcmp(r->method, "GET") != 0 &&
                     strcmp(r->method, "HEAD") != 0;
    if (!x->look && !once__guard_has_method(g, r->method))
        return ONCE_OK;
    if (find_key(x, r, text, sizeof(text), &raw)) {
        if (!is_decided(x))
            rc = identify(x, r, raw);
    } else if (!is_decided(x)) {
        if (!g->options.key_required && !x->look)
            return ONCE_OK;
        refuse(x, ONCE__PROBLEM_KEY_MISSING, NULL);
    }
    if (x->decision.next != ONCE__NEXT_PASS) /* as a dry run decides */
        x->state = READ;
    return rc;
}

static once_exchange *exchange_alloc(once_guard *g)
{
    once_exchange *x = calloc(1, sizeof(*x));

    if (x == NULL)
        return NULL;
    x->guard = g;
    x->hash[0] = x->record[0] = '-';
    x->probe.place = -1;
    return x;
}

/* An exchange of a request, or of a lookup that waits for at most `look_ms`. */
static int exchange_new(once_guard *g, const once_http_request *r, int look,
                        uint32_t look_ms, once_error *err, once_exchange **out)
{
    once_exchange *x = exchange_alloc(g);
    int rc = ONCE_ENOMEM;

    if (x == NULL)
        goto out;
    x->look = look;
    x->look_ms = look_ms;
    x->has_id = r->size > offsetof(once_http_request, id) && r->id != NULL;
    if (x->has_id)
        memcpy(x->id, r->id, sizeof(x->id));
    rc = look_at(x, r);
    if (rc != ONCE_OK)
        goto out;
    *out = x;
    return x->state == READ ? ONCE_HTTP_READ : ONCE_HTTP_PASS;
out:
    once_exchange_free(x);
    return once__fail(err, rc, "exchange: no memory");
}

int once_exchange_new(once_guard *g, const once_http_request *r,
                      once_error *err, once_exchange **out)
{
    return exchange_new(g, r, 0, 0, err, out);
}

int once_exchange_lookup(once_guard *g, const once_http_request *r,
                         uint32_t wait_ms, once_error *err, once_exchange **out)
{
    int rc = once__guard_check_lookup(&g->options, wait_ms, err);

    return rc == ONCE_OK ? exchange_new(g, r, 1, wait_ms, err, out) : rc;
}

int once_exchange_body(once_exchange *x, const void *data, size_t size)
{
    assert(x->state == READ);
    if (size > x->guard->options.max_request - x->body)
        x->too_large = 1;
    if (x->too_large)
        return ONCE_ELIMIT;
    x->body += size;
    if (x->fingerprint != NULL)
        once__fingerprint_body(x->fingerprint, data, size);
    if (x->collect)
        once__json_add(&x->json, data, size);
    return ONCE_OK;
}

/* ---- What was decided ---------------------------------------------------- */

static int prepare_reply(once_exchange *x)
{
    int exposed = (int)x->guard->options.cors_expose;

    if (x->decision.next == ONCE__NEXT_REPLAY)
        return once__reply_replay(&x->reply, &x->stored, &x->decision, exposed);
    if (x->decision.next == ONCE__NEXT_TELL)
        return once__reply_told(&x->reply, &x->decision, x->rc,
                                once_attempt_record(x->attempt), &x->stored,
                                x->guard->accept, exposed);
    return once__reply_problem(
        &x->reply, &x->decision,
        x->detail[0] != '\0' ? x->detail : x->decision.detail, exposed);
}

/* The step that follows from the decision, or ONCE_ENOMEM. */
static int follow(once_exchange *x)
{
    int rc;

    if (x->decision.attempt != 0)
        x->number = x->decision.attempt;
    switch (x->decision.next) {
    case ONCE__NEXT_RUN:
        x->state = OWNER;
        return ONCE_HTTP_RUN;
    case ONCE__NEXT_PASS:
        x->state = PASS;
        return ONCE_HTTP_PASS;
    case ONCE__NEXT_DROP:
        x->state = DROP;
        return ONCE_HTTP_DROP;
    case ONCE__NEXT_OWN: /* The reply is there already. */
        x->state = SEND;
        return ONCE_HTTP_SEND;
    default:
        rc = prepare_reply(x);
        if (rc != ONCE_OK)
            return rc;
        x->state = SEND;
        return ONCE_HTTP_SEND;
    }
}

/* ---- The claim ----------------------------------------------------------- */

static void without_key(once_exchange *x)
{
    if (x->guard->options.key_required)
        refuse(x, ONCE__PROBLEM_KEY_MISSING, NULL);
    else
        x->state = PASS;
}

/* The name, of the key that stands in the body; or the request is refused, or
 * passes. */
static void name_by_body(once_exchange *x, const once__json *doc)
{
    const struct caller *c = x->caller;
    char text[ONCE__KEY_MAX];
    once_bytes key = {text, 0};
    once_error err;

    if (once__key_of_body(&x->guard->pointers, c->head.encoding, doc,
                          x->guard->policy.key_form, text, &key.size,
                          &x->born_ms, &err) != ONCE_OK) {
        refuse(x, ONCE__PROBLEM_KEY_INVALID, err.text);
        return;
    }
    if (key.size == 0) {
        without_key(x);
        return;
    }
    (void)once__key_write(key, x->key_line);
    make_name(x, c->scope, c->realm, &c->head, key);
}

/* The body is whole. Afterwards the request may be refused, or pass. */
static int end_body(once_exchange *x)
{
    once__json *doc = NULL;
    once_error err;
    int rc = ONCE_OK;

    if (x->collect) {
        rc = once__json_read(&x->json, &doc, &err);
        once__json_clear(&x->json);
    }
    if (rc == ONCE_ENOMEM)
        return rc;
    if (x->caller != NULL && rc != ONCE_OK)
        refuse(x, ONCE__PROBLEM_KEY_INVALID, err.text);
    else if (x->caller != NULL)
        name_by_body(x, doc);
    rc = x->fingerprint == NULL
             ? ONCE_OK
             : once__fingerprint_end_json(x->fingerprint, doc,
                                          &x->guard->compared, x->print);
    free(doc);
    return rc;
}

/* What the next call to the engine needs, before it is made. */
static void expect(once_exchange *x, enum state state, once_http_wake *wake,
                   void *user)
{
    x->state = state;
    x->wake = wake;
    x->user = user;
    atomic_store_explicit(&x->ready, 0, memory_order_relaxed);
}

/* 1: the service is to be asked, by the caller; once in an exchange. */
static int begin_probe(once_exchange *x, int rc, const once_record *record)
{
    once_guard *g = x->guard;
    struct probe *p = &x->probe;

    if (x->look || p->asked || !once__may_probe(&g->policy, rc, record))
        return 0;
    p->asked = 1;
    p->fence = record->fence;
    pthread_mutex_lock(&g->lock);
    p->place =
        once__probe_enter(&g->places, x->name, clock_ms(CLOCK_MONOTONIC));
    pthread_mutex_unlock(&g->lock);
    if (p->place < 0)
        return 0;
    x->number = record->attempt;
    x->state = PROBE;
    return 1;
}

static void end_probe(once_exchange *x)
{
    once_guard *g = x->guard;

    if (x->probe.place < 0)
        return;
    pthread_mutex_lock(&g->lock);
    once__probe_leave(&g->places, x->probe.place);
    pthread_mutex_unlock(&g->lock);
    x->probe.place = -1;
}

/* The claim has ended with `rc`, or could not be begun. */
static int claimed(once_exchange *x, int rc)
{
    const once_record *record = NULL;
    uint64_t left_ms = 0;
    once_error err;

    if (x->attempt != NULL) {
        record = once_attempt_record(x->attempt);
        left_ms = once_attempt_left_ms(x->attempt);
    }
    x->decision = x->look ? once__decide_lookup(rc, record, &x->stored, &err)
                          : once__decide_claim(&x->guard->policy, rc, record,
                                               left_ms, &x->stored, &err);
    if (x->decision.problem == ONCE__PROBLEM_KEY_REUSED && x->path != NULL)
        x->decision.detail = once__leads_here(record, once__text(x->path));
    note_would(x, record);
    if (err.text[0] != '\0')
        once__guard_event(x->guard, "record %s: %s", x->hash, err.text);
    return begin_probe(x, rc, record) ? ONCE_HTTP_PROBE : follow(x);
}

static void fill_request(const once_exchange *x, once_request *r)
{
    const once_guard *g = x->guard;

    once__request_fill(&g->policy, x->name, x->print, g->group, r);
    r->label = (once_bytes){x->label, x->n_label};
    memcpy(r->trace, x->trace, sizeof(r->trace));
    r->born_ms = x->born_ms;
    if (x->look)
        r->wait_ms = x->look_ms;
    if (x->has_id)
        r->token = x->id;
}

static int make_attempt(once_exchange *x, once_attempt **out)
{
    once_request r;
    once_error err;
    int rc;

    fill_request(x, &r);
    rc = once_attempt_new(x->guard->engine, &r, &err, out);
    if (rc != ONCE_OK)
        once__guard_event(x->guard, "%s", err.text);
    return rc;
}

/* It does not wait for another that runs. */
static int make_look(const once_exchange *x, once_attempt **out)
{
    once_request r;

    fill_request(x, &r);
    r.wait_ms = 0;
    return once_attempt_new(x->guard->engine, &r, NULL, out);
}

int once_exchange_claim(once_exchange *x, once_http_wake *wake, void *user)
{
    int rc;

    assert(x->state == READ);
    if (x->too_large || x->not_allowed) {
        if (once__reply_refusal(&x->reply, x->too_large ? 413 : 405) != ONCE_OK)
            return ONCE_ENOMEM;
        x->decision.header = ONCE__STATUS_NONE;
        x->state = SEND;
        return ONCE_HTTP_SEND;
    }
    if (is_decided(x))
        return follow(x);
    rc = end_body(x);
    if (x->state == PASS)
        return ONCE_HTTP_PASS;
    if (is_decided(x))
        return follow(x);
    if (rc != ONCE_OK || make_attempt(x, &x->attempt) != ONCE_OK)
        return claimed(x, ONCE_ESTORE);
    expect(x, CLAIM, wake, user);
    /* One of both happens: we see that it was cancelled, or the one that
     * cancels sees the attempt. */
    atomic_store(&x->claiming, x->attempt);
    if (atomic_load(&x->cancelled))
        once_attempt_cancel(x->attempt);
    if ((x->look ? once_look_start : once_claim_start)(x->attempt, answered,
                                                       x) != ONCE_OK) {
        x->state = READ; /* nothing will wake us */
        return claimed(x, ONCE_ESTORE);
    }
    return ONCE_HTTP_WAIT;
}

/* ---- The same exchange in another process --------------------------------- */

int once__exchange_same(once_exchange *x, const once_exchange *of)
{
    int rc = x->state == READ && !x->too_large ? end_body(x) : ONCE_OK;

    if (rc != ONCE_OK)
        return rc;
    return x->state == READ && !is_decided(x) &&
           memcmp(x->name, of->name, sizeof(x->name)) == 0 &&
           memcmp(x->print, of->print, sizeof(x->print)) == 0;
}

void once_exchange_token(const once_exchange *x, char out[ONCE_EXCHANGE_TOKEN])
{
    const once_record *r = once_attempt_record(x->attempt);
    struct once__token t = {
        .fence = r->fence, .attempt = r->attempt, .doubt = r->doubt};

    assert(x->state == OWNER);
    memcpy(t.name, x->name, sizeof(t.name));
    memcpy(t.fingerprint, x->print, sizeof(t.fingerprint));
    memcpy(t.id, r->token, sizeof(t.id));
    once__token_write(&t, ONCE__TOKEN_EXCHANGE, out);
}

/* It is the owner: the record will be asked whether that is so. */
static int resume(once_exchange *x, const struct once__token *t,
                  once_error *err)
{
    once_record granted = {
        .fence = t->fence, .attempt = t->attempt, .doubt = t->doubt};
    once_error nothing;
    once_request r;

    memcpy(x->name, t->name, sizeof(x->name));
    memcpy(x->print, t->fingerprint, sizeof(x->print));
    memcpy(x->id, t->id, sizeof(x->id));
    x->has_id = 1;
    once__name_hex(x->name, x->hash);
    once__hex(x->name, sizeof(x->name), x->record);
    x->number = t->attempt;
    x->decision = once__decide_claim(&x->guard->policy, ONCE_OWNER, &granted, 0,
                                     &x->stored, &nothing);
    x->state = OWNER;
    fill_request(x, &r);
    return once_attempt_resume(x->guard->engine, &r, &granted, err,
                               &x->attempt);
}

int once_exchange_resume(once_guard *g, const char *token, once_error *err,
                         once_exchange **out)
{
    struct once__token t;
    once_exchange *x;
    int rc;

    if (!once__token_read(token, ONCE__TOKEN_EXCHANGE, &t))
        return once__fail(err, ONCE_EINVAL, "token: it is none");
    x = exchange_alloc(g);
    if (x == NULL)
        return once__fail(err, ONCE_ENOMEM, "exchange: no memory");
    rc = resume(x, &t, err);
    if (rc != ONCE_OK) {
        once_exchange_free(x);
        return rc;
    }
    *out = x;
    return ONCE_HTTP_RUN;
}

static void release(once_attempt **at)
{
    once_attempt *a = *at;

    *at = NULL;
    if (once_release_start(a, ONCE_REASON_NOT_SENT, released, NULL) != ONCE_OK)
        once_attempt_free(a);
}

void once_exchange_abandon(once_exchange *x)
{
    assert(x->state == OWNER);
    release(&x->attempt);
    x->state = DROP;
}

/* ---- What the service says of an unknown outcome ------------------------- */

/* The program's own word, or a service's answer over HTTP. 1: it was applied,
 * and `*status` is the outcome's. */
static int was_applied(const once_exchange *x, const once_http_answer *a,
                       int *status)
{
    once__probe_reply r = {.observed = ONCE__WHOLE, .own = 1};
    size_t i;

    if (a == NULL || a->streamed || a->status < 200 || a->status > 599)
        return 0;
    *status = a->status;
    if (a->outcome != ONCE_HTTP_BY_STATUS)
        return a->outcome == ONCE_HTTP_APPLIED;
    r.status = a->status;
    for (i = 0; i < a->n; i++)
        once__probe_header(&r, once__text(a->headers[i].name),
                           once__text(a->headers[i].value));
    return once__judge_probe(&r, x->name, status) == ONCE__PROBE_APPLIED;
}

static int encode_applied(once_exchange *x, const once_http_answer *a,
                          int status, once_bytes *out)
{
    once_http_answer kept = *a;
    once_error err;

    kept.status = status;
    if (status == 204 || status == 304)
        kept.body = (once_bytes){NULL, 0};
    return once__reply_encode(x->guard, &kept,
                              kept.body.size <= x->guard->options.max_response,
                              &err, out);
}

/* ONCE_OK: the store is being asked. */
static int decide(once_exchange *x, const once_http_answer *a, int status,
                  once_http_wake *wake, void *user)
{
    struct probe *p = &x->probe;
    once_bytes result = {NULL, 0};
    int rc = encode_applied(x, a, status, &result);

    p->result = (void *)(uintptr_t)result.data;
    if (rc == ONCE_OK)
        rc = make_attempt(x, &p->again);
    if (rc != ONCE_OK)
        return rc;
    once__probe_fill(&x->guard->policy, x->name, p->fence, result, &p->op);
    p->op.done = decided;
    p->op.user = x;
    expect(x, DECIDE, wake, user);
    return once_submit(x->guard->engine, &p->op, NULL);
}

int once_exchange_probed(once_exchange *x, const once_http_answer *a,
                         once_http_wake *wake, void *user)
{
    int status = 0;

    assert(x->state == PROBE);
    end_probe(x);
    if (was_applied(x, a, &status) &&
        decide(x, a, status, wake, user) == ONCE_OK)
        return ONCE_HTTP_WAIT;
    x->state = READ; /* nothing will wake us */
    return follow(x);
}

/* What the first claim was told, or what the second one is. */
static int settled(once_exchange *x)
{
    once_attempt *first = x->attempt;

    if (x->probe.op.rc == ONCE_OK)
        once__guard_event(x->guard,
                          "outcome known by a probe: record %s, attempt %u, "
                          "fence %llu",
                          x->hash, x->number,
                          (unsigned long long)x->probe.fence);
    if (x->probe.undecided)
        return follow(x);
    x->attempt = x->probe.again;
    x->probe.again = NULL;
    once_attempt_free(first);
    return claimed(x, x->rc);
}

/* ---- The handler's answer ------------------------------------------------ */

static once_bytes outcome_of(const once_http_answer *a)
{
    static const char *const texts[] = {"", "applied", "not-applied",
                                        "no-store", "unknown"};
    const char *text = texts[a->outcome];
    size_t i;

    if (a->outcome == ONCE_HTTP_BY_STATUS)
        for (i = 0; i < a->n; i++)
            if (once__same_name(once__text(a->headers[i].name),
                                once__text("Idempotency-Outcome")))
                text = a->headers[i].value;
    return once__text(text);
}

static int is_of_streams(const once_http_answer *a)
{
    size_t i;

    for (i = 0; i < a->n; i++)
        if (once__same_name(once__text(a->headers[i].name),
                            once__text("Content-Type")) &&
            once__type_streams(once__text(a->headers[i].value)))
            return 1;
    return 0;
}

/* Judged at the head, so that no stream of a gateway's error is marked. */
static int observe(const once_exchange *x, const once_http_answer *a)
{
    int observed = a->streamed ||
                           a->body.size > x->guard->options.max_response ||
                           is_of_streams(a)
                       ? ONCE__UNSTORABLE
                       : ONCE__WHOLE;

    return once__observe_status(observed, a->status, outcome_of(a),
                                &x->guard->policy.rules);
}

/* Judges `a` and lets the engine record it. */
static int record(once_exchange *x, const once_http_answer *a,
                  once_http_wake *wake, void *user)
{
    const once_guard *g = x->guard;
    once__verdict v =
        once__judge(x->observed, a->status, outcome_of(a), &g->policy.rules);
    once_bytes result = {NULL, 0};
    once_error err;
    int rc = ONCE_OK;

    if (once__verdict_keeps(v))
        rc = once__reply_encode(g, a, v.action == ONCE__DO_COMPLETE, &err,
                                &result);
    if (rc != ONCE_OK)
        goto out;
    if (result.data != NULL && err.text[0] != '\0')
        once__guard_event(g, "record %s: not kept: %s", x->hash, err.text);
    expect(x, STORE, wake, user);
    x->action = v.action;
    if (v.action == ONCE__DO_GIVE_UP && once__is_broken(x->observed) &&
        !g->policy.dry_run)
        rc = make_look(x, &x->after);
    if (rc == ONCE_OK)
        rc = once__verdict_start(x->attempt, v, result,
                                 x->after != NULL ? given_up : answered, x);
    if (rc != ONCE_OK) {
        once_attempt_free(x->after); /* another end makes another one */
        x->after = NULL;
        x->state = OWNER;
    }
out:
    free((void *)(uintptr_t)result.data);
    return rc == ONCE_OK ? ONCE_HTTP_WAIT : rc;
}

static int check_answer(const once_http_answer *a)
{
    return a->status >= 200 && a->status <= 599 &&
                   a->outcome >= ONCE_HTTP_BY_STATUS &&
                   a->outcome <= ONCE_HTTP_UNKNOWN &&
                   !(a->streamed && a->body.size > 0)
               ? ONCE_OK
               : ONCE_EINVAL;
}

int once_exchange_answer(once_exchange *x, const once_http_answer *a,
                         once_http_wake *wake, void *user)
{
    const once_guard_options *o = &x->guard->options;
    int rc = check_answer(a);

    assert(x->state == PASS || x->state == OWNER);
    if (rc == ONCE_OK)
        rc = once__reply_own(&x->reply, a, &x->decision,
                             x->state == OWNER && o->cors_expose);
    if (rc != ONCE_OK)
        return rc;
    if (x->state == PASS) {
        x->state = SEND;
        return ONCE_HTTP_SEND;
    }
    x->observed = observe(x, a);
    return record(x, a, wake, user);
}

int once_exchange_broken(once_exchange *x, int status, once_http_wake *wake,
                         void *user)
{
    once_http_answer nothing = ONCE_HTTP_ANSWER_INIT;

    assert(x->state == PASS || x->state == OWNER);
    assert(status == 502 || status == 504);
    if (x->state == PASS) {
        x->state = DROP;
        return ONCE_HTTP_DROP;
    }
    x->observed = status == 504 ? ONCE__TIMED_OUT : ONCE__RESET;
    return record(x, &nothing, wake, user);
}

/* ---- The store has answered ---------------------------------------------- */

static int stored(once_exchange *x)
{
    once__http_end end;

    if (x->found) { /* as if the end had been told again */
        once_attempt_free(x->attempt);
        x->attempt = x->after;
        x->after = NULL;
        x->action = ONCE__DO_COMPLETE;
        x->rc = ONCE_REPLAY;
    }
    end = (once__http_end){
        .action = x->action,
        .observed = x->observed,
        .status = x->reply.answer.status,
        .has_own = x->reply.answer.status != 0,
        .rc = x->rc,
        .record = once_attempt_record(x->attempt),
    };

    x->decision = once__decide_end(&x->guard->policy, &end, &x->stored);
    return follow(x);
}

static int waits(const once_exchange *x)
{
    return x->state == CLAIM || x->state == DECIDE || x->state == STORE;
}

int once_exchange_step(once_exchange *x)
{
    static const int steps[] = {
        [PASS] = ONCE_HTTP_PASS,   [READ] = ONCE_HTTP_READ,
        [CLAIM] = ONCE_HTTP_WAIT,  [OWNER] = ONCE_HTTP_RUN,
        [STORE] = ONCE_HTTP_WAIT,  [SEND] = ONCE_HTTP_SEND,
        [DROP] = ONCE_HTTP_DROP,   [PROBE] = ONCE_HTTP_PROBE,
        [DECIDE] = ONCE_HTTP_WAIT,
    };

    if (!waits(x) || !atomic_load_explicit(&x->ready, memory_order_acquire))
        return steps[x->state];
    return x->state == CLAIM    ? claimed(x, x->rc)
           : x->state == DECIDE ? settled(x)
                                : stored(x);
}

/* ---- The rest ------------------------------------------------------------ */

const once_http_answer *once_exchange_reply(const once_exchange *x)
{
    assert(x->state == SEND);
    return &x->reply.answer;
}

int once_exchange_is_own(const once_exchange *x)
{
    assert(x->state == SEND);
    return x->decision.next == ONCE__NEXT_OWN;
}

void once_exchange_cancel(once_exchange *x)
{
    once_attempt *a;

    atomic_store(&x->cancelled, 1);
    a = atomic_load(&x->claiming);
    if (a != NULL)
        once_attempt_cancel(a);
}

void once_exchange_free(once_exchange *x)
{
    if (x == NULL)
        return;
    if (waits(x))
        assert(atomic_load_explicit(&x->ready, memory_order_acquire));
    end_probe(x);
    /* A grant that the server never got has begun nothing. */
    if (x->state == CLAIM && x->rc == ONCE_OWNER)
        release(&x->attempt);
    if (x->state == DECIDE && !x->probe.undecided && x->rc == ONCE_OWNER)
        release(&x->probe.again);
    once_attempt_free(x->attempt);
    once_attempt_free(x->probe.again);
    once_attempt_free(x->after);
    free(x->probe.result);
    once__fingerprint_free(x->fingerprint);
    once__json_clear(&x->json);
    free(x->caller);
    free(x->path);
    once__reply_clear(&x->reply);
    free(x);
}

const char *once_exchange_status(const once_exchange *x)
{
    return once__status_text(x->decision.header);
}

const char *once_exchange_would(const once_exchange *x)
{
    return once__would_text(x->would);
}

int64_t once_exchange_apart(const once_exchange *x)
{
    return x->has_apart ? (int64_t)x->apart_s : -1;
}

uint32_t once_exchange_attempt(const once_exchange *x)
{
    return x->number;
}

const char *once_exchange_record(const once_exchange *x)
{
    return x->record;
}

const char *once_exchange_key(const once_exchange *x)
{
    return x->key_line[0] != '\0' && !x->guard->policy.dry_run ? x->key_line
                                                               : NULL;
}

const char *once_exchange_hash(const once_exchange *x)
{
    return x->hash;
}
