/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timer.c - a pairing heap of timers, which are members of the structs that
 * they belong to.
 *
 * A binary heap in an array would have to grow, and repeating a step after a
 * fault must not depend on free memory. Here arming allocates nothing and
 * cannot fail. Arming and looking are O(1), removing is O(log n) amortized;
 * nothing is recursive.
 */
#include "calls/engine/timer.h"

#include <assert.h>
#include <stddef.h>

/* Both are roots, that is without siblings; either may be NULL. */
static struct once__timer *meld(struct once__timer *a, struct once__timer *b)
{
    struct once__timer *soon = a, *late = b;

    if (a == NULL || b == NULL)
        return a != NULL ? a : b;
    if (b->due_ms < a->due_ms) {
        soon = b;
        late = a;
    }
    late->previous = soon;
    late->next = soon->child;
    if (soon->child != NULL)
        soon->child->previous = late;
    soon->child = late;
    return soon;
}

static struct once__timer *detach(struct once__timer **list)
{
    struct once__timer *t = *list;

    if (t != NULL) {
        *list = t->next;
        t->next = t->previous = NULL;
    }
    return t;
}

/* A list of siblings becomes one tree: pairs from the left, then all of them
 * from the right. */
static struct once__timer *meld_all(struct once__timer *list)
{
    struct once__timer *pairs = NULL, *pair, *root = NULL;

    while (list != NULL) {
        struct once__timer *a = detach(&list), *b = detach(&list);

        pair = meld(a, b);
        pair->next = pairs;
        pairs = pair;
    }
    while (pairs != NULL) {
        pair = detach(&pairs);
        root = meld(root, pair);
    }
    return root;
}

void once__timer_cancel(struct once__timers *h, struct once__timer *t)
{
    struct once__timer *below;

    if (!t->armed)
        return;
    assert(h->root != NULL && (t == h->root || t->previous != NULL));
    below = meld_all(t->child);
    if (t == h->root) {
        h->root = below;
    } else {
        if (t->previous->child == t)
            t->previous->child = t->next;
        else
            t->previous->next = t->next;
        if (t->next != NULL)
            t->next->previous = t->previous;
        h->root = meld(h->root, below);
    }
    t->child = t->next = t->previous = NULL;
    t->armed = 0;
}

void once__timer_arm(struct once__timers *h, struct once__timer *t,
                     uint64_t due_ms)
{
    assert(t->fire != NULL);
    once__timer_cancel(h, t);
    t->due_ms = due_ms;
    t->armed = 1;
    h->root = meld(h->root, t);
}

uint64_t once__timers_next(const struct once__timers *h)
{
    return h->root == NULL ? UINT64_MAX : h->root->due_ms;
}

struct once__timer *once__timers_pop(struct once__timers *h, uint64_t now_ms)
{
    struct once__timer *t = h->root;

    if (t == NULL || t->due_ms > now_ms)
        return NULL;
    once__timer_cancel(h, t);
    return t;
}
