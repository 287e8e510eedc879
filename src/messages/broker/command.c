/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command.c - command.h by posix_spawn(), which other threads do not disturb.
 */
#include "messages/broker/command.h"

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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/secret.h"
#include "messages/broker/share.h"
#include "base/steady.h"

enum {
    VARS = ONCE__COMMAND_VARS,
    GRACE_MS = 2000, /* between SIGTERM and SIGKILL */
    LOOK_MS = 10     /* how often we look where there is no pidfd */
};

/* ---- What the command gets ---------------------------------------------- */

static int is_ours(const struct once__command *c, const char *entry)
{
    size_t i;

    for (i = 0; i < VARS && c->vars[i] != NULL; i++)
        if (strncmp(entry, c->vars[i], strlen(c->vars[i])) == 0)
            return 1;
    return 0;
}

/* Our environment with the message in it, and with nothing that the message lacks.
 * `*made` entries, from the first one on, are on the heap. NULL: no memory. */
static char **make_environment(const struct once__command *c, size_t *made)
{
    size_t n = 0, i, room;
    char **env, *entry;

    while (environ != NULL && environ[n] != NULL)
        n++;
    room = n + VARS + 1;
    env = calloc(room, sizeof(*env));
    *made = 0;
    if (env == NULL)
        return NULL;
    for (i = 0; i < VARS && c->vars[i] != NULL; i++) {
        if (c->values[i] == NULL || c->values[i][0] == '\0')
            continue;
        if (asprintf(&env[*made], "%s%s", c->vars[i], c->values[i]) < 0)
            goto out;
        (*made)++;
    }
    /* Borrowed ones are filled in from behind. */
    for (i = 0, n = room - 1; environ != NULL && environ[i] != NULL; i++) {
        if (is_ours(c, environ[i]))
            continue;
        entry = once__variable_for_child(environ[i]);
        if (entry == NULL)
            goto out;
        if (entry == environ[i])
            env[--n] = entry;
        else
            env[(*made)++] = entry;
    }
    memmove(env + *made, env + n, (room - n) * sizeof(*env));
    return env;
out:
    while (*made > 0)
        free(env[--*made]);
    free(env);
    return NULL;
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
static int spawn(const struct once__command *c, int input, char **env,
                 pid_t *pid)
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
        rc = posix_spawn_file_actions_adddup2(&files, c->output, 1);
    if (rc == 0)
        rc = posix_spawn_file_actions_addclosefrom_np(&files, 3);
    if (rc == 0)
        rc = posix_spawnp(pid, c->argv[0], &files, &how, c->argv, env);
    (void)posix_spawnattr_destroy(&how);
    (void)posix_spawn_file_actions_destroy(&files);
    return rc;
}

/* 0, or the errno that execve() would have. */
static int error_of(const char *path)
{
    struct stat st;

    if (stat(path, &st) != 0 || access(path, X_OK) != 0)
        return errno;
    return S_ISREG(st.st_mode) ? 0 : EACCES;
}

/* As execvp() would: a name without a slash is looked for along PATH. */
int once__command_find(const char *name)
{
    const char *at = getenv("PATH"), *end;
    char path[4096];
    int error = ENOENT, now, n;

    if (strchr(name, '/') != NULL)
        return error_of(name);
    for (at = at == NULL ? "/bin:/usr/bin" : at;; at = end + 1) {
        end = at + strcspn(at, ":");
        n = end == at ? snprintf(path, sizeof(path), "./%s", name)
                      : snprintf(path, sizeof(path), "%.*s/%s", (int)(end - at),
                                 at, name);
        now = n < (int)sizeof(path) ? error_of(path) : ENAMETOOLONG;
        if (now == 0)
            return 0;
        if (now == EACCES)
            error = EACCES;
        if (*end == '\0')
            return error;
    }
}

/* ---- How it ends -------------------------------------------------------- */

/* 1: it has ended, and `*status` is as of waitpid(), -1: it is unknown. 0: not
 * in so many milliseconds. */
static int wait_for(pid_t pid, int fd, uint32_t ms, int *status)
{
    uint64_t now = once__steady_ms(), until = now + ms;
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
        now = once__steady_ms();
    }
}

static int wait_or_kill(pid_t pid, uint32_t timeout_ms, int *status)
{
    int fd = pidfd_open(pid, 0), in_time;

    do
        in_time =
            wait_for(pid, fd, timeout_ms > 0 ? timeout_ms : UINT32_MAX, status);
    while (!in_time && timeout_ms == 0);

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

void once__command_run(const struct once__command *c,
                       struct once__command_end *end)
{
    int input = make_input(c->input);
    size_t made = 0;
    char **env = make_environment(c, &made);
    pid_t pid;

    *end = (struct once__command_end){.error = ENOMEM, .in_time = 1};
    if (env != NULL && input >= 0)
        end->error = spawn(c, input, env, &pid);
    if (input >= 0)
        (void)close(input);
    while (made > 0)
        free(env[--made]);
    free(env);
    if (end->error == 0)
        end->in_time = wait_or_kill(pid, c->timeout_ms, &end->status);
}
