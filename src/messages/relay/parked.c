/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parked.c - runs parked messages again, one at a time, so that a handler that
 * kills its process is counted against its own message alone.
 *
 *    take (count + 1, durable) --> claim, handler --+--> COMMIT   the row is gone
 *                                                   +--> kept: waiting, dead
 *                                                        or indeterminate
 *
 * What is not written, since the process or the database is gone, is due again
 * when its lease ends.
 */
#include "messages/relay/consume.h"
#include "base/steady.h"
#include "base/thread.h"

enum { LOOK_MS = 1000, TRIES = 5, AGAIN_MS = 100 };

struct parked {
    struct once__consumer *c;
    struct once__hand hand;
};

/* How an end is kept; -1: there is nothing to keep. */
static int state_after(const struct parked *p, int outcome, uint32_t attempt)
{
    switch (outcome) {
    case ONCE__DONE:
    case ONCE__BEFORE:
        return -1;
    case ONCE__DEAD:
    case ONCE__MISMATCH:
    case ONCE__OUTSIDE:
        return ONCE_PARKED_DEAD;
    case ONCE__UNKNOWN:
        return ONCE_PARKED_INDETERMINATE;
    case ONCE__FAILED:
    case ONCE__UNFIT:
        return attempt >= p->c->o.attempts ? ONCE_PARKED_DEAD
                                           : ONCE_PARKED_WAITING;
    default: /* nothing is known against the handler */
        return ONCE_PARKED_WAITING;
    }
}

/* Asked again while the database does not answer: a lease is long. */
static void put_back(struct parked *p, const struct once__parked *row,
                     int state, uint64_t wait_ms, const char *why)
{
    int n, rc = ONCE_EABORTED;

    for (n = 0; n < TRIES && rc == ONCE_EABORTED; n++) {
        once_error err = {0, ""};

        if (n > 0)
            once__consumer_sleep(p->c, once__steady_ms() + AGAIN_MS);
        if (once__hand_connect(&p->hand))
            rc = ONCE__ASK(p->hand.b, once__parked_put_back, row->no,
                           row->m.attempt, state, wait_ms, why, &err);
    }
    if (rc != ONCE_OK)
        return; /* it was done after all, or comes again with its lease */
    once__consumer_count_kept(p->c, state);
    if (state == ONCE_PARKED_WAITING)
        once__consumer_look_in(p->c, wait_ms);
}

static void count(struct parked *p, int outcome)
{
    if (outcome == ONCE__DONE)
        once__count(&p->c->series, ONCE__CONSUMER_RUN, 1);
    else if (outcome == ONCE__FAILED || outcome == ONCE__DEAD ||
             outcome == ONCE__UNKNOWN)
        once__count(&p->c->series, ONCE__CONSUMER_FAILED, 1);
}

static void handle(struct parked *p, const struct once__parked *row)
{
    once_message m = row->m;
    const char *why = "";
    int outcome, state;

    if (m.attempt > p->c->o.attempts) {
        put_back(p, row, ONCE_PARKED_DEAD, 0,
                 "begun as often as it may be, and never finished");
        return;
    }
    if (once__consumer_is_hollow(&m)) {
        put_back(p, row, ONCE_PARKED_DEAD, 0, "its body was not kept");
        return;
    }
    m.consumer = p->c->o.consumer;
    outcome = once__handle_once(&p->hand, &m, &why);
    count(p, outcome);
    state = state_after(p, outcome, m.attempt);
    if (state >= 0)
        put_back(p, row, state,
                 state == ONCE_PARKED_WAITING
                     ? once__consumer_pause(p->c, m.attempt + 1)
                     : 0,
                 why);
}

/* When nothing is due: until a message of ours is, or a second, since other
 * processes park as well. */
static void wait(struct parked *p)
{
    struct once__consumer *c = p->c;
    uint64_t now = once__steady_ms(), until;

    pthread_mutex_lock(&c->lock);
    if (c->look_ms > now + LOOK_MS)
        c->look_ms = now + LOOK_MS;
    while (!atomic_load(&c->stop) && (until = c->look_ms) > once__steady_ms())
        once__cond_until(&c->wake, &c->lock, until);
    c->look_ms = UINT64_MAX;
    pthread_mutex_unlock(&c->lock);
}

/* 1: there was one. */
static int turn(struct parked *p)
{
    struct once__parked_list list = {0};
    once_error err = {0, ""};
    int rc, found;

    if (!once__hand_connect(&p->hand))
        return 0;
    rc = ONCE__ASK(p->hand.b, once__parked_take, p->c->o.consumer,
                   p->c->o.lease_ms, (int)p->c->o.keyed, &list, &err);
    found = rc == ONCE_OK && list.n > 0;
    if (!found)
        once__hand_asked(&p->hand, rc, &err);
    if (found)
        handle(p, &list.rows[0]);
    once__parked_clear(&list);
    return found;
}

void *once__parked_run(void *consumer)
{
    struct parked p = {.c = consumer};
    once_error err = {0, ""};
    int rc = once__hand_open(&p.hand, p.c, &err);

    if (rc != ONCE_OK)
        once__consumer_fail(p.c, rc, &err);
    while (!atomic_load(&p.c->stop))
        if (!turn(&p))
            wait(&p);
    once__hand_close(&p.hand);
    return NULL;
}
