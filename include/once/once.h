/* SPDX-License-Identifier: Apache-2.0 */
/*
 * once.h - make a request, a message or a command take effect at most once,
 * and answer every repeat with the first result.
 *
 * The life of one attempt, with the calls of this header:
 *
 *    once_attempt_new --> once_claim --+--> ONCE_OWNER: do the work, then
 *                                      |      once_complete  it has an outcome
 *                                      |      once_release   nothing happened
 *                                      |      once_give_up   unknown
 *                                      +--> ONCE_REPLAY: here is the outcome
 *                                      +--> ONCE_IN_FLIGHT, ONCE_UNKNOWN,
 *                                           ONCE_MISMATCH, ONCE_FREE
 *    once_attempt_free
 *
 * While an attempt is the owner the engine renews its lease. A process that
 * dies stops renewing, and when the lease has expired its record becomes
 * *indeterminate*: neither failed nor absent. It stays so until an operator
 * resolves it.
 *
 * Conventions of all functions:
 *
 * Errors.    A function that returns int returns an error below zero, and an
 *            answer from zero on. Replay, in flight, mismatch and unknown are
 *            answers. ONCE_ESTORE is the only error after which the operation
 *            may have been applied; after every other error nothing was
 *            changed. Exceptions are listed with the function.
 * Details.   A `once_error *err` may be NULL, belongs to the caller, and is
 *            written only when an error is returned. Texts never contain a key,
 *            a scope, a credential or a body.
 * Ownership. Arguments are borrowed for the call. What is returned through
 *            `**out` belongs to the caller, and `*out` is written only with
 *            ONCE_OK. A pointer or once_bytes that a function returns is
 *            borrowed from the handle in its first argument.
 * Threads.   An engine may be used by any number of threads at once. An attempt
 *            belongs to one thread at a time. Callbacks run on the engine's
 *            thread: they must not block and must not call a synchronous
 *            function.
 *
 * Limits are named ONCE_*_MAX. Times are in milliseconds, and their names end
 * in `_ms`.
 */
#ifndef ONCE_ONCE_H
#define ONCE_ONCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONCE_VERSION "0.1.0"

#if defined(__GNUC__)
#define ONCE_API __attribute__((visibility("default")))
#define ONCE_CHECK __attribute__((warn_unused_result))
#define ONCE_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define ONCE_API
#define ONCE_CHECK
#define ONCE_PRINTF(f, a)
#endif

/* ---- Errors ---------------------------------------------------------- */

/*
 * X(name, number, 1 if the same call may succeed later, text). Numbers are
 * never reused. All but ONCE_ESTORE mean that nothing was changed.
 */
#define ONCE_ERRORS(X)                                                         \
    X(ONCE_ENOMEM, -1, 1, "out of memory")                                     \
    X(ONCE_EINVAL, -2, 0, "an argument is out of range")                       \
    X(ONCE_ELIMIT, -3, 0, "something is larger than its limit")                \
    X(ONCE_EBUSY, -4, 1, "the engine's queue is full")                         \
    X(ONCE_ESTORE, -5, 1, "the store did not answer; it may have happened")    \
    X(ONCE_ECORRUPT, -6, 0, "a record fails its checksum")                     \
    X(ONCE_EVERSION, -7, 0, "written by a version that is not understood")     \
    X(ONCE_EURL, -8, 0, "not a store URL")                                     \
    X(ONCE_EOPEN, -9, 1, "the store cannot be opened")                         \
    X(ONCE_ECLOSED, -10, 0, "the engine is closing")                           \
    X(ONCE_ENOSYS, -11, 0, "this store cannot do that")                        \
    X(ONCE_EFULL, -12, 1, "the store has no room; nothing was changed")        \
    X(ONCE_EAWAY, -13, 1, "the store's server cannot be reached")              \
    X(ONCE_EABORTED, -14, 1, "roll back and do the whole transaction again")   \
    X(ONCE_ETX, -15, 0, "no transaction is open, or it has failed")            \
    X(ONCE_EROLLBACK, -16, 0, "the store was restored to an earlier state")

/* clang-format off */
enum once_errors {
    ONCE_OK = 0,
#define ONCE__ENUM(name, number, again, text) name = number,
    ONCE_ERRORS(ONCE__ENUM)
#undef ONCE__ENUM
    ONCE__ERRORS_END = -999
};
/* clang-format on */

/*
 * Returns one line of English for an error or an answer, for any other number
 * "no such code". Never NULL; static. Since 0.1.
 */
ONCE_API const char *once_text(int code);

/* What went wrong, in one line that is safe to log. */
typedef struct once_error {
    int code;       /* The same number as the function returned. */
    char text[252]; /* Ends with NUL. */
} once_error;

/* ---- Values ---------------------------------------------------------- */

enum once_sizes {
    ONCE_NAME_SIZE = 32,        /* name of a record: SHA-256 over scope, key */
    ONCE_FINGERPRINT_SIZE = 32, /* SHA-256 over the request                  */
    ONCE_TOKEN_SIZE = 16,       /* 128 random bits, chosen by the attempt    */
    ONCE_GROUP_SIZE = 32,       /* text for operators, filled up with NUL    */
    ONCE_TRACE_SIZE = 16,       /* trace id of W3C Trace Context, or zeros   */
    ONCE_SUBJECT_SIZE = 8,      /* whose record it is: a digest, or zeros    */
    ONCE_LABEL_MAX = 128        /* bytes of a label                          */
};

#define ONCE_LEASE_MIN_MS 10u
#define ONCE_LEASE_MAX_MS 3600000u              /* one hour, then renew  */
#define ONCE_KEEP_MAX_MS UINT64_C(315360000000) /* ten years             */
#define ONCE_RESULT_MAX ((size_t)64 << 20)      /* bytes of one outcome  */
#define ONCE_NOTE_MAX ((size_t)1024)            /* bytes of a note       */

/* Bytes and how many there are. `data` may be NULL if size is 0. */
typedef struct once_bytes {
    const void *data;
    size_t size;
} once_bytes;

/* The state of a record. The numbers are stored. */
enum once_state {
    ONCE_ABSENT = 0,       /* no row, or one kept after a release           */
    ONCE_CLAIMED = 1,      /* owned; provably nothing was sent              */
    ONCE_DISPATCHED = 2,   /* owned; may have been executed                 */
    ONCE_COMPLETED = 3,    /* outcome recorded, immutable                   */
    ONCE_INDETERMINATE = 4 /* sent, owner gone, outcome unknown             */
};

/* The kind of an outcome. Both kinds are results. The numbers are stored. */
enum once_kind { ONCE_NO_KIND = 0, ONCE_SUCCESS = 1, ONCE_FAILURE = 2 };

/* Answers of a store or an attempt. */
enum once_answer {
    /* ONCE_OK = 0: done, also if the same call had done it before.         */
    ONCE_OWNER = 1,     /* this attempt is the owner                        */
    ONCE_IN_FLIGHT = 2, /* another attempt is, and its lease runs           */
    ONCE_REPLAY = 3,    /* completed: the outcome is in the record          */
    ONCE_UNKNOWN = 4,   /* indeterminate                                    */
    ONCE_LOST = 5,      /* indeterminate; this attempt was the owner        */
    ONCE_MISMATCH = 6,  /* the key belongs to another fingerprint           */
    ONCE_FREE = 7,      /* nothing is recorded, or not any more             */
    ONCE_FENCED = 8,    /* not the owner, or not any more: nothing changed  */
    ONCE_REFUSED = 9,   /* not possible in this state: nothing changed      */
    ONCE_REPEATED = 10, /* done before; the result is not handed out        */
    ONCE_EXPIRED = 11,  /* the key is too old; nothing is recorded of it   */
    ONCE_TOO_SOON = 12  /* its time is in the future; nothing is recorded  */
};

/* Policy of a claim, also kept in the record. A bit counts only if it is set in
 * both the claim and the record. */
enum once_policy {
    ONCE_TAKEOVER = 1,    /* an owner whose lease expired may be replaced: at
                           * least once. Only where the other side
                           * recognises the key                             */
    ONCE_RETRY_FAILED = 2 /* a failure may be tried again: at least once    */
};

/*
 * Why a record is indeterminate, or why it was released: X(name, number, word).
 * The numbers are stored. The words are the same in logs, metrics and lists.
 */
#define ONCE_REASONS(X)                                                        \
    X(ONCE_REASON_NONE, 0, "-")                                                \
    X(ONCE_REASON_RESET, 1, "reset") /* the connection was lost */             \
    X(ONCE_REASON_TIMEOUT, 2, "timeout")                                       \
    X(ONCE_REASON_BAD_RESPONSE, 3, "bad-response")                             \
    X(ONCE_REASON_TRUNCATED, 4, "truncated")                                   \
    X(ONCE_REASON_UPSTREAM_SAID, 5, "upstream-said") /* an outcome header */   \
    X(ONCE_REASON_OWNER_GONE, 6, "owner-gone")       /* its lease expired */   \
    X(ONCE_REASON_STORE_SILENT, 7, "store-silent")                             \
    X(ONCE_REASON_GAP, 8, "gap") /* lost between a backup and its restore */   \
    X(ONCE_REASON_OPERATOR, 9, "operator")                                     \
    X(ONCE_REASON_NOT_SENT, 10, "not-sent")                                    \
    X(ONCE_REASON_STATUS, 11, "status")   /* of the answer: lists name it */   \
    X(ONCE_REASON_PROGRAM, 12, "program") /* the work itself said so */

/* clang-format off */
enum once_reason {
#define ONCE__ENUM(name, number, word) name = number,
    ONCE_REASONS(ONCE__ENUM)
#undef ONCE__ENUM
    ONCE__REASON_END
};
/* clang-format on */

/* The word of a reason, "-" for any other number. Never NULL; static. Since
 * 0.1. */
ONCE_API const char *once_reason_text(int reason);

/*
 * All that a store keeps about one name. `attempt` 0 means that there is no
 * row. Times are the store's clock, in milliseconds since 1970.
 */
typedef struct once_record {
    uint8_t state;       /* enum once_state                                  */
    uint8_t kind;        /* enum once_kind; not NO_KIND only if completed    */
    uint8_t policy;      /* enum once_policy bits of the last grant          */
    uint8_t doubt;       /* 1: an earlier, replaced attempt may have executed */
    uint32_t attempt;    /* number of the last grant: 1, 2, 3 ...            */
    uint64_t fence;      /* of the last grant; grows, is never repeated      */
    uint64_t lease_ms;   /* claimed, dispatched: when the lease expires      */
    uint64_t keep_ms;    /* completed, absent with row: not forgotten before */
    uint64_t granted_ms; /* when the last grant was made                     */
    uint64_t created_ms; /* when the first grant since it was absent was made */
    uint64_t ended_ms;   /* when the last grant ended: completed, released or
                          * indeterminate; claimed and dispatched: 0         */
    uint8_t reason;      /* enum once_reason: why it is indeterminate, was
                          * indeterminate before it was resolved, or was
                          * released                                         */
    uint8_t token[ONCE_TOKEN_SIZE]; /* of the owner, or of the last owner   */
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint8_t group[ONCE_GROUP_SIZE]; /* of the last grant: the kind of work  */
    once_bytes result; /* completed: the outcome's bytes; borrowed          */
    once_bytes note;   /* who resolved it, when and why; borrowed           */
    /* Of the last grant, for operators: no decision depends on them. */
    uint8_t trace[ONCE_TRACE_SIZE];
    uint8_t subject[ONCE_SUBJECT_SIZE];
    once_bytes label; /* what it is about, printable ASCII; borrowed        */
} once_record;

/* ---- Engines --------------------------------------------------------- */

typedef struct once_engine once_engine;
typedef struct once_attempt once_attempt;

/*
 * Options of an engine: initialise with ONCE_ENGINE_OPTIONS_INIT, which sets
 * `size`, and change what you need. Zero or NULL means the default in brackets.
 */
typedef struct once_engine_options {
    size_t size;
    uint32_t queue_max;   /* operations waiting for the store [65,536]     */
    uint32_t batch_max;   /* operations in one batch [1,024]               */
    uint32_t waiters_max; /* attempts that wait for another [10,000]       */
    uint32_t reap_ms;     /* period of the reaper [1,000]                  */
    uint32_t reap_max;    /* records in one step of the reaper [256]       */
    uint32_t drain_ms;    /* how long closing waits for the store [5,000]  */
    uint32_t no_reaper;   /* 1: this engine does not reap or forget; another
                           * process does [0]                              */
    /*
     * 1: a call that queues something does not wake the engine's thread; the
     * caller does, with once_engine_wake(), once for all of them. [0]
     */
    uint32_t manual_wake;
    /*
     * Called on the engine's thread after it has called the `done` callbacks
     * of a batch: the place to wake an event loop, once for all of them.
     */
    void (*flush)(void *user);
    void *user; /* the first argument of all these functions */
    /*
     * Called with a line of text that an operator should read: the store
     * failed, its clock was set, a record fails its checksum. Called on the
     * engine's thread, and while the store is being opened on the thread that
     * opens it. After a text that begins with ONCE_EVENT_NO_ANSWER nothing is
     * granted or replayed until another text says that the store answers again.
     */
    void (*event)(void *user, const char *text);
    /* The store's clock, in ms since 1970, for tests. [the host's clock] */
    uint64_t (*clock)(void *user);
    uint32_t create; /* 1: a store that does not exist is created; 0: it is
                      * ONCE_EOPEN, since what is missing may be a disk that
                      * is not mounted, and an empty store would execute all
                      * that it had recorded once more [0]                 */
    /*
     * If the store does not answer a complete or release until the lease has
     * expired, the call returns ONCE_ESTORE, and the engine goes on repeating
     * it: for `late_ms` [600,000], and for at most `late_bytes` of outcomes in
     * all, each counted as 2 KiB at least [67,108,864]. What exceeds a limit is
     * dropped; `event` reports how many were recorded and dropped.
     */
    uint32_t late_ms;
    uint32_t late_bytes;
    /*
     * 1: once_engine_open() returns before the store is open; the engine's
     * thread opens it. For callers that must not block. [0]
     */
    uint32_t background;
    /*
     * Called once, on the engine's thread, if the store can lose acknowledged
     * records, with a line that says how. NULL: `event` is called with it.
     */
    void (*caveat)(void *user, const char *text);
    /*
     * Called on the engine's thread for each record that its reaper has made
     * indeterminate because the owner's lease had expired: the record's name,
     * and the record. Both are borrowed for the call.
     */
    void (*lost)(void *user, const uint8_t name[ONCE_NAME_SIZE],
                 const once_record *r);
    /*
     * A folder in which the processes of this host keep the largest fence that
     * a durable store has granted to them, so that a store restored to
     * an earlier state is noticed when it is opened: ONCE_EROLLBACK, or an
     * event for a store that can lose acknowledged records. So is another
     * store at the same name or URL. NULL: none is kept. [NULL]
     */
    const char *witness;
    /* How often the engine counts the store's records for once_engine_stats(),
     * 0: never [0] */
    uint32_t count_ms;
    uint32_t look; /* 1: nothing is changed by this engine: a journal or a file
                    * on a file system that is mounted read-only is opened,
                    * too [0]                                            */
} once_engine_options;

#define ONCE_EVENT_NO_ANSWER "the store does not answer"

#define ONCE_ENGINE_OPTIONS_INIT                                               \
    {                                                                          \
        sizeof(once_engine_options), 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, \
            NULL, 0, 0, 0, 0, NULL, NULL, NULL, 0, 0                           \
    }

/*
 * Opens the store at `url` and starts an engine, which has one thread. The URL
 * begins with the name of a store and a colon, as in "sqlite:/var/lib/once.db";
 * docs/stores.md has the stores and their parameters. A text without a colon is
 * a name: "pay" is the store whose URL stands in /etc/once/stores.d/pay, as
 * once-stores(5) says; so is "name:pay". `options` may be NULL. Both are copied. The caller ends the engine with once_engine_close(). A
 * process that forks must open its engines after the fork. Returns
 *   ONCE_OK       `*out` is the engine.
 *   ONCE_EURL     There is no such store or name, or a parameter is wrong.
 *   ONCE_EOPEN    The store cannot be read or written, does not exist (see
 *                 once_store_init() and `create`), or its server has refused
 *                 the connection; or no thread can be started.
 *   ONCE_EAWAY    Its server cannot be reached, and may be later.
 *   ONCE_EVERSION The store was written by a version that is not understood.
 *   ONCE_ECORRUPT The store is damaged.
 *   ONCE_EROLLBACK `witness` is set, and the store has forgotten grants, or is
 *                 another one than this host was granted fences by at `url`.
 *   ONCE_EINVAL   An option is out of range; `err` names it.
 *   ONCE_ENOMEM   Out of memory.
 * With `background` it returns before the store was opened, and only ONCE_OK,
 * ONCE_EINVAL, ONCE_ENOMEM, or ONCE_EOPEN if no thread can be started. The
 * engine's thread opens the store and tries again every two seconds; `event`
 * reports why that failed, and when it succeeds. Calls wait for the first try.
 * After it has failed they return ONCE_EAWAY, which changes nothing, until the
 * store is open. once_engine_close() waits for a try that is under way.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_engine_open(const char *url,
                                         const once_engine_options *options,
                                         once_error *err, once_engine **out);

/*
 * Closes the engine. New calls return ONCE_ECLOSED; the store is asked what is
 * queued for up to `drain_ms`; every outstanding `done` is called; the thread
 * is stopped and the store closed. Attempts that were not freed before may only
 * be freed afterwards. The record of an attempt that is still the owner is left
 * to a reaper. Accepts NULL. Must not be called from a callback. Since 0.1.
 */
ONCE_API void once_engine_close(once_engine *e);

/* Wakes the engine's thread, so that it sees what was queued. Needed only with
 * `manual_wake`. From any thread; does not block. Since 0.1. */
ONCE_API void once_engine_wake(once_engine *e);

/*
 * Opens the store at `url` as once_engine_open() would, and closes it again, to
 * find out whether it can be used; a store that does not exist is not created.
 * Returns ONCE_OK or the errors of once_engine_open(). With ONCE_OK `*durable`
 * is 1 for a durable store, which loses no acknowledged record, and
 * `*shared` is 1 if several processes may open it at once; otherwise 0. Since
 * 0.1.
 */
ONCE_API ONCE_CHECK int once_store_check(const char *url, int *durable,
                                         int *shared, once_error *err);

enum once_latency { ONCE_LATENCY_BUCKETS = 18 };

/* Counters since the engine was opened, and gauges of this moment. */
typedef struct once_stats {
    uint64_t operations;   /* answered by the store                         */
    uint64_t batches;      /* passed to the store                           */
    uint64_t unknown;      /* batches that were not answered                */
    uint64_t repeated;     /* operations repeated after that                */
    uint64_t busy;         /* refused because the queue was full            */
    uint64_t renewed;      /* leases renewed                                */
    uint64_t reaped;       /* records whose lease had expired               */
    uint64_t forgotten;    /* records whose retention time had ended        */
    uint64_t corrupt;      /* records that failed their checksum            */
    uint64_t rollbacks;    /* the store was found to have forgotten grants  */
    uint64_t queued;       /* gauge: operations waiting for the store       */
    uint64_t live;         /* gauge: attempts that are owners               */
    uint64_t waiting;      /* gauge: attempts that wait for another         */
    uint64_t oldest_ms;    /* gauge: age of the oldest live attempt, or 0   */
    uint64_t unrecorded;   /* gauge: ends that are still being recorded,
                          * although their callers got ONCE_ESTORE        */
    uint64_t up;           /* gauge: 1: the store is open and answered last */
    uint64_t durable;      /* gauge: 1: it is open, and durable             */
    uint64_t swept_ms;     /* gauge: time since expired records were last
                          * looked for, or UINT64_MAX: not yet            */
    uint64_t late;         /* gauge: 1: its clock cannot be read, or is ahead
                          * of the elapsed store time: what is due       
                          * is forgotten later                            */
    uint64_t incarnation;  /* gauge: of the store's head                  */
    uint64_t gap_until_ms; /* gauge: of the store's head, 0: no gap       */
    /* Gauges: records of the store, not older than `count_ms`. */
    uint64_t counted; /* 0: not known, and the next ones are 0            */
    uint64_t claimed, dispatched, indeterminate;
    uint64_t oldest_indeterminate_ms; /* its `ended_ms`, 0: there is none */
    uint64_t apply_us; /* sum of the times that the batches took        */
    /* Batches by the time that they took: bucket i counts those that took less
     * than 2^i * 64 microseconds and are in no smaller one; the last bucket
     * counts all others. */
    uint64_t latency[ONCE_LATENCY_BUCKETS];
} once_stats;

/* Fills `*out`. From any thread; does not wait for the store. Since 0.1. */
ONCE_API void once_engine_stats(once_engine *e, once_stats *out);

/* ---- Attempts -------------------------------------------------------- */

/*
 * The request of an attempt. Zero it and set `size`, `name` and `fingerprint`;
 * zero in the others means the default in brackets.
 */
typedef struct once_request {
    size_t size;
    uint8_t name[ONCE_NAME_SIZE];
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint32_t policy;    /* enum once_policy bits [0]                        */
    uint32_t two_phase; /* 1: the claim is made, and then marked as
                         * dispatched: one durable write more, and a crash
                         * before the work begins frees the key [0]         */
    uint32_t lease_ms;  /* ONCE_LEASE_MIN_MS .. ONCE_LEASE_MAX_MS [30,000]  */
    uint32_t wait_ms;   /* how long to wait for another attempt [0]         */
    uint32_t store_ms;  /* how long an operation is repeated that the store
                         * does not answer, before it is ONCE_ESTORE [1,000] */
    uint64_t keep_ms;   /* how long an outcome is kept, at least lease_ms, at
                         * most ONCE_KEEP_MAX_MS [86,400,000]               */
    /* The kind of work, for an operator's list: printable ASCII, filled up with
     * NUL, or all NUL. No decision depends on it, and it is stored in clear. */
    uint8_t group[ONCE_GROUP_SIZE];
    uint8_t trace[ONCE_TRACE_SIZE];     /* trace id, or zeros               */
    uint8_t subject[ONCE_SUBJECT_SIZE]; /* whose it is, or zeros            */
    /* What a human may search for, such as an order's number: up to
     * ONCE_LABEL_MAX bytes of printable ASCII, copied. Not for secrets. No
     * decision depends on it, and it is stored in clear. */
    once_bytes label;
    /* When the key was made, in milliseconds since 1970, and how old it may be,
     * at most `keep_ms`; `max_age_ms` 0: the key says no time [0]. A key that
     * is older, or from the future, is not claimed: what is recorded of it
     * is told, and if nothing is, ONCE_EXPIRED or ONCE_TOO_SOON. */
    uint64_t born_ms, max_age_ms;
    /* The owner's token: ONCE_TOKEN_SIZE bytes of the system's random source,
     * for a caller that must be able to claim again, or to end, after this
     * process. Two attempts with one token are one owner. NULL: drawn [NULL] */
    const uint8_t *token;
} once_request;

/*
 * Makes an attempt, with a fresh token from the system's random source unless
 * the request has one. The request is copied, and the store is not asked. The
 * caller ends the attempt with once_attempt_free(). Returns
 *   ONCE_OK     `*out` is the attempt.
 *   ONCE_EINVAL A member of the request is out of range; `err` names it and its
 *               limit.
 *   ONCE_ENOMEM Out of memory, or of random numbers.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_attempt_new(once_engine *e,
                                         const once_request *request,
                                         once_error *err, once_attempt **out);

/*
 * Makes an attempt that is the owner already: its claim was answered
 * ONCE_OWNER, in this process or in another. The request is that of the claim,
 * with its token. Of the record that was granted `fence`, `attempt` and `doubt`
 * count. The store is not asked. The lease is not renewed, and freeing the
 * attempt gives nothing up: the caller ends it, and may do so once more, with
 * another attempt, if it does not know whether the end was recorded. Returns
 *   ONCE_OK     `*out` is the attempt.
 *   ONCE_EINVAL A member of the request is out of range, or it has no token, or
 *               the record has no fence.
 *   ONCE_ENOMEM Out of memory.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_attempt_resume(once_engine *e,
                                            const once_request *request,
                                            const once_record *granted,
                                            once_error *err,
                                            once_attempt **out);

/*
 * Frees the attempt. No call of it may be under way. An attempt that is still
 * the owner is given up first: its record becomes indeterminate, because it
 * is no longer known whether its work was done. Returns without waiting for
 * that. Accepts NULL. Since 0.1.
 */
ONCE_API void once_attempt_free(once_attempt *a);

/*
 * Called once for each *_start() that returned ONCE_OK, on the engine's thread,
 * with what the synchronous function would have returned. It may free the
 * attempt.
 */
typedef void once_done(once_attempt *a, int rc, void *user);

/*
 * Claims the key: asks to become the owner. once_claim() waits for the answer;
 * once_claim_start() returns at once, and `done` is called with the answer if
 * it has returned ONCE_OK. Only once for each attempt. Answers and errors:
 *   ONCE_OWNER     This attempt is the owner. Do the work, once, and end with
 *                  once_complete(), once_release() or once_give_up(). The
 *                  engine renews the lease until then.
 *   ONCE_REPLAY    The work was done before; once_attempt_record() has the
 *                  outcome.
 *   ONCE_IN_FLIGHT Another attempt is the owner, also after `wait_ms`;
 *                  once_attempt_left_ms() says for how long.
 *   ONCE_UNKNOWN   The work was begun before, and its outcome is not known.
 *   ONCE_MISMATCH  The key belongs to another request.
 *   ONCE_FREE      This attempt lost its claim before it could begin, and the
 *                  key is free: try again with a new attempt.
 *   ONCE_EXPIRED, ONCE_TOO_SOON
 *                  Nothing is recorded, and the key's time is too long ago or
 *                  ahead: the work may have been done, and is not begun.
 *   ONCE_ESTORE    The store did not answer for `store_ms`. This attempt is not
 *                  the owner and never will be. If its claim was applied it is
 *                  released, unless the store does not answer the release
 *                  either: then the record may become indeterminate.
 *   ONCE_EINVAL    The attempt has claimed before.
 *   ONCE_EBUSY     The engine's queue is full. It may be called again.
 *   ONCE_EAWAY     The store is not open yet; or the key carries a time, and the
 *                  store's clock is not known.
 *   ONCE_ECLOSED   The engine is closing.
 *   ONCE_EFULL     The store has no room for new records.
 *   ONCE_ECORRUPT, ONCE_EVERSION
 *                  The record cannot be read: the key counts as taken.
 *   ONCE_ENOMEM    Out of memory.
 * After every answer and error but ONCE_OWNER the attempt can only be freed,
 * except where another call is allowed above. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_claim(once_attempt *a, once_error *err);
ONCE_API ONCE_CHECK int once_claim_start(once_attempt *a, once_done *done,
                                         void *user);

/*
 * In place of a claim: asks what became of the key, and changes nothing. Of the
 * request only `name`, `wait_ms` and `store_ms` count; the fingerprint is not
 * compared. `done` is called with
 *   ONCE_FREE      Nothing is recorded, or not any more. An attempt may be on
 *                  its way all the same: it is no leave to use another key.
 *   ONCE_IN_FLIGHT Another attempt is the owner, also after `wait_ms`; or its
 *                  lease has expired, and no reaper has seen that yet.
 *   ONCE_REPLAY    Completed; once_attempt_record() has the outcome.
 *   ONCE_UNKNOWN   Indeterminate. Or the store was restored from a copy that
 *                  may lack the record: then its state is another one.
 *   an error       As of once_claim_start(); nothing was changed.
 * After each of them the attempt can only be freed. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_look_start(once_attempt *a, once_done *done,
                                        void *user);

/*
 * Records the outcome of the work. `kind` is ONCE_SUCCESS or ONCE_FAILURE;
 * `result` is copied. Only as the owner. Do not show a caller a byte of the
 * result before this is answered. Answers and errors:
 *   ONCE_OK     The outcome is durable, and may be shown.
 *   ONCE_REPLAY Another outcome is recorded, by an operator or, under takeover,
 *               by another attempt. Show that one: see once_attempt_record().
 *   ONCE_IN_FLIGHT, ONCE_UNKNOWN, ONCE_MISMATCH, ONCE_FREE
 *               This attempt is not the owner any more, and its outcome was not
 *               recorded. Report "unknown", and nothing of the outcome.
 *   ONCE_ESTORE The store did not answer until the lease had expired. Report
 *               "unknown". The record is dispatched or indeterminate, or has
 *               this outcome. The engine goes on recording it, within `late_ms`
 *               and `late_bytes` of its options, so a repeat may be a replay.
 *   ONCE_EINVAL The attempt is not the owner, or `kind` is wrong. Nothing was
 *               changed.
 *   ONCE_ELIMIT `result` is over ONCE_RESULT_MAX. The attempt is still the
 *               owner.
 *   ONCE_ENOMEM No memory for the copy. The attempt is still the owner.
 *   ONCE_ECLOSED The engine is closed. Nothing was recorded, and the reaper
 *               makes the record indeterminate.
 *   ONCE_ECORRUPT, ONCE_EVERSION
 *               The record cannot be read any more.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_complete(once_attempt *a, int kind,
                                      once_bytes result, once_error *err);
ONCE_API ONCE_CHECK int once_complete_start(once_attempt *a, int kind,
                                            once_bytes result, once_done *done,
                                            void *user);

/*
 * Frees the key: the work provably did not begin, and never will. Only as the
 * owner. `reason` is an enum once_reason, kept with the record. Answers and
 * errors:
 *   ONCE_OK      This attempt has released the key. once_attempt_record() is
 *                absent; or indeterminate, if an earlier attempt, which this
 *                one had replaced, may have executed; or it is that of another
 *                attempt, which has taken over.
 *   ONCE_ESTORE  The store did not answer until the lease had expired. The
 *                record may be indeterminate; the engine goes on releasing it,
 *                as after once_complete().
 *   ONCE_EINVAL  The attempt is not the owner, or `reason` is not one.
 *   ONCE_ECLOSED The engine is closed. A reaper makes the record indeterminate
 *                when the lease has expired.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_release(once_attempt *a, int reason,
                                     once_error *err);
ONCE_API ONCE_CHECK int once_release_start(once_attempt *a, int reason,
                                           once_done *done, void *user);

/*
 * Makes the record indeterminate: the work may have been done, and its outcome
 * is not known. Only as the owner. `reason` is an enum once_reason, kept with
 * the record. Answers and errors:
 *   ONCE_OK      The record is indeterminate.
 *   ONCE_ESTORE  The store did not answer. The record becomes indeterminate
 *                when the lease expires, at the latest.
 *   ONCE_EINVAL  The attempt is not the owner, or `reason` is not one.
 *   ONCE_ECLOSED The engine is closed; as for ONCE_ESTORE.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_give_up(once_attempt *a, int reason,
                                     once_error *err);
ONCE_API ONCE_CHECK int once_give_up_start(once_attempt *a, int reason,
                                           once_done *done, void *user);

/*
 * Ends the waiting of a claim for another attempt: it is answered
 * ONCE_IN_FLIGHT soon, and its `done` is called. Nothing else is cancelled.
 * From any thread, at any time until the attempt is freed; does not block.
 * Since 0.1.
 */
ONCE_API void once_attempt_cancel(once_attempt *a);

/*
 * The record as it was when the last call was answered: after ONCE_REPLAY with
 * its result and note, after ONCE_OWNER with fence and attempt number. After
 * ONCE_MISMATCH it may have the result, which is another request's: it explains,
 * and must not be returned to a caller. Never
 * NULL; all zero before the first answer. Borrowed until the next call for the
 * attempt; the result's bytes until the attempt is freed. Since 0.1.
 */
ONCE_API const once_record *once_attempt_record(const once_attempt *a);

/*
 * As the owner, before once_complete(): how long its outcome is kept, in place
 * of the request's `keep_ms`. For outcomes that are worth less than others, such
 * as a failure that may be tried again after an hour. Returns ONCE_OK, or
 * ONCE_EINVAL: it is not the owner, or the time is below its lease or over ten
 * years. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_attempt_keep(once_attempt *a, uint64_t keep_ms);

/* After ONCE_IN_FLIGHT: milliseconds until the owner's lease expires. Otherwise
 * 0. Since 0.1. */
ONCE_API uint64_t once_attempt_left_ms(const once_attempt *a);

/* ---- Single operations ------------------------------------------------ */

/*
 * The operations of a store: the calls of the transition table in
 * docs/protocol.md, section 5, which says what each does and answers. The first
 * six are the steps of an attempt, which the functions above take by
 * themselves.
 */
enum once_verb {
    ONCE_OP_CLAIM = 1,
    ONCE_OP_DISPATCH,
    ONCE_OP_RENEW,
    ONCE_OP_COMPLETE,
    ONCE_OP_RELEASE, /* provably not executed; fence 0: by the token alone  */
    ONCE_OP_GIVE_UP, /* sent, and the outcome is not known                  */
    ONCE_OP_READ,
    ONCE_OP_REAP,    /* the lease has expired                               */
    ONCE_OP_RESOLVE, /* an operator records the outcome                     */
    ONCE_OP_REOPEN,  /* an operator frees the key; only with ONCE_TAKEOVER  */
    ONCE_OP_FORGET,  /* the retention time has ended                        */
    ONCE_OP_SHOW, /* READ without comparing the fingerprint: for operators  */
    ONCE__OP_END
};

typedef struct once_op once_op;

/*
 * One operation on one record. Zero it and fill in the first part. It and what
 * it points to must stay valid and unchanged until `done` is called.
 */
struct once_op {
    /* The question. */
    int verb;           /* enum once_verb                                   */
    int kind;           /* COMPLETE, RESOLVE: enum once_kind                */
    uint32_t policy;    /* CLAIM: enum once_policy bits                     */
    uint32_t two_phase; /* CLAIM                                            */
    uint32_t lease_ms;  /* CLAIM, DISPATCH, RENEW: length                   */
    uint64_t keep_ms;   /* CLAIM, COMPLETE, RELEASE, REAP, RESOLVE, REOPEN:
                         * length                                           */
    uint64_t fence;     /* of the owner, or as seen; FORGET: 0 is any       */
    uint8_t name[ONCE_NAME_SIZE];
    uint8_t token[ONCE_TOKEN_SIZE];
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint8_t group[ONCE_GROUP_SIZE]; /* of CLAIM, like the next three    */
    uint8_t trace[ONCE_TRACE_SIZE];
    uint8_t subject[ONCE_SUBJECT_SIZE];
    once_bytes label;
    int reason; /* RELEASE, GIVE_UP: enum once_reason                       */
    once_bytes result; /* COMPLETE, RESOLVE                                 */
    once_bytes note;   /* RESOLVE, REOPEN: who, when and why                */

    /* For the engine. */
    uint32_t store_ms; /* how long it is repeated without an answer [1,000] */
    void (*done)(once_op *op);
    void *user; /* the caller's */

    /* The answer. */
    int rc;             /* enum once_answer, or an error                    */
    uint64_t left_ms;   /* ONCE_IN_FLIGHT: until the lease ends             */
    once_record record; /* as it is after the operation; its bytes are
                         * borrowed until `done` returns                    */

    once_op *next; /* for the holder of the operation, to link it           */
};

/*
 * Queues one operation, from any thread, and returns at once.
 *   ONCE_OK     `op->done(op)` will be called once, on the engine's thread.
 *               Then `op->rc` is an answer; or ONCE_ESTORE: the store did not
 *               answer for `store_ms`, and the operation may have been applied,
 *               now or later; or another error: nothing was changed.
 *   ONCE_EINVAL, ONCE_ELIMIT
 *               A member of `op` is out of range; `err` names it.
 *   ONCE_EBUSY, ONCE_ECLOSED, ONCE_EAWAY, ONCE_ENOMEM
 *               As for once_claim().
 * After an error nothing was queued, and `done` will not be called. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_submit(once_engine *e, once_op *op,
                                    once_error *err);

/*
 * Does one operation and waits for its answer; `op->done` is not used. Returns
 * `op->rc`, or the errors of once_submit(). Result, note and label of the answer
 * are copied; the caller frees them with once_op_clear(). Without memory for the
 * copies it is ONCE_ESTORE, because the operation may have been applied. Must
 * not be called from a callback. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_apply(once_engine *e, once_op *op,
                                   once_error *err);

/* Frees the copies that once_apply() has made. May be called after an error,
 * and twice. Since 0.1. */
ONCE_API void once_op_clear(once_op *op);

/* Called for each record; `name` and `r` are borrowed for the call. Returns 0
 * to go on, anything else to stop. */
typedef int once_each(void *user, const uint8_t name[ONCE_NAME_SIZE],
                      const once_record *r);

/* Which records a scan shows, and in which order. */
enum once_scan_what {
    ONCE_SCAN_ALL = 0, /* all, by name                                      */
    ONCE_SCAN_LEASE,   /* claimed or dispatched, and the lease has expired; in
                        * no order, without pages: for the reaper           */
    ONCE_SCAN_KEEP,    /* completed or absent, and `keep_ms` has passed;
                        * as above                                          */
    ONCE_SCAN_WAITING, /* indeterminate, by `ended_ms`, then by name        */
    ONCE_SCAN_LIVE,    /* claimed or dispatched, by `lease_ms`, then by name */
    ONCE__SCAN_END
};

/* A place in the order of a scan: that of one record. */
typedef struct once_position {
    uint64_t ms; /* WAITING: `ended_ms`; LIVE: `lease_ms`; otherwise 0      */
    uint8_t name[ONCE_NAME_SIZE];
} once_position;

/* The place of a record in the scan `what`. Since 0.1. */
ONCE_API once_position once_position_of(int what,
                                        const uint8_t name[ONCE_NAME_SIZE],
                                        const once_record *r);

/*
 * Calls `each` on the engine's thread for the records of the scan `what`
 * (ONCE_SCAN_ALL, ONCE_SCAN_WAITING or ONCE_SCAN_LIVE) in its order, beginning
 * with the first place behind `after` (NULL: with the first of all), for at
 * most `max` of them, 1 .. INT32_MAX. Results are not read: `result.data` is
 * NULL and `result.size` the length. It is not a snapshot: records that change
 * meanwhile may be shown as before or as after, and those whose place changes
 * twice or not at all. A page of WAITING or LIVE costs what waits or is live,
 * not what the store holds. Waits until the last was shown; must not be called
 * from a callback. Returns how many were shown, or an error, before which some
 * may have been shown: ONCE_EINVAL, ONCE_ENOMEM, ONCE_ECLOSED, ONCE_EAWAY,
 * ONCE_ESTORE (the store cannot be read), ONCE_ECORRUPT, ONCE_EVERSION. Since
 * 0.1.
 */
ONCE_API ONCE_CHECK int once_scan(once_engine *e, int what,
                                  const once_position *after, uint32_t max,
                                  once_each *each, void *user, once_error *err);

/* How many records a store has. */
typedef struct once_counts {
    uint64_t claimed, dispatched, indeterminate; /* exact                   */
    uint64_t rest;      /* completed, and absent with a row                 */
    int rest_estimated; /* 1: `rest` is an estimate                         */
} once_counts;

/*
 * Counts the store's records, at the same cost whatever their number. Waits for
 * the engine's thread; must not be called from a callback. Returns ONCE_OK;
 * ONCE_ENOSYS: this store does not count; or the errors of once_scan(). Since
 * 0.1.
 */
ONCE_API ONCE_CHECK int once_count(once_engine *e, once_counts *out,
                                   once_error *err);

enum { ONCE_STORE_ID_SIZE = 16 };

/* What a store is, beside its records. */
typedef struct once_store_head {
    uint8_t id[ONCE_STORE_ID_SIZE]; /* random, since the store was made     */
    /*
     * How often the store was restored from a copy, 0 .. ONCE_INCARNATION_MAX.
     * The upper bits of its fences, so that a restored store repeats none:
     * fence = incarnation * 2^48 + counter.
     */
    uint32_t incarnation;
    /* What was recorded from `gap_from_ms` until the store was restored is not
     * in it. Until `gap_until_ms` absent keys are treated as `gap` says. */
    uint32_t gap; /* enum once_gap */
    uint64_t gap_from_ms, gap_until_ms;
} once_store_head;

#define ONCE_INCARNATION_MAX 32767u
enum { ONCE__FENCE_BITS = 48 };

enum once_gap {
    ONCE_GAP_NONE = 0,
    ONCE_GAP_HOLD = 1,  /* an absent key is unknown: nothing is granted     */
    ONCE_GAP_ACCEPT = 2 /* an absent key is free: at least once             */
};

/* Reads the store's head. Waits for the engine's thread; must not be called
 * from a callback. ONCE_OK; ONCE_ENOSYS: this store has none; or the errors of
 * once_scan(). Since 0.1. */
ONCE_API ONCE_CHECK int once_head(once_engine *e, once_store_head *out,
                                  once_error *err);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_ONCE_H */
