/* SPDX-License-Identifier: Apache-2.0 */
/*
 * apply.c - one batch: what is asked next, and what the core says to it.
 *
 * The server keeps bytes; once__transition() decides here. What makes that one
 * indivisible step is a compare-and-set on the value that was decided from:
 *
 *    first sight of a claim    SET key new NX GET       nothing there: granted
 *    what we wrote last        swap key old-head new    unchanged: done
 *    anything else             GET key                  shows what is there
 *         |
 *         v  a value came back
 *    decide from it --> nothing to write: answered
 *         ^        +--> swap key old-head new --> unchanged: done
 *         +-------------------- it was another by then --+
 *
 * So a new claim is one plain command and its completion one script call, in
 * one round trip each, and no rule of the protocol is written a second time in
 * Lua. Time is the server's (see ask.c), leases are values compared with it,
 * and nothing that is live has a TTL. All operations of a batch on one name are
 * decided together and written once.
 *
 * It refuses to take a value that fails its checksum for no value, and to
 * answer from what it remembers: that only saves a question where it still
 * holds.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "calls/core/transition.h"
#include "base/error.h"
#include "base/steady.h"
#include "calls/store/arena.h"
#include "calls/store/redis/redis.h"
#include "calls/store/store.h"

enum {
    ROUNDS = 64,         /* of questions in one apply() */
    LONG_CALL = 4,       /* times timeout_ms: no new round after */
    KNOWN = 4096,        /* slots for live records of ours */
    TICK_US = 16,        /* fences: this much time, ... */
    SALT_BITS = 16,      /* ... then bits of this handle's own */
    TOMBSTONE_MS = 10000 /* a forgotten name's fence is kept so long */
};

/* Fences count from 2020-01-01. */
#define EPOCH_US UINT64_C(1577836800000000)
#define PX_MAX_MS UINT64_C(630720000000) /* twenty years */

enum { KNOWN_SIZE = ONCE__REDIS_HEAD + ONCE_LABEL_MAX };

/* A live record as this handle wrote it last; it may be another by now. */
struct known {
    uint8_t name[ONCE_NAME_SIZE];
    uint8_t value[KNOWN_SIZE]; /* head and label */
};

/* One operation of a batch, for sorting. */
struct place {
    once_op *op;
    size_t at; /* in the batch */
    /* What it brings, where others may show it. */
    once_bytes result, note, label;
};

/* All operations of a batch on one name. */
struct group {
    struct once__redis_item item;
    struct place *ops; /* in the order of the batch */
    size_t n;
    once_record from, to;
    uint64_t last; /* the largest fence that the name is known to have had */
    uint8_t old[ONCE__REDIS_HEAD]; /* the head of `from` as it lies there */
    uint8_t known[KNOWN_SIZE];     /* `from`, where it was known            */
    int has_row;                   /* `from` is one */
    int acknowledged;              /* some answer rests on what is stored */
    int written;                   /* something was written for it */
};

struct once__redis_batch {
    struct once__redis_net *net;
    const once_store_options *options;
    const once_store *store;
    int servers_clock;
    struct once__arena arena;
    struct known *known;
    /* Of one batch; they only grow. */
    struct group *groups;
    struct once__redis_item **items;
    struct place *order;
    size_t room;
    uint64_t tick; /* of the last fence */
    uint16_t salt;
};

/* ---- Memory ------------------------------------------------------------- */

static int make_room(struct once__redis_batch *s, size_t n)
{
    if (n <= s->room)
        return 1;
    free(s->groups);
    free(s->items);
    free(s->order);
    s->room = 0;
    s->groups = calloc(n, sizeof(*s->groups));
    s->items = calloc(n, sizeof(*s->items));
    s->order = calloc(n, sizeof(*s->order));
    if (s->groups == NULL || s->items == NULL || s->order == NULL)
        return 0;
    s->room = n;
    return 1;
}

/* ---- What we wrote last -------------------------------------------------- */

static struct known *known_slot(struct once__redis_batch *s,
                                const uint8_t *name)
{
    uint32_t n;

    memcpy(&n, name, sizeof(n)); /* a hash already */
    return &s->known[(n ^ n >> 12) % KNOWN];
}

static int recall(struct once__redis_batch *s, struct group *g)
{
    const struct known *k = known_slot(s, g->item.name);
    once_bytes value = {g->known, sizeof(g->known)};
    size_t more;

    if (memcmp(k->name, g->item.name, ONCE_NAME_SIZE) != 0)
        return 0;
    memcpy(g->known, k->value, sizeof(g->known));
    if (once__redis_value_peek(value, k->name, &g->from, &more) != ONCE_OK)
        return 0;
    memcpy(g->old, g->known, sizeof(g->old));
    g->has_row = 1;
    return 1;
}

/* Only what head and label say whole. */
static void remember(struct once__redis_batch *s, const struct group *g)
{
    struct known *k = known_slot(s, g->item.name);

    if (g->to.attempt > 0 && g->to.result.size == 0 && g->to.note.size == 0 &&
        g->to.state != ONCE_COMPLETED) {
        memcpy(k->name, g->item.name, sizeof(k->name));
        memcpy(k->value, g->item.value.data,
               ONCE__REDIS_HEAD + g->to.label.size);
    } else if (memcmp(k->name, g->item.name, sizeof(k->name)) == 0) {
        memset(k, 0, sizeof(*k));
    }
}

/* ---- Deciding ------------------------------------------------------------ */

static uint64_t now_ms(const struct once__redis_batch *s,
                       const struct once__redis_link *l)
{
    return s->servers_clock ? once__redis_server_us(l) / 1000
                            : s->options->clock(s->options->user);
}

/*
 * The fence before the next one: once__transition() adds one. The server's time
 * in steps of 16 us, larger than the last of this handle and the last of this
 * name, also if that was forgotten a moment ago; then bits that distinguish
 * this handle from most others.
 */
static uint64_t fence_before(const struct once__redis_batch *s,
                             const struct group *g)
{
    uint64_t us = once__redis_server_us(g->item.link);
    uint64_t tick = us > EPOCH_US ? (us - EPOCH_US) / TICK_US : 0;

    if (tick <= s->tick)
        tick = s->tick + 1;
    if (tick <= g->last >> SALT_BITS)
        tick = (g->last >> SALT_BITS) + 1;
    return (tick << SALT_BITS | s->salt) - 1;
}

/* Answers of one operation may show what another one brought, and the caller
 * may end that one first: where there are others, its copy is what enters. */
static int apply_one(const struct group *g, struct place *p, once_record *r,
                     uint64_t now, uint64_t *fence)
{
    const once_bytes result = p->op->result, note = p->op->note,
                     label = p->op->label;
    int changed;

    if (g->n > 1) {
        p->op->result = p->result;
        p->op->note = p->note;
        p->op->label = p->label;
    }
    changed = once__transition(r, p->op, now, fence);
    p->op->result = result;
    p->op->note = note;
    p->op->label = label;
    return changed;
}

/*
 * Lets the core decide all operations of the group from `g->from`, as if one
 * after the other. Returns 1 if `g->to` must be written.
 */
static int decide(struct once__redis_batch *s, struct group *g)
{
    uint64_t now = now_ms(s, g->item.link), fence, before;
    once_record *r = &g->to;
    int changed = 0;
    size_t i;

    *r = g->from;
    if (r->fence > g->last)
        g->last = r->fence;
    g->acknowledged = 0;
    for (i = 0; i < g->n; i++) {
        struct place *p = &g->ops[i];
        const once_op *op = p->op;

        fence = before = fence_before(s, g);
        changed |= apply_one(
            g, p, r, once__time_of(s->store, op->verb == ONCE_OP_FORGET, now),
            &fence);
        if (r->fence > g->last)
            g->last = r->fence;
        if (fence != before)
            s->tick = fence >> SALT_BITS;
        g->acknowledged |=
            op->rc == ONCE_OK || op->rc == ONCE_OWNER || op->rc == ONCE_REPLAY;
    }
    if (r->state == ONCE_COMPLETED || r->state == ONCE_ABSENT)
        g->item.px =
            ONCE__REDIS_TIMES * (r->keep_ms > now ? r->keep_ms - now : 0) +
            ONCE__REDIS_MARGIN_MS;
    else
        g->item.px = 0; /* never a TTL on what is live */
    if (g->item.px > PX_MAX_MS)
        g->item.px = PX_MAX_MS;
    return changed;
}

static void fail(struct group *g, int rc)
{
    g->item.ask = ONCE__REDIS_NOTHING;
    g->item.rc = rc;
}

/* The value of `r`, in memory that lasts until the next call. */
static int encode(struct once__redis_batch *s, struct group *g,
                  const once_record *r)
{
    size_t size = once__redis_value_size(r);
    uint8_t *value = once__arena_take(&s->arena, size);

    if (value == NULL) {
        fail(g, ONCE_ENOMEM);
        return 0;
    }
    once__redis_value_encode(r, g->item.name, value);
    g->item.value = (once_bytes){value, size};
    return 1;
}

/*
 * A record that is forgotten leaves its fence for a while: another process may
 * be some milliseconds late in what it thinks is the server's time, and the
 * next fence of the name must not be smaller.
 */
static void ask_write(struct once__redis_batch *s, struct group *g)
{
    const once_record tombstone = {.fence = g->last};
    int forgotten = g->to.attempt == 0;

    g->item.old = g->old;
    if (forgotten && !g->has_row) {
        g->item.ask = ONCE__REDIS_NOTHING;
        return;
    }
    if (forgotten)
        g->item.px = TOMBSTONE_MS;
    if (encode(s, g, forgotten ? &tombstone : &g->to))
        g->item.ask = g->has_row ? ONCE__REDIS_SWAP : ONCE__REDIS_ADD;
}

/* Nothing is to be written. What was acknowledged before may not be on enough
 * replicas: only a write of our own can be waited for. */
static void ask_nothing(struct once__redis_batch *s, struct group *g)
{
    g->item.ask = ONCE__REDIS_NOTHING;
    if (s->net->config.wait == 0 || !g->acknowledged || !g->has_row)
        return;
    g->item.old = g->old;
    g->item.ask = ONCE__REDIS_TOUCH;
}

/* `g->from` is what there is now, or was a moment ago. */
static void go_on(struct once__redis_batch *s, struct group *g)
{
    if (decide(s, g))
        ask_write(s, g);
    else
        ask_nothing(s, g);
}

static int all_forget(const struct group *g)
{
    size_t i;

    for (i = 0; i < g->n; i++)
        if (g->ops[i].op->verb != ONCE_OP_FORGET)
            return 0;
    return 1;
}

/* The first question: what most likely needs no second one. */
static void begin(struct once__redis_batch *s, struct group *g)
{
    int known = recall(s, g);

    if (g->item.link == NULL || g->item.link->fd < 0)
        fail(g, ONCE_ESTORE);
    if (g->item.rc != ONCE_OK)
        return;
    if (!known)
        memset(&g->from, 0, sizeof(g->from));
    if (!known && all_forget(g)) {
        g->item.ask = ONCE__REDIS_PEEK; /* results are not read to go away */
        g->item.value.size = ONCE__REDIS_HEAD;
        return;
    }
    g->item.ask = ONCE__REDIS_GET;
    if (decide(s, g) && g->to.attempt > 0)
        ask_write(s, g);
}

/* ---- Answers ------------------------------------------------------------- */

static void show_error(struct group *g, int rc)
{
    size_t i;

    for (i = 0; i < g->n; i++) {
        g->ops[i].op->rc = rc;
        g->ops[i].op->left_ms = 0;
        memset(&g->ops[i].op->record, 0, sizeof(g->ops[i].op->record));
    }
}

static int all_claim(const struct group *g)
{
    size_t i;

    for (i = 0; i < g->n; i++)
        if (g->ops[i].op->verb != ONCE_OP_CLAIM)
            return 0;
    return 1;
}

/* Where results of a question are shown, those that were written take their
 * place: they last until the next call, the question does not. */
static void show_written(struct group *g)
{
    const uint8_t *value = g->item.value.data;
    const uint8_t *note = value + ONCE__REDIS_HEAD;
    const uint8_t *label = note + g->to.note.size;
    const uint8_t *result = label + g->to.label.size;
    size_t i;

    for (i = 0; i < g->n; i++) {
        once_record *r = &g->ops[i].op->record;

        if (r->note.size > 0 && r->note.data == g->to.note.data)
            r->note.data = note;
        if (r->label.size > 0 && r->label.data == g->to.label.data)
            r->label.data = label;
        if (r->result.size > 0 && r->result.data == g->to.result.data)
            r->result.data = result;
    }
}

/* A value came back: decide from it. */
static void take_value(struct once__redis_batch *s, struct group *g,
                       once_bytes value, int head_only)
{
    size_t more = 0;
    int rc = head_only
                 ? once__redis_value_peek(value, g->item.name, &g->from, &more)
                 : once__redis_value_decode(value, g->item.name, &g->from);

    if (more > 0 && more > g->item.value.size) { /* the note goes on */
        g->item.ask = ONCE__REDIS_PEEK;
        g->item.value.size = more;
        return;
    }
    if (rc != ONCE_OK && rc != ONCE_FREE) {
        fail(g, rc);
        return;
    }
    g->last = g->from.fence;
    if (rc == ONCE_FREE)
        memset(&g->from, 0, sizeof(g->from));
    memcpy(g->old, value.data, sizeof(g->old));
    g->has_row = 1;
    go_on(s, g);
    /* It stays, so it must be shown whole. */
    if (head_only && g->to.attempt > 0 && g->from.result.size > 0)
        g->item.ask = ONCE__REDIS_GET;
}

static void take_nothing(struct once__redis_batch *s, struct group *g)
{
    memset(&g->from, 0, sizeof(g->from));
    g->last = 0;
    g->has_row = 0;
    go_on(s, g);
}

/* `asked` was answered; sets what is to be asked next, if anything. */
static void answered(struct once__redis_batch *s, struct group *g,
                     enum once__redis_ask asked)
{
    const redisReply *r = g->item.reply;
    int type = asked == ONCE__REDIS_ADD     ? REDIS_REPLY_NIL
               : asked == ONCE__REDIS_SWAP  ? REDIS_REPLY_STATUS
               : asked == ONCE__REDIS_TOUCH ? REDIS_REPLY_INTEGER
                                            : 0;

    if (r->type == type) {
        if (asked == ONCE__REDIS_ADD || asked == ONCE__REDIS_SWAP)
            show_written(g);
        if (asked != ONCE__REDIS_TOUCH)
            remember(s, g);
        g->written = 1;
        return;
    }
    if (r->type == REDIS_REPLY_NIL ||
        (r->type == REDIS_REPLY_STRING && r->len == 0 &&
         asked == ONCE__REDIS_PEEK))
        take_nothing(s, g);
    else if (r->type == REDIS_REPLY_STRING)
        take_value(s, g, (once_bytes){r->str, r->len},
                   asked == ONCE__REDIS_PEEK);
    else
        fail(g, ONCE_ECORRUPT);
}

/* ---- A batch ------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int rc = memcmp(x->op->name, y->op->name, ONCE_NAME_SIZE);

    return rc != 0 ? rc : (x->at > y->at) - (x->at < y->at);
}

static int keep_bytes(struct once__redis_batch *s, const once_bytes *from,
                      once_bytes *to)
{
    void *copy = NULL;

    if (from->size > 0) {
        copy = once__arena_take(&s->arena, from->size);
        if (copy == NULL)
            return 0;
        memcpy(copy, from->data, from->size);
    }
    *to = (once_bytes){copy, from->size};
    return 1;
}

static void gather_one(struct once__redis_batch *s, struct group *g,
                       struct place *first, size_t n)
{
    size_t i;

    memset(g, 0, sizeof(*g));
    g->ops = first;
    g->n = n;
    g->item.name = first->op->name;
    for (i = 0; i < n && n > 1; i++)
        if (!keep_bytes(s, &first[i].op->result, &first[i].result) ||
            !keep_bytes(s, &first[i].op->note, &first[i].note) ||
            !keep_bytes(s, &first[i].op->label, &first[i].label))
            fail(g, ONCE_ENOMEM);
}

/* One group for each name. Returns how many. */
static size_t gather(struct once__redis_batch *s, once_op **ops, size_t n)
{
    size_t i, k, groups = 0;

    for (i = 0; i < n; i++)
        s->order[i] = (struct place){.op = ops[i], .at = i};
    qsort(s->order, n, sizeof(*s->order), by_name);
    for (i = 0; i < n; i = k, groups++) {
        for (k = i + 1; k < n; k++)
            if (memcmp(s->order[k].op->name, s->order[i].op->name,
                       ONCE_NAME_SIZE) != 0)
                break;
        gather_one(s, &s->groups[groups], &s->order[i], k - i);
        s->items[groups] = &s->groups[groups].item;
    }
    return groups;
}

static size_t one_round(struct once__redis_batch *s, size_t n)
{
    size_t i, left = 0;

    once__redis_round(s->net, s->items, n);
    for (i = 0; i < n; i++) {
        struct group *g = &s->groups[i];

        if (g->item.reply != NULL && g->item.ask == ONCE__REDIS_NOTHING) {
            answered(s, g, g->item.asked);
            g->item.reply = NULL;
        }
        left += g->item.ask != ONCE__REDIS_NOTHING;
    }
    return left;
}

static void ask_all(struct once__redis_batch *s, size_t n)
{
    uint64_t until =
        once__steady_us() + s->net->config.timeout_ms * 1000 * LONG_CALL;
    size_t i, round, left = 0;

    once__redis_clocks(s->net, s->items, n);
    for (i = 0; i < n; i++) {
        begin(s, &s->groups[i]);
        left += s->groups[i].item.ask != ONCE__REDIS_NOTHING;
    }
    for (round = 0; round < ROUNDS && left > 0; round++) {
        if (once__steady_us() > until)
            break;
        left = one_round(s, n);
    }
    for (i = 0; i < n && left > 0; i++)
        if (s->groups[i].item.ask != ONCE__REDIS_NOTHING) {
            (void)snprintf(s->net->trouble, sizeof(s->net->trouble),
                           "others were faster, or its slot is on the move");
            fail(&s->groups[i], ONCE_ESTORE);
        }
}

/* ---- Replicas ----------------------------------------------------------- */

/* How many replicas have what this connection wrote; -1: not known. */
static long long replicas(struct once__redis_batch *s,
                          struct once__redis_link *l)
{
    char count[24], ms[24];
    const char *const words[] = {"WAIT", count, ms};
    const redisReply *r;

    (void)snprintf(count, sizeof(count), "%u", (unsigned)s->net->config.wait);
    (void)snprintf(ms, sizeof(ms), "%u", (unsigned)s->net->config.wait_ms);
    r = once__redis_call(l, 3, words);
    return r != NULL && r->type == REDIS_REPLY_INTEGER ? r->integer : -1;
}

/* What too few replicas have is unknown: it may be gone tomorrow. */
static void wait_for_replicas(struct once__redis_batch *s, size_t n)
{
    struct once__redis_link *l, *last = NULL;
    long long have = -1;
    size_t node, i;

    for (node = 0; node < s->net->count; node++) {
        l = s->net->nodes[node];
        for (i = 0; i < n; i++) {
            struct group *g = &s->groups[i];

            if (g->item.link != l || g->item.rc != ONCE_OK ||
                !(g->acknowledged || g->written))
                continue;
            if (last != l)
                have = replicas(s, l);
            last = l;
            if (have >= (long long)s->net->config.wait &&
                g->item.generation == l->generation)
                continue;
            (void)snprintf(s->net->trouble, sizeof(s->net->trouble),
                           "fewer than %u replicas have confirmed",
                           (unsigned)s->net->config.wait);
            fail(g, ONCE_ESTORE);
        }
    }
}

/* ---- Calls -------------------------------------------------------------- */

/* Writes to each operation what went wrong with it. Returns ONCE_ESTORE if that is
 * all there is to say. */
static int conclude(struct once__redis_batch *s, size_t n, once_error *err)
{
    size_t i, unknown = 0;

    for (i = 0; i < n; i++) {
        struct group *g = &s->groups[i];

        if (g->item.rc == ONCE_OK)
            continue;
        if (g->item.rc == ONCE_EFULL && !all_claim(g))
            g->item.rc = ONCE_ESTORE;
        unknown += g->item.rc == ONCE_ESTORE;
        show_error(g, g->item.rc);
    }
    return unknown < n
               ? ONCE_OK
               : once__fail(err, ONCE_ESTORE, "redis: %s", s->net->trouble);
}

int once__redis_apply(struct once__redis_batch *s, once_op **ops, size_t n,
                      once_error *err)
{
    once__arena_reset(&s->arena);
    once__redis_net_begin(s->net);
    if (n == 0)
        return ONCE_OK;
    if (!make_room(s, n))
        return once__fail(err, ONCE_ESTORE, "redis: out of memory");
    n = gather(s, ops, n);
    ask_all(s, n);
    if (s->net->config.wait > 0)
        wait_for_replicas(s, n);
    return conclude(s, n, err);
}

void once__redis_batch_free(struct once__redis_batch *s)
{
    if (s == NULL)
        return;
    once__arena_clear(&s->arena);
    free(s->known);
    free(s->groups);
    free(s->items);
    free(s->order);
    free(s);
}

struct once__redis_batch *
once__redis_batch_new(struct once__redis_net *net,
                      const once_store_options *options, int servers_clock,
                      const once_store *store)
{
    struct once__redis_batch *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return NULL;
    s->net = net;
    s->options = options;
    s->store = store;
    s->servers_clock = servers_clock;
    s->known = calloc(KNOWN, sizeof(*s->known));
    if (s->known != NULL &&
        getrandom(&s->salt, sizeof(s->salt), 0) == (ssize_t)sizeof(s->salt))
        return s;
    once__redis_batch_free(s);
    return NULL;
}
