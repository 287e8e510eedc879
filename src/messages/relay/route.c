/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.c - one worker of a route, with a connection to the database, one to
 * the target, and a circuit of its own:
 *
 *      +--> target there? --> database there? --> claim --> send --> settle --+
 *      |        |                  |                |                         |
 *      |        v                  v                v nothing                 |
 *      |      pause              pause            sleep until a program emits |
 *      +--------+------------------+----------------+-------------------------+
 *
 * The target comes first: what is claimed while it is away would only be given
 * back. After a failure the circuit is open: the next batch has one row, until
 * the target has answered again.
 */
#include "messages/relay/sender.h"

#include <stdlib.h>

#include "base/error.h"
#include "messages/tables/outbox.h"

enum {
    EMPTY_MS = 1000,   /* nothing to do for so long: sleep until woken */
    ASLEEP_MS = 10000, /* then it is said again; see outbox_idle_1() */
    POLL_FIRST_MS = 5,
    POLL_MOST_MS = 10,
    LOOK_MS = 200, /* between two looks at what is left */
    SAY_MS = 60000 /* between two openings of a circuit that are said */
};

#define BYTES_MOST ((size_t)32 << 20) /* of the bodies of one batch, about */

/* ---- The circuit --------------------------------------------------------- */

static void circuit_open(struct once__sender *w, int unreached, const char *why)
{
    uint64_t now = once__relay_ms();

    w->failures++;
    w->unreached = unreached;
    if (w->open)
        return;
    w->open = 1;
    once__sender_count(w, ONCE__ROUTE_CIRCUIT, 1);
    if (w->opened_ms != 0 && now - w->opened_ms < SAY_MS)
        return;
    w->opened_ms = now;
    w->open_said = 1;
    once__relay_say(w->r, "route %s: the target %s: %s", w->route->o.name,
                    unreached ? "is away" : "does not answer", why);
}

static void circuit_end(struct once__sender *w)
{
    w->failures = 0;
    w->unreached = 0;
    if (w->open)
        once__sender_count(w, ONCE__ROUTE_CIRCUIT, (uint64_t)-1);
    w->open = 0;
}

static void circuit_close(struct once__sender *w)
{
    circuit_end(w);
    if (w->open_said)
        once__relay_say(w->r, "route %s: the target is back", w->route->o.name);
    w->open_said = 0;
}

static int target_there(struct once__sender *w)
{
    struct once__broker *b = w->broker;
    once_error err = {0, ""};

    if (b->ops->connect(b, &err) == ONCE_OK) {
        if (w->unreached)
            circuit_close(w);
        return 1;
    }
    circuit_open(w, 1, err.text);
    return 0;
}

/* 1: the target is in trouble. 0: it has answered, be it that it failed over
 * this row. -1: it was not asked. */
static int is_trouble(const struct once__item *item)
{
    switch (item->end) {
    case ONCE__END_UNSENT:
        return -1;
    case ONCE__END_AWAY:
        return 1;
    case ONCE__END_SILENT: /* 502 to 504 come from what stands before it */
        return item->status == 0 ||
               (item->status >= 502 && item->status <= 504);
    default:
        return 0;
    }
}

/* No row of a batch could be sent, since this host has no memory or descriptor
 * left, or the connection goes as soon as it stands. */
static void wait_to_send(struct once__sender *w, const char *why)
{
    if (atomic_load(&w->r->stop))
        return;
    w->failures++;
    if (why != NULL)
        once__sender_say(w, ONCE__SAID_BROKER, "nothing can be sent: %s", why);
}

/* What the ends of a batch say about the target. */
static void judge(struct once__sender *w, const struct once__batch *b)
{
    const struct once__item *failed = NULL;
    const char *why = NULL;
    size_t i;

    for (i = 0; i < b->list->n; i++) {
        int trouble = is_trouble(&b->items[i]);

        if (trouble == 0) {
            circuit_close(w);
            return;
        }
        if (trouble > 0)
            failed = &b->items[i];
        else if (b->items[i].why != NULL)
            why = b->items[i].why;
    }
    if (failed != NULL)
        circuit_open(w, 0, failed->why != NULL ? failed->why : "no proof came");
    else
        wait_to_send(w, why);
}

/* ---- The database -------------------------------------------------------- */

static int base_there(struct once__sender *w)
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
    struct once__saga_tally tally = {0, 0, 0, 0};
    /* First: what it moves on is a row. */
    int rc = ONCE__ASK(w->base, once__saga_due, &tally, err);

    if (rc == ONCE_OK)
        rc = ONCE__ASK(w->base, once__relay_count, w->r, open, ended, err);
    if (rc == ONCE_OK && *open == 0)
        rc = count_strays(w, ended, err);
    once__relay_tell(w->r, &tally);
    return rc;
}

/* With `drain`: is anything left? One worker at a time looks, and it rests ten
 * times as long as it has looked: many rows take long to be counted. */
static void look_what_is_left(struct once__sender *w)
{
    struct once__relay *r = w->r;
    uint64_t now = once__relay_ms(), open = 1, ended = 0, took;
    once_error err = {0, ""};

    if (!r->drain || pthread_mutex_trylock(&r->look) != 0)
        return;
    if (now >= r->look_ms && base_there(w)) {
        if (look_for_open(w, &open, &ended, &err) != ONCE_OK) {
            once__sender_failed(w, ONCE__SAID_BASE, "counting", &err);
        } else if (open == 0) {
            atomic_store(&r->left, ended > 0);
            once__relay_stop(r);
        }
        took = once__relay_ms() - now;
        r->look_ms =
            once__relay_ms() + (took > LOOK_MS / 10 ? 10 * took : LOOK_MS);
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
static void rest(struct once__sender *w)
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

static void be_awake(struct once__sender *w)
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

/* ---- One round ----------------------------------------------------------- */

static int is_stopped(void *user)
{
    struct once__relay *r = user;

    return atomic_load(&r->stop);
}

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
        w->batch = w->batch * 2;
    if (w->batch > w->route->o.batch)
        w->batch = w->route->o.batch;
}

static void carry(struct once__sender *w,
                  const struct once__outgoing_list *list, uint64_t claimed_ms)
{
    struct once__batch b = {
        .broker = w->broker,
        .list = list,
        .timeout_ms = w->route->o.timeout_ms,
        .until_ms = claimed_ms + w->r->lease_ms,
        .horizon_ms = w->route->horizon_ms,
        .stop = is_stopped,
        .user = w->r,
        .tag = w->tag,
    };
    once_error err = {0, ""};

    if (once__relay_batch_run(&b, &err) == ONCE_OK) {
        w->tag = b.tag;
        once__sender_count(w, ONCE__ROUTE_SENT, b.sent);
        judge(w, &b);
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
    const struct once__outbox_ask ask = {
        .route = w->route->o.name,
        .n = w->open ? 1 : n,
        .lease_ms = w->r->lease_ms,
        .hold = w->route->hold,
        .pass = w->route->o.pass != 0,
        .each = w->route->ops->at_once,
    };
    struct once__outgoing_list list = {NULL, 0, 0, 0, NULL};
    uint64_t now = once__relay_ms();
    once_error err = {0, ""};
    int rc, some;

    rc = ONCE__ASK(w->base, once__outbox_claim, &ask, &list, &err);
    if (rc != ONCE_OK) {
        once__sender_failed(w, ONCE__SAID_BASE, "claiming", &err);
        return -1;
    }
    some = list.n > 0;
    if (!some) {
        atomic_store(&w->route->empty_ms, now);
    } else {
        once__sender_count(w, ONCE__ROUTE_CLAIMED, list.n);
        be_awake(w);
        if (!w->open && !w->leads)
            resize(w, &list);
        carry_claim(w, &list, now);
    }
    once__outgoing_clear(&list);
    return some;
}

static void stop_leading(struct once__sender *w)
{
    if (w->leads)
        once__claims_leave(&w->route->claims);
    w->leads = 0;
}

/* As claim(), of a route whose workers claim for each other. */
static int claim_or_take(struct once__sender *w)
{
    struct once__part *part;
    size_t n;

    part = once__claims_wait(&w->route->claims, w->leads, &n);
    if (part == NULL) {
        w->leads = 1;
        return base_there(w) && !atomic_load(&w->r->stop) ? claim(w, n) : -1;
    }
    carry(w, &part->list, part->claimed_ms);
    once__part_end(part);
    return 1;
}

static int take_rows(struct once__sender *w)
{
    if (w->route->shares)
        return claim_or_take(w);
    return base_there(w) ? claim(w, w->batch) : -1;
}

static void round_of(struct once__sender *w)
{
    int some;

    if (!target_there(w)) {
        stop_leading(w);
        look_what_is_left(w);
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
        look_what_is_left(w);
        rest(w);
    } else if (w->failures > 0) {
        once__sender_pause(w, w->failures, ONCE__SENDER_MOST_MS);
    }
}

void *once__sender_run(void *worker)
{
    struct once__sender *w = worker;

    while (!atomic_load(&w->r->stop))
        round_of(w);
    stop_leading(w);
    if (w->idle)
        be_awake(w);
    circuit_end(w);
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
    rc = once__base_open(r->from, ONCE__BASE_READY, &w->base, err);
    return rc == ONCE_OK ? route->ops->open(route->o.url, &o, &w->broker, err)
                         : rc;
}

void once__sender_close(struct once__sender *w)
{
    if (w == NULL)
        return;
    if (w->broker != NULL)
        w->route->ops->close(w->broker);
    once__base_close(w->base);
    free(w);
}

struct once__base *once__sender_base(const struct once__sender *w)
{
    return w->base;
}
