
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
#include "calls/engine/cache.h"
#include "calls/store/store.h"

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
    NGX_HTTP_ONCE_ENDING,       /* the engine records the end */
    NGX_HTTP_ONCE_DECIDING,     /* ... what a probe was told; no attempt */
    NGX_HTTP_ONCE_LOOKING       /* the engine looks, and grants nothing */
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
    ngx_queue_t                           looking;  /* with LOOKING */
};


/* what a probe was told, on its way to the store */

typedef struct {
    ngx_http_once_task_t                  task;     /* comes first: free() */
    once_op                               op;
    u_char                                result[];
} ngx_http_once_decision_t;


/* an attempt whose outcome has become unknown */

typedef struct {
    char                                  key_hash[17];
    uint32_t                              number;
    uint64_t                              fence;
    int                                   reason;   /* enum once_reason */
    char                                  label[ONCE_LABEL_MAX + 1];
} ngx_http_once_lost_t;


struct ngx_http_once_worker_s {
    ngx_http_once_worker_t               *next;
    ngx_http_once_store_t                *store;
    once_engine                          *engine;   /* NULL: not open */
    once__cache                          *cache;    /* NULL: no memory */

    /*
     * pushed by the engine's thread, taken whole by the event loop: a push
     * releases its task, a take acquires all
     */
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


/* of this process */

static ngx_http_once_worker_t  *ngx_http_once_workers;
static int                      ngx_http_once_fd = -1;
static ngx_connection_t         ngx_http_once_connection;
static ngx_event_t              ngx_http_once_rev;
static ngx_event_t              ngx_http_once_wev;
static ngx_event_t              ngx_http_once_wake_ev;
static ngx_event_t              ngx_http_once_tick_ev;
static ngx_uint_t               ngx_http_once_pending;
static ngx_uint_t               ngx_http_once_exiting;
static ngx_queue_t              ngx_http_once_lookups;


static const once__ending  ngx_http_once_gone = {
    ONCE__OUTCOME_INDETERMINATE, ONCE_REASON_OWNER_GONE
};


#define ngx_http_once_copy(dst, src)                                          \
    (void) ngx_cpystrn((u_char *) (dst), (u_char *) (src), NGX_HTTP_ONCE_TEXT)


/* --- on the engine's thread --- */

static void
ngx_http_once_push_done(ngx_http_once_task_t *task, int rc)
{
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
ngx_http_once_done(once_attempt *a, int rc, void *user)
{
    ngx_http_once_push_done(user, rc);
}


static void
ngx_http_once_op_done(once_op *op)
{
    ngx_http_once_push_done(op->user, op->rc);
}


/* fails only if the counter is about to overflow: then it is set */

static void
ngx_http_once_notify(void)
{
    uint64_t  one = 1;

    (void) !write(ngx_http_once_fd, &one, sizeof(one));
}


static void
ngx_http_once_flush(void *user)
{
    ngx_http_once_worker_t  *w = user;

    if (w->dirty) {
        w->dirty = 0;
        ngx_http_once_notify();
    }
}


static void
ngx_http_once_report(ngx_http_once_worker_t *w, char *slot, const char *text)
{
    pthread_mutex_lock(&w->mutex);
    ngx_http_once_copy(slot, text);
    pthread_mutex_unlock(&w->mutex);

    ngx_http_once_notify();
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

    ngx_http_once_notify();
}


/* --- on the event loop --- */

static void
ngx_http_once_wake(ngx_event_t *ev)
{
    ngx_http_once_worker_t  *w;

    for (w = ngx_http_once_workers; w; w = w->next) {
        if (w->engine != NULL) {
            once_engine_wake(w->engine);
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
ngx_http_once_log_texts(ngx_http_once_worker_t *w, ngx_log_t *log)
{
    char        event[NGX_HTTP_ONCE_TEXT], caveat[NGX_HTTP_ONCE_TEXT];
    ngx_uint_t  level;

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

        ngx_log_error(level, log, 0, "once_store \"%V\": %s",
                      &w->store->name, event);
    }

    if (caveat[0]) {
        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "once_store \"%V\" is not durable: %s",
                      &w->store->name, caveat);
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


/* counts what the engine has answered, and notes what it means for the task */

static void
ngx_http_once_answered(ngx_http_once_task_t *task, ngx_log_t *log)
{
    uint64_t                     now;
    const once_record           *record;
    ngx_http_once_task_state_e   asked;

    record = once_attempt_record(task->attempt);
    now = ngx_http_once_now_us();
    asked = task->state;
    task->state = NGX_HTTP_ONCE_ENDED;

    if (asked == NGX_HTTP_ONCE_LOOKING) {
        ngx_queue_remove(&task->looking);
        return;
    }

    if (asked == NGX_HTTP_ONCE_ENDING) {
        ngx_http_once_count_time(&task->counts->complete,
                                 &once__store_buckets, now - task->asked_us);
        ngx_http_once_ended(task, once__verdict_ending(task->verdict, task->rc,
                                                       record),
                            log);
        return;
    }

    ngx_http_once_count_time(&task->counts->claim, &once__store_buckets,
                             now - task->asked_us);

    if (task->ctx != NULL && task->worker->cache != NULL) {
        once__cache_note(task->worker->cache, task->ctx->name, task->rc,
                         record, task->when, once__wall_clock(NULL));
    }

    if (task->rc == ONCE_OWNER) {
        task->state = NGX_HTTP_ONCE_OWNING;
        task->number = record->attempt;
        task->fence = record->fence;
        task->granted_us = now;
    }
}


static void
ngx_http_once_free_task(ngx_http_once_task_t *task)
{
    once_attempt_free(task->attempt);
    free(task);
}


/* an owner without a request */

static void
ngx_http_once_let_go(ngx_http_once_task_t *task, once__verdict verdict,
    int status, ngx_log_t *log)
{
    once_bytes  result;
    u_char      bare[ONCE__RESPONSE_BARE];

    task->verdict = verdict;
    result.data = bare;
    result.size = once__response_bare(status, bare);

    if (once__verdict_start(task->attempt, verdict, result,
                            ngx_http_once_done, task)
        == ONCE_OK)
    {
        ngx_http_once_started(task, NGX_HTTP_ONCE_ENDING);
        return;
    }

    /* the library gives up an owner whose attempt is freed */

    ngx_http_once_ended(task, ngx_http_once_gone, log);
    ngx_http_once_free_task(task);
}


/* granted when its request had gone */

static void
ngx_http_once_orphan(ngx_http_once_task_t *task)
{
    static const once__verdict  not_sent = {
        ONCE__DO_RELEASE, ONCE_NO_KIND, ONCE_REASON_NOT_SENT, 0
    };

    if (task->state == NGX_HTTP_ONCE_OWNING) {
        ngx_http_once_let_go(task, not_sent, 0, ngx_cycle->log);
        return;
    }

    ngx_http_once_free_task(task);
}


/* the store has answered what a probe was told, or has not */

static void
ngx_http_once_decided(ngx_http_once_task_t *task)
{
    int                       rc;
    ngx_log_t                *log;
    ngx_http_once_ctx_t      *ctx;
    ngx_http_once_result_pt   handler;

    rc = task->rc;
    ctx = task->ctx;
    handler = task->handler;
    log = ctx ? ctx->request->connection->log : ngx_cycle->log;

    if (rc == ONCE_OK) {
        ngx_log_error(NGX_LOG_NOTICE, log, 0,
                      "once: outcome known by a probe: record %s, "
                      "attempt %uD, fence %uL", task->key_hash, task->number,
                      task->fence);
    }

    ngx_http_once_free_task(task);

    if (ctx == NULL) {
        return;
    }

    ctx->task = NULL;

    if (!ngx_http_once_exiting) {
        handler(ctx, rc);
    }
}


static void
ngx_http_once_result(ngx_http_once_task_t *task)
{
    ngx_http_once_ctx_t  *ctx;

    if (task->state == NGX_HTTP_ONCE_DECIDING) {
        ngx_http_once_decided(task);
        return;
    }

    ctx = task->ctx;

    ngx_http_once_answered(task, ctx ? ctx->request->connection->log
                                     : ngx_cycle->log);

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
ngx_http_once_notified(ngx_event_t *ev)
{
    uint64_t                 count;
    ngx_http_once_worker_t  *w;

    /* edge-triggered: each write is an event; read it before it overflows */

    if (++ev->index == NGX_MAX_UINT32_VALUE) {
        ev->index = 0;
        (void) !read(ngx_http_once_fd, &count, sizeof(count));
    }

    for (w = ngx_http_once_workers; w; w = w->next) {
        ngx_http_once_take(w);
        ngx_http_once_log_texts(w, ev->log);
        ngx_http_once_log_lost(w, ev->log);
    }
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


static ngx_http_once_task_t *
ngx_http_once_new_task(ngx_http_once_ctx_t *ctx, const once_request *request)
{
    once_error             err;
    ngx_http_once_task_t  *task;

    task = calloc(1, sizeof(ngx_http_once_task_t));
    if (task == NULL) {
        return NULL;
    }

    task->worker = ctx->conf->store->worker;
    task->counts = ngx_http_once_route_counts(ctx->conf);
    ngx_memcpy(task->key_hash, ctx->key_hash, sizeof(task->key_hash));
    ngx_memcpy(task->label, ctx->label, sizeof(task->label));

    if (once_attempt_new(task->worker->engine, request, &err, &task->attempt)
        == ONCE_OK)
    {
        return task;
    }

    ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                  "once: %s", err.text);
    free(task);

    return NULL;
}


ngx_int_t
ngx_http_once_claim(ngx_http_once_ctx_t *ctx, const once_request *request,
    ngx_http_once_result_pt handler)
{
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

    task = ngx_http_once_new_task(ctx, request);
    if (task == NULL) {
        return NGX_ERROR;
    }

    task->when = when;
    task->handler = handler;

    if (once_claim_start(task->attempt, ngx_http_once_done, task) != ONCE_OK) {
        ngx_http_once_free_task(task);
        return NGX_ERROR;
    }

    task->ctx = ctx;
    ctx->task = task;
    ngx_http_once_started(task, NGX_HTTP_ONCE_CLAIMING);

    return NGX_AGAIN;
}


ngx_int_t
ngx_http_once_peek(ngx_http_once_ctx_t *ctx, const once_request *request,
    ngx_http_once_result_pt handler)
{
    ngx_http_once_task_t    *task;
    ngx_http_once_worker_t  *w;

    w = ctx->conf->store->worker;

    if (w == NULL || w->engine == NULL) {
        return NGX_ERROR;
    }

    task = ngx_http_once_new_task(ctx, request);
    if (task == NULL) {
        return NGX_ERROR;
    }

    task->handler = handler;

    if (once_look_start(task->attempt, ngx_http_once_done, task) != ONCE_OK) {
        ngx_http_once_free_task(task);
        return NGX_ERROR;
    }

    task->ctx = ctx;
    ctx->task = task;
    ngx_queue_insert_tail(&ngx_http_once_lookups, &task->looking);
    ngx_http_once_started(task, NGX_HTTP_ONCE_LOOKING);

    return NGX_OK;
}


/* this worker was told to quit: lookups that wait get what is known now */

static void
ngx_http_once_end_lookups(void)
{
    ngx_queue_t           *q;
    ngx_http_once_task_t  *task;

    for (q = ngx_queue_head(&ngx_http_once_lookups);
         q != ngx_queue_sentinel(&ngx_http_once_lookups);
         q = ngx_queue_next(q))
    {
        task = ngx_queue_data(q, ngx_http_once_task_t, looking);
        once_attempt_cancel(task->attempt);
    }

    ngx_post_event(&ngx_http_once_wake_ev, &ngx_posted_events);
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


ngx_int_t
ngx_http_once_resolve(ngx_http_once_ctx_t *ctx, once_bytes result,
    ngx_http_once_result_pt handler)
{
    once_error                 err;
    once_bytes                 bytes;
    ngx_http_once_task_t      *task;
    ngx_http_once_decision_t  *decision;

    /* the attempt that was answered "unknown" has ended */

    ngx_http_once_abandon(ctx, ONCE__NOT_SENT);

    decision = calloc(1, sizeof(ngx_http_once_decision_t) + result.size);
    if (decision == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(decision->result, result.data, result.size);
    bytes.data = decision->result;
    bytes.size = result.size;

    once__probe_fill(&ctx->conf->policy, ctx->name, ctx->probe->fence, bytes,
                     &decision->op);
    decision->op.done = ngx_http_once_op_done;
    decision->op.user = decision;

    task = &decision->task;
    task->worker = ctx->conf->store->worker;
    task->handler = handler;
    task->number = ctx->probe->number;
    task->fence = ctx->probe->fence;
    ngx_memcpy(task->key_hash, ctx->key_hash, sizeof(task->key_hash));

    if (once_submit(task->worker->engine, &decision->op, &err) != ONCE_OK) {
        ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                      "once: record %s: %s", ctx->key_hash, err.text);
        free(decision);
        return NGX_ERROR;
    }

    task->ctx = ctx;
    ctx->task = task;
    ngx_http_once_started(task, NGX_HTTP_ONCE_DECIDING);

    return NGX_OK;
}


/*
 * The request is freed, or waits no longer: its attempt goes on without it.
 * "observed" is what is known of one that has not ended yet.
 */

void
ngx_http_once_abandon(ngx_http_once_ctx_t *ctx, int observed)
{
    ngx_http_once_task_t  *task;

    task = ctx->task;

    if (task == NULL) {
        return;
    }

    ctx->task = NULL;
    task->ctx = NULL;

    switch (task->state) {

    case NGX_HTTP_ONCE_CLAIMING:
    case NGX_HTTP_ONCE_LOOKING:
        once_attempt_cancel(task->attempt);
        ngx_post_event(&ngx_http_once_wake_ev, &ngx_posted_events);
        return;

    case NGX_HTTP_ONCE_ENDING:
    case NGX_HTTP_ONCE_DECIDING:
        return;                 /* counted and logged when it has ended */

    case NGX_HTTP_ONCE_OWNING:
        ngx_http_once_let_go(task,
                             once__judge(observed, (int) ctx->upstream_status,
                                         ctx->outcome,
                                         &ctx->conf->policy.rules),
                             (int) ctx->upstream_status,
                             ctx->request->connection->log);
        return;

    default: /* NGX_HTTP_ONCE_ENDED */
        ngx_http_once_free_task(task);
    }
}


/* --- the worker --- */

/* nginx's debug lines take the data of each event for a connection */

static void
ngx_http_once_set_event(ngx_event_t *ev, ngx_event_handler_pt handler,
    ngx_log_t *log)
{
    ev->handler = handler;
    ev->data = &ngx_http_once_connection;
    ev->log = log;
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


static void
ngx_http_once_publish(ngx_http_once_worker_t *w)
{
    once_stats  stats;

    once_engine_stats(w->engine, &stats);
    ngx_http_once_add_stats(w->store, &stats, &w->published);
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
    ngx_http_once_worker_t  *w;

    if (ngx_http_once_pending) {
        return 1;
    }

    for (w = ngx_http_once_workers; w; w = w->next) {
        if (w->engine != NULL) {
            once_engine_stats(w->engine, &stats);

            if (stats.unrecorded) {
                return 1;
            }
        }
    }

    return 0;
}


static void
ngx_http_once_tick(ngx_event_t *ev)
{
    ngx_http_once_worker_t  *w;

    for (w = ngx_http_once_workers; w; w = w->next) {
        if (w->engine == NULL) {
            ngx_http_once_open(w, ev->log);
        }

        ngx_http_once_left_out(w, ev->log);

        if (w->engine == NULL) {
            continue;
        }

        ngx_http_once_publish(w);

        if (w->cache != NULL) {
            once__cache_sweep(w->cache, ngx_http_once_when(w));
        }
    }

    if (ngx_exiting) {
        ngx_http_once_end_lookups();
    }

    /* a worker that exits gracefully works for as long as this timer runs */

    ev->cancelable = !ngx_http_once_owes();
    ngx_add_timer(ev, NGX_HTTP_ONCE_PUBLISH);
}


/*
 * A connection of our own: one from the cycle would be reported as left open by
 * each graceful exit.
 */

static ngx_int_t
ngx_http_once_listen(ngx_cycle_t *cycle)
{
    ngx_http_once_fd = eventfd(0, EFD_NONBLOCK|EFD_CLOEXEC);

    if (ngx_http_once_fd == -1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, ngx_errno,
                      "eventfd() failed");
        return NGX_ERROR;
    }

    ngx_http_once_set_event(&ngx_http_once_rev, ngx_http_once_notified,
                            cycle->log);
    ngx_http_once_set_event(&ngx_http_once_wev, NULL, cycle->log);
    ngx_http_once_set_event(&ngx_http_once_wake_ev, ngx_http_once_wake,
                            cycle->log);
    ngx_http_once_set_event(&ngx_http_once_tick_ev, ngx_http_once_tick,
                            cycle->log);

    ngx_queue_init(&ngx_http_once_lookups);
    ngx_http_once_wev.write = 1;
    ngx_http_once_tick_ev.cancelable = 1;

    ngx_http_once_connection.fd = ngx_http_once_fd;
    ngx_http_once_connection.read = &ngx_http_once_rev;
    ngx_http_once_connection.write = &ngx_http_once_wev;
    ngx_http_once_connection.log = cycle->log;

    return ngx_add_event(&ngx_http_once_rev, NGX_READ_EVENT, NGX_CLEAR_EVENT);
}


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

    if (ngx_http_once_listen(cycle) != NGX_OK) {
        return NGX_ERROR;
    }

    store = omcf->stores.elts;

    for (i = 0; i < omcf->stores.nelts; i++) {
        w = ngx_pcalloc(cycle->pool, sizeof(ngx_http_once_worker_t));

        if (w == NULL || pthread_mutex_init(&w->mutex, NULL) != 0) {
            return NGX_ERROR;
        }

        w->store = store[i];
        w->next = ngx_http_once_workers;
        ngx_http_once_workers = w;
        store[i]->worker = w;
        ngx_http_once_clear_slot(store[i]);
        ngx_http_once_open(w, cycle->log);
    }

    ngx_add_timer(&ngx_http_once_tick_ev, NGX_HTTP_ONCE_PUBLISH);

    return NGX_OK;
}


/* claims that come back now are released, results become durable */

static void
ngx_http_once_drain(void)
{
    ngx_msec_t               end;
    struct pollfd            pfd;
    ngx_http_once_worker_t  *w;

    ngx_time_update();
    end = ngx_current_msec + NGX_HTTP_ONCE_DRAIN;

    while (ngx_http_once_pending
           && (ngx_msec_int_t) (end - ngx_current_msec) > 0)
    {
        ngx_http_once_wake(NULL);

        pfd.fd = ngx_http_once_fd;
        pfd.events = POLLIN;
        (void) poll(&pfd, 1, 10);

        for (w = ngx_http_once_workers; w; w = w->next) {
            ngx_http_once_take(w);
        }

        ngx_time_update();
    }
}


void
ngx_http_once_exit_process(ngx_cycle_t *cycle)
{
    ngx_http_once_worker_t  *w;

    if (ngx_http_once_fd == -1) {
        return;
    }

    ngx_http_once_exiting = 1;
    ngx_http_once_drain();

    for (w = ngx_http_once_workers; w; w = w->next) {
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

        ngx_http_once_clear_slot(w->store);
    }

    (void) close(ngx_http_once_fd);
    ngx_http_once_fd = -1;
}


const once_record *
ngx_http_once_record(ngx_http_once_ctx_t *ctx)
{
    return (ctx->task && ctx->task->attempt)
           ? once_attempt_record(ctx->task->attempt) : ctx->record;
}


uint64_t
ngx_http_once_left(ngx_http_once_ctx_t *ctx)
{
    return (ctx->task && ctx->task->attempt)
           ? once_attempt_left_ms(ctx->task->attempt) : 0;
}


void
ngx_http_once_publish_all(void)
{
    ngx_http_once_worker_t  *w;

    for (w = ngx_http_once_workers; w; w = w->next) {
        if (w->engine != NULL) {
            ngx_http_once_publish(w);
        }
    }
}
