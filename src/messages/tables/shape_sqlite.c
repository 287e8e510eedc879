/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shape_sqlite.c - makes the tables of lite.sql once more, in memory, and looks
 * for each of their columns and indexes in the program's file. More columns and
 * indexes do no harm.
 */
#include "messages/tables/shape.h"

#include <stdlib.h>

#include "base/error.h"
#include "messages/tables/stmt.h"

/* A line for each column and each index of ours. */
#define SHAPE                                                                  \
    "SELECT 'column '||m.name||'.'||c.name AS what,c.type||' '||"              \
    "c.\"notnull\"||' '||coalesce(c.dflt_value,'')||' '||c.pk AS how"          \
    " FROM main.sqlite_schema m, pragma_table_info(m.name,'main') c"           \
    " WHERE m.type='table' AND m.name LIKE 'once\\_%' ESCAPE '\\'"             \
    " UNION ALL SELECT 'index '||name,replace(sql,char(10),'')"                \
    " FROM main.sqlite_schema WHERE type='index' AND sql IS NOT NULL"          \
    " AND tbl_name LIKE 'once\\_%' ESCAPE '\\'"

/* 1: the program's file has this line. */
static int has(sqlite3_stmt *theirs, const char *what, const char *how)
{
    int found;

    (void)sqlite3_reset(theirs);
    (void)sqlite3_bind_text(theirs, 1, what, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(theirs, 2, how, -1, SQLITE_STATIC);
    found = sqlite3_step(theirs) == SQLITE_ROW;
    (void)sqlite3_reset(theirs);
    return found;
}

static int compare(sqlite3 *model, sqlite3 *file, once_error *err)
{
    static const char look[] = "SELECT 1 FROM(" SHAPE ")"
                               " WHERE what=?1 AND how=?2";
    sqlite3_stmt *ours = NULL, *theirs = NULL;
    int rc = sqlite3_prepare_v2(model, SHAPE, -1, &ours, NULL), step, result;

    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(file, look, -1, &theirs, NULL);
    result = rc == SQLITE_OK ? ONCE_OK : once__lite_failed(rc, "check", err);
    while (result == ONCE_OK && (step = sqlite3_step(ours)) != SQLITE_DONE) {
        const char *what = (const char *)sqlite3_column_text(ours, 0);

        if (step != SQLITE_ROW || what == NULL)
            result = once__lite_failed(step, "check", err);
        else if (!has(theirs, what, (const char *)sqlite3_column_text(ours, 1)))
            result =
                once__fail(err, ONCE_EVERSION,
                           "check: the tables lack %s, or it is another", what);
    }
    (void)sqlite3_finalize(ours);
    (void)sqlite3_finalize(theirs);
    return result;
}

int once__shape_sqlite(const once_tx *tx, once_error *err)
{
    sqlite3 *model = NULL;
    char *text = NULL;
    int rc = once_message_schema(ONCE_SQLITE, NULL, 0, &text, err), code;

    if (rc != ONCE_OK)
        return rc;
    code = sqlite3_open(":memory:", &model);
    if (code == SQLITE_OK)
        code = sqlite3_exec(model, text, NULL, NULL, NULL);
    rc = code == SQLITE_OK ? compare(model, tx->sqlite, err)
                           : once__lite_failed(code, "check", err);
    (void)sqlite3_close(model);
    free(text);
    return rc;
}
