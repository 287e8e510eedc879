/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect.c - one connection to the file: whose it is, its schema, its
 * statements.
 *
 * It looks before it writes: a file of another application, another schema
 * version or another kind is refused and left as it is. It keeps I7 in a
 * corner: a writer that was killed between writing and flushing leaves rows
 * that can be read but are not durable, so nothing is answered before they are.
 */
#include "calls/store/sqlite/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/steady.h"
#include "calls/store/store.h"

static const char schema[] =
    "CREATE TABLE claim(name BLOB NOT NULL PRIMARY KEY,"
    " fence INTEGER NOT NULL, attempt INTEGER NOT NULL,"
    " phase INTEGER NOT NULL, policy INTEGER NOT NULL,"
    " doubt INTEGER NOT NULL, reason INTEGER NOT NULL,"
    " created INTEGER NOT NULL, granted INTEGER NOT NULL,"
    " ended INTEGER NOT NULL, keep INTEGER NOT NULL, sum INTEGER NOT NULL,"
    " token BLOB NOT NULL, fingerprint BLOB NOT NULL, note BLOB NOT NULL,"
    " grp BLOB NOT NULL, trace BLOB NOT NULL, subject BLOB NOT NULL,"
    " label BLOB NOT NULL) WITHOUT ROWID;"
    /* An indeterminate record is kept until an operator resolves it. */
    "CREATE INDEX claim_keep ON claim(keep) WHERE phase < 4;"
    /* `phase` is in it so that counting reads nothing else. */
    "CREATE INDEX claim_waiting ON claim(phase, ended, name) WHERE phase = 4;"
    "CREATE TABLE live(fence INTEGER PRIMARY KEY, state INTEGER NOT NULL,"
    " lease INTEGER NOT NULL, name BLOB NOT NULL, sum INTEGER NOT NULL);"
    "CREATE TABLE result(fence INTEGER PRIMARY KEY, kind INTEGER NOT NULL,"
    " ended INTEGER NOT NULL, keep INTEGER NOT NULL, body_sum"
    " INTEGER NOT NULL, sum INTEGER NOT NULL, body BLOB NOT NULL);"
    "CREATE TABLE counter(one INTEGER PRIMARY KEY CHECK(one = 1),"
    " fence INTEGER NOT NULL, records INTEGER NOT NULL,"
    " sum INTEGER NOT NULL);"
    "CREATE TABLE meta(key TEXT NOT NULL PRIMARY KEY,"
    " value INTEGER NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;";

#define HEAD                                                                   \
    "c.fence,c.attempt,c.phase,c.policy,c.doubt,c.reason,c.created,c.granted," \
    "c.ended,c.keep,c.token,c.fingerprint,c.note,c.grp,c.trace,c.subject,"     \
    "c.label,c.sum,l.fence,l.state,l.lease,l.sum,"                             \
    "r.fence,r.kind,r.ended,r.keep,length(r.body),r.body_sum,r.sum"
#define FROM_CLAIM                                                             \
    " FROM claim c LEFT JOIN live l ON l.fence=c.fence"                        \
    " LEFT JOIN result r ON r.fence=c.fence"

/* clang-format off */
static const char *const texts[ONCE__SQLITE_QUERIES] = {
    [ONCE__SQLITE_BEGIN] = "BEGIN",
    /* A deferred transaction that turns writer fails at once with BUSY. */
    [ONCE__SQLITE_BEGIN_WRITE] = "BEGIN IMMEDIATE",
    [ONCE__SQLITE_COMMIT] = "COMMIT",
    [ONCE__SQLITE_ROLLBACK] = "ROLLBACK",
    [ONCE__SQLITE_LOAD] =
        "SELECT c.name," HEAD ",r.body" FROM_CLAIM " WHERE c.name=?1",
    [ONCE__SQLITE_LOAD_HEAD] =
        "SELECT c.name," HEAD FROM_CLAIM " WHERE c.name=?1",
    [ONCE__SQLITE_CLAIM_INSERT] =
        "INSERT INTO claim(name,fence,attempt,phase,policy,doubt,reason,"
        "created,granted,ended,keep,sum,token,fingerprint,note,grp,trace,"
        "subject,label)VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,"
        "?15,?16,?17,?18,?19)",
    [ONCE__SQLITE_CLAIM_UPDATE] =
        "UPDATE claim SET fence=?2,attempt=?3,phase=?4,policy=?5,doubt=?6,"
        "reason=?7,created=?8,granted=?9,ended=?10,keep=?11,sum=?12,token=?13,"
        "fingerprint=?14,note=?15,grp=?16,trace=?17,subject=?18,label=?19"
        " WHERE name=?1",
    [ONCE__SQLITE_CLAIM_DELETE] = "DELETE FROM claim WHERE name=?1",
    [ONCE__SQLITE_LIVE_PUT] =
        "INSERT INTO live(fence,state,lease,name,sum)VALUES(?1,?2,?3,?4,?5)"
        " ON CONFLICT(fence) DO UPDATE SET state=?2,lease=?3,sum=?5",
    [ONCE__SQLITE_LIVE_DELETE] = "DELETE FROM live WHERE fence=?1",
    [ONCE__SQLITE_RESULT_INSERT] =
        "INSERT INTO result(fence,kind,ended,keep,body_sum,sum,body)"
        "VALUES(?1,?2,?3,?4,?5,?6,?7)",
    [ONCE__SQLITE_RESULT_DELETE] = "DELETE FROM result WHERE fence=?1",
    [ONCE__SQLITE_COUNTER] = "SELECT fence,records,sum FROM counter",
    [ONCE__SQLITE_COUNTER_PUT] =
        "INSERT INTO counter(one,fence,records,sum)VALUES(1,?1,?2,?3)"
        " ON CONFLICT(one) DO UPDATE SET fence=?1,records=?2,sum=?3",
    /* Walks over what is live and what waits. */
    [ONCE__SQLITE_COUNT] =
        "SELECT count(*) FILTER (WHERE state=1),count(*),"
        "(SELECT count(*) FROM claim WHERE phase=4) FROM live",
    [ONCE__SQLITE_META] = "SELECT value,sum FROM meta WHERE key=?1",
    [ONCE__SQLITE_META_PUT] =
        "INSERT INTO meta(key,value,sum)VALUES(?1,?2,?3)"
        " ON CONFLICT(key) DO UPDATE SET value=?2,sum=?3",
    [ONCE__SQLITE_SCAN_ALL] =
        "SELECT c.name," HEAD ",r.body" FROM_CLAIM
        " WHERE c.name>?1 ORDER BY c.name LIMIT ?2",
    [ONCE__SQLITE_SCAN_LEASE] =
        "SELECT l.name," HEAD
        " FROM live l LEFT JOIN claim c ON c.name=l.name"
        " LEFT JOIN result r ON r.fence=l.fence"
        " WHERE l.lease<=?1 ORDER BY l.fence LIMIT ?2",
    /* A row that is live, or completed and not yet due, is passed over; one
     * whose halves are missing is shown as damaged. */
    [ONCE__SQLITE_SCAN_KEEP] =
        "SELECT c.name," HEAD FROM_CLAIM
        " WHERE c.phase<4 AND c.keep<=?1 AND l.fence IS NULL"
        " AND ifnull(r.keep,0)<=?1 ORDER BY c.keep LIMIT ?2",
    [ONCE__SQLITE_SCAN_WAITING] =
        "SELECT c.name," HEAD FROM_CLAIM
        " WHERE c.phase=4 AND (c.ended,c.name)>(?1,?3)"
        " ORDER BY c.ended,c.name LIMIT ?2",
    /* The tiny table is sorted first, then the claims are looked up. */
    [ONCE__SQLITE_SCAN_LIVE] =
        "SELECT l.name," HEAD
        " FROM (SELECT * FROM live WHERE (lease,name)>(?1,?3)"
        " ORDER BY lease,name LIMIT ?2) l"
        " LEFT JOIN claim c ON c.name=l.name"
        " LEFT JOIN result r ON r.fence=l.fence ORDER BY l.lease,l.name",
};
/* clang-format on */

/* ---- Waiting ----------------------------------------------------------- */

void once__sqlite_wait_start(struct once__sqlite_wait *w, uint32_t ms)
{
    w->until_us = once__steady_us() + (uint64_t)ms * 1000;
}

/* SQLite's own back-off sleeps longer than a whole transaction takes. */
int once__sqlite_wait_handler(void *wait, int count)
{
    const struct once__sqlite_wait *w = wait;
    const struct timespec nap = {0, 50000};

    (void)count;
    if (once__steady_us() >= w->until_us)
        return 0;
    (void)nanosleep(&nap, NULL);
    return 1;
}

/* ---- Small things ------------------------------------------------------ */

int once__sqlite_is_damage(int rc)
{
    return (rc & 255) == SQLITE_CORRUPT || (rc & 255) == SQLITE_NOTADB;
}

int once__sqlite_fail(once_error *err, int code, const char *path,
                      const char *what, sqlite3 *db, int rc)
{
    int number = db != NULL ? sqlite3_system_errno(db) : 0;

    /* Not sqlite3_errmsg(): it is not promised that it quotes no value. The
     * system's number is left over from earlier calls but for these two. */
    if (number != 0 &&
        ((rc & 255) == SQLITE_IOERR || (rc & 255) == SQLITE_CANTOPEN))
        return once__fail(err, code, "%s: %s: %s (%d): %s", path, what,
                          sqlite3_errstr(rc), rc, strerror(number));
    return once__fail(err, code, "%s: %s: %s (%d)", path, what,
                      sqlite3_errstr(rc), rc);
}

static int run(sqlite3 *db, const char *sql)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

static int ask(sqlite3 *db, const char *sql, int64_t *value)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &q, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        *value = sqlite3_column_int64(q, 0);
        rc = SQLITE_OK;
    }
    (void)sqlite3_finalize(q);
    return rc;
}

static int prepare(struct once__sqlite_link *link)
{
    int i, rc = SQLITE_OK;

    for (i = 0; i < ONCE__SQLITE_QUERIES && rc == SQLITE_OK; i++)
        if (link->query[i] == NULL)
            rc = sqlite3_prepare_v3(link->db, texts[i], -1,
                                    SQLITE_PREPARE_PERSISTENT, &link->query[i],
                                    NULL);
    return rc;
}

/* ---- Whose file is it? ------------------------------------------------- */

struct identity {
    int64_t application, version, tables;
};

static int identify(sqlite3 *db, struct identity *id)
{
    int rc = ask(db, "PRAGMA application_id", &id->application);

    if (rc == SQLITE_OK)
        rc = ask(db, "PRAGMA user_version", &id->version);
    if (rc == SQLITE_OK)
        rc = ask(db, "SELECT count(*) FROM sqlite_schema", &id->tables);
    return rc;
}

/* The numbers of one moment: others may be creating the file meanwhile. */
static int identify_at_once(sqlite3 *db, struct identity *id)
{
    int rc = run(db, "BEGIN");

    if (rc == SQLITE_OK)
        rc = identify(db, id);
    if (rc == SQLITE_OK)
        rc = run(db, "COMMIT");
    if (rc != SQLITE_OK)
        (void)run(db, "ROLLBACK");
    return rc;
}

static int is_new(const struct identity *id)
{
    return id->application == 0 && id->version == 0 && id->tables == 0;
}

static int check_identity(const struct identity *id, const char *path,
                          once_error *err)
{
    if (is_new(id))
        return ONCE_OK;
    if (id->application != ONCE__SQLITE_APPLICATION)
        return once__fail(err, ONCE_EOPEN,
                          "%s: a database that belongs to something else "
                          "(application_id %#x, %d tables and indexes)",
                          path, (unsigned)id->application, (int)id->tables);
    if (id->version != ONCE__SQLITE_SCHEMA)
        return once__fail(err, ONCE_EVERSION,
                          "%s: schema version %d, this program understands %d",
                          path, (int)id->version, ONCE__SQLITE_SCHEMA);
    return ONCE_OK;
}

/* A damaged file is distinguished from one that cannot be opened now. Where our
 * own statements are called wrong, tables or the format are not as we made them. */
static int fail_open(struct once__sqlite_link *link, const char *path,
                     const char *what, int rc, once_error *err)
{
    int code = (rc & 255) == SQLITE_CORRUPT || (rc & 255) == SQLITE_ERROR
                   ? ONCE_ECORRUPT
                   : ONCE_EOPEN;

    return once__sqlite_fail(err, code, path, what, link->db, rc);
}

/* ---- The schema -------------------------------------------------------- */

/* Changing the journal mode answers BUSY without asking the busy handler. */
static int use_log(struct once__sqlite_link *link)
{
    int rc, again;

    do {
        rc = run(link->db, "PRAGMA journal_mode=WAL");
        again = (rc & 255) == SQLITE_BUSY &&
                once__sqlite_wait_handler(&link->wait, 0);
    } while (again);
    return rc;
}

static int has_log(struct once__sqlite_link *link)
{
    sqlite3_stmt *q = NULL;
    int wal = 0;

    if (sqlite3_prepare_v2(link->db, "PRAGMA journal_mode", -1, &q, NULL) ==
            SQLITE_OK &&
        sqlite3_step(q) == SQLITE_ROW)
        wal = strcmp((const char *)sqlite3_column_text(q, 0), "wal") == 0;
    (void)sqlite3_finalize(q);
    return wal;
}

/* In one transaction, and only if no other has done it meanwhile. */
static int create(struct once__sqlite_link *link)
{
    const struct once__sqlite_counter none = {0, 0};
    struct identity id = {0, 0, 0};
    int rc = run(link->db, "BEGIN IMMEDIATE");

    if (rc == SQLITE_OK)
        rc = identify(link->db, &id);
    if (rc == SQLITE_OK && is_new(&id)) {
        rc = run(link->db, schema);
        if (rc == SQLITE_OK)
            rc = run(link->db, "PRAGMA application_id=0x4f6e6365;"
                               "PRAGMA user_version=3");
        if (rc == SQLITE_OK)
            rc = prepare(link);
        if (rc == SQLITE_OK)
            rc = once__sqlite_counter_put(link, &none);
        if (rc == SQLITE_OK)
            rc = once__sqlite_head_new(link);
    }
    if (rc == SQLITE_OK)
        rc = run(link->db, "COMMIT");
    if (rc != SQLITE_OK)
        (void)run(link->db, "ROLLBACK");
    return rc;
}

_Static_assert(ONCE__SQLITE_APPLICATION == 0x4f6e6365 &&
                   ONCE__SQLITE_SCHEMA == 3,
               "create() writes these numbers");

/* The counter must not be below a fence that stands in the file, nor below the
 * first one of this incarnation. */
static int check_counter(struct once__sqlite_link *link)
{
    struct once__sqlite_counter counter = {0, 0};
    once_store_head head;
    int64_t most = 0;
    int rc = once__sqlite_run(link, ONCE__SQLITE_BEGIN), ended;

    if (rc == SQLITE_OK)
        rc = once__sqlite_counter(link, &counter);
    if (rc == SQLITE_OK)
        rc = once__sqlite_head(link, &head);
    if (rc == SQLITE_OK)
        rc = ask(link->db,
                 "SELECT max(ifnull((SELECT max(fence) FROM live),0),"
                 "ifnull((SELECT max(fence) FROM result),0))",
                 &most);
    if (rc == SQLITE_OK &&
        ((uint64_t)most > counter.fence ||
         once__fence_floor(&head, counter.fence) != counter.fence))
        rc = SQLITE_CORRUPT;
    ended = once__sqlite_run(link, ONCE__SQLITE_COMMIT);
    return rc != SQLITE_OK ? rc : ended;
}

/* ---- Durable before readable ------------------------------------------- */

/*
 * Rows that a killed writer has left may be in the system's cache only, and
 * after a failed flush the system may call them clean. Writing them into the
 * file and flushing that settles it. Where others hold the log their commits
 * are flushed by themselves; the flush here is for what recovery has found.
 */
static int settle(struct once__sqlite_link *link, const char *path)
{
    char log[4096 + 8];
    int rc, fd, failed;

    rc = sqlite3_wal_checkpoint_v2(link->db, NULL, SQLITE_CHECKPOINT_FULL, NULL,
                                   NULL);
    if ((rc & 255) != SQLITE_BUSY && (rc & 255) != SQLITE_LOCKED)
        return rc;
    if ((size_t)snprintf(log, sizeof(log), "%s-wal", path) >= sizeof(log))
        return SQLITE_CANTOPEN;
    fd = open(log, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? SQLITE_OK : SQLITE_CANTOPEN;
    failed = fdatasync(fd);
    (void)close(fd); /* SQLite takes no lock on this file */
    return failed ? SQLITE_IOERR_FSYNC : SQLITE_OK;
}

/* ---- Connecting -------------------------------------------------------- */

static int look(struct once__sqlite_link *link, const char *path, int make,
                once_error *err)
{
    struct identity id = {0, 0, 0};
    int rc = identify_at_once(link->db, &id), code;

    if (rc != SQLITE_OK)
        return fail_open(link, path, "reading", rc, err);
    code = check_identity(&id, path, err);
    if (code != ONCE_OK)
        return code;
    if (is_new(&id) && !make)
        return once__missing(err, path, "there is nothing in it");
    if (link->read_only)
        return ONCE_OK;
    rc = use_log(link);
    if (rc == SQLITE_OK && !has_log(link))
        return once__fail(err, ONCE_EOPEN,
                          "%s: the file system offers no write-ahead log",
                          path);
    if (rc == SQLITE_OK && is_new(&id))
        rc = create(link);
    if (rc == SQLITE_OK)
        rc = identify_at_once(link->db, &id);
    if (rc != SQLITE_OK)
        return fail_open(link, path, "preparing", rc, err);
    return check_identity(&id, path, err);
}

/* The last one to leave does not delete the log: it has grown to the size that
 * this store needs, and growing is dear (see checkpoint.c). */
int once__sqlite_keep_log(sqlite3 *db)
{
    int on = 1;

    return sqlite3_file_control(db, NULL, SQLITE_FCNTL_PERSIST_WAL, &on);
}

static int tune(sqlite3 *db)
{
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    return run(db, "PRAGMA synchronous=FULL;"
                   "PRAGMA wal_autocheckpoint=0;"
                   "PRAGMA trusted_schema=OFF;"
                   "PRAGMA cell_size_check=ON;"
                   /* zeroes where that costs no page more */
                   "PRAGMA secure_delete=FAST;"
                   "PRAGMA cache_size=-16384");
}

/* As SQLite needs a file's name that says more: without a log there is none to
 * be made, and no process can write to it. NULL: out of memory. */
static char *immutable(const char *path)
{
    static const char hex[] = "0123456789ABCDEF", tail[] = "?immutable=1";
    char *uri = malloc(5 + 3 * strlen(path) + sizeof(tail)), *to;

    if (uri == NULL)
        return NULL;
    to = stpcpy(uri, "file:");
    for (; *path != '\0'; path++) {
        if (strchr("%?#", *path) == NULL) {
            *to++ = *path;
            continue;
        }
        *to++ = '%';
        *to++ = hex[(unsigned char)*path >> 4];
        *to++ = hex[(unsigned char)*path & 15];
    }
    memcpy(to, tail, sizeof(tail));
    return uri;
}

static int open_to_read(struct once__sqlite_link *link, const char *path)
{
    const int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX |
                      SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_NOFOLLOW;
    char log[4096 + 8], *uri;
    int rc;

    if ((size_t)snprintf(log, sizeof(log), "%s-wal", path) >= sizeof(log))
        return SQLITE_CANTOPEN;
    if (access(log, F_OK) == 0)
        return sqlite3_open_v2(path, &link->db, flags, NULL);
    uri = immutable(path);
    if (uri == NULL)
        return SQLITE_NOMEM;
    rc = sqlite3_open_v2(uri, &link->db, flags | SQLITE_OPEN_URI, NULL);
    free(uri);
    return rc;
}

static int enter(struct once__sqlite_link *link, const char *path, int make,
                 once_error *err)
{
    int rc =
        link->read_only
            ? open_to_read(link, path)
            : sqlite3_open_v2(path, &link->db,
                              SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX |
                                  SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_NOFOLLOW,
                              NULL);

    if (rc != SQLITE_OK)
        return fail_open(link, path, "opening", rc, err);
    if (!link->read_only && sqlite3_db_readonly(link->db, "main") != 0)
        return once__fail(err, ONCE_EOPEN, "%s: it is not writable", path);
    rc = sqlite3_busy_handler(link->db, once__sqlite_wait_handler, &link->wait);
    return rc == SQLITE_OK ? look(link, path, make, err)
                           : fail_open(link, path, "opening", rc, err);
}

int once__sqlite_connect(struct once__sqlite_link *link, const char *path,
                         uint32_t busy_ms, int make, once_error *err)
{
    int code, rc;

    once__sqlite_wait_start(&link->wait, busy_ms);
    code = enter(link, path, make, err);
    if (code != ONCE_OK)
        goto out;
    rc = tune(link->db);
    if (rc == SQLITE_OK)
        rc = once__sqlite_keep_log(link->db);
    if (rc == SQLITE_OK)
        rc = prepare(link);
    if (rc == SQLITE_OK && !link->read_only)
        rc = settle(link, path);
    if (rc == SQLITE_OK)
        rc = check_counter(link);
    if (rc != SQLITE_OK)
        code = fail_open(link, path, "preparing", rc, err);
out:
    if (code != ONCE_OK)
        once__sqlite_disconnect(link);
    return code;
}

void once__sqlite_disconnect(struct once__sqlite_link *link)
{
    int i;

    for (i = 0; i < ONCE__SQLITE_QUERIES; i++) {
        (void)sqlite3_finalize(link->query[i]);
        link->query[i] = NULL;
    }
    /* Cannot be busy: every statement has been finalised. */
    (void)sqlite3_close(link->db);
    link->db = NULL;
}
