/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c - /v1/call/begin and /v1/call/end: once_call() for other languages, with
 * the same records. A program in C and one in Python exclude each other by group
 * and key.
 *
 *    begin: claim --+--> run         the attempt is kept under its id
 *                   +--> replay, in-flight, mismatch, indeterminate, unstored
 *    end:   complete --> none, or replay where another result stands
 *
 * Ids, owners, deaths and time limits are those of exchanges: see open.c.
 */
#include "programs/serve/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "calls/call/call.h"
#include "calls/guard/guard.h"

enum { RUN_MOST_MS = 600000, WAIT_MOST_MS = 600000 };

/* ---- The head ---------------------------------------------------------------- */

static uint64_t number(struct serve_call *k, const char *name, uint64_t most)
{
    const json_t *v = json_object_get(k->json, name);
    json_int_t n = json_integer_value(v);

    if (v != NULL && (!json_is_integer(v) || n < 1 || (uint64_t)n > most))
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"%s\" is no number from 1 to %llu.", name,
                     (unsigned long long)most);
    return n > 0 ? (uint64_t)n : 0;
}

static once_bytes bytes_of(const char *text)
{
    return (once_bytes){text, text != NULL ? strlen(text) : 0};
}

static void read_times(struct serve_call *k)
{
    once_request *r = &k->request;

    r->size = sizeof(*r);
    r->lease_ms = (uint32_t)number(k, "lease_ms", UINT32_MAX);
    r->wait_ms = (uint32_t)number(k, "wait_ms", WAIT_MOST_MS);
    r->keep_ms = number(k, "keep_ms", ONCE_KEEP_MAX_MS);
}

void serve_call_head(struct serve_call *k)
{
    const char *group = serve_head_text(k, "group");
    const char *key = serve_head_text(k, "key");
    const char *print = serve_head_text(k, "fingerprint");
    const char *label = serve_head_text(k, "label");
    once_request *r = &k->request;
    once_error err = {0, "no memory"};

    serve_check_room(k);
    (void)serve_head_id(k);
    read_times(k);
    k->route = serve_route_of_calls(k);
    k->run_ms = number(k, "run_ms", RUN_MOST_MS);
    k->run_ms = k->run_ms > 0 ? k->run_ms : k->route->run_ms;
    k->answer_ms = r->wait_ms + k->route->store_ms + SERVE_ANSWER_MS;
    if (k->refused != 0)
        return;
    if (once__call_name(group, bytes_of(key), r->name, &err) != ONCE_OK ||
        once__call_fingerprint(bytes_of(print), r->fingerprint) != ONCE_OK) {
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head", "%s", err.text);
        return;
    }
    group = group != NULL ? group : ONCE_GROUP_DEFAULT;
    memcpy(r->group, group, strnlen(group, ONCE_GROUP_SIZE));
    r->label = bytes_of(label);
    r->token = k->id;
    if (once_attempt_new(k->serve->engine, r, &err, &k->attempt) != ONCE_OK)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head", "%s", err.text);
}

/* ---- What is answered ---------------------------------------------------------- */

static enum MHD_Result say_state(struct serve_call *k, const char *state,
                                 const once_attempt *a)
{
    json_t *head = json_pack("{s:s}", "do", state);
    uint64_t left_ms = once_attempt_left_ms(a);

    serve_tell(k->route, strcmp(state, "in-flight") == 0 ? "in_flight" : state);
    if (head != NULL && left_ms > 0)
        (void)json_object_set_new(head, "retry_after_ms",
                                  json_integer((json_int_t)left_ms));
    return serve_say(k, MHD_HTTP_OK, head, (once_bytes){NULL, 0});
}

static enum MHD_Result say_replay(struct serve_call *k, const once_attempt *a)
{
    const once_record *record = once_attempt_record(a);
    once__result r;
    int rc = once__result_read(record, &r, NULL);

    if (rc == ONCE_REPEATED)
        return say_state(k, "unstored", a);
    if (rc != ONCE_OK) {
        serve_refuse(
            k, MHD_HTTP_INTERNAL_SERVER_ERROR, "corrupt",
            "The record was not written by a call, or cannot be read.");
        return serve_say_refused(k);
    }
    serve_tell(k->route, "replayed");
    return serve_say(
        k, MHD_HTTP_OK,
        json_pack("{s:s, s:s, s:i, s:s%, s:I}", "do", "replay", "kind",
                  record->kind == ONCE_SUCCESS ? "success" : "failure", "code",
                  r.code, "type", r.type.data, r.type.size, "attempt",
                  (json_int_t)record->attempt),
        r.bytes);
}

static enum MHD_Result say_run(struct serve_call *k, const struct serve_open *o)
{
    const once_record *r = once_attempt_record(o->attempt);
    char token[1 + ONCE_EXCHANGE_TOKEN];

    serve_open_token(o, token);
    return serve_say(k, MHD_HTTP_OK,
                     json_pack("{s:s, s:s, s:I, s:I}", "do", "run", "token",
                               token, "attempt", (json_int_t)r->attempt,
                               "run_ms", (json_int_t)o->run_ms),
                     (once_bytes){NULL, 0});
}

static enum MHD_Result say_away(struct serve_call *k, int rc)
{
    serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "store-unavailable", "%s",
                 once_text(rc));
    return serve_say_refused(k);
}

/* ---- The claim ------------------------------------------------------------------- */

void serve_call_done(once_attempt *a, int rc, void *user)
{
    struct serve_open *o = user;

    (void)a;
    o->rc = rc;
    serve_wake(o);
}

static int is_same(const struct serve_call *k, const struct serve_open *o)
{
    return o->attempt != NULL &&
           memcmp(k->request.name, o->request.name, ONCE_NAME_SIZE) == 0 &&
           memcmp(k->request.fingerprint, o->request.fingerprint,
                  ONCE_FINGERPRINT_SIZE) == 0;
}

enum MHD_Result serve_call_begin(struct serve_call *k)
{
    struct serve_open *o = NULL;
    enum MHD_Result answer;
    int rc;

    if (serve_known(k, is_same, say_run, serve_call_begun, &answer))
        return answer;
    o = serve_open_new(k);
    if (o == NULL || !serve_open_enter(o)) {
        serve_open_free(o);
        return say_away(k, ONCE_ENOMEM);
    }
    rc = once_claim_start(o->attempt, serve_call_done, o);
    if (rc == ONCE_OK)
        return serve_wait(k);
    serve_open_free(o);
    return say_away(k, rc);
}

enum MHD_Result serve_call_begun(struct serve_call *k)
{
    struct serve_open *o = k->open;
    enum MHD_Result answer;

    k->open = NULL;
    o->call = NULL;
    if (o->rc == ONCE_OWNER && !o->abandoned) {
        serve_open_run(o);
        return say_run(k, o);
    }
    switch (o->rc) {
    case ONCE_OWNER:
        serve_open_release(o);
        answer = serve_say_abandoned(k);
        break;
    case ONCE_REPLAY:
        answer = say_replay(k, o->attempt);
        break;
    case ONCE_IN_FLIGHT:
        answer = say_state(k, "in-flight", o->attempt);
        break;
    case ONCE_UNKNOWN:
        answer = say_state(k, "indeterminate", o->attempt);
        break;
    case ONCE_MISMATCH:
        answer = say_state(k, "mismatch", o->attempt);
        break;
    default:
        answer = say_away(k, o->rc);
        break;
    }
    serve_open_free(o);
    return answer;
}

/* ---- The end ---------------------------------------------------------------------- */

void serve_call_end_head(struct serve_call *k)
{
    const char *kind = serve_head_text(k, "kind");

    if (k->kind == SERVE_CALL_END &&
        (kind == NULL ||
         (strcmp(kind, "success") != 0 && strcmp(kind, "failure") != 0)))
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "\"kind\" is success or failure.");
    read_times(k);
    k->request.token = k->id;
}

int serve_call_resume(struct serve_call *k, once_error *err)
{
    struct once__token t;
    once_record granted = {0};

    if (!once__token_read(k->token + 1, ONCE__TOKEN_CALL, &t))
        return once__fail(err, ONCE_EINVAL, "\"token\" cannot be read");
    memcpy(k->request.name, t.name, ONCE_NAME_SIZE);
    memcpy(k->request.fingerprint, t.fingerprint, ONCE_FINGERPRINT_SIZE);
    granted.fence = t.fence;
    granted.attempt = t.attempt;
    granted.doubt = t.doubt;
    return once_attempt_resume(k->serve->engine, &k->request, &granted, err,
                               &k->attempt);
}

static int complete(const struct serve_call *k, struct serve_open *o)
{
    const char *type = json_string_value(json_object_get(k->json, "type"));
    int failed = strcmp(json_string_value(json_object_get(k->json, "kind")),
                        "failure") == 0;
    json_int_t code = json_integer_value(json_object_get(k->json, "code"));
    once__result r = {
        0, bytes_of(type != NULL ? type : ""), {k->body, k->n_body}};
    void *encoded;
    size_t size;
    int rc;

    if (failed)
        r.code = code > 0 && code <= INT32_MAX ? (int)code : 1;
    if (once__result_size(&r, &size, NULL) != ONCE_OK)
        return ONCE_EINVAL;
    encoded = malloc(size);
    if (encoded == NULL)
        return ONCE_ENOMEM;
    once__result_encode(&r, encoded);
    rc = once_complete_start(o->attempt, failed ? ONCE_FAILURE : ONCE_SUCCESS,
                             (once_bytes){encoded, size}, serve_call_done, o);
    free(encoded);
    return rc;
}

int serve_call_tell(struct serve_call *k, struct serve_open *o)
{
    int rc = ONCE_EINVAL;

    if (k->kind == SERVE_CALL_END && !k->too_large)
        rc = complete(k, o);
    /* It is broken, or its result cannot be recorded. */
    return rc == ONCE_OK ? rc
                         : once_give_up_start(o->attempt, ONCE_REASON_PROGRAM,
                                              serve_call_done, o);
}

/* A function that broke is given up, also one whose end was told before: what is
 * recorded is looked for. 1: the store is being asked. */
static int look(struct serve_open *o)
{
    once_request r = {.size = sizeof(r), .token = o->id};
    once_attempt *a = NULL;

    if (o->rc != ONCE_OK || o->looked)
        return 0;
    o->looked = 1;
    memcpy(r.name, o->request.name, sizeof(r.name));
    memcpy(r.fingerprint, o->request.fingerprint, sizeof(r.fingerprint));
    if (once_attempt_new(o->wake.serve->engine, &r, NULL, &a) != ONCE_OK)
        return 0;
    once_attempt_free(o->attempt);
    o->attempt = a;
    o->woken = 0;
    return once_look_start(a, serve_call_done, o) == ONCE_OK;
}

enum MHD_Result serve_call_ended(struct serve_call *k)
{
    struct serve_open *o = k->open;
    enum MHD_Result answer;

    if (k->kind == SERVE_BROKEN && look(o))
        return serve_wait(k);
    k->open = NULL;
    o->call = NULL;
    if (o->rc == ONCE_OK && k->kind == SERVE_CALL_END && !k->too_large) {
        serve_tell(k->route, "new");
        answer = serve_say(k, MHD_HTTP_OK,
                           json_pack("{s:s, s:b}", "do", "none", "recorded", 1),
                           (once_bytes){NULL, 0});
    } else if (o->rc == ONCE_REPLAY) {
        answer = say_replay(k, o->attempt);
    } else {
        answer = say_state(k, "indeterminate", o->attempt);
    }
    serve_open_free(o);
    return answer;
}
