/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tx.c - which backend a caller's transaction belongs to.
 */
#include "base/error.h"
#include "messages/tables/stmt.h"

int once__tx_backend(const once_tx *tx, const struct once__backend **out,
                     once_error *err)
{
    if (tx == NULL || tx->size != sizeof(*tx))
        return once__fail(err, ONCE_EINVAL, "tx: size is not that of once_tx");
    if ((tx->postgres != NULL) + (tx->sqlite != NULL) + (tx->mysql != NULL) !=
        1)
        return once__fail(err, ONCE_EINVAL,
                          "tx: exactly one of postgres, sqlite and mysql must "
                          "be set");
    if (!once__prepared_fits(tx))
        return once__fail(err, ONCE_EINVAL,
                          "tx: prepared is of another handle of SQLite");
    if (tx->sqlite != NULL) {
        *out = &once__message_sqlite;
        return ONCE_OK;
    }
#ifdef ONCE_WITH_MYSQL
    if (tx->mysql != NULL) {
        *out = &once__message_mysql;
        return ONCE_OK;
    }
#endif
#ifdef ONCE_WITH_POSTGRES
    if (tx->postgres != NULL) {
        *out = &once__message_postgres;
        return tx->schema == NULL ? ONCE_OK
                                  : once__check_schema(tx->schema, err);
    }
#endif
    return once__fail(err, ONCE_ENOSYS, "tx: this library was built without %s",
                      tx->mysql != NULL ? "MySQL" : "PostgreSQL");
}

int once__tx_outbox(const once_tx *tx, const struct once__outbox_backend **out,
                    once_error *err)
{
    const struct once__backend *b = NULL;
    int rc = once__tx_backend(tx, &b, err);

    if (rc != ONCE_OK)
        return rc;
    *out = &once__outbox_sqlite;
#ifdef ONCE_WITH_POSTGRES
    if (tx->postgres != NULL)
        *out = &once__outbox_postgres;
#endif
#ifdef ONCE_WITH_MYSQL
    if (tx->mysql != NULL)
        *out = &once__outbox_mysql;
#endif
    return ONCE_OK;
}
