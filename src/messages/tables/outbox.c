/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox.c - the functions of outbox.h: checks what it is given, and asks the
 * database: with one statement, or by its table of functions.
 */
#include "messages/tables/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "messages/tables/rows.h"

enum { ROWS_MAX = 10000, LEASE_MAX_MS = 3600000 };

/* The table for this connection, which has no transaction open. */
static int backend(const once_tx *tx, const struct once__outbox_backend **out,
                   once_error *err)
{
    int rc = once__tx_outbox(tx, out, err);

    return rc == ONCE_OK ? (*out)->idle(tx, err) : rc;
}

/* No transaction is open. */
static int idle(const once_tx *tx, once_error *err)
{
    const struct once__outbox_backend *c = NULL;

    return backend(tx, &c, err);
}

/* Ends a statement; what it has counted so far goes, if it has failed. */
static int counts_end(struct once__either *q, void **rows, size_t *n)
{
    int rc = once__either_end(q);

    if (rc == ONCE_OK)
        return rc;
    free(*rows);
    *rows = NULL;
    *n = 0;
    return rc;
}

static int check_n(size_t n, once_error *err)
{
    return n >= 1 && n <= ROWS_MAX
               ? ONCE_OK
               : once__fail(err, ONCE_EINVAL, "n: it is not in 1..%d",
                            ROWS_MAX);
}

static int check_lease(uint32_t lease_ms, once_error *err)
{
    return lease_ms >= 1 && lease_ms <= LEASE_MAX_MS
               ? ONCE_OK
               : once__fail(err, ONCE_EINVAL, "lease_ms: it is not in 1..%d",
                            LEASE_MAX_MS);
}

/* ---- The relay ---------------------------------------------------------- */

static int by_seq(const void *a, const void *b)
{
    int64_t x = ((const struct once__outgoing *)a)->seq;
    int64_t y = ((const struct once__outgoing *)b)->seq;

    return (x > y) - (x < y);
}

int once__outbox_claim(const once_tx *tx, const struct once__outbox_ask *ask,
                       struct once__outgoing_list *out, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *out = (struct once__outgoing_list){NULL, 0, 0, 0, NULL};
    if (rc == ONCE_OK)
        rc = once__check_name("route", ask->route, err);
    if (rc == ONCE_OK)
        rc = check_n(ask->n, err);
    if (rc == ONCE_OK)
        rc = check_lease(ask->lease_ms, err);
    if (rc == ONCE_OK)
        rc = c->claim(tx, ask, out, err);
    if (rc != ONCE_OK)
        once__outgoing_clear(out);
    if (out->n > 1)
        qsort(out->rows, out->n, sizeof(*out->rows), by_seq);
    return rc;
}

int once__check_settlement(const struct once__settlement *s, once_error *err)
{
    if (s->to.phase < ONCE__ROW_READY || s->to.phase > ONCE__ROW_INDETERMINATE)
        return once__fail(err, ONCE_EINVAL, "phase: it is not one of a row");
    if (s->to.wait_ms > ONCE_KEEP_MAX_MS)
        return once__fail(err, ONCE_EINVAL, "wait_ms: over %llu",
                          (unsigned long long)ONCE_KEEP_MAX_MS);
    if (s->reply.size > ONCE_BODY_MAX)
        return once__fail(err, ONCE_ELIMIT, "reply: over %zu bytes",
                          ONCE_BODY_MAX);
    return ONCE_OK;
}

int once__outbox_settle(const once_tx *tx, struct once__settlement *rows,
                        size_t n, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);
    size_t i;

    for (i = 0; i < n; i++)
        rows[i].ours = 0;
    if (rc != ONCE_OK || n == 0)
        return rc;
    rc = check_n(n, err);
    for (i = 0; i < n && rc == ONCE_OK; i++)
        rc = once__check_settlement(&rows[i], err);
    if (rc == ONCE_OK)
        rc = c->settle(tx, rows, n, err);
    for (i = 0; i < n && rc != ONCE_OK; i++)
        rows[i].ours = 0;
    return rc;
}

int once__outbox_idle(const once_tx *tx, const char *route, int idle,
                      once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK)
        rc = once__check_name("route", route, err);
    return rc == ONCE_OK ? c->sleeps(tx, route, idle, err) : rc;
}

int once__outbox_wait(const once_tx *tx, const char *route, int stop_fd,
                      uint32_t wait_ms, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK)
        rc = once__check_name("route", route, err);
    return rc == ONCE_OK ? c->wait(tx, route, stop_fd, wait_ms, err) : rc;
}

/* ---- Operators ---------------------------------------------------------- */

static int list(const once_tx *tx, const struct once__outbox_filter *filter,
                int whole, struct once__outgoing_list *out, once_error *err)
{
    struct once__either q;
    int rc = idle(tx, err);

    *out = (struct once__outgoing_list){NULL, 0, 0, 0, NULL};
    if (rc == ONCE_OK)
        rc = check_n(filter->n, err);
    if (rc != ONCE_OK)
        return rc;
    once__either(
        &q, tx, "outbox_list",
        ONCE__PG_OUTGOING "outbox_list_1($1,nullif($2::int,-1),$3,$4,$5)",
        "SELECT " ONCE__OUTGOING
        "CASE ?5 WHEN 1 THEN body ELSE x'' END,CASE ?5 WHEN 1 THEN reply "
        "END,?6 FROM main.once_outbox WHERE seq>?3 AND (?1 IS NULL OR "
        "route=?1) AND (?2<0 OR phase=?2) ORDER BY seq LIMIT ?4",
        err);
    once__either_with(&q, ONCE__TEXT(filter->route),
                      ONCE__NUMBER(filter->phase), ONCE__NUMBER(filter->after),
                      ONCE__NUMBER(filter->n), ONCE__NUMBER(whole), ONCE__NOW);
    while (once__either_next(&q))
        once__outgoing_read(&q, out);
    rc = once__either_end(&q);
    if (rc != ONCE_OK)
        once__outgoing_clear(out);
    return rc;
}

int once__outbox_list(const once_tx *tx,
                      const struct once__outbox_filter *filter,
                      struct once__outgoing_list *out, once_error *err)
{
    return list(tx, filter, 0, out, err);
}

int once__outbox_get(const once_tx *tx, int64_t seq,
                     struct once__outgoing_list *out, once_error *err)
{
    struct once__outbox_filter filter = {NULL, -1, seq - 1, 1};
    int rc = list(tx, &filter, 1, out, err);

    if (rc == ONCE_OK && out->n > 0 && out->rows[0].seq != seq)
        once__outgoing_clear(out); /* the next one */
    return rc;
}

int once__outbox_decide(const once_tx *tx, int64_t seq, int phase,
                        uint32_t attempts, int action, const char *why,
                        once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    char reason[ONCE_ID_SIZE];
    struct once__row_decision d = {seq, phase, attempts, action, reason};
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK &&
        (action < ONCE__OUTBOX_RETRY || action > ONCE__OUTBOX_RESOLVE))
        rc = once__fail(err, ONCE_EINVAL, "action: it is not one");
    once__copy_visible(reason, once__text_of(why));
    return rc == ONCE_OK ? c->decide(tx, &d, err) : rc;
}

/* By ?2, the time: lease_ms counts while it is up to an hour ahead. */
#define THOSE                                                                  \
    "SELECT route,phase,lease_ms-?2 BETWEEN 1 AND 3600000 AS leased,at_ms "    \
    "FROM main.once_outbox WHERE "

#define STATS(greatest)                                                        \
    "SELECT route,sum(phase=0),sum(phase=1),sum(phase=2),sum(phase=3),"        \
    "sum(phase=4),sum(phase=0 AND leased)," greatest                           \
    "(0,coalesce(?2-min(CASE WHEN phase<>2 THEN at_ms END),0)) FROM (" THOSE   \
    "phase=0 UNION ALL " THOSE "phase=1 UNION ALL " THOSE                      \
    "phase IN (3,4) UNION ALL " THOSE                                          \
    "?1 AND phase=2) AS o GROUP BY route ORDER BY route"

int once__outbox_stats(const once_tx *tx, int done,
                       struct once__outbox_count **out, size_t *n,
                       once_error *err)
{
    struct once__outbox_count *c;
    struct once__either q;
    void *rows = NULL;
    int k, rc = idle(tx, err);

    *out = NULL;
    *n = 0;
    if (rc != ONCE_OK)
        return rc;
    once__either(&q, tx, "outbox_stats",
                 "SELECT route,ready,waiting,done,dead,indeterminate,leased,"
                 "oldest_ms FROM @.outbox_stats_1($1)",
                 once__either_lite(tx, STATS("max"), STATS("greatest")), err);
    once__either_with(&q, ONCE__NUMBER(done != 0), ONCE__NOW);
    while (once__either_next(&q) &&
           (c = once__rows_add(&q, &rows, n, sizeof(*c))) != NULL) {
        once__either_copy(&q, 0, c->route, sizeof(c->route));
        for (k = 0; k < 5; k++)
            c->n[k] = (uint64_t)once__either_int(&q, 1 + k);
        c->leased = (uint64_t)once__either_int(&q, 6);
        c->oldest_ms = (uint64_t)once__either_int(&q, 7);
    }
    rc = counts_end(&q, &rows, n);
    *out = rows;
    return rc;
}

/* On SQLite what is written wakes relays that sleep: seldom. */
static const char here_lite[] =
    "INSERT INTO main.once_relay_route VALUES(?1,?2) ON CONFLICT(route)"
    " DO UPDATE SET seen_ms=?2 WHERE abs(?2-seen_ms)>5000";
static const char here_my[] = "INSERT INTO once_relay_route VALUES(?1,?2)"
                              " ON DUPLICATE KEY UPDATE seen_ms=?2";

int once__outbox_here(const once_tx *tx, const char *route, once_error *err)
{
    struct once__either q;
    int rc = idle(tx, err);

    if (rc == ONCE_OK)
        rc = once__check_name("route", route, err);
    if (rc != ONCE_OK)
        return rc;
    once__either(&q, tx, "outbox_here", "SELECT @.outbox_here_1($1)",
                 once__either_lite(tx, here_lite, here_my), err);
    once__either_with(&q, ONCE__TEXT(route), ONCE__NOW);
    while (once__either_next(&q))
        ;
    return once__either_end(&q);
}

/* A claimer has written 0 where no relay had said that it is there. */
static const char strays_my[] =
    "SELECT o.route,least(count(*),10000),coalesce(greatest(0,?3-max("
    "nullif(s.seen_ms,0))),-1)"
    " FROM(SELECT route,at_ms AS due FROM once_outbox WHERE phase=0"
    " UNION ALL SELECT route,due_ms FROM once_outbox WHERE phase=1) o"
    " LEFT JOIN once_relay_route s ON s.route=o.route"
    " WHERE coalesce(abs(?3-s.seen_ms)>=60000,1)"
    " GROUP BY o.route HAVING min(o.due)<=?3-?1 ORDER BY o.route LIMIT ?2";

static const char strays_lite[] =
    "SELECT o.route,min(count(*),10000),coalesce(max(0,?3-s.seen_ms),-1)"
    " FROM(SELECT route,at_ms AS due FROM main.once_outbox WHERE phase=0"
    " UNION ALL SELECT route,due_ms FROM main.once_outbox WHERE phase=1) o"
    " LEFT JOIN main.once_relay_route s ON s.route=o.route"
    " WHERE coalesce(abs(?3-s.seen_ms)>=60000,1)"
    " GROUP BY o.route HAVING min(o.due)<=?3-?1 ORDER BY o.route LIMIT ?2";

int once__outbox_strays(const once_tx *tx, uint64_t age_ms,
                        struct once__stray out[ONCE__STRAYS_MAX], size_t *n,
                        once_error *err)
{
    struct once__either q;
    int rc = idle(tx, err);

    *n = 0;
    if (rc != ONCE_OK)
        return rc;
    once__either(&q, tx, "outbox_strays",
                 "SELECT route,rows,seen_ms FROM @.outbox_strays_1($1,$2)",
                 once__either_lite(tx, strays_lite, strays_my), err);
    once__either_with(&q, ONCE__NUMBER(age_ms), ONCE__NUMBER(ONCE__STRAYS_MAX),
                      ONCE__NOW);
    while (*n < ONCE__STRAYS_MAX && once__either_next(&q)) {
        struct once__stray *s = &out[(*n)++];

        once__either_copy(&q, 0, s->route, sizeof(s->route));
        s->rows = (uint64_t)once__either_int(&q, 1);
        s->seen_ms = once__either_int(&q, 2);
    }
    return once__either_end(&q);
}

/* SQLite and MySQL keep no row version in the tables themselves. */
int once__outbox_held(const once_tx *tx, uint64_t *age, once_error *err)
{
    struct once__either q;
    int64_t found = 0;
    int rc = idle(tx, err);

    *age = 0;
    if (rc != ONCE_OK)
        return rc;
    once__either(&q, tx, "outbox_held", "SELECT @.outbox_held_1()", "SELECT 0",
                 err);
    rc = once__either_one(&q, &found);
    *age = (uint64_t)found;
    return rc;
}

int once__outbox_purge(const once_tx *tx, uint64_t age_ms, uint64_t *removed,
                       once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    uint64_t n = 0;
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK && age_ms > INT64_MAX / 1000)
        rc = once__fail(err, ONCE_EINVAL, "age_ms: it is not a time");
    if (rc == ONCE_OK)
        rc = c->purge(tx, age_ms, &n, err);
    if (removed != NULL)
        *removed = n;
    return rc;
}

/* ---- Parked messages ---------------------------------------------------- */

int once__parked_take(const once_tx *tx, const char *consumer,
                      uint32_t lease_ms, int keyed,
                      struct once__parked_list *out, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *out = (struct once__parked_list){NULL, 0, 0, NULL};
    if (rc == ONCE_OK)
        rc = once__check_name("consumer", consumer, err);
    if (rc == ONCE_OK && lease_ms == 0)
        rc = once__fail(err, ONCE_EINVAL, "lease_ms: it is 0");
    if (rc == ONCE_OK)
        rc = c->take(tx, consumer, lease_ms, keyed, out, err);
    if (rc != ONCE_OK)
        once__parked_clear(out);
    return rc;
}

int once__parked_put_back(const once_tx *tx, int64_t no, uint32_t attempt,
                          int state, uint64_t wait_ms, const char *why,
                          once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    char reason[ONCE_ID_SIZE];
    struct once__row_decision d = {no, state, attempt, 0, reason};
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK)
        rc = once__check_state(state, wait_ms, err);
    once__copy_visible(reason, once__text_of(why));
    return rc == ONCE_OK ? c->put_back(tx, &d, wait_ms, err) : rc;
}

int once__parked_has_key(const once_tx *tx, const char *consumer,
                         const char *key, int *stopped, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    struct once__either q;
    int64_t found = 0;
    int rc = once__tx_outbox(tx, &c, err);

    *stopped = 0;
    if (rc == ONCE_OK)
        rc = once__check_name("consumer", consumer, err);
    if (rc == ONCE_OK)
        rc = once__check_name("key", key, err);
    if (rc != ONCE_OK)
        return rc;
    once__either(&q, tx, "parked_has_key", "SELECT @.parked_has_key_1($1,$2)",
                 "SELECT 1 FROM main.once_parked WHERE consumer=?1 AND key=?2"
                 " LIMIT 1",
                 err);
    once__either_with(&q, ONCE__TEXT(consumer), ONCE__TEXT(key));
    rc = once__either_one(&q, &found);
    *stopped = found != 0;
    return rc;
}

int once__parked_behind(const once_tx *tx, const char *consumer, uint64_t *n,
                        once_error *err)
{
    struct once__either q;
    int64_t found = 0;
    int rc = idle(tx, err);

    *n = 0;
    if (rc == ONCE_OK)
        rc = once__check_name("consumer", consumer, err);
    if (rc != ONCE_OK)
        return rc;
    once__either(&q, tx, "parked_behind", "SELECT @.parked_behind_1($1)",
                 "SELECT count(*) FROM main.once_parked k WHERE k.consumer=?1"
                 " AND k.state=1 AND k.key IS NOT NULL AND EXISTS (SELECT 1"
                 " FROM main.once_parked e WHERE e.consumer=k.consumer"
                 " AND e.key=k.key AND e.no<k.no AND e.state<>1)",
                 err);
    once__either_with(&q, ONCE__TEXT(consumer));
    rc = once__either_one(&q, &found);
    *n = (uint64_t)found;
    return rc;
}

static int parked_list(const once_tx *tx,
                       const struct once__parked_filter *filter, int whole,
                       struct once__parked_list *out, once_error *err)
{
    struct once__either q;
    int rc = idle(tx, err);

    *out = (struct once__parked_list){NULL, 0, 0, NULL};
    if (rc == ONCE_OK)
        rc = check_n(filter->n, err);
    if (rc != ONCE_OK)
        return rc;
    once__either(&q, tx, "parked_list",
                 ONCE__PG_PARKED "parked_list_1($1,nullif($2::int,0),$3,$4,$5)",
                 "SELECT " ONCE__PARKED
                 "CASE ?5 WHEN 1 THEN body ELSE x'' END,?6 FROM "
                 "main.once_parked"
                 " WHERE no>?3 AND (?1 IS NULL OR consumer=?1)"
                 " AND (?2=0 OR state=?2) ORDER BY no LIMIT ?4",
                 err);
    once__either_with(&q, ONCE__TEXT(filter->consumer),
                      ONCE__NUMBER(filter->state), ONCE__NUMBER(filter->after),
                      ONCE__NUMBER(filter->n), ONCE__NUMBER(whole), ONCE__NOW);
    while (once__either_next(&q))
        once__parked_read(&q, out);
    rc = once__either_end(&q);
    if (rc != ONCE_OK)
        once__parked_clear(out);
    return rc;
}

int once__parked_list(const once_tx *tx,
                      const struct once__parked_filter *filter,
                      struct once__parked_list *out, once_error *err)
{
    return parked_list(tx, filter, 0, out, err);
}

int once__parked_get(const once_tx *tx, int64_t no,
                     struct once__parked_list *out, once_error *err)
{
    struct once__parked_filter filter = {NULL, 0, no - 1, 1};
    int rc = parked_list(tx, &filter, 1, out, err);

    if (rc == ONCE_OK && out->n > 0 && out->rows[0].no != no)
        once__parked_clear(out); /* the next one */
    return rc;
}

int once__parked_decide(const once_tx *tx, int64_t no, int state,
                        uint32_t attempt, int action, const char *why,
                        once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    char reason[ONCE_ID_SIZE];
    struct once__row_decision d = {no, state, attempt, action, reason};
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK &&
        (action < ONCE__PARKED_RETRY || action > ONCE__PARKED_RESOLVE))
        rc = once__fail(err, ONCE_EINVAL, "action: it is not one");
    once__copy_visible(reason, once__text_of(why));
    return rc == ONCE_OK ? c->parked_decide(tx, &d, err) : rc;
}

#define PARKED_STATS(greatest)                                                 \
    "SELECT consumer,sum(state=1),sum(state=3),sum(state=4)," greatest         \
    "(0,?1-min(at_ms)) FROM main.once_parked GROUP BY consumer"                \
    " ORDER BY consumer"

int once__parked_stats(const once_tx *tx, struct once__parked_count **out,
                       size_t *n, once_error *err)
{
    struct once__parked_count *c;
    struct once__either q;
    void *rows = NULL;
    int rc = idle(tx, err);

    *out = NULL;
    *n = 0;
    if (rc != ONCE_OK)
        return rc;
    once__either(
        &q, tx, "parked_stats",
        "SELECT consumer,waiting,dead,indeterminate,oldest_ms"
        " FROM @.parked_stats_1()",
        once__either_lite(tx, PARKED_STATS("max"), PARKED_STATS("greatest")),
        err);
    once__either_with(&q, ONCE__NOW);
    while (once__either_next(&q) &&
           (c = once__rows_add(&q, &rows, n, sizeof(*c))) != NULL) {
        once__either_copy(&q, 0, c->consumer, sizeof(c->consumer));
        c->waiting = (uint64_t)once__either_int(&q, 1);
        c->dead = (uint64_t)once__either_int(&q, 2);
        c->indeterminate = (uint64_t)once__either_int(&q, 3);
        c->oldest_ms = (uint64_t)once__either_int(&q, 4);
    }
    rc = counts_end(&q, &rows, n);
    *out = rows;
    return rc;
}
