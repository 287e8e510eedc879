/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poison.c - what becomes of a journal after a write or a flush has failed.
 *
 *    the failure                          shared memory is   who gets answers
 *    ------------------------------------------------------------------------
 *    a flush, or a write that any other   poisoned           no call, until all
 *    process would fail at as well                           have closed
 *    a write for which this process has   broken             the next to take
 *    no descriptor or memory left                            the lock repairs:
 *                                                            what was not
 *                                                            written is undone
 */
#include "calls/store/journal/handle.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

int once__journal_poison(struct once__journal *j, int number, const char *what,
                         once_error *err)
{
    j->shared->poisoned = (uint32_t)(number == 0 ? EIO : number);
    return once__fail(err, ONCE_ESTORE,
                      "%s: %s failed: %s: no more answers until all have "
                      "closed it",
                      j->path, what, strerror(number));
}

/* What another process may have although this one has not. */
int once__journal_is_local(int number)
{
    return number == EMFILE || number == ENFILE || number == ENOMEM;
}

int once__journal_unwritten(struct once__journal *j, int number,
                            const char *what, once_error *err)
{
    if (!once__journal_is_local(number))
        return once__journal_poison(j, number, what, err);
    j->shared->broken = 1;
    return once__fail(err, ONCE_ESTORE, "%s: %s failed: %s", j->path, what,
                      strerror(number));
}

int once__journal_is_poisoned(struct once__journal *j, once_error *err)
{
    uint32_t number = j->shared->poisoned;

    if (number == 0)
        return 0;
    (void)once__fail(err, ONCE_ESTORE,
                     "%s: an earlier flush or write failed: %s: no more "
                     "answers until all have closed it",
                     j->path, strerror((int)number));
    return 1;
}

int once__journal_no_lock(const struct once__journal *j, int rc,
                          once_error *err)
{
    if (rc == ETIMEDOUT)
        return once__fail(err, ONCE_ESTORE,
                          "%s: others have kept it busy for %u ms", j->path,
                          j->busy_ms);
    return once__fail(err, ONCE_ESTORE, "%s: its lock: %s", j->path,
                      strerror(rc));
}
