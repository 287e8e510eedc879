/* SPDX-License-Identifier: Apache-2.0 */
/*
 * postgres.h - what the files of the PostgreSQL store share.
 *
 *    schema.c   schema.sql, made or printed
 *    arrays.c    operations as arrays, rows as records
 *    scan.c     rows of a scan, a page at a time
 *    head.c     counts, the head, records of a copy
 *    report.c   verify and dump
 *
 * The connection is that of base/postgres/postgres.h.
 *
 * What an operation means is decided by once__transition() here, from the
 * record as the server saw it; which operations change a record, and into what,
 * is said once more in schema.sql, and both must agree.
 */
#ifndef ONCE_CALLS_STORE_POSTGRES_POSTGRES_H
#define ONCE_CALLS_STORE_POSTGRES_POSTGRES_H

#include "base/postgres/postgres.h"

/* ---- schema.c ---------------------------------------------------------- */

int once__pg_init(const char *rest, const once_store_options *options,
                  once_error *err);
int once__pg_print_schema(const char *rest, once_line *line, void *user,
                          once_error *err);

/* ---- arrays.c ----------------------------------------------------------- */

enum {
    ONCE__PG_COLUMNS = 23, /* parameters of apply_1() and same_1() */
    ONCE__PG_INLINE = 128 * 1024
};

/* Parameters in PostgreSQL's binary format, in one piece of memory. */
struct once__pg_params {
    uint8_t *bytes;
    size_t size, room;
    int count, failed; /* 1: out of memory */
    size_t at[ONCE__PG_COLUMNS];
    Oid types[ONCE__PG_COLUMNS];
    const char *values[ONCE__PG_COLUMNS];
    int lengths[ONCE__PG_COLUMNS], formats[ONCE__PG_COLUMNS];
};

void once__pg_params_clear(struct once__pg_params *p);

/* What is the same in each call. */
struct once__pg_call {
    const uint64_t *now_ms; /* NULL: the server's clock */
    int async, grant;
    uint32_t lock_ms;
    const uint8_t *id; /* of the store that was opened; NULL: not known yet */
};

/* Parameters of apply_1() and same_1(), and of forget_1(), for operations that are sorted by
 * name and have one each. ONCE_OK or ONCE_ENOMEM. */
ONCE_CHECK int once__pg_params_apply(struct once__pg_params *p,
                                     const struct once__pg_call *call,
                                     once_op *const *ops, size_t n);
ONCE_CHECK int once__pg_params_forget(struct once__pg_params *p,
                                      const struct once__pg_call *call,
                                      once_op *const *ops, size_t n);
ONCE_CHECK int once__pg_params_body(struct once__pg_params *p,
                                    const once_op *op, uint64_t fence);
ONCE_CHECK int once__pg_params_scan(struct once__pg_params *p, int what,
                                    const uint64_t *now_ms,
                                    const once_position *after, uint32_t max);

/* No parameters; those of fence_1(), head_put_1(), and of import_1(). */
void once__pg_params_none(struct once__pg_params *p);
ONCE_CHECK int once__pg_params_fence(struct once__pg_params *p, int async);
ONCE_CHECK int once__pg_params_head(struct once__pg_params *p, int async,
                                    const once_store_head *put);
ONCE_CHECK int once__pg_params_import(struct once__pg_params *p, int async,
                                      const once_named *r, size_t n);

/* Parameters of seen_1(); `put` NULL: only look. */
ONCE_CHECK int once__pg_params_seen(struct once__pg_params *p,
                                    const struct once__pg_call *call,
                                    const once_store_time *put);

/* The question with these parameters. */
struct once__pg_ask once__pg_params_ask(const struct once__pg_params *p,
                                        const char *sql);

/* One row of type "answer". */
struct once__pg_row {
    uint8_t name[ONCE_NAME_SIZE];
    int did; /* 0: unchanged */
    uint64_t now_ms;
    uint64_t granted;   /* the fence of a grant */
    int rc;             /* ONCE_OK, ONCE_ECORRUPT, ONCE_EVERSION */
    once_record before; /* bytes are borrowed from the result */
    int body;           /* 0: the result's bytes must be fetched */
};

/* 0 if the row has another shape: not our function. */
ONCE_CHECK int once__pg_row_read(const PGresult *rows, int i,
                                 struct once__pg_row *out);

/* The row of seen_1(), count_1(), head_1(), fence_1(). 0 if it has another
 * shape. */
ONCE_CHECK int once__pg_seen_read(const PGresult *rows, once_store_time *out);
ONCE_CHECK int once__pg_counts_read(const PGresult *rows, once_counts *out);
ONCE_CHECK int once__pg_head_read(const PGresult *rows, once_store_head *out);
ONCE_CHECK int once__pg_fence_read(const PGresult *rows, uint64_t *out);

/* ---- scan.c ------------------------------------------------------------ */

/* Shows up to `max` rows of a scan, a page at a time. As once_store_ops.scan,
 * but for the sizes of results that fail their checksums: state 255. */
ONCE_CHECK int once__pg_scan(struct once__pg_link *l, struct once__pg_params *p,
                             int what, const uint64_t *now_ms,
                             const once_position *after, uint32_t max,
                             once_each *each, void *user, once_error *err);

/* ---- head.c ------------------------------------------------------------ */

/* As the members of once_store_ops, on a link that is connected. */
ONCE_CHECK int once__pg_count(struct once__pg_link *l,
                              struct once__pg_params *p, once_counts *out,
                              once_error *err);
ONCE_CHECK int once__pg_head(struct once__pg_link *l, struct once__pg_params *p,
                             const once_store_head *put, once_store_head *out,
                             once_error *err);
ONCE_CHECK int once__pg_fence(struct once__pg_link *l,
                              struct once__pg_params *p, uint64_t *out,
                              once_error *err);
ONCE_CHECK int once__pg_import(struct once__pg_link *l,
                               struct once__pg_params *p, const once_named *r,
                               size_t n, once_error *err);

/* ---- report.c ---------------------------------------------------------- */

int once__pg_verify(const char *rest, once_line *line, void *user,
                    once_error *err);
int once__pg_dump(const char *rest, once_line *line, void *user,
                  once_error *err);

#endif /* ONCE_CALLS_STORE_POSTGRES_POSTGRES_H */
