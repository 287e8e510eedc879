/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.c - the processes that speak to us. When one dies, what it has begun is
 * unknown at once, and not only when its time is over.
 *
 * The kernel says who called connect(). A child that uses its parent's connection
 * would be taken for its parent: middlewares do not. A closed connection is no
 * death. A process of another pid namespace is seen by SO_PEERPIDFD only (Linux
 * 6.5); by TCP none is.
 */
#include "programs/serve/serve.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static int has_died(const struct serve_owner *w)
{
    struct pollfd p = {w->pidfd, POLLIN, 0};

    return w->dead || (w->pidfd >= 0 && poll(&p, 1, 0) > 0);
}

/* Of processes of another pid namespace only the number 0 is known. */
static struct serve_owner *find(const struct serve *s, const struct ucred *u)
{
    struct serve_owner *w;

    for (w = s->owners; w != NULL; w = w->next)
        if (w->pid == u->pid && u->pid != 0 && w->uid == u->uid && !has_died(w))
            return w;
    return NULL;
}

static int pidfd_of(int fd, const struct ucred *u)
{
    socklen_t size = sizeof(int);
    int out = -1;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &out, &size) == 0)
        return out;
    return u->pid > 0 ? (int)syscall(SYS_pidfd_open, u->pid, 0) : -1;
}

static struct serve_owner *owner_new(struct serve *s, const struct ucred *u,
                                     int pidfd)
{
    struct serve_owner *w = calloc(1, sizeof(*w));
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = w};

    if (w == NULL)
        return NULL;
    w->pid = u->pid;
    w->uid = u->uid;
    w->pidfd = pidfd;
    w->open.previous = w->open.next = &w->open;
    if (pidfd >= 0)
        (void)epoll_ctl(s->deaths, EPOLL_CTL_ADD, pidfd, &e);
    w->next = s->owners;
    w->link = &s->owners;
    if (w->next != NULL)
        w->next->link = &w->next;
    s->owners = w;
    return w;
}

struct serve_owner *serve_owner_of(struct serve *s, int fd)
{
    struct ucred u = {.pid = -1, .uid = (uid_t)-1, .gid = (gid_t)-1};
    socklen_t size = sizeof(u);
    struct serve_owner *w;
    int pidfd = -1;

    if (s->listen.local)
        (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &size);
    w = find(s, &u);
    if (w == NULL) {
        if (s->listen.local)
            pidfd = pidfd_of(fd, &u);
        w = owner_new(s, &u, pidfd);
        if (w == NULL && pidfd >= 0)
            close(pidfd);
    }
    if (w != NULL)
        w->uses++;
    return w;
}

void serve_owner_drop(struct serve *s, struct serve_owner *w)
{
    (void)s;
    if (w == NULL || --w->uses > 0)
        return;
    *w->link = w->next;
    if (w->next != NULL)
        w->next->link = w->link;
    if (w->pidfd >= 0)
        close(w->pidfd); /* which takes it out of the epoll */
    free(w);
}

int serve_owner_may(const struct serve_owner *by, const struct serve_owner *w)
{
    return by->uid == w->uid || by->uid == 0;
}
