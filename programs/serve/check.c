/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - the cases of `once serve --check`.
 *
 * A service whose author wrote its middleware from docs/serve.md is asked as
 * clients would ask it. Its handler does what the request's Check-Do says, names
 * each of its runs (Check-Run), and counts them: each case says how many it makes,
 * since one whose answer is thrown away is seen in no answer.
 *
 *    ok      a repeat gets the first answer
 *    FAILED  an exception is an unknown outcome
 *            the repeat: expected status 409, and 201 came
 *
 * It uses new keys each time, and can be run again over a store that is kept. It
 * does not kill anything, and sees no store: what a crash does to a middleware is
 * for its author's own tests.
 */
#include "programs/serve/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <curl/curl.h>

#include "base/bytes.h"

enum { LARGE = 2 << 20, BYTES = 100000 };

struct check {
    const char *url;
    char key[40];
    char bytes[BYTES]; /* each value of a byte, in turn */
    char *large;
    int failed;
    char why[400];
    struct check_got got[CHECK_AT_ONCE];
    int n_got;
};

/* ---- Words for cases ---------------------------------------------------------- */

static void fail(struct check *k, const char *format, ...) ONCE_PRINTF(2, 3);

/* The first thing that is wrong is what is told. */
static void fail(struct check *k, const char *format, ...)
{
    va_list args;

    if (k->failed)
        return;
    k->failed = 1;
    va_start(args, format);
    (void)vsnprintf(k->why, sizeof(k->why), format, args);
    va_end(args);
}

static void forget(struct check *k)
{
    while (k->n_got > 0)
        free(k->got[--k->n_got].body);
}

/* Asks as `a` says, `n` times at once; without user it is "ann" who asks. */
static const struct check_got *ask_all(struct check *k, struct check_ask a,
                                       int n)
{
    forget(k);
    if (a.user == NULL)
        a.user = "ann";
    else if (a.user[0] == '\0')
        a.user = NULL;
    if (a.body == NULL && !a.is_get) {
        a.body = "{\"amount\": 5}";
        a.size = strlen(a.body);
    }
    if (!check_ask(k->url, &a, n, k->got))
        fail(k, "the request could not be sent: no memory");
    k->n_got = n;
    return k->got;
}

static const struct check_got *ask(struct check *k, struct check_ask a)
{
    return ask_all(k, a, 1);
}

static void is_status(struct check *k, const struct check_got *g,
                      const char *what, long status)
{
    if (g->status == 0)
        fail(k, "%s: expected status %ld, and no whole answer came", what,
             status);
    else if (g->status != status)
        fail(k, "%s: expected status %ld, and %ld came", what, status,
             g->status);
}

static void is_line(struct check *k, const struct check_got *g,
                    const char *what, const char *name, const char *value)
{
    char text[200];

    check_header(g, name, text);
    if (strcmp(text, value) != 0)
        fail(k, "%s: expected \"%s: %s\", and \"%s\" came", what, name, value,
             text);
}

/* The handler has run for this answer: its run, which is remembered. */
static void is_new(struct check *k, const struct check_got *g, const char *what,
                   const char *attempt, char run[200])
{
    is_status(k, g, what, 201);
    is_line(k, g, what, "Idempotency-Status", "new");
    is_line(k, g, what, "Check-Attempt", attempt);
    check_header(g, "Check-Run", run);
    if (*run == '\0')
        fail(k, "%s: the handler's line Check-Run is missing", what);
}

static void is_replay(struct check *k, const struct check_got *g,
                      const char *what, const char *run)
{
    is_status(k, g, what, 201);
    is_line(k, g, what, "Check-Run", run);
    is_line(k, g, what, "Idempotent-Replayed", "true");
    is_line(k, g, what, "Idempotency-Status", "replayed");
}

/* A problem of Once, with this code, and no run of the handler. */
static void is_problem(struct check *k, const struct check_got *g,
                       const char *what, long status, const char *code)
{
    char text[200], wanted[100];

    is_status(k, g, what, status);
    (void)snprintf(wanted, sizeof(wanted), "\"code\":\"%s\"", code);
    if (g->body == NULL ||
        memmem(g->body, g->n_body, wanted, strlen(wanted)) == NULL)
        fail(k, "%s: expected a problem with the code %s", what, code);
    check_header(g, "Check-Run", text);
    if (*text != '\0')
        fail(k, "%s: the handler ran", what);
}

static void is_body(struct check *k, const struct check_got *g,
                    const char *what, const char *body, size_t size)
{
    if (g->n_body != size || (size > 0 && memcmp(g->body, body, size) != 0))
        fail(k,
             "%s: expected the handler's body of %zu bytes, and %zu came, or "
             "others",
             what, size, g->n_body);
}

/* ---- Cases ---------------------------------------------------------------------- */

static void runs_once(struct check *k)
{
    char run[200];

    is_new(k, ask(k, (struct check_ask){.key = k->key}), "the first", "1", run);
    is_replay(k, ask(k, (struct check_ask){.key = k->key}), "the repeat", run);
    is_line(k, k->got, "the repeat", "Check-Attempt", "1");
}

static void bytes_pass(struct check *k)
{
    struct check_ask a = {.key = k->key, .body = k->bytes, .size = BYTES};
    char run[200];

    is_new(k, ask(k, a), "the first", "1", run);
    is_body(k, k->got, "the first", k->bytes, BYTES);
    a.chunked = 1;
    is_replay(k, ask(k, a), "the repeat, chunked", run);
    is_body(k, k->got, "the repeat, chunked", k->bytes, BYTES);
}

static void lines_pass(struct check *k)
{
    int i;

    for (i = 0; i < 2; i++) {
        (void)ask(k, (struct check_ask){.key = k->key});
        if (strstr(k->got->headers, "one, two") == NULL &&
            (strstr(k->got->headers, ": one\r\n") == NULL ||
             strstr(k->got->headers, ": two\r\n") == NULL))
            fail(k, "%s: two lines Check-Two, one and two, did not both come",
                 i == 0 ? "the first" : "the repeat");
    }
}

static void scopes_differ(struct check *k)
{
    char run[200], other[200];

    is_new(k, ask(k, (struct check_ask){.key = k->key}), "ann", "1", run);
    is_new(k, ask(k, (struct check_ask){.key = k->key, .user = "bob"}), "bob",
           "1", other);
    if (strcmp(run, other) == 0)
        fail(k, "bob got the answer of ann");
}

static void nobody_is_refused(struct check *k)
{
    is_problem(k, ask(k, (struct check_ask){.key = k->key, .user = ""}),
               "without Check-User", 401, "scope-missing");
}

static void unguarded_runs(struct check *k)
{
    char first[200], second[200];

    check_header(ask(k, (struct check_ask){.key = NULL}), "Check-Run", first);
    check_header(ask(k, (struct check_ask){.key = NULL}), "Check-Run", second);
    is_status(k, k->got, "without a key", 201);
    if (*first == '\0' || strcmp(first, second) == 0)
        fail(k, "without a key: the handler did not run each time");
    check_header(ask(k, (struct check_ask){.key = k->key, .is_get = 1}),
                 "Check-Run", first);
    if (*first == '\0')
        fail(k, "GET: the handler did not run");
}

static void others_are_refused(struct check *k)
{
    char run[200];

    is_new(k, ask(k, (struct check_ask){.key = k->key}), "the first", "1", run);
    is_problem(
        k,
        ask(k, (struct check_ask){.key = k->key, .body = "other", .size = 5}),
        "another body", 422, "key-reused");
    is_problem(k, ask(k, (struct check_ask){.key = k->key, .query = "?a=%2F"}),
               "another query", 422, "key-reused");
    is_problem(k, ask(k, (struct check_ask){.key = "a b"}), "a bad key", 400,
               "key-invalid");
}

static void types_count_and_hosts_do_not(struct check *k)
{
    struct check_ask a = {.key = k->key, .type = "text/plain"};
    char run[200];

    is_new(k, ask(k, (struct check_ask){.key = k->key}), "the first", "1", run);
    is_problem(k, ask(k, a), "another Content-Type", 422, "key-reused");
    a = (struct check_ask){.key = k->key, .more = "Host: other.test"};
    is_replay(k, ask(k, a), "another Host", run);
}

static void header_bytes_pass(struct check *k)
{
    struct check_ask a = {.key = k->key, .more = "Check-Bytes: \xc3 \xe9\xff"};
    int i;

    for (i = 0; i < 2; i++)
        is_line(k, ask(k, a), i == 0 ? "the first" : "the repeat",
                "Check-Bytes", "\xc3 \xe9\xff");
}

static void exception_is_unknown(struct check *k)
{
    is_problem(k, ask(k, (struct check_ask){.key = k->key, .what = "raise"}),
               "the first", 502, "outcome-unknown");
    is_problem(k, ask(k, (struct check_ask){.key = k->key}), "the repeat", 409,
               "outcome-unknown");
}

static void refusal_frees(struct check *k)
{
    char text[200], run[200];

    is_status(k, ask(k, (struct check_ask){.key = k->key, .what = "refuse"}),
              "the first", 409);
    check_header(k->got, "Idempotency-Outcome", text);
    if (*text != '\0')
        fail(k, "the first: the handler's Idempotency-Outcome reached its "
                "client");
    is_new(k, ask(k, (struct check_ask){.key = k->key}), "the next", "2", run);
}

static void empty_passes(struct check *k)
{
    struct check_ask a = {.key = k->key, .what = "empty"};

    is_status(k, ask(k, a), "the first", 204);
    is_status(k, ask(k, a), "the repeat", 204);
    is_line(k, k->got, "the repeat", "Idempotent-Replayed", "true");
}

static void large_answer_passes(struct check *k)
{
    struct check_ask a = {.key = k->key, .what = "large"};

    is_status(k, ask(k, a), "the first", 201);
    is_body(k, k->got, "the first", k->large, LARGE);
    is_problem(k, ask(k, a), "the repeat", 409, "response-unavailable");
}

static void large_request_is_refused(struct check *k)
{
    struct check_ask a = {.key = k->key, .body = k->large, .size = LARGE};
    char run[200];

    is_status(k, ask(k, a), "a body of 2 MiB", 413);
    is_new(k, ask(k, (struct check_ask){.key = k->key}),
           "the same key with a small one", "1", run);
    a.key = NULL;
    is_status(k, ask(k, a), "2 MiB without a key", 201);
    is_body(k, k->got, "2 MiB without a key", k->large, LARGE);
}

static void many_wait_for_one(struct check *k)
{
    struct check_ask a = {.key = k->key, .what = "wait"};
    char run[200], text[200];
    int i, new = 0;

    (void)ask_all(k, a, CHECK_AT_ONCE);
    check_header(k->got, "Check-Run", run);
    for (i = 0; i < k->n_got; i++) {
        is_status(k, &k->got[i], "one of a hundred at once", 201);
        is_line(k, &k->got[i], "one of a hundred at once", "Check-Run", run);
        check_header(&k->got[i], "Idempotency-Status", text);
        new += strcmp(text, "new") == 0;
    }
    if (new != 1)
        fail(k, "expected one new answer, and %d came", new);
}

static void forged_lines_are_dropped(struct check *k)
{
    static const char *const forged[] = {
        "Idempotency-Attempt: 9",    "Idempotency-Outcome: not-applied",
        "Idempotency-Status: new",   "Idempotency-Recorded-Status: 200",
        "Idempotency-Probe: 1",      "Idempotency-Record: abc",
        "Idempotent-Replayed: true",
    };
    enum { FORGED = sizeof(forged) / sizeof(forged[0]) };
    struct check_ask a = {.key = k->key};
    char run[200], key[40];
    int i;

    for (i = 0; i < FORGED; i++) {
        (void)snprintf(key, sizeof(key), "%.30s-%d", k->key, i);
        a.key = key;
        a.more = forged[i];
        is_new(k, ask(k, a), forged[i], "1", run);
        is_line(k, k->got, forged[i], "Check-Lines",
                "idempotency-attempt idempotency-key idempotency-record");
    }
    a.key = NULL;
    a.more = forged[0];
    is_line(k, ask(k, a), "the same without a key", "Check-Lines", "");
}

static void cut_request_claims_nothing(struct check *k)
{
    struct check_ask a = {
        .key = k->key, .body = k->bytes, .size = BYTES, .cut = BYTES / 2};
    char run[200];

    (void)ask(k, a);
    a.cut = 0;
    is_new(k, ask(k, a), "the whole request behind half of it", "1", run);
}

static void client_that_leaves_changes_nothing(struct check *k)
{
    struct check_ask a = {.key = k->key, .what = "wait", .leave_ms = 300};

    (void)ask(k, a);
    a.leave_ms = 0;
    (void)ask(k, a); /* it waits for the first */
    is_status(k, k->got, "the repeat", 201);
    is_line(k, k->got, "the repeat", "Idempotent-Replayed", "true");
    is_line(k, k->got, "the repeat", "Check-Attempt", "1");
}

static const struct {
    const char *name;
    void (*run)(struct check *k);
    long runs; /* of the handler */
} cases[] = {
    {"a repeat gets the first answer, and the handler runs once", runs_once, 1},
    {"bodies pass, whatever bytes they have, also chunked", bytes_pass, 1},
    {"two lines of one name pass", lines_pass, 1},
    {"each byte of a header line passes", header_bytes_pass, 1},
    {"an answer without a body passes", empty_passes, 1},
    {"the same key of another caller is another", scopes_differ, 2},
    {"who is nobody is refused, and the handler does not run",
     nobody_is_refused, 0},
    {"without a key, and for GET, the handler runs each time", unguarded_runs,
     3},
    {"another request with the key, and a bad key, are refused",
     others_are_refused, 1},
    {"another type is another request, and another Host is none",
     types_count_and_hosts_do_not, 1},
    {"an exception is an unknown outcome, and is not run again",
     exception_is_unknown, 1},
    {"a handler that has done nothing frees the key", refusal_frees, 2},
    {"a long answer passes, and is not kept", large_answer_passes, 1},
    {"a long request is refused, and claims nothing", large_request_is_refused,
     2},
    {"a hundred at once: one runs, the others get its answer",
     many_wait_for_one, 1},
    {"a client cannot forge the lines of Once", forged_lines_are_dropped, 8},
    {"a request that is cut off claims nothing", cut_request_claims_nothing, 1},
    {"a client that leaves does not change what is recorded",
     client_that_leaves_changes_nothing, 1},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

/* ---- All of them ------------------------------------------------------------------ */

static int new_key(char out[40])
{
    uint8_t random[16];

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return 0;
    once__hex(random, sizeof(random), out);
    return 1;
}

static int begin(struct check *k, const char *url)
{
    size_t i;

    k->url = url;
    k->large = malloc(LARGE);
    if (k->large == NULL)
        return 0;
    memset(k->large, 'x', LARGE);
    for (i = 0; i < BYTES; i++)
        k->bytes[i] = (char)i;
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

/* How often the handler has run so far. */
static long runs(struct check *k)
{
    char text[200];

    check_header(ask(k, (struct check_ask){.what = "count"}), "Check-Runs",
                 text);
    if (*text == '\0')
        fail(k, "Check-Do: count: expected a line Check-Runs, and none came");
    return strtol(text, NULL, 10);
}

static int run_case(struct check *k, int i)
{
    long before, made;

    k->failed = !new_key(k->key);
    k->why[0] = '\0';
    before = runs(k);
    if (!k->failed)
        cases[i].run(k);
    made = runs(k) - before;
    if (made != cases[i].runs)
        fail(k, "the handler ran %ld times, and not %ld", made, cases[i].runs);
    printf("%s%s\n", k->failed ? "FAILED  " : "ok      ", cases[i].name);
    if (k->failed)
        printf("        %s\n", k->why);
    (void)fflush(stdout);
    return !k->failed;
}

int check_service(const struct cli *c, const char *url)
{
    struct check *k = calloc(1, sizeof(*k));
    int i, passed = 0, rc = CLI_STORE;

    if (k == NULL || !begin(k, url)) {
        (void)cli_say(c, CLI_STORE, "out of memory");
        goto out;
    }
    for (i = 0; i < CASES; i++)
        passed += run_case(k, i);
    printf("%d of %d\n", passed, CASES);
    rc = passed == CASES ? cli_flush(c) : CLI_STORE;
out:
    if (k != NULL) {
        forget(k);
        free(k->large);
    }
    free(k);
    curl_global_cleanup();
    return rc;
}
