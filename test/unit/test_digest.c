/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_digest.c - stored names and fingerprints. The expected sums were
 * computed by another program (Python's hashlib) over the framing that
 * digest.c describes: stores hold them, so they must never change unseen.
 */
#include "http/http.h"

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

static const char *const alice[5] = {"alice", "pay.example", "POST", "/charge",
                                     "8e03978e"};

static void name_of(const char *const part[5], uint8_t out[ONCE_NAME_SIZE])
{
    T_EQ(once__name(text(part[0]), text(part[1]), text(part[2]), text(part[3]),
                    text(part[4]), out),
         ONCE_OK);
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
    T_EQ(once__name(no, no, no, no, no, b), ONCE_OK);
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

    T_EQ(once__name(x, x, x, (once_bytes){"/a", 2}, x, a), ONCE_OK);
    T_EQ(once__name(x, x, x, (once_bytes){"/a\0", 3}, x, b), ONCE_OK);
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

/* The body in steps of `step` bytes. */
static void print_of(once_bytes query, once_bytes type, once_bytes encoding,
                     once_bytes body, size_t step, uint8_t out[32])
{
    const char *at = body.data;
    once__fingerprint *f = NULL;
    size_t left = body.size, n;

    T_EQ(once__fingerprint_new(query, type, encoding, &f), ONCE_OK);
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
    T_EQ(once__fingerprint_new(no, no, no, &f), ONCE_OK);
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

    T_EQ(once__name(no, no, no, no, no, a), ONCE_OK);
    print_of(no, no, no, no, 1, b);
    T_OK(memcmp(a, b, sizeof(a)) != 0);
}

static void a_fingerprint_can_be_dropped_at_any_time(void)
{
    const once_bytes no = {NULL, 0};
    once__fingerprint *f = NULL;

    once__fingerprint_free(NULL);
    T_EQ(once__fingerprint_new(no, no, no, &f), ONCE_OK);
    T_OK(f != NULL);
    once__fingerprint_free(f);
    T_EQ(once__fingerprint_new(no, no, no, &f), ONCE_OK);
    once__fingerprint_body(f, "abc", 3);
    once__fingerprint_free(f);
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
    T_RUN(a_realm_becomes_a_group_that_can_be_printed);
    return t_done();
}
