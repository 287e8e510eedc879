/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_serve.c - the load on `once serve`: one measurement, as JSON.
 *
 *    bench_serve SOCKET CONNECTIONS SECONDS WHAT [BODY [ANSWER]]
 *                                    test/bench/serve.py makes tables of it
 *
 *      new     begin and end of a new key: one operation
 *      replay  begin of one of 1,000 keys that are ended
 *      health  GET /v1/health: what a request costs that decides nothing
 *      open=N  N begins and no end; then it waits for the end of its input
 *
 * BODY and ANSWER are bytes [120, 300]. It speaks the protocol as a middleware
 * does, each connection with one call at a time, and looks at each answer: a
 * figure for a wrong answer is none.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    CONNECTIONS_MAX = 1024,
    EXTRA = 16384, /* of a message beside its body */
    REPLAYED = 1000,
    SAMPLES = 1 << 21,
    STALL_MS = 30000
};

enum what { NEW, REPLAY, HEALTH, OPEN };

struct connection {
    int fd, ends;
    char *out, *in;
    size_t n_out, sent, n_in;
    double begun;
};

struct bench {
    enum what what;
    unsigned long left, serial, done; /* OPEN: begins that are left */
    size_t body, answer, room;
    double until;
    char run[17];
    float *ms;
    size_t n_ms;
    int live, filling;
};

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *why)
{
    fprintf(stderr, "bench_serve: %s\n", why);
    exit(1);
}

static void hex(char *out, size_t bytes)
{
    uint8_t random[16];
    size_t i;

    if (getrandom(random, bytes, 0) != (ssize_t)bytes)
        die("no random numbers");
    for (i = 0; i < bytes; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", random[i]);
}

/* ---- Messages ------------------------------------------------------------------ */

static void send_rest(struct connection *c)
{
    ssize_t n;

    while (c->sent < c->n_out) {
        n = write(c->fd, c->out + c->sent, c->n_out - c->sent);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0)
            die("the server has closed a connection");
        c->sent += (size_t)n;
    }
}

static void post(struct connection *c, const char *path, const char *head,
                 char fill, size_t body)
{
    int n = snprintf(c->out, EXTRA,
                     "POST %s HTTP/1.1\r\nHost: once\r\nContent-Length: %zu\r\n"
                     "\r\n%s\n",
                     path, strlen(head) + 1 + body, head);

    memset(c->out + n, fill, body);
    c->n_out = (size_t)n + body;
    c->sent = c->n_in = 0;
    send_rest(c);
}

#define ROUTE "\"route\":{\"max_request\":\"64m\",\"max_response\":\"64m\"}"

static void begin(struct bench *b, struct connection *c)
{
    char head[2048], id[33];
    unsigned long key = b->serial++;

    c->begun = now();
    c->ends = 0;
    if (b->what == HEALTH) {
        c->n_out = (size_t)snprintf(
            c->out, EXTRA, "GET /v1/health HTTP/1.1\r\nHost: once\r\n\r\n");
        c->sent = c->n_in = 0;
        send_rest(c);
        return;
    }
    hex(id, 16);
    (void)snprintf(
        head, sizeof(head),
        "{\"id\":\"%s\",\"method\":\"POST\",\"target\":\"/"
        "orders?x=1\",\"scope\":"
        "\"u1\",\"headers\":[[\"Host\",\"shop.example.com\"],[\"User-Agent\","
        "\"load/1.0\"],[\"Accept\",\"*/*\"],[\"Accept-Encoding\",\"gzip\"],["
        "\"Content-Type\",\"application/json\"],[\"Content-Length\",\"%zu\"],["
        "\"Idempotency-Key\",\"%s-%lu\"],[\"traceparent\",\"00-4bf92f3577b34da6"
        "a3ce929d0e0e4736-00f067aa0ba902b7-01\"],[\"Authorization\",\"Bearer "
        "abcdefghijklmnop\"]]," ROUTE "}",
        id, b->body, b->run,
        b->what == REPLAY && !b->filling ? key % REPLAYED : key);
    post(c, "/v1/begin", head, 'x', b->body);
}

static void end(struct bench *b, struct connection *c, const char *token)
{
    char head[1024];

    (void)snprintf(head, sizeof(head),
                   "{\"token\":\"%.160s\",\"status\":201,\"headers\":[["
                   "\"Content-Type\",\"application/json\"],[\"Location\","
                   "\"/orders/1\"],[\"Server\",\"x\"]]," ROUTE "}",
                   token);
    c->ends = 1;
    post(c, "/v1/end", head, 'y', b->answer);
}

/* The body of the answer if it is there, whole. */
static char *whole(struct connection *c)
{
    char *body, *length;

    c->in[c->n_in] = '\0';
    body = strstr(c->in, "\r\n\r\n");
    if (body == NULL)
        return NULL;
    length = strcasestr(c->in, "content-length:");
    if (length == NULL || length > body)
        die("an answer without a length");
    body += 4;
    if (c->n_in < (size_t)(body - c->in) + strtoul(length + 15, NULL, 10))
        return NULL;
    return body;
}

/* ---- An operation --------------------------------------------------------------- */

static int has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

static void next(struct bench *b, struct connection *c)
{
    if (b->n_ms < SAMPLES)
        b->ms[b->n_ms++] = (float)((now() - c->begun) * 1e3);
    b->done++;
    if (b->left > 0 ? --b->left >= (unsigned long)b->live
                    : b->what != OPEN && !b->filling && now() < b->until)
        begin(b, c);
    else
        b->live--;
}

static void go_on(struct bench *b, struct connection *c, char *body)
{
    char *token = strstr(body, "\"token\":\""), *quote;

    if (!has(c->in, "HTTP/1.1 200 "))
        die(body);
    if (b->what == HEALTH || b->what == OPEN || c->ends ||
        (b->what == REPLAY && !b->filling)) {
        if (b->what != HEALTH && !has(body, c->ends           ? "\"do\":\"own\""
                                            : b->what == OPEN ? "\"run\""
                                                              : "replayed"))
            die(body);
        next(b, c);
        return;
    }
    quote = token != NULL ? strchr(token + 9, '"') : NULL;
    if (quote == NULL)
        die(body);
    *quote = '\0';
    end(b, c, token + 9);
}

static void read_some(struct bench *b, struct connection *c)
{
    char *body;
    ssize_t n;

    for (;;) {
        n = read(c->fd, c->in + c->n_in, b->room - 1 - c->n_in);
        if (n == 0)
            die("the server has closed a connection");
        if (n < 0)
            return;
        c->n_in += (size_t)n;
        body = whole(c);
        if (body != NULL)
            go_on(b, c, body);
    }
}

static void run(struct bench *b, int poller, struct connection *all, int n)
{
    struct epoll_event found[256];
    int i, m;

    b->live = n;
    b->done = b->n_ms = 0;
    for (i = 0; i < n; i++)
        begin(b, &all[i]);
    while (b->live > 0) {
        m = epoll_wait(poller, found, 256, STALL_MS);
        if (m <= 0)
            die("no answer for half a minute");
        for (i = 0; i < m; i++) {
            send_rest(found[i].data.ptr);
            read_some(b, found[i].data.ptr);
        }
    }
}

/* ---- Around it ------------------------------------------------------------------- */

static int dial(struct bench *b, const char *path, struct connection *all,
                int n)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int i, poller = epoll_create1(0);

    if (strlen(path) >= sizeof(a.sun_path))
        die("the path is too long");
    memcpy(a.sun_path, path, strlen(path));
    for (i = 0; i < n; i++) {
        struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLET, {.ptr = &all[i]}};

        all[i].fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        all[i].out = malloc(b->room);
        all[i].in = malloc(b->room);
        if (all[i].out == NULL || all[i].in == NULL ||
            connect(all[i].fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
            epoll_ctl(poller, EPOLL_CTL_ADD, all[i].fd, &e) < 0)
            die("cannot connect");
    }
    return poller;
}

static int order(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void print(struct bench *b, double seconds)
{
    qsort(b->ms, b->n_ms, sizeof(*b->ms), order);
    printf("{\"operations\": %lu, \"per_s\": %.0f, \"p50_ms\": %.3f, "
           "\"p99_ms\": %.3f}\n",
           b->done, (double)b->done / seconds, (double)b->ms[b->n_ms / 2],
           (double)b->ms[b->n_ms * 99 / 100]);
    (void)fflush(stdout);
}

static void set_what(struct bench *b, const char *word)
{
    b->what = strcmp(word, "new") == 0      ? NEW
              : strcmp(word, "replay") == 0 ? REPLAY
              : strcmp(word, "health") == 0 ? HEALTH
                                            : OPEN;
    if (b->what == OPEN && strncmp(word, "open=", 5) == 0)
        b->left = strtoul(word + 5, NULL, 10);
    if (b->what == OPEN && b->left == 0)
        die("what?");
}

int main(int argc, char **argv)
{
    static struct connection all[CONNECTIONS_MAX];
    struct bench b = {.body = 120, .answer = 300};
    int n = argc > 4 ? (int)strtol(argv[2], NULL, 10) : 0, poller;
    double begun;

    if (n < 1 || n > CONNECTIONS_MAX)
        die("SOCKET CONNECTIONS SECONDS WHAT [BODY [ANSWER]]");
    set_what(&b, argv[4]);
    if (argc > 5)
        b.body = strtoul(argv[5], NULL, 10);
    if (argc > 6)
        b.answer = strtoul(argv[6], NULL, 10);
    b.room = EXTRA + (b.body > b.answer ? b.body : b.answer);
    b.ms = malloc(SAMPLES * sizeof(*b.ms));
    if (b.ms == NULL)
        die("out of memory");
    hex(b.run, 8);
    poller = dial(&b, argv[1], all, n);
    if (b.what == REPLAY) { /* first the records */
        b.filling = 1;
        b.left = REPLAYED;
        run(&b, poller, all, n < REPLAYED ? n : REPLAYED);
        b.filling = 0;
        b.left = 0;
    }
    fprintf(stderr, "go\n");
    begun = now();
    b.until = begun + atof(argv[3]);
    run(&b, poller, all, n);
    print(&b, now() - begun);
    if (b.what == OPEN) /* until we are killed */
        while (read(STDIN_FILENO, b.run, 1) > 0)
            ;
    return 0;
}
