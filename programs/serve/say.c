/* SPDX-License-Identifier: Apache-2.0 */
/*
 * say.c - what a call is answered: a line of JSON, and bytes.
 *
 * A refusal is noted first, since a call is answered only when all of it is read.
 */
#include "programs/serve/serve.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void serve_refuse(struct serve_call *k, unsigned status, const char *error,
                  const char *format, ...)
{
    va_list args;

    if (k->refused != 0)
        return;
    k->refused = status;
    k->error = error;
    va_start(args, format);
    (void)vsnprintf(k->why, sizeof(k->why), format, args);
    va_end(args);
}

/* An answer while it is sent. */
struct sent {
    struct serve *serve;
    char *text;
    size_t counted; /* of --buffers */
};

static void sent_free(void *user)
{
    struct sent *t = user;

    t->serve->buffered -= t->counted;
    free(t->text);
    free(t);
}

static struct MHD_Response *response(struct serve *s, char *text, size_t size,
                                     size_t counted)
{
    struct sent *t = malloc(sizeof(*t));
    struct MHD_Response *r = NULL;

    if (t == NULL) {
        free(text);
        return NULL;
    }
    *t = (struct sent){.serve = s, .text = text, .counted = counted};
    s->buffered += counted;
    r = MHD_create_response_from_buffer_with_free_callback_cls(size, text,
                                                               sent_free, t);
    if (r == NULL)
        sent_free(t);
    return r;
}

static enum MHD_Result put_out(struct serve_call *k, unsigned status,
                               const char *type, char *text, size_t size,
                               size_t counted)
{
    struct MHD_Response *r = response(k->serve, text, size, counted);
    enum MHD_Result rc;

    if (r == NULL)
        return MHD_NO;
    serve_connection_start(k->connection, size);
    (void)MHD_add_response_header(r, "Content-Type", type);
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
        (void)MHD_add_response_header(r, "Retry-After", "1");
    rc = MHD_queue_response(k->c, status, r);
    MHD_destroy_response(r);
    return rc;
}

enum MHD_Result serve_send(struct serve_call *k, unsigned status,
                           const char *type, char *text, size_t size)
{
    return put_out(k, status, type, text, size, 0);
}

/* The only one has room in any case. */
int serve_has_room(const struct serve *s, size_t size)
{
    return s->buffered == 0 || s->buffered + size <= s->buffers;
}

void serve_refuse_room(struct serve_call *k)
{
    serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy",
                 "Answers take %llu bytes, of --buffers (%llu): their clients "
                 "read slowly, or it is too small.",
                 (unsigned long long)k->serve->buffered,
                 (unsigned long long)k->serve->buffers);
}

enum MHD_Result serve_say(struct serve_call *k, unsigned status, json_t *head,
                          once_bytes body)
{
    size_t n = head != NULL ? json_dumpb(head, NULL, 0, JSON_COMPACT) : 0;
    char *text = NULL;

    if (body.size > 0 && !serve_has_room(k->serve, n + 1 + body.size)) {
        json_decref(head);
        serve_refuse_room(k);
        return serve_say_refused(k);
    }
    text = n > 0 ? malloc(n + 1 + body.size) : NULL;
    if (text == NULL) {
        json_decref(head);
        return MHD_NO; /* the connection ends, which says nothing */
    }
    (void)json_dumpb(head, text, n, JSON_COMPACT);
    json_decref(head);
    text[n++] = '\n';
    if (body.size > 0)
        memcpy(text + n, body.data, body.size);
    return put_out(k, status, "application/vnd.once", text, n + body.size,
                   body.size > 0 ? n + body.size : 0);
}

enum MHD_Result serve_say_do(struct serve_call *k, const char *what)
{
    return serve_say(k, MHD_HTTP_OK, json_pack("{s:s}", "do", what),
                     (once_bytes){NULL, 0});
}

static json_t *characters_of(const char *bytes)
{
    size_t n = strlen(bytes);
    char *text = malloc(2 * n + 1), *at = text;
    json_t *out = NULL;
    unsigned c;

    if (text == NULL)
        return NULL;
    for (; (c = (unsigned char)*bytes) != 0; bytes++) {
        if (c >= 0x80)
            *at++ = (char)(0xc0 | c >> 6);
        *at++ = (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c);
    }
    out = json_stringn(text, (size_t)(at - text));
    free(text);
    return out;
}

/* The lines of an answer, its bytes as characters; NULL: no memory. */
static json_t *lines_json(const once_http_answer *a)
{
    json_t *all = json_array();
    size_t i;

    for (i = 0; i < a->n && all != NULL; i++)
        if (json_array_append_new(
                all, json_pack("[oo]", characters_of(a->headers[i].name),
                               characters_of(a->headers[i].value))) < 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

enum MHD_Result serve_say_reply(struct serve_call *k, const once_exchange *x)
{
    const once_http_answer *a = once_exchange_reply(x);
    int own = once_exchange_is_own(x);
    once_bytes none = {NULL, 0};

    return serve_say(k, MHD_HTTP_OK,
                     json_pack("{s:s, s:i, s:o}", "do", own ? "own" : "send",
                               "status", a->status, "headers", lines_json(a)),
                     own ? none : a->body);
}

enum MHD_Result serve_say_refused(struct serve_call *k)
{
    assert(k->refused != 0);
    return serve_say(
        k, k->refused,
        json_pack("{s:s, s:o}", "error", k->error, "text",
                  cli_json_text((once_bytes){k->why, strlen(k->why)})),
        (once_bytes){NULL, 0});
}
