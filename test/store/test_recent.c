/* SPDX-License-Identifier: Apache-2.0 */
/* test_recent.c - the frames that a journal's handle has at hand: what is found
 * is what was put there, and what was overwritten is not found. */
#include "calls/store/journal/handle.h"

#include <stdlib.h>

#include "t.h"

enum { LARGEST = 4096, ROUND = 3000 };

static uint64_t position(unsigned i)
{
    return once__journal_at(1 + i / 1000, ONCE__JOURNAL_HEADER + i * 200);
}

static size_t length(unsigned i)
{
    return 80 + i * 7919 % (LARGEST - 80);
}

static void fill(uint8_t *bytes, unsigned i)
{
    memset(bytes, (int)(i * 31), length(i));
    memcpy(bytes, &i, sizeof(i));
}

static void put(struct once__recent **r, unsigned i)
{
    uint8_t bytes[LARGEST];

    fill(bytes, i);
    once__recent_put(r, position(i), bytes, length(i));
}

/* 1: found as it was put, 0: not found, -1: something else was found. */
static int find(const struct once__recent *r, unsigned i)
{
    uint8_t bytes[LARGEST];
    const uint8_t *at = once__recent_find(r, position(i), length(i));

    fill(bytes, i);
    return at == NULL ? 0 : memcmp(at, bytes, length(i)) == 0 ? 1 : -1;
}

static void nothing_is_found_in_nothing(void)
{
    T_EQ(find(NULL, 1), 0);
}

static void what_was_just_put_is_found(void)
{
    struct once__recent *r = NULL;
    unsigned i, j, found = 0, wrong = 0;

    for (i = 0; i < ROUND; i++) {
        put(&r, i);
        for (j = i < 64 ? 0 : i - 64; j <= i; j++) {
            found += find(r, j) == 1;
            wrong += find(r, j) < 0;
        }
    }
    T_EQ(wrong, 0);
    T_OK(found > 64 * ROUND * 9 / 10); /* two may want one place */
    for (i = wrong = found = 0; i < ROUND; i++) {
        found += find(r, i) == 1;
        wrong += find(r, i) < 0;
    }
    T_EQ(wrong, 0);
    T_OK(found < ROUND / 2); /* the ring went round */
    free(r);
}

static void a_position_has_the_frame_that_came_last(void)
{
    struct once__recent *r = NULL;
    uint8_t bytes[100] = {1};
    const uint8_t *at;

    put(&r, 7);
    once__recent_put(&r, position(7), bytes, sizeof(bytes));
    at = once__recent_find(r, position(7), sizeof(bytes));
    T_OK(at != NULL && memcmp(at, bytes, sizeof(bytes)) == 0);
    free(r);
}

static void what_is_large_is_not_kept(void)
{
    static uint8_t bytes[LARGEST + 8];
    struct once__recent *r = NULL;

    once__recent_put(&r, position(1), bytes, sizeof(bytes));
    T_OK(once__recent_find(r, position(1), sizeof(bytes)) == NULL);
    put(&r, 2);
    T_OK(once__recent_find(r, position(2), sizeof(bytes)) == NULL);
    free(r);
}

int main(void)
{
    T_RUN(nothing_is_found_in_nothing);
    T_RUN(what_was_just_put_is_found);
    T_RUN(a_position_has_the_frame_that_came_last);
    T_RUN(what_is_large_is_not_kept);
    return t_done();
}
