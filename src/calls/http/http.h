/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h - what every HTTP adapter of Once shares: key grammar, stored name,
 * fingerprint, what becomes of an attempt, stored responses, header policy,
 * problem bodies. Values in, values out: no nginx type, no socket, no thread,
 * no clock; only start.c calls the engine, as <once/once.h> has it. The wire
 * contract is docs/http.md; section numbers point there.
 *
 * Errors follow once.h. Texts name the field and the limit and never hold the
 * key, the scope or a byte of a body.
 */
#ifndef ONCE_HTTP_HTTP_H
#define ONCE_HTTP_HTTP_H

#include <once/once.h>

#define ONCE__KEY_MAX 255
#define ONCE__HEADERS_MAX 512            /* header lines of one response    */
#define ONCE__HEADER_MAX ((size_t)65535) /* bytes of one name or value      */

/* ---- The key (section 1), key.c --------------------------------------- */

/*
 * Reads the value of one Idempotency-Key line: an RFC 8941 String (escapes
 * honoured, parameters ignored) or a bare token, which is any visible ASCII
 * but `"`, `,`, `;` and `\`. Optional white space around it is dropped. Both
 * forms of the same text give the same bytes. Writes at most ONCE__KEY_MAX
 * bytes to `out` (no NUL) and their number to `*len`. ONCE_EINVAL: empty,
 * blank, `""`, a list, bytes outside visible ASCII (a String may hold inner
 * spaces), does not parse. ONCE_ELIMIT: more than 255 characters.
 */
ONCE_CHECK int once__key_parse(once_bytes value, char *out, size_t *len,
                               once_error *err);

/* ---- Stored name and fingerprint (section 1), digest.c ----------------- */

/* SHA-256 over a domain tag and the length-framed parts. */
void once__name(once_bytes scope, once_bytes realm, once_bytes method,
                once_bytes path, once_bytes key, uint8_t out[ONCE_NAME_SIZE]);

typedef struct once__fingerprint once__fingerprint;

/* What counts when a repeat is compared with the first request. */
enum once__counts {
    ONCE__COUNT_QUERY = 1,
    ONCE__COUNT_TYPE = 2, /* Content-Type and Content-Encoding */
    ONCE__COUNT_BODY = 4,
    ONCE__COUNT_ALL = 7
};

/* Adds "query", "type" or "body" to `*counts`; 0: it is none of them. */
ONCE_CHECK int once__counts_add(unsigned *counts, once_bytes name);

typedef struct once__request_head {
    once_bytes query, type, encoding;
} once__request_head;

/*
 * Begins a fingerprint over the parts in `counts`: they are length-framed, then
 * the body is streamed and its length framed at the end. Where the type is
 * multipart and the body counts, the boundary does not: neither in the type nor
 * in the delimiters of the body. End it with once__fingerprint_free().
 */
ONCE_CHECK int once__fingerprint_new(unsigned counts,
                                     const once__request_head *head,
                                     once__fingerprint **out);
void once__fingerprint_body(once__fingerprint *f, const void *data,
                            size_t size);
/* Once, and the last call but free. */
void once__fingerprint_end(once__fingerprint *f,
                           uint8_t out[ONCE_FINGERPRINT_SIZE]);
void once__fingerprint_free(once__fingerprint *f); /* accepts NULL */

/* In place of all that: a text that the operator chose. */
void once__fingerprint_of_text(once_bytes value,
                               uint8_t out[ONCE_FINGERPRINT_SIZE]);

/* First 16 hex digits of a name, for logs; `out` ends in NUL. */
void once__name_hex(const uint8_t name[ONCE_NAME_SIZE], char out[17]);

/* A realm as a record's group: its first bytes, "?" for what is not visible
 * ASCII, filled up with NUL. */
void once__group(once_bytes realm, uint8_t out[ONCE_GROUP_SIZE]);

/* ---- Multipart types, multipart.c --------------------------------------- */

#define ONCE__BOUNDARY_MAX 70 /* RFC 2046 */

typedef struct once__boundary {
    once_bytes text;
    once_bytes before, after; /* the type without it and without its quotes */
} once__boundary;

/* 1 and the one boundary of a multipart type; 0 for any other type. Everything
 * in `*out` is borrowed from `type`. */
ONCE_CHECK int once__boundary_find(once_bytes type, once__boundary *out);

/* ---- Sets of statuses, verdict.c --------------------------------------- */

typedef struct once__statuses {
    uint64_t bits[8];    /* 100 .. 599 at bit status - 100             */
    uint64_t numbers[8]; /* of them, those that were named by number   */
} once__statuses;

/* Adds "2xx" or "404" to `*set`; ONCE_EINVAL for anything else, 1xx included:
 * an interim response is not an outcome. */
ONCE_CHECK int once__statuses_add(once__statuses *set, once_bytes text,
                                  once_error *err);
/* The same for once_release: a number from 300 to 599 and no class, since each
 * of them lets a request execute again. */
ONCE_CHECK int once__statuses_add_released(once__statuses *set, once_bytes text,
                                           once_error *err);
int once__statuses_has(const once__statuses *set, int status);
int once__statuses_all(const once__statuses *set); /* 1: 200..599 are all in */

/* What a status says where there is no outcome header. */
typedef struct once__rules {
    once__statuses final;    /* the outcome                                */
    once__statuses released; /* not executed; comes before `final`         */
} once__rules;

/*
 * Makes the rules from once_final (NULL: 2xx 3xx 4xx 5xx) and once_release
 * (NULL: 408 425 429). A number is stronger than a class: a released status is
 * taken out of a final class, and a number in once_final is taken out of the
 * default of once_release. Returns 0, or the first status that both lists name
 * by number: then `*out` must not be used.
 */
ONCE_CHECK int once__rules_make(const once__statuses *final,
                                const once__statuses *released,
                                once__rules *out);

/* ---- What becomes of an attempt (section 3), verdict.c ------------------ */

enum once__observed {
    ONCE__NOT_SENT,   /* not one byte of the request left                   */
    ONCE__WHOLE,      /* a complete response                                */
    ONCE__UNSTORABLE, /* being answered, but streamed, upgraded, too large  */
    /* It was sent, and what came of it is not known: */
    ONCE__RESET,        /* the connection was lost before any response      */
    ONCE__TIMED_OUT,    /* nothing came in time, or nothing more            */
    ONCE__BAD_RESPONSE, /* a head that is cut, malformed or not HTTP        */
    ONCE__TRUNCATED,    /* a whole head, and not the whole body             */
    ONCE__GONE          /* the attempt ended before its response            */
};

/* 1: it was sent, and what came of it is not known. */
static inline int once__is_broken(int observed)
{
    return observed >= ONCE__RESET;
}

enum once__verdict_action {
    ONCE__DO_COMPLETE, /* record kind and the response                      */
    ONCE__DO_MARK,     /* record kind, without the body                     */
    ONCE__DO_RELEASE,  /* not executed                                      */
    ONCE__DO_GIVE_UP   /* indeterminate                                     */
};

typedef struct once__verdict {
    int action; /* enum once__verdict_action */
    int kind;   /* enum once_kind, for the first two */
    int reason; /* enum once_reason, for the other two */
} once__verdict;

/*
 * `outcome` is the outcome header, the upstream's Idempotency-Outcome, empty if
 * absent; an unknown value counts as absent. A status in `released` releases.
 * Where `final` is not all, a status outside is a FAILURE, which
 * ONCE_RETRY_FAILED makes repeatable, and one inside is a SUCCESS; where it is
 * all, statuses from 400 are FAILURE. "applied" completes whatever the status
 * (SUCCESS), "no-store" marks, "not-applied" releases, "unknown" gives up.
 *
 * The outcome header counts only with a whole or an unstorable response, is
 * compared without regard to case and comes before the status; both "applied"
 * and "no-store" are a SUCCESS, whatever the status, so that they are never
 * repeated. A status outside 100..599 is a bad header, which gives up.
 */
once__verdict once__judge(int observed, int status, once_bytes outcome,
                          const once__rules *rules);

/* How an attempt ended, in metrics and logs: X(NAME, word). */
#define ONCE__OUTCOMES(X)                                                      \
    X(SUCCESS, "success")                                                      \
    X(FAILURE, "failure")                                                      \
    X(UNSTORED, "unstored") /* completed, and the response was not kept */     \
    X(RELEASED, "released")                                                    \
    X(INDETERMINATE, "indeterminate")

enum once__attempt_outcome {
#define ONCE__OUTCOME_ROW(name, text) ONCE__OUTCOME_##name,
    ONCE__OUTCOMES(ONCE__OUTCOME_ROW)
#undef ONCE__OUTCOME_ROW
        ONCE__OUTCOME_COUNT
};

const char *once__outcome_text(int outcome);

typedef struct once__ending {
    int outcome; /* enum once__attempt_outcome                                      */
    int reason; /* enum once_reason; of a result ONCE_REASON_NONE          */
} once__ending;

/*
 * The engine was asked for `verdict` and reported `rc`. `record` is read after
 * ONCE_REPLAY: where another outcome stands recorded, that one is true.
 */
once__ending once__verdict_ending(once__verdict verdict, int rc,
                                  const once_record *record);
int once__outcome_of_kind(int kind); /* enum once_kind of a record */
/* 1: an attempt behind a gateway can end so; 0: only if something is wrong. */
int once__ending_is_usual(int outcome, int reason);

/* ---- Policy, and the way to and from the engine, start.c ---------------- */

/* What the operator of a route chose, as far as it decides anything. */
typedef struct once__policy {
    once__rules rules;
    int takeover;  /* a lost owner may be replaced                          */
    int bypass;    /* without an answer of the store, pass unguarded        */
    int dry_run;   /* never answer in the service's place                   */
    int two_phase; /* as in once_request, likewise what follows             */
    uint32_t lease_ms, wait_ms, store_ms;
    uint64_t keep_ms;
} once__policy;

/* Fills all of `*out`, for once_attempt_new(). */
void once__request_fill(const once__policy *policy,
                        const uint8_t name[ONCE_NAME_SIZE],
                        const uint8_t fingerprint[ONCE_FINGERPRINT_SIZE],
                        const uint8_t group[ONCE_GROUP_SIZE],
                        once_request *out);

/*
 * Hands a verdict to the engine: once_complete_start(), once_release_start() or
 * once_give_up_start(), and returns what that returned. `result` is for the
 * first. As the owner only.
 */
ONCE_CHECK int once__verdict_start(once_attempt *a, once__verdict verdict,
                                   once_bytes result, once_done *done,
                                   void *user);

/* ---- What a record says for operators, about.c -------------------------- */

enum { ONCE__TRACE_TEXT = 2 * ONCE_TRACE_SIZE + 1 };

/* A label from any text: cut, and "?" for what is not printable ASCII. Returns
 * its length. */
size_t once__label_clean(once_bytes text, char out[ONCE_LABEL_MAX]);

/* The trace id of a header "traceparent" (W3C Trace Context). 0: there is none
 * that can be read, and `out` is as before. */
int once__trace_read(once_bytes traceparent, uint8_t out[ONCE_TRACE_SIZE]);

/* As hexadecimal digits. 0: it is all zero, which means none. */
int once__trace_text(const uint8_t trace[ONCE_TRACE_SIZE],
                     char out[ONCE__TRACE_TEXT]);

/* ---- Headers (sections 1, 4, 5), header.c ------------------------------- */

typedef struct once__header {
    once_bytes name;
    once_bytes value;
    uint8_t tag; /* kept with the header, for the adapter's own use */
} once__header;

typedef struct once__header_policy {
    int store_cookies;      /* keep Set-Cookie                             */
    const once_bytes *hide; /* more names, without regard to case          */
    size_t n_hide;
} once__header_policy;

/* 1 if the names are the same without regard to the case of ASCII letters. */
int once__same_name(once_bytes a, once_bytes b);

/* 1 if a response header of this name is stored, 0 if not, unless one of the
 * response's Connection lines names it. */
int once__header_stored(once_bytes name, const once__header_policy *policy);
/* 1 if the value `connection` of a Connection line names this header. */
int once__header_named(once_bytes name, once_bytes connection);

/* 1 for Idempotency-Attempt, -Outcome, -Status and Idempotent-Replayed, which
 * pass in neither direction. */
int once__header_internal(once_bytes name);

/* 1 if responses of this Content-Type are streams, whose reader wants each part
 * when it comes: server-sent events, NDJSON. They are not kept. */
int once__type_streams(once_bytes type);

/* ---- Stored responses (section 5), response.c --------------------------- */

enum once__response_flags {
    ONCE__NO_BODY = 1 /* completed, but the response was not kept: repeats
                       * get "response-unavailable"                         */
};

typedef struct once__response {
    int status;
    uint32_t flags;
    once_bytes reason;           /* the reason phrase, may be empty         */
    const once__header *headers; /* encode: n of them; decode: NULL, use    */
    size_t n;                    /* once__response_next()                   */
    once_bytes body;
    once_bytes block; /* decode: the encoded headers */
} once__response;

/*
 * How many bytes the response takes; checks it on the way. ONCE_EINVAL names
 * what does not do (CR, LF or NUL in a name, value or reason, an empty name, a
 * status outside 100..599, a body with ONCE__NO_BODY), ONCE_ELIMIT what is too
 * long: more than ONCE__HEADERS_MAX headers, a name, value or reason over
 * ONCE__HEADER_MAX, a body or a total over ONCE_RESULT_MAX.
 */
ONCE_CHECK int once__response_size(const once__response *r, size_t *size,
                                   once_error *err);
/* Writes exactly that many bytes. Only for what once__response_size() took. */
void once__response_encode(const once__response *r, void *out);

enum { ONCE__RESPONSE_BARE = 20 };

/* Writes a response that was not kept (ONCE__NO_BODY), and returns its size, or
 * 0 for a status outside 100..599. */
size_t once__response_bare(int status, uint8_t out[ONCE__RESPONSE_BARE]);

/* Everything in `*out` is borrowed from `in`. Whatever is malformed, CR, LF
 * and NUL included, is ONCE_ECORRUPT, an unknown version ONCE_EVERSION. */
ONCE_CHECK int once__response_decode(once_bytes in, once__response *out,
                                     once_error *err);
/* 1 and the next header, `*at` moved on from 0; 0 at the end. */
int once__response_next(const once__response *r, size_t *at, once__header *out);

/* ---- Problems (section 2), problem.c ------------------------------------ */

/*
 * X(NAME, code, status, title, retryable, safe_new_key, state, error, detail)
 *
 * retryable     A repetition of the very same request can succeed.
 * safe_new_key  This operation certainly had no effect under the old key: also
 *               not by an earlier attempt, of which the refusal knows nothing.
 * state         of the record; "any" where it was not looked at, or where it
 *               is another request's.
 * error         `type` of the error member: what SDKs of the Stripe family make
 *               their exceptions of. "idempotency_error" means "another
 *               request" there, so it must not stand for "not known".
 */
#define ONCE__PROBLEMS(X)                                                      \
    X(KEY_MISSING, "key-missing", 400, "Idempotency-Key is missing", 0, 1,     \
      "none", "invalid_request_error",                                         \
      "This operation is idempotent and it requires correct usage of "         \
      "Idempotency-Key.")                                                      \
    X(KEY_INVALID, "key-invalid", 400, "Idempotency-Key is malformed", 0, 1,   \
      "none", "invalid_request_error",                                         \
      "Send one Idempotency-Key of 1 to 255 visible ASCII characters.")        \
    X(SCOPE_MISSING, "scope-missing", 401, "The caller is not known", 0, 0,    \
      "any", "authentication_error",                                           \
      "This operation needs an authenticated caller.")                         \
    X(KEY_REUSED, "key-reused", 422, "Idempotency-Key is already used", 0, 0,  \
      "any", "idempotency_error",                                              \
      "The key was sent before with another request.")                         \
    X(IN_FLIGHT, "in-flight", 409,                                             \
      "A request is outstanding for this Idempotency-Key", 1, 0, "in-flight",  \
      "api_error", "Send the same key again after the time in Retry-After.")   \
    X(OUTCOME_UNKNOWN, "outcome-unknown", 409,                                 \
      "The outcome of this request is not known", 1, 0, "indeterminate",       \
      "api_error",                                                             \
      "It may have taken effect. Do not use a new key: find out first.")       \
    X(RESPONSE_UNAVAILABLE, "response-unavailable", 409,                       \
      "The response to this request was not kept", 0, 0, "completed",          \
      "api_error",                                                             \
      "The request has been carried out; its response cannot be repeated.")    \
    X(STORE_UNAVAILABLE, "store-unavailable", 503,                             \
      "The idempotency store is unavailable", 1, 0, "any", "api_error",        \
      "Nothing was done now. Send the same key again after the time in "       \
      "Retry-After.")

enum once__problem {
#define ONCE__PROBLEM_ROW(name, code, status, title, again, fresh, state,      \
                          error, detail)                                       \
    ONCE__PROBLEM_##name,
    ONCE__PROBLEMS(ONCE__PROBLEM_ROW)
#undef ONCE__PROBLEM_ROW
        ONCE__PROBLEM_COUNT
};

enum { ONCE__PROBLEM_MAX = 1280 }; /* bytes of the longest body */

int once__problem_status(int problem);
const char *once__problem_code(int problem);

/*
 * Writes the RFC 9457 body to `out`, at least ONCE__PROBLEM_MAX bytes, and
 * returns its length (no NUL). `status` 0: the problem's own; 502 and 504 are
 * OUTCOME_UNKNOWN for the first caller. `detail` NULL: the problem's own;
 * it is escaped to US-ASCII (a byte outside becomes `?`) and cut to 256 bytes
 * after that.
 */
size_t once__problem_body(int problem, int status, const char *detail,
                          char *out);

/* ---- What the client gets (sections 2 and 3), decision.c ---------------- */

/* X(NAME, text): the status header Idempotency-Status, and $once_status. */
#define ONCE__STATUS_HEADERS(X)                                                \
    X(NONE, "-") /* not guarded, or not decided yet */                         \
    X(NEW, "new")                                                              \
    X(REPLAYED, "replayed")                                                    \
    X(IN_FLIGHT, "in_flight")                                                  \
    X(MISMATCH, "mismatch")                                                    \
    X(INDETERMINATE, "indeterminate")                                          \
    X(UNSTORED, "unstored")                                                    \
    X(UNAVAILABLE, "unavailable")                                              \
    X(UNPROTECTED, "unprotected")                                              \
    X(INVALID, "invalid")

enum once__status_header {
#define ONCE__STATUS_ROW(name, text) ONCE__STATUS_##name,
    ONCE__STATUS_HEADERS(ONCE__STATUS_ROW)
#undef ONCE__STATUS_ROW
        ONCE__STATUS_COUNT
};

const char *once__status_text(int header);

enum once__next {
    ONCE__NEXT_NONE = 0, /* nothing is decided yet                          */
    ONCE__NEXT_RUN,      /* the owner: the service gets the request, once   */
    ONCE__NEXT_PASS,     /* the service gets it, and Once keeps out of it   */
    ONCE__NEXT_REPLAY,   /* send the stored response                        */
    ONCE__NEXT_PROBLEM,  /* send a problem                                  */
    ONCE__NEXT_OWN,      /* send the service's own response                 */
    ONCE__NEXT_DROP      /* there is nothing to send: close the connection  */
};

enum { ONCE__NO_PROBLEM = -1 };

typedef struct once__decision {
    int next;             /* enum once__next                                */
    int problem;          /* enum once__problem, or ONCE__NO_PROBLEM        */
    int status;           /* of the problem's response, else 0              */
    unsigned retry_after; /* seconds; 0: no such header                     */
    int header;           /* enum once__status_header                       */
    int marked;           /* 1: the response has the status header          */
    uint32_t attempt;     /* the owner's number, or the one whose response
                           * is repeated; 0: not known                      */
} once__decision;

/* Before the claim: the key or the caller cannot be used, and `problem` (one of
 * the first three) says why. */
once__decision once__decide_refusal(const once__policy *policy, int problem);

/*
 * After the claim, which ended with `rc`; also with a code below zero if it
 * could not be begun. `record` is read after ONCE_OWNER and ONCE_REPLAY,
 * `left_ms` (what the lease has left) after ONCE_IN_FLIGHT. After REPLAY
 * `*stored` is the response, borrowed from the record. `*err` gets an empty
 * text, or one for the operator if the record is corrupt.
 */
once__decision once__decide_claim(const once__policy *policy, int rc,
                                  const once_record *record, uint64_t left_ms,
                                  once__response *stored, once_error *err);

/* The end of an attempt that owned. */
typedef struct once__end {
    int action;   /* enum once__verdict_action, what the engine was asked  */
    int observed; /* enum once__observed, why                              */
    int has_own;  /* 0: there is no whole response that could be sent       */
    int rc;       /* what the engine reported                              */
    const once_record *record; /* read after ONCE_REPLAY                    */
} once__end;

/* After the end; `*stored` as above. */
once__decision once__decide_end(const once__policy *policy,
                                const once__end *end, once__response *stored);

#endif /* ONCE_HTTP_HTTP_H */
