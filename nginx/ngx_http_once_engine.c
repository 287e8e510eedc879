
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The engines of this worker, one for each store.  Completions come from the
 * engines' threads through a lock-free list and one eventfd; nothing of nginx
 * is touched on those threads.  A store is opened there, too: a server or a
 * name server that hangs must not hold the event loop.
 */


#include "ngx_http_once.h"

#include <once/store.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <grp.h>
#include <poll.h>


#define NGX_HTTP_ONCE_PUBLISH  1000     /* ms between two publications */
#define NGX_HTTP_ONCE_DRAIN    1000     /* ms; after 2 s the master kills */
#define NGX_HTTP_ONCE_TEXT     512
#define NGX_HTTP_ONCE_LOST     64       /* lines between two turns */


typedef struct {
    char                                  key_hash[17];
    uint32_t                              number;
} ngx_http_once_lost_t;


struct ngx_http_once_worker_s {
    ngx_http_once_store_t                *store;
    once_engine                          *engine;   /* NULL: not open */
    _Atomic(ngx_http_once_task_t *)       done;
    int                                   dirty;    /* the engine's thread */

    pthread_mutex_t                       mutex;    /* for what is below */
    char                                  event[NGX_HTTP_ONCE_TEXT];
    char                                  caveat[NGX_HTTP_ONCE_TEXT];
    ngx_http_once_lost_t                  lost[NGX_HTTP_ONCE_LOST];
    ngx_uint_t                            nlost;    /* may be more of them */

    once_stats                            published;
};


static void ngx_http_once_open(ngx_http_once_worker_t *w, ngx_log_t *log);
static void ngx_http_once_done(once_attempt *a, int rc, void *user);
static void ngx_http_once_flush(void *user);
static void ngx_http_once_event(void *user, const char *text);
static void ngx_http_once_caveat(void *user, const char *text);
static void ngx_http_once_lost(void *user, const uint8_t *name,
    const once_record *record);
static void ngx_http_once_wake(ngx_event_t *ev);
static void ngx_http_once_tick(ngx_event_t *ev);
static void ngx_http_once_notified(ngx_event_t *ev);
static void ngx_http_once_take(ngx_http_once_worker_t *w);
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


static void
ngx_http_once_copy(char *dst, const char *src)
{
    (void) ngx_cpystrn((u_char *) dst, (u_char *) src, NGX_HTTP_ONCE_TEXT);
}


/* --- at "nginx -t" and at each start --- */

/*
 * A child of ours tries the store as the user that the workers will be, so
 * that what the check creates belongs to them, and what it finds is what they
 * would find.  The text comes back through a pipe.  A server that does not
 * answer is no error: nginx has to start before it, and the workers go on
 * trying.
 */

static ngx_int_t
ngx_http_once_check_store(ngx_cycle_t *cycle, ngx_http_once_store_t *store,
    ngx_core_conf_t *ccf)
{
    int          fds[2], status;
    ssize_t      n;
    ngx_pid_t    pid;
    sigset_t     set, old;
    once_error   err;
    once_store  *opened;
    struct {
        int      rc;
        int      shared;
        char     text[NGX_HTTP_ONCE_TEXT];  /* an error, or the caveat */
    } report;

    if (pipe(fds) == -1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, ngx_errno, "pipe() failed");
        return NGX_ERROR;
    }

    /* the master's SIGCHLD handler must not reap our child before we do */

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, &old);

    pid = fork();

    if (pid == 0) {
        ngx_memzero(&report, sizeof(report));
        (void) close(fds[0]);

        if (ccf->master && geteuid() == 0
            && (setgid(ccf->group) == -1
                || initgroups(ccf->username, ccf->group) == -1
                || setuid(ccf->user) == -1))
        {
            report.rc = ONCE_EOPEN;
            ngx_http_once_copy(report.text,
                               "cannot become the user of the workers");

        } else {
            err.text[0] = '\0';
            opened = NULL;
            report.rc = once_store_open((char *) store->url.data, NULL, &err,
                                        &opened);

            if (report.rc != ONCE_OK) {
                ngx_http_once_copy(report.text, err.text);

            } else {
                report.shared = opened->ops->shared;

                if (opened->caveat != NULL) {
                    ngx_http_once_copy(report.text, opened->caveat);
                }

                once_store_close(opened);
            }
        }

        n = write(fds[1], &report, sizeof(report));
        _exit(n == (ssize_t) sizeof(report) ? 0 : 1);
    }

    (void) close(fds[1]);

    do {
        n = read(fds[0], &report, sizeof(report));
    } while (n == -1 && errno == EINTR);

    (void) close(fds[0]);

    if (pid != -1) {
        while (waitpid(pid, &status, 0) == -1 && errno == EINTR) {
            /* void */
        }
    }

    sigprocmask(SIG_SETMASK, &old, NULL);

    if (pid == -1 || n != (ssize_t) sizeof(report)) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0,
                      "once_store \"%V\": the check ended without an answer "
                      "in %V:%ui", &store->name, &store->file, store->line);
        return NGX_ERROR;
    }

    if (report.rc == ONCE_EAWAY) {
        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "once_store \"%V\": %s; guarded locations answer 503 "
                      "until it is there in %V:%ui", &store->name,
                      report.text, &store->file, store->line);
        return NGX_OK;
    }

    if (report.rc != ONCE_OK) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0,
                      "once_store \"%V\": %s in %V:%ui", &store->name,
                      report.text[0] ? report.text : once_text(report.rc),
                      &store->file, store->line);
        return NGX_ERROR;
    }

    if (!report.shared && ccf->master && ccf->worker_processes > 1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0,
                      "once_store \"%V\": this store serves one worker only, "
                      "worker_processes is %i in %V:%ui", &store->name,
                      ccf->worker_processes, &store->file, store->line);
        return NGX_ERROR;
    }

    if (report.text[0]) {
        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "once_store \"%V\": of class B: %s in %V:%ui",
                      &store->name, report.text, &store->file, store->line);
    }

    store->checked = 1;

    return NGX_OK;
}


ngx_int_t
ngx_http_once_check_stores(ngx_cycle_t *cycle, ngx_http_once_main_conf_t *omcf)
{
    ngx_uint_t               i;
    ngx_core_conf_t         *ccf;
    ngx_http_once_store_t  **store;

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);
    store = omcf->stores.elts;

    for (i = 0; i < omcf->stores.nelts; i++) {
        if (ngx_http_once_check_store(cycle, store[i], ccf) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
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
            ngx_http_once_publish(store[i], &w->published);
            once_engine_close(w->engine);
            w->engine = NULL;
        }

        ngx_http_once_clear_slot(store[i]);
    }

    (void) close(ngx_http_once_fd);
    ngx_http_once_fd = -1;
}


once_engine *
ngx_http_once_engine(ngx_http_once_store_t *store)
{
    return store->worker ? store->worker->engine : NULL;
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
        if (ngx_http_once_engine(store[i]) != NULL) {
            ngx_http_once_publish(store[i], &store[i]->worker->published);
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

    ngx_add_timer(ev, NGX_HTTP_ONCE_PUBLISH);
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
ngx_http_once_say(ngx_http_once_worker_t *w, char *slot, const char *text)
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

    ngx_http_once_say(w, w->event, text);
}


/* once for all workers: the check at the start has said it, or one of them */

static void
ngx_http_once_caveat(void *user, const char *text)
{
    ngx_http_once_worker_t  *w = user;

    if (!w->store->checked && ngx_worker == 0) {
        ngx_http_once_say(w, w->caveat, text);
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


static void
ngx_http_once_started(ngx_http_once_task_t *task)
{
    task->busy = 1;
    ngx_http_once_pending++;

    /* one wake-up for all that this turn of the loop submits */

    ngx_post_event(&ngx_http_once_wake_ev, &ngx_posted_events);
}


static void
ngx_http_once_log_lost(ngx_http_once_worker_t *w, ngx_log_t *log)
{
    ngx_uint_t            i, n;
    ngx_http_once_lost_t  lost[NGX_HTTP_ONCE_LOST];

    pthread_mutex_lock(&w->mutex);

    n = w->nlost;
    w->nlost = 0;
    ngx_memcpy(lost, w->lost,
               ngx_min(n, NGX_HTTP_ONCE_LOST) * sizeof(lost[0]));

    pthread_mutex_unlock(&w->mutex);

    for (i = 0; i < ngx_min(n, NGX_HTTP_ONCE_LOST); i++) {
        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "once: outcome unknown: record %s, attempt %uD: its "
                      "owner was silent until the lease was over",
                      lost[i].key_hash, lost[i].number);
    }

    if (n > NGX_HTTP_ONCE_LOST) {
        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "once: outcome unknown: %ui more records, likewise",
                      n - NGX_HTTP_ONCE_LOST);
    }
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

    /* edge-triggered: each write arms it anew; read it before it overflows */

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
            level = (ngx_strncmp(event, ONCE_EVENT_SILENT,
                                 sizeof(ONCE_EVENT_SILENT) - 1) == 0)
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


/* whoever reads the log finds the record with "once show" */

static void
ngx_http_once_unknown(ngx_http_once_task_t *task, ngx_log_t *log,
    const char *reason)
{
    if (task->unknown) {
        return;
    }

    task->unknown = 1;
    ngx_log_error(NGX_LOG_WARN, log, 0,
                  "once: outcome unknown: record %s, attempt %uD: %s",
                  task->key_hash, task->number, reason);
}


/* what the engine answered to the last words of an owner */

static void
ngx_http_once_judge_end(ngx_http_once_task_t *task, ngx_log_t *log)
{
    if (task->claiming || task->rc == ONCE_OK || task->rc == ONCE_REPLAY
        || task->action == ONCE__DO_GIVE_UP)
    {
        return;
    }

    if (task->rc < 0) {
        ngx_http_once_unknown(task, log,
                              task->action == ONCE__DO_RELEASE
                              ? "the store did not answer a release"
                              : "the store did not record it in time");
        return;
    }

    ngx_http_once_unknown(task, log, "another attempt has the record by now");
}


static void
ngx_http_once_take(ngx_http_once_worker_t *w)
{
    ngx_http_once_ctx_t   *ctx;
    ngx_http_once_task_t  *task, *next, *list;

    list = NULL;

    for (task = atomic_exchange(&w->done, NULL); task; task = next) {
        next = task->next;
        task->next = list;
        list = task;
    }

    for (task = list; task; task = next) {
        next = task->next;
        ctx = task->ctx;

        task->busy = 0;
        ngx_http_once_pending--;

        if (task->claiming && task->rc == ONCE_OWNER) {
            task->number = once_attempt_record(task->attempt)->attempt;
        }

        ngx_http_once_judge_end(task, ctx ? ctx->request->connection->log
                                          : ngx_cycle->log);

        if (ctx != NULL && ngx_http_once_exiting) {
            ctx->task = NULL;
            task->ctx = ctx = NULL;
        }

        if (ctx == NULL) {
            ngx_http_once_orphan(task);

        } else if (task->claiming) {
            task->claiming = 0;
            task->owner = (task->rc == ONCE_OWNER);
            ngx_http_once_claimed(ctx, task->rc);

        } else {
            task->owner = 0;
            ngx_http_once_stored(ctx, task->rc);
        }
    }
}


ngx_int_t
ngx_http_once_claim(ngx_http_once_ctx_t *ctx, const once_request *request)
{
    once_error              err;
    once_engine            *engine;
    ngx_http_once_task_t   *task;

    engine = ngx_http_once_engine(ctx->conf->store);

    if (engine == NULL) {
        return NGX_ERROR;
    }

    task = calloc(1, sizeof(ngx_http_once_task_t));
    if (task == NULL) {
        return NGX_ERROR;
    }

    task->worker = ctx->conf->store->worker;

    if (once_attempt_new(engine, request, &err, &task->attempt) != ONCE_OK) {
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
    task->ctx = ctx;
    task->claiming = 1;
    ctx->task = task;
    ngx_http_once_started(task);

    return NGX_OK;
}


ngx_int_t
ngx_http_once_finish(ngx_http_once_ctx_t *ctx, once__verdict verdict,
    once_bytes result)
{
    int                    rc;
    ngx_http_once_task_t  *task;

    task = ctx->task;
    task->action = verdict.action;

    if (verdict.action == ONCE__DO_GIVE_UP) {
        ngx_http_once_unknown(task, ctx->request->connection->log,
                              ctx->observed == ONCE__BROKEN
                              ? "the upstream's response is not whole"
                              : "the upstream does not say what it did");
    }

    rc = once__verdict_start(task->attempt, verdict, result,
                             ngx_http_once_done, task);

    if (rc != ONCE_OK) {
        ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                      "once: record %s: %s", ctx->key_hash, once_text(rc));
        return NGX_ERROR;
    }

    ngx_http_once_started(task);

    return NGX_OK;
}


/* the request goes, or does not wait any longer: the attempt is left alone */

void
ngx_http_once_abandon(ngx_http_once_ctx_t *ctx, ngx_uint_t sent)
{
    once_bytes             none;
    once__verdict          verdict;
    ngx_http_once_task_t  *task;

    task = ctx->task;

    if (task == NULL) {
        return;
    }

    ctx->task = NULL;
    task->ctx = NULL;

    if (task->busy) {
        if (task->claiming) {
            once_attempt_cancel(task->attempt);
            ngx_post_event(&ngx_http_once_wake_ev, &ngx_posted_events);

        } else if (task->action == ONCE__DO_COMPLETE
                   || task->action == ONCE__DO_MARK)
        {
            ngx_http_once_unknown(task, ctx->request->connection->log,
                                  "the store has not recorded it yet");
        }

        return;
    }

    if (task->owner) {
        none.data = NULL;
        none.size = 0;

        verdict = once__judge(sent ? ONCE__BROKEN : ONCE__NOT_SENT, 0, none,
                              &ctx->conf->policy.rules);
        task->owner = 0;
        task->action = verdict.action;

        if (verdict.action == ONCE__DO_GIVE_UP) {
            ngx_http_once_unknown(task, ctx->request->connection->log,
                                  "the request ended before its response");
        }

        if (once__verdict_start(task->attempt, verdict, none,
                                ngx_http_once_done, task)
            == ONCE_OK)
        {
            ngx_http_once_started(task);
            return;
        }

        /* an owner that is freed is given up */

        ngx_http_once_unknown(task, ctx->request->connection->log,
                              "the engine is closing");
    }

    ngx_http_once_free_task(task);
}


static void
ngx_http_once_orphan(ngx_http_once_task_t *task)
{
    if (task->claiming && task->rc == ONCE_OWNER) {
        task->claiming = 0;
        task->action = ONCE__DO_RELEASE;

        if (once_release_start(task->attempt, ngx_http_once_done, task)
            == ONCE_OK)
        {
            ngx_http_once_started(task);
            return;
        }
    }

    ngx_http_once_free_task(task);
}


static void
ngx_http_once_free_task(ngx_http_once_task_t *task)
{
    once_attempt_free(task->attempt);
    free(task);
}
