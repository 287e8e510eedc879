/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta.c - what the file keeps beside the records: the counter of fences and
 * records, the head, and what was seen of the time.
 *
 * The counter is a table of one row, since each batch that grants writes it.
 * The others are numbers by name, each with a sum over both.
 */
#include "calls/store/sqlite/sqlite.h"

#include <string.h>
#include <sys/random.h>

#include "base/crc32c.h"
#include "calls/core/bounds.h"

static int bind(sqlite3_stmt *q, int at, uint64_t value)
{
    return sqlite3_bind_int64(q, at, (sqlite3_int64)value);
}

static uint64_t number(sqlite3_stmt *q, int i)
{
    return (uint64_t)sqlite3_column_int64(q, i);
}

/* ---- The counter ------------------------------------------------------- */

/* A counter that was damaged could hand out a fence twice. */
static uint32_t counter_sum(const struct once__sqlite_counter *c)
{
    const uint64_t numbers[] = {c->fence, c->records};

    return once__sqlite_sum(once__crc32c(0, "counter", 7), numbers, 2);
}

int once__sqlite_counter(struct once__sqlite_link *link,
                         struct once__sqlite_counter *c)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_COUNTER];
    int rc = sqlite3_step(q);

    if (rc == SQLITE_ROW) {
        c->fence = number(q, 0);
        c->records = number(q, 1);
        rc = number(q, 2) == counter_sum(c) ? SQLITE_OK : SQLITE_CORRUPT;
    } else if (rc == SQLITE_DONE) {
        rc = SQLITE_CORRUPT;
    }
    (void)sqlite3_reset(q);
    return rc;
}

int once__sqlite_counter_put(struct once__sqlite_link *link,
                             const struct once__sqlite_counter *c)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_COUNTER_PUT];
    int rc = bind(q, 1, c->fence) | bind(q, 2, c->records) |
             bind(q, 3, counter_sum(c));

    return rc != SQLITE_OK ? rc
                           : once__sqlite_run(link, ONCE__SQLITE_COUNTER_PUT);
}

/* ---- Numbers by name --------------------------------------------------- */

static uint32_t meta_sum(const char *key, uint64_t value)
{
    return once__sqlite_sum(once__crc32c(0, key, strlen(key)), &value, 1);
}

static int meta_bind(sqlite3_stmt *q, const char *key)
{
    return sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
}

/* `missing`: the answer if there is no such number; it is 0 then. */
static int meta_load(struct once__sqlite_link *link, const char *key,
                     uint64_t *value, int missing)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_META];
    int rc = meta_bind(q, key);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    *value = 0;
    if (rc == SQLITE_ROW) {
        *value = number(q, 0);
        rc = number(q, 1) == meta_sum(key, *value) ? SQLITE_OK : SQLITE_CORRUPT;
    } else if (rc == SQLITE_DONE) {
        rc = missing;
    }
    (void)sqlite3_reset(q);
    return rc;
}

static int meta_put(struct once__sqlite_link *link, const char *const *keys,
                    const uint64_t *values, int n)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_META_PUT];
    int i, rc = SQLITE_OK;

    for (i = 0; i < n && rc == SQLITE_OK; i++) {
        rc = meta_bind(q, keys[i]) | bind(q, 2, values[i]) |
             bind(q, 3, meta_sum(keys[i], values[i]));
        if (rc == SQLITE_OK)
            rc = once__sqlite_run(link, ONCE__SQLITE_META_PUT);
    }
    return rc;
}

/* ---- The time ---------------------------------------------------------- */

static const char *const time_keys[] = {"seen", "steady", "host", "start",
                                        "backs"};

enum { TIMES = sizeof(time_keys) / sizeof(time_keys[0]) };

int once__sqlite_time(struct once__sqlite_link *link, once_store_time *t)
{
    uint64_t value[TIMES];
    int i, rc = SQLITE_OK;

    for (i = 0; i < TIMES && rc == SQLITE_OK; i++)
        rc = meta_load(link, time_keys[i], &value[i], SQLITE_OK);
    if (rc != SQLITE_OK)
        return rc;
    t->seen_ms = value[0];
    t->steady_ms = value[1];
    memcpy(t->host, &value[2], ONCE_HOST_SIZE);
    t->backs = value[4];
    return SQLITE_OK;
}

int once__sqlite_time_put(struct once__sqlite_link *link,
                          const once_store_time *t)
{
    uint64_t value[TIMES] = {t->seen_ms, t->steady_ms, 0, 0, t->backs};

    memcpy(&value[2], t->host, ONCE_HOST_SIZE);
    return meta_put(link, time_keys, value, TIMES);
}

/* ---- The head ---------------------------------------------------------- */

static const char *const head_keys[] = {"id",  "id_more",  "incarnation",
                                        "gap", "gap_from", "gap_until"};

enum { HEADS = sizeof(head_keys) / sizeof(head_keys[0]) };

int once__sqlite_head(struct once__sqlite_link *link, once_store_head *h)
{
    uint64_t value[HEADS];
    int i, rc = SQLITE_OK;

    for (i = 0; i < HEADS && rc == SQLITE_OK; i++)
        rc = meta_load(link, head_keys[i], &value[i], SQLITE_CORRUPT);
    if (rc != SQLITE_OK)
        return rc;
    memset(h, 0, sizeof(*h));
    memcpy(h->id, value, ONCE_STORE_ID_SIZE);
    h->incarnation = (uint32_t)value[2];
    h->gap = (uint32_t)value[3];
    h->gap_from_ms = value[4];
    h->gap_until_ms = value[5];
    return value[2] <= ONCE_INCARNATION_MAX && once__head_sane(h)
               ? SQLITE_OK
               : SQLITE_CORRUPT;
}

int once__sqlite_head_put(struct once__sqlite_link *link,
                          const once_store_head *h)
{
    uint64_t value[HEADS] = {
        0, 0, h->incarnation, h->gap, h->gap_from_ms, h->gap_until_ms};

    memcpy(value, h->id, ONCE_STORE_ID_SIZE);
    return meta_put(link, head_keys, value, HEADS);
}

int once__sqlite_head_new(struct once__sqlite_link *link)
{
    once_store_head h;

    memset(&h, 0, sizeof(h));
    if (getrandom(h.id, sizeof(h.id), 0) != (ssize_t)sizeof(h.id))
        return SQLITE_IOERR;
    return once__sqlite_head_put(link, &h);
}
