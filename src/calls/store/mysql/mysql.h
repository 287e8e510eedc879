/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mysql.h - what the files of the MySQL store share.
 *
 *    schema.c   schema.sql, made or printed
 *    row.c      records as rows, rows as records
 *    write.c    the changes of a batch, and their COMMIT
 *    scan.c     rows of a scan, a page at a time
 *    head.c     counts, the head, the time, fences, records of a copy
 *    report.c   verify and dump
 *
 * The connection is that of base/mysql/mysql.h. The server decides nothing: what
 * an operation means says once__transition() alone.
 */
#ifndef ONCE_CALLS_STORE_MYSQL_MYSQL_H
#define ONCE_CALLS_STORE_MYSQL_MYSQL_H

#include "base/mysql/mysql.h"
#include "calls/store/arena.h"

enum {
    ONCE__MY_SCHEMA = 1,        /* version of schema.sql */
    ONCE__MY_PART = 256 * 1024, /* bytes of a result in one row */
    ONCE__MY_ROUND = 512        /* names in one list: under 1,000 */
};

/* ---- schema.c ---------------------------------------------------------- */

int once__my_init(const char *rest, const once_store_options *options,
                  once_error *err);
int once__my_print_schema(const char *rest, once_line *line, void *user,
                          once_error *err);

/* ---- row.c ------------------------------------------------------------- */

/* What a SELECT of records `r` with part 0 of their results `b` shows; a scan
 * does not show the bytes. Of heads alone, without `b`, those that are completed
 * are not believed. */
extern const char once__my_columns[], once__my_columns_of_scan[],
    once__my_columns_of_head[];
/* FROM and JOIN of both, before WHERE. `index`: by which one. */
#define ONCE__MY_FROM(index)                                                   \
    " FROM once_record r FORCE INDEX (" index ") LEFT JOIN once_body b ON "    \
    "b.fence = r.fence AND b.part = 0 "

struct once__my_row {
    uint8_t name[ONCE_NAME_SIZE];
    int rc;             /* ONCE_OK, ONCE_ECORRUPT, ONCE_EVERSION */
    once_record record; /* bytes are borrowed from the rows */
    int whole;          /* 0: the result's bytes are not, or not all, in it */
};

/* The next row; 0: there is none. */
ONCE_CHECK int once__my_row_next(MYSQL_RES *rows, struct once__my_row *out);

/* INSERT of records: which columns a record needs, as bits; the statement up to its
 * rows, for the columns that any of them needs; and each row. Fence 0: the next
 * one is drawn. */
uint32_t once__my_columns_for(const once_record *r, uint64_t fence);
void once__my_put_insert(struct once__my_text *t, uint32_t columns);
void once__my_put_record(struct once__my_text *t, const uint8_t *name,
                         const once_record *r, uint64_t fence,
                         uint32_t columns);
extern const char once__my_insert_body[];
/* What a step that keeps the fence changes, for UPDATE. */
void once__my_put_changes(struct once__my_text *t, const once_record *before,
                          const once_record *after);

/* Milliseconds since 1970 at the beginning of its statement, whatever the time
 * zone. For a statement behind those that lock. */
void once__my_put_now(struct once__my_text *t);

/* Numbers of rows that are not records; 0 where there is none. */
uint64_t once__my_number(const char *field);

/* ---- write.c ----------------------------------------------------------- */

struct once__my_change {
    const uint8_t *name;
    once_record before, after; /* attempt 0: there is no row */
};

/* Writes of a transaction that is open. */
struct once__my_writer {
    struct once__my_link *link;
    struct once__my_text *text;
    struct once__arena *arena;
    uint64_t until_ms;
    uint64_t first_fence; /* that was drawn */
    enum once__my_end end;
    int no_memory;
};

/* Sends what was written so far. 0: it ended otherwise than well, and so does all
 * that is written from here on. */
int once__my_send(struct once__my_writer *w);

/* Writes the result of a record with that fence, in parts, in packets if need
 * be. `*open`: the statement is open, and goes on. */
void once__my_write_body(struct once__my_writer *w, once_bytes result,
                         uint64_t fence, int *open);

/* Writes changes, in the order of their names and each name once, and commits.
 * Sets `after.fence` of what was granted. The ending is in `w`. */
void once__my_write(struct once__my_writer *w, struct once__my_change *changes,
                    size_t n, uint64_t now_ms);

/* ---- scan.c ------------------------------------------------------------ */

/* As once_store_ops.scan, but for the sizes of results that fail their checks:
 * state 255. `now_ms` NULL: the server's time. */
ONCE_CHECK int once__my_scan(struct once__my_link *l, struct once__my_text *t,
                             int what, const uint64_t *now_ms,
                             const once_position *after, uint32_t max,
                             once_each *each, void *user, once_error *err);

/* ---- head.c ------------------------------------------------------------ */

/* One question: BEGIN, what is in `t` behind it, the guard, COMMIT. ONCE_OK, or
 * ONCE_ESTORE. Of its answer the last set of rows is the guard's. */
void once__my_begin(struct once__my_text *t);
ONCE_CHECK int once__my_question(struct once__my_link *l,
                                 struct once__my_text *t,
                                 struct once__my_answer *out, once_error *err);

/* As the members of once_store_ops, on a link that is connected. */
ONCE_CHECK int once__my_count(struct once__my_link *l, struct once__my_text *t,
                              once_counts *out, once_error *err);
ONCE_CHECK int once__my_head(struct once__my_link *l, struct once__my_text *t,
                             const once_store_head *put, once_store_head *out,
                             once_error *err);
ONCE_CHECK int once__my_fence(struct once__my_link *l, struct once__my_text *t,
                              uint64_t *out, once_error *err);
ONCE_CHECK int once__my_time(struct once__my_link *l, struct once__my_text *t,
                             const once_store_time *put, once_store_time *out,
                             once_error *err);
ONCE_CHECK int once__my_import(struct once__my_link *l, struct once__my_text *t,
                               const once_named *r, size_t n, once_error *err);

/* Writes a row that says nothing, so that the COMMIT behind it waits until all
 * that can be read is durable. */
extern const char once__my_touch[];

/* ---- report.c ---------------------------------------------------------- */

int once__my_verify(const char *rest, once_line *line, void *user,
                    once_error *err);
int once__my_dump(const char *rest, once_line *line, void *user,
                  once_error *err);

#endif /* ONCE_CALLS_STORE_MYSQL_MYSQL_H */
