/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_outbox.c - src/messages/tables/outbox.h on real databases: one text for both.
 *
 *    test_outbox [sqlite | CASE]
 *    with-server postgres -- test_outbox postgres [CASE]
 */
#include "db.h"

#include <signal.h>
#include <sys/wait.h>

#include "messages/tables/outbox.h"

enum { LEASE_MS = 60000 };

/* ---- Rows --------------------------------------------------------------- */

/* Emits to the route `r`; `key` and `id` may be NULL. */
static void emit(struct db *d, const char *key, const char *id)
{
    once_message m = ONCE_MESSAGE_INIT;

    m.route = "r";
    m.key = key;
    m.id = id;
    m.type = "text/plain";
    m.headers = "A: b\n";
    m.body = (once_bytes){"body", 4};
    begin(d);
    T_EQ(once_emit(&d->tx, &m, NULL, NULL), ONCE_OK);
    commit(d);
}

static const struct once__outbox_ask any = {"r", 100, LEASE_MS, 0, 0, 1};

static struct once__outgoing_list take(struct db *d,
                                       const struct once__outbox_ask *ask)
{
    struct once__outgoing_list list;
    once_error err = {0, ""};
    int rc = once__outbox_claim(&d->tx, ask, &list, &err);

    if (rc != ONCE_OK)
        printf("#   claim: %s\n", err.text);
    T_EQ(rc, ONCE_OK);
    return list;
}

static int settle_of(struct db *d, int64_t lease, int64_t seq,
                     uint32_t attempts, struct once__row_next to)
{
    struct once__settlement s = {seq,       attempts, to, 200,
                                 {NULL, 0}, "why",    0,  lease};
    once_error err = {0, ""};
    int rc = once__outbox_settle(&d->tx, &s, 1, &err);

    if (rc != ONCE_OK)
        printf("#   settle: %s\n", err.text);
    T_EQ(rc, ONCE_OK);
    return s.ours;
}

static int settle(struct db *d, int64_t seq, uint32_t attempts,
                  struct once__row_next to)
{
    return settle_of(d, 0, seq, attempts, to);
}

static const struct once__row_next done = {ONCE__ROW_DONE, 0, 0, 0};
static const struct once__row_next unsent = {ONCE__ROW_READY, 1, 0, 0};
static const struct once__row_next silent = {ONCE__ROW_WAITING, 0, 0, 0};
static const struct once__row_next refused = {ONCE__ROW_WAITING, 1, 1, 0};
static const struct once__row_next dead = {ONCE__ROW_DEAD, 1, 1, 0};
static const struct once__row_next unknown = {ONCE__ROW_INDETERMINATE, 0, 0, 0};

static int decide(struct db *d, int seq, int phase, uint32_t attempts,
                  int action)
{
    return once__outbox_decide(&d->tx, seq, phase, attempts, action, "because",
                               NULL);
}

/* Claims with `ask` and expects these rows: "13" are those of seq 1 and 3. */
static void expect(struct db *d, const struct once__outbox_ask *ask,
                   const char *seqs)
{
    struct once__outgoing_list l = take(d, ask);
    char got[32] = "";
    size_t i;

    for (i = 0; i < l.n && i < sizeof(got) - 1; i++)
        got[i] = (char)('0' + l.rows[i].seq);
    T_STR(got, seqs);
    once__outgoing_clear(&l);
}

/* All leases ran out. */
static void expire(struct db *d)
{
    sql(d, NULL, "UPDATE @outbox SET lease_ms=1 WHERE lease_ms>0");
}

static long of(struct db *d, const char *column, int seq)
{
    return number(d, "SELECT %s FROM @outbox WHERE seq=%d", column, seq);
}

static void a_row_is_claimed_settled_and_gone(void)
{
    struct db d = db_new();
    struct once__outgoing_list l;

    emit(&d, NULL, NULL);
    emit(&d, "k", NULL);
    emit(&d, "k", "mine");
    sql(&d, NULL, "UPDATE @outbox SET saga='g' WHERE seq=2");
    l = take(&d, &any);
    T_EQ(l.n, 3);
    if (l.n == 3) {
        T_EQ(l.rows[0].attempts, 1);
        T_EQ(l.rows[0].row.doubt, 1);
        T_OK(l.rows[0].row.doubt_ms > 0);
        T_OK(l.now_ms >= l.rows[0].row.doubt_ms);
        T_OK(l.rows[0].saga == NULL && l.rows[0].m.key == NULL);
        T_STR(l.rows[1].saga, "g");
        T_STR(l.rows[2].m.route, "r");
        T_STR(l.rows[2].m.id, "mine");
        T_STR(l.rows[2].m.key, "k");
        T_STR(l.rows[2].m.type, "text/plain");
        T_STR(l.rows[2].m.headers, "A: b\n");
        T_EQ(l.rows[2].m.body.size, 4);
        T_MEM(l.rows[2].m.body.data, "body", 4);
        T_EQ(l.rows[2].m.keep, 1);
        T_EQ(l.rows[0].m.keep, 0);
        T_EQ(settle(&d, l.rows[0].seq, 1, done), 1);
        T_EQ(settle(&d, l.rows[2].seq, 1, done), 1);
    }
    once__outgoing_clear(&l);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 2);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE phase=2"), 1);
    expect(&d, &any, "");
    db_end(&d);
}

/* 1: a step of the plan of `text` has this in it. */
static int plan_has(struct db *d, const char *text, const char *step)
{
    char *explain = sqlite3_mprintf("EXPLAIN QUERY PLAN %s", text);
    sqlite3_stmt *q = NULL;
    int found = 0;

    T_EQ(sqlite3_prepare_v2(d->lite, explain, -1, &q, NULL), SQLITE_OK);
    while (sqlite3_step(q) == SQLITE_ROW)
        found |= strstr((const char *)sqlite3_column_text(q, 3), step) != NULL;
    (void)sqlite3_finalize(q);
    sqlite3_free(explain);
    return found;
}

/* SQLite takes a partial index only where the statement says its condition. */
static void a_claim_finds_stopped_rows_by_their_index(void)
{
    struct db d = db_new();
    sqlite3_stmt *q = NULL;
    int found = 0;

    if (d.tx.prepared == NULL)
        T_EQ(once_prepared_new(d.lite, &d.tx.prepared, NULL), ONCE_OK);
    emit(&d, "k", NULL);
    expect(&d, &any, "1");
    while ((q = sqlite3_next_stmt(d.lite, q)) != NULL)
        found |= plan_has(&d, sqlite3_sql(q),
                          "INDEX once_outbox_stopped (route=? AND key=?");
    T_OK(found);
    db_end(&d);
}

/* ---- Leases and the fence ----------------------------------------------- */

static void a_leased_row_is_claimed_again_when_its_lease_ran_out(void)
{
    struct db d = db_new();
    long since;

    emit(&d, NULL, NULL);
    expect(&d, &any, "1");
    expect(&d, &any, "");
    since = of(&d, "doubt_ms", 1);
    expire(&d);
    expect(&d, &any, "1");
    T_EQ(of(&d, "attempts", 1), 2);
    T_EQ(of(&d, "doubt", 1), 2);
    T_EQ(of(&d, "doubt_ms", 1), since); /* since the first */
    expect(&d, &any, "");
    db_end(&d);
}

static void a_settle_after_another_claim_changes_nothing(void)
{
    struct db d = db_new();

    emit(&d, NULL, NULL);
    expect(&d, &any, "1");
    expire(&d);
    expect(&d, &any, "1");
    T_EQ(settle(&d, 1, 1, done), 0);
    T_EQ(settle(&d, 1, 1, dead), 0);
    T_EQ(settle(&d, 1, 3, dead), 0);
    T_EQ(of(&d, "phase", 1), ONCE__ROW_READY);
    T_EQ(of(&d, "attempts", 1), 2);
    T_EQ(of(&d, "doubt", 1), 2);
    T_OK(of(&d, "lease_ms", 1) > 1);
    T_EQ(settle(&d, 1, 2, done), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 0);
    db_end(&d);
}

static void a_settle_after_the_lease_counts_if_nobody_claimed(void)
{
    struct db d = db_new();

    emit(&d, NULL, NULL);
    expect(&d, &any, "1");
    expire(&d);
    T_EQ(settle(&d, 1, 1, done), 1);
    db_end(&d);
}

/* After a COMMIT without an answer it is asked again. */
static void a_settle_that_is_repeated_counts_once(void)
{
    static const struct once__row_next *const ends[] = {
        &unsent, &silent, &refused, &dead, &unknown, &done};
    struct db d = db_new();
    char key[8];
    size_t i;

    for (i = 0; i < 6; i++) {
        int seq = (int)i + 1;
        long doubt = 1 - ends[i]->harmless;

        (void)snprintf(key, sizeof(key), "k%zu", i);
        emit(&d, NULL, key);
        sql(&d, NULL,
            "UPDATE @outbox SET doubt=1,doubt_ms=5,refused=3"
            " WHERE seq=%d",
            seq);
        sql(&d, NULL,
            "UPDATE @outbox SET attempts=1,lease_ms=1"
            " WHERE seq=%d",
            seq);
        T_EQ(settle(&d, seq, 1, *ends[i]), 1);
        T_EQ(settle(&d, seq, 1, *ends[i]), 0);
        T_EQ(settle(&d, seq, 1, refused), 0);
        T_EQ(of(&d, "phase", seq), ends[i]->phase);
        T_EQ(of(&d, "doubt", seq), ends[i] == &done ? 0 : doubt);
        T_EQ(of(&d, "refused", seq), 3 + ends[i]->refused);
        T_EQ(of(&d, "lease_ms", seq), 0);
    }
    db_end(&d);
}

static void several_rows_are_settled_each_by_its_own_fence(void)
{
    struct once__settlement s[4] = {
        {1, 1, {ONCE__ROW_DONE, 0, 0, 0}, 201, {"a\0b", 3}, NULL, 7, 0},
        {2, 9, {ONCE__ROW_DONE, 0, 0, 0}, 0, {NULL, 0}, NULL, 7, 0},
        {3,
         1,
         {ONCE__ROW_WAITING, 0, 1, 5000},
         0,
         {"", 0},
         "caf\xc3\xa9",
         7,
         0},
        {99, 1, {ONCE__ROW_DONE, 0, 0, 0}, 0, {NULL, 0}, NULL, 7, 0}};
    struct db d = db_new();
    struct once__outgoing_list l;

    emit(&d, NULL, "kept");
    emit(&d, NULL, NULL);
    emit(&d, NULL, NULL);
    expect(&d, &any, "123");
    T_EQ(once__outbox_settle(&d.tx, s, 4, NULL), ONCE_OK);
    T_EQ(s[0].ours, 1);
    T_EQ(s[1].ours, 0);
    T_EQ(s[2].ours, 1);
    T_EQ(s[3].ours, 0);
    T_EQ(once__outbox_get(&d.tx, 1, &l, NULL), ONCE_OK);
    T_EQ(l.n, 1);
    if (l.n == 1) {
        T_EQ(l.rows[0].phase, ONCE__ROW_DONE);
        T_EQ(l.rows[0].status, 201);
        T_EQ(l.rows[0].reply.size, 3);
        T_MEM(l.rows[0].reply.data, "a\0b", 3);
        T_EQ(l.rows[0].m.body.size, 0);
        T_EQ(l.rows[0].row.doubt, 0);
    }
    once__outgoing_clear(&l);
    T_EQ(once__outbox_get(&d.tx, 3, &l, NULL), ONCE_OK);
    T_EQ(l.n, 1);
    if (l.n == 1) {
        T_EQ(l.rows[0].phase, ONCE__ROW_WAITING);
        T_EQ(l.rows[0].row.refused, 1);
        T_EQ(l.rows[0].row.doubt, 1);
        T_OK(l.rows[0].due_ms > l.now_ms && l.rows[0].due_ms < l.now_ms + 5001);
        T_STR(l.rows[0].error, "caf??");
        T_OK(l.rows[0].reply.data != NULL);
        T_EQ(l.rows[0].m.body.size, 4);
    }
    once__outgoing_clear(&l);
    db_end(&d);
}

static void doubt_begins_anew_when_it_was_gone(void)
{
    struct db d = db_new();

    emit(&d, NULL, NULL);
    expect(&d, &any, "1");
    sql(&d, NULL, "UPDATE @outbox SET doubt_ms=5");
    T_EQ(settle(&d, 1, 1, silent), 1);
    expect(&d, &any, "1");
    T_EQ(of(&d, "doubt", 1), 2);
    T_EQ(of(&d, "doubt_ms", 1), 5);
    T_EQ(settle(&d, 1, 2, unsent), 1);
    T_EQ(of(&d, "doubt", 1), 1);
    sql(&d, NULL, "UPDATE @outbox SET doubt=0");
    expect(&d, &any, "1");
    T_EQ(of(&d, "doubt", 1), 1);
    T_OK(of(&d, "doubt_ms", 1) > 5);
    db_end(&d);
}

/* The clock was ahead when the row was claimed, and went back since. */
static void a_lease_that_is_too_far_ahead_is_none(void)
{
    struct db d = db_new();

    emit(&d, NULL, NULL);
    expect(&d, &any, "1");
    sql(&d, NULL, "UPDATE @outbox SET lease_ms=lease_ms+3600000");
    expect(&d, &any, "1");
    T_EQ(of(&d, "attempts", 1), 2);
    expect(&d, &any, "");
    db_end(&d);
}

/* ---- Hold --------------------------------------------------------------- */

static const struct once__outbox_ask hold = {"r", 100, LEASE_MS, 1, 0, 1};
static const struct once__outbox_ask pass = {"r", 100, LEASE_MS, 0, 1, 1};
static const struct once__outbox_ask hold_pass = {"r", 100, LEASE_MS, 1, 1, 1};

static void a_held_row_is_not_claimed_again(void)
{
    struct db d = db_new();

    emit(&d, NULL, NULL);
    expect(&d, &hold, "1");
    expect(&d, &hold, "");
    T_EQ(of(&d, "phase", 1), ONCE__ROW_READY);
    expire(&d);
    expect(&d, &hold, "");
    T_EQ(of(&d, "phase", 1), ONCE__ROW_INDETERMINATE);
    T_EQ(of(&d, "attempts", 1), 1);
    T_EQ(of(&d, "doubt", 1), 1);
    expect(&d, &any, "");
    db_end(&d);
}

static void a_held_row_that_was_given_back_is_claimed_again(void)
{
    struct db d = db_new();

    emit(&d, NULL, NULL);
    expect(&d, &hold, "1");
    T_EQ(settle(&d, 1, 1, unsent), 1);
    expect(&d, &hold, "1");
    T_EQ(settle(&d, 1, 2, refused), 1);
    expect(&d, &hold, "1");
    T_EQ(of(&d, "doubt", 1), 1);
    db_end(&d);
}

static void a_late_answer_is_taken_from_an_indeterminate_row(void)
{
    struct db d = db_new();

    emit(&d, NULL, "a");
    emit(&d, NULL, NULL);
    expect(&d, &hold, "12");
    expire(&d);
    expect(&d, &hold, "");
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE phase=4"), 2);
    T_EQ(settle(&d, 1, 2, done), 0);
    T_EQ(settle(&d, 1, 1, done), 1);
    T_EQ(of(&d, "phase", 1), ONCE__ROW_DONE);
    T_EQ(settle(&d, 2, 1, refused), 1); /* it was turned down after all */
    expect(&d, &hold, "2");
    T_EQ(settle(&d, 2, 2, unknown), 1);
    T_EQ(settle(&d, 2, 2, done), 0); /* settled before */
    db_end(&d);
}

static void a_held_row_keeps_its_key_waiting(void)
{
    struct db d = db_new();

    emit(&d, "k", NULL);
    emit(&d, "k", NULL);
    emit(&d, "other", NULL);
    expect(&d, &(struct once__outbox_ask){"r", 1, LEASE_MS, 1, 0, 1}, "1");
    expire(&d);
    expect(&d, &hold, "3");
    expect(&d, &hold, "");
    expect(&d, &hold_pass, "2");
    db_end(&d);
}

/* ---- Keys --------------------------------------------------------------- */

static void rows_of_a_key_come_together_and_to_one_claimer(void)
{
    struct db d = db_new();
    struct once__outbox_ask two = {"r", 2, LEASE_MS, 0, 0, 1};

    emit(&d, "k", NULL);
    emit(&d, "k", NULL);
    emit(&d, "k", NULL);
    emit(&d, "other", NULL);
    emit(&d, NULL, NULL);
    expect(&d, &two, "12");
    expect(&d, &two, "45"); /* 3 waits */
    T_EQ(settle(&d, 1, 1, done), 1);
    expect(&d, &any, "");
    T_EQ(settle(&d, 2, 1, done), 1);
    expect(&d, &any, "3");
    db_end(&d);
}

static void a_row_without_a_key_waits_for_none(void)
{
    struct db d = db_new();
    struct once__outbox_ask one = {"r", 1, LEASE_MS, 0, 0, 1};

    emit(&d, NULL, NULL);
    emit(&d, NULL, NULL);
    emit(&d, NULL, NULL);
    expect(&d, &one, "1");
    expect(&d, &one, "2");
    T_EQ(settle(&d, 1, 1, dead), 1);
    expect(&d, &one, "3");
    db_end(&d);
}

static void a_stopped_row_keeps_its_key_waiting(void)
{
    static const struct once__row_next *const ends[] = {&dead, &unknown};
    size_t i;

    for (i = 0; i < 2; i++) {
        struct db d = db_new();

        emit(&d, "k", NULL);
        emit(&d, "k", NULL);
        emit(&d, "other", NULL);
        expect(&d, &any, "123");
        T_EQ(settle(&d, 1, 1, *ends[i]), 1);
        T_EQ(settle(&d, 2, 1, unsent), 1);
        T_EQ(settle(&d, 3, 1, unsent), 1);
        expect(&d, &any, "3");
        expect(&d, &any, "");
        expect(&d, &pass, "2");
        db_end(&d);
    }
}

static void a_waiting_row_keeps_its_key_waiting_and_becomes_due(void)
{
    struct once__row_next later = {ONCE__ROW_WAITING, 0, 0, 60000};
    struct db d = db_new();

    emit(&d, "k", NULL);
    emit(&d, "k", NULL);
    expect(&d, &any, "12");
    T_EQ(settle(&d, 1, 1, later), 1);
    T_EQ(settle(&d, 2, 1, unsent), 1);
    expect(&d, &any, "");
    expect(&d, &pass, ""); /* it will come */
    sql(&d, NULL, "UPDATE @outbox SET due_ms=1 WHERE seq=1");
    expect(&d, &any, "12");
    db_end(&d);
}

static void a_row_for_later_is_claimed_later(void)
{
    struct db d = db_new();
    once_message m = ONCE_MESSAGE_INIT;

    m.route = "r";
    m.due_ms = now_ms() + 3600000;
    begin(&d);
    T_EQ(once_emit(&d.tx, &m, NULL, NULL), ONCE_OK);
    commit(&d);
    emit(&d, NULL, NULL);
    expect(&d, &any, "2");
    sql(&d, NULL, "UPDATE @outbox SET due_ms=1 WHERE seq=1");
    expect(&d, &any, "1");
    db_end(&d);
}

static void routes_are_claimed_apart(void)
{
    struct db d = db_new();

    emit(&d, "k", NULL);
    expect(&d, &(struct once__outbox_ask){"other", 1, LEASE_MS, 0, 0, 1}, "");
    sql(&d, NULL, "UPDATE @outbox SET phase=3,route='other'");
    emit(&d, "k", NULL);
    expect(&d, &any, "2");
    db_end(&d);
}

/* The oldest rows all wait for one that is leased: others go on. */
static void a_busy_key_does_not_hide_the_others(void)
{
    struct db d = db_new();
    struct once__outbox_ask one = {"r", 1, LEASE_MS, 0, 0, 1};
    once_message m = ONCE_MESSAGE_INIT;
    int i;

    m.route = "r";
    m.key = "busy";
    begin(&d);
    for (i = 0; i < 250; i++)
        T_EQ(once_emit(&d.tx, &m, NULL, NULL), ONCE_OK);
    commit(&d);
    expect(&d, &one, "1");
    expect(&d, &one, "");
    emit(&d, "other", NULL);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE attempts=1"), 1);
    expect(&d, &one, (char[]){(char)('0' + 251), 0});
    db_end(&d);
}

static void a_claim_ends_at_its_bytes(void)
{
    struct db d = db_new();
    once_message m = ONCE_MESSAGE_INIT;
    size_t size = (size_t)6 << 20;
    char *body = calloc(1, size);
    int i;

    m.route = "r";
    m.body = (once_bytes){body, size};
    for (i = 0; i < 4; i++) {
        begin(&d);
        T_EQ(once_emit(&d.tx, &m, NULL, NULL), ONCE_OK);
        commit(&d);
    }
    free(body);
    expect(&d, &any, "123");
    expect(&d, &any, "4");
    db_end(&d);
}

/* A statement has to fit into one packet of MySQL, 16 MiB as it is delivered. */
static void a_body_that_does_not_fit_is_named(void)
{
    struct db d = db_new();
    once_message m = ONCE_MESSAGE_INIT;
    size_t size = (size_t)9 << 20;
    char *body = calloc(1, size);
    once_error err = {0, ""};

    m.route = "r";
    m.body = (once_bytes){body, size};
    begin(&d);
    T_EQ(once_emit(&d.tx, &m, NULL, &err), ONCE_ELIMIT);
    T_OK(strstr(err.text, "body") != NULL &&
         strstr(err.text, "max_allowed_packet") != NULL);
    roll_back(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 0);
    free(body);
    db_end(&d);
}

/* More than a claim reads of what has stopped, and more rows behind these than
 * it looks at. */
static void very_many_rows_that_wait_keep_no_other_key_waiting(void)
{
    struct db d = db_new();
    struct once__outgoing_list list;

    sql(&d, NULL,
        "INSERT INTO @outbox(phase,kept,due_ms,at_ms,route,id,key,type,headers,"
        "body) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n"
        " WHERE i<110002) SELECT CASE WHEN i<=10001 THEN 3 ELSE 0 END,%s,0,0,"
        "'r','w'||i,'k'||(i%%10001),'','',%s FROM n",
        as(&d, "false", "0", "0"), as(&d, "''", "x''", "''"));
    emit(&d, "another", NULL);
    list = take(&d, &any);
    T_EQ(list.n, 1);
    once__outgoing_clear(&list);
    db_end(&d);
}

/* ---- Order, with many at once -------------------------------------------- */

enum { WRITERS = 2, CLAIMERS = 4, EACH = 120, KEYS = 3, SHORT_MS = 40 };

static void writer(unsigned seed)
{
    struct db d = db_open();
    char key[8];
    int i;

    for (i = 0; i < EACH; i++) {
        (void)snprintf(key, sizeof(key), "k%u", draw(&seed, KEYS));
        emit(&d, key, NULL);
    }
    _exit(t__bad != 0);
}

static void nap_ms(unsigned ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

    (void)nanosleep(&t, NULL);
}

/* Sends rows as a relay does: after the first failure of a key the rest of its
 * rows go back. */
static void carry(struct db *d, const struct once__outgoing_list *l,
                  unsigned *seed)
{
    int failed[10] = {0};
    size_t i;

    for (i = 0; i < l->n; i++) {
        const struct once__outgoing *o = &l->rows[i];
        int key = o->m.key[1] - '0';
        struct once__row_next to = done;

        if (draw(seed, 30) == 0)
            nap_ms(SHORT_MS * 2); /* stopped past its lease, then goes on */
        if (failed[key]) {
            to = unsent;
        } else {
            sql(d, NULL, "INSERT INTO @sent(k,seq) VALUES('%s',%lld)", o->m.key,
                (long long)o->seq);
            if (draw(seed, 4) == 0) {
                to = draw(seed, 2) ? silent : refused;
                to.wait_ms = draw(seed, 5);
                failed[key] = 1;
            }
        }
        if (draw(seed, 40) == 0)
            return; /* dies */
        if (settle(d, o->seq, o->attempts, to) && to.phase == ONCE__ROW_DONE)
            sql(d, NULL, "INSERT INTO @effect(id) VALUES('%lld')",
                (long long)o->seq);
    }
}

static void claimer(unsigned seed)
{
    struct once__outbox_ask ask = {"r", 4, SHORT_MS, 0, 0, 1};
    struct db d = db_open();
    struct once__outgoing_list l;
    long left = 1;

    while (left > 0) {
        int rc = once__outbox_claim(&d.tx, &ask, &l, NULL);

        T_OK(rc == ONCE_OK || rc == ONCE_EABORTED);
        if (l.n == 0) {
            nap_ms(1);
            left =
                number(&d, "SELECT %d-count(*) FROM @effect", WRITERS * EACH);
        }
        carry(&d, &l, &seed);
        once__outgoing_clear(&l);
    }
    _exit(t__bad != 0);
}

static void first_arrivals_of_a_key_are_in_order(void)
{
    struct db d = db_new();
    pid_t pids[WRITERS + CLAIMERS];
    int i, status;

    sql(&d, NULL, "CREATE TABLE @sent(%s)",
        as(&d, "n bigserial,k text,seq bigint",
           "n INTEGER PRIMARY KEY AUTOINCREMENT,k,seq",
           "n BIGINT PRIMARY KEY AUTO_INCREMENT,k TEXT,seq BIGINT"));
    fflush(stdout);
    for (i = 0; i < WRITERS + CLAIMERS; i++)
        if ((pids[i] = fork()) == 0) {
            if (i < WRITERS)
                writer((unsigned)i);
            claimer((unsigned)i);
        }
    for (i = 0; i < WRITERS + CLAIMERS; i++) {
        T_EQ(waitpid(pids[i], &status, 0), pids[i]);
        T_EQ(status, 0);
    }
    T_EQ(number(&d, "SELECT count(*) FROM (SELECT seq,lag(seq) OVER"
                    " (PARTITION BY k ORDER BY first) AS earlier FROM"
                    " (SELECT k,seq,min(n) AS first FROM @sent GROUP BY k,seq)"
                    " x) y WHERE earlier>seq"),
         0);
    T_EQ(number(&d, "SELECT count(DISTINCT seq) FROM @sent"), WRITERS * EACH);
    T_EQ(number(&d, "SELECT count(DISTINCT id) FROM @effect"), WRITERS * EACH);
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), WRITERS * EACH);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 0);
    db_end(&d);
}

enum { STOPPED = 9000, PAIRS = 100000, CLAIMS = 60 };

/* One row of each pair waits, and the other has to wait for it. */
static void pair_writer(void)
{
    struct db d = db_open();
    int i;

    for (i = 0; i < PAIRS; i++)
        sql(&d, NULL,
            "INSERT INTO @outbox (phase,kept,due_ms,at_ms,route,id,key,type,"
            "headers,body) VALUES (1,false,99999999999999,1,'r','a','e%d','',"
            "'',''),(0,false,0,1,'r','b','e%d','','','')",
            i, i);
    _exit(0);
}

/* A claim looks by several statements, and programs commit meanwhile. */
static void a_row_that_waits_is_not_overtaken_while_a_claim_looks(void)
{
    struct db d = db_new();
    pid_t pid;
    int i;

    sql(&d, NULL,
        "INSERT INTO @outbox (phase,kept,due_ms,at_ms,route,id,key,type,"
        "headers,body) SELECT 1,false,99999999999999,1,'r','x','s'||i,'','',''"
        " FROM generate_series(1,%d) i",
        STOPPED);
    fflush(stdout);
    if ((pid = fork()) == 0)
        pair_writer();
    for (i = 0; i < CLAIMS; i++) {
        struct once__outgoing_list l = take(&d, &any);

        once__outgoing_clear(&l);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    T_OK(number(&d, "SELECT count(*) FROM @outbox WHERE key LIKE 'e%%'") > 0);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox b WHERE b.attempts>0 AND"
                    " EXISTS(SELECT FROM @outbox p WHERE p.key=b.key AND"
                    " p.phase=1 AND p.seq<b.seq)"),
         0);
    db_end(&d);
}

/* Or the row with the higher seq might be committed, and leave, first. */
static void writers_of_a_key_wait_for_each_other(void)
{
    struct db d = db_new(), other = db_open();
    once_message m = ONCE_MESSAGE_INIT;

    m.route = "r";
    m.key = "k";
    begin(&d);
    T_EQ(once_emit(&d.tx, &m, NULL, NULL), ONCE_OK);
    begin(&other);
    sql(&other, NULL, "SET lock_timeout=100");
    m.key = "other";
    T_EQ(once_emit(&other.tx, &m, NULL, NULL), ONCE_OK);
    m.key = "k";
    T_EQ(once_emit(&other.tx, &m, NULL, NULL), ONCE_EABORTED);
    roll_back(&other);
    commit(&d);
    db_close(&other);
    db_end(&d);
}

/* A claimer that looks while a settle is under way must wait for it. */
static void claiming_and_settling_wait_for_each_other(void)
{
    struct db d = db_new(), other = db_open();
    struct once__outgoing_list l;

    emit(&d, NULL, NULL);
    expect(&d, &any, "1");
    begin(&d);
    sql(&d, NULL,
        "SELECT @outbox_settle_1(0,'{1}','{1}','{1}','{0}','{0}','{0}',"
        "'{0}','{NULL}','{x}')");
    sql(&other, NULL, "SET lock_timeout=100");
    sql(&other, NULL, "ALTER FUNCTION @outbox_claim_1 RESET lock_timeout");
    sql(&other, NULL, "ALTER FUNCTION @outbox_decide_1 RESET lock_timeout");
    T_EQ(once__outbox_claim(&other.tx, &any, &l, NULL), ONCE_EABORTED);
    commit(&d);
    begin(&d);
    sql(&d, NULL, "SELECT @outbox_claim_1('r',1,1000,false,false,true)");
    T_EQ(once__outbox_claim(&other.tx, &any, &l, NULL), ONCE_EABORTED);
    T_EQ(once__outbox_decide(&other.tx, 1, 0, 2, ONCE__OUTBOX_DROP, "", NULL),
         ONCE_EABORTED);
    commit(&d);
    db_close(&other);
    db_end(&d);
}

/* PostgreSQL: rows that are done keep none waiting, and their lease keeps the claim
 * from them. */
static void a_claim_does_not_wait_for_rows_that_are_done(void)
{
    struct once__outbox_ask ask = {"r", 4, LEASE_MS, 0, 0, 0};
    struct db d = db_new(), other = db_open();
    struct once__outgoing_list l;
    struct once__settlement s[4];
    int i;

    for (i = 0; i < 6; i++)
        emit(&d, "k", NULL);
    l = take(&d, &ask);
    T_EQ(l.n, 4);
    T_OK(l.lease > 0);
    begin(&d);
    for (i = 0; i < 4; i++)
        s[i] = (struct once__settlement){i + 1, 1, {2, 0, 0, 0}, 0, {NULL, 0},
                                         NULL,  7, l.lease};
    sql(&d, NULL,
        "SELECT @outbox_settle_1(%lld,'{1,2,3,4}','{1,1,1,1}','{2,2,2,2}',"
        "'{0,0,0,0}','{0,0,0,0}','{0,0,0,0}','{0,0,0,0}',"
        "'{NULL,NULL,NULL,NULL}','{x,x,x,x}')",
        (long long)l.lease);
    expect(&other, &ask, ""); /* not visible yet: the key is busy */
    commit(&d);
    expect(&other, &ask, "56");
    once__outgoing_clear(&l);
    T_EQ(once__outbox_settle(&d.tx, s, 4, NULL), ONCE_OK); /* repeated */
    for (i = 0; i < 4; i++)
        T_EQ(s[i].ours, 0);
    db_close(&other);
    db_end(&d);
}

/* The relay that had it died: its rows are one attempt further, and in doubt since
 * then. */
static void a_lease_of_many_that_ran_out_counts_for_each(void)
{
    struct once__outbox_ask ask = {"r", 4, LEASE_MS, 0, 0, 0};
    struct db d = db_new();
    struct once__outgoing_list l;
    int i;

    for (i = 0; i < 5; i++)
        emit(&d, NULL, NULL);
    l = take(&d, &ask);
    T_OK(l.lease > 0);
    T_EQ(l.rows[3].attempts, 1);
    T_EQ(l.rows[3].row.doubt, 1);
    T_EQ(decide(&d, 4, 0, 1, ONCE__OUTBOX_DROP), ONCE_REFUSED);
    T_EQ(decide(&d, 4, 0, 0, ONCE__OUTBOX_DROP), ONCE_REFUSED);
    sql(&d, NULL, "UPDATE @relay_lease SET at_ms=5,until_ms=1");
    T_EQ(settle_of(&d, l.lease, 1, 1, done),
         1); /* late, and nobody else came */
    T_EQ(decide(&d, 4, 0, 0, ONCE__OUTBOX_DROP), ONCE_REFUSED);
    T_EQ(decide(&d, 4, 0, 1, ONCE__OUTBOX_DROP), ONCE_OK);
    T_EQ(of(&d, "doubt_ms", 2), 5);
    T_EQ(settle_of(&d, l.lease, 2, 1, done), 1);
    expect(&d, &ask, "35");
    T_EQ(of(&d, "attempts", 3), 2);
    T_EQ(of(&d, "attempts", 5), 1);
    T_EQ(settle_of(&d, l.lease, 3, 1, done), 0);
    T_EQ(settle(&d, 3, 2, done), 1);
    once__outgoing_clear(&l);
    db_end(&d);
}

static void a_lease_of_many_is_fenced(void)
{
    struct once__outbox_ask ask = {"r", 4, LEASE_MS, 0, 0, 0};
    struct db d = db_new();
    struct once__outgoing_list first, second;
    int i;

    for (i = 0; i < 4; i++)
        emit(&d, NULL, NULL);
    first = take(&d, &ask);
    sql(&d, NULL, "UPDATE @relay_lease SET until_ms=1");
    second = take(&d, &ask);
    T_OK(first.lease > 0 && second.lease > first.lease);
    T_EQ(second.n, 4);
    T_EQ(second.rows[0].attempts, 2);
    T_EQ(settle_of(&d, first.lease, 1, 1, done), 0);
    T_EQ(settle_of(&d, second.lease, 1, 1, done), 0);
    T_EQ(settle_of(&d, second.lease, 1, 2, done), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 3);
    expect(&d, &ask, "");
    once__outgoing_clear(&first);
    once__outgoing_clear(&second);
    db_end(&d);
}

/* ---- Wake-up ------------------------------------------------------------ */

enum { FOR_EVER_MS = 60000 };

/* Waits while a child emits; 1: it was woken. */
static int is_woken(struct db *d)
{
    struct timespec from, to;
    int status;
    pid_t pid;

    fflush(stdout);
    if ((pid = fork()) == 0) {
        struct db own = db_open();

        nap_ms(50);
        emit(&own, NULL, NULL);
        _exit(0);
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &from);
    T_EQ(once__outbox_wait(&d->tx, "r", -1, FOR_EVER_MS, NULL), ONCE_OK);
    (void)clock_gettime(CLOCK_MONOTONIC, &to);
    (void)waitpid(pid, &status, 0);
    return to.tv_sec - from.tv_sec < FOR_EVER_MS / 1000 - 1;
}

static void a_relay_that_sleeps_is_woken(void)
{
    struct db d = db_new();
    int pipes[2];
    once_error err = {0, ""};

    T_EQ(once__outbox_idle(&d.tx, "r", 1, &err), ONCE_OK);
    T_EQ(once__outbox_idle(&d.tx, "r", 1, &err), ONCE_OK);
    T_OK(is_woken(&d));
    T_OK(is_woken(&d));
    T_EQ(once__outbox_wait(&d.tx, "r", -1, 20, NULL), ONCE_OK); /* by itself */
    assert(pipe(pipes) == 0);
    assert(write(pipes[1], "x", 1) == 1);
    T_EQ(once__outbox_wait(&d.tx, "r", pipes[0], 10 * FOR_EVER_MS, NULL),
         ONCE_OK);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    begin(&d);
    T_EQ(once__outbox_wait(&d.tx, "r", -1, 0, NULL), ONCE_ETX);
    roll_back(&d);
    db_end(&d);
}

/* Whoever waits at a file that was replaced by its backup keeps away from the
 * journal of what is written to the new one, which has its name. */
static void a_file_that_was_replaced_is_looked_at_no_more(void)
{
    struct db d = db_new(), other;
    char old[sizeof(place) + 8];
    sqlite3 *copy;

    sql(&d, NULL, "PRAGMA journal_mode=DELETE");
    (void)snprintf(old, sizeof(old), "%s-old", place);
    assert(rename(place, old) == 0);
    assert(sqlite3_open(place, &copy) == SQLITE_OK);
    other = (struct db){NULL, copy, NULL, ONCE_TX_INIT};
    other.tx.sqlite = copy;
    sql(&other, NULL, "PRAGMA cache_size=1"); /* so that it is written early */
    begin(&other);
    sql(&other, NULL, "CREATE TABLE more(id)");
    sql(&other, NULL,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE "
        "i<200) INSERT INTO more SELECT zeroblob(3000) FROM n");
    T_EQ(once__outbox_wait(&d.tx, "r", -1, 20, NULL), ONCE_OK);
    T_EQ(sqlite3_exec(copy, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    db_close(&other);
    db_end(&d);
    (void)unlink(old);
}

/* What was emitted between saying so and waiting is not missed. */
static void a_relay_listens_before_it_sleeps(void)
{
    struct db d = db_new(), other = db_open();

    T_EQ(once__outbox_idle(&d.tx, "r", 1, NULL), ONCE_OK);
    emit(&other, NULL, NULL);
    T_EQ(PQconsumeInput(d.pg), 1);
    T_EQ(once__outbox_wait(&d.tx, "r", -1, 10 * FOR_EVER_MS, NULL), ONCE_OK);
    T_EQ(once__outbox_idle(&d.tx, "r", 0, NULL), ONCE_OK);
    emit(&other, NULL, NULL);
    sql(&d, NULL, "SELECT 1");
    T_OK(PQnotifies(d.pg) == NULL); /* awake: nobody is told */
    db_close(&other);
    db_end(&d);
}

/* Each COMMIT with a NOTIFY waits for all others. */
static void a_relay_that_died_in_its_sleep_is_told_no_more(void)
{
    struct db d = db_new(), other = db_open();

    T_EQ(once__outbox_idle(&d.tx, "r", 1, NULL), ONCE_OK);
    sql(&other, NULL, "UPDATE @relay_idle SET until_ms=until_ms-31000");
    emit(&other, NULL, NULL);
    sql(&d, NULL, "SELECT 1");
    T_OK(PQnotifies(d.pg) == NULL);
    T_EQ(once__outbox_idle(&d.tx, "r", 1, NULL), ONCE_OK); /* it lives */
    emit(&other, NULL, NULL);
    T_EQ(once__outbox_wait(&d.tx, "r", -1, 10 * FOR_EVER_MS, NULL), ONCE_OK);
    db_close(&other);
    db_end(&d);
}

/* ---- Operators ---------------------------------------------------------- */

static void each_phase_has_its_decisions(void)
{
    static const char fits[3][6] = {
        /* ready, waiting, done, dead, indeterminate */
        [ONCE__OUTBOX_RETRY] = {0, 1, 0, 1, 1},
        [ONCE__OUTBOX_DROP] = {1, 1, 0, 1, 1},
        [ONCE__OUTBOX_RESOLVE] = {0, 0, 0, 1, 1}};
    struct db d = db_new();
    int action, phase, seq = 0;

    for (action = 0; action < 3; action++)
        for (phase = 0; phase < 5; phase++) {
            int rc, may = fits[action][phase];

            emit(&d, NULL, NULL);
            seq++;
            sql(&d, NULL,
                "UPDATE @outbox SET phase=%d,attempts=7,doubt=2,refused=4,"
                "lease_ms=%d,due_ms=5 WHERE seq=%d",
                phase, phase == 4, seq);
            rc = decide(&d, seq, phase, 7, action);
            T_EQ(rc, may ? ONCE_OK : ONCE_REFUSED);
            if (!may) {
                T_EQ(of(&d, "phase", seq), phase);
                T_EQ(of(&d, "refused", seq), 4);
                continue;
            }
            T_EQ(decide(&d, seq, phase, 7, action),
                 action == ONCE__OUTBOX_DROP ? ONCE_FREE : ONCE_REFUSED);
            if (action == ONCE__OUTBOX_DROP)
                continue;
            T_EQ(of(&d, "phase", seq), action == ONCE__OUTBOX_RETRY
                                           ? ONCE__ROW_READY
                                           : ONCE__ROW_DONE);
            T_EQ(of(&d, "attempts", seq), 7);
            T_EQ(of(&d, "doubt", seq), action == ONCE__OUTBOX_RETRY ? 2 : 0);
            T_EQ(of(&d, "refused", seq), action == ONCE__OUTBOX_RETRY ? 0 : 4);
            T_EQ(settle(&d, seq, 7, done), 0); /* a late answer */
            T_EQ(number(&d,
                        "SELECT count(*) FROM @outbox WHERE seq=%d AND"
                        " error='because'",
                        seq),
                 1);
        }
    db_end(&d);
}

static void a_decision_is_about_what_was_seen(void)
{
    struct db d = db_new();

    emit(&d, NULL, NULL);
    T_EQ(decide(&d, 2, 0, 0, ONCE__OUTBOX_DROP), ONCE_FREE);
    T_EQ(decide(&d, 1, 3, 0, ONCE__OUTBOX_DROP), ONCE_REFUSED);
    T_EQ(decide(&d, 1, 0, 1, ONCE__OUTBOX_DROP), ONCE_REFUSED);
    expect(&d, &any, "1");
    T_EQ(decide(&d, 1, 0, 0, ONCE__OUTBOX_DROP), ONCE_REFUSED);
    T_EQ(decide(&d, 1, 0, 1, ONCE__OUTBOX_DROP), ONCE_REFUSED); /* leased */
    T_EQ(settle(&d, 1, 1, dead), 1);
    T_EQ(decide(&d, 1, 3, 2, ONCE__OUTBOX_RETRY), ONCE_REFUSED);
    T_EQ(decide(&d, 1, 4, 1, ONCE__OUTBOX_RETRY), ONCE_REFUSED);
    T_EQ(decide(&d, 1, 3, 1, ONCE__OUTBOX_RETRY), ONCE_OK);
    expect(&d, &any, "1");
    T_EQ(of(&d, "attempts", 1), 2);
    expire(&d);
    T_EQ(decide(&d, 1, 0, 2, ONCE__OUTBOX_DROP), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 0);
    db_end(&d);
}

static void a_step_of_a_saga_is_not_dropped(void)
{
    struct db d = db_new();

    emit(&d, NULL, NULL);
    sql(&d, NULL, "UPDATE @outbox SET phase=3,saga='g'");
    T_EQ(decide(&d, 1, 3, 0, ONCE__OUTBOX_DROP), ONCE_REFUSED);
    T_EQ(decide(&d, 1, 3, 0, ONCE__OUTBOX_RETRY), ONCE_OK);
    db_end(&d);
}

static void rows_are_listed_without_their_bodies(void)
{
    struct once__outbox_filter all = {NULL, -1, 0, 2};
    struct db d = db_new();
    struct once__outgoing_list l;

    emit(&d, NULL, NULL);
    emit(&d, "k", "mine");
    emit(&d, NULL, NULL);
    sql(&d, NULL,
        "UPDATE @outbox SET phase=3,error='why',status=400 WHERE seq=2");
    T_EQ(once__outbox_list(&d.tx, &all, &l, NULL), ONCE_OK);
    T_EQ(l.n, 2);
    if (l.n == 2) {
        T_EQ(l.rows[0].seq, 1);
        T_EQ(l.rows[1].phase, ONCE__ROW_DEAD);
        T_EQ(l.rows[1].status, 400);
        T_STR(l.rows[1].error, "why");
        T_STR(l.rows[1].m.id, "mine");
        T_EQ(l.rows[1].m.body.size, 0);
        T_OK(l.rows[1].at_ms > 0 && l.now_ms >= l.rows[1].at_ms);
    }
    once__outgoing_clear(&l);
    all.after = 2;
    T_EQ(once__outbox_list(&d.tx, &all, &l, NULL), ONCE_OK);
    T_EQ(l.n, 1);
    once__outgoing_clear(&l);
    all = (struct once__outbox_filter){"r", ONCE__ROW_DEAD, 0, 10};
    T_EQ(once__outbox_list(&d.tx, &all, &l, NULL), ONCE_OK);
    T_EQ(l.n, 1);
    once__outgoing_clear(&l);
    all.route = "other";
    T_EQ(once__outbox_list(&d.tx, &all, &l, NULL), ONCE_OK);
    T_EQ(l.n, 0);
    once__outgoing_clear(&l);
    T_EQ(once__outbox_get(&d.tx, 2, &l, NULL), ONCE_OK);
    T_EQ(l.n, 1);
    if (l.n == 1)
        T_EQ(l.rows[0].m.body.size, 4);
    once__outgoing_clear(&l);
    sql(&d, NULL, "DELETE FROM @outbox WHERE seq=2");
    T_EQ(once__outbox_get(&d.tx, 2, &l, NULL), ONCE_OK);
    T_EQ(l.n, 0);
    once__outgoing_clear(&l);
    db_end(&d);
}

static void rows_are_counted_by_route_and_phase(void)
{
    struct once__outbox_count *c = NULL;
    struct db d = db_new();
    size_t n = 9, i;

    T_EQ(once__outbox_stats(&d.tx, 1, &c, &n, NULL), ONCE_OK);
    T_EQ(n, 0);
    free(c);
    for (i = 0; i < 7; i++)
        emit(&d, NULL, NULL);
    expect(&d, &(struct once__outbox_ask){"r", 1, LEASE_MS, 0, 0, 1}, "1");
    sql(&d, NULL, "UPDATE @outbox SET phase=seq-2 WHERE seq>2");
    sql(&d, NULL, "UPDATE @outbox SET phase=2,route='a',at_ms=1 WHERE seq=7");
    sql(&d, NULL, "UPDATE @outbox SET at_ms=%llu WHERE seq=5",
        (unsigned long long)now_ms() - 5000);
    T_EQ(once__outbox_stats(&d.tx, 1, &c, &n, NULL), ONCE_OK);
    T_EQ(n, 2);
    if (n == 2) {
        T_STR(c[0].route, "a");
        T_EQ(c[0].n[ONCE__ROW_DONE], 1);
        T_EQ(c[0].oldest_ms, 0);
        T_STR(c[1].route, "r");
        T_EQ(c[1].n[ONCE__ROW_READY], 2);
        T_EQ(c[1].leased, 1);
        for (i = 1; i < 5; i++)
            T_EQ(c[1].n[i], 1);
        T_OK(c[1].oldest_ms >= 5000 && c[1].oldest_ms < 3600000);
    }
    free(c);
    T_EQ(once__outbox_stats(&d.tx, 0, &c, &n, NULL), ONCE_OK);
    T_EQ(n, 1); /* without those that are done */
    if (n == 1) {
        T_STR(c[0].route, "r");
        T_EQ(c[0].n[ONCE__ROW_READY], 2);
        T_EQ(c[0].leased, 1);
        T_EQ(c[0].n[ONCE__ROW_DONE], 0);
        T_EQ(c[0].n[ONCE__ROW_DEAD], 1);
    }
    free(c);
    db_end(&d);
}

static size_t strays(struct db *d, uint64_t age_ms, struct once__stray out[])
{
    size_t n = 0;

    T_EQ(once__outbox_strays(&d->tx, age_ms, out, &n, NULL), ONCE_OK);
    return n;
}

static void a_route_without_a_relay_is_named(void)
{
    struct once__stray out[ONCE__STRAYS_MAX];
    struct db d = db_new();
    const char *seen = d.pg != NULL ? "relay_idle" : "relay_route";

    T_EQ(strays(&d, 0, out), 0);
    emit(&d, NULL, NULL);
    emit(&d, NULL, NULL);
    T_EQ(strays(&d, 60000, out), 0); /* a relay may be on its way */
    T_EQ(strays(&d, 0, out), 1);
    T_STR(out[0].route, "r");
    T_EQ(out[0].rows, 2);
    T_EQ(out[0].seen_ms, -1);
    sql(&d, NULL, "UPDATE @outbox SET phase=1,due_ms=%llu WHERE seq=1",
        (unsigned long long)now_ms() + 600000);
    sql(&d, NULL, "UPDATE @outbox SET phase=2 WHERE seq=2");
    T_EQ(strays(&d, 0, out), 0); /* not due, and done */
    sql(&d, NULL, "UPDATE @outbox SET due_ms=%llu WHERE seq=1",
        (unsigned long long)now_ms() - 61000);
    T_EQ(strays(&d, 60000, out), 1);
    T_EQ(once__outbox_here(&d.tx, "r", NULL), ONCE_OK);
    T_EQ(once__outbox_here(&d.tx, "r", NULL), ONCE_OK);
    T_EQ(strays(&d, 0, out), 0);
    sql(&d, NULL, "UPDATE @%s SET seen_ms=%llu", seen,
        (unsigned long long)now_ms() - 61000);
    T_EQ(strays(&d, 0, out), 1);
    T_OK(out[0].seen_ms >= 61000 && out[0].seen_ms < 3600000);
    T_EQ(once__outbox_here(&d.tx, "", NULL), ONCE_EINVAL);
    db_end(&d);
}

static void done_rows_alone_are_purged(void)
{
    struct db d = db_new();
    uint64_t removed = 0;
    int i;

    for (i = 0; i < 7; i++)
        emit(&d, NULL, NULL);
    sql(&d, NULL, "UPDATE @outbox SET phase=seq-1,due_ms=5 WHERE seq<6");
    sql(&d, NULL, "UPDATE @outbox SET phase=2,due_ms=%llu WHERE seq=6",
        (unsigned long long)now_ms() - 1000);
    sql(&d, NULL, "UPDATE @outbox SET phase=2,due_ms=5,saga='g' WHERE seq=7");
    T_EQ(once__outbox_purge(&d.tx, 60000, &removed, NULL), ONCE_OK);
    T_EQ(removed, 1);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 6);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE seq=3"), 0);
    T_EQ(once__outbox_purge(&d.tx, 0, &removed, NULL), ONCE_OK);
    T_EQ(removed, 1);
    db_end(&d);
}

static void many_done_rows_are_purged_in_steps(void)
{
    struct db d = db_new();
    uint64_t removed = 0;

    emit(&d, NULL, NULL);
    sql(&d, NULL,
        "INSERT INTO "
        "@outbox(phase,kept,due_ms,at_ms,route,id,type,headers,body)"
        " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE"
        " i<2500) SELECT 2,kept,5,5,route,id,type,headers,body"
        " FROM @outbox,n");
    T_EQ(once__outbox_purge(&d.tx, 1000, &removed, NULL), ONCE_OK);
    T_EQ(removed, 2500);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 1);
    db_end(&d);
}

/* ---- Random histories, against a model ------------------------------------ */

enum { MODEL_ROWS = 60, MODEL_STEPS = 500, HELD = 400 };

enum { NO_LEASE, LEASED, EXPIRED };

struct model_row {
    int gone, phase, key, kept, lease; /* key 0: none */
    int64_t number; /* of its lease, which others may have, too; 0: its own */
    uint32_t attempts, doubt, refused;
    int due; /* the order in which rows became due; 0: not yet */
};

struct model {
    struct model_row rows[MODEL_ROWS]; /* row i has seq i + 1 */
    int n, due;
    int many; /* beside them there are very many rows of other keys that wait */
    struct {
        int row;
        uint32_t attempts;
        int64_t lease;
    } held[HELD]; /* what was claimed, settled or not */
    int n_held;
};

static int is_stopped(const struct model *m, int row, int pass_)
{
    int i;

    for (i = 0; i < row; i++) {
        const struct model_row *r = &m->rows[i];

        if (!r->gone && r->key != 0 && r->key == m->rows[row].key &&
            (r->phase == ONCE__ROW_WAITING ||
             (!pass_ && (r->phase == ONCE__ROW_DEAD ||
                         r->phase == ONCE__ROW_INDETERMINATE))))
            return 1;
    }
    return 0;
}

static void model_due(struct model *m, size_t n)
{
    int i, first;

    for (; n > 0; n--) {
        for (i = 0, first = -1; i < m->n; i++)
            if (!m->rows[i].gone && m->rows[i].phase == ONCE__ROW_WAITING &&
                m->rows[i].due > 0 &&
                (first < 0 || m->rows[i].due < m->rows[first].due))
                first = i;
        if (first < 0)
            return;
        m->rows[first].phase = ONCE__ROW_READY;
    }
}

/* One look of a claim: at `look` rows from `*from` on, of those that are not
 * stopped, or where very many are, of all; but not at keys that an earlier look
 * found busy. Rows whose lease ran out are held; the others are added to `got`.
 * How many rows it has seen. */
static int model_look(struct model *m, const struct once__outbox_ask *ask,
                      int look, int *from, int *busy, char *got, int *n)
{
    int waits[8] = {0}, stopped[MODEL_ROWS], seen = 0, i;

    for (i = 0; i < m->n; i++)
        stopped[i] = is_stopped(m, i, ask->pass);
    for (i = *from; i < m->n && seen < look; i++) {
        struct model_row *r = &m->rows[i];
        int late = ask->hold && r->lease == EXPIRED;

        if (r->gone || r->phase != ONCE__ROW_READY)
            continue;
        seen += m->many;
        if (stopped[i] || busy[r->key])
            continue;
        seen += !m->many;
        if (r->lease == LEASED || (late && !ask->pass))
            waits[r->key] = r->key != 0;
        if (r->lease != LEASED && !late && !waits[r->key] && *n < (int)ask->n)
            got[(*n)++] = (char)i;
        if (late)
            r->phase = ONCE__ROW_INDETERMINATE;
    }
    *from = i;
    for (i = 0; i < 8; i++)
        busy[i] |= waits[i];
    return seen;
}

static int model_claim(struct model *m, const struct once__outbox_ask *ask,
                       int64_t lease, char *got)
{
    int i, n = 0, from = 0, look = 10 * (int)ask->n, busy[8] = {0};

    model_due(m, ask->n);
    while (model_look(m, ask, look, &from, busy, got, &n) == look && n == 0)
        look *= 10;
    for (i = 0; i < n; i++) {
        struct model_row *r = &m->rows[(int)got[i]];

        r->attempts++;
        r->doubt++;
        r->lease = LEASED;
        r->number = lease;
        m->held[m->n_held % HELD].row = got[i];
        m->held[m->n_held % HELD].lease = lease;
        m->held[m->n_held++ % HELD].attempts = r->attempts;
    }
    return n;
}

static void play_claim(struct db *d, struct model *m, unsigned *seed)
{
    static const size_t sizes[] = {1, 1, 2, 50};
    struct once__outbox_ask ask = {"r",
                                   sizes[draw(seed, 4)],
                                   LEASE_MS,
                                   draw(seed, 4) == 0,
                                   draw(seed, 4) == 0,
                                   draw(seed, 2) == 0};
    struct once__outgoing_list l = take(d, &ask);
    char got[MODEL_ROWS];
    int i, n = model_claim(m, &ask, l.lease, got);

    T_EQ(l.n, n);
    for (i = 0; i < n && i < (int)l.n; i++)
        T_EQ(l.rows[i].seq, got[i] + 1);
    once__outgoing_clear(&l);
}

static void play_settle(struct db *d, struct model *m, unsigned *seed)
{
    static const struct once__row_next *const ends[] = {
        &done, &done, &unsent, &silent, &refused, &dead, &unknown};
    struct once__row_next to = *ends[draw(seed, 7)];
    int h = m->n_held == 0 ? -1 : (int)draw(seed, (unsigned)m->n_held);
    struct model_row *r;
    int ours;

    if (h < 0)
        return;
    if (to.phase == ONCE__ROW_WAITING)
        to.wait_ms = 3600000;
    r = &m->rows[m->held[h % HELD].row];
    ours = !r->gone && r->attempts == m->held[h % HELD].attempts &&
           r->lease != NO_LEASE &&
           (r->phase == ONCE__ROW_READY || r->phase == ONCE__ROW_INDETERMINATE);
    T_EQ(settle_of(d, m->held[h % HELD].lease, m->held[h % HELD].row + 1,
                   m->held[h % HELD].attempts, to),
         ours);
    if (!ours)
        return;
    r->phase = to.phase;
    r->gone = to.phase == ONCE__ROW_DONE && !r->kept;
    r->doubt =
        to.phase == ONCE__ROW_DONE ? 0 : r->doubt - (uint32_t)to.harmless;
    r->refused += (uint32_t)to.refused;
    r->lease = NO_LEASE;
    r->due = 0;
}

static void play_decide(struct db *d, struct model *m, unsigned *seed)
{
    int i = (int)draw(seed, (unsigned)m->n), action = (int)draw(seed, 3);
    struct model_row *r = &m->rows[i];
    int phase = draw(seed, 4) == 0 ? (int)draw(seed, 5) : r->phase;
    uint32_t attempts = r->attempts + (draw(seed, 4) == 0);
    int seen = phase == r->phase && attempts == r->attempts &&
               !(r->phase == ONCE__ROW_READY && r->lease == LEASED);
    int stops =
        r->phase == ONCE__ROW_DEAD || r->phase == ONCE__ROW_INDETERMINATE;
    int fits = action == ONCE__OUTBOX_DROP ? r->phase != ONCE__ROW_DONE
               : action == ONCE__OUTBOX_RESOLVE
                   ? stops
                   : stops || r->phase == ONCE__ROW_WAITING;

    T_EQ(decide(d, i + 1, phase, attempts, action), r->gone ? ONCE_FREE
                                                    : seen && fits
                                                        ? ONCE_OK
                                                        : ONCE_REFUSED);
    if (r->gone || !seen || !fits)
        return;
    r->lease = NO_LEASE;
    r->gone = action == ONCE__OUTBOX_DROP;
    r->phase = action == ONCE__OUTBOX_RETRY ? ONCE__ROW_READY : ONCE__ROW_DONE;
    if (action == ONCE__OUTBOX_RETRY)
        r->refused = 0;
    else
        r->doubt = 0;
}

static void play_emit(struct db *d, struct model *m, unsigned *seed)
{
    static const char *const keys[] = {NULL, "a", "b", "c"};
    struct model_row *r = &m->rows[m->n];
    char id[16];

    if (m->n == MODEL_ROWS)
        return;
    m->n++;
    *r = (struct model_row){.key = (int)draw(seed, 4),
                            .kept = draw(seed, 3) == 0};
    (void)snprintf(id, sizeof(id), "id%d", m->n);
    emit(d, keys[r->key], r->kept ? id : NULL);
}

static void model_expire(struct model *m, int64_t lease)
{
    int i;

    for (i = 0; i < m->n; i++)
        if (m->rows[i].lease == LEASED && m->rows[i].number == lease)
            m->rows[i].lease = EXPIRED;
}

/* Time goes by: a lease runs out, or a row is due. */
static void play_time(struct db *d, struct model *m, unsigned *seed)
{
    int i = (int)draw(seed, (unsigned)m->n);
    struct model_row *r = &m->rows[i];

    if (r->gone)
        return;
    if (r->lease == LEASED && r->number != 0) {
        model_expire(m, r->number);
        sql(d, NULL, "UPDATE @relay_lease SET until_ms=1 WHERE no=%lld",
            (long long)r->number);
    } else if (r->lease == LEASED) {
        r->lease = EXPIRED;
        sql(d, NULL, "UPDATE @outbox SET lease_ms=1 WHERE seq=%d", i + 1);
    } else if (r->phase == ONCE__ROW_WAITING && r->due == 0) {
        r->due = ++m->due;
        sql(d, NULL, "UPDATE @outbox SET due_ms=%d WHERE seq=%d", r->due,
            i + 1);
    }
}

static void compare(struct db *d, const struct model *m)
{
    struct once__outbox_filter all = {NULL, -1, 0, MODEL_ROWS};
    struct once__outgoing_list l;
    size_t at = 0;
    int i;

    T_EQ(once__outbox_list(&d->tx, &all, &l, NULL), ONCE_OK);
    while (l.n > 0 && l.rows[l.n - 1].seq > MODEL_ROWS)
        l.n--;
    for (i = 0; i < m->n; i++) {
        const struct model_row *r = &m->rows[i];
        const struct once__outgoing *o = &l.rows[at];

        if (r->gone)
            continue;
        if (!T_OK(at < l.n && o->seq == i + 1))
            break;
        at++;
        T_EQ(o->phase, r->phase);
        T_EQ(o->attempts, r->attempts);
        T_EQ(o->row.doubt, r->doubt);
        T_EQ(o->row.refused, r->refused);
        T_EQ(o->lease_ms == 0   ? NO_LEASE
             : o->lease_ms == 1 ? EXPIRED
                                : LEASED,
             r->lease);
    }
    T_EQ(at, l.n);
    once__outgoing_clear(&l);
}

static void play(struct db *d, struct model *m, unsigned seed)
{
    unsigned s = seed;
    int step;

    play_emit(d, m, &s);
    for (step = 0; step < MODEL_STEPS && t__bad == 0; step++) {
        switch (draw(&s, 8)) {
        case 0:
        case 1:
            play_emit(d, m, &s);
            break;
        case 2:
        case 3:
            play_claim(d, m, &s);
            break;
        case 4:
        case 5:
            play_settle(d, m, &s);
            break;
        case 6:
            play_time(d, m, &s);
            break;
        default:
            if (draw(&s, 3) == 0)
                play_decide(d, m, &s);
        }
        compare(d, m);
    }
    if (t__bad != 0)
        printf("#   seed %u, step %d\n", seed, step);
}

/* More rows than a first look has: they are not looked at again, and what they
 * wait for is not forgotten. */
static void rows_behind_a_key_under_way_wait_however_many(void)
{
    struct once__outbox_ask one = {"r", 1, LEASE_MS, 0, 0, 1};
    struct db d = db_new();
    const char *key[] = {"a\"\\", "b", "c"};
    int i, of_b;

    for (i = 0; i < 400; i++) {
        emit(&d, key[i == 250 ? 1 : i == 390 ? 2 : 0], NULL);
        if (i == 0)
            expect(&d, &one, "1");
    }
    emit(&d, key[1], NULL);
    for (i = 0; i < 2; i++) {
        struct once__outgoing_list l = take(&d, &one);

        T_EQ(l.n, 1);
        of_b = l.n == 1 && strcmp(l.rows[0].m.key, "b") == 0;
        T_EQ(of_b, i == 0);
        once__outgoing_clear(&l);
    }
    expect(&d, &one, "");
    T_EQ(settle(&d, 251, 1, done), 1);
    T_EQ(settle(&d, 1, 1, done), 1);
    expect(&d, &one, "2");
    db_end(&d);
}

static void a_random_history_is_that_of_the_model(void)
{
    unsigned seed;

    for (seed = 1; seed <= 6 && t__bad == 0; seed++) {
        struct db d = db_new();
        struct model m = {.many = 0};

        play(&d, &m, seed);
        db_end(&d);
    }
}

/* Then a claim looks at the keys alone that come next. */
static void a_random_history_beside_very_many_waiting_rows(void)
{
    unsigned seed;

    for (seed = 1; seed <= 6 && t__bad == 0; seed++) {
        struct db d = db_new();
        struct model m = {.many = 1};

        sql(&d, NULL,
            "INSERT INTO @outbox OVERRIDING SYSTEM VALUE"
            " SELECT 1000+i,1,false,0,0,0,0,0,99999999999999,1,'r','x','k'||i,"
            "NULL,'','','' FROM generate_series(1,10001) i");
        play(&d, &m, seed);
        db_end(&d);
    }
}

/* ---- Parked messages ---------------------------------------------------- */

static void park(struct db *d, const char *id, const char *key, int state,
                 uint64_t wait_ms)
{
    once_message m = ONCE_MESSAGE_INIT;

    m.consumer = "c";
    m.id = id;
    m.key = key;
    m.type = "t";
    m.headers = "A: b\n";
    m.body = (once_bytes){"body", 4};
    begin(d);
    T_EQ(once_inbox_park(&d->tx, &m, state, wait_ms, "it failed", NULL),
         ONCE_OK);
    commit(d);
}

/* Takes a message and expects this one; 0: none. Its count. */
static uint32_t take_parked(struct db *d, int keyed, int no)
{
    struct once__parked_list l;
    uint32_t attempt = 0;

    T_EQ(once__parked_take(&d->tx, "c", LEASE_MS, keyed, &l, NULL), ONCE_OK);
    T_EQ(l.n, no != 0);
    if (l.n == 1) {
        T_EQ(l.rows[0].no, no);
        T_STR(l.rows[0].m.consumer, "c");
        T_STR(l.rows[0].m.type, "t");
        T_STR(l.rows[0].m.headers, "A: b\n");
        T_STR(l.rows[0].error, "it failed");
        T_EQ(l.rows[0].m.body.size, 4);
        T_EQ(l.rows[0].state, ONCE_PARKED_WAITING);
        attempt = l.rows[0].m.attempt;
    }
    once__parked_clear(&l);
    return attempt;
}

static int claim_parked(struct db *d, const char *id, uint32_t attempt)
{
    once_message m = ONCE_MESSAGE_INIT;

    m.consumer = "c";
    m.id = id;
    m.attempt = attempt;
    m.body = (once_bytes){"body", 4};
    return once_inbox_claim(&d->tx, &m, NULL);
}

static void a_parked_message_is_counted_before_it_runs(void)
{
    struct db d = db_new(), other = db_open();

    park(&d, "a", NULL, ONCE_PARKED_WAITING, 0);
    T_EQ(take_parked(&d, 0, 1), 1);
    T_EQ(number(&other, "SELECT attempts FROM @parked"), 1);
    T_EQ(take_parked(&other, 0, 0), 0); /* it runs */
    sql(&d, NULL, "UPDATE @parked SET due_ms=1");
    T_EQ(take_parked(&other, 0, 1), 2); /* its holder died */
    begin(&d);
    T_EQ(claim_parked(&d, "a", 1), ONCE_REPEATED);
    roll_back(&d);
    begin(&other);
    T_EQ(claim_parked(&other, "a", 2), ONCE_OWNER);
    commit(&other);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"), 0);
    db_close(&other);
    db_end(&d);
}

static void the_message_that_waited_longest_comes_first(void)
{
    struct db d = db_new();

    park(&d, "a", NULL, ONCE_PARKED_WAITING, 60000);
    park(&d, "b", NULL, ONCE_PARKED_WAITING, 0);
    park(&d, "c", NULL, ONCE_PARKED_WAITING, 0);
    park(&d, "d", NULL, ONCE_PARKED_DEAD, 0);
    park(&d, "e", NULL, ONCE_PARKED_INDETERMINATE, 0);
    sql(&d, NULL, "UPDATE @parked SET due_ms=due_ms-no*1000 WHERE no>1");
    T_EQ(take_parked(&d, 0, 3), 1);
    T_EQ(take_parked(&d, 0, 2), 1);
    T_EQ(take_parked(&d, 0, 0), 0);
    db_end(&d);
}

static void messages_of_a_key_run_in_order(void)
{
    struct db d = db_new();
    int stopped = 7;

    park(&d, "a", "k", ONCE_PARKED_WAITING, 60000);
    park(&d, "b", "k", ONCE_PARKED_WAITING, 0);
    park(&d, "c", NULL, ONCE_PARKED_WAITING, 0);
    T_EQ(take_parked(&d, 1, 3), 1);
    T_EQ(take_parked(&d, 1, 0), 0);
    sql(&d, NULL, "UPDATE @parked SET state=3 WHERE no=1");
    T_EQ(take_parked(&d, 1, 0), 0); /* dead ones, too */
    T_EQ(once__parked_has_key(&d.tx, "c", "k", &stopped, NULL), ONCE_OK);
    T_EQ(stopped, 1);
    T_EQ(once__parked_has_key(&d.tx, "other", "k", &stopped, NULL), ONCE_OK);
    T_EQ(stopped, 0);
    T_EQ(take_parked(&d, 0, 2), 1); /* who asks for no order gets none */
    sql(&d, NULL, "UPDATE @parked SET due_ms=1 WHERE no=2");
    sql(&d, NULL, "DELETE FROM @parked WHERE no=1");
    T_EQ(take_parked(&d, 1, 2), 2);
    begin(&d);
    T_EQ(claim_parked(&d, "b", 2), ONCE_OWNER);
    T_EQ(once__parked_has_key(&d.tx, "c", "k", &stopped, NULL), ONCE_OK);
    T_EQ(stopped, 0);
    roll_back(&d);
    T_EQ(once__parked_has_key(&d.tx, "c", "k", &stopped, NULL), ONCE_OK);
    T_EQ(stopped, 1);
    db_end(&d);
}

static int put_back(struct db *d, uint32_t attempt, int state)
{
    return once__parked_put_back(&d->tx, 1, attempt, state, 0, "it failed",
                                 NULL);
}

static void a_message_is_put_back_by_its_count(void)
{
    struct db d = db_new();

    park(&d, "a", NULL, ONCE_PARKED_WAITING, 0);
    T_EQ(take_parked(&d, 0, 1), 1);
    T_EQ(put_back(&d, 0, ONCE_PARKED_DEAD), ONCE_REFUSED);
    T_EQ(put_back(&d, 1, ONCE_PARKED_WAITING), ONCE_OK);
    T_EQ(put_back(&d, 1, ONCE_PARKED_WAITING), ONCE_OK); /* asked again */
    T_EQ(take_parked(&d, 0, 1), 2);
    T_EQ(put_back(&d, 1, ONCE_PARKED_DEAD), ONCE_REFUSED);
    T_EQ(take_parked(&d, 0, 0), 0);
    T_EQ(put_back(&d, 2, ONCE_PARKED_INDETERMINATE), ONCE_OK);
    T_EQ(put_back(&d, 2, ONCE_PARKED_INDETERMINATE), ONCE_OK);
    T_EQ(put_back(&d, 2, ONCE_PARKED_WAITING), ONCE_REFUSED);
    T_EQ(take_parked(&d, 0, 0), 0);
    T_EQ(number(&d, "SELECT state FROM @parked"), 4);
    T_EQ(put_back(&d, 2, 2), ONCE_EINVAL);
    db_end(&d);
}

/* ---- Decisions about parked messages ------------------------------------ */

static int decide_parked(struct db *d, int no, int state, uint32_t attempt,
                         int action)
{
    return once__parked_decide(&d->tx, no, state, attempt, action, "it failed",
                               NULL);
}

static void a_dead_letter_is_retried(void)
{
    struct db d = db_new();

    park(&d, "a", NULL, ONCE_PARKED_WAITING, 0);
    T_EQ(take_parked(&d, 0, 1), 1);
    T_EQ(put_back(&d, 1, ONCE_PARKED_DEAD), ONCE_OK);
    T_EQ(decide_parked(&d, 2, 3, 1, ONCE__PARKED_RETRY), ONCE_FREE);
    T_EQ(decide_parked(&d, 1, 1, 1, ONCE__PARKED_RETRY), ONCE_REFUSED);
    T_EQ(decide_parked(&d, 1, 3, 2, ONCE__PARKED_RETRY), ONCE_REFUSED);
    T_EQ(decide_parked(&d, 1, 3, 1, ONCE__PARKED_RESOLVE), ONCE_REFUSED);
    T_EQ(decide_parked(&d, 1, 3, 1, ONCE__PARKED_RETRY), ONCE_OK);
    T_EQ(decide_parked(&d, 1, 3, 1, ONCE__PARKED_RETRY), ONCE_REFUSED);
    T_EQ(number(&d, "SELECT attempts FROM @parked WHERE state=1"), 0);
    T_EQ(take_parked(&d, 0, 1), 1);
    begin(&d);
    T_EQ(claim_parked(&d, "a", 1), ONCE_OWNER);
    commit(&d);
    db_end(&d);
}

/* Its id is too old to know, so its row in the inbox comes first. */
static void a_message_from_outside_is_filed_before_it_is_retried(void)
{
    struct db d = db_new();
    char id[ONCE_ID_SIZE];

    (void)snprintf(id, sizeof(id), "00000001-0000-7abc-8def-0123456789ab");
    park(&d, id, NULL, ONCE_PARKED_WAITING, 0);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=3"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 0);
    sql(&d, NULL, "UPDATE @parked SET error='it failed'");
    T_EQ(decide_parked(&d, 1, 3, 0, ONCE__PARKED_RETRY), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 1);
    T_EQ(take_parked(&d, 0, 1), 1);
    T_EQ(put_back(&d, 1, ONCE_PARKED_DEAD), ONCE_OK);
    T_EQ(decide_parked(&d, 1, 3, 1, ONCE__PARKED_RETRY), ONCE_OK); /* again */
    T_EQ(take_parked(&d, 0, 1), 1);
    begin(&d);
    T_EQ(claim_parked(&d, id, 1), ONCE_OWNER);
    commit(&d);
    begin(&d);
    T_EQ(claim_parked(&d, id, 0), ONCE_REPEATED);
    roll_back(&d);
    db_end(&d);
}

static void a_message_from_outside_goes_if_its_id_is_known_by_now(void)
{
    struct db d = db_new();

    park(&d, "00000001-0000-7abc-8def-0123456789ab", NULL, ONCE_PARKED_WAITING,
         0);
    sql(&d, NULL,
        "INSERT INTO @inbox SELECT consumer,id,at_ms,NULL,1,NULL,NULL"
        " FROM @parked");
    T_EQ(decide_parked(&d, 1, 3, 0, ONCE__PARKED_RETRY), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"), 0);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 1);
    db_end(&d);
}

/* The words of its error are anybody's. */
static void a_message_that_is_called_outside_is_none(void)
{
    struct db d = db_new();

    park(&d, "a", NULL, ONCE_PARKED_DEAD, 0);
    sql(&d, NULL, "UPDATE @parked SET error='outside'");
    T_EQ(decide_parked(&d, 1, 3, 0, ONCE__PARKED_RETRY), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=1"), 1);
    db_end(&d);
}

static void a_mismatch_is_retried_under_its_own_id(void)
{
    struct db d = db_new();
    char longest[ONCE_ID_SIZE], id[ONCE_ID_SIZE] = "";
    once_message m = ONCE_MESSAGE_INIT;

    memset(longest, 'i', ONCE_ID_MAX);
    longest[ONCE_ID_MAX] = '\0';
    m.consumer = "c";
    begin(&d);
    m.id = "a";
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_OWNER);
    m.id = longest;
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_OWNER);
    commit(&d);
    park(&d, "a", NULL, ONCE_PARKED_WAITING, 0);
    park(&d, longest, NULL, ONCE_PARKED_WAITING, 0);
    T_EQ(decide_parked(&d, 2, 3, 0, ONCE__PARKED_RETRY), ONCE_REFUSED);
    T_EQ(decide_parked(&d, 2, 3, 0, ONCE__PARKED_DROP), ONCE_OK);
    T_EQ(decide_parked(&d, 1, 3, 0, ONCE__PARKED_RETRY), ONCE_OK);
    T_EQ(take_parked(&d, 0, 1), 1);
    sql(&d, NULL, "UPDATE @effect SET id=''");
    begin(&d);
    {
        struct once__parked_list l;

        roll_back(&d);
        T_EQ(once__parked_get(&d.tx, 1, &l, NULL), ONCE_OK);
        if (l.n == 1)
            (void)snprintf(id, sizeof(id), "%s", l.rows[0].m.id);
        once__parked_clear(&l);
        begin(&d);
    }
    T_EQ(strlen(id), 66);
    T_EQ(claim_parked(&d, id, 1), ONCE_OWNER);
    commit(&d);
    db_end(&d);
}

static void an_id_that_was_dropped_stays_answered_for(void)
{
    struct db d = db_new();
    uint64_t removed = 0;

    park(&d, "a", NULL, ONCE_PARKED_DEAD, 0);
    park(&d, "b", NULL, ONCE_PARKED_INDETERMINATE, 0);
    sql(&d, NULL, "UPDATE @inbox SET at_ms=1");
    T_EQ(decide_parked(&d, 1, 3, 0, ONCE__PARKED_DROP), ONCE_OK);
    T_EQ(decide_parked(&d, 2, 4, 0, ONCE__PARKED_RESOLVE), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"), 0);
    T_EQ(once_message_purge(&d.tx, &removed, NULL), ONCE_OK);
    T_EQ(removed, 0);
    begin(&d);
    T_EQ(claim_parked(&d, "a", 0), ONCE_REPEATED);
    T_EQ(claim_parked(&d, "b", 0), ONCE_REPEATED);
    roll_back(&d);
    db_end(&d);
}

static void parked_messages_are_listed_and_counted(void)
{
    struct once__parked_filter all = {NULL, 0, 0, 2};
    struct once__parked_count *c = NULL;
    struct once__parked_list l;
    struct db d = db_new();
    size_t n = 0;

    park(&d, "a", "k", ONCE_PARKED_WAITING, 0);
    park(&d, "b", NULL, ONCE_PARKED_DEAD, 0);
    park(&d, "c", NULL, ONCE_PARKED_INDETERMINATE, 0);
    T_EQ(once__parked_list(&d.tx, &all, &l, NULL), ONCE_OK);
    T_EQ(l.n, 2);
    if (l.n == 2) {
        T_STR(l.rows[0].m.id, "a");
        T_STR(l.rows[0].m.key, "k");
        T_EQ(l.rows[0].m.body.size, 0);
        T_EQ(l.rows[1].state, ONCE_PARKED_DEAD);
        T_STR(l.rows[1].error, "it failed");
    }
    once__parked_clear(&l);
    all = (struct once__parked_filter){"c", ONCE_PARKED_INDETERMINATE, 0, 10};
    T_EQ(once__parked_list(&d.tx, &all, &l, NULL), ONCE_OK);
    T_EQ(l.n, 1);
    once__parked_clear(&l);
    T_EQ(once__parked_get(&d.tx, 2, &l, NULL), ONCE_OK);
    T_EQ(l.n, 1);
    if (l.n == 1)
        T_EQ(l.rows[0].m.body.size, 4);
    once__parked_clear(&l);
    T_EQ(once__parked_get(&d.tx, 4, &l, NULL), ONCE_OK);
    T_EQ(l.n, 0);
    once__parked_clear(&l);
    sql(&d, NULL, "UPDATE @parked SET at_ms=at_ms-5000 WHERE no=2");
    T_EQ(once__parked_stats(&d.tx, &c, &n, NULL), ONCE_OK);
    T_EQ(n, 1);
    if (n == 1) {
        T_STR(c[0].consumer, "c");
        T_EQ(c[0].waiting, 1);
        T_EQ(c[0].dead, 1);
        T_EQ(c[0].indeterminate, 1);
        T_OK(c[0].oldest_ms >= 5000 && c[0].oldest_ms < 3600000);
    }
    free(c);
    db_end(&d);
}

/* Two takers never get one message. */
static void takers_do_not_share_a_message(void)
{
    struct db d = db_new();
    pid_t pids[CLAIMERS];
    char id[16];
    int i, status;

    for (i = 0; i < 60; i++) {
        (void)snprintf(id, sizeof(id), "m%d", i);
        park(&d, id, NULL, ONCE_PARKED_WAITING, 0);
    }
    fflush(stdout);
    for (i = 0; i < CLAIMERS; i++)
        if ((pids[i] = fork()) == 0) {
            struct db own = db_open();
            struct once__parked_list l;
            size_t n;

            do {
                T_EQ(once__parked_take(&own.tx, "c", LEASE_MS, 0, &l, NULL),
                     ONCE_OK);
                if ((n = l.n) > 0)
                    sql(&own, NULL, "INSERT INTO @effect VALUES('%s')",
                        l.rows[0].m.id);
                once__parked_clear(&l);
            } while (n > 0);
            _exit(t__bad != 0);
        }
    for (i = 0; i < CLAIMERS; i++) {
        (void)waitpid(pids[i], &status, 0);
        T_EQ(status, 0);
    }
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 60);
    T_EQ(number(&d, "SELECT count(DISTINCT id) FROM @effect"), 60);
    db_end(&d);
}

/* ---- What is refused ---------------------------------------------------- */

static void bad_input_changes_nothing(void)
{
    static const struct once__outbox_ask bad[] = {
        {NULL, 1, 1, 0, 0, 0},     {"", 1, 1, 0, 0, 0},
        {"a b", 1, 1, 0, 0, 0},    {"r", 0, 1, 0, 0, 0},
        {"r", 10001, 1, 0, 0, 0},  {"r", 1, 0, 0, 0, 0},
        {"r", 1, 3600001, 0, 0, 0}};
    struct once__settlement s = {1, 1, {5, 0, 0, 0}, 0, {NULL, 0}, NULL, 7, 0};
    struct db d = db_new();
    struct once__outgoing_list l;
    struct once__parked_list k;
    size_t i;

    emit(&d, NULL, NULL);
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        T_EQ(once__outbox_claim(&d.tx, &bad[i], &l, NULL), ONCE_EINVAL);
        T_EQ(l.n, 0);
    }
    T_EQ(once__outbox_settle(&d.tx, &s, 0, NULL), ONCE_OK);
    T_EQ(once__outbox_settle(&d.tx, &s, 1, NULL), ONCE_EINVAL);
    T_EQ(s.ours, 0);
    s.to = done;
    s.reply = (once_bytes){"", ONCE_BODY_MAX + 1};
    T_EQ(once__outbox_settle(&d.tx, &s, 1, NULL), ONCE_ELIMIT);
    T_EQ(once__outbox_decide(&d.tx, 1, 0, 0, 3, "", NULL), ONCE_EINVAL);
    T_EQ(once__parked_decide(&d.tx, 1, 0, 0, -1, "", NULL), ONCE_EINVAL);
    T_EQ(once__parked_take(&d.tx, "c", 0, 0, &k, NULL), ONCE_EINVAL);
    T_EQ(once__parked_take(&d.tx, "", 1, 0, &k, NULL), ONCE_EINVAL);
    T_EQ(once__outbox_idle(&d.tx, "", 1, NULL), ONCE_EINVAL);
    T_EQ(of(&d, "attempts", 1), 0);
    db_end(&d);
}

static void a_connection_that_will_not_do_is_refused(void)
{
    struct once__settlement s = {1, 1, {2, 0, 0, 0}, 0, {NULL, 0}, NULL, 7, 0};
    struct db d = db_new();
    struct once__outgoing_list l;
    struct once__parked_list k;

    emit(&d, NULL, NULL);
    begin(&d);
    T_EQ(once__outbox_claim(&d.tx, &any, &l, NULL), ONCE_ETX);
    T_EQ(once__outbox_settle(&d.tx, &s, 1, NULL), ONCE_ETX);
    T_EQ(once__parked_take(&d.tx, "c", 1, 0, &k, NULL), ONCE_ETX);
    roll_back(&d);
    sql(&d, NULL, "%s",
        as(&d, "SET synchronous_commit=off", "PRAGMA synchronous=1",
           "SET sql_log_bin=0"));
    T_EQ(once__outbox_claim(&d.tx, &any, &l, NULL), ONCE_EOPEN);
    T_EQ(once__outbox_settle(&d.tx, &s, 1, NULL), ONCE_EOPEN);
    T_EQ(once__parked_take(&d.tx, "c", 1, 0, &k, NULL), ONCE_EOPEN);
    if (d.pg != NULL) {
        sql(&d, NULL, "RESET synchronous_commit");
        sql(&d, NULL, "SET default_transaction_isolation='repeatable read'");
        T_EQ(once__outbox_claim(&d.tx, &any, &l, NULL), ONCE_EOPEN);
        T_EQ(once__outbox_settle(&d.tx, &s, 1, NULL), ONCE_EOPEN);
    }
    T_EQ(of(&d, "attempts", 1), 0);
    db_end(&d);
}

/* The server ended the connection, or somebody else is writing to the file. */
static void what_is_not_done_now_is_to_be_asked_again(void)
{
    struct once__settlement s = {1, 1, {2, 0, 0, 0}, 0, {NULL, 0}, NULL, 7, 0};
    struct db d = db_new(), other = db_open();
    struct once__outgoing_list l;
    struct once__parked_list k;
    once_error err = {0, ""};

    emit(&d, NULL, NULL);
    park(&d, "a", NULL, ONCE_PARKED_WAITING, 0);
    if (d.pg != NULL) {
        sql(&d, NULL, "SELECT pg_terminate_backend(%d)",
            PQbackendPID(other.pg));
        T_EQ(once__outbox_wait(&other.tx, "r", -1, 10, &err), ONCE_EABORTED);
#ifdef ONCE_WITH_MYSQL
    } else if (d.my != NULL) {
        sql(&d, NULL, "KILL %lu", mysql_thread_id(other.my));
#endif
    } else {
        assert(sqlite3_busy_timeout(other.lite, 0) == SQLITE_OK);
        begin(&d);
    }
    T_EQ(once__outbox_claim(&other.tx, &any, &l, &err), ONCE_EABORTED);
    T_EQ(l.n, 0);
    T_EQ(once__outbox_settle(&other.tx, &s, 1, &err), ONCE_EABORTED);
    T_EQ(s.ours, 0);
    T_EQ(once__parked_take(&other.tx, "c", LEASE_MS, 0, &k, &err),
         ONCE_EABORTED);
    T_EQ(once__outbox_decide(&other.tx, 1, 0, 0, ONCE__OUTBOX_DROP, "", &err),
         ONCE_EABORTED);
    if (d.lite != NULL) {
        commit(&d);
        T_EQ(once__parked_take(&other.tx, "c", LEASE_MS, 0, &k, &err), ONCE_OK);
        once__parked_clear(&k);
    }
    T_EQ(of(&d, "attempts", 1), 0);
    expect(&d, &any, "1");
    db_close(&other);
    db_end(&d);
}

static void a_database_without_tables_is_refused(void)
{
    struct db d = db_bare();
    struct once__outgoing_list l;

    T_EQ(once__outbox_claim(&d.tx, &any, &l, NULL), ONCE_EOPEN);
    T_EQ(once_message_init(&d.tx, KEEP_MS, NULL), ONCE_OK);
    db_end(&d);
}

/* But for those that have no rights of their own, and call one that has. */
static void nobody_may_execute_the_functions_by_default(void)
{
    struct db d = db_new();

    T_EQ(number(&d,
                "SELECT count(*) FROM pg_proc WHERE pronamespace="
                "'%s'::regnamespace AND proname<>'refuse_1' AND (prosecdef OR"
                " proname NOT IN ('emit','finish','inbox_park'))"
                " AND has_function_privilege('public',oid,'EXECUTE')",
                place),
         0);
    T_EQ(number(&d,
                "SELECT count(*) FROM pg_proc WHERE pronamespace="
                "'%s'::regnamespace AND proname<>'alone_1' AND (prosecdef OR"
                " proname NOT IN ('emit','finish','inbox_park')) AND"
                " (proconfig IS NULL OR"
                " proconfig[1]<>'search_path=pg_catalog, pg_temp')",
                place),
         0);
    db_end(&d);
}

#define RUN(test) T_RUN_ONLY(only, test)

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "sqlite";
    const char *only = argc > 2 ? argv[2] : NULL;

    if (!take_database(what))
        only = what;
    RUN(a_row_is_claimed_settled_and_gone);
    if (server_url == NULL)
        RUN(a_claim_finds_stopped_rows_by_their_index);
    RUN(a_leased_row_is_claimed_again_when_its_lease_ran_out);
    RUN(a_settle_after_another_claim_changes_nothing);
    RUN(a_settle_after_the_lease_counts_if_nobody_claimed);
    RUN(a_settle_that_is_repeated_counts_once);
    RUN(several_rows_are_settled_each_by_its_own_fence);
    RUN(doubt_begins_anew_when_it_was_gone);
    RUN(a_lease_that_is_too_far_ahead_is_none);
    RUN(a_held_row_is_not_claimed_again);
    RUN(a_held_row_that_was_given_back_is_claimed_again);
    RUN(a_late_answer_is_taken_from_an_indeterminate_row);
    RUN(a_held_row_keeps_its_key_waiting);
    RUN(rows_of_a_key_come_together_and_to_one_claimer);
    RUN(a_row_without_a_key_waits_for_none);
    RUN(a_stopped_row_keeps_its_key_waiting);
    RUN(a_waiting_row_keeps_its_key_waiting_and_becomes_due);
    RUN(a_row_for_later_is_claimed_later);
    RUN(routes_are_claimed_apart);
    RUN(a_busy_key_does_not_hide_the_others);
    RUN(very_many_rows_that_wait_keep_no_other_key_waiting);
    RUN(a_claim_ends_at_its_bytes);
    if (is_mysql())
        RUN(a_body_that_does_not_fit_is_named);
    RUN(first_arrivals_of_a_key_are_in_order);
    if (is_postgres())
        RUN(writers_of_a_key_wait_for_each_other);
    if (is_postgres())
        RUN(claiming_and_settling_wait_for_each_other);
    if (is_postgres())
        RUN(a_row_that_waits_is_not_overtaken_while_a_claim_looks);
    if (is_postgres())
        RUN(a_claim_does_not_wait_for_rows_that_are_done);
    if (is_postgres())
        RUN(a_lease_of_many_that_ran_out_counts_for_each);
    if (is_postgres())
        RUN(a_lease_of_many_is_fenced);
    RUN(a_relay_that_sleeps_is_woken);
    if (server_url == NULL)
        RUN(a_file_that_was_replaced_is_looked_at_no_more);
    if (is_postgres()) {
        RUN(a_relay_listens_before_it_sleeps);
        RUN(a_relay_that_died_in_its_sleep_is_told_no_more);
    }
    RUN(each_phase_has_its_decisions);
    RUN(a_decision_is_about_what_was_seen);
    RUN(a_step_of_a_saga_is_not_dropped);
    RUN(rows_are_listed_without_their_bodies);
    RUN(rows_are_counted_by_route_and_phase);
    RUN(a_route_without_a_relay_is_named);
    RUN(done_rows_alone_are_purged);
    RUN(many_done_rows_are_purged_in_steps);
    RUN(rows_behind_a_key_under_way_wait_however_many);
    RUN(a_random_history_is_that_of_the_model);
    if (is_postgres())
        RUN(a_random_history_beside_very_many_waiting_rows);
    RUN(a_parked_message_is_counted_before_it_runs);
    RUN(the_message_that_waited_longest_comes_first);
    RUN(messages_of_a_key_run_in_order);
    RUN(a_message_is_put_back_by_its_count);
    RUN(a_dead_letter_is_retried);
    RUN(a_message_from_outside_is_filed_before_it_is_retried);
    RUN(a_message_from_outside_goes_if_its_id_is_known_by_now);
    RUN(a_message_that_is_called_outside_is_none);
    RUN(a_mismatch_is_retried_under_its_own_id);
    RUN(an_id_that_was_dropped_stays_answered_for);
    RUN(parked_messages_are_listed_and_counted);
    RUN(takers_do_not_share_a_message);
    RUN(bad_input_changes_nothing);
    RUN(a_connection_that_will_not_do_is_refused);
    RUN(what_is_not_done_now_is_to_be_asked_again);
    RUN(a_database_without_tables_is_refused);
    if (is_postgres())
        RUN(nobody_may_execute_the_functions_by_default);
    return t_done();
}
