/* SPDX-License-Identifier: Apache-2.0 */
/*
 * due.c - a heap of the exchanges and calls that run or wait for the store, the one
 * on top whose time is over first. Each has a time of its own.
 *
 * There is room for all that are open, so that one whose handler may run is never
 * without a time limit.
 */
#include "programs/serve/serve.h"

#include <stdlib.h>

static void put(struct serve *s, size_t at, struct serve_open *o)
{
    s->due[at] = o;
    o->due = at + 1;
}

/* Both move `o` from the empty place `at` to where it belongs. */
static void rise(struct serve *s, size_t at, struct serve_open *o)
{
    for (; at > 0 && s->due[(at - 1) / 2]->until_ms > o->until_ms;
         at = (at - 1) / 2)
        put(s, at, s->due[(at - 1) / 2]);
    put(s, at, o);
}

static void sink(struct serve *s, size_t at, struct serve_open *o)
{
    size_t below;

    for (; (below = 2 * at + 1) < s->n_due; at = below) {
        if (below + 1 < s->n_due &&
            s->due[below + 1]->until_ms < s->due[below]->until_ms)
            below++;
        if (s->due[below]->until_ms >= o->until_ms)
            break;
        put(s, at, s->due[below]);
    }
    put(s, at, o);
}

int serve_due_reserve(struct serve *s)
{
    size_t room = s->due_room > 0 ? 2 * s->due_room : 64;
    struct serve_open **more;

    if (s->n_open < s->due_room)
        return 1;
    more = realloc(s->due, room * sizeof(struct serve_open *));
    if (more == NULL)
        return 0;
    s->due = more;
    s->due_room = room;
    return 1;
}

void serve_due_add(struct serve_open *o)
{
    struct serve *s = o->wake.serve;

    s->n_due++;
    rise(s, s->n_due - 1, o);
}

void serve_due_remove(struct serve_open *o)
{
    struct serve *s = o->wake.serve;
    struct serve_open *last;
    size_t at = o->due - 1;

    if (o->due == 0)
        return;
    o->due = 0;
    last = s->due[--s->n_due];
    if (last == o)
        return;
    if (at > 0 && s->due[(at - 1) / 2]->until_ms > last->until_ms)
        rise(s, at, last);
    else
        sink(s, at, last);
}
