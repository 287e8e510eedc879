/* SPDX-License-Identifier: Apache-2.0 */
/* events.c - what is to come, the soonest first, equals in order of pushing. */
#include <stdlib.h>

#include "sim.h"

static int sooner(const struct event *a, const struct event *b)
{
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

void push(struct world *w, uint64_t in_ms, struct event e)
{
    int i, up;

    if (w->n_events == EVENTS_MAX) {
        violated(w, "SIM", -1, "more events than there is room for");
        free(e.data);
        return;
    }
    e.at = w->now + in_ms;
    e.order = w->order++;
    for (i = w->n_events++; i > 0; i = up) {
        up = (i - 1) / 2;
        if (!sooner(&e, &w->heap[up]))
            break;
        w->heap[i] = w->heap[up];
    }
    w->heap[i] = e;
}

struct event pop(struct world *w)
{
    struct event top = w->heap[0], last = w->heap[--w->n_events];
    int i = 0, down;

    while ((down = 2 * i + 1) < w->n_events) {
        if (down + 1 < w->n_events &&
            sooner(&w->heap[down + 1], &w->heap[down]))
            down++;
        if (!sooner(&w->heap[down], &last))
            break;
        w->heap[i] = w->heap[down];
        i = down;
    }
    w->heap[i] = last;
    return top;
}

void events_clear(struct world *w)
{
    while (w->n_events > 0)
        free(w->heap[--w->n_events].data);
}
