/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.c - statements, in a buffer that grows.
 *
 * Bytes become x'...': whatever they are, only hexadecimal digits enter the text,
 * and no sql_mode and no character set gives those another meaning. There is no
 * other way for a value into a statement. It refuses quotes with escapes, which
 * mean something else in a session that has lost its settings.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/grow.h"
#include "base/mysql/mysql.h"

enum { ROOM_KEPT = 1 << 20 };

void once__my_text_clear(struct once__my_text *t)
{
    free(t->at);
    memset(t, 0, sizeof(*t));
}

void once__my_text_reset(struct once__my_text *t)
{
    if (t->room > ROOM_KEPT)
        once__my_text_clear(t);
    t->size = 0;
    t->failed = 0;
}

/* Room for `size` bytes more; where it is, or NULL. */
static char *room(struct once__my_text *t, size_t size)
{
    char *at =
        t->failed ? NULL : once__grown(t->at, &t->room, t->size + size, 1);

    if (at == NULL) {
        t->failed = 1;
        return NULL;
    }
    t->at = at;
    return at + t->size;
}

void once__my_put_part(struct once__my_text *t, const char *words, size_t size)
{
    char *to = room(t, size);

    if (to == NULL)
        return;
    memcpy(to, words, size);
    t->size += size;
}

void once__my_put(struct once__my_text *t, const char *words)
{
    once__my_put_part(t, words, strlen(words));
}

/* Not by printf(), which took a tenth of the client's time. */
void once__my_put_number(struct once__my_text *t, uint64_t number)
{
    char digits[20];
    size_t at = sizeof(digits);

    do
        digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    once__my_put_part(t, digits + at, sizeof(digits) - at);
}

void once__my_put_hex(struct once__my_text *t, const void *data, size_t size)
{
    char *to = room(t, 2 * size + 4);

    if (to == NULL)
        return;
    memcpy(to, "x'", 2);
    once__hex(data, size, to + 2);
    to[2 + 2 * size] = '\'';
    t->size += 2 * size + 3;
}
