/* SPDX-License-Identifier: Apache-2.0 */
/*
 * console.h - what the files of the web console share (docs/console.md).
 *
 *    main.c      options, start and end
 *    listen.c    the socket: a file, or loopback, and nothing else
 *    peers.c     who is connected, and gives way to others
 *    who.c       who asks, and what he may do
 *    gate.c      is it a page of ours that asks?
 *    serve.c     libmicrohttpd: a request in, an answer out; pages
 *    routes.c    which function answers what
 *    look.c      what is read: stores, records, timeline, audit
 *    find.c      by hash, request, group and key, label, trace
 *    decide.c    what is changed: decisions, batches; and the body of a result
 *    json.c      records and results as JSON
 *    options.c   the table of options, which `once console` has, too
 *
 *    head: gate --> who --> route, rights --> body --> store
 *
 * Each connection has a thread, since functions wait for the store. It keeps no
 * state but one session: what it shows is the store's and the audit log's.
 * Nothing here prints or sends a token, a fingerprint, a key, a header's value
 * or a scope; a body only to who may see it and has said why.
 */
#ifndef ONCE_CONSOLE_CONSOLE_H
#define ONCE_CONSOLE_CONSOLE_H

#include <pthread.h>

#include <jansson.h>
#include <microhttpd.h>

#include <once/once.h>

#include "console/options.h"
#include "operate/answer.h"
#include "operate/operate.h"

enum {
    CON_STORES_MAX = 16,
    CON_HOSTS_MAX = 16,
    CON_UIDS_MAX = 16,
    CON_CONNECTIONS_MAX = 64,
    CON_PEERS = 128,           /* with those that are being ended     */
    CON_HEAD_MAX = 32 << 10,   /* bytes of a request's head           */
    CON_BODY_MAX = 2 << 20,    /* bytes of a decision                 */
    CON_SMALL_MAX = 64 << 10,  /* bytes of what is no decision       */
    CON_TOKEN_MAX = 1 << 10,   /* bytes from who is not known         */
    CON_SKIPPED_MAX = 4 << 20, /* bytes of what is refused anyway   */
    CON_VALUES_MAX = 8192,     /* in a request's JSON                 */
    CON_DEPTH_MAX = 16,        /* the same, nested                    */
    CON_SHOWN_MAX = 1 << 20,   /* bytes of a body that is shown       */
    CON_PAGE_MAX = 200,        /* records of a page                   */
    CON_SECRET = 64            /* hex digits of a token or a session  */
};

struct con_store {
    char name[33];
    const char *url; /* never shown: it may hold a password */
    char driver[17];
    once_engine *e;
    pthread_mutex_t lock;
    char caveat[512];  /* class B: how a record may be lost; "" */
    char trouble[256]; /* what the engine said last; ""         */
};

enum con_right {
    CON_VIEW = 1,
    CON_DECIDE = 2,
    CON_BODY = 4,
    CON_ERASE = 8,
    CON_ADMIN = 16
};

/* A connection, in peers.c. */
struct con_peer {
    const struct MHD_Connection *c;
    int fd;
    int64_t uid; /* by the kernel; -1: by loopback, not known    */
    int step, known, gone;
    uint64_t number, deadline_ms;
};

struct con {
    const struct cli *cli;
    struct con_store stores[CON_STORES_MAX];
    size_t n;
    int decide; /* 0: read-only, whatever the rights say */
    const char *audit_path;
    once__audit *audit;
    const char *operators; /* the file of rights */
    int has_operators;     /* it was named, so it must be there */
    const char *hosts[CON_HOSTS_MAX];
    size_t n_hosts;
    const char *trust_header; /* NULL: nobody vouches for others */
    uint32_t trust_uids[CON_UIDS_MAX];
    size_t n_uids;
    /* The listener. */
    int fd;
    int local; /* 1: a socket file; 0: loopback */
    unsigned port;
    const char *unlink_path; /* what to take away at the end */
    /* Loopback: a token that is good once, and the session that it opens. */
    pthread_mutex_t lock;
    char token[CON_SECRET + 1], session[CON_SECRET + 1];
    uint64_t session_until_ms;
    /* Under the same lock. */
    struct con_peer peers[CON_PEERS];
    uint64_t connected; /* so far */
};

/* Who asks. */
struct con_caller {
    once__audit_who who;
    unsigned rights; /* enum con_right bits, as far as the process may */
};

/* One request. The functions that answer it return what con_reply() or
 * con_problem() returned. */
struct con_ask {
    struct con *con;
    struct MHD_Connection *c;
    const char *method;
    struct con_caller caller;
    struct con_store *store;      /* of the path, or NULL */
    uint8_t name[ONCE_NAME_SIZE]; /* likewise, a record's */
    int has_name;
    /* What its head says: it is refused, or who answers it. */
    unsigned refused; /* a status, or 0 */
    const char *code, *why;
    int known; /* who asks is known, and may look */
    enum MHD_Result (*answer)(struct con_ask *ask);
    const char *path;
    size_t most;  /* bytes that its body may have */
    json_t *body; /* of a POST */
    char *raw;
    size_t size, came;
    const char *cookie; /* to be set with the answer, or NULL */
};

/* ---- listen.c ------------------------------------------------------------ */

/* CLI_OK: con->fd listens; otherwise it has said why not. */
int con_listen(struct con *con, const char *where);
void con_unlisten(struct con *con);

/* ---- peers.c ------------------------------------------------------------- */

/* A connection begins and ends. */
void con_peer_comes(struct con *con, struct MHD_Connection *c);
void con_peer_goes(struct con *con, struct MHD_Connection *c);
/* Its request's head is there; it is being answered, or its answer is there to
 * be fetched; it has been fetched. */
void con_peer_asks(struct con_ask *ask);
void con_peer_works(struct con_ask *ask, int works);
void con_peer_rests(struct con_ask *ask);
/* Ends those that are too slow; to be called each second. */
void con_peers_end_late(struct con *con);

/* ---- who.c --------------------------------------------------------------- */

/* Is it a uid of --trust-uid? */
int con_is_trusted(const struct con *con, uint32_t uid);

/* Checks the file of rights; CLI_OK, or it has said what is wrong. */
int con_check_operators(struct con *con);
/*
 * Fills ask->caller: 0, or the status of a refusal, 401 or 403, and `*why`; 500
 * if the file of rights cannot be read.
 */
int con_identify(struct con_ask *ask, const char **why);
/* POST session: the token for a cookie. */
enum MHD_Result con_open_session(struct con_ask *ask);
/* GET session: who am I, and what may I? */
enum MHD_Result con_session(struct con_ask *ask);

/* ---- gate.c -------------------------------------------------------------- */

/* 0, or a status and why: a host that we are not, a page that is not ours. */
int con_gate(const struct con_ask *ask, int is_api, const char **why);

/* ---- serve.c ------------------------------------------------------------- */

struct MHD_Daemon *con_serve(struct con *con);
/* Takes `value`; NULL is out of memory. */
enum MHD_Result con_reply(struct con_ask *ask, unsigned status, json_t *value);
/* Says in ask->refused that it is. */
void con_refuse(struct con_ask *ask, unsigned status, const char *code,
                const char *why);
/* RFC 9457; `code` is for programs, the text for people. */
enum MHD_Result con_problem(struct con_ask *ask, unsigned status,
                            const char *code, const char *format, ...)
    ONCE_PRINTF(4, 5);
/* The same with a record that explains it; takes `record`, or NULL. */
enum MHD_Result con_problem_about(struct con_ask *ask, unsigned status,
                                  const char *code, const char *text,
                                  json_t *record);
/* After an error of the library that changed nothing. */
enum MHD_Result con_trouble(struct con_ask *ask, int rc, const once_error *err);
enum MHD_Result con_bytes(struct con_ask *ask, const char *type,
                          const void *data, size_t size);
/* A header line of the request, or NULL. */
const char *con_header(const struct con_ask *ask, const char *name);
/* A parameter of the query, or NULL. */
const char *con_argument(const struct con_ask *ask, const char *name);

/* ---- routes.c ------------------------------------------------------------ */

/* What stands behind /api/v1/: fills ask->answer and ask->most, or refuses. */
void con_route(struct con_ask *ask, const char *path);

/* ---- look.c, find.c, decide.c -------------------------------------------- */

enum MHD_Result con_stores(struct con_ask *ask);
enum MHD_Result con_store(struct con_ask *ask);
enum MHD_Result con_records(struct con_ask *ask);
enum MHD_Result con_record(struct con_ask *ask);
enum MHD_Result con_timeline(struct con_ask *ask);
enum MHD_Result con_audit(struct con_ask *ask);
enum MHD_Result con_find(struct con_ask *ask);
enum MHD_Result con_decision(struct con_ask *ask);
enum MHD_Result con_body(struct con_ask *ask);
enum MHD_Result con_batch(struct con_ask *ask);

/* The record of the path: ONCE_OK, or it is answered already (`*out`). End `op`
 * with once_op_clear(). */
int con_look(struct con_ask *ask, once_op *op, enum MHD_Result *out);
/* 1 and the store's head; 0: it has none, or does not answer. */
int con_head(struct con_store *s, once_store_head *out);

/* ---- json.c -------------------------------------------------------------- */

/* `whole`: also what only one record's page shows. NULL: out of memory. */
json_t *con_json_record(const struct con_store *s,
                        const uint8_t name[ONCE_NAME_SIZE],
                        const once_record *r);
/* 1 if a text has so few values, and none so deep, that it may be read. */
int con_is_small(const char *text, size_t size);
/* What repeats are told. */
json_t *con_json_told(const once_record *r);
/* A result, with its headers' values and its body: what a decision would make,
 * and a body that is asked for. */
json_t *con_json_reply(once_bytes result, int kind);
json_t *con_json_bytes(once_bytes bytes);
/* Of base64: ONCE_OK and bytes to free(), or ONCE_EINVAL. */
int con_decode(const char *text, once_bytes *out);
/* Members of a request: NULL, or a default, where it is not there; `*bad` where
 * it is of another type. */
const char *con_text(const json_t *o, const char *name, int *bad);
json_int_t con_number(const json_t *o, const char *name, json_int_t least,
                      json_int_t most, json_int_t none, int *bad);
int con_flag(const json_t *o, const char *name, int *bad);
/* A fence is a string, since numbers of JSON are rounded by many. 0: none. */
uint64_t con_fence(const json_t *o, int *bad);

#endif /* ONCE_CONSOLE_CONSOLE_H */
