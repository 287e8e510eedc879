/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target.h - what tests of the drivers of src/messages/broker have in common: messages,
 * what became of them.
 */
#ifndef TEST_TARGET_H
#define TEST_TARGET_H

#include <string.h>
#include <time.h>

#include "messages/broker/broker.h"
#include "patience.h"
#include "proxy.h"

enum { MANY = 2000, WAIT_MS = 20000, NONE = -1, TWICE = -2 };

/* What became of the messages of one test, by tag from 0. */
struct ends {
    int end[MANY], status[MANY];
    size_t n; /* proofs so far */
};

static inline uint64_t target_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static inline void ends_begin(struct ends *e)
{
    size_t i;

    for (i = 0; i < MANY; i++)
        e->end[i] = NONE;
    e->n = 0;
}

static inline size_t ends_of(const struct ends *e, int end, size_t sent)
{
    size_t i, n = 0;

    for (i = 0; i < sent; i++)
        n += e->end[i] == end;
    return n;
}

/* Collects proofs until `sent` messages have one, or too much time went by. */
static inline void ends_collect(struct ends *e, struct once__broker *b,
                                size_t sent)
{
    struct once__proof p[100];
    uint64_t end = target_now() + patient_ms(WAIT_MS);
    size_t i, n;

    while (e->n < sent && target_now() < end) {
        n = b->ops->proofs(b, 500, p, 100);
        for (i = 0; i < n; i++) {
            if (!T_OK(p[i].tag < MANY))
                continue;
            if (e->end[p[i].tag] != NONE)
                p[i].end = TWICE;
            e->end[p[i].tag] = p[i].end;
            e->status[p[i].tag] = p[i].status;
            e->n++;
        }
    }
    T_EQ(e->n, sent);
    T_EQ(ends_of(e, TWICE, sent), 0);
}

static inline struct once__broker *target_open(const char *url,
                                               uint32_t timeout_ms,
                                               uint32_t prefetch,
                                               uint32_t body_max)
{
    struct once__broker_options o = {0};
    struct once__broker *b = NULL;
    const struct once__broker_ops *ops;
    once_error err = {0};

    o.timeout_ms = timeout_ms;
    o.prefetch = prefetch;
    o.body_max = body_max;
    o.consumer = prefetch > 0 ? "test" : NULL;
    ops = once__broker_find(url, &err);
    if (ops == NULL || ops->open(url, &o, &b, &err) != ONCE_OK) {
        printf("#   %s\n", err.text);
        t__bad++;
        exit(1);
    }
    return b;
}

static inline struct once__broker *target_connected(const char *url,
                                                    uint32_t prefetch)
{
    struct once__broker *b = target_open(url, 10000, prefetch, 0);
    once_error err = {0};

    if (!T_OK(b->ops->connect(b, &err) == ONCE_OK))
        printf("#   %s\n", err.text);
    return b;
}

static inline once_message target_message(const char *route, const char *id,
                                          const void *body, size_t size)
{
    once_message m = ONCE_MESSAGE_INIT;

    m.route = route;
    m.id = id;
    m.body.data = body;
    m.body.size = size;
    return m;
}

/* Receives one, or NULL. */
static inline struct once__delivery *target_receive(struct once__broker *b,
                                                    uint32_t wait_ms)
{
    struct once__delivery *d = NULL;
    once_error err = {0};

    if (!T_OK(b->ops->receive(b, wait_ms, &d, &err) == ONCE_OK))
        printf("#   %s\n", err.text);
    return d;
}

#endif /* TEST_TARGET_H */
