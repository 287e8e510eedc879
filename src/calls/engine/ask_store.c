/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask_store.c - makes batches of the tasks that are ready, passes them to the
 * store, and ends or repeats each task.
 *
 * All tasks that became ready while the last batch was persisted are the next
 * batch: group commit. A batch that was not answered is *unknown*: each of its
 * operations is repeated unchanged, with the same token and the same bytes,
 * until its deadline (docs/protocol.md, section 6, rule 1). Until then a timer
 * holds it, so that it delays no other task. An answer always comes from the
 * store.
 *
 * A batch may fail because of one operation, for example on a damaged page. If
 * the batches before it were answered, the operations of a batch that is not
 * are repeated in batches of half its size, so that in the end the one that
 * fails is alone. While the store answers no batch at all the size is not the
 * reason, and batches stay large.
 *
 * A store may be restored from a copy while it is open here. Its head, with the
 * gap of what the copy lacks, is read when it is opened; each fence that is
 * granted afterwards tells of the restore. Then nothing is granted any more, and
 * the store is not asked again, until it is opened again.
 */
#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "calls/engine/engine.h"
#include "calls/engine/failpoint.h"
#include "calls/store/store.h"

enum { BACKOFF_MS = 5, BACKOFF_MAX_MS = 500, BACKOFF_STEPS = 7 };

void once__ready_init(once_engine *e)
{
    size_t i;

    for (i = 0; i < ONCE__LINES; i++) {
        e->ready[i].first = NULL;
        e->ready[i].end = &e->ready[i].first;
    }
}

int once__ready_any(const once_engine *e)
{
    return e->ready[ONCE__OWNERS].first != NULL ||
           e->ready[ONCE__OTHERS].first != NULL;
}

static enum once__queue_line line_of(const once_op *op)
{
    switch (op->verb) {
    case ONCE_OP_RENEW:
    case ONCE_OP_DISPATCH:
    case ONCE_OP_COMPLETE:
    case ONCE_OP_RELEASE:
    case ONCE_OP_GIVE_UP:
        return ONCE__OWNERS;
    default:
        return ONCE__OTHERS;
    }
}

static void push(once_engine *e, once__task *task)
{
    struct once__tasks *list = &e->ready[line_of(task->op)];

    task->node.next = NULL;
    *list->end = &task->node;
    list->end = &task->node.next;
}

static once__task *pop_from(struct once__tasks *list)
{
    struct once__node *node = list->first;

    if (node == NULL)
        return NULL;
    list->first = node->next;
    if (list->first == NULL)
        list->end = &list->first;
    return ONCE__OF(node, once__task, node);
}

static struct once__tasks *next_line(once_engine *e)
{
    return &e->ready[e->ready[ONCE__OWNERS].first != NULL ? ONCE__OWNERS
                                                          : ONCE__OTHERS];
}

static once__task *pop(once_engine *e)
{
    return pop_from(next_line(e));
}

/* Whether the next task may be in a batch with `n` others. Lowers `*max` to its
 * limit. */
static int may_join(once_engine *e, size_t n, size_t *max)
{
    const struct once__node *node = next_line(e)->first;
    uint32_t batch_limit;

    if (node == NULL)
        return 0;
    batch_limit = ONCE__OF(node, once__task, node)->batch_limit;
    if (batch_limit > 0 && batch_limit < *max)
        *max = batch_limit;
    return n < *max;
}

static void end(once_engine *e, once__task *task, int rc)
{
    once_op *op = task->op;

    assert(e->pending > 0);
    if (rc < 0) {
        memset(&op->record, 0, sizeof(op->record));
        op->left_ms = 0;
    }
    e->pending--;
    if (!task->unlimited)
        once__uncount(&e->count.queued);
    task->end(e, task, rc);
}

/* The error of a task for which the store is not asked again: it depends on
 * whether the store was asked before. */
static int final_error(const once__task *task)
{
    return task->first_ms == 0 ? ONCE_ECLOSED : ONCE_ESTORE;
}

static void backoff_ended(void *engine, struct once__timer *timer)
{
    once__task *task = ONCE__OF(timer, once__task, timer);
    once_engine *e = engine;

    if (e->ended) {
        end(e, task, final_error(task));
        return;
    }
    once__count(&e->count.repeated, 1);
    push(e, task);
}

void once__ask(once_engine *e, once__task *task, uint64_t until_ms)
{
    assert(!e->ended);
    assert(task->end != NULL && !task->timer.armed);
    task->timer.fire = backoff_ended;
    task->until_ms = until_ms;
    task->first_ms = 0;
    task->tries = 0;
    task->batch_limit = 0;
    e->pending++;
    if (!task->unlimited)
        once__count(&e->count.queued, 1);
    push(e, task);
}

/* Repeats the task after 5 ms, doubled each time up to half a second, and for
 * the last time at its deadline. 0: the deadline has passed. */
static int later(once_engine *e, once__task *task)
{
    uint64_t now = once__now_ms(), ms = BACKOFF_MAX_MS;

    /* What the reaper asks is found again by the next scan, or process. */
    if (e->ended || now >= task->until_ms ||
        (task->unlimited && atomic_load(&e->closing)))
        return 0;
    if (task->tries < BACKOFF_STEPS)
        ms = (uint64_t)BACKOFF_MS << task->tries;
    task->tries++;
    ms = once__jitter(e, ms);
    once__timer_arm(&e->timers, &task->timer,
                    ms < task->until_ms - now ? now + ms : task->until_ms);
    return 1;
}

int once__ask_again(once_engine *e, once__task *task)
{
    assert(!task->unlimited);
    if (!later(e, task))
        return 0;
    e->pending++;
    once__count(&e->count.queued, 1);
    return 1;
}

/*
 * An error means that nothing was changed, but only by the try that it answers.
 * An earlier try that was not answered may have been applied, unless it only
 * reads. (For a record that cannot be read this makes no difference: no call
 * can read it.)
 */
int once__reportable(const once__task *task, int rc)
{
    int verb = task->op->verb;

    if (task->tries == 0 || verb == ONCE_OP_READ || verb == ONCE_OP_SHOW)
        return rc;
    return rc == ONCE_EFULL || rc == ONCE_ENOMEM ? ONCE_ESTORE : rc;
}

/* A grant by a store that is not the one that was opened: its key may have been
 * executed in the time that the copy lacks. */
static int is_of_restored(once_engine *e, const once__task *task)
{
    if (task->op->rc != ONCE_OWNER ||
        !once__is_restored(e->store, task->op->record.fence))
        return 0;
    e->restored = 1;
    return 1;
}

static void answered(once_engine *e, once__task *task)
{
    int rc = task->op->rc;

    if (rc == ONCE_ESTORE || is_of_restored(e, task)) {
        if (!later(e, task))
            end(e, task, ONCE_ESTORE);
        return;
    }
    if (rc == ONCE_ECORRUPT || rc == ONCE_EVERSION) {
        once__count(&e->count.corrupt, 1);
        once__event(e, "a record is not readable: %s", once_text(rc));
    }
    if (rc == ONCE_OWNER)
        once__witness_note(e, task->op->record.fence);
    once__count(&e->count.operations, 1);
    end(e, task, rc);
}

static void unanswered(once_engine *e, once__task *task, size_t batch_limit)
{
    if (batch_limit > 0)
        task->batch_limit = (uint32_t)batch_limit;
    if (!later(e, task))
        end(e, task, ONCE_ESTORE);
}

void once__store_failed(once_engine *e, const once_error *err)
{
    once__count(&e->count.unknown, 1);
    if (!e->failing)
        once__event(e, ONCE_EVENT_NO_ANSWER ": %s", err->text);
    e->failing = 1;
    once__publish(&e->count.up, 0);
    memcpy(e->trouble, err->text, sizeof(e->trouble));
}

static void store_answered(once_engine *e)
{
    if (e->failing)
        once__event(e, "the store answers again");
    e->failing = 0;
    once__publish(&e->count.up, 1);
    e->trouble[0] = '\0';
    e->needs_maintenance = 1;
}

static size_t gather(once_engine *e, int *forgets)
{
    uint64_t now = once__now_ms();
    size_t n = 0, max = e->options.batch_max;
    once__task *task;

    *forgets = 0;
    while (may_join(e, n, &max)) {
        task = pop(e);
        if (task->first_ms == 0)
            task->first_ms = now;
        e->batch[n] = task;
        e->ops[n++] = task->op;
        *forgets |= task->op->verb == ONCE_OP_FORGET;
    }
    return n;
}

void once__batch_run(once_engine *e)
{
    once_error err = {ONCE_ESTORE, "no reason given"};
    int forgets, rc;
    size_t i, n = gather(e, &forgets);
    uint64_t start = once__now_us();
    int others_fail = e->failing;

    if (n == 0)
        return;
    if (forgets && !once__clock_look(e))
        e->store->forget_ms = 1; /* no retention time has ended by then */
    ONCE_FAILPOINT_BATCH(e->ops, n, "sent");
    rc = e->restored ? once__fail(&err, ONCE_ESTORE,
                                  "the store was restored, or its restored "
                                  "state was accepted, while it was open here: "
                                  "nothing is granted until it is opened again "
                                  "(reload the gateway, restart the program)")
                     : e->store->ops->apply(e->store, e->ops, n, &err);
    ONCE_FAILPOINT_BATCH(e->ops, n, "answered");
    once__count_batch(e, once__now_us() - start);
    if (rc == ONCE_OK)
        store_answered(e);
    else
        once__store_failed(e, &err);
    for (i = 0; i < n; i++) {
        if (rc == ONCE_OK)
            answered(e, e->batch[i]);
        else
            unanswered(e, e->batch[i], others_fail ? 0 : (n + 1) / 2);
    }
}

void once__batch_abandon(once_engine *e)
{
    once__task *task;

    assert(e->ended);
    while ((task = pop(e)) != NULL)
        end(e, task, final_error(task));
}
