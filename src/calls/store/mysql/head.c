/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head.c - counts, the head, the time, fences, and records of a copy.
 *
 * A fence is the number that AUTO_INCREMENT has drawn last. It is raised by a row
 * with a larger number, which goes at once: that needs no right to change the
 * table, and it is in the redo log and the binlog like all else.
 */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include <mysqld_error.h>

#include "base/error.h"
#include "base/must.h"
#include "base/steady.h"
#include "calls/core/bounds.h"
#include "calls/store/mysql/mysql.h"
#include "calls/store/sqlstore.h"
#include "calls/store/store.h"

/* Not twice the same number, or nothing would be written. */
const char once__my_touch[] = "UPDATE once_touch SET n = (n + 1) & 65535 "
                              "WHERE slot = CONNECTION_ID() & 255;";

/* ---- Questions --------------------------------------------------------- */

void once__my_begin(struct once__my_text *t)
{
    once__my_text_reset(t);
    once__my_put(t, "BEGIN;");
}

int once__my_question(struct once__my_link *l, struct once__my_text *t,
                      struct once__my_answer *out, once_error *err)
{
    MYSQL_ROW last;

    once__my_put(t, "SELECT ");
    once__my_put(t, once__my_guard);
    once__my_put(t, ";COMMIT");
    if (t->failed)
        return once__fail(err, ONCE_ESTORE, "mysql: out of memory");
    if (once__my_ask(l, t, once__steady_ms() + l->config->statement_ms, out) !=
        ONCE__MY_DONE)
        return once__my_fail(l, ONCE_ESTORE, err);
    last = out->count > 0 ? mysql_fetch_row(out->rows[out->count - 1]) : NULL;
    if (once__my_guarded(l, last == NULL ? NULL : last[0], err) == ONCE_OK)
        return ONCE_OK;
    once__my_answer_clear(out);
    return ONCE_ESTORE;
}

static int not_ours(const struct once__my_link *l, once_error *err)
{
    return once__fail(err, ONCE_ESTORE, "%s: its tables are not ours",
                      l->label);
}

/* ---- Counts ------------------------------------------------------------ */

/* Exact but for `rest`, which the server's statistics guess. */
int once__my_count(struct once__my_link *l, struct once__my_text *t,
                   once_counts *out, once_error *err)
{
    struct once__my_answer a;
    uint64_t n[ONCE_INDETERMINATE + 1] = {0}, all, state;
    MYSQL_ROW row;
    int rc;

    memset(out, 0, sizeof(*out));
    once__my_begin(t);
    once__my_put(t, "SELECT state, COUNT(*) FROM once_record FORCE INDEX (due) "
                    "WHERE class IN (1, 3) GROUP BY state;"
                    "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE "
                    "TABLE_SCHEMA = DATABASE() AND TABLE_NAME = "
                    "'once_record';");
    rc = once__my_question(l, t, &a, err);
    if (rc != ONCE_OK)
        return rc;
    while ((row = mysql_fetch_row(a.rows[0])) != NULL) {
        state = once__my_number(row[0]);
        if (state <= ONCE_INDETERMINATE)
            n[state] = once__my_number(row[1]);
    }
    row = mysql_fetch_row(a.rows[1]);
    all = row == NULL ? 0 : once__my_number(row[0]);
    once__my_answer_clear(&a);
    out->claimed = n[ONCE_CLAIMED];
    out->dispatched = n[ONCE_DISPATCHED];
    out->indeterminate = n[ONCE_INDETERMINATE];
    n[0] = out->claimed + out->dispatched + out->indeterminate;
    out->rest = all > n[0] ? all - n[0] : 0;
    out->rest_estimated = 1;
    return ONCE_OK;
}

/* ---- Fences ------------------------------------------------------------ */

/* The number is read before the commit that is waited for. A program that is
 * told of it may compare it with what is here after a crash. */
int once__my_fence(struct once__my_link *l, struct once__my_text *t,
                   uint64_t *out, once_error *err)
{
    struct once__my_answer a;
    MYSQL_ROW row;
    uint64_t next = 0;
    int rc;

    once__my_begin(t);
    once__my_put(t, "SELECT AUTO_INCREMENT FROM information_schema.TABLES "
                    "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = "
                    "'once_record';");
    once__my_put(t, once__my_touch);
    rc = once__my_question(l, t, &a, err);
    if (rc != ONCE_OK)
        return rc;
    row = mysql_fetch_row(a.rows[0]);
    if (row == NULL)
        rc = not_ours(l, err);
    else
        next = once__my_number(row[0]);
    once__my_answer_clear(&a);
    *out = next > 0 ? next - 1 : 0;
    return rc;
}

/* A name that nobody else has. */
static void put_raise(struct once__my_text *t, uint64_t fence)
{
    once_record r = {.attempt = 1, .fence = fence};
    uint8_t name[ONCE_NAME_SIZE];
    uint32_t columns;

    ONCE__MUST(getrandom(name, sizeof(name), 0) == (ssize_t)sizeof(name));
    columns = once__my_columns_for(&r, fence);
    once__my_put_insert(t, columns);
    once__my_put_record(t, name, &r, fence, columns);
    once__my_put(t, ";DELETE FROM once_record WHERE fence = ");
    once__my_put_number(t, fence);
    once__my_put(t, ";");
}

/* ---- The head ---------------------------------------------------------- */

static void put_head(struct once__my_text *t, const once_store_head *h)
{
    once__my_put(t, "UPDATE once_meta SET id = ");
    once__my_put_hex(t, h->id, ONCE_STORE_ID_SIZE);
    once__my_put(t, ", incarnation = ");
    once__my_put_number(t, h->incarnation);
    once__my_put(t, ", gap = ");
    once__my_put_number(t, h->gap);
    once__my_put(t, ", gap_from_ms = ");
    once__my_put_number(t, h->gap_from_ms);
    once__my_put(t, ", gap_until_ms = ");
    once__my_put_number(t, h->gap_until_ms);
    once__my_put(t, ";");
}

static int read_head(const struct once__my_link *l, MYSQL_RES *rows,
                     once_store_head *out, once_error *err)
{
    MYSQL_ROW row = mysql_fetch_row(rows);

    memset(out, 0, sizeof(*out));
    if (row == NULL || mysql_fetch_lengths(rows)[0] != ONCE_STORE_ID_SIZE)
        return not_ours(l, err);
    if (once__my_number(row[5]) != ONCE__MY_SCHEMA)
        return once__fail(err, ONCE_EVERSION,
                          "%s: schema version %s, this program understands %d",
                          l->label, row[5], ONCE__MY_SCHEMA);
    memcpy(out->id, row[0], ONCE_STORE_ID_SIZE);
    out->incarnation = (uint32_t)once__my_number(row[1]);
    out->gap = (uint32_t)once__my_number(row[2]);
    out->gap_from_ms = once__my_number(row[3]);
    out->gap_until_ms = once__my_number(row[4]);
    return once__head_sane(out) ? ONCE_OK : not_ours(l, err);
}

int once__my_head(struct once__my_link *l, struct once__my_text *t,
                  const once_store_head *put, once_store_head *out,
                  once_error *err)
{
    struct once__my_answer a;
    uint64_t fence = 0, floor = put == NULL ? 0 : once__fence_floor(put, 0);
    int rc = put == NULL ? ONCE_OK : once__my_fence(l, t, &fence, err);

    if (rc != ONCE_OK)
        return rc;
    once__my_begin(t);
    if (put != NULL)
        put_head(t, put);
    if (floor > fence)
        put_raise(t, floor);
    once__my_put(t, "SELECT id, incarnation, gap, gap_from_ms, gap_until_ms, "
                    "version FROM once_meta;");
    rc = once__my_question(l, t, &a, err);
    if (rc != ONCE_OK)
        return rc;
    rc = read_head(l, a.rows[0], out, err);
    once__my_answer_clear(&a);
    return rc;
}

/* ---- The time ---------------------------------------------------------- */

static void put_seen(struct once__my_text *t, const once_store_time *s)
{
    once__my_put(t, "REPLACE INTO once_clock (one, seen_ms, steady_ms, host, "
                    "backs) VALUES (1,");
    once__my_put_number(t, s->seen_ms);
    once__my_put(t, ",");
    once__my_put_number(t, s->steady_ms);
    once__my_put(t, ",");
    once__my_put_hex(t, s->host, ONCE_HOST_SIZE);
    once__my_put(t, ",");
    once__my_put_number(t, s->backs);
    once__my_put(t, ");");
}

int once__my_time(struct once__my_link *l, struct once__my_text *t,
                  const once_store_time *put, once_store_time *out,
                  once_error *err)
{
    struct once__my_answer a;
    MYSQL_ROW row;
    int rc;

    memset(out, 0, sizeof(*out));
    once__my_begin(t);
    if (put != NULL)
        put_seen(t, put);
    once__my_put(t, "SELECT ");
    once__my_put_now(t);
    once__my_put(t, ", seen_ms, steady_ms, host, backs "
                    "FROM (SELECT 1 AS one) AS o LEFT JOIN once_clock c "
                    "ON c.one = o.one;");
    rc = once__my_question(l, t, &a, err);
    if (rc != ONCE_OK)
        return rc;
    row = mysql_fetch_row(a.rows[0]);
    if (row == NULL)
        rc = not_ours(l, err);
    else
        out->now_ms = once__my_number(row[0]);
    if (row != NULL && row[1] != NULL) {
        out->seen_ms = once__my_number(row[1]);
        out->steady_ms = once__my_number(row[2]);
        memcpy(out->host, row[3], ONCE_HOST_SIZE);
        out->backs = once__my_number(row[4]);
    }
    once__my_answer_clear(&a);
    return rc;
}

/* ---- Records of a copy ------------------------------------------------- */

static void write_part(struct once__my_writer *w, const once_named *r, size_t n)
{
    uint32_t columns = 0;
    size_t i;
    int open = 0;

    once__my_begin(w->text);
    for (i = 0; i < n; i++)
        columns |= once__my_columns_for(&r[i].record, r[i].record.fence);
    once__my_put_insert(w->text, columns);
    for (i = 0; i < n; i++) {
        once__my_put(w->text, i == 0 ? "" : ",");
        once__my_put_record(w->text, r[i].name, &r[i].record, r[i].record.fence,
                            columns);
    }
    once__my_put(w->text, ";");
    for (i = 0; i < n; i++)
        if (r[i].record.state == ONCE_COMPLETED)
            once__my_write_body(w, r[i].record.result, r[i].record.fence,
                                &open);
    once__my_put(w->text, open ? ";COMMIT" : "COMMIT");
    (void)once__my_send(w);
}

int once__my_import(struct once__my_link *l, struct once__my_text *t,
                    const once_named *r, size_t n, once_error *err)
{
    struct once__my_writer w = {.link = l, .text = t, .end = ONCE__MY_DONE};
    size_t count;

    for (; n > 0; r += count, n -= count) {
        count = once__import_part(r, n);
        w.until_ms = once__steady_ms() + l->config->statement_ms;
        write_part(&w, r, count);
        if (w.no_memory) {
            once__my_disconnect(l);
            return once__fail(err, ONCE_ESTORE, "mysql: out of memory");
        }
        if (w.end != ONCE__MY_DONE)
            return once__my_fail(
                l, l->number == ER_DUP_ENTRY ? ONCE_EINVAL : ONCE_ESTORE, err);
    }
    return ONCE_OK;
}
