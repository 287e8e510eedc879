/* SPDX-License-Identifier: Apache-2.0 */
/*
 * script_mysql.c - cuts a text into statements, and runs them.
 */
#include "messages/tables/script_mysql.h"

#include <stdio.h>
#include <string.h>

#include "messages/tables/query_mysql.h"

static const char word[] = "DELIMITER ";

struct once__script once__script(const char *text)
{
    return (struct once__script){text, ";"};
}

/* 1 if the line says something that is not a statement. */
static int is_aside(struct once__script *s, const char *line, size_t size)
{
    if (size >= sizeof(word) - 1 && memcmp(line, word, sizeof(word) - 1) == 0) {
        (void)snprintf(s->delimiter, sizeof(s->delimiter), "%.*s",
                       (int)(size - (sizeof(word) - 1)),
                       line + sizeof(word) - 1);
        return 1;
    }
    return size == 0 || (size >= 2 && memcmp(line, "--", 2) == 0);
}

static int ends(const struct once__script *s, const char *line, size_t size)
{
    size_t n = strlen(s->delimiter);

    return size >= n && memcmp(line + size - n, s->delimiter, n) == 0;
}

int once__script_next(struct once__script *s, const char **statement,
                      size_t *size)
{
    const char *begin = NULL;

    while (*s->at != '\0') {
        const char *line = s->at;
        size_t n = strcspn(line, "\n");

        s->at += n + (line[n] == '\n');
        if (begin == NULL && is_aside(s, line, n))
            continue;
        if (begin == NULL)
            begin = line;
        if (!ends(s, line, n))
            continue;
        *statement = begin;
        *size = (size_t)(line - begin) + n - strlen(s->delimiter);
        return 1;
    }
    return 0;
}

int once__mysql_script(const once_tx *tx, const char *where, const char *text,
                       once_error *err)
{
    struct once__script s = once__script(text);
    const char *statement;
    size_t size;
    int rc = ONCE_OK;

    while (rc == ONCE_OK && once__script_next(&s, &statement, &size)) {
        struct once__my_text one = {0};

        once__my_put_part(&one, statement, size);
        rc = once__mysql_run_text(tx, where, NULL, err, &one);
        once__my_text_clear(&one);
    }
    return rc;
}
