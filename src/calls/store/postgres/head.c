/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head.c - counts, the head, the last fence, and records of a copy.
 */
#include "base/error.h"
#include "base/steady.h"
#include "calls/store/postgres/postgres.h"
#include "calls/store/sqlstore.h"

enum { STATEMENT = 256 };

/* One question with the parameters `p`. ONCE_OK, or ONCE_ESTORE. */
static int ask(struct once__pg_link *l, const struct once__pg_params *p,
               const char *text, PGresult **rows, once_error *err)
{
    char sql[STATEMENT];
    struct once__pg_ask ask;

    once__pg_text(l->config, text, sql, sizeof(sql));
    ask = once__pg_params_ask(p, sql);
    return once__pg_ask(l, &ask, once__steady_ms() + l->config->statement_ms,
                        rows) == ONCE__PG_DONE
               ? ONCE_OK
               : once__pg_fail(l, ONCE_ESTORE, err);
}

static int not_ours(const struct once__pg_link *l, once_error *err)
{
    return once__fail(err, ONCE_ESTORE, "%s: its functions are not ours",
                      l->label);
}

int once__pg_count(struct once__pg_link *l, struct once__pg_params *p,
                   once_counts *out, once_error *err)
{
    PGresult *rows = NULL;
    int rc;

    once__pg_params_none(p);
    rc = ask(l, p, "SELECT * FROM @.count_1()", &rows, err);
    if (rc == ONCE_OK && !once__pg_counts_read(rows, out))
        rc = not_ours(l, err);
    PQclear(rows);
    return rc;
}

int once__pg_head(struct once__pg_link *l, struct once__pg_params *p,
                  const once_store_head *put, once_store_head *out,
                  once_error *err)
{
    PGresult *rows = NULL;
    int rc;

    if (put == NULL)
        once__pg_params_none(p);
    else if (once__pg_params_head(p, l->config->async, put) != ONCE_OK)
        return once__fail(err, ONCE_ESTORE, "postgres: out of memory");
    rc = ask(l, p,
             put == NULL ? "SELECT * FROM @.head_1()"
                         : "SELECT * FROM @.head_put_1($1,$2,$3,$4,$5,$6)",
             &rows, err);
    if (rc == ONCE_OK && !once__pg_head_read(rows, out))
        rc = not_ours(l, err);
    PQclear(rows);
    return rc;
}

int once__pg_fence(struct once__pg_link *l, struct once__pg_params *p,
                   uint64_t *out, once_error *err)
{
    PGresult *rows = NULL;
    int rc;

    if (once__pg_params_fence(p, l->config->async) != ONCE_OK)
        return once__fail(err, ONCE_ESTORE, "postgres: out of memory");
    rc = ask(l, p, "SELECT @.fence_1($1)", &rows, err);
    if (rc == ONCE_OK && !once__pg_fence_read(rows, out))
        rc = not_ours(l, err);
    PQclear(rows);
    return rc;
}

int once__pg_import(struct once__pg_link *l, struct once__pg_params *p,
                    const once_named *r, size_t n, once_error *err)
{
    PGresult *rows = NULL;
    size_t count;
    int rc = ONCE_OK;

    for (; n > 0 && rc == ONCE_OK; r += count, n -= count) {
        count = once__import_part(r, n);
        if (once__pg_params_import(p, l->config->async, r, count) != ONCE_OK)
            return once__fail(err, ONCE_ESTORE, "postgres: out of memory");
        rc = ask(l, p,
                 "SELECT @.import_1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,"
                 "$13,$14,$15,$16,$17,$18,$19,$20,$21,$22)",
                 &rows, err);
        PQclear(rows);
        rows = NULL;
    }
    if (rc != ONCE_OK && once__pg_state(l, "23505"))
        rc = once__pg_fail(l, ONCE_EINVAL, err);
    return rc;
}
