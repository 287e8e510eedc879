/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rounds.h - a batch of operations for a server that others use at the same
 * time, asked in rounds.
 *
 * In each round a name occurs once. What queues after it in the same batch is
 * decided here from the record that the round has shown, as long as it changes
 * nothing; the first that would change something goes into the next round:
 *
 *    sorted by name    round 1        here        round 2      here
 *    a: claim          OWNER
 *    b: claim, claim   OWNER          IN_FLIGHT
 *    c: complete,
 *       claim, claim   OK                         REPLAY       REPLAY
 *
 * One name does not keep the others waiting. What was asked without an answer,
 * because another session was in the way, is put aside until the others have
 * theirs, then asked again for up to lock_ms while nothing moves, and answered
 * ONCE_ESTORE after that. If the server does not say which one it was, the
 * round is halved until that one stands alone.
 */
#ifndef ONCE_CALLS_STORE_ROUNDS_H
#define ONCE_CALLS_STORE_ROUNDS_H

#include <once/store.h>

#include "calls/store/arena.h"

/* An operation of the batch; sorted by name, then by place. */
struct once__rounds_item {
    once_op *op;
    size_t at;
    int done;
    int aside; /* asked without an answer: the others come first */
};

/* Zero it; end it with once__rounds_clear(). */
struct once__rounds {
    struct once__rounds_item *items;
    once_op **call; /* operations of one round, sorted by name, ... */
    size_t *places; /* ... and where they stand in `items` */
    size_t room;
    /* Of the batch under way: */
    size_t n;
    size_t left;  /* not answered yet */
    size_t most;  /* operations of the next round, */
    size_t limit; /* ... and of any */
    size_t count; /* operations of this round */
    int full;     /* the disk is: nothing is granted any more */
    int met;      /* another session was in the way */
    uint64_t until_ms, lock_ms;
};

void once__rounds_clear(struct once__rounds *r);

/* Sorts the batch, of which a round takes `limit` at the most. ONCE_OK or
 * ONCE_ENOMEM. */
ONCE_CHECK int once__rounds_begin(struct once__rounds *r, once_op **ops,
                                  size_t n, size_t limit, uint64_t until_ms,
                                  uint64_t lock_ms);

/* Calls `round` until all is answered or too much time has passed. It asks for
 * what once__rounds_gather() gives. ONCE_OK, or what `round` has returned. */
ONCE_CHECK int once__rounds_run(struct once__rounds *r,
                                int (*round)(void *user), void *user);

/* Of each name the first that is not answered yet and not put aside, if its
 * verb is one of `verbs` (bits). Returns how many there are now in `call`. */
ONCE_CHECK size_t once__rounds_gather(struct once__rounds *r, unsigned verbs);

/* Where in `call` the operation with that name is; `count`: there is none. */
size_t once__rounds_find(const struct once__rounds *r, const uint8_t *name);

/* Answers one; then those that wait for the same name, as long as they only
 * look. `arena` keeps what is shown after the operation that brought it. */
void once__answer(struct once__rounds *r, struct once__rounds_item *item,
                  int rc);
void once__answer_line(struct once__rounds *r, struct once__rounds_item *item,
                       uint64_t now_ms, struct once__arena *arena);

/* How the round ended: those that have no answer wait for the others. */
void once__rounds_asked(struct once__rounds *r);
/* ... another session is in the way of one of them, and nothing was done. */
void once__rounds_halve(struct once__rounds *r);
/* ... the disk is full, and nothing was done: what takes no room is tried once
 * more without the rest. */
void once__rounds_full(struct once__rounds *r);

#endif /* ONCE_CALLS_STORE_ROUNDS_H */
