/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c - once_call(): claim, work, record, and what the call returns.
 *
 *    claim --owner--> work --+--> complete --+
 *      |                     +--> release  --+--> after_...() --> return
 *      |                     +--> give up  --+
 *      +--any other answer----------------------> before() -----> return
 *
 * The asynchronous call is the same with a pause at each arrow. Two promises
 * are kept here: no caller gets a byte of a result that is not recorded, and
 * once the work has begun no error is returned that would mean "it did not
 * run". Nothing is repeated here: the engine repeats what the store did not
 * answer.
 */
#include "calls/call/call.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* ---- Results ----------------------------------------------------------- */

static const once_result nothing = ONCE_RESULT_INIT;

void once_result_clear(once_result *result)
{
    size_t size = result->size;

    free(result->memory);
    *result = nothing;
    result->size = size;
}

/* Moves `*from` to the caller, whose struct may be larger. NULL: it takes
 * none. */
static void move_result(once_result *from, once_result *to)
{
    size_t size;

    if (to == NULL) {
        once_result_clear(from);
        return;
    }
    size = to->size;
    *to = *from;
    to->size = size;
}

/* Copies the type, a NUL, and the bytes: the record is freed with the
 * attempt. */
static int copy(const once__result *r, once_result *out, once_error *err)
{
    char *memory = malloc(r->type.size + 1 + r->bytes.size);

    if (memory == NULL)
        return once__fail(err, ONCE_ENOMEM, "result: %zu bytes", r->bytes.size);
    if (r->type.size > 0)
        memcpy(memory, r->type.data, r->type.size);
    memory[r->type.size] = '\0';
    if (r->bytes.size > 0)
        memcpy(memory + r->type.size + 1, r->bytes.data, r->bytes.size);
    out->type = memory;
    out->bytes = (once_bytes){memory + r->type.size + 1, r->bytes.size};
    out->memory = memory;
    return ONCE_OK;
}

/* ---- What the call returns ----------------------------------------------- */

static int replay(const once_task *task, once_result *out, once_error *err)
{
    once__result found = {0, {NULL, 0}, {NULL, 0}};
    int rc = once__result_read(once_attempt_record(task->attempt), &found,
                               task->reject ? NULL : err);

    if (rc == ONCE_REPEATED || task->reject) {
        out->code = found.code;
        return ONCE_REPEATED;
    }
    if (rc != ONCE_OK)
        return rc;
    rc = copy(&found, out, err);
    if (rc != ONCE_OK)
        return rc;
    out->code = found.code;
    return ONCE_REPLAY;
}

/* The claim was answered, and the work has not begun. */
static int before(const once_task *task, int rc, once_result *out,
                  once_error *err)
{
    if (rc == ONCE_REPLAY)
        return replay(task, out, err);
    if (rc == ONCE_IN_FLIGHT)
        out->left_ms = once_attempt_left_ms(task->attempt);
    if (rc == ONCE_FREE)
        out->attempt = 0; /* to distinguish it from a release by the work */
    return rc;
}

/* The work ran. If its result was not recorded, the call returns what is
 * recorded in its place, or that another call is under way, or ONCE_UNKNOWN;
 * nothing that would mean that the work did not run. */
static int after_complete(once_task *task, int rc, once_result *out)
{
    if (rc == ONCE_OK) {
        once__task_move(task, out);
        return ONCE_OK;
    }
    if (rc == ONCE_REPLAY)
        rc = replay(task, out, NULL);
    else if (rc == ONCE_IN_FLIGHT)
        out->left_ms = once_attempt_left_ms(task->attempt);
    return rc == ONCE_REPLAY || rc == ONCE_REPEATED || rc == ONCE_IN_FLIGHT
               ? rc
               : ONCE_UNKNOWN;
}

/* This run has done nothing, whether the release was recorded or not. After a
 * takeover an earlier run may have done something; the record is indeterminate
 * then. */
static int after_release(once_task *task, int rc, once_result *out)
{
    if (rc != ONCE_OK)
        return rc;
    switch (once_attempt_record(task->attempt)->state) {
    case ONCE_ABSENT:
        once__task_move(task, out);
        return ONCE_FREE;
    case ONCE_INDETERMINATE:
        return ONCE_UNKNOWN;
    default:
        return ONCE_IN_FLIGHT; /* another call has taken over meanwhile */
    }
}

/* `rc` is the answer to the last step of the attempt. */
static int settle(once_task *task, int rc, once_result *out, once_error *err)
{
    const once_record *r = once_attempt_record(task->attempt);

    out->attempt = r->attempt;
    out->fence = r->fence;
    if (!task->ran)
        return before(task, rc, out, err);
    if (task->ending == ONCE__TASK_RECORD)
        return after_complete(task, rc, out);
    if (task->ending == ONCE__TASK_RELEASE)
        return after_release(task, rc, out);
    return ONCE_UNKNOWN;
}

/* ---- The synchronous call ----------------------------------------------- */

static int end_attempt(once_task *task, once_error *err)
{
    switch (task->ending) {
    case ONCE__TASK_RECORD:
        return once_complete(task->attempt,
                             task->code == 0 ? ONCE_SUCCESS : ONCE_FAILURE,
                             once__task_encode(task), NULL);
    case ONCE__TASK_RELEASE:
        return once_release(task->attempt, ONCE_REASON_PROGRAM, err);
    default:
        return once_give_up(task->attempt, ONCE_REASON_PROGRAM, NULL);
    }
}

int once_call(once_engine *e, const once_call_options *options, once_work *work,
              void *user, once_error *err, once_result *result)
{
    once_result found = nothing;
    once_task task;
    int rc;

    if (result != NULL && result->size < sizeof(*result))
        return once__fail(err, ONCE_EINVAL, "result: size: %zu is too small",
                          result->size);
    rc = once__task_init(&task, e, options, err);
    if (rc != ONCE_OK)
        goto out;
    rc = once_claim(task.attempt, err);
    if (rc == ONCE_OWNER) {
        task.ran = 1;
        task.code = work(&task, user);
        rc = end_attempt(&task, err);
    }
    rc = settle(&task, rc, &found, err);
    if (rc >= 0)
        move_result(&found, result);
out:
    once__task_clear(&task); /* gives up what could not be recorded */
    return rc;
}

/* ---- The asynchronous call ---------------------------------------------- */

static void report(once_task *task, int rc)
{
    once_called *done = task->done;
    once_result found = nothing;
    void *user = task->user;

    rc = settle(task, rc, &found, NULL);
    once__task_clear(task);
    free(task);
    done(rc, &found, user);
    once_result_clear(&found);
}

static void claimed(once_attempt *a, int rc, void *user)
{
    once_task *task = user;

    (void)a;
    if (rc != ONCE_OWNER) {
        report(task, rc);
        return;
    }
    task->ran = 1;
    task->begin(task, task->user);
}

static void ended(once_attempt *a, int rc, void *user)
{
    (void)a;
    report(user, rc);
}

int once_call_start(once_engine *e, const once_call_options *options,
                    once_begin *begin, once_called *done, void *user,
                    once_error *err)
{
    once_task *task = malloc(sizeof(*task));
    int rc;

    if (task == NULL)
        return once__fail(err, ONCE_ENOMEM, "call: %zu bytes", sizeof(*task));
    rc = once__task_init(task, e, options, err);
    if (rc != ONCE_OK)
        goto out;
    task->begin = begin;
    task->done = done;
    task->user = user;
    rc = once_claim_start(task->attempt, claimed, task);
    if (rc == ONCE_OK)
        return rc; /* the task belongs to the engine now */
    (void)once__fail(err, rc, "%s", once_text(rc));
out:
    once__task_clear(task);
    free(task);
    return rc;
}

/* After ONCE_OK the task may be freed already. */
static int start_ending(once_task *task)
{
    switch (task->ending) {
    case ONCE__TASK_RECORD:
        return once_complete_start(
            task->attempt, task->code == 0 ? ONCE_SUCCESS : ONCE_FAILURE,
            once__task_encode(task), ended, task);
    case ONCE__TASK_RELEASE:
        return once_release_start(task->attempt, ONCE_REASON_PROGRAM, ended,
                                  task);
    default:
        return once_give_up_start(task->attempt, ONCE_REASON_PROGRAM, ended,
                                  task);
    }
}

void once_task_end(once_task *task, int code)
{
    int rc;

    task->code = code;
    rc = start_ending(task);
    if (rc == ONCE_ENOMEM) { /* no copy of the result: it is not recorded */
        task->ending = ONCE__TASK_UNKNOWN;
        rc = start_ending(task);
    }
    if (rc != ONCE_OK)
        report(task, rc);
}
