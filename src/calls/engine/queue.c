/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.c - an intrusive stack that many push to and one takes whole.
 *
 *    push: new -> head -> ...      compare and swap, no lock, no allocation
 *    take: head := NULL            one exchange, then reversed: oldest first
 *
 * There is no pop, so there is no ABA problem. A pusher makes no system call
 * while the consumer is awake: the consumer sets `sleeping` and then looks at
 * the queue once more, the pusher pushes and then looks at `sleeping`; these
 * operations are sequentially consistent, so at least one of them sees the
 * other. After the close a push fails and returns 0, so that nothing is lost.
 */
#include "calls/engine/queue.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <time.h>

int once__queue_init(struct once__queue *q)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);

    if (rc != 0)
        return rc;
    atomic_init(&q->head, NULL);
    atomic_init(&q->sleeping, 0);
    q->closed.next = NULL;
    q->closed.arrive = NULL;
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    rc = pthread_mutex_init(&q->lock, NULL);
    if (rc != 0)
        goto out;
    rc = pthread_cond_init(&q->awake, &attr);
    if (rc != 0)
        (void)pthread_mutex_destroy(&q->lock);
out:
    (void)pthread_condattr_destroy(&attr);
    return rc;
}

void once__queue_clear(struct once__queue *q)
{
    (void)pthread_cond_destroy(&q->awake);
    (void)pthread_mutex_destroy(&q->lock);
}

int once__queue_push(struct once__queue *q, struct once__node *node)
{
    struct once__node *head = atomic_load(&q->head);

    assert(node != head && node != &q->closed);
    do {
        if (head == &q->closed)
            return 0;
        node->next = head;
    } while (!atomic_compare_exchange_weak(&q->head, &head, node));
    return 1;
}

void once__queue_wake(struct once__queue *q)
{
    int one = 1;

    if (!atomic_compare_exchange_strong(&q->sleeping, &one, 0))
        return; /* awake, or another thread is waking it */
    (void)pthread_mutex_lock(&q->lock);
    (void)pthread_cond_signal(&q->awake);
    (void)pthread_mutex_unlock(&q->lock);
}

static struct once__node *in_order(struct once__node *last)
{
    struct once__node *next, *first = NULL;

    for (; last != NULL; last = next) {
        next = last->next;
        last->next = first;
        first = last;
    }
    return first;
}

struct once__node *once__queue_take(struct once__queue *q)
{
    if (atomic_load(&q->head) == NULL)
        return NULL;
    return in_order(atomic_exchange(&q->head, NULL));
}

struct once__node *once__queue_close(struct once__queue *q)
{
    struct once__node *last = atomic_exchange(&q->head, &q->closed);

    assert(last != &q->closed);
    return in_order(last);
}

void once__queue_sleep(struct once__queue *q, uint64_t until_ms)
{
    struct timespec until = {(time_t)(until_ms / 1000),
                             (long)(until_ms % 1000) * 1000000};
    int rc = 0;

    (void)pthread_mutex_lock(&q->lock);
    atomic_store(&q->sleeping, 1);
    if (atomic_load(&q->head) != NULL)
        rc = ETIMEDOUT; /* pushed before `sleeping` was set: do not sleep */
    while (atomic_load(&q->sleeping) && rc != ETIMEDOUT)
        rc = until_ms == UINT64_MAX
                 ? pthread_cond_wait(&q->awake, &q->lock)
                 : pthread_cond_timedwait(&q->awake, &q->lock, &until);
    atomic_store(&q->sleeping, 0);
    (void)pthread_mutex_unlock(&q->lock);
}
