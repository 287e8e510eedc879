/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target.c - what a sender knows of its target: a circuit. After a failure it is
 * open: the next batch has one row, until the target has answered again.
 */
#include "messages/relay/sender.h"

#include <stdio.h>

#include "base/status.h"

enum { SAY_MS = 60000 /* between two openings of a circuit that are said */ };

/* `status` is that of the answer which was no proof, 0 if none came. */
static void circuit_open(struct once__sender *w, int unreached, int status,
                         const char *why)
{
    uint64_t now = once__relay_ms();
    char what[64];

    w->failures++;
    w->failed = 1;
    w->unreached = unreached;
    if (w->open)
        return;
    w->open = 1;
    once__sender_count(w, ONCE__ROUTE_CIRCUIT, 1);
    if (w->opened_ms != 0 && now - w->opened_ms < SAY_MS)
        return;
    w->opened_ms = now;
    w->open_said = 1;
    if (status != 0)
        (void)snprintf(what, sizeof(what), "has answered with status %d",
                       status);
    once__relay_say(w->r, "route %s: the target %s: %s", w->route->o.name,
                    status != 0 ? what
                    : unreached ? "is away"
                                : "does not answer",
                    why);
}

void once__circuit_end(struct once__sender *w)
{
    w->failures = 0;
    w->failed = 0;
    w->unreached = 0;
    if (w->open)
        once__sender_count(w, ONCE__ROUTE_CIRCUIT, (uint64_t)-1);
    w->open = 0;
}

static void circuit_close(struct once__sender *w)
{
    once__circuit_end(w);
    if (w->open_said)
        once__relay_say(w->r, "route %s: the target is back", w->route->o.name);
    w->open_said = 0;
}

int once__target_there(struct once__sender *w)
{
    struct once__broker *b = w->wire.broker;
    once_error err = {0, ""};

    if (b->ops->connect(b, &err) == ONCE_OK) {
        if (w->unreached)
            circuit_close(w);
        return 1;
    }
    circuit_open(w, 1, 0, err.text);
    return 0;
}

int once__sender_check(struct once__sender *w, once_error *err)
{
    struct once__broker *b = w->wire.broker;
    int rc = b->ops->connect(b, err);

    once__relay_say(w->r, "route %s: %s", w->route->o.name,
                    rc == ONCE_OK ? "ready" : err->text);
    return rc;
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
    case ONCE__END_SILENT:
        return item->status == 0 || once__is_gateways_status(item->status);
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
    w->failed = 1;
    if (why != NULL)
        once__sender_say(w, ONCE__SAID_BROKER, "nothing can be sent: %s", why);
}

void once__target_judge(struct once__sender *w, const struct once__batch *b)
{
    const struct once__item *failed = NULL;
    const char *why = NULL;
    size_t i;

    if (b->items == NULL) {
        wait_to_send(w, "out of memory");
        return;
    }
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
        circuit_open(w, 0, failed->status,
                     failed->why != NULL ? failed->why : "no proof came");
    else
        wait_to_send(w, why);
}
