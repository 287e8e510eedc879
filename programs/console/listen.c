/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen.c - where the console may be reached: a socket file, or loopback.
 *
 * It refuses every other address, also one that systemd hands over: who
 * reaches the console from afar comes through ssh or a proxy that knows him.
 */
#include "programs/console/console.h"

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

static int failed(const struct console *con, const char *what)
{
    return cli_say(con->cli, CLI_STORE, "--listen: %s: %s", what,
                   strerror(errno));
}

/* The kernel's word on what a socket listens to. */
static int take(struct console *con, int fd)
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
        return failed(con, "getsockname");
    con->local = a.any.sa_family == AF_UNIX;
    if (a.any.sa_family == AF_INET &&
        ntohl(a.in.sin_addr.s_addr) == INADDR_LOOPBACK)
        con->port = ntohs(a.in.sin_port);
    else if (a.any.sa_family == AF_INET6 &&
             IN6_IS_ADDR_LOOPBACK(&a.in6.sin6_addr))
        con->port = ntohs(a.in6.sin6_port);
    else if (!con->local)
        return cli_usage(con->cli, "%s", wanted);
    con->fd = fd;
    return CLI_OK;
}

static int bind_to(struct console *con, const struct sockaddr *a,
                   socklen_t size)
{
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1, rc;

    if (fd < 0)
        return failed(con, "socket");
    if (a->sa_family != AF_UNIX)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, a, size) < 0 || listen(fd, BACKLOG) < 0)
        rc = failed(con, "bind");
    else
        rc = take(con, fd);
    if (rc != CLI_OK)
        close(fd);
    return rc;
}

/* ---- A socket file ------------------------------------------------------- */

/* What a console that died has left is in the way; one that lives is not ours
 * to take away. */
static int clear_path(struct console *con, const struct sockaddr_un *a)
{
    struct stat st;
    int fd, alive;

    if (lstat(a->sun_path, &st) < 0)
        return CLI_OK;
    if (!S_ISSOCK(st.st_mode))
        return cli_say(con->cli, CLI_STORE,
                       "--listen: there is a file of this name that is no "
                       "socket");
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return failed(con, "socket");
    alive = connect(fd, (const struct sockaddr *)a, sizeof(*a)) == 0 ||
            errno != ECONNREFUSED;
    close(fd);
    if (alive)
        return cli_say(con->cli, CLI_STORE,
                       "--listen: another process listens there");
    return unlink(a->sun_path) < 0 ? failed(con, "unlink") : CLI_OK;
}

static int listen_at_path(struct console *con, const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const struct group *operators = getgrnam("once-operators");
    mode_t mask;
    int rc;

    if (path[0] != '/' || strlen(path) >= sizeof(a.sun_path))
        return cli_usage(con->cli,
                         "--listen unix:PATH: a whole path of up to %zu bytes",
                         sizeof(a.sun_path) - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    rc = clear_path(con, &a);
    if (rc != CLI_OK)
        return rc;
    mask = umask(0117); /* 0660 from the first moment on */
    rc = bind_to(con, (const struct sockaddr *)&a, sizeof(a));
    umask(mask);
    if (rc != CLI_OK)
        return rc;
    con->unlink_path = path;
    /* Not allowed to: then it is the group of this process. */
    if (operators != NULL && lchown(path, (uid_t)-1, operators->gr_gid) < 0)
        cli_say(con->cli, 0,
                "the socket stays in the group of this process: %s",
                strerror(errno));
    return CLI_OK;
}

/* ---- Loopback ------------------------------------------------------------ */

static int listen_at_port(struct console *con, const char *where)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    const char *colon = strrchr(where, ':');
    uint64_t port;
    int rc, six;

    if (colon == NULL)
        return cli_usage(con->cli, "%s", wanted);
    six = strncmp(where, "[::1]:", 6) == 0 && colon == where + 5;
    if (!six && (strncmp(where, "127.0.0.1:", 10) != 0 || colon != where + 9))
        return cli_usage(con->cli, "%s", wanted);
    rc = cli_read_number(con->cli, "--listen", colon + 1, 0, 65535, &port);
    if (rc != CLI_OK)
        return rc;
    in.sin_port = in6.sin6_port = htons((uint16_t)port);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in6.sin6_addr = in6addr_loopback;
    return six ? bind_to(con, (const struct sockaddr *)&in6, sizeof(in6))
               : bind_to(con, (const struct sockaddr *)&in, sizeof(in));
}

/* ---- From systemd -------------------------------------------------------- */

static int take_from_systemd(struct console *con)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");

    if (pid == NULL || n == NULL || strcmp(n, "1") != 0 ||
        strtol(pid, NULL, 10) != (long)getpid())
        return cli_usage(con->cli,
                         "--listen systemd: it has handed over no socket");
    return take(con, FIRST_FD);
}

int console_listen(struct console *con, const char *where)
{
    if (strcmp(where, "systemd") == 0)
        return take_from_systemd(con);
    if (strncmp(where, "unix:", 5) == 0)
        return listen_at_path(con, where + 5);
    return listen_at_port(con, where);
}

void console_unlisten(struct console *con)
{
    if (con->unlink_path != NULL)
        (void)unlink(con->unlink_path);
}
