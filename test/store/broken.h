/* SPDX-License-Identifier: Apache-2.0 */
/*
 * broken.h - one store handle shared by threads behind a lock, as an engine
 * would, and the mistakes that drivers make, planted around the real one.
 */
#ifndef TEST_BROKEN_H
#define TEST_BROKEN_H

#include <pthread.h>

#include <once/store.h>

#include "lin.h"

/* X(NAME, name, what the driver does wrong) */
#define FLAWS(X)                                                               \
    X(NONE, "none", "nothing")                                                 \
    X(TORN, "torn", "claim is GET, then SET")                                  \
    X(STALE, "stale", "reads come from a replica that lags")                   \
    X(LOST, "lost", "an acknowledged complete is lost")                        \
    X(UNFENCED, "unfenced", "complete does not compare token and fence")       \
    X(FORGETFUL, "forgetful", "a repeated claim is not known as one's own")    \
    X(EARLY, "early", "a lease is over before its time")                       \
    X(ABA, "aba", "fences restart when a record is forgotten")

enum flaw {
#define FLAW(name, text, what) FLAW_##name,
    FLAWS(FLAW)
#undef FLAW
        FLAW_COUNT
};

const char *flaw_name(int flaw);
const char *flaw_text(int flaw);

/* What a lagging replica would know: the record as it stood some changes ago. */
enum { LAG = 3 };

struct past {
    once_record r;
    uint8_t body[LIN_BODY], note[LIN_BODY];
};

struct shared {
    pthread_mutex_t lock;
    once_store *inner;
    int flaw;
    uint64_t random;
    uint64_t (*clock)(void *user);
    uint8_t name[ONCE_NAME_SIZE]; /* of the key that `past` is about */
    struct past past[LAG];        /* oldest first                    */
};

/* Takes `inner`. */
void shared_init(struct shared *s, once_store *inner, int flaw,
                 uint64_t (*clock)(void *user));
void shared_end(struct shared *s);

/* Asks; bytes of the answer are copied into `o`. As once_store_ops' apply. */
int shared_ask(struct shared *s, struct lin_op *o);

/* Makes the bytes of an answer `o`'s own. */
void lin_op_own(struct lin_op *o);

#endif /* TEST_BROKEN_H */
