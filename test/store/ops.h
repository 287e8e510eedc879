/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - one operation at a time on a store, for tests that need no more: the
 * n-th key of a test, always with the same token and fingerprint.
 */
#ifndef TEST_STORE_OPS_H
#define TEST_STORE_OPS_H

#include <string.h>

#include <once/store.h>

static inline void name_of(uint8_t *name, uint32_t n)
{
    memset(name, 0x5a, ONCE_NAME_SIZE);
    n = n * 2654435761u; /* spread them, as a hash does */
    memcpy(name, &n, sizeof(n));
}

static inline void make_op(once_op *op, int verb, uint32_t n)
{
    memset(op, 0, sizeof(*op));
    op->verb = verb;
    op->kind = ONCE_SUCCESS;
    op->lease_ms = 1000;
    op->keep_ms = 5000;
    name_of(op->name, n);
    memset(op->token, 0x11, ONCE_TOKEN_SIZE);
    memset(op->fingerprint, 0x22, ONCE_FINGERPRINT_SIZE);
}

static inline int apply_one(once_store *s, once_op *op, once_error *err)
{
    once_op *ops[1] = {op};

    return s->ops->apply(s, ops, 1, err);
}

/* The answer, or why there is none. */
static inline int verb_on(once_store *s, int verb, uint32_t n)
{
    once_op op;
    int rc;

    make_op(&op, verb, n);
    rc = apply_one(s, &op, NULL);
    return rc == ONCE_OK ? op.rc : rc;
}

/* Claims key `n` and completes it. ONCE_OK, or what went wrong. */
static inline int complete_with(once_store *s, uint32_t n, uint64_t keep_ms,
                                once_bytes result)
{
    once_op op;
    uint64_t fence;
    int rc;

    make_op(&op, ONCE_OP_CLAIM, n);
    rc = apply_one(s, &op, NULL);
    if (rc != ONCE_OK || op.rc != ONCE_OWNER)
        return rc != ONCE_OK ? rc : op.rc;
    fence = op.record.fence;
    make_op(&op, ONCE_OP_COMPLETE, n);
    op.fence = fence;
    op.keep_ms = keep_ms;
    op.result = result;
    rc = apply_one(s, &op, NULL);
    return rc == ONCE_OK ? op.rc : rc;
}

#endif /* TEST_STORE_OPS_H */
