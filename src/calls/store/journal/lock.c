/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.c - the lock for deciding and appending, and the repair of what a
 * dead holder of it left.
 *
 * Shared memory is *broken* when a holder of the lock died, or could not write
 * what the index knows already: the next to take the lock undoes what was not
 * written. That is soon done, however much the store holds. One that cannot,
 * because it has no descriptor or memory left, gets no answer itself and leaves
 * the repair to the next one. Only what cannot be undone is rebuilt from the
 * log.
 *
 *                  a holder dies, or           undone (undo.c),
 *           whole ---------------> broken ------------------------> whole
 *                  cannot write      |                         ^
 *                                    | cannot be              | to its end
 *                                    `---------> building -----'
 *                                                from the log (recover.c)
 */
#include "calls/store/journal/handle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/must.h"

enum { BUFFER_KEEP = 4 << 20 }; /* a larger one is given back after the batch */

/* What was not written is undone, and the log goes on from its tail. What
 * lies behind that was never acknowledged and never read. */
static int repair(struct once__journal *j, once_error *err)
{
    int code;

    if (!once__shared_view(j))
        code = once__fail(err, ONCE_ENOMEM, "%s: no memory", j->path);
    else if (once__undo_apply(j))
        code = once__recover_undone(j, err);
    else
        code = once__recover_locked(j, err);
    if (code == ONCE_OK)
        j->shared->broken = 0;
    else if (code == ONCE_EFULL)
        (void)once__fail(err, ONCE_ESTORE, "%s: repairing it: %s", j->path,
                         strerror(ENOSPC));
    else if (err != NULL)
        err->code = ONCE_ESTORE;
    return code;
}

/* Positions that were cut off may be given away again. */
static void forget_recent(struct once__journal *j)
{
    free(j->recent);
    j->recent = NULL;
    j->recent_generation = j->shared->generation;
}

int once__journal_lock(struct once__journal *j, once_error *err)
{
    struct once__shared *s = j->shared;
    int rc = once__shared_lock(&s->lock, j->busy_ms), code = ONCE_OK;

    if (rc != 0 && rc != EOWNERDEAD)
        return once__journal_no_lock(j, rc, err);
    if (rc == EOWNERDEAD) {
        s->broken = 1;
        (void)pthread_mutex_consistent(&s->lock);
    }
    if (once__journal_is_poisoned(j, err))
        code = ONCE_ESTORE;
    else if (s->broken)
        code = repair(j, err);
    if (code == ONCE_OK && !once__shared_view(j))
        code = once__fail(err, ONCE_ESTORE, "%s: no memory for the index",
                          j->path);
    /* Now, when it can be refused, and not when there is something to write. */
    if (code == ONCE_OK && once__segment_file(j, s->last) < 0)
        code = once__fail(err, ONCE_ESTORE, "%s: a segment: %s", j->path,
                          strerror(errno));
    j->start = s->tail;
    j->used = 0;
    if (j->recent_generation != s->generation)
        forget_recent(j);
    if (code == ONCE_OK) {
        ONCE__MUST(!s->broken);
        ONCE__MUST(once__journal_id(s->tail) == s->last);
        return ONCE_OK;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return ONCE_ESTORE;
}

void once__journal_unlock(struct once__journal *j)
{
    /* The index knows of no frame that cannot be read. */
    ONCE__MUST(j->used == 0 || j->shared->broken || j->shared->poisoned);
    if (j->used == 0 && !j->shared->broken)
        once__undo_end(j);
    (void)pthread_mutex_unlock(&j->shared->lock);
    if (j->space > BUFFER_KEEP) {
        free(j->buffer);
        j->buffer = NULL;
        j->space = 0;
    }
}
