/* SPDX-License-Identifier: Apache-2.0 */
/*
 * url.c - parameters in the query part of a store's URL (RFC 3986, 3.4).
 *
 * Only what is asked for is looked at and taken out; the rest goes on to the
 * store's own library, or is refused by once__url_end(). It refuses a parameter
 * that stands there twice, since one of both would be ignored, and never
 * repeats a value.
 */
#include "base/url.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/secret.h"

/* The parameter in front of which a "?" or "&" stands, or NULL. */
static char *find(char *url, const char *param)
{
    size_t size = strlen(param);
    char *at = strchr(url, '?');

    while (at != NULL) {
        if (strncmp(at + 1, param, size) == 0 && at[1 + size] == '=')
            return at + 1;
        at = strchr(at + 1, '&');
    }
    return NULL;
}

int once__url_decode(const char *value, size_t length, char *out, size_t size)
{
    size_t i, n = 0;

    for (i = 0; i < length; i++) {
        char c = value[i];

        if (c == '%') {
            if (i + 2 >= length || once__hex_digit(value[i + 1]) < 0 ||
                once__hex_digit(value[i + 2]) < 0)
                return 0;
            c = (char)(once__hex_digit(value[i + 1]) << 4 |
                       once__hex_digit(value[i + 2]));
            i += 2;
        }
        if (c == '\0' || n + 1 >= size)
            return 0;
        out[n++] = c;
    }
    out[n] = '\0';
    return 1;
}

/* Takes at[0..size) out, and one of the separators around it. */
static void cut(char *at, size_t size)
{
    char *end = at + size;

    if (*end == '&')
        end++;
    else
        at--;
    memmove(at, end, strlen(end) + 1);
}

/* The part before the last "@" of the authority. */
int once__url_user(const char **at, size_t authority, char *user,
                   size_t user_size, char *password, size_t password_size)
{
    const char *end = memrchr(*at, '@', authority), *from = *at, *colon;

    if (end == NULL)
        return 1;
    colon = memchr(from, ':', (size_t)(end - from));
    if (colon == NULL)
        colon = end;
    *at = end + 1;
    return once__url_decode(from, (size_t)(colon - from), user, user_size) &&
           (colon == end ||
            once__url_decode(colon + 1, (size_t)(end - colon - 1), password,
                             password_size));
}

const char *once__url_place(const char *from, size_t size,
                            const char *usual_port, char *host,
                            size_t host_size, char port[ONCE__URL_PORT])
{
    const char *end = from + size, *colon = memrchr(from, ':', size);
    const char *digits = usual_port;
    size_t n = colon == NULL ? size : (size_t)(colon - from);

    if (size > 0 && *from == '[') { /* an IPv6 address */
        const char *close = memchr(from, ']', size);

        if (close == NULL)
            return "a \"]\" is missing";
        from++;
        n = (size_t)(close - from);
        colon = close + 1 < end && close[1] == ':' ? close + 1 : NULL;
    }
    if (n == 0 || n >= host_size)
        return "a host is missing or too long";
    memcpy(host, from, n);
    host[n] = '\0';
    if (colon != NULL)
        digits = colon + 1;
    n = colon != NULL ? (size_t)(end - digits) : strlen(digits);
    if (n == 0 || n > 5 || strspn(digits, "0123456789") < n)
        return "a port is not a number";
    memcpy(port, digits, n);
    port[n] = '\0';
    return NULL;
}

int once__url_take(char *url, const char *param, char *out, size_t size,
                   once_error *err)
{
    char *at = find(url, param);
    size_t name = strlen(param) + 1, length;

    assert(size > 0);
    if (at == NULL)
        return 0;
    length = strcspn(at + name, "&#");
    if (!once__url_decode(at + name, length, out, size))
        return once__fail(err, ONCE_EURL,
                          "store: parameter %s is badly encoded or longer "
                          "than %zu bytes",
                          param, size - 1);
    cut(at, name + length);
    if (find(url, param) != NULL)
        return once__fail(err, ONCE_EURL, "store: parameter %s is there twice",
                          param);
    return 1;
}

int once__url_take_number(char *url, const char *param, uint64_t least,
                          uint64_t most, uint64_t *out, once_error *err)
{
    char text[24] = "";
    uint64_t value = 0;
    size_t i;
    int rc = once__url_take(url, param, text, sizeof(text), err);

    if (rc <= 0)
        return rc;
    for (i = 0; text[i] >= '0' && text[i] <= '9' && i < 19; i++)
        value = value * 10 + (uint64_t)(text[i] - '0');
    if (i == 0 || text[i] != '\0' || value < least || value > most)
        return once__fail(err, ONCE_EURL,
                          "store: parameter %s is not a number from %llu to "
                          "%llu",
                          param, (unsigned long long)least,
                          (unsigned long long)most);
    *out = value;
    return 1;
}

static int read_secret(const char *path, char *out, size_t size,
                       once_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) != 0) {
        n = errno;
        if (fd >= 0)
            (void)close(fd);
        return once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror((int)n));
    }
    if (once__secret_mode(path, &st, err) != ONCE_OK) {
        (void)close(fd);
        return ONCE_EOPEN;
    }
    n = read(fd, out, size);
    (void)close(fd);
    if (n <= 0 || (size_t)n == size) {
        explicit_bzero(out, size);
        return once__fail(err, ONCE_EOPEN, "%s: empty or too long", path);
    }
    out[n] = '\0';
    out[strcspn(out, "\r\n")] = '\0';
    return 1;
}

int once__url_take_secret(char *url, const char *param, char *out, size_t size,
                          once_error *err)
{
    char path[PATH_MAX];
    int rc = once__url_take(url, param, path, sizeof(path), err);

    return rc <= 0 ? rc : read_secret(path, out, size, err);
}

int once__url_end(const char *store, char *url, const char *known,
                  once_error *err)
{
    char *mark = strchr(url, '?');
    size_t size;

    if (mark == NULL)
        return ONCE_OK;
    *mark = '\0';
    size = strspn(mark + 1, "abcdefghijklmnopqrstuvwxyz_");
    if (mark[1 + size] != '=' || strchr(mark + 1, '@') != NULL)
        size = 0; /* it may be part of a password with a "?" in it */
    if (size == 0)
        return once__fail(err, ONCE_EURL,
                          "%s: unknown parameter; known are %s. Its text is "
                          "not shown, since it may be part of a password, in "
                          "which ? @ and / are written %%3F, %%40 and %%2F",
                          store, known);
    return once__fail(err, ONCE_EURL,
                      "%s: unknown parameter \"%.*s\"; known "
                      "are %s",
                      store, (int)size, mark + 1, known);
}
