/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect.c - a connection to the first of the hosts that will do: it answers,
 * and the inspection finds nothing against it. After a failure the next try
 * waits a moment, longer each time.
 */
#include "base/backoff.h"
#include "base/error.h"
#include "base/postgres/postgres.h"
#include "base/steady.h"

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The last one that was good is tried first. */
int once__pg_connect(struct once__pg_link *l, int bare, uint64_t until_ms,
                     once_error *err)
{
    const struct once__pg_config *c = l->config;
    uint64_t now = once__steady_ms();
    int rc = ONCE_EAWAY, away = 0;
    size_t i;

    if (once__pg_is_up(l))
        return ONCE_OK;
    once__pg_disconnect(l);
    if (now < l->next_ms)
        return once__fail(err, ONCE_EAWAY,
                          "%s: not connected; tried again soon", l->label);
    for (i = 0; i < c->host_count && rc != ONCE_OK; i++) {
        now = once__steady_ms();
        if (i > 0 && now >= until_ms)
            break;
        rc = once__pg_connect_host(l, sooner(until_ms, now + c->connect_ms),
                                   err);
        if (rc == ONCE_OK)
            rc = once__pg_inspect(l, bare, until_ms, err);
        if (rc != ONCE_OK) {
            once__pg_disconnect(l);
            l->host = (l->host + 1) % c->host_count;
            away |= rc == ONCE_EAWAY;
        }
    }
    if (rc == ONCE_OK) {
        l->failures = 0;
        return ONCE_OK;
    }
    l->next_ms = once__backoff_until(l->failures++);
    if (away && err != NULL)
        err->code = ONCE_EAWAY; /* one of them may be the right one, later */
    return away ? ONCE_EAWAY : rc;
}
