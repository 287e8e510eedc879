
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


static void
ngx_http_once_set_text(ngx_http_once_report_t *report, const char *text)
{
    (void) ngx_cpystrn((u_char *) report->text, (u_char *) text,
                       NGX_HTTP_ONCE_REPORT);
}


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
    int                      fds[2], status;
    ssize_t                  n;
    ngx_pid_t                pid;
    sigset_t                 set, old;
    once_error               err;
    once_store              *opened;
    ngx_http_once_report_t   report;

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
            ngx_http_once_set_text(&report,
                               "cannot become the user of the workers");

        } else {
            err.text[0] = '\0';
            opened = NULL;
            report.rc = once_store_open((char *) store->url.data, NULL, &err,
                                        &opened);

            if (report.rc != ONCE_OK) {
                ngx_http_once_set_text(&report, err.text);

            } else {
                report.shared = opened->ops->shared;

                if (opened->caveat != NULL) {
                    ngx_http_once_set_text(&report, opened->caveat);
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
