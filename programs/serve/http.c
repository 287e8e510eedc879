/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.c - a request in, an answer out.
 *
 * A message is one line of JSON, a line feed and the raw body, in both
 * directions. The head is kept until it is whole, and refused when it is too
 * long; the body goes on piece by piece.
 *
 * While the store is asked the connection is suspended, and the loop resumes it.
 */
#include "programs/serve/serve.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

enum { MEMORY = 32768, BACKLOG = 1024, RETRY_S = 1 };

static const char *const paths[] = {
    [SERVE_BEGIN] = "/v1/begin",           [SERVE_END] = "/v1/end",
    [SERVE_BROKEN] = "/v1/broken",         [SERVE_ABANDON] = "/v1/abandon",
    [SERVE_CALL_BEGIN] = "/v1/call/begin", [SERVE_CALL_END] = "/v1/call/end",
};
enum { PATHS = sizeof(paths) / sizeof(paths[0]) };

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

/* By its first line and its header alone. */
static void admit(struct serve_call *k, const char *method, const char *path)
{
    int i;

    if (!is_bearer(k)) {
        serve_refuse(k, MHD_HTTP_UNAUTHORIZED, "bearer",
                     "\"Authorization: Bearer\" has not the token of "
                     "--token-file.");
        return;
    }
    k->is_get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (k->is_get && strcmp(path, "/v1/health") == 0)
        return;
    for (i = 0; i < PATHS && strcmp(path, paths[i]) != 0; i++)
        ;
    if (i == PATHS || k->is_get)
        serve_refuse(k, MHD_HTTP_NOT_FOUND, "not-found",
                     "There is nothing here.");
    else if (strcmp(method, "POST") != 0)
        serve_refuse(k, MHD_HTTP_METHOD_NOT_ALLOWED, "method",
                     "It is asked by POST.");
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

static void end_head(struct serve_call *k)
{
    serve_head_read(k);
    if (k->refused != 0)
        return;
    if (k->kind == SERVE_BEGIN)
        serve_begin_head(k);
    else if (k->kind == SERVE_CALL_BEGIN)
        serve_call_head(k);
    else
        serve_end_head(k);
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
            end_head(k);
        data = end + 1;
        size -= part + 1;
    }
    if (k->refused != 0 || size == 0)
        return;
    if (k->kind == SERVE_BEGIN)
        serve_begin_body(k, data, size);
    else
        serve_end_body(k, data, size);
}

static enum MHD_Result say_health(struct serve_call *k)
{
    const struct serve *s = k->serve;

    return serve_say(k, MHD_HTTP_OK,
                     json_pack("{s:s, s:[i], s:[s], s:I}", "version",
                               ONCE_VERSION, "protocol", 1, "features", "call",
                               "open", (json_int_t)s->n_open),
                     (once_bytes){NULL, 0});
}

static enum MHD_Result answer(struct serve_call *k)
{
    if (k->refused == 0 && k->is_get)
        return say_health(k);
    if (k->refused == 0 && k->json == NULL)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "head",
                     "There is no head: one line of JSON, and a line feed.");
    if (k->refused != 0)
        return serve_say_refused(k);
    return k->kind == SERVE_BEGIN        ? serve_begin(k)
           : k->kind == SERVE_CALL_BEGIN ? serve_call_begin(k)
                                         : serve_end(k);
}

/* The engine has answered. */
static enum MHD_Result go_on(struct serve_call *k)
{
    if (k->superseded) {
        serve_refuse(k, MHD_HTTP_CONFLICT, "superseded",
                     "The same begin came again.");
        return serve_say_refused(k);
    }
    return k->kind == SERVE_BEGIN        ? serve_begun(k)
           : k->kind == SERVE_CALL_BEGIN ? serve_call_begun(k)
                                         : serve_ended(k);
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
        k->owner =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)
                ->socket_context;
        if (k->owner == NULL)
            serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "No memory.");
        admit(k, method, path);
        return MHD_YES;
    }
    if (*size > 0) {
        add_piece(k, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (k->started)
        return go_on(k);
    k->started = 1;
    return answer(k);
}

static void completed(void *user, struct MHD_Connection *c, void **own,
                      enum MHD_RequestTerminationCode code)
{
    struct serve_call *k = *own;

    (void)user;
    (void)c;
    (void)code;
    if (k == NULL)
        return;
    *own = NULL;
    if (k->open != NULL)
        k->open->call = NULL;
    once_exchange_free(k->x);
    once_attempt_free(k->attempt);
    json_decref(k->json);
    k->serve->buffered -= k->body_room;
    free(k->lines);
    free(k->text);
    free(k->head);
    free(k->body);
    free(k);
}

static void connected(void *user, struct MHD_Connection *c, void **own,
                      enum MHD_ConnectionNotificationCode code)
{
    struct serve *s = user;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        s->connections++;
        *own = serve_owner_of(
            s, MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)
                   ->connect_fd);
    } else {
        s->connections--;
        serve_owner_drop(s, *own);
    }
}

struct MHD_Daemon *serve_http(struct serve *s)
{
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, handler, s,
        MHD_OPTION_LISTEN_SOCKET, s->listen.fd, MHD_OPTION_NOTIFY_COMPLETED,
        completed, NULL, MHD_OPTION_NOTIFY_CONNECTION, connected, s,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)SERVE_CONNECTIONS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY,
        MHD_OPTION_LISTEN_BACKLOG_SIZE, (unsigned)BACKLOG, MHD_OPTION_END);
}
