/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kafka.c - the driver for Apache Kafka, by librdkafka: its URL and its table.
 *
 *    kafka://HOST1[:PORT],HOST2/TOPIC                  to send
 *    kafka://HOST1[:PORT],HOST2/TOPIC?group=G          to receive
 *    kafkas://[USER[:PASSWORD]@]...                    the same, with TLS
 *
 *    receiving  group=G            [the consumer's name]
 *               session_ms=10000   what a consumer had that died or hangs goes
 *                                  to another after this time [in order: 6000]
 *    both       mechanism=M        PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 [the
 *                                  last]
 *               password_file=PATH
 *
 * It refuses to send a password without TLS, and to make a topic.
 */
#include "messages/broker/kafka/kafka.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/thread.h"
#include "base/url.h"

enum {
    URL_MAX = 8192,
    TIMEOUT_MS = 10000,
    SESSION_MS = 10000,
    ALONE_MS = 6000,
    SESSION_LEAST_MS = 1000,
    SESSION_MOST_MS = 1800000
};

extern const struct once__broker_ops once__broker_kafka;

static struct once__kafka *self(struct once__broker *b)
{
    return (struct once__kafka *)(void *)b;
}

/* ---- The URL ------------------------------------------------------------- */

static int take_parameters(struct once__kafka *k, char *url, once_error *err)
{
    int rc = once__url_take(url, "group", k->group, sizeof(k->group), err);

    if (rc == 1 && !k->receives)
        return once__fail(err, ONCE_EURL,
                          "kafka: parameter group is one of consumers");
    if (rc >= 0 && k->receives)
        rc = once__url_take_number(url, "session_ms", SESSION_LEAST_MS,
                                   SESSION_MOST_MS, &k->session_ms, err);
    if (rc >= 0)
        rc = once__url_take(url, "mechanism", k->mechanism,
                            sizeof(k->mechanism), err);
    if (rc >= 0)
        rc = once__url_take_secret(url, "password_file", k->password,
                                   sizeof(k->password), err);
    if (rc < 0)
        return rc;
    if (k->receives && k->group[0] == '\0')
        (void)snprintf(k->group, sizeof(k->group), "%s", k->o.consumer);
    return once__url_end("kafka", url,
                         k->receives
                             ? "group, session_ms, mechanism, password_file"
                             : "mechanism, password_file",
                         err);
}

static int take_topic(struct once__kafka *k, const char *at, once_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(at);

    if (n == 0 || n > ONCE__KAFKA_TOPIC_MAX || strspn(at, letters) != n ||
        strcmp(at, ".") == 0 || strcmp(at, "..") == 0)
        return once__fail(err, ONCE_EURL,
                          "kafka: the path is no topic: 1 to %d of the "
                          "characters A to Z, a to z, 0 to 9, \".\", \"_\" and "
                          "\"-\"",
                          ONCE__KAFKA_TOPIC_MAX);
    memcpy(k->topic, at, n + 1);
    return ONCE_OK;
}

static int take_hosts(struct once__kafka *k, const char *at, size_t size,
                      once_error *err)
{
    const char *end = at + size, *stop, *wrong;
    char host[256], port[ONCE__URL_PORT];
    size_t used = 0;

    for (;; at = stop + 1) {
        stop = memchr(at, ',', (size_t)(end - at));
        if (stop == NULL)
            stop = end;
        wrong = once__url_place(at, (size_t)(stop - at), "9092", host,
                                sizeof(host), port);
        if (wrong != NULL)
            return once__fail(err, ONCE_EURL, "kafka: host and port: %s",
                              wrong);
        used += (size_t)snprintf(k->hosts + used, sizeof(k->hosts) - used,
                                 strchr(host, ':') == NULL ? "%s%s:%s"
                                                           : "%s[%s]:%s",
                                 used > 0 ? "," : "", host, port);
        if (used >= sizeof(k->hosts))
            return once__fail(err, ONCE_EURL, "kafka: the hosts are too long");
        if (stop == end)
            return ONCE_OK;
    }
}

static int check_user(struct once__kafka *k, once_error *err)
{
    static const char *const known[] = {"PLAIN", "SCRAM-SHA-256",
                                        "SCRAM-SHA-512"};
    size_t i = 0;

    if (k->user[0] == '\0' && k->password[0] == '\0')
        return k->mechanism[0] == '\0'
                   ? ONCE_OK
                   : once__fail(err, ONCE_EURL,
                                "kafka: mechanism= is for a user, and there is "
                                "none");
    if (k->user[0] == '\0' || k->password[0] == '\0')
        return once__fail(err, ONCE_EURL,
                          "kafka: a user and a password go together: "
                          "user:password@ or password_file=PATH");
    if (!k->tls)
        return once__fail(err, ONCE_EURL,
                          "kafka: a password is sent with TLS only: kafkas:");
    if (k->mechanism[0] == '\0')
        (void)snprintf(k->mechanism, sizeof(k->mechanism), "%s", known[2]);
    while (i < 3 && strcmp(known[i], k->mechanism) != 0)
        i++;
    return i < 3 ? ONCE_OK
                 : once__fail(err, ONCE_EURL,
                              "kafka: mechanism is not PLAIN, SCRAM-SHA-256 or "
                              "SCRAM-SHA-512");
}

/* `url` is a copy, which it cuts. */
static int parse(struct once__kafka *k, char *url, once_error *err)
{
    int rc = take_parameters(k, url, err);
    const char *at = strstr(url, "://");
    size_t size;

    if (rc != ONCE_OK)
        return rc;
    if (at == NULL)
        return once__fail(err, ONCE_EURL,
                          "kafka: \"//\" and a host must follow the scheme");
    at += 3;
    size = strcspn(at, "/");
    if (!once__url_user(&at, size, k->user, sizeof(k->user), k->password,
                        sizeof(k->password)))
        return once__fail(err, ONCE_EURL,
                          "kafka: user or password are too long or badly "
                          "encoded");
    size = strcspn(at, "/");
    rc = take_hosts(k, at, size, err);
    if (rc == ONCE_OK)
        rc = take_topic(k, at[size] == '/' ? at + size + 1 : "", err);
    return rc == ONCE_OK ? check_user(k, err) : rc;
}

static int read_url(struct once__kafka *k, const char *url, once_error *err)
{
    char copy[URL_MAX];
    int rc;

    if (strlen(url) >= sizeof(copy))
        return once__fail(err, ONCE_EURL, "kafka: longer than %d characters",
                          URL_MAX - 1);
    (void)snprintf(copy, sizeof(copy), "%s", url);
    k->tls = strncmp(url, "kafkas:", 7) == 0;
    k->session_ms = k->o.alone ? ALONE_MS : SESSION_MS;
    rc = parse(k, copy, err);
    explicit_bzero(copy, sizeof(copy));
    return rc;
}

/* ---- The object ----------------------------------------------------------- */

static void kafka_close(struct once__broker *b)
{
    struct once__kafka *k = self(b);

    if (k == NULL)
        return;
    (void)pthread_mutex_lock(&k->lock);
    once__kafka_end(k, "the connection was closed");
    k->stop = 1;
    (void)pthread_cond_signal(&k->wake);
    (void)pthread_mutex_unlock(&k->lock);
    if (k->beating)
        (void)pthread_join(k->beat, NULL);
    once__incoming_drop(&k->out);
    once__flights_clear(&k->flights);
    once__suspects_clear(&k->suspects);
    free(k->parts);
    free(k->ca_file);
    (void)pthread_cond_destroy(&k->wake);
    (void)pthread_mutex_destroy(&k->lock);
    explicit_bzero(k, sizeof(*k));
    free(k);
}

static int kafka_open(const char *url, const struct once__broker_options *o,
                      struct once__broker **out, once_error *err)
{
    struct once__kafka *k = calloc(1, sizeof(*k));
    int rc;

    *out = NULL;
    if (k == NULL)
        return once__fail(err, ONCE_ENOMEM, "kafka: no memory");
    k->broker.ops = &once__broker_kafka;
    k->o = *o;
    if (k->o.timeout_ms == 0)
        k->o.timeout_ms = TIMEOUT_MS;
    if (k->o.prefetch == 0)
        k->o.prefetch = 1;
    k->receives = o->consumer != NULL;
    (void)pthread_mutex_init(&k->lock, NULL);
    once__cond_init(&k->wake);
    rc = read_url(k, url, err);
    if (rc == ONCE_OK && o->ca_file != NULL) {
        k->ca_file = strdup(o->ca_file);
        if (k->ca_file == NULL)
            rc = once__fail(err, ONCE_ENOMEM, "kafka: no memory");
    }
    if (rc != ONCE_OK) {
        kafka_close(&k->broker);
        return rc;
    }
    *out = &k->broker;
    return ONCE_OK;
}

const struct once__broker_ops once__broker_kafka = {
    .scheme = "kafka",
    .knows_ids = 1,
    .open = kafka_open,
    .close = kafka_close,
    .connect = once__kafka_connect,
    .send = once__kafka_send,
    .proofs = once__kafka_proofs,
    .abandon = once__kafka_abandon,
    .receive = once__kafka_receive,
    .ack = once__kafka_ack,
};
