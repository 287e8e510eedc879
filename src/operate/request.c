/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - the name of a gateway's record, from what the client sent.
 *
 * Key and name are made by the functions that the gateway uses
 * (src/calls/http).
 */
#include <string.h>

#include "base/error.h"
#include "calls/http/http.h"
#include "operate/operate.h"

int once__request_name(const once__request *r, uint8_t out[ONCE_NAME_SIZE],
                       once_error *err)
{
    const char *query =
        r->path.size > 0 ? memchr(r->path.data, '?', r->path.size) : NULL;
    once__request_head head = {
        .method = r->method,
        .path = r->path,
        .of_path = r->method.size > 0 || r->path.size > 0,
    };
    char text[ONCE__KEY_MAX];
    once_bytes key = {text, 0};
    int rc = once__key_parse(r->key, text, &key.size, err);

    if (rc != ONCE_OK)
        return rc;
    if (query != NULL)
        head.path.size = (size_t)(query - (const char *)r->path.data);
    if (head.of_path && (r->path.size == 0 || r->method.size == 0))
        return once__fail(err, ONCE_EINVAL,
                          "method and path belong together: both with "
                          "once_key_space path, else neither");
    if (head.of_path &&
        (head.path.size == 0 || *(const char *)r->path.data != '/'))
        return once__fail(err, ONCE_EINVAL,
                          "a path begins with \"/\", as the client sent it");
    once__name(r->scope, r->realm, &head, key, out);
    return ONCE_OK;
}
