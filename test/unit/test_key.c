/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_key.c - the key grammar of docs/http.md, 1, row by row; then all short
 * values over a small alphabet are held against the same grammar written as
 * POSIX regular expressions, which know nothing of the parser.
 */
#include "calls/http/http.h"

#include <regex.h>

#include "t.h"

/* The key as text, or "!" and the error's name. The value is parsed from a
 * block of its exact size, so that ASan sees a read behind it. */
static const char *key_of(const char *value, size_t size)
{
    static char out[ONCE__KEY_MAX + 1];
    once_error err = {0, ""};
    size_t len = 9999;
    char *copy = malloc(size > 0 ? size : 1);
    int rc;

    if (copy == NULL)
        abort();
    memcpy(copy, value, size);
    memset(out, '#', sizeof(out));
    rc = once__key_parse((once_bytes){copy, size}, out, &len, &err);
    free(copy);
    if (rc == ONCE_OK) {
        T_OK(len >= 1 && len <= ONCE__KEY_MAX);
        T_OK(err.code == 0 && out[len] == '#');
        out[len] = '\0';
        return out;
    }
    T_EQ(err.code, rc);
    T_OK(len == 9999 && out[0] == '#');
    return rc == ONCE_EINVAL ? "!EINVAL" : rc == ONCE_ELIMIT ? "!ELIMIT" : "!";
}

#define KEY(literal) key_of((literal), sizeof(literal) - 1)
#define REFUSED(literal) T_STR(KEY(literal), "!EINVAL")

static void a_bare_token_is_the_key(void)
{
    T_STR(KEY("abc"), "abc");
    T_STR(KEY("8e03978e-40d5-43dd-bc93-6894a57f9324"),
          "8e03978e-40d5-43dd-bc93-6894a57f9324");
    T_STR(KEY("x"), "x");
    T_STR(KEY("a/b:c=d?e"), "a/b:c=d?e");
    T_STR(KEY(":YWJj:"), ":YWJj:");
    T_STR(KEY("?1"), "?1");
}

static void a_string_is_the_key_without_its_quotes(void)
{
    T_STR(KEY("\"abc\""), "abc");
    T_STR(KEY("\"a b\""), "a b");
    T_STR(KEY("\" a \""), " a ");
    T_STR(KEY("\"a,b;c=d\""), "a,b;c=d");
}

static void both_forms_of_a_text_are_one_key(void)
{
    char bare[64], quoted[64];

    snprintf(bare, sizeof(bare), "%s", KEY("k-1"));
    snprintf(quoted, sizeof(quoted), "%s", KEY("\"k-1\""));
    T_STR(bare, quoted);
}

static void case_makes_another_key(void)
{
    T_STR(KEY("aBc"), "aBc");
}

static void escapes_in_a_string_are_honoured(void)
{
    T_STR(KEY("\"a\\\"b\""), "a\"b");
    T_STR(KEY("\"a\\\\b\""), "a\\b");
    T_STR(KEY("\"\\\\\\\"\""), "\\\"");
}

static void what_is_written_is_read_back(void)
{
    char line[ONCE__KEY_LINE], all[ONCE__KEY_MAX], back[ONCE__KEY_MAX];
    size_t i, n = 0, len = 0;

    for (i = 0; i < sizeof(all); i++)
        all[i] = i % 95 == 0 ? '"' : i % 2 ? '\\' : (char)(' ' + i % 95);
    n = once__key_write((once_bytes){all, sizeof(all)}, line);
    T_EQ(strlen(line), n);
    T_EQ(once__key_parse((once_bytes){line, n}, back, &len, NULL), ONCE_OK);
    T_EQ(len, sizeof(all));
    T_OK(memcmp(all, back, sizeof(all)) == 0);
    memset(all, '\\', sizeof(all));
    T_EQ(once__key_write((once_bytes){all, sizeof(all)}, line),
         ONCE__KEY_LINE - 1);
}

static void other_escapes_are_refused(void)
{
    REFUSED("\"a\\nb\"");
    REFUSED("\"a\\,b\"");
    REFUSED("\"a\\");
    REFUSED("\"a\\\"");
}

static void white_space_around_is_dropped(void)
{
    T_STR(KEY("  abc "), "abc");
    T_STR(KEY("\t \"abc\"\t "), "abc");
    T_STR(KEY(" \"abc\";p "), "abc");
}

static void empty_and_blank_values_are_refused(void)
{
    REFUSED("");
    REFUSED(" ");
    REFUSED(" \t ");
    REFUSED("\"\"");
    REFUSED(" \"\" ");
    REFUSED("\"\";p=1");
    REFUSED("\" \"");
    REFUSED("\"    \"");
    T_EQ(once__key_parse((once_bytes){NULL, 0}, NULL, NULL, NULL), ONCE_EINVAL);
}

static void a_key_of_255_characters_is_the_longest(void)
{
    char value[2 * 256 + 3], expected[256];
    size_t i;

    memset(value, 'k', sizeof(value));
    memset(expected, 'k', sizeof(expected));
    expected[255] = '\0';
    T_STR(key_of(value, 254), expected + 1);
    T_STR(key_of(value, 255), expected);
    T_STR(key_of(value, 256), "!ELIMIT");
    value[0] = '"';
    value[256] = '"';
    T_STR(key_of(value, 257), expected);
    value[256] = 'k';
    value[257] = '"';
    T_STR(key_of(value, 258), "!ELIMIT");
    /* An escape is two bytes and one character. */
    for (i = 0; i < 255; i++)
        memcpy(value + 1 + 2 * i, "\\\"", 2);
    value[511] = '"';
    memset(expected, '"', 255);
    T_STR(key_of(value, 512), expected);
    memcpy(value + 511, "\\\"\"", 3);
    T_STR(key_of(value, 514), "!ELIMIT");
    /* Blank is blank, also where it is too long. */
    memset(value + 1, ' ', 300);
    value[301] = '"';
    T_STR(key_of(value, 302), "!ELIMIT");
    value[255] = '"';
    T_STR(key_of(value, 256), "!EINVAL");
}

static void white_space_around_does_not_count(void)
{
    char value[400];

    memset(value, ' ', sizeof(value));
    memset(value + 70, 'k', 255);
    T_EQ(strlen(key_of(value, sizeof(value))), 255);
}

static void what_is_wrong_is_told_before_what_is_long(void)
{
    char value[300];

    memset(value, 'k', sizeof(value));
    value[299] = '\x01';
    T_STR(key_of(value, sizeof(value)), "!EINVAL");
}

static void two_lines_joined_are_refused_equal_or_not(void)
{
    REFUSED("abc, abc");
    REFUSED("abc,abd");
    REFUSED("\"abc\", \"abc\"");
    REFUSED("\"abc\",\"abd\"");
    REFUSED("\"abc\";p=1 , \"abd\"");
}

static void a_comma_list_is_refused(void)
{
    REFUSED("a,b");
    REFUSED("a,");
    REFUSED(",a");
    REFUSED(",");
    REFUSED("\"a\",");
    REFUSED("(\"a\" \"b\")");
}

static void a_bare_token_with_white_space_inside_is_refused(void)
{
    REFUSED("a b");
    REFUSED("a\tb");
    REFUSED("abc \"d\"");
}

static void a_bare_token_has_no_parameters(void)
{
    REFUSED("abc;p=1");
    REFUSED("abc;");
}

static void a_string_that_does_not_parse_is_refused(void)
{
    REFUSED("\"");
    REFUSED("\"abc");
    REFUSED("abc\"");
    REFUSED("a\"b\"c");
    REFUSED("\"abc\"d");
    REFUSED("\"abc\" d");
    REFUSED("\"a\"\"b\"");
    REFUSED("'a b'");
    REFUSED("\\\"abc\\\"");
}

static void bytes_outside_visible_ascii_are_refused(void)
{
    char bare[] = "k?y", quoted[] = "\"k?y\"", expected[] = "k?y";
    int ch, fine;

    for (ch = 0; ch < 256; ch++) {
        bare[1] = quoted[2] = expected[1] = (char)ch;
        fine = ch > 0x20 && ch < 0x7f && ch != '"' && ch != ',' && ch != ';' &&
               ch != '\\';
        T_STR(KEY(bare), fine ? expected : "!EINVAL");
        fine = ch >= 0x20 && ch < 0x7f && ch != '"' && ch != '\\';
        T_STR(KEY(quoted), fine ? expected : "!EINVAL");
    }
    REFUSED("k\xc3\xa9y");
}

static void parameters_of_every_type_are_ignored(void)
{
    static const char *const good[] = {
        ";a",
        ";  a",
        ";*a",
        ";a_-.*0",
        ";a;b;a",
        ";a=1",
        ";a=-1",
        ";a=0001",
        ";a=1.5",
        ";a=-0.125",
        ";a=?0",
        ";a=?1",
        ";a=tok",
        ";a=*",
        ";a=T/o:k!#$%",
        ";a=\"\"",
        ";a=\"b\\\"\"",
        ";a=\",;\"",
        ";a=::",
        ";a=:YWJj:",
        ";a=:YWI=:",
        ";a=:YQ==:",
        ";a=:YQ:",
        ";a=:+/+/:",
        ";a=999999999999999",
        ";a=999999999999.999",
        ";a=1; b=\"c\"; d",
    };
    char value[64];
    size_t i;

    for (i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(value, sizeof(value), "\"k\"%s", good[i]);
        if (!T_OK(strcmp(key_of(value, strlen(value)), "k") == 0))
            printf("#   refused: %s\n", value);
    }
}

static void parameters_that_do_not_parse_are_refused(void)
{
    static const char *const bad[] = {
        ";",
        ";;a",
        " ;a",
        ";A",
        ";1",
        ";a=",
        ";a =1",
        ";a= 1",
        ";a=-",
        ";a=--1",
        ";a=1.",
        ";a=.5",
        ";a=1.2.3",
        ";a=1.2345",
        ";a=+1",
        ";a=?",
        ";a=?2",
        ";a=?01",
        ";a=!t",
        ";a=(1)",
        ";a=\"b",
        ";a=\"\x01\"",
        ";a=\"\\n\"",
        ";a=:Y:",
        ";a=:YWJj",
        ";a=:Y=Q=:",
        ";a=:YQ=:",
        ";a=:YWJj=:",
        ";a=:YW J:",
        ";a=:==:",
        ";a=:Y===:",
        ";a=@1",
        ";a=1x",
        ";a b",
        ";\ta",
        ";a,",
        ";a=\xc3\xa9",
        ";a=1000000000000000",
        ";a=1000000000000.1",
    };
    char value[64];
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(value, sizeof(value), "\"k\"%s", bad[i]);
        if (!T_OK(strcmp(key_of(value, strlen(value)), "!EINVAL") == 0))
            printf("#   taken: %s\n", value);
    }
}

static void error_texts_never_hold_the_key(void)
{
    static const char *const bad[] = {
        "s3cr3t s3cr3t", "s3cr3t,s3cr3t",         "\"s3cr3t",
        "\"s3cr3t\" x",  "\"s3cr3t\",\"s3cr3t\"",
    };
    once_error err;
    size_t i, len;
    char out[ONCE__KEY_MAX];

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        T_EQ(once__key_parse((once_bytes){bad[i], strlen(bad[i])}, out, &len,
                             &err),
             ONCE_EINVAL);
        T_OK(strstr(err.text, "s3cr3t") == NULL);
        T_OK(strstr(err.text, "Idempotency-Key") != NULL);
    }
}

/* ---- The same grammar as regular expressions ---------------------------- */

#define STRING "\"([] !#-[^-~]|\\\\[\"\\\\])*\""
#define ITEM                                                                   \
    "(" STRING "|-?[0-9]{1,15}|-?[0-9]{1,12}[.][0-9]{1,3}|[?][01]"             \
    "|[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"                                  \
    "|:([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(==)?|[A-Za-z0-9+/]{3}=?)?:)"

struct grammar {
    regex_t bare, string, blank;
};

static void compile(regex_t *re, const char *pattern)
{
    if (regcomp(re, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        abort();
}

static int takes(const struct grammar *g, const char *value)
{
    if (regexec(&g->bare, value, 0, NULL, 0) == 0)
        return 1;
    return regexec(&g->string, value, 0, NULL, 0) == 0 &&
           regexec(&g->blank, value, 0, NULL, 0) != 0;
}

static unsigned long compare_all(const struct grammar *g, const char *prefix,
                                 const char *alphabet, int length)
{
    size_t base = strlen(alphabet), fixed = strlen(prefix), i;
    unsigned long n = 1, at, digits, taken = 0;
    char value[32];
    int k;

    for (k = 0; k < length; k++)
        n *= base;
    for (at = 0; at < n; at++) {
        memcpy(value, prefix, fixed);
        for (i = 0, digits = at; i < (size_t)length; i++, digits /= base)
            value[fixed + i] = alphabet[digits % base];
        value[fixed + i] = '\0';
        k = key_of(value, strlen(value))[0] != '!';
        taken += (unsigned long)k;
        if (!T_OK(k == takes(g, value)))
            printf("#   value: %s\n", value);
    }
    return taken;
}

/* A key that begins with "!" would look like an error in compare_all(): the
 * alphabets have none. */
static void all_short_values_are_judged_as_the_grammar_says(void)
{
    struct grammar g;
    int length;

    compile(&g.bare, "^[ \t]*[]!#-+.-:<-[^-~-]+[ \t]*$");
    compile(&g.string,
            "^[ \t]*" STRING "(; *[a-z*][a-z0-9_.*-]*(=" ITEM ")?)*[ \t]*$");
    compile(&g.blank, "^[ \t]*\" *\"");
    for (length = 1; length <= 5; length++) {
        T_OK(compare_all(&g, "", "\"\\,;=a \t\x7f", length) > 0);
        T_OK(compare_all(&g, "\"k\"", ";a=1 ", length + 1) > 0);
    }
    for (length = 1; length <= 4; length++)
        T_OK(compare_all(&g, "\"k\";a=", "\"\\,;=aZ1.-:?*/+ ", length) > 0);
    for (length = 1; length <= 3; length++) /* of Base64, with its last `:` */
        T_OK(compare_all(&g, "\"k\";a=:", "aZ1=:", 2 * length + 1) > 0);
    T_OK(compare_all(&g, "\"k\";a=1", "1.-", 8) > 0);
    regfree(&g.bare);
    regfree(&g.string);
    regfree(&g.blank);
}

/* ---- Keys that carry a time ---------------------------------------------- */

static int64_t born(int form, const char *key)
{
    uint64_t ms;

    if (once__key_birth(form, (once_bytes){key, strlen(key)}, &ms, NULL) !=
        ONCE_OK)
        return -1;
    return (int64_t)ms;
}

static void a_uuid_of_version_7_says_when_it_was_made(void)
{
    /* The example of RFC 9562, A.6. */
    T_EQ(born(ONCE__KEY_UUID7, "017F22E2-79B0-7CC3-98C4-DC0C0C07398F"),
         1645557742000);
    T_EQ(born(ONCE__KEY_UUID7, "017f22e2-79b0-7cc3-b8c4-dc0c0c07398f"),
         1645557742000);
    T_EQ(born(ONCE__KEY_UUID7, "ffffffff-ffff-7fff-bfff-ffffffffffff"),
         281474976710655);
    /* Another version, another variant, another form. */
    T_EQ(born(ONCE__KEY_UUID7, "017f22e2-79b0-4cc3-98c4-dc0c0c07398f"), -1);
    T_EQ(born(ONCE__KEY_UUID7, "017f22e2-79b0-7cc3-c8c4-dc0c0c07398f"), -1);
    T_EQ(born(ONCE__KEY_UUID7, "017f22e2-79b0-7cc3-78c4-dc0c0c07398f"), -1);
    T_EQ(born(ONCE__KEY_UUID7, "017f22e279b07cc398c4dc0c0c07398f"), -1);
    T_EQ(born(ONCE__KEY_UUID7, "017f22e2-79b0-7cc3-98c4-dc0c0c07398"), -1);
    T_EQ(born(ONCE__KEY_UUID7, "017f22e2-79b0-7cc3-98c4-dc0c0c07398f0"), -1);
    T_EQ(born(ONCE__KEY_UUID7, "017f22e2-79b0-7cc3-98c4-dc0c0c07398g"), -1);
    T_EQ(born(ONCE__KEY_UUID7, "017f22e2079b0-7cc3-98c4-dc0c0c07398f"), -1);
    T_EQ(born(ONCE__KEY_UUID7, ""), -1);
}

static void a_ulid_says_when_it_was_made(void)
{
    /* The example of its specification. */
    T_EQ(born(ONCE__KEY_ULID, "01ARZ3NDEKTSV4RRFFQ69G5FAV"), 1469922850259);
    T_EQ(born(ONCE__KEY_ULID, "01arz3ndektsv4rrffq69g5fav"), 1469922850259);
    T_EQ(born(ONCE__KEY_ULID, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"), 281474976710655);
    T_EQ(born(ONCE__KEY_ULID, "8ZZZZZZZZZZZZZZZZZZZZZZZZZ"), -1);
    T_EQ(born(ONCE__KEY_ULID, "01ARZ3NDEKTSV4RRFFQ69G5FA"), -1);
    T_EQ(born(ONCE__KEY_ULID, "01ARZ3NDEKTSV4RRFFQ69G5FAI"), -1);
    T_EQ(born(ONCE__KEY_ULID, "01ARZ3NDEKTSV4RRFFQ69G5FAO"), -1);
    T_EQ(born(ONCE__KEY_ULID, "01ARZ3NDEKTSV4RRFFQ69G5FAu"), -1);
    T_EQ(born(ONCE__KEY_ULID, "01ARZ3NDEK-SV4RRFFQ69G5FAV"), -1);
}

static void what_carries_no_time_has_none(void)
{
    T_EQ(born(ONCE__KEY_ANY, "order-7"), 0);
    T_EQ(once__key_form((once_bytes){"uuid7", 5}), ONCE__KEY_UUID7);
    T_EQ(once__key_form((once_bytes){"ulid", 4}), ONCE__KEY_ULID);
    T_EQ(once__key_form((once_bytes){"uuid4", 5}), ONCE__KEY_ANY);
}

static uint64_t most(uint64_t keep_ms, uint64_t failed_ms, uint64_t max_age_ms,
                     int bypass)
{
    once__policy p = {
        .keep_ms = keep_ms, .bypass = bypass, .rules.failed_ms = failed_ms};

    if (once__policy_key_time(&p, ONCE__KEY_ULID, max_age_ms, NULL) != ONCE_OK)
        return 0;
    return p.max_age_ms;
}

static void a_key_may_be_as_old_as_anything_is_kept_less_the_slack(void)
{
    enum { HOUR = 3600000, SLACK = 900000 };

    T_EQ(most(24 * HOUR, 0, 0, 0), 24 * HOUR - SLACK);
    T_EQ(most(24 * HOUR, HOUR, 0, 0), HOUR - SLACK);
    T_EQ(most(24 * HOUR, HOUR, 5, 0), 5);
    T_EQ(most(24 * HOUR, HOUR, HOUR - SLACK, 0), HOUR - SLACK);
    T_EQ(most(24 * HOUR, HOUR, HOUR - SLACK + 1, 0), 0);
    T_EQ(most(HOUR - 1, 0, 0, 0), 0);
    T_EQ(most(24 * HOUR, HOUR - 1, 0, 0), 0);
    T_EQ(most(24 * HOUR, 0, 0, 1), 0);
}

/* What is left of `key`: "", or the error's text. */
static const char *placeholder(const char *key)
{
    static once_error err;
    once_bytes text = {key, strlen(key)};

    err = (once_error){0, ""};
    if (once__key_refuse_placeholder(text, &err) == ONCE_OK)
        return "";
    T_EQ(err.code, ONCE_EINVAL);
    return err.text;
}

static void what_stands_for_no_value_is_no_key(void)
{
    static const char *const words[] = {
        "undefined",
        "null",
        "Null",
        "NULL",
        "(null)",
        "None",
        "nil",
        "<nil>",
        "NaN",
        "[object Object]",
        "00000000-0000-0000-0000-000000000000",
        "00000000000000000000000000000000",
    };
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!T_OK(strstr(placeholder(words[i]), "Send a new random key") !=
                  NULL))
            printf("#   taken: %s\n", words[i]);
    T_STR(placeholder("undefined"),
          "Idempotency-Key: \"undefined\" is what a program sends where it "
          "has no key. Send a new random key for each operation, such as a "
          "UUID.");
}

static void what_only_begins_so_is_a_key(void)
{
    static const char *const keys[] = {
        "undefined-1",
        "undefine",
        "nullable",
        "k-null",
        "0",
        "00000000-0000-0000-0000-000000000001",
        "00000000-0000-7000-8000-000000000000",
        "0000000000000000000000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    };
    size_t i;

    for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        T_STR(placeholder(keys[i]), "");
}

int main(void)
{
    T_RUN(what_stands_for_no_value_is_no_key);
    T_RUN(what_only_begins_so_is_a_key);
    T_RUN(a_bare_token_is_the_key);
    T_RUN(a_string_is_the_key_without_its_quotes);
    T_RUN(both_forms_of_a_text_are_one_key);
    T_RUN(case_makes_another_key);
    T_RUN(escapes_in_a_string_are_honoured);
    T_RUN(what_is_written_is_read_back);
    T_RUN(other_escapes_are_refused);
    T_RUN(white_space_around_is_dropped);
    T_RUN(empty_and_blank_values_are_refused);
    T_RUN(a_key_of_255_characters_is_the_longest);
    T_RUN(white_space_around_does_not_count);
    T_RUN(what_is_wrong_is_told_before_what_is_long);
    T_RUN(two_lines_joined_are_refused_equal_or_not);
    T_RUN(a_comma_list_is_refused);
    T_RUN(a_bare_token_with_white_space_inside_is_refused);
    T_RUN(a_bare_token_has_no_parameters);
    T_RUN(a_string_that_does_not_parse_is_refused);
    T_RUN(bytes_outside_visible_ascii_are_refused);
    T_RUN(parameters_of_every_type_are_ignored);
    T_RUN(parameters_that_do_not_parse_are_refused);
    T_RUN(error_texts_never_hold_the_key);
    T_RUN(all_short_values_are_judged_as_the_grammar_says);
    T_RUN(a_uuid_of_version_7_says_when_it_was_made);
    T_RUN(a_ulid_says_when_it_was_made);
    T_RUN(what_carries_no_time_has_none);
    T_RUN(a_key_may_be_as_old_as_anything_is_kept_less_the_slack);
    return t_done();
}
