/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_broker_amqp.c - the driver of RabbitMQ, where it is not like the others.
 *
 *    with-server rabbitmq -- test_broker_amqp FAULTPROXY
 *
 * Each test has queues of its own. What the broker has is asked of it over a
 * plain connection, with no code of the driver.
 */
#include "target.h"

#include "messages/broker/flights.h"
#include "messages/broker/librabbitmq.h"

static const char *proxy_program;
static char host[128];
static int port;
static amqp_connection_state_t admin;

/* ---- The broker, without the driver -------------------------------------- */

static void admin_open(void)
{
    amqp_socket_t *s;

    admin = amqp_new_connection();
    s = amqp_tcp_socket_new(admin);
    if (amqp_socket_open(s, host, port) != 0 ||
        amqp_login(admin, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest",
                   "guest")
                .reply_type != AMQP_RESPONSE_NORMAL) {
        printf("#   %s:%d does not let us in\n", host, port);
        exit(1);
    }
    (void)amqp_channel_open(admin, 1);
}

static void admin_close(void)
{
    (void)amqp_connection_close(admin, 200);
    (void)amqp_destroy_connection(admin);
}

static int admin_good(const char *what)
{
    amqp_rpc_reply_t r = amqp_get_rpc_reply(admin);

    amqp_maybe_release_buffers(admin);
    if (r.reply_type == AMQP_RESPONSE_NORMAL)
        return 1;
    printf("#   admin: %s\n", what);
    t__bad++;
    return 0;
}

/* A classic durable queue that rejects what is over `most`, 0: no limit. */
static void queue_make(const char *name, int most)
{
    amqp_table_entry_t e[2];
    amqp_table_t t = {most > 0 ? 2 : 0, e};

    e[0].key = amqp_cstring_bytes("x-max-length");
    e[0].value.kind = AMQP_FIELD_KIND_I32;
    e[0].value.value.i32 = most;
    e[1].key = amqp_cstring_bytes("x-overflow");
    e[1].value.kind = AMQP_FIELD_KIND_UTF8;
    e[1].value.value.bytes = amqp_cstring_bytes("reject-publish");
    (void)amqp_queue_delete(admin, 1, amqp_cstring_bytes(name), 0, 0);
    (void)amqp_queue_declare(admin, 1, amqp_cstring_bytes(name), 0, 1, 0, 0, t);
    (void)admin_good("queue.declare");
}

static void queue_drop(const char *name)
{
    (void)amqp_queue_delete(admin, 1, amqp_cstring_bytes(name), 0, 0);
    (void)admin_good("queue.delete");
}

/* Takes all out of a queue: how many of the messages 0..n-1 were there, by the
 * number at the end of their ids. */
static size_t queue_take(const char *name, char seen[MANY])
{
    amqp_message_t m;
    size_t n = 0;

    memset(seen, 0, MANY);
    for (;;) {
        amqp_rpc_reply_t r =
            amqp_basic_get(admin, 1, amqp_cstring_bytes(name), 1);
        char id[64] = "";
        const char *dash;
        unsigned long i;

        if (r.reply_type != AMQP_RESPONSE_NORMAL ||
            r.reply.id != AMQP_BASIC_GET_OK_METHOD)
            break;
        if (amqp_read_message(admin, 1, &m, 0).reply_type !=
            AMQP_RESPONSE_NORMAL)
            break;
        (void)snprintf(id, sizeof(id), "%.*s", (int)m.properties.message_id.len,
                       (char *)m.properties.message_id.bytes);
        dash = strrchr(id, '-');
        i = dash == NULL ? MANY : strtoul(dash + 1, NULL, 10);
        if (i < MANY)
            seen[i] = 1;
        amqp_destroy_message(&m);
        amqp_maybe_release_buffers(admin);
        n++;
    }
    return n;
}

/* Puts a message there as anybody might. */
static void put(const char *queue, const char *id, size_t n_id,
                const char *header, const char *value, size_t n_value)
{
    amqp_basic_properties_t p;
    amqp_table_entry_t e;

    memset(&p, 0, sizeof(p));
    if (id != NULL) {
        p._flags |= AMQP_BASIC_MESSAGE_ID_FLAG;
        p.message_id.len = n_id;
        p.message_id.bytes = (void *)(uintptr_t)id;
    }
    if (header != NULL) {
        p._flags |= AMQP_BASIC_HEADERS_FLAG;
        e.key = amqp_cstring_bytes(header);
        e.value.kind = AMQP_FIELD_KIND_UTF8;
        e.value.value.bytes.len = n_value;
        e.value.value.bytes.bytes = (void *)(uintptr_t)value;
        p.headers.num_entries = 1;
        p.headers.entries = &e;
    }
    T_EQ(amqp_basic_publish(admin, 1, amqp_empty_bytes,
                            amqp_cstring_bytes(queue), 0, 0, &p,
                            amqp_cstring_bytes("body")),
         0);
}

static const char *with(char *url, size_t size, const char *query)
{
    (void)snprintf(url, size, "amqp://guest:guest@%s:%d/%%2f%s", host, port,
                   query);
    return url;
}

static struct once__broker *sender(void)
{
    char url[256];

    return target_connected(with(url, sizeof(url), ""), 0);
}

static struct once__broker *consumer(const char *queue, uint32_t prefetch)
{
    char url[256], query[64];

    (void)snprintf(query, sizeof(query), "?queue=%s", queue);
    return target_connected(with(url, sizeof(url), query), prefetch);
}

static int send_to(struct once__broker *b, const char *route, const char *id,
                   uint64_t tag)
{
    once_message m = target_message(route, id, "body", 4);
    once_error err = {0};

    return b->ops->send(b, &m, tag, &err);
}

/* ---- Sending --------------------------------------------------------------- */

static void what_is_sent_comes_in_as_it_was(void)
{
    struct once__broker *b = sender(), *c;
    struct once__delivery *d;
    struct ends e;
    size_t size = 300000;
    char *body = malloc(size);
    once_message m = target_message("t.whole", "id-1", body, size);
    once_error err = {0};

    memset(body, 'x', size);
    body[size - 1] = 'y';
    ends_begin(&e);
    queue_make("t.whole", 0);
    m.key = "order-42";
    m.type = "application/json";
    m.headers = "A: 1\nB: zw\xc3\xb6lf\nEmpty: \nOnce-Key: forged\n";
    T_EQ(b->ops->send(b, &m, 0, &err), ONCE_OK);
    m = target_message("t.whole", "id-2", NULL, 0);
    T_EQ(b->ops->send(b, &m, 1, &err), ONCE_OK);
    ends_collect(&e, b, 2);
    T_EQ(e.end[0], ONCE__END_TAKEN);
    T_EQ(e.end[1], ONCE__END_TAKEN);
    b->ops->close(b);

    c = consumer("t.whole", 2);
    d = target_receive(c, WAIT_MS);
    if (T_OK(d != NULL)) {
        T_STR(d->m.id, "id-1");
        T_STR(d->m.key, "order-42");
        T_STR(d->m.type, "application/json");
        T_STR(d->m.headers, "A: 1\nB: zw\xc3\xb6lf\nEmpty: \n");
        T_EQ(d->m.body.size, size);
        T_MEM(d->m.body.data, body, size);
        T_OK(d->flaw == NULL);
        T_EQ(d->redelivered, 0);
        T_EQ(c->ops->ack(c, d, ONCE__ACK_TAKEN, &err), ONCE_OK);
    }
    d = target_receive(c, WAIT_MS);
    if (T_OK(d != NULL)) {
        T_STR(d->m.id, "id-2");
        T_OK(d->m.key == NULL);
        T_STR(d->m.type, "");
        T_STR(d->m.headers, "");
        T_EQ(d->m.body.size, 0);
        T_EQ(c->ops->ack(c, d, ONCE__ACK_TAKEN, &err), ONCE_OK);
    }
    T_OK(target_receive(c, 200) == NULL);
    c->ops->close(c);
    queue_drop("t.whole");
    free(body);
}

static void what_no_queue_takes_is_refused_and_its_neighbours_are_taken(void)
{
    struct once__broker *b = sender();
    struct ends e;
    char seen[MANY];
    size_t i;

    ends_begin(&e);
    queue_make("t.here", 0);
    /* Two of one id are on their way: the return must meet the right one. */
    for (i = 0; i < 300; i++)
        T_EQ(send_to(b, i % 3 == 1 ? "t.nowhere" : "t.here", "same-1", i),
             ONCE_OK);
    ends_collect(&e, b, 300);
    for (i = 0; i < 300; i++) {
        T_EQ(e.end[i], i % 3 == 1 ? ONCE__END_REFUSED : ONCE__END_TAKEN);
        T_EQ(e.status[i], i % 3 == 1 ? 312 : 0);
    }
    T_EQ(queue_take("t.here", seen), 200);
    b->ops->close(b);
    queue_drop("t.here");
}

static void what_a_full_queue_rejects_is_nacked(void)
{
    struct once__broker *b = sender();
    struct ends e;
    char seen[MANY], id[32];
    size_t i;

    ends_begin(&e);
    queue_make("t.full", 3);
    for (i = 0; i < 10; i++) {
        (void)snprintf(id, sizeof(id), "id-%zu", i);
        T_EQ(send_to(b, "t.full", id, i), ONCE_OK);
        /* One by one: a classic queue is full a little later. */
        ends_collect(&e, b, i + 1);
    }
    T_OK(ends_of(&e, ONCE__END_TAKEN, 10) >= 3);
    T_OK(ends_of(&e, ONCE__END_NACKED, 10) > 0);
    T_EQ(queue_take("t.full", seen), ends_of(&e, ONCE__END_TAKEN, 10));
    for (i = 0; i < 10; i++)
        T_EQ(seen[i], e.end[i] == ONCE__END_TAKEN);
    b->ops->close(b);
    queue_drop("t.full");
}

static void thousands_in_flight_end_once_each(void)
{
    struct once__broker *b = sender();
    struct ends e;
    char seen[MANY], id[32];
    size_t i;

    ends_begin(&e);
    queue_make("t.many", 0);
    for (i = 0; i < MANY; i++) {
        (void)snprintf(id, sizeof(id), "id-%zu", i);
        T_EQ(send_to(b, "t.many", id, i), ONCE_OK);
    }
    ends_collect(&e, b, MANY);
    T_EQ(ends_of(&e, ONCE__END_TAKEN, MANY), MANY);
    T_EQ(queue_take("t.many", seen), MANY);
    b->ops->close(b);
    queue_drop("t.many");
}

/* A header CC that is no list makes RabbitMQ close the channel. Which message it
 * was is known when they are sent again, also if many others go first. */
static void one_that_closes_the_channel_is_found_among_many(void)
{
    struct once__broker *b = sender();
    struct ends e;
    char seen[MANY], id[32];
    int done[20] = {0}, round;
    size_t i, sent = 0;
    once_error err = {0};

    queue_make("t.poison", 0);
    for (round = 0; round < 5; round++) {
        T_EQ(b->ops->connect(b, &err), ONCE_OK);
        ends_begin(&e);
        sent = 0;
        for (i = 100; round > 0 && i < 150; i++, sent++) {
            (void)snprintf(id, sizeof(id), "other-%zu", i);
            T_EQ(send_to(b, "t.poison", id, i), ONCE_OK);
        }
        for (i = 0; i < 20; i++) {
            once_message m = target_message("t.poison", id, "body", 4);

            if (done[i])
                continue;
            (void)snprintf(id, sizeof(id), "id-%zu", i);
            m.headers = i == 7 ? "CC: nobody\n" : NULL;
            sent++;
            if (b->ops->send(b, &m, i, &err) != ONCE_OK)
                break;
        }
        ends_collect(&e, b, sent);
        for (i = 0; i < 20; i++)
            done[i] |= e.end[i] == ONCE__END_TAKEN;
        T_OK(e.end[7] != ONCE__END_TAKEN);
        if (e.end[7] == ONCE__END_REFUSED)
            break;
    }
    T_EQ(e.end[7], ONCE__END_REFUSED);
    T_EQ(e.status[7], 406);
    T_EQ(round, 1);
    T_EQ(e.status[149], 0);
    T_EQ(e.end[149], ONCE__END_TAKEN);
    done[7] = 1;
    T_EQ(b->ops->connect(b, &err), ONCE_OK);
    ends_begin(&e);
    for (i = 0, sent = 0; i < 20; i++)
        if (!done[i]) {
            (void)snprintf(id, sizeof(id), "id-%zu", i);
            T_EQ(send_to(b, "t.poison", id, i), ONCE_OK);
            sent++;
        }
    ends_collect(&e, b, sent);
    T_EQ(ends_of(&e, ONCE__END_TAKEN, 20), sent);
    (void)queue_take("t.poison", seen);
    for (i = 0; i < 20; i++)
        T_EQ(seen[i], i != 7);
    b->ops->close(b);
    queue_drop("t.poison");
}

static void the_most_headers_fit_into_one_frame(void)
{
    struct once__broker *b = sender();
    struct ends e;
    once_message m = target_message("t.nowhere", "id-1", "body", 4);
    once_error err = {0};
    char *headers = malloc(ONCE_HEADERS_MAX + 1);
    size_t i;

    for (i = 0; i + 4 <= ONCE_HEADERS_MAX; i += 4)
        memcpy(headers + i, "a: \n", 4);
    headers[i] = '\0';
    m.headers = headers;
    ends_begin(&e);
    T_EQ(b->ops->send(b, &m, 0, &err), ONCE_OK);
    T_EQ(send_to(b, "t.nowhere", "id-2", 1), ONCE_OK);
    ends_collect(&e, b, 2);
    T_EQ(e.end[0], ONCE__END_REFUSED);
    T_EQ(e.end[1], ONCE__END_REFUSED);
    b->ops->close(b);
    free(headers);
}

/* ---- Connections that end -------------------------------------------------- */

/* Cut after so many bytes, in one direction: each message ends once, and what
 * is said to be taken is there. */
static void cut_after(const char *direction, unsigned bytes)
{
    struct proxy p = {0};
    struct once__broker *b;
    struct ends e;
    char server[200], rule[64], url[200], id[32], seen[MANY];
    size_t i, sent = 0;
    once_error err = {0};

    (void)snprintf(server, sizeof(server), "%s:%d", host, port);
    (void)snprintf(rule, sizeof(rule), "new %s cut %u rst", direction, bytes);
    proxy_start(&p, proxy_program, server, rule);
    (void)snprintf(url, sizeof(url), "amqp://guest:guest@127.0.0.1:%d", p.port);
    queue_make("t.cut", 0);
    b = target_open(url, 3000, 0, 0);
    ends_begin(&e);
    if (b->ops->connect(b, &err) == ONCE_OK)
        for (i = 0; i < 500; i++) {
            (void)snprintf(id, sizeof(id), "id-%zu", i);
            sent++;
            if (send_to(b, "t.cut", id, i) != ONCE_OK)
                break;
        }
    ends_collect(&e, b, sent);
    (void)queue_take("t.cut", seen);
    for (i = 0; i < sent; i++) {
        T_OK(e.end[i] == ONCE__END_TAKEN || e.end[i] == ONCE__END_SILENT ||
             e.end[i] == ONCE__END_UNSENT);
        T_OK(e.end[i] != ONCE__END_TAKEN || seen[i]);
        T_OK(e.end[i] != ONCE__END_UNSENT || !seen[i]);
    }
    b->ops->close(b);
    proxy_stop(&p);
    queue_drop("t.cut");
}

static void a_connection_that_is_cut_leaves_each_message_one_end(void)
{
    unsigned bytes;

    for (bytes = 400; bytes < 60000; bytes = bytes * 3 / 2)
        cut_after("up", bytes);
    for (bytes = 200; bytes < 1500; bytes += 150)
        cut_after("down", bytes);
}

static void what_nobody_confirms_is_silent_when_it_is_given_up(void)
{
    struct proxy p = {0};
    struct once__broker *b;
    struct once__proof proof;
    struct ends e;
    char server[200], url[200];
    once_error err = {0};

    (void)snprintf(server, sizeof(server), "%s:%d", host, port);
    proxy_start(&p, proxy_program, server, NULL);
    (void)snprintf(url, sizeof(url), "amqp://guest:guest@127.0.0.1:%d", p.port);
    b = target_open(url, 3000, 0, 0);
    T_EQ(b->ops->connect(b, &err), ONCE_OK);
    (void)fputs("open down swallow 0\n", p.in);
    (void)fflush(p.in);
    (void)usleep(100000);
    ends_begin(&e);
    T_EQ(send_to(b, "t.nowhere", "id-1", 0), ONCE_OK);
    T_EQ(b->ops->proofs(b, 200, &proof, 1), 0);
    b->ops->abandon(b);
    ends_collect(&e, b, 1);
    T_EQ(e.end[0], ONCE__END_SILENT);
    T_EQ(send_to(b, "t.nowhere", "id-1", 1), ONCE_EAWAY);
    ends_collect(&e, b, 2);
    T_EQ(e.end[1], ONCE__END_UNSENT);
    b->ops->close(b);
    proxy_stop(&p);
}

static void an_exchange_that_is_deleted_leaves_nothing_said_wrongly(void)
{
    struct once__broker *b;
    struct ends e;
    char url[256];
    once_error err = {0};
    size_t i, sent = 0;

    (void)amqp_exchange_declare(admin, 1, amqp_cstring_bytes("t.exchange"),
                                amqp_cstring_bytes("fanout"), 0, 0, 0, 0,
                                amqp_empty_table);
    (void)admin_good("exchange.declare");
    b = target_connected(
        with(url, sizeof(url), "?exchange=t.exchange&routing_key=k"), 0);
    (void)amqp_exchange_delete(admin, 1, amqp_cstring_bytes("t.exchange"), 0);
    (void)admin_good("exchange.delete");
    ends_begin(&e);
    for (i = 0; i < 10; i++, sent++)
        if (send_to(b, "r", "id-1", i) != ONCE_OK) {
            sent++;
            break;
        }
    ends_collect(&e, b, sent);
    T_EQ(ends_of(&e, ONCE__END_TAKEN, sent), 0);
    T_EQ(b->ops->connect(b, &err), ONCE_EOPEN);
    T_OK(strstr(err.text, "exchange") != NULL);
    b->ops->close(b);
}

/* ---- What will not do ------------------------------------------------------- */

static void refused(const char *url, int code, const char *text)
{
    struct once__broker *b =
        target_open(url, 5000, strstr(url, "queue=") != NULL, 0);
    once_error err = {0};

    T_EQ(b->ops->connect(b, &err), code);
    if (!T_OK(strstr(err.text, text) != NULL))
        printf("#   %s\n", err.text);
    T_OK(strstr(err.text, "s3cret") == NULL);
    b->ops->close(b);
}

static void what_is_missing_is_said_clearly(void)
{
    char url[256];

    refused(with(url, sizeof(url), "?queue=t.missing"), ONCE_EOPEN, "queue");
    refused(with(url, sizeof(url), "?exchange=t.missing"), ONCE_EOPEN,
            "exchange");
    (void)snprintf(url, sizeof(url), "amqp://guest:s3cret@%s:%d", host, port);
    refused(url, ONCE_EOPEN, "user and password");
    (void)snprintf(url, sizeof(url), "amqp://guest:guest@%s:%d/none", host,
                   port);
    refused(url, ONCE_EOPEN, "virtual host");
    refused("amqp://guest:s3cret@127.0.0.1:1", ONCE_EAWAY, "reached");
}

static void a_bad_url_is_refused_without_its_password(void)
{
    static const char *const urls[] = {
        "amqp://u:s3cret@h:0/",
        "amqp://u:s3cret@h:99999/",
        "amqp://u:s3cret%@h/",
        "amqp://u:s3cret@/",
        "amqp://u:s3cret@h/?nonsense=1",
        "amqp://u:s3cret?x@h/",
        "amqp://u:s3cret@h/?queue=q&exchange=e",
        "amqp:u:s3cret",
    };
    struct once__broker_options o = {0};
    size_t i;

    for (i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        struct once__broker *b = NULL;
        once_error err = {0};
        const struct once__broker_ops *ops = once__broker_find(urls[i], &err);

        if (!T_OK(ops != NULL))
            continue;
        if (!T_OK(ops->open(urls[i], &o, &b, &err) == ONCE_EURL))
            printf("#   %s\n", urls[i]);
        T_OK(strstr(err.text, "s3cret") == NULL);
    }
}

/* ---- Receiving --------------------------------------------------------------- */

static void no_more_than_the_prefetch_come(void)
{
    struct once__broker *c;
    struct once__delivery *d[4];
    once_error err = {0};
    size_t i;

    queue_make("t.prefetch", 0);
    for (i = 0; i < 6; i++)
        put("t.prefetch", "id-1", 4, NULL, NULL, 0);
    c = consumer("t.prefetch", 3);
    for (i = 0; i < 3; i++)
        d[i] = target_receive(c, WAIT_MS);
    T_OK(d[0] != NULL && d[1] != NULL && d[2] != NULL);
    T_OK(target_receive(c, 300) == NULL);
    T_EQ(c->ops->ack(c, d[1], ONCE__ACK_STILL_AT, &err), ONCE_OK);
    T_EQ(c->ops->ack(c, d[1], ONCE__ACK_TAKEN, &err), ONCE_OK);
    d[3] = target_receive(c, WAIT_MS);
    T_OK(d[3] != NULL);
    T_OK(target_receive(c, 300) == NULL);
    c->ops->close(c);
    queue_drop("t.prefetch");
}

static void what_is_given_back_comes_again(void)
{
    struct once__broker *c;
    struct once__delivery *d;
    once_error err = {0};

    queue_make("t.back", 0);
    put("t.back", "id-1", 4, NULL, NULL, 0);
    c = consumer("t.back", 1);
    d = target_receive(c, WAIT_MS);
    T_OK(d != NULL && !d->redelivered);
    T_EQ(c->ops->ack(c, d, ONCE__ACK_BACK, &err), ONCE_OK);
    d = target_receive(c, WAIT_MS);
    T_OK(d != NULL && d->redelivered);

    /* The connection is lost before the acknowledgement. */
    c->ops->abandon(c);
    T_STR(d->m.id, "id-1");
    T_EQ(c->ops->ack(c, d, ONCE__ACK_TAKEN, &err), ONCE_EAWAY);
    T_EQ(c->ops->connect(c, &err), ONCE_OK);
    d = target_receive(c, WAIT_MS);
    T_OK(d != NULL && d->redelivered);
    T_EQ(c->ops->ack(c, d, ONCE__ACK_TAKEN, &err), ONCE_OK);
    T_OK(target_receive(c, 200) == NULL);
    c->ops->close(c);
    queue_drop("t.back");
}

static void acknowledgements_are_not_lost_in_an_orderly_end(void)
{
    struct once__broker *c;
    struct once__delivery *d[50];
    char seen[MANY];
    once_error err = {0};
    size_t i;

    queue_make("t.end", 0);
    for (i = 0; i < 300; i++)
        put("t.end", "id-1", 4, NULL, NULL, 0);
    c = consumer("t.end", 100);
    for (i = 0; i < 50; i++)
        d[i] = target_receive(c, WAIT_MS);
    for (i = 0; i < 50; i++)
        T_EQ(c->ops->ack(c, d[i], ONCE__ACK_TAKEN, &err), ONCE_OK);
    c->ops->close(c);
    T_EQ(queue_take("t.end", seen), 250);
    queue_drop("t.end");
}

static void flawed(const char *id, size_t n_id, const char *header,
                   const char *value, size_t n_value, int has_id)
{
    struct once__broker *c;
    struct once__delivery *d;
    once_error err = {0};

    queue_make("t.flaw", 0);
    put("t.flaw", id, n_id, header, value, n_value);
    c = consumer("t.flaw", 1);
    d = target_receive(c, WAIT_MS);
    if (T_OK(d != NULL)) {
        T_OK(d->flaw != NULL);
        T_EQ(d->m.id != NULL, has_id);
        T_EQ(d->m.body.size, 4);
        T_EQ(c->ops->ack(c, d, ONCE__ACK_TAKEN, &err), ONCE_OK);
    }
    c->ops->close(c);
    queue_drop("t.flaw");
}

static void what_cannot_be_understood_has_a_flaw(void)
{
    flawed(NULL, 0, NULL, NULL, 0, 0);
    flawed("", 0, NULL, NULL, 0, 0);
    flawed("a b", 3, NULL, NULL, 0, 0);
    flawed("a\0b", 3, NULL, NULL, 0, 0);
    flawed("\xc3\xb6", 2, NULL, NULL, 0, 0);
    flawed("id", 2, "A", "1\nB: 2", 6, 1);
    flawed("id", 2, "A", "1\r2", 3, 1);
    flawed("id", 2, "A", "1\0", 2, 1);
    flawed("id", 2, "A", "\xff", 1, 1);
    flawed("id", 2, "A b", "1", 1, 1);
    flawed("id", 2, "A:", "1", 1, 1);
    flawed("id", 2, "", "1", 1, 1);
    flawed("id", 2, "Once-Key", "a b", 3, 1);
    flawed("id", 2, "Once-Key", "", 0, 1);
}

static void a_body_over_the_limit_is_left_out(void)
{
    struct once__broker *b = sender(), *c;
    struct once__delivery *d;
    struct ends e;
    char url[256], *body = calloc(1, 400000);
    once_message m = target_message("t.limit", "id-1", body, 400000);
    once_error err = {0};

    queue_make("t.limit", 0);
    ends_begin(&e);
    T_EQ(b->ops->send(b, &m, 0, &err), ONCE_OK);
    m = target_message("t.limit", "id-2", body, 200000);
    T_EQ(b->ops->send(b, &m, 1, &err), ONCE_OK);
    ends_collect(&e, b, 2);
    b->ops->close(b);
    c = target_open(with(url, sizeof(url), "?queue=t.limit"), 5000, 5, 200000);
    T_EQ(c->ops->connect(c, &err), ONCE_OK);
    d = target_receive(c, WAIT_MS);
    if (T_OK(d != NULL)) {
        T_OK(d->flaw != NULL);
        T_STR(d->m.id, "id-1");
        T_EQ(d->m.body.size, 0);
    }
    d = target_receive(c, WAIT_MS);
    T_OK(d != NULL && d->flaw == NULL && d->m.body.size == 200000);
    c->ops->close(c);
    queue_drop("t.limit");
    free(body);
}

static void a_queue_that_is_deleted_ends_the_connection(void)
{
    struct once__broker *c;
    struct once__delivery *d = NULL;
    once_error err = {0};

    queue_make("t.gone", 0);
    c = consumer("t.gone", 1);
    queue_drop("t.gone");
    T_EQ(c->ops->receive(c, WAIT_MS, &d, &err), ONCE_EAWAY);
    T_OK(d == NULL);
    T_EQ(c->ops->connect(c, &err), ONCE_EOPEN);
    c->ops->close(c);
}

/* ---- Flights ------------------------------------------------------------------ */

static void flights_end_once_in_any_order(void)
{
    struct once__flights f = {0};
    struct once__proof p[64];
    size_t n = 0, got, i;
    uint64_t k;
    int seen[1001] = {0};

    for (k = 1; k <= 1000; k++) {
        T_EQ(once__flights_add(&f, k - 1), k);
        if (k % 7 == 0)
            once__flights_end(&f, k, ONCE__END_TAKEN, 0, NULL);
        if (k % 100 == 50)
            once__flights_end_to(&f, k - 20, ONCE__END_NACKED, NULL);
        if (k == 500) {
            n += got = once__ended_take(&f.ended, p, 64);
            for (i = 0; i < got; i++)
                seen[p[i].tag]++;
        }
    }
    once__flights_mark(&f, 999, ONCE__END_REFUSED, 312, "why");
    once__flights_end(&f, 7, ONCE__END_TAKEN, 0, NULL);
    once__flights_end(&f, 2000, ONCE__END_TAKEN, 0, NULL);
    once__flights_lose(&f, "gone");
    T_EQ(f.open, 0);
    T_EQ(f.next, 1);
    T_EQ(once__flights_unsent(&f, 1000, ONCE__END_UNSENT, NULL), ONCE_OK);
    T_EQ(f.next, 1);
    while ((got = once__ended_take(&f.ended, p, 64)) > 0)
        for (n += got, i = 0; i < got; i++) {
            seen[p[i].tag]++;
            if (p[i].tag == 998)
                T_EQ(p[i].end, ONCE__END_REFUSED);
            if (p[i].tag == 999)
                T_EQ(p[i].end, ONCE__END_SILENT);
        }
    T_EQ(n, 1001);
    for (i = 0; i < 1001; i++)
        T_EQ(seen[i], 1);
    T_EQ(once__flights_add(&f, 5), 1);
    once__flights_cancel(&f);
    T_EQ(f.open, 0);
    T_EQ(once__flights_add(&f, 6), 1);
    once__flights_clear(&f);
}

int main(int argc, char **argv)
{
    const char *url = getenv("ONCE_TEST_URL");

    if (url == NULL ||
        sscanf(url, "amqp://guest:guest@%127[^:]:%d", host, &port) != 2)
        t_skip_all("ONCE_TEST_URL names no RabbitMQ");
    (void)signal(SIGPIPE, SIG_IGN);
    proxy_program = argc > 1 ? argv[1] : NULL;
    admin_open();
    T_RUN(flights_end_once_in_any_order);
    T_RUN(a_bad_url_is_refused_without_its_password);
    T_RUN(what_is_missing_is_said_clearly);
    T_RUN(what_is_sent_comes_in_as_it_was);
    T_RUN(what_no_queue_takes_is_refused_and_its_neighbours_are_taken);
    T_RUN(what_a_full_queue_rejects_is_nacked);
    T_RUN(thousands_in_flight_end_once_each);
    T_RUN(one_that_closes_the_channel_is_found_among_many);
    T_RUN(the_most_headers_fit_into_one_frame);
    T_RUN(an_exchange_that_is_deleted_leaves_nothing_said_wrongly);
    if (proxy_program != NULL) {
        T_RUN(a_connection_that_is_cut_leaves_each_message_one_end);
        T_RUN(what_nobody_confirms_is_silent_when_it_is_given_up);
    }
    T_RUN(no_more_than_the_prefetch_come);
    T_RUN(what_is_given_back_comes_again);
    T_RUN(acknowledgements_are_not_lost_in_an_orderly_end);
    T_RUN(what_cannot_be_understood_has_a_flaw);
    T_RUN(a_body_over_the_limit_is_left_out);
    T_RUN(a_queue_that_is_deleted_ends_the_connection);
    admin_close();
    return t_done();
}
