/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kafkatool.c - a client of Kafka for tests, with no code of the driver.
 *
 *    kafkatool HOSTS topic NAME PARTITIONS
 *    kafkatool HOSTS put TOPIC [key=K] [head:NAME=VALUE ...] [body=B]
 *                                     one record; %XX is a byte
 *    kafkatool HOSTS feed TOPIC       the same for each line of standard input
 *    kafkatool HOSTS follow TOPIC [N] a line for each record, or the first N:
 *                                     PARTITION OFFSET ID KEY BODY, each of the
 *                                     last three with %XX, or - for none
 *    kafkatool HOSTS dump TOPIC       the same for those that are there now
 *    kafkatool HOSTS committed TOPIC GROUP PARTITION
 *                                     OFFSET TEXT; -1: nothing
 *    kafkatool HOSTS commit TOPIC GROUP PARTITION OFFSET
 *                                     sets it, where the group has no members
 *
 * ONCE_TEST_KAFKA_CONTROL is the socket of a mock, which cannot make a topic by its
 * protocol.
 */
#include <librdkafka/rdkafka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { WAIT_MS = 30000, ALL_NOW = -2 };

static void die(const char *what)
{
    (void)fprintf(stderr, "kafkatool: %s\n", what);
    exit(1);
}

static rd_kafka_t *client(rd_kafka_type_t type, const char *hosts,
                          const char *group)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char text[256];
    rd_kafka_t *rk;

    (void)rd_kafka_conf_set(conf, "bootstrap.servers", hosts, NULL, 0);
    (void)rd_kafka_conf_set(conf, "topic.metadata.refresh.interval.ms", "500",
                            NULL, 0);
    (void)rd_kafka_conf_set(conf, "log_level", "0", NULL, 0);
    if (type == RD_KAFKA_CONSUMER) {
        (void)rd_kafka_conf_set(conf, "group.id", group, NULL, 0);
        (void)rd_kafka_conf_set(conf, "enable.auto.commit", "false", NULL, 0);
        (void)rd_kafka_conf_set(conf, "auto.offset.reset", "earliest", NULL, 0);
    } else {
        (void)rd_kafka_conf_set(conf, "linger.ms", "0", NULL, 0);
        (void)rd_kafka_conf_set(conf, "partitioner", "murmur2_random", NULL, 0);
    }
    rk = rd_kafka_new(type, conf, text, sizeof(text));
    if (rk == NULL)
        die(text);
    return rk;
}

/* ---- Topics ----------------------------------------------------------------- */

static int ask_mock(const char *path, const char *name, const char *partitions)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    char answer[16] = "";

    (void)snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    if (connect(fd, (struct sockaddr *)&at, sizeof(at)) != 0)
        die("the mock does not answer");
    (void)dprintf(fd, "topic %s %s\n", name, partitions);
    if (read(fd, answer, sizeof(answer) - 1) < 2)
        return 1;
    return strncmp(answer, "ok", 2) != 0;
}

/* As many as a cluster of its size can keep: that the brokers choose came with 2.4. */
static int replicas(rd_kafka_t *rk)
{
    const struct rd_kafka_metadata *md;
    int n;

    if (rd_kafka_metadata(rk, 0, NULL, &md, WAIT_MS) !=
        RD_KAFKA_RESP_ERR_NO_ERROR)
        die("no broker answers");
    n = md->broker_cnt < 3 ? md->broker_cnt : 3;
    rd_kafka_metadata_destroy(md);
    return n;
}

static int made(rd_kafka_event_t *event)
{
    const rd_kafka_topic_result_t **all;
    size_t n = 0;

    if (event == NULL || rd_kafka_event_error(event) != 0)
        return 0;
    all = rd_kafka_CreateTopics_result_topics(
        rd_kafka_event_CreateTopics_result(event), &n);
    if (n == 1 && rd_kafka_topic_result_error(all[0]) == 0)
        return 1;
    (void)fprintf(stderr, "kafkatool: %s\n",
                  n == 1 ? rd_kafka_topic_result_error_string(all[0]) : "?");
    return 0;
}

static int make_topic(const char *hosts, const char *name,
                      const char *partitions)
{
    const char *mock = getenv("ONCE_TEST_KAFKA_CONTROL");
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    rd_kafka_NewTopic_t *topic;
    char text[256];

    if (mock != NULL)
        return ask_mock(mock, name, partitions);
    rk = client(RD_KAFKA_PRODUCER, hosts, NULL);
    queue = rd_kafka_queue_new(rk);
    topic = rd_kafka_NewTopic_new(name, (int)strtol(partitions, NULL, 10),
                                  replicas(rk), text, sizeof(text));
    /* A broker's default is 1,000,012 with all that belongs to a record. */
    (void)rd_kafka_NewTopic_set_config(topic, "max.message.bytes", "2000000");
    rd_kafka_CreateTopics(rk, &topic, 1, NULL, queue);
    return !made(rd_kafka_queue_poll(queue, WAIT_MS));
}

/* ---- Records ---------------------------------------------------------------- */

/* %XX in place; the size. */
static size_t decode(char *text)
{
    char *to = text, hex[3] = "";
    size_t n = 0;

    for (; *text != '\0'; n++) {
        if (*text == '%' && isxdigit((unsigned char)text[1]) &&
            isxdigit((unsigned char)text[2])) {
            memcpy(hex, text + 1, 2);
            to[n] = (char)strtoul(hex, NULL, 16);
            text += 3;
        } else {
            to[n] = *text++;
        }
    }
    to[n] = '\0';
    return n;
}

static int failed;

static void on_report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *user)
{
    (void)rk;
    (void)user;
    failed |= m->err != RD_KAFKA_RESP_ERR_NO_ERROR;
}

struct part {
    void *data;
    size_t size;
};

static int produce(rd_kafka_t *rk, const char *topic, struct part key,
                   struct part body, rd_kafka_headers_t *headers)
{
    const rd_kafka_vu_t parts[] = {
        {.vtype = RD_KAFKA_VTYPE_TOPIC, .u.cstr = topic},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_KEY, .u.mem = {key.data, key.size}},
        {.vtype = RD_KAFKA_VTYPE_VALUE, .u.mem = {body.data, body.size}},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
    };

    return rd_kafka_produceva(rk, parts, sizeof(parts) / sizeof(parts[0])) !=
           NULL;
}

static void put(rd_kafka_t *rk, const char *topic, char **words, int n)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(8);
    char *key = NULL, *body = NULL, *value;
    size_t n_key = 0, n_body = 0;
    int i;

    for (i = 0; i < n; i++) {
        if (strncmp(words[i], "key=", 4) == 0) {
            key = words[i] + 4;
            n_key = decode(key);
        } else if (strncmp(words[i], "body=", 5) == 0) {
            body = words[i] + 5;
            n_body = decode(body);
        } else if (strncmp(words[i], "head:", 5) == 0 &&
                   (value = strchr(words[i], '=')) != NULL) {
            *value++ = '\0';
            (void)rd_kafka_header_add(headers, words[i] + 5, -1, value,
                                      (ssize_t)decode(value));
        } else {
            die("a word is not understood");
        }
    }
    failed |= produce(rk, topic, (struct part){key, n_key},
                      (struct part){body, n_body}, headers);
}

static rd_kafka_t *producer(const char *hosts)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char text[256];
    rd_kafka_t *rk;

    (void)rd_kafka_conf_set(conf, "bootstrap.servers", hosts, NULL, 0);
    (void)rd_kafka_conf_set(conf, "linger.ms", "0", NULL, 0);
    (void)rd_kafka_conf_set(conf, "log_level", "0", NULL, 0);
    (void)rd_kafka_conf_set(conf, "partitioner", "murmur2_random", NULL, 0);
    rd_kafka_conf_set_dr_msg_cb(conf, on_report);
    rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    if (rk == NULL)
        die(text);
    return rk;
}

static int feed(const char *hosts, const char *topic)
{
    rd_kafka_t *rk = producer(hosts);
    char *line = NULL, *words[32], *save, *word;
    size_t room = 0;
    int n;

    while (getline(&line, &room, stdin) > 0) {
        for (n = 0, word = strtok_r(line, " \n", &save); word != NULL && n < 32;
             word = strtok_r(NULL, " \n", &save))
            words[n++] = word;
        put(rk, topic, words, n);
        (void)rd_kafka_flush(rk, WAIT_MS);
        (void)printf("%s\n", failed ? "error" : "ok");
        (void)fflush(stdout);
        failed = 0;
    }
    free(line);
    return 0;
}

static void print(const void *bytes, size_t n)
{
    const unsigned char *at = bytes;

    (void)putchar(' ');
    if (at == NULL)
        (void)putchar('-');
    for (; at != NULL && n > 0; n--, at++)
        if (isalnum(*at) || strchr("._/:{}\",", *at) != NULL)
            (void)putchar(*at);
        else
            (void)printf("%%%02X", *at);
}

static void show(const rd_kafka_message_t *m)
{
    rd_kafka_headers_t *headers = NULL;
    const void *id = NULL;
    size_t n_id = 0;

    if (rd_kafka_message_headers(m, &headers) == RD_KAFKA_RESP_ERR_NO_ERROR)
        (void)rd_kafka_header_get_last(headers, "Once-Id", &id, &n_id);
    (void)printf("%d %lld", (int)m->partition, (long long)m->offset);
    print(id, n_id);
    print(m->key, m->key_len);
    print(m->payload, m->len);
    (void)putchar('\n');
    (void)fflush(stdout);
}

static int follow(const char *hosts, const char *topic, long most)
{
    rd_kafka_t *rk = client(RD_KAFKA_CONSUMER, hosts, "follow");
    const struct rd_kafka_metadata *md = NULL;
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(8);
    rd_kafka_message_t *m;
    int64_t low, high, there = 0;
    int i;

    if (rd_kafka_metadata(rk, 0, rkt, &md, WAIT_MS) != 0)
        die("no broker answers");
    for (i = 0; i < md->topics[0].partition_cnt; i++)
        rd_kafka_topic_partition_list_add(list, topic, i)->offset =
            RD_KAFKA_OFFSET_BEGINNING;
    for (i = 0; most == ALL_NOW && i < list->cnt; i++) {
        if (rd_kafka_query_watermark_offsets(rk, topic, i, &low, &high,
                                             WAIT_MS) != 0)
            die("the offsets are not known");
        there += high - low;
    }
    if (most == ALL_NOW)
        most = there;
    (void)rd_kafka_assign(rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    while (most != 0) {
        m = rd_kafka_consumer_poll(rk, 100);
        if (m == NULL && (ferror(stdout) || getppid() == 1))
            return 0;
        if (m != NULL && m->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
            show(m);
            most--;
        }
        if (m != NULL)
            rd_kafka_message_destroy(m);
    }
    return 0;
}

static int committed(const char *hosts, char **words)
{
    rd_kafka_t *rk = client(RD_KAFKA_CONSUMER, hosts, words[1]);
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_t *at = rd_kafka_topic_partition_list_add(
        list, words[0], (int)strtol(words[2], NULL, 10));

    if (rd_kafka_committed(rk, list, WAIT_MS) != 0 || at->err != 0)
        die("the offset is not known");
    (void)printf("%lld %.*s\n", at->offset >= 0 ? (long long)at->offset : -1LL,
                 (int)at->metadata_size, (const char *)at->metadata);
    rd_kafka_topic_partition_list_destroy(list);
    return 0;
}

static int commit(const char *hosts, char **words)
{
    rd_kafka_t *rk = client(RD_KAFKA_CONSUMER, hosts, words[1]);
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(1);
    int bad;

    rd_kafka_topic_partition_list_add(list, words[0],
                                      (int)strtol(words[2], NULL, 10))
        ->offset = strtoll(words[3], NULL, 10);
    bad = rd_kafka_commit(rk, list, 0) != 0 || list->elems[0].err != 0;
    rd_kafka_topic_partition_list_destroy(list);
    return bad;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 3 ? argv[2] : "";

    if (strcmp(verb, "topic") == 0 && argc == 5)
        return make_topic(argv[1], argv[3], argv[4]);
    if (strcmp(verb, "feed") == 0)
        return feed(argv[1], argv[3]);
    if (strcmp(verb, "follow") == 0)
        return follow(argv[1], argv[3],
                      argc > 4 ? strtol(argv[4], NULL, 10) : -1);
    if (strcmp(verb, "dump") == 0)
        return follow(argv[1], argv[3], ALL_NOW);
    if (strcmp(verb, "committed") == 0 && argc == 6)
        return committed(argv[1], argv + 3);
    if (strcmp(verb, "commit") == 0 && argc == 7)
        return commit(argv[1], argv + 3);
    if (strcmp(verb, "put") == 0) {
        rd_kafka_t *rk = producer(argv[1]);

        put(rk, argv[3], argv + 4, argc - 4);
        (void)rd_kafka_flush(rk, WAIT_MS);
        return failed;
    }
    (void)fprintf(stderr, "usage: kafkatool HOSTS VERB TOPIC ...\n");
    return 2;
}
