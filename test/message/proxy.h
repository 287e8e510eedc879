/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proxy.h - a proxy that cuts, test/lib/faultproxy.c.
 */
#ifndef TEST_MESSAGE_PROXY_H
#define TEST_MESSAGE_PROXY_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "t.h"

struct proxy {
    pid_t pid;
    FILE *in, *out;
    int port;
};

static inline void proxy_start(struct proxy *p, const char *program,
                               const char *server, const char *rule)
{
    int up[2], down[2];
    char line[64] = "";

    if (pipe(up) != 0 || pipe(down) != 0)
        exit(1);
    p->pid = fork();
    if (p->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(up[0], 0);
        (void)dup2(down[1], 1);
        (void)close(up[1]);
        (void)close(down[0]);
        (void)execl(program, program, server, rule, (char *)NULL);
        _exit(127);
    }
    (void)close(up[0]);
    (void)close(down[1]);
    p->in = fdopen(up[1], "w");
    p->out = fdopen(down[0], "r");
    while (fgets(line, sizeof(line), p->out) != NULL &&
           sscanf(line, "port %d", &p->port) != 1)
        ;
    T_OK(p->port != 0);
}

/* Gives a command, and waits until it was obeyed. */
static inline void proxy_do(struct proxy *p, const char *command)
{
    char line[64] = "";

    (void)fprintf(p->in, "%s\n", command);
    (void)fflush(p->in);
    T_OK(fgets(line, sizeof(line), p->out) != NULL &&
         strncmp(line, "ok", 2) == 0);
}

static inline void proxy_stop(struct proxy *p)
{
    (void)fclose(p->in);
    (void)fclose(p->out);
    (void)waitpid(p->pid, NULL, 0);
    memset(p, 0, sizeof(*p));
}

#endif /* TEST_MESSAGE_PROXY_H */
