/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.c - walks over all keys with our prefix: for the reaper, for lists, for
 * `once verify` and `once dump`.
 *
 * SCAN finds keys, then their heads are read in pages; results stay where they
 * are. In a cluster all primaries are walked, one after the other.
 *
 *    ALL          all names are taken once and put in order, while the caller
 *                 pages; who comes later is not shown
 *    LEASE, KEEP  a call looks at few records and few keys of others, some
 *                 milliseconds, since meanwhile claims wait, and the next one
 *                 goes on from there; it begins again at the end, or when
 *                 enough were shown
 *    WAITING, LIVE  the heads of all keys are read, those that are meant are put
 *                 in order, and a page of them is shown
 *
 * There is no index of what is due: it would cost a write to another key with
 * every claim, in a cluster on another node. A claim finds by itself that a
 * lease has expired, and the server drops what may be forgotten, so the reaper
 * has no hurry here.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls/core/transition.h"
#include "base/error.h"
#include "base/grow.h"
#include "calls/store/redis/redis.h"
#include "calls/store/store.h"

enum {
    PAGE = 256,  /* heads in one round */
    KEYS = 1024, /* hint for SCAN      */
    LOOK = 1024, /* records that a call looks at for what is due, */
    STEPS = 32,  /* ... and SCAN commands; claims wait meanwhile   */
    ROUNDS = 64
};

/* A page of names, and what was read of them. */
struct page {
    struct once__redis_item item[PAGE];
    struct once__redis_item *items[PAGE];
    uint8_t names[PAGE][ONCE_NAME_SIZE];
    once_record record[PAGE];
    int rc[PAGE]; /* of the decoding; ONCE_ENOSYS: it is gone */
    size_t n;
};

static int unknown(const struct once__redis_net *net, once_error *err)
{
    return once__fail(err, ONCE_ESTORE, "redis: %s", net->trouble);
}

void once__redis_scan_clear(struct once__redis_scan *scan)
{
    free(scan->names);
    memset(scan, 0, sizeof(*scan));
}

/* ---- Reading a page ----------------------------------------------------- */

static void read_item(struct page *p, size_t i, int whole)
{
    struct once__redis_item *item = &p->item[i];
    const redisReply *r = item->reply;
    once_bytes value = {r->str, r->len};
    size_t more = 0;

    item->reply = NULL;
    if (r->type == REDIS_REPLY_NIL ||
        (r->type == REDIS_REPLY_STRING && r->len == 0)) {
        p->rc[i] = ONCE_ENOSYS;
        return;
    }
    if (r->type != REDIS_REPLY_STRING) {
        p->rc[i] = ONCE_ECORRUPT;
        return;
    }
    if (whole) {
        p->rc[i] = once__redis_value_decode(value, p->names[i], &p->record[i]);
        if (p->rc[i] == ONCE_FREE)
            p->rc[i] = ONCE_ENOSYS; /* forgotten */
        return;
    }
    p->rc[i] = once__redis_value_peek(value, p->names[i], &p->record[i], &more);
    if (p->rc[i] == ONCE_FREE)
        p->rc[i] = ONCE_ENOSYS;
    if (more > item->value.size) { /* the note, too */
        item->ask = ONCE__REDIS_PEEK;
        item->value.size = more;
    }
}

/* Reads the heads, or the values whole. 0: not all could be read. */
static int read_page(struct once__redis_net *net, struct page *p, int whole)
{
    size_t i, round, left = p->n;

    for (i = 0; i < p->n; i++) {
        memset(&p->item[i], 0, sizeof(p->item[i]));
        p->items[i] = &p->item[i];
        p->item[i].name = p->names[i];
        p->item[i].ask = whole ? ONCE__REDIS_GET : ONCE__REDIS_PEEK;
        p->item[i].value.size = ONCE__REDIS_HEAD;
    }
    once__redis_clocks(net, p->items, p->n);
    for (round = 0; round < ROUNDS && left > 0; round++) {
        once__redis_round(net, p->items, p->n);
        for (i = left = 0; i < p->n; i++) {
            if (p->item[i].reply != NULL)
                read_item(p, i, whole);
            else if (p->item[i].rc == ONCE_ECORRUPT)
                p->rc[i] = ONCE_ECORRUPT; /* not even a string */
            else if (p->item[i].rc != ONCE_OK)
                return 0;
            left += p->item[i].ask != ONCE__REDIS_NOTHING;
        }
    }
    return left == 0;
}

/* ---- Finding names ------------------------------------------------------- */

/* One SCAN. The names are borrowed from the reply. NULL: no answer. */
static const redisReply *scan_step(struct once__redis_net *net, size_t node,
                                   const char *cursor)
{
    char match[ONCE__REDIS_PREFIX + 2], hint[16];
    const char *const words[] = {"SCAN", cursor, "MATCH", match, "COUNT", hint};
    struct once__redis_link *l = net->nodes[node];
    const redisReply *r = NULL;

    (void)snprintf(match, sizeof(match), "%s*", net->config.prefix);
    (void)snprintf(hint, sizeof(hint), "%d", KEYS);
    if (net->config.mode == ONCE__REDIS_SENTINEL)
        l = once__redis_net_route(net, "", 0);
    else if (once__redis_link_up(l) != ONCE_OK)
        (void)snprintf(net->trouble, sizeof(net->trouble), "%s", l->trouble);
    if (l != NULL)
        r = once__redis_call(l, 6, words);
    if (r != NULL && r->type == REDIS_REPLY_ARRAY && r->elements == 2 &&
        r->element[0]->type == REDIS_REPLY_STRING &&
        r->element[1]->type == REDIS_REPLY_ARRAY)
        return r;
    if (l != NULL)
        (void)snprintf(net->trouble, sizeof(net->trouble),
                       "%.60s: no answer to SCAN", l->place.host);
    return NULL;
}

static const uint8_t *name_in(const struct once__redis_net *net,
                              const redisReply *key)
{
    size_t n = strlen(net->config.prefix);

    if (key->type != REDIS_REPLY_STRING || key->len != n + ONCE_NAME_SIZE ||
        memcmp(key->str, net->config.prefix, n) != 0)
        return NULL;
    return (const uint8_t *)key->str + n;
}

/* Where a walk is; `over` when it has come to the end. */
struct walk {
    size_t node;
    char cursor[24];
    int over;
};

static void walk_start(const struct once__redis_net *net, struct walk *w)
{
    memset(w, 0, sizeof(*w));
    w->cursor[0] = '0';
    while (w->node < net->count && !once__redis_net_owns(net, w->node))
        w->node++;
    w->over = w->node >= net->count;
}

static const redisReply *walk_step(struct once__redis_net *net, struct walk *w)
{
    const redisReply *r = scan_step(net, w->node, w->cursor);

    if (r == NULL)
        return NULL;
    (void)snprintf(w->cursor, sizeof(w->cursor), "%s", r->element[0]->str);
    if (strcmp(w->cursor, "0") != 0)
        return r->element[1];
    do
        w->node++;
    while (w->node < net->count && !once__redis_net_owns(net, w->node));
    w->over = w->node >= net->count;
    return r->element[1];
}

/* ---- All, in order ------------------------------------------------------- */

static int add_name(struct once__redis_scan *scan, const uint8_t *name)
{
    void *names =
        once__grown(scan->names, &scan->room, scan->count + 1, ONCE_NAME_SIZE);

    if (names == NULL)
        return 0;
    scan->names = names;
    memcpy(scan->names[scan->count++], name, ONCE_NAME_SIZE);
    return 1;
}

static int by_name(const void *a, const void *b)
{
    return memcmp(a, b, ONCE_NAME_SIZE);
}

/* SCAN may show a key twice. */
static void sort_names(struct once__redis_scan *scan)
{
    size_t i, n = 0;

    if (scan->count > 0)
        qsort(scan->names, scan->count, ONCE_NAME_SIZE, by_name);
    for (i = 0; i < scan->count; i++)
        if (n == 0 || by_name(scan->names[n - 1], scan->names[i]) != 0)
            memmove(scan->names[n++], scan->names[i], ONCE_NAME_SIZE);
    scan->count = n;
    scan->whole = 1;
}

static int take_names(struct once__redis_net *net,
                      struct once__redis_scan *scan, once_error *err)
{
    struct walk w;
    const redisReply *keys;
    const uint8_t *name;
    size_t i;

    scan->count = 0;
    scan->whole = 0;
    for (walk_start(net, &w); !w.over;) {
        once__redis_net_begin(net); /* frees the last page's replies */
        keys = walk_step(net, &w);
        if (keys == NULL)
            return unknown(net, err);
        for (i = 0; i < keys->elements; i++) {
            name = name_in(net, keys->element[i]);
            if (name != NULL && !add_name(scan, name))
                return once__fail(err, ONCE_ENOMEM, "redis: out of memory");
        }
    }
    sort_names(scan);
    return ONCE_OK;
}

/* The first name after `after`. */
static size_t first_after(const struct once__redis_scan *scan,
                          const uint8_t *after)
{
    size_t low = 0, high = after == NULL ? 0 : scan->count, middle;

    while (low < high) {
        middle = low + (high - low) / 2;
        if (by_name(scan->names[middle], after) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int fill_page(const struct once__redis_scan *scan, size_t at,
                     size_t most, struct page *p)
{
    p->n = scan->count - at < most ? scan->count - at : most;
    p->n = p->n < PAGE ? p->n : PAGE;
    if (p->n > 0)
        memcpy(p->names, scan->names[at], p->n * ONCE_NAME_SIZE);
    return p->n > 0;
}

/* Shows a page; returns 1 when `each` has had enough. */
static int show_page(struct page *p, once_each *each, void *user, int *shown)
{
    size_t i;

    for (i = 0; i < p->n; i++) {
        if (p->rc[i] == ONCE_ENOSYS)
            continue;
        if (p->rc[i] != ONCE_OK) {
            memset(&p->record[i], 0, sizeof(p->record[i]));
            p->record[i].state = 255;
        }
        p->record[i].result.data = NULL;
        (*shown)++;
        if (each(user, p->names[i], &p->record[i]) != 0)
            return 1;
    }
    return 0;
}

static int scan_all(struct once__redis_net *net, struct once__redis_scan *scan,
                    struct page *p, const uint8_t *after, uint32_t max,
                    once_each *each, void *user, once_error *err)
{
    int shown = 0, enough = 0, rc = ONCE_OK;
    size_t at;

    if (max == 0)
        return 0;
    if (after == NULL || !scan->whole)
        rc = take_names(net, scan, err);
    if (rc != ONCE_OK)
        return rc;
    for (at = first_after(scan, after); !enough && shown < (int)max;
         at += p->n) {
        if (!fill_page(scan, at, max - (uint32_t)shown, p)) {
            once__redis_scan_clear(scan); /* come to the end */
            break;
        }
        once__redis_net_begin(net);
        if (!read_page(net, p, 0))
            return unknown(net, err);
        enough = show_page(p, each, user, &shown);
    }
    return shown;
}

/* ---- What is due --------------------------------------------------------- */

struct due {
    struct once__redis_net *net;
    const once_store_options *clock;
    const once_store *store;
    int what;
    uint32_t max, looked;
    once_each *each;
    void *user;
    int shown, enough;
};

static uint64_t now_ms(const struct due *d, const struct once__redis_item *item)
{
    return once__time_of(d->store, d->what == ONCE_SCAN_KEEP,
                         d->clock != NULL
                             ? d->clock->clock(d->clock->user)
                             : once__redis_server_us(item->link) / 1000);
}

static void show_due(struct due *d, struct page *p)
{
    size_t i;

    for (i = 0; i < p->n && !d->enough; i++) {
        if (p->rc[i] != ONCE_OK ||
            once__record_due(&p->record[i], now_ms(d, &p->item[i])) != d->what)
            continue;
        p->record[i].result.data = NULL;
        d->shown++;
        d->enough = d->each(d->user, p->names[i], &p->record[i]) != 0 ||
                    d->shown == (int)d->max;
    }
}

/* The keys of one SCAN, in pages. 0: some could not be read. */
static int look(struct due *d, const redisReply *keys, struct page *p)
{
    const uint8_t *name;
    size_t i = 0;

    while (i < keys->elements && !d->enough) {
        for (p->n = 0; i < keys->elements && p->n < PAGE; i++) {
            name = name_in(d->net, keys->element[i]);
            if (name != NULL)
                memcpy(p->names[p->n++], name, ONCE_NAME_SIZE);
        }
        if (p->n > 0 && !read_page(d->net, p, 0))
            return 0;
        d->looked += (uint32_t)p->n;
        show_due(d, p);
    }
    return 1;
}

static int scan_due(struct due *d, struct once__redis_scan *scan,
                    struct page *p, once_error *err)
{
    const redisReply *keys;
    unsigned steps = 0;
    struct walk w;

    walk_start(d->net, &w);
    if (scan->at[d->what].cursor[0] != '\0') {
        w.node = scan->at[d->what].node;
        memcpy(w.cursor, scan->at[d->what].cursor, sizeof(w.cursor));
    }
    scan->at[d->what].cursor[0] = '\0'; /* again, unless the end is not near */
    w.over |= d->max == 0;
    while (!w.over && !d->enough && d->looked < LOOK && steps++ < STEPS) {
        once__redis_net_begin(d->net);
        keys = walk_step(d->net, &w);
        if (keys == NULL || !look(d, keys, p))
            return unknown(d->net, err);
    }
    if (!w.over && !d->enough) {
        scan->at[d->what].node = w.node;
        memcpy(scan->at[d->what].cursor, w.cursor, sizeof(w.cursor));
    }
    return d->shown;
}

/* ---- What waits, what is live: in order --------------------------------- */

struct places {
    once_position *at;
    size_t count, room;
};

static int is_meant(const struct page *p, size_t i, int what)
{
    int state = p->record[i].state;

    if (p->rc[i] != ONCE_OK)
        return 0;
    return what == ONCE_SCAN_WAITING
               ? state == ONCE_INDETERMINATE
               : state == ONCE_CLAIMED || state == ONCE_DISPATCHED;
}

/* 0: no memory. */
static int add_place(struct places *all, once_position place)
{
    void *at =
        once__grown(all->at, &all->room, all->count + 1, sizeof(*all->at));

    if (at == NULL)
        return 0;
    all->at = at;
    all->at[all->count++] = place;
    return 1;
}

/* The places of all that are meant, behind `after`, in order. */
static int find_places(struct due *d, struct once__redis_scan *scan,
                       struct page *p, const once_position *after,
                       struct places *all, once_error *err)
{
    once_position place;
    size_t at, i;
    int rc = take_names(d->net, scan, err);

    for (at = 0; rc == ONCE_OK && fill_page(scan, at, PAGE, p); at += p->n) {
        once__redis_net_begin(d->net);
        if (!read_page(d->net, p, 0))
            return unknown(d->net, err);
        for (i = 0; i < p->n; i++) {
            if (!is_meant(p, i, d->what))
                continue;
            place = once_position_of(d->what, p->names[i], &p->record[i]);
            if ((after == NULL || once__position_order(after, &place) < 0) &&
                !add_place(all, place))
                return once__fail(err, ONCE_ENOMEM, "redis: out of memory");
        }
    }
    if (rc == ONCE_OK && all->count > 0)
        qsort(all->at, all->count, sizeof(*all->at), once__position_order);
    once__redis_scan_clear(scan);
    return rc;
}

/* Reads them once more, since what changed meanwhile has another place. */
static int show_places(struct due *d, struct page *p, const struct places *all)
{
    once_position place;
    size_t at, i, n;

    for (at = 0; at < all->count && !d->enough; at += p->n) {
        n = all->count - at;
        p->n = n < PAGE ? n : PAGE;
        for (i = 0; i < p->n; i++)
            memcpy(p->names[i], all->at[at + i].name, ONCE_NAME_SIZE);
        once__redis_net_begin(d->net);
        if (!read_page(d->net, p, 0))
            return 0;
        for (i = 0; i < p->n && !d->enough; i++) {
            if (!is_meant(p, i, d->what))
                continue;
            place = once_position_of(d->what, p->names[i], &p->record[i]);
            if (once__position_order(&place, &all->at[at + i]) != 0)
                continue;
            p->record[i].result.data = NULL;
            d->shown++;
            d->enough = d->each(d->user, p->names[i], &p->record[i]) != 0 ||
                        d->shown == (int)d->max;
        }
    }
    return 1;
}

static int scan_places(struct due *d, struct once__redis_scan *scan,
                       struct page *p, const once_position *after,
                       once_error *err)
{
    struct places all = {NULL, 0, 0};
    int rc;

    if (d->max == 0)
        return 0;
    rc = find_places(d, scan, p, after, &all, err);
    if (rc == ONCE_OK)
        rc = show_places(d, p, &all) ? d->shown : unknown(d->net, err);
    free(all.at);
    return rc;
}

int once__redis_scan(struct once__redis_net *net, struct once__redis_scan *scan,
                     const once_store_options *clock, const once_store *store,
                     int what, const once_position *after, uint32_t max,
                     once_each *each, void *user, once_error *err)
{
    struct due d = {net, clock, store, what, max, 0, each, user, 0, 0};
    struct page *p = malloc(sizeof(*p));
    int rc;

    if (p == NULL)
        return once__fail(err, ONCE_ENOMEM, "redis: out of memory");
    if (d.max > INT_MAX)
        d.max = INT_MAX;
    if (what == ONCE_SCAN_ALL)
        rc = scan_all(net, scan, p, after == NULL ? NULL : after->name, d.max,
                      each, user, err);
    else if (what == ONCE_SCAN_WAITING || what == ONCE_SCAN_LIVE)
        rc = scan_places(&d, scan, p, after, err);
    else
        rc = scan_due(&d, scan, p, err);
    free(p);
    return rc;
}

/* ---- Whole values -------------------------------------------------------- */

int once__redis_walk(struct once__redis_net *net, struct once__redis_scan *scan,
                     once__redis_seen *seen, void *user, once_error *err)
{
    struct page *p = malloc(sizeof(*p));
    size_t at, i;
    int rc;

    if (p == NULL)
        return once__fail(err, ONCE_ENOMEM, "redis: out of memory");
    rc = take_names(net, scan, err);
    /* One by one: results may be large. */
    for (at = 0; rc == ONCE_OK && fill_page(scan, at, 1, p); at += p->n) {
        once__redis_net_begin(net);
        if (!read_page(net, p, 1)) {
            rc = unknown(net, err);
            break;
        }
        for (i = 0; i < p->n; i++)
            if (p->rc[i] != ONCE_ENOSYS)
                (void)seen(user, p->names[i], p->rc[i], &p->record[i]);
    }
    free(p);
    return rc;
}
