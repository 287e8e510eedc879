/* SPDX-License-Identifier: Apache-2.0 */
/*
 * result.c - a result as the bytes that a record keeps, and back.
 *
 *    0 "OCR"             3 version            4 code (4)
 *    8 type size (2)    10 zero (2)          12 bytes size (4)
 *   16 type, bytes
 *
 * Numbers are little-endian, the code is in two's complement. One result has
 * one encoding: what is decoded and encoded again gives the same bytes.
 *
 * What cannot be written is an error when it is read, because bytes in a store
 * are input: sizes that do not match, a type that is not printable, a code that
 * contradicts the record's kind. If an operator has resolved the record (it has
 * a note then) there are two other forms: plain bytes, which are the result,
 * and a stored response, whose body is the result. The record around it has the
 * checksum.
 */
#include "calls/call/call.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "calls/http/http.h"

enum { VERSION = 1, HEAD = ONCE__RESULT_HEAD };

static const uint8_t magic[3] = {'O', 'C', 'R'};

static int printable(once_bytes text)
{
    const uint8_t *p = text.data;
    size_t i;

    for (i = 0; i < text.size; i++)
        if (p[i] < ' ' || p[i] > '~')
            return 0;
    return 1;
}

int once__result_size(const once__result *r, size_t *size, once_error *err)
{
    if (r->type.size > ONCE_TYPE_MAX)
        return once__fail(err, ONCE_ELIMIT, "type: over %zu characters",
                          ONCE_TYPE_MAX);
    if (!printable(r->type))
        return once__fail(err, ONCE_EINVAL, "type: not printable ASCII");
    if (r->bytes.size > ONCE_RESULT_MAX - HEAD - r->type.size)
        return once__fail(err, ONCE_ELIMIT, "result: %zu bytes are over %zu",
                          r->bytes.size, ONCE_RESULT_MAX - HEAD - r->type.size);
    *size = HEAD + r->type.size + r->bytes.size;
    return ONCE_OK;
}

void once__result_encode(const once__result *r, void *out)
{
    uint8_t *p = out;

    memcpy(p, magic, sizeof(magic));
    p[3] = VERSION;
    once__put(p + 4, (uint32_t)r->code, 4);
    once__put(p + 8, r->type.size, 2);
    once__put(p + 10, 0, 2);
    once__put(p + 12, r->bytes.size, 4);
    if (r->type.size > 0)
        memcpy(p + HEAD, r->type.data, r->type.size);
    if (r->bytes.size > 0)
        memcpy(p + HEAD + r->type.size, r->bytes.data, r->bytes.size);
}

static int corrupt(once_error *err, const char *what)
{
    return once__fail(err, ONCE_ECORRUPT, "result: %s", what);
}

/* Without relying on what a conversion out of range does. */
static int read_code(const uint8_t *in)
{
    uint32_t u = (uint32_t)once__get(in, 4);

    return u <= INT32_MAX ? (int)u : -(int)(UINT32_MAX - u) - 1;
}

static int is_ours(once_bytes in)
{
    return in.size >= sizeof(magic) &&
           memcmp(in.data, magic, sizeof(magic)) == 0;
}

int once__result_decode(once_bytes in, once__result *out, once_error *err)
{
    const uint8_t *p = in.data;
    once__result r;

    if (!is_ours(in))
        return corrupt(err, "it was not written by a call");
    if (in.size < HEAD)
        return corrupt(err, "it is cut off");
    if (p[3] != VERSION)
        return once__fail(err, ONCE_EVERSION, "result: version %u", p[3]);
    r.code = read_code(p + 4);
    r.type = (once_bytes){p + HEAD, once__get(p + 8, 2)};
    if (once__get(p + 10, 2) != 0 || r.type.size > ONCE_TYPE_MAX ||
        in.size - HEAD < r.type.size)
        return corrupt(err, "its head is malformed");
    r.bytes = (once_bytes){p + HEAD + r.type.size, once__get(p + 12, 4)};
    if (in.size - HEAD - r.type.size != r.bytes.size)
        return corrupt(err, "its size does not match");
    if (!printable(r.type))
        return corrupt(err, "its type is not printable");
    *out = r;
    return ONCE_OK;
}

/* ---- What an operator has resolved --------------------------------------- */

static once_bytes type_of(const once__response *response)
{
    static const once_bytes name = {"content-type", 12};
    once__header h;
    size_t at = 0;

    while (once__response_next(response, &at, &h))
        if (once__same_name(h.name, name) && h.value.size <= ONCE_TYPE_MAX &&
            printable(h.value))
            return h.value;
    return (once_bytes){"", 0};
}

static int read_resolved(const once_record *record, once__result *out)
{
    once__response response;

    out->code = record->kind == ONCE_SUCCESS ? 0 : 1;
    out->type = (once_bytes){"", 0};
    out->bytes = record->result;
    if (once__response_decode(record->result, &response, NULL) != ONCE_OK)
        return ONCE_OK;
    out->bytes = response.body;
    if (response.flags & ONCE__NO_BODY)
        return ONCE_REPEATED;
    out->type = type_of(&response);
    return ONCE_OK;
}

int once__result_read(const once_record *record, once__result *out,
                      once_error *err)
{
    int rc;

    if (record->note.size > 0 && !is_ours(record->result))
        return read_resolved(record, out);
    rc = once__result_decode(record->result, out, err);
    if (rc == ONCE_OK && (out->code == 0) != (record->kind == ONCE_SUCCESS))
        return corrupt(err, "its code contradicts the record");
    return rc;
}
