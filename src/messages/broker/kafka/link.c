/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - the driver for Kafka: the object of the library that stands for a
 * connection, and its settings.
 *
 * The library connects by itself, to all brokers that it needs, and again. Our
 * connect() asks for the topic, which proves that a broker answers, knows us and
 * has the topic. When no broker can be reached any more, the object is given up
 * with all that is open, and connect() makes another.
 */
#include "messages/broker/kafka/kafka.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/steady.h"
#include "base/thread.h"

enum {
    SOCKET_MOST_MS = 300000, /* the library takes no more */
    FIRST_ASK_MS = 100,      /* for the topic; twice as long each time */
    REFRESH_MS = 10000,      /* for its partitions; the library: 300000 */
    HEARD_OF_MS = 3000,      /* for a new topic to be known to each broker */
    AGAIN_MS = 2500,         /* longer than the library waits to try again */
    END_MS = 5000            /* for the library to end an object */
};

/* The largest message, its headers and what the protocol adds. */
#define RECORD_MAX (ONCE_BODY_MAX + ONCE_HEADERS_MAX + 4096)

static struct once__kafka *self(struct once__broker *b)
{
    return (struct once__kafka *)(void *)b;
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
 * The library repeats what was not answered, and a broker recognises that by the
 * number that an idempotent producer gives to each record; those of one
 * partition stay in order. It is so with `hold`, too: some errors let the
 * library send again even when it is told not to, and without a number a broker
 * would write that twice.
 *
 * A record waits for no other (linger.ms), since the next one of its key waits for
 * it. The library would then draw a partition for each record without a key, and
 * send a dozen requests where one or two are enough: those of 10 ms get the same.
 */
static int set_sending(const struct once__kafka *k, rd_kafka_conf_t *conf)
{
    char timeout[24], request[24], batch[24];
    const struct setting all[] = {
        {"acks", "all"},
        {"enable.idempotence", "true"},
        {"max.in.flight.requests.per.connection", "5"},
        {"message.timeout.ms", number(k->o.timeout_ms, timeout)},
        {"request.timeout.ms",
         number(k->o.timeout_ms < SOCKET_MOST_MS ? k->o.timeout_ms
                                                 : SOCKET_MOST_MS,
                request)},
        {"partitioner", "murmur2_random"},
        {"batch.size", number(ONCE__KAFKA_BATCH_BYTES, batch)},
        {"linger.ms", "0"},
        {"sticky.partitioning.linger.ms", "10"},
        {"queue.buffering.max.messages", "100000"},
        {"queue.buffering.max.kbytes", "262144"},
    };

    return apply(conf, all, sizeof(all) / sizeof(all[0]));
}

/* A consumer whose thread did not run for the time of the session is as good as
 * dead, so it has no more time between two polls. */
static int set_receiving(const struct once__kafka *k, rd_kafka_conf_t *conf)
{
    char session[24], beat[24], refresh[24];
    const struct setting all[] = {
        {"group.id", k->group},
        {"enable.auto.commit", "false"},
        {"enable.auto.offset.store", "false"},
        {"isolation.level", "read_committed"},
        {"partition.assignment.strategy", "range,roundrobin"}, /* group.c */
        {"auto.offset.reset", "error"}, /* group.c: begin_over() */
        {"session.timeout.ms", number(k->session_ms, session)},
        {"max.poll.interval.ms", session},
        {"heartbeat.interval.ms", number(k->session_ms / 5, beat)},
        {"queued.min.messages", "1000"},
        {"queued.max.messages.kbytes", "16384"},
        {"fetch.wait.max.ms", "100"},
        {"topic.metadata.refresh.interval.ms", number(REFRESH_MS, refresh)},
    };

    return apply(conf, all, sizeof(all) / sizeof(all[0]));
}

/* ---- The object of the library ------------------------------------------------- */

static void on_error(rd_kafka_t *rk, int err, const char *reason, void *user)
{
    (void)reason; /* it may name users */
    if (err == RD_KAFKA_RESP_ERR__FATAL)
        once__kafka_note(user, rd_kafka_fatal_error(rk, NULL, 0));
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

/* An object that the library ends on a thread of its own. Of the two threads the
 * last one frees this. */
struct ending {
    pthread_mutex_t lock;
    pthread_cond_t over;
    rd_kafka_t *rk;
    int done, left;
};

static void free_ending(struct ending *e)
{
    (void)pthread_mutex_unlock(&e->lock);
    (void)pthread_cond_destroy(&e->over);
    (void)pthread_mutex_destroy(&e->lock);
    free(e);
}

static void *end_it(void *user)
{
    struct ending *e = user;

    rd_kafka_destroy_flags(e->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    (void)pthread_mutex_lock(&e->lock);
    e->done = 1;
    (void)pthread_cond_signal(&e->over);
    if (e->left)
        free_ending(e);
    else
        (void)pthread_mutex_unlock(&e->lock);
    return NULL;
}

static void say_left(const struct once__kafka *k)
{
    if (k->o.log != NULL)
        k->o.log(k->o.user,
                 "kafka: the library does not end a connection (perhaps its "
                 "issue 4674): it is left to itself, with its threads");
}

/*
 * Ends an object of the library, or leaves it behind. When brokers have gone and come
 * back, librdkafka may wait for ever for a thread of its own to end: nothing would be
 * received any more, and nothing would be said. Of our functions it calls on_log()
 * meanwhile, which must not look at the connection; the others are called in polls.
 */
static void end_object(const struct once__kafka *k, rd_kafka_t *rk)
{
    struct ending *e = calloc(1, sizeof(*e));
    uint64_t until = once__steady_ms() + END_MS;
    pthread_t thread;

    if (e == NULL) {
        say_left(k);
        return;
    }
    e->rk = rk;
    (void)pthread_mutex_init(&e->lock, NULL);
    once__cond_init(&e->over);
    (void)pthread_mutex_lock(&e->lock);
    if (once__thread_start(&thread, "kafka end", end_it, e) != 0) {
        free_ending(e);
        say_left(k);
        return;
    }
    (void)pthread_detach(thread);
    while (!e->done && once__steady_ms() < until)
        once__cond_until(&e->over, &e->lock, until);
    e->left = !e->done;
    if (e->done) {
        free_ending(e);
        return;
    }
    (void)pthread_mutex_unlock(&e->lock);
    say_left(k);
}

void once__kafka_end(struct once__kafka *k, const char *why)
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
        end_object(k, k->rk);
    k->rk = NULL;
    k->up = k->down = k->joined = k->met = 0;
}

void once__kafka_lose(struct once__kafka *k, const char *why)
{
    if (must_stay(k))
        k->up = k->down = 0;
    else
        once__kafka_end(k, why);
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

/* What a broker says of it, or TIMED_OUT: none has answered. */
static rd_kafka_resp_err_t ask_for_topic(struct once__kafka *k,
                                         uint64_t wait_ms)
{
    const struct rd_kafka_metadata *md = NULL;
    rd_kafka_resp_err_t rc;

    if (rd_kafka_metadata(k->rk, 0, k->rkt, &md, (int)wait_ms) !=
        RD_KAFKA_RESP_ERR_NO_ERROR)
        return RD_KAFKA_RESP_ERR__TIMED_OUT;
    rc = state_of_topic(md);
    rd_kafka_metadata_destroy(md);
    return rc;
}

static int is_unknown(rd_kafka_resp_err_t state)
{
    return state == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC ||
           state == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
}

static int is_known(rd_kafka_resp_err_t state)
{
    return state != RD_KAFKA_RESP_ERR__TIMED_OUT && !is_unknown(state);
}

static int judge_topic(struct once__kafka *k, rd_kafka_resp_err_t state,
                       once_error *err)
{
    if (is_unknown(state))
        return once__fail(err, ONCE_EOPEN,
                          "kafka: the topic %s does not exist. Create it: "
                          "kafka-topics.sh --bootstrap-server %.80s --create "
                          "--topic %s",
                          k->topic, k->hosts, k->topic);
    switch (state) {
    case RD_KAFKA_RESP_ERR_NO_ERROR:
        return ONCE_OK;
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
        return once__fail(
            err, ONCE_EOPEN,
            "kafka: the brokers refuse the topic %s to this user. "
            "Grant it: kafka-acls.sh --add --allow-principal "
            "User:NAME --operation %s --topic %s",
            k->topic, k->receives ? "Read" : "Write", k->topic);
    default:
        return once__fail(err, ONCE_EAWAY,
                          "kafka: the topic cannot be asked for: %d",
                          (int)state);
    }
}

/*
 * Asks for the topic until a broker has answered. The library says that all are away
 * while it waits to try again, which it does within a second: that is no answer. A
 * broker that has just started knows no topic, and not all brokers know a new topic
 * at once. So it has to be unknown for a while.
 */
static int find_topic(struct once__kafka *k, once_error *err)
{
    uint64_t begin = once__steady_ms(), end = begin + k->o.timeout_ms, now;
    uint64_t ask = FIRST_ASK_MS, unknown = 0; /* since when; 0: it is not */
    uint64_t doubt =
        k->o.timeout_ms / 2 < HEARD_OF_MS ? k->o.timeout_ms / 2 : HEARD_OF_MS;
    rd_kafka_resp_err_t state;

    while ((now = once__steady_ms()) < end) {
        state = ask_for_topic(k, end - now < ask ? end - now : ask);
        if (state == RD_KAFKA_RESP_ERR__TIMED_OUT)
            ask *= 2;
        if (!is_unknown(state))
            unknown = 0;
        else if (unknown == 0)
            unknown = now;
        if (is_known(state) || (unknown != 0 && now - unknown >= doubt))
            return judge_topic(k, state, err);
        if (unknown != 0)
            once__sleep_ms(FIRST_ASK_MS);
        serve(k);
        if (k->refused != NULL)
            return once__kafka_refusal(k, err);
        if (k->down && now - begin > AGAIN_MS)
            break;
        if (k->down)
            unknown = 0;
        k->down = 0;
    }
    return once__fail(err, ONCE_EAWAY,
                      unknown != 0 ? "kafka: no broker knows the topic yet"
                                   : "kafka: no broker can be reached");
}

static int set_up(struct once__kafka *k, once_error *err)
{
    int rc, unwelcome = k->refused != NULL;
    rd_kafka_message_t *old;

    if (k->rk != NULL && k->receives) /* what one that stayed had to say */
        while ((old = rd_kafka_consumer_poll(k->rk, 0)) != NULL)
            rd_kafka_message_destroy(old);
    k->refused = NULL;
    k->passes = 0;
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
    if (rc == ONCE_OK) {
        /* An object that stayed may still report that no broker was there. */
        k->answered = 1;
        serve(k);
        k->answered = 0;
    }
    return rc == ONCE_OK && k->receives ? once__kafka_join(k, unwelcome, err)
                                        : rc;
}

int once__kafka_connect(struct once__broker *b, once_error *err)
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

void once__kafka_abandon(struct once__broker *b)
{
    struct once__kafka *k = self(b);

    (void)pthread_mutex_lock(&k->lock);
    once__kafka_lose(k, "no proof came in time");
    (void)pthread_mutex_unlock(&k->lock);
}
