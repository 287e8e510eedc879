/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c - a call in the caller's transaction: the inbox, with a result.
 *
 *    begin --+--> run: work --+--> SUCCESS, FAILURE: finish --> the caller
 *            |                |                                 commits
 *            |                +--> anything else: the caller rolls back
 *            +--> replay, repeated, mismatch, outside, in flight
 *
 * A call of the same key inside itself would find its own row. It is found
 * before the database is asked: the work gets a once_tx that knows which calls
 * are under way.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "messages/tables/backend.h"

/* The calls under way in this transaction, innermost first. */
struct inside {
    const struct once__claim *claim;
    const void *outer;
};

static int is_inside(const once_tx *tx, const struct once__claim *c)
{
    const struct inside *at;

    for (at = tx->inside; at != NULL; at = at->outer)
        if (strcmp(at->claim->consumer, c->consumer) == 0 &&
            strcmp(at->claim->id, c->id) == 0)
            return 1;
    return 0;
}

static int claim_of(const char *group, const char *key, once_bytes fingerprint,
                    uint8_t room[ONCE_FINGERPRINT_SIZE],
                    struct once__claim *out, once_error *err)
{
    int rc = once__check_name("group", group, err);

    if (rc == ONCE_OK)
        rc = once__check_name("key", key, err);
    if (rc == ONCE_OK && fingerprint.size > 0)
        rc = once__fingerprint_bytes(fingerprint, room, err);
    *out = (struct once__claim){.consumer = group, .id = key, .call = 1};
    if (fingerprint.size > 0)
        out->fingerprint = room;
    return rc;
}

static void give(once_tx_result *out, int kind, void *memory, size_t size)
{
    out->kind = kind;
    out->memory = memory;
    out->bytes = (once_bytes){size > 0 ? memory : NULL, size};
}

/* The work's result belongs to the work: the caller gets a copy. */
static int give_copy(once_tx_result *out, int kind, once_bytes from,
                     once_error *err)
{
    void *copy = malloc(from.size + 1);

    if (copy == NULL)
        return once__fail(err, ONCE_ENOMEM, "result: no memory");
    if (from.size > 0)
        memcpy(copy, from.data, from.size);
    give(out, kind, copy, from.size);
    return ONCE_OK;
}

static int run(const once_tx *tx, const struct once__backend *b,
               const struct once__claim *c, const struct once__begun *begun,
               once_tx_work *work, void *user, once_tx_result *out,
               once_error *err)
{
    struct inside inside = {c, tx->inside};
    once_tx own = *tx;
    once_bytes result = {NULL, 0};
    int rc, kind;

    own.inside = &inside;
    kind = work(&own, user, &result);
    if (kind < 0 || kind == ONCE_AGAIN || kind == ONCE_DEAD)
        return kind;
    if (kind != ONCE_SUCCESS && kind != ONCE_FAILURE)
        return once__fail(err, ONCE_EINVAL,
                          "work: %d is not an answer of a work: roll back",
                          kind);
    if (result.size > ONCE_BODY_MAX)
        return once__fail(err, ONCE_ELIMIT, "result: over %zu bytes",
                          ONCE_BODY_MAX);
    rc = give_copy(out, kind, result, err);
    if (rc == ONCE_OK)
        rc = b->open(tx, err);
    if (rc == ONCE_OK)
        rc = b->finish(tx, c, begun, kind, result, err);
    if (rc != ONCE_OK)
        once_tx_result_clear(out);
    return rc;
}

int once_tx_call(const once_tx *tx, const char *group, const char *key,
                 once_bytes fingerprint, once_tx_work *work, void *user,
                 once_tx_result *out, once_error *err)
{
    const struct once__backend *b = NULL;
    uint8_t room[ONCE_FINGERPRINT_SIZE];
    struct once__claim claim;
    struct once__begun begun = {0};
    int rc = once__tx_backend(tx, &b, err);

    if (rc == ONCE_OK && (out == NULL || out->size != sizeof(*out)))
        rc = once__fail(err, ONCE_EINVAL,
                        "result: size is not that of once_tx_result");
    if (rc == ONCE_OK)
        rc = claim_of(group, key, fingerprint, room, &claim, err);
    if (rc == ONCE_OK && is_inside(tx, &claim))
        rc = once__fail(err, ONCE_ETX, "key: a call inside itself");
    if (rc == ONCE_OK)
        rc = b->open(tx, err);
    if (rc != ONCE_OK)
        return rc;
    rc = b->begin(tx, &claim, &begun, err);
    if (rc == ONCE_REPLAY)
        give(out, begun.kind, begun.memory, begun.result.size);
    else
        assert(begun.memory == NULL);
    return rc == ONCE_OWNER ? run(tx, b, &claim, &begun, work, user, out, err)
                            : rc;
}

void once_tx_result_clear(once_tx_result *result)
{
    free(result->memory);
    *result = (once_tx_result)ONCE_TX_RESULT_INIT;
}
