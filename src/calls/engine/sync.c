/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync.c - single operations: once_submit() and once_apply().
 *
 * The synchronous call is the asynchronous one and a semaphore on the caller's
 * stack. It must not be made on the engine's own thread, which would wait for
 * itself for ever.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "calls/core/transition.h"
#include "base/error.h"
#include "calls/engine/engine.h"

enum { STORE_MS = 1000 };

struct waiting_call {
    once__task task;
    sem_t answered;
    char why[sizeof(((once_engine *)NULL)->trouble)]; /* of ONCE_ESTORE */
};

static uint64_t deadline(const once_op *op)
{
    return once__now_ms() + (op->store_ms == 0 ? STORE_MS : op->store_ms);
}

static void arrive(void *engine, struct once__node *node)
{
    once__task *task = ONCE__OF(node, once__task, node);
    once_engine *e = engine;

    int absent = once__absent(e);

    once__queue_leave(e); /* the room that the caller took */
    if (absent != ONCE_OK) {
        memset(&task->op->record, 0, sizeof(task->op->record));
        task->op->left_ms = 0;
        task->end(e, task, absent);
        return;
    }
    task->held = task->op->verb == ONCE_OP_CLAIM && once__gap_holds(e);
    if (task->held)
        task->op->verb = ONCE_OP_READ;
    once__ask(e, task, deadline(task->op));
}

static int enter(once_engine *e, once__task *task, once_op *op, once_error *err)
{
    int rc = once__op_check(op, err);

    if (rc != ONCE_OK)
        return rc;
    rc = once__refusal(e, err);
    if (rc != ONCE_OK)
        return rc;
    if (!once__queue_enter(e))
        return once__fail(err, ONCE_EBUSY, "queue_max: %u operations wait",
                          e->options.queue_max);
    task->op = op;
    task->node.arrive = arrive;
    if (once__send(e, &task->node))
        return ONCE_OK;
    once__queue_leave(e);
    return once__fail(err, ONCE_ECLOSED, "%s", once_text(ONCE_ECLOSED));
}

/* What the caller is told: of a claim that was held, what a READ means. */
static int answer(once__task *task, int rc)
{
    rc = once__reportable(task, rc);
    if (!task->held)
        return rc;
    task->op->verb = ONCE_OP_CLAIM;
    return once__gap_answer(rc, &task->op->record);
}

static void submitted(once_engine *e, once__task *task, int rc)
{
    once_op *op = task->op;

    op->rc = answer(task, rc);
    free(task);
    e->notified = 1;
    op->done(op);
}

int once_submit(once_engine *e, once_op *op, once_error *err)
{
    once__task *task;
    int rc;

    if (op->done == NULL)
        return once__fail(err, ONCE_EINVAL, "done: there is none");
    task = calloc(1, sizeof(*task));
    if (task == NULL)
        return once__fail(err, ONCE_ENOMEM, "submit: %zu bytes", sizeof(*task));
    task->end = submitted;
    rc = enter(e, task, op, err);
    if (rc != ONCE_OK)
        free(task);
    return rc;
}

static int copy(once_bytes *b)
{
    void *data;

    if (b->size == 0) {
        b->data = NULL;
        return 1;
    }
    data = malloc(b->size);
    if (data != NULL)
        memcpy(data, b->data, b->size);
    else
        b->size = 0;
    b->data = data;
    return data != NULL;
}

/* The store's bytes are valid until its next batch, so the waiting thread gets
 * a copy. Without memory for it the answer is ONCE_ESTORE, because the
 * operation may have been applied. */
static void awaited(once_engine *e, once__task *task, int rc)
{
    struct waiting_call *call = ONCE__OF(task, struct waiting_call, task);
    once_op *op = task->op;
    int whole = copy(&op->record.result);

    rc = answer(task, rc);
    whole &= copy(&op->record.note);
    whole &= copy(&op->record.label);
    op->rc = whole ? rc : ONCE_ESTORE;
    if (rc == ONCE_ESTORE)
        memcpy(call->why, e->trouble, sizeof(call->why));
    (void)sem_post(&call->answered);
}

int once_apply(once_engine *e, once_op *op, once_error *err)
{
    struct waiting_call call;
    int rc;

    assert(!once__on_thread(e));
    memset(&call, 0, sizeof(call));
    memset(&op->record, 0, sizeof(op->record));
    call.task.end = awaited;
    if (sem_init(&call.answered, 0, 0) != 0)
        return once__fail(err, ONCE_ENOMEM, "apply: no semaphore");
    rc = enter(e, &call.task, op, err);
    if (rc != ONCE_OK)
        goto out;
    once__queue_wake(&e->queue); /* with `manual_wake`, too */
    while (sem_wait(&call.answered) != 0)
        assert(errno == EINTR);
    rc = op->rc;
    if (rc < 0)
        (void)once__fail(err, rc, "%s%s%s", once_text(rc),
                         call.why[0] == '\0' ? "" : ": ", call.why);
out:
    (void)sem_destroy(&call.answered);
    return rc;
}

void once_op_clear(once_op *op)
{
    free((void *)(uintptr_t)op->record.result.data);
    free((void *)(uintptr_t)op->record.note.data);
    free((void *)(uintptr_t)op->record.label.data);
    op->record.result = (once_bytes){NULL, 0};
    op->record.note = (once_bytes){NULL, 0};
    op->record.label = (once_bytes){NULL, 0};
}
