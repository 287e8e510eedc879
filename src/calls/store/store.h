/* SPDX-License-Identifier: Apache-2.0 */
/* store.h - the drivers that were built in, as stores.def lists them, and what
 * they share. The interface itself is include/once/store.h. */
#ifndef ONCE_CALLS_STORE_STORE_H
#define ONCE_CALLS_STORE_STORE_H

#include <once/store.h>

/* The clock of a caller who set none: the host's. A store with a server of
 * its own asks the server then. */
uint64_t once__wall_clock(void *user);

/* Milliseconds since once_store_clock() has read the store's clock; UINT64_MAX:
 * it has not. */
uint64_t once__store_clock_age(const once_clock *c);

/* As once_store_clock(); then elapsed store time is `behind_ms` behind the
 * store's clock, for all who use the store. */
ONCE_CHECK int once__store_clock_behind(once_store *s, once_clock *c,
                                        uint64_t behind_ms, once_error *err);

/* Which start of which host this is. */
void once__host(uint8_t out[ONCE_HOST_SIZE]);

/* The time by which this operation, or this scan, is decided. */
static inline uint64_t once__time_of(const once_store *s, int forgets,
                                     uint64_t now_ms)
{
    return forgets && s->forget_ms != 0 && s->forget_ms < now_ms ? s->forget_ms
                                                                 : now_ms;
}

/* What opening returns where the store did not answer: nothing was asked yet
 * that could have been done. */
static inline int once__opening(int rc, once_error *err)
{
    if (rc != ONCE_ESTORE)
        return rc;
    if (err != NULL)
        err->code = ONCE_EOPEN;
    return ONCE_EOPEN;
}

/* There is no store, and no caller has asked for a new one. `what` says where,
 * and what is missing. */
int once__missing(once_error *err, const char *what, const char *text);

/* By which name or at which URL a store is opened, without what only says who
 * asks and how: user, password, times. Text that once_store_open() takes. */
uint64_t once__where(const char *text);

/* The least that a store's fence counter may be with this head. */
static inline uint64_t once__fence_floor(const once_store_head *head,
                                         uint64_t fence)
{
    uint64_t floor = (uint64_t)head->incarnation << ONCE__FENCE_BITS;

    return fence > floor ? fence : floor;
}

/* This fence is of a later incarnation than the head that was read when the
 * store was opened: it was restored meanwhile, or its restored state accepted.
 * A store without head() (Redis) has no incarnations, and fences of its own. */
static inline int once__is_restored(const once_store *s, uint64_t fence)
{
    return s->ops->head != NULL &&
           fence >> ONCE__FENCE_BITS > s->head.incarnation;
}

/* Where a store's records are: the places of stores.def. */
enum once__store_place {
    ONCE__STORE_PROCESS,
    ONCE__STORE_FILE,
    ONCE__STORE_FOLDER,
    ONCE__STORE_SERVER,
    ONCE__STORE_TEST
};

/* A line of stores.def. */
struct once__store_line {
    const once_store_ops *ops;
    enum once__store_place place;
    const char *example; /* a URL, or NULL */
};

/* All lines. */
const struct once__store_line *once__store_lines(size_t *n);
/* The line of the store at a URL, or of a name; NULL if there is none. */
const struct once__store_line *once__store_line_of(const char *text);

#define ONCE_STORE(driver, place, example)                                     \
    extern const once_store_ops once__store_##driver;
#include "calls/store/stores.def"
#undef ONCE_STORE

#endif /* ONCE_CALLS_STORE_STORE_H */
