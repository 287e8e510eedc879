/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.c - connections, and how long each may take.
 *
 * On loopback any process of the host can connect: until it has sent the token, a
 * connection has a few seconds, and of too many such ones the oldest is ended. The
 * limit of connections counts the others.
 *
 * A message that comes in or goes out has a time limit, too: a reader that stops
 * would hold an answer in memory for ever. A connection without a message has none.
 *
 * A connection is ended by shutdown(): libmicrohttpd sees that, and closes it.
 */
#include "programs/serve/serve.h"

#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { LOOK_MS = 100, MEBIBYTE = 1048576 };

#define CONNECTION_OF(link, member)                                            \
    ((struct serve_connection *)((char *)(link)-offsetof(                      \
        struct serve_connection, member)))

/* ---- Rings ---------------------------------------------------------------- */

void serve_link_join(struct serve_link *ring, struct serve_link *l)
{
    l->next = ring;
    l->previous = ring->previous;
    ring->previous->next = l;
    ring->previous = l;
}

void serve_link_part(struct serve_link *l)
{
    if (l->next == NULL)
        return;
    l->previous->next = l->next;
    l->next->previous = l->previous;
    l->previous = l->next = NULL;
}

/* ---- Connections ----------------------------------------------------------- */

static void cut(struct serve_connection *n)
{
    serve_link_part(&n->rank);
    serve_link_part(&n->timed);
    (void)shutdown(n->fd, SHUT_RDWR);
}

struct serve_connection *serve_connection_new(struct serve *s, int fd)
{
    struct serve_connection *n = calloc(1, sizeof(*n));

    if (n == NULL)
        return NULL;
    n->serve = s;
    n->fd = fd;
    n->owner = serve_owner_of(s, fd);
    if (s->bearer[0] == '\0') {
        n->proven = 1;
        s->connections++;
        return n;
    }
    n->prove_ms = once__steady_ms() + SERVE_PROVE_MS;
    serve_link_join(&s->unproven, &n->rank);
    if (++s->n_unproven > SERVE_UNPROVEN && s->unproven.next != &n->rank)
        cut(CONNECTION_OF(s->unproven.next, rank));
    return n;
}

void serve_connection_free(struct serve_connection *n)
{
    if (n == NULL)
        return;
    if (n->proven)
        n->serve->connections--;
    else
        n->serve->n_unproven--;
    serve_link_part(&n->rank);
    serve_link_part(&n->timed);
    serve_owner_drop(n->serve, n->owner);
    free(n);
}

void serve_connection_prove(struct serve_connection *n)
{
    if (n->proven)
        return;
    n->proven = 1;
    n->serve->n_unproven--;
    n->serve->connections++;
    serve_link_part(&n->rank);
}

/* ---- Time limits ------------------------------------------------------------ */

void serve_connection_start(struct serve_connection *n, size_t size)
{
    if (n == NULL)
        return;
    serve_link_part(&n->timed);
    serve_link_join(&n->serve->timed, &n->timed);
    n->until_ms = once__steady_ms() + SERVE_MESSAGE_MS;
    serve_connection_piece(n, size);
}

void serve_connection_piece(struct serve_connection *n, size_t size)
{
    if (n != NULL)
        n->until_ms += (uint64_t)size * 1000 / MEBIBYTE;
}

void serve_connection_stop(struct serve_connection *n)
{
    if (n != NULL)
        serve_link_part(&n->timed);
}

void serve_connection_turn(struct serve *s)
{
    uint64_t now = once__steady_ms();
    struct serve_link *at, *next;

    while ((at = s->unproven.next) != &s->unproven &&
           CONNECTION_OF(at, rank)->prove_ms <= now)
        cut(CONNECTION_OF(at, rank));
    if (now < s->looked_ms + LOOK_MS)
        return;
    s->looked_ms = now;
    for (at = s->timed.next; at != &s->timed; at = next) {
        next = at->next;
        if (CONNECTION_OF(at, timed)->until_ms <= now)
            cut(CONNECTION_OF(at, timed));
    }
}
