/* SPDX-License-Identifier: Apache-2.0 */
/*
 * end.c - /v1/end, /v1/broken and /v1/abandon: what became of a handler.
 *
 * The exchange is found by the id in the token. If this server does not know it,
 * because another one has begun it or an earlier end was told already, it is
 * resumed by the token: the record decides, and nothing of it is remembered here.
 *
 * It refuses the end of an exchange that another user's process has begun.
 */
#include "programs/serve/serve.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "calls/guard/guard.h"

static const char *const outcomes[] = {
    [ONCE_HTTP_BY_STATUS] = "",
    [ONCE_HTTP_APPLIED] = "applied",
    [ONCE_HTTP_NOT_APPLIED] = "not-applied",
    [ONCE_HTTP_NO_STORE] = "no-store",
    [ONCE_HTTP_UNKNOWN] = "unknown",
};

static int outcome_of(const char *text)
{
    int i;

    for (i = ONCE_HTTP_UNKNOWN; i >= 0; i--)
        if (strcmp(text, outcomes[i]) == 0)
            return i;
    return -1;
}

/* ---- The head ---------------------------------------------------------------- */

static int is_of_call(const struct serve_call *k)
{
    return k->token != NULL && k->token[0] == SERVE_CALL_TOKEN;
}

/* What this server has of its id, or NULL. A token says of which kind it is: one
 * of a call is no token of an exchange, whose id it may have. */
static struct serve_open *find(struct serve_call *k)
{
    struct serve_open *o = serve_open_find(k->serve, k->id);

    if (o == NULL)
        return NULL;
    if (!serve_owner_may(k->owner, o->owner)) {
        serve_refuse_owner(k);
        return NULL;
    }
    if (k->token != NULL && is_of_call(k) == (o->attempt != NULL))
        return o;
    if (k->token != NULL)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"token\": its id is that of %s.",
                     is_of_call(k) ? "an exchange" : "a call");
    return k->token == NULL ? o : NULL;
}

static void check_token(struct serve_call *k, struct once__token *t)
{
    static const char *const none[] = {
        [SERVE_END] = "of \"run\" of /v1/begin",
        [SERVE_BROKEN] = "of \"run\"",
        [SERVE_ABANDON] = "of \"run\"",
        [SERVE_CALL_END] = "of \"run\" of /v1/call/begin",
    };

    if (k->token == NULL ||
        !once__token_read(
            k->token + is_of_call(k),
            is_of_call(k) ? ONCE__TOKEN_CALL : ONCE__TOKEN_EXCHANGE, t) ||
        (k->kind == SERVE_END && is_of_call(k)) ||
        (k->kind == SERVE_CALL_END && !is_of_call(k)))
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"token\" is not the token %s.", none[k->kind]);
}

static void find_exchange(struct serve_call *k)
{
    struct once__token t;
    const struct serve_open *o;

    k->token = serve_head_text(k, "token");
    if (k->token == NULL && k->kind == SERVE_ABANDON) {
        if (serve_head_id(k))
            (void)find(k);
        return;
    }
    check_token(k, &t);
    if (k->refused != 0)
        return;
    memcpy(k->id, t.id, sizeof(k->id));
    o = find(k);
    if (k->refused != 0)
        return;
    k->route = o != NULL       ? serve_route_hold(o->route)
               : is_of_call(k) ? serve_route_of_calls(k)
                               : serve_route_of(k);
}

static void check_status(struct serve_call *k)
{
    json_int_t status = json_integer_value(json_object_get(k->json, "status"));
    const char *outcome = serve_head_text(k, "outcome");

    if (k->kind == SERVE_BROKEN && status != 502 && status != 504)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"status\" of a handler that broke is 502 or 504.");
    if (k->kind == SERVE_END && (status < 200 || status > 599))
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"status\" is not in 200 to 599.");
    if (outcome != NULL && outcome_of(outcome) < 0)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"outcome\" is applied, not-applied, no-store or "
                     "unknown.");
}

void serve_end_head(struct serve_call *k)
{
    find_exchange(k);
    if (is_of_call(k)) {
        serve_call_end_head(k);
    } else if (k->kind != SERVE_ABANDON) {
        check_status(k);
        serve_head_lines(k);
    }
}

/* ---- The body ------------------------------------------------------------------ */

static void drop_body(struct serve_call *k)
{
    k->serve->buffered -= k->body_room;
    k->body_room = k->n_body = 0;
    free(k->body);
    k->body = NULL;
}

static int grow(struct serve_call *k, size_t size)
{
    struct serve *s = k->serve;
    size_t room = k->body_room > 0 ? k->body_room : 4096;
    char *more;

    while (room < size)
        room *= 2;
    if (s->buffered - k->body_room + room > s->buffers)
        return 0;
    more = realloc(k->body, room);
    if (more == NULL)
        return 0;
    s->buffered += room - k->body_room;
    k->body_room = room;
    k->body = more;
    return 1;
}

/* One that is too long is not kept, and its middleware has it. */
void serve_end_body(struct serve_call *k, const void *data, size_t size)
{
    if (k->too_large)
        return;
    if (size > k->route->max_response - k->n_body) {
        k->too_large = 1;
        drop_body(k);
        return;
    }
    if (k->n_body + size > k->body_room && !grow(k, k->n_body + size)) {
        drop_body(k);
        serve_refuse_room(k);
        return;
    }
    memcpy(k->body + k->n_body, data, size);
    k->n_body += size;
}

/* ---- The end --------------------------------------------------------------------- */

/* What the token says, of this process or another. */
static int resume(struct serve_call *k)
{
    once_error err = {0, ""};
    int rc;

    rc = is_of_call(k)
             ? serve_call_resume(k, &err)
             : once_exchange_resume(k->route->guard, k->token, &err, &k->x);
    if (rc == ONCE_EINVAL)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head", "%s", err.text);
    return rc >= 0;
}

/* It is the one that this server let run. Of another token with this id the
 * record decides. */
static int has_token(const struct serve_call *k, const struct serve_open *o)
{
    char token[1 + ONCE_EXCHANGE_TOKEN];

    if (o->state != SERVE_RUNS)
        return 0;
    serve_open_token(o, token);
    return strcmp(token, k->token) == 0;
}

static enum MHD_Result abandon(struct serve_call *k, struct serve_open *o)
{
    if (!serve_gone_note(k->serve, k->id)) {
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
        return serve_say_refused(k);
    }
    if (o != NULL && o->state == SERVE_CLAIMS) {
        o->abandoned = 1;
        serve_open_stop(o);
        return serve_say_do(k, "none");
    }
    if (o != NULL && o->state == SERVE_ENDS)
        return serve_say_do(k, "none");
    if (k->token != NULL && (o == NULL || !has_token(k, o)))
        o = resume(k) ? serve_open_new(k) : NULL;
    if (o != NULL) {
        o->call = NULL;
        serve_open_release(o);
        serve_open_free(o);
    }
    k->open = NULL;
    return serve_say_do(k, "none");
}

/* The exchange of this call, in state ENDS; or NULL, and the call is refused. */
static struct serve_open *take(struct serve_call *k, struct serve_open *o)
{
    if (o != NULL && has_token(k, o)) {
        serve_open_leave(o);
        o->call = k;
        o->woken = 0;
        k->open = o;
    } else if (resume(k)) {
        o = serve_open_new(k);
    } else {
        o = NULL;
    }
    if (o != NULL)
        o->state = SERVE_ENDS;
    else
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
    return o;
}

static int tell(struct serve_call *k, struct serve_open *o)
{
    once_http_answer a = ONCE_HTTP_ANSWER_INIT;
    const char *outcome = serve_head_text(k, "outcome");
    int status = (int)json_integer_value(json_object_get(k->json, "status"));
    int rc;

    if (k->kind == SERVE_BROKEN)
        return once_exchange_broken(o->x, status, serve_wake, o);
    a.status = status;
    a.outcome = outcome != NULL ? outcome_of(outcome) : ONCE_HTTP_BY_STATUS;
    a.headers = k->lines;
    a.n = k->n_lines;
    a.streamed =
        k->too_large || json_is_true(json_object_get(k->json, "stream"));
    if (!a.streamed)
        a.body = (once_bytes){k->body, k->n_body};
    rc = once_exchange_answer(o->x, &a, serve_wake, o);
    /* It cannot be recorded, and the handler has run. */
    return rc == ONCE_HTTP_WAIT
               ? rc
               : once_exchange_broken(o->x, 502, serve_wake, o);
}

/* A body that is shorter than it says was cut off: docs/http.md, section 8. (A 304
 * says how long it would be.) */
static int is_whole(const struct serve_call *k)
{
    json_int_t status = json_integer_value(json_object_get(k->json, "status"));
    size_t i;
    char *end;

    if (k->kind != SERVE_END || k->too_large || status == 304 ||
        json_is_true(json_object_get(k->json, "stream")))
        return 1;
    for (i = 0; i < k->n_lines; i++)
        if (strcasecmp(k->lines[i].name, "Content-Length") == 0 &&
            (strtoull(k->lines[i].value, &end, 10) != k->n_body ||
             end == k->lines[i].value || *end != '\0'))
            return 0;
    return 1;
}

enum MHD_Result serve_end(struct serve_call *k)
{
    struct serve_open *o = find(k); /* again: a body takes its time */
    int asked;

    if (k->refused != 0)
        return serve_say_refused(k);
    if (k->kind == SERVE_ABANDON)
        return abandon(k, o);
    if (!is_whole(k)) {
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "The body is not as long as its Content-Length.");
        return serve_say_refused(k);
    }
    o = take(k, o);
    if (o == NULL)
        return serve_say_refused(k);
    asked = o->attempt != NULL ? serve_call_tell(k, o) == ONCE_OK
                               : tell(k, o) == ONCE_HTTP_WAIT;
    drop_body(k); /* it was copied */
    if (asked)
        return serve_wait(k);
    serve_open_free(o); /* its record becomes unknown */
    serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
    return serve_say_refused(k);
}

enum MHD_Result serve_ended(struct serve_call *k)
{
    struct serve_open *o = k->open;
    enum MHD_Result rc;
    int step;

    if (o->attempt != NULL)
        return serve_call_ended(k);
    step = once_exchange_step(o->x);
    serve_tell(o->route, once_exchange_status(o->x));
    serve_log(k->serve, o->logged, o->x,
              step == ONCE_HTTP_SEND ? once_exchange_reply(o->x)->status : 0);
    k->open = NULL;
    o->call = NULL;
    if (step == ONCE_HTTP_SEND) {
        rc = serve_say_reply(k, o->x);
    } else if (step == ONCE_HTTP_DROP) { /* a dry run: as without Once */
        rc = serve_say_do(k, "none");
    } else {
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
        rc = serve_say_refused(k);
    }
    serve_open_free(o);
    return rc;
}
