/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h - a guard in front of an HTTP handler, inside the program that serves.
 *
 * It keeps the contract of the gateway (docs/http.md) with the same code: the
 * handler runs at most once for a key, and a repeat gets the first answer,
 * header by header and byte by byte. It does not depend on a server: its caller
 * reads requests and writes answers. <once/mhd.h> does so for libmicrohttpd;
 * for another server about a hundred lines are needed.
 *
 * The life of one request, with the calls of this header:
 *
 *    once_exchange_new --+--> PASS: it is not guarded; run the handler
 *                        |
 *                        +--> READ: once_exchange_body for each piece
 *                                        |
 *                                 once_exchange_claim --> WAIT: be woken
 *                                        |
 *           once_exchange_step <---------+
 *             |     |     |
 *             |     |     +--> SEND: once_exchange_reply has the answer
 *             |     |     +--> PROBE: ask, once_exchange_probed: WAIT or SEND
 *             |     +--------> PASS: as above (dry run, unprotected)
 *             +--------------> RUN: run the handler, once, and then
 *                                once_exchange_answer  it has answered
 *                                once_exchange_broken  it has not, and what it
 *                                                      did is not known
 *                                        |
 *                                        +--> WAIT: be woken, and step again:
 *                                             SEND, or DROP
 *    once_exchange_free
 *
 * No function here blocks. After WAIT `wake` is called on the engine's thread
 * when there is something to do. Not a byte of an answer may leave before SEND:
 * only then is the record durable.
 *
 * Errors, details and ownership are as in once.h. An exchange belongs to one
 * thread at a time; a guard may be used from every thread. An engine with
 * `manual_wake` needs once_engine_wake() after each call that returned WAIT.
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
    const uint8_t *id; /* see once_request's `token` [NULL: drawn]          */
} once_http_request;

#define ONCE_HTTP_REQUEST_INIT                                                 \
    {                                                                          \
        sizeof(once_http_request), NULL, NULL, NULL, 0, NULL, NULL             \
    }

/* Returns the value of the first header line of this name, in any case, or
 * NULL. Borrowed from the request. Since 0.1. */
ONCE_API const char *once_http_find(const once_http_request *r,
                                    const char *name);

/*
 * Returns 1 for Idempotency-Attempt, -Outcome, -Probe, -Record,
 * -Recorded-Status and -Status, and Idempotent-Replayed, in any case; otherwise
 * 0. A client can forge them: a handler must neither trust them nor pass them
 * on. Since 0.1.
 */
ONCE_API int once_http_is_internal(const char *name);

/*
 * What the handler knows of the effect. An answer may have the outcome header,
 * Idempotency-Outcome, in its place: "applied", "not-applied", "no-store" or
 * "unknown".
 */
enum once_http_outcome {
    ONCE_HTTP_BY_STATUS = 0, /* as the status means: docs/http.md, section 3 */
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
                                      * piece, from the handler. It is
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
 * Writes at most `max` bytes that it computes from the request to `out`,
 * without NUL, and returns how many; 0 if the request has none. A value below
 * zero, or above `max`: the request has some, and they cannot be used.
 */
typedef int once_http_text(void *user, const once_http_request *r, char *out,
                           size_t max);

enum once_guard_lost { ONCE_LOST_HOLD = 0, ONCE_LOST_TAKEOVER = 1 };
enum once_guard_repeat { ONCE_REPEAT_REPLAY = 0, ONCE_REPEAT_REFUSE = 1 };
/* To whom a key belongs. REALM: to the caller; the same key with another method
 * or path is another request, and refused. PATH: to caller, method and path. */
enum once_guard_key_space { ONCE_KEY_SPACE_REALM = 0, ONCE_KEY_SPACE_PATH = 1 };
enum once_guard_failure { ONCE_STORE_DENY = 0, ONCE_STORE_BYPASS = 1 };

/*
 * The options of one route, named as the directives of the gateway
 * (docs/http.md, section 6). Initialise with ONCE_GUARD_OPTIONS_INIT; zero and
 * NULL mean the default in brackets. `scope` or `scope_off` must be set: there
 * is no default.
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
    const char *realm;      /* whose keys these are: never the request's
                             * host, which the client chooses ["once"]       */
    const char *methods;    /* those that are guarded ["POST PATCH"]         */
    uint32_t in_flight_ms;  /* how long a repeat waits for the first, at most
                            * 600000; 0: it gets 409 at once [0]            */
    const char *final;      /* statuses that are final: "2xx 404"
                            * ["2xx 3xx 4xx 5xx"]; see `unknown`            */
    uint32_t lost;          /* enum once_guard_lost [ONCE_LOST_HOLD]         */
    uint32_t two_phase;     /* 1: a crash before the handler frees the key,
                            * for one durable write more [0]                */
    uint32_t store_failure; /* enum once_guard_failure [ONCE_STORE_DENY];
                             * bypass only with takeover                    */
    uint64_t ttl_ms;        /* how long an answer is kept [86,400,000]       */
    uint32_t lease_ms;      /* how long an owner that died counts as alive
                            * [30,000]                                      */
    uint32_t store_ms;      /* how long a claim is repeated that the store
                            * does not answer, before it fails [1,000]      */
    size_t max_request;     /* bytes of a body; more is 413 [1,048,576]      */
    size_t max_response;    /* bytes of a body that is kept; more is sent and
                            * recorded as not kept [1,048,576]              */
    const char *hide_header; /* more headers that are not kept, by space [] */
    uint32_t store_cookies;  /* 1: cookies and tokens of a session are kept
                              * [0]                                         */
    uint32_t cors_expose;    /* 1: both markers are exposed to scripts [0]  */
    uint32_t dry_run;        /* 1: claims and records, and never answers in
                              * the handler's place [0]                     */
    /* Called with a line that an operator should read, on the thread that
     * called the guard. [NULL] */
    void (*event)(void *user, const char *text);
    const char *release; /* statuses that mean "not executed" and free the key:
                          * numbers from 300 to 599. One that `final` names by
                          * number leaves the default list; in both lists it
                          * is refused ["401 408 421 425 429"]              */
    const char *fingerprint; /* what is compared when a key is repeated:
                              * "query", "type" (Content-Type and
                              * Content-Encoding) and "body", or some of them.
                              * The boundary of a multipart body is never
                              * compared. "json" in place of "body" compares
                              * JSON by its meaning, without the members that
                              * "but=POINTER" names ["body query type"]     */
    /* In place of all that: a text computed from the head. If there is none, or
     * it cannot be used, query, type and body are compared. [NULL] */
    once_http_text *fingerprint_of;
    /* What operators may search for, up to ONCE_LABEL_MAX bytes; stored in
     * clear, so not for secrets. [method and path, without the query] */
    once_http_text *label;
    uint32_t repeat; /* enum once_guard_repeat: with refuse a repeat is told
                      * "already-done" in place of the kept answer
                      * [ONCE_REPEAT_REPLAY]                                */
    uint64_t ttl_failure_ms; /* the same as `ttl_ms` for an answer with a status
                              * from 400, unless the handler has said that the
                              * work was done. After it the request executes
                              * again [ttl_ms]                              */
    uint32_t probe; /* 1: where the outcome is unknown the step is PROBE, and
                     * its caller asks what became of the request
                     * (docs/http.md, 3.5); not with takeover or dry_run [0] */
    const char *key_time; /* "uuid7" or "ulid": each key carries the time at
                           * which it was made. One that is too old, or from
                           * the future, is told what is recorded of it, or
                           * 409 "key-expired", and never executes. Needs a
                           * `ttl_ms` of an hour, and not bypass [none]     */
    uint64_t max_age_ms;  /* with it: how old a key may be [the shorter of
                           * `ttl_ms` and `ttl_failure_ms`, less 15 minutes:
                           * that is also the most]                         */
    const char *unknown;  /* statuses with which a balancer or proxy says that
                           * it has lost the service: numbers from 400 to 599,
                           * or "off". The outcome is unknown then, and the
                           * client gets "outcome-unknown" with this status
                           * in place of the answer. A number that `final` or
                           * `release` has leaves the default list; in two
                           * lists it is refused ["502 504 520 521 522 523
                           * 524 529 530"]                                  */
    uint32_t key_space;   /* enum once_guard_key_space: with realm a key
                           * belongs to its caller, and the same key with
                           * another method or path is 422 "key-reused"; with
                           * path it is another request there, which executes.
                           * It makes the name: to change it while records
                           * live makes known keys new. All guards and
                           * gateways of a store need the same
                           * [ONCE_KEY_SPACE_REALM]                         */
    const char *accept;   /* path of this host where once_exchange_lookup()
                         * answers: a repeat in flight gets, after
                         * `in_flight_ms`, 202 with this Location,
                         * Retry-After, "Idempotency-Status: in_flight" and
                         * what a lookup would say, in place of 409. For
                         * clients that read that header before the status;
                         * others take 202 for success. Needs `scope`, and
                         * not keys of paths [NULL: 409]                    */
    /* In place of a header: one or two JSON pointers (RFC 6901), each of at
     * most 255 bytes, to a string of visible ASCII or an integer in the body
     * (docs/http.md, 1.6). Without the members there is no key. Not with `key`
     * or `key_of` [{NULL, NULL}]                                           */
    const char *key_json[2];
} once_guard_options;

/* In a table of C: { .size = sizeof(once_guard_options), .scope_off = 1 } */
#define ONCE_GUARD_OPTIONS_INIT                                                \
    {                                                                          \
        sizeof(once_guard_options), NULL, NULL, NULL, 0, NULL, NULL, 0, NULL,  \
            NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, NULL, NULL,  \
            NULL, NULL, NULL, 0, 0, 0, NULL, 0, NULL, 0, NULL,                 \
        {                                                                      \
            NULL, NULL                                                         \
        }                                                                      \
    }

typedef struct once_guard once_guard;

/*
 * Checks and copies the options of a route. Functions, their `user` and the
 * engine are borrowed until once_guard_close(), with which the caller ends the
 * guard. Returns
 *   ONCE_OK     `*out` is the guard.
 *   ONCE_EINVAL An option is out of range; `err` names it and its limit.
 *   ONCE_ENOMEM Out of memory.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_guard_open(once_engine *e,
                                        const once_guard_options *options,
                                        once_error *err, once_guard **out);

/* Frees a guard. Its exchanges must have been freed before. Accepts NULL. Since
 * 0.1. */
ONCE_API void once_guard_close(once_guard *g);

/* ---- Exchanges: one request and its answer ------------------------------ */

/* What is to be done next. */
enum once_http_step {
    ONCE_HTTP_PASS = 1, /* run the handler; its answer goes through
                         * once_exchange_answer() and is SEND at once       */
    ONCE_HTTP_READ = 2, /* read the body                                    */
    ONCE_HTTP_WAIT = 3, /* `wake` will be called; then once_exchange_step() */
    ONCE_HTTP_RUN = 4,  /* run the handler: this exchange is the owner      */
    ONCE_HTTP_SEND = 5, /* send once_exchange_reply()                       */
    ONCE_HTTP_DROP = 6, /* close the connection without an answer           */
    ONCE_HTTP_PROBE = 7 /* ask what became of once_exchange_record(), and then
                         * once_exchange_probed()                           */
};

typedef struct once_exchange once_exchange;

/*
 * Called once for each call that returned WAIT, on the engine's thread: it must
 * not block. From then on the exchange may be used again. It may be called
 * before the function that returns WAIT has returned.
 */
typedef void once_http_wake(void *user);

/*
 * Begins an exchange with the head of a request, which is borrowed for the
 * call. The caller ends the exchange with once_exchange_free(). Returns
 *   ONCE_HTTP_PASS  The request is not guarded.
 *   ONCE_HTTP_READ  Read the body; also if the key is missing or cannot be
 *                   used, which is answered after the body was read.
 *   ONCE_ENOMEM     Out of memory: there is no exchange.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_new(once_guard *g,
                                          const once_http_request *r,
                                          once_error *err, once_exchange **out);

/*
 * Begins an exchange that tells what became of an earlier request with the key
 * of this one, a GET or HEAD with the same header and the same credentials:
 * docs/http.md, section 10. Of the guard's options those count that make the
 * name: scope, realm and key. It waits while the request is in flight, if the
 * query says so ("wait=10s"), but for at most `wait_ms`. The calls that follow
 * are as for once_exchange_new(), but it never comes to RUN or PASS, and changes
 * nothing in the store. Returns
 *   ONCE_HTTP_READ  Call once_exchange_claim(); also if the key is missing.
 *   ONCE_EINVAL     The guard has no scope: anybody could ask which keys exist.
 *                   Or its key space is path: a lookup has another path. Or
 *                   `wait_ms` is over 600000.
 *   ONCE_ENOMEM     Out of memory.
 * After an error there is no exchange. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_lookup(once_guard *g,
                                             const once_http_request *r,
                                             uint32_t wait_ms, once_error *err,
                                             once_exchange **out);

/*
 * After READ: takes the next piece of the body, which is borrowed for the call.
 * Returns ONCE_OK, or ONCE_ELIMIT if the body is over `max_request` by now: the
 * caller need not keep it, and the answer will be 413. Since 0.1.
 */
ONCE_API int once_exchange_body(once_exchange *x, const void *data,
                                size_t size);

/*
 * After READ, when the body is whole: claims the key. Returns
 *   ONCE_HTTP_WAIT  `wake` will be called with `user`.
 *   ONCE_HTTP_SEND, ONCE_HTTP_PASS
 *                   The store was not asked, because the request is refused,
 *                   its body has no key, or the engine refuses the claim. `wake` is not called.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_claim(once_exchange *x,
                                            once_http_wake *wake, void *user);

/*
 * Returns what is to be done now: enum once_http_step. When it has returned
 * ONCE_HTTP_RUN the handler counts as begun. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_step(once_exchange *x);

/* What an owner is known by, with its NUL: text for once_exchange_resume(). */
enum { ONCE_EXCHANGE_TOKEN = 125 };

/* After RUN: writes the token of this exchange. Who has it can end the exchange:
 * it is a secret, and not for logs. Since 0.1. */
ONCE_API void once_exchange_token(const once_exchange *x,
                                  char out[ONCE_EXCHANGE_TOKEN]);

/*
 * Begins an exchange that has come to RUN before, in this process or in another,
 * whose handler has run, and which is to be ended: with once_exchange_answer(),
 * once_exchange_broken() or once_exchange_abandon(). The same end may be told
 * twice. The guard has the options with which the exchange was begun; the record
 * decides, and a token that is not its owner's ends nothing. Its lease is not
 * renewed, and once_exchange_free() gives nothing up. Returns
 *   ONCE_HTTP_RUN   `*out` is the exchange.
 *   ONCE_EINVAL     It is no token.
 *   ONCE_ENOMEM     Out of memory.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_resume(once_guard *g, const char *token,
                                             once_error *err,
                                             once_exchange **out);

/*
 * After RUN, if the handler was not called and will not be, for example because
 * the client has left: frees the key. Only once_exchange_free() may follow.
 * Since 0.1.
 */
ONCE_API void once_exchange_abandon(once_exchange *x);

/*
 * After RUN and PASS: takes the answer of the handler. All of it is copied. The
 * headers of Once are removed; Idempotency-Outcome counts as `outcome` if that
 * is zero. Returns
 *   ONCE_HTTP_WAIT The answer is being recorded; `wake` will be called.
 *   ONCE_HTTP_SEND After PASS: it can be sent now. `wake` is not called.
 *   ONCE_EINVAL    The status is not 200 .. 599, the outcome is wrong, or a
 *                  streamed answer has a body. Nothing was recorded, and this
 *                  may be called again.
 *   ONCE_ENOMEM, ONCE_ELIMIT, ONCE_ECLOSED
 *                  Nothing was recorded. Call once_exchange_broken(), or free
 *                  the exchange: the record becomes indeterminate.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_answer(once_exchange *x,
                                             const once_http_answer *a,
                                             once_http_wake *wake, void *user);

/*
 * After RUN: the handler ended without an answer, and what it did is not known.
 * The record becomes indeterminate, and the client gets the problem
 * "outcome-unknown" with `status`, 502 or 504. Returns
 *   ONCE_HTTP_WAIT `wake` will be called.
 *   ONCE_HTTP_DROP After PASS.
 *   ONCE_ENOMEM, ONCE_ECLOSED
 *                  Free the exchange: the record becomes indeterminate.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_broken(once_exchange *x, int status,
                                             once_http_wake *wake, void *user);

/*
 * After PROBE: what the question about once_exchange_record() has brought. Its
 * outcome counts if it is ONCE_HTTP_APPLIED: `status`, headers and body are then
 * what the first request was, or should have been, answered with, and the effect
 * of this record is committed. Or `outcome` is zero, and `a` is a service's
 * answer over HTTP as it came, with 200 and the headers of the gateway's probes.
 * NULL, or anything else: the outcome stays unknown. All of it is copied.
 * Returns
 *   ONCE_HTTP_WAIT It is being recorded; `wake` will be called. The next step is
 *                  that of whatever stands recorded then.
 *   ONCE_HTTP_SEND The problem "outcome-unknown". `wake` is not called.
 *   ONCE_ENOMEM    Free the exchange: nothing was recorded.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_exchange_probed(once_exchange *x,
                                             const once_http_answer *a,
                                             once_http_wake *wake, void *user);

/*
 * After SEND: returns the answer to send. Borrowed until the exchange is freed.
 * It has no Content-Length, Connection, Keep-Alive, Transfer-Encoding, TE,
 * Trailer or Upgrade, and a replay has no Date: the server sets what it needs
 * of these. Since 0.1.
 */
ONCE_API const once_http_answer *once_exchange_reply(const once_exchange *x);

/* After SEND: 1 if once_exchange_reply() is the answer that the handler gave,
 * and 0 if another one is sent in its place. Since 0.1. */
ONCE_API int once_exchange_is_own(const once_exchange *x);

/* Ends the waiting for another attempt: `wake` is called soon. From any thread,
 * also while once_exchange_claim() runs, until `wake` was called. Since 0.1. */
ONCE_API void once_exchange_cancel(once_exchange *x);

/*
 * Frees an exchange, at any time except between WAIT and `wake`. If its handler
 * has begun and its answer is not recorded, the record becomes indeterminate.
 * Accepts NULL. Since 0.1.
 */
ONCE_API void once_exchange_free(once_exchange *x);

/* ---- For logs and handlers ---------------------------------------------- */

/* Returns "new", "replayed", "in_flight", "mismatch", "indeterminate",
 * "unstored", "refused", "expired", "unavailable", "unprotected", "invalid", or "-": not guarded.
 * Static. Since 0.1. */
ONCE_API const char *once_exchange_status(const once_exchange *x);

/* Of a guard with `dry_run`: returns what would have become of the request,
 * "run", "conflict", "in_flight", "refuse", "unknown", or "run_again": the answer
 * of the first would have been replayed, and PASS lets the handler run once more.
 * "-" without `dry_run`, and before anything is decided. Static. Since 0.1. */
ONCE_API const char *once_exchange_would(const once_exchange *x);

/* Returns the seconds since the first request under the key, if
 * once_exchange_would() found one, else -1: by this host's clock and the store's.
 * Since 0.1. */
ONCE_API int64_t once_exchange_apart(const once_exchange *x);

/* Returns the number of this attempt for the key, 1, 2, ..., or of the attempt
 * whose answer is replayed; 0 if it is not known. A handler that calls another
 * service should send it on as Idempotency-Attempt. Since 0.1. */
ONCE_API uint32_t once_exchange_attempt(const once_exchange *x);

/* Returns the stored name, 64 hex digits, or "-": what a handler keeps beside
 * its work so that it can be asked about it, and sends on as Idempotency-Record.
 * Borrowed until the exchange is freed. Since 0.1. */
ONCE_API const char *once_exchange_record(const once_exchange *x);

/* Returns the key that was found in the body (`key_json`) as an RFC 8941 String:
 * what a handler sends on as Idempotency-Key, in place of the client's line,
 * which was not looked at. NULL: the client's line stays, if there is one; so it
 * is in a dry run. It is a secret of its caller, and not for logs. Borrowed
 * until the exchange is freed. Since 0.1. */
ONCE_API const char *once_exchange_key(const once_exchange *x);

/* Returns the first 16 hex digits of the stored name, or "-". Borrowed until
 * the exchange is freed. Since 0.1. */
ONCE_API const char *once_exchange_hash(const once_exchange *x);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_HTTP_H */
