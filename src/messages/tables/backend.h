/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - what the files of src/messages/tables share: one table of
 * functions for each database. Arguments have been checked before a backend
 * sees them.
 *
 *    message.c, call.c    what a program calls
 *    outbox.c             what the relay, the consumer and operators call
 *        tx.c             which backend
 *    postgres.c           functions in the database (pg.sql)
 *    outbox_postgres.c    the same
 *        query.c          one of them, and what SQLSTATE means
 *    mysql.c              procedures in the database (my.sql)
 *    outbox_mysql.c, purge_mysql.c   statements
 *        query_mysql.c    one of them, and what its errors mean
 *        script_mysql.c   the statements of my.sql, one by one
 *    sqlite.c             statements (lite.sql)
 *    outbox_sqlite.c      the same
 *        stmt.c           one of them, and what its errors mean
 *        either.c         a statement of any database
 *        value.h          parameters of a statement
 *        rows.c           lists of rows
 *        shape_*.c        whether what is there is what the texts make
 *        schema.c         the texts, filled in
 *    check.c, words.c     limits, and what an answer means
 *
 * A file calls only those below it.
 */
#ifndef ONCE_MESSAGES_TABLES_BACKEND_H
#define ONCE_MESSAGES_TABLES_BACKEND_H

#include <once/message.h>

#include "messages/tables/outbox.h"

#define ONCE__KEEP_MS UINT64_C(604800000) /* seven days */
/* How much later than keep_ms the floor rises: what clocks may differ by. */
#define ONCE__SLACK_MS UINT64_C(3600000)

/* One claim of (consumer, id). */
struct once__claim {
    const char *consumer, *id;
    const uint8_t *fingerprint; /* ONCE_FINGERPRINT_SIZE bytes, or NULL */
    uint32_t attempt;
    int call; /* 1: of a call, which will be finished */
};

/* One message to be parked. */
struct once__park {
    struct once__claim claim;
    const once_message *m;
    int state;
    uint64_t wait_ms;
    const char *why;
};

/* What begin() found, and what finish() must find. */
struct once__begun {
    int kind;
    once_bytes result;
    void *memory;     /* of `result`, to be freed */
    uint64_t xact[2]; /* SQLite, MySQL: drawn by begin() */
};

/* What is decided about a row: if it has this phase or state, and this count. */
struct once__row_decision {
    int64_t no;
    int state;
    uint32_t count;
    int action;
    const char *why;
};

struct once__backend {
    /* A transaction is open and fit for writing, or ONCE_ETX. */
    int (*open)(const once_tx *tx, once_error *err);
    /* No transaction is open, or ONCE_ETX. */
    int (*idle)(const once_tx *tx, once_error *err);
    int (*init)(const once_tx *tx, uint64_t keep_ms, once_error *err);
    int (*check)(const once_tx *tx, once_error *err);
    int (*purge)(const once_tx *tx, uint64_t *removed, once_error *err);
    int (*claim)(const once_tx *tx, const struct once__claim *c,
                 once_error *err);
    int (*park)(const once_tx *tx, const struct once__park *p, once_error *err);
    int (*emit)(const once_tx *tx, const once_message *m, char id[ONCE_ID_SIZE],
                once_error *err);
    int (*enter)(const once_tx *tx, const char *gid, const char *branch, int op,
                 once_error *err);
    /* ONCE_OWNER, ONCE_REPLAY, ONCE_REPEATED, and what claim() answers. */
    int (*begin)(const once_tx *tx, const struct once__claim *c,
                 struct once__begun *out, once_error *err);
    int (*finish)(const once_tx *tx, const struct once__claim *c,
                  const struct once__begun *b, int kind, once_bytes result,
                  once_error *err);
};

extern const struct once__backend once__message_postgres; /* postgres.c */
extern const struct once__backend once__message_sqlite;   /* sqlite.c   */
extern const struct once__backend once__message_mysql;    /* mysql.c    */

/* Those functions of outbox.h that are more than one statement somewhere, each
 * a transaction of its own. A list is empty when it is handed over. */
struct once__outbox_backend {
    int (*idle)(const once_tx *tx, once_error *err); /* as above */
    int (*claim)(const once_tx *tx, const struct once__outbox_ask *ask,
                 struct once__outgoing_list *out, once_error *err);
    int (*settle)(const once_tx *tx, struct once__settlement *rows, size_t n,
                  once_error *err);
    int (*sleeps)(const once_tx *tx, const char *route, int sleeps,
                  once_error *err);
    int (*wait)(const once_tx *tx, const char *route, int stop_fd,
                uint32_t wait_ms, once_error *err);
    int (*decide)(const once_tx *tx, const struct once__row_decision *d,
                  once_error *err);
    int (*purge)(const once_tx *tx, uint64_t age_ms, uint64_t *removed,
                 once_error *err);
    int (*take)(const once_tx *tx, const char *consumer, uint32_t lease_ms,
                int keyed, struct once__parked_list *out, once_error *err);
    /* `d->state`: what it becomes; due again after `wait_ms`. */
    int (*put_back)(const once_tx *tx, const struct once__row_decision *d,
                    uint64_t wait_ms, once_error *err);
    int (*parked_decide)(const once_tx *tx, const struct once__row_decision *d,
                         once_error *err);
};

extern const struct once__outbox_backend
    once__outbox_postgres; /* outbox_postgres.c */
extern const struct once__outbox_backend
    once__outbox_sqlite; /* outbox_sqlite.c   */
extern const struct once__outbox_backend
    once__outbox_mysql; /* outbox_mysql.c    */

/* tx.c: ONCE_OK, ONCE_EINVAL or ONCE_ENOSYS. */
ONCE_CHECK int once__tx_backend(const once_tx *tx,
                                const struct once__backend **out,
                                once_error *err);
ONCE_CHECK int once__tx_outbox(const once_tx *tx,
                               const struct once__outbox_backend **out,
                               once_error *err);

/* outbox.c: what may be written of a row's end. */
ONCE_CHECK int once__check_settlement(const struct once__settlement *s,
                                      once_error *err);

/* check.c: each names the field and its limit. */
/* The field must be 1 to ONCE_ID_MAX characters of visible ASCII. */
ONCE_CHECK int once__check_name(const char *field, const char *text,
                                once_error *err);
ONCE_CHECK int once__check_schema(const char *schema, once_error *err);
ONCE_CHECK int once__check_keep(uint64_t keep_ms, once_error *err);
/* Of a parked message, and of its pause. */
ONCE_CHECK int once__check_state(int state, uint64_t wait_ms, once_error *err);
/* Key, type, headers and body. */
ONCE_CHECK int once__check_content(const once_message *m, once_error *err);
/* The time in a UUID of version 7, in ms since 1970; 0: any other id. */
uint64_t once__id_ms(const char *id);
/* SHA-256; ONCE_OK or ONCE_ENOMEM. */
ONCE_CHECK int once__fingerprint_bytes(once_bytes body,
                                       uint8_t out[ONCE_FINGERPRINT_SIZE],
                                       once_error *err);

/* words.c: what a function or a procedure answers, or ONCE_EVERSION. */
ONCE_CHECK int once__answer_of(once_bytes word, const char *where,
                               once_error *err);

const char *once__text_of(const char *text); /* "" for NULL */

/* Cut, and with `?` for what is not ASCII, so that any database takes it. */
void once__copy_visible(char out[ONCE_ID_SIZE], const char *text);

#endif /* ONCE_MESSAGES_TABLES_BACKEND_H */
