/* SPDX-License-Identifier: Apache-2.0 */
/*
 * url.c - what stands in the URL of a Redis store.
 *
 *    redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]          rediss: the same, TLS
 *    redis+unix://[USER[:PASSWORD]@]/PATH
 *    redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT],.../NAME[/DB]   rediss+...
 *    redis+cluster://[USER[:PASSWORD]@]HOST[:PORT],...              rediss+...
 *
 *    ?prefix=once:      of all keys          db=N            unix socket only
 *    timeout_ms=2000    without any progress password_file=PATH
 *    wait=N wait_ms=N   replicas that must have it
 *    sentinel_user=NAME sentinel_password_file=PATH
 *    cacert=PATH cert=PATH key=PATH sni=NAME                       with TLS
 *
 * User and password are percent-decoded, as RFC 3986 requires. It refuses a
 * parameter that it does not know, so that a misspelt `wait` promises nothing
 * by accident, and no text repeats what may hold a credential.
 */
#include <string.h>

#include "base/error.h"
#include "base/redis/redis.h"
#include "base/url.h"

enum {
    URL_MAX = 8192,
    TIMEOUT_MS = 2000,
    TIMEOUT_MAX_MS = 60000,
    WAIT_MS = 1000,
    WAIT_MAX = 16
};

static int all_digits(const char *s, size_t n)
{
    return strspn(s, "0123456789") >= n;
}

static int take_place(const char *from, size_t n, const char *port,
                      struct once__redis_place *out, once_error *err)
{
    const char *wrong =
        once__url_place(from, n, port, out->host, sizeof(out->host), out->port);

    return wrong == NULL ? ONCE_OK
                         : once__fail(err, ONCE_EURL, "redis: %s", wrong);
}

static int take_hosts(const char *at, size_t n, struct once__redis_config *c,
                      once_error *err)
{
    const char *port = c->mode == ONCE__REDIS_SENTINEL ? "26379" : "6379";
    const char *end = at + n;
    int rc = ONCE_OK;

    while (rc == ONCE_OK) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t size = (size_t)((comma == NULL ? end : comma) - at);

        if (c->host_count == ONCE__REDIS_HOSTS ||
            (c->mode == ONCE__REDIS_SINGLE && c->host_count == 1))
            return once__fail(err, ONCE_EURL, "redis: too many hosts");
        rc = take_place(at, size, port, &c->hosts[c->host_count++], err);
        if (comma == NULL)
            return rc;
        at = comma + 1;
    }
    return rc;
}

static int take_db(const char *at, struct once__redis_config *c,
                   once_error *err)
{
    size_t n = strlen(at);

    if (n == 0)
        return ONCE_OK;
    if (n > 4 || !all_digits(at, n))
        return once__fail(err, ONCE_EURL,
                          "redis: the database is not a number");
    for (c->db = 0; *at != '\0'; at++)
        c->db = c->db * 10 + (uint64_t)(*at - '0');
    return ONCE_OK;
}

/* What stands after the hosts: "/DB", "/NAME/DB" or nothing. */
static int take_path(const char *at, struct once__redis_config *c,
                     once_error *err)
{
    size_t n = strcspn(at, "/");

    if (c->mode == ONCE__REDIS_CLUSTER)
        return *at == '\0' ? ONCE_OK
                           : once__fail(err, ONCE_EURL,
                                        "redis: a cluster has one database");
    if (c->mode == ONCE__REDIS_SINGLE)
        return take_db(at, c, err);
    if (n == 0 || !once__url_decode(at, n, c->primary, sizeof(c->primary)))
        return once__fail(err, ONCE_EURL,
                          "redis: after the sentinels goes the name that "
                          "they have for the primary");
    return take_db(at[n] == '/' ? at + n + 1 : at + n, c, err);
}

static int take_socket(const char *at, struct once__redis_config *c,
                       once_error *err)
{
    struct once__redis_place *p = &c->hosts[0];

    c->host_count = 1;
    if (*at != '/' || !once__url_decode(at, strlen(at), p->host, 100))
        return once__fail(err, ONCE_EURL,
                          "redis: the socket's path is not absolute, or too "
                          "long");
    return ONCE_OK;
}

/* ---- Parameters ---------------------------------------------------------- */

int once__redis_prefix(char *url, struct once__redis_config *c, once_error *err)
{
    size_t n;
    int rc;

    (void)memcpy(c->prefix, "once:", sizeof("once:"));
    rc = once__url_take(url, "prefix", c->prefix, sizeof(c->prefix), err);
    if (rc < 0)
        return rc;
    n = strspn(c->prefix, "abcdefghijklmnopqrstuvwxyz0123456789"
                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ_.:/-");
    if (n == 0 || c->prefix[n] != '\0')
        return once__fail(err, ONCE_EURL,
                          "redis: a prefix has letters, digits and any of "
                          "_.:/-");
    return ONCE_OK;
}

static int take_tls(char *url, struct once__redis_config *c, once_error *err)
{
    int found = 0, rc, i;
    const struct {
        const char *param;
        char *out;
        size_t size;
    } t[] = {
        {"cacert", c->cacert, sizeof(c->cacert)},
        {"cert", c->cert, sizeof(c->cert)},
        {"key", c->key, sizeof(c->key)},
        {"sni", c->sni, sizeof(c->sni)},
    };

    for (i = 0; i < 4; i++) {
        rc = once__url_take(url, t[i].param, t[i].out, t[i].size, err);
        if (rc < 0)
            return rc;
        found += rc;
    }
    if (found > 0 && !c->tls)
        return once__fail(err, ONCE_EURL,
                          "redis: cacert, cert, key and sni need rediss");
    if ((c->cert[0] == '\0') != (c->key[0] == '\0'))
        return once__fail(err, ONCE_EURL, "redis: cert and key go together");
    return ONCE_OK;
}

static int take_numbers(char *url, struct once__redis_config *c, int socket,
                        once_error *err)
{
    int rc;

    c->timeout_ms = TIMEOUT_MS;
    c->wait_ms = WAIT_MS;
    rc = once__url_take_number(url, "timeout_ms", 10, TIMEOUT_MAX_MS,
                               &c->timeout_ms, err);
    if (rc >= 0)
        rc = once__url_take_number(url, "wait", 0, WAIT_MAX, &c->wait, err);
    if (rc >= 0)
        rc = once__url_take_number(url, "wait_ms", 1, TIMEOUT_MAX_MS,
                                   &c->wait_ms, err);
    if (rc >= 0 && socket)
        rc = once__url_take_number(url, "db", 0, 9999, &c->db, err);
    return rc < 0 ? rc : ONCE_OK;
}

static int take_secrets(char *url, struct once__redis_config *c,
                        once_error *err)
{
    int rc = once__url_take_secret(url, "password_file", c->password,
                                   sizeof(c->password), err);

    if (rc >= 0)
        rc = once__url_take(url, "sentinel_user", c->sentinel_user,
                            sizeof(c->sentinel_user), err);
    if (rc >= 0)
        rc = once__url_take_secret(url, "sentinel_password_file",
                                   c->sentinel_password,
                                   sizeof(c->sentinel_password), err);
    return rc < 0 ? rc : ONCE_OK;
}

static int take_parameters(char *url, struct once__redis_config *c, int socket,
                           once_error *err)
{
    size_t last;
    int rc = once__redis_prefix(url, c, err);

    if (rc == ONCE_OK)
        rc = take_numbers(url, c, socket, err);
    if (rc == ONCE_OK)
        rc = take_secrets(url, c, err);
    if (rc == ONCE_OK)
        rc = take_tls(url, c, err);
    if (rc != ONCE_OK)
        return rc;
    last = strcspn(url, "?");
    if (url[last] == '?' && url[last + 1] == '\0')
        url[last] = '\0';
    return once__url_end("redis", url, "those in docs/redis.md", err);
}

static int parse(int socket, char *url, struct once__redis_config *c,
                 once_error *err)
{
    const char *at = url + 2;
    size_t n;
    int rc = take_parameters(url, c, socket, err);

    if (rc != ONCE_OK)
        return rc;
    n = strcspn(at, "/");
    if (!once__url_user(&at, n, c->user, sizeof(c->user), c->password,
                        sizeof(c->password)))
        return once__fail(err, ONCE_EURL,
                          "redis: user or password are too long or badly "
                          "encoded");
    if (c->user[0] != '\0' && c->password[0] == '\0')
        rc = once__fail(err, ONCE_EURL,
                        "redis: a user without a password: say "
                        "user:password@ or password_file=PATH");
    if (rc != ONCE_OK)
        return rc;
    if (socket)
        return take_socket(at, c, err);
    n = strcspn(at, "/");
    rc = take_hosts(at, n, c, err);
    at += n;
    return rc != ONCE_OK ? rc : take_path(*at == '/' ? at + 1 : at, c, err);
}

int once__redis_parse(enum once__redis_mode mode, int tls, int socket,
                      const char *rest, struct once__redis_config *out,
                      once_error *err)
{
    char url[URL_MAX];
    size_t n = strlen(rest);
    int rc;

    memset(out, 0, sizeof(*out));
    out->mode = mode;
    out->tls = tls;
    if (strncmp(rest, "//", 2) != 0 || n >= sizeof(url))
        return once__fail(err, ONCE_EURL,
                          "redis: \"//\" and a host must follow the scheme");
    memcpy(url, rest, n + 1);
    rc = parse(socket, url, out, err);
    explicit_bzero(url, sizeof(url));
    if (rc != ONCE_OK)
        explicit_bzero(out, sizeof(*out));
    return rc;
}
