/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen.c - where a program may be reached: a socket file, or loopback.
 *
 * It refuses every other address, also one that systemd hands over: who
 * reaches it from afar comes through ssh or a proxy that knows him.
 */
#include "programs/terminal/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 512, FIRST_FD = 3 };

static const char wanted[] =
    "--listen is unix:PATH, 127.0.0.1:PORT, [::1]:PORT or systemd: nothing "
    "that others can reach";

static int failed(const struct cli_listen *l, const char *what)
{
    return cli_say(l->c, CLI_STORE, "--listen: %s: %s", what, strerror(errno));
}

/* The kernel's word on what a socket listens to. */
static int take(struct cli_listen *l, int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_un un;
        struct sockaddr_storage room;
    } a = {.any = {0}};
    socklen_t size = sizeof(a);

    if (getsockname(fd, &a.any, &size) < 0)
        return failed(l, "getsockname");
    l->local = a.any.sa_family == AF_UNIX;
    if (a.any.sa_family == AF_INET &&
        ntohl(a.in.sin_addr.s_addr) == INADDR_LOOPBACK)
        l->port = ntohs(a.in.sin_port);
    else if (a.any.sa_family == AF_INET6 &&
             IN6_IS_ADDR_LOOPBACK(&a.in6.sin6_addr))
        l->port = ntohs(a.in6.sin6_port);
    else if (!l->local)
        return cli_usage(l->c, "%s", wanted);
    l->fd = fd;
    return CLI_OK;
}

static int bind_to(struct cli_listen *l, const struct sockaddr *a,
                   socklen_t size)
{
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1, rc;

    if (fd < 0)
        return failed(l, "socket");
    if (a->sa_family != AF_UNIX)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, a, size) < 0 || listen(fd, BACKLOG) < 0)
        rc = failed(l, "bind");
    else
        rc = take(l, fd);
    if (rc != CLI_OK)
        close(fd);
    return rc;
}

/* ---- A socket file ------------------------------------------------------- */

/* What a process that died has left is in the way; one that lives is not ours
 * to take away. */
static int clear_path(struct cli_listen *l, const struct sockaddr_un *a)
{
    struct stat st;
    int fd, alive;

    if (lstat(a->sun_path, &st) < 0)
        return CLI_OK;
    if (!S_ISSOCK(st.st_mode))
        return cli_say(l->c, CLI_STORE,
                       "--listen: there is a file of this name that is no "
                       "socket");
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return failed(l, "socket");
    alive = connect(fd, (const struct sockaddr *)a, sizeof(*a)) == 0 ||
            errno != ECONNREFUSED;
    close(fd);
    if (alive)
        return cli_say(l->c, CLI_STORE,
                       "--listen: another process listens there");
    return unlink(a->sun_path) < 0 ? failed(l, "unlink") : CLI_OK;
}

static int listen_at_path(struct cli_listen *l, const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const struct group *group = getgrnam(l->group);
    mode_t mask;
    int rc;

    if (path[0] != '/' || strlen(path) >= sizeof(a.sun_path))
        return cli_usage(l->c,
                         "--listen unix:PATH: a whole path of up to %zu bytes",
                         sizeof(a.sun_path) - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    rc = clear_path(l, &a);
    if (rc != CLI_OK)
        return rc;
    mask = umask(0117); /* 0660 from the first moment on */
    rc = bind_to(l, (const struct sockaddr *)&a, sizeof(a));
    umask(mask);
    if (rc != CLI_OK)
        return rc;
    l->unlink_path = path;
    /* Not allowed to: then it is the group of this process. */
    if (group != NULL && lchown(path, (uid_t)-1, group->gr_gid) < 0)
        cli_say(l->c, 0, "the socket stays in the group of this process: %s",
                strerror(errno));
    return CLI_OK;
}

/* ---- Loopback ------------------------------------------------------------ */

static int listen_at_port(struct cli_listen *l, const char *where)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    const char *colon = strrchr(where, ':');
    uint64_t port;
    int rc, six;

    if (colon == NULL)
        return cli_usage(l->c, "%s", wanted);
    six = strncmp(where, "[::1]:", 6) == 0 && colon == where + 5;
    if (!six && (strncmp(where, "127.0.0.1:", 10) != 0 || colon != where + 9))
        return cli_usage(l->c, "%s", wanted);
    rc = cli_read_number(l->c, "--listen", colon + 1, 0, 65535, &port);
    if (rc != CLI_OK)
        return rc;
    in.sin_port = in6.sin6_port = htons((uint16_t)port);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in6.sin6_addr = in6addr_loopback;
    return six ? bind_to(l, (const struct sockaddr *)&in6, sizeof(in6))
               : bind_to(l, (const struct sockaddr *)&in, sizeof(in));
}

/* ---- From systemd -------------------------------------------------------- */

static int take_from_systemd(struct cli_listen *l)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");

    if (pid == NULL || n == NULL || strcmp(n, "1") != 0 ||
        strtol(pid, NULL, 10) != (long)getpid())
        return cli_usage(l->c,
                         "--listen systemd: it has handed over no socket");
    return take(l, FIRST_FD);
}

int cli_listen(struct cli_listen *l, const char *where)
{
    if (strcmp(where, "systemd") == 0)
        return take_from_systemd(l);
    if (strncmp(where, "unix:", 5) == 0)
        return listen_at_path(l, where + 5);
    return listen_at_port(l, where);
}

void cli_unlisten(struct cli_listen *l)
{
    if (l->unlink_path != NULL)
        (void)unlink(l->unlink_path);
}
