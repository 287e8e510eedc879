/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shape_mysql.c - reads my.sql, and looks for each of its columns, indexes and
 * procedures in the database. More of them do no harm.
 *
 * It knows the language of my.sql no further than that text goes: a column, a key or
 * a word of a procedure's head on a line of its own.
 */
#include "messages/tables/shape.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "messages/tables/query_mysql.h"
#include "messages/tables/script_mysql.h"

/* What is looked for: a column, an index, or a procedure. */
struct thing {
    char what[160]; /* "column once_inbox.id" */
    char how[160];  /* "varbinary(255) not null" */
};

/* ---- What is there ------------------------------------------------------- */

/* Sizes only where they mean something: MySQL and MariaDB write bigint and
 * bigint(20). */
static const char there_sql[] =
    "SELECT CONCAT('column ',c.TABLE_NAME,'.',c.COLUMN_NAME),CONCAT("
    "LOWER(c.DATA_TYPE),IF(c.DATA_TYPE='varbinary',CONCAT('(',"
    "c.CHARACTER_MAXIMUM_LENGTH,')'),''),IF(c.IS_NULLABLE='NO',"
    "' not null','')),NULL FROM information_schema.COLUMNS c"
    " WHERE c.TABLE_SCHEMA=DATABASE() AND c.TABLE_NAME LIKE 'once!_%' ESCAPE "
    "'!'"
    " UNION ALL SELECT CONCAT('index ',s.TABLE_NAME,'.',s.INDEX_NAME),"
    "CONCAT(IF(s.NON_UNIQUE,'','unique '),GROUP_CONCAT(s.COLUMN_NAME"
    " ORDER BY s.SEQ_IN_INDEX)),NULL FROM information_schema.STATISTICS s"
    " WHERE s.TABLE_SCHEMA=DATABASE() AND s.TABLE_NAME LIKE 'once!_%' ESCAPE "
    "'!'"
    " GROUP BY s.TABLE_NAME,s.INDEX_NAME,s.NON_UNIQUE"
    " UNION ALL SELECT CONCAT('table ',t.TABLE_NAME),LOWER(t.ENGINE),NULL"
    " FROM information_schema.TABLES t WHERE t.TABLE_SCHEMA=DATABASE()"
    " AND t.TABLE_NAME LIKE 'once!_%' ESCAPE '!'"
    " UNION ALL SELECT CONCAT('procedure ',r.ROUTINE_NAME),CONCAT("
    "r.ROUTINE_COMMENT,' ',r.SECURITY_TYPE),r.ROUTINE_DEFINITION"
    " FROM information_schema.ROUTINES r WHERE r.ROUTINE_SCHEMA=DATABASE()"
    " AND r.ROUTINE_NAME LIKE 'once!_%' ESCAPE '!'";

/* What a server does not show as it was written: white space, backslashes and
 * quotes (MySQL shows the line feed that '\n' stands for, and one quote for two),
 * and the signs of a comment that MariaDB executes. */
static const char *skip(const char *at)
{
    for (;;) {
        if (*at == '\\')
            at += 1 + (at[1] == 'n' || at[1] == 'r');
        else if (isspace((unsigned char)*at) || *at == '\'')
            at++;
        else if (strncmp(at, "/*M!", 4) == 0)
            at += 4;
        else if (strncmp(at, "*/", 2) == 0)
            at += 2;
        else
            return at;
    }
}

static int same_text(const char *a, const char *b)
{
    for (a = skip(a), b = skip(b); *a != '\0' && *a == *b;
         a = skip(a + 1), b = skip(b + 1))
        ;
    return *a == *b;
}

/* The server's text of a procedure is NULL to an account that may not see it. */
static int is_there(MYSQL_RES *there, const struct thing *t, const char *body)
{
    MYSQL_ROW row;

    mysql_data_seek(there, 0);
    while ((row = mysql_fetch_row(there)) != NULL)
        if (row[0] != NULL && row[1] != NULL && strcmp(row[0], t->what) == 0)
            return strcmp(row[1], t->how) == 0 &&
                   (body == NULL || row[2] == NULL || same_text(row[2], body));
    return 0;
}

/* ---- What my.sql makes --------------------------------------------------- */

struct look {
    MYSQL_RES *there;
    char table[80];
    once_error *err;
};

static int look_for(const struct look *l, const struct thing *t,
                    const char *body)
{
    return is_there(l->there, t, body)
               ? ONCE_OK
               : once__fail(l->err, ONCE_EVERSION,
                            "check: the database lacks %s, or it is another: "
                            "`once messages init`",
                            t->what);
}

/* Copies a word, or what stands in backquotes; returns what follows it. */
static const char *take_word(const char *at, char *out, size_t size)
{
    size_t n = strcspn(at, " `(,;\n"), quoted = *at == '`';

    if (quoted)
        n = strcspn(++at, "`");
    (void)snprintf(out, size, "%.*s", (int)n, at);
    at += n + quoted;
    return at + strspn(at, " ");
}

/* "(consumer, `key`, no)" as "consumer,key,no". */
static void take_columns(const char *at, const char *before, struct thing *t)
{
    const char *end = strchr(at, ')');
    size_t n = (size_t)snprintf(t->how, sizeof(t->how), "%s", before);

    assert(*at == '(' && end != NULL);
    for (at++; at < end && n < sizeof(t->how) - 1; at++)
        if (*at != ' ' && *at != '`')
            t->how[n++] = *at;
    t->how[n] = '\0';
}

static int look_for_index(const struct look *l, const char *name,
                          const char *columns, const char *unique)
{
    struct thing t;

    (void)snprintf(t.what, sizeof(t.what), "index %s.%s", l->table, name);
    take_columns(columns, unique, &t);
    return look_for(l, &t, NULL);
}

/* "id VARBINARY(255) NOT NULL," */
static int look_for_column(const struct look *l, const char *line)
{
    char name[64], type[64], columns[80];
    const char *at = take_word(line, name, sizeof(name)), *end;
    struct thing t;
    size_t i, n = strcspn(at, " ,\n");
    int rc;

    (void)snprintf(type, sizeof(type), "%.*s", (int)n, at);
    for (i = 0; type[i] != '\0'; i++)
        type[i] = (char)tolower((unsigned char)type[i]);
    end = strchr(line, '\n');
    at = strstr(line, "NOT NULL");
    (void)snprintf(t.what, sizeof(t.what), "column %s.%s", l->table, name);
    (void)snprintf(t.how, sizeof(t.how), "%s%s", type,
                   at != NULL && end != NULL && at < end ? " not null" : "");
    rc = look_for(l, &t, NULL);
    at = strstr(line, "PRIMARY KEY");
    if (rc != ONCE_OK || at == NULL || end == NULL || at > end)
        return rc;
    (void)snprintf(columns, sizeof(columns), "(%s)", name);
    return look_for_index(l, "PRIMARY", columns, "unique ");
}

static int look_for_line(const struct look *l, const char *line)
{
    static const char primary[] = "PRIMARY KEY ", unique[] = "UNIQUE KEY ",
                      key[] = "KEY ";
    char name[64];
    const char *at;

    if (strncmp(line, primary, sizeof(primary) - 1) == 0)
        return look_for_index(l, "PRIMARY", line + sizeof(primary) - 1,
                              "unique ");
    if (strncmp(line, unique, sizeof(unique) - 1) == 0) {
        at = take_word(line + sizeof(unique) - 1, name, sizeof(name));
        return look_for_index(l, name, at, "unique ");
    }
    if (strncmp(line, key, sizeof(key) - 1) == 0) {
        at = take_word(line + sizeof(key) - 1, name, sizeof(name));
        return look_for_index(l, name, at, "");
    }
    return look_for_column(l, line);
}

static int look_for_table(struct look *l, const char *text)
{
    struct thing t = {"", "innodb"};
    int rc;

    (void)take_word(text, l->table, sizeof(l->table));
    (void)snprintf(t.what, sizeof(t.what), "table %s", l->table);
    rc = look_for(l, &t, NULL);
    while (rc == ONCE_OK && (text = strchr(text, '\n')) != NULL &&
           strncmp(text, "\n    ", 5) == 0) {
        text += 5;
        rc = look_for_line(l, text);
    }
    return rc;
}

/* The body goes from a line BEGIN to the end. */
static int look_for_procedure(struct look *l, const char *text)
{
    const char *body = strstr(text, "\nBEGIN\n");
    char name[80];
    struct thing t;

    (void)take_word(text, name, sizeof(name));
    (void)snprintf(t.what, sizeof(t.what), "procedure %s", name);
    (void)snprintf(t.how, sizeof(t.how), "once 2 DEFINER");
    assert(body != NULL);
    return look_for(l, &t, body);
}

static int look_for_all(struct look *l, const char *text)
{
    static const char table[] = "CREATE TABLE IF NOT EXISTS ",
                      procedure[] = "CREATE /*M! OR REPLACE */ PROCEDURE ";
    struct once__script s = once__script(text);
    const char *at;
    size_t size;
    int rc = ONCE_OK;

    while (rc == ONCE_OK && once__script_next(&s, &at, &size)) {
        char *one = strndup(at, size);

        if (one == NULL)
            return once__fail(l->err, ONCE_ENOMEM, "check: no memory");
        if (strncmp(one, table, sizeof(table) - 1) == 0)
            rc = look_for_table(l, one + sizeof(table) - 1);
        else if (strncmp(one, procedure, sizeof(procedure) - 1) == 0)
            rc = look_for_procedure(l, one + sizeof(procedure) - 1);
        free(one);
    }
    return rc;
}

int once__shape_mysql(const once_tx *tx, once_error *err)
{
    struct once__mysql q = once__mysql(tx, "check", there_sql);
    struct look l = {.err = err};
    char *text = NULL;
    int rc = once_message_schema(ONCE_MYSQL, NULL, 0, &text, err), ended;

    if (rc == ONCE_OK && once__mysql_next(&q, err)) {
        l.there = q.rows;
        rc = look_for_all(&l, text);
    } else if (rc == ONCE_OK && q.rc == ONCE_OK) {
        rc = once__fail(err, ONCE_EOPEN,
                        "check: the tables are not there: `once messages "
                        "init`");
    }
    q.asked = 1;
    ended = once__mysql_end(&q, rc == ONCE_OK ? err : NULL);
    free(text);
    return rc != ONCE_OK ? rc : ended;
}
