/* SPDX-License-Identifier: Apache-2.0 */
/*
 * consume.h - what the files of the consumer share.
 *
 *    consume.c    options, threads, stop, drain
 *    receiver.c   a receiver, which is one worker: deliveries of a broker
 *    parked.c     one thread that runs parked messages again
 *    handle.c     one message: claim, handler, commit; or parking it
 *    consumer.c   what the threads share
 *
 * Each thread has a connection of its own to the database (base.h), and each
 * receiver one to the broker. What they share is `struct once__consumer`.
 */
#ifndef ONCE_MESSAGES_RELAY_CONSUME_H
#define ONCE_MESSAGES_RELAY_CONSUME_H

#include <once/relay.h>
#include <pthread.h>
#include <stdatomic.h>

#include "messages/tables/backend.h"
#include "messages/tables/outbox.h"
#include "messages/relay/base.h"
#include "messages/relay/metrics.h"

enum once__consumer_metric {
#define ONCE_METRIC(name, kind, full, label, help) ONCE__CONSUMER_##name,
#include "messages/relay/consumer_metrics.def"
#undef ONCE_METRIC
    ONCE__CONSUMER_METRICS
};

struct once__consumer {
    once_consumer_options o; /* with the defaults filled in */
    once_handler *handler;
    void *handler_user;
    struct once__series series;

    _Atomic int stop; /* set with `lock`, looked at without it: a value */
    struct once__watch *watch; /* of all connections to the database */
    _Atomic int n_away;        /* threads whose database is away: a value */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the parked loop, and who waits to try again */
    uint64_t look_ms;    /* by the lock: when the parked loop looks next */
    int failure;         /* by the lock: why a thread gave up, or ONCE_OK */
    once_error why;      /* the same */
};

/* Sleeps until then, or the end; `until_ms` is a time of once__steady_ms(). */
void once__consumer_sleep(struct once__consumer *c, uint64_t until_ms);
/* The parked loop looks in `wait_ms`, if not earlier. */
void once__consumer_look_in(struct once__consumer *c, uint64_t wait_ms);
void once__consumer_stop(struct once__consumer *c);
/* Ends all threads with this error. */
void once__consumer_fail(struct once__consumer *c, int code,
                         const once_error *err);
void once__consumer_log(const struct once__consumer *c, const char *format, ...)
    ONCE_PRINTF(2, 3);

/* ---- handle.c ----------------------------------------------------------- */

/* One thread's connection to the database. */
struct once__hand {
    struct once__consumer *c;
    struct once__base *b;
    int away;  /* it does not answer, or cannot be used; not 0: it was logged */
    int ended; /* a transaction was ended, or another begun, by the handler */
    /* The last error of the database since the handler began, "": none; by its
     * code and names of the schema, since a text may hold values. */
    char trouble[112];
    char why[160]; /* what is said of it */
};

ONCE_CHECK int once__hand_open(struct once__hand *h, struct once__consumer *c,
                               once_error *err);
void once__hand_close(struct once__hand *h);
/* 1: the database answers. 0: not now; that is logged once. */
int once__hand_connect(struct once__hand *h);
/* How a question ended that is no message's; that it failed is logged once. */
void once__hand_asked(struct once__hand *h, int rc, const once_error *err);

/* What became of one message. After all but DONE nothing of the handler's is
 * left in the database. */
enum once__handle_outcome {
    ONCE__DONE,      /* committed                                            */
    ONCE__BEFORE,    /* it was done or parked before                         */
    ONCE__KEPT,      /* parked                                               */
    ONCE__BEHIND,    /* an earlier message of its key is parked              */
    ONCE__FAILED,    /* the handler has; to be run again                     */
    ONCE__DEAD,      /* the handler says so                                  */
    ONCE__UNKNOWN,   /* the same: it may have had an effect elsewhere        */
    ONCE__MISMATCH,  /* the id is known with another body                    */
    ONCE__OUTSIDE,   /* the id is too old                                    */
    ONCE__IN_FLIGHT, /* another copy is under way                            */
    ONCE__UNFIT,     /* the database does not take its text                  */
    ONCE__TORN,      /* the transaction was lost or rolled back by the
                      * database, or it is unknown: ask again               */
    ONCE__UNWILLING, /* the database answers, and refuses: rights, a full
                      * disk                                                 */
    ONCE__AWAY       /* the database does not answer                         */
};

/* One try. `why`: for people, when it was not done; static, or of the hand until
 * its next message. */
int once__handle_once(struct once__hand *h, const once_message *m,
                      const char **why);
/* The same, and a few more while it is TORN; then it is AWAY. */
int once__handle(struct once__hand *h, const once_message *m, const char **why);
/* All of them in one transaction. 1: committed, `*ours` of them by us and now. 0:
 * rolled back, or it is unknown. */
int once__handle_batch(struct once__hand *h, const once_message *m, size_t n,
                       size_t *ours);
/* KEPT, BEFORE, IN_FLIGHT, UNFIT, UNWILLING, AWAY. */
int once__keep(struct once__hand *h, const once_message *m, int state,
               uint64_t wait_ms, const char *why);
/* A pause before the message is run again that was begun `n` times. */
uint64_t once__consumer_pause(const struct once__consumer *c, uint32_t n);
/* Counts a message that was parked in this state. */
void once__consumer_count_kept(struct once__consumer *c, int state);

/* ---- receiver.c, parked.c ----------------------------------------------- */

struct once__broker;
struct once__broker_ops;

struct once__receiver {
    struct once__consumer *c;
    const struct once__broker_ops *ops;
    struct once__broker *broker;
    struct once__hand hand;
    pthread_t thread;
    int started;
    /* Since when nothing came and nothing is left, or 0: a value, for the thread
     * that waits for the end. */
    _Atomic uint64_t idle_ms;
};

/* How many deliveries a worker has out at one time. */
uint32_t once__consumer_room(const struct once__consumer *c);
void *once__consumer_work(void *worker);
/* 1: a dead letter whose body was too large to be kept: never to be run. */
int once__consumer_is_hollow(const once_message *m);
/* The argument is a struct once__consumer. */
void *once__parked_run(void *consumer);

#endif /* ONCE_MESSAGES_RELAY_CONSUME_H */
