/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schema.c - the texts of pg.sql and lite.sql, with the schema's name and the
 * window filled in.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "message/backend.h"
#include "message/lite.sql.h"
#include "message/pg.sql.h"

/* Appends, or only counts while `out` is NULL. */
static size_t append(char *out, size_t at, const char *text, size_t size)
{
    if (out != NULL)
        memcpy(out + at, text, size);
    return at + size;
}

static size_t fill_in(char *out, const char *from, const char *schema,
                      uint64_t keep_ms)
{
    static const char schema_mark[] = "@schema@", keep_mark[] = "@keep@";
    char keep[24];
    const char *at;
    size_t size = 0;

    (void)snprintf(keep, sizeof(keep), "%llu", (unsigned long long)keep_ms);
    while ((at = strchr(from, '@')) != NULL) {
        size = append(out, size, from, (size_t)(at - from));
        if (strncmp(at, schema_mark, sizeof(schema_mark) - 1) == 0) {
            size = append(out, size, schema, strlen(schema));
            from = at + sizeof(schema_mark) - 1;
        } else {
            size = append(out, size, keep, strlen(keep));
            from = at + sizeof(keep_mark) - 1;
        }
    }
    return append(out, size, from, strlen(from) + 1);
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
