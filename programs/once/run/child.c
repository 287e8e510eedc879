/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.c - one run of the command: started, its output shown and recorded, its
 * signals forwarded, its end waited for.
 *
 *    fork --exec failed--> nothing was started
 *      |
 *      v        both pipes at their end, and reaped
 *    follow ------------------------------------------> status
 *      |  reaped, and a signal while others hold the pipes
 *      +------------------------------------------------> status, `left`
 *
 * The child stays in our process group, so that job control works. A signal
 * that the kernel sent (a key of the terminal) has gone to the whole group and
 * is not forwarded. A signal that a process sent to us alone is forwarded, and
 * so is the hang-up, which only the leader of a session gets.
 *
 * If `once run` is killed, the child continues under hold: nobody will start the
 * command again. Under takeover another caller will, so the kernel kills the child.
 *
 * A slow reader of our output delays the child, but not the handling of signals.
 * When that reader is gone the command continues, and is recorded.
 */
#include "programs/once/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/secret.h"

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

enum { OUT, ERR, STREAMS, CHUNK = 65536 };

static const int forwarded[] = {SIGHUP,  SIGINT,  SIGQUIT,
                                SIGTERM, SIGUSR1, SIGUSR2};

/* ---- Signals --------------------------------------------------------------- */

/* An ignored signal (nohup) stays ignored: the kernel never makes it pending. */
int run_signals_take(struct run_signals *s)
{
    struct sigaction act;
    size_t i;

    memset(&act, 0, sizeof(act));
    act.sa_handler = SIG_DFL; /* ignored, children would not wait for us */
    (void)sigaction(SIGCHLD, &act, &s->chld);
    act.sa_handler = SIG_IGN;
    (void)sigaction(SIGPIPE, &act, &s->pipe);
    (void)sigemptyset(&s->ours);
    for (i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++)
        (void)sigaddset(&s->ours, forwarded[i]);
    (void)sigaddset(&s->ours, SIGCHLD);
    s->fd = signalfd(-1, &s->ours, SFD_CLOEXEC | SFD_NONBLOCK);
    (void)pthread_sigmask(SIG_BLOCK, &s->ours, &s->before);
    return s->fd < 0 ? errno : 0;
}

int run_signals_pending(const struct run_signals *s)
{
    sigset_t now;
    size_t i;

    if (sigpending(&now) < 0)
        return 0;
    for (i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++)
        if (sigismember(&now, forwarded[i]) &&
            !sigismember(&s->before, forwarded[i]))
            return 1;
    return 0;
}

void run_signals_give_back(const struct run_signals *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    (void)sigaction(SIGCHLD, &s->chld, NULL);
    (void)sigaction(SIGPIPE, &s->pipe, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &s->before, NULL);
}

/* ---- Starting -------------------------------------------------------------- */

struct birth {
    int to[STREAMS];
    int report; /* takes the errno of an exec that failed */
    pid_t parent;
    char attempt[32], fence[40];
    char **environment;
    char *hidden[2]; /* entries of it that are on the heap */
};

static int is_ours(const char *variable)
{
    return strncmp(variable, "ONCE_ATTEMPT=", 13) == 0 ||
           strncmp(variable, "ONCE_FENCE=", 11) == 0;
}

static int add_variable(struct birth *b, char *entry, size_t *n)
{
    char *own = once__variable_for_child(entry);
    size_t i;

    if (own == NULL)
        return ENOMEM;
    for (i = 0; own != entry && i < 2; i++)
        if (b->hidden[i] == NULL) {
            b->hidden[i] = own;
            break;
        }
    if (i == 2 && own != entry) { /* the same name more than once */
        free(own);
        return 0;
    }
    b->environment[(*n)++] = own;
    return 0;
}

static void free_environment(struct birth *b)
{
    free(b->hidden[0]);
    free(b->hidden[1]);
    free(b->environment);
}

/* Made before the fork: between that and exec nothing may allocate. */
static int make_environment(struct birth *b, const struct run_child *child)
{
    size_t i, n = 0;

    while (environ[n] != NULL)
        n++;
    b->environment = calloc(n + 3, sizeof(*b->environment));
    if (b->environment == NULL)
        return ENOMEM;
    for (i = 0, n = 0; environ[i] != NULL; i++)
        if (!is_ours(environ[i]) && add_variable(b, environ[i], &n) != 0)
            return ENOMEM;
    (void)snprintf(b->attempt, sizeof(b->attempt), "ONCE_ATTEMPT=%u",
                   child->attempt);
    (void)snprintf(b->fence, sizeof(b->fence), "ONCE_FENCE=%llu",
                   (unsigned long long)child->fence);
    b->environment[n++] = b->attempt;
    b->environment[n] = b->fence;
    return 0;
}

/* In the child. Says why it could not become the command, and ends. */
static void become(const struct run_child *child, const struct birth *b)
{
    int error = 0;

    if (child->takeover && prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        error = errno;
    else if (child->takeover && getppid() != b->parent)
        error = ECANCELED; /* died meanwhile: another may have taken over */
    else if (dup2(b->to[OUT], STDOUT_FILENO) < 0 ||
             dup2(b->to[ERR], STDERR_FILENO) < 0)
        error = errno;
    if (error == 0) {
        run_signals_give_back(child->signals);
        (void)execvpe(child->command[0], child->command, b->environment);
        error = errno;
    }
    (void)!write(b->report, &error, sizeof(error));
    _exit(RUN_CANNOT);
}

static void close_pipe(int ends[2])
{
    if (ends[0] >= 0)
        (void)close(ends[0]);
    if (ends[1] >= 0)
        (void)close(ends[1]);
    ends[0] = ends[1] = -1;
}

/* 0 once exec has closed the other end, or the errno that came instead. */
static int read_report(int fd)
{
    int error = 0;
    ssize_t n;

    do
        n = read(fd, &error, sizeof(error));
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(error) ? error : 0;
}

int run_child_start(struct run_child *child, int from[STREAMS])
{
    int out[2] = {-1, -1}, err[2] = {-1, -1}, report[2] = {-1, -1}, rc;
    struct birth b = {.parent = getpid()};

    rc = make_environment(&b, child);
    if (rc != 0)
        goto out;
    if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0 ||
        pipe2(report, O_CLOEXEC) < 0) {
        rc = errno;
        goto out;
    }
    b.to[OUT] = out[1];
    b.to[ERR] = err[1];
    b.report = report[1];
    child->pid = fork();
    if (child->pid == 0)
        become(child, &b);
    rc = child->pid < 0 ? errno : 0;
    (void)close(report[1]);
    report[1] = -1;
    if (rc == 0)
        rc = read_report(report[0]);
    if (rc != 0 && child->pid > 0)
        while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    if (rc == 0) {
        from[OUT] = out[0];
        from[ERR] = err[0];
        out[0] = err[0] = -1;
    }
out:
    close_pipe(out);
    close_pipe(err);
    close_pipe(report);
    free_environment(&b);
    return rc;
}

/* ---- Following ------------------------------------------------------------- */

struct pump {
    struct run_child *child;
    int *from;       /* -1: at its end                                      */
    int to[STREAMS]; /* -1: nobody reads it any more                        */
    uint8_t chunk[CHUNK]; /* recorded, and being shown                      */
    size_t size, shown;
    int stream;
};

static void reap(struct run_child *child)
{
    pid_t pid;

    do
        pid = waitpid(child->pid, &child->status, WNOHANG);
    while (pid < 0 && errno == EINTR);
    child->reaped = pid == child->pid;
}

static void close_from(struct pump *p, int stream)
{
    (void)close(p->from[stream]);
    p->from[stream] = -1;
}

/* Processes that the command has started hold its output open for longer than
 * a person waits. */
static void stop_waiting(struct pump *p)
{
    int i;

    for (i = 0; i < STREAMS; i++)
        if (p->from[i] >= 0)
            close_from(p, i);
    p->size = p->shown = 0;
    p->child->left = 1;
}

static int is_for_us_alone(const struct signalfd_siginfo *info)
{
    return info->ssi_code != SI_KERNEL ||
           (info->ssi_signo == SIGHUP && getsid(0) == getpid());
}

static void take_signal(struct pump *p)
{
    struct signalfd_siginfo info;

    if (read(p->child->signals->fd, &info, sizeof(info)) !=
        (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGCHLD) {
        if (!p->child->reaped)
            reap(p->child);
    } else if (p->child->reaped) {
        stop_waiting(p);
    } else if (is_for_us_alone(&info)) {
        (void)kill(p->child->pid, (int)info.ssi_signo);
    }
}

/* At most PIPE_BUF bytes, which a pipe that is ready takes without blocking. */
static void show(struct pump *p)
{
    size_t left = p->size - p->shown;
    ssize_t n = write(p->to[p->stream], p->chunk + p->shown,
                      left < PIPE_BUF ? left : PIPE_BUF);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n < 0) {
        p->to[p->stream] = -1;
        p->shown = p->size;
    } else {
        p->shown += (size_t)n;
    }
}

static void take(struct pump *p, int stream)
{
    ssize_t n = read(p->from[stream], p->chunk, sizeof(p->chunk));

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        close_from(p, stream);
        return;
    }
    run_tape_add(p->child->tape, stream + 1, p->chunk, (size_t)n);
    p->stream = stream;
    p->size = (size_t)n;
    p->shown = p->to[stream] >= 0 ? 0 : p->size;
}

/* One chunk at a time: while it is being shown nothing is read. */
static void turn(struct pump *p)
{
    int showing = p->shown < p->size, i;
    struct pollfd fds[1 + STREAMS] = {
        {p->child->signals->fd, POLLIN, 0},
        {showing ? p->to[p->stream] : p->from[OUT], showing ? POLLOUT : POLLIN,
         0},
        {showing ? -1 : p->from[ERR], POLLIN, 0},
    };

    if (poll(fds, 1 + STREAMS, -1) < 0)
        return;
    if (showing && fds[1].revents != 0)
        show(p);
    for (i = 0; !showing && i < STREAMS && p->shown == p->size; i++)
        if (fds[1 + i].revents != 0)
            take(p, i);
    if (fds[0].revents != 0)
        take_signal(p);
}

static int unfinished(const struct pump *p)
{
    return !p->child->reaped || p->from[OUT] >= 0 || p->from[ERR] >= 0 ||
           p->shown < p->size;
}

void run_child_follow(struct run_child *child, int from[STREAMS])
{
    struct pump p = {.child = child, .from = from};

    p.to[OUT] = STDOUT_FILENO;
    p.to[ERR] = STDERR_FILENO;
    reap(child);
    while (unfinished(&p))
        turn(&p);
}
