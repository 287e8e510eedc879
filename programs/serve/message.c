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

void serve_head_read(struct serve_call *k)
{
    json_error_t err;

    k->json = json_loadb(k->head, k->n_head, JSON_REJECT_DUPLICATES, &err);
    k->text = malloc(k->n_head + 1);
    if (!json_is_object(k->json) || k->text == NULL)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "The head is not one JSON object, without a name twice.");
}

const char *serve_head_text(struct serve_call *k, const char *name)
{
    const json_t *v = json_object_get(k->json, name);

    if (v != NULL && !json_is_null(v) && !json_is_string(v))
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"%s\" is no text.", name);
    return json_string_value(v);
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

    if (all != NULL && (!json_is_array(all) || n > SERVE_LINES_MAX)) {
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
