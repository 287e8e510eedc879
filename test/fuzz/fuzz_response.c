/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_response.c - stored headers to response and back: what is read and
 * written again is the same bytes, what is written is read as it was, and
 * nothing that could start a second response gets through in either
 * direction. */
#include "fuzz.h"

#include "calls/http/http.h"

enum { HEADERS = 12 };

static void is_one_line(once_bytes b)
{
    const uint8_t *p = b.data;
    size_t i;

    for (i = 0; i < b.size; i++)
        MUST(p[i] != '\r' && p[i] != '\n' && p[i] != '\0');
}

/* Reads the headers of a decoded response into `*out`; returns their number. */
static size_t headers_of(const once__response *r, once__header **out)
{
    static const once__header_policy policy;
    once__header *all = calloc(r->n + 1, sizeof(*all));
    size_t n = 0, at = 0;

    MUST(all != NULL);
    while (once__response_next(r, &at, &all[n])) {
        MUST(n < r->n && all[n].name.size > 0);
        is_one_line(all[n].name);
        is_one_line(all[n].value);
        if (once__header_internal(all[n].name))
            (void)once__header_stored(all[n].name, &policy);
        n++;
    }
    MUST(n == r->n && at == r->block.size);
    *out = all;
    return n;
}

static void write_again(const once__response *r, once_bytes in)
{
    once__response again = *r;
    once__header *headers;
    uint8_t *out;
    size_t size = 0;

    again.n = headers_of(r, &headers);
    again.headers = headers;
    MUST(once__response_size(&again, &size, NULL) == ONCE_OK);
    MUST(size == in.size);
    out = malloc(size);
    MUST(out != NULL);
    once__response_encode(&again, out);
    MUST(memcmp(out, in.data, size) == 0);
    free(out);
    free(headers);
}

static void read_bytes(once_bytes in)
{
    once_error err = {0, ""};
    once__response r;
    int rc = once__response_decode(in, &r, &err);

    MUST(rc == ONCE_OK || rc == ONCE_ECORRUPT || rc == ONCE_EVERSION);
    if (rc != ONCE_OK) {
        MUST(err.code == rc && err.text[0] != '\0');
        return;
    }
    MUST(r.status >= 100 && r.status <= 599);
    MUST((r.flags & ONCE__NO_BODY) == 0 || r.body.size == 0);
    is_one_line(r.reason);
    write_again(&r, in);
}

static void read_as_it_was(const once__response *r, once_bytes in)
{
    once__response back;
    once__header *headers;
    size_t n, i;

    MUST(once__response_decode(in, &back, NULL) == ONCE_OK);
    MUST(back.status == r->status && back.flags == r->flags);
    MUST(same(back.reason, r->reason) && same(back.body, r->body));
    n = headers_of(&back, &headers);
    MUST(n == r->n);
    for (i = 0; i < n; i++)
        MUST(same(headers[i].name, r->headers[i].name) &&
             same(headers[i].value, r->headers[i].value) &&
             headers[i].tag == r->headers[i].tag);
    free(headers);
}

static void write_response(struct feed *f)
{
    once__header headers[HEADERS];
    once__response r = {.headers = headers};
    once_error err = {0, ""};
    uint8_t *out;
    size_t size = 0;
    int rc;

    r.status = (int)feed_number(f, 2);
    r.flags = feed_byte(f) % 3;
    r.reason = feed_bytes(f, feed_byte(f) % 32);
    for (r.n = 0; r.n < HEADERS && feed_byte(f) % 8 != 0; r.n++) {
        headers[r.n].tag = feed_byte(f);
        headers[r.n].name = feed_bytes(f, feed_byte(f) % 32);
        headers[r.n].value = feed_bytes(f, feed_byte(f));
    }
    r.body = feed_bytes(f, f->left);
    rc = once__response_size(&r, &size, &err);
    MUST(rc == ONCE_OK || rc == ONCE_EINVAL || rc == ONCE_ELIMIT);
    if (rc != ONCE_OK)
        return;
    out = malloc(size);
    MUST(out != NULL);
    once__response_encode(&r, out);
    read_as_it_was(&r, (once_bytes){out, size});
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {data, size};
    uint8_t *in;

    if (feed_byte(&f) % 2 == 0) {
        write_response(&f);
        return 0;
    }
    in = exact(f.at, f.left);
    read_bytes((once_bytes){in, f.left});
    free(in);
    return 0;
}
