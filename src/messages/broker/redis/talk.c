/* SPDX-License-Identifier: Apache-2.0 */
/*
 * talk.c - one command and its reply, and lines for people.
 */
#include "messages/broker/redis/redis.h"
#include "base/steady.h"

#include <stdarg.h>
#include <stdio.h>

void once__redis_log(const struct once__redis_broker *b, const char *format,
                     ...)
{
    char text[240];
    va_list args;

    if (b->log == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    b->log(b->user, text);
}

redisReply *once__redis_ask(struct once__redis_broker *b, size_t argc,
                            const once_bytes *argv, uint64_t ms)
{
    struct once__redis_link *l = &b->link;
    uint64_t now = once__steady_ms(), until = now + ms;
    size_t at;

    once__redis_link_reset(l);
    if (l->fd >= 0 && !once__redis_command(l, argc, argv, &at))
        once__redis_link_fail(l, "out of memory");
    while (l->fd >= 0 && l->count < l->expected) {
        if (now >= until)
            once__redis_link_fail(l, "no answer in time");
        else
            (void)once__redis_link_step(
                l, until - now > 60000 ? 60000 : (int)(until - now));
        now = once__steady_ms();
    }
    return l->count > 0 ? l->replies[0] : NULL;
}
