/* SPDX-License-Identifier: Apache-2.0 */
/*
 * naps.c - requests that wait without holding a thread (see payments.h).
 */
#include <time.h>

#include "payments.h"

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void *naps_run(void *arg)
{
    struct naps *n = arg;

    pthread_mutex_lock(&n->lock);
    while (!n->closing || n->first != NULL) {
        struct nap *one = n->first;

        if (one == NULL) {
            pthread_cond_wait(&n->changed, &n->lock);
        } else if (n->closing || one->due_ms <= now_ms()) {
            n->first = one->next;
            one->cut = n->closing;
            MHD_resume_connection(one->connection);
        } else {
            struct timespec until = {.tv_sec = (time_t)(one->due_ms / 1000),
                                     .tv_nsec =
                                         (long)(one->due_ms % 1000) * 1000000};

            pthread_cond_clockwait(&n->changed, &n->lock, CLOCK_MONOTONIC,
                                   &until);
        }
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

int naps_start(struct naps *n)
{
    return pthread_create(&n->thread, NULL, naps_run, n);
}

void naps_stop(struct naps *n)
{
    pthread_mutex_lock(&n->lock);
    n->closing = true;
    pthread_cond_signal(&n->changed);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
}

enum MHD_Result naps_add(struct naps *n, struct nap *one, uint32_t ms)
{
    enum MHD_Result rc = MHD_NO;
    struct nap **at = &n->first;

    pthread_mutex_lock(&n->lock);
    if (n->closing)
        goto out;
    MHD_suspend_connection(one->connection);
    one->due_ms = now_ms() + ms + 1; /* now_ms() cuts off part of one */
    while (*at != NULL && (*at)->due_ms <= one->due_ms)
        at = &(*at)->next;
    one->next = *at;
    *at = one;
    pthread_cond_signal(&n->changed);
    rc = MHD_YES;
out:
    pthread_mutex_unlock(&n->lock);
    return rc;
}
