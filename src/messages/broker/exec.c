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
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "messages/broker/command.h"
#include "messages/broker/share.h"
#include "base/error.h"

enum { URL_MAX = 8192, ARGS_MAX = 128, TIMEOUT_MS = 10000 };

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

/* The errors of a program that is not there: of this host, and not of a row. */
static int is_missing(int error)
{
    return error == ENOENT || error == EACCES || error == ENOTDIR ||
           error == ENOEXEC || error == ELOOP;
}

static int exec_connect(struct once__broker *b, once_error *err)
{
    const struct exec *x = (const struct exec *)b;
    int error = once__command_find(x->argv[0]);

    return error == 0
               ? ONCE_OK
               : once__fail(err, ONCE_EOPEN,
                            "exec: %s cannot be executed: %s. Install it, or "
                            "correct its path in --to",
                            x->argv[0], strerror(error));
}

static int exec_send(struct once__broker *b, const once_message *m,
                     uint64_t tag, once_error *err)
{
    struct exec *x = (struct exec *)b;
    struct once__proof p = {.tag = tag, .end = ONCE__END_UNSENT};
    struct once__command c = {
        .argv = x->argv,
        .vars = {"ONCE_ID=", "ONCE_ROUTE=", "ONCE_KEY=", "ONCE_TYPE="},
        .values = {m->id, m->route, m->key, m->type},
        .input = m->body,
        .output = STDERR_FILENO,
        .timeout_ms = x->timeout_ms,
    };
    struct once__command_end end;

    if (!once__ended_reserve(&x->ended, 1))
        return once__fail(err, ONCE_ENOMEM, "exec: out of memory");
    once__command_run(&c, &end);
    if (end.error == ENOMEM) {
        p.why = "there is no memory for the command's input";
    } else if (end.error != 0) {
        p.end = is_missing(end.error) ? ONCE__END_AWAY : ONCE__END_REFUSED;
        p.why = "the command cannot be started";
    } else {
        judge(&p, end.in_time, end.status);
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

const struct once__broker_ops once__broker_exec = {
    .scheme = "exec",
    .knows_ids = 0,
    .at_once = 1,
    .open = exec_open,
    .close = exec_close,
    .connect = exec_connect,
    .send = exec_send,
    .proofs = exec_proofs,
    .abandon = once__broker_no_abandon,
};
