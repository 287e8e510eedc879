/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tender.c - a thread that moves on sagas whose deadline has passed, and those
 * whose call has ended in a relay that died before it moved them on. A database
 * that is away is the workers' to report.
 */
#include "relay/route.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "relay/base.h"
#include "relay/batch.h"

enum { PAUSE_MS = 1000, SAY_MS = 60000 };

struct once__tender {
    struct once__relay *r;
    struct once__base *base;
    pthread_t thread;
    uint64_t said_ms; /* when an error was last said */
};

static void tend(struct once__tender *t)
{
    struct once__saga_tally tally = {0, 0, 0, 0};
    once_error err = {0, ""};
    int rc;

    if (once__base_connect(t->base, NULL) != ONCE_OK)
        return;
    rc = once__base_answered(
        t->base, once__saga_due(once__base_ask(t->base), &tally, &err));
    once__relay_tell(t->r, &tally);
    if (rc == ONCE_OK)
        return;
    once__base_rollback(t->base);
    if (rc != ONCE_EABORTED &&
        (t->said_ms == 0 || once__relay_ms() - t->said_ms >= SAY_MS)) {
        t->said_ms = once__relay_ms();
        once__relay_say(t->r, "sagas: %s", err.text);
    }
}

static void *work(void *user)
{
    struct once__tender *t = user;

    while (!atomic_load(&t->r->stop)) {
        tend(t);
        once__relay_pause(t->r, PAUSE_MS);
    }
    return NULL;
}

int once__tender_start(struct once__relay *r, struct once__tender **out,
                       once_error *err)
{
    struct once__tender *t = calloc(1, sizeof(*t));
    int rc, failed;

    *out = NULL;
    if (t == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    t->r = r;
    rc = once__base_open(r->from, ONCE__BASE_READY, &t->base, err);
    failed = rc == ONCE_OK ? pthread_create(&t->thread, NULL, work, t) : 0;
    if (failed != 0)
        rc = once__fail(err, ONCE_ENOMEM, "a thread: %s", strerror(failed));
    if (rc != ONCE_OK) {
        once__base_close(t->base);
        free(t);
        return rc;
    }
    *out = t;
    return ONCE_OK;
}

void once__tender_join(struct once__tender *t)
{
    if (t != NULL)
        (void)pthread_join(t->thread, NULL);
}

void once__tender_close(struct once__tender *t)
{
    if (t == NULL)
        return;
    once__base_close(t->base);
    free(t);
}

struct once__base *once__tender_base(const struct once__tender *t)
{
    return t->base;
}
