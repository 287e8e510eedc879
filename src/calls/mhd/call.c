/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c - the guard of <once/http.h> in front of a handler of libmicrohttpd.
 *
 *     mhd.c          granted        answered
 *    -------> ASK ------------> RUN ---------> STORE
 *            (and again behind PROBE)
 *              | anything else   ^ |              |
 *              v                 | | suspended    v
 *             SEND               +-+ by itself   SEND
 *
 * In ASK and STORE the connection is suspended, and `busy` in our list, until
 * the engine's thread resumes it. Everything else of a call belongs to the
 * thread of libmicrohttpd that serves its connection.
 *
 * It refuses to suspend anything after once_mhd_quiet(): from then on a thread
 * waits for the store, because a suspended connection would not let the daemon
 * end, and an outcome must not be lost. Where each connection has a thread of
 * its own, that thread waits always.
 */
#include "calls/mhd/mhd.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { STREAM_BLOCK = 4096 };

/* ---- Suspended and resumed ----------------------------------------------- */

/* These two with the lock held. */
static void enter(once_mhd_call *call)
{
    once_mhd *m = call->m;

    call->listed = 1;
    call->next = m->busy;
    call->link = &m->busy;
    if (call->next != NULL)
        call->next->link = &call->next;
    m->busy = call;
}

static void leave(once_mhd_call *call)
{
    if (!call->listed)
        return;
    call->listed = 0;
    if (call->next != NULL)
        call->next->link = call->link;
    *call->link = call->next;
    pthread_cond_broadcast(&call->m->idle);
}

/* On the engine's thread. Once the caller knows, the call may be gone; until
 * `resuming` is 0 again, the daemon must not be stopped. */
static void wake(void *user)
{
    once_mhd_call *call = user;
    once_mhd *m = call->m;
    sem_t *woken = call->woken;

    pthread_mutex_lock(&m->lock);
    leave(call);
    m->resuming++;
    pthread_mutex_unlock(&m->lock);
    if (woken != NULL)
        (void)sem_post(woken);
    else
        MHD_resume_connection(call->connection);
    pthread_mutex_lock(&m->lock);
    m->resuming--;
    pthread_cond_broadcast(&m->idle);
    pthread_mutex_unlock(&m->lock);
}

/* 0: it is too late for that. A connection that has a thread of its own is not
 * suspended: libmicrohttpd 0.9.75 would not wake it, and its thread may wait. */
static int suspend(once_mhd_call *call)
{
    once_mhd *m = call->m;
    int may;

    pthread_mutex_lock(&m->lock);
    may = !m->quiet;
    if (may && !call->threaded)
        MHD_suspend_connection(call->connection);
    if (may)
        enter(call);
    pthread_mutex_unlock(&m->lock);
    return may;
}

/* What was to be waited for does not come. */
static void unsuspend(once_mhd_call *call)
{
    pthread_mutex_lock(&call->m->lock);
    leave(call);
    pthread_mutex_unlock(&call->m->lock);
    if (!call->threaded)
        MHD_resume_connection(call->connection);
}

/* Waits on this thread for what was begun with `rc`; the step. */
static int wait_for(once_mhd_call *call, int rc)
{
    if (rc != ONCE_HTTP_WAIT)
        return rc;
    while (sem_wait(call->woken) != 0)
        assert(errno == EINTR);
    return once_exchange_step(call->exchange);
}

static int begin_wait(once_mhd_call *call)
{
    if (sem_init(&call->semaphore, 0, 0) != 0)
        return 0;
    call->woken = &call->semaphore;
    return 1;
}

static void end_wait(once_mhd_call *call)
{
    (void)sem_destroy(call->woken);
    call->woken = NULL;
}

/* ---- Sending ------------------------------------------------------------- */

void once__mhd_stream_end(once_mhd_call *call)
{
    if (call->stream.done != NULL)
        call->stream.done(call->stream.cls);
    memset(&call->stream, 0, sizeof(call->stream));
}

/* The response takes what `cls` of a stream points to. */
static struct MHD_Response *response_of(once_mhd_call *call,
                                        const once_http_answer *a,
                                        enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *out;
    size_t i;

    if (a->streamed) {
        out = MHD_create_response_from_callback(
            MHD_SIZE_UNKNOWN, STREAM_BLOCK, call->stream.read, call->stream.cls,
            call->stream.done);
        if (out != NULL)
            memset(&call->stream, 0, sizeof(call->stream));
    } else {
        out = MHD_create_response_from_buffer(
            a->body.size, (void *)(uintptr_t)a->body.data, mode);
    }
    /* A line that libmicrohttpd does not take would spoil the message. */
    for (i = 0; out != NULL && i < a->n; i++)
        (void)MHD_add_response_header(out, a->headers[i].name,
                                      a->headers[i].value);
    return out;
}

enum MHD_Result once__mhd_queue(once_mhd_call *call, unsigned status,
                                struct MHD_Response *response)
{
    enum MHD_Result rc = MHD_NO;

    if (response == NULL)
        return MHD_NO;
    rc = MHD_queue_response(call->connection, status, response);
    MHD_destroy_response(response);
    if (rc == MHD_YES)
        call->status = status;
    return rc;
}

/* The exchange, and with it the body, lives until the request has ended. What
 * was to be a stream is none if its mark could not be stored. */
static enum MHD_Result send_reply(once_mhd_call *call)
{
    const once_http_answer *a = once_exchange_reply(call->exchange);

    call->state = SENT;
    if (!a->streamed)
        once__mhd_stream_end(call);
    return once__mhd_queue(call, (unsigned)a->status,
                           response_of(call, a, MHD_RESPMEM_PERSISTENT));
}

enum MHD_Result once__mhd_send_plain(once_mhd_call *call, unsigned status)
{
    static char text[] = "there is nothing here\n";
    const char *body = status == MHD_HTTP_NOT_FOUND ? text : "";

    call->state = SENT;
    return once__mhd_queue(
        call, status,
        MHD_create_response_from_buffer(strlen(body), (void *)(uintptr_t)body,
                                        MHD_RESPMEM_PERSISTENT));
}

/* ---- The handler --------------------------------------------------------- */

static enum MHD_Result call_handler(once_mhd_call *call, const struct now *now,
                                    const char *data, size_t *size)
{
    const once_mhd_route *r = &call->route->r;

    return r->handler(r->user, call, call->connection, now->url, now->method,
                      now->version, data, size, &call->own);
}

static int is_suspended(once_mhd_call *call)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        call->connection, MHD_CONNECTION_INFO_CONNECTION_SUSPENDED);

    return !call->gone && info != NULL && info->suspended != MHD_NO;
}

/* Gives the exchange the handler's answer; NULL: there is none. */
static int report(once_mhd_call *call, const once_http_answer *a)
{
    int status = call->broken != 0 ? call->broken : MHD_HTTP_BAD_GATEWAY;

    return a != NULL ? once_exchange_answer(call->exchange, a, wake, call)
                     : once_exchange_broken(call->exchange, status, wake, call);
}

/* Returns a step or an error; WAIT: the connection is suspended. */
static int conclude(once_mhd_call *call, const once_http_answer *a)
{
    int rc, listed;

    if (once_exchange_step(call->exchange) == ONCE_HTTP_PASS)
        return report(call, a);
    listed = suspend(call);
    if (listed && !call->threaded) {
        rc = report(call, a);
        if (rc != ONCE_HTTP_WAIT)
            unsuspend(call);
        return rc;
    }
    rc = ONCE_ENOMEM;
    if (begin_wait(call)) {
        rc = wait_for(call, report(call, a));
        end_wait(call);
    }
    if (listed)
        unsuspend(
            call); /* It was not woken if there was nothing to wait for. */
    return rc;
}

/* The handler has ended without an answer. */
static enum MHD_Result broken(once_mhd_call *call)
{
    int rc;

    once__mhd_stream_end(call);
    if (call->gone)
        return MHD_NO; /* The exchange will be freed, and so given up. */
    rc = conclude(call, NULL);
    call->answered = 1;
    call->state = STORE;
    if (rc == ONCE_HTTP_SEND)
        return send_reply(call);
    if (rc == ONCE_HTTP_DROP)
        return MHD_NO;
    call->failed = rc < 0; /* reported when the connection is resumed */
    return MHD_YES;
}

/* One call of the handler; 1 if there may be another now. */
static int feed(once_mhd_call *call, const struct now *now,
                enum MHD_Result *result)
{
    enum once__mhd_feed what = call->feed;
    size_t left = what == BODY ? call->size - call->fed : 0, size = left;

    *result = call_handler(call, now,
                           what == BODY ? call->body + call->fed : NULL, &size);
    if (call->answered || *result != MHD_YES)
        return 0;
    if (what == BODY)
        call->fed += left - size;
    if (what != END)
        call->feed = call->fed < call->size ? BODY : END;
    return !is_suspended(call) && !(what == BODY && size == left) &&
           what != END;
}

/* Calls the handler as libmicrohttpd would have done. */
enum MHD_Result once__mhd_run(once_mhd_call *call, const struct now *now)
{
    enum MHD_Result rc;
    enum once__mhd_feed last;

    do
        last = call->feed;
    while (feed(call, now, &rc));
    if (call->answered)
        return MHD_YES;
    if (rc != MHD_YES || (last == END && !is_suspended(call)))
        return broken(call);
    return MHD_YES;
}

/* Straight through, as the pieces come. */
enum MHD_Result once__mhd_live(once_mhd_call *call, const struct now *now)
{
    return call_handler(call, now, now->data, now->size);
}

/* Without a guard there is nothing to wait for. */
static enum MHD_Result answer_now(once_mhd_call *call,
                                  const once_http_answer *a)
{
    call->state = SENT;
    return once__mhd_queue(call, (unsigned)a->status,
                           response_of(call, a, MHD_RESPMEM_MUST_COPY));
}

/* An exchange whose client has left, until its outcome is recorded. */
struct orphan {
    once_mhd *m;
    once_exchange *exchange;
};

static void orphan_end(void *user)
{
    struct orphan *o = user;
    once_mhd *m = o->m;

    once_exchange_free(o->exchange);
    free(o);
    pthread_mutex_lock(&m->lock);
    m->resuming--;
    pthread_cond_broadcast(&m->idle);
    pthread_mutex_unlock(&m->lock);
}

static enum MHD_Result record_orphan(once_mhd_call *call,
                                     const once_http_answer *a)
{
    struct orphan *o = malloc(sizeof(*o));
    once_mhd *m = call->m;

    if (o == NULL)
        return MHD_NO;
    o->m = m;
    o->exchange = call->exchange;
    call->exchange = NULL;
    pthread_mutex_lock(&m->lock);
    m->resuming++;
    pthread_mutex_unlock(&m->lock);
    if (once_exchange_answer(o->exchange, a, orphan_end, o) != ONCE_HTTP_WAIT)
        orphan_end(o);
    return MHD_YES;
}

static enum MHD_Result answer(once_mhd_call *call, const once_http_answer *a)
{
    int rc;

    assert(!call->answered && (call->state == LIVE || call->state == RUN));
    call->answered = 1;
    if (call->gone)
        return record_orphan(call, a);
    if (call->exchange == NULL)
        return answer_now(call, a);
    rc = conclude(call, a);
    if (rc == ONCE_HTTP_SEND)
        return send_reply(call);
    call->answered = rc == ONCE_HTTP_WAIT;
    if (call->answered)
        call->state = STORE;
    return call->answered ? MHD_YES : MHD_NO;
}

enum MHD_Result once_mhd_answer(once_mhd_call *call, const once_http_answer *a)
{
    assert(!a->streamed);
    return answer(call, a);
}

enum MHD_Result once_mhd_stream(once_mhd_call *call, const once_http_answer *a,
                                MHD_ContentReaderCallback read, void *cls,
                                MHD_ContentReaderFreeCallback done)
{
    once_http_answer streamed = *a;
    enum MHD_Result rc;

    streamed.streamed = 1;
    call->stream = (struct stream){read, cls, done};
    rc = answer(call, &streamed);
    if (rc != MHD_YES || (call->state == SENT && call->stream.read != NULL))
        once__mhd_stream_end(call);
    return rc;
}

enum MHD_Result once_mhd_broken(once_mhd_call *call, int status)
{
    assert(status == MHD_HTTP_BAD_GATEWAY ||
           status == MHD_HTTP_GATEWAY_TIMEOUT);
    call->broken = status;
    return MHD_NO;
}

/* ---- The claim ----------------------------------------------------------- */

static int is_threaded(const once_mhd_call *call)
{
    const union MHD_ConnectionInfo *c =
        MHD_get_connection_info(call->connection, MHD_CONNECTION_INFO_DAEMON);
    const union MHD_DaemonInfo *d =
        MHD_get_daemon_info(c->daemon, MHD_DAEMON_INFO_FLAGS);

    return (d->flags & MHD_USE_THREAD_PER_CONNECTION) != 0;
}

static enum MHD_Result ask_and_wait(once_mhd_call *call, const struct now *now)
{
    int rc = ONCE_ENOMEM;

    if (begin_wait(call)) {
        rc = wait_for(call, once_exchange_claim(call->exchange, wake, call));
        end_wait(call);
    }
    unsuspend(call);
    return rc < 0 ? MHD_NO : once__mhd_go_on(call, now);
}

enum MHD_Result once__mhd_ask(once_mhd_call *call, const struct now *now)
{
    int rc;

    call->threaded = is_threaded(call);
    if (!suspend(call))
        return MHD_NO; /* The daemon ends: nothing is begun any more. */
    call->state = ASK;
    if (call->threaded)
        return ask_and_wait(call, now);
    rc = once_exchange_claim(call->exchange, wake, call);
    if (rc != ONCE_HTTP_WAIT) {
        call->failed = rc < 0;
        unsuspend(call);
    }
    return MHD_YES;
}

/* Like nginx: who has waited and left does not begin anything. */
static int client_has_left(once_mhd_call *call)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        call->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    char byte;
    ssize_t n = recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 ||
           (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* The store has answered, or need not be asked. */
enum MHD_Result once__mhd_go_on(once_mhd_call *call, const struct now *now)
{
    int step = call->failed ? 0 : once_exchange_step(call->exchange);

    if (step == ONCE_HTTP_SEND)
        return send_reply(call);
    if (step == ONCE_HTTP_PROBE)
        return once__mhd_probe(call);
    if (step == ONCE_HTTP_RUN && call->route->waits && client_has_left(call)) {
        once_exchange_abandon(call->exchange);
        return MHD_NO;
    }
    if (step != ONCE_HTTP_RUN && step != ONCE_HTTP_PASS)
        return MHD_NO;
    call->state = RUN;
    return once__mhd_run(call, now);
}

/* ---- What became of it ----------------------------------------------------- */

enum MHD_Result once__mhd_probe(once_mhd_call *call)
{
    const once_mhd_route *r = &call->route->r;
    enum MHD_Result rc;

    call->state = PROBE;
    if (r->probe == NULL)
        return once_mhd_probed(call, NULL);
    rc = r->probe(r->user, call, call->connection, &call->own);
    if (call->probed || (rc == MHD_YES && is_suspended(call)))
        return rc;
    return once_mhd_probed(call, NULL);
}

/* Nothing is decided any more when the daemon ends. */
static enum MHD_Result probed_late(once_mhd_call *call)
{
    if (once_exchange_probed(call->exchange, NULL, wake, call) < 0)
        return MHD_NO;
    return once__mhd_go_on(call, &call->head);
}

static enum MHD_Result probed_and_wait(once_mhd_call *call,
                                       const once_http_answer *a)
{
    int rc = ONCE_ENOMEM;

    if (begin_wait(call)) {
        rc =
            wait_for(call, once_exchange_probed(call->exchange, a, wake, call));
        end_wait(call);
    }
    unsuspend(call);
    return rc < 0 ? MHD_NO : once__mhd_go_on(call, &call->head);
}

enum MHD_Result once_mhd_probed(once_mhd_call *call, const once_http_answer *a)
{
    int rc;

    assert(!call->probed && call->state == PROBE && call->own == NULL);
    call->probed = 1;
    if (!suspend(call))
        return probed_late(call);
    call->state = ASK; /* the store answers, and it goes on from there */
    if (call->threaded)
        return probed_and_wait(call, a);
    rc = once_exchange_probed(call->exchange, a, wake, call);
    if (rc != ONCE_HTTP_WAIT) {
        call->failed = rc < 0;
        unsuspend(call);
    }
    return MHD_YES;
}

/* ---- For handlers --------------------------------------------------------- */

const once_exchange *once_mhd_exchange(const once_mhd_call *call)
{
    return call->exchange;
}

const char *once_mhd_target(const once_mhd_call *call)
{
    return call->target;
}

unsigned int once_mhd_status(const once_mhd_call *call)
{
    return call->status;
}

int once_mhd_gone(const once_mhd_call *call)
{
    return call->gone;
}
