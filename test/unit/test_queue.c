/* SPDX-License-Identifier: Apache-2.0 */
/* test_queue.c - many push, one takes: everything once, each pusher's in the
 * order in which it was pushed, nobody sleeps through a push. */
#include "calls/engine/queue.h"

#include <pthread.h>

#include "t.h"

enum { PUSHERS = 6, EACH = 20000 };

struct item {
    struct once__node node;
    int pusher, number;
};

struct pusher {
    struct once__queue *q;
    struct item *items;
    int who, refused;
};

static void *push_all(void *argument)
{
    struct pusher *p = argument;
    int i;

    for (i = 0; i < EACH; i++) {
        p->items[i].pusher = p->who;
        p->items[i].number = i;
        if (once__queue_push(p->q, &p->items[i].node))
            once__queue_wake(p->q);
        else
            p->refused++;
    }
    return NULL;
}

static int check(const struct once__node *node, int *next, int *got)
{
    const struct item *it = (const void *)node;

    ++*got;
    return it->number != next[it->pusher]++;
}

static struct once__queue *make(void)
{
    struct once__queue *q = calloc(1, sizeof(*q));

    if (q == NULL || once__queue_init(q) != 0)
        abort();
    return q;
}

static void end(struct once__queue *q)
{
    once__queue_clear(q);
    free(q);
}

static void all_arrives_once_and_in_order(void)
{
    struct once__queue *q = make();
    struct pusher pushers[PUSHERS];
    pthread_t threads[PUSHERS];
    int next[PUSHERS] = {0}, i, got = 0, disorder = 0;
    struct once__node *node;

    for (i = 0; i < PUSHERS; i++) {
        pushers[i] =
            (struct pusher){q, calloc(EACH, sizeof(struct item)), i, 0};
        if (pushers[i].items == NULL ||
            pthread_create(&threads[i], NULL, push_all, &pushers[i]) != 0)
            abort();
    }
    while (got < PUSHERS * EACH) {
        node = once__queue_take(q);
        if (node == NULL) /* for ever: a lost wake-up hangs here */
            once__queue_sleep(q, UINT64_MAX);
        for (; node != NULL; node = node->next)
            disorder += check(node, next, &got);
    }
    T_EQ(disorder, 0);
    for (i = 0; i < PUSHERS; i++) {
        (void)pthread_join(threads[i], NULL);
        T_EQ(next[i], EACH);
        T_EQ(pushers[i].refused, 0);
        free(pushers[i].items);
    }
    T_OK(once__queue_take(q) == NULL);
    end(q);
}

/* A queue that is closed before anything was taken, so that there is order. */
static void what_is_left_at_the_close_is_in_order(void)
{
    struct once__queue *q = make();
    struct item items[100];
    struct once__node *node;
    int i, next[1] = {0}, got = 0, disorder = 0;

    for (i = 0; i < 100; i++) {
        items[i] = (struct item){.number = i};
        T_EQ(once__queue_push(q, &items[i].node), 1);
    }
    for (node = once__queue_close(q); node != NULL; node = node->next)
        disorder += check(node, next, &got);
    T_EQ(got, 100);
    T_EQ(disorder, 0);
    end(q);
}

static void a_closed_queue_refuses_and_loses_nothing(void)
{
    struct once__queue *q = make();
    struct pusher pushers[PUSHERS];
    pthread_t threads[PUSHERS];
    int next[PUSHERS] = {0}, i, got = 0, refused = 0, disorder = 0;
    struct once__node *node;

    for (i = 0; i < PUSHERS; i++) {
        pushers[i] =
            (struct pusher){q, calloc(EACH, sizeof(struct item)), i, 0};
        if (pushers[i].items == NULL ||
            pthread_create(&threads[i], NULL, push_all, &pushers[i]) != 0)
            abort();
    }
    while (got < EACH)
        for (node = once__queue_take(q); node != NULL; node = node->next)
            disorder += check(node, next, &got);
    for (node = once__queue_close(q); node != NULL; node = node->next)
        disorder += check(node, next, &got);
    T_EQ(disorder, 0);
    for (i = 0; i < PUSHERS; i++) {
        (void)pthread_join(threads[i], NULL);
        refused += pushers[i].refused;
    }
    T_EQ(got + refused, PUSHERS * EACH);
    T_EQ(once__queue_push(q, &pushers[0].items[0].node), 0);
    for (i = 0; i < PUSHERS; i++)
        free(pushers[i].items);
    end(q);
}

static void a_push_before_the_sleep_ends_it(void)
{
    struct once__queue *q = make();
    struct item it = {.number = 1};

    T_EQ(once__queue_push(q, &it.node), 1); /* without a wake */
    once__queue_sleep(q, UINT64_MAX);       /* returns, or the test hangs */
    T_OK(once__queue_take(q) == &it.node);
    once__queue_sleep(q, 1); /* long past: returns, too */
    T_OK(once__queue_take(q) == NULL);
    end(q);
}

int main(void)
{
    T_RUN(all_arrives_once_and_in_order);
    T_RUN(what_is_left_at_the_close_is_in_order);
    T_RUN(a_closed_queue_refuses_and_loses_nothing);
    T_RUN(a_push_before_the_sleep_ends_it);
    return t_done();
}
