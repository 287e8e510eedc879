/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_problem.c - the bodies of our own answers: JSON in US-ASCII whatever the
 * detail holds, read by somebody else's parser; and what decides which answer
 * it is: sets of statuses and the verdict over an attempt. */
#include "fuzz.h"

#include <jansson.h>

#include "calls/http/http.h"

static void is_ascii(const char *body, size_t size)
{
    size_t i;

    for (i = 0; i < size; i++)
        MUST(body[i] >= ' ' && body[i] <= '~');
}

/* The detail is a beginning of what was given, `?` for what is not ASCII. */
static void is_beginning(const json_t *said, const char *detail)
{
    const char *text = json_string_value(said);
    size_t i, n = json_string_length(said);

    for (i = 0; i < n; i++)
        MUST(text[i] == detail[i] ||
             (text[i] == '?' && (unsigned char)detail[i] > 0x7f));
    MUST(detail[n] == '\0' || n >= 256 / 6);
}

static void check_body(int problem, int status, const char *detail)
{
    char body[ONCE__PROBLEM_MAX];
    size_t size = once__problem_body(problem, status, 0, detail, body);
    json_t *json;

    MUST(size > 0 && size < sizeof(body));
    is_ascii(body, size);
    json = json_loadb(body, size, JSON_REJECT_DUPLICATES, NULL);
    MUST(json != NULL && json_object_size(json) == 9);
    MUST(strcmp(json_string_value(json_object_get(json, "code")),
                once__problem_code(problem)) == 0);
    MUST(json_integer_value(json_object_get(json, "status")) ==
         (status != 0 ? status : once__problem_status(problem)));
    MUST(json_is_boolean(json_object_get(json, "retryable")));
    MUST(json_is_boolean(json_object_get(json, "safe_new_key")));
    MUST(strcmp(json_string_value(
                    json_object_get(json_object_get(json, "error"), "message")),
                json_string_value(json_object_get(json, "detail"))) == 0);
    if (detail != NULL)
        is_beginning(json_object_get(json, "detail"), detail);
    json_decref(json);
}

/* Rules from lists that the fuzzer chooses; 0 if they must not be used. */
static int make_rules(struct feed *f, once__rules *rules)
{
    once__statuses set, released, unknown;
    once__status_lists lists = {&set, &released, &unknown};
    once__status_clash clash;
    once_bytes word;
    int n, rc;

    memset(&set, 0, sizeof(set));
    memset(&released, 0, sizeof(released));
    memset(&unknown, 0, sizeof(unknown));
    for (n = feed_byte(f) % 4; n > 0; n--) {
        word = feed_bytes(f, 3);
        if (once__statuses_add(&set, word, NULL) != ONCE_OK)
            continue;
        MUST(word.size == 3 && ((const char *)word.data)[0] >= '2' &&
             ((const char *)word.data)[0] <= '5');
    }
    for (n = feed_byte(f) % 4; n > 0; n--) {
        word = feed_bytes(f, 3);
        if (once__statuses_add_released(&released, word, NULL) == ONCE_OK)
            MUST(((const char *)word.data)[0] >= '3');
    }
    n = feed_byte(f) % 4;
    if (n == 0)
        lists.unknown = NULL; /* the default */
    for (; n > 0; n--) {
        word = feed_bytes(f, 3);
        if (once__statuses_add_unknown(&unknown, word, NULL) == ONCE_OK)
            MUST(((const char *)word.data)[0] >= '4');
    }
    rc = once__rules_make(&lists, rules, &clash);
    if (rc != ONCE_OK)
        MUST(once__statuses_has(&set, clash.status) +
                 once__statuses_has(&released, clash.status) +
                 once__statuses_has(&unknown, clash.status) >=
             2);
    return rc == ONCE_OK;
}

static void check_verdict(struct feed *f)
{
    once__rules rules;
    once__verdict v;
    once_bytes word;
    int observed, status;

    if (!make_rules(f, &rules))
        return;
    observed = feed_byte(f) % (ONCE__SERVICE_LOST + 1);
    status = (int)feed_number(f, 2);
    word = feed_bytes(f, feed_byte(f) % 16);
    v = once__judge(observed, status, word, &rules);
    MUST(v.action >= ONCE__DO_COMPLETE && v.action <= ONCE__DO_GIVE_UP);
    if (v.action == ONCE__DO_COMPLETE || v.action == ONCE__DO_MARK)
        MUST(v.kind == ONCE_SUCCESS || v.kind == ONCE_FAILURE);
    /* What is not known to be whole is never an outcome. */
    MUST(!once__is_broken(observed) || v.action == ONCE__DO_GIVE_UP);
    MUST(observed != ONCE__NOT_SENT || v.action == ONCE__DO_RELEASE);
    MUST(observed != ONCE__UNSTORABLE || v.action != ONCE__DO_COMPLETE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {data, size};
    int problem, status;
    char *detail;

    if (feed_byte(&f) % 4 == 0) {
        check_verdict(&f);
        return 0;
    }
    problem = feed_byte(&f) % ONCE__PROBLEM_COUNT;
    status = feed_byte(&f) % 3 == 0 ? 502 : 0;
    if (f.left == 0) {
        check_body(problem, status, NULL);
        return 0;
    }
    detail = malloc(f.left + 1);
    MUST(detail != NULL);
    memcpy(detail, f.at, f.left);
    detail[f.left] = '\0';
    check_body(problem, status, detail);
    free(detail);
    return 0;
}
