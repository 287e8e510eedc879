/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.h - one connection to a Redis server, for the store and the broker.
 *
 *    link.c    one connection: bytes out, replies in, within a time
 *      tls.c   the same through TLS
 *      mark.c  that there is a store, and which, in a key of its own
 *    url.c     the URL
 *
 * hiredis reads the replies. The sockets are ours: Debian 12 has hiredis 0.14,
 * which knows no TLS, cannot write to several servers before it reads from the
 * first, and bounds no call as a whole.
 */
#ifndef ONCE_BASE_REDIS_REDIS_H
#define ONCE_BASE_REDIS_REDIS_H

#include <hiredis/hiredis.h>
#include <limits.h>
#include <openssl/ssl.h>

#include <once/store.h>

enum {
    ONCE__REDIS_PREFIX = 64, /* longest prefix of keys                     */
    ONCE__REDIS_HOSTS = 16,  /* most addresses in a URL                    */
    ONCE__REDIS_NODES = 512  /* most primaries of a cluster: links at once */
};

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

/* ---- mark.c ------------------------------------------------------------- */

enum { ONCE__REDIS_MARK_KEY = ONCE__REDIS_PREFIX + 8 };

struct once__redis_mark {
    int create; /* there need not be one yet, it will be made            */
    char id[2 * ONCE_STORE_ID_SIZE + 1]; /* "": not seen yet             */
};

void once__redis_mark_key(const struct once__redis_config *c,
                          char out[ONCE__REDIS_MARK_KEY]);
/* What is wrong with the answer to GET of that key, or NULL. The first id that
 * is seen is the one that counts. */
const char *once__redis_mark_judge(struct once__redis_mark *m,
                                   const redisReply *r);

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

    const char *script; /* what the greeting loads: to be set after the init */

    /* What the server says about itself. */
    int loaded;  /* it knows the script                              */
    int primary; /* 1, or 0: a replica                               */
    int cluster; /* runs as a node of one                            */
    int aof, fsync_always, fsync_known;
    int refused; /* it cannot be used: trouble says why              */
    int spoke;   /* it answered, and cannot be used later either     */
    char sha[41];
};

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
/* For those who do not wait for all replies: sends and receives what can be
 * now, after waiting up to `ms` for either. To be called only while a reply is
 * to come. 0: the connection is gone. */
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
/* Judges the answer. A server that cannot be used is closed, and `refused`:
 * then no answer of this round counts. */
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

#endif /* ONCE_BASE_REDIS_REDIS_H */
