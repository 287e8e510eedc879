/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox_postgres.c - outbox.h with the functions of pg.sql whose names end in
 * _1. Each statement is a transaction of its own.
 */
#ifdef ONCE_WITH_POSTGRES

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "message/query.h"
#include "message/rows.h"

enum { PURGE_STEP = 1000, TEXT = 25, INT4 = 23, INT8 = 20, BYTEA = 17 };

#define NOW "(extract(epoch FROM clock_timestamp())*1000)::int8"

/* ---- Fields ------------------------------------------------------------- */

/* NULL is 0. */
static int64_t number_of(const PGresult *r, int row, int column)
{
    const uint8_t *p = (const uint8_t *)PQgetvalue(r, row, column);
    int i, n = PQgetlength(r, row, column);
    uint64_t value = n > 0 && (p[0] & 0x80) != 0 ? UINT64_MAX : 0;

    for (i = 0; i < n; i++)
        value = value << 8 | p[i];
    return (int64_t)value;
}

/* libpq puts a NUL behind each field. */
static const char *text_of(const PGresult *r, int row, int column)
{
    return PQgetisnull(r, row, column) ? NULL : PQgetvalue(r, row, column);
}

static once_bytes bytes_of(const PGresult *r, int row, int column)
{
    return (once_bytes){text_of(r, row, column),
                        (size_t)PQgetlength(r, row, column)};
}

static void copy_name(const PGresult *r, int row, char out[ONCE_ID_SIZE])
{
    (void)snprintf(out, ONCE_ID_SIZE, "%s", PQgetvalue(r, row, 0));
}

/* ---- Rows of the outbox ------------------------------------------------- */

enum {
    SEQ,
    ATTEMPTS,
    DOUBT,
    REFUSED,
    DOUBT_MS,
    PHASE,
    STATUS,
    LEASE_MS,
    AT_MS,
    DUE_MS,
    SAGA,
    ERROR,
    REPLY,
    ROUTE,
    ID,
    KEY,
    TYPE,
    HEADERS,
    BODY,
    KEPT,
    NOW_MS
};

#define COLUMNS                                                                \
    "SELECT seq,attempts,doubt,refused,doubt_ms,phase,status,lease_ms,at_ms,"  \
    "due_ms,saga,error,reply,route,id,key,type,headers,body,kept," NOW         \
    " FROM @."

static void read_outgoing(const PGresult *r, int i, struct once__outgoing *o)
{
    o->seq = number_of(r, i, SEQ);
    o->attempts = (uint32_t)number_of(r, i, ATTEMPTS);
    o->row.doubt = (uint32_t)number_of(r, i, DOUBT);
    o->row.refused = (uint32_t)number_of(r, i, REFUSED);
    o->row.doubt_ms = (uint64_t)number_of(r, i, DOUBT_MS);
    o->phase = (int)number_of(r, i, PHASE);
    o->status = (int)number_of(r, i, STATUS);
    o->lease_ms = (uint64_t)number_of(r, i, LEASE_MS);
    o->at_ms = (uint64_t)number_of(r, i, AT_MS);
    o->due_ms = (uint64_t)number_of(r, i, DUE_MS);
    o->saga = text_of(r, i, SAGA);
    o->error = text_of(r, i, ERROR);
    o->reply = bytes_of(r, i, REPLY);
    o->m = (once_message)ONCE_MESSAGE_INIT;
    o->m.route = text_of(r, i, ROUTE);
    o->m.id = text_of(r, i, ID);
    o->m.key = text_of(r, i, KEY);
    o->m.type = text_of(r, i, TYPE);
    o->m.headers = text_of(r, i, HEADERS);
    o->m.body = bytes_of(r, i, BODY);
    o->m.keep = number_of(r, i, KEPT) != 0;
}

static int ask_list(const once_tx *tx, const struct once__query *q,
                    const char *where, struct once__outgoing_list *out,
                    once_error *err)
{
    struct once__outgoing row;
    PGresult *r = NULL;
    int i, rc;

    rc = once__query_no_wait(once__query_rows(tx, q, where, &r, err), where,
                             err);
    for (i = 0; rc == ONCE_OK && i < PQntuples(r); i++) {
        read_outgoing(r, i, &row);
        out->now_ms = (uint64_t)number_of(r, i, NOW_MS);
        rc = once__outgoing_add(out, &row);
        if (rc != ONCE_OK)
            (void)once__fail(err, rc, "%s: no memory for the rows", where);
    }
    PQclear(r);
    return rc;
}

static const char *yes_no(int yes)
{
    return yes ? "t" : "f";
}

static int claim(const once_tx *tx, const struct once__outbox_ask *ask,
                 struct once__outgoing_list *out, once_error *err)
{
    struct once__query q = {.sql = COLUMNS "outbox_claim_1($1,$2,$3,$4,$5)"};
    char n[24], lease[24];

    once__query_text(&q, ask->route);
    once__query_number(&q, n, ask->n);
    once__query_number(&q, lease, ask->lease_ms);
    once__query_text(&q, yes_no(ask->hold));
    once__query_text(&q, yes_no(ask->pass));
    return ask_list(tx, &q, "outbox_claim", out, err);
}

static int list(const once_tx *tx, const struct once__outbox_filter *filter,
                int whole, struct once__outgoing_list *out, once_error *err)
{
    struct once__query q = {.sql = COLUMNS "outbox_list_1($1,$2,$3,$4,$5)"};
    char phase[24], after[24], n[24];

    once__query_text(&q, filter->route);
    if (filter->phase < 0)
        once__query_text(&q, NULL);
    else
        once__query_number(&q, phase, (uint64_t)filter->phase);
    (void)snprintf(after, sizeof(after), "%lld", (long long)filter->after);
    once__query_text(&q, after);
    once__query_number(&q, n, filter->n);
    once__query_text(&q, yes_no(whole));
    return ask_list(tx, &q, "outbox_list", out, err);
}

/* ---- Settling ----------------------------------------------------------- */

enum {
    P_SEQ,
    P_ATTEMPT,
    P_PHASE,
    P_WAIT,
    P_HARMLESS,
    P_REFUSED,
    P_STATUS,
    P_REPLY,
    P_ERROR,
    P_COLUMNS
};

static const struct {
    unsigned type;
    size_t size; /* of a number */
} parameters[P_COLUMNS] = {
    [P_SEQ] = {INT8, 8},    [P_ATTEMPT] = {INT4, 4},  [P_PHASE] = {INT4, 4},
    [P_WAIT] = {INT8, 8},   [P_HARMLESS] = {INT4, 4}, [P_REFUSED] = {INT4, 4},
    [P_STATUS] = {INT4, 4}, [P_REPLY] = {BYTEA, 0},   [P_ERROR] = {TEXT, 0},
};

static int64_t number_for(const struct once__settlement *s, int column)
{
    switch (column) {
    case P_SEQ:
        return s->seq;
    case P_ATTEMPT:
        return s->attempts;
    case P_PHASE:
        return s->to.phase;
    case P_WAIT:
        return (int64_t)s->to.wait_ms;
    case P_HARMLESS:
        return s->to.harmless != 0;
    case P_REFUSED:
        return s->to.refused != 0;
    default:
        return s->status;
    }
}

static void add(struct once__array *a, const struct once__settlement *s,
                int column)
{
    char error[ONCE_ID_SIZE];

    switch (column) {
    case P_REPLY:
        once__array_bytes(a, s->reply.data, s->reply.size);
        break;
    case P_ERROR:
        once__copy_visible(error, once__text_of(s->error));
        once__array_bytes(a, error, strlen(error));
        break;
    default:
        once__array_number(a, number_for(s, column), parameters[column].size);
    }
}

static int settle_with(const once_tx *tx, struct once__array arrays[P_COLUMNS],
                       struct once__settlement *rows, size_t n, once_error *err)
{
    struct once__query q = {
        .sql = "SELECT * FROM @.outbox_settle_1($1,$2,$3,$4,$5,$6,$7,$8,$9)"};
    PGresult *r = NULL;
    int column, rc = ONCE_OK, i;

    for (column = 0; column < P_COLUMNS && rc == ONCE_OK; column++)
        rc = once__query_array(&q, &arrays[column], "outbox_settle", err);
    if (rc == ONCE_OK)
        rc = once__query_no_wait(
            once__query_rows(tx, &q, "outbox_settle", &r, err), "outbox_settle",
            err);
    for (i = 0; rc == ONCE_OK && i < PQntuples(r); i++) {
        int64_t place = number_of(r, i, 0);

        if (place >= 1 && (uint64_t)place <= n)
            rows[place - 1].ours = 1;
    }
    PQclear(r);
    return rc;
}

static int settle(const once_tx *tx, struct once__settlement *rows, size_t n,
                  once_error *err)
{
    struct once__array arrays[P_COLUMNS];
    int column, rc;
    size_t i;

    for (column = 0; column < P_COLUMNS; column++) {
        arrays[column] = once__array(parameters[column].type, n);
        for (i = 0; i < n; i++)
            add(&arrays[column], &rows[i], column);
    }
    rc = settle_with(tx, arrays, rows, n, err);
    for (column = 0; column < P_COLUMNS; column++)
        once__array_clear(&arrays[column]);
    return rc;
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

/* Listens before it says so: whoever then sees it sleeping is heard. */
static int sleeps(const once_tx *tx, const char *route, int sleeping,
                  once_error *err)
{
    struct once__query q = {.sql = "SELECT @.outbox_idle_1($1,$2)"};
    int rc = sleeping ? listen_(tx, err) : ONCE_OK;

    if (rc != ONCE_OK)
        return rc;
    once__query_text(&q, route);
    once__query_text(&q, yes_no(sleeping));
    return once__query_no_wait(once__query_word(tx, &q, "outbox_idle", err),
                               "outbox_idle", err);
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

static int wait_(const once_tx *tx, int stop_fd, uint32_t wait_ms,
                 once_error *err)
{
    struct pollfd fds[2] = {{PQsocket(tx->postgres), POLLIN, 0},
                            {stop_fd, POLLIN, 0}};
    uint64_t until = once__steady_ms() + wait_ms, now;
    int rc = listen_(tx, err);

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

static int decide_with(const once_tx *tx, const char *sql, const char *where,
                       const struct once__decision *d, once_error *err)
{
    struct once__query q = {.sql = sql};
    char no[24], state[24], count[24], action[24];

    (void)snprintf(no, sizeof(no), "%lld", (long long)d->no);
    once__query_text(&q, no);
    once__query_number(&q, state, (uint64_t)d->state);
    once__query_number(&q, count, d->count);
    once__query_number(&q, action, (uint64_t)d->action);
    once__query_text(&q, d->why);
    return once__query_no_wait(once__query_word(tx, &q, where, err), where,
                               err);
}

static int decide(const once_tx *tx, const struct once__decision *d,
                  once_error *err)
{
    return decide_with(tx, "SELECT @.outbox_decide_1($1,$2,$3,$4,$5)",
                       "outbox_decide", d, err);
}

#define COUNTS                                                                 \
    "SELECT route,ready,waiting,done,dead,indeterminate,leased,oldest_ms "     \
    "FROM "

static int stats(const once_tx *tx, int done, struct once__outbox_count **out,
                 size_t *n, once_error *err)
{
    struct once__query q = {.sql = done ? COUNTS "@.outbox_stats_1()"
                                        : COUNTS "@.outbox_open_1()"};
    struct once__outbox_count *counts;
    PGresult *r = NULL;
    int i, k, rc = once__query_rows(tx, &q, "outbox_stats", &r, err);

    rc = once__query_no_wait(rc, "outbox_stats", err);
    if (rc != ONCE_OK)
        return rc;
    *n = (size_t)PQntuples(r);
    counts = calloc(*n + 1, sizeof(*counts));
    for (i = 0; counts != NULL && i < PQntuples(r); i++) {
        copy_name(r, i, counts[i].route);
        for (k = 0; k < 5; k++)
            counts[i].n[k] = (uint64_t)number_of(r, i, 1 + k);
        counts[i].leased = (uint64_t)number_of(r, i, 6);
        counts[i].oldest_ms = (uint64_t)number_of(r, i, 7);
    }
    PQclear(r);
    if (counts == NULL)
        return once__fail(err, ONCE_ENOMEM, "outbox_stats: no memory");
    *out = counts;
    return ONCE_OK;
}

static int here(const once_tx *tx, const char *route, once_error *err)
{
    struct once__query q = {.sql = "SELECT @.outbox_here_1($1)"};

    once__query_text(&q, route);
    return once__query_no_wait(once__query_word(tx, &q, "outbox_here", err),
                               "outbox_here", err);
}

static int strays(const once_tx *tx, uint64_t age_ms,
                  struct once__stray out[ONCE__STRAYS_MAX], size_t *n,
                  once_error *err)
{
    struct once__query q = {
        .sql = "SELECT route,rows,seen_ms FROM @.outbox_strays_1($1,$2)"};
    char age[24], most[24];
    PGresult *r = NULL;
    int i, rc;

    once__query_number(&q, age, age_ms);
    once__query_number(&q, most, ONCE__STRAYS_MAX);
    rc = once__query_rows(tx, &q, "outbox_strays", &r, err);
    rc = once__query_no_wait(rc, "outbox_strays", err);
    for (i = 0; rc == ONCE_OK && i < PQntuples(r) && i < ONCE__STRAYS_MAX;
         i++) {
        copy_name(r, i, out[i].route);
        out[i].rows = (uint64_t)number_of(r, i, 1);
        out[i].seen_ms = number_of(r, i, 2);
        *n = (size_t)i + 1;
    }
    PQclear(r);
    return rc;
}

static int held(const once_tx *tx, uint64_t *age, once_error *err)
{
    struct once__query q = {.sql = "SELECT @.outbox_held_1()"};
    PGresult *r = NULL;
    int rc = once__query_no_wait(
        once__query_one(tx, &q, "outbox_held", &r, err), "outbox_held", err);

    if (rc == ONCE_OK)
        *age = (uint64_t)number_of(r, 0, 0);
    PQclear(r);
    return rc;
}

static int purge(const once_tx *tx, uint64_t age_ms, uint64_t *removed,
                 once_error *err)
{
    struct once__query q = {.sql = "SELECT @.outbox_purge_1($1,$2)"};
    char age[24], most[24];
    int64_t n = PURGE_STEP;
    int rc = ONCE_OK;

    once__query_number(&q, age, age_ms);
    once__query_number(&q, most, PURGE_STEP);
    while (rc == ONCE_OK && n == PURGE_STEP) {
        PGresult *r = NULL;

        rc = once__query_one(tx, &q, "outbox_purge", &r, err);
        rc = once__query_no_wait(rc, "outbox_purge", err);
        if (rc == ONCE_OK)
            *removed += (uint64_t)(n = number_of(r, 0, 0));
        PQclear(r);
    }
    return rc;
}

/* ---- Parked messages ---------------------------------------------------- */

enum {
    K_NO,
    K_STATE,
    K_DUE_MS,
    K_AT_MS,
    K_ERROR,
    K_CONSUMER,
    K_ID,
    K_KEY,
    K_TYPE,
    K_HEADERS,
    K_BODY,
    K_ATTEMPTS,
    K_NOW_MS
};

#define PARKED                                                                 \
    "SELECT no,state,due_ms,at_ms,error,consumer,id,key,type,headers,body,"    \
    "attempts," NOW " FROM @."

static void read_parked(const PGresult *r, int i, struct once__parked *k)
{
    k->no = number_of(r, i, K_NO);
    k->state = (int)number_of(r, i, K_STATE);
    k->due_ms = (uint64_t)number_of(r, i, K_DUE_MS);
    k->at_ms = (uint64_t)number_of(r, i, K_AT_MS);
    k->error = text_of(r, i, K_ERROR);
    k->m = (once_message)ONCE_MESSAGE_INIT;
    k->m.consumer = text_of(r, i, K_CONSUMER);
    k->m.id = text_of(r, i, K_ID);
    k->m.key = text_of(r, i, K_KEY);
    k->m.type = text_of(r, i, K_TYPE);
    k->m.headers = text_of(r, i, K_HEADERS);
    k->m.body = bytes_of(r, i, K_BODY);
    k->m.attempt = (uint32_t)number_of(r, i, K_ATTEMPTS);
}

static int ask_parked(const once_tx *tx, const struct once__query *q,
                      const char *where, struct once__parked_list *out,
                      once_error *err)
{
    struct once__parked row;
    PGresult *r = NULL;
    int i, rc;

    rc = once__query_no_wait(once__query_rows(tx, q, where, &r, err), where,
                             err);
    for (i = 0; rc == ONCE_OK && i < PQntuples(r); i++) {
        read_parked(r, i, &row);
        out->now_ms = (uint64_t)number_of(r, i, K_NOW_MS);
        rc = once__parked_add(out, &row);
        if (rc != ONCE_OK)
            (void)once__fail(err, rc, "%s: no memory for the rows", where);
    }
    PQclear(r);
    return rc;
}

static int take(const once_tx *tx, const char *consumer, uint32_t lease_ms,
                int keyed, struct once__parked_list *out, once_error *err)
{
    struct once__query q = {.sql = PARKED "parked_take_1($1,$2,$3)"};
    char lease[24];

    once__query_text(&q, consumer);
    once__query_number(&q, lease, lease_ms);
    once__query_text(&q, yes_no(keyed));
    return ask_parked(tx, &q, "parked_take", out, err);
}

static int put_back(const once_tx *tx, const struct once__decision *d,
                    uint64_t wait_ms, once_error *err)
{
    struct once__query q = {.sql =
                                "SELECT @.parked_put_back_1($1,$2,$3,$4,$5)"};
    char no[24], count[24], state[24], wait[24];

    (void)snprintf(no, sizeof(no), "%lld", (long long)d->no);
    once__query_text(&q, no);
    once__query_number(&q, count, d->count);
    once__query_number(&q, state, (uint64_t)d->state);
    once__query_number(&q, wait, wait_ms);
    once__query_text(&q, d->why);
    return once__query_no_wait(once__query_word(tx, &q, "parked_put_back", err),
                               "parked_put_back", err);
}

static int has_key(const once_tx *tx, const char *consumer, const char *key,
                   int *stopped, once_error *err)
{
    struct once__query q = {.sql = "SELECT @.parked_has_key_1($1,$2)"};
    PGresult *r = NULL;
    int rc;

    once__query_text(&q, consumer);
    once__query_text(&q, key);
    rc = once__query_no_wait(once__query_one(tx, &q, "parked_has_key", &r, err),
                             "parked_has_key", err);
    if (rc == ONCE_OK)
        *stopped = number_of(r, 0, 0) != 0;
    PQclear(r);
    return rc;
}

static int behind(const once_tx *tx, const char *consumer, uint64_t *n,
                  once_error *err)
{
    struct once__query q = {.sql = "SELECT @.parked_behind_1($1)"};
    PGresult *r = NULL;
    int rc;

    once__query_text(&q, consumer);
    rc = once__query_no_wait(once__query_one(tx, &q, "parked_behind", &r, err),
                             "parked_behind", err);
    if (rc == ONCE_OK)
        *n = (uint64_t)number_of(r, 0, 0);
    PQclear(r);
    return rc;
}

static int parked_list(const once_tx *tx,
                       const struct once__parked_filter *filter, int whole,
                       struct once__parked_list *out, once_error *err)
{
    struct once__query q = {.sql = PARKED "parked_list_1($1,$2,$3,$4,$5)"};
    char state[24], after[24], n[24];

    once__query_text(&q, filter->consumer);
    if (filter->state == 0)
        once__query_text(&q, NULL);
    else
        once__query_number(&q, state, (uint64_t)filter->state);
    (void)snprintf(after, sizeof(after), "%lld", (long long)filter->after);
    once__query_text(&q, after);
    once__query_number(&q, n, filter->n);
    once__query_text(&q, yes_no(whole));
    return ask_parked(tx, &q, "parked_list", out, err);
}

static int parked_decide(const once_tx *tx, const struct once__decision *d,
                         once_error *err)
{
    return decide_with(tx, "SELECT @.parked_decide_1($1,$2,$3,$4,$5)",
                       "parked_decide", d, err);
}

static int parked_stats(const once_tx *tx, struct once__parked_count **out,
                        size_t *n, once_error *err)
{
    struct once__query q = {
        .sql = "SELECT consumer,waiting,dead,indeterminate,oldest_ms"
               " FROM @.parked_stats_1()"};
    struct once__parked_count *counts;
    PGresult *r = NULL;
    int i, rc = once__query_rows(tx, &q, "parked_stats", &r, err);

    rc = once__query_no_wait(rc, "parked_stats", err);
    if (rc != ONCE_OK)
        return rc;
    *n = (size_t)PQntuples(r);
    counts = calloc(*n + 1, sizeof(*counts));
    for (i = 0; counts != NULL && i < PQntuples(r); i++) {
        copy_name(r, i, counts[i].consumer);
        counts[i].waiting = (uint64_t)number_of(r, i, 1);
        counts[i].dead = (uint64_t)number_of(r, i, 2);
        counts[i].indeterminate = (uint64_t)number_of(r, i, 3);
        counts[i].oldest_ms = (uint64_t)number_of(r, i, 4);
    }
    PQclear(r);
    if (counts == NULL)
        return once__fail(err, ONCE_ENOMEM, "parked_stats: no memory");
    *out = counts;
    return ONCE_OK;
}

const struct once__outbox_backend once__outbox_postgres = {once__query_idle,
                                                           claim,
                                                           settle,
                                                           sleeps,
                                                           wait_,
                                                           list,
                                                           decide,
                                                           stats,
                                                           here,
                                                           strays,
                                                           held,
                                                           purge,
                                                           take,
                                                           put_back,
                                                           has_key,
                                                           behind,
                                                           parked_list,
                                                           parked_decide,
                                                           parked_stats};

#else
/* An empty file is not a program that ISO C knows. */
typedef int once__no_outbox_postgres;
#endif
