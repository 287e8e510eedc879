/* SPDX-License-Identifier: Apache-2.0 */
/*
 * postgres.c - calls the functions of pg.sql on the caller's connection.
 *
 * What an answer means is taken from the function's word and from SQLSTATE,
 * never from the text of an error. Texts of the server are not repeated, since
 * they may quote values.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/steady.h"
#include "messages/tables/either.h"
#include "messages/tables/shape.h"

enum { VERSION = 2 };

/* ---- The caller's transaction ------------------------------------------ */

static int open_(const once_tx *tx, once_error *err)
{
    switch (PQtransactionStatus(tx->postgres)) {
    case PQTRANS_INTRANS:
        return ONCE_OK;
    case PQTRANS_INERROR:
        return once__fail(err, ONCE_ETX,
                          "tx: the transaction has failed already");
    case PQTRANS_ACTIVE:
        return once__fail(err, ONCE_ETX, "tx: another statement is under way");
    case PQTRANS_IDLE:
        return once__fail(err, ONCE_ETX, "tx: no transaction is open");
    default:
        return once__fail(err, ONCE_EABORTED, "the connection was lost");
    }
}

/* ---- Messages ---------------------------------------------------------- */

static int claim(const once_tx *tx, const struct once__claim *c,
                 once_error *err)
{
    struct once__query a = {.sql = "SELECT @.inbox_claim($1,$2,$3,$4)"};

    once__query_with(&a, ONCE__TEXT(c->consumer), ONCE__TEXT(c->id),
                     ONCE__SUM(c->fingerprint), ONCE__NUMBER(c->attempt));
    return once__query_word(tx, &a, "inbox_claim", err);
}

static int park(const once_tx *tx, const struct once__park *p, once_error *err)
{
    struct once__query a = {
        .sql = "SELECT @.inbox_park_bytes($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)"};

    once__query_with(&a, ONCE__TEXT(p->claim.consumer), ONCE__TEXT(p->claim.id),
                     ONCE__SUM(p->claim.fingerprint), ONCE__NUMBER(p->state),
                     ONCE__NUMBER(p->wait_ms), ONCE__TEXT(p->m->key),
                     ONCE__TEXT(once__text_of(p->m->type)),
                     ONCE__TEXT(once__text_of(p->m->headers)),
                     ONCE__BYTES(p->m->body.data, p->m->body.size),
                     ONCE__TEXT(p->why));
    return once__query_word(tx, &a, "inbox_park", err);
}

static int emit(const once_tx *tx, const once_message *m, char id[ONCE_ID_SIZE],
                once_error *err)
{
    struct once__query a = {.sql =
                                "SELECT @.emit_bytes($1,$2,$3,$4,$5,$6,"
                                "to_timestamp($7::bigint/1000.0::float8),$8)"};
    PGresult *r = NULL;
    size_t size;
    int rc;

    once__query_with(&a, ONCE__TEXT(m->route),
                     ONCE__BYTES(m->body.data, m->body.size),
                     ONCE__TEXT(m->key), ONCE__TEXT(m->id),
                     ONCE__TEXT(once__text_of(m->type)),
                     ONCE__TEXT(once__text_of(m->headers)),
                     ONCE__NUMBER(m->due_ms), ONCE__TEXT(m->keep ? "t" : "f"));
    rc = once__query_no_wait(once__query_one(tx, &a, "emit", &r, err), "emit",
                             err);
    if (rc != ONCE_OK)
        return rc;
    size = (size_t)PQgetlength(r, 0, 0);
    if (PQgetisnull(r, 0, 0))
        rc = ONCE_REPEATED;
    else if (size > ONCE_ID_MAX)
        rc = once__fail(err, ONCE_EVERSION, "emit: an id that is too long");
    else
        (void)snprintf(id, ONCE_ID_SIZE, "%.*s", (int)size,
                       PQgetvalue(r, 0, 0));
    if (rc == ONCE_REPEATED)
        (void)snprintf(id, ONCE_ID_SIZE, "%s", m->id);
    PQclear(r);
    return rc;
}

static int enter(const once_tx *tx, const char *gid, const char *branch, int op,
                 once_error *err)
{
    static const char *const names[] = {[ONCE_TRY] = "try",
                                        [ONCE_CONFIRM] = "confirm",
                                        [ONCE_CANCEL] = "cancel"};
    struct once__query a = {.sql = "SELECT @.barrier_enter($1,$2,$3)"};

    once__query_with(&a, ONCE__TEXT(gid), ONCE__TEXT(branch),
                     ONCE__TEXT(names[op]));
    return once__query_word(tx, &a, "barrier_enter", err);
}

/* ---- Calls ------------------------------------------------------------- */

static int take_result(const PGresult *r, struct once__begun *out,
                       once_error *err)
{
    size_t size = (size_t)PQgetlength(r, 0, 2);
    const uint8_t *kind = (const uint8_t *)PQgetvalue(r, 0, 1);

    if (PQgetlength(r, 0, 1) != 2 || (kind[1] != 1 && kind[1] != 2))
        return once__fail(err, ONCE_ECORRUPT, "begin: a kind that is not one");
    out->memory = malloc(size + 1);
    if (out->memory == NULL)
        return once__fail(err, ONCE_ENOMEM, "begin: no memory for the result");
    memcpy(out->memory, PQgetvalue(r, 0, 2), size);
    out->kind = kind[1];
    out->result = (once_bytes){out->memory, size};
    return ONCE_REPLAY;
}

static int begin(const once_tx *tx, const struct once__claim *c,
                 struct once__begun *out, once_error *err)
{
    struct once__query a = {
        .sql = "SELECT answer,kind,result FROM @.begin($1,$2,$3)"};
    PGresult *r = NULL;
    int rc;

    once__query_with(&a, ONCE__TEXT(c->consumer), ONCE__TEXT(c->id),
                     ONCE__SUM(c->fingerprint));
    rc = once__query_one(tx, &a, "begin", &r, err);
    if (rc == ONCE_OK)
        rc = once__query_answer(r, "begin", err);
    if (rc == ONCE_REPLAY)
        rc = take_result(r, out, err);
    PQclear(r);
    return rc;
}

static int finish(const once_tx *tx, const struct once__claim *c,
                  const struct once__begun *b, int kind, once_bytes result,
                  once_error *err)
{
    struct once__query a = {.sql = "SELECT @.finish_bytes($1,$2,$3,$4)"};
    int rc;

    (void)b;
    once__query_with(&a, ONCE__TEXT(c->consumer), ONCE__TEXT(c->id),
                     ONCE__NUMBER(kind), ONCE__BYTES(result.data, result.size));
    rc = once__query_no_wait(once__query_word(tx, &a, "finish", err), "finish",
                             err);
    if (rc == ONCE_ETX)
        (void)once__fail(err, ONCE_ETX,
                         "finish: this call was rolled back to a savepoint");
    return rc;
}

/* ---- Tables ------------------------------------------------------------ */

/* The text of ON003 is ours, and names what is missing. */
static int init_failed(const PGresult *r, once_error *err)
{
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);

    if (state == NULL || strcmp(state, "ON003") != 0)
        return once__query_no_wait(once__query_failed(r, "init", err), "init",
                                   err);
    return once__fail(err, ONCE_EVERSION, "init: %.160s; nothing was changed",
                      PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY));
}

static int init(const once_tx *tx, uint64_t keep_ms, once_error *err)
{
    char *text = NULL;
    PGresult *r;
    int rc =
        once_message_schema(ONCE_POSTGRES, tx->schema, keep_ms, &text, err);

    if (rc != ONCE_OK)
        return rc;
    r = PQexec(tx->postgres, text);
    if (PQresultStatus(r) != PGRES_COMMAND_OK) {
        rc = init_failed(r, err);
        PQclear(PQexec(tx->postgres, "ROLLBACK"));
    }
    PQclear(r);
    free(text);
    return rc;
}

enum { S_RECOVERY, S_COMMIT, S_STANDBYS, S_VERSION };

static int check_settings(struct once__either *q)
{
    const char *commit = once__text_of(once__either_string(q, S_COMMIT));

    if (once__either_int(q, S_RECOVERY))
        return once__fail(q->err, ONCE_EOPEN,
                          "check: a standby: what it shows may be old");
    if (once__either_int(q, S_VERSION) != VERSION)
        return once__fail(q->err, ONCE_EVERSION,
                          "check: the tables are of another version");
    if (strcmp(commit, "off") == 0 ||
        (strcmp(commit, "local") == 0 && once__either_int(q, S_STANDBYS)))
        return once__fail(q->err, ONCE_EOPEN,
                          "check: synchronous_commit is off, or local beside a "
                          "standby: what is committed may be lost");
    return ONCE_OK;
}

static int check(const once_tx *tx, once_error *err)
{
    struct once__either q;
    int rc;

    once__either(&q, tx, "check",
                 "SELECT pg_is_in_recovery(),"
                 "current_setting('synchronous_commit'),"
                 "current_setting('synchronous_standby_names')<>'',"
                 "version FROM @.message_about()",
                 NULL, err);
    if (once__either_next(&q))
        q.rc = check_settings(&q);
    rc = once__either_end(&q);
    return rc == ONCE_OK ? once__shape_postgres(tx, err) : rc;
}

/* ---- Purge ------------------------------------------------------------- */

enum { PAGES = 32, ROWS = 1000, PAUSE = 4 };

/* A step writes as much as many claims do. The others shall get most of the disk
 * and of the processors, so what follows is a pause, PAUSE times as long. */
static void let_others(uint64_t since_us)
{
    uint64_t us = PAUSE * (once__steady_us() - since_us);
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    (void)nanosleep(&t, NULL);
}

static int purge_pages(const once_tx *tx, uint64_t *removed, once_error *err)
{
    uint64_t from, since;
    int64_t n = 0;
    int rc = ONCE_OK;

    for (from = 0; rc == ONCE_OK; from += PAGES) {
        struct once__either q;

        once__either(&q, tx, "purge", "SELECT @.inbox_purge_1($1,$2)", NULL,
                     err);
        once__either_with(&q, ONCE__NUMBER(from), ONCE__NUMBER(PAGES));
        since = once__steady_us();
        rc = once__either_one(&q, &n);
        if (rc != ONCE_OK || n < 0)
            return rc;
        *removed += (uint64_t)n;
        if (n > 0)
            let_others(since);
    }
    return rc;
}

/* In steps of so many rows. */
static int purge_with(const once_tx *tx, const char *sql, once_error *err)
{
    int64_t n = ROWS;
    int rc = ONCE_OK;

    while (rc == ONCE_OK && n == ROWS) {
        uint64_t since = once__steady_us();
        struct once__either q;

        once__either(&q, tx, "purge", sql, NULL, err);
        once__either_with(&q, ONCE__NUMBER(ROWS));
        rc = once__either_one(&q, &n);
        if (n == ROWS)
            let_others(since);
    }
    return rc;
}

/* Rows that are done and kept: as long as an id is remembered. */
static int purge_done(const once_tx *tx, once_error *err)
{
    char sql[160];

    (void)snprintf(sql, sizeof(sql),
                   "SELECT @.outbox_purge_1(m.keep_ms+%llu,$1)"
                   " FROM @.message_about() m",
                   (unsigned long long)ONCE__SLACK_MS);
    return purge_with(tx, sql, err);
}

static int purge(const once_tx *tx, uint64_t *removed, once_error *err)
{
    struct once__either q;
    int64_t floor;
    int rc;

    once__either(&q, tx, "purge", "SELECT @.floor_1($1)", NULL, err);
    once__either_with(&q, ONCE__NUMBER(ONCE__SLACK_MS));
    rc = once__either_one(&q, &floor);
    if (rc == ONCE_OK)
        rc = purge_pages(tx, removed, err);
    if (rc == ONCE_OK)
        rc = purge_with(tx, "SELECT @.barrier_purge_1($1)", err);
    if (rc == ONCE_OK)
        rc = purge_with(tx, "SELECT @.saga_purge_1($1)", err);
    return rc == ONCE_OK ? purge_done(tx, err) : rc;
}

const struct once__backend once__message_postgres = {open_, once__query_idle,
                                                     init,  check,
                                                     purge, claim,
                                                     park,  emit,
                                                     enter, begin,
                                                     finish};
