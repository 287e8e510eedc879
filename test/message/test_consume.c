/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_consume.c - once_consume() with a broker that the test is, on real
 * databases: one text for all.
 *
 *    test_consume [sqlite | CASE]
 *    with-server postgres -- test_consume postgres [CASE]
 *    with-server mysql -- test_consume mysql [CASE]
 *
 * What a handler does is said by the body of its message. In the moment of each
 * acknowledgement a row of the inbox or a parked message must be committed, or
 * the test fails: nothing is acknowledged that is neither done nor kept.
 */
#include "db.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include <once/relay.h>

#include "fakebroker.h"
#include "messages/relay/base.h"
#include "messages/tables/outbox.h"
#include "patience.h"

enum { DRAIN_MS = 250 };

static char db_url[512];

/* ---- Databases --------------------------------------------------------- */

static struct db judge_db;
static pthread_mutex_t judge_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int misjudged;

/* Without what a NUL or a quote would do to a statement. */
static void judge(const struct fake *f)
{
    long n;

    pthread_mutex_lock(&judge_lock);
    if (f->unclear || f->flaw != NULL || f->id[0] == '\0' ||
        f->body_size > 60 || strlen(f->id) > ONCE_ID_MAX ||
        strchr(f->id, ' ') != NULL)
        n = number(&judge_db, "SELECT count(*) FROM @parked "
                              "WHERE substr(id,1,1)='#' AND state=3");
    else
        n = number(&judge_db,
                   "SELECT (SELECT count(*) FROM @inbox WHERE id='%s')"
                   "+(SELECT count(*) FROM @parked WHERE id='%s')",
                   f->id, f->id);
    if (n <= 0) {
        printf("#   acknowledged, and neither done nor kept: %s\n", f->id);
        atomic_fetch_add(&misjudged, 1);
    }
    pthread_mutex_unlock(&judge_lock);
}

static struct db base_new(void)
{
    struct db d = db_new();

    url_of_place(db_url, sizeof(db_url));
    sql(&d, NULL, "DROP TABLE @effect");
    sql(&d, NULL, "CREATE TABLE @effect(id TEXT NOT NULL, attempt INTEGER%s)",
        as(&d, "", "", ", rowid BIGINT AUTO_INCREMENT PRIMARY KEY INVISIBLE"));
    sql(&d, NULL, "CREATE TABLE @seen(id TEXT NOT NULL, attempt INTEGER)");
    fake_reset();
    judge_db = db_open();
    fake_judge = judge;
    misjudged = 0;
    return d;
}

static void base_end(struct db *d)
{
    T_EQ(misjudged, 0);
    db_close(&judge_db);
    db_end(d);
}

/* ---- The handler ------------------------------------------------------- */

static _Atomic int runs, cuts, most_at_once, at_once;
static _Atomic int saw_handle;

static void tx_sql(const once_tx *tx, const char *text)
{
    char full[1200];

    place_in(tx->postgres != NULL, text, full, sizeof(full));
    if (tx->postgres != NULL)
        PQclear(PQexec(tx->postgres, full));
#ifdef ONCE_WITH_MYSQL
    else if (tx->mysql != NULL)
        (void)mysql_query(tx->mysql, full);
#endif
    else
        (void)sqlite3_exec(tx->sqlite, full, NULL, NULL, NULL);
}

/* A second statement, since the first one is answered on MySQL. */
static void cut(const once_tx *tx)
{
    tx_sql(tx, tx->postgres != NULL
                   ? "SELECT pg_terminate_backend(pg_backend_pid())"
                   : "KILL CONNECTION_ID()");
    tx_sql(tx, "SELECT 1");
}

static void effect(const once_tx *tx, const once_message *m)
{
    char text[500];

    (void)snprintf(text, sizeof(text), "INSERT INTO @effect VALUES('%s',%u)",
                   m->id, m->attempt);
    tx_sql(tx, text);
}

static int is(const once_message *m, const char *word)
{
    return m->body.size >= strlen(word) &&
           memcmp(m->body.data, word, strlen(word)) == 0;
}

static int digit_after(const once_message *m, const char *word)
{
    return ((const char *)m->body.data)[strlen(word)] - '0';
}

/* What ends or breaks the transaction. 1: it was asked for. */
static int meddle(const once_tx *tx, const once_message *m, int *rc)
{
    *rc = ONCE_OK;
    if (is(m, "commit")) {
        tx_sql(tx, "COMMIT");
    } else if (is(m, "rollback")) {
        tx_sql(tx, "ROLLBACK");
    } else if (is(m, "broken")) {
        tx_sql(tx, "this is no statement");
    } else if (is(m, "savepoint")) {
        tx_sql(tx, "SAVEPOINT a");
        effect(tx, m);
        tx_sql(tx, "ROLLBACK TO SAVEPOINT a");
        tx_sql(tx, "RELEASE SAVEPOINT a");
    } else if (is(m, "anew")) {
        tx_sql(tx, "ROLLBACK");
        tx_sql(tx, tx->sqlite == NULL ? "BEGIN" : "BEGIN IMMEDIATE");
        effect(tx, m);
    } else if (is(m, "chain")) {
        tx_sql(tx, "COMMIT");
        tx_sql(tx, tx->sqlite == NULL ? "BEGIN" : "BEGIN IMMEDIATE");
    } else if (is(m, "cut") &&
               atomic_fetch_add(&cuts, 1) < digit_after(m, "cut")) {
        cut(tx);
    } else if (is(m, "late")) {
        tx_sql(tx, "INSERT INTO @child VALUES(1)");
    } else {
        return 0;
    }
    return 1;
}

static int answer(const once_message *m)
{
    if (is(m, "until"))
        return (int)m->attempt < digit_after(m, "until") ? ONCE_AGAIN : ONCE_OK;
    return is(m, "again")     ? ONCE_AGAIN
           : is(m, "dead")    ? ONCE_DEAD
           : is(m, "unknown") ? ONCE_UNKNOWN
           : is(m, "error")   ? ONCE_EFULL
           : is(m, "odd")     ? ONCE_EMPTY
                              : ONCE_OK;
}

static int handle(const once_tx *tx, const once_message *m, void *user)
{
    int now = atomic_fetch_add(&at_once, 1) + 1, rc;

    (void)user;
    if (now > atomic_load(&most_at_once))
        atomic_store(&most_at_once, now);
    atomic_fetch_add(&runs, 1);
    atomic_store(&saw_handle, tx->postgres != NULL || tx->sqlite != NULL ||
                                  tx->mysql != NULL);
    if (is(m, "slow"))
        (void)usleep(300000);
    effect(tx, m);
    if (!meddle(tx, m, &rc))
        rc = answer(m);
    atomic_fetch_sub(&at_once, 1);
    return rc;
}

/* ---- Consuming --------------------------------------------------------- */

static char logged[20000];
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void take_log(void *user, const char *text)
{
    size_t n;

    (void)user;
    pthread_mutex_lock(&log_lock);
    n = strlen(logged);
    (void)snprintf(logged + n, sizeof(logged) - n, "%s\n", text);
    pthread_mutex_unlock(&log_lock);
}

static once_consumer_options options(void)
{
    once_consumer_options o = ONCE_CONSUMER_OPTIONS_INIT;

    o.db = db_url;
    o.from = "fake:";
    o.consumer = "billing";
    o.first_ms = 1;
    o.most_ms = 10;
    o.lease_ms = 1000;
    o.drain_ms = (uint32_t)patient_ms(DRAIN_MS);
    o.log = take_log;
    logged[0] = '\0';
    runs = cuts = most_at_once = at_once = saw_handle = 0;
    return o;
}

static int consume(const once_consumer_options *o)
{
    once_error err = {0, ""};
    int rc = once_consume(o, handle, NULL, &err);

    if (rc < 0 || getenv("ONCE_TEST_LOUD") != NULL)
        printf("#   %d: %s\n%s", rc, err.text, logged);
    return rc;
}

static int consume_all(void)
{
    once_consumer_options o = options();

    return consume(&o);
}

static long effects(struct db *d, const char *id)
{
    return number(d, "SELECT count(*) FROM @effect WHERE id='%s'", id);
}

static long parked(struct db *d, int state)
{
    return number(d, "SELECT count(*) FROM @parked WHERE state=%d", state);
}

/* A UUID of version 7 with this time. */
static const char *id_at(char room[ONCE_ID_SIZE], uint64_t ms)
{
    (void)snprintf(room, ONCE_ID_SIZE, "%08x-%04x-7abc-8def-0123456789ab",
                   (unsigned)(ms >> 16), (unsigned)(ms & 0xffff));
    return room;
}

/* ---- First deliveries --------------------------------------------------- */

static void a_message_has_one_effect_and_is_acknowledged(void)
{
    struct db d = base_new();

    fake_add("a", NULL, "ok");
    fake_add("b", "k", "ok");
    fake_add("a", NULL, "ok");
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(effects(&d, "a"), 1);
    T_EQ(effects(&d, "b"), 1);
    T_EQ(runs, 2);
    T_EQ(saw_handle, 1);
    T_EQ(fake_count(FAKE_TAKEN), 3);
    T_EQ(number(&d, "SELECT sum(attempt) FROM @effect"), 0);
    base_end(&d);
}

static void a_failed_handler_is_rolled_back_and_runs_again(void)
{
    struct db d = base_new();

    fake_add("a", NULL, "until2");
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(runs, 3); /* the first, and attempts 1 and 2 */
    T_EQ(effects(&d, "a"), 1);
    T_EQ(number(&d, "SELECT attempt FROM @effect"), 2);
    T_EQ(parked(&d, 1), 0);
    T_EQ(fake_at(0)->times, 1); /* the broker has not seen a retry */
    base_end(&d);
}

static void a_message_that_fails_too_often_is_dead(void)
{
    struct db d = base_new();
    once_consumer_options o = options();

    o.attempts = 3;
    fake_add("a", NULL, "again");
    fake_add("b", NULL, "error");
    fake_add("c", NULL, "odd");
    fake_add("d", NULL, "ok");
    T_EQ(consume(&o), ONCE_DEAD);
    T_EQ(runs, 3 * 4 + 1);
    T_EQ(parked(&d, 3), 3);
    T_EQ(number(&d, "SELECT min(attempts)+max(attempts) FROM @parked"), 6);
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 1);
    base_end(&d);
}

static void a_handler_says_dead_or_unknown(void)
{
    struct db d = base_new();

    fake_add("a", NULL, "dead");
    fake_add("b", NULL, "unknown");
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(runs, 2);
    T_EQ(number(&d, "SELECT state FROM @parked WHERE id='a'"), 3);
    T_EQ(number(&d, "SELECT state FROM @parked WHERE id='b'"), 4);
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 0);
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(runs, 0);
    base_end(&d);
}

static void a_known_id_with_another_body_is_a_dead_letter(void)
{
    struct db d = base_new();

    fake_add("a", NULL, "ok");
    fake_add("a", NULL, "ok, and more");
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(runs, 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=3 "
                    "AND error='mismatch' AND substr(id,1,2)='a#'"),
         1);
    T_EQ(fake_count(FAKE_TAKEN), 2);
    base_end(&d);
}

static void ids_carry_their_time(void)
{
    struct db d = base_new();
    char old[ONCE_ID_SIZE], new[ONCE_ID_SIZE];

    fake_add(id_at(old, now_ms() - UINT64_C(31536000000)), NULL, "ok");
    fake_add(id_at(new, UINT64_C(2145916800000)), NULL, "ok"); /* 2038 */
    fake_add(new, NULL, "ok");
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(effects(&d, new), 1);
    T_EQ(effects(&d, old), 0);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=3 "
                    "AND error='outside'"),
         1);
    base_end(&d);
}

/* ---- Deliveries that come again ------------------------------------------ */

static void what_was_delivered_before_is_counted_before_it_runs(void)
{
    struct db d = base_new();

    fake_add("a", NULL, "ok")->redelivered = 1;
    fake_add("b", NULL, "until3")->redelivered = 1;
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(runs, 4);
    T_EQ(number(&d, "SELECT attempt FROM @effect WHERE id='a'"), 1);
    T_EQ(number(&d, "SELECT attempt FROM @effect WHERE id='b'"), 3);
    fake_add("a", NULL, "ok")->redelivered = 1;
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(runs, 0);
    T_EQ(effects(&d, "a"), 1);
    base_end(&d);
}

/* As a process leaves it that died of its handler, again and again. */
static void what_kills_its_process_is_dead_in_the_end(void)
{
    struct db d = base_new();
    once_message m = ONCE_MESSAGE_INIT;

    m.consumer = "billing";
    m.id = "a";
    m.body = (once_bytes){"ok", 2};
    begin(&d);
    T_EQ(
        once_inbox_park(&d.tx, &m, ONCE_PARKED_WAITING, 0, "redelivered", NULL),
        ONCE_OK);
    sql(&d, NULL, "COMMIT");
    sql(&d, NULL, "UPDATE @parked SET attempts=9");
    T_EQ(consume_all(), ONCE_OK); /* the tenth */
    T_EQ(effects(&d, "a"), 1);
    m.id = "b";
    begin(&d);
    T_EQ(
        once_inbox_park(&d.tx, &m, ONCE_PARKED_WAITING, 0, "redelivered", NULL),
        ONCE_OK);
    sql(&d, NULL, "COMMIT");
    sql(&d, NULL, "UPDATE @parked SET attempts=10");
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(runs, 0);
    T_EQ(parked(&d, 3), 1);
    base_end(&d);
}

static void an_acknowledgement_that_is_lost_does_no_harm(void)
{
    struct db d = base_new();
    int i;

    for (i = 0; i < 6; i++) {
        char id[8];

        (void)snprintf(id, sizeof(id), "m%d", i);
        fake_add(id, NULL, i % 2 == 0 ? "ok" : "until1");
    }
    fake_fail_ack = 4;
    fake_fail_receive = 2;
    fake_fail_connect = 1;
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 6);
    T_EQ(number(&d, "SELECT count(DISTINCT id) FROM @effect"), 6);
    T_EQ(fake_count(FAKE_TAKEN), 6);
    T_OK(strstr(logged, "the broker") != NULL);
    T_OK(strstr(logged, "the broker answers again") != NULL);
    base_end(&d);
}

/* ---- What cannot be understood -------------------------------------------- */

static void what_cannot_be_understood_is_a_dead_letter(void)
{
    struct db d = base_new();
    char long_id[300];
    struct fake *f;

    memset(long_id, 'x', sizeof(long_id) - 1);
    long_id[sizeof(long_id) - 1] = '\0';
    fake_add(NULL, NULL, "without id");
    fake_add(NULL, NULL, "without id"); /* says the same, and is another */
    fake_add(NULL, NULL, "without id")->redelivered = 1; /* a copy */
    fake_add(long_id, NULL, "id too long");
    fake_add("two words", NULL, "id with a space");
    f = fake_add("h", NULL, "bad header");
    f->unclear = 1;
    (void)snprintf(f->headers, sizeof(f->headers), "no colon\n");
    f = fake_add("u", "good", "not UTF-8");
    f->unclear = 1;
    (void)snprintf(f->headers, sizeof(f->headers), "A: \xff\n");
    f = fake_add("f", NULL, "flawed");
    f->flaw = "the driver does not understand it";
    fake_add("k", "bad key", "a key with a space")->unclear = 1;
    fake_add("good", NULL, "ok");
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(runs, 1);
    T_EQ(fake_count(FAKE_TAKEN), 10);
    T_EQ(parked(&d, 3), 8);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE substr(id,1,1)='#' "
                    "AND error<>'' AND headers='' AND length(id)=65"),
         8);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE key='good'"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE "
                    "error='the driver does not understand it'"),
         1);
    /* Its own id stays free for a repaired copy. */
    fake_add("h", NULL, "ok");
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(effects(&d, "h"), 1);
    base_end(&d);
}

static void a_body_that_is_too_large_is_kept_without_it(void)
{
    struct db d = base_new();
    once_consumer_options o = options();

    o.body_max = 20;
    fake_add("a", NULL, "ok, and twenty-one b.");
    fake_at(0);
    fake_add("b", NULL, "ok, and twenty-one c.");
    fake_add("c", NULL, "ok, twenty bytes ...");
    fake_judge = NULL; /* it looks for their ids */
    T_EQ(consume(&o), ONCE_DEAD);
    T_EQ(runs, 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=3 "
                    "AND substr(id,1,2)='#-' AND length(body)=0"),
         2);
    /* An operator who wants it run does not get a handler without a body. */
    sql(&d, NULL, "UPDATE @parked SET state=1,due_ms=0");
    T_EQ(consume(&o), ONCE_DEAD);
    T_EQ(runs, 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=3 "
                    "AND error='its body was not kept'"),
         2);
    base_end(&d);
}

/* ---- Handlers that meddle --------------------------------------------------- */

static void a_handler_that_ends_the_transaction_has_failed(void)
{
    struct db d = base_new();

    fake_add("a", NULL, "commit");
    fake_add("b", NULL, "rollback");
    fake_add("c", NULL, "ok");
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(effects(&d, "a"), 1); /* claim and effect went together */
    T_EQ(effects(&d, "b"), 0);
    T_EQ(effects(&d, "c"), 1);
    T_EQ(runs, 1 + 11 + 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE id='b' AND state=3"),
         1);
    T_OK(strstr(logged, "ended the transaction by itself") != NULL);
    base_end(&d);
}

static void a_handler_that_begins_another_transaction_has_failed(void)
{
    struct db d = base_new();

    fake_add("a", NULL, "anew");
    fake_add("b", NULL, "chain");
    fake_add("c", NULL, "ok");
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(effects(&d, "a"), 0); /* unguarded, so it must not be committed */
    T_EQ(effects(&d, "b"), 1);
    T_EQ(effects(&d, "c"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE id='a' AND state=3"),
         1);
    T_OK(strstr(logged, "ended the transaction by itself") != NULL);
    base_end(&d);
}

static void a_transaction_that_has_failed_is_not_committed(void)
{
    struct db d = base_new();

    fake_add("a", NULL, "broken");
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(runs, 11);
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 0);
    T_EQ(parked(&d, 3), 1);
    base_end(&d);
}

static void a_savepoint_of_the_handler_does_no_harm(void)
{
    struct db d = base_new();

    fake_add("a", NULL, "savepoint");
    fake_add("a", NULL, "savepoint");
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(runs, 1);
    T_EQ(effects(&d, "a"), 1);
    base_end(&d);
}

static void what_fails_at_commit_is_rolled_back_and_parked(void)
{
    struct db d = base_new();

    sql(&d, NULL, "CREATE TABLE @parent(id INTEGER PRIMARY KEY)");
    sql(&d, NULL,
        "CREATE TABLE @child(id INTEGER REFERENCES @parent "
        "DEFERRABLE INITIALLY DEFERRED)");
    fake_add("a", NULL, "late");
    fake_add("b", NULL, "ok");
    T_EQ(consume_all(), ONCE_DEAD);
    T_EQ(runs, 12);
    T_EQ(effects(&d, "a"), 0);
    T_EQ(effects(&d, "b"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE id='a' AND state=3"),
         1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE error='COMMIT was "
                    "answered by a rollback: SQLSTATE 23503, constraint "
                    "child_id_fkey'"),
         1);
    base_end(&d);
}

/* ---- The database --------------------------------------------------------- */

static void a_connection_lost_in_the_handler_is_made_again(void)
{
    struct db d = base_new();

    fake_add("a", NULL, "cut2");
    fake_add("b", NULL, "ok");
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(runs, 4);
    T_EQ(effects(&d, "a"), 1);
    T_EQ(fake_at(0)->times, 1);
    base_end(&d);
}

static void a_handler_that_always_cuts_its_connection_is_dead(void)
{
    struct db d = base_new();
    once_consumer_options o = options();

    o.attempts = 2;
    fake_add("a", NULL, "cut9");
    fake_add("b", NULL, "ok");
    T_EQ(consume(&o), ONCE_DEAD);
    T_EQ(effects(&d, "a"), 0);
    T_EQ(effects(&d, "b"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE id='a' AND state=3"),
         1);
    T_EQ(fake_count(FAKE_TAKEN), 2);
    base_end(&d);
}

/* The server ends the connection in COMMIT: nobody has said what became of it. */
static void an_unknown_commit_is_asked_for(void)
{
    struct db d = base_new();

    sql(&d, NULL,
        "CREATE FUNCTION @cut() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF nextval(''@tries'') < 3 THEN PERFORM "
        "pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(9); END IF; "
        "RETURN NULL; END'");
    sql(&d, NULL, "CREATE SEQUENCE @tries");
    sql(&d, NULL,
        "CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON @effect "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION @cut()");
    fake_add("a", NULL, "ok");
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(runs, 3);
    T_EQ(effects(&d, "a"), 1);
    T_EQ(fake_at(0)->times, 1);
    base_end(&d);
}

/* Until another message has had its effect and, where that is asked for, the
 * broker has been told that this one is under way. */
struct holder {
    _Atomic int ready;
    int still_at;
};

static int may_end(struct db *d, const struct holder *h)
{
    return number(d, "SELECT count(*) FROM @effect WHERE id<>'a'") > 0 &&
           (!h->still_at || fake_at(0)->still_at > 0);
}

static void *hold_claim(void *user)
{
    struct holder *h = user;
    struct db d = db_open(), other = db_open();
    once_message m = ONCE_MESSAGE_INIT;
    int64_t left_ms = (int64_t)patient_ms(60000);

    m.consumer = "billing";
    m.id = "a";
    m.body = (once_bytes){"ok", 2};
    sql(&d, NULL, "BEGIN");
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_OWNER);
    atomic_store(&h->ready, 1);
    for (; left_ms > 0 && !may_end(&other, h); left_ms -= 20)
        (void)usleep(20000);
    T_OK(left_ms > 0);
    sql(&d, NULL, "ROLLBACK");
    db_close(&other);
    db_close(&d);
    return NULL;
}

/* By the place of its effect. */
static int came_before(struct db *d, const char *one, const char *other)
{
    const char *row = as(d, "ctid", "rowid", "rowid");

    return number(d,
                  "SELECT count(*) FROM @effect x, @effect y WHERE x.id='%s'"
                  " AND y.id='%s' AND x.%s<y.%s",
                  one, other, row, row) == 1;
}

static void a_copy_under_way_is_waited_for_and_others_go_on(void)
{
    struct db d = base_new();
    pthread_t thread;
    struct holder h = {.still_at = 1};

    assert(pthread_create(&thread, NULL, hold_claim, &h) == 0);
    while (!h.ready)
        (void)usleep(1000);
    fake_add("a", NULL, "ok");
    fake_add("b", NULL, "ok");
    T_EQ(consume_all(), ONCE_OK);
    (void)pthread_join(thread, NULL);
    T_EQ(effects(&d, "a"), 1);
    T_EQ(effects(&d, "b"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @effect WHERE attempt>0"), 0);
    T_EQ(fake_at(0)->times, 1);
    T_OK(fake_at(0)->still_at > 0);
    /* b did not wait for a */
    T_OK(came_before(&d, "b", "a"));
    base_end(&d);
}

static void a_key_waits_behind_a_copy_under_way(void)
{
    struct db d = base_new();
    once_consumer_options o = options();
    pthread_t thread;
    struct holder h = {.still_at = 0};

    assert(pthread_create(&thread, NULL, hold_claim, &h) == 0);
    while (!h.ready)
        (void)usleep(1000);
    o.keyed = 1;
    o.batch = 3;
    fake_add("a", "k", "ok");
    fake_add("b", "k", "ok");
    fake_add("c", "other", "ok");
    T_EQ(consume(&o), ONCE_OK);
    (void)pthread_join(thread, NULL);
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 3);
    T_OK(came_before(&d, "a", "b"));
    T_OK(came_before(&d, "c", "a"));
    base_end(&d);
}

static void a_database_that_will_not_do_is_said_at_once(void)
{
    struct db d = base_new();
    once_consumer_options o = options();
    once_error err = {0, ""};
    char url[600];

    if (d.pg != NULL)
        (void)snprintf(url, sizeof(url), "%s?schema=nowhere", server_url);
    else if (d.my != NULL)
        (void)snprintf(url, sizeof(url), "%.*s/mysql",
                       (int)(strrchr(server_url, '/') - server_url),
                       server_url);
    else
        (void)snprintf(url, sizeof(url), "sqlite:%s.nowhere", place);
    o.db = url;
    fake_add("a", NULL, "ok");
    T_EQ(once_consume(&o, handle, NULL, &err), ONCE_EOPEN);
    T_EQ(fake_at(0)->times, 0);
    base_end(&d);
}

/* ---- Batches ----------------------------------------------------------------- */

static void a_batch_is_one_transaction(void)
{
    struct db d = base_new();
    once_consumer_options o = options();
    int i;

    o.batch = 10;
    sql(&d, NULL, "CREATE TABLE @xact(id TEXT)");
    for (i = 0; i < 20; i++) {
        char id[8];

        (void)snprintf(id, sizeof(id), "m%d", i % 12); /* some twice */
        fake_add(id, NULL, "ok");
    }
    T_EQ(consume(&o), ONCE_OK);
    T_EQ(runs, 12);
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 12);
    T_EQ(fake_count(FAKE_TAKEN), 20);
    if (d.pg != NULL)
        T_EQ(number(&d, "SELECT count(DISTINCT xmin::text) FROM @effect"), 2);
    base_end(&d);
}

static void a_failure_in_a_batch_takes_nobody_along(void)
{
    struct db d = base_new();
    once_consumer_options o = options();
    int i;

    o.batch = 5;
    o.attempts = 2;
    for (i = 0; i < 10; i++) {
        char id[8];

        (void)snprintf(id, sizeof(id), "m%d", i);
        fake_add(id, NULL, i == 3 ? "again" : i == 7 ? "rollback" : "ok");
    }
    fake_add(NULL, NULL, "no id");
    fake_add("r", NULL, "ok")->redelivered = 1;
    T_EQ(consume(&o), ONCE_DEAD);
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 9);
    T_EQ(number(&d, "SELECT count(DISTINCT id) FROM @effect"), 9);
    T_EQ(parked(&d, 3), 3);
    T_EQ(fake_count(FAKE_TAKEN), 12);
    base_end(&d);
}

/* ---- Order -------------------------------------------------------------------- */

static void messages_of_one_key_run_in_order(void)
{
    struct db d = base_new();
    once_consumer_options o = options();
    int i, batch;

    for (batch = 1; batch < 8; batch += 6) {
        o = options();
        o.keyed = 1;
        o.batch = (uint32_t)batch;
        sql(&d, NULL, "DELETE FROM @effect");
        for (i = 0; i < 12; i++) {
            char id[16], key[8];

            (void)snprintf(id, sizeof(id), "b%d-%02d", batch, i);
            (void)snprintf(key, sizeof(key), "k%d", i % 3);
            fake_add(id, key, i == 1 ? "until3" : i == 4 ? "until1" : "ok");
        }
        T_EQ(consume(&o), ONCE_OK);
        T_EQ(number(&d, "SELECT count(*) FROM @effect"), 12);
        T_OK(number(&d, "SELECT count(*) FROM @effect WHERE attempt>0") >= 2);
        if (d.pg != NULL)
            T_EQ(number(&d, "SELECT count(*) FROM @effect x, @effect y WHERE "
                            "x.id<y.id AND x.ctid>y.ctid AND "
                            "right(x.id,2)::int%%3=right(y.id,2)::int%%3"),
                 0);
        else
            T_EQ(number(&d, "SELECT count(*) FROM @effect x, @effect y WHERE "
                            "x.id<y.id AND x.rowid>y.rowid AND "
                            "substr(x.id,4)%%3=substr(y.id,4)%%3"),
                 0);
    }
    base_end(&d);
}

static void a_dead_message_stops_its_key_and_no_other(void)
{
    struct db d = base_new();
    once_consumer_options o = options();

    o.keyed = 1;
    fake_add("a1", "a", "dead");
    fake_add("a2", "a", "ok");
    fake_add("b1", "b", "ok");
    fake_add("a3", "a", "ok")->redelivered = 1;
    fake_add("n", NULL, "ok");
    T_EQ(consume(&o), ONCE_DEAD); /* it ends, though two wait behind it */
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 2);
    T_EQ(effects(&d, "b1") + effects(&d, "n"), 2);
    T_EQ(parked(&d, 3), 1);
    T_EQ(parked(&d, 1), 2);
    T_EQ(fake_count(FAKE_TAKEN), 5);
    /* Its row is dropped: the others go on, in order. */
    sql(&d, NULL, "DELETE FROM @parked WHERE id='a1'");
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(effects(&d, "a2") + effects(&d, "a3"), 2);
    base_end(&d);
}

/* ---- Handlers without a handle ---------------------------------------------------- */

/* Claims in a transaction of its own: as told by the body. */
static int handle_inside(const once_tx *tx, const once_message *m, void *user)
{
    struct db d;
    once_message copy = *m;
    int rc = ONCE_AGAIN;

    (void)user;
    atomic_fetch_add(&runs, 1);
    atomic_store(&saw_handle, tx->postgres != NULL || tx->sqlite != NULL ||
                                  tx->mysql != NULL);
    if (is(m, "lies"))
        return ONCE_OK;
    if (answer(m) != ONCE_OK)
        return answer(m);
    d = db_open();
    begin(&d);
    if (is(m, "forgets"))
        copy.attempt = 0;
    if (once_inbox_claim(&d.tx, &copy, NULL) == ONCE_OWNER) {
        effect(&d.tx, m);
        rc = ONCE_OK;
    }
    sql(&d, NULL, "COMMIT");
    db_close(&d);
    return is(m, "fails after") ? ONCE_AGAIN : is(m, "forgets") ? ONCE_OK : rc;
}

static void a_handler_that_claims_itself_is_looked_up(void)
{
    struct db d = base_new();
    once_consumer_options o = options();
    once_error err = {0, ""};

    o.inside = 1;
    o.attempts = 2;
    fake_add("a", NULL, "ok");
    fake_add("a", NULL, "ok");
    fake_add("b", NULL, "lies");
    fake_add("c", NULL, "until2");
    fake_add("d", NULL, "forgets its attempt")->redelivered = 1;
    fake_add("e", NULL, "fails after it has committed");
    T_EQ(once_consume(&o, handle_inside, NULL, &err), ONCE_DEAD);
    T_EQ(saw_handle, 0);
    T_EQ(effects(&d, "a"), 1);
    T_EQ(effects(&d, "b"), 0);
    T_EQ(effects(&d, "c"), 1);
    T_EQ(effects(&d, "d"), 0);
    T_EQ(effects(&d, "e"), 1);
    T_EQ(runs, 1 + 3 + 3 + 2 + 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=3 AND "
                    "(id='b' OR id='d')"),
         2);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"), 2);
    base_end(&d);
}

static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

/* Its effect is elsewhere; here it is a counter. */
static int handle_outside(const once_tx *tx, const once_message *m, void *user)
{
    struct db *d = user;
    char text[200];

    atomic_fetch_add(&runs, 1);
    atomic_store(&saw_handle, tx->postgres != NULL || tx->sqlite != NULL ||
                                  tx->mysql != NULL);
    (void)snprintf(text, sizeof(text), "INSERT INTO @seen VALUES('%s',%u)",
                   m->id, m->attempt);
    pthread_mutex_lock(&seen_lock); /* parked messages have another thread */
    sql(d, NULL, "%s", text);       /* nobody holds the database meanwhile */
    pthread_mutex_unlock(&seen_lock);
    return answer(m);
}

static void a_message_whose_effect_is_elsewhere_is_claimed_afterwards(void)
{
    struct db d = base_new(), other = db_open();
    once_consumer_options o = options();
    once_error err = {0, ""};

    if (other.lite != NULL) /* below that of the consumer */
        (void)sqlite3_busy_timeout(other.lite, 5000);
    o.outside = 1;
    fake_add("a", NULL, "ok");
    fake_add("a", NULL, "ok");
    fake_add("b", NULL, "until2");
    fake_add("c", NULL, "unknown");
    fake_add("d", NULL, "ok")->redelivered = 1;
    o.workers = 1;
    T_EQ(once_consume(&o, handle_outside, &other, &err), ONCE_DEAD);
    T_EQ(saw_handle, 0);
    T_EQ(number(&d, "SELECT count(*) FROM @seen WHERE id='a'"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @seen WHERE id='b'"), 3);
    T_EQ(number(&d, "SELECT count(*) FROM @seen WHERE id='c'"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @seen WHERE id='d'"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 4);
    T_EQ(parked(&d, 4), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"), 1);
    db_close(&other);
    base_end(&d);
}

/* ---- Options, stop, what is said ---------------------------------------------------- */

static void bad_options_are_refused_before_anything_is_received(void)
{
    struct db d = base_new();
    once_consumer_options o;
    once_error err = {0, ""};

#define REFUSED(code, change)                                                  \
    do {                                                                       \
        o = options();                                                         \
        change;                                                                \
        T_EQ(once_consume(&o, handle, NULL, &err), code);                      \
    } while (0)
    fake_add("a", NULL, "ok");
    REFUSED(ONCE_EINVAL, o.size = 8);
    REFUSED(ONCE_EINVAL, o.db = NULL);
    REFUSED(ONCE_EINVAL, o.from = NULL);
    REFUSED(ONCE_EINVAL, o.consumer = NULL);
    REFUSED(ONCE_EINVAL, o.consumer = "two words");
    REFUSED(ONCE_EINVAL, (o.keyed = 1, o.workers = 2));
    REFUSED(ONCE_EINVAL, (o.inside = 1, o.outside = 1));
    REFUSED(ONCE_EINVAL, (o.inside = 1, o.batch = 2));
    REFUSED(ONCE_EINVAL, (o.outside = 1, o.batch = 2));
    REFUSED(ONCE_ELIMIT, o.workers = ONCE_WORKERS_MAX + 1);
    REFUSED(ONCE_ELIMIT, o.batch = 100000);
    REFUSED(ONCE_ELIMIT, o.batch = 129); /* 8 MiB each */
    REFUSED(ONCE_ELIMIT, o.body_max = (65u << 20));
    REFUSED(ONCE_EURL, o.db = "mysql://nowhere");
    REFUSED(ONCE_EURL, o.from = "carrier-pigeon:");
    REFUSED(ONCE_EURL, o.from = "target:");
    REFUSED(ONCE_EINVAL, o.metrics = "/nowhere/at/all");
#undef REFUSED
    T_EQ(fake_at(0)->times, 0);
    base_end(&d);
}

/* While the first one runs. */
static void *stop_soon(void *fd)
{
    int i;

    for (i = 0; i < 60000 && runs == 0; i++)
        (void)usleep(1000);
    T_EQ(write(*(int *)fd, "x", 1), 1);
    return NULL;
}

static void what_runs_is_finished_before_it_stops(void)
{
    struct db d = base_new();
    once_consumer_options o = options();
    pthread_t thread;
    int fd[2], i;

    assert(pipe(fd) == 0);
    o.drain_ms = 0;
    o.stop_fd = fd[0];
    for (i = 0; i < 20; i++) {
        char id[8];

        (void)snprintf(id, sizeof(id), "m%d", i);
        fake_add(id, NULL, "slow");
    }
    assert(pthread_create(&thread, NULL, stop_soon, &fd[1]) == 0);
    T_EQ(consume(&o), ONCE_OK);
    (void)pthread_join(thread, NULL);
    T_OK(runs >= 1 && runs < 5);
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), runs);
    T_EQ(fake_count(FAKE_TAKEN), runs);
    T_EQ(fake_count(FAKE_OUT), 0); /* the rest was given back */
    T_EQ(parked(&d, 1), 0);
    (void)close(fd[0]);
    (void)close(fd[1]);
    base_end(&d);
}

static void a_broker_that_will_not_do_is_said_at_once(void)
{
    struct db d = base_new();
    once_consumer_options o = options();
    once_error err = {0, ""};

    fake_fail_connect = 100000;
    fake_connect_code = ONCE_EOPEN;
    T_EQ(once_consume(&o, handle, NULL, &err), ONCE_EOPEN);
    T_STR(err.text, "not now");
    fake_connect_code = ONCE_EAWAY;
    fake_fail_connect = 2; /* it comes back */
    fake_add("a", NULL, "ok");
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(effects(&d, "a"), 1);
    base_end(&d);
}

static void logs_and_metrics_hold_no_secret(void)
{
    struct db d = base_new();
    once_consumer_options o = options();
    char path[100], text[8000] = "";
    FILE *f;

    (void)snprintf(path, sizeof(path), "/tmp/once-consume-%d.prom",
                   (int)getpid());
    o.metrics = path;
    fake_add("secret-1", "secret-k", "ok secret");
    fake_add("secret-2", "secret-k", "rollback secret");
    fake_add("secret-2", "secret-k", "other secret");
    fake_add("secret-3", "secret-k", "odd secret")->redelivered = 1;
    fake_add("secret 4", "secret-k", "secret");
    fake_fail_ack = 1;
    T_EQ(consume(&o), ONCE_DEAD);
    f = fopen(path, "r");
    assert(f != NULL);
    T_OK(fread(text, 1, sizeof(text) - 1, f) > 100);
    (void)fclose(f);
    (void)unlink(path);
    T_OK(strlen(logged) > 0);
    T_OK(strstr(logged, "secret") == NULL);
    T_OK(strstr(text, "secret") == NULL);
    T_OK(strstr(text, "once_consumer_run_total{consumer=\"billing\"} 1\n") !=
         NULL);
    T_OK(strstr(text,
                "once_consumer_mismatch_total{consumer=\"billing\"} 1\n") !=
         NULL);
    T_OK(strstr(text, "once_consumer_flawed_total{consumer=\"billing\"} 1\n") !=
         NULL);
    T_OK(strstr(text, "once_consumer_parked_dead{") != NULL);
    base_end(&d);
}

/* ---- All at once ------------------------------------------------------------------ */

static void many_workers_have_one_effect_for_each_id(void)
{
    static const char *const bodies[] = {"ok", "until1", "ok",      "until2",
                                         "ok", "dead",   "unknown", "ok"};
    struct db d = base_new();
    once_consumer_options o = options();
    unsigned seed = (unsigned)getpid();
    int i, n = 150;

    o.workers = 4;
    o.batch = 4;
    for (i = 0; i < n; i++) {
        char id[16];

        (void)snprintf(id, sizeof(id), "m%d", i);
        fake_add(id, NULL, bodies[i % 8]);
        if (rand_r(&seed) % 10 < 3) { /* a copy of one that came before */
            int j = rand_r(&seed) % (i + 1);

            (void)snprintf(id, sizeof(id), "m%d", j);
            fake_add(id, NULL, bodies[j % 8])->redelivered = j % 2;
        }
    }
    fake_fail_ack = 10;
    fake_fail_receive = 5;
    T_EQ(consume(&o), ONCE_DEAD);
    T_EQ(fake_count(FAKE_QUEUED) + fake_count(FAKE_OUT), 0);
    T_EQ(number(&d, "SELECT count(*)-count(DISTINCT id) FROM @effect"), 0);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), n);
    T_EQ(number(&d, "SELECT count(*) FROM @effect") + parked(&d, 3) +
             parked(&d, 4),
         n);
    T_EQ(parked(&d, 3), 19);
    T_EQ(parked(&d, 4), 18);
    base_end(&d);
}

#define RUN(test) T_RUN_ONLY(only, test)

/* What says that it was done may be visible and not durable yet: the COMMIT of a
 * row that is touched waits until it is. */
static void what_says_done_is_committed_before_the_acknowledgement(void)
{
    struct db d = base_new();
    long touched;

    fake_add("a", NULL, "ok");
    T_EQ(consume_all(), ONCE_OK);
    touched = number(&d, "SELECT sum(n) FROM @message_touch");
    fake_add("a", NULL, "ok");
    T_EQ(consume_all(), ONCE_OK);
    T_EQ(effects(&d, "a"), 1);
    T_OK(number(&d, "SELECT sum(n) FROM @message_touch") > touched);
    base_end(&d);
}

/* Between two questions, or in one: the next one is asked of a new connection. */
static void a_connection_that_was_lost_is_made_again(void)
{
    const struct once__outbox_ask ask = {"r", 1, 1000, 0, 0, 0};
    struct db d = base_new();
    struct once__outgoing_list list;
    struct once__base *b = NULL;
    once_error err = {0, ""};
    int in_transaction;

    T_EQ(once__base_open(db_url, ONCE__BASE_READY, &b, &err), ONCE_OK);
    for (in_transaction = 0; in_transaction < 2; in_transaction++) {
        T_EQ(once__base_connect(b, &err), ONCE_OK);
        if (in_transaction)
            tx_sql(once__base_tx(b), "BEGIN");
        cut(once__base_tx(b));
        T_EQ(once__outbox_claim(once__base_tx(b), &ask, &list, &err),
             ONCE_EABORTED);
        T_EQ(once__base_connect(b, &err), ONCE_OK);
        T_EQ(once__outbox_claim(once__base_tx(b), &ask, &list, &err), ONCE_OK);
        once__outgoing_clear(&list);
    }
    once__base_close(b);
    base_end(&d);
}

static void of_servers(const char *only)
{
    RUN(a_connection_that_was_lost_is_made_again);
    if (is_mysql())
        RUN(what_says_done_is_committed_before_the_acknowledgement);
    RUN(a_connection_lost_in_the_handler_is_made_again);
    RUN(a_handler_that_always_cuts_its_connection_is_dead);
    RUN(a_copy_under_way_is_waited_for_and_others_go_on);
    RUN(a_key_waits_behind_a_copy_under_way);
    if (!is_postgres())
        return;
    RUN(what_fails_at_commit_is_rolled_back_and_parked);
    RUN(an_unknown_commit_is_asked_for);
    RUN(a_transaction_that_has_failed_is_not_committed);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "sqlite";
    const char *only = argc > 2 ? argv[2] : NULL;

    (void)signal(SIGPIPE, SIG_IGN);
    if (!take_database(what))
        only = what;
    RUN(a_message_has_one_effect_and_is_acknowledged);
    RUN(a_failed_handler_is_rolled_back_and_runs_again);
    RUN(a_message_that_fails_too_often_is_dead);
    RUN(a_handler_says_dead_or_unknown);
    RUN(a_known_id_with_another_body_is_a_dead_letter);
    RUN(ids_carry_their_time);
    RUN(what_was_delivered_before_is_counted_before_it_runs);
    RUN(what_kills_its_process_is_dead_in_the_end);
    RUN(an_acknowledgement_that_is_lost_does_no_harm);
    RUN(what_cannot_be_understood_is_a_dead_letter);
    RUN(a_body_that_is_too_large_is_kept_without_it);
    RUN(a_handler_that_ends_the_transaction_has_failed);
    RUN(a_handler_that_begins_another_transaction_has_failed);
    RUN(a_savepoint_of_the_handler_does_no_harm);
    RUN(a_database_that_will_not_do_is_said_at_once);
    RUN(a_batch_is_one_transaction);
    RUN(a_failure_in_a_batch_takes_nobody_along);
    RUN(messages_of_one_key_run_in_order);
    RUN(a_dead_message_stops_its_key_and_no_other);
    RUN(a_handler_that_claims_itself_is_looked_up);
    RUN(a_message_whose_effect_is_elsewhere_is_claimed_afterwards);
    RUN(bad_options_are_refused_before_anything_is_received);
    RUN(what_runs_is_finished_before_it_stops);
    RUN(a_broker_that_will_not_do_is_said_at_once);
    RUN(logs_and_metrics_hold_no_secret);
    RUN(many_workers_have_one_effect_for_each_id);
    if (server_url != NULL)
        of_servers(only);
    return t_done();
}
