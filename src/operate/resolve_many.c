/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve_many.c - one decision about many records: each by its own fence, one
 * after the other, each with its own lines in the audit log. It stops where it
 * is unknown what the store did, or where nothing can be written down.
 */
#include "operate/operate.h"

#include <string.h>

int once__resolve_batch(once_engine *e, const once__resolution *what,
                        const once__batch_line *lines, size_t n,
                        once__batch_each *each, void *user)
{
    once__resolution one = *what;
    size_t i;
    int rc = ONCE_OK;

    for (i = 0; i < n && rc >= 0; i++) {
        once_error err = {0, ""};
        once_op now;

        memcpy(one.name, lines[i].name, ONCE_NAME_SIZE);
        one.fence = lines[i].fence;
        one.attempt = lines[i].attempt;
        rc = once__resolve(e, &one, &now, &err);
        if (each(user, i, rc, &one, &now.record, &err) != 0 && rc >= 0)
            rc = ONCE_ECLOSED;
        once_op_clear(&now);
    }
    return rc < 0 ? rc : ONCE_OK;
}
