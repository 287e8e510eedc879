/* SPDX-License-Identifier: Apache-2.0 */
/* test_timer.c - the pairing heap against the plainest thing that is right: an
 * array that is searched from end to end. */
#include "calls/engine/timer.h"

#include "t.h"

enum { TIMERS = 500, STEPS = 200000 };

static void never(void *owner, struct once__timer *t)
{
    (void)owner;
    (void)t;
}

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

static uint64_t soonest(const struct once__timer *list)
{
    uint64_t due = UINT64_MAX;
    int i;

    for (i = 0; i < TIMERS; i++)
        if (list[i].armed && list[i].due_ms < due)
            due = list[i].due_ms;
    return due;
}

static void it_agrees_with_a_search_through_all(void)
{
    struct once__timer *list = calloc(TIMERS, sizeof(*list));
    struct once__timers h = {NULL};
    uint64_t seed = 42;
    int i, wrong = 0, popped = 0;

    if (list == NULL)
        abort();
    for (i = 0; i < TIMERS; i++)
        list[i].fire = never;
    for (i = 0; i < STEPS; i++) {
        struct once__timer *t = &list[draw(&seed) % TIMERS];
        uint32_t what = draw(&seed) % 4;

        if (what < 2) {
            once__timer_arm(&h, t, draw(&seed) % 1000);
        } else if (what == 2) {
            once__timer_cancel(&h, t);
            wrong += t->armed;
        } else {
            uint64_t due = soonest(list), now = draw(&seed) % 1000;

            t = once__timers_pop(&h, now);
            wrong += (t != NULL) != (due <= now);
            wrong += t != NULL && (t->due_ms != due || t->armed);
            popped += t != NULL;
        }
        if (i % 16 == 0)
            wrong += once__timers_next(&h) != soonest(list);
    }
    T_EQ(wrong, 0);
    T_OK(popped > STEPS / 10);
    free(list);
}

static void it_sorts(void)
{
    enum { N = 100000 };
    struct once__timer *list = calloc(N, sizeof(*list)), *t;
    struct once__timers h = {NULL};
    uint64_t seed = 7, last = 0;
    int i, wrong = 0, n = 0;

    if (list == NULL)
        abort();
    for (i = 0; i < N; i++) {
        list[i].fire = never;
        once__timer_arm(&h, &list[i], draw(&seed));
    }
    while ((t = once__timers_pop(&h, UINT64_MAX - 1)) != NULL) {
        wrong += t->due_ms < last;
        last = t->due_ms;
        n++;
    }
    T_EQ(wrong, 0);
    T_EQ(n, N);
    T_OK(once__timers_next(&h) == UINT64_MAX);
    free(list);
}

static void cancelling_twice_is_harmless(void)
{
    struct once__timer t = {.fire = never};
    struct once__timers h = {NULL};

    once__timer_cancel(&h, &t);
    once__timer_arm(&h, &t, 5);
    once__timer_arm(&h, &t, 3);
    T_EQ(once__timers_next(&h), 3);
    T_OK(once__timers_pop(&h, 2) == NULL);
    once__timer_cancel(&h, &t);
    once__timer_cancel(&h, &t);
    T_OK(once__timers_pop(&h, 9) == NULL);
}

int main(void)
{
    T_RUN(it_agrees_with_a_search_through_all);
    T_RUN(it_sorts);
    T_RUN(cancelling_twice_is_harmless);
    return t_done();
}
