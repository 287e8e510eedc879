/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c - what several drivers need.
 */
#include "broker/share.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t once__broker_now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
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
    size_t room = e->room == 0 ? 16 : e->room;
    struct once__proof *list;
    void **memory;

    while (room < e->n + n)
        room *= 2;
    if (room == e->room)
        return 1;
    list = realloc(e->list, room * sizeof(*list));
    if (list == NULL)
        return 0;
    e->list = list;
    memory = realloc(e->memory, room * sizeof(*memory));
    if (memory == NULL)
        return 0;
    e->memory = memory;
    e->room = room;
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

/* ---- Messages ----------------------------------------------------------- */

int once__broker_is_name(const char *text)
{
    size_t n = 0;

    while (text[n] > ' ' && text[n] <= '~')
        n++;
    return text[n] == '\0' && n > 0 && n <= ONCE_ID_MAX;
}

/* The bytes that follow the first one of a character, or -1. */
static int follow(const unsigned char *p)
{
    if (p[0] < 0x80)
        return 0;
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        return 1;
    if (p[0] == 0xe0)
        return p[1] >= 0xa0 ? 2 : -1;
    if (p[0] == 0xed)
        return p[1] <= 0x9f ? 2 : -1; /* no surrogates */
    if (p[0] >= 0xe1 && p[0] <= 0xef)
        return 2;
    if (p[0] == 0xf0)
        return p[1] >= 0x90 ? 3 : -1;
    if (p[0] == 0xf4)
        return p[1] <= 0x8f ? 3 : -1;
    return p[0] >= 0xf1 && p[0] <= 0xf3 ? 3 : -1;
}

/* UTF-8, without a carriage return. */
static int is_text(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    int more;

    for (; *p != '\0'; p++) {
        more = *p == '\r' ? -1 : follow(p);
        if (more < 0)
            return 0;
        for (; more > 0; more--)
            if ((*++p & 0xc0) != 0x80)
                return 0;
    }
    return 1;
}

/* Lines "Name: value\n". */
static int is_headers(const char *text)
{
    while (*text != '\0') {
        size_t line = strcspn(text, "\n"), name = strcspn(text, ":\n");

        if (name == 0 || name == line || text[line] != '\n')
            return 0;
        text += line + 1;
    }
    return 1;
}

const char *once__broker_flaw(once_message *m)
{
    if (m->id != NULL && !once__broker_is_name(m->id))
        m->id = NULL;
    if (m->id == NULL)
        return "it has no id of 1 to 255 visible ASCII characters";
    if (m->key != NULL && !once__broker_is_name(m->key))
        return "its key is not 1 to 255 visible ASCII characters";
    if (m->type != NULL && (strlen(m->type) > ONCE_ID_MAX ||
                            !is_text(m->type) || strchr(m->type, '\n') != NULL))
        return "its type is too long, or not one line of UTF-8";
    if (m->headers != NULL &&
        (strlen(m->headers) > ONCE_HEADERS_MAX || !is_text(m->headers)))
        return "its headers are too long, or not UTF-8";
    if (m->headers != NULL && !is_headers(m->headers))
        return "its headers are not lines of name and value";
    return m->body.size > ONCE_BODY_MAX ? "its body is too long" : NULL;
}
