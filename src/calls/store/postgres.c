/* SPDX-License-Identifier: Apache-2.0 */
/*
 * postgres.c - the durable store for many machines: "postgres://...".
 *
 * A batch is one function call, so one round trip and one transaction, in which
 * each name occurs once; what is left goes into the next one (rounds.h). An
 * operation that met another session's (a locked row, a row that changed in the
 * same moment) is not in the answer. A claim of a name that another session is
 * inserting makes the server take back the whole call, and does not say which
 * one it was: so the call is halved until that claim stands alone.
 *
 * The server is told which store was opened: another one may stand under the
 * schema's name since, and would not know what this one has recorded.
 *
 * Server time only. It works through a pooler in transaction mode: a call
 * leaves nothing in its session. It refuses to interpret: a call that
 * the server did not answer is unknown, also if the answer to COMMIT got lost.
 */
#include <stdlib.h>
#include <string.h>

#include "calls/core/transition.h"
#include "base/error.h"
#include "base/grow.h"
#include "base/must.h"
#include "base/steady.h"
#include "calls/store/arena.h"
#include "calls/store/postgres/postgres.h"
#include "calls/store/rounds.h"
#include "calls/store/sqlstore.h"
#include "calls/store/store.h"

enum {
    CALL_MAX = 1024,         /* operations of one call */
    SHOWN_BYTES = 256 << 20, /* long results that one batch shows */
    WAIT_PART = 8,           /* of lock_ms: what a call waits for others; */
    WAIT_PART_AGAIN = 64,    /* ... once one of them was in the way */
    STATEMENT = 256
};

/* Asked by another function of the server than all others. */
#define FORGET (1u << ONCE_OP_FORGET)

struct postgres {
    once_store base;
    once_store_options options;
    struct once__pg_config config;
    struct once__pg_link link;
    struct once__pg_params params;
    uint8_t id[ONCE_STORE_ID_SIZE]; /* of the store that was opened */
    int known;                      /* 1: it was read */
    char apply_sql[STATEMENT], forget_sql[STATEMENT], body_sql[STATEMENT],
        seen_sql[STATEMENT];
    struct once__rounds rounds;
    PGresult **kept; /* what answers borrow bytes from, until the next batch */
    size_t kept_count, kept_room;
    struct once__arena arena; /* labels of answers, too */
};

/* ---- Opening and closing ----------------------------------------------- */

static void forget_answers(struct postgres *s)
{
    while (s->kept_count > 0)
        PQclear(s->kept[--s->kept_count]);
    once__arena_reset(&s->arena);
}

/* Takes `r`, also on failure. */
static int keep_answer(struct postgres *s, PGresult *r, once_error *err)
{
    PGresult **kept = once__grown(s->kept, &s->kept_room, s->kept_count + 1,
                                  sizeof(PGresult *));

    if (kept == NULL) {
        PQclear(r);
        return once__fail(err, ONCE_ESTORE, "postgres: out of memory");
    }
    s->kept = kept;
    kept[s->kept_count++] = r;
    return ONCE_OK;
}

static void postgres_close(once_store *store)
{
    struct postgres *s = (struct postgres *)store;

    if (s == NULL)
        return;
    forget_answers(s);
    once__pg_disconnect(&s->link);
    once__pg_config_clear(&s->config);
    once__pg_params_clear(&s->params);
    once__arena_clear(&s->arena);
    once__rounds_clear(&s->rounds);
    free(s->kept);
    free(s);
}

static void write_statements(struct postgres *s)
{
    once__pg_text(&s->config,
                  "SELECT a.* FROM @.same_1($23), @.apply_1($1,$2,$3,$4,$5,$6,"
                  "$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,"
                  "$22) a",
                  s->apply_sql, STATEMENT);
    once__pg_text(&s->config, "SELECT * FROM @.forget_1($1,$2,$3,$4,$5,$6)",
                  s->forget_sql, STATEMENT);
    once__pg_text(&s->config, "SELECT * FROM @.body_1($1,$2)", s->body_sql,
                  STATEMENT);
    once__pg_text(&s->config, "SELECT * FROM @.seen_1($1,$2,$3,$4,$5,$6,$7)",
                  s->seen_sql, STATEMENT);
}

static uint64_t deadline(const struct postgres *s)
{
    return once__steady_ms() + s->config.statement_ms;
}

static int open_as(const once_store_ops *ops, const char *rest,
                   const once_store_options *options, once_error *err,
                   once_store **out)
{
    struct postgres *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return once__fail(err, ONCE_ENOMEM, "postgres: out of memory");
    s->base.ops = ops;
    s->options = *options;
    s->link.config = &s->config;
    rc = once__pg_config_read(&s->config, rest, err);
    if (rc == ONCE_OK) {
        write_statements(s);
        rc = once__pg_connect(&s->link, 0, deadline(s), err);
    }
    if (rc != ONCE_OK) {
        postgres_close(&s->base);
        return rc;
    }
    s->base.caveat = s->link.caveat;
    *out = &s->base;
    return ONCE_OK;
}

static int postgres_open(const char *rest, const once_store_options *options,
                         once_error *err, once_store **out)
{
    return open_as(&once__store_postgres, rest, options, err, out);
}

static int postgresql_open(const char *rest, const once_store_options *options,
                           once_error *err, once_store **out)
{
    return open_as(&once__store_postgresql, rest, options, err, out);
}

/* ---- The time ---------------------------------------------------------- */

/* The server's, unless a test has set another clock, or it `forgets` and less
 * has elapsed. That is never ahead of the server's: see
 * once_store_clock(). */
static const uint64_t *time_to_send(const struct postgres *s, int forgets,
                                    uint64_t *now_ms)
{
    int set = s->options.clock != once__wall_clock;

    if (!set && (!forgets || s->base.forget_ms == 0))
        return NULL;
    *now_ms = set ? s->options.clock(s->options.user) : UINT64_MAX;
    *now_ms = once__time_of(&s->base, forgets, *now_ms);
    return now_ms;
}

/* ---- One batch --------------------------------------------------------- */

struct batch {
    struct postgres *s;
    struct once__rounds *rounds;
    size_t differ; /* answered so because the server did something else */
    size_t shown;  /* bytes of long results so far */
    once_error *err;
};

/* ---- Answers ----------------------------------------------------------- */

/*
 * What the operation says about the record as the server saw it. 0: the server
 * has done something else than once__transition() would have.
 */
static int decide(once_op *op, const struct once__pg_row *row)
{
    once_record after = row->before;
    uint64_t fence = row->granted > 0 ? row->granted - 1 : 0;
    int changed = once__transition(&after, op, row->now_ms, &fence);

    if (row->did != 0)
        return changed && (row->did != 1 || row->granted > 0);
    return !changed || once__same_head(&row->before, &after);
}

/* A long result, in a call of its own. */
static int fetch_body(struct batch *b, once_op *op, once_record *r, int *there)
{
    struct postgres *s = b->s;
    struct once__pg_ask ask;
    PGresult *rows = NULL;
    int rc;

    *there = 0;
    if (once__pg_params_body(&s->params, op, r->fence) != ONCE_OK)
        return once__fail(b->err, ONCE_ESTORE, "postgres: out of memory");
    ask = once__pg_params_ask(&s->params, s->body_sql);
    if (once__pg_ask(&s->link, &ask, b->rounds->until_ms, &rows) !=
        ONCE__PG_DONE)
        return once__pg_fail(&s->link, ONCE_ESTORE, b->err);
    rc = keep_answer(s, rows, b->err);
    if (rc != ONCE_OK || PQntuples(rows) == 0)
        return rc;
    if (PQnfields(rows) != 1 || PQntuples(rows) != 1 ||
        (size_t)PQgetlength(rows, 0, 0) != r->result.size)
        return once__fail(b->err, ONCE_ESTORE,
                          "%s: a result has another length than its row says",
                          s->link.label);
    r->result.data = PQgetvalue(rows, 0, 0);
    b->shown += r->result.size;
    *there = 1;
    return ONCE_OK;
}

/* ONCE_OK, also if the operation must be asked again. */
static int settle(struct batch *b, struct once__rounds_item *item,
                  struct once__pg_row *row)
{
    int there = 1, rc = ONCE_OK;

    if (row->rc != ONCE_OK) {
        once__answer(b->rounds, item, row->rc);
        return ONCE_OK;
    }
    if (row->did == 0 && !row->body) {
        if (b->shown > SHOWN_BYTES) {
            once__answer(b->rounds, item, ONCE_ESTORE); /* in a batch to come */
            return ONCE_OK;
        }
        rc = fetch_body(b, item->op, &row->before, &there);
    }
    if (rc != ONCE_OK || !there)
        return rc;
    if (!decide(item->op, row)) {
        b->differ++; /* it is not known what is there now */
        once__answer(b->rounds, item, ONCE_ESTORE);
        return ONCE_OK;
    }
    once__answer(b->rounds, item, item->op->rc);
    once__answer_line(b->rounds, item, row->now_ms, &b->s->arena);
    return ONCE_OK;
}

/* The operation that the row is about; NULL: none. */
static struct once__rounds_item *find_item(const struct batch *b,
                                           const struct once__pg_row *row)
{
    const struct once__rounds *r = b->rounds;
    size_t i = once__rounds_find(r, row->name);

    return i < r->count ? &r->items[r->places[i]] : NULL;
}

static int settle_all(struct batch *b, PGresult *rows)
{
    struct once__pg_row row;
    struct once__rounds_item *item;
    int i, n = PQntuples(rows), rc = keep_answer(b->s, rows, b->err);

    for (i = 0; i < n && rc == ONCE_OK; i++) {
        item = once__pg_row_read(rows, i, &row) ? find_item(b, &row) : NULL;
        if (item == NULL || item->done)
            return once__fail(b->err, ONCE_ESTORE,
                              "%s: its functions are not ours",
                              b->s->link.label);
        rc = settle(b, item, &row);
    }
    return rc;
}

/* ---- Calls ------------------------------------------------------------- */

/* Never 0, which would be for ever. */
static uint32_t wait_of(const struct postgres *s, uint64_t part)
{
    uint64_t ms = s->config.lock_ms / part;

    return ms > 0 ? (uint32_t)ms : 1;
}

static int make_params(struct batch *b, int forget)
{
    struct postgres *s = b->s;
    uint64_t now_ms;
    struct once__pg_call call = {
        time_to_send(s, forget, &now_ms), s->config.async, !b->rounds->full,
        wait_of(s, b->rounds->met ? WAIT_PART_AGAIN : WAIT_PART),
        s->known ? s->id : NULL};

    if (forget)
        return once__pg_params_forget(&s->params, &call, b->rounds->call,
                                      b->rounds->count);
    return once__pg_params_apply(&s->params, &call, b->rounds->call,
                                 b->rounds->count);
}

/* Others were in the way, and nothing was changed: it may be asked again. */
static int in_the_way(const struct once__pg_link *l)
{
    return once__pg_state(l, "40001") || once__pg_state(l, "40P01") ||
           once__pg_state(l, "55P03");
}

/* The disk is full: what takes no room is tried once more without the rest. */
static int refused(struct batch *b)
{
    if (in_the_way(&b->s->link)) {
        once__rounds_halve(b->rounds);
        return ONCE_OK;
    }
    if (!once__pg_state(&b->s->link, "53100"))
        return once__pg_fail(&b->s->link, ONCE_ESTORE, b->err);
    once__rounds_full(b->rounds);
    return ONCE_OK;
}

static int call(void *user)
{
    struct batch *b = user;
    struct postgres *s = b->s;
    struct once__pg_ask ask;
    PGresult *rows = NULL;
    enum once__pg_end end;
    int forget = 0, rc;

    if (once__rounds_gather(b->rounds, ~FORGET) == 0) {
        forget = 1;
        ONCE__MUST(once__rounds_gather(b->rounds, FORGET) > 0);
    }
    if (make_params(b, forget) != ONCE_OK)
        return once__fail(b->err, ONCE_ESTORE, "postgres: out of memory");
    ask =
        once__pg_params_ask(&s->params, forget ? s->forget_sql : s->apply_sql);
    end = once__pg_ask(&s->link, &ask, b->rounds->until_ms, &rows);
    if (end == ONCE__PG_REFUSED)
        return refused(b);
    if (end == ONCE__PG_LOST)
        return once__pg_fail(&s->link, ONCE_ESTORE, b->err);
    rc = settle_all(b, rows);
    once__rounds_asked(b->rounds);
    return rc;
}

static int connected(struct postgres *s, once_error *err)
{
    if (once__pg_connect(&s->link, 0, deadline(s), err) == ONCE_OK)
        return ONCE_OK;
    if (err != NULL)
        err->code = ONCE_ESTORE;
    return ONCE_ESTORE;
}

static int postgres_apply(once_store *store, once_op **ops, size_t n,
                          once_error *err)
{
    struct postgres *s = (struct postgres *)store;
    struct batch b = {.s = s, .rounds = &s->rounds, .err = err};
    uint64_t until_ms;
    int rc;

    forget_answers(s);
    if (n == 0)
        return ONCE_OK;
    until_ms = deadline(s);
    if (connected(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    if (once__rounds_begin(&s->rounds, ops, n, CALL_MAX, until_ms,
                           s->config.lock_ms) != ONCE_OK)
        return once__fail(err, ONCE_ESTORE, "postgres: out of memory");
    rc = once__rounds_run(&s->rounds, call, &b);
    if (rc == ONCE_OK && b.differ == n)
        rc = once__fail(err, ONCE_ESTORE,
                        "%s: its functions do something else than this "
                        "program: `once init` brings them up to date",
                        s->link.label);
    return rc;
}

/* ---- Scanning ---------------------------------------------------------- */

static int postgres_scan(once_store *store, int what,
                         const once_position *after, uint32_t max,
                         once_each *each, void *user, once_error *err)
{
    struct postgres *s = (struct postgres *)store;
    uint64_t now_ms;

    if (what < ONCE_SCAN_ALL || what >= ONCE__SCAN_END)
        return once__fail(err, ONCE_EINVAL, "what: %d is not a scan", what);
    if (max == 0)
        return 0;
    if (connected(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    return once__pg_scan(&s->link, &s->params, what,
                         time_to_send(s, what == ONCE_SCAN_KEEP, &now_ms),
                         after, max, each, user, err);
}

/* ---- Besides records --------------------------------------------------- */

static int postgres_count(once_store *store, once_counts *out, once_error *err)
{
    struct postgres *s = (struct postgres *)store;

    return connected(s, err) != ONCE_OK
               ? ONCE_ESTORE
               : once__pg_count(&s->link, &s->params, out, err);
}

static int postgres_head(once_store *store, const once_store_head *put,
                         once_store_head *out, once_error *err)
{
    struct postgres *s = (struct postgres *)store;
    int rc = connected(s, err);

    if (rc == ONCE_OK)
        rc = once__pg_head(&s->link, &s->params, put, out, err);
    if (rc == ONCE_OK && (put != NULL || !s->known)) {
        memcpy(s->id, out->id, sizeof(s->id));
        s->known = 1;
    }
    return rc;
}

static int postgres_fence(once_store *store, uint64_t *out, once_error *err)
{
    struct postgres *s = (struct postgres *)store;

    return connected(s, err) != ONCE_OK
               ? ONCE_ESTORE
               : once__pg_fence(&s->link, &s->params, out, err);
}

static int postgres_import(once_store *store, const once_named *r, size_t n,
                           once_error *err)
{
    struct postgres *s = (struct postgres *)store;

    return connected(s, err) != ONCE_OK
               ? ONCE_ESTORE
               : once__pg_import(&s->link, &s->params, r, n, err);
}

static int postgres_time(once_store *store, const once_store_time *put,
                         once_store_time *out, once_error *err)
{
    struct postgres *s = (struct postgres *)store;
    uint64_t now_ms;
    const struct once__pg_call call = {time_to_send(s, 0, &now_ms),
                                       s->config.async, 0,
                                       wait_of(s, WAIT_PART), NULL};
    struct once__pg_ask ask;
    PGresult *rows = NULL;
    int rc = ONCE_OK;

    if (connected(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    if (once__pg_params_seen(&s->params, &call, put) != ONCE_OK)
        return once__fail(err, ONCE_ESTORE, "postgres: out of memory");
    ask = once__pg_params_ask(&s->params, s->seen_sql);
    if (once__pg_ask(&s->link, &ask, deadline(s), &rows) != ONCE__PG_DONE)
        return once__pg_fail(&s->link, ONCE_ESTORE, err);
    if (!once__pg_seen_read(rows, out))
        rc = once__fail(err, ONCE_ESTORE, "%s: its functions are not ours",
                        s->link.label);
    PQclear(rows);
    return rc;
}

/* Both schemes are in use. */
#define POSTGRES_OPS(scheme, opening)                                          \
    {                                                                          \
        .size = sizeof(once_store_ops), .name = scheme, .durable = 1,          \
        .shared = 1, .open = opening, .close = postgres_close,                 \
        .apply = postgres_apply, .scan = postgres_scan, .init = once__pg_init, \
        .print_schema = once__pg_print_schema, .verify = once__pg_verify,      \
        .dump = once__pg_dump, .time = postgres_time, .count = postgres_count, \
        .head = postgres_head, .import = postgres_import,                      \
        .fence = postgres_fence                                                \
    }

const once_store_ops once__store_postgres =
    POSTGRES_OPS("postgres", postgres_open);
const once_store_ops once__store_postgresql =
    POSTGRES_OPS("postgresql", postgresql_open);
