/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.c - the parts of a broker's URL (RFC 3986).
 */
#include "messages/broker/address.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/url.h"

static int bad(const char *scheme, const char *part, once_error *err)
{
    return once__fail(
        err, ONCE_EURL,
        "%s: %s cannot be read; a URL is %s://USER:PASSWORD@"
        "HOST:PORT/..., with ? @ : / in it written %%3F %%40 %%3A "
        "%%2F",
        scheme, part, scheme);
}

static int read_user(const char *at, const char *end, struct once__address *out)
{
    const char *colon = memchr(at, ':', (size_t)(end - at));
    const char *stop = colon == NULL ? end : colon;

    out->has_user = 1;
    if (!once__url_decode(at, (size_t)(stop - at), out->user,
                          sizeof(out->user)))
        return 0;
    return colon == NULL ||
           once__url_decode(colon + 1, (size_t)(end - colon - 1), out->password,
                            sizeof(out->password));
}

static int read_port(const char *at, const char *end, int *port)
{
    if (at == end)
        return 1;
    if (*at++ != ':')
        return 0;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return 0;
        *port = *port * 10 + (*at - '0');
        if (*port > 65535)
            return 0;
    }
    return *port > 0;
}

/* HOST, HOST:PORT or [IPv6]:PORT. */
static int read_host(const char *at, const char *end, struct once__address *out)
{
    const char *stop;

    if (at < end && *at == '[') {
        at++;
        stop = memchr(at, ']', (size_t)(end - at));
        if (stop == NULL)
            return 0;
    } else {
        stop = memchr(at, ':', (size_t)(end - at));
        if (stop == NULL)
            stop = end;
    }
    if (stop == at || !once__url_decode(at, (size_t)(stop - at), out->host,
                                        sizeof(out->host)))
        return 0;
    return read_port(stop < end && *stop == ']' ? stop + 1 : stop, end,
                     &out->port);
}

static int read_address(const char *scheme, const char *url,
                        struct once__address *out, once_error *err)
{
    const char *at = strstr(url, "://"), *end, *user;
    size_t i;

    memset(out, 0, sizeof(*out));
    if (at == NULL)
        return bad(scheme, "the URL", err);
    at += 3;
    end = at + strcspn(at, "/#");
    if (*end == '#')
        return bad(scheme, "the URL", err);
    for (i = (size_t)(end - at), user = NULL; i > 0 && user == NULL; i--)
        if (at[i - 1] == '@')
            user = at + i - 1;
    if (user != NULL) {
        if (!read_user(at, user, out))
            return bad(scheme, "user and password", err);
        at = user + 1;
    }
    if (!read_host(at, end, out))
        return bad(scheme, "host and port", err);
    if (*end == '/' && !once__url_decode(end + 1, strlen(end + 1), out->path,
                                         sizeof(out->path)))
        return bad(scheme, "the path", err);
    return ONCE_OK;
}

int once__address_read(const char *scheme, const char *url,
                       int (*query)(void *user, char *url, once_error *err),
                       void *user, struct once__address *out, once_error *err)
{
    char *copy = strdup(url);
    int rc;

    if (copy == NULL)
        return once__fail(err, ONCE_ENOMEM, "%s: no memory", scheme);
    rc = query(user, copy, err);
    if (rc == ONCE_OK)
        rc = read_address(scheme, copy, out, err);
    explicit_bzero(copy, strlen(copy));
    free(copy);
    return rc;
}
