/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply.c - what is sent and what is recorded (docs/http.md, 2, 4 and 5).
 *
 * A reply owns copies of all that it shows: the handler's memory goes when the
 * handler returns, and the store answers later. It refuses to pass on headers
 * that belong to the connection or to Once.
 */
#include "calls/guard/guard.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char expose_name[] = "Access-Control-Expose-Headers";
static const char expose_ours[] = "Idempotent-Replayed, Idempotency-Status";

enum {
    OURS = 4,       /* header lines that we add at most   */
    OURS_TEXT = 256 /* and their bytes, with all their NUL */
};

/* ---- Building ---------------------------------------------------------- */

void once__reply_clear(struct once__reply *r)
{
    free(r->headers);
    free(r->text);
    free(r->body);
    memset(r, 0, sizeof(*r));
}

/* Room for `n` headers with `bytes` in their names and values, and for ours. */
static int begin(struct once__reply *r, int status, size_t n, size_t bytes)
{
    once__reply_clear(r);
    r->max = bytes + 2 * n + OURS_TEXT;
    r->headers = calloc(n + OURS, sizeof(*r->headers));
    r->text = malloc(r->max);
    if (r->headers == NULL || r->text == NULL) {
        once__reply_clear(r);
        return ONCE_ENOMEM;
    }
    r->answer.size = sizeof(r->answer);
    r->answer.status = status;
    r->answer.headers = r->headers;
    return ONCE_OK;
}

static const char *keep(struct once__reply *r, once_bytes b)
{
    char *at = r->text + r->used;

    assert(b.size < r->max - r->used);
    if (b.size > 0)
        memcpy(at, b.data, b.size);
    at[b.size] = '\0';
    r->used += b.size + 1;
    return at;
}

static void add(struct once__reply *r, once_bytes name, once_bytes value)
{
    once_http_header *h = &r->headers[r->answer.n++];

    h->name = keep(r, name);
    h->value = keep(r, value);
}

static void add_text(struct once__reply *r, const char *name, const char *value)
{
    add(r, once__text(name), once__text(value));
}

/* Scripts of another origin see only the headers that are named here. */
static void expose(struct once__reply *r)
{
    size_t i;

    for (i = 0; i < r->answer.n; i++) {
        once_http_header *h = &r->headers[i];
        int n;

        if (!once__same_name(once__text(h->name), once__text(expose_name)))
            continue;
        n = snprintf(r->text + r->used, r->max - r->used, "%s, %s", h->value,
                     expose_ours);
        assert(n > 0 && (size_t)n < r->max - r->used);
        h->value = r->text + r->used;
        r->used += (size_t)n + 1;
        return;
    }
    add_text(r, expose_name, expose_ours);
}

static void finish(struct once__reply *r, const once__http_decision *d,
                   int exposed)
{
    if (!d->marked)
        return;
    add_text(r, "Idempotency-Status", once__status_text(d->header));
    if (exposed)
        expose(r);
}

/* ---- Our own answers --------------------------------------------------- */

/* With room for a body of `max` bytes and for our headers. */
static int begin_document(struct once__reply *r, const once__http_decision *d,
                          const char *type, size_t max, const char *location)
{
    size_t more = location != NULL ? strlen(location) : 0;
    char after[16];

    if (begin(r, d->status, OURS + 2, OURS_TEXT + more) != ONCE_OK)
        return ONCE_ENOMEM;
    r->body = malloc(max);
    if (r->body == NULL) {
        once__reply_clear(r);
        return ONCE_ENOMEM;
    }
    r->answer.body.data = r->body;
    add_text(r, "Content-Type", type);
    add_text(r, "Cache-Control", "no-store");
    if (d->retry_after > 0) {
        (void)snprintf(after, sizeof(after), "%u", d->retry_after);
        add_text(r, "Retry-After", after);
    }
    if (location != NULL)
        add_text(r, "Location", location);
    return ONCE_OK;
}

int once__reply_problem(struct once__reply *r, const once__http_decision *d,
                        const char *detail, int exposed)
{
    if (begin_document(r, d, "application/problem+json", ONCE__PROBLEM_MAX,
                       NULL) != ONCE_OK)
        return ONCE_ENOMEM;
    r->answer.body.size =
        once__problem_body(d->problem, d->status, d->recorded, detail, r->body);
    finish(r, d, exposed);
    return ONCE_OK;
}

int once__reply_told(struct once__reply *r, const once__http_decision *d,
                     int rc, const once_record *record,
                     const once__response *stored, const char *location,
                     int exposed)
{
    if (begin_document(r, d, "application/json", ONCE__LOOKUP_MAX,
                       d->located ? location : NULL) != ONCE_OK)
        return ONCE_ENOMEM;
    r->answer.body.size = once__lookup_body(rc, record, stored, r->body);
    finish(r, d, exposed);
    return ONCE_OK;
}

/* Like a refusal by nginx: not one of the problems, and never recorded. */
int once__reply_refusal(struct once__reply *r, int status)
{
    if (begin(r, status, OURS, OURS_TEXT) != ONCE_OK)
        return ONCE_ENOMEM;
    add_text(r, "Content-Type", "text/plain");
    if (status == 405)
        add_text(r, "Allow", "GET, HEAD");
    r->answer.body = once__text(status == 405 ? "a lookup is a GET\n"
                                              : "the body is too large\n");
    return ONCE_OK;
}

/* The body is borrowed from the attempt. */
int once__reply_replay(struct once__reply *r, const once__response *stored,
                       const once__http_decision *d, int exposed)
{
    once__header h;
    size_t at = 0;

    if (begin(r, stored->status, stored->n,
              2 * stored->block.size + sizeof(expose_ours)) != ONCE_OK)
        return ONCE_ENOMEM;
    while (once__response_next(stored, &at, &h))
        add(r, h.name, h.value);
    if (stored->status != 204 && stored->status != 304)
        r->answer.body = stored->body;
    add_text(r, "Idempotent-Replayed", "true");
    finish(r, d, exposed);
    return ONCE_OK;
}

/* ---- The handler's answer ---------------------------------------------- */

/* Headers about the connection are made by the server. */
static int is_for_client(const char *name)
{
    static const char *const connection[] = {
        "Connection", "Content-Length",    "Keep-Alive", "TE",
        "Trailer",    "Transfer-Encoding", "Upgrade",
    };
    size_t i;

    for (i = 0; i < COUNT(connection); i++)
        if (once__same_name(once__text(name), once__text(connection[i])))
            return 0;
    return !once__header_internal(once__text(name));
}

static size_t text_size(const once_http_answer *a)
{
    size_t i, size = 0;

    for (i = 0; i < a->n; i++)
        size += strlen(a->headers[i].name) + 2 * strlen(a->headers[i].value);
    return size;
}

int once__reply_own(struct once__reply *r, const once_http_answer *a,
                    const once__http_decision *d, int exposed)
{
    size_t i;

    if (begin(r, a->status, a->n, text_size(a) + sizeof(expose_ours)) !=
        ONCE_OK)
        return ONCE_ENOMEM;
    for (i = 0; i < a->n; i++)
        if (is_for_client(a->headers[i].name))
            add_text(r, a->headers[i].name, a->headers[i].value);
    finish(r, d, exposed);
    r->answer.streamed = a->streamed;
    if (a->status == 204 || a->status == 304 || a->body.size == 0)
        return ONCE_OK;
    r->body = malloc(a->body.size);
    if (r->body == NULL) {
        once__reply_clear(r);
        return ONCE_ENOMEM;
    }
    memcpy(r->body, a->body.data, a->body.size);
    r->answer.body = (once_bytes){r->body, a->body.size};
    return ONCE_OK;
}

/* ---- What is recorded -------------------------------------------------- */

/* Connection may have several lines: a name in any of them is not stored. */
static int is_stored(const once_http_answer *a, const char *name,
                     const once__header_policy *policy)
{
    size_t i;

    if (!once__header_stored(once__text(name), policy))
        return 0;
    for (i = 0; i < a->n; i++)
        if (once__same_name(once__text(a->headers[i].name),
                            once__text("Connection")) &&
            once__header_named(once__text(name),
                               once__text(a->headers[i].value)))
            return 0;
    return 1;
}

static size_t stored_headers(const once_guard *g, const once_http_answer *a,
                             once__header *out)
{
    once__header_policy policy = {
        .store_cookies = (int)g->options.store_cookies,
        .hide = g->hide.at,
        .n_hide = g->hide.n,
    };
    size_t i, n = 0;

    for (i = 0; i < a->n; i++)
        if (is_stored(a, a->headers[i].name, &policy))
            out[n++] = (once__header){once__text(a->headers[i].name),
                                      once__text(a->headers[i].value), 0};
    return n;
}

static int write_out(const once__response *r, size_t size, once_bytes *out)
{
    void *data = malloc(size);

    if (data == NULL)
        return ONCE_ENOMEM;
    once__response_encode(r, data);
    *out = (once_bytes){data, size};
    return ONCE_OK;
}

int once__reply_encode(const once_guard *g, const once_http_answer *a,
                       int wanted, once_error *err, once_bytes *out)
{
    once__header *headers = calloc(a->n + 1, sizeof(*headers));
    once__response r = {.status = a->status, .headers = headers};
    size_t size;
    int rc = ONCE_ENOMEM;

    err->text[0] = '\0';
    if (headers == NULL)
        goto out;
    if (wanted) {
        r.n = stored_headers(g, a, headers);
        r.body = a->body;
    }
    if (!wanted || once__response_size(&r, &size, err) != ONCE_OK) {
        r = (once__response){.status = a->status, .flags = ONCE__NO_BODY};
        rc = once__response_size(&r, &size, NULL);
        assert(rc == ONCE_OK); /* The status has been looked at. */
    }
    rc = write_out(&r, size, out);
out:
    free(headers);
    return rc;
}
