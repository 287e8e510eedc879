/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls.c - TLS to a Redis server, on a socket that never blocks.
 *
 * The chain, its dates and the host's name are always checked, against the
 * system's authorities or `cacert`; there is no switch that turns it off. The
 * bytes go through a BIO of ours, because OpenSSL's own writes to a socket that
 * the other side has closed raise SIGPIPE, which a library must not.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/redis/redis.h"

struct once__redis_tls {
    SSL_CTX *context;
    BIO_METHOD *method;
};

static int again(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static int socket_write(BIO *b, const char *data, int size)
{
    ssize_t n =
        send((int)(intptr_t)BIO_get_data(b), data, (size_t)size, MSG_NOSIGNAL);

    BIO_clear_retry_flags(b);
    if (n < 0 && again())
        BIO_set_retry_write(b);
    return (int)n;
}

static int socket_read(BIO *b, char *data, int size)
{
    ssize_t n = recv((int)(intptr_t)BIO_get_data(b), data, (size_t)size, 0);

    BIO_clear_retry_flags(b);
    if (n < 0 && again())
        BIO_set_retry_read(b);
    return (int)n;
}

static long socket_ctrl(BIO *b, int what, long number, void *pointer)
{
    (void)b;
    (void)number;
    (void)pointer;
    return what == BIO_CTRL_FLUSH;
}

static int socket_create(BIO *b)
{
    BIO_set_init(b, 1);
    return 1;
}

static BIO_METHOD *new_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "once redis");

    if (m == NULL)
        return NULL;
    (void)BIO_meth_set_write(m, socket_write);
    (void)BIO_meth_set_read(m, socket_read);
    (void)BIO_meth_set_ctrl(m, socket_ctrl);
    (void)BIO_meth_set_create(m, socket_create);
    return m;
}

/* What OpenSSL has against a file or a peer; neither holds a secret. */
static const char *reason(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_last_error());

    return text == NULL ? "no reason given" : text;
}

static int load(SSL_CTX *x, const struct once__redis_config *c, once_error *err)
{
    int ok = c->cacert[0] == '\0'
                 ? SSL_CTX_set_default_verify_paths(x)
                 : SSL_CTX_load_verify_locations(x, c->cacert, NULL);

    if (ok != 1)
        return once__fail(err, ONCE_EOPEN, "redis: cacert: %s", reason());
    if (c->cert[0] == '\0')
        return ONCE_OK;
    if (SSL_CTX_use_certificate_chain_file(x, c->cert) != 1)
        return once__fail(err, ONCE_EOPEN, "redis: cert: %s", reason());
    if (SSL_CTX_use_PrivateKey_file(x, c->key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(x) != 1)
        return once__fail(err, ONCE_EOPEN, "redis: key: %s", reason());
    return ONCE_OK;
}

void once__redis_tls_free(struct once__redis_tls *t)
{
    if (t == NULL)
        return;
    SSL_CTX_free(t->context);
    BIO_meth_free(t->method);
    free(t);
}

int once__redis_tls_new(const struct once__redis_config *config,
                        once_error *err, struct once__redis_tls **out)
{
    struct once__redis_tls *t = calloc(1, sizeof(*t));
    int rc = ONCE_ENOMEM;

    if (t != NULL) {
        t->context = SSL_CTX_new(TLS_client_method());
        t->method = new_method();
    }
    if (t == NULL || t->context == NULL || t->method == NULL) {
        (void)once__fail(err, rc, "redis: out of memory");
        goto out;
    }
    ERR_clear_error();
    SSL_CTX_set_verify(t->context, SSL_VERIFY_PEER, NULL);
    (void)SSL_CTX_set_min_proto_version(t->context, TLS1_2_VERSION);
    (void)SSL_CTX_set_mode(t->context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                           SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    rc = load(t->context, config, err);
    if (rc != ONCE_OK)
        goto out;
    *out = t;
    t = NULL;
out:
    once__redis_tls_free(t);
    return rc;
}

static int name_peer(SSL *ssl, const char *name)
{
    uint8_t address[sizeof(struct in6_addr)];

    if (inet_pton(AF_INET, name, address) == 1 ||
        inet_pton(AF_INET6, name, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
    return SSL_set1_host(ssl, name) == 1 &&
           SSL_set_tlsext_host_name(ssl, name) == 1;
}

SSL *once__redis_tls_attach(struct once__redis_tls *t, int fd,
                            const struct once__redis_config *config,
                            const char *host)
{
    const char *name = config->sni[0] != '\0' ? config->sni : host;
    SSL *ssl = SSL_new(t->context);
    BIO *bio = BIO_new(t->method);

    if (ssl == NULL || bio == NULL || !name_peer(ssl, name)) {
        SSL_free(ssl);
        (void)BIO_free(bio);
        return NULL;
    }
    BIO_set_data(bio, (void *)(intptr_t)fd);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_connect_state(ssl);
    return ssl;
}

int once__redis_tls_greet(SSL *ssl, short *events, char *why, size_t size)
{
    long verdict;
    int rc;

    ERR_clear_error();
    rc = SSL_connect(ssl);
    if (rc == 1)
        return 1;
    rc = SSL_get_error(ssl, rc);
    *events = rc == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    if (rc == SSL_ERROR_WANT_WRITE || rc == SSL_ERROR_WANT_READ)
        return 0;
    verdict = SSL_get_verify_result(ssl);
    (void)snprintf(why, size, "%s",
                   verdict != X509_V_OK ? X509_verify_cert_error_string(verdict)
                                        : reason());
    return -1;
}

/* Bytes, or why there are none. */
static ssize_t moved(SSL *ssl, int rc)
{
    if (rc > 0)
        return rc;
    rc = SSL_get_error(ssl, rc);
    return rc == SSL_ERROR_WANT_READ || rc == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

ssize_t once__redis_tls_send(SSL *ssl, const void *data, size_t size)
{
    ERR_clear_error();
    return moved(ssl,
                 SSL_write(ssl, data, size > INT_MAX ? INT_MAX : (int)size));
}

ssize_t once__redis_tls_recv(SSL *ssl, void *data, size_t size)
{
    ERR_clear_error();
    return moved(ssl,
                 SSL_read(ssl, data, size > INT_MAX ? INT_MAX : (int)size));
}
