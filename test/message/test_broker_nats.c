/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_broker_nats.c - the driver of NATS JetStream, where it is not like the
 * others.
 *
 *    with-server nats -- test_broker_nats FAULTPROXY
 *
 * Each test has a stream of its own. What the server has is asked of it over a
 * plain connection, with no code of the driver.
 */
#include "target.h"

#include <nats/nats.h>

static const char *proxy_program, *server_url;
static char host[128];
static int port;
static natsConnection *admin;
static jsCtx *js;

/* ---- The server, without the driver --------------------------------------- */

/* A stream of subject `name` for at most so many messages, 0: no limit. */
static void stream_make(const char *name, int most)
{
    jsStreamConfig c;
    const char *subjects[1] = {name};

    (void)js_DeleteStream(js, name, NULL, NULL);
    (void)jsStreamConfig_Init(&c);
    c.Name = name;
    c.Subjects = subjects;
    c.SubjectsLen = 1;
    c.Storage = js_FileStorage;
    c.MaxMsgs = most > 0 ? most : -1;
    c.Discard = js_DiscardNew;
    T_EQ(js_AddStream(NULL, js, &c, NULL, NULL), NATS_OK);
}

static void stream_drop(const char *name)
{
    T_EQ(js_DeleteStream(js, name, NULL, NULL), NATS_OK);
}

static uint64_t stream_size(const char *name)
{
    jsStreamInfo *info = NULL;
    uint64_t n;

    if (!T_OK(js_GetStreamInfo(&info, js, name, NULL, NULL) == NATS_OK))
        return 0;
    n = info->State.Msgs;
    jsStreamInfo_Destroy(info);
    return n;
}

/* Which messages 0..n-1 are there, by the number at the end of their ids. */
static void stream_look(const char *name, char seen[MANY])
{
    uint64_t n = stream_size(name), seq;

    memset(seen, 0, MANY);
    for (seq = 1; seq <= n; seq++) {
        natsMsg *m = NULL;
        const char *id = NULL, *dash;

        if (!T_OK(js_GetMsg(&m, js, name, seq, NULL, NULL) == NATS_OK))
            break;
        if (natsMsgHeader_Get(m, "Once-Id", &id) == NATS_OK) {
            dash = strrchr(id, '-');
            if (T_OK(dash != NULL && strtoul(dash + 1, NULL, 10) < MANY))
                seen[strtoul(dash + 1, NULL, 10)] = 1;
        }
        natsMsg_Destroy(m);
    }
}

static void consumer_make(const char *stream, int64_t wait_ms,
                          int64_t max_deliver)
{
    jsConsumerConfig c;

    (void)jsConsumerConfig_Init(&c);
    c.Durable = "d";
    c.AckPolicy = js_AckExplicit;
    c.AckWait = wait_ms * 1000000;
    c.MaxDeliver = max_deliver;
    T_EQ(js_AddConsumer(NULL, js, stream, &c, NULL, NULL), NATS_OK);
}

static struct once__broker *open_with(const char *query, uint32_t prefetch)
{
    char url[256];

    (void)snprintf(url, sizeof(url), "nats://%s:%d%s", host, port, query);
    return target_open(url, 5000, prefetch, 0);
}

static struct once__broker *sender(const char *subject)
{
    struct once__broker *b;
    char query[64];

    (void)snprintf(query, sizeof(query), "?subject=%s", subject);
    b = open_with(query, 0);
    T_EQ(b->ops->connect(b, NULL), ONCE_OK);
    return b;
}

static struct once__broker *consumer(const char *stream, uint32_t prefetch)
{
    struct once__broker *b;
    char query[64];

    (void)snprintf(query, sizeof(query), "?stream=%s&durable=d", stream);
    b = open_with(query, prefetch);
    T_EQ(b->ops->connect(b, NULL), ONCE_OK);
    return b;
}

static int send_id(struct once__broker *b, const char *id, uint64_t tag)
{
    once_message m = target_message("route", id, "body", 4);

    return b->ops->send(b, &m, tag, NULL);
}

/* ---- Sending ---------------------------------------------------------------- */

static void without_a_stream_it_is_refused(void)
{
    struct once__broker *b = sender("t.nobody");
    struct ends e;

    ends_begin(&e);
    T_EQ(send_id(b, "id-0", 0), ONCE_OK);
    T_EQ(send_id(b, "id-1", 1), ONCE_OK);
    ends_collect(&e, b, 2);
    T_EQ(ends_of(&e, ONCE__END_REFUSED, 2), 2);
    T_EQ(e.status[0], 503);
    b->ops->close(b);
}

static void a_full_stream_refuses(void)
{
    struct once__broker *b = sender("full");
    struct ends e;
    char seen[MANY], id[32];
    size_t i;

    stream_make("full", 3);
    ends_begin(&e);
    for (i = 0; i < 10; i++) {
        (void)snprintf(id, sizeof(id), "id-%zu", i);
        T_EQ(send_id(b, id, i), ONCE_OK);
    }
    ends_collect(&e, b, 10);
    T_EQ(ends_of(&e, ONCE__END_TAKEN, 10), 3);
    T_EQ(ends_of(&e, ONCE__END_REFUSED, 10), 7);
    stream_look("full", seen);
    for (i = 0; i < 10; i++) {
        T_EQ(seen[i], e.end[i] == ONCE__END_TAKEN);
        T_OK(seen[i] || e.status[i] > 10000);
    }
    b->ops->close(b);
    stream_drop("full");
}

static void a_duplicate_is_taken_and_there_once(void)
{
    struct once__broker *b = sender("twice");
    once_message other = target_message("other", "id-1", "body", 4);
    struct ends e;

    stream_make("twice", 0);
    ends_begin(&e);
    T_EQ(send_id(b, "id-1", 0), ONCE_OK);
    T_EQ(send_id(b, "id-1", 1), ONCE_OK);
    /* Ids are per route, and two routes may lead to one stream. */
    T_EQ(b->ops->send(b, &other, 2, NULL), ONCE_OK);
    ends_collect(&e, b, 3);
    T_EQ(ends_of(&e, ONCE__END_TAKEN, 3), 3);
    T_EQ(stream_size("twice"), 2);
    b->ops->close(b);
    stream_drop("twice");
}

/* Whoever answers without being a stream proves nothing. */
static void answer_ok(natsConnection *c, natsSubscription *sub, natsMsg *m,
                      void *user)
{
    static const char *const answers[] = {"+OK", "", "{}", "[]",
                                          "{\"stream\":\"x\"}"};
    size_t i = (size_t)(*(int *)user)++;

    (void)sub;
    (void)natsConnection_PublishString(c, natsMsg_GetReply(m), answers[i % 5]);
    natsMsg_Destroy(m);
}

static void only_a_stream_proves_anything(void)
{
    struct once__broker *b = sender("t.echo");
    natsSubscription *sub = NULL;
    struct once__proof p;
    struct ends e;
    int number = 0;
    size_t i;

    T_EQ(natsConnection_Subscribe(&sub, admin, "t.echo", answer_ok, &number),
         NATS_OK);
    T_EQ(natsConnection_Flush(admin), NATS_OK);
    ends_begin(&e);
    for (i = 0; i < 5; i++)
        T_EQ(send_id(b, "id-1", i), ONCE_OK);
    T_EQ(b->ops->proofs(b, 500, &p, 1), 0);
    b->ops->abandon(b);
    ends_collect(&e, b, 5);
    T_EQ(ends_of(&e, ONCE__END_SILENT, 5), 5);
    b->ops->close(b);
    natsSubscription_Destroy(sub);
}

static void what_is_over_the_limit_is_rejected(void)
{
    struct once__broker *b = sender("large");
    struct ends e;
    size_t size = 2000000;
    once_message m = target_message("r", "id-1", calloc(1, size), size);

    stream_make("large", 0);
    ends_begin(&e);
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    T_EQ(send_id(b, "id-2", 1), ONCE_OK);
    ends_collect(&e, b, 2);
    T_EQ(e.end[0], ONCE__END_REJECTED);
    T_EQ(e.end[1], ONCE__END_TAKEN);
    b->ops->close(b);
    stream_drop("large");
    free((void *)(uintptr_t)m.body.data);
}

static void a_route_that_is_no_subject_is_refused(void)
{
    struct once__broker *b = open_with("", 0);
    once_message m = target_message("a.*", "id-1", "body", 4);
    struct ends e;

    T_EQ(b->ops->connect(b, NULL), ONCE_OK);
    ends_begin(&e);
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    ends_collect(&e, b, 1);
    T_EQ(e.end[0], ONCE__END_REFUSED);
    b->ops->close(b);
}

/* ---- Connections that end ----------------------------------------------------- */

static void cut_after(const char *direction, unsigned bytes)
{
    struct proxy p = {0};
    struct once__broker *b;
    struct ends e;
    char server[200], rule[64], url[200], id[32], seen[MANY];
    size_t i, sent = 0;

    (void)snprintf(server, sizeof(server), "%s:%d", host, port);
    (void)snprintf(rule, sizeof(rule), "new %s cut %u rst", direction, bytes);
    proxy_start(&p, proxy_program, server, rule);
    (void)snprintf(url, sizeof(url), "nats://127.0.0.1:%d/?subject=cut",
                   p.port);
    stream_make("cut", 0);
    b = target_open(url, 3000, 0, 0);
    ends_begin(&e);
    if (b->ops->connect(b, NULL) == ONCE_OK)
        for (i = 0; i < 300; i++) {
            (void)snprintf(id, sizeof(id), "id-%zu", i);
            sent++;
            if (send_id(b, id, i) != ONCE_OK)
                break;
        }
    ends_collect(&e, b, sent);
    stream_look("cut", seen);
    for (i = 0; i < sent; i++) {
        T_OK(e.end[i] == ONCE__END_TAKEN || e.end[i] == ONCE__END_SILENT ||
             e.end[i] == ONCE__END_UNSENT);
        T_OK(e.end[i] != ONCE__END_TAKEN || seen[i]);
        T_OK(e.end[i] != ONCE__END_UNSENT || !seen[i]);
    }
    b->ops->close(b);
    proxy_stop(&p);
    stream_drop("cut");
}

static void a_connection_that_is_cut_leaves_each_message_one_end(void)
{
    unsigned bytes;

    for (bytes = 150; bytes < 60000; bytes = bytes * 2)
        cut_after("up", bytes);
    for (bytes = 300; bytes < 20000; bytes = bytes * 2)
        cut_after("down", bytes);
}

/* ---- What will not do ----------------------------------------------------------- */

static void what_is_missing_or_unfit_is_said_clearly(void)
{
    struct once__broker *b = open_with("?stream=none&durable=d", 1);
    once_error err = {0};

    T_EQ(b->ops->connect(b, &err), ONCE_EOPEN);
    T_OK(strstr(err.text, "stream") != NULL);
    b->ops->close(b);

    stream_make("unfit", 0);
    consumer_make("unfit", 30000, 5); /* the sixth copy would be dropped */
    b = open_with("?stream=unfit&durable=d", 1);
    T_EQ(b->ops->connect(b, &err), ONCE_EOPEN);
    T_OK(strstr(err.text, "max_deliver") != NULL);
    b->ops->close(b);
    stream_drop("unfit");
}

/* ---- Receiving ------------------------------------------------------------------- */

static void put(const char *subject, const char *header, const char *value)
{
    natsMsg *m = NULL;

    T_EQ(natsMsg_Create(&m, subject, NULL, "body", 4), NATS_OK);
    if (header != NULL)
        T_EQ(natsMsgHeader_Add(m, header, value), NATS_OK);
    T_EQ(js_PublishMsg(NULL, js, m, NULL, NULL), NATS_OK);
    natsMsg_Destroy(m);
}

static void a_slow_handler_gets_no_second_copy(void)
{
    struct once__broker *c, *other;
    struct once__delivery *d;

    stream_make("slow", 0);
    consumer_make("slow", 1500, -1);
    put("slow", "Once-Id", "id-1");
    c = consumer("slow", 1);
    other = consumer("slow", 1);
    d = target_receive(c, WAIT_MS);
    T_OK(d != NULL && !d->redelivered);
    T_OK(target_receive(other, 4000) == NULL);
    T_EQ(c->ops->ack(c, d, ONCE__ACK_TAKEN, NULL), ONCE_OK);
    T_OK(target_receive(other, 2000) == NULL);
    other->ops->close(other);
    c->ops->close(c);
    stream_drop("slow");
}

static void what_is_held_at_the_end_comes_at_once(void)
{
    struct once__broker *c;
    struct once__delivery *d;

    stream_make("held", 0);
    put("held", "Once-Id", "id-1");
    put("held", "Once-Id", "id-2");
    c = consumer("held", 2);
    T_OK(target_receive(c, WAIT_MS) != NULL);
    T_OK(target_receive(c, WAIT_MS) != NULL);
    c->ops->close(c);
    c = consumer("held", 2);
    d = target_receive(c, 20000); /* ack_wait is 30 s */
    T_OK(d != NULL && d->redelivered);
    d = target_receive(c, 20000);
    T_OK(d != NULL && d->redelivered);
    c->ops->close(c);
    stream_drop("held");
}

/* A consumer that is alone gets what it had before what is new, in order. */
static void who_is_alone_keeps_the_order(void)
{
    struct once__broker_options o = {0};
    struct once__broker *c = NULL;
    struct once__delivery *d;
    char url[256], id[32];
    int i;

    stream_make("order", 0);
    o.consumer = "test";
    o.alone = 1;
    o.prefetch = 3;
    o.timeout_ms = 5000;
    (void)snprintf(url, sizeof(url), "nats://%s:%d/?stream=order&durable=d",
                   host, port);
    for (i = 0; i < 5; i++) {
        (void)snprintf(id, sizeof(id), "id-%d", i);
        put("order", "Once-Id", id);
    }
    T_EQ(once__broker_find(url, NULL)->open(url, &o, &c, NULL), ONCE_OK);
    T_EQ(c->ops->connect(c, NULL), ONCE_OK);
    for (i = 0; i < 3; i++)
        T_OK(target_receive(c, WAIT_MS) != NULL);
    c->ops->abandon(c);
    T_EQ(c->ops->connect(c, NULL), ONCE_OK);
    for (i = 0; i < 5; i++) {
        (void)snprintf(id, sizeof(id), "id-%d", i);
        d = target_receive(c, WAIT_MS);
        if (!T_OK(d != NULL))
            break;
        T_STR(d->m.id, id);
        T_EQ(d->redelivered, i < 3);
        T_EQ(c->ops->ack(c, d, ONCE__ACK_TAKEN, NULL), ONCE_OK);
    }
    c->ops->close(c);
    stream_drop("order");
}

static void the_id_of_another_program_is_taken(void)
{
    struct once__broker *c;
    struct once__delivery *d;

    stream_make("alien", 0);
    put("alien", "Nats-Msg-Id", "theirs");
    put("alien", NULL, NULL);
    c = consumer("alien", 2);
    d = target_receive(c, WAIT_MS);
    T_OK(d != NULL && d->flaw == NULL && strcmp(d->m.id, "theirs") == 0 &&
         strcmp(d->m.headers, "") == 0);
    d = target_receive(c, WAIT_MS);
    T_OK(d != NULL && d->flaw != NULL && d->m.id == NULL);
    c->ops->close(c);
    stream_drop("alien");
}

static void a_stream_that_is_deleted_ends_the_connection(void)
{
    struct once__broker *c;
    struct once__delivery *d = NULL;
    uint64_t end = target_now() + patient_ms(WAIT_MS);
    int rc = ONCE_OK;

    stream_make("gone", 0);
    c = consumer("gone", 1);
    T_OK(target_receive(c, 200) == NULL);
    stream_drop("gone");
    while (rc == ONCE_OK && target_now() < end)
        rc = c->ops->receive(c, 1000, &d, NULL);
    T_EQ(rc, ONCE_EAWAY);
    T_EQ(c->ops->connect(c, NULL), ONCE_EOPEN);
    c->ops->close(c);
}

int main(int argc, char **argv)
{
    server_url = getenv("ONCE_TEST_URL");
    if (server_url == NULL ||
        sscanf(server_url, "nats://%127[^:]:%d", host, &port) != 2)
        t_skip_all("ONCE_TEST_URL names no NATS server");
    (void)signal(SIGPIPE, SIG_IGN);
    proxy_program = argc > 1 ? argv[1] : NULL;
    if (natsConnection_ConnectTo(&admin, server_url) != NATS_OK ||
        natsConnection_JetStream(&js, admin, NULL) != NATS_OK)
        return 1;
    T_RUN(what_is_missing_or_unfit_is_said_clearly);
    T_RUN(without_a_stream_it_is_refused);
    T_RUN(a_full_stream_refuses);
    T_RUN(a_duplicate_is_taken_and_there_once);
    T_RUN(only_a_stream_proves_anything);
    T_RUN(what_is_over_the_limit_is_rejected);
    T_RUN(a_route_that_is_no_subject_is_refused);
    if (proxy_program != NULL)
        T_RUN(a_connection_that_is_cut_leaves_each_message_one_end);
    T_RUN(a_slow_handler_gets_no_second_copy);
    T_RUN(what_is_held_at_the_end_comes_at_once);
    T_RUN(who_is_alone_keeps_the_order);
    T_RUN(the_id_of_another_program_is_taken);
    T_RUN(a_stream_that_is_deleted_ends_the_connection);
    jsCtx_Destroy(js);
    natsConnection_Destroy(admin);
    nats_Close();
    return t_done();
}
