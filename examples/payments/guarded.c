/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guarded.c - the same service with Once inside: a charge that is asked for
 * again with the same Idempotency-Key is not charged again, and its answer is
 * the first one (see payments.h).
 *
 * All that the guard has to know of a route stands in one table.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <once/mhd.h>

#include "payments.h"

enum { CONNECTIONS_MAX = 4096 };

const bool way_is_guarded = true;

static const once_guard_options charges = {
    .size = sizeof(once_guard_options),
    .group = "payments.charge",
    .scope_off = 1, /* it asks nobody who he is; yours names the customer */
    .realm = "payments",
    .lease_ms = 10000,
    .max_request = 4096,
};

/* clang-format off */
static const struct {
    const char *path;
    const once_guard_options *guard;
} routes[] = {
    { "/charge",  &charges },
    { "/orders/", NULL     },
    { "/ledger",  NULL     },
    { "/",        NULL     }, /* 404 */
};
/* clang-format on */

struct way {
    struct way_options options;
    once_engine *engine;
    once_mhd *mhd;
    struct MHD_Daemon *daemon;
};

static enum MHD_Result on_request(void *user, once_mhd_call *call,
                                  struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version,
                                  const char *piece, size_t *size, void **own)
{
    const struct way *w = user;

    return w->options.handler(w->options.cls, call, c, path, method, version,
                              piece, size, own);
}

static void on_end(void *user, once_mhd_call *call, void **own)
{
    const struct way *w = user;

    (void)call;
    w->options.ended(own);
}

static void on_event(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "payments: %s\n", text);
}

static int add_routes(struct way *w, once_error *err)
{
    int rc = ONCE_OK;
    size_t i;

    for (i = 0; rc == ONCE_OK && i < sizeof(routes) / sizeof(routes[0]); i++) {
        once_mhd_route r = ONCE_MHD_ROUTE_INIT;

        r.path = routes[i].path;
        r.handler = on_request;
        r.user = w;
        r.guard = routes[i].guard;
        r.ended = on_end;
        rc = once_mhd_add(w->mhd, w->engine, &r, err);
    }
    return rc;
}

static struct MHD_Daemon *listen_on(struct way *w)
{
    const struct way_options *o = &w->options;

    return MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
        once_mhd_access, w->mhd, MHD_OPTION_ARRAY, once_mhd_options(w->mhd),
        MHD_OPTION_SOCK_ADDR, (const struct sockaddr *)o->listen,
        MHD_OPTION_THREAD_POOL_SIZE, o->threads, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, 75u,
        MHD_OPTION_END);
}

struct way *way_open(const struct way_options *o)
{
    once_engine_options engine = ONCE_ENGINE_OPTIONS_INIT;
    struct way *w = calloc(1, sizeof(*w));
    once_error err;
    int rc;

    if (w == NULL)
        return NULL;
    w->options = *o;
    engine.event = on_event;
    rc = once_engine_open(o->store, &engine, &err, &w->engine);
    if (rc == ONCE_OK)
        rc = once_mhd_open(&err, &w->mhd);
    if (rc == ONCE_OK)
        rc = add_routes(w, &err);
    if (rc != ONCE_OK) {
        fprintf(stderr, "payments: %s\n", err.text);
        goto fail;
    }
    w->daemon = listen_on(w);
    if (w->daemon != NULL)
        return w;
    fprintf(stderr, "payments: cannot listen on %s:%u: %s\n", o->address,
            ntohs(o->listen->sin_port), strerror(errno));
fail:
    once_mhd_close(w->mhd);
    once_engine_close(w->engine);
    free(w);
    return NULL;
}

unsigned way_port(const struct way *w)
{
    return MHD_get_daemon_info(w->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
}

void way_close(struct way *w)
{
    once_mhd_quiet(w->mhd);
    MHD_stop_daemon(w->daemon);
    once_mhd_close(w->mhd);
    once_engine_close(w->engine);
    free(w);
}

enum MHD_Result way_answer(struct MHD_Connection *c, struct once_mhd_call *call,
                           const struct reply *r)
{
    once_http_header lines[3] = {{"Content-Type", "application/json"}};
    once_http_answer a = ONCE_HTTP_ANSWER_INIT;

    (void)c;
    if (r->half)
        return MHD_NO; /* Half an answer is none: the outcome is unknown. */
    a.status = (int)r->status;
    a.outcome = r->nothing_done ? ONCE_HTTP_NOT_APPLIED : ONCE_HTTP_BY_STATUS;
    a.headers = lines;
    a.n = 1;
    if (r->location != NULL)
        lines[a.n++] = (once_http_header){"Location", r->location};
    if (r->allow != NULL)
        lines[a.n++] = (once_http_header){"Allow", r->allow};
    a.body = (once_bytes){r->body, strlen(r->body)};
    return once_mhd_answer(call, &a);
}

bool way_is_gone(const struct once_mhd_call *call)
{
    return once_mhd_gone(call) != 0;
}
