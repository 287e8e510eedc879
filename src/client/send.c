/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send.c - one send: attempt after attempt, until the outcome is known or the
 * deadline has passed.
 *
 *                     +-----------------------------------------+
 *                     v                                         | AGAIN
 *    keep ----> circuit, pause ----> connection ----> mark ----> send, judge
 *     |               |                   |            |            |
 *     | kept answer   | deadline          | none:      | finished   | DONE,
 *     v               v                   | AGAIN      | by others  | REFUSED,
 *    end             end                  +-->         v            | REJECTED,
 *                                                     end           v UNKNOWN
 *                                                                  end
 *
 * It keeps two promises. A byte of an order leaves only after key, request and
 * the attempt itself are durable. And "not done" is said only while no attempt
 * of anybody is in doubt, or if the record says so.
 *
 * Before an order is called in doubt, or too old to be sent, the gateway's
 * lookup is asked, where one is known: it tells what is recorded, and changes
 * nothing.
 */
#include "client/handle.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/backoff.h"
#include "base/error.h"

/* One call of once_client_send(). */
struct send {
    once_client *c;
    const once_client_request *request;
    struct once__order order;
    once_client_header *headers;
    size_t n_headers;
    char host[ONCE__AUTHORITY_MAX];
    uint64_t end_ms;
    uint64_t reserve_ms; /* of it, for the lookup and what follows     */
    char *lookup;        /* its URL, or NULL                           */
    int looked;
    int recorded; /* enum once__code of what it has told, or NONE */
    int recorded_status;
    uint32_t tries;     /* attempts, also those without a connection   */
    uint32_t sent;      /* those that were marked                      */
    uint32_t own_doubt; /* of these, unaccounted for                   */
    uint32_t doubt;     /* of everybody's, as far as we have seen      */
    int mark_rc;
    once_error mark_err;
    struct once__transfer t;
    struct once__judgement j;
    char text[128];
};

static uint64_t now(const once_client *c)
{
    return c->options.clock(c->options.user);
}

static uint64_t wall(const once_client *c)
{
    return c->options.wall(c->options.user);
}

/* ---- Results ----------------------------------------------------------- */

void once_client_result_clear(once_client_result *result)
{
    size_t size;

    if (result == NULL)
        return;
    size = result->size;
    free(result->memory);
    memset(result, 0, sizeof(*result));
    result->size = size;
}

/* One block: the array, the bytes of the headers, the body, a NUL. */
static int fill(once_client_result *r, once_bytes headers, once_bytes body)
{
    once_client_header *decoded = NULL;
    size_t n = 0, i, array;
    char *block, *bytes;
    int rc = once__headers_decode(headers, &decoded, &n);

    if (rc != ONCE_OK)
        return rc;
    array = n * sizeof(*decoded);
    block = malloc(array + headers.size + body.size + 1);
    if (block == NULL) {
        free(decoded);
        return ONCE_ENOMEM;
    }
    bytes = block + array;
    if (headers.size > 0)
        memcpy(bytes, headers.data, headers.size);
    for (i = 0; i < n; i++) {
        decoded[i].name =
            bytes + (decoded[i].name - (const char *)headers.data);
        decoded[i].value =
            bytes + (decoded[i].value - (const char *)headers.data);
    }
    if (array > 0)
        memcpy(block, decoded, array);
    free(decoded);
    bytes += headers.size;
    if (body.size > 0)
        memcpy(bytes, body.data, body.size);
    bytes[body.size] = '\0';
    r->headers = (const once_client_header *)(void *)block;
    r->n_headers = n;
    r->body.data = bytes;
    r->body.size = body.size;
    r->memory = block;
    return ONCE_OK;
}

/* Without memory for the answer the outcome is still reported. */
static void fill_or_say(once_client_result *r, once_bytes headers,
                        once_bytes body)
{
    if (fill(r, headers, body) == ONCE_OK)
        return;
    if (r->outcome == ONCE_CLIENT_DONE)
        r->reason = ONCE_CLIENT_ANSWER_LOST;
    (void)snprintf(r->text, sizeof(r->text), "no memory for the answer");
}

static int outcome_of(const struct once__order *o)
{
    if (o->state == ONCE_CLIENT_FINISHED)
        return ONCE_CLIENT_DONE;
    return o->state == ONCE_CLIENT_REFUSED ? ONCE_CLIENT_NOT_DONE
                                           : ONCE_CLIENT_UNKNOWN;
}

static int is_final(int state)
{
    return state == ONCE_CLIENT_FINISHED || state == ONCE_CLIENT_REFUSED;
}

static void from_file(const struct once__order *o, once_client_result *r)
{
    r->outcome = outcome_of(o);
    r->reason = o->reason;
    r->status = o->status;
    r->replayed = o->replayed;
    r->kept = 1;
    r->final = 1;
    r->doubt = 0;
    (void)snprintf(r->text, sizeof(r->text), "kept from an earlier send");
    fill_or_say(r, o->answer_headers, o->answer_body);
}

/* ---- How a send ends --------------------------------------------------- */

/*
 * Records how the send ended, in the file and in the result. When `state` is
 * PREPARED nothing is written: the order is in that state already.
 */
static void end(struct send *s, int outcome, int reason, int state,
                once_client_result *r)
{
    struct once__order o = s->order;
    once_error ignored = {0, ""};
    int rc = ONCE_OK;

    o.state = state;
    o.reason = reason;
    o.status = s->t.whole ? s->t.answer.status : s->recorded_status;
    o.replayed = s->t.whole && s->t.answer.reported == ONCE__REPORTED_REPLAYED;
    o.answer_headers = s->t.whole ? s->t.answer_headers : (once_bytes){"", 0};
    o.answer_body = s->t.whole ? s->t.answer_body : (once_bytes){"", 0};
    if (state != ONCE_CLIENT_PREPARED)
        rc = once__orders_end(s->c->orders, &o, wall(s->c), &ignored);
    r->unkept = rc < 0;
    r->outcome = outcome;
    r->reason = reason;
    r->status = o.status;
    r->replayed = o.replayed;
    r->final = is_final(state);
    r->doubt = r->final ? 0 : s->doubt;
    r->wait_ms = s->t.whole ? s->t.answer.retry_ms : 0;
    (void)snprintf(r->text, sizeof(r->text), "%s", s->text);
    fill_or_say(r, o.answer_headers, o.answer_body);
}

/* 1: a lookup has told the outcome, as `already-done` would have. */
static int end_as_recorded(struct send *s, once_client_result *r)
{
    static const struct {
        int recorded, outcome, reason, state;
    } rows[] = {
        {ONCE__CODE_ANSWER_LOST, ONCE_CLIENT_DONE, ONCE_CLIENT_ANSWER_LOST,
         ONCE_CLIENT_FINISHED},
        {ONCE__CODE_REFUSED, ONCE_CLIENT_NOT_DONE, ONCE_CLIENT_ANSWERED,
         ONCE_CLIENT_REFUSED},
        {ONCE__CODE_FAILED, ONCE_CLIENT_UNKNOWN, ONCE_CLIENT_FAILED,
         ONCE_CLIENT_OPEN},
    };
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].recorded != s->recorded)
            continue;
        once__transfer_clear(&s->t); /* what it has is another answer */
        s->t.whole = 0;
        (void)snprintf(s->text, sizeof(s->text), "recorded: %d",
                       s->recorded_status);
        end(s, rows[i].outcome, rows[i].reason, rows[i].state, r);
        return 1;
    }
    return 0;
}

/*
 * Ends a send without an answer: NOT_DONE if no attempt is in doubt. Another
 * process may have sent the order meanwhile, so the file is read again. If it
 * cannot be read our own attempts decide: UNKNOWN if one is in doubt, else the
 * error of the file.
 */
static int give_up(struct send *s, int reason, once_client_result *r,
                   once_error *err)
{
    struct once__order o = {0};
    int rc = once__orders_load(s->c->orders, s->order.id, err, &o);

    if (rc == ONCE_OK && is_final(o.state)) {
        from_file(&o, r);
        goto out;
    }
    if (rc == ONCE_FREE)
        rc = s->own_doubt > 0
                 ? ONCE_OK
                 : once__fail(err, ONCE_EINVAL,
                              "order: was forgotten while it was sent");
    else if (rc == ONCE_OK)
        s->doubt = o.doubt;
    if (rc != ONCE_OK && s->own_doubt == 0)
        goto out;
    if (rc == ONCE_OK && s->doubt == 0) {
        if (reason == ONCE_CLIENT_TOO_OLD)
            reason = ONCE_CLIENT_NOT_SENT;
        end(s, ONCE_CLIENT_NOT_DONE, reason, ONCE_CLIENT_PREPARED, r);
        goto out;
    }
    if (reason != ONCE_CLIENT_TOO_OLD)
        reason = ONCE_CLIENT_IN_DOUBT;
    rc = ONCE_OK;
    if (end_as_recorded(s, r))
        goto out;
    end(s, ONCE_CLIENT_UNKNOWN, reason, ONCE_CLIENT_OPEN, r);
out:
    once__order_clear(&o);
    return rc;
}

/* Until when is it attempted? */
static uint64_t attempts_end(const struct send *s)
{
    return s->lookup != NULL && !s->looked ? s->end_ms - s->reserve_ms
                                           : s->end_ms;
}

/* ---- One attempt ------------------------------------------------------- */

static void *take_handle(once_client *c)
{
    void *easy = NULL;

    (void)pthread_mutex_lock(&c->lock);
    if (c->n_idle > 0)
        easy = c->idle[--c->n_idle];
    (void)pthread_mutex_unlock(&c->lock);
    return easy != NULL ? easy : once__transfer_handle();
}

static void put_handle(once_client *c, void *easy)
{
    (void)pthread_mutex_lock(&c->lock);
    if (c->n_idle < ONCE__IDLE_MAX) {
        c->idle[c->n_idle++] = easy;
        easy = NULL;
    }
    (void)pthread_mutex_unlock(&c->lock);
    once__transfer_drop(easy);
}

static uint64_t oldest(const once_client *c)
{
    uint64_t at = wall(c), horizon = c->options.horizon_ms;

    return at > horizon ? at - horizon : 0;
}

/* A connection is there: from here on it may take effect. */
static int begin(void *user)
{
    struct send *s = user;

    s->mark_rc = once__orders_mark(s->c->orders, s->order.id, wall(s->c),
                                   oldest(s->c), &s->doubt, &s->mark_err);
    if (s->mark_rc != ONCE_OK)
        return -1;
    s->own_doubt++;
    s->sent++;
    return 0;
}

static void report_health(struct send *s, int unhealthy)
{
    (void)pthread_mutex_lock(&s->c->lock);
    once__breaker_report(&s->c->breaker, s->host, unhealthy, now(s->c));
    (void)pthread_mutex_unlock(&s->c->lock);
}

static void describe(struct send *s)
{
    const struct once__transfer *t = &s->t;

    if (t->whole)
        (void)snprintf(s->text, sizeof(s->text), "answered %d%s",
                       t->answer.status,
                       t->too_long ? ", longer than response_max" : "");
    else
        (void)snprintf(s->text, sizeof(s->text), "%s: %s",
                       t->begun ? "broken off" : "not sent", t->said);
}

/* This attempt did nothing. If the file fails, the count of doubt stays too
 * high, which is the safe side. */
static void account(struct send *s)
{
    once_error ignored = {0, ""};

    if (once__orders_unmark(s->c->orders, s->order.id, wall(s->c), &s->doubt,
                            &ignored) != ONCE_OK)
        return;
    assert(s->own_doubt > 0);
    s->own_doubt--;
}

/* Where a 202 says that the order may be asked for, on its own host: a place on
 * another one must not get the key. Without memory there is no lookup. */
static void note_location(struct send *s)
{
    once_bytes path = s->t.location;
    const char *text = path.data;
    char *url = NULL;

    if (s->lookup != NULL || !s->t.whole || s->t.answer.status != 202 ||
        s->t.answer.reported != ONCE__REPORTED_IN_FLIGHT || path.size == 0 ||
        text[0] != '/' || (path.size > 1 && text[1] == '/') ||
        asprintf(&url, "%s%.*s", s->host, (int)path.size, text) < 0)
        return;
    if (once__url_check("lookup", url, NULL) == ONCE_OK)
        s->lookup = url;
    else
        free(url);
}

static int attempt(struct send *s, once_error *err)
{
    const once_client_options *o = &s->c->options;
    uint64_t at = now(s->c);
    /* To libcurl a time of 0 is no limit. */
    uint64_t end_ms = attempts_end(s), left = at < end_ms ? end_ms - at : 1;
    int resumed = s->request->method == NULL;
    void *easy = take_handle(s->c);
    int rc;

    if (easy == NULL)
        return once__fail(err, ONCE_ENOMEM, "client: out of memory");
    once__transfer_clear(&s->t);
    s->t = (struct once__transfer){
        .method = s->order.method,
        .url = s->order.url,
        .key = s->order.key,
        .ca_file = s->c->ca_file,
        .headers = s->headers,
        .n_headers = s->n_headers,
        .body = resumed ? s->order.body : s->request->body,
        .wall_ms = wall(s->c),
        .connect_ms = left < o->connect_ms ? left : o->connect_ms,
        .attempt_ms = left < o->attempt_ms ? left : o->attempt_ms,
        .response_max = o->response_max,
        .begin = begin,
        .user = s,
    };
    s->mark_rc = ONCE_OK;
    s->tries++;
    rc = once__transfer_run(easy, &s->t, err);
    put_handle(s->c, easy);
    if (rc != ONCE_OK || s->mark_rc != ONCE_OK)
        return rc;
    describe(s);
    s->j =
        (struct once__judgement){ONCE__NEXT_AGAIN, ONCE_CLIENT_IN_DOUBT, 0, 1};
    if (s->t.whole)
        s->j = once__client_judge(&s->t.answer);
    else if (s->t.hopeless)
        s->j.next = ONCE__NEXT_REJECTED;
    note_location(s);
    report_health(s, s->j.unhealthy);
    if (s->t.begun && s->j.harmless && !s->t.copied)
        account(s);
    return ONCE_OK;
}

/* ---- Between attempts -------------------------------------------------- */

/* Waits. 0, or -1 if the deadline comes first, or if `pause` says to stop. */
static int wait_ms(struct send *s, uint64_t ms)
{
    const once_client_options *o = &s->c->options;
    uint64_t at = now(s->c), end_ms = attempts_end(s);

    if (at >= end_ms || ms >= end_ms - at)
        return -1;
    return ms > 0 && o->pause(o->user, ms) != 0 ? -1 : 0;
}

/* What the server asks for, and a random part of a limit that doubles. Close to
 * the deadline the random part is shortened, so that one more attempt fits. */
static int pause_before(struct send *s, uint32_t repetition)
{
    const once_client_options *o = &s->c->options;
    uint64_t least = s->t.whole ? s->t.answer.retry_ms : 0;
    uint64_t most = once__backoff(o->backoff_ms, o->backoff_max_ms, repetition);
    uint64_t at = now(s->c), end_ms = attempts_end(s);
    uint64_t left = at < end_ms ? end_ms - at : 0;
    uint64_t random = 0;

    if (least >= left)
        return -1;
    if (most > (left - least) / 2)
        most = (left - least) / 2;
    if (least + most == 0)
        return -1;
    o->random(o->user, &random, sizeof(random));
    return wait_ms(s, least + once__spread(most, random));
}

static int wait_for_circuit(struct send *s)
{
    for (;;) {
        uint64_t ms;

        (void)pthread_mutex_lock(&s->c->lock);
        ms = once__breaker_ask(&s->c->breaker, s->host, now(s->c));
        (void)pthread_mutex_unlock(&s->c->lock);
        if (ms == 0)
            return wait_ms(s, 0);
        if (wait_ms(s, ms) < 0) {
            if (s->tries == 0)
                (void)snprintf(
                    s->text, sizeof(s->text),
                    "the host keeps failing and is not asked for a while");
            return -1;
        }
    }
}

/* ---- What the gateway knows --------------------------------------------- */

/* The order's headers, but for those of its body. */
static once_client_header *question_headers(const struct send *s, size_t *n)
{
    once_client_header *out = calloc(s->n_headers + 1, sizeof(*out));
    size_t i;

    *n = 0;
    for (i = 0; out != NULL && i < s->n_headers; i++)
        if (strncasecmp(s->headers[i].name, "Content-", 8) != 0)
            out[(*n)++] = s->headers[i];
    return out;
}

/* Asks the lookup, once in a send, if any attempt is in doubt. 1: an outcome is
 * recorded. */
static int look_up(struct send *s)
{
    const once_client_options *o = &s->c->options;
    uint64_t at = now(s->c), left = at < s->end_ms ? s->end_ms - at : 1;
    struct once__transfer t = {.url = s->lookup,
                               .key = s->order.key,
                               .ca_file = s->c->ca_file,
                               .connect_ms = (left + 1) / 2,
                               .attempt_ms = (left + 1) / 2,
                               .response_max = o->response_max};
    once_client_header *headers;
    once_error ignored = {0, ""};
    int state = ONCE_CLIENT_TOLD_NOTHING;
    void *easy;

    if (s->lookup == NULL || s->looked || s->doubt == 0)
        return 0;
    s->looked = 1;
    headers = question_headers(s, &t.n_headers);
    easy = take_handle(s->c);
    t.headers = headers;
    if (headers != NULL && easy != NULL &&
        once__client_lookup(easy, &t, &s->recorded_status, &state, &ignored) ==
            ONCE_OK &&
        state == ONCE_CLIENT_TOLD_COMPLETED)
        s->recorded = once__client_recorded(s->recorded_status);
    once__transfer_clear(&t);
    put_handle(s->c, easy);
    free(headers);
    return s->recorded != ONCE__CODE_NONE && s->recorded != ONCE__CODE_UNKNOWN;
}

/* The attempt could not be noted in the file: an error, or another process has
 * finished the order. */
static int not_marked(struct send *s, once_client_result *r, once_error *err)
{
    if (s->mark_rc == ONCE_REFUSED) {
        (void)snprintf(s->text, sizeof(s->text), "not sent again");
        (void)look_up(s);
        return give_up(s, ONCE_CLIENT_TOO_OLD, r, err);
    }
    if (s->own_doubt > 0) {
        end(s, ONCE_CLIENT_UNKNOWN, ONCE_CLIENT_IN_DOUBT, ONCE_CLIENT_OPEN, r);
        r->unkept = 1;
        return ONCE_OK;
    }
    if (err != NULL)
        *err = s->mark_err;
    return s->mark_rc;
}

static int conclude(struct send *s, once_client_result *r, once_error *err)
{
    switch (s->j.next) {
    case ONCE__NEXT_DONE:
        end(s, ONCE_CLIENT_DONE,
            s->t.too_long ? ONCE_CLIENT_ANSWER_LOST : s->j.reason,
            ONCE_CLIENT_FINISHED, r);
        return ONCE_OK;
    case ONCE__NEXT_REFUSED:
        end(s, ONCE_CLIENT_NOT_DONE, s->j.reason, ONCE_CLIENT_REFUSED, r);
        return ONCE_OK;
    case ONCE__NEXT_REJECTED:
        return give_up(s,
                       s->t.whole ? ONCE_CLIENT_REJECTED : ONCE_CLIENT_NOT_SENT,
                       r, err);
    default:
        assert(s->j.next == ONCE__NEXT_UNKNOWN);
        end(s, ONCE_CLIENT_UNKNOWN, s->j.reason, ONCE_CLIENT_OPEN, r);
        return ONCE_OK;
    }
}

static int pursue(struct send *s, once_client_result *r, once_error *err)
{
    uint32_t repetition = 0;
    int rc;

    for (;;) {
        if (wait_for_circuit(s) < 0)
            break;
        rc = attempt(s, err);
        /* Without memory nothing leaves, but earlier attempts did. */
        if (rc != ONCE_OK && s->own_doubt > 0)
            break;
        if (rc != ONCE_OK)
            return rc;
        if (s->mark_rc != ONCE_OK)
            return not_marked(s, r, err);
        if (s->j.next != ONCE__NEXT_AGAIN)
            return conclude(s, r, err);
        if (s->tries >= s->c->options.attempts_max ||
            pause_before(s, ++repetition) < 0)
            break;
    }
    /* One attempt more for the recorded answer; if it does not get through, the
     * recorded status has to do. */
    if (look_up(s) && attempt(s, err) == ONCE_OK && s->mark_rc == ONCE_OK &&
        s->t.whole && s->j.next != ONCE__NEXT_AGAIN)
        return conclude(s, r, err);
    return give_up(s, ONCE_CLIENT_NOT_SENT, r, err);
}

/* ---- The call ---------------------------------------------------------- */

static int given(const once_client_request *r, const char *name)
{
    size_t i;

    for (i = 0; i < r->n_headers; i++)
        if (strcasecmp(r->headers[i].name, name) == 0)
            return 1;
    return 0;
}

/* The caller's headers, and where the order is resumed those that were kept
 * and are not given again. */
static int join_headers(struct send *s)
{
    const once_client_request *r = s->request;
    once_client_header *kept = NULL;
    size_t n = 0, i;
    int rc = ONCE_OK;

    if (r->method == NULL)
        rc = once__headers_decode(s->order.headers, &kept, &n);
    if (rc != ONCE_OK)
        return rc;
    s->headers = calloc(r->n_headers + n + 1, sizeof(*s->headers));
    if (s->headers == NULL) {
        free(kept);
        return ONCE_ENOMEM;
    }
    for (i = 0; i < r->n_headers; i++)
        s->headers[s->n_headers++] = r->headers[i];
    for (i = 0; i < n; i++)
        if (!given(r, kept[i].name))
            s->headers[s->n_headers++] = kept[i];
    free(kept);
    return ONCE_OK;
}

static int keep(struct send *s, once_error *err)
{
    char key[ONCE__KEY_SIZE];
    struct once__ask ask = {0};
    int rc = once__request_check(s->request, err);

    if (rc == ONCE_OK)
        rc = once__client_mint(key, err);
    if (rc == ONCE_OK)
        rc = once__request_ask(s->request, &ask, err);
    if (rc != ONCE_OK)
        return rc;
    rc = once__orders_keep(s->c->orders, &ask, key, wall(s->c), err, &s->order);
    if (rc == ONCE_FREE)
        rc = once__fail(err, ONCE_EINVAL,
                        "order: is not kept, so method and url are needed");
    free((void *)(uintptr_t)ask.headers.data);
    return rc;
}

/* In doubt since before the horizon: the gateway may have forgotten the key,
 * and would take it for a new one. */
static int is_too_old(const struct send *s)
{
    return s->order.doubt > 0 && s->order.sent_ms < oldest(s->c);
}

static void set_times(struct send *s)
{
    const once_client_options *o = &s->c->options;
    uint32_t all = s->request->deadline_ms;

    all = all != 0 ? all : o->deadline_ms;
    s->end_ms = now(s->c) + all;
    s->reserve_ms = all / 4 < o->connect_ms ? all / 4 : o->connect_ms;
}

static int go(struct send *s, once_client_result *r, once_error *err)
{
    int rc;

    if (once__client_hash(s->order.key, r->key_hash) != ONCE_OK)
        return once__fail(err, ONCE_ENOMEM, "client: out of memory");
    if (is_final(s->order.state)) {
        from_file(&s->order, r);
        return ONCE_OK;
    }
    s->doubt = s->order.doubt;
    rc = join_headers(s);
    if (rc != ONCE_OK)
        return once__fail(err, rc, "client: %s",
                          rc == ONCE_ENOMEM ? "out of memory"
                                            : "the kept headers are corrupt");
    set_times(s);
    once__client_authority(s->order.url, s->host);
    if (is_too_old(s)) {
        (void)snprintf(s->text, sizeof(s->text), "not sent again");
        (void)look_up(s);
        return give_up(s, ONCE_CLIENT_TOO_OLD, r, err);
    }
    rc = pursue(s, r, err);
    r->attempts = s->sent;
    return rc;
}

int once_client_send(once_client *c, const once_client_request *request,
                     once_client_result *result, once_error *err)
{
    once_client_result own = ONCE_CLIENT_RESULT_INIT;
    once_client_request r = ONCE_CLIENT_REQUEST_INIT;
    struct send s = {.c = c, .request = &r};
    int rc;

    if (request->size < sizeof(size_t) || request->size > sizeof(r) ||
        (result != NULL && result->size != sizeof(own)))
        return once__fail(err, ONCE_EINVAL,
                          "request or result: size is not set, or of another "
                          "header");
    memcpy(&r, request, request->size);
    rc = keep(&s, err);
    if (rc == ONCE_OK && r.lookup != NULL) {
        s.lookup = strdup(r.lookup);
        if (s.lookup == NULL)
            rc = once__fail(err, ONCE_ENOMEM, "client: out of memory");
    }
    if (rc == ONCE_MISMATCH) {
        own.outcome = ONCE_CLIENT_MISMATCH;
        own.reason = ONCE_CLIENT_CHANGED;
        (void)snprintf(own.text, sizeof(own.text), "nothing was sent");
        rc = once__client_hash(s.order.key, own.key_hash);
    } else if (rc == ONCE_OK) {
        rc = go(&s, &own, err);
    }
    once__transfer_clear(&s.t);
    once__order_clear(&s.order);
    free(s.headers);
    free(s.lookup);
    if (rc != ONCE_OK || result == NULL) {
        int outcome = own.outcome;

        once_client_result_clear(&own);
        if (result != NULL)
            *result = own;
        return rc != ONCE_OK ? rc : outcome;
    }
    *result = own;
    return own.outcome;
}
