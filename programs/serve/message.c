/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.c - the head of a message: one line of JSON, before the raw body.
 *
 * A character is a byte: header bytes need not be UTF-8, and JSON must be. So
 * each of U+0001 to U+00FF stands for one byte, and others are refused. So are CR
 * and LF, with which a line could be made two.
 */
#include "programs/serve/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

/* Members of all heads. Others are left alone: later versions may have more. */
enum type { TEXT, FLAG, NUMBER, LIST };

/* clang-format off */
static const struct {
    const char *name;
    enum type type;
    int may_be_empty;
} members[] = {
    {"id",     TEXT,   0}, {"method",   TEXT,   0}, {"target",      TEXT,   0},
    {"scope",  TEXT,   1}, {"headers",  LIST,   1}, {"fingerprint", TEXT,   1},
    {"key",    TEXT,   1}, {"label",    TEXT,   1}, {"again",       FLAG,   0},
    {"token",  TEXT,   0}, {"status",   NUMBER, 0}, {"outcome",     TEXT,   0},
    {"stream", FLAG,   0}, {"group",    TEXT,   0}, {"kind",        TEXT,   0},
    {"code",   NUMBER, 0}, {"type",     TEXT,   1}, {"lease_ms",    NUMBER, 0},
    {"run_ms", NUMBER, 0}, {"wait_ms",  NUMBER, 0}, {"keep_ms",     NUMBER, 0},
};
/* clang-format on */

static int has_type(const json_t *v, enum type type)
{
    return type == TEXT     ? json_is_string(v)
           : type == FLAG   ? json_is_boolean(v)
           : type == NUMBER ? json_is_integer(v)
                            : json_is_array(v);
}

/* A member that is null is not there. */
static void check_members(struct serve_call *k)
{
    static const char *const types[] = {
        [TEXT] = "text",
        [FLAG] = "true or false",
        [NUMBER] = "whole number",
        [LIST] = "list",
    };
    const json_t *v;
    size_t i;

    for (i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        v = json_object_get(k->json, members[i].name);
        if (json_is_null(v))
            (void)json_object_del(k->json, members[i].name);
        else if (v != NULL && !has_type(v, members[i].type))
            serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                         "\"%s\" is no %s.", members[i].name,
                         types[members[i].type]);
        else if (v != NULL && !members[i].may_be_empty && json_is_string(v) &&
                 json_string_length(v) == 0)
            serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                         "\"%s\" is empty: send what it is, or leave it out.",
                         members[i].name);
    }
}

void serve_head_read(struct serve_call *k)
{
    json_error_t err;

    k->json = json_loadb(k->head, k->n_head, JSON_REJECT_DUPLICATES, &err);
    k->text = malloc(k->n_head + 1);
    if (!json_is_object(k->json) || k->text == NULL)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "The head is not one JSON object, without a name twice.");
    else
        check_members(k);
}

const char *serve_head_text(struct serve_call *k, const char *name)
{
    const json_t *v = json_object_get(k->json, name);

    return json_string_value(v); /* its type was checked */
}

/* Each text is shorter than it is in the head, with its quotes, so that all of
 * them fit into k->text. */
static const char *bytes_of(struct serve_call *k, const json_t *v,
                            const char *name)
{
    const unsigned char *in = (const unsigned char *)json_string_value(v);
    char *out = k->text + k->used, *at = out;
    unsigned c;

    if (in == NULL)
        goto wrong;
    while ((c = *in++) != 0) {
        if (c >= 0xc4 || c == '\r' || c == '\n')
            goto wrong;
        if (c >= 0x80) /* 110000xx 10xxxxxx: U+0080 to U+00FF */
            c = (c & 3) << 6 | (*in++ & 0x3f);
        *at++ = (char)c;
    }
    *at++ = '\0';
    k->used += (size_t)(at - out);
    return out;
wrong:
    serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                 "\"%s\": a text of characters up to U+00FF, without line "
                 "ends.",
                 name);
    return NULL;
}

const char *serve_head_bytes(struct serve_call *k, const char *name)
{
    const json_t *v = json_object_get(k->json, name);

    return v != NULL ? bytes_of(k, v, name) : NULL;
}

void serve_head_lines(struct serve_call *k)
{
    const json_t *all = json_object_get(k->json, "headers"), *one;
    size_t i, n = json_array_size(all);
    once_http_header *h;

    if (n > SERVE_LINES_MAX) {
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"headers\": up to %d pairs of texts.", SERVE_LINES_MAX);
        return;
    }
    k->lines = calloc(n + 1, sizeof(*k->lines));
    if (k->lines == NULL) {
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
        return;
    }
    for (i = 0; i < n && k->refused == 0; i++) {
        one = json_array_get(all, i);
        h = &k->lines[k->n_lines++];
        h->name = bytes_of(k, json_array_get(one, 0), "headers");
        h->value = bytes_of(k, json_array_get(one, 1), "headers");
        if (json_array_size(one) != 2)
            serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                         "\"headers\": up to %d pairs of texts.",
                         SERVE_LINES_MAX);
        if (k->refused == 0 && h->name[0] == '\0')
            serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                         "\"headers\": pair %zu has no name.", i + 1);
    }
}

int serve_head_id(struct serve_call *k)
{
    const char *text = serve_head_text(k, "id");
    size_t i;
    int high = -1, low = -1;

    for (i = 0; text != NULL && i < sizeof(k->id); i++) {
        high = once__hex_digit(text[2 * i]);
        low = high < 0 ? -1 : once__hex_digit(text[2 * i + 1]);
        if (low < 0)
            break;
        k->id[i] = (uint8_t)(high << 4 | low);
    }
    if (text != NULL && low >= 0 && text[2 * sizeof(k->id)] == '\0')
        return 1;
    serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                 "\"id\": 32 hexadecimal digits, drawn for each attempt.");
    return 0;
}
