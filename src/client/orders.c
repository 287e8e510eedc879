/* SPDX-License-Identifier: Apache-2.0 */
/*
 * orders.c - the order database: the key, the request and the state of each
 * order.
 *
 * It is not a store of Once: a store knows a key by its hash alone and keeps an
 * answer, while the client must get the key back, and the request with it. One
 * order is one row; (group, id) is unique, so that of two callers who keep the
 * same order at once one finds the other's key. Every change is one durable
 * transaction (WAL, synchronous=FULL), made before the step that it describes.
 *
 *    doubt   how many attempts were sent whose effect is not known. It is
 *            counted up before a byte leaves and down when an answer says that
 *            this attempt did nothing. A crash leaves it too high, not too low.
 *
 * Corrupt rows are refused. One connection behind one lock: transactions are
 * short, and the network is slower. file.c opens the file.
 */
#include "client/file.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define COLUMNS                                                                \
    "id,state,reason,status,replayed,attempts,doubt,created,sent,key,grp,"     \
    "name,method,url,headers,body,answer_headers,answer,digest"

enum query {
    BEGIN,
    COMMIT,
    ROLLBACK,
    FIND,
    LOAD,
    NEXT,
    LAST,
    INSERT,
    REOPEN,
    MARK,
    UNMARK,
    DOUBT,
    END,
    FORGET,
    PURGE,
    QUERIES
};

/* clang-format off */
static const char *const texts[QUERIES] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [ROLLBACK] = "ROLLBACK",
    [FIND] = "SELECT " COLUMNS " FROM orders WHERE grp=?1 AND name=?2",
    [LOAD] = "SELECT " COLUMNS " FROM orders WHERE id=?1",
    [NEXT] = "SELECT " COLUMNS " FROM orders WHERE state NOT IN (3,4)"
             " AND id>?1 AND id<=?2 ORDER BY id LIMIT 1",
    [LAST] = "SELECT ifnull(max(id),0) FROM orders",
    [INSERT] =
        "INSERT INTO orders(grp,name,key,state,reason,status,replayed,attempts,"
        "doubt,created,sent,changed,method,url,digest,headers,body,"
        "answer_headers,answer)"
        "VALUES(?1,?2,?3,1,0,0,0,0,0,?4,0,?4,?5,?6,?7,?8,?9,x'',x'')",
    [REOPEN] =
        "UPDATE orders SET state=1,changed=?2 WHERE id=?1 AND state=4",
    [MARK] =
        "UPDATE orders SET state=2,doubt=doubt+1,attempts=attempts+1,"
        "sent=CASE doubt WHEN 0 THEN ?2 ELSE sent END,changed=?2"
        " WHERE id=?1 AND state NOT IN (3,4) AND (doubt=0 OR sent>=?3)",
    [UNMARK] =
        "UPDATE orders SET doubt=doubt-1,"
        "state=CASE doubt WHEN 1 THEN 1 ELSE state END,"
        "sent=CASE doubt WHEN 1 THEN 0 ELSE sent END,changed=?2"
        " WHERE id=?1 AND state NOT IN (3,4) AND doubt>0",
    [DOUBT] = "SELECT doubt FROM orders WHERE id=?1",
    /* What is done needs its request no more; a refusal may be sent again. */
    [END] =
        "UPDATE orders SET reason=?3,status=?4,replayed=?5,"
        "state=CASE WHEN ?2=5 AND doubt=0 THEN 1 ELSE ?2 END,"
        "doubt=CASE WHEN ?2 IN (3,4) THEN 0 ELSE doubt END,"
        "sent=CASE WHEN ?2 IN (3,4) THEN 0 ELSE sent END,"
        "headers=CASE ?2 WHEN 3 THEN x'' ELSE headers END,"
        "body=CASE ?2 WHEN 3 THEN x'' ELSE body END,"
        "answer_headers=?6,answer=?7,changed=?8"
        " WHERE id=?1 AND state NOT IN (3,4)",
    [FORGET] =
        "DELETE FROM orders WHERE grp=?1 AND name=?2"
        " AND (?3 OR state=4 OR (state=1 AND doubt=0))",
    [PURGE] =
        "DELETE FROM orders WHERE id IN (SELECT id FROM orders"
        " WHERE state IN (3,4) AND changed<?1 ORDER BY changed LIMIT 500)",
};
/* clang-format on */

_Static_assert(ONCE_CLIENT_PREPARED == 1 && ONCE_CLIENT_SENT == 2 &&
                   ONCE_CLIENT_FINISHED == 3 && ONCE_CLIENT_REFUSED == 4 &&
                   ONCE_CLIENT_OPEN == 5,
               "the statements have these numbers");

struct once__orders {
    sqlite3 *db;
    pthread_mutex_t lock;
    sqlite3_stmt *query[QUERIES];
};

/* ---- Opening and closing ------------------------------------------------ */

static int prepare(struct once__orders *d, once_error *err)
{
    int i, rc = SQLITE_OK;

    for (i = 0; i < QUERIES && rc == SQLITE_OK; i++)
        rc = sqlite3_prepare_v3(d->db, texts[i], -1, SQLITE_PREPARE_PERSISTENT,
                                &d->query[i], NULL);
    return rc == SQLITE_OK ? ONCE_OK : once__file_fail(rc, "opening", err);
}

int once__orders_open(const char *path, uint32_t busy_ms, once_error *err,
                      struct once__orders **out)
{
    struct once__orders *d = calloc(1, sizeof(*d));
    int rc;

    if (d == NULL)
        return once__fail(err, ONCE_ENOMEM, "client: out of memory");
    (void)pthread_mutex_init(&d->lock, NULL);
    rc = once__file_open(path, busy_ms, err, &d->db);
    if (rc == ONCE_OK)
        rc = prepare(d, err);
    if (rc == ONCE_OK)
        rc = once__file_flush(d->db, err);
    /* "Cannot be opened now" is another error than "is corrupt". */
    if (rc == ONCE_ESTORE || rc == ONCE_EFULL) {
        rc = ONCE_EOPEN;
        if (err != NULL)
            err->code = rc;
    }
    if (rc != ONCE_OK) {
        once__orders_close(d);
        return rc;
    }
    *out = d;
    return ONCE_OK;
}

void once__orders_close(struct once__orders *d)
{
    int i;

    if (d == NULL)
        return;
    for (i = 0; i < QUERIES; i++)
        (void)sqlite3_finalize(d->query[i]);
    (void)sqlite3_close(d->db);
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
}

/* ---- Statements --------------------------------------------------------- */

static sqlite3_stmt *query(struct once__orders *d, enum query which)
{
    sqlite3_stmt *q = d->query[which];

    (void)sqlite3_reset(q);
    (void)sqlite3_clear_bindings(q);
    return q;
}

static int run(struct once__orders *d, enum query which)
{
    int rc = sqlite3_step(d->query[which]);

    (void)sqlite3_reset(d->query[which]);
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
}

static void bind_number(sqlite3_stmt *q, int at, uint64_t value)
{
    (void)sqlite3_bind_int64(q, at, (sqlite3_int64)value);
}

static void bind_text(sqlite3_stmt *q, int at, const char *text)
{
    (void)sqlite3_bind_text(q, at, text, -1, SQLITE_STATIC);
}

/* A size that is too large for SQLite shows as a missing value, which the
 * schema refuses. */
static void bind_bytes(sqlite3_stmt *q, int at, once_bytes bytes)
{
    if (bytes.size == 0)
        (void)sqlite3_bind_zeroblob(q, at, 0);
    else
        (void)sqlite3_bind_blob64(q, at, bytes.data, bytes.size, SQLITE_STATIC);
}

/* Ends a transaction. What it did is only certain if this returns SQLITE_OK. */
static int finish(struct once__orders *d, int rc)
{
    if (rc == SQLITE_OK)
        rc = run(d, COMMIT);
    if (rc != SQLITE_OK && !sqlite3_get_autocommit(d->db))
        (void)run(d, ROLLBACK);
    return rc;
}

/* ---- Rows -------------------------------------------------------------- */

void once__order_clear(struct once__order *o)
{
    free(o->memory);
    memset(o, 0, sizeof(*o));
}

static size_t column_size(sqlite3_stmt *q, int i)
{
    return (size_t)sqlite3_column_bytes(q, i);
}

/* Appends a column to the block, with a NUL after it. */
static once_bytes take(sqlite3_stmt *q, int i, char **at)
{
    once_bytes b = {*at, 0};
    const void *data = sqlite3_column_blob(q, i);

    b.size = column_size(q, i);
    if (b.size > 0)
        memcpy(*at, data, b.size);
    (*at)[b.size] = '\0';
    *at += b.size + 1;
    return b;
}

/* A row that something else has changed is refused, not repaired. */
static int row_is_valid(sqlite3_stmt *q)
{
    int state = sqlite3_column_int(q, 1);
    int64_t doubt = sqlite3_column_int64(q, 6);

    return state >= ONCE_CLIENT_PREPARED && state <= ONCE_CLIENT_OPEN &&
           column_size(q, 9) == ONCE__KEY_SIZE - 1 &&
           column_size(q, 18) == ONCE__DIGEST_SIZE && doubt >= 0 &&
           doubt <= UINT32_MAX && (state != ONCE_CLIENT_SENT || doubt > 0) &&
           column_size(q, 12) > 0 && column_size(q, 13) > 0;
}

/* `bodies` 0 leaves out the long columns. */
static int read_row(sqlite3_stmt *q, int bodies, struct once__order *out)
{
    struct once__order o = {.id = sqlite3_column_int64(q, 0)};
    size_t size = 0;
    char *at;
    int i;

    if (!row_is_valid(q))
        return SQLITE_CORRUPT;
    for (i = 10; i < 18; i++)
        size += (i != 15 && i != 17) || bodies ? column_size(q, i) + 1 : 1;
    at = malloc(size);
    if (at == NULL)
        return SQLITE_NOMEM;
    o.memory = at;
    o.state = sqlite3_column_int(q, 1);
    o.reason = sqlite3_column_int(q, 2);
    o.status = sqlite3_column_int(q, 3);
    o.replayed = sqlite3_column_int(q, 4);
    o.attempts = (uint32_t)sqlite3_column_int64(q, 5);
    o.doubt = (uint32_t)sqlite3_column_int64(q, 6);
    o.created_ms = (uint64_t)sqlite3_column_int64(q, 7);
    o.sent_ms = (uint64_t)sqlite3_column_int64(q, 8);
    memcpy(o.key, sqlite3_column_text(q, 9), ONCE__KEY_SIZE);
    o.group = take(q, 10, &at).data;
    o.order = take(q, 11, &at);
    o.method = take(q, 12, &at).data;
    o.url = take(q, 13, &at).data;
    o.headers = take(q, 14, &at);
    o.answer_headers = take(q, 16, &at);
    if (bodies) {
        o.body = take(q, 15, &at);
        o.answer_body = take(q, 17, &at);
    }
    *out = o;
    return SQLITE_OK;
}

/* One row, if there is one: SQLITE_OK, SQLITE_DONE, or an error. */
static int fetch(sqlite3_stmt *q, int bodies, struct once__order *out)
{
    int rc = sqlite3_step(q);

    if (rc == SQLITE_ROW)
        rc = read_row(q, bodies, out);
    (void)sqlite3_reset(q);
    return rc;
}

/* ---- Keeping an order -------------------------------------------------- */

static int insert(struct once__orders *d, const struct once__ask *a,
                  const char *key, uint64_t now_ms)
{
    sqlite3_stmt *q = query(d, INSERT);
    once_bytes digest = {a->digest, ONCE__DIGEST_SIZE};

    bind_text(q, 1, a->group);
    bind_bytes(q, 2, a->order);
    bind_text(q, 3, key);
    bind_number(q, 4, now_ms);
    bind_text(q, 5, a->method);
    bind_text(q, 6, a->url);
    bind_bytes(q, 7, digest);
    bind_bytes(q, 8, a->headers);
    bind_bytes(q, 9, a->body);
    return run(d, INSERT);
}

static int find(struct once__orders *d, const struct once__ask *a, int *same,
                struct once__order *out)
{
    sqlite3_stmt *q = query(d, FIND);
    int rc;

    bind_text(q, 1, a->group);
    bind_bytes(q, 2, a->order);
    rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        rc = read_row(q, 1, out);
        *same = rc == SQLITE_OK && (a->method == NULL ||
                                    memcmp(sqlite3_column_blob(q, 18),
                                           a->digest, ONCE__DIGEST_SIZE) == 0);
    }
    (void)sqlite3_reset(q);
    return rc;
}

static int reopen(struct once__orders *d, struct once__order *o,
                  uint64_t now_ms)
{
    sqlite3_stmt *q = query(d, REOPEN);

    bind_number(q, 1, (uint64_t)o->id);
    bind_number(q, 2, now_ms);
    o->state = ONCE_CLIENT_PREPARED;
    return run(d, REOPEN);
}

static int keep(struct once__orders *d, const struct once__ask *a,
                const char *key, uint64_t now_ms, int *answer,
                struct once__order *out)
{
    int same = 1, rc;

    rc = run(d, BEGIN);
    if (rc != SQLITE_OK)
        return rc;
    rc = find(d, a, &same, out);
    if (rc == SQLITE_DONE && a->method != NULL) {
        rc = insert(d, a, key, now_ms);
        if (rc == SQLITE_OK)
            rc = find(d, a, &same, out);
    } else if (rc == SQLITE_DONE) {
        *answer = ONCE_FREE;
        rc = SQLITE_OK;
    } else if (rc == SQLITE_OK && same && a->ask_refused &&
               out->state == ONCE_CLIENT_REFUSED) {
        rc = reopen(d, out, now_ms);
    }
    if (!same)
        *answer = ONCE_MISMATCH;
    return finish(d, rc);
}

int once__orders_keep(struct once__orders *d, const struct once__ask *a,
                      const char *key, uint64_t now_ms, once_error *err,
                      struct once__order *out)
{
    int rc, answer = ONCE_OK;

    memset(out, 0, sizeof(*out));
    (void)pthread_mutex_lock(&d->lock);
    rc = keep(d, a, key, now_ms, &answer, out);
    (void)pthread_mutex_unlock(&d->lock);
    if (rc != SQLITE_OK) {
        once__order_clear(out);
        return once__file_fail(rc, "keeping an order", err);
    }
    return answer;
}

/* ---- Moving it on ------------------------------------------------------ */

static int count(struct once__orders *d, enum query which, int64_t id,
                 uint64_t now_ms, uint64_t oldest_ms, int *changed,
                 uint32_t *doubt)
{
    sqlite3_stmt *q;
    int rc;

    rc = run(d, BEGIN);
    if (rc != SQLITE_OK)
        return rc;
    q = query(d, which);
    bind_number(q, 1, (uint64_t)id);
    bind_number(q, 2, now_ms);
    if (which == MARK)
        bind_number(q, 3, oldest_ms);
    rc = run(d, which);
    *changed = rc == SQLITE_OK && sqlite3_changes(d->db) == 1;
    q = query(d, DOUBT);
    bind_number(q, 1, (uint64_t)id);
    if (rc == SQLITE_OK) {
        if (sqlite3_step(q) == SQLITE_ROW)
            *doubt = (uint32_t)sqlite3_column_int64(q, 0);
        (void)sqlite3_reset(q);
    }
    return finish(d, rc);
}

static int counted(struct once__orders *d, enum query which, int64_t id,
                   uint64_t now_ms, uint64_t oldest_ms, uint32_t *doubt,
                   const char *what, once_error *err)
{
    int rc, changed = 0;

    (void)pthread_mutex_lock(&d->lock);
    rc = count(d, which, id, now_ms, oldest_ms, &changed, doubt);
    (void)pthread_mutex_unlock(&d->lock);
    if (rc != SQLITE_OK)
        return once__file_fail(rc, what, err);
    return changed ? ONCE_OK : ONCE_REFUSED;
}

int once__orders_mark(struct once__orders *d, int64_t id, uint64_t now_ms,
                      uint64_t oldest_ms, uint32_t *doubt, once_error *err)
{
    return counted(d, MARK, id, now_ms, oldest_ms, doubt, "noting an attempt",
                   err);
}

int once__orders_unmark(struct once__orders *d, int64_t id, uint64_t now_ms,
                        uint32_t *doubt, once_error *err)
{
    return counted(d, UNMARK, id, now_ms, 0, doubt, "noting an answer", err);
}

int once__orders_end(struct once__orders *d, const struct once__order *o,
                     uint64_t now_ms, once_error *err)
{
    sqlite3_stmt *q;
    int rc, changed;

    (void)pthread_mutex_lock(&d->lock);
    q = query(d, END);
    bind_number(q, 1, (uint64_t)o->id);
    bind_number(q, 2, (uint64_t)o->state);
    bind_number(q, 3, (uint64_t)o->reason);
    bind_number(q, 4, (uint64_t)o->status);
    bind_number(q, 5, (uint64_t)o->replayed);
    bind_bytes(q, 6, o->answer_headers);
    bind_bytes(q, 7, o->answer_body);
    bind_number(q, 8, now_ms);
    rc = run(d, END);
    changed = sqlite3_changes(d->db);
    (void)pthread_mutex_unlock(&d->lock);
    if (rc != SQLITE_OK)
        return once__file_fail(rc, "keeping an answer", err);
    return changed == 1 ? ONCE_OK : ONCE_REFUSED;
}

/* The order `id` with its bodies, or the next one after it up to `last`. */
static int read_one(struct once__orders *d, enum query which, int64_t id,
                    int64_t last, once_error *err, struct once__order *out)
{
    sqlite3_stmt *q;
    int rc;

    memset(out, 0, sizeof(*out));
    (void)pthread_mutex_lock(&d->lock);
    q = query(d, which);
    bind_number(q, 1, (uint64_t)id);
    if (which == NEXT)
        bind_number(q, 2, (uint64_t)last);
    rc = fetch(q, which == LOAD, out);
    (void)pthread_mutex_unlock(&d->lock);
    if (rc == SQLITE_DONE)
        return ONCE_FREE;
    return rc == SQLITE_OK
               ? ONCE_OK
               : once__file_fail(
                     rc, which == LOAD ? "reading an order" : "reading orders",
                     err);
}

int once__orders_load(struct once__orders *d, int64_t id, once_error *err,
                      struct once__order *out)
{
    return read_one(d, LOAD, id, 0, err, out);
}

/* ---- Lists ------------------------------------------------------------- */

int once__orders_next(struct once__orders *d, int64_t id, int64_t last,
                      once_error *err, struct once__order *out)
{
    return read_one(d, NEXT, id, last, err, out);
}

int once__orders_last(struct once__orders *d, int64_t *id, once_error *err)
{
    sqlite3_stmt *q;
    int rc;

    (void)pthread_mutex_lock(&d->lock);
    q = query(d, LAST);
    rc = sqlite3_step(q);
    if (rc == SQLITE_ROW)
        *id = sqlite3_column_int64(q, 0);
    (void)sqlite3_reset(q);
    (void)pthread_mutex_unlock(&d->lock);
    return rc == SQLITE_ROW ? ONCE_OK
                            : once__file_fail(rc, "reading orders", err);
}

int once__orders_forget(struct once__orders *d, const char *group,
                        once_bytes order, int force, once_error *err)
{
    struct once__order there = {0};
    int rc, changed = 0;
    sqlite3_stmt *q;

    (void)pthread_mutex_lock(&d->lock);
    q = query(d, FORGET);
    bind_text(q, 1, group);
    bind_bytes(q, 2, order);
    bind_number(q, 3, force != 0);
    rc = run(d, FORGET);
    changed = sqlite3_changes(d->db);
    if (rc == SQLITE_OK && changed == 0) {
        q = query(d, FIND);
        bind_text(q, 1, group);
        bind_bytes(q, 2, order);
        rc = fetch(q, 0, &there);
    }
    (void)pthread_mutex_unlock(&d->lock);
    once__order_clear(&there);
    if (rc == SQLITE_DONE)
        return ONCE_OK; /* there is none */
    if (rc != SQLITE_OK)
        return once__file_fail(rc, "forgetting an order", err);
    return changed == 1 ? ONCE_OK : ONCE_REFUSED;
}

int once__orders_purge(struct once__orders *d, uint64_t before_ms,
                       uint64_t *purged, once_error *err)
{
    int rc, changed;

    *purged = 0;
    do {
        (void)pthread_mutex_lock(&d->lock);
        bind_number(query(d, PURGE), 1, before_ms);
        rc = run(d, PURGE);
        changed = rc == SQLITE_OK ? sqlite3_changes(d->db) : 0;
        (void)pthread_mutex_unlock(&d->lock);
        *purged += (uint64_t)changed;
    } while (changed > 0);
    return rc == SQLITE_OK ? ONCE_OK
                           : once__file_fail(rc, "forgetting orders", err);
}
