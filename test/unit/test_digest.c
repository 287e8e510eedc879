/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_digest.c - stored names and fingerprints. The expected sums were
 * computed by another program (Python's hashlib) over the framing that
 * digest.c describes: stores hold them, so they must never change unseen.
 */
#include "calls/http/http.h"
#include "calls/http/json.h"

#include "t.h"

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

static const char *hex(const uint8_t sum[32])
{
    static char out[65];
    int i;

    for (i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
    return out;
}

/* ---- Names -------------------------------------------------------------- */

static const once__request_head of_path = {.of_path = 1};
static const char *const alice[5] = {"alice", "pay.example", "POST", "/charge",
                                     "8e03978e"};

static void name_of(const char *const part[5], uint8_t out[ONCE_NAME_SIZE])
{
    const once__request_head head = {
        .method = text(part[2]), .path = text(part[3]), .of_path = 1};

    once__name(text(part[0]), text(part[1]), &head, text(part[4]), out);
}

/* The key is the caller's: method and path are in the fingerprint. */
static void realm_name_of(const char *const part[5],
                          uint8_t out[ONCE_NAME_SIZE])
{
    const once__request_head head = {.method = text(part[2]),
                                     .path = text(part[3])};

    once__name(text(part[0]), text(part[1]), &head, text(part[4]), out);
}

static void a_name_is_the_sum_that_others_compute(void)
{
    static const char *const none[5] = {"", "", "", "", ""};
    uint8_t name[ONCE_NAME_SIZE];

    name_of(alice, name);
    T_STR(hex(name), "c0000d813494e6848724ae5430209634"
                     "609a6e22a03e7378ae01c4ef79874ca6");
    name_of(none, name);
    T_STR(hex(name), "85fc3ff0e5e8cd5c4cab17e40e589e7c"
                     "ba1791093b48c81f19a67c867c0aa2b2");
}

static void empty_parts_may_have_no_data(void)
{
    static const char *const none[5] = {"", "", "", "", ""};
    const once_bytes no = {NULL, 0};
    uint8_t a[ONCE_NAME_SIZE], b[ONCE_NAME_SIZE];

    name_of(none, a);
    once__name(no, no, &of_path, no, b);
    T_MEM(a, b, sizeof(a));
}

static void each_part_makes_another_name(void)
{
    uint8_t names[6][ONCE_NAME_SIZE];
    const char *part[5];
    int i, k;

    name_of(alice, names[5]);
    for (i = 0; i < 5; i++) {
        memcpy(part, alice, sizeof(part));
        part[i] = "other";
        name_of(part, names[i]);
    }
    for (i = 0; i < 6; i++)
        for (k = 0; k < i; k++)
            T_OK(memcmp(names[i], names[k], ONCE_NAME_SIZE) != 0);
}

static void parts_do_not_flow_into_each_other(void)
{
    const char *left[5], *right[5];
    uint8_t a[ONCE_NAME_SIZE], b[ONCE_NAME_SIZE];
    int i;

    for (i = 0; i + 1 < 5; i++) {
        memcpy(left, alice, sizeof(left));
        memcpy(right, alice, sizeof(right));
        left[i] = "a";
        left[i + 1] = "bc";
        right[i] = "ab";
        right[i + 1] = "c";
        name_of(left, a);
        name_of(right, b);
        T_OK(memcmp(a, b, sizeof(a)) != 0);
    }
}

static void a_nul_byte_counts_like_any_other(void)
{
    uint8_t a[ONCE_NAME_SIZE], b[ONCE_NAME_SIZE];
    const once_bytes x = text("x");

    once__name(x, x, &of_path, (once_bytes){"/a", 2}, a);
    once__name(x, x, &of_path, (once_bytes){"/a\0", 3}, b);
    T_OK(memcmp(a, b, sizeof(a)) != 0);
}

static void a_name_is_shown_as_sixteen_digits(void)
{
    uint8_t name[ONCE_NAME_SIZE] = {0x00, 0x1f, 0xa0, 0xff, 0x9c,
                                    0x45, 0x67, 0x89, 0xee};
    char out[18];

    memset(out, '#', sizeof(out));
    once__name_hex(name, out);
    T_OK(out[17] == '#' && out[16] == '\0');
    T_STR(out, "001fa0ff9c456789");
}

/* ---- Fingerprints ------------------------------------------------------- */

static const once__request_head nothing;

/* The body in steps of `step` bytes. */
static void print_of(once_bytes query, once_bytes type, once_bytes encoding,
                     once_bytes body, size_t step, uint8_t out[32])
{
    const char *at = body.data;
    once__request_head head = {
        .query = query, .type = type, .encoding = encoding, .of_path = 1};
    once__fingerprint *f = NULL;
    size_t left = body.size, n;

    T_EQ(once__fingerprint_new(ONCE__COUNT_ALL, &head, &f), ONCE_OK);
    for (; left > 0; left -= n, at += n) {
        n = left < step ? left : step;
        once__fingerprint_body(f, at, n);
    }
    once__fingerprint_end(f, out);
    once__fingerprint_free(f);
}

static void a_fingerprint_is_the_sum_that_others_compute(void)
{
    const once_bytes no = {NULL, 0};
    uint8_t sum[32];

    print_of(text("a=1&b=2"), text("application/json"), no,
             text("{\"order\":\"A1\",\"amount\":5}"), 1000, sum);
    T_STR(hex(sum), "38cb7866aa6ad34d6de2245ba3970569"
                    "c0327f4222b0742261894c444e79f584");
    print_of(no, no, no, no, 1, sum);
    T_STR(hex(sum), "f45dd32f60416a07517573a625c4438e"
                    "03b041487bf836b506b929894329fbc6");
}

static void the_steps_of_a_body_do_not_matter(void)
{
    static const size_t steps[] = {1, 7, 64, 4096, 99999, 100000, 100001};
    static uint8_t bytes[100000];
    const once_bytes no = {NULL, 0}, body = {bytes, sizeof(bytes)};
    uint8_t sum[32];
    size_t i;

    for (i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i & 255);
    for (i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        print_of(no, no, text("gzip"), body, steps[i], sum);
        T_STR(hex(sum), "8e3b3948ba918dd6cf5de66bb86104a9"
                        "37b201fbcd0ba66b43cbd4e2cda2a348");
    }
}

static void an_empty_step_changes_nothing(void)
{
    const once_bytes no = {NULL, 0};
    once__fingerprint *f = NULL;
    uint8_t a[32], b[32];

    print_of(no, no, no, text("xy"), 2, a);
    T_EQ(once__fingerprint_new(ONCE__COUNT_ALL, &of_path, &f), ONCE_OK);
    once__fingerprint_body(f, NULL, 0);
    once__fingerprint_body(f, "x", 1);
    once__fingerprint_body(f, NULL, 0);
    once__fingerprint_body(f, "y", 1);
    once__fingerprint_body(f, "z", 0);
    once__fingerprint_end(f, b);
    once__fingerprint_free(f);
    T_MEM(a, b, sizeof(a));
}

static void each_part_makes_another_fingerprint(void)
{
    /* Moving one byte over each border, and dropping it. */
    static const char *const parts[][4] = {
        {"q", "t", "e", "b"}, {"qt", "", "e", "b"}, {"", "qt", "e", "b"},
        {"q", "te", "", "b"}, {"q", "", "te", "b"}, {"q", "t", "eb", ""},
        {"q", "t", "", "eb"}, {"", "t", "e", "b"},  {"q", "", "e", "b"},
        {"q", "t", "", "b"},  {"q", "t", "e", ""},  {"", "", "", "qteb"},
        {"q", "t", "e", "B"}, {"Q", "t", "e", "b"}, {"q", "t", "e", "bb"},
    };
    enum { N = sizeof(parts) / sizeof(parts[0]) };
    uint8_t sums[N][32];
    int i, k;

    for (i = 0; i < N; i++) {
        print_of(text(parts[i][0]), text(parts[i][1]), text(parts[i][2]),
                 text(parts[i][3]), 1, sums[i]);
        for (k = 0; k < i; k++)
            T_OK(memcmp(sums[i], sums[k], 32) != 0);
    }
}

static void a_body_cannot_pretend_to_be_a_frame(void)
{
    /* The same bytes are hashed up to the length at the end. */
    static const char framed[] = "\1\0\0\0\0\0\0\0x";
    const once_bytes no = {NULL, 0};
    once_bytes body = {framed, 9};
    uint8_t a[32], b[32];

    print_of(no, no, text("x"), no, 1, a);
    print_of(no, no, no, body, 9, b);
    T_OK(memcmp(a, b, sizeof(a)) != 0);
}

static void a_name_is_never_a_fingerprint(void)
{
    const once_bytes no = {NULL, 0};
    uint8_t a[32], b[32];

    once__name(no, no, &of_path, no, a);
    print_of(no, no, no, no, 1, b);
    T_OK(memcmp(a, b, sizeof(a)) != 0);
}

static void a_fingerprint_can_be_dropped_at_any_time(void)
{
    once__fingerprint *f = NULL;

    once__fingerprint_free(NULL);
    T_EQ(once__fingerprint_new(ONCE__COUNT_ALL, &nothing, &f), ONCE_OK);
    T_OK(f != NULL);
    once__fingerprint_free(f);
    T_EQ(once__fingerprint_new(ONCE__COUNT_ALL, &nothing, &f), ONCE_OK);
    once__fingerprint_body(f, "abc", 3);
    once__fingerprint_free(f);
}

/* ---- What counts, and multipart bodies ----------------------------------- */

static void printed(unsigned counts, const char *type, once_bytes body,
                    size_t step, uint8_t out[32])
{
    const once__request_head head = {
        .query = text("q=1"), .type = text(type), .of_path = 1};
    const char *at = body.data;
    once__fingerprint *f = NULL;
    size_t left = body.size, n;

    T_EQ(once__fingerprint_new(counts, &head, &f), ONCE_OK);
    for (; left > 0; left -= n, at += n) {
        n = left < step ? left : step;
        once__fingerprint_body(f, at, n);
    }
    once__fingerprint_end(f, out);
    once__fingerprint_free(f);
}

static int add(once__compared *c, const char *word)
{
    once_error err;

    return once__compared_add(c, text(word), &err);
}

static int compares(const char *a, const char *b)
{
    once__compared c = {0};
    once_error err;

    T_EQ(add(&c, a), ONCE_OK);
    T_EQ(add(&c, b), ONCE_OK);
    return once__compared_check(&c, &err) == ONCE_OK;
}

static void words_say_what_counts(void)
{
    static const char *const bad[] = {"",      "Body",    "bod",      "bodyx",
                                      "all",   "but=",    "but=a",    "but",
                                      "json=", "but=/~2", "but=/\xff"};
    once__compared c = {0};
    once_error err;
    size_t i;

    T_EQ(once__compared_check(&c, &err), ONCE_EINVAL);
    T_EQ(add(&c, "body"), ONCE_OK);
    T_EQ(c.counts, ONCE__COUNT_BODY);
    T_EQ(add(&c, "query"), ONCE_OK);
    T_EQ(add(&c, "type"), ONCE_OK);
    T_EQ(add(&c, "type"), ONCE_OK);
    T_EQ(c.counts, ONCE__COUNT_ALL);
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        T_EQ(add(&c, bad[i]), ONCE_EINVAL);
    T_EQ(c.counts, ONCE__COUNT_ALL);
    T_EQ(once__compared_check(&c, &err), ONCE_OK);
    T_OK(compares("json", "query") && compares("json", "but=/a"));
    T_OK(!compares("json", "body") && !compares("body", "but=/a"));
    for (i = 0; i < ONCE__BUT_MAX; i++)
        T_EQ(add(&c, "but=/a"), ONCE_OK);
    T_EQ(add(&c, "but=/a"), ONCE_EINVAL);
}

/* ---- JSON ---------------------------------------------------------------- */

static void json_at(const char *path, const char *type, const char *encoding,
                    const char *body, uint8_t out[32])
{
    const once__request_head head = {.query = text("q=1"),
                                     .type = text(type),
                                     .encoding = text(encoding),
                                     .path = text(path != NULL ? path : ""),
                                     .of_path = path == NULL};
    once__compared c = {0};
    once__fingerprint *f = NULL;
    once__json_text t = {NULL, 0, 0, ONCE_OK};
    once__json *doc = NULL;
    size_t i;

    T_OK(compares("json", "query"));
    T_OK(add(&c, "json") == ONCE_OK && add(&c, "query") == ONCE_OK);
    T_EQ(add(&c, "but=/at"), ONCE_OK);
    T_EQ(once__fingerprint_new(c.counts, &head, &f), ONCE_OK);
    for (i = 0; i < strlen(body); i++) {
        once__fingerprint_body(f, body + i, 1);
        once__json_add(&t, body + i, 1);
    }
    if (once__json_read(&t, &doc, NULL) != ONCE_OK)
        doc = NULL;
    T_EQ(once__fingerprint_end_json(f, doc, &c, out), ONCE_OK);
    free(doc);
    once__json_clear(&t);
    once__fingerprint_free(f);
}

static void json_printed(const char *type, const char *encoding,
                         const char *body, uint8_t out[32])
{
    json_at(NULL, type, encoding, body, out);
}

static int same_json(const char *type, const char *a, const char *b)
{
    uint8_t one[32], two[32];

    json_printed(type, "", a, one);
    json_printed(type, "", b, two);
    return memcmp(one, two, sizeof(one)) == 0;
}

static void a_json_body_is_its_meaning_where_it_is_declared(void)
{
    static const char *const types[] = {
        "application/json", "Application/JSON ; charset=utf-8",
        "application/vnd.a+json", "application/problem+JSON;a=b"};
    static const char *const others[] = {"",
                                         "text/json",
                                         "application/jsonl",
                                         "application/json-seq",
                                         "+json",
                                         "application/a+jsonx",
                                         ";application/json",
                                         "text/plain;a=+json"};
    size_t i;

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        T_OK(same_json(types[i], "{\"a\":1,\"at\":2}", "{ \"a\":1.0 }"));
    for (i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        T_OK(!same_json(others[i], "{\"a\":1}", "{ \"a\":1}"));
}

static void where_json_has_no_exact_meaning_its_bytes_count(void)
{
    static const char *const bodies[] = {"{\"at\":1,\"at\":1}", "{\"a\":}", "",
                                         "\"\\ud800\""};
    const char *type = "application/json";
    const once__request_head head = {
        .query = text("q=1"), .type = text(type), .of_path = 1};
    uint8_t ours[32], bytes[32];
    once__fingerprint *f;
    size_t i;

    T_OK(!same_json(type, "{\"a\":1,\"a\":1}", "{\"a\":1, \"a\":1}"));
    T_OK(!same_json(type, "{\"at\":1,\"at\":1}", "{\"at\":2,\"at\":2}"));
    for (i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        json_printed(type, "", bodies[i], ours);
        T_EQ(once__fingerprint_new(ONCE__COUNT_BODY | ONCE__COUNT_QUERY, &head,
                                   &f),
             ONCE_OK);
        once__fingerprint_body(f, bodies[i], strlen(bodies[i]));
        once__fingerprint_end(f, bytes);
        once__fingerprint_free(f);
        T_MEM(ours, bytes, sizeof(ours));
    }
    json_printed(type, "gzip", "{}", ours);
    json_printed(type, "gzip", "{ }", bytes);
    T_OK(memcmp(ours, bytes, sizeof(ours)) != 0);
    json_printed(type, "", "{}", bytes);
    T_OK(memcmp(ours, bytes, sizeof(ours)) != 0);
}

static void a_json_sum_is_what_others_compute(void)
{
    uint8_t sum[32], other[32];

    json_printed("application/json", "",
                 "{\"b\":[-12.50,null,true],\"a\":\"x\",\"at\":9}", sum);
    T_STR(hex(sum),
          "fad88122b9afb3b939f928c75e1660f260bd76f9af110f96634b67d9085b6468");
    /* Where the path is not in the name, it counts beside JSON, too. */
    json_at("/a", "application/json", "", "{}", sum);
    json_at("/b", "application/json", "", "{}", other);
    T_OK(memcmp(sum, other, sizeof(sum)) != 0);
}

static void what_does_not_count_is_not_in_the_sum(void)
{
    const once__request_head head = {.query = text("q=1"),
                                     .type = text("a/b"),
                                     .encoding = text("gzip"),
                                     .of_path = 1};
    once__fingerprint *f = NULL;
    uint8_t sum[32];

    printed(ONCE__COUNT_BODY, "a/b", text("body"), 3, sum);
    T_STR(hex(sum), "c9e87b77eb805823786f9932e3ba63ef"
                    "bb279be6d3c84cd44fdbb45d83a0d9cc");
    T_EQ(once__fingerprint_new(ONCE__COUNT_QUERY | ONCE__COUNT_TYPE, &head, &f),
         ONCE_OK);
    once__fingerprint_body(f, "body", 4);
    once__fingerprint_end(f, sum);
    once__fingerprint_free(f);
    T_STR(hex(sum), "70fb0a8aa2ae7a30daed197711640601"
                    "e8d77cb52b09b8d4497cc6a9edf49fb4");
    once__fingerprint_of_text(&head, text("sha-256=:x:"), sum);
    T_STR(hex(sum), "d4461cecab6a9695b9580a07737d0fd8"
                    "be0b44b35d340a28dd931d6fc267bf38");
}

/* The same form with the boundary of the type in `type`. */
#define FORM(b)                                                                \
    "--" b "\r\nA: b\r\n\r\nfive\r\n--" b "\r\n\r\n\r\n--" b "--\r\n"
#define TYPE "multipart/form-data; boundary="

static void a_boundary_does_not_count(void)
{
    static const struct {
        const char *type, *body;
    } forms[] = {
        {TYPE "AaA; charset=utf-8", FORM("AaA")},
        {TYPE "x; charset=utf-8", FORM("x")},
        {TYPE "\"x\"; charset=utf-8", FORM("x")},
        {TYPE "\"- '()+_,-./:=?\"; charset=utf-8", FORM("- '()+_,-./:=?")},
        {TYPE "----; charset=utf-8", FORM("----")},
    };
    uint8_t sum[32];
    size_t i, step;

    for (i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        for (step = 1; step < 90; step++) {
            printed(ONCE__COUNT_ALL, forms[i].type, text(forms[i].body), step,
                    sum);
            T_STR(hex(sum), "9715c3660a9c6b78662c19945a0e6fa9"
                            "485f29f7e3d40c7fd5b398a067b67fb8");
        }
    printed(ONCE__COUNT_BODY, TYPE "x", text(FORM("x")), 2, sum);
    T_STR(hex(sum), "29e350b5f3a787b65aab44555edf7c29"
                    "f1e1fb5986441a9634a75eb8a198088f");
    printed(ONCE__COUNT_ALL, TYPE "AaA; charset=utf-8", text("nothing"), 2,
            sum);
    T_STR(hex(sum), "e55c9a0649681f61ac41b0b5d553a209"
                    "10534aedbc3519e6bd5840684ff3fcc1");
}

static void bodies_that_differ_in_more_than_delimiters_differ(void)
{
    static const struct {
        const char *type, *body;
    } forms[] = {
        {TYPE "x", FORM("x")},
        {TYPE "x", "\r\n" FORM("x")}, /* CR LF in front */
        {TYPE "x", " " FORM("x")},
        {TYPE "x", FORM("x") " "},
        {TYPE "x", FORM("X")}, /* no delimiter at all */
        {TYPE "y", FORM("X")}, /* nor here */
        {TYPE "x", ""},
        {TYPE "y", ""},
        {TYPE "x", "--x"},
        {TYPE "x", "\r\n--x"},
        {TYPE "x", "--x\r\n--x"},
        {TYPE "x", "\r\n--x--x"},
        {TYPE "x", "--"},
        {TYPE "x", "-"},
        {TYPE "x", "\r"},
        {TYPE "x", "\r\n"},
        {TYPE "x", "\r\n--"},
        {TYPE "x", "\r\r\n--x"},
        {TYPE "x", "\n--x"},
        {TYPE "x", "a\n--x"},
        {TYPE "x", "a--x"},
        {TYPE "x", "a\r\n--x"},
        {TYPE "x", "a\r\n-x"},
        {TYPE "x", "a\r\n--y"},
        {TYPE "x", "ab\r\n--x"},
        {TYPE "x", "a\r\n--xb"},
        {TYPE "x;", "--x"}, /* another type */
        {"multipart/mixed; boundary=x", "--x"},
        {"multipart/mixed; Boundary=x", "--x"},
        {"text/plain; boundary=x", "--x"},
        {TYPE, "--x"},
    };
    enum { N = sizeof(forms) / sizeof(forms[0]) };
    uint8_t sums[N][32], again[32];
    int i, k;

    for (i = 0; i < N; i++) {
        printed(ONCE__COUNT_ALL, forms[i].type, text(forms[i].body), 1000,
                sums[i]);
        printed(ONCE__COUNT_ALL, forms[i].type, text(forms[i].body), 1, again);
        T_MEM(sums[i], again, 32);
        for (k = 0; k < i; k++)
            if (!T_OK(memcmp(sums[i], sums[k], 32) != 0))
                printf("#   %d and %d\n", i, k);
    }
}

static void a_delimiter_that_fails_may_begin_anew(void)
{
    static const char *const tails[] = {
        "\r", "\r\n", "\r\n-", "\r\n--", "\r\n--a", "\r\n--ab", "\r\r\r",
    };
    uint8_t a[32], b[32];
    char one[64], two[64];
    size_t i, step;

    for (i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
        for (step = 1; step < 12; step++) {
            snprintf(one, sizeof(one), "%s\r\n--abc", tails[i]);
            snprintf(two, sizeof(two), "%s\r\n--Z", tails[i]);
            printed(ONCE__COUNT_ALL, TYPE "abc", text(one), step, a);
            printed(ONCE__COUNT_ALL, TYPE "Z", text(two), step, b);
            T_MEM(a, b, 32);
        }
}

static void a_boundary_is_found_where_the_grammar_has_it(void)
{
    static const struct {
        const char *type, *text, *before, *after;
    } good[] = {
        {"multipart/form-data; boundary=x", "x", TYPE, ""},
        {"multipart/form-data;boundary=\"x y\";a=b", "x y",
         "multipart/form-data;boundary=", ";a=b"},
        {" MULTIPART/mixed ; a=\"b;boundary=c\" ; BOUNDARY=d ;e=f", "d",
         " MULTIPART/mixed ; a=\"b;boundary=c\" ; BOUNDARY=", " ;e=f"},
    };
    static const char *const bad[] = {
        "",
        "multipart",
        "multipart/",
        "multipart/x",
        "multipart/x;",
        "multipart/x; boundary",
        "multipart/x; boundary=",
        "multipart/x; boundary=\"\"",
        "multipart/x; boundary=\"a",
        "multipart/x; boundary=\"a\\b\"",
        "multipart/x; boundary=\"a \"",
        "multipart/x; boundary=\"a\rb\"",
        "multipart/x; boundary=\"a;b\"",
        "multipart/x; boundary=a b",
        "multipart/x; boundary=a:b",
        "multipart/x; boundary=a, b",
        "multipart/x; boundary=a; boundary=b",
        "multipart/x; boundary=a; boundary=a",
        "multipart/x; boundary=a; c",
        "multipart/x; boundary=a; =c",
        "multipart/x boundary=a",
        "multiparts/x; boundary=a",
        "text/plain; boundary=a",
        "multipart/x; boundary=\xc3\xa9",
        "multipart/x; boundary*=utf-8''a",
    };
    char type[200];
    once__boundary b;
    size_t i;

    for (i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        T_EQ(once__boundary_find(text(good[i].type), &b), 1);
        T_EQ(b.text.size, strlen(good[i].text));
        T_MEM(b.text.data, good[i].text, b.text.size);
        T_EQ(b.before.size, strlen(good[i].before));
        T_MEM(b.before.data, good[i].before, b.before.size);
        T_EQ(b.after.size, strlen(good[i].after));
        T_MEM(b.after.data, good[i].after, b.after.size);
    }
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (!T_OK(once__boundary_find(text(bad[i]), &b) == 0))
            printf("#   %s\n", bad[i]);
    for (i = 69; i <= 72; i++) {
        snprintf(type, sizeof(type), TYPE "%0*d", (int)i, 7);
        T_EQ(once__boundary_find(text(type), &b), i <= 70);
    }
    T_EQ(once__boundary_find((once_bytes){NULL, 0}, &b), 0);
}

/* ---- Keys that belong to the caller --------------------------------------- */

enum { WHOLE, BODYLESS, UPLOAD, TEXT, FORMS };

static void print_target(int form, const char *method, const char *path,
                         uint8_t out[32])
{
    const once__request_head head = {
        .query = text("q=1"),
        .type = text(form == UPLOAD ? "multipart/x; boundary=b" : "a/b"),
        .encoding = text("gzip"),
        .method = text(method),
        .path = text(path)};
    once__fingerprint *f = NULL;

    if (form == TEXT) {
        once__fingerprint_of_text(&head, text("sha-256=:x:"), out);
        return;
    }
    T_EQ(once__fingerprint_new(
             form == BODYLESS ? ONCE__COUNT_QUERY : ONCE__COUNT_ALL, &head, &f),
         ONCE_OK);
    once__fingerprint_body(f, "body", 4);
    once__fingerprint_end(f, out);
    once__fingerprint_free(f);
}

#define GZIP_HEAD "\x1f\x8b\x08\x08" /* with flags: no byte is NUL */

static void the_time_in_a_gzip_body_does_not_count(void)
{
    static const struct {
        const char *encoding, *body;
    } same[] =
        {
            {"gzip", GZIP_HEAD "\x01\x02\x03\x04\x02\xff-body"},
            {"gzip", GZIP_HEAD "\xff\xff\xff\xff\x02\xff-body"},
        },
      other[] = {
          {"gzip", GZIP_HEAD "\x01\x02\x03\x04\x02\xff-bodY"},
          {"gzip", GZIP_HEAD "\x01\x02\x03\x04\x03\xff-body"},
          {"gzip", "\x1f\x8b\x08\x01\x01\x02\x03\x04\x02\xff-body"},
          {"br", GZIP_HEAD "\x01\x02\x03\x04\x02\xff-body"},
          {"br", GZIP_HEAD "\xff\xff\xff\xff\x02\xff-body"},
          {"gzip", "\x1f\x8b\x07\x01\x01\x02\x03\x04\x02\xff-body"},
          {"gzip", "\x1f\x8b\x07\x01\xff\xff\xff\xff\x02\xff-body"},
          {"gzip", "a=1&b=22&c=3"},
          {"gzip", "a=1&b=23&c=3"},
          {"gzip", "a=1&"},
          {"gzip", GZIP_HEAD "\x01"},
          {"gzip", GZIP_HEAD},
      };
    const once_bytes no = {NULL, 0};
    uint8_t first[32], sums[12][32];
    size_t i, k, step;

    print_of(no, no, text("gzip"), text(same[0].body), 100, first);
    for (i = 0; i < 2; i++)
        for (step = 1; step < 12; step++) {
            print_of(no, no, text(same[i].encoding), text(same[i].body), step,
                     sums[0]);
            T_MEM(sums[0], first, 32);
        }
    for (i = 0; i < 12; i++) {
        print_of(no, no, text(other[i].encoding), text(other[i].body), 3,
                 sums[i]);
        T_OK(memcmp(sums[i], first, 32) != 0);
        for (k = 0; k < i; k++)
            T_OK(memcmp(sums[i], sums[k], 32) != 0);
    }
}

static void print_override(int i, const char *method, int in_name,
                           uint8_t out[32])
{
    once__request_head head = {
        .method = text("POST"), .path = text("/x"), .of_path = in_name};
    once__fingerprint *f = NULL;

    head.override[i] = text(method);
    T_EQ(once__fingerprint_new(ONCE__COUNT_ALL, &head, &f), ONCE_OK);
    once__fingerprint_end(f, out);
    once__fingerprint_free(f);
}

static void the_method_that_a_header_asks_for_counts(void)
{
    uint8_t sums[8][32];
    size_t i, k;

    print_override(0, "", 0, sums[0]);
    print_override(0, "PUT", 0, sums[1]);
    print_override(1, "PUT", 0, sums[2]);
    print_override(2, "PUT", 0, sums[3]);
    print_override(0, "DELETE", 0, sums[4]);
    print_override(0, "", 1, sums[5]);
    print_override(0, "PUT", 1, sums[6]);
    once__fingerprint_of_text(
        &(once__request_head){.override = {text("PUT")}, .of_path = 1},
        text(""), sums[7]);
    for (i = 0; i < 8; i++)
        for (k = 0; k < i; k++)
            T_OK(memcmp(sums[i], sums[k], 32) != 0);
    /* SHA-256 over the frames, by Python's hashlib. */
    T_STR(hex(sums[6]), "3929094738f009f8f892e81e70b9bae8"
                        "b622c7b763a46a33e8554f6625efbbc3");
}

static void a_key_of_the_realm_is_named_without_method_and_path(void)
{
    static const char *const other[5] = {"alice", "pay.example", "PUT", "/x",
                                         "8e03978e"};
    static const char *const bob[5] = {"bob", "pay.example", "POST", "/charge",
                                       "8e03978e"};
    uint8_t a[ONCE_NAME_SIZE], b[ONCE_NAME_SIZE];

    realm_name_of(alice, a);
    T_STR(hex(a), "2798bdde5f8d89040838265437cd5c98"
                  "64b0f720082cf713c602768a662c603d");
    realm_name_of(other, b);
    T_MEM(a, b, sizeof(a));
    realm_name_of(bob, b);
    T_OK(memcmp(a, b, sizeof(a)) != 0);
}

static void method_and_path_are_in_each_of_its_fingerprints(void)
{
    static const char *const sums[FORMS] = {
        [WHOLE] = "c8228767a1ed2bb92aef1b9b06eb3041"
                  "642496c6f6a606b6e16791bcfcb05f21",
        [BODYLESS] = "38f6d7a78ce76a9925341b4a04ece9c2"
                     "d57d34b2b749564dcd0caa2f2db2196c",
        [TEXT] = "4b7ae6417f31414cf4700688ddbdf41a"
                 "b1cf34f483df9bc56529c31fff0a884b",
    };
    uint8_t a[32], b[32];
    int form;

    for (form = 0; form < FORMS; form++) {
        print_target(form, "POST", "/charge", a);
        if (sums[form] != NULL)
            T_STR(hex(a), sums[form]);
        print_target(form, "PUT", "/charge", b);
        T_OK(memcmp(a, b, sizeof(a)) != 0);
        print_target(form, "POST", "/charge/", b);
        T_OK(memcmp(a, b, sizeof(a)) != 0);
        print_target(form, "POST/", "charge", b);
        T_OK(memcmp(a, b, sizeof(a)) != 0);
    }
}

static void a_realm_becomes_a_group_that_can_be_printed(void)
{
    static const uint8_t full[] = "0123456789012345678901234567890123456789";
    uint8_t group[ONCE_GROUP_SIZE], zeros[ONCE_GROUP_SIZE] = {0};

    once__group((once_bytes){"pay.example", 11}, group);
    T_MEM(group, "pay.example", 11);
    T_MEM(group + 11, zeros, sizeof(zeros) - 11);
    once__group((once_bytes){"a b\n\x7f\xc3\xa9", 7}, group);
    T_MEM(group, "a?b????", 7);
    once__group((once_bytes){full, 40}, group);
    T_MEM(group, full, sizeof(group));
    once__group((once_bytes){NULL, 0}, group);
    T_MEM(group, zeros, sizeof(group));
}

int main(void)
{
    T_RUN(a_name_is_the_sum_that_others_compute);
    T_RUN(empty_parts_may_have_no_data);
    T_RUN(each_part_makes_another_name);
    T_RUN(parts_do_not_flow_into_each_other);
    T_RUN(a_nul_byte_counts_like_any_other);
    T_RUN(a_name_is_shown_as_sixteen_digits);
    T_RUN(a_fingerprint_is_the_sum_that_others_compute);
    T_RUN(the_steps_of_a_body_do_not_matter);
    T_RUN(an_empty_step_changes_nothing);
    T_RUN(each_part_makes_another_fingerprint);
    T_RUN(a_body_cannot_pretend_to_be_a_frame);
    T_RUN(a_name_is_never_a_fingerprint);
    T_RUN(a_fingerprint_can_be_dropped_at_any_time);
    T_RUN(words_say_what_counts);
    T_RUN(a_json_body_is_its_meaning_where_it_is_declared);
    T_RUN(where_json_has_no_exact_meaning_its_bytes_count);
    T_RUN(a_json_sum_is_what_others_compute);
    T_RUN(what_does_not_count_is_not_in_the_sum);
    T_RUN(a_boundary_does_not_count);
    T_RUN(bodies_that_differ_in_more_than_delimiters_differ);
    T_RUN(a_delimiter_that_fails_may_begin_anew);
    T_RUN(a_boundary_is_found_where_the_grammar_has_it);
    T_RUN(the_time_in_a_gzip_body_does_not_count);
    T_RUN(the_method_that_a_header_asks_for_counts);
    T_RUN(a_key_of_the_realm_is_named_without_method_and_path);
    T_RUN(method_and_path_are_in_each_of_its_fingerprints);
    T_RUN(a_realm_becomes_a_group_that_can_be_printed);
    return t_done();
}
