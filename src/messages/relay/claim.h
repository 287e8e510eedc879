/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claim.h - workers of one route claim for each other.
 *
 * A worker whose target takes one row at a time would claim one row, and claims
 * of one route follow each other, each with a flush of its own. So one worker
 * leads: it claims a row for each worker that waits, and hands them out. Nobody
 * claims more than is sent at once, but for rows of one key, which stay together.
 */
#ifndef ONCE_MESSAGES_RELAY_CLAIM_H
#define ONCE_MESSAGES_RELAY_CLAIM_H

#include <pthread.h>

#include "messages/tables/outbox.h"

/* What one worker carries of a claim. */
struct once__part {
    struct once__part *next;
    struct once__outgoing_list list; /* its rows are a part of the claim's */
    uint64_t claimed_ms;
    struct once__whole *whole;
};

struct once__claims {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct once__part *parts; /* handed out, and not taken yet */
    size_t waiting;           /* workers */
    int led;
};

#define ONCE__CLAIMS_INIT                                                      \
    {                                                                          \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, 0        \
    }
void once__claims_close(struct once__claims *c);

/*
 * Waits until there is a part for this worker, which it is to end, or until
 * nobody leads: then the caller does, NULL is returned, and `*n` is how many rows
 * it may claim. It ends that by once__claims_share() or once__claims_leave().
 * With `leads` the caller leads already, and does not wait.
 */
struct once__part *once__claims_wait(struct once__claims *c, int leads,
                                     size_t *n);
/* Takes over the list; returns the caller's own part, which is all of it where
 * memory is short. NULL: there was none at all, and the list is the caller's. */
struct once__part *once__claims_share(struct once__claims *c,
                                      struct once__outgoing_list *list,
                                      uint64_t claimed_ms);
void once__claims_leave(struct once__claims *c);
void once__part_end(struct once__part *p);

#endif /* ONCE_MESSAGES_RELAY_CLAIM_H */
