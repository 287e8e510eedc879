/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.h - run a C function at most once for each (group, key), and give every
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
 *    claim --+--> this call owns it: work --+--> returns: recorded  ONCE_OK
 *            |                              +--> once_task_release  ONCE_FREE
 *            |                              +--> once_task_unknown ONCE_UNKNOWN
 *            +--> recorded before                   ONCE_REPLAY, ONCE_REPEATED
 *            +--> another call is under way         ONCE_IN_FLIGHT
 *            +--> begun, outcome not known          ONCE_UNKNOWN
 *            +--> another fingerprint               ONCE_MISMATCH
 *
 * The work returns its *code*: 0 for success, anything else for a failure of
 * its own. A failure is a result, too: it is recorded and replayed with its
 * bytes like a success, unless `retry_failed` lets the work run again.
 *
 * Once makes sure that the work *begins* at most once. If the process dies
 * while the work runs, it is not known how far it came: the record becomes
 * indeterminate, and every repeat returns ONCE_UNKNOWN until an operator
 * resolves the record (`once resolve`). With `takeover` the next call runs the
 * work again instead: at least once, and only for work whose effect is
 * recognised by its key.
 *
 * The conventions of once.h hold here as well, and two more:
 *
 * Errors.    After an error of once_call() the work was not run by this call,
 *            or it has called once_task_release(). If the work ran and its
 *            result could not be recorded, the answer is ONCE_UNKNOWN; the
 *            engine goes on recording the result for a while, so a repeat may
 *            be a replay.
 * Threads.   Any number of threads may call with one engine, with the same key
 *            or with others. The work runs on the thread that called. It must
 *            return: a longjmp() or a C++ exception that leaves it leaves its
 *            key in flight for as long as the process lives. In C++ catch
 *            everything in it and call once_task_unknown(). A child made with
 *            fork() in it may only exec or _exit. It may make calls of its own,
 *            also with the same engine, but not with its own key, which would
 *            wait for itself.
 *
 * One program may have several engines, each with its own store; their records
 * are independent of each other.
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
 * Computes the name of the record of (group, key): SHA-256 over a tag and both
 * of them with their lengths, so the key is not in the store. `group` is 1 to
 * ONCE_GROUP_SIZE characters of visible ASCII, or NULL for ONCE_GROUP_DEFAULT;
 * it is stored in clear. `key` is 1 to ONCE_KEY_MAX bytes of any kind. `name`
 * is written only with ONCE_OK. Returns
 *   ONCE_OK     `name` is the name.
 *   ONCE_EINVAL The group is empty or has other characters, or the key is
 *               empty.
 *   ONCE_ELIMIT The group or the key is too long.
 *   ONCE_ENOMEM Out of memory.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_name(const char *group, once_bytes key,
                                  uint8_t name[ONCE_NAME_SIZE]);

/* ---- Options --------------------------------------------------------- */

/* What a repeat of a completed call returns. */
enum once_duplicates {
    ONCE_DUPLICATES_REPLAY = 0, /* ONCE_REPLAY, with the result             */
    ONCE_DUPLICATES_REJECT = 1  /* ONCE_REPEATED, without it                */
};

/*
 * Options of a call: initialise with ONCE_CALL_OPTIONS_INIT and set at least
 * `key`. Zero means the default in brackets. All of it is borrowed for the
 * call. `retry_failed` and `takeover` count only if they are set in this call
 * and were set in the call that made the record.
 */
typedef struct once_call_options {
    size_t size;
    const char *group; /* see once_name() ["default"]                       */
    once_bytes key;    /* see once_name()                                   */
    /* What distinguishes this call from another with the same key, for example
     * its arguments in a fixed form; any length. The same key with another
     * fingerprint is ONCE_MISMATCH. Only its SHA-256 is stored. [empty] */
    once_bytes fingerprint;
    uint32_t duplicates;   /* enum once_duplicates [replay]                 */
    uint32_t retry_failed; /* 1: after a failure the next call runs again:
                            * at least once for failures [0]                */
    uint32_t takeover;     /* 1: an owner whose lease expired is replaced: at
                            * least once [0]                                */
    uint32_t two_phase;    /* see once_request [0]                          */
    uint32_t wait_ms;      /* how long to wait for another call [0]         */
    uint32_t lease_ms;     /* see once_request [30,000]; renewed while the
                            * work runs, however long it takes              */
    uint32_t store_ms;     /* see once_request [1,000]                      */
    uint64_t keep_ms;      /* see once_request [86,400,000]                 */
    const char *label;     /* see once_request [none]                       */
    uint8_t trace[ONCE_TRACE_SIZE]; /* see once_request [none]              */
} once_call_options;

#define ONCE_CALL_OPTIONS_INIT                                                 \
    {                                                                          \
        sizeof(once_call_options), NULL, {NULL, 0}, {NULL, 0}, 0, 0, 0, 0, 0,  \
            0, 0, 0, NULL,                                                     \
        {                                                                      \
            0                                                                  \
        }                                                                      \
    }

/* ---- Results --------------------------------------------------------- */

/*
 * The result of a call. Initialise it with ONCE_RESULT_INIT. Every answer
 * writes it, an error does not. The caller frees its bytes with
 * once_result_clear(), also before it is used for another call.
 */
typedef struct once_result {
    size_t size;
    int code;         /* what the work returned: 0 is success              */
    uint32_t attempt; /* of the record, 0 if there is none: 1, 2, 3 ...    */
    uint64_t fence;   /* also 0 then; `once resolve` asks for it           */
    uint64_t left_ms; /* ONCE_IN_FLIGHT: until the other lease expires     */
    const char *type; /* content type, "" where there is none; never NULL  */
    once_bytes bytes; /* both are valid until this is cleared              */
    void *memory;     /* of the library                                    */
} once_result;

#define ONCE_RESULT_INIT                                                       \
    {                                                                          \
        sizeof(once_result), 0, 0, 0, 0, "", {NULL, 0}, NULL                   \
    }

/* Frees the bytes and initialises it again. Since 0.1. */
ONCE_API void once_result_clear(once_result *result);

/* ---- Work ------------------------------------------------------------ */

/* One run of the work. It lives until the work returns (once_task_end() for
 * once_call_start()) and belongs to one thread at a time. */
typedef struct once_task once_task;

/* Returns the number of this run: 1 for the first run for this key, more after
 * a takeover, a release or a retried failure. Work that asks another service
 * should pass it on together with the key. Since 0.1. */
ONCE_API uint32_t once_task_attempt(const once_task *task);

/* Returns the fence of this run: higher than that of every earlier run for this
 * key. Since 0.1. */
ONCE_API uint64_t once_task_fence(const once_task *task);

/*
 * Sets the result: `type` is up to ONCE_TYPE_MAX characters of printable ASCII
 * or NULL, `bytes` may be empty; both are copied. A later call replaces the
 * result; without a call the result is empty. Returns
 *   ONCE_OK     It is the result now.
 *   ONCE_EINVAL The type has other characters.
 *   ONCE_ELIMIT The type is too long, or all of it is over ONCE_RESULT_MAX.
 *   ONCE_ENOMEM Out of memory.
 * After an error the result is what it was before. Work that has had its effect
 * and cannot set its result should set a smaller one or call
 * once_task_unknown(). It should not return a failure, which would be recorded.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_task_result(once_task *task, const char *type,
                                         once_bytes bytes, once_error *err);

/*
 * The work has provably done nothing, and will not: when it returns, nothing is
 * recorded, the key is free again, and the call returns ONCE_FREE with the code
 * and the bytes of this run. Has no effect after once_task_unknown(). Since
 * 0.1.
 */
ONCE_API void once_task_release(once_task *task);

/*
 * The work may have been done, and its outcome is not known: when it returns,
 * the record becomes indeterminate and the call returns ONCE_UNKNOWN, without a
 * result. Takes precedence over once_task_release(). Since 0.1.
 */
ONCE_API void once_task_unknown(once_task *task);

/*
 * Renews the lease now, and thereby asks the store whether this run is still
 * the owner. The engine renews by itself while the work runs, so this is not
 * needed to stay the owner: it is for work that may have been stopped for long
 * (a paused machine) and is about to do what cannot be undone. Must not be
 * called from a callback. Returns
 *   ONCE_OK     It is the owner, for a whole lease from now on.
 *   ONCE_LOST   Its lease has expired, and no other run has taken over. Without
 *               `takeover` none will: go on, the result will be recorded.
 *   ONCE_FENCED Another run has taken over, or an operator has resolved the
 *               record: the result of this run will not be recorded. Stop.
 *   ONCE_ESTORE The store does not answer: not known.
 *   ONCE_EBUSY, ONCE_ECLOSED, ONCE_EAWAY, ONCE_ENOMEM
 *               The store was not asked.
 *   ONCE_ECORRUPT, ONCE_EVERSION
 *               The record cannot be read.
 * Since 0.1.
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
 *                  has resolved the record without a result. `code` is that of
 *                  the work where it is known.
 *   ONCE_IN_FLIGHT Another call is under way, also after `wait_ms`.
 *   ONCE_UNKNOWN   It was begun, by this call or by another, and its outcome is
 *                  not known, or could not be recorded. Do not do the work in
 *                  another way. A repeat may have another answer.
 *   ONCE_MISMATCH  The key belongs to a call with another fingerprint.
 *   ONCE_FREE      Nothing was done and the key is free: the work has released
 *                  it (then `attempt` is not 0, and its code and bytes are in
 *                  `*result`), or this call lost its claim before it could
 *                  begin.
 *   ONCE_EINVAL, ONCE_ELIMIT
 *                  An option is out of range; `err` names it.
 *   ONCE_ESTORE    The store did not answer. Nothing was done by this call. If
 *                  the work has released the key, the record may become
 *                  indeterminate when the lease expires.
 *   ONCE_ECORRUPT, ONCE_EVERSION
 *                  The record fails its checksum, or was not written by
 *                  once_call(): the key counts as taken.
 *   ONCE_ENOMEM, ONCE_EBUSY, ONCE_ECLOSED, ONCE_EAWAY, ONCE_EFULL
 *                  Nothing was changed.
 * Must not be called from a callback, and the engine must not be closed before
 * it returns. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_call(once_engine *e,
                                  const once_call_options *options,
                                  once_work *work, void *user, once_error *err,
                                  once_result *result);

/*
 * The asynchronous call. Work is not a function here, but whatever is done
 * between two events:
 *
 *    once_call_start --+--> begin(task) ... once_task_end(task) --> done(rc)
 *                      +----------------------------------------> done(rc)
 *
 * `begin` is called on the engine's thread when this call is the owner. It
 * begins the work, or passes `task` to a thread that does. From then on the
 * task belongs to the caller, who must end it with once_task_end(), once, on
 * any thread, also within `begin`. Everything else about a task is as above.
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
 * Starts a call and returns at once; the options are copied. May be called from
 * a callback. With `manual_wake` the caller wakes the engine, here and after
 * once_task_end(). Returns
 *   ONCE_OK     `done` will be called.
 *   ONCE_EINVAL, ONCE_ELIMIT, ONCE_ENOMEM, ONCE_EBUSY, ONCE_ECLOSED, ONCE_EAWAY
 *               As for once_call(). Neither function will be called.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_call_start(once_engine *e,
                                        const once_call_options *options,
                                        once_begin *begin, once_called *done,
                                        void *user, once_error *err);

/* Ends the work, with its code. The task may be freed when this returns. On any
 * thread, also in a callback. Since 0.1. */
ONCE_API void once_task_end(once_task *task, int code);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_CALL_H */
