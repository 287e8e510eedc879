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

/* Takes the query off the path. */
static int take_target(const once__request *r, once__request_head *head,
                       once_error *err)
{
    const char *query = memchr(r->path.data, '?', r->path.size);

    if (query != NULL)
        head->path.size = (size_t)(query - (const char *)r->path.data);
    if (head->path.size == 0 || *(const char *)r->path.data != '/')
        return once__fail(err, ONCE_EINVAL,
                          "a path begins with \"/\", as the client sent it");
    return ONCE_OK;
}

int once__request_name(const once__request *r, uint8_t out[ONCE_NAME_SIZE],
                       once_error *err)
{
    int has_method = r->method.size > 0, has_path = r->path.size > 0;
    once__request_head head = {
        .method = r->method, .path = r->path, .of_path = has_path};
    char text[ONCE__KEY_MAX];
    once_bytes key = {text, 0};
    int rc = once__key_parse(r->key, text, &key.size, err);

    if (rc == ONCE_OK && has_method != has_path)
        rc = once__fail(err, ONCE_EINVAL,
                        "the %s is missing: once_key_space path has both in "
                        "the name, realm none",
                        has_method ? "path" : "method");
    if (rc == ONCE_OK && has_path)
        rc = take_target(r, &head, err);
    if (rc != ONCE_OK)
        return rc;
    once__name(r->scope, r->realm, &head, key, out);
    return ONCE_OK;
}
