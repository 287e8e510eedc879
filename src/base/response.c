/* SPDX-License-Identifier: Apache-2.0 */
/*
 * response.c - a response as the bytes that a record keeps (docs/http.md, 5).
 *
 *    0 "OHR"              3 version              4 status (2)
 *    6 flags (2)          8 headers (2)         10 reason size (2)
 *   12 block size (4)    16 body size (4)       20 reason, block, body
 *
 *    block: for each header  0 name size (2)  2 value size (2)  4 tag
 *                            5 name, value
 *
 * Numbers are little-endian. One response has one encoding: what is decoded
 * and encoded again gives the same bytes.
 *
 * It refuses on reading whatever it refuses on writing, because bytes in a
 * store are input: a length that does not add up, a header count that does not
 * fit the block, and CR, LF and NUL, with which a stored response could put a
 * second one on the client's connection. The record around it has the checksum.
 */
#include "base/response.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"

enum {
    VERSION = 1,
    HEAD = 20,       /* bytes in front of the reason       */
    HEADER_HEAD = 5, /* bytes in front of a header's name  */
    STATUS_MIN = 100,
    STATUS_MAX = 599,
    FLAGS = ONCE__NO_BODY
};

static const char magic[3] = {'O', 'H', 'R'};

static void add(uint8_t **at, once_bytes bytes)
{
    if (bytes.size > 0)
        memcpy(*at, bytes.data, bytes.size);
    *at += bytes.size;
}

/* No CR, LF or NUL. */
static int is_one_line(once_bytes b)
{
    return b.size == 0 || (memchr(b.data, '\r', b.size) == NULL &&
                           memchr(b.data, '\n', b.size) == NULL &&
                           memchr(b.data, '\0', b.size) == NULL);
}

/* ---- What holds for both directions ------------------------------------ */

static int check_line(const char *what, once_bytes line, once_error *err)
{
    if (line.size > ONCE__HEADER_MAX)
        return once__fail(err, ONCE_ELIMIT, "response: %s over %zu bytes", what,
                          ONCE__HEADER_MAX);
    if (!is_one_line(line))
        return once__fail(err, ONCE_EINVAL, "response: CR, LF or NUL in a %s",
                          what);
    return ONCE_OK;
}

static int check_header(const once__header *h, once_error *err)
{
    int rc = check_line("header name", h->name, err);

    if (rc == ONCE_OK && h->name.size == 0)
        rc = once__fail(err, ONCE_EINVAL, "response: an empty header name");
    if (rc == ONCE_OK)
        rc = check_line("header value", h->value, err);
    return rc;
}

/* All but the headers. */
static int check_head(const once__response *r, once_error *err)
{
    if (r->status < STATUS_MIN || r->status > STATUS_MAX)
        return once__fail(err, ONCE_EINVAL, "response: status not in %d to %d",
                          STATUS_MIN, STATUS_MAX);
    if ((r->flags & ~(uint32_t)FLAGS) != 0)
        return once__fail(err, ONCE_EINVAL, "response: an unknown flag");
    if ((r->flags & ONCE__NO_BODY) != 0 && r->body.size > 0)
        return once__fail(err, ONCE_EINVAL,
                          "response: a body, and marked as without one");
    if (r->n > ONCE__HEADERS_MAX)
        return once__fail(err, ONCE_ELIMIT, "response: over %d headers",
                          ONCE__HEADERS_MAX);
    if (r->body.size > ONCE_RESULT_MAX)
        return once__fail(err, ONCE_ELIMIT, "response: body over %zu bytes",
                          ONCE_RESULT_MAX);
    return check_line("reason", r->reason, err);
}

/* ---- Writing ----------------------------------------------------------- */

static size_t block_size(const once__response *r)
{
    size_t i, size = 0;

    for (i = 0; i < r->n; i++)
        size +=
            HEADER_HEAD + r->headers[i].name.size + r->headers[i].value.size;
    return size;
}

int once__response_size(const once__response *r, size_t *size, once_error *err)
{
    size_t i, total;
    int rc;

    assert(r->n == 0 || r->headers != NULL);
    rc = check_head(r, err);
    for (i = 0; rc == ONCE_OK && i < r->n; i++)
        rc = check_header(&r->headers[i], err);
    if (rc < 0)
        goto out;
    /* Each part is within its limit by now: the sum cannot wrap around. */
    total = HEAD + r->reason.size + block_size(r) + r->body.size;
    if (total > ONCE_RESULT_MAX) {
        rc = once__fail(err, ONCE_ELIMIT, "response: over %zu bytes",
                        ONCE_RESULT_MAX);
        goto out;
    }
    *size = total;
out:
    return rc;
}

void once__response_encode(const once__response *r, void *out)
{
    uint8_t *head = out, *at = head + HEAD;
    size_t i;

    memcpy(head, magic, sizeof(magic));
    head[3] = VERSION;
    once__put(head + 4, (size_t)r->status, 2);
    once__put(head + 6, r->flags, 2);
    once__put(head + 8, r->n, 2);
    once__put(head + 10, r->reason.size, 2);
    once__put(head + 12, block_size(r), 4);
    once__put(head + 16, r->body.size, 4);
    add(&at, r->reason);
    for (i = 0; i < r->n; i++) {
        once__put(at, r->headers[i].name.size, 2);
        once__put(at + 2, r->headers[i].value.size, 2);
        at[4] = r->headers[i].tag;
        at += HEADER_HEAD;
        add(&at, r->headers[i].name);
        add(&at, r->headers[i].value);
    }
    add(&at, r->body);
}

size_t once__response_bare(int status, uint8_t out[ONCE__RESPONSE_BARE])
{
    once__response r = {.status = status, .flags = ONCE__NO_BODY};
    size_t size;

    if (once__response_size(&r, &size, NULL) != ONCE_OK)
        return 0;
    assert(size == ONCE__RESPONSE_BARE);
    once__response_encode(&r, out);
    return size;
}

/* ---- Reading ----------------------------------------------------------- */

static once_bytes cut(once_bytes *from, size_t size)
{
    once_bytes part = {from->data, size};

    assert(size <= from->size);
    from->data = (const uint8_t *)from->data + size;
    from->size -= size;
    return part;
}

/* Takes one header off `*block`: 1, or 0 if it is cut short. */
static int cut_header(once_bytes *block, once__header *out)
{
    const uint8_t *head = block->data;
    size_t name, value;

    if (block->size < HEADER_HEAD)
        return 0;
    name = once__get(head, 2);
    value = once__get(head + 2, 2);
    if (block->size - HEADER_HEAD < name + value)
        return 0;
    (void)cut(block, HEADER_HEAD);
    out->name = cut(block, name);
    out->value = cut(block, value);
    out->tag = head[4];
    return 1;
}

/* 1 if `block` is exactly `n` good headers. */
static int is_block(once_bytes block, size_t n)
{
    once__header h;
    size_t i;

    for (i = 0; i < n; i++)
        if (!cut_header(&block, &h) || check_header(&h, NULL) != ONCE_OK)
            return 0;
    return block.size == 0;
}

/* Fills `*r`; 0 if the lengths in the head are not those of `in`. */
static int read_parts(once_bytes in, once__response *r)
{
    const uint8_t *head = in.data;
    size_t reason = once__get(head + 10, 2);
    size_t block = once__get(head + 12, 4);
    size_t body = once__get(head + 16, 4);

    (void)cut(&in, HEAD);
    if ((uint64_t)reason + block + body != in.size) /* 35 bits at most */
        return 0;
    r->status = (int)once__get(head + 4, 2);
    r->flags = (uint32_t)once__get(head + 6, 2);
    r->n = once__get(head + 8, 2);
    r->reason = cut(&in, reason);
    r->block = cut(&in, block);
    r->body = in;
    return 1;
}

int once__response_decode(once_bytes in, once__response *out, once_error *err)
{
    const uint8_t *head = in.data;
    once__response r = {.status = 0};
    const char *what = "head";

    if (in.size < HEAD || in.size > ONCE_RESULT_MAX ||
        memcmp(head, magic, sizeof(magic)) != 0)
        goto bad;
    if (head[3] != VERSION)
        return once__fail(err, ONCE_EVERSION, "stored response: version %d",
                          head[3]);
    what = "lengths";
    if (!read_parts(in, &r))
        goto bad;
    what = "status, flags or reason";
    if (check_head(&r, NULL) != ONCE_OK)
        goto bad;
    what = "headers";
    if (!is_block(r.block, r.n))
        goto bad;
    *out = r;
    return ONCE_OK;
bad:
    return once__fail(err, ONCE_ECORRUPT, "stored response: bad %s", what);
}

int once__response_next(const once__response *r, size_t *at, once__header *out)
{
    once_bytes rest = r->block;
    int ok;

    if (*at == rest.size)
        return 0;
    (void)cut(&rest, *at);
    ok = cut_header(&rest, out);
    assert(ok); /* `r` has been decoded, and `*at` is ours. */
    *at = r->block.size - rest.size;
    return ok;
}
