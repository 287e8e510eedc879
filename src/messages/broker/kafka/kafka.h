/* SPDX-License-Identifier: Apache-2.0 */
/* kafka.h - what the files of the driver for Kafka share; kafka.c says what it
 * does. */
#ifndef ONCE_MESSAGES_BROKER_KAFKA_KAFKA_H
#define ONCE_MESSAGES_BROKER_KAFKA_KAFKA_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>

#include "messages/broker/flights.h"
#include "messages/broker/incoming.h"
#include "messages/broker/suspects.h"

enum {
    ONCE__KAFKA_BATCH_BYTES = 1000000, /* of records in one request; a larger
                                        * record is alone in its own */
    ONCE__KAFKA_ALONE = 1, /* a flight's note: no other record is in its
                            * request */
    ONCE__KAFKA_TOPIC_MAX = 249,
    ONCE__KAFKA_SLICE_MS = 100 /* how soon what the library reports is seen */
};

/* A partition that is assigned to us. */
struct once__kafka_part {
    int32_t id;
    uint64_t serial;   /* of this assignment; deliveries carry it */
    int64_t next;      /* the offset after the last that has come */
    int64_t handed;    /* the offset after the last that was handed out */
    int64_t committed; /* what is committed; -1: nothing */
    int64_t limit;     /* the mark that is committed with it: what is below may
                        * be handed out */
    int64_t before;    /* that mark as it was found: what is below may have been
                        * handed out by a consumer before us */
};

struct once__kafka {
    struct once__broker broker;
    struct once__broker_options o;
    char *ca_file;
    int tls, receives;
    char hosts[2048]; /* HOST:PORT,... for the library */
    char topic[ONCE__KAFKA_TOPIC_MAX + 1], group[ONCE_ID_SIZE];
    char user[256], password[256], mechanism[16];
    uint64_t session_ms;

    pthread_mutex_t lock; /* of all that follows, where a thread runs */
    rd_kafka_t *rk;       /* NULL: not connected */
    rd_kafka_topic_t *rkt;
    int up;              /* connect() has found the topic by it */
    int down;            /* no broker can be reached, or this object is of no
                          * more use: connect again */
    int answered;        /* a broker has, after what the library reports now */
    const char *refused; /* why another attempt would be refused, or NULL */

    /* Sending. */
    struct once__flights flights;
    struct once__suspects suspects;

    /* Receiving. */
    pthread_cond_t wake;
    pthread_t beat;
    int beating, stop;
    int joined;              /* the object takes part in the group */
    int met;                 /* the group has said what it has of it */
    int passes;              /* what they refuse they may take later */
    rd_kafka_queue_t *queue; /* of all our partitions */
    struct once__kafka_part *parts;
    size_t n_parts, cap_parts, held; /* of this connection's, in `out` */
    uint64_t serial, quiet_until;
    struct once__incoming_list ready, /* came, or given back; each partition's
                                       * by offset */
        out;                          /* handed out */
};

/* ---- report.c ------------------------------------------------------------- */

/* What an error of the library says about the connection. */
void once__kafka_note(struct once__kafka *k, rd_kafka_resp_err_t err);
/* What they refuse, or what else there is to say. */
const char *once__kafka_why(const struct once__kafka *k, const char *otherwise);
/* `refused`, as an error: ONCE_EOPEN, or ONCE_EAWAY where it may pass. */
int once__kafka_refusal(const struct once__kafka *k, once_error *err);
/* For the library: how a message has ended. */
void once__kafka_delivered(rd_kafka_t *rk, const rd_kafka_message_t *m,
                           void *user);
/* enum once__row_end of a message that was not written for this reason. */
int once__kafka_end_of(rd_kafka_resp_err_t err);
/* Ends all that is open, without waiting for a broker. */
void once__kafka_end_sending(struct once__kafka *k);

/* ---- group.c; all with the lock -------------------------------------------- */

/* Of a delivery; NULL: it was taken away since. */
struct once__kafka_part *once__kafka_part_from(const struct once__kafka *k,
                                               const struct once__incoming *in);
/* The first offset that is not done. */
int64_t once__kafka_undone(const struct once__kafka *k,
                           const struct once__kafka_part *p);
/* Commits it, and a mark ahead, for the partition of a delivery. ONCE_OK, or
 * ONCE_EAWAY: it is unknown, or not ours any more. */
int once__kafka_commit_for(struct once__kafka *k, uint64_t serial,
                           once_error *err);
/* For the library: partitions come and go. */
void once__kafka_rebalanced(rd_kafka_t *rk, rd_kafka_resp_err_t what,
                            rd_kafka_topic_partition_list_t *list, void *user);
/* A new object joins the group. `unwelcome`: the brokers refused something the last
 * time. ONCE_OK, ONCE_EAWAY, ONCE_EOPEN. */
int once__kafka_join(struct once__kafka *k, int unwelcome, once_error *err);
/* Commits what is done and leaves the group, for a short time only. */
void once__kafka_leave(struct once__kafka *k);
/* A message of the library, or an error, or NULL. */
void once__kafka_take(struct once__kafka *k, rd_kafka_message_t *m);
/* What the library has to say. */
void once__kafka_serve(struct once__kafka *k, int wait_ms);

/* The thread that keeps the membership; takes the lock. */
void *once__kafka_beat(void *user);

/* ---- link.c ---------------------------------------------------------------- */

int once__kafka_connect(struct once__broker *b, once_error *err);
void once__kafka_abandon(struct once__broker *b);
/* With the lock: the connection is gone, with all that is open. */
void once__kafka_lose(struct once__kafka *k, const char *why);
/* The same, and the object is not used again. */
void once__kafka_end(struct once__kafka *k, const char *why);

/* ---- send.c, receive.c ------------------------------------------------------ */

int once__kafka_send(struct once__broker *b, const once_message *m,
                     uint64_t tag, once_error *err);
size_t once__kafka_proofs(struct once__broker *b, uint32_t wait_ms,
                          struct once__proof *out, size_t max);
int once__kafka_receive(struct once__broker *b, uint32_t wait_ms,
                        struct once__delivery **out, once_error *err);
int once__kafka_ack(struct once__broker *b, struct once__delivery *d, int how,
                    once_error *err);

#endif /* ONCE_MESSAGES_BROKER_KAFKA_KAFKA_H */
