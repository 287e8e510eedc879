/* SPDX-License-Identifier: Apache-2.0 */
/*
 * console.h - what the files of the web console share (docs/console.md).
 *
 *    main.c      options, start and end
 *    peers.c     who is connected, and gives way to others
 *    who.c       who the caller is, and what he may do
 *    gate.c      is it a page of ours that asks?
 *    serve.c     libmicrohttpd: a request in, an answer out; pages
 *    routes.c    which function answers what
 *    look.c      what is read: stores, records, timeline, audit
 *    find.c      by hash, request, group and key, label, trace
 *    disk.c      how large a store is
 *    watch.c     the last hour of gateways, relays and stores, in memory
 *    messages.c  outboxes, parked messages and sagas of programs' databases
 *    decide.c    what is changed: decisions, batches; and the body of a result
 *    json.c      records and results as JSON
 *    url.c       URLs of the command line, or from a file
 *    options.c   the table of options, which `once console` has, too
 *
 *    head: gate --> who --> route, rights --> body --> store
 *
 * Each connection has a thread, since functions wait for the store. It keeps no
 * state but one session and an hour of numbers: all else that it shows is the
 * store's and the audit log's.
 * Nothing here prints or sends a token, a fingerprint, a key, a header's value
 * or a scope; a body only to who may see it and has said why.
 */
#ifndef ONCE_CONSOLE_CONSOLE_H
#define ONCE_CONSOLE_CONSOLE_H

#include <pthread.h>

#include <jansson.h>
#include <microhttpd.h>

#include <once/once.h>

#include "programs/console/options.h"
#include "operate/answer.h"
#include "operate/operate.h"
#include "programs/terminal/listen.h"

enum {
    CONSOLE_STORES_MAX = 16,
    CONSOLE_SOURCES_MAX = 16,
    CONSOLE_DATABASES_MAX = 16,
    CONSOLE_HOSTS_MAX = 16,
    CONSOLE_UIDS_MAX = 16,
    CONSOLE_CONNECTIONS_MAX = 64,
    CONSOLE_PEERS = 128,           /* with those that are being ended     */
    CONSOLE_HEAD_MAX = 32 << 10,   /* bytes of a request's head           */
    CONSOLE_BODY_MAX = 2 << 20,    /* bytes of a decision                 */
    CONSOLE_SMALL_MAX = 64 << 10,  /* bytes of what is no decision       */
    CONSOLE_TOKEN_MAX = 1 << 10,   /* bytes from who is not known         */
    CONSOLE_SKIPPED_MAX = 4 << 20, /* bytes of what is refused anyway   */
    CONSOLE_VALUES_MAX = 8192,     /* in a request's JSON                 */
    CONSOLE_DEPTH_MAX = 16,        /* the same, nested                    */
    CONSOLE_SHOWN_MAX = 1 << 20,   /* bytes of a body that is shown       */
    CONSOLE_PAGE_MAX = 200,        /* records of a page                   */
    CONSOLE_URL_MAX = 4096,        /* bytes of a URL that a file holds    */
    CONSOLE_SECRET = 64            /* hex digits of a token or a session  */
};

struct console_store {
    char name[33];
    const char *url; /* never shown: it may hold a password */
    char driver[17];
    char *path; /* of its files, if they are on this host; or NULL */
    once_engine *e;
    pthread_mutex_t lock;
    char caveat[512];  /* how a record may be lost, or "" */
    char trouble[256]; /* what the engine said last; ""         */
};

struct console_database {
    char name[33];
    const char *url; /* never shown */
    struct once__base *base;
    pthread_mutex_t lock; /* of its one connection */
};

enum console_right {
    CONSOLE_VIEW = 1,
    CONSOLE_DECIDE = 2,
    CONSOLE_BODY = 4,
    CONSOLE_ERASE = 8,
    CONSOLE_ADMIN = 16
};

/* A connection, in peers.c. */
struct console_peer {
    const struct MHD_Connection *c;
    int fd;
    int64_t uid; /* by the kernel; -1: by loopback, not known    */
    int step, known, gone;
    uint64_t number, deadline_ms;
};

struct console_watch;

struct console {
    const struct cli *cli;
    struct console_store stores[CONSOLE_STORES_MAX];
    size_t n;
    struct console_database databases[CONSOLE_DATABASES_MAX];
    size_t n_databases;
    struct console_watch *watch;
    int decide;       /* 0: read-only, whatever the rights say */
    const char *link; /* where the service shows an order; NULL */
    const char *audit_path;
    once__audit *audit;
    const char *operators; /* the file of rights */
    int has_operators;     /* it was named, so it must be there */
    const char *hosts[CONSOLE_HOSTS_MAX];
    size_t n_hosts;
    const char *trust_header; /* NULL: nobody vouches for others */
    uint32_t trust_uids[CONSOLE_UIDS_MAX];
    size_t n_uids;
    /* The listener. */
    struct cli_listen listen;
    /* Loopback: a token that is good once, and the session that it opens. */
    pthread_mutex_t lock;
    char token[CONSOLE_SECRET + 1], session[CONSOLE_SECRET + 1];
    uint64_t session_until_ms;
    /* Under the same lock. */
    struct console_peer peers[CONSOLE_PEERS];
    uint64_t connected; /* so far */
};

/* Who asks. */
struct console_caller {
    once__audit_who who;
    unsigned rights; /* enum console_right bits, as far as the process may */
};

/* One request. The functions that answer it return what console_reply() or
 * console_problem() returned. */
struct console_request {
    struct console *con;
    struct MHD_Connection *c;
    const char *method;
    struct console_caller caller;
    struct console_store *store;       /* of the path, or NULL */
    struct console_database *database; /* the same */
    uint8_t name[ONCE_NAME_SIZE];      /* the same, a record's */
    int has_name;
    /* What its head says: it is refused, or who answers it. */
    unsigned refused; /* a status, or 0 */
    const char *code, *why;
    int known; /* the caller is known, and may look */
    enum MHD_Result (*answer)(struct console_request *ask);
    const char *path;
    size_t most;  /* bytes that its body may have */
    json_t *body; /* of a POST */
    char *raw;
    size_t size, came;
};

/* ---- peers.c ------------------------------------------------------------- */

/* A connection begins and ends. */
void console_peer_comes(struct console *con, struct MHD_Connection *c);
void console_peer_goes(struct console *con, struct MHD_Connection *c);
/* Its request's head is there; it is being answered, or its answer is there to
 * be fetched; it has been fetched. */
void console_peer_asks(struct console_request *ask);
void console_peer_works(struct console_request *ask, int works);
void console_peer_rests(struct console_request *ask);
/* Ends those that are too slow; to be called each second. */
void console_peers_end_late(struct console *con);

/* ---- url.c ---------------------------------------------------------------- */

/* What pages show of the command line: printable ASCII without spaces. */
int console_is_plain(const char *text);
/* A URL with a password is the first line of a file, `*url` is "@FILE" then: it is
 * read to `memory`. CLI_OK, or it has said what is wrong. */
int console_read_url(const struct console *con, const char *option,
                     const char *name, const char **url,
                     char memory[CONSOLE_URL_MAX]);

/* ---- watch.c -------------------------------------------------------------- */

struct console_watch *console_watch_new(struct console *con);
/* One more source of metrics, "[NAME=]URL" or "[NAME=]@FILE", borrowed: enum
 * cli_exit. */
int console_watch_add(struct console_watch *w, const char *text);
/* Once the stores are open; 1, or 0 if there is no thread to be had. */
int console_watch_start(struct console_watch *w);
void console_watch_end(struct console_watch *w); /* accepts NULL */
enum MHD_Result console_metrics(struct console_request *ask);

/* ---- disk.c --------------------------------------------------------------- */

/* Of s->url, to free(); NULL: it is no file. */
char *console_path_of(const struct console_store *s);
/* 1 and the size of a store and what is free beside it; 0: not known. */
int console_disk(const struct console_store *s, uint64_t *bytes,
                 uint64_t *left);

/* ---- messages.c; without messages there is none of it ---------------------- */

/* Reads the URL; connects when it is asked. End it, also after a failure. */
int console_database_open(struct console_database *d, once_error *err);
void console_database_close(struct console_database *d);
/* Ends questions that are not answered; to be called each second. */
void console_databases_watch(struct console *con);
enum MHD_Result console_databases(struct console_request *ask);
enum MHD_Result console_rows(struct console_request *ask);
enum MHD_Result console_row(struct console_request *ask);
enum MHD_Result console_message_decision(struct console_request *ask);

/* ---- who.c --------------------------------------------------------------- */

/* Is it a uid of --trust-uid? */
int console_is_trusted(const struct console *con, uint32_t uid);

/* Checks the file of rights; CLI_OK, or it has said what is wrong. */
int console_check_operators(struct console *con);
/*
 * Fills ask->caller: 0, or the status of a refusal, 401 or 403, and `*why`; 500
 * if the file of rights cannot be read.
 */
int console_identify(struct console_request *ask, const char **why);
/* POST session: the token for the session's secret. */
enum MHD_Result console_open_session(struct console_request *ask);
/* POST session/end: the secret opens nothing any more. */
enum MHD_Result console_end_session(struct console_request *ask);
/* GET session: who am I, and what may I? */
enum MHD_Result console_session(struct console_request *ask);

/* ---- gate.c -------------------------------------------------------------- */

/* 0, or a status and why: a host that we are not, a page that is not ours. */
int console_gate(const struct console_request *ask, int is_api,
                 const char **why);

/* ---- serve.c ------------------------------------------------------------- */

struct MHD_Daemon *console_serve(struct console *con);

/* ---- reply.c ------------------------------------------------------------- */

/* Takes `value`; NULL is out of memory. */
enum MHD_Result console_reply(struct console_request *ask, unsigned status,
                              json_t *value);
/* Says in ask->refused that it is. */
void console_refuse(struct console_request *ask, unsigned status,
                    const char *code, const char *why);
/* RFC 9457; `code` is for programs, the text for people. */
enum MHD_Result console_problem(struct console_request *ask, unsigned status,
                                const char *code, const char *format, ...)
    ONCE_PRINTF(4, 5);
/* The same with a record that explains it; takes `record`, or NULL. */
enum MHD_Result console_problem_about(struct console_request *ask,
                                      unsigned status, const char *code,
                                      const char *text, json_t *record);
/* After an error of the library that changed nothing. */
enum MHD_Result console_store_error(struct console_request *ask, int rc,
                                    const once_error *err);
enum MHD_Result console_bytes(struct console_request *ask, const char *type,
                              const void *data, size_t size);
/* A header line of the request, or NULL. */
const char *console_header(const struct console_request *ask, const char *name);
/* A parameter of the query, or NULL. */
const char *console_argument(const struct console_request *ask,
                             const char *name);

/* ---- routes.c ------------------------------------------------------------ */

/* What stands behind /api/v1/: fills ask->answer and ask->most, or refuses. */
void console_route(struct console_request *ask, const char *path);

/* ---- look.c, find.c, decide.c -------------------------------------------- */

enum MHD_Result console_stores(struct console_request *ask);
enum MHD_Result console_store(struct console_request *ask);
enum MHD_Result console_records(struct console_request *ask);
enum MHD_Result console_record(struct console_request *ask);
enum MHD_Result console_timeline(struct console_request *ask);
enum MHD_Result console_audit(struct console_request *ask);
enum MHD_Result console_find(struct console_request *ask);
enum MHD_Result console_decision(struct console_request *ask);
enum MHD_Result console_body(struct console_request *ask);
enum MHD_Result console_batch(struct console_request *ask);

/* The record of the path: ONCE_OK, or it is answered already (`*out`). End `op`
 * with once_op_clear(). */
int console_read_record(struct console_request *ask, once_op *op,
                        enum MHD_Result *out);
/* 1 and the store's head; 0: it has none, or does not answer. */
int console_head(struct console_store *s, once_store_head *out);

/* ---- json.c -------------------------------------------------------------- */

/* `whole`: also what only one record's page shows. NULL: out of memory. */
json_t *console_json_record(const struct console_store *s,
                            const uint8_t name[ONCE_NAME_SIZE],
                            const once_record *r);
/* 1 if a text has so few values, and none so deep, that it may be read. */
int console_is_small(const char *text, size_t size);
/* What repeats are told. */
json_t *console_json_told(const once_record *r);
/* A result, with its headers' values and its body: what a decision would make,
 * and a body that is asked for. */
json_t *console_json_reply(once_bytes result, int kind);
json_t *console_json_bytes(once_bytes bytes);
/* Of base64: ONCE_OK and bytes to free(), or ONCE_EINVAL. */
int console_decode(const char *text, once_bytes *out);
/* Members of a request: NULL, or a default, where it is not there; `*bad` where
 * it is of another type. */
const char *console_text(const json_t *o, const char *name, int *bad);
json_int_t console_number(const json_t *o, const char *name, json_int_t least,
                          json_int_t most, json_int_t none, int *bad);
int console_flag(const json_t *o, const char *name, int *bad);
/* A fence is a string, since numbers of JSON are rounded by many. 0: none. */
uint64_t console_fence(const json_t *o, int *bad);

#endif /* ONCE_CONSOLE_CONSOLE_H */
