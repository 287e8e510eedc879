/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mysql.c - what only the MySQL store has, and what is known to go wrong
 * with MySQL elsewhere, on a real server that test/lib/with-server started:
 *
 *    test_mysql alone    one server, of class A
 *    test_mysql tls      with certificates
 *    test_mysql slow     without a binlog, and flushes are slow when told
 *    test_mysql replica  a pair, semi-synchronous
 *    test_mysql large [N]   N million records, 1 if not said
 *    test_mysql docs PAGE   the SQL of docs/mysql.md
 *    test_mysql WORD     of the first, those whose names begin so
 *
 * The conformance suite and the histories test what every store must do.
 */
#include "own_database.h"
#include "t.h"

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mysqld_error.h>

#include "base/steady.h"
#include "calls/core/transition.h"
#include "calls/store/mysql/mysql.h"
#include "calls/store/store.h"

static const char *server_url, *wanted = "";
static unsigned places;

/* ---- Small things ------------------------------------------------------ */

/* A connection of an administrator's, in the test's database. */
static MYSQL *session(const char *database)
{
    MYSQL *m = mysql_init(NULL);

    assert(m != NULL);
    if (mysql_real_connect(m, NULL, "root", "", database, 0,
                           getenv("ONCE_TEST_MYSQL_SOCKET"),
                           CLIENT_MULTI_STATEMENTS) == NULL) {
        printf("Bail out! %s\n", mysql_error(m));
        exit(1);
    }
    return m;
}

/* Runs SQL; returns the error number. The first field of the first rows goes to
 * `out`. */
static unsigned run(MYSQL *m, char out[64], const char *text)
{
    unsigned number = 0;
    MYSQL_RES *rows;
    MYSQL_ROW row;

    if (mysql_query(m, text) != 0)
        return mysql_errno(m);
    if (out != NULL)
        out[0] = '\0';
    do {
        rows = mysql_store_result(m);
        row = rows == NULL ? NULL : mysql_fetch_row(rows);
        if (out != NULL && out[0] == '\0' && row != NULL && row[0] != NULL)
            (void)snprintf(out, 64, "%s", row[0]);
        mysql_free_result(rows);
    } while (mysql_next_result(m) == 0);
    number = mysql_errno(m);
    return number;
}

struct place {
    char database[32];
    char url[512];
};

/* MySQL calls a master a source, and a slave a replica. */
static void in_words_of(MYSQL *m, char *text, size_t size)
{
    static const char *const words[][2] = {{"_sync_master_", "_sync_source_"},
                                           {"_no_slave", "_no_replica"}};
    char tail[768], *at;
    size_t i;

    if (strstr(mysql_get_server_info(m), "MariaDB") != NULL)
        return;
    for (i = 0; i < 2; i++)
        while ((at = strstr(text, words[i][0])) != NULL) {
            (void)snprintf(tail, sizeof(tail), "%s", at + strlen(words[i][0]));
            (void)snprintf(at, size - (size_t)(at - text), "%s%s", words[i][1],
                           tail);
        }
}

ONCE_PRINTF(3, 4)
static void sql(const struct place *p, char out[64], const char *format, ...)
{
    char text[768];
    MYSQL *m = session(p == NULL ? NULL : p->database);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    in_words_of(m, text, sizeof(text));
    if (run(m, out, text) != 0) {
        printf("#   %s: %s\n", text, mysql_error(m));
        t__bad++;
    }
    mysql_close(m);
}

static void ctl(const char *words)
{
    char command[256];

    (void)snprintf(command, sizeof(command),
                   "\"$ONCE_TEST_WITH_SERVER\" ctl %s", words);
    T_EQ(system(command), 0);
}

static struct place made_place(const char *more)
{
    struct place p;

    (void)snprintf(p.database, sizeof(p.database), "t%u", places++);
    own_database(p.url, sizeof(p.url), p.database, more);
    return p;
}

static once_store *must_open(const char *url)
{
    once_error err = {0, ""};
    once_store *s = NULL;

    if (once_store_open(url, NULL, &err, &s) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return s;
}

static void refused(const char *url, int code, const char *text)
{
    once_error err = {0, ""};
    once_store *s = NULL;

    T_EQ(once_store_open(url, NULL, &err, &s), code);
    T_OK(s == NULL);
    if (!T_OK(strstr(err.text, text) != NULL))
        printf("#   \"%s\" is not in \"%s\"\n", text, err.text);
    T_OK(strstr(err.text, "s3cret") == NULL);
}

static void fill(once_op *op, int verb, unsigned name, unsigned who)
{
    memset(op, 0, sizeof(*op));
    op->verb = verb;
    op->kind = ONCE_SUCCESS;
    op->lease_ms = 600000;
    op->keep_ms = 86400000;
    op->name[0] = (uint8_t)(name * 37);
    op->name[1] = (uint8_t)(name >> 8);
    op->name[2] = (uint8_t)name;
    memset(op->token, (int)who, ONCE_TOKEN_SIZE);
    memset(op->fingerprint, 7, ONCE_FINGERPRINT_SIZE);
}

/* Asks until it is answered. Gives up after a minute or so. */
static int ask(once_store *s, once_op *op)
{
    once_error err = {0, ""};
    int tries, rc = ONCE_ESTORE;

    for (tries = 0; tries < 3000; tries++) {
        rc = s->ops->apply(s, &op, 1, &err);
        if (rc == ONCE_OK && op->rc != ONCE_ESTORE)
            return op->rc;
        once__sleep_ms(20);
    }
    printf("#   %s\n", err.text);
    return rc;
}

/* Asks once. */
static int ask_now(once_store *s, once_op *op, once_error *err)
{
    int rc = s->ops->apply(s, &op, 1, err);

    return rc == ONCE_OK ? op->rc : rc;
}

static int simple(once_store *s, int verb, unsigned name, unsigned who,
                  uint64_t fence)
{
    once_op op;

    fill(&op, verb, name, who);
    op.fence = fence;
    return ask(s, &op);
}

static uint64_t claimed(once_store *s, unsigned name, unsigned who)
{
    once_op op;

    fill(&op, ONCE_OP_CLAIM, name, who);
    T_EQ(ask(s, &op), ONCE_OWNER);
    return op.record.fence;
}

static void hex_name(char out[2 * ONCE_NAME_SIZE + 1], unsigned name)
{
    once_op op;
    size_t i;

    fill(&op, ONCE_OP_CLAIM, name, 1);
    for (i = 0; i < ONCE_NAME_SIZE; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", op.name[i]);
}

static void count_line(void *user, const char *text)
{
    int *n = user;

    (*n)++;
    T_OK(strchr(text, '\n') == NULL);
}

/* ---- The schema -------------------------------------------------------- */

static void without_tables_it_says_what_makes_them(void)
{
    struct place p = made_place("connect_ms=1000");
    char url[512];

    (void)snprintf(url, sizeof(url), "%s", p.url);
    memcpy(strstr(url, p.database), "tx", 2); /* no such database */
    refused(url, ONCE_EOPEN, "once init");
    sql(&p, NULL, "DROP TABLE once_meta");
    refused(p.url, ONCE_EOPEN, "once init");
}

static void *init_thread(void *url)
{
    once_error err = {0, ""};

    if (once_store_init(url, &err) == ONCE_OK)
        return url;
    printf("#   %s\n", err.text);
    return NULL;
}

static void making_it_twice_or_at_once_is_making_it_once(void)
{
    struct place p = made_place("");
    pthread_t threads[4];
    char n[64];
    void *good;
    uint64_t fence;
    once_store *s;
    int i;

    sql(NULL, NULL, "DROP DATABASE %s", p.database);
    for (i = 0; i < 4; i++)
        T_EQ(pthread_create(&threads[i], NULL, init_thread, p.url), 0);
    for (i = 0; i < 4; i++) {
        T_EQ(pthread_join(threads[i], &good), 0);
        T_OK(good != NULL);
    }
    s = must_open(p.url);
    fence = claimed(s, 1, 1);
    T_EQ(once_store_init(p.url, NULL), ONCE_OK);
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_OK);
    once_store_close(s);
    sql(&p, n, "SELECT COUNT(*) FROM once_touch");
    T_STR(n, "256");
}

static void another_version_is_refused_with_both_numbers(void)
{
    struct place p = made_place("");

    sql(&p, NULL, "UPDATE once_meta SET version = 7");
    T_EQ(once_store_init(p.url, NULL), ONCE_EVERSION);
    refused(p.url, ONCE_EVERSION, "version 7, this program understands 1");
    sql(&p, NULL, "UPDATE once_meta SET version = 1");
    once_store_close(must_open(p.url));
}

struct text {
    char bytes[16384];
    size_t size;
};

static void add_line(void *user, const char *line)
{
    struct text *t = user;

    t->size += (size_t)snprintf(t->bytes + t->size, sizeof(t->bytes) - t->size,
                                "%s\n", line);
    assert(t->size < sizeof(t->bytes));
}

static void the_printed_schema_is_one_that_works(void)
{
    static struct text t;
    struct place p = made_place("");
    MYSQL *m = session(NULL);
    once_store *s;

    t.size = 0;
    sql(NULL, NULL, "DROP DATABASE %s", p.database);
    T_EQ(once_store_print_schema(p.url, add_line, &t, NULL), ONCE_OK);
    T_EQ(run(m, NULL, t.bytes), 0);
    mysql_close(m);
    s = must_open(p.url);
    (void)claimed(s, 1, 1);
    once_store_close(s);
}

static void a_gateway_needs_four_rights_on_tables_and_no_other(void)
{
    static const char *const tables[] = {"record", "body", "touch", "swept",
                                         "clock"};
    struct place p = made_place("");
    char url[600];
    once_store_time now;
    once_counts counts;
    once_store_head head;
    once_error err = {0, ""};
    once_op op;
    uint64_t fence;
    once_store *s;
    size_t i;
    int lines = 0;

    sql(NULL, NULL, "CREATE USER gateway@'%%' IDENTIFIED BY 's3cret'");
    for (i = 0; i < 5; i++)
        sql(NULL, NULL,
            "GRANT SELECT, INSERT, UPDATE, DELETE ON %s.once_%s TO "
            "gateway@'%%'",
            p.database, tables[i]);
    sql(NULL, NULL, "GRANT SELECT ON %s.once_meta TO gateway@'%%'", p.database);
    (void)snprintf(url, sizeof(url), "mysql://gateway:wrong@%s",
                   strchr(p.url, '@') + 1);
    refused(url, ONCE_EOPEN, "does not let this account in");
    (void)snprintf(url, sizeof(url), "mysql://gateway:s3cret@%s",
                   strchr(p.url, '@') + 1);
    s = must_open(url);
    fence = claimed(s, 1, 1);
    fill(&op, ONCE_OP_COMPLETE, 1, 1);
    op.fence = fence;
    op.keep_ms = 0;
    T_EQ(ask(s, &op), ONCE_OK);
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2, 0), ONCE_REPLAY);
    T_EQ(simple(s, ONCE_OP_FORGET, 1, 2, 0), ONCE_OK);
    T_EQ(s->ops->maintain(s, &err), ONCE_OK);
    T_EQ(s->ops->time(s, NULL, &now, &err), ONCE_OK);
    T_EQ(s->ops->time(s, &now, &now, &err), ONCE_OK);
    T_EQ(s->ops->count(s, &counts, &err), ONCE_OK);
    T_EQ(s->ops->fence(s, &fence, &err), ONCE_OK);
    T_EQ(s->ops->head(s, NULL, &head, &err), ONCE_OK);
    T_EQ(s->ops->head(s, &head, &head, &err), ONCE_ESTORE); /* the owner's */
    T_EQ(once_store_verify(url, count_line, &lines, NULL), 0);
    once_store_close(s);
    sql(NULL, NULL, "DROP USER gateway@'%%'");
}

/* ---- What is refused, and what is said --------------------------------- */

static void urls_that_are_refused_are_not_repeated(void)
{
    static const char *const urls[] = {
        "mysql:once:s3cret@127.0.0.1/once",
        "mysql://once:s3cret@127.0.0.1",
        "mysql://once:s3cret@127.0.0.1/",
        "mysql://once:s3cret@127.0.0.1/a`b",
        "mysql://once:s3@cret/127.0.0.1/once",
        "mysql://once:p/s3cret@127.0.0.1/once",
        "mysql://once:s3cret@127.0.0.1:x/once",
        "mysql://once:s3cret@127.0.0.1/once?sslmode=require",
        "mysql://once:s3cret@127.0.0.1/once?sslcert=/x",
        "mysql://once:s3cret@127.0.0.1/once?compress=1",
    };
    size_t i;

    for (i = 0; i < sizeof(urls) / sizeof(urls[0]); i++)
        refused(urls[i], ONCE_EURL, "mysql");
    refused("mysql://once:s3cret@127.0.0.1/once?lock_ms=0", ONCE_EURL,
            "lock_ms");
    refused("mysql://once@127.0.0.1/once?password_file=/nowhere", ONCE_EOPEN,
            "/nowhere");
    refused("mysql://once:s3cret@127.0.0.1:1/once", ONCE_EAWAY, "127.0.0.1:1");
}

static void a_password_may_stand_in_a_file(void)
{
    struct place p = made_place("");
    char path[128], url[700];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/password", getenv("ONCE_TEST_DIR"));
    f = fopen(path, "w");
    assert(f != NULL);
    (void)fputs("s3c'ret\n", f);
    (void)fclose(f);
    T_OK(chmod(path, 0600) == 0);
    sql(NULL, NULL,
        "CREATE USER file@'%%' IDENTIFIED BY 's3c''ret';"
        "GRANT ALL ON %s.* TO file@'%%'",
        p.database);
    (void)snprintf(url, sizeof(url), "mysql://file@%s&password_file=%s",
                   strchr(p.url, '@') + 1, path);
    *strstr(url, "&") = strchr(url, '?') == NULL ? '?' : '&';
    once_store_close(must_open(url));
    sql(NULL, NULL, "DROP USER file@'%%'");
    (void)unlink(path);
}

/* The caveat, which is what a start-up message says. */
static void says(const struct place *p, const char *text)
{
    once_store *s = must_open(p->url);

    if (!T_OK((s->caveat == NULL) == (text == NULL) &&
              (text == NULL || strstr(s->caveat, text) != NULL)))
        printf("#   it says: %s\n", s->caveat == NULL ? "-" : s->caveat);
    once_store_close(s);
}

static void what_is_not_class_a_is_said(void)
{
    struct place p = made_place("");

    says(&p, NULL);
    sql(NULL, NULL, "SET GLOBAL sync_binlog = 0");
    says(&p, "sync_binlog");
    sql(NULL, NULL,
        "SET GLOBAL sync_binlog = 1;"
        "SET GLOBAL innodb_flush_log_at_trx_commit = 2");
    says(&p, "innodb_flush_log_at_trx_commit");
    sql(NULL, NULL,
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1;"
        "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_COMMIT;"
        "SET GLOBAL rpl_semi_sync_master_enabled = 1");
    says(&p, "AFTER_COMMIT");
    sql(NULL, NULL, "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC");
    says(&p, "less than a day");
    sql(NULL, NULL,
        "SET GLOBAL rpl_semi_sync_master_timeout = 1000000000;"
        "SET GLOBAL rpl_semi_sync_master_wait_no_slave = 0");
    says(&p, "no replica is");
    sql(NULL, NULL,
        "SET GLOBAL rpl_semi_sync_master_enabled = 0;"
        "SET GLOBAL rpl_semi_sync_master_timeout = 10000;"
        "SET GLOBAL rpl_semi_sync_master_wait_no_slave = 1");
    says(&p, NULL);
}

/* Nobody would hear of it. */
static void a_server_that_promises_less_than_before_is_asked_nothing(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    once_error err = {0, ""};
    once_op op;

    (void)claimed(s, 1, 1);
    sql(NULL, NULL, "SET GLOBAL sync_binlog = 0");
    fill(&op, ONCE_OP_CLAIM, 2, 1);
    T_EQ(ask_now(s, &op, &err), ONCE_ESTORE);
    once__sleep_ms(50);
    T_EQ(ask_now(s, &op, &err), ONCE_ESTORE);
    if (!T_OK(strstr(err.text, "sync_binlog") != NULL))
        printf("#   %s\n", err.text);
    sql(NULL, NULL, "SET GLOBAL sync_binlog = 1");
    T_EQ(ask(s, &op), ONCE_OWNER);
    T_EQ(op.record.attempt, 1);
    once_store_close(s);
}

static void a_server_that_may_only_be_read_is_refused(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    once_error err = {0, ""};
    once_op op;

    (void)claimed(s, 1, 1);
    sql(NULL, NULL, "SET GLOBAL read_only = 1");
    refused(p.url, ONCE_EAWAY, "read_only");
    fill(&op, ONCE_OP_CLAIM, 1, 2);
    T_EQ(ask_now(s, &op, &err), ONCE_ESTORE); /* also what only looks */
    sql(NULL, NULL, "SET GLOBAL read_only = 0");
    T_EQ(ask(s, &op), ONCE_IN_FLIGHT);
    once_store_close(s);
}

static void a_cluster_that_was_never_tested_is_refused(void)
{
    struct place p = made_place("");

    sql(NULL, NULL, "SET GLOBAL binlog_format = STATEMENT");
    refused(p.url, ONCE_EOPEN, "STATEMENT");
    sql(NULL, NULL,
        "SET GLOBAL binlog_format = ROW;"
        "SET GLOBAL max_allowed_packet = 1048576");
    refused(p.url, ONCE_EOPEN, "max_allowed_packet");
    sql(NULL, NULL, "SET GLOBAL max_allowed_packet = 16777216");
    once_store_close(must_open(p.url));
}

/* A database can be renamed or restored while a gateway is connected. */
static void another_store_in_its_place_is_asked_nothing(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    once_error err = {0, ""};
    char id[64];
    once_op op;

    (void)claimed(s, 1, 1);
    sql(&p, id, "SELECT HEX(id) FROM once_meta");
    sql(&p, NULL, "UPDATE once_meta SET id = REVERSE(id)");
    fill(&op, ONCE_OP_CLAIM, 2, 1);
    T_EQ(ask_now(s, &op, &err), ONCE_ESTORE);
    T_OK(strstr(err.text, "another store") != NULL);
    fill(&op, ONCE_OP_SHOW, 1, 1);
    T_EQ(ask_now(s, &op, &err), ONCE_ESTORE);
    sql(&p, NULL, "UPDATE once_meta SET id = UNHEX('%s')", id);
    T_EQ(ask(s, &op), ONCE_IN_FLIGHT);
    once_store_close(s);
}

/* ---- Rows --------------------------------------------------------------- */

static void a_row_that_does_not_check_is_an_error_and_stays(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    uint64_t fence = claimed(s, 1, 1);
    int lines = 0;

    sql(&p, NULL, "UPDATE once_record SET kind = 2");
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_ECORRUPT);
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2, 0), ONCE_ECORRUPT);
    T_EQ(simple(s, ONCE_OP_FORGET, 1, 2, 0), ONCE_ECORRUPT);
    T_EQ(once_store_verify(p.url, count_line, &lines, NULL), 1);
    sql(&p, NULL, "UPDATE once_record SET kind = 0, due_ms = due_ms + 1");
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_ECORRUPT);
    sql(&p, NULL, "UPDATE once_record SET due_ms = due_ms - 1, version = 9");
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_EVERSION);
    sql(&p, NULL, "UPDATE once_record SET version = 1");
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence), ONCE_OK);
    T_EQ(once_store_verify(p.url, count_line, &lines, NULL), 0);
    sql(&p, NULL, "UPDATE once_body SET size = 9");
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2, 0), ONCE_ECORRUPT);
    sql(&p, NULL, "DELETE FROM once_body");
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2, 0), ONCE_ECORRUPT);
    T_EQ(once_store_verify(p.url, count_line, &lines, NULL), 1);
    sql(&p, NULL, "INSERT INTO once_body VALUES (%d, 0, 0, '')", 99);
    T_EQ(once_store_verify(p.url, count_line, &lines, NULL), 2);
    sql(&p, NULL, "UPDATE once_meta SET incarnation = 1");
    T_EQ(once_store_verify(p.url, count_line, &lines, NULL), 3);
    once_store_close(s);
}

/* Some are longer than one row, and one is longer than a packet may be. */
static void long_results_come_back_with_the_same_bytes(void)
{
    static const size_t sizes[] = {
        1,        ONCE__MY_PART - 1, ONCE__MY_PART, ONCE__MY_PART + 1,
        3u << 20, 40u << 20};
    static const char special[] = "\0'\\\"\n\x1a%_";
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    struct place p = made_place("statement_ms=60000");
    once_store *s = must_open(p.url);
    once_op op;
    uint8_t *bytes;
    unsigned i;
    size_t k;

    for (i = 0; i < N; i++) {
        bytes = malloc(sizes[i]);
        assert(bytes != NULL);
        for (k = 0; k < sizes[i]; k++) /* with all that must be escaped */
            bytes[k] =
                k * k % 251 < 100 ? (uint8_t)special[k % 8] : (uint8_t)(k * 7);
        fill(&op, ONCE_OP_COMPLETE, i, 1);
        op.fence = claimed(s, i, 1);
        op.result = (once_bytes){bytes, sizes[i]};
        T_EQ(ask(s, &op), ONCE_OK);
        fill(&op, ONCE_OP_CLAIM, i, 2);
        T_EQ(ask(s, &op), ONCE_REPLAY);
        T_EQ(op.record.result.size, sizes[i]);
        if (op.record.result.size == sizes[i])
            T_MEM(op.record.result.data, bytes, sizes[i]);
        free(bytes);
    }
    once_store_close(s);
    T_EQ(once_store_verify(p.url, count_line, &(int){0}, NULL), 0);
}

static void a_part_that_is_missing_is_an_error(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    uint8_t *bytes = calloc(1, 1 << 20);
    once_op op;

    assert(bytes != NULL);
    fill(&op, ONCE_OP_COMPLETE, 1, 1);
    op.fence = claimed(s, 1, 1);
    op.result = (once_bytes){bytes, 1 << 20};
    T_EQ(ask(s, &op), ONCE_OK);
    sql(&p, NULL, "DELETE FROM once_body WHERE part = 2");
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2, 0), ONCE_ECORRUPT);
    T_EQ(once_store_verify(p.url, count_line, &(int){0}, NULL), 1);
    once_store_close(s);
    free(bytes);
}

static void what_is_there_is_not_imported(void)
{
    enum { N = 600 }; /* more than one transaction takes along */
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    once_named *r = calloc(N, sizeof(*r));
    once_error err = {0, ""};
    once_op op;
    int i;

    assert(r != NULL);
    (void)claimed(s, 1, 1);
    fill(&op, ONCE_OP_SHOW, 1, 1);
    T_EQ(ask(s, &op), ONCE_IN_FLIGHT);
    for (i = 0; i < N; i++) {
        r[i].record = op.record;
        memset(r[i].name, i % 256, ONCE_NAME_SIZE);
        r[i].name[0] = (uint8_t)(i / 256);
        r[i].record.fence = (uint64_t)(1000 + i);
    }
    T_EQ(s->ops->import(s, r, N, &err), ONCE_OK);
    T_EQ(claimed(s, 2, 1), 1000 + N);
    r[0].record.fence = 5000; /* another row with the same name */
    T_EQ(s->ops->import(s, r, 1, &err), ONCE_EINVAL);
    T_OK(strstr(err.text, "same name") != NULL);
    T_EQ(claimed(s, 3, 1) > 1000 + N, 1); /* nothing is left open */
    free(r);
    once_store_close(s);
}

/* Those with the same values share an UPDATE. */
static void steps_of_a_batch_get_each_their_own_values(void)
{
    enum { N = 60 };
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    once_op op[N], *ops[N];
    uint64_t fence[N];
    unsigned i;

    for (i = 0; i < N; i++)
        fence[i] = claimed(s, i, 1);
    for (i = 0; i < N; i++) {
        fill(&op[i], i % 3 == 0 ? ONCE_OP_RENEW : ONCE_OP_COMPLETE, i, 1);
        op[i].fence = fence[i];
        op[i].lease_ms = 600000 + 1000 * (i % 5);
        op[i].keep_ms = 86400000 + 1000 * (i % 7);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, N, NULL), ONCE_OK);
    for (i = 0; i < N; i++) {
        once_record was = op[i].record;

        T_EQ(op[i].rc, ONCE_OK);
        fill(&op[i], ONCE_OP_SHOW, i, 1);
        T_EQ(ask(s, &op[i]), i % 3 == 0 ? ONCE_IN_FLIGHT : ONCE_REPLAY);
        T_EQ(op[i].record.lease_ms, was.lease_ms);
        T_EQ(op[i].record.keep_ms, was.keep_ms);
        T_EQ(op[i].record.fence, fence[i]);
    }
    once_store_close(s);
}

/* One INSERT leaves out what all of its rows have by default, and no more. */
static void rows_of_a_batch_get_each_their_own_values(void)
{
    enum { N = 48, KINDS = 6 };
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    once_op op[N], *ops[N], shown;
    unsigned i, round;

    for (round = 0; round < KINDS; round++) {
        for (i = 0; i < N; i++) {
            unsigned kind = i == N / 2 ? round : KINDS;

            fill(&op[i], ONCE_OP_CLAIM, round * N + i, 1);
            op[i].two_phase = kind == 0;
            op[i].policy = kind == 1 ? ONCE_RETRY_FAILED : 0;
            op[i].trace[3] = kind == 2;
            op[i].subject[0] = kind == 3;
            op[i].group[0] = kind == 4 ? 'g' : 0;
            op[i].label =
                kind == 5 ? (once_bytes){"l'a\\bel", 7} : (once_bytes){NULL, 0};
            ops[i] = &op[i];
        }
        T_EQ(s->ops->apply(s, ops, N, NULL), ONCE_OK);
        for (i = 0; i < N; i++) {
            T_EQ(op[i].rc, ONCE_OWNER);
            fill(&shown, ONCE_OP_SHOW, round * N + i, 1);
            T_EQ(ask(s, &shown), ONCE_IN_FLIGHT);
            T_EQ(shown.record.state,
                 op[i].two_phase ? ONCE_CLAIMED : ONCE_DISPATCHED);
            T_EQ(shown.record.policy, op[i].policy);
            T_MEM(shown.record.trace, op[i].trace, ONCE_TRACE_SIZE);
            T_MEM(shown.record.subject, op[i].subject, ONCE_SUBJECT_SIZE);
            T_MEM(shown.record.group, op[i].group, ONCE_GROUP_SIZE);
            T_EQ(shown.record.label.size, op[i].label.size);
        }
    }
    once_store_close(s);
}

/* ---- Time --------------------------------------------------------------- */

/* As the server has it, in whatever time zone: also in the hour that one of them
 * repeats in autumn. */
static void time_is_the_servers_whatever_its_zone(void)
{
    struct place p = made_place("");
    once_store_time t;
    once_store *s;
    uint64_t before;
    int i;

    for (i = -11; i < 12; i += 11) {
        sql(NULL, NULL, "SET GLOBAL time_zone = '%+03d:00'", i);
        before = once__wall_clock(NULL);
        s = must_open(p.url);
        T_EQ(s->ops->time(s, NULL, &t, NULL), ONCE_OK);
        T_OK(t.now_ms + 2 >= before && t.now_ms <= once__wall_clock(NULL) + 2);
        (void)claimed(s, (unsigned)(i + 20), 1);
        once_store_close(s);
    }
    sql(NULL, NULL, "SET GLOBAL time_zone = 'SYSTEM'");
}

/* Milliseconds by which the time of a grant is behind the moment at which its
 * record could be had at last. */
static void the_time_is_that_behind_the_locks(void)
{
    struct place p = made_place("lock_ms=10000");
    once_store *s = must_open(p.url);
    MYSQL *other = session(p.database);
    uint64_t fence = claimed(s, 1, 1), free_ms;
    once_op op;

    fill(&op, ONCE_OP_RENEW, 1, 1);
    op.fence = fence;
    T_EQ(run(other, NULL, "BEGIN; SELECT * FROM once_record FOR UPDATE"), 0);
    T_EQ(ask_now(s, &(once_op){.verb = ONCE_OP_SHOW}, NULL), ONCE_FREE);
    free_ms = once__wall_clock(NULL);
    T_EQ(run(other, NULL, "COMMIT"), 0);
    T_EQ(ask(s, &op), ONCE_OK);
    T_OK(op.record.lease_ms >= free_ms + op.lease_ms);
    mysql_close(other);
    once_store_close(s);
}

/* ---- Others in the way -------------------------------------------------- */

/* Another session holds one row: the others are answered, and so is what only
 * looks at that one. */
static void a_locked_row_keeps_no_other_waiting(void)
{
    struct place p = made_place("lock_ms=300");
    once_store *s = must_open(p.url);
    MYSQL *other = session(p.database);
    uint64_t fence = claimed(s, 1, 1), began;
    once_op op[4], *ops[4] = {&op[0], &op[1], &op[2], &op[3]};

    T_EQ(run(other, NULL,
             "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; BEGIN; "
             "SELECT * FROM once_record FOR UPDATE"),
         0);
    fill(&op[0], ONCE_OP_CLAIM, 2, 1);
    fill(&op[1], ONCE_OP_COMPLETE, 1, 1);
    op[1].fence = fence;
    fill(&op[2], ONCE_OP_CLAIM, 3, 1);
    fill(&op[3], ONCE_OP_SHOW, 4, 1);
    began = once__steady_ms();
    T_EQ(s->ops->apply(s, ops, 4, NULL), ONCE_OK);
    T_OK(once__steady_ms() - began < 3000);
    T_EQ(op[0].rc, ONCE_OWNER);
    T_EQ(op[1].rc, ONCE_ESTORE);
    T_EQ(op[2].rc, ONCE_OWNER);
    T_EQ(op[3].rc, ONCE_FREE);
    T_EQ(simple(s, ONCE_OP_CLAIM, 1, 2, 0), ONCE_IN_FLIGHT);
    T_EQ(run(other, NULL, "COMMIT"), 0);
    T_EQ(ask(s, &op[1]), ONCE_OK);
    mysql_close(other);
    once_store_close(s);
}

/* A name that another session is inserting is waited for, in whole seconds, and
 * then the others are answered without it. */
static void a_claim_under_way_elsewhere_keeps_no_other_waiting(void)
{
    struct place p = made_place("lock_ms=300&statement_ms=20000");
    once_store *s = must_open(p.url);
    MYSQL *other = session(p.database);
    once_op op[8], *ops[8];
    char name[2 * ONCE_NAME_SIZE + 1], text[512];
    unsigned i;

    hex_name(name, 3);
    (void)snprintf(text, sizeof(text),
                   "BEGIN; INSERT INTO once_record SELECT NULL, 1, 9, 9, 9, 1, "
                   "1, 0, 1, 1, 1, 0, 0, 0, 0, x'00', x'00', x'%s', x'00', '', "
                   "'', '', ''",
                   name);
    T_EQ(run(other, NULL, text), 0);
    for (i = 0; i < 8; i++) {
        fill(&op[i], ONCE_OP_CLAIM, i, 1);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, 8, NULL), ONCE_OK);
    for (i = 0; i < 8; i++)
        T_EQ(op[i].rc, i == 3 ? ONCE_ESTORE : ONCE_OWNER);
    T_EQ(run(other, NULL, "ROLLBACK"), 0);
    T_EQ(ask(s, &op[3]), ONCE_OWNER);
    mysql_close(other);
    once_store_close(s);
}

/* What is read is the second packet's business, if it comes too late. */
struct late {
    const char *url;
    unsigned first, step;
    int rc[64];
    once_op op[64];
};

static void *claim_all(void *user)
{
    struct late *l = user;
    once_store *s = must_open(l->url);
    once_op *ops[64];
    unsigned i;

    for (i = 0; i < 64; i++) {
        fill(&l->op[i], ONCE_OP_CLAIM, (l->first + i * l->step) % 64, l->first);
        ops[i] = &l->op[i];
    }
    while (s->ops->apply(s, ops, 64, NULL) != ONCE_OK)
        ;
    for (i = 0; i < 64; i++)
        while (l->op[i].rc == ONCE_ESTORE)
            l->op[i].rc = ask(s, &l->op[i]);
    once_store_close(s);
    return NULL;
}

/* 1062, 1205 and 1213 among them: each name has one owner, and one row. */
static void of_all_who_insert_at_once_one_is_the_owner(void)
{
    enum { CALLERS = 6, ROUNDS = 12 };
    static struct late l[CALLERS];
    pthread_t threads[CALLERS];
    unsigned round, i, k, owners;
    char n[64];

    for (round = 0; round < ROUNDS; round++) {
        struct place p = made_place("lock_ms=30000&statement_ms=60000");
        unsigned owned[64] = {0};

        for (i = 0; i < CALLERS; i++) {
            l[i] = (struct late){.url = p.url, .first = i, .step = 2 * i + 1};
            T_EQ(pthread_create(&threads[i], NULL, claim_all, &l[i]), 0);
        }
        for (i = 0; i < CALLERS; i++) {
            T_EQ(pthread_join(threads[i], NULL), 0);
            for (k = 0; k < 64; k++)
                if (l[i].op[k].rc == ONCE_OWNER)
                    owned[l[i].op[k].name[2]]++;
                else
                    T_EQ(l[i].op[k].rc, ONCE_IN_FLIGHT);
        }
        for (k = owners = 0; k < 64; k++)
            owners += owned[k] == 1;
        T_EQ(owners, 64);
        sql(&p, n, "SELECT COUNT(*) FROM once_record");
        T_STR(n, "64");
        sql(NULL, NULL, "DROP DATABASE %s", p.database);
    }
}

/* Nothing is left of a round that met an error: here a record that was to be
 * granted again, which is a DELETE and an INSERT that waits in vain. */
static void an_error_takes_back_what_came_before_it(void)
{
    struct place p = made_place("lock_ms=300&statement_ms=20000");
    once_store *s = must_open(p.url);
    MYSQL *other = session(p.database);
    char name[2 * ONCE_NAME_SIZE + 1], text[512];
    once_op op[2], *ops[2] = {&op[0], &op[1]};

    fill(&op[0], ONCE_OP_CLAIM, 1, 1);
    op[0].two_phase = 1;
    T_EQ(ask(s, &op[0]), ONCE_OWNER);
    sql(&p, NULL, "UPDATE once_record SET lease_ms = 1, due_ms = 1");
    (void)claimed(s, 2, 9); /* or they would be neighbours in the index */
    hex_name(name, 3);
    (void)snprintf(text, sizeof(text),
                   "BEGIN; INSERT INTO once_record SELECT NULL, 1, 9, 9, 9, 1, "
                   "1, 0, 1, 1, 1, 0, 0, 0, 0, x'00', x'00', x'%s', x'00', '', "
                   "'', '', ''",
                   name);
    T_EQ(run(other, NULL, text), 0);
    fill(&op[0], ONCE_OP_CLAIM, 1, 2);
    fill(&op[1], ONCE_OP_CLAIM, 3, 2);
    T_EQ(s->ops->apply(s, ops, 2, NULL), ONCE_OK);
    T_EQ(op[0].rc, ONCE_OWNER);
    T_EQ(op[0].record.attempt, 2);
    T_EQ(op[1].rc, ONCE_ESTORE);
    T_EQ(run(other, NULL, "ROLLBACK"), 0);
    mysql_close(other);
    once_store_close(s);
}

/* A session of ours, as the driver prepares it. */
static void other_session(const struct place *p, struct once__my_config *config,
                          struct once__my_link *l, const char *text)
{
    struct once__my_answer a;

    memset(l, 0, sizeof(*l));
    l->config = config;
    T_EQ(once__my_config_read(config, strchr(p->url, ':') + 1, NULL), ONCE_OK);
    T_EQ(once__my_connect(l, 0, once__steady_ms() + 5000, NULL), ONCE_OK);
    T_EQ(once__my_ask_plain(l, text, once__steady_ms() + 5000, NULL, &a),
         ONCE_OK);
    once__my_answer_clear(&a);
}

static void end_session(struct once__my_config *config, struct once__my_link *l)
{
    once__my_disconnect(l);
    once__my_config_clear(config);
}

/* A step on a row that is not as it was read, whatever became of its lock, is
 * not written, and neither is what comes with it. */
static void no_step_is_written_over_another(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    struct once__my_config config;
    struct once__my_link l;
    struct once__my_text text = {NULL, 0, 0, 0};
    struct once__arena arena = {NULL};
    struct once__my_change c[2];
    struct once__my_writer w;
    once_op op[2];
    char n[64];
    unsigned i, kind;

    for (kind = 0; kind < 4; kind++) { /* another state, fence; a new grant */
        for (i = 0; i < 2; i++) {
            fill(&op[i], ONCE_OP_CLAIM, 2 * kind + i, 1);
            T_EQ(ask(s, &op[i]), ONCE_OWNER);
            c[i] = (struct once__my_change){op[i].name, op[i].record,
                                            op[i].record};
            c[i].after.lease_ms += 1000000; /* no claim's own lease ends then */
        }
        c[1].before.state = kind == 0 ? ONCE_CLAIMED : c[1].before.state;
        c[1].before.fence += kind > 0 ? 1000 : 0;
        c[1].after.fence = c[1].before.fence;
        c[1].after.attempt += kind == 2;
        if (kind == 3)
            memset(&c[1].after, 0, sizeof(c[1].after));
        other_session(&p, &config, &l, "BEGIN");
        w = (struct once__my_writer){.link = &l,
                                     .text = &text,
                                     .arena = &arena,
                                     .until_ms = once__steady_ms() + 5000,
                                     .end = ONCE__MY_DONE};
        once__my_write(&w, c, 2, 1);
        T_EQ(w.end, ONCE__MY_REFUSED);
        T_EQ(l.number, ER_DUP_ENTRY);
        end_session(&config, &l);
        sql(&p, n, "SELECT COUNT(*) FROM once_record WHERE lease_ms = %llu",
            (unsigned long long)c[0].after.lease_ms);
        T_STR(n, "0");
    }
    once__my_text_clear(&text);
    once__arena_clear(&arena);
    once_store_close(s);
}

/* Gap locks would let claims wait for others that they have nothing to do with,
 * and for each other. */
static void a_look_at_what_is_not_there_locks_nothing(void)
{
    struct place p = made_place("lock_ms=100");
    once_store *s = must_open(p.url);
    struct once__my_config config;
    struct once__my_link l;
    once_op op;

    other_session(&p, &config, &l,
                  "BEGIN; SELECT name FROM once_record FORCE INDEX (name) "
                  "WHERE name IN (x'00') FOR UPDATE SKIP LOCKED");
    fill(&op, ONCE_OP_CLAIM, 2, 1);
    T_EQ(ask_now(s, &op, NULL), ONCE_OWNER);
    end_session(&config, &l);
    once_store_close(s);
}

/* ---- Fences ------------------------------------------------------------- */

/*
 * An INSERT that waited draws its number first. If the name it waits for is
 * completed and forgotten meanwhile, that one had a larger fence. Made here by
 * hand: a row of once_swept with a fence that is not drawn yet.
 */
static void a_claim_gets_no_fence_below_a_forgotten_one(void)
{
    struct place p = made_place("lock_ms=300");
    once_store *s = must_open(p.url);
    char name[2 * ONCE_NAME_SIZE + 1];
    once_op op[3], *ops[3] = {&op[0], &op[1], &op[2]};
    once_op again;
    unsigned i;

    hex_name(name, 1);
    sql(&p, NULL, "INSERT INTO once_swept VALUES (x'%s', 40, 1)", name);
    for (i = 0; i < 3; i++)
        fill(&op[i], ONCE_OP_CLAIM, i, 1);
    T_EQ(s->ops->apply(s, ops, 3, NULL), ONCE_OK);
    T_EQ(op[0].rc, ONCE_OWNER);
    T_EQ(op[1].rc, ONCE_ESTORE);
    T_EQ(op[2].rc, ONCE_OWNER);
    for (i = 0; i < 50; i++)
        (void)claimed(s, 100 + i, 1); /* others draw meanwhile */
    fill(&again, ONCE_OP_CLAIM, 1, 1);
    T_EQ(ask(s, &again), ONCE_OWNER);
    T_OK(again.record.fence > 40);
    once_store_close(s);
}

static void a_young_record_that_is_forgotten_leaves_its_fence(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    char n[64];
    once_op op;
    int i;

    for (i = 0; i < 2; i++) {
        fill(&op, ONCE_OP_COMPLETE, 1, 1);
        op.fence = claimed(s, 1, 1);
        op.keep_ms = 0;
        T_EQ(ask(s, &op), ONCE_OK);
        if (i == 1)
            sql(&p, NULL, "UPDATE once_record SET granted_ms = 1");
        T_EQ(simple(s, ONCE_OP_FORGET, 1, 1, 0), ONCE_OK);
    }
    sql(&p, n, "SELECT GROUP_CONCAT(fence) FROM once_swept");
    T_STR(n, "1");
    sql(&p, n, "SELECT COUNT(*) FROM once_body");
    T_STR(n, "0");
    once_store_close(s);
}

/* Also where the sessions' default is another: rows of one INSERT must have
 * consecutive numbers. */
static void fences_are_those_of_the_rows(void)
{
    enum { N = 100 };
    struct place p = made_place("");
    once_op op[N], *ops[N];
    char text[64], name[2 * ONCE_NAME_SIZE + 1];
    once_store *s;
    unsigned i;

    sql(NULL, NULL, "SET GLOBAL auto_increment_increment = 7");
    s = must_open(p.url);
    for (i = 0; i < N; i++) {
        fill(&op[i], ONCE_OP_CLAIM, i, 1);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, N, NULL), ONCE_OK);
    for (i = 0; i < N; i++) {
        hex_name(name, i);
        sql(&p, text, "SELECT fence FROM once_record WHERE name = x'%s'", name);
        T_EQ(strtoull(text, NULL, 10), op[i].record.fence);
    }
    once_store_close(s);
    sql(NULL, NULL, "SET GLOBAL auto_increment_increment = 1");
}

/* ---- Locks that nobody gives back --------------------------------------- */

/* Locks of a client that has vanished without a word end after seconds. */
static void a_client_that_vanishes_keeps_its_locks_for_seconds(void)
{
    struct place p = made_place("lock_ms=100");
    once_store *s = must_open(p.url);
    struct once__my_config config;
    struct once__my_link gone;
    uint64_t fence = claimed(s, 1, 1), began;
    once_op op;

    other_session(&p, &config, &gone,
                  "BEGIN; SELECT * FROM once_record FOR UPDATE");
    fill(&op, ONCE_OP_COMPLETE, 1, 1);
    op.fence = fence;
    T_EQ(ask_now(s, &op, NULL), ONCE_ESTORE);
    began = once__steady_ms();
    while (ask_now(s, &op, NULL) != ONCE_OK &&
           once__steady_ms() - began < 30000)
        ;
    T_EQ(op.rc, ONCE_OK);
    end_session(&config, &gone);
    once_store_close(s);
}

/* The server is stopped in the middle: the caller is not. */
static void a_server_that_hangs_is_left_in_time(void)
{
    struct place p = made_place("statement_ms=300&connect_ms=200");
    once_store *s = must_open(p.url);
    uint64_t began;
    once_op op;

    (void)claimed(s, 1, 1);
    ctl("pause mysql");
    fill(&op, ONCE_OP_CLAIM, 2, 1);
    began = once__steady_ms();
    T_EQ(ask_now(s, &op, NULL), ONCE_ESTORE);
    T_EQ(ask_now(s, &op, NULL), ONCE_ESTORE);
    T_OK(once__steady_ms() - began < 5000);
    ctl("resume mysql");
    T_EQ(ask(s, &op), ONCE_OWNER);
    T_EQ(op.record.attempt, 1);
    once_store_close(s);
}

/* A session that was idle for long was ended by the server. */
static void a_session_that_was_ended_is_opened_again(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    once_op op;

    (void)claimed(s, 1, 1);
    ctl("terminate mysql");
    once__sleep_ms(100);
    fill(&op, ONCE_OP_CLAIM, 2, 1);
    T_EQ(ask_now(s, &op, NULL), ONCE_OWNER);
    once_store_close(s);
}

/* How many there have been. */
static void connections(char out[64])
{
    MYSQL *m = session(NULL);
    MYSQL_RES *rows;
    MYSQL_ROW row;

    T_EQ(mysql_query(m, "SHOW GLOBAL STATUS LIKE 'Connections'"), 0);
    rows = mysql_store_result(m);
    row = rows == NULL ? NULL : mysql_fetch_row(rows);
    (void)snprintf(out, 64, "%s", row == NULL ? "" : row[1]);
    mysql_free_result(rows);
    mysql_close(m);
}

/* Also through TLS, where the server says something after the handshake. */
static void one_session_is_enough(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    char before[64], after[64];
    unsigned i;

    connections(before);
    for (i = 0; i < 20; i++) {
        (void)claimed(s, i, 1);
        T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
    }
    connections(after); /* by a session of its own */
    T_EQ(strtoul(after, NULL, 10), strtoul(before, NULL, 10) + 1);
    once_store_close(s);
}

/* ---- What is visible and not durable ------------------------------------ */

static void *complete_slowly(void *user)
{
    once_store *s = user;
    once_op op;

    fill(&op, ONCE_OP_COMPLETE, 1, 1);
    op.fence = 1;
    return ask(s, &op) == ONCE_OK ? s : NULL;
}

static void slow(int on)
{
    char path[128];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/slow_redo", getenv("ONCE_TEST_DIR"));
    if (!on) {
        (void)unlink(path);
        return;
    }
    f = fopen(path, "w");
    assert(f != NULL);
    (void)fclose(f);
}

/*
 * A commit can be seen before it is flushed. While flushes take three seconds, a
 * replay of such a commit must take as long as the flush: a machine that crashes
 * meanwhile would lose what was answered from. Without a binlog, whose flush
 * comes first.
 */
static void a_replay_waits_until_what_it_shows_is_durable(void)
{
    struct place p = made_place("statement_ms=30000&lock_ms=20000");
    once_store *s = must_open(p.url), *other = must_open(p.url);
    MYSQL *watcher = session(p.database);
    pthread_t thread;
    uint64_t seen, replayed;
    char state[64] = "";
    void *good;

    T_EQ(claimed(s, 1, 1), 1);
    slow(1);
    T_EQ(pthread_create(&thread, NULL, complete_slowly, s), 0);
    while (strcmp(state, "3") != 0)
        T_EQ(run(watcher, state, "SELECT state FROM once_record"), 0);
    seen = once__steady_ms();
    T_EQ(simple(other, ONCE_OP_CLAIM, 1, 2, 0), ONCE_REPLAY);
    replayed = once__steady_ms();
    T_EQ(pthread_join(thread, &good), 0);
    T_OK(good != NULL);
    slow(0);
    if (!T_OK(replayed - seen > 1000))
        printf("#   replayed after %d ms\n", (int)(replayed - seen));
    mysql_close(watcher);
    once_store_close(other);
    once_store_close(s);
}

/* ---- A replica ---------------------------------------------------------- */

/* The URL names both; one that is read only is passed over. */
static void a_replica_is_refused_and_passed_over(void)
{
    struct place p = made_place("");
    char url[512];
    once_store *s = must_open(p.url);

    T_OK(s->caveat == NULL);
    (void)claimed(s, 1, 1);
    once_store_close(s);
    (void)snprintf(url, sizeof(url), "mysql://once@127.0.0.1:%s/%s",
                   getenv("ONCE_TEST_REPLICA_PORT"), p.database);
    refused(url, ONCE_EAWAY, "read_only");
    ctl("sql replica 'SET GLOBAL read_only = 0'");
    refused(url, ONCE_EAWAY, "follows another server");
    ctl("sql replica 'SET GLOBAL read_only = 1'");
}

/* Settings that an operator may have changed. */
static void a_pair_that_falls_back_is_asked_nothing(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    once_error err = {0, ""};
    int tries;

    (void)claimed(s, 1, 1);
    sql(NULL, NULL, "SET GLOBAL rpl_semi_sync_master_timeout = 10000");
    for (tries = 0; tries < 100 && s->ops->maintain(s, &err) == ONCE_OK;
         tries++)
        once__sleep_ms(50);
    if (!T_OK(strstr(err.text, "less than a day") != NULL))
        printf("#   %s\n", err.text);
    sql(NULL, NULL, "SET GLOBAL rpl_semi_sync_master_timeout = 10000000000");
    (void)claimed(s, 2, 1);
    once_store_close(s);
}

static void a_failover_loses_nothing_that_was_acknowledged(void)
{
    enum { N = 200 };
    struct place p = made_place("");
    once_store *s = must_open(p.url);
    uint64_t fence[N], last;
    unsigned i;

    for (i = 0; i < N; i++) {
        fence[i] = claimed(s, i, 1);
        if (i % 2 == 0)
            T_EQ(simple(s, ONCE_OP_COMPLETE, i, 1, fence[i]), ONCE_OK);
    }
    ctl("kill mysql");
    ctl("promote replica");
    for (i = 0; i < N; i++)
        T_EQ(simple(s, ONCE_OP_CLAIM, i, 2, 0),
             i % 2 == 0 ? ONCE_REPLAY : ONCE_IN_FLIGHT);
    T_EQ(simple(s, ONCE_OP_COMPLETE, 1, 1, fence[1]), ONCE_OK);
    T_EQ(s->ops->fence(s, &last, NULL), ONCE_OK);
    T_OK(last >= fence[N - 1]);
    T_OK(claimed(s, N, 1) > fence[N - 1]);
    once_store_close(s);
}

/* ---- TLS ---------------------------------------------------------------- */

static void certificates_are_checked(void)
{
    static const char *const bad[] = {"wronghost", "expired", "stranger"};
    struct place p = made_place("");
    char words[64];
    size_t i;

    once_store_close(must_open(p.url));
    for (i = 0; i < 3; i++) {
        (void)snprintf(words, sizeof(words), "cert mysql %s", bad[i]);
        ctl(words);
        refused(p.url, ONCE_EOPEN, "mysql");
    }
    ctl("cert mysql good");
    once_store_close(must_open(p.url));
}

static void a_server_that_goes_away_raises_no_signal(void)
{
    struct place p = made_place("");
    once_store *s = must_open(p.url);

    (void)claimed(s, 1, 1);
    ctl("kill mysql");
    once_store_close(s);
    ctl("start mysql");
    once_store_close(must_open(p.url));
}

/* ---- The manual's page -------------------------------------------------- */

static char *read_page(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 16);
    size_t size = 0;

    assert(text != NULL);
    if (f != NULL) {
        size = fread(text, 1, (1 << 16) - 1, f);
        (void)fclose(f);
    }
    T_OK(size > 1000 && size < (1 << 16) - 1);
    return text;
}

static const char *page;

/* `once init` comes behind the first block, as the page says. What is said of
 * messages is another test's. */
static void the_sql_of_the_page_works(void)
{
    char *text = read_page(page), *at = text, url[128];
    char *end = strstr(text, "\n## Messages\n");
    const char *port = getenv("ONCE_TEST_MYSQL_PORT");
    MYSQL *m = session(NULL);
    int blocks = 0;
    once_store *s;

    assert(end != NULL);
    *end = '\0';
    while ((at = strstr(at, "```sql\n")) != NULL) {
        at += 7;
        end = strstr(at, "```");
        assert(end != NULL);
        *end = '\0';
        if (run(m, NULL, at) != 0) {
            printf("#   %s#   %s\n", at, mysql_error(m));
            t__bad++;
        }
        at = end + 1;
        if (++blocks > 1)
            continue;
        (void)snprintf(url, sizeof(url),
                       "mysql://once_owner:...@127.0.0.1:%s/once", port);
        T_EQ(once_store_init(url, NULL), ONCE_OK);
    }
    T_OK(blocks >= 3);
    mysql_close(m);
    (void)snprintf(url, sizeof(url),
                   "mysql://once_gateway:...@127.0.0.1:%s/once", port);
    s = must_open(url);
    (void)claimed(s, 1, 1);
    once_store_close(s);
    free(text);
}

/* ---- Many records ------------------------------------------------------ */

enum { BATCH = 64, ENOUGH = 10 * BATCH };

/* A tenth is claimed, of these a tenth longer than its lease; a tenth waits; the
 * others are completed, of these a hundredth longer than they are kept. */
static const char many[] =
    "INSERT INTO once_record SELECT NULL, ELT(k, 1, 3, 2), CASE k WHEN 2 THEN "
    "seq ELSE t END, IF(k = 1, t, 0), IF(k = 1, 0, t), 1, 1, IF(k = 1, 0, "
    "seq), 1, 1, ELT(k, 1, 4, 3), 0, 0, 0, 0, x'00', x'00', "
    "UNHEX(LPAD(HEX(seq), 64, '0')), x'00', '', '', '', '' FROM (SELECT seq, "
    "CASE seq % 10 WHEN 0 THEN 1 WHEN 1 THEN 2 ELSE 3 END AS k, "
    "IF(seq % 100 IN (0, 2), seq, 9999999999999) AS t FROM (SELECT @last + 1 + "
    "a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d + 100000 * f.d AS "
    "seq FROM digit a, digit b, digit c, digit d, digit e, digit f) AS million "
    "ORDER BY seq) AS s";

static unsigned long millions = 1;

/* Of them a million each time: all of them are one transaction too long. */
static void fill_many(MYSQL *m)
{
    char n[64];
    unsigned long i;

    T_EQ(
        run(m, NULL,
            "CREATE TABLE digit AS SELECT 0 AS d UNION ALL SELECT 1 UNION ALL "
            "SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 "
            "UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION "
            "ALL SELECT 9; SET @last = 0"),
        0);
    for (i = 0; i < millions; i++) {
        T_EQ(run(m, NULL, many), 0);
        T_EQ(run(m, NULL, "SET @last = @last + 1000000"), 0);
    }
    T_EQ(run(m, NULL, "ANALYZE TABLE once_record"), 0);
    T_EQ(run(m, n, "SELECT COUNT(*) FROM once_record"), 0);
    T_EQ(strtoul(n, NULL, 10), millions * 1000000);
}

/* Rows that all sessions have read so far. */
static long count_reads(MYSQL *m)
{
    char n[64];

    T_EQ(run(m, n,
             "SELECT SUM(variable_value) FROM"
             " /*M! information_schema.GLOBAL_STATUS */"
             " /*!80000 performance_schema.global_status */"
             " WHERE variable_name LIKE 'Handler_read%'"),
         0);
    return atol(n);
}

/* Who claims what has a fence is another one. */
static void ask_many(once_store *s, int verb, int rc, uint64_t fences[BATCH])
{
    once_op op[BATCH], *ops[BATCH];
    unsigned i;

    for (i = 0; i < BATCH; i++) {
        fill(&op[i], verb, i + 1, 1);
        op[i].fence = fences[i];
        op[i].token[0] = verb == ONCE_OP_CLAIM && fences[i] != 0 ? 9 : 1;
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, BATCH, NULL), ONCE_OK);
    for (i = 0; i < BATCH; i++) {
        T_EQ(op[i].rc, rc);
        fences[i] = op[i].record.fence;
    }
}

static int pass(void *user, const uint8_t *name, const once_record *r)
{
    (void)user;
    (void)name;
    (void)r;
    return 0;
}

/* The first page of a scan, and one from its middle on. LEASE and KEEP have no
 * other than the first. */
static void scan_pages(once_store *s, int what)
{
    static const once_record r = {.attempt = 1,
                                  .state = ONCE_INDETERMINATE,
                                  .lease_ms = 9999999999999,
                                  .ended_ms = 500001};
    uint8_t name[ONCE_NAME_SIZE] = {0};
    once_position middle;

    name[29] = 500001 >> 16;
    name[30] = (500001 >> 8) & 255;
    name[31] = 500001 & 255;
    middle = once_position_of(what, name, &r);
    T_EQ(s->ops->scan(s, what, NULL, BATCH, pass, NULL, NULL), BATCH);
    T_EQ(s->ops->scan(s, what, &middle, BATCH, pass, NULL, NULL), BATCH);
}

/* Without what it takes to count them. */
static void is_little(MYSQL *m, const char *what, long before)
{
    long after = count_reads(m);
    long read = after - before - (count_reads(m) - after);

    if (read > ENOUGH) {
        printf("#   %s: %ld rows\n", what, read);
        t__bad++;
    }
}

static void what_is_repeated_reads_what_it_needs(void)
{
    static const int scans[] = {ONCE_SCAN_ALL, ONCE_SCAN_LEASE, ONCE_SCAN_KEEP,
                                ONCE_SCAN_WAITING, ONCE_SCAN_LIVE};
    static const char *const names[] = {"all", "lease", "keep", "waiting",
                                        "live"};
    static const struct {
        int verb, rc;
    } steps[] = {{ONCE_OP_CLAIM, ONCE_OWNER},   {ONCE_OP_RENEW, ONCE_OK},
                 {ONCE_OP_COMPLETE, ONCE_OK},   {ONCE_OP_COMPLETE, ONCE_OK},
                 {ONCE_OP_CLAIM, ONCE_REPLAY},  {ONCE_OP_SHOW, ONCE_REPLAY},
                 {ONCE_OP_FORGET, ONCE_REFUSED}};
    struct place p = made_place("statement_ms=60000");
    once_store *s = must_open(p.url);
    MYSQL *m = session(p.database);
    uint64_t fences[BATCH] = {0};
    long before;
    size_t i;

    fill_many(m);
    T_EQ(ask_now(s, &(once_op){.verb = ONCE_OP_SHOW}, NULL), ONCE_FREE);
    for (i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        before = count_reads(m);
        ask_many(s, steps[i].verb, steps[i].rc, fences);
        is_little(m, "a batch", before);
    }
    for (i = 0; i < sizeof(scans) / sizeof(scans[0]); i++) {
        before = count_reads(m);
        scan_pages(s, scans[i]);
        is_little(m, names[i], before);
    }
    mysql_close(m);
    once_store_close(s);
}

/* ---- The suite ---------------------------------------------------------- */

#define WANTED(test)                                                           \
    do {                                                                       \
        if (strncmp(#test, wanted, strlen(wanted)) == 0)                       \
            T_RUN(test);                                                       \
    } while (0)

static void alone(void)
{
    WANTED(without_tables_it_says_what_makes_them);
    WANTED(making_it_twice_or_at_once_is_making_it_once);
    WANTED(another_version_is_refused_with_both_numbers);
    WANTED(the_printed_schema_is_one_that_works);
    WANTED(a_gateway_needs_four_rights_on_tables_and_no_other);
    WANTED(urls_that_are_refused_are_not_repeated);
    WANTED(a_password_may_stand_in_a_file);
    WANTED(what_is_not_class_a_is_said);
    WANTED(a_server_that_promises_less_than_before_is_asked_nothing);
    WANTED(a_server_that_may_only_be_read_is_refused);
    WANTED(a_cluster_that_was_never_tested_is_refused);
    WANTED(another_store_in_its_place_is_asked_nothing);
    WANTED(a_row_that_does_not_check_is_an_error_and_stays);
    WANTED(long_results_come_back_with_the_same_bytes);
    WANTED(a_part_that_is_missing_is_an_error);
    WANTED(what_is_there_is_not_imported);
    WANTED(steps_of_a_batch_get_each_their_own_values);
    WANTED(rows_of_a_batch_get_each_their_own_values);
    WANTED(time_is_the_servers_whatever_its_zone);
    WANTED(the_time_is_that_behind_the_locks);
    WANTED(a_locked_row_keeps_no_other_waiting);
    WANTED(a_claim_under_way_elsewhere_keeps_no_other_waiting);
    WANTED(of_all_who_insert_at_once_one_is_the_owner);
    WANTED(an_error_takes_back_what_came_before_it);
    WANTED(no_step_is_written_over_another);
    WANTED(a_look_at_what_is_not_there_locks_nothing);
    WANTED(a_claim_gets_no_fence_below_a_forgotten_one);
    WANTED(a_young_record_that_is_forgotten_leaves_its_fence);
    WANTED(fences_are_those_of_the_rows);
    WANTED(a_client_that_vanishes_keeps_its_locks_for_seconds);
    WANTED(a_server_that_hangs_is_left_in_time);
    WANTED(a_session_that_was_ended_is_opened_again);
    WANTED(one_session_is_enough);
}

static void tls(void)
{
    T_RUN(certificates_are_checked);
    T_RUN(one_session_is_enough);
    T_RUN(a_server_that_goes_away_raises_no_signal);
}

static void slow_flush(void)
{
    T_RUN(a_replay_waits_until_what_it_shows_is_durable);
}

static void replica(void)
{
    T_RUN(a_replica_is_refused_and_passed_over);
    T_RUN(a_pair_that_falls_back_is_asked_nothing);
    T_RUN(a_failover_loses_nothing_that_was_acknowledged);
}

static void large(void)
{
    T_RUN(what_is_repeated_reads_what_it_needs);
}

static void docs(void)
{
    T_RUN(the_sql_of_the_page_works);
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {{"alone", alone},     {"tls", tls},     {"slow", slow_flush},
             {"replica", replica}, {"large", large}, {"docs", docs}};

int main(int argc, char **argv)
{
    size_t i;

    server_url = getenv("ONCE_TEST_URL");
    if (server_url == NULL)
        t_skip_all("ONCE_TEST_URL names no server");
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: test_mysql alone|tls|slow|replica|WORD\n"
                        "       test_mysql docs PAGE\n"
                        "       test_mysql large [MILLIONS]\n");
        return 2;
    }
    page = argc == 3 ? argv[2] : "";
    millions = argc == 3 ? strtoul(argv[2], NULL, 10) : 1;
    for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(parts[i].name, argv[1]) == 0) {
            parts[i].run();
            return t_done();
        }
    wanted = argv[1];
    alone();
    return t__number == 0 ? 2 : t_done();
}
