/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sender.c - what a worker of a route says, and how long it pauses.
 */
#include "messages/relay/sender.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/backoff.h"

enum { SAY_MS = 60000 /* the same line is not said again before */ };

void once__sender_say(struct once__sender *w, enum once__said kind,
                      const char *format, ...)
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

void once__sender_pause(struct once__sender *w, uint32_t failures,
                        uint32_t most_ms)
{
    uint64_t ms = once__backoff(ONCE__SENDER_FIRST_MS, most_ms, failures);

    once__relay_pause(w->r, (uint32_t)once__half_to_all(ms));
}

/* After an error: it is unknown in what state the connection is. */
void once__sender_failed(struct once__sender *w, enum once__said kind,
                         const char *what, const once_error *err)
{
    w->base_failures++;
    w->idle = 0; /* LISTEN went with the connection */
    once__base_rollback(w->base);
    once__sender_say(w, kind, "%s: %s", what, err->text);
}

uint64_t once__sender_rest_ms(uint64_t took_ms, uint64_t least_ms,
                              uint64_t most_ms)
{
    if (took_ms > most_ms / 10)
        return most_ms;
    return took_ms > least_ms / 10 ? 10 * took_ms : least_ms;
}

static int is_stopped(void *user)
{
    const struct once__relay *r = user;

    return atomic_load(&r->stop);
}

struct once__batch once__sender_batch(struct once__sender *w,
                                      const struct once__outgoing_list *list,
                                      uint64_t claimed_ms)
{
    return (struct once__batch){
        .list = list,
        .timeout_ms = w->route->o.timeout_ms,
        .until_ms = claimed_ms + w->r->lease_ms,
        .horizon_ms = w->route->horizon_ms,
        .stop = is_stopped,
        .user = w->r,
    };
}
