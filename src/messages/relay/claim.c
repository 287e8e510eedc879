/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claim.c - a leader, those who wait for it, and the parts of its claim.
 *
 * Whoever waits takes a part that was handed out before it looks at anything
 * else: so no part is left behind when the relay is told to stop.
 */
#include "messages/relay/claim.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A claim, while any part of it is carried. */
struct once__whole {
    atomic_size_t parts; /* ended with release, the last with acquire */
    struct once__outgoing_list list;
};

void once__claims_close(struct once__claims *c)
{
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
}

struct once__part *once__claims_wait(struct once__claims *c, int leads,
                                     size_t *n)
{
    struct once__part *p = NULL;

    (void)pthread_mutex_lock(&c->lock);
    c->waiting++;
    while (!leads && c->parts == NULL && c->led)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    c->waiting--;
    if (!leads)
        p = c->parts;
    if (p != NULL)
        c->parts = p->next;
    else
        c->led = 1;
    *n = c->waiting + 1;
    (void)pthread_mutex_unlock(&c->lock);
    return p;
}

/* ---- Parts --------------------------------------------------------------- */

static int same_key(const struct once__outgoing *a,
                    const struct once__outgoing *b)
{
    return a->m.key != NULL && b->m.key != NULL &&
           strcmp(a->m.key, b->m.key) == 0;
}

/* Moves the rows of the first one's key to the front; returns how many. They are
 * few: as many as there are workers. */
static size_t gather(struct once__outgoing *rows, size_t n)
{
    size_t i, k = 1;

    for (i = 1; i < n; i++)
        if (same_key(&rows[0], &rows[i])) {
            struct once__outgoing row = rows[i];

            memmove(&rows[k + 1], &rows[k], (i - k) * sizeof(*rows));
            rows[k++] = row;
        }
    return k;
}

static struct once__part *part_of(struct once__whole *w,
                                  struct once__outgoing *rows, size_t n,
                                  uint64_t claimed_ms)
{
    struct once__part *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return NULL;
    p->list.rows = rows;
    p->list.n = n;
    p->list.now_ms = w->list.now_ms;
    p->claimed_ms = claimed_ms;
    p->whole = w;
    atomic_fetch_add(&w->parts, 1);
    return p;
}

/* The first part, the others behind it. Without memory the last one has the
 * rest. */
static struct once__part *cut(struct once__whole *w, uint64_t claimed_ms)
{
    struct once__outgoing *rows = w->list.rows, *end = rows + w->list.n;
    struct once__part *first = NULL, **last = &first, *p = NULL;

    while (rows < end) {
        size_t n = gather(rows, (size_t)(end - rows));
        struct once__part *more = part_of(w, rows, n, claimed_ms);

        if (more == NULL && p == NULL)
            return NULL;
        if (more == NULL) {
            p->list.n += (size_t)(end - rows);
            break;
        }
        p = *last = more;
        last = &p->next;
        rows += n;
    }
    return first;
}

/* By the lock: adds them at the end. */
static void hand_out(struct once__claims *c, struct once__part *parts)
{
    struct once__part **last = &c->parts;

    while (*last != NULL)
        last = &(*last)->next;
    *last = parts;
}

struct once__part *once__claims_share(struct once__claims *c,
                                      struct once__outgoing_list *list,
                                      uint64_t claimed_ms)
{
    struct once__whole *w = calloc(1, sizeof(*w));
    struct once__part *first = NULL;

    if (w != NULL) {
        w->list = *list;
        first = cut(w, claimed_ms);
    }
    if (first == NULL)
        free(w);
    else
        *list = (struct once__outgoing_list){NULL, 0, 0, 0, NULL};
    (void)pthread_mutex_lock(&c->lock);
    if (first != NULL) {
        hand_out(c, first->next);
        first->next = NULL;
    }
    c->led = 0;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    return first;
}

void once__claims_leave(struct once__claims *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->led = 0;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

void once__part_end(struct once__part *p)
{
    if (atomic_fetch_sub(&p->whole->parts, 1) == 1) {
        once__outgoing_clear(&p->whole->list);
        free(p->whole);
    }
    free(p);
}
