/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_message.c - once/message.h on real databases: one text for all.
 *
 *    test_message [sqlite | CASE]
 *    with-server postgres -- test_message postgres
 *    with-server mysql -- test_message mysql
 *
 * Each test has a database of its own: a schema, or a file. What is said of many
 * callers is tried with processes that are killed at random moments, and judged
 * by the rows that are there afterwards.
 */
#include "db.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/sqltext.h"
#include "messages/tables/outbox.h"

/* ---- Messages ---------------------------------------------------------- */

static once_message in(const char *id, const char *body)
{
    once_message m = ONCE_MESSAGE_INIT;

    m.consumer = "billing";
    m.id = id;
    m.body = (once_bytes){body, strlen(body)};
    return m;
}

static once_message out(const char *id, const char *body)
{
    once_message m = ONCE_MESSAGE_INIT;

    m.route = "orders";
    m.id = id;
    m.body = (once_bytes){body, strlen(body)};
    return m;
}

static int claim(struct db *d, const char *id, const char *body)
{
    once_message m = in(id, body);

    return once_inbox_claim(&d->tx, &m, NULL);
}

static int park(struct db *d, const char *id, const char *body, int state)
{
    once_message m = in(id, body);
    int rc;

    begin(d);
    rc = once_inbox_park(&d->tx, &m, state, 0, "it failed", NULL);
    commit(d);
    return rc;
}

/* A UUID of version 7 with this time. */
static const char *id_at(char room[ONCE_ID_SIZE], uint64_t ms)
{
    (void)snprintf(room, ONCE_ID_SIZE, "%08x-%04x-7abc-8def-0123456789ab",
                   (unsigned)(ms >> 16), (unsigned)(ms & 0xffff));
    return room;
}

static void an_id_has_one_effect(void)
{
    struct db d = db_new();

    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_OWNER);
    T_EQ(claim(&d, "a", "x"), ONCE_REPEATED); /* two copies in one batch */
    commit(&d);
    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_REPEATED);
    T_EQ(claim(&d, "b", "x"), ONCE_OWNER);
    commit(&d);
    db_end(&d);
}

static void a_rollback_frees_the_id(void)
{
    struct db d = db_new();

    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_OWNER);
    roll_back(&d);
    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_OWNER);
    commit(&d);
    db_end(&d);
}

static void another_body_is_refused(void)
{
    struct db d = db_new();
    once_message m = in("a", "y");

    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_OWNER);
    commit(&d);
    begin(&d);
    T_EQ(claim(&d, "a", "y"), ONCE_MISMATCH);
    m.any_body = 1;
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_REPEATED);
    m.consumer = "mails"; /* another consumer, another effect */
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_OWNER);
    commit(&d);
    begin(&d);
    m.any_body = 0; /* nobody kept its body to compare with */
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_REPEATED);
    roll_back(&d);
    db_end(&d);
}

static void an_id_from_before_the_window_is_refused(void)
{
    struct db d = db_new();
    char id[ONCE_ID_SIZE];
    uint64_t now = now_ms();

    begin(&d);
    T_EQ(claim(&d, id_at(id, now - KEEP_MS - 5000), "x"), ONCE_OUTSIDE);
    T_EQ(claim(&d, id_at(id, now - KEEP_MS / 2), "x"), ONCE_OWNER);
    T_EQ(claim(&d, id_at(id, now + 3600000), "x"), ONCE_OWNER);
    T_EQ(claim(&d, id_at(id, now + 3600000), "x"), ONCE_REPEATED);
    T_EQ(claim(&d, "00001234-0042-7", "x"), ONCE_OWNER); /* no time in it */
    T_EQ(claim(&d, "00001234-0042-7000-0000-000000000000", "x"), ONCE_OWNER);
    commit(&d);
    T_OK(number(&d, "SELECT count(*) FROM @inbox WHERE at_ms>=%llu",
                (unsigned long long)now + 3600000) == 1);
    db_end(&d);
}

/* Why a claim must not stand inside a savepoint: what comes after it would be
 * unguarded. A savepoint after the claim leaves it alone. */
static void a_claim_goes_with_the_savepoint_around_it(void)
{
    struct db d = db_new();

    begin(&d);
    sql(&d, NULL, "SAVEPOINT around");
    T_EQ(claim(&d, "a", "x"), ONCE_OWNER);
    sql(&d, NULL, "ROLLBACK TO around");
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 0);
    T_EQ(claim(&d, "a", "x"), ONCE_OWNER);
    sql(&d, NULL, "SAVEPOINT after");
    T_EQ(claim(&d, "b", "x"), ONCE_OWNER);
    sql(&d, NULL, "ROLLBACK TO after");
    T_EQ(claim(&d, "a", "x"), ONCE_REPEATED);
    commit(&d);
    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_REPEATED);
    T_EQ(claim(&d, "b", "x"), ONCE_OWNER);
    roll_back(&d);
    db_end(&d);
}

/* ---- Parked messages --------------------------------------------------- */

static void a_parked_message_is_kept_and_runs_once(void)
{
    struct db d = db_new();
    once_message m = in("a", "x");

    T_EQ(park(&d, "a", "x", ONCE_PARKED_WAITING), ONCE_OK);
    T_EQ(park(&d, "a", "x", ONCE_PARKED_WAITING), ONCE_REPEATED);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=1"), 1);
    sql(&d, NULL, "UPDATE @parked SET attempts=1"); /* a consumer took it */
    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_REPEATED); /* a copy that arrives */
    m.attempt = 2;                            /* somebody else's count */
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_REPEATED);
    m.attempt = 1;
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_OWNER);
    roll_back(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"), 1);
    begin(&d);
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_OWNER);
    commit(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"), 0);
    begin(&d);
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_REPEATED);
    roll_back(&d);
    db_end(&d);
}

static void what_cannot_run_becomes_a_dead_letter(void)
{
    struct db d = db_new();
    char id[ONCE_ID_SIZE], longest[ONCE_ID_SIZE];

    memset(longest, 'i', ONCE_ID_MAX);
    longest[ONCE_ID_MAX] = '\0';
    begin(&d);
    T_EQ(claim(&d, longest, "x"), ONCE_OWNER);
    commit(&d);
    T_EQ(park(&d, longest, "y", ONCE_PARKED_WAITING), ONCE_OK);
    T_EQ(park(&d, longest, "z", ONCE_PARKED_WAITING), ONCE_OK);
    T_EQ(park(&d, longest, "z", ONCE_PARKED_WAITING), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"
                    " WHERE state=3 AND error='mismatch'"),
         2);
    (void)id_at(id, now_ms() - KEEP_MS - 5000);
    T_EQ(park(&d, id, "x", ONCE_PARKED_WAITING), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"
                    " WHERE state=3 AND error='outside'"),
         1);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 1);
    T_EQ(park(&d, "b", "x", ONCE_PARKED_INDETERMINATE), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=4"), 1);
    db_end(&d);
}

/* A clock that had been set ahead called it outside. It is right again, a copy
 * arrives and fails: both are kept, and the one from outside is no second
 * message. */
static void a_message_that_is_outside_no_more_is_parked(void)
{
    struct db d = db_new();
    char id[ONCE_ID_SIZE];
    long no;

    (void)id_at(id, now_ms() - KEEP_MS - 5000);
    T_EQ(park(&d, id, "x", ONCE_PARKED_WAITING), ONCE_OK);
    sql(&d, NULL, "UPDATE @message_meta SET keep_ms=10*keep_ms");
    T_EQ(park(&d, id, "x", ONCE_PARKED_WAITING), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=1"), 1);
    T_EQ(park(&d, id, "x", ONCE_PARKED_WAITING), ONCE_REPEATED);
    no = number(&d, "SELECT no FROM @parked WHERE state=3");
    T_EQ(once__parked_decide(&d.tx, no, ONCE_PARKED_DEAD, 0, ONCE__PARKED_RETRY,
                             "why", NULL),
         ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=1"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"), 1);
    db_end(&d);
}

/* What a mismatch is kept under may be the id of another message. */
static void a_message_with_the_id_of_a_mismatch_is_parked(void)
{
    struct db d = db_new();
    char id[ONCE_ID_SIZE];

    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_OWNER);
    commit(&d);
    T_EQ(park(&d, "a", "y", ONCE_PARKED_WAITING), ONCE_OK);
    sql(&d, id, "SELECT substr(id,1,50) FROM @parked");
    T_EQ(strlen(id), 50);
    sql(&d, NULL, "UPDATE @parked SET id=substr(id,1,50)");
    T_EQ(park(&d, id, "z", ONCE_PARKED_WAITING), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=1"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE state=3"), 1);
    db_end(&d);
}

static void a_reason_in_any_encoding_parks_a_message(void)
{
    struct db d = db_new();
    once_message m = in("a", "x");
    char why[400];

    memset(why, 'w', sizeof(why));
    (void)snprintf(why, sizeof(why), "caf\xe9 \xc3\xa9\n");
    why[8] = 'w'; /* goes on over the limit */
    why[sizeof(why) - 1] = '\0';
    m.headers = "A: caf\xc3\xa9 \xf0\x9f\x98\x80\n";
    begin(&d);
    T_EQ(once_inbox_park(&d.tx, &m, ONCE_PARKED_DEAD, 0, why, NULL), ONCE_OK);
    commit(&d);
    T_EQ(number(&d, "SELECT length(error) FROM @parked"), ONCE_ID_MAX);
    db_end(&d);
}

/* A handler that failed and forgot to roll back. */
static void a_message_is_not_parked_in_the_transaction_of_its_claim(void)
{
    struct db d = db_new();
    once_message m = in("a", "x");

    begin(&d);
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_OWNER);
    T_EQ(once_inbox_park(&d.tx, &m, ONCE_PARKED_WAITING, 0, "", NULL),
         ONCE_ETX);
    roll_back(&d);
    T_EQ(park(&d, "a", "x", ONCE_PARKED_WAITING), ONCE_OK);
    if (d.pg != NULL) { /* MySQL's knowledge goes with the savepoint */
        begin(&d);
        sql(&d, NULL, "SAVEPOINT earlier");
        m.id = "b";
        T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_OWNER);
        sql(&d, NULL, "RELEASE SAVEPOINT earlier");
        T_EQ(once_inbox_park(&d.tx, &m, ONCE_PARKED_WAITING, 0, "", NULL),
             ONCE_ETX);
        roll_back(&d);
    }
    db_end(&d);
}

/* ---- Outbox ------------------------------------------------------------ */

static void a_message_leaves_with_its_transaction(void)
{
    struct db d = db_new();
    once_message m = out(NULL, "x");
    char id[ONCE_ID_SIZE] = "", other[ONCE_ID_SIZE] = "";

    m.key = "order-42";
    m.type = "application/json";
    m.headers = "A: b\nC: d\n";
    begin(&d);
    T_EQ(once_emit(&d.tx, &m, id, NULL), ONCE_OK);
    roll_back(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 0);
    begin(&d);
    T_EQ(once_emit(&d.tx, &m, id, NULL), ONCE_OK);
    T_EQ(once_emit(&d.tx, &m, other, NULL), ONCE_OK);
    T_EQ(once_emit(&d.tx, &m, NULL, NULL), ONCE_OK);
    commit(&d);
    T_EQ(strlen(id), 36);
    T_EQ(id[14], '7');
    T_OK(strchr("89ab", id[19]) != NULL);
    T_OK(strcmp(id, other) != 0);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE phase=0 AND"
                    " key='order-42' AND type='application/json'"),
         3);
    m.due_ms = now_ms() + 3600000;
    begin(&d);
    T_EQ(once_emit(&d.tx, &m, NULL, NULL), ONCE_OK);
    commit(&d);
    T_EQ(number(&d,
                "SELECT count(*) FROM @outbox WHERE phase=1 AND"
                " due_ms=%llu",
                (unsigned long long)m.due_ms),
         1);
    db_end(&d);
}

static void a_given_id_is_emitted_once_to_a_route(void)
{
    struct db d = db_new();
    once_message m = out("charge/42", "x");
    char id[ONCE_ID_SIZE] = "";

    begin(&d);
    T_EQ(once_emit(&d.tx, &m, id, NULL), ONCE_OK);
    T_EQ(strcmp(id, "charge/42"), 0);
    T_EQ(once_emit(&d.tx, &m, id, NULL), ONCE_REPEATED);
    m.route = "audit";
    T_EQ(once_emit(&d.tx, &m, id, NULL), ONCE_OK);
    commit(&d);
    m = out("charge/42", "y");
    begin(&d);
    T_EQ(once_emit(&d.tx, &m, id, NULL), ONCE_MISMATCH);
    roll_back(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 2);
    m = out(NULL, "x"); /* one that is drawn is compared as well */
    m.keep = 1;
    begin(&d);
    T_EQ(once_emit(&d.tx, &m, id, NULL), ONCE_OK);
    commit(&d);
    m.id = id;
    begin(&d);
    T_EQ(once_emit(&d.tx, &m, NULL, NULL), ONCE_REPEATED);
    m.body = (once_bytes){"y", 1};
    T_EQ(once_emit(&d.tx, &m, NULL, NULL), ONCE_MISMATCH);
    roll_back(&d);
    db_end(&d);
}

/* ---- Branches ---------------------------------------------------------- */

/* What must be answered, told apart from how it is done: the history. */
static int expected(const char *done, int op)
{
    int tried = strchr(done, 't') != NULL,
        cancelled = strchr(done, 'c') != NULL;
    int confirmed = strchr(done, 'f') != NULL;

    switch (op) {
    case ONCE_TRY:
        return cancelled ? ONCE_REFUSED : tried ? ONCE_REPEATED : ONCE_OWNER;
    case ONCE_CONFIRM:
        return cancelled   ? ONCE_CONFLICT
               : confirmed ? ONCE_REPEATED
               : tried     ? ONCE_OWNER
                           : ONCE_EARLY;
    default:
        return confirmed   ? ONCE_CONFLICT
               : cancelled ? ONCE_REPEATED
               : tried     ? ONCE_OWNER
                           : ONCE_EMPTY;
    }
}

/* All orders of four operations, each committed or rolled back. */
static void every_order_of_a_branch_is_answered(void)
{
    struct db d = db_new();
    unsigned order, step;

    for (order = 0; order < 6 * 6 * 6 * 6; order++) {
        char gid[24], done[8] = "";
        unsigned rest = order;

        (void)snprintf(gid, sizeof(gid), "g%u", order);
        for (step = 0; step < 4; step++, rest /= 6) {
            int op = (int)(rest % 3) + ONCE_TRY, want = expected(done, op), rc;

            begin(&d);
            rc = once_barrier_enter(&d.tx, gid, "1", op, NULL);
            T_EQ(rc, want);
            if (rest % 6 >= 3) {
                roll_back(&d);
                continue;
            }
            commit(&d);
            if (want == ONCE_OWNER || want == ONCE_EMPTY)
                done[strlen(done)] = "tfc"[op - ONCE_TRY];
        }
    }
    db_end(&d);
}

static void a_try_that_is_too_old_is_refused(void)
{
    struct db d = db_new();
    char gid[ONCE_ID_SIZE];

    (void)id_at(gid, now_ms() - KEEP_MS - 5000);
    begin(&d);
    T_EQ(once_barrier_enter(&d.tx, gid, "1", ONCE_TRY, NULL), ONCE_REFUSED);
    T_EQ(once_barrier_enter(&d.tx, gid, "1", ONCE_CANCEL, NULL), ONCE_EMPTY);
    commit(&d);
    db_end(&d);
}

/* ---- Calls ------------------------------------------------------------- */

struct job {
    struct db *d;
    int kind;
    const char *result;
    int inner; /* what a call in the work came to */
    int runs;
};

static int effect(const once_tx *tx, void *user, once_bytes *result)
{
    struct job *j = user;

    (void)tx;
    j->runs++;
    sql(j->d, NULL, "INSERT INTO @effect VALUES('e')");
    *result = (once_bytes){j->result, strlen(j->result)};
    return j->kind;
}

static int call(struct job *j, const char *key, once_tx_result *r)
{
    return once_tx_call(&j->d->tx, "charges", key, (once_bytes){"f", 1}, effect,
                        j, r, NULL);
}

static void expect(const once_tx_result *r, int kind, const char *bytes)
{
    T_EQ(r->kind, kind);
    T_EQ(r->bytes.size, strlen(bytes));
    T_OK(r->bytes.size == 0 ||
         memcmp(r->bytes.data, bytes, r->bytes.size) == 0);
}

static void a_call_runs_once_and_replays_its_result(void)
{
    static const struct {
        int kind;
        const char *result;
    } cases[] = {{ONCE_SUCCESS, "charged"},
                 {ONCE_FAILURE, "card refused"},
                 {ONCE_SUCCESS, ""}};
    struct db d = db_new();
    once_tx_result r = ONCE_TX_RESULT_INIT;
    size_t i;

    for (i = 0; i < 3; i++) {
        struct job j = {&d, cases[i].kind, cases[i].result, 0, 0};
        char key[8];

        (void)snprintf(key, sizeof(key), "k%zu", i);
        begin(&d);
        T_EQ(call(&j, key, &r), ONCE_OK);
        expect(&r, cases[i].kind, cases[i].result);
        once_tx_result_clear(&r);
        T_EQ(call(&j, key, &r), ONCE_REPLAY);
        once_tx_result_clear(&r);
        commit(&d);
        begin(&d);
        T_EQ(call(&j, key, &r), ONCE_REPLAY);
        expect(&r, cases[i].kind, cases[i].result);
        once_tx_result_clear(&r);
        T_EQ(once_tx_call(&d.tx, "charges", key, (once_bytes){"g", 1}, effect,
                          &j, &r, NULL),
             ONCE_MISMATCH);
        roll_back(&d);
        T_EQ(j.runs, 1);
    }
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 3);
    db_end(&d);
}

static void a_call_that_is_rolled_back_runs_again(void)
{
    struct db d = db_new();
    struct job j = {&d, ONCE_AGAIN, "", 0, 0};
    once_tx_result r = ONCE_TX_RESULT_INIT;

    begin(&d);
    T_EQ(call(&j, "k", &r), ONCE_AGAIN);
    roll_back(&d);
    j.kind = ONCE_SUCCESS;
    begin(&d);
    T_EQ(call(&j, "k", &r), ONCE_OK);
    once_tx_result_clear(&r);
    commit(&d);
    T_EQ(j.runs, 2);
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 1);
    db_end(&d);
}

/* A work that returns what something inside it answered. */
static void an_answer_from_inside_is_not_taken_for_that_of_the_call(void)
{
    static const int answers[] = {ONCE_OK, ONCE_REPLAY, ONCE_REPEATED,
                                  ONCE_MISMATCH};
    struct db d = db_new();
    once_tx_result r = ONCE_TX_RESULT_INIT;
    size_t i;

    for (i = 0; i < 4; i++) {
        struct job j = {&d, answers[i], "x", 0, 0};

        begin(&d);
        T_EQ(call(&j, "k", &r), ONCE_EINVAL);
        roll_back(&d);
    }
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 0);
    db_end(&d);
}

static int calls_itself(const once_tx *tx, void *user, once_bytes *result)
{
    struct job *j = user;
    once_tx_result r = ONCE_TX_RESULT_INIT;

    j->inner = once_tx_call(tx, "charges", "k", (once_bytes){"f", 1}, effect, j,
                            &r, NULL);
    T_EQ(once_tx_call(tx, "charges", "other", (once_bytes){"f", 1}, effect, j,
                      &r, NULL),
         ONCE_OK);
    once_tx_result_clear(&r);
    *result = (once_bytes){"x", 1};
    return ONCE_SUCCESS;
}

static void a_call_inside_itself_is_an_error(void)
{
    struct db d = db_new();
    struct job j = {&d, ONCE_SUCCESS, "x", 0, 0};
    once_tx_result r = ONCE_TX_RESULT_INIT;

    begin(&d);
    T_EQ(once_tx_call(&d.tx, "charges", "k", (once_bytes){"f", 1}, calls_itself,
                      &j, &r, NULL),
         ONCE_OK);
    once_tx_result_clear(&r);
    commit(&d);
    T_EQ(j.inner, ONCE_ETX);
    T_EQ(j.runs, 1);
    db_end(&d);
}

static int undoes_its_claim(const once_tx *tx, void *user, once_bytes *result)
{
    struct job *j = user;

    (void)tx;
    sql(j->d, NULL, "ROLLBACK TO earlier");
    *result = (once_bytes){"x", 1};
    return ONCE_SUCCESS;
}

static void a_call_whose_claim_was_undone_is_an_error(void)
{
    struct db d = db_new();
    struct job j = {&d, ONCE_SUCCESS, "x", 0, 0};
    once_tx_result r = ONCE_TX_RESULT_INIT;

    begin(&d);
    sql(&d, NULL, "SAVEPOINT earlier");
    T_EQ(once_tx_call(&d.tx, "charges", "k", (once_bytes){NULL, 0},
                      undoes_its_claim, &j, &r, NULL),
         ONCE_ETX);
    roll_back(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 0);
    db_end(&d);
}

static void a_message_is_no_result(void)
{
    struct db d = db_new();
    struct job j = {&d, ONCE_SUCCESS, "x", 0, 0};
    once_tx_result r = ONCE_TX_RESULT_INIT;

    begin(&d);
    T_EQ(claim(&d, "m", "f"), ONCE_OWNER);
    T_EQ(once_tx_call(&d.tx, "billing", "m", (once_bytes){"f", 1}, effect, &j,
                      &r, NULL),
         ONCE_REPEATED);
    commit(&d);
    T_EQ(j.runs, 0);
    db_end(&d);
}

/* ---- Bad input --------------------------------------------------------- */

static void bad_input_is_refused_before_anything_is_written(void)
{
    struct db d = db_new();
    char longest[ONCE_ID_SIZE + 1];
    once_error err = {0, ""};
    once_message m;
    size_t i;

    memset(longest, 'i', sizeof(longest));
    longest[ONCE_ID_SIZE] = '\0';
    begin(&d);
#define BAD(code, field, change, ask)                                          \
    do {                                                                       \
        m = in("a", "x");                                                      \
        m.route = "r";                                                         \
        change;                                                                \
        T_EQ(ask, code);                                                       \
        T_OK(strncmp(err.text, field, strlen(field)) == 0);                    \
    } while (0)
#define CLAIM once_inbox_claim(&d.tx, &m, &err)
#define EMIT once_emit(&d.tx, &m, NULL, &err)
    BAD(ONCE_EINVAL, "message:", m.size = 8, CLAIM);
    BAD(ONCE_EINVAL, "id:", m.id = NULL, CLAIM);
    BAD(ONCE_EINVAL, "id:", m.id = "", CLAIM);
    BAD(ONCE_EINVAL, "id:", m.id = "a b", CLAIM);
    BAD(ONCE_EINVAL, "id:", m.id = "\xc3\xa9", CLAIM);
    BAD(ONCE_ELIMIT, "id:", m.id = longest, CLAIM);
    BAD(ONCE_EINVAL, "consumer:", m.consumer = NULL, CLAIM);
    BAD(ONCE_EINVAL, "consumer:", m.consumer = "\n", CLAIM);
    BAD(ONCE_EINVAL, "key:", m.key = "", CLAIM);
    BAD(ONCE_EINVAL, "attempt:", m.attempt = UINT32_MAX, CLAIM);
    BAD(ONCE_EINVAL, "route:", m.route = "", EMIT);
    BAD(ONCE_EINVAL, "type:", m.type = "a\nb", EMIT);
    BAD(ONCE_EINVAL, "headers:", m.headers = "A: b", EMIT);
    BAD(ONCE_EINVAL, "headers:", m.headers = "A b\n", EMIT);
    BAD(ONCE_EINVAL, "headers:", m.headers = ": b\n", EMIT);
    BAD(ONCE_EINVAL, "headers:", m.headers = "A: b\r\n", EMIT);
    BAD(ONCE_EINVAL, "headers:", m.headers = "A: caf\xe9\n", EMIT);
    BAD(ONCE_EINVAL, "headers:", m.headers = "A: \xed\xa0\x80\n", EMIT);
    BAD(ONCE_EINVAL, "due_ms:", m.due_ms = UINT64_MAX, EMIT);
    BAD(ONCE_ELIMIT, "body:", m.body.size = ONCE_BODY_MAX + 1, EMIT);
    for (i = 0; i < 3; i++)
        T_EQ(once_barrier_enter(&d.tx, i == 0 ? "" : "g", i == 1 ? NULL : "1",
                                i == 2 ? 4 : ONCE_TRY, &err),
             ONCE_EINVAL);
    m = in("a", "x");
    T_EQ(once_inbox_park(&d.tx, &m, 2, 0, "", &err), ONCE_EINVAL);
    T_EQ(claim(&d, "a", "x"), ONCE_OWNER); /* the transaction still lives */
    commit(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 0);
    d.tx.size = 1;
    T_EQ(claim(&d, "a", "x"), ONCE_EINVAL);
    d.tx.size = sizeof(d.tx);
    db_end(&d);
}

static void a_transaction_must_be_open(void)
{
    struct db d = db_new();
    once_error err = {0, ""};

    T_EQ(claim(&d, "a", "x"), ONCE_ETX);
    begin(&d);
    T_EQ(once_message_purge(&d.tx, NULL, &err), ONCE_ETX);
    T_EQ(once_message_init(&d.tx, 0, &err), ONCE_ETX);
    if (d.pg != NULL) {
        PQclear(PQexec(d.pg, "SELECT 1/0"));
        T_EQ(claim(&d, "a", "x"), ONCE_ETX);
    }
    roll_back(&d);
    if (d.lite != NULL) {
        sql(&d, NULL, "BEGIN");
        T_EQ(claim(&d, "a", "x"), ONCE_ETX);
        sql(&d, NULL, "SELECT count(*) FROM @inbox");
        T_EQ(claim(&d, "a", "x"), ONCE_ETX);
        roll_back(&d);
    }
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 0);
    db_end(&d);
}

static void a_session_that_loses_commits_is_refused(void)
{
    struct db d = db_new();
    once_message m = out(NULL, "x");

    T_EQ(once_message_check(&d.tx, NULL), ONCE_OK);
    sql(&d, NULL, "%s",
        as(&d, "SET synchronous_commit=off", "PRAGMA synchronous=1",
           "SET sql_log_bin=0"));
    T_EQ(once_message_check(&d.tx, NULL), ONCE_EOPEN);
    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_EOPEN);
    roll_back(&d);
    begin(&d);
    T_EQ(once_emit(&d.tx, &m, NULL, NULL), ONCE_EOPEN);
    roll_back(&d);
    begin(&d);
    T_EQ(once_barrier_enter(&d.tx, "g", "1", ONCE_TRY, NULL), ONCE_EOPEN);
    roll_back(&d);
    db_end(&d);
}

static void a_journal_that_is_not_kept_is_refused(void)
{
    static const char *const modes[] = {"memory", "off"};
    struct db d = db_new();
    size_t i;

    sql(&d, NULL, "PRAGMA journal_mode=delete");
    T_EQ(once_message_check(&d.tx, NULL), ONCE_OK);
    for (i = 0; i < 2; i++) {
        sql(&d, NULL, "PRAGMA journal_mode=%s", modes[i]);
        T_EQ(once_message_check(&d.tx, NULL), ONCE_EOPEN);
        begin(&d);
        T_EQ(claim(&d, "a", "x"), ONCE_EOPEN);
        commit(&d); /* there is no way back without a journal */
    }
    db_end(&d);
}

/* One transaction that claims `id`, or emits, on SQLite; what it was answered. */
static int one_claim(struct db *d, const char *id, const char *end)
{
    int rc;

    begin(d);
    rc = claim(d, id, "x");
    sql(d, NULL, "%s", end);
    return rc;
}

static int one_emit(struct db *d, const char *end)
{
    once_message m = out(NULL, "x");
    int rc;

    begin(d);
    rc = once_emit(&d->tx, &m, NULL, NULL);
    sql(d, NULL, "%s", end);
    return rc;
}

/* What was found in one transaction says nothing about the next one. */
static void a_level_is_looked_at_in_each_transaction(void)
{
    static const char *const ends[] = {"COMMIT", "ROLLBACK"};
    struct db d = db_new(), other = db_open();
    size_t i;

    for (i = 0; i < 2; i++) {
        sql(&d, NULL, "PRAGMA synchronous=FULL");
        T_EQ(one_claim(&d, "a", ends[i]), ONCE_OWNER);
        sql(&d, NULL, "PRAGMA synchronous=NORMAL");
        T_EQ(one_claim(&d, "b", "ROLLBACK"), ONCE_EOPEN);
        T_EQ(one_emit(&d, "ROLLBACK"), ONCE_EOPEN);
        sql(&d, NULL, "PRAGMA synchronous=FULL");
        T_EQ(one_emit(&d, ends[i]), ONCE_OK);
        sql(&d, NULL, "PRAGMA synchronous=NORMAL");
        T_EQ(one_emit(&d, "ROLLBACK"), ONCE_EOPEN);
        T_EQ(one_claim(&d, "b", "ROLLBACK"), ONCE_EOPEN);
        sql(&d, NULL, "DELETE FROM @inbox");
    }
    /* The row that was rolled back here is there, but of another handle. */
    sql(&d, NULL, "PRAGMA synchronous=FULL");
    T_EQ(one_claim(&d, "a", "ROLLBACK"), ONCE_OWNER);
    T_EQ(one_claim(&other, "a", "COMMIT"), ONCE_OWNER);
    sql(&d, NULL, "PRAGMA synchronous=NORMAL");
    T_EQ(one_claim(&d, "b", "ROLLBACK"), ONCE_EOPEN);
    db_close(&other);
    db_end(&d);
}

/* Claims rest on it: SQLite has no other way to say that it refuses. */
static void a_transaction_that_has_written_keeps_level_and_journal(void)
{
    static const char *const modes[] = {"delete", "wal"};
    struct db d = db_new();
    char now[64], mode[64];
    size_t i;

    for (i = 0; i < 2; i++) {
        sql(&d, NULL, "PRAGMA journal_mode=%s", modes[i]);
        sql(&d, NULL, "DELETE FROM @inbox");
        begin(&d);
        T_EQ(claim(&d, "a", "x"), ONCE_OWNER);
        T_EQ(sqlite3_exec(d.lite, "PRAGMA synchronous=OFF", NULL, NULL, NULL),
             SQLITE_ERROR);
        (void)sqlite3_exec(d.lite, "PRAGMA journal_mode=memory", NULL, NULL,
                           NULL);
        sql(&d, now, "PRAGMA synchronous");
        sql(&d, mode, "PRAGMA journal_mode");
        T_STR(now, "2");
        T_STR(mode, modes[i]);
        T_EQ(claim(&d, "b", "x"), ONCE_OWNER);
        commit(&d);
    }
    db_end(&d);
}

/* Before the first row SQLite lets a transaction change its journal. */
static void a_journal_is_looked_at_until_a_row_is_written(void)
{
    struct db d = db_new();

    sql(&d, NULL, "PRAGMA journal_mode=delete");
    T_EQ(one_claim(&d, "a", "COMMIT"), ONCE_OWNER);
    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_REPEATED);
    sql(&d, NULL, "PRAGMA journal_mode=memory");
    T_EQ(claim(&d, "b", "x"), ONCE_EOPEN);
    roll_back(&d);
    db_end(&d);
}

/* What a trigger of the program's refuses is not passed over. */
static void a_trigger_on_the_inbox_may_refuse(void)
{
    struct db d = db_new();

    sql(&d, NULL, "CREATE TABLE seen(id TEXT UNIQUE)");
    sql(&d, NULL, "INSERT INTO seen VALUES('a')");
    sql(&d, NULL,
        "CREATE TRIGGER see AFTER INSERT ON once_inbox BEGIN"
        " INSERT INTO seen VALUES(new.id); END");
    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_EOPEN);
    roll_back(&d);
    begin(&d);
    T_EQ(claim(&d, "b", "x"), ONCE_OWNER);
    commit(&d);
    T_EQ(number(&d, "SELECT count(*) FROM seen"), 2);
    db_end(&d);
}

static void statements_are_prepared_for_one_handle(void)
{
    struct db d = db_new(), other = db_open();
    once_prepared *p = NULL, *none = NULL;

    T_EQ(once_prepared_new(NULL, &none, NULL), ONCE_EINVAL);
    T_OK(none == NULL);
    once_prepared_free(none);
    if (d.tx.prepared == NULL)
        T_EQ(once_prepared_new(d.lite, &d.tx.prepared, NULL), ONCE_OK);
    p = d.tx.prepared;
    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_OWNER);
    T_EQ(claim(&d, "a", "x"), ONCE_REPEATED);
    commit(&d);
    begin(&other);
    once_prepared_free(other.tx.prepared);
    other.tx.prepared = p;
    T_EQ(claim(&other, "b", "x"), ONCE_EINVAL);
    other.tx.prepared = NULL;
    T_EQ(claim(&other, "b", "x"), ONCE_OWNER);
    commit(&other);
    T_EQ(sqlite3_close(d.lite), SQLITE_BUSY); /* it has statements */
    /* Other tables under it: prepared again by itself. */
    sql(&other, NULL, "ALTER TABLE once_inbox ADD COLUMN more INTEGER");
    sql(&other, NULL, "ALTER TABLE once_inbox DROP COLUMN more");
    begin(&d);
    T_EQ(claim(&d, "c", "x"), ONCE_OWNER);
    roll_back(&d);
    db_close(&other);
    db_end(&d);
}

/* Its commits may be lost, and not together with those of the program's file. */
static void tables_of_an_attached_database_are_none(void)
{
    struct db d = db_new(), bare;
    char path[sizeof(place)];

    (void)snprintf(path, sizeof(path), "%s", place);
    bare = db_bare();
    sql(&bare, NULL, "ATTACH '%s' AS other", path);
    sql(&bare, NULL, "PRAGMA other.synchronous=OFF");
    begin(&bare);
    T_EQ(claim(&bare, "a", "x"), ONCE_EOPEN);
    roll_back(&bare);
    db_end(&bare);
    (void)snprintf(place, sizeof(place), "%s", path);
    sql(&d, NULL,
        "CREATE TEMP TABLE once_inbox AS SELECT * FROM main.once_inbox");
    begin(&d);
    T_EQ(claim(&d, "b", "x"), ONCE_OWNER);
    commit(&d);
    T_EQ(number(&d, "SELECT count(*) FROM main.once_inbox"), 1);
    db_end(&d);
}

static void other_tables_are_refused(void)
{
    struct db d = db_bare();

    T_EQ(once_message_check(&d.tx, NULL), ONCE_EOPEN);
    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_EOPEN);
    roll_back(&d);
    T_EQ(once_message_init(&d.tx, 1, NULL), ONCE_EINVAL);
    T_EQ(once_message_init(&d.tx, KEEP_MS, NULL), ONCE_OK);
    T_EQ(once_message_init(&d.tx, 2 * KEEP_MS, NULL), ONCE_OK); /* again */
    T_EQ(number(&d, "SELECT keep_ms FROM @message_meta"), KEEP_MS);
    sql(&d, NULL, "UPDATE @message_meta SET version=99");
    T_EQ(once_message_check(&d.tx, NULL), ONCE_EVERSION);
    T_EQ(once_message_init(&d.tx, KEEP_MS, NULL), ONCE_EVERSION);
    T_EQ(number(&d, "SELECT version FROM @message_meta"), 99);
    db_end(&d);
}

/* What SQLSTATE a statement ends with; "" if it succeeds. */
static void fails(struct db *d, const char *text, char out[8])
{
    char full[400];
    const char *state;
    PGresult *r;

    once__sql_in_schema(text, place, full, sizeof(full));
    r = PQexecParams(d->pg, full, 0, NULL, NULL, NULL, NULL, 0);
    state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    (void)snprintf(out, 8, "%s", state == NULL ? "" : state);
    PQclear(r);
}

/* As bytea a string would lose its backslash, or be an error. */
static void a_text_is_kept_as_it_is(void)
{
    struct db d = db_new();
    char text[64];

    begin(&d);
    sql(&d, NULL, "SELECT @emit('r','a\\b',42,43)");
    sql(&d, NULL, "SELECT @emit('r','\\x5c'::bytea,p_id=>'b')");
    sql(&d, NULL, "SELECT @emit('r','[1]'::jsonb,p_id=>'c')");
    sql(&d, NULL, "SELECT answer FROM @begin('c',7)");
    sql(&d, text, "SELECT @finish('c',7,1,'a\\b')");
    T_STR(text, "ok");
    sql(&d, text, "SELECT @inbox_park('c',8,NULL,3,0,NULL,'','','a\\b','')");
    T_STR(text, "parked");
    commit(&d);
    sql(&d, text,
        "SELECT string_agg(encode(body,'hex')||coalesce(key,'-')||id,',' "
        "ORDER BY seq) FROM @outbox");
    T_STR(text, "615c624243,5c-b,5b315d-c");
    sql(&d, text, "SELECT encode(result,'hex') FROM @inbox WHERE id='7'");
    T_STR(text, "615c62");
    sql(&d, text, "SELECT encode(body,'hex') FROM @parked WHERE id='8'");
    T_STR(text, "615c62");
    db_end(&d);
}

/* In autocommit it would be committed before the effect, or after it. */
static void a_call_that_is_a_transaction_is_refused(void)
{
    static const struct {
        const char *text, *state;
    } calls[] = {
        {"SELECT @.inbox_claim('c','a')", "ON017"},
        {"SELECT @.emit('r','x'::bytea)", "ON017"},
        {"SELECT @.barrier_enter('g','1','try')", "ON017"},
        {"SELECT @.saga_start('k','[{\"try\":\"r\"}]')", "ON017"},
        {"SELECT @.begin('c','a')", "ON017"},
        {"SELECT @.inbox_claim('c','p',NULL,1)", "ON017"}, /* a parked one */
        /* Nothing is to be done with it. */
        {"SELECT @.barrier_enter('g','1','cancel')", ""},
        {"SELECT @.inbox_park('c','q',NULL,3,0,NULL,'','','x','')", ""},
        /* The effect is in the same statement. */
        {"WITH c AS (SELECT @.inbox_claim('c','b') a) INSERT INTO @.effect"
         " SELECT a FROM c WHERE a='run'",
         ""},
        {"SELECT @.inbox_claim('c','d'),@.emit('r','x'::bytea)", ""},
        {"WITH e AS (INSERT INTO @.effect VALUES('e'))"
         " SELECT @.emit('r','x'::bytea)",
         ""},
    };
    struct db d = db_new();
    char state[8], text[64];
    size_t i;

    T_EQ(park(&d, "p", "x", ONCE_PARKED_WAITING), ONCE_OK);
    sql(&d, NULL, "UPDATE @parked SET attempts=1,consumer='c'");
    sql(&d, NULL, "UPDATE @inbox SET consumer='c'");
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        fails(&d, calls[i].text, state);
        if (strcmp(state, calls[i].state) != 0)
            printf("#   %s\n", calls[i].text);
        T_STR(state, calls[i].state);
    }
    T_EQ(number(&d, "SELECT count(*) FROM @inbox WHERE id IN ('b','d')"), 2);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox WHERE id='a'"), 0);
    T_EQ(number(&d, "SELECT count(*) FROM @parked WHERE id='p'"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 2);
    begin(&d); /* a claim that finds nothing to do */
    sql(&d, text, "SELECT @inbox_claim('c','a')");
    T_STR(text, "run");
    commit(&d);
    begin(&d);
    sql(&d, NULL, "SET CONSTRAINTS ALL IMMEDIATE");
    sql(&d, NULL, "SELECT @inbox_claim('c','f')");
    sql(&d, NULL, "SELECT answer FROM @begin('c','h')");
    sql(&d, NULL, "SELECT @finish('c','h',1,'x')");
    commit(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox WHERE id IN ('a','f','h')"),
         3);
    db_end(&d);
}

static void a_call_that_is_not_finished_is_not_committed(void)
{
    struct db d = db_new();
    char state[8];

    begin(&d);
    sql(&d, NULL, "SELECT answer FROM @begin('c','a')");
    sql(&d, NULL, "INSERT INTO @effect VALUES('a')");
    fails(&d, "COMMIT", state);
    T_STR(state, "ON017");
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), 0);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 0);
    begin(&d);
    sql(&d, NULL, "SELECT answer FROM @begin('c','a')");
    sql(&d, NULL, "SELECT @finish('c','a',1,'x')");
    commit(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 1);
    db_end(&d);
}

static void a_column_that_is_missing_is_named(void)
{
    struct db d = db_new();
    once_error err = {0, ""};

    sql(&d, NULL, "ALTER TABLE @parked DROP COLUMN error");
    T_EQ(once_message_check(&d.tx, &err), ONCE_EVERSION);
    T_OK(strstr(err.text, "parked.error") != NULL);
    err.text[0] = '\0';
    T_EQ(once_message_init(&d.tx, KEEP_MS, &err), ONCE_EVERSION);
    T_OK(strstr(err.text, "parked.error") != NULL);
    db_end(&d);
}

/* ---- The window -------------------------------------------------------- */

static void a_purge_makes_no_id_new_again(void)
{
    enum { MANY = 2500 };
    struct db d = db_new();
    char id[ONCE_ID_SIZE];
    uint64_t removed = 0, old = now_ms() - 2 * KEEP_MS - 3600000;
    long floor;
    int i;

    T_EQ(park(&d, "parked", "x", ONCE_PARKED_WAITING), ONCE_OK);
    begin(&d);
    for (i = 0; i < MANY; i++) {
        (void)snprintf(id, sizeof(id), "m%d", i);
        T_EQ(claim(&d, id, "x"), ONCE_OWNER);
    }
    commit(&d);
    sql(&d, NULL, "UPDATE @inbox SET at_ms=%llu", (unsigned long long)old);
    begin(&d);
    T_EQ(claim(&d, "young", "x"), ONCE_OWNER);
    commit(&d);
    T_EQ(once_message_purge(&d.tx, &removed, NULL), ONCE_OK);
    T_EQ(removed, MANY);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), 2);
    begin(&d);
    T_EQ(claim(&d, "parked", "x"), ONCE_REPEATED);
    T_EQ(claim(&d, "young", "x"), ONCE_REPEATED);
    roll_back(&d);
    floor = number(&d, "SELECT floor_ms FROM @message_meta");
    T_OK(floor > (long)old);
    /* A clock that went back: the floor stays, and refuses. */
    sql(&d, NULL, "UPDATE @message_meta SET floor_ms=%llu",
        (unsigned long long)now_ms() + 3600000);
    T_EQ(once_message_purge(&d.tx, &removed, NULL), ONCE_OK);
    T_OK(number(&d, "SELECT floor_ms FROM @message_meta") > floor);
    begin(&d);
    T_EQ(claim(&d, id_at(id, now_ms()), "x"), ONCE_OUTSIDE);
    T_EQ(once_barrier_enter(&d.tx, id, "1", ONCE_TRY, NULL), ONCE_REFUSED);
    roll_back(&d);
    db_end(&d);
}

/* An id from 2100, or a clock that was there, kept its row until then. */
static void an_id_from_the_future_is_forgotten_at_last(void)
{
    const uint64_t far = now_ms() + 100 * KEEP_MS;
    struct db d = db_new();
    char id[ONCE_ID_SIZE];
    uint64_t removed = 0;
    long at;

    begin(&d);
    T_EQ(claim(&d, id_at(id, far), "x"), ONCE_OWNER);
    commit(&d);
    T_EQ(once_message_purge(&d.tx, &removed, NULL), ONCE_OK);
    T_EQ(removed, 0);
    at = number(&d, "SELECT at_ms FROM @inbox");
    T_OK(at > (long)(now_ms() + KEEP_MS - 60000));
    T_OK(at < (long)(now_ms() + KEEP_MS + 60000));
    begin(&d);
    T_EQ(claim(&d, id, "x"), ONCE_REPEATED);
    roll_back(&d);
    sql(&d, NULL, "UPDATE @inbox SET at_ms=at_ms-%llu", /* as time goes by */
        (unsigned long long)(2 * KEEP_MS + 3660000));
    T_EQ(once_message_purge(&d.tx, &removed, NULL), ONCE_OK);
    T_EQ(removed, 1);
    db_end(&d);
}

/* They slowed each claim. */
static void what_was_done_goes_with_the_window(void)
{
    enum { MANY = 1500 };
    struct db d = db_new();
    int i;

    begin(&d);
    for (i = 0; i < MANY; i++)
        sql(&d, NULL,
            "INSERT INTO @outbox(phase,kept,due_ms,at_ms,route,id,type,headers,"
            "body) VALUES(2,%s,%llu,1,'r','m%d','','',%s)",
            as(&d, "true", "1", "1"),
            (unsigned long long)(now_ms() - KEEP_MS -
                                 (i < MANY - 2 ? 3660000 : 0)),
            i, as(&d, "''", "x''", "''"));
    sql(&d, NULL, "UPDATE @outbox SET phase=3 WHERE seq=1");
    commit(&d);
    T_EQ(once_message_purge(&d.tx, NULL, NULL), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 3);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE phase=3"), 1);
    db_end(&d);
}

/* Whoever retries a dead letter may be later than any copy of it: the parked row
 * answers for its id, and from its effect on the window counts anew. */
static void a_dead_letter_older_than_the_window_runs_once(void)
{
    struct once__parked_list list = {NULL, 0, 0, NULL};
    struct db d = db_new();
    once_message m = in("a", "x");

    T_EQ(park(&d, "a", "x", ONCE_PARKED_DEAD), ONCE_OK);
    sql(&d, NULL, "UPDATE @inbox SET at_ms=%llu",
        (unsigned long long)(now_ms() - 2 * KEEP_MS - 3600000));
    T_EQ(once_message_purge(&d.tx, NULL, NULL), ONCE_OK);
    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_REPEATED);
    roll_back(&d);
    T_EQ(once__parked_decide(&d.tx, number(&d, "SELECT no FROM @parked"),
                             ONCE_PARKED_DEAD, 0, ONCE__PARKED_RETRY, "why",
                             NULL),
         ONCE_OK);
    T_EQ(once__parked_take(&d.tx, "billing", 60000, 0, &list, NULL), ONCE_OK);
    T_EQ(list.n, 1);
    once__parked_clear(&list);
    m.attempt = 1;
    begin(&d);
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_OWNER);
    commit(&d);
    T_EQ(once_message_purge(&d.tx, NULL, NULL), ONCE_OK);
    begin(&d);
    T_EQ(once_inbox_claim(&d.tx, &m, NULL), ONCE_REPEATED);
    T_EQ(claim(&d, "a", "x"), ONCE_REPEATED);
    roll_back(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @parked"), 0);
    db_end(&d);
}

/* A branch counts from its saga's own time: a Try that is repeated must not find
 * its row gone while its gid still looks young. */
static void a_branch_of_the_future_outlives_its_gid(void)
{
    const uint64_t day = 86400000;
    struct db d = db_new();
    char id[ONCE_ID_SIZE];

    begin(&d);
    T_EQ(once_barrier_enter(&d.tx, id_at(id, now_ms() + 30 * day), "1",
                            ONCE_TRY, NULL),
         ONCE_OWNER);
    T_EQ(once_barrier_enter(&d.tx, id, "1", ONCE_CANCEL, NULL), ONCE_OWNER);
    commit(&d);
    sql(&d, NULL, "UPDATE @message_meta SET floor_ms=%llu",
        (unsigned long long)(now_ms() + 24 * day));
    T_EQ(once_message_purge(&d.tx, NULL, NULL), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @barrier"), 1);
    db_end(&d);
}

/* ---- Many at once ------------------------------------------------------ */

enum { IDS = 40, CROWD = 6, ROUNDS = 12 };

/* One message as a consumer handles it; 1: it may be acknowledged. */
static int consume(struct db *d, const char *id, unsigned *seed)
{
    int rc;

    begin(d);
    rc = claim(d, id, "x");
    if (rc == ONCE_OWNER && draw(seed, 3) != 0) {
        sql(d, NULL, "INSERT INTO @effect VALUES('%s')", id);
        if (draw(seed, 4) != 0) {
            commit(d);
            return 1;
        }
    }
    roll_back(d);
    return rc == ONCE_REPEATED;
}

static void consumer(unsigned seed)
{
    struct db d = db_open();
    char id[16];

    for (;;) {
        (void)snprintf(id, sizeof(id), "m%u", draw(&seed, IDS));
        (void)consume(&d, id, &seed);
    }
}

/* Processes that are killed wherever they are. */
static void killed_consumers_have_one_effect_for_each_id(void)
{
    struct db d = db_new();
    unsigned seed = 7, round, i;
    pid_t pids[CROWD];
    char id[16];

    for (round = 0; round < ROUNDS; round++) {
        struct timespec nap = {0, 20000000 + (long)draw(&seed, 60) * 1000000};

        fflush(stdout);
        for (i = 0; i < CROWD; i++)
            if ((pids[i] = fork()) == 0)
                consumer(round * CROWD + i);
        (void)nanosleep(&nap, NULL);
        for (i = 0; i < CROWD; i++)
            (void)kill(pids[i], SIGKILL);
        for (i = 0; i < CROWD; i++)
            (void)waitpid(pids[i], NULL, 0);
    }
    for (i = 0; i < IDS; i++) {
        (void)snprintf(id, sizeof(id), "m%u", i);
        while (!consume(&d, id, &seed))
            ;
    }
    T_EQ(number(&d, "SELECT count(*) FROM @effect"), IDS);
    T_EQ(number(&d, "SELECT count(DISTINCT id) FROM @effect"), IDS);
    T_EQ(number(&d, "SELECT count(*) FROM @inbox"), IDS);
    db_end(&d);
}

/* Asks for `id` while `first` holds it, and ends `first` meanwhile. */
static int ask_beside(struct db *first, const char *id, const char *isolation,
                      int commits)
{
    struct db second = db_open();
    pid_t pid;
    int status;

    fflush(stdout);
    if ((pid = fork()) == 0) {
        once_message m = in(id, "x");
        struct db own = db_open();

        sql(&own, NULL,
            own.pg != NULL ? "BEGIN ISOLATION LEVEL %s"
                           : "SET TRANSACTION ISOLATION LEVEL %s",
            isolation);
        if (own.pg == NULL)
            begin(&own);
        sql(&own, NULL, "SELECT count(*) FROM @inbox"); /* takes the snapshot */
        _exit(100 + once_inbox_claim(&own.tx, &m, NULL));
    }
    while (number(&second, "%s",
                  as(&second,
                     "SELECT count(*) FROM pg_locks WHERE NOT granted"
                     " AND pid<>pg_backend_pid()",
                     "",
                     "SELECT count(*) FROM"
                     " /*M! information_schema.INNODB_LOCK_WAITS */"
                     " /*!80000 performance_schema.data_lock_waits */")) == 0) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            goto out;   /* it did not wait */
        if (is_mysql()) /* shows what is older, if asked too often */
            (void)usleep(150000);
    }
    if (commits)
        commit(first);
    else
        roll_back(first);
    (void)waitpid(pid, &status, 0);
out:
    db_close(&second);
    return (int)(signed char)(WEXITSTATUS(status) - 100);
}

static void a_copy_waits_for_the_one_before_it(void)
{
    static const char *const levels[] = {"READ COMMITTED", "REPEATABLE READ",
                                         "SERIALIZABLE"};
    struct db d = db_new();
    char id[16];
    int i;

    for (i = 0; i < 3; i++) {
        (void)snprintf(id, sizeof(id), "c%d", i);
        begin(&d);
        T_EQ(claim(&d, id, "x"), ONCE_OWNER);
        T_EQ(ask_beside(&d, id, levels[i], 1),
             i == 0 || is_mysql() ? ONCE_REPEATED : ONCE_EABORTED);
        (void)snprintf(id, sizeof(id), "r%d", i);
        begin(&d);
        T_EQ(claim(&d, id, "x"), ONCE_OWNER);
        T_EQ(ask_beside(&d, id, levels[i], 0), ONCE_OWNER);
    }
    db_end(&d);
}

static void a_copy_does_not_wait_for_ever(void)
{
    struct db d = db_new(), other = db_open();

    begin(&d);
    T_EQ(claim(&d, "a", "x"), ONCE_OWNER);
    begin(&other);
    T_EQ(claim(&other, "a", "x"), ONCE_IN_FLIGHT);
    roll_back(&other);
    commit(&d);
    begin(&other);
    T_EQ(claim(&other, "a", "x"), ONCE_REPEATED);
    roll_back(&other);
    db_close(&other);
    db_end(&d);
}

#define RUN(test) T_RUN_ONLY(only, test)

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "sqlite";
    const char *only = NULL;

    if (!take_database(what))
        only = what;
    RUN(an_id_has_one_effect);
    RUN(a_rollback_frees_the_id);
    RUN(another_body_is_refused);
    RUN(an_id_from_before_the_window_is_refused);
    RUN(a_claim_goes_with_the_savepoint_around_it);
    RUN(a_parked_message_is_kept_and_runs_once);
    RUN(what_cannot_run_becomes_a_dead_letter);
    RUN(a_message_that_is_outside_no_more_is_parked);
    RUN(a_branch_of_the_future_outlives_its_gid);
    RUN(a_message_with_the_id_of_a_mismatch_is_parked);
    RUN(a_reason_in_any_encoding_parks_a_message);
    if (server_url != NULL)
        RUN(a_message_is_not_parked_in_the_transaction_of_its_claim);
    RUN(a_message_leaves_with_its_transaction);
    RUN(a_given_id_is_emitted_once_to_a_route);
    RUN(every_order_of_a_branch_is_answered);
    RUN(a_try_that_is_too_old_is_refused);
    RUN(a_call_runs_once_and_replays_its_result);
    RUN(a_call_that_is_rolled_back_runs_again);
    RUN(an_answer_from_inside_is_not_taken_for_that_of_the_call);
    RUN(a_call_inside_itself_is_an_error);
    RUN(a_call_whose_claim_was_undone_is_an_error);
    RUN(a_message_is_no_result);
    RUN(bad_input_is_refused_before_anything_is_written);
    RUN(a_transaction_must_be_open);
    RUN(a_session_that_loses_commits_is_refused);
    if (server_url == NULL)
        RUN(a_journal_that_is_not_kept_is_refused);
    if (server_url == NULL)
        RUN(a_level_is_looked_at_in_each_transaction);
    if (server_url == NULL)
        RUN(a_transaction_that_has_written_keeps_level_and_journal);
    if (server_url == NULL)
        RUN(a_journal_is_looked_at_until_a_row_is_written);
    if (server_url == NULL)
        RUN(tables_of_an_attached_database_are_none);
    if (server_url == NULL)
        RUN(a_trigger_on_the_inbox_may_refuse);
    if (server_url == NULL)
        RUN(statements_are_prepared_for_one_handle);
    RUN(other_tables_are_refused);
    RUN(a_column_that_is_missing_is_named);
    if (is_postgres()) {
        RUN(a_text_is_kept_as_it_is);
        RUN(a_call_that_is_a_transaction_is_refused);
        RUN(a_call_that_is_not_finished_is_not_committed);
    }
    RUN(a_purge_makes_no_id_new_again);
    RUN(an_id_from_the_future_is_forgotten_at_last);
    RUN(what_was_done_goes_with_the_window);
    RUN(a_dead_letter_older_than_the_window_runs_once);
    RUN(killed_consumers_have_one_effect_for_each_id);
    if (server_url != NULL) {
        RUN(a_copy_waits_for_the_one_before_it);
        RUN(a_copy_does_not_wait_for_ever);
    }
    return t_done();
}
