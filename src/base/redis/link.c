/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - one connection to one Redis server.
 *
 *    DOWN --connect--> (TLS) --greeting--> UP --exchange, exchange ...--> UP
 *     ^                  |        |                    |
 *     +---- failure: back-off, doubled each time ------+
 *
 * Commands are queued, sent in one go and answered in order. Every step has an
 * end: a link that makes no progress for `timeout_ms`, or is not through after
 * sixteen times that, is closed. What had been asked then stays without a
 * reply, and this file does not say whether it was done.
 *
 * The greeting asks what the server is. One that would lose records to make
 * room (any maxmemory-policy but noeviction) is refused at every connection,
 * not only the first: after a failover it is another server. The policy can be
 * set while the server runs, so it is asked for again each second, in front of
 * the commands of a round; and the count of dropped keys shows whether it was
 * another one in between. So is the mark of the store (mark.c): a server that
 * was emptied answers nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/error.h"
#include "base/grow.h"
#include "base/redis/redis.h"
#include "base/steady.h"

enum {
    BACKOFF_MS = 10,
    BACKOFF_MOST_MS = 1280,
    LIMITS = 16, /* times timeout_ms, for a whole exchange */
    WATCH_US = 1000000,
    CHUNK = 32 * 1024,
    KEEP_ROOM = 1 << 20 /* of a buffer, from call to call */
};

void once__redis_link_init(struct once__redis_link *l,
                           const struct once__redis_config *config,
                           struct once__redis_tls *tls,
                           const struct once__redis_place *place)
{
    memset(l, 0, sizeof(*l));
    l->place = *place;
    l->config = config;
    l->tls = tls;
    l->fd = -1;
    (void)snprintf(l->trouble, sizeof(l->trouble), "not connected yet");
}

static void disconnect(struct once__redis_link *l)
{
    SSL_free(l->ssl);
    l->ssl = NULL;
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
    if (l->reader != NULL)
        redisReaderFree(l->reader);
    l->reader = NULL;
    l->expected = l->count;
    l->out_size = l->sent = 0;
    l->loaded = 0;
    l->time_reply = l->watch_reply = l->mark_reply = 0;
}

void once__redis_link_clear(struct once__redis_link *l)
{
    disconnect(l);
    once__redis_link_reset(l);
    free(l->replies);
    free(l->out);
    memset(l, 0, sizeof(*l));
    l->fd = -1;
}

void once__redis_link_fail(struct once__redis_link *l, const char *format, ...)
{
    char text[120];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)snprintf(l->trouble, sizeof(l->trouble), "%.60s%s%s: %.80s",
                   l->place.host, *l->place.port ? ":" : "", l->place.port,
                   text);
    disconnect(l);
    l->retry_ms = once__steady_ms() +
                  once__half_to_all(once__backoff(BACKOFF_MS, BACKOFF_MOST_MS,
                                                  ++l->failures));
}

void once__redis_link_reset(struct once__redis_link *l)
{
    size_t i;

    for (i = 0; i < l->count; i++)
        freeReplyObject(l->replies[i]);
    l->count = l->expected = 0;
    l->time_reply = l->watch_reply = l->mark_reply = 0;
    if (l->out_room > KEEP_ROOM) { /* after a large result */
        free(l->out);
        l->out = NULL;
        l->out_room = 0;
    }
}

/* ---- Commands and replies ------------------------------------------------ */

static int reserve(struct once__redis_link *l, size_t more)
{
    uint8_t *out = once__grown(l->out, &l->out_room, l->out_size + more, 1);

    if (out == NULL)
        return 0;
    l->out = out;
    return 1;
}

static int reserve_reply(struct once__redis_link *l)
{
    redisReply **replies = once__grown(l->replies, &l->room, l->expected + 1,
                                       sizeof(redisReply *));

    if (replies == NULL)
        return 0;
    l->replies = replies;
    return 1;
}

static void put(struct once__redis_link *l, const void *data, size_t size)
{
    if (size > 0)
        memcpy(l->out + l->out_size, data, size);
    l->out_size += size;
}

static void put_count(struct once__redis_link *l, char sign, size_t n)
{
    char digits[24];
    size_t at = sizeof(digits);

    digits[--at] = '\n';
    digits[--at] = '\r';
    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n > 0);
    digits[--at] = sign;
    put(l, digits + at, sizeof(digits) - at);
}

int once__redis_command(struct once__redis_link *l, size_t argc,
                        const once_bytes *argv, size_t *reply)
{
    size_t i, size = 32;

    for (i = 0; i < argc; i++)
        size += 32 + argv[i].size;
    if (!reserve(l, size) || !reserve_reply(l))
        return 0;
    put_count(l, '*', argc);
    for (i = 0; i < argc; i++) {
        put_count(l, '$', argv[i].size);
        put(l, argv[i].data, argv[i].size);
        put(l, "\r\n", 2);
    }
    *reply = l->expected++;
    return 1;
}

const redisReply *once__redis_reply(const struct once__redis_link *l,
                                    size_t index)
{
    return index < l->count ? l->replies[index] : NULL;
}

int once__redis_is(const redisReply *r, const char *code)
{
    size_t n = strlen(code);

    return r != NULL && r->type == REDIS_REPLY_ERROR && r->len >= n &&
           memcmp(r->str, code, n) == 0 && (r->len == n || r->str[n] == ' ');
}

/* ---- Moving bytes ------------------------------------------------------- */

static ssize_t plain(ssize_t n)
{
    if (n > 0)
        return n;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    return -1;
}

/* Sends what can be sent now. 0: the connection is gone. */
static int send_some(struct once__redis_link *l, int *moved)
{
    ssize_t n = 1;

    while (l->sent < l->out_size && n > 0) {
        const uint8_t *from = l->out + l->sent;
        size_t left = l->out_size - l->sent;

        n = l->ssl != NULL ? once__redis_tls_send(l->ssl, from, left)
                           : plain(send(l->fd, from, left, MSG_NOSIGNAL));
        if (n < 0)
            return 0;
        l->sent += (size_t)n;
        l->written += (uint64_t)n;
        *moved |= n > 0;
    }
    return 1;
}

static int take_replies(struct once__redis_link *l)
{
    void *reply = NULL;

    while (l->count < l->expected) {
        if (redisReaderGetReply(l->reader, &reply) != REDIS_OK)
            return 0;
        if (reply == NULL)
            return 1;
        l->replies[l->count++] = reply;
    }
    return 1;
}

static int receive_some(struct once__redis_link *l, int *moved)
{
    char chunk[CHUNK];
    ssize_t n = 1;

    while (l->count < l->expected && n > 0) {
        n = l->ssl != NULL ? once__redis_tls_recv(l->ssl, chunk, sizeof(chunk))
                           : plain(recv(l->fd, chunk, sizeof(chunk), 0));
        if (n < 0) {
            once__redis_link_fail(l, "the connection is gone");
            return 0;
        }
        *moved |= n > 0;
        if (n > 0 &&
            (redisReaderFeed(l->reader, chunk, (size_t)n) != REDIS_OK ||
             !take_replies(l))) {
            once__redis_link_fail(l, "it does not speak Redis");
            return 0;
        }
    }
    return 1;
}

static int busy(const struct once__redis_link *l)
{
    return l->fd >= 0 && l->count < l->expected;
}

static int step(struct once__redis_link *l, short got)
{
    int moved = 0;

    if (got & (POLLIN | POLLHUP | POLLERR) && !receive_some(l, &moved))
        return moved;
    if (got & POLLOUT && !send_some(l, &moved))
        once__redis_link_fail(l, "the connection is gone");
    return moved;
}

/* One turn over all busy links. Returns how many are left, -1: nothing moved
 * for so long. */
static int turn(struct once__redis_link **links, size_t n, int ms)
{
    struct pollfd fds[ONCE__REDIS_NODES];
    size_t i, k = 0;
    int moved = 0;

    for (i = 0; i < n; i++)
        if (busy(links[i]))
            fds[k++] = (struct pollfd){
                links[i]->fd,
                links[i]->sent < links[i]->out_size ? POLLIN | POLLOUT : POLLIN,
                0};
    if (k == 0)
        return 0;
    if (poll(fds, (nfds_t)k, ms) <= 0)
        return -1;
    for (i = 0, k = 0; i < n; i++)
        if (busy(links[i])) {
            int fd = links[i]->fd;

            moved += fd == fds[k].fd && step(links[i], fds[k].revents);
            k++;
        }
    return moved ? 1 : -1;
}

void once__redis_exchange(struct once__redis_link **links, size_t n)
{
    uint64_t limit, now = once__steady_ms(), quiet, over;
    size_t i;
    int left = 1, moved = 0;

    if (n == 0)
        return;
    limit = links[0]->config->timeout_ms + links[0]->config->wait_ms;
    quiet = now + limit;
    over = now + limit * LIMITS;
    for (i = 0; i < n; i++)
        if (busy(links[i]) && !send_some(links[i], &moved))
            once__redis_link_fail(links[i], "the connection is gone");
    while (left != 0 && now < quiet && now < over) {
        left = turn(links, n, (int)(quiet - now));
        now = once__steady_ms();
        if (left > 0)
            quiet = now + limit;
    }
    for (i = 0; i < n; i++) {
        if (busy(links[i]))
            once__redis_link_fail(links[i], "no answer in time");
        links[i]->out_size = links[i]->sent = 0;
    }
}

int once__redis_link_step(struct once__redis_link *l, int ms)
{
    struct pollfd p = {l->fd, POLLIN, 0};

    if (l->fd < 0)
        return 0;
    if (l->sent < l->out_size)
        p.events |= POLLOUT;
    if (poll(&p, 1, ms) > 0)
        (void)step(l, p.revents);
    if (l->sent == l->out_size)
        l->sent = l->out_size = 0;
    return l->fd >= 0;
}

void once__redis_link_shift(struct once__redis_link *l)
{
    size_t left = l->expected - l->count;

    while (l->count > 0)
        freeReplyObject(l->replies[--l->count]);
    l->expected = left;
}

const redisReply *once__redis_call(struct once__redis_link *l, size_t argc,
                                   const char *const *argv)
{
    once_bytes args[8];
    size_t i, reply = 0;

    if (l->fd < 0 || argc > sizeof(args) / sizeof(args[0]))
        return NULL;
    for (i = 0; i < argc; i++)
        args[i] = (once_bytes){argv[i], strlen(argv[i])};
    if (!once__redis_command(l, argc, args, &reply))
        return NULL;
    once__redis_exchange(&l, 1);
    return once__redis_reply(l, reply);
}

/* ---- Connecting --------------------------------------------------------- */

/* Waits for the socket. 0: not in time. */
static int wait_for(int fd, short events, uint64_t until_ms)
{
    struct pollfd p = {fd, events, 0};
    uint64_t now = once__steady_ms();

    return now < until_ms && poll(&p, 1, (int)(until_ms - now)) > 0;
}

/* 0: `errno` says why not. */
static int connect_to(int fd, const struct sockaddr *address, socklen_t size,
                      uint64_t until_ms)
{
    socklen_t length = sizeof(errno);
    int error = 0;

    if (connect(fd, address, size) == 0)
        return 1;
    if (errno != EINPROGRESS)
        return 0;
    if (!wait_for(fd, POLLOUT, until_ms)) {
        errno = ETIMEDOUT;
        return 0;
    }
    (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    errno = error;
    return error == 0;
}

static int connect_socket(struct once__redis_link *l, uint64_t until_ms)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%.107s",
                   l->place.host);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return l->fd >= 0 && connect_to(l->fd, (struct sockaddr *)&address,
                                    sizeof(address), until_ms);
}

/* 1, 0: `errno` says why not, or -1: it was reported. */
static int connect_tcp(struct once__redis_link *l, uint64_t until_ms)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL, *a;
    int one = 1, up = 0, rc;

    rc = getaddrinfo(l->place.host, l->place.port, &hints, &list);
    if (rc == EAI_SYSTEM)
        return 0;
    if (rc != 0) {
        once__redis_link_fail(l, "%s", gai_strerror(rc));
        return -1;
    }
    for (a = list; a != NULL && !up; a = a->ai_next) {
        if (l->fd >= 0)
            (void)close(l->fd);
        l->fd =
            socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        up = l->fd >= 0 &&
             connect_to(l->fd, a->ai_addr, a->ai_addrlen, until_ms);
    }
    freeaddrinfo(list);
    if (up) {
        (void)setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        (void)setsockopt(l->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    }
    return up;
}

static int greet_tls(struct once__redis_link *l, uint64_t until_ms)
{
    char why[100] = "";
    short events = 0;
    int rc = 0;

    l->ssl = once__redis_tls_attach(l->tls, l->fd, l->config, l->place.host);
    if (l->ssl == NULL) {
        once__redis_link_fail(l, "TLS: out of memory");
        return ONCE_ESTORE;
    }
    while (rc == 0) {
        rc = once__redis_tls_greet(l->ssl, &events, why, sizeof(why));
        l->spoke = rc < 0;
        if (rc == 0 && !wait_for(l->fd, events, until_ms)) {
            (void)snprintf(why, sizeof(why), "no answer in time");
            rc = -1;
        }
    }
    if (rc > 0)
        return ONCE_OK;
    once__redis_link_fail(l, "TLS: %s", why);
    return ONCE_ESTORE;
}

int once__redis_link_dial(struct once__redis_link *l)
{
    uint64_t until_ms = once__steady_ms() + l->config->timeout_ms;
    int up;

    if (l->fd >= 0)
        return ONCE_OK;
    if (once__steady_ms() < l->retry_ms)
        return ONCE_ESTORE; /* the trouble is still the last one's */
    l->refused = l->spoke = 0;
    l->heard_us = 0; /* another server may have another time */
    l->generation++;
    l->written = 0;
    l->reader = redisReaderCreate();
    up = l->place.port[0] == '\0' ? connect_socket(l, until_ms)
                                  : connect_tcp(l, until_ms);
    if (up == 0 || (up > 0 && l->reader == NULL))
        once__redis_link_fail(l, "%s", strerror(errno));
    if (up <= 0 || l->reader == NULL)
        return ONCE_ESTORE;
    return l->tls != NULL ? greet_tls(l, until_ms) : ONCE_OK;
}

/* ---- The greeting ------------------------------------------------------- */

/* The value of "field:" in what INFO says, up to the end of its line. */
static size_t info(const redisReply *r, const char *field, const char **value)
{
    size_t n = strlen(field);
    const char *at = r->str;

    while (at != NULL) {
        if (strncmp(at, field, n) == 0 && at[n] == ':') {
            *value = at + n + 1;
            return strcspn(*value, "\r\n");
        }
        at = strchr(at, '\n');
        at = at == NULL ? NULL : at + 1;
    }
    *value = "";
    return 0;
}

static int info_is(const redisReply *r, const char *field, const char *value)
{
    const char *is;
    size_t n = info(r, field, &is);

    return n == strlen(value) && memcmp(is, value, n) == 0;
}

static int refuse(struct once__redis_link *l, const char *why)
{
    once__redis_link_fail(l, "%s", why);
    l->refused = l->spoke = 1;
    return ONCE_ESTORE;
}

/* Does it keep what it has? */
static int judge_room(struct once__redis_link *l, const redisReply *r)
{
    const char *evicted;

    if (!info_is(r, "maxmemory_policy", "noeviction"))
        return refuse(l, "its maxmemory-policy is not noeviction: it would "
                         "drop records to make room");
    (void)info(r, "evicted_keys", &evicted);
    l->evicted = strtoull(evicted, NULL, 10);
    l->watched_us = once__steady_us();
    return ONCE_OK;
}

static int judge_info(struct once__redis_link *l, const redisReply *r)
{
    const char *version;

    if (r->type != REDIS_REPLY_STRING)
        return refuse(l, "it does not say what it is: the user needs INFO");
    (void)info(r, "redis_version", &version);
    if (version[0] >= '0' && version[0] < '7' && version[1] == '.')
        return refuse(l, "it is older than Redis 7");
    if (judge_room(l, r) != ONCE_OK)
        return ONCE_ESTORE;
    l->cluster = info_is(r, "cluster_enabled", "1");
    if (l->cluster != (l->config->mode == ONCE__REDIS_CLUSTER))
        return refuse(l, l->cluster ? "it is a cluster: use redis+cluster"
                                    : "it is not a cluster");
    l->primary = info_is(r, "role", "master");
    l->aof = info_is(r, "aof_enabled", "1");
    if (l->primary && info_is(r, "loading", "0"))
        return ONCE_OK;
    once__redis_link_fail(l, l->primary ? "it is still loading"
                                        : "it is a replica");
    return ONCE_ESTORE;
}

static void judge_fsync(struct once__redis_link *l, const redisReply *r)
{
    l->fsync_known = r->type == REDIS_REPLY_ARRAY && r->elements == 2 &&
                     r->element[1]->type == REDIS_REPLY_STRING;
    l->fsync_always =
        l->fsync_known && strcmp(r->element[1]->str, "always") == 0;
}

enum { LOGIN, SELECT, INFO, FSYNC, SCRIPT, MARK, GREETINGS };

static int ask_greetings(struct once__redis_link *l, size_t *at)
{
    const struct once__redis_config *c = l->config;
    const char *user = c->user[0] != '\0' ? c->user : "default";
    char db[24], mark[ONCE__REDIS_MARK_KEY];
    once_bytes text[4];
    const char *const words[GREETINGS][4] = {
        [LOGIN] = {"AUTH", user, c->password, NULL},
        [SELECT] = {"SELECT", db, NULL, NULL},
        [INFO] = {"INFO", NULL, NULL, NULL},
        [FSYNC] = {"CONFIG", "GET", "appendfsync", NULL},
        [SCRIPT] = {"SCRIPT", "LOAD", l->script, NULL},
        [MARK] = {"GET", mark, NULL, NULL},
    };
    size_t i, n, ok = 1;

    (void)snprintf(db, sizeof(db), "%u", (unsigned)c->db);
    once__redis_mark_key(c, mark);
    for (i = 0; i < GREETINGS && ok; i++) {
        at[i] = SIZE_MAX;
        if ((i == LOGIN && c->password[0] == '\0') ||
            (i == SELECT && c->db == 0) || (i == MARK && l->mark == NULL))
            continue;
        for (n = 0; n < 4 && words[i][n] != NULL; n++)
            text[n] = (once_bytes){words[i][n], strlen(words[i][n])};
        ok = (size_t)once__redis_command(l, n, text, &at[i]);
    }
    return (int)ok;
}

/* Error replies are known by their code: what follows may quote us. */
static void code_of(const redisReply *r, char *out, size_t size)
{
    size_t n = strcspn(r->str, " ");

    (void)snprintf(out, size, "%.*s", n < 24 ? (int)n : 24, r->str);
}

/* Which store it is, if it was asked. */
static int judge_mark(struct once__redis_link *l, size_t at)
{
    const redisReply *r = at == SIZE_MAX ? NULL : once__redis_reply(l, at);
    const char *why = r == NULL ? NULL : once__redis_mark_judge(l->mark, r);

    return why == NULL ? ONCE_OK : refuse(l, why);
}

static int judge(struct once__redis_link *l, const size_t *at)
{
    const redisReply *r;
    char code[32];
    size_t i;

    for (i = 0; i < GREETINGS; i++) {
        r = at[i] == SIZE_MAX ? NULL : once__redis_reply(l, at[i]);
        if (r == NULL || r->type != REDIS_REPLY_ERROR || i == FSYNC ||
            i == MARK)
            continue;
        code_of(r, code, sizeof(code));
        if (i == LOGIN)
            return refuse(l, "it does not accept user and password");
        if (strcmp(code, "NOAUTH") == 0)
            return refuse(l, "it requires a user and a password (NOAUTH)");
        once__redis_link_fail(l, "%s: it answers %s",
                              i == SELECT ? "the database in the URL"
                              : i == INFO ? "INFO"
                                          : "SCRIPT LOAD",
                              code);
        l->refused = strcmp(code, "NOPERM") == 0 || i == SELECT;
        l->spoke = l->refused; /* others pass: LOADING, BUSY */
        return ONCE_ESTORE;
    }
    if (judge_info(l, once__redis_reply(l, at[INFO])) != ONCE_OK)
        return ONCE_ESTORE;
    judge_fsync(l, once__redis_reply(l, at[FSYNC]));
    r = once__redis_reply(l, at[SCRIPT]);
    if (r->type != REDIS_REPLY_STRING || r->len != sizeof(l->sha) - 1)
        return refuse(l, "it does not take the script");
    memcpy(l->sha, r->str, sizeof(l->sha));
    l->loaded = 1;
    return judge_mark(l, at[MARK]);
}

int once__redis_link_up(struct once__redis_link *l)
{
    size_t at[GREETINGS];

    if (l->fd >= 0)
        return ONCE_OK;
    if (once__redis_link_dial(l) != ONCE_OK)
        return ONCE_ESTORE;
    if (!ask_greetings(l, at)) {
        once__redis_link_fail(l, "out of memory");
        return ONCE_ESTORE;
    }
    once__redis_exchange(&l, 1);
    explicit_bzero(l->out, l->out_room); /* there was a password in it */
    if (l->fd < 0)
        return ONCE_ESTORE;
    if (judge(l, at) != ONCE_OK)
        return ONCE_ESTORE;
    l->failures = 0;
    return ONCE_OK;
}

/* ---- Asking again ------------------------------------------------------- */

int once__redis_link_watch(struct once__redis_link *l)
{
    const once_bytes words[] = {{"INFO", 4}, {"memory", 6}, {"stats", 5}};
    char key[ONCE__REDIS_MARK_KEY];
    once_bytes get[] = {{"GET", 3}, {key, 0}};
    size_t index;

    if (l->watch_reply != 0 || once__steady_us() - l->watched_us < WATCH_US)
        return 1;
    if (!once__redis_command(l, 3, words, &index))
        return 0;
    l->watch_reply = index + 1;
    if (l->mark == NULL)
        return 1;
    once__redis_mark_key(l->config, key);
    get[1].size = strlen(key);
    if (!once__redis_command(l, 2, get, &index))
        return 0;
    l->mark_reply = index + 1;
    return 1;
}

void once__redis_link_watched(struct once__redis_link *l)
{
    uint64_t before = l->evicted;
    size_t mark = l->mark_reply;
    const redisReply *r;

    if (l->watch_reply == 0)
        return;
    r = once__redis_reply(l, l->watch_reply - 1);
    l->watch_reply = l->mark_reply = 0;
    if (r == NULL)
        return;
    if (r->type != REDIS_REPLY_STRING)
        (void)refuse(l, "it does not say what it is any more");
    else if (judge_room(l, r) == ONCE_OK && l->evicted > before)
        (void)refuse(l, "it has dropped keys to make room: records may be "
                        "lost, see its maxmemory-policy");
    else if (l->fd >= 0 && mark != 0)
        (void)judge_mark(l, mark - 1);
}
