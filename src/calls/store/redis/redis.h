/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.h - what the files of the Redis store share.
 *
 *    redis.c    the driver, and what an operator reads
 *    apply.c    batches: what is asked next, and what the core says to it
 *      ask.c    one round of questions over all nodes, redirections followed
 *        net.c    which node a key lives on: one server, Sentinel, Cluster
 *    scan.c     walks over all keys, for the reaper and for people
 *    value.c    a record as the value of a key
 *    time.c     what was seen of the time, in a key of its own
 *    create.c   the mark that says that there is a store, and which
 *
 * A connection, its URL and the mark are those of base/redis/redis.h.
 */
#ifndef ONCE_CALLS_STORE_REDIS_REDIS_H
#define ONCE_CALLS_STORE_REDIS_REDIS_H

#include "base/redis/redis.h"

enum {
    ONCE__REDIS_HEAD = 184,   /* fixed bytes of a value, at its front */
    ONCE__REDIS_SLOTS = 16384 /* of every cluster                     */
};

/* The server drops what may be forgotten by its own clock, after so many times
 * the record's own time and a while: `forget` comes first, which looks at the
 * record, and a clock that is set ahead by twice the retention drops nothing.
 * */
#define ONCE__REDIS_TIMES UINT64_C(3)
#define ONCE__REDIS_MARGIN_MS UINT64_C(600000)

/* ---- value.c ------------------------------------------------------------ */

size_t once__redis_value_size(const once_record *r);
void once__redis_value_encode(const once_record *r,
                              const uint8_t name[ONCE_NAME_SIZE], uint8_t *out);
/* ONCE_OK; ONCE_FREE: the record was forgotten, `out->fence` was its fence;
 * ONCE_ECORRUPT or ONCE_EVERSION: `*out` is then as it was. */
ONCE_CHECK int once__redis_value_decode(once_bytes in,
                                        const uint8_t name[ONCE_NAME_SIZE],
                                        once_record *out);
/* The same of the head and the note alone, result.data is NULL. When `in` ends
 * before the note does, `*more` is how many bytes are needed. */
ONCE_CHECK int once__redis_value_peek(once_bytes in,
                                      const uint8_t name[ONCE_NAME_SIZE],
                                      once_record *out, size_t *more);

/* ---- net.c: which node -------------------------------------------------- */

struct once__redis_net {
    struct once__redis_config config;
    struct once__redis_mark mark;
    struct once__redis_tls *tls;
    struct once__redis_link *nodes[ONCE__REDIS_NODES];
    size_t count;
    uint16_t slot[ONCE__REDIS_SLOTS]; /* node + 1, 0: not known */
    int stale;                        /* the map is to be read again */
    uint64_t refresh_ms;              /* not before */
    uint64_t moved, asked, loads;     /* redirections, scripts loaded again */
    char trouble[160];
};

ONCE_CHECK int once__redis_net_open(struct once__redis_net *net,
                                    once_error *err);
void once__redis_net_close(struct once__redis_net *net);
/* Frees replies of the last call and reads the map again where it is old. */
void once__redis_net_begin(struct once__redis_net *net);
/* The node that the key lives on, connected. NULL: `trouble` says why. */
struct once__redis_link *once__redis_net_route(struct once__redis_net *net,
                                               const void *key, size_t size);
/* The node at this place, added where it is new, connected or NULL. */
struct once__redis_link *
once__redis_net_at(struct once__redis_net *net,
                   const struct once__redis_place *place);
/* What "MOVED slot host:port" says. */
void once__redis_net_moved(struct once__redis_net *net, unsigned slot,
                           const struct once__redis_place *place);
/* 1 if the node has slots, or is the only one. */
int once__redis_net_owns(const struct once__redis_net *net, size_t node);

/* ---- create.c ----------------------------------------------------------- */

/* Makes the mark if `net->mark.create` says so and there is none; the store's
 * id is then `id`. Errors as for once_store_ops.open. */
ONCE_CHECK int once__redis_mark(struct once__redis_net *net, uint8_t *id,
                                once_error *err);

/* ---- ask.c: rounds of questions ----------------------------------------- */

enum once__redis_ask {
    ONCE__REDIS_NOTHING, /* answered, or failed                         */
    ONCE__REDIS_ADD,     /* this value, unless there is one: it is shown */
    ONCE__REDIS_GET,
    ONCE__REDIS_PEEK, /* the first `size` bytes                       */
    ONCE__REDIS_SWAP, /* this value instead of the one with that head */
    ONCE__REDIS_TOUCH /* the same                                     */
};

struct once__redis_item {
    const uint8_t *name;
    enum once__redis_ask ask;
    const uint8_t *old; /* SWAP, TOUCH: the head */
    once_bytes value;   /* ADD, SWAP; PEEK: how many     */
    uint64_t px;        /* ADD, SWAP: 0 for ever         */

    const redisReply *reply;    /* ask is NOTHING then, ...   */
    enum once__redis_ask asked; /* ... and this is what it answers */
    int rc;                     /* or this went wrong  */

    struct once__redis_link *link;
    unsigned generation;
    size_t index;
    size_t part, of; /* its element of a reply for so many keys; of 0: alone */
    struct once__redis_link *redirect; /* ASK */
    int sent;
};

/*
 * One round: every item that asks is sent to its node, all nodes before any is
 * waited for. Afterwards an item has a reply, or an error (ONCE_ESTORE,
 * ONCE_EFULL, ONCE_ECORRUPT, ONCE_ENOMEM), or still asks, because its node has
 * changed or had to learn the script.
 */
void once__redis_round(struct once__redis_net *net,
                       struct once__redis_item **items, size_t n);
/* The server's time, as it was received last, carried on; in microseconds. */
uint64_t once__redis_server_us(const struct once__redis_link *l);
/* Asks those for the time that have not said it for long. */
void once__redis_clocks(struct once__redis_net *net,
                        struct once__redis_item **items, size_t n);

/* ---- time.c ------------------------------------------------------------- */

/* As once_store_ops.time; now_ms is the server's. */
ONCE_CHECK int once__redis_time(struct once__redis_net *net,
                                const once_store_time *put,
                                once_store_time *out, once_error *err);

/* ---- apply.c ------------------------------------------------------------ */

struct once__redis_batch;

/* Borrows all of its arguments. NULL: no memory. */
struct once__redis_batch *
once__redis_batch_new(struct once__redis_net *net,
                      const once_store_options *options, int servers_clock,
                      const once_store *store);
void once__redis_batch_free(struct once__redis_batch *s); /* accepts NULL */
/* As once_store_ops.apply. */
ONCE_CHECK int once__redis_apply(struct once__redis_batch *s, once_op **ops,
                                 size_t n, once_error *err);

/* ---- scan.c ------------------------------------------------------------- */

struct once__redis_scan {
    /* Names in order, for those who page. */
    uint8_t (*names)[ONCE_NAME_SIZE];
    size_t count, room;
    int whole; /* the list is complete */
    /* Where the walk for `what` is; one each. */
    struct {
        size_t node;
        char cursor[24];
    } at[3];
};

void once__redis_scan_clear(struct once__redis_scan *scan);
/* As once_store_ops.scan. `clock` NULL: the servers'. */
ONCE_CHECK int once__redis_scan(struct once__redis_net *net,
                                struct once__redis_scan *scan,
                                const once_store_options *clock,
                                const once_store *store, int what,
                                const once_position *after, uint32_t max,
                                once_each *each, void *user, once_error *err);
/* Reads all values whole and shows each, with `rc` of its decoding. */
typedef int once__redis_seen(void *user, const uint8_t name[ONCE_NAME_SIZE],
                             int rc, const once_record *r);
ONCE_CHECK int once__redis_walk(struct once__redis_net *net,
                                struct once__redis_scan *scan,
                                once__redis_seen *seen, void *user,
                                once_error *err);

#endif /* ONCE_CALLS_STORE_REDIS_REDIS_H */
