/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rules.c - the client's pure parts: what an answer means, how long to
 * pause, when to leave a host alone, what a request may hold. Values in and
 * out, so no clock and no network.
 */
#include "base/backoff.h"
#include "client/client.h"
#include "t.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static once_bytes text(const char *s)
{
    once_bytes b = {s, strlen(s)};

    return b;
}

/* ---- Answers ----------------------------------------------------------- */

static const struct row {
    int status, reported, code, has_retry;
    int next, reason, harmless;
} rows[] = {
#define S(s) ONCE__REPORTED_##s
#define R(r) ONCE_CLIENT_##r
    /* 2xx: charged, whoever says it. */
    {200, S(NONE), 0, 0, ONCE__NEXT_DONE, R(ANSWERED), 0},
    {201, S(NEW), 0, 0, ONCE__NEXT_DONE, R(ANSWERED), 0},
    {201, S(REPLAYED), 0, 0, ONCE__NEXT_DONE, R(ANSWERED), 0},
    {202, S(OTHER), 0, 0, ONCE__NEXT_DONE, R(ANSWERED), 0},
    {202, S(NEW), 0, 0, ONCE__NEXT_DONE, R(ANSWERED), 0},
    /* The status header comes before the status. */
    {202, S(IN_FLIGHT), 0, 1, ONCE__NEXT_AGAIN, R(IN_DOUBT), 0},
    {200, S(IN_FLIGHT), 0, 0, ONCE__NEXT_AGAIN, R(IN_DOUBT), 0},
    /* 3xx */
    {303, S(NONE), 0, 0, ONCE__NEXT_DONE, R(ANSWERED), 0},
    {301, S(NONE), 0, 0, ONCE__NEXT_REJECTED, R(REJECTED), 1},
    {307, S(NONE), 0, 0, ONCE__NEXT_REJECTED, R(REJECTED), 1},
    {308, S(NEW), 0, 0, ONCE__NEXT_REFUSED, R(ANSWERED), 1},
    {302, S(NONE), 0, 0, ONCE__NEXT_UNKNOWN, R(REDIRECTED), 0},
    {302, S(NEW), 0, 0, ONCE__NEXT_UNKNOWN, R(REDIRECTED), 0},
    {304, S(NONE), 0, 0, ONCE__NEXT_UNKNOWN, R(REDIRECTED), 0},
    /* 4xx: the record's reported is final, anybody else's is not. */
    {402, S(NEW), 0, 0, ONCE__NEXT_REFUSED, R(ANSWERED), 1},
    {402, S(REPLAYED), 0, 0, ONCE__NEXT_REFUSED, R(ANSWERED), 1},
    {402, S(NONE), 0, 0, ONCE__NEXT_REJECTED, R(REJECTED), 1},
    {400, S(NONE), 0, 0, ONCE__NEXT_REJECTED, R(REJECTED), 1},
    {401, S(NONE), 0, 0, ONCE__NEXT_REJECTED, R(REJECTED), 1},
    {401, S(NEW), 0, 0, ONCE__NEXT_REJECTED, R(REJECTED), 1},
    {401, S(REPLAYED), 0, 0, ONCE__NEXT_REFUSED, R(ANSWERED), 1},
    {421, S(NEW), 0, 0, ONCE__NEXT_REJECTED, R(REJECTED), 1},
    {422, S(NEW), 0, 0, ONCE__NEXT_REFUSED, R(ANSWERED), 1},
    {422, S(NONE), 0, 0, ONCE__NEXT_REJECTED, R(REJECTED), 1},
    {422, S(OTHER), 0, 0, ONCE__NEXT_REJECTED, R(REJECTED), 1},
    {409, S(NEW), 0, 1, ONCE__NEXT_REFUSED, R(ANSWERED), 1},
    {409, S(NONE), 0, 0, ONCE__NEXT_REJECTED, R(REJECTED), 1},
    {409, S(NONE), 0, 1, ONCE__NEXT_AGAIN, R(IN_DOUBT), 0},
    {409, S(IN_FLIGHT), 0, 0, ONCE__NEXT_AGAIN, R(IN_DOUBT), 0},
    {408, S(NONE), 0, 0, ONCE__NEXT_AGAIN, R(IN_DOUBT), 0},
    {408, S(NEW), 0, 0, ONCE__NEXT_AGAIN, R(IN_DOUBT), 1},
    {425, S(NONE), 0, 0, ONCE__NEXT_AGAIN, R(NOT_SENT), 1},
    {429, S(NONE), 0, 1, ONCE__NEXT_AGAIN, R(NOT_SENT), 1},
    {429, S(REPLAYED), 0, 0, ONCE__NEXT_REFUSED, R(ANSWERED), 1},
    /* 5xx: perhaps it happened, perhaps not. */
    {500, S(NONE), 0, 0, ONCE__NEXT_AGAIN, R(IN_DOUBT), 0},
    {500, S(NEW), 0, 0, ONCE__NEXT_AGAIN, R(IN_DOUBT), 0},
    {500, S(REPLAYED), 0, 0, ONCE__NEXT_UNKNOWN, R(FAILED), 0},
    {502, S(NONE), 0, 0, ONCE__NEXT_AGAIN, R(IN_DOUBT), 0},
    {503, S(NONE), 0, 1, ONCE__NEXT_AGAIN, R(IN_DOUBT), 0},
    {504, S(NONE), 0, 0, ONCE__NEXT_AGAIN, R(IN_DOUBT), 0},
    {504, S(REPLAYED), 0, 0, ONCE__NEXT_UNKNOWN, R(FAILED), 0},
    /* Problems of ours: their code counts, whatever the status. */
    {409, S(IN_FLIGHT), ONCE__CODE_IN_FLIGHT, 1, ONCE__NEXT_AGAIN, R(IN_DOUBT),
     0},
    {503, S(OTHER), ONCE__CODE_UNAVAILABLE, 1, ONCE__NEXT_AGAIN, R(NOT_SENT),
     1},
    {409, S(OTHER), ONCE__CODE_UNKNOWN, 0, ONCE__NEXT_UNKNOWN, R(INDETERMINATE),
     0},
    {502, S(NEW), ONCE__CODE_UNKNOWN, 0, ONCE__NEXT_UNKNOWN, R(INDETERMINATE),
     0},
    {504, S(NEW), ONCE__CODE_UNKNOWN, 0, ONCE__NEXT_UNKNOWN, R(INDETERMINATE),
     0},
    /* once_unknown may name any status from 400. */
    {503, S(OTHER), ONCE__CODE_UNKNOWN, 0, ONCE__NEXT_UNKNOWN, R(INDETERMINATE),
     0},
    {429, S(OTHER), ONCE__CODE_UNKNOWN, 1, ONCE__NEXT_UNKNOWN, R(INDETERMINATE),
     0},
    {409, S(OTHER), ONCE__CODE_ANSWER_LOST, 0, ONCE__NEXT_DONE, R(ANSWER_LOST),
     0},
    {409, S(OTHER), ONCE__CODE_REFUSED, 0, ONCE__NEXT_REFUSED, R(ANSWERED), 1},
    {409, S(OTHER), ONCE__CODE_FAILED, 0, ONCE__NEXT_UNKNOWN, R(FAILED), 0},
    {409, S(OTHER), ONCE__CODE_EXPIRED, 0, ONCE__NEXT_UNKNOWN, R(TOO_OLD), 0},
    {422, S(OTHER), ONCE__CODE_REJECTED, 0, ONCE__NEXT_REJECTED, R(REJECTED),
     1},
    {401, S(OTHER), ONCE__CODE_REJECTED, 0, ONCE__NEXT_REJECTED, R(REJECTED),
     1},
#undef W
#undef R
};

static void each_answer_has_its_meaning(void)
{
    size_t i;

    for (i = 0; i < COUNT(rows); i++) {
        const struct row *r = &rows[i];
        struct once__answer a = {r->status, r->reported, r->code, r->has_retry,
                                 0};
        struct once__judgement j = once__client_judge(&a);

        if (!T_OK(j.next == r->next && j.reason == r->reason &&
                  j.harmless == r->harmless))
            printf("#   row %zu: %d reported %d code %d: next %d reason %d "
                   "harmless %d\n",
                   i, r->status, r->reported, r->code, j.next, j.reason,
                   j.harmless);
    }
}

/* Ten of these in a row open the circuit of the host. */
static void what_stands_before_a_service_may_be_in_trouble(void)
{
    int status;

    for (status = 500; status < 600; status++) {
        struct once__answer a = {status, ONCE__REPORTED_NONE, ONCE__CODE_NONE,
                                 0, 0};
        int gateways = (status >= 502 && status <= 504) ||
                       (status >= 520 && status <= 524) || status == 529 ||
                       status == 530;

        T_EQ(once__client_judge(&a).unhealthy, gateways ? 1 : -1);
    }
}

/* Whatever may have taken effect is never called harmless, and nothing that is
 * sent again or refused is called done: over every input there is. */
static void no_answer_is_taken_too_lightly(void)
{
    int status, reported, code, retry;

    for (status = 200; status < 600; status++)
        for (reported = ONCE__REPORTED_NONE; reported <= ONCE__REPORTED_OTHER;
             reported++)
            for (code = ONCE__CODE_NONE; code < ONCE__CODE_END; code++)
                for (retry = 0; retry < 2; retry++) {
                    struct once__answer a = {status, reported, code, retry, 0};
                    struct once__judgement j = once__client_judge(&a);

                    if (j.next == ONCE__NEXT_DONE ||
                        j.next == ONCE__NEXT_UNKNOWN)
                        T_OK(!j.harmless);
                    if (reported == ONCE__REPORTED_IN_FLIGHT &&
                        code == ONCE__CODE_NONE)
                        T_EQ(j.next, ONCE__NEXT_AGAIN);
                    if (j.next == ONCE__NEXT_REFUSED)
                        T_OK(reported == ONCE__REPORTED_NEW ||
                             reported == ONCE__REPORTED_REPLAYED ||
                             code == ONCE__CODE_REFUSED);
                    if (status >= 500 && code == ONCE__CODE_NONE)
                        T_OK(!j.harmless && j.next != ONCE__NEXT_REFUSED &&
                             j.next != ONCE__NEXT_DONE &&
                             j.next != ONCE__NEXT_REJECTED);
                    if (code == ONCE__CODE_UNKNOWN)
                        T_EQ(j.next, ONCE__NEXT_UNKNOWN);
                }
}

static void the_status_header_is_read(void)
{
    T_EQ(once__client_reported(text("new")), ONCE__REPORTED_NEW);
    T_EQ(once__client_reported(text("Replayed")), ONCE__REPORTED_REPLAYED);
    T_EQ(once__client_reported(text("in_flight")), ONCE__REPORTED_IN_FLIGHT);
    T_EQ(once__client_reported(text("unprotected")), ONCE__REPORTED_OTHER);
    T_EQ(once__client_reported(text("newer")), ONCE__REPORTED_OTHER);
    T_EQ(once__client_reported(text("")), ONCE__REPORTED_NONE);
}

static int code(const char *type, const char *body)
{
    return once__client_code(text(type), text(body));
}

#define P "application/problem+json"
#define URN "urn:problem-type:once:"

static void only_problems_of_ours_have_a_code(void)
{
    T_EQ(code(P, "{\"type\":\"" URN "in-flight\",\"code\":\"in-flight\"}"),
         ONCE__CODE_IN_FLIGHT);
    T_EQ(code("Application/Problem+JSON; charset=utf-8",
              "{\"type\":\"" URN "outcome-unknown\","
              "\"code\":\"outcome-unknown\",\"safe_new_key\":true}"),
         ONCE__CODE_UNKNOWN);
    T_EQ(code(P, "{\"type\":\"" URN "brand-new\",\"code\":\"brand-new\","
                 "\"safe_new_key\":false}"),
         ONCE__CODE_UNKNOWN);
    T_EQ(code(P, "{\"type\":\"" URN "brand-new\",\"code\":\"brand-new\"}"),
         ONCE__CODE_UNKNOWN);
    T_EQ(code(P, "{\"type\":\"" URN "brand-new\",\"code\":\"brand-new\","
                 "\"safe_new_key\":true}"),
         ONCE__CODE_REJECTED);
    T_EQ(code(P, "{\"type\":\"" URN "key-expired\",\"code\":\"key-expired\","
                 "\"safe_new_key\":true}"),
         ONCE__CODE_EXPIRED);
#define DONE "{\"type\":\"" URN "already-done\",\"code\":\"already-done\""
    T_EQ(code(P, DONE ",\"recorded_status\":201}"), ONCE__CODE_ANSWER_LOST);
    T_EQ(code(P, DONE ",\"recorded_status\":402}"), ONCE__CODE_REFUSED);
    T_EQ(code(P, DONE ",\"recorded_status\":500}"), ONCE__CODE_FAILED);
    T_EQ(code(P, DONE ",\"recorded_status\":1000}"), ONCE__CODE_UNKNOWN);
    T_EQ(code(P, DONE ",\"recorded_status\":\"201\"}"), ONCE__CODE_UNKNOWN);
    T_EQ(code(P, DONE ",\"safe_new_key\":true}"), ONCE__CODE_UNKNOWN);
#undef DONE
    /* Somebody else's, and what is not JSON. */
    T_EQ(code("application/json",
              "{\"type\":\"" URN "in-flight\",\"code\":\"in-flight\"}"),
         ONCE__CODE_NONE);
    T_EQ(code("application/problem+jsonx",
              "{\"type\":\"" URN "in-flight\",\"code\":\"in-flight\"}"),
         ONCE__CODE_NONE);
    T_EQ(code(P, "{\"type\":\"about:blank\",\"code\":\"in-flight\"}"),
         ONCE__CODE_NONE);
    T_EQ(code(P, "{\"type\":\"" URN "in-flight\",\"code\":\"key-reused\"}"),
         ONCE__CODE_NONE);
    T_EQ(code(P, "{\"type\":\"" URN "in-flight\""), ONCE__CODE_NONE);
    T_EQ(code(P, "[1]"), ONCE__CODE_NONE);
    T_EQ(code(P, "{\"type\":7,\"code\":[]}"), ONCE__CODE_NONE);
    T_EQ(code(P, ""), ONCE__CODE_NONE);
}

static int told(const char *type, const char *body, int *recorded)
{
    return once__client_told(text(type), text(body), recorded);
}

#define J "application/json"
#define SAFE ",\"safe_new_key\":false}"

static void a_lookup_is_read_and_no_other_document(void)
{
    static const char *const others[] = {
        "",
        "[]",
        "{}",
        "{\"state\":\"done\"" SAFE,
        "{\"state\":\"completed\",\"recorded_status\":201}",
        "{\"state\":\"completed\",\"safe_new_key\":true}",
        "{\"state\":7" SAFE,
        "{\"state\":\"absent\"",
        "{\"state\":\"absent\",\"state\":\"absent\"" SAFE};
    int recorded = 1;
    size_t i;

    T_EQ(told(J, "{\"state\":\"absent\"" SAFE, &recorded),
         ONCE_CLIENT_TOLD_ABSENT);
    T_EQ(recorded, 0);
    T_EQ(told("Application/json; charset=utf-8",
              "{\"state\":\"in-flight\"" SAFE, &recorded),
         ONCE_CLIENT_TOLD_IN_FLIGHT);
    T_EQ(told(J, "{\"state\":\"indeterminate\"" SAFE, &recorded),
         ONCE_CLIENT_TOLD_INDETERMINATE);
    T_EQ(told(J, "{\"state\":\"completed\",\"recorded_status\":404" SAFE,
              &recorded),
         ONCE_CLIENT_TOLD_COMPLETED);
    T_EQ(recorded, 404);
    T_EQ(told(J, "{\"state\":\"completed\",\"recorded_status\":1000" SAFE,
              &recorded),
         ONCE_CLIENT_TOLD_COMPLETED);
    T_EQ(recorded, 0);
    T_EQ(told("text/html", "{\"state\":\"absent\"" SAFE, &recorded),
         ONCE_CLIENT_TOLD_NOTHING);
    for (i = 0; i < COUNT(others); i++)
        T_EQ(told(J, others[i], &recorded), ONCE_CLIENT_TOLD_NOTHING);
    T_EQ(once__client_recorded(201), ONCE__CODE_ANSWER_LOST);
    T_EQ(once__client_recorded(402), ONCE__CODE_REFUSED);
    T_EQ(once__client_recorded(500), ONCE__CODE_FAILED);
    T_EQ(once__client_recorded(0), ONCE__CODE_UNKNOWN);
}

/* ---- Pauses ------------------------------------------------------------ */

static void pauses_double_up_to_their_limit(void)
{
    T_EQ(once__backoff(200, 10000, 1), 200);
    T_EQ(once__backoff(200, 10000, 2), 400);
    T_EQ(once__backoff(200, 10000, 6), 6400);
    T_EQ(once__backoff(200, 10000, 7), 10000);
    T_EQ(once__backoff(200, 10000, 4000000000u), 10000);
    T_EQ(once__backoff(500, 100, 1), 100);
    T_EQ(once__backoff(UINT32_MAX, UINT32_MAX, 9), UINT32_MAX);
}

static void jitter_reaches_both_ends_and_no_further(void)
{
    uint64_t i, seen = 0;

    for (i = 0; i < 5000; i++) {
        uint64_t n = once__spread(63, i * UINT64_C(0x9e3779b97f4a7c15));

        T_OK(n <= 63);
        seen |= UINT64_C(1) << n;
    }
    T_OK(seen == UINT64_MAX);
    T_EQ(once__spread(0, 12345), 0);
    T_OK(once__spread(UINT64_MAX, 7) == 7);
}

static int64_t date(const char *s)
{
    uint64_t ms = 0;

    return once__client_date(text(s), &ms) < 0 ? -1 : (int64_t)ms;
}

static void dates_are_read(void)
{
    T_EQ(date("Thu, 01 Jan 1970 00:00:00 GMT"), 0);
    T_EQ(date("Sun, 06 Nov 1994 08:49:37 GMT"), INT64_C(784111777000));
    T_EQ(date("Tue, 29 Feb 2000 23:59:59 GMT"), INT64_C(951868799000));
    T_EQ(date("Wed, 01 Mar 2000 00:00:00 GMT"), INT64_C(951868800000));
    T_EQ(date("Sat, 21 Nov 2026 13:34:55 GMT"), INT64_C(1795268095000));
    T_EQ(date("Fri, 31 Dec 9999 23:59:60 GMT"), INT64_C(253402300800000));
    T_EQ(date("Sunday, 06-Nov-94 08:49:37 GMT"), -1);
    T_EQ(date("Sun Nov  6 08:49:37 1994"), -1);
    T_EQ(date("Sun, 06 Nov 1994 08:49:37 UTC"), -1);
    T_EQ(date("Sun, 06 Now 1994 08:49:37 GMT"), -1);
    T_EQ(date("Sun, 00 Nov 1994 08:49:37 GMT"), -1);
    T_EQ(date("Sun, 06 Nov 1994 24:49:37 GMT"), -1);
    T_EQ(date("Sun, 6  Nov 1994 08:49:37 GMT"), -1);
    T_EQ(date(""), -1);
}

static int64_t after(const char *value, const char *at, uint64_t wall)
{
    uint64_t ms = 0;

    return once__client_retry_after(text(value), text(at), wall, &ms) < 0
               ? -1
               : (int64_t)ms;
}

static void retry_after_is_read_in_both_forms(void)
{
    const char *later = "Sun, 06 Nov 1994 08:50:37 GMT";
    const char *now = "Sun, 06 Nov 1994 08:49:37 GMT";

    T_EQ(after("0", "", 0), 0);
    T_EQ(after("7", "", 0), 7000);
    T_EQ(after("99999999999999999999999", "", 0), INT64_C(31536000000));
    /* The server's clock against itself: ours may be years away. */
    T_EQ(after(later, now, 5), 60000);
    T_EQ(after(later, "", UINT64_C(784111777000)), 60000);
    T_EQ(after(now, later, 0), 0);
    T_EQ(after("", now, 0), -1);
    T_EQ(after("-1", now, 0), -1);
    T_EQ(after("1.5", now, 0), -1);
    T_EQ(after("soon", now, 0), -1);
}

/* ---- Circuits ---------------------------------------------------------- */

static const struct once__breaker fresh = {
    .failures = 3, .open_ms = 1000, .probe_ms = 500};

static void a_circuit_opens_probes_and_closes(void)
{
    static struct once__breaker b;
    const char *h = "http://a";

    b = fresh;
    once__breaker_report(&b, h, 1, 10);
    once__breaker_report(&b, h, 1, 10);
    T_EQ(once__breaker_ask(&b, h, 10), 0);
    once__breaker_report(&b, h, 1, 10);
    T_EQ(once__breaker_ask(&b, h, 10), 1000);
    T_EQ(once__breaker_ask(&b, h, 1009), 1);
    T_EQ(once__breaker_ask(&b, h, 1010), 0);  /* the probe */
    T_OK(once__breaker_ask(&b, h, 1010) > 0); /* one only  */
    once__breaker_report(&b, h, 1, 1020);     /* it fails: at once open */
    T_EQ(once__breaker_ask(&b, h, 1020), 1000);
    T_EQ(once__breaker_ask(&b, h, 2020), 0);
    once__breaker_report(&b, h, 0, 2030);
    T_EQ(once__breaker_ask(&b, h, 2030), 0);
    once__breaker_report(&b, h, 1, 2040); /* counted from the beginning */
    once__breaker_report(&b, h, 1, 2040);
    T_EQ(once__breaker_ask(&b, h, 2040), 0);
}

static void only_failures_in_a_row_count(void)
{
    static struct once__breaker b;
    int i;

    b = fresh;
    for (i = 0; i < 20; i++) {
        once__breaker_report(&b, "http://a", 1, 10);
        once__breaker_report(&b, "http://a", 1, 10);
        once__breaker_report(&b, "http://a", -1, 10); /* says neither */
        once__breaker_report(&b, "http://a", 0, 10);
    }
    T_EQ(once__breaker_ask(&b, "http://a", 10), 0);
    once__breaker_report(&b, "http://a", 1, 10);
    once__breaker_report(&b, "http://a", -1, 10);
    once__breaker_report(&b, "http://a", 1, 10);
    once__breaker_report(&b, "http://a", 1, 10);
    T_OK(once__breaker_ask(&b, "http://a", 10) > 0);
    T_EQ(once__breaker_ask(&b, "http://b", 10), 0);
}

static void a_probe_that_never_returns_is_given_up(void)
{
    static struct once__breaker b;
    int i;

    b = fresh;
    for (i = 0; i < 3; i++)
        once__breaker_report(&b, "http://a", 1, 0);
    T_EQ(once__breaker_ask(&b, "http://a", 1000), 0);
    T_OK(once__breaker_ask(&b, "http://a", 1499) > 0);
    T_EQ(once__breaker_ask(&b, "http://a", 1500), 0);
}

static void the_host_that_was_not_used_is_forgotten(void)
{
    static struct once__breaker b;
    char host[32];
    int i;

    b = fresh;
    for (i = 0; i < 3 * ONCE__HOSTS_MAX; i++) {
        snprintf(host, sizeof(host), "http://h%d", i);
        T_EQ(once__breaker_ask(&b, host, (uint64_t)i), 0);
        T_OK(b.n <= ONCE__HOSTS_MAX);
    }
    for (i = 0; i < 3; i++)
        once__breaker_report(&b, host, 1, 1000);
    T_OK(once__breaker_ask(&b, host, 1000) > 0);
}

/* ---- Requests ---------------------------------------------------------- */

static once_client_request good(void)
{
    once_client_request r = ONCE_CLIENT_REQUEST_INIT;

    r.order = text("42");
    r.method = "POST";
    r.url = "http://127.0.0.1/charge";
    return r;
}

static int check_url(const char *url)
{
    once_client_request r = good();

    r.url = url;
    return once__request_check(&r, NULL);
}

static void urls_are_checked(void)
{
    static char longest[ONCE_CLIENT_URL_MAX + 2];

    T_EQ(check_url("https://pay.example:8443/charge?a=b"), ONCE_OK);
    T_EQ(check_url("HTTP://[::1]:80/"), ONCE_OK);
    T_EQ(check_url("http://h/a@b"), ONCE_OK);
    T_EQ(check_url("http://user@h/"), ONCE_EINVAL);
    T_EQ(check_url("http://user:secret@h/"), ONCE_EINVAL);
    T_EQ(check_url("http://user:secret@h?/"), ONCE_EINVAL);
    T_EQ(check_url("ftp://h/"), ONCE_EINVAL);
    T_EQ(check_url("file:///etc/passwd"), ONCE_EINVAL);
    T_EQ(check_url("h/charge"), ONCE_EINVAL);
    T_EQ(check_url("http://"), ONCE_EINVAL);
    T_EQ(check_url("http:///x"), ONCE_EINVAL);
    T_EQ(check_url("http://h/a b"), ONCE_EINVAL);
    T_EQ(check_url("http://h/\r\nX: y"), ONCE_EINVAL);
    T_EQ(check_url("http://h/#top"), ONCE_EINVAL);
    T_EQ(check_url("http://h\\@evil/"), ONCE_EINVAL);
    T_EQ(check_url("http://h/\xc3\xa9"), ONCE_EINVAL);
    memset(longest, 'a', sizeof(longest) - 1);
    memcpy(longest, "http://h/", 9);
    T_EQ(check_url(longest), ONCE_ELIMIT);
    longest[ONCE_CLIENT_URL_MAX] = '\0';
    T_EQ(check_url(longest), ONCE_OK);
}

static int check_header(const char *name, const char *value)
{
    once_client_header h = {name, value, 0};
    once_client_request r = good();
    once_error err = {0, ""};
    int rc;

    r.headers = &h;
    r.n_headers = 1;
    rc = once__request_check(&r, &err);
    /* Names may be told, values never. */
    T_OK(rc == ONCE_OK || value == NULL || value[0] == '\0' ||
         strstr(err.text, value) == NULL);
    return rc;
}

static void headers_are_checked(void)
{
    T_EQ(check_header("X-A", "b c\td"), ONCE_OK);
    T_EQ(check_header("X-A", ""), ONCE_OK);
    T_EQ(check_header("X-A", "caf\xc3\xa9"), ONCE_OK);
    T_EQ(check_header("X-A", "b\r\nX-B: c"), ONCE_EINVAL);
    T_EQ(check_header("X-A", "b\n"), ONCE_EINVAL);
    T_EQ(check_header("X A", "b"), ONCE_EINVAL);
    T_EQ(check_header("X-A:", "b"), ONCE_EINVAL);
    T_EQ(check_header("", "b"), ONCE_EINVAL);
    T_EQ(check_header(NULL, "b"), ONCE_EINVAL);
    T_EQ(check_header("X-A", NULL), ONCE_EINVAL);
    T_EQ(check_header("idempotency-key", "mine"), ONCE_EINVAL);
    T_EQ(check_header("Host", "elsewhere"), ONCE_EINVAL);
    T_EQ(check_header("Content-Length", "5"), ONCE_EINVAL);
    T_EQ(check_header("Transfer-Encoding", "chunked"), ONCE_EINVAL);
}

static void the_rest_of_a_request_is_checked(void)
{
    static char wide[257], group[34];
    once_client_request r = good();

    T_EQ(once__request_check(&r, NULL), ONCE_OK);
    memset(wide, 'x', sizeof(wide));
    r.order.data = wide;
    r.order.size = 255;
    T_EQ(once__request_check(&r, NULL), ONCE_OK);
    r.order.size = 256;
    T_EQ(once__request_check(&r, NULL), ONCE_EINVAL);
    r.order.size = 0;
    T_EQ(once__request_check(&r, NULL), ONCE_EINVAL);
    r = good();
    memset(group, 'g', sizeof(group) - 1);
    r.group = group;
    T_EQ(once__request_check(&r, NULL), ONCE_EINVAL);
    r.group = group + 1;
    T_EQ(once__request_check(&r, NULL), ONCE_OK);
    r.group = "two words";
    T_EQ(once__request_check(&r, NULL), ONCE_EINVAL);
    r.group = "";
    T_EQ(once__request_check(&r, NULL), ONCE_EINVAL);
    r = good();
    r.method = "PO ST";
    T_EQ(once__request_check(&r, NULL), ONCE_EINVAL);
    r.method = "HEAD";
    T_EQ(once__request_check(&r, NULL), ONCE_EINVAL);
    r = good();
    r.url = NULL;
    T_EQ(once__request_check(&r, NULL), ONCE_EINVAL);
    r.method = NULL;
    T_EQ(once__request_check(&r, NULL), ONCE_OK);
    r.body = text("x");
    T_EQ(once__request_check(&r, NULL), ONCE_EINVAL);
    r = good();
    r.body.size = ONCE_CLIENT_BODY_MAX + 1;
    T_EQ(once__request_check(&r, NULL), ONCE_ELIMIT);
    r = good();
    r.n_headers = ONCE_CLIENT_HEADERS_MAX + 1;
    T_EQ(once__request_check(&r, NULL), ONCE_ELIMIT);
    r = good();
    r.deadline_ms = ONCE_CLIENT_DEADLINE_MAX_MS + 1;
    T_EQ(once__request_check(&r, NULL), ONCE_EINVAL);
}

static void digest_of(const once_client_request *r, uint8_t out[32])
{
    struct once__ask ask;

    T_EQ(once__request_ask(r, &ask, NULL), ONCE_OK);
    memcpy(out, ask.digest, 32);
    free((void *)(uintptr_t)ask.headers.data);
}

/* The gateway tells requests apart by type, encoding, query and body. */
static void what_makes_it_this_request_is_summed_up(void)
{
    once_client_header type = {"content-type", "application/json", 0};
    once_client_header trace = {"traceparent", "00-1-2-01", 0};
    once_client_request r = good();
    uint8_t first[32], other[32];

    r.headers = &type;
    r.n_headers = 1;
    digest_of(&r, first);
    digest_of(&r, other);
    T_MEM(first, other, 32);
    r.body = text("x");
    digest_of(&r, other);
    T_OK(memcmp(first, other, 32) != 0);
    r.body = text("");
    type.value = "text/plain";
    digest_of(&r, other);
    T_OK(memcmp(first, other, 32) != 0);
    type.value = "application/json";
    r.url = "http://127.0.0.1/charge?x";
    digest_of(&r, other);
    T_OK(memcmp(first, other, 32) != 0);
    r.url = "http://127.0.0.1/charge";
    r.method = "PUT";
    digest_of(&r, other);
    T_OK(memcmp(first, other, 32) != 0);
    r = good();
    digest_of(&r, first);
    r.headers = &trace;
    r.n_headers = 1;
    digest_of(&r, other);
    T_MEM(first, other, 32);
}

static void headers_survive_as_bytes_and_secrets_do_not(void)
{
    once_client_header in[] = {
        {"X-A", "b", 0},      {"authorization", "Bearer zq7", 0},
        {"X-Empty", "", 0},   {"X-Token", "zq7", ONCE_CLIENT_SECRET},
        {"Cookie", "zq7", 0}, {"X-A", "c", 0},
    };
    once_client_header *out = NULL;
    once_bytes bytes;
    size_t n = 0;

    T_EQ(once__headers_encode(in, COUNT(in), once__header_secret, &bytes),
         ONCE_OK);
    T_OK(memmem(bytes.data, bytes.size, "zq7", 3) == NULL);
    T_EQ(once__headers_decode(bytes, &out, &n), ONCE_OK);
    T_EQ(n, 3);
    T_STR(out[1].name, "X-Empty");
    T_STR(out[1].value, "");
    T_STR(out[2].value, "c");
    free(out);
    bytes.size--; /* the last NUL is gone */
    T_EQ(once__headers_decode(bytes, &out, &n), ONCE_ECORRUPT);
    free((void *)(uintptr_t)bytes.data);
}

static void keys_are_128_random_bits_in_a_uuids_form(void)
{
    char one[ONCE__KEY_SIZE], two[ONCE__KEY_SIZE], hash[17];
    uint8_t seen[32][16] = {{0}};
    size_t i, j, n = 0;

    for (j = 0; j < 500; j++) {
        T_EQ(once__client_mint(one, NULL), ONCE_OK);
        T_EQ(strlen(one), 36);
        for (i = 0, n = 0; i < 36; i++) {
            const char *hex = "0123456789abcdef";
            const char *at = strchr(hex, one[i]);

            if (i == 8 || i == 13 || i == 18 || i == 23)
                T_EQ(one[i], '-');
            else if (T_OK(at != NULL))
                seen[n++][at - hex] = 1;
        }
    }
    /* No digit is fixed: with 500 keys one that may be anything has been so. */
    for (i = 0; i < 32; i++)
        for (j = 0; j < 16; j++)
            T_OK(seen[i][j]);
    T_EQ(once__client_mint(two, NULL), ONCE_OK);
    T_OK(strcmp(one, two) != 0);
    T_EQ(once__client_hash("abc", hash), ONCE_OK);
    T_STR(hash, "ba7816bf8f01cfea"); /* SHA-256 of "abc", FIPS 180-4 */
}

static void hosts_are_told_apart(void)
{
    char host[ONCE__AUTHORITY_MAX];

    once__client_authority("https://Pay.Example:8443/charge?x=/", host);
    T_STR(host, "https://pay.example:8443");
    once__client_authority("HTTP://h?x", host);
    T_STR(host, "http://h");
}

static void every_reason_has_a_text(void)
{
    int i;

    for (i = ONCE_CLIENT_ANSWERED; i <= ONCE_CLIENT_CHANGED; i++)
        T_OK(strcmp(once_client_text(i), once_client_text(-1)) != 0);
    T_STR(once_client_text(0), "no such reason");
}

int main(void)
{
    T_RUN(each_answer_has_its_meaning);
    T_RUN(what_stands_before_a_service_may_be_in_trouble);
    T_RUN(no_answer_is_taken_too_lightly);
    T_RUN(the_status_header_is_read);
    T_RUN(only_problems_of_ours_have_a_code);
    T_RUN(a_lookup_is_read_and_no_other_document);
    T_RUN(pauses_double_up_to_their_limit);
    T_RUN(jitter_reaches_both_ends_and_no_further);
    T_RUN(dates_are_read);
    T_RUN(retry_after_is_read_in_both_forms);
    T_RUN(a_circuit_opens_probes_and_closes);
    T_RUN(only_failures_in_a_row_count);
    T_RUN(a_probe_that_never_returns_is_given_up);
    T_RUN(the_host_that_was_not_used_is_forgotten);
    T_RUN(urls_are_checked);
    T_RUN(headers_are_checked);
    T_RUN(the_rest_of_a_request_is_checked);
    T_RUN(what_makes_it_this_request_is_summed_up);
    T_RUN(headers_survive_as_bytes_and_secrets_do_not);
    T_RUN(keys_are_128_random_bits_in_a_uuids_form);
    T_RUN(hosts_are_told_apart);
    T_RUN(every_reason_has_a_text);
    return t_done();
}
