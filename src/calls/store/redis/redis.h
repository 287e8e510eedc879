/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.h - what the files of the Redis store share.
 *
 *    redis.c    the driver, and what an operator reads
 *    batch.c    batches: what is asked next, and what the core says to it
 *      ask.c    one round of questions over all nodes, redirections followed
 *        net.c    which node a key lives on: one server, Sentinel, Cluster
 *          link.c   one connection: bytes out, replies in, within a time
 *            tls.c    the same through TLS
 *    scan.c     walks over all keys, for the reaper and for people
 *    value.c    a record as the value of a key
 *    time.c     what was seen of the time, in a key of its own
 *    mark.c     that there is a store, and which, in another
 *    create.c   which sets it
 *    url.c      the URL
 *
 * hiredis reads the replies. The sockets are ours: Debian 12 has hiredis 0.14,
 * which knows no TLS, cannot write to several servers before it reads from the
 * first, and bounds no call as a whole.
 */
#ifndef ONCE_STORE_REDIS_H
#define ONCE_STORE_REDIS_H

#include <hiredis/hiredis.h>
#include <limits.h>
#include <openssl/ssl.h>

#include <once/store.h>

enum {
    ONCE__REDIS_HEAD = 184,   /* fixed bytes of a value, at its front */
    ONCE__REDIS_PREFIX = 64,  /* longest prefix of keys               */
    ONCE__REDIS_HOSTS = 16,   /* most addresses in a URL              */
    ONCE__REDIS_NODES = 512,  /* most primaries of a cluster          */
    ONCE__REDIS_SLOTS = 16384 /* of every cluster                     */
};

/* The server drops what may be forgotten by its own clock, after so many times
 * the record's own time and a while: `forget` comes first, which looks at the
 * record, and a clock that is set ahead by twice the retention drops nothing.
 * */
#define ONCE__REDIS_TIMES UINT64_C(3)
#define ONCE__REDIS_MARGIN_MS UINT64_C(600000)

/* ---- url.c -------------------------------------------------------------- */

enum once__redis_mode {
    ONCE__REDIS_SINGLE,
    ONCE__REDIS_SENTINEL,
    ONCE__REDIS_CLUSTER
};

/* An address. Port "": `host` is the path of a unix socket. */
struct once__redis_place {
    char host[256];
    char port[8];
};

struct once__redis_config {
    enum once__redis_mode mode;
    int tls;
    struct once__redis_place hosts[ONCE__REDIS_HOSTS];
    size_t host_count;
    char primary[128]; /* Sentinel: the name that it has for it */
    char user[128], password[512];
    char sentinel_user[128], sentinel_password[512];
    char cacert[PATH_MAX], cert[PATH_MAX], key[PATH_MAX], sni[256];
    char prefix[ONCE__REDIS_PREFIX + 1];
    uint64_t db, timeout_ms, wait, wait_ms;
};

/* Reads `rest` of "scheme:rest". ONCE_EURL, ONCE_EOPEN (a password file), ...
 * */
ONCE_CHECK int once__redis_parse(enum once__redis_mode mode, int tls,
                                 int socket, const char *rest,
                                 struct once__redis_config *out,
                                 once_error *err);
/* Takes only the prefix, out of `url`, which is changed. */
ONCE_CHECK int once__redis_prefix(char *url, struct once__redis_config *c,
                                  once_error *err);

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

/* ---- mark.c ------------------------------------------------------------- */

enum { ONCE__REDIS_MARK_KEY = ONCE__REDIS_PREFIX + 8 };

struct once__redis_mark {
    int create; /* there need not be one yet, it will be made            */
    char id[2 * ONCE_STORE_ID_SIZE + 1]; /* "": not seen yet             */
};

struct once__redis_net;

void once__redis_mark_key(const struct once__redis_config *c,
                          char out[ONCE__REDIS_MARK_KEY]);
/* What is wrong with the answer to GET of that key, or NULL. The first id that
 * is seen is the one that counts. */
const char *once__redis_mark_judge(struct once__redis_mark *m,
                                   const redisReply *r);
/* create.c: makes the mark if `net->mark.create` says so and there is none; the store's id
 * is then `id`. Errors as for once_store_ops.open. */
ONCE_CHECK int once__redis_mark(struct once__redis_net *net, uint8_t *id,
                                once_error *err);

/* ---- link.c: one connection --------------------------------------------- */

struct once__redis_link {
    struct once__redis_place place;
    const struct once__redis_config *config;
    struct once__redis_mark *mark; /* borrowed; NULL: it is not looked at */
    struct once__redis_tls *tls;   /* borrowed; NULL: plain */
    int fd;                        /* -1: not connected     */
    SSL *ssl;
    redisReader *reader;
    unsigned generation; /* counts connections */
    unsigned failures;   /* in a row           */
    uint64_t retry_ms;   /* not before         */
    char trouble[160];   /* why it is not connected */

    /* Commands of this round. */
    uint8_t *out;
    size_t out_size, out_room, sent;
    uint64_t written; /* bytes that left through this connection */
    /* Replies since the last once__redis_link_reset(). */
    redisReply **replies;
    size_t count, expected, room;

    /* The server's clock: what it said, and when we got it. */
    uint64_t server_us, heard_us;
    size_t time_reply; /* index + 1 of an answer that is to come, or 0 */

    /* What can be set while it runs is asked for again. */
    uint64_t watched_us; /* when it was asked last                           */
    uint64_t evicted;    /* keys that it had dropped to make room by then    */
    size_t watch_reply;  /* as time_reply                                    */
    size_t mark_reply;   /* the same, of the mark                            */

    const char *script; /* what the greeting loads */

    /* What the server says about itself. */
    int loaded;  /* it knows the script                              */
    int primary; /* 1, or 0: a replica                               */
    int cluster; /* runs as a node of one                            */
    int aof, fsync_always, fsync_known;
    int refused; /* it will not do: trouble says why                 */
    int spoke;   /* it answered, and will not do later either        */
    char sha[41];
};

uint64_t once__redis_now_us(void); /* a clock that cannot be set */

void once__redis_link_init(struct once__redis_link *l,
                           const struct once__redis_config *config,
                           struct once__redis_tls *tls,
                           const struct once__redis_place *place);
void once__redis_link_clear(struct once__redis_link *l);
/* Connects and greets, unless it is too early to try again: ONCE_OK, or
 * ONCE_ESTORE, and `trouble` says why. */
ONCE_CHECK int once__redis_link_up(struct once__redis_link *l);
/* The same without the greeting that a data node gets. */
ONCE_CHECK int once__redis_link_dial(struct once__redis_link *l);
/* Closes the connection; what was asked of it stays unanswered. */
void once__redis_link_fail(struct once__redis_link *l, const char *format, ...)
    ONCE_PRINTF(2, 3);
/* Frees the replies of the last call. */
void once__redis_link_reset(struct once__redis_link *l);
/* Queues a command. Its reply will have the index `*reply`. 0: no memory. */
ONCE_CHECK int once__redis_command(struct once__redis_link *l, size_t argc,
                                   const once_bytes *argv, size_t *reply);
/* Sends what is queued on all links, then waits for all replies; a link that
 * does not get there in time is closed. */
void once__redis_exchange(struct once__redis_link **links, size_t n);
/* For those who do not wait for all replies: sends and receives what can be now,
 * after waiting up to `ms` for either. To be called only while a reply is to
 * come. 0: the connection is gone. */
int once__redis_link_step(struct once__redis_link *l, int ms);
/* Frees the replies that have come; the next one to come has index 0. */
void once__redis_link_shift(struct once__redis_link *l);
/* NULL: it never came. */
const redisReply *once__redis_reply(const struct once__redis_link *l,
                                    size_t index);
/* One command, waited for. NULL: no answer. */
ONCE_CHECK const redisReply *once__redis_call(struct once__redis_link *l,
                                              size_t argc,
                                              const char *const *argv);
/* Asks, in front of whatever is queued next, whether the server still will do,
 * if that was not asked for a second. 0: no memory. */
ONCE_CHECK int once__redis_link_watch(struct once__redis_link *l);
/* Judges the answer. A server that will not do is closed, and `refused`: then
 * no answer of this round counts. */
void once__redis_link_watched(struct once__redis_link *l);
/* Whether an error reply has this code: its first word, whole. */
int once__redis_is(const redisReply *r, const char *code);

/* ---- tls.c -------------------------------------------------------------- */

struct once__redis_tls;

ONCE_CHECK int once__redis_tls_new(const struct once__redis_config *config,
                                   once_error *err,
                                   struct once__redis_tls **out);
void once__redis_tls_free(struct once__redis_tls *t); /* accepts NULL */
/* NULL: no memory. */
SSL *once__redis_tls_attach(struct once__redis_tls *t, int fd,
                            const struct once__redis_config *config,
                            const char *host);
/* 1 done, 0 wait for `*events` of poll(), -1: `why` is filled in. */
ONCE_CHECK int once__redis_tls_greet(SSL *ssl, short *events, char *why,
                                     size_t size);
/* Bytes moved; 0: not now; -1: failed or over. */
ssize_t once__redis_tls_send(SSL *ssl, const void *data, size_t size);
ssize_t once__redis_tls_recv(SSL *ssl, void *data, size_t size);

/* ---- net.c: which node ----------------------------------------------------
 * */

struct once__redis_net {
    struct once__redis_config config;
    struct once__redis_mark mark;
    struct once__redis_tls *tls;
    struct once__redis_link *nodes[ONCE__REDIS_NODES];
    size_t count;
    uint16_t slot[ONCE__REDIS_SLOTS]; /* node + 1, 0: nobody known */
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
unsigned once__redis_slot(const void *key, size_t size);
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

/* ---- ask.c: rounds of questions -------------------------------------------
 * */

enum once__redis_ask {
    ONCE__REDIS_NOTHING, /* answered, or failed                         */
    ONCE__REDIS_ADD,     /* this value, unless there is one: it is shown */
    ONCE__REDIS_GET,
    ONCE__REDIS_PEEK, /* the first `size` bytes                       */
    ONCE__REDIS_SWAP, /* this value instead of the one with that head */
    ONCE__REDIS_TOUCH /* likewise the same                            */
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

/* ---- time.c ---------------------------------------------------------------
 * */

/* As once_store_ops.time; now_ms is the server's. */
ONCE_CHECK int once__redis_time(struct once__redis_net *net,
                                const once_store_time *put,
                                once_store_time *out, once_error *err);

/* ---- batch.c --------------------------------------------------------------
 * */

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

/* ---- scan.c ---------------------------------------------------------------
 * */

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

#endif /* ONCE_STORE_REDIS_H */
