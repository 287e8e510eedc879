/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_mysql.c - MySQL or MariaDB, connected and inspected as the store of that name.
 *
 * After any error it rolls back, and where that is not answered the connection goes.
 * It refuses to judge by what the client library believes of a transaction.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mysql/mysql.h"
#include "base/steady.h"
#include "messages/relay/base_driver.h"

struct own {
    struct once__my_config config;
    struct once__my_link link;
};

/* A handler may leave the connection alone for minutes, and may wait for locks. On
 * MySQL a claim waits as long as its session says: two seconds, as elsewhere. */
static const char session[] =
    "SET SESSION wait_timeout = 600, innodb_lock_wait_timeout = 10"
    " /*!80000 , innodb_lock_wait_timeout = 2 */";

/* "mysql:" alone, for those who only want to see the text, is no place. */
static int read_(struct once__base *b, const char *rest, once_error *err)
{
    struct own *o = calloc(1, sizeof(*o));

    if (o == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    b->own = o;
    o->link.config = &o->config;
    return rest[0] == '\0' ? ONCE_OK
                           : once__my_config_read(&o->config, rest, err);
}

static void clear(struct once__base *b)
{
    struct own *o = b->own;

    if (o != NULL)
        once__my_config_clear(&o->config);
    free(o);
}

static int connect_(struct once__base *b, once_error *err)
{
    struct own *o = b->own;
    uint64_t until;
    struct once__my_answer none;
    int rc;

    if (o->config.host_count == 0)
        return once__fail(err, ONCE_EURL, "mysql: the URL names no place");
    if (once__steady_ms() < o->link.next_ms)
        once__sleep_ms(o->link.next_ms - once__steady_ms());
    until = once__steady_ms() + ONCE__BASE_CONNECT_MS;
    rc = once__my_connect(&o->link, 0, until, err);
    if (rc == ONCE_OK)
        rc = once__my_ask_plain(&o->link, session, until, err, &none);
    if (rc != ONCE_OK)
        return rc;
    once__my_answer_clear(&none);
    /* From here on a text is one statement, whatever is in it. */
    if (mysql_set_server_option(o->link.conn,
                                MYSQL_OPTION_MULTI_STATEMENTS_OFF) != 0) {
        once__my_disconnect(&o->link);
        return once__fail(err, ONCE_EAWAY, "the connection was lost");
    }
    once__base_keep_socket(b, mysql_get_socket(o->link.conn));
    b->tx.mysql = o->link.conn;
    return ONCE_OK;
}

static int is_up(const struct once__base *b)
{
    const struct own *o = b->own;

    return b->tx.mysql != NULL && once__my_is_up(&o->link);
}

static void drop(struct once__base *b)
{
    struct own *o = b->own;

    once__base_keep_socket(b, -1);
    if (o != NULL)
        once__my_disconnect(&o->link);
    b->tx.mysql = NULL;
}

/* ---- Transactions ------------------------------------------------------- */

static int run(struct once__base *b, const char *sql)
{
    int failed =
        mysql_real_query(once__base_ask(b)->mysql, sql, strlen(sql)) != 0;

    return !once__base_answered(b, failed);
}

static int begin(struct once__base *b, once_error *err)
{
    if (run(b, "START TRANSACTION"))
        return ONCE_OK;
    drop(b);
    return once__fail(err, ONCE_EABORTED, "BEGIN: the connection was lost");
}

/* An error of COMMIT may come before or after it was done. */
static int commit(struct once__base *b, once_error *err)
{
    if (run(b, "COMMIT"))
        return ONCE_OK;
    drop(b);
    return once__fail(err, ONCE_EAWAY,
                      "COMMIT: no answer; it is unknown whether it was done");
}

static int rollback(struct once__base *b)
{
    return run(b, "ROLLBACK");
}

const struct once__base_driver once__base_mysql = {
    .database = ONCE_MYSQL,
    .schemes = {"mysql:"},
    .read = read_,
    .clear = clear,
    .connect = connect_,
    .is_up = is_up,
    .drop = drop,
    .begin = begin,
    .commit = commit,
    .rollback = rollback,
};
