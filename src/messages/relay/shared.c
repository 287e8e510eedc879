/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.c - what all threads of a relay use: its log, its stop, and what the
 * table holds for its routes.
 */
#include "messages/relay/route.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "messages/tables/outbox.h"
#include "messages/relay/send_batch.h"

void once__relay_say(const struct once__relay *r, const char *format, ...)
{
    char text[512];
    va_list args;

    if (r->log == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    r->log(r->user, text);
}

void once__relay_stop(struct once__relay *r)
{
    const uint64_t one = 1;

    atomic_store(&r->stop, 1);
    if (write(r->stop_fd, &one, sizeof(one)) < 0)
        return; /* it is full, and so readable */
}

void once__relay_pause(const struct once__relay *r, uint32_t ms)
{
    struct pollfd p = {r->stop_fd, POLLIN, 0};

    (void)poll(&p, 1, (int)ms);
}

struct once__route *once__relay_route(struct once__relay *r, const char *name)
{
    size_t i;

    for (i = 0; i < r->n_routes; i++)
        if (strcmp(r->routes[i].o.name, name) == 0)
            return &r->routes[i];
    return NULL;
}

static void set_gauges(struct once__series *s,
                       const struct once__outbox_count *c)
{
    const struct {
        int metric;
        uint64_t n;
    } gauges[] = {
        {ONCE__ROUTE_ROWS_READY, c->n[ONCE__ROW_READY] - c->leased},
        {ONCE__ROUTE_ROWS_LEASED, c->leased},
        {ONCE__ROUTE_ROWS_WAITING, c->n[ONCE__ROW_WAITING]},
        {ONCE__ROUTE_ROWS_DEAD, c->n[ONCE__ROW_DEAD]},
        {ONCE__ROUTE_ROWS_INDETERMINATE, c->n[ONCE__ROW_INDETERMINATE]},
    };
    size_t i;

    for (i = 0; i < sizeof(gauges) / sizeof(gauges[0]); i++)
        once__gauge(s, gauges[i].metric, gauges[i].n);
    once__gauge_since(s, ONCE__ROUTE_OLDEST, c->oldest_ms);
}

/*
 * 1: the rows that are ready stand behind others of their key that are dead or
 * indeterminate. None is under way, none will be due, and a claim that began
 * after they were seen has found nothing.
 */
static int is_blocked(struct once__route *r, const struct once__outbox_count *c)
{
    uint64_t ready = c->n[ONCE__ROW_READY];

    if (ready == 0 || c->leased > 0 || c->n[ONCE__ROW_WAITING] > 0 ||
        c->n[ONCE__ROW_DEAD] + c->n[ONCE__ROW_INDETERMINATE] == 0) {
        r->blocked_ms = 0;
        return 0;
    }
    if (r->blocked_ms == 0 || r->blocked != ready) {
        r->blocked_ms = once__relay_ms();
        r->blocked = ready;
    }
    return atomic_load(&r->empty_ms) > r->blocked_ms;
}

int once__relay_count(const once_tx *tx, struct once__relay *r, uint64_t *open,
                      uint64_t *ended, once_error *err)
{
    const struct once__outbox_count none = {.n = {0}};
    struct once__outbox_count *counts = NULL;
    struct once__saga_count sagas;
    size_t n = 0, i;
    int rc = once__saga_stats(tx, &sagas, err);

    if (rc == ONCE_OK)
        rc = once__outbox_stats(tx, 0, &counts, &n, err);
    if (rc != ONCE_OK)
        return rc;
    *open = 0;
    *ended = sagas.n[ONCE__SAGA_STUCK];
    for (i = 0; i < r->n_routes; i++)
        set_gauges(&r->series[i], &none); /* a route without rows is not told */
    for (i = 0; i < n; i++) {
        struct once__route *route = once__relay_route(r, counts[i].route);
        uint64_t todo =
            counts[i].n[ONCE__ROW_READY] + counts[i].n[ONCE__ROW_WAITING];

        if (route == NULL)
            continue;
        set_gauges(route->series, &counts[i]);
        *(is_blocked(route, &counts[i]) ? ended : open) += todo;
        *ended +=
            counts[i].n[ONCE__ROW_DEAD] + counts[i].n[ONCE__ROW_INDETERMINATE];
    }
    free(counts);
    return ONCE_OK;
}

void once__relay_stray(const struct once__relay *r,
                       const struct once__stray *stray)
{
    char seen[64] = "never was";

    if (stray->seen_ms >= 0)
        (void)snprintf(seen, sizeof(seen), "was last %lld s ago",
                       (long long)(stray->seen_ms / 1000));
    once__relay_say(r,
                    "route %s: %llu%s rows wait, and no relay has it; one %s",
                    stray->route, (unsigned long long)stray->rows,
                    stray->rows < 10000 ? "" : " or more", seen);
}

void once__relay_tell(const struct once__relay *r,
                      const struct once__saga_tally *tally)
{
    if (tally->stuck > 0)
        once__relay_say(r,
                        "sagas that are stuck now: %llu; once messages saga ls "
                        "stuck",
                        (unsigned long long)tally->stuck);
    if (tally->doubts > 0)
        once__relay_say(r,
                        "sagas that may be stuck, since the database did not "
                        "answer: %llu; once messages saga ls stuck",
                        (unsigned long long)tally->doubts);
}
