/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.c - shows many records, or counts them, one step between two batches at
 * a time.
 *
 * A scan of a million records delays other calls by one step at most. It is not
 * a snapshot: a change of a record is seen if the scan has not reached it yet.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "calls/engine/engine.h"

enum { STEP = 256 };

struct once__scan_call {
    struct once__node node;
    struct once__scan_call *next;
    /* One step; 1: it was the last, and `rc` is set. */
    int (*step)(once_engine *e, struct once__scan_call *call);
    int what;
    once_each *each;
    void *user;                 /* of `each`; or where the answer goes */
    const once_position *after; /* NULL, or `last` */
    once_position last;
    uint32_t left;
    int shown;
    int stopped; /* `each` returned nonzero */
    int rc;
    once_error err;
    sem_t ended;
};

static void finish(once_engine *e, int rc)
{
    struct once__scan_call *call = e->scans;

    e->scans = call->next;
    if (e->scans == NULL)
        e->scans_end = &e->scans;
    call->rc = rc;
    (void)sem_post(&call->ended);
}

static int show(void *user, const uint8_t name[ONCE_NAME_SIZE],
                const once_record *r)
{
    struct once__scan_call *call = user;

    call->last = once_position_of(call->what, name, r);
    call->after = &call->last;
    call->shown++;
    call->left--;
    call->stopped = call->each(call->user, name, r) != 0;
    return call->stopped;
}

static int scan_step(once_engine *e, struct once__scan_call *call)
{
    uint32_t max = call->left < STEP ? call->left : STEP;
    once_position after = call->last; /* show() writes `last` */
    int n = e->store->ops->scan(e->store, call->what,
                                call->after == NULL ? NULL : &after, max, show,
                                call, &call->err);

    call->rc = n < 0 ? n : call->shown;
    return n < 0 || call->stopped || (uint32_t)n < max || call->left == 0;
}

static int count_step(once_engine *e, struct once__scan_call *call)
{
    call->rc =
        e->store->ops->count == NULL
            ? once__fail(&call->err, ONCE_ENOSYS,
                         "%s: this store does not count", e->store->ops->name)
            : e->store->ops->count(e->store, call->user, &call->err);
    return 1;
}

static int head_step(once_engine *e, struct once__scan_call *call)
{
    call->rc =
        e->store->ops->head == NULL
            ? once__fail(&call->err, ONCE_ENOSYS, "%s: this store has no head",
                         e->store->ops->name)
            : e->store->ops->head(e->store, NULL, call->user, &call->err);
    return 1;
}

int once__scan_step(once_engine *e)
{
    struct once__scan_call *call = e->scans;

    if (call == NULL)
        return 0;
    call->err = (once_error){ONCE_ESTORE, "the store cannot be read"};
    if (call->step(e, call))
        finish(e, call->rc);
    return 1;
}

void once__scan_abandon(once_engine *e, int rc)
{
    while (e->scans != NULL) {
        (void)once__fail(&e->scans->err, rc, "%s", once_text(rc));
        finish(e, rc);
    }
}

static void arrive(void *engine, struct once__node *node)
{
    struct once__scan_call *call = ONCE__OF(node, struct once__scan_call, node);
    once_engine *e = engine;

    *e->scans_end = call;
    e->scans_end = &call->next;
    if (atomic_load(&e->closing))
        once__scan_abandon(e, ONCE_ECLOSED);
}

/* Has the engine's thread do it, and waits. */
static int run(once_engine *e, struct once__scan_call *call, once_error *err)
{
    int rc;

    assert(!once__on_thread(e));
    call->node.arrive = arrive;
    if (sem_init(&call->ended, 0, 0) != 0)
        return once__fail(err, ONCE_ENOMEM, "scan: no semaphore");
    rc = once__refusal(e, err);
    if (rc == ONCE_OK && !once__send(e, &call->node))
        rc = once__fail(err, ONCE_ECLOSED, "%s", once_text(ONCE_ECLOSED));
    if (rc != ONCE_OK)
        goto out;
    once__queue_wake(&e->queue);
    while (sem_wait(&call->ended) != 0)
        assert(errno == EINTR);
    rc = call->rc;
    if (rc < 0)
        (void)once__fail(err, call->err.code, "%s", call->err.text);
out:
    (void)sem_destroy(&call->ended);
    return rc;
}

int once_scan(once_engine *e, int what, const once_position *after,
              uint32_t max, once_each *each, void *user, once_error *err)
{
    struct once__scan_call call;

    if (what != ONCE_SCAN_ALL && what != ONCE_SCAN_WAITING &&
        what != ONCE_SCAN_LIVE)
        return once__fail(err, ONCE_EINVAL, "what: %d is not one", what);
    if (max == 0 || max > INT32_MAX)
        return once__fail(err, ONCE_EINVAL, "max: %u is not in 1..%d", max,
                          INT32_MAX);
    memset(&call, 0, sizeof(call));
    call.step = scan_step;
    call.what = what;
    call.each = each;
    call.user = user;
    call.left = max;
    if (after != NULL) {
        call.last = *after;
        call.after = &call.last;
    }
    return run(e, &call, err);
}

int once_count(once_engine *e, once_counts *out, once_error *err)
{
    struct once__scan_call call;

    memset(&call, 0, sizeof(call));
    call.step = count_step;
    call.user = out;
    return run(e, &call, err);
}

int once_head(once_engine *e, once_store_head *out, once_error *err)
{
    struct once__scan_call call;

    memset(&call, 0, sizeof(call));
    call.step = head_step;
    call.user = out;
    return run(e, &call, err);
}
