
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Tries each store at "nginx -t", at each start and at each reload.  It refuses
 * what no waiting would repair.
 */


#include "ngx_http_once_check.h"

#include <once/store.h>
#include <sys/wait.h>
#include <grp.h>


#define NGX_HTTP_ONCE_REPORT   512


typedef struct {
    int          rc;
    int          shared;
    char         text[NGX_HTTP_ONCE_REPORT];    /* an error, or the caveat */
} ngx_http_once_report_t;


/*
 * Where a configuration is tested, its store need not be: then ONCE_CHECK says
 * so, in the environment of "nginx -t" alone.  NGX_ERROR: it says something
 * else.
 */

ngx_int_t
ngx_http_once_storeless(ngx_log_t *log, ngx_uint_t *storeless)
{
    char  *value;

    value = ngx_test_config ? getenv("ONCE_CHECK") : NULL;
    *storeless = (value != NULL);

    if (value == NULL || ngx_strcmp(value, "off") == 0) {
        return NGX_OK;
    }

    ngx_log_error(NGX_LOG_EMERG, log, 0,
                  "once: the environment has ONCE_CHECK=\"%s\", and it takes "
                  "\"off\" only: \"nginx -t\" then warns of a store that "
                  "cannot be opened", value);

    return NGX_ERROR;
}


static void
ngx_http_once_set_text(ngx_http_once_report_t *report, const char *text)
{
    (void) ngx_cpystrn((u_char *) report->text, (u_char *) text,
                       NGX_HTTP_ONCE_REPORT);
}


/* in a child of ours */

static void
ngx_http_once_try(ngx_http_once_store_t *store, ngx_core_conf_t *ccf,
    ngx_http_once_report_t *report)
{
    once_error   err;
    once_store  *opened;

    if (ccf->master && geteuid() == 0
        && (setgid(ccf->group) == -1
            || initgroups(ccf->username, ccf->group) == -1
            || setuid(ccf->user) == -1))
    {
        report->rc = ONCE_EOPEN;
        ngx_http_once_set_text(report,
                               "cannot become the user of the workers");
        return;
    }

    err.text[0] = '\0';
    opened = NULL;
    report->rc = once_store_open((char *) store->url.data, NULL, &err,
                                 &opened);

    if (report->rc != ONCE_OK) {
        ngx_http_once_set_text(report, err.text);
        return;
    }

    report->shared = opened->ops->shared;

    if (opened->caveat != NULL) {
        ngx_http_once_set_text(report, opened->caveat);
    }

    once_store_close(opened);
}


/*
 * A child tries the store as the user that the workers will be, so that what
 * the check creates belongs to them, and what it finds is what they would find.
 * The text comes back through a pipe.  NGX_DECLINED: it does not.
 */

static ngx_int_t
ngx_http_once_ask_child(ngx_cycle_t *cycle, ngx_http_once_store_t *store,
    ngx_core_conf_t *ccf, ngx_http_once_report_t *report)
{
    int        fds[2], status;
    ssize_t    n;
    ngx_pid_t  pid;
    sigset_t   set, old;

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
        (void) close(fds[0]);
        ngx_memzero(report, sizeof(ngx_http_once_report_t));
        ngx_http_once_try(store, ccf, report);
        n = write(fds[1], report, sizeof(ngx_http_once_report_t));
        _exit(n == (ssize_t) sizeof(ngx_http_once_report_t) ? 0 : 1);
    }

    (void) close(fds[1]);

    do {
        n = read(fds[0], report, sizeof(ngx_http_once_report_t));
    } while (n == -1 && errno == EINTR);

    (void) close(fds[0]);

    while (pid != -1 && waitpid(pid, &status, 0) == -1 && errno == EINTR) {
        /* void */
    }

    sigprocmask(SIG_SETMASK, &old, NULL);

    return (pid != -1 && n == (ssize_t) sizeof(ngx_http_once_report_t))
           ? NGX_OK : NGX_DECLINED;
}


/*
 * A server that does not answer is no error: nginx has to start before it, and
 * the workers go on trying.
 */

static ngx_int_t
ngx_http_once_check_store(ngx_cycle_t *cycle, ngx_http_once_store_t *store,
    ngx_core_conf_t *ccf)
{
    ngx_int_t               rc;
    ngx_uint_t              storeless;
    ngx_http_once_report_t  report;

    if (ngx_http_once_storeless(cycle->log, &storeless) != NGX_OK) {
        return NGX_ERROR;
    }

    if (store->unnamed) {
        return NGX_OK;                  /* it was warned of */
    }

    rc = ngx_http_once_ask_child(cycle, store, ccf, &report);

    if (rc == NGX_DECLINED) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cycle, store,
                      "once_store \"%V\": the check ended without an answer",
                      &store->name);
        return NGX_ERROR;
    }

    if (rc != NGX_OK) {
        return NGX_ERROR;
    }

    if (report.rc == ONCE_EAWAY) {
        ngx_http_once_log_conf(NGX_LOG_WARN, cycle, store,
                      "once_store \"%V\": %s; guarded locations answer 503 "
                      "until it is there", &store->name, report.text);
        return NGX_OK;
    }

    if (storeless && report.rc != ONCE_OK && report.rc != ONCE_EURL) {
        ngx_http_once_log_conf(NGX_LOG_WARN, cycle, store,
                      "once_store \"%V\": %s; ONCE_CHECK=off lets it pass "
                      "this test, and nginx will not start so", &store->name,
                      report.text[0] ? report.text : once_text(report.rc));
        return NGX_OK;
    }

    if (report.rc != ONCE_OK) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cycle, store,
                      "once_store \"%V\": %s", &store->name,
                      report.text[0] ? report.text : once_text(report.rc));
        return NGX_ERROR;
    }

    if (!report.shared && ccf->master && ccf->worker_processes > 1) {
        ngx_http_once_log_conf(NGX_LOG_EMERG, cycle, store,
                      "once_store \"%V\": this store serves one worker only, "
                      "worker_processes is %i", &store->name,
                      ccf->worker_processes);
        return NGX_ERROR;
    }

    if (report.text[0]) {
        ngx_http_once_log_conf(NGX_LOG_WARN, cycle, store,
                      "once_store \"%V\" is not durable: %s", &store->name,
                      report.text);
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
