/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - checks a request, sums it up, and turns headers into bytes.
 *
 * It refuses whatever could be read in two ways on the wire: control
 * characters in a header or a URL, headers that belong to the client, a URL
 * with a password in it. Its texts name the field and never quote it.
 */
#include "client/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include <openssl/evp.h>

#include "base/bytes.h"
#include "base/error.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char sum_tag[] = "once client request 1";

/* RFC 9110, 5.6.2: what names and methods are made of. */
static int is_token(const char *text, size_t most)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    size_t i;

    for (i = 0; text[i] != '\0'; i++) {
        char ch = text[i];

        if (!((ch >= 'A' && ch <= 'Z') || (ch >= 'a' && ch <= 'z') ||
              (ch >= '0' && ch <= '9') || strchr(others, ch) != NULL))
            return 0;
    }
    return i > 0 && i <= most;
}

static int is_visible(const char *text)
{
    for (; *text != '\0'; text++)
        if (*text <= ' ' || *text > '~')
            return 0;
    return 1;
}

static int is_value(const char *text)
{
    for (; *text != '\0'; text++)
        if (((unsigned char)*text < ' ' && *text != '\t') || *text == 0x7f)
            return 0;
    return 1;
}

static int is_one_of(const char *name, const char *const *names, size_t n)
{
    while (n > 0)
        if (strcasecmp(name, names[--n]) == 0)
            return 1;
    return 0;
}

/* They have no effect to protect, or no answer to keep. */
static int is_no_order(const char *method)
{
    static const char *const others[] = {"HEAD", "CONNECT", "TRACE"};

    return is_one_of(method, others, COUNT(others));
}

static int is_ours(const char *name)
{
    static const char *const ours[] = {
        "Idempotency-Key",   "Host",   "Connection", "Content-Length",
        "Transfer-Encoding", "Expect",
    };

    return is_one_of(name, ours, COUNT(ours));
}

int once__header_secret(const once_client_header *h)
{
    static const char *const secret[] = {
        "Authorization",
        "Cookie",
        "Proxy-Authorization",
    };

    return (h->flags & ONCE_CLIENT_SECRET) != 0 ||
           is_one_of(h->name, secret, COUNT(secret));
}

/* ---- Checks ------------------------------------------------------------ */

int once__group_check(const char *group, once_bytes order, once_error *err)
{
    if (group != NULL && (group[0] == '\0' || !is_visible(group) ||
                          strlen(group) > ONCE__GROUP_MAX))
        return once__fail(err, ONCE_EINVAL,
                          "group: must be 1 to %d visible ASCII characters",
                          ONCE__GROUP_MAX);
    if (order.data == NULL || order.size == 0 ||
        order.size > ONCE_CLIENT_ORDER_MAX)
        return once__fail(err, ONCE_EINVAL, "order: must be 1 to %zu bytes",
                          ONCE_CLIENT_ORDER_MAX);
    return ONCE_OK;
}

/* What follows "://", or NULL if it is neither http nor https. */
static const char *after_scheme(const char *url)
{
    if (strncasecmp(url, "http://", 7) == 0)
        return url + 7;
    return strncasecmp(url, "https://", 8) == 0 ? url + 8 : NULL;
}

int once__url_check(const char *what, const char *url, once_error *err)
{
    const char *host = url != NULL ? after_scheme(url) : NULL;
    size_t size;

    if (host == NULL)
        return once__fail(err, ONCE_EINVAL,
                          "%s: must begin with http:// or https://", what);
    if (strlen(url) > ONCE_CLIENT_URL_MAX)
        return once__fail(err, ONCE_ELIMIT, "%s: over %zu characters", what,
                          ONCE_CLIENT_URL_MAX);
    if (!is_visible(url) || strchr(url, '#') != NULL ||
        strchr(url, '\\') != NULL)
        return once__fail(err, ONCE_EINVAL,
                          "%s: must be visible ASCII characters without "
                          "fragment; escape others",
                          what);
    size = strcspn(host, "/?");
    if (size == 0 || size > ONCE__AUTHORITY_MAX - 10)
        return once__fail(err, ONCE_EINVAL, "%s: no host, or a too long one",
                          what);
    if (memchr(host, '@', size) != NULL)
        return once__fail(err, ONCE_EINVAL,
                          "%s: holds a user or a password; send a header",
                          what);
    return ONCE_OK;
}

int once__headers_check(const once_client_header *headers, size_t n,
                        once_error *err)
{
    size_t i, size = 0;

    if (n > ONCE_CLIENT_HEADERS_MAX)
        return once__fail(err, ONCE_ELIMIT, "headers: more than %zu",
                          ONCE_CLIENT_HEADERS_MAX);
    for (i = 0; i < n; i++) {
        const once_client_header *h = &headers[i];

        if (h->name == NULL || !is_token(h->name, 256))
            return once__fail(err, ONCE_EINVAL,
                              "headers: name %zu is not one of HTTP", i + 1);
        if (is_ours(h->name))
            return once__fail(err, ONCE_EINVAL,
                              "headers: %s is the client's own", h->name);
        if (h->value == NULL || !is_value(h->value))
            return once__fail(err, ONCE_EINVAL,
                              "headers: the value of %s holds a control "
                              "character",
                              h->name);
        size += strlen(h->name) + strlen(h->value) + 4;
    }
    if (size > ONCE__HEADER_BYTES_MAX)
        return once__fail(err, ONCE_ELIMIT, "headers: over %d bytes",
                          ONCE__HEADER_BYTES_MAX);
    return ONCE_OK;
}

int once__request_check(const once_client_request *r, once_error *err)
{
    int rc = once__group_check(r->group, r->order, err);

    if (rc != ONCE_OK)
        return rc;
    if ((r->method == NULL) != (r->url == NULL))
        return once__fail(err, ONCE_EINVAL,
                          "method and url: both, or neither of them");
    if (r->deadline_ms > ONCE_CLIENT_DEADLINE_MAX_MS)
        return once__fail(err, ONCE_EINVAL, "deadline_ms: over %u",
                          ONCE_CLIENT_DEADLINE_MAX_MS);
    if (r->method == NULL && r->body.size > 0)
        return once__fail(err, ONCE_EINVAL, "body: not without method and url");
    if (r->method != NULL &&
        (!is_token(r->method, 32) || is_no_order(r->method)))
        return once__fail(err, ONCE_EINVAL,
                          "method: must be 1 to 32 characters of a token, and "
                          "not HEAD, CONNECT or TRACE");
    if (r->body.size > ONCE_CLIENT_BODY_MAX)
        return once__fail(err, ONCE_ELIMIT, "body: over %zu bytes",
                          ONCE_CLIENT_BODY_MAX);
    rc = r->url != NULL ? once__url_check("url", r->url, err) : ONCE_OK;
    if (rc == ONCE_OK && r->lookup != NULL)
        rc = once__url_check("lookup", r->lookup, err);
    return rc == ONCE_OK ? once__headers_check(r->headers, r->n_headers, err)
                         : rc;
}

/* ---- Sums -------------------------------------------------------------- */

static int add_part(EVP_MD_CTX *md, once_bytes part)
{
    uint8_t size[8];

    once__put(size, part.size, sizeof(size));
    return EVP_DigestUpdate(md, size, sizeof(size)) &&
           (part.size == 0 || EVP_DigestUpdate(md, part.data, part.size));
}

/* SHA-256 over length-framed parts. ONCE_OK or ONCE_ENOMEM. */
static int sum_of(const once_bytes *parts, size_t n,
                  uint8_t out[ONCE__DIGEST_SIZE])
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned int size = 0;
    size_t i;
    int ok = md != NULL && EVP_DigestInit_ex(md, EVP_sha256(), NULL);

    for (i = 0; i < n && ok; i++)
        ok = add_part(md, parts[i]);
    ok = ok && EVP_DigestFinal_ex(md, out, &size) && size == ONCE__DIGEST_SIZE;
    EVP_MD_CTX_free(md);
    return ok ? ONCE_OK : ONCE_ENOMEM;
}

static once_bytes text_bytes(const char *text)
{
    once_bytes b = {text, text != NULL ? strlen(text) : 0};

    return b;
}

int once__client_hash(const char *key, char out[17])
{
    uint8_t sum[ONCE__DIGEST_SIZE];
    unsigned int size = 0;

    if (!EVP_Digest(key, strlen(key), sum, &size, EVP_sha256(), NULL))
        return ONCE_ENOMEM;
    once__hex(sum, 8, out);
    return ONCE_OK;
}

/* The first header of this name, which is how the gateway reads both. */
static once_bytes value_of(const once_client_request *r, const char *name)
{
    size_t i;

    for (i = 0; i < r->n_headers; i++)
        if (strcasecmp(r->headers[i].name, name) == 0)
            return text_bytes(r->headers[i].value);
    return text_bytes(NULL);
}

int once__request_ask(const once_client_request *r, struct once__ask *out,
                      once_error *err)
{
    const once_bytes parts[] = {
        text_bytes(sum_tag),
        text_bytes(r->method),
        text_bytes(r->url),
        value_of(r, "Content-Type"),
        value_of(r, "Content-Encoding"),
        r->body,
    };
    struct once__ask ask = {
        .group = r->group != NULL ? r->group : "default",
        .order = r->order,
        .method = r->method,
        .url = r->url,
        .body = r->body,
        .ask_refused = r->ask_refused != 0,
    };

    if (sum_of(parts, COUNT(parts), ask.digest) != ONCE_OK ||
        once__headers_encode(r->headers, r->n_headers, once__header_secret,
                             &ask.headers) != ONCE_OK)
        return once__fail(err, ONCE_ENOMEM, "request: out of memory");
    *out = ask;
    return ONCE_OK;
}

/* ---- Headers as bytes -------------------------------------------------- */

int once__headers_encode(const once_client_header *h, size_t n,
                         int (*skip)(const once_client_header *),
                         once_bytes *out)
{
    size_t i, size = 0, used = 0;
    char *bytes;

    for (i = 0; i < n; i++)
        if (skip == NULL || !skip(&h[i]))
            size += strlen(h[i].name) + strlen(h[i].value) + 2;
    bytes = malloc(size + 1);
    if (bytes == NULL)
        return ONCE_ENOMEM;
    for (i = 0; i < n; i++) {
        size_t name = strlen(h[i].name) + 1, value = strlen(h[i].value) + 1;

        if (skip != NULL && skip(&h[i]))
            continue;
        memcpy(bytes + used, h[i].name, name);
        memcpy(bytes + used + name, h[i].value, value);
        used += name + value;
    }
    out->data = bytes;
    out->size = used;
    return ONCE_OK;
}

int once__headers_decode(once_bytes in, once_client_header **out, size_t *n)
{
    const char *p = in.data, *end = p != NULL ? p + in.size : p;
    once_client_header *h;
    size_t nuls = 0, i;

    for (i = 0; i < in.size; i++)
        nuls += p[i] == '\0';
    if (nuls % 2 != 0 || (in.size > 0 && end[-1] != '\0'))
        return ONCE_ECORRUPT;
    h = calloc(nuls / 2 + 1, sizeof(*h));
    if (h == NULL)
        return ONCE_ENOMEM;
    for (i = 0; i < nuls / 2; i++) {
        h[i].name = p;
        p += strlen(p) + 1;
        h[i].value = p;
        p += strlen(p) + 1;
    }
    *out = h;
    *n = nuls / 2;
    return ONCE_OK;
}

/* ---- Keys and hosts ---------------------------------------------------- */

int once__client_mint(char key[ONCE__KEY_SIZE], once_error *err)
{
    uint8_t bytes[16];
    size_t i, at = 0, got = 0;

    while (got < sizeof(bytes)) {
        ssize_t n = getrandom(bytes + got, sizeof(bytes) - got, 0);

        if (n < 0 && errno != EINTR)
            return once__fail(err, ONCE_EOPEN, "no random numbers: %s",
                              strerror(errno));
        got += n > 0 ? (size_t)n : 0;
    }
    for (i = 0; i < sizeof(bytes); i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            key[at++] = '-';
        once__hex(&bytes[i], 1, key + at);
        at += 2;
    }
    return ONCE_OK;
}

void once__client_authority(const char *url, char out[ONCE__AUTHORITY_MAX])
{
    const char *host = after_scheme(url);
    size_t size = host != NULL ? strcspn(host, "/?") : 0, i;

    (void)snprintf(out, ONCE__AUTHORITY_MAX, "%s%.*s",
                   strncasecmp(url, "https", 5) == 0 ? "https://" : "http://",
                   (int)size, host != NULL ? host : "");
    for (i = 0; out[i] != '\0'; i++)
        if (out[i] >= 'A' && out[i] <= 'Z')
            out[i] = (char)(out[i] - 'A' + 'a');
}
