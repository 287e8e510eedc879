/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_guard.c - the guard without a server: each test is a few requests and
 * what the guard makes of them. The contract over the wire is tested by the
 * scenarios of test/gateway (ONCE_TARGET=guarded); here is what they cannot
 * see: order of calls, ownership, refusals, and what is in no text.
 */
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include <once/http.h>

#include "calls/http/http.h"
#include "t.h"

#define SECRET "Zq7secret"

/* ---- A server for one request ---------------------------------------------- */

struct world {
    once_engine *engine;
    once_guard *guard;
    char event[400];
};

static void on_event(void *user, const char *text)
{
    struct world *w = user;

    (void)snprintf(w->event, sizeof(w->event), "%s", text);
}

static void begin_with(struct world *w, const char *url,
                       const once_guard_options *options)
{
    once_guard_options o = *options;
    once_error err = {0, ""};

    memset(w, 0, sizeof(*w));
    o.user = w;
    o.event = on_event;
    T_EQ(once_engine_open(url, NULL, &err, &w->engine), ONCE_OK);
    T_EQ(once_guard_open(w->engine, &o, &err, &w->guard), ONCE_OK);
    T_STR(err.text, "");
}

static once_guard_options plain(void)
{
    once_guard_options o = ONCE_GUARD_OPTIONS_INIT;

    o.scope_off = 1;
    return o;
}

static void begin(struct world *w)
{
    once_guard_options o = plain();

    begin_with(w, "memory:", &o);
}

static void end(struct world *w)
{
    once_guard_close(w->guard);
    once_engine_close(w->engine);
}

static void on_wake(void *user)
{
    (void)sem_post(user);
}

struct asked {
    const char *method, *target, *key, *host, *body;
    int lookup;
    uint32_t wait_ms; /* of a lookup */
    const uint8_t *id;
    sem_t woken;
    once_exchange *x;
};

static void asked_init(struct asked *a)
{
    memset(a, 0, sizeof(*a));
    a->method = "POST";
    a->target = "/pay?a=1";
    a->key = "k-" SECRET;
    a->host = "shop.test";
    a->body = "{}";
    (void)sem_init(&a->woken, 0, 0);
}

static void asked_end(struct asked *a)
{
    once_exchange_free(a->x);
    (void)sem_destroy(&a->woken);
}

/* The head; the step. A status resource has a path of its own. */
static int look(struct world *w, struct asked *a)
{
    once_http_header lines[3] = {{"Host", a->host},
                                 {"Content-Type", "application/json"}};
    once_http_request r = ONCE_HTTP_REQUEST_INIT;

    r.method = a->method;
    r.target = a->target;
    r.id = a->id;
    r.headers = lines;
    r.n = 2;
    if (a->key != NULL)
        lines[r.n++] = (once_http_header){"idempotency-KEY", a->key};
    if (a->lookup)
        return once_exchange_lookup(w->guard, &r, a->wait_ms, NULL, &a->x);
    return once_exchange_new(w->guard, &r, NULL, &a->x);
}

static int settle(struct asked *a, int step)
{
    if (step == ONCE_HTTP_WAIT) {
        while (sem_wait(&a->woken) != 0)
            ;
        step = once_exchange_step(a->x);
    }
    return step;
}

static int claim(struct world *w, struct asked *a)
{
    T_EQ(look(w, a), ONCE_HTTP_READ);
    (void)once_exchange_body(a->x, a->body, strlen(a->body));
    return settle(a, once_exchange_claim(a->x, on_wake, &a->woken));
}

static once_http_answer made(void)
{
    static const once_http_header lines[] = {
        {"Content-Type", "text/plain"}, {"X-Own", "1"},
        {"Set-Cookie", "a=" SECRET},    {"Idempotency-Status", "forged"},
        {"Connection", "X-Hop"},        {"X-Hop", "2"},
    };
    once_http_answer a = ONCE_HTTP_ANSWER_INIT;

    a.status = 201;
    a.headers = lines;
    a.n = sizeof(lines) / sizeof(lines[0]);
    a.body = (once_bytes){"made\n", 5};
    return a;
}

static int say(struct asked *a, const once_http_answer *answer)
{
    return settle(a, once_exchange_answer(a->x, answer, on_wake, &a->woken));
}

static const char *header(const struct asked *a, const char *name)
{
    const once_http_answer *r = once_exchange_reply(a->x);
    once_http_request q = ONCE_HTTP_REQUEST_INIT;

    q.headers = r->headers;
    q.n = r->n;
    return once_http_find(&q, name) != NULL ? once_http_find(&q, name) : "";
}

static int body_is(const struct asked *a, const char *text)
{
    once_bytes b = once_exchange_reply(a->x)->body;

    return b.size == strlen(text) &&
           (b.size == 0 || memcmp(b.data, text, b.size) == 0);
}

/* The same bytes as the gateway's. */
static int is_problem(const struct asked *a, int problem, int status)
{
    const once_http_answer *r = once_exchange_reply(a->x);
    char text[ONCE__PROBLEM_MAX];
    size_t size = once__problem_body(problem, status, 0, NULL, text);

    return T_OK(r->status ==
                (status != 0 ? status : once__problem_status(problem))) &&
           T_OK(r->body.size == size) &&
           T_OK(memcmp(r->body.data, text, size) == 0) &&
           T_OK(strcmp(header(a, "Content-Type"), "application/problem+json") ==
                0) &&
           T_OK(strcmp(header(a, "Cache-Control"), "no-store") == 0);
}

/* One request from its head to `status` and the marker; its claim's step. */
static void whole(struct world *w, const once_http_answer *answer, int status,
                  const char *word)
{
    struct asked a;
    int step;

    asked_init(&a);
    step = claim(w, &a);
    if (step == ONCE_HTTP_RUN || step == ONCE_HTTP_PASS) {
        if (T_OK(answer != NULL))
            step = say(&a, answer);
    }
    if (T_OK(step == ONCE_HTTP_SEND)) {
        T_EQ(once_exchange_reply(a.x)->status, status);
        T_STR(header(&a, "Idempotency-Status"), word);
    }
    asked_end(&a);
}

/* What ends a request that was begun elsewhere: the token is all there is. */
static int resume(struct world *w, struct asked *a, const char *token)
{
    return once_exchange_resume(w->guard, token, NULL, &a->x);
}

/* ---- Options ---------------------------------------------------------------- */

static int refusal(const once_guard_options *o, const char *member)
{
    once_engine *e = NULL;
    once_guard *g = NULL;
    once_error err = {0, ""};
    int rc;

    T_EQ(once_engine_open("memory:", NULL, NULL, &e), ONCE_OK);
    rc = once_guard_open(e, o, &err, &g);
    T_OK(g == NULL);
    T_OK(strncmp(err.text, member, strlen(member)) == 0);
    once_guard_close(g);
    once_engine_close(e);
    return rc;
}

static int some_scope(void *user, const once_http_request *r, char *out,
                      size_t max)
{
    (void)user;
    (void)r;
    (void)out;
    return (int)max + 1; /* It does not fit. */
}

static int one_scope(void *user, const once_http_request *r, char *out,
                     size_t max)
{
    (void)user;
    (void)r;
    return snprintf(out, max, "shop");
}

static void each_refusal_names_its_member(void)
{
    once_guard_options o;

#define REFUSED(member, set)                                                   \
    do {                                                                       \
        o = plain();                                                           \
        set;                                                                   \
        T_EQ(refusal(&o, member), ONCE_EINVAL);                                \
    } while (0)
    REFUSED("scope:", o.scope_off = 0);
    REFUSED("scope:", o.scope = some_scope);
    REFUSED("size:", o.size = 8);
    REFUSED("group:", o.group = "");
    REFUSED("group:", o.group = "two words");
    REFUSED("group:", o.group = "123456789012345678901234567890123");
    REFUSED("key:", o.key = "not a name");
    REFUSED("key_json:", o.key_json[0] = "id");
    REFUSED("key_json:", o.key_json[0] = "/a~2");
    REFUSED("key_json:", o.key_json[1] = "/id");
    REFUSED("key_json:", (o.key_json[0] = "/id", o.key_json[1] = "b"));
    REFUSED("key_json:", (o.key_json[0] = "/id", o.key = "X-Key"));
    REFUSED("key_json:", (o.key_json[0] = "/id", o.key_of = some_scope));
    REFUSED("methods:", o.methods = " ");
    REFUSED("methods:", o.methods = "POST P(T");
    REFUSED("final:", o.final = "");
    REFUSED("final:", o.final = "2xx good");
    REFUSED("final:", o.final = "1xx");
    REFUSED("fingerprint:", o.fingerprint = " ");
    REFUSED("fingerprint:", o.fingerprint = "body head");
    REFUSED("fingerprint:",
            (o.fingerprint = "body", o.fingerprint_of = some_scope));
    REFUSED("key:", (o.key = "X-Key", o.key_of = some_scope));
    REFUSED("release:", o.release = "");
    REFUSED("release:", o.release = "429 5xx");
    REFUSED("release:", o.release = "202");
    REFUSED("release:", (o.final = "2xx 429", o.release = "503 429"));
    REFUSED("unknown:", o.unknown = "");
    REFUSED("unknown:", o.unknown = "5xx");
    REFUSED("unknown:", o.unknown = "302");
    REFUSED("unknown:", o.unknown = "502 off");
    REFUSED("unknown:", (o.unknown = "503 502", o.final = "2xx 503"));
    REFUSED("unknown:", (o.unknown = "503", o.release = "429 503"));
    REFUSED("lease_ms:", o.lease_ms = ONCE_LEASE_MIN_MS - 1);
    REFUSED("lease_ms:", o.lease_ms = ONCE_LEASE_MAX_MS + 1);
    REFUSED("ttl_ms:", o.ttl_ms = 29999);
    REFUSED("ttl_ms:", o.ttl_ms = ONCE_KEEP_MAX_MS + 1);
    REFUSED("ttl_failure_ms:", o.ttl_failure_ms = 29999);
    REFUSED("ttl_failure_ms:", o.ttl_failure_ms = 86400001);
    REFUSED("key_time:", o.key_time = "uuid4");
    REFUSED("key_time:", (o.key_time = "ulid", o.ttl_ms = 3599999));
    REFUSED("key_time:", (o.key_time = "ulid", o.ttl_failure_ms = 3599999));
    REFUSED("key_time:", (o.key_time = "ulid", o.max_age_ms = 85500001));
    REFUSED("key_time:", (o.key_time = "ulid", o.lost = ONCE_LOST_TAKEOVER,
                          o.store_failure = ONCE_STORE_BYPASS));
    REFUSED("max_age_ms:", o.max_age_ms = 1);
    REFUSED("repeat:", o.repeat = 2);
    REFUSED("key_space:", o.key_space = 2);
    REFUSED("in_flight_ms:", o.in_flight_ms = 600001);
    REFUSED("max_response:", o.max_response = ONCE_RESULT_MAX + 1);
    REFUSED("store_failure:", o.store_failure = ONCE_STORE_BYPASS);
    REFUSED("store_failure:", o.store_failure = 2);
    REFUSED("lost:", o.lost = 2);
    REFUSED("two_phase:", o.two_phase = 2);
    REFUSED("dry_run:", o.dry_run = 7);
    REFUSED("probe:", o.probe = 2);
    REFUSED("probe:", (o.probe = 1, o.lost = ONCE_LOST_TAKEOVER));
    REFUSED("probe:", (o.probe = 1, o.dry_run = 1));
    REFUSED("hide_header:", o.hide_header = "X-A X:B");
    REFUSED("accept:", o.accept = "/status"); /* without a scope */
    REFUSED("accept:", (o.scope_off = 0, o.scope = some_scope,
                        o.key_space = ONCE_KEY_SPACE_REALM,
                        o.accept = "//other.test/status"));
    REFUSED("accept:",
            (o.scope_off = 0, o.scope = some_scope,
             o.key_space = ONCE_KEY_SPACE_PATH, o.accept = "/status"));
    REFUSED("key_space:", o.key_space = 2);
#undef REFUSED
}

/* A request with this body; what its claim leads to. */
static int claim_body(struct world *w, struct asked *a, const char *body)
{
    asked_init(a);
    a->body = body;
    return claim(w, a);
}

static void a_key_in_the_body_stands_in_place_of_the_header(void)
{
    once_guard_options o = plain();
    struct asked a, b, c;
    struct world w;
    once_http_answer answer = made();

    o.key_json[0] = "/id";
    begin_with(&w, "memory:", &o);
    T_EQ(claim_body(&w, &a, "{\"id\":\"a\\\"\\\\\"}"), ONCE_HTTP_RUN);
    T_STR(once_exchange_key(a.x), "\"a\\\"\\\\\"");
    T_EQ(say(&a, &answer), ONCE_HTTP_SEND);
    /* The same header, and another key: */
    T_EQ(claim_body(&w, &b, "{\"id\":7}"), ONCE_HTTP_RUN);
    T_STR(once_exchange_key(b.x), "\"7\"");
    T_OK(strcmp(once_exchange_record(a.x), once_exchange_record(b.x)) != 0);
    T_EQ(say(&b, &answer), ONCE_HTTP_SEND);
    /* Another header, and the same key: */
    asked_init(&c);
    c.body = "{\"id\":7}";
    c.key = NULL;
    T_EQ(claim(&w, &c), ONCE_HTTP_SEND);
    T_STR(header(&c, "Idempotency-Status"), "replayed");
    T_STR(once_exchange_record(b.x), once_exchange_record(c.x));
    asked_end(&a);
    asked_end(&b);
    asked_end(&c);
    end(&w);
}

static void a_body_without_a_key_passes_or_is_refused(void)
{
    once_guard_options o = plain();
    struct asked a;
    struct world w;
    uint32_t required;

    for (required = 0; required < 2; required++) {
        o.key_json[0] = "/id";
        o.key_required = required;
        begin_with(&w, "memory:", &o);
        T_EQ(claim_body(&w, &a, "{\"id\":null}"),
             required ? ONCE_HTTP_SEND : ONCE_HTTP_PASS);
        T_EQ(once_exchange_step(a.x),
             required ? ONCE_HTTP_SEND : ONCE_HTTP_PASS);
        T_OK(once_exchange_key(a.x) == NULL);
        T_STR(once_exchange_status(a.x), required ? "invalid" : "-");
        if (required)
            T_OK(is_problem(&a, ONCE__PROBLEM_KEY_MISSING, 0));
        asked_end(&a);
        end(&w);
    }
}

static void a_body_that_is_no_key_is_refused(void)
{
    static const char *const bodies[] = {
        "",
        "{",
        "{\"id\":1.0}",
        "{\"id\":\"a b\"}",
        "[]x",
        "{\"id\":\"a\",\"id\":\"b\",\"to\":1}",
        "{\"id\":1}",
        "{\"id\":null,\"to\":1}",
    };
    once_guard_options o = plain();
    struct asked a;
    struct world w;
    size_t i;

    o.key_json[0] = "/id";
    o.key_json[1] = "/to";
    begin_with(&w, "memory:", &o);
    for (i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        T_EQ(claim_body(&w, &a, bodies[i]), ONCE_HTTP_SEND);
        T_EQ(once_exchange_reply(a.x)->status, 400);
        T_STR(once_exchange_status(a.x), "invalid");
        asked_end(&a);
    }
    T_EQ(claim_body(&w, &a, "{\"id\":1,\"to\":\"x\"}"), ONCE_HTTP_RUN);
    T_STR(once_exchange_key(a.x), "\"1:1,1:x,\"");
    asked_end(&a);
    end(&w);
}

static void a_dry_run_leaves_the_header_to_the_client(void)
{
    once_guard_options o = plain();
    struct asked a;
    struct world w;

    o.key_json[0] = "/id";
    o.dry_run = 1;
    begin_with(&w, "memory:", &o);
    T_EQ(claim_body(&w, &a, "{\"id\":1}"), ONCE_HTTP_RUN);
    T_OK(once_exchange_key(a.x) == NULL);
    asked_end(&a);
    T_EQ(claim_body(&w, &a, "{"), ONCE_HTTP_PASS);
    asked_end(&a);
    end(&w);
}

/* A lookup has no body: the key goes into the header, as a String or bare. */
static void a_lookup_has_the_key_in_its_header(void)
{
    once_guard_options o = plain();
    struct asked a;
    struct world w;
    once_http_header line = {"Idempotency-Key", "\"7\""};
    once_http_request r = ONCE_HTTP_REQUEST_INIT;

    o.key_json[0] = "/id";
    o.scope_off = 0;
    o.scope = one_scope;
    begin_with(&w, "memory:", &o);
    r.method = "GET";
    r.target = "/pay";
    r.headers = &line;
    r.n = 1;
    asked_init(&a);
    T_EQ(once_exchange_lookup(w.guard, &r, 0, NULL, &a.x), ONCE_HTTP_READ);
    T_EQ(settle(&a, once_exchange_claim(a.x, on_wake, &a.woken)),
         ONCE_HTTP_SEND);
    T_EQ(once_exchange_reply(a.x)->status, 200);
    asked_end(&a);
    end(&w);
}

static void a_smaller_struct_of_an_older_program_is_taken(void)
{
    once_guard_options o = plain();
    struct world w;

    o.size = offsetof(once_guard_options, lease_ms);
    o.lease_ms = 1; /* not looked at */
    begin_with(&w, "memory:", &o);
    whole(&w, &(once_http_answer){.status = 200}, 200, "new");
    end(&w);
}

/* ---- Passing ------------------------------------------------------------------ */

static void other_methods_and_missing_keys_pass(void)
{
    once_http_answer answer = made();
    struct world w;
    int i;

    begin(&w);
    for (i = 0; i < 2; i++) {
        struct asked a;

        asked_init(&a);
        if (i == 0)
            a.method = "GET";
        else
            a.key = NULL;
        T_EQ(look(&w, &a), ONCE_HTTP_PASS);
        T_STR(once_exchange_status(a.x), "-");
        T_STR(once_exchange_hash(a.x), "-");
        T_EQ(once_exchange_attempt(a.x), 0);
        T_EQ(once_exchange_answer(a.x, &answer, on_wake, NULL), ONCE_HTTP_SEND);
        T_STR(header(&a, "Idempotency-Status"), "");
        T_STR(header(&a, "X-Own"), "1");
        asked_end(&a);
    }
    end(&w);
}

static void a_broken_handler_that_nobody_guards_drops(void)
{
    struct world w;
    struct asked a;

    begin(&w);
    asked_init(&a);
    a.key = NULL;
    T_EQ(look(&w, &a), ONCE_HTTP_PASS);
    T_EQ(once_exchange_broken(a.x, 502, on_wake, NULL), ONCE_HTTP_DROP);
    asked_end(&a);
    end(&w);
}

/* ---- The first and its repeats ------------------------------------------------ */

static void a_repeat_gets_the_first_answer(void)
{
    once_http_answer answer = made();
    struct asked first, again;
    struct world w;

    begin(&w);
    asked_init(&first);
    asked_init(&again);
    T_EQ(claim(&w, &first), ONCE_HTTP_RUN);
    T_EQ(once_exchange_attempt(first.x), 1);
    T_EQ(say(&first, &answer), ONCE_HTTP_SEND);
    T_STR(header(&first, "Idempotency-Status"), "new");
    T_STR(header(&first, "Set-Cookie"), "a=" SECRET);
    T_STR(header(&first, "Connection"), "");
    T_OK(body_is(&first, "made\n"));

    T_EQ(claim(&w, &again), ONCE_HTTP_SEND);
    T_EQ(once_exchange_reply(again.x)->status, 201);
    T_STR(header(&again, "Idempotency-Status"), "replayed");
    T_STR(header(&again, "Idempotent-Replayed"), "true");
    T_STR(header(&again, "X-Own"), "1");
    T_STR(header(&again, "X-Hop"), "");
    T_STR(header(&again, "Set-Cookie"), "");
    T_OK(body_is(&again, "made\n"));
    T_STR(once_exchange_hash(first.x), once_exchange_hash(again.x));
    asked_end(&first);
    asked_end(&again);
    end(&w);
}

static void the_answer_is_copied_before_the_store_is_asked(void)
{
    char name[] = "X-Own", value[] = "1", body[] = "made\n";
    once_http_header line = {name, value};
    once_http_answer answer = ONCE_HTTP_ANSWER_INIT;
    struct world w;
    struct asked a;
    int step;

    answer.status = 200;
    answer.headers = &line;
    answer.n = 1;
    answer.body = (once_bytes){body, 5};
    begin(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    step = once_exchange_answer(a.x, &answer, on_wake, &a.woken);
    memset(name, 'x', sizeof(name));
    memset(value, 'x', sizeof(value));
    memset(body, 'x', sizeof(body));
    line.name = line.value = NULL;
    T_EQ(settle(&a, step), ONCE_HTTP_SEND);
    T_STR(header(&a, "X-Own"), "1");
    T_OK(body_is(&a, "made\n"));
    asked_end(&a);
    end(&w);
}

static void an_owner_makes_others_wait_and_others_mismatch(void)
{
    once_http_answer answer = made();
    struct asked owner, same, other;
    struct world w;

    begin(&w);
    asked_init(&owner);
    asked_init(&same);
    asked_init(&other);
    other.body = "{} ";
    T_EQ(claim(&w, &owner), ONCE_HTTP_RUN);
    T_EQ(claim(&w, &same), ONCE_HTTP_SEND);
    T_OK(is_problem(&same, ONCE__PROBLEM_IN_FLIGHT, 0));
    T_STR(header(&same, "Retry-After"), "5");
    T_EQ(claim(&w, &other), ONCE_HTTP_SEND);
    T_OK(is_problem(&other, ONCE__PROBLEM_KEY_REUSED, 0));
    T_STR(header(&other, "Retry-After"), "");
    T_EQ(say(&owner, &answer), ONCE_HTTP_SEND);
    asked_end(&owner);
    asked_end(&same);
    asked_end(&other);
    end(&w);
}

static void targets_with_keys_of(uint32_t space)
{
    static const struct {
        const char *host, *target;
        int then[2]; /* where a key is of the realm, of the path */
    } others[] = {
        {"SHOP.test", "/pay?a=1", {ONCE_HTTP_SEND, ONCE_HTTP_SEND}},
        {"shop.test:8080", "/pay?a=1", {ONCE_HTTP_SEND, ONCE_HTTP_SEND}},
        {"ignored.test",
         "http://shop.test:80/pay?a=1",
         {ONCE_HTTP_SEND, ONCE_HTTP_SEND}},
        {"other.test", "/pay?a=1", {ONCE_HTTP_SEND, ONCE_HTTP_SEND}},
        {"", "/pay?a=1", {ONCE_HTTP_SEND, ONCE_HTTP_SEND}},
        {"shop.test", "/pa%79?a=1", {ONCE_HTTP_SEND, ONCE_HTTP_RUN}},
    };
    once_http_answer answer = made();
    struct world w;
    once_guard_options o = plain();
    size_t i;

    o.key_space = space;
    begin_with(&w, "memory:", &o);
    whole(&w, &answer, 201, "new");
    for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct asked a;

        asked_init(&a);
        a.host = others[i].host;
        a.target = others[i].target;
        T_EQ(claim(&w, &a), others[i].then[space]);
        asked_end(&a);
    }
    end(&w);
}

static void host_port_and_form_of_a_target_do_not_make_another_record(void)
{
    targets_with_keys_of(ONCE_KEY_SPACE_REALM);
    targets_with_keys_of(ONCE_KEY_SPACE_PATH);
}

static void the_realm_is_of_the_program_and_never_the_clients_host(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct asked a;
    struct world w;
    once_guard *other = NULL;

    begin(&w);
    whole(&w, &answer, 201, "new");
    o.realm = "shop.test";
    T_EQ(once_guard_open(w.engine, &o, NULL, &other), ONCE_OK);
    once_guard_close(w.guard);
    w.guard = other;
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    asked_end(&a);
    end(&w);
}

/* ---- What the handler says ------------------------------------------------------ */

static void each_outcome_is_what_it_says(void)
{
    static const struct {
        int outcome, status;
        const char *then; /* a repeat's marker */
        int then_status;
    } rows[] = {
        {ONCE_HTTP_BY_STATUS, 201, "replayed", 201},
        {ONCE_HTTP_BY_STATUS, 500, "replayed", 500},
        {ONCE_HTTP_BY_STATUS, 429, "new", 299},
        {ONCE_HTTP_APPLIED, 429, "replayed", 429},
        {ONCE_HTTP_NOT_APPLIED, 201, "new", 299},
        {ONCE_HTTP_NO_STORE, 201, "unstored", 409},
        {ONCE_HTTP_UNKNOWN, 201, "indeterminate", 409},
    };
    once_http_answer second = made();
    size_t i;

    second.status = 299;
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        once_http_answer answer = made();
        struct world w;

        answer.status = rows[i].status;
        answer.outcome = rows[i].outcome;
        begin(&w);
        whole(&w, &answer, rows[i].status, "new");
        whole(&w, &second, rows[i].then_status, rows[i].then);
        end(&w);
    }
}

static void a_header_may_say_the_outcome_and_is_not_sent(void)
{
    static const once_http_header line = {"idempotency-outcome", "NOT-applied"};
    once_http_answer answer = ONCE_HTTP_ANSWER_INIT;
    struct world w;
    struct asked a;

    answer.status = 500;
    answer.headers = &line;
    answer.n = 1;
    begin(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    T_EQ(say(&a, &answer), ONCE_HTTP_SEND);
    T_EQ(once_exchange_reply(a.x)->n, 1); /* our marker */
    asked_end(&a);
    whole(&w, &answer, 500, "new");
    end(&w);
}

static void a_stream_is_marked_before_it_begins(void)
{
    once_http_answer answer = made();
    struct world w;
    struct asked a;

    answer.streamed = 1;
    begin(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    /* A stream brings no body of its own. */
    T_EQ(once_exchange_answer(a.x, &answer, on_wake, &a.woken), ONCE_EINVAL);
    answer.body = (once_bytes){NULL, 0};
    T_EQ(say(&a, &answer), ONCE_HTTP_SEND);
    T_EQ(once_exchange_reply(a.x)->streamed, 1);
    whole(&w, NULL, 409, "unstored");
    asked_end(&a);
    end(&w);
}

static void an_answer_out_of_range_leaves_the_owner_as_it_was(void)
{
    once_http_answer answer = made();
    struct world w;
    struct asked a;

    begin(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    answer.status = 199;
    T_EQ(once_exchange_answer(a.x, &answer, on_wake, &a.woken), ONCE_EINVAL);
    answer.status = 600;
    T_EQ(once_exchange_answer(a.x, &answer, on_wake, &a.woken), ONCE_EINVAL);
    answer.status = 200;
    answer.outcome = 5;
    T_EQ(once_exchange_answer(a.x, &answer, on_wake, &a.woken), ONCE_EINVAL);
    answer.outcome = 0;
    T_EQ(say(&a, &answer), ONCE_HTTP_SEND);
    asked_end(&a);
    whole(&w, NULL, 200, "replayed");
    end(&w);
}

static void a_header_that_would_split_a_response_is_not_kept(void)
{
    static const once_http_header line = {"X-Own", "1\r\nX-" SECRET ": 2"};
    once_http_answer answer = ONCE_HTTP_ANSWER_INIT;
    struct world w;

    answer.status = 200;
    answer.headers = &line;
    answer.n = 1;
    begin(&w);
    whole(&w, &answer, 200, "new");
    T_OK(strstr(w.event, "not kept") != NULL);
    T_OK(strstr(w.event, SECRET) == NULL);
    whole(&w, NULL, 409, "unstored");
    end(&w);
}

static void a_handler_that_breaks_is_unknown(void)
{
    int status;

    for (status = 502; status <= 504; status += 2) {
        struct world w;
        struct asked a;

        begin(&w);
        asked_init(&a);
        T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
        T_EQ(settle(&a, once_exchange_broken(a.x, status, on_wake, &a.woken)),
             ONCE_HTTP_SEND);
        T_OK(is_problem(&a, ONCE__PROBLEM_OUTCOME_UNKNOWN, status));
        T_STR(once_exchange_status(a.x), "indeterminate");
        whole(&w, NULL, 409, "indeterminate");
        asked_end(&a);
        end(&w);
    }
}

/* ---- Ends -------------------------------------------------------------------------- */

static void a_handler_that_was_begun_and_forgotten_is_unknown(void)
{
    struct world w;
    struct asked a;

    begin(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    asked_end(&a);
    whole(&w, NULL, 409, "indeterminate");
    end(&w);
}

static void a_grant_that_nobody_looked_at_is_released(void)
{
    once_http_answer answer = made();
    struct world w;
    struct asked a;

    begin(&w);
    asked_init(&a);
    T_EQ(look(&w, &a), ONCE_HTTP_READ);
    (void)once_exchange_body(a.x, a.body, strlen(a.body));
    T_EQ(once_exchange_claim(a.x, on_wake, &a.woken), ONCE_HTTP_WAIT);
    while (sem_wait(&a.woken) != 0)
        ;
    asked_end(&a);
    whole(&w, &answer, 201, "new");
    end(&w);
}

/* ---- In another process ----------------------------------------------------- */

static void an_exchange_is_ended_by_its_token(void)
{
    once_http_answer answer = made();
    char token[ONCE_EXCHANGE_TOKEN];
    struct asked a, b;
    struct world w;
    int i;

    begin(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    once_exchange_token(a.x, token);
    for (i = 0; i < 2; i++) { /* the second time nobody knows of the first */
        asked_init(&b);
        T_EQ(resume(&w, &b, token), ONCE_HTTP_RUN);
        T_EQ(once_exchange_step(b.x), ONCE_HTTP_RUN);
        T_EQ(once_exchange_attempt(b.x), 1);
        T_STR(once_exchange_record(b.x), once_exchange_record(a.x));
        T_EQ(say(&b, &answer), ONCE_HTTP_SEND);
        T_EQ(once_exchange_is_own(b.x), 1);
        T_STR(header(&b, "Idempotency-Status"), "new");
        T_STR(header(&b, "X-Own"), "1");
        T_OK(body_is(&b, "made\n"));
        asked_end(&b);
    }
    whole(&w, NULL, 201, "replayed");
    /* Another answer is not taken: the client gets what is recorded. */
    asked_init(&b);
    T_EQ(resume(&w, &b, token), ONCE_HTTP_RUN);
    answer.body = (once_bytes){"other\n", 6};
    T_EQ(say(&b, &answer), ONCE_HTTP_SEND);
    T_EQ(once_exchange_is_own(b.x), 0);
    T_OK(body_is(&b, "made\n"));
    asked_end(&b);
    asked_end(&a);
    whole(&w, NULL, 201, "replayed");
    end(&w);
}

static void a_resumed_exchange_breaks_and_is_abandoned(void)
{
    once_http_answer answer = made();
    char token[ONCE_EXCHANGE_TOKEN];
    struct asked a, b;
    struct world w;
    int i;

    begin(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    once_exchange_token(a.x, token);
    asked_init(&b);
    T_EQ(resume(&w, &b, token), ONCE_HTTP_RUN);
    asked_end(&b); /* gives nothing up */
    whole(&w, NULL, 409, "in_flight");
    for (i = 0; i < 2; i++) {
        asked_init(&b);
        T_EQ(resume(&w, &b, token), ONCE_HTTP_RUN);
        T_EQ(settle(&b, once_exchange_broken(b.x, 504, on_wake, &b.woken)),
             ONCE_HTTP_SEND);
        T_OK(is_problem(&b, ONCE__PROBLEM_OUTCOME_UNKNOWN, 504));
        asked_end(&b);
    }
    whole(&w, NULL, 409, "indeterminate");
    /* The late answer is taken, as from any owner. */
    asked_init(&b);
    T_EQ(resume(&w, &b, token), ONCE_HTTP_RUN);
    T_EQ(say(&b, &answer), ONCE_HTTP_SEND);
    T_EQ(once_exchange_is_own(b.x), 1);
    asked_end(&b);
    /* And who says then that it broke gets what is recorded. */
    asked_init(&b);
    T_EQ(resume(&w, &b, token), ONCE_HTTP_RUN);
    T_EQ(settle(&b, once_exchange_broken(b.x, 502, on_wake, &b.woken)),
         ONCE_HTTP_SEND);
    T_OK(body_is(&b, "made\n"));
    T_STR(header(&b, "Idempotency-Status"), "replayed");
    asked_end(&b);
    asked_end(&a);
    whole(&w, NULL, 201, "replayed");

    asked_init(&a);
    a.key = "k-2-" SECRET;
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    once_exchange_token(a.x, token);
    asked_init(&b);
    T_EQ(resume(&w, &b, token), ONCE_HTTP_RUN);
    once_exchange_abandon(b.x);
    asked_end(&b);
    asked_init(&b);
    b.key = a.key;
    T_EQ(claim(&w, &b), ONCE_HTTP_RUN);
    T_EQ(once_exchange_attempt(b.x), 2);
    T_EQ(say(&b, &answer), ONCE_HTTP_SEND);
    asked_end(&b);
    asked_end(&a);
    end(&w);
}

/* What it had made to look for an earlier end is freed: a check of leaks sees it. */
static void an_end_that_cannot_be_asked_for_leaves_nothing(void)
{
    struct asked a;
    struct world w;
    int i;

    begin(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    once_engine_close(w.engine);
    for (i = 0; i < 3; i++)
        T_OK(once_exchange_broken(a.x, 502, on_wake, &a.woken) < 0);
    asked_end(&a);
    once_guard_close(w.guard);
}

static void a_token_that_was_changed_ends_nothing(void)
{
    once_http_answer answer = made();
    char token[ONCE_EXCHANGE_TOKEN], changed[ONCE_EXCHANGE_TOKEN + 1];
    struct asked a, b;
    struct world w;
    size_t i;

    begin(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    once_exchange_token(a.x, token);
    for (i = 0; i <= strlen(token); i++) {
        asked_init(&b);
        snprintf(changed, sizeof(changed), "%s", token);
        changed[i] = (char)(i == strlen(token) ? 'A'
                            : token[i] == 'A'  ? 'B'
                                               : 'A');
        if (resume(&w, &b, changed) == ONCE_HTTP_RUN &&
            i < (ONCE_NAME_SIZE / 3) * 4) {
            /* Another record's name: there is none. */
            T_EQ(say(&b, &answer), ONCE_HTTP_SEND);
            T_EQ(once_exchange_is_own(b.x), 0);
        } else if (b.x != NULL && i > 88 && i < 117) { /* id and fence */
            T_EQ(say(&b, &answer), ONCE_HTTP_SEND);
            T_EQ(once_exchange_is_own(b.x), 0);
        }
        asked_end(&b);
    }
    /* The last of it says of which kind it is. */
    snprintf(changed, sizeof(changed), "%s", token);
    changed[strlen(changed) - 1] = 'B';
    T_EQ(resume(&w, &b, changed), ONCE_EINVAL);
    T_EQ(resume(&w, &b, ""), ONCE_EINVAL);
    T_EQ(resume(&w, &b, "00"), ONCE_EINVAL);
    whole(&w, NULL, 409, "in_flight");
    T_EQ(say(&a, &answer), ONCE_HTTP_SEND);
    asked_end(&a);
    end(&w);
}

static void who_claims_again_with_the_id_is_the_same_owner(void)
{
    static const uint8_t id[ONCE_TOKEN_SIZE] = {7, 7, 7};
    once_http_answer answer = made();
    char first[ONCE_EXCHANGE_TOKEN], second[ONCE_EXCHANGE_TOKEN];
    struct asked a, b;
    struct world w;

    begin(&w);
    asked_init(&a);
    a.id = id;
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    once_exchange_token(a.x, first);
    whole(&w, NULL, 409, "in_flight");
    asked_init(&b);
    b.id = id;
    T_EQ(claim(&w, &b), ONCE_HTTP_RUN);
    once_exchange_token(b.x, second);
    T_STR(first, second);
    T_EQ(say(&b, &answer), ONCE_HTTP_SEND);
    asked_end(&b);
    asked_end(&a);
    whole(&w, NULL, 201, "replayed");
    end(&w);
}

static void an_abandoned_run_is_released(void)
{
    once_http_answer answer = made();
    struct world w;
    struct asked a;

    begin(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    once_exchange_abandon(a.x);
    asked_end(&a);
    whole(&w, &answer, 201, "new");
    end(&w);
}

static void a_cancelled_waiter_is_told_to_come_again(void)
{
    once_guard_options o = plain();
    struct asked owner, waiter;
    struct world w;

    o.in_flight_ms = 600000;
    begin_with(&w, "memory:", &o);
    asked_init(&owner);
    asked_init(&waiter);
    T_EQ(claim(&w, &owner), ONCE_HTTP_RUN);
    T_EQ(look(&w, &waiter), ONCE_HTTP_READ);
    (void)once_exchange_body(waiter.x, waiter.body, strlen(waiter.body));
    T_EQ(once_exchange_claim(waiter.x, on_wake, &waiter.woken), ONCE_HTTP_WAIT);
    T_EQ(once_exchange_step(waiter.x), ONCE_HTTP_WAIT);
    once_exchange_cancel(waiter.x);
    T_EQ(settle(&waiter, ONCE_HTTP_WAIT), ONCE_HTTP_SEND);
    T_OK(is_problem(&waiter, ONCE__PROBLEM_IN_FLIGHT, 0));
    asked_end(&waiter);
    asked_end(&owner);
    end(&w);
}

/* ---- Limits, scopes, dry runs --------------------------------------------------- */

static void a_body_over_the_limit_is_413_and_claims_nothing(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;
    struct asked a;

    o.max_request = 4;
    begin_with(&w, "memory:", &o);
    asked_init(&a);
    T_EQ(look(&w, &a), ONCE_HTTP_READ);
    T_EQ(once_exchange_body(a.x, "1234", 4), ONCE_OK);
    T_EQ(once_exchange_body(a.x, "5", 1), ONCE_ELIMIT);
    T_EQ(once_exchange_body(a.x, "", 0), ONCE_ELIMIT);
    T_EQ(once_exchange_claim(a.x, on_wake, &a.woken), ONCE_HTTP_SEND);
    T_EQ(once_exchange_reply(a.x)->status, 413);
    asked_end(&a);
    whole(&w, &answer, 201, "new");
    end(&w);
}

static int scope_of(void *user, const once_http_request *r, char *out,
                    size_t max)
{
    const char *type = once_http_find(r, "Content-Type");

    (void)user;
    T_OK(max >= 16 && type != NULL);
    memcpy(out, type, 11);
    return 11;
}

static void a_scope_that_cannot_be_told_is_401(void)
{
    once_guard_options o = ONCE_GUARD_OPTIONS_INIT;
    struct world w;
    struct asked a;

    o.scope = some_scope;
    begin_with(&w, "memory:", &o);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_SEND);
    T_OK(is_problem(&a, ONCE__PROBLEM_SCOPE_MISSING, 0));
    asked_end(&a);
    end(&w);
}

static void a_scope_is_part_of_the_name(void)
{
    once_guard_options o = ONCE_GUARD_OPTIONS_INIT;
    once_http_answer answer = made();
    struct asked a, b;
    struct world w, v;

    o.scope = scope_of;
    begin_with(&w, "memory:", &o);
    begin(&v);
    whole(&w, &answer, 201, "new");
    whole(&w, NULL, 201, "replayed");
    asked_init(&a);
    asked_init(&b);
    T_EQ(claim(&w, &a), ONCE_HTTP_SEND);
    T_EQ(claim(&v, &b), ONCE_HTTP_RUN);
    T_OK(strcmp(once_exchange_hash(a.x), once_exchange_hash(b.x)) != 0);
    asked_end(&a);
    asked_end(&b);
    end(&v);
    end(&w);
}

/* Claims with another method and path, after "POST /pay" was answered. */
static void other_target(struct world *w, const char *method,
                         const char *target, int step, const char *word)
{
    struct asked a;

    asked_init(&a);
    a.method = method;
    a.target = target;
    T_EQ(claim(w, &a), step);
    T_STR(once_exchange_status(a.x), word);
    if (step == ONCE_HTTP_SEND)
        T_OK(is_problem(&a, ONCE__PROBLEM_KEY_REUSED, 0));
    asked_end(&a);
}

static void a_key_on_another_path_or_method_is_refused(void)
{
    once_http_answer answer = made();
    struct world w;

    begin(&w);
    whole(&w, &answer, 201, "new");
    other_target(&w, "POST", "/pay/?a=1", ONCE_HTTP_SEND, "mismatch");
    other_target(&w, "PATCH", "/pay?a=1", ONCE_HTTP_SEND, "mismatch");
    whole(&w, NULL, 201, "replayed");
    end(&w);
}

static void method_and_path_count_beside_a_computed_fingerprint(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;

    o.fingerprint_of = scope_of; /* the same text for each request */
    begin_with(&w, "memory:", &o);
    whole(&w, &answer, 201, "new");
    other_target(&w, "POST", "/pay/?a=1", ONCE_HTTP_SEND, "mismatch");
    other_target(&w, "PATCH", "/pay?a=1", ONCE_HTTP_SEND, "mismatch");
    whole(&w, NULL, 201, "replayed");
    end(&w);
}

static void a_key_of_a_path_is_another_one_elsewhere(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;

    o.key_space = ONCE_KEY_SPACE_PATH;
    begin_with(&w, "memory:", &o);
    whole(&w, &answer, 201, "new");
    other_target(&w, "POST", "/pay/?a=1", ONCE_HTTP_RUN, "new");
    other_target(&w, "PATCH", "/pay?a=1", ONCE_HTTP_RUN, "new");
    whole(&w, NULL, 201, "replayed");
    end(&w);
}

static void a_lookup_needs_keys_that_are_not_of_a_path(void)
{
    once_guard_options o = ONCE_GUARD_OPTIONS_INIT;
    once_http_request r = ONCE_HTTP_REQUEST_INIT;
    once_exchange *x = NULL;
    once_error err = {0, ""};
    struct world w;

    o.scope = scope_of;
    o.key_space = ONCE_KEY_SPACE_PATH;
    begin_with(&w, "memory:", &o);
    r.method = "GET";
    r.target = "/status";
    T_EQ(once_exchange_lookup(w.guard, &r, 0, &err, &x), ONCE_EINVAL);
    T_OK(strstr(err.text, "key_space") != NULL);
    T_OK(x == NULL);
    end(&w);
}

/* The step and the problem for an answer of `status`; then a repeat's. */
static void lost_by_status(struct world *w, const once_http_answer *answer)
{
    struct asked a;

    asked_init(&a);
    T_EQ(claim(w, &a), ONCE_HTTP_RUN);
    T_EQ(say(&a, answer), ONCE_HTTP_SEND);
    T_OK(is_problem(&a, ONCE__PROBLEM_OUTCOME_UNKNOWN, answer->status));
    T_EQ(once_exchange_reply(a.x)->streamed, 0);
    asked_end(&a);
    asked_init(&a);
    T_EQ(claim(w, &a), ONCE_HTTP_SEND);
    T_OK(is_problem(&a, ONCE__PROBLEM_OUTCOME_UNKNOWN, 409));
    asked_end(&a);
}

static void a_gateways_error_is_no_outcome(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;

    begin(&w);
    answer.status = 502;
    lost_by_status(&w, &answer);
    end(&w);
    begin(&w);
    answer.status = 504;
    answer.streamed = 1;
    answer.body = (once_bytes){NULL, 0};
    lost_by_status(&w, &answer);
    end(&w);
    o.unknown = "503";
    begin_with(&w, "memory:", &o);
    answer = made();
    answer.status = 503;
    lost_by_status(&w, &answer);
    end(&w);
}

static void a_gateways_error_may_be_an_outcome(void)
{
    static const struct {
        const char *unknown, *final;
        int outcome;
    } rows[] = {
        {"off", NULL, ONCE_HTTP_BY_STATUS},
        {"503", NULL, ONCE_HTTP_BY_STATUS},
        {NULL, "2xx 3xx 4xx 5xx 502", ONCE_HTTP_BY_STATUS},
        {NULL, NULL, ONCE_HTTP_APPLIED},
    };
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;
    size_t i;

    answer.status = 502;
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        o.unknown = rows[i].unknown;
        o.final = rows[i].final;
        answer.outcome = rows[i].outcome;
        begin_with(&w, "memory:", &o);
        whole(&w, &answer, 502, "new");
        whole(&w, NULL, 502, "replayed");
        end(&w);
    }
}

/* ---- What became of it ------------------------------------------------------ */

/* GET /status with the same key; the answer begins as `text`. */
static void is_told(struct world *w, const char *method, const char *text)
{
    const once_http_answer *r;
    struct asked a;

    asked_init(&a);
    a.lookup = 1;
    a.method = method;
    a.target = "/status";
    if (T_OK(claim(w, &a) == ONCE_HTTP_SEND)) {
        r = once_exchange_reply(a.x);
        T_EQ(r->status, 200);
        T_STR(header(&a, "Content-Type"), "application/json");
        T_STR(header(&a, "Cache-Control"), "no-store");
        T_STR(header(&a, "Idempotency-Status"), "");
        T_STR(header(&a, "Location"), "");
        T_OK(r->body.size > strlen(text) &&
             memcmp(r->body.data, text, strlen(text)) == 0);
    }
    asked_end(&a);
}

static void a_lookup_tells_each_state_and_changes_none(void)
{
    once_guard_options o = ONCE_GUARD_OPTIONS_INIT;
    once_http_answer answer = made();
    struct asked owner;
    struct world w;

    o.scope = scope_of;
    o.key_space = ONCE_KEY_SPACE_REALM;
    begin_with(&w, "memory:", &o);
    asked_init(&owner);
    is_told(&w, "GET", "{\"state\":\"absent\",\"attempt\":null,");
    T_EQ(claim(&w, &owner), ONCE_HTTP_RUN); /* not taken by who looked */
    is_told(&w, "GET", "{\"state\":\"in-flight\",\"attempt\":1,");
    T_EQ(say(&owner, &answer), ONCE_HTTP_SEND);
    is_told(&w, "HEAD", "{\"state\":\"completed\",\"attempt\":1,");
    whole(&w, NULL, 201, "replayed");
    asked_end(&owner);
    end(&w);
}

static void a_lookup_that_cannot_be_is_refused(void)
{
    once_guard_options o = ONCE_GUARD_OPTIONS_INIT;
    once_http_request r = ONCE_HTTP_REQUEST_INIT;
    once_exchange *x = NULL;
    once_error err = {0, ""};
    struct world w, v;
    struct asked a;

    begin(&w); /* without a scope */
    r.method = "GET";
    r.target = "/status";
    T_EQ(once_exchange_lookup(w.guard, &r, 0, &err, &x), ONCE_EINVAL);
    T_OK(strstr(err.text, "scope") != NULL);
    o.scope = scope_of;
    o.key_space = ONCE_KEY_SPACE_PATH;
    begin_with(&v, "memory:", &o);
    T_EQ(once_exchange_lookup(v.guard, &r, 0, &err, &x), ONCE_EINVAL);
    T_OK(strstr(err.text, "key_space") != NULL);
    end(&v);
    o.scope = scope_of;
    o.key_space = ONCE_KEY_SPACE_REALM;
    begin_with(&v, "memory:", &o);
    T_EQ(once_exchange_lookup(v.guard, &r, 600001, &err, &x), ONCE_EINVAL);
    T_OK(strstr(err.text, "600000") != NULL);
    T_OK(x == NULL);
    asked_init(&a);
    a.lookup = 1; /* by POST */
    T_EQ(claim(&v, &a), ONCE_HTTP_SEND);
    T_EQ(once_exchange_reply(a.x)->status, 405);
    T_STR(header(&a, "Allow"), "GET, HEAD");
    asked_end(&a);
    asked_init(&a);
    a.lookup = 1;
    a.method = "GET";
    a.key = NULL;
    T_EQ(claim(&v, &a), ONCE_HTTP_SEND);
    T_OK(is_problem(&a, ONCE__PROBLEM_KEY_MISSING, 0));
    asked_end(&a);
    end(&v);
    end(&w);
}

static void a_cancelled_lookup_tells_what_is_known(void)
{
    once_guard_options o = ONCE_GUARD_OPTIONS_INIT;
    struct asked owner, waiter;
    struct world w;

    o.scope = scope_of;
    o.key_space = ONCE_KEY_SPACE_REALM;
    begin_with(&w, "memory:", &o);
    asked_init(&owner);
    asked_init(&waiter);
    T_EQ(claim(&w, &owner), ONCE_HTTP_RUN);
    waiter.lookup = 1;
    waiter.method = "GET";
    waiter.target = "/status?wait=10m";
    waiter.wait_ms = 600000;
    T_EQ(look(&w, &waiter), ONCE_HTTP_READ);
    T_EQ(once_exchange_claim(waiter.x, on_wake, &waiter.woken), ONCE_HTTP_WAIT);
    once_exchange_cancel(waiter.x);
    T_EQ(settle(&waiter, ONCE_HTTP_WAIT), ONCE_HTTP_SEND);
    T_OK(memcmp(once_exchange_reply(waiter.x)->body.data,
                "{\"state\":\"in-flight\"", 20) == 0);
    asked_end(&waiter);
    asked_end(&owner);
    end(&w);
}

static void a_repeat_in_flight_may_be_told_where_to_ask(void)
{
    once_guard_options o = ONCE_GUARD_OPTIONS_INIT;
    struct asked owner, same, other;
    char path[] = "/status";
    struct world w;

    o.scope = scope_of;
    o.key_space = ONCE_KEY_SPACE_REALM;
    o.accept = path;
    begin_with(&w, "memory:", &o);
    path[1] = 'X'; /* it was copied */
    asked_init(&owner);
    asked_init(&same);
    asked_init(&other);
    other.body = "{} ";
    T_EQ(claim(&w, &owner), ONCE_HTTP_RUN);
    T_EQ(claim(&w, &same), ONCE_HTTP_SEND);
    T_EQ(once_exchange_reply(same.x)->status, 202);
    T_STR(header(&same, "Location"), "/status");
    T_STR(header(&same, "Retry-After"), "5");
    T_STR(header(&same, "Cache-Control"), "no-store");
    T_STR(header(&same, "Idempotency-Status"), "in_flight");
    T_OK(memcmp(once_exchange_reply(same.x)->body.data,
                "{\"state\":\"in-flight\"", 20) == 0);
    is_told(&w, "GET", "{\"state\":\"in-flight\"");
    T_EQ(claim(&w, &other), ONCE_HTTP_SEND);
    T_OK(is_problem(&other, ONCE__PROBLEM_KEY_REUSED, 0));
    asked_end(&owner);
    asked_end(&same);
    asked_end(&other);
    end(&w);
}

static void a_dry_run_records_and_lets_everything_pass(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;
    struct asked a;

    o.dry_run = 1;
    begin_with(&w, "memory:", &o);
    whole(&w, &answer, 201, "");
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_PASS);
    T_STR(once_exchange_status(a.x), "replayed");
    T_STR(once_exchange_would(a.x), "run_again");
    T_OK(once_exchange_apart(a.x) >= 0);
    answer.status = 202;
    T_EQ(say(&a, &answer), ONCE_HTTP_SEND);
    T_EQ(once_exchange_reply(a.x)->status, 202);
    asked_end(&a);
    asked_init(&a);
    a.key = "a-gateways-error";
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    answer.status = 502;
    T_EQ(say(&a, &answer), ONCE_HTTP_SEND);
    T_EQ(once_exchange_reply(a.x)->status, 502);
    T_EQ(once_exchange_reply(a.x)->body.size, answer.body.size);
    asked_end(&a);
    asked_init(&a);
    a.key = "a,b";
    T_EQ(look(&w, &a), ONCE_HTTP_PASS);
    T_STR(once_exchange_would(a.x), "refuse");
    T_EQ(once_exchange_apart(a.x), -1);
    T_STR(once_exchange_status(a.x), "invalid");
    asked_end(&a);
    asked_init(&a);
    a.key = "another";
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    T_EQ(settle(&a, once_exchange_broken(a.x, 502, on_wake, &a.woken)),
         ONCE_HTTP_DROP);
    asked_end(&a);
    end(&w);
}

/* ---- An unknown outcome that resolves itself ---------------------------------- */

static int say_probed(struct asked *a, const once_http_answer *answer)
{
    return settle(a, once_exchange_probed(a->x, answer, on_wake, &a->woken));
}

static void lose(struct world *w)
{
    struct asked a;

    asked_init(&a);
    T_EQ(claim(w, &a), ONCE_HTTP_RUN);
    T_EQ(strlen(once_exchange_record(a.x)), 64);
    T_EQ(settle(&a, once_exchange_broken(a.x, 502, on_wake, &a.woken)),
         ONCE_HTTP_SEND);
    asked_end(&a);
}

static void what_a_program_says_was_applied_is_recorded(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;
    struct asked a;

    o.probe = 1;
    begin_with(&w, "memory:", &o);
    lose(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_PROBE);
    T_EQ(once_exchange_step(a.x), ONCE_HTTP_PROBE);
    T_EQ(once_exchange_attempt(a.x), 1);
    answer.outcome = ONCE_HTTP_APPLIED;
    T_EQ(say_probed(&a, &answer), ONCE_HTTP_SEND);
    T_STR(once_exchange_status(a.x), "replayed");
    T_EQ(once_exchange_reply(a.x)->status, 201);
    asked_end(&a);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_SEND);
    T_STR(once_exchange_status(a.x), "replayed");
    asked_end(&a);
    end(&w);
}

/* None but the first is asked about again within the second. */
static void anything_else_stays_unknown(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;
    struct asked a, b;

    o.probe = 1;
    begin_with(&w, "memory:", &o);
    lose(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_PROBE);
    asked_init(&b);
    T_EQ(claim(&w, &b), ONCE_HTTP_SEND);
    T_OK(is_problem(&b, ONCE__PROBLEM_OUTCOME_UNKNOWN, 0));
    asked_end(&b);
    answer.outcome = ONCE_HTTP_NOT_APPLIED;
    T_EQ(say_probed(&a, &answer), ONCE_HTTP_SEND);
    T_OK(is_problem(&a, ONCE__PROBLEM_OUTCOME_UNKNOWN, 0));
    asked_end(&a);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_SEND);
    T_OK(is_problem(&a, ONCE__PROBLEM_OUTCOME_UNKNOWN, 0));
    asked_end(&a);
    end(&w);
}

/* A client may leave while the service is being asked. */
static void an_exchange_may_end_while_it_is_asked(void)
{
    once_guard_options o = plain();
    struct world w;
    struct asked a;

    o.probe = 1;
    begin_with(&w, "memory:", &o);
    lose(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_PROBE);
    asked_end(&a);
    end(&w);
}

static void a_decision_that_the_store_does_not_take_stays_unknown(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;
    struct asked a;

    o.probe = 1;
    o.store_ms = 20;
    begin_with(&w, "faulty:fail=resolve:1-*@memory:", &o);
    lose(&w);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_PROBE);
    answer.outcome = ONCE_HTTP_APPLIED;
    T_EQ(say_probed(&a, &answer), ONCE_HTTP_SEND);
    T_OK(is_problem(&a, ONCE__PROBLEM_OUTCOME_UNKNOWN, 0));
    asked_end(&a);
    end(&w);
}

/* ---- A store that fails ------------------------------------------------------------ */

static void a_store_that_fails_at_the_claim_is_503(void)
{
    once_guard_options o = plain();
    struct world w;
    struct asked a;

    o.store_ms = 20;
    begin_with(&w, "faulty:fail=claim:1-*@memory:", &o);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_SEND);
    T_OK(is_problem(&a, ONCE__PROBLEM_STORE_UNAVAILABLE, 0));
    T_STR(header(&a, "Retry-After"), "1");
    asked_end(&a);
    end(&w);
}

static void a_bypass_passes_and_says_so(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;

    o.store_ms = 20;
    o.lost = ONCE_LOST_TAKEOVER;
    o.store_failure = ONCE_STORE_BYPASS;
    begin_with(&w, "faulty:fail=claim:1-*@memory:", &o);
    whole(&w, &answer, 201, "unprotected");
    whole(&w, &answer, 201, "unprotected");
    end(&w);
}

static void an_answer_that_is_not_recorded_is_not_told(void)
{
    once_guard_options o = plain();
    once_http_answer answer = made();
    struct world w;
    struct asked a;

    o.lease_ms = 100;
    o.ttl_ms = 100;
    o.store_ms = 20;
    begin_with(&w, "faulty:fail=complete:1-*@memory:", &o);
    asked_init(&a);
    T_EQ(claim(&w, &a), ONCE_HTTP_RUN);
    T_EQ(say(&a, &answer), ONCE_HTTP_SEND);
    T_OK(is_problem(&a, ONCE__PROBLEM_OUTCOME_UNKNOWN, 502));
    T_STR(header(&a, "X-Own"), "");
    asked_end(&a);
    end(&w);
}

static void a_request_that_ends_before_its_claim_has_claimed_nothing(void)
{
    once_http_answer answer = made();
    struct world w;
    struct asked a;

    begin(&w);
    asked_init(&a);
    T_EQ(look(&w, &a), ONCE_HTTP_READ);
    (void)once_exchange_body(a.x, "half", 4);
    asked_end(&a);
    whole(&w, &answer, 201, "new");
    end(&w);
}

/* ---- Many threads ------------------------------------------------------------------- */

enum { THREADS = 8 };

struct racer {
    struct world *w;
    pthread_t thread;
    int ran, sent;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    once_http_answer answer = made();
    struct asked a;
    int step;

    asked_init(&a);
    step = claim(r->w, &a);
    r->ran = step == ONCE_HTTP_RUN;
    if (r->ran)
        step = say(&a, &answer);
    r->sent = step == ONCE_HTTP_SEND;
    asked_end(&a);
    return NULL;
}

static void of_many_threads_one_runs(void)
{
    struct racer racers[THREADS];
    once_guard_options o = plain();
    struct world w;
    int i, ran = 0, sent = 0;

    o.in_flight_ms = 60000;
    begin_with(&w, "memory:", &o);
    memset(racers, 0, sizeof(racers));
    for (i = 0; i < THREADS; i++) {
        racers[i].w = &w;
        T_EQ(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
    }
    for (i = 0; i < THREADS; i++) {
        (void)pthread_join(racers[i].thread, NULL);
        ran += racers[i].ran;
        sent += racers[i].sent;
    }
    T_EQ(ran, 1);
    T_EQ(sent, THREADS);
    end(&w);
}

int main(void)
{
    T_RUN(each_refusal_names_its_member);
    T_RUN(a_key_in_the_body_stands_in_place_of_the_header);
    T_RUN(a_body_without_a_key_passes_or_is_refused);
    T_RUN(a_body_that_is_no_key_is_refused);
    T_RUN(a_dry_run_leaves_the_header_to_the_client);
    T_RUN(a_lookup_has_the_key_in_its_header);
    T_RUN(a_smaller_struct_of_an_older_program_is_taken);
    T_RUN(other_methods_and_missing_keys_pass);
    T_RUN(a_broken_handler_that_nobody_guards_drops);
    T_RUN(a_repeat_gets_the_first_answer);
    T_RUN(the_answer_is_copied_before_the_store_is_asked);
    T_RUN(an_owner_makes_others_wait_and_others_mismatch);
    T_RUN(host_port_and_form_of_a_target_do_not_make_another_record);
    T_RUN(the_realm_is_of_the_program_and_never_the_clients_host);
    T_RUN(each_outcome_is_what_it_says);
    T_RUN(a_header_may_say_the_outcome_and_is_not_sent);
    T_RUN(a_stream_is_marked_before_it_begins);
    T_RUN(an_answer_out_of_range_leaves_the_owner_as_it_was);
    T_RUN(a_header_that_would_split_a_response_is_not_kept);
    T_RUN(a_handler_that_breaks_is_unknown);
    T_RUN(a_handler_that_was_begun_and_forgotten_is_unknown);
    T_RUN(a_grant_that_nobody_looked_at_is_released);
    T_RUN(an_exchange_is_ended_by_its_token);
    T_RUN(a_resumed_exchange_breaks_and_is_abandoned);
    T_RUN(an_end_that_cannot_be_asked_for_leaves_nothing);
    T_RUN(a_token_that_was_changed_ends_nothing);
    T_RUN(who_claims_again_with_the_id_is_the_same_owner);
    T_RUN(an_abandoned_run_is_released);
    T_RUN(a_cancelled_waiter_is_told_to_come_again);
    T_RUN(a_body_over_the_limit_is_413_and_claims_nothing);
    T_RUN(a_scope_that_cannot_be_told_is_401);
    T_RUN(a_scope_is_part_of_the_name);
    T_RUN(a_key_on_another_path_or_method_is_refused);
    T_RUN(method_and_path_count_beside_a_computed_fingerprint);
    T_RUN(a_key_of_a_path_is_another_one_elsewhere);
    T_RUN(a_lookup_needs_keys_that_are_not_of_a_path);
    T_RUN(a_gateways_error_is_no_outcome);
    T_RUN(a_gateways_error_may_be_an_outcome);
    T_RUN(a_lookup_tells_each_state_and_changes_none);
    T_RUN(a_lookup_that_cannot_be_is_refused);
    T_RUN(a_cancelled_lookup_tells_what_is_known);
    T_RUN(a_repeat_in_flight_may_be_told_where_to_ask);
    T_RUN(a_dry_run_records_and_lets_everything_pass);
    T_RUN(what_a_program_says_was_applied_is_recorded);
    T_RUN(anything_else_stays_unknown);
    T_RUN(an_exchange_may_end_while_it_is_asked);
    T_RUN(a_decision_that_the_store_does_not_take_stays_unknown);
    T_RUN(a_store_that_fails_at_the_claim_is_503);
    T_RUN(a_bypass_passes_and_says_so);
    T_RUN(an_answer_that_is_not_recorded_is_not_told);
    T_RUN(a_request_that_ends_before_its_claim_has_claimed_nothing);
    T_RUN(of_many_threads_one_runs);
    return t_done();
}
