/* SPDX-License-Identifier: Apache-2.0 */
/* test_broker_redis.c - what only the driver of Redis Streams has. */
#include "broker_kit.h"
#include "patience.h"

#include <hiredis/hiredis.h>
#include <signal.h>
#include <unistd.h>

static redisContext *raw;
static char stream[40];

/* One command on a connection of our own; its integer, or -1. */
static long long say(const char *format, ...)
{
    va_list args;
    redisReply *r;
    long long n = -1;

    va_start(args, format);
    r = redisvCommand(raw, format, args);
    va_end(args);
    if (r == NULL) {
        printf("#   %s: %s\n", format, raw->errstr);
        return -1;
    }
    if (r->type == REDIS_REPLY_INTEGER)
        n = r->integer;
    else if (r->type == REDIS_REPLY_ERROR)
        printf("#   %s: %s\n", format, r->str);
    else
        n = (long long)r->elements;
    freeReplyObject(r);
    return n;
}

static void fresh(void)
{
    static int number;

    (void)snprintf(stream, sizeof(stream), "only.%d", ++number);
    (void)kit_logged(NULL);
}

/* The key that remembers a route and an id. */
static const char *marker_of(const char *prefix, const char *rest)
{
    static char key[256];

    (void)snprintf(key, sizeof(key), "%s%zu:{%s}:%s", prefix, strlen(stream),
                   stream, rest);
    return key;
}

static struct once__broker *opened(const char *more, const char *consumer)
{
    struct once__broker_options o = kit_options(consumer, 2);
    char url[512];

    (void)snprintf(url, sizeof(url), "%s/?stream=%s%s", getenv("ONCE_TEST_URL"),
                   stream, more);
    return kit_open(url, &o);
}

static int sent(struct once__broker *b, const char *id)
{
    once_message m = kit_message(id, NULL, "body", 4);
    struct kit_ends ends = {0};

    (void)!b->ops->send(b, &m, 0, NULL);
    T_EQ(kit_collect(b, &ends, 1, 30000), 1);
    if (ends.end[0] == ONCE__END_REFUSED)
        printf("#   %s\n", ends.why[0]);
    return ends.end[0];
}

static struct once__delivery *next(struct once__broker *b)
{
    struct once__delivery *d = NULL;
    int i;

    for (i = 0; i < 60 && d == NULL; i++)
        if (b->ops->receive(b, 500, &d, NULL) != ONCE_OK)
            return NULL;
    return d;
}

static void an_id_is_added_once(void)
{
    struct once__broker *b;

    fresh();
    b = opened("&prefix=seen:", NULL);
    T_EQ(sent(b, "a"), ONCE__END_TAKEN);
    T_EQ(sent(b, "a"), ONCE__END_TAKEN);
    T_EQ(sent(b, "b"), ONCE__END_TAKEN);
    T_EQ(say("XLEN %s", stream), 2);
    T_EQ(say("EXISTS %s", marker_of("seen:", "route a")), 1);
    T_OK(say("PTTL %s", marker_of("seen:", "route a")) > 7000000);
    b->ops->close(b);
}

/* The name of the one stream and its route read as the other's. */
static void streams_do_not_share_ids(void)
{
    struct once__broker *one, *two;
    once_message m = kit_message("m", NULL, "body", 4);
    struct kit_ends ends = {0};
    char base[sizeof(stream)];

    fresh();
    (void)snprintf(base, sizeof(base), "%s", stream);
    (void)snprintf(stream, sizeof(stream), "%.20s{t}", base);
    one = opened("", NULL);
    m.route = "u:v";
    T_EQ(one->ops->send(one, &m, 0, NULL), ONCE_OK);
    (void)snprintf(stream, sizeof(stream), "%.20s{t}:u", base);
    two = opened("", NULL);
    m.route = "v";
    T_EQ(two->ops->send(two, &m, 1, NULL), ONCE_OK);
    T_EQ(kit_collect(one, &ends, 1, 30000) + kit_collect(two, &ends, 1, 30000),
         2);
    T_EQ(say("XLEN %s", stream), 1);
    one->ops->close(one);
    two->ops->close(two);
}

static void a_forgotten_script_is_sent_whole(void)
{
    struct once__broker *b;
    struct kit_many *many = kit_many_new();
    struct kit_ends ends = {0};
    size_t i;

    fresh();
    b = opened("", NULL);
    (void)say("SCRIPT FLUSH");
    for (i = 0; i < 20; i++) {
        (void)snprintf(many->id[i], sizeof(many->id[i]), "id-%zu", i);
        many->m[i] = kit_message(many->id[i], NULL, "body", 4);
        T_EQ(b->ops->send(b, &many->m[i], i, NULL), ONCE_OK);
    }
    T_EQ(kit_collect(b, &ends, 20, 30000), 20);
    for (i = 0; i < 20; i++)
        T_OK(ends.n[i] == 1 && ends.end[i] == ONCE__END_TAKEN);
    T_EQ(say("XLEN %s", stream), 20);
    b->ops->close(b);
    free(many);
}

static void an_error_means_not_taken(void)
{
    struct once__broker *b;

    fresh();
    b = opened("", NULL);
    (void)say("CONFIG SET maxmemory 1");
    T_EQ(sent(b, "full"), ONCE__END_AWAY);
    (void)say("CONFIG SET maxmemory 0");
    T_EQ(say("EXISTS %s", marker_of("once:", "route full")), 0);
    T_EQ(sent(b, "full"), ONCE__END_TAKEN);
    T_EQ(say("EXISTS %s", marker_of("once:", "route full")), 1);
    (void)say("DEL %s", stream);
    (void)say("SET %s x", stream);
    T_EQ(sent(b, "type"), ONCE__END_REFUSED);
    T_EQ(say("EXISTS %s", marker_of("once:", "route type")), 0);
    b->ops->close(b);
}

static void a_replica_is_left(void)
{
    struct once__broker *b;

    fresh();
    b = opened("", NULL);
    (void)say("REPLICAOF 127.0.0.1 1");
    T_EQ(sent(b, "a"), ONCE__END_AWAY);
    T_EQ(b->ops->connect(b, NULL), ONCE_EAWAY);
    (void)say("REPLICAOF NO ONE");
    T_OK(kit_connect(b, 30000));
    T_EQ(sent(b, "a"), ONCE__END_TAKEN);
    T_EQ(say("XLEN %s", stream), 1);
    b->ops->close(b);
}

static void another_kind_of_key_is_refused(void)
{
    struct once__broker_options o = kit_options(NULL, 0);
    struct once__broker *b = NULL;
    once_error err = {0};
    char url[512];

    fresh();
    (void)say("SET %s x", stream);
    (void)snprintf(url, sizeof(url), "%s/?stream=%s", getenv("ONCE_TEST_URL"),
                   stream);
    T_EQ(once__broker_find(url, NULL)->open(url, &o, &b, &err), ONCE_OK);
    T_EQ(b->ops->connect(b, &err), ONCE_EOPEN);
    T_OK(strstr(err.text, "stream") != NULL);
    b->ops->close(b);
}

static void class_b_is_logged_once(void)
{
    struct once__broker *b;

    fresh();
    b = opened("", NULL);
    T_OK(!kit_logged("may lose"));
    b->ops->close(b);
    (void)say("CONFIG SET appendfsync everysec");
    b = opened("", NULL);
    T_OK(kit_logged("may lose"));
    (void)kit_logged(NULL);
    b->ops->abandon(b);
    T_OK(kit_connect(b, 30000));
    T_OK(!kit_logged("may lose"));
    b->ops->close(b);
    (void)say("CONFIG SET appendfsync always");
}

static void a_crashed_consumer_loses_its_entries_to_others(void)
{
    struct once__broker *b;
    struct once__delivery *d;

    fresh();
    (void)say("XGROUP CREATE %s g 0 MKSTREAM", stream);
    (void)say("XADD %s * id a body b", stream);
    (void)say("XREADGROUP GROUP g crashed STREAMS %s >", stream);
    b = opened("&group=g&min_idle_ms=500", "billing");
    d = next(b);
    if (T_OK(d != NULL)) {
        T_STR(d->m.id, "a");
        T_EQ(d->redelivered, 1);
        T_EQ(b->ops->ack(b, d, ONCE__ACK_TAKEN, NULL), ONCE_OK);
    }
    T_EQ(say("XPENDING %s g - + 10", stream), 0);
    b->ops->close(b);
}

static void one_that_is_worked_on_stays(void)
{
    struct once__broker *b, *c;
    struct once__delivery *d, *other = NULL;
    int i;

    fresh();
    (void)say("XADD %s * id a body b", stream);
    b = opened("&group=g&min_idle_ms=3000", "billing");
    c = opened("&group=g&min_idle_ms=3000", "billing");
    d = next(b);
    if (!T_OK(d != NULL))
        return;
    for (i = 0; i < 10 && other == NULL; i++) {
        T_EQ(b->ops->ack(b, d, ONCE__ACK_STILL_AT, NULL), ONCE_OK);
        T_EQ(c->ops->receive(c, 400, &other, NULL), ONCE_OK);
    }
    T_OK(other == NULL);
    T_EQ(b->ops->ack(b, d, ONCE__ACK_TAKEN, NULL), ONCE_OK);
    b->ops->close(b);
    c->ops->close(c);
}

static void one_fetched_early_and_taken_by_another_is_left_out(void)
{
    struct once__broker *b, *c;
    struct once__delivery *d, *other;
    int i;

    fresh();
    (void)say("XADD %s * id a body b", stream);
    (void)say("XADD %s * id b body b", stream);
    b = opened("&group=g&min_idle_ms=400", "billing");
    d = next(b); /* `b` is here, and was not handed out yet */
    (void)usleep(500000);
    c = opened("&group=g&min_idle_ms=400", "billing");
    for (i = 0; i < 2; i++) {
        other = next(c);
        if (T_OK(other != NULL))
            T_EQ(c->ops->ack(c, other, ONCE__ACK_TAKEN, NULL), ONCE_OK);
    }
    T_OK(d != NULL && b->ops->ack(b, d, ONCE__ACK_TAKEN, NULL) == ONCE_OK);
    T_EQ(b->ops->receive(b, 100, &d, NULL), ONCE_OK);
    T_OK(d == NULL);
    (void)say("XADD %s * id c body b", stream);
    (void)say("XADD %s * id d body b", stream);
    d = next(b);
    (void)usleep(300000);
    T_OK(d != NULL && b->ops->ack(b, d, ONCE__ACK_TAKEN, NULL) == ONCE_OK);
    d = next(b); /* nobody took it */
    T_OK(d != NULL && !d->redelivered && strcmp(d->m.id, "d") == 0);
    b->ops->close(b);
    c->ops->close(c);
}

static void an_entry_trimmed_while_pending_is_an_alarm(void)
{
    struct once__broker *b;
    struct once__delivery *d;

    fresh();
    (void)say("XADD %s * id a body b", stream);
    b = opened("&group=g&min_idle_ms=500", "billing");
    d = next(b);
    if (!T_OK(d != NULL))
        return;
    (void)say("XTRIM %s MAXLEN 0", stream);
    b->ops->abandon(b); /* the own pending list then */
    T_OK(kit_connect(b, 30000));
    T_EQ(b->ops->receive(b, (uint32_t)patient_ms(300), &d, NULL), ONCE_OK);
    T_OK(d == NULL && kit_logged("ALARM"));
    T_EQ(say("XPENDING %s g - + 10", stream), 0);
    (void)kit_logged(NULL);
    (void)say("XADD %s * id b body b", stream);
    (void)say("XREADGROUP GROUP g crashed STREAMS %s >", stream);
    (void)say("XTRIM %s MAXLEN 0", stream);
    (void)usleep(600000);
    T_EQ(b->ops->receive(b, (uint32_t)patient_ms(1500), &d, NULL), ONCE_OK);
    T_OK(d == NULL && kit_logged("ALARM"));
    b->ops->close(b);
}

static void a_stream_that_is_gone_is_made_again(void)
{
    struct once__broker *b;
    struct once__delivery *d = NULL;

    fresh();
    b = opened("&group=g", "billing");
    (void)say("DEL %s", stream);
    T_EQ(b->ops->receive(b, 300, &d, NULL), ONCE_EAWAY);
    T_OK(kit_logged("ALARM"));
    T_OK(kit_connect(b, 30000));
    (void)say("XADD %s * id a body b", stream);
    d = next(b);
    if (T_OK(d != NULL))
        T_EQ(b->ops->ack(b, d, ONCE__ACK_TAKEN, NULL), ONCE_OK);
    b->ops->close(b);
}

static void a_consumer_that_ends_leaves_its_group(void)
{
    struct once__broker *b;
    struct once__delivery *d;
    redisReply *r;

    fresh();
    (void)say("XADD %s * id a body b", stream);
    (void)say("XADD %s * id b body b", stream);
    b = opened("&group=g", "billing");
    d = next(b);
    T_OK(d != NULL);
    T_EQ(say("XINFO CONSUMERS %s g", stream), 1);
    b->ops->close(b); /* one in hand, one not handed out yet */
    r = redisCommand(raw, "XINFO CONSUMERS %s g", stream);
    if (T_OK(r != NULL && r->elements == 1))
        T_STR(r->element[0]->element[1]->str, "given-back");
    freeReplyObject(r);
    b = opened("&group=g", "billing");
    d = next(b);
    T_OK(d != NULL && d->redelivered);
    b->ops->close(b);
}

int main(void)
{
    const char *path = getenv("ONCE_TEST_REDIS_SOCKET");

    (void)signal(SIGPIPE, SIG_IGN);
    raw = redisConnectUnix(path == NULL ? "" : path);
    if (raw == NULL || raw->err != 0)
        abort();
    T_RUN(an_id_is_added_once);
    T_RUN(streams_do_not_share_ids);
    T_RUN(a_forgotten_script_is_sent_whole);
    T_RUN(an_error_means_not_taken);
    T_RUN(a_replica_is_left);
    T_RUN(another_kind_of_key_is_refused);
    T_RUN(class_b_is_logged_once);
    T_RUN(a_crashed_consumer_loses_its_entries_to_others);
    T_RUN(one_that_is_worked_on_stays);
    T_RUN(one_fetched_early_and_taken_by_another_is_left_out);
    T_RUN(an_entry_trimmed_while_pending_is_an_alarm);
    T_RUN(a_stream_that_is_gone_is_made_again);
    T_RUN(a_consumer_that_ends_leaves_its_group);
    redisFree(raw);
    return t_done();
}
