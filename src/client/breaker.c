/* SPDX-License-Identifier: Apache-2.0 */
/*
 * breaker.c - sends nothing to a host that keeps failing, for a while.
 *
 *              `failures` in a row           open_ms have passed
 *    CLOSED -----------------------> OPEN ---------------------> HALF
 *      ^                              ^                          |  |
 *      |                              +--- the probe fails, -----+  |
 *      |                                   has no answer            |
 *      +------------------------- the probe succeeds ----------------+
 *
 * In HALF one request, the probe, is let through, and the others wait for its
 * result. Only failures of the host count: no connection, a broken or a missing
 * answer, 502, 503, 504, a gateway without its store. A 429 or a 500 says
 * nothing about the health of the host and changes no state, except that it
 * ends a probe with success: the host has answered.
 *
 * It knows ONCE__HOSTS_MAX hosts at most: the one that was unused for the
 * longest time is forgotten, which closes its circuit. The caller gives the
 * time.
 */
#include "client/client.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { CLOSED, OPEN, HALF };

enum { ASK_AGAIN_MS = 100 }; /* while another sender's probe is under way */

static struct once__circuit *circuit_of(struct once__breaker *b,
                                        const char *host, uint64_t now_ms)
{
    struct once__circuit *c, *oldest = b->circuits;
    size_t i;

    for (i = 0; i < b->n; i++) {
        c = &b->circuits[i];
        if (strcmp(c->host, host) == 0)
            goto out;
        if (c->used_ms < oldest->used_ms)
            oldest = c;
    }
    c = b->n < ONCE__HOSTS_MAX ? &b->circuits[b->n++] : oldest;
    memset(c, 0, sizeof(*c));
    (void)snprintf(c->host, sizeof(c->host), "%s", host);
out:
    c->used_ms = now_ms;
    return c;
}

uint64_t once__breaker_ask(struct once__breaker *b, const char *host,
                           uint64_t now_ms)
{
    struct once__circuit *c = circuit_of(b, host, now_ms);

    switch (c->state) {
    case CLOSED:
        return 0;
    case OPEN:
        if (now_ms < c->until_ms)
            return c->until_ms - now_ms;
        break;
    case HALF:
        /* The sender that probes may have been killed by its deadline. */
        if (now_ms < c->until_ms)
            return ASK_AGAIN_MS;
        break;
    default:
        assert(0);
    }
    c->state = HALF;
    c->until_ms = now_ms + b->probe_ms;
    return 0;
}

void once__breaker_report(struct once__breaker *b, const char *host,
                          int unhealthy, uint64_t now_ms)
{
    struct once__circuit *c = circuit_of(b, host, now_ms);

    if (unhealthy < 0 && c->state != HALF)
        return;
    if (unhealthy <= 0) {
        /* An answer to a request that began before the circuit opened counts
         * as well: the host answers. */
        c->state = CLOSED;
        c->failures = 0;
        return;
    }
    if (c->failures < UINT32_MAX)
        c->failures++;
    if (c->state == HALF || c->failures >= b->failures) {
        c->state = OPEN;
        c->until_ms = now_ms + b->open_ms;
    }
}
