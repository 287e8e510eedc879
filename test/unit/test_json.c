/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_json.c - JSON bodies: which documents are read, which are the same, and
 * which key stands in one. test/fuzz/json_peer.py compares the same functions
 * with a second implementation, over many more documents.
 */
#include "calls/http/http.h"
#include "calls/http/json.h"

#include "t.h"

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

/* ---- What is JSON -------------------------------------------------------- */

/* In memory of exactly its size, so that ASan sees one byte too many. */
static int parse(once_bytes in, once__json **out)
{
    void *exact = malloc(in.size > 0 ? in.size : 1);
    once_error err;
    int rc;

    *out = NULL;
    if (in.size > 0)
        memcpy(exact, in.data, in.size);
    rc = once__json_parse((once_bytes){exact, in.size}, out, &err);
    free(exact);
    return rc;
}

static int reads(once_bytes in)
{
    once__json *doc;
    int rc = parse(in, &doc);

    free(doc);
    return rc;
}

static void the_grammar_is_rfc_8259(void)
{
    static const char *const good[] = {
        "null",
        " true\t",
        "\r\nfalse\n",
        "0",
        "-0",
        "10.50e+07",
        "1E-2",
        "\"\"",
        "[]",
        "{}",
        "[ ]",
        "{ }",
        "[1,[2],{\"a\":[]}]",
        "{\"a\":1 , \"b\" : {}}",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\"",
        "\"\x7f\xc3\xa4\xe2\x82\xac\xf0\x9d\x84\x9e\"",
        "\"\\ud834\\udd1e\"",
        "\"\\ud834 alone\"",
        "{\"a\":1,\"a\":2}",
    };
    static const char *const bad[] = {
        "",
        " ",
        "nul",
        "nulll",
        "True",
        "01",
        "-",
        "-01",
        "+1",
        ".5",
        "1.",
        "1.e1",
        "1e",
        "1e+",
        "0x1",
        "NaN",
        "Infinity",
        "1 2",
        "[",
        "[[[[[[[[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{",
        "{\"",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{a:1}",
        "{1:1}",
        "{\"a\" 1}",
        "{\"a\":1]",
        "[1}",
        "\"",
        "\"a",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\t\"",
        "\"\n\"",
        "'a'",
        "//\n1",
        "\xef\xbb\xbf{}",
        "\xa0",
        "1\v",
        "\"\x80\"",
        "\"\xc0\xaf\"",
        "\"\xe0\x80\xaf\"",
        "\"\xed\xa0\x80\"",
        "\"\xf4\x90\x80\x80\"",
        "\"\xf8\x88\x80\x80\x80\"",
        "\"\xc3\"",
        "\"\xe2\x82",
        "\"\xe2\x82\"",
    };
    size_t i;

    for (i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        if (!T_OK(reads(text(good[i])) == ONCE_OK))
            printf("#   %s\n", good[i]);
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (!T_OK(reads(text(bad[i])) == ONCE_EINVAL))
            printf("#   %s\n", bad[i]);
    T_EQ(reads((once_bytes){"1\0", 2}), ONCE_EINVAL);
    T_EQ(reads((once_bytes){"\"\0\"", 3}), ONCE_EINVAL);
}

static void both_limits_are_exact(void)
{
    static char big[ONCE__JSON_MAX + 1];
    int i;

    memset(big, ' ', sizeof(big));
    big[0] = '1';
    T_EQ(reads((once_bytes){big, ONCE__JSON_MAX}), ONCE_OK);
    T_EQ(reads((once_bytes){big, ONCE__JSON_MAX + 1}), ONCE_ELIMIT);
    for (i = 0; i < ONCE__JSON_MAX; i++)
        big[i] = (char)(i % 2 ? '1' : ',');
    big[0] = '[';
    big[ONCE__JSON_MAX - 1] = ' ';
    big[ONCE__JSON_MAX - 2] = ']';
    T_EQ(reads((once_bytes){big, ONCE__JSON_MAX}), ONCE_OK);
    for (i = 0; i <= ONCE__JSON_DEPTH; i++) {
        big[i] = '[';
        big[2 * ONCE__JSON_DEPTH + 1 - i] = ']';
    }
    T_EQ(reads((once_bytes){big + 1, 2 * ONCE__JSON_DEPTH}), ONCE_OK);
    T_EQ(reads((once_bytes){big, 2 * ONCE__JSON_DEPTH + 2}), ONCE_ELIMIT);
    memset(big, '[', sizeof(big));
    T_EQ(reads((once_bytes){big, ONCE__JSON_MAX}), ONCE_ELIMIT);
}

/* ---- What is the same ---------------------------------------------------- */

struct written {
    char bytes[4096];
    size_t size;
};

static void put(void *user, const void *data, size_t size)
{
    struct written *w = user;

    if (T_OK(w->size + size <= sizeof(w->bytes))) {
        memcpy(w->bytes + w->size, data, size);
        w->size += size;
    }
}

static int write_but(const char *json, const char *const *but, size_t n,
                     struct written *out)
{
    once_bytes pointers[4];
    once__json *doc;
    size_t i;
    int rc;

    out->size = 0;
    for (i = 0; i < n; i++) {
        pointers[i] = text(but[i]);
        T_OK(once__pointer_check(pointers[i]));
    }
    if (!T_OK(parse(text(json), &doc) == ONCE_OK)) {
        printf("#   %s\n", json);
        return ONCE_EINVAL;
    }
    rc = once__json_write(doc, pointers, n, put, out);
    T_OK(rc == ONCE_OK || out->size == 0);
    free(doc);
    return rc;
}

static int same_but(const char *a, const char *b, const char *const *but,
                    size_t n)
{
    static struct written one, two;

    T_EQ(write_but(a, but, n, &one), ONCE_OK);
    T_EQ(write_but(b, but, n, &two), ONCE_OK);
    return one.size == two.size && memcmp(one.bytes, two.bytes, one.size) == 0;
}

struct pair {
    const char *a, *b;
};

static void compare_all(const struct pair *pairs, size_t n, int same)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (!T_OK(same_but(pairs[i].a, pairs[i].b, NULL, 0) == same))
            printf("#   %s and %s\n", pairs[i].a, pairs[i].b);
}

static void other_bytes_of_one_document_are_the_same(void)
{
    static const struct pair pairs[] = {
        {"{\"a\":1,\"b\":[2,3]}", " { \"b\" : [ 2 , 3 ] , \"a\" : 1 }\n"},
        {"\"\\u0061\\/\\u00e4\\ud834\\udd1e\"",
         "\"a/\xc3\xa4\xf0\x9d\x84\x9e\""},
        {"\"\\u000A\"", "\"\\n\""},
        {"1", "1.0"},
        {"1", "1e0"},
        {"1", "0.1E+1"},
        {"1", "100e-2"},
        {"0", "-0"},
        {"0", "0.000e17"},
        {"-0.0", "0e-5"},
        {"-120", "-1.2e2"},
        {"1e2", "100"},
        {"10.0100", "1001e-2"},
        {"0.00012", "12e-5"},
        {"1e00000000000000000000001", "10"},
        {"123456789012345678901234567890", "12345678901234567890123456789e1"},
        {"{\"\":1,\"\\u0000\":2}", "{\"\\u0000\":2,\"\":1}"},
        {"{\"ab\":1,\"a\":2,\"b\":3}", "{\"b\":3,\"a\":2,\"ab\":1}"},
    };

    compare_all(pairs, sizeof(pairs) / sizeof(pairs[0]), 1);
}

static void what_means_something_else_is_not_the_same(void)
{
    static const struct pair pairs[] = {
        {"9007199254740993", "9007199254740992"},
        {"0.1", "0.1000000000000000055511151231257827"},
        {"1e400", "1e401"},
        {"1e999999999999999999", "1e999999999999999998"},
        {"1", "-1"},
        {"1", "10"},
        {"1", "\"1\""},
        {"0", "false"},
        {"0", "\"\""},
        {"\"\"", "null"},
        {"null", "false"},
        {"[]", "{}"},
        {"[1,2]", "[2,1]"},
        {"[1,[2]]", "[[1],2]"},
        {"[[1,2]]", "[[1],2]"},
        {"[12]", "[1,2]"},
        {"[\"a\",\"b\"]", "[\"ab\"]"},
        {"{\"a\":1}", "{\"A\":1}"},
        {"{\"a\":1}", "{\"a\":1,\"b\":null}"},
        {"{\"a\":\"b\"}", "{\"b\":\"a\"}"},
        {"{\"a\":{}}", "{\"a\":[]}"},
        {"{\"a\":[{\"b\":1}]}", "{\"a\":[{}],\"b\":1}"},
        {"\"\xc3\xa4\"", "\"a\xcc\x88\""}, /* no normalisation of Unicode */
    };

    compare_all(pairs, sizeof(pairs) / sizeof(pairs[0]), 0);
}

static void what_has_no_exact_meaning_is_not_compared(void)
{
    static const struct {
        const char *json;
        int rc;
    } rows[] = {
        {"{\"a\":1,\"a\":1}", ONCE_EINVAL},
        {"{\"a\":1,\"\\u0061\":2}", ONCE_EINVAL},
        {"[{\"b\":0,\"a\":{\"c\":1,\"d\":1,\"c\":1}}]", ONCE_EINVAL},
        {"\"\\ud834\"", ONCE_EINVAL},
        {"{\"\\udd1e\":1}", ONCE_EINVAL},
        {"\"\\ud834\\ud834\\udd1e\"", ONCE_EINVAL},
        {"\"\\udd1e\\ud834\"", ONCE_EINVAL},
        {"1e1000000000000000000", ONCE_ELIMIT},
        {"[0e-1000000000000000000]", ONCE_ELIMIT},
    };
    static struct written out;
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        T_EQ(write_but(rows[i].json, NULL, 0, &out), rows[i].rc);
}

static void a_member_that_is_left_out_does_not_count_and_all_others_do(void)
{
    static const char *const but[] = {"/sent_at", "/meta/attempt", "/list/1/x",
                                      "/a~1b~0c"};
    static const char first[] =
        "{\"amount\":5,\"sent_at\":1,\"meta\":{\"attempt\":1,\"id\":7},"
        "\"list\":[{\"x\":1},{\"x\":1}],\"a/b~c\":1}";
    static const struct {
        const char *json;
        int same;
    } rows[] = {
        {"{\"amount\":5,\"sent_at\":{\"y\":[1]},\"meta\":{\"attempt\":2,"
         "\"id\":7},\"list\":[{\"x\":1},{\"x\":2}],\"a/b~c\":2}",
         1},
        {"{\"amount\":5,\"meta\":{\"id\":7},\"list\":[{\"x\":1},{}]}", 1},
        {"{\"amount\":6,\"meta\":{\"id\":7},\"list\":[{\"x\":1},{}]}", 0},
        {"{\"amount\":5,\"meta\":{\"id\":8},\"list\":[{\"x\":1},{}]}", 0},
        {"{\"amount\":5,\"meta\":{},\"list\":[{\"x\":1},{}]}", 0},
        {"{\"amount\":5,\"list\":[{\"x\":1},{}]}", 0},
        {"{\"amount\":5,\"meta\":{\"id\":7},\"list\":[{\"x\":2},{}]}", 0},
        {"{\"amount\":5,\"meta\":{\"id\":7},\"list\":[{\"x\":1}]}", 0},
        {"{\"amount\":5,\"meta\":{\"id\":7},\"list\":[{\"x\":1},{}],"
         "\"attempt\":1}",
         0},
        {"{\"amount\":5,\"meta\":{\"id\":7,\"sent_at\":1},"
         "\"list\":[{\"x\":1},{}]}",
         0},
        {"{\"amount\":5,\"meta\":{\"id\":7},\"list\":[{\"x\":1},{}],"
         "\"sent_at2\":1}",
         0},
    };
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (!T_OK(same_but(first, rows[i].json, but, 4) == rows[i].same))
            printf("#   %s\n", rows[i].json);
}

static void only_members_of_objects_can_be_left_out(void)
{
    static const char *const but[] = {"/1", "/a", ""};
    static struct written out;

    T_OK(!same_but("[1,2]", "[1,3]", but, 3));
    T_OK(!same_but("1", "2", but, 3));
    T_OK(same_but("{\"1\":1}", "{}", but, 3));
    /* not even one of two with the same name */
    T_EQ(write_but("{\"a\":1,\"a\":2}", but, 3, &out), ONCE_EINVAL);
}

/* ---- Keys ---------------------------------------------------------------- */

/* "": there is none; NULL: it is refused. */
static const char *key_of(const char *json, const char *one, const char *two)
{
    static char out[ONCE__KEY_MAX + 1];
    once_bytes pointers[2] = {text(one), two ? text(two) : text("")};
    once__json *doc;
    once_error err;
    size_t len;
    int rc;

    T_OK(once__pointer_check(pointers[0]) && once__pointer_check(pointers[1]));
    rc = parse(text(json), &doc);
    if (rc == ONCE_OK)
        rc = once__json_key(doc, pointers, two ? 2 : 1, out, &len, &err);
    free(doc);
    if (rc != ONCE_OK)
        return NULL;
    out[len] = '\0';
    return out;
}

static void is_key(const char *json, const char *one, const char *two,
                   const char *wanted)
{
    const char *key = key_of(json, one, two);

    if (!T_OK((key == NULL) == (wanted == NULL)) ||
        (key != NULL && !T_OK(strcmp(key, wanted) == 0)))
        printf("#   %s %s: %s\n", json, one, key != NULL ? key : "refused");
}

static void a_key_is_a_visible_text_or_an_integer_as_it_was_written(void)
{
    is_key("{\"id\":\"abc\"}", "/id", NULL, "abc");
    is_key("{\"id\":\"\\u0061\\\"~,\"}", "/id", NULL, "a\"~,");
    is_key("{\"id\":7}", "/id", NULL, "7");
    is_key("{\"id\":\"7\"}", "/id", NULL, "7");
    is_key("{\"id\":-7}", "/id", NULL, "-7");
    is_key("{\"id\":0}", "/id", NULL, "0");
    is_key("{\"id\":9007199254740993}", "/id", NULL, "9007199254740993");
    is_key("\"abc\"", "", NULL, "abc");
    is_key("{\"id\":-0}", "/id", NULL, NULL);
    is_key("{\"id\":7.0}", "/id", NULL, NULL);
    is_key("{\"id\":7e0}", "/id", NULL, NULL);
    is_key("{\"id\":7E0}", "/id", NULL, NULL);
    is_key("{\"id\":\"\"}", "/id", NULL, NULL);
    is_key("{\"id\":\"a b\"}", "/id", NULL, NULL);
    is_key("{\"id\":\"a\\u0000\"}", "/id", NULL, NULL);
    is_key("{\"id\":\"\\u00e4\"}", "/id", NULL, NULL);
    is_key("{\"id\":\"\x7f\"}", "/id", NULL, NULL);
    is_key("{\"id\":\"\\ud834\"}", "/id", NULL, NULL);
    is_key("{\"id\":true}", "/id", NULL, NULL);
    is_key("{\"id\":{}}", "/id", NULL, NULL);
    is_key("{\"id\":[\"a\"]}", "/id", NULL, NULL);
    is_key("{\"id\":\"a\"", "/id", NULL, NULL);
}

static void what_is_missing_or_null_is_no_key_and_nothing_else_is_none(void)
{
    is_key("{}", "/id", NULL, "");
    is_key("{\"id\":null}", "/id", NULL, "");
    is_key("null", "/id", NULL, "");
    is_key("{\"a\":null}", "/a/id", NULL, "");
    is_key("{\"b\":1}", "/a/id", NULL, "");
    is_key("{\"ID\":1}", "/id", NULL, "");
    is_key("{\"a\":1}", "/a/id", NULL, NULL);
    is_key("{\"a\":\"id\"}", "/a/id", NULL, NULL);
    is_key("[{\"id\":1}]", "/id", NULL, NULL);
    is_key("7", "/id", NULL, NULL);
}

static void pointers_are_those_of_rfc_6901(void)
{
    static const char json[] =
        "{\"foo\":[\"bar\",\"baz\"],\"\":0,\"a/b\":1,\"c%d\":2,\"i\\\\j\":5,"
        "\" \":7,\"m~n\":8,\"~1\":9,\"\\u00e4\":10,\"01\":11}";
    static const char *const bad[] = {"a",   "~",     "/~",           "/a~2b",
                                      "/~/", "/\xff", "/\xed\xa0\x80"};
    char over[ONCE__POINTER_MAX + 2];
    size_t i;

    is_key(json, "/foo/0", NULL, "bar");
    is_key(json, "/foo/1", NULL, "baz");
    is_key(json, "/foo/2", NULL, "");
    is_key(json, "/foo/-", NULL, "");
    is_key(json, "/foo/18446744073709551616", NULL, "");
    is_key(json, "/foo/01", NULL, NULL);
    is_key(json, "/foo/00", NULL, NULL);
    is_key(json, "/foo/+1", NULL, NULL);
    is_key(json, "/foo/", NULL, NULL);
    is_key(json, "/foo/x", NULL, NULL);
    is_key(json, "/", NULL, "0");
    is_key(json, "/a~1b", NULL, "1");
    is_key(json, "/c%d", NULL, "2");
    is_key(json, "/i\\j", NULL, "5");
    is_key(json, "/ ", NULL, "7");
    is_key(json, "/m~0n", NULL, "8");
    is_key(json, "/~01", NULL, "9");
    is_key(json, "/\xc3\xa4", NULL, "10");
    is_key(json, "/01", NULL, "11");
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        T_OK(!once__pointer_check(text(bad[i])));
    memset(over, '/', sizeof(over));
    T_OK(once__pointer_check((once_bytes){over, ONCE__POINTER_MAX}));
    T_OK(!once__pointer_check((once_bytes){over, ONCE__POINTER_MAX + 1}));
}

static void a_name_that_stands_there_twice_is_refused(void)
{
    is_key("{\"id\":1,\"id\":1}", "/id", NULL, NULL);
    is_key("{\"id\":1,\"\\u0069d\":2}", "/id", NULL, NULL);
    is_key("{\"a\":{\"id\":1},\"b\":0,\"a\":{}}", "/a/id", NULL, NULL);
    is_key("{\"id\":null,\"id\":1}", "/id", NULL, NULL);
    is_key("{\"id\":1,\"b\":1,\"b\":2}", "/id", NULL, "1");
}

static void two_pointers_are_framed_and_half_a_key_is_refused(void)
{
    char json[700], long_text[ONCE__KEY_MAX + 2];

    is_key("{\"a\":\"x\",\"b\":12}", "/a", "/b", "1:x,2:12,");
    is_key("{\"a\":\"x,2:12\",\"b\":\"y\"}", "/a", "/b", "6:x,2:12,1:y,");
    is_key("{}", "/a", "/b", "");
    is_key("{\"a\":null}", "/a", "/b", "");
    is_key("{\"a\":\"x\"}", "/a", "/b", NULL);
    is_key("{\"b\":\"x\",\"a\":null}", "/a", "/b", NULL);
    is_key("{\"a\":\"x\",\"b\":\"\"}", "/a", "/b", NULL);

    memset(long_text, 'k', sizeof(long_text));
    long_text[ONCE__KEY_MAX] = '\0';
    snprintf(json, sizeof(json), "{\"a\":\"%s\",\"b\":\"%s\"}", long_text, "");
    is_key(json, "/a", NULL, long_text);
    snprintf(json, sizeof(json), "{\"a\":\"k%s\"}", long_text);
    is_key(json, "/a", NULL, NULL);
    snprintf(json, sizeof(json), "{\"a\":\"%.246s\",\"b\":1}", long_text);
    T_EQ(strlen(key_of(json, "/a", "/b")), ONCE__KEY_MAX);
    snprintf(json, sizeof(json), "{\"a\":\"%.247s\",\"b\":1}", long_text);
    is_key(json, "/a", "/b", NULL);
    snprintf(json, sizeof(json), "{\"a\":\"%s\",\"b\":\"%s\"}", long_text,
             long_text);
    is_key(json, "/a", "/b", NULL);
}

/* What an adapter asks for: the encoding and the time of the key count, too. */
static void a_key_of_a_body_is_looked_at_as_a_whole(void)
{
    static const char body[] = "{\"id\":\"01890a5d-ac96-774b-bcce-b302099a8057"
                               "\",\"no\":\"x\"}";
    const once_bytes none = {NULL, 0}, gzip = {"gzip", 4};
    once__key_pointers id = {.n = 0}, no = {.n = 0}, gone = {.n = 0};
    char out[ONCE__KEY_MAX];
    char line[ONCE__KEY_LINE];
    uint64_t born = 0;
    once__json *doc;
    size_t len;

    T_EQ(once__key_write((once_bytes){"a\"\\", 3}, line), 7);
    T_STR(line, "\"a\\\"\\\\\"");
    T_EQ(once__key_pointers_add(&id, (once_bytes){"id", 2}, NULL), ONCE_EINVAL);
    T_EQ(once__key_pointers_add(&id, (once_bytes){"/id", 3}, NULL), ONCE_OK);
    T_EQ(once__key_pointers_add(&no, (once_bytes){"/no", 3}, NULL), ONCE_OK);
    T_EQ(once__key_pointers_add(&gone, (once_bytes){"/x", 2}, NULL), ONCE_OK);
    T_EQ(once__key_pointers_add(&gone, none, NULL), ONCE_OK);
    T_EQ(once__key_pointers_add(&gone, none, NULL), ONCE_EINVAL);
    T_EQ(gone.n, 2);
    gone.n = 1;
    T_EQ(once__json_parse((once_bytes){body, sizeof(body) - 1}, &doc, NULL),
         ONCE_OK);
    T_EQ(once__key_of_body(&id, none, doc, ONCE__KEY_UUID7, out, &len, &born,
                           NULL),
         ONCE_OK);
    T_EQ(len, 36);
    T_EQ(born, 0x01890a5dac96);
    T_EQ(once__key_of_body(&id, gzip, doc, ONCE__KEY_ANY, out, &len, &born,
                           NULL),
         ONCE_EINVAL);
    T_EQ(once__key_of_body(&no, none, doc, ONCE__KEY_UUID7, out, &len, &born,
                           NULL),
         ONCE_EINVAL);
    T_EQ(once__key_of_body(&gone, none, doc, ONCE__KEY_UUID7, out, &len, &born,
                           NULL),
         ONCE_OK);
    T_EQ(len, 0);
    free(doc);
}

int main(void)
{
    T_RUN(the_grammar_is_rfc_8259);
    T_RUN(both_limits_are_exact);
    T_RUN(other_bytes_of_one_document_are_the_same);
    T_RUN(what_means_something_else_is_not_the_same);
    T_RUN(what_has_no_exact_meaning_is_not_compared);
    T_RUN(a_member_that_is_left_out_does_not_count_and_all_others_do);
    T_RUN(only_members_of_objects_can_be_left_out);
    T_RUN(a_key_is_a_visible_text_or_an_integer_as_it_was_written);
    T_RUN(what_is_missing_or_null_is_no_key_and_nothing_else_is_none);
    T_RUN(pointers_are_those_of_rfc_6901);
    T_RUN(a_name_that_stands_there_twice_is_refused);
    T_RUN(two_pointers_are_framed_and_half_a_key_is_refused);
    T_RUN(a_key_of_a_body_is_looked_at_as_a_whole);
    return t_done();
}
