/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sqltext.c - see sqltext.h. It refuses nothing at run time: marks and texts are
 * the program's own.
 */
#include "base/sqltext.h"

#include <assert.h>
#include <string.h>

enum { NAME_MAX_SIZE = 63 };

int once__sql_schema_ok(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    size_t size = strlen(name);

    return size > 0 && size <= NAME_MAX_SIZE &&
           (name[0] < '0' || name[0] > '9') && strspn(name, letters) == size;
}

/* Appends, or only counts while `out` is NULL. */
static size_t append(char *out, size_t at, const char *text, size_t size)
{
    if (out != NULL)
        memcpy(out + at, text, size);
    return at + size;
}

size_t once__sql_fill(char *out, const char *text,
                      const struct once__mark *marks, size_t n)
{
    const char *at;
    size_t i, size = 0;

    while ((at = strchr(text, '@')) != NULL) {
        size = append(out, size, text, (size_t)(at - text));
        for (i = 0; i < n; i++)
            if (strncmp(at, marks[i].mark, strlen(marks[i].mark)) == 0)
                break;
        if (i == n)
            size = append(out, size, "@", 1);
        else
            size = append(out, size, marks[i].value, strlen(marks[i].value));
        text = at + (i == n ? 1 : strlen(marks[i].mark));
    }
    return append(out, size, text, strlen(text) + 1);
}

void once__sql_in_schema(const char *text, const char *schema, char *out,
                         size_t size)
{
    char quoted[NAME_MAX_SIZE + 3] = "\"";
    const struct once__mark mark = {"@", quoted};

    assert(once__sql_schema_ok(schema));
    memcpy(quoted + 1, schema, strlen(schema));
    memcpy(quoted + 1 + strlen(schema), "\"", 2);
    assert(once__sql_fill(NULL, text, &mark, 1) <= size);
    (void)once__sql_fill(out, text, &mark, 1);
    (void)size;
}
