/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sqlite.c - the durable store for one host: "sqlite:PATH[?busy_ms=N]".
 *
 * A batch is one transaction, so one flush. Its beginning, as far as it only
 * looks, is decided in a read transaction, which waits for no lock: replays are
 * what retries are made of. What follows is one BEGIN IMMEDIATE ... COMMIT in
 * which each operation sees those before it, and once__transition() decides.
 *
 * Whatever SQLite says at or before COMMIT is "unknown": in a write-ahead log
 * the rows of a failed commit may be there afterwards. After an error that
 * says something about the file the connection is opened again, and nothing is
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

#include "calls/core/transition.h"
#include "base/error.h"
#include "calls/store/arena.h"
#include "base/path.h"
#include "calls/store/place.h"
#include "calls/store/sqlite/sqlite.h"
#include "calls/store/store.h"
#include "base/url.h"

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
        code = once__path_resolve("sqlite", url, &s->path, err);
    if (code == ONCE_EOPEN && errno == ENOENT && s->options.create == 0)
        code = once__missing(err, url, "its folder does not exist");
    free(url);
    return code;
}

/* ---- The file ---------------------------------------------------------- */

/*
 * Creates the file, if it is to, for its owner's eyes only. An existing one is not opened
 * here: closing it would drop the locks that this process holds on it through
 * another connection (POSIX, fcntl).
 */
static int have_file(struct sqlite *s, int create, once_error *err)
{
    const char *path = s->path;
    struct stat st;
    int fd = -1, failed;

    errno = EEXIST;
    if (create)
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
        failed = fsync(fd);
        failed |= close(fd);
        failed |= once__path_sync_folder(path);
    } else {
        failed = errno != EEXIST || stat(path, &st) != 0;
    }
    if (failed && !create && errno == ENOENT)
        return once__missing(err, path, "it does not exist");
    if (failed)
        return once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(errno));
    if (fd < 0 && !S_ISREG(st.st_mode))
        return once__fail(err, ONCE_EOPEN, "%s: it is not a regular file",
                          path);
    if (fd >= 0 || access(path, R_OK | W_OK) == 0)
        return ONCE_OK;
    s->link.read_only =
        errno == EROFS && s->options.look && access(path, R_OK) == 0;
    return s->link.read_only
               ? ONCE_OK
               : once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(errno));
}

static int connect_link(struct sqlite *s, int create, once_error *err)
{
    int code = once__sqlite_connect(&s->link, s->path, s->options.busy_ms,
                                    create, err);

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
        code = connect_link(s, s->options.create != 0, err);
    if (code != ONCE_OK || s->link.read_only)
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
        code = have_file(s, s->options.create != 0, err);
    if (code == ONCE_OK)
        code = open_file(s, rest, err);
    if (code != ONCE_OK) {
        sqlite_close(&s->store);
        return code;
    }
    if (s->checkpointer != NULL)
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
    int code = once__sqlite_is_damage(rc) ? ONCE_ECORRUPT : ONCE_ESTORE;

    if ((rc & 255) == SQLITE_BUSY)
        (void)once__fail(err, ONCE_ESTORE,
                         "%s: another process has kept it busy for %u ms",
                         s->path, s->options.busy_ms);
    else
        (void)once__sqlite_fail(err, code, s->path, what, s->link.db, rc);
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
    struct once__sqlite_counter counter;
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
    if (*rc == SQLITE_OK)
        *rc = arena_copy(s, &r->label);
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
        &b->counter.fence);
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

    if (rc != SQLITE_OK || !changed)
        return rc;
    b->counter.records += to.attempt > 0;
    b->counter.records -= from.attempt > 0;
    return once__sqlite_put(&s->link, op->name, &from, &to);
}

static int put_counter(struct sqlite *s,
                       const struct once__sqlite_counter *before,
                       const struct once__sqlite_counter *now)
{
    return before->fence == now->fence && before->records == now->records
               ? SQLITE_OK
               : once__sqlite_counter_put(&s->link, now);
}

static int write_rest(struct sqlite *s, struct batch *b)
{
    struct once__sqlite_counter before = {0, 0};
    int rc = once__sqlite_run(&s->link, ONCE__SQLITE_BEGIN_WRITE);

    if (rc == SQLITE_OK)
        rc = once__sqlite_counter(&s->link, &before);
    b->counter = before;
    b->now_ms = s->options.clock(s->options.user); /* after the wait */
    while (rc == SQLITE_OK && b->at < b->n)
        rc = write_one(s, b, b->ops[b->at++]);
    if (rc == SQLITE_OK)
        rc = put_counter(s, &before, &b->counter);
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
    if (connect_link(s, 0, err) == ONCE_OK) {
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
    struct batch b = {ops, n, 0, {0, 0}, 0};
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

static int has_place(int what)
{
    return what == ONCE_SCAN_WAITING || what == ONCE_SCAN_LIVE;
}

/* ?1 a time, ?2 how many, ?3 a name; for all records ?1 is the name. Every name
 * is greater than no bytes. */
static sqlite3_stmt *scan_query(struct sqlite *s, int what,
                                const once_position *after, uint32_t max)
{
    static const enum once__sqlite_query queries[] = {
        [ONCE_SCAN_ALL] = ONCE__SQLITE_SCAN_ALL,
        [ONCE_SCAN_LEASE] = ONCE__SQLITE_SCAN_LEASE,
        [ONCE_SCAN_KEEP] = ONCE__SQLITE_SCAN_KEEP,
        [ONCE_SCAN_WAITING] = ONCE__SQLITE_SCAN_WAITING,
        [ONCE_SCAN_LIVE] = ONCE__SQLITE_SCAN_LIVE,
    };
    sqlite3_stmt *q = s->link.query[queries[what]];
    const void *name = after != NULL ? (const void *)after->name : "";
    int size = after != NULL ? ONCE_NAME_SIZE : 0;
    uint64_t ms = 0;

    if (has_place(what))
        ms = after != NULL ? after->ms : 0;
    else if (what != ONCE_SCAN_ALL)
        ms = once__time_of(&s->store, what == ONCE_SCAN_KEEP,
                           s->options.clock(s->options.user));
    ms = ms > INT64_MAX ? INT64_MAX : ms;
    if (what == ONCE_SCAN_ALL || has_place(what))
        (void)sqlite3_bind_blob(q, what == ONCE_SCAN_ALL ? 1 : 3, name, size,
                                SQLITE_STATIC);
    if (what != ONCE_SCAN_ALL)
        (void)sqlite3_bind_int64(q, 1, (sqlite3_int64)ms);
    (void)sqlite3_bind_int64(q, 2, max > INT_MAX ? INT_MAX : (int)max);
    return q;
}

/* Shows rows until `each` has enough. Returns SQLITE_OK, or what failed. */
static int show(sqlite3_stmt *q, once_each *each, void *user, int *shown)
{
    uint8_t name[ONCE_NAME_SIZE];
    once_record r;
    int rc, enough = 0;

    while (!enough && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        if (!once__sqlite_row(q, name, &r))
            once__sqlite_damaged(q, &r);
        r.result.data = NULL;
        (*shown)++;
        enough = each(user, name, &r);
    }
    (void)sqlite3_reset(q);
    return enough || rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int sqlite_scan(once_store *store, int what, const once_position *after,
                       uint32_t max, once_each *each, void *user,
                       once_error *err)
{
    struct sqlite *s = (struct sqlite *)store;
    int rc, shown = 0;

    if (what < ONCE_SCAN_ALL || what >= ONCE__SCAN_END)
        return once__fail(err, ONCE_EINVAL, "what: %d is not a scan", what);
    if (reconnect(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    once__sqlite_wait_start(&s->link.wait, s->options.busy_ms);
    rc = show(scan_query(s, what, after, max), each, user, &shown);
    if (rc != SQLITE_OK)
        return unknown(s, "scanning", rc, err);
    return shown;
}

/* ---- Counting ---------------------------------------------------------- */

static int count_live(struct sqlite *s, once_counts *out)
{
    sqlite3_stmt *q = s->link.query[ONCE__SQLITE_COUNT];
    int rc = sqlite3_step(q);

    if (rc == SQLITE_ROW) {
        out->claimed = (uint64_t)sqlite3_column_int64(q, 0);
        out->dispatched = (uint64_t)sqlite3_column_int64(q, 1) - out->claimed;
        out->indeterminate = (uint64_t)sqlite3_column_int64(q, 2);
        rc = SQLITE_OK;
    }
    (void)sqlite3_reset(q);
    return rc;
}

static int count_all(struct sqlite *s, once_counts *out)
{
    struct once__sqlite_counter counter;
    int rc = once__sqlite_run(&s->link, ONCE__SQLITE_BEGIN);
    uint64_t others;

    if (rc == SQLITE_OK)
        rc = count_live(s, out);
    if (rc == SQLITE_OK)
        rc = once__sqlite_counter(&s->link, &counter);
    if (rc != SQLITE_OK)
        return rc;
    others = out->claimed + out->dispatched + out->indeterminate;
    out->rest = counter.records > others ? counter.records - others : 0;
    return once__sqlite_run(&s->link, ONCE__SQLITE_COMMIT);
}

static int sqlite_count(once_store *store, once_counts *out, once_error *err)
{
    struct sqlite *s = (struct sqlite *)store;
    int rc;

    memset(out, 0, sizeof(*out));
    if (reconnect(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    once__sqlite_wait_start(&s->link.wait, s->options.busy_ms);
    rc = count_all(s, out);
    return rc != SQLITE_OK ? unknown(s, "counting", rc, err) : ONCE_OK;
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

/* ---- The head ---------------------------------------------------------- */

static int put_head(struct sqlite *s, const once_store_head *put)
{
    struct once__sqlite_counter before, now;
    int rc = once__sqlite_counter(&s->link, &before);

    if (rc != SQLITE_OK)
        return rc;
    now = before;
    now.fence = once__fence_floor(put, before.fence);
    rc = put_counter(s, &before, &now);
    return rc != SQLITE_OK ? rc : once__sqlite_head_put(&s->link, put);
}

static int ask_head(struct sqlite *s, const once_store_head *put,
                    once_store_head *out)
{
    int rc = once__sqlite_run(&s->link, put != NULL ? ONCE__SQLITE_BEGIN_WRITE
                                                    : ONCE__SQLITE_BEGIN);

    if (rc == SQLITE_OK && put != NULL)
        rc = put_head(s, put);
    if (rc == SQLITE_OK)
        rc = once__sqlite_head(&s->link, out);
    return rc != SQLITE_OK ? rc
                           : once__sqlite_run(&s->link, ONCE__SQLITE_COMMIT);
}

static int sqlite_head(once_store *store, const once_store_head *put,
                       once_store_head *out, once_error *err)
{
    struct sqlite *s = (struct sqlite *)store;
    int rc;

    if (reconnect(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    once__sqlite_wait_start(&s->link.wait, s->options.busy_ms);
    rc = ask_head(s, put, out);
    if (rc != SQLITE_OK)
        return unknown(s, "the head", rc, err);
    return put == NULL ? ONCE_OK : once__places_look(&s->places, err);
}

static int sqlite_fence(once_store *store, uint64_t *out, once_error *err)
{
    struct sqlite *s = (struct sqlite *)store;
    struct once__sqlite_counter counter;
    int rc;

    if (reconnect(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    once__sqlite_wait_start(&s->link.wait, s->options.busy_ms);
    rc = once__sqlite_counter(&s->link, &counter);
    if (rc != SQLITE_OK)
        return unknown(s, "the fence", rc, err);
    *out = counter.fence;
    return ONCE_OK;
}

/* ---- Records of a copy ------------------------------------------------- */

/* SQLITE_CONSTRAINT: the name is there. */
static int import_one(struct sqlite *s, const once_named *r,
                      struct once__sqlite_counter *counter)
{
    once_record from;
    once_op op;
    int rc;

    memcpy(op.name, r->name, ONCE_NAME_SIZE);
    switch (load(s, &op, ONCE__SQLITE_LOAD_HEAD, &from, &rc)) {
    case MISSING:
        break;
    case FAILED:
        return rc;
    default:
        return SQLITE_CONSTRAINT;
    }
    counter->records++;
    if (r->record.fence > counter->fence)
        counter->fence = r->record.fence;
    return once__sqlite_put(&s->link, r->name, &from, &r->record);
}

static int import_all(struct sqlite *s, const once_named *r, size_t n)
{
    struct once__sqlite_counter before, now;
    int rc = once__sqlite_run(&s->link, ONCE__SQLITE_BEGIN_WRITE);
    size_t i;

    if (rc == SQLITE_OK)
        rc = once__sqlite_counter(&s->link, &before);
    if (rc == SQLITE_OK)
        now = before;
    for (i = 0; i < n && rc == SQLITE_OK; i++)
        rc = import_one(s, &r[i], &now);
    if (rc == SQLITE_OK)
        rc = put_counter(s, &before, &now);
    return rc != SQLITE_OK ? rc
                           : once__sqlite_run(&s->link, ONCE__SQLITE_COMMIT);
}

static int sqlite_import(once_store *store, const once_named *r, size_t n,
                         once_error *err)
{
    struct sqlite *s = (struct sqlite *)store;
    int rc;

    once__arena_reset(&s->arena);
    if (reconnect(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    once__sqlite_wait_start(&s->link.wait, s->options.busy_ms);
    rc = import_all(s, r, n);
    if (rc == SQLITE_OK) {
        once__sqlite_checkpointer_await(s->checkpointer);
        return once__places_look(&s->places, err);
    }
    (void)unknown(s, "importing", rc, err);
    return (rc & 255) != SQLITE_CONSTRAINT
               ? ONCE_ESTORE
               : once__fail(err, ONCE_EINVAL,
                            "%s: a record of the same name is there", s->path);
}

/* The checkpointer works by itself; what went wrong there is reported here, and
 * so is a file that was moved or replaced while no call comes. */
static int sqlite_tend(once_store *store, once_error *err)
{
    struct sqlite *s = (struct sqlite *)store;
    int rc = once__places_look(&s->places, err);

    return rc != ONCE_OK || s->checkpointer == NULL
               ? rc
               : once__sqlite_checkpointer_trouble(s->checkpointer, err);
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
    .count = sqlite_count,
    .head = sqlite_head,
    .import = sqlite_import,
    .fence = sqlite_fence,
};
