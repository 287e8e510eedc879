/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_client.c - what the retrying client reads that others have written: the
 * gateway's words, problems, Retry-After, dates, headers from its file; and
 * what it is given to send. */
#include "../fuzz/fuzz.h"

#include "client/client.h"

static void read_answer(struct feed *f)
{
    once_bytes type = feed_bytes(f, feed_byte(f) % 64);
    once_bytes body = feed_bytes(f, f->left);
    void *copy = exact(body.data, body.size);
    once_bytes tight = {copy, body.size};
    static const once_bytes problem = {"application/problem+json", 24};
    int code = once__client_code(problem, tight);

    MUST(code >= ONCE__CODE_NONE && code <= ONCE__CODE_ANSWER_LOST);
    MUST(same(type, problem) || type.size >= problem.size ||
         once__client_code(type, tight) == ONCE__CODE_NONE);
    free(copy);
}

static void read_times(struct feed *f)
{
    once_bytes value = feed_bytes(f, feed_byte(f) % 40), date;
    uint64_t ms = 0, at = 0, wall = feed_number(f, 6);
    void *one, *two;

    date = feed_bytes(f, 29);
    one = exact(value.data, value.size);
    two = exact(date.data, date.size);
    value.data = one;
    date.data = two;
    if (once__client_date(date, &at) == 0)
        MUST(date.size == 29 && at <= UINT64_C(253402300800000));
    /* Whatever it says, a deadline can be compared with it. */
    if (once__client_retry_after(value, date, wall, &ms) == 0)
        MUST(ms <= UINT64_C(253402300800000));
    free(one);
    free(two);
}

static void read_headers(struct feed *f)
{
    once_bytes in = feed_bytes(f, f->left), back = {NULL, 0};
    void *copy = exact(in.data, in.size);
    once_client_header *h = NULL;
    size_t n = 0;

    in.data = copy;
    if (once__headers_decode(in, &h, &n) == ONCE_OK) {
        MUST(once__headers_encode(h, n, NULL, &back) == ONCE_OK);
        MUST(same(in, back));
        free((void *)(uintptr_t)back.data);
        free(h);
    }
    free(copy);
}

/* Text up to a NUL or the end. */
static char *take_text(struct feed *f)
{
    once_bytes b = feed_bytes(f, feed_byte(f));
    char *text = malloc(b.size + 1);

    MUST(text != NULL);
    if (b.size > 0)
        memcpy(text, b.data, b.size);
    text[b.size] = '\0';
    return text;
}

static void check_request(struct feed *f)
{
    once_client_request r = ONCE_CLIENT_REQUEST_INIT;
    char *url = take_text(f), *name = take_text(f), *value = take_text(f);
    char host[ONCE__AUTHORITY_MAX];
    once_client_header h = {name, value, 0};

    r.order.data = "42";
    r.order.size = 2;
    r.method = "POST";
    r.url = url;
    r.headers = &h;
    r.n_headers = 1;
    if (once__request_check(&r, NULL) == ONCE_OK) {
        /* Nothing that is sent can end a line, or hide a password. */
        MUST(strpbrk(url, "\r\n\\# ") == NULL);
        MUST(strpbrk(name, "\r\n: ") == NULL && name[0] != '\0');
        MUST(strpbrk(value, "\r\n") == NULL);
        once__client_authority(url, host);
        MUST(strchr(host, '@') == NULL && strlen(host) > 7);
    }
    free(url);
    free(name);
    free(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {data, size};

    switch (feed_byte(&f) % 4) {
    case 0:
        read_answer(&f);
        break;
    case 1:
        read_times(&f);
        break;
    case 2:
        read_headers(&f);
        break;
    default:
        check_request(&f);
        break;
    }
    return 0;
}
