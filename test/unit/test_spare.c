/* SPDX-License-Identifier: Apache-2.0 */
/* test_spare.c - nobody else has what was taken, and no token comes twice,
 * whichever threads take and give back. */
#include "calls/engine/spare.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "t.h"

enum { THREADS = 4, TURNS = 20000, HELD = 8, TOKENS = 5000, LARGE = 100000 };

struct user {
    struct once__spare *spare;
    uint8_t (*tokens)[ONCE_TOKEN_SIZE];
    int who, wrong;
};

static const size_t sizes[] = {40, 1800, 2048, 2049, LARGE};

static int is_filled(const uint8_t *b, size_t size, int with)
{
    size_t i;

    for (i = 0; i < size; i += 8)
        if (b[i] != (uint8_t)with)
            return 0;
    return b[size - 1] == (uint8_t)with;
}

/* Fills what it takes with its own number, and looks before it gives it back. */
static void *use(void *argument)
{
    struct user *u = argument;
    uint8_t *held[HELD] = {NULL};
    size_t size[HELD] = {0};
    int i, at;

    for (i = 0; i < TURNS; i++) {
        at = i * 7 % HELD;
        if (held[at] != NULL && !is_filled(held[at], size[at], u->who))
            u->wrong++;
        once__spare_give(u->spare, held[at], size[at]);
        size[at] = sizes[i % 4];
        held[at] = once__spare_take(u->spare, size[at]);
        if (held[at] == NULL)
            abort();
        memset(held[at], u->who, size[at]);
        if (i < TOKENS && !once__spare_token(u->spare, u->tokens[i]))
            u->wrong++;
    }
    for (at = 0; at < HELD; at++)
        once__spare_give(u->spare, held[at], size[at]);
    return NULL;
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, ONCE_TOKEN_SIZE);
}

static void what_is_taken_is_nobody_elses(void)
{
    static uint8_t tokens[THREADS * TOKENS][ONCE_TOKEN_SIZE];
    struct once__spare spare;
    struct user users[THREADS];
    pthread_t threads[THREADS];
    int i, twice = 0;

    once__spare_init(&spare);
    for (i = 0; i < THREADS; i++) {
        users[i] = (struct user){&spare, &tokens[(size_t)i * TOKENS], i + 1, 0};
        if (pthread_create(&threads[i], NULL, use, &users[i]) != 0)
            abort();
    }
    for (i = 0; i < THREADS; i++) {
        (void)pthread_join(threads[i], NULL);
        T_EQ(users[i].wrong, 0);
    }
    qsort(tokens, THREADS * TOKENS, ONCE_TOKEN_SIZE, by_bytes);
    for (i = 1; i < THREADS * TOKENS; i++)
        twice += by_bytes(tokens[i - 1], tokens[i]) == 0;
    T_EQ(twice, 0);
    once__spare_clear(&spare);
}

/* More than are kept, of two sizes; what is left is a sanitizer's to find. */
static void what_is_given_back_is_freed_at_the_end(void)
{
    enum { MANY = 2000 };
    static void *all[MANY];
    struct once__spare spare;
    int i;

    once__spare_init(&spare);
    for (i = 0; i < MANY; i++)
        all[i] = once__spare_take(&spare, sizes[i % 5]);
    for (i = 0; i < MANY; i++)
        once__spare_give(&spare, all[i], sizes[i % 5]);
    T_OK(spare.count <= 1024);
    once__spare_give(&spare, NULL, 40);
    once__spare_clear(&spare);
    T_EQ(spare.count, 0);
    T_OK(spare.first == NULL);
}

int main(void)
{
    T_RUN(what_is_taken_is_nobody_elses);
    T_RUN(what_is_given_back_is_freed_at_the_end);
    return t_done();
}
