/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compared.c - what counts when a repeat is compared with the first request, as
 * an operator writes it: `body query type`, or `json query but=/sent_at`. For
 * the directive once_fingerprint and the guard's option alike.
 */
#include <string.h>

#include "base/error.h"
#include "calls/http/http.h"
#include "calls/http/json.h"

#define BUT "but="

static int add_but(once__compared *c, once_bytes pointer, once_error *err)
{
    if (c->n_but == ONCE__BUT_MAX)
        return once__fail(err, ONCE_EINVAL,
                          "more than %d of but=", ONCE__BUT_MAX);
    if (pointer.size == 0)
        return once__fail(err, ONCE_EINVAL,
                          "but= leaves out members, not everything");
    if (!once__pointer_check(pointer))
        return once__fail(err, ONCE_EINVAL,
                          "but= needs a JSON pointer of at most %d bytes",
                          ONCE__POINTER_MAX);
    c->but[c->n_but++] = pointer;
    return ONCE_OK;
}

int once__compared_add(once__compared *c, once_bytes word, once_error *err)
{
    static const struct {
        const char *name;
        unsigned counts;
    } parts[] = {
        {"query", ONCE__COUNT_QUERY},
        {"type", ONCE__COUNT_TYPE},
        {"body", ONCE__COUNT_BODY},
        {"json", ONCE__COUNT_JSON},
    };
    const char *text = word.data;
    size_t i, but = strlen(BUT);

    if (word.size >= but && memcmp(text, BUT, but) == 0)
        return add_but(c, (once_bytes){text + but, word.size - but}, err);
    for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        size_t size = strlen(parts[i].name);

        if (word.size == size && memcmp(text, parts[i].name, size) == 0) {
            c->counts |= parts[i].counts;
            return ONCE_OK;
        }
    }
    return once__fail(err, ONCE_EINVAL,
                      "\"%.*s\" is not body, json, query, type or but=POINTER",
                      (int)(word.size < 32 ? word.size : 32), text);
}

int once__compared_check(const once__compared *c, once_error *err)
{
    if (c->counts == 0)
        return once__fail(err, ONCE_EINVAL, "nothing counts");
    if ((c->counts & ONCE__COUNT_BODY) && (c->counts & ONCE__COUNT_JSON))
        return once__fail(err, ONCE_EINVAL, "json stands in place of body");
    if (c->n_but > 0 && (c->counts & ONCE__COUNT_JSON) == 0)
        return once__fail(err, ONCE_EINVAL, "but= needs json");
    return ONCE_OK;
}
