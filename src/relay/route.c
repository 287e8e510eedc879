/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.c - one worker of a route, with a connection to the database, one to
 * the target, and a circuit of its own:
 *
 *      +--> target there? --> database there? --> claim --> send --> settle --+
 *      |        |                  |                |                         |
 *      |        v                  v                v nothing                 |
 *      |      pause              pause            sleep until somebody emits  |
 *      +--------+------------------+----------------+-------------------------+
 *
 * The target comes first: what is claimed while it is away would only be given
 * back. After a failure the circuit is open: the next batch has one row, until
 * the target has answered again.
 */
#include "relay/route.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "client/client.h"
#include "core/error.h"
#include "message/outbox.h"
#include "relay/base.h"
#include "relay/batch.h"

enum {
    ROW_FIRST_MS = 1000, /* pauses of a row */
    ROW_MOST_MS = 3600000,
    FIRST_MS = 200, /* pauses of a circuit, and without a database */
    MOST_MS = 30000,
    BASE_MOST_MS = 1000,
    EMPTY_MS = 1000, /* nothing to do for so long: sleep until woken */
    POLL_FIRST_MS = 5,
    POLL_MOST_MS = 100,
    LOOK_MS = 200, /* between two looks at what is left */
    SAY_MS = 60000 /* the same line is not said again before */
};

#define BYTES_MOST ((size_t)32 << 20) /* of the bodies of one batch, about */

/* Lines that are not said too often. */
enum said { SAID_BASE, SAID_SETTLE, SAID_FENCED, SAID_BROKER, SAID_KINDS };

struct once__carrier {
    struct once__relay *r;
    struct once__route *route;
    struct once__base *base;
    struct once__broker *broker;
    size_t batch;      /* rows of the next claim */
    uint64_t tag;      /* of the next row that is sent */
    uint32_t failures; /* of the target, in a row */
    int open;          /* the circuit */
    int unreached;     /* ... since it could not be reached */
    int open_said;
    uint64_t opened_ms;     /* when that was last said */
    uint32_t base_failures; /* in a row */
    uint64_t empty_ms;      /* since when there is nothing to do; 0: there is */
    uint32_t poll_ms;
    int idle; /* the outbox was told so */
    struct {
        uint64_t ms;
        char text[80];
    } said[SAID_KINDS];
};

/* ---- Words --------------------------------------------------------------- */

static void ONCE_PRINTF(3, 4)
    say_seldom(struct once__carrier *w, enum said kind, const char *format, ...)
{
    char text[400];
    uint64_t now = once__relay_ms();
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (w->said[kind].ms != 0 && now - w->said[kind].ms < SAY_MS &&
        strncmp(text, w->said[kind].text, sizeof(w->said[kind].text) - 1) == 0)
        return;
    w->said[kind].ms = now;
    (void)snprintf(w->said[kind].text, sizeof(w->said[kind].text), "%.*s",
                   (int)sizeof(w->said[kind].text) - 1, text);
    once__relay_say(w->r, "route %s: %s", w->route->o.name, text);
}

static void count(struct once__carrier *w, int metric, uint64_t n)
{
    once__count(w->route->series, metric, n);
}

static uint64_t jitter(uint64_t most)
{
    uint64_t random = 0;

    return getrandom(&random, sizeof(random), 0) == (ssize_t)sizeof(random)
               ? once__client_jitter(most, random)
               : most;
}

/* ---- The circuit --------------------------------------------------------- */

static void circuit_open(struct once__carrier *w, int unreached,
                         const char *why)
{
    uint64_t now = once__relay_ms();

    w->failures++;
    w->unreached = unreached;
    if (w->open)
        return;
    w->open = 1;
    count(w, ONCE__ROUTE_CIRCUIT, 1);
    if (w->opened_ms != 0 && now - w->opened_ms < SAY_MS)
        return;
    w->opened_ms = now;
    w->open_said = 1;
    once__relay_say(w->r, "route %s: the target %s: %s", w->route->o.name,
                    unreached ? "is away" : "does not answer", why);
}

static void circuit_end(struct once__carrier *w)
{
    w->failures = 0;
    w->unreached = 0;
    if (w->open)
        count(w, ONCE__ROUTE_CIRCUIT, (uint64_t)-1);
    w->open = 0;
}

static void circuit_close(struct once__carrier *w)
{
    circuit_end(w);
    if (w->open_said)
        once__relay_say(w->r, "route %s: the target is back", w->route->o.name);
    w->open_said = 0;
}

static void pause_failed(struct once__carrier *w, uint32_t failures,
                         uint32_t most_ms)
{
    uint64_t ms = once__client_backoff(FIRST_MS, most_ms, failures);

    once__relay_pause(w->r, (uint32_t)(ms / 2 + jitter(ms / 2)));
}

static int target_there(struct once__carrier *w)
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

/* What the ends of a batch say about the target. */
static void judge(struct once__carrier *w, const struct once__batch *b)
{
    const struct once__item *failed = NULL;
    size_t i;

    for (i = 0; i < b->list->n; i++) {
        int trouble = is_trouble(&b->items[i]);

        if (trouble == 0) {
            circuit_close(w);
            return;
        }
        if (trouble > 0)
            failed = &b->items[i];
    }
    if (failed != NULL)
        circuit_open(w, 0, failed->why != NULL ? failed->why : "no proof came");
}

/* ---- The database -------------------------------------------------------- */

static int base_there(struct once__carrier *w)
{
    once_error err = {0, ""};

    if (once__base_connect(w->base, &err) == ONCE_OK) {
        w->base_failures = 0;
        return 1;
    }
    w->base_failures++;
    say_seldom(w, SAID_BASE, "the database: %s", err.text);
    return 0;
}

/* After an error: nobody knows in what state the connection is. */
static void base_failed(struct once__carrier *w, enum said kind,
                        const char *what, const once_error *err)
{
    w->base_failures++;
    w->idle = 0; /* LISTEN went with the connection */
    once__base_rollback(w->base);
    say_seldom(w, kind, "%s: %s", what, err->text);
}

/* With `drain`: is anything left? One worker at a time looks. */
static void look_what_is_left(struct once__carrier *w)
{
    struct once__saga_tally tally = {0, 0, 0, 0};
    struct once__relay *r = w->r;
    uint64_t now = once__relay_ms(), open = 1, ended = 0;
    once_error err = {0, ""};
    int rc;

    if (!r->drain || pthread_mutex_trylock(&r->look) != 0)
        return;
    if (now - r->looked_ms >= LOOK_MS && base_there(w)) {
        r->looked_ms = now;
        /* First: what it moves on is a row. */
        rc = once__base_answered(
            w->base, once__saga_due(once__base_ask(w->base), &tally, &err));
        if (rc == ONCE_OK)
            rc = once__base_answered(
                w->base, once__relay_count(r, once__base_ask(w->base), &open,
                                           &ended, &err));
        if (rc != ONCE_OK) {
            base_failed(w, SAID_BASE, "counting", &err);
        } else if (open == 0) {
            atomic_store(&r->left, ended > 0);
            once__relay_stop(r);
        }
    }
    once__relay_tell(r, &tally);
    (void)pthread_mutex_unlock(&r->look);
}

/* ---- Nothing to do ------------------------------------------------------- */

static int sleep_until_woken(struct once__carrier *w, once_error *err)
{
    const once_tx *tx = once__base_ask(w->base);
    int rc;

    if (w->idle)
        return once__base_answered(
            w->base, once__outbox_wait(tx, w->r->stop_fd, EMPTY_MS, err));
    rc = once__base_answered(w->base,
                             once__outbox_idle(tx, w->route->o.name, 1, err));
    w->idle = rc == ONCE_OK;
    return rc;
}

/* A relay that is busy now and then polls; one that has had nothing to do for
 * a second asks to be woken, and then looks once more before it sleeps. */
static void rest(struct once__carrier *w)
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
        base_failed(w, SAID_BASE, "waiting", &err);
        pause_failed(w, w->base_failures, BASE_MOST_MS);
    }
}

static void be_awake(struct once__carrier *w)
{
    once_error err = {0, ""};

    w->empty_ms = 0;
    if (!w->idle)
        return;
    w->idle = 0;
    if (once__base_answered(w->base, once__outbox_idle(once__base_ask(w->base),
                                                       w->route->o.name, 0,
                                                       &err)) != ONCE_OK)
        base_failed(w, SAID_BASE, "waking", &err);
}

/* ---- Settling ------------------------------------------------------------ */

static void count_end(struct once__carrier *w, int end)
{
    static const int metrics[] = {
        [ONCE__END_TAKEN] = ONCE__ROUTE_TAKEN,
        [ONCE__END_UNSENT] = ONCE__ROUTE_UNSENT,
        [ONCE__END_AWAY] = ONCE__ROUTE_AWAY,
        [ONCE__END_REFUSED] = ONCE__ROUTE_REFUSED,
        [ONCE__END_NACKED] = ONCE__ROUTE_REFUSED,
        [ONCE__END_SILENT] = ONCE__ROUTE_SILENT,
        [ONCE__END_REJECTED] = ONCE__ROUTE_REJECTED,
        [ONCE__END_FAILED] = ONCE__ROUTE_REJECTED,
        [ONCE__END_UNKNOWN] = ONCE__ROUTE_SILENT,
    };

    count(w, metrics[end], 1);
}

static void decide(const struct once__carrier *w,
                   const struct once__outgoing *row,
                   const struct once__item *item, uint64_t now_ms,
                   struct once__settlement *out)
{
    int insists = once__saga_insists(row);
    const struct once__row_policy policy = {
        .attempts = insists ? UINT32_MAX : w->route->o.attempts,
        .unknowns = insists ? w->route->o.attempts : 0,
        .hold = w->route->hold,
        .horizon_ms = w->route->horizon_ms,
        .first_ms = ROW_FIRST_MS,
        .most_ms = ROW_MOST_MS,
    };

    out->seq = row->seq;
    out->attempts = row->attempts;
    out->to =
        once__row_settle(&row->row, item->end, &policy, now_ms, item->retry_ms);
    if (out->to.wait_ms > item->retry_ms)
        out->to.wait_ms =
            item->retry_ms + jitter(out->to.wait_ms - item->retry_ms);
    /* A row that was not sent keeps what its last attempt has left. */
    out->status = item->end == ONCE__END_UNSENT ? row->status : item->status;
    out->error = item->end == ONCE__END_UNSENT ? row->error : item->why;
    if (out->error == NULL)
        out->error = "";
    out->reply = item->reply;
}

static void report(struct once__carrier *w, const struct once__settlement *row)
{
    const char *what = NULL;

    if (row->to.phase == ONCE__ROW_DEAD) {
        count(w, ONCE__ROUTE_DEAD, 1);
        what = "dead";
    } else if (row->to.phase == ONCE__ROW_INDETERMINATE) {
        count(w, ONCE__ROUTE_INDETERMINATE, 1);
        what = "indeterminate";
    }
    if (what != NULL)
        once__relay_say(w->r, "route %s: row %lld is %s%s%s", w->route->o.name,
                        (long long)row->seq, what,
                        row->error[0] != '\0' ? ": " : "", row->error);
}

/*
 * Asks until it is answered, since the answers of the target are known nowhere
 * else; the lease ends by itself, and what is settled late is fenced. Gives up
 * after the route's time when the relay is to stop, and on an error that is no
 * loss of the connection when the lease has been over for as long as it was.
 */
static int settle_until(struct once__carrier *w, struct once__settlement *rows,
                        size_t n, uint64_t lease_end_ms, int *repeated)
{
    const struct timespec tenth = {0, 100000000};
    uint64_t stopped_ms = 0;
    once_error err = {0, ""};
    int rc;

    for (;;) {
        uint64_t now = once__relay_ms();

        rc = once__base_connect(w->base, &err);
        if (rc == ONCE_OK)
            rc = once__base_answered(
                w->base,
                once__outbox_settle(once__base_ask(w->base), rows, n, &err));
        if (rc == ONCE_OK) {
            w->base_failures = 0;
            return 1;
        }
        *repeated = 1;
        base_failed(w, SAID_SETTLE, "settling", &err);
        if (stopped_ms == 0 && atomic_load(&w->r->stop))
            stopped_ms = now;
        if (stopped_ms != 0 && now - stopped_ms >= w->route->o.timeout_ms)
            return 0;
        if (rc != ONCE_EABORTED && rc != ONCE_EAWAY &&
            now >= lease_end_ms + w->r->lease_ms)
            return 0;
        if (stopped_ms == 0)
            pause_failed(w, w->base_failures, BASE_MOST_MS);
        else
            (void)nanosleep(&tenth, NULL);
    }
}

/* What fails here is found by the tender, a second later. */
static void advance(struct once__carrier *w,
                    const struct once__outgoing_list *list)
{
    struct once__saga_tally tally = {0, 0, 0, 0};
    once_error err = {0, ""};
    size_t i;

    for (i = 0; i < list->n; i++) {
        int rc = list->rows[i].saga == NULL
                     ? ONCE_OK
                     : once__base_answered(
                           w->base, once__saga_advance(once__base_ask(w->base),
                                                       list->rows[i].saga,
                                                       &tally, &err));

        if (rc != ONCE_OK && rc != ONCE_FREE) {
            base_failed(w, SAID_BASE, "a saga", &err);
            break;
        }
    }
    once__relay_tell(w->r, &tally);
}

static void settle(struct once__carrier *w, const struct once__batch *b,
                   uint64_t claimed_ms)
{
    size_t n = b->list->n, i, fenced = 0;
    struct once__settlement *rows = calloc(n, sizeof(*rows));
    uint64_t now_ms = b->list->now_ms + (once__relay_ms() - claimed_ms);
    int repeated = 0;

    if (rows == NULL) /* their leases end */
        return;
    for (i = 0; i < n; i++) {
        decide(w, &b->list->rows[i], &b->items[i], now_ms, &rows[i]);
        count_end(w, b->items[i].end);
    }
    if (settle_until(w, rows, n, b->until_ms, &repeated)) {
        advance(w, b->list);
        for (i = 0; i < n; i++) {
            if (rows[i].ours)
                report(w, &rows[i]);
            else if (!repeated) /* or we settled it before */
                fenced++;
        }
    } else {
        once__relay_say(w->r,
                        "route %s: %zu rows could not be settled and come back "
                        "when their lease ends",
                        w->route->o.name, n);
    }
    if (fenced > 0) {
        count(w, ONCE__ROUTE_FENCED, fenced);
        say_seldom(w, SAID_FENCED,
                   "rows were claimed by another relay before they were "
                   "settled here");
    }
    free(rows);
}

/* ---- One round ----------------------------------------------------------- */

static int is_stopped(void *user)
{
    struct once__relay *r = user;

    return atomic_load(&r->stop);
}

/* Large bodies make small batches. */
static void resize(struct once__carrier *w,
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

static void carry(struct once__carrier *w,
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

    if (once__batch_run(&b, &err) == ONCE_OK) {
        w->tag = b.tag;
        count(w, ONCE__ROUTE_SENT, b.sent);
        judge(w, &b);
        settle(w, &b, claimed_ms);
    }
    once__batch_clear(&b);
}

/* 1: there were rows. 0: there are none. -1: the database is away. */
static int claim(struct once__carrier *w)
{
    const struct once__outbox_ask ask = {
        .route = w->route->o.name,
        .n = w->open ? 1 : w->batch,
        .lease_ms = w->r->lease_ms,
        .hold = w->route->hold,
        .pass = w->route->o.pass != 0,
    };
    struct once__outgoing_list list = {NULL, 0, 0, NULL};
    uint64_t now = once__relay_ms();
    once_error err = {0, ""};
    int rc, some;

    rc =
        once__base_answered(w->base, once__outbox_claim(once__base_ask(w->base),
                                                        &ask, &list, &err));
    if (rc != ONCE_OK) {
        base_failed(w, SAID_BASE, "claiming", &err);
        return -1;
    }
    some = list.n > 0;
    if (!some) {
        atomic_store(&w->route->empty_ms, now);
    } else {
        count(w, ONCE__ROUTE_CLAIMED, list.n);
        be_awake(w);
        if (!w->open)
            resize(w, &list);
        carry(w, &list, now);
    }
    once__outgoing_clear(&list);
    return some;
}

static void round_of(struct once__carrier *w)
{
    int some;

    if (!target_there(w)) {
        look_what_is_left(w);
        pause_failed(w, w->failures, MOST_MS);
        return;
    }
    some = base_there(w) ? claim(w) : -1;
    if (some < 0) {
        pause_failed(w, w->base_failures, BASE_MOST_MS);
        return;
    }
    if (some == 0) {
        look_what_is_left(w);
        rest(w);
    } else if (w->failures > 0) {
        pause_failed(w, w->failures, MOST_MS);
    }
}

void *once__carrier_run(void *worker)
{
    struct once__carrier *w = worker;

    while (!atomic_load(&w->r->stop))
        round_of(w);
    if (w->idle)
        be_awake(w);
    circuit_end(w);
    return NULL;
}

/* ---- Opening ------------------------------------------------------------- */

static void broker_says(void *worker, const char *text)
{
    say_seldom(worker, SAID_BROKER, "%s", text);
}

int once__carrier_open(struct once__relay *r, struct once__route *route,
                       struct once__carrier **out, once_error *err)
{
    struct once__carrier *w = calloc(1, sizeof(*w));
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

void once__carrier_close(struct once__carrier *w)
{
    if (w == NULL)
        return;
    if (w->broker != NULL)
        w->route->ops->close(w->broker);
    once__base_close(w->base);
    free(w);
}

struct once__base *once__carrier_base(const struct once__carrier *w)
{
    return w->base;
}
