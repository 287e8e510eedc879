/* SPDX-License-Identifier: Apache-2.0 */
/* sqlstore.h - what the stores on a server that speaks SQL share, besides
 * rounds.h: what a step changes; records as lines of text, for dump and verify;
 * damaged ones in a scan; how many records of a copy go into one transaction. */
#ifndef ONCE_CALLS_STORE_SQLSTORE_H
#define ONCE_CALLS_STORE_SQLSTORE_H

#include <once/store.h>

enum { ONCE__LINE = 640 };

/* Where the lines of a dump or of a verify go. */
struct once__lines {
    once_line *line;
    void *user;
    int problems;
};

/* once_each, with a struct once__lines: a line for each record; or for each
 * damaged one, which is a problem. */
int once__lines_record(void *user, const uint8_t name[ONCE_NAME_SIZE],
                       const once_record *record);
int once__lines_damage(void *user, const uint8_t name[ONCE_NAME_SIZE],
                       const once_record *record);
void once__lines_problem(struct once__lines *l, const char *text);

/* 1: they differ in no column but the bytes of result, note and label. */
int once__same_head(const once_record *a, const once_record *b);

/* What a row that is damaged shows of itself: its place. */
void once__damaged(once_record *r);

/* Of r[0..n), how many. */
ONCE_CHECK size_t once__import_part(const once_named *r, size_t n);

#endif /* ONCE_CALLS_STORE_SQLSTORE_H */
