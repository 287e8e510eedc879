/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.c - one worker of a route, with a connection to the database and one to
 * the target:
 *
 *      +--> target there? --> database there? --> claim --> send --> settle --+
 *      |        |                  |                |                         |
 *      |        v                  v                v nothing                 |
 *      |      pause              pause            sleep until a program emits |
 *      +--------+------------------+----------------+-------------------------+
 *
 * The target comes first: what is claimed while it is away would only be given
 * back. This is the whole of it where one row is sent at a time; where many are,
 * pipeline.c does the same with two threads.
 */
#include "messages/relay/sender.h"

#include <stdlib.h>

#include "base/error.h"

/* ---- One round ----------------------------------------------------------- */

static void carry(struct once__sender *w,
                  const struct once__outgoing_list *list, uint64_t claimed_ms)
{
    struct once__batch b = once__sender_batch(w, list, claimed_ms);
    once_error err = {0, ""};

    if (once__batch_begin(&w->wire, &b, &err) == ONCE_OK) {
        while (b.open > 0)
            once__wire_collect(&w->wire);
        once__sender_count(w, ONCE__ROUTE_SENT, b.sent);
        once__target_judge(w, &b);
        once__sender_settle(w, &b, claimed_ms);
    }
    once__batch_clear(&b);
}

static void carry_claim(struct once__sender *w,
                        struct once__outgoing_list *list, uint64_t claimed_ms)
{
    struct once__part *mine = NULL;

    if (w->leads) {
        w->leads = 0;
        mine = once__claims_share(&w->route->claims, list, claimed_ms);
    }
    carry(w, mine != NULL ? &mine->list : list, claimed_ms);
    if (mine != NULL)
        once__part_end(mine);
}

/* Up to `n` rows. 1: there were rows. 0: there are none. -1: the database is
 * away. */
static int claim(struct once__sender *w, size_t n)
{
    struct once__outgoing_list list = {NULL, 0, 0, 0, NULL};
    uint64_t claimed_ms;
    int some = once__source_claim(w, w->open ? 1 : n, &list, &claimed_ms);

    if (some > 0)
        carry_claim(w, &list, claimed_ms);
    else if (some == 0)
        atomic_store(&w->route->empty_ms, claimed_ms);
    once__outgoing_clear(&list);
    return some;
}

static void stop_leading(struct once__sender *w)
{
    if (w->leads)
        once__claims_leave(&w->route->claims);
    w->leads = 0;
}

/* As claim(), of a route whose workers claim for each other. Who takes a part that
 * another worker has claimed settles it with a connection of its own: without one
 * it takes none. */
static int claim_or_take(struct once__sender *w)
{
    struct once__part *part;
    size_t n;

    if (!once__source_there(w))
        return -1;
    part = once__claims_wait(&w->route->claims, w->leads, &n);
    if (part == NULL) {
        w->leads = 1;
        return once__source_there(w) && !atomic_load(&w->r->stop) ? claim(w, n)
                                                                  : -1;
    }
    carry(w, &part->list, part->claimed_ms);
    once__part_end(part);
    return 1;
}

static int take_rows(struct once__sender *w)
{
    if (w->route->shares)
        return claim_or_take(w);
    return once__source_there(w) ? claim(w, w->batch) : -1;
}

static void round_of(struct once__sender *w)
{
    int some;

    if (!once__target_there(w)) {
        stop_leading(w);
        once__source_look(w);
        once__sender_pause(w, w->failures, ONCE__SENDER_MOST_MS);
        return;
    }
    some = take_rows(w);
    if (some < 0) {
        stop_leading(w);
        once__sender_pause(w, w->base_failures, ONCE__SENDER_BASE_MS);
        return;
    }
    if (some == 0) { /* who leads goes on to lead */
        once__source_look(w);
        once__source_rest(w);
    } else if (w->failures > 0) {
        once__sender_pause(w, w->failures, ONCE__SENDER_MOST_MS);
    }
}

void *once__sender_run(void *worker)
{
    struct once__sender *w = worker;

    if (!w->route->ahead || !once__pipeline_run(w))
        while (!atomic_load(&w->r->stop))
            round_of(w);
    stop_leading(w);
    if (w->idle)
        once__source_awake(w);
    once__circuit_end(w);
    return NULL;
}

/* ---- Opening ------------------------------------------------------------- */

static void broker_says(void *worker, const char *text)
{
    once__sender_say(worker, ONCE__SAID_BROKER, "%s", text);
}

int once__sender_open(struct once__relay *r, struct once__route *route,
                      struct once__sender **out, once_error *err)
{
    struct once__sender *w = calloc(1, sizeof(*w));
    struct once__broker_options o = {
        .headers = route->o.headers,
        .ca_file = route->o.ca_file,
        .hold = route->hold,
        .timeout_ms = route->o.timeout_ms,
        .route = route->o.name,
        .check = r->check,
        .log = broker_says,
        .user = w,
    };
    int rc;

    *out = w;
    if (w == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    w->r = r;
    w->route = route;
    w->batch = 1;
    once__desk_init(&w->desk);
    rc = once__base_open(r->from, ONCE__BASE_READY, &w->base, err);
    return rc == ONCE_OK
               ? route->ops->open(route->o.url, &o, &w->wire.broker, err)
               : rc;
}

void once__sender_close(struct once__sender *w)
{
    if (w == NULL)
        return;
    if (w->wire.broker != NULL)
        w->route->ops->close(w->wire.broker);
    once__desk_clear(&w->desk);
    once__base_close(w->base);
    free(w);
}

struct once__base *once__sender_base(const struct once__sender *w)
{
    return w->base;
}

const struct once__route *once__sender_route(const struct once__sender *w)
{
    return w->route;
}
