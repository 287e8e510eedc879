/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline.c - a sender with two threads, so that database and target work at the
 * same time:
 *
 *      clerk                      desk                    carrier
 *      claim 2 ----------------> claimed 2 -------------> send 2
 *      settle 1 <--------------- carried 1 <------------- proofs of 1
 *      claim 3 ----------------> claimed 3 -------------> ...
 *
 * The clerk has the connection to the database, the carrier that to the target.
 * Two loads at most are with the carrier. The first is with the target; the second,
 * claimed meanwhile, is sent when the first proof of that one is there. No key is in
 * both, since a claim leaves out the keys of rows that are leased; but for a row
 * before these that an operator has freed on a route with `pass`.
 *
 * What is claimed is settled, whatever happens: a load that may not be sent any
 * more (its lease is nearly over, the target has gone, the relay stops) goes back
 * over the desk unsent. So it refuses to claim while the target is away, and two
 * loads while its circuit is open.
 */
#include "messages/relay/sender.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/steady.h"
#include "base/thread.h"

enum {
    OUT_MOST = 2, /* loads with the carrier */
    POLL_MS = 5,  /* nothing to claim, and a load that may come back */
    IDLE_MS = 200 /* how soon a clerk that may not claim sees a stop */
};

#define CHECK_MS 1000 /* how soon an idle carrier sees that the target went */

/* ---- The desk ------------------------------------------------------------- */

void once__desk_init(struct once__desk *d)
{
    (void)pthread_mutex_init(&d->lock, NULL);
    once__cond_init(&d->changed);
}

void once__desk_clear(struct once__desk *d)
{
    (void)pthread_cond_destroy(&d->changed);
    (void)pthread_mutex_destroy(&d->lock);
}

static void append(struct once__load **list, struct once__load *load)
{
    while (*list != NULL)
        list = &(*list)->next;
    load->next = NULL;
    *list = load;
}

static struct once__load *first_of(struct once__load **list)
{
    struct once__load *load = *list;

    if (load != NULL)
        *list = load->next;
    return load;
}

static void load_free(struct once__load *load)
{
    once__batch_clear(&load->batch);
    once__outgoing_clear(&load->list);
    free(load);
}

/* ---- The carrier: loads --------------------------------------------------- */

/* It has ended, or was not begun: the clerk settles it. */
static void give(struct once__sender *w, struct once__load *load)
{
    struct once__desk *d = &w->desk;

    once__sender_count(w, ONCE__ROUTE_SENT, load->batch.sent);
    if (!load->batch.back)
        once__target_judge(w, &load->batch);
    (void)pthread_mutex_lock(&d->lock);
    if (w->open && d->want > 1)
        d->want = 1;
    append(&d->carried, load);
    d->out--;
    (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
}

/* Sends it behind what is with the target, or, with `back`, nothing of it. */
static void begin(struct once__sender *w, struct once__load **with,
                  struct once__load *load, int back)
{
    once_error err = {0, ""};

    load->batch = once__sender_batch(w, &load->list, load->claimed_ms);
    load->batch.back = back;
    if (once__batch_begin(&w->wire, &load->batch, &err) == ONCE_OK &&
        load->batch.open > 0)
        append(with, load);
    else
        give(w, load);
}

/* The load that was claimed first; waits for one up to `wait_ms`, unless there
 * will be none any more. */
static struct once__load *take(struct once__desk *d, uint32_t wait_ms)
{
    uint64_t until = once__steady_ms() + wait_ms;
    struct once__load *load;

    (void)pthread_mutex_lock(&d->lock);
    while (d->claimed == NULL && !d->closed && once__steady_ms() < until)
        once__cond_until(&d->changed, &d->lock, until);
    load = first_of(&d->claimed);
    (void)pthread_mutex_unlock(&d->lock);
    return load;
}

/* A second load goes when the target has said something of the first: one that
 * does not answer has one batch to be in doubt, and not two. */
static int may_send(const struct once__sender *w, const struct once__load *with)
{
    return with == NULL ||
           (!w->wire.lost && with->batch.open < with->batch.sent);
}

/* Sends what was claimed, and waits for proofs. */
static void carry(struct once__sender *w, struct once__load **with)
{
    struct once__load *load, **at = with;

    /* After a failure nothing more is sent before a pause: is_there(). */
    while (!w->failed && may_send(w, *with)) {
        load = take(&w->desk, *with == NULL ? CHECK_MS : 0);
        if (load != NULL)
            begin(w, with, load, 0);
        if (load == NULL || w->wire.lost)
            break;
    }
    if (w->wire.first != NULL)
        once__wire_collect(&w->wire);
    while (*at != NULL)
        if ((*at)->batch.open == 0)
            give(w, first_of(at));
        else
            at = &(*at)->next;
}

/* ---- The carrier: the target ---------------------------------------------- */

/* The clerk may claim so many rows. */
static void ask_for(struct once__desk *d, size_t n)
{
    (void)pthread_mutex_lock(&d->lock);
    if (d->want != n)
        (void)pthread_cond_broadcast(&d->changed);
    d->want = n;
    (void)pthread_mutex_unlock(&d->lock);
}

/* Nothing more is claimed, and what is there goes back. */
static void send_back(struct once__sender *w, struct once__load **with)
{
    struct once__desk *d = &w->desk;
    struct once__load *load;

    (void)pthread_mutex_lock(&d->lock);
    d->want = 0;
    while (d->claiming)
        (void)pthread_cond_wait(&d->changed, &d->lock);
    (void)pthread_mutex_unlock(&d->lock);
    while ((load = take(d, 0)) != NULL)
        begin(w, with, load, 1);
}

/* While nothing is with the target: is it there, and may rows be claimed for it?
 * After a failure it has a pause first. */
static int is_there(struct once__sender *w, struct once__load **with)
{
    if (w->failed) {
        send_back(w, with);
        w->failed = 0;
        once__sender_pause(w, w->failures, ONCE__SENDER_MOST_MS);
    }
    if (atomic_load(&w->r->stop))
        return 1; /* what was claimed goes back by itself */
    if (!once__target_there(w))
        return 0;
    ask_for(&w->desk, w->open ? 1 : w->route->o.batch);
    return 1;
}

/* No load is left, and there will be none. */
static int is_over(struct once__desk *d)
{
    int over;

    (void)pthread_mutex_lock(&d->lock);
    over = d->closed && d->out == 0;
    d->over = over;
    if (over)
        (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
    return over;
}

static void carry_all(struct once__sender *w)
{
    struct once__load *with = NULL; /* with the target */

    while (!is_over(&w->desk))
        if (with != NULL || is_there(w, &with))
            carry(w, &with);
}

/* ---- The clerk ------------------------------------------------------------ */

enum task { SETTLE, CLAIM, LOOK, END };

/* By the lock. Where one row finds out whether the target is back, it is alone. */
static int may_claim(const struct once__desk *d)
{
    return !d->closed && d->want > 0 && d->out < (d->want > 1 ? OUT_MOST : 1);
}

/* By the lock: what there is to do now; LOOK: nothing. */
static enum task task_of(struct once__sender *w, uint64_t rest_ms,
                         struct once__load **load)
{
    struct once__desk *d = &w->desk;

    if (atomic_load(&w->r->stop) && !d->closed) {
        d->closed = 1;
        (void)pthread_cond_broadcast(&d->changed);
    }
    *load = first_of(&d->carried);
    if (*load != NULL)
        return SETTLE;
    if (d->over)
        return END;
    return may_claim(d) && once__steady_ms() >= rest_ms ? CLAIM : LOOK;
}

/* Waits for something to do, but does not claim before `rest_ms`. LOOK: there is
 * nothing, since the target is away. */
static enum task next_task(struct once__sender *w, uint64_t rest_ms,
                           struct once__load **load, size_t *n)
{
    struct once__desk *d = &w->desk;
    enum task task;
    int waited = 0;

    (void)pthread_mutex_lock(&d->lock);
    for (;; waited = 1) {
        task = task_of(w, rest_ms, load);
        if (task != LOOK || (waited && d->out == 0 && !d->closed))
            break;
        once__cond_until(&d->changed, &d->lock,
                         may_claim(d) ? rest_ms : once__steady_ms() + IDLE_MS);
    }
    *n = d->want;
    d->claiming = task == CLAIM;
    (void)pthread_mutex_unlock(&d->lock);
    return task;
}

/* The end of a claim. 1: there is, or will be, something to settle. */
static int claimed(struct once__desk *d, struct once__load *load)
{
    int more;

    (void)pthread_mutex_lock(&d->lock);
    if (load != NULL) {
        append(&d->claimed, load);
        d->out++;
    }
    d->claiming = 0;
    more = d->out > 0 || d->carried != NULL;
    (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
    return more;
}

/* 1, 0 and -1 as once__source_claim(). */
static int claim_load(struct once__sender *w, size_t n,
                      struct once__load **load, uint64_t *begun_ms)
{
    int some = -1;

    *load = calloc(1, sizeof(**load));
    if (*load != NULL && once__source_there(w))
        some = once__source_claim(w, n < w->batch ? n : w->batch,
                                  &(*load)->list, begun_ms);
    if (some > 0)
        (*load)->claimed_ms = *begun_ms;
    if (some <= 0) {
        free(*load);
        *load = NULL;
    }
    return some;
}

/* When the next claim may be, 0: at once. While a load is with the carrier, or has
 * come back during the claim, the clerk does not sleep: it is to settle it. A claim
 * that finds nothing may read much, and keeps others from the route, so it is not
 * made all the time. */
static uint64_t claim(struct once__sender *w, size_t n)
{
    struct once__load *load = NULL;
    uint64_t began = once__steady_ms(), took, begun_ms = 0;
    int some = claim_load(w, n, &load, &begun_ms);
    int more = claimed(&w->desk, load);

    if (some > 0)
        return 0;
    took = once__steady_ms() - began;
    if (more)
        return once__steady_ms() +
               (some < 0 ? IDLE_MS
                         : once__sender_rest_ms(took, POLL_MS, UINT64_MAX));
    if (some == 0)
        atomic_store(&w->route->empty_ms, begun_ms);
    if (some < 0) {
        once__sender_pause(w, w->base_failures, ONCE__SENDER_BASE_MS);
        return 0;
    }
    once__source_look(w);
    once__source_rest(w);
    return 0;
}

static void *clerk(void *sender)
{
    struct once__sender *w = sender;
    struct once__load *load = NULL;
    uint64_t rest_ms = 0;
    size_t n = 0;

    for (;;)
        switch (next_task(w, rest_ms, &load, &n)) {
        case SETTLE:
            if (load->batch.items != NULL) /* else there was no memory */
                once__sender_settle(w, &load->batch, load->claimed_ms);
            load_free(load);
            rest_ms = 0; /* what waited for a row of it is free now */
            break;
        case CLAIM:
            rest_ms = claim(w, n);
            break;
        case LOOK:
            once__source_look(w);
            break;
        case END:
            return NULL;
        }
}

int once__pipeline_run(struct once__sender *w)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, clerk, w) != 0)
        return 0;
    carry_all(w);
    (void)pthread_join(thread, NULL);
    return 1;
}
