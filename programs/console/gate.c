/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.c - is it a page of ours that asks?
 *
 * A browser sends requests for any page that its user has open. What tells them
 * apart: the Host that it believes to talk to (against DNS rebinding), where the
 * page is from (Sec-Fetch-Site, which scripts cannot set, or Origin), a header of
 * our own and a type of JSON, which pages from elsewhere cannot send unasked.
 */
#include "programs/console/console.h"

#include <string.h>
#include <strings.h>

/* "localhost:8181" is "localhost", "[::1]:80" is "[::1]". */
static size_t host_size(const char *host)
{
    const char *end = host[0] == '[' ? strchr(host, ']') : NULL;

    if (end != NULL)
        return (size_t)(end + 1 - host);
    return strcspn(host, ":");
}

static int is_host(const char *host, size_t size, const char *name)
{
    return strlen(name) == size && strncasecmp(host, name, size) == 0;
}

static int knows_host(const struct console *con, const char *host)
{
    static const char *const loopback[] = {"localhost", "127.0.0.1", "[::1]"};
    size_t size = host_size(host), i;

    for (i = 0; i < sizeof(loopback) / sizeof(loopback[0]); i++)
        if (is_host(host, size, loopback[i]))
            return 1;
    for (i = 0; i < con->n_hosts; i++)
        if (is_host(host, size, con->hosts[i]))
            return 1;
    return 0;
}

/* "http://localhost:8181" and Host: localhost:8181. */
static int same_origin(const char *origin, const char *host)
{
    const char *at = strstr(origin, "://");

    return at != NULL && strcasecmp(at + 3, host) == 0 &&
           (strncmp(origin, "http://", 7) == 0 ||
            strncmp(origin, "https://", 8) == 0);
}

static int is_json(const char *type)
{
    static const char json[] = "application/json";
    size_t n = sizeof(json) - 1;

    return type != NULL && strncasecmp(type, json, n) == 0 &&
           (type[n] == '\0' || type[n] == ';' || type[n] == ' ');
}

static int check_change(const struct console_request *ask, const char **why)
{
    const char *own = console_header(ask, "Once-Console");
    const char *site = console_header(ask, "Sec-Fetch-Site");
    const char *origin = console_header(ask, "Origin");

    if (site != NULL ? strcmp(site, "same-origin") != 0
                     : origin == NULL ||
                           !same_origin(origin, console_header(ask, "Host"))) {
        *why = "not asked for by a page of this console";
        return MHD_HTTP_FORBIDDEN;
    }
    if (own == NULL || strcmp(own, "1") != 0) {
        *why = "the header Once-Console: 1 is missing";
        return MHD_HTTP_FORBIDDEN;
    }
    if (!is_json(console_header(ask, "Content-Type"))) {
        *why = "send application/json";
        return MHD_HTTP_UNSUPPORTED_MEDIA_TYPE;
    }
    return 0;
}

int console_gate(const struct console_request *ask, int is_api,
                 const char **why)
{
    const char *host = console_header(ask, "Host");
    const char *site = console_header(ask, "Sec-Fetch-Site");

    if (host == NULL || !knows_host(ask->con, host)) {
        *why = "this console has another name; --host adds one";
        return MHD_HTTP_FORBIDDEN;
    }
    if (strcmp(ask->method, "POST") == 0)
        return check_change(ask, why);
    if (is_api && site != NULL && strcmp(site, "same-origin") != 0 &&
        strcmp(site, "none") != 0) {
        *why = "not asked for by a page of this console";
        return MHD_HTTP_FORBIDDEN;
    }
    return 0;
}
