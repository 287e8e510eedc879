/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lin.h - is there an order of these operations on one key that explains every
 * answer? Wing and Gong's search with Lowe's memory of what was tried, and the
 * real core as the meaning of a step.
 */
#ifndef TEST_LIN_H
#define TEST_LIN_H

#include <once/once.h>

#define LIN_NEVER UINT64_MAX

enum {
    LIN_OPS = 64,  /* operations of one history: a set of them is a word */
    LIN_BODY = 24, /* bytes of the longest result or note               */
    LIN_STEPS = 5 * 1000 * 1000
};

/* One call, as its caller saw it. Bytes in `op` point into it. */
struct lin_op {
    once_op op;         /* question and answer                          */
    uint64_t call, ret; /* the store's clock; LIN_NEVER: unknown outcome */
    /* k > 0: a copy of the call k places before this one, that was maybe
     * applied before it and not later than `ret`; nobody saw its answer. */
    unsigned copy;
    unsigned worker;
    uint8_t body[LIN_BODY];  /* of the question                         */
    uint8_t shown[LIN_BODY]; /* of the answer: the result               */
    uint8_t noted[LIN_BODY]; /* of the answer: the note                 */
};

enum lin_verdict { LIN_REJECTED = 0, LIN_EXPLAINED = 1, LIN_UNDECIDED = 2 };

struct lin;

/* NULL: out of memory. `skew`: how far the store's clock may be from ours. */
struct lin *lin_new(uint64_t skew);
void lin_free(struct lin *l);

/* Judges one history; `n` up to LIN_OPS, in any order. */
enum lin_verdict lin_check(struct lin *l, const struct lin_op *ops, size_t n);

/* Steps tried so far, over all histories. */
uint64_t lin_steps(const struct lin *l);

/* Prints the history that was judged last as TAP comments, by time of call;
 * `!` stands before what the longest explanation leaves out. */
void lin_print(const struct lin *l);

#endif /* TEST_LIN_H */
