/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plans_mysql.c - each call that a relay, a consumer or a program repeats, on
 * tables of a million rows of MariaDB: how many rows it reads, as the server counts
 * them. What it reads must not grow with what is done, dead, parked, or another
 * route's.
 *
 *    with-server mysql -- test_plans_mysql
 */
#include "db.h"

#include "messages/tables/outbox.h"
#include "messages/tables/saga.h"

/* A window counts each row that it keeps several times. NEAR: of the rows that
 * come next, MANY: where these are not enough. */
enum { BATCH = 100, NEAR = 30 * BATCH, MANY = 120 * BATCH };

/* The numbers up to `most`, on MariaDB and on MySQL. */
#define SEQ(most, name)                                                        \
    "(WITH RECURSIVE s(seq) AS (SELECT 1 UNION ALL SELECT seq+1 FROM s WHERE " \
    "seq<" #most ") SELECT seq FROM s) " name

/* Of the same sort as `r`, on whose behalf all is asked, are the others' rows. */
static const char *const rows[] = {
    "INSERT INTO @outbox(phase,kept,due_ms,at_ms,route,id,`key`,type,headers,"
    "body,attempts,lease_ms) SELECT CASE WHEN seq<=500000 THEN 2 WHEN"
    " seq%20=0 THEN 3 WHEN seq%20=1 THEN 1 ELSE 0 END,1,"
    "CASE WHEN seq%20=1 THEN 9999999999999 ELSE 1 END,1,"
    "CASE WHEN seq%4=0 THEN concat('other',seq%40) ELSE 'r' END,"
    "concat('m',seq),CASE WHEN seq%3=0 AND (seq%20<>1 OR seq%100=1)"
    " THEN concat('k',seq) END,'','','',1,0 FROM " SEQ(1000000, "numbers"),
    "INSERT INTO @inbox(consumer,id,at_ms,kind) SELECT concat('c',seq%3),"
    "concat('m',seq),1800000000000,1 FROM " SEQ(
        1000000,
        "numbers") " ORDER BY 1,2", /* as the table is: the server's memory is small */
    "INSERT INTO "
    "@parked(consumer,id,state,due_ms,at_ms,`key`,type,headers,body,"
    "error,filed) SELECT concat('c',seq%3),concat('m',seq),"
    "CASE WHEN seq%5=0 THEN 1 ELSE 3 END,"
    "CASE WHEN seq%10=0 THEN seq ELSE 9999999999999 END,1,"
    "CASE WHEN seq%2=0 THEN concat('k',seq) END,'','','','',1"
    " FROM " SEQ(300000, "numbers"),
    "INSERT INTO @saga(gid,kind,state,version,deadline_ms,at_ms,since_ms,"
    "fingerprint) SELECT concat('g',seq),'k',CASE WHEN seq%4=0 THEN 0 ELSE 3"
    " END,1,9999999999999,1,1,'' FROM " SEQ(100000, "numbers"),
    "INSERT INTO @saga_step(gid,branch,state,try_to,type,body)"
    " SELECT concat('g',s.seq),b.seq,CASE WHEN s.seq%4=0 THEN 2-b.seq ELSE 2"
    " END,'r','','' FROM " SEQ(100000, "s") "," SEQ(2, "b"),
    "INSERT INTO @outbox(phase,kept,due_ms,at_ms,route,id,saga,type,headers,"
    "body,attempts,lease_ms) VALUES(0,1,1,1,'calls','g40000/1/try','g40000',"
    "'','','',1,floor(unix_timestamp()*1000)+1800000)",
    "ANALYZE TABLE @outbox,@inbox,@parked,@saga,@saga_step",
};

/* ---- What is repeated --------------------------------------------------- */

static int claim_with(struct db *d, struct once__outbox_ask ask)
{
    struct once__outgoing_list list;
    int rc = once__outbox_claim(&d->tx, &ask, &list, NULL);

    once__outgoing_clear(&list);
    return rc;
}

static int claim(struct db *d)
{
    return claim_with(d, (struct once__outbox_ask){"r", BATCH, 30000, 0, 0, 0});
}

static int claim_passing(struct db *d)
{
    return claim_with(d, (struct once__outbox_ask){"r", BATCH, 30000, 0, 1, 0});
}

static int claim_holding(struct db *d)
{
    return claim_with(d, (struct once__outbox_ask){"r", 1, 30000, 1, 0, 0});
}

static int claim_nothing(struct db *d)
{
    return claim_with(d,
                      (struct once__outbox_ask){"none", BATCH, 30000, 0, 0, 0});
}

static int settle(struct db *d)
{
    struct once__settlement s[] = {
        {600002, 1, {2, 0, 0, 0}, 0, {NULL, 0}, "", 0, 0},
        {600003, 1, {0, 0, 0, 0}, 0, {NULL, 0}, "", 0, 0}};

    return once__outbox_settle(&d->tx, s, 2, NULL);
}

static int settle_with_saga(struct db *d)
{
    struct once__settlement s = {.attempts = 1,
                                 .to = {ONCE__ROW_DONE, 0, 0, 0}};
    struct once__outgoing row = {.saga = "g40000"};
    struct once__saga_tally tally = {0};

    row.m.id = "g40000/1/try";
    row.seq = s.seq = number(d, "SELECT seq FROM @outbox WHERE saga='g40000'");
    return once__saga_settle(&d->tx, &row, &s, &tally, NULL);
}

static int wait_once(struct db *d)
{
    return once__outbox_wait(&d->tx, "r", -1, 0, NULL);
}

static int here(struct db *d)
{
    return once__outbox_here(&d->tx, "r", NULL);
}

static int sagas_due(struct db *d)
{
    struct once__saga_tally tally = {0};

    return once__saga_due(&d->tx, &tally, NULL);
}

static int take_with(struct db *d, int keyed)
{
    struct once__parked_list list;
    int rc = once__parked_take(&d->tx, "c1", 1000, keyed, &list, NULL);

    once__parked_clear(&list);
    return rc;
}

static int take(struct db *d)
{
    return take_with(d, 0);
}

static int take_keyed(struct db *d)
{
    return take_with(d, 1);
}

static int put_back(struct db *d)
{
    return once__parked_put_back(&d->tx, 20, 0, 1, 1000, "", NULL);
}

static int has_key(struct db *d)
{
    int stopped;

    return once__parked_has_key(&d->tx, "c1", "k8", &stopped, NULL);
}

static once_message message(const char *id, const char *key)
{
    once_message m = ONCE_MESSAGE_INIT;

    m.route = "r";
    m.consumer = "c1";
    m.id = id;
    m.key = key;
    m.body = (once_bytes){"x", 1};
    return m;
}

static int emit(struct db *d)
{
    once_message m = message(NULL, "k3");
    int rc;

    begin(d);
    rc = once_emit(&d->tx, &m, NULL, NULL);
    roll_back(d);
    return rc;
}

static int inbox_claim(struct db *d)
{
    once_message m = message("m7", NULL);
    int rc;

    begin(d);
    rc = once_inbox_claim(&d->tx, &m, NULL);
    roll_back(d);
    return rc == ONCE_REPEATED ? ONCE_OK : rc;
}

static int inbox_park(struct db *d)
{
    once_message m = message("new", "k7");
    int rc;

    begin(d);
    rc = once_inbox_park(&d->tx, &m, ONCE_PARKED_WAITING, 0, "", NULL);
    roll_back(d);
    return rc;
}

static int purge_of_nothing(struct db *d)
{
    return once__outbox_purge(&d->tx, UINT64_C(9999999999999), NULL, NULL);
}

static const struct {
    const char *name;
    int (*call)(struct db *d);
    long most;
} calls[] = {
    {"claim", claim, NEAR},
    {"claim, passing", claim_passing, NEAR},
    {"claim, holding", claim_holding, MANY},
    {"claim of a route without rows", claim_nothing, BATCH},
    {"settle", settle, BATCH},
    {"settle with a saga", settle_with_saga, BATCH},
    {"wait", wait_once, 2200}, /* it counts up to a thousand */
    {"here", here, BATCH},
    {"sagas that are due", sagas_due, BATCH},
    {"take", take, BATCH},
    {"take, keyed", take_keyed, BATCH},
    {"put back", put_back, BATCH},
    {"has key", has_key, BATCH},
    {"emit", emit, BATCH},
    {"inbox claim", inbox_claim, BATCH},
    {"park", inbox_park, BATCH},
    {"purge", purge_of_nothing, BATCH},
};

/* Rows that this session has read so far. */
static long count_reads(struct db *d)
{
    return number(d, "SELECT sum(variable_value) FROM"
                     " /*M! information_schema.SESSION_STATUS */"
                     " /*!80000 performance_schema.session_status */"
                     " WHERE variable_name"
                     " LIKE 'Handler_read%%'");
}

static void what_is_repeated_reads_what_it_needs(void)
{
    struct db d = db_new();
    long look, before;
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        sql(&d, NULL, "%s", rows[i]);
    before = count_reads(&d);
    look = count_reads(&d) - before; /* what a look itself reads */
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        long read;
        int rc;

        before = count_reads(&d);
        rc = calls[i].call(&d);
        read = count_reads(&d) - before - look;
        T_EQ(rc, ONCE_OK);
        if (rc != ONCE_OK || read > calls[i].most) {
            printf("#   %s: %ld rows\n", calls[i].name, read);
            t__bad++;
        }
    }
    db_end(&d);
}

int main(void)
{
    (void)take_database("mysql");
    T_RUN(what_is_repeated_reads_what_it_needs);
    return t_done();
}
