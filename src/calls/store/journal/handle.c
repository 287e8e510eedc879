/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.c - what one user of a journal has for itself: descriptors, mappings,
 * buffers.
 */
#include "calls/store/journal/handle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

void once__handle_init(struct once__journal *j)
{
    memset(j, 0, sizeof(*j));
    j->folder = j->lock_fd = j->memory = -1;
}

int once__handle_share(const struct once__journal *from,
                       struct once__journal *out, once_error *err)
{
    once__handle_init(out);
    out->busy_ms = from->busy_ms;
    out->segment_max = from->segment_max;
    out->self = from->self;
    out->home = from->home;
    out->pids = from->pids;
    out->path = strdup(from->path);
    if (out->path == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    out->folder = openat(from->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out->folder < 0)
        return once__fail(err, ONCE_EOPEN, "%s: %s", from->path,
                          strerror(errno));
    return once__shared_share(from, out, err);
}

void once__handle_close(struct once__journal *j)
{
    once__segment_close_all(j);
    once__shared_detach(j);
    if (j->lock_fd >= 0)
        (void)close(j->lock_fd);
    if (j->folder >= 0)
        (void)close(j->folder);
    j->lock_fd = j->folder = -1;
    free(j->recent);
    free(j->buffer);
    free(j->path);
    j->recent = NULL;
    j->buffer = NULL;
    j->path = NULL;
}
