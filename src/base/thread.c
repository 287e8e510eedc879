/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.c - see thread.h. It lies below all who start one: the engine and the
 * helper threads of stores. A new thread inherits the mask of its maker, so
 * that there is no moment in which a signal could find it.
 */
#include "base/thread.h"

#include <signal.h>

int once__thread_start(pthread_t *out, const char *name, void *(*run)(void *),
                       void *user)
{
    sigset_t all, before;
    int rc;

    (void)sigfillset(&all);
    (void)sigdelset(&all, SIGILL);
    (void)sigdelset(&all, SIGFPE);
    (void)sigdelset(&all, SIGSEGV);
    (void)sigdelset(&all, SIGBUS);
    rc = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (rc != 0)
        return rc;
    rc = pthread_create(out, NULL, run, user);
    if (rc == 0 && name != NULL)
        (void)pthread_setname_np(*out, name);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
