/* SPDX-License-Identifier: Apache-2.0 */
/*
 * postgres.h - what the files of the PostgreSQL store share.
 *
 *    config.c   the URL: our own parameters, libpq's, and what we insist on
 *    link.c     one connection, and one question at a time, with a deadline
 *    inspect.c  what a server and its schema must be like
 *    connect.c  a connection to a host that passes the inspection
 *    schema.c   schema.sql, made or printed
 *    batch.c    operations as arrays, rows as records
 *    scan.c     rows of a scan, a page at a time
 *    head.c     counts, the head, records of a copy
 *    report.c   verify and dump
 *
 * What an operation means is decided by once__transition() here, from the
 * record as the server saw it; which operations change a record, and into what,
 * is said once more in schema.sql, and both must agree.
 */
#ifndef ONCE_STORE_POSTGRES_H
#define ONCE_STORE_POSTGRES_H

#include <libpq-fe.h>
#include <once/store.h>

enum {
    ONCE__PG_SCHEMA = 2, /* version of schema.sql that is understood */
    ONCE__PG_PARTITIONS_MAX = 256,
    ONCE__PG_HOSTS_MAX = 16,
    ONCE__PG_WORDS_MAX = 64, /* parameters of a connection */
    ONCE__PG_LABEL = 96
};

/* ---- config.c: the URL ------------------------------------------------- */

struct once__pg_host {
    char *host, *hostaddr, *port; /* NULL: libpq's default */
    int local;                    /* a socket or loopback: nobody between */
};

struct once__pg_config {
    char schema[64];
    uint64_t statement_ms, connect_ms, lock_ms, partitions;
    int async;
    struct once__pg_host hosts[ONCE__PG_HOSTS_MAX];
    size_t host_count;
    int asks_service; /* a service file says where it is */
    int asks_sslmode; /* whoever set up the process has said which */
    PQconninfoOption *words;
};

/* `rest` is what stands after the scheme. ONCE_EURL or ONCE_ENOMEM; to be
 * cleared in any case. */
ONCE_CHECK int once__pg_config_read(struct once__pg_config *c, const char *rest,
                                    once_error *err);
void once__pg_config_clear(struct once__pg_config *c);

/* What libpq needs to reach host number `i`; ends with NULL. */
void once__pg_config_words(const struct once__pg_config *c, size_t i,
                           const char *keys[ONCE__PG_WORDS_MAX],
                           const char *values[ONCE__PG_WORDS_MAX]);

/* "host:port" of it, for texts. */
void once__pg_config_label(const struct once__pg_config *c, size_t i,
                           char out[ONCE__PG_LABEL]);

/* A statement of ours with the schema's name in place of "@". */
void once__pg_text(const struct once__pg_config *c, const char *text, char *out,
                   size_t size);

/* ---- link.c: one connection -------------------------------------------- */

struct once__pg_link {
    const struct once__pg_config *config;
    PGconn *conn; /* NULL: not connected */
    size_t host;  /* which one is, or was */
    char label[ONCE__PG_LABEL];
    char state[6];      /* SQLSTATE of the last refusal, or "" */
    int warned;         /* a WARNING came with the last answer */
    uint32_t failures;  /* in a row */
    uint64_t next_ms;   /* not to be tried again before */
    const char *caveat; /* what this server does not promise, or NULL */
};

/* How a question ended. */
enum once__pg_end {
    ONCE__PG_DONE,
    ONCE__PG_REFUSED, /* the server took it back: nothing was changed */
    ONCE__PG_LOST     /* nobody knows; the connection is closed */
};

/* A question: a statement and its parameters. */
struct once__pg_ask {
    const char *sql;
    int count;
    const Oid *types;
    const char *const *values;
    const int *lengths;
    const int *formats;
    int plain; /* several statements, no parameters, answers as text */
};

/* CLOCK_MONOTONIC. */
uint64_t once__pg_now_ms(void);
void once__pg_sleep_ms(uint64_t ms);

/* Connects to host number l->host. ONCE_OK, ONCE_EOPEN, ONCE_EAWAY. */
ONCE_CHECK int once__pg_connect_host(struct once__pg_link *l, uint64_t until_ms,
                                     once_error *err);
/* 1: connected, as far as can be seen without asking. */
int once__pg_is_up(const struct once__pg_link *l);
void once__pg_disconnect(struct once__pg_link *l);

/* `*out` belongs to the caller, also NULL, unless DONE. */
ONCE_CHECK enum once__pg_end once__pg_ask(struct once__pg_link *l,
                                          const struct once__pg_ask *ask,
                                          uint64_t until_ms, PGresult **out);

/* Says in our own words what was refused or lost: never a server's text,
 * which may quote values. Returns `code`. */
int once__pg_fail(const struct once__pg_link *l, int code, once_error *err);

/* 1: this SQLSTATE, or "", does not say that it will refuse us for ever. */
int once__pg_passing(const char *state);

/* 1: SQLSTATE of the last refusal begins so. */
int once__pg_state(const struct once__pg_link *l, const char *begin);

/* ---- inspect.c --------------------------------------------------------- */

/* A question in plain text. ONCE_OK, ONCE_EVERSION, ONCE_EAWAY, ONCE_EOPEN. */
ONCE_CHECK int once__pg_ask_plain(struct once__pg_link *l, const char *sql,
                                  uint64_t until_ms, once_error *err,
                                  PGresult **out);

/* Is the server, is the schema what we need? Sets the caveat. */
ONCE_CHECK int once__pg_inspect(struct once__pg_link *l, int bare,
                                uint64_t until_ms, once_error *err);

/* ---- connect.c --------------------------------------------------------- */

/*
 * Connects, if need be, to a server that may be written to and has the schema
 * (`bare`: whether it has or not). ONCE_OK, ONCE_EOPEN, or ONCE_EVERSION.
 */
ONCE_CHECK int once__pg_connect(struct once__pg_link *l, int bare,
                                uint64_t until_ms, once_error *err);

/* ---- schema.c ---------------------------------------------------------- */

/* schema.sql for this configuration, on the heap. */
ONCE_CHECK char *once__pg_schema(const struct once__pg_config *c);

int once__pg_init(const char *rest, const once_store_options *options,
                  once_error *err);
int once__pg_print_schema(const char *rest, once_line *line, void *user,
                          once_error *err);

/* ---- batch.c ----------------------------------------------------------- */

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

#endif /* ONCE_STORE_POSTGRES_H */
