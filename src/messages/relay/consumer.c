/* SPDX-License-Identifier: Apache-2.0 */
/*
 * consumer.c - what the threads of a consumer share: when to stop, when to look
 * at parked messages, how long to pause, what to say and count.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/backoff.h"
#include "base/thread.h"
#include "messages/relay/consume.h"

enum { SPARE = 2 }; /* deliveries beside those that wait for another copy */

void once__consumer_sleep(struct once__consumer *c, uint64_t until_ms)
{
    pthread_mutex_lock(&c->lock);
    while (!atomic_load(&c->stop) && once__steady_ms() < until_ms)
        once__cond_until(&c->wake, &c->lock, until_ms);
    pthread_mutex_unlock(&c->lock);
}

void once__consumer_look_in(struct once__consumer *c, uint64_t wait_ms)
{
    uint64_t at = once__steady_ms() + wait_ms;

    pthread_mutex_lock(&c->lock);
    if (at < c->look_ms) {
        c->look_ms = at;
        pthread_cond_broadcast(&c->wake);
    }
    pthread_mutex_unlock(&c->lock);
}

void once__consumer_stop(struct once__consumer *c)
{
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->stop, 1);
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

void once__consumer_fail(struct once__consumer *c, int code,
                         const once_error *err)
{
    pthread_mutex_lock(&c->lock);
    if (c->failure == ONCE_OK) {
        c->failure = code;
        c->why = *err;
    }
    pthread_mutex_unlock(&c->lock);
    once__consumer_stop(c);
}

void once__consumer_log(const struct once__consumer *c, const char *format, ...)
{
    char text[400];
    va_list args;

    if (c->o.log == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    c->o.log(c->o.user, text);
}

uint64_t once__consumer_pause(const struct once__consumer *c, uint32_t n)
{
    return once__up_to(once__backoff(c->o.first_ms, c->o.most_ms, n));
}

uint32_t once__consumer_room(const struct once__consumer *c)
{
    return 2 * c->o.batch + SPARE;
}

void once__consumer_count_kept(struct once__consumer *c, int state)
{
    once__count(&c->series,
                state == ONCE_PARKED_WAITING ? ONCE__CONSUMER_PARKED
                : state == ONCE_PARKED_DEAD  ? ONCE__CONSUMER_DEAD
                                             : ONCE__CONSUMER_UNKNOWN,
                1);
}

int once__consumer_is_hollow(const once_message *m)
{
    return strncmp(m->id, "#-", 2) == 0 && m->body.size == 0 &&
           strlen(m->id) == 2 + 2 * ONCE_FINGERPRINT_SIZE;
}
