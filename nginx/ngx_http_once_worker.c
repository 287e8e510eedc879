
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The engines of this worker process, one for each store, and the attempts
 * that it has under way.  Results come from the engines' threads through a
 * lock-free list and one eventfd; nothing of nginx is touched on those threads.
 * A store is opened there, too: a server or a name server that hangs must not
 * hold the event loop.  What a result means for its request is not known here:
 * the task carries a function for that.
 */


#include "ngx_http_once_worker.h"
#include "engine/cache.h"
#include "store/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <poll.h>


#define NGX_HTTP_ONCE_PUBLISH  1000     /* ms between two publications */
#define NGX_HTTP_ONCE_COUNT    10000    /* ms between two counts of records */
#define NGX_HTTP_ONCE_DRAIN    1000     /* ms; after 2 s the master kills */
#define NGX_HTTP_ONCE_TEXT     512
#define NGX_HTTP_ONCE_LOST     64       /* records between two turns */
#define NGX_HTTP_ONCE_LINES    64       /* lines of one store in a second */


/* an attempt of the library, together with the request that waits for it */

typedef enum {
    NGX_HTTP_ONCE_ENDED = 0,    /* nothing is under way, and nothing owned */
    NGX_HTTP_ONCE_CLAIMING,     /* the engine claims */
    NGX_HTTP_ONCE_OWNING,       /* the engine waits for the end */
    NGX_HTTP_ONCE_ENDING        /* the engine records the end */
} ngx_http_once_task_state_e;


struct ngx_http_once_task_s {
    ngx_http_once_task_t                 *next;
    ngx_http_once_worker_t               *worker;
    ngx_http_once_task_state_e            state;
    once_attempt                         *attempt;
    ngx_http_once_ctx_t                  *ctx;  /* NULL: the request is gone */
    ngx_http_once_result_pt               handler;
    u_char                                key_hash[17];
    char                                  label[ONCE_LABEL_MAX + 1];
    uint32_t                              number;   /* of the attempt */
    uint64_t                              fence;
    int                                   rc;
    once__verdict                         verdict;  /* asked of it last */
    ngx_http_once_route_counts_t         *counts;
    uint64_t                              asked_us; /* the call under way */
    uint64_t                              granted_us;
    once__cache_when                      when;     /* before the claim */
};


/* an attempt whose outcome has become unknown */

typedef struct {
    char                                  key_hash[17];
    uint32_t                              number;
    uint64_t                              fence;
    int                                   reason;   /* enum once_reason */
    char                                  label[ONCE_LABEL_MAX + 1];
} ngx_http_once_lost_t;


struct ngx_http_once_worker_s {
    ngx_http_once_store_t                *store;
    once_engine                          *engine;   /* NULL: not open */
    once__cache                          *cache;    /* NULL: no memory */
    _Atomic(ngx_http_once_task_t *)       done;
    int                                   dirty;    /* the engine's thread */

    pthread_mutex_t                       mutex;    /* for what is below */
    char                                  event[NGX_HTTP_ONCE_TEXT];
    char                                  caveat[NGX_HTTP_ONCE_TEXT];
    ngx_http_once_lost_t                  lost[NGX_HTTP_ONCE_LOST];
    ngx_uint_t                            nlost;    /* may be more of them */

    once_stats                            published;

    /* lines about unknown outcomes, in this second */
    time_t                                second;
    ngx_uint_t                            lines;
    ngx_uint_t                            left_out;
};


static void ngx_http_once_open(ngx_http_once_worker_t *w, ngx_log_t *log);
static once__cache_when ngx_http_once_when(ngx_http_once_worker_t *w);
static void ngx_http_once_publish(ngx_http_once_worker_t *w);
static void ngx_http_once_done(once_attempt *a, int rc, void *user);
static void ngx_http_once_flush(void *user);
static void ngx_http_once_event(void *user, const char *text);
static void ngx_http_once_caveat(void *user, const char *text);
static void ngx_http_once_lost(void *user, const uint8_t *name,
    const once_record *record);
static void ngx_http_once_wake(ngx_event_t *ev);
static void ngx_http_once_tick(ngx_event_t *ev);
static ngx_uint_t ngx_http_once_owes(void);
static void ngx_http_once_notified(ngx_event_t *ev);
static void ngx_http_once_take(ngx_http_once_worker_t *w);
static void ngx_http_once_result(ngx_http_once_task_t *task);
static void ngx_http_once_ended(ngx_http_once_task_t *task,
    once__ending ending, ngx_log_t *log);
static void ngx_http_once_left_out(ngx_http_once_worker_t *w, ngx_log_t *log);
static void ngx_http_once_orphan(ngx_http_once_task_t *task);
static void ngx_http_once_free_task(ngx_http_once_task_t *task);


/* of this process */

static ngx_http_once_main_conf_t  *ngx_http_once_main;
static int                         ngx_http_once_fd = -1;
static ngx_connection_t            ngx_http_once_connection;
static ngx_event_t                 ngx_http_once_rev;
static ngx_event_t                 ngx_http_once_wev;
static ngx_event_t                 ngx_http_once_wake_ev;
static ngx_event_t                 ngx_http_once_tick_ev;
static ngx_uint_t                  ngx_http_once_pending;
static ngx_uint_t                  ngx_http_once_exiting;


static const once__ending  ngx_http_once_gone = {
    ONCE__OUTCOME_INDETERMINATE, ONCE_REASON_OWNER_GONE
};


static void
ngx_http_once_copy(char *dst, const char *src)
{
    (void) ngx_cpystrn((u_char *) dst, (u_char *) src, NGX_HTTP_ONCE_TEXT);
}


/* --- the worker --- */

ngx_int_t
ngx_http_once_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                  i;
    ngx_http_once_store_t     **store;
    ngx_http_once_worker_t     *w;
    ngx_http_once_main_conf_t  *omcf;

    if (ngx_process != NGX_PROCESS_WORKER
        && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    omcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_once_module);

    if (omcf == NULL || omcf->stores.nelts == 0) {
        return NGX_OK;
    }

    ngx_http_once_main = omcf;

    ngx_http_once_fd = eventfd(0, EFD_NONBLOCK|EFD_CLOEXEC);

    if (ngx_http_once_fd == -1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, ngx_errno,
                      "eventfd() failed");
        return NGX_ERROR;
    }

    /*
     * A connection of our own: one from the cycle would be reported as left
     * open by each graceful exit.
     */

    ngx_http_once_rev.handler = ngx_http_once_notified;
    ngx_http_once_rev.data = &ngx_http_once_connection;
    ngx_http_once_rev.log = cycle->log;
    ngx_http_once_wev.data = &ngx_http_once_connection;
    ngx_http_once_wev.write = 1;
    ngx_http_once_wev.log = cycle->log;
    ngx_http_once_connection.fd = ngx_http_once_fd;
    ngx_http_once_connection.read = &ngx_http_once_rev;
    ngx_http_once_connection.write = &ngx_http_once_wev;
    ngx_http_once_connection.log = cycle->log;

    if (ngx_add_event(&ngx_http_once_rev, NGX_READ_EVENT, NGX_CLEAR_EVENT)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    /* nginx's debug lines take the data of each event for a connection */

    ngx_http_once_wake_ev.handler = ngx_http_once_wake;
    ngx_http_once_wake_ev.data = &ngx_http_once_connection;
    ngx_http_once_wake_ev.log = cycle->log;

    store = omcf->stores.elts;

    for (i = 0; i < omcf->stores.nelts; i++) {
        w = ngx_pcalloc(cycle->pool, sizeof(ngx_http_once_worker_t));
        if (w == NULL) {
            return NGX_ERROR;
        }

        if (pthread_mutex_init(&w->mutex, NULL) != 0) {
            return NGX_ERROR;
        }

        w->store = store[i];
        store[i]->worker = w;
        ngx_http_once_clear_slot(store[i]);
        ngx_http_once_open(w, cycle->log);
    }

    ngx_http_once_tick_ev.handler = ngx_http_once_tick;
    ngx_http_once_tick_ev.data = &ngx_http_once_connection;
    ngx_http_once_tick_ev.log = cycle->log;
    ngx_http_once_tick_ev.cancelable = 1;
    ngx_add_timer(&ngx_http_once_tick_ev, NGX_HTTP_ONCE_PUBLISH);

    return NGX_OK;
}


static void
ngx_http_once_open(ngx_http_once_worker_t *w, ngx_log_t *log)
{
    once_error           err;
    once_engine_options  options = ONCE_ENGINE_OPTIONS_INIT;

    options.manual_wake = 1;
    options.drain_ms = NGX_HTTP_ONCE_DRAIN;
    options.flush = ngx_http_once_flush;
    options.event = ngx_http_once_event;
    options.caveat = ngx_http_once_caveat;
    options.lost = ngx_http_once_lost;
    options.user = w;
    options.background = 1;
    options.count_ms = (ngx_worker == 0) ? NGX_HTTP_ONCE_COUNT : 0;
    options.witness = w->store->witness;

    if (w->cache == NULL) {
        w->cache = once__cache_new();
    }

    if (once_engine_open((char *) w->store->url.data, &options, &err,
                         &w->engine)
        != ONCE_OK)
    {
        /* out of memory or threads, and tried again with the next tick */

        w->engine = NULL;
        ngx_log_error(NGX_LOG_CRIT, log, 0, "once_store \"%V\": %s",
                      &w->store->name, err.text);
    }
}


void
ngx_http_once_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t               i;
    ngx_msec_t               end;
    struct pollfd            pfd;
    ngx_http_once_store_t  **store;
    ngx_http_once_worker_t  *w;

    if (ngx_http_once_fd == -1) {
        return;
    }

    ngx_http_once_exiting = 1;
    store = ngx_http_once_main->stores.elts;

    ngx_time_update();
    end = ngx_current_msec + NGX_HTTP_ONCE_DRAIN;

    /* claims that come back now are released, results become durable */

    while (ngx_http_once_pending
           && (ngx_msec_int_t) (end - ngx_current_msec) > 0)
    {
        ngx_http_once_wake(NULL);

        pfd.fd = ngx_http_once_fd;
        pfd.events = POLLIN;
        (void) poll(&pfd, 1, 10);

        for (i = 0; i < ngx_http_once_main->stores.nelts; i++) {
            ngx_http_once_take(store[i]->worker);
        }

        ngx_time_update();
    }

    for (i = 0; i < ngx_http_once_main->stores.nelts; i++) {
        w = store[i]->worker;

        if (w->engine != NULL) {
            ngx_http_once_publish(w);
            once_engine_close(w->engine);

            /* what was still under way has an answer now */

            ngx_http_once_take(w);
            ngx_http_once_left_out(w, cycle->log);
            w->engine = NULL;
        }

        once__cache_free(w->cache);
        w->cache = NULL;

        ngx_http_once_clear_slot(store[i]);
    }

    (void) close(ngx_http_once_fd);
    ngx_http_once_fd = -1;
}


const once_record *
ngx_http_once_record(ngx_http_once_ctx_t *ctx)
{
    return ctx->task ? once_attempt_record(ctx->task->attempt) : ctx->record;
}


uint64_t
ngx_http_once_left(ngx_http_once_ctx_t *ctx)
{
    return ctx->task ? once_attempt_left_ms(ctx->task->attempt) : 0;
}


static void
ngx_http_once_publish(ngx_http_once_worker_t *w)
{
    once_stats  stats;

    once_engine_stats(w->engine, &stats);
    ngx_http_once_add_stats(w->store, &stats, &w->published);
}


void
ngx_http_once_publish_all(void)
{
    ngx_uint_t               i;
    ngx_http_once_store_t  **store;

    if (ngx_http_once_main == NULL) {
        return;
    }

    store = ngx_http_once_main->stores.elts;

    for (i = 0; i < ngx_http_once_main->stores.nelts; i++) {
        if (store[i]->worker != NULL && store[i]->worker->engine != NULL) {
            ngx_http_once_publish(store[i]->worker);
        }
    }
}


static void
ngx_http_once_tick(ngx_event_t *ev)
{
    ngx_uint_t               i;
    ngx_http_once_store_t  **store;
    ngx_http_once_worker_t  *w;

    store = ngx_http_once_main->stores.elts;

    for (i = 0; i < ngx_http_once_main->stores.nelts; i++) {
        w = store[i]->worker;

        if (w->engine == NULL) {
            ngx_http_once_open(w, ev->log);
        }
    }

    ngx_http_once_publish_all();

    for (i = 0; i < ngx_http_once_main->stores.nelts; i++) {
        w = store[i]->worker;
        ngx_http_once_left_out(w, ev->log);

        if (w->cache != NULL && w->engine != NULL) {
            once__cache_sweep(w->cache, ngx_http_once_when(w));
        }
    }

    /* a worker that exits gracefully works for as long as this timer runs */

    ev->cancelable = !ngx_http_once_owes();
    ngx_add_timer(ev, NGX_HTTP_ONCE_PUBLISH);
}


/*
 * Is an end still to be recorded whose request has gone?  Its outcome is known,
 * and is lost with this process.  The engine gives up after its own limit, ten
 * minutes.
 */

static ngx_uint_t
ngx_http_once_owes(void)
{
    once_stats               stats;
    ngx_uint_t               i;
    ngx_http_once_store_t  **store;

    if (ngx_http_once_pending) {
        return 1;
    }

    store = ngx_http_once_main->stores.elts;

    for (i = 0; i < ngx_http_once_main->stores.nelts; i++) {
        if (store[i]->worker->engine != NULL) {
            once_engine_stats(store[i]->worker->engine, &stats);

            if (stats.unrecorded) {
                return 1;
            }
        }
    }

    return 0;
}


/* --- on the engine's thread --- */

static void
ngx_http_once_done(once_attempt *a, int rc, void *user)
{
    ngx_http_once_task_t    *task = user;

    ngx_http_once_task_t    *head;
    ngx_http_once_worker_t  *w;

    w = task->worker;
    task->rc = rc;
    head = atomic_load_explicit(&w->done, memory_order_relaxed);

    do {
        task->next = head;
    } while (!atomic_compare_exchange_weak(&w->done, &head, task));

    w->dirty = 1;
}


static void
ngx_http_once_flush(void *user)
{
    ngx_http_once_worker_t  *w = user;

    uint64_t  one = 1;

    if (w->dirty) {
        w->dirty = 0;

        /* fails only if the counter is about to overflow: then it is set */

        (void) !write(ngx_http_once_fd, &one, sizeof(one));
    }
}


static void
ngx_http_once_report(ngx_http_once_worker_t *w, char *slot, const char *text)
{
    uint64_t  one = 1;

    pthread_mutex_lock(&w->mutex);
    ngx_http_once_copy(slot, text);
    pthread_mutex_unlock(&w->mutex);

    (void) !write(ngx_http_once_fd, &one, sizeof(one));
}


static void
ngx_http_once_event(void *user, const char *text)
{
    ngx_http_once_worker_t  *w = user;

    ngx_http_once_report(w, w->event, text);
}


/* logged once: by the check at the start, or by the first worker */

static void
ngx_http_once_caveat(void *user, const char *text)
{
    ngx_http_once_worker_t  *w = user;

    if (!w->store->checked && ngx_worker == 0) {
        ngx_http_once_report(w, w->caveat, text);
    }
}


/* the owner has died, maybe on another host */

static void
ngx_http_once_lost(void *user, const uint8_t *name, const once_record *record)
{
    ngx_http_once_worker_t  *w = user;

    uint64_t               one = 1;
    ngx_http_once_lost_t  *lost;

    pthread_mutex_lock(&w->mutex);

    if (w->nlost < NGX_HTTP_ONCE_LOST) {
        lost = &w->lost[w->nlost];
        once__name_hex(name, lost->key_hash);
        lost->number = record->attempt;
        lost->fence = record->fence;
        lost->reason = ONCE_REASON_OWNER_GONE;
        ngx_memcpy(lost->label, record->label.data, record->label.size);
        lost->label[record->label.size] = '\0';
    }

    w->nlost++;

    pthread_mutex_unlock(&w->mutex);

    (void) !write(ngx_http_once_fd, &one, sizeof(one));
}


/* --- on the event loop --- */

static void
ngx_http_once_wake(ngx_event_t *ev)
{
    ngx_uint_t               i;
    ngx_http_once_store_t  **store;

    store = ngx_http_once_main->stores.elts;

    for (i = 0; i < ngx_http_once_main->stores.nelts; i++) {
        if (store[i]->worker->engine != NULL) {
            once_engine_wake(store[i]->worker->engine);
        }
    }
}


static uint64_t
ngx_http_once_now_us(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}


/* a clock that cannot be set, and counts while the machine sleeps */

static once__cache_when
ngx_http_once_when(ngx_http_once_worker_t *w)
{
    struct timespec   ts;
    once__cache_when  when;

    (void) clock_gettime(CLOCK_BOOTTIME, &ts);

    when.epoch = once__engine_epoch(w->engine);
    when.asked_ms = (uint64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;

    return when;
}


static void
ngx_http_once_started(ngx_http_once_task_t *task,
    ngx_http_once_task_state_e state)
{
    task->state = state;
    task->asked_us = ngx_http_once_now_us();
    ngx_http_once_pending++;
    ngx_http_once_tick_ev.cancelable = 0;   /* until the next tick looks */

    /* wake the engine once for all that this turn of the loop submits */

    ngx_post_event(&ngx_http_once_wake_ev, &ngx_posted_events);
}


/* one line says how many were too many in the second before */

static void
ngx_http_once_left_out(ngx_http_once_worker_t *w, ngx_log_t *log)
{
    if (w->left_out && (w->second != ngx_time() || ngx_http_once_exiting)) {
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "once: outcome unknown: %ui more of store \"%V\"",
                      w->left_out, &w->store->name);
        w->left_out = 0;
    }
}


/* the line names the record as "once show" takes it */

static void
ngx_http_once_unknown(ngx_http_once_worker_t *w, ngx_http_once_lost_t *lost,
    ngx_log_t *log)
{
    ngx_http_once_left_out(w, log);

    if (w->second != ngx_time()) {
        w->second = ngx_time();
        w->lines = 0;
    }

    if (w->lines == NGX_HTTP_ONCE_LINES) {
        w->left_out++;
        return;
    }

    w->lines++;
    ngx_log_error(NGX_LOG_ERR, log, 0,
                  "once: outcome unknown: record %s, attempt %uD, "
                  "reason %s, fence %uL%s%s%s", lost->key_hash, lost->number,
                  once_reason_text(lost->reason), lost->fence,
                  lost->label[0] ? ", label \"" : "", lost->label,
                  lost->label[0] ? "\"" : "");
}


/* what the reaper has found; its owners had other processes, or other hosts */

static void
ngx_http_once_log_lost(ngx_http_once_worker_t *w, ngx_log_t *log)
{
    ngx_uint_t               i, n, known;
    ngx_http_once_lost_t     lost[NGX_HTTP_ONCE_LOST];
    ngx_http_once_shared_t  *shared;

    pthread_mutex_lock(&w->mutex);

    n = w->nlost;
    known = ngx_min(n, NGX_HTTP_ONCE_LOST);
    w->nlost = 0;
    ngx_memcpy(lost, w->lost, known * sizeof(lost[0]));

    pthread_mutex_unlock(&w->mutex);

    if (n == 0) {
        return;
    }

    for (i = 0; i < known; i++) {
        ngx_http_once_unknown(w, &lost[i], log);
    }

    w->left_out += n - known;

    shared = ngx_http_once_shared(w->store);
    ngx_http_once_count_ending(&shared->routes[0], ngx_http_once_gone, n);
}


static void
ngx_http_once_notified(ngx_event_t *ev)
{
    char                     event[NGX_HTTP_ONCE_TEXT];
    char                     caveat[NGX_HTTP_ONCE_TEXT];
    uint64_t                 count;
    ngx_uint_t               i, level;
    ngx_http_once_store_t  **store;
    ngx_http_once_worker_t  *w;

    /* edge-triggered: each write is an event; read it before it overflows */

    if (++ev->index == NGX_MAX_UINT32_VALUE) {
        ev->index = 0;
        (void) !read(ngx_http_once_fd, &count, sizeof(count));
    }

    store = ngx_http_once_main->stores.elts;

    for (i = 0; i < ngx_http_once_main->stores.nelts; i++) {
        w = store[i]->worker;
        ngx_http_once_take(w);

        pthread_mutex_lock(&w->mutex);

        ngx_http_once_copy(event, w->event);
        ngx_http_once_copy(caveat, w->caveat);
        w->event[0] = '\0';
        w->caveat[0] = '\0';

        pthread_mutex_unlock(&w->mutex);

        if (event[0]) {
            level = (ngx_strncmp(event, ONCE_EVENT_NO_ANSWER,
                                 sizeof(ONCE_EVENT_NO_ANSWER) - 1) == 0)
                        ? NGX_LOG_CRIT : NGX_LOG_ERR;

            ngx_log_error(level, ev->log, 0, "once_store \"%V\": %s",
                          &w->store->name, event);
        }

        if (caveat[0]) {
            ngx_log_error(NGX_LOG_WARN, ev->log, 0,
                          "once_store \"%V\": of class B: %s",
                          &w->store->name, caveat);
        }

        ngx_http_once_log_lost(w, ev->log);
    }
}


/* to be called once for each attempt that was granted */

static void
ngx_http_once_ended(ngx_http_once_task_t *task, once__ending ending,
    ngx_log_t *log)
{
    ngx_http_once_lost_t  lost;

    ngx_http_once_count_ending(task->counts, ending, 1);
    ngx_http_once_count_time(&task->counts->attempt, &once__service_buckets,
                             ngx_http_once_now_us() - task->granted_us);

    if (task->ctx != NULL) {
        task->ctx->ending = ending;
        task->ctx->ended = 1;
    }

    if (ending.outcome == ONCE__OUTCOME_INDETERMINATE) {
        ngx_memcpy(lost.key_hash, task->key_hash, sizeof(lost.key_hash));
        ngx_memcpy(lost.label, task->label, sizeof(lost.label));
        lost.number = task->number;
        lost.fence = task->fence;
        lost.reason = ending.reason;
        ngx_http_once_unknown(task->worker, &lost, log);
    }
}


static void
ngx_http_once_take(ngx_http_once_worker_t *w)
{
    ngx_http_once_task_t  *task, *next, *list;

    list = NULL;

    for (task = atomic_exchange(&w->done, NULL); task; task = next) {
        next = task->next;
        task->next = list;
        list = task;
    }

    for (task = list; task; task = next) {
        next = task->next;
        ngx_http_once_pending--;
        ngx_http_once_result(task);
    }
}


static void
ngx_http_once_result(ngx_http_once_task_t *task)
{
    uint64_t              now;
    ngx_log_t            *log;
    const once_record    *record;
    ngx_http_once_ctx_t  *ctx;

    ctx = task->ctx;
    log = ctx ? ctx->request->connection->log : ngx_cycle->log;
    record = once_attempt_record(task->attempt);
    now = ngx_http_once_now_us();

    if (task->state == NGX_HTTP_ONCE_CLAIMING) {
        ngx_http_once_count_time(&task->counts->claim, &once__store_buckets,
                                 now - task->asked_us);

        if (ctx != NULL && task->worker->cache != NULL) {
            once__cache_note(task->worker->cache, ctx->name, task->rc, record,
                             task->when, once__wall_clock(NULL));
        }
    }

    if (task->state == NGX_HTTP_ONCE_CLAIMING && task->rc == ONCE_OWNER) {
        task->state = NGX_HTTP_ONCE_OWNING;
        task->number = record->attempt;
        task->fence = record->fence;
        task->granted_us = now;

    } else {

        if (task->state == NGX_HTTP_ONCE_ENDING) {
            ngx_http_once_count_time(&task->counts->complete,
                                     &once__store_buckets,
                                     now - task->asked_us);
            ngx_http_once_ended(task, once__verdict_ending(task->verdict,
                                                           task->rc, record),
                                log);
        }

        task->state = NGX_HTTP_ONCE_ENDED;
    }

    if (ctx != NULL && ngx_http_once_exiting) {
        ctx->task = NULL;
        task->ctx = ctx = NULL;
    }

    if (ctx == NULL) {
        ngx_http_once_orphan(task);
        return;
    }

    task->handler(ctx, task->rc);
}


/* an outcome that the store has just replayed, as a copy of the request's */

static const once_record *
ngx_http_once_hot(ngx_http_once_ctx_t *ctx, const once_request *request,
    once__cache_when when)
{
    u_char                  *p;
    once_record             *copy;
    const once_record       *record;
    ngx_http_once_worker_t  *w;

    w = ctx->conf->store->worker;

    if (w->cache == NULL) {
        return NULL;
    }

    record = once__cache_find(w->cache, request, when);
    if (record == NULL) {
        return NULL;
    }

    copy = ngx_palloc(ctx->request->pool,
                      sizeof(once_record) + record->result.size);
    if (copy == NULL) {
        return NULL;
    }

    p = (u_char *) copy + sizeof(once_record);
    ngx_memcpy(p, record->result.data, record->result.size);

    *copy = *record;
    copy->result.data = p;

    return copy;
}


ngx_int_t
ngx_http_once_claim(ngx_http_once_ctx_t *ctx, const once_request *request,
    ngx_http_once_result_pt handler)
{
    once_error               err;
    once__cache_when         when;
    ngx_http_once_task_t    *task;
    ngx_http_once_worker_t  *w;

    w = ctx->conf->store->worker;

    if (w == NULL || w->engine == NULL) {
        return NGX_ERROR;
    }

    when = ngx_http_once_when(w);
    ctx->record = ngx_http_once_hot(ctx, request, when);

    if (ctx->record != NULL) {
        ngx_http_once_count_time(&ngx_http_once_route_counts(ctx->conf)->claim,
                                 &once__store_buckets, 0);
        return NGX_OK;
    }

    task = calloc(1, sizeof(ngx_http_once_task_t));
    if (task == NULL) {
        return NGX_ERROR;
    }

    task->worker = w;
    task->when = when;
    task->handler = handler;
    task->counts = ngx_http_once_route_counts(ctx->conf);

    if (once_attempt_new(w->engine, request, &err, &task->attempt) != ONCE_OK) {
        ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                      "once: %s", err.text);
        free(task);
        return NGX_ERROR;
    }

    if (once_claim_start(task->attempt, ngx_http_once_done, task) != ONCE_OK) {
        ngx_http_once_free_task(task);
        return NGX_ERROR;
    }

    ngx_memcpy(task->key_hash, ctx->key_hash, sizeof(task->key_hash));
    ngx_memcpy(task->label, ctx->label, sizeof(task->label));
    task->ctx = ctx;
    ctx->task = task;
    ngx_http_once_started(task, NGX_HTTP_ONCE_CLAIMING);

    return NGX_AGAIN;
}


ngx_int_t
ngx_http_once_finish(ngx_http_once_ctx_t *ctx, once__verdict verdict,
    once_bytes result, ngx_http_once_result_pt handler)
{
    int                    rc;
    ngx_http_once_task_t  *task;

    task = ctx->task;
    task->verdict = verdict;
    task->handler = handler;

    rc = once__verdict_start(task->attempt, verdict, result,
                             ngx_http_once_done, task);

    if (rc != ONCE_OK) {
        ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                      "once: record %s: %s", ctx->key_hash, once_text(rc));
        return NGX_ERROR;
    }

    ngx_http_once_started(task, NGX_HTTP_ONCE_ENDING);

    return NGX_OK;
}


/*
 * The request is freed, or waits no longer: its attempt goes on without it.
 * "observed" is what is known of one that has not ended yet.
 */

void
ngx_http_once_abandon(ngx_http_once_ctx_t *ctx, int observed)
{
    once_bytes             result;
    once__verdict          verdict;
    ngx_http_once_task_t  *task;
    u_char                 bare[ONCE__RESPONSE_BARE];

    task = ctx->task;

    if (task == NULL) {
        return;
    }

    ctx->task = NULL;
    task->ctx = NULL;

    if (task->state == NGX_HTTP_ONCE_CLAIMING) {
        once_attempt_cancel(task->attempt);
        ngx_post_event(&ngx_http_once_wake_ev, &ngx_posted_events);
        return;
    }

    if (task->state == NGX_HTTP_ONCE_ENDING) {
        return;                 /* counted and logged when it has ended */
    }

    if (task->state == NGX_HTTP_ONCE_OWNING) {
        verdict = once__judge(observed, (int) ctx->upstream_status,
                              ctx->outcome, &ctx->conf->policy.rules);
        task->verdict = verdict;

        result.data = bare;
        result.size = once__response_bare((int) ctx->upstream_status, bare);

        if (once__verdict_start(task->attempt, verdict, result,
                                ngx_http_once_done, task)
            == ONCE_OK)
        {
            ngx_http_once_started(task, NGX_HTTP_ONCE_ENDING);
            return;
        }

        /* the library gives up an owner whose attempt is freed */

        ngx_http_once_ended(task, ngx_http_once_gone,
                            ctx->request->connection->log);
    }

    ngx_http_once_free_task(task);
}


static void
ngx_http_once_orphan(ngx_http_once_task_t *task)
{
    if (task->state == NGX_HTTP_ONCE_OWNING) {
        task->verdict.action = ONCE__DO_RELEASE;
        task->verdict.reason = ONCE_REASON_NOT_SENT;

        if (once_release_start(task->attempt, ONCE_REASON_NOT_SENT,
                               ngx_http_once_done, task)
            == ONCE_OK)
        {
            ngx_http_once_started(task, NGX_HTTP_ONCE_ENDING);
            return;
        }

        ngx_http_once_ended(task, ngx_http_once_gone, ngx_cycle->log);
    }

    ngx_http_once_free_task(task);
}


static void
ngx_http_once_free_task(ngx_http_once_task_t *task)
{
    once_attempt_free(task->attempt);
    free(task);
}
