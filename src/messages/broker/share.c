/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c - what several drivers need.
 */
#include "messages/broker/share.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/grow.h"

void once__broker_no_abandon(struct once__broker *b)
{
    (void)b;
}

/* ---- Proofs that were not fetched yet ----------------------------------- */

/* Frees what the last call has shown, and moves the rest to the front. */
static void drop_used(struct once__ended *e)
{
    size_t i;

    for (i = 0; i < e->used; i++)
        free(e->memory[i]);
    e->n -= e->used;
    if (e->used > 0 && e->n > 0) {
        memmove(e->list, e->list + e->used, e->n * sizeof(*e->list));
        memmove(e->memory, e->memory + e->used, e->n * sizeof(*e->memory));
    }
    e->used = 0;
}

int once__ended_reserve(struct once__ended *e, size_t n)
{
    size_t room = e->room;
    struct once__proof *list =
        once__grown(e->list, &room, e->n + n, sizeof(*list));
    void **memory;

    if (list == NULL)
        return 0;
    e->list = list;
    memory = once__grown(e->memory, &e->room, e->n + n, sizeof(*memory));
    if (memory == NULL)
        return 0;
    e->memory = memory;
    return 1;
}

void once__ended_add(struct once__ended *e, const struct once__proof *p,
                     void *memory)
{
    assert(e->n < e->room);
    e->list[e->n] = *p;
    e->memory[e->n++] = memory;
}

size_t once__ended_take(struct once__ended *e, struct once__proof *out,
                        size_t max)
{
    size_t n;

    drop_used(e);
    n = e->n < max ? e->n : max;
    if (n > 0)
        memcpy(out, e->list, n * sizeof(*out));
    e->used = n;
    return n;
}

void once__ended_clear(struct once__ended *e)
{
    e->used = e->n;
    drop_used(e);
    free(e->list);
    free(e->memory);
    memset(e, 0, sizeof(*e));
}

/* ---- Names -------------------------------------------------------------- */

int once__broker_is_name(const char *text)
{
    size_t n = 0;

    while (text[n] > ' ' && text[n] <= '~')
        n++;
    return text[n] == '\0' && n > 0 && n <= ONCE_ID_MAX;
}
