/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sqlite.c - what only the SQLite store promises: whose file it opens,
 * what it does when the file, the disk or a writer is damaged or gone.
 *
 * Writers are real processes and are killed for real; damage is done through
 * SQLite itself. A test that needs a tool or a right that is not there says so
 * in a comment line and checks nothing.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <once/store.h>

#include "ops.h"
#include "t.h"

#define BIRTH UINT64_C(1700000000000)

static char folder[64];
static const char *program;
static unsigned files;

static uint64_t now_ms(void *user)
{
    return user != NULL ? *(uint64_t *)user : BIRTH;
}

static void new_path(char *out, size_t size)
{
    (void)snprintf(out, size, "%s/%u.db", folder, files++);
}

static int try_open(const char *path, uint64_t *clock, once_error *err,
                    once_store **out)
{
    once_store_options options = {
        sizeof(options), now_ms, clock, 0, 1, NULL, NULL, 0};
    char url[256];

    (void)snprintf(url, sizeof(url), "sqlite:%s", path);
    return once_store_open(url, &options, err, out);
}

static once_store *must_open(const char *path, uint64_t *clock)
{
    once_store *s = NULL;
    once_error err = {0, ""};

    if (try_open(path, clock, &err, &s) != ONCE_OK) {
        printf("# %s\n", err.text);
        fflush(stdout);
        abort();
    }
    return s;
}

/* What a refused open says; the path must be in it. */
static void refused(const char *path, int code, const char *text)
{
    once_store *s = NULL;
    once_error err = {0, ""};

    T_EQ(try_open(path, NULL, &err, &s), code);
    T_EQ(err.code, code);
    T_OK(s == NULL);
    T_OK(strstr(err.text, path) != NULL);
    if (strstr(err.text, text) == NULL)
        T_STR(err.text, text);
    once_store_close(s);
}

/* Claims the keys from..to and completes them, in batches. */
static void complete_all(once_store *s, uint32_t from, uint32_t to)
{
    enum { N = 500 };
    static once_op op[N];
    once_op *ops[N];
    uint32_t at, i, n;

    for (at = from; at < to; at += N) {
        n = to - at < N ? to - at : N;
        for (i = 0; i < n; i++) {
            make_op(&op[i], ONCE_OP_CLAIM, at + i);
            ops[i] = &op[i];
        }
        T_EQ(s->ops->apply(s, ops, n, NULL), ONCE_OK);
        for (i = 0; i < n; i++) {
            uint64_t fence = op[i].record.fence;

            T_EQ(op[i].rc, ONCE_OWNER);
            make_op(&op[i], ONCE_OP_COMPLETE, at + i);
            op[i].fence = fence;
            op[i].result = (once_bytes){"done", 4};
        }
        T_EQ(s->ops->apply(s, ops, n, NULL), ONCE_OK);
    }
}

/* Runs SQL on the file, behind the store's back. */
static int sql(const char *path, const char *text)
{
    sqlite3 *db = NULL;
    int rc = sqlite3_open(path, &db);

    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, text, NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        printf("#   %s: %s\n", text, sqlite3_errmsg(db));
    (void)sqlite3_close(db);
    return rc;
}

static int64_t number(const char *path, const char *text)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    int64_t n = -1;

    if (sqlite3_open(path, &db) == SQLITE_OK &&
        sqlite3_prepare_v2(db, text, -1, &q, NULL) == SQLITE_OK &&
        sqlite3_step(q) == SQLITE_ROW)
        n = sqlite3_column_int64(q, 0);
    (void)sqlite3_finalize(q);
    (void)sqlite3_close(db);
    return n;
}

/* ---- Whose file is it? ------------------------------------------------- */

static void a_new_file_is_for_its_owner_alone(void)
{
    char path[128], log[140];
    struct stat st;
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path, NULL);
    T_EQ(verb_on(s, ONCE_OP_CLAIM, 1), ONCE_OWNER);
    T_OK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    (void)snprintf(log, sizeof(log), "%s-wal", path);
    T_OK(stat(log, &st) == 0 && (st.st_mode & 0777) == 0600);
    once_store_close(s);
}

static void urls_are_refused_by_name(void)
{
    static const struct {
        const char *rest, *says;
    } bad[] = {
        {"", "path"},
        {"/tmp/", "names no file"},
        {"/tmp/once-nothing?wal=1", "wal"},
        {"/tmp/once-nothing?busy_ms=", "busy_ms"},
        {"/tmp/once-nothing?busy_ms=0", "busy_ms"},
        {"/tmp/once-nothing?busy_ms=-1", "busy_ms"},
        {"/tmp/once-nothing?busy_ms=10s", "busy_ms"},
        {"/tmp/once-nothing?busy_ms=99999999999999999999", "busy_ms"},
        {"/tmp/once-nothing?busy_ms=10&sync=off", "sync"},
        {"/tmp/once-nothing?", "parameter"},
    };
    once_error err;
    once_store *s = NULL;
    char url[256];
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(url, sizeof(url), "sqlite:%s", bad[i].rest);
        T_EQ(once_store_open(url, NULL, &err, &s), ONCE_EURL);
        T_OK(strstr(err.text, bad[i].says) != NULL);
    }
    T_OK(access("/tmp/once-nothing", F_OK) != 0);
}

/* ":memory:" and "file:..." mean something to SQLite, and nothing here. */
static void names_that_sqlite_reads_otherwise_are_files(void)
{
    char before[256];
    once_store *s;

    T_OK(getcwd(before, sizeof(before)) != NULL);
    T_EQ(chdir(folder), 0);
    s = must_open(":memory:", NULL);
    T_EQ(verb_on(s, ONCE_OP_CLAIM, 1), ONCE_OWNER);
    T_EQ(chdir(before), 0);
    once_store_close(s);
    T_EQ(chdir(folder), 0);
    T_EQ(access(":memory:", F_OK), 0);
    s = must_open("file:x.db", NULL);
    once_store_close(s);
    T_EQ(access("file:x.db", F_OK), 0);
    T_EQ(chdir(before), 0);
}

static void what_is_not_ours_is_refused_and_left_alone(void)
{
    char path[128], text[128] = "";
    FILE *f;

    new_path(path, sizeof(path));
    T_EQ(sql(path, "CREATE TABLE payroll(x); INSERT INTO payroll VALUES(1)"),
         SQLITE_OK);
    refused(path, ONCE_EOPEN, "something else");
    T_EQ(sql(path, "INSERT INTO payroll VALUES(2)"), SQLITE_OK);
    (void)strncat(path, "-wal", 8);
    T_OK(access(path, F_OK) != 0);

    new_path(path, sizeof(path));
    T_EQ(sql(path, "PRAGMA application_id=77"), SQLITE_OK);
    refused(path, ONCE_EOPEN, "0x4d");

    new_path(path, sizeof(path));
    f = fopen(path, "w");
    assert(f != NULL);
    (void)fprintf(f, "this is a letter to my aunt, and it is longer than the "
                     "header of a database, which has one hundred bytes.\n");
    (void)fclose(f);
    refused(path, ONCE_EOPEN, "not a database");
    f = fopen(path, "r");
    assert(f != NULL);
    T_OK(fgets(text, sizeof(text), f) != NULL);
    (void)fclose(f);
    T_OK(strncmp(text, "this is a letter", 16) == 0);

    refused(folder, ONCE_EOPEN, "not a regular file");
    (void)snprintf(path, sizeof(path), "%s/no/such/x.db", folder);
    refused(path, ONCE_EOPEN, "No such file");
}

static void what_is_missing_is_not_created_unasked(void)
{
    once_store_options options = {
        sizeof(options), now_ms, NULL, 0, 0, NULL, NULL, 0};
    char path[200], url[256];
    once_store *s = NULL;

    new_path(path, sizeof(path));
    (void)snprintf(url, sizeof(url), "sqlite:%s", path);
    T_EQ(once_store_open(url, &options, NULL, &s), ONCE_EOPEN);
    T_OK(access(path, F_OK) != 0);
    options.create = 1;
    T_EQ(once_store_open(url, &options, NULL, &s), ONCE_OK);
    once_store_close(s);
    options.create = 0;
    T_EQ(once_store_open(url, &options, NULL, &s), ONCE_OK);
    once_store_close(s);
}

static void another_schema_version_is_refused_with_both_numbers(void)
{
    char path[128];

    new_path(path, sizeof(path));
    once_store_close(must_open(path, NULL));
    T_EQ(sql(path, "PRAGMA user_version=7"), SQLITE_OK);
    refused(path, ONCE_EVERSION, "version 7, this program understands 3");
    T_EQ(sql(path, "PRAGMA user_version=2"), SQLITE_OK);
    refused(path, ONCE_EVERSION, "version 2, this program understands 3");
    T_EQ(sql(path, "PRAGMA user_version=3"), SQLITE_OK);
    once_store_close(must_open(path, NULL));
}

static void a_file_that_may_not_be_written_is_refused(void)
{
    char path[128];
    int status;
    pid_t pid;

    new_path(path, sizeof(path));
    once_store_close(must_open(path, NULL));
    T_EQ(chmod(path, 0400), 0);
    T_EQ(chmod(folder, 0755), 0);
    fflush(stdout);
    pid = fork();
    if (pid == 0) { /* root may write everything */
        if (geteuid() == 0 && setuid(65534) != 0)
            _exit(9);
        t__bad = 0;
        if (geteuid() == 65534)
            refused(path, ONCE_EOPEN, "denied");
        else
            refused(path, ONCE_EOPEN, "");
        fflush(stdout);
        _exit(t__bad != 0);
    }
    T_OK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void several_processes_may_create_one_file_at_once(void)
{
    char path[128];
    pid_t pids[6];
    int i, round, status;

    for (round = 0; round < 5; round++) {
        new_path(path, sizeof(path));
        for (i = 0; i < 6; i++) {
            pids[i] = fork();
            if (pids[i] == 0) {
                once_store *s = must_open(path, NULL);
                int rc = verb_on(s, ONCE_OP_CLAIM, (uint32_t)i);

                once_store_close(s);
                _exit(rc != ONCE_OWNER);
            }
        }
        for (i = 0; i < 6; i++)
            T_OK(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
    }
}

/* ---- Damage ------------------------------------------------------------ */

static int count_damaged(void *user, const uint8_t *name, const once_record *r)
{
    int *n = user;

    (void)name;
    n[0]++;
    n[1] += r->state == 255;
    return 0;
}

/* Key 1 is dispatched, key 2 completed, key 3 indeterminate, 4 is healthy. */
static void make_four(const char *path)
{
    once_store *s = must_open(path, NULL);
    once_op op;

    complete_all(s, 2, 3);
    complete_all(s, 4, 5);
    T_EQ(verb_on(s, ONCE_OP_CLAIM, 1), ONCE_OWNER);
    make_op(&op, ONCE_OP_CLAIM, 3);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    op.verb = ONCE_OP_GIVE_UP;
    op.fence = op.record.fence;
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    once_store_close(s);
}

static const struct {
    uint32_t key;
    const char *sql;
} damages[] = {
    {1, "UPDATE claim SET attempt=attempt+1 WHERE fence=3"},
    {1, "UPDATE claim SET policy=policy|1 WHERE fence=3"},
    {1, "UPDATE claim SET phase=0 WHERE fence=3"},
    {1, "UPDATE claim SET keep=keep+4096 WHERE fence=3"},
    {1, "UPDATE claim SET granted=granted-1 WHERE fence=3"},
    {1, "UPDATE claim SET doubt=1 WHERE fence=3"},
    {1, "UPDATE claim SET created=created-1 WHERE fence=3"},
    {1, "UPDATE claim SET trace=x'01' WHERE fence=3"},
    {1, "UPDATE claim SET trace=zeroblob(17) WHERE fence=3"},
    {1, "UPDATE claim SET subject=x'01' WHERE fence=3"},
    {1, "UPDATE claim SET label=x'01' WHERE fence=3"},
    {1, "UPDATE claim SET label=zeroblob(129) WHERE fence=3"},
    {1, "UPDATE claim SET sum=sum+1 WHERE fence=3"},
    {1, "UPDATE claim SET note=x'00' WHERE fence=3"},
    {1, "UPDATE claim SET token=zeroblob(16) WHERE fence=3"},
    {1, "UPDATE claim SET token=zeroblob(15) WHERE fence=3"},
    {1, "UPDATE claim SET fingerprint=zeroblob(32) WHERE fence=3"},
    {1, "UPDATE live SET lease=lease+1 WHERE fence=3"},
    {1, "UPDATE live SET state=1 WHERE fence=3"},
    {1, "UPDATE live SET fence=-3 WHERE fence=3"},
    {1, "DELETE FROM live WHERE fence=3"},
    {2, "UPDATE result SET body=x'646f6e66' WHERE fence=1"},
    {2, "UPDATE result SET body=x'646f6e' WHERE fence=1"},
    {2, "UPDATE result SET kind=2 WHERE fence=1"},
    {2, "UPDATE result SET keep=keep+1 WHERE fence=1"},
    {2, "UPDATE result SET ended=ended+1 WHERE fence=1"},
    {2, "UPDATE result SET body_sum=0 WHERE fence=1"},
    {2, "DELETE FROM result WHERE fence=1"},
    {2, "INSERT INTO live SELECT 1,2,1,name,0 FROM claim WHERE fence=1"},
    /* two results change places */
    {2, "UPDATE result SET fence=-fence; UPDATE result SET"
        " fence=CASE fence WHEN -1 THEN 2 ELSE 1 END"},
    {3, "UPDATE claim SET phase=1 WHERE fence=4"},
    {3, "UPDATE claim SET phase=0 WHERE fence=4"},
    {3, "UPDATE claim SET phase=9 WHERE fence=4"},
    {3, "UPDATE claim SET ended=ended+1 WHERE fence=4"},
    {3, "UPDATE claim SET reason=reason+1 WHERE fence=4"},
};

static void damage_is_an_error_and_never_a_miss(size_t i)
{
    static const int verbs[] = {ONCE_OP_CLAIM,  ONCE_OP_READ, ONCE_OP_SHOW,
                                ONCE_OP_RENEW,  ONCE_OP_REAP, ONCE_OP_RELEASE,
                                ONCE_OP_GIVE_UP};
    char path[128];
    once_op op[2], *ops[2] = {&op[0], &op[1]};
    once_store *s;
    int seen[2] = {0, 0};
    size_t v;

    new_path(path, sizeof(path));
    make_four(path);
    T_EQ(sql(path, damages[i].sql), SQLITE_OK);
    s = must_open(path, NULL);
    for (v = 0; v < sizeof(verbs) / sizeof(verbs[0]); v++) {
        make_op(&op[0], verbs[v], damages[i].key);
        make_op(&op[1], ONCE_OP_CLAIM, 100 + (uint32_t)v);
        T_EQ(s->ops->apply(s, ops, 2, NULL), ONCE_OK);
        T_EQ(op[0].rc, ONCE_ECORRUPT);
        T_EQ(op[0].record.attempt, 0);
        T_EQ(op[1].rc, ONCE_OWNER); /* the others go on */
    }
    T_OK(s->ops->scan(s, ONCE_SCAN_ALL, NULL, 100, count_damaged, seen, NULL) ==
         4 + 7);
    T_OK(seen[1] >= 1); /* two, where two changed places */
    if (strstr(damages[i].sql, "CASE") == NULL)
        T_EQ(verb_on(s, ONCE_OP_CLAIM, 4), ONCE_REPLAY);
    once_store_close(s);
    if (t__bad != 0)
        printf("#   after %s\n", damages[i].sql);
}

static void a_damaged_row_is_an_error_and_never_a_miss(void)
{
    size_t i;

    for (i = 0; i < sizeof(damages) / sizeof(damages[0]) && t__bad == 0; i++)
        damage_is_an_error_and_never_a_miss(i);
}

static void a_damaged_fence_counter_grants_nothing(void)
{
    char path[128];

    new_path(path, sizeof(path));
    make_four(path);
    T_EQ(sql(path, "UPDATE counter SET fence=1"), SQLITE_OK);
    refused(path, ONCE_ECORRUPT, "malformed");
    new_path(path, sizeof(path));
    make_four(path);
    T_EQ(sql(path, "UPDATE counter SET records=1"), SQLITE_OK);
    refused(path, ONCE_ECORRUPT, "malformed");
    new_path(path, sizeof(path));
    make_four(path);
    T_EQ(sql(path, "DELETE FROM counter"), SQLITE_OK);
    refused(path, ONCE_ECORRUPT, "malformed");
}

static void a_damaged_head_is_seen_when_the_file_is_opened(void)
{
    static const char *const all[] = {
        "UPDATE meta SET value=value+1 WHERE key='id'",
        "UPDATE meta SET value=value+1 WHERE key='id_more'",
        "UPDATE meta SET value=1 WHERE key='incarnation'",
        "UPDATE meta SET value=1 WHERE key='gap'",
        "UPDATE meta SET value=1 WHERE key='gap_from'",
        "UPDATE meta SET value=1 WHERE key='gap_until'",
        "DELETE FROM meta WHERE key='gap'",
    };
    char path[128];
    size_t i;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        new_path(path, sizeof(path));
        make_four(path);
        T_EQ(sql(path, all[i]), SQLITE_OK);
        refused(path, ONCE_ECORRUPT, "malformed");
    }
}

struct pages {
    once_position last;
    int what, shown, damaged;
};

static int turn_page(void *user, const uint8_t *name, const once_record *r)
{
    struct pages *p = user;

    p->last = once_position_of(p->what, name, r);
    p->shown++;
    p->damaged += r->state == 255;
    return 0;
}

/* A reader that goes on behind the last record that it was shown comes to the
 * end, also where that record is damaged. */
static void pages_go_on_behind_a_damaged_record(void)
{
    static const int scans[] = {ONCE_SCAN_ALL, ONCE_SCAN_WAITING,
                                ONCE_SCAN_LIVE};
    struct pages p;
    char path[128];
    once_store *s;
    once_op op;
    uint32_t key;
    size_t i;
    int n;

    new_path(path, sizeof(path));
    s = must_open(path, NULL);
    for (key = 0; key < 10; key++) {
        make_op(&op, ONCE_OP_CLAIM, key);
        T_EQ(apply_one(s, &op, NULL), ONCE_OK);
        op.verb = ONCE_OP_GIVE_UP;
        op.fence = op.record.fence;
        if (key % 2 == 0)
            T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    }
    once_store_close(s);
    T_EQ(sql(path, "UPDATE claim SET granted=0"), SQLITE_OK);
    s = must_open(path, NULL);
    for (i = 0; i < sizeof(scans) / sizeof(scans[0]); i++) {
        memset(&p, 0, sizeof(p));
        p.what = scans[i];
        do
            n = s->ops->scan(s, p.what, p.shown > 0 ? &p.last : NULL, 2,
                             turn_page, &p, NULL);
        while (n == 2 && p.shown < 100);
        T_EQ(p.shown, scans[i] == ONCE_SCAN_ALL ? 10 : 5);
        T_EQ(p.damaged, p.shown);
    }
    once_store_close(s);
}

static void importing_a_name_that_is_there_changes_nothing(void)
{
    char path[128];
    once_store *s;
    once_named r[2];
    once_counts n;
    once_op op;
    once_error err;

    new_path(path, sizeof(path));
    make_four(path);
    s = must_open(path, NULL);
    make_op(&op, ONCE_OP_SHOW, 2);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    r[0].record = r[1].record = op.record;
    memset(r[0].name, 0x77, ONCE_NAME_SIZE);
    memcpy(r[1].name, op.name, ONCE_NAME_SIZE);
    r[0].record.fence = 1000;
    T_EQ(s->ops->import(s, r, 2, &err), ONCE_EINVAL);
    T_OK(strstr(err.text, path) != NULL);
    T_EQ(s->ops->count(s, &n, NULL), ONCE_OK);
    T_EQ(n.claimed + n.dispatched, 1);
    T_EQ(n.indeterminate, 1);
    T_EQ(n.rest, 2);
    T_EQ(s->ops->import(s, r, 1, &err), ONCE_OK);
    T_EQ(s->ops->count(s, &n, NULL), ONCE_OK);
    T_EQ(n.rest, 3);
    make_op(&op, ONCE_OP_CLAIM, 50);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    T_EQ(op.record.fence, 1001);
    once_store_close(s);
}

/* ---- Other processes --------------------------------------------------- */

static void a_busy_file_is_unknown_and_reads_go_on(void)
{
    char path[128], url[160];
    once_store_options options = {
        sizeof(options), now_ms, NULL, 0, 1, NULL, NULL, 0};
    once_store *s = NULL;
    once_error err = {0, ""};
    once_op op;
    sqlite3 *db = NULL;

    new_path(path, sizeof(path));
    make_four(path);
    (void)snprintf(url, sizeof(url), "sqlite:%s?busy_ms=30", path);
    T_EQ(once_store_open(url, &options, &err, &s), ONCE_OK);
    T_EQ(sqlite3_open(path, &db), SQLITE_OK);
    T_EQ(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    make_op(&op, ONCE_OP_CLAIM, 9);
    T_EQ(apply_one(s, &op, &err), ONCE_ESTORE);
    T_OK(strstr(err.text, "30 ms") != NULL);
    T_EQ(verb_on(s, ONCE_OP_CLAIM, 2), ONCE_REPLAY); /* no write lock */
    T_EQ(verb_on(s, ONCE_OP_SHOW, 1), ONCE_IN_FLIGHT);
    T_EQ(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    T_EQ(verb_on(s, ONCE_OP_CLAIM, 9), ONCE_OWNER);
    (void)sqlite3_close(db);
    once_store_close(s);
}

/* An old reader keeps the log from beginning anew, and nobody from writing. */
static void a_reader_does_not_stop_writers(void)
{
    char path[128];
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    once_store *s;
    uint32_t i;

    new_path(path, sizeof(path));
    make_four(path);
    T_EQ(sqlite3_open(path, &db), SQLITE_OK);
    T_EQ(sqlite3_prepare_v2(db, "SELECT name FROM claim", -1, &q, NULL),
         SQLITE_OK);
    T_EQ(sqlite3_step(q), SQLITE_ROW);
    s = must_open(path, NULL);
    for (i = 0; i < 20; i++)
        complete_all(s, 1000 + i * 1000, 2000 + i * 1000);
    T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
    T_EQ(sqlite3_finalize(q), SQLITE_OK);
    T_EQ(sqlite3_close(db), SQLITE_OK);
    complete_all(s, 100, 200);
    once_store_close(s);
}

/* What a writer tells its parent: how far its batches were acknowledged. */
struct told {
    uint32_t done;
};

enum { PER_BATCH = 8 };

/* Claims keys `from`, from + 1, ... and reports after each answered batch. */
static void writer(const char *path, uint32_t from, int out)
{
    once_store *s = must_open(path, NULL);
    struct told told = {from};

    for (;;) {
        complete_all(s, told.done, told.done + PER_BATCH);
        told.done += PER_BATCH;
        if (t__bad != 0 || write(out, &told, sizeof(told)) != sizeof(told))
            _exit(1);
    }
}

/* Everything below `done` is there; the key counts above may go either way. */
static void all_are_there(const char *path, uint32_t from, uint32_t done)
{
    once_store *s = must_open(path, NULL);
    once_op op;
    uint32_t i;

    for (i = from; i < done; i++) {
        make_op(&op, ONCE_OP_SHOW, i);
        T_EQ(apply_one(s, &op, NULL), ONCE_OK);
        T_EQ(op.rc, ONCE_REPLAY);
        T_OK(op.record.result.size == 4 &&
             memcmp(op.record.result.data, "done", 4) == 0);
    }
    once_store_close(s);
}

static void a_killed_writer_loses_nothing_it_has_acknowledged(void)
{
    char path[128];
    int kills, ends[2], status;
    uint32_t from = 0, random = 12345, batches;
    struct told told;
    pid_t pid;

    new_path(path, sizeof(path));
    for (kills = 0; kills < 30; kills++) {
        T_EQ(pipe(ends), 0);
        pid = fork();
        if (pid == 0)
            writer(path, from, ends[1]);
        (void)close(ends[1]);
        random = random * 1664525u + 1013904223u;
        told.done = from;
        for (batches = random >> 27; batches > 0; batches--)
            T_EQ(read(ends[0], &told, sizeof(told)), sizeof(told));
        (void)usleep((random >> 8) % 2000); /* somewhere in the next one */
        T_EQ(kill(pid, SIGKILL), 0);
        while (read(ends[0], &told, sizeof(told)) == sizeof(told))
            ;
        T_OK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        (void)close(ends[0]);
        all_are_there(path, from, told.done);
        from = told.done + PER_BATCH;
    }
}

/* ---- The disk ---------------------------------------------------------- */

static void fill(const char *path)
{
    char block[4096];
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert(fd >= 0);
    memset(block, 'x', sizeof(block));
    while (write(fd, block, sizeof(block)) > 0)
        ;
    T_EQ(errno, ENOSPC);
    (void)close(fd);
}

static void use_full_disk(const char *disk)
{
    char path[128], ballast[128];
    once_error err = {0, ""};
    once_store *s;
    once_op op;
    uint32_t n = 0;
    int rc = ONCE_OK;

    (void)snprintf(path, sizeof(path), "%s/x.db", disk);
    (void)snprintf(ballast, sizeof(ballast), "%s/ballast", disk);
    s = must_open(path, NULL);
    complete_all(s, 0, 50);
    fill(ballast);
    while (rc == ONCE_OK && n < 100000) { /* the log has a little room left */
        make_op(&op, ONCE_OP_CLAIM, 1000 + n++);
        rc = apply_one(s, &op, &err);
    }
    T_EQ(rc, ONCE_ESTORE);
    T_OK(strstr(err.text, "full") != NULL);
    T_EQ(verb_on(s, ONCE_OP_CLAIM, 7), ONCE_REPLAY); /* replays go on */
    T_EQ(unlink(ballast), 0);
    T_EQ(apply_one(s, &op, &err), ONCE_OK); /* the same call, repeated */
    T_EQ(op.rc, ONCE_OWNER);
    complete_all(s, 50, 60);
    once_store_close(s);
    all_are_there(path, 0, 60);
    s = must_open(path, NULL);
    while (n-- > 0)
        T_EQ(verb_on(s, ONCE_OP_SHOW, 1000 + n), ONCE_IN_FLIGHT);
    once_store_close(s);
}

static void a_full_disk_is_unknown_and_loses_nothing(void)
{
    char disk[100];

    (void)snprintf(disk, sizeof(disk), "%s/disk", folder);
    T_EQ(mkdir(disk, 0700), 0);
    if (mount("tmpfs", disk, "tmpfs", 0, "size=2m") != 0) {
        printf("# skipped: no tmpfs to be had: %s\n", strerror(errno));
        return;
    }
    use_full_disk(disk);
    T_EQ(umount(disk), 0);
}

/*
 * `test_sqlite eio PATH`, under strace: claims keys 0..9, each until it is
 * answered, prints how often it was not, and completes nothing.
 */
static int be_victim(const char *path)
{
    once_store *s = must_open(path, NULL);
    once_error err = {0, ""};
    once_op op;
    uint32_t i;
    int unknown = 0, tries;

    for (i = 0; i < 10; i++)
        for (tries = 0; tries < 20; tries++) {
            make_op(&op, ONCE_OP_CLAIM, i);
            if (apply_one(s, &op, &err) == ONCE_OK)
                break;
            unknown++;
            if (strstr(err.text, "I/O") == NULL)
                return 3;
        }
    once_store_close(s);
    return unknown > 0 ? 40 + unknown : 0;
}

static int strace_victim(const char *path, const char *call, int when)
{
    char command[512];
    int status;

    (void)snprintf(command, sizeof(command),
                   "ASAN_OPTIONS=detect_leaks=0 strace -f -qq -o /dev/null "
                   "-e trace=%s -e inject=%s:error=EIO:when=%d %s eio %s",
                   call, call, when, program, path);
    status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void failed_calls(const char *call, int from, int to)
{
    char path[128];
    once_store *s;
    uint32_t i;
    int when, rc, hit = 0;

    for (when = from; when < to; when++) {
        new_path(path, sizeof(path));
        rc = strace_victim(path, call, when);
        if (rc == 134) /* the store could not be opened: must_open() */
            continue;
        T_OK(rc == 0 || rc == 41);
        hit += rc == 41;
        s = must_open(path, NULL);
        for (i = 0; i < 10; i++)
            T_EQ(verb_on(s, ONCE_OP_SHOW, i), ONCE_IN_FLIGHT);
        once_store_close(s);
    }
    printf("# %s: %d of %d failures met a batch\n", call, hit, to - from);
    T_OK(hit >= 3);
}

static void a_failed_flush_or_write_is_unknown_and_can_be_repeated(void)
{
    if (system("strace -qq -o /dev/null true >/dev/null 2>&1") != 0) {
        printf("# skipped: strace is not there, or may not trace\n");
        return;
    }
    failed_calls("fdatasync", 1, 16);
    failed_calls("pwrite64", 12, 40);
}

/* ---- Size -------------------------------------------------------------- */

struct names {
    uint8_t name[256][ONCE_NAME_SIZE];
    uint32_t n;
};

static int collect(void *user, const uint8_t *name, const once_record *r)
{
    struct names *names = user;

    T_EQ(r->state, ONCE_COMPLETED);
    memcpy(names->name[names->n++], name, ONCE_NAME_SIZE);
    return 0;
}

static void thousands_of_expired_rows_go_in_bounded_steps(void)
{
    enum { ROWS = 20000, STEP = 256 };
    static once_op op[STEP];
    static struct names names;
    once_op *ops[STEP];
    char path[128];
    uint64_t clock = BIRTH;
    uint32_t i, gone = 0;
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path, &clock);
    complete_all(s, 0, ROWS);
    T_EQ(s->ops->scan(s, ONCE_SCAN_KEEP, NULL, STEP, collect, &names, NULL), 0);
    clock += 5000;
    do {
        names.n = 0;
        T_EQ(s->ops->scan(s, ONCE_SCAN_KEEP, NULL, STEP, collect, &names, NULL),
             names.n);
        T_OK(names.n <= STEP);
        for (i = 0; i < names.n; i++) {
            make_op(&op[i], ONCE_OP_FORGET, 0);
            memcpy(op[i].name, names.name[i], ONCE_NAME_SIZE);
            ops[i] = &op[i];
        }
        T_EQ(s->ops->apply(s, ops, names.n, NULL), ONCE_OK);
        for (i = 0; i < names.n; i++)
            gone += op[i].rc == ONCE_OK;
    } while (names.n > 0);
    T_EQ(gone, ROWS);
    once_store_close(s);
    T_EQ(number(path, "SELECT (SELECT count(*) FROM claim) + (SELECT count(*)"
                      " FROM result) + (SELECT count(*) FROM live)"),
         0);
}

/* All that EXPLAIN QUERY PLAN says of `text`, in one line. */
static void plan(const char *path, const char *text, char *out, size_t size)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    char explain[512];
    size_t used = 0;

    (void)snprintf(explain, sizeof(explain), "EXPLAIN QUERY PLAN %s", text);
    T_EQ(sqlite3_open(path, &db), SQLITE_OK);
    T_EQ(sqlite3_prepare_v2(db, explain, -1, &q, NULL), SQLITE_OK);
    out[0] = '\0';
    while (sqlite3_step(q) == SQLITE_ROW && used < size)
        used += (size_t)snprintf(out + used, size - used, "%s; ",
                                 (const char *)sqlite3_column_text(q, 3));
    (void)sqlite3_finalize(q);
    (void)sqlite3_close(db);
}

static void the_file_offers_an_index_for_each_scan(void)
{
    char path[128], steps[512];

    new_path(path, sizeof(path));
    make_four(path);
    plan(path,
         "SELECT c.name FROM claim c LEFT JOIN live l ON l.fence=c.fence"
         " LEFT JOIN result r ON r.fence=c.fence WHERE c.phase<4 AND"
         " c.keep<=1 AND l.fence IS NULL AND ifnull(r.keep,0)<=1"
         " ORDER BY c.keep LIMIT 5",
         steps, sizeof(steps));
    T_OK(strstr(steps, "INDEX claim_keep (keep<?)") != NULL);
    T_OK(strstr(steps, "TEMP B-TREE") == NULL);
    plan(path,
         "SELECT l.name FROM live l LEFT JOIN claim c ON c.name=l.name"
         " LEFT JOIN result r ON r.fence=l.fence WHERE l.lease<=1"
         " ORDER BY l.fence LIMIT 5",
         steps, sizeof(steps));
    T_OK(strstr(steps, "SCAN l;") != NULL); /* tiny, in order */
    T_OK(strstr(steps, "SCAN c") == NULL && strstr(steps, "SCAN r") == NULL);
    T_OK(strstr(steps, "TEMP B-TREE") == NULL);
    plan(path,
         "SELECT c.name,c.label FROM claim c LEFT JOIN live l ON"
         " l.fence=c.fence WHERE c.phase=4 AND (c.ended,c.name)>(1,x'00')"
         " ORDER BY c.ended,c.name LIMIT 5",
         steps, sizeof(steps));
    T_OK(strstr(steps, "claim_waiting (phase=? AND (ended") != NULL);
    T_OK(strstr(steps, "TEMP B-TREE") == NULL);
    plan(path, "SELECT count(*) FROM claim WHERE phase=4", steps,
         sizeof(steps));
    T_OK(strstr(steps, "COVERING INDEX claim_waiting") != NULL);
    plan(path, "SELECT name FROM claim WHERE name>x'00' ORDER BY name LIMIT 5",
         steps, sizeof(steps));
    T_OK(strstr(steps, "PRIMARY KEY (name>?)") != NULL);
}

/* The log is moved into the file while one goes on writing. */
static void the_log_does_not_grow_without_bound(void)
{
    char path[128], log[140];
    struct stat st;
    once_store *s;
    uint32_t i;

    new_path(path, sizeof(path));
    s = must_open(path, NULL);
    for (i = 0; i < 200; i++)
        complete_all(s, i * 400, i * 400 + 400);
    T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
    (void)snprintf(log, sizeof(log), "%s-wal", path);
    T_EQ(stat(log, &st), 0);
    printf("# log: %" PRId64 " KiB\n", (int64_t)st.st_size / 1024);
    T_OK(st.st_size < (off_t)4 * 16000 * 4200);
    T_EQ(stat(path, &st), 0);
    T_OK(st.st_size > 4000000);
    once_store_close(s);
}

/* Whoever imports writes without a pause, which folding the log needs: it is
 * given one. */
static void the_log_does_not_grow_with_an_import(void)
{
    enum { STEPS = 48, RECORDS = 8, BODY = 1 << 20 };
    static uint8_t body[BODY];
    static once_named r[RECORDS];
    char path[128], log[140];
    struct stat st;
    once_store *s;
    once_op op;
    uint32_t i, k;

    new_path(path, sizeof(path));
    make_four(path);
    s = must_open(path, NULL);
    make_op(&op, ONCE_OP_SHOW, 2);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    for (i = 0; i < STEPS; i++) {
        for (k = 0; k < RECORDS; k++) {
            r[k].record = op.record;
            r[k].record.fence = 1000 + i * RECORDS + k;
            r[k].record.result = (once_bytes){body, BODY};
            memcpy(r[k].name, op.name, ONCE_NAME_SIZE);
            r[k].name[0] ^= (uint8_t)(1 + i);
            r[k].name[1] ^= (uint8_t)k;
        }
        if (!T_OK(s->ops->import(s, r, RECORDS, NULL) == ONCE_OK))
            break;
    }
    (void)snprintf(log, sizeof(log), "%s-wal", path);
    T_EQ(stat(log, &st), 0);
    printf("# log: %" PRId64 " KiB\n", (int64_t)st.st_size / 1024);
    T_OK(st.st_size < (off_t)128 << 20);
    once_store_close(s);
}

/* ---- The time ---------------------------------------------------------- */

/* Puts times whose members are all the same number, until it is killed. */
static void put_times(const char *path)
{
    once_store *s = must_open(path, NULL);
    once_error err = {0, ""};
    uint64_t i;

    for (i = 1;; i++) {
        once_store_time out, put = {.seen_ms = i, .steady_ms = i, .backs = i};

        memset(put.host, (int)(i & 255), sizeof(put.host));
        if (s->ops->time(s, &put, &out, &err) != ONCE_OK)
            _exit(1);
    }
}

static int is_whole(const once_store_time *t)
{
    uint8_t host[ONCE_HOST_SIZE];

    memset(host, (int)(t->seen_ms & 255), sizeof(host));
    return t->steady_ms == t->seen_ms && t->backs == t->seen_ms &&
           memcmp(t->host, host, sizeof(host)) == 0;
}

static void the_time_is_read_as_one_process_has_put_it(void)
{
    once_store_time t = {.seen_ms = 0};
    once_error err = {0, ""};
    uint64_t last = 0;
    int changes = 0, status;
    char path[128];
    once_store *s;
    pid_t pid, gone = 0;

    new_path(path, sizeof(path));
    once_store_close(must_open(path, NULL));
    pid = fork();
    if (pid == 0)
        put_times(path);
    s = must_open(path, NULL);
    while (changes < 100 && (gone = waitpid(pid, &status, WNOHANG)) == 0 &&
           s->ops->time(s, NULL, &t, &err) == ONCE_OK && is_whole(&t)) {
        changes += t.seen_ms != last;
        last = t.seen_ms;
    }
    T_EQ(changes, 100);
    T_OK(is_whole(&t));
    T_EQ(gone, 0);
    if (gone == 0) {
        T_EQ(kill(pid, SIGKILL), 0);
        T_OK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    }
    once_store_close(s);
}

static void remove_folder(void)
{
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        printf("# %s is still there\n", folder);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 3 && strcmp(argv[1], "eio") == 0)
        return be_victim(argv[2]);
    (void)snprintf(folder, sizeof(folder), "/tmp/once-sqlite-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    T_RUN(a_new_file_is_for_its_owner_alone);
    T_RUN(urls_are_refused_by_name);
    T_RUN(names_that_sqlite_reads_otherwise_are_files);
    T_RUN(what_is_not_ours_is_refused_and_left_alone);
    T_RUN(what_is_missing_is_not_created_unasked);
    T_RUN(another_schema_version_is_refused_with_both_numbers);
    T_RUN(a_file_that_may_not_be_written_is_refused);
    T_RUN(several_processes_may_create_one_file_at_once);
    T_RUN(a_damaged_row_is_an_error_and_never_a_miss);
    T_RUN(a_damaged_fence_counter_grants_nothing);
    T_RUN(a_damaged_head_is_seen_when_the_file_is_opened);
    T_RUN(pages_go_on_behind_a_damaged_record);
    T_RUN(importing_a_name_that_is_there_changes_nothing);
    T_RUN(a_busy_file_is_unknown_and_reads_go_on);
    T_RUN(a_reader_does_not_stop_writers);
    T_RUN(a_killed_writer_loses_nothing_it_has_acknowledged);
    T_RUN(a_full_disk_is_unknown_and_loses_nothing);
    T_RUN(a_failed_flush_or_write_is_unknown_and_can_be_repeated);
    T_RUN(thousands_of_expired_rows_go_in_bounded_steps);
    T_RUN(the_file_offers_an_index_for_each_scan);
    T_RUN(the_log_does_not_grow_without_bound);
    T_RUN(the_log_does_not_grow_with_an_import);
    T_RUN(the_time_is_read_as_one_process_has_put_it);
    remove_folder();
    return t_done();
}
