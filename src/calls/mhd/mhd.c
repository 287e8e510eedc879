/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mhd.c - routes and requests of libmicrohttpd, on their way to the guard.
 *
 * A request, as libmicrohttpd calls us:
 *
 *            head         body read          granted        answered
 *    START --------> READ ---------> ASK ------------> RUN ---------> STORE
 *     |  |                            | anything else   ^ |              |
 *     |  +-> REFUSED (admit)          v                 | | suspended    v
 *     +----> LIVE (not guarded)      SEND               +-+ by itself   SEND
 *
 * What happens from ASK on is in call.c. It refuses to keep more of a body than
 * the guard allows, and to call a handler before its guard has seen the whole
 * request.
 */
#include "calls/mhd/mhd.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAIN_MAX = 1 << 20, WAIT_MAX = 600000 };

/* ---- The request --------------------------------------------------------- */

static int body_add(once_mhd_call *call, const char *data, size_t size)
{
    size_t room = 2 * call->room;
    char *more;

    if (size > call->room - call->size) {
        if (room < call->size + size)
            room = call->size + size;
        more = realloc(call->body, room);
        if (more == NULL)
            return 0;
        call->body = more;
        call->room = room;
    }
    memcpy(call->body + call->size, data, size);
    call->size += size;
    return 1;
}

/* Reads on past the limit, so that the 413 reaches a client that sends first
 * and listens afterwards; but not for ever. */
static enum MHD_Result read_body(once_mhd_call *call, const struct now *now)
{
    size_t size = *now->size;

    if (size == 0)
        return once__mhd_ask(call, now);
    *now->size = 0;
    if (once_exchange_body(call->exchange, now->data, size) == ONCE_OK)
        return body_add(call, now->data, size) ? MHD_YES : MHD_NO;
    call->dropped += size;
    return call->dropped <= DRAIN_MAX ? MHD_YES : MHD_NO;
}

static enum MHD_Result refused(once_mhd_call *call, const struct now *now)
{
    struct MHD_Response *response = call->refusal;

    if (*now->size > 0) {
        call->dropped += *now->size;
        *now->size = 0;
        return call->dropped <= DRAIN_MAX ? MHD_YES : MHD_NO;
    }
    call->refusal = NULL;
    call->state = SENT;
    return once__mhd_queue(call, call->refusal_status, response);
}

struct lines {
    once_http_header *at;
    size_t n, max;
    int bad;
};

static enum MHD_Result add_line(void *cls, enum MHD_ValueKind kind,
                                const char *key, size_t key_size,
                                const char *value, size_t value_size)
{
    struct lines *l = cls;

    (void)kind;
    if (value == NULL)
        value = "";
    if (strlen(key) != key_size || strlen(value) != value_size)
        l->bad = 1;
    if (l->n < l->max)
        l->at[l->n++] = (once_http_header){key, value};
    return MHD_YES;
}

/* ONCE_HTTP_PASS or _READ; 0: bad; or an error. */
static int examine(once_mhd_call *call, const struct now *now)
{
    once_http_request r = ONCE_HTTP_REQUEST_INIT;
    struct lines l = {NULL, 0, 0, 0};
    int n, rc = ONCE_ENOMEM;

    n = MHD_get_connection_values(call->connection, MHD_HEADER_KIND, NULL,
                                  NULL);
    l.max = n > 0 ? (size_t)n : 0;
    l.at = calloc(l.max + 1, sizeof(*l.at));
    if (l.at == NULL)
        goto out;
    (void)MHD_get_connection_values_n(call->connection, MHD_HEADER_KIND,
                                      add_line, &l);
    rc = 0;
    if (l.bad)
        goto out;
    r.method = now->method;
    r.target = call->target;
    r.headers = l.at;
    r.n = l.n;
    r.server = call->connection;
    rc = call->route->r.lookup
             ? once_exchange_lookup(call->route->guard, &r,
                                    call->route->r.lookup_ms, NULL,
                                    &call->exchange)
             : once_exchange_new(call->route->guard, &r, NULL, &call->exchange);
out:
    free(l.at);
    return rc;
}

static int fits(const struct route *r, const char *url)
{
    return strncmp(url, r->path, r->length) == 0 &&
           (url[r->length] == '\0' || r->path[r->length - 1] == '/');
}

static void find_route(once_mhd_call *call, const char *url)
{
    struct route *r;

    for (r = call->m->routes; r != NULL; r = r->next)
        if (fits(r, url) &&
            (call->route == NULL || r->length > call->route->length))
            call->route = r;
}

static enum MHD_Result start(once_mhd_call *call, const struct now *now)
{
    const once_mhd_route *r;

    find_route(call, now->url);
    if (call->route == NULL)
        return once__mhd_send_plain(call, MHD_HTTP_NOT_FOUND);
    r = &call->route->r;
    if (r->admit != NULL)
        call->refusal = r->admit(r->user, call->connection, now->url,
                                 now->method, &call->refusal_status);
    call->state = call->refusal != NULL ? REFUSED : LIVE;
    if (call->state == REFUSED)
        return MHD_YES;
    if (call->route->guard == NULL)
        return once__mhd_live(call, now);
    switch (examine(call, now)) {
    case ONCE_HTTP_PASS:
        return once__mhd_live(call, now);
    case ONCE_HTTP_READ:
        call->state = READ;
        return MHD_YES;
    case 0:
        return once__mhd_send_plain(call, MHD_HTTP_BAD_REQUEST);
    default:
        return MHD_NO;
    }
}

enum MHD_Result once_mhd_access(void *m, struct MHD_Connection *c,
                                const char *url, const char *method,
                                const char *version, const char *data,
                                size_t *size, void **own)
{
    const struct now now = {url, method, version, data, size};
    once_mhd_call *call = *own;

    (void)m;
    if (call == NULL)
        return MHD_NO; /* No memory, or without once_mhd_options(). */
    call->connection = c;
    call->head = (struct now){url, method, version, NULL, NULL};
    switch (call->state) {
    case START:
        return start(call, &now);
    case REFUSED:
        return refused(call, &now);
    case LIVE:
        return once__mhd_live(call, &now);
    case READ:
        return read_body(call, &now);
    case PROBE:
        return once__mhd_probe(call);
    case RUN:
        return once__mhd_run(call, &now);
    case ASK:
    case STORE:
        return once__mhd_go_on(call, &now);
    default:
        *size = 0;
        return MHD_YES;
    }
}

/* ---- Beginning and end of a request --------------------------------------- */

/* The one place where libmicrohttpd shows a target that is not decoded. What
 * is returned is the first `*own`. */
static void *on_target(void *cls, const char *target, struct MHD_Connection *c)
{
    once_mhd_call *call = calloc(1, sizeof(*call));

    if (call == NULL)
        return NULL;
    call->m = cls;
    call->connection = c;
    call->target = strdup(target);
    if (call->target == NULL) {
        free(call);
        call = NULL;
    }
    return call;
}

/*
 * libmicrohttpd looks at a socket before it calls the handler of a connection
 * that was resumed, and if the client has left, it calls no one: but the work
 * may be done, and then its outcome is to be recorded. The handler is called
 * from here in that case.
 */
static void on_completed(void *cls, struct MHD_Connection *c, void **own,
                         enum MHD_RequestTerminationCode why)
{
    once_mhd_call *call = *own;

    (void)cls;
    (void)c;
    (void)why;
    *own = NULL;
    if (call == NULL)
        return;
    if (call->state == RUN && !call->answered) {
        call->gone = 1;
        (void)once__mhd_run(call, &call->head);
    }
    if (call->route != NULL && call->route->r.ended != NULL)
        call->route->r.ended(call->route->r.user, call, &call->own);
    once__mhd_stream_end(call);
    once_exchange_free(call->exchange);
    if (call->refusal != NULL)
        MHD_destroy_response(call->refusal);
    free(call->body);
    free(call->target);
    free(call);
}

/* ---- The daemon's side ---------------------------------------------------- */

static int fail(once_error *err, int code, const char *text)
{
    if (err != NULL) {
        err->code = code;
        (void)snprintf(err->text, sizeof(err->text), "%s", text);
    }
    return code;
}

int once_mhd_open(once_error *err, once_mhd **out)
{
    once_mhd *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return fail(err, ONCE_ENOMEM, "mhd: no memory");
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->idle, NULL);
    m->options[0] = (struct MHD_OptionItem){MHD_OPTION_URI_LOG_CALLBACK,
                                            (intptr_t)on_target, m};
    m->options[1] = (struct MHD_OptionItem){MHD_OPTION_NOTIFY_COMPLETED,
                                            (intptr_t)on_completed, m};
    m->options[2] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
    *out = m;
    return ONCE_OK;
}

static void route_free(struct route *r)
{
    if (r == NULL)
        return;
    once_guard_close(r->guard);
    free(r->path);
    free(r);
}

static int is_lookup(const once_mhd_route *r)
{
    return r->size > offsetof(once_mhd_route, lookup) && r->lookup != 0;
}

static int is_of_path(const once_guard_options *o)
{
    return o->size > offsetof(once_guard_options, key_space) &&
           o->key_space == ONCE_KEY_SPACE_PATH;
}

static int check_lookup(const once_mhd_route *r, once_engine *e,
                        once_error *err)
{
    if (r->guard == NULL || e == NULL)
        return fail(err, ONCE_EINVAL, "lookup: needs a guard and an engine");
    if (r->guard->scope == NULL)
        return fail(err, ONCE_EINVAL,
                    "lookup: needs a scope: without one anybody could ask "
                    "which keys exist");
    if (is_of_path(r->guard))
        return fail(err, ONCE_EINVAL,
                    "lookup: not with key_space path: a lookup has another "
                    "path than the request");
    return r->size >= sizeof(*r) && r->lookup_ms <= WAIT_MAX
               ? ONCE_OK
               : fail(err, ONCE_EINVAL, "lookup_ms: over ten minutes");
}

static int check_route(const once_mhd_route *r, once_engine *e, once_error *err)
{
    if (r->size < offsetof(once_mhd_route, admit))
        return fail(err, ONCE_EINVAL, "size: too small");
    if (r->path == NULL || r->path[0] != '/')
        return fail(err, ONCE_EINVAL, "path: does not begin with /");
    if (is_lookup(r))
        return check_lookup(r, e, err);
    if (r->handler == NULL)
        return fail(err, ONCE_EINVAL, "handler: there is none");
    if (r->guard != NULL && e == NULL)
        return fail(err, ONCE_EINVAL, "guard: needs an engine");
    return ONCE_OK;
}

static int waits(const once_guard_options *o)
{
    return o != NULL && o->size > offsetof(once_guard_options, in_flight_ms) &&
           o->in_flight_ms > 0;
}

int once_mhd_add(once_mhd *m, once_engine *e, const once_mhd_route *route,
                 once_error *err)
{
    struct route *r = NULL;
    int rc = check_route(route, e, err);

    if (rc != ONCE_OK)
        return rc;
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return fail(err, ONCE_ENOMEM, "route: no memory");
    memcpy(&r->r, route,
           route->size < sizeof(r->r) ? route->size : sizeof(r->r));
    r->length = strlen(route->path);
    r->path = strdup(route->path);
    rc = r->path != NULL ? ONCE_OK : fail(err, ONCE_ENOMEM, "route: no memory");
    if (rc == ONCE_OK && route->guard != NULL)
        rc = once_guard_open(e, route->guard, err, &r->guard);
    if (rc != ONCE_OK)
        goto out;
    r->waits = is_lookup(route) ? r->r.lookup_ms > 0 : waits(route->guard);
    r->next = m->routes;
    m->routes = r;
    r = NULL;
out:
    route_free(r);
    return rc;
}

struct MHD_OptionItem *once_mhd_options(once_mhd *m)
{
    return m->options;
}

void once_mhd_quiet(once_mhd *m)
{
    once_mhd_call *call;

    pthread_mutex_lock(&m->lock);
    m->quiet = 1;
    for (call = m->busy; call != NULL; call = call->next)
        once_exchange_cancel(call->exchange);
    while (m->busy != NULL || m->resuming > 0)
        pthread_cond_wait(&m->idle, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

void once_mhd_close(once_mhd *m)
{
    struct route *r;

    if (m == NULL)
        return;
    pthread_mutex_lock(&m->lock);
    assert(m->busy == NULL);
    while (m->resuming > 0) /* clients that the daemon has cut off */
        pthread_cond_wait(&m->idle, &m->lock);
    pthread_mutex_unlock(&m->lock);
    while ((r = m->routes) != NULL) {
        m->routes = r->next;
        route_free(r);
    }
    pthread_cond_destroy(&m->idle);
    pthread_mutex_destroy(&m->lock);
    free(m);
}
