/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox_postgres.c - outbox.h with the functions of pg.sql whose names end in
 * _1. Each statement is a transaction of its own.
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

enum { PURGE_STEP = 1000, TEXT = 25, INT4 = 23, INT8 = 20, BYTEA = 17 };

static int claim(const once_tx *tx, const struct once__outbox_ask *ask,
                 struct once__outgoing_list *out, once_error *err)
{
    struct once__either q;

    once__either(&q, tx, "outbox_claim",
                 "SELECT " ONCE__OUTGOING "body,reply,now_ms,lease"
                 " FROM @.outbox_claim_1($1,$2,$3,$4,$5,$6)",
                 NULL, err);
    once__either_with(&q, ONCE__TEXT(ask->route), ONCE__NUMBER(ask->n),
                      ONCE__NUMBER(ask->lease_ms), ONCE__NUMBER(ask->hold != 0),
                      ONCE__NUMBER(ask->pass != 0),
                      ONCE__NUMBER(ask->each != 0));
    while (once__either_next(&q)) {
        out->lease = once__either_int(&q, ONCE__PG_LEASE);
        once__outgoing_read(&q, out);
    }
    return once__either_end(&q);
}

/* ---- Settling ----------------------------------------------------------- */

/* The arrays that outbox_settle_1() takes, in its order. */
static const unsigned types[] = {INT8, INT4, INT4,  INT8, INT4,
                                 INT4, INT4, BYTEA, TEXT};

enum { ARRAYS = sizeof(types) / sizeof(types[0]) };

static void add(struct once__array *a, const struct once__settlement *s)
{
    char error[ONCE_ID_SIZE];

    once__copy_visible(error, once__text_of(s->error));
    once__array_number(a++, s->seq, 8);
    once__array_number(a++, s->attempts, 4);
    once__array_number(a++, s->to.phase, 4);
    once__array_number(a++, (int64_t)s->to.wait_ms, 8);
    once__array_number(a++, s->to.harmless != 0, 4);
    once__array_number(a++, s->to.refused != 0, 4);
    once__array_number(a++, s->status, 4);
    once__array_bytes(a++, s->reply.data, s->reply.size);
    once__array_bytes(a, error, strlen(error));
}

static int settle(const once_tx *tx, struct once__settlement *rows, size_t n,
                  once_error *err)
{
    struct once__array arrays[ARRAYS];
    struct once__either q;
    size_t i;
    int k;

    once__either(&q, tx, "outbox_settle",
                 "SELECT * FROM "
                 "@.outbox_settle_1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)",
                 NULL, err);
    once__either_with(&q, ONCE__NUMBER(rows[0].lease));
    for (k = 0; k < ARRAYS; k++)
        arrays[k] = once__array(types[k], n);
    for (i = 0; i < n; i++)
        add(arrays, &rows[i]);
    for (k = 0; k < ARRAYS && q.rc == ONCE_OK; k++)
        q.rc = once__query_array(&q.query, &arrays[k], q.where, err);
    while (once__either_next(&q)) {
        int64_t place = once__either_int(&q, 0);

        if (place >= 1 && (uint64_t)place <= n)
            rows[place - 1].ours = 1;
    }
    for (k = 0; k < ARRAYS; k++)
        once__array_clear(&arrays[k]);
    return once__either_end(&q);
}

/* ---- Sleeping ----------------------------------------------------------- */

static int listen_(const once_tx *tx, once_error *err)
{
    PGresult *r = PQexec(tx->postgres, "LISTEN once_outbox");
    int rc = PQresultStatus(r) == PGRES_COMMAND_OK
                 ? ONCE_OK
                 : once__query_failed(r, "LISTEN", err);

    PQclear(r);
    return rc;
}

/* Listens before it says so: a program that then sees it sleeping is heard. */
static int sleeps(const once_tx *tx, const char *route, int sleeping,
                  once_error *err)
{
    struct once__either q;
    int rc = sleeping ? listen_(tx, err) : ONCE_OK;

    if (rc != ONCE_OK)
        return rc;
    once__either(&q, tx, "outbox_idle", "SELECT @.outbox_idle_1($1,$2)", NULL,
                 err);
    once__either_with(&q, ONCE__TEXT(route), ONCE__NUMBER(sleeping));
    return once__either_word(&q);
}

/* Forgets what was notified; 1 if there was something. */
static int notified(PGconn *conn)
{
    PGnotify *note;
    int any = 0;

    while ((note = PQnotifies(conn)) != NULL) {
        PQfreemem(note);
        any = 1;
    }
    return any;
}

static int wait_(const once_tx *tx, const char *route, int stop_fd,
                 uint32_t wait_ms, once_error *err)
{
    struct pollfd fds[2] = {{PQsocket(tx->postgres), POLLIN, 0},
                            {stop_fd, POLLIN, 0}};
    uint64_t until = once__steady_ms() + wait_ms, now;
    int rc = listen_(tx, err);

    (void)route;
    while (rc == ONCE_OK && !notified(tx->postgres)) {
        now = once__steady_ms();
        if (now >= until)
            return ONCE_OK;
        if (poll(fds, 2, (int)(until - now > 60000 ? 60000 : until - now)) <
                0 &&
            errno != EINTR)
            return once__fail(err, ONCE_EABORTED, "poll: %s", strerror(errno));
        if (fds[1].revents != 0)
            return ONCE_OK;
        if (fds[0].revents != 0 && !PQconsumeInput(tx->postgres))
            return once__fail(err, ONCE_EABORTED, "the connection was lost");
    }
    return rc;
}

/* ---- Operators ---------------------------------------------------------- */

static int decide_with(const once_tx *tx, const char *where, const char *sql,
                       const struct once__row_decision *d, once_error *err)
{
    struct once__either q;

    once__either(&q, tx, where, sql, NULL, err);
    once__either_with(&q, ONCE__NUMBER(d->no), ONCE__NUMBER(d->state),
                      ONCE__NUMBER(d->count), ONCE__NUMBER(d->action),
                      ONCE__TEXT(d->why));
    return once__either_word(&q);
}

static int decide(const once_tx *tx, const struct once__row_decision *d,
                  once_error *err)
{
    return decide_with(tx, "outbox_decide",
                       "SELECT @.outbox_decide_1($1,$2,$3,$4,$5)", d, err);
}

static int purge(const once_tx *tx, uint64_t age_ms, uint64_t *removed,
                 once_error *err)
{
    int64_t n = PURGE_STEP;
    int rc = ONCE_OK;

    while (rc == ONCE_OK && n == PURGE_STEP) {
        struct once__either q;

        once__either(&q, tx, "outbox_purge", "SELECT @.outbox_purge_1($1,$2)",
                     NULL, err);
        once__either_with(&q, ONCE__NUMBER(age_ms), ONCE__NUMBER(PURGE_STEP));
        rc = once__either_one(&q, &n);
        if (rc == ONCE_OK)
            *removed += (uint64_t)n;
    }
    return rc;
}

/* ---- Parked messages ---------------------------------------------------- */

static int take(const once_tx *tx, const char *consumer, uint32_t lease_ms,
                int keyed, struct once__parked_list *out, once_error *err)
{
    struct once__either q;

    once__either(&q, tx, "parked_take",
                 ONCE__PG_PARKED "parked_take_1($1,$2,$3)", NULL, err);
    once__either_with(&q, ONCE__TEXT(consumer), ONCE__NUMBER(lease_ms),
                      ONCE__NUMBER(keyed != 0));
    while (once__either_next(&q))
        once__parked_read(&q, out);
    return once__either_end(&q);
}

static int put_back(const once_tx *tx, const struct once__row_decision *d,
                    uint64_t wait_ms, once_error *err)
{
    struct once__either q;

    once__either(&q, tx, "parked_put_back",
                 "SELECT @.parked_put_back_1($1,$2,$3,$4,$5)", NULL, err);
    once__either_with(&q, ONCE__NUMBER(d->no), ONCE__NUMBER(d->count),
                      ONCE__NUMBER(d->state), ONCE__NUMBER(wait_ms),
                      ONCE__TEXT(d->why));
    return once__either_word(&q);
}

static int parked_decide(const once_tx *tx, const struct once__row_decision *d,
                         once_error *err)
{
    return decide_with(tx, "parked_decide",
                       "SELECT @.parked_decide_1($1,$2,$3,$4,$5)", d, err);
}

const struct once__outbox_backend once__outbox_postgres = {
    once__query_idle, claim, settle, sleeps,   wait_,
    decide,           purge, take,   put_back, parked_decide};
