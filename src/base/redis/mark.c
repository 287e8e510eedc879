/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mark.c - the key PREFIX"store": that there is a store, and which.
 *
 * Its value is one line of text: "1 ID", ID in hexadecimal digits. `once init`
 * sets it. A server that was emptied, or was restarted and had kept nothing,
 * has none: it would execute everything that it had recorded once more, so it
 * is refused. Each connection asks for it in its greeting, and again each
 * second in front of what it asks (link.c). In a cluster only the node that the
 * key lives on can say. create.c sets it.
 */
#include <stdio.h>
#include <string.h>

#include "base/redis/redis.h"

enum { DIGITS = 2 * ONCE_STORE_ID_SIZE, LINE = DIGITS + 2 };

void once__redis_mark_key(const struct once__redis_config *c,
                          char out[ONCE__REDIS_MARK_KEY])
{
    (void)snprintf(out, ONCE__REDIS_MARK_KEY, "%sstore", c->prefix);
}

/* 1 if it is a line of ours; the digits are `*id`. */
static int decode(const redisReply *r, const char **id)
{
    *id = r->str + 2;
    return r->type == REDIS_REPLY_STRING && r->len == LINE &&
           memcmp(r->str, "1 ", 2) == 0 &&
           strspn(*id, "0123456789abcdef") == DIGITS;
}

const char *once__redis_mark_judge(struct once__redis_mark *m,
                                   const redisReply *r)
{
    const char *id;

    if (r->type == REDIS_REPLY_ERROR &&
        (strncmp(r->str, "MOVED ", 6) == 0 || strncmp(r->str, "ASK ", 4) == 0))
        return NULL; /* another node can say */
    if (r->type == REDIS_REPLY_NIL && m->id[0] != '\0')
        return "the store is gone: the server was emptied, or has lost it";
    if (r->type == REDIS_REPLY_NIL)
        return m->create ? NULL
                         : "there is no store with this prefix; a new one is "
                           "made by once init";
    if (!decode(r, &id))
        return "the key \"store\" with this prefix cannot be read, or is not "
               "ours";
    if (m->id[0] == '\0')
        memcpy(m->id, id, DIGITS);
    return memcmp(m->id, id, DIGITS) == 0
               ? NULL
               : "it has another store now than it had before";
}
