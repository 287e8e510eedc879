/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flights.c - messages that were sent and have no proof yet.
 *
 * There is always room for the end of everything that was added, so that no
 * failing allocation can lose a proof.
 */
#include "messages/broker/flights.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void once__flights_clear(struct once__flights *f)
{
    free(f->ring);
    once__ended_clear(&f->ended);
    memset(f, 0, sizeof(*f));
}

static struct once__flight *at(const struct once__flights *f, uint64_t number)
{
    return &f->ring[number % f->cap];
}

/* Room for twice as many. 0: no memory, and nothing has changed. */
static int grow(struct once__flights *f)
{
    size_t cap = f->cap == 0 ? 64 : f->cap * 2;
    struct once__flight *ring = calloc(cap, sizeof(*ring));
    uint64_t i;

    if (ring == NULL)
        return 0;
    for (i = f->first; i < f->next; i++)
        ring[i % cap] = *at(f, i);
    free(f->ring);
    f->ring = ring;
    f->cap = cap;
    return 1;
}

static void push(struct once__flights *f, uint64_t tag, int end, int status,
                 const char *why)
{
    const struct once__proof p = {
        .tag = tag, .end = end, .status = status, .why = why};

    once__ended_add(&f->ended, &p, NULL);
}

/* Room for one more. 0: no memory. */
static int room(struct once__flights *f)
{
    return once__ended_reserve(&f->ended, f->open + 1) &&
           ((f->cap > 0 && f->next - f->first < f->cap) || grow(f));
}

uint64_t once__flights_add(struct once__flights *f, uint64_t tag)
{
    struct once__flight *flight;

    if (f->first == 0)
        f->first = f->next = 1;
    if (!room(f))
        return 0;
    flight = at(f, f->next);
    flight->tag = tag;
    flight->note = 0;
    flight->open = 1;
    flight->end = -1;
    flight->status = 0;
    flight->why = NULL;
    f->open++;
    return f->next++;
}

static int is_open(const struct once__flights *f, uint64_t number)
{
    return number >= f->first && number < f->next && at(f, number)->open;
}

void once__flights_cancel(struct once__flights *f)
{
    assert(is_open(f, f->next - 1));
    f->next--;
    f->open--;
}

uint32_t *once__flights_note(const struct once__flights *f, uint64_t number)
{
    return is_open(f, number) ? &at(f, number)->note : NULL;
}

void once__flights_mark(struct once__flights *f, uint64_t number, int end,
                        int status, const char *why)
{
    struct once__flight *flight;

    if (!is_open(f, number))
        return;
    flight = at(f, number);
    flight->end = end;
    flight->status = status;
    flight->why = why;
}

void once__flights_end(struct once__flights *f, uint64_t number, int end,
                       int status, const char *why)
{
    struct once__flight *flight;

    if (!is_open(f, number))
        return;
    flight = at(f, number);
    flight->open = 0;
    f->open--;
    if (flight->end >= 0)
        push(f, flight->tag, flight->end, flight->status, flight->why);
    else
        push(f, flight->tag, end, status, why);
    while (f->first < f->next && !at(f, f->first)->open)
        f->first++;
}

void once__flights_end_to(struct once__flights *f, uint64_t number, int end,
                          const char *why)
{
    uint64_t i;

    for (i = f->first; i <= number && i < f->next; i++)
        once__flights_end(f, i, end, 0, why);
}

int once__flights_unsent(struct once__flights *f, uint64_t tag, int end,
                         const char *why)
{
    if (!room(f))
        return ONCE_ENOMEM;
    push(f, tag, end, 0, why);
    return ONCE_OK;
}

void once__flights_lose(struct once__flights *f, const char *why)
{
    if (f->next > 0)
        once__flights_end_to(f, f->next - 1, ONCE__END_SILENT, why);
    f->first = f->next = 1;
}
