/* SPDX-License-Identifier: Apache-2.0 */
/* table.h - the memory store's records: found by name, walked in the order of
 * names, and known by when they are due. It decides nothing. */
#ifndef ONCE_CALLS_STORE_TABLE_H
#define ONCE_CALLS_STORE_TABLE_H

#include <once/store.h>

/* Result, note, label and group of one record, the group without its NULs;
 * `next` while it waits to be freed. */
struct once__blob {
    struct once__blob *next;
    uint32_t result;
    uint32_t note;
    uint32_t label;
    uint32_t group;
    uint8_t bytes[];
};

/* A record, packed. The fields are once_record's. */
struct once__table_row {
    struct once__table_row *low, *high; /* names below and above */
    struct once__blob *blob;
    uint32_t rank;   /* random; never below that of a child */
    uint32_t due_at; /* 1 + place in its heap, 0: in none   */
    uint8_t name[ONCE_NAME_SIZE];
    uint8_t state, kind, policy, doubt, reason;
    uint32_t attempt;
    uint64_t fence, lease_ms, keep_ms, granted_ms, created_ms, ended_ms;
    uint8_t token[ONCE_TOKEN_SIZE];
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint8_t trace[ONCE_TRACE_SIZE];
    uint8_t subject[ONCE_SUBJECT_SIZE];
};

struct once__heap {
    struct once__table_row **at;
    size_t count, room;
};

struct once__table {
    struct once__table_row *
        *now; /* 1 << bits trees, by the first bits of names */
    struct once__table_row *
        *fresh;   /* twice as many, while growing, or NULL       */
    size_t moved; /* so many of `now` have gone to `fresh`       */
    unsigned bits;
    size_t rows;
    uint64_t random;
    struct once__heap leases, keeps, waiting;
};

ONCE_CHECK int once__table_init(struct once__table *t, uint64_t seed);
/* Frees all rows and their blobs. */
void once__table_clear(struct once__table *t);

struct once__table_row *once__table_find(struct once__table *t,
                                         const uint8_t name[ONCE_NAME_SIZE]);
/* The first row after `name`, of all if it is NULL; NULL at the end. */
struct once__table_row *once__table_after(struct once__table *t,
                                          const uint8_t *name);

/* A new row, absent and due nowhere, or NULL: out of memory. Whatever becomes
 * of it later needs no memory for the table. */
struct once__table_row *once__table_add(struct once__table *t,
                                        const uint8_t name[ONCE_NAME_SIZE]);
void once__table_remove(struct once__table *t, struct once__table_row *row);

/* Around each change of a row's state and times: out of its heap, and back
 * into the right one. */
void once__table_undue(struct once__table *t, struct once__table_row *row);
void once__table_due(struct once__table *t, struct once__table_row *row);

/* Shows at most `max` rows that are due in one heap to `each`, in no order,
 * until it returns other than 0. Looks at no more than 2 * max + 1 rows. */
void once__heap_walk(const struct once__heap *h, uint64_t now_ms, uint32_t max,
                     int (*each)(void *user, const struct once__table_row *row),
                     void *user);

/* The rows of one heap in the order of their times and names, behind `after`
 * (NULL: from the first): at most `max`, borrowed, in an array that the caller
 * frees. NULL: no memory. */
struct once__table_row **once__heap_page(const struct once__heap *h,
                                         const once_position *after,
                                         uint32_t max, size_t *n);

#endif /* ONCE_CALLS_STORE_TABLE_H */
