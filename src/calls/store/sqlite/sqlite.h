/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sqlite.h - what the files of the SQLite store share.
 *
 * A record lies in up to three rows, so that each step writes little:
 *
 *    claim    one small row for each name: who was granted, when, with which
 *             policy. Written by a grant and by the rare steps.
 *    live     one tiny row for each claimed or dispatched record: the lease.
 *             Dispatch, renew and the reaper's scan touch nothing else.
 *    result   one row for each completed record, in the order of the fences,
 *             so that completing appends at the end of the table.
 *
 *    claim.phase      live     result   the record is
 *    PHASE_ABSENT     -        -        absent, row kept
 *    PHASE_UNKNOWN    -        -        indeterminate
 *    PHASE_GRANTED    yes      -        what live.state says
 *    PHASE_GRANTED    -        yes      completed
 *
 * The end of a completed record stands in `result`, that of any other in
 * `claim`. All other combinations are damage. Each row has a sum over its columns and
 * the name, so that a damaged or exchanged row is an error, never a miss (I9).
 */
#ifndef ONCE_CALLS_STORE_SQLITE_SQLITE_H
#define ONCE_CALLS_STORE_SQLITE_SQLITE_H

#include <once/store.h>
#include <sqlite3.h>

enum {
    ONCE__SQLITE_APPLICATION = 0x4f6e6365, /* "Once" */
    ONCE__SQLITE_SCHEMA = 3
};

enum once__sqlite_query {
    ONCE__SQLITE_BEGIN,
    ONCE__SQLITE_BEGIN_WRITE,
    ONCE__SQLITE_COMMIT,
    ONCE__SQLITE_ROLLBACK,
    ONCE__SQLITE_LOAD,
    ONCE__SQLITE_LOAD_HEAD, /* the same without the result's bytes */
    ONCE__SQLITE_CLAIM_INSERT,
    ONCE__SQLITE_CLAIM_UPDATE,
    ONCE__SQLITE_CLAIM_DELETE,
    ONCE__SQLITE_LIVE_PUT,
    ONCE__SQLITE_LIVE_DELETE,
    ONCE__SQLITE_RESULT_INSERT,
    ONCE__SQLITE_RESULT_DELETE,
    ONCE__SQLITE_COUNTER,
    ONCE__SQLITE_COUNTER_PUT,
    ONCE__SQLITE_COUNT,
    ONCE__SQLITE_META,
    ONCE__SQLITE_META_PUT,
    ONCE__SQLITE_SCAN_ALL,
    ONCE__SQLITE_SCAN_LEASE,
    ONCE__SQLITE_SCAN_KEEP,
    ONCE__SQLITE_SCAN_WAITING,
    ONCE__SQLITE_SCAN_LIVE,
    ONCE__SQLITE_QUERIES
};

/* How long one call may wait for other processes. */
struct once__sqlite_wait {
    uint64_t until_us;
};

void once__sqlite_wait_start(struct once__sqlite_wait *w, uint32_t ms);
int once__sqlite_wait_handler(void *wait, int count);

/* ---- connect.c: one connection, its schema and its statements ---------- */

struct once__sqlite_link {
    sqlite3 *db; /* NULL: not connected */
    sqlite3_stmt *query[ONCE__SQLITE_QUERIES];
    struct once__sqlite_wait wait;
    int read_only; /* its file system is mounted so: only to be looked at */
};

/* Connects to the file at `path`; `create` makes it a store if it is empty.
 * Errors as for once_store_ops.open. */
ONCE_CHECK int once__sqlite_connect(struct once__sqlite_link *link,
                                    const char *path, uint32_t busy_ms,
                                    int create, once_error *err);
void once__sqlite_disconnect(struct once__sqlite_link *link);

/* Leaves the log's file where it is when `db` is the last to close. */
ONCE_CHECK int once__sqlite_keep_log(sqlite3 *db);

/* It says that the file is not as it was written. */
int once__sqlite_is_damage(int rc);

/* Fills `err` with what SQLite and the system say; no column is quoted. */
int once__sqlite_fail(once_error *err, int code, const char *path,
                      const char *what, sqlite3 *db, int rc);

/* ---- row.c: records as rows -------------------------------------------- */

enum { ONCE__SQLITE_SUMMED = 16 }; /* numbers of one sum, at the most */

/* Goes on with the checksum `sum` over `n` numbers. */
ONCE_CHECK uint32_t once__sqlite_sum(uint32_t sum, const uint64_t *values,
                                     size_t n);

/* Runs a statement without rows. Returns SQLITE_OK, or an extended code. */
ONCE_CHECK int once__sqlite_run(struct once__sqlite_link *link,
                                enum once__sqlite_query query);

/*
 * The record in the present row of a statement that selects once__sqlite rows.
 * Its bytes are borrowed from the statement. Returns 1, or 0 if it
 * fails its checksum; `name` is filled in either way.
 */
ONCE_CHECK int once__sqlite_row(sqlite3_stmt *q, uint8_t name[ONCE_NAME_SIZE],
                                once_record *r);

/* What such a row shows of itself when it fails its checksum: state 255, and
 * its place in the order of a scan. */
void once__sqlite_damaged(sqlite3_stmt *q, once_record *r);

/* Changes the rows of `name` from those of `from` to those of `to`. Returns
 * SQLITE_OK, or an extended code: the transaction must then be rolled back. */
ONCE_CHECK int once__sqlite_put(struct once__sqlite_link *link,
                                const uint8_t name[ONCE_NAME_SIZE],
                                const once_record *from, const once_record *to);

/* ---- meta.c: what is kept beside the records --------------------------- */

struct once__sqlite_counter {
    uint64_t fence;   /* the last one that was granted */
    uint64_t records; /* rows of `claim` */
};

/* All of these: SQLITE_OK, SQLITE_CORRUPT for what fails its checksum, ... */
ONCE_CHECK int once__sqlite_counter(struct once__sqlite_link *link,
                                    struct once__sqlite_counter *c);
ONCE_CHECK int once__sqlite_counter_put(struct once__sqlite_link *link,
                                        const struct once__sqlite_counter *c);

/* What is known of the time, but for now_ms; zeros if nothing ever was. */
ONCE_CHECK int once__sqlite_time(struct once__sqlite_link *link,
                                 once_store_time *t);
ONCE_CHECK int once__sqlite_time_put(struct once__sqlite_link *link,
                                     const once_store_time *t);

ONCE_CHECK int once__sqlite_head(struct once__sqlite_link *link,
                                 once_store_head *h);
ONCE_CHECK int once__sqlite_head_put(struct once__sqlite_link *link,
                                     const once_store_head *h);
/* The head of a file that is being made. */
ONCE_CHECK int once__sqlite_head_new(struct once__sqlite_link *link);

/* ---- checkpoint.c: a thread that moves the log into the file ----------- */

struct once__sqlite_checkpointer;
struct once__place;

/* `log` is where the write-ahead log is, and outlives the checkpointer. */
ONCE_CHECK int
once__sqlite_checkpointer_open(const char *path, const struct once__place *log,
                               once_error *err,
                               struct once__sqlite_checkpointer **out);
/* Accepts NULL. */
void once__sqlite_checkpointer_close(struct once__sqlite_checkpointer *k);
/* Lets the checkpointer know how long the log is after each commit on `db`. */
void once__sqlite_checkpointer_watch(struct once__sqlite_checkpointer *k,
                                     sqlite3 *db);
/* Waits while a long log is moved into the file, however that ends. For the
 * thread that commits on `db`, between its transactions. */
void once__sqlite_checkpointer_await(struct once__sqlite_checkpointer *k);
/* ONCE_OK, or what went wrong since the last call. */
ONCE_CHECK int
once__sqlite_checkpointer_trouble(struct once__sqlite_checkpointer *k,
                                  once_error *err);

#endif /* ONCE_CALLS_STORE_SQLITE_SQLITE_H */
