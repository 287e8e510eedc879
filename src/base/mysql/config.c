/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c - what stands in the URL of a MySQL or MariaDB server.
 *
 *    mysql://USER[:PASSWORD]@HOST[:PORT][,HOST[:PORT]...]/DATABASE
 *
 *    ?password_file=PATH  its first line
 *    socket=PATH          in place of the hosts
 *    sslmode=verify-full  the default, unless the server is on this host;
 *            disable      no TLS
 *    sslrootcert= sslcert= sslkey=   PATH
 *    statement_ms= connect_ms= lock_ms=
 *
 * No file of options (my.cnf) is read: what counts stands in the URL. It refuses
 * a parameter that it does not know, and no text repeats what may hold a
 * credential.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mysql/mysql.h"

enum {
    URL_MAX = 8192,
    STATEMENT_MS = 5000,
    CONNECT_MS = 2000,
    LOCK_MS = 200,
    TIME_MAX_MS = 600000
};

static int is_local(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

static int take_hosts(const char *at, size_t n, struct once__my_config *c,
                      once_error *err)
{
    const char *end = at + n, *comma, *wrong;
    struct once__my_host *h;

    do {
        if (c->host_count == ONCE__MY_HOSTS_MAX)
            return once__fail(err, ONCE_EURL, "mysql: over %d hosts",
                              ONCE__MY_HOSTS_MAX);
        h = &c->hosts[c->host_count++];
        comma = memchr(at, ',', (size_t)(end - at));
        n = (size_t)((comma == NULL ? end : comma) - at);
        wrong =
            once__url_place(at, n, "3306", h->name, sizeof(h->name), h->port);
        if (wrong != NULL)
            return once__fail(err, ONCE_EURL, "mysql: %s", wrong);
        h->local = c->socket[0] != '\0' || is_local(h->name);
        at = comma == NULL ? end : comma + 1;
    } while (comma != NULL);
    return ONCE_OK;
}

/* It stands in a statement, between backquotes. */
static int take_database(const char *at, struct once__my_config *c,
                         once_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-$";
    size_t n = strlen(at);

    if (n == 0 || n >= sizeof(c->database) || strspn(at, letters) < n)
        return once__fail(err, ONCE_EURL,
                          "mysql: after the hosts goes a database; its name "
                          "has up to 64 letters, digits and any of _-$");
    memcpy(c->database, at, n + 1);
    return ONCE_OK;
}

static int take_tls(char *url, struct once__my_config *c, once_error *err)
{
    char mode[16] = "";

    if (once__url_take(url, "sslmode", mode, sizeof(mode), err) < 0 ||
        once__url_take(url, "sslrootcert", c->ca, sizeof(c->ca), err) < 0 ||
        once__url_take(url, "sslcert", c->cert, sizeof(c->cert), err) < 0 ||
        once__url_take(url, "sslkey", c->key, sizeof(c->key), err) < 0)
        return ONCE_EURL;
    if (strcmp(mode, "verify-full") == 0)
        c->tls = ONCE__MY_TLS_ALWAYS;
    else if (strcmp(mode, "disable") == 0)
        c->tls = ONCE__MY_TLS_NEVER;
    else if (mode[0] != '\0')
        return once__fail(err, ONCE_EURL,
                          "mysql: sslmode is neither verify-full nor disable");
    if ((c->cert[0] == '\0') != (c->key[0] == '\0'))
        return once__fail(err, ONCE_EURL,
                          "mysql: sslcert and sslkey go together");
    return ONCE_OK;
}

static int take_parameters(char *url, struct once__my_config *c,
                           once_error *err)
{
    int rc;

    if (once__url_take_number(url, "statement_ms", 10, TIME_MAX_MS,
                              &c->statement_ms, err) < 0 ||
        once__url_take_number(url, "connect_ms", 10, TIME_MAX_MS,
                              &c->connect_ms, err) < 0 ||
        once__url_take_number(url, "lock_ms", 1, TIME_MAX_MS, &c->lock_ms,
                              err) < 0 ||
        once__url_take(url, "socket", c->socket, sizeof(c->socket), err) < 0 ||
        take_tls(url, c, err) < 0)
        return ONCE_EURL;
    rc = once__url_take_secret(url, "password_file", c->password,
                               sizeof(c->password), err);
    if (rc < 0)
        return rc;
    rc = (int)strcspn(url, "?");
    if (url[rc] == '?' && url[rc + 1] == '\0')
        url[rc] = '\0';
    return once__url_end("mysql", url, "those in docs/mysql.md", err);
}

static int parse(char *url, struct once__my_config *c, once_error *err)
{
    const char *at = url + 2;
    int rc = take_parameters(url, c, err);
    size_t n;

    if (rc != ONCE_OK)
        return rc;
    if (!once__url_user(&at, strcspn(at, "/"), c->user, sizeof(c->user),
                        c->password, sizeof(c->password)) ||
        strchr(at, '@') != NULL)
        return once__fail(err, ONCE_EURL,
                          "mysql: user or password are too long or badly "
                          "encoded; @, / and : in them are written %%40, %%2F "
                          "and %%3A");
    n = strcspn(at, "/");
    rc = take_hosts(at, n, c, err);
    at += n;
    return rc != ONCE_OK ? rc : take_database(*at == '/' ? at + 1 : at, c, err);
}

int once__my_config_read(struct once__my_config *c, const char *rest,
                         once_error *err)
{
    char url[URL_MAX];
    size_t n = strlen(rest);
    int rc;

    memset(c, 0, sizeof(*c));
    c->statement_ms = STATEMENT_MS;
    c->connect_ms = CONNECT_MS;
    c->lock_ms = LOCK_MS;
    if (strncmp(rest, "//", 2) != 0 || n >= sizeof(url))
        return once__fail(err, ONCE_EURL,
                          "mysql: \"//\" must stand after the scheme");
    memcpy(url, rest, n + 1);
    rc = parse(url, c, err);
    explicit_bzero(url, sizeof(url));
    return rc;
}

void once__my_config_clear(struct once__my_config *c)
{
    explicit_bzero(c, sizeof(*c));
}
