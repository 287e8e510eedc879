/* SPDX-License-Identifier: Apache-2.0 */
/*
 * routes.c - which function answers what, and which right it takes.
 *
 * A path is cut at its slashes and compared with patterns, in which {s} is the
 * name of a store, {d} that of a database and {r} that of a record. What is not in the table is not
 * there.
 */
#include "programs/console/console.h"

#include <string.h>

static const struct route {
    const char *method, *pattern;
    unsigned right;
    size_t most; /* bytes of a body */
    enum MHD_Result (*answer)(struct console_request *ask);
} routes[] = {
    {"GET", "session", CONSOLE_VIEW, 0, console_session},
    {"POST", "session/end", CONSOLE_VIEW, CONSOLE_TOKEN_MAX,
     console_end_session},
    {"GET", "stores", CONSOLE_VIEW, 0, console_stores},
    {"GET", "stores/{s}", CONSOLE_VIEW, 0, console_store},
    {"GET", "stores/{s}/records", CONSOLE_VIEW, 0, console_records},
    {"GET", "stores/{s}/records/{r}", CONSOLE_VIEW, 0, console_record},
    {"GET", "stores/{s}/records/{r}/timeline", CONSOLE_VIEW, 0,
     console_timeline},
    {"GET", "metrics", CONSOLE_VIEW, 0, console_metrics},
    {"GET", "audit", CONSOLE_VIEW, 0, console_audit},
#ifdef ONCE_WITH_MESSAGES
    {"GET", "databases", CONSOLE_VIEW, 0, console_databases},
    {"POST", "databases/{d}/rows", CONSOLE_VIEW, CONSOLE_SMALL_MAX,
     console_rows},
    {"POST", "databases/{d}/row", CONSOLE_VIEW, CONSOLE_SMALL_MAX, console_row},
    {"POST", "databases/{d}/decision", CONSOLE_DECIDE, CONSOLE_SMALL_MAX,
     console_message_decision},
#endif
    {"POST", "find", CONSOLE_VIEW, CONSOLE_SMALL_MAX, console_find},
    {"POST", "stores/{s}/records/{r}/body", CONSOLE_BODY, CONSOLE_SMALL_MAX,
     console_body},
    {"POST", "stores/{s}/records/{r}/decision", CONSOLE_DECIDE,
     CONSOLE_BODY_MAX, console_decision},
    {"POST", "stores/{s}/batch", CONSOLE_DECIDE, CONSOLE_BODY_MAX,
     console_batch},
};

static struct console_store *store_of(struct console *con, const char *name,
                                      size_t size)
{
    size_t i;

    for (i = 0; i < con->n; i++)
        if (strlen(con->stores[i].name) == size &&
            memcmp(con->stores[i].name, name, size) == 0)
            return &con->stores[i];
    return NULL;
}

static struct console_database *database_of(struct console *con,
                                            const char *name, size_t size)
{
    size_t i;

    for (i = 0; i < con->n_databases; i++)
        if (strlen(con->databases[i].name) == size &&
            memcmp(con->databases[i].name, name, size) == 0)
            return &con->databases[i];
    return NULL;
}

static int take_name(struct console_request *ask, const char *hex, size_t size)
{
    char text[ONCE__DIGITS + 1];
    once__prefix p;

    if (size != ONCE__DIGITS)
        return 0;
    memcpy(text, hex, size);
    text[size] = '\0';
    if (once__prefix_read(text, ONCE__DIGITS, &p, NULL) < 0)
        return 0;
    memcpy(ask->name, p.bytes, ONCE_NAME_SIZE);
    ask->has_name = 1;
    return 1;
}

static int matches(struct console_request *ask, const char *pattern,
                   const char *path)
{
    while (*pattern != '\0' && *path != '\0') {
        size_t n = strcspn(pattern, "/"), m = strcspn(path, "/");

        if (n == 3 && memcmp(pattern, "{s}", 3) == 0) {
            ask->store = store_of(ask->con, path, m);
            if (ask->store == NULL)
                return 0;
        } else if (n == 3 && memcmp(pattern, "{d}", 3) == 0) {
            ask->database = database_of(ask->con, path, m);
            if (ask->database == NULL)
                return 0;
        } else if (n == 3 && memcmp(pattern, "{r}", 3) == 0) {
            if (!take_name(ask, path, m))
                return 0;
        } else if (n != m || memcmp(pattern, path, n) != 0) {
            return 0;
        }
        pattern += n;
        path += m;
        if (*pattern != *path)
            return 0;
        pattern += *pattern == '/';
        path += *path == '/';
    }
    return *pattern == *path;
}

static int is_method(const struct route *r, const char *method)
{
    return strcmp(r->method, method) == 0 ||
           (strcmp(r->method, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

static void forbid(struct console_request *ask, unsigned right)
{
    if (right == CONSOLE_DECIDE && !ask->con->decide)
        console_refuse(
            ask, MHD_HTTP_FORBIDDEN, "read-only",
            "This console only shows: it was started without --decide.");
    else
        console_refuse(ask, MHD_HTTP_FORBIDDEN, "forbidden",
                       "You have not the right to do this.");
}

void console_route(struct console_request *ask, const char *path)
{
    int found = 0;
    size_t i;

    for (i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (!matches(ask, routes[i].pattern, path))
            continue;
        found = 1;
        if (!is_method(&routes[i], ask->method))
            continue;
        ask->most = routes[i].most;
        ask->answer = routes[i].answer;
        if ((ask->caller.rights & routes[i].right) == 0)
            forbid(ask, routes[i].right);
        return;
    }
    if (found)
        console_refuse(ask, MHD_HTTP_METHOD_NOT_ALLOWED, "method",
                       "Not by this method.");
    else
        console_refuse(ask, MHD_HTTP_NOT_FOUND, "not-found",
                       "There is nothing here.");
}
