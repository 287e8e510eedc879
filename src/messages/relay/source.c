/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.c - what a sender does with its connection to the database besides
 * settling: claims rows, sleeps where there are none, and looks what is left.
 */
#include "messages/relay/sender.h"

#include "messages/tables/outbox.h"

enum {
    EMPTY_MS = 1000,   /* nothing to do for so long: sleep until woken */
    ASLEEP_MS = 10000, /* then it is said again; see outbox_idle_1() */
    POLL_FIRST_MS = 5,
    POLL_MOST_MS = 10,
    LOOK_MS = 200, /* between two looks at what is left, at least */
    LOOK_MOST_MS = 10000
};

#define BYTES_MOST ((size_t)32 << 20) /* of the bodies of one batch, about */

/* ---- The database -------------------------------------------------------- */

int once__source_there(struct once__sender *w)
{
    once_error err = {0, ""};

    if (once__base_connect(w->base, &err) == ONCE_OK) {
        w->base_failures = 0;
        return 1;
    }
    w->base_failures++;
    once__sender_say(w, ONCE__SAID_BASE, "the database: %s", err.text);
    return 0;
}

/* Drained: rows of routes that no relay has ever had are left, too. A route that
 * had one may have it again, by the next line of a crontab. */
static int count_strays(struct once__sender *w, uint64_t *ended,
                        once_error *err)
{
    struct once__stray strays[ONCE__STRAYS_MAX];
    size_t n = 0, i;
    int rc = ONCE__ASK(w->base, once__outbox_strays, 0, strays, &n, err);

    for (i = 0; rc == ONCE_OK && i < n; i++) {
        if (strays[i].seen_ms >= 0 ||
            once__relay_route(w->r, strays[i].route) != NULL)
            continue;
        once__relay_stray(w->r, &strays[i]);
        *ended += strays[i].rows;
    }
    return rc;
}

/* What is left, if nothing is open. By `look`. */
static int look_for_open(struct once__sender *w, uint64_t *open,
                         uint64_t *ended, once_error *err)
{
    struct once__saga_tally tally = {0};
    /* First: what it moves on is a row. */
    int rc = ONCE__ASK(w->base, once__saga_due, &tally, err);

    if (rc == ONCE_OK)
        rc = ONCE__ASK(w->base, once__relay_count, w->r, open, ended, err);
    if (rc == ONCE_OK && *open == 0)
        rc = count_strays(w, ended, err);
    once__relay_tell(w->r, &tally);
    return rc;
}

/* One worker at a time looks, and it rests ten times as long as it has looked, since
 * many rows take long to be counted. But a look may also have waited for a lock, which
 * says nothing of the next one. */
void once__source_look(struct once__sender *w)
{
    struct once__relay *r = w->r;
    uint64_t now = once__relay_ms(), open = 1, ended = 0, took;
    unsigned long long moved = atomic_load(&r->moved);
    once_error err = {0, ""};

    if (!r->drain || pthread_mutex_trylock(&r->look) != 0)
        return;
    if (now >= r->look_ms && once__source_there(w)) {
        if (look_for_open(w, &open, &ended, &err) != ONCE_OK) {
            once__sender_failed(w, ONCE__SAID_BASE, "counting", &err);
        } else if (open == 0 && atomic_load(&r->moving) == moved) {
            atomic_store(&r->left, ended > 0);
            once__relay_stop(r);
        }
        took = once__relay_ms() - now;
        r->look_ms = once__relay_ms() +
                     once__sender_rest_ms(took, LOOK_MS, LOOK_MOST_MS);
    }
    (void)pthread_mutex_unlock(&r->look);
}

/* ---- Nothing to do ------------------------------------------------------- */

static int sleep_until_woken(struct once__sender *w, once_error *err)
{
    uint64_t now = once__relay_ms();
    int rc;

    if (w->idle && now - w->idle_ms < ASLEEP_MS)
        return ONCE__ASK(w->base, once__outbox_wait, w->route->o.name,
                         w->r->stop_fd, EMPTY_MS, err);
    rc = ONCE__ASK(w->base, once__outbox_idle, w->route->o.name, 1, err);
    w->idle = rc == ONCE_OK;
    w->idle_ms = now;
    return rc;
}

/* A relay that is busy now and then polls; one that has had nothing to do for
 * a second asks to be woken, and then looks once more before it sleeps. */
void once__source_rest(struct once__sender *w)
{
    once_error err = {0, ""};
    uint64_t now = once__relay_ms();

    if (w->empty_ms == 0) {
        w->empty_ms = now;
        w->poll_ms = POLL_FIRST_MS;
    }
    if (now - w->empty_ms < EMPTY_MS) {
        once__relay_pause(w->r, w->poll_ms);
        w->poll_ms =
            w->poll_ms * 2 < POLL_MOST_MS ? w->poll_ms * 2 : POLL_MOST_MS;
    } else if (sleep_until_woken(w, &err) != ONCE_OK) {
        once__sender_failed(w, ONCE__SAID_BASE, "waiting", &err);
        once__sender_pause(w, w->base_failures, ONCE__SENDER_BASE_MS);
    }
}

void once__source_awake(struct once__sender *w)
{
    once_error err = {0, ""};

    w->empty_ms = 0;
    if (!w->idle)
        return;
    w->idle = 0;
    if (ONCE__ASK(w->base, once__outbox_idle, w->route->o.name, 0, &err) !=
        ONCE_OK)
        once__sender_failed(w, ONCE__SAID_BASE, "waking", &err);
}

/* ---- Rows ----------------------------------------------------------------- */

/* Large bodies make small batches. */
static void resize(struct once__sender *w,
                   const struct once__outgoing_list *list)
{
    size_t bytes = 0, i;

    for (i = 0; i < list->n; i++)
        bytes += list->rows[i].m.body.size;
    if (bytes > BYTES_MOST)
        w->batch = w->batch > 1 ? w->batch / 2 : 1;
    else if (list->n == w->batch && bytes < BYTES_MOST / 4)
        w->batch = w->batch * 8;
    if (w->batch > w->route->o.batch)
        w->batch = w->route->o.batch;
}

int once__source_claim(struct once__sender *w, size_t n,
                       struct once__outgoing_list *out, uint64_t *claimed_ms)
{
    const struct once__outbox_ask ask = {
        .route = w->route->o.name,
        .n = n,
        .lease_ms = w->r->lease_ms,
        .hold = w->route->hold,
        .pass = w->route->o.pass != 0,
        .each = w->route->ops->at_once,
    };
    once_error err = {0, ""};

    *claimed_ms = once__relay_ms();
    if (ONCE__ASK(w->base, once__outbox_claim, &ask, out, &err) != ONCE_OK) {
        once__sender_failed(w, ONCE__SAID_BASE, "claiming", &err);
        return -1;
    }
    if (out->n == 0)
        return 0;
    /* Some of it may come back and be free again. */
    atomic_store(&w->route->empty_ms, 0);
    once__sender_count(w, ONCE__ROUTE_CLAIMED, out->n);
    once__source_awake(w);
    if (n == w->batch)
        resize(w, out);
    return 1;
}
