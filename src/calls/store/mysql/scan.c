/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.c - rows of a scan, a page at a time, each in a transaction of its own: a
 * long read would hold up InnoDB's purge.
 */
#include <string.h>

#include "base/error.h"
#include "calls/store/mysql/mysql.h"
#include "calls/store/sqlstore.h"

enum { PAGE = 4096 /* records of one question */ };

/* Where a walk goes on. */
struct page {
    once_each *each;
    void *user;
    int what;
    const uint64_t *now_ms;
    once_position after;
    int has_after, shown, enough;
};

/* ---- Statements -------------------------------------------------------- */

static void put_due(struct once__my_text *t, const char *begin,
                    const uint64_t *now_ms)
{
    once__my_put(t, begin);
    if (now_ms == NULL)
        once__my_put_now(t);
    else
        once__my_put_number(t, *now_ms);
    once__my_put(t, " ORDER BY r.due_ms");
}

/* As two ranges of the index: a comparison of pairs would walk through all of
 * it. */
static void put_place(struct once__my_text *t, const char *class,
                      const struct page *p)
{
    once__my_put(t, class);
    if (p->has_after) {
        once__my_put(t, " AND r.due_ms = ");
        once__my_put_number(t, p->after.ms);
        once__my_put(t, " AND r.name > ");
        once__my_put_hex(t, p->after.name, ONCE_NAME_SIZE);
        once__my_put(t, " OR ");
        once__my_put(t, class);
        once__my_put(t, " AND r.due_ms > ");
        once__my_put_number(t, p->after.ms);
    }
    once__my_put(t, " ORDER BY r.class, r.due_ms, r.name");
}

static void put_all(struct once__my_text *t, const struct page *p)
{
    once__my_put(t, ONCE__MY_FROM("name"));
    if (p->has_after) {
        once__my_put(t, "WHERE r.name > ");
        once__my_put_hex(t, p->after.name, ONCE_NAME_SIZE);
    }
    once__my_put(t, " ORDER BY r.name");
}

static void put_scan(struct once__my_text *t, const struct page *p,
                     uint32_t limit)
{
    once__my_put(t, "SELECT ");
    once__my_put(t, once__my_columns_of_scan);
    if (p->what == ONCE_SCAN_ALL)
        put_all(t, p);
    else
        once__my_put(t, ONCE__MY_FROM("due") "WHERE ");
    if (p->what == ONCE_SCAN_LEASE)
        put_due(t, "r.class = 1 AND r.due_ms <= ", p->now_ms);
    else if (p->what == ONCE_SCAN_KEEP)
        put_due(t, "r.class = 2 AND r.due_ms <= ", p->now_ms);
    else if (p->what == ONCE_SCAN_WAITING)
        put_place(t, "r.class = 3", p);
    else if (p->what == ONCE_SCAN_LIVE)
        put_place(t, "r.class = 1", p);
    once__my_put(t, " LIMIT ");
    once__my_put_number(t, limit);
    once__my_put(t, ";");
}

/* ---- Pages ------------------------------------------------------------- */

/* How many rows there were. */
static uint32_t show_page(MYSQL_RES *rows, struct page *p)
{
    struct once__my_row row;
    uint32_t n = 0;

    while (!p->enough && once__my_row_next(rows, &row)) {
        n++;
        p->after = once_position_of(p->what, row.name, &row.record);
        p->has_after = 1;
        if (row.rc != ONCE_OK)
            once__damaged(&row.record);
        row.record.result.data = NULL;
        p->shown++;
        p->enough = p->each(p->user, row.name, &row.record);
    }
    return n;
}

int once__my_scan(struct once__my_link *l, struct once__my_text *t, int what,
                  const uint64_t *now_ms, const once_position *after,
                  uint32_t max, once_each *each, void *user, once_error *err)
{
    struct page page = {
        .each = each, .user = user, .what = what, .now_ms = now_ms};
    int pages = what != ONCE_SCAN_LEASE && what != ONCE_SCAN_KEEP;
    struct once__my_answer a;
    uint32_t limit, n;
    int rc;

    if (after != NULL && pages) {
        page.after = *after;
        page.has_after = 1;
    }
    if (max > INT32_MAX)
        max = INT32_MAX;
    do {
        limit = max - (uint32_t)page.shown;
        if (pages && limit > PAGE)
            limit = PAGE;
        once__my_begin(t);
        put_scan(t, &page, limit);
        rc = once__my_question(l, t, &a, err);
        if (rc != ONCE_OK)
            return rc;
        n = show_page(a.rows[0], &page);
        once__my_answer_clear(&a);
    } while (pages && n == limit && !page.enough && (uint32_t)page.shown < max);
    return page.shown;
}
