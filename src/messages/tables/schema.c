/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schema.c - the texts of pg.sql, lite.sql and my.sql, with the schema's name and
 * the window filled in.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/sqltext.h"
#include "messages/tables/backend.h"
#include "messages/tables/lite.sql.h"
#include "messages/tables/my.sql.h"
#include "messages/tables/pg.sql.h"

static size_t fill_in(char *out, const char *from, const char *schema,
                      uint64_t keep_ms)
{
    char keep[24];
    /* MariaDB executes such a comment; MySQL has neither of the two. */
    const struct once__mark marks[] = {
        {"@schema@", schema},
        {"@keep@", keep},
        {"@create@", "CREATE /*M! OR REPLACE */"},
        {"@wait@", "/*M! SET STATEMENT innodb_lock_wait_timeout = 2 FOR */"}};

    (void)snprintf(keep, sizeof(keep), "%llu", (unsigned long long)keep_ms);
    return once__sql_fill(out, from, marks, sizeof(marks) / sizeof(marks[0]));
}

static const char *const texts[] = {[ONCE_POSTGRES] = once__pg_sql,
                                    [ONCE_SQLITE] = once__lite_sql,
                                    [ONCE_MYSQL] = once__my_sql};

int once_message_schema(int database, const char *schema, uint64_t keep_ms,
                        char **out, once_error *err)
{
    int rc = ONCE_OK;

    if (database < ONCE_POSTGRES || database > ONCE_MYSQL)
        return once__fail(err, ONCE_EINVAL,
                          "database: it is not an enum once_database");
    if (schema == NULL)
        schema = "once";
    else if (database == ONCE_POSTGRES)
        rc = once__check_schema(schema, err);
    else
        rc = once__fail(err, ONCE_EINVAL,
                        "schema: only PostgreSQL has one for these tables");
    if (keep_ms == 0)
        keep_ms = ONCE__KEEP_MS;
    if (rc == ONCE_OK)
        rc = once__check_keep(keep_ms, err);
    if (rc != ONCE_OK)
        return rc;
    *out = malloc(fill_in(NULL, texts[database], schema, keep_ms));
    if (*out == NULL)
        return once__fail(err, ONCE_ENOMEM, "schema: no memory");
    (void)fill_in(*out, texts[database], schema, keep_ms);
    return ONCE_OK;
}
