/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - `once serve`: options, the store, the loop, start and end.
 *
 *    options --> store --> routes --> socket --> ready --> loop
 *                                                           |  SIGTERM
 *       what the store was asked is answered <--------------+
 *       the socket and the store are closed; exchanges whose handlers run are
 *       left as they are: the next server takes their ends
 *
 * The loop is ours, over libmicrohttpd's epoll descriptor: with a thread of its
 * own each request would cost two changes of threads more.
 */
#include "programs/serve/check.h"
#include "programs/serve/serve.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/secret_file.h"
#include "calls/store/store.h"

enum {
    TURN_MS = 100,
    END_MS = 10000, /* the store's own limits end what is asked before */
    MAX_OPEN = 100000
};
#define BUFFERS (UINT64_C(256) << 20)

static const struct cli_command command = {
    .name = "serve", .help = serve_help, .options = serve_options};

struct options {
    struct serve *s;
    const char *listen, *token_file, *check;
    const char *routes[SERVE_NAMED_MAX];
    size_t n_routes;
    int may_forget;
};

/* ---- Options ------------------------------------------------------------------ */

static int take(const struct cli *c, void *user, int o)
{
    struct options *p = user;
    uint64_t n;
    int rc = CLI_OK;

    switch (o) {
    case SERVE_OPT_LISTEN:
        p->listen = optarg;
        break;
    case SERVE_OPT_TOKEN_FILE:
        p->token_file = optarg;
        break;
    case SERVE_OPT_LOG:
        p->s->log = 1;
        break;
    case SERVE_OPT_CHECK:
        p->check = optarg;
        break;
    case SERVE_OPT_ROUTE:
        if (p->n_routes == SERVE_NAMED_MAX)
            return cli_usage(c, "--define may be given %d times",
                             SERVE_NAMED_MAX);
        p->routes[p->n_routes++] = optarg;
        break;
    case SERVE_OPT_ROUTES_ONLY:
        p->s->routes_only = 1;
        break;
    case SERVE_OPT_REALM:
        if (optarg[0] == '\0' || strlen(optarg) > SERVE_REALM_MAX)
            return cli_usage(c, "--realm is a text of up to %d bytes",
                             SERVE_REALM_MAX);
        p->s->realm = optarg;
        break;
    case SERVE_OPT_MAX_OPEN:
        rc = cli_read_number(c, "--max-open", optarg, 1, 10000000, &n);
        p->s->max_open = rc == CLI_OK ? (size_t)n : 0;
        break;
    case SERVE_OPT_BUFFERS:
        if (!serve_read_size(optarg, &p->s->buffers) || p->s->buffers < 4096)
            return cli_usage(c,
                             "--buffers \"%.40s\" is not a size from 4k, such "
                             "as 256m",
                             optarg);
        break;
    default:
        p->may_forget = 1;
        break;
    }
    return rc;
}

static int read_options(struct cli *c, int argc, char **argv, struct options *p)
{
    const struct once__store_line *line;
    int rc = cli_read_args(c, argc, argv, take, p);

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "");
    if (rc != CLI_OK || p->check != NULL)
        return rc;
    if (c->store == NULL || c->store[0] == '\0')
        return cli_usage(c, "which store? Say --store URL or set ONCE_STORE");
    line = once__store_line_of(c->store);
    if (line != NULL && line->place == ONCE__STORE_PROCESS && !p->may_forget)
        return cli_usage(c, "a restart forgets memory:, and executes again "
                            "what was in it: if that may be, say --volatile");
    return CLI_OK;
}

/* Who reads it may begin under any scope: nobody but its owner. */
static int read_bearer(struct serve *s, const char *path)
{
    once_error err = {0, ""};

    if (s->listen.local)
        return path == NULL
                   ? CLI_OK
                   : cli_usage(s->cli, "--token-file is for loopback: a socket "
                                       "file has a mode and a group");
    if (path == NULL)
        return cli_usage(s->cli, "anybody on this host reaches loopback: say "
                                 "--token-file FILE");
    if (once__secret_read(path, s->bearer, sizeof(s->bearer), &err) != ONCE_OK)
        return cli_say(s->cli, CLI_STORE, "--token-file: %s", err.text);
    if (strlen(s->bearer) < 16)
        return cli_say(s->cli, CLI_STORE,
                       "--token-file %s: its first line has %zu characters; a "
                       "token has 16 to %d: openssl rand -hex 32 makes one",
                       path, strlen(s->bearer), SERVE_BEARER_MAX - 1);
    return CLI_OK;
}

/* ---- What the engine's thread does ----------------------------------------------- */

static void ring(void *user)
{
    struct serve *s = user;
    uint64_t one = 1;
    ssize_t n = 0;

    if (atomic_load(&s->woken) != NULL)
        n = write(s->wake_fd, &one, sizeof(one));
    (void)n; /* a full counter is readable, too */
}

static void on_event(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "once serve: %s\n", text);
}

static int open_store(struct serve *s)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_error err = {0, ""};
    int rc;

    o.user = s;
    o.manual_wake = 1;
    o.flush = ring;
    o.event = on_event;
    o.caveat = on_event;
    rc = once_engine_open(s->cli->store, &o, &err, &s->engine);
    if (rc == ONCE_EAWAY) { /* until it comes begins are 503 */
        o.background = 1;
        rc = once_engine_open(s->cli->store, &o, &err, &s->engine);
    }
    if (rc < 0)
        return cli_say(s->cli, rc == ONCE_EURL ? CLI_USAGE : CLI_STORE,
                       "%s; nothing was created", err.text);
    return CLI_OK;
}

/* ---- The loop -------------------------------------------------------------------- */

/* systemd's word for it: sd_notify(3). */
static void notify(const char *text)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    ssize_t n = 0;
    int fd;

    if (path == NULL || strlen(path) >= sizeof(a.sun_path))
        return;
    memcpy(a.sun_path, path, strlen(path));
    if (a.sun_path[0] == '@')
        a.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    n = sendto(
        fd, text, strlen(text), 0, (const struct sockaddr *)&a,
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
    (void)n;
    close(fd);
}

static void turn(struct serve *s, int inner, int signals)
{
    struct pollfd p[] = {{inner, POLLIN, 0},
                         {s->wake_fd, POLLIN, 0},
                         {s->deaths, POLLIN, 0},
                         {signals, POLLIN, 0}};
    struct signalfd_siginfo info;
    MHD_UNSIGNED_LONG_LONG ms;
    int wait_ms = TURN_MS;

    if (MHD_get_timeout(s->daemon, &ms) == MHD_YES && ms < TURN_MS)
        wait_ms = (int)ms;
    (void)poll(p, 4, wait_ms);
    serve_answer_woken(s);
    if (p[3].revents & POLLIN && read(signals, &info, sizeof(info)) > 0)
        s->ending = 1;
    (void)MHD_run(s->daemon);
    serve_owner_turn(s);
    serve_open_turn(s);
    serve_connection_turn(s);
    once_engine_wake(s->engine);
}

static int serve(struct serve *s, const char *where, int signals)
{
    uint64_t until;
    int inner;

    s->daemon = serve_http(s);
    if (s->daemon == NULL)
        return cli_say(s->cli, CLI_STORE, "cannot serve: %s", strerror(errno));
    inner = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    if (s->listen.local)
        fprintf(stderr, "once serve: listening on %s\n", where);
    else
        fprintf(stderr, "once serve: listening on port %u\n", s->listen.port);
    notify("READY=1");
    while (!s->ending)
        turn(s, inner, signals);
    notify("STOPPING=1");
    serve_open_cancel(s);
    until = once__steady_ms() + END_MS;
    while (s->waiting > 0 && once__steady_ms() < until)
        turn(s, inner, signals);
    (void)MHD_run(s->daemon); /* sends what was answered last */
    once_engine_close(s->engine);
    s->engine = NULL;
    serve_answer_woken(s);
    MHD_stop_daemon(s->daemon);
    return CLI_OK;
}

static int start(struct serve *s, struct options *p, const sigset_t *ends)
{
    int signals = signalfd(-1, ends, SFD_CLOEXEC | SFD_NONBLOCK);
    int rc = CLI_OK;
    size_t i;

    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->deaths = epoll_create1(EPOLL_CLOEXEC);
    if (signals < 0 || s->wake_fd < 0 || s->deaths < 0)
        return cli_say(s->cli, CLI_STORE, "%s", strerror(errno));
    rc = open_store(s);
    for (i = 0; i < p->n_routes && rc == CLI_OK; i++)
        rc = serve_route_name(s, p->routes[i]);
    if (rc == CLI_OK)
        rc = cli_listen(&s->listen, p->listen);
    if (rc == CLI_OK)
        rc = read_bearer(s, p->token_file);
    if (rc == CLI_OK)
        rc = serve(s, p->listen, signals);
    cli_unlisten(&s->listen);
    once_engine_close(s->engine);
    serve_open_clear(s);
    serve_route_clear(s);
    close(signals);
    close(s->wake_fd);
    close(s->deaths);
    return rc;
}

int main(int argc, char **argv)
{
    struct cli c = {.command = &command, .store = getenv("ONCE_STORE")};
    struct serve *s = calloc(1, sizeof(*s));
    struct options p = {.s = s, .listen = "unix:/run/once/serve.sock"};
    sigset_t ends;
    int rc;

    opterr = 0; /* messages are ours */
    if (s == NULL)
        return cli_say(&c, CLI_STORE, "out of memory");
    s->cli = &c;
    s->listen = (struct cli_listen){.c = &c, .group = "once"};
    s->max_open = MAX_OPEN;
    s->buffers = BUFFERS;
    serve_init(s);
    json_object_seed(0); /* before there are threads */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)prctl(PR_SET_DUMPABLE, 0); /* a core file would hold the requests */
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    rc = read_options(&c, argc, argv, &p);
    if (rc == CLI_OK)
        rc = p.check != NULL ? check_service(&c, p.check) : start(s, &p, &ends);
    free(c.memory[0]);
    free(s);
    return rc == CLI_STOP ? CLI_OK : rc;
}
