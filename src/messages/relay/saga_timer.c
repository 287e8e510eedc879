/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saga_timer.c - a thread that moves on sagas whose deadline has passed, and
 * those whose call has ended in a relay that died before it moved them on. It
 * also says in the database that our routes have a relay, and in the log which
 * routes have rows and none. A database that is away is the workers' to report.
 */
#include "messages/relay/route.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "messages/tables/outbox.h"
#include "messages/relay/base.h"
#include "messages/relay/send_batch.h"

enum {
    PAUSE_MS = 1000,
    HERE_MS = 10000,
    SAY_MS = 60000,
    HELD_MOST =
        100000, /* transactions: a claim reads past what each has left */
    HELD_SAY_MS = 600000
};

struct once__saga_timer {
    struct once__relay *r;
    struct once__base *base;
    pthread_t thread;
    uint64_t said_ms; /* when an error was last said */
    uint64_t here_ms; /* when it was said last that we are here; 0: never */
    struct once__stray strays[ONCE__STRAYS_MAX]; /* that were said */
    size_t n_strays;
    uint64_t held_ms; /* when an old snapshot was last said; 0: never */
};

static int said_before(const struct once__saga_timer *t,
                       const struct once__stray *stray)
{
    size_t i;

    for (i = 0; i < t->n_strays; i++)
        if (strcmp(t->strays[i].route, stray->route) == 0)
            return 1;
    return 0;
}

/* Each route that has lost its relay, or never had one, is said once. */
static int look_for_strays(struct once__saga_timer *t, once_error *err)
{
    struct once__stray now[ONCE__STRAYS_MAX];
    size_t n = 0, i;
    int rc =
        ONCE__ASK(t->base, once__outbox_strays, ONCE__STRAY_MS, now, &n, err);

    if (rc != ONCE_OK)
        return rc;
    for (i = 0; i < n; i++)
        if (!said_before(t, &now[i]))
            once__relay_stray(t->r, &now[i]);
    memcpy(t->strays, now, n * sizeof(now[0]));
    t->n_strays = n;
    return ONCE_OK;
}

static int look_for_held(struct once__saga_timer *t, once_error *err)
{
    uint64_t age = 0, now = once__relay_ms();
    int rc = ONCE__ASK(t->base, once__outbox_held, &age, err);

    if (rc != ONCE_OK || age < HELD_MOST ||
        (t->held_ms != 0 && now - t->held_ms < HELD_SAY_MS))
        return rc;
    t->held_ms = now;
    once__relay_say(t->r,
                    "a snapshot of %llu transactions ago is held, so old rows "
                    "stay, and claims become slower: pg_stat_activity, "
                    "pg_replication_slots, pg_prepared_xacts",
                    (unsigned long long)age);
    return ONCE_OK;
}

static int be_here(struct once__saga_timer *t, once_error *err)
{
    uint64_t now = once__relay_ms();
    int rc = ONCE_OK;
    size_t i;

    if (t->here_ms != 0 && now - t->here_ms < HERE_MS)
        return ONCE_OK;
    t->here_ms = now;
    for (i = 0; i < t->r->n_routes && rc == ONCE_OK; i++)
        rc = ONCE__ASK(t->base, once__outbox_here, t->r->routes[i].o.name, err);
    if (rc == ONCE_OK)
        rc = look_for_strays(t, err);
    return rc == ONCE_OK ? look_for_held(t, err) : rc;
}

static void tend(struct once__saga_timer *t)
{
    struct once__saga_tally tally = {0};
    once_error err = {0, ""};
    int rc;

    if (once__base_connect(t->base, NULL) != ONCE_OK)
        return;
    rc = ONCE__ASK(t->base, once__saga_due, &tally, &err);
    once__relay_tell(t->r, &tally);
    if (rc == ONCE_OK)
        rc = be_here(t, &err);
    if (rc == ONCE_OK)
        return;
    once__base_rollback(t->base);
    if (rc != ONCE_EABORTED &&
        (t->said_ms == 0 || once__relay_ms() - t->said_ms >= SAY_MS)) {
        t->said_ms = once__relay_ms();
        once__relay_say(t->r, "sagas and routes: %s", err.text);
    }
}

static void *work(void *user)
{
    struct once__saga_timer *t = user;

    while (!atomic_load(&t->r->stop)) {
        tend(t);
        once__relay_pause(t->r, PAUSE_MS);
    }
    return NULL;
}

int once__saga_timer_start(struct once__relay *r, struct once__saga_timer **out,
                           once_error *err)
{
    struct once__saga_timer *t = calloc(1, sizeof(*t));
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

void once__saga_timer_join(struct once__saga_timer *t)
{
    if (t != NULL)
        (void)pthread_join(t->thread, NULL);
}

void once__saga_timer_close(struct once__saga_timer *t)
{
    if (t == NULL)
        return;
    once__base_close(t->base);
    free(t);
}

struct once__base *once__saga_timer_base(const struct once__saga_timer *t)
{
    return t->base;
}
