/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_problem.c - problem bodies are read back with a JSON library and held
 * against docs/http.md, 2, whatever the detail was.
 */
#include "calls/http/http.h"

#include <jansson.h>

#include "t.h"

static const char *member(const json_t *json, const char *name)
{
    const char *s = json_string_value(json_object_get(json, name));

    return s != NULL ? s : "(no string)";
}

/*
 * The body, parsed from a block of its exact size. Every one has an error
 * member: SDKs of the Stripe family take an answer without it for a success,
 * whatever its status, and make an exception of `type`, `code` and `message`.
 */
static json_t *problem_of(int which, int status, int recorded,
                          const char *detail)
{
    char out[ONCE__PROBLEM_MAX + 1];
    json_error_t where;
    json_t *json;
    size_t size, i;

    memset(out, '#', sizeof(out));
    size = once__problem_body(which, status, recorded, detail, out);
    T_OK(size > 0 && size < ONCE__PROBLEM_MAX);
    T_OK(out[ONCE__PROBLEM_MAX] == '#');
    for (i = 0; i < size; i++)
        T_OK(out[i] >= ' ' && out[i] < 0x7f);
    json =
        json_loadb(out, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!T_OK(json != NULL)) {
        printf("#   %s: %.*s\n", where.text, (int)size, out);
        return json_object();
    }
    T_EQ(json_object_size(json), recorded != 0 ? 10 : 9);
    T_EQ(json_object_size(json_object_get(json, "error")), 3);
    T_STR(member(json_object_get(json, "error"), "message"),
          member(json, "detail"));
    return json;
}

static json_t *problem(int which, int status, const char *detail)
{
    return problem_of(which, status, 0, detail);
}

/* Yes, no, or -1 for anything that is no boolean. */
static int truth(const json_t *json, const char *name)
{
    const json_t *value = json_object_get(json, name);

    return json_is_boolean(value) ? json_is_true(value) : -1;
}

/* What docs/http.md promises, written down a second time. */
static const struct row {
    int problem;
    const char *code;
    int status;
    const char *title;
    int retryable, safe_new_key;
    const char *state;
    const char *type; /* of the error member */
} rows[] = {
    {ONCE__PROBLEM_KEY_MISSING, "key-missing", 400,
     "Idempotency-Key is missing", 0, 1, "none", "invalid_request_error"},
    {ONCE__PROBLEM_KEY_INVALID, "key-invalid", 400,
     "Idempotency-Key is malformed", 0, 1, "none", "invalid_request_error"},
    {ONCE__PROBLEM_SCOPE_MISSING, "scope-missing", 401,
     "The caller is not known", 0, 0, "any", "authentication_error"},
    {ONCE__PROBLEM_KEY_REUSED, "key-reused", 422,
     "Idempotency-Key is already used", 0, 0, "any", "idempotency_error"},
    {ONCE__PROBLEM_IN_FLIGHT, "in-flight", 409,
     "A request is outstanding for this Idempotency-Key", 1, 0, "in-flight",
     "api_error"},
    {ONCE__PROBLEM_OUTCOME_UNKNOWN, "outcome-unknown", 409,
     "The outcome of this request is not known", 1, 0, "indeterminate",
     "api_error"},
    {ONCE__PROBLEM_RESPONSE_UNAVAILABLE, "response-unavailable", 409,
     "The response to this request was not kept", 0, 0, "completed",
     "api_error"},
    {ONCE__PROBLEM_ALREADY_DONE, "already-done", 409,
     "This request was carried out before", 0, 0, "completed",
     "invalid_request_error"},
    {ONCE__PROBLEM_KEY_EXPIRED, "key-expired", 409,
     "Idempotency-Key has expired", 0, 0, "absent", "invalid_request_error"},
    {ONCE__PROBLEM_STORE_UNAVAILABLE, "store-unavailable", 503,
     "The idempotency store is unavailable", 1, 0, "any", "api_error"},
};

static void each_problem_says_what_the_contract_says(void)
{
    char type[64];
    json_t *json;
    int i;

    T_EQ(sizeof(rows) / sizeof(rows[0]), ONCE__PROBLEM_COUNT);
    for (i = 0; i < ONCE__PROBLEM_COUNT; i++) {
        json = problem(rows[i].problem, 0, NULL);
        snprintf(type, sizeof(type), "urn:problem-type:once:%s", rows[i].code);
        T_STR(member(json, "type"), type);
        T_STR(member(json, "title"), rows[i].title);
        T_STR(member(json, "code"), rows[i].code);
        T_STR(member(json, "state"), rows[i].state);
        T_OK(strlen(member(json, "detail")) > 20);
        T_EQ(json_integer_value(json_object_get(json, "status")),
             rows[i].status);
        T_EQ(truth(json, "retryable"), rows[i].retryable);
        T_EQ(truth(json, "safe_new_key"), rows[i].safe_new_key);
        T_STR(member(json_object_get(json, "error"), "type"), rows[i].type);
        T_STR(member(json_object_get(json, "error"), "code"), rows[i].code);
        T_EQ(once__problem_status(rows[i].problem), rows[i].status);
        T_STR(once__problem_code(rows[i].problem), rows[i].code);
        json_decref(json);
    }
}

static void a_repeat_that_is_refused_names_the_recorded_status(void)
{
    json_t *json = problem_of(ONCE__PROBLEM_ALREADY_DONE, 0, 402, NULL);

    T_EQ(json_integer_value(json_object_get(json, "recorded_status")), 402);
    json_decref(json);
}

static void the_first_caller_is_told_unknown_with_502_or_504(void)
{
    static const int statuses[] = {502, 504};
    json_t *json;
    int i;

    for (i = 0; i < 2; i++) {
        json = problem(ONCE__PROBLEM_OUTCOME_UNKNOWN, statuses[i], NULL);
        T_EQ(json_integer_value(json_object_get(json, "status")), statuses[i]);
        T_STR(member(json, "code"), "outcome-unknown");
        T_EQ(truth(json, "safe_new_key"), 0);
        json_decref(json);
    }
}

static void a_detail_replaces_the_problems_own(void)
{
    json_t *json = problem(ONCE__PROBLEM_KEY_INVALID, 0, "too long");

    T_STR(member(json, "detail"), "too long");
    json_decref(json);
    json = problem(ONCE__PROBLEM_KEY_INVALID, 0, "");
    T_STR(member(json, "detail"), "");
    json_decref(json);
}

static void a_detail_cannot_leave_its_string(void)
{
    static const char evil[] = "\",\"code\":\"x\\\", \\u0000 {}[] </script>";
    json_t *json = problem(ONCE__PROBLEM_IN_FLIGHT, 0, evil);

    T_STR(member(json, "detail"), evil);
    T_STR(member(json, "code"), "in-flight");
    json_decref(json);
}

static void every_byte_in_a_detail_gives_json(void)
{
    char detail[] = "a?b", expected[] = "a?b";
    json_t *json;
    int ch;

    for (ch = 1; ch < 256; ch++) {
        detail[1] = (char)ch;
        expected[1] = (char)(ch < 0x80 ? ch : '?');
        json = problem(ONCE__PROBLEM_KEY_INVALID, 0, detail);
        T_STR(member(json, "detail"), expected);
        json_decref(json);
    }
}

static void a_long_detail_is_cut_between_characters(void)
{
    static const struct {
        char ch;
        size_t kept; /* characters that fit in 256 bytes */
    } cuts[] = {{'a', 256}, {'"', 128}, {'\x01', 42}, {'\xff', 256}};
    char detail[2000];
    size_t i, shift;
    json_t *json;
    int p;

    for (p = 0; p < ONCE__PROBLEM_COUNT; p++)
        for (i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
            memset(detail, cuts[i].ch, sizeof(detail) - 1);
            detail[sizeof(detail) - 1] = '\0';
            json = problem(p, 504, detail);
            T_EQ(strlen(member(json, "detail")), cuts[i].kept);
            json_decref(json);
        }
    /* An escape on every side of the cut. */
    memset(detail, 'a', sizeof(detail));
    detail[sizeof(detail) - 1] = '\0';
    for (shift = 240; shift < 260; shift++) {
        detail[shift] = '\x1f';
        json = problem(ONCE__PROBLEM_RESPONSE_UNAVAILABLE, 0, detail);
        T_EQ(strlen(member(json, "detail")), shift <= 250   ? 251
                                             : shift <= 256 ? shift
                                                            : 256);
        json_decref(json);
        detail[shift] = 'a';
    }
}

int main(void)
{
    T_RUN(each_problem_says_what_the_contract_says);
    T_RUN(a_repeat_that_is_refused_names_the_recorded_status);
    T_RUN(the_first_caller_is_told_unknown_with_502_or_504);
    T_RUN(a_detail_replaces_the_problems_own);
    T_RUN(a_detail_cannot_leave_its_string);
    T_RUN(every_byte_in_a_detail_gives_json);
    T_RUN(a_long_detail_is_cut_between_characters);
    return t_done();
}
