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
#ifndef ONCE_CALLS_HTTP_HTTP_H
#define ONCE_CALLS_HTTP_HTTP_H

#include <once/once.h>

#include "base/response.h"

#define ONCE__KEY_MAX 255

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

/*
 * ONCE_EINVAL: `key`, or a part of one, is what programs send in place of a
 * value that they lack, such as "undefined" or the UUID of zeros. Many
 * operations would have this key. For what a client sends: an operator can
 * still look for such a record.
 */
ONCE_CHECK int once__key_refuse_placeholder(once_bytes key, once_error *err);

/* ---- Keys that carry a time (section 1), key_time.c --------------------- */

/* once_key_time */
enum once__key_form { ONCE__KEY_ANY, ONCE__KEY_UUID7, ONCE__KEY_ULID };

/* "uuid7", "ulid"; ONCE__KEY_ANY: it is neither. */
int once__key_form(once_bytes word);

/*
 * When a key was made, in milliseconds since 1970; 0 for ONCE__KEY_ANY. A UUID
 * of version 7 has its 36 characters, a ULID its 26; letters in either case.
 * ONCE_EINVAL: it has not this form.
 */
ONCE_CHECK int once__key_birth(int form, once_bytes key, uint64_t *born_ms,
                               once_error *err);

/* ---- Keys in a JSON body (section 1), body_key.c ------------------------ */

struct once__json; /* calls/http/json.h */

/* once_key_json: one or two pointers, borrowed; none: the key is no such. */
typedef struct once__key_pointers {
    once_bytes at[2];
    size_t n;
} once__key_pointers;

/* ONCE_EINVAL: it is no JSON pointer of at most 255 bytes, or the third. */
ONCE_CHECK int once__key_pointers_add(once__key_pointers *p, once_bytes pointer,
                                      once_error *err);

/*
 * The key of a body, and when it was made. ONCE_OK and `*len`: as
 * once__json_key(), 0 if there is none. ONCE_EINVAL, ONCE_ELIMIT: it cannot be
 * used, or its body has a Content-Encoding and says nothing.
 */
ONCE_CHECK int once__key_of_body(const once__key_pointers *p,
                                 once_bytes encoding,
                                 const struct once__json *doc, int form,
                                 char out[ONCE__KEY_MAX], size_t *len,
                                 uint64_t *born_ms, once_error *err);

enum { ONCE__KEY_LINE = 2 * ONCE__KEY_MAX + 3 };

/* The key as an RFC 8941 String, which once__key_parse() reads back; its size.
 * `out` ends in NUL. */
size_t once__key_write(once_bytes key, char out[ONCE__KEY_LINE]);

/* ---- Stored name and fingerprint (section 1), digest.c ----------------- */

/* Headers by which a POST asks for another method. Services read one of them,
 * and nobody can tell which: all count. */
enum { ONCE__OVERRIDES = 3 };
extern const char *const once__override_headers[ONCE__OVERRIDES];

typedef struct once__request_head {
    once_bytes query, type, encoding;
    once_bytes override[ONCE__OVERRIDES]; /* their values, empty if absent */
    once_bytes method, path; /* as the client sent them, without the query */
    int of_path; /* once_key_space path: the key belongs to method and path.
                  * Otherwise to the caller: then they are part of every
                  * fingerprint, and the same key with others is refused */
} once__request_head;

/* SHA-256 over a domain tag and the length-framed parts. */
void once__name(once_bytes scope, once_bytes realm,
                const once__request_head *head, once_bytes key,
                uint8_t out[ONCE_NAME_SIZE]);

typedef struct once__fingerprint once__fingerprint;

/* What counts when a repeat is compared with the first request. */
enum once__counts {
    ONCE__COUNT_QUERY = 1,
    ONCE__COUNT_TYPE = 2, /* Content-Type and Content-Encoding */
    ONCE__COUNT_BODY = 4,
    ONCE__COUNT_ALL = 7,
    ONCE__COUNT_JSON = 8 /* the body, as JSON where it is some */
};

enum { ONCE__BUT_MAX = 16 };

/* once_fingerprint, as it is written. */
typedef struct once__compared {
    unsigned counts;               /* enum once__counts; 0: nothing yet    */
    once_bytes but[ONCE__BUT_MAX]; /* JSON pointers to what does not count */
    size_t n_but;
} once__compared;

/* Adds "query", "type", "body", "json" or "but=POINTER", which is borrowed. */
ONCE_CHECK int once__compared_add(once__compared *c, once_bytes word,
                                  once_error *err);
/* When all words are there: do they go together? */
ONCE_CHECK int once__compared_check(const once__compared *c, once_error *err);

/*
 * Begins a fingerprint over method and path, unless they are part of the name,
 * the headers that override the method, and the parts in `counts`: they are length-framed, then
 * the body is streamed and its length framed at the end. Where the type is
 * multipart and the body counts, the boundary does not: neither in the type nor
 * in the delimiters of the body. Where the encoding is gzip, the time in the
 * body's head does not count. End it with once__fingerprint_free().
 */
ONCE_CHECK int once__fingerprint_new(unsigned counts,
                                     const once__request_head *head,
                                     once__fingerprint **out);
void once__fingerprint_body(once__fingerprint *f, const void *data,
                            size_t size);
/* 1: the body counts as JSON, if it is some: end with the next function. */
int once__fingerprint_is_json(const once__fingerprint *f);
/*
 * In place of once__fingerprint_end(): ONCE_OK or ONCE_ENOMEM. `doc` is the
 * body's tree, NULL if it is not JSON, and of no use later. The bytes count
 * where its meaning is not exact (once__json_write()).
 */
ONCE_CHECK int once__fingerprint_end_json(once__fingerprint *f,
                                          struct once__json *doc,
                                          const once__compared *compared,
                                          uint8_t out[ONCE_FINGERPRINT_SIZE]);
/* Once, and the last call but free. */
void once__fingerprint_end(once__fingerprint *f,
                           uint8_t out[ONCE_FINGERPRINT_SIZE]);
void once__fingerprint_free(once__fingerprint *f); /* accepts NULL */

/* In place of what `counts` says: a text that the operator chose. */
void once__fingerprint_of_text(const once__request_head *head, once_bytes value,
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
/* The same for once_unknown: a number from 400 to 599 and no class. */
ONCE_CHECK int once__statuses_add_unknown(once__statuses *set, once_bytes text,
                                          once_error *err);
int once__statuses_has(const once__statuses *set, int status);
int once__statuses_all(const once__statuses *set); /* 1: 200..599 are all in */

/* What a status says where there is no outcome header. */
typedef struct once__rules {
    once__statuses final;    /* the outcome                                */
    once__statuses released; /* not executed; comes before `final`         */
    once__statuses unknown;  /* no outcome; comes before both              */
    uint64_t failed_ms;      /* how long a failure is kept, 0: as all else */
} once__rules;

/* once_final, once_release and once_unknown, as they are written. NULL is the
 * default: 2xx 3xx 4xx 5xx; 401 408 421 425 429; 502 504
 * 520 521 522 523 524 529 530. */
typedef struct once__status_lists {
    const once__statuses *final, *released, *unknown;
} once__status_lists;

/* One number in two lists: `final`, `release` or `unknown`. */
typedef struct once__status_clash {
    int status;
    const char *one, *other;
} once__status_clash;

/*
 * A number is stronger than a class: an unknown or a released status is taken
 * out of a final class. A number that is written in one list leaves the
 * defaults of the others. ONCE_EINVAL: `*clash` is the first number that two
 * written lists have, and `*out` must not be used.
 */
ONCE_CHECK int once__rules_make(const once__status_lists *lists,
                                once__rules *out, once__status_clash *clash);

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
    ONCE__GONE,         /* the attempt ended before its response            */
    ONCE__SERVICE_LOST  /* a whole head, and its status is in once_unknown: a
                         * balancer or proxy has lost the service           */
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
    int action;       /* enum once__verdict_action */
    int kind;         /* enum once_kind, for the first two */
    int reason;       /* enum once_reason, for the other two */
    uint64_t keep_ms; /* for the first two, 0: as long as all else */
} once__verdict;

/*
 * `outcome` is the outcome header, the upstream's Idempotency-Outcome, empty if
 * absent; an unknown value counts as absent. A status in `unknown` gives up, one
 * in `released` releases.
 * Where `final` is not all, a status outside is a FAILURE, which
 * ONCE_RETRY_FAILED makes repeatable, and one inside is a SUCCESS; where it is
 * all, statuses from 400 are FAILURE. "applied" completes whatever the status
 * (SUCCESS), "no-store" marks, "not-applied" releases, "unknown" gives up.
 *
 * The outcome header counts only with a whole or an unstorable response, is
 * compared without regard to case and comes before the status; both "applied"
 * and "no-store" are a SUCCESS, whatever the status, so that they are never
 * repeated. A status outside 100..599 is a bad header, which gives up.
 *
 * A status from 400 that counts, whichever of both kinds it is, is kept for
 * `failed_ms`: it may be forgotten earlier.
 */
once__verdict once__judge(int observed, int status, once_bytes outcome,
                          const once__rules *rules);

/*
 * A head has come, before its body: ONCE__SERVICE_LOST where `observed` is a
 * response that once__judge() takes for no outcome by its status. Nothing that
 * follows counts. Otherwise `observed`.
 */
int once__observe_status(int observed, int status, once_bytes outcome,
                         const once__rules *rules);

/* 1: a response is recorded, with its body or without. */
static inline int once__verdict_keeps(once__verdict verdict)
{
    return verdict.action == ONCE__DO_COMPLETE ||
           verdict.action == ONCE__DO_MARK;
}

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
    int probe;     /* ask the service what became of an unknown outcome     */
    int refuse;    /* a repeat is told that it is one, and nothing more     */
    int accept;    /* a repeat in flight is told where to ask, with 202      */
    int two_phase; /* as in once_request, like what follows                 */
    uint32_t lease_ms, wait_ms, store_ms;
    uint64_t keep_ms;
    int key_form;        /* enum once__key_form: which time a key carries   */
    uint64_t max_age_ms; /* and how old such a key may be                   */
} once__policy;

/*
 * Once `bypass`, `keep_ms` and the rules are there: keys carry the time that
 * `form` says, and may be `max_age_ms` old; 0: as old as they may be at most,
 * which is 15 minutes less than anything is kept. ONCE_EINVAL: it does not fit,
 * and `err` names once_key_time's part.
 */
ONCE_CHECK int once__policy_key_time(once__policy *policy, int form,
                                     uint64_t max_age_ms, once_error *err);

/* Fills all of `*out`, for once_attempt_new(), but for the key's `born_ms`. */
void once__request_fill(const once__policy *policy,
                        const uint8_t name[ONCE_NAME_SIZE],
                        const uint8_t fingerprint[ONCE_FINGERPRINT_SIZE],
                        const uint8_t group[ONCE_GROUP_SIZE],
                        once_request *out);

/*
 * Hands a verdict to the engine: once_complete_start(), once_release_start() or
 * once_give_up_start(), and returns what that returned. `result` is for the
 * first. As the owner only. The verdict's `keep_ms` does not count where an
 * attempt before this one may have executed.
 */
ONCE_CHECK int once__verdict_start(once_attempt *a, once__verdict verdict,
                                   once_bytes result, once_done *done,
                                   void *user);

/* ---- Asking what became of an unknown outcome (section 3.5), probe.c ------ */

#define ONCE__HEADER_RECORD "Idempotency-Record"
#define ONCE__HEADER_PROBE "Idempotency-Probe"
#define ONCE__HEADER_RECORDED_STATUS "Idempotency-Recorded-Status"

enum { ONCE__RECORD_TEXT = 2 * ONCE_NAME_SIZE + 1 }; /* Idempotency-Record */

#define ONCE__PROBE_NOTE "probe" /* the note of what a probe has decided */

/* What came of a probe, in metrics and logs: X(NAME, word). Only the first
 * decides anything. */
#define ONCE__PROBES(X)                                                        \
    X(APPLIED, "applied")                                                      \
    X(NOT_APPLIED, "not_applied") /* said so, which is no permission */        \
    X(UNKNOWN, "unknown")         /* said anything else */                     \
    X(INVALID, "invalid")         /* not the service's, not of this record */  \
    X(SILENT, "silent")           /* no whole answer in time */                \
    X(BUSY, "busy")               /* not asked: too many, or too soon */

enum once__probe_result {
#define ONCE__PROBE_ROW(name, text) ONCE__PROBE_##name,
    ONCE__PROBES(ONCE__PROBE_ROW)
#undef ONCE__PROBE_ROW
        ONCE__PROBE_COUNT
};

const char *once__probe_text(int result);

/* 1: the claim was answered `rc` from a record about which the service is to be
 * asked: its fence is in `record`. */
int once__may_probe(const once__policy *policy, int rc,
                    const once_record *record);

/* What came back. Zero it, set the first three, and show it each header. */
typedef struct once__probe_reply {
    int observed; /* enum once__observed                                    */
    int own;      /* 1: of the service itself: no page, redirect or cache   */
    int status;
    int twice; /* a header that must stand once has two lines               */
    once_bytes record, outcome, recorded_status;
} once__probe_reply;

void once__probe_header(once__probe_reply *r, once_bytes name,
                        once_bytes value);

/* Returns enum once__probe_result. After APPLIED `*status` is the one to be
 * recorded, with the answer's other headers and its body. */
int once__judge_probe(const once__probe_reply *r,
                      const uint8_t name[ONCE_NAME_SIZE], int *status);

/*
 * Who may ask now: one at a time for a name, none within a second of the last,
 * and ONCE__PROBES_MAX at once. All zero at first. The caller has a lock, or
 * one thread.
 */
enum { ONCE__PROBES_MAX = 64, ONCE__PROBES_RECENT = 256 };

struct once__probe_place {
    int used;
    uint8_t name[ONCE_NAME_SIZE];
    uint64_t at_ms; /* of a recent one: when it began */
};

typedef struct once__probe_places {
    struct once__probe_place now[ONCE__PROBES_MAX];
    struct once__probe_place recent[ONCE__PROBES_RECENT];
} once__probe_places;

/* Returns a place, for once__probe_leave(), or -1: ONCE__PROBE_BUSY. */
ONCE_CHECK int once__probe_enter(once__probe_places *places,
                                 const uint8_t name[ONCE_NAME_SIZE],
                                 uint64_t now_ms);
void once__probe_leave(once__probe_places *places, int place);

/* Fills all of `*out` but `done` and `user`, for once_submit(): the store
 * decides, once, by the fence that the claim has seen. `result` is borrowed. */
void once__probe_fill(const once__policy *policy,
                      const uint8_t name[ONCE_NAME_SIZE], uint64_t fence,
                      once_bytes result, once_op *out);

/* 1: the store has answered the decision with `rc`, and may be asked what
 * stands recorded by one claim more, of a new attempt. */
int once__probe_answered(int rc);

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
    X(ALREADY_DONE, "already-done", 409,                                       \
      "This request was carried out before", 0, 0, "completed",                \
      "invalid_request_error",                                                 \
      "It is not carried out again, and its response is not repeated here.")   \
    X(KEY_EXPIRED, "key-expired", 409, "Idempotency-Key has expired", 0, 0,    \
      "absent", "invalid_request_error",                                       \
      "The key is too old, and nothing is recorded of it. Find out whether "   \
      "the request took effect before you send it with a new key.")            \
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
 * returns its length (no NUL). `status` 0: the problem's own; for the first
 * caller OUTCOME_UNKNOWN has 502, 504 or the service's own. `recorded`, unless it is 0, is the
 * member `recorded_status`. `detail` NULL: the problem's own; it is escaped to
 * US-ASCII (a byte outside becomes `?`) and cut to 256 bytes after that.
 */
size_t once__problem_body(int problem, int status, int recorded,
                          const char *detail, char *out);

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
    X(REFUSED, "refused") /* completed, and repeats are refused here */        \
    X(EXPIRED, "expired") /* too old to be executed, or from the future */     \
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

/* ---- What a dry run would have done (section 6.1), would.c --------------- */

/* X(NAME, text): NONE outside of a dry run, and before anything is decided. */
#define ONCE__WOULDS(X)                                                        \
    X(NONE, "-")                                                               \
    X(RUN, "run")                                                              \
    X(REPLAY, "replay") /* it was not passed on, either */                     \
    X(CONFLICT, "conflict")                                                    \
    X(IN_FLIGHT, "in_flight")                                                  \
    X(REFUSE, "refuse")                                                        \
    X(UNKNOWN, "unknown")                                                      \
    X(RUN_AGAIN, "run_again") /* a replay, and the service got it again */

enum once__would {
#define ONCE__WOULD_ROW(name, text) ONCE__WOULD_##name,
    ONCE__WOULDS(ONCE__WOULD_ROW)
#undef ONCE__WOULD_ROW
        ONCE__WOULD_COUNT
};

const char *once__would_text(int would);
/* What a decision means: `next` and `problem` as without a dry run. */
int once__would_of(int next, int problem);
/* What becomes of the word when the dry run passes the request on. */
int once__would_passed(int would);
/* 1, and the whole seconds since the first request under the key: of a claim
 * that found a record. 0: nothing was found, or this is the first. */
int once__apart(int would, const once_record *record, uint64_t now_ms,
                uint64_t *seconds);

enum once__http_next {
    ONCE__NEXT_NONE = 0, /* nothing is decided yet                          */
    ONCE__NEXT_RUN,      /* the owner: the service gets the request, once   */
    ONCE__NEXT_PASS,     /* the service gets it, and Once keeps out of it   */
    ONCE__NEXT_REPLAY,   /* send the stored response                        */
    ONCE__NEXT_PROBLEM,  /* send a problem                                  */
    ONCE__NEXT_OWN,      /* send the service's own response                 */
    ONCE__NEXT_DROP,     /* there is nothing to send: close the connection  */
    ONCE__NEXT_TELL      /* send once__lookup_body()                        */
};

enum { ONCE__NO_PROBLEM = -1 };

typedef struct once__http_decision {
    int next;     /* enum once__http_next                                */
    int problem;  /* enum once__problem, or ONCE__NO_PROBLEM        */
    int status;   /* of a problem's or a told response, else 0      */
    int recorded; /* status of the recorded response, which the problem names;
                   * else 0                                         */
    unsigned retry_after; /* seconds; 0: no such header                     */
    const char *detail;   /* of the problem, or NULL: its own               */
    int header;           /* enum once__status_header                       */
    int marked;           /* 1: the response has the status header          */
    int located;          /* 1: it names the route's lookup as its Location  */
    uint32_t attempt;     /* the owner's number, or the one whose response
                           * is repeated; 0: not known                      */
    int would;            /* enum once__would, before the request is passed
                           * on                                             */
} once__http_decision;

/* Before the claim: the key or the caller cannot be used, and `problem` (one of
 * the first three) says why. */
once__http_decision once__decide_refusal(const once__policy *policy,
                                         int problem);

/*
 * After the claim, which ended with `rc`; also with a code below zero if it
 * could not be begun. `record` is read after ONCE_OWNER and ONCE_REPLAY,
 * `left_ms` (what the lease has left) after ONCE_IN_FLIGHT. After REPLAY
 * `*stored` is the response, borrowed from the record. `*err` gets an empty
 * text, or one for the operator if the record is corrupt.
 */
once__http_decision once__decide_claim(const once__policy *policy, int rc,
                                       const once_record *record,
                                       uint64_t left_ms, once__response *stored,
                                       once_error *err);

/*
 * After ONCE_MISMATCH: the problem's detail, if the recorded response is a
 * redirect that leads to `path`, the request's own as the client sent it; else
 * NULL. The detail is a constant text.
 */
const char *once__leads_here(const once_record *record, once_bytes path);

/*
 * After once_look_start(), which ended with `rc`; the rest as above. A
 * lookup never passes a request on, so no policy counts.
 */
once__http_decision once__decide_lookup(int rc, const once_record *record,
                                        once__response *stored,
                                        once_error *err);
/* Before it: as once__decide_refusal(). */
once__http_decision once__decide_lookup_refusal(int problem);

/* The end of an attempt that owned. */
typedef struct once__http_end {
    int action;   /* enum once__verdict_action, what the engine was asked  */
    int observed; /* enum once__observed, why                              */
    int status;   /* the service's, read after ONCE__SERVICE_LOST           */
    int has_own;  /* 0: there is no whole response that could be sent       */
    int rc;       /* what the engine reported                              */
    const once_record *record; /* read after ONCE_REPLAY                    */
} once__http_end;

/* After the end; `*stored` as above. */
once__http_decision once__decide_end(const once__policy *policy,
                                     const once__http_end *end,
                                     once__response *stored);

/* ---- What became of a request (section 10), lookup.c --------------------- */

enum { ONCE__LOOKUP_MAX = 4608 }; /* bytes of the longest body */

/*
 * Writes the JSON to `out`, at least ONCE__LOOKUP_MAX bytes, and returns its
 * length (no NUL). `rc` and `record` are what the engine answered: ONCE_FREE,
 * ONCE_IN_FLIGHT, ONCE_UNKNOWN, or ONCE_REPLAY, with which `stored` is the
 * decoded response and else is not read.
 */
size_t once__lookup_body(int rc, const once_record *record,
                         const once__response *stored, char *out);

/* "accept=": the path of a lookup, for a header Location. ONCE_EINVAL: it is
 * none, or could lead to another host. */
ONCE_CHECK int once__accept_check(once_bytes path, once_error *err);

/* How long a lookup with this query may wait: its `wait`, cut to `most_ms`; 0
 * if there is none that can be read. */
uint32_t once__lookup_wait(once_bytes query, uint32_t most_ms);

/* ---- Where a request is led after its grant (section 4), redirect.c ----- */

/* How often has the request been passed on? */
enum once__tries {
    ONCE__UNTRIED = 0, /* no handler has run                                */
    ONCE__TRIED,       /* one has run, and its response counts              */
    ONCE__DECIDED,     /* the outcome is known: only pages follow           */
    ONCE__REFUSED      /* the outcome is unknown, whatever follows          */
};

/* What would the place do to which the request has come? */
enum once__destination {
    ONCE__TO_FILE,      /* show a file, at most                             */
    ONCE__TO_UNWATCHED, /* pass the request on, and unseen by Once          */
    ONCE__TO_REQUEST,   /* pass the request on                              */
    ONCE__TO_ASKED,     /* the same, and the service asked for it           */
    ONCE__TO_PAGE       /* ask for a page                                   */
};

/* What came of the try before? */
enum once__shown {
    ONCE__SHOWN_NO_HEAD, /* no whole head of a response; or none was tried  */
    ONCE__SHOWN_HEAD,    /* a whole head                                    */
    ONCE__SHOWN_RAN,     /* a handler in this process has led it here       */
    ONCE__SHOWN_FAILED   /* and here that one's error has                   */
};

typedef struct once__redirect {
    int tries;    /* enum once__tries                                       */
    int observed; /* enum once__observed, with DECIDED                      */
    int sent;     /* 1: the service may have got the request                */
    int to;       /* enum once__destination                                 */
    int shown;    /* enum once__shown, of what was sent                     */
} once__redirect;

enum once__way_next {
    ONCE__WAY_FILE,    /* none of our business                              */
    ONCE__WAY_RUN,     /* pass the request on                               */
    ONCE__WAY_PAGE,    /* pass it on, for a page: its response is shown, and
                        * is not the outcome                                */
    ONCE__WAY_NO_PAGE, /* the outcome counts, and this page is not to be had */
    ONCE__WAY_REFUSE,  /* it would be sent again: the outcome is unknown    */
    ONCE__WAY_FORBID   /* an error of the configuration                     */
};

typedef struct once__way {
    int next;     /* enum once__way_next                                    */
    int tries;    /* from now on                                            */
    int observed; /* the same                                               */
} once__way;

once__way once__decide_redirect(const once__redirect *r);

#endif /* ONCE_CALLS_HTTP_HTTP_H */
