/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads of ours inside another program. */
#ifndef ONCE_BASE_THREAD_H
#define ONCE_BASE_THREAD_H

#include <pthread.h>

/*
 * Starts `run(user)` on a thread on which no signal of the program arrives, but
 * for those that a fault of ours raises. `name`, for debuggers, may be NULL. 0,
 * or an errno: there is no thread then.
 */
int once__thread_start(pthread_t *out, const char *name, void *(*run)(void *),
                       void *user);

#endif /* ONCE_BASE_THREAD_H */
