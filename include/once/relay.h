/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay.h - carries rows of the outbox to where they go, and messages of a
 * broker to a handler, with threads and connections of its own.
 *
 *    outbox rows  --once_relay()-->  broker, HTTP service, command
 *    broker  --once_consume()-->  handler, in a transaction with its inbox row
 *
 * Both return only when they are told to stop, or, with `drain`, when nothing is
 * left. They do not end because a database or a target is away. Any number of
 * them may run at the same time, on any number of machines: leases share the
 * work, and what a lost one had claimed comes back when its lease ends.
 *
 * The conventions of once.h and message.h hold here as well. No text that is
 * handed to `log`, and no metric, holds an id, a key, a body, a header's value or
 * a credential.
 *
 * Signals.   Neither function installs a handler. Block the signals that the
 *            program waits for before calling them: their threads inherit the
 *            mask. SIGPIPE must be ignored.
 */
#ifndef ONCE_RELAY_H
#define ONCE_RELAY_H

#include <once/message.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A line for people, without a newline. May be called by several threads at the
 * same time. */
typedef void once_relay_log(void *user, const char *text);

/* ---- The relay -------------------------------------------------------- */

enum {
    ONCE_ROUTES_MAX = 256,
    ONCE_WORKERS_MAX = 256 /* threads of one route or one consumer */
};

/* Where the rows of one route go. Zeros are the values in brackets. */
typedef struct once_route {
    size_t size;
    const char *name; /* as in once_message.route */
    /*
     * amqp://USER:PASSWORD@HOST:PORT/VHOST?exchange=E&routing_key=K  amqps://
     * nats://HOST:PORT/?subject=S
     * redis://HOST:PORT/?stream=S          rediss://
     * kafka://HOST:PORT,HOST:PORT/TOPIC    kafkas://
     * https://HOST/PATH                    http://
     * exec:PROGRAM ARGUMENT ...
     */
    const char *url;
    const char *headers; /* HTTP: lines "Name: value\n" sent along; secret */
    const char *ca_file; /* TLS: certificates to trust [the system's] */
    uint32_t hold;       /* 1: the target does not recognise a repeat: a row
                           * whose outcome is unknown becomes indeterminate [as
                           * the kind of target has it: exec 1, others 0] */
    uint32_t no_hold;    /* 1: exec: the command recognises ONCE_ID [0] */
    uint32_t pass;       /* 1: a dead or indeterminate row does not keep the
                           * later rows of its key waiting [0] */
    uint32_t workers;    /* each has a connection to the target and one to the
                           * database [1; HTTP: 8] */
    uint32_t batch;      /* rows claimed at once [500; HTTP and exec: 1] */
    uint32_t attempts;   /* refusals that make a row dead [10] */
    uint32_t timeout_ms; /* for a connection, and for a proof [10000] */
} once_route;

#define ONCE_ROUTE_INIT                                                        \
    {                                                                          \
        sizeof(once_route), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0        \
    }

typedef struct once_relay_options {
    size_t size;
    const char *from; /* the program's database: postgres://..., mysql://...,
                       * sqlite:FILE                                       */
    const once_route *routes;
    size_t n;          /* 1 to ONCE_ROUTES_MAX */
    int stop_fd;       /* readable: stop; -1: none */
    uint32_t lease_ms; /* at least three times the longest timeout_ms [30000] */
    uint32_t drain;    /* 1: return when no row is ready, waiting or leased, but
                     * those behind a dead or indeterminate one of their key
                     * [0] */
    const char *metrics; /* file for Prometheus, replaced every ten seconds, or
                          * NULL */
    once_relay_log *log; /* or NULL */
    void *user;
    uint32_t
        check; /* 1: carry nothing. Look whether the database has the tables
                     * and rights, and whether each target can be used, write a
                     * line about each to `log`, and return [0] */
} once_relay_options;

#define ONCE_RELAY_OPTIONS_INIT                                                \
    {                                                                          \
        sizeof(once_relay_options), NULL, NULL, 0, -1, 0, 0, NULL, NULL, NULL, \
            0                                                                  \
    }

/*
 * Carries rows until it is told to stop; what it has claimed and not sent goes
 * back at once. ONCE_OK: told to stop, or drained and all rows of these routes
 * are done. ONCE_DEAD: drained, and dead or indeterminate rows, or sagas
 * that are stuck, are left.
 * ONCE_EINVAL, ONCE_ELIMIT, ONCE_EURL: an option; nothing was done. ONCE_EOPEN,
 * ONCE_EVERSION: the database cannot be used. ONCE_EAWAY: it was never reached
 * (only with `drain`). ONCE_ENOMEM. With `check`: ONCE_OK: all can be used;
 * ONCE_EOPEN, ONCE_EAWAY: a target cannot. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_relay(const once_relay_options *options,
                                   once_error *err);

/* ---- The consumer ----------------------------------------------------- */

/*
 * Handles one message, in an open transaction that holds its inbox row. `tx` is
 * to be used for the effect, and neither to be committed nor kept.
 *
 *    ONCE_OK     commit, acknowledge
 *    ONCE_AGAIN  roll back, and run it again after a pause
 *    ONCE_DEAD   roll back, and keep it as a dead letter
 *    ONCE_UNKNOWN  roll back, and keep it as indeterminate: an effect outside
 *                the database may have happened
 *
 * An error of once.h, say of once_emit(), counts as ONCE_AGAIN. The handler may
 * run again after a rollback: what it does outside the database goes
 * through once_call() with the message's id as key. `workers` threads and one
 * more, for parked messages, call it at the same time, each with a `tx` of its
 * own. `m->attempt` is 0, or how often the message was begun since it was parked,
 * this time included.
 */
typedef int once_handler(const once_tx *tx, const once_message *m, void *user);

typedef struct once_consumer_options {
    size_t size;
    const char *db;       /* the program's database */
    const char *from;     /* amqp://.../VHOST?queue=Q
                           * nats://HOST:PORT/?stream=S&durable=D
                           * redis://HOST:PORT/?stream=S&group=G
                           * kafka://HOST:PORT,HOST:PORT/TOPIC?group=G */
    const char *consumer; /* its name in the inbox */
    const char *ca_file;  /* TLS: certificates to trust [the system's] */
    uint32_t workers;     /* threads, each with connections of its own [1] */
    uint32_t batch;       /* messages in one transaction, up to 1,000, and
                           * up to 1 GiB of body_max [1] */
    uint32_t keyed;      /* 1: messages of one key run in order, which needs one
                           * worker and one process: a message whose key has a
                           * parked message is parked after it [0] */
    uint32_t inside;     /* 1: the handler claims in a transaction of its own,
                           * and gets a `tx` without a handle; whether it did
                           * is looked up afterwards [0] */
    uint32_t outside;    /* 1: the effect is not in the database, but guarded by
                           * once_call() with the id as key: the handler gets a
                           * `tx` without a handle, so that no transaction is
                           * open meanwhile, and the message is claimed when it
                           * has returned ONCE_OK [0] */
    uint32_t attempts;   /* begun so often since it was parked, a message is
                           * dead [10] */
    uint32_t first_ms;   /* the first pause, doubled each time [1000] */
    uint32_t most_ms;    /* the longest [3600000] */
    uint32_t lease_ms;   /* a parked message under way elsewhere for longer is
                           * run again: above the slowest handler [300000] */
    uint32_t body_max;   /* bytes; a larger body is a dead letter without its
                           * body [8388608] */
    int stop_fd;         /* readable: finish what runs, and stop; -1: none */
    uint32_t drain_ms;   /* return when nothing came for so long, and no message
                           * is parked and waiting, but, with `keyed`, those
                           * behind a dead or indeterminate one of their key
                           * [never] */
    const char *metrics; /* as the relay's */
    once_relay_log *log;
    void *user; /* of log */
    uint32_t
        check; /* 1: receive nothing. Look whether the database and the broker
                     * can be used, as the relay's `check` [0] */
} once_consumer_options;

#define ONCE_CONSUMER_OPTIONS_INIT                                             \
    {                                                                          \
        sizeof(once_consumer_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0,  \
            0, 0, 0, 0, 0, -1, 0, NULL, NULL, NULL, 0                          \
    }

/*
 * Receives, claims, handles, commits, acknowledges, until it is told to stop.
 * A message is acknowledged only when its effect or its parked row is
 * committed. One that was delivered before is parked first, so that a handler
 * that kills its process is counted; its count then is in the database and not
 * the broker's. ONCE_OK: told to stop, or drained. ONCE_DEAD: drained, and dead
 * letters or indeterminate messages of this consumer are left. Errors as
 * once_relay(); ONCE_EOPEN and, with `drain_ms` or `check`, ONCE_EAWAY may also be
 * about a broker that was never reached. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_consume(const once_consumer_options *options,
                                     once_handler *handler, void *handler_user,
                                     once_error *err);

#ifdef __cplusplus
}
#endif

#endif /* ONCE_RELAY_H */
