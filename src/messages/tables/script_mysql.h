/* SPDX-License-Identifier: Apache-2.0 */
/*
 * script_mysql.h - a text of many statements, as the program `mysql` reads it, for a
 * server that takes them one by one: `--` begins a line of comment, and a line
 * DELIMITER says what ends a statement at the end of a line. No more of that
 * language is known.
 */
#ifndef ONCE_MESSAGES_TABLES_SCRIPT_MYSQL_H
#define ONCE_MESSAGES_TABLES_SCRIPT_MYSQL_H

#include <stddef.h>

#include <once/message.h>

struct once__script {
    const char *at;
    char delimiter[8];
};

struct once__script once__script(const char *text);
/* The next statement, without its delimiter: 1, or 0 at the end. */
int once__script_next(struct once__script *s, const char **statement,
                      size_t *size);

/* Runs all of them. */
ONCE_CHECK int once__mysql_script(const once_tx *tx, const char *where,
                                  const char *text, once_error *err);

#endif /* ONCE_MESSAGES_TABLES_SCRIPT_MYSQL_H */
