/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gap.c - what is not in a store that was restored from a copy.
 *
 *        copy made          restored            until here
 *    -------+------------------+-------------------+------->
 *           |  recorded since: |  absent keys are  |
 *           |  not in the copy |  held or accepted |
 *
 * A key that is absent may have been used after the copy was made. Until the
 * longest retention is over that is not known. With ONCE_GAP_HOLD nothing is
 * granted in that time: a claim is asked as a READ, and an absent key is
 * unknown. With ONCE_GAP_ACCEPT it is granted, and the store is not durable
 * (store/open.c says so).
 *
 * Nothing is written for a key that is refused, so nothing has to be cleaned up.
 */

#include "calls/engine/engine.h"
#include "calls/store/store.h"

/* By the host's clock, and by what has certainly passed of the store's: a clock
 * that was set ahead must not end it. While that is not known (forget_ms 0) the
 * gap goes on. */
int once__gap_runs(const once_engine *e)
{
    const once_store_head *head = &e->store->head;
    uint64_t now_ms;

    if (head->gap == ONCE_GAP_NONE)
        return 0;
    now_ms = e->options.clock != NULL ? e->options.clock(e->options.user)
                                      : once__wall_clock(NULL);
    return now_ms < head->gap_until_ms ||
           (e->store->ops->time != NULL &&
            e->store->forget_ms < head->gap_until_ms);
}

int once__gap_holds(const once_engine *e)
{
    return e->store->head.gap == ONCE_GAP_HOLD && once__gap_runs(e);
}

/* A failure that may be tried again may have been, with another end. */
int once__gap_answer(int rc, const once_record *r)
{
    if (rc == ONCE_FREE)
        return ONCE_UNKNOWN;
    if (rc == ONCE_REPLAY && r->kind == ONCE_FAILURE &&
        (r->policy & ONCE_RETRY_FAILED) != 0)
        return ONCE_UNKNOWN;
    return rc;
}
