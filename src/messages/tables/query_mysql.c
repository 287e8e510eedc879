/* SPDX-License-Identifier: Apache-2.0 */
/*
 * query_mysql.c - statements on a connection of MySQL or MariaDB, and what their
 * errors mean.
 *
 * It refuses to ask the client library whether a transaction is open after an
 * error, which it does not know then, and to repeat a server's text, which may
 * quote values.
 */
#include "messages/tables/query_mysql.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <sys/socket.h>

#include <errmsg.h>
#include <mysqld_error.h>

#include "base/error.h"

/* A statement over ASK_FIRST bytes may be more than the server takes, which then
 * closes the connection without saying why. So it is asked before. */
enum { ASK_FIRST = 512 * 1024, PACKET_SPARE = 64 };

/* ---- Errors ------------------------------------------------------------ */

struct meaning {
    int code;
    const char *text; /* of an error */
};

/* SQLSTATE: of a procedure of ours, which counts first; or its class, which counts
 * where the number says nothing. */
static const struct {
    const char *state;
    struct meaning meaning;
} states[] = {
    {"55P03", {ONCE_IN_FLIGHT, NULL}},
    {"ON010", {ONCE_MISMATCH, NULL}},
    {"ON015", {ONCE_OUTSIDE, NULL}},
    {"ON001",
     {ONCE_EOPEN,
      "what this session commits may be lost: innodb_flush_log_at_trx_commit, "
      "sync_binlog or innodb_doublewrite of the server, or sql_log_bin"}},
    {"ON003",
     {ONCE_EVERSION,
      "a table lacks a row that belongs to it: `once messages init`"}},
    {"ON014",
     {ONCE_ETX,
      "tx: the message was claimed in this transaction: roll back first"}},
    {"ON017",
     {ONCE_ETX,
      "tx: no transaction is open, or a call was begun and not finished"}},
    {"22", {ONCE_EINVAL, "an argument is out of its limits"}},
    {"40", {ONCE_EABORTED, "the transaction was rolled back"}},
    {"08", {ONCE_EABORTED, "the connection was lost"}},
};

static const struct {
    unsigned number;
    struct meaning meaning;
} numbers[] = {
    {ER_DUP_ENTRY, {ONCE_REPEATED, NULL}},
    {ER_LOCK_DEADLOCK, {ONCE_EABORTED, "the transaction was rolled back"}},
    {ER_CHECKREAD, {ONCE_EABORTED, "a row has changed since it was read"}},
    {ER_LOCK_WAIT_TIMEOUT, {ONCE_EABORTED, "a lock was not granted in time"}},
    {ER_SERVER_SHUTDOWN, {ONCE_EABORTED, "the server ends"}},
    {ER_CONNECTION_KILLED, {ONCE_EABORTED, "the connection was lost"}},
    {ER_QUERY_INTERRUPTED, {ONCE_EABORTED, "the server was asked to cancel"}},
    {ER_STATEMENT_TIMEOUT, {ONCE_EABORTED, "max_statement_time was too short"}},
    {ER_DISK_FULL, {ONCE_EFULL, "the server's disk is full"}},
    {ER_RECORD_FILE_FULL, {ONCE_EFULL, "the server's disk is full"}},
    {ER_OUTOFMEMORY, {ONCE_ENOMEM, "the server has no memory"}},
    {ER_OUT_OF_SORTMEMORY, {ONCE_ENOMEM, "the server has no memory"}},
    {ER_OUT_OF_RESOURCES, {ONCE_ENOMEM, "the server has no memory"}},
    {ER_NET_PACKET_TOO_LARGE,
     {ONCE_ELIMIT,
      "body: it is larger than the server's max_allowed_packet lets through"}},
    {ER_TOO_BIG_ROWSIZE,
     {ONCE_ELIMIT,
      "body: it is larger than the server's redo log lets through"}},
    {ER_NO_SUCH_TABLE,
     {ONCE_EOPEN, "the tables are not there: `once messages init`"}},
    {ER_BAD_FIELD_ERROR,
     {ONCE_EOPEN, "the tables are not ours: `once messages init`"}},
    {ER_SP_DOES_NOT_EXIST,
     {ONCE_EOPEN, "the procedures are not there: `once messages init`"}},
    {ER_SP_WRONG_NO_OF_ARGS,
     {ONCE_EOPEN, "the procedures are older: `once messages init`"}},
    {ER_NO_SUCH_USER,
     {ONCE_EOPEN,
      "the account that ran `once messages init` is gone: run it again"}},
    {ER_PROCACCESS_DENIED_ERROR,
     {ONCE_EOPEN, "the account has no right to EXECUTE the procedures"}},
    {ER_TABLEACCESS_DENIED_ERROR,
     {ONCE_EOPEN, "the account has no right to a table"}},
    {ER_DBACCESS_DENIED_ERROR,
     {ONCE_EOPEN, "the account has no right to this database"}},
    {ER_SPECIFIC_ACCESS_DENIED_ERROR,
     {ONCE_EOPEN, "the account has not the right"}},
    {ER_NO_DB_ERROR, {ONCE_EOPEN, "the connection has no database"}},
    {ER_OPTION_PREVENTS_STATEMENT, {ONCE_EOPEN, "the server may only be read"}},
    {ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION,
     {ONCE_EOPEN, "tx: it may only be read"}},
    {CR_OUT_OF_MEMORY, {ONCE_ENOMEM, "no memory for the rows"}},
    {CR_COMMANDS_OUT_OF_SYNC, {ONCE_ETX, "tx: another statement is under way"}},
};

static int answer(struct meaning m, unsigned number, const char *where,
                  once_error *err)
{
    return m.code >= 0 ? m.code
                       : once__fail(err, m.code, "%s: %s (error %u)", where,
                                    m.text, number);
}

/* 1: the whole of it, or its class, is in the table. */
static int find_state(const char *state, size_t size, struct meaning *out)
{
    size_t i;

    for (i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        if (strlen(states[i].state) != size ||
            strncmp(state, states[i].state, size) != 0)
            continue;
        *out = states[i].meaning;
        return 1;
    }
    return 0;
}

static int failed(MYSQL *conn, const char *where, once_error *err)
{
    unsigned number = mysql_errno(conn);
    struct meaning found;
    size_t i;

    if (find_state(mysql_sqlstate(conn), 5, &found))
        return answer(found, number, where, err);
    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (number == numbers[i].number)
            return answer(numbers[i].meaning, number, where, err);
    if (number >= CR_MIN_ERROR && number <= CR_MAX_ERROR)
        return once__fail(err, ONCE_EABORTED, "%s: the connection was lost",
                          where);
    if (find_state(mysql_sqlstate(conn), 2, &found))
        return answer(found, number, where, err);
    return once__fail(err, ONCE_EOPEN, "%s: refused (error %u)", where, number);
}

int once__mysql_no_wait(int rc, const char *where, once_error *err)
{
    return rc == ONCE_IN_FLIGHT
               ? once__fail(err, ONCE_EABORTED,
                            "%s: a lock was not granted in time", where)
               : rc;
}

/* ---- The text ----------------------------------------------------------- */

static void put_signed(struct once__my_text *to, int64_t number)
{
    if (number < 0)
        once__my_put(to, "-");
    once__my_put_number(to, number < 0 ? -(uint64_t)number : (uint64_t)number);
}

static void put_value(struct once__my_text *to, const struct once__value *v)
{
    size_t size = v->type == ONCE__VALUE_TEXT && v->data != NULL
                      ? strlen(v->data)
                      : v->size;

    if (v->type == ONCE__VALUE_NUMBER)
        put_signed(to, v->number);
    else if (v->type == ONCE__VALUE_NOW)
        once__my_put(to, ONCE__MYSQL_NOW);
    else if (v->data == NULL)
        once__my_put(to, "NULL");
    else
        once__my_put_hex(to, v->data, size);
}

static int is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '`';
}

/* Copies one word; that of a database of SQLite goes. Returns its size. */
static size_t put_word(struct once__my_text *to, const char *at)
{
    size_t n = 0;

    while (is_word(at[n]))
        n++;
    if (n == 4 && strncmp(at, "main.", 5) == 0)
        return 5;
    if (n == 3 && strncmp(at, "key", 3) == 0)
        once__my_put(to, "`key`");
    else
        once__my_put_part(to, at, n);
    return n;
}

/* ?1 is the first of the values, '...' is left alone. */
void once__mysql_fill(struct once__my_text *to, const char *sql,
                      const struct once__value *values, int n)
{
    const char *at = sql;
    size_t size;

    while (*at != '\0') {
        if (*at == '?') {
            char *end;
            unsigned long number = strtoul(at + 1, &end, 10);

            assert(number >= 1 && number <= (unsigned long)n);
            put_value(to, &values[number - 1]);
            at = end;
            continue;
        }
        if (is_word(*at)) {
            at += put_word(to, at);
            continue;
        }
        size = *at == '\'' ? strcspn(at + 1, "'") + 2 : 1;
        once__my_put_part(to, at, size);
        at += size;
    }
    (void)n;
}

void once__mysql_list(struct once__my_text *to, const int64_t *numbers_,
                      size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        if (i > 0)
            once__my_put(to, ",");
        put_signed(to, numbers_[i]);
    }
}

/* ---- Asking ------------------------------------------------------------- */

static int check_size(const once_tx *tx, size_t size, const char *where,
                      once_error *err)
{
    int64_t most = 0;
    int rc;

    if (size <= ASK_FIRST)
        return ONCE_OK;
    rc = once__mysql_number(tx, where, "SELECT @@max_allowed_packet", &most,
                            err);
    if (rc != ONCE_OK || size + PACKET_SPARE < (uint64_t)most)
        return rc;
    return once__fail(err, ONCE_ELIMIT,
                      "%s: body: it takes %zu bytes in a statement, and "
                      "max_allowed_packet of the server is %lld",
                      where, size, (long long)most);
}

static void shut_down(MYSQL *conn)
{
    (void)shutdown(mysql_get_socket(conn), SHUT_RDWR);
}

unsigned once__mysql_take(MYSQL *conn, MYSQL_RES **rows)
{
    /* When the connection is lost the number of fields is 0 afterwards. */
    unsigned fields = mysql_field_count(conn), number;

    *rows = mysql_store_result(conn);
    if (*rows != NULL || fields == 0)
        return 0;
    number = mysql_errno(conn);
    if (number == 0 || (number >= CR_MIN_ERROR && number <= CR_MAX_ERROR))
        shut_down(conn);
    return number != 0 ? number : CR_UNKNOWN_ERROR;
}

/* Sends it, and reads all answers. The rows of the first that has some stay;
 * `*changed` is of the first, too. */
static int ask(const once_tx *tx, const struct once__my_text *text,
               const char *where, MYSQL_RES **rows, uint64_t *changed,
               once_error *err)
{
    MYSQL *conn = tx->mysql;
    int more = 0, rc;

    if (text->failed)
        return once__fail(err, ONCE_ENOMEM, "%s: no memory", where);
    rc = check_size(tx, text->size, where, err);
    if (rc != ONCE_OK)
        return rc;
    if (mysql_real_query(conn, text->at, text->size) != 0)
        return failed(conn, where, err);
    if (changed != NULL)
        *changed = mysql_affected_rows(conn);
    do {
        MYSQL_RES *one = NULL;

        if (once__mysql_take(conn, &one) != 0)
            return failed(conn, where, err);
        if (rows != NULL && *rows == NULL)
            *rows = one;
        else
            mysql_free_result(one);
        more = mysql_next_result(conn);
    } while (more == 0);
    return more < 0 ? ONCE_OK : failed(conn, where, err);
}

struct once__mysql once__mysql(const once_tx *tx, const char *where,
                               const char *sql)
{
    return (struct once__mysql){.tx = tx, .where = where, .sql = sql};
}

struct once__mysql once__mysql_of_text(const once_tx *tx, const char *where,
                                       const struct once__my_text *text)
{
    return (struct once__mysql){.tx = tx, .where = where, .text = text};
}

void once__mysql_values(struct once__mysql *q, const struct once__value *v)
{
    for (; v->type != ONCE__VALUE_END; v++) {
        assert(q->n < ONCE__MYSQL_PARAMETERS);
        q->values[q->n++] = *v;
    }
}

int once__mysql_next(struct once__mysql *q, once_error *err)
{
    struct once__my_text text = {0};

    if (q->rc == ONCE_OK && !q->asked) {
        q->asked = 1;
        if (q->text == NULL)
            once__mysql_fill(&text, q->sql, q->values, q->n);
        q->rc = ask(q->tx, q->text != NULL ? q->text : &text, q->where,
                    &q->rows, NULL, err);
        once__my_text_clear(&text);
    }
    if (q->rc != ONCE_OK || q->rows == NULL)
        return 0;
    q->row = mysql_fetch_row(q->rows);
    if (q->row != NULL)
        q->lengths = mysql_fetch_lengths(q->rows);
    return q->row != NULL;
}

/* The client library puts a NUL behind each field. */
const char *once__mysql_string(const struct once__mysql *q, int column)
{
    return q->row[column];
}

int64_t once__mysql_int(const struct once__mysql *q, int column)
{
    const char *text = once__mysql_string(q, column);

    return text == NULL ? 0 : strtoll(text, NULL, 10);
}

once_bytes once__mysql_bytes(const struct once__mysql *q, int column)
{
    return (once_bytes){q->row[column],
                        q->row[column] == NULL ? 0 : q->lengths[column]};
}

int once__mysql_end(struct once__mysql *q, once_error *err)
{
    if (!q->asked)
        while (once__mysql_next(q, err))
            ;
    mysql_free_result(q->rows);
    q->rows = NULL;
    return q->rc;
}

int once__mysql_run_text(const once_tx *tx, const char *where,
                         uint64_t *changed, once_error *err,
                         const struct once__my_text *text)
{
    int rc = ask(tx, text, where, NULL, changed, err);

    if (changed != NULL && rc != ONCE_OK)
        *changed = 0;
    return rc;
}

int once__mysql_run_values(const once_tx *tx, const char *where,
                           uint64_t *changed, once_error *err, const char *sql,
                           const struct once__value *v)
{
    struct once__my_text text = {0};
    int n = 0, rc;

    while (v != NULL && v[n].type != ONCE__VALUE_END)
        n++;
    once__mysql_fill(&text, sql, v, n);
    rc = once__mysql_run_text(tx, where, changed, err, &text);
    once__my_text_clear(&text);
    return rc;
}

int once__mysql_number(const once_tx *tx, const char *where, const char *sql,
                       int64_t *out, once_error *err)
{
    struct once__mysql q = once__mysql(tx, where, sql);

    if (once__mysql_next(&q, err))
        *out = once__mysql_int(&q, 0);
    return once__mysql_end(&q, err);
}

int once__mysql_word(struct once__mysql *q, once_error *err)
{
    int answer = ONCE_EVERSION;

    if (once__mysql_next(q, err))
        answer = once__answer_of(once__mysql_bytes(q, 0), q->where, err);
    else if (q->rc == ONCE_OK)
        q->rc = once__fail(err, ONCE_EVERSION, "%s: no answer", q->where);
    return q->rc == ONCE_OK ? answer : q->rc;
}

int once__mysql_word_end(struct once__mysql *q, once_error *err)
{
    int rc = once__mysql_word(q, err);

    (void)once__mysql_end(q, NULL);
    return rc;
}

/* ---- Transactions ------------------------------------------------------- */

int once__mysql_idle(const once_tx *tx, once_error *err)
{
    unsigned status = 0;

    if (mysql_get_socket(tx->mysql) < 0)
        return once__fail(err, ONCE_EABORTED, "the connection was lost");
    (void)mariadb_get_infov(tx->mysql, MARIADB_CONNECTION_SERVER_STATUS,
                            &status);
    return status & SERVER_STATUS_IN_TRANS
               ? once__fail(err, ONCE_ETX, "tx: a transaction is open")
               : ONCE_OK;
}

int once__mysql_durable(const once_tx *tx, const char *where, once_error *err)
{
    int64_t durable = 0;
    int rc = once__mysql_number(
        tx, where,
        "SELECT @@innodb_flush_log_at_trx_commit IN (1,3)"
        " AND UPPER(@@innodb_doublewrite) NOT IN ('0','OFF','DETECT_ONLY')"
        " AND (NOT @@log_bin OR (@@sync_binlog=1 AND @@sql_log_bin))",
        &durable, err);

    if (rc != ONCE_OK || durable)
        return rc;
    return once__fail(err, ONCE_EOPEN,
                      "%s: what is committed may be lost: "
                      "innodb_flush_log_at_trx_commit and, with a binlog, "
                      "sync_binlog must be 1, innodb_doublewrite and "
                      "sql_log_bin on",
                      where);
}

static int start(const once_tx *tx, const char *where, once_error *err)
{
    int rc = once__mysql_durable(tx, where, err);

    if (rc == ONCE_OK)
        rc = once__mysql_run_values(
            tx, where, NULL, err,
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", NULL);
    return rc == ONCE_OK ? once__mysql_run_values(tx, where, NULL, err,
                                                  "START TRANSACTION", NULL)
                         : rc;
}

int once__mysql_transaction(const once_tx *tx, const char *where,
                            once__mysql_work *work, void *user, once_error *err)
{
    int rc = start(tx, where, err);

    if (rc == ONCE_OK)
        rc = work(tx, user, err);
    if (rc == ONCE_OK && once__mysql_run_values(tx, where, NULL, NULL, "COMMIT",
                                                NULL) != ONCE_OK)
        rc = once__fail(err, ONCE_EABORTED, "%s: COMMIT was not answered",
                        where);
    if (rc != ONCE_OK && once__mysql_run_values(tx, where, NULL, NULL,
                                                "ROLLBACK", NULL) != ONCE_OK)
        shut_down(tx->mysql); /* what it is in is not known */
    return once__mysql_no_wait(rc, where, err);
}
