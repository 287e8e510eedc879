/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_run.c - `once run`: a command at most once for each key, and its output
 * and exit status for every repeat.
 *
 *    args --> store --> once_call --+--> work: child, tape --> exit status
 *                          ^        +--> replay            --> exit status
 *                 wait: a second,   +--> any other answer  --> 65 .. 77
 *                 signals, again
 *
 * The command's outcome is its exit status and its output. A command that was
 * killed has no outcome: it is unknown how far it came, and that is what is
 * recorded. One that could not be started has done nothing. The output is shown
 * while the command runs, before it is recorded, because that is what people
 * expect of a command; whether it counts is said by our exit status.
 *
 * It never prints a key, an argument of the command, or a URL that was given.
 */
#include "programs/once/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/wait.h>

#include "base/steady.h"

enum { SLICE_MS = 1000, STORE_MS = 5000, KEEP_MS = 86400000, TOO_LATE_MAX = 5 };

struct run {
    struct cli *c;
    struct run_options o;
    struct run_signals signals;
    char *own_store; /* the URL, if it is the user's own store */
    uint8_t name[ONCE_NAME_SIZE];
    char id[RUN_ID_SIZE];

    /* What became of the command, if it was ours to run. */
    int error;  /* it could not be started: an errno   */
    int killed; /* by this signal                      */
    int ended;  /* with the exit status that follows   */
    int status;
    int stopped; /* a signal came before it was started, or afterwards */
};

/* ---- The work ---------------------------------------------------------------- */

static void report_output(const struct run *run, const struct run_child *child)
{
    if (child->left)
        cli_say(run->c, 0,
                "the command has ended, but processes that it has started "
                "hold its output; what they write is not recorded");
    if (child->tape->lost)
        cli_say(run->c, 0,
                "the output could not be kept: %s. A repeat ends with exit "
                "status %d",
                strerror(child->tape->lost), RUN_OUTPUT);
}

static int record(struct run *run, once_task *task, struct run_child *child)
{
    uint64_t keep = run->o.call.keep_ms ? run->o.call.keep_ms : KEEP_MS;
    once_bytes result;

    if (WIFSIGNALED(child->status)) {
        run->killed = WTERMSIG(child->status);
        once_task_unknown(task);
        return 1;
    }
    run->ended = 1;
    run->status = WEXITSTATUS(child->status);
    result = run_tape_end(child->tape, cli_now_ms() + keep);
    if (once_task_result(task, RUN_TYPE, result, NULL) != ONCE_OK)
        child->tape->lost = ENOMEM; /* "not kept" stands there already */
    report_output(run, child);
    return run->status;
}

static int not_started(struct run *run, once_task *task, int error)
{
    run->error = error;
    once_task_release(task);
    return error == ENOENT ? RUN_NOT_FOUND : RUN_CANNOT;
}

static int work(once_task *task, void *user)
{
    struct run *run = user;
    struct run_child child = {
        .signals = &run->signals,
        .command = run->o.command,
        .takeover = (int)run->o.call.takeover,
        .attempt = once_task_attempt(task),
        .fence = once_task_fence(task),
    };
    struct run_tape tape;
    int from[2] = {-1, -1}, rc;

    run->stopped = run_signals_pending(&run->signals);
    if (run->stopped)
        return not_started(run, task, EINTR);
    if (once_task_result(task, RUN_TYPE, run_tape_none(), NULL) != ONCE_OK)
        return not_started(run, task, ENOMEM);
    run_tape_init(&tape, run->id, child.fence);
    child.tape = &tape;
    rc = run_child_start(&child, from);
    if (rc != 0) {
        rc = not_started(run, task, rc);
    } else {
        run_child_follow(&child, from);
        rc = record(run, task, &child);
    }
    run_tape_clear(&tape);
    return rc;
}

/* ---- Messages -------------------------------------------------------- */

/* `resolve` and `show` find the record by these. */
static void advise(const struct run *run, const once_result *r)
{
    const char *store = "";

    if (run->own_store != NULL)
        store = run->own_store;
    else if (run->c->store != getenv("ONCE_STORE"))
        store = "URL";
    fprintf(stderr,
            "It will not be run again under this key. Find out what it has "
            "done, then record it:\n"
            "  once%s%s show %s\n"
            "  once%s%s resolve %s --fence %llu --success FILE --raw "
            "--why TEXT\n"
            "(--failure FILE if it has failed; FILE is the output for "
            "repeats, /dev/null for none)\n",
            store[0] ? " --store " : "", store, run->id,
            store[0] ? " --store " : "", store, run->id,
            (unsigned long long)r->fence);
}

static int report_unknown(const struct run *run, const once_result *r)
{
    if (run->killed)
        cli_say(run->c, 0,
                "the command was killed by signal %d (%s): it is unknown how "
                "far it came.",
                run->killed, strsignal(run->killed));
    else if (run->ended)
        cli_say(run->c, 0,
                "the command has ended with exit status %d, but that could "
                "not be recorded: the store did not answer.",
                run->status);
    else
        cli_say(run->c, 0,
                "an earlier run of this key was begun, and it is unknown how "
                "it ended.");
    advise(run, r);
    return RUN_UNKNOWN;
}

static int report_free(const struct run *run, const once_result *r)
{
    if (run->stopped)
        return RUN_CANNOT; /* the signal is about to have its effect */
    if (run->error == 0)
        return cli_say(run->c, RUN_STORE,
                       "others were faster, again and again; nothing was "
                       "done. Try again");
    return cli_say(run->c, r->code,
                   "the command could not be started: %s. Nothing was done, "
                   "and the key is free",
                   strerror(run->error));
}

static int report_error(const struct run *run, int rc, const once_error *err)
{
    (void)cli_trouble(run->c, rc, err);
    return rc == ONCE_EINVAL || rc == ONCE_ELIMIT || rc == ONCE_EURL
               ? RUN_USAGE
               : RUN_STORE;
}

static int exit_status(const once_result *r)
{
    if (r->code >= 0 && r->code <= 255)
        return r->code;
    return 1; /* of a program that has used the same key for once_call() */
}

static int report(const struct run *run, int rc, const once_result *r,
                  const once_error *err)
{
    struct cli *c = run->c;
    int said;

    switch (rc) {
    case ONCE_OK:
        return exit_status(r);
    case ONCE_REPLAY:
        if (run->ended)
            cli_say(c, 0,
                    "this run was taken for lost, and another one has taken "
                    "over or an operator has decided. What counts is:");
        said = run_replay(c, r);
        return said == CLI_OK ? exit_status(r) : said;
    case ONCE_REPEATED:
        if (run->o.call.duplicates == ONCE_DUPLICATES_REJECT)
            return cli_say(c, RUN_REPEATED,
                           "the command has run before under this key");
        return cli_say(c, RUN_OUTPUT,
                       "the command has run before, as an operator has "
                       "recorded; its output is not known");
    case ONCE_IN_FLIGHT:
        if (run->stopped)
            return RUN_IN_FLIGHT; /* it did not want to wait any longer */
        return cli_say(c, RUN_IN_FLIGHT,
                       "another run of this key is under way; its lease runs "
                       "for %llu s. Try again later, or say --wait",
                       (unsigned long long)((r->left_ms + 999) / 1000));
    case ONCE_UNKNOWN:
        return report_unknown(run, r);
    case ONCE_MISMATCH:
        return cli_say(c, RUN_MISMATCH,
                       "this key belongs to another command; nothing was "
                       "done. Use another key, or the same --fingerprint");
    case ONCE_FREE:
        return report_free(run, r);
    default:
        return report_error(run, rc, err);
    }
}

/* ---- The call ------------------------------------------------------------------ */

/* A second at a time, so that a wait can be interrupted: a signal is
 * blocked meanwhile. Nobody who waits has ever been the owner, so every look
 * may be an attempt of its own. */
static int call(struct run *run, once_engine *e, once_error *err,
                once_result *r)
{
    uint64_t now = once__steady_ms(), end = now + run->o.wait_ms;
    int rc, too_late = 0;

    for (;;) {
        uint64_t left = end > now ? end - now : 0;

        run->o.call.wait_ms = (uint32_t)(left < SLICE_MS ? left : SLICE_MS);
        once_result_clear(r);
        rc = once_call(e, &run->o.call, work, run, err, r);
        now = once__steady_ms();
        if (run_signals_pending(&run->signals)) {
            run->stopped = 1;
            return rc;
        }
        if (rc == ONCE_FREE && r->attempt == 0 && ++too_late < TOO_LATE_MAX)
            continue;
        if (rc != ONCE_IN_FLIGHT || now >= end)
            return rc;
    }
}

/* A descriptor of a pipe that landed on a missing one would be the command's
 * input or output. */
static void have_standard_files(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO && fcntl(fd, F_SETFD, 0) == 0);
    if (fd > STDERR_FILENO)
        (void)close(fd);
}

static int choose_store(struct run *run)
{
    struct cli *c = run->c;

    if (c->store == NULL || c->store[0] == '\0') {
        run->own_store = run_state_store();
        c->store = run->own_store;
    }
    if (c->store == NULL)
        return cli_say(c, RUN_STORE,
                       "the folder for the store, $XDG_STATE_HOME/once or "
                       "~/.local/state/once: %s. Or say --store URL",
                       errno == ENOENT ? "neither XDG_STATE_HOME nor HOME "
                                         "is set"
                                       : strerror(errno));
    if (cli_in_process(c->store)) {
        (void)cli_usage(c, "memory: is gone when this process ends");
        return RUN_USAGE;
    }
    return CLI_OK;
}

static int with_store(struct run *run)
{
    once_error err = {0, ""};
    once_result r = ONCE_RESULT_INIT;
    once_engine *e = NULL;
    int rc = once_engine_open(run->c->store, NULL, &err, &e);

    if (rc < 0)
        return report_error(run, rc, &err);
    rc = call(run, e, &err, &r);
    rc = report(run, rc, &r, &err);
    once_result_clear(&r);
    once_engine_close(e);
    return rc;
}

static int perform(struct run *run)
{
    struct run_options *o = &run->o;
    int rc = choose_store(run);

    if (rc != CLI_OK)
        return rc;
    if (once_name(o->call.group, o->call.key, run->name) != ONCE_OK)
        return cli_say(run->c, RUN_STORE, "out of memory");
    cli_hex(run->name, RUN_ID_SIZE - 1, run->id);
    o->call.store_ms = STORE_MS;
    have_standard_files();
    rc = run_signals_take(&run->signals);
    if (rc != 0)
        rc = cli_say(run->c, RUN_STORE, "no descriptor for signals: %s",
                     strerror(rc));
    else
        rc = with_store(run);
    run_signals_give_back(&run->signals);
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct run r = {.c = c};
    int rc = run_read_args(c, argc, argv, &r.o);

    if (rc == CLI_OK)
        rc = perform(&r);
    if (c->store == r.own_store)
        c->store = NULL;
    free(r.own_store);
    run_options_clear(&r.o);
    return rc;
}

const struct cli_command cli_cmd_run = {
    "run",    "run a command at most once for its key",
    run_help, run_option_table,
    NULL,     run};
