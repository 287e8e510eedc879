/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_postgres.c - PostgreSQL, connected as the store of that name connects.
 */
#include <stdlib.h>
#include <string.h>

#include "base/postgres/postgres.h"
#include "base/steady.h"
#include "messages/relay/base_driver.h"

struct own {
    struct once__pg_config config;
    struct once__pg_link link;
};

static int read_(struct once__base *b, const char *rest, once_error *err)
{
    struct own *o = calloc(1, sizeof(*o));
    int rc;

    if (o == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    b->own = o;
    rc = once__pg_config_read(&o->config, rest, err);
    o->link.config = &o->config;
    o->config.async = 1; /* once_message_check() looks for itself */
    b->tx.schema = o->config.schema;
    return rc;
}

static void clear(struct once__base *b)
{
    struct own *o = b->own;

    if (o != NULL)
        once__pg_config_clear(&o->config);
    free(o);
}

static int connect_(struct once__base *b, once_error *err)
{
    struct own *o = b->own;
    int rc;

    if (once__steady_ms() < o->link.next_ms)
        once__sleep_ms(o->link.next_ms - once__steady_ms());
    rc = once__pg_connect(&o->link, 1,
                          once__steady_ms() + ONCE__BASE_CONNECT_MS, err);
    if (rc != ONCE_OK)
        return rc;
    once__base_keep_socket(b, PQsocket(o->link.conn));
    b->tx.postgres = o->link.conn;
    return ONCE_OK;
}

/* Under another level a first delivery would run, and no parked message. */
static int check(struct once__base *b, once_error *err)
{
    PGresult *r = PQexec(b->tx.postgres, "SHOW default_transaction_isolation");
    int rc = ONCE_OK;

    if (PQresultStatus(r) != PGRES_TUPLES_OK)
        rc = once__fail(err, ONCE_EAWAY, "the connection was lost");
    else if (strcmp(PQgetvalue(r, 0, 0), "read committed") != 0)
        rc = once__fail(err, ONCE_EOPEN,
                        "default_transaction_isolation of this role is not "
                        "read committed");
    PQclear(r);
    return rc;
}

static int is_up(const struct once__base *b)
{
    const struct own *o = b->own;

    return b->tx.postgres != NULL && once__pg_is_up(&o->link);
}

static void drop(struct once__base *b)
{
    struct own *o = b->own;

    once__base_keep_socket(b, -1);
    if (o != NULL)
        once__pg_disconnect(&o->link);
    b->tx.postgres = NULL;
}

/* ---- Transactions ------------------------------------------------------- */

/* 1: the server answered with this tag. 0: with another. -1: it did not
 * answer, or refused. */
static int tag_is(struct once__base *b, const char *sql, const char *tag)
{
    PGresult *r = PQexec(once__base_ask(b)->postgres, sql);
    int is = PQresultStatus(r) == PGRES_COMMAND_OK
                 ? strcmp(PQcmdStatus(r), tag) == 0
                 : -1;

    PQclear(r);
    return once__base_answered(b, is);
}

static int begin(struct once__base *b, once_error *err)
{
    if (tag_is(b, "BEGIN", "BEGIN") == 1)
        return ONCE_OK;
    drop(b);
    return once__fail(err, ONCE_EABORTED, "BEGIN: the connection was lost");
}

/* A refusal (a constraint that was deferred, a serialization failure) leaves a
 * connection that is idle: then nothing was committed. */
static int commit(struct once__base *b, once_error *err)
{
    int is = tag_is(b, "COMMIT", "COMMIT");

    if (is == 1)
        return ONCE_OK;
    if (is == 0 || (PQstatus(b->tx.postgres) == CONNECTION_OK &&
                    PQtransactionStatus(b->tx.postgres) == PQTRANS_IDLE))
        return once__fail(err, ONCE_EABORTED, "COMMIT: it was rolled back");
    drop(b);
    return once__fail(err, ONCE_EAWAY,
                      "COMMIT: no answer; it is unknown whether it was done");
}

static int rollback(struct once__base *b)
{
    return PQtransactionStatus(b->tx.postgres) == PQTRANS_IDLE ||
           tag_is(b, "ROLLBACK", "ROLLBACK") == 1;
}

const struct once__base_driver once__base_postgres = {
    .database = ONCE_POSTGRES,
    .schemes = {"postgres:", "postgresql:"},
    .read = read_,
    .clear = clear,
    .connect = connect_,
    .is_up = is_up,
    .drop = drop,
    .check = check,
    .begin = begin,
    .commit = commit,
    .rollback = rollback,
};
