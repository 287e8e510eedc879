/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schema.c - the database and schema.sql: made on a server, or printed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mysqld_error.h>

#include "base/error.h"
#include "base/steady.h"
#include "calls/store/mysql/mysql.h"
#include "calls/store/mysql/schema.sql.h"

enum { INIT_MS = 60000, STATEMENT = 256 };

/* One text without rows. */
static int run(struct once__my_link *l, const char *text, uint64_t until_ms,
               once_error *err)
{
    struct once__my_answer none;
    int rc = once__my_ask_plain(l, text, until_ms, err, &none);

    if (rc == ONCE_OK)
        once__my_answer_clear(&none);
    return rc;
}

/* Not IF NOT EXISTS alone: that asks for a right that may not be needed. */
static int use_database(struct once__my_link *l, uint64_t until_ms,
                        once_error *err)
{
    const char *name = l->config->database;
    char use[STATEMENT], make[STATEMENT];
    int rc;

    (void)snprintf(use, sizeof(use), "USE `%s`", name);
    (void)snprintf(make, sizeof(make), "CREATE DATABASE IF NOT EXISTS `%s`",
                   name);
    rc = run(l, use, until_ms, err);
    if (rc == ONCE_OK || l->number != ER_BAD_DB_ERROR)
        return rc;
    rc = run(l, make, until_ms, err);
    return rc != ONCE_OK ? rc : run(l, use, until_ms, err);
}

/* What another version has made is left alone. */
static int check_version(struct once__my_link *l, uint64_t until_ms,
                         once_error *err)
{
    struct once__my_answer a;
    MYSQL_ROW row;
    unsigned version;
    int rc = once__my_ask_plain(l, "SELECT version FROM once_meta", until_ms,
                                err, &a);

    if (rc != ONCE_OK)
        return l->number == ER_NO_SUCH_TABLE ? ONCE_OK : rc;
    row = mysql_fetch_row(a.rows[0]);
    version = row == NULL ? ONCE__MY_SCHEMA : (unsigned)once__my_number(row[0]);
    once__my_answer_clear(&a);
    return version == ONCE__MY_SCHEMA
               ? ONCE_OK
               : once__fail(err, ONCE_EVERSION,
                            "%s: schema version %u, this program understands "
                            "%d",
                            l->label, version, ONCE__MY_SCHEMA);
}

int once__my_init(const char *rest, const once_store_options *options,
                  once_error *err)
{
    struct once__my_config config;
    struct once__my_link link = {.config = &config};
    uint64_t until_ms = once__steady_ms() + INIT_MS;
    int rc = once__my_config_read(&config, rest, err);

    (void)options;
    if (rc == ONCE_OK)
        rc = once__my_connect(&link, 1, until_ms, err);
    if (rc == ONCE_OK)
        rc = use_database(&link, until_ms, err);
    if (rc == ONCE_OK)
        rc = check_version(&link, until_ms, err);
    if (rc == ONCE_OK)
        rc = run(&link, once__schema_sql, until_ms, err);
    once__my_disconnect(&link);
    once__my_config_clear(&config);
    return rc;
}

int once__my_print_schema(const char *rest, once_line *line, void *user,
                          once_error *err)
{
    struct once__my_config config;
    int rc = once__my_config_read(&config, rest, err);
    char text[STATEMENT], *copy, *at, *end;

    (void)snprintf(text, sizeof(text), "CREATE DATABASE IF NOT EXISTS `%s`;",
                   config.database);
    copy = rc == ONCE_OK ? strdup(once__schema_sql) : NULL;
    if (copy != NULL) {
        line(user, text);
        (void)snprintf(text, sizeof(text), "USE `%s`;", config.database);
        line(user, text);
    } else if (rc == ONCE_OK) {
        rc = once__fail(err, ONCE_ENOMEM, "out of memory");
    }
    for (at = copy; at != NULL && (end = strchr(at, '\n')) != NULL;
         at = end + 1) {
        *end = '\0';
        line(user, at);
    }
    free(copy);
    once__my_config_clear(&config);
    return rc;
}
