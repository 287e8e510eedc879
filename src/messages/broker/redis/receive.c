/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receive.c - messages that come in from a consumer group.
 *
 * An entry that was handed to a consumer is pending until XACK, and comes from
 * one of three places, looked at in this order:
 *
 *    own pending list   after a connection was lost: what this consumer had
 *    XAUTOCLAIM         what was pending for min_idle_ms, of whatever consumer
 *    XREADGROUP >       what nobody had yet
 *
 * The first two may have been handled before, so they are `redelivered`. The
 * second is looked at when we connect, and again after a quarter of min_idle_ms,
 * at most CLAIM_MAX_MS.
 *
 * Who is alone takes all that is pending when it connects, whatever its idleness,
 * in the order of the stream, and only then what is new.
 *
 * Giving back: the entry goes to a consumer that nobody is, "given-back", with
 * min_idle_ms of idleness, so the consumer that looks next takes it. We look
 * after CLAIM_SOON_MS, so that it comes again here if there is no other
 * process.
 *
 * At the end what we still have is given back, and a consumer without pending
 * entries is taken out of the group. One that crashed stays in the group, and
 * its entries are claimed after min_idle_ms.
 */
#include "messages/broker/redis/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/steady.h"

enum { CLAIM_MAX_MS = 30000, CLAIM_SOON_MS = 500, ENTRY_SIZE = 48 };

static const char given_back[] = "given-back";

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

/* ---- Entries ------------------------------------------------------------ */

static int is_listed(const struct once__incoming_list *list,
                     uint64_t connection, const char *entry)
{
    const struct once__incoming *in;

    for (in = list->first; in != NULL; in = in->next)
        if (in->connection == connection && strcmp(in->native, entry) == 0)
            return 1;
    return 0;
}

static int is(const redisReply *name, const char *text)
{
    return name->len == strlen(text) && memcmp(name->str, text, name->len) == 0;
}

/* "Name: value\n", again and again. */
static void take_headers(struct once__incoming *in, const redisReply *value)
{
    const char *at = value->str, *end = at + value->len;

    while (at < end) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        const char *colon, *from;

        line = line == NULL ? end : line;
        colon = memchr(at, ':', (size_t)(line - at));
        if (colon == NULL) {
            once__incoming_flaw(in, "its headers are not lines of name and "
                                    "value");
            return;
        }
        from = colon + 1 < line && colon[1] == ' ' ? colon + 2 : colon + 1;
        once__incoming_header(in, at, (size_t)(colon - at), from,
                              (size_t)(line - from));
        at = line + 1;
    }
}

static void take_field(struct once__redis_broker *b, struct once__incoming *in,
                       const redisReply *name, const redisReply *value)
{
    if (is(name, "id"))
        once__incoming_id(in, value->str, value->len);
    else if (is(name, "key"))
        once__incoming_header(in, ONCE__HEADER_KEY, strlen(ONCE__HEADER_KEY),
                              value->str, value->len);
    else if (is(name, "type"))
        once__incoming_type(in, value->str, value->len);
    else if (is(name, "headers"))
        take_headers(in, value);
    else if (is(name, "body"))
        once__incoming_body(in, value->str, value->len, b->body_max);
}

/* NULL: no memory. */
static struct once__incoming *read_entry(struct once__redis_broker *b,
                                         const redisReply *e)
{
    struct once__incoming *in = once__incoming_new();
    const redisReply *fields = e->element[1];
    int bodies = 0;
    size_t i;

    if (in == NULL)
        return NULL;
    in->native = strdup(e->element[0]->str);
    in->connection = b->link.generation;
    for (i = 0; i + 1 < fields->elements; i += 2) {
        const redisReply *name = fields->element[i];
        const redisReply *value = fields->element[i + 1];

        if (name->type != REDIS_REPLY_STRING ||
            value->type != REDIS_REPLY_STRING)
            continue;
        bodies += is(name, "body");
        take_field(b, in, name, value);
    }
    if (bodies != 1)
        once__incoming_flaw(in, "it does not have one field body");
    if (in->native == NULL || !once__incoming_finish(in)) {
        once__incoming_free(in);
        return NULL;
    }
    return in;
}

static int is_entry(const redisReply *e)
{
    return e->type == REDIS_REPLY_ARRAY && e->elements == 2 &&
           e->element[0]->type == REDIS_REPLY_STRING &&
           e->element[0]->len < ENTRY_SIZE;
}

/* An entry that was deleted or trimmed while it was pending is lost: nobody can
 * read it any more. It is taken out of the pending list. */
static void lose(struct once__redis_broker *b, const char *entry)
{
    const once_bytes words[] = {text("XACK"), text(b->stream), text(b->group),
                                text(entry)};

    (void)once__redis_ask(b, 4, words, b->config.timeout_ms);
}

/* Puts the entries of `list`, which is a part of the last reply, into the queue.
 * ONCE_OK or ONCE_ENOMEM. `*lost`: so many are not there any more. */
static int take_entries(struct once__redis_broker *b, const redisReply *list,
                        int redelivered, size_t *lost)
{
    const uint64_t connection = b->link.generation;
    redisReply *reply = b->link.replies[0];
    int rc = ONCE_OK;
    size_t i;

    b->link.replies[0] = NULL; /* lose() makes others */
    for (i = 0; i < list->elements && rc == ONCE_OK; i++) {
        const redisReply *e = list->element[i];
        struct once__incoming *in;

        if (!is_entry(e) ||
            is_listed(&b->held, connection, e->element[0]->str) ||
            is_listed(&b->queue, connection, e->element[0]->str))
            continue;
        if (e->element[1]->type != REDIS_REPLY_ARRAY) {
            ++*lost;
            lose(b, e->element[0]->str);
            continue;
        }
        in = read_entry(b, e);
        if (in == NULL) {
            rc = ONCE_ENOMEM;
        } else {
            in->d.redelivered = redelivered;
            once__incoming_push(&b->queue, in);
            b->fetched_ms = once__steady_ms();
        }
    }
    freeReplyObject(reply);
    return rc;
}

static void alarm_lost(const struct once__redis_broker *b, size_t n)
{
    if (n > 0)
        once__redis_log(b,
                        "redis: ALARM: %zu entries were deleted or trimmed "
                        "while they were pending: their messages are lost",
                        n);
}

/* ---- The three places --------------------------------------------------- */

static int is_array(const redisReply *r)
{
    return r != NULL && r->type == REDIS_REPLY_ARRAY;
}

/* What came is not what was asked for: so the connection is closed. */
static int refuse(struct once__redis_broker *b, const redisReply *r,
                  once_error *err)
{
    if (r != NULL && b->link.fd >= 0) {
        int is_error = r->type == REDIS_REPLY_ERROR;

        if (once__redis_is(r, "NOGROUP"))
            once__redis_log(b, "redis: ALARM: stream or group are gone: what "
                               "was not read is lost, if it was deleted");
        once__redis_link_fail(&b->link, "it answers %s",
                              once__redis_is(r, "NOGROUP") ? "NOGROUP"
                              : is_error                   ? "an error"
                                                           : "something else");
        b->link.retry_ms = 0;
    }
    return once__fail(err, ONCE_EAWAY, "redis: %s", b->link.trouble);
}

/* What was read and not taken over comes again after a reconnect. */
static int no_memory(struct once__redis_broker *b, once_error *err)
{
    once__redis_link_fail(&b->link, "out of memory");
    return once__fail(err, ONCE_EAWAY, "redis: out of memory");
}

/* The list of entries in a reply of XREADGROUP for one stream, or NULL. */
static const redisReply *list_of(const redisReply *r)
{
    if (r->elements != 1 || !is_array(r->element[0]) ||
        r->element[0]->elements != 2 || !is_array(r->element[0]->element[1]))
        return NULL;
    return r->element[0]->element[1];
}

/* XREADGROUP: `after` is ">" for new ones, or an id: our own after that.
 * `block_ms` 0: it does not wait. */
static int read_group(struct once__redis_broker *b, const char *after,
                      size_t count, uint64_t block_ms, size_t *found,
                      once_error *err)
{
    char number[24], block[24];
    once_bytes words[16];
    const redisReply *r, *list;
    int mine = strcmp(after, ">") != 0, rc;
    size_t n = 0, lost = 0;

    (void)snprintf(number, sizeof(number), "%zu", count);
    (void)snprintf(block, sizeof(block), "%llu", (unsigned long long)block_ms);
    words[n++] = text("XREADGROUP");
    words[n++] = text("GROUP");
    words[n++] = text(b->group);
    words[n++] = text(b->consumer);
    words[n++] = text("COUNT");
    words[n++] = text(number);
    if (block_ms > 0) {
        words[n++] = text("BLOCK");
        words[n++] = text(block);
    }
    words[n++] = text("STREAMS");
    words[n++] = text(b->stream);
    words[n++] = text(after);
    *found = 0;
    r = once__redis_ask(b, n, words, block_ms + b->config.timeout_ms);
    if (r != NULL && r->type == REDIS_REPLY_NIL)
        return ONCE_OK;
    list = is_array(r) ? list_of(r) : NULL;
    if (list == NULL)
        return refuse(b, r, err);
    *found = list->elements;
    if (mine && *found > 0 && is_entry(list->element[*found - 1]))
        (void)snprintf(b->own_after, sizeof(b->own_after), "%s",
                       list->element[*found - 1]->element[0]->str);
    rc = take_entries(b, list, mine, &lost);
    alarm_lost(b, lost);
    return rc == ONCE_OK ? rc : no_memory(b, err);
}

static int read_own(struct once__redis_broker *b, size_t count, once_error *err)
{
    size_t found;
    int rc = read_group(b, b->own_after, count, 0, &found, err);

    b->own_read = rc == ONCE_OK && found == 0;
    return rc;
}

static uint64_t claim_pause(const struct once__redis_broker *b)
{
    return b->min_idle_ms / 4 < CLAIM_MAX_MS ? b->min_idle_ms / 4
                                             : CLAIM_MAX_MS;
}

static int claim(struct once__redis_broker *b, size_t count, once_error *err)
{
    char number[24], idle[24];
    const redisReply *r;
    size_t lost = 0;

    (void)snprintf(number, sizeof(number), "%zu", count);
    (void)snprintf(idle, sizeof(idle), "%llu",
                   (unsigned long long)(b->sweeps ? 0 : b->min_idle_ms));
    {
        const once_bytes words[] = {
            text("XAUTOCLAIM"), text(b->stream), text(b->group),
            text(b->consumer),  text(idle),      text(b->claim_cursor),
            text("COUNT"),      text(number),
        };

        r = once__redis_ask(b, sizeof(words) / sizeof(words[0]), words,
                            b->config.timeout_ms);
    }
    if (!is_array(r) || r->elements < 2 ||
        r->element[0]->type != REDIS_REPLY_STRING ||
        r->element[0]->len >= sizeof(b->claim_cursor) ||
        !is_array(r->element[1]))
        return refuse(b, r, err);
    (void)snprintf(b->claim_cursor, sizeof(b->claim_cursor), "%s",
                   r->element[0]->str);
    if (strcmp(b->claim_cursor, "0-0") == 0) {
        b->claim_ms = once__steady_ms() + claim_pause(b);
        b->sweeps = 0;
    }
    if (r->elements > 2 && is_array(r->element[2]))
        alarm_lost(b, r->element[2]->elements);
    return take_entries(b, r->element[1], 1, &lost) == ONCE_OK
               ? ONCE_OK
               : no_memory(b, err);
}

/* ---- The driver's part -------------------------------------------------- */

int once__redis_join(struct once__redis_broker *b, once_error *err)
{
    const once_bytes words[] = {text("XGROUP"),  text("CREATE"),
                                text(b->stream), text(b->group),
                                text("0"),       text("MKSTREAM")};
    const redisReply *r;

    once__incoming_drop(&b->queue);
    b->held_now = 0;
    b->own_read = b->sweeps = b->alone;
    b->claim_ms = 0;
    (void)snprintf(b->own_after, sizeof(b->own_after), "0");
    (void)snprintf(b->claim_cursor, sizeof(b->claim_cursor), "0-0");
    r = once__redis_ask(b, 6, words, b->config.timeout_ms);
    if (r == NULL)
        return once__fail(err, ONCE_EAWAY, "redis: %s", b->link.trouble);
    if (r->type == REDIS_REPLY_ERROR && !once__redis_is(r, "BUSYGROUP"))
        return once__fail(
            err, ONCE_EOPEN,
            "redis: the group %s of the stream %s cannot be made: "
            "%s",
            b->group, b->stream, r->str);
    return ONCE_OK;
}

static struct once__delivery *hand_out(struct once__redis_broker *b)
{
    struct once__incoming *in = b->queue.first;

    once__incoming_remove(&b->queue, in);
    once__incoming_push(&b->held, in);
    b->held_now++;
    return &in->d;
}

/* Looks at the place whose turn it is. `*waited`: there was nothing to do but
 * wait for new ones. */
static int look(struct once__redis_broker *b, uint64_t until, int *waited,
                once_error *err)
{
    size_t room = b->prefetch - b->held_now, found;
    uint64_t now = once__steady_ms(), end = until;

    *waited = 0;
    if (!b->own_read)
        return read_own(b, room, err);
    if (now >= b->claim_ms || strcmp(b->claim_cursor, "0-0") != 0)
        return claim(b, room, err);
    *waited = 1;
    if (end > b->claim_ms)
        end = b->claim_ms;
    return read_group(b, ">", room, end > now ? end - now : 0, &found, err);
}

/* Makes an entry one that the consumer that looks next may claim. 0: no
 * memory. */
static int give_back(struct once__redis_broker *b, const char *entry,
                     size_t *at)
{
    char idle[24];
    const char *const words[] = {"XCLAIM", b->stream, b->group, given_back, "0",
                                 entry,    "IDLE",    idle,     "JUSTID"};
    once_bytes args[sizeof(words) / sizeof(words[0])];
    size_t i;

    (void)snprintf(idle, sizeof(idle), "%llu",
                   (unsigned long long)b->min_idle_ms);
    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        args[i] = text(words[i]);
    return once__redis_command(&b->link, i, args, at);
}

static redisReply *ask_about(struct once__redis_broker *b, const char *entry,
                             int how)
{
    const once_bytes taken[] = {text("XACK"), text(b->stream), text(b->group),
                                text(entry)};
    const once_bytes still[] = {
        text("XCLAIM"), text(b->stream), text(b->group), text(b->consumer),
        text("0"),      text(entry),     text("JUSTID")};
    struct once__redis_link *l = &b->link;
    uint64_t soon = once__steady_ms() + CLAIM_SOON_MS;
    size_t at;

    if (how == ONCE__ACK_TAKEN)
        return once__redis_ask(b, 4, taken, b->config.timeout_ms);
    if (how == ONCE__ACK_STILL_AT)
        return once__redis_ask(b, 7, still, b->config.timeout_ms);
    once__redis_link_reset(l);
    if (!give_back(b, entry, &at))
        return NULL;
    once__redis_exchange(&l, 1);
    if (b->claim_ms > soon)
        b->claim_ms = soon;
    return l->count > 0 ? l->replies[0] : NULL;
}

/* Whether an entry is still pending with us; its idle time is 0 then. */
static int is_ours(struct once__redis_broker *b, const char *entry)
{
    const once_bytes pending[] = {text("XPENDING"), text(b->stream),
                                  text(b->group),   text(entry),
                                  text(entry),      text("1")};
    const redisReply *r = once__redis_ask(b, 6, pending, b->config.timeout_ms);
    const redisReply *name;

    if (!is_array(r) || r->elements != 1 || !is_array(r->element[0]) ||
        r->element[0]->elements < 2)
        return 0;
    name = r->element[0]->element[1];
    if (name->type != REDIS_REPLY_STRING || !is(name, b->consumer))
        return 0;
    return ask_about(b, entry, ONCE__ACK_STILL_AT) != NULL;
}

/* What was fetched a while ago, and not handed out since its forerunners took
 * long, may have gone to another consumer. */
static void drop_those_gone(struct once__redis_broker *b)
{
    uint64_t now = once__steady_ms();

    if (b->queue.first == NULL || now < b->fetched_ms + b->min_idle_ms / 2)
        return;
    while (b->queue.first != NULL && b->link.fd >= 0 &&
           !is_ours(b, b->queue.first->native)) {
        struct once__incoming *in = b->queue.first;

        once__incoming_remove(&b->queue, in);
        once__incoming_free(in);
    }
}

/* The caller has as many as it wanted. */
static void pause_ms(uint32_t ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};

    (void)nanosleep(&t, NULL);
}

int once__redis_receive(struct once__broker *base, uint32_t wait_ms,
                        struct once__delivery **out, once_error *err)
{
    struct once__redis_broker *b = (struct once__redis_broker *)base;
    uint64_t until = once__steady_ms() + wait_ms;
    int rc = ONCE_OK, waited = 0;

    *out = NULL;
    if (b->group[0] == '\0')
        return once__fail(err, ONCE_EINVAL, "redis: it was opened for sending");
    if (b->link.fd < 0)
        return once__fail(err, ONCE_EAWAY, "redis: %s", b->link.trouble);
    drop_those_gone(b);
    if (b->queue.first == NULL && b->held_now >= b->prefetch) {
        pause_ms(wait_ms);
        return ONCE_OK;
    }
    while (rc == ONCE_OK && b->queue.first == NULL &&
           !(waited && once__steady_ms() >= until))
        rc = look(b, until, &waited, err);
    if (b->link.fd < 0)
        return once__fail(err, ONCE_EAWAY, "redis: %s", b->link.trouble);
    if (b->queue.first != NULL) {
        *out = hand_out(b);
        return ONCE_OK;
    }
    return rc;
}

int once__redis_ack(struct once__broker *base, struct once__delivery *d,
                    int how, once_error *err)
{
    struct once__redis_broker *b = (struct once__redis_broker *)base;
    struct once__incoming *in = (struct once__incoming *)d;
    const redisReply *r = NULL;
    int same = in->connection == b->link.generation;
    int here = same && b->link.fd >= 0, ok;

    if (here)
        r = ask_about(b, in->native, how);
    ok = r != NULL && r->type != REDIS_REPLY_ERROR;
    if (how != ONCE__ACK_STILL_AT) {
        once__incoming_remove(&b->held, in);
        b->held_now -= (size_t)same;
        once__incoming_free(in);
    }
    if (ok)
        return ONCE_OK;
    if (!here)
        return once__fail(err, ONCE_EAWAY,
                          "redis: the connection was lost since");
    return refuse(b, r, err);
}

/* All of a list that came by this connection. 0: no memory. */
static int give_back_all(struct once__redis_broker *b,
                         const struct once__incoming_list *list)
{
    const struct once__incoming *in;
    size_t at;

    for (in = list->first; in != NULL; in = in->next)
        if (in->connection == b->link.generation &&
            !give_back(b, in->native, &at))
            return 0;
    return 1;
}

void once__redis_leave(struct once__redis_broker *b)
{
    struct once__redis_link *l = &b->link;
    const once_bytes words[] = {text("EVALSHA"), text(l->sha),
                                text("1"),       text(b->stream),
                                text(b->group),  text(b->consumer)};
    size_t at;

    if (b->group[0] != '\0' && l->fd >= 0) {
        once__redis_link_reset(l);
        if (give_back_all(b, &b->queue) && give_back_all(b, &b->held) &&
            once__redis_command(l, 6, words, &at))
            once__redis_exchange(&l, 1);
    }
    once__incoming_drop(&b->queue);
    once__incoming_drop(&b->held);
}
