/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect.c - a connection to the first of the hosts that will do: it answers,
 * and the inspection finds nothing against it. After a failure the next try
 * waits a moment, longer each time.
 */
#include "base/backoff.h"
#include "base/error.h"
#include "base/mysql/mysql.h"
#include "base/steady.h"

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int try_host(struct once__my_link *l, int bare, uint64_t until_ms,
                    once_error *err)
{
    uint64_t connect_ms = once__steady_ms() + l->config->connect_ms;
    int rc = once__my_connect_host(l, bare, sooner(until_ms, connect_ms), err);

    if (rc == ONCE_OK)
        rc = once__my_inspect(l, until_ms, err);
    if (rc == ONCE_OK)
        return ONCE_OK;
    once__my_disconnect(l);
    l->host = (l->host + 1) % l->config->host_count;
    return rc;
}

/* The last one that was good is tried first. */
int once__my_connect(struct once__my_link *l, int bare, uint64_t until_ms,
                     once_error *err)
{
    int rc = ONCE_EAWAY, away = 0;
    size_t i;

    if (once__my_is_up(l))
        return ONCE_OK;
    once__my_disconnect(l);
    if (once__steady_ms() < l->next_ms)
        return once__fail(err, ONCE_EAWAY,
                          "%s: not connected; tried again soon", l->label);
    for (i = 0; i < l->config->host_count && rc != ONCE_OK; i++) {
        if (i > 0 && once__steady_ms() >= until_ms)
            break;
        rc = try_host(l, bare, until_ms, err);
        away |= rc == ONCE_EAWAY;
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
