/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lookup.c - asks a status resource of the gateway what became of a key
 * (docs/http.md, section 10). It changes nothing there, so it may be asked at
 * any time. It refuses to take any other document for the answer, and a key or
 * a header that would be read as something else on the wire.
 */
#include "client/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

enum { KEY_MAX = 255, KEY_TEXT = 2 * KEY_MAX + 3, TIMEOUT_MS = 15000 };

static int nothing_to_note(void *user)
{
    (void)user;
    return 0;
}

int once__client_lookup(void *easy, struct once__transfer *t, int *recorded,
                        int *state, once_error *err)
{
    int rc;

    *state = ONCE_CLIENT_TOLD_NOTHING;
    *recorded = 0;
    t->method = "GET";
    t->body = (once_bytes){NULL, 0};
    t->begin = nothing_to_note;
    rc = once__transfer_run(easy, t, err);
    if (rc == ONCE_OK && t->whole && t->answer.status == 200)
        *state = once__client_told(t->answer_type, t->answer_body, recorded);
    return rc;
}

/* ---- The call ----------------------------------------------------------- */

/* As a token if it is one, else as an RFC 8941 String. */
static int key_text(once_bytes key, char out[KEY_TEXT], once_error *err)
{
    const char *in = key.data;
    size_t i, n = 0;
    int bare = 1;

    if (key.size == 0 || key.size > KEY_MAX)
        return once__fail(err, ONCE_EINVAL, "key: must be 1 to %d characters",
                          KEY_MAX);
    for (i = 0; i < key.size; i++) {
        if (in[i] < ' ' || in[i] > '~')
            return once__fail(err, ONCE_EINVAL,
                              "key: must be visible ASCII characters");
        bare = bare && in[i] != ' ' && strchr("\",;\\", in[i]) == NULL;
    }
    if (bare) {
        (void)snprintf(out, KEY_TEXT, "%.*s", (int)key.size, in);
        return ONCE_OK;
    }
    out[n++] = '"';
    for (i = 0; i < key.size; i++) {
        if (in[i] == '"' || in[i] == '\\')
            out[n++] = '\\';
        out[n++] = in[i];
    }
    out[n++] = '"';
    out[n] = '\0';
    return ONCE_OK;
}

static void describe(const struct once__transfer *t, once_client_told *told)
{
    if (!t->whole)
        (void)snprintf(told->text, sizeof(told->text), "no answer: %s",
                       t->said);
    else if (told->state == ONCE_CLIENT_TOLD_NOTHING)
        (void)snprintf(told->text, sizeof(told->text),
                       "answered %d, which does not tell", t->answer.status);
    else
        (void)snprintf(told->text, sizeof(told->text), "answered 200");
}

static int fill(const struct once__transfer *t, once_client_told *told)
{
    once_bytes body = t->answer_body;
    char *copy;

    if (!t->whole)
        return ONCE_OK;
    told->status = t->answer.status;
    copy = malloc(body.size + 1);
    if (copy == NULL)
        return ONCE_ENOMEM;
    if (body.size > 0)
        memcpy(copy, body.data, body.size);
    copy[body.size] = '\0';
    told->memory = copy;
    told->body = (once_bytes){copy, body.size};
    return ONCE_OK;
}

static int ask(struct once__transfer *t, once_client_told *told,
               once_error *err)
{
    void *easy = once__transfer_handle();
    int rc = ONCE_ENOMEM;

    if (easy != NULL)
        rc = once__client_lookup(easy, t, &told->recorded_status, &told->state,
                                 err);
    if (rc == ONCE_OK) {
        describe(t, told);
        rc = fill(t, told);
    }
    once__transfer_clear(t);
    once__transfer_drop(easy);
    return rc == ONCE_OK ? rc : once__fail(err, rc, "client: out of memory");
}

int once_client_lookup(const once_client_question *question,
                       once_client_told *told, once_error *err)
{
    once_client_question q = ONCE_CLIENT_QUESTION_INIT;
    struct once__transfer t = {0};
    char key[KEY_TEXT];
    int rc;

    if (question->size < sizeof(size_t) || question->size > sizeof(q) ||
        told->size != sizeof(*told))
        return once__fail(err, ONCE_EINVAL,
                          "question or answer: size is not set, or of another "
                          "header");
    memcpy(&q, question, question->size);
    rc = once__url_check("url", q.url, err);
    if (rc == ONCE_OK)
        rc = once__headers_check(q.headers, q.n_headers, err);
    if (rc == ONCE_OK)
        rc = key_text(q.key, key, err);
    if (rc != ONCE_OK)
        return rc;
    if (!once__transfer_start())
        return once__fail(err, ONCE_ENOMEM, "client: libcurl does not start");
    t.url = q.url;
    t.key = key;
    t.ca_file = q.ca_file;
    t.headers = q.headers;
    t.n_headers = q.n_headers;
    t.attempt_ms = t.connect_ms = q.timeout_ms != 0 ? q.timeout_ms : TIMEOUT_MS;
    t.response_max = ONCE__HEADER_BYTES_MAX;
    rc = ask(&t, told, err);
    once__transfer_stop();
    return rc;
}

void once_client_told_clear(once_client_told *told)
{
    once_client_told none = ONCE_CLIENT_TOLD_INIT;

    if (told == NULL)
        return;
    free(told->memory);
    *told = none;
}
