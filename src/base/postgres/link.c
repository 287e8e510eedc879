/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - one connection, and one question at a time, with a deadline.
 *
 *              connect                      send
 *    (down) ------------> (inspecting) --> (ready) ------> (asked)
 *      ^  ^    refused,        |             ^                |
 *      |  |    too late        | not ours    | answer, or     |
 *      |  +--------------------+             | ERROR: nothing |
 *      |                                     | was changed    |
 *      |                                     +----------------+
 *      |      FATAL, connection lost, deadline: unknown       |
 *      +------------------------------------------------------+
 *
 * libpq never blocks here but for looking up a host's name. An ERROR means that
 * the server has taken the transaction back, since each question is one
 * transaction: nothing was changed. Everything else that is not an answer is
 * unknown, and the connection is closed, since what comes over it later could
 * be taken for the answer to something else.
 *
 * Meaning is taken from SQLSTATE alone, never from texts. It refuses to show a
 * server's texts for questions, which may quote values; what libpq says about
 * connecting names hosts, roles and certificates and is shown in one line,
 * unless the password is in it.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/postgres/postgres.h"
#include "base/steady.h"

/* ---- Waiting ----------------------------------------------------------- */

/* 1: there is something to do, 0: too late. */
static int wait_for(const PGconn *conn, short events, uint64_t until_ms)
{
    struct pollfd fd = {PQsocket(conn), events, 0};
    uint64_t now;
    int n;

    do {
        now = once__steady_ms();
        if (fd.fd < 0)
            return 0;
        n = poll(&fd, 1, now >= until_ms ? 0 : (int)(until_ms - now));
    } while (n < 0 && errno == EINTR);
    return n > 0;
}

/*
 * Nothing is printed. But a COMMIT whose wait for a standby was cancelled is
 * reported as done, with a warning: then no other server may have it.
 */
static void note_warning(void *link, const PGresult *notice)
{
    const char *severity =
        PQresultErrorField(notice, PG_DIAG_SEVERITY_NONLOCALIZED);
    struct once__pg_link *l = link;

    if (severity != NULL && strcmp(severity, "WARNING") == 0)
        l->warned = 1;
}

/* ---- Texts ------------------------------------------------------------- */

static const struct {
    const char *state, *text;
} texts[] = {
    {"ON001",
     "it commits asynchronously, and the URL does not say async=allow"},
    {"ON002", "its schema is of another version"},
    {"ON003", "its table has another number of partitions than the URL"},
    {"ON004", "another store is there than the one that was opened, and it is "
              "asked nothing until it is opened as a new one (reload the "
              "gateway, restart the program)"},
    {"23505", "a record of the same name is there"},
    {"25006", "it is a standby, or may only be read"},
    {"28", "it does not let this role in"},
    {"3D", "there is no such database"},
    {"3F", "there is no such schema: `once init` makes it"},
    {"42P01", "the schema is not ours: `once init` makes it"},
    {"42883", "the schema is not ours, or older: `once init` makes it"},
    {"42704", "the schema is not ours: `once init` makes it"},
    {"42501", "the role has not the right: USAGE, EXECUTE, or to own it"},
    {"40P01", "two transactions were waiting for each other"},
    {"40", "the transaction was taken back"},
    {"53100", "its disk is full"},
    {"53200", "it has no memory"},
    {"53300", "it has no connection left"},
    {"53", "it has no room"},
    {"55P03", "others have kept a record locked"},
    {"57014", "the statement was cancelled"},
    {"57P", "it is shutting down, or an administrator ended the connection"},
    {"08", "the connection failed"},
    {"58", "it has trouble with its files"},
    {"XX", "it has found something broken inside"},
};

int once__pg_state(const struct once__pg_link *l, const char *begin)
{
    return l->state[0] != '\0' && strncmp(l->state, begin, strlen(begin)) == 0;
}

int once__pg_fail(const struct once__pg_link *l, int code, once_error *err)
{
    size_t i;

    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (once__pg_state(l, texts[i].state))
            return once__fail(err, code, "%s: %s (SQLSTATE %s)", l->label,
                              texts[i].text, l->state);
    if (l->state[0] != '\0')
        return once__fail(err, code, "%s: refused (SQLSTATE %s)", l->label,
                          l->state);
    return once__fail(err, code,
                      "%s: the connection was lost, or no answer "
                      "came in time",
                      l->label);
}

static const char *password(const PGconn *conn)
{
    const char *word = PQpass(conn);

    return word != NULL && word[0] != '\0' ? word : NULL;
}

int once__pg_passing(const char *state)
{
    return state[0] == '\0' || strncmp(state, "08", 2) == 0 ||
           strncmp(state, "25006", 5) == 0 || strncmp(state, "53", 2) == 0 ||
           strncmp(state, "57", 2) == 0;
}

/*
 * libpq says in its text only whether a server refused us: with the verbosity
 * of start() there is "FATAL:  28P01: " in it. A certificate that is refused
 * has no number.
 */
static int code_of(const char *said)
{
    char state[6] = "";
    const char *at = said;

    if (strstr(said, "certificate") != NULL ||
        strstr(said, "does not support SSL") != NULL)
        return ONCE_EOPEN;
    while ((at = strstr(at, ":  ")) != NULL) {
        at += 3;
        if (strspn(at, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 &&
            at[5] == ':')
            (void)snprintf(state, sizeof(state), "%.5s", at);
    }
    return once__pg_passing(state) ? ONCE_EAWAY : ONCE_EOPEN;
}

/* What libpq says about connecting, in one line. */
static int fail_connect(const struct once__pg_link *l, const PGconn *conn,
                        const char *why, once_error *err)
{
    char text[160] = "";
    const char *said = conn != NULL ? PQerrorMessage(conn) : "";
    size_t i;

    if (why == NULL && strlen(said) > 0 &&
        (password(conn) == NULL || strstr(said, password(conn)) == NULL))
        (void)snprintf(text, sizeof(text), "%s", said);
    else
        (void)snprintf(text, sizeof(text), "%s",
                       why != NULL ? why : "cannot connect");
    if (strstr(text, "\nLOCATION:") != NULL)
        *strstr(text, "\nLOCATION:") = '\0';
    for (i = 0; text[i] != '\0'; i++)
        if ((unsigned char)text[i] < ' ')
            text[i] = ' ';
    while (i > 0 && text[i - 1] == ' ')
        text[--i] = '\0';
    if (conn != NULL && PQconnectionNeedsPassword(conn))
        return once__fail(err, ONCE_EOPEN,
                          "%s: the server asks for a password, and there is "
                          "none: name a file that has one for this host, "
                          "database and user with passfile=",
                          l->label);
    return once__fail(err, why != NULL ? ONCE_EAWAY : code_of(said), "%s: %s",
                      l->label, text);
}

/* ---- Connecting -------------------------------------------------------- */

void once__pg_disconnect(struct once__pg_link *l)
{
    PQfinish(l->conn);
    l->conn = NULL;
}

static PGconn *start(struct once__pg_link *l)
{
    const char *keys[ONCE__PG_WORDS_MAX], *values[ONCE__PG_WORDS_MAX];
    PGconn *conn;

    once__pg_config_words(l->config, l->host, keys, values);
    conn = PQconnectStartParams(keys, values, 0);
    if (conn != NULL) {
        (void)PQsetNoticeReceiver(conn, note_warning, l);
        (void)PQsetErrorVerbosity(conn, PQERRORS_VERBOSE); /* see code_of() */
    }
    return conn;
}

int once__pg_connect_host(struct once__pg_link *l, uint64_t until_ms,
                          once_error *err)
{
    PostgresPollingStatusType step = PGRES_POLLING_WRITING;
    PGconn *conn = start(l);
    int rc = ONCE_OK;

    once__pg_config_label(l->config, l->host, l->label);
    if (conn == NULL || PQstatus(conn) == CONNECTION_BAD) {
        rc = fail_connect(l, conn, NULL, err);
        goto out;
    }
    while (step != PGRES_POLLING_OK) {
        if (!wait_for(conn, step == PGRES_POLLING_READING ? POLLIN : POLLOUT,
                      until_ms)) {
            rc = fail_connect(l, conn, "no connection came about in time", err);
            goto out;
        }
        step = PQconnectPoll(conn);
        if (step == PGRES_POLLING_FAILED) {
            rc = fail_connect(l, conn, NULL, err);
            goto out;
        }
    }
    (void)PQsetErrorVerbosity(conn, PQERRORS_DEFAULT);
    if (PQsetnonblocking(conn, 1) != 0) {
        rc = fail_connect(l, conn, NULL, err);
        goto out;
    }
    l->conn = conn;
    conn = NULL;
out:
    PQfinish(conn);
    return rc;
}

/* A server that has gone while nothing was asked is noticed before the
 * question, so that its answer is not lost. */
int once__pg_is_up(const struct once__pg_link *l)
{
    if (l->conn != NULL && wait_for(l->conn, POLLIN, 0))
        (void)PQconsumeInput(l->conn);
    return l->conn != NULL && PQstatus(l->conn) == CONNECTION_OK;
}

/* ---- Asking ------------------------------------------------------------ */

static int send_ask(const struct once__pg_link *l, const struct once__pg_ask *a,
                    uint64_t until_ms)
{
    PGconn *conn = l->conn;
    int left;

    if (a->plain ? !PQsendQuery(conn, a->sql)
                 : !PQsendQueryParams(conn, a->sql, a->count, a->types,
                                      a->values, a->lengths, a->formats, 1))
        return 0;
    while ((left = PQflush(conn)) > 0) {
        if (!wait_for(conn, POLLIN | POLLOUT, until_ms))
            return 0;
        /* The server may want to be read before it reads on. */
        if (!PQconsumeInput(conn))
            return 0;
    }
    return left == 0;
}

/* The next result; NULL at the end, or if it is too late (`*ok` is 0). */
static PGresult *receive(const struct once__pg_link *l, uint64_t until_ms,
                         int *ok)
{
    while (PQisBusy(l->conn)) {
        if (!wait_for(l->conn, POLLIN, until_ms) || !PQconsumeInput(l->conn)) {
            *ok = 0;
            return NULL;
        }
    }
    return PQgetResult(l->conn);
}

static int is_answer(const PGresult *r)
{
    ExecStatusType status = PQresultStatus(r);

    return status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK;
}

/* ERROR, and not FATAL or a refusal that libpq itself made up. */
static int is_refusal(const PGresult *r)
{
    const char *severity = PQresultErrorField(r, PG_DIAG_SEVERITY_NONLOCALIZED);

    return severity != NULL && strcmp(severity, "ERROR") == 0;
}

static void keep_state(struct once__pg_link *l, const PGresult *r)
{
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);

    (void)snprintf(l->state, sizeof(l->state), "%.5s",
                   state != NULL ? state : "");
}

/* After these, the next question goes to a new connection. */
static int must_leave(const struct once__pg_link *l)
{
    return once__pg_state(l, "25006") || once__pg_state(l, "ON001") ||
           once__pg_state(l, "57P") || once__pg_state(l, "08") ||
           once__pg_state(l, "25");
}

enum once__pg_end once__pg_ask(struct once__pg_link *l,
                               const struct once__pg_ask *ask,
                               uint64_t until_ms, PGresult **out)
{
    enum once__pg_end end = ONCE__PG_DONE;
    PGresult *r, *last = NULL;
    int ok;

    assert(l->conn != NULL);
    l->state[0] = '\0';
    l->warned = 0;
    *out = NULL;
    ok = send_ask(l, ask, until_ms);
    while (ok && (r = receive(l, until_ms, &ok)) != NULL) {
        if (!is_answer(r)) {
            keep_state(l, r);
            end = is_refusal(r) ? ONCE__PG_REFUSED : ONCE__PG_LOST;
        }
        PQclear(last);
        last = r;
    }
    if (!ok || PQstatus(l->conn) != CONNECTION_OK || last == NULL)
        end = end == ONCE__PG_REFUSED ? end : ONCE__PG_LOST;
    if (end == ONCE__PG_DONE && l->warned)
        end = ONCE__PG_LOST;
    if (end == ONCE__PG_DONE) {
        *out = last;
        return end;
    }
    PQclear(last);
    if (!ok || end == ONCE__PG_LOST || must_leave(l) ||
        PQstatus(l->conn) != CONNECTION_OK)
        once__pg_disconnect(l);
    return end;
}
