/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settle.c - what becomes of the rows of a batch: src/messages/core/row.c
 * decides, the database writes it down, and sagas are moved on. The end of a call
 * that came alone and its saga's next step are one transaction.
 */
#include "messages/relay/sender.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/backoff.h"
#include "messages/tables/outbox.h"

enum {
    ROW_FIRST_MS = 1000,
    ROW_MOST_MS = 3600000, /* pauses of a row */
    REFUSAL_MS = 60000     /* between two lines about refusals of a route */
};

static void count_end(struct once__sender *w, int end)
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

    once__sender_count(w, metrics[end], 1);
}

static void decide(const struct once__sender *w,
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
            item->retry_ms + once__up_to(out->to.wait_ms - item->retry_ms);
    /* A row that was not sent keeps what its last attempt has left. */
    out->status = item->end == ONCE__END_UNSENT ? row->status : item->status;
    out->error = item->end == ONCE__END_UNSENT ? row->error : item->why;
    if (out->error == NULL)
        out->error = "";
    out->reply = item->reply;
}

/* The first refusal of a route is reported at once, and then one line a minute has
 * their number: a queue that does not exist refuses each row. */
static void report_refusal(struct once__sender *w,
                           const struct once__settlement *row)
{
    struct once__route *route = w->route;
    unsigned long long now = once__relay_ms();
    unsigned long long last = atomic_load(&route->refusal_ms);
    unsigned long long n = atomic_fetch_add(&route->refusals, 1) + 1;
    char more[64] = "", status[16] = "";

    /* Another worker may have stored a time that is later than ours. */
    if (last != 0 && (now < last || now - last < REFUSAL_MS))
        return;
    if (!atomic_compare_exchange_strong(&route->refusal_ms, &last, now))
        return;
    (void)atomic_fetch_sub(&route->refusals, n);
    if (last != 0)
        (void)snprintf(more, sizeof(more),
                       "; %llu refusals since the last line", n);
    if (row->status != 0)
        (void)snprintf(status, sizeof(status), " (%d)", row->status);
    once__relay_say(
        w->r,
        "route %s: the target refused row %lld%s%s%s; the relay sends "
        "it again later%s",
        route->o.name, (long long)row->seq, status,
        row->error[0] != '\0' ? ": " : "", row->error, more);
}

/* What becomes of a call of a saga is said by the saga. */
static void report(struct once__sender *w, const struct once__settlement *row,
                   int of_saga)
{
    const char *what = NULL;

    if (row->to.phase == ONCE__ROW_DEAD) {
        once__sender_count(w, ONCE__ROUTE_DEAD, 1);
        what = "dead";
    } else if (row->to.phase == ONCE__ROW_INDETERMINATE) {
        once__sender_count(w, ONCE__ROUTE_INDETERMINATE, 1);
        what = "indeterminate";
    }
    if (what != NULL && !of_saga)
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
static int settle_until(struct once__sender *w, struct once__settlement *rows,
                        size_t n, uint64_t lease_end_ms, int *repeated)
{
    const struct timespec tenth = {0, 100000000};
    once_error err = {0, ""};
    int rc;

    for (;;) {
        uint64_t now = once__relay_ms();

        rc = once__base_connect(w->base, &err);
        if (rc == ONCE_OK)
            rc = ONCE__ASK(w->base, once__outbox_settle, rows, n, &err);
        if (rc == ONCE_OK) {
            w->base_failures = 0;
            w->stopped_ms = 0; /* the next one has all of its time */
            return 1;
        }
        *repeated = 1;
        once__sender_failed(w, ONCE__SAID_SETTLE, "settling", &err);
        if (w->stopped_ms == 0 && atomic_load(&w->r->stop))
            w->stopped_ms = now;
        if (w->stopped_ms != 0 && now - w->stopped_ms >= w->route->o.timeout_ms)
            return 0;
        if (rc != ONCE_EABORTED && rc != ONCE_EAWAY &&
            now >= lease_end_ms + w->r->lease_ms)
            return 0;
        if (w->stopped_ms == 0)
            once__sender_pause(w, w->base_failures, ONCE__SENDER_BASE_MS);
        else
            (void)nanosleep(&tenth, NULL);
    }
}

/* 1: the call of a saga has ended, and this and what follows from it are written.
 * 0: it is to be settled like any other row. Its fence then says whether an error
 * here has hidden that it was done. */
static int settle_with_saga(struct once__sender *w,
                            const struct once__outgoing *call,
                            struct once__settlement *row, int *repeated)
{
    struct once__saga_tally tally = {0};
    once_error err = {0, ""};
    int rc = once__base_connect(w->base, &err);

    if (rc != ONCE_OK)
        return 0;
    rc = ONCE__ASK(w->base, once__saga_settle, call, row, &tally, &err);
    once__relay_tell(w->r, &tally);
    if (rc < ONCE_OK) {
        *repeated = 1;
        once__sender_failed(w, ONCE__SAID_SETTLE, "settling", &err);
        return 0;
    }
    w->base_failures = 0;
    if (rc != ONCE_OK)
        return 0;
    w->stopped_ms = 0;
    return 1;
}

/* What fails here is found by the saga timer, a second later. */
static void advance(struct once__sender *w,
                    const struct once__outgoing_list *list)
{
    struct once__saga_tally tally = {0};
    once_error err = {0, ""};
    size_t i;

    for (i = 0; i < list->n; i++) {
        int rc = list->rows[i].saga == NULL
                     ? ONCE_OK
                     : ONCE__ASK(w->base, once__saga_advance,
                                 list->rows[i].saga, &tally, &err);

        if (rc != ONCE_OK && rc != ONCE_FREE) {
            once__sender_failed(w, ONCE__SAID_BASE, "a saga", &err);
            break;
        }
    }
    once__relay_tell(w->r, &tally);
}

/* 1: the rows are settled, and their sagas moved on. */
static int settle_all(struct once__sender *w, const struct once__batch *b,
                      struct once__settlement *rows, int *repeated)
{
    const struct once__outgoing *call = &b->list->rows[0];

    if (b->list->n == 1 && b->list->lease == 0 && call->saga != NULL &&
        rows[0].to.phase >= ONCE__ROW_DONE &&
        settle_with_saga(w, call, &rows[0], repeated))
        return 1;
    if (!settle_until(w, rows, b->list->n, b->until_ms, repeated))
        return 0;
    advance(w, b->list);
    return 1;
}

/* ... and it is sent again. */
static int was_refused(const struct once__item *item,
                       const struct once__settlement *row)
{
    return (item->end == ONCE__END_REFUSED || item->end == ONCE__END_NACKED) &&
           row->to.phase == ONCE__ROW_WAITING;
}

void once__sender_settle(struct once__sender *w, const struct once__batch *b,
                         uint64_t claimed_ms)
{
    size_t n = b->list->n, i, fenced = 0;
    struct once__settlement *rows = calloc(n, sizeof(*rows));
    uint64_t now_ms = b->list->now_ms + (once__relay_ms() - claimed_ms);
    int repeated = 0, sagas = 0;

    if (rows == NULL) /* their leases end */
        return;
    for (i = 0; i < n; i++) {
        decide(w, &b->list->rows[i], &b->items[i], now_ms, &rows[i]);
        rows[i].lease = b->list->lease;
        count_end(w, b->items[i].end);
        sagas |= b->list->rows[i].saga != NULL;
    }
    atomic_fetch_add(&w->r->moving, (unsigned)sagas);
    if (settle_all(w, b, rows, &repeated)) {
        for (i = 0; i < n; i++) {
            if (rows[i].ours && was_refused(&b->items[i], &rows[i]))
                report_refusal(w, &rows[i]);
            else if (rows[i].ours)
                report(w, &rows[i], b->list->rows[i].saga != NULL);
            else if (!repeated) /* or we settled it before */
                fenced++;
        }
    } else {
        once__relay_say(w->r,
                        "route %s: %zu rows could not be settled and come back "
                        "when their lease ends",
                        w->route->o.name, n);
    }
    atomic_fetch_add(&w->r->moved, (unsigned)sagas);
    if (fenced > 0) {
        once__sender_count(w, ONCE__ROUTE_FENCED, fenced);
        once__sender_say(w, ONCE__SAID_FENCED,
                         "rows were claimed by another relay before they were "
                         "settled here");
    }
    free(rows);
}
