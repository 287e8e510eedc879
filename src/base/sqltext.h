/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sqltext.h - texts of SQL with names in them, for what lies in a schema of the
 * user's choice.
 */
#ifndef ONCE_BASE_SQLTEXT_H
#define ONCE_BASE_SQLTEXT_H

#include <stddef.h>

/* 1 if a schema may have this name, which then needs no escape: 1 to 63 of a-z,
 * digits and _, and no digit first. */
int once__sql_schema_ok(const char *name);

/* `mark` begins with '@'; `value` stands in its place. */
struct once__mark {
    const char *mark, *value;
};

/*
 * Copies `text` to `out`, each mark replaced by its value. Returns the size with
 * the NUL at its end; `out` NULL: only that. An '@' that begins none of them stays:
 * variables of MySQL begin so.
 */
size_t once__sql_fill(char *out, const char *text,
                      const struct once__mark *marks, size_t n);

/* The same for a statement: each '@' becomes the quoted schema. `size` is that
 * of `out`, which must be large enough. */
void once__sql_in_schema(const char *text, const char *schema, char *out,
                         size_t size);

#endif /* ONCE_BASE_SQLTEXT_H */
