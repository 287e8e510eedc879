/* SPDX-License-Identifier: Apache-2.0 */
/* timer.h - what is to be done later, the soonest first. For one thread. */
#ifndef ONCE_CALLS_ENGINE_TIMER_H
#define ONCE_CALLS_ENGINE_TIMER_H

#include <stdint.h>

/* Zero it and set `fire`. The heap never calls `fire`: the code that pops
 * the timer does. */
struct once__timer {
    uint64_t due_ms;
    struct once__timer *child;    /* the first of those that come later      */
    struct once__timer *next;     /* sibling                                 */
    struct once__timer *previous; /* sibling, or the parent of the first one */
    void (*fire)(void *owner, struct once__timer *timer);
    int armed;
};

struct once__timers {
    struct once__timer *root;
};

/* Arms, or moves if it is armed already. */
void once__timer_arm(struct once__timers *h, struct once__timer *t,
                     uint64_t due_ms);
/* Does nothing if it is not armed. */
void once__timer_cancel(struct once__timers *h, struct once__timer *t);
/* When the soonest one is due; UINT64_MAX if there is none. */
uint64_t once__timers_next(const struct once__timers *h);
/* Takes out the soonest one if it is due at `now_ms`, or NULL. */
struct once__timer *once__timers_pop(struct once__timers *h, uint64_t now_ms);

#endif /* ONCE_CALLS_ENGINE_TIMER_H */
