/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply.c - an HTTP answer as a row keeps it.
 */
#include "messages/broker/reply.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/response.h"

static once_bytes bytes_of(const char *text)
{
    return (once_bytes){text, strlen(text)};
}

/* Each Connection line may name headers that are about the connection. */
static int is_kept(const once_client_header *all, size_t n, once_bytes name)
{
    static const once__header_policy policy;
    size_t i;

    if (!once__header_stored(name, &policy) || once__header_internal(name))
        return 0;
    for (i = 0; i < n; i++)
        if (strcasecmp(all[i].name, "Connection") == 0 &&
            once__header_named(name, bytes_of(all[i].value)))
            return 0;
    return 1;
}

once_bytes once__broker_reply(int status, const once_client_header *headers,
                              size_t n, const once_bytes *body)
{
    once__header *kept = calloc(n + 1, sizeof(*kept));
    once__response r = {.status = status};
    once_bytes out = {NULL, 0};
    void *memory = NULL;
    size_t size = 0, i;

    if (kept == NULL)
        return out;
    r.headers = kept;
    for (i = 0; i < n && r.n < ONCE__HEADERS_MAX; i++)
        if (is_kept(headers, n, bytes_of(headers[i].name)))
            kept[r.n++] = (once__header){.name = bytes_of(headers[i].name),
                                         .value = bytes_of(headers[i].value)};
    if (body != NULL)
        r.body = *body;
    else
        r.flags = ONCE__NO_BODY;
    if (once__response_size(&r, &size, NULL) == ONCE_OK)
        memory = malloc(size);
    if (memory != NULL) {
        once__response_encode(&r, memory);
        out = (once_bytes){memory, size};
    }
    free(kept);
    return out;
}
