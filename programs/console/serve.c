/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c - a request in, an answer out, and the pages.
 *
 * When a request's head is there it is known who asks, whether he may, and how
 * large a body may be. A body that is not wanted is not kept; one that is, is read
 * whole before anything is decided. Every answer has the headers that keep other pages away from it, and none is
 * kept by anybody.
 */
#include "console.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "console/pages/app.js.h"
#include "console/pages/decide.js.h"
#include "console/pages/dom.js.h"
#include "console/pages/icon.svg.h"
#include "console/pages/index.html.h"
#include "console/pages/lists.js.h"
#include "console/pages/record.js.h"
#include "console/pages/style.css.h"
#include "openapi.json.h"

#define API "/api/v1/"

enum { TIMEOUT_S = 120, STACK = 512 * 1024 };

static const struct {
    const char *path, *type, *text;
    size_t size;
} pages[] = {
#define PAGE(path, type, text)                                                 \
    {                                                                          \
        path, type, text, sizeof(text) - 1                                     \
    }
    PAGE("/", "text/html; charset=utf-8", once__index_html),
    PAGE("/icon.svg", "image/svg+xml", once__icon_svg),
    PAGE("/style.css", "text/css; charset=utf-8", once__style_css),
    PAGE("/app.js", "text/javascript; charset=utf-8", once__app_js),
    PAGE("/decide.js", "text/javascript; charset=utf-8", once__decide_js),
    PAGE("/dom.js", "text/javascript; charset=utf-8", once__dom_js),
    PAGE("/lists.js", "text/javascript; charset=utf-8", once__lists_js),
    PAGE("/record.js", "text/javascript; charset=utf-8", once__record_js),
    PAGE(API "openapi.json", "application/json", once__openapi_json),
#undef PAGE
};

static const char *const always[][2] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src "
     "'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'; require-trusted-types-for 'script'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-store"},
};

/* ---- Answers ------------------------------------------------------------- */

/* Takes `data` if it is to be freed. */
static enum MHD_Result send_bytes(struct con_ask *ask, unsigned status,
                                  const char *type, const void *data,
                                  size_t size, enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(size, (void *)(uintptr_t)data, mode);
    enum MHD_Result rc = MHD_YES;
    size_t i;

    if (r == NULL) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            free((void *)(uintptr_t)data);
        return MHD_NO;
    }
    for (i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        if (MHD_add_response_header(r, always[i][0], always[i][1]) != MHD_YES)
            rc = MHD_NO;
    if (MHD_add_response_header(r, "Content-Type", type) != MHD_YES)
        rc = MHD_NO;
    if (ask->cookie != NULL)
        (void)MHD_add_response_header(r, "Set-Cookie", ask->cookie);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(r, "Allow", "GET, HEAD, POST");
    if (rc == MHD_YES)
        rc = MHD_queue_response(ask->c, status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result send_json(struct con_ask *ask, unsigned status,
                                 const char *type, json_t *value)
{
    char *text =
        value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;

    json_decref(value);
    if (text == NULL) /* without memory: the connection ends */
        return MHD_NO;
    return send_bytes(ask, status, type, text, strlen(text),
                      MHD_RESPMEM_MUST_FREE);
}

enum MHD_Result con_reply(struct con_ask *ask, unsigned status, json_t *value)
{
    return send_json(ask, status, "application/json", value);
}

enum MHD_Result con_problem_about(struct con_ask *ask, unsigned status,
                                  const char *code, const char *text,
                                  json_t *record)
{
    json_t *o =
        json_pack("{s:s, s:s, s:i, s:s, s:o*}", "type", "about:blank", "title",
                  text, "status", (int)status, "code", code, "record", record);

    return send_json(ask, status, "application/problem+json", o);
}

enum MHD_Result con_problem(struct con_ask *ask, unsigned status,
                            const char *code, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return con_problem_about(ask, status, code, text, NULL);
}

enum MHD_Result con_trouble(struct con_ask *ask, int rc, const once_error *err)
{
    const char *text = err->text[0] ? err->text : once_text(rc);

    if (rc == ONCE_EINVAL || rc == ONCE_ELIMIT)
        return con_problem(ask, MHD_HTTP_BAD_REQUEST, "invalid", "%s", text);
    return con_problem(ask, MHD_HTTP_SERVICE_UNAVAILABLE,
                       rc == ONCE_ECORRUPT ? "corrupt" : "store", "%s", text);
}

enum MHD_Result con_bytes(struct con_ask *ask, const char *type,
                          const void *data, size_t size)
{
    return send_bytes(ask, MHD_HTTP_OK, type, data, size,
                      MHD_RESPMEM_PERSISTENT);
}

const char *con_header(const struct con_ask *ask, const char *name)
{
    return MHD_lookup_connection_value(ask->c, MHD_HEADER_KIND, name);
}

const char *con_argument(const struct con_ask *ask, const char *name)
{
    return MHD_lookup_connection_value(ask->c, MHD_GET_ARGUMENT_KIND, name);
}

/* ---- One request --------------------------------------------------------- */

static enum MHD_Result send_page(struct con_ask *ask, const char *path)
{
    size_t i;

    for (i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        if (strcmp(pages[i].path, path) == 0)
            return con_bytes(ask, pages[i].type, pages[i].text, pages[i].size);
    return MHD_NO;
}

static int is_page(const char *path)
{
    size_t i;

    for (i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        if (strcmp(pages[i].path, path) == 0)
            return 1;
    return 0;
}

void con_refuse(struct con_ask *ask, unsigned status, const char *code,
                const char *why)
{
    ask->refused = status;
    ask->code = code;
    ask->why = why;
}

static const char *code_of(int status)
{
    switch (status) {
    case MHD_HTTP_UNAUTHORIZED:
        return "unauthorized";
    case MHD_HTTP_FORBIDDEN:
        return "forbidden";
    case MHD_HTTP_UNSUPPORTED_MEDIA_TYPE:
        return "type";
    default:
        return "trouble";
    }
}

static enum MHD_Result answer_page(struct con_ask *ask)
{
    return send_page(ask, ask->path);
}

/* By its head alone: who answers it, or why nobody does. */
static void admit(struct con_ask *ask)
{
    int is_post = strcmp(ask->method, "POST") == 0, status;
    int is_api = strncmp(ask->path, API, sizeof(API) - 1) == 0;
    const char *why = "";

    if (!is_post && strcmp(ask->method, "GET") != 0 &&
        strcmp(ask->method, "HEAD") != 0) {
        con_refuse(ask, MHD_HTTP_METHOD_NOT_ALLOWED, "method",
                   "GET and POST are all there is.");
        return;
    }
    status = con_gate(ask, is_api, &why);
    if (status != 0) {
        con_refuse(ask, (unsigned)status, code_of(status), why);
    } else if (!is_post && is_page(ask->path)) {
        ask->answer = answer_page;
    } else if (!is_api) {
        con_refuse(ask, MHD_HTTP_NOT_FOUND, "not-found",
                   "There is nothing here.");
    } else if (is_post && strcmp(ask->path, API "session") == 0) {
        ask->most = CON_TOKEN_MAX;
        ask->answer = con_open_session;
    } else if ((status = con_identify(ask, &why)) != 0) {
        con_refuse(ask, (unsigned)status, code_of(status), why);
    } else {
        ask->known = 1;
        con_route(ask, ask->path + sizeof(API) - 1);
    }
}

static int read_body(struct con_ask *ask)
{
    json_error_t err;

    ask->body = json_loadb(ask->size ? ask->raw : "", ask->size,
                           JSON_REJECT_DUPLICATES, &err);
    return json_is_object(ask->body);
}

static enum MHD_Result answer(struct con_ask *ask)
{
    if (ask->refused != 0)
        return con_problem(ask, ask->refused, ask->code, "%s", ask->why);
    if (ask->came > ask->most)
        return con_problem(ask, MHD_HTTP_CONTENT_TOO_LARGE, "too-large",
                           "This request has up to %zu bytes.", ask->most);
    if (strcmp(ask->method, "POST") == 0) {
        if (!con_is_small(ask->raw, ask->size))
            return con_problem(ask, MHD_HTTP_BAD_REQUEST, "invalid",
                               "The body has more than %d values, or one that "
                               "is deeper than %d.",
                               CON_VALUES_MAX, CON_DEPTH_MAX);
        if (!read_body(ask))
            return con_problem(ask, MHD_HTTP_BAD_REQUEST, "invalid",
                               "The body is not one JSON object.");
    }
    return ask->answer(ask);
}

/* ---- libmicrohttpd ------------------------------------------------------- */

static enum MHD_Result add_piece(struct con_ask *ask, const char *data,
                                 size_t *size)
{
    char *raw;

    ask->came += *size;
    if (ask->came > CON_SKIPPED_MAX)
        return MHD_NO; /* the connection ends */
    if (ask->refused == 0 && ask->came <= ask->most) {
        raw = realloc(ask->raw, ask->came);
        if (raw == NULL)
            return MHD_NO;
        memcpy(raw + ask->size, data, *size);
        ask->raw = raw;
        ask->size = ask->came;
    }
    *size = 0;
    return MHD_YES;
}

static enum MHD_Result access_handler(void *user, struct MHD_Connection *c,
                                      const char *path, const char *method,
                                      const char *version, const char *data,
                                      size_t *size, void **own)
{
    struct con_ask *ask = *own;
    enum MHD_Result rc;

    (void)version;
    if (ask == NULL) {
        ask = calloc(1, sizeof(*ask));
        if (ask == NULL)
            return MHD_NO;
        *ask = (struct con_ask){
            .con = user, .c = c, .method = method, .path = path};
        *own = ask;
        admit(ask);
        con_peer_asks(ask);
        return MHD_YES;
    }
    ask->method = method;
    ask->path = path;
    if (*size > 0)
        return add_piece(ask, data, size);
    con_peer_works(ask, 1);
    rc = answer(ask);
    con_peer_works(ask, 0);
    return rc;
}

static void completed(void *user, struct MHD_Connection *c, void **own,
                      enum MHD_RequestTerminationCode how)
{
    struct con_ask *ask = *own;

    (void)user;
    (void)c;
    (void)how;
    if (ask == NULL)
        return;
    con_peer_rests(ask);
    json_decref(ask->body);
    free(ask->raw);
    free(ask);
    *own = NULL;
}

static void connected(void *user, struct MHD_Connection *c, void **own,
                      enum MHD_ConnectionNotificationCode code)
{
    (void)own;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        con_peer_comes(user, c);
    else
        con_peer_goes(user, c);
}

struct MHD_Daemon *con_serve(struct con *con)
{
    return MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
            MHD_USE_THREAD_PER_CONNECTION | MHD_USE_ITC,
        0, NULL, NULL, access_handler, con, MHD_OPTION_LISTEN_SOCKET, con->fd,
        MHD_OPTION_NOTIFY_COMPLETED, completed, NULL,
        MHD_OPTION_NOTIFY_CONNECTION, connected, con,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CON_PEERS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CON_HEAD_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK, MHD_OPTION_END);
}
