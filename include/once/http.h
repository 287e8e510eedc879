/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h - a guard in front of an HTTP handler, inside the program that serves.
 *
 * It keeps the contract of the gateway (docs/http.md), with the same code: the
 * handler runs at most once for a key, and a repeat gets the first answer,
 * header by header and byte by byte. It knows no server: the one that calls it
 * reads requests and writes answers. <once/mhd.h> does so for libmicrohttpd;
 * whoever has another server writes the same hundred lines.
 *
 * The life of one request, with the calls of this header:
 *
 *    once_exchange_new --+--> PASS: nobody guards it; run the handler
 *                        |
 *                        +--> READ: once_exchange_body for each piece
 *                                        |
 *                                 once_exchange_claim --> WAIT: be woken
 *                                        |
 *           once_exchange_step <---------+
 *             |     |     |
 *             |     |     +--> SEND: once_exchange_reply says what
 *             |     +--------> PASS: as above (dry run, unprotected)
 *             +--------------> RUN: run the handler, once, and then
 *                                once_exchange_answer  it has answered
 *                                once_exchange_broken  it has not, and nobody
 *                                                      knows what it did
 *                                        |
 *                                        +--> WAIT: be woken, and step again:
 *                                             SEND, or DROP
 *    once_exchange_free
 *
 * WAIT never blocks: `wake` is called on the engine's thread when there is
 * something to do. Not a byte of an answer may leave before SEND: only then is
 * the record durable.
 *
 * Errors, details and ownership are as in once.h. An exchange belongs to one
 * thread at a time; a guard may be used from every thread. An engine with
 * `manual_wake` needs its once_engine_wake() after each call that said WAIT.
 *
 * Keys, scopes and bodies are in no error text, no event and no store.
 */
#ifndef ONCE_HTTP_H
#define ONCE_HTTP_H

#include <once/once.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Messages ---------------------------------------------------------- */

/* One header line; both are text that ends in NUL, and neither is NULL. */
typedef struct once_http_header {
    const char *name;
    const char *value;
} once_http_header;

/* The head of a request. All of it is borrowed for the call. */
typedef struct once_http_request {
    size_t size;
    const char *method;
    const char *target; /* as the client sent it: path and query, undecoded  */
    const once_http_header *headers; /* each line as it came, in their order */
    size_t n;
    void *server; /* for the functions below: the server's own request      */
} once_http_request;

#define ONCE_HTTP_REQUEST_INIT                                                 \
    {                                                                          \
        sizeof(once_http_request), NULL, NULL, NULL, 0, NULL                   \
    }

/* The value of the first line of this name, whatever its case, or NULL;
 * borrowed from the request. Since 0.1. */
ONCE_API const char *once_http_find(const once_http_request *r,
                                    const char *name);

/*
 * 1 for Idempotency-Attempt, Idempotency-Outcome, Idempotency-Status and
 * Idempotent-Replayed. A client may send them, and a handler must not believe
 * them, nor pass them on. Since 0.1.
 */
ONCE_API int once_http_is_internal(const char *name);

/*
 * What the handler knows of the effect. An answer may have the header
 * Idempotency-Outcome in its place: "applied", "not-applied", "no-store" or
 * "unknown".
 */
enum once_http_outcome {
    ONCE_HTTP_BY_STATUS = 0, /* the status says it: docs/http.md, section 3 */
    ONCE_HTTP_APPLIED,       /* done, whatever the status                   */
    ONCE_HTTP_NOT_APPLIED,   /* provably nothing was done: the key is free  */
    ONCE_HTTP_NO_STORE,      /* done, and this answer must not be kept      */
    ONCE_HTTP_UNKNOWN        /* it may have been done                       */
};

/* An answer: of the handler to the guard, and of the guard to the server. */
typedef struct once_http_answer {
    size_t size;
    int status;                      /* 200 .. 599                          */
    int outcome;                     /* enum once_http_outcome              */
    int streamed;                    /* 1: the body comes later, piece by
                                      * piece, from whoever answers. It is
                                      * recorded as not kept before the first
                                      * byte leaves; `body` is empty        */
    const once_http_header *headers; /* without Content-Length              */
    size_t n;
    once_bytes body;
} once_http_answer;

#define ONCE_HTTP_ANSWER_INIT                                                  \
    {                                                                          \
        sizeof(once_http_answer), 0, 0, 0, NULL, 0,                            \
        {                                                                      \
            NULL, 0                                                            \
        }                                                                      \
    }

/* ---- Guards: the options of one route ---------------------------------- */

enum once_http_sizes { ONCE_HTTP_TEXT_MAX = 1024 };

/*
 * Writes at most `max` bytes that belong to the request to `out`, without NUL,
 * and returns how many; 0 if there are none. Below zero, or more than `max`:
 * they are there and cannot be used.
 */
typedef int once_http_text(void *user, const once_http_request *r, char *out,
                           size_t max);

enum once_guard_lost { ONCE_LOST_HOLD = 0, ONCE_LOST_TAKEOVER = 1 };
enum once_guard_failure { ONCE_STORE_DENY = 0, ONCE_STORE_BYPASS = 1 };

/*
 * The directives of the gateway (docs/http.md, section 6) by their names, for
 * one route. Begin with ONCE_GUARD_OPTIONS_INIT; zero and NULL mean the default
 * in brackets. `scope` or `scope_off` must be set: there is no default.
 */
typedef struct once_guard_options {
    size_t size;
    void *user;             /* for the functions                              */
    const char *group;      /* for an operator's lists, 1 to 32 printable
                           * characters without spaces ["http"]             */
    once_http_text *scope;  /* who calls: the *authenticated* principal. The
                           * function checks the credentials, since a repeat
                           * gets its answer before the handler could. None:
                           * 401 "scope-missing", and nothing runs          */
    uint32_t scope_off;     /* 1: all callers are one [0]                    */
    const char *key;        /* name of the header ["Idempotency-Key"]        */
    once_http_text *key_of; /* in place of a header: a computed key [NULL]  */
    uint32_t key_required;  /* 1: without a key 400 "key-missing"; 0: it
                            * passes [0]                                    */
    const char *realm;      /* [the request's host, lower case, no port]     */
    const char *methods;    /* those that are guarded ["POST PATCH"]         */
    uint32_t in_flight_ms;  /* how long a repeat waits for the first, at most
                            * 600000; 0: it gets 409 at once [0]            */
    const char *final;      /* statuses that are final: "2xx 404"
                            * ["2xx 3xx 4xx 5xx"]                           */
    uint32_t lost;          /* enum once_guard_lost [ONCE_LOST_HOLD]         */
    uint32_t two_phase;     /* 1: a crash before the handler frees the key,
                            * for one durable write more [0]                */
    uint32_t store_failure; /* enum once_guard_failure [ONCE_STORE_DENY];
                             * bypass only with takeover                    */
    uint64_t ttl_ms;        /* how long an answer is kept [86,400,000]       */
    uint32_t lease_ms;      /* how long a dead owner is waited for [30,000]  */
    uint32_t store_ms;      /* how long a store that does not answer is asked
                            * again before a claim fails [1,000]            */
    size_t max_request;     /* bytes of a body; more is 413 [1,048,576]      */
    size_t max_response;    /* bytes of a body that is kept; more is sent and
                            * recorded as not kept [1,048,576]              */
    const char *hide_header; /* more headers that are not kept, by space [] */
    uint32_t store_cookies;  /* 1: Set-Cookie is kept [0]                   */
    uint32_t cors_expose;    /* 1: both markers are exposed to scripts [0]  */
    uint32_t dry_run;        /* 1: claims and records, and never answers in
                              * the handler's place [0]                     */
    /* What an operator should read. On the server's thread. [NULL] */
    void (*event)(void *user, const char *text);
    const char *release; /* statuses that say "not executed" and free the key:
                          * numbers from 300 to 599. One that `final` names by
                          * number leaves the default list; in both lists it
                          * is refused ["408 425 429"]                      */
    const char *fingerprint; /* what counts when a repeat is compared with the
                              * first request: "query", "type" (Content-Type
                              * and Content-Encoding) and "body", or some of
                              * them. The boundary of a multipart body never
                              * counts ["body query type"]                  */
    /* In place of all that: a text computed from the head. Where it gives none,
     * or one that cannot be used, query, type and body count. [NULL] */
    once_http_text *fingerprint_of;
} once_guard_options;

/* In a table of C: { .size = sizeof(once_guard_options), .scope_off = 1 } */
#define ONCE_GUARD_OPTIONS_INIT                                                \
    {                                                                          \
        sizeof(once_guard_options), NULL, NULL, NULL, 0, NULL, NULL, 0, NULL,  \
            NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, NULL, NULL,  \
            NULL, NULL                                                         \
    }

typedef struct once_guard once_guard;

/*
 * Checks and copies the options of a route. Functions, their `user` and the
 * engine are borrowed until once_guard_close(). Returns ONCE_OK, or ONCE_EINVAL
 * with a text that names the member and its limit, or ONCE_ENOMEM. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_guard_open(once_engine *e,
                                        const once_guard_options *options,
                                        once_error *err, once_guard **out);

/* When its last exchange was freed. Accepts NULL. Since 0.1. */
ONCE_API void once_guard_close(once_guard *g);

/* ---- Exchanges: one request and its answer ------------------------------ */

/* What is to be done next. */
enum once_http_step {
    ONCE_HTTP_PASS = 1, /* run the handler; its answer goes through
                         * once_exchange_answer() and is SEND at once       */
    ONCE_HTTP_READ = 2, /* read the body                                    */
    ONCE_HTTP_WAIT = 3, /* `wake` will be called; then once_exchange_step() */
    ONCE_HTTP_RUN = 4,  /* run the handler: it is the only one              */
    ONCE_HTTP_SEND = 5, /* send once_exchange_reply()                       */
    ONCE_HTTP_DROP = 6  /* close the connection, as the handler wished      */
};

typedef struct once_exchange once_exchange;

/*
 * Called once for each call that said WAIT, on the engine's thread: it must not
 * block. From then on the exchange is the server's again. It may be called
 * before the call that said WAIT has returned.
 */
typedef void once_http_wake(void *user);

/*
 * Looks at the head of a request. Returns ONCE_HTTP_PASS, or ONCE_HTTP_READ, or
 * ONCE_ENOMEM. A key that cannot be used is READ, too: it is refused when the
 * body has been read. End it with once_exchange_free(). Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_new(once_guard *g,
                                          const once_http_request *r,
                                          once_error *err, once_exchange **out);

/*
 * After READ: the next piece of the body. Returns ONCE_OK, or ONCE_ELIMIT: it
 * is over `max_request` by now and need not be kept; the answer will be 413.
 * Since 0.1.
 */
ONCE_API int once_exchange_body(once_exchange *x, const void *data,
                                size_t size);

/*
 * After READ, when the body is whole: asks the store. Returns ONCE_HTTP_WAIT,
 * or ONCE_HTTP_SEND or ONCE_HTTP_PASS if that was not necessary or possible
 * (`wake` is then not called). Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_claim(once_exchange *x,
                                            once_http_wake *wake, void *user);

/*
 * What is to be done now: any of the steps. After RUN the handler counts as
 * begun, whatever becomes of it. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_step(once_exchange *x);

/*
 * The client of a RUN has left, and the handler was not called: frees the key.
 * Only once_exchange_free() may follow. Since 0.1.
 */
ONCE_API void once_exchange_abandon(once_exchange *x);

/*
 * After RUN and PASS: the handler has answered. All of it is copied. Headers of
 * Once's own are taken out; Idempotency-Outcome counts as `outcome` if that is
 * zero. Returns ONCE_HTTP_WAIT or ONCE_HTTP_SEND, or
 *   ONCE_EINVAL  The status is not 200 .. 599.
 *   ONCE_ENOMEM, ONCE_ELIMIT, ONCE_ECLOSED
 *                Nothing was recorded. Call once_exchange_broken(), or free the
 *                exchange: the outcome is not known then.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_answer(once_exchange *x,
                                             const once_http_answer *a,
                                             once_http_wake *wake, void *user);

/*
 * After RUN: the handler ended without an answer, and may have done anything.
 * The record becomes indeterminate, and the client gets a problem with
 * `status`, 502 or 504. Returns ONCE_HTTP_WAIT, ONCE_HTTP_SEND or
 * ONCE_HTTP_DROP; after PASS that is DROP. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_broken(once_exchange *x, int status,
                                             once_http_wake *wake, void *user);

/*
 * After SEND: what to send. Borrowed until the exchange is freed. Content-
 * Length, Date and whatever belongs to the connection are the server's; lines
 * of Connection, Keep-Alive, Transfer-Encoding, TE, Trailer and Upgrade that a
 * handler has set are not there. Since 0.1.
 */
ONCE_API const once_http_answer *once_exchange_reply(const once_exchange *x);

/* Stop waiting for another attempt: `wake` comes soon. From any thread, also
 * while once_exchange_claim() is called, until `wake` was called. Since 0.1. */
ONCE_API void once_exchange_cancel(once_exchange *x);

/*
 * Ends it, at any time but between WAIT and `wake`. An attempt whose handler
 * has begun and whose answer is not recorded is given up: its record becomes
 * indeterminate. Accepts NULL. Since 0.1.
 */
ONCE_API void once_exchange_free(once_exchange *x);

/* ---- For logs and handlers ---------------------------------------------- */

/* "new", "replayed", "in_flight", "mismatch", "indeterminate", "unstored",
 * "unavailable", "unprotected", "invalid", or "-": not guarded. Since 0.1. */
ONCE_API const char *once_exchange_status(const once_exchange *x);

/* 1, 2, ... which attempt at the key this is, or whose answer is repeated; 0
 * if that is not known. A handler that calls another service sends it on as
 * Idempotency-Attempt. Since 0.1. */
ONCE_API uint32_t once_exchange_attempt(const once_exchange *x);

/* The first 16 hex digits of the stored name, or "-". Since 0.1. */
ONCE_API const char *once_exchange_hash(const once_exchange *x);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_HTTP_H */
