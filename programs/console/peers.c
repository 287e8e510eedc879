/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.c - how many may be connected, and for how long, so that nobody keeps
 * an operator out by being slow.
 *
 * A connection is worth keeping while it works. One that has only begun to ask,
 * or that does not fetch its answer, has a deadline that no byte extends, and
 * gives way to the next caller: first those who have not been identified, the
 * oldest first. A connection that gives way is shut down here; its own
 * thread sees that and ends it.
 */
#include "programs/console/console.h"

#include <sys/socket.h>

#include "base/steady.h"

/* How long each step may take. */
enum {
    ASK_MS = 10000,     /* from connecting to the end of the head      */
    UNKNOWN_MS = 20000, /* not identified: this for the rest           */
    BODY_MS = 60000,    /* to send the body, or to fetch the answer    */
    IDLE_MS = 120000    /* until the next request                      */
};

/* Each user of the host, and what comes through a proxy or loopback. */
enum { USER_MAX = 16, MANY_MAX = 48 };

enum { FREE, WAITS, WORKS };

static struct console_peer *peer_of(struct console *con,
                                    const struct MHD_Connection *c)
{
    size_t i;

    for (i = 0; i < CONSOLE_PEERS; i++)
        if (con->peers[i].step != FREE && con->peers[i].c == c)
            return &con->peers[i];
    return NULL;
}

/* Is `a` to go before `b`? */
static int goes_before(const struct console_peer *a,
                       const struct console_peer *b)
{
    if (b == NULL || a->known != b->known)
        return b == NULL || !a->known;
    return a->number < b->number;
}

static size_t count(const struct console *con, int64_t uid,
                    const struct console_peer **victim)
{
    const struct console_peer *p = con->peers;
    size_t n = 0;

    *victim = NULL;
    for (; p < con->peers + CONSOLE_PEERS; p++) {
        if (p->step == FREE || p->gone || (uid >= 0 && p->uid != uid))
            continue;
        n++;
        if (p->step == WAITS && goes_before(p, *victim))
            *victim = p;
    }
    return n;
}

/* Its place in the table is free when its thread has ended it. */
static void end(struct console_peer *p)
{
    p->gone = 1;
    (void)shutdown(p->fd, SHUT_RDWR);
}

/* 1 if there is room for one more of these: at once, or by one that goes. */
static int make_room(struct console *con, int64_t uid, size_t most)
{
    const struct console_peer *victim;

    if (count(con, uid, &victim) < most)
        return 1;
    if (victim == NULL)
        return 0;
    end(&con->peers[victim - con->peers]);
    return 1;
}

static void add(struct console *con, struct console_peer *p,
                struct MHD_Connection *c, int fd, int64_t uid)
{
    size_t most = uid >= 0 && !console_is_trusted(con, (uint32_t)uid)
                      ? USER_MAX
                      : MANY_MAX;
    int room = make_room(con, uid, most) &&
               make_room(con, -1, CONSOLE_CONNECTIONS_MAX);

    *p = (struct console_peer){.c = c,
                               .fd = fd,
                               .uid = uid,
                               .step = WAITS,
                               .number = ++con->connected,
                               .deadline_ms = once__steady_ms() + ASK_MS};
    if (!room)
        end(p);
}

void console_peer_comes(struct console *con, struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct ucred peer = {.uid = 0};
    socklen_t size = sizeof(peer);
    int64_t uid = -1;
    size_t i;

    if (con->listen.local && getsockopt(info->connect_fd, SOL_SOCKET,
                                        SO_PEERCRED, &peer, &size) == 0)
        uid = peer.uid;
    pthread_mutex_lock(&con->lock);
    for (i = 0; i < CONSOLE_PEERS && con->peers[i].step != FREE; i++)
        ;
    if (i < CONSOLE_PEERS)
        add(con, &con->peers[i], c, info->connect_fd, uid);
    else
        (void)shutdown(info->connect_fd, SHUT_RDWR);
    pthread_mutex_unlock(&con->lock);
}

void console_peer_goes(struct console *con, struct MHD_Connection *c)
{
    struct console_peer *p;

    pthread_mutex_lock(&con->lock);
    p = peer_of(con, c);
    if (p != NULL)
        p->step = FREE;
    pthread_mutex_unlock(&con->lock);
}

static void set(struct console_request *ask, int step, int known, uint64_t ms)
{
    struct console_peer *p;

    pthread_mutex_lock(&ask->con->lock);
    p = peer_of(ask->con, ask->c);
    if (p != NULL) {
        p->step = step;
        p->known = known;
        p->deadline_ms = once__steady_ms() + ms;
    }
    pthread_mutex_unlock(&ask->con->lock);
}

void console_peer_asks(struct console_request *ask)
{
    console_peer_works(ask, 0);
}

void console_peer_works(struct console_request *ask, int works)
{
    set(ask, works ? WORKS : WAITS, ask->known,
        ask->known ? BODY_MS : UNKNOWN_MS);
}

void console_peer_rests(struct console_request *ask)
{
    set(ask, WAITS, ask->known, ask->known ? IDLE_MS : UNKNOWN_MS);
}

void console_peers_end_late(struct console *con)
{
    uint64_t now = once__steady_ms();
    struct console_peer *p;

    pthread_mutex_lock(&con->lock);
    for (p = con->peers; p < con->peers + CONSOLE_PEERS; p++)
        if (p->step == WAITS && !p->gone && now >= p->deadline_ms)
            end(p);
    pthread_mutex_unlock(&con->lock);
}
