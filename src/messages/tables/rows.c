/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.c - one block of memory for what a row points to, and an array that
 * doubles for the rows.
 */
#include "messages/tables/rows.h"

#include <stdlib.h>
#include <string.h>

/* What one row points to. A list's `memory` is the last one. */
struct block {
    struct block *before;
    char bytes[];
};

/* ---- Copies ------------------------------------------------------------- */

static size_t room_of(const char *text)
{
    return text == NULL ? 0 : strlen(text) + 1;
}

static size_t room_of_message(const once_message *m)
{
    return room_of(m->route) + room_of(m->consumer) + room_of(m->id) +
           room_of(m->key) + room_of(m->type) + room_of(m->headers) +
           m->body.size;
}

static void move_bytes(char **to, const void **data, size_t size)
{
    if (*data == NULL)
        return;
    if (size > 0)
        memcpy(*to, *data, size);
    *data = *to;
    *to += size;
}

static void move_text(char **to, const char **text)
{
    const void *data = *text;

    move_bytes(to, &data, room_of(*text));
    *text = data;
}

static void move_message(char **to, once_message *m)
{
    move_text(to, &m->route);
    move_text(to, &m->consumer);
    move_text(to, &m->id);
    move_text(to, &m->key);
    move_text(to, &m->type);
    move_text(to, &m->headers);
    move_bytes(to, &m->body.data, m->body.size);
}

/* ---- Lists -------------------------------------------------------------- */

/* A new block of `size` bytes, in front of the list's others. */
static char *block_new(struct once__either *q, void **memory, size_t size)
{
    struct block *b = malloc(sizeof(*b) + size + 1);

    if (b == NULL) {
        once__either_no_memory(q);
        return NULL;
    }
    b->before = *memory;
    *memory = b;
    return b->bytes;
}

static void blocks_free(void *memory)
{
    struct block *b = memory, *before;

    for (; b != NULL; b = before) {
        before = b->before;
        free(b);
    }
}

void *once__rows_add(struct once__either *q, void **rows, size_t *n,
                     size_t size)
{
    void *more = *rows;

    if (*n == 0 || (*n & (*n - 1)) == 0)
        more = realloc(*rows, (*n == 0 ? 1 : 2 * *n) * size);
    if (more == NULL) {
        once__either_no_memory(q);
        return NULL;
    }
    *rows = more;
    return (char *)more + (*n)++ * size;
}

/* ---- Columns ------------------------------------------------------------ */

enum {
    SEQ,
    ATTEMPTS,
    DOUBT,
    REFUSED,
    DOUBT_MS,
    PHASE,
    STATUS,
    LEASE_MS,
    AT_MS,
    DUE_MS,
    SAGA,
    ERROR,
    ROUTE, /* and id, key, type, headers */
    KEPT = ROUTE + 5,
    BODY,
    REPLY,
    NOW_MS
};

/* id, key, type and headers stand side by side. */
static once_message message_of(struct once__either *q, int id, int body)
{
    once_message m = ONCE_MESSAGE_INIT;

    m.id = once__either_string(q, id);
    m.key = once__either_string(q, id + 1);
    m.type = once__either_string(q, id + 2);
    m.headers = once__either_string(q, id + 3);
    m.body = once__either_bytes(q, body);
    return m;
}

void once__outgoing_read(struct once__either *q,
                         struct once__outgoing_list *list)
{
    void *rows = list->rows;
    struct once__outgoing *o = once__rows_add(q, &rows, &list->n, sizeof(*o));
    char *to;

    list->rows = rows;
    if (o == NULL)
        return;
    o->seq = once__either_int(q, SEQ);
    o->attempts = (uint32_t)once__either_int(q, ATTEMPTS);
    o->row.doubt = (uint32_t)once__either_int(q, DOUBT);
    o->row.refused = (uint32_t)once__either_int(q, REFUSED);
    o->row.doubt_ms = (uint64_t)once__either_int(q, DOUBT_MS);
    o->phase = (int)once__either_int(q, PHASE);
    o->status = (int)once__either_int(q, STATUS);
    o->lease_ms = (uint64_t)once__either_int(q, LEASE_MS);
    o->at_ms = (uint64_t)once__either_int(q, AT_MS);
    o->due_ms = (uint64_t)once__either_int(q, DUE_MS);
    o->saga = once__either_string(q, SAGA);
    o->error = once__either_string(q, ERROR);
    o->m = message_of(q, ROUTE + 1, BODY);
    o->m.route = once__either_string(q, ROUTE);
    o->m.keep = once__either_int(q, KEPT) != 0;
    o->reply = once__either_bytes(q, REPLY);
    list->now_ms = (uint64_t)once__either_int(q, NOW_MS);
    to = block_new(q, &list->memory,
                   room_of_message(&o->m) + room_of(o->saga) +
                       room_of(o->error) + o->reply.size);
    if (to == NULL) {
        list->n--;
        return;
    }
    move_message(&to, &o->m);
    move_text(&to, &o->saga);
    move_text(&to, &o->error);
    move_bytes(&to, &o->reply.data, o->reply.size);
}

enum {
    K_NO,
    K_STATE,
    K_DUE_MS,
    K_AT_MS,
    K_ERROR,
    K_CONSUMER, /* and id, key, type, headers */
    K_ATTEMPTS = K_CONSUMER + 5,
    K_BODY,
    K_NOW_MS
};

void once__parked_read(struct once__either *q, struct once__parked_list *list)
{
    void *rows = list->rows;
    struct once__parked *k = once__rows_add(q, &rows, &list->n, sizeof(*k));
    char *to;

    list->rows = rows;
    if (k == NULL)
        return;
    k->no = once__either_int(q, K_NO);
    k->state = (int)once__either_int(q, K_STATE);
    k->due_ms = (uint64_t)once__either_int(q, K_DUE_MS);
    k->at_ms = (uint64_t)once__either_int(q, K_AT_MS);
    k->error = once__either_string(q, K_ERROR);
    k->m = message_of(q, K_CONSUMER + 1, K_BODY);
    k->m.consumer = once__either_string(q, K_CONSUMER);
    k->m.attempt = (uint32_t)once__either_int(q, K_ATTEMPTS);
    list->now_ms = (uint64_t)once__either_int(q, K_NOW_MS);
    to =
        block_new(q, &list->memory, room_of_message(&k->m) + room_of(k->error));
    if (to == NULL) {
        list->n--;
        return;
    }
    move_message(&to, &k->m);
    move_text(&to, &k->error);
}

void once__outgoing_clear(struct once__outgoing_list *list)
{
    blocks_free(list->memory);
    free(list->rows);
    *list = (struct once__outgoing_list){NULL, 0, 0, 0, NULL};
}

void once__parked_clear(struct once__parked_list *list)
{
    blocks_free(list->memory);
    free(list->rows);
    *list = (struct once__parked_list){NULL, 0, 0, NULL};
}

/* ---- Decisions ----------------------------------------------------------- */

int once__parked_fits(const struct once__row_decision *d,
                      const struct once__parked *k)
{
    if (k->state != d->state || k->m.attempt != d->count)
        return 0;
    if (d->action == ONCE__PARKED_RETRY)
        return strlen(k->m.id) <= ONCE_ID_MAX;
    return d->action == ONCE__PARKED_DROP ||
           k->state == ONCE_PARKED_INDETERMINATE;
}
