/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stmt.h - statements on a handle of SQLite. The first error of a statement
 * stays with it and skips what follows, so only its end needs to be looked at.
 */
#ifndef ONCE_MESSAGES_TABLES_STMT_H
#define ONCE_MESSAGES_TABLES_STMT_H

#include <sqlite3.h>

#include "messages/tables/value.h"

/* A statement under way. */
struct once__stmt {
    const once_tx *tx;
    sqlite3_stmt *stmt;
    int n;     /* parameters bound                             */
    int rc;    /* SQLITE_OK, or error                          */
    int *busy; /* of the caller's prepared ones; NULL: its own */
};

/* `sql` lives for ever: its address is what a prepared one is found by. */
struct once__stmt once__stmt(const once_tx *tx, const char *sql);
/* Binds the parameters ONCE__TEXT(...), ...; what they point to must live until
 * the end. */
#define once__stmt_with(q, ...) once__stmt_values(q, ONCE__VALUES(__VA_ARGS__))
void once__stmt_values(struct once__stmt *q, const struct once__value *v);
/* Begins it again: the next parameter is the first. */
void once__stmt_again(struct once__stmt *q);
/* 1: there is a row. 0: none, or an error. */
int once__stmt_next(struct once__stmt *q);
/* Ends the statement: SQLITE_OK, or what went wrong. */
int once__stmt_end(struct once__stmt *q);
/* Runs a whole statement, with such parameters; `*changed`, or NULL: how many
 * rows it wrote. */
#define once__lite_run(tx, changed, sql, ...)                                  \
    once__lite_run_values(tx, changed, sql, ONCE__VALUES(__VA_ARGS__))
int once__lite_run_values(const once_tx *tx, int *changed, const char *sql,
                          const struct once__value *v); /* or NULL: none */

/*
 * Runs `work`, which answers with a code of SQLite, between BEGIN IMMEDIATE and
 * COMMIT. What it answers but SQLITE_OK is rolled back. A COMMIT that fails may have
 * been done or not.
 */
int once__lite_transaction(const once_tx *tx, const char *where,
                           int (*work)(const once_tx *tx, void *user),
                           void *user, once_error *err);

/*
 * 0 where the file was replaced, by its backup say. What is committed to the old
 * one is lost, and what others write is not there. Not even a read may be done
 * then: SQLite takes the journal of a transaction in the new file, found by its
 * name, for one that the old file needs, rolls it back there and removes it.
 */
static inline int once__lite_in_place(sqlite3 *lite)
{
    int moved = 0;

    return sqlite3_file_control(lite, "main", SQLITE_FCNTL_HAS_MOVED, &moved) !=
               SQLITE_OK ||
           !moved;
}

/* The first number of the first row; `*out` stays as it is if there is none.
 * SQLITE_OK, or an error, as the next one. */
int once__lite_number(const once_tx *tx, const char *sql, int64_t *out);
/* 1 if what is committed on this handle survives a crash. */
int once__lite_durable(const once_tx *tx, int *durable);
/*
 * The same, in a write transaction that is open, where it is asked once and not at
 * each call: neither `synchronous` nor `journal_mode` can be changed in a
 * transaction that has written. A call that was told so here marks the
 * transaction by a row that it writes. While that row is there and no commit has
 * changed the database since, the transaction is still the same one: COMMIT would
 * have changed the database, ROLLBACK has taken the row away, and one of that name
 * that another handle writes comes with a commit. Without once_prepared there is no
 * mark, and it is asked each time.
 */
int once__lite_durable_here(const once_tx *tx, int *durable);
/* The row of the inbox, or the last one of the outbox, that was written by a call
 * which once__lite_durable_here() has answered. */
void once__lite_mark_inbox(const once_tx *tx, const char *consumer,
                           const char *id);
void once__lite_mark_outbox(const once_tx *tx);
/* 1: what the caller has prepared, if anything, is of this handle. */
int once__prepared_fits(const once_tx *tx);
/* The error for a handle that is not durable. */
int once__lite_not_durable(const char *where, once_error *err);
/* ONCE_OK, or ONCE_ETX: a transaction is open. */
int once__lite_idle(const once_tx *tx, once_error *err);
/* The error of once/message.h for one of SQLite. */
int once__lite_failed(int rc, const char *where, once_error *err);
uint64_t once__lite_now(void); /* in ms since 1970 */
/* A UUID of version 7 (RFC 9562): 48 bits of time, 74 random ones. 0: there are no
 * random bytes. */
int once__lite_draw_id(uint64_t now_ms, char out[ONCE_ID_SIZE]);

#endif /* ONCE_MESSAGES_TABLES_STMT_H */
