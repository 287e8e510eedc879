/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.c - rows of a scan, a page at a time.
 */
#include <string.h>

#include "base/error.h"
#include "base/steady.h"
#include "calls/store/postgres/postgres.h"
#include "calls/store/sqlstore.h"

enum { PAGE = 4096, /* records of one call */ STATEMENT = 192 };

/* Where a walk goes on. */
struct page {
    once_each *each;
    void *user;
    int what;
    once_position after;
    int shown, enough;
};

/* How many rows there were, or ONCE_ESTORE. */
static int show_page(struct once__pg_link *l, const PGresult *rows,
                     struct page *page, once_error *err)
{
    struct once__pg_row row;
    int i, n = PQntuples(rows);

    for (i = 0; i < n && !page->enough; i++) {
        if (!once__pg_row_read(rows, i, &row))
            return once__fail(err, ONCE_ESTORE,
                              "%s: its functions are not ours", l->label);
        page->after = once_position_of(page->what, row.name, &row.before);
        if (row.rc != ONCE_OK)
            once__damaged(&row.before);
        row.before.result.data = NULL;
        page->shown++;
        page->enough = page->each(page->user, row.name, &row.before);
    }
    return n;
}

static int ask_page(struct once__pg_link *l, struct once__pg_params *p,
                    uint64_t until_ms, struct page *page, once_error *err)
{
    char sql[STATEMENT];
    struct once__pg_ask ask;
    PGresult *rows = NULL;
    int n;

    once__pg_text(l->config, "SELECT * FROM @.scan_1($1,$2,$3,$4,$5)", sql,
                  sizeof(sql));
    ask = once__pg_params_ask(p, sql);
    if (once__pg_ask(l, &ask, until_ms, &rows) != ONCE__PG_DONE)
        return once__pg_fail(l, ONCE_ESTORE, err);
    n = show_page(l, rows, page, err);
    PQclear(rows);
    return n;
}

int once__pg_scan(struct once__pg_link *l, struct once__pg_params *p, int what,
                  const uint64_t *now_ms, const once_position *after,
                  uint32_t max, once_each *each, void *user, once_error *err)
{
    struct page page = {.each = each, .user = user, .what = what};
    int pages = what != ONCE_SCAN_LEASE && what != ONCE_SCAN_KEEP;
    uint32_t limit;
    int n;

    if (max > INT32_MAX)
        max = INT32_MAX;
    do {
        limit = max - (uint32_t)page.shown;
        if (pages && limit > PAGE)
            limit = PAGE;
        if (once__pg_params_scan(p, what, now_ms,
                                 page.shown > 0 ? &page.after : after,
                                 limit) != ONCE_OK)
            return once__fail(err, ONCE_ENOMEM, "postgres: out of memory");
        n = ask_page(l, p, once__steady_ms() + l->config->statement_ms, &page,
                     err);
    } while (pages && n > 0 && (uint32_t)n == limit && !page.enough &&
             (uint32_t)page.shown < max);
    return n < 0 ? n : page.shown;
}
