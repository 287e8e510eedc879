/* SPDX-License-Identifier: Apache-2.0 */
/*
 * broker.h - what the relay and the consumer know of a target: one table of
 * functions for each kind, one file each, named in brokers.def.
 *
 * A broker sends and receives; it knows no database and decides nothing about a
 * row or a message. It belongs to one thread at a time. No text that it returns
 * holds a body, an id, a key, a header's value or a credential.
 *
 * Where brokers differ for a consumer:
 *
 *              acknowledged    redelivered is         ends deliveries that are out
 *    RabbitMQ  one by one      a flag of the broker   a lost connection
 *    NATS      one by one      a count and the order  a lost connection
 *    Redis     one by one      a count                a lost connection
 *    Kafka     up to the       a mark that is kept    the same; and a partition
 *              first undone    beside the offset      that goes to another member
 */
#ifndef ONCE_MESSAGES_BROKER_BROKER_H
#define ONCE_MESSAGES_BROKER_BROKER_H

#include <once/message.h>

#include "messages/core/row.h"

/* How one message that was sent has ended. What it points to is valid until the
 * next call of this broker. */
struct once__proof {
    uint64_t tag;
    int end;           /* enum once__row_end */
    int status;        /* HTTP status, exit status, or the broker's code; 0 */
    uint64_t retry_ms; /* the target asked for such a pause, or 0 */
    once_bytes reply;  /* what is kept of its answer, as src/base/response.c
                        * encodes it; may be empty */
    const char *why;   /* for people, when it was not taken; or NULL */
};

/* A message that came in. It is the broker's until ack() ends it. */
struct once__delivery {
    once_message m;   /* without consumer; id NULL: there is none */
    int redelivered;  /* a handler may have run before */
    const char *flaw; /* it cannot be understood: why; id may be NULL then */
    uint64_t tag;     /* of the driver */
};

enum once__ack {
    ONCE__ACK_TAKEN,
    ONCE__ACK_BACK,    /* give it back: it will come again, here or elsewhere */
    ONCE__ACK_STILL_AT /* more time, please; it does not end the delivery */
};

struct once__broker_options {
    const char *headers; /* HTTP: lines "Name: value\n" sent along, secret */
    const char *ca_file; /* or NULL: the system's */
    int hold; /* 1: who receives does not recognise a repeat: no message is to
               * leave twice, not even in one send() */
    uint32_t
        timeout_ms;    /* how long to wait for a connection, and for a proof */
    uint32_t prefetch; /* consumers: deliveries out at one time [1] */
    uint32_t body_max; /* consumers: a larger body is left out, and its delivery
                        * has a flaw [ONCE_BODY_MAX] */
    int alone; /* consumers: 1: no other process consumes here. What a process
                * that died had comes at once, and before what is new */
    const char *consumer; /* consumers: its name, for group or durable; NULL:
                           * it is opened to send */
    void (*log)(void *user, const char *text); /* or NULL */
    void *user;
    const char *route; /* to send: the rows' route, where the URL names no
                        * subject or queue */
    int check; /* 1: connect() also looks for what the first message would
                * need: a queue, a stream for the subject, a service */
};

struct once__broker; /* each driver has its own; the first member is `ops` */

struct once__broker_ops {
    const char *scheme;
    int knows_ids; /* 1: it or its consumers recognise a repeat by the id */
    int at_once;   /* 1: send() waits for the end itself, so a caller should
                    * claim no more than it sends at once (HTTP, exec) */
    /*
     * Reads the whole URL and makes the object; does not connect. ONCE_OK,
     * ONCE_EURL, ONCE_EINVAL, ONCE_ENOMEM. A URL to send that is opened by a
     * consumer, or one to receive that is not, is ONCE_EURL: waiting cannot
     * repair it.
     */
    int (*open)(const char *url, const struct once__broker_options *o,
                struct once__broker **out, once_error *err);
    void (*close)(struct once__broker *b); /* accepts NULL */
    /*
     * Connects if it is not connected. ONCE_OK, or ONCE_EAWAY: not now, and
     * everything sent before without a proof is now ONCE__END_SILENT in
     * proofs(). ONCE_EOPEN: reached, and it cannot be used (no such stream, no
     * right, a lossy store where a durable one is required).
     */
    int (*connect)(struct once__broker *b, once_error *err);
    /*
     * Begins to send; `m` stays valid until its proof has come. Every message
     * that was sent, whatever send() returned, gets exactly one proof. ONCE_OK,
     * or ONCE_EAWAY: the connection was lost, connect again. Too large for this
     * target: ONCE_OK, and its proof is ONCE__END_REJECTED. ONCE_ENOMEM: it was
     * not begun, and no proof comes.
     */
    int (*send)(struct once__broker *b, const once_message *m, uint64_t tag,
                once_error *err);
    /*
     * Waits up to `wait_ms` for at least one proof; up to `max` of them. The
     * number, 0: none came in time. What is still open after a caller's own
     * deadline is given up by abandon().
     */
    size_t (*proofs)(struct once__broker *b, uint32_t wait_ms,
                     struct once__proof *out, size_t max);
    /* Closes the connection: whatever is open ends as ONCE__END_SILENT (or
     * ONCE__END_UNSENT where no byte of it left), which proofs() returns
     * without waiting. */
    void (*abandon)(struct once__broker *b);

    /* ---- Consumers; NULL: it cannot consume ---- */
    /*
     * Waits up to `wait_ms` for one delivery. It returns only these two.
     * ONCE_OK with `*out` NULL: none
     * came. ONCE_EAWAY: the connection was lost, connect again: all deliveries
     * not acknowledged are gone, `*out` ones stay readable until close() or
     * ack(), which does nothing for them then.
     */
    int (*receive)(struct once__broker *b, uint32_t wait_ms,
                   struct once__delivery **out, once_error *err);
    /* ONCE_OK, or ONCE_EAWAY: not known whether the broker got it; it may come
     * again. The delivery ends, but for ONCE__ACK_STILL_AT. Kafka: ONCE_OK is
     * also said of a message that waits behind one that is not done: it comes
     * again if this process dies before that one is acknowledged. ONCE_EAWAY
     * is also said when the partition went to another member. */
    int (*ack)(struct once__broker *b, struct once__delivery *d, int how,
               once_error *err);
};

struct once__broker {
    const struct once__broker_ops *ops;
};

/*
 * The driver for a URL, by its scheme, or NULL: there is none in this build, and
 * `err` says which there are.
 */
const struct once__broker_ops *once__broker_find(const char *url,
                                                 once_error *err);

#endif /* ONCE_MESSAGES_BROKER_BROKER_H */
