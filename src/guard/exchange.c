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
 * The engine's thread writes `rc`, sets `ready` and calls `wake`, and touches
 * nothing else. All the rest belongs to the thread that serves the request.
 *
 * It refuses to let an answer out before its record is durable, and to call a
 * handler that has begun anything but begun.
 */
#include "guard/guard.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

enum state { PASS, READ, CLAIM, OWNER, STORE, SEND, DROP };

enum { NO_PROBLEM = -1, AFTER_MAX_S = 5 };

struct once_exchange {
    once_guard *guard;
    enum state state;
    const char *word; /* the value of Idempotency-Status                    */

    uint8_t name[ONCE_NAME_SIZE];
    char hash[17];
    once__fingerprint *fingerprint; /* NULL: `print` has it already         */
    uint8_t print[ONCE_FINGERPRINT_SIZE];
    size_t body; /* bytes so far                                          */
    int too_large;
    int problem; /* found before the claim, or NO_PROBLEM                   */
    char detail[252];

    once_attempt *attempt;
    uint32_t number;
    once_http_wake *wake;
    void *user;
    atomic_int ready; /* the engine has answered: `rc` is there             */
    _Atomic(once_attempt *) claiming; /* for whoever cancels                */
    atomic_int cancelled;
    int rc;

    int observed,
        action; /* of the handler: enum once__observed, enum once__verdict_action   */
    int broken_status;
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

static void refuse(once_exchange *x, int problem, const char *detail)
{
    x->problem = problem;
    x->word = "invalid";
    if (detail != NULL)
        memcpy(x->detail, detail, strnlen(detail, sizeof(x->detail) - 1));
}

/* 1 and the key's bytes; 0: there is none, or it was refused. */
static int find_key(once_exchange *x, const once_http_request *r, char *out,
                    size_t max, once_bytes *raw)
{
    const once_guard *g = x->guard;
    size_t i, lines = 0;
    int size;

    if (g->options.key_of != NULL) {
        size = g->options.key_of(g->options.user, r, out, max);
        if (size < 0 || (size_t)size > max)
            refuse(x, ONCE__PROBLEM_KEY_INVALID, NULL);
        *raw = (once_bytes){out, size > 0 ? (size_t)size : 0};
        return size > 0 && x->problem == NO_PROBLEM;
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
    once_bytes host, path, query; /* host: data NULL if it is not there */
};

static void split_target(const char *text, struct target *t)
{
    const char *slashes = strstr(text, "://");
    size_t size;

    memset(t, 0, sizeof(*t));
    if (*text != '/' && slashes != NULL) {
        text = slashes + 3;
        size = strcspn(text, "/?");
        t->host = (once_bytes){text, size};
        text += size;
    }
    size = strcspn(text, "?");
    t->path = (once_bytes){text, size};
    if (text[size] == '?')
        t->query = once__text(text + size + 1);
}

/* The host in lower case and without its port; for free(), or NULL. */
static char *host_of(const once_http_request *r, const struct target *t,
                     size_t *size)
{
    const char *line = once_http_find(r, "Host");
    once_bytes host = t->host;
    const char *text, *end;
    char *out;
    size_t i;

    if (host.data == NULL)
        host = once__text(line != NULL ? line : "");
    text = host.data;
    end = memchr(text, ']', host.size); /* [::1]:80 */
    end = memchr(end != NULL ? end : text, ':',
                 host.size - (size_t)(end != NULL ? end - text : 0));
    *size = end != NULL ? (size_t)(end - text) : host.size;
    out = malloc(*size + 1);
    for (i = 0; out != NULL && i < *size; i++)
        out[i] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] - 'A' + 'a'
                                                         : text[i]);
    return out;
}

static int name_it(once_exchange *x, const once_http_request *r,
                   const struct target *t, once_bytes scope, once_bytes key)
{
    const char *given = x->guard->realm;
    char *host = NULL;
    once_bytes realm;
    int rc = ONCE_ENOMEM;

    if (given != NULL) {
        realm = once__text(given);
    } else {
        host = host_of(r, t, &realm.size);
        if (host == NULL)
            goto out;
        realm.data = host;
    }
    rc = once__name(scope, realm, once__text(r->method), t->path, key, x->name);
    if (rc == ONCE_OK)
        once__name_hex(x->name, x->hash);
out:
    free(host);
    return rc;
}

static once_bytes header_or_nothing(const once_http_request *r,
                                    const char *name)
{
    const char *value = once_http_find(r, name);

    return value != NULL ? once__text(value) : (once_bytes){NULL, 0};
}

/* 1: the operator's function has said what counts, and it is in `print`. */
static int print_text(once_exchange *x, const once_http_request *r, int *rc)
{
    const once_guard_options *o = &x->guard->options;
    char text[ONCE_HTTP_TEXT_MAX];
    int size;

    if (o->fingerprint_of == NULL)
        return 0;
    size = o->fingerprint_of(o->user, r, text, sizeof(text));
    if (size <= 0 || (size_t)size > sizeof(text))
        return 0;
    *rc = once__fingerprint_of_text((once_bytes){text, (size_t)size}, x->print);
    return 1;
}

static int begin_print(once_exchange *x, const once_http_request *r,
                       once_bytes query)
{
    once__request_head head = {
        .query = query,
        .type = header_or_nothing(r, "Content-Type"),
        .encoding = header_or_nothing(r, "Content-Encoding"),
    };
    int rc = ONCE_OK;

    if (print_text(x, r, &rc))
        return rc;
    return once__fingerprint_new(x->guard->counts, &head, &x->fingerprint);
}

/* Name and fingerprint, over the client's own bytes. */
static int identify(once_exchange *x, const once_http_request *r,
                    once_bytes raw)
{
    const once_guard_options *o = &x->guard->options;
    char key[ONCE__KEY_MAX], scope[ONCE_HTTP_TEXT_MAX];
    once_bytes k = {key, 0}, s = {scope, 0};
    struct target t;
    once_error err;
    int rc, size = 0;

    if (once__key_parse(raw, key, &k.size, &err) != ONCE_OK) {
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
    rc = name_it(x, r, &t, s, k);
    if (rc == ONCE_OK)
        rc = begin_print(x, r, t.query);
    return rc;
}

static int look_at(once_exchange *x, const once_http_request *r)
{
    const once_guard *g = x->guard;
    char text[ONCE_HTTP_TEXT_MAX];
    once_bytes raw = {NULL, 0};
    int rc = ONCE_OK;

    if (!once__guard_has_method(g, r->method))
        return ONCE_OK;
    if (find_key(x, r, text, sizeof(text), &raw)) {
        if (x->problem == NO_PROBLEM)
            rc = identify(x, r, raw);
    } else if (x->problem == NO_PROBLEM) {
        if (!g->options.key_required)
            return ONCE_OK;
        refuse(x, ONCE__PROBLEM_KEY_MISSING, NULL);
    }
    if (x->problem == NO_PROBLEM || !g->options.dry_run)
        x->state = READ;
    return rc;
}

int once_exchange_new(once_guard *g, const once_http_request *r,
                      once_error *err, once_exchange **out)
{
    once_exchange *x = calloc(1, sizeof(*x));
    int rc = ONCE_ENOMEM;

    if (x == NULL)
        goto out;
    x->guard = g;
    x->problem = NO_PROBLEM;
    x->word = "-";
    x->hash[0] = '-';
    rc = look_at(x, r);
    if (rc != ONCE_OK)
        goto out;
    *out = x;
    return x->state == READ ? ONCE_HTTP_READ : ONCE_HTTP_PASS;
out:
    once_exchange_free(x);
    return once__fail(err, rc, "exchange: no memory");
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
    return ONCE_OK;
}

/* ---- Answers of ours ---------------------------------------------------- */

/* SEND, or ONCE_ENOMEM. */
static int send_problem(once_exchange *x, int problem, int status,
                        unsigned retry_after)
{
    int rc = once__reply_problem(
        &x->reply, problem, status, x->detail[0] != '\0' ? x->detail : NULL,
        x->word, retry_after, (int)x->guard->options.cors_expose);

    if (rc != ONCE_OK)
        return rc;
    x->state = SEND;
    return ONCE_HTTP_SEND;
}

static int pass(once_exchange *x)
{
    x->state = PASS;
    return ONCE_HTTP_PASS;
}

static int tell(once_exchange *x, int problem, const char *word,
                unsigned retry_after)
{
    x->word = word;
    if (x->guard->options.dry_run)
        return pass(x);
    return send_problem(x, problem, 0, retry_after);
}

static int unavailable(once_exchange *x)
{
    if (x->guard->options.store_failure == ONCE_STORE_BYPASS) {
        x->word = "unprotected";
        return pass(x);
    }
    return tell(x, ONCE__PROBLEM_STORE_UNAVAILABLE, "unavailable", 1);
}

static int damaged(once_exchange *x, const char *text)
{
    once__guard_event(x->guard, "record %s: %s", x->hash, text);
    return tell(x, ONCE__PROBLEM_STORE_UNAVAILABLE, "unavailable", 1);
}

/* ---- The claim ----------------------------------------------------------- */

static void end_print(once_exchange *x, uint8_t out[ONCE_FINGERPRINT_SIZE])
{
    if (x->fingerprint != NULL)
        once__fingerprint_end(x->fingerprint, x->print);
    memcpy(out, x->print, sizeof(x->print));
}

static void fill_request(once_exchange *x, once_request *r)
{
    const once_guard *g = x->guard;
    const once_guard_options *o = &g->options;

    memset(r, 0, sizeof(*r));
    r->size = sizeof(*r);
    memcpy(r->name, x->name, sizeof(r->name));
    end_print(x, r->fingerprint);
    memcpy(r->group, g->group, sizeof(r->group));
    r->policy = o->lost == ONCE_LOST_TAKEOVER ? ONCE_TAKEOVER : 0u;
    if (!once__statuses_all(&g->rules.final))
        r->policy |= ONCE_RETRY_FAILED;
    r->two_phase = o->two_phase;
    r->lease_ms = o->lease_ms;
    r->wait_ms = o->in_flight_ms;
    r->store_ms = o->store_ms;
    r->keep_ms = o->ttl_ms;
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

int once_exchange_claim(once_exchange *x, once_http_wake *wake, void *user)
{
    once_request r;
    once_error err;

    assert(x->state == READ);
    if (x->too_large) {
        if (once__reply_too_large(&x->reply) != ONCE_OK)
            return ONCE_ENOMEM;
        x->word = "-";
        x->state = SEND;
        return ONCE_HTTP_SEND;
    }
    if (x->problem != NO_PROBLEM)
        return send_problem(x, x->problem, 0, 0);
    fill_request(x, &r);
    if (once_attempt_new(x->guard->engine, &r, &err, &x->attempt) != ONCE_OK) {
        once__guard_event(x->guard, "%s", err.text);
        return unavailable(x);
    }
    expect(x, CLAIM, wake, user);
    /* Either we see that it was cancelled, or who cancels sees the attempt. */
    atomic_store(&x->claiming, x->attempt);
    if (atomic_load(&x->cancelled))
        once_attempt_cancel(x->attempt);
    if (once_claim_start(x->attempt, answered, x) != ONCE_OK) {
        x->state = READ; /* nobody will wake us */
        return unavailable(x);
    }
    return ONCE_HTTP_WAIT;
}

static int replay(once_exchange *x)
{
    const once_record *record = once_attempt_record(x->attempt);
    once__response stored;
    once_error err;
    int rc;

    if (once__response_decode(record->result, &stored, &err) != ONCE_OK)
        return damaged(x, err.text);
    x->number = record->attempt;
    if (stored.flags & ONCE__NO_BODY)
        return tell(x, ONCE__PROBLEM_RESPONSE_UNAVAILABLE, "unstored", 0);
    x->word = "replayed";
    if (x->guard->options.dry_run)
        return pass(x);
    rc = once__reply_replay(&x->reply, &stored,
                            (int)x->guard->options.cors_expose);
    if (rc != ONCE_OK)
        return rc;
    x->state = SEND;
    return ONCE_HTTP_SEND;
}

static unsigned seconds_left(const once_exchange *x)
{
    uint64_t s = (once_attempt_left_ms(x->attempt) + 999) / 1000;

    return s < 1 ? 1u : s > AFTER_MAX_S ? (unsigned)AFTER_MAX_S : (unsigned)s;
}

static int claimed(once_exchange *x)
{
    switch (x->rc) {
    case ONCE_OWNER:
        x->number = once_attempt_record(x->attempt)->attempt;
        x->word = "new";
        x->state = OWNER;
        return ONCE_HTTP_RUN;
    case ONCE_REPLAY:
        return replay(x);
    case ONCE_IN_FLIGHT:
        return tell(x, ONCE__PROBLEM_IN_FLIGHT, "in_flight", seconds_left(x));
    case ONCE_MISMATCH:
        return tell(x, ONCE__PROBLEM_KEY_REUSED, "mismatch", 0);
    case ONCE_UNKNOWN:
        return tell(x, ONCE__PROBLEM_OUTCOME_UNKNOWN, "indeterminate", 0);
    case ONCE_ECORRUPT:
    case ONCE_EVERSION:
        /* Never a miss, and never a reason to bypass. */
        return damaged(x, once_text(x->rc));
    case ONCE_FREE:
        /* Too late to begin, and nothing was begun. */
        return tell(x, ONCE__PROBLEM_STORE_UNAVAILABLE, "unavailable", 1);
    default:
        return unavailable(x);
    }
}

static void release(once_exchange *x)
{
    once_attempt *a = x->attempt;

    x->attempt = NULL;
    if (once_release_start(a, released, NULL) != ONCE_OK)
        once_attempt_free(a);
}

void once_exchange_abandon(once_exchange *x)
{
    assert(x->state == OWNER);
    release(x);
    x->state = DROP;
}

/* ---- The handler's answer ------------------------------------------------ */

static once_bytes word_of(const once_http_answer *a)
{
    static const char *const words[] = {"", "applied", "not-applied",
                                        "no-store", "unknown"};
    const char *word = words[a->outcome];
    size_t i;

    if (a->outcome == ONCE_HTTP_BY_STATUS)
        for (i = 0; i < a->n; i++)
            if (once__same_name(once__text(a->headers[i].name),
                                once__text("Idempotency-Outcome")))
                word = a->headers[i].value;
    return once__text(word);
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

static int start_action(once_exchange *x, once__verdict v, once_bytes result)
{
    x->action = v.action;
    switch (v.action) {
    case ONCE__DO_COMPLETE:
    case ONCE__DO_MARK:
        return once_complete_start(x->attempt, v.kind, result, answered, x);
    case ONCE__DO_RELEASE:
        return once_release_start(x->attempt, answered, x);
    default:
        return once_give_up_start(x->attempt, answered, x);
    }
}

/* Judges `a` and lets the engine record it. */
static int record(once_exchange *x, const once_http_answer *a,
                  once_http_wake *wake, void *user)
{
    const once_guard *g = x->guard;
    once__verdict v =
        once__judge(x->observed, a->status, word_of(a), &g->rules);
    once_bytes result = {NULL, 0};
    once_error err;
    int rc = ONCE_OK;

    if (v.action == ONCE__DO_COMPLETE || v.action == ONCE__DO_MARK)
        rc = once__reply_encode(g, a, v.action == ONCE__DO_COMPLETE, &err,
                                &result);
    if (rc != ONCE_OK)
        goto out;
    if (result.data != NULL && err.text[0] != '\0')
        once__guard_event(g, "record %s: not kept: %s", x->hash, err.text);
    expect(x, STORE, wake, user);
    rc = start_action(x, v, result);
    if (rc != ONCE_OK)
        x->state = OWNER;
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

/* What our marker says on the handler's own answer, or NULL. */
static const char *mark(const once_exchange *x)
{
    if (x->state == PASS)
        return strcmp(x->word, "unprotected") == 0 ? x->word : NULL;
    return x->guard->options.dry_run ? NULL : x->word;
}

int once_exchange_answer(once_exchange *x, const once_http_answer *a,
                         once_http_wake *wake, void *user)
{
    const once_guard_options *o = &x->guard->options;
    int rc = check_answer(a);

    assert(x->state == PASS || x->state == OWNER);
    if (rc == ONCE_OK)
        rc = once__reply_own(&x->reply, a, mark(x),
                             x->state == OWNER && o->cors_expose);
    if (rc != ONCE_OK)
        return rc;
    if (x->state == PASS) {
        x->state = SEND;
        return ONCE_HTTP_SEND;
    }
    x->observed =
        a->streamed || a->body.size > o->max_response || is_of_streams(a)
            ? ONCE__UNSTORABLE
            : ONCE__WHOLE;
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
    x->broken_status = status;
    x->observed = ONCE__BROKEN;
    return record(x, &nothing, wake, user);
}

/* ---- The store has answered ---------------------------------------------- */

static int send_unknown(once_exchange *x, int status)
{
    x->word = "indeterminate";
    return send_problem(x, ONCE__PROBLEM_OUTCOME_UNKNOWN, status, 0);
}

/* Another outcome stands there: tell that one, if it can be told. */
static int send_other(once_exchange *x)
{
    const once_record *r = once_attempt_record(x->attempt);
    once__response stored;

    if (x->rc != ONCE_REPLAY ||
        once__response_decode(r->result, &stored, NULL) != ONCE_OK ||
        (stored.flags & ONCE__NO_BODY))
        return send_unknown(x, 502);
    return replay(x);
}

static int stored(once_exchange *x)
{
    int kept = x->action == ONCE__DO_COMPLETE || x->action == ONCE__DO_MARK;

    if (x->guard->options.dry_run) {
        x->state = x->observed == ONCE__BROKEN ? DROP : SEND;
        return x->state == DROP ? ONCE_HTTP_DROP : ONCE_HTTP_SEND;
    }
    if (x->observed == ONCE__BROKEN)
        return send_unknown(x, x->broken_status);
    if (kept && x->rc != ONCE_OK)
        return send_other(x);
    x->state = SEND;
    return ONCE_HTTP_SEND;
}

int once_exchange_step(once_exchange *x)
{
    static const int steps[] = {
        [PASS] = ONCE_HTTP_PASS,  [READ] = ONCE_HTTP_READ,
        [CLAIM] = ONCE_HTTP_WAIT, [OWNER] = ONCE_HTTP_RUN,
        [STORE] = ONCE_HTTP_WAIT, [SEND] = ONCE_HTTP_SEND,
        [DROP] = ONCE_HTTP_DROP,
    };

    if ((x->state == CLAIM || x->state == STORE) &&
        atomic_load_explicit(&x->ready, memory_order_acquire))
        return x->state == CLAIM ? claimed(x) : stored(x);
    return steps[x->state];
}

/* ---- The rest ------------------------------------------------------------ */

const once_http_answer *once_exchange_reply(const once_exchange *x)
{
    assert(x->state == SEND);
    return &x->reply.answer;
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
    if (x->state == CLAIM || x->state == STORE)
        assert(atomic_load_explicit(&x->ready, memory_order_acquire));
    /* A grant that nobody was told of has begun nothing. */
    if (x->state == CLAIM && x->rc == ONCE_OWNER)
        release(x);
    once_attempt_free(x->attempt);
    once__fingerprint_free(x->fingerprint);
    once__reply_clear(&x->reply);
    free(x);
}

const char *once_exchange_status(const once_exchange *x)
{
    return x->word;
}

uint32_t once_exchange_attempt(const once_exchange *x)
{
    return x->number;
}

const char *once_exchange_hash(const once_exchange *x)
{
    return x->hash;
}
