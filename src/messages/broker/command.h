/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command.h - a command that is given one message: as a target (exec.c), and by
 * `once messages consume`.
 *
 * The body is its standard input, a file that can be read once or often. There
 * is no shell. It gets no other file of ours, no signal is blocked or ignored,
 * and it is the first of a process group of its own.
 */
#ifndef ONCE_MESSAGES_BROKER_COMMAND_H
#define ONCE_MESSAGES_BROKER_COMMAND_H

#include <once/message.h>

enum { ONCE__COMMAND_VARS = 6 };

struct once__command {
    char *const *argv; /* the program is looked for in PATH */
    /* Variables of its environment, "NAME=", and their values. Without a value,
     * NULL or "", there is no such variable, whatever ours may be. */
    const char *vars[ONCE__COMMAND_VARS];
    const char *values[ONCE__COMMAND_VARS];
    once_bytes input;
    int output;          /* what its standard output becomes: 1 or 2 */
    uint32_t timeout_ms; /* then its group gets SIGTERM, and two seconds later
                          * SIGKILL; 0: never */
};

struct once__command_end {
    int error;   /* not 0: an errno; it was not started */
    int in_time; /* 0: it was killed by us */
    int status;  /* of waitpid(); -1: it is unknown */
};

/* Whether a program of this name can be executed: 0, or an errno. */
int once__command_find(const char *name);
/* Runs it and waits for its end. Several threads may do so. */
void once__command_run(const struct once__command *c,
                       struct once__command_end *end);

#endif /* ONCE_MESSAGES_BROKER_COMMAND_H */
