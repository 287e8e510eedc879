/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rounds.c - see rounds.h. It knows no server, and it never turns the lack of an
 * answer into one.
 */
#include "calls/store/rounds.h"

#include <stdlib.h>
#include <string.h>

#include "calls/core/transition.h"
#include "base/must.h"
#include "base/steady.h"

enum { ROUND_BYTES = 16 << 20 /* results that one round takes along */ };

void once__rounds_clear(struct once__rounds *r)
{
    free(r->items);
    free(r->call);
    free(r->places);
    memset(r, 0, sizeof(*r));
}

/* ---- Sorting ----------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct once__rounds_item *x = a, *y = b;
    int order = memcmp(x->op->name, y->op->name, ONCE_NAME_SIZE);

    return order != 0 ? order : (x->at > y->at) - (x->at < y->at);
}

static int make_room(struct once__rounds *r, size_t n)
{
    struct once__rounds_item *items;
    once_op **call;
    size_t *places;

    if (n <= r->room)
        return 1;
    items = realloc(r->items, n * sizeof(*items));
    if (items != NULL)
        r->items = items;
    call = realloc(r->call, n * sizeof(once_op *));
    if (call != NULL)
        r->call = call;
    places = realloc(r->places, n * sizeof(*places));
    if (places != NULL)
        r->places = places;
    if (items == NULL || call == NULL || places == NULL)
        return 0;
    r->room = n;
    return 1;
}

int once__rounds_begin(struct once__rounds *r, once_op **ops, size_t n,
                       size_t limit, uint64_t until_ms, uint64_t lock_ms)
{
    size_t i;

    if (!make_room(r, n))
        return ONCE_ENOMEM;
    for (i = 0; i < n; i++)
        r->items[i] = (struct once__rounds_item){ops[i], i, 0, 0};
    qsort(r->items, n, sizeof(*r->items), by_name);
    r->n = r->left = n;
    r->most = r->limit = limit;
    r->count = 0;
    r->full = r->met = 0;
    r->until_ms = until_ms;
    r->lock_ms = lock_ms;
    return ONCE_OK;
}

/* ---- One round --------------------------------------------------------- */

static int same_name(const struct once__rounds_item *a,
                     const struct once__rounds_item *b)
{
    return memcmp(a->op->name, b->op->name, ONCE_NAME_SIZE) == 0;
}

/* An earlier one of the same name comes first. */
static int must_wait(const struct once__rounds *r, size_t i)
{
    return i > 0 && !r->items[i - 1].done &&
           same_name(&r->items[i - 1], &r->items[i]);
}

size_t once__rounds_gather(struct once__rounds *r, unsigned verbs)
{
    size_t i, bytes = 0, size;

    r->count = 0;
    for (i = 0; i < r->n && r->count < r->most; i++) {
        once_op *op = r->items[i].op;

        if (r->items[i].done || r->items[i].aside || must_wait(r, i))
            continue;
        size = op->result.size;
        if ((verbs >> op->verb & 1) == 0 ||
            (r->count > 0 && bytes + size > ROUND_BYTES))
            continue;
        bytes += size;
        r->places[r->count] = i;
        r->call[r->count++] = op;
    }
    return r->count;
}

size_t once__rounds_find(const struct once__rounds *r, const uint8_t *name)
{
    size_t low = 0, high = r->count, middle;
    int order;

    while (low < high) {
        middle = (low + high) / 2;
        order = memcmp(name, r->call[middle]->name, ONCE_NAME_SIZE);
        if (order == 0)
            return middle;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return r->count;
}

void once__rounds_asked(struct once__rounds *r)
{
    size_t i;

    if (r->most < r->limit)
        r->most *= 2;
    for (i = 0; i < r->count; i++)
        if (!r->items[r->places[i]].done)
            r->items[r->places[i]].aside = 1;
}

void once__rounds_halve(struct once__rounds *r)
{
    size_t most = r->most;

    r->met = 1;
    if (r->count > 1) {
        r->most = r->count / 2;
        return;
    }
    once__rounds_asked(r);
    r->most = most;
}

/* ---- Answers ----------------------------------------------------------- */

void once__answer(struct once__rounds *r, struct once__rounds_item *item,
                  int rc)
{
    ONCE__MUST(!item->done);
    item->done = 1;
    item->op->rc = rc;
    r->left--;
    if (rc < 0) {
        item->op->left_ms = 0;
        memset(&item->op->record, 0, sizeof(item->op->record));
    }
}

/* A label that the operation has brought along is gone with it; the next ones
 * are shown a copy. 0: no memory. */
static int keep_label(struct once__arena *arena, once_record *r)
{
    void *copy;

    if (r->label.size == 0)
        return 1;
    copy = once__arena_take(arena, r->label.size);
    if (copy == NULL)
        return 0;
    memcpy(copy, r->label.data, r->label.size);
    r->label.data = copy;
    return 1;
}

/* Other bytes that an operation has brought along are gone with it: then the
 * server is asked. */
void once__answer_line(struct once__rounds *r, struct once__rounds_item *item,
                       uint64_t now_ms, struct once__arena *arena)
{
    const struct once__rounds_item *end = r->items + r->n;
    const once_op *first = item->op;
    once_record before = first->record, after;
    uint64_t fence = 0;

    if (item + 1 == end || !same_name(item, item + 1) ||
        (before.result.size > 0 && before.result.data == first->result.data) ||
        (before.note.size > 0 && before.note.data == first->note.data) ||
        (before.label.data == first->label.data && !keep_label(arena, &before)))
        return;
    for (item++; item < end && same_name(item - 1, item) && !item->done;
         item++) {
        after = before;
        if (once__transition(&after, item->op, now_ms, &fence))
            return;
        once__answer(r, item, item->op->rc);
    }
}

/* All that are left get no answer, or, for claims on a full disk, a refusal. */
static void answer_rest(struct once__rounds *r)
{
    size_t i;

    for (i = 0; i < r->n; i++)
        if (!r->items[i].done)
            once__answer(r, &r->items[i],
                         r->full && r->items[i].op->verb == ONCE_OP_CLAIM
                             ? ONCE_EFULL
                             : ONCE_ESTORE);
}

void once__rounds_full(struct once__rounds *r)
{
    if (r->full)
        answer_rest(r);
    r->full = 1;
}

/* ---- All rounds -------------------------------------------------------- */

/* 1: all that are left were asked, and are to be asked again one by one. */
static int all_aside(struct once__rounds *r)
{
    size_t i;

    for (i = 0; i < r->n; i++)
        if (!r->items[i].done && !r->items[i].aside && !must_wait(r, i))
            return 0;
    for (i = 0; i < r->n; i++)
        r->items[i].aside = 0;
    if (r->met)
        r->most = 1;
    return 1;
}

int once__rounds_run(struct once__rounds *r, int (*round)(void *user),
                     void *user)
{
    uint64_t moved_ms = once__steady_ms(), nap_ms = 0, now = moved_ms;
    size_t left, most;
    int again, full, rc = ONCE_OK;

    while (rc == ONCE_OK && r->left > 0) {
        again = all_aside(r);
        if (now + nap_ms >= r->until_ms ||
            (again && (r->full || now - moved_ms >= r->lock_ms))) {
            answer_rest(r);
            break;
        }
        if (again) {
            once__sleep_ms(nap_ms);
            nap_ms = nap_ms == 0 ? 1 : nap_ms < 16 ? 2 * nap_ms : nap_ms;
        }
        left = r->left;
        most = r->most;
        full = r->full;
        rc = round(user);
        now = once__steady_ms();
        if (r->left == left && r->most >= most && r->full == full)
            continue;
        moved_ms = now;
        nap_ms = 0;
    }
    return rc;
}
