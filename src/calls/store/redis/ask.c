/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask.c - one round of questions to all nodes, and what their refusals mean.
 *
 *              +-- NOSCRIPT, MOVED, ASK, TRYAGAIN: nothing was done,
 *              v                                   the next round asks again
 *    asks --> sent --> reply --> answered
 *              |         +-----> refused: an error code, known by its first
 * word
 *              +-> nothing ----> ONCE_ESTORE: done or not, unknown
 *
 * An error reply is definite: the server changed nothing. So is a node that
 * could not be reached. They are ONCE_ESTORE all the same where asking again
 * later is what helps.
 *
 * The clock is the server's: its answer to TIME, carried on by a clock of ours
 * that cannot be set, and asked for again in every busy round after a quarter
 * of a second, before anything is decided after a second. It was read before we
 * received it, so what we take for now is never in the server's future.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/must.h"
#include "base/steady.h"
#include "calls/store/redis/redis.h"

enum {
    FRESH_US = 250000,
    OLD_US = 1000000,
    NAP_MS = 5,
    WORDS = 7,      /* of a command for one key */
    SWAPS = 64,     /* keys of one call of the script, ... */
    SWAP_KIB = 256, /* ... and what it takes, if there are several */
    KEY = ONCE__REDIS_PREFIX + ONCE_NAME_SIZE
};

/* ---- The server's clock -------------------------------------------------- */

uint64_t once__redis_server_us(const struct once__redis_link *l)
{
    return l->server_us + (once__steady_us() - l->heard_us);
}

static int older(const struct once__redis_link *l, uint64_t us)
{
    return l->heard_us == 0 || once__steady_us() - l->heard_us > us;
}

static int ask_time(struct once__redis_link *l)
{
    const once_bytes time = {"TIME", 4};
    size_t index;

    if (l->time_reply != 0)
        return 1;
    if (!once__redis_command(l, 1, &time, &index))
        return 0;
    l->time_reply = index + 1;
    return 1;
}

static uint64_t number(const redisReply *r)
{
    return r->type == REDIS_REPLY_STRING ? strtoull(r->str, NULL, 10) : 0;
}

static void hear_time(struct once__redis_link *l)
{
    const redisReply *r;

    if (l->time_reply == 0)
        return;
    r = once__redis_reply(l, l->time_reply - 1);
    l->time_reply = 0;
    if (r == NULL)
        return;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
        number(r->element[0]) == 0) {
        once__redis_link_fail(l, "it does not say what time it is");
        return;
    }
    l->server_us = number(r->element[0]) * 1000000 + number(r->element[1]);
    l->heard_us = once__steady_us();
}

/* ---- Commands ------------------------------------------------------------ */

/* Links that this round uses, each once. */
struct round {
    struct once__redis_link *links[ONCE__REDIS_NODES];
    size_t count;
};

static void use(struct round *round, struct once__redis_link *l)
{
    size_t i;

    for (i = 0; i < round->count; i++)
        if (round->links[i] == l)
            return;
    round->links[round->count++] = l;
}

struct words {
    once_bytes word[WORDS];
    size_t n;
};

static void add(struct words *w, const void *data, size_t size)
{
    ONCE__MUST(w->n < WORDS);
    w->word[w->n++] = (once_bytes){data, size};
}

static void add_text(struct words *w, const char *text)
{
    add(w, text, strlen(text));
}

static void add_words(struct words *w, const struct once__redis_item *item,
                      const once_bytes *key, const char *digits)
{
    add_text(w, "SET");
    add(w, key->data, key->size);
    add(w, item->value.data, item->value.size);
    add_text(w, "NX");
    add_text(w, "GET");
    if (*digits != '\0') {
        add_text(w, "PX");
        add_text(w, digits);
    }
}

static void get_words(struct words *w, const struct once__redis_item *item,
                      const once_bytes *key, const char *last)
{
    add_text(w, item->ask == ONCE__REDIS_GET ? "GET" : "GETRANGE");
    add(w, key->data, key->size);
    if (item->ask == ONCE__REDIS_PEEK) {
        add_text(w, "0");
        add_text(w, last);
    }
}

static int send_item(struct once__redis_item *item, struct once__redis_link *l,
                     const once_bytes *key)
{
    char digits[24] = "";
    struct words w = {.n = 0};

    if (item->ask == ONCE__REDIS_PEEK)
        (void)snprintf(digits, sizeof(digits), "%zu", item->value.size - 1);
    else if (item->px > 0)
        (void)snprintf(digits, sizeof(digits), "%llu",
                       (unsigned long long)item->px);
    if (item->ask == ONCE__REDIS_ADD)
        add_words(&w, item, key, digits);
    else
        get_words(&w, item, key, digits);
    return once__redis_command(l, w.n, w.word, &item->index);
}

/* ---- Sending ------------------------------------------------------------- */

static void settle(struct once__redis_item *item, int rc)
{
    item->ask = ONCE__REDIS_NOTHING;
    item->rc = rc;
}

static once_bytes key_of(const struct once__redis_net *net,
                         const struct once__redis_item *item, uint8_t *room)
{
    size_t n = strlen(net->config.prefix);

    memcpy(room, net->config.prefix, n);
    memcpy(room + n, item->name, ONCE_NAME_SIZE);
    return (once_bytes){room, n + ONCE_NAME_SIZE};
}

/* A server that has forgotten the script learns it again, and the clock is
 * kept fresh. 0: no memory. */
static int ready(struct once__redis_net *net, struct once__redis_link *l)
{
    const once_bytes load[] = {
        {"SCRIPT", 6}, {"LOAD", 4}, {l->script, strlen(l->script)}};
    size_t index;

    if (!l->loaded) {
        if (!once__redis_command(l, 3, load, &index))
            return 0;
        l->loaded = 1;
        net->loads++;
    }
    return once__redis_link_watch(l) && (!older(l, FRESH_US) || ask_time(l));
}

static int ask_asking(struct once__redis_link *l)
{
    const once_bytes asking = {"ASKING", 6};
    size_t index;

    return once__redis_command(l, 1, &asking, &index);
}

/* The link that the item's command is to be queued on. NULL: it is settled. */
static struct once__redis_link *prepare(struct once__redis_net *net,
                                        struct once__redis_item *item,
                                        const once_bytes *key)
{
    struct once__redis_link *l = item->redirect;
    int redirected = l != NULL;

    item->sent = 0;
    item->redirect = NULL;
    if (!redirected)
        l = once__redis_net_route(net, key->data, key->size);
    if (l == NULL || l->fd < 0) {
        settle(item, ONCE_ESTORE);
        return NULL;
    }
    if (!ready(net, l) || (redirected && !ask_asking(l))) {
        settle(item, ONCE_ENOMEM);
        return NULL;
    }
    return l;
}

static void sent(struct round *round, struct once__redis_item *item,
                 struct once__redis_link *l)
{
    use(round, l);
    item->link = l;
    item->generation = l->generation;
    item->sent = 1;
}

static void send_one(struct once__redis_net *net, struct round *round,
                     struct once__redis_item *item)
{
    uint8_t room[KEY];
    once_bytes key = key_of(net, item, room);
    struct once__redis_link *l = prepare(net, item, &key);

    if (l == NULL)
        return;
    item->of = 0;
    if (send_item(item, l, &key))
        sent(round, item, l);
    else
        settle(item, ONCE_ENOMEM);
}

/* ---- Swaps
 * --------------------------------------------------------------------
 *
 * A call of a script costs the server more than a SET, whatever the script
 * does, so one call takes many keys. In a cluster they lie in as many slots,
 * and each gets a call of its own.
 */

struct swaps {
    struct once__redis_link *link;
    struct once__redis_item *item[SWAPS];
    size_t n, size;
    uint8_t key[SWAPS][KEY];
    char how[SWAPS][24];
};

static int is_swap(const struct once__redis_item *item)
{
    return item->ask == ONCE__REDIS_SWAP || item->ask == ONCE__REDIS_TOUCH;
}

static void add_swap(struct swaps *s, struct once__redis_item *item,
                     struct once__redis_link *l)
{
    char *how = s->how[s->n];

    ONCE__MUST(s->n == 0 || s->link == l);
    how[0] = '\0';
    if (item->ask == ONCE__REDIS_TOUCH)
        (void)snprintf(how, sizeof(s->how[0]), "=");
    else if (item->px > 0)
        (void)snprintf(how, sizeof(s->how[0]), "%llu",
                       (unsigned long long)item->px);
    s->link = l;
    s->size += item->value.size;
    s->item[s->n++] = item;
}

static int send_swaps(const struct once__redis_net *net, struct swaps *s,
                      size_t *index)
{
    once_bytes word[3 + 4 * SWAPS], *at = word;
    char count[24];
    size_t i;

    (void)snprintf(count, sizeof(count), "%zu", s->n);
    *at++ = (once_bytes){"EVALSHA", 7};
    *at++ = (once_bytes){s->link->sha, strlen(s->link->sha)};
    *at++ = (once_bytes){count, strlen(count)};
    for (i = 0; i < s->n; i++)
        *at++ = key_of(net, s->item[i], s->key[i]);
    for (i = 0; i < s->n; i++) {
        const struct once__redis_item *item = s->item[i];

        *at++ = (once_bytes){item->old, ONCE__REDIS_HEAD};
        *at++ = item->ask == ONCE__REDIS_SWAP ? item->value : (once_bytes){0};
        *at++ = (once_bytes){s->how[i], strlen(s->how[i])};
    }
    return once__redis_command(s->link, (size_t)(at - word), word, index);
}

static void end_swaps(const struct once__redis_net *net, struct round *round,
                      struct swaps *s)
{
    size_t i, index = 0;
    int ok = s->n > 0 && send_swaps(net, s, &index);

    for (i = 0; i < s->n; i++) {
        if (!ok) {
            settle(s->item[i], ONCE_ENOMEM);
            continue;
        }
        s->item[i]->index = index;
        s->item[i]->part = i;
        s->item[i]->of = s->n;
        sent(round, s->item[i], s->link);
    }
    s->n = s->size = 0;
}

static void send_all(struct once__redis_net *net, struct round *round,
                     struct once__redis_item **items, size_t n)
{
    size_t i, most = net->config.mode == ONCE__REDIS_CLUSTER ? 1 : SWAPS;
    struct swaps swaps;
    uint8_t room[KEY];

    swaps.n = swaps.size = 0;
    for (i = 0; i < n; i++) {
        struct once__redis_item *item = items[i];
        struct once__redis_link *l;
        once_bytes key;

        if (!is_swap(item)) {
            if (item->ask != ONCE__REDIS_NOTHING)
                send_one(net, round, item);
            continue;
        }
        if (swaps.size + item->value.size > SWAP_KIB * 1024)
            end_swaps(net, round, &swaps);
        key = key_of(net, item, room);
        l = prepare(net, item, &key);
        if (l != NULL)
            add_swap(&swaps, item, l);
        if (swaps.n == most) /* at once in a cluster: ASKING is for the next */
            end_swaps(net, round, &swaps);
    }
    end_swaps(net, round, &swaps);
}

/* ---- Replies ------------------------------------------------------------- */

/* "MOVED 1234 10.0.0.1:6379": 0 if it is not like that. A host that is not
 * named is the one that was asked. */
static int read_redirection(const redisReply *r,
                            const struct once__redis_link *asked,
                            unsigned *slot, struct once__redis_place *out)
{
    const char *at = strchr(r->str, ' '), *colon;
    char *end;
    size_t n;

    if (at == NULL || at[1] < '0' || at[1] > '9')
        return 0;
    *slot = (unsigned)strtoul(at + 1, &end, 10);
    colon = strrchr(end, ':');
    if (*end != ' ' || colon == NULL)
        return 0;
    *out = asked->place;
    n = (size_t)(colon - end - 1);
    if (n >= sizeof(out->host) || strlen(colon + 1) >= sizeof(out->port))
        return 0;
    if (n > 0)
        (void)snprintf(out->host, sizeof(out->host), "%.*s", (int)n, end + 1);
    (void)snprintf(out->port, sizeof(out->port), "%s", colon + 1);
    return 1;
}

static void nap(void)
{
    const struct timespec t = {0, (long)NAP_MS * 1000000};

    (void)nanosleep(&t, NULL);
}

static void note_reply(struct once__redis_net *net,
                       const struct once__redis_link *l, const redisReply *r)
{
    size_t n = strcspn(r->str, " ");

    (void)snprintf(net->trouble, sizeof(net->trouble),
                   "%.60s%s%s: it answers %.*s", l->place.host,
                   *l->place.port ? ":" : "", l->place.port,
                   n < 24 ? (int)n : 24, r->str);
}

/* Nothing was done, and the same question is put again. 0: not so. */
static int redirected(struct once__redis_net *net,
                      struct once__redis_item *item, const redisReply *r)
{
    struct once__redis_place place;
    unsigned slot;
    int moved = once__redis_is(r, "MOVED");

    if (once__redis_is(r, "NOSCRIPT")) {
        item->link->loaded = 0;
        return 1;
    }
    if (once__redis_is(r, "TRYAGAIN")) {
        nap();
        return 1;
    }
    if (!moved && !once__redis_is(r, "ASK"))
        return 0;
    if (net->config.mode != ONCE__REDIS_CLUSTER ||
        !read_redirection(r, item->link, &slot, &place))
        return 0;
    if (moved) {
        once__redis_net_moved(net, slot, &place);
        return 1;
    }
    net->asked++;
    item->redirect = once__redis_net_at(net, &place);
    return item->redirect != NULL;
}

/* It was refused: nothing was done. */
static void refused(struct once__redis_net *net, struct once__redis_item *item,
                    const redisReply *r)
{
    note_reply(net, item->link, r);
    if (once__redis_is(r, "WRONGTYPE")) {
        settle(item, ONCE_ECORRUPT); /* another program's key, never a miss */
        return;
    }
    if (once__redis_is(r, "OOM")) {
        settle(item, ONCE_EFULL);
        return;
    }
    /* A server that is not the primary any more, or not yet. */
    if (once__redis_is(r, "READONLY") || once__redis_is(r, "MASTERDOWN") ||
        once__redis_is(r, "LOADING")) {
        net->stale = 1;
        once__redis_link_fail(item->link, "it is not the primary now");
    }
    if (once__redis_is(r, "CLUSTERDOWN"))
        net->stale = 1;
    settle(item, ONCE_ESTORE);
}

static void receive_one(struct once__redis_net *net,
                        struct once__redis_item *item)
{
    const redisReply *r = once__redis_reply(item->link, item->index);

    if (r == NULL || item->link->refused) {
        (void)snprintf(net->trouble, sizeof(net->trouble), "%s",
                       item->link->trouble);
        net->stale = 1;
        settle(item, ONCE_ESTORE);
        return;
    }
    if (item->of > 0 && r->type == REDIS_REPLY_ARRAY && r->elements == item->of)
        r = r->element[item->part];
    if (r->type == REDIS_REPLY_ERROR) {
        if (!redirected(net, item, r))
            refused(net, item, r);
        return;
    }
    item->reply = r;
    item->asked = item->ask;
    settle(item, ONCE_OK);
}

void once__redis_round(struct once__redis_net *net,
                       struct once__redis_item **items, size_t n)
{
    struct round round = {.count = 0};
    size_t i;

    send_all(net, &round, items, n);
    once__redis_exchange(round.links, round.count);
    for (i = 0; i < round.count; i++) {
        hear_time(round.links[i]);
        once__redis_link_watched(round.links[i]);
    }
    for (i = 0; i < n; i++)
        if (items[i]->ask != ONCE__REDIS_NOTHING && items[i]->sent)
            receive_one(net, items[i]);
}

void once__redis_clocks(struct once__redis_net *net,
                        struct once__redis_item **items, size_t n)
{
    struct round round = {.count = 0};
    uint8_t room[KEY];
    size_t i;

    for (i = 0; i < n; i++) {
        once_bytes key = key_of(net, items[i], room);
        struct once__redis_link *l =
            once__redis_net_route(net, key.data, key.size);

        items[i]->link = l;
        if (l != NULL && older(l, OLD_US) && ask_time(l))
            use(&round, l);
    }
    once__redis_exchange(round.links, round.count);
    for (i = 0; i < round.count; i++)
        hear_time(round.links[i]);
}
