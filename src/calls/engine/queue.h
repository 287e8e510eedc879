/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h - from many threads to one: how everything reaches the engine. */
#ifndef ONCE_CALLS_ENGINE_QUEUE_H
#define ONCE_CALLS_ENGINE_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* A struct that is queued has one of these as a member. The thread that
 * takes the node from the queue calls `arrive`; the queue itself never does. */
struct once__node {
    struct once__node *next;
    void (*arrive)(void *owner, struct once__node *node);
};

/* `head` and `sleeping` must be sequentially consistent: each side writes one and
 * then reads the other. A push releases its node, a take acquires all nodes. */
struct once__queue {
    _Atomic(struct once__node *) head; /* the last one pushed comes first */
    atomic_int sleeping;
    pthread_mutex_t lock;
    pthread_cond_t awake;
    struct once__node closed; /* the head, once the queue is closed */
};

/* 0, or an errno. */
int once__queue_init(struct once__queue *q);
void once__queue_clear(struct once__queue *q);

/* 1, or 0 if the queue has been closed: the node is still the caller's. Does
 * not wake. From any thread. */
int once__queue_push(struct once__queue *q, struct once__node *node);
/* Ends the consumer's sleep, if it sleeps. From any thread. */
void once__queue_wake(struct once__queue *q);

/* For the consumer: takes all that was pushed, oldest first, or NULL. */
struct once__node *once__queue_take(struct once__queue *q);
/* The same for the last time: each push from then on returns 0. */
struct once__node *once__queue_close(struct once__queue *q);
/* Sleeps until once__queue_wake() is called, or until CLOCK_MONOTONIC is
 * `until_ms` (UINT64_MAX: never). Returns at once if the queue is not empty. */
void once__queue_sleep(struct once__queue *q, uint64_t until_ms);

#endif /* ONCE_CALLS_ENGINE_QUEUE_H */
