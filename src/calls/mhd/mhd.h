/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mhd.h - what the two files of the adapter share. Nothing of it is public.
 *
 *    mhd.c   the daemon's side: routes, requests until the claim, their end
 *    call.c  the handler's side: claim, handler, answer, store
 *
 * Both use public headers only, so that they can live in a library of their
 * own.
 */
#ifndef ONCE_CALLS_MHD_MHD_H
#define ONCE_CALLS_MHD_MHD_H

#include <once/mhd.h>

#include <pthread.h>
#include <semaphore.h>

struct route {
    once_mhd_route r;
    char *path;
    size_t length;
    once_guard *guard;
    int waits; /* a repeat waits for the first */
    struct route *next;
};

struct once_mhd {
    struct route *routes;
    struct MHD_OptionItem options[3];
    pthread_mutex_t lock;
    pthread_cond_t idle;
    once_mhd_call *busy; /* that may be cancelled                           */
    unsigned resuming;   /* what once_mhd_quiet() has to wait for besides   */
    int quiet;
};

enum once__mhd_state {
    START,
    REFUSED,
    LIVE,
    READ,
    ASK,
    PROBE,
    RUN,
    STORE,
    SENT
};
enum once__mhd_feed { HEAD, BODY, END }; /* what the handler gets next */

/* The body of an answer that comes from the handler piece by piece. */
struct stream {
    MHD_ContentReaderCallback read;
    void *cls;
    MHD_ContentReaderFreeCallback done;
};

/* What libmicrohttpd called us with. */
struct now {
    const char *url, *method, *version, *data;
    size_t *size;
};

struct once_mhd_call {
    once_mhd *m;
    once_mhd_call *next, **link; /* in `busy`                               */
    struct MHD_Connection *connection;
    char *target;
    struct route *route;
    enum once__mhd_state state;
    once_exchange *exchange;
    int failed;   /* no memory, where we could not say so                   */
    int answered; /* the handler has                                        */
    int probed;   /* so has the route's probe                               */
    unsigned status;
    struct MHD_Response *refusal;
    unsigned refusal_status;

    char *body;
    size_t size, room, fed, dropped;
    enum once__mhd_feed feed;
    void *own; /* the handler's */
    struct stream stream;
    int broken;      /* the handler's status for it, or 0 */
    int gone;        /* there is no connection any more */
    struct now head; /* of libmicrohttpd's last call; without the data */
    int threaded;    /* the connection has a thread of its own */
    int listed;      /* in `busy` */
    sem_t *woken;    /* waited for, in place of a suspended connection */
    sem_t semaphore; /* where that points to; else it is not in use */
};

/* ---- call.c -------------------------------------------------------------- */

/* All return what libmicrohttpd is to get. The first three go on with a call:
 * ask the store, after it was asked, and calling the handler. */
enum MHD_Result once__mhd_ask(once_mhd_call *call, const struct now *now);
enum MHD_Result once__mhd_go_on(once_mhd_call *call, const struct now *now);
enum MHD_Result once__mhd_run(once_mhd_call *call, const struct now *now);
/* Asks what became of a record. */
enum MHD_Result once__mhd_probe(once_mhd_call *call);
/* Straight through to the handler, as the pieces come. */
enum MHD_Result once__mhd_live(once_mhd_call *call, const struct now *now);
enum MHD_Result once__mhd_send_plain(once_mhd_call *call, unsigned status);
/* Takes the response, which may be NULL. */
enum MHD_Result once__mhd_queue(once_mhd_call *call, unsigned status,
                                struct MHD_Response *response);
void once__mhd_stream_end(once_mhd_call *call);

#endif /* ONCE_CALLS_MHD_MHD_H */
