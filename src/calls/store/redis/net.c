/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.c - which server a key lives on.
 *
 *    single     the one in the URL
 *    Sentinel   the one that a sentinel names, asked again whenever there is no
 *               connection; a server that says it is a replica is not taken
 *    Cluster    the one that has the key's slot; the map is read again after a
 *               redirection or a lost node, and a redirection is believed at
 *               once
 *
 * Nodes are never removed before the store is closed: links are few and small,
 * and answers borrow from them. It reads from primaries only, since a replica
 * may not know yet what was acknowledged.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/steady.h"
#include "calls/store/redis/redis.h"
#include "calls/store/redis/swap.lua.h"

enum { REFRESH_MS = 100 };

/* ---- Slots -------------------------------------------------------------- */

/* CRC-16/XMODEM, as the cluster specification has it. */
static unsigned crc16(const uint8_t *p, size_t size)
{
    unsigned crc = 0;
    int i;

    while (size-- > 0) {
        crc ^= (unsigned)*p++ << 8;
        for (i = 0; i < 8; i++)
            crc = crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1;
        crc &= 0xffff;
    }
    return crc;
}

/* A part in braces alone decides, if there is one: names are any bytes. */
static unsigned slot_of(const void *key, size_t size)
{
    const uint8_t *p = key, *end = p + size;
    const uint8_t *open = memchr(p, '{', size), *close;

    if (open != NULL) {
        open++;
        close = memchr(open, '}', (size_t)(end - open));
        if (close != NULL && close > open)
            return crc16(open, (size_t)(close - open)) % ONCE__REDIS_SLOTS;
    }
    return crc16(p, size) % ONCE__REDIS_SLOTS;
}

/* ---- Nodes -------------------------------------------------------------- */

static int same_place(const struct once__redis_place *a,
                      const struct once__redis_place *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->port, b->port) == 0;
}

/* The node's number + 1; 0: no memory, or too many. */
static size_t node_at(struct once__redis_net *net,
                      const struct once__redis_place *place)
{
    struct once__redis_link *l;
    size_t i;

    for (i = 0; i < net->count; i++)
        if (same_place(&net->nodes[i]->place, place))
            return i + 1;
    if (net->count == ONCE__REDIS_NODES)
        return 0;
    l = malloc(sizeof(*l));
    if (l == NULL)
        return 0;
    once__redis_link_init(l, &net->config, net->tls, place);
    l->mark = &net->mark;
    l->script = once__swap_lua;
    net->nodes[net->count++] = l;
    return net->count;
}

static struct once__redis_link *up(struct once__redis_net *net,
                                   struct once__redis_link *l)
{
    if (once__redis_link_up(l) == ONCE_OK)
        return l;
    (void)snprintf(net->trouble, sizeof(net->trouble), "%s", l->trouble);
    net->stale = 1;
    return NULL;
}

struct once__redis_link *
once__redis_net_at(struct once__redis_net *net,
                   const struct once__redis_place *place)
{
    size_t node = node_at(net, place);

    return node == 0 ? NULL : up(net, net->nodes[node - 1]);
}

void once__redis_net_moved(struct once__redis_net *net, unsigned slot,
                           const struct once__redis_place *place)
{
    size_t node = node_at(net, place);

    net->moved++;
    net->stale = 1;
    if (slot < ONCE__REDIS_SLOTS && node > 0)
        net->slot[slot] = (uint16_t)node;
}

int once__redis_net_owns(const struct once__redis_net *net, size_t node)
{
    size_t i;

    if (net->config.mode != ONCE__REDIS_CLUSTER)
        return 1;
    for (i = 0; i < ONCE__REDIS_SLOTS; i++)
        if (net->slot[i] == node + 1)
            return 1;
    return 0;
}

/* ---- Sentinel ------------------------------------------------------------ */

/* What one sentinel says: 1, and `*out` is the primary's address. */
static int ask_sentinel(struct once__redis_net *net,
                        const struct once__redis_place *place,
                        struct once__redis_place *out)
{
    const struct once__redis_config *c = &net->config;
    const char *user = c->sentinel_user[0] ? c->sentinel_user : "default";
    const char *const login[] = {"AUTH", user, c->sentinel_password};
    const char *const question[] = {"SENTINEL", "GET-MASTER-ADDR-BY-NAME",
                                    c->primary};
    struct once__redis_link l;
    const redisReply *r = NULL;
    int found = 0;

    once__redis_link_init(&l, c, net->tls, place);
    if (once__redis_link_dial(&l) == ONCE_OK) {
        if (c->sentinel_password[0] != '\0')
            (void)!once__redis_call(&l, 3, login);
        r = once__redis_call(&l, 3, question);
    }
    if (r != NULL && r->type == REDIS_REPLY_ARRAY && r->elements == 2 &&
        r->element[0]->type == REDIS_REPLY_STRING &&
        r->element[1]->type == REDIS_REPLY_STRING &&
        r->element[0]->len < sizeof(out->host) &&
        r->element[1]->len < sizeof(out->port)) {
        memset(out, 0, sizeof(*out));
        memcpy(out->host, r->element[0]->str, r->element[0]->len);
        memcpy(out->port, r->element[1]->str, r->element[1]->len);
        found = 1;
    } else if (r != NULL) {
        (void)snprintf(l.trouble, sizeof(l.trouble),
                       "%.60s: it knows no such primary", place->host);
    }
    if (!found)
        (void)snprintf(net->trouble, sizeof(net->trouble), "sentinel %.140s",
                       l.trouble);
    once__redis_link_clear(&l);
    return found;
}

static struct once__redis_link *find_primary(struct once__redis_net *net)
{
    struct once__redis_link *l = net->nodes[0];
    struct once__redis_place place;
    size_t i;

    if (l->fd >= 0)
        return l;
    if (once__steady_ms() < l->retry_ms)
        return up(net, l); /* which says the trouble of last time */
    for (i = 0; i < net->config.host_count; i++)
        if (ask_sentinel(net, &net->config.hosts[i], &place)) {
            l->place = place;
            return up(net, l);
        }
    once__redis_link_fail(l, "no sentinel knows where the primary is");
    return NULL;
}

/* ---- Cluster ------------------------------------------------------------- */

/* One line of CLUSTER SLOTS: from, to, then the primary as host and port. A
 * host that is not named is the one that was asked. */
static int take_range(struct once__redis_net *net, uint16_t *slot,
                      const struct once__redis_link *asked, const redisReply *r)
{
    struct once__redis_place place = asked->place;
    const redisReply *node;
    size_t number;
    long long i;

    if (r->type != REDIS_REPLY_ARRAY || r->elements < 3 ||
        r->element[0]->type != REDIS_REPLY_INTEGER ||
        r->element[1]->type != REDIS_REPLY_INTEGER ||
        r->element[2]->type != REDIS_REPLY_ARRAY || r->element[2]->elements < 2)
        return 0;
    node = r->element[2];
    if (node->element[1]->type != REDIS_REPLY_INTEGER ||
        node->element[1]->integer < 1 || node->element[1]->integer > 65535)
        return 0;
    if (node->element[0]->type == REDIS_REPLY_STRING &&
        node->element[0]->len > 0)
        (void)snprintf(place.host, sizeof(place.host), "%s",
                       node->element[0]->str);
    (void)snprintf(place.port, sizeof(place.port), "%d",
                   (int)node->element[1]->integer);
    number = node_at(net, &place);
    i = r->element[0]->integer;
    if (number == 0 || i < 0 || r->element[1]->integer >= ONCE__REDIS_SLOTS)
        return 0;
    for (; i <= r->element[1]->integer; i++)
        slot[i] = (uint16_t)number;
    return 1;
}

static int read_map(struct once__redis_net *net, struct once__redis_link *l)
{
    static const char *const question[] = {"CLUSTER", "SLOTS"};
    uint16_t slot[ONCE__REDIS_SLOTS] = {0};
    const redisReply *r;
    size_t i;

    if (once__redis_link_up(l) != ONCE_OK) {
        (void)snprintf(net->trouble, sizeof(net->trouble), "%s", l->trouble);
        return 0;
    }
    r = once__redis_call(l, 2, question);
    if (r == NULL || r->type != REDIS_REPLY_ARRAY || r->elements == 0) {
        (void)snprintf(net->trouble, sizeof(net->trouble),
                       "%.60s:%s does not name the cluster's slots",
                       l->place.host, l->place.port);
        return 0;
    }
    for (i = 0; i < r->elements; i++)
        if (!take_range(net, slot, l, r->element[i]))
            return 0;
    memcpy(net->slot, slot, sizeof(slot));
    net->stale = 0;
    return 1;
}

/* Any node of the cluster may know: those that are connected first. */
static int refresh(struct once__redis_net *net)
{
    size_t i, known = net->count;

    net->refresh_ms = once__steady_ms() + REFRESH_MS;
    for (i = 0; i < known; i++)
        if (net->nodes[i]->fd >= 0 && read_map(net, net->nodes[i]))
            return 1;
    for (i = 0; i < known; i++)
        if (net->nodes[i]->fd < 0 && read_map(net, net->nodes[i]))
            return 1;
    return 0;
}

/* ---- All of them --------------------------------------------------------- */

struct once__redis_link *once__redis_net_route(struct once__redis_net *net,
                                               const void *key, size_t size)
{
    size_t node = 1;

    if (net->config.mode == ONCE__REDIS_SENTINEL)
        return find_primary(net);
    if (net->config.mode == ONCE__REDIS_CLUSTER)
        node = net->slot[slot_of(key, size)];
    if (node > 0)
        return up(net, net->nodes[node - 1]);
    (void)snprintf(net->trouble, sizeof(net->trouble),
                   "no node of the cluster serves this slot");
    net->stale = 1;
    return NULL;
}

void once__redis_net_begin(struct once__redis_net *net)
{
    size_t i;

    for (i = 0; i < net->count; i++)
        once__redis_link_reset(net->nodes[i]);
    if (net->config.mode == ONCE__REDIS_CLUSTER && net->stale &&
        once__steady_ms() >= net->refresh_ms)
        (void)refresh(net);
}

/* All that have slots are asked what they are. One that cannot be used is an
 * error; one that is away keeps only its own keys from being answered. */
static int greet_cluster(struct once__redis_net *net)
{
    size_t i, here = 0;

    for (i = 0; i < net->count; i++) {
        struct once__redis_link *l = net->nodes[i];

        if (!once__redis_net_owns(net, i))
            continue;
        here += up(net, l) != NULL;
        if (l->refused)
            return 0;
    }
    return here > 0;
}

static int first_contact(struct once__redis_net *net)
{
    if (net->config.mode == ONCE__REDIS_SENTINEL)
        return find_primary(net) != NULL;
    if (net->config.mode == ONCE__REDIS_SINGLE)
        return up(net, net->nodes[0]) != NULL;
    return refresh(net) && greet_cluster(net);
}

int once__redis_net_open(struct once__redis_net *net, once_error *err)
{
    const struct once__redis_config *c = &net->config;
    size_t i, n = c->mode == ONCE__REDIS_CLUSTER ? c->host_count : 1;
    int rc;

    if (c->tls) {
        rc = once__redis_tls_new(c, err, &net->tls);
        if (rc != ONCE_OK)
            return rc;
    }
    for (i = 0; i < n; i++)
        if (node_at(net, &c->hosts[i]) == 0)
            return once__fail(err, ONCE_ENOMEM, "redis: out of memory");
    if (first_contact(net))
        return ONCE_OK;
    rc = ONCE_EAWAY;
    for (i = 0; i < net->count; i++)
        if (net->nodes[i]->spoke)
            rc = ONCE_EOPEN;
    return once__fail(err, rc, "redis: %s", net->trouble);
}

void once__redis_net_close(struct once__redis_net *net)
{
    size_t i;

    for (i = 0; i < net->count; i++) {
        once__redis_link_clear(net->nodes[i]);
        free(net->nodes[i]);
    }
    once__redis_tls_free(net->tls);
    explicit_bzero(net, sizeof(*net));
}
