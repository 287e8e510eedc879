/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c - a request in, an answer out, and the pages.
 *
 * When a request's head is there it is known who calls, whether he may, and how
 * large a body may be. A body that is not wanted is not kept; one that is, is read
 * whole before anything is decided.
 */
#include "programs/console/console.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "programs/console/pages/app.js.h"
#include "programs/console/pages/decide.js.h"
#include "programs/console/pages/dom.js.h"
#include "programs/console/pages/doubts.js.h"
#include "programs/console/pages/find.js.h"
#include "programs/console/pages/icon.svg.h"
#include "programs/console/pages/index.html.h"
#include "programs/console/pages/lists.js.h"
#include "programs/console/pages/messages.js.h"
#include "programs/console/pages/metrics.js.h"
#include "programs/console/pages/overview.js.h"
#include "programs/console/pages/plot.js.h"
#include "programs/console/pages/record.js.h"
#include "programs/console/pages/style.css.h"
#include "programs/console/pages/waiting.js.h"
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
#define SCRIPT(name, text)                                                     \
    PAGE("/" name ".js", "text/javascript; charset=utf-8", text)
    PAGE("/", "text/html; charset=utf-8", once__index_html),
    PAGE("/icon.svg", "image/svg+xml", once__icon_svg),
    PAGE("/style.css", "text/css; charset=utf-8", once__style_css),
    SCRIPT("app", once__app_js),
    SCRIPT("decide", once__decide_js),
    SCRIPT("dom", once__dom_js),
    SCRIPT("doubts", once__doubts_js),
    SCRIPT("find", once__find_js),
    SCRIPT("lists", once__lists_js),
    SCRIPT("messages", once__messages_js),
    SCRIPT("metrics", once__metrics_js),
    SCRIPT("overview", once__overview_js),
    SCRIPT("plot", once__plot_js),
    SCRIPT("record", once__record_js),
    SCRIPT("waiting", once__waiting_js),
    PAGE(API "openapi.json", "application/json", once__openapi_json),
#undef SCRIPT
#undef PAGE
};

/* ---- One request --------------------------------------------------------- */

static enum MHD_Result send_page(struct console_request *ask, const char *path)
{
    size_t i;

    for (i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        if (strcmp(pages[i].path, path) == 0)
            return console_bytes(ask, pages[i].type, pages[i].text,
                                 pages[i].size);
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

static enum MHD_Result answer_page(struct console_request *ask)
{
    return send_page(ask, ask->path);
}

/* By its head alone: who answers it, or why nobody does. */
static void admit(struct console_request *ask)
{
    int is_post = strcmp(ask->method, "POST") == 0, status;
    int is_api = strncmp(ask->path, API, sizeof(API) - 1) == 0;
    const char *why = "";

    if (!is_post && strcmp(ask->method, "GET") != 0 &&
        strcmp(ask->method, "HEAD") != 0) {
        console_refuse(ask, MHD_HTTP_METHOD_NOT_ALLOWED, "method",
                       "GET and POST are all there is.");
        return;
    }
    status = console_gate(ask, is_api, &why);
    if (status != 0) {
        console_refuse(ask, (unsigned)status, code_of(status), why);
    } else if (!is_post && is_page(ask->path)) {
        ask->answer = answer_page;
    } else if (!is_api) {
        console_refuse(ask, MHD_HTTP_NOT_FOUND, "not-found",
                       "There is nothing here.");
    } else if (is_post && strcmp(ask->path, API "session") == 0) {
        ask->most = CONSOLE_TOKEN_MAX;
        ask->answer = console_open_session;
    } else if ((status = console_identify(ask, &why)) != 0) {
        console_refuse(ask, (unsigned)status, code_of(status), why);
    } else {
        ask->known = 1;
        console_route(ask, ask->path + sizeof(API) - 1);
    }
}

static int read_body(struct console_request *ask)
{
    json_error_t err;

    ask->body = json_loadb(ask->size ? ask->raw : "", ask->size,
                           JSON_REJECT_DUPLICATES, &err);
    return json_is_object(ask->body);
}

static enum MHD_Result answer(struct console_request *ask)
{
    if (ask->refused != 0)
        return console_problem(ask, ask->refused, ask->code, "%s", ask->why);
    if (ask->came > ask->most)
        return console_problem(ask, MHD_HTTP_CONTENT_TOO_LARGE, "too-large",
                               "This request has up to %zu bytes.", ask->most);
    if (strcmp(ask->method, "POST") == 0) {
        if (!console_is_small(ask->raw, ask->size))
            return console_problem(
                ask, MHD_HTTP_BAD_REQUEST, "invalid",
                "The body has more than %d values, or one that "
                "is deeper than %d.",
                CONSOLE_VALUES_MAX, CONSOLE_DEPTH_MAX);
        if (!read_body(ask))
            return console_problem(ask, MHD_HTTP_BAD_REQUEST, "invalid",
                                   "The body is not one JSON object.");
    }
    return ask->answer(ask);
}

/* ---- libmicrohttpd ------------------------------------------------------- */

static enum MHD_Result add_piece(struct console_request *ask, const char *data,
                                 size_t *size)
{
    char *raw;

    ask->came += *size;
    if (ask->came > CONSOLE_SKIPPED_MAX)
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
    struct console_request *ask = *own;
    enum MHD_Result rc;

    (void)version;
    if (ask == NULL) {
        ask = calloc(1, sizeof(*ask));
        if (ask == NULL)
            return MHD_NO;
        *ask = (struct console_request){
            .con = user, .c = c, .method = method, .path = path};
        *own = ask;
        admit(ask);
        console_peer_asks(ask);
        return MHD_YES;
    }
    ask->method = method;
    ask->path = path;
    if (*size > 0)
        return add_piece(ask, data, size);
    console_peer_works(ask, 1);
    rc = answer(ask);
    console_peer_works(ask, 0);
    return rc;
}

static void completed(void *user, struct MHD_Connection *c, void **own,
                      enum MHD_RequestTerminationCode how)
{
    struct console_request *ask = *own;

    (void)user;
    (void)c;
    (void)how;
    if (ask == NULL)
        return;
    console_peer_rests(ask);
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
        console_peer_comes(user, c);
    else
        console_peer_goes(user, c);
}

struct MHD_Daemon *console_serve(struct console *con)
{
    return MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
            MHD_USE_THREAD_PER_CONNECTION | MHD_USE_ITC,
        0, NULL, NULL, access_handler, con, MHD_OPTION_LISTEN_SOCKET,
        con->listen.fd, MHD_OPTION_NOTIFY_COMPLETED, completed, NULL,
        MHD_OPTION_NOTIFY_CONNECTION, connected, con,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONSOLE_PEERS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONSOLE_HEAD_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK, MHD_OPTION_END);
}
