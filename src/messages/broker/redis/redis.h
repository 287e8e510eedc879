/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.h - what the files of the Redis driver share.
 *
 *    redis.c        the driver: URL, connection
 *      send.c       messages that go out
 *      receive.c    messages that come in
 *        talk.c     one command and its reply
 */
#ifndef ONCE_MESSAGES_BROKER_REDIS_REDIS_H
#define ONCE_MESSAGES_BROKER_REDIS_REDIS_H

#include "messages/broker/incoming.h"
#include "messages/broker/share.h"
#include "base/redis/redis.h"

/* A message that was sent and has no proof yet. */
struct once__redis_flight {
    const once_message *m;
    uint64_t tag;
    uint64_t at; /* its first byte's place among those of the connection */
};

struct once__redis_broker {
    struct once__broker base;
    struct once__redis_config config;
    struct once__redis_tls *tls;
    struct once__redis_link link;
    char stream[ONCE_ID_SIZE];
    void (*log)(void *user, const char *text);
    void *user;
    int class_logged, marker_logged;

    /* Sending. */
    uint64_t window_ms; /* how long a marker stays */
    struct once__redis_flight *flights;
    size_t first, n, room; /* of flights */
    int stale;             /* it answers as one that is not the primary now */
    struct once__ended ended;

    /* Receiving. */
    char group[ONCE_ID_SIZE]; /* "": it does not receive */
    char consumer[ONCE_ID_SIZE * 2];
    uint64_t min_idle_ms;
    uint32_t prefetch;
    int own_read; /* the own pending list was read to its end */
    int alone,
        sweeps; /* everything that is pending is ours; and is being taken */
    char own_after[48];    /* ... and so far */
    char claim_cursor[48]; /* of XAUTOCLAIM */
    uint64_t claim_ms;     /* when to begin with it again */
    uint32_t body_max;
    uint64_t fetched_ms;              /* when what is in the queue came */
    struct once__incoming_list queue; /* not handed out yet */
    struct once__incoming_list held;  /* `native` is the id of the entry */
    size_t held_now;                  /* of this connection */
};

/* ---- talk.c ------------------------------------------------------------- */

void once__redis_log(const struct once__redis_broker *b, const char *format,
                     ...) ONCE_PRINTF(2, 3);
/* Queues a command and waits for its reply, up to `ms`. NULL: the connection is
 * gone, and `link.trouble` says why. The reply goes with the next call. */
redisReply *once__redis_ask(struct once__redis_broker *b, size_t argc,
                            const once_bytes *argv, uint64_t ms);

/* ---- send.c ------------------------------------------------------------- */

ONCE_CHECK int once__redis_send(struct once__broker *base,
                                const once_message *m, uint64_t tag,
                                once_error *err);
size_t once__redis_proofs(struct once__broker *base, uint32_t wait_ms,
                          struct once__proof *out, size_t max);
void once__redis_abandon(struct once__broker *base);
/* Takes the replies that have come; where the connection is gone, what is left
 * ends as silent or unsent. */
void once__redis_harvest(struct once__redis_broker *b);

/* ---- receive.c ---------------------------------------------------------- */

ONCE_CHECK int once__redis_join(struct once__redis_broker *b, once_error *err);
ONCE_CHECK int once__redis_receive(struct once__broker *base, uint32_t wait_ms,
                                   struct once__delivery **out,
                                   once_error *err);
ONCE_CHECK int once__redis_ack(struct once__broker *base,
                               struct once__delivery *d, int how,
                               once_error *err);
/* Gives back what it has, and leaves the group. */
void once__redis_leave(struct once__redis_broker *b);

#endif /* ONCE_MESSAGES_BROKER_REDIS_REDIS_H */
