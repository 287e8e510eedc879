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
 *                                      |      once_give_up   nobody knows
 *                                      +--> ONCE_REPLAY: here is the outcome
 *                                      +--> ONCE_IN_FLIGHT, ONCE_UNKNOWN,
 *                                           ONCE_MISMATCH, ONCE_FREE
 *    once_attempt_free
 *
 * While an attempt is the owner the engine renews its lease; a process that
 * dies stops renewing, and its record becomes *indeterminate*: not failed, not
 * absent, and it stays so until somebody who knows resolves it.
 *
 * Four conventions, said once:
 *
 * Errors.    An int below zero is an error, zero and above is an answer.
 *            Replay, in flight, mismatch and unknown are answers. ONCE_ESTORE
 *            is the one error that says "it may have happened": all others
 *            leave things as they were. Each function lists what else is so.
 * Details.   Where there is a `once_error *err` it may be NULL, belongs to the
 *            caller and is written only on failure. Texts never hold a key, a
 *            scope, a credential or a body.
 * Ownership. Arguments are borrowed for the call. What comes back through an
 *            `**out` is yours; what comes back as a pointer or as once_bytes
 *            is borrowed from the handle that you asked.
 * Threads.   An engine may be used from every thread. An attempt belongs to
 *            one thread at a time. Callbacks run on the engine's thread: they
 *            must not block and must not call a synchronous function.
 *
 * Limits stand in ONCE_*_MAX. Times are milliseconds and say so.
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
 * X(name, number, may the same call be repeated, text). Numbers are never
 * reused. All but ONCE_ESTORE mean that nothing was changed.
 */
#define ONCE_ERRORS(X)                                                         \
    X(ONCE_ENOMEM, -1, 1, "out of memory")                                     \
    X(ONCE_EINVAL, -2, 0, "an argument is out of range")                       \
    X(ONCE_ELIMIT, -3, 0, "something is larger than its limit")                \
    X(ONCE_EBUSY, -4, 1, "the engine's queue is full")                         \
    X(ONCE_ESTORE, -5, 1, "the store did not answer; it may have happened")    \
    X(ONCE_ECORRUPT, -6, 0, "a record does not check")                         \
    X(ONCE_EVERSION, -7, 0, "written by a version that is not understood")     \
    X(ONCE_EURL, -8, 0, "not a store URL")                                     \
    X(ONCE_EOPEN, -9, 1, "the store cannot be opened")                         \
    X(ONCE_ECLOSED, -10, 0, "the engine is closing")                           \
    X(ONCE_ENOSYS, -11, 0, "this store cannot do that")                        \
    X(ONCE_EFULL, -12, 1, "the store has no room; nothing was changed")        \
    X(ONCE_EAWAY, -13, 1, "the store's server cannot be reached")              \
    X(ONCE_EABORTED, -14, 1, "roll back and do the whole transaction again")   \
    X(ONCE_ETX, -15, 0, "no transaction is open, or it has failed")

/* clang-format off */
enum once_errors {
    ONCE_OK = 0,
#define ONCE__ENUM(name, number, again, text) name = number,
    ONCE_ERRORS(ONCE__ENUM)
#undef ONCE__ENUM
    ONCE__ERRORS_END = -999
};
/* clang-format on */

/* One line of English for an error or an answer, never NULL. Since 0.1. */
ONCE_API const char *once_text(int code);

/* What went wrong, in one line that is safe to log. */
typedef struct once_error {
    int code;       /* The same number as the function returned. */
    char text[252]; /* Ends in NUL. */
} once_error;

/* ---- Values ---------------------------------------------------------- */

enum once_sizes {
    ONCE_NAME_SIZE = 32,        /* stored name: SHA-256 over scope, key, ... */
    ONCE_FINGERPRINT_SIZE = 32, /* SHA-256 over what makes it this request   */
    ONCE_TOKEN_SIZE = 16,       /* 128 random bits, chosen by the attempt    */
    ONCE_GROUP_SIZE = 32        /* text for people, filled up with NUL       */
};

#define ONCE_LEASE_MIN_MS 10u
#define ONCE_LEASE_MAX_MS 3600000u              /* one hour, then renew  */
#define ONCE_KEEP_MAX_MS UINT64_C(315360000000) /* ten years             */
#define ONCE_RESULT_MAX ((size_t)64 << 20)      /* bytes of one outcome  */
#define ONCE_NOTE_MAX ((size_t)1024)            /* an operator's remark  */

/* Bytes with their size. `data` may be NULL where size is 0. */
typedef struct once_bytes {
    const void *data;
    size_t size;
} once_bytes;

/* Where a record stands. The numbers are stored. */
enum once_state {
    ONCE_ABSENT = 0,       /* no row, or one kept after a release           */
    ONCE_CLAIMED = 1,      /* owned; provably nothing was sent              */
    ONCE_DISPATCHED = 2,   /* owned; may have been executed                 */
    ONCE_COMPLETED = 3,    /* outcome recorded, immutable                   */
    ONCE_INDETERMINATE = 4 /* sent, owner gone, outcome unknown             */
};

/* Of which kind an outcome is. Both are results. The numbers are stored. */
enum once_kind { ONCE_NO_KIND = 0, ONCE_SUCCESS = 1, ONCE_FAILURE = 2 };

/* What a store or an attempt answers. */
enum once_answer {
    /* ONCE_OK = 0: done, also when it had been done before.               */
    ONCE_OWNER = 1,     /* you hold the claim                               */
    ONCE_IN_FLIGHT = 2, /* another attempt holds it, and its lease runs     */
    ONCE_REPLAY = 3,    /* completed: the outcome is in the record          */
    ONCE_UNKNOWN = 4,   /* indeterminate                                    */
    ONCE_LOST = 5,      /* indeterminate, and the attempt was yours         */
    ONCE_MISMATCH = 6,  /* the same key with another fingerprint            */
    ONCE_FREE = 7,      /* nothing is recorded, or nothing any more         */
    ONCE_FENCED = 8,    /* not yours (any more): nothing was changed        */
    ONCE_REFUSED = 9,   /* not in this state: nothing was changed           */
    ONCE_REPEATED = 10  /* done before; its result is not handed out        */
};

/* Policy of a claim, kept in the record. The stricter of both wins. */
enum once_policy {
    ONCE_TAKEOVER = 1,    /* a lost owner may be replaced: only where the
                           * effect is recognised by its key               */
    ONCE_RETRY_FAILED = 2 /* a failure may be tried again: at least once    */
};

/*
 * All that a store keeps about one name. `attempt` 0 means that there is no
 * row. Times are the store's clock, in milliseconds since 1970.
 */
typedef struct once_record {
    uint8_t state;       /* enum once_state                                  */
    uint8_t kind;        /* enum once_kind; not NO_KIND only if completed    */
    uint8_t policy;      /* enum once_policy bits of the last grant          */
    uint8_t doubt;       /* 1: an earlier, replaced attempt may have executed */
    uint32_t attempt;    /* 1, 2, 3 ... until forgotten                      */
    uint64_t fence;      /* of the last grant, never repeated                */
    uint64_t lease_ms;   /* claimed, dispatched: when the lease ends         */
    uint64_t keep_ms;    /* completed, absent with row: kept at least so long */
    uint64_t granted_ms; /* when the last grant was made                    */
    uint8_t token[ONCE_TOKEN_SIZE]; /* of the owner, or of the last one     */
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint8_t group[ONCE_GROUP_SIZE]; /* of the last grant: what kind of work */
    once_bytes result; /* completed: the outcome's bytes; borrowed          */
    once_bytes note;   /* who resolved it, when and why; borrowed           */
} once_record;

/* ---- Engines --------------------------------------------------------- */

typedef struct once_engine once_engine;
typedef struct once_attempt once_attempt;

/*
 * Options of an engine: set `size` with ONCE_ENGINE_OPTIONS_INIT, change what
 * you need. Zero means the default in brackets.
 */
typedef struct once_engine_options {
    size_t size;
    uint32_t queue_max;   /* operations waiting for the store [65,536]     */
    uint32_t batch_max;   /* operations in one batch [1,024]               */
    uint32_t waiters_max; /* attempts that wait for another [10,000]       */
    uint32_t reap_ms;     /* period of the reaper [1,000]                  */
    uint32_t reap_max;    /* records a reaper's step looks at [256]        */
    uint32_t drain_ms;    /* how long closing waits for the store [5,000]  */
    uint32_t no_reaper;   /* 1: somebody else reaps this store [0]         */
    /*
     * 1: submitting does not wake the engine's thread; the caller does, with
     * once_engine_wake(), once for all that it submitted in a turn. [0]
     */
    uint32_t manual_wake;
    /*
     * Called on the engine's thread after the `done` callbacks of a batch
     * have been called: the place for one wake-up of an event loop.
     */
    void (*flush)(void *user);
    void *user;
    /*
     * What an operator should read: the store failed, its clock was set and
     * what is due is forgotten later, a record fails its checksum. On the
     * engine's thread; while the store is being opened, on the one that opens
     * it: another process recovers the store and is waited for. A text that
     * begins with ONCE_EVENT_SILENT says that nothing is granted
     * or replayed until another text says that the store answers again.
     */
    void (*event)(void *user, const char *text);
    /* The store's clock in ms since 1970, for tests. NULL: the host's. */
    uint64_t (*clock)(void *user);
    uint32_t must_exist; /* 1: a store that is not there is ONCE_EOPEN [0] */
    /*
     * What an owner said (completed, released) while the store did not answer
     * until the lease was over: its caller is told ONCE_ESTORE then, and the
     * engine goes on asking for so long [600,000], with at most so many bytes
     * of outcomes, each counted as 2 KiB at least [67,108,864]. What is over a
     * limit is dropped, and `event` says how many were recorded and dropped.
     */
    uint32_t late_ms;
    uint32_t late_bytes;
    /*
     * 1: the store is opened on the engine's thread, for callers that must not
     * wait, not even for a name server; see once_engine_open(). [0]
     */
    uint32_t background;
    /*
     * Called once, on the engine's thread, if the store is of class B: what
     * its acknowledged records are not safe from. NULL: `event` is told.
     */
    void (*caveat)(void *user, const char *text);
    /*
     * Called on the engine's thread for each record that its reaper made
     * indeterminate, because the owner was silent until its lease was over: its
     * name, and what is recorded. Both are borrowed for the call.
     */
    void (*lost)(void *user, const uint8_t name[ONCE_NAME_SIZE],
                 const once_record *r);
} once_engine_options;

#define ONCE_EVENT_SILENT "the store does not answer"

#define ONCE_ENGINE_OPTIONS_INIT                                               \
    {                                                                          \
        sizeof(once_engine_options), 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, \
            NULL, 0, 0, 0, 0, NULL, NULL                                       \
    }

/*
 * Opens the store at `url` ("memory:", "sqlite:PATH", "faulty:RULES@URL") and
 * starts an engine over it, with one thread. Fork first, open afterwards.
 * Returns ONCE_OK, or ONCE_EURL, ONCE_EOPEN (unreadable, unwritable, refused by
 * its server), ONCE_EAWAY (its server does not answer, and may later), or
 * ONCE_EVERSION, ONCE_ECORRUPT, ONCE_EINVAL, ONCE_ENOMEM; `*out` is then as it
 * was. The caller ends it with once_engine_close(). Since 0.1.
 *
 * With `background` this returns at once, without having looked at the store
 * or its URL: ONCE_OK, ONCE_EINVAL, ONCE_ENOMEM, or ONCE_EOPEN if no thread can
 * be started. The engine opens the store on its own thread and tries again
 * every two seconds; `event` is told why it did not succeed, and when it did.
 * What is asked while it is opened for the first time waits for that; after a
 * failure all is refused with ONCE_EAWAY, which begins and changes nothing,
 * until the store is there. Closing waits for an opening under way.
 */
ONCE_API ONCE_CHECK int once_engine_open(const char *url,
                                         const once_engine_options *options,
                                         once_error *err, once_engine **out);

/*
 * Refuses what is new (ONCE_ECLOSED), lets the store answer what is queued for
 * up to `drain_ms`, calls every outstanding `done`, stops the thread, closes
 * the store. Attempts must have been freed or be freed afterwards without
 * another call. An attempt that still owns its claim is left to the reaper.
 * Accepts NULL. Not from a callback. Since 0.1.
 */
ONCE_API void once_engine_close(once_engine *e);

/* With `manual_wake`: lets the engine see what was submitted. Since 0.1. */
ONCE_API void once_engine_wake(once_engine *e);

/*
 * Opens and closes the store at `url`, creating it where it does not exist, to
 * find out whether it could be used. Same errors as once_engine_open().
 * `*durable` is 1 for a store of class A, which loses no acknowledged record,
 * `*shared` is 1 if several processes may open it at once. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_store_check(const char *url, int *durable,
                                         int *shared, once_error *err);

enum once_latency { ONCE_LATENCY_BUCKETS = 16 };

/* Counters since the engine was opened, and gauges of this moment. */
typedef struct once_stats {
    uint64_t operations; /* answered by the store                         */
    uint64_t batches;    /* with which it was asked                       */
    uint64_t unknown;    /* batches that were not answered                */
    uint64_t repeated;   /* operations repeated after that                */
    uint64_t busy;       /* refused because the queue was full            */
    uint64_t renewed;    /* leases renewed                                */
    uint64_t reaped;     /* records whose lease was over                  */
    uint64_t forgotten;  /* records whose retention was over              */
    uint64_t corrupt;    /* records that did not check                    */
    uint64_t queued;     /* gauge: operations waiting for the store       */
    uint64_t live;       /* gauge: attempts of this engine that own       */
    uint64_t waiting;    /* gauge: attempts that wait for another         */
    uint64_t oldest_ms;  /* gauge: age of the oldest live attempt, or 0   */
    uint64_t apply_us;   /* sum: time the store took, over all batches    */
    /* Batches by the time that the store took: bucket i counts those below
     * 2^i * 64 microseconds that fit no smaller one, the last all others. */
    uint64_t latency[ONCE_LATENCY_BUCKETS];
} once_stats;

/* Fills `*out`. Never blocks on the store. Since 0.1. */
ONCE_API void once_engine_stats(once_engine *e, once_stats *out);

/* ---- Attempts -------------------------------------------------------- */

/*
 * What an attempt is about. Zero times mean the default in brackets.
 */
typedef struct once_request {
    size_t size;
    uint8_t name[ONCE_NAME_SIZE];
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint32_t policy;    /* enum once_policy bits                            */
    uint32_t two_phase; /* 1: claim, then mark as dispatched: one durable
                         * write more, and a crash before the work begins
                         * frees the key                                    */
    uint32_t lease_ms;  /* [30,000] ONCE_LEASE_MIN_MS .. ONCE_LEASE_MAX_MS  */
    uint32_t wait_ms;   /* how long to wait for another attempt [0]         */
    uint32_t store_ms;  /* how long an unanswered store is asked again
                         * before the claim ends as ONCE_ESTORE [1,000]     */
    uint64_t keep_ms;   /* how long an outcome is kept [86,400,000], not
                         * below lease_ms, up to ONCE_KEEP_MAX_MS           */
    /* What kind of work it is, for lists of an operator: printable ASCII,
     * filled up with NUL, or all NUL. It decides nothing and is no secret. */
    uint8_t group[ONCE_GROUP_SIZE];
} once_request;

/*
 * Makes an attempt, with a fresh token from the system's random source. Does
 * not touch the store. Returns ONCE_OK; ONCE_EINVAL names the field and its
 * limit; ONCE_ENOMEM. End it with once_attempt_free(). Since 0.1.
 */
ONCE_API ONCE_CHECK int once_attempt_new(once_engine *e,
                                         const once_request *request,
                                         once_error *err, once_attempt **out);

/*
 * Ends the handle. No operation of it may be outstanding. An attempt that is
 * still the owner is given up: its record becomes indeterminate, because it
 * can no longer be known whether its work was done. Accepts NULL. Since 0.1.
 */
ONCE_API void once_attempt_free(once_attempt *a);

/*
 * Called once for each *_start() that returned ONCE_OK, on the engine's thread,
 * with what the synchronous call would have returned.
 */
typedef void once_done(once_attempt *a, int rc, void *user);

/*
 * Become the owner. Returns
 *   ONCE_OWNER     Do the work, once, and then say what became of it. The
 *                  lease is renewed until then.
 *   ONCE_REPLAY    It has been done: see once_attempt_record().
 *   ONCE_IN_FLIGHT Somebody is at it (also after waiting for `wait_ms`).
 *   ONCE_UNKNOWN   It was begun and nobody knows how it ended.
 *   ONCE_MISMATCH  The key belongs to another request.
 *   ONCE_FREE      This attempt came too late to begin and has begun nothing:
 *                  the caller may try again with a new attempt.
 *   ONCE_ESTORE    The store did not answer for `store_ms`. Nothing was begun
 *                  by this attempt, and it never will be; its claim has been
 *                  taken back as far as that could be said.
 *   ONCE_EBUSY, ONCE_ECLOSED, ONCE_EFULL, ONCE_ECORRUPT, ONCE_EAWAY: nothing
 *                  was changed.
 * Only once for each attempt. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_claim(once_attempt *a, once_error *err);
ONCE_API ONCE_CHECK int once_claim_start(once_attempt *a, once_done *done,
                                         void *user);

/*
 * Store the outcome of the work; `result` is copied. Returns
 *   ONCE_OK     Durable. It may now be told.
 *   ONCE_REPLAY Another outcome stands recorded (the operator resolved it, or
 *               under takeover another attempt won): tell that one instead,
 *               see once_attempt_record().
 *   ONCE_IN_FLIGHT, ONCE_UNKNOWN, ONCE_MISMATCH, ONCE_FREE
 *               Another attempt holds the key, or nobody: tell nobody anything
 *               of the outcome.
 *   ONCE_ESTORE The store did not answer until the lease was over: tell the
 *               caller "unknown". The record is still dispatched, or is
 *               indeterminate, or has this very outcome. The engine goes on
 *               asking the store to record it, within `late_ms` and
 *               `late_bytes` of its options: a repeat may well replay it.
 *   ONCE_ELIMIT `result` is over ONCE_RESULT_MAX. The attempt still owns.
 * Only as the owner. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_complete(once_attempt *a, int kind,
                                      once_bytes result, once_error *err);
ONCE_API ONCE_CHECK int once_complete_start(once_attempt *a, int kind,
                                            once_bytes result, once_done *done,
                                            void *user);

/*
 * The work provably did not begin, and will not: free the key. Returns ONCE_OK,
 * or ONCE_ESTORE if the store did not answer until the lease was over. The
 * record is then indeterminate until the store has answered, which the engine
 * goes on asking for, as after once_complete(). Only as the owner. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_release(once_attempt *a, once_error *err);
ONCE_API ONCE_CHECK int once_release_start(once_attempt *a, once_done *done,
                                           void *user);

/*
 * The work may have been done, and nobody will learn: the record becomes
 * indeterminate now. Returns ONCE_OK, or ONCE_ESTORE (it becomes so when the
 * lease is over). Only as the owner. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_give_up(once_attempt *a, once_error *err);
ONCE_API ONCE_CHECK int once_give_up_start(once_attempt *a, once_done *done,
                                           void *user);

/*
 * Stop waiting: a claim that waits for another attempt ends as ONCE_IN_FLIGHT
 * soon. Its `done` is still called. May be called at any time. Since 0.1.
 */
ONCE_API void once_attempt_cancel(once_attempt *a);

/*
 * What the store showed with the last answer: for ONCE_REPLAY with the result,
 * for ONCE_OWNER with fence and attempt number. Borrowed until the next call
 * for the attempt; the result's bytes until it is freed. Since 0.1.
 */
ONCE_API const once_record *once_attempt_record(const once_attempt *a);

/* Milliseconds until the holder's lease ends, after ONCE_IN_FLIGHT. */
ONCE_API uint64_t once_attempt_left_ms(const once_attempt *a);

/* ---- Single operations ------------------------------------------------ */

/*
 * What can be asked of a store: rows of the transition table. The first five
 * are steps of an attempt, for those who drive one themselves.
 */
enum once_verb {
    ONCE_OP_CLAIM = 1,
    ONCE_OP_DISPATCH,
    ONCE_OP_RENEW,
    ONCE_OP_COMPLETE,
    ONCE_OP_RELEASE, /* provably not executed; fence 0: by token alone      */
    ONCE_OP_GIVE_UP, /* sent, and the outcome is not known                  */
    ONCE_OP_READ,
    ONCE_OP_REAP,
    ONCE_OP_RESOLVE, /* an outcome, by an operator: audited                 */
    ONCE_OP_REOPEN,  /* likewise; only where a takeover would be allowed    */
    ONCE_OP_FORGET,
    ONCE_OP_SHOW, /* READ without comparing the fingerprint: for operators  */
    ONCE__OP_END
};

typedef struct once_op once_op;

/*
 * One operation on one record. Zero it, fill in the first part. It and what it
 * points to must stay where they are until `done` is called.
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
    uint64_t fence;     /* what the caller shows; FORGET: 0 is any          */
    uint8_t name[ONCE_NAME_SIZE];
    uint8_t token[ONCE_TOKEN_SIZE];
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint8_t group[ONCE_GROUP_SIZE]; /* CLAIM                              */
    once_bytes result; /* COMPLETE, RESOLVE                                 */
    once_bytes note;   /* RESOLVE, REOPEN: who, when and why                */

    /* For the engine. */
    uint32_t store_ms; /* repeat an unanswered operation for so long [1,000] */
    void (*done)(once_op *op);
    void *user; /* yours */

    /* The answer. */
    int rc;             /* enum once_answer, or an error                    */
    uint64_t left_ms;   /* ONCE_IN_FLIGHT: until the lease ends             */
    once_record record; /* as it stands now; bytes borrowed until `done`
                         * returns                                          */

    once_op *next; /* whoever holds the operation links it          */
};

/*
 * Queue `op`. Returns ONCE_OK: `op->done(op)` will be called once, on the
 * engine's thread, with `op->rc` an answer, or ONCE_ESTORE (it may have been
 * applied), or ONCE_ECORRUPT and other errors of the record (it was not). Or
 * ONCE_EINVAL, ONCE_ELIMIT, ONCE_EBUSY, ONCE_ECLOSED, ONCE_EAWAY, ONCE_ENOMEM:
 * nothing was queued and `done` will not be called. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_submit(once_engine *e, once_op *op,
                                    once_error *err);

/*
 * The same, and wait; `done` is not used. Returns `op->rc` or what
 * once_submit() would. The bytes of the answer are copied to the heap: end
 * them with once_op_clear(). ONCE_ESTORE is also said when there is no memory
 * for that copy. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_apply(once_engine *e, once_op *op,
                                   once_error *err);
ONCE_API void once_op_clear(once_op *op);

/* Called for each record; return 0 to go on, anything else to stop. */
typedef int once_each(void *user, const uint8_t name[ONCE_NAME_SIZE],
                      const once_record *r);

/*
 * Walks over all records in the order of their names, starting behind `after`
 * (NULL: at the beginning), at most `max` of them. Results are not shown:
 * `result.data` is NULL and `result.size` the length. Waits for the engine;
 * `each` runs on its thread. Returns how many were shown, or an error, after
 * which some may have been shown. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_list(once_engine *e, const uint8_t *after,
                                  uint32_t max, once_each *each, void *user,
                                  once_error *err);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_ONCE_H */
