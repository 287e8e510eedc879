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
 *    MHD_quiesce_daemon --> once_mhd_quiet --> MHD_stop_daemon --> once_mhd_close
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
 *    handler that has done nothing says so: ONCE_HTTP_NOT_APPLIED.
 *
 * No thread of libmicrohttpd waits for a store: connections are suspended
 * meanwhile, but for daemons with MHD_USE_THREAD_PER_CONNECTION, whose threads
 * serve nobody else. A client that leaves does not stop its request.
 *
 * What libmicrohttpd decides: reason phrases are its own; header lines without
 * a value are not sent; a header with a NUL byte gets 400.
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
 * Asked about the head of each request of the route, before anything else: who
 * may not come in gets no replay either. NULL lets the request in; otherwise
 * the response that is sent, with `*status`, in the handler's place. It is
 * taken. Not recorded.
 */
typedef struct MHD_Response *once_mhd_admit(void *user,
                                            struct MHD_Connection *connection,
                                            const char *url, const char *method,
                                            unsigned int *status);

/* The request has ended: `*own` is what the handler left there. */
typedef void once_mhd_ended(void *user, once_mhd_call *call, void **own);

typedef struct once_mhd_route {
    size_t size;
    const char *path; /* "/charge": this one; "/orders/": all that begin so */
    once_mhd_handler *handler;
    void *user;                      /* for these three functions           */
    const once_guard_options *guard; /* copied; NULL: not guarded           */
    once_mhd_admit *admit;           /* or NULL                             */
    once_mhd_ended *ended;           /* or NULL                             */
} once_mhd_route;

#define ONCE_MHD_ROUTE_INIT                                                    \
    {                                                                          \
        sizeof(once_mhd_route), NULL, NULL, NULL, NULL, NULL, NULL             \
    }

/* Returns ONCE_OK or ONCE_ENOMEM. Since 0.1. */
ONCE_API ONCE_CHECK int once_mhd_open(once_error *err, once_mhd **out);

/*
 * Adds a route, before the daemon is started. The longest path that fits a
 * request wins; a request that none fits gets 404. `e` is the engine of its
 * guard, borrowed until once_mhd_close(), and may be NULL without one. Returns
 * ONCE_OK, ONCE_EINVAL (which names the member), ONCE_ENOMEM. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_mhd_add(once_mhd *m, once_engine *e,
                                     const once_mhd_route *route,
                                     once_error *err);

/* For MHD_OPTION_ARRAY; borrowed until once_mhd_close(). It takes
 * MHD_OPTION_URI_LOG_CALLBACK and MHD_OPTION_NOTIFY_COMPLETED. Since 0.1. */
ONCE_API struct MHD_OptionItem *once_mhd_options(once_mhd *m);

/* The handler of the daemon; `m` is a once_mhd. Since 0.1. */
ONCE_API enum MHD_Result once_mhd_access(void *m, struct MHD_Connection *c,
                                         const char *url, const char *method,
                                         const char *version, const char *data,
                                         size_t *size, void **own);

/*
 * Before MHD_stop_daemon(), which must not find a connection that we have
 * suspended: waits until the stores have answered what they were asked, ends
 * those that wait for another attempt, and claims nothing from then on. After
 * it an outcome that still comes is stored while its thread waits. Connections
 * that handlers have suspended are theirs to resume. Since 0.1.
 */
ONCE_API void once_mhd_quiet(once_mhd *m);

/* After MHD_stop_daemon(), and before the engines. Accepts NULL. Since 0.1. */
ONCE_API void once_mhd_close(once_mhd *m);

/* ---- For handlers -------------------------------------------------------- */

/*
 * Answers, in a handler. All of `a` is copied. Guarded, it is sent when it is
 * durable; otherwise at once. Returns what the handler is to return: MHD_YES,
 * or MHD_NO if there is no memory or `a` cannot be an answer, after which the
 * outcome is not known. Only once for each request. Since 0.1.
 */
ONCE_API enum MHD_Result once_mhd_answer(once_mhd_call *call,
                                         const once_http_answer *a);

/*
 * The same with a body that `read` gives piece by piece; see
 * MHD_create_response_from_callback() about it. A stream is never kept: that it
 * is not is recorded before its first byte leaves, and repeats get 409
 * "response-unavailable". `done`, which may be NULL, is called when `cls` is not
 * needed any more, also on failure. Since 0.1.
 */
ONCE_API enum MHD_Result once_mhd_stream(once_mhd_call *call,
                                         const once_http_answer *a,
                                         MHD_ContentReaderCallback read,
                                         void *cls,
                                         MHD_ContentReaderFreeCallback done);

/*
 * The handler ends without an answer and does not know what it has done, as if
 * it returned MHD_NO; `status`, 502 or 504, goes to the client with the problem
 * "outcome-unknown". Where there is no guard the connection is closed. Returns
 * what the handler is to return. In place of an answer. Since 0.1.
 */
ONCE_API enum MHD_Result once_mhd_broken(once_mhd_call *call, int status);

/*
 * 1: the client has left, and the handler is called to bring its work to an
 * end. It must not suspend the connection; its answer is recorded. This happens
 * to guarded handlers that have suspended their connection before. Since 0.1.
 */
ONCE_API int once_mhd_gone(const once_mhd_call *call);

/* For once_exchange_attempt(), _status() and _hash(); NULL if the route has no
 * guard. Since 0.1. */
ONCE_API const once_exchange *once_mhd_exchange(const once_mhd_call *call);

/* The target as the client sent it, path and query undecoded. Since 0.1. */
ONCE_API const char *once_mhd_target(const once_mhd_call *call);

/* The status that was sent, or 0: for logs, in `ended`. Since 0.1. */
ONCE_API unsigned int once_mhd_status(const once_mhd_call *call);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_MHD_H */
