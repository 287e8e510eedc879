/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send.c - messages that go out to a stream.
 *
 *    send()  -->  flights  --reply-->  ended  --proofs()-->  the caller
 *                    |
 *                    +--connection lost-->  SILENT, or UNSENT: not a byte left
 *
 * Each is one script (send.lua), and any number of them is under way at a time.
 * An error reply means that nothing was added: REFUSED. A server that has
 * forgotten the script gets its text.
 */
#include "messages/broker/redis/redis.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "messages/broker/redis/send.lua.h"
#include "base/error.h"
#include "base/grow.h"
#include "base/steady.h"

enum {
    BACKLOG_MAX = 8 << 20, /* bytes that wait to be sent: then send() waits */
    FIELDS_MAX = 5,
    KEY_SIZE = ONCE__REDIS_PREFIX + 3 * ONCE_ID_SIZE + 8
};

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

/* Which key remembers an id: in the slot of the stream. An id is one of its route,
 * and several routes may lead to one stream. */
static once_bytes marker(const struct once__redis_broker *b,
                         const once_message *m, char out[KEY_SIZE])
{
    int tagged = strchr(b->stream, '{') != NULL;
    /* Stream and route may hold any of the characters that stand between them: the
     * stream's length says where it ends. */
    int n =
        snprintf(out, KEY_SIZE, "%s%zu:%s%s%s:%s %s", b->config.prefix,
                 strlen(b->stream), tagged ? "" : "{", b->stream,
                 tagged ? "" : "}", m->route == NULL ? "" : m->route, m->id);

    return (once_bytes){out, (size_t)n};
}

/* Queues the script. 0: no memory. */
static int queue(struct once__redis_broker *b, const once_message *m, int whole)
{
    char key[KEY_SIZE], window[24];
    once_bytes words[6 + 2 * FIELDS_MAX];
    size_t n = 0, at;

    (void)snprintf(window, sizeof(window), "%llu",
                   (unsigned long long)b->window_ms);
    words[n++] = text(whole ? "EVAL" : "EVALSHA");
    words[n++] = text(whole ? once__send_lua : b->link.sha);
    words[n++] = text("2");
    words[n++] = text(b->stream);
    words[n++] = marker(b, m, key);
    words[n++] = text(window);
    words[n++] = text("id");
    words[n++] = text(m->id);
    if (m->key != NULL) {
        words[n++] = text("key");
        words[n++] = text(m->key);
    }
    if (m->type != NULL && m->type[0] != '\0') {
        words[n++] = text("type");
        words[n++] = text(m->type);
    }
    if (m->headers != NULL && m->headers[0] != '\0') {
        words[n++] = text("headers");
        words[n++] = text(m->headers);
    }
    words[n++] = text("body");
    words[n++] = m->body;
    return once__redis_command(&b->link, n, words, &at);
}

static int reserve_flight(struct once__redis_broker *b)
{
    struct once__redis_flight *more;

    if (b->first > 0 && b->first + b->n == b->room) {
        memmove(b->flights, b->flights + b->first, b->n * sizeof(*b->flights));
        b->first = 0;
    }
    more = once__grown(b->flights, &b->room, b->n + 1, sizeof(*more));
    if (more == NULL)
        return 0;
    b->flights = more;
    return 1;
}

static int launch(struct once__redis_broker *b, const once_message *m,
                  uint64_t tag, int whole)
{
    struct once__redis_link *l = &b->link;
    struct once__redis_flight f = {m, tag,
                                   l->written + (l->out_size - l->sent)};

    if (!reserve_flight(b) || !queue(b, m, whole))
        return 0;
    b->flights[b->first + b->n++] = f;
    return 1;
}

/* ---- Replies ------------------------------------------------------------ */

static struct once__redis_flight pop(struct once__redis_broker *b)
{
    struct once__redis_flight f = b->flights[b->first++];

    if (--b->n == 0)
        b->first = 0;
    return f;
}

static void end(struct once__redis_broker *b,
                const struct once__redis_flight *f, int how, const char *why,
                void *memory)
{
    struct once__proof p = {.tag = f->tag, .end = how, .why = why};

    once__ended_add(&b->ended, &p, memory);
}

/* The code of an error, which is its first word; the rest may quote us. */
static char *code_of(const redisReply *r)
{
    char code[24] = "";
    char *out = NULL;
    size_t n = 0;

    while (n + 1 < sizeof(code) && isupper((unsigned char)r->str[n])) {
        code[n] = r->str[n];
        n++;
    }
    return asprintf(&out, "redis: it answers %s", n > 0 ? code : "an error") < 0
               ? NULL
               : out;
}

/* One that a server says when it is not, or not yet, the one to ask. */
static int is_elsewhere(const redisReply *r)
{
    return once__redis_is(r, "READONLY") || once__redis_is(r, "LOADING") ||
           once__redis_is(r, "MASTERDOWN") || once__redis_is(r, "MOVED") ||
           once__redis_is(r, "NOAUTH");
}

/* What says something of the server and not of the message: it may pass, so it
 * does not count against a row. Nothing was written. */
static int is_trouble(const redisReply *r)
{
    static const char *const codes[] = {"OOM",      "MISCONF",     "NOREPLICAS",
                                        "TRYAGAIN", "CLUSTERDOWN", "BUSY"};
    size_t i;

    for (i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (once__redis_is(r, codes[i]))
            return 1;
    return is_elsewhere(r);
}

static void judge(struct once__redis_broker *b, const redisReply *r)
{
    struct once__redis_flight f = pop(b);
    char *why;

    if (r->type == REDIS_REPLY_INTEGER) {
        if (r->integer == 2 && !b->marker_logged) {
            b->marker_logged = 1;
            once__redis_log(b, "redis: it cannot remember ids (may the user "
                               "SET keys with the prefix?): a message may "
                               "come twice");
        }
        end(b, &f, ONCE__END_TAKEN, NULL, NULL);
        return;
    }
    if (once__redis_is(r, "NOSCRIPT") && b->link.fd >= 0 &&
        launch(b, f.m, f.tag, 1))
        return;
    if (r->type != REDIS_REPLY_ERROR) {
        end(b, &f, ONCE__END_SILENT, "redis: it answers something else", NULL);
        return;
    }
    b->stale |= is_elsewhere(r);
    why = code_of(r);
    end(b, &f, is_trouble(r) ? ONCE__END_AWAY : ONCE__END_REFUSED, why, why);
}

static void lose_all(struct once__redis_broker *b, uint64_t written)
{
    while (b->n > 0) {
        struct once__redis_flight f = pop(b);

        if (f.at >= written)
            end(b, &f, ONCE__END_UNSENT, NULL, NULL);
        else
            end(b, &f, ONCE__END_SILENT, "redis: the connection was lost",
                NULL);
    }
}

void once__redis_harvest(struct once__redis_broker *b)
{
    struct once__redis_link *l = &b->link;
    size_t i;

    if (b->n > 0) {
        for (i = 0; i < l->count; i++)
            judge(b, l->replies[i]);
        once__redis_link_shift(l);
    }
    if (l->fd < 0)
        lose_all(b, l->written);
}

/* ---- The driver's part -------------------------------------------------- */

/* Not more is kept in memory than the server can be given soon. */
static void drain(struct once__redis_broker *b)
{
    struct once__redis_link *l = &b->link;
    uint64_t until = once__steady_ms() + b->config.timeout_ms;

    if (l->out_size - l->sent < BACKLOG_MAX)
        return;
    while (l->fd >= 0 && l->out_size - l->sent > BACKLOG_MAX / 2) {
        uint64_t now = once__steady_ms(), written = l->written;

        if (now >= until)
            once__redis_link_fail(l, "it takes nothing");
        else
            (void)once__redis_link_step(l, (int)(until - now));
        if (l->written > written)
            until = once__steady_ms() + b->config.timeout_ms;
        once__redis_harvest(b);
    }
}

int once__redis_send(struct once__broker *base, const once_message *m,
                     uint64_t tag, once_error *err)
{
    struct once__redis_broker *b = (struct once__redis_broker *)base;
    const struct once__redis_flight f = {m, tag, 0};

    /* Room for all that is under way, so that no proof can be lost. */
    if (!once__ended_reserve(&b->ended, b->n + 1))
        return once__fail(err, ONCE_ENOMEM, "redis: out of memory");
    if (b->link.fd < 0 || !launch(b, m, tag, !b->link.loaded)) {
        end(b, &f, ONCE__END_UNSENT, NULL, NULL);
        return b->link.fd < 0
                   ? once__fail(err, ONCE_EAWAY, "redis: %s", b->link.trouble)
                   : ONCE_OK;
    }
    drain(b);
    once__redis_harvest(b);
    return b->link.fd >= 0
               ? ONCE_OK
               : once__fail(err, ONCE_EAWAY, "redis: %s", b->link.trouble);
}

size_t once__redis_proofs(struct once__broker *base, uint32_t wait_ms,
                          struct once__proof *out, size_t max)
{
    struct once__redis_broker *b = (struct once__redis_broker *)base;
    uint64_t now = once__steady_ms(), until = now + wait_ms;
    size_t n = once__ended_take(&b->ended, out, max);

    if (n > 0)
        return n;
    if (b->n > 0 && b->link.fd >= 0) { /* at least what is there */
        (void)once__redis_link_step(&b->link, 0);
        once__redis_harvest(b);
    }
    while (b->ended.n == 0 && b->n > 0 && now < until) {
        (void)once__redis_link_step(
            &b->link, until - now > 60000 ? 60000 : (int)(until - now));
        once__redis_harvest(b);
        now = once__steady_ms();
    }
    return once__ended_take(&b->ended, out, max);
}

void once__redis_abandon(struct once__broker *base)
{
    struct once__redis_broker *b = (struct once__redis_broker *)base;

    if (b->link.fd >= 0)
        once__redis_link_fail(&b->link, "given up");
    once__redis_harvest(b);
}
