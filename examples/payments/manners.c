/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manners.c - reads how to misbehave (see payments.h). It only reads:
 * payments.c does what they name.
 */
#include <stdlib.h>
#include <string.h>

#include "payments.h"

/* clang-format off */
static const struct manner {
    const char *name;
    enum fault fault; /* NO_FAULT: a nap */
    enum moment when;
    uint32_t min, max; /* of the number after "=" */
} known[] = {
    {"slow=",       NO_FAULT, BEFORE,   0, NAP_MAX_MS},
    {"slow-after=", NO_FAULT, AFTER,    0, NAP_MAX_MS},
    {"fail=",       FAIL,     BEFORE, 400,        599},
    {"fail-after=", FAIL,     AFTER,  400,        599},
    {"drop-before", DROP,     BEFORE,   0,          0},
    {"drop-after",  DROP,     AFTER,    0,          0},
    {"die-before",  DIE,      BEFORE,   0,          0},
    {"die-after",   DIE,      AFTER,    0,          0},
    {"half",        HALF,     AFTER,    0,          0},
    {"garbage",     GARBAGE,  AFTER,    0,          0},
};
/* clang-format on */

bool number_parse(const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
    size_t size = strspn(text, "0123456789");
    unsigned long long n = strtoull(text, NULL, 10);

    if (size < 1 || size > 10 || text[size] != '\0' || n < min || n > max)
        return false;
    *out = (uint32_t)n;
    return true;
}

static bool manners_add(struct manners *m, const char *text)
{
    const struct manner *w = known,
                        *end = known + sizeof(known) / sizeof(*known);
    const char *sign = strchr(text, '=');
    size_t size = sign == NULL ? strlen(text) : (size_t)(sign + 1 - text);
    uint32_t number = 0;

    while (w < end &&
           (strlen(w->name) != size || strncmp(w->name, text, size) != 0))
        w++;
    if (w == end ||
        (sign != NULL && !number_parse(sign + 1, w->min, w->max, &number)))
        return false;
    if (w->fault == NO_FAULT) {
        m->nap_ms[w->when] = number;
        return true;
    }
    if (m->fault != NO_FAULT)
        return false;
    m->fault = w->fault;
    m->when = w->when;
    m->status = number;
    return true;
}

bool manners_parse(const char *text, struct manners *m)
{
    do {
        char name[32];
        size_t size;

        text += strspn(text, " ");
        size = strcspn(text, ", ");
        if (size >= sizeof(name))
            return false;
        memcpy(name, text, size);
        name[size] = '\0';
        if (!manners_add(m, name))
            return false;
        text += size;
        text += strspn(text, " ");
    } while (*text++ == ',');
    return text[-1] == '\0';
}
