/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mysql.h - one connection to a MySQL or MariaDB server.
 *
 *    config.c   the URL, and what we insist on
 *    text.c     statements, in a buffer that grows
 *    link.c     one connection, and one packet of statements at a time, with a
 *               deadline
 *    inspect.c  what a server must be like, and what it does not promise
 *    connect.c  a connection to a host that passes the inspection
 */
#ifndef ONCE_BASE_MYSQL_MYSQL_H
#define ONCE_BASE_MYSQL_MYSQL_H

#include <limits.h>
#include <mysql.h>

#include <once/store.h>

#include "base/url.h"

enum {
    ONCE__MY_HOSTS_MAX = 16,
    ONCE__MY_LABEL = 96,
    ONCE__MY_DATABASE = 65,
    ONCE__MY_ROWS_MAX = 4, /* sets of rows in one answer */
    ONCE__MY_GUARD = 192
};

/* ---- config.c: the URL ------------------------------------------------- */

struct once__my_host {
    char name[256];
    char port[ONCE__URL_PORT];
    int local; /* a socket or loopback: no network between */
};

struct once__my_config {
    char user[128], password[512], database[ONCE__MY_DATABASE];
    char socket[108]; /* a path, or "" */
    char ca[PATH_MAX], cert[PATH_MAX], key[PATH_MAX];
    enum once__my_tls {
        ONCE__MY_TLS_REMOTE, /* verified, unless the host is local */
        ONCE__MY_TLS_ALWAYS,
        ONCE__MY_TLS_NEVER
    } tls;
    uint64_t statement_ms, connect_ms, lock_ms;
    struct once__my_host hosts[ONCE__MY_HOSTS_MAX];
    size_t host_count;
};

/* `rest` is what stands after the scheme. ONCE_EURL, ONCE_EOPEN (a file with a
 * password); to be cleared in any case. */
ONCE_CHECK int once__my_config_read(struct once__my_config *c, const char *rest,
                                    once_error *err);
void once__my_config_clear(struct once__my_config *c);

/* ---- text.c: statements ------------------------------------------------ */

struct once__my_text {
    char *at;
    size_t size, room;
    int failed; /* 1: out of memory */
};

void once__my_text_clear(struct once__my_text *t);
/* Empties it, and gives much memory back. */
void once__my_text_reset(struct once__my_text *t);
void once__my_put(struct once__my_text *t, const char *words);
void once__my_put_part(struct once__my_text *t, const char *words, size_t size);
void once__my_put_number(struct once__my_text *t, uint64_t number);
/* Bytes as a value: x'...'. */
void once__my_put_hex(struct once__my_text *t, const void *data, size_t size);

/* ---- link.c: one connection -------------------------------------------- */

struct once__my_link {
    const struct once__my_config *config;
    MYSQL *conn; /* NULL: not connected */
    size_t host; /* which one is, or was */
    char label[ONCE__MY_LABEL];
    unsigned number;    /* of the server's last refusal; 0: there was none */
    uint64_t insert_id; /* the first one that the last packet has drawn, or 0 */
    uint32_t failures;  /* in a row */
    uint64_t next_ms;   /* not to be tried again before */
    /* Of the inspection: */
    const char *caveat;         /* what this server does not promise, or NULL */
    int judged;                 /* 1: some server was, in the beginning, */
    const char *promised;       /* ... with this caveat */
    char guard[ONCE__MY_GUARD]; /* settings that must stay as they were */
    size_t packet_size;         /* what the server takes in one packet */
    int touch; /* what can be read may not be durable yet: wait for it */
};

/* How a packet ended. */
enum once__my_end {
    ONCE__MY_DONE,
    ONCE__MY_REFUSED, /* the server said no, and was told to roll back */
    ONCE__MY_LOST     /* unknown; the connection is closed */
};

/* The sets of rows of an answer, in the order of their statements. */
struct once__my_answer {
    MYSQL_RES *rows[ONCE__MY_ROWS_MAX];
    size_t count;
};

void once__my_answer_clear(struct once__my_answer *a);

/* Connects to host number l->host; `bare`: to no database. ONCE_OK, ONCE_EOPEN,
 * ONCE_EAWAY. */
ONCE_CHECK int once__my_connect_host(struct once__my_link *l, int bare,
                                     uint64_t until_ms, once_error *err);
/* 1: connected, as far as can be seen without asking. */
int once__my_is_up(const struct once__my_link *l);
void once__my_disconnect(struct once__my_link *l);

/* Sends the statements in one packet and reads all answers. `*out` belongs to
 * the caller, and is empty unless DONE. After REFUSED nothing is left of the
 * transaction, unless it was COMMIT that was refused: that is unknown. */
ONCE_CHECK enum once__my_end once__my_ask(struct once__my_link *l,
                                          const struct once__my_text *t,
                                          uint64_t until_ms,
                                          struct once__my_answer *out);

/* The same for one text without bytes. ONCE_OK, ONCE_EAWAY, ONCE_EOPEN. */
ONCE_CHECK int once__my_ask_plain(struct once__my_link *l, const char *sql,
                                  uint64_t until_ms, once_error *err,
                                  struct once__my_answer *out);

/* Says in our own words what was refused or lost: never a server's text, which
 * may quote values. Returns `code`. */
int once__my_fail(const struct once__my_link *l, int code, once_error *err);

/* ---- inspect.c --------------------------------------------------------- */

/* Prepares the session. Is the server what we need? Sets what the inspection
 * finds. ONCE_OK, ONCE_EOPEN, ONCE_EAWAY. */
ONCE_CHECK int once__my_inspect(struct once__my_link *l, uint64_t until_ms,
                                once_error *err);
/* Looks again, and leaves a server that no longer promises what it did when the
 * store was opened. */
ONCE_CHECK int once__my_look(struct once__my_link *l, uint64_t until_ms,
                             once_error *err);

/* An expression whose value is l->guard as long as nothing has changed: another
 * server, or settings. Its last digit is 1 in a session with the settings that
 * the inspection has made. */
extern const char once__my_guard[];
/* ONCE_OK, or ONCE_ESTORE: it has, and the connection is closed. */
ONCE_CHECK int once__my_guarded(struct once__my_link *l, const char *value,
                                once_error *err);

/* ---- connect.c --------------------------------------------------------- */

/* Connects, if need be, to a server that may be written to. ONCE_OK,
 * ONCE_EOPEN, ONCE_EAWAY. */
ONCE_CHECK int once__my_connect(struct once__my_link *l, int bare,
                                uint64_t until_ms, once_error *err);

#endif /* ONCE_BASE_MYSQL_MYSQL_H */
