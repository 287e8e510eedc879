/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c - a thread that ends questions which the database does not answer:
 * after a minute, since a count of a large table takes its time, and after
 * seconds when all is to stop.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/steady.h"
#include "base/thread.h"
#include "messages/relay/watch.h"

enum { ASK_MS = 60000, STOP_MS = 5000, LOOK_MS = 1000 };

struct once__watch {
    const _Atomic int *stop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* By the lock. */
    struct once__base **bases;
    size_t n;
    int over;
};

static void *work(void *user)
{
    struct once__watch *w = user;
    size_t i;

    (void)pthread_mutex_lock(&w->lock);
    while (!w->over) {
        once__cond_until(&w->wake, &w->lock, once__steady_ms() + LOOK_MS);
        for (i = 0; i < w->n; i++)
            once__base_watch(w->bases[i],
                             atomic_load(w->stop) ? STOP_MS : ASK_MS);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void release(struct once__watch *w)
{
    (void)pthread_cond_destroy(&w->wake);
    (void)pthread_mutex_destroy(&w->lock);
    free(w->bases);
    free(w);
}

int once__watch_start(const _Atomic int *stop, struct once__watch **out,
                      once_error *err)
{
    struct once__watch *w = calloc(1, sizeof(*w));
    int failed;

    *out = NULL;
    if (w == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    w->stop = stop;
    (void)pthread_mutex_init(&w->lock, NULL);
    once__cond_init(&w->wake);
    failed = pthread_create(&w->thread, NULL, work, w);
    if (failed != 0) {
        release(w);
        return once__fail(err, ONCE_ENOMEM, "a thread: %s", strerror(failed));
    }
    *out = w;
    return ONCE_OK;
}

int once__watch_add(struct once__watch *w, struct once__base *b,
                    once_error *err)
{
    struct once__base **more;

    (void)pthread_mutex_lock(&w->lock);
    more = realloc(w->bases, (w->n + 1) * sizeof(*more));
    if (more != NULL) {
        w->bases = more;
        w->bases[w->n++] = b;
    }
    (void)pthread_mutex_unlock(&w->lock);
    return more != NULL ? ONCE_OK
                        : once__fail(err, ONCE_ENOMEM, "out of memory");
}

void once__watch_remove(struct once__watch *w, const struct once__base *b)
{
    size_t i;

    if (w == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    for (i = 0; i < w->n; i++)
        if (w->bases[i] == b)
            w->bases[i--] = w->bases[--w->n];
    (void)pthread_mutex_unlock(&w->lock);
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
