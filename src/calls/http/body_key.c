/* SPDX-License-Identifier: Apache-2.0 */
/*
 * body_key.c - keys that stand in a JSON body (docs/http.md, 1.6): where they
 * are, and how they go on to the service.
 */
#include "calls/http/json.h"

#include "base/error.h"
#include "calls/http/http.h"

int once__key_pointers_add(once__key_pointers *p, once_bytes pointer,
                           once_error *err)
{
    if (p->n == sizeof(p->at) / sizeof(p->at[0]))
        return once__fail(err, ONCE_EINVAL, "more than two JSON pointers");
    if (!once__pointer_check(pointer))
        return once__fail(err, ONCE_EINVAL,
                          "not a JSON pointer (RFC 6901) of at most %d bytes",
                          ONCE__POINTER_MAX);
    p->at[p->n++] = pointer;
    return ONCE_OK;
}

int once__key_of_body(const once__key_pointers *p, once_bytes encoding,
                      const once__json *doc, int form, char out[ONCE__KEY_MAX],
                      size_t *len, uint64_t *born_ms, once_error *err)
{
    int rc;

    *len = 0;
    if (encoding.size > 0)
        return once__fail(err, ONCE_EINVAL,
                          "key in the body: the body has a Content-Encoding");
    rc = once__json_key(doc, p->at, p->n, out, len, err);
    if (rc != ONCE_OK || *len == 0)
        return rc;
    return once__key_birth(form, (once_bytes){out, *len}, born_ms, err);
}

size_t once__key_write(once_bytes key, char out[ONCE__KEY_LINE])
{
    const char *text = key.data;
    size_t i, n = 0;

    out[n++] = '"';
    for (i = 0; i < key.size; i++) {
        if (text[i] == '"' || text[i] == '\\')
            out[n++] = '\\';
        out[n++] = text[i];
    }
    out[n++] = '"';
    out[n] = '\0';
    return n;
}
