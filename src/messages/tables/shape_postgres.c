/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shape_postgres.c - compares each function's body with the one in pg.sql, by
 * SHA-256, and then asks differs_1() about tables, indexes, triggers and rights.
 * That function may be believed by then.
 */
#include "messages/tables/shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "messages/tables/query.h"

/* A function of pg.sql, as it stands in the text. */
struct function {
    once_bytes name, body;
};

/* The next function from `*at` on, which is moved behind it. 0: there is none. */
static int next_function(const char **at, struct function *out)
{
    static const char begin[] = "CREATE OR REPLACE FUNCTION \"";
    static const char open[] = "\nAS $f$", close[] = "$f$;";
    const char *name = strstr(*at, begin), *body, *end;

    name = name == NULL ? NULL : strstr(name, "\".");
    body = name == NULL ? NULL : strstr(name, open);
    end = body == NULL ? NULL : strstr(body + sizeof(open) - 1, close);
    if (end == NULL)
        return 0;
    name += 2;
    body += sizeof(open) - 1;
    out->name = (once_bytes){name, strcspn(name, "(")};
    out->body = (once_bytes){body, (size_t)(end - body)};
    *at = end;
    return 1;
}

static int field_is(const PGresult *r, int row, int column, const void *bytes,
                    size_t size)
{
    return (size_t)PQgetlength(r, row, column) == size &&
           memcmp(PQgetvalue(r, row, column), bytes, size) == 0;
}

static int compare(const PGresult *r, const char *text, once_error *err)
{
    uint8_t sum[ONCE_FINGERPRINT_SIZE];
    struct function f;

    while (next_function(&text, &f)) {
        int i, rc = once__fingerprint_bytes(f.body, sum, err);

        if (rc != ONCE_OK)
            return rc;
        for (i = 0; i < PQntuples(r); i++)
            if (field_is(r, i, 0, f.name.data, f.name.size) &&
                field_is(r, i, 1, sum, sizeof(sum)))
                break;
        if (i == PQntuples(r))
            return once__fail(
                err, ONCE_EVERSION,
                "check: the function %.*s is missing, or another one: `once "
                "messages init`",
                (int)f.name.size, (const char *)f.name.data);
    }
    return ONCE_OK;
}

static int functions(const once_tx *tx, once_error *err)
{
    struct once__query q = {
        .sql = "SELECT p.proname::text,sha256(convert_to(p.prosrc,'UTF8'))"
               " FROM pg_proc p JOIN pg_namespace n ON n.oid=p.pronamespace"
               " WHERE n.nspname=$1"};
    const char *schema = tx->schema == NULL ? "once" : tx->schema;
    char *text = NULL;
    PGresult *r = NULL;
    int rc = once_message_schema(ONCE_POSTGRES, tx->schema, 0, &text, err);

    once__query_with(&q, ONCE__TEXT(schema));
    if (rc == ONCE_OK)
        rc = once__query_rows(tx, &q, "check", &r, err);
    if (rc == ONCE_OK)
        rc = compare(r, text, err);
    PQclear(r);
    free(text);
    return rc;
}

int once__shape_postgres(const once_tx *tx, once_error *err)
{
    struct once__query q = {.sql = "SELECT @.differs_1()"};
    PGresult *r = NULL;
    int rc = functions(tx, err);

    if (rc == ONCE_OK)
        rc = once__query_one(tx, &q, "check", &r, err);
    if (rc == ONCE_OK && PQgetlength(r, 0, 0) > 0)
        rc = once__fail(err, ONCE_EVERSION, "check: the schema differs: %.160s",
                        PQgetvalue(r, 0, 0));
    PQclear(r);
    return rc;
}
