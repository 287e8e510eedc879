/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the interface of stores: for those who write one, and for tools
 * that look into one. It may change more often than once.h.
 *
 * A store keeps records and decides operations on them. It knows nothing of
 * HTTP, threads or repetitions. What an operation does is defined by one
 * function, once__transition() in src/calls/core/transition.h. A store that has
 * the record in memory calls it; a store with a language of its own (SQL, Lua)
 * must do the same as it would. test/store/conformance.c tests whether it does.
 * CONTRIBUTING.md says how to add a store.
 *
 * The functions of a driver are called by one thread at a time, and after any
 * fork. Errors and details are as in once.h.
 */
#ifndef ONCE_STORE_H
#define ONCE_STORE_H

#include <once/once.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The first member of a driver's own struct. */
typedef struct once_store {
    const struct once_store_ops *ops;
    /* One line for an operator that says how an acknowledged record of
     * this store, as it is configured, can be lost. NULL: none can. */
    const char *caveat;
    /* Set by once_store_clock(): KEEP scans and FORGET compare with this time
     * if it is earlier than the store's own. 0: with the store's own only. */
    uint64_t forget_ms;
    /* Set by once_store_open(): the head as it was then; of a driver without
     * head() at most the id, and that is set by open(). And where `caveat` points if a restored store accepts absent
     * keys. */
    once_store_head head;
    char gap_caveat[160];
    /* Set by once_store_open(): 1 if all who can use the store are processes of
     * this host, with its clock; 0 for a server. */
    int of_host;
    /* Set by once_store_open(): a number for the name or the URL, without
     * secrets; 0: no process has opened it so. */
    uint64_t where;
} once_store;

enum { ONCE_HOST_SIZE = 16 };

/* What a store knows of the time. */
typedef struct once_store_time {
    uint64_t now_ms;    /* by the clock that decides                        */
    uint64_t seen_ms;   /* the latest elapsed store time; 0: never read     */
    uint64_t steady_ms; /* what a clock that cannot be set said then, ...   */
    uint8_t host[ONCE_HOST_SIZE]; /* ... of this start of that host         */
    uint64_t backs; /* how often the store's clock was seen being set back */
} once_store_time;

typedef struct once_store_options {
    size_t size;
    /* The store's clock, in ms since 1970. Never NULL for a driver. A store
     * with a server uses the server's clock instead, unless a test has set
     * another clock here: then this time is sent to the server. */
    uint64_t (*clock)(void *user);
    void *user;
    uint32_t busy_ms; /* how long one apply() may wait for other processes */
    uint32_t create;  /* 1: open() makes a store that is not there       */
    /* Called by open() with a line that an operator should read while it takes
     * long, for example because another process recovers the store. Or NULL. */
    void (*event)(void *user, const char *text);
    void *event_user;
    uint32_t look; /* 1: nothing is to be changed: what is on a file system that
                    * is mounted read-only may be opened, and read          */
} once_store_options;

/* A record with its name. */
typedef struct once_named {
    uint8_t name[ONCE_NAME_SIZE];
    once_record record;
} once_named;

/* Called with one line of text, without a line break. */
typedef void once_line(void *user, const char *text);

typedef struct once_store_ops {
    size_t size;      /* sizeof in the driver's version; functions that are not
                       * in it count as NULL                                */
    const char *name; /* "memory": in URLs, errors and test names           */
    int durable;      /* 1: an acknowledged step survives a crash          */
    int shared;       /* 1: several processes may open one URL at once      */

    /* Opens the store; `rest` is the URL after "name:". One that is not there,
     * or is empty, is ONCE_EOPEN, with the text of once__missing(), unless
     * `create` is set: it may have been moved, or its disk is not mounted, and
     * an empty one would execute every key again. ONCE_OK, or ONCE_EOPEN,
     * ONCE_EURL, ONCE_EVERSION, ONCE_ECORRUPT, ONCE_ENOMEM, or ONCE_EAWAY if a
     * server cannot be reached, and may be later. An error text names the path,
     * never a credential. */
    int (*open)(const char *rest, const once_store_options *options,
                once_error *err, once_store **out);

    /* Closes the store. Accepts NULL. What was acknowledged is durable
     * before. */
    void (*close)(once_store *s);

    /* Decides and persists ops[0..n) in order, each as one indivisible step,
     * and fills `rc`, `left_ms` and `record` of each. All of it is durable when
     * this returns ONCE_OK. Any other return value means of each operation that
     * it may have been applied, or may be applied later; the engine repeats
     * them with the same tokens. The rc ONCE_ESTORE of one operation means the
     * same of this operation only. An operation on a record that fails its
     * checksum gets the rc ONCE_ECORRUPT and changes nothing; the others are
     * not affected. The bytes of the answers are borrowed until the next call
     * for this store. */
    int (*apply)(once_store *s, once_op **ops, size_t n, once_error *err);

    /* Calls `each` for at most `max` records, enum once_scan_what. They may be
     * out of date, because every operation that follows is conditional.
     * `result.data` is NULL. `after` is a place in the order of the scan, or
     * NULL: the first of all; LEASE and KEEP ignore it. Returns how many were
     * shown, or an error. A record that fails its checksum is shown with state
     * 255. A page of WAITING, LIVE, LEASE or KEEP must not cost a walk through
     * all records. */
    int (*scan)(once_store *s, int what, const once_position *after,
                uint32_t max, once_each *each, void *user, once_error *err);

    /* Optional. Maintenance, such as a checkpoint: called when there is nothing
     * else to do, and about once a second while there is. Must be short.
     * ONCE_OK, or an error, which the engine reports as an event. */
    int (*maintain)(once_store *s, once_error *err);

    /* Optional. Creates what open() needs and does not create even when it is
     * asked to, such as a schema. A second call changes nothing. Errors as for
     * open(). */
    int (*init)(const char *rest, const once_store_options *options,
                once_error *err);

    /* Optional. Shows what init() would do, line by line, for an administrator
     * to read, or to do by hand. */
    int (*print_schema)(const char *rest, once_line *line, void *user,
                        once_error *err);

    /* Optional. Reads the whole store, also if it is damaged or in use, and
     * changes nothing. A line for each defect; returns how many there were, or
     * an error. */
    int (*verify)(const char *rest, once_line *line, void *user,
                  once_error *err);

    /* Optional. A line for each entry of the store, in the order in which they
     * are stored, without tokens and results. Returns how many lines, or an
     * error. */
    int (*dump)(const char *rest, once_line *line, void *user, once_error *err);

    /* Optional. Reads the store's clock into `out->now_ms`, and the other
     * members of `*out` as they were stored last. If `put` is not NULL, all its
     * members but `now_ms` are stored first; they need not be as durable as
     * records. A store without this function forgets by its clock alone, even
     * if that is wrong. */
    int (*time)(once_store *s, const once_store_time *put, once_store_time *out,
                once_error *err);

    /* Counts, without a walk through all records; what other processes do at
     * this moment may be missing. ONCE_OK, or an error. */
    int (*count)(once_store *s, once_counts *out, once_error *err);

    /*
     * Reads the store's head into `*out`. If `put` is not NULL, it is stored
     * first, durably, and every fence granted from then on is above
     * `put->incarnation` << 48. A store that is opened for the first time has
     * a random id, incarnation 0 and no gap. ONCE_OK, or an error.
     */
    int (*head)(once_store *s, const once_store_head *put, once_store_head *out,
                once_error *err);

    /*
     * Stores the records r[0..n) as they are, for a restore
     * into a store that no other process uses: none of these names may be in
     * it. All are durable when this returns ONCE_OK; after an error the store
     * is not to be used. Fences that are granted later are above all of theirs.
     */
    int (*import)(once_store *s, const once_named *r, size_t n,
                  once_error *err);

    /* The largest fence that was granted so far, and at least the incarnation
     * << 48. ONCE_OK, or an error. A store that has head() has this. */
    int (*fence)(once_store *s, uint64_t *out, once_error *err);
} once_store_ops;

/*
 * Opens the store at `url` without an engine, for tools. `options` may be NULL,
 * and so may its clock; one that is not there is made only if they say so. The caller ends it with once_store_close(). Returns
 * ONCE_OK or the errors of once_engine_open(). Since 0.1.
 */
ONCE_API ONCE_CHECK int once_store_open(const char *url,
                                        const once_store_options *options,
                                        once_error *err, once_store **out);

/* Closes a store that once_store_open() has opened. Accepts NULL. Since 0.1. */
ONCE_API void once_store_close(once_store *s);

/* What one user of a store knows of the store's clock: zeros at first, but for
 * `every_ms`. */
typedef struct once_clock {
    uint64_t now_ms;    /* by the store's clock                             */
    uint64_t seen_ms;   /* elapsed: records are forgotten by this           */
    uint64_t behind_ms; /* how far that is behind                           */
    int64_t jumped_ms;  /* how far the store's clock was set ahead (over 0)
                         * or back since the last call; 0: it was not       */
    /* Set by the caller: how often it asks. A caller that has not asked for
     * four times as long, while another process stored a time, goes on from
     * the stored time. */
    uint64_t every_ms;
    /* For the next call: */
    uint64_t before_ms, after_ms, backs, has_put, put_ms;
    uint8_t host[ONCE_HOST_SIZE], put_host[ONCE_HOST_SIZE];
} once_clock;

/*
 * Reads the store's clock, and sets `s->forget_ms` to the time that has
 * certainly passed (docs/protocol.md, section 8). To be called before each
 * KEEP scan and each FORGET. `*c` is the caller's, all zero before the first
 * call. Returns
 *   ONCE_OK     Both are known now.
 *   ONCE_ENOSYS The store has no time(): it forgets by its clock alone.
 *   ONCE_ESTORE, or another error
 *               The clock was not read, or what is known of it was not stored:
 *               nothing may be forgotten now.
 * Since 0.1.
 */
ONCE_API ONCE_CHECK int once_store_clock(once_store *s, once_clock *c,
                                         once_error *err);

/* The same, and accepts the store's clock as right, for all who use the store.
 * For operators. Since 0.1. */
ONCE_API ONCE_CHECK int once_store_clock_accept(once_store *s, once_clock *c,
                                                once_error *err);

/*
 * Creates the store at `url`: a file, a folder, a schema. A second call changes
 * nothing. Returns ONCE_OK, also if the store needs nothing, or the errors of
 * once_engine_open(). Since 0.1.
 */
ONCE_API ONCE_CHECK int once_store_init(const char *url, once_error *err);

/* Shows what once_store_init() would do, line by line. Returns ONCE_OK,
 * ONCE_ENOSYS if the store needs nothing, or another error. Since 0.1. */
ONCE_API ONCE_CHECK int once_store_print_schema(const char *url,
                                                once_line *line, void *user,
                                                once_error *err);

/* Reads the whole store, also if it is damaged or in use, changes nothing, and
 * shows a line for each defect. Returns how many there were, ONCE_ENOSYS if the
 * store has no such function, or another error. Since 0.1. */
ONCE_API ONCE_CHECK int once_store_verify(const char *url, once_line *line,
                                          void *user, once_error *err);

/* Shows a line for each entry of the store, in the order in which they are
 * stored, without tokens and results. Returns how many lines there were,
 * ONCE_ENOSYS if the store has no such function, or another error. Since
 * 0.1. */
ONCE_API ONCE_CHECK int once_store_dump(const char *url, once_line *line,
                                        void *user, once_error *err);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_STORE_H */
