/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amqp.c - RabbitMQ, by AMQP 0-9-1.
 *
 *    amqp://USER:PASSWORD@HOST:PORT/VHOST?exchange=E&routing_key=K    to send
 *    amqp://USER:PASSWORD@HOST:PORT/VHOST?queue=Q                     to receive
 *
 * One connection, one channel. Messages are sent without waiting; a message is
 * taken when the broker has confirmed it and has not returned it. RabbitMQ sends
 * the return before the confirm. A return has no number: the number travels in a
 * header, Once-Tag, which comes back with it.
 *
 *    publish 7 --> routed   --> ack 7 (or `multiple` up to 9)        TAKEN
 *              --> no queue --> return (Once-Tag 7), then ack 7      REFUSED
 *              --> full     --> nack 7                               NACKED
 *
 * The connection is kept alive by a thread of its own, since neither a relay
 * with nothing to send nor a handler that takes minutes calls us: RabbitMQ
 * takes a connection without heartbeats for dead and gives its messages to
 * others. The thread only ever does what proofs() with a wait of zero does, and
 * never waits while it holds the lock.
 */
#include "messages/broker/librabbitmq.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "messages/broker/address.h"
#include "messages/broker/flights.h"
#include "messages/broker/incoming.h"
#include "messages/broker/share.h"
#include "messages/broker/suspects.h"
#include "base/error.h"
#include "base/grow.h"
#include "base/steady.h"
#include "base/thread.h"
#include "base/url.h"

enum {
    CHANNEL = 1,
    FRAME_MAX = 131072, /* RabbitMQ's own default */
    HEARTBEAT_S = 30,
    BEAT_MS = 7000,  /* how often the thread looks */
    CLOSE_MS = 2000, /* the most for an orderly end */
    DRAIN_EVERY = 128
};

#define TAG_HEADER "Once-Tag"
#define QUEUE_COMMAND "rabbitmqadmin declare queue durable=true name="

extern const struct once__broker_ops once__broker_amqp;

enum content { CONTENT_NONE, CONTENT_RETURN, CONTENT_DELIVERY };

struct amqp {
    struct once__broker broker;
    struct once__broker_options o;
    struct once__address at;
    char exchange[256], routing_key[256], queue[256];
    char *ca_file;
    int tls;

    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t wake;
    pthread_t beat;
    int beating, stop;

    amqp_connection_state_t c; /* NULL: not connected */
    uint64_t connection;       /* which one it is, from 1 */
    size_t frame_max;
    uint64_t blocked_ms; /* since when the broker takes nothing; 0: it does */
    char said[160];      /* why it closed the channel, for a proof */
    struct once__flights flights;
    struct once__suspects suspects; /* see channel_closed() */
    amqp_table_entry_t *entries;    /* of the message being sent */
    size_t n_entries;

    enum content content; /* what header and body frames belong to */
    uint64_t left;        /* bytes of the body that are still to come */
    struct once__incoming *coming;
    struct once__incoming_list ready, out; /* not yet received; not yet ended */
};

static struct amqp *self(struct once__broker *b)
{
    return (struct amqp *)(void *)b;
}

static struct timeval interval(uint64_t ms)
{
    struct timeval tv = {(time_t)(ms / 1000), (suseconds_t)(ms % 1000) * 1000};

    return tv;
}

static amqp_bytes_t bytes_of(const char *text)
{
    amqp_bytes_t b = {strlen(text), (void *)(uintptr_t)text};

    return b;
}

/* ---- The URL ------------------------------------------------------------ */

static int read_query(void *user, char *url, once_error *err)
{
    struct amqp *a = user;
    int exchange =
        once__url_take(url, "exchange", a->exchange, sizeof(a->exchange), err);
    int key = exchange < 0 ? exchange
                           : once__url_take(url, "routing_key", a->routing_key,
                                            sizeof(a->routing_key), err);
    int queue =
        key < 0 ? key
                : once__url_take(url, "queue", a->queue, sizeof(a->queue), err);

    if (queue < 0)
        return queue;
    if (queue > 0 && (exchange > 0 || key > 0))
        return once__fail(err, ONCE_EURL,
                          "amqp: queue= is for receiving, exchange= and "
                          "routing_key= are for sending");
    if (a->o.consumer != NULL && a->queue[0] == '\0')
        return once__fail(err, ONCE_EURL,
                          "amqp: a consumer requires the parameter queue: "
                          "amqp://HOST/VHOST?queue=QUEUE");
    if (a->o.consumer == NULL && queue > 0)
        return once__fail(
            err, ONCE_EURL,
            "amqp: the parameter queue is for consumers; to send, "
            "use exchange and routing_key");
    return once__url_end("amqp", url, "exchange, routing_key, queue", err);
}

static int read_url(struct amqp *a, const char *url, once_error *err)
{
    int rc = once__address_read("amqp", url, read_query, a, &a->at, err);

    a->tls = strncmp(url, "amqps:", 6) == 0;
    if (rc != ONCE_OK)
        return rc;
    if (a->at.port == 0)
        a->at.port = a->tls ? 5671 : 5672;
    if (a->at.path[0] == '\0')
        memcpy(a->at.path, "/", 2);
    if (!a->at.has_user) {
        memcpy(a->at.user, "guest", 6);
        memcpy(a->at.password, "guest", 6);
    }
    return ONCE_OK;
}

/* ---- The end of a connection -------------------------------------------- */

/* What was sent and has no proof may have been taken. What came in and has no
 * acknowledgement will come again. */
static void lose(struct amqp *a, const char *why)
{
    if (a->c != NULL)
        (void)amqp_destroy_connection(a->c);
    a->c = NULL;
    a->content = CONTENT_NONE;
    a->blocked_ms = 0;
    once__incoming_free(a->coming);
    a->coming = NULL;
    once__incoming_drop(&a->ready);
    once__flights_lose(&a->flights, why);
}

static int lost(struct amqp *a, const char *why, once_error *err)
{
    lose(a, why);
    return once__fail(err, ONCE_EAWAY, "amqp: %s", why);
}

/* An orderly end: without it, acknowledgements on their way are lost when the
 * broker's own bytes are still unread here. */
static void leave(struct amqp *a)
{
    struct timeval most =
        interval(a->o.timeout_ms < CLOSE_MS ? a->o.timeout_ms : CLOSE_MS);

    if (a->c != NULL && amqp_set_rpc_timeout(a->c, &most) == AMQP_STATUS_OK)
        (void)amqp_connection_close(a->c, AMQP_REPLY_SUCCESS);
    lose(a, "the connection was closed");
}

/* ---- What comes in ------------------------------------------------------ */

static void confirmed(struct amqp *a, uint64_t number, int multiple, int end,
                      const char *why)
{
    if (multiple)
        /* 0: all so far. */
        once__flights_end_to(
            &a->flights, number > 0 ? number : a->flights.next - 1, end, why);
    else
        once__flights_end(&a->flights, number, end, 0, why);
}

/* ---- Messages that may be too much for the broker ----------------------- */

/*
 * The broker has closed the channel, because of one of the messages in flight:
 * no right to publish, too large for it. It says not which, and has not looked
 * at those after it. If one was in flight, it was that one. Otherwise each of
 * them is alone in flight when it is sent again, whenever that is, so that the
 * next time it is known.
 */
static void channel_closed(struct amqp *a, const amqp_channel_close_t *m)
{
    uint64_t i;
    const uint32_t *sum;

    /* Where it refuses a right, its words name the user. */
    (void)snprintf(
        a->said, sizeof(a->said), "the broker closed the channel: %.*s",
        m->reply_code == AMQP_ACCESS_REFUSED ? (int)strlen("ACCESS_REFUSED")
                                             : (int)m->reply_text.len,
        m->reply_code == AMQP_ACCESS_REFUSED
            ? "ACCESS_REFUSED"
            : (const char *)m->reply_text.bytes);
    if (a->flights.open == 1) {
        once__suspects_remove(
            &a->suspects, *once__flights_note(&a->flights, a->flights.first));
        once__flights_end(&a->flights, a->flights.first, ONCE__END_REFUSED,
                          m->reply_code, a->said);
    } else {
        for (i = a->flights.first; i < a->flights.next; i++) {
            sum = once__flights_note(&a->flights, i);
            if (sum != NULL)
                once__suspects_add(&a->suspects, *sum);
        }
    }
    lose(a, "the broker closed the channel");
}

static void on_delivery(struct amqp *a, const amqp_basic_deliver_t *m)
{
    a->coming = once__incoming_new();
    if (a->coming == NULL) {
        lose(a, "no memory");
        return;
    }
    a->content = CONTENT_DELIVERY;
    a->coming->connection = a->connection;
    a->coming->d.tag = m->delivery_tag;
    a->coming->d.redelivered = m->redelivered != 0;
}

static void on_method(struct amqp *a, const amqp_frame_t *frame)
{
    void *m = frame->payload.method.decoded;

    switch (frame->payload.method.id) {
    case AMQP_BASIC_ACK_METHOD:
        confirmed(a, ((amqp_basic_ack_t *)m)->delivery_tag,
                  ((amqp_basic_ack_t *)m)->multiple, ONCE__END_TAKEN, NULL);
        break;
    case AMQP_BASIC_NACK_METHOD:
        confirmed(a, ((amqp_basic_nack_t *)m)->delivery_tag,
                  ((amqp_basic_nack_t *)m)->multiple, ONCE__END_NACKED,
                  "the broker answered nack: a queue is full, or it failed");
        break;
    case AMQP_BASIC_RETURN_METHOD:
        a->content = CONTENT_RETURN;
        break;
    case AMQP_BASIC_DELIVER_METHOD:
        on_delivery(a, m);
        break;
    case AMQP_BASIC_CANCEL_METHOD:
        lose(a, "the broker ended the consumer: the queue is gone");
        break;
    case AMQP_CHANNEL_CLOSE_METHOD:
        channel_closed(a, m);
        break;
    case AMQP_CONNECTION_BLOCKED_METHOD:
        a->blocked_ms = once__steady_ms();
        break;
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
        a->blocked_ms = 0;
        break;
    case AMQP_CONNECTION_CLOSE_METHOD: {
        amqp_connection_close_ok_t ok = {0};

        (void)amqp_send_method(a->c, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &ok);
        lose(a, "the broker closed the connection");
        break;
    }
    default:
        break;
    }
}

static int is_text(const amqp_table_entry_t *e)
{
    return e->value.kind == AMQP_FIELD_KIND_UTF8 ||
           e->value.kind == AMQP_FIELD_KIND_BYTES;
}

static int is_named(const amqp_table_entry_t *e, const char *name)
{
    return e->key.len == strlen(name) &&
           memcmp(e->key.bytes, name, e->key.len) == 0;
}

/* What was sent and goes nowhere; its confirm will follow. */
static void returned(struct amqp *a, const amqp_basic_properties_t *p)
{
    int i;

    if (!(p->_flags & AMQP_BASIC_HEADERS_FLAG))
        return;
    for (i = 0; i < p->headers.num_entries; i++) {
        const amqp_table_entry_t *e = &p->headers.entries[i];

        if (is_named(e, TAG_HEADER) && e->value.kind == AMQP_FIELD_KIND_I64)
            once__flights_mark(&a->flights, (uint64_t)e->value.value.i64,
                               ONCE__END_REFUSED, AMQP_NO_ROUTE,
                               "no queue is bound for its routing key");
    }
}

static void delivered(struct once__incoming *in,
                      const amqp_basic_properties_t *p)
{
    int i;

    if (p->_flags & AMQP_BASIC_MESSAGE_ID_FLAG)
        once__incoming_id(in, p->message_id.bytes, p->message_id.len);
    if (p->_flags & AMQP_BASIC_CONTENT_TYPE_FLAG)
        once__incoming_type(in, p->content_type.bytes, p->content_type.len);
    if (!(p->_flags & AMQP_BASIC_HEADERS_FLAG))
        return;
    for (i = 0; i < p->headers.num_entries; i++) {
        const amqp_table_entry_t *e = &p->headers.entries[i];

        if (is_text(e))
            once__incoming_header(in, e->key.bytes, e->key.len,
                                  e->value.value.bytes.bytes,
                                  e->value.value.bytes.len);
    }
}

/* All of its body has come. */
static void content_ends(struct amqp *a)
{
    enum content content = a->content;
    struct once__incoming *in = a->coming;

    a->content = CONTENT_NONE;
    a->coming = NULL;
    if (content != CONTENT_DELIVERY)
        return;
    if (once__incoming_finish(in)) {
        once__incoming_push(&a->ready, in);
        return;
    }
    once__incoming_free(in);
    lose(a, "no memory");
}

static void on_frame(struct amqp *a, const amqp_frame_t *frame)
{
    if (frame->frame_type == AMQP_FRAME_METHOD) {
        on_method(a, frame);
        return;
    }
    if (a->content == CONTENT_NONE)
        return;
    if (frame->frame_type == AMQP_FRAME_HEADER) {
        a->left = frame->payload.properties.body_size;
        if (a->content == CONTENT_RETURN)
            returned(a, frame->payload.properties.decoded);
        else
            delivered(a->coming, frame->payload.properties.decoded);
    } else if (frame->frame_type == AMQP_FRAME_BODY) {
        size_t size = frame->payload.body_fragment.len;

        if (size > a->left) {
            lose(a, "the broker sent more than it announced");
            return;
        }
        a->left -= size;
        if (a->content == CONTENT_DELIVERY)
            once__incoming_body(a->coming, frame->payload.body_fragment.bytes,
                                size, a->o.body_max);
    } else {
        return;
    }
    if (a->left == 0)
        content_ends(a);
}

/* Waits for one frame up to `wait_ms`. 1: there was one. */
static int read_frame(struct amqp *a, uint64_t wait_ms)
{
    struct timeval tv = interval(wait_ms);
    amqp_frame_t frame;
    int rc = amqp_simple_wait_frame_noblock(a->c, &frame, &tv);

    if (rc == AMQP_STATUS_TIMEOUT)
        return 0;
    if (rc != AMQP_STATUS_OK) {
        lose(a, "the connection was lost");
        return 0;
    }
    on_frame(a, &frame);
    /* Nothing of this frame is needed any more. */
    if (a->c != NULL)
        amqp_maybe_release_buffers(a->c);
    return 1;
}

/* Reads what is there, without waiting. */
static void drain(struct amqp *a)
{
    while (a->c != NULL && read_frame(a, 0))
        ;
}

/* The same of what this process has read of the socket already. */
static void drain_buffer(struct amqp *a)
{
    while (a->c != NULL &&
           (amqp_frames_enqueued(a->c) || amqp_data_in_buffer(a->c)) &&
           read_frame(a, 0))
        ;
}

/* How long to wait for the next frame, before `end_ms`; a broker that has taken
 * nothing for too long is given up. */
static uint64_t wait_for(struct amqp *a, uint64_t end_ms)
{
    uint64_t now = once__steady_ms(), blocked;

    if (a->blocked_ms != 0) {
        blocked = a->blocked_ms + a->o.timeout_ms;
        if (now >= blocked) {
            lose(a, "the broker has blocked this connection");
            return 0;
        }
        if (blocked < end_ms)
            end_ms = blocked;
    }
    return now < end_ms ? end_ms - now : 0;
}

/* ---- The connection ------------------------------------------------------ */

static void *beat(void *user)
{
    struct amqp *a = user;

    (void)pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        if (a->c != NULL)
            drain(a);
        once__cond_until(&a->wake, &a->lock, once__steady_ms() + BEAT_MS);
    }
    (void)pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* What our process does not notice, the kernel does: a host that is gone, and a
 * broker that reads nothing while we write. */
static void watch_socket(struct amqp *a)
{
    int fd = amqp_get_sockfd(a->c), on = 1, idle = 10, every = 5, probes = 3;
    unsigned timeout = a->o.timeout_ms;

    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout,
                     sizeof(timeout));
}

/* The name is checked by OpenSSL, which knows addresses, too. */
static int set_tls(struct amqp *a, amqp_socket_t *s)
{
    SSL_CTX *ctx = amqp_ssl_socket_get_context(s);
    X509_VERIFY_PARAM *param = SSL_CTX_get0_param(ctx);

    amqp_ssl_socket_set_verify_peer(s, 1);
    amqp_ssl_socket_set_verify_hostname(s, 0);
    if (amqp_ssl_socket_set_ssl_versions(s, AMQP_TLSv1_2, AMQP_TLSvLATEST) !=
        AMQP_STATUS_OK)
        return 0;
    if (X509_VERIFY_PARAM_set1_ip_asc(param, a->at.host) != 1 &&
        X509_VERIFY_PARAM_set1_host(param, a->at.host, 0) != 1)
        return 0;
    if (a->ca_file == NULL)
        return SSL_CTX_set_default_verify_paths(ctx) == 1;
    return amqp_ssl_socket_set_cacert(s, a->ca_file) == AMQP_STATUS_OK;
}

static int open_socket(struct amqp *a, once_error *err)
{
    struct timeval most = interval(a->o.timeout_ms);
    amqp_socket_t *s =
        a->tls ? amqp_ssl_socket_new(a->c) : amqp_tcp_socket_new(a->c);
    int rc;

    if (s == NULL)
        return lost(a, "no memory", err);
    if (a->tls && !set_tls(a, s)) {
        lose(a, "TLS");
        return once__fail(err, ONCE_EOPEN,
                          "amqp: the certificates to trust cannot be read");
    }
    rc = amqp_socket_open_noblock(s, a->at.host, a->at.port, &most);
    if (rc == AMQP_STATUS_SSL_PEER_VERIFY_FAILED ||
        rc == AMQP_STATUS_SSL_HOSTNAME_VERIFY_FAILED) {
        lose(a, "TLS");
        return once__fail(err, ONCE_EOPEN,
                          "amqp: the broker's certificate is not trusted, or "
                          "not for this host");
    }
    if (rc != AMQP_STATUS_OK)
        return lost(a, "the broker cannot be reached", err);
    watch_socket(a);
    return ONCE_OK;
}

/* The broker's code and words, if it has refused something; 0: the connection was
 * lost. `words` has room for 120 bytes. */
static int refusal_of(const amqp_rpc_reply_t *r, char words[120])
{
    const amqp_channel_close_t *channel = r->reply.decoded;
    const amqp_connection_close_t *connection = r->reply.decoded;
    const amqp_bytes_t *text;
    int code;

    words[0] = '\0';
    if (r->reply_type != AMQP_RESPONSE_SERVER_EXCEPTION)
        return 0;
    if (r->reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
        code = channel->reply_code;
        text = &channel->reply_text;
    } else if (r->reply.id == AMQP_CONNECTION_CLOSE_METHOD) {
        code = connection->reply_code;
        text = &connection->reply_text;
    } else {
        return 0;
    }
    (void)snprintf(words, 120, "%.*s", (int)text->len,
                   (const char *)text->bytes);
    return code;
}

/* What is asked of the broker, in words, and a command that helps. */
struct wish {
    const char *what, *name, *command;
};

/* Whether the last request was granted. Where the broker refuses a right, its own
 * words are not repeated, since they name the user. */
static int granted(struct amqp *a, amqp_rpc_reply_t r, struct wish w,
                   once_error *err)
{
    char words[120];
    int code;

    if (r.reply_type == AMQP_RESPONSE_NORMAL)
        return ONCE_OK;
    code = refusal_of(&r, words);
    lose(a, "the connection was not set up");
    switch (code) {
    case AMQP_ACCESS_REFUSED:
        return once__fail(err, ONCE_EOPEN,
                          "amqp: the broker refuses %s%s: 403 ACCESS_REFUSED. "
                          "Check the user, the password and the user's rights "
                          "(rabbitmqctl list_permissions)",
                          w.what, w.name);
    case AMQP_NOT_FOUND:
        return once__fail(err, ONCE_EOPEN,
                          "amqp: %s%s does not exist: 404 %s. Create it: %s%s",
                          w.what, w.name, words, w.command, w.name);
    case AMQP_NOT_ALLOWED:
        return once__fail(
            err, ONCE_EOPEN,
            "amqp: the virtual host %s does not exist, or this user "
            "may not use it: rabbitmqctl list_vhosts, rabbitmqctl "
            "list_permissions",
            a->at.path);
    case 0:
        return once__fail(err, ONCE_EAWAY,
                          "amqp: the connection was lost during: %s%s", w.what,
                          w.name);
    default:
        return once__fail(err,
                          code == AMQP_RESOURCE_LOCKED ||
                                  code == AMQP_PRECONDITION_FAILED ||
                                  code == AMQP_NOT_IMPLEMENTED
                              ? ONCE_EOPEN
                              : ONCE_EAWAY,
                          "amqp: the broker refuses %s%s: %d %s", w.what,
                          w.name, code, words);
    }
}

static struct wish wish_of(const char *what)
{
    return (struct wish){what, "", ""};
}

static int log_in(struct amqp *a, once_error *err)
{
    static const char *const names[] = {"publisher_confirms", "basic.nack",
                                        "consumer_cancel_notify",
                                        "connection.blocked"};
    amqp_table_entry_t can[4], property;
    amqp_table_t table = {1, &property};
    amqp_rpc_reply_t r;
    size_t i;

    for (i = 0; i < 4; i++) {
        can[i].key = bytes_of(names[i]);
        can[i].value.kind = AMQP_FIELD_KIND_BOOLEAN;
        can[i].value.value.boolean = 1;
    }
    property.key = bytes_of("capabilities");
    property.value.kind = AMQP_FIELD_KIND_TABLE;
    property.value.value.table.num_entries = 4;
    property.value.value.table.entries = can;
    r = amqp_login_with_properties(a->c, a->at.path, 16, FRAME_MAX, HEARTBEAT_S,
                                   &table, AMQP_SASL_METHOD_PLAIN, a->at.user,
                                   a->at.password);
    return granted(a, r, wish_of("this user and password"), err);
}

/* The default exchange leads to the queue that the routing key names. */
static int look_for_queue(struct amqp *a, once_error *err)
{
    const char *name = a->routing_key[0] != '\0' ? a->routing_key : a->o.route;

    if (a->exchange[0] != '\0' || name == NULL)
        return ONCE_OK;
    (void)amqp_queue_declare(a->c, CHANNEL, bytes_of(name), 1, 0, 0, 0,
                             amqp_empty_table);
    return granted(a, amqp_get_rpc_reply(a->c),
                   (struct wish){"the queue ", name, QUEUE_COMMAND}, err);
}

static int set_up_sending(struct amqp *a, once_error *err)
{
    int rc = ONCE_OK;

    if (a->exchange[0] != '\0') {
        (void)amqp_exchange_declare(a->c, CHANNEL, bytes_of(a->exchange),
                                    bytes_of("direct"), 1, 0, 0, 0,
                                    amqp_empty_table);
        rc = granted(a, amqp_get_rpc_reply(a->c),
                     (struct wish){"the exchange ", a->exchange,
                                   "rabbitmqadmin declare exchange "
                                   "type=direct durable=true name="},
                     err);
    }
    if (rc == ONCE_OK && a->o.check)
        rc = look_for_queue(a, err);
    if (rc != ONCE_OK)
        return rc;
    (void)amqp_confirm_select(a->c, CHANNEL);
    return granted(a, amqp_get_rpc_reply(a->c), wish_of("confirms"), err);
}

static int set_up_receiving(struct amqp *a, once_error *err)
{
    const struct wish queue = {"the queue ", a->queue, QUEUE_COMMAND};
    uint32_t prefetch = a->o.prefetch == 0 ? 1 : a->o.prefetch;
    int rc;

    if (prefetch > UINT16_MAX)
        prefetch = UINT16_MAX;
    (void)amqp_queue_declare(a->c, CHANNEL, bytes_of(a->queue), 1, 0, 0, 0,
                             amqp_empty_table);
    rc = granted(a, amqp_get_rpc_reply(a->c), queue, err);
    if (rc != ONCE_OK)
        return rc;
    (void)amqp_basic_qos(a->c, CHANNEL, 0, (uint16_t)prefetch, 0);
    rc = granted(a, amqp_get_rpc_reply(a->c), wish_of("this prefetch"), err);
    if (rc != ONCE_OK)
        return rc;
    (void)amqp_basic_consume(a->c, CHANNEL, bytes_of(a->queue),
                             amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
    return granted(a, amqp_get_rpc_reply(a->c), queue, err);
}

static int set_up(struct amqp *a, once_error *err)
{
    struct timeval most = interval(a->o.timeout_ms);
    int rc;

    a->c = amqp_new_connection();
    if (a->c == NULL)
        return once__fail(err, ONCE_EAWAY, "amqp: no memory");
    a->connection++;
    if (amqp_set_handshake_timeout(a->c, &most) != AMQP_STATUS_OK ||
        amqp_set_rpc_timeout(a->c, &most) != AMQP_STATUS_OK)
        return lost(a, "the time-outs cannot be set", err);
    rc = open_socket(a, err);
    if (rc == ONCE_OK)
        rc = log_in(a, err);
    if (rc != ONCE_OK)
        return rc;
    a->frame_max = (size_t)amqp_get_frame_max(a->c);
    (void)amqp_channel_open(a->c, CHANNEL);
    rc = granted(a, amqp_get_rpc_reply(a->c), wish_of("a channel"), err);
    if (rc != ONCE_OK)
        return rc;
    return a->queue[0] != '\0' ? set_up_receiving(a, err)
                               : set_up_sending(a, err);
}

static int amqp_connect(struct once__broker *b, once_error *err)
{
    struct amqp *a = self(b);
    int rc = ONCE_OK;

    (void)pthread_mutex_lock(&a->lock);
    drain(a); /* a connection that was idle may have ended */
    if (a->c == NULL)
        rc = set_up(a, err);
    if (rc == ONCE_OK && !a->beating)
        a->beating = pthread_create(&a->beat, NULL, beat, a) == 0;
    (void)pthread_mutex_unlock(&a->lock);
    return rc;
}

/* ---- Sending -------------------------------------------------------------- */

static int entry(struct amqp *a, size_t i, const char *name, size_t n_name,
                 const char *value, size_t n_value)
{
    amqp_table_entry_t *e =
        once__grown(a->entries, &a->n_entries, i + 1, sizeof(*e));

    if (e == NULL)
        return 0;
    a->entries = e;
    e += i;
    e->key.len = n_name;
    e->key.bytes = (void *)(uintptr_t)name;
    e->value.kind = AMQP_FIELD_KIND_UTF8;
    e->value.value.bytes.len = n_value;
    e->value.value.bytes.bytes = (void *)(uintptr_t)value;
    return 1;
}

/* The table of headers: how many entries. 0: no memory. */
static size_t fill_headers(struct amqp *a, const once_message *m,
                           uint64_t number)
{
    const char *at = m->headers;
    struct once__header_line line;
    size_t n = 0;

    if (!entry(a, n++, TAG_HEADER, strlen(TAG_HEADER), "", 0))
        return 0;
    a->entries[0].value.kind = AMQP_FIELD_KIND_I64;
    a->entries[0].value.value.i64 = (int64_t)number;
    if (m->key != NULL &&
        !entry(a, n++, ONCE__HEADER_KEY, strlen(ONCE__HEADER_KEY), m->key,
               strlen(m->key)))
        return 0;
    while (once__header_line_next(&at, &line))
        if (!entry(a, n++, line.name, line.n_name, line.value, line.n_value))
            return 0;
    return n;
}

static void fill_properties(const struct amqp *a, const once_message *m,
                            size_t n_headers, amqp_basic_properties_t *p)
{
    memset(p, 0, sizeof(*p));
    p->_flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_HEADERS_FLAG |
                AMQP_BASIC_MESSAGE_ID_FLAG;
    p->delivery_mode = AMQP_DELIVERY_PERSISTENT;
    p->message_id = bytes_of(m->id);
    p->headers.num_entries = (int)n_headers;
    p->headers.entries = a->entries;
    if (m->type != NULL && m->type[0] != '\0') {
        p->_flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
        p->content_type = bytes_of(m->type);
    }
}

/* Reads until at most `most` messages are in flight, or the time is over. */
static void wait_until(struct amqp *a, size_t most)
{
    uint64_t end = once__steady_ms() + a->o.timeout_ms;

    while (a->c != NULL && a->flights.open > most && once__steady_ms() < end) {
        uint64_t wait = wait_for(a, end);

        if (a->c != NULL)
            (void)read_frame(a, wait);
    }
}

/* `alone`: no other is in flight until this one has its proof. */
static int publish(struct amqp *a, const once_message *m, uint64_t tag,
                   int alone, once_error *err)
{
    const char *key = a->routing_key[0] != '\0' ? a->routing_key : m->route;
    uint64_t number = once__flights_add(&a->flights, tag);
    amqp_basic_properties_t p;
    amqp_bytes_t body = {m->body.size, (void *)(uintptr_t)m->body.data};
    uint32_t sum = once__suspects_sum(m->id);
    size_t n;

    if (number == 0)
        return once__fail(err, ONCE_ENOMEM, "amqp: no memory");
    *once__flights_note(&a->flights, number) = sum;
    n = fill_headers(a, m, number);
    if (n == 0) {
        once__flights_cancel(&a->flights);
        return once__fail(err, ONCE_ENOMEM, "amqp: no memory");
    }
    fill_properties(a, m, n, &p);
    if (amqp_basic_publish(a->c, CHANNEL, bytes_of(a->exchange),
                           bytes_of(key == NULL ? "" : key), 1, 0, &p,
                           body) != AMQP_STATUS_OK)
        return lost(a, "the connection was lost while sending", err);
    if (number % DRAIN_EVERY == 0)
        drain(a);
    if (alone) {
        wait_until(a, 0);
        if (a->c != NULL && a->flights.open == 0)
            once__suspects_remove(&a->suspects, sum);
    }
    return ONCE_OK;
}

/* Bytes of the properties on the wire, or more. */
static size_t properties_size(const once_message *m)
{
    const char *at = m->headers;
    struct once__header_line line;
    size_t size = 1024 + (m->type == NULL ? 0 : strlen(m->type));

    while (once__header_line_next(&at, &line))
        size += 6 + line.n_name + line.n_value;
    return size;
}

static int amqp_send(struct once__broker *b, const once_message *m,
                     uint64_t tag, once_error *err)
{
    struct amqp *a = self(b);
    int alone, rc;

    (void)pthread_mutex_lock(&a->lock);
    alone = once__suspects_has(&a->suspects, once__suspects_sum(m->id));
    if (alone)
        wait_until(a, 0);
    if (a->c == NULL) {
        rc = once__flights_unsent(&a->flights, tag, ONCE__END_UNSENT, NULL);
        if (rc == ONCE_OK)
            rc = once__fail(err, ONCE_EAWAY, "amqp: not connected");
    } else if (a->blocked_ms != 0) {
        rc = once__flights_unsent(&a->flights, tag, ONCE__END_AWAY,
                                  "the broker has blocked this connection");
    } else if (properties_size(m) > a->frame_max) {
        rc = once__flights_unsent(&a->flights, tag, ONCE__END_REJECTED,
                                  "its headers do not fit into one frame");
    } else {
        rc = publish(a, m, tag, alone, err);
    }
    (void)pthread_mutex_unlock(&a->lock);
    return rc == ONCE_ENOMEM ? once__fail(err, rc, "amqp: no memory") : rc;
}

static size_t amqp_proofs(struct once__broker *b, uint32_t wait_ms,
                          struct once__proof *out, size_t max)
{
    struct amqp *a = self(b);
    uint64_t end = once__steady_ms() + wait_ms;
    size_t n;

    (void)pthread_mutex_lock(&a->lock);
    while (a->c != NULL && a->flights.open > 0 &&
           once__flights_ready(&a->flights) == 0) {
        uint64_t wait = wait_for(a, end);

        if (a->c == NULL || (!read_frame(a, wait) && once__steady_ms() >= end))
            break;
        drain_buffer(a);
    }
    n = once__ended_take(&a->flights.ended, out, max);
    (void)pthread_mutex_unlock(&a->lock);
    return n;
}

static void amqp_abandon(struct once__broker *b)
{
    struct amqp *a = self(b);

    (void)pthread_mutex_lock(&a->lock);
    lose(a, "no proof came in time");
    (void)pthread_mutex_unlock(&a->lock);
}

/* ---- Receiving ------------------------------------------------------------ */

static int amqp_receive(struct once__broker *b, uint32_t wait_ms,
                        struct once__delivery **out, once_error *err)
{
    struct amqp *a = self(b);
    uint64_t end = once__steady_ms() + wait_ms;
    struct once__incoming *in = NULL;
    int rc = ONCE_OK;

    *out = NULL;
    (void)pthread_mutex_lock(&a->lock);
    while (a->c != NULL && a->ready.first == NULL)
        if (!read_frame(a, wait_for(a, end)) && once__steady_ms() >= end)
            break;
    if (a->c == NULL)
        rc = once__fail(err, ONCE_EAWAY,
                        "amqp: the connection was lost, or "
                        "the queue is gone");
    else
        in = a->ready.first;
    if (in != NULL) {
        once__incoming_remove(&a->ready, in);
        once__incoming_push(&a->out, in);
        *out = &in->d;
    }
    (void)pthread_mutex_unlock(&a->lock);
    return rc;
}

static int amqp_ack(struct once__broker *b, struct once__delivery *d, int how,
                    once_error *err)
{
    struct amqp *a = self(b);
    struct once__incoming *in = (struct once__incoming *)(void *)d;
    int rc = ONCE_OK, sent = AMQP_STATUS_OK;

    if (how == ONCE__ACK_STILL_AT)
        return ONCE_OK; /* the connection is all that RabbitMQ looks at */
    (void)pthread_mutex_lock(&a->lock);
    if (a->c == NULL || in->connection != a->connection)
        rc = once__fail(err, ONCE_EAWAY,
                        "amqp: the connection on which it "
                        "came is gone");
    else if (how == ONCE__ACK_TAKEN)
        sent = amqp_basic_ack(a->c, CHANNEL, d->tag, 0);
    else
        sent = amqp_basic_nack(a->c, CHANNEL, d->tag, 0, 1);
    if (sent != AMQP_STATUS_OK)
        rc = lost(a, "the connection was lost", err);
    once__incoming_remove(&a->out, in);
    once__incoming_free(in);
    (void)pthread_mutex_unlock(&a->lock);
    return rc;
}

/* ---- The object ----------------------------------------------------------- */

static void amqp_close(struct once__broker *b)
{
    struct amqp *a = self(b);

    if (a == NULL)
        return;
    (void)pthread_mutex_lock(&a->lock);
    leave(a);
    a->stop = 1;
    (void)pthread_cond_signal(&a->wake);
    (void)pthread_mutex_unlock(&a->lock);
    if (a->beating)
        (void)pthread_join(a->beat, NULL);
    once__incoming_drop(&a->out);
    once__flights_clear(&a->flights);
    free(a->entries);
    once__suspects_clear(&a->suspects);
    free(a->ca_file);
    (void)pthread_cond_destroy(&a->wake);
    (void)pthread_mutex_destroy(&a->lock);
    explicit_bzero(&a->at, sizeof(a->at));
    free(a);
}

static int amqp_open(const char *url, const struct once__broker_options *o,
                     struct once__broker **out, once_error *err)
{
    struct amqp *a = calloc(1, sizeof(*a));
    int rc;

    *out = NULL;
    if (a == NULL)
        return once__fail(err, ONCE_ENOMEM, "amqp: no memory");
    a->broker.ops = &once__broker_amqp;
    a->o = *o;
    if (a->o.timeout_ms == 0)
        a->o.timeout_ms = 10000;
    (void)pthread_mutex_init(&a->lock, NULL);
    once__cond_init(&a->wake);
    rc = read_url(a, url, err);
    if (rc == ONCE_OK && o->ca_file != NULL) {
        a->ca_file = strdup(o->ca_file);
        if (a->ca_file == NULL)
            rc = once__fail(err, ONCE_ENOMEM, "amqp: no memory");
    }
    if (rc != ONCE_OK) {
        amqp_close(&a->broker);
        return rc;
    }
    *out = &a->broker;
    return ONCE_OK;
}

const struct once__broker_ops once__broker_amqp = {
    .scheme = "amqp",
    .knows_ids = 1,
    .open = amqp_open,
    .close = amqp_close,
    .connect = amqp_connect,
    .send = amqp_send,
    .proofs = amqp_proofs,
    .abandon = amqp_abandon,
    .receive = amqp_receive,
    .ack = amqp_ack,
};
