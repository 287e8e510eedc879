/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_messages.c - what messages are compared with: one measurement, as JSON.
 *
 *    bench_messages lite FILE bare|claim|random|emit PER_TX SECONDS
 *        transactions of two writes a message on SQLite, without and with
 *        once_inbox_claim(), with ids that are ordered by time, or random; or
 *        with once_emit()
 *    bench_messages publish URL N
 *        a bare loop of the broker's own library: N messages of 300 bytes, 500
 *        in flight, each confirmed by the broker. amqp://, redis://, nats://,
 *        kafka://
 *    bench_messages plain AMQP-URL POSTGRES N
 *        a bare consumer: receive, BEGIN, two writes, COMMIT, acknowledge
 *    bench_messages consume URL DATABASE N BATCH
 *        the same writes as a handler of once_consume(); on PostgreSQL or MySQL
 *    bench_messages rows|claim DATABASE N
 *        N rows of the route "route": claimed and settled, or claimed at once
 *    bench_messages latency DATABASE TARGET SOURCE N PAUSE_MS
 *        N messages, PAUSE_MS apart, from emit() over once_relay() and a broker
 *        to the COMMIT of once_consume()
 *    bench_messages calls WORKERS SAGAS URL URL ...
 *        a bare loop: for each saga one POST of 300 bytes to each URL, one after
 *        the other, with an Idempotency-Key; WORKERS sagas side by side
 *
 * test/bench/messages.py makes tables of it. A loop that got another number of
 * messages than it should ends with status 1: a figure for a wrong answer is
 * none.
 */
#include <assert.h>
#include <curl/curl.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <openssl/rand.h>

#include <once/message.h>
#include <once/relay.h>

#include "messages/tables/outbox.h"
#include "messages/relay/base.h"

#ifdef ONCE_WITH_AMQP
#include "messages/broker/librabbitmq.h"
#endif
#ifdef ONCE_WITH_REDIS
#include <hiredis/hiredis.h>
#endif
#ifdef ONCE_WITH_KAFKA
#include <librdkafka/rdkafka.h>
#endif
#ifdef ONCE_WITH_NATS
#include <nats/nats.h>
#endif
#ifdef ONCE_WITH_MYSQL
#include <mysql.h>
#endif

enum { FLIGHT = 500, BODY = 300 };

static char body[BODY + 1];

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int print(double since, unsigned long n)
{
    double s = now() - since;
    struct rusage u;

    (void)getrusage(RUSAGE_SELF, &u);
    printf(
        "{\"per_s\": %.1f, \"seconds\": %.3f, \"n\": %lu, \"cpu_us\": "
        "%.2f}\n",
        (double)n / s, s, n,
        1e6 *
            ((double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
             ((double)u.ru_utime.tv_usec + (double)u.ru_stime.tv_usec) / 1e6) /
            (double)n);
    return 0;
}

static int wrong(const char *what)
{
    fprintf(stderr, "bench_messages: %s\n", what);
    return 1;
}

/* ---- SQLite ------------------------------------------------------------- */

static void must(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK)
        return;
    fprintf(stderr, "%s: %s\n", sql, sqlite3_errmsg(db));
    exit(1);
}

/* A UUID of version 7; or with 74 random bits in front. */
static void draw_id(int ordered, char out[ONCE_ID_SIZE])
{
    static uint64_t n;
    uint64_t r[2], ms;
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    (void)RAND_bytes((unsigned char *)r, sizeof(r));
    ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    n++;
    if (ordered)
        (void)snprintf(out, ONCE_ID_SIZE, "%08x-%04x-7%03x-8%03x-%012llx",
                       (unsigned)(ms >> 16), (unsigned)(ms & 65535),
                       (unsigned)(n & 4095), (unsigned)(r[0] & 4095),
                       (unsigned long long)(r[1] >> 16));
    else
        (void)snprintf(out, ONCE_ID_SIZE, "%016llx%016llx",
                       (unsigned long long)r[0], (unsigned long long)r[1]);
}

/* What a mode adds to the two writes of a message. */
static int lite_adds(const once_tx *tx, const once_message *m, const char *mode)
{
    if (strcmp(mode, "bare") == 0)
        return 1;
    if (strcmp(mode, "emit") == 0)
        return once_emit(tx, m, NULL, NULL) == ONCE_OK;
    return once_inbox_claim(tx, m, NULL) == ONCE_OWNER;
}

static int lite(const char *path, const char *mode, unsigned per_tx,
                double seconds)
{
    once_tx tx = ONCE_TX_INIT;
    once_message m = ONCE_MESSAGE_INIT;
    sqlite3_stmt *update = NULL, *insert = NULL;
    sqlite3 *db = NULL;
    char id[ONCE_ID_SIZE];
    unsigned long n = 0;
    unsigned i;
    double begin;

    if (sqlite3_open(path, &db) != SQLITE_OK)
        return wrong("the file cannot be opened");
    must(db, "PRAGMA journal_mode=WAL");
    must(db, "PRAGMA synchronous=FULL");
    must(db, "CREATE TABLE IF NOT EXISTS account(no INTEGER PRIMARY KEY, n "
             "INTEGER); CREATE TABLE IF NOT EXISTS entry(no INTEGER PRIMARY "
             "KEY, text TEXT); INSERT OR IGNORE INTO account VALUES(1,0)");
    tx.sqlite = db;
    if (once_message_init(&tx, 0, NULL) != ONCE_OK ||
        once_prepared_new(db, &tx.prepared, NULL) != ONCE_OK)
        return wrong("init failed");
    (void)sqlite3_prepare_v2(db, "UPDATE account SET n=n+1 WHERE no=1", -1,
                             &update, NULL);
    (void)sqlite3_prepare_v2(db, "INSERT INTO entry(text) VALUES('entry')", -1,
                             &insert, NULL);
    m.consumer = "billing";
    m.route = "orders";
    m.id = strcmp(mode, "emit") == 0 ? NULL : id;
    m.body = (once_bytes){body, BODY};
    begin = now();
    while (now() - begin < seconds) {
        must(db, "BEGIN IMMEDIATE");
        for (i = 0; i < per_tx; i++, n++) {
            draw_id(strcmp(mode, "random") != 0, id);
            if (!lite_adds(&tx, &m, mode))
                return wrong("a claim, or an emit, failed");
            if (sqlite3_step(update) != SQLITE_DONE ||
                sqlite3_step(insert) != SQLITE_DONE)
                return wrong("a write failed");
            (void)sqlite3_reset(update);
            (void)sqlite3_reset(insert);
        }
        must(db, "COMMIT");
    }
    (void)print(begin, n);
    (void)sqlite3_finalize(update);
    (void)sqlite3_finalize(insert);
    once_prepared_free(tx.prepared);
    (void)sqlite3_close(db);
    return 0;
}

/* ---- Bare publishers ---------------------------------------------------- */

#ifdef ONCE_WITH_AMQP
static amqp_connection_state_t amqp_open(const char *url)
{
    struct amqp_connection_info info;
    amqp_connection_state_t c = amqp_new_connection();
    amqp_socket_t *s = amqp_tcp_socket_new(c);
    char *copy = strdup(url);

    if (strchr(copy, '?') != NULL)
        *strchr(copy, '?') = '\0';
    if (amqp_parse_url(copy, &info) != AMQP_STATUS_OK ||
        amqp_socket_open(s, info.host, info.port) != AMQP_STATUS_OK ||
        amqp_login(c, info.vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN,
                   info.user, info.password)
                .reply_type != AMQP_RESPONSE_NORMAL)
        exit(wrong("RabbitMQ cannot be reached"));
    amqp_channel_open(c, 1);
    free(copy);
    return c;
}

/* The value of a parameter of the URL, which the caller frees. */
static char *parameter(const char *url, const char *name)
{
    const char *at = strstr(url, name);

    return at == NULL
               ? strdup("")
               : strndup(at + strlen(name), strcspn(at + strlen(name), "&"));
}

static int publish_amqp(const char *url, unsigned long n)
{
    amqp_connection_state_t c = amqp_open(url);
    amqp_basic_properties_t p = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG |
                                           AMQP_BASIC_MESSAGE_ID_FLAG,
                                 .delivery_mode = 2};
    char *key = parameter(url, "routing_key=");
    unsigned long sent = 0, taken = 0;
    char id[ONCE_ID_SIZE];
    double begin;

    amqp_confirm_select(c, 1);
    begin = now();
    while (taken < n) {
        for (; sent < n && sent < taken + FLIGHT; sent++) {
            draw_id(1, id);
            p.message_id = amqp_cstring_bytes(id);
            if (amqp_basic_publish(
                    c, 1, amqp_empty_bytes, amqp_cstring_bytes(key), 1, 0, &p,
                    (amqp_bytes_t){BODY, body}) != AMQP_STATUS_OK)
                return wrong("publishing failed");
        }
        do {
            amqp_frame_t f;

            amqp_maybe_release_buffers(c);
            if (amqp_simple_wait_frame(c, &f) != AMQP_STATUS_OK ||
                f.frame_type != AMQP_FRAME_METHOD ||
                f.payload.method.id != AMQP_BASIC_ACK_METHOD)
                return wrong("not a confirm");
            {
                const amqp_basic_ack_t *a = f.payload.method.decoded;

                taken = a->multiple ? a->delivery_tag : taken + 1;
            }
        } while (amqp_frames_enqueued(c) || amqp_data_in_buffer(c));
    }
    free(key);
    return print(begin, n);
}
#endif

#ifdef ONCE_WITH_REDIS
static int publish_redis(const char *url, unsigned long n)
{
    const char *port = strrchr(url, ':');
    redisContext *c =
        redisConnect("127.0.0.1", (int)strtol(port + 1, NULL, 10));
    unsigned long i, taken = 0;
    char id[ONCE_ID_SIZE];
    redisReply *r;
    double begin = now();

    if (c == NULL || c->err)
        return wrong("Redis cannot be reached");
    while (taken < n) {
        unsigned long batch = n - taken < FLIGHT ? n - taken : FLIGHT;

        for (i = 0; i < batch; i++) {
            draw_id(1, id);
            (void)redisAppendCommand(c, "XADD plain * id %s body %b", id, body,
                                     (size_t)BODY);
        }
        for (i = 0; i < batch; i++) {
            if (redisGetReply(c, (void **)&r) != REDIS_OK ||
                r->type != REDIS_REPLY_STRING)
                return wrong("XADD failed");
            freeReplyObject(r);
        }
        taken += batch;
    }
    return print(begin, n);
}
#endif

#ifdef ONCE_WITH_KAFKA
static void count_taken(rd_kafka_t *rk, const rd_kafka_message_t *m, void *user)
{
    (void)rk;
    *(unsigned long *)user += m->err == RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_error_t *produce(rd_kafka_t *rk, const char *topic,
                                 const char *id)
{
    const rd_kafka_vu_t parts[] = {
        {.vtype = RD_KAFKA_VTYPE_TOPIC, .u.cstr = topic},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_HEADER, .u.header = {"Once-Id", id, -1}},
        {.vtype = RD_KAFKA_VTYPE_VALUE, .u.mem = {body, BODY}},
    };

    return rd_kafka_produceva(rk, parts, sizeof(parts) / sizeof(parts[0]));
}

/* Waits until the library has found the topic. Else it asks for it a second after
 * the first message, or at once, as it happens. */
static int find_topic(rd_kafka_t *rk, const char *topic)
{
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    const struct rd_kafka_metadata *md = NULL;
    rd_kafka_resp_err_t rc = rd_kafka_metadata(rk, 0, rkt, &md, 10000);

    if (rc == RD_KAFKA_RESP_ERR_NO_ERROR)
        rd_kafka_metadata_destroy(md);
    rd_kafka_topic_destroy(rkt);
    return rc == RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* kafka://HOSTS/TOPIC; with the driver's own settings, but for one: the mock, which
 * takes no time, takes more of records that are spread over all partitions. */
static int publish_kafka(const char *url, unsigned long n)
{
    static const char *const settings[][2] = {
        {"acks", "all"}, {"enable.idempotence", "true"}, {"linger.ms", "0"}};
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char hosts[512], id[ONCE_ID_SIZE], text[256];
    const char *topic = strrchr(url, '/') + 1;
    unsigned long sent, taken = 0;
    rd_kafka_t *rk;
    double begin;
    size_t i;

    (void)snprintf(hosts, sizeof(hosts), "%.*s", (int)(topic - url - 9),
                   url + 8);
    (void)rd_kafka_conf_set(conf, "bootstrap.servers", hosts, NULL, 0);
    for (i = 0; i < 3; i++)
        (void)rd_kafka_conf_set(conf, settings[i][0], settings[i][1], NULL, 0);
    rd_kafka_conf_set_dr_msg_cb(conf, count_taken);
    rd_kafka_conf_set_opaque(conf, &taken);
    rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    if (rk == NULL)
        return wrong("Kafka: no producer");
    if (!find_topic(rk, topic))
        return wrong("Kafka cannot be reached");
    begin = now();
    for (sent = 0; taken < n;) {
        for (; sent < n && sent < taken + FLIGHT; sent++) {
            draw_id(1, id);
            if (produce(rk, topic, id) != NULL)
                return wrong("producing failed");
        }
        (void)rd_kafka_poll(rk, 100);
        if (now() - begin > 600)
            return wrong("Kafka has not taken all");
    }
    rd_kafka_destroy(rk);
    return print(begin, n);
}
#endif

#ifdef ONCE_WITH_NATS
static int publish_nats(const char *url, unsigned long n)
{
    natsConnection *nc = NULL;
    jsCtx *js = NULL;
    jsOptions o;
    char *subject = parameter(url, "subject="), *plain = strdup(url);
    unsigned long i;
    double begin;

    *strchr(plain, '?') = '\0';
    (void)jsOptions_Init(&o);
    o.PublishAsync.MaxPending = FLIGHT;
    if (natsConnection_ConnectTo(&nc, plain) != NATS_OK ||
        natsConnection_JetStream(&js, nc, &o) != NATS_OK)
        return wrong("NATS cannot be reached");
    begin = now();
    for (i = 0; i < n; i++)
        if (js_PublishAsync(js, subject, body, BODY, NULL) != NATS_OK)
            return wrong("publishing failed");
    if (js_PublishAsyncComplete(js, NULL) != NATS_OK)
        return wrong("not all were confirmed");
    return print(begin, n);
}
#endif

static int publish(const char *url, unsigned long n)
{
#ifdef ONCE_WITH_AMQP
    if (strncmp(url, "amqp:", 5) == 0)
        return publish_amqp(url, n);
#endif
#ifdef ONCE_WITH_REDIS
    if (strncmp(url, "redis:", 6) == 0)
        return publish_redis(url, n);
#endif
#ifdef ONCE_WITH_NATS
    if (strncmp(url, "nats:", 5) == 0)
        return publish_nats(url, n);
#endif
#ifdef ONCE_WITH_KAFKA
    if (strncmp(url, "kafka:", 6) == 0)
        return publish_kafka(url, n);
#endif
    return wrong("no such broker in this build");
}

/* ---- Consumers ---------------------------------------------------------- */

static const char count_up[] = "UPDATE account SET n=n+1 WHERE no=1";
static const char enter[] = "INSERT INTO entry(text) VALUES('entry')";

static int command(PGconn *db, const char *sql)
{
    PGresult *r = PQexec(db, sql);
    int ok = PQresultStatus(r) == PGRES_COMMAND_OK;

    PQclear(r);
    return ok;
}

static int two_writes(const once_tx *tx)
{
#ifdef ONCE_WITH_MYSQL
    if (tx->mysql != NULL)
        return mysql_query(tx->mysql, count_up) == 0 &&
               mysql_query(tx->mysql, enter) == 0;
#endif
    return command(tx->postgres, count_up) && command(tx->postgres, enter);
}

#ifdef ONCE_WITH_AMQP
static int plain(const char *url, const char *database, unsigned long n)
{
    amqp_connection_state_t c = amqp_open(url);
    char *queue = parameter(url, "queue=");
    PGconn *db = PQconnectdb(database);
    unsigned long i;
    double begin;

    if (PQstatus(db) != CONNECTION_OK)
        return wrong("PostgreSQL cannot be reached");
    amqp_basic_qos(c, 1, 0, 16, 0);
    amqp_basic_consume(c, 1, amqp_cstring_bytes(queue), amqp_empty_bytes, 0, 0,
                       0, amqp_empty_table);
    begin = now();
    for (i = 0; i < n; i++) {
        amqp_envelope_t e;

        amqp_maybe_release_buffers(c);
        if (amqp_consume_message(c, &e, NULL, 0).reply_type !=
            AMQP_RESPONSE_NORMAL)
            return wrong("receiving failed");
        if (!command(db, "BEGIN") || !command(db, count_up) ||
            !command(db, enter) || !command(db, "COMMIT"))
            return wrong("a transaction failed");
        (void)amqp_basic_ack(c, 1, e.delivery_tag, 0);
        amqp_destroy_envelope(&e);
    }
    (void)print(begin, n);
    free(queue);
    PQfinish(db);
    amqp_connection_close(c, 200);
    return amqp_destroy_connection(c) != AMQP_STATUS_OK;
}
#endif

struct handled {
    unsigned long n, most;
    int stop; /* the pipe's end that is written when all came */
    double begin;
};

static int handle(const once_tx *tx, const once_message *m, void *user)
{
    struct handled *h = user;

    (void)m;
    if (h->n == 0)
        h->begin = now();
    if (!two_writes(tx))
        return ONCE_AGAIN;
    if (++h->n == h->most && write(h->stop, "x", 1) != 1)
        return ONCE_AGAIN;
    return ONCE_OK;
}

static int consume(const char *url, const char *database, unsigned long n,
                   unsigned batch)
{
    once_consumer_options o = ONCE_CONSUMER_OPTIONS_INIT;
    struct handled h = {0, n, -1, 0};
    once_error err = {0, ""};
    int ends[2];

    if (pipe(ends) != 0)
        return wrong("no pipe");
    h.stop = ends[1];
    o.db = database;
    o.from = url;
    o.consumer = "bench";
    o.batch = batch;
    o.stop_fd = ends[0];
    if (once_consume(&o, handle, &h, &err) != ONCE_OK || h.n < n) {
        fprintf(stderr, "%s\n", err.text);
        return wrong("consuming failed");
    }
    return print(h.begin, h.n);
}

/* ---- Rows of the outbox, without a target ------------------------------- */

static int settle_all(const once_tx *tx, struct once__outgoing_list *list)
{
    struct once__settlement *s = calloc(list->n, sizeof(*s));
    size_t i;
    int rc;

    for (i = 0; i < list->n; i++) {
        s[i].seq = list->rows[i].seq;
        s[i].attempts = list->rows[i].attempts;
        s[i].lease = list->lease;
        s[i].to.phase = ONCE__ROW_DONE;
        s[i].error = "";
    }
    rc = once__outbox_settle(tx, s, list->n, NULL);
    free(s);
    return rc == ONCE_OK;
}

static int rows(const char *database, unsigned long n, int claim_only)
{
    const struct once__outbox_ask ask = {"route", FLIGHT, 60000, 0, 0, 0};
    struct once__outgoing_list list;
    struct once__base *b = NULL;
    unsigned long done = 0;
    double begin;

    if (once__base_open(database, ONCE__BASE_READY, &b, NULL) != ONCE_OK ||
        once__base_connect(b, NULL) != ONCE_OK)
        return wrong("the database cannot be reached");
    begin = now();
    while (done < n) {
        if (once__outbox_claim(once__base_tx(b), &ask, &list, NULL) !=
                ONCE_OK ||
            list.n == 0)
            return wrong("nothing was claimed");
        done += list.n;
        if (!claim_only && !settle_all(once__base_tx(b), &list))
            return wrong("settling failed");
        once__outgoing_clear(&list);
    }
    (void)print(begin, done);
    once__base_close(b);
    return 0;
}

/* ---- From emit() to COMMIT ---------------------------------------------- */

struct timed {
    const char *database, *target, *source;
    unsigned long n, done;
    double *ms;
    int stop[2];
};

/* The body is when it was emitted. The COMMIT that follows is not in the time. */
static int note(const once_tx *tx, const once_message *m, void *user)
{
    struct timed *t = user;
    double sent;

    if (m->body.size != sizeof(sent) || !two_writes(tx))
        return ONCE_AGAIN;
    memcpy(&sent, m->body.data, sizeof(sent));
    t->ms[t->done++ % t->n] = (now() - sent) * 1000;
    return ONCE_OK;
}

static void *run_relay(void *user)
{
    struct timed *t = user;
    once_relay_options o = ONCE_RELAY_OPTIONS_INIT;
    once_route r = ONCE_ROUTE_INIT;

    r.name = "timed";
    r.url = t->target;
    o.from = t->database;
    o.routes = &r;
    o.n = 1;
    o.stop_fd = t->stop[0];
    if (once_relay(&o, NULL) != ONCE_OK)
        exit(wrong("the relay failed"));
    return NULL;
}

static void *run_consumer(void *user)
{
    struct timed *t = user;
    once_consumer_options o = ONCE_CONSUMER_OPTIONS_INIT;

    o.db = t->database;
    o.from = t->source;
    o.consumer = "timed";
    o.stop_fd = t->stop[0];
    if (once_consume(&o, note, t, NULL) != ONCE_OK)
        exit(wrong("the consumer failed"));
    return NULL;
}

static int emit_timed(struct once__base *b)
{
    once_message m = ONCE_MESSAGE_INIT;
    double at = now();

    m.route = "timed";
    m.body = (once_bytes){&at, sizeof(at)};
    return once__base_begin(b, NULL) == ONCE_OK &&
           once_emit(once__base_tx(b), &m, NULL, NULL) == ONCE_OK &&
           once__base_commit(b, NULL) == ONCE_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int latency(struct timed *t, unsigned pause_ms)
{
    struct timespec pause = {pause_ms / 1000,
                             (long)(pause_ms % 1000) * 1000000};
    const struct timespec second = {2, 0};
    struct once__base *b = NULL;
    pthread_t relay, consumer;
    unsigned long i;

    t->ms = calloc(t->n, sizeof(*t->ms));
    if (pipe(t->stop) != 0 ||
        once__base_open(t->database, ONCE__BASE_READY, &b, NULL) != ONCE_OK ||
        once__base_connect(b, NULL) != ONCE_OK)
        return wrong("the database cannot be reached");
    (void)pthread_create(&relay, NULL, run_relay, t);
    (void)pthread_create(&consumer, NULL, run_consumer, t);
    (void)nanosleep(&second, NULL);
    for (i = 0; i < t->n; i++) {
        if (!emit_timed(b))
            return wrong("emitting failed");
        (void)nanosleep(&pause, NULL);
    }
    (void)nanosleep(&second, NULL);
    if (write(t->stop[1], "x", 1) != 1)
        return wrong("no stop");
    (void)pthread_join(relay, NULL);
    (void)pthread_join(consumer, NULL);
    once__base_close(b);
    if (t->done != t->n)
        return wrong("not all came");
    qsort(t->ms, t->n, sizeof(*t->ms), ascending);
    printf("{\"p50_ms\": %.2f, \"p99_ms\": %.2f}\n", t->ms[t->n / 2],
           t->ms[t->n * 99 / 100]);
    free(t->ms);
    return 0;
}

/* ---- The calls of a saga ------------------------------------------------- */

struct calls {
    char **urls; /* NULL ends them */
    unsigned long n;
    _Atomic unsigned long next, good;
};

static size_t forget(char *data, size_t size, size_t n, void *user)
{
    (void)data;
    (void)user;
    return size * n;
}

/* 1: it was answered with 200. */
static int call(CURL *curl, const char *url, unsigned long saga, int branch)
{
    struct curl_slist *headers = NULL;
    char key[80];
    long status = 0;

    (void)snprintf(key, sizeof(key), "Idempotency-Key: \"g%d-%lu/%d\"",
                   (int)getpid(), saga, branch);
    headers = curl_slist_append(headers, key);
    headers = curl_slist_append(headers, "Content-Type: application/json");
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, forget);
    if (curl_easy_perform(curl) == CURLE_OK)
        (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    return status == 200;
}

static void *call_many(void *arg)
{
    struct calls *c = arg;
    CURL *curl = curl_easy_init();
    unsigned long saga;
    int i, good;

    while ((saga = atomic_fetch_add(&c->next, 1)) < c->n) {
        good = 1;
        for (i = 0; good && c->urls[i] != NULL; i++)
            good = call(curl, c->urls[i], saga, i);
        atomic_fetch_add(&c->good, (unsigned long)good);
    }
    curl_easy_cleanup(curl);
    return NULL;
}

static int calls(unsigned workers, unsigned long n, char **urls)
{
    struct calls c = {.urls = urls, .n = n};
    pthread_t *threads = calloc(workers, sizeof(*threads));
    double begin = now();
    unsigned i;

    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    for (i = 0; i < workers; i++)
        (void)pthread_create(&threads[i], NULL, call_many, &c);
    for (i = 0; i < workers; i++)
        (void)pthread_join(threads[i], NULL);
    free(threads);
    return c.good == n ? print(begin, n) : wrong("a call failed");
}

int main(int argc, char **argv)
{
    unsigned long n = argc > 3 ? strtoul(argv[argc > 4 ? 4 : 3], NULL, 10) : 0;

    memset(body, 'x', BODY);
    if (argc == 6 && strcmp(argv[1], "lite") == 0)
        return lite(argv[2], argv[3], (unsigned)n, strtod(argv[5], NULL));
    if (argc == 4 && strcmp(argv[1], "publish") == 0)
        return publish(argv[2], n);
#ifdef ONCE_WITH_AMQP
    if (argc == 5 && strcmp(argv[1], "plain") == 0)
        return plain(argv[2], argv[3], n);
#endif
    if (argc == 6 && strcmp(argv[1], "consume") == 0)
        return consume(argv[2], argv[3], n,
                       (unsigned)strtoul(argv[5], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "rows") == 0)
        return rows(argv[2], n, 0);
    if (argc == 4 && strcmp(argv[1], "claim") == 0)
        return rows(argv[2], n, 1);
    if (argc == 7 && strcmp(argv[1], "latency") == 0) {
        struct timed t = {argv[2], argv[3], argv[4], strtoul(argv[5], NULL, 10),
                          0,       NULL,    {-1, -1}};

        return latency(&t, (unsigned)strtoul(argv[6], NULL, 10));
    }
    if (argc >= 5 && strcmp(argv[1], "calls") == 0)
        return calls((unsigned)strtoul(argv[2], NULL, 10),
                     strtoul(argv[3], NULL, 10), argv + 4);
    return wrong("see the head of bench_messages.c");
}
