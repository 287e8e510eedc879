/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec.c - a command for each message.
 *
 *    exec:PROGRAM ARGUMENT ...
 *
 * Split at spaces. There is no shell and no quoting: what needs either goes into
 * a script. PROGRAM is looked for in PATH. The body is its standard input, a
 * file that can be read once or often. In its environment are
 *
 *    ONCE_ID  ONCE_ROUTE         always
 *    ONCE_KEY ONCE_TYPE          if the message has them
 *
 * What it writes to standard output and standard error goes to our standard
 * error; nothing of it is kept. It gets no other file of ours, no signal is
 * blocked or ignored, and it is the first of a process group of its own.
 *
 *    it could not be started        REFUSED: provably nothing happened
 *    exit 0                         TAKEN
 *    exit 75 (EX_TEMPFAIL)          REFUSED: it did nothing, try again
 *    exit 65 (EX_DATAERR)           REJECTED: it did nothing, and never will
 *    any other status, a signal     SILENT: it may have done it
 *    over timeout_ms                SILENT: its group gets SIGTERM, and SIGKILL
 *                                   two seconds later
 *
 * 127 is like any other status: a shell also says so for a command in the middle
 * of a script. A program that ignores SIGCHLD makes every end SILENT, since the
 * system then says nobody how a command ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/share.h"
#include "core/error.h"

enum {
    URL_MAX = 8192,
    ARGS_MAX = 128,
    TIMEOUT_MS = 10000,
    GRACE_MS = 2000, /* between SIGTERM and SIGKILL */
    LOOK_MS = 10,    /* how often we look where there is no pidfd */
    VARS = 4
};

static const char *const vars[VARS] = {
    "ONCE_ID=", "ONCE_ROUTE=", "ONCE_KEY=", "ONCE_TYPE="};

extern const struct once__broker_ops once__broker_exec;

struct exec {
    struct once__broker base;
    char *text; /* what argv points into */
    char *argv[ARGS_MAX + 1];
    uint32_t timeout_ms;
    struct once__ended ended;
};

static void exec_close(struct once__broker *b)
{
    struct exec *x = (struct exec *)b;

    if (x == NULL)
        return;
    once__ended_clear(&x->ended);
    free(x->text);
    free(x);
}

static int split(struct exec *x, once_error *err)
{
    char *at = NULL, *word;
    size_t n = 0;

    for (word = strtok_r(x->text, " ", &at); word != NULL;
         word = strtok_r(NULL, " ", &at)) {
        if (n == ARGS_MAX)
            return once__fail(err, ONCE_EURL, "exec: over %d arguments",
                              ARGS_MAX);
        x->argv[n++] = word;
    }
    return n > 0 ? ONCE_OK
                 : once__fail(err, ONCE_EURL,
                              "exec: after exec: goes a program and its "
                              "arguments");
}

static int exec_open(const char *url, const struct once__broker_options *o,
                     struct once__broker **out, once_error *err)
{
    struct exec *x = NULL;
    int rc;

    if (strncmp(url, "exec:", 5) != 0 || strlen(url) >= URL_MAX)
        return once__fail(err, ONCE_EURL, "exec: longer than %d characters",
                          URL_MAX - 1);
    x = calloc(1, sizeof(*x));
    if (x != NULL)
        x->text = strdup(url + 5);
    if (x == NULL || x->text == NULL) {
        rc = once__fail(err, ONCE_ENOMEM, "exec: out of memory");
        goto out;
    }
    x->base.ops = &once__broker_exec;
    x->timeout_ms = o->timeout_ms == 0 ? TIMEOUT_MS : o->timeout_ms;
    rc = split(x, err);
    if (rc != ONCE_OK)
        goto out;
    *out = &x->base;
    x = NULL;
out:
    if (x != NULL)
        exec_close(&x->base);
    return rc;
}

static int exec_connect(struct once__broker *b, once_error *err)
{
    (void)b;
    (void)err;
    return ONCE_OK;
}

/* ---- What the command gets ---------------------------------------------- */

static int is_ours(const char *entry)
{
    size_t i;

    for (i = 0; i < VARS; i++)
        if (strncmp(entry, vars[i], strlen(vars[i])) == 0)
            return 1;
    return 0;
}

/* Our environment with the message in it. The first VARS entries are on the
 * heap, or NULL at its end. */
static char **make_environment(const once_message *m, size_t *made)
{
    const char *const values[VARS] = {m->id, m->route, m->key, m->type};
    size_t n = 0, i;
    char **env;

    while (environ != NULL && environ[n] != NULL)
        n++;
    env = calloc(n + VARS + 1, sizeof(*env));
    *made = 0;
    for (i = 0; env != NULL && i < VARS; i++) {
        if (values[i] == NULL || values[i][0] == '\0')
            continue;
        if (asprintf(&env[*made], "%s%s", vars[i], values[i]) < 0) {
            while (*made > 0)
                free(env[--*made]);
            free(env);
            return NULL;
        }
        (*made)++;
    }
    for (i = 0, n = *made; env != NULL && environ != NULL && environ[i]; i++)
        if (!is_ours(environ[i]))
            env[n++] = environ[i];
    return env;
}

/* The body as a file that is in memory alone; -1. */
static int make_input(once_bytes body)
{
    const char *at = body.data;
    size_t left = body.size;
    int fd = memfd_create("once message", MFD_CLOEXEC);

    while (fd >= 0 && left > 0) {
        ssize_t n = write(fd, at, left);

        if (n < 0 && errno != EINTR) {
            (void)close(fd);
            return -1;
        }
        at += n < 0 ? 0 : n;
        left -= n < 0 ? 0 : (size_t)n;
    }
    if (fd >= 0)
        (void)lseek(fd, 0, SEEK_SET);
    return fd;
}

/* 0, or an errno value: nothing was started. */
static int spawn(struct exec *x, int input, char **env, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    int rc;

    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    rc = posix_spawn_file_actions_init(&files);
    if (rc != 0)
        return rc;
    rc = posix_spawnattr_init(&how);
    if (rc != 0) {
        (void)posix_spawn_file_actions_destroy(&files);
        return rc;
    }
    (void)posix_spawnattr_setsigmask(&how, &none);
    (void)posix_spawnattr_setsigdefault(&how, &all);
    (void)posix_spawnattr_setpgroup(&how, 0);
    rc = posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK |
                                            POSIX_SPAWN_SETSIGDEF |
                                            POSIX_SPAWN_SETPGROUP);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(&files, input, 0);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(&files, 2, 1);
    if (rc == 0)
        rc = posix_spawn_file_actions_addclosefrom_np(&files, 3);
    if (rc == 0)
        rc = posix_spawnp(pid, x->argv[0], &files, &how, x->argv, env);
    (void)posix_spawnattr_destroy(&how);
    (void)posix_spawn_file_actions_destroy(&files);
    return rc;
}

/* ---- How it ends -------------------------------------------------------- */

/* 1: it has ended, and `*status` is as of waitpid(), -1: nobody knows. 0: not in
 * so many milliseconds. */
static int wait_for(pid_t pid, int fd, uint32_t ms, int *status)
{
    uint64_t now = once__broker_now_ms(), until = now + ms;
    struct pollfd p = {fd, POLLIN, 0};
    pid_t got;

    for (;;) {
        uint64_t left = until - now;

        got = waitpid(pid, status, WNOHANG);
        if (got < 0 && errno != EINTR)
            *status = -1;
        if (got == pid || (got < 0 && errno != EINTR))
            return 1;
        if (now >= until)
            return 0;
        if (fd < 0 && left > LOOK_MS)
            left = LOOK_MS;
        (void)poll(&p, 1, left > 60000 ? 60000 : (int)left);
        now = once__broker_now_ms();
    }
}

static int wait_or_kill(pid_t pid, uint32_t timeout_ms, int *status)
{
    int fd = pidfd_open(pid, 0);
    int in_time = wait_for(pid, fd, timeout_ms, status);

    if (!in_time) {
        (void)kill(-pid, SIGTERM);
        if (!wait_for(pid, fd, GRACE_MS, status)) {
            (void)kill(-pid, SIGKILL);
            while (waitpid(pid, status, 0) < 0 && errno == EINTR)
                ;
        }
    }
    if (fd >= 0)
        (void)close(fd);
    return in_time;
}

static void judge(struct once__proof *p, int in_time, int status)
{
    p->end = ONCE__END_SILENT;
    if (!in_time) {
        p->why = "the command took too long and was killed";
    } else if (status < 0 || !WIFEXITED(status)) {
        p->why = "the command was killed";
    } else {
        p->status = WEXITSTATUS(status);
        p->why = "the command ended with another status than 0, 65 or 75";
        if (p->status == 0) {
            p->end = ONCE__END_TAKEN;
            p->why = NULL;
        } else if (p->status == 75) {
            p->end = ONCE__END_REFUSED;
            p->why = "the command says: not now (75)";
        } else if (p->status == 65) {
            p->end = ONCE__END_REJECTED;
            p->why = "the command says: never (65)";
        }
    }
}

static int exec_send(struct once__broker *b, const once_message *m,
                     uint64_t tag, once_error *err)
{
    struct exec *x = (struct exec *)b;
    struct once__proof p = {.tag = tag, .end = ONCE__END_UNSENT};
    int input, in_time, status = 0, rc = ENOMEM;
    size_t made = 0;
    char **env;
    pid_t pid;

    if (!once__ended_reserve(&x->ended, 1))
        return once__fail(err, ONCE_ENOMEM, "exec: out of memory");
    input = make_input(m->body);
    env = make_environment(m, &made);
    if (env != NULL && input >= 0)
        rc = spawn(x, input, env, &pid);
    if (input >= 0)
        (void)close(input);
    while (made > 0)
        free(env[--made]);
    free(env);
    if (env == NULL || input < 0) {
        p.why = "there is no memory for the command's input";
    } else if (rc != 0) {
        p.end = ONCE__END_REFUSED;
        p.why = "the command cannot be started";
    } else {
        in_time = wait_or_kill(pid, x->timeout_ms, &status);
        judge(&p, in_time, status);
    }
    once__ended_add(&x->ended, &p, NULL);
    return ONCE_OK;
}

static size_t exec_proofs(struct once__broker *b, uint32_t wait_ms,
                          struct once__proof *out, size_t max)
{
    (void)wait_ms;
    return once__ended_take(&((struct exec *)b)->ended, out, max);
}

static void exec_abandon(struct once__broker *b)
{
    (void)b; /* nothing is open after send() */
}

const struct once__broker_ops once__broker_exec = {
    .scheme = "exec",
    .knows_ids = 0,
    .at_once = 1,
    .open = exec_open,
    .close = exec_close,
    .connect = exec_connect,
    .send = exec_send,
    .proofs = exec_proofs,
    .abandon = exec_abandon,
};
