/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.c - one block of memory for what a row points to, and an array that
 * doubles for the rows.
 */
#include "message/rows.h"

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
static char *block_new(void **memory, size_t size)
{
    struct block *b = malloc(sizeof(*b) + size + 1);

    if (b == NULL)
        return NULL;
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

/* Room for one more than `n`; the array, or NULL: `rows` stays as it is. */
static void *grow(void *rows, size_t n, size_t size)
{
    if (n != 0 && (n & (n - 1)) != 0)
        return rows;
    return realloc(rows, (n == 0 ? 1 : 2 * n) * size);
}

int once__outgoing_add(struct once__outgoing_list *list,
                       const struct once__outgoing *row)
{
    struct once__outgoing *rows = grow(list->rows, list->n, sizeof(*rows)),
                          *copy;
    char *to;

    if (rows == NULL)
        return ONCE_ENOMEM;
    list->rows = rows;
    to =
        block_new(&list->memory, room_of_message(&row->m) + room_of(row->saga) +
                                     room_of(row->error) + row->reply.size);
    if (to == NULL)
        return ONCE_ENOMEM;
    copy = &rows[list->n++];
    *copy = *row;
    move_message(&to, &copy->m);
    move_text(&to, &copy->saga);
    move_text(&to, &copy->error);
    move_bytes(&to, &copy->reply.data, copy->reply.size);
    return ONCE_OK;
}

int once__parked_add(struct once__parked_list *list,
                     const struct once__parked *row)
{
    struct once__parked *rows = grow(list->rows, list->n, sizeof(*rows)), *copy;
    char *to;

    if (rows == NULL)
        return ONCE_ENOMEM;
    list->rows = rows;
    to = block_new(&list->memory,
                   room_of_message(&row->m) + room_of(row->error));
    if (to == NULL)
        return ONCE_ENOMEM;
    copy = &rows[list->n++];
    *copy = *row;
    move_message(&to, &copy->m);
    move_text(&to, &copy->error);
    return ONCE_OK;
}

void once__outgoing_clear(struct once__outgoing_list *list)
{
    blocks_free(list->memory);
    free(list->rows);
    *list = (struct once__outgoing_list){NULL, 0, 0, NULL};
}

void once__parked_clear(struct once__parked_list *list)
{
    blocks_free(list->memory);
    free(list->rows);
    *list = (struct once__parked_list){NULL, 0, 0, NULL};
}
