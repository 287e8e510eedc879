/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.c - a request in, an answer out.
 *
 * A message is one line of JSON, a line feed and the raw body, in both
 * directions. The head is kept until it is whole, and refused when it is too
 * long; the body goes on piece by piece.
 *
 * No 1xx is sent: one who expects "100 Continue" gets a 417, and repeats.
 *
 * While the store is asked the connection is suspended, and the loop resumes it.
 */
#include "programs/serve/serve.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

enum { MEMORY = 32768, BACKLOG = 1024, RETRY_S = 1 };

/* What each kind of call does: when its head is there, with a piece of its body,
 * when it is whole, and when the engine has answered. */
static const struct {
    const char *path;
    void (*head)(struct serve_call *k);
    void (*body)(struct serve_call *k, const void *data, size_t size);
    enum MHD_Result (*whole)(struct serve_call *k);
    enum MHD_Result (*woken)(struct serve_call *k);
} calls[] = {
    [SERVE_BEGIN] = {"/v1/begin", serve_begin_head, serve_begin_body,
                     serve_begin, serve_begun},
    [SERVE_END] = {"/v1/end", serve_end_head, serve_end_body, serve_end,
                   serve_ended},
    [SERVE_BROKEN] = {"/v1/broken", serve_end_head, NULL, serve_end,
                      serve_ended},
    [SERVE_ABANDON] = {"/v1/abandon", serve_end_head, NULL, serve_end,
                       serve_ended},
    [SERVE_CALL_BEGIN] = {"/v1/call/begin", serve_call_head, NULL,
                          serve_call_begin, serve_call_begun},
    [SERVE_CALL_END] = {"/v1/call/end", serve_end_head, serve_end_body,
                        serve_end, serve_ended},
    [SERVE_ROUTE] = {"/v1/route", serve_route_head, NULL, serve_route_say,
                     NULL},
};
enum { CALLS = sizeof(calls) / sizeof(calls[0]) };

/* What GET answers. */
static const struct {
    const char *path;
    enum MHD_Result (*say)(struct serve_call *k);
} pages[] = {{"/v1/health", serve_say_health}, {"/metrics", serve_say_metrics}};
enum { PAGES = sizeof(pages) / sizeof(pages[0]) };

/* ---- In ---------------------------------------------------------------------- */

static int is_bearer(const struct serve_call *k)
{
    const char *line =
        MHD_lookup_connection_value(k->c, MHD_HEADER_KIND, "Authorization");
    size_t n = strlen(k->serve->bearer);

    if (n == 0)
        return 1;
    return line != NULL && strlen(line) == 7 + n &&
           strncmp(line, "Bearer ", 7) == 0 &&
           CRYPTO_memcmp(line + 7, k->serve->bearer, n) == 0;
}

static void admit_get(struct serve_call *k, const char *path)
{
    size_t i;

    for (i = 0; i < PAGES; i++)
        if (strcmp(path, pages[i].path) == 0)
            k->page = pages[i].say;
}

/* By its first line and its header alone. */
static void admit(struct serve_call *k, const char *method, const char *path)
{
    int i;

    if (k->connection == NULL || k->connection->owner == NULL) {
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
        return;
    }
    k->owner = k->connection->owner;

    if (!is_bearer(k)) {
        serve_refuse(
            k, MHD_HTTP_UNAUTHORIZED, "bearer",
            "\"Authorization: Bearer\" is missing, or its token is not "
            "the first line of --token-file.");
        return;
    }
    serve_connection_prove(k->connection);
    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
        admit_get(k, path);
    if (k->page != NULL)
        return;
    for (i = 0; i < CALLS && strcmp(path, calls[i].path) != 0; i++)
        ;
    if (i == CALLS)
        serve_refuse(k, MHD_HTTP_NOT_FOUND, "not-found",
                     "There is no %.100s: docs/serve.md lists the calls.",
                     path);
    else if (strcmp(method, "POST") != 0)
        serve_refuse(k, MHD_HTTP_METHOD_NOT_ALLOWED, "method",
                     "%s is asked by POST, not by %.20s.", path, method);
    else
        k->kind = (enum serve_kind)i;
}

static void add_head(struct serve_call *k, const char *data, size_t size)
{
    char *more;

    if (k->n_head + size > SERVE_HEAD_MAX) {
        serve_refuse(k, MHD_HTTP_CONTENT_TOO_LARGE, "head",
                     "The head has over %d bytes, or no line feed.",
                     SERVE_HEAD_MAX);
        return;
    }
    more = realloc(k->head, k->n_head + size + 1);
    if (more == NULL) {
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
        return;
    }
    memcpy(more + k->n_head, data, size);
    k->head = more;
    k->n_head += size;
}

/* What follows after a refusal is read and dropped. */
static void add_piece(struct serve_call *k, const char *data, size_t size)
{
    const char *end;
    size_t part;

    if (k->json == NULL && k->refused == 0) {
        end = memchr(data, '\n', size);
        part = end != NULL ? (size_t)(end - data) : size;
        add_head(k, data, part);
        if (end == NULL)
            return;
        if (k->refused == 0)
            serve_head_read(k);
        if (k->refused == 0)
            calls[k->kind].head(k);
        data = end + 1;
        size -= part + 1;
    }
    if (k->refused == 0 && size > 0 && calls[k->kind].body != NULL)
        calls[k->kind].body(k, data, size);
}

/* An answer at once: otherwise libmicrohttpd sends "100 Continue". */
static int expects(const struct serve_call *k)
{
    return MHD_lookup_connection_value(k->c, MHD_HEADER_KIND, "Expect") != NULL;
}

static enum MHD_Result refuse_expectation(struct serve_call *k)
{
    k->started = 1;
    serve_refuse(k, MHD_HTTP_EXPECTATION_FAILED, "expect",
                 "\"Expect\" is not taken: leave it out, and send the body at "
                 "once.");
    return serve_say_refused(k);
}

static enum MHD_Result answer(struct serve_call *k)
{
    if (k->page != NULL)
        return k->page(k);
    if (k->refused == 0 && k->json == NULL)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "There is no head: one line of JSON, and a line feed.");
    if (k->refused != 0)
        return serve_say_refused(k);
    return calls[k->kind].whole(k);
}

/* The engine has answered. */
static enum MHD_Result go_on(struct serve_call *k)
{
    if (k->superseded) {
        serve_refuse(k, MHD_HTTP_CONFLICT, "superseded",
                     "The same begin came again.");
        return serve_say_refused(k);
    }
    if (k->late)
        return serve_say_late(k);
    return calls[k->kind].woken(k);
}

/* ---- libmicrohttpd ----------------------------------------------------------- */

static enum MHD_Result handler(void *user, struct MHD_Connection *c,
                               const char *path, const char *method,
                               const char *version, const char *data,
                               size_t *size, void **own)
{
    struct serve_call *k = *own;

    (void)version;
    if (k == NULL) {
        k = *own = calloc(1, sizeof(*k));
        if (k == NULL)
            return MHD_NO;
        k->serve = user;
        k->c = c;
        k->connection =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)
                ->socket_context;
        serve_connection_start(k->connection, 0);
        admit(k, method, path);
        return expects(k) ? refuse_expectation(k) : MHD_YES;
    }
    if (*size > 0) {
        serve_connection_piece(k->connection, *size);
        add_piece(k, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (k->started)
        return go_on(k);
    k->started = 1;
    serve_connection_stop(k->connection);
    return answer(k);
}

static void completed(void *user, struct MHD_Connection *c, void **own,
                      enum MHD_RequestTerminationCode code)
{
    struct serve_call *k = *own;
    struct serve_open *o;

    (void)user;
    (void)c;
    (void)code;
    if (k == NULL)
        return;
    *own = NULL;
    serve_connection_stop(k->connection);
    o = k->open;
    if (o != NULL) {
        o->call = NULL;
        if (o->woken) /* it ended while it was to be answered */
            serve_go_on_alone(o);
    }
    once_exchange_free(k->x);
    once_attempt_free(k->attempt);
    serve_route_drop(k->route);
    json_decref(k->json);
    k->serve->buffered -= k->body_room;
    free(k->lines);
    free(k->text);
    free(k->head);
    free(k->logged);
    free(k->body);
    free(k);
}

static void connected(void *user, struct MHD_Connection *c, void **own,
                      enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        *own = serve_connection_new(
            user, MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)
                      ->connect_fd);
    else
        serve_connection_free(*own);
}

struct MHD_Daemon *serve_http(struct serve *s)
{
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, handler, s,
        MHD_OPTION_LISTEN_SOCKET, s->listen.fd, MHD_OPTION_NOTIFY_COMPLETED,
        completed, NULL, MHD_OPTION_NOTIFY_CONNECTION, connected, s,
        MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)(SERVE_CONNECTIONS + 2 * SERVE_UNPROVEN),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY,
        MHD_OPTION_LISTEN_BACKLOG_SIZE, (unsigned)BACKLOG, MHD_OPTION_END);
}
