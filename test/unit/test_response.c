/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_response.c - the codec of stored responses. What comes back is what
 * went in; what does not check is refused, in both directions; and whatever
 * bytes a store hands out, nothing outside of them is read: every truncation,
 * every single-byte change and many random ones are decoded from blocks of
 * their exact size, for ASan to watch. What passes is held against the rules.
 */
#include "calls/http/http.h"

#include "t.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { MAX = 8 }; /* headers in responses of this file */

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

static int same(once_bytes a, once_bytes b)
{
    return a.size == b.size &&
           (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static uint8_t *exact(const void *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);

    if (copy == NULL)
        abort();
    if (size > 0)
        memcpy(copy, data, size);
    return copy;
}

/* The encoding of `r`, to be freed; its size in `*size`. */
static uint8_t *encoded(const once__response *r, size_t *size)
{
    uint8_t *out;

    *size = 0;
    if (!T_OK(once__response_size(r, size, NULL) == ONCE_OK))
        abort();
    out = malloc(*size);
    if (out == NULL)
        abort();
    once__response_encode(r, out);
    return out;
}

static once__header headers[] = {
    {{"Content-Type", 12}, {"application/json", 16}, 1},
    {{"X-Multi", 7}, {"one", 3}, 0},
    {{"X-Multi", 7}, {"two", 3}, 0},
    {{"X-Empty", 7}, {NULL, 0}, 255},
    {{"x", 1}, {"\x01\t\x7f\xff\"", 5}, 7},
};

static once__response charge(void)
{
    once__response r = {
        .status = 201,
        .reason = text("Created"),
        .headers = headers,
        .n = COUNT(headers),
        .body = {"{\"id\":1}\r\n\0\xff", 12},
    };

    return r;
}

/* Collects the headers of a decoded response and makes it one that can be
 * encoded. Returns 0 if there are not exactly `r->n`. */
static int reopen(once__response *r, once__header *room, size_t max)
{
    size_t at = 0, i = 0;

    if (r->n > max)
        return 0;
    while (i < r->n && once__response_next(r, &at, &room[i]))
        i++;
    if (i != r->n || at != r->block.size)
        return 0;
    r->headers = room;
    return 1;
}

/* ---- Round trips -------------------------------------------------------- */

static void what_comes_back_is_what_went_in(void)
{
    once__response r = charge(), back = {.status = 0};
    once__header h;
    size_t size, at = 0, i;
    uint8_t *bytes = encoded(&r, &size);

    T_EQ(once__response_decode((once_bytes){bytes, size}, &back, NULL),
         ONCE_OK);
    T_EQ(back.status, 201);
    T_EQ(back.flags, 0);
    T_EQ(back.n, r.n);
    T_OK(back.headers == NULL);
    T_OK(same(back.reason, r.reason) && same(back.body, r.body));
    for (i = 0; i < r.n; i++) {
        T_EQ(once__response_next(&back, &at, &h), 1);
        T_OK(same(h.name, headers[i].name) && same(h.value, headers[i].value));
        T_EQ(h.tag, headers[i].tag);
    }
    T_EQ(once__response_next(&back, &at, &h), 0);
    T_EQ(once__response_next(&back, &at, &h), 0);
    free(bytes);
}

static void a_bare_204_is_twenty_bytes(void)
{
    once__response r = {.status = 204}, back = {.status = 0};
    once__header h;
    size_t size, at = 0;
    uint8_t *bytes = encoded(&r, &size);

    T_EQ(size, 20);
    T_EQ(once__response_decode((once_bytes){bytes, size}, &back, NULL),
         ONCE_OK);
    T_EQ(back.status, 204);
    T_OK(back.n == 0 && back.reason.size == 0 && back.body.size == 0);
    T_EQ(once__response_next(&back, &at, &h), 0);
    free(bytes);
}

static void the_encoding_is_what_stores_already_hold(void)
{
    static const char stored[] = "OHR\1\311\0\0\0\2\0\2\0\31\0\0\0\4\0\0\0"
                                 "OK"
                                 "\4\0\3\0\6etaga\"b"
                                 "\2\0\6\0\0vy;;;;;;"
                                 "body";
    once__header two[] = {{text("etag"), text("a\"b"), 6},
                          {text("vy"), text(";;;;;;"), 0}};
    once__response r = {.status = 201,
                        .reason = text("OK"),
                        .headers = two,
                        .n = 2,
                        .body = text("body")};
    size_t size;
    uint8_t *bytes = encoded(&r, &size);

    if (T_OK(size == sizeof(stored) - 1))
        T_MEM(bytes, stored, size);
    free(bytes);
}

static void a_mark_has_its_flag_and_no_body(void)
{
    once__response r = charge(), back = {.status = 0};
    size_t size;
    uint8_t *bytes;

    r.flags = ONCE__NO_BODY;
    T_EQ(once__response_size(&r, &size, NULL), ONCE_EINVAL);
    r.body.size = 0;
    bytes = encoded(&r, &size);
    T_EQ(once__response_decode((once_bytes){bytes, size}, &back, NULL),
         ONCE_OK);
    T_EQ(back.flags, ONCE__NO_BODY);
    free(bytes);
}

static void a_bare_mark_is_that_of_a_status_alone(void)
{
    once__response r = {.status = 402, .flags = ONCE__NO_BODY};
    uint8_t bare[ONCE__RESPONSE_BARE];
    size_t size;
    uint8_t *bytes = encoded(&r, &size);

    T_EQ(once__response_bare(402, bare), size);
    T_MEM(bare, bytes, size);
    free(bytes);
    T_EQ(once__response_bare(0, bare), 0);
    T_EQ(once__response_bare(600, bare), 0);
}

static void every_status_from_100_to_599_is_kept(void)
{
    int status;

    for (status = -1; status <= 1000; status++) {
        once__response r = {.status = status}, back = {.status = 0};
        size_t size = 0;
        uint8_t *bytes;

        if (status < 100 || status > 599) {
            T_EQ(once__response_size(&r, &size, NULL), ONCE_EINVAL);
            T_EQ(size, 0);
            continue;
        }
        bytes = encoded(&r, &size);
        T_EQ(once__response_decode((once_bytes){bytes, size}, &back, NULL),
             ONCE_OK);
        T_EQ(back.status, status);
        free(bytes);
    }
}

/* ---- Limits ------------------------------------------------------------- */

static int size_with(once_bytes reason, once_bytes name, once_bytes value)
{
    once__header h = {name, value, 0};
    once__response r = {.status = 200, .reason = reason, .headers = &h, .n = 1};
    size_t size = 0;
    int rc = once__response_size(&r, &size, NULL);

    T_EQ(size, rc == ONCE_OK ? 25 + reason.size + name.size + value.size : 0);
    return rc;
}

static void lines_have_a_limit(void)
{
    static char long_[ONCE__HEADER_MAX + 1];
    const once_bytes fits = {long_, ONCE__HEADER_MAX};
    const once_bytes over = {long_, ONCE__HEADER_MAX + 1};
    const once_bytes x = text("x");

    memset(long_, 'x', sizeof(long_));
    T_EQ(size_with(fits, fits, fits), ONCE_OK);
    T_EQ(size_with(over, x, x), ONCE_ELIMIT);
    T_EQ(size_with(x, over, x), ONCE_ELIMIT);
    T_EQ(size_with(x, x, over), ONCE_ELIMIT);
    T_EQ(size_with(x, text(""), x), ONCE_EINVAL);
    T_EQ(size_with(text(""), x, text("")), ONCE_OK);
}

static void the_longest_header_comes_back(void)
{
    static char long_[ONCE__HEADER_MAX];
    once__header h = {{long_, sizeof(long_)}, {long_, sizeof(long_)}, 9}, got;
    once__response r = {.status = 200, .headers = &h, .n = 1}, back;
    size_t size, at = 0;
    uint8_t *bytes;

    memset(long_, 'y', sizeof(long_));
    bytes = encoded(&r, &size);
    T_EQ(once__response_decode((once_bytes){bytes, size}, &back, NULL),
         ONCE_OK);
    T_EQ(once__response_next(&back, &at, &got), 1);
    T_OK(same(got.name, h.name) && same(got.value, h.value));
    free(bytes);
}

static void headers_have_a_limit(void)
{
    static once__header many[ONCE__HEADERS_MAX + 1];
    once__response r = {.status = 200, .headers = many}, back;
    size_t size, i;
    uint8_t *bytes;

    for (i = 0; i < COUNT(many); i++)
        many[i] = (once__header){text("n"), text("v"), (uint8_t)(i & 255)};
    r.n = ONCE__HEADERS_MAX;
    bytes = encoded(&r, &size);
    T_EQ(once__response_decode((once_bytes){bytes, size}, &back, NULL),
         ONCE_OK);
    T_EQ(back.n, ONCE__HEADERS_MAX);
    free(bytes);
    r.n = ONCE__HEADERS_MAX + 1;
    T_EQ(once__response_size(&r, &size, NULL), ONCE_ELIMIT);
}

/* The body is not touched by once__response_size(), so it need not exist. */
static void the_whole_has_a_limit(void)
{
    once__response r = {.status = 200};
    size_t size = 0;

    r.body = (once_bytes){"", ONCE_RESULT_MAX - 20};
    T_EQ(once__response_size(&r, &size, NULL), ONCE_OK);
    T_EQ(size, ONCE_RESULT_MAX);
    r.body.size++;
    T_EQ(once__response_size(&r, &size, NULL), ONCE_ELIMIT);
    r.body.size = SIZE_MAX;
    T_EQ(once__response_size(&r, &size, NULL), ONCE_ELIMIT);
    r.body.size = SIZE_MAX - 10;
    T_EQ(once__response_size(&r, &size, NULL), ONCE_ELIMIT);
    r = charge();
    r.headers = NULL;
    r.n = 0;
    r.flags = 2;
    T_EQ(once__response_size(&r, &size, NULL), ONCE_EINVAL);
    T_EQ(size, ONCE_RESULT_MAX);
}

static void every_byte_is_judged_in_every_line(void)
{
    const once_bytes x = text("x");
    char line[] = "a?b";
    once_bytes with = {line, 3};
    int ch, expected;

    for (ch = 0; ch < 256; ch++) {
        line[1] = (char)ch;
        expected = ch == '\r' || ch == '\n' || ch == 0 ? ONCE_EINVAL : ONCE_OK;
        T_EQ(size_with(with, x, x), expected);
        T_EQ(size_with(x, with, x), expected);
        T_EQ(size_with(x, x, with), expected);
    }
}

static void refused_bytes_are_found_at_both_ends(void)
{
    static const char *const lines[] = {"\r", "\n", "a\r", "\na", "a\n", "\ra"};
    const once_bytes x = text("x");
    size_t i;

    for (i = 0; i < COUNT(lines); i++) {
        T_EQ(size_with(text(lines[i]), x, x), ONCE_EINVAL);
        T_EQ(size_with(x, text(lines[i]), x), ONCE_EINVAL);
        T_EQ(size_with(x, x, text(lines[i])), ONCE_EINVAL);
    }
    T_EQ(size_with(x, (once_bytes){"a\0", 2}, x), ONCE_EINVAL);
    T_EQ(size_with(x, x, (once_bytes){"\0a", 2}), ONCE_EINVAL);
}

static void error_texts_never_hold_a_value(void)
{
    once__header h = {text("X-Token"), text("s3cr3t\n"), 0};
    once__response r = {.status = 200, .headers = &h, .n = 1};
    once_error err = {0, ""};
    size_t size;

    T_EQ(once__response_size(&r, &size, &err), ONCE_EINVAL);
    T_EQ(err.code, ONCE_EINVAL);
    T_OK(strstr(err.text, "s3cr3t") == NULL);
    T_OK(strstr(err.text, "header value") != NULL);
}

/* ---- Input from a store ------------------------------------------------- */

static int is_clean(once_bytes b)
{
    const char *s = b.data;
    size_t i;

    for (i = 0; i < b.size; i++)
        if (s[i] == '\r' || s[i] == '\n' || s[i] == '\0')
            return 0;
    return 1;
}

/* What must hold for all that was taken; reads every byte of it. */
static int keeps_the_rules(const once__response *r, const uint8_t *bytes,
                           size_t size)
{
    static once__header room[ONCE__HEADERS_MAX];
    once__response copy = *r;
    uint8_t *again;
    size_t i, n;
    int ok;

    ok = r->status >= 100 && r->status <= 599 && is_clean(r->reason) &&
         (r->flags == 0 || (r->flags == ONCE__NO_BODY && r->body.size == 0)) &&
         reopen(&copy, room, COUNT(room));
    for (i = 0; ok && i < copy.n; i++)
        ok = room[i].name.size > 0 && is_clean(room[i].name) &&
             is_clean(room[i].value);
    if (!ok)
        return 0;
    again = encoded(&copy, &n);
    ok = n == size && memcmp(again, bytes, size) == 0;
    free(again);
    return ok;
}

/* Decodes exactly these bytes. What is refused says why and leaves `out`. */
static int decode_exactly(const uint8_t *data, size_t size)
{
    once__response r, before;
    once_error err = {0, ""};
    uint8_t *bytes = exact(data, size);
    int rc;

    memset(&r, 0x5a, sizeof(r));
    before = r;
    rc = once__response_decode((once_bytes){bytes, size}, &r, &err);
    if (rc == ONCE_OK) {
        T_OK(keeps_the_rules(&r, bytes, size));
    } else {
        T_OK(rc == ONCE_ECORRUPT || rc == ONCE_EVERSION);
        T_EQ(err.code, rc);
        T_OK(err.text[0] != '\0');
        T_MEM(&r, &before, sizeof(r));
    }
    free(bytes);
    return rc;
}

static void every_truncation_is_refused(void)
{
    once__response r = charge();
    size_t size, n;
    uint8_t *bytes = encoded(&r, &size);

    T_EQ(decode_exactly(bytes, size), ONCE_OK);
    for (n = 0; n < size; n++)
        T_EQ(decode_exactly(bytes, n), ONCE_ECORRUPT);
    T_EQ(once__response_decode((once_bytes){NULL, 0}, &r, NULL), ONCE_ECORRUPT);
    free(bytes);
}

static void bytes_behind_the_end_are_refused(void)
{
    once__response r = charge();
    size_t size, n;
    uint8_t *bytes = encoded(&r, &size);
    uint8_t *longer = calloc(1, size + 40);

    if (longer == NULL)
        abort();
    memcpy(longer, bytes, size);
    for (n = 1; n <= 40; n++)
        T_EQ(decode_exactly(longer, size + n), ONCE_ECORRUPT);
    free(longer);
    free(bytes);
}

static void every_single_byte_change_is_refused_or_keeps_the_rules(void)
{
    once__response r = charge();
    size_t size, i, taken = 0;
    uint8_t *bytes = encoded(&r, &size), was;
    int change, rc;

    for (i = 0; i < size; i++) {
        was = bytes[i];
        for (change = 1; change < 256; change++) {
            bytes[i] = (uint8_t)(was ^ change);
            rc = decode_exactly(bytes, size);
            taken += rc == ONCE_OK;
            T_EQ(rc == ONCE_EVERSION, i == 3);
            if (i < 3 || (i >= 6 && i < 20)) /* magic, flags, counts, sizes */
                T_EQ(rc, ONCE_ECORRUPT);
        }
        bytes[i] = was;
    }
    T_OK(taken > 1000); /* Else nothing behind the head was ever read. */
    free(bytes);
}

static void another_version_is_told_apart_from_damage(void)
{
    once__response r = charge();
    once_error err = {0, ""};
    size_t size;
    uint8_t *bytes = encoded(&r, &size);

    bytes[3] = 2;
    T_EQ(once__response_decode((once_bytes){bytes, size}, &r, &err),
         ONCE_EVERSION);
    T_OK(strstr(err.text, "version 2") != NULL);
    bytes[0] = '{';
    T_EQ(decode_exactly(bytes, size), ONCE_ECORRUPT);
    free(bytes);
}

static void a_result_of_another_kind_is_not_a_response(void)
{
    static const char *const results[] = {
        "", "0", "{\"ok\":true, \"id\": 12345678901234567890}",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"};
    size_t i;

    for (i = 0; i < COUNT(results); i++)
        T_EQ(decode_exactly((const uint8_t *)results[i], strlen(results[i])),
             ONCE_ECORRUPT);
}

static void split_lines_in_a_store_are_refused(void)
{
    static const uint8_t split[] = {'\r', '\n', '\0'};
    once__response r = charge();
    size_t size, i, k, lines;
    uint8_t *bytes, was;

    r.body = text("");
    bytes = encoded(&r, &size);
    lines = 0;
    for (i = 20; i < size; i++) {
        was = bytes[i];
        for (k = 0; k < COUNT(split); k++) {
            bytes[i] = split[k];
            /* A length or a tag may be changed into itself or another tag. */
            lines += decode_exactly(bytes, size) == ONCE_ECORRUPT;
        }
        bytes[i] = was;
    }
    /* Reason, names and values, three times each, and some lengths. */
    T_OK(lines >= 3 * (7 + 12 + 16 + 7 + 3 + 7 + 3 + 7 + 1 + 5));
    free(bytes);
}

static void put32(uint8_t *at, uint32_t value)
{
    int i;

    for (i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static void lengths_that_wrap_around_are_refused(void)
{
    static const uint32_t sizes[] = {0,          1,          0x7fffffff,
                                     0x80000000, 0xffffffff, 0xffffffec};
    once__response r = charge();
    size_t size, i, k;
    uint8_t *bytes = encoded(&r, &size);

    for (i = 0; i < COUNT(sizes); i++)
        for (k = 0; k < COUNT(sizes); k++) {
            put32(bytes + 12, sizes[i]);
            put32(bytes + 16, sizes[k]);
            T_EQ(decode_exactly(bytes, size), ONCE_ECORRUPT);
        }
    free(bytes);
}

/* A body moved into the block, and back: the sum still adds up. */
static void a_block_must_end_where_its_headers_end(void)
{
    once__response r = charge();
    size_t size, shift;
    uint8_t *bytes = encoded(&r, &size);
    uint32_t block = bytes[12] + 256u * bytes[13];
    uint32_t body = (uint32_t)r.body.size;

    for (shift = 1; shift <= body; shift++) {
        put32(bytes + 12, block + (uint32_t)shift);
        put32(bytes + 16, body - (uint32_t)shift);
        T_EQ(decode_exactly(bytes, size), ONCE_ECORRUPT);
        put32(bytes + 12, block - (uint32_t)shift);
        put32(bytes + 16, body + (uint32_t)shift);
        T_EQ(decode_exactly(bytes, size), ONCE_ECORRUPT);
    }
    free(bytes);
}

/* xorshift64*, so that a failure can be repeated. */
static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return *seed * UINT64_C(2685821657736338717);
}

static size_t below(uint64_t *seed, size_t n)
{
    return (size_t)((next(seed) >> 16) % n);
}

static once__response random_response(uint64_t *seed, once__header *room,
                                      const char *letters, size_t n_letters)
{
    once__response r = {.status = 100 + (int)below(seed, 500)};
    size_t i;

    r.reason = (once_bytes){letters, below(seed, n_letters)};
    r.n = below(seed, MAX + 1);
    for (i = 0; i < r.n; i++) {
        room[i].name = (once_bytes){letters, 1 + below(seed, n_letters - 1)};
        room[i].value = (once_bytes){letters, below(seed, n_letters)};
        room[i].tag = (uint8_t)below(seed, 256);
    }
    r.headers = room;
    r.flags = below(seed, 4) == 0 ? ONCE__NO_BODY : 0;
    if (r.flags == 0)
        r.body = (once_bytes){letters, below(seed, n_letters)};
    return r;
}

static void random_responses_come_back(void)
{
    static const char letters[] = "The quick brown fox jumps over a dog.";
    once__header room[MAX];
    uint64_t seed = 20240607;
    once__response r;
    size_t size;
    uint8_t *bytes;
    int i;

    for (i = 0; i < 20000; i++) {
        r = random_response(&seed, room, letters, sizeof(letters) - 1);
        bytes = encoded(&r, &size);
        T_EQ(decode_exactly(bytes, size), ONCE_OK);
        free(bytes);
    }
}

/* One to four changes to a good encoding: another byte, a small step up or
 * down (lengths!), a byte copied from elsewhere, or the end cut off. */
static size_t damage(uint64_t *seed, uint8_t *bytes, size_t size)
{
    size_t left = 1 + below(seed, 4), at;

    for (; left > 0 && size > 0; left--) {
        at = below(seed, size);
        switch (below(seed, 5)) {
        case 0:
            bytes[at] = (uint8_t)below(seed, 256);
            break;
        case 1:
            bytes[at]++;
            break;
        case 2:
            bytes[at]--;
            break;
        case 3:
            bytes[at] = bytes[below(seed, size)];
            break;
        default:
            size = below(seed, 8) == 0 ? at : size;
        }
    }
    return size;
}

static void damaged_responses_are_refused_or_keep_the_rules(void)
{
    static const char letters[] = "abcdefgh";
    once__header room[MAX];
    uint64_t seed = 7062024;
    once__response r;
    size_t size, taken = 0, refused = 0;
    uint8_t *bytes;
    int i, rc;

    for (i = 0; i < 100000; i++) {
        r = random_response(&seed, room, letters, sizeof(letters) - 1);
        bytes = encoded(&r, &size);
        size = damage(&seed, bytes, size);
        rc = decode_exactly(bytes, size);
        taken += rc == ONCE_OK;
        refused += rc != ONCE_OK;
        free(bytes);
    }
    T_OK(taken > 1000 && refused > 1000);
}

static void random_bytes_behind_a_good_magic_are_no_danger(void)
{
    uint64_t seed = 1234567;
    uint8_t bytes[200];
    size_t i, size, k;

    for (i = 0; i < 100000; i++) {
        size = below(&seed, sizeof(bytes) + 1);
        for (k = 0; k < size; k++)
            bytes[k] = (uint8_t)below(&seed, i % 2 == 0 ? 256 : 4);
        if (size >= 4)
            memcpy(bytes, "OHR\1", 4);
        (void)decode_exactly(bytes, size);
    }
    T_OK(i == 100000);
}

/* The pages are never touched, so this costs nothing. */
static void more_than_a_record_may_hold_is_refused(void)
{
    size_t size = ONCE_RESULT_MAX + 1;
    uint8_t *in = calloc(1, size);
    once__response r;

    T_OK(in != NULL);
    if (in == NULL)
        return;
    memcpy(in, "OHR\1", 4);
    T_EQ(once__response_decode((once_bytes){in, size}, &r, NULL),
         ONCE_ECORRUPT);
    free(in);
}

int main(void)
{
    T_RUN(more_than_a_record_may_hold_is_refused);
    T_RUN(what_comes_back_is_what_went_in);
    T_RUN(a_bare_204_is_twenty_bytes);
    T_RUN(the_encoding_is_what_stores_already_hold);
    T_RUN(a_mark_has_its_flag_and_no_body);
    T_RUN(a_bare_mark_is_that_of_a_status_alone);
    T_RUN(every_status_from_100_to_599_is_kept);
    T_RUN(lines_have_a_limit);
    T_RUN(the_longest_header_comes_back);
    T_RUN(headers_have_a_limit);
    T_RUN(the_whole_has_a_limit);
    T_RUN(every_byte_is_judged_in_every_line);
    T_RUN(refused_bytes_are_found_at_both_ends);
    T_RUN(error_texts_never_hold_a_value);
    T_RUN(every_truncation_is_refused);
    T_RUN(bytes_behind_the_end_are_refused);
    T_RUN(every_single_byte_change_is_refused_or_keeps_the_rules);
    T_RUN(another_version_is_told_apart_from_damage);
    T_RUN(a_result_of_another_kind_is_not_a_response);
    T_RUN(split_lines_in_a_store_are_refused);
    T_RUN(lengths_that_wrap_around_are_refused);
    T_RUN(a_block_must_end_where_its_headers_end);
    T_RUN(random_responses_come_back);
    T_RUN(damaged_responses_are_refused_or_keep_the_rules);
    T_RUN(random_bytes_behind_a_good_magic_are_no_danger);
    return t_done();
}
