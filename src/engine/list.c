/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c - shows all records, one step between two batches at a time.
 *
 * A list of a million records delays other calls by one step at most. It is not
 * a snapshot: a change of a record is seen if the list has not reached it yet.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "core/error.h"
#include "engine/engine.h"

enum { STEP = 256 };

struct once__list_call {
    struct once__node node;
    struct once__list_call *next;
    once_each *each;
    void *user;
    const uint8_t *after; /* NULL, or `last` */
    uint8_t last[ONCE_NAME_SIZE];
    uint32_t left;
    int shown;
    int stopped; /* `each` returned nonzero */
    int rc;
    once_error err;
    sem_t ended;
};

static void finish(once_engine *e, int rc)
{
    struct once__list_call *call = e->lists;

    e->lists = call->next;
    if (e->lists == NULL)
        e->lists_end = &e->lists;
    call->rc = rc;
    (void)sem_post(&call->ended);
}

static int show(void *user, const uint8_t name[ONCE_NAME_SIZE],
                const once_record *r)
{
    struct once__list_call *call = user;

    memcpy(call->last, name, ONCE_NAME_SIZE);
    call->after = call->last;
    call->shown++;
    call->left--;
    call->stopped = call->each(call->user, name, r) != 0;
    return call->stopped;
}

int once__list_step(once_engine *e)
{
    struct once__list_call *call = e->lists;
    uint32_t max;
    int n;

    if (call == NULL)
        return 0;
    max = call->left < STEP ? call->left : STEP;
    call->err = (once_error){ONCE_ESTORE, "the store cannot be read"};
    n = e->store->ops->scan(e->store, ONCE_SCAN_ALL, call->after, max, show,
                            call, &call->err);
    if (n < 0)
        finish(e, n);
    else if (call->stopped || (uint32_t)n < max || call->left == 0)
        finish(e, call->shown);
    return 1;
}

void once__list_abandon(once_engine *e, int rc)
{
    while (e->lists != NULL) {
        (void)once__fail(&e->lists->err, rc, "%s", once_text(rc));
        finish(e, rc);
    }
}

static void arrive(void *engine, struct once__node *node)
{
    struct once__list_call *call = ONCE__OF(node, struct once__list_call, node);
    once_engine *e = engine;

    *e->lists_end = call;
    e->lists_end = &call->next;
    if (atomic_load(&e->closing))
        once__list_abandon(e, ONCE_ECLOSED);
}

int once_list(once_engine *e, const uint8_t *after, uint32_t max,
              once_each *each, void *user, once_error *err)
{
    struct once__list_call call;
    int rc;

    assert(!once__on_thread(e));
    if (max == 0 || max > INT32_MAX)
        return once__fail(err, ONCE_EINVAL, "max: %u is not in 1..%d", max,
                          INT32_MAX);
    memset(&call, 0, sizeof(call));
    call.node.arrive = arrive;
    call.each = each;
    call.user = user;
    call.left = max;
    if (after != NULL) {
        memcpy(call.last, after, ONCE_NAME_SIZE);
        call.after = call.last;
    }
    if (sem_init(&call.ended, 0, 0) != 0)
        return once__fail(err, ONCE_ENOMEM, "list: no semaphore");
    rc = once__refusal(e, err);
    if (rc == ONCE_OK && !once__send(e, &call.node))
        rc = once__fail(err, ONCE_ECLOSED, "%s", once_text(ONCE_ECLOSED));
    if (rc != ONCE_OK)
        goto out;
    once__queue_wake(&e->queue);
    while (sem_wait(&call.ended) != 0)
        assert(errno == EINTR);
    rc = call.rc;
    if (rc < 0)
        (void)once__fail(err, rc, "%s", call.err.text);
out:
    (void)sem_destroy(&call.ended);
    return rc;
}
