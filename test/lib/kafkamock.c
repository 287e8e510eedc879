/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kafkamock.c - librdkafka's own mock cluster of Kafka, as a process of its own.
 *
 *    kafkamock CONTROL PORT[=OTHER] ...    a broker on each port of 127.0.0.1;
 *                                          it listens on OTHER, and says PORT
 *
 * CONTROL is a unix socket that takes one line and answers one, "ok" or "error":
 *
 *    topic NAME PARTITIONS       makes a topic
 *    down ID | up ID             a broker, by its number from 1; 0: all. A broker
 *                                that is down has no connections, and its
 *                                partitions go to those that are up
 *    errors API CODE ...         answers to the next requests of this kind
 *    clear API                   no more of these
 *    late ID API CODE MS         one answer of this broker, late
 *    state TOPIC CODE            what is said of a topic
 *    coordinator GROUP ID        who coordinates this group
 *
 * What it is not: its log is in memory, so it ends with the process; a partition
 * keeps 100,000 requests and 5 MB, and forgets what came first; repeats of an
 * idempotent producer are written again, as only transactions are checked; it
 * has no TLS, no users, no rights, no limits of size; a commit is not checked
 * against what the member was assigned. So it proves what a client does, and
 * nothing about what real brokers keep.
 */
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { BROKERS_MAX = 8, TOPICS_MAX = 1024, CODES_MAX = 256 };

static uint16_t ports[BROKERS_MAX], others[BROKERS_MAX];
static int n_ports, n_bound;

static rd_kafka_mock_cluster_t *cluster;
static int is_down[BROKERS_MAX + 1];
static struct {
    char name[256];
    int partitions;
} topics[TOPICS_MAX];
static int n_topics;

/*
 * The library binds its brokers to ports that the kernel draws, and asks for
 * them: instead of these they get ours, in their order, so that a client finds
 * them again, and learns the port of what stands before them.
 */
static uint16_t other_of(uint16_t port)
{
    int i = 0;

    if (port == 0 && n_bound < n_ports)
        return others[n_bound++];
    while (i < n_ports && ports[i] != port)
        i++;
    return i < n_ports ? others[i] : port;
}

int getsockname(int fd, __SOCKADDR_ARG at, socklen_t *size)
{
    int rc = (int)syscall(SYS_getsockname, fd, at.__sockaddr__, size), i;
    struct sockaddr_in in;

    if (rc != 0 || at.__sockaddr__->sa_family != AF_INET || *size != sizeof(in))
        return rc;
    memcpy(&in, at.__sockaddr__, sizeof(in));
    for (i = 0; i < n_ports; i++)
        if (others[i] == ntohs(in.sin_port)) {
            in.sin_port = htons(ports[i]);
            break;
        }
    memcpy(at.__sockaddr__, &in, sizeof(in));
    return 0;
}

int bind(int fd, __CONST_SOCKADDR_ARG at, socklen_t size)
{
    const struct sockaddr *addr = at.__sockaddr__;
    struct sockaddr_in in;

    if (addr->sa_family == AF_INET && size == sizeof(in)) {
        memcpy(&in, addr, sizeof(in));
        in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        in.sin_port = htons(other_of(ntohs(in.sin_port)));
        addr = (const struct sockaddr *)&in;
    }
    return (int)syscall(SYS_bind, fd, addr, size);
}

/*
 * A broker of Kafka sends each answer at once (TCP_NODELAY). The library's does not:
 * an answer waits until the client has acknowledged the one before, for which a
 * client that has nothing to send takes 40 ms.
 */
int accept(int fd, __SOCKADDR_ARG at, socklen_t *__restrict size)
{
    int on = 1, of = (int)syscall(SYS_accept, fd, at.__sockaddr__, size);

    if (of >= 0 && at.__sockaddr__ != NULL)
        (void)setsockopt(of, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return of;
}

static int number(const char *word)
{
    return (int)strtol(word, NULL, 10);
}

/* ---- Commands ------------------------------------------------------------- */

/* The n-th of those that are up; 0: none is. */
static int broker_up(int n)
{
    int id, up = 0;

    for (id = 1; id <= n_ports; id++)
        up += !is_down[id];
    if (up == 0)
        return 0;
    n %= up;
    for (id = 1; id <= n_ports; id++)
        if (!is_down[id] && n-- == 0)
            return id;
    return 0;
}

static void set_leaders(void)
{
    int t, p, id;

    for (t = 0; t < n_topics; t++)
        for (p = 0; p < topics[t].partitions; p++) {
            id = broker_up(p);
            if (id != 0)
                (void)rd_kafka_mock_partition_set_leader(cluster,
                                                         topics[t].name, p, id);
        }
}

static int do_topic(char **words, int n)
{
    if (n != 3 || n_topics == TOPICS_MAX)
        return 0;
    (void)snprintf(topics[n_topics].name, sizeof(topics[0].name), "%s",
                   words[1]);
    topics[n_topics].partitions = number(words[2]);
    if (rd_kafka_mock_topic_create(cluster, words[1], number(words[2]),
                                   n_ports) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return 0;
    n_topics++;
    set_leaders();
    return 1;
}

static int set_down(int id, int down)
{
    rd_kafka_resp_err_t rc = RD_KAFKA_RESP_ERR_NO_ERROR;

    if (is_down[id] != down)
        rc = down ? rd_kafka_mock_broker_set_down(cluster, id)
                  : rd_kafka_mock_broker_set_up(cluster, id);
    is_down[id] = down;
    return rc == RD_KAFKA_RESP_ERR_NO_ERROR;
}

static int do_down(char **words, int n)
{
    int id = n == 2 ? number(words[1]) : -1, i, good = id >= 0 && id <= n_ports;

    for (i = 1; i <= n_ports && good; i++)
        if (id == 0 || id == i)
            good = set_down(i, strcmp(words[0], "down") == 0);
    set_leaders();
    return good;
}

static int do_errors(char **words, int n)
{
    rd_kafka_resp_err_t codes[CODES_MAX];
    int i;

    for (i = 2; i < n; i++)
        codes[i - 2] = number(words[i]);
    if (n < 3)
        return 0;
    rd_kafka_mock_push_request_errors_array(cluster, (int16_t)number(words[1]),
                                            (size_t)n - 2, codes);
    return 1;
}

static int do_other(char **words, int n)
{
    if (strcmp(words[0], "clear") == 0 && n == 2)
        rd_kafka_mock_clear_request_errors(cluster, (int16_t)number(words[1]));
    else if (strcmp(words[0], "late") == 0 && n == 5)
        return rd_kafka_mock_broker_push_request_error_rtts(
                   cluster, number(words[1]), (int16_t)number(words[2]), 1,
                   number(words[3]),
                   number(words[4])) == RD_KAFKA_RESP_ERR_NO_ERROR;
    else if (strcmp(words[0], "state") == 0 && n == 3)
        rd_kafka_mock_topic_set_error(cluster, words[1], number(words[2]));
    else if (strcmp(words[0], "coordinator") == 0 && n == 3)
        return rd_kafka_mock_coordinator_set(cluster, "group", words[1],
                                             number(words[2])) ==
               RD_KAFKA_RESP_ERR_NO_ERROR;
    else
        return strcmp(words[0], "ping") == 0;
    return 1;
}

static int obey(char *line)
{
    char *words[CODES_MAX], *save = NULL, *word;
    int n = 0;

    for (word = strtok_r(line, " \n", &save); word != NULL && n < CODES_MAX;
         word = strtok_r(NULL, " \n", &save))
        words[n++] = word;
    if (n == 0)
        return 0;
    if (strcmp(words[0], "topic") == 0)
        return do_topic(words, n);
    if (strcmp(words[0], "down") == 0 || strcmp(words[0], "up") == 0)
        return do_down(words, n);
    if (strcmp(words[0], "errors") == 0)
        return do_errors(words, n);
    return do_other(words, n);
}

/* ---- The socket ------------------------------------------------------------ */

static int listen_at(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    (void)snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    (void)unlink(path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 ||
        listen(fd, 16) != 0) {
        perror(path);
        exit(1);
    }
    return fd;
}

static void attend(int fd)
{
    char line[4096];
    FILE *f = fdopen(fd, "r+");

    if (f == NULL)
        return;
    while (fgets(line, sizeof(line), f) != NULL) {
        (void)fseek(f, 0, SEEK_CUR);
        (void)fputs(obey(line) ? "ok\n" : "error\n", f);
        (void)fflush(f);
    }
    (void)fclose(f);
}

int main(int argc, char **argv)
{
    rd_kafka_t *rk;
    char text[256];
    int fd, i;

    if (argc < 3 || argc - 2 > BROKERS_MAX) {
        (void)fprintf(stderr, "usage: kafkamock CONTROL PORT [PORT ...]\n");
        return 2;
    }
    for (i = 2; i < argc; i++) {
        const char *other = strchr(argv[i], '=');

        ports[n_ports] = (uint16_t)number(argv[i]);
        others[n_ports] =
            other == NULL ? ports[n_ports] : (uint16_t)number(other + 1);
        n_ports++;
    }
    rk = rd_kafka_new(RD_KAFKA_PRODUCER, NULL, text, sizeof(text));
    cluster = rk == NULL ? NULL : rd_kafka_mock_cluster_new(rk, n_ports);
    if (cluster == NULL) {
        (void)fprintf(stderr, "kafkamock: no cluster\n");
        return 1;
    }
    (void)printf("%s\n", rd_kafka_mock_cluster_bootstraps(cluster));
    (void)fflush(stdout);
    for (i = listen_at(argv[1]); (fd = accept(i, NULL, NULL)) >= 0;)
        attend(fd);
    return 0;
}
