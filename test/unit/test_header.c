/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_header.c - which headers of a response are stored (docs/http.md, 5),
 * and which never pass (1).
 */
#include "calls/http/http.h"

#include <ctype.h>

#include "t.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const once__header_policy plain;

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

/* From blocks of exact size, so that ASan sees a read behind a name. */
static int stored(const char *name, const once__header_policy *policy)
{
    size_t size = strlen(name);
    char *copy = malloc(size > 0 ? size : 1);
    int is;

    if (copy == NULL)
        abort();
    memcpy(copy, name, size);
    is = once__header_stored((once_bytes){copy, size}, policy);
    free(copy);
    return is;
}

static int stored_with(const char *name, const char *connection)
{
    return stored(name, &plain) &&
           !once__header_named(text(name), text(connection));
}

/* As it is, in capitals, and mixed. */
static void never_stored(const char *name)
{
    char other[64];
    size_t i;

    snprintf(other, sizeof(other), "%s", name);
    if (!T_OK(!stored(other, &plain)))
        printf("#   stored: %s\n", other);
    for (i = 0; other[i] != '\0'; i += 2)
        other[i] = (char)toupper((unsigned char)other[i]);
    T_OK(!stored(other, &plain));
    for (i = 0; other[i] != '\0'; i++)
        other[i] = (char)toupper((unsigned char)other[i]);
    T_OK(!stored(other, &plain));
}

static void hop_by_hop_headers_are_not_stored(void)
{
    static const char *const names[] = {
        "connection",       "keep-alive",        "te",
        "trailer",          "transfer-encoding", "upgrade",
        "proxy-connection", "http2-settings",
    };
    size_t i;

    for (i = 0; i < COUNT(names); i++)
        never_stored(names[i]);
}

static void date_and_server_and_length_are_not_stored(void)
{
    never_stored("date");
    never_stored("server");
    never_stored("content-length");
}

static void cookies_are_not_stored(void)
{
    never_stored("set-cookie");
    never_stored("set-cookie2");
}

static void tokens_of_a_session_are_not_stored(void)
{
    static const char *const names[] = {
        "access-token",
        "x-access-token",
        "refresh-token",
        "x-refresh-token",
        "id-token",
        "x-id-token",
        "auth-token",
        "x-auth-token",
        "x-subject-token",
        "session-token",
        "x-session-token",
        "csrf-token",
        "x-csrf-token",
        "x-csrftoken",
        "xsrf-token",
        "x-xsrf-token",
        "requestverificationtoken",
        "x-requestverificationtoken",
    };
    const once__header_policy policy = {.store_cookies = 1};
    size_t i;

    for (i = 0; i < COUNT(names); i++) {
        never_stored(names[i]);
        T_OK(stored(names[i], &policy));
    }
}

static void what_is_true_of_the_first_exchange_is_not_stored(void)
{
    never_stored("age");
    never_stored("ratelimit");
    never_stored("ratelimit-remaining");
    never_stored("x-ratelimit-remaining");
    never_stored("x-rate-limit-reset");
    never_stored("dpop-nonce");
    never_stored("replay-nonce");
}

static void cookies_are_stored_where_the_operator_says_so(void)
{
    const once__header_policy policy = {.store_cookies = 1};

    T_OK(stored("Set-Cookie", &policy) && stored("set-cookie2", &policy));
    T_OK(!stored("Date", &policy) && !stored("Authorization", &policy));
}

static void credentials_are_not_stored(void)
{
    never_stored("authorization");
    never_stored("x-authorization");
    never_stored("x-forwarded-authorization");
    never_stored("authentication-info");
    never_stored("proxy-authorization");
    never_stored("proxy-authenticate");
    never_stored("proxy-authentication-info");
    never_stored("proxy-anything");
}

static void traces_and_timings_are_not_stored(void)
{
    never_stored("traceparent");
    never_stored("tracestate");
    never_stored("server-timing");
}

static void orders_to_nginx_are_not_stored(void)
{
    never_stored("x-accel-redirect");
    never_stored("x-accel-buffering");
    never_stored("x-accel-expires");
    never_stored("x-accel-limit-rate");
}

static void our_own_headers_are_not_stored(void)
{
    never_stored("idempotency-attempt");
    never_stored("idempotency-outcome");
    never_stored("idempotency-status");
    never_stored("idempotent-replayed");
}

static void all_other_headers_are_stored(void)
{
    static const char *const names[] = {
        "Location",
        "ETag",
        "Content-Encoding",
        "Content-Type",
        "Last-Modified",
        "Cache-Control",
        "Vary",
        "Link",
        "Retry-After",
        "WWW-Authenticate",
        "X-Custom",
        "X-Request-Id",
        "Idempotency-Key",
        "Content-Language",
        "Access-Control-Expose-Headers",
        "Access-Control-Allow-Origin",
        /* A little more or less than a name on the list. */
        "Dat",
        "Dates",
        "Updated",
        "X-Server",
        "Set-Cookie3",
        "Proxy",
        "X-Accel",
        "X-Proxy-Id",
        "Authorizations",
        "Keep-Alive-X",
        "T",
        "X-TE",
        "Tenant",
        "Traceparents",
        "Server-Timings",
        "Authorization-Id",
        "X-Upgrade",
        "Idempotency-Attempts",
        "X-Idempotent-Replayed",
        "XAuthorization",
        "X-Next-Page-Token",
        "Token",
        "Pages",
        "Agent",
        "Rate",
    };
    size_t i;

    for (i = 0; i < COUNT(names); i++)
        if (!T_OK(stored(names[i], &plain)))
            printf("#   not stored: %s\n", names[i]);
}

static void headers_named_by_connection_are_not_stored(void)
{
    T_OK(!stored_with("X-Hop", "X-Hop"));
    T_OK(!stored_with("x-hop", "close, X-Hop"));
    T_OK(!stored_with("X-HOP", "x-hop,close"));
    T_OK(!stored_with("X-Hop", "a ,\t x-hop \t, b"));
    T_OK(!stored_with("X-Hop", ",, ,x-hop,,"));
    T_OK(!stored_with("X-Hop", "a,\tx-hop\t,b"));
    T_OK(!stored_with("b", "a, b"));
    T_OK(!stored_with("ETag", "etag"));
}

static void a_name_in_connection_must_be_whole(void)
{
    T_OK(stored_with("X-Hop", ""));
    T_OK(stored_with("X-Hop", ","));
    T_OK(stored_with("X-Hop", " , \t"));
    T_OK(stored_with("X-Hop", "X-Hope"));
    T_OK(stored_with("X-Hop", "X-Ho"));
    T_OK(stored_with("X-Hop", "AX-Hop"));
    T_OK(stored_with("X-Hop", "X-Hop-2, X- Hop"));
    T_OK(stored_with("X-Hop", "close, keep-alive"));
    T_OK(stored_with("X-Hop", "X;Hop"));
}

static void a_connection_list_is_read_no_further_than_its_size(void)
{
    static const char list[] = "close, x-ho";
    char *copy = malloc(sizeof(list) - 1);
    once_bytes lines = {copy, sizeof(list) - 1};

    if (copy == NULL)
        abort();
    memcpy(copy, list, sizeof(list) - 1);
    T_OK(!once__header_named(text("X-Hop"), lines));
    T_OK(once__header_named(text("X-Ho"), lines));
    free(copy);
}

static void hidden_names_are_not_stored(void)
{
    const once_bytes hide[] = {text("X-Secret"), text(""), text("etag")};
    const once__header_policy policy = {.hide = hide, .n_hide = 3};

    T_OK(!stored("x-secret", &policy) && !stored("X-SECRET", &policy));
    T_OK(!stored("ETag", &policy));
    T_OK(stored("X-Secrets", &policy) && stored("X-Secre", &policy));
    T_OK(stored("Location", &policy));
}

static void hiding_does_not_bring_cookies_back(void)
{
    const once_bytes hide[] = {text("set-cookie")};
    const once__header_policy policy = {
        .store_cookies = 1, .hide = hide, .n_hide = 1};

    T_OK(!stored("Set-Cookie", &policy) && stored("Set-Cookie2", &policy));
}

static void an_empty_name_is_not_stored(void)
{
    T_OK(!stored("", &plain));
    T_OK(!once__header_stored((once_bytes){NULL, 0}, &plain));
}

static void only_ascii_letters_have_a_case(void)
{
    /* '[' and '{', '@' and '`' differ by the same bit as 'A' and 'a'. */
    T_OK(once__same_name(text("AZaz09-_"), text("azAZ09-_")));
    T_OK(!once__same_name(text("["), text("{")));
    T_OK(!once__same_name(text("@"), text("`")));
    T_OK(!once__same_name(text("\xc4"), text("\xe4")));
    T_OK(!once__same_name(text("a"), text("ab")));
    T_OK(!once__same_name(text("ba"), text("aa")));
    T_OK(once__same_name(text(""), (once_bytes){NULL, 0}));
}

static void four_headers_are_our_own(void)
{
    T_OK(once__header_internal(text("Idempotency-Attempt")));
    T_OK(once__header_internal(text("IDEMPOTENCY-OUTCOME")));
    T_OK(once__header_internal(text("idempotency-status")));
    T_OK(once__header_internal(text("Idempotent-Replayed")));
    T_OK(once__header_internal(text("Idempotency-Probe")));
    T_OK(once__header_internal(text("idempotency-record")));
    T_OK(once__header_internal(text("Idempotency-Recorded-Status")));
    T_OK(!once__header_internal(text("Idempotency-Key")));
    T_OK(!once__header_internal(text("Idempotency-Statu")));
    T_OK(!once__header_internal(text("Idempotency-Status2")));
    T_OK(!once__header_internal(text("")));
    T_OK(!once__header_internal((once_bytes){NULL, 0}));
}

static void types_of_streams(void)
{
    T_OK(once__type_streams(text("text/event-stream")));
    T_OK(once__type_streams(text("Text/Event-Stream; charset=utf-8")));
    T_OK(once__type_streams(text("text/event-stream;charset=utf-8")));
    T_OK(once__type_streams(text("application/x-ndjson")));
    T_OK(once__type_streams(text("application/X-NDJSON ; a=b")));
    T_OK(!once__type_streams(text("text/event-streams")));
    T_OK(!once__type_streams(text("text/event")));
    T_OK(!once__type_streams(text("application/json")));
    T_OK(!once__type_streams(text(" text/event-stream")));
    T_OK(!once__type_streams(text(";text/event-stream")));
    T_OK(!once__type_streams(text("")));
    T_OK(!once__type_streams((once_bytes){NULL, 0}));
}

int main(void)
{
    T_RUN(hop_by_hop_headers_are_not_stored);
    T_RUN(date_and_server_and_length_are_not_stored);
    T_RUN(cookies_are_not_stored);
    T_RUN(tokens_of_a_session_are_not_stored);
    T_RUN(what_is_true_of_the_first_exchange_is_not_stored);
    T_RUN(cookies_are_stored_where_the_operator_says_so);
    T_RUN(credentials_are_not_stored);
    T_RUN(traces_and_timings_are_not_stored);
    T_RUN(orders_to_nginx_are_not_stored);
    T_RUN(our_own_headers_are_not_stored);
    T_RUN(all_other_headers_are_stored);
    T_RUN(headers_named_by_connection_are_not_stored);
    T_RUN(a_name_in_connection_must_be_whole);
    T_RUN(a_connection_list_is_read_no_further_than_its_size);
    T_RUN(hidden_names_are_not_stored);
    T_RUN(hiding_does_not_bring_cookies_back);
    T_RUN(an_empty_name_is_not_stored);
    T_RUN(only_ascii_letters_have_a_case);
    T_RUN(four_headers_are_our_own);
    T_RUN(types_of_streams);
    return t_done();
}
