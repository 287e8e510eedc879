/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.c - the result that repeats will get, as an operator gives it, and as
 * it is read from a record.
 *
 * It refuses what the gateway could not have stored itself, since it would not
 * replay it either.
 */
#include "operate/answer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { STATUS_MIN = 200, STATUS_MAX = 599 };

/* RFC 9110, 5.6.2: what a header's name is made of. */
static int is_token(once_bytes name)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    const char *p = name.data;
    size_t i;

    for (i = 0; i < name.size; i++)
        if (!(p[i] >= '0' && p[i] <= '9') && !(p[i] >= 'a' && p[i] <= 'z') &&
            !(p[i] >= 'A' && p[i] <= 'Z') &&
            (p[i] == '\0' || strchr(marks, p[i]) == NULL))
            return 0;
    return name.size > 0;
}

static int has_control(once_bytes text)
{
    const uint8_t *p = text.data;
    size_t i;

    for (i = 0; i < text.size; i++)
        if ((p[i] < 0x20 && p[i] != '\t') || p[i] == 0x7f)
            return 1;
    return 0;
}

int once__answer_header(const once__header *h, once_error *err)
{
    static const once__header_policy policy = {0};
    static const once_bytes length = {"Content-Length", 14};

    if (!is_token(h->name) || has_control(h->value))
        return once__fail(err, ONCE_EINVAL, "not 'Name: value', of one line");
    if (h->name.size > ONCE__HEADER_MAX || h->value.size > ONCE__HEADER_MAX)
        return once__fail(err, ONCE_ELIMIT,
                          "a name or value has up to %zu bytes",
                          ONCE__HEADER_MAX);
    if (once__same_name(h->name, length))
        return once__fail(err, ONCE_EINVAL,
                          "Content-Length is counted, not given");
    if (once__header_internal(h->name) ||
        !once__header_stored(h->name, &policy))
        return once__fail(err, ONCE_EINVAL,
                          "%.*s is never replayed, so it cannot be given",
                          h->name.size > 64 ? 64 : (int)h->name.size,
                          (const char *)h->name.data);
    return ONCE_OK;
}

static int encode(const once__response *r, once_bytes *out, once_error *err)
{
    size_t size = 0;
    void *data;
    int rc = once__response_size(r, &size, err);

    if (rc < 0)
        return rc;
    data = malloc(size);
    if (data == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    once__response_encode(r, data);
    *out = (once_bytes){data, size};
    return ONCE_OK;
}

int once__answer_encode(const once__response *r, once_bytes *out,
                        once_error *err)
{
    if (r->status < STATUS_MIN || r->status > STATUS_MAX)
        return once__fail(err, ONCE_EINVAL, "a status is from %d to %d",
                          STATUS_MIN, STATUS_MAX);
    /* RFC 9110, 15.3.5 and 15.4.5: these end with their headers. */
    if ((r->status == 204 || r->status == 304) && r->body.size > 0)
        return once__fail(err, ONCE_EINVAL, "a %d has no body", r->status);
    return encode(r, out, err);
}

/* A response, which both a caller of a function and a client of the gateway can be
 * given: a decision cannot be taken back if it was about a record of the other
 * kind. A caller takes a body of this type for JSON (result.c). */
int once__answer_value(once_bytes json, int kind, once_bytes *out,
                       once_error *err)
{
    enum { OK = 200, UNPROCESSABLE = 422 };
    once__header type = {{"Content-Type", 12}, {"application/json", 16}, 0};
    const once__response response = {
        .status = kind == ONCE_SUCCESS ? OK : UNPROCESSABLE,
        .headers = &type,
        .n = 1,
        .body = json};
    json_error_t wrong;
    json_t *value = json_loadb(
        json.size > 0 ? json.data : "", json.size,
        JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &wrong);

    if (value == NULL)
        return once__fail(err, ONCE_EINVAL,
                          "not JSON (line %d, column %d): a text stands in "
                          "quotes, nothing is null",
                          wrong.line, wrong.column);
    json_decref(value);
    return encode(&response, out, err);
}

int once__answer_lost(once_bytes *out, once_error *err)
{
    static const once__response lost = {.status = 200, .flags = ONCE__NO_BODY};

    return encode(&lost, out, err);
}

/* The gateway stores an encoded response, a call its code and bytes; the bytes
 * of other programs do not pass for either. */
void once__view_of(const once_record *r, once__view *out)
{
    memset(out, 0, sizeof(*out));
    if (r->state != ONCE_COMPLETED)
        return;
    out->kept = 1;
    if (once__response_decode(r->result, &out->response, NULL) == ONCE_OK) {
        out->is = ONCE__VIEW_HTTP;
        out->body = out->response.body;
        out->kept = (out->response.flags & ONCE__NO_BODY) == 0;
    } else if (once__result_decode(r->result, &out->call, NULL) == ONCE_OK) {
        out->is = ONCE__VIEW_CALL;
        out->body = out->call.bytes;
    } else {
        out->is = ONCE__VIEW_RAW;
        out->body = r->result;
    }
}
