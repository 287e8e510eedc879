/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.c - records and results as JSON, and what a request's JSON says.
 *
 * Of a stored response it shows the status and the names of the headers. It
 * refuses what it does not know the type of, rather than to guess.
 */
#include "programs/console/console.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

/* ---- Out ----------------------------------------------------------------- */

static int set(json_t *o, const char *name, json_t *value)
{
    return json_object_set_new(o, name, value) == 0;
}

json_t *console_json_record(const struct console_store *s,
                            const uint8_t name[ONCE_NAME_SIZE],
                            const once_record *r)
{
    json_t *o = cli_json_record(name, r);

    if (o == NULL || !set(o, "store", json_string(s->name)))
        goto bad;
    if (r->state > ONCE_INDETERMINATE) /* corrupt: nothing else is known */
        return o;
    if (set(o, "note", r->note.size > 0 ? cli_json_text(r->note) : json_null()))
        return o;
bad:
    json_decref(o);
    return NULL;
}

static json_t *header_names(const once__response *r)
{
    json_t *names = json_array();
    once__header h;
    size_t at = 0;

    while (once__response_next(r, &at, &h))
        json_array_append_new(names, cli_json_text(h.name));
    return names;
}

static json_t *told(int status, const char *code, const char *text)
{
    return json_pack("{s:s, s:i, s:s, s:s}", "is", "problem", "status", status,
                     "code", code, "text", text);
}

json_t *console_json_told(const once_record *r)
{
    once__view v;

    switch (r->state) {
    case ONCE_CLAIMED:
    case ONCE_DISPATCHED:
        return told(409, "in-flight", "The first request is still under way.");
    case ONCE_INDETERMINATE:
        return told(409, "outcome-unknown",
                    "It is unknown whether it took effect.");
    case ONCE_COMPLETED:
        break;
    case ONCE_ABSENT:
        return json_pack("{s:s, s:s}", "is", "executes", "text",
                         "The next request with this key executes.");
    default:
        return told(503, "store-unavailable", "Its record is corrupt.");
    }
    once__view_of(r, &v);
    if (!v.kept)
        return told(409, "response-unavailable",
                    "It has been carried out; its response was not kept.");
    if (v.is == ONCE__VIEW_HTTP)
        return json_pack("{s:s, s:i, s:o, s:I}", "is", "response", "status",
                         v.response.status, "headers",
                         header_names(&v.response), "body_bytes",
                         (json_int_t)v.body.size);
    if (v.is == ONCE__VIEW_CALL)
        return json_pack("{s:s, s:i, s:o, s:I}", "is", "call", "code",
                         v.call.code, "type", cli_json_text(v.call.type),
                         "body_bytes", (json_int_t)v.body.size);
    return json_pack("{s:s, s:I}", "is", "bytes", "body_bytes",
                     (json_int_t)v.body.size);
}

/* Text that a page can show as it is. */
static int is_text(const json_t *text)
{
    const char *p = json_string_value(text);
    size_t n = json_string_length(text), i;

    for (i = 0; i < n; i++)
        if (((unsigned char)p[i] < 0x20 && p[i] != '\n' && p[i] != '\t' &&
             p[i] != '\r') ||
            p[i] == 0x7f)
            return 0;
    return 1;
}

static json_t *base64(once_bytes b)
{
    char *text = malloc(4 * ((b.size + 2) / 3) + 1);
    json_t *value = NULL;

    if (text != NULL) {
        (void)EVP_EncodeBlock((unsigned char *)text, b.data, (int)b.size);
        value = json_string(text);
    }
    free(text);
    return value;
}

json_t *console_json_bytes(once_bytes b)
{
    json_t *o = json_pack("{s:I}", "bytes", (json_int_t)b.size), *text;

    if (b.size > CONSOLE_SHOWN_MAX)
        b.size = CONSOLE_SHOWN_MAX;
    text = b.size > 0 ? json_stringn(b.data, b.size) : json_string("");
    if (text != NULL && is_text(text)) {
        (void)set(o, "text", text);
    } else {
        json_decref(text);
        (void)set(o, "base64", base64(b));
    }
    (void)set(o, "shown", json_integer((json_int_t)b.size));
    return o;
}

static json_t *headers_of(const once__response *r)
{
    json_t *list = json_array();
    once__header h;
    size_t at = 0;

    while (once__response_next(r, &at, &h))
        json_array_append_new(list, json_pack("{s:o, s:o}", "name",
                                              cli_json_text(h.name), "value",
                                              cli_json_text(h.value)));
    return list;
}

json_t *console_json_reply(once_bytes result, int kind)
{
    once_record r = {.state = ONCE_COMPLETED, .result = result};
    once__view v;

    once__view_of(&r, &v);
    if (v.is == ONCE__VIEW_HTTP && v.kept)
        return json_pack("{s:s, s:s, s:i, s:o, s:o}", "is", "response", "kind",
                         cli_kind(kind), "status", v.response.status, "headers",
                         headers_of(&v.response), "body",
                         console_json_bytes(v.body));
    if (v.is == ONCE__VIEW_HTTP)
        return told(409, "response-unavailable",
                    "It has been carried out; its response was not kept.");
    return json_pack("{s:s, s:s, s:o}", "is", "bytes", "kind", cli_kind(kind),
                     "body", console_json_bytes(v.body));
}

/* ---- In ------------------------------------------------------------------ */

int console_decode(const char *text, once_bytes *out)
{
    size_t n = strlen(text), pad = 0;
    unsigned char *data;

    if (n % 4 != 0)
        return ONCE_EINVAL;
    while (pad < n && pad < 2 && text[n - 1 - pad] == '=')
        pad++;
    data = malloc(n / 4 * 3 + 1);
    if (data == NULL)
        return ONCE_ENOMEM;
    if (n > 0 &&
        (strcspn(text, " \t\r\n") != n ||
         EVP_DecodeBlock(data, (const unsigned char *)text, (int)n) < 0)) {
        free(data);
        return ONCE_EINVAL;
    }
    *out = (once_bytes){data, n / 4 * 3 - pad};
    return ONCE_OK;
}

const char *console_text(const json_t *o, const char *name, int *bad)
{
    const json_t *value = json_object_get(o, name);

    if (value == NULL || json_is_null(value))
        return NULL;
    if (!json_is_string(value) ||
        strlen(json_string_value(value)) != json_string_length(value)) {
        *bad = 1;
        return NULL;
    }
    return json_string_value(value);
}

json_int_t console_number(const json_t *o, const char *name, json_int_t least,
                          json_int_t most, json_int_t none, int *bad)
{
    const json_t *value = json_object_get(o, name);

    if (value == NULL || json_is_null(value))
        return none;
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > most) {
        *bad = 1;
        return none;
    }
    return json_integer_value(value);
}

int console_flag(const json_t *o, const char *name, int *bad)
{
    const json_t *value = json_object_get(o, name);

    if (value != NULL && !json_is_boolean(value))
        *bad = 1;
    return json_is_true(value);
}

uint64_t console_fence(const json_t *o, int *bad)
{
    const char *text = console_text(o, "fence", bad);
    unsigned long long fence = 0;
    char *end = NULL;

    if (text == NULL)
        return 0;
    if (strlen(text) > 20 || strspn(text, "0123456789") != strlen(text))
        *bad = 1;
    else
        fence = strtoull(text, &end, 10);
    return fence;
}

int console_is_small(const char *text, size_t size)
{
    size_t values = 0, depth = 0, i;
    int inside = 0;

    for (i = 0; i < size; i++) {
        if (inside) {
            i += text[i] == '\\';
            inside = i >= size || text[i] != '"';
        } else if (text[i] == '{' || text[i] == '[') {
            values++;
            if (++depth > CONSOLE_DEPTH_MAX)
                return 0;
        } else if (text[i] == '}' || text[i] == ']') {
            depth -= depth > 0;
        } else {
            inside = text[i] == '"';
            values += text[i] == ',' || text[i] == ':';
        }
        if (values > CONSOLE_VALUES_MAX)
            return 0;
    }
    return 1;
}
