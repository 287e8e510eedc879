/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kafka.c - the driver for Apache Kafka, by librdkafka: its URL, and the object
 * of the library that stands for a connection.
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
 * The library connects by itself, to all brokers that it needs, and again. Our
 * connect() asks for the topic, which proves that a broker answers, knows us and
 * has the topic. When no broker can be reached any more, the object is given up
 * with all that is open, and connect() makes another.
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
#include "base/steady.h"
#include "base/thread.h"
#include "base/url.h"

enum {
    URL_MAX = 8192,
    TIMEOUT_MS = 10000,
    SESSION_MS = 10000,
    ALONE_MS = 6000,
    SESSION_LEAST_MS = 1000,
    SESSION_MOST_MS = 1800000,
    SOCKET_MOST_MS = 300000, /* the library takes no more */
    FIRST_ASK_MS = 100       /* for the topic; twice as long each time */
};

/* The largest message, its headers and what the protocol adds. */
#define RECORD_MAX (ONCE_BODY_MAX + ONCE_HEADERS_MAX + 4096)

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

/* ---- Settings of the library --------------------------------------------- */

struct setting {
    const char *name, *value;
};

/* Fewer than 24 digits: enough for each number here. */
static const char *number(uint64_t n, char out[24])
{
    (void)snprintf(out, 24, "%" PRIu64, n);
    return out;
}

static int apply(rd_kafka_conf_t *conf, const struct setting *s, size_t n)
{
    char text[256]; /* may repeat a value: it is not shown */
    size_t i;
    int good = 1;

    for (i = 0; i < n && good; i++)
        good = s[i].value == NULL ||
               rd_kafka_conf_set(conf, s[i].name, s[i].value, text,
                                 sizeof(text)) == RD_KAFKA_CONF_OK;
    explicit_bzero(text, sizeof(text));
    return good;
}

static int set_common(const struct once__kafka *k, rd_kafka_conf_t *conf)
{
    char timeout[24], setup[24], record[24];
    int sasl = k->user[0] != '\0';
    const struct setting all[] = {
        {"bootstrap.servers", k->hosts},
        {"client.id", "once"},
        {"allow.auto.create.topics", "false"},
        {"socket.timeout.ms",
         number(k->o.timeout_ms < SOCKET_MOST_MS ? k->o.timeout_ms
                                                 : SOCKET_MOST_MS,
                timeout)},
        {"socket.connection.setup.timeout.ms",
         number(k->o.timeout_ms < 1000 ? 1000 : k->o.timeout_ms, setup)},
        {"socket.keepalive.enable", "true"},
        {"reconnect.backoff.max.ms", "1000"},
        {"message.max.bytes", number(RECORD_MAX, record)},
        {"security.protocol", sasl     ? "sasl_ssl"
                              : k->tls ? "ssl"
                                       : "plaintext"},
        {"ssl.endpoint.identification.algorithm", k->tls ? "https" : NULL},
        {"ssl.ca.location", k->tls ? k->ca_file : NULL},
        {"sasl.mechanism", sasl ? k->mechanism : NULL},
        {"sasl.username", sasl ? k->user : NULL},
        {"sasl.password", sasl ? k->password : NULL},
    };

    return apply(conf, all, sizeof(all) / sizeof(all[0]));
}

/*
 * With `hold` no message may leave twice, so nothing is repeated. Else the
 * library repeats what was not answered, and a broker recognises that by the
 * number that an idempotent producer gives to each record; those of one
 * partition stay in order.
 */
static int set_sending(const struct once__kafka *k, rd_kafka_conf_t *conf)
{
    char timeout[24], request[24], batch[24];
    const struct setting all[] = {
        {"acks", "all"},
        {"enable.idempotence", k->o.hold ? "false" : "true"},
        {"retries", k->o.hold ? "0" : NULL},
        {"max.in.flight.requests.per.connection", "5"},
        {"message.timeout.ms", number(k->o.timeout_ms, timeout)},
        {"request.timeout.ms",
         number(k->o.timeout_ms < SOCKET_MOST_MS ? k->o.timeout_ms
                                                 : SOCKET_MOST_MS,
                request)},
        {"partitioner", "murmur2_random"},
        {"batch.size", number(ONCE__KAFKA_BATCH_BYTES, batch)},
        {"linger.ms", "0"},
        {"queue.buffering.max.messages", "100000"},
        {"queue.buffering.max.kbytes", "262144"},
    };

    return apply(conf, all, sizeof(all) / sizeof(all[0]));
}

/* A consumer whose thread did not run for the time of the session is as good as
 * dead, so it has no more time between two polls. */
static int set_receiving(const struct once__kafka *k, rd_kafka_conf_t *conf)
{
    char session[24], beat[24];
    const struct setting all[] = {
        {"group.id", k->group},
        {"enable.auto.commit", "false"},
        {"enable.auto.offset.store", "false"},
        {"isolation.level", "read_committed"},
        {"partition.assignment.strategy", "cooperative-sticky"},
        {"auto.offset.reset", "earliest"},
        {"session.timeout.ms", number(k->session_ms, session)},
        {"max.poll.interval.ms", session},
        {"heartbeat.interval.ms", number(k->session_ms / 5, beat)},
        {"queued.min.messages", "1000"},
        {"queued.max.messages.kbytes", "16384"},
        {"fetch.wait.max.ms", "100"},
    };

    return apply(conf, all, sizeof(all) / sizeof(all[0]));
}

/* ---- What the library reports -------------------------------------------- */

void once__kafka_note(struct once__kafka *k, rd_kafka_resp_err_t err)
{
    switch (err) {
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
    case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
        k->refused = "the brokers refuse this user and password";
        break;
    case RD_KAFKA_RESP_ERR__SSL:
        k->refused = "a broker's certificate is not trusted, or not for this "
                     "host, or it has no TLS";
        break;
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
        k->refused = "the brokers refuse this topic to this user";
        break;
    case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
        k->refused = "the brokers refuse this group to this user";
        break;
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
        k->refused = "the brokers refuse an idempotent producer to this user";
        break;
    case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
    case RD_KAFKA_RESP_ERR__FATAL:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED:
        k->down = 1;
        break;
    default:
        return;
    }
    if (k->refused != NULL)
        k->down = 1;
}

static void on_error(rd_kafka_t *rk, int err, const char *reason, void *user)
{
    (void)rk;
    (void)reason; /* it may name users */
    once__kafka_note(user, err);
}

/* What it would write to standard error names users and hosts. */
static void on_log(const rd_kafka_t *rk, int level, const char *facility,
                   const char *text)
{
    (void)rk;
    (void)level;
    (void)facility;
    (void)text;
}

/* ---- The object that stands for a connection ------------------------------ */

static rd_kafka_t *make(struct once__kafka *k)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_t *rk = NULL;
    char text[256];

    rd_kafka_conf_set_opaque(conf, k);
    rd_kafka_conf_set_error_cb(conf, on_error);
    rd_kafka_conf_set_log_cb(conf, on_log);
    if (k->receives)
        rd_kafka_conf_set_rebalance_cb(conf, once__kafka_rebalanced);
    else
        rd_kafka_conf_set_dr_msg_cb(conf, once__kafka_delivered);
    if (set_common(k, conf) &&
        (k->receives ? set_receiving(k, conf) : set_sending(k, conf)))
        rk = rd_kafka_new(k->receives ? RD_KAFKA_CONSUMER : RD_KAFKA_PRODUCER,
                          conf, text, sizeof(text));
    explicit_bzero(text, sizeof(text));
    if (rk == NULL)
        rd_kafka_conf_destroy(conf);
    else if (k->receives)
        (void)rd_kafka_poll_set_consumer(rk);
    return rk;
}

/*
 * librdkafka before 2.3 aborts the process when a consumer is destroyed that has
 * asked to join a group and was told nothing yet (its issue 4381). Nothing was
 * received by such a one, so it stays and is used again; at the end it is left
 * where it is.
 */
static int must_stay(const struct once__kafka *k)
{
    return k->joined && !k->met && rd_kafka_version() < 0x02030000;
}

static void end_connection(struct once__kafka *k, const char *why)
{
    if (k->rk != NULL && k->receives)
        once__kafka_leave(k);
    else if (k->rk != NULL)
        once__kafka_end_sending(k);
    once__flights_lose(&k->flights, why);
    if (k->rkt != NULL)
        rd_kafka_topic_destroy(k->rkt);
    k->rkt = NULL;
    if (k->rk != NULL && !must_stay(k))
        rd_kafka_destroy_flags(k->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    k->rk = NULL;
    k->up = k->down = k->joined = k->met = 0;
}

void once__kafka_lose(struct once__kafka *k, const char *why)
{
    if (must_stay(k))
        k->up = k->down = 0;
    else
        end_connection(k, why);
}

static void serve(struct once__kafka *k)
{
    if (k->receives)
        once__kafka_serve(k, 0);
    else
        (void)rd_kafka_poll(k->rk, 0);
}

static rd_kafka_resp_err_t state_of_topic(const struct rd_kafka_metadata *md)
{
    if (md->topic_cnt != 1)
        return RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC;
    if (md->topics[0].err == RD_KAFKA_RESP_ERR_NO_ERROR &&
        md->topics[0].partition_cnt == 0)
        return RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC;
    return md->topics[0].err;
}

static int judge_topic(struct once__kafka *k, rd_kafka_resp_err_t state,
                       once_error *err)
{
    switch (state) {
    case RD_KAFKA_RESP_ERR_NO_ERROR:
        return ONCE_OK;
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
        return once__fail(err, ONCE_EOPEN, "kafka: there is no topic %s",
                          k->topic);
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
        return once__fail(err, ONCE_EOPEN,
                          "kafka: the brokers refuse the topic %s to this user",
                          k->topic);
    default:
        return once__fail(err, ONCE_EAWAY,
                          "kafka: the topic cannot be asked for: %d",
                          (int)state);
    }
}

/* Asks for the topic until a broker has answered. */
static int find_topic(struct once__kafka *k, once_error *err)
{
    uint64_t end = once__steady_ms() + k->o.timeout_ms, now;
    uint64_t ask = FIRST_ASK_MS;
    const struct rd_kafka_metadata *md = NULL;
    rd_kafka_resp_err_t rc;

    while ((now = once__steady_ms()) < end) {
        rc = rd_kafka_metadata(k->rk, 0, k->rkt, &md,
                               (int)(end - now < ask ? end - now : ask));
        if (rc == RD_KAFKA_RESP_ERR_NO_ERROR) {
            rc = state_of_topic(md);
            rd_kafka_metadata_destroy(md);
            return judge_topic(k, rc, err);
        }
        serve(k);
        if (k->refused != NULL)
            return once__fail(err, ONCE_EOPEN, "kafka: %s", k->refused);
        if (k->down)
            break;
        ask *= 2;
    }
    return once__fail(err, ONCE_EAWAY, "kafka: no broker can be reached");
}

static int set_up(struct once__kafka *k, once_error *err)
{
    int rc;

    k->refused = NULL;
    if (k->rk == NULL)
        k->rk = make(k);
    if (k->rk != NULL && k->rkt == NULL)
        k->rkt = rd_kafka_topic_new(k->rk, k->topic, NULL);
    if (k->rkt == NULL)
        return once__fail(err, ONCE_EOPEN,
                          "kafka: the library refuses the settings, or there "
                          "is no memory, or the certificates to trust cannot "
                          "be read");
    rc = find_topic(k, err);
    return rc == ONCE_OK && k->receives ? once__kafka_join(k, err) : rc;
}

static int kafka_connect(struct once__broker *b, once_error *err)
{
    struct once__kafka *k = self(b);
    int rc = ONCE_OK;

    (void)pthread_mutex_lock(&k->lock);
    if (k->rk != NULL)
        serve(k);
    if (k->down)
        once__kafka_lose(k, "the connection was lost");
    if (!k->up) {
        rc = set_up(k, err);
        k->up = rc == ONCE_OK;
        if (!k->up)
            once__kafka_lose(k, "the connection was not set up");
    }
    if (rc == ONCE_OK && k->receives && !k->beating)
        k->beating = pthread_create(&k->beat, NULL, once__kafka_beat, k) == 0;
    (void)pthread_mutex_unlock(&k->lock);
    return rc;
}

static void kafka_abandon(struct once__broker *b)
{
    struct once__kafka *k = self(b);

    (void)pthread_mutex_lock(&k->lock);
    once__kafka_lose(k, "no proof came in time");
    (void)pthread_mutex_unlock(&k->lock);
}

/* ---- The object ----------------------------------------------------------- */

static void kafka_close(struct once__broker *b)
{
    struct once__kafka *k = self(b);

    if (k == NULL)
        return;
    (void)pthread_mutex_lock(&k->lock);
    end_connection(k, "the connection was closed");
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
    .connect = kafka_connect,
    .send = once__kafka_send,
    .proofs = once__kafka_proofs,
    .abandon = kafka_abandon,
    .receive = once__kafka_receive,
    .ack = once__kafka_ack,
};
