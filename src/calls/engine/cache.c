/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.c - results that the store has just replayed. cache.h has the rules.
 *
 * Buckets by the first bytes of the name, each a short list with the newest
 * entry in front; and one ring of all entries, from the oldest to the newest.
 * Room is made at the oldest end. A name is a digest, but of what clients
 * choose: a list that became long would cost a walk, so its last entry goes.
 */
#include "calls/engine/cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "calls/core/transition.h"

enum { BUCKETS = 4096, LIST_MAX = 8 };

/* The bytes of its result follow it. */
struct entry {
    struct entry *next;          /* in its bucket */
    struct entry *older, *newer; /* in the ring */
    once__cache_when when;
    uint8_t name[ONCE_NAME_SIZE];
    once_record record;
};

struct once__cache {
    struct entry *buckets[BUCKETS];
    struct entry ring; /* its `newer` is the oldest, its `older` the newest */
    size_t bytes;
};

once__cache *once__cache_new(void)
{
    once__cache *c = calloc(1, sizeof(*c));

    if (c != NULL)
        c->ring.older = c->ring.newer = &c->ring;
    return c;
}

static struct entry **bucket_of(once__cache *c, const uint8_t *name)
{
    return &c->buckets[(name[0] | (size_t)name[1] << 8) % BUCKETS];
}

/* Where the pointer to the entry of this name is, or to the end of the list. */
static struct entry **place_of(once__cache *c, const uint8_t *name)
{
    struct entry **at = bucket_of(c, name);

    while (*at != NULL && memcmp((*at)->name, name, ONCE_NAME_SIZE) != 0)
        at = &(*at)->next;
    return at;
}

static size_t size_of(const struct entry *entry)
{
    return sizeof(*entry) + entry->record.result.size;
}

static void drop(once__cache *c, struct entry **at)
{
    struct entry *entry = *at;

    assert(c->bytes >= size_of(entry));
    c->bytes -= size_of(entry);
    *at = entry->next;
    entry->older->newer = entry->newer;
    entry->newer->older = entry->older;
    free(entry);
}

static void drop_oldest(once__cache *c)
{
    assert(c->ring.newer != &c->ring);
    drop(c, place_of(c, c->ring.newer->name));
}

void once__cache_free(once__cache *c)
{
    if (c == NULL)
        return;
    while (c->ring.newer != &c->ring)
        drop_oldest(c);
    assert(c->bytes == 0);
    free(c);
}

static int usable(const struct entry *entry, once__cache_when now)
{
    return now.epoch != 0 && entry->when.epoch == now.epoch &&
           now.asked_ms >= entry->when.asked_ms &&
           now.asked_ms - entry->when.asked_ms < ONCE__CACHE_AGE_MS;
}

/* What the transition table says to this claim. It reads neither time nor fence
 * of a completed record that cannot be tried again. */
static int decide(const once_record *record, const once_request *claim)
{
    once_record r = *record;
    uint64_t fence = r.fence;
    once_op op;
    int changed;

    memset(&op, 0, sizeof(op));
    op.verb = ONCE_OP_CLAIM;
    op.policy = claim->policy;
    memcpy(op.name, claim->name, ONCE_NAME_SIZE);
    memcpy(op.fingerprint, claim->fingerprint, ONCE_FINGERPRINT_SIZE);
    changed = once__transition(&r, &op, 0, &fence);
    assert(!changed && (op.rc == ONCE_REPLAY || op.rc == ONCE_MISMATCH));
    return changed ? ONCE_UNKNOWN : op.rc;
}

const once_record *once__cache_find(once__cache *c, const once_request *claim,
                                    once__cache_when now)
{
    struct entry **at = place_of(c, claim->name);

    if (*at == NULL)
        return NULL;
    if (!usable(*at, now)) {
        drop(c, at);
        return NULL;
    }
    return decide(&(*at)->record, claim) == ONCE_REPLAY ? &(*at)->record : NULL;
}

/* This record cannot change before it is forgotten, and may not be forgotten
 * while an entry that is made now can be used. */
static int stays(const once_record *r, uint64_t wall_ms)
{
    return r->state == ONCE_COMPLETED &&
           (r->kind == ONCE_SUCCESS || (r->policy & ONCE_RETRY_FAILED) == 0) &&
           r->keep_ms > wall_ms + (uint64_t)2 * ONCE__CACHE_AGE_MS;
}

static struct entry *make(const uint8_t *name, const once_record *r,
                          once__cache_when when)
{
    struct entry *entry = malloc(sizeof(*entry) + r->result.size);

    if (entry == NULL)
        return NULL;
    entry->when = when;
    memcpy(entry->name, name, ONCE_NAME_SIZE);
    if (r->result.size > 0)
        memcpy(entry + 1, r->result.data, r->result.size);
    entry->record = *r;
    entry->record.result.data = entry + 1;
    entry->record.note = (once_bytes){NULL, 0};
    entry->record.label = (once_bytes){NULL, 0};
    assert(once__record_sane(&entry->record));
    return entry;
}

static void shorten(once__cache *c, struct entry **at)
{
    size_t n;

    for (n = 1; n < LIST_MAX && *at != NULL; n++)
        at = &(*at)->next;
    while (*at != NULL)
        drop(c, at);
}

static void add(once__cache *c, struct entry *entry)
{
    struct entry **bucket = bucket_of(c, entry->name);

    while (c->bytes + size_of(entry) > ONCE__CACHE_BYTES_MAX)
        drop_oldest(c);
    shorten(c, bucket);
    entry->next = *bucket;
    *bucket = entry;
    entry->newer = &c->ring;
    entry->older = c->ring.older;
    entry->older->newer = entry;
    c->ring.older = entry;
    c->bytes += size_of(entry);
}

void once__cache_note(once__cache *c, const uint8_t name[ONCE_NAME_SIZE],
                      int rc, const once_record *r, once__cache_when when,
                      uint64_t wall_ms)
{
    struct entry **at = place_of(c, name), *entry;

    if (*at != NULL)
        drop(c, at);
    if (rc != ONCE_REPLAY || when.epoch == 0 || !stays(r, wall_ms) ||
        r->result.size > ONCE__CACHE_RESULT_MAX)
        return;
    entry = make(name, r, when);
    if (entry != NULL)
        add(c, entry);
}

void once__cache_sweep(once__cache *c, once__cache_when now)
{
    while (c->ring.newer != &c->ring && !usable(c->ring.newer, now))
        drop_oldest(c);
}

size_t once__cache_bytes(const once__cache *c)
{
    return c->bytes;
}
