/* SPDX-License-Identifier: Apache-2.0 */
/*
 * suspects.c - messages to be sent alone; a short list, searched from its start.
 */
#include "messages/broker/suspects.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/grow.h"

uint32_t once__suspects_sum(const char *id)
{
    return once__crc32c(0, id, strlen(id));
}

static size_t find(const struct once__suspects *s, uint32_t sum)
{
    size_t i = 0;

    while (i < s->n && s->sums[i] != sum)
        i++;
    return i;
}

int once__suspects_has(const struct once__suspects *s, uint32_t sum)
{
    return find(s, sum) < s->n;
}

void once__suspects_add(struct once__suspects *s, uint32_t sum)
{
    uint32_t *more;

    if (find(s, sum) < s->n)
        return;
    more = once__grown(s->sums, &s->room, s->n + 1, sizeof(*more));
    if (more == NULL)
        return;
    s->sums = more;
    s->sums[s->n++] = sum;
}

void once__suspects_remove(struct once__suspects *s, uint32_t sum)
{
    size_t i = find(s, sum);

    if (i < s->n)
        s->sums[i] = s->sums[--s->n];
}

void once__suspects_clear(struct once__suspects *s)
{
    free(s->sums);
    memset(s, 0, sizeof(*s));
}
