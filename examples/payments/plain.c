/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain.c - the service as it is: each request that comes in is carried out
 * (see payments.h).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "payments.h"

enum { CONNECTIONS_MAX = 4096, BLOCK = 4096 };

const bool way_is_guarded = false;

struct way {
    struct way_options options;
    struct MHD_Daemon *daemon;
};

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c,
                                  const char *path, const char *method,
                                  const char *version, const char *piece,
                                  size_t *size, void **own)
{
    const struct way *w = cls;

    return w->options.handler(w->options.cls, NULL, c, path, method, version,
                              piece, size, own);
}

static void on_end(void *cls, struct MHD_Connection *c, void **own,
                   enum MHD_RequestTerminationCode why)
{
    const struct way *w = cls;

    (void)c;
    (void)why;
    w->options.ended(own);
}

struct way *way_open(const struct way_options *o)
{
    struct way *w = calloc(1, sizeof(*w));

    if (w == NULL)
        return NULL;
    w->options = *o;
    w->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
        on_request, w, MHD_OPTION_SOCK_ADDR, (const struct sockaddr *)o->listen,
        MHD_OPTION_THREAD_POOL_SIZE, o->threads, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, 75u,
        MHD_OPTION_NOTIFY_COMPLETED, on_end, w, MHD_OPTION_END);
    if (w->daemon == NULL) {
        fprintf(stderr, "payments: cannot listen on %s:%u: %s\n", o->address,
                ntohs(o->listen->sin_port), strerror(errno));
        free(w);
        w = NULL;
    }
    return w;
}

unsigned way_port(const struct way *w)
{
    return MHD_get_daemon_info(w->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
}

void way_close(struct way *w)
{
    MHD_stop_daemon(w->daemon);
    free(w);
}

/* Ends the connection after the first half of the answer. */
static ssize_t half_read(void *cls, uint64_t at, char *out, size_t max)
{
    const char *text = cls;
    size_t left = strlen(text) / 2 - (size_t)at;

    if (left == 0)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (left > max)
        left = max;
    memcpy(out, text + at, left);
    return (ssize_t)left;
}

static struct MHD_Response *response_of(const struct reply *r)
{
    size_t size = strlen(r->body);
    struct MHD_Response *m;
    char *text;

    if (!r->half)
        return MHD_create_response_from_buffer(size, (void *)(uintptr_t)r->body,
                                               MHD_RESPMEM_MUST_COPY);
    text = strdup(r->body);
    if (text == NULL)
        return NULL;
    m = MHD_create_response_from_callback(size, BLOCK, half_read, text, free);
    if (m == NULL)
        free(text);
    return m;
}

/* docs/http.md, 3.5: what the first request was answered, and about which. */
static bool add_applied(struct MHD_Response *m, const char *record)
{
    return MHD_add_response_header(m, "Idempotency-Record", record) &&
           MHD_add_response_header(m, "Idempotency-Outcome", "applied") &&
           MHD_add_response_header(m, "Idempotency-Recorded-Status", "201");
}

enum MHD_Result way_answer(struct MHD_Connection *c, struct once_mhd_call *call,
                           const struct reply *r)
{
    struct MHD_Response *m = response_of(r);
    enum MHD_Result rc = MHD_NO;

    (void)call;
    if (m == NULL)
        return MHD_NO;
    if (MHD_add_response_header(m, "Content-Type", "application/json") &&
        (r->location == NULL ||
         MHD_add_response_header(m, "Location", r->location)) &&
        (r->allow == NULL || MHD_add_response_header(m, "Allow", r->allow)) &&
        (r->record == NULL || add_applied(m, r->record)))
        rc = MHD_queue_response(c, r->status, m);
    MHD_destroy_response(m);
    return rc;
}

bool way_is_gone(const struct once_mhd_call *call)
{
    (void)call;
    return false;
}
