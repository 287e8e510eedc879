/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c - a thread that ends questions which the database does not answer:
 * after a minute, since a count of a large table takes its time, and after
 * seconds when the relay is to stop.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "relay/route.h"

enum { ASK_MS = 60000, STOP_MS = 5000, LOOK_S = 1 };

struct once__watch {
    const struct once__relay *r;
    struct once__base *const *bases;
    size_t n;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int over; /* by the lock */
};

/* 1: it is over. */
static int wait_round(struct once__watch *w)
{
    struct timespec until;
    int over;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LOOK_S;
    (void)pthread_mutex_lock(&w->lock);
    if (!w->over)
        (void)pthread_cond_timedwait(&w->wake, &w->lock, &until);
    over = w->over;
    (void)pthread_mutex_unlock(&w->lock);
    return over;
}

static void *work(void *user)
{
    struct once__watch *w = user;
    size_t i;

    while (!wait_round(w))
        for (i = 0; i < w->n; i++)
            once__base_watch(w->bases[i],
                             atomic_load(&w->r->stop) ? STOP_MS : ASK_MS);
    return NULL;
}

static void release(struct once__watch *w)
{
    (void)pthread_cond_destroy(&w->wake);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

int once__watch_start(const struct once__relay *r,
                      struct once__base *const *bases, size_t n,
                      struct once__watch **out, once_error *err)
{
    struct once__watch *w = calloc(1, sizeof(*w));
    pthread_condattr_t attr;
    int failed;

    *out = NULL;
    if (w == NULL || pthread_condattr_init(&attr) != 0) {
        free(w);
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    }
    w->r = r;
    w->bases = bases;
    w->n = n;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    failed = pthread_create(&w->thread, NULL, work, w);
    if (failed != 0) {
        release(w);
        return once__fail(err, ONCE_ENOMEM, "a thread: %s", strerror(failed));
    }
    *out = w;
    return ONCE_OK;
}

void once__watch_end(struct once__watch *w)
{
    if (w == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->over = 1;
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    release(w);
}
