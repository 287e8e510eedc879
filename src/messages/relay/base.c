/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.c - base.h over libpq, as the store of that name connects, and SQLite.
 */
#include "messages/relay/base.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/steady.h"
#include "messages/tables/backend.h"
#include "messages/tables/stmt.h"
#include "base/named.h"

#ifdef ONCE_WITH_POSTGRES
#include "base/postgres/postgres.h"
#endif

enum { CONNECT_MS = 10000, BUSY_MS = 10000, TCP_MS = 20000 };

struct once__base {
    once_tx tx;
    int use;
    char *path;             /* SQLite's; NULL: it is PostgreSQL */
    atomic_ullong asked_ms; /* since when an answer is waited for; 0: none is */
    pthread_mutex_t lock;
    int spare; /* by `lock`: the connection's socket once more, or -1 */
#ifdef ONCE_WITH_POSTGRES
    struct once__pg_config config;
    struct once__pg_link link;
#endif
};

/* ---- The URL ------------------------------------------------------------ */

static const char *after_scheme(const char *url, const char *scheme)
{
    size_t n = strlen(scheme);

    return strncmp(url, scheme, n) == 0 ? url + n : NULL;
}

static int read_url(const char *url, struct once__base *b, once_error *err)
{
    const char *rest = after_scheme(url, "sqlite:");

    if (rest != NULL && rest[0] != '\0') {
        b->path = strdup(rest);
        return b->path != NULL ? ONCE_OK
                               : once__fail(err, ONCE_ENOMEM, "out of memory");
    }
#ifdef ONCE_WITH_POSTGRES
    rest = after_scheme(url, "postgres:");
    if (rest == NULL)
        rest = after_scheme(url, "postgresql:");
    if (rest != NULL) {
        int rc = once__pg_config_read(&b->config, rest, err);

        b->link.config = &b->config;
        b->config.async = 1; /* once_message_check() looks for itself */
        b->tx.schema = b->config.schema;
        return rc;
    }
#endif
    return once__fail(err, ONCE_EURL,
                      "the URL of the database is not postgres://... or "
                      "sqlite:FILE");
}

int once__base_open(const char *url, int use, struct once__base **out,
                    once_error *err)
{
    struct once__base *b = calloc(1, sizeof(*b));
    struct once__named named;
    int rc;

    *out = NULL;
    if (b == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    b->tx = (once_tx)ONCE_TX_INIT;
    b->use = use;
    b->spare = -1;
    (void)pthread_mutex_init(&b->lock, NULL);
    rc = once__named_url(url, &named, &url, err);
    if (rc == ONCE_OK)
        rc = read_url(url, b, err);
    if (rc != ONCE_OK) {
        once__base_close(b);
        return rc;
    }
    *out = b;
    return ONCE_OK;
}

void once__base_close(struct once__base *b)
{
    if (b == NULL)
        return;
    once__base_drop(b);
#ifdef ONCE_WITH_POSTGRES
    once__pg_config_clear(&b->config);
#endif
    (void)pthread_mutex_destroy(&b->lock);
    free(b->path);
    free(b);
}

/* ---- Questions without an answer ----------------------------------------- */

const once_tx *once__base_ask(struct once__base *b)
{
    atomic_store(&b->asked_ms, once__steady_ms());
    return &b->tx;
}

int once__base_answered(struct once__base *b, int rc)
{
    atomic_store(&b->asked_ms, 0);
    return rc;
}

/* libpq may close its descriptor at any time, and the number may then be that of
 * another file. So this thread has one of its own for the same socket. */
static void keep_spare(struct once__base *b, int fd)
{
    (void)pthread_mutex_lock(&b->lock);
    if (b->spare >= 0)
        (void)close(b->spare);
    b->spare = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    (void)pthread_mutex_unlock(&b->lock);
}

void once__base_watch(struct once__base *b, uint32_t ms)
{
    uint64_t asked = atomic_load(&b->asked_ms);

    if (asked == 0 || once__steady_ms() - asked <= ms)
        return;
    (void)pthread_mutex_lock(&b->lock);
    if (b->spare >= 0)
        (void)shutdown(b->spare, SHUT_RDWR);
    (void)pthread_mutex_unlock(&b->lock);
}

/* ---- Connections -------------------------------------------------------- */

/* SQLite's own pauses grow to 100 ms: with a few workers the file is free most
 * of the time and all of them sleep. Counts its pauses, as SQLite does. */
static int wait_for_lock(void *unused, int pauses)
{
    const struct timespec ms = {0, 1000000};

    (void)unused;
    if (pauses >= BUSY_MS)
        return 0;
    (void)nanosleep(&ms, NULL);
    return 1;
}

static int connect_sqlite(struct once__base *b, once_error *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    int rc;

    if (b->use == ONCE__BASE_CREATE)
        flags |= SQLITE_OPEN_CREATE;
    rc = sqlite3_open_v2(b->path, &b->tx.sqlite, flags, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_handler(b->tx.sqlite, wait_for_lock, NULL);
    if (rc == SQLITE_OK)
        return ONCE_OK;
    return once__fail(err, rc == SQLITE_NOMEM ? ONCE_ENOMEM : ONCE_EOPEN,
                      "the database's file: %s", sqlite3_errstr(rc));
}

#ifdef ONCE_WITH_POSTGRES
/* A network that is cut is noticed after TCP_MS, instead of after hours. */
static void bound_tcp(int fd)
{
    int on = 1, idle_s = TCP_MS / 2000, ms = TCP_MS;

    if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) != 0)
        return; /* not a TCP connection */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

static int connect_postgres(struct once__base *b, once_error *err)
{
    int rc;

    if (once__steady_ms() < b->link.next_ms)
        once__sleep_ms(b->link.next_ms - once__steady_ms());
    rc = once__pg_connect(&b->link, 1, once__steady_ms() + CONNECT_MS, err);
    if (rc != ONCE_OK)
        return rc;
    bound_tcp(PQsocket(b->link.conn));
    keep_spare(b, PQsocket(b->link.conn));
    b->tx.postgres = b->link.conn;
    return ONCE_OK;
}

/* Under another level a first delivery would run, and no parked message. */
static int check_isolation(PGconn *conn, once_error *err)
{
    PGresult *r = PQexec(conn, "SHOW default_transaction_isolation");
    int rc = ONCE_OK;

    if (PQresultStatus(r) != PGRES_TUPLES_OK)
        rc = once__fail(err, ONCE_EAWAY, "the connection was lost");
    else if (strcmp(PQgetvalue(r, 0, 0), "read committed") != 0)
        rc = once__fail(err, ONCE_EOPEN,
                        "default_transaction_isolation of this role is not "
                        "read committed");
    PQclear(r);
    return rc;
}
#endif

static int check(struct once__base *b, once_error *err)
{
    int rc = once_message_check(once__base_ask(b), err);

#ifdef ONCE_WITH_POSTGRES
    if (rc == ONCE_OK && b->path == NULL)
        rc = check_isolation(b->tx.postgres, err);
#endif
    return once__base_answered(b, rc);
}

static int is_in_place(sqlite3 *lite)
{
    return lite != NULL && once__lite_in_place(lite);
}

static int is_up(const struct once__base *b)
{
#ifdef ONCE_WITH_POSTGRES
    if (b->path == NULL)
        return b->tx.postgres != NULL && once__pg_is_up(&b->link);
#endif
    return is_in_place(b->tx.sqlite);
}

int once__base_connect(struct once__base *b, once_error *err)
{
    int rc;

    if (is_up(b))
        return ONCE_OK;
    once__base_drop(b);
#ifdef ONCE_WITH_POSTGRES
    rc = b->path == NULL ? connect_postgres(b, err) : connect_sqlite(b, err);
#else
    rc = connect_sqlite(b, err);
#endif
    if (rc == ONCE_OK && b->use == ONCE__BASE_READY)
        rc = check(b, err);
    if (rc == ONCE_OK)
        return rc;
    once__base_drop(b);
    return rc == ONCE_EABORTED ? ONCE_EAWAY : rc;
}

void once__base_drop(struct once__base *b)
{
    (void)sqlite3_close(b->tx.sqlite);
    b->tx.sqlite = NULL;
    keep_spare(b, -1);
#ifdef ONCE_WITH_POSTGRES
    once__pg_disconnect(&b->link);
    b->tx.postgres = NULL;
#endif
}

const once_tx *once__base_tx(const struct once__base *b)
{
    return &b->tx;
}

const char *once__base_schema(const struct once__base *b)
{
    return b->tx.schema;
}

int once__base_is_sqlite(const struct once__base *b)
{
    return b->path != NULL;
}

/* ---- Transactions ------------------------------------------------------- */

static int begin_sqlite(struct once__base *b, once_error *err)
{
    int rc = sqlite3_exec(b->tx.sqlite, "BEGIN IMMEDIATE", NULL, NULL, NULL);

    return rc == SQLITE_OK ? ONCE_OK
                           : once__fail(err, ONCE_EABORTED, "BEGIN: %s",
                                        sqlite3_errstr(rc));
}

/*
 * SQLITE_BUSY leaves the transaction open, an I/O error may have written the
 * commit or not: what the file says after it is opened again is the truth.
 */
static int commit_sqlite(struct once__base *b, once_error *err)
{
    int rc;

    if (!is_in_place(b->tx.sqlite)) {
        once__base_drop(b);
        return once__fail(err, ONCE_EABORTED, "COMMIT: the file was replaced");
    }
    rc = sqlite3_exec(b->tx.sqlite, "COMMIT", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        return ONCE_OK;
    (void)once__fail(err, ONCE_EAWAY, "COMMIT: %s", sqlite3_errstr(rc));
    if (rc != SQLITE_BUSY && rc != SQLITE_FULL && rc != SQLITE_NOMEM &&
        rc != SQLITE_CONSTRAINT) {
        once__base_drop(b);
        return ONCE_EAWAY;
    }
    once__base_rollback(b);
    return once__fail(err, ONCE_EABORTED, "COMMIT: %s", sqlite3_errstr(rc));
}

#ifdef ONCE_WITH_POSTGRES
/* 1: the server answered with this tag. 0: with another. -1: it did not
 * answer, or refused. */
static int tag_is(struct once__base *b, const char *sql, const char *tag)
{
    PGresult *r = PQexec(once__base_ask(b)->postgres, sql);
    int is = PQresultStatus(r) == PGRES_COMMAND_OK
                 ? strcmp(PQcmdStatus(r), tag) == 0
                 : -1;

    PQclear(r);
    return once__base_answered(b, is);
}

static int begin_postgres(struct once__base *b, once_error *err)
{
    if (tag_is(b, "BEGIN", "BEGIN") == 1)
        return ONCE_OK;
    once__base_drop(b);
    return once__fail(err, ONCE_EABORTED, "BEGIN: the connection was lost");
}

/* A refusal (a constraint that was deferred, a serialization failure) leaves a
 * connection that is idle: then nothing was committed. */
static int commit_postgres(struct once__base *b, once_error *err)
{
    int is = tag_is(b, "COMMIT", "COMMIT");

    if (is == 1)
        return ONCE_OK;
    if (is == 0 || (PQstatus(b->link.conn) == CONNECTION_OK &&
                    PQtransactionStatus(b->link.conn) == PQTRANS_IDLE))
        return once__fail(err, ONCE_EABORTED, "COMMIT: it was rolled back");
    once__base_drop(b);
    return once__fail(err, ONCE_EAWAY,
                      "COMMIT: no answer; it is unknown whether it was done");
}
#endif

int once__base_begin(struct once__base *b, once_error *err)
{
#ifdef ONCE_WITH_POSTGRES
    if (b->path == NULL)
        return begin_postgres(b, err);
#endif
    return begin_sqlite(b, err);
}

int once__base_commit(struct once__base *b, once_error *err)
{
#ifdef ONCE_WITH_POSTGRES
    if (b->path == NULL)
        return commit_postgres(b, err);
#endif
    return commit_sqlite(b, err);
}

void once__base_rollback(struct once__base *b)
{
    int done = 1;

    if (!is_up(b))
        return;
    if (b->path != NULL)
        done = sqlite3_get_autocommit(b->tx.sqlite) ||
               sqlite3_exec(b->tx.sqlite, "ROLLBACK", NULL, NULL, NULL) ==
                   SQLITE_OK;
#ifdef ONCE_WITH_POSTGRES
    else if (PQtransactionStatus(b->link.conn) != PQTRANS_IDLE)
        done = tag_is(b, "ROLLBACK", "ROLLBACK") == 1;
#endif
    if (!done)
        once__base_drop(b);
}
