/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schema.c - the texts of pg.sql and lite.sql, with the schema's name and the
 * window filled in.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/sqltext.h"
#include "messages/tables/backend.h"
#include "messages/tables/lite.sql.h"
#include "messages/tables/pg.sql.h"

static size_t fill_in(char *out, const char *from, const char *schema,
                      uint64_t keep_ms)
{
    char keep[24];
    const struct once__mark marks[] = {{"@schema@", schema}, {"@keep@", keep}};

    (void)snprintf(keep, sizeof(keep), "%llu", (unsigned long long)keep_ms);
    return once__sql_fill(out, from, marks, 2);
}

int once_message_schema(const char *schema, uint64_t keep_ms, char **out,
                        once_error *err)
{
    const char *from = schema != NULL ? once__pg_sql : once__lite_sql;
    int rc = schema == NULL ? ONCE_OK : once__check_schema(schema, err);

    if (keep_ms == 0)
        keep_ms = ONCE__KEEP_MS;
    if (rc == ONCE_OK)
        rc = once__check_keep(keep_ms, err);
    if (rc != ONCE_OK)
        return rc;
    *out = malloc(fill_in(NULL, from, once__text_of(schema), keep_ms));
    if (*out == NULL)
        return once__fail(err, ONCE_ENOMEM, "schema: no memory");
    (void)fill_in(*out, from, once__text_of(schema), keep_ms);
    return ONCE_OK;
}
