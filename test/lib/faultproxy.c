/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faultproxy.c - a TCP proxy that misbehaves as it is told.
 *
 *    faultproxy [-l PORT] [-o LOG] HOST:PORT [RULE ...]
 *
 * Listens on 127.0.0.1, prints "port N", then reads commands from stdin, one a
 * line, and answers each with "ok ..." or "error"; it ends when stdin does. A
 * RULE is the first command's text, quoted: 'new down cut 100 rst'.
 *
 *    new DIR ACT    connections from now on        DIR: up, to the server, or
 *    open DIR ACT   those that are open, counted        down, to the client
 *                   from now
 *    delay MS          every byte comes so much later
 *    rate N            so many bytes a second
 *    cut N fin|rst [step S]   after N bytes both ends see FIN, or RST; with
 *                      `step` the next connection is cut S bytes later
 *    swallow N         what follows N bytes is read and dropped, the end too
 *    half N            what receives sees FIN after N bytes, what follows is
 *                      dropped, and the other direction goes on
 *    hold N            what follows N bytes waits for `release`
 *    repeat N          the message with the Nth byte comes twice
 *    clear          no rules, what is held goes on; a connection that has lost
 *                   bytes stays as it is, since no network takes some out
 *    release        what is held goes on
 *    drop fin|rst   ends all connections
 *    refuse, accept new connections are reset, or not any more
 *    count          "ok SEEN OPEN UP DOWN HITS": connections, bytes, faults
 *
 * A direction of a connection is
 *
 *    read -> chunks with the time at which they are due -> [rule] -> write
 *
 * One thread, one poll(). A direction buffers at most QUEUE_MAX bytes, then its
 * sender waits, as with a slow peer. It refuses to know what it carries: rules
 * count bytes, and a message is what one read() returned.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CONNS_MAX = 512,
    CHUNK_MAX = 65536,
    QUEUE_MAX = 4 * CHUNK_MAX,
    DRAIN_MS = 10000,
    LINE_SIZE = 256
};

enum act { PASS, CUT_FIN, CUT_RST, SWALLOW, HALF, HOLD, REPEAT };
static const char *const act_names[] = {"pass", "cut-fin", "cut-rst", "swallow",
                                        "half", "hold",    "repeat"};

struct rule {
    uint64_t delay_ms, rate;
    enum act act;
    uint64_t at, step;
};

struct chunk {
    struct chunk *next;
    uint64_t due_ms;
    size_t size, sent;
    int twice;
    unsigned char data[];
};

/* One direction of a connection. */
struct flow {
    int from, to;
    struct rule rule;
    uint64_t passed; /* bytes that the rule has counted */
    uint64_t last_due_ms;
    size_t queued;
    int ended;    /* nothing more comes from `from`          */
    int closed;   /* `to` has been told so                   */
    int dropping; /* what comes is dropped                   */
    struct chunk *first, **last;
};

struct conn {
    unsigned id;
    int connecting;
    uint64_t drain_ms; /* not 0: both ends were told, until then      */
    struct flow flow[2];
    short ready[2]; /* what poll() said of flow[i].from            */
};

struct proxy {
    struct sockaddr_in target;
    int listener, refusing, stopping;
    struct rule rule[2];
    struct conn *conns[CONNS_MAX];
    size_t n;
    unsigned seen;
    uint64_t bytes[2], hits, start_ms;
    FILE *log;
    char line[LINE_SIZE];
    size_t line_size;
};

enum { UP, DOWN };
static const char *const dir_names[] = {"up", "down"};

static uint64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void note(struct proxy *p, const struct conn *c, int dir,
                 const char *what, uint64_t n)
{
    if (p->log == NULL)
        return;
    fprintf(p->log, "%" PRIu64 " %u %s %s %" PRIu64 "\n",
            now_ms() - p->start_ms, c->id, dir < 0 ? "-" : dir_names[dir], what,
            n);
    fflush(p->log);
}

static void hit(struct proxy *p, const struct conn *c, int dir)
{
    p->hits++;
    note(p, c, dir, act_names[c->flow[dir].rule.act], c->flow[dir].passed);
}

static void set_options(int fd)
{
    int one = 1;

    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void reset_on_close(int fd)
{
    struct linger hard = {1, 0};

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
}

/* ---- Connections ----------------------------------------------------- */

static void flow_start(struct flow *f, int from, int to, struct rule rule)
{
    memset(f, 0, sizeof(*f));
    f->from = from;
    f->to = to;
    f->rule = rule;
    f->last = &f->first;
}

static void flow_forget(struct flow *f)
{
    struct chunk *c;

    while ((c = f->first) != NULL) {
        f->first = c->next;
        free(c);
    }
    f->last = &f->first;
    f->queued = 0;
}

static void conn_end(struct proxy *p, size_t i, int hard)
{
    struct conn *c = p->conns[i];

    for (int d = 0; d < 2; d++) {
        if (hard)
            reset_on_close(c->flow[d].from);
        (void)close(c->flow[d].from);
        flow_forget(&c->flow[d]);
    }
    note(p, c, -1, hard ? "reset" : "closed", 0);
    free(c);
    p->conns[i] = p->conns[--p->n];
}

/* FIN to both ends, and no RST: whatever they still send is read. */
static void conn_drain(struct conn *c)
{
    for (int d = 0; d < 2; d++) {
        flow_forget(&c->flow[d]);
        c->flow[d].dropping = 1;
        c->flow[d].closed = 1;
        (void)shutdown(c->flow[d].to, SHUT_WR);
    }
    c->drain_ms = now_ms() + DRAIN_MS;
}

static void conn_accept(struct proxy *p)
{
    int client = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    int server = -1;
    struct conn *c;

    if (client < 0)
        return;
    p->seen++;
    c = calloc(1, sizeof(*c));
    if (c == NULL || p->refusing || p->n == CONNS_MAX)
        goto refuse;
    server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server < 0)
        goto refuse;
    set_options(client);
    set_options(server);
    if (connect(server, (struct sockaddr *)&p->target, sizeof(p->target)) < 0 &&
        errno != EINPROGRESS)
        goto refuse;
    c->id = p->seen;
    c->connecting = 1;
    flow_start(&c->flow[UP], client, server, p->rule[UP]);
    flow_start(&c->flow[DOWN], server, client, p->rule[DOWN]);
    for (int d = 0; d < 2; d++)
        p->rule[d].at += p->rule[d].step;
    p->conns[p->n++] = c;
    note(p, c, -1, "accepted", 0);
    return;
refuse:
    p->hits += (uint64_t)p->refusing;
    reset_on_close(client);
    (void)close(client);
    if (server >= 0)
        (void)close(server);
    free(c);
}

/* ---- Bytes ----------------------------------------------------------- */

static size_t bite(const struct flow *f)
{
    size_t n = (size_t)(f->rule.rate / 50);

    if (f->rule.rate == 0 || n > CHUNK_MAX)
        return CHUNK_MAX;
    return n == 0 ? 1 : n;
}

/* Reads one message. Returns -1 when the connection is broken. */
static int flow_read(struct flow *f)
{
    struct chunk *c = malloc(sizeof(*c) + CHUNK_MAX);
    uint64_t due = now_ms() + f->rule.delay_ms;
    ssize_t n;

    if (c == NULL)
        return -1;
    n = read(f->from, c->data, bite(f));
    if (n <= 0 || f->dropping) {
        int bad = n < 0 && errno != EAGAIN && errno != EINTR;

        f->ended |= n == 0;
        free(c);
        return bad ? -1 : 0;
    }
    if (f->rule.rate > 0 && due < f->last_due_ms)
        due = f->last_due_ms;
    if (f->rule.rate > 0)
        due += (uint64_t)n * 1000 / f->rule.rate;
    /* Order is kept, whatever became of a delay. */
    f->last_due_ms = due > f->last_due_ms ? due : f->last_due_ms;
    c->next = NULL;
    c->due_ms = f->last_due_ms;
    c->size = (size_t)n;
    c->sent = 0;
    c->twice = 0;
    *f->last = c;
    f->last = &c->next;
    f->queued += c->size;
    return 0;
}

/* How much of `want` bytes may go on before the rule is met. */
static size_t allowed(const struct flow *f, size_t want)
{
    uint64_t left;

    if (f->rule.act == PASS || f->rule.act == REPEAT)
        return want;
    left = f->rule.at > f->passed ? f->rule.at - f->passed : 0;
    return left < want ? (size_t)left : want;
}

static void flow_pop(struct flow *f)
{
    struct chunk *c = f->first;

    f->first = c->next;
    if (f->first == NULL)
        f->last = &f->first;
    f->queued -= c->size;
    free(c);
}

/* The rule's byte is reached. Returns 1 if the connection is no more. */
static int flow_met(struct proxy *p, size_t i, int dir)
{
    struct conn *c = p->conns[i];
    struct flow *f = &c->flow[dir];
    enum act act = f->rule.act;

    hit(p, c, dir);
    if (act == CUT_RST) {
        conn_end(p, i, 1);
        return 1;
    }
    if (act == CUT_FIN) {
        conn_drain(c);
        return 0;
    }
    assert(act == SWALLOW || act == HALF);
    flow_forget(f);
    f->dropping = 1;
    if (act == HALF) {
        f->closed = 1;
        (void)shutdown(f->to, SHUT_WR);
    }
    return 0;
}

static int met(const struct flow *f)
{
    return f->rule.act != PASS && f->rule.act != REPEAT && !f->dropping &&
           f->passed >= f->rule.at;
}

/* Writes what is due. Returns 1 if the connection is no more. */
static int flow_write(struct proxy *p, size_t i, int dir)
{
    struct conn *c = p->conns[i];
    struct flow *f = &c->flow[dir];
    struct chunk *k;

    while ((k = f->first) != NULL && k->due_ms <= now_ms()) {
        size_t want = allowed(f, k->size - k->sent);
        ssize_t n =
            want == 0 ? 0 : send(f->to, k->data + k->sent, want, MSG_NOSIGNAL);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (n < 0) {
            conn_end(p, i, 1);
            return 1;
        }
        if (f->rule.act == REPEAT && f->passed < f->rule.at &&
            f->passed + (uint64_t)n >= f->rule.at)
            k->twice = 1;
        k->sent += (size_t)n;
        f->passed += (uint64_t)n;
        p->bytes[dir] += (uint64_t)n;
        if (k->sent == k->size && k->twice) {
            hit(p, c, dir);
            k->twice = 0;
            k->sent = 0;
            f->rule.act = PASS;
        } else if (k->sent == k->size) {
            flow_pop(f);
        }
        if (met(f))
            return f->rule.act == HOLD ? 0 : flow_met(p, i, dir);
    }
    if (f->first == NULL && f->ended && !f->closed && !f->dropping) {
        f->closed = 1;
        (void)shutdown(f->to, SHUT_WR);
    }
    return 0;
}

static int waits(const struct flow *f)
{
    return f->rule.act == HOLD && met(f);
}

/* ---- Commands -------------------------------------------------------- */

static int parse_act(const char *text, struct rule *r)
{
    char what[16], how[16], step[16];
    uint64_t n = 0, by = 0;
    int words = sscanf(text, "%15s %" SCNu64 " %15s %15s %" SCNu64, what, &n,
                       how, step, &by);

    if (words < 2)
        return -1;
    if (strcmp(what, "delay") == 0) {
        r->delay_ms = n;
        return 0;
    }
    if (strcmp(what, "rate") == 0) {
        r->rate = n;
        return 0;
    }
    r->at = n;
    r->step = words == 5 && strcmp(step, "step") == 0 ? by : 0;
    if (strcmp(what, "cut") == 0 && words >= 3)
        r->act = strcmp(how, "rst") == 0 ? CUT_RST : CUT_FIN;
    else if (strcmp(what, "swallow") == 0)
        r->act = SWALLOW;
    else if (strcmp(what, "half") == 0)
        r->act = HALF;
    else if (strcmp(what, "hold") == 0)
        r->act = HOLD;
    else if (strcmp(what, "repeat") == 0)
        r->act = REPEAT;
    else
        return -1;
    return 0;
}

/* Those that are open: counted from now, and at once where nothing is left. */
static void rule_open(struct proxy *p, int dir, const char *text)
{
    for (size_t i = p->n; i-- > 0;) {
        struct flow *f = &p->conns[i]->flow[dir];

        (void)parse_act(text, &f->rule);
        f->passed = 0;
        if (met(f) && f->rule.act != HOLD)
            (void)flow_met(p, i, dir);
    }
}

static int command_rule(struct proxy *p, const char *line)
{
    char who[8], dir[8];
    int at = 0, d;
    struct rule r;

    if (sscanf(line, "%7s %7s %n", who, dir, &at) < 2 || at == 0)
        return -1;
    d = strcmp(dir, "up") == 0 ? UP : DOWN;
    if (d == DOWN && strcmp(dir, "down") != 0)
        return -1;
    r = p->rule[d];
    if (parse_act(line + at, &r) < 0)
        return -1;
    if (strcmp(who, "new") == 0)
        p->rule[d] = r;
    else if (strcmp(who, "open") == 0)
        rule_open(p, d, line + at);
    else
        return -1;
    return 0;
}

/* Held bytes go on; with `all` every rule ends. */
static void release(struct proxy *p, int all)
{
    for (size_t i = 0; i < p->n; i++)
        for (int d = 0; d < 2; d++) {
            struct flow *f = &p->conns[i]->flow[d];

            if (f->rule.act == HOLD && f->passed >= f->rule.at) {
                hit(p, p->conns[i], d);
                f->rule.act = PASS;
            }
            if (!all)
                continue;
            memset(&f->rule, 0, sizeof(f->rule));
            f->last_due_ms = 0;
            for (struct chunk *c = f->first; c != NULL; c = c->next)
                c->due_ms = 0;
        }
    if (all)
        memset(p->rule, 0, sizeof(p->rule));
}

static void drop(struct proxy *p, int hard)
{
    for (size_t i = p->n; i-- > 0;) {
        p->hits++;
        if (hard)
            conn_end(p, i, 1);
        else if (p->conns[i]->drain_ms == 0)
            conn_drain(p->conns[i]);
    }
}

static int command_do(struct proxy *p, const char *line)
{
    if (strcmp(line, "clear") == 0)
        release(p, 1);
    else if (strcmp(line, "release") == 0)
        release(p, 0);
    else if (strcmp(line, "drop rst") == 0 || strcmp(line, "drop fin") == 0)
        drop(p, line[5] == 'r');
    else if (strcmp(line, "refuse") == 0 || strcmp(line, "accept") == 0)
        p->refusing = line[0] == 'r';
    else if (strcmp(line, "count") != 0)
        return command_rule(p, line);
    return 0;
}

static void command(struct proxy *p, const char *line)
{
    if (command_do(p, line) < 0)
        printf("error\n");
    else if (strcmp(line, "count") == 0)
        printf("ok %u %zu %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", p->seen, p->n,
               p->bytes[UP], p->bytes[DOWN], p->hits);
    else
        printf("ok\n");
    fflush(stdout);
}

static void read_commands(struct proxy *p)
{
    ssize_t n = read(STDIN_FILENO, p->line + p->line_size,
                     sizeof(p->line) - p->line_size - 1);
    char *end;

    if (n <= 0) {
        p->stopping = n == 0 || (errno != EINTR && errno != EAGAIN);
        return;
    }
    p->line_size += (size_t)n;
    p->line[p->line_size] = '\0';
    while ((end = strchr(p->line, '\n')) != NULL) {
        *end = '\0';
        command(p, p->line);
        p->line_size -= (size_t)(end + 1 - p->line);
        memmove(p->line, end + 1, p->line_size + 1);
    }
    if (p->line_size == sizeof(p->line) - 1)
        p->stopping = 1; /* no command is so long */
}

/* ---- The loop -------------------------------------------------------- */

/* What to wait for at the end from which flow `d` reads, and into which the
 * other one writes. */
static short interest(struct conn *c, int d, uint64_t now, int *wait_ms)
{
    struct flow *in = &c->flow[d], *out = &c->flow[!d];
    short events = 0;

    if (c->connecting)
        return d == DOWN ? POLLOUT : 0;
    if (!in->ended && in->queued < QUEUE_MAX)
        events |= POLLIN;
    if (out->first == NULL || waits(out))
        return events;
    if (out->first->due_ms <= now)
        return events | POLLOUT;
    if (out->first->due_ms - now < (uint64_t)*wait_ms)
        *wait_ms = (int)(out->first->due_ms - now);
    return events;
}

static int flow_done(const struct flow *f)
{
    return f->ended && (f->closed || f->dropping);
}

/* Returns 1 if the connection is no more. */
static int conn_step(struct proxy *p, size_t i)
{
    struct conn *c = p->conns[i];
    int failed = 0;
    socklen_t size = sizeof(failed);

    if (c->connecting) {
        if (c->ready[DOWN] == 0)
            return 0;
        (void)getsockopt(c->flow[DOWN].from, SOL_SOCKET, SO_ERROR, &failed,
                         &size);
        c->connecting = 0;
        if (failed != 0) {
            conn_end(p, i, 1);
            return 1;
        }
    }
    for (int d = 0; d < 2; d++) {
        struct flow *f = &c->flow[d];

        if ((c->ready[d] & (POLLIN | POLLERR | POLLHUP)) && !f->ended &&
            f->queued < QUEUE_MAX && flow_read(f) < 0) {
            conn_end(p, i, 1);
            return 1;
        }
        if (flow_write(p, i, d))
            return 1;
    }
    if ((flow_done(&c->flow[UP]) && flow_done(&c->flow[DOWN])) ||
        (c->drain_ms != 0 && c->drain_ms < now_ms())) {
        conn_end(p, i, 0);
        return 1;
    }
    return 0;
}

static void loop(struct proxy *p)
{
    struct pollfd fds[2 + 2 * CONNS_MAX];
    struct conn *asked[CONNS_MAX];

    while (!p->stopping) {
        int wait_ms = 1000;
        uint64_t now = now_ms();
        size_t n = p->n;

        fds[0] = (struct pollfd){p->listener, POLLIN, 0};
        fds[1] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
        for (size_t i = 0; i < n; i++)
            for (int d = 0; d < 2; d++) {
                struct conn *c = p->conns[i];
                short events = interest(c, d, now, &wait_ms);

                asked[i] = c;
                /* Without anything to wait for poll() would tell of a hang-up
                 * again and again. */
                fds[2 + 2 * i + (size_t)d] =
                    (struct pollfd){events ? c->flow[d].from : -1, events, 0};
            }
        if (poll(fds, (nfds_t)(2 + 2 * n), wait_ms) < 0)
            continue;
        /* From the end: one that ends is replaced by the last one. */
        for (size_t i = n; i-- > 0;) {
            assert(p->conns[i] == asked[i]);
            for (int d = 0; d < 2; d++)
                asked[i]->ready[d] = fds[2 + 2 * i + (size_t)d].revents;
            (void)conn_step(p, i);
        }
        if (fds[0].revents)
            conn_accept(p);
        if (fds[1].revents)
            read_commands(p);
    }
}

static int start_listening(struct proxy *p, uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t size = sizeof(a);
    int one = 1;

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)setsockopt(p->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (p->listener < 0 ||
        bind(p->listener, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        listen(p->listener, 128) < 0 ||
        fcntl(p->listener, F_SETFL, O_NONBLOCK) < 0 ||
        getsockname(p->listener, (struct sockaddr *)&a, &size) < 0) {
        perror("faultproxy");
        return -1;
    }
    printf("port %u\n", ntohs(a.sin_port));
    fflush(stdout);
    return 0;
}

static int parse_target(struct proxy *p, const char *text)
{
    char host[64];
    unsigned port;

    if (sscanf(text, "%63[0-9.]:%u", host, &port) != 2 || port > 65535)
        return -1;
    p->target.sin_family = AF_INET;
    p->target.sin_port = htons((uint16_t)port);
    return inet_pton(AF_INET, host, &p->target.sin_addr) == 1 ? 0 : -1;
}

int main(int argc, char **argv)
{
    static struct proxy p;
    unsigned long port = 0;
    int c;

    p.start_ms = now_ms();
    while ((c = getopt(argc, argv, "l:o:")) != -1) {
        if (c == 'l')
            port = strtoul(optarg, NULL, 10);
        else if (c != 'o' || (p.log = fopen(optarg, "ae")) == NULL)
            return 2;
    }
    if (optind >= argc || port > 65535 || parse_target(&p, argv[optind]) < 0) {
        fprintf(stderr, "usage: faultproxy [-l PORT] [-o LOG] HOST:PORT "
                        "[RULE ...]\n");
        return 2;
    }
    for (int i = optind + 1; i < argc; i++)
        if (command_do(&p, argv[i]) < 0) {
            fprintf(stderr, "faultproxy: no rule: %s\n", argv[i]);
            return 2;
        }
    (void)signal(SIGPIPE, SIG_IGN);
    if (start_listening(&p, (uint16_t)port) < 0)
        return 1;
    loop(&p);
    while (p.n > 0)
        conn_end(&p, p.n - 1, 1);
    if (p.log)
        (void)fclose(p.log);
    return 0;
}
