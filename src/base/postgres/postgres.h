/* SPDX-License-Identifier: Apache-2.0 */
/*
 * postgres.h - one connection to a PostgreSQL server, for the store and the
 * messages.
 *
 *    config.c   the URL: our own parameters, libpq's, and what we insist on
 *    link.c     one connection, and one question at a time, with a deadline
 *    inspect.c  what a server and its schema must be like
 *    connect.c  a connection to a host that passes the inspection
 */
#ifndef ONCE_BASE_POSTGRES_POSTGRES_H
#define ONCE_BASE_POSTGRES_POSTGRES_H

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
    int local;                    /* a socket or loopback: no network between */
};

struct once__pg_config {
    char schema[64];
    uint64_t statement_ms, connect_ms, lock_ms, partitions;
    int async;
    struct once__pg_host hosts[ONCE__PG_HOSTS_MAX];
    size_t host_count;
    int asks_service; /* a service file says where it is */
    int asks_sslmode; /* the environment of the process says which */
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
    ONCE__PG_LOST     /* unknown; the connection is closed */
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

#endif /* ONCE_BASE_POSTGRES_POSTGRES_H */
