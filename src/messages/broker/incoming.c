/* SPDX-License-Identifier: Apache-2.0 */
/*
 * incoming.c - a delivery while it is put together.
 */
#include "messages/broker/incoming.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/grow.h"
#include "messages/tables/backend.h"

struct once__incoming *once__incoming_new(void)
{
    struct once__incoming *in = calloc(1, sizeof(*in));
    once_message m = ONCE_MESSAGE_INIT;

    if (in != NULL)
        in->d.m = m;
    return in;
}

void once__incoming_free(struct once__incoming *in)
{
    if (in == NULL)
        return;
    free(in->native);
    free(in->headers);
    free(in->body);
    free(in);
}

void once__incoming_flaw(struct once__incoming *in, const char *why)
{
    if (in->d.flaw == NULL)
        in->d.flaw = why;
}

/* An id or a key, copied; or 0. */
static int take_name(char out[ONCE_ID_SIZE], const void *text, size_t size)
{
    if (size == 0 || size > ONCE_ID_MAX || memchr(text, '\0', size) != NULL)
        return 0;
    memcpy(out, text, size);
    out[size] = '\0';
    if (once__check_name("", out, NULL) == ONCE_OK)
        return 1;
    out[0] = '\0';
    return 0;
}

void once__incoming_id(struct once__incoming *in, const void *text, size_t size)
{
    if (in->seen_id)
        once__incoming_flaw(in, "it has two ids");
    else if (!take_name(in->id, text, size))
        once__incoming_flaw(in, "its id is not 1 to 255 characters of visible "
                                "ASCII");
    in->seen_id = 1;
}

static void take_key(struct once__incoming *in, const void *text, size_t size)
{
    if (in->seen_key)
        once__incoming_flaw(in, "it has two keys");
    else if (!take_name(in->key, text, size))
        once__incoming_flaw(in, "its key is not 1 to 255 characters of visible "
                                "ASCII");
    in->seen_key = 1;
}

void once__incoming_type(struct once__incoming *in, const void *text,
                         size_t size)
{
    if (size > ONCE_ID_MAX || (size > 0 && memchr(text, '\0', size) != NULL)) {
        once__incoming_flaw(in, "its content type cannot be kept");
        return;
    }
    if (size > 0)
        memcpy(in->type, text, size);
    in->type[size] = '\0';
}

/* Whether it stays one line of headers, and one string, when it is put there. */
static int is_piece(const char *text, size_t size)
{
    return size == 0 || (memchr(text, '\n', size) == NULL &&
                         memchr(text, '\0', size) == NULL);
}

/* At least `more` bytes after the first `used`. */
static int reserve(struct once__incoming *in, void **bytes, size_t *cap,
                   size_t used, size_t more)
{
    void *grown = once__grown(*bytes, cap, used + more, 1);

    if (grown == NULL) {
        in->nomem = 1;
        return 0;
    }
    *bytes = grown;
    return 1;
}

void once__incoming_header(struct once__incoming *in, const void *name,
                           size_t n_name, const void *value, size_t n_value)
{
    void *bytes = in->headers;
    char *at;
    int room;

    if (n_name == strlen(ONCE__HEADER_KEY) &&
        strncasecmp(name, ONCE__HEADER_KEY, n_name) == 0) {
        take_key(in, value, n_value);
        return;
    }
    if (memchr(name, ':', n_name) != NULL || !is_piece(name, n_name) ||
        !is_piece(value, n_value)) {
        once__incoming_flaw(in, "a header is not one line of text");
        return;
    }
    if (n_name + n_value + 3 > ONCE_HEADERS_MAX - in->n_headers) {
        once__incoming_flaw(in, "its headers are too long");
        return;
    }
    room = reserve(in, &bytes, &in->cap_headers, in->n_headers,
                   n_name + n_value + 4);
    in->headers = bytes;
    if (!room)
        return;
    at = in->headers + in->n_headers;
    memcpy(at, name, n_name);
    memcpy(at + n_name, ": ", 2);
    if (n_value > 0)
        memcpy(at + n_name + 2, value, n_value);
    memcpy(at + n_name + 2 + n_value, "\n", 2); /* with its NUL */
    in->n_headers += n_name + n_value + 3;
}

void once__incoming_body(struct once__incoming *in, const void *piece,
                         size_t size, uint32_t most)
{
    size_t limit = most == 0 ? ONCE_BODY_MAX : most;
    void *bytes = in->body;
    int room;

    if (size == 0 || in->nomem || in->n_body > limit)
        return;
    if (size > limit - in->n_body) {
        once__incoming_flaw(in, "its body is larger than the limit, and was "
                                "left out");
        free(in->body);
        in->body = NULL;
        in->cap_body = 0;
        in->n_body = limit + 1;
        return;
    }
    room = reserve(in, &bytes, &in->cap_body, in->n_body, size);
    in->body = bytes;
    if (room) {
        memcpy(in->body + in->n_body, piece, size);
        in->n_body += size;
    }
}

/* Whether the database would take this type or these headers. */
static int is_content(const char *type, const char *headers)
{
    once_message part = ONCE_MESSAGE_INIT;

    part.type = type;
    part.headers = headers;
    return once__check_content(&part, NULL) == ONCE_OK;
}

int once__incoming_finish(struct once__incoming *in)
{
    once_message *m = &in->d.m;

    if (in->nomem)
        return 0;
    if (!is_content(in->type, NULL)) {
        once__incoming_flaw(in, "its content type is not ASCII");
        in->type[0] = '\0';
    }
    if (!is_content(NULL, in->headers)) {
        once__incoming_flaw(in, "a header is not \"Name: value\" in UTF-8");
        in->headers[0] = '\0';
    }
    if (!in->seen_id)
        once__incoming_flaw(in, "it has no id");
    m->id = in->id[0] != '\0' ? in->id : NULL;
    m->key = in->key[0] != '\0' ? in->key : NULL;
    m->type = in->type;
    m->headers = in->headers != NULL ? in->headers : "";
    m->body.data = in->body;
    m->body.size = in->body != NULL ? in->n_body : 0;
    return 1;
}

void once__incoming_push(struct once__incoming_list *list,
                         struct once__incoming *in)
{
    in->next = NULL;
    in->prev = list->last;
    if (list->last != NULL)
        list->last->next = in;
    else
        list->first = in;
    list->last = in;
}

void once__incoming_remove(struct once__incoming_list *list,
                           struct once__incoming *in)
{
    if (in->prev != NULL)
        in->prev->next = in->next;
    else
        list->first = in->next;
    if (in->next != NULL)
        in->next->prev = in->prev;
    else
        list->last = in->prev;
}

void once__incoming_drop(struct once__incoming_list *list)
{
    struct once__incoming *in;

    while ((in = list->first) != NULL) {
        once__incoming_remove(list, in);
        once__incoming_free(in);
    }
}

static int is_ours(const struct once__header_line *line)
{
    static const char *const names[] = {ONCE__HEADER_ID, ONCE__HEADER_KEY,
                                        ONCE__HEADER_TYPE};
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strlen(names[i]) == line->n_name &&
            strncasecmp(names[i], line->name, line->n_name) == 0)
            return 1;
    return 0;
}

int once__header_line_next(const char **at, struct once__header_line *line)
{
    const char *end, *colon;

    while (*at != NULL && **at != '\0') {
        line->name = *at;
        end = strchr(*at, '\n');
        if (end == NULL)
            end = *at + strlen(*at);
        *at = *end == '\n' ? end + 1 : end;
        colon = memchr(line->name, ':', (size_t)(end - line->name));
        if (colon == NULL)
            continue;
        line->n_name = (size_t)(colon - line->name);
        line->value = colon + 1;
        while (line->value < end && *line->value == ' ')
            line->value++;
        line->n_value = (size_t)(end - line->value);
        if (!is_ours(line))
            return 1;
    }
    return 0;
}
