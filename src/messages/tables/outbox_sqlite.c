/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox_sqlite.c - outbox.h on SQLite: what the functions of pg.sql whose names
 * end in _1 do, as statements between BEGIN IMMEDIATE and COMMIT.
 *
 * SQLite has one writer at a time, so nothing has to be locked here.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/steady.h"
#include "messages/tables/rows.h"
#include "messages/tables/stmt.h"

enum {
    PURGE_STEP = 1000,
    LOOK_MAX = 100000,     /* rows that a claim looks at */
    BODIES_MAX = 16 << 20, /* bytes of bodies that end a claim */
    POLL_FIRST_MS = 5,
    POLL_MOST_MS = 100
};

/* lease_ms counts while it is up to an hour ahead; further ahead it was written
 * by a clock that went back. */
#define LEASED "lease_ms-?1 BETWEEN 1 AND 3600000"

/* ---- Claiming ----------------------------------------------------------- */

struct claim {
    const struct once__outbox_ask *ask;
    struct once__outgoing_list *out;
    int64_t *rows, *late; /* seqs: to be claimed, and out of their lease */
    size_t n, n_late;
    size_t seen;  /* rows of the last look */
    int64_t last; /* the seq up to which rows were looked at */
    sqlite3_str
        *busy; /* keys that rows up to `last` wait for: JSON, by commas */
};

static int make_due(const once_tx *tx, const struct claim *c, uint64_t now)
{
    return once__lite_run(
        tx, NULL,
        "UPDATE main.once_outbox SET phase=0 WHERE seq IN(SELECT seq"
        " FROM main.once_outbox WHERE phase=1 AND route=?1 AND due_ms<=?2"
        " ORDER BY due_ms LIMIT ?3)",
        ONCE__TEXT(c->ask->route), ONCE__NUMBER(now), ONCE__NUMBER(c->ask->n));
}

/* w are the oldest rows behind ?6 whose key is none of ?7 and has no earlier row
 * that has stopped; of these a row waits that is leased, or whose key has an
 * earlier row that is. The last column is the key that others wait for. */
static const char look_sql[] =
    "WITH w AS MATERIALIZED(SELECT seq,key,length(body) AS size," LEASED
    " AS leased,?5 AND lease_ms>0 AND NOT " LEASED " AS late"
    " FROM main.once_outbox o WHERE route=?2 AND phase=0 AND NOT EXISTS("
    "SELECT 1 FROM main.once_outbox p WHERE p.route=?2 AND p.key=o.key"
    " AND p.phase>0 AND p.phase IN (1,3,4) AND p.key IS NOT NULL"
    " AND (p.phase=1 OR NOT ?4) AND p.seq<o.seq) AND seq>?6 AND (key IS NULL "
    "OR key NOT IN ("
    "SELECT value FROM json_each('['||?7||']'))) ORDER BY seq LIMIT ?3)"
    "SELECT seq,size,late,leased OR late OR (key IS NOT NULL AND"
    " max(leased OR (late AND NOT ?4)) OVER (PARTITION BY key ORDER BY seq)),"
    "CASE WHEN key IS NOT NULL AND (leased OR (late AND NOT ?4))"
    " THEN json_quote(key) END FROM w ORDER BY seq";

static void add_busy(sqlite3_str *busy, const char *keys)
{
    if (keys != NULL && keys[0] != '\0')
        sqlite3_str_appendf(busy, "%s%s",
                            sqlite3_str_length(busy) > 0 ? "," : "", keys);
}

/* What becomes of the `most` rows behind the last. */
static int look(const once_tx *tx, struct claim *c, uint64_t now, size_t most)
{
    struct once__stmt q = once__stmt(tx, look_sql);
    const char *busy = sqlite3_str_value(c->busy);
    sqlite3_str *more = sqlite3_str_new(NULL);
    uint64_t bytes = 0;
    int rc;

    once__stmt_with(&q, ONCE__NUMBER(now), ONCE__TEXT(c->ask->route),
                    ONCE__NUMBER(most), ONCE__NUMBER(c->ask->pass != 0),
                    ONCE__NUMBER(c->ask->hold != 0), ONCE__NUMBER(c->last),
                    ONCE__TEXT(busy == NULL ? "" : busy));
    for (c->seen = c->n = 0; once__stmt_next(&q); c->seen++) {
        c->last = sqlite3_column_int64(q.stmt, 0);
        add_busy(more, (const char *)sqlite3_column_text(q.stmt, 4));
        if (sqlite3_column_int(q.stmt, 2))
            c->late[c->n_late++] = c->last;
        if (sqlite3_column_int(q.stmt, 3) || c->n == c->ask->n ||
            bytes >= BODIES_MAX)
            continue;
        c->rows[c->n++] = c->last;
        bytes += (uint64_t)sqlite3_column_int64(q.stmt, 1);
    }
    rc = once__stmt_end(&q);
    add_busy(c->busy, sqlite3_str_value(more)); /* `busy` is bound until now */
    if (rc == SQLITE_OK)
        rc = sqlite3_str_errcode(more);
    if (rc == SQLITE_OK)
        rc = sqlite3_str_errcode(c->busy);
    sqlite3_free(sqlite3_str_finish(more));
    return rc;
}

/* Where all of them wait for others, it looks further, past the rows of the keys
 * that they wait for. */
static int look_further(const once_tx *tx, struct claim *c, uint64_t now)
{
    size_t most = 10 * c->ask->n;
    int64_t *late;
    int rc;

    for (;; most *= 10) {
        most = most < LOOK_MAX ? most : LOOK_MAX;
        late = realloc(c->late, (c->n_late + most) * sizeof(*late));
        if (late == NULL)
            return SQLITE_NOMEM;
        c->late = late;
        rc = look(tx, c, now, most);
        if (rc != SQLITE_OK || c->n > 0 || c->seen < most || most == LOOK_MAX)
            return rc;
    }
}

static int hold_late(const once_tx *tx, const struct claim *c)
{
    size_t i;
    int rc = SQLITE_OK;

    for (i = 0; i < c->n_late && rc == SQLITE_OK; i++) {
        rc = once__lite_run(tx, NULL,
                            "UPDATE main.once_outbox SET phase=4,"
                            "error='its lease ran out: it may have been taken'"
                            " WHERE seq=?1",
                            ONCE__NUMBER(c->late[i]));
    }
    return rc;
}

/* Ends a statement of a transaction with its code. */
static int ended(struct once__either *q)
{
    int rc = once__stmt_end(&q->lite);

    return q->rc == ONCE_OK ? rc : SQLITE_NOMEM;
}

static int take_rows(const once_tx *tx, const struct claim *c, uint64_t now)
{
    struct once__either q;
    size_t i;

    once__either(
        &q, tx, "outbox_claim", NULL,
        "UPDATE main.once_outbox SET attempts=attempts+1,doubt=doubt+1,"
        "lease_ms=?2,doubt_ms=CASE doubt WHEN 0 THEN ?3 ELSE doubt_ms END"
        " WHERE seq=?1 RETURNING " ONCE__OUTGOING "body,reply,?3",
        NULL);
    for (i = 0;
         i < c->n && (q.lite.rc == SQLITE_OK || q.lite.rc == SQLITE_DONE);
         i++) {
        once__stmt_again(&q.lite);
        once__either_with(&q, ONCE__NUMBER(c->rows[i]),
                          ONCE__NUMBER(now + c->ask->lease_ms),
                          ONCE__NUMBER(now));
        while (once__either_next(&q))
            once__outgoing_read(&q, c->out);
    }
    return ended(&q);
}

static int claim_work(const once_tx *tx, void *user)
{
    struct claim *c = user;
    uint64_t now = once__lite_now();
    int rc;

    c->out->now_ms = now;
    rc = make_due(tx, c, now);
    if (rc == SQLITE_OK)
        rc = look_further(tx, c, now);
    if (rc == SQLITE_OK)
        rc = hold_late(tx, c);
    return rc == SQLITE_OK ? take_rows(tx, c, now) : rc;
}

static int claim(const once_tx *tx, const struct once__outbox_ask *ask,
                 struct once__outgoing_list *out, once_error *err)
{
    struct claim c = {.ask = ask, .out = out};
    int rc;

    c.rows = malloc(ask->n * sizeof(*c.rows));
    if (c.rows == NULL)
        return once__fail(err, ONCE_ENOMEM, "outbox_claim: no memory");
    c.busy = sqlite3_str_new(NULL);
    rc = once__lite_transaction(tx, "outbox_claim", claim_work, &c, err);
    sqlite3_free(sqlite3_str_finish(c.busy));
    free(c.rows);
    free(c.late);
    return rc;
}

/* ---- Settling ----------------------------------------------------------- */

static int remove_done(const once_tx *tx, struct once__settlement *s)
{
    return once__lite_run(tx, &s->ours,
                          "DELETE FROM main.once_outbox" ONCE__UNSETTLED
                          " AND kept=0",
                          ONCE__NUMBER(s->seq), ONCE__NUMBER(s->attempts));
}

static int update(const once_tx *tx, struct once__settlement *s, uint64_t now)
{
    char error[ONCE_ID_SIZE];

    once__copy_visible(error, once__text_of(s->error));
    return once__lite_run(
        tx, &s->ours,
        "UPDATE main.once_outbox SET phase=?3,lease_ms=0,"
        "due_ms=CASE ?3 WHEN 0 THEN due_ms ELSE ?4 END,"
        "doubt=CASE ?3 WHEN 2 THEN 0 ELSE max(doubt-?5,0) END,"
        "refused=refused+?6,body=CASE ?3 WHEN 2 THEN x'' ELSE body END,"
        "status=?7,reply=?8,error=?9" ONCE__UNSETTLED,
        ONCE__NUMBER(s->seq), ONCE__NUMBER(s->attempts),
        ONCE__NUMBER(s->to.phase), ONCE__NUMBER(now + s->to.wait_ms),
        ONCE__NUMBER(s->to.harmless != 0), ONCE__NUMBER(s->to.refused != 0),
        ONCE__NUMBER(s->status), ONCE__MAYBE(s->reply.data, s->reply.size),
        ONCE__TEXT(error));
}

struct settle {
    struct once__settlement *rows;
    size_t n;
};

static int settle_work(const once_tx *tx, void *user)
{
    const struct settle *s = user;
    uint64_t now = once__lite_now();
    int rc = SQLITE_OK;
    size_t i;

    for (i = 0; i < s->n && rc == SQLITE_OK; i++) {
        struct once__settlement *row = &s->rows[i];

        if (row->to.phase == ONCE__ROW_DONE)
            rc = remove_done(tx, row);
        if (rc == SQLITE_OK && !row->ours)
            rc = update(tx, row, now);
    }
    return rc;
}

static int settle(const once_tx *tx, struct once__settlement *rows, size_t n,
                  once_error *err)
{
    struct settle s = {rows, n};

    return once__lite_transaction(tx, "outbox_settle", settle_work, &s, err);
}

/* ---- Sleeping ----------------------------------------------------------- */

static int sleeps(const once_tx *tx, const char *route, int sleeping,
                  once_error *err)
{
    (void)tx;
    (void)route;
    (void)sleeping;
    (void)err;
    return ONCE_OK;
}

/* The version changes with each commit of another connection. A file that was
 * replaced ends the wait: the caller opens the new one. */
static int wait_(const once_tx *tx, const char *route, int stop_fd,
                 uint32_t wait_ms, once_error *err)
{
    static const char version[] = "PRAGMA main.data_version";
    struct pollfd fd = {stop_fd, POLLIN, 0};
    uint64_t until = once__steady_ms() + wait_ms, now, pause = POLL_FIRST_MS;
    int64_t first = 0, then = 0;
    int rc;

    (void)route;
    if (!once__lite_in_place(tx->sqlite))
        return ONCE_OK;
    rc = once__lite_number(tx, version, &first);

    for (then = first; rc == SQLITE_OK && then == first; pause += pause / 2) {
        now = once__steady_ms();
        if (now >= until)
            break;
        pause = pause < POLL_MOST_MS ? pause : POLL_MOST_MS;
        pause = pause < until - now ? pause : until - now;
        if (poll(&fd, 1, (int)pause) < 0 && errno != EINTR)
            return once__fail(err, ONCE_EABORTED, "poll: %s", strerror(errno));
        if (fd.revents != 0 || !once__lite_in_place(tx->sqlite))
            break;
        rc = once__lite_number(tx, version, &then);
    }
    return rc == SQLITE_OK ? ONCE_OK : once__lite_failed(rc, "wait", err);
}

/* ---- Operators ---------------------------------------------------------- */

/* What is decided, and how that was answered. */
struct decide {
    const struct once__row_decision *d;
    uint64_t wait_ms;
    int answer;
};

/* The row as an operator saw it, and not leased. */
#define SEEN                                                                   \
    " WHERE seq=?2 AND phase=?3 AND attempts=?4"                               \
    " AND NOT (phase=0 AND " LEASED ")"

static const char *const decisions[] = {
    [ONCE__OUTBOX_RETRY] =
        "UPDATE main.once_outbox SET phase=0,lease_ms=0,refused=0,error=?5" SEEN
        " AND phase IN (1,3,4)",
    [ONCE__OUTBOX_DROP] = "DELETE FROM main.once_outbox" SEEN
                          " AND phase<>2 AND saga IS NULL AND ?5 IS NOT NULL",
    [ONCE__OUTBOX_RESOLVE] = "UPDATE main.once_outbox SET "
                             "phase=2,lease_ms=0,doubt=0,due_ms=?1,body=x'',"
                             "error=?5" SEEN " AND phase IN (3,4)",
};

static int exists(const once_tx *tx, const char *sql, int64_t no, int *found)
{
    struct once__stmt q = once__stmt(tx, sql);

    once__stmt_with(&q, ONCE__NUMBER(no));
    *found = once__stmt_next(&q);
    return once__stmt_end(&q);
}

static int decide_work(const once_tx *tx, void *user)
{
    struct decide *x = user;
    int rc, changed, found = 1;

    rc = once__lite_run(tx, &changed, decisions[x->d->action],
                        ONCE__NUMBER(once__lite_now()), ONCE__NUMBER(x->d->no),
                        ONCE__NUMBER(x->d->state), ONCE__NUMBER(x->d->count),
                        ONCE__TEXT(x->d->why));
    if (rc == SQLITE_OK && changed == 0)
        rc = exists(tx, "SELECT 1 FROM main.once_outbox WHERE seq=?1", x->d->no,
                    &found);
    x->answer = changed ? ONCE_OK : found ? ONCE_REFUSED : ONCE_FREE;
    return rc;
}

static int decide(const once_tx *tx, const struct once__row_decision *d,
                  once_error *err)
{
    struct decide x = {d, 0, ONCE_OK};
    int rc = once__lite_transaction(tx, "outbox_decide", decide_work, &x, err);

    return rc == ONCE_OK ? x.answer : rc;
}

struct purge {
    uint64_t until_ms;
    int n;
};

static int purge_work(const once_tx *tx, void *user)
{
    struct purge *p = user;
    return once__lite_run(
        tx, &p->n,
        "DELETE FROM main.once_outbox WHERE phase=2 AND seq IN(SELECT seq"
        " FROM main.once_outbox WHERE phase=2 AND due_ms<?1 AND saga IS NULL"
        " ORDER BY due_ms LIMIT ?2)",
        ONCE__NUMBER(p->until_ms), ONCE__NUMBER(PURGE_STEP));
}

static int purge(const once_tx *tx, uint64_t age_ms, uint64_t *removed,
                 once_error *err)
{
    uint64_t now = once__lite_now();
    struct purge p = {now > age_ms ? now - age_ms : 0, PURGE_STEP};
    int rc = ONCE_OK;

    while (rc == ONCE_OK && p.n == PURGE_STEP) {
        rc = once__lite_transaction(tx, "outbox_purge", purge_work, &p, err);
        if (rc == ONCE_OK)
            *removed += (uint64_t)p.n;
    }
    return rc;
}

/* ---- Parked messages ---------------------------------------------------- */

struct take {
    const char *consumer;
    uint32_t lease_ms;
    int keyed;
    struct once__parked_list *out;
};

static int take_work(const once_tx *tx, void *user)
{
    struct take *t = user;
    struct once__either q;

    once__either(
        &q, tx, "parked_take", NULL,
        "UPDATE main.once_parked SET attempts=attempts+1,due_ms=?1+?3"
        " WHERE no=(SELECT k.no FROM main.once_parked k WHERE"
        " k.consumer=?2 AND k.state=1 AND k.due_ms<=?1 AND NOT (?4 AND"
        " k.key IS NOT NULL AND EXISTS(SELECT 1 FROM main.once_parked e"
        " WHERE e.consumer=k.consumer AND e.key=k.key AND e.no<k.no))"
        " ORDER BY k.due_ms,k.no LIMIT 1) RETURNING " ONCE__PARKED "body,?1",
        NULL);
    t->out->now_ms = once__lite_now();
    once__either_with(&q, ONCE__NUMBER(t->out->now_ms), ONCE__TEXT(t->consumer),
                      ONCE__NUMBER(t->lease_ms), ONCE__NUMBER(t->keyed != 0));
    while (once__either_next(&q))
        once__parked_read(&q, t->out);
    return ended(&q);
}

static int take(const once_tx *tx, const char *consumer, uint32_t lease_ms,
                int keyed, struct once__parked_list *out, once_error *err)
{
    struct take t = {consumer, lease_ms, keyed, out};

    return once__lite_transaction(tx, "parked_take", take_work, &t, err);
}

static int put_back_work(const once_tx *tx, void *user)
{
    struct decide *x = user;
    int rc, changed;

    rc = once__lite_run(
        tx, &changed,
        "UPDATE main.once_parked SET state=?3,due_ms=?4,error=?5"
        " WHERE no=?1 AND attempts=?2 AND state IN (1,?3)",
        ONCE__NUMBER(x->d->no), ONCE__NUMBER(x->d->count),
        ONCE__NUMBER(x->d->state), ONCE__NUMBER(once__lite_now() + x->wait_ms),
        ONCE__TEXT(x->d->why));
    x->answer = changed ? ONCE_OK : ONCE_REFUSED;
    return rc;
}

static int put_back(const once_tx *tx, const struct once__row_decision *d,
                    uint64_t wait_ms, once_error *err)
{
    struct decide x = {d, wait_ms, ONCE_OK};
    int rc =
        once__lite_transaction(tx, "parked_put_back", put_back_work, &x, err);

    return rc == ONCE_OK ? x.answer : rc;
}

/* ---- Decisions about parked messages ------------------------------------ */

/* The row that is decided about. */
struct subject {
    struct once__parked_list list;
    const struct once__parked *row; /* NULL: there is none */
    int filed;                      /* its id has a row in the inbox */
};

static int read_subject(const once_tx *tx, int64_t no, struct subject *s)
{
    struct once__either q;

    once__either(&q, tx, "parked_decide", NULL,
                 "SELECT " ONCE__PARKED
                 "body,0,filed FROM main.once_parked WHERE no=?1",
                 NULL);
    once__either_with(&q, ONCE__NUMBER(no));
    if (once__either_next(&q)) {
        s->filed = once__either_int(&q, 13) != 0;
        once__parked_read(&q, &s->list);
        s->row = s->list.n > 0 ? &s->list.rows[0] : NULL;
    }
    return ended(&q);
}

/* Writes the inbox row that it has not; 0 in `*filed`: there is one by now. */
static int file(const once_tx *tx, const struct once__parked *k, uint64_t now,
                int *filed)
{
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint64_t id_ms = once__id_ms(k->m.id);

    if (once__fingerprint_bytes(k->m.body, fingerprint, NULL) != ONCE_OK)
        return SQLITE_NOMEM;
    return once__lite_run(
        tx, filed,
        "INSERT INTO main.once_inbox VALUES(?1,?2,?3,?4,1,NULL,NULL)"
        " ON CONFLICT DO NOTHING",
        ONCE__TEXT(k->m.consumer), ONCE__TEXT(k->m.id),
        ONCE__NUMBER(id_ms > now ? id_ms : now), ONCE__SUM(fingerprint));
}

static int retry(const once_tx *tx, int64_t no, const char *why, uint64_t now)
{
    return once__lite_run(
        tx, NULL,
        "UPDATE main.once_parked SET state=1,attempts=0,due_ms=?2,"
        "error=?3,filed=1 WHERE no=?1",
        ONCE__NUMBER(no), ONCE__NUMBER(now), ONCE__TEXT(why));
}

/* The row goes; how long its id is answered for counts from now. */
static int drop(const once_tx *tx, const struct once__parked *k, uint64_t now)
{
    int rc;

    rc = once__lite_run(tx, NULL,
                        "UPDATE main.once_inbox SET at_ms=max(at_ms,?3)"
                        " WHERE consumer=?1 AND id=?2",
                        ONCE__TEXT(k->m.consumer), ONCE__TEXT(k->m.id),
                        ONCE__NUMBER(now));
    if (rc != SQLITE_OK)
        return rc;
    return once__lite_run(tx, NULL, "DELETE FROM main.once_parked WHERE no=?1",
                          ONCE__NUMBER(k->no));
}

static int decide_about(const once_tx *tx, const struct once__row_decision *d,
                        const struct subject *s)
{
    uint64_t now = once__lite_now();
    int filed = 1, rc = SQLITE_OK;

    if (d->action != ONCE__PARKED_RETRY)
        return drop(tx, s->row, now);
    if (!s->filed)
        rc = file(tx, s->row, now, &filed);
    if (rc != SQLITE_OK)
        return rc;
    return filed ? retry(tx, d->no, d->why, now) : drop(tx, s->row, now);
}

static int parked_decide_work(const once_tx *tx, void *user)
{
    struct decide *x = user;
    struct subject s = {{NULL, 0, 0, NULL}, NULL, 0};
    int rc = read_subject(tx, x->d->no, &s);

    x->answer = s.row == NULL                    ? ONCE_FREE
                : once__parked_fits(x->d, s.row) ? ONCE_OK
                                                 : ONCE_REFUSED;
    if (rc == SQLITE_OK && x->answer == ONCE_OK)
        rc = decide_about(tx, x->d, &s);
    once__parked_clear(&s.list);
    return rc;
}

static int parked_decide(const once_tx *tx, const struct once__row_decision *d,
                         once_error *err)
{
    struct decide x = {d, 0, ONCE_OK};
    int rc = once__lite_transaction(tx, "parked_decide", parked_decide_work, &x,
                                    err);

    return rc == ONCE_OK ? x.answer : rc;
}

const struct once__outbox_backend once__outbox_sqlite = {
    once__lite_idle, claim, settle, sleeps,   wait_,
    decide,          purge, take,   put_back, parked_decide};
