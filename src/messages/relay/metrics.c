/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c - a file beside the one that is replaced, and a rename: a
 * reader sees a whole file. A file that cannot be written later on is left as it
 * is, and the next round tries again: metrics must not stop messages.
 */
#include "messages/relay/metrics.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/must.h"
#include "base/steady.h"
#include "base/thread.h"

struct once__metrics {
    struct once__metrics_options o;
    char *temporary; /* path of the file that is written */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int stop; /* by the lock */
};

/* ---- The text ------------------------------------------------------------ */

static void put_text(void *user, const char *text, size_t size)
{
    (void)fwrite(text, 1, size, user);
}

static int is_seconds(const char *name)
{
    static const char end[] = "_seconds";
    size_t n = strlen(name);

    return n >= sizeof(end) && strcmp(name + n - (sizeof(end) - 1), end) == 0;
}

static void put_family(struct once__metrics_text *w,
                       const struct once__metrics_options *o, size_t i)
{
    once_bytes label;
    uint64_t value;
    size_t k;

    once__metrics_family(w, &o->families[i]);
    for (k = 0; k < o->n_series; k++) {
        struct once__series *s = &o->series[k];

        if (s->label == NULL || i < s->first ||
            (k > 0 && o->families[i].labels[0] == '\0'))
            continue;
        label = (once_bytes){s->label, strlen(s->label)};
        value = atomic_load_explicit(&s->value[i], memory_order_relaxed);
        if (is_seconds(o->families[i].name))
            once__metrics_ms(w, &label, value);
        else
            once__metrics_value(w, &label, value);
    }
}

void once__gauge_since(struct once__series *s, int metric, uint64_t age_ms)
{
    uint64_t now = once__clock_us(CLOCK_REALTIME) / 1000;

    once__gauge(s, metric, age_ms > 0 && age_ms < now ? now - age_ms : 0);
}

/* 0, or errno. */
static int put_file(const struct once__metrics *m)
{
    struct once__metrics_text w = {.put = put_text};
    int failed;
    size_t i;
    FILE *f;

    (void)remove(m->temporary); /* of one who died; and no link is followed */
    f = fopen(m->temporary, "wxe");
    if (f == NULL)
        return errno;
    w.user = f;
    for (i = 0; i < m->o.n; i++)
        put_family(&w, &m->o, i);
    once__metrics_end(&w);
    failed = ferror(f) ? EIO : 0;
    if (fclose(f) != 0)
        failed = errno;
    if (failed == 0 && rename(m->temporary, m->o.path) != 0)
        failed = errno;
    if (failed != 0)
        (void)remove(m->temporary);
    return failed;
}

/* ---- The thread ---------------------------------------------------------- */

/* Waits for the next round; 1: there is none. */
static int wait_round(struct once__metrics *m)
{
    uint64_t until = once__steady_ms() + ONCE__METRICS_MS;
    int stop;

    (void)pthread_mutex_lock(&m->lock);
    while (!m->stop && once__steady_ms() < until)
        once__cond_until(&m->wake, &m->lock, until);
    stop = m->stop;
    (void)pthread_mutex_unlock(&m->lock);
    return stop;
}

static void *work(void *user)
{
    struct once__metrics *m = user;

    do {
        if (m->o.refresh != NULL)
            m->o.refresh(m->o.user);
        (void)put_file(m);
    } while (!wait_round(m));
    return NULL;
}

static void release(struct once__metrics *m)
{
    (void)pthread_cond_destroy(&m->wake);
    (void)pthread_mutex_destroy(&m->lock);
    free(m->temporary);
    free(m);
}

static struct once__metrics *make(const struct once__metrics_options *o)
{
    struct once__metrics *m = calloc(1, sizeof(*m));
    size_t size = strlen(o->path) + sizeof(".new");

    if (m == NULL)
        return NULL;
    m->temporary = malloc(size);
    if (m->temporary == NULL) {
        free(m);
        return NULL;
    }
    (void)snprintf(m->temporary, size, "%s.new", o->path);
    once__cond_init(&m->wake);
    (void)pthread_mutex_init(&m->lock, NULL);
    m->o = *o;
    return m;
}

int once__metrics_start(const struct once__metrics_options *o,
                        struct once__metrics **out, once_error *err)
{
    struct once__metrics *m;
    int failed;

    ONCE__MUST(o->n <= ONCE__METRICS_MAX);
    *out = NULL;
    m = make(o);
    if (m == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    failed = put_file(m);
    if (failed != 0) {
        release(m);
        return once__fail(err, ONCE_EINVAL, "the file for metrics: %s",
                          strerror(failed));
    }
    failed = pthread_create(&m->thread, NULL, work, m);
    if (failed != 0) {
        release(m);
        return once__fail(err, ONCE_ENOMEM, "a thread for metrics: %s",
                          strerror(failed));
    }
    *out = m;
    return ONCE_OK;
}

void once__metrics_stop(struct once__metrics *m)
{
    if (m == NULL)
        return;
    (void)pthread_mutex_lock(&m->lock);
    m->stop = 1;
    (void)pthread_cond_signal(&m->wake);
    (void)pthread_mutex_unlock(&m->lock);
    (void)pthread_join(m->thread, NULL);
    (void)put_file(m);
    release(m);
}
