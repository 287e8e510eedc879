/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_batch.c - batches: chains of rows by key, what is open, and the proofs,
 * which say by their tag whose they are.
 *
 * It refuses to send a row when less of its lease is left than the target may
 * need to answer, and as much again to write down how the batch has ended. Else
 * one row without a proof would take the lease of all: they would be sent again,
 * and each would count as one more attempt in doubt.
 */
#include "messages/relay/send_batch.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/steady.h"

enum { PROOFS = 64 };

uint64_t once__relay_ms(void)
{
    return once__clock_us(CLOCK_BOOTTIME) / 1000;
}

/* ---- Rows of one key ----------------------------------------------------- */

struct keyed {
    const char *key;
    size_t number;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    int order = strcmp(x->key, y->key);

    return order != 0 ? order : x->number < y->number ? -1 : 1;
}

static int link_keys(struct once__batch *b)
{
    size_t i, n = 0;
    struct keyed *keyed = calloc(b->list->n, sizeof(*keyed));

    if (keyed == NULL)
        return 0;
    for (i = 0; i < b->list->n; i++)
        if (b->items[i].m.key != NULL)
            keyed[n++] = (struct keyed){b->items[i].m.key, i};
    qsort(keyed, n, sizeof(*keyed), by_key);
    for (i = 1; i < n; i++)
        if (strcmp(keyed[i - 1].key, keyed[i].key) == 0) {
            b->items[keyed[i - 1].number].next = keyed[i].number;
            b->items[keyed[i].number].follows = 1;
        }
    free(keyed);
    return 1;
}

/* ---- What is sent -------------------------------------------------------- */

static int make_items(struct once__batch *b)
{
    size_t i;

    b->items = calloc(b->list->n, sizeof(*b->items));
    b->order = calloc(b->list->n, sizeof(*b->order));
    if (b->items == NULL || b->order == NULL)
        return 0;
    for (i = 0; i < b->list->n; i++) {
        const struct once__outgoing *row = &b->list->rows[i];
        struct once__item *item = &b->items[i];

        item->m = row->m;
        item->m.attempt = row->attempts;
        item->next = i;
    }
    return link_keys(b);
}

/* This row and those of its key after it. */
static void end_unsent(struct once__batch *b, size_t i)
{
    for (;;) {
        struct once__item *item = &b->items[i];

        item->state = ONCE__ITEM_ENDED;
        item->end = ONCE__END_UNSENT;
        if (item->next == i)
            return;
        i = item->next;
    }
}

/* It was in doubt for too long before this attempt. */
static int is_beyond(const struct once__batch *b,
                     const struct once__outgoing *row)
{
    return b->horizon_ms != 0 && row->row.doubt > 1 &&
           b->list->now_ms >= row->row.doubt_ms &&
           b->list->now_ms - row->row.doubt_ms >= b->horizon_ms;
}

static void start(struct once__batch *b, size_t i)
{
    struct once__item *item = &b->items[i];
    once_error err = {0, ""};
    int rc;

    item->sent_ms = once__relay_ms();
    if (b->wire->lost || b->back ||
        item->sent_ms + 2 * (uint64_t)b->timeout_ms > b->until_ms ||
        b->stop(b->user) || is_beyond(b, &b->list->rows[i])) {
        end_unsent(b, i);
        return;
    }
    item->state = ONCE__ITEM_OPEN;
    b->order[b->sent++] = i;
    b->open++;
    rc =
        b->wire->broker->ops->send(b->wire->broker, &item->m, b->tag + i, &err);
    if (rc == ONCE_ENOMEM) { /* it was not begun, and no proof comes */
        b->sent--;
        b->open--;
        end_unsent(b, i);
    } else if (rc != ONCE_OK) {
        b->wire->lost = 1;
    }
}

/* ---- Proofs -------------------------------------------------------------- */

static void end(struct once__batch *b, size_t i, const struct once__proof *p)
{
    struct once__item *item = &b->items[i];

    item->state = ONCE__ITEM_ENDED;
    item->end = p->end;
    item->status = p->status;
    item->retry_ms = p->retry_ms;
    if (p->reply.size > 0) {
        char *copy = malloc(p->reply.size);

        if (copy != NULL)
            item->reply = (once_bytes){
                memcpy(copy, p->reply.data, p->reply.size), p->reply.size};
    }
    item->why = p->why != NULL ? strdup(p->why) : NULL;
    b->open--;
}

/* A row was taken, and the next of its key may go; or it was not. */
static void go_on(struct once__batch *b, size_t i)
{
    const struct once__item *item = &b->items[i];

    if (item->next == i)
        return;
    if (item->end == ONCE__END_TAKEN)
        start(b, item->next);
    else
        end_unsent(b, item->next);
}

/* The row of an open batch that was sent first of those that are open. */
static const struct once__item *oldest(struct once__batch *b)
{
    while (b->items[b->order[b->oldest]].state != ONCE__ITEM_OPEN)
        b->oldest++;
    return &b->items[b->order[b->oldest]];
}

/* A driver owes a proof for each row; one that fails to has proved nothing. */
static void end_silent(struct once__batch *b)
{
    const struct once__proof p = {.end = ONCE__END_SILENT};
    size_t i;

    for (i = 0; i < b->list->n; i++)
        if (b->items[i].state == ONCE__ITEM_OPEN) {
            end(b, i, &p);
            go_on(b, i);
        }
}

/* The batch that this tag is of, and the row's number in it. NULL: one that was
 * given up. */
static struct once__batch *batch_of(const struct once__wire *w, uint64_t tag,
                                    size_t *number)
{
    struct once__batch *b = w->first;

    while (b != NULL && tag - b->tag >= b->list->n)
        b = b->next;
    if (b == NULL)
        return NULL;
    *number = (size_t)(tag - b->tag);
    return b->items[*number].state == ONCE__ITEM_OPEN ? b : NULL;
}

/* Fetches what has come within `ms`. All proofs are copied first: the next one
 * that is sent overwrites them. */
static size_t fetch(struct once__wire *w, uint32_t ms)
{
    struct once__proof proofs[PROOFS];
    struct once__batch *of[PROOFS];
    size_t ended[PROOFS], n, i;

    n = w->broker->ops->proofs(w->broker, ms, proofs, PROOFS);
    for (i = 0; i < n; i++) {
        of[i] = batch_of(w, proofs[i].tag, &ended[i]);
        if (of[i] != NULL)
            end(of[i], ended[i], &proofs[i]);
    }
    for (i = 0; i < n; i++)
        if (of[i] != NULL)
            go_on(of[i], ended[i]);
    return n;
}

/* The batch with the row whose time is over first, and when that is. */
static const struct once__item *next_over(const struct once__wire *w,
                                          uint64_t *until)
{
    const struct once__item *first = NULL;
    struct once__batch *b;

    for (b = w->first; b != NULL; b = b->next) {
        const struct once__item *item = oldest(b);

        if (first == NULL || item->sent_ms + b->timeout_ms < *until) {
            first = item;
            *until = item->sent_ms + b->timeout_ms;
        }
    }
    return first;
}

static void collect(struct once__wire *w)
{
    uint64_t now = once__relay_ms(), until = 0;
    const struct once__item *first = next_over(w, &until);
    int over = now >= until || w->abandoned;
    size_t n = fetch(w, over ? 0 : (uint32_t)(until - now));
    struct once__batch *b;

    if (!over || first->state != ONCE__ITEM_OPEN)
        return;
    if (!w->abandoned)
        w->broker->ops->abandon(w->broker);
    else if (n == 0)
        for (b = w->first; b != NULL; b = b->next)
            end_silent(b);
    w->lost = w->abandoned = 1;
}

void once__wire_collect(struct once__wire *w)
{
    struct once__batch **at = &w->first;

    collect(w);
    while (*at != NULL)
        if ((*at)->open == 0)
            *at = (*at)->next;
        else
            at = &(*at)->next;
}

int once__batch_begin(struct once__wire *w, struct once__batch *b,
                      once_error *err)
{
    struct once__batch **last = &w->first;
    size_t i;

    if (!make_items(b)) {
        once__batch_clear(b); /* of what was made of it nothing has ended */
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    }
    if (w->first == NULL)
        w->lost = w->abandoned = 0;
    b->wire = w;
    b->tag = w->tag;
    w->tag += b->list->n;
    for (i = 0; i < b->list->n; i++)
        if (!b->items[i].follows)
            start(b, i);
    while (*last != NULL)
        last = &(*last)->next;
    if (b->open > 0)
        *last = b;
    return ONCE_OK;
}

void once__batch_clear(struct once__batch *b)
{
    size_t i;

    for (i = 0; b->items != NULL && i < b->list->n; i++) {
        free((void *)(uintptr_t)b->items[i].reply.data);
        free(b->items[i].why);
    }
    free(b->items);
    free(b->order);
    b->items = NULL;
    b->order = NULL;
}
