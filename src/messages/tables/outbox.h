/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox.h - rows of the outbox and parked messages, for those who carry them
 * on: the relay, the consumer, and the operators' commands. Not for programs,
 * which write such rows through once/message.h.
 *
 * Every function needs a connection of our own without an open transaction, and
 * is a transaction of its own. ONCE_OK, or an error:
 * ONCE_EABORTED says that it may have been done or not (a lost connection) or
 * was rolled back: ask again, with the same arguments; each of them is made so
 * that a repetition does no harm. ONCE_EOPEN, ONCE_EVERSION, ONCE_EINVAL,
 * ONCE_EFULL, ONCE_ENOMEM as in message.h: nothing was changed.
 */
#ifndef ONCE_MESSAGES_TABLES_OUTBOX_H
#define ONCE_MESSAGES_TABLES_OUTBOX_H

#include <once/message.h>

#include "messages/core/row.h"

/* ---- The outbox, for the relay ------------------------------------------ */

/* A row of the outbox. What it points to belongs to its list. */
struct once__outgoing {
    int64_t seq;
    uint32_t attempts; /* claims so far, this one included: the fence */
    struct once__row row;
    int phase, status; /* for lists; a claimed row is READY */
    uint64_t lease_ms; /* the same: until when, 0: not leased */
    uint64_t at_ms, due_ms;
    const char *saga;  /* the header Once-Saga's value, or NULL */
    const char *error; /* "" */
    once_bytes reply;  /* once__outbox_get() alone */
    once_message m;    /* route, id, key, type, headers, body, keep */
};

/* In the order of seq. */
struct once__outgoing_list {
    struct once__outgoing *rows;
    size_t n;
    uint64_t now_ms; /* the database's clock, which wrote doubt_ms */
    int64_t
        lease; /* of a claim: one for all of its rows; 0: each has its own */
    void *memory;
};
void once__outgoing_clear(struct once__outgoing_list *list);

struct once__outbox_ask {
    const char *route;
    size_t n;          /* at most so many rows, 1 to 10,000 */
    uint32_t lease_ms; /* how long they are ours: 1 to an hour */
    int hold; /* rows whose lease ran out become indeterminate, not ready */
    int pass; /* a dead or indeterminate row does not keep its key waiting */
    int each; /* they will be settled one by one: no lease for all of them */
};

/*
 * Claims the oldest rows that are ready, or due, and that wait for no earlier row
 * of their key: attempts + 1 and doubt + 1, in advance. Rows of one key may come
 * together, in order. It ends when it has 16 MB of bodies, so there may be fewer
 * than there are. None: n is 0.
 */
ONCE_CHECK int once__outbox_claim(const once_tx *tx,
                                  const struct once__outbox_ask *ask,
                                  struct once__outgoing_list *out,
                                  once_error *err);

/* How one claimed row ended. */
struct once__settlement {
    int64_t seq;
    uint32_t attempts;        /* the fence: of the claim */
    struct once__row_next to; /* with wait_ms jittered */
    int status;
    once_bytes reply;  /* kept with the row */
    const char *error; /* for people; up to ONCE_ID_MAX characters are kept */
    int ours;      /* out: 0: fenced, the row was settled or claimed since */
    int64_t lease; /* of the claim, the same in all rows */
};

/* Settles up to 10,000 rows, each once: what was settled before changes nothing.
 * Also one that became indeterminate because its lease ran out. */
ONCE_CHECK int once__outbox_settle(const once_tx *tx,
                                   struct once__settlement *rows, size_t n,
                                   once_error *err);

/*
 * Says that this route's relay sleeps (1) or is awake (0). A program that emits
 * to a route that sleeps wakes it; so LISTEN comes first, and the relay claims
 * once more before it waits. SQLite, MySQL: does nothing.
 */
ONCE_CHECK int once__outbox_idle(const once_tx *tx, const char *route, int idle,
                                 once_error *err);
/*
 * Sleeps up to `wait_ms`, or until a program may have emitted to this route, or
 * until stop_fd (-1: none) is readable. SQLite: looks at PRAGMA data_version, every
 * 5 to 100 milliseconds; MySQL: at the route's ready rows, every 10 milliseconds to
 * a second. What was committed before this call these two do not see.
 */
ONCE_CHECK int once__outbox_wait(const once_tx *tx, const char *route,
                                 int stop_fd, uint32_t wait_ms,
                                 once_error *err);

/* ---- The outbox, for operators ------------------------------------------ */

struct once__outbox_filter {
    const char *route; /* NULL: all */
    int phase;         /* enum once__row_phase, or -1: all */
    int64_t after;     /* seq: the page begins after it */
    size_t n;          /* rows of the page */
};

/* A page in the order of seq, without bodies and replies. */
ONCE_CHECK int once__outbox_list(const once_tx *tx,
                                 const struct once__outbox_filter *filter,
                                 struct once__outgoing_list *out,
                                 once_error *err);
/* One row with body and reply; n is 0 if it is not there. */
ONCE_CHECK int once__outbox_get(const once_tx *tx, int64_t seq,
                                struct once__outgoing_list *out,
                                once_error *err);

enum once__outbox_action {
    ONCE__OUTBOX_RETRY,  /* WAITING, DEAD: ready now, and refused is 0 again.
                           * INDETERMINATE: the same, but it is counted as a
                               * takeover */
    ONCE__OUTBOX_DROP,   /* DEAD, INDETERMINATE, WAITING, READY and not leased:
                           * the row goes; not a step of a saga */
    ONCE__OUTBOX_RESOLVE /* INDETERMINATE, DEAD: DONE, by an operator's word */
};

/*
 * Decides about one row, if it still has this phase and these attempts. ONCE_OK;
 * ONCE_REFUSED: it has not, or is leased, or the action does not fit its phase;
 * ONCE_FREE: there is no such row. `why` is kept as its error.
 */
ONCE_CHECK int once__outbox_decide(const once_tx *tx, int64_t seq, int phase,
                                   uint32_t attempts, int action,
                                   const char *why, once_error *err);

struct once__outbox_count {
    char route[ONCE_ID_SIZE];
    uint64_t n[5];      /* by enum once__row_phase */
    uint64_t leased;    /* of n[READY] */
    uint64_t oldest_ms; /* age of the oldest that is not DONE, or 0 */
};

/* One for each route that has rows; `*out` is the caller's, free(). Without
 * `done` those that are done are not read, and not counted. */
ONCE_CHECK int once__outbox_stats(const once_tx *tx, int done,
                                  struct once__outbox_count **out, size_t *n,
                                  once_error *err);

/* Says that this route has a relay. */
ONCE_CHECK int once__outbox_here(const once_tx *tx, const char *route,
                                 once_error *err);

/* A route that has rows to be sent, and no relay. */
struct once__stray {
    char route[ONCE_ID_SIZE];
    uint64_t rows;   /* up to 10,000 */
    int64_t seen_ms; /* so long ago it had one, -1: never */
};
enum { ONCE__STRAYS_MAX = 8 };

/* The first routes, by name, whose oldest row has been due for `age_ms` and that no
 * relay was at for a minute. */
ONCE_CHECK int once__outbox_strays(const once_tx *tx, uint64_t age_ms,
                                   struct once__stray out[ONCE__STRAYS_MAX],
                                   size_t *n, once_error *err);
/* How many transactions ago the oldest snapshot was taken that the database still
 * keeps row versions for, which a claim has to read past. SQLite, MySQL: 0. */
ONCE_CHECK int once__outbox_held(const once_tx *tx, uint64_t *age,
                                 once_error *err);
/* Removes DONE rows that were settled more than `age_ms` ago, in steps; steps of
 * a saga stay. */
ONCE_CHECK int once__outbox_purge(const once_tx *tx, uint64_t age_ms,
                                  uint64_t *removed, once_error *err);

/* ---- Parked messages ----------------------------------------------------- */

struct once__parked {
    int64_t no;
    int state; /* enum once_parked */
    uint64_t due_ms, at_ms;
    const char *error;
    once_message m; /* consumer, id, key, type, headers, body; attempt is its
                     * count, for once_inbox_claim() */
};

struct once__parked_list {
    struct once__parked *rows;
    size_t n;
    uint64_t now_ms;
    void *memory;
};
void once__parked_clear(struct once__parked_list *list);

/*
 * Takes the message that has waited longest and is due: its count goes up and
 * it is not due again for `lease_ms`, durable on return, so that a process
 * that dies of it is counted. With `keyed` only one whose key has no earlier parked message.
 * n is 0 or 1.
 */
ONCE_CHECK int once__parked_take(const once_tx *tx, const char *consumer,
                                 uint32_t lease_ms, int keyed,
                                 struct once__parked_list *out,
                                 once_error *err);
/*
 * After its handler was rolled back: when it is due again, or that it is dead or
 * indeterminate. ONCE_OK, or ONCE_REFUSED: it is not the one with that count
 * any more.
 */
ONCE_CHECK int once__parked_put_back(const once_tx *tx, int64_t no,
                                     uint32_t attempt, int state,
                                     uint64_t wait_ms, const char *why,
                                     once_error *err);
/* ONCE_OK and *stopped: 1 if a message of this key is parked, dead ones too.
 * Also inside a transaction. */
ONCE_CHECK int once__parked_has_key(const once_tx *tx, const char *consumer,
                                    const char *key, int *stopped,
                                    once_error *err);

/* ONCE_OK and *n: so many waiting messages stand behind one of their key that is
 * dead or indeterminate: with `keyed`, none of them is taken. */
ONCE_CHECK int once__parked_behind(const once_tx *tx, const char *consumer,
                                   uint64_t *n, once_error *err);

struct once__parked_filter {
    const char *consumer; /* NULL: all */
    int state;            /* or 0: all */
    int64_t after;        /* no */
    size_t n;
};
ONCE_CHECK int once__parked_list(const once_tx *tx,
                                 const struct once__parked_filter *filter,
                                 struct once__parked_list *out,
                                 once_error *err);
/* With its body. */
ONCE_CHECK int once__parked_get(const once_tx *tx, int64_t no,
                                struct once__parked_list *out, once_error *err);

enum once__parked_action {
    ONCE__PARKED_RETRY,  /* waiting and due now, count 0; a message that was
                          * too old to know gets its row in the inbox first, and
                          * goes if there is one */
    ONCE__PARKED_DROP,   /* the row goes; its id stays answered for */
    ONCE__PARKED_RESOLVE /* the same, for INDETERMINATE: it was done */
};
/* As once__outbox_decide(), by state and count. */
ONCE_CHECK int once__parked_decide(const once_tx *tx, int64_t no, int state,
                                   uint32_t attempt, int action,
                                   const char *why, once_error *err);

struct once__parked_count {
    char consumer[ONCE_ID_SIZE];
    uint64_t waiting, dead, indeterminate;
    uint64_t oldest_ms; /* age, or 0 */
};
ONCE_CHECK int once__parked_stats(const once_tx *tx,
                                  struct once__parked_count **out, size_t *n,
                                  once_error *err);

#endif /* ONCE_MESSAGES_TABLES_OUTBOX_H */
