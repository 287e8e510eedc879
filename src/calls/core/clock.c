/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.c - how much time has certainly passed.
 *
 *    store's clock    ------------------------+ set ahead   ----------------
 *                                              `-----------'
 *    elapsed time     ------------------------ - - - - - - -  at the pace of a
 *                                                             steady clock
 *
 * A step ahead is not followed: what is due is forgotten later by as much,
 * until an operator accepts the clock. A step back is followed at once, because
 * then all is kept longer.
 */
#include "calls/core/clock.h"

#include <string.h>

enum {
    FASTER = 1024,   /* faster than the steady clock by 1/1024 at most    */
    PUT_MS = 30000,  /* how old what is stored may become                 */
    BACK_MS = 1000,  /* what is stored may be ahead of the clock by this  */
    JUMP_MS = 1000,  /* a smaller difference is no jump                   */
    AWAY = 4,        /* periods without a reading: this process was away  */
    SOON_MS = 300000 /* a key may be ahead of the clocks by this         */
};

uint64_t once__clock_pass(uint64_t seen_ms, uint64_t elapsed_ms,
                          uint64_t now_ms)
{
    uint64_t most = seen_ms + elapsed_ms + elapsed_ms / FASTER;

    return now_ms < most ? now_ms : most;
}

static uint64_t since(uint64_t later, uint64_t earlier)
{
    return later > earlier ? later - earlier : 0;
}

/* From what is stored. If this host has stored it since its start, its steady
 * clock shows how long ago. */
static uint64_t from_store(const once_clock *c, const once_store_time *t,
                           const struct once__asked *asked)
{
    int ours = memcmp(t->host, c->host, ONCE_HOST_SIZE) == 0;

    return once__clock_pass(t->seen_ms,
                            ours ? since(asked->before_ms, t->steady_ms) : 0,
                            t->now_ms);
}

/* How much farther than the steady clock the store's clock has moved since the
 * last reading, without what the duration of the readings may explain. */
static int64_t jump(const once_clock *c, const once_store_time *t,
                    const struct once__asked *asked)
{
    int64_t moved = (int64_t)(t->now_ms - c->now_ms);
    int64_t most = (int64_t)(asked->after_ms - c->before_ms) + JUMP_MS;
    int64_t least = (int64_t)(asked->before_ms - c->after_ms) - JUMP_MS;

    return moved > most    ? moved - most + JUMP_MS
           : moved < least ? moved - least - JUMP_MS
                           : 0;
}

/*
 * While this process was away another one may have started that knew less of
 * the time that had passed. It has stored what it knew, but it could not notice
 * that the store's clock was set back: for it no more time had passed than
 * that. So what this process knows does not count if another one has stored
 * anything since.
 */
static int outdated(const once_clock *c, const once_store_time *t,
                    const struct once__asked *asked)
{
    return since(asked->before_ms, c->before_ms) > AWAY * c->every_ms &&
           (t->steady_ms != c->put_ms ||
            memcmp(t->host, c->put_host, ONCE_HOST_SIZE) != 0);
}

static uint64_t seen(const once_clock *c, const once_store_time *t,
                     const struct once__asked *asked)
{
    uint64_t ours, theirs = from_store(c, t, asked);

    /* Nothing is stored yet: the store's clock is accepted. */
    if (c->seen_ms == 0)
        return t->seen_ms == 0 ? t->now_ms : theirs;
    if (t->seen_ms != 0 && (t->backs != c->backs || outdated(c, t, asked)))
        return theirs; /* what this process knows is older than a step back */
    ours = once__clock_pass(c->seen_ms, since(asked->before_ms, c->before_ms),
                            t->now_ms);
    return ours > theirs ? ours : theirs;
}

/* A process that reads the clock for the first time stores something, so that
 * those that are away notice (outdated() above). */
int once__clock_take(once_clock *c, const once_store_time *t,
                     const struct once__asked *asked)
{
    uint64_t now_seen = seen(c, t, asked);
    int back;

    c->jumped_ms = c->seen_ms == 0 ? 0 : jump(c, t, asked);
    back = c->jumped_ms < 0 || t->now_ms + BACK_MS < t->seen_ms;
    c->seen_ms = now_seen;
    c->now_ms = t->now_ms;
    c->before_ms = asked->before_ms;
    c->after_ms = asked->after_ms;
    c->behind_ms = t->now_ms - now_seen;
    c->backs = t->backs + (back ? 1 : 0);
    c->put_ms = t->steady_ms;
    memcpy(c->put_host, t->host, ONCE_HOST_SIZE);
    return back || !c->has_put || now_seen > t->seen_ms + PUT_MS;
}

void once__clock_put(const once_clock *c, once_store_time *t)
{
    t->seen_ms = c->seen_ms;
    t->steady_ms = c->before_ms;
    t->backs = c->backs;
    memcpy(t->host, c->host, ONCE_HOST_SIZE);
}

void once__clock_was_put(once_clock *c)
{
    c->has_put = 1;
    c->put_ms = c->before_ms;
    memcpy(c->put_host, c->host, ONCE_HOST_SIZE);
}

int once__key_fits(uint64_t born_ms, uint64_t max_age_ms, uint64_t host_ms,
                   uint64_t store_ms)
{
    uint64_t later = host_ms > store_ms ? host_ms : store_ms;
    uint64_t earlier = host_ms > store_ms ? store_ms : host_ms;

    if (born_ms > earlier + SOON_MS)
        return ONCE_TOO_SOON;
    return since(later, born_ms) > max_age_ms ? ONCE_EXPIRED : ONCE_OK;
}
