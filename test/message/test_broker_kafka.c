/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_broker_kafka.c - what only the driver of Kafka has.
 *
 *    with-server kafka -- test_broker_kafka [sending | receiving | group | TEST]
 *    with-server kafka-tls -- test_broker_kafka tls
 *
 * The server is librdkafka's mock, which speaks the protocol and answers with
 * the errors that it is told to; lib/kafkamock.c says what it is not. With
 * ONCE_KAFKA=HOST:PORT the tests that inject nothing run on a real cluster. What
 * the server has is asked of it by lib/kafkatool.c, with no code of the driver.
 */
#include "broker_kit.h"
#include "base/steady.h"
#include "messages/broker/kafka/kafka.h"
#include "patience.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    PRODUCE = 0, /* requests, by their number in the protocol */
    FETCH = 1,
    COMMIT = 8,
    GET_OFFSETS = 9,
    FIND_COORDINATOR = 10,
    JOIN = 11,
    PRODUCER_ID = 22,
    WAIT_MS = 30000,
    SESSION_MS = 6000, /* the least that brokers take unless they are told */
    PARTITIONS = 16
};

static char topic[40];

extern const struct once__broker_ops once__broker_kafka;
const struct once__broker_ops *__wrap_once__broker_find(const char *url,
                                                        once_error *err);

/* A program of test/mutants has no other driver. */
const struct once__broker_ops *__wrap_once__broker_find(const char *url,
                                                        once_error *err)
{
    (void)url;
    (void)err;
    return &once__broker_kafka;
}

/* As the library of 2.0 to 2.3 at least, when brokers have gone and come back. */
static atomic_int never_ends;
void __real_rd_kafka_destroy_flags(rd_kafka_t *rk, int flags);
void __wrap_rd_kafka_destroy_flags(rd_kafka_t *rk, int flags);

void __wrap_rd_kafka_destroy_flags(rd_kafka_t *rk, int flags)
{
    int i;

    for (i = 0; i < WAIT_MS / 10 && atomic_load(&never_ends); i++)
        once__sleep_ms(10);
    __real_rd_kafka_destroy_flags(rk, flags);
}

/* ---- The server, without the driver ---------------------------------------- */

static FILE *tool(const char *words)
{
    char command[1024];

    (void)snprintf(command, sizeof(command), "%s %s %s",
                   getenv("ONCE_TEST_KAFKA_TOOL"),
                   getenv("ONCE_TEST_KAFKA_HOSTS"), words);
    return popen(command, "r");
}

ONCE_PRINTF(1, 2)
static int run_tool(const char *format, ...)
{
    char words[512];
    va_list args;
    FILE *f;

    va_start(args, format);
    (void)vsnprintf(words, sizeof(words), format, args);
    va_end(args);
    f = tool(words);
    return f != NULL && pclose(f) == 0;
}

static void fresh(int partitions)
{
    static int number;

    (void)snprintf(topic, sizeof(topic), "only.%d.%d", (int)getpid(), ++number);
    T_OK(run_tool("topic %s %d", topic, partitions));
}

/* The offset that the group of the topic's name has of a partition; -1: none, -2: unknown. */
static long long committed(int partition)
{
    char words[128];
    long long offset = -2;
    FILE *f;

    (void)snprintf(words, sizeof(words), "committed %s %s %d", topic, topic,
                   partition);
    f = tool(words);
    if (f == NULL || fscanf(f, "%lld", &offset) != 1)
        offset = -2;
    if (f != NULL)
        (void)pclose(f);
    return offset;
}

/* The key of the first record, as the server has it. */
static void first_key(char out[64])
{
    char words[128];
    FILE *f;

    out[0] = '\0';
    (void)snprintf(words, sizeof(words), "follow %s 1", topic);
    f = tool(words);
    if (f == NULL || fscanf(f, "%*d %*d %*s %63s", out) != 1)
        out[0] = '\0';
    if (f != NULL)
        (void)pclose(f);
}

/* The next `n` requests of this kind are answered with `code`. */
static void inject(int request, int code, int n)
{
    char line[1024];
    int used = snprintf(line, sizeof(line), "kafka errors %d", request);

    for (; n > 0; n--)
        used += snprintf(line + used, sizeof(line) - (size_t)used, " %d", code);
    T_OK(kit_ctl("ask", line));
}

static void clear(int request)
{
    char line[64];

    (void)snprintf(line, sizeof(line), "kafka clear %d", request);
    T_OK(kit_ctl("ask", line));
}

/* ---- The driver -------------------------------------------------------------- */

static void url_of(const char *more, char *out, size_t size)
{
    (void)snprintf(out, size, "%s/%s%s", getenv("ONCE_TEST_URL"), topic, more);
}

/* Patient for `ms` only, so that what is repeated in vain ends soon. */
static struct once__broker *sender(uint32_t ms, int hold)
{
    struct once__broker_options o = kit_options(NULL, 0);
    char url[512];

    o.timeout_ms = ms;
    o.hold = hold;
    url_of("", url, sizeof(url));
    return kit_open(url, &o);
}

static struct once__broker *receiver(uint32_t prefetch)
{
    struct once__broker_options o = kit_options("billing", prefetch);
    char url[512], more[128];

    (void)snprintf(more, sizeof(more), "?group=%s&session_ms=%d", topic,
                   SESSION_MS);
    url_of(more, url, sizeof(url));
    return kit_open(url, &o);
}

static int sent(struct once__broker *b, const char *id, const char *key)
{
    once_message m = kit_message(id, key, "body", 4);
    struct kit_ends ends = {0};

    (void)!b->ops->send(b, &m, 0, NULL);
    T_EQ(kit_collect(b, &ends, 1, WAIT_MS), 1);
    T_EQ(ends.n[0], 1);
    if (ends.end[0] != ONCE__END_TAKEN)
        printf("#   %d, %d: %s\n", ends.end[0], ends.status[0], ends.why[0]);
    return ends.end[0];
}

/* `n` messages "ID-0" and so on, with keys "k0" and so on. */
static void fill(int n)
{
    struct once__broker *b = sender(5000, 0);
    char id[32], key[32];
    int i;

    for (i = 0; i < n; i++) {
        (void)snprintf(id, sizeof(id), "id-%d", i);
        (void)snprintf(key, sizeof(key), "k%d", i);
        T_EQ(sent(b, id, key), ONCE__END_TAKEN);
    }
    b->ops->close(b);
}

static struct once__delivery *next(struct once__broker *b)
{
    struct once__delivery *d = NULL;
    int i;

    for (i = 0; i < WAIT_MS / 500 && d == NULL; i++)
        if (b->ops->receive(b, 500, &d, NULL) != ONCE_OK)
            return NULL;
    return d;
}

static int none(struct once__broker *b)
{
    struct once__delivery *d = NULL;

    return b->ops->receive(b, 500, &d, NULL) == ONCE_OK && d == NULL;
}

static int number_of(const struct once__delivery *d)
{
    return d->m.id == NULL ? -1 : (int)strtol(d->m.id + 3, NULL, 10);
}

static int taken(struct once__broker *b, struct once__delivery *d)
{
    return b->ops->ack(b, d, ONCE__ACK_TAKEN, NULL);
}

static void sleep_ms(long ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    (void)nanosleep(&t, NULL);
}

/* ---- Sending ------------------------------------------------------------------ */

static void each_answer_is_its_proof(void)
{
    static const struct {
        int code, n, end;
    } cases[] = {
        {29, 1, ONCE__END_REFUSED},    /* no right to the topic */
        {44, 1, ONCE__END_REFUSED},    /* against a policy */
        {19, 100, ONCE__END_AWAY},     /* too few replicas: not written */
        {3, 100, ONCE__END_AWAY},      /* the topic is gone */
        {20, 100, ONCE__END_SILENT},   /* too few replicas: written */
        {7, 100, ONCE__END_SILENT},    /* the replicas took too long */
        {-195, 100, ONCE__END_SILENT}, /* the connection is cut */
        {45, 1, ONCE__END_SILENT},     /* a number is missing: fatal */
        {59, 1, ONCE__END_TAKEN},      /* the numbers are forgotten: new ones */
        {7, 1, ONCE__END_TAKEN},       /* and is repeated */
        {6, 1, ONCE__END_TAKEN},       /* another broker leads */
        {46, 1, ONCE__END_TAKEN},      /* it was there */
    };
    size_t i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct once__broker *b;
        int end;

        fresh(1);
        b = sender(1500, 0);
        inject(PRODUCE, cases[i].code, cases[i].n);
        end = sent(b, "id-0", NULL);
        if (!T_OK(end == cases[i].end))
            printf("#   error %d ends as %d\n", cases[i].code, end);
        clear(PRODUCE);
        /* Whatever it was: the next one goes. */
        T_OK(kit_connect(b, WAIT_MS));
        end = sent(b, "id-1", NULL);
        if (!T_OK(end == ONCE__END_TAKEN))
            printf("#   after error %d the next ends as %d\n", cases[i].code,
                   end);
        b->ops->close(b);
    }
}

static void what_is_too_large_is_found_among_others(void)
{
    struct once__broker *b;
    once_message m[3] = {kit_message("a", NULL, "1", 1),
                         kit_message("b", NULL, "2", 1),
                         kit_message("c", NULL, "3", 1)};
    struct kit_ends ends = {0};
    size_t i;

    fresh(1);
    b = sender(5000, 0);
    inject(PRODUCE, 10, 3); /* in one request, or in up to three */
    for (i = 0; i < 3; i++)
        T_EQ(b->ops->send(b, &m[i], i, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 3, WAIT_MS), 3);
    for (i = 0; i < 3; i++)
        T_EQ(ends.end[i], ONCE__END_AWAY);
    clear(PRODUCE);
    inject(PRODUCE, 10, 1);
    memset(&ends, 0, sizeof(ends));
    for (i = 0; i < 3; i++)
        T_EQ(b->ops->send(b, &m[i], i, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 3, WAIT_MS), 3);
    T_EQ(ends.end[0], ONCE__END_REJECTED);
    T_EQ(ends.end[1], ONCE__END_TAKEN);
    T_EQ(ends.end[2], ONCE__END_TAKEN);
    b->ops->close(b);
}

/* The driver's own, where nothing else shows what it remembers. */
static struct once__kafka *inside(struct once__broker *b)
{
    return (struct once__kafka *)(void *)b;
}

/* "a" is refused once, and alone: the driver suspects it. */
static struct once__broker *sender_with_a_suspect(uint32_t ms)
{
    struct once__broker *b;

    fresh(1);
    b = sender(ms, 0);
    inject(PRODUCE, 10, 1);
    T_EQ(sent(b, "a", NULL), ONCE__END_AWAY);
    T_EQ(inside(b)->suspects.n, 1);
    return b;
}

static void who_is_taken_is_no_suspect(void)
{
    struct once__broker *b = sender_with_a_suspect(5000);

    T_EQ(sent(b, "a", NULL), ONCE__END_TAKEN);
    T_EQ(inside(b)->suspects.n, 0);
    b->ops->close(b);
}

/* Others may be in its request when the library repeats it. */
static void a_suspect_without_an_answer_is_alone_no_more(void)
{
    struct once__broker *b = sender_with_a_suspect(1500);
    once_message m = kit_message("a", NULL, "1", 1);
    struct once__flights *f = &inside(b)->flights;
    struct kit_ends ends = {0};
    const uint32_t *note;

    inject(PRODUCE, 7, 100);
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    note = once__flights_note(f, f->next - 1);
    T_OK(note == NULL || *note == 0);
    T_EQ(kit_collect(b, &ends, 1, WAIT_MS), 1);
    T_EQ(ends.end[0], ONCE__END_SILENT);
    clear(PRODUCE);
    b->ops->close(b);
}

static void after_a_fatal_error_the_next_is_unsent(void)
{
    struct once__broker *b;
    once_message m[2] = {kit_message("a", NULL, "1", 1),
                         kit_message("b", NULL, "2", 1)};
    struct kit_ends ends = {0};
    int i;

    fresh(1);
    b = sender(5000, 0);
    inject(PRODUCE, 45, 1);
    T_EQ(b->ops->send(b, &m[0], 0, NULL), ONCE_OK);
    /* The driver has not heard of it when the next is sent. */
    for (i = 0;
         i < WAIT_MS / 10 && rd_kafka_fatal_error(inside(b)->rk, NULL, 0) == 0;
         i++)
        sleep_ms(10);
    T_EQ(b->ops->send(b, &m[1], 1, NULL), ONCE_EAWAY);
    T_EQ(kit_collect(b, &ends, 2, WAIT_MS), 2);
    T_EQ(ends.end[0], ONCE__END_SILENT);
    T_EQ(ends.end[1], ONCE__END_UNSENT);
    b->ops->close(b);
}

static void a_large_one_is_alone_and_rejected_at_once(void)
{
    static char body[1100000];
    struct once__broker *b;
    once_message m = kit_message("large", NULL, body, sizeof(body));
    struct kit_ends ends = {0};

    fresh(1);
    b = sender(5000, 0);
    inject(PRODUCE, 10, 1);
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 1, WAIT_MS), 1);
    T_EQ(ends.end[0], ONCE__END_REJECTED);
    T_EQ(sent(b, "next", NULL), ONCE__END_TAKEN);
    b->ops->close(b);
}

/* What the library says of a message that it may have sent before is no proof
 * that it was not written. */
static void with_hold_a_lost_answer_is_in_doubt(void)
{
    static const struct {
        int code, n, end;
    } cases[] = {
        {6, 100, ONCE__END_SILENT},  /* the leader changes all the time */
        {19, 100, ONCE__END_SILENT}, /* the same for too few replicas */
        {-1, 1, ONCE__END_SILENT},   /* the broker does not know */
        {7, 1, ONCE__END_TAKEN},     /* repeated, under its number */
        {44, 1, ONCE__END_REFUSED},  /* said by a broker */
    };
    size_t i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct once__broker *b;
        int end;

        fresh(1);
        b = sender(1500, 1);
        inject(PRODUCE, cases[i].code, cases[i].n);
        end = sent(b, "id-0", NULL);
        if (!T_OK(end == cases[i].end))
            printf("#   error %d ends as %d\n", cases[i].code, end);
        clear(PRODUCE);
        b->ops->close(b);
    }
}

/* With hold, too, a broker can recognise what the library repeats. */
static void with_hold_a_producer_has_a_number(void)
{
    struct once__broker *b;

    fresh(1);
    inject(PRODUCER_ID, 31, 100);
    b = sender(1500, 1);
    T_OK(sent(b, "unnumbered", NULL) != ONCE__END_TAKEN);
    clear(PRODUCER_ID);
    b->ops->close(b);
}

/* Without a number for each record, a broker would not recognise a repeat. */
static void a_producer_has_a_number_or_sends_nothing(void)
{
    struct once__broker *b;

    fresh(1);
    inject(PRODUCER_ID, 31, 100);
    b = sender(1500, 0);
    T_OK(sent(b, "unnumbered", NULL) != ONCE__END_TAKEN);
    clear(PRODUCER_ID);
    T_OK(kit_connect(b, WAIT_MS));
    T_EQ(sent(b, "numbered", NULL), ONCE__END_TAKEN);
    b->ops->close(b);
}

/* What brokers before 2.8 ask for: a right of the cluster. */
static void who_may_not_number_is_told_so(void)
{
    once_message m = kit_message("a", NULL, "1", 1);
    struct kit_ends ends = {0};
    struct once__broker *b;
    once_error err = {0, ""};
    int i, rc = ONCE_OK;

    fresh(1);
    inject(PRODUCER_ID, 31, 100);
    b = sender(5000, 0);
    for (i = 0; i < WAIT_MS / 100 && rc == ONCE_OK; i++) {
        rc = b->ops->send(b, &m, 1, &err);
        if (rc == ONCE_OK)
            sleep_ms(100);
    }
    T_EQ(rc, ONCE_EAWAY);
    T_OK(strstr(err.text, "idempotent producer") != NULL);
    b->ops->close(b);
    b = sender(5000, 0);
    if (b->ops->send(b, &m, 1, &err) == ONCE_OK) {
        T_EQ(kit_collect(b, &ends, 1, WAIT_MS), 1);
        T_OK(strstr(ends.why[1], "idempotent producer") != NULL);
    }
    clear(PRODUCER_ID);
    b->ops->close(b);
}

/* A broker that has just started knows no topic, and not all brokers know a new one
 * at once. */
static void a_new_topic_is_waited_for(void)
{
    struct once__broker_options o = kit_options(NULL, 0);
    struct once__broker *b = NULL;
    char url[512], line[128];
    int status = -1;
    pid_t other;

    fresh(1);
    (void)snprintf(line, sizeof(line), "kafka state %s 3", topic);
    T_OK(kit_ctl("ask", line));
    other = fork();
    if (other == 0) {
        sleep_ms(300);
        (void)snprintf(line, sizeof(line), "kafka state %s 0", topic);
        _exit(kit_ctl("ask", line) ? 0 : 1);
    }
    url_of("", url, sizeof(url));
    T_EQ(once__broker_find(url, NULL)->open(url, &o, &b, NULL), ONCE_OK);
    T_EQ(b->ops->connect(b, NULL), ONCE_OK);
    T_EQ(waitpid(other, &status, 0), other);
    T_EQ(status, 0);
    T_EQ(sent(b, "a", NULL), ONCE__END_TAKEN);
    b->ops->close(b);
}

static void a_topic_is_never_made(void)
{
    struct once__broker_options o = kit_options(NULL, 0);
    struct once__broker *b = NULL;
    once_error err = {0};
    char url[512];
    int i;

    (void)snprintf(topic, sizeof(topic), "nobody.made.me");
    if (getenv("ONCE_KAFKA") == NULL) /* the mock cannot keep from making it */
        T_OK(kit_ctl("ask", "kafka state nobody.made.me 3"));
    url_of("", url, sizeof(url));
    T_EQ(once__broker_find(url, NULL)->open(url, &o, &b, &err), ONCE_OK);
    for (i = 0; i < 2; i++) {
        T_EQ(b->ops->connect(b, &err), ONCE_EOPEN);
        T_OK(strstr(err.text, topic) != NULL);
    }
    b->ops->close(b);
}

static void a_topic_that_is_refused_says_so(void)
{
    struct once__broker_options o = kit_options("billing", 1);
    struct once__broker *b = NULL;
    once_error err = {0};
    char url[512], line[128];

    fresh(1);
    (void)snprintf(line, sizeof(line), "kafka state %s 29", topic);
    T_OK(kit_ctl("ask", line));
    url_of("", url, sizeof(url));
    T_EQ(once__broker_find(url, NULL)->open(url, &o, &b, &err), ONCE_OK);
    T_EQ(b->ops->connect(b, &err), ONCE_EOPEN);
    T_OK(strstr(err.text, topic) != NULL);
    b->ops->close(b);
    fresh(1);
    inject(GET_OFFSETS, 30, 1);
    url_of("?group=g", url, sizeof(url));
    T_EQ(once__broker_find(url, NULL)->open(url, &o, &b, &err), ONCE_OK);
    T_EQ(b->ops->connect(b, &err), ONCE_EOPEN);
    T_OK(strstr(err.text, "group") != NULL);
    b->ops->close(b);
}

static void a_key_is_the_key_of_the_record(void)
{
    struct once__broker *b;
    char key[64];

    fresh(4);
    b = sender(5000, 0);
    T_EQ(sent(b, "keyed", "customer-7"), ONCE__END_TAKEN);
    b->ops->close(b);
    first_key(key);
    T_STR(key, "customer%2D7");
}

static void send_some(struct once__broker *b, int n, int keyed)
{
    struct kit_ends ends = {0};
    char id[32];
    int i;

    for (i = 0; i < n; i++) {
        once_message m;

        (void)snprintf(id, sizeof(id), "id-%d", i);
        m = kit_message(id, keyed ? id : NULL, "1", 1);
        T_EQ(b->ops->send(b, &m, (uint64_t)i, NULL), ONCE_OK);
    }
    T_EQ(kit_collect(b, &ends, (size_t)n, WAIT_MS), n);
}

/* How many partitions have records with a key, and how many have others. */
static void partitions_in_use(int *keyed, int *others)
{
    int with[PARTITIONS] = {0}, without[PARTITIONS] = {0}, i;
    char words[128], key[64];
    FILE *f;

    (void)snprintf(words, sizeof(words), "dump %s", topic);
    f = tool(words);
    while (f != NULL && fscanf(f, "%d %*s %*s %63s%*[^\n]", &i, key) == 2)
        (strcmp(key, "-") == 0 ? without : with)[i % PARTITIONS] = 1;
    if (f != NULL)
        (void)pclose(f);
    for (*keyed = *others = i = 0; i < PARTITIONS; i++) {
        *keyed += with[i];
        *others += without[i];
    }
}

/* A partition has a request of its own. The library keeps to one for 10 ms, and
 * this counts how many a time may have: on a machine that needs long to send
 * these it says less, and never what is not so. Before a partition has its broker
 * the library draws for each record, so records with a key go first. */
static void messages_without_a_key_share_a_partition(void)
{
    enum { N = 64, SHARED_MS = 10 };
    struct once__broker *b;
    int keyed, used;
    uint64_t took;

    fresh(PARTITIONS);
    b = sender(5000, 0);
    send_some(b, 2 * N, 1);
    took = once__steady_ms();
    send_some(b, N, 0);
    took = once__steady_ms() - took;
    b->ops->close(b);
    partitions_in_use(&keyed, &used);
    printf("#   %d partitions in %u ms\n", used, (unsigned)took);
    T_EQ(keyed, PARTITIONS);
    T_OK(used >= 1 && (uint64_t)used <= 2 + took / SHARED_MS);
}

/* ---- Receiving ------------------------------------------------------------------ */

static void a_message_without_id_has_its_place(void)
{
    struct once__broker *c;
    struct once__delivery *d;
    char place[64];
    int i;

    fresh(1);
    T_OK(run_tool("put %s body=a", topic));
    T_OK(run_tool("put %s body=", topic));
    c = receiver(1);
    for (i = 0; i < 2; i++) {
        d = next(c);
        if (!T_OK(d != NULL))
            break;
        (void)snprintf(place, sizeof(place), "%s/0/%d", topic, i);
        T_OK(d->flaw == NULL && d->m.id != NULL);
        T_STR(d->m.id == NULL ? "" : d->m.id, place);
        T_OK(d->m.key == NULL);
        T_EQ(d->m.body.size, i == 0);
        T_EQ(taken(c, d), ONCE_OK);
    }
    c->ops->close(c);
}

static void the_first_undone_is_committed(void)
{
    struct once__broker *c;
    struct once__delivery *d[3];
    int i;

    fresh(1);
    fill(3);
    c = receiver(3);
    for (i = 0; i < 3; i++) {
        d[i] = next(c);
        if (!T_OK(d[i] != NULL))
            return;
        T_EQ(number_of(d[i]), i);
    }
    T_EQ(committed(0), 0);
    T_EQ(taken(c, d[1]), ONCE_OK);
    T_EQ(committed(0), 0);
    T_EQ(taken(c, d[0]), ONCE_OK);
    T_EQ(committed(0), 2);
    T_EQ(c->ops->ack(c, d[2], ONCE__ACK_BACK, NULL), ONCE_OK);
    T_EQ(committed(0), 2);
    d[2] = next(c);
    if (T_OK(d[2] != NULL)) {
        T_EQ(number_of(d[2]), 2);
        T_EQ(d[2]->redelivered, 1);
        T_EQ(taken(c, d[2]), ONCE_OK);
    }
    T_EQ(committed(0), 3);
    c->ops->close(c);
}

/* Receives three, acknowledges the second and then, if told to, the first. */
static void die_with_three(int both)
{
    pid_t child = fork();
    int status = 0, i;

    if (child == 0) {
        struct once__broker *c = receiver(3);
        struct once__delivery *d[3];

        for (i = 0; i < 3; i++)
            d[i] = next(c);
        if (d[0] == NULL || d[1] == NULL || d[2] == NULL ||
            taken(c, d[1]) != ONCE_OK || (both && taken(c, d[0]) != ONCE_OK))
            _exit(1);
        (void)kill(getpid(), SIGKILL);
    }
    T_OK(child > 0 && waitpid(child, &status, 0) == child);
    T_OK(WIFSIGNALED(status));
}

static void who_is_killed_leaves_what_it_had(int both)
{
    struct once__broker *c;
    struct once__delivery *d;
    int first = both ? 2 : 0, i;

    fresh(1);
    fill(12);
    die_with_three(both);
    T_EQ(committed(0), first);
    c = receiver(3);
    for (i = first; i < 12; i++) {
        d = next(c);
        if (!T_OK(d != NULL))
            break;
        T_EQ(number_of(d), i);
        /* Of three that were out no more than four after them are suspected. */
        if (i < 3)
            T_EQ(d->redelivered, 1);
        if (i >= 7)
            T_EQ(d->redelivered, 0);
        T_EQ(taken(c, d), ONCE_OK);
    }
    T_EQ(committed(0), 12);
    c->ops->close(c);
}

static void a_kill_brings_all_from_the_first_undone(void)
{
    who_is_killed_leaves_what_it_had(0);
    who_is_killed_leaves_what_it_had(1);
}

static void an_orderly_end_leaves_no_suspicion(void)
{
    struct once__broker *c;
    struct once__delivery *d;

    fresh(1);
    fill(3);
    c = receiver(10);
    d = next(c);
    T_OK(d != NULL && taken(c, d) == ONCE_OK);
    d = next(c); /* out when it ends */
    T_OK(d != NULL);
    c->ops->close(c);
    c = receiver(10);
    d = next(c);
    if (T_OK(d != NULL)) {
        T_EQ(number_of(d), 1);
        T_EQ(d->redelivered, 1);
        T_EQ(taken(c, d), ONCE_OK);
    }
    d = next(c);
    if (T_OK(d != NULL)) {
        T_EQ(number_of(d), 2);
        T_EQ(d->redelivered, 0);
        T_EQ(taken(c, d), ONCE_OK);
    }
    c->ops->close(c);
}

/* What the library has to commit it would keep for a session. */
static void without_brokers_an_end_is_soon(void)
{
    const int session_ms = 60000;
    struct once__broker_options o = kit_options("billing", 10);
    struct once__broker *c;
    struct once__delivery *d, *none_left = NULL;
    char url[512], more[128];
    uint64_t began;
    int i;

    fresh(1);
    fill(3);
    (void)snprintf(more, sizeof(more), "?group=%s&session_ms=%d", topic,
                   session_ms);
    url_of(more, url, sizeof(url));
    c = kit_open(url, &o);
    d = next(c);
    T_OK(d != NULL && taken(c, d) == ONCE_OK);
    T_OK(kit_ctl("ask", "kafka down 0"));
    for (i = 0; i < WAIT_MS / 500; i++)
        if (c->ops->receive(c, 500, &none_left, NULL) != ONCE_OK)
            break;
    began = once__steady_ms();
    c->ops->close(c);
    T_OK(once__steady_ms() - began < patient_ms((uint64_t)session_ms / 2));
    T_OK(kit_ctl("ask", "kafka up 0"));
}

/* connect() or, where the group was slow to say it, receive() tells why nothing
 * comes. ONCE_OK: something came. */
static int why_nothing_comes(struct once__broker *c, once_error *err)
{
    uint64_t until = once__steady_ms() + patient_ms(WAIT_MS);
    struct once__delivery *d = NULL;
    int rc = c->ops->connect(c, err);

    while (rc == ONCE_OK && d == NULL && once__steady_ms() < until)
        rc = c->ops->receive(c, 500, &d, err);
    return rc;
}

/* By a broker's settings, or by its other members: nothing would ever come, so
 * connect() says it, each time until it is so no more. */
static void a_group_that_takes_no_member_says_why(void)
{
    static const struct {
        int code, rc;
        const char *says;
    } all[] = {{26, ONCE_EOPEN, "session_ms"},
               {23, ONCE_EOPEN, "roundrobin"},
               {81, ONCE_EAWAY, "as many members"}};
    struct once__broker_options o = kit_options("billing", 1);
    struct once__broker *c;
    once_error err;
    char url[512], more[80];
    size_t i;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        fresh(1);
        fill(1);
        inject(JOIN, all[i].code, 100);
        (void)snprintf(more, sizeof(more), "?group=%s", topic);
        url_of(more, url, sizeof(url));
        T_EQ(once__broker_find(url, NULL)->open(url, &o, &c, &err), ONCE_OK);
        T_OK(why_nothing_comes(c, &err) != ONCE_OK);
        T_OK(strstr(err.text, all[i].says) != NULL);
        T_EQ(c->ops->connect(c, &err), all[i].rc);
        T_OK(strstr(err.text, all[i].says) != NULL);
        clear(JOIN);
        T_OK(kit_connect(c, WAIT_MS));
        T_OK(next(c) != NULL);
        c->ops->close(c);
    }
}

/* A broker that does not say who coordinates the group, and one that lets us in
 * and hands out nothing. */
static void who_may_not_read_is_told_so(void)
{
    struct once__broker_options o = kit_options("billing", 1);
    struct once__broker *c;
    once_error err = {0, ""};
    char url[512], more[80];
    uint64_t until;
    int rc = ONCE_OK;

    fresh(1);
    fill(1);
    (void)snprintf(more, sizeof(more), "?group=%s", topic);
    url_of(more, url, sizeof(url));
    T_EQ(once__broker_find(url, NULL)->open(url, &o, &c, &err), ONCE_OK);
    inject(FIND_COORDINATOR, 30, 50);
    T_EQ(c->ops->connect(c, &err), ONCE_EOPEN);
    T_OK(strstr(err.text, "group") != NULL);
    clear(FIND_COORDINATOR);
    inject(FETCH, 29, 200);
    for (until = once__steady_ms() + patient_ms(2 * WAIT_MS);
         rc != ONCE_EOPEN && once__steady_ms() < until;)
        rc = why_nothing_comes(c, &err);
    T_EQ(rc, ONCE_EOPEN);
    T_OK(strstr(err.text, "topic") != NULL);
    clear(FETCH);
    T_EQ(c->ops->connect(c, &err), ONCE_OK);
    T_OK(next(c) != NULL);
    c->ops->close(c);
}

/* Nothing would come, and by its default the library would look five minutes later. */
static void a_topic_that_has_gone_is_missed(void)
{
    struct once__delivery *d = NULL;
    struct once__broker *c;
    once_error err = {0, ""};
    char line[128];
    uint64_t until;

    fresh(1);
    fill(2);
    c = receiver(10);
    d = next(c);
    T_OK(d != NULL && taken(c, d) == ONCE_OK);
    d = next(c);
    T_OK(d != NULL && taken(c, d) == ONCE_OK);
    (void)snprintf(line, sizeof(line), "kafka state %s 3", topic);
    T_OK(kit_ctl("ask", line));
    until = once__steady_ms() + patient_ms(2 * WAIT_MS);
    while (c->ops->receive(c, 500, &d, NULL) == ONCE_OK && T_OK(d == NULL) &&
           once__steady_ms() < until)
        ;
    T_EQ(c->ops->connect(c, &err), ONCE_EOPEN);
    T_OK(strstr(err.text, topic) != NULL);
    (void)snprintf(line, sizeof(line), "kafka state %s 0", topic);
    T_OK(kit_ctl("ask", line));
    T_OK(kit_connect(c, WAIT_MS));
    T_OK(run_tool("put %s head:Once-Id=late body=a", topic));
    d = next(c);
    T_OK(d != NULL && taken(c, d) == ONCE_OK);
    c->ops->close(c);
}

/* The topic may have been deleted and made again meanwhile, and then the offset is
 * another message's. The library was told that it is gone, and nobody else yet. */
static void what_is_done_after_the_connection_went_is_not_committed(void)
{
    struct once__delivery *d = NULL;
    struct once__broker *c;

    fresh(1);
    fill(1);
    c = receiver(10);
    d = next(c);
    T_OK(d != NULL);
    (void)pthread_mutex_lock(&inside(c)->lock);
    inside(c)->down = 1;
    (void)pthread_mutex_unlock(&inside(c)->lock);
    T_OK(d != NULL && taken(c, d) == ONCE_EAWAY);
    T_EQ(committed(0), 0);
    c->ops->close(c);
}

/* What the library does not end is left behind, and said to be. */
static void a_connection_that_never_ends_keeps_nobody(void)
{
    struct once__delivery *d;
    struct once__broker *c;
    uint64_t until;
    int i;

    fresh(1);
    fill(2);
    (void)kit_logged(NULL);
    c = receiver(10);
    for (i = 0; i < 2; i++) {
        d = next(c);
        T_OK(d != NULL && taken(c, d) == ONCE_OK);
    }
    atomic_store(&never_ends, 1);
    T_OK(kit_ctl("ask", "kafka down 0"));
    until = once__steady_ms() + patient_ms(WAIT_MS);
    while (c->ops->receive(c, 500, &d, NULL) == ONCE_OK && T_OK(d == NULL) &&
           once__steady_ms() < until)
        ;
    T_OK(kit_logged("does not end a connection"));
    T_OK(kit_ctl("ask", "kafka up 0"));
    T_OK(kit_connect(c, WAIT_MS));
    atomic_store(&never_ends, 0);
    T_OK(run_tool("put %s head:Once-Id=late body=a", topic));
    d = next(c);
    T_OK(d != NULL && taken(c, d) == ONCE_OK);
    c->ops->close(c);
}

enum { SHORT = 4, IN_SHORT = 12 };

/* Any program with the right to the group may commit it. */
static const char *const beyond[SHORT] = {"100", "100", "100",
                                          "9223372036854775807"};

/* The group is further than the log, as after a loss of the log's end. All
 * partitions begin over, for one new connection. */
static void what_a_shorter_log_has_is_not_passed_over(void)
{
    struct once__broker *c;
    struct once__delivery *d;
    int here[IN_SHORT] = {0}, i, tries, lost = 0;
    char text[80];

    fresh(SHORT);
    fill(IN_SHORT);
    for (i = 0; i < SHORT; i++)
        T_OK(run_tool("commit %s %s %d %s", topic, topic, i, beyond[i]));
    (void)kit_logged(NULL);
    c = receiver(3);
    for (i = 0; i < IN_SHORT; i++) {
        for (d = NULL, tries = 0; d == NULL && tries < WAIT_MS / 500; tries++)
            if (c->ops->receive(c, 500, &d, NULL) != ONCE_OK) {
                lost++;
                T_OK(kit_connect(c, WAIT_MS));
            }
        if (!T_OK(d != NULL))
            break;
        if (T_OK(number_of(d) >= 0 && number_of(d) < IN_SHORT))
            here[number_of(d)]++;
        T_EQ(d->redelivered, 1);
        T_EQ(taken(c, d), ONCE_OK);
    }
    for (i = 0; i < IN_SHORT; i++)
        T_EQ(here[i], 1);
    for (i = 0; i < SHORT; i++) {
        (void)snprintf(text, sizeof(text), "partition %d has no offset %.3s", i,
                       i < SHORT - 1 ? beyond[i] : "922");
        T_OK(kit_logged(text));
    }
    T_EQ(lost, 1);
    c->ops->close(c);
}

static void an_answer_to_a_commit_is_heard(void)
{
    static const struct {
        int code, n, rc;
    } cases[] = {
        {27, 1, ONCE_OK}, /* the group changes: asked again */
        {14, 1, ONCE_OK}, /* the coordinator loads */
        {28, 1, ONCE_EAWAY}, {30, 1, ONCE_EAWAY}, /* no right to the group */
        {-195, 1, ONCE_OK}, /* cut: another connection is asked */
    };
    size_t i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct once__broker *c;
        struct once__delivery *d;
        int rc;

        fresh(1);
        fill(1);
        c = receiver(1);
        d = next(c);
        if (!T_OK(d != NULL))
            return;
        inject(COMMIT, cases[i].code, cases[i].n);
        rc = taken(c, d);
        if (!T_OK(rc == cases[i].rc))
            printf("#   error %d is answered with %d\n", cases[i].code, rc);
        clear(COMMIT);
        T_OK(rc != ONCE_OK || committed(0) == 1);
        c->ops->close(c);
    }
}

/* All that `c` is given within a while, acknowledged; by number. */
static void take_all(struct once__broker *c, int *here, int n)
{
    struct once__delivery *d;
    int i, quiet = 0;

    for (i = 0; i < 400 && quiet < 40; i++) { /* a round of the group is long */
        d = NULL;
        if (c->ops->receive(c, 250, &d, NULL) != ONCE_OK) {
            T_OK(kit_connect(c, WAIT_MS));
            continue;
        }
        quiet = d == NULL ? quiet + 1 : 0;
        if (d == NULL)
            continue;
        if (T_OK(number_of(d) >= 0 && number_of(d) < n))
            here[number_of(d)]++;
        (void)!taken(c, d);
    }
}

enum { SHARED = 40 };

/* When the second comes, all is taken from the first, and both get their part. */
static void what_is_taken_away_is_not_committed(void)
{
    struct once__broker *a, *b;
    struct once__delivery *d[SHARED], *other;
    int here[SHARED] = {0}, moved = -1, i, lost = 0;

    fresh(4);
    fill(SHARED);
    a = receiver(SHARED);
    for (i = 0; i < SHARED; i++) {
        d[i] = next(a);
        if (!T_OK(d[i] != NULL))
            return;
    }
    b = receiver(1);
    other = next(b); /* while the first is busy: its thread gives all away */
    if (T_OK(other != NULL)) {
        moved = number_of(other);
        T_EQ(other->redelivered, 1);
    }
    for (i = 0; i < SHARED; i++)
        lost += taken(a, d[i]) == ONCE_EAWAY;
    T_EQ(lost, SHARED);
    /* What it had no right to acknowledge is all there again, for either. */
    if (other != NULL) {
        here[moved]++;
        T_EQ(taken(b, other), ONCE_OK);
    }
    take_all(b, here, SHARED);
    take_all(a, here, SHARED);
    for (i = 0; i < SHARED; i++)
        T_EQ(here[i], 1);
    a->ops->close(a);
    b->ops->close(b);
}

static void members_come_and_go_and_all_is_done(void)
{
    struct once__broker *c[3] = {NULL, NULL, NULL};
    int here[SHARED] = {0}, i, round;

    fresh(4);
    fill(SHARED);
    c[0] = receiver(2);
    for (round = 0; round < 6; round++) {
        int k = 1 + round % 2;
        struct once__delivery *d = NULL;

        if (c[k] == NULL) {
            c[k] = receiver(2);
        } else {
            c[k]->ops->close(c[k]);
            c[k] = NULL;
        }
        for (i = 0; i < 12; i++) {
            k = i % 3;
            d = NULL;
            if (c[k] == NULL)
                continue;
            if (c[k]->ops->receive(c[k], 100, &d, NULL) != ONCE_OK) {
                T_OK(kit_connect(c[k], WAIT_MS));
                continue;
            }
            if (d != NULL && T_OK(number_of(d) >= 0)) {
                here[number_of(d)]++;
                (void)!taken(c[k], d);
            }
        }
    }
    for (i = 1; i < 3; i++)
        if (c[i] != NULL)
            c[i]->ops->close(c[i]);
    take_all(c[0], here, SHARED);
    c[0]->ops->close(c[0]);
    for (i = 0; i < SHARED; i++)
        T_OK(here[i] > 0);
}

/* A member that commits all the time, or what feeds them. */
struct busy {
    pthread_t thread;
    struct once__broker *b;
    atomic_int done, lost, stop;
};

static void *take_always(void *user)
{
    struct busy *m = user;
    struct once__delivery *d;
    long round;

    for (round = 0; !atomic_load(&m->stop); round++) {
        d = NULL;
        sleep_ms(round * 7 % 10 == 0 ? 300 : 0); /* they are not in step */
        if (m->b->ops->receive(m->b, 100, &d, NULL) != ONCE_OK) {
            atomic_fetch_add(&m->lost, 1);
            T_OK(kit_connect(m->b, WAIT_MS));
        } else if (d != NULL && taken(m->b, d) == ONCE_OK) {
            atomic_fetch_add(&m->done, 1);
        } else if (d != NULL) {
            atomic_fetch_add(&m->lost, 1);
        }
    }
    return NULL;
}

static void *feed_always(void *user)
{
    struct busy *m = user;
    char id[16], key[16];
    int i;

    for (i = 0; !atomic_load(&m->stop); i++) {
        (void)snprintf(id, sizeof(id), "id-%d", i);
        (void)snprintf(key, sizeof(key), "k%d", i);
        (void)sent(m->b, id, key);
        sleep_ms(2);
    }
    return NULL;
}

enum { BUSY = 4, REST_MS = 3 * SESSION_MS, UNREST_MS = 120000 };

/* Whether all of them get on, and none loses anything, for a while. */
static int are_at_rest(struct busy m[BUSY])
{
    int before[BUSY], lost = 0, idle = 0, i;

    for (i = 0; i < BUSY; i++) {
        atomic_store(&m[i].lost, 0);
        before[i] = atomic_load(&m[i].done);
    }
    sleep_ms(REST_MS);
    for (i = 0; i < BUSY; i++) {
        lost += atomic_load(&m[i].lost);
        idle += atomic_load(&m[i].done) == before[i];
    }
    return lost == 0 && idle == 0;
}

static void members_that_commit_let_others_join(void)
{
    struct busy m[BUSY + 1] = {0};
    int i, tries = 0;

    fresh(12);
    m[BUSY].b = sender(5000, 0);
    T_EQ(pthread_create(&m[BUSY].thread, NULL, feed_always, &m[BUSY]), 0);
    for (i = 0; i < BUSY; i++) {
        m[i].b = receiver(1);
        T_EQ(pthread_create(&m[i].thread, NULL, take_always, &m[i]), 0);
        sleep_ms(SESSION_MS);
    }
    while (!are_at_rest(m) && ++tries < UNREST_MS / REST_MS)
        ;
    T_OK(tries < UNREST_MS / REST_MS);
    for (i = 0; i <= BUSY; i++)
        atomic_store(&m[i].stop, 1);
    for (i = 0; i <= BUSY; i++) {
        T_EQ(pthread_join(m[i].thread, NULL), 0);
        m[i].b->ops->close(m[i].b);
    }
}

/* Of a group of two, which only the thread of the one keeps up. */
static void a_slow_handler_keeps_its_partition(void)
{
    struct once__broker *c[2];
    struct once__delivery *d = NULL;
    int i, has = 0;

    fresh(1);
    for (i = 0; i < 2; i++)
        c[i] = receiver(1);
    for (i = 0; i < 20; i++) /* until the group is at rest */
        T_OK(none(c[i % 2]));
    fill(2);
    for (i = 0; i < WAIT_MS / 500 && d == NULL; i++) {
        has = i % 2;
        T_EQ(c[has]->ops->receive(c[has], 500, &d, NULL), ONCE_OK);
    }
    if (!T_OK(d != NULL))
        return;
    sleep_ms(2L * SESSION_MS);
    T_OK(none(c[!has]));
    T_EQ(c[has]->ops->ack(c[has], d, ONCE__ACK_STILL_AT, NULL), ONCE_OK);
    T_EQ(taken(c[has], d), ONCE_OK);
    T_EQ(committed(0), 1);
    d = next(c[has]);
    if (T_OK(d != NULL)) {
        T_EQ(number_of(d), 1);
        T_EQ(d->redelivered, 0);
        T_EQ(taken(c[has], d), ONCE_OK);
    }
    for (i = 0; i < 2; i++)
        c[i]->ops->close(c[i]);
}

/* While it asks to join, it is not told what it has: librdkafka 2.0 dies then. */
static void who_gives_up_before_it_has_joined_lives(void)
{
    struct once__broker *c;
    struct once__delivery *d;
    int i;

    fresh(1);
    fill(1);
    for (i = 0; i < 3; i++) {
        c = receiver(1);
        sleep_ms(1000L * i);
        c->ops->abandon(c);
        T_OK(kit_connect(c, WAIT_MS));
        c->ops->close(c);
    }
    c = receiver(1);
    d = next(c);
    T_OK(d != NULL && taken(c, d) == ONCE_OK);
    c->ops->close(c);
}

/* All brokers die while it asks to join, and come back. */
static void who_lost_all_brokers_before_it_has_joined_comes_back(void)
{
    struct once__delivery *d = NULL;
    struct once__broker *c;
    int i, rc = ONCE_OK;

    fresh(1);
    c = receiver(1);
    T_OK(kit_ctl("kill", "kafka"));
    for (i = 0; i < WAIT_MS / 500 && rc == ONCE_OK; i++)
        rc = c->ops->receive(c, 500, &d, NULL);
    T_EQ(rc, ONCE_EAWAY);
    T_OK(kit_ctl("start", "kafka"));
    (void)run_tool("topic %s %d", topic, 1); /* the mock has forgotten it */
    fill(1);
    T_OK(kit_connect(c, WAIT_MS));
    d = next(c);
    T_OK(d != NULL && taken(c, d) == ONCE_OK);
    c->ops->close(c);
}

/* ---- TLS ------------------------------------------------------------------------ */

static struct once__broker *opened(const char *more, const char *ca,
                                   const char *consumer)
{
    struct once__broker_options o = kit_options(consumer, 1);
    struct once__broker *b = NULL;
    char url[512], path[512];

    (void)snprintf(path, sizeof(path), "%s/%s", getenv("ONCE_TEST_TLS_DIR"),
                   ca);
    o.ca_file = path;
    url_of(more, url, sizeof(url));
    T_EQ(once__broker_find(url, NULL)->open(url, &o, &b, NULL), ONCE_OK);
    return b;
}

static void with_tls_messages_go_and_come(void)
{
    struct once__broker *b, *c;
    struct once__delivery *d;

    fresh(1);
    b = opened("", "ca.crt", NULL);
    T_OK(kit_connect(b, WAIT_MS));
    T_EQ(sent(b, "id-7", "key"), ONCE__END_TAKEN);
    b->ops->close(b);
    c = opened("?group=g", "ca.crt", "billing");
    T_OK(kit_connect(c, WAIT_MS));
    d = next(c);
    if (T_OK(d != NULL)) {
        T_EQ(number_of(d), 7);
        T_EQ(taken(c, d), ONCE_OK);
    }
    c->ops->close(c);
}

static void is_refused(const char *ca, const char *scheme)
{
    struct once__broker *b = opened("", ca, NULL);
    once_error err = {0};

    if (!T_OK(b->ops->connect(b, &err) == ONCE_EOPEN))
        printf("#   %s: %s\n", scheme, err.text);
    T_OK(strstr(err.text, "certificate") != NULL);
    b->ops->close(b);
}

static void a_certificate_must_be_right(void)
{
    static const char *const wrong[] = {"wronghost", "expired", "stranger"};
    char line[64];
    size_t i;

    fresh(1);
    is_refused("other-ca.crt", "another authority");
    for (i = 0; i < 3; i++) {
        (void)snprintf(line, sizeof(line), "kafka %s", wrong[i]);
        T_OK(kit_ctl("cert", line));
        is_refused("ca.crt", wrong[i]);
    }
    T_OK(kit_ctl("cert", "kafka good"));
    with_tls_messages_go_and_come();
}

/* All, or the one that is named. */
#define RUN(group, test)                                                       \
    do {                                                                       \
        if (only != NULL && strcmp(only, #group) == 0)                         \
            T_RUN(test);                                                       \
        else                                                                   \
            T_RUN_ONLY(only, test);                                            \
    } while (0)

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    int real = getenv("ONCE_KAFKA") != NULL;

    kit_skip_c11_threads();
    (void)signal(SIGPIPE, SIG_IGN);
    if (only != NULL && strcmp(only, "tls") == 0) {
        T_RUN(with_tls_messages_go_and_come);
        T_RUN(a_certificate_must_be_right);
        return t_done();
    }
    if (!real) {
        RUN(sending, each_answer_is_its_proof);
        RUN(sending, what_is_too_large_is_found_among_others);
        RUN(sending, who_is_taken_is_no_suspect);
        RUN(sending, a_suspect_without_an_answer_is_alone_no_more);
        RUN(sending, after_a_fatal_error_the_next_is_unsent);
        RUN(sending, a_large_one_is_alone_and_rejected_at_once);
        RUN(sending, with_hold_a_lost_answer_is_in_doubt);
        RUN(sending, with_hold_a_producer_has_a_number);
        RUN(sending, a_producer_has_a_number_or_sends_nothing);
        RUN(sending, who_may_not_number_is_told_so);
        RUN(sending, a_new_topic_is_waited_for);
        RUN(sending, a_topic_that_is_refused_says_so);
        RUN(receiving, an_answer_to_a_commit_is_heard);
    }
    RUN(sending, a_topic_is_never_made);
    RUN(sending, a_key_is_the_key_of_the_record);
    RUN(sending, messages_without_a_key_share_a_partition);
    RUN(receiving, a_message_without_id_has_its_place);
    RUN(receiving, the_first_undone_is_committed);
    RUN(receiving, a_kill_brings_all_from_the_first_undone);
    RUN(receiving, an_orderly_end_leaves_no_suspicion);
    if (!real) {
        RUN(receiving, without_brokers_an_end_is_soon);
        RUN(receiving, a_group_that_takes_no_member_says_why);
        RUN(receiving, who_may_not_read_is_told_so);
        RUN(receiving, a_topic_that_has_gone_is_missed);
        RUN(receiving, what_is_done_after_the_connection_went_is_not_committed);
        RUN(receiving, a_connection_that_never_ends_keeps_nobody);
    }
    RUN(receiving, what_a_shorter_log_has_is_not_passed_over);
    RUN(group, what_is_taken_away_is_not_committed);
    RUN(group, members_come_and_go_and_all_is_done);
    RUN(group, members_that_commit_let_others_join);
    RUN(group, a_slow_handler_keeps_its_partition);
    RUN(group, who_gives_up_before_it_has_joined_lives);
    if (!real)
        RUN(group, who_lost_all_brokers_before_it_has_joined_comes_back);
    return t_done();
}
