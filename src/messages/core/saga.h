/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga.h - what follows from an event of a saga: (saga, event) -> saga and the
 * calls to make. Values in and out; no clock, no database.
 *
 * A saga is a row of steps. Each step is a Try at a service of its own, and may
 * have a Confirm and a Cancel. Every call is a row of the outbox; its end is an
 * event here.
 *
 *    GOING ---------- the last Try is done ---------> CONFIRMING --> DONE
 *      |  one Try after another                        |     ^  all Confirms
 *      |                                         dead, |     |  side by side
 *      | a Try is dead or indeterminate;         in-   |     | retry,
 *      | the deadline; an operator's abort       deter-|     | resolve
 *      v                                         minate|     |
 *    UNDOING -----------> UNDONE                       v     |
 *      |  ^  one Cancel after another, last first     STUCK -+
 *      |  |                                            ^
 *      |  +--------------- retry, resolve -------------|--+
 *      +------------------ dead, indeterminate --------+
 *
 * Once one Confirm was asked for there is no way back, once one Cancel was asked
 * for there is none forward. A Try whose outcome is not known was begun: it is
 * cancelled, and the service's barrier makes a Cancel that arrives before its
 * Try harmless. An event that does not fit changes nothing.
 */
#ifndef ONCE_MESSAGES_CORE_SAGA_H
#define ONCE_MESSAGES_CORE_SAGA_H

#include <stddef.h>
#include <stdint.h>

#include <once/message.h>

/* As stored in the column `saga.state`. */
enum once__saga_state {
    ONCE__SAGA_GOING = 0,
    ONCE__SAGA_CONFIRMING = 1,
    ONCE__SAGA_UNDOING = 2,
    ONCE__SAGA_DONE = 3,
    ONCE__SAGA_UNDONE = 4,
    ONCE__SAGA_STUCK = 5 /* an operator has to say how it goes on */
};

/* As stored in the column `saga_step.state`. */
enum once__step_state {
    ONCE__STEP_WAITING = 0, /* not begun                        */
    ONCE__STEP_TRYING = 1,
    ONCE__STEP_TRIED = 2,
    ONCE__STEP_CONFIRMING = 3,
    ONCE__STEP_CONFIRMED = 4,
    ONCE__STEP_CANCELLING = 5,
    ONCE__STEP_CANCELLED = 6 /* or it was begun and has no Cancel */
};

struct once__step {
    int state;
    int failed; /* 0, or how its Confirm or Cancel ended so that the saga is
                     * stuck: ONCE__ROW_DEAD or ONCE__ROW_INDETERMINATE        */
    uint32_t
        round; /* which call of this kind it is: 0 is the first; a new round
                     * has a new id                                            */
    int has_confirm, has_cancel;
};

struct once__saga {
    int state;
    size_t n; /* 1 to ONCE_SAGA_STEPS_MAX */
    struct once__step step[ONCE_SAGA_STEPS_MAX];
};

enum once__saga_what {
    ONCE__SAGA_BEGIN,  /* it has just been made                              */
    ONCE__SAGA_ENDED,  /* a call has ended                                   */
    ONCE__SAGA_LATE,   /* its deadline has passed                            */
    ONCE__SAGA_ABORT,  /* an operator needs it undone                        */
    ONCE__SAGA_RETRY,  /* an operator needs what is stuck to be called again */
    ONCE__SAGA_RESOLVE /* an operator says: what is stuck in `step` was done */
};

struct once__saga_event {
    int what;
    size_t step;    /* ENDED, RESOLVE: counted from 0 */
    int op;         /* ENDED: enum once_branch_op     */
    uint32_t round; /* ENDED                          */
    int phase;      /* ENDED: enum once__row_phase    */
};

/* One call to make: a row of the outbox. */
struct once__saga_call {
    size_t step;
    int op;
    uint32_t round;
};

struct once__saga_next {
    int fits; /* 0: nothing has changed */
    size_t n;
    struct once__saga_call call[ONCE_SAGA_STEPS_MAX];
};

/* Changes `*saga`. The event's step may be any number. */
struct once__saga_next once__saga_next(struct once__saga *saga,
                                       const struct once__saga_event *event);

/* 1: a Try that is wanted no more, since its saga has left GOING: no relay may
 * begin it. */
int once__saga_unwanted(const struct once__saga *saga, int op);

#endif /* ONCE_MESSAGES_CORE_SAGA_H */
