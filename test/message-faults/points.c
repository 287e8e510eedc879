/* SPDX-License-Identifier: Apache-2.0 */
/*
 * points.c - places at which a relay or a consumer kills itself. The linker puts
 * these functions before those of the library (see ../meson.build), so that the
 * library needs no place of its own for tests.
 *
 *    DIE=POINT-WHEN:N           in the environment: at the N-th passing
 *    DIE=stopped-POINT-WHEN:N   the same, counted since the program was told to
 *                               stop
 *
 * WHEN is "before" or "after". Points of a relay are claim, send, proofs and
 * settle; those of a consumer begin, inbox, commit, park, take, put_back, receive
 * and ack. A claim, a receipt or a wait for proofs that brought nothing is not
 * counted.
 */
#include "points.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "messages/broker/broker.h"
#include "messages/tables/outbox.h"
#include "messages/relay/base.h"

int points_stop_fd = -1;

static int is_stopped(void)
{
    struct pollfd p = {.fd = points_stop_fd, .events = POLLIN};

    return points_stop_fd >= 0 && poll(&p, 1, 0) > 0;
}

static void pass(const char *point, const char *when)
{
    static _Atomic unsigned long passed; /* one rule a process */
    const char *die = getenv("DIE");
    char name[64];
    size_t n;

    if (die == NULL)
        return;
    if (strncmp(die, "stopped-", 8) == 0) {
        if (!is_stopped())
            return;
        die += 8;
    }
    n = (size_t)snprintf(name, sizeof(name), "%s-%s:", point, when);
    if (strncmp(die, name, n) == 0 &&
        atomic_fetch_add(&passed, 1) + 1 == strtoul(die + n, NULL, 10))
        (void)kill(getpid(), SIGKILL);
}

/* A function of the library with a place before it and one after it, which
 * counts if `some`. */
#define AROUND(point, function, parameters, arguments, some)                   \
    int __real_##function parameters;                                          \
    int __wrap_##function parameters;                                          \
    int __wrap_##function parameters                                           \
    {                                                                          \
        int rc;                                                                \
                                                                               \
        pass(point, "before");                                                 \
        rc = __real_##function arguments;                                      \
        if (some)                                                              \
            pass(point, "after");                                              \
        return rc;                                                             \
    }

/* ---- The database -------------------------------------------------------- */

AROUND("claim", once__outbox_claim,
       (const once_tx *tx, const struct once__outbox_ask *ask,
        struct once__outgoing_list *out, once_error *err),
       (tx, ask, out, err), rc == ONCE_OK && out->n > 0)
AROUND("settle", once__outbox_settle,
       (const once_tx *tx, struct once__settlement *rows, size_t n,
        once_error *err),
       (tx, rows, n, err), 1)
AROUND("begin", once__base_begin, (struct once__base * b, once_error *err),
       (b, err), 1)
AROUND("commit", once__base_commit, (struct once__base * b, once_error *err),
       (b, err), 1)
AROUND("inbox", once_inbox_claim,
       (const once_tx *tx, const once_message *m, once_error *err),
       (tx, m, err), 1)
AROUND("park", once_inbox_park,
       (const once_tx *tx, const once_message *m, int state, uint64_t wait_ms,
        const char *why, once_error *err),
       (tx, m, state, wait_ms, why, err), 1)
AROUND("take", once__parked_take,
       (const once_tx *tx, const char *consumer, uint32_t lease_ms, int keyed,
        struct once__parked_list *out, once_error *err),
       (tx, consumer, lease_ms, keyed, out, err), rc == ONCE_OK && out->n > 0)
AROUND("put_back", once__parked_put_back,
       (const once_tx *tx, int64_t no, uint32_t attempt, int state,
        uint64_t wait_ms, const char *why, once_error *err),
       (tx, no, attempt, state, wait_ms, why, err), 1)

/* ---- The broker ---------------------------------------------------------- */

/* Of the one kind that a process talks to. */
static const struct once__broker_ops *real;
static struct once__broker_ops mine;

static int open_(const char *url, const struct once__broker_options *o,
                 struct once__broker **out, once_error *err)
{
    int rc = real->open(url, o, out, err);

    if (rc == ONCE_OK)
        (*out)->ops = &mine;
    return rc;
}

static int send_(struct once__broker *b, const once_message *m, uint64_t tag,
                 once_error *err)
{
    int rc;

    pass("send", "before");
    rc = real->send(b, m, tag, err);
    pass("send", "after");
    return rc;
}

static size_t proofs(struct once__broker *b, uint32_t wait_ms,
                     struct once__proof *out, size_t max)
{
    size_t n;

    pass("proofs", "before");
    n = real->proofs(b, wait_ms, out, max);
    if (n > 0)
        pass("proofs", "after");
    return n;
}

static int receive(struct once__broker *b, uint32_t wait_ms,
                   struct once__delivery **out, once_error *err)
{
    int rc = real->receive(b, wait_ms, out, err);

    if (rc == ONCE_OK && *out != NULL)
        pass("receive", "after");
    return rc;
}

static int ack(struct once__broker *b, struct once__delivery *d, int how,
               once_error *err)
{
    int rc;

    pass("ack", "before");
    rc = real->ack(b, d, how, err);
    pass("ack", "after");
    return rc;
}

const struct once__broker_ops *__real_once__broker_find(const char *url,
                                                        once_error *err);
const struct once__broker_ops *__wrap_once__broker_find(const char *url,
                                                        once_error *err);

const struct once__broker_ops *__wrap_once__broker_find(const char *url,
                                                        once_error *err)
{
    const struct once__broker_ops *ops = __real_once__broker_find(url, err);

    if (ops == NULL || getenv("DIE") == NULL ||
        strcmp(ops->scheme, "faulty") == 0) /* it finds the real one itself */
        return ops;
    real = ops;
    mine = *ops;
    mine.open = open_;
    mine.send = send_;
    mine.proofs = proofs;
    if (mine.receive != NULL)
        mine.receive = receive;
    if (mine.ack != NULL)
        mine.ack = ack;
    return &mine;
}
