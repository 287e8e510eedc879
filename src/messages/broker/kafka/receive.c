/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receive.c - the driver for Kafka: receiving, as a member of a group (group.c).
 */
#include "messages/broker/kafka/kafka.h"

#include <assert.h>

#include "base/error.h"
#include "base/steady.h"

enum { BACK_MS = 500 /* before what was given back comes again */ };

static struct once__kafka *self(struct once__broker *b)
{
    return (struct once__kafka *)(void *)b;
}

/* ---- Receiving ---------------------------------------------------------------- */

/* The first that is ready goes out. A mark above it is committed before: with the
 * partition the message may be gone by then, and nothing goes out. */
static int hand_out(struct once__kafka *k, struct once__delivery **out,
                    once_error *err)
{
    struct once__incoming *in = k->ready.first;
    struct once__kafka_part *p = once__kafka_part_from(k, in);
    int64_t offset = (int64_t)in->d.tag;
    int rc;

    assert(p != NULL);
    if (p->handed < offset)
        p->handed = offset;
    if (offset >= p->limit) {
        rc = once__kafka_commit_for(k, in->connection, err);
        if (rc != ONCE_OK)
            return k->down ? rc : ONCE_OK;
        p = once__kafka_part_from(k, in);
        assert(p != NULL && in == k->ready.first && offset < p->limit);
    }
    if (p->handed <= offset)
        p->handed = offset + 1;
    once__incoming_remove(&k->ready, in);
    once__incoming_push(&k->out, in);
    k->held++;
    *out = &in->d;
    return ONCE_OK;
}

static int may_hand_out(const struct once__kafka *k)
{
    return k->held < k->o.prefetch && once__steady_ms() >= k->quiet_until;
}

/* Waits for something to come, or to change, for a short time. */
static void wait_for_more(struct once__kafka *k, uint64_t left_ms)
{
    int ms =
        left_ms < ONCE__KAFKA_SLICE_MS ? (int)left_ms : ONCE__KAFKA_SLICE_MS;

    if (k->n_parts > 0 && may_hand_out(k))
        once__kafka_take(k, rd_kafka_consume_queue(k->queue, ms));
    else
        once__kafka_serve(k, ms);
}

static int receive(struct once__kafka *k, uint32_t wait_ms,
                   struct once__delivery **out, once_error *err)
{
    uint64_t now = once__steady_ms(), end = now + wait_ms;
    int rc = ONCE_OK, first = 1;

    /* Not without end where partitions come and go: each time costs a commit. */
    while (rc == ONCE_OK && *out == NULL && k->up && !k->down &&
           (first || now < end)) {
        first = 0;
        once__kafka_serve(k, 0);
        if (!k->down && (k->ready.first == NULL || !may_hand_out(k)))
            wait_for_more(k, now < end ? end - now : 0);
        if (!k->down && k->ready.first != NULL && may_hand_out(k))
            rc = hand_out(k, out, err);
        now = once__steady_ms();
    }
    if (*out != NULL || (k->up && !k->down))
        return rc;
    once__kafka_lose(k, "the connection was lost");
    return once__fail(err, ONCE_EAWAY, "kafka: %s",
                      once__kafka_why(k, "the connection was lost"));
}

int once__kafka_receive(struct once__broker *b, uint32_t wait_ms,
                        struct once__delivery **out, once_error *err)
{
    struct once__kafka *k = self(b);
    int rc;

    assert(k->receives);
    *out = NULL;
    (void)pthread_mutex_lock(&k->lock);
    rc = receive(k, wait_ms, out, err);
    (void)pthread_mutex_unlock(&k->lock);
    return rc;
}

/* Before what has come of its partition behind it. */
static void put_back(struct once__kafka *k, struct once__incoming *in)
{
    struct once__incoming *at = k->ready.first;

    while (at != NULL &&
           (at->connection != in->connection || at->d.tag < in->d.tag))
        at = at->next;
    in->d.redelivered = 1;
    k->quiet_until = once__steady_ms() + BACK_MS;
    if (at == NULL) {
        once__incoming_push(&k->ready, in);
        return;
    }
    in->next = at;
    in->prev = at->prev;
    if (at->prev != NULL)
        at->prev->next = in;
    else
        k->ready.first = in;
    at->prev = in;
}

static int end_delivery(struct once__kafka *k, struct once__incoming *in,
                        int how, once_error *err)
{
    struct once__kafka_part *p = once__kafka_part_from(k, in);
    uint64_t serial = in->connection;

    once__incoming_remove(&k->out, in);
    if (p != NULL)
        k->held--;
    if (p != NULL && how == ONCE__ACK_BACK) {
        put_back(k, in);
        return ONCE_OK;
    }
    once__incoming_free(in);
    if (p == NULL)
        return once__fail(err, ONCE_EAWAY,
                          "kafka: the partition was taken away since");
    /* The topic may have been deleted and made again: an offset of the old one
     * would pass over what is new. The message comes again, or is gone. */
    if (k->down)
        return once__fail(err, ONCE_EAWAY, "kafka: the connection was lost");
    return once__kafka_undone(k, p) > p->committed
               ? once__kafka_commit_for(k, serial, err)
               : ONCE_OK;
}

int once__kafka_ack(struct once__broker *b, struct once__delivery *d, int how,
                    once_error *err)
{
    struct once__kafka *k = self(b);
    int rc;

    if (how == ONCE__ACK_STILL_AT)
        return ONCE_OK; /* the thread keeps what is ours */
    (void)pthread_mutex_lock(&k->lock);
    rc = end_delivery(k, (struct once__incoming *)(void *)d, how, err);
    (void)pthread_mutex_unlock(&k->lock);
    return rc;
}
