/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mqtt.c - MQTT 5, to send only.
 *
 *    mqtt://USER:PASSWORD@HOST:PORT/?topic=T
 *    mqtts://...                                 the same, with TLS
 *
 * QoS 1; the proof is the PUBACK. One that says that nobody has subscribed means
 * that the broker has thrown the message away: it is refused. Id and key travel
 * as user properties.
 *
 * There is no receiving, since libmosquitto acknowledges a message before it
 * hands it over. There is no thread, since the library's loop runs here. A new
 * connection is a new object of the library, which would otherwise send again
 * what the relay knows to be in doubt.
 */
#include <mosquitto.h>
#include <mqtt_protocol.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "broker/address.h"
#include "broker/flights.h"
#include "broker/incoming.h"
#include "broker/share.h"
#include "core/error.h"
#include "store/url.h"

extern const struct once__broker_ops once__broker_mqtt;

enum {
    KEEPALIVE_S = 60,
    MIDS = 65536,        /* packet identifiers are 16 bits */
    FLIGHTS_MAX = 60000, /* so that none is used twice at a time */
    REFUSED_FROM = 0x80  /* reason codes */
};

struct mqtt {
    struct once__broker broker;
    struct once__broker_options o;
    struct once__address at;
    char topic[256];
    char *ca_file;
    int tls;

    struct mosquitto *c;  /* NULL: not connected */
    int answered, reason; /* the answer to CONNECT */
    int broken, tls_failed;
    struct once__flights flights;
    uint64_t number[MIDS]; /* in flights, by packet identifier; 0: none */
};

static struct mqtt *self(struct once__broker *b)
{
    return (struct mqtt *)(void *)b;
}

/* ---- The URL ---------------------------------------------------------------- */

static int read_url(struct mqtt *q, const char *url, once_error *err)
{
    char *copy = strdup(url);
    int rc;

    if (copy == NULL)
        return once__fail(err, ONCE_ENOMEM, "mqtt: no memory");
    q->tls = strncmp(url, "mqtts:", 6) == 0;
    rc = once__url_take(copy, "topic", q->topic, sizeof(q->topic), err);
    if (rc >= 0)
        rc = once__url_end("mqtt", copy, "topic", err);
    if (rc == ONCE_OK)
        rc = once__address_read("mqtt", copy, &q->at, err);
    explicit_bzero(copy, strlen(copy));
    free(copy);
    if (rc != ONCE_OK)
        return rc;
    if (q->at.path[0] != '\0')
        return once__fail(err, ONCE_EURL,
                          "mqtt: the URL has a path; the topic is topic=");
    if (q->topic[0] != '\0' && mosquitto_pub_topic_check(q->topic) != 0)
        return once__fail(err, ONCE_EURL,
                          "mqtt: topic is not one to publish to");
    if (q->at.port == 0)
        q->at.port = q->tls ? 8883 : 1883;
    return ONCE_OK;
}

/* ---- What the library says --------------------------------------------------- */

static void on_connect(struct mosquitto *c, void *user, int reason, int flags,
                       const mosquitto_property *properties)
{
    struct mqtt *q = user;

    (void)c;
    (void)flags;
    (void)properties;
    q->answered = 1;
    q->reason = reason;
}

static void on_disconnect(struct mosquitto *c, void *user, int reason,
                          const mosquitto_property *properties)
{
    (void)c;
    (void)reason;
    (void)properties;
    ((struct mqtt *)user)->broken = 1;
}

static void on_publish(struct mosquitto *c, void *user, int mid, int reason,
                       const mosquitto_property *properties)
{
    struct mqtt *q = user;
    uint64_t number;

    (void)c;
    (void)properties;
    if (mid <= 0 || mid >= MIDS)
        return;
    number = q->number[mid];
    q->number[mid] = 0;
    if (reason >= REFUSED_FROM)
        once__flights_end(&q->flights, number, ONCE__END_REFUSED, reason,
                          "the broker refused it");
    else if (reason == MQTT_RC_NO_MATCHING_SUBSCRIBERS)
        once__flights_end(&q->flights, number, ONCE__END_REFUSED, reason,
                          "nobody has subscribed to its topic");
    else
        once__flights_end(&q->flights, number, ONCE__END_TAKEN, 0, NULL);
}

/* ---- The connection ------------------------------------------------------------ */

static void lose(struct mqtt *q, const char *why)
{
    if (q->c != NULL)
        mosquitto_destroy(q->c);
    q->c = NULL;
    q->broken = 0;
    memset(q->number, 0, sizeof(q->number));
    once__flights_lose(&q->flights, why);
}

static int lost(struct mqtt *q, const char *why, once_error *err)
{
    lose(q, why);
    return once__fail(err, ONCE_EAWAY, "mqtt: %s", why);
}

/* One turn of the library's loop; 0: the connection is lost. */
static int turn(struct mqtt *q, uint64_t wait_ms)
{
    struct pollfd p = {mosquitto_socket(q->c), POLLIN, 0};
    int rc = MOSQ_ERR_SUCCESS;

    if (p.fd < 0)
        return 0;
    if (mosquitto_want_write(q->c))
        p.events |= POLLOUT;
    if (wait_ms > 1000)
        wait_ms = 1000; /* for the keepalive */
    if (poll(&p, 1, (int)wait_ms) > 0) {
        if (p.revents & POLLOUT)
            rc = mosquitto_loop_write(q->c, 1);
        if (rc == MOSQ_ERR_SUCCESS && (p.revents & ~POLLOUT))
            rc = mosquitto_loop_read(q->c, 1);
    }
    if (rc == MOSQ_ERR_SUCCESS)
        rc = mosquitto_loop_misc(q->c);
    q->tls_failed = rc == MOSQ_ERR_TLS;
    return rc == MOSQ_ERR_SUCCESS && !q->broken;
}

static int set_options(struct mqtt *q)
{
    int rc =
        mosquitto_int_option(q->c, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5);

    if (rc == 0)
        rc = mosquitto_int_option(q->c, MOSQ_OPT_SEND_MAXIMUM, 65535);
    if (rc == 0)
        rc = mosquitto_int_option(q->c, MOSQ_OPT_TCP_NODELAY, 1);
    if (rc == 0 && q->at.has_user)
        rc = mosquitto_username_pw_set(q->c, q->at.user, q->at.password);
    if (rc == 0 && q->tls)
        rc = q->ca_file != NULL
                 ? mosquitto_tls_set(q->c, q->ca_file, NULL, NULL, NULL, NULL)
                 : mosquitto_int_option(q->c, MOSQ_OPT_TLS_USE_OS_CERTS, 1);
    mosquitto_connect_v5_callback_set(q->c, on_connect);
    mosquitto_disconnect_v5_callback_set(q->c, on_disconnect);
    mosquitto_publish_v5_callback_set(q->c, on_publish);
    return rc == 0;
}

/* What the broker said to CONNECT. */
static int judge(struct mqtt *q, once_error *err)
{
    int reason = q->reason;

    if (reason == 0)
        return ONCE_OK;
    lose(q, "CONNECT was refused");
    switch (reason) {
    case MQTT_RC_BAD_USERNAME_OR_PASSWORD:
    case MQTT_RC_NOT_AUTHORIZED:
    case MQTT_RC_BANNED:
        return once__fail(err, ONCE_EOPEN,
                          "mqtt: the broker refuses this user and password");
    case MQTT_RC_UNSUPPORTED_PROTOCOL_VERSION:
    case 1: /* as MQTT 3 says it */
        return once__fail(err, ONCE_EOPEN,
                          "mqtt: the broker does not know MQTT 5");
    default:
        return once__fail(err, ONCE_EAWAY,
                          "mqtt: the broker refuses connections: %d", reason);
    }
}

static int set_up(struct mqtt *q, once_error *err)
{
    uint64_t end = once__broker_now_ms() + q->o.timeout_ms, now;
    unsigned most = q->o.timeout_ms;
    int rc;

    q->answered = 0;
    q->broken = 0;
    q->c = mosquitto_new(NULL, true, q);
    if (q->c == NULL)
        return once__fail(err, ONCE_ENOMEM, "mqtt: no memory");
    if (!set_options(q)) {
        lose(q, "options");
        return once__fail(err, ONCE_EOPEN,
                          "mqtt: the certificates to trust cannot be read");
    }
    rc = mosquitto_connect_async(q->c, q->at.host, q->at.port, KEEPALIVE_S);
    q->tls_failed = rc == MOSQ_ERR_TLS;
    while (rc == MOSQ_ERR_SUCCESS && !q->answered) {
        now = once__broker_now_ms();
        if (now >= end || !turn(q, end - now))
            break;
    }
    if (q->tls_failed) {
        lose(q, "TLS");
        return once__fail(err, ONCE_EOPEN,
                          "mqtt: the broker's certificate is not trusted, or "
                          "not for this host");
    }
    if (!q->answered)
        return lost(q, "the broker cannot be reached", err);
    (void)setsockopt(mosquitto_socket(q->c), IPPROTO_TCP, TCP_USER_TIMEOUT,
                     &most, sizeof(most));
    return judge(q, err);
}

static int mqtt_connect(struct once__broker *b, once_error *err)
{
    struct mqtt *q = self(b);

    if (q->c != NULL && turn(q, 0))
        return ONCE_OK;
    lose(q, "the connection was lost");
    return set_up(q, err);
}

/* ---- Sending --------------------------------------------------------------------- */

/* A broker ends the connection of whoever sends it a control character, and with
 * it all that is under way. */
static int add_pair(mosquitto_property **to, const char *name,
                    const char *value)
{
    if (mosquitto_validate_utf8(name, (int)strlen(name)) != 0 ||
        mosquitto_validate_utf8(value, (int)strlen(value)) != 0)
        return MOSQ_ERR_MALFORMED_UTF8;
    return mosquitto_property_add_string_pair(to, MQTT_PROP_USER_PROPERTY, name,
                                              value);
}

static int add_lines(mosquitto_property **to, const char *headers)
{
    char *copy = headers == NULL ? NULL : strdup(headers);
    const char *at = copy;
    struct once__line line;
    int rc = headers != NULL && copy == NULL ? MOSQ_ERR_NOMEM : 0;

    while (rc == 0 && once__line_next(&at, &line)) {
        /* The ends of name and value lie before `at`, in our copy. */
        copy[line.name - copy + (ptrdiff_t)line.n_name] = '\0';
        copy[line.value - copy + (ptrdiff_t)line.n_value] = '\0';
        rc = add_pair(to, line.name, line.value);
    }
    free(copy);
    return rc;
}

static int add_properties(mosquitto_property **to, const once_message *m)
{
    int rc = add_pair(to, ONCE__HEADER_ID, m->id);

    if (rc == 0 && m->key != NULL)
        rc = add_pair(to, ONCE__HEADER_KEY, m->key);
    if (rc == 0 && m->type != NULL && m->type[0] != '\0')
        rc = mosquitto_property_add_string(to, MQTT_PROP_CONTENT_TYPE, m->type);
    return rc == 0 ? add_lines(to, m->headers) : rc;
}

static int publish(struct mqtt *q, const once_message *m, const char *topic,
                   uint64_t tag, once_error *err)
{
    mosquitto_property *properties = NULL;
    uint64_t number = once__flights_add(&q->flights, tag);
    int rc, mid = 0;

    if (number == 0)
        return once__fail(err, ONCE_ENOMEM, "mqtt: no memory");
    rc = add_properties(&properties, m);
    if (rc == 0)
        rc = mosquitto_publish_v5(q->c, &mid, topic, (int)m->body.size,
                                  m->body.data, 1, false, properties);
    mosquitto_property_free_all(&properties);
    if (mid > 0 && mid < MIDS)
        q->number[mid] = number;
    switch (rc) {
    case MOSQ_ERR_SUCCESS:
        return ONCE_OK;
    case MOSQ_ERR_OVERSIZE_PACKET:
    case MOSQ_ERR_PAYLOAD_SIZE:
        once__flights_end(&q->flights, number, ONCE__END_REJECTED, 0,
                          "it is larger than the broker takes");
        return ONCE_OK;
    case MOSQ_ERR_MALFORMED_UTF8:
    case MOSQ_ERR_INVAL:
        once__flights_end(&q->flights, number, ONCE__END_REJECTED, 0,
                          "MQTT cannot carry its headers");
        return ONCE_OK;
    default:
        return lost(q, "the connection was lost while sending", err);
    }
}

static int mqtt_send(struct once__broker *b, const once_message *m,
                     uint64_t tag, once_error *err)
{
    struct mqtt *q = self(b);
    const char *topic = q->topic[0] != '\0' ? q->topic : m->route;
    int rc;

    if (q->c == NULL) {
        rc = once__flights_unsent(&q->flights, tag, ONCE__END_UNSENT, NULL);
        if (rc == ONCE_OK)
            rc = once__fail(err, ONCE_EAWAY, "mqtt: not connected");
    } else if (q->flights.open >= FLIGHTS_MAX) {
        rc = once__flights_unsent(&q->flights, tag, ONCE__END_UNSENT,
                                  "too many are under way");
    } else if (topic == NULL || topic[0] == '\0' ||
               mosquitto_pub_topic_check(topic) != 0) {
        rc = once__flights_unsent(&q->flights, tag, ONCE__END_REFUSED,
                                  "the route's name is not a topic; name one "
                                  "with topic=");
    } else {
        rc = publish(q, m, topic, tag, err);
    }
    return rc == ONCE_ENOMEM ? once__fail(err, rc, "mqtt: no memory") : rc;
}

static size_t mqtt_proofs(struct once__broker *b, uint32_t wait_ms,
                          struct once__proof *out, size_t max)
{
    struct mqtt *q = self(b);
    uint64_t end = once__broker_now_ms() + wait_ms, now = end;

    while (q->c != NULL && q->flights.open > 0 && q->flights.n == 0) {
        now = once__broker_now_ms();
        if (!turn(q, now < end ? end - now : 0))
            lose(q, "the connection was lost");
        if (now >= end)
            break;
    }
    return once__flights_take(&q->flights, out, max);
}

static void mqtt_abandon(struct once__broker *b)
{
    lose(self(b), "no proof came in time");
}

/* ---- The object ------------------------------------------------------------------ */

static void mqtt_close(struct once__broker *b)
{
    struct mqtt *q = self(b);

    if (q == NULL)
        return;
    if (q->c != NULL)
        (void)mosquitto_disconnect(q->c);
    lose(q, "the connection was closed");
    once__flights_clear(&q->flights);
    free(q->ca_file);
    explicit_bzero(&q->at, sizeof(q->at));
    free(q);
}

/* Never undone: other objects may use the library. */
static void init_library(void)
{
    (void)mosquitto_lib_init();
}

static int mqtt_open(const char *url, const struct once__broker_options *o,
                     struct once__broker **out, once_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct mqtt *q = calloc(1, sizeof(*q));
    int rc;

    *out = NULL;
    if (q == NULL)
        return once__fail(err, ONCE_ENOMEM, "mqtt: no memory");
    (void)pthread_once(&once, init_library);
    q->broker.ops = &once__broker_mqtt;
    q->o = *o;
    if (q->o.timeout_ms == 0)
        q->o.timeout_ms = 10000;
    rc = read_url(q, url, err);
    if (rc == ONCE_OK && o->ca_file != NULL) {
        q->ca_file = strdup(o->ca_file);
        if (q->ca_file == NULL)
            rc = once__fail(err, ONCE_ENOMEM, "mqtt: no memory");
    }
    if (rc != ONCE_OK) {
        mqtt_close(&q->broker);
        return rc;
    }
    *out = &q->broker;
    return ONCE_OK;
}

const struct once__broker_ops once__broker_mqtt = {
    .scheme = "mqtt",
    .knows_ids = 1,
    .open = mqtt_open,
    .close = mqtt_close,
    .connect = mqtt_connect,
    .send = mqtt_send,
    .proofs = mqtt_proofs,
    .abandon = mqtt_abandon,
};
