/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h - lists of rows that have memory of their own, made from rows that
 * point into a result of a database.
 */
#ifndef ONCE_MESSAGES_TABLES_ROWS_H
#define ONCE_MESSAGES_TABLES_ROWS_H

#include "messages/tables/either.h"

/* The columns that make a row of each list; body, reply of an outgoing row, and the
 * time come last. */
#define ONCE__OUTGOING                                                         \
    "seq,attempts,doubt,refused,doubt_ms,phase,status,lease_ms,at_ms,due_ms,"  \
    "saga,error,route,id,key,type,headers,kept,"
#define ONCE__PARKED                                                           \
    "no,state,due_ms,at_ms,error,consumer,id,key,type,headers,attempts,"
/* SQLite, MySQL: which row ?1 is still its claimer's, by the fence ?2. With
 * lease_ms 0 the claim was settled before. */
#define ONCE__UNSETTLED                                                        \
    " WHERE seq=?1 AND attempts=?2 AND phase IN (0,4) AND lease_ms>0"
/* Of functions of pg.sql that return rows. */
#define ONCE__PG_NOW "(extract(epoch FROM clock_timestamp())*1000)::int8"
#define ONCE__PG_OUTGOING                                                      \
    "SELECT " ONCE__OUTGOING "body,reply," ONCE__PG_NOW " FROM @."
enum { ONCE__PG_LEASE = 21 }; /* a claim's column behind the time */
#define ONCE__PG_PARKED "SELECT " ONCE__PARKED "body," ONCE__PG_NOW " FROM @."

/* Each adds a copy of the row that is under way, and of what it points to. */
void once__outgoing_read(struct once__either *q,
                         struct once__outgoing_list *list);
void once__parked_read(struct once__either *q, struct once__parked_list *list);

/* 1: the message is as the operator saw it, and the action is one for its state. */
int once__parked_fits(const struct once__row_decision *d,
                      const struct once__parked *k);

/* Room in `*rows` for one more than `*n`, which is counted, or NULL: no memory,
 * and `q` knows. */
void *once__rows_add(struct once__either *q, void **rows, size_t *n,
                     size_t size);

#endif /* ONCE_MESSAGES_TABLES_ROWS_H */
