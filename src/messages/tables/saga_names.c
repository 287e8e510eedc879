/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga_names.c - names of a saga's calls, and its fingerprint, for databases that
 * have no function for them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "messages/tables/backend.h"
#include "messages/tables/saga.h"

struct once__saga_name once__saga_name(const char *gid,
                                       const struct once__saga_call *c)
{
    static const char *const names[] = {"", "try", "confirm", "cancel"};
    struct once__saga_name out;
    size_t branch = c->step + 1;
    int n = snprintf(out.id, sizeof(out.id), "%s/%zu/%s", gid, branch,
                     names[c->op]);

    if (c->round > 0)
        (void)snprintf(out.id + n, sizeof(out.id) - (size_t)n, "/%" PRIu32,
                       c->round);
    (void)snprintf(out.headers, sizeof(out.headers),
                   "Once-Saga: %s; branch=%zu; op=%s\n", gid, branch,
                   names[c->op]);
    return out;
}

int once__saga_fingerprint(const once_saga *saga, const char *json,
                           uint8_t out[ONCE_FINGERPRINT_SIZE], once_error *err)
{
    size_t size = strlen(saga->kind) + 1 + strlen(json);
    char *whole = malloc(size + 1);
    int rc;

    if (whole == NULL)
        return once__fail(err, ONCE_ENOMEM, "saga_start: no memory");
    (void)snprintf(whole, size + 1, "%s %s", saga->kind, json);
    rc = once__fingerprint_bytes((once_bytes){whole, size}, out, err);
    free(whole);
    return rc;
}
