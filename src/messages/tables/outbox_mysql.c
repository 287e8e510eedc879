/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox_mysql.c - outbox.h on MySQL and MariaDB: statements between START
 * TRANSACTION and COMMIT, at READ COMMITTED.
 *
 * Claimers of one route take turns at its row in once_relay_route. Rows are looked
 * at without locks, so that none waits for what programs have written and not
 * committed; what was seen is said once more in the statement that changes a row,
 * and a claim that finds less than it has seen is made again.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/steady.h"
#include "messages/tables/purge_mysql.h"
#include "messages/tables/rows.h"

enum {
    TRIES = 5,             /* of one claim */
    NEAR_BATCHES = 4,      /* batches of rows that a claim looks at first; */
    FAR_BATCHES = 10,      /* ... and if that is not enough */
    LOOK_MAX = 100000,     /* rows that a claim looks at */
    BODIES_MAX = 16 << 20, /* bytes of bodies that end a claim */
    LIST_MAX = 500,        /* numbers in one IN (...): longer ones are joined */
    POLL_FIRST_MS = 10,
    POLL_MOST_MS = 1000,
    SEEN_MAX = 1000
};

/* lease_ms counts while it is up to an hour ahead; further ahead it was written
 * by a clock that went back. */
#define LEASED "lease_ms-?1 BETWEEN 1 AND 3600000"

/* ---- Lists of rows ------------------------------------------------------ */

/* `sql` with its values and, behind it, "seq IN (...)" for a part of the rows.
 * `*changed` counts up. Each such statement names the primary key: by its
 * statistics the server may take an index on the phase, and read all rows of it. */
static int change_part(const once_tx *tx, const char *where, const char *sql,
                       const struct once__value *values, int n_values,
                       const int64_t *seqs, size_t n, uint64_t *changed,
                       once_error *err)
{
    struct once__my_text text = {0};
    uint64_t one = 0;
    int rc;

    once__mysql_fill(&text, sql, values, n_values);
    once__my_put(&text, " AND seq IN (");
    once__mysql_list(&text, seqs, n);
    once__my_put(&text, ")");
    rc = once__mysql_run_text(tx, where, &one, err, &text);
    once__my_text_clear(&text);
    *changed += one;
    return rc;
}

/* The same for all of them; returns how many were changed in `*changed`. */
static int change(const once_tx *tx, const char *where, const char *sql,
                  const struct once__value *values, const int64_t *seqs,
                  size_t n, uint64_t *changed, once_error *err)
{
    int n_values = 0, rc = ONCE_OK;
    size_t at, part;

    while (values[n_values].type != ONCE__VALUE_END)
        n_values++;
    *changed = 0;
    for (at = 0; at < n && rc == ONCE_OK; at += part) {
        part = n - at < LIST_MAX ? n - at : LIST_MAX;
        rc = change_part(tx, where, sql, values, n_values, seqs + at, part,
                         changed, err);
    }
    return rc;
}

/* ---- Claiming ----------------------------------------------------------- */

struct claim {
    const struct once__outbox_ask *ask;
    struct once__outgoing_list *out;
    int64_t now;
    int64_t *rows, *late; /* seqs: to be claimed, and out of their lease */
    size_t n, n_late;
    size_t seen;  /* rows of the last look */
    int64_t last; /* the seq up to which rows were looked at */
    int changed;  /* while it was looked at: once more */
};

/* Others wait here. A route that has no row gets one that says of no relay. */
static int take_turn(const once_tx *tx, const char *route, once_error *err)
{
    struct once__mysql q =
        once__mysql(tx, "outbox_claim",
                    "SELECT 1 FROM once_relay_route WHERE route=?1 FOR UPDATE");
    int found, rc;

    once__mysql_with(&q, ONCE__TEXT(route));
    found = once__mysql_next(&q, err);
    rc = once__mysql_end(&q, err);
    if (rc != ONCE_OK || found)
        return rc;
    return once__mysql_run(tx, "outbox_claim", NULL, err,
                           "INSERT INTO once_relay_route VALUES(?1,0)"
                           " ON DUPLICATE KEY UPDATE seen_ms=seen_ms",
                           ONCE__TEXT(route));
}

/* Reads the clock, behind the lock, and rows that are due by now. */
static int make_due(const once_tx *tx, struct claim *c, once_error *err)
{
    struct once__mysql q = once__mysql(
        tx, "outbox_claim",
        "SELECT t.now,o.seq FROM (SELECT ?1 AS now) t LEFT JOIN once_outbox o"
        " FORCE INDEX (outbox_wait) ON o.route=?2 AND o.phase=1"
        " AND o.due_ms<=?1 ORDER BY o.due_ms LIMIT ?3");
    uint64_t changed;
    size_t n = 0;
    int rc;

    once__mysql_with(&q, ONCE__NOW, ONCE__TEXT(c->ask->route),
                     ONCE__NUMBER(c->ask->n));
    while (once__mysql_next(&q, err)) {
        c->now = once__mysql_int(&q, 0);
        if (once__mysql_string(&q, 1) != NULL)
            c->rows[n++] = once__mysql_int(&q, 1);
    }
    rc = once__mysql_end(&q, err);
    if (rc != ONCE_OK)
        return rc;
    return change(tx, "outbox_claim",
                  "UPDATE once_outbox FORCE INDEX (PRIMARY) SET phase=0"
                  " WHERE phase=1",
                  ONCE__VALUES(ONCE__NUMBER(0)), c->rows, n, &changed, err);
}

/* w are the oldest rows behind ?6 whose key has no earlier row that has stopped; of
 * these a row waits that is leased, or whose key has an earlier row that is. A sum,
 * since MariaDB reads all of a partition for each row of a max. */
#define STOPPED(phase)                                                         \
    "EXISTS(SELECT 1 FROM once_outbox p FORCE INDEX (outbox_stop) WHERE"       \
    " p.route=?2 AND p.key=o.key AND p.phase=" phase                           \
    " AND p.seq<o.seq LIMIT 1)"

static const char look_begin[] =
    "WITH w AS (SELECT seq,key,size," LEASED " AS leased,"
    "?5 AND lease_ms>0 AND NOT " LEASED " AS late"
    " FROM once_outbox o FORCE INDEX (outbox_ready)"
    " WHERE o.route=?2 AND o.phase=0 AND o.seq>?6 AND NOT " STOPPED(
        "1") " AND (?4 OR NOT (" STOPPED("3") " OR " STOPPED("4") "))";
/* In a look behind others: nor an earlier row that one of them has passed, or that
 * was committed since. One that is late and passed does not count. */
static const char look_behind[] =
    " AND (key IS NULL OR NOT EXISTS(SELECT 1 FROM once_outbox p"
    " FORCE INDEX (outbox_stop) WHERE p.route=?2 AND p.key=o.key AND p.phase=0"
    " AND p.seq<=?6 AND NOT (?4 AND ?5 AND p.lease_ms>0"
    " AND NOT p.lease_ms-?1 BETWEEN 1 AND 3600000) LIMIT 1))";
static const char look_end[] =
    " ORDER BY o.seq LIMIT ?3)"
    "SELECT seq,size,late,leased OR late OR (key IS NOT NULL AND"
    " sum(leased OR (late AND NOT ?4)) OVER (PARTITION BY key ORDER BY seq"
    " ROWS UNBOUNDED PRECEDING))"
    " FROM w ORDER BY seq";

static void put_look(struct once__my_text *text, const struct claim *c,
                     size_t most)
{
    const struct once__value values[] = {ONCE__NUMBER(c->now),
                                         ONCE__TEXT(c->ask->route),
                                         ONCE__NUMBER(most),
                                         ONCE__NUMBER(c->ask->pass != 0),
                                         ONCE__NUMBER(c->ask->hold != 0),
                                         ONCE__NUMBER(c->last)};
    const int n = sizeof(values) / sizeof(values[0]);

    once__mysql_fill(text, look_begin, values, n);
    if (c->last > 0)
        once__mysql_fill(text, look_behind, values, n);
    once__mysql_fill(text, look_end, values, n);
}

static void see(struct claim *c, const struct once__mysql *q, uint64_t *bytes)
{
    c->seen++;
    c->last = once__mysql_int(q, 0);
    if (once__mysql_int(q, 2))
        c->late[c->n_late++] = c->last;
    if (once__mysql_int(q, 3) || c->n == c->ask->n || *bytes >= BODIES_MAX)
        return;
    c->rows[c->n++] = c->last;
    *bytes += (uint64_t)once__mysql_int(q, 1);
}

/* What becomes of the `most` rows behind the last. */
static int look(const once_tx *tx, struct claim *c, size_t most,
                once_error *err)
{
    struct once__my_text text = {0};
    struct once__mysql q;
    uint64_t bytes = 0;
    int rc;

    put_look(&text, c, most);
    q = once__mysql_of_text(tx, "outbox_claim", &text);
    for (c->seen = c->n = 0; once__mysql_next(&q, err);)
        see(c, &q, &bytes);
    rc = once__mysql_end(&q, err);
    once__my_text_clear(&text);
    return rc;
}

/* Room for what a look finds late, and the look. */
static int look_at_rows(const once_tx *tx, struct claim *c, size_t most,
                        once_error *err)
{
    int64_t *late = realloc(c->late, (c->n_late + most) * sizeof(*late));

    if (late == NULL)
        return once__fail(err, ONCE_ENOMEM, "outbox_claim: no memory");
    c->late = late;
    return look(tx, c, most, err);
}

/* Where few rows wait for others, those that come next are all that is needed. They
 * stand behind what other batches have: one of each worker, and one of its own.
 * What is held is looked for among more rows. */
static int look_near(const once_tx *tx, struct claim *c, int *enough,
                     once_error *err)
{
    size_t most;
    int rc = ONCE_OK;

    *enough = 0;
    for (most = 2 * c->ask->n; rc == ONCE_OK && !*enough && !c->ask->hold &&
                               most <= NEAR_BATCHES * c->ask->n;
         most *= 2) {
        c->last = 0;
        rc = look_at_rows(tx, c, most, err);
        *enough = c->n == c->ask->n || c->seen < most;
    }
    return rc;
}

/* Where all of them wait for others, it looks further, past their keys. */
static int look_further(const once_tx *tx, struct claim *c, once_error *err)
{
    size_t most = FAR_BATCHES * c->ask->n;
    int enough, rc = look_near(tx, c, &enough, err);

    if (rc != ONCE_OK || enough)
        return rc;
    for (c->last = 0;; most *= 10) {
        most = most < LOOK_MAX ? most : LOOK_MAX;
        rc = look_at_rows(tx, c, most, err);
        if (rc != ONCE_OK || c->n > 0 || c->seen < most || most == LOOK_MAX)
            return rc;
    }
}

static int hold_late(const once_tx *tx, struct claim *c, once_error *err)
{
    uint64_t held;
    int rc = change(tx, "outbox_claim",
                    "UPDATE once_outbox FORCE INDEX (PRIMARY) SET phase=4,"
                    "error='its lease ran out: it may have been taken'"
                    " WHERE phase=0 AND lease_ms>0 AND NOT " LEASED,
                    ONCE__VALUES(ONCE__NUMBER(c->now)), c->late, c->n_late,
                    &held, err);

    c->changed |= rc == ONCE_OK && held < c->n_late;
    return rc;
}

/* doubt_ms first: an assignment sees those before it. */
static int mark_rows(const once_tx *tx, struct claim *c, once_error *err)
{
    uint64_t marked;
    int rc = change(tx, "outbox_claim",
                    "UPDATE once_outbox FORCE INDEX (PRIMARY) SET"
                    " doubt_ms=IF(doubt=0,?1,doubt_ms),"
                    "attempts=attempts+1,doubt=doubt+1,lease_ms=?2"
                    " WHERE phase=0 AND NOT " LEASED,
                    ONCE__VALUES(ONCE__NUMBER(c->now),
                                 ONCE__NUMBER(c->now + c->ask->lease_ms)),
                    c->rows, c->n, &marked, err);

    c->changed |= rc == ONCE_OK && marked < c->n;
    return rc;
}

static int read_part(const once_tx *tx, const struct claim *c,
                     const int64_t *seqs, size_t n, once_error *err)
{
    static const char select[] =
        "SELECT " ONCE__OUTGOING "body,reply,?1 FROM once_outbox"
        " FORCE INDEX (PRIMARY) WHERE seq IN (";
    const struct once__value now = ONCE__NUMBER(c->now);
    struct once__my_text text = {0};
    struct once__either q;
    int rc;

    once__mysql_fill(&text, select, &now, 1);
    once__mysql_list(&text, seqs, n);
    once__my_put(&text, ") ORDER BY seq");
    once__either(&q, tx, "outbox_claim", NULL, NULL, err);
    q.my = once__mysql_of_text(tx, "outbox_claim", &text);
    while (once__either_next(&q))
        once__outgoing_read(&q, c->out);
    rc = once__either_end(&q);
    once__my_text_clear(&text);
    return rc;
}

static int read_rows(const once_tx *tx, const struct claim *c, once_error *err)
{
    size_t at, part;
    int rc = ONCE_OK;

    for (at = 0; at < c->n && rc == ONCE_OK; at += part) {
        part = c->n - at < LIST_MAX ? c->n - at : LIST_MAX;
        rc = read_part(tx, c, c->rows + at, part, err);
    }
    return rc;
}

static int claim_work(const once_tx *tx, void *user, once_error *err)
{
    struct claim *c = user;
    int rc = take_turn(tx, c->ask->route, err);

    c->n = c->n_late = 0;
    c->last = c->changed = 0;
    if (rc == ONCE_OK)
        rc = make_due(tx, c, err);
    if (rc == ONCE_OK)
        rc = look_further(tx, c, err);
    if (rc == ONCE_OK)
        rc = hold_late(tx, c, err);
    if (rc == ONCE_OK)
        rc = mark_rows(tx, c, err);
    if (rc == ONCE_OK && c->changed)
        return ONCE_AGAIN; /* rolled back */
    c->out->now_ms = (uint64_t)c->now;
    return rc == ONCE_OK ? read_rows(tx, c, err) : rc;
}

static int claim(const once_tx *tx, const struct once__outbox_ask *ask,
                 struct once__outgoing_list *out, once_error *err)
{
    struct claim c = {.ask = ask, .out = out};
    int tries, rc = ONCE_AGAIN;

    c.rows = malloc(ask->n * sizeof(*c.rows));
    if (c.rows == NULL)
        return once__fail(err, ONCE_ENOMEM, "outbox_claim: no memory");
    for (tries = 0; tries < TRIES && rc == ONCE_AGAIN; tries++)
        rc = once__mysql_transaction(tx, "outbox_claim", claim_work, &c, err);
    free(c.rows);
    free(c.late);
    return rc != ONCE_AGAIN
               ? rc
               : once__fail(err, ONCE_EABORTED,
                            "outbox_claim: rows change all the time");
}

/* ---- Settling ----------------------------------------------------------- */

/* A settlement, and whether its row was seen to be kept. */
struct settling {
    struct once__settlement *row;
    int kept;
};

struct settle {
    struct settling *rows; /* in the order of seq */
    size_t n;
    int64_t *seqs; /* the same; then of those that go */
};

enum { S_SEQ, S_ATTEMPTS, S_KEPT };

/* Those that are still the claimer's are `ours`. Answers come in the same order. */
static void see_row(struct settle *s, size_t *at, const struct once__mysql *q)
{
    int64_t seq = once__mysql_int(q, S_SEQ);
    uint32_t attempts = (uint32_t)once__mysql_int(q, S_ATTEMPTS);

    while (*at < s->n && s->rows[*at].row->seq < seq)
        ++*at;
    for (; *at < s->n && s->rows[*at].row->seq == seq; ++*at) {
        if (s->rows[*at].row->attempts != attempts)
            continue;
        s->rows[*at].row->ours = 1;
        s->rows[*at].kept = (int)once__mysql_int(q, S_KEPT);
    }
}

/* Locks a part of the rows. */
static int lock_part(const once_tx *tx, struct settle *s, size_t at, size_t n,
                     once_error *err)
{
    struct once__my_text text = {0};
    struct once__mysql q;
    int rc;

    once__my_put(&text, "SELECT seq,attempts,kept FROM once_outbox"
                        " FORCE INDEX (PRIMARY) WHERE phase IN (0,4) AND "
                        "lease_ms>0 AND seq IN (");
    once__mysql_list(&text, s->seqs + at, n);
    once__my_put(&text, ") ORDER BY seq FOR UPDATE");
    q = once__mysql_of_text(tx, "outbox_settle", &text);
    while (once__mysql_next(&q, err))
        see_row(s, &at, &q);
    rc = once__mysql_end(&q, err);
    once__my_text_clear(&text);
    return rc;
}

static int goes(const struct settling *s)
{
    return s->row->ours && s->row->to.phase == ONCE__ROW_DONE && !s->kept;
}

static int remove_done(const once_tx *tx, struct settle *s, once_error *err)
{
    uint64_t removed;
    size_t i, n = 0;

    for (i = 0; i < s->n; i++)
        if (goes(&s->rows[i]))
            s->seqs[n++] = s->rows[i].row->seq;
    return change(
        tx, "outbox_settle",
        "DELETE o FROM once_outbox o FORCE INDEX (PRIMARY) WHERE kept=0",
        ONCE__VALUES(ONCE__NUMBER(0)), s->seqs, n, &removed, err);
}

/* The body goes with DONE. `doubt` and the others in this order: an assignment
 * sees those before it. */
static int update(const once_tx *tx, const struct once__settlement *s,
                  once_error *err)
{
    char error[ONCE_ID_SIZE];

    once__copy_visible(error, once__text_of(s->error));
    return once__mysql_run(
        tx, "outbox_settle", NULL, err,
        "UPDATE once_outbox SET phase=?2,lease_ms=0,"
        "due_ms=CASE ?2 WHEN 0 THEN due_ms ELSE ?3+?4 END,"
        "doubt=CASE ?2 WHEN 2 THEN 0 ELSE greatest(doubt-?5,0) END,"
        "refused=refused+?6,body=CASE ?2 WHEN 2 THEN x'' ELSE body END,"
        "status=?7,reply=?8,error=?9 WHERE seq=?1",
        ONCE__NUMBER(s->seq), ONCE__NUMBER(s->to.phase), ONCE__NOW,
        ONCE__NUMBER(s->to.wait_ms), ONCE__NUMBER(s->to.harmless != 0),
        ONCE__NUMBER(s->to.refused != 0), ONCE__NUMBER(s->status),
        ONCE__MAYBE(s->reply.data, s->reply.size), ONCE__TEXT(error));
}

static int settle_work(const once_tx *tx, void *user, once_error *err)
{
    struct settle *s = user;
    size_t i, part;
    int rc = ONCE_OK;

    for (i = 0; i < s->n && rc == ONCE_OK; i += part) {
        part = s->n - i < LIST_MAX ? s->n - i : LIST_MAX;
        rc = lock_part(tx, s, i, part, err);
    }
    if (rc == ONCE_OK)
        rc = remove_done(tx, s, err);
    for (i = 0; i < s->n && rc == ONCE_OK; i++)
        if (s->rows[i].row->ours && !goes(&s->rows[i]))
            rc = update(tx, s->rows[i].row, err);
    return rc;
}

static int by_seq(const void *a, const void *b)
{
    int64_t x = ((const struct settling *)a)->row->seq;
    int64_t y = ((const struct settling *)b)->row->seq;

    return (x > y) - (x < y);
}

static int settle(const once_tx *tx, struct once__settlement *rows, size_t n,
                  once_error *err)
{
    struct settle s = {.n = n};
    size_t i;
    int rc;

    s.rows = malloc(n * sizeof(*s.rows));
    s.seqs = malloc(n * sizeof(*s.seqs));
    if (s.rows == NULL || s.seqs == NULL) {
        rc = once__fail(err, ONCE_ENOMEM, "outbox_settle: no memory");
        goto out;
    }
    for (i = 0; i < n; i++)
        s.rows[i] = (struct settling){&rows[i], 0};
    qsort(s.rows, n, sizeof(*s.rows), by_seq);
    for (i = 0; i < n; i++)
        s.seqs[i] = s.rows[i].row->seq;
    rc = once__mysql_transaction(tx, "outbox_settle", settle_work, &s, err);
out:
    free(s.rows);
    free(s.seqs);
    return rc;
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

/* What changes with a row that becomes ready: the newest, or how many there are,
 * since one with a lower number may be committed later. */
struct sight {
    int64_t newest, n;
};

static int look_at(const once_tx *tx, const char *route, struct sight *out,
                   once_error *err)
{
    struct once__mysql q = once__mysql(
        tx, "wait",
        "SELECT (SELECT MAX(seq) FROM once_outbox WHERE route=?1 AND phase=0),"
        "(SELECT COUNT(*) FROM (SELECT seq FROM once_outbox"
        " FORCE INDEX (outbox_ready) WHERE route=?1 AND phase=0 LIMIT ?2) x)");

    once__mysql_with(&q, ONCE__TEXT(route), ONCE__NUMBER(SEEN_MAX));
    if (once__mysql_next(&q, err)) {
        out->newest = once__mysql_int(&q, 0);
        out->n = once__mysql_int(&q, 1);
    }
    return once__mysql_end(&q, err);
}

static int wait_(const once_tx *tx, const char *route, int stop_fd,
                 uint32_t wait_ms, once_error *err)
{
    struct pollfd fd = {stop_fd, POLLIN, 0};
    uint64_t until = once__steady_ms() + wait_ms, now, pause = POLL_FIRST_MS;
    struct sight first = {0, 0}, then;
    int rc = look_at(tx, route, &first, err);

    for (then = first;
         rc == ONCE_OK && then.newest == first.newest && then.n == first.n;
         pause += pause / 2) {
        now = once__steady_ms();
        if (now >= until)
            break;
        pause = pause < POLL_MOST_MS ? pause : POLL_MOST_MS;
        pause = pause < until - now ? pause : until - now;
        if (poll(&fd, 1, (int)pause) < 0 && errno != EINTR)
            return once__fail(err, ONCE_EABORTED, "poll: %s", strerror(errno));
        if (fd.revents != 0)
            break;
        rc = look_at(tx, route, &then, err);
    }
    return rc;
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

static const struct {
    const char *fits, *sql;
} decisions[] = {
    [ONCE__OUTBOX_RETRY] = {" AND phase IN (1,3,4)",
                            "UPDATE once_outbox SET phase=0,lease_ms=0,"
                            "refused=0,error=?5 WHERE seq=?2"},
    [ONCE__OUTBOX_DROP] = {" AND phase<>2 AND saga IS NULL",
                           "DELETE FROM once_outbox WHERE seq=?2"},
    [ONCE__OUTBOX_RESOLVE] = {" AND phase IN (3,4)",
                              "UPDATE once_outbox SET phase=2,lease_ms=0,"
                              "doubt=0,due_ms=?1,body=x'',error=?5"
                              " WHERE seq=?2"},
};

static int exists(const once_tx *tx, const char *where, const char *sql,
                  const struct once__value *values, int *found, once_error *err)
{
    struct once__mysql q = once__mysql(tx, where, sql);

    once__mysql_values(&q, values);
    *found = once__mysql_next(&q, err);
    return once__mysql_end(&q, err);
}

static int decide_work(const once_tx *tx, void *user, once_error *err)
{
    static const char where[] = "outbox_decide";
    struct decide *x = user;
    const struct once__row_decision *d = x->d;
    const struct once__value *values =
        ONCE__VALUES(ONCE__NOW, ONCE__NUMBER(d->no), ONCE__NUMBER(d->state),
                     ONCE__NUMBER(d->count), ONCE__TEXT(d->why));
    char look_for[256];
    int found = 0, fits = 0, rc;

    (void)snprintf(look_for, sizeof(look_for),
                   "SELECT 1 FROM once_outbox" SEEN "%s FOR UPDATE",
                   decisions[d->action].fits);
    rc = exists(tx, where, "SELECT 1 FROM once_outbox WHERE seq=?2", values,
                &found, err);
    if (rc == ONCE_OK)
        rc = exists(tx, where, look_for, values, &fits, err);
    if (rc == ONCE_OK && fits)
        rc = once__mysql_run_values(tx, where, NULL, err,
                                    decisions[d->action].sql, values);
    x->answer = fits ? ONCE_OK : found ? ONCE_REFUSED : ONCE_FREE;
    return rc;
}

/* Runs it, and what it has answered. */
static int decided(const once_tx *tx, const char *where, once__mysql_work *work,
                   const struct once__row_decision *d, uint64_t wait_ms,
                   once_error *err)
{
    struct decide x = {d, wait_ms, ONCE_OK};
    int rc = once__mysql_transaction(tx, where, work, &x, err);

    return rc == ONCE_OK ? x.answer : rc;
}

static int decide(const once_tx *tx, const struct once__row_decision *d,
                  once_error *err)
{
    return decided(tx, "outbox_decide", decide_work, d, 0, err);
}

static int purge(const once_tx *tx, uint64_t age_ms, uint64_t *removed,
                 once_error *err)
{
    int64_t now = 0;
    int rc = once__mysql_number(tx, "outbox_purge", "SELECT " ONCE__MYSQL_NOW,
                                &now, err);

    if (rc != ONCE_OK)
        return rc;
    return once__mysql_purge_done(tx, now - (int64_t)age_ms, removed, err);
}

/* ---- Parked messages ---------------------------------------------------- */

struct take {
    const char *consumer;
    uint32_t lease_ms;
    int keyed;
    struct once__parked_list *out;
};

/* Another consumer that takes one at the same time passes by this row. */
static int find_parked(const once_tx *tx, const struct take *t, int64_t *no,
                       int64_t *now, once_error *err)
{
    struct once__mysql q = once__mysql(
        tx, "parked_take",
        "SELECT k.no,?1 FROM once_parked k FORCE INDEX (parked_due) WHERE"
        " k.consumer=?2 AND k.state=1 AND k.due_ms<=?1 AND NOT (?3 AND"
        " k.key IS NOT NULL AND EXISTS(SELECT 1 FROM once_parked e"
        " WHERE e.consumer=k.consumer AND e.key=k.key AND e.no<k.no))"
        " ORDER BY k.due_ms,k.no LIMIT 1 FOR UPDATE SKIP LOCKED");

    once__mysql_with(&q, ONCE__NOW, ONCE__TEXT(t->consumer),
                     ONCE__NUMBER(t->keyed != 0));
    if (once__mysql_next(&q, err)) {
        *no = once__mysql_int(&q, 0);
        *now = once__mysql_int(&q, 1);
    }
    return once__mysql_end(&q, err);
}

static int read_parked(const once_tx *tx, int64_t no, int64_t now,
                       struct once__parked_list *out, int *filed,
                       once_error *err)
{
    struct once__either q;

    once__either(&q, tx, "parked", NULL,
                 "SELECT " ONCE__PARKED
                 "body,?2,filed FROM once_parked WHERE no=?1 FOR UPDATE",
                 err);
    once__either_with(&q, ONCE__NUMBER(no), ONCE__NUMBER(now));
    if (once__either_next(&q)) {
        *filed = once__either_int(&q, 13) != 0;
        once__parked_read(&q, out);
    }
    return once__either_end(&q);
}

static int take_work(const once_tx *tx, void *user, once_error *err)
{
    struct take *t = user;
    int64_t no = 0, now = 0;
    int filed, rc = find_parked(tx, t, &no, &now, err);

    if (rc != ONCE_OK || no == 0)
        return rc;
    rc = once__mysql_run(
        tx, "parked_take", NULL, err,
        "UPDATE once_parked SET attempts=attempts+1,due_ms=?2 WHERE no=?1",
        ONCE__NUMBER(no), ONCE__NUMBER(now + t->lease_ms));
    return rc == ONCE_OK ? read_parked(tx, no, now, t->out, &filed, err) : rc;
}

static int take(const once_tx *tx, const char *consumer, uint32_t lease_ms,
                int keyed, struct once__parked_list *out, once_error *err)
{
    struct take t = {consumer, lease_ms, keyed, out};

    return once__mysql_transaction(tx, "parked_take", take_work, &t, err);
}

static int put_back_work(const once_tx *tx, void *user, once_error *err)
{
    struct decide *x = user;
    const struct once__row_decision *d = x->d;
    const struct once__value *values = ONCE__VALUES(
        ONCE__NUMBER(d->no), ONCE__NUMBER(d->count), ONCE__NUMBER(d->state),
        ONCE__NOW, ONCE__NUMBER(x->wait_ms), ONCE__TEXT(d->why));
    int fits = 0, rc;

    rc = exists(tx, "parked_put_back",
                "SELECT 1 FROM once_parked WHERE no=?1 AND attempts=?2"
                " AND state IN (1,?3) FOR UPDATE",
                values, &fits, err);
    if (rc == ONCE_OK && fits)
        rc = once__mysql_run_values(tx, "parked_put_back", NULL, err,
                                    "UPDATE once_parked SET state=?3,"
                                    "due_ms=?4+?5,error=?6 WHERE no=?1",
                                    values);
    x->answer = fits ? ONCE_OK : ONCE_REFUSED;
    return rc;
}

static int put_back(const once_tx *tx, const struct once__row_decision *d,
                    uint64_t wait_ms, once_error *err)
{
    return decided(tx, "parked_put_back", put_back_work, d, wait_ms, err);
}

/* ---- Decisions about parked messages ------------------------------------ */

/* Writes the inbox row that it has not; 0 in `*filed`: there is one by now. */
static int file(const once_tx *tx, const struct once__parked *k, int *filed,
                once_error *err)
{
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint64_t written = 0;
    int rc = once__fingerprint_bytes(k->m.body, fingerprint, err);

    if (rc == ONCE_OK)
        rc = once__mysql_run(
            tx, "parked_decide", &written, err,
            "INSERT IGNORE INTO once_inbox(consumer,id,at_ms,fingerprint,kind)"
            " VALUES(?1,?2,greatest(?3,?4),?5,1)",
            ONCE__TEXT(k->m.consumer), ONCE__TEXT(k->m.id), ONCE__NOW,
            ONCE__NUMBER(once__id_ms(k->m.id)), ONCE__SUM(fingerprint));
    *filed = written > 0;
    return rc;
}

/* The row goes; how long its id is answered for counts from now. */
static int drop(const once_tx *tx, const struct once__parked *k,
                once_error *err)
{
    int rc = once__mysql_run(tx, "parked_decide", NULL, err,
                             "UPDATE once_inbox SET at_ms=greatest(at_ms,?3)"
                             " WHERE consumer=?1 AND id=?2",
                             ONCE__TEXT(k->m.consumer), ONCE__TEXT(k->m.id),
                             ONCE__NOW);

    if (rc != ONCE_OK)
        return rc;
    return once__mysql_run(tx, "parked_decide", NULL, err,
                           "DELETE FROM once_parked WHERE no=?1",
                           ONCE__NUMBER(k->no));
}

static int decide_about(const once_tx *tx, const struct once__row_decision *d,
                        const struct once__parked *k, int filed,
                        once_error *err)
{
    int rc = ONCE_OK, known = 1;

    if (d->action != ONCE__PARKED_RETRY)
        return drop(tx, k, err);
    if (!filed)
        rc = file(tx, k, &known, err);
    if (rc != ONCE_OK)
        return rc;
    if (!known)
        return drop(tx, k, err);
    return once__mysql_run(tx, "parked_decide", NULL, err,
                           "UPDATE once_parked SET state=1,attempts=0,"
                           "due_ms=?2,error=?3,filed=1 WHERE no=?1",
                           ONCE__NUMBER(d->no), ONCE__NOW, ONCE__TEXT(d->why));
}

static int parked_decide_work(const once_tx *tx, void *user, once_error *err)
{
    struct decide *x = user;
    struct once__parked_list list = {NULL, 0, 0, NULL};
    int filed = 0, rc = read_parked(tx, x->d->no, 0, &list, &filed, err);

    x->answer = list.n == 0                              ? ONCE_FREE
                : once__parked_fits(x->d, &list.rows[0]) ? ONCE_OK
                                                         : ONCE_REFUSED;
    if (rc == ONCE_OK && x->answer == ONCE_OK)
        rc = decide_about(tx, x->d, &list.rows[0], filed, err);
    once__parked_clear(&list);
    return rc;
}

static int parked_decide(const once_tx *tx, const struct once__row_decision *d,
                         once_error *err)
{
    return decided(tx, "parked_decide", parked_decide_work, d, 0, err);
}

const struct once__outbox_backend once__outbox_mysql = {
    once__mysql_idle, claim, settle, sleeps,   wait_,
    decide,           purge, take,   put_back, parked_decide};
