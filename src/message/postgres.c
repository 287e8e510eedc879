/* SPDX-License-Identifier: Apache-2.0 */
/*
 * postgres.c - calls the functions of pg.sql on the caller's connection.
 *
 * What an answer means is taken from the function's word and from SQLSTATE,
 * never from the text of an error. Texts of the server are not repeated, since
 * they may quote values.
 */
#ifdef ONCE_WITH_POSTGRES

#include <assert.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/sqltext.h"
#include "message/backend.h"

enum { VERSION = 1, PARAMETERS = 10, STATEMENT = 384, BINARY = 1 };

/* One statement. `@` in it is the schema. */
struct ask {
    const char *sql;
    int n;
    const char *value[PARAMETERS];
    int length[PARAMETERS], format[PARAMETERS];
};

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

static int idle(const once_tx *tx, once_error *err)
{
    switch (PQtransactionStatus(tx->postgres)) {
    case PQTRANS_IDLE:
        return ONCE_OK;
    case PQTRANS_UNKNOWN:
        return once__fail(err, ONCE_EABORTED, "the connection was lost");
    default:
        return once__fail(err, ONCE_ETX, "tx: a transaction is open");
    }
}

/* ---- Errors ------------------------------------------------------------ */

/* By the first characters of SQLSTATE; the first that fits counts. */
static const struct {
    const char *state;
    int code;
    const char *text;
} states[] = {
    {"55P03", ONCE_IN_FLIGHT, NULL},
    {"ON010", ONCE_MISMATCH, NULL},
    {"ON001", ONCE_EOPEN,
     "synchronous_commit is off in this session: what it commits may be lost"},
    {"ON002", ONCE_EVERSION, "the tables are of another version"},
    {"ON012", ONCE_ETX, "key: a call inside itself"},
    {"22", ONCE_EINVAL, "an argument is out of its limits"},
    {"ON014", ONCE_ETX,
     "tx: the message was claimed in this transaction: roll back first"},
    {"25P02", ONCE_ETX, "tx: the transaction has failed already"},
    {"25006", ONCE_EOPEN, "tx: it may only be read, or is on a standby"},
    {"40", ONCE_EABORTED, "the transaction was rolled back"},
    {"08", ONCE_EABORTED, "the connection was lost"},
    {"57", ONCE_EABORTED, "the server ends, or was asked to cancel"},
    {"53100", ONCE_EFULL, "the server's disk is full"},
    {"53200", ONCE_ENOMEM, "the server has no memory"},
    {"53", ONCE_EABORTED, "the server has no room"},
    {"42501", ONCE_EOPEN,
     "the role has not the right: USAGE on the schema, EXECUTE on functions"},
    {"3F", ONCE_EOPEN, "there is no such schema: `once messages init`"},
    {"42P01", ONCE_EOPEN, "the tables are not there: `once messages init`"},
    {"42883", ONCE_EOPEN,
     "the functions are not there, or older: `once messages init`"},
};

static int failed(const PGresult *r, const char *where, once_error *err)
{
    const char *state =
        r == NULL ? NULL : PQresultErrorField(r, PG_DIAG_SQLSTATE);
    size_t i;

    if (state == NULL)
        return once__fail(err, ONCE_EABORTED, "%s: the connection was lost",
                          where);
    for (i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        if (strncmp(state, states[i].state, strlen(states[i].state)) != 0)
            continue;
        if (states[i].code >= 0)
            return states[i].code;
        return once__fail(err, states[i].code, "%s: %s (SQLSTATE %s)", where,
                          states[i].text, state);
    }
    return once__fail(err, ONCE_EOPEN, "%s: refused (SQLSTATE %s)", where,
                      state);
}

/* ---- Asking ------------------------------------------------------------ */

static void text_in(struct ask *a, const char *value)
{
    assert(a->n < PARAMETERS);
    a->value[a->n++] = value;
}

/* PostgreSQL takes a parameter without an address for NULL. */
static void bytes_in(struct ask *a, const void *data, size_t size)
{
    assert(a->n < PARAMETERS && size <= ONCE_BODY_MAX);
    a->value[a->n] = size == 0 ? "" : data;
    a->length[a->n] = (int)size;
    a->format[a->n++] = BINARY;
}

static void fingerprint_in(struct ask *a, const uint8_t *fingerprint)
{
    if (fingerprint == NULL)
        text_in(a, NULL);
    else
        bytes_in(a, fingerprint, ONCE_FINGERPRINT_SIZE);
}

static const char *number_in(struct ask *a, char room[24], uint64_t value)
{
    (void)snprintf(room, 24, "%llu", (unsigned long long)value);
    text_in(a, room);
    return room;
}

/* ONCE_OK and one row in `*out`, an answer that SQLSTATE gives, or an error. */
static int ask(const once_tx *tx, const struct ask *a, const char *where,
               PGresult **out, once_error *err)
{
    char sql[STATEMENT];
    PGresult *r;
    int rc;

    once__sql_in_schema(a->sql, tx->schema == NULL ? "once" : tx->schema, sql,
                        sizeof(sql));
    r = PQexecParams(tx->postgres, sql, a->n, NULL, a->value, a->length,
                     a->format, BINARY);
    if (PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) == 1) {
        *out = r;
        return ONCE_OK;
    }
    rc = failed(r, where, err);
    PQclear(r);
    return rc;
}

/* ---- Words ------------------------------------------------------------- */

static const struct {
    const char *word;
    int answer;
} words[] = {
    {"run", ONCE_OWNER},         {"done", ONCE_REPEATED},
    {"mismatch", ONCE_MISMATCH}, {"outside", ONCE_OUTSIDE},
    {"parked", ONCE_OK},         {"empty", ONCE_EMPTY},
    {"refused", ONCE_REFUSED},   {"early", ONCE_EARLY},
    {"conflict", ONCE_CONFLICT}, {"replay", ONCE_REPLAY},
    {"repeated", ONCE_REPEATED}, {"ok", ONCE_OK},
    {"none", ONCE_ETX},
};

static int answer_of(const PGresult *r, const char *where, once_error *err)
{
    size_t i, size = (size_t)PQgetlength(r, 0, 0);
    const char *word = PQgetvalue(r, 0, 0);

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strlen(words[i].word) == size &&
            memcmp(words[i].word, word, size) == 0)
            return words[i].answer;
    return once__fail(err, ONCE_EVERSION,
                      "%s: an answer that is not understood", where);
}

/* Where no copy can be under way a lock that was not granted means: again. */
static int no_wait(int rc, const char *where, once_error *err)
{
    return rc == ONCE_IN_FLIGHT
               ? once__fail(err, ONCE_EABORTED,
                            "%s: a lock was not granted in time", where)
               : rc;
}

/* For functions that answer with a word alone. */
static int ask_word(const once_tx *tx, const struct ask *a, const char *where,
                    once_error *err)
{
    PGresult *r = NULL;
    int rc = ask(tx, a, where, &r, err);

    if (rc == ONCE_OK)
        rc = answer_of(r, where, err);
    PQclear(r);
    return rc;
}

/* ---- Messages ---------------------------------------------------------- */

static int claim(const once_tx *tx, const struct once__claim *c,
                 once_error *err)
{
    struct ask a = {.sql = "SELECT @.inbox_claim($1,$2,$3,$4)"};
    char attempt[24];

    text_in(&a, c->consumer);
    text_in(&a, c->id);
    fingerprint_in(&a, c->fingerprint);
    (void)number_in(&a, attempt, c->attempt);
    return ask_word(tx, &a, "inbox_claim", err);
}

static int park(const once_tx *tx, const struct once__park *p, once_error *err)
{
    struct ask a = {.sql =
                        "SELECT @.inbox_park($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)"};
    char state[24], wait[24];

    text_in(&a, p->claim.consumer);
    text_in(&a, p->claim.id);
    fingerprint_in(&a, p->claim.fingerprint);
    (void)number_in(&a, state, (uint64_t)p->state);
    (void)number_in(&a, wait, p->wait_ms);
    text_in(&a, p->m->key);
    text_in(&a, once__text_of(p->m->type));
    text_in(&a, once__text_of(p->m->headers));
    bytes_in(&a, p->m->body.data, p->m->body.size);
    text_in(&a, p->why);
    return ask_word(tx, &a, "inbox_park", err);
}

static int emit(const once_tx *tx, const once_message *m, char id[ONCE_ID_SIZE],
                once_error *err)
{
    struct ask a = {.sql = "SELECT @.emit($1,$2,$3,$4,$5,$6,"
                           "to_timestamp($7::bigint/1000.0::float8),$8)"};
    char due[24];
    PGresult *r = NULL;
    size_t size;
    int rc;

    text_in(&a, m->route);
    bytes_in(&a, m->body.data, m->body.size);
    text_in(&a, m->key);
    text_in(&a, m->id);
    text_in(&a, once__text_of(m->type));
    text_in(&a, once__text_of(m->headers));
    (void)number_in(&a, due, m->due_ms);
    text_in(&a, m->keep ? "t" : "f");
    rc = no_wait(ask(tx, &a, "emit", &r, err), "emit", err);
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
    struct ask a = {.sql = "SELECT @.barrier_enter($1,$2,$3)"};

    text_in(&a, gid);
    text_in(&a, branch);
    text_in(&a, names[op]);
    return ask_word(tx, &a, "barrier_enter", err);
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
    struct ask a = {.sql = "SELECT answer,kind,result FROM @.begin($1,$2,$3)"};
    PGresult *r = NULL;
    int rc;

    text_in(&a, c->consumer);
    text_in(&a, c->id);
    fingerprint_in(&a, c->fingerprint);
    rc = ask(tx, &a, "begin", &r, err);
    if (rc == ONCE_OK)
        rc = answer_of(r, "begin", err);
    if (rc == ONCE_REPLAY)
        rc = take_result(r, out, err);
    PQclear(r);
    return rc;
}

static int finish(const once_tx *tx, const struct once__claim *c,
                  const struct once__begun *b, int kind, once_bytes result,
                  once_error *err)
{
    struct ask a = {.sql = "SELECT @.finish($1,$2,$3,$4)"};
    char number[24];
    int rc;

    (void)b;
    text_in(&a, c->consumer);
    text_in(&a, c->id);
    (void)number_in(&a, number, (uint64_t)kind);
    bytes_in(&a, result.data, result.size);
    rc = no_wait(ask_word(tx, &a, "finish", err), "finish", err);
    if (rc == ONCE_ETX)
        (void)once__fail(err, ONCE_ETX,
                         "finish: this call was rolled back to a savepoint");
    return rc;
}

/* ---- Tables ------------------------------------------------------------ */

static int init(const once_tx *tx, uint64_t keep_ms, once_error *err)
{
    const char *schema = tx->schema == NULL ? "once" : tx->schema;
    char *text = NULL;
    PGresult *r;
    int rc = once_message_schema(schema, keep_ms, &text, err);

    if (rc != ONCE_OK)
        return rc;
    r = PQexec(tx->postgres, text);
    if (PQresultStatus(r) != PGRES_COMMAND_OK) {
        rc = failed(r, "init", err);
        PQclear(PQexec(tx->postgres, "ROLLBACK"));
    }
    PQclear(r);
    free(text);
    return rc;
}

enum { S_RECOVERY, S_COMMIT, S_STANDBYS, S_VERSION };

static int is(const PGresult *r, int column, const char *text)
{
    return (size_t)PQgetlength(r, 0, column) == strlen(text) &&
           memcmp(PQgetvalue(r, 0, column), text, strlen(text)) == 0;
}

static int check(const once_tx *tx, once_error *err)
{
    struct ask a = {
        .sql = "SELECT pg_is_in_recovery()::text,"
               "current_setting('synchronous_commit'),"
               "(current_setting('synchronous_standby_names')<>'')::text,"
               "version::text FROM @.message_about()"};
    PGresult *r = NULL;
    char version[16];
    int rc = ask(tx, &a, "check", &r, err);

    if (rc != ONCE_OK)
        return rc;
    (void)snprintf(version, sizeof(version), "%d", VERSION);
    if (is(r, S_RECOVERY, "true"))
        rc = once__fail(err, ONCE_EOPEN,
                        "check: a standby: what it shows may "
                        "be old");
    else if (!is(r, S_VERSION, version))
        rc = once__fail(err, ONCE_EVERSION,
                        "check: the tables are of another version");
    else if (is(r, S_COMMIT, "off") ||
             (is(r, S_COMMIT, "local") && is(r, S_STANDBYS, "true")))
        rc = once__fail(err, ONCE_EOPEN,
                        "check: synchronous_commit is off, or local beside a "
                        "standby: what is committed may be lost");
    PQclear(r);
    return rc;
}

/* ---- Purge ------------------------------------------------------------- */

enum { PAGES = 200, BARRIERS = 1000 };

static int ask_number(const once_tx *tx, const struct ask *a, int64_t *out,
                      once_error *err)
{
    const uint8_t *p;
    PGresult *r = NULL;
    uint64_t n = 0;
    int i, rc = no_wait(ask(tx, a, "purge", &r, err), "purge", err);

    if (rc == ONCE_OK && PQgetlength(r, 0, 0) != 8)
        rc = once__fail(err, ONCE_EVERSION, "purge: not a number");
    if (rc == ONCE_OK) {
        p = (const uint8_t *)PQgetvalue(r, 0, 0);
        for (i = 0; i < 8; i++)
            n = n << 8 | p[i];
        *out = (int64_t)n;
    }
    PQclear(r);
    return rc;
}

static int purge_pages(const once_tx *tx, uint64_t *removed, once_error *err)
{
    uint64_t from;
    int64_t n = 0;
    int rc = ONCE_OK;

    for (from = 0; rc == ONCE_OK; from += PAGES) {
        struct ask a = {.sql = "SELECT @.inbox_purge_1($1,$2)"};
        char first[24], pages[24];

        (void)number_in(&a, first, from);
        (void)number_in(&a, pages, PAGES);
        rc = ask_number(tx, &a, &n, err);
        if (rc != ONCE_OK || n < 0)
            return rc;
        *removed += (uint64_t)n;
    }
    return rc;
}

static int purge_barriers(const once_tx *tx, once_error *err)
{
    struct ask a = {.sql = "SELECT @.barrier_purge_1($1)"};
    char most[24];
    int64_t n = BARRIERS;
    int rc = ONCE_OK;

    (void)number_in(&a, most, BARRIERS);
    while (rc == ONCE_OK && n == BARRIERS)
        rc = ask_number(tx, &a, &n, err);
    return rc;
}

static int purge(const once_tx *tx, uint64_t *removed, once_error *err)
{
    struct ask a = {.sql = "SELECT @.floor_1($1)"};
    char slack[24];
    int64_t floor;
    int rc;

    (void)number_in(&a, slack, ONCE__SLACK_MS);
    rc = ask_number(tx, &a, &floor, err);
    if (rc == ONCE_OK)
        rc = purge_pages(tx, removed, err);
    return rc == ONCE_OK ? purge_barriers(tx, err) : rc;
}

const struct once__backend once__message_postgres = {
    open_, idle, init, check, purge, claim, park, emit, enter, begin, finish};

#else
/* An empty file is not a program that ISO C knows. */
typedef int once__no_postgres;
#endif
