/* SPDX-License-Identifier: Apache-2.0 */
/*
 * begin.c - /v1/begin: may the handler run?
 *
 *    head, body --> claim --+--> run   the exchange is kept under its id
 *                           +--> send  a replay, or why it may not
 *                           +--> pass  it is not guarded
 *
 * It may be repeated, with "again": then it gets the same `run`, or takes the
 * place of the call that still waits. After a restart the claim itself is
 * repeated, with the same owner token.
 *
 * It refuses an id that is known without "again", or with another request: a
 * child with its parent's generator of random numbers repeats ids.
 */
#include "programs/serve/serve.h"

#include <string.h>

#include "calls/guard/guard.h"

/* ---- The head -------------------------------------------------------------- */

static const char *computed(struct serve_call *k, const char *name)
{
    const char *text = serve_head_text(k, name);

    if (text != NULL && strlen(text) > ONCE_HTTP_TEXT_MAX)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"%s\" has over %d bytes.", name, ONCE_HTTP_TEXT_MAX);
    return text;
}

void serve_begin_head(struct serve_call *k)
{
    once_http_request r = ONCE_HTTP_REQUEST_INIT;

    serve_check_room(k);
    (void)serve_head_id(k);
    r.method = k->method = serve_head_bytes(k, "method");
    r.target = k->target = serve_head_bytes(k, "target");
    serve_head_lines(k);
    k->scope = computed(k, "scope");
    k->key = computed(k, "key");
    k->fingerprint = computed(k, "fingerprint");
    k->label = computed(k, "label");
    if (k->refused == 0 && (r.method == NULL || r.target == NULL))
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"method\" or \"target\" is missing.");
    if (k->refused == 0)
        k->route = serve_route_of(k);
    if (k->refused != 0)
        return;
    k->run_ms = k->route->run_ms;
    k->answer_ms = k->route->wait_ms + k->route->store_ms + SERVE_ANSWER_MS;
    if (k->scope != NULL && k->route->scope_off) {
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"scope\": its route says \"scope\": \"off\", so that "
                     "all callers are one. Leave out one of both.");
        return;
    }
    if (!serve_has_room(k->serve, k->route->max_response)) {
        serve_refuse_room(k);
        return;
    }
    r.headers = k->lines;
    r.n = k->n_lines;
    r.server = k;
    r.id = k->id;
    serve_log_label(k);
    if (once_exchange_new(k->route->guard, &r, NULL, &k->x) < 0)
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
}

void serve_begin_body(struct serve_call *k, const void *data, size_t size)
{
    if (once_exchange_step(k->x) == ONCE_HTTP_READ)
        (void)once_exchange_body(k->x, data, size); /* too long: a 413 */
}

/* ---- What is answered -------------------------------------------------------- */

static enum MHD_Result say_run(struct serve_call *k, const struct serve_open *o)
{
    const char *key = once_exchange_key(o->x);
    char token[1 + ONCE_EXCHANGE_TOKEN];
    json_t *head;

    serve_open_token(o, token);
    head = json_pack(
        "{s:s, s:s, s:I, s:s, s:I, s:I, s:I}", "do", "run", "token", token,
        "attempt", (json_int_t)once_exchange_attempt(o->x), "record",
        once_exchange_record(o->x), "run_ms", (json_int_t)o->run_ms, "lease_ms",
        (json_int_t)o->route->lease_ms, "max_response",
        (json_int_t)o->route->max_response);
    if (head != NULL && key != NULL)
        (void)json_object_set_new(head, "key", json_string(key));
    return serve_say(k, MHD_HTTP_OK, head, (once_bytes){NULL, 0});
}

/* What is unprotected says so to the client. */
static enum MHD_Result say_pass(struct serve_call *k, const once_exchange *x)
{
    const char *status = once_exchange_status(x);
    json_t *head = json_pack("{s:s}", "do", "pass");

    if (head != NULL && strcmp(status, "-") != 0)
        (void)json_object_set_new(
            head, "headers", json_pack("[[ss]]", "Idempotency-Status", status));
    return serve_say(k, MHD_HTTP_OK, head, (once_bytes){NULL, 0});
}

/* The exchange has come to this step, and `k` is no longer awaited by it. */
static enum MHD_Result follow(struct serve_call *k, struct serve_open *o,
                              int step)
{
    enum MHD_Result rc;

    k->open = NULL;
    o->call = NULL;
    if (step == ONCE_HTTP_RUN && !o->abandoned) {
        serve_open_run(o);
        return say_run(k, o);
    }
    serve_tell(o->route, once_exchange_status(o->x));
    serve_log(k->serve, o->logged, o->x,
              step == ONCE_HTTP_SEND ? once_exchange_reply(o->x)->status : 0);
    if (step == ONCE_HTTP_RUN) {
        once_exchange_abandon(o->x);
        rc = serve_say_abandoned(k);
    } else if (step == ONCE_HTTP_PASS) {
        rc = say_pass(k, o->x);
    } else if (step == ONCE_HTTP_SEND) {
        rc = serve_say_reply(k, o->x);
    } else {
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
        rc = serve_say_refused(k);
    }
    serve_open_free(o);
    return rc;
}

/* ---- The claim ---------------------------------------------------------------- */

static int is_same(const struct serve_call *k, const struct serve_open *o)
{
    return o->x != NULL && once__exchange_same(k->x, o->x) == 1;
}

enum MHD_Result serve_begin(struct serve_call *k)
{
    enum MHD_Result answer;
    struct serve_open *o;
    int step;

    if (once_exchange_step(k->x) == ONCE_HTTP_PASS) {
        serve_log(k->serve, k->logged, k->x, 0);
        return say_pass(k, k->x);
    }
    if (serve_known(k, is_same, say_run, serve_begun, &answer))
        return answer;
    o = serve_open_new(k);
    if (o == NULL || !serve_open_enter(o)) {
        serve_open_free(o);
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
        return serve_say_refused(k);
    }
    step = once_exchange_claim(o->x, serve_wake, o);
    return step == ONCE_HTTP_WAIT ? serve_wait(k) : follow(k, o, step);
}

enum MHD_Result serve_begun(struct serve_call *k)
{
    return follow(k, k->open, once_exchange_step(k->open->x));
}
