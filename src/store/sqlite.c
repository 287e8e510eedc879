/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sqlite.c - the store of class A for one host: "sqlite:PATH[?busy_ms=N]".
 *
 * A batch is one transaction, so one flush. Its beginning, as far as it only
 * looks, is decided in a read transaction, which waits for nobody: replays are
 * what retries are made of. What follows is one BEGIN IMMEDIATE ... COMMIT in
 * which each operation sees those before it, and once__transition() decides.
 *
 * Whatever SQLite says at or before COMMIT is "unknown": in a write-ahead log
 * the rows of a failed commit may be there afterwards. After an error that
 * says something about the file the connection is made anew, and nothing is
 * answered before what is in the log is durable (see connect.c).
 *
 * It refuses to run over a file that is not its own, to replace a record that
 * fails its checksum, and to answer from a file that was moved away or replaced
 * meanwhile: also a new connection must find the same one.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/transition.h"
#include "core/error.h"
#include "store/arena.h"
#include "store/path.h"
#include "store/place.h"
#include "store/sqlite/sqlite.h"
#include "store/store.h"
#include "store/url.h"

enum {
    BUSY_MS = 1000, /* when neither options nor URL say more */
    BUSY_MAX_MS = 600000
};

struct sqlite {
    once_store store;
    once_store_options options;
    char *path; /* absolute: the program may change its directory */
    struct once__sqlite_link link;
    struct once__sqlite_checkpointer *checkpointer;
    struct once__places places; /* the file, and its log */
    struct once__arena arena;   /* bytes of answers, until the next call */
};

/* ---- Bytes of answers --------------------------------------------------- */

static int arena_copy(struct sqlite *s, once_bytes *b)
{
    void *to;

    if (b->size == 0) {
        b->data = NULL;
        return SQLITE_OK;
    }
    to = once__arena_take(&s->arena, b->size);
    if (to == NULL)
        return SQLITE_NOMEM;
    memcpy(to, b->data, b->size);
    b->data = to;
    return SQLITE_OK;
}

/* ---- The URL ----------------------------------------------------------- */

/* An absolute path, so that ":memory:" and "file:" mean nothing but files. */
static int parse(struct sqlite *s, const char *rest, once_error *err)
{
    uint64_t busy_ms = s->options.busy_ms;
    char *url = strdup(rest);
    int code;

    if (url == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    code = once__url_take_number(url, "busy_ms", 1, BUSY_MAX_MS, &busy_ms, err);
    if (code >= 0)
        code = once__url_end("sqlite", url, "busy_ms", err);
    if (code == ONCE_OK && *url == '\0')
        code = once__fail(err, ONCE_EURL, "sqlite: a path is missing");
    s->options.busy_ms = (uint32_t)busy_ms;
    if (code == ONCE_OK)
        code = once__path_absolute("sqlite", url, &s->path, err);
    free(url);
    return code;
}

/* ---- The file ---------------------------------------------------------- */

/*
 * Creates the file for its owner's eyes only. An existing one is not opened
 * here: closing it would drop the locks that this process holds on it through
 * another connection (POSIX, fcntl).
 */
static int create_file(const char *path, int must_exist, once_error *err)
{
    struct stat st;
    int fd, failed;

    if (must_exist && stat(path, &st) != 0)
        return once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(errno));
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
        failed = fsync(fd);
        failed |= close(fd);
        failed |= once__path_sync_folder(path);
    } else {
        failed = errno != EEXIST || stat(path, &st) != 0;
    }
    if (failed)
        return once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(errno));
    if (fd < 0 && !S_ISREG(st.st_mode))
        return once__fail(err, ONCE_EOPEN, "%s: it is not a regular file",
                          path);
    if (fd < 0 && access(path, R_OK | W_OK) != 0)
        return once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(errno));
    return ONCE_OK;
}

static int connect_link(struct sqlite *s, once_error *err)
{
    int code = once__sqlite_connect(&s->link, s->path, s->options.busy_ms, err);

    if (code == ONCE_OK && s->checkpointer != NULL)
        once__sqlite_checkpointer_watch(s->checkpointer, s->link.db);
    return code;
}

static void sqlite_close(once_store *store)
{
    struct sqlite *s = (struct sqlite *)store;

    if (s == NULL)
        return;
    once__sqlite_disconnect(&s->link);
    once__sqlite_checkpointer_close(s->checkpointer);
    once__places_clear(&s->places);
    once__arena_clear(&s->arena);
    free(s->path);
    free(s);
}

/*
 * What stands at the path, before and after it was opened. The log is there as
 * long as a connection is, and SQLite finds it by its name, too.
 */
static int open_file(struct sqlite *s, const char *rest, once_error *err)
{
    const char *log;
    int code =
        once__places_note(&s->places, rest, strcspn(rest, "?"), "", -1, err);

    if (code == ONCE_OK)
        code = connect_link(s, err);
    if (code != ONCE_OK)
        return code;
    log = sqlite3_filename_wal(sqlite3_db_filename(s->link.db, "main"));
    code = once__places_note(&s->places, log, strlen(log), "", -1, err);
    if (code == ONCE_OK)
        code = once__sqlite_checkpointer_open(s->path, &s->places.place[1], err,
                                              &s->checkpointer);
    if (code == ONCE_OK && once__places_look(&s->places, err) != ONCE_OK) {
        code = ONCE_EOPEN;
        if (err != NULL)
            err->code = code;
    }
    return code;
}

static int sqlite_open(const char *rest, const once_store_options *options,
                       once_error *err, once_store **out)
{
    struct sqlite *s = calloc(1, sizeof(*s));
    int code;

    if (s == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    s->store.ops = &once__store_sqlite;
    s->options = *options;
    if (s->options.busy_ms == 0)
        s->options.busy_ms = BUSY_MS;
    code = parse(s, rest, err);
    if (code == ONCE_OK)
        code = create_file(s->path, s->options.must_exist != 0, err);
    if (code == ONCE_OK)
        code = open_file(s, rest, err);
    if (code != ONCE_OK) {
        sqlite_close(&s->store);
        return code;
    }
    once__sqlite_checkpointer_watch(s->checkpointer, s->link.db);
    *out = &s->store;
    return ONCE_OK;
}

/* ---- Errors ------------------------------------------------------------ */

/* After these the connection goes on; all others say something of the file. */
static int passing(int rc)
{
    switch (rc & 255) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
    case SQLITE_NOMEM:
        return 1;
    default:
        return 0;
    }
}

static int unknown(struct sqlite *s, const char *what, int rc, once_error *err)
{
    if ((rc & 255) == SQLITE_BUSY)
        (void)once__fail(err, ONCE_ESTORE,
                         "%s: another process has kept it busy for %u ms",
                         s->path, s->options.busy_ms);
    else
        (void)once__sqlite_fail(err, ONCE_ESTORE, s->path, what, s->link.db,
                                rc);
    if (sqlite3_get_autocommit(s->link.db) == 0 &&
        once__sqlite_run(&s->link, ONCE__SQLITE_ROLLBACK) != SQLITE_OK)
        rc = SQLITE_IOERR;
    if (!passing(rc))
        once__sqlite_disconnect(&s->link);
    return ONCE_ESTORE;
}

/* ---- Deciding ---------------------------------------------------------- */

/* One batch under way. */
struct batch {
    once_op **ops;
    size_t n;
    size_t at; /* those before are decided */
    uint64_t fence;
    uint64_t now_ms;
};

enum loaded { MISSING, FOUND, DAMAGED, FAILED };

static enum loaded take(struct sqlite *s, sqlite3_stmt *q, const once_op *op,
                        once_record *r, int *rc)
{
    uint8_t name[ONCE_NAME_SIZE];

    if (!once__sqlite_row(q, name, r) ||
        memcmp(name, op->name, ONCE_NAME_SIZE) != 0)
        return DAMAGED;
    if (sqlite3_column_count(q) ==
        sqlite3_column_count(s->link.query[ONCE__SQLITE_LOAD]))
        *rc = arena_copy(s, &r->result);
    if (*rc == SQLITE_OK)
        *rc = arena_copy(s, &r->note);
    return *rc == SQLITE_OK ? FOUND : FAILED;
}

static enum loaded load(struct sqlite *s, const once_op *op,
                        enum once__sqlite_query query, once_record *r, int *rc)
{
    sqlite3_stmt *q = s->link.query[query];
    enum loaded loaded = FAILED;
    int step;

    memset(r, 0, sizeof(*r));
    *rc = sqlite3_bind_blob(q, 1, op->name, ONCE_NAME_SIZE, SQLITE_STATIC);
    if (*rc != SQLITE_OK)
        return FAILED;
    step = sqlite3_step(q);
    if (step == SQLITE_ROW)
        loaded = take(s, q, op, r, rc);
    else if (step == SQLITE_DONE)
        loaded = MISSING;
    else
        *rc = step;
    (void)sqlite3_reset(q);
    return loaded;
}

static int decide_from(struct sqlite *s, struct batch *b, once_op *op,
                       enum once__sqlite_query query, once_record *from,
                       once_record *to, int *changed)
{
    int rc = SQLITE_OK;
    enum loaded loaded = load(s, op, query, from, &rc);

    *changed = 0;
    if (loaded == FAILED)
        return rc;
    if (loaded == DAMAGED) {
        op->rc = ONCE_ECORRUPT;
        op->left_ms = 0;
        memset(&op->record, 0, sizeof(op->record));
        return SQLITE_OK;
    }
    *to = *from;
    *changed = once__transition(
        to, op, once__time_of(&s->store, op->verb == ONCE_OP_FORGET, b->now_ms),
        &b->fence);
    return SQLITE_OK;
}

/*
 * Decides one operation. `*changed` says whether `*to` must be written over
 * `*from`. Forgetting does not read the bodies that it forgets, only those that
 * it must show because they stay.
 */
static int decide(struct sqlite *s, struct batch *b, once_op *op,
                  once_record *from, once_record *to, int *changed)
{
    int rc;

    if (op->verb == ONCE_OP_FORGET) {
        rc = decide_from(s, b, op, ONCE__SQLITE_LOAD_HEAD, from, to, changed);
        if (rc != SQLITE_OK || op->rc != ONCE_REFUSED || from->result.size == 0)
            return rc;
    }
    return decide_from(s, b, op, ONCE__SQLITE_LOAD, from, to, changed);
}

/* Those that usually change nothing. Others go to the writer at once. */
static int may_only_look(const once_op *op)
{
    return op->verb == ONCE_OP_CLAIM || op->verb == ONCE_OP_READ ||
           op->verb == ONCE_OP_SHOW;
}

/*
 * Decides from the front of the batch as long as nothing changes. An operation
 * that would change something is decided again by write_rest(), from what is
 * there then.
 */
static int read_front(struct sqlite *s, struct batch *b)
{
    once_record from, to;
    int changed = 0, rc;

    if (!may_only_look(b->ops[0]))
        return SQLITE_OK;
    rc = once__sqlite_run(&s->link, ONCE__SQLITE_BEGIN);
    b->now_ms = s->options.clock(s->options.user);
    while (rc == SQLITE_OK && b->at < b->n && may_only_look(b->ops[b->at])) {
        rc = decide(s, b, b->ops[b->at], &from, &to, &changed);
        if (changed || rc != SQLITE_OK)
            break;
        b->at++;
    }
    return rc != SQLITE_OK ? rc
                           : once__sqlite_run(&s->link, ONCE__SQLITE_COMMIT);
}

static int write_one(struct sqlite *s, struct batch *b, once_op *op)
{
    once_record from, to;
    int changed, rc = decide(s, b, op, &from, &to, &changed);

    return rc != SQLITE_OK || !changed
               ? rc
               : once__sqlite_put(&s->link, op->name, &from, &to);
}

static int write_rest(struct sqlite *s, struct batch *b)
{
    uint64_t before = 0;
    int rc = once__sqlite_run(&s->link, ONCE__SQLITE_BEGIN_WRITE);

    if (rc == SQLITE_OK)
        rc = once__sqlite_counter(&s->link, &before);
    b->fence = before;
    b->now_ms = s->options.clock(s->options.user); /* after the wait */
    while (rc == SQLITE_OK && b->at < b->n)
        rc = write_one(s, b, b->ops[b->at++]);
    if (rc == SQLITE_OK && b->fence != before)
        rc = once__sqlite_counter_put(&s->link, b->fence);
    return rc != SQLITE_OK ? rc
                           : once__sqlite_run(&s->link, ONCE__SQLITE_COMMIT);
}

/* Connected, and to what was opened in the beginning. */
static int reconnect(struct sqlite *s, once_error *err)
{
    if (s->link.db != NULL)
        return once__places_glance(&s->places, err);
    if (once__places_look(&s->places, err) != ONCE_OK)
        return ONCE_ESTORE;
    if (connect_link(s, err) == ONCE_OK) {
        if (once__places_look(&s->places, err) == ONCE_OK)
            return ONCE_OK;
        once__sqlite_disconnect(&s->link);
    }
    if (err != NULL)
        err->code = ONCE_ESTORE;
    return ONCE_ESTORE;
}

static int sqlite_apply(once_store *store, once_op **ops, size_t n,
                        once_error *err)
{
    struct sqlite *s = (struct sqlite *)store;
    struct batch b = {ops, n, 0, 0, 0};
    int rc;

    once__arena_reset(&s->arena);
    if (n == 0)
        return ONCE_OK;
    if (reconnect(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    once__sqlite_wait_start(&s->link.wait, s->options.busy_ms);
    rc = read_front(s, &b);
    if (rc != SQLITE_OK)
        return unknown(s, "reading", rc, err);
    if (b.at == n)
        return ONCE_OK;
    rc = write_rest(s, &b);
    if (rc != SQLITE_OK)
        return unknown(s, "writing", rc, err);
    return once__places_look(&s->places, err);
}

/* ---- Scanning ---------------------------------------------------------- */

static sqlite3_stmt *scan_query(struct sqlite *s, int what,
                                const uint8_t *after)
{
    static const enum once__sqlite_query queries[] = {
        [ONCE_SCAN_ALL] = ONCE__SQLITE_SCAN_ALL,
        [ONCE_SCAN_LEASE] = ONCE__SQLITE_SCAN_LEASE,
        [ONCE_SCAN_KEEP] = ONCE__SQLITE_SCAN_KEEP,
    };
    sqlite3_stmt *q = s->link.query[queries[what]];
    uint64_t now_ms = once__time_of(&s->store, what == ONCE_SCAN_KEEP,
                                    s->options.clock(s->options.user));

    if (what != ONCE_SCAN_ALL)
        (void)sqlite3_bind_int64(q, 1, (sqlite3_int64)now_ms);
    else if (after != NULL)
        (void)sqlite3_bind_blob(q, 1, after, ONCE_NAME_SIZE, SQLITE_STATIC);
    else /* every name is greater than no bytes */
        (void)sqlite3_bind_blob(q, 1, "", 0, SQLITE_STATIC);
    return q;
}

/* Shows rows until `each` has enough. Returns SQLITE_OK, or what failed. */
static int show(sqlite3_stmt *q, once_each *each, void *user, int *shown)
{
    uint8_t name[ONCE_NAME_SIZE];
    once_record r;
    int rc, enough = 0;

    while (!enough && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        if (!once__sqlite_row(q, name, &r)) {
            memset(&r, 0, sizeof(r));
            r.state = 255;
        }
        r.result.data = NULL;
        (*shown)++;
        enough = each(user, name, &r);
    }
    (void)sqlite3_reset(q);
    return enough || rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int sqlite_scan(once_store *store, int what,
                       const once_position *after, uint32_t max, once_each *each, void *user,
                       once_error *err)
{
    struct sqlite *s = (struct sqlite *)store;
    sqlite3_stmt *q;
    int rc, shown = 0;

    if (what < ONCE_SCAN_ALL || what > ONCE_SCAN_KEEP)
        return once__fail(err, ONCE_EINVAL, "what: %d is not a scan", what);
    if (reconnect(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    once__sqlite_wait_start(&s->link.wait, s->options.busy_ms);
    q = scan_query(s, what, after == NULL ? NULL : after->name);
    (void)sqlite3_bind_int64(q, 2, max > INT_MAX ? INT_MAX : (int)max);
    rc = show(q, each, user, &shown);
    if (rc != SQLITE_OK)
        return unknown(s, "scanning", rc, err);
    return shown;
}

/* ---- The time ---------------------------------------------------------- */

/* One transaction: what another process puts is seen whole, or not yet. */
static int ask_time(struct sqlite *s, const once_store_time *put,
                    once_store_time *out)
{
    int rc = once__sqlite_run(&s->link, put != NULL ? ONCE__SQLITE_BEGIN_WRITE
                                                    : ONCE__SQLITE_BEGIN);

    if (rc == SQLITE_OK && put != NULL)
        rc = once__sqlite_time_put(&s->link, put);
    if (rc == SQLITE_OK)
        rc = once__sqlite_time(&s->link, out);
    return rc != SQLITE_OK ? rc
                           : once__sqlite_run(&s->link, ONCE__SQLITE_COMMIT);
}

static int sqlite_time(once_store *store, const once_store_time *put,
                       once_store_time *out, once_error *err)
{
    struct sqlite *s = (struct sqlite *)store;
    int rc;

    if (reconnect(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    once__sqlite_wait_start(&s->link.wait, s->options.busy_ms);
    rc = ask_time(s, put, out);
    if (rc != SQLITE_OK)
        return unknown(s, "the time", rc, err);
    out->now_ms = s->options.clock(s->options.user);
    return ONCE_OK;
}

/* The checkpointer works by itself; what went wrong there is reported here. */
static int sqlite_tend(once_store *store, once_error *err)
{
    struct sqlite *s = (struct sqlite *)store;

    return once__sqlite_checkpointer_trouble(s->checkpointer, err);
}

const once_store_ops once__store_sqlite = {
    .size = sizeof(once_store_ops),
    .name = "sqlite",
    .durable = 1,
    .shared = 1,
    .open = sqlite_open,
    .close = sqlite_close,
    .apply = sqlite_apply,
    .scan = sqlite_scan,
    .maintain = sqlite_tend,
    .time = sqlite_time,
};
