/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lookup.c - what a caller is told who asks what became of a request, read
 * back with a JSON library (docs/http.md, 10).
 */
#include "calls/http/http.h"

#include <jansson.h>

#include "t.h"

enum { AT = 1000000 };

/* The members that stand in each answer, null or not. */
static const char *const members[] = {
    "state",           "attempt", "since",    "expires",
    "recorded_status", "reason",  "location", "safe_new_key",
};

static json_t *told(int rc, const once_record *record,
                    const once__response *stored)
{
    char out[ONCE__LOOKUP_MAX + 1];
    size_t size, i;
    json_t *json;

    memset(out, '#', sizeof(out));
    size = once__lookup_body(rc, record, stored, out);
    T_OK(size > 0 && size < ONCE__LOOKUP_MAX);
    T_OK(out[ONCE__LOOKUP_MAX] == '#');
    json = json_loadb(out, size, JSON_REJECT_DUPLICATES, NULL);
    if (!T_OK(json != NULL))
        return json_object();
    T_EQ(json_object_size(json), sizeof(members) / sizeof(members[0]));
    for (i = 0; i < sizeof(members) / sizeof(members[0]); i++)
        T_OK(json_object_get(json, members[i]) != NULL);
    T_OK(json_is_false(json_object_get(json, "safe_new_key")));
    return json;
}

static void is(json_t *json, const char *member, const char *text)
{
    const json_t *value = json_object_get(json, member);

    if (text == NULL)
        T_OK(json_is_null(value));
    else
        T_STR(json_is_string(value) ? json_string_value(value) : "(none)",
              text);
}

static void is_number(json_t *json, const char *member, int number)
{
    T_EQ(json_integer_value(json_object_get(json, member)), number);
}

/* 2026-11-24 04:05:06.789 in UTC. */
static const uint64_t then = UINT64_C(1795493106789);

static void each_state_is_told_with_what_is_known(void)
{
    once_record r = {.state = ONCE_DISPATCHED,
                     .attempt = 2,
                     .granted_ms = then,
                     .created_ms = AT};
    json_t *json = told(ONCE_IN_FLIGHT, &r, NULL);

    is(json, "state", "in-flight");
    is(json, "since", "2026-11-24T04:05:06.789Z");
    is(json, "expires", NULL);
    is(json, "reason", NULL);
    is_number(json, "attempt", 2);
    json_decref(json);
    r.state = ONCE_INDETERMINATE;
    r.reason = ONCE_REASON_TIMEOUT;
    r.ended_ms = then + 1;
    json = told(ONCE_UNKNOWN, &r, NULL);
    is(json, "state", "indeterminate");
    is(json, "since", "2026-11-24T04:05:06.790Z");
    is(json, "reason", "timeout");
    json_decref(json);
}

/* A row that was kept after a release is no news of this request. */
static void absent_is_told_without_anything_else(void)
{
    once_record r = {.state = ONCE_ABSENT,
                     .attempt = 3,
                     .granted_ms = then,
                     .ended_ms = then,
                     .reason = ONCE_REASON_STATUS};
    json_t *json = told(ONCE_FREE, &r, NULL);
    size_t i;

    is(json, "state", "absent");
    for (i = 1; i + 1 < sizeof(members) / sizeof(members[0]); i++)
        is(json, members[i], NULL);
    json_decref(json);
}

/* Neither "absent" nor the failure that may have been tried again. */
static void what_a_gap_hides_is_unknown(void)
{
    once_record none = {.state = ONCE_ABSENT};
    once_record failure = {.state = ONCE_COMPLETED,
                           .attempt = 1,
                           .kind = ONCE_FAILURE,
                           .ended_ms = then};
    json_t *json = told(ONCE_UNKNOWN, &none, NULL);

    is(json, "state", "indeterminate");
    is(json, "reason", "gap");
    json_decref(json);
    json = told(ONCE_UNKNOWN, &failure, NULL);
    is(json, "state", "indeterminate");
    is(json, "reason", "gap");
    is(json, "since", NULL);
    json_decref(json);
}

static void with_location(const char *value, const char *expected)
{
    const once__header headers[] = {
        {{"X-A", 3}, {"1", 1}, 0},
        {{"lOCATION", 8}, {value, strlen(value)}, 0},
    };
    once__response in = {.status = 201, .headers = headers, .n = 2}, out;
    once_record r = {.state = ONCE_COMPLETED,
                     .attempt = 1,
                     .keep_ms = then,
                     .kind = ONCE_SUCCESS,
                     .ended_ms = then};
    size_t size = 0;
    uint8_t *bytes;
    once_error err;
    json_t *json;

    T_EQ(once__response_size(&in, &size, NULL), ONCE_OK);
    bytes = malloc(size);
    once__response_encode(&in, bytes);
    r.result = (once_bytes){bytes, size};
    T_EQ(once__decide_lookup(ONCE_REPLAY, &r, &out, &err).next,
         ONCE__NEXT_TELL);
    json = told(ONCE_REPLAY, &r, &out);
    is(json, "state", "completed");
    is(json, "location", expected);
    is(json, "expires", "2026-11-24T04:05:06.789Z");
    is_number(json, "recorded_status", 201);
    json_decref(json);
    free(bytes);
}

static void the_location_is_that_of_the_recorded_answer(void)
{
    char lines[4000];

    with_location("/orders/7?a=1", "/orders/7?a=1");
    with_location("/a\"b\\c", "/a\"b\\c");
    with_location("/\xc3\xa9", NULL); /* no URI: not shown as another one */
    with_location("/a b", NULL);
    memset(lines, '\\', sizeof(lines));
    lines[2048] = '\0';
    with_location(lines, lines);
    lines[2048] = '\\';
    lines[2049] = '\0';
    with_location(lines, NULL);
}

static void times_that_have_no_text_are_null(void)
{
    once_record r = {.state = ONCE_DISPATCHED, .attempt = 1};
    json_t *json;

    r.granted_ms = UINT64_C(253402300799999);
    json = told(ONCE_IN_FLIGHT, &r, NULL);
    is(json, "since", "9999-12-31T23:59:59.999Z");
    json_decref(json);
    r.granted_ms++;
    json = told(ONCE_IN_FLIGHT, &r, NULL);
    is(json, "since", NULL);
    json_decref(json);
}

static void what_the_store_does_not_say_is_not_told(void)
{
    static const int silent[] = {ONCE_ESTORE, ONCE_EAWAY,    ONCE_EBUSY,
                                 ONCE_ENOMEM, ONCE_ECORRUPT, ONCE_EVERSION,
                                 ONCE_ECLOSED};
    static const int answers[] = {ONCE_FREE, ONCE_IN_FLIGHT, ONCE_UNKNOWN};
    once_record torn = {
        .state = ONCE_COMPLETED, .attempt = 1, .result = {"no response", 11}};
    once__http_decision d;
    once__response stored;
    once_error err;
    size_t i;

    for (i = 0; i < sizeof(silent) / sizeof(silent[0]); i++) {
        d = once__decide_lookup(silent[i], NULL, &stored, &err);
        T_EQ(d.next, ONCE__NEXT_PROBLEM);
        T_EQ(d.status, 503);
        T_OK(d.retry_after > 0);
    }
    d = once__decide_lookup(ONCE_REPLAY, &torn, &stored, &err);
    T_EQ(d.status, 503);
    T_OK(err.text[0] != '\0');
    for (i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        d = once__decide_lookup(answers[i], &torn, &stored, &err);
        T_EQ(d.next, ONCE__NEXT_TELL);
        T_EQ(d.status, 200);
        T_EQ(d.marked, 0);
    }
    T_EQ(once__decide_lookup_refusal(ONCE__PROBLEM_SCOPE_MISSING).status, 401);
}

static uint32_t wait(const char *query)
{
    return once__lookup_wait((once_bytes){query, strlen(query)}, 30000);
}

static void a_wait_is_read_and_cut(void)
{
    T_EQ(wait(""), 0);
    T_EQ(wait("wait=10s"), 10000);
    T_EQ(wait("a=1&wait=250ms&b"), 250);
    T_EQ(wait("wait=7"), 7000);
    T_EQ(wait("wait=1m"), 30000);
    T_EQ(wait("wait=999999999m"), 30000);
    T_EQ(wait("wait=9999999999"), 0);
    T_EQ(wait("wait="), 0);
    T_EQ(wait("wait=s"), 0);
    T_EQ(wait("wait=-1s"), 0);
    T_EQ(wait("wait=1h"), 0);
    T_EQ(wait("await=1s&waits=1s"), 0);
    T_EQ(once__lookup_wait((once_bytes){NULL, 0}, 1), 0);
}

static int leads_nowhere_else(const char *path)
{
    once_error err = {0, ""};
    int rc = once__accept_check((once_bytes){path, strlen(path)}, &err);

    T_EQ(rc == ONCE_OK, err.text[0] == '\0');
    return rc == ONCE_OK;
}

static void a_location_is_a_path_of_this_host(void)
{
    static const char *const bad[] = {
        "",     "a",    "//h",        "http://h/a", "/a?b", "/a#b",   "/$a",
        "/a b", "/\\h", "/a\r\nX: 1", "/\xc3\xa9",  "/a\t", "/\"a\"", "/<a>"};
    char path[2050] = "/";
    size_t i;

    T_OK(leads_nowhere_else("/"));
    T_OK(leads_nowhere_else("/charge/status"));
    T_OK(leads_nowhere_else("/a//b/%7e:@!&'()*+,;=-._~"));
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        T_OK(!leads_nowhere_else(bad[i]));
    memset(path + 1, 'a', 2047);
    T_OK(leads_nowhere_else(path));
    path[2048] = 'a';
    T_OK(!leads_nowhere_else(path));
}

int main(void)
{
    T_RUN(each_state_is_told_with_what_is_known);
    T_RUN(absent_is_told_without_anything_else);
    T_RUN(what_a_gap_hides_is_unknown);
    T_RUN(the_location_is_that_of_the_recorded_answer);
    T_RUN(times_that_have_no_text_are_null);
    T_RUN(what_the_store_does_not_say_is_not_told);
    T_RUN(a_wait_is_read_and_cut);
    T_RUN(a_location_is_a_path_of_this_host);
    return t_done();
}
