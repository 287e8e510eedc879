/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - for those who write a store. Weaker stability promise than once.h.
 *
 * A store remembers records and decides operations on them; it knows nothing
 * of HTTP, of threads or of retries. What an operation means is said by one
 * function, once__apply() in src/core/apply.h: a store that has the record at
 * hand calls it, a store with a language of its own (SQL, Lua) must behave as
 * if it did. test/store/conformance.c decides whether it does.
 *
 * A driver is one file and one line in src/store/stores.def. Its functions are
 * called by one thread at a time, after any fork.
 */
#ifndef ONCE_STORE_H
#define ONCE_STORE_H

#include <once/once.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A driver's own struct begins with this. */
typedef struct once_store {
    const struct once_store_ops *ops;
    /* NULL, or one line for an operator: what an acknowledged record of this
     * store, as it is set up, is not safe from. It is of class B then. */
    const char *caveat;
    /* Set by whoever uses the store, with once_store_clock(): KEEP scans and
     * FORGET go by this time where it is earlier than the store's own. 0: by
     * the store's alone. */
    uint64_t forget_ms;
} once_store;

enum { ONCE_HOST_SIZE = 16 };

/* What a store knows of the time. */
typedef struct once_store_time {
    uint64_t now_ms;    /* by the clock that decides                        */
    uint64_t seen_ms;   /* the latest time that was seen to pass; 0: never  */
    uint64_t steady_ms; /* what a clock that cannot be set said then, ...   */
    uint8_t host[ONCE_HOST_SIZE]; /* ... of this start of that host         */
    uint64_t backs; /* how often the store's clock was seen being set back */
} once_store_time;

typedef struct once_store_options {
    size_t size;
    /* The store's clock, in ms since 1970. Never NULL when a driver sees it.
     * A store with a server of its own asks that server instead, unless a test
     * has set another clock here: then the server is told the time. */
    uint64_t (*clock)(void *user);
    void *user;
    uint32_t busy_ms;    /* how long one apply() may wait for other processes */
    uint32_t must_exist; /* 1: open() does not make what is not there       */
    /* What an operator should read while open() takes its time, say because
     * another process recovers the store. Called by open() only. NULL: nobody
     * reads it. */
    void (*event)(void *user, const char *text);
    void *event_user;
} once_store_options;

/* Which records a scan shows. */
enum once_scan_what {
    ONCE_SCAN_ALL = 0, /* all, in the order of their names, behind `after`  */
    ONCE_SCAN_LEASE,   /* claimed or dispatched, and the lease is over      */
    ONCE_SCAN_KEEP     /* completed or absent, and kept long enough         */
};

/* Called with one line of text, without a line break. */
typedef void once_line(void *user, const char *text);

typedef struct once_store_ops {
    size_t size;      /* As the driver knew it; slots past it count as NULL. */
    const char *name; /* "memory": in URLs, errors and test names.           */
    int durable;      /* 1: class A, an acknowledged step survives a crash.  */
    int shared;       /* 1: several processes may open one URL at once.      */

    /* Opens what stands behind "name:" in the URL, creating it where it does
     * not exist. ONCE_EOPEN, ONCE_EURL, ONCE_EVERSION, ONCE_ECORRUPT, and
     * ONCE_EAWAY where a server does not answer, so that it may be there later;
     * an error text names the path, never a credential. */
    int (*open)(const char *rest, const once_store_options *options,
                once_error *err, once_store **out);

    /* Accepts NULL. What was acknowledged is durable already. */
    void (*close)(once_store *s);

    /* Decide and persist ops[0..n) in order, each as one indivisible step, and
     * fill `rc`, `left_ms` and `record` of each. All of it is durable when this
     * returns ONCE_OK; any other return means that each may or may not have
     * been applied, now or much later, and the engine asks again with the same
     * tokens. One operation alone may have the rc ONCE_ESTORE, which says this
     * of it only. One whose record does not check gets rc ONCE_ECORRUPT and
     * changes nothing; the others go on. Bytes in answers are borrowed
     * until the next call on this store. */
    int (*apply)(once_store *s, once_op **ops, size_t n, once_error *err);

    /* Show at most `max` records to `each`; stale answers are harmless, since
     * every step that follows is conditional. `result.data` is NULL. For
     * ONCE_SCAN_ALL `after` is the last name seen, or NULL. Returns how many
     * were shown, or an error. A record that does not check is shown with
     * state 255, so that a list says so. */
    int (*scan)(once_store *s, int what, const uint8_t *after, uint32_t max,
                once_each *each, void *user, once_error *err);

    /* Optional. Called in quiet moments, and at least once a second while busy:
     * the place for a checkpoint. Must be short. */
    int (*tend)(once_store *s, once_error *err);

    /* Optional. Makes what open() expects to find and cannot make by itself,
     * say a schema. A second call changes nothing. Errors as for open(). */
    int (*init)(const char *rest, const once_store_options *options,
                once_error *err);

    /* Optional. The same as text, line by line, for an administrator who wants
     * to read it first. */
    int (*print_schema)(const char *rest, once_line *line, void *user,
                        once_error *err);

    /* Optional. Reads all that stands behind the URL, also if it is damaged or
     * in use, and changes nothing. A line for each thing that is wrong; returns
     * how many there were, or an error. */
    int (*verify)(const char *rest, once_line *line, void *user,
                  once_error *err);

    /* Optional. A line for each thing stored, in the order in which it is
     * stored: no tokens, no results. Returns how many lines, or an error. */
    int (*dump)(const char *rest, once_line *line, void *user, once_error *err);

    /* Optional. Says what the time is, and the rest of `*out` as it was put
     * last. If `put` is not NULL, its other members are put
     * first; they need not survive what a record survives. Without this
     * function records are forgotten by the store's clock, right or wrong. */
    int (*time)(once_store *s, const once_store_time *put, once_store_time *out,
                once_error *err);
} once_store_ops;

/*
 * Opens the store at `url`. `options` may be NULL, and its clock too. Errors as
 * for once_engine_open(); the caller ends it with once_store_close().
 */
ONCE_API ONCE_CHECK int once_store_open(const char *url,
                                        const once_store_options *options,
                                        once_error *err, once_store **out);
ONCE_API void once_store_close(once_store *s);

/* What one user of a store knows of the store's clock: zeros at first, but for
 * `every_ms`. */
typedef struct once_clock {
    uint64_t now_ms;    /* by the store's clock                             */
    uint64_t seen_ms;   /* seen to pass: records are forgotten by this      */
    uint64_t behind_ms; /* how far that is behind                           */
    int64_t jumped_ms;  /* how far the store's clock was set ahead (over 0)
                         * or back since the last call; 0: it was not       */
    /* Set by the caller: how often it asks. Who has not asked for four times as
     * long, while somebody else has put something, knows only what is kept. */
    uint64_t every_ms;
    /* For the next call: */
    uint64_t before_ms, after_ms, backs, has_put, put_ms;
    uint8_t host[ONCE_HOST_SIZE], put_host[ONCE_HOST_SIZE];
} once_clock;

/*
 * Asks the store for the time and holds its forgetting to what was seen to pass
 * (docs/protocol.md, section 8): before each step of a sweep. ONCE_ENOSYS: the
 * store tells no time. ONCE_ESTORE: nothing may be forgotten now.
 */
ONCE_API ONCE_CHECK int once_store_clock(once_store *s, once_clock *c,
                                         once_error *err);
/* The same, and takes the store's clock for right, for all who use the store. */
ONCE_API ONCE_CHECK int once_store_clock_accept(once_store *s, once_clock *c,
                                                once_error *err);

/*
 * The optional functions of a driver, by URL. ONCE_ENOSYS where the store has
 * none; for once_store_init() that is ONCE_OK, since it needs none.
 */
ONCE_API ONCE_CHECK int once_store_init(const char *url, once_error *err);
ONCE_API ONCE_CHECK int once_store_print_schema(const char *url,
                                                once_line *line, void *user,
                                                once_error *err);
ONCE_API ONCE_CHECK int once_store_verify(const char *url, once_line *line,
                                          void *user, once_error *err);
ONCE_API ONCE_CHECK int once_store_dump(const char *url, once_line *line,
                                        void *user, once_error *err);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_STORE_H */
