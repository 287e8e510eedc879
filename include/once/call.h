/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.h - run a C function at most once for each (group, key), and hand every
 * repeat the first result.
 *
 *    static int charge(once_task *task, void *user)
 *    {
 *        ... charge the card; where it is refused: return REFUSED; ...
 *        if (once_task_result(task, "text/plain", receipt, NULL) != ONCE_OK)
 *            once_task_unknown(task);
 *        return 0;
 *    }
 *
 *    once_call_options options = ONCE_CALL_OPTIONS_INIT;
 *    once_result result = ONCE_RESULT_INIT;
 *
 *    options.group = "charges";
 *    options.key = order_id;
 *    switch (once_call(engine, &options, charge, order, &err, &result)) {
 *    case ONCE_OK:         it ran now, and this is its result
 *    case ONCE_REPLAY:     it ran before, and this is that result
 *    ...
 *    }
 *    once_result_clear(&result);
 *
 * The life of one call:
 *
 *    claim --+--> you own it: work(task) --+--> returns: recorded   ONCE_OK
 *            |                             +--> once_task_release   ONCE_FREE
 *            |                             +--> once_task_unknown   ONCE_UNKNOWN
 *            +--> recorded before                   ONCE_REPLAY, ONCE_REPEATED
 *            +--> somebody is at it                 ONCE_IN_FLIGHT
 *            +--> begun, and nobody knows           ONCE_UNKNOWN
 *            +--> another fingerprint               ONCE_MISMATCH
 *
 * Failures are results, too: what the work returns is its *code*, 0 for success
 * and anything else for a failure of its own, and a failure is recorded and
 * replayed with its bytes like a success, unless `retry_failed` lets it run
 * again.
 *
 * Once makes sure that the work *begins* at most once. If the process dies in
 * it, nobody can know how far it came: the record becomes indeterminate, every
 * repeat is told ONCE_UNKNOWN, and so it stays until an operator resolves it
 * (`once resolve`). That is `lost owner: hold`. With `takeover` the next call
 * runs the work again instead: at least once, and only where the effect itself
 * is recognised by its key.
 *
 * The conventions of once.h hold here as well, and two more:
 *
 * Errors.    An error of once_call() always means that the work was not run by
 *            this call, or has said itself that it did nothing. Where the work
 *            ran and its result could not be recorded the answer is
 *            ONCE_UNKNOWN: the store is asked again with the same result until
 *            the lease is over, so a later repeat may well find it.
 * Threads.   Any number of threads may call with one engine, with the same key
 *            or with others. The work runs on the thread that called. It must
 *            return: a longjmp() or a C++ exception that leaves it leaves its
 *            key in flight for as long as the process lives. In C++ catch
 *            everything in it and say once_task_unknown(). A child made with
 *            fork() in it may only exec or _exit. It may make calls of its own,
 *            also on the same engine, but not with its own key, which would
 *            wait for itself.
 *
 * Several engines in one program, each with its own store, know nothing of each
 * other: orders on PostgreSQL, mails in memory.
 */
#ifndef ONCE_CALL_H
#define ONCE_CALL_H

#include <once/once.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONCE_KEY_MAX ((size_t)255)  /* bytes of a key; at least 1           */
#define ONCE_TYPE_MAX ((size_t)255) /* characters of a content type         */
#define ONCE_GROUP_DEFAULT "default"

/* ---- Names ----------------------------------------------------------- */

/*
 * The name under which a store knows (group, key): SHA-256 over a tag and both
 * of them with their lengths, so the key is not in the store. `group` is 1 to
 * ONCE_GROUP_SIZE characters of visible ASCII, or NULL for ONCE_GROUP_DEFAULT;
 * it is in the record for people to read. `key` is 1 to ONCE_KEY_MAX bytes of
 * any kind. Returns ONCE_OK, ONCE_EINVAL (a group that is empty or has other
 * characters, an empty key), ONCE_ELIMIT (too long), ONCE_ENOMEM; `name` is
 * written only with ONCE_OK. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_name(const char *group, once_bytes key,
                                  uint8_t name[ONCE_NAME_SIZE]);

/* ---- Options --------------------------------------------------------- */

/* What a repeat is told of a completed call. */
enum once_duplicates {
    ONCE_DUPLICATES_REPLAY = 0, /* ONCE_REPLAY, with the result             */
    ONCE_DUPLICATES_REJECT = 1  /* ONCE_REPEATED, without it                */
};

/*
 * What a call is about: set `size` with ONCE_CALL_OPTIONS_INIT, then at least
 * `key`. Zero means the default in brackets. All of it is borrowed for the
 * call. Where callers of one key differ in `retry_failed` or `takeover` the
 * stricter of the record and the call wins.
 */
typedef struct once_call_options {
    size_t size;
    const char *group; /* see once_name() ["default"]                       */
    once_bytes key;    /* see once_name()                                   */
    /* What makes this call this call, say its arguments in a form that is
     * always the same; any length. The same key with another fingerprint is
     * ONCE_MISMATCH. Only its SHA-256 is stored. [empty: all are equal] */
    once_bytes fingerprint;
    uint32_t duplicates;   /* enum once_duplicates [replay]                 */
    uint32_t retry_failed; /* 1: after a failure the next call runs again:
                            * at least once for failures [0]                */
    uint32_t takeover;     /* 1: a lost owner may be replaced [0: hold]     */
    uint32_t two_phase;    /* see once_request [0]                          */
    uint32_t wait_ms;      /* how long to wait for another call [0]         */
    uint32_t lease_ms;     /* see once_request [30,000]; renewed while the
                            * work runs, however long it takes              */
    uint32_t store_ms;     /* see once_request [1,000]                      */
    uint64_t keep_ms;      /* see once_request [86,400,000]                 */
} once_call_options;

#define ONCE_CALL_OPTIONS_INIT                                                 \
    {                                                                          \
        sizeof(once_call_options), NULL, {NULL, 0}, {NULL, 0}, 0, 0, 0, 0, 0,  \
            0, 0, 0                                                            \
    }

/* ---- Results --------------------------------------------------------- */

/*
 * What a call came to. Make it with ONCE_RESULT_INIT; it is written with every
 * answer and untouched by errors. The caller ends it with once_result_clear(),
 * also before it is used for another call.
 */
typedef struct once_result {
    size_t size;
    int code;         /* what the work returned: 0 is success              */
    uint32_t attempt; /* of the record, 0 if there is none: 1, 2, 3 ...    */
    uint64_t fence;   /* likewise; `once resolve` asks for it              */
    uint64_t left_ms; /* ONCE_IN_FLIGHT: until the lease of the other ends */
    const char *type; /* content type, "" where there is none; never NULL  */
    once_bytes bytes; /* both are valid until this is cleared              */
    void *memory;     /* of the library                                    */
} once_result;

#define ONCE_RESULT_INIT                                                       \
    {                                                                          \
        sizeof(once_result), 0, 0, 0, 0, "", {NULL, 0}, NULL                   \
    }

/* Frees the bytes and makes it as ONCE_RESULT_INIT does. Since 0.1. */
ONCE_API void once_result_clear(once_result *result);

/* ---- Work ------------------------------------------------------------ */

/* One run of the work. It lives until the work returns (once_task_end() for
 * once_call_start()) and belongs to one thread at a time. */
typedef struct once_task once_task;

/* 1 for the first run for this key, more after a takeover, a release or a
 * retried failure. To be handed to whatever the work asks, with the key. */
ONCE_API uint32_t once_task_attempt(const once_task *task);
/* Higher than that of every earlier run for this key. */
ONCE_API uint64_t once_task_fence(const once_task *task);

/*
 * Sets the result: `type` is up to ONCE_TYPE_MAX characters of printable ASCII
 * or NULL, `bytes` may be empty; both are copied. A later call replaces what
 * was set before; without one the result is empty. Returns ONCE_OK, ONCE_EINVAL
 * (the type), ONCE_ELIMIT (all of it is over ONCE_RESULT_MAX), ONCE_ENOMEM:
 * what was set before is then still the result. Work that has had its effect
 * and cannot set its result should set a smaller one or say
 * once_task_unknown(), not fail: a failure is recorded as one. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_task_result(once_task *task, const char *type,
                                         once_bytes bytes, once_error *err);

/*
 * The work has provably done nothing, and will not: nothing is recorded, the
 * key is free again, and the call is answered ONCE_FREE with the code and the
 * bytes of this run. What the work returns after that is only the code. May not
 * follow once_task_unknown(). Since 0.1.
 */
ONCE_API void once_task_release(once_task *task);

/*
 * The work may have been done, and nobody will learn: the record becomes
 * indeterminate and the call is answered ONCE_UNKNOWN, without a result.
 * Wins over once_task_release(). Since 0.1.
 */
ONCE_API void once_task_unknown(once_task *task);

/*
 * Asks the store, now, whether this run still holds the key, and for a whole
 * lease from now on. The engine renews by itself while the work runs, so this
 * is not needed to keep it: it is for work that was stopped for long (a paused
 * machine) and is about to do what cannot be undone. Returns
 *   ONCE_OK     It does.
 *   ONCE_LOST   Its lease was over, and nobody has taken its place. Under hold
 *               nobody will: go on, the result will be recorded.
 *   ONCE_FENCED Another run has taken over, or an operator has decided: the
 *               result of this one will not be recorded. Stop.
 *   ONCE_ESTORE The store does not answer: not known.
 *   ONCE_EBUSY, ONCE_ECLOSED, ONCE_ECORRUPT and the like: not asked, or the
 *               record cannot be read.
 * Not from a callback. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_task_renew(once_task *task, once_error *err);

/*
 * The function that is run at most once. It returns its code: 0 for success,
 * recorded as such, or anything else for a failure.
 */
typedef int once_work(once_task *task, void *user);

/* ---- Calls ----------------------------------------------------------- */

/*
 * Runs `work` with `user` at most once for the group and key in `options`.
 * `result` may be NULL. Returns
 *   ONCE_OK        It ran now; the result is recorded, and is in `*result`.
 *   ONCE_REPLAY    It ran before; the recorded result is in `*result`. Look at
 *                  `code`: a failure is replayed as well.
 *   ONCE_REPEATED  It ran before, and `duplicates` is reject; or an operator
 *                  has said that it took effect and that its result is lost.
 *                  `code` is the work's own where it is known.
 *   ONCE_IN_FLIGHT Another call is at it (also after `wait_ms`).
 *   ONCE_UNKNOWN   It was begun, by this call or by another, and nobody knows
 *                  how it ended, or its result could not be recorded. Do not
 *                  do it in another way. A repeat may be told more.
 *   ONCE_MISMATCH  The key belongs to a call with another fingerprint.
 *   ONCE_FREE      Nothing was done and the key is free: the work has released
 *                  it (then `attempt` is not 0 and its code and bytes are
 *                  here), or this call came too late to begin.
 *   ONCE_EINVAL, ONCE_ELIMIT  An option; `err` names it.
 *   ONCE_ESTORE    The store did not answer. Nothing was done by this call. If
 *                  the work had released the key it may stay taken until the
 *                  lease is over, and be indeterminate then.
 *   ONCE_ECORRUPT, ONCE_EVERSION  What is recorded does not check, or was not
 *                  written by once_call(): the key counts as taken.
 *   ONCE_ENOMEM, ONCE_EBUSY, ONCE_ECLOSED, ONCE_EFULL: nothing was changed.
 * Not from a callback. The engine must not be closed before it returns.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_call(once_engine *e,
                                  const once_call_options *options,
                                  once_work *work, void *user, once_error *err,
                                  once_result *result);

/*
 * The asynchronous twin. Work is not a function here but whatever lies between
 * two events:
 *
 *    once_call_start --+--> begin(task) ... once_task_end(task) --> done(rc)
 *                      +----------------------------------------> done(rc)
 *
 * `begin` is called on the engine's thread when this call is the owner: begin
 * the work, or hand `task` to somebody who will. From then on it is yours, and
 * must be ended with once_task_end(), once, from any thread, also within
 * `begin`. Everything else about a task is as above.
 */
typedef void once_begin(once_task *task, void *user);

/*
 * The end of a call: `rc` and `result` are what once_call() would have
 * returned, and `result` is borrowed until this returns. Called once for each
 * once_call_start() that returned ONCE_OK, on the engine's thread; or, when the
 * engine has been closed before the task was ended, within once_task_end().
 */
typedef void once_called(int rc, const once_result *result, void *user);

/*
 * Starts a call; the options are copied. Returns ONCE_OK, or ONCE_EINVAL,
 * ONCE_ELIMIT, ONCE_ENOMEM, ONCE_EBUSY, ONCE_ECLOSED: then neither function
 * will be called. May be called from a callback. With `manual_wake` the caller
 * wakes the engine, here and after once_task_end(). Since 0.1.
 */
ONCE_API ONCE_CHECK int once_call_start(once_engine *e,
                                        const once_call_options *options,
                                        once_begin *begin, once_called *done,
                                        void *user, once_error *err);

/* The work is over, with this code. `task` is gone. Since 0.1. */
ONCE_API void once_task_end(once_task *task, int code);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_CALL_H */
