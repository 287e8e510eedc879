/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.h - messages and calls that take effect at most once, inside the
 * caller's own transaction on PostgreSQL, SQLite, MySQL or MariaDB.
 *
 *    BEGIN
 *    once_inbox_claim(&tx, &message, &err) --+--> ONCE_OWNER: your own writes,
 *                                            |    once_emit(), then COMMIT,
 *                                            |    then acknowledge
 *                                            +--> ONCE_REPEATED: COMMIT, then
 *                                                 acknowledge
 *
 * What was claimed is a row of the caller's transaction: COMMIT makes effect and
 * row durable together, ROLLBACK takes both back. So no record is ever in doubt
 * here, and there is no lease that could expire: the lock of the uncommitted row
 * is the lease, and it ends exactly with its holder.
 *
 * The connection stays the caller's. The library sends its statements on it and
 * never begins, ends or configures anything there. The exceptions,
 * once_message_init() and once_message_purge(), need a connection that has no
 * transaction open.
 *
 * COMMIT of a transaction that has failed answers ROLLBACK, and no error, on
 * PostgreSQL: the caller who commits must compare the command tag before it
 * acknowledges anything.
 *
 * On MySQL and MariaDB:
 *
 * - Turn autocommit off, or begin with START TRANSACTION. A call that finds no
 *   transaction open is ONCE_ETX and changes nothing.
 * - After any error, ROLLBACK, at once, and begin again. Some errors have taken
 *   back one statement and others the whole transaction, after which each
 *   statement would commit by itself. Nothing may be asked of the connection's
 *   status instead: an error carries none, so after a deadlock (1213) the client
 *   library still believes that a transaction is open.
 * - After ONCE_REPEATED and ONCE_REPLAY, COMMIT before acknowledging, and
 *   acknowledge only if it succeeds: what can be read there may not be durable
 *   yet, and the COMMIT waits until it is.
 * - Statements that commit by themselves (DDL, LOCK TABLES, BEGIN) end the claim.
 *
 * The conventions of once.h hold here as well, and these:
 *
 * Errors.    All mean that this call has changed nothing. ONCE_EABORTED: roll
 *            back and do the whole transaction again (SQLSTATE class 40,
 *            SQLITE_BUSY, a deadlock, a lost connection). ONCE_ETX: no transaction is open,
 *            or it has failed, or on SQLite it was not begun with BEGIN
 *            IMMEDIATE. ONCE_EOPEN: the tables are not there, or the session
 *            would lose what it has committed (synchronous_commit = off,
 *            PRAGMA synchronous below FULL, sync_binlog = 0). ONCE_EVERSION: tables of another
 *            version. ONCE_EINVAL, ONCE_ELIMIT: the text names the field and its
 *            limit. ONCE_ENOSYS: this library was built without that database.
 *            Also ONCE_ENOMEM, ONCE_EFULL, ONCE_ECORRUPT.
 *            On PostgreSQL the server has then failed the transaction, except
 *            for ONCE_EINVAL, ONCE_ELIMIT, ONCE_ETX and ONCE_ENOSYS, which are
 *            found before it is asked.
 * Threads.   Nothing is shared: calls with different connections may run at the
 *            same time.
 *
 * The same functions in SQL, for every language on PostgreSQL, MySQL and MariaDB:
 * docs/messages.md.
 */
#ifndef ONCE_MESSAGE_H
#define ONCE_MESSAGE_H

#include <once/once.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONCE_ID_MAX ((size_t)255)          /* characters of an id, a key, ... */
#define ONCE_ID_SIZE ((size_t)256)         /* with the NUL at its end         */
#define ONCE_BODY_MAX ((size_t)64 << 20)   /* bytes of a body or a result     */
#define ONCE_HEADERS_MAX ((size_t)65535)   /* bytes of all headers            */
#define ONCE_KEEP_MIN_MS ((uint64_t)60000) /* how long an id is remembered    */

/* ---- Where ----------------------------------------------------------- */

/*
 * The caller's open transaction, on exactly one of the handles. Borrowed for the
 * call. Set `size` with ONCE_TX_INIT.
 */
typedef struct once_tx {
    size_t size;
    struct pg_conn *postgres; /* libpq's PGconn                           */
    struct sqlite3 *sqlite;
    struct once_prepared *prepared; /* of `sqlite`, or NULL               */
    struct st_mysql *mysql; /* libmariadb's MYSQL                         */
    const char *schema;     /* PostgreSQL: a-z, digits and _ ["once"]         */
    const void *inside;     /* of the library: see once_tx_call(); leave NULL */
} once_tx;

#define ONCE_TX_INIT                                                           \
    {                                                                          \
        sizeof(once_tx), NULL, NULL, NULL, NULL, NULL, NULL                    \
    }

/*
 * The library's statements on one handle of SQLite, each prepared when it is first
 * needed and kept for the next transaction. With them it also knows a transaction
 * that it has written in, and asks once for each how safe its commit is. A claim in
 * a batch then costs about a quarter. Belongs to the caller, who uses it with this
 * handle alone, and by one thread at a time, and frees it before sqlite3_close(),
 * which refuses a handle that has statements.
 * ONCE_OK, ONCE_EINVAL (no handle), ONCE_ENOMEM. Since 0.1.
 */
typedef struct once_prepared once_prepared;
ONCE_API ONCE_CHECK int once_prepared_new(struct sqlite3 *sqlite,
                                          once_prepared **out, once_error *err);
ONCE_API void once_prepared_free(once_prepared *p); /* accepts NULL */

/*
 * Makes the tables of messages, and the functions or procedures, or brings them
 * up to date, also from an older version, in one transaction. ONCE_EVERSION: they
 * are of a later one, or lack what it does not make up; nothing was changed. MySQL
 * has no such transaction: what an error leaves undone, the next call does. No
 * transaction may be open. `keep_ms` is how long an id is
 * remembered, at least ONCE_KEEP_MIN_MS, 0 for seven days; tables that are there
 * keep theirs. It must be longer than a broker may redeliver. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_message_init(const once_tx *tx, uint64_t keep_ms,
                                          once_error *err);

enum once_database { ONCE_POSTGRES = 1, ONCE_SQLITE = 2, ONCE_MYSQL = 3 };

/*
 * The text that once_message_init() runs on that enum once_database, for people
 * and for their migrations. `schema` is PostgreSQL's, and NULL elsewhere or for
 * "once". `*out` is the caller's, who ends it with free(). ONCE_OK, ONCE_EINVAL,
 * ONCE_ENOMEM. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_message_schema(int database, const char *schema,
                                            uint64_t keep_ms, char **out,
                                            once_error *err);

/*
 * Whether the tables and functions are those of this version (ONCE_EVERSION names
 * the first that is missing, or is another), and what is committed on this
 * connection stays, which includes `synchronous_commit = local` beside a standby. Once after connecting is enough. A transaction need not be open.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_message_check(const once_tx *tx, once_error *err);

/*
 * Forgets ids that are older than `keep_ms`, in steps that keep no caller
 * waiting. First it raises the floor: an id that carries its time (a UUID of
 * version 7) and is older is refused from then on, so that no purge makes it
 * new again. An id without time is new again after `keep_ms`, and so is one
 * whose time is further ahead than that, after twice as long. A parked message
 * keeps its id. Rows of the outbox that were done and kept so long ago go as
 * well. On a server it pauses after each step for four times as long as the
 * step took. No transaction may be open. `*removed` may be NULL. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_message_purge(const once_tx *tx, uint64_t *removed,
                                           once_error *err);

/* ---- Messages -------------------------------------------------------- */

/* Answers beside those of once.h. */
enum once_message_answer {
    ONCE_OUTSIDE = 20,  /* the id's own time is before what is remembered     */
    ONCE_EMPTY = 21,    /* Cancel without a Try: nothing to undo              */
    ONCE_EARLY = 22,    /* Confirm before its Try: ask again later            */
    ONCE_CONFLICT = 23, /* Confirm after Cancel, or Cancel after Confirm      */
    ONCE_AGAIN = 24,    /* for a once_tx_work to return: run it again later   */
    ONCE_DEAD = 25      /* the same: never run it again                       */
};

/*
 * A message that goes out or has come in. All of it is borrowed for the call.
 * Set `size` with ONCE_MESSAGE_INIT. Route, consumer, id and key are 1 to
 * ONCE_ID_MAX characters of visible ASCII.
 */
typedef struct once_message {
    size_t size;
    const char *route; /* out: where to: a name for who carries it on        */
    const char
        *consumer;       /* in: who is to have the effect                     */
    const char *id;      /* in: needed; out: NULL draws a UUID of version 7   */
    const char *key;     /* order is kept among messages of one key [none]    */
    const char *type;    /* content type, up to ONCE_ID_MAX characters [""]   */
    const char *headers; /* lines "Name: value\n", in UTF-8 [""]              */
    once_bytes body;     /* up to ONCE_BODY_MAX                               */
    uint64_t due_ms;     /* out: not before, in ms since 1970 [now]           */
    uint32_t keep;       /* out: 1: row and answer stay when it is done [0]   */
    uint32_t attempt;    /* in: 0, or the count of a parked message           */
    uint32_t any_body;   /* in: 1: the body is not compared [0]               */
} once_message;

#define ONCE_MESSAGE_INIT                                                      \
    {                                                                          \
        sizeof(once_message), NULL, NULL, NULL, NULL, NULL, NULL, {NULL, 0},   \
            0, 0, 0, 0                                                         \
    }

/*
 * Claims (consumer, id), as the first statement of the transaction that has the
 * effect. Never inside a savepoint: ROLLBACK TO takes the claim away and leaves
 * what came after it unguarded.
 *
 *    ONCE_OWNER      do it, commit, acknowledge
 *    ONCE_REPEATED   the effect is committed, or the message is parked: commit,
 *                    acknowledge
 *    ONCE_MISMATCH   the id is known with another body. ONCE_OUTSIDE: it is too
 *                    old to know. Roll back, park it (it becomes a dead letter),
 *                    acknowledge
 *    ONCE_IN_FLIGHT  another copy is under way: roll back, keep the delivery,
 *                    claim again after a pause. A server waits two seconds
 *                    before it says so; SQLite never says so, since BEGIN
 *                    IMMEDIATE has waited already
 *
 * `attempt` is 0 for a message that arrived; for one that was parked it is its
 * count, and its parked row goes with the claim. Since 0.1.
 */
ONCE_API ONCE_CHECK int
once_inbox_claim(const once_tx *tx, const once_message *m, once_error *err);

enum once_parked {
    ONCE_PARKED_WAITING = 1,      /* runs again after `wait_ms`            */
    ONCE_PARKED_DEAD = 3,         /* a dead letter                         */
    ONCE_PARKED_INDETERMINATE = 4 /* it may have had an effect elsewhere   */
};

/*
 * Keeps a message whose handler has not finished, in a transaction of its own,
 * after the handler's rollback. `state` is an enum once_parked; a message that
 * claiming would call a mismatch or outside is kept as dead. `why` is for people
 * and must not hold a secret; up to ONCE_ID_MAX characters of it are kept, with
 * `?` for what is not ASCII.
 * Never in the transaction that claimed it: a server refuses that (ONCE_ETX),
 * SQLite cannot see it and answers ONCE_REPEATED, and nothing would be kept.
 * ONCE_OK: it is kept; commit, then acknowledge. ONCE_REPEATED: it was done or
 * parked before. ONCE_IN_FLIGHT as once_inbox_claim(). Since 0.1.
 */
ONCE_API ONCE_CHECK int once_inbox_park(const once_tx *tx,
                                        const once_message *m, int state,
                                        uint64_t wait_ms, const char *why,
                                        once_error *err);

/*
 * Writes a message to the outbox: it leaves if and only if this transaction
 * commits. ONCE_OK: its id is in `id`, unless that is NULL. ONCE_REPEATED: this
 * id was emitted to this route before, with the same body. ONCE_MISMATCH: with
 * another body; roll back. Two messages of one key leave in the order in which
 * their transactions commit. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_emit(const once_tx *tx, const once_message *m,
                                  char id[ONCE_ID_SIZE], once_error *err);

/* ---- Branches of a saga ---------------------------------------------- */

enum once_branch_op { ONCE_TRY = 1, ONCE_CONFIRM = 2, ONCE_CANCEL = 3 };

/*
 * Enters the Try, Confirm or Cancel of (gid, branch), as the first statement of
 * the branch's transaction.
 *
 *    ONCE_OWNER      do it and commit
 *    ONCE_REPEATED   it was done before: answer as then
 *    ONCE_EMPTY      Cancel before any Try: nothing to undo; commit, so that a
 *                    Try that arrives late is refused
 *    ONCE_REFUSED    Try after Cancel, or Try of a gid that is too old
 *    ONCE_EARLY      Confirm before its Try: ask again later
 *    ONCE_CONFLICT   Confirm after Cancel, or Cancel after Confirm
 *    ONCE_IN_FLIGHT  as once_inbox_claim()
 *
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_barrier_enter(const once_tx *tx, const char *gid,
                                           const char *branch, int op,
                                           once_error *err);

/* ---- Sagas ------------------------------------------------------------ */

#define ONCE_SAGA_STEPS_MAX ((size_t)32)
#define ONCE_SAGA_BODY_MAX ((size_t)1 << 20) /* bytes of one step's body     */
#define ONCE_GID_MAX ((size_t)200)           /* characters of a saga's gid   */

/* One step: a route for each of its calls, which all get the same body. Set
 * `size` with ONCE_SAGA_STEP_INIT. */
typedef struct once_saga_step {
    size_t size;
    const char *try_to;     /* route of its Try, or of its action             */
    const char *confirm_to; /* of its Confirm [none]                          */
    const char
        *cancel_to;   /* of its Cancel, or compensation [nothing to undo] */
    const char *type; /* content type [""]                              */
    once_bytes body;  /* up to ONCE_SAGA_BODY_MAX                       */
} once_saga_step;

#define ONCE_SAGA_STEP_INIT                                                    \
    {                                                                          \
        sizeof(once_saga_step), NULL, NULL, NULL, NULL,                        \
        {                                                                      \
            NULL, 0                                                            \
        }                                                                      \
    }

typedef struct once_saga {
    size_t size;
    const char *gid;  /* A-Z a-z 0-9 - . _ ~ : up to ONCE_GID_MAX of them; NULL
                       * draws a UUID of version 7                            */
    const char *kind; /* for people, as an id is: "order"                     */
    const once_saga_step *steps;
    size_t n; /* 1 to ONCE_SAGA_STEPS_MAX                             */
    uint64_t deadline_ms; /* in ms since 1970; before it ends the ids' window
                           * [in an hour, or half the window if that is less] */
} once_saga;

#define ONCE_SAGA_INIT                                                         \
    {                                                                          \
        sizeof(once_saga), NULL, NULL, NULL, 0, 0                              \
    }

/*
 * Starts a saga if and only if this transaction commits. Once started, it ends
 * *done* (every step was tried, and confirmed where it has a Confirm), *undone*
 * (every step that was begun was cancelled, last first) or *stuck*: a Confirm
 * or a Cancel was refused for good, or its outcome is not known, and an
 * operator decides (`once messages saga`). A relay with these routes makes the
 * calls: Try after Try; then all Confirms; or, when a Try fails, its outcome is
 * not known, or the deadline passes before the last Try was done, all Cancels.
 *
 * Each call is a message with id "GID/STEP/OP" and the header "Once-Saga: GID;
 * branch=STEP; op=OP", where STEP counts from 1 and OP is try, confirm or cancel:
 * what once_barrier_enter() needs. A service without that barrier must itself
 * refuse a Try that arrives after its Cancel.
 *
 * ONCE_OK: the gid is in `gid`, unless that is NULL. ONCE_REPEATED: this gid was
 * started before with the same kind and steps; ONCE_MISMATCH: with others: roll
 * back, as after ONCE_OUTSIDE: the gid's own time is before what is remembered.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_saga_start(const once_tx *tx,
                                        const once_saga *saga,
                                        char gid[ONCE_ID_SIZE],
                                        once_error *err);

/* ---- Calls ----------------------------------------------------------- */

/* What a call came to. Make it with ONCE_TX_RESULT_INIT; the caller ends it with
 * once_tx_result_clear(), also before it is used again. */
typedef struct once_tx_result {
    size_t size;
    int kind;         /* enum once_kind                                   */
    once_bytes bytes; /* valid until this is cleared                      */
    void *memory;     /* of the library                                   */
} once_tx_result;

#define ONCE_TX_RESULT_INIT                                                    \
    {                                                                          \
        sizeof(once_tx_result), 0, {NULL, 0}, NULL                             \
    }

/* Frees what the result holds and makes it empty, as ONCE_TX_RESULT_INIT does;
 * an empty one may be cleared, too. Since 0.1. */
ONCE_API void once_tx_result_clear(once_tx_result *result);

/*
 * The work of a call: writes on `tx`, which it must use for calls and messages
 * of its own. Returns ONCE_SUCCESS, or ONCE_FAILURE for an error that repeats
 * are to get, with `*result` set; its bytes stay the work's, and must live until
 * once_tx_call() returns. ONCE_AGAIN, ONCE_DEAD or an error: nothing is recorded,
 * once_tx_call() returns the same, and the caller rolls back. Any other number,
 * say the answer of a call inside, is ONCE_EINVAL: roll back.
 */
typedef int once_tx_work(const once_tx *tx, void *user, once_bytes *result);

/*
 * Runs `work` at most once for each (group, key), in the caller's transaction:
 * claim, effect and result are committed together, so a repeat gets the result
 * and no outcome is ever unknown. `group` and `key` are 1 to ONCE_ID_MAX
 * characters of visible ASCII; a consumer of messages is a group. The same key
 * with another `fingerprint` (any bytes; empty: not compared) is refused.
 *
 *    ONCE_OK         it ran now: commit. `*out` has its result
 *    ONCE_REPLAY     it ran before: `*out` has that result; commit
 *    ONCE_REPEATED   it ran before, as a message or without a result
 *    ONCE_MISMATCH, ONCE_OUTSIDE, ONCE_IN_FLIGHT as once_inbox_claim()
 *    ONCE_ETX        also: a call of this key inside itself; or the work rolled
 *                    back to a savepoint from before the call, so that its effect
 *                    is unguarded: roll back
 *
 * COMMIT without an answer is unknown: call again with the same key in a new
 * transaction, and the row answers. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_tx_call(const once_tx *tx, const char *group,
                                     const char *key, once_bytes fingerprint,
                                     once_tx_work *work, void *user,
                                     once_tx_result *out, once_error *err);

#ifdef __cplusplus
}
#endif

#endif /* ONCE_MESSAGE_H */
