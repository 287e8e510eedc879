/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - verify and dump: what is wrong, and what is there.
 *
 * Both read page by page and change no record; gateways may go on meanwhile. They
 * need no more rights than a gateway.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/steady.h"
#include "calls/store/sqlstore.h"
#include "calls/store/mysql/mysql.h"
#include "calls/store/store.h"

enum { PAGE = 4096 };

struct report {
    struct once__my_config config;
    struct once__my_link link;
    struct once__my_text text;
    struct once__lines lines;
};

static int begin(struct report *r, const char *rest, once_line *line,
                 void *user, once_error *err)
{
    int rc;

    memset(r, 0, sizeof(*r));
    r->lines.line = line;
    r->lines.user = user;
    r->link.config = &r->config;
    rc = once__my_config_read(&r->config, rest, err);
    if (rc == ONCE_OK)
        rc = once__my_connect(&r->link, 0,
                              once__steady_ms() + r->config.statement_ms, err);
    return rc;
}

static void end(struct report *r)
{
    once__my_disconnect(&r->link);
    once__my_text_clear(&r->text);
    once__my_config_clear(&r->config);
}

/* ---- Dump -------------------------------------------------------------- */

int once__my_dump(const char *rest, once_line *line, void *user,
                  once_error *err)
{
    struct report r;
    int rc = begin(&r, rest, line, user, err);

    if (rc == ONCE_OK)
        rc = once__my_scan(&r.link, &r.text, ONCE_SCAN_ALL, NULL, NULL,
                           UINT32_MAX, once__lines_record, &r.lines, err);
    end(&r);
    return rc;
}

/* ---- Verify ------------------------------------------------------------ */

/* The last fence is behind a record, or behind the incarnation. */
static int verify_fence(struct report *r, once_error *err)
{
    struct once__my_answer a;
    once_store_head head;
    uint64_t fence = 0, largest = 0;
    MYSQL_ROW row;
    int rc;

    once__my_begin(&r->text);
    once__my_put(&r->text, "SELECT MAX(fence) FROM once_record;");
    rc = once__my_question(&r->link, &r->text, &a, err);
    if (rc != ONCE_OK)
        return rc;
    row = mysql_fetch_row(a.rows[0]);
    largest = row == NULL ? 0 : once__my_number(row[0]);
    once__my_answer_clear(&a);
    rc = once__my_head(&r->link, &r->text, NULL, &head, err);
    if (rc == ONCE_OK)
        rc = once__my_fence(&r->link, &r->text, &fence, err);
    if (rc != ONCE_OK)
        return rc;
    if (fence < largest)
        once__lines_problem(&r->lines,
                            "the counter of fences is behind a record");
    if (fence < once__fence_floor(&head, 0))
        once__lines_problem(&r->lines,
                            "the counter of fences is behind the incarnation");
    return ONCE_OK;
}

/* Results that belong to no record, or are not whole. */
static uint32_t verify_page(struct report *r, MYSQL_RES *rows, uint64_t *fence)
{
    char text[ONCE__LINE];
    MYSQL_ROW row;
    uint32_t n = 0;

    while ((row = mysql_fetch_row(rows)) != NULL) {
        n++;
        *fence = once__my_number(row[0]);
        if (once__my_number(row[1]) == ONCE_COMPLETED &&
            once__my_number(row[2]) == 1)
            continue;
        (void)snprintf(text, sizeof(text), "the result of fence %" PRIu64 " %s",
                       *fence,
                       once__my_number(row[1]) == ONCE_COMPLETED
                           ? "is not whole"
                           : "belongs to no completed record");
        once__lines_problem(&r->lines, text);
    }
    return n;
}

static int verify_bodies(struct report *r, once_error *err)
{
    struct once__my_answer a;
    uint64_t fence = 0;
    uint32_t n;
    int rc;

    do {
        once__my_begin(&r->text);
        once__my_put(&r->text,
                     "SELECT b.fence, MAX(r.state), MIN(b.part) = 0 AND "
                     "MAX(b.part) + 1 = COUNT(*) AND MIN(b.size) = MAX(b.size) "
                     "AND SUM(LENGTH(b.bytes)) = MAX(b.size) FROM once_body b "
                     "LEFT JOIN once_record r ON r.fence = b.fence "
                     "WHERE b.fence > ");
        once__my_put_number(&r->text, fence);
        once__my_put(&r->text, " GROUP BY b.fence ORDER BY b.fence LIMIT ");
        once__my_put_number(&r->text, PAGE);
        once__my_put(&r->text, ";");
        rc = once__my_question(&r->link, &r->text, &a, err);
        if (rc != ONCE_OK)
            return rc;
        n = verify_page(r, a.rows[0], &fence);
        once__my_answer_clear(&a);
    } while (n == PAGE);
    return ONCE_OK;
}

int once__my_verify(const char *rest, once_line *line, void *user,
                    once_error *err)
{
    struct report r;
    int rc = begin(&r, rest, line, user, err);

    if (rc == ONCE_OK && r.link.caveat != NULL)
        once__lines_problem(&r.lines, r.link.caveat);
    if (rc == ONCE_OK)
        rc = verify_fence(&r, err);
    if (rc == ONCE_OK)
        rc = verify_bodies(&r, err);
    if (rc == ONCE_OK)
        rc = once__my_scan(&r.link, &r.text, ONCE_SCAN_ALL, NULL, NULL,
                           UINT32_MAX, once__lines_damage, &r.lines, err);
    rc = once__opening(rc, err);
    end(&r);
    return rc < 0 ? rc : r.lines.problems;
}
