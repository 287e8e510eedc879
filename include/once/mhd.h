/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mhd.h - <once/http.h> for programs that serve with libmicrohttpd: routes, and
 * a guard in front of those that have one. Link with -lonce-mhd.
 *
 *    once_mhd_open --> once_mhd_add, for each route
 *          |
 *    MHD_start_daemon(flags | MHD_ALLOW_SUSPEND_RESUME, ...,
 *                     once_mhd_access, m,
 *                     MHD_OPTION_ARRAY, once_mhd_options(m), ...)
 *          |
 *    MHD_quiesce_daemon --> once_mhd_quiet --> MHD_stop_daemon -->
 *    once_mhd_close
 *
 * A route's handler is one of libmicrohttpd's (MHD_AccessHandlerCallback) with
 * one argument more, and is called as libmicrohttpd would: once for the head,
 * then with the body, then with an empty piece; it may suspend its connection
 * meanwhile. Where a guard is in front of it that happens after the claim, with
 * the body that was read before it. Two things are different then:
 *
 *  - It answers with once_mhd_answer() or once_mhd_stream(), not with
 *    MHD_queue_response(), which would not wait until the record is durable.
 *  - A handler that returns MHD_NO, or ends without an answer, may have done
 *    anything: the client gets 502 "outcome-unknown", and repeats get 409. A
 *    handler that has done nothing answers with ONCE_HTTP_NOT_APPLIED.
 *
 * No thread of libmicrohttpd waits for a store: connections are suspended
 * meanwhile, but for daemons with MHD_USE_THREAD_PER_CONNECTION, whose threads
 * serve no other client. A client that leaves does not stop its request.
 *
 * libmicrohttpd chooses the reason phrases, sends no header lines without a
 * value, and answers a header with a NUL byte with 400.
 *
 * Errors, details and ownership are as in once.h.
 */
#ifndef ONCE_MHD_H
#define ONCE_MHD_H

#include <microhttpd.h>

#include <once/http.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct once_mhd once_mhd;
typedef struct once_mhd_call once_mhd_call;

/* MHD_AccessHandlerCallback, and `call` to answer with. */
typedef enum MHD_Result once_mhd_handler(void *user, once_mhd_call *call,
                                         struct MHD_Connection *connection,
                                         const char *url, const char *method,
                                         const char *version, const char *data,
                                         size_t *size, void **own);

/*
 * Called with the head of each request of the route, before anything else, so
 * that a client without permission gets no replay either. Returns NULL to admit
 * the request; otherwise the response to send, with `*status`, in the handler's
 * place. The response belongs to the library then. It is not recorded.
 */
typedef struct MHD_Response *once_mhd_admit(void *user,
                                            struct MHD_Connection *connection,
                                            const char *url, const char *method,
                                            unsigned int *status);

/* Called when the request has ended: `*own` is what the handler has set. */
typedef void once_mhd_ended(void *user, once_mhd_call *call, void **own);

/*
 * Called where the outcome of a request is unknown: asks what became of
 * once_exchange_record(), and says so with once_mhd_probed(), now or after it has
 * suspended the connection and was called again. Returns what that has returned,
 * or MHD_YES when it has suspended the connection. If it returns without either,
 * the outcome stays unknown. `*own` is NULL at first, and again when it calls
 * once_mhd_probed(): a handler may follow. `ended` gets it if the client leaves.
 */
typedef enum MHD_Result once_mhd_probe(void *user, once_mhd_call *call,
                                       struct MHD_Connection *connection,
                                       void **own);

typedef struct once_mhd_route {
    size_t size;
    const char *path; /* "/charge": only this; "/orders/": all that begin so */
    once_mhd_handler *handler;
    void *user;                      /* for these four functions            */
    const once_guard_options *guard; /* copied; NULL: not guarded           */
    once_mhd_admit *admit;           /* or NULL                             */
    once_mhd_ended *ended;           /* or NULL                             */
    uint32_t lookup;       /* 1: it tells what became of a request with the key:
                           * see once_exchange_lookup(). No handler is called,
                           * and `handler` may be NULL [0]                  */
    uint32_t lookup_ms;    /* how long such an answer may wait, at most 600000
                           * [0]                                            */
    once_mhd_probe *probe; /* or NULL; needs `probe` of the guard             */
} once_mhd_route;

#define ONCE_MHD_ROUTE_INIT                                                    \
    {                                                                          \
        sizeof(once_mhd_route), NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL \
    }

/* Makes an empty set of routes. The caller ends it with once_mhd_close().
 * Returns ONCE_OK or ONCE_ENOMEM. Since 0.1. */
ONCE_API ONCE_CHECK int once_mhd_open(once_error *err, once_mhd **out);

/*
 * Adds a route, before the daemon is started; the route is copied. The longest
 * path that matches a request is used; a request that matches none gets 404.
 * `e` is the engine of its guard, borrowed until once_mhd_close(), and may be
 * NULL without a guard. Returns ONCE_OK, ONCE_EINVAL (`err` names the member)
 * or ONCE_ENOMEM; after an error the route was not added. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_mhd_add(once_mhd *m, once_engine *e,
                                     const once_mhd_route *route,
                                     once_error *err);

/* Returns options for MHD_OPTION_ARRAY, borrowed until once_mhd_close(). They
 * set MHD_OPTION_URI_LOG_CALLBACK and MHD_OPTION_NOTIFY_COMPLETED, which the
 * program cannot set itself then. Since 0.1. */
ONCE_API struct MHD_OptionItem *once_mhd_options(once_mhd *m);

/* The access handler of the daemon, for MHD_start_daemon(); `m` is a once_mhd.
 * Since 0.1. */
ONCE_API enum MHD_Result once_mhd_access(void *m, struct MHD_Connection *c,
                                         const char *url, const char *method,
                                         const char *version, const char *data,
                                         size_t *size, void **own);

/*
 * To be called before MHD_stop_daemon(), which requires that no connection is
 * suspended. Waits until the stores have answered what they were asked, ends
 * the requests that wait for another attempt, and claims nothing from then on.
 * A handler that answers later blocks its thread until the outcome is recorded.
 * Handlers must resume the connections that they have suspended. Since 0.1.
 */
ONCE_API void once_mhd_quiet(once_mhd *m);

/* Frees the routes, after MHD_stop_daemon() and before the engines are closed.
 * Accepts NULL. Since 0.1. */
ONCE_API void once_mhd_close(once_mhd *m);

/* ---- For handlers -------------------------------------------------------- */

/*
 * Answers, in a handler. All of `a` is copied. With a guard it is sent when it
 * is durable; otherwise at once. Returns what the handler must return: MHD_YES,
 * or MHD_NO if there is no memory or `a` is not a valid answer; the record
 * becomes indeterminate then. Only once for each request. Since 0.1.
 */
ONCE_API enum MHD_Result once_mhd_answer(once_mhd_call *call,
                                         const once_http_answer *a);

/*
 * The same with a body that `read` gives piece by piece, as for
 * MHD_create_response_from_callback(). The body of a stream is not kept: before
 * its first byte leaves it is recorded that the request was completed, and
 * repeats get 409 "response-unavailable". `done`, which may be NULL, is called
 * when `cls` is not needed any more, also after a failure. Since 0.1.
 */
ONCE_API enum MHD_Result once_mhd_stream(once_mhd_call *call,
                                         const once_http_answer *a,
                                         MHD_ContentReaderCallback read,
                                         void *cls,
                                         MHD_ContentReaderFreeCallback done);

/*
 * In place of an answer: the handler does not know what it has done, as if it
 * returned MHD_NO. The client gets the problem "outcome-unknown" with `status`,
 * 502 or 504, and the record becomes indeterminate. Without a guard the
 * connection is closed. Returns what the handler must return. Since 0.1.
 */
ONCE_API enum MHD_Result once_mhd_broken(once_mhd_call *call, int status);

/* What the question has brought, in `probe` of the route: as for
 * once_exchange_probed(). Returns what `probe` must return. Since 0.1. */
ONCE_API enum MHD_Result once_mhd_probed(once_mhd_call *call,
                                         const once_http_answer *a);

/*
 * Returns 1 if the client has left and the handler is called only to finish its
 * work; otherwise 0. The handler must not suspend the connection then; its
 * answer is recorded. This happens only to guarded handlers that have suspended
 * their connection. Since 0.1.
 */
ONCE_API int once_mhd_gone(const once_mhd_call *call);

/* Returns the exchange, for once_exchange_attempt(), once_exchange_status() and
 * once_exchange_hash(); NULL if the route has no guard. Borrowed until the
 * request has ended. Since 0.1. */
ONCE_API const once_exchange *once_mhd_exchange(const once_mhd_call *call);

/* Returns the target as the client sent it, path and query undecoded. Borrowed
 * until the request has ended. Since 0.1. */
ONCE_API const char *once_mhd_target(const once_mhd_call *call);

/* Returns the status that was sent, or 0 if none was: for logs, in `ended`.
 * Since 0.1. */
ONCE_API unsigned int once_mhd_status(const once_mhd_call *call);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_MHD_H */
