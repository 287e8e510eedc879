/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_ask.c - questions that may have no answer: who waits says so, and another
 * thread ends what has waited for too long.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/steady.h"
#include "messages/relay/base_driver.h"

enum { TCP_MS = 20000 };

const once_tx *once__base_ask(struct once__base *b)
{
    atomic_store(&b->asked_ms, once__steady_ms());
    return &b->tx;
}

int once__base_answered(struct once__base *b, int rc)
{
    atomic_store(&b->asked_ms, 0);
    return rc;
}

/* The client library may close its descriptor at any time, and the number may then
 * be that of another file. So this thread has one of its own for the same socket. */
static void keep_spare(struct once__base *b, int fd)
{
    (void)pthread_mutex_lock(&b->lock);
    if (b->spare >= 0)
        (void)close(b->spare);
    b->spare = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    (void)pthread_mutex_unlock(&b->lock);
}

void once__base_watch(struct once__base *b, uint32_t ms)
{
    uint64_t asked = atomic_load(&b->asked_ms);

    if (asked == 0 || once__steady_ms() - asked <= ms)
        return;
    (void)pthread_mutex_lock(&b->lock);
    if (b->spare >= 0)
        (void)shutdown(b->spare, SHUT_RDWR);
    (void)pthread_mutex_unlock(&b->lock);
}

/* A network that is cut is noticed after TCP_MS, instead of after hours. */
static void bound_tcp(int fd)
{
    int on = 1, idle_s = TCP_MS / 2000, ms = TCP_MS;

    if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) != 0)
        return; /* not a TCP connection */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

void once__base_keep_socket(struct once__base *b, int fd)
{
    if (fd >= 0)
        bound_tcp(fd);
    keep_spare(b, fd);
}
