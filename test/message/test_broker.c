/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_broker.c - every driver of a broker is held to src/messages/broker/broker.h, on a
 * real server: test_broker KIND [SERVER], inside test/lib/with-server.
 *
 * A driver is one row of `kinds`, and a line in test/meson.build. What only one
 * of them has stands in a program of its own (test_broker_redis.c).
 */
#include "broker_kit.h"

#include <assert.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { MANY = 200, WAIT_MS = 30000 };

/* ---- The kinds ---------------------------------------------------------- */

#define PIKA                                                                   \
    "/usr/bin/python3 - \"$1\" <<'END'\n"                                      \
    "import os, sys, pika\n"                                                   \
    "c = pika.BlockingConnection(pika.URLParameters("                          \
    "os.environ['ONCE_TEST_URL']))\n"                                          \
    "ch, name = c.channel(), sys.argv[1]\n"

/* ask(API, request): what JetStream answers; put(): a message to its stream. */
#define NATS                                                                   \
    "/usr/bin/python3 - \"$1\" <<'END'\n"                                      \
    "import json, os, socket, sys, urllib.parse\n"                             \
    "u = urllib.parse.urlsplit(os.environ['ONCE_TEST_URL'])\n"                 \
    "s, name = socket.create_connection((u.hostname, u.port)), sys.argv[1]\n"  \
    "f = s.makefile('rb')\n"                                                   \
    "f.readline()\n"                                                           \
    "s.sendall(b'CONNECT {\"verbose\":false,\"headers\":true}\\r\\n'\n"        \
    "          b'SUB i.* 1\\r\\n')\n"                                          \
    "def answer():\n"                                                          \
    "    line = f.readline()\n"                                                \
    "    while not line.startswith(b'MSG'):\n"                                 \
    "        line = f.readline()\n"                                            \
    "    said = json.loads(f.read(int(line.split()[-1])))\n"                   \
    "    assert 'error' not in said, said\n"                                   \
    "    return said\n"                                                        \
    "def ask(api, request):\n"                                                 \
    "    text = json.dumps(request).encode()\n"                                \
    "    s.sendall(b'PUB $JS.API.%s i.1 %d\\r\\n%s\\r\\n'\n"                   \
    "              % (api.encode(), len(text), text))\n"                       \
    "    return answer()\n"                                                    \
    "def put(body, **headers):\n"                                              \
    "    text = b'NATS/1.0\\r\\n' + b''.join(\n"                               \
    "        k.replace('_', '-').encode() + b': ' + v + b'\\r\\n'\n"           \
    "        for k, v in headers.items()) + b'\\r\\n'\n"                       \
    "    s.sendall(b'HPUB %s i.1 %d %d\\r\\n%s%s\\r\\n' % (\n"                 \
    "        name.encode(), len(text), len(text + body), text, body))\n"       \
    "    answer()\n"

/* tool VERB TOPIC ...: lib/kafkatool.c. */
#define KAFKA                                                                  \
    "tool() { \"$ONCE_TEST_KAFKA_TOOL\" \"$ONCE_TEST_KAFKA_HOSTS\" \"$@\"; "   \
    "}\n"

struct kind {
    const char *name;    /* of the test's argument                           */
    const char *server;  /* for with-server                                  */
    const char *send;    /* parameters of the URL, or its path with these;
                          * %s is the queue's name                           */
    const char *receive; /* likewise; NULL: it does not receive              */
    const char *prepare; /* shell command that makes the queue $1, or NULL   */
    const char *foreign; /* ... that puts `n_foreign` messages into it that  */
    int n_foreign;       /*     have a flaw each                             */
    int in_row;          /* 1: an acknowledgement waits for earlier ones     */
    const char *user;    /* a URL for a user, without a path; NULL: as others */
    struct {
        const char *url, *word; /* refused when it is opened: the word names
                                 * what is wrong                             */
    } wrong[10];
    const char *nowhere; /* refused for a consumer: names nothing to read  */
};

static const struct kind kinds[] = {
    {
        "redis",
        "redis",
        "stream=%s",
        "stream=%s&group=g&min_idle_ms=1000",
        NULL,
        "s=${ONCE_TEST_REDIS_SOCKET-$ONCE_TEST_REDIS_TLS_SOCKET}\n"
        "cli() { redis-cli -s \"$s\" xadd \"$@\"; }\n"
        "cli $1 '*' body without-id\n"
        "cli $1 '*' id 'with space' body b\n"
        "cli $1 '*' id without-body\n"
        "cli $1 '*' id two id ids body b\n"
        "cli $1 '*' id key key \"$(printf '\\377')\" body b\n"
        "cli $1 '*' id utf headers \"$(printf 'A: \\377\\n\\n')x\" body b\n"
        "cli $1 '*' id lines headers none body b\n",
        7,
        0,
        NULL,
        {
            {"redis://u:s3cret@h/", "stream"},
            {"redis://u:s3cret@h/?stream=", "stream"},
            {"redis://u:s3cret@h/?stream=s&sream=s", "sream"},
            {"redis://u:s3cret@h/?stream=s&window_ms=x", "window_ms"},
            {"redis://u:s3cret@h/?stream=s&wait=2", "wait"},
            {"redis://u:s3cret@h/?stream=s&group=g", "group"},
            {"redis://u:s3cret@h/?stream=a}b", "stream"},
            {"redis://u:s3cret@h:port/?stream=s", "port"},
        },
        "redis://u:s3cret@h/?stream=s",
    },
    {
        "nats",
        "nats",
        "subject=%s",
        "stream=%s&durable=d",
        NATS "ask('STREAM.CREATE.' + name, {'name': name, 'subjects': [name],\n"
             "    'storage': 'file', 'retention': 'limits', 'max_msgs': -1,\n"
             "    'max_bytes': -1, 'max_age': 0, 'num_replicas': 1})\n"
             "END\n",
        NATS "put(b'without id')\n"
             "put(b'b', Once_Id=b'with space')\n"
             "put(b'b', Once_Id=b'key', Once_Key=b'a b')\n"
             "put(b'b', Once_Id=b'utf', A=b'\\xff')\n"
             "put(b'', Status=b'503')\n"
             "put(b'', Status=b'409', Description=b'Consumer Deleted')\n"
             "END\n",
        6,
        0,
        NULL,
        {
            {"nats://u:s3cret@h/?stream=s", "durable"},
            {"nats://u:s3cret@h/?durable=d", "stream"},
            {"nats://u:s3cret@h/?stream=a.b&durable=d", "stream"},
            {"nats://u:s3cret@h/?subject=a.*", "subject"},
            {"nats://u:s3cret@h/?subject=a%20b", "subject"},
            {"nats://u:s3cret@h/?sbject=a", "sbject"},
            {"nats://u:s3cret@h/path?subject=a", "path"},
            {"nats://u:s3cret@h:port/?subject=a", "port"},
        },
        "nats://u:s3cret@h/?subject=a",
    },
    {
        "amqp",
        "rabbitmq",
        "routing_key=%s",
        "queue=%s",
        PIKA "ch.queue_declare(name, durable=True)\n"
             "END\n",
        PIKA "def put(body, **p):\n"
             "    ch.basic_publish('', name, body, pika.BasicProperties(**p))\n"
             "put(b'without id')\n"
             "put(b'b', message_id='with space')\n"
             "put(b'b', message_id='key', headers={'Once-Key': 'a b'})\n"
             "END\n",
        3,
        0,
        NULL,
        {
            {"amqp://u:s3cret@h/?queue=q&routing_key=k", "queue"},
            {"amqp://u:s3cret@h:port/?routing_key=k", "port"},
            {"amqp://u:s3cret@h/?routing_key=k&quue=q", "quue"},
            {"amqp://u:s3cret@h/?queue=q", "consumers"},
        },
        "amqp://u:s3cret@h/",
    },
    {
        "kafka",
        "kafka",
        "/%s",
        "/%s?group=g",
        KAFKA "tool topic \"$1\" 1\n",
        KAFKA "tool put \"$1\" head:Once-Id=no-body &&\n"
              "tool put \"$1\" head:Once-Id=with%20space body=b &&\n"
              "tool put \"$1\" head:Once-Id=a head:once-id=b body=b &&\n"
              "tool put \"$1\" head:Once-Id=key key=%ff body=b &&\n"
              "tool put \"$1\" head:Once-Id=utf head:A=%ff body=b &&\n"
              "tool put \"$1\" head:Once-Id=line head:A=a%0Ab body=b\n",
        6,
        1,
        "kafkas://u:s3cret@127.0.0.1:1",
        {
            {"kafkas://u:s3cret@h/", "topic"},
            {"kafkas://u:s3cret@h/a%20b", "topic"},
            {"kafkas://u:s3cret@h/t?group=g", "group"},
            {"kafkas://u:s3cret@h/t?toopic=t", "toopic"},
            {"kafkas://u:s3cret@h,k:port/t", "port"},
            {"kafkas://u:s3cret@h/t?mechanism=GSSAPI", "mechanism"},
            {"kafkas://h/t?mechanism=PLAIN", "mechanism"},
            {"kafkas://u@h/t", "password"},
            {"kafka://u:s3cret@h/t", "TLS"},
        },
        "kafkas://u:s3cret@h/",
    },
};

static const struct kind *kind;
static const char *server;

/* ---- Help --------------------------------------------------------------- */

/* A name that no test had before; its queue is there. */
static const char *fresh(void)
{
    static char name[40];
    static int number;
    char command[4096];

    (void)snprintf(name, sizeof(name), "t%d-%d", (int)getpid(), ++number);
    if (kind->prepare != NULL) {
        (void)snprintf(command, sizeof(command), "set -- '%s'\n%s", name,
                       kind->prepare);
        T_EQ(system(command), 0);
    }
    return name;
}

/* `base` with path or parameters, which have the name in place of "%s". */
static void url_at(const char *base, const char *parameters, const char *name,
                   char *out, size_t size)
{
    const char *mark = strstr(parameters, "%s");

    assert(mark != NULL);
    (void)snprintf(out, size, "%s%s%.*s%s%s", base,
                   *parameters == '/'  ? ""
                   : strchr(base, '?') ? "&"
                                       : "?",
                   (int)(mark - parameters), parameters, name, mark + 2);
}

static void url_of(const char *parameters, const char *name, char *out,
                   size_t size)
{
    const char *base = getenv("ONCE_TEST_URL");

    assert(base != NULL);
    url_at(base, parameters, name, out, size);
}

static struct once__broker *sender(const char *name)
{
    struct once__broker_options o = kit_options(NULL, 0);
    char url[1024];

    url_of(kind->send, name, url, sizeof(url));
    return kit_open(url, &o);
}

static struct once__broker *receiver(const char *name, uint32_t prefetch)
{
    struct once__broker_options o = kit_options("billing", prefetch);
    char url[1024];

    url_of(kind->receive, name, url, sizeof(url));
    return kit_open(url, &o);
}

/* Sends `n` messages, tags from 0, ids "NAME-tag". */
static void send_many(struct once__broker *b, struct kit_many *many, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        (void)snprintf(many->id[i], sizeof(many->id[i]), "id-%zu", i);
        many->m[i] = kit_message(many->id[i], i % 2 ? "key" : NULL, "body", 4);
        (void)!b->ops->send(b, &many->m[i], i, NULL);
    }
}

static void send_one(const char *name, const once_message *m)
{
    struct once__broker *b = sender(name);
    struct kit_ends ends = {0};

    T_EQ(b->ops->send(b, m, 0, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 1, WAIT_MS), 1);
    T_EQ(ends.end[0], ONCE__END_TAKEN);
    b->ops->close(b);
}

/* The next delivery, waited for long; NULL: none. */
static struct once__delivery *next(struct once__broker *b)
{
    struct once__delivery *d = NULL;
    int i;

    for (i = 0; i < WAIT_MS / 500 && d == NULL; i++)
        if (b->ops->receive(b, 500, &d, NULL) != ONCE_OK)
            return NULL;
    return d;
}

/* The same of one that may lose its connection once more, as after a restart of
 * the server that it has not got over yet. */
static struct once__delivery *next_at_last(struct once__broker *b)
{
    struct once__delivery *d = next(b);
    int i;

    for (i = 0; i < 3 && d == NULL && kit_connect(b, WAIT_MS); i++)
        d = next(b);
    return d;
}

static int none(struct once__broker *b)
{
    struct once__delivery *d = NULL;

    return b->ops->receive(b, 300, &d, NULL) == ONCE_OK && d == NULL;
}

static int ack(struct once__broker *b, struct once__delivery *d, int how)
{
    once_error err = {0};
    int rc = b->ops->ack(b, d, how, &err);

    if (rc != ONCE_OK)
        printf("#   %s\n", err.text);
    return rc;
}

/* ---- Sending ------------------------------------------------------------ */

static void every_message_gets_one_proof(void)
{
    struct once__broker *b = sender(fresh());
    struct kit_many *many = kit_many_new();
    struct kit_ends ends = {0};
    size_t i;

    send_many(b, many, MANY);
    T_EQ(kit_collect(b, &ends, MANY, WAIT_MS), MANY);
    for (i = 0; i < MANY; i++) {
        T_EQ(ends.n[i], 1);
        T_EQ(ends.end[i], ONCE__END_TAKEN);
    }
    T_EQ(kit_collect(b, &ends, 1, 200), 0);
    b->ops->close(b);
    free(many);
}

static void two_of_one_id_may_be_under_way(void)
{
    struct once__broker *b = sender(fresh());
    once_message m = kit_message("twice", NULL, "body", 4);
    struct kit_ends ends = {0};

    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    T_EQ(b->ops->send(b, &m, 1, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 2, WAIT_MS), 2);
    T_EQ(ends.n[0], 1);
    T_EQ(ends.n[1], 1);
    T_EQ(ends.end[0], ONCE__END_TAKEN);
    T_EQ(ends.end[1], ONCE__END_TAKEN);
    b->ops->close(b);
}

static int is_lost(int end)
{
    return end == ONCE__END_TAKEN || end == ONCE__END_SILENT ||
           end == ONCE__END_UNSENT;
}

static void abandoned_messages_end_at_once(void)
{
    struct once__broker *b = sender(fresh());
    struct kit_many *many = kit_many_new();
    struct kit_ends ends = {0};
    once_message m = kit_message("after", NULL, "body", 4);
    size_t i;

    send_many(b, many, MANY);
    b->ops->abandon(b);
    T_EQ(kit_collect(b, &ends, MANY, 0), MANY);
    for (i = 0; i < MANY; i++)
        T_OK(ends.n[i] == 1 && is_lost(ends.end[i]));
    T_OK(kit_connect(b, WAIT_MS));
    memset(&ends, 0, sizeof(ends));
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 1, WAIT_MS), 1);
    T_EQ(ends.end[0], ONCE__END_TAKEN);
    b->ops->close(b);
    free(many);
}

static void a_server_that_hangs_proves_nothing(void)
{
    struct once__broker *b = sender(fresh());
    once_message m = kit_message("hung", NULL, "body", 4);
    struct kit_ends ends = {0};

    T_OK(kit_ctl("pause", server));
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 1, 300), 0);
    b->ops->abandon(b);
    T_EQ(kit_collect(b, &ends, 1, 0), 1);
    T_EQ(ends.end[0], ONCE__END_SILENT);
    T_OK(kit_ctl("resume", server));
    T_OK(kit_connect(b, WAIT_MS));
    memset(&ends, 0, sizeof(ends));
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 1, WAIT_MS), 1);
    T_EQ(ends.end[0], ONCE__END_TAKEN);
    b->ops->close(b);
}

static void without_a_connection_nothing_is_sent(void)
{
    struct once__broker *b = sender(fresh());
    once_message m = kit_message("unsent", NULL, "body", 4);
    struct kit_ends ends = {0};

    b->ops->abandon(b);
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_EAWAY);
    T_EQ(kit_collect(b, &ends, 1, 0), 1);
    T_EQ(ends.end[0], ONCE__END_UNSENT);
    b->ops->close(b);
}

static void an_absent_server_is_away(void)
{
    struct once__broker_options o = kit_options(NULL, 0);
    struct once__broker *b = NULL;
    once_error err = {0};
    char base[64], url[256];

    (void)snprintf(base, sizeof(base), "%s://u:s3cret@127.0.0.1:1/",
                   kind->name);
    url_at(kind->user != NULL ? kind->user : base, kind->send, "q", url,
           sizeof(url));
    T_EQ(once__broker_find(url, NULL)->open(url, &o, &b, &err), ONCE_OK);
    if (b == NULL) {
        printf("#   %s\n", err.text);
        return;
    }
    T_EQ(b->ops->connect(b, &err), ONCE_EAWAY);
    T_OK(err.text[0] != '\0' && strstr(err.text, "s3cret") == NULL);
    b->ops->close(b);
}

static void is_refused(const char *url, const char *consumer, const char *word)
{
    struct once__broker_options o = kit_options(consumer, 0);
    struct once__broker *b = NULL;
    once_error err = {0};

    T_EQ(once__broker_find(url, NULL)->open(url, &o, &b, &err), ONCE_EURL);
    if (!T_OK(strstr(err.text, word) != NULL))
        printf("#   %s: %s\n", url, err.text);
    T_OK(strstr(err.text, "s3cret") == NULL);
    if (b != NULL)
        b->ops->close(b);
}

static void wrong_urls_are_refused_by_name(void)
{
    size_t i;

    for (i = 0; i < 10 && kind->wrong[i].url != NULL; i++)
        is_refused(kind->wrong[i].url, NULL, kind->wrong[i].word);
}

/* Waiting does not repair it: a consumer that connects again and again would. */
static void a_url_without_a_source_is_refused_for_a_consumer(void)
{
    is_refused(kind->nowhere, "test", "");
}

static void a_killed_server_leaves_one_proof_each(void)
{
    const char *name = fresh();
    struct once__broker *b = sender(name);
    struct kit_many *many = kit_many_new();
    struct kit_ends ends = {0};
    once_message m = kit_message("later", NULL, "body", 4);
    size_t i;

    send_many(b, many, MANY / 2);
    T_OK(kit_ctl("kill", server));
    for (i = MANY / 2; i < MANY; i++) {
        (void)snprintf(many->id[i], sizeof(many->id[i]), "id-%zu", i);
        many->m[i] = kit_message(many->id[i], NULL, "body", 4);
        (void)!b->ops->send(b, &many->m[i], i, NULL);
    }
    (void)kit_collect(b, &ends, MANY, 2000);
    T_EQ(b->ops->connect(b, NULL), ONCE_EAWAY);
    (void)kit_collect(b, &ends, MANY, 0);
    for (i = 0; i < MANY; i++)
        T_OK(ends.n[i] == 1 && is_lost(ends.end[i]));
    T_OK(kit_ctl("start", server));
    T_OK(kit_connect(b, WAIT_MS));
    memset(&ends, 0, sizeof(ends));
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 1, WAIT_MS), 1);
    T_EQ(ends.end[0], ONCE__END_TAKEN);
    b->ops->close(b);
    free(many);
}

/* ---- Receiving ---------------------------------------------------------- */

/* The same lines, in any order: some brokers keep none. */
static int same_lines(const char *a, const char *b)
{
    const char *end;
    char line[256];

    if (strlen(a) != strlen(b))
        return 0;
    for (; *a != '\0'; a = end + 1) {
        end = strchr(a, '\n');
        if (end == NULL || (size_t)(end - a) + 2 > sizeof(line))
            return 0;
        (void)snprintf(line, sizeof(line), "%.*s", (int)(end + 1 - a), a);
        if (strstr(b, line) == NULL)
            return 0;
    }
    return 1;
}

static void same(const struct once__delivery *d, const once_message *m)
{
    T_OK(d->flaw == NULL);
    if (d->m.id == NULL || d->flaw != NULL)
        return;
    T_STR(d->m.id, m->id);
    T_OK((d->m.key == NULL) == (m->key == NULL));
    if (d->m.key != NULL && m->key != NULL)
        T_STR(d->m.key, m->key);
    T_STR(d->m.type == NULL ? "" : d->m.type, m->type == NULL ? "" : m->type);
    T_OK(same_lines(d->m.headers == NULL ? "" : d->m.headers,
                    m->headers == NULL ? "" : m->headers));
    T_EQ(d->m.body.size, m->body.size);
    if (d->m.body.size == m->body.size && m->body.size > 0)
        T_MEM(d->m.body.data, m->body.data, m->body.size);
}

static void messages_arrive_as_they_were_sent(void)
{
    static char large[1000000], bytes[256], id[ONCE_ID_MAX + 1];
    const char *name = fresh();
    struct once__broker *b = sender(name), *c = receiver(name, 10);
    once_message m[4];
    struct kit_ends ends = {0};
    struct once__delivery *d;
    size_t i;

    for (i = 0; i < sizeof(large); i++)
        large[i] = (char)(i * 2654435761u >> 13);
    for (i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)i;
    for (i = 0; i < ONCE_ID_MAX; i++)
        id[i] = (char)('!' + i % ('~' - '!' + 1));
    m[0] = kit_message("empty", NULL, "", 0);
    m[1] = kit_message("large", "key/1", large, sizeof(large));
    m[2] = kit_message(id, id, bytes, sizeof(bytes));
    m[2].type = "application/octet-stream";
    m[2].headers = "X-Name: Gr\xc3\xbc\xc3\x9f"
                   "e \xe2\x82\xac\nX-More: a: b\n";
    m[3] = kit_message("typed", NULL, "{}", 2);
    m[3].type = "application/json; charset=utf-8";
    for (i = 0; i < 4; i++)
        T_EQ(b->ops->send(b, &m[i], i, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 4, WAIT_MS), 4);
    for (i = 0; i < 4; i++) {
        T_EQ(ends.end[i], ONCE__END_TAKEN);
        d = next(c);
        if (!T_OK(d != NULL))
            break;
        same(d, &m[i]);
        T_EQ(d->redelivered, 0);
        T_EQ(ack(c, d, ONCE__ACK_TAKEN), ONCE_OK);
    }
    T_OK(none(c));
    b->ops->close(b);
    c->ops->close(c);
}

static void a_message_given_back_comes_again(void)
{
    const char *name = fresh();
    struct once__broker *c = receiver(name, 1);
    once_message m = kit_message("back", "k", "body", 4);
    struct once__delivery *d;
    int i;

    send_one(name, &m);
    for (i = 0; i < 3; i++) {
        d = next(c);
        if (!T_OK(d != NULL))
            break;
        same(d, &m);
        T_OK(i == 0 || d->redelivered);
        T_EQ(ack(c, d, i < 2 ? ONCE__ACK_BACK : ONCE__ACK_TAKEN), ONCE_OK);
    }
    T_OK(none(c));
    c->ops->close(c);
}

static void what_was_not_acknowledged_comes_to_another(void)
{
    const char *name = fresh();
    struct once__broker *c = receiver(name, 3);
    once_message m[3] = {kit_message("a", NULL, "1", 1),
                         kit_message("b", NULL, "2", 1),
                         kit_message("c", NULL, "3", 1)};
    struct once__delivery *d[3];
    int i;

    for (i = 0; i < 3; i++)
        send_one(name, &m[i]);
    for (i = 0; i < 3; i++) {
        d[i] = next(c);
        if (!T_OK(d[i] != NULL))
            return;
    }
    T_EQ(ack(c, d[1], ONCE__ACK_TAKEN), ONCE_OK);
    c->ops->close(c);
    c = receiver(name, 3);
    for (i = 0; i < 2 + kind->in_row; i++) {
        d[i] = next(c);
        if (!T_OK(d[i] != NULL))
            break;
        T_EQ(d[i]->redelivered, 1);
        T_OK(kind->in_row || strcmp(d[i]->m.id, "b") != 0);
        T_EQ(ack(c, d[i], ONCE__ACK_TAKEN), ONCE_OK);
    }
    T_OK(none(c));
    c->ops->close(c);
}

static void a_delivery_outlives_its_connection(void)
{
    const char *name = fresh();
    struct once__broker *c = receiver(name, 2);
    once_message m = kit_message("kept", NULL, "body", 4);
    struct once__delivery *d, *again;

    send_one(name, &m);
    d = next(c);
    if (!T_OK(d != NULL))
        return;
    c->ops->abandon(c);
    same(d, &m);
    T_OK(kit_connect(c, WAIT_MS));
    again = next(c);
    if (T_OK(again != NULL)) {
        same(d, &m);
        same(again, &m);
        T_EQ(again->redelivered, 1);
        (void)!c->ops->ack(c, d, ONCE__ACK_TAKEN, NULL);
        same(again, &m);
        T_EQ(ack(c, again, ONCE__ACK_TAKEN), ONCE_OK);
    }
    T_OK(none(c));
    c->ops->close(c);
}

static void no_more_are_out_than_prefetch(void)
{
    const char *name = fresh();
    struct once__broker *c = receiver(name, 2);
    once_message m[3] = {kit_message("a", NULL, "1", 1),
                         kit_message("b", NULL, "2", 1),
                         kit_message("c", NULL, "3", 1)};
    struct once__delivery *d[3];
    int i;

    for (i = 0; i < 3; i++)
        send_one(name, &m[i]);
    d[0] = next(c);
    d[1] = next(c);
    if (!T_OK(d[0] != NULL && d[1] != NULL))
        return;
    T_OK(none(c));
    T_EQ(ack(c, d[0], ONCE__ACK_STILL_AT), ONCE_OK);
    same(d[0], &m[0]);
    T_OK(none(c));
    T_EQ(ack(c, d[0], ONCE__ACK_TAKEN), ONCE_OK);
    d[2] = next(c);
    if (T_OK(d[2] != NULL)) {
        same(d[2], &m[2]);
        T_EQ(ack(c, d[2], ONCE__ACK_TAKEN), ONCE_OK);
    }
    T_EQ(ack(c, d[1], ONCE__ACK_TAKEN), ONCE_OK);
    T_OK(none(c));
    c->ops->close(c);
}

static void foreign_messages_have_a_flaw(void)
{
    const char *name = fresh();
    struct once__broker *c = receiver(name, 1);
    struct once__delivery *d;
    char command[4096];
    int i;

    (void)snprintf(command, sizeof(command), "{ set -- '%s'\n%s} >/dev/null",
                   name, kind->foreign);
    T_EQ(system(command), 0);
    for (i = 0; i < kind->n_foreign; i++) {
        d = next(c);
        if (!T_OK(d != NULL))
            break;
        if (!T_OK(d->flaw != NULL))
            printf("#   number %d has no flaw\n", i);
        T_EQ(ack(c, d, ONCE__ACK_TAKEN), ONCE_OK);
    }
    T_OK(none(c));
    c->ops->close(c);
}

static void a_body_over_the_limit_is_left_out(void)
{
    static char body[2000];
    const char *name = fresh();
    struct once__broker_options o = kit_options("billing", 1);
    struct once__broker *c;
    once_message m = kit_message("fat", NULL, body, sizeof(body));
    struct once__delivery *d;
    char url[1024];

    send_one(name, &m);
    o.body_max = sizeof(body) - 1;
    url_of(kind->receive, name, url, sizeof(url));
    c = kit_open(url, &o);
    d = next(c);
    if (T_OK(d != NULL)) {
        T_OK(d->flaw != NULL && d->m.body.size == 0);
        T_OK(d->m.id != NULL && strcmp(d->m.id, "fat") == 0);
        T_EQ(ack(c, d, ONCE__ACK_TAKEN), ONCE_OK);
    }
    c->ops->close(c);
}

static void what_was_taken_survives_a_killed_server(void)
{
    const char *name = fresh();
    struct once__broker *b = sender(name), *c = receiver(name, MANY);
    struct kit_many *many = kit_many_new();
    struct kit_ends ends = {0};
    struct once__delivery *d = NULL;
    int here[KIT_MANY] = {0};
    size_t i, left = MANY, tag;

    send_many(b, many, MANY);
    (void)kit_collect(b, &ends, MANY / 2, WAIT_MS);
    T_OK(kit_ctl("kill", server));
    for (i = 0; i < MANY + 100; i++) /* what came before it was killed */
        if (c->ops->receive(c, 200, &d, NULL) != ONCE_OK)
            break;
    T_OK(i < MANY + 100);
    (void)kit_collect(b, &ends, MANY, 1000);
    T_OK(kit_ctl("start", server));
    T_OK(kit_connect(c, WAIT_MS));
    while (left > 0 && (d = next_at_last(c)) != NULL) {
        if (T_OK(d->m.id != NULL && d->flaw == NULL)) {
            tag = strtoul(d->m.id + 3, NULL, 10);
            here[tag] = 1;
        }
        (void)ack(c, d, ONCE__ACK_TAKEN); /* or it comes again */
        left = 0;
        for (i = 0; i < MANY; i++)
            left += ends.end[i] == ONCE__END_TAKEN && ends.n[i] > 0 && !here[i];
    }
    T_EQ(left, 0);
    b->ops->close(b);
    c->ops->close(c);
    free(many);
}

static void run_kind(void)
{
    /* A cluster of others is not killed. */
    int real = strcmp(kind->name, "kafka") == 0 && getenv("ONCE_KAFKA") != NULL;

    T_RUN(wrong_urls_are_refused_by_name);
    T_RUN(an_absent_server_is_away);
    T_RUN(every_message_gets_one_proof);
    T_RUN(two_of_one_id_may_be_under_way);
    T_RUN(abandoned_messages_end_at_once);
    T_RUN(without_a_connection_nothing_is_sent);
    if (!real) {
        T_RUN(a_server_that_hangs_proves_nothing);
        T_RUN(a_killed_server_leaves_one_proof_each);
    }
    if (kind->receive == NULL)
        return;
    T_RUN(a_url_without_a_source_is_refused_for_a_consumer);
    T_RUN(messages_arrive_as_they_were_sent);
    T_RUN(a_message_given_back_comes_again);
    T_RUN(what_was_not_acknowledged_comes_to_another);
    T_RUN(a_delivery_outlives_its_connection);
    T_RUN(no_more_are_out_than_prefetch);
    T_RUN(foreign_messages_have_a_flaw);
    T_RUN(a_body_over_the_limit_is_left_out);
    /* The mock of Kafka keeps its log in memory. */
    if (strcmp(kind->name, "kafka") != 0)
        T_RUN(what_was_taken_survives_a_killed_server);
}

int main(int argc, char **argv)
{
    size_t i;

    (void)signal(SIGPIPE, SIG_IGN);
    for (i = 0; argc > 1 && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kinds[i].name, argv[1]) == 0)
            kind = &kinds[i];
    if (kind == NULL) {
        (void)fprintf(stderr, "usage: test_broker KIND [SERVER]\n");
        return 2;
    }
    if (strcmp(kind->name, "kafka") == 0)
        kit_skip_c11_threads();
    server = argc > 2 ? argv[2] : kind->server;
    run_kind();
    return t_done();
}
