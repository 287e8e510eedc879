/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - one connection, and one packet of statements at a time, with a
 * deadline.
 *
 *              connect                      send
 *    (down) ------------> (inspecting) --> (ready) -------> (asked)
 *      ^  ^    refused,        |            ^   ^               |
 *      |  |    too late        | not ours   |   | answers       |
 *      |  +--------------------+            |   +---------------+
 *      |                                    |                   | an error
 *      |                                    |  ROLLBACK         v
 *      |                                    +--------------- (refused)
 *      |    connection lost, deadline: unknown                  |
 *      +--------------------------------------------------------+
 *
 * After any error there is a ROLLBACK, at once. Some errors take back their
 * statement only and leave the transaction open, with its locks (1205; 1062,
 * which locks the gap besides); others have rolled back all (1213), and what the
 * client says next would commit by itself. What the client library believes
 * about an open transaction is wrong after such an error, so nobody asks it.
 *
 * The library blocks nowhere but while it looks up a host's name: its calls are
 * begun and continued by poll(). When the time is up, the socket is shut down
 * and the call driven to its end, which is an error then. It reconnects never by
 * itself, and reads no local file for a server.
 *
 * It refuses to show a server's texts, which may quote values. What the library
 * says of a certificate is shown.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <errmsg.h>
#include <mysqld_error.h>

#include "base/error.h"
#include "base/mysql/mysql.h"
#include "base/steady.h"

/* The library's calls run on a stack of their own. OpenSSL needs some of it. */
enum { STACK_BYTES = 512 * 1024 };

/* ---- Waiting ----------------------------------------------------------- */

/* How the call goes on: what has happened. Too late: the socket is dead. */
static int await(MYSQL *conn, int waits_for, uint64_t until_ms)
{
    struct pollfd fd = {mysql_get_socket(conn), 0, 0};
    uint64_t now;
    int n;

    if (waits_for & MYSQL_WAIT_READ)
        fd.events |= POLLIN;
    if (waits_for & MYSQL_WAIT_WRITE)
        fd.events |= POLLOUT;
    do {
        now = once__steady_ms();
        n = poll(&fd, 1, now >= until_ms ? 0 : (int)(until_ms - now));
    } while (n < 0 && errno == EINTR);
    if (n > 0)
        return waits_for & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE);
    (void)shutdown(fd.fd, SHUT_RDWR);
    return MYSQL_WAIT_TIMEOUT;
}

/* OpenSSL raises SIGPIPE where it writes to a socket that the other side has
 * closed, which a library must not. */
struct pipe_guard {
    sigset_t before;
    int was_pending;
};

static void hold_pipe(struct pipe_guard *g)
{
    sigset_t pipe, pending;

    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    (void)sigpending(&pending);
    g->was_pending = sigismember(&pending, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &pipe, &g->before);
}

static void let_pipe(const struct pipe_guard *g)
{
    static const struct timespec none = {0, 0};
    sigset_t pipe;

    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    while (!g->was_pending && sigtimedwait(&pipe, NULL, &none) < 0 &&
           errno == EINTR)
        ;
    (void)pthread_sigmask(SIG_SETMASK, &g->before, NULL);
}

/* ---- Texts ------------------------------------------------------------- */

/* What an error number of the server means to us. */
static const struct reason {
    unsigned number;
    enum { FOR_EVER, PASSING, LEAVE } kind; /* LEAVE: passing, elsewhere */
    const char *text;
} reasons[] = {
    {ER_ACCESS_DENIED_ERROR, FOR_EVER, "it does not let this account in"},
    {ER_DBACCESS_DENIED_ERROR, FOR_EVER,
     "the account has no right to this database"},
    {ER_BAD_DB_ERROR, FOR_EVER,
     "there is no such database: `once init` makes it"},
    {ER_NO_SUCH_TABLE, FOR_EVER,
     "the tables are not there: `once init` makes them"},
    {ER_BAD_FIELD_ERROR, FOR_EVER, "the tables are not ours"},
    {ER_TABLEACCESS_DENIED_ERROR, FOR_EVER,
     "the account has no right to a table"},
    {ER_COLUMNACCESS_DENIED_ERROR, FOR_EVER,
     "the account has no right to a column"},
    {ER_SPECIFIC_ACCESS_DENIED_ERROR, FOR_EVER,
     "the account has not the right"},
    {ER_DUP_ENTRY, PASSING, "a record of the same name is there"},
    {ER_LOCK_WAIT_TIMEOUT, PASSING, "others have kept a record locked"},
    {ER_LOCK_DEADLOCK, PASSING, "two transactions were waiting for each other"},
    {ER_CHECKREAD, PASSING, "a record has changed meanwhile"},
    {ER_DISK_FULL, PASSING, "its disk is full"},
    {ER_RECORD_FILE_FULL, PASSING, "its disk is full"},
    {ER_CON_COUNT_ERROR, PASSING, "it has no connection left"},
    {ER_USER_LIMIT_REACHED, PASSING, "it has no connection left"},
    {ER_TOO_MANY_USER_CONNECTIONS, PASSING, "it has no connection left"},
    {ER_HOST_IS_BLOCKED, PASSING, "it has blocked this host"},
    {ER_NET_PACKET_TOO_LARGE, FOR_EVER, "max_allowed_packet is too small"},
    {ER_QUERY_INTERRUPTED, PASSING, "the statement was cancelled"},
    {ER_OUT_OF_RESOURCES, PASSING, "it has no memory"},
    {ER_SERVER_SHUTDOWN, LEAVE, "it is shutting down"},
    {ER_CONNECTION_KILLED, LEAVE, "an administrator ended the connection"},
    {ER_OPTION_PREVENTS_STATEMENT, LEAVE, "it may only be read"},
    {ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, LEAVE, "it may only be read"},
};

static const struct reason *reason_of(unsigned number)
{
    size_t i;

    for (i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (reasons[i].number == number)
            return &reasons[i];
    return NULL;
}

int once__my_fail(const struct once__my_link *l, int code, once_error *err)
{
    const struct reason *r = reason_of(l->number);

    if (l->number == 0)
        return once__fail(err, code,
                          "%s: the connection was lost, or no answer came in "
                          "time",
                          l->label);
    return once__fail(err, code, "%s: %s (error %u)", l->label,
                      r == NULL ? "refused" : r->text, l->number);
}

static int is_of_server(unsigned number)
{
    return number != 0 && (number < CR_MIN_ERROR || number > CR_MAX_ERROR);
}

/* ---- Connecting -------------------------------------------------------- */

void once__my_disconnect(struct once__my_link *l)
{
    struct pipe_guard pipe;

    if (l->conn == NULL)
        return;
    hold_pipe(&pipe);
    mysql_close(l->conn);
    let_pipe(&pipe);
    l->conn = NULL;
}

static const char *or_null(const char *text)
{
    return text[0] == '\0' ? NULL : text;
}

static int is_tls(const struct once__my_config *c, size_t host)
{
    return c->tls == ONCE__MY_TLS_ALWAYS ||
           (c->tls == ONCE__MY_TLS_REMOTE && !c->hosts[host].local);
}

/* The times are for what the library does without being asked to wait. */
static int set_options(MYSQL *conn, const struct once__my_config *c,
                       size_t host)
{
    const unsigned protocol =
        c->socket[0] != '\0' ? MYSQL_PROTOCOL_SOCKET : MYSQL_PROTOCOL_TCP;
    const unsigned seconds = (unsigned)(c->connect_ms / 1000 + 1);
    const unsigned none = 0;
    const size_t stack = STACK_BYTES;
    const my_bool on = 1, off = 0, tls = (my_bool)is_tls(c, host);
    int failed = mysql_options(conn, MYSQL_OPT_NONBLOCK, &stack);

    failed |= mysql_options(conn, MYSQL_OPT_PROTOCOL, &protocol);
    failed |= mysql_options(conn, MYSQL_OPT_CONNECT_TIMEOUT, &seconds);
    failed |= mysql_options(conn, MYSQL_OPT_RECONNECT, &off);
    failed |= mysql_options(conn, MYSQL_OPT_LOCAL_INFILE, &none);
    failed |= mysql_options(conn, MYSQL_SET_CHARSET_NAME, "binary");
    failed |= mysql_options4(conn, MYSQL_OPT_CONNECT_ATTR_ADD, "program_name",
                             "once");
    failed |= mysql_options(conn, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &tls);
    if (!tls)
        return failed;
    failed |= mysql_options(conn, MYSQL_OPT_SSL_ENFORCE, &on);
    failed |= mysql_ssl_set(conn, or_null(c->key), or_null(c->cert),
                            or_null(c->ca), NULL, NULL);
    return failed;
}

static int fail_connect(struct once__my_link *l, MYSQL *conn, once_error *err)
{
    const struct reason *r;
    unsigned number = mysql_errno(conn);
    char text[160];
    size_t i;

    l->number = is_of_server(number) ? number : 0;
    if (l->number != 0) {
        r = reason_of(number);
        return once__my_fail(
            l, r == NULL || r->kind == FOR_EVER ? ONCE_EOPEN : ONCE_EAWAY, err);
    }
    if (number != CR_SSL_CONNECTION_ERROR)
        return once__fail(err, ONCE_EAWAY, "%s: cannot connect (%u)", l->label,
                          number);
    (void)snprintf(text, sizeof(text), "%s", mysql_error(conn));
    for (i = 0; text[i] != '\0'; i++)
        if ((unsigned char)text[i] < ' ')
            text[i] = ' ';
    return once__fail(err, ONCE_EOPEN, "%s: %s", l->label, text);
}

static void make_label(struct once__my_link *l)
{
    const struct once__my_host *h = &l->config->hosts[l->host];

    if (l->config->socket[0] != '\0')
        (void)snprintf(l->label, sizeof(l->label), "mysql %.64s",
                       l->config->socket);
    else
        (void)snprintf(l->label, sizeof(l->label), "mysql %.64s:%s", h->name,
                       h->port);
}

static int start(struct once__my_link *l, MYSQL *conn, int bare,
                 uint64_t until_ms, once_error *err)
{
    const struct once__my_config *c = l->config;
    const struct once__my_host *h = &c->hosts[l->host];
    MYSQL *done = NULL;
    int status;

    status = mysql_real_connect_start(
        &done, conn, h->name, or_null(c->user), c->password,
        bare ? NULL : c->database, (unsigned)strtoul(h->port, NULL, 10),
        or_null(c->socket), CLIENT_MULTI_STATEMENTS);
    while (status != 0)
        status =
            mysql_real_connect_cont(&done, conn, await(conn, status, until_ms));
    return done != NULL ? ONCE_OK : fail_connect(l, conn, err);
}

int once__my_connect_host(struct once__my_link *l, int bare, uint64_t until_ms,
                          once_error *err)
{
    struct pipe_guard pipe;
    MYSQL *conn = mysql_init(NULL);
    int rc;

    make_label(l);
    if (conn == NULL)
        return once__fail(err, ONCE_ENOMEM, "%s: out of memory", l->label);
    hold_pipe(&pipe);
    if (set_options(conn, l->config, l->host) != 0)
        rc = once__fail(err, ONCE_EOPEN, "%s: the client library is too old",
                        l->label);
    else
        rc = start(l, conn, bare, until_ms, err);
    let_pipe(&pipe);
    l->conn = conn;
    if (rc != ONCE_OK)
        once__my_disconnect(l);
    return rc;
}

/* A server that has gone while nothing was asked is noticed before the question,
 * so that its answer is not lost. It has nothing to say without being asked. */
int once__my_is_up(const struct once__my_link *l)
{
    struct pollfd fd = {-1, POLLIN, 0};

    if (l->conn == NULL)
        return 0;
    fd.fd = mysql_get_socket(l->conn); /* -1: the library has closed it */
    return fd.fd >= 0 && poll(&fd, 1, 0) == 0;
}

/* ---- Asking ------------------------------------------------------------ */

void once__my_answer_clear(struct once__my_answer *a)
{
    while (a->count > 0)
        mysql_free_result(a->rows[--a->count]);
}

static int query(MYSQL *conn, const char *sql, size_t size, uint64_t until_ms)
{
    int failed = 0, status = mysql_real_query_start(&failed, conn, sql, size);

    while (status != 0)
        status =
            mysql_real_query_cont(&failed, conn, await(conn, status, until_ms));
    return failed == 0;
}

/* The next answer of the packet: 1, 0 there is none, -1 an error. */
static int next(MYSQL *conn, uint64_t until_ms)
{
    int rc = 0, status = mysql_next_result_start(&rc, conn);

    while (status != 0)
        status =
            mysql_next_result_cont(&rc, conn, await(conn, status, until_ms));
    return rc == 0 ? 1 : rc < 0 ? 0 : -1;
}

/* Takes the rows of one answer, if it has some. */
static int take_rows(struct once__my_link *l, uint64_t until_ms,
                     struct once__my_answer *out)
{
    MYSQL *conn = l->conn;
    MYSQL_RES *rows = NULL;
    int status;

    if (mysql_field_count(conn) == 0) {
        if (l->insert_id == 0)
            l->insert_id = mysql_insert_id(conn);
        return 1;
    }
    status = mysql_store_result_start(&rows, conn);
    while (status != 0)
        status =
            mysql_store_result_cont(&rows, conn, await(conn, status, until_ms));
    if (rows == NULL)
        return 0;
    assert(out->count < ONCE__MY_ROWS_MAX); /* the statements are our own */
    out->rows[out->count++] = rows;
    return 1;
}

/* All answers. 0: there was an error. */
static int ask(struct once__my_link *l, const char *sql, size_t size,
               uint64_t until_ms, struct once__my_answer *out)
{
    int more = 1;

    if (!query(l->conn, sql, size, until_ms))
        return 0;
    while (more > 0) {
        if (!take_rows(l, until_ms, out))
            return 0;
        more = next(l->conn, until_ms);
    }
    return more == 0;
}

/* The server said no. 0: what is left open there ends with the connection. */
static int roll_back(struct once__my_link *l, uint64_t until_ms)
{
    const struct reason *r = reason_of(l->number);
    struct once__my_answer none = {.count = 0};

    return (r == NULL || r->kind != LEAVE) &&
           ask(l, "ROLLBACK", strlen("ROLLBACK"), until_ms, &none);
}

static enum once__my_end ask_all(struct once__my_link *l, const char *sql,
                                 size_t size, uint64_t until_ms,
                                 struct once__my_answer *out)
{
    struct pipe_guard pipe;
    enum once__my_end end = ONCE__MY_DONE;

    assert(l->conn != NULL);
    l->number = 0;
    l->insert_id = 0;
    out->count = 0;
    hold_pipe(&pipe);
    if (!ask(l, sql, size, until_ms, out)) {
        unsigned number = mysql_errno(l->conn);

        l->number = is_of_server(number) ? number : 0;
        end = l->number != 0 ? ONCE__MY_REFUSED : ONCE__MY_LOST;
        once__my_answer_clear(out);
        if (end == ONCE__MY_LOST || !roll_back(l, until_ms))
            once__my_disconnect(l);
    }
    let_pipe(&pipe);
    return end;
}

enum once__my_end once__my_ask(struct once__my_link *l,
                               const struct once__my_text *t, uint64_t until_ms,
                               struct once__my_answer *out)
{
    assert(!t->failed);
    return ask_all(l, t->at, t->size, until_ms, out);
}

int once__my_ask_plain(struct once__my_link *l, const char *sql,
                       uint64_t until_ms, once_error *err,
                       struct once__my_answer *out)
{
    const struct reason *r;

    if (ask_all(l, sql, strlen(sql), until_ms, out) == ONCE__MY_DONE)
        return ONCE_OK;
    r = reason_of(l->number);
    return once__my_fail(l,
                         l->number != 0 && (r == NULL || r->kind == FOR_EVER)
                             ? ONCE_EOPEN
                             : ONCE_EAWAY,
                         err);
}
