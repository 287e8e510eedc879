/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - a copy of a store in one file: to keep it, and to move it into a
 * store of any kind.
 *
 *    head      "ONCECOPY", version, the store's id and incarnation, when begun,
 *              how far the store's clock was ahead of elapsed store time
 *    records   length (4), name (32), the record as calls/core/record.c has it
 *    end       length 0, how many, largest fence, longest retention, when ended,
 *              SHA-256 of everything before it
 *
 * Numbers are little-endian. The store may be in use while it is copied: each
 * record is as it was at some moment between begin and end, so what matters is
 * when the copy was begun. A file without its end, or with another sum, is not
 * a copy (ONCE_ECORRUPT). It holds stored responses in clear.
 *
 *    write.c   from a store into a file
 *    read.c    back, record by record; and all of it to check
 *    restore.c from a file into an empty store
 */
#ifndef ONCE_OPERATE_COPY_COPY_H
#define ONCE_OPERATE_COPY_COPY_H

#include <stdio.h>

#include <once/store.h>

enum {
    ONCE__COPY_VERSION = 2,
    ONCE__COPY_HEAD = 52,
    ONCE__COPY_SUM = 36, /* where the sum begins in the end */
    ONCE__COPY_END = 68,
    ONCE__COPY_RECORDS = 256,   /* in one step                     */
    ONCE__COPY_BYTES = 16 << 20 /* of results in one step, and one more */
};

/* What a copy says of itself. */
typedef struct once__copy_about {
    uint8_t id[ONCE_STORE_ID_SIZE];
    uint32_t incarnation;
    uint64_t begun_ms, ended_ms; /* by the store's clock                    */
    uint64_t ahead_ms; /* how far that was ahead of elapsed store time      */
    uint64_t records;
    uint64_t unreadable; /* writing: left out, since they fail their checksum */
    uint64_t fence;      /* the largest                                     */
    uint64_t keep_ms;    /* the longest retention of an outcome in it, or what
                          * was left of the store's own gap                 */
} once__copy_about;

/* Called now and then with the number of records so far. Or NULL. */
typedef void once__copy_progress(void *user, uint64_t records);

/*
 * Copies all records of `s` into a new file at `path`, which appears when it is
 * whole and on disk. ONCE_OK; ONCE_EOPEN: the file exists or cannot be written;
 * ONCE_ENOSYS: this store cannot be copied; or an error of the store. After an
 * error there is no file.
 */
ONCE_CHECK int once__copy_write(once_store *s, const char *path,
                                once__copy_progress *progress, void *user,
                                once__copy_about *about, once_error *err);

typedef struct once__copy once__copy;

/* Opens a copy and reads all of it to check its sum; ONCE_OK, ONCE_EOPEN,
 * ONCE_EVERSION, ONCE_ECORRUPT or ONCE_ENOMEM. */
ONCE_CHECK int once__copy_open(const char *path, once_error *err,
                               once__copy **out);
void once__copy_close(once__copy *c); /* accepts NULL */
const once__copy_about *once__copy_about_of(const once__copy *c);
/* The next record: 1, its bytes are borrowed until the next call; 0: that was
 * the last one; or an error. */
ONCE_CHECK int once__copy_next(once__copy *c, once_named *out, once_error *err);

/* What to do with keys that are absent until the longest retention is over. */
typedef struct once__restore {
    int gap;          /* ONCE_GAP_HOLD or ONCE_GAP_ACCEPT               */
    uint64_t keep_ms; /* how long from now on; at least the copy's      */
    once__copy_progress *progress;
    void *user;
} once__restore;

/*
 * Puts all records of a copy into the empty store `s`, raises its incarnation
 * above the copy's, and opens the gap. What was claimed or dispatched in the
 * copy becomes indeterminate, reason "gap": its owner is gone, and may have
 * done its work. `*head` is then the store's. ONCE_OK; ONCE_EINVAL: the store is
 * not empty; ONCE_ENOSYS: it takes no copies back; or an error of either. After
 * an error the store holds back every key and must be thrown away.
 */
ONCE_CHECK int once__copy_restore(once__copy *c, once_store *s,
                                  const once__restore *how,
                                  once_store_head *head, once_error *err);

/* The same gap and a raised incarnation for a store restored to an earlier
 * state by other means. A gap that it has already does not end earlier. */
ONCE_CHECK int once__copy_adopt(once_store *s, const once__restore *how,
                                once_store_head *head, once_error *err);

#endif /* ONCE_OPERATE_COPY_COPY_H */
