/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leads_here.c - a key that comes with another request because a redirect has
 * led its client here (docs/http.md, 2.5).
 *
 * A service answers 307 or 308, the answer is recorded, and the client sends
 * the same request with the same key to the other path: a mismatch. The text
 * "another request" alone would point to a fault in the client. This file refuses
 * to resolve more than it needs: a host does not count, and a relative reference
 * has to be the end of the path.
 */
#include "calls/http/http.h"

#include <string.h>

static int is_redirect(int status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 ||
           status == 308;
}

/* RFC 3986, 3: without scheme and authority, query and fragment. */
static once_bytes path_of(once_bytes reference)
{
    const char *at = reference.data, *end = at + reference.size, *p = at;

    while (p < end && *p != '/' && *p != '?' && *p != '#' && *p != ':')
        p++;
    if (p < end && *p == ':')
        at = p + 1;
    if (end - at >= 2 && at[0] == '/' && at[1] == '/')
        for (at += 2; at < end && *at != '/' && *at != '?' && *at != '#'; at++)
            ;
    for (p = at; p < end && *p != '?' && *p != '#'; p++)
        ;
    return (once_bytes){at, (size_t)(p - at)};
}

static int leads_to(once_bytes reference, once_bytes path)
{
    once_bytes to = reference.size > 0 ? path_of(reference) : reference;
    const char *all = path.data, *end = to.data;

    while (to.size > 1 && end[0] == '.' && end[1] == '/') {
        end += 2;
        to.size -= 2;
    }
    if (to.size == 0 || to.size > path.size)
        return 0;
    all += path.size - to.size;
    if (memcmp(all, end, to.size) != 0)
        return 0;
    return to.size == path.size || (end[0] != '/' && all[-1] == '/');
}

const char *once__leads_here(const once_record *record, once_bytes path)
{
    static const char name[] = "Location";
    once__response r;
    once__header h;
    size_t at = 0;

    if (record->state != ONCE_COMPLETED || record->result.size == 0 ||
        once__response_decode(record->result, &r, NULL) != ONCE_OK ||
        !is_redirect(r.status))
        return NULL;
    while (once__response_next(&r, &at, &h))
        if (once__same_name(h.name, (once_bytes){name, sizeof(name) - 1}) &&
            leads_to(h.value, path))
            return "The recorded answer to this key is a redirect to this "
                   "path, and a key belongs to one path. Send new requests "
                   "here at once. For clients that follow redirects the "
                   "gateway needs: once_key_space path.";
    return NULL;
}
