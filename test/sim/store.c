/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - one store that all gateways share, and the driver that asks it.
 *
 * The store is a row for each name and once__transition(). The driver's apply() is a
 * message: sent, applied and answered are three events, and each of them can
 * be lost, late or there twice. So "applied, and the caller saw a time-out"
 * needs no code of its own.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "calls/core/transition.h"
#include "base/error.h"
#include "calls/engine/engine.h"
#include "calls/store/store.h"

#include "sim.h"

enum { EPOCH_MS = 1000000000 };

uint64_t store_clock(const struct world *w)
{
    return (uint64_t)((int64_t)w->now + w->clock_off) + EPOCH_MS;
}

struct row *store_row(struct world *w, const uint8_t *name)
{
    struct row *row = w->rows;

    while (row->used && memcmp(row->name, name, ONCE_NAME_SIZE) != 0) {
        row++;
        assert(row < w->rows + NAMES); /* there are no other names */
    }
    if (!row->used) {
        row->used = 1;
        memcpy(row->name, name, ONCE_NAME_SIZE);
    }
    return row;
}

/* ---- Messages ---------------------------------------------------------- */

static void keep_bytes(once_bytes *bytes, uint8_t *own, size_t room)
{
    assert(bytes->size <= room);
    if (bytes->size > 0 && bytes->data != own)
        memcpy(own, bytes->data, bytes->size);
    bytes->data = own;
}

/* What an operation points to travels with it. */
static void keep_question(struct item *item)
{
    keep_bytes(&item->op.result, item->bytes, BYTES);
    keep_bytes(&item->op.note, item->note, NOTE);
}

static struct batch *batch_of(unsigned n)
{
    struct batch *b = outside_alloc(sizeof(*b) + n * sizeof(b->items[0]));

    memset(b, 0, sizeof(*b));
    b->n = n;
    return b;
}

static struct batch *copy_of(const struct batch *b)
{
    struct batch *copy = batch_of(b->n);
    unsigned i;

    memcpy(copy, b, sizeof(*b) + b->n * sizeof(b->items[0]));
    for (i = 0; i < b->n; i++)
        keep_question(&copy->items[i]);
    return copy;
}

static void send(struct world *w, struct batch *b, int lost)
{
    const struct swarm *s = &w->swarm;
    uint64_t ms = around(w, s->store_ms);
    struct event e = {.kind = E_STORE, .who = b->gateway, .data = b};

    if (fault(w, s->slow))
        ms += below(w, 4 * s->lease_ms);
    if (fault(w, s->repeated)) {
        struct event again = e;

        again.data = copy_of(b);
        push(w, ms + below(w, 4 * s->lease_ms), again);
    }
    if (lost)
        free(b);
    else
        push(w, ms, e);
}

static int is_owners(const once_op *op)
{
    return op->verb == ONCE_OP_RENEW || op->verb == ONCE_OP_DISPATCH ||
           op->verb == ONCE_OP_COMPLETE || op->verb == ONCE_OP_RELEASE ||
           op->verb == ONCE_OP_GIVE_UP;
}

/* A lease cannot wait, a claim can: nobody who only asks goes before an owner
 * who stands in line. */
static void check_order(struct world *w, const struct gateway *g, once_op **ops,
                        size_t n)
{
    const struct once__node *node;
    const once_engine *e = g->engine;
    size_t i, others = 0;

    for (i = 0; i < n; i++)
        others += ops[i]->verb == ONCE_OP_CLAIM || ops[i]->verb == ONCE_OP_READ;
    if (others == 0)
        return;
    for (i = 0; i < ONCE__LINES; i++)
        for (node = e->ready[i].first; node != NULL; node = node->next)
            if (is_owners(ONCE__OF(node, once__task, node)->op))
                violated(w, "R9", -1, "an owner waited behind a claim");
}

static int sim_apply(once_store *store, once_op **ops, size_t n,
                     once_error *err)
{
    struct gateway *g =
        ((struct gateway *)(void *)((char *)store -
                                    offsetof(struct gateway, store)));
    struct world *w = g->world;
    struct batch *b = batch_of((unsigned)n);
    unsigned i;

    check_order(w, g, ops, n);
    b->gateway = g->index;
    b->life = g->life;
    b->number = ++g->asked;
    b->forget_ms = g->store.forget_ms;
    for (i = 0; i < n; i++) {
        b->items[i].op = *ops[i];
        keep_question(&b->items[i]);
        check_asked(w, ops[i]);
    }
    if (n > 1)
        saw(w, SEEN_GROUPED);
    send(w, b, g->cut_till > w->now || fault(w, w->swarm.request_lost));
    push(w, w->swarm.driver_ms,
         (struct event){.kind = E_NO_ANSWER,
                        .who = g->index,
                        .life = g->life,
                        .n = g->asked});
    g->ops = ops;
    g->n_ops = n;
    fiber_wait(w, g, ASKING);
    return g->answered == ONCE_OK
               ? ONCE_OK
               : once__fail(err, ONCE_ESTORE, "no answer in time");
}

static int sim_scan(once_store *store, int what, const once_position *after,
                    uint32_t max, once_each *each, void *user, once_error *err)
{
    struct gateway *g =
        ((struct gateway *)(void *)((char *)store -
                                    offsetof(struct gateway, store)));
    struct world *w = g->world;
    uint32_t shown = 0;
    int i;

    (void)after;
    if (g->cut_till > w->now || fault(w, w->swarm.request_lost))
        return once__fail(err, ONCE_ESTORE, "no answer in time");
    for (i = 0; i < NAMES && shown < max; i++) {
        once_record r = w->rows[i].r;

        if (!w->rows[i].used ||
            once__record_due(&r, once__time_of(store, what == ONCE_SCAN_KEEP,
                                               store_clock(w))) != what)
            continue;
        r.result.data = NULL;
        shown++;
        if (each(user, w->rows[i].name, &r) != 0)
            break;
    }
    return (int)shown;
}

static int sim_time(once_store *store, const once_store_time *put,
                    once_store_time *out, once_error *err)
{
    struct gateway *g =
        ((struct gateway *)(void *)((char *)store -
                                    offsetof(struct gateway, store)));
    struct world *w = g->world;

    if (g->cut_till > w->now || fault(w, w->swarm.request_lost)) {
        if (put != NULL)
            note_unput(w, g, put->backs != w->time.backs);
        return once__fail(err, ONCE_ESTORE, "no answer in time");
    }
    if (put == NULL)
        note_look(w, g);
    else
        w->time = *put;
    *out = w->time;
    out->now_ms = store_clock(w);
    trace(w,
          "gateway %d %s the time: beside the true one, the clock is %lld ms "
          "and what was seen to pass %lld, %llu steps back",
          g->index, put == NULL ? "asks" : "puts", (long long)w->clock_off,
          (long long)(out->seen_ms - EPOCH_MS - w->now),
          (unsigned long long)out->backs);
    return ONCE_OK;
}

const struct once_store_ops sim_store = {.size = sizeof(sim_store),
                                         .name = "sim",
                                         .durable = 1,
                                         .shared = 1,
                                         .apply = sim_apply,
                                         .scan = sim_scan,
                                         .time = sim_time};

void store_ask(struct world *w, const once_op *op)
{
    struct batch *b = batch_of(1);

    b->gateway = -1;
    b->items[0].op = *op;
    keep_question(&b->items[0]);
    send(w, b, fault(w, w->swarm.request_lost));
}

/* ---- The store --------------------------------------------------------- */

static void apply_one(struct world *w, struct batch *b, struct item *item)
{
    once_op *op = &item->op;
    struct row *row = store_row(w, op->name);
    once_record was = row->r;
    uint8_t bytes[BYTES];
    int changed;

    memcpy(bytes, row->bytes, BYTES);
    was.result.data = bytes;
    if (b->gateway >= 0 && fault(w, w->swarm.refused)) {
        saw(w, SEEN_NO_MEMORY);
        op->rc = ONCE_ENOMEM;
        op->left_ms = 0;
        op->record = row->r;
    } else {
        const once_store sent = {.forget_ms = b->forget_ms};

        changed = once__transition(
            &row->r, op,
            once__time_of(&sent, op->verb == ONCE_OP_FORGET, store_clock(w)),
            &w->fence);
        keep_bytes(&row->r.result, row->bytes, BYTES);
        keep_bytes(&row->r.note, row->note, NOTE);
        op->record = row->r;
        check_applied(w, b, op, &was, &row->r, changed);
    }
    memcpy(item->bytes, row->bytes, BYTES);
    op->record.result.data = item->bytes;
}

/* Planted: what is there is looked at now and written over later. */
static int is_torn(struct world *w, struct event *e)
{
    struct batch *b = e->data;
    once_op *op = &b->items[0].op;
    struct row *row = store_row(w, op->name);

    if (w->flaw != TORN_CLAIM || op->verb != ONCE_OP_CLAIM || b->n != 1)
        return 0;
    if (b->torn) {
        memset(&row->r, 0, sizeof(row->r));
        return 0;
    }
    if (row->r.attempt != 0)
        return 0;
    b->torn = 1;
    push(w, 1 + below(w, 5), *e);
    return 1;
}

void store_arrives(struct world *w, struct event *e)
{
    struct batch *b = e->data;
    const struct gateway *g = b->gateway < 0 ? NULL : &w->gateways[b->gateway];
    unsigned i;

    if (is_torn(w, e))
        return;
    if (g != NULL &&
        (g->life != b->life || g->asked != b->number || g->doing != ASKING))
        saw(w, SEEN_LATE_COPY);
    for (i = 0; i < b->n; i++)
        apply_one(w, b, &b->items[i]);
    if (g == NULL || g->cut_till > w->now || fault(w, w->swarm.answer_lost)) {
        if (g != NULL)
            saw(w, SEEN_ANSWER_LOST);
        free(b);
        return;
    }
    push(w, around(w, w->swarm.store_ms),
         (struct event){.kind = E_ANSWER,
                        .who = b->gateway,
                        .life = b->life,
                        .n = b->number,
                        .data = b});
}

/* To the driver: an answer, or its own time-out. */
void store_answers(struct world *w, struct event *e)
{
    struct gateway *g = &w->gateways[e->who];
    unsigned i;

    if (g->life != e->life || g->doing != ASKING || g->asked != e->n) {
        free(e->data); /* nobody waits for it any more */
        return;
    }
    g->answered = e->data == NULL ? ONCE_ESTORE : ONCE_OK;
    if (e->data != NULL) {
        free(g->answer);
        g->answer = e->data;
        for (i = 0; i < g->n_ops; i++) {
            g->ops[i]->rc = g->answer->items[i].op.rc;
            g->ops[i]->left_ms = g->answer->items[i].op.left_ms;
            g->ops[i]->record = g->answer->items[i].op.record;
            check_answered(w, g->ops[i]);
        }
    }
    gateway_run(w, g);
}
