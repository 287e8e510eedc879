/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads of ours inside another program, and how they wait. */
#ifndef ONCE_BASE_THREAD_H
#define ONCE_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/*
 * Starts `run(user)` on a thread on which no signal of the program arrives, but
 * for those that a fault of ours raises. `name`, for debuggers, may be NULL. 0,
 * or an errno: there is no thread then.
 */
int once__thread_start(pthread_t *out, const char *name, void *(*run)(void *),
                       void *user);

/* A condition for once__cond_until(). */
static inline void once__cond_init(pthread_cond_t *c)
{
    pthread_condattr_t steady;

    (void)pthread_condattr_init(&steady);
    (void)pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    (void)pthread_cond_init(c, &steady);
    (void)pthread_condattr_destroy(&steady);
}

/* Waits for it, until a time of once__steady_ms(). */
static inline void once__cond_until(pthread_cond_t *c, pthread_mutex_t *lock,
                                    uint64_t ms)
{
    const struct timespec t = {(time_t)(ms / 1000),
                               (long)(ms % 1000) * 1000000};

    (void)pthread_cond_timedwait(c, lock, &t);
}

#endif /* ONCE_BASE_THREAD_H */
