/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wake.c - calls that wait for the engine.
 *
 * While the store is asked the connection is suspended. The engine's thread puts
 * what can go on into a list, and the loop resumes it.
 */
#include "programs/serve/serve.h"

/* An exchange is in the list once: nobody asks for it before it went on. */
void serve_wake(void *user)
{
    struct serve_wake *w = user;

    w->next = atomic_load(&w->serve->woken);
    while (!atomic_compare_exchange_weak(&w->serve->woken, &w->next, w))
        ;
}

enum MHD_Result serve_wait(struct serve_call *k)
{
    k->serve->waiting++;
    MHD_suspend_connection(k->c);
    return MHD_YES;
}

void serve_go_on(struct serve_call *k)
{
    k->serve->waiting--;
    MHD_resume_connection(k->c);
}
