/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turn.c - what the loop does between two requests: it resumes calls that the store
 * has answered, and looks after exchanges without a call: their processes die,
 * their handlers have had their time, the server ends.
 */
#include "programs/serve/serve.h"

#include <search.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <unistd.h>

/* ---- Processes that died -------------------------------------------------- */

/* A handler that ran is given up; one that never began is not let begin. */
static void bury(struct serve_owner *w)
{
    struct serve_link *at, *next;
    struct serve_open *o;

    for (at = w->open.next; at != &w->open; at = next) {
        next = at->next;
        o = (struct serve_open *)((char *)at -
                                  offsetof(struct serve_open, of_owner));
        if (o->state == SERVE_RUNS) {
            serve_open_free(o);
        } else if (o->state == SERVE_CLAIMS) {
            o->abandoned = 1;
            serve_open_stop(o);
        }
    }
}

void serve_owner_turn(struct serve *s)
{
    struct epoll_event found[64];
    struct serve_owner *w;
    int i, n;

    n = epoll_wait(s->deaths, found, 64, 0);
    for (i = 0; i < n; i++) {
        w = found[i].data.ptr;
        w->dead = 1;
        (void)epoll_ctl(s->deaths, EPOLL_CTL_DEL, w->pidfd, NULL);
        w->uses++;
        bury(w);
        serve_owner_drop(s, w);
    }
}

/* ---- Stores and handlers that take too long ------------------------------------------ */

/* Its handler has had its time. A late answer is taken all the same, by its
 * token. */
static void time_out(struct serve_open *o)
{
    int asked;

    serve_open_leave(o);
    o->state = SERVE_ENDS;
    o->woken = 0;
    if (o->attempt != NULL)
        asked = once_give_up_start(o->attempt, ONCE_REASON_TIMEOUT,
                                   serve_call_done, o) == ONCE_OK;
    else
        asked =
            once_exchange_broken(o->x, 504, serve_wake, o) == ONCE_HTTP_WAIT;
    if (!asked)
        serve_open_free(o);
}

/* Its caller is answered in any case: a store that stands still may hold its claim
 * for as long as it likes. */
static void answer_late(struct serve_open *o)
{
    struct serve_call *k = o->call;

    serve_due_remove(o);
    if (o->woken)
        return;
    o->late = 1;
    if (k == NULL)
        return;
    o->call = NULL;
    k->open = NULL;
    k->late = 1;
    serve_go_on(k);
}

void serve_open_turn(struct serve *s)
{
    uint64_t now = once__steady_ms();

    while (s->n_due > 0 && s->due[0]->until_ms <= now)
        (s->due[0]->state == SERVE_CLAIMS ? answer_late : time_out)(s->due[0]);
    serve_gone_turn(s);
}

/* ---- The end ---------------------------------------------------------------- */

static int is_granted(const struct serve_open *o)
{
    if (o->state != SERVE_CLAIMS)
        return 0;
    return o->attempt != NULL ? o->rc == ONCE_OWNER
                              : once_exchange_step(o->x) == ONCE_HTTP_RUN;
}

void serve_go_on_alone(struct serve_open *o)
{
    int granted = is_granted(o);

    if (granted && !o->abandoned && !o->owner->dead) {
        serve_open_run(o);
        return;
    }
    if (granted)
        serve_open_release(o);
    serve_open_free(o);
}

/* The eventfd is read before the list is taken. An exchange that enters the list later
 * writes to the eventfd again, and ends the next poll(). */
void serve_answer_woken(struct serve *s)
{
    uint64_t wakes;
    ssize_t n = read(s->wake_fd, &wakes, sizeof(wakes));
    struct serve_wake *w = atomic_exchange(&s->woken, NULL), *next;
    struct serve_open *o;

    (void)n;
    for (; w != NULL; w = next) {
        next = w->next;
        o = (struct serve_open *)w;
        o->woken = 1;
        if (o->call != NULL)
            serve_go_on(o->call);
        else
            serve_go_on_alone(o);
    }
}

static void cancel(const void *node, VISIT order, int depth)
{
    struct serve_open *o = *(struct serve_open *const *)node;

    (void)depth;
    if ((order == postorder || order == leaf) && o->state == SERVE_CLAIMS)
        serve_open_stop(o);
}

void serve_open_cancel(struct serve *s)
{
    twalk(s->ids, cancel);
}
