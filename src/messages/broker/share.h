/* SPDX-License-Identifier: Apache-2.0 */
/* share.h - what several drivers need: proofs that wait to be fetched. */
#ifndef ONCE_MESSAGES_BROKER_SHARE_H
#define ONCE_MESSAGES_BROKER_SHARE_H

#include <pthread.h>

#include "messages/broker/broker.h"

/* ---- Proofs that were not fetched yet, oldest first --------------------- */

struct once__ended {
    struct once__proof *list;
    void **memory; /* of each, freed after it was fetched and used */
    size_t used; /* fetched by the last call: their memory goes with the next */
    size_t n, room;
};

/* Makes room for `n` more, so that adding them cannot fail. 0: no memory. */
ONCE_CHECK int once__ended_reserve(struct once__ended *e, size_t n);
/* Adds one, in room that was reserved. `memory`, which the proof may point
 * into, becomes the list's; it may be NULL. */
void once__ended_add(struct once__ended *e, const struct once__proof *p,
                     void *memory);
/* As once__broker_ops.proofs, without waiting. */
size_t once__ended_take(struct once__ended *e, struct once__proof *out,
                        size_t max);
void once__ended_clear(struct once__ended *e);

/* ---- Names -------------------------------------------------------------- */

/* 1 to ONCE_ID_MAX characters of visible ASCII. */
int once__broker_is_name(const char *text);

/* ---- Targets that have ended with each message when send() returns ------- */

/* once__broker_ops.abandon of them: there is nothing to do. */
void once__broker_no_abandon(struct once__broker *b);

#endif /* ONCE_MESSAGES_BROKER_SHARE_H */
