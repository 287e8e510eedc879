/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decide.c - what is changed: a decision on one record, or the same one on many;
 * and the body of a result, which is read, but by nobody unnoticed.
 *
 *    the request's JSON --> action, result, why --> once__resolve() --> answer
 *                                     dry: what would be refused, and the
 *                                     bytes that repeats would get
 *
 * Each change has a key of its own (Idempotency-Key), which stands in the note:
 * one that comes again is answered as the first time. A store that does not
 * answer is "unknown": the same request may be sent again.
 */
#include "programs/console/console.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEEP_DEFAULT_S 86400
enum { BATCH_PAUSE_NS = 100000000, KEEP_MAX_S = 315360000 };

/* What is to be said of one record or of many. */
struct decision {
    int action; /* enum once__resolve_action; 0: acknowledge */
    once__header headers[ONCE__ANSWER_HEADERS];
    size_t n;
    once_bytes decoded; /* of base64, ours */
    once_bytes result;  /* encoded, ours   */
    once__resolution what;
};

/* ---- The request --------------------------------------------------------- */

static int invalid(once_error *err, const char *text)
{
    err->code = ONCE_EINVAL;
    snprintf(err->text, sizeof(err->text), "%s", text);
    return ONCE_EINVAL;
}

static int read_action(const json_t *body, int *out)
{
    static const char *const names[] = {
        "acknowledge", "success", "failure", "applied", "reopen",
    };
    int bad = 0, i;
    const char *text = console_text(body, "action", &bad);

    for (i = 0; text != NULL && i <= ONCE__REOPEN; i++)
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return ONCE_OK;
        }
    return ONCE_EINVAL;
}

static int read_headers(const json_t *body, struct decision *d, once_error *err)
{
    const json_t *list = json_object_get(body, "headers"), *one;
    size_t i;
    int bad = 0, rc;

    if (list != NULL && !json_is_array(list))
        return invalid(err, "headers is a list of name and value");
    json_array_foreach(list, i, one)
    {
        const char *name = console_text(one, "name", &bad);
        const char *value = console_text(one, "value", &bad);
        once__header *h = &d->headers[d->n];

        if (bad || name == NULL || value == NULL ||
            d->n == ONCE__ANSWER_HEADERS)
            return invalid(err, "headers are up to 64, of name and value");
        *h = (once__header){{name, strlen(name)}, {value, strlen(value)}, 0};
        rc = once__answer_header(h, err);
        if (rc < 0)
            return rc;
        d->n++;
    }
    return ONCE_OK;
}

/* The bytes of "body", or of "body_base64". */
static int read_bytes(const json_t *body, struct decision *d, once_bytes *out,
                      once_error *err)
{
    const json_t *plain = json_object_get(body, "body");
    int bad = 0;
    const char *encoded = console_text(body, "body_base64", &bad);

    if (bad || (plain != NULL && (encoded != NULL || !json_is_string(plain))))
        return invalid(err, "body and body_base64 are texts; give one of them");
    *out = (once_bytes){json_string_value(plain), json_string_length(plain)};
    if (encoded == NULL)
        return ONCE_OK;
    if (console_decode(encoded, &d->decoded) < 0)
        return invalid(err, "body_base64 is no base64");
    *out = d->decoded;
    return ONCE_OK;
}

static int copy(once_bytes from, once_bytes *out)
{
    void *data = malloc(from.size + 1);

    if (data == NULL)
        return ONCE_ENOMEM;
    if (from.size > 0)
        memcpy(data, from.data, from.size);
    *out = (once_bytes){data, from.size};
    return ONCE_OK;
}

/* What repeats will get. */
static int read_result(const json_t *body, struct decision *d, once_error *err)
{
    once__response response = {.headers = d->headers};
    once_bytes bytes;
    int bad = 0, raw = console_flag(body, "raw", &bad),
        value = console_flag(body, "value", &bad), rc;

    response.status = (int)console_number(body, "status", 200, 599, 0, &bad);
    if (bad || (raw != 0) + (value != 0) + (response.status != 0) != 1)
        return invalid(err, "give a status from 200 to 599, or value or raw as "
                            "true");
    rc = read_headers(body, d, err);
    if (rc == ONCE_OK)
        rc = read_bytes(body, d, &bytes, err);
    if (rc < 0)
        return rc;
    if (d->n > 0 && response.status == 0)
        return invalid(err, "headers go with a status");
    if (value)
        return once__answer_value(
            bytes, d->action == ONCE__SUCCESS ? ONCE_SUCCESS : ONCE_FAILURE,
            &d->result, err);
    if (raw)
        return copy(bytes, &d->result);
    response.n = d->n;
    response.body = bytes;
    return once__answer_encode(&response, &d->result, err);
}

static int read_decision(struct console_request *ask, struct decision *d,
                         once_error *err)
{
    const json_t *body = ask->body;
    int bad = 0, rc = ONCE_OK;

    d->what.program = "once-console";
    d->what.who = &ask->caller.who;
    d->what.audit = ask->con->audit;
    d->what.dry = console_flag(body, "dry", &bad);
    d->what.why = console_text(body, "why", &bad);
    d->what.decision = console_header(ask, "Idempotency-Key");
    d->what.keep_ms =
        1000 * (uint64_t)console_number(body, "keep_s", 1, KEEP_MAX_S,
                                        KEEP_DEFAULT_S, &bad);
    if (bad || read_action(body, &d->action) < 0)
        return invalid(err, "action is success, failure, applied, reopen or "
                            "acknowledge; dry is true or false; keep_s is 1 "
                            "to 315360000");
    d->what.action = d->action;
    if (!d->what.dry && !once__why_good(d->what.why))
        return invalid(err, "why: 1 to 512 bytes on one line are needed");
    if (d->what.why == NULL)
        d->what.why = "";
    if (!d->what.dry &&
        (d->what.decision == NULL || !once__decision_good(d->what.decision)))
        return invalid(err, "Idempotency-Key: 8 to 64 letters, digits, - or _");
    if (d->action == ONCE__SUCCESS || d->action == ONCE__FAILURE)
        rc = read_result(body, d, err);
    d->what.result = d->result;
    return rc;
}

static void end_decision(struct decision *d)
{
    if (d == NULL)
        return;
    free((void *)(uintptr_t)d->decoded.data);
    free((void *)(uintptr_t)d->result.data);
    free(d);
}

/* ---- The answer ---------------------------------------------------------- */

static const char *text_of(int verdict)
{
    switch (verdict) {
    case ONCE__UNRESOLVED_GONE:
        return "There is no such record any more.";
    case ONCE__UNRESOLVED_OWNED:
        return "Its owner may still answer: the lease has not expired.";
    case ONCE__UNRESOLVED_STATE:
        return "It does not wait for a decision any more.";
    case ONCE__UNRESOLVED_TAKEOVER:
        return "Its next repeat cannot be let execute: it was made under hold "
               "(once_lost), so its service may not recognise the key, and "
               "could execute it twice.";
    case ONCE__UNRESOLVED_DECISION:
        return "This Idempotency-Key was used for another decision.";
    default:
        return "Something happened to it since you looked.";
    }
}

static json_t *json_done(const struct console_request *ask,
                         const struct decision *d, int verdict,
                         const once_record *now, const once_error *err)
{
    json_t *reply =
        d->result.data
            ? console_json_reply(d->result, d->action == ONCE__FAILURE
                                                ? ONCE_FAILURE
                                                : ONCE_SUCCESS)
            : json_null();

    return json_pack(
        "{s:s, s:b, s:o, s:o, s:s?}", "verdict",
        d->what.dry ? "possible" : "done", "dry", d->what.dry, "record",
        console_json_record(ask->store, d->what.name, now), "reply", reply,
        "audit_lacks",
        verdict == ONCE__RESOLVED && err->code != 0 ? err->text : NULL);
}

static enum MHD_Result answer(struct console_request *ask,
                              const struct decision *d, int verdict,
                              const once_record *now, const once_error *err)
{
    json_t *record = NULL;

    if (verdict == ONCE_ESTORE)
        return console_problem(
            ask, MHD_HTTP_SERVICE_UNAVAILABLE, "unknown",
            "The store did not answer: it may have been decided. "
            "Send the same request again, or look.");
    if (verdict < 0)
        return console_store_error(ask, verdict, err);
    if (verdict == ONCE__RESOLVED || verdict == ONCE__RESOLVED_BEFORE)
        return console_reply(ask, MHD_HTTP_OK,
                             json_done(ask, d, verdict, now, err));
    if (now->attempt != 0)
        record = console_json_record(ask->store, d->what.name, now);
    return console_problem_about(
        ask, verdict == ONCE__UNRESOLVED_DECISION ? 422 : 409,
        once__resolved_text(verdict), text_of(verdict), record);
}

/* ---- One record ---------------------------------------------------------- */

static void set_store(struct console_request *ask, once_store_head *head,
                      const uint8_t **store, uint64_t *incarnation)
{
    if (console_head(ask->store, head)) {
        *store = head->id;
        *incarnation = head->incarnation;
    }
}

/* The first digits of the name, as the operator has typed them: a decision about
 * the wrong record is worse than none. */
static int is_confirmed(const struct console_request *ask)
{
    char hex[CLI_HEX_SIZE];
    int bad = 0;
    const char *typed = console_text(ask->body, "confirm", &bad);

    cli_hex(ask->name, CLI_DIGITS_MIN, hex);
    return typed != NULL && strcmp(typed, hex) == 0;
}

struct before {
    const char *decision;
    int seen;
};

static int look_for(void *user, const once__audit_line *line)
{
    struct before *b = user;
    const char *decision =
        json_string_value(json_object_get(line->json, "decision"));

    b->seen |= decision != NULL && strcmp(decision, b->decision) == 0;
    return 0;
}

/* Was this very acknowledgement written before? */
static int acknowledged(const struct console_request *ask, const char *decision)
{
    char hex[CLI_HEX_SIZE];
    once__audit_filter f = {.action = "acknowledge", .name = hex};
    const char *path = once__audit_path(ask->con->audit);
    struct before b = {decision, 0};

    cli_hex(ask->name, CLI_DIGITS, hex);
    if (path != NULL)
        (void)!once__audit_newest(path, &f, 200, look_for, &b, NULL);
    return b.seen;
}

/* Somebody looks into it: a line in the audit log, and nothing else. */
static int acknowledge(struct console_request *ask, const struct decision *d,
                       once_op *now, once_error *err)
{
    const once__resolution *w = &d->what;
    once__audit_entry entry = {.action = "acknowledge",
                               .who = w->who,
                               .store = w->store,
                               .incarnation = w->incarnation,
                               .name = w->name,
                               .fence = w->fence,
                               .why = w->why,
                               .decision = w->decision};
    uint64_t seq;
    int rc = once__look(ask->store->e, w->name, now, err);

    if (rc < 0)
        return rc;
    if (now->record.attempt == 0)
        return ONCE__UNRESOLVED_GONE;
    if (now->record.fence != w->fence)
        return ONCE__UNRESOLVED_FENCE;
    if (w->dry || acknowledged(ask, w->decision))
        return ONCE__RESOLVED;
    entry.attempt = now->record.attempt;
    rc = once__audit_begin(w->audit, &entry, &seq, err);
    if (rc == ONCE_OK)
        (void)!once__audit_end(w->audit, &entry, seq, ONCE__AUDIT_DONE, NULL,
                               err);
    return rc == ONCE_ESTORE ? ONCE_EOPEN : rc;
}

enum MHD_Result console_decision(struct console_request *ask)
{
    struct decision *d = calloc(1, sizeof(*d));
    once_error err = {0, ""};
    once_store_head head;
    once_op now = {0};
    enum MHD_Result result;
    int bad = 0, rc;

    if (d == NULL)
        return MHD_NO;
    rc = read_decision(ask, d, &err);
    memcpy(d->what.name, ask->name, ONCE_NAME_SIZE);
    d->what.fence = console_fence(ask->body, &bad);
    d->what.attempt =
        (uint32_t)console_number(ask->body, "attempt", 1, UINT32_MAX, 0, &bad);
    if (rc == ONCE_OK && (bad || d->what.fence == 0))
        rc = invalid(&err, "fence is the text that the record shows, attempt "
                           "its number");
    if (rc == ONCE_OK && !d->what.dry && !is_confirmed(ask))
        rc = invalid(&err, "confirm: the first eight digits of the name");
    if (rc == ONCE_OK) {
        set_store(ask, &head, &d->what.store, &d->what.incarnation);
        rc = d->action == 0
                 ? acknowledge(ask, d, &now, &err)
                 : once__resolve(ask->store->e, &d->what, &now, &err);
    }
    result = answer(ask, d, rc, &now.record, &err);
    once_op_clear(&now);
    end_decision(d);
    return result;
}

/* ---- Many ---------------------------------------------------------------- */

struct batch {
    json_t *results;
    size_t n;
    int dry;
};

static int note_one(void *user, size_t i, int rc, const once__resolution *what,
                    const once_record *now, const once_error *err)
{
    const struct timespec pause = {0, BATCH_PAUSE_NS};
    struct batch *b = user;
    char hex[CLI_HEX_SIZE];
    const char *verdict = rc == ONCE_ESTORE            ? "unknown"
                          : rc < 0                     ? "error"
                          : rc > ONCE__RESOLVED_BEFORE ? once__resolved_text(rc)
                          : b->dry                     ? "possible"
                                                       : "done";

    (void)now;
    cli_hex(what->name, CLI_DIGITS, hex);
    json_array_append_new(
        b->results,
        json_pack("{s:s, s:s, s:b, s:s?}", "name", hex, "verdict", verdict,
                  "ok", rc == ONCE__RESOLVED || rc == ONCE__RESOLVED_BEFORE,
                  "text",
                  rc < 0                       ? err->text
                  : rc > ONCE__RESOLVED_BEFORE ? text_of(rc)
                  : err->code != 0             ? err->text
                                               : NULL));
    if (!b->dry && i + 1 < b->n)
        (void)nanosleep(&pause, NULL);
    return 0;
}

static int read_item(const json_t *item, once__batch_line *out)
{
    once__prefix name;
    int bad = 0;
    const char *hex = console_text(item, "name", &bad);

    out->fence = console_fence(item, &bad);
    out->attempt =
        (uint32_t)console_number(item, "attempt", 1, UINT32_MAX, 0, &bad);
    if (bad || hex == NULL || out->fence == 0 ||
        once__prefix_read(hex, ONCE__DIGITS, &name, NULL) < 0)
        return ONCE_EINVAL;
    memcpy(out->name, name.bytes, ONCE_NAME_SIZE);
    return ONCE_OK;
}

/* The lines of a batch, ours; NULL: they are not understood. */
static once__batch_line *read_items(const json_t *items)
{
    size_t n = json_array_size(items), i;
    once__batch_line *lines;

    if (n == 0 || n > ONCE__BATCH_MAX)
        return NULL;
    lines = calloc(n, sizeof(*lines));
    for (i = 0; lines != NULL && i < n; i++)
        if (read_item(json_array_get(items, i), &lines[i]) < 0) {
            free(lines);
            return NULL;
        }
    return lines;
}

enum MHD_Result console_batch(struct console_request *ask)
{
    const json_t *items = json_object_get(ask->body, "items");
    struct decision *d = calloc(1, sizeof(*d));
    struct batch b = {json_array(), json_array_size(items), 0};
    once__batch_line *lines = read_items(items);
    once_error err = {0, ""};
    once_store_head head;
    enum MHD_Result result;
    int rc;

    if (d == NULL) {
        result = MHD_NO;
        goto out;
    }
    rc = read_decision(ask, d, &err);
    if (rc == ONCE_OK && (lines == NULL || d->action == 0))
        rc = invalid(&err, "items are 1 to 500 of name, fence and attempt, and "
                           "the action is not acknowledge");
    if (rc < 0) {
        result = console_store_error(ask, rc, &err);
        goto out;
    }
    set_store(ask, &head, &d->what.store, &d->what.incarnation);
    b.dry = d->what.dry;
    rc = once__resolve_batch(ask->store->e, &d->what, lines, b.n, note_one, &b);
    result = console_reply(ask, MHD_HTTP_OK,
                           json_pack("{s:b, s:b, s:O}", "dry", b.dry, "stopped",
                                     rc < 0, "results", b.results));
out:
    json_decref(b.results);
    free(lines);
    end_decision(d);
    return result;
}

/* ---- The body of a result ------------------------------------------------ */

static enum MHD_Result send_body(struct console_request *ask,
                                 const once_record *r)
{
    once__view v;

    once__view_of(r, &v);
    if (v.is == ONCE__VIEW_NONE || !v.kept)
        return console_problem(ask, MHD_HTTP_CONFLICT, "no-body",
                               "There is no body that was kept.");
    return console_reply(
        ask, MHD_HTTP_OK,
        json_pack("{s:o}", "body", console_json_bytes(v.body)));
}

enum MHD_Result console_body(struct console_request *ask)
{
    int bad = 0, rc;
    const char *why = console_text(ask->body, "why", &bad);
    once__audit_entry entry = {.action = "body",
                               .who = &ask->caller.who,
                               .name = ask->name,
                               .why = why};
    once_error err = {0, ""};
    enum MHD_Result result;
    once_store_head head;
    once_op op = {0};
    uint64_t seq;

    if (bad || !once__why_good(why))
        return console_problem(ask, MHD_HTTP_BAD_REQUEST, "invalid",
                               "why: 1 to 512 bytes on one line are needed.");
    if (console_read_record(ask, &op, &result) != ONCE_OK)
        goto out;
    entry.fence = op.record.fence;
    entry.attempt = op.record.attempt;
    set_store(ask, &head, &entry.store, &entry.incarnation);
    rc = once__audit_begin(ask->con->audit, &entry, &seq, &err);
    if (rc < 0) {
        result = console_store_error(ask, ONCE_EOPEN, &err);
        goto out;
    }
    (void)!once__audit_end(ask->con->audit, &entry, seq, ONCE__AUDIT_DONE, NULL,
                           NULL);
    result = send_body(ask, &op.record);
out:
    once_op_clear(&op);
    return result;
}
