/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga.h - sagas, for those who carry their calls and for operators. Programs
 * start them through once/message.h.
 *
 * A call of a saga is a row of the outbox with a `saga`. When it has ended the
 * saga is read, core/saga.c decides, and the decision is written if nothing has
 * changed since the saga was read. So it does no harm when this happens twice, late,
 * or at two relays at once.
 *
 *    once__saga_settle()       the call's end and what follows from it, in one
 *                              transaction: the way of a call that is settled alone
 *    once__saga_advance()      what follows from calls whose ends are written: they
 *                              were settled with others, or the first way was
 *                              closed. A relay that dies before it leaves a call
 *                              that has ended, which once__saga_due() finds
 *
 *    both                      read -> core/saga.c -> write, compare-and-set
 *        saga_rows.c                 on the version of the saga and on each call
 *        saga_postgres.c, saga_sqlite.c, saga_mysql.c
 *
 * Every function needs a connection of our own without an open transaction.
 * Answers and errors are those of outbox.h; each may be asked again.
 */
#ifndef ONCE_MESSAGES_TABLES_SAGA_H
#define ONCE_MESSAGES_TABLES_SAGA_H

#include <once/message.h>

#include "messages/core/saga.h"
#include "messages/tables/outbox.h"

#define ONCE__GID_SIZE (ONCE_GID_MAX + 1)
#define ONCE__NOTE_SIZE (ONCE_NOTE_MAX + 1)

/* ---- For the relay ------------------------------------------------------- */

/* How many sagas took a step, and where it led. The functions add to it, also before
 * they return an error. `doubts`: it would be stuck, and it is not known whether that
 * was written. */
struct once__saga_tally {
    uint64_t advanced, done, undone, stuck, doubts;
};

/*
 * Settles a claimed row with a saga whose call has ended (DONE, DEAD or
 * INDETERMINATE), and moves the saga on: both, or neither. ONCE_OK: both, and
 * `s->ours` is 1. ONCE_AGAIN, ONCE_FREE: neither; the row is not the claimer's any
 * more, or its saga changes all the time, or there is none. An error: as that of
 * once__outbox_settle(). After all but ONCE_OK the caller asks once__outbox_settle()
 * with the same `s`, and then once__saga_advance(): the fence in it tells whether
 * this was done.
 */
ONCE_CHECK int once__saga_settle(const once_tx *tx,
                                 const struct once__outgoing *row,
                                 struct once__settlement *s,
                                 struct once__saga_tally *tally,
                                 once_error *err);

/* After a settlement of a row with a saga, whatever its end was. ONCE_OK, also
 * if there was nothing to do; ONCE_FREE: there is no such saga. */
ONCE_CHECK int once__saga_advance(const once_tx *tx, const char *gid,
                                  struct once__saga_tally *tally,
                                  once_error *err);

/* Every second: advances sagas whose deadline has passed, and those with calls
 * that have ended and that nobody looked at. */
ONCE_CHECK int once__saga_due(const once_tx *tx, struct once__saga_tally *tally,
                              once_error *err);

/* 1 for a Confirm or a Cancel: no number of refusals makes the row dead, since
 * there is no other way out; and an answer that its outcome is not known is asked
 * for again under the same id some times before an operator has to decide, since
 * the services of a saga recognise a repeat. */
int once__saga_insists(const struct once__outgoing *row);

/* ---- For operators ------------------------------------------------------- */

struct once__saga_row {
    char gid[ONCE__GID_SIZE], kind[ONCE_ID_SIZE], note[ONCE__NOTE_SIZE];
    int state;
    uint32_t version, steps;
    uint64_t deadline_ms, at_ms, since_ms;
};

struct once__saga_filter {
    int state;         /* enum once__saga_state, or -1: all */
    const char *after; /* gid, or NULL */
};

/* Up to `*n` sagas in the order of their gids; then `*n` is how many. */
ONCE_CHECK int once__saga_list(const once_tx *tx,
                               const struct once__saga_filter *filter,
                               struct once__saga_row *rows, size_t *n,
                               once_error *err);

struct once__saga_step_row {
    char try_to[ONCE_ID_SIZE], confirm_to[ONCE_ID_SIZE],
        cancel_to[ONCE_ID_SIZE];
    char error[ONCE_ID_SIZE]; /* of its last call that ended */
    struct once__step step;
    int status;                 /* of that call, or 0 */
    int64_t seq;                /* of its call in the outbox, or 0 */
    int phase;                  /* of that row */
    uint32_t attempts;          /* of that row */
    char trouble[ONCE_ID_SIZE]; /* its error */
};

/* One saga and its steps; ONCE_FREE: there is none. */
ONCE_CHECK int
once__saga_get(const once_tx *tx, const char *gid, struct once__saga_row *row,
               struct once__saga_step_row steps[ONCE_SAGA_STEPS_MAX],
               once_error *err);

/* The decision of an operator, who was shown `version`. */
struct once__saga_order {
    int what; /* ONCE__SAGA_ABORT, ONCE__SAGA_RETRY or ONCE__SAGA_RESOLVE */
    uint32_t version;
    size_t step;      /* RESOLVE: counted from 0 */
    const char *note; /* who, when and why; kept, with `?` for what is not
                       * visible ASCII */
};

/* ONCE_OK. ONCE_REFUSED: the version is another one by now, or the order does not
 * fit the state. ONCE_FREE: there is no such saga. */
ONCE_CHECK int once__saga_decide(const once_tx *tx, const char *gid,
                                 const struct once__saga_order *order,
                                 once_error *err);

struct once__saga_count {
    uint64_t n[6];     /* by enum once__saga_state; of DONE and UNDONE 0 */
    uint64_t stuck_ms; /* for how long the oldest one has been stuck, or 0 */
};
ONCE_CHECK int once__saga_stats(const once_tx *tx, struct once__saga_count *out,
                                once_error *err);

/* ---- What the databases do ----------------------------------------------- */

enum { ONCE__SAGA_CALLS_MAX = 64 };

/* A call that nobody has under way, or that its claimer settles with this. */
struct once__saga_seen {
    int64_t seq;
    int phase;
    uint32_t attempts;
    char id[ONCE_ID_SIZE];
    /* Its end, which the row does not hold yet; NULL: nobody has it under way. */
    const struct once__settlement *how;
};

struct once__saga_now {
    int64_t version;
    int late;
    struct once__saga saga;
    size_t n;
    struct once__saga_seen seen[ONCE__SAGA_CALLS_MAX]; /* in order of seq */
};

struct once__saga_taken {
    const struct once__saga_seen *seen;
    size_t branch; /* its answer is kept with this step; 0: with none */
};

struct once__saga_plan {
    int64_t version; /* that it was made from */
    struct once__saga before, after;
    const char *note; /* NULL: it stays */
    size_t n_taken, n_calls;
    struct once__saga_taken taken[ONCE__SAGA_CALLS_MAX]; /* these rows go */
    struct once__saga_call calls[ONCE__SAGA_CALLS_MAX];  /* to make */
};

/* saga_rows.c: reads one saga. ONCE_OK or ONCE_FREE. */
ONCE_CHECK int once__saga_read(const once_tx *tx, const char *gid,
                               struct once__saga_now *out, once_error *err);
/* saga_rows.c: up to `*n` that are due; then `*n` is how many. */
ONCE_CHECK int once__saga_gids(const once_tx *tx, char (*gids)[ONCE__GID_SIZE],
                               size_t *n, once_error *err);

/* saga_names.c: what the call is called, and its header. */
struct once__saga_name {
    char id[ONCE_ID_SIZE], headers[ONCE__GID_SIZE + 64];
};
struct once__saga_name once__saga_name(const char *gid,
                                       const struct once__saga_call *call);
/* saga_names.c: what two sagas with one gid are compared by. ONCE_OK or
 * ONCE_ENOMEM. */
ONCE_CHECK int once__saga_fingerprint(const once_saga *saga, const char *json,
                                      uint8_t out[ONCE_FINGERPRINT_SIZE],
                                      once_error *err);

struct once__saga_ops {
    int (*start)(const once_tx *tx, const once_saga *saga, const char *json,
                 char gid[ONCE_ID_SIZE], once_error *err);
    /* ONCE_OK, or ONCE_AGAIN: something has changed, and nothing was written. A
     * call with `how` is the claimer's, by its fence. */
    int (*write)(const once_tx *tx, const char *gid,
                 const struct once__saga_plan *plan, once_error *err);
};

extern const struct once__saga_ops once__saga_postgres; /* saga_postgres.c   */
extern const struct once__saga_ops once__saga_sqlite;   /* saga_sqlite.c */
extern const struct once__saga_ops once__saga_mysql;    /* saga_mysql.c  */

#endif /* ONCE_MESSAGES_TABLES_SAGA_H */
