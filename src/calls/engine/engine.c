/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c - opening, closing, and the one thread in between.
 *
 *    turn: messages -> timers -> a batch -> one step of a list -> the reaper
 *          -> maintenance -> flush -> sleep, if there was nothing to do
 *
 * Only this thread uses the store, so drivers need no locks. It holds no lock
 * while it calls a callback, and its own callbacks must not wait for it. The
 * memory of an engine lives as long as the last attempt made from it, so that
 * attempts may be freed after the engine was closed.
 */
#include "calls/engine/engine.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/error.h"
#include "calls/store/store.h"
#include "base/thread.h"

enum {
    QUEUE_MAX = 65536,
    BATCH_MAX = 1024,
    WAITERS_MAX = 10000,
    REAP_MS = 1000,
    REAP_MAX = 256,
    DRAIN_MS = 5000,
    LATE_MS = 600000,
    LATE_BYTES = 64 << 20,
    REOPEN_MS = 2000,
    BATCH_LIMIT = 65536, /* arrays of so many pointers are made at the start */
    MAINTAIN_BUSY_MS = 1000,
    MAINTAIN_QUIET_MS = 50
};

/* ---- Opening the store -------------------------------------------------- */

static void forget_url(once_engine *e)
{
    if (e->url != NULL)
        explicit_bzero(e->url, strlen(e->url)); /* it may hold a password */
    free(e->url);
    e->url = NULL;
}

static int open_store(once_engine *e, const char *url, once_error *err)
{
    once_store_options so = {.size = sizeof(so)};
    once_store *store = NULL;
    int rc;

    so.clock = e->options.clock;
    so.user = e->options.user;
    so.create = e->options.create;
    so.event = e->options.event;
    so.event_user = e->options.user;
    so.look = e->options.look;
    rc = once_store_open(url, &so, err, &store);
    if (rc != ONCE_OK)
        return rc;
    e->store = store;
    if (store->head.gap != ONCE_GAP_NONE) /* known before the first claim */
        (void)!once__clock_look(e);
    rc = once__opening(once__witness_open(e, err), err);
    if (rc == ONCE_OK && once__reaper_init(e) != ONCE_OK)
        rc = once__fail(err, ONCE_ENOMEM, "engine: reaper: out of memory");
    if (rc != ONCE_OK) {
        e->store = NULL;
        once_store_close(store);
        once__reaper_clear(e);
        return rc;
    }
    e->maintained_ms = once__now_ms();
    return ONCE_OK;
}

/* ---- The thread -------------------------------------------------------- */

/* Passes what was taken from the queue to those who are responsible for it.
 * Returns 1 if there was anything. */
static int handle(once_engine *e, struct once__node *node)
{
    struct once__node *next;
    int any = node != NULL;

    for (; node != NULL; node = next) {
        next = node->next; /* `arrive` may free the node */
        node->arrive(e, node);
    }
    return any;
}

static void fire(once_engine *e, uint64_t now_ms)
{
    struct once__timer *t;

    while ((t = once__timers_pop(&e->timers, now_ms)) != NULL)
        t->fire(e, t);
}

static void flush(once_engine *e)
{
    if (e->notified && e->options.flush != NULL)
        e->options.flush(e->options.user);
    e->notified = 0;
}

static void maintain(once_engine *e, int quiet)
{
    once_error err = {ONCE_ESTORE, "no reason given"};
    uint64_t now = once__now_ms();

    if (!e->needs_maintenance ||
        now - e->maintained_ms < (quiet ? MAINTAIN_QUIET_MS : MAINTAIN_BUSY_MS))
        return;
    e->maintained_ms = now;
    e->needs_maintenance = 0;
    if (e->store->ops->maintain != NULL &&
        e->store->ops->maintain(e->store, &err) < 0 && !e->failing)
        once__event(e, "the store's maintenance failed: %s", err.text);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void sleep_until_needed(once_engine *e, int closing)
{
    uint64_t until = once__timers_next(&e->timers);

    if (closing)
        until = earlier(until, e->drain_until_ms);
    else if (!e->options.no_reaper)
        until = earlier(until, e->reaper.due_ms);
    if (!closing && e->options.count_ms > 0)
        until = earlier(until, e->count_due_ms);
    if (e->needs_maintenance)
        until = earlier(until, e->maintained_ms + MAINTAIN_QUIET_MS);
    once__queue_sleep(&e->queue, until);
}

/*
 * One turn; returns 1 if there was nothing to do. Other threads that are ready
 * run first: most often they have operations to add, and the cost of a batch
 * hardly depends on how many operations are in it.
 */
static int turn(once_engine *e, int closing)
{
    int busy, quiet;

    (void)sched_yield();
    busy = handle(e, once__queue_take(&e->queue));
    fire(e, once__now_ms());
    busy |= once__ready_any(e);
    once__batch_run(e);
    busy |= once__scan_step(e);
    flush(e);
    quiet = !busy && !once__ready_any(e);
    if (!closing && !e->options.no_reaper)
        once__reaper_turn(e, quiet);
    maintain(e, quiet);
    once__witness_turn(e);
    if (!closing)
        once__gauges_turn(e);
    flush(e);
    return quiet && !once__ready_any(e); /* the reaper may have asked */
}

/* From here on nothing new is accepted, and what was accepted gets its answer
 * from the store until `drain_until_ms`. */
static void begin_closing(once_engine *e)
{
    e->drain_until_ms = once__now_ms() + e->options.drain_ms;
    once__scan_abandon(e, ONCE_ECLOSED);
}

/* The store is not asked any more. All calls under way end with an error, and
 * the records of owners are left to the reaper. */
static void end_all(once_engine *e)
{
    e->ended = 1;
    once__publish(&e->count.up, 0);
    if (e->store != NULL)
        once__witness_close(e);
    do {
        fire(e, UINT64_MAX - 1);
        once__batch_abandon(e);
        flush(e);
    } while (handle(e, once__queue_take(&e->queue)));
    once__live_abandon(e);
    (void)handle(e, once__queue_close(&e->queue));
    once__scan_abandon(e, ONCE_ECLOSED);
    flush(e);
    assert(e->pending == 0 && e->timers.root == NULL && !once__ready_any(e));
    assert(e->live.next == &e->live && e->waiting.next == &e->waiting);
}

/* While there is no store each call is refused as it arrives. 0: the engine is
 * closing. */
static int refuse_until(once_engine *e, uint64_t until_ms)
{
    for (;;) {
        (void)handle(e, once__queue_take(&e->queue));
        once__scan_abandon(e, ONCE_EAWAY);
        flush(e);
        if (atomic_load(&e->closing))
            return 0;
        if (once__now_ms() >= until_ms)
            return 1;
        once__queue_sleep(&e->queue, until_ms);
    }
}

/* Tries until the store is open. 0: the engine is closing, and it is not. */
static int open_in_background(once_engine *e)
{
    once_error err = {ONCE_EOPEN, "no reason given"};

    while (open_store(e, e->url, &err) != ONCE_OK) {
        if (strcmp(err.text, e->trouble) != 0)
            once__event(e, "the store cannot be opened: %s", err.text);
        memcpy(e->trouble, err.text, sizeof(e->trouble));
        atomic_store(&e->away, 1);
        if (!refuse_until(e, once__now_ms() + REOPEN_MS))
            return 0;
    }
    e->trouble[0] = '\0';
    forget_url(e);
    if (atomic_exchange(&e->away, 0))
        once__event(e, "the store is open now");
    return 1;
}

static void report_caveat(once_engine *e)
{
    if (e->store->caveat == NULL)
        return;
    if (e->options.caveat != NULL)
        e->options.caveat(e->options.user, e->store->caveat);
    else
        once__event(e, "the store is not durable: %s", e->store->caveat);
}

static void *run(void *argument)
{
    once_engine *e = argument;
    int closing = 0;

    if (e->store == NULL && !open_in_background(e)) {
        end_all(e);
        return NULL;
    }
    once__set(&e->count.of_host, (uint64_t)e->store->of_host);
    once__set(&e->count.incarnation, e->store->head.incarnation);
    once__set(&e->count.gap_until_ms, e->store->head.gap != ONCE_GAP_NONE
                                          ? e->store->head.gap_until_ms
                                          : 0);
    once__set(&e->count.durable,
              e->store->ops->durable && e->store->caveat == NULL);
    once__publish(&e->count.up, 1); /* and what is set above */
    report_caveat(e);
    for (;;) {
        int quiet = turn(e, closing);

        if (!closing && atomic_load(&e->closing)) {
            closing = 1;
            begin_closing(e);
            continue;
        }
        if (closing &&
            ((quiet && e->pending == 0) || once__now_ms() >= e->drain_until_ms))
            break;
        if (quiet)
            sleep_until_needed(e, closing);
    }
    end_all(e);
    return NULL;
}

/* ---- Opening and closing ----------------------------------------------- */

static void or_default(uint32_t *value, uint32_t otherwise)
{
    if (*value == 0)
        *value = otherwise;
}

static int take_options(once_engine *e, const once_engine_options *given,
                        once_error *err)
{
    once_engine_options *o = &e->options;

    if (given != NULL) {
        if (given->size < sizeof(given->size))
            return once__fail(err, ONCE_EINVAL, "options: size: %zu is not set",
                              given->size);
        memcpy(o, given, given->size < sizeof(*o) ? given->size : sizeof(*o));
    }
    o->size = sizeof(*o);
    if (o->witness != NULL) {
        e->witness_folder = strdup(o->witness);
        if (e->witness_folder == NULL)
            return once__fail(err, ONCE_ENOMEM, "engine: out of memory");
        o->witness = e->witness_folder;
    }
    or_default(&o->queue_max, QUEUE_MAX);
    or_default(&o->batch_max, BATCH_MAX);
    or_default(&o->waiters_max, WAITERS_MAX);
    or_default(&o->reap_ms, REAP_MS);
    or_default(&o->reap_max, REAP_MAX);
    or_default(&o->drain_ms, DRAIN_MS);
    or_default(&o->late_ms, LATE_MS);
    or_default(&o->late_bytes, LATE_BYTES);
    if (o->batch_max > BATCH_LIMIT)
        return once__fail(err, ONCE_EINVAL, "batch_max: %u is over %d",
                          o->batch_max, BATCH_LIMIT);
    if (o->reap_max > BATCH_LIMIT)
        return once__fail(err, ONCE_EINVAL, "reap_max: %u is over %d",
                          o->reap_max, BATCH_LIMIT);
    return ONCE_OK;
}

static int make(const once_engine_options *options, once_error *err,
                once_engine **out)
{
    once_engine *e = calloc(1, sizeof(*e));
    int rc;

    if (e == NULL)
        return once__fail(err, ONCE_ENOMEM, "engine: %zu bytes", sizeof(*e));
    rc = take_options(e, options, err);
    if (rc != ONCE_OK)
        goto out;
    if (getrandom(&e->random, sizeof(e->random), 0) !=
        (ssize_t)sizeof(e->random)) {
        rc = once__fail(err, ONCE_EOPEN, "engine: no random numbers");
        goto out;
    }
    e->random |= 1; /* xorshift never leaves 0 */
    atomic_init(&e->references, 1);
    once__spare_init(&e->spare);
    e->waiting.next = e->waiting.previous = &e->waiting;
    e->live.next = e->live.previous = &e->live;
    e->scans_end = &e->scans;
    once__ready_init(e);
    e->batch = calloc(e->options.batch_max, sizeof(once__task *));
    e->ops = calloc(e->options.batch_max, sizeof(once_op *));
    if (e->batch == NULL || e->ops == NULL ||
        once__queue_init(&e->queue) != 0) {
        rc = once__fail(err, ONCE_ENOMEM, "engine: out of memory");
        goto out;
    }
    *out = e;
    return ONCE_OK;
out:
    free(e->batch);
    free(e->ops);
    free(e->witness_folder);
    free(e);
    return rc;
}

/* All that only the thread uses. The rest lives as long as the last attempt. */
static void clear(once_engine *e)
{
    once_store_close(e->store);
    e->store = NULL;
    once__reaper_clear(e);
    forget_url(e);
    free(e->batch);
    free(e->ops);
    free(e->witness_folder);
    once__drop(e);
}

int once_engine_open(const char *url, const once_engine_options *options,
                     once_error *err, once_engine **out)
{
    once_engine *e = NULL;
    int rc = make(options, err, &e);

    if (rc != ONCE_OK)
        return rc;
    if (!e->options.background) {
        rc = open_store(e, url, err);
    } else {
        e->url = strdup(url);
        if (e->url == NULL)
            rc = once__fail(err, ONCE_ENOMEM, "engine: out of memory");
    }
    if (rc != ONCE_OK)
        goto out;
    if (once__thread_start(&e->thread, "once", run, e) != 0) {
        rc = once__fail(err, ONCE_EOPEN, "engine: no thread can be started");
        goto out;
    }
    *out = e;
    return ONCE_OK;
out:
    clear(e);
    return rc;
}

/* The node has no message: its arrival ends the thread's sleep. */
static void do_nothing(void *engine, struct once__node *node)
{
    (void)engine;
    (void)node;
}

void once_engine_close(once_engine *e)
{
    if (e == NULL)
        return;
    assert(!once__on_thread(e)); /* it would wait for itself */
    assert(!atomic_load(&e->closing));
    atomic_store(&e->closing, 1);
    /* A thread that is about to sleep looks at the queue once more, and at
     * nothing else. */
    e->close_node.arrive = do_nothing;
    (void)once__queue_push(&e->queue, &e->close_node);
    once__queue_wake(&e->queue);
    (void)pthread_join(e->thread, NULL);
    clear(e);
}

void once_engine_wake(once_engine *e)
{
    once__queue_wake(&e->queue);
}
