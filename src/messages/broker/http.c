/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.c - an HTTP service: a POST for each message, its Idempotency-Key the id.
 *
 *    http://HOST[:PORT]/PATH[?QUERY]      https://...
 *
 * The body is the message's, Content-Type its type. An id of plain characters is
 * the key as it stands, any other one is a String of RFC 8941; to a gateway of
 * ours both forms of a text are the same key. An id always has the same form.
 *
 * The headers of the route are sent along. Those of the message are, too, but
 * for: names that the route has; credentials, which belong to the route
 * (Authorization, Cookie, Proxy-...); what speaks of one connection or is the
 * client's own (Host, Content-Length, Expect, ...); Idempotency-....
 *
 * src/client/judge.c says what an answer means. What it becomes:
 *
 *    no connection, TLS that fails           AWAY      nothing was sent
 *    broken off, no answer in time           SILENT
 *    2xx, 303; response-unavailable          TAKEN
 *    4xx, 301, 307, 308 from the record      FAILED    for good; but 401 and
 *                                                      421 only when replayed
 *    the same without a record:
 *       301 307 308 401 403 404 405 407      REFUSED   about the route and its
 *       410 421 426                                    credentials: may be
 *                                                      repaired
 *       any other; key-reused, key-invalid   REJECTED  about the message
 *    425, 429; 408 by the contract           REFUSED
 *    store-unavailable                       AWAY
 *    in-flight, other 408, 5xx               SILENT    it may take effect
 *    outcome-unknown, other 3xx,
 *       5xx from the record                  UNKNOWN
 *
 * Retry-After counts with all of them. Where libcurl sent a second copy, since a
 * kept connection was dead, the answer is about one copy: what would be provably
 * not taken is NACKED then, or SILENT. For a service that does not recognise a
 * repeat each message has a connection of its own, and there is no second copy.
 *
 * Of an answer are kept: status, headers but for those of one connection and
 * credentials (Set-Cookie, too), the body up to REPLY_MAX bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "messages/broker/reply.h"
#include "messages/broker/share.h"
#include "client/client.h"
#include "base/error.h"

enum {
    TIMEOUT_MS = 10000,
    REPLY_MAX = 1 << 20,
    KEY_SIZE = 2 * (int)ONCE_ID_SIZE + 2, /* each character escaped, quotes */
    HEADERS_MAX = 2 * (int)ONCE_CLIENT_HEADERS_MAX
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

extern const struct once__broker_ops once__broker_http;

struct http {
    struct once__broker base;
    char *url, *ca_file;
    char *text; /* what the headers point into */
    size_t text_size;
    once_client_header headers[ONCE_CLIENT_HEADERS_MAX];
    size_t n_headers;
    uint32_t timeout_ms;
    int single;  /* no second copy of a message */
    int check;   /* connect() tries the service */
    int started; /* libcurl */
    void *easy;  /* keeps the connection */
    struct once__ended ended;
};

/* ---- Headers ------------------------------------------------------------ */

/* Cuts lines "Name: value\n" in place; -1: one is none, or they are over `max`. */
static int cut_lines(char *at, once_client_header *out, size_t max, size_t *n)
{
    while (*at != '\0') {
        char *end = at + strcspn(at, "\n"), *colon = strchr(at, ':');

        if (colon == NULL || colon > end || *n == max)
            return -1;
        *colon = '\0';
        out[*n] = (once_client_header){.name = at, .value = colon + 1};
        out[*n].value += strspn(out[*n].value, " ");
        ++*n;
        at = *end == '\0' ? end : end + 1;
        *end = '\0';
    }
    return 0;
}

static int begins(const char *name, const char *with)
{
    return strncasecmp(name, with, strlen(with)) == 0;
}

/* Whether a header of a message is not to be sent. */
static int is_withheld(const struct http *h, const once_message *m,
                       const char *name)
{
    static const char *const names[] = {
        "Authorization", "Connection", "Content-Length",
        "Cookie",        "Expect",     "Host",
        "Keep-Alive",    "TE",         "Trailer",
        "Upgrade",       "Via",        "Transfer-Encoding",
    };
    size_t i;

    for (i = 0; i < COUNT(names); i++)
        if (strcasecmp(name, names[i]) == 0)
            return 1;
    for (i = 0; i < h->n_headers; i++)
        if (strcasecmp(name, h->headers[i].name) == 0)
            return 1;
    if (strcasecmp(name, "Content-Type") == 0)
        return m->type != NULL && m->type[0] != '\0';
    return begins(name, "Proxy-") || begins(name, "Idempotency-") ||
           begins(name, "Idempotent-") || begins(name, "HTTP2-");
}

/* The headers of the route and the message. `text` is cut up. -1: one of them
 * cannot be sent. */
static int join_headers(const struct http *h, const once_message *m, char *text,
                        once_client_header *out, size_t *n)
{
    size_t i, own;

    memcpy(out, h->headers, h->n_headers * sizeof(*out));
    own = *n = h->n_headers;
    if (m->type != NULL && m->type[0] != '\0') {
        for (i = own = 0; i < *n; i++) /* the message's own type wins */
            if (strcasecmp(out[i].name, "Content-Type") != 0)
                out[own++] = out[i];
        out[own++] =
            (once_client_header){.name = "Content-Type", .value = m->type};
        *n = own;
    }
    if (cut_lines(text, out, HEADERS_MAX, n) < 0)
        return -1;
    for (i = own; i < *n; i++)
        if (!is_withheld(h, m, out[i].name))
            out[own++] = out[i];
    *n = own;
    return 0;
}

static int check(const char *url, const once_client_header *headers, size_t n,
                 once_bytes body, once_error *err)
{
    once_client_request r;

    memset(&r, 0, sizeof(r));
    r.size = sizeof(r);
    r.order = (once_bytes){"1", 1};
    r.method = "POST";
    r.url = url;
    r.headers = headers;
    r.n_headers = n;
    r.body = body;
    return once__request_check(&r, err);
}

/* ---- Opening ------------------------------------------------------------ */

static void http_close(struct once__broker *b)
{
    struct http *h = (struct http *)b;

    if (h == NULL)
        return;
    once__transfer_drop(h->easy);
    if (h->started)
        once__transfer_stop();
    once__ended_clear(&h->ended);
    free(h->url);
    free(h->ca_file);
    if (h->text != NULL)
        explicit_bzero(h->text, h->text_size);
    free(h->text);
    free(h);
}

static int read_options(struct http *h, const char *url,
                        const struct once__broker_options *o, once_error *err)
{
    const once_bytes none = {"", 0};

    h->timeout_ms = o->timeout_ms == 0 ? TIMEOUT_MS : o->timeout_ms;
    h->single = o->hold;
    h->check = o->check;
    h->url = strdup(url);
    h->ca_file = o->ca_file == NULL ? NULL : strdup(o->ca_file);
    h->text = strdup(o->headers == NULL ? "" : o->headers);
    h->started = once__transfer_start();
    h->easy = h->started ? once__transfer_handle() : NULL;
    if (h->text != NULL)
        h->text_size = strlen(h->text);
    if (h->url == NULL || h->text == NULL || h->easy == NULL ||
        (o->ca_file != NULL && h->ca_file == NULL))
        return once__fail(err, ONCE_ENOMEM, "http: out of memory");
    if (check(url, NULL, 0, none, err) != ONCE_OK)
        return ONCE_EURL;
    if (cut_lines(h->text, h->headers, COUNT(h->headers), &h->n_headers) < 0)
        return once__fail(err, ONCE_EINVAL,
                          "headers: not lines of name and value, or over %zu",
                          COUNT(h->headers));
    return check(url, h->headers, h->n_headers, none, err);
}

static int http_open(const char *url, const struct once__broker_options *o,
                     struct once__broker **out, once_error *err)
{
    struct http *h = calloc(1, sizeof(*h));
    int rc;

    if (h == NULL)
        return once__fail(err, ONCE_ENOMEM, "http: out of memory");
    h->base.ops = &once__broker_http;
    rc = read_options(h, url, o, err);
    if (rc == ONCE_OK)
        *out = &h->base;
    else
        http_close(&h->base);
    return rc;
}

/* ---- What is kept of an answer ------------------------------------------ */

/* The answer as bytes on the heap, which `*memory` is; empty if there is no
 * memory, or what came cannot be kept. */
static once_bytes keep_answer(const struct once__transfer *t, void **memory)
{
    once_client_header *headers = NULL;
    once_bytes kept = {NULL, 0};
    size_t n = 0;

    if (once__headers_decode(t->answer_headers, &headers, &n) == ONCE_OK)
        kept = once__broker_reply(t->answer.status, headers, n,
                                  t->too_long ? NULL : &t->answer_body);
    *memory = (void *)(uintptr_t)kept.data;
    free(headers);
    return kept;
}

/* ---- What it means ------------------------------------------------------ */

/* A refusal that is about the URL or the credentials, and not the message. */
static int is_about_route(int status)
{
    static const int statuses[] = {301, 307, 308, 401, 403, 404,
                                   405, 407, 410, 421, 426};
    size_t i;

    for (i = 0; i < COUNT(statuses); i++)
        if (statuses[i] == status)
            return 1;
    return 0;
}

static int again(const struct once__transfer *t,
                 const struct once__judgement *j)
{
    if (!j->harmless)
        return ONCE__END_SILENT;
    if (t->answer.code == ONCE__CODE_UNAVAILABLE)
        return t->copied ? ONCE__END_SILENT : ONCE__END_AWAY;
    return t->copied ? ONCE__END_NACKED : ONCE__END_REFUSED;
}

static int end_of(const struct once__transfer *t, const char **why)
{
    struct once__judgement j;

    if (!t->whole) {
        *why = t->said;
        return t->begun ? ONCE__END_SILENT : ONCE__END_AWAY;
    }
    j = once__client_judge(&t->answer);
    switch (j.next) {
    case ONCE__NEXT_DONE:
        return ONCE__END_TAKEN;
    case ONCE__NEXT_REFUSED:
        *why = "the answer in the record is a refusal";
        return ONCE__END_FAILED;
    case ONCE__NEXT_REJECTED:
        *why = "the answer is a refusal";
        if (t->copied)
            return ONCE__END_NACKED;
        return is_about_route(t->answer.status) ? ONCE__END_REFUSED
                                                : ONCE__END_REJECTED;
    case ONCE__NEXT_AGAIN:
        *why = j.harmless  ? "the answer is: not now"
               : t->single ? "this does not say whether the message took "
                             "effect; an operator decides about it"
                           : "this does not say whether the message took "
                             "effect; it is sent again with the same key";
        return again(t, &j);
    default:
        *why = "the answer is: it is unknown whether it took effect";
        return ONCE__END_UNKNOWN;
    }
}

/* ---- Sending ------------------------------------------------------------ */

/* A bare key, or a String of RFC 8941 if one of its characters needs that. */
static void write_key(const char *id, char out[KEY_SIZE])
{
    int bare = strpbrk(id, "\",;\\") == NULL;
    size_t n = 0;

    if (!bare)
        out[n++] = '"';
    for (; *id != '\0'; id++) {
        if (*id == '"' || *id == '\\')
            out[n++] = '\\';
        out[n++] = *id;
    }
    if (!bare)
        out[n++] = '"';
    out[n] = '\0';
}

static int begin(void *user)
{
    (void)user; /* the claim of the row has counted this attempt */
    return 0;
}

static void run(struct http *h, const once_message *m,
                const once_client_header *headers, size_t n,
                struct once__proof *p, void **memory)
{
    char key[KEY_SIZE];
    struct once__transfer t = {
        .method = "POST",
        .url = h->url,
        .key = key,
        .ca_file = h->ca_file,
        .headers = headers,
        .n_headers = n,
        .body = m->body,
        .wall_ms = (uint64_t)time(NULL) * 1000,
        .connect_ms = h->timeout_ms,
        .attempt_ms = h->timeout_ms,
        .response_max = REPLY_MAX,
        .single = h->single,
        .begin = begin,
    };

    write_key(m->id, key);
    if (once__transfer_run(h->easy, &t, NULL) != ONCE_OK) {
        p->end = ONCE__END_UNSENT;
    } else {
        p->end = end_of(&t, &p->why);
        if (t.whole) {
            p->status = t.answer.status;
            p->retry_ms = t.answer.has_retry ? t.answer.retry_ms : 0;
            p->reply = keep_answer(&t, memory);
        }
    }
    once__transfer_clear(&t);
}

static int http_send(struct once__broker *b, const once_message *m,
                     uint64_t tag, once_error *err)
{
    struct http *h = (struct http *)b;
    struct once__proof p = {.tag = tag, .end = ONCE__END_UNSENT};
    once_client_header *headers = calloc(HEADERS_MAX + 1, sizeof(*headers));
    char *text = strdup(m->headers == NULL ? "" : m->headers);
    void *memory = NULL;
    size_t n = 0;
    int rc = ONCE_OK;

    if (!once__ended_reserve(&h->ended, 1)) {
        rc = once__fail(err, ONCE_ENOMEM, "http: out of memory");
        goto out;
    }
    if (headers != NULL && text != NULL) {
        if (join_headers(h, m, text, headers, &n) < 0 ||
            check(h->url, headers, n, m->body, NULL) != ONCE_OK) {
            p.end = ONCE__END_REJECTED;
            p.why = "its headers or its body cannot be sent";
        } else {
            run(h, m, headers, n, &p, &memory);
        }
    }
    once__ended_add(&h->ended, &p, memory);
out:
    free(headers);
    free(text);
    return rc;
}

/* Each message has a connection of its own choice, so there is nothing to do but
 * for a check. */
static int http_connect(struct once__broker *b, once_error *err)
{
    const struct http *h = (const struct http *)b;
    const char *why =
        h->check ? once__transfer_reach(h->url, h->ca_file, h->timeout_ms)
                 : NULL;

    return why == NULL ? ONCE_OK
                       : once__fail(err, ONCE_EAWAY,
                                    "http: the service cannot be reached: %s. "
                                    "Check that it runs, and the URL",
                                    why);
}

static size_t http_proofs(struct once__broker *b, uint32_t wait_ms,
                          struct once__proof *out, size_t max)
{
    (void)wait_ms;
    return once__ended_take(&((struct http *)b)->ended, out, max);
}

const struct once__broker_ops once__broker_http = {
    .scheme = "http",
    .knows_ids = 1,
    .at_once = 1,
    .open = http_open,
    .close = http_close,
    .connect = http_connect,
    .send = http_send,
    .proofs = http_proofs,
    .abandon = once__broker_no_abandon,
};
