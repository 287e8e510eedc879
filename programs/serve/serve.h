/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h - what the files of `once serve` share: the guard behind a socket, for
 * middlewares in other languages. It decides nothing: <once/http.h> does.
 *
 *    main.c      options, the store, the loop, start and end
 *    options.c   its options, also for `once serve`
 *    http.c      a request in: libmicrohttpd
 *    connection.c  connections: token checks and time limits
 *    begin.c     /v1/begin: may the handler run?
 *    end.c       /v1/end, broken, abandon: what it has answered
 *    call.c      /v1/call/begin and end: the same for functions
 *    known.c     ids that are known already
 *    turn.c      deaths, time limits, the end
 *    open.c      exchanges between their begin and their end
 *    due.c       which of them has had its time first
 *    owner.c     processes that speak to us, and their deaths
 *    route.c     the options of a route, from JSON
 *    message.c   the head of a message: a line of JSON
 *    say.c       what is answered
 *    log.c       a line for each guarded request
 *    look.c      health, metrics, and the limits of a route
 *    wake.c      calls that wait for the engine
 *
 * One thread does everything here. The engine's thread only calls
 * serve_wake(): it puts what can go on into a list, and rings once a batch.
 */
#ifndef ONCE_SERVE_SERVE_H
#define ONCE_SERVE_SERVE_H

#include <stdatomic.h>
#include <sys/types.h>

#include <jansson.h>
#include <microhttpd.h>

#include <once/http.h>

#include "base/steady.h"
#include "calls/guard/guard.h"
#include "programs/serve/options.h"
#include "programs/terminal/listen.h"

enum {
    SERVE_HEAD_MAX = 65536,
    SERVE_LINES_MAX = 512,
    SERVE_ROUTES_MAX = 1000, /* distinct ones in memory                   */
    SERVE_NAMED_MAX = 100,
    SERVE_CONNECTIONS = 4096,
    SERVE_FOR_ENDS = 256, /* of them, for no begin                        */
    SERVE_UNPROVEN = 256, /* on loopback, without the token: besides      */
    SERVE_PROVE_MS = 5000,
    SERVE_MESSAGE_MS = 30000, /* for a message, and a second for each MiB */
    SERVE_ABANDONED_MS = 60000,
    SERVE_ANSWER_MS = 3000, /* a begin is answered, after its own times     */
    SERVE_BEARER_MAX = 256,
    SERVE_REALM_MAX = 1000
};

/* What goes on when the engine has answered. */
struct serve_wake {
    struct serve_wake *next;
    struct serve *serve;
};

/* ---- Routes -------------------------------------------------------------- */

/* A ring of exchanges; the list itself is one, too. */
struct serve_link {
    struct serve_link *previous, *next;
};

/* What callers were told, by the name of their route. */
struct serve_label {
    const char *name; /* of --define, SERVE_UNNAMED or SERVE_CALLS */
    uint64_t told[ONCE__STATUS_COUNT];
};

struct serve_route {
    struct serve_route *next;
    char *text; /* its JSON, and what the program computes for it */
    struct serve_label *label;
    once_guard *guard; /* NULL: of calls */
    uint64_t run_ms, lease_ms, wait_ms, store_ms;
    size_t max_request, max_response;
    int scope_off;
    unsigned uses; /* calls and exchanges */
};

struct serve_named {
    char *name;
    json_t *route;
    struct serve_label label;
};

/* ---- Owners -------------------------------------------------------------- */

/* A process. It lives while a connection or an exchange is of it. */
struct serve_owner {
    struct serve_owner *next, **link;
    pid_t pid; /* 0: of another pid namespace; -1: by TCP, nobody knows */
    uid_t uid;
    int pidfd; /* -1: its death is not seen */
    int dead;
    unsigned uses;
    struct serve_link open; /* what it has begun */
};

/* ---- Connections --------------------------------------------------------- */

struct serve_connection {
    struct serve *serve;
    struct serve_owner *owner; /* NULL: no memory                         */
    int fd;
    int proven;             /* it has sent the token, or came by the file */
    struct serve_link rank; /* among those that have not                  */
    uint64_t prove_ms;      /* until when it may                          */
    struct serve_link timed;
    uint64_t until_ms; /* of the message that is under way                */
};

/* ---- Exchanges ----------------------------------------------------------- */

enum serve_state { SERVE_CLAIMS, SERVE_RUNS, SERVE_ENDS };

struct serve_open {
    struct serve_wake wake; /* first */
    uint8_t id[ONCE_TOKEN_SIZE];
    enum serve_state state;
    int known;               /* it is in the table of ids                   */
    int woken;               /* the engine has answered what was asked last */
    int abandoned;           /* release it when it is granted               */
    int late;                /* the store has not answered in time          */
    struct serve_call *call; /* that waits for it, or NULL                */
    once_exchange *x;
    /* Of a call, and what the engine has said of it: one of both is there. */
    once_attempt *attempt;
    once_request request; /* its name and fingerprint */
    int rc;
    int looked;   /* for what is recorded, after it broke */
    char *logged; /* its label, or NULL */
    struct serve_route *route;
    struct serve_owner *owner;
    struct serve_link of_owner;
    uint64_t run_ms;   /* how long its handler may take */
    uint64_t until_ms; /* CLAIMS: to be answered; RUNS: to end */
    size_t due;        /* its place in the heap, from 1; 0: not there */
};

/* ---- Calls: one request to us ---------------------------------------------- */

enum serve_kind {
    SERVE_BEGIN,
    SERVE_END,
    SERVE_BROKEN,
    SERVE_ABANDON,
    SERVE_CALL_BEGIN,
    SERVE_CALL_END,
    SERVE_ROUTE
};

/* Labels of routes in metrics: no name of --define begins so. */
#define SERVE_UNNAMED "-"
#define SERVE_CALLS "-calls"

/* Before the token of a call: one of an exchange has none of its characters. */
#define SERVE_CALL_TOKEN '~'

struct serve_call {
    struct serve *serve;
    struct MHD_Connection *c;
    struct serve_connection *connection;
    struct serve_owner *owner;
    enum serve_kind kind;
    enum MHD_Result (*page)(struct serve_call *k); /* of GET, or NULL */
    int started, superseded, late;
    unsigned refused; /* 0, or the status of what is wrong */
    const char *error;
    char why[200];
    /* The head. */
    char *head;
    size_t n_head;
    json_t *json; /* NULL: not whole yet */
    char *text;   /* where its texts are, as bytes */
    size_t used;
    const char *scope, *key, *fingerprint, *label; /* of a begin, or NULL */
    const char *method, *target;
    char *logged;
    uint8_t id[ONCE_TOKEN_SIZE];
    const char *token;
    struct serve_route *route; /* one of its uses */
    uint64_t run_ms, answer_ms;
    once_http_header *lines;
    size_t n_lines;
    /* The body. */
    once_exchange *x;      /* of a begin, until it is known */
    once_attempt *attempt; /* the same of a call */
    once_request request;
    char *body;
    size_t n_body, body_room;
    int too_large;
    struct serve_open *open; /* for which it waits */
};

/* ---- The server ------------------------------------------------------------ */

struct serve {
    const struct cli *cli;
    once_engine *engine;
    struct cli_listen listen;
    char bearer[SERVE_BEARER_MAX + 1]; /* "": none, a socket file */
    struct MHD_Daemon *daemon;
    int wake_fd, deaths; /* an eventfd; an epoll of pidfds */
    /* Pushed by the engine's thread, taken whole by the loop: a push releases its
     * node, a take acquires all. */
    _Atomic(struct serve_wake *) woken;
    int ending;           /* SIGTERM: no new begins            */
    unsigned waiting;     /* calls that the store is asked for */
    unsigned connections; /* that have proved themselves */
    unsigned n_unproven;
    struct serve_link unproven, timed; /* the oldest first; in no order */
    uint64_t looked_ms;                /* at `timed` */
    const char *realm;                 /* of routes that have none */
    struct serve_named named[SERVE_NAMED_MAX];
    size_t n_named;
    int routes_only, log;
    struct serve_route *routes; /* the last used first */
    size_t n_routes;
    struct serve_route calls; /* of all calls */
    struct serve_label unnamed, of_calls;
    void *ids, *gone; /* trees: exchanges; what was abandoned */
    struct serve_gone *first_gone, **last_gone;
    size_t n_open, n_gone, max_open;
    struct serve_open **due; /* a heap of those with a time, by `until_ms` */
    size_t n_due, due_room;
    struct serve_owner *owners;
    uint64_t buffered, buffers; /* bytes of answers: now, and at most */
};

/* Of an empty one. */
void serve_init(struct serve *s);

/* ---- wake.c --------------------------------------------------------------- */

/* once_http_wake: from the engine's thread; `user` is a struct serve_open. */
void serve_wake(void *user);
/* Calls whose engine has answered go on. */
void serve_answer_woken(struct serve *s);

/* ---- connection.c ---------------------------------------------------------- */

void serve_link_join(struct serve_link *ring, struct serve_link *l);
void serve_link_part(struct serve_link *l);
/* NULL: no memory. */
struct serve_connection *serve_connection_new(struct serve *s, int fd);
void serve_connection_free(struct serve_connection *n);
void serve_connection_prove(struct serve_connection *n);
/* A message begins, in or out, of `size` bytes as far as that is known; a piece
 * of it came; it has ended. */
void serve_connection_start(struct serve_connection *n, size_t size);
void serve_connection_piece(struct serve_connection *n, size_t size);
void serve_connection_stop(struct serve_connection *n);
/* Ends connections that have had their time. */
void serve_connection_turn(struct serve *s);

/* ---- http.c -------------------------------------------------------------- */

struct MHD_Daemon *serve_http(struct serve *s);
/* The call was suspended, and goes on. */
void serve_go_on(struct serve_call *k);
/* Notes what is wrong, if nothing was noted before. */
void serve_refuse(struct serve_call *k, unsigned status, const char *error,
                  const char *format, ...) ONCE_PRINTF(4, 5);
/* For an answer with so many bytes, of --buffers? */
int serve_has_room(const struct serve *s, size_t size);
void serve_refuse_room(struct serve_call *k);
/* Takes `text`, from malloc(). */
enum MHD_Result serve_send(struct serve_call *k, unsigned status,
                           const char *type, char *text, size_t size);
/* Takes `head`, which may be NULL: no memory. */
enum MHD_Result serve_say(struct serve_call *k, unsigned status, json_t *head,
                          once_bytes body);
enum MHD_Result serve_say_do(struct serve_call *k, const char *what);
/* The answer of its exchange, with its body unless it is the handler's own. */
enum MHD_Result serve_say_reply(struct serve_call *k, const once_exchange *x);
enum MHD_Result serve_say_refused(struct serve_call *k);
/* Suspends the call until serve_go_on(). */
enum MHD_Result serve_wait(struct serve_call *k);

/* ---- begin.c, end.c ------------------------------------------------------ */

void serve_check_room(struct serve_call *k);
/* 1: the id is known, or was abandoned, and `*answer` is what was said. `same`:
 * is it the same request? `run`: tells that it runs;
 * `begun`: the engine has answered. */
int serve_known(
    struct serve_call *k,
    int (*same)(const struct serve_call *k, const struct serve_open *o),
    enum MHD_Result (*run)(struct serve_call *k, const struct serve_open *o),
    enum MHD_Result (*begun)(struct serve_call *k), enum MHD_Result *answer);
enum MHD_Result serve_say_abandoned(struct serve_call *k);
/* The store stands still. The claim goes on, and is found by a repeat. */
enum MHD_Result serve_say_late(struct serve_call *k);
/* It is another user's. */
void serve_refuse_owner(struct serve_call *k);
/* The head is there; a piece of the body; all of it. And: woken. */
void serve_begin_head(struct serve_call *k);
void serve_begin_body(struct serve_call *k, const void *data, size_t size);
enum MHD_Result serve_begin(struct serve_call *k);
enum MHD_Result serve_begun(struct serve_call *k);
void serve_end_head(struct serve_call *k);
void serve_end_body(struct serve_call *k, const void *data, size_t size);
enum MHD_Result serve_end(struct serve_call *k);
enum MHD_Result serve_ended(struct serve_call *k);

/* ---- call.c -------------------------------------------------------------- */

void serve_call_head(struct serve_call *k);
enum MHD_Result serve_call_begin(struct serve_call *k);
enum MHD_Result serve_call_begun(struct serve_call *k);
void serve_call_end_head(struct serve_call *k);
/* ONCE_OK: its attempt is there, of its token. */
int serve_call_resume(struct serve_call *k, once_error *err);
/* ONCE_OK: the engine was asked. */
int serve_call_tell(struct serve_call *k, struct serve_open *o);
enum MHD_Result serve_call_ended(struct serve_call *k);
void serve_call_done(once_attempt *a, int rc, void *user);

/* ---- look.c -------------------------------------------------------------- */

enum MHD_Result serve_say_health(struct serve_call *k);
enum MHD_Result serve_say_metrics(struct serve_call *k);
/* /v1/route: its head is there; all of it. */
void serve_route_head(struct serve_call *k);
enum MHD_Result serve_route_say(struct serve_call *k);
/* Counts what a caller was told: a text of Idempotency-Status. */
void serve_tell(struct serve_route *r, const char *status);

/* ---- log.c --------------------------------------------------------------- */

/* Keeps the label of a begin, if there is a log. */
void serve_log_label(struct serve_call *k);
void serve_log(const struct serve *s, const char *label, const once_exchange *x,
               int status);

/* ---- open.c -------------------------------------------------------------- */

/* NULL: no memory. Of the route and owner of `k`; takes its exchange. */
struct serve_open *serve_open_new(struct serve_call *k);
/* By its id from now on, and it may run. 0: no memory. */
int serve_open_enter(struct serve_open *o);
struct serve_open *serve_open_find(const struct serve *s,
                                   const uint8_t id[ONCE_TOKEN_SIZE]);
/* Its handler runs from now on. */
void serve_open_run(struct serve_open *o);
/* What its owner ends it by, while it runs. */
void serve_open_token(const struct serve_open *o,
                      char out[1 + ONCE_EXCHANGE_TOKEN]);
/* Its handler runs no more; it is not found by its id. */
void serve_open_leave(struct serve_open *o);
/* And its memory: a handler that runs is given up. */
void serve_open_free(struct serve_open *o);
/* Its handler was not called: the key becomes free. serve_open_free() follows. */
void serve_open_release(struct serve_open *o);
/* Ends its waiting for another. */
void serve_open_stop(struct serve_open *o);
/* Forgets what was abandoned long ago. */
void serve_gone_turn(struct serve *s);
/* For a minute: a begin that comes late claims nothing. 0: no memory. */
int serve_gone_note(struct serve *s, const uint8_t id[ONCE_TOKEN_SIZE]);
int serve_gone_is(const struct serve *s, const uint8_t id[ONCE_TOKEN_SIZE]);
/* The engine is closed. */
void serve_open_clear(struct serve *s);

/* ---- due.c --------------------------------------------------------------- */

/* Room for one more. 0: no memory. */
int serve_due_reserve(struct serve *s);
void serve_due_add(struct serve_open *o);
void serve_due_remove(struct serve_open *o);

/* ---- turn.c -------------------------------------------------------------- */

/* Ends what has run for too long, and forgets what was abandoned. */
void serve_open_turn(struct serve *s);
/* Ends what processes have left that are dead. */
void serve_owner_turn(struct serve *s);
/* An exchange can go on, and no call waits for it: its connection has ended, which
 * says nothing. What was granted runs, as far as we know, until it is repeated. */
void serve_go_on_alone(struct serve_open *o);
/* Ends the waiting of all claims: their callers are told to come again. */
void serve_open_cancel(struct serve *s);

/* ---- owner.c ------------------------------------------------------------- */

/* Of a connection; serve_owner_drop() when it ends. NULL: no memory. */
struct serve_owner *serve_owner_of(struct serve *s, int fd);
void serve_owner_drop(struct serve *s, struct serve_owner *w);
/* 1: `by` may end what `w` has begun. */
int serve_owner_may(const struct serve_owner *by, const struct serve_owner *w);

/* ---- route.c ------------------------------------------------------------- */

/* The route of a head's "route", of which it is a use; or NULL: the call is
 * refused. */
struct serve_route *serve_route_of(struct serve_call *k);
/* The one of all calls, which has no guard. */
struct serve_route *serve_route_of_calls(struct serve_call *k);
struct serve_route *serve_route_hold(struct serve_route *r);
void serve_route_drop(struct serve_route *r);
int serve_route_name(struct serve *s, const char *text);
/* The label of a begin: how long, or below zero. */
int serve_label(const struct serve_call *k, char *out, size_t max);
/* "1m" in bytes: 1, or 0. */
int serve_read_size(const char *text, uint64_t *size);
void serve_route_clear(struct serve *s);

/* ---- message.c ----------------------------------------------------------- */

/* The head is whole: reads it. Otherwise the call is refused. */
void serve_head_read(struct serve_call *k);
/* A text of the head in UTF-8, NULL if it is not there or no text. */
const char *serve_head_text(struct serve_call *k, const char *name);
/* A text whose characters are bytes; the call is refused if one is none, or CR,
 * LF. NULL: not there, or refused. */
const char *serve_head_bytes(struct serve_call *k, const char *name);
/* "headers", into k->lines. */
void serve_head_lines(struct serve_call *k);
/* The id, 32 digits: 1, or the call is refused. */
int serve_head_id(struct serve_call *k);

#endif /* ONCE_SERVE_SERVE_H */
