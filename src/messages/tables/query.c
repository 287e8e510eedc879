/* SPDX-License-Identifier: Apache-2.0 */
/*
 * query.c - statements on a connection of PostgreSQL, and what SQLSTATE means.
 */
#include "messages/tables/query.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/grow.h"
#include "base/sqltext.h"

enum { STATEMENT = 1024, BINARY = 1, ARRAY_MAX = 512 << 20 };

/* ---- The connection ---------------------------------------------------- */

int once__query_idle(const once_tx *tx, once_error *err)
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
    {"ON015", ONCE_OUTSIDE, NULL},
    {"ON016", ONCE_AGAIN, NULL},
    {"ON001", ONCE_EOPEN,
     "synchronous_commit is off in this session: what it commits may be lost"},
    {"ON002", ONCE_EVERSION, "the tables are of a later version"},
    {"ON003", ONCE_EVERSION, "the schema lacks something"},
    {"ON017", ONCE_ETX, "tx: the call was a transaction of its own"},
    {"ON012", ONCE_ETX, "key: a call inside itself"},
    {"22", ONCE_EINVAL, "an argument is out of its limits"},
    {"ON014", ONCE_ETX,
     "tx: the message was claimed in this transaction: roll back first"},
    {"ON013", ONCE_EOPEN,
     "default_transaction_isolation of this role is not read committed"},
    {"23505", ONCE_EOPEN,
     "a sequence was left behind when the tables were copied: `once messages "
     "init`"},
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

int once__query_failed(const PGresult *r, const char *where, once_error *err)
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

/* PostgreSQL takes a parameter without an address for NULL. */
static void add(struct once__query *q, const struct once__value *v)
{
    assert(q->n < ONCE__QUERY_PARAMETERS && v->size <= ONCE_BODY_MAX);
    q->value[q->n] = v->data;
    if (v->type == ONCE__VALUE_NUMBER) {
        (void)snprintf(q->numbers[q->n], sizeof(q->numbers[0]), "%lld",
                       (long long)v->number);
        q->value[q->n] = q->numbers[q->n];
    } else if (v->type == ONCE__VALUE_BYTES && v->data != NULL) {
        q->length[q->n] = (int)v->size;
        q->format[q->n] = BINARY;
    }
    q->n++;
}

void once__query_values(struct once__query *q, const struct once__value *v)
{
    for (; v->type != ONCE__VALUE_END; v++)
        if (v->type != ONCE__VALUE_NOW)
            add(q, v);
}

/* ---- Arrays, in the binary format -------------------------------------- */

/* Room for `size` bytes more; where they are, or NULL. */
static uint8_t *array_add(struct once__array *a, size_t size)
{
    uint8_t *bytes =
        a->failed ? NULL : once__grown(a->bytes, &a->room, a->size + size, 1);

    if (bytes == NULL) {
        a->failed = 1;
        return NULL;
    }
    a->bytes = bytes;
    a->size += size;
    return a->bytes + a->size - size;
}

static void array_put(struct once__array *a, uint64_t value, size_t size)
{
    uint8_t *to = array_add(a, size);

    for (; to != NULL && size-- > 0; value >>= 8)
        to[size] = (uint8_t)value;
}

struct once__array once__array(unsigned type, size_t n)
{
    struct once__array a = {NULL, 0, 0, 0};

    array_put(&a, 1, 4); /* dimensions */
    array_put(&a, 1, 4); /* it may have NULLs */
    array_put(&a, type, 4);
    array_put(&a, n, 4);
    array_put(&a, 1, 4); /* the first index */
    return a;
}

void once__array_number(struct once__array *a, int64_t value, size_t size)
{
    array_put(a, size, 4);
    array_put(a, (uint64_t)value, size);
}

void once__array_bytes(struct once__array *a, const void *data, size_t size)
{
    uint8_t *to;

    array_put(a, data == NULL ? UINT32_MAX : size, 4);
    if (data == NULL || size == 0)
        return;
    to = array_add(a, size);
    if (to != NULL)
        memcpy(to, data, size);
}

void once__array_clear(struct once__array *a)
{
    free(a->bytes);
    *a = (struct once__array){NULL, 0, 0, 0};
}

int once__query_array(struct once__query *q, const struct once__array *a,
                      const char *where, once_error *err)
{
    assert(q->n < ONCE__QUERY_PARAMETERS);
    if (a->failed)
        return once__fail(err, ONCE_ENOMEM, "%s: no memory", where);
    if (a->size > ARRAY_MAX)
        return once__fail(err, ONCE_ELIMIT, "%s: over %d bytes at once", where,
                          ARRAY_MAX);
    q->value[q->n] = (const char *)a->bytes;
    q->length[q->n] = (int)a->size;
    q->format[q->n++] = BINARY;
    return ONCE_OK;
}

/* ---- Answers ------------------------------------------------------------ */

int once__query_rows(const once_tx *tx, const struct once__query *a,
                     const char *where, PGresult **out, once_error *err)
{
    char sql[STATEMENT];
    PGresult *r;
    int rc;

    once__sql_in_schema(a->sql, tx->schema == NULL ? "once" : tx->schema, sql,
                        sizeof(sql));
    r = PQexecParams(tx->postgres, sql, a->n, NULL, a->value, a->length,
                     a->format, BINARY);
    if (PQresultStatus(r) == PGRES_TUPLES_OK) {
        *out = r;
        return ONCE_OK;
    }
    rc = once__query_failed(r, where, err);
    PQclear(r);
    return rc;
}

int once__query_one(const once_tx *tx, const struct once__query *a,
                    const char *where, PGresult **out, once_error *err)
{
    PGresult *r = NULL;
    int rc = once__query_rows(tx, a, where, &r, err);

    if (rc == ONCE_OK && PQntuples(r) != 1) {
        PQclear(r);
        return once__fail(err, ONCE_EOPEN, "%s: not one row", where);
    }
    if (rc == ONCE_OK)
        *out = r;
    return rc;
}

/* ---- Words ------------------------------------------------------------- */

int once__query_answer(const PGresult *r, const char *where, once_error *err)
{
    const once_bytes word = {PQgetvalue(r, 0, 0), (size_t)PQgetlength(r, 0, 0)};

    return once__answer_of(word, where, err);
}

int once__query_no_wait(int rc, const char *where, once_error *err)
{
    return rc == ONCE_IN_FLIGHT
               ? once__fail(err, ONCE_EABORTED,
                            "%s: a lock was not granted in time", where)
               : rc;
}

int once__query_word(const once_tx *tx, const struct once__query *a,
                     const char *where, once_error *err)
{
    PGresult *r = NULL;
    int rc = once__query_one(tx, a, where, &r, err);

    if (rc == ONCE_OK)
        rc = once__query_answer(r, where, err);
    PQclear(r);
    return rc;
}
