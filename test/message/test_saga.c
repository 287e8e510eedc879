/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_saga.c - sagas on real databases: one text for both.
 *
 *    test_saga [sqlite | CASE]
 *    with-server postgres -- test_saga postgres [FAULTPROXY] [CASE]
 *
 * test/unit/test_saga.c holds the rules; here the database is held to them, and
 * to what is left when a relay is lost between any two statements.
 */
#include "db.h"

#include "messages/tables/saga.h"
#include "proxy.h"

/* ---- Sagas ---------------------------------------------------------------- */

/* Three steps of two routes and one: hotel, flight, mail. */
static void make_steps(once_saga_step steps[3], int confirms)
{
    static const char *const names[][3] = {{"hotel", "hotel-ok", "hotel-no"},
                                           {"flight", "flight-ok", "flight-no"},
                                           {"mail", NULL, NULL}};
    int i;

    for (i = 0; i < 3; i++) {
        steps[i] = (once_saga_step)ONCE_SAGA_STEP_INIT;
        steps[i].try_to = names[i][0];
        steps[i].confirm_to = confirms ? names[i][1] : NULL;
        steps[i].cancel_to = names[i][2];
        steps[i].type = "text/plain";
        steps[i].body = (once_bytes){"\"\\\n\0x", 5};
    }
}

static int start_in(struct db *d, const char *gid, int confirms,
                    uint64_t deadline_ms)
{
    once_saga_step steps[3];
    once_saga s = ONCE_SAGA_INIT;
    once_error err = {0, ""};
    int rc;

    make_steps(steps, confirms);
    s.gid = gid;
    s.kind = "trip";
    s.steps = steps;
    s.n = 3;
    s.deadline_ms = deadline_ms;
    rc = once_saga_start(&d->tx, &s, NULL, &err);
    if (rc < 0)
        printf("#   start: %s\n", err.text);
    return rc;
}

static void start(struct db *d, const char *gid, int confirms)
{
    begin(d);
    T_EQ(start_in(d, gid, confirms, 0), ONCE_OK);
    commit(d);
}

static int advance(struct db *d, const char *gid)
{
    struct once__saga_tally tally = {0};
    once_error err = {0, ""};
    int rc = once__saga_advance(&d->tx, gid, &tally, &err);

    if (rc < 0)
        printf("#   advance: %s\n", err.text);
    return rc;
}

/* 1 if there is such a call in the outbox. */
static int has(struct db *d, const char *id)
{
    return (int)number(d, "SELECT count(*) FROM @outbox WHERE id='%s'", id);
}

static long calls(struct db *d)
{
    return number(d, "SELECT count(*) FROM @outbox");
}

static void settle(struct db *d, const char *id, int phase)
{
    T_EQ(has(d, id), 1);
    sql(d, NULL,
        "UPDATE @outbox SET phase=%d,attempts=attempts+1,lease_ms=0,"
        "status=%d,error='said so' WHERE id='%s'",
        phase, phase == ONCE__ROW_DONE ? 200 : 409, id);
}

/* A call that a relay has claimed, and how it ends. */
struct claimed {
    char id[ONCE_ID_SIZE];
    struct once__outgoing row;
    struct once__settlement s;
};

static void claim(struct db *d, const char *gid, const char *id, int phase,
                  struct claimed *c)
{
    T_EQ(has(d, id), 1);
    sql(d, NULL,
        "UPDATE @outbox SET attempts=attempts+1,doubt=doubt+1,lease_ms=%llu"
        " WHERE id='%s'",
        (unsigned long long)now_ms() + 60000, id);
    *c = (struct claimed){.s = {.to = {.phase = phase}, .error = "said so"}};
    (void)snprintf(c->id, sizeof(c->id), "%s", id);
    c->row.saga = gid;
    c->row.m.id = c->id;
    c->row.seq = c->s.seq =
        number(d, "SELECT seq FROM @outbox WHERE id='%s'", id);
    c->row.attempts = c->s.attempts =
        (uint32_t)number(d, "SELECT attempts FROM @outbox WHERE id='%s'", id);
    c->s.status = phase == ONCE__ROW_DONE ? 200 : 409;
    c->s.reply = (once_bytes){"yes", 3};
}

/* It ends, and this and what follows are one transaction. */
static int settle_with(struct db *d, struct claimed *c)
{
    struct once__saga_tally tally = {0};
    int rc = once__saga_settle(&d->tx, &c->row, &c->s, &tally, NULL);

    T_EQ(tally.advanced, rc == ONCE_OK);
    T_EQ(c->s.ours, rc == ONCE_OK);
    return rc;
}

/* A call ends, and its relay has the saga advanced. */
static void end(struct db *d, const char *gid, const char *call, int phase)
{
    char id[ONCE_ID_SIZE];

    (void)snprintf(id, sizeof(id), "%s/%s", gid, call);
    settle(d, id, phase);
    T_EQ(advance(d, gid), ONCE_OK);
    T_EQ(has(d, id), 0);
}

static int state(struct db *d, const char *gid)
{
    return (int)number(d, "SELECT state FROM @saga WHERE gid='%s'", gid);
}

static int step_state(struct db *d, const char *gid, int branch)
{
    return (int)number(
        d, "SELECT state FROM @saga_step WHERE gid='%s' AND branch=%d", gid,
        branch);
}

static uint32_t version(struct db *d, const char *gid)
{
    return (uint32_t)number(d, "SELECT version FROM @saga WHERE gid='%s'", gid);
}

static int order(struct db *d, const char *gid, int what, size_t step)
{
    const struct once__saga_order o = {what, version(d, gid), step, "because"};

    return once__saga_decide(&d->tx, gid, &o, NULL);
}

enum {
    DONE = ONCE__ROW_DONE,
    DEAD = ONCE__ROW_DEAD,
    LOST = ONCE__ROW_INDETERMINATE
};

/* ---- Starting ------------------------------------------------------------- */

static void a_saga_starts_with_its_transaction(void)
{
    struct db d = db_new();
    char text[64];

    begin(&d);
    T_EQ(start_in(&d, "s", 1, 0), ONCE_OK);
    roll_back(&d);
    T_EQ(number(&d, "SELECT count(*) FROM @saga"), 0);
    T_EQ(number(&d, "SELECT count(*) FROM @saga_step"), 0);
    T_EQ(calls(&d), 0);
    start(&d, "s", 1);
    T_EQ(state(&d, "s"), ONCE__SAGA_GOING);
    T_EQ(step_state(&d, "s", 1), ONCE__STEP_TRYING);
    T_EQ(step_state(&d, "s", 2), ONCE__STEP_WAITING);
    T_EQ(calls(&d), 1);
    sql(&d, text,
        "SELECT headers FROM @outbox WHERE route='hotel' AND "
        "id='s/1/try' AND saga='s' AND kept%s AND phase=0 AND key "
        "IS NULL AND type='text/plain'",
        as(&d, "", "=1", "=1"));
    T_STR(text, "Once-Saga: s; branch=1; op=try\n");
    T_EQ(number(&d, "SELECT length(body) FROM @outbox"), 5);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox o, @saga_step t"
                    " WHERE o.body=t.body AND branch=1"),
         1);
    T_EQ(advance(&d, "s"), ONCE_OK); /* nothing has ended */
    T_EQ(version(&d, "s"), 1);
    T_EQ(advance(&d, "t"), ONCE_FREE);
    db_end(&d);
}

static void a_gid_is_started_once(void)
{
    struct db d = db_new();
    once_saga_step steps[3];
    once_saga s = ONCE_SAGA_INIT;
    char gid[ONCE_ID_SIZE], old[ONCE_ID_SIZE];

    make_steps(steps, 1);
    s.kind = "trip";
    s.steps = steps;
    s.n = 3;
    start(&d, "s", 1);
    begin(&d);
    T_EQ(start_in(&d, "s", 1, 0), ONCE_REPEATED);
    commit(&d);
    begin(&d);
    T_EQ(start_in(&d, "s", 0, 0), ONCE_MISMATCH);
    roll_back(&d);
    T_EQ(calls(&d), 1);
    begin(&d);
    T_EQ(once_saga_start(&d.tx, &s, gid, NULL), ONCE_OK); /* draws one */
    T_EQ(strlen(gid), 36);
    commit(&d);
    T_EQ(state(&d, gid), ONCE__SAGA_GOING);
    (void)snprintf(old, sizeof(old), "00000001-%s", gid + 9);
    s.gid = old;
    begin(&d);
    T_EQ(once_saga_start(&d.tx, &s, NULL, NULL), ONCE_OUTSIDE);
    roll_back(&d);
    db_end(&d);
}

static int start_bad(struct db *d, const once_saga *s)
{
    int rc;

    begin(d);
    rc = once_saga_start(&d->tx, s, NULL, NULL);
    roll_back(d);
    return rc;
}

static void bad_input_is_refused_before_anything_is_written(void)
{
    struct db d = db_new();
    once_saga_step steps[36];
    once_saga good = ONCE_SAGA_INIT, bad;
    char long_gid[ONCE_GID_MAX + 2];
    int i;

    for (i = 0; i < 33; i++)
        make_steps(steps + i, 1);
    good.kind = "trip";
    good.steps = steps;
    good.n = 3;
    memset(long_gid, 'g', sizeof(long_gid));
    long_gid[sizeof(long_gid) - 1] = '\0';
    T_EQ(start_bad(&d, NULL), ONCE_EINVAL);
    bad = good, bad.size--;
    T_EQ(start_bad(&d, &bad), ONCE_EINVAL);
    bad = good, bad.gid = "a;b";
    T_EQ(start_bad(&d, &bad), ONCE_EINVAL);
    bad = good, bad.gid = "";
    T_EQ(start_bad(&d, &bad), ONCE_EINVAL);
    bad = good, bad.gid = long_gid;
    T_EQ(start_bad(&d, &bad), ONCE_ELIMIT);
    bad = good, bad.kind = NULL;
    T_EQ(start_bad(&d, &bad), ONCE_EINVAL);
    bad = good, bad.n = 0;
    T_EQ(start_bad(&d, &bad), ONCE_ELIMIT);
    bad = good, bad.n = 33;
    T_EQ(start_bad(&d, &bad), ONCE_ELIMIT);
    bad = good, bad.deadline_ms = now_ms() + 2 * KEEP_MS;
    T_EQ(start_bad(&d, &bad), ONCE_EINVAL);
    steps[1].try_to = NULL;
    T_EQ(start_bad(&d, &good), ONCE_EINVAL);
    steps[1].try_to = "a";
    steps[1].type = "\n";
    T_EQ(start_bad(&d, &good), ONCE_EINVAL);
    steps[1].type = NULL;
    steps[1].cancel_to = "";
    T_EQ(start_bad(&d, &good), ONCE_EINVAL);
    steps[1].cancel_to = NULL;
    steps[1].body = (once_bytes){long_gid, ONCE_SAGA_BODY_MAX + 1};
    T_EQ(start_bad(&d, &good), ONCE_ELIMIT);
    T_EQ(once_saga_start(&d.tx, &good, NULL, NULL), ONCE_ELIMIT);
    steps[1].body.size = 3;
    T_EQ(once_saga_start(&d.tx, &good, NULL, NULL), ONCE_ETX);
    T_EQ(number(&d, "SELECT count(*) FROM @saga"), 0);
    db_end(&d);
}

static const char *state_of(const PGresult *r)
{
    const char *text = PQresultErrorField(r, PG_DIAG_SQLSTATE);

    return text == NULL ? "" : text;
}

/* The same in SQL: what a program in another language writes. */
static void sql_starts_a_saga(void)
{
    struct db d = db_new();
    char text[64];
    size_t i;
    static const char *const bad[] = {
        "'k','{}'",
        "'k','[]'",
        "'k',NULL",
        "NULL,'[{\"try\":\"a\"}]'",
        "'k','[{}]'",
        "'k','[1]'",
        "'k','[{\"try\":\"a\",\"undo\":\"b\"}]'",
        "'k','[{\"try\":\"a\",\"type\":\"\\n\"}]'",
        "'k','[{\"try\":\"a\",\"hex\":\"0\"}]'",
        "'k','[{\"try\":\"a b\"}]'",
        "'k','[{\"try\":\"a\"}]','a/b'",
        "'k','[{\"try\":\"a\"}]','g','infinity'",
        "'k','[{\"try\":\"a\"}]','g',now()+interval '1 year'",
    };

    begin(&d);
    sql(&d, text,
        "SELECT @saga_start('trip','[{\"try\":\"hotel\",\"cancel\":\"no\","
        "\"body\":{\"b\" : 1}},{\"try\":\"mail\"}]','s')");
    commit(&d);
    T_STR(text, "s");
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE id='s/1/try' AND "
                    "type='application/json' AND body='{\"b\" : 1}'"),
         1);
    end(&d, "s", "1/try", DONE);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE id='s/2/try' AND "
                    "type='' AND body=''"),
         1);
    end(&d, "s", "2/try", DEAD);
    end(&d, "s", "1/cancel", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_UNDONE);
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char ask[300];
        PGresult *r;

        (void)snprintf(ask, sizeof(ask), "SELECT %s.saga_start(%s)", place,
                       bad[i]);
        r = PQexec(d.pg, ask);
        if (strncmp(state_of(r), "22", 2) != 0) {
            printf("#   taken: %s: %s\n", bad[i], PQresultErrorMessage(r));
            t__bad++;
        }
        PQclear(r);
    }
    T_EQ(number(&d, "SELECT count(*) FROM @saga"), 1);
    db_end(&d);
}

/* ---- Ways through a saga -------------------------------------------------- */

static void without_confirms_the_last_step_ends_it(void)
{
    struct db d = db_new();

    start(&d, "s", 0);
    end(&d, "s", "1/try", DONE);
    end(&d, "s", "2/try", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_GOING);
    end(&d, "s", "3/try", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_DONE);
    T_EQ(calls(&d), 0);
    db_end(&d);
}

static void confirms_go_side_by_side(void)
{
    struct db d = db_new();

    start(&d, "s", 1);
    end(&d, "s", "1/try", DONE);
    end(&d, "s", "2/try", DONE);
    end(&d, "s", "3/try", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_CONFIRMING);
    T_EQ(calls(&d), 2);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE route='hotel-ok'"), 1);
    end(&d, "s", "2/confirm", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_CONFIRMING);
    end(&d, "s", "1/confirm", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_DONE);
    T_EQ(step_state(&d, "s", 1), ONCE__STEP_CONFIRMED);
    T_EQ(step_state(&d, "s", 3), ONCE__STEP_TRIED);
    T_EQ(number(&d, "SELECT status FROM @saga_step WHERE branch=1"), 200);
    db_end(&d);
}

static void what_was_begun_is_undone(int how)
{
    struct db d = db_new();
    char text[64];

    start(&d, "s", 1);
    end(&d, "s", "1/try", DONE);
    end(&d, "s", "2/try", how);
    T_EQ(state(&d, "s"), ONCE__SAGA_UNDOING);
    T_EQ(calls(&d), 1);
    sql(&d, text, "SELECT error FROM @saga_step WHERE branch=2");
    T_STR(text, "said so");
    end(&d, "s", "2/cancel", DONE);
    T_EQ(calls(&d), 1);
    end(&d, "s", "1/cancel", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_UNDONE);
    T_EQ(step_state(&d, "s", 3), ONCE__STEP_WAITING);
    sql(&d, text, "SELECT note FROM @saga");
    T_STR(text, how == DEAD ? "step 2: its try was refused"
                            : "step 2: its try has an outcome that is not "
                              "known");
    db_end(&d);
}

static void a_refused_step_undoes_the_ones_before_it(void)
{
    what_was_begun_is_undone(DEAD);
}

static void a_step_in_doubt_is_undone(void)
{
    what_was_begun_is_undone(LOST);
}

static void a_stuck_saga_waits_for_an_operator(void)
{
    struct db d = db_new();
    struct once__saga_count n;

    start(&d, "s", 1);
    end(&d, "s", "1/try", DONE);
    end(&d, "s", "2/try", DEAD);
    end(&d, "s", "2/cancel", DEAD);
    T_EQ(state(&d, "s"), ONCE__SAGA_STUCK);
    T_EQ(calls(&d), 0);
    T_EQ(once__saga_stats(&d.tx, &n, NULL), ONCE_OK);
    T_EQ(n.n[ONCE__SAGA_STUCK], 1);
    T_EQ(order(&d, "s", ONCE__SAGA_ABORT, 0), ONCE_REFUSED);
    T_EQ(order(&d, "s", ONCE__SAGA_RESOLVE, 0), ONCE_REFUSED);
    T_EQ(order(&d, "s", ONCE__SAGA_RETRY, 0), ONCE_OK);
    T_EQ(order(&d, "s", ONCE__SAGA_RETRY, 0), ONCE_REFUSED);
    end(&d, "s", "2/cancel/1", LOST); /* refused: another id */
    T_EQ(state(&d, "s"), ONCE__SAGA_STUCK);
    T_EQ(order(&d, "s", ONCE__SAGA_RETRY, 0), ONCE_OK);
    end(&d, "s", "2/cancel/1", LOST); /* in doubt: the same id */
    T_EQ(order(&d, "s", ONCE__SAGA_RESOLVE, 1), ONCE_OK);
    T_EQ(state(&d, "s"), ONCE__SAGA_UNDOING);
    end(&d, "s", "1/cancel", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_UNDONE);
    T_EQ(once__saga_stats(&d.tx, &n, NULL), ONCE_OK);
    T_EQ(n.n[ONCE__SAGA_STUCK], 0);
    db_end(&d);
}

static void a_stuck_confirm_stops_no_other(void)
{
    struct db d = db_new();

    start(&d, "s", 1);
    end(&d, "s", "1/try", DONE);
    end(&d, "s", "2/try", DONE);
    end(&d, "s", "3/try", DONE);
    end(&d, "s", "1/confirm", LOST);
    T_EQ(state(&d, "s"), ONCE__SAGA_STUCK);
    end(&d, "s", "2/confirm", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_STUCK);
    T_EQ(order(&d, "s", ONCE__SAGA_RESOLVE, 0), ONCE_OK);
    T_EQ(state(&d, "s"), ONCE__SAGA_DONE);
    db_end(&d);
}

static void an_operator_aborts_a_saga(void)
{
    struct db d = db_new();
    struct once__saga_order late = {ONCE__SAGA_ABORT, 1, 0, "x"};
    char text[64];

    start(&d, "s", 1);
    end(&d, "s", "1/try", DONE);
    T_EQ(once__saga_decide(&d.tx, "s", &late, NULL), ONCE_REFUSED);
    T_EQ(once__saga_decide(&d.tx, "t", &late, NULL), ONCE_FREE);
    T_EQ(order(&d, "s", ONCE__SAGA_ABORT, 0), ONCE_OK);
    sql(&d, text, "SELECT note FROM @saga");
    T_STR(text, "because");
    T_EQ(has(&d, "s/2/try"), 0); /* nobody has it under way */
    end(&d, "s", "2/cancel", DONE);
    end(&d, "s", "1/cancel", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_UNDONE);
    T_EQ(order(&d, "s", ONCE__SAGA_ABORT, 0), ONCE_REFUSED);
    start(&d, "u", 1);
    end(&d, "u", "1/try", DONE);
    end(&d, "u", "2/try", DONE);
    end(&d, "u", "3/try", DONE);
    T_EQ(order(&d, "u", ONCE__SAGA_ABORT, 0), ONCE_REFUSED); /* too late */
    db_end(&d);
}

static void a_deadline_undoes_a_saga(void)
{
    struct once__saga_tally tally = {0};
    struct db d = db_new();

    start(&d, "s", 0);
    start(&d, "t", 1);
    end(&d, "t", "1/try", DONE);
    end(&d, "t", "2/try", DONE);
    end(&d, "t", "3/try", DONE);
    T_EQ(once__saga_due(&d.tx, &tally, NULL), ONCE_OK);
    T_EQ(tally.advanced, 0);
    sql(&d, NULL, "UPDATE @saga SET deadline_ms=%llu",
        (unsigned long long)now_ms() - 1);
    T_EQ(once__saga_due(&d.tx, &tally, NULL), ONCE_OK);
    T_EQ(tally.advanced, 1);
    T_EQ(state(&d, "s"), ONCE__SAGA_UNDOING);
    T_EQ(state(&d, "t"), ONCE__SAGA_CONFIRMING); /* there is no way back */
    T_EQ(has(&d, "s/1/try"), 0);
    end(&d, "s", "1/cancel", DONE);
    T_EQ(state(&d, "s"), ONCE__SAGA_UNDONE);
    begin(&d);
    T_EQ(start_in(&d, "p", 0, now_ms() - 1), ONCE_OK); /* over already */
    commit(&d);
    T_EQ(once__saga_due(&d.tx, &tally, NULL), ONCE_OK);
    T_EQ(state(&d, "p"), ONCE__SAGA_UNDOING);
    db_end(&d);
}

static void a_saga_may_have_many_steps(void)
{
    once_saga_step steps[ONCE_SAGA_STEPS_MAX];
    once_saga s = ONCE_SAGA_INIT;
    struct db d = db_new();
    char call[32];
    size_t i;

    for (i = 0; i < ONCE_SAGA_STEPS_MAX; i++) {
        steps[i] = (once_saga_step)ONCE_SAGA_STEP_INIT;
        steps[i].try_to = "t";
        steps[i].confirm_to = "c";
    }
    s.gid = "s";
    s.kind = "k";
    s.steps = steps;
    s.n = ONCE_SAGA_STEPS_MAX;
    begin(&d);
    T_EQ(once_saga_start(&d.tx, &s, NULL, NULL), ONCE_OK);
    commit(&d);
    for (i = 1; i <= s.n; i++) {
        (void)snprintf(call, sizeof(call), "%zu/try", i);
        end(&d, "s", call, DONE);
    }
    T_EQ(calls(&d), s.n);
    sql(&d, NULL, "UPDATE @outbox SET phase=2,attempts=2147483647");
    T_EQ(advance(&d, "s"), ONCE_OK); /* all at once */
    T_EQ(state(&d, "s"), ONCE__SAGA_DONE);
    T_EQ(calls(&d), 0);
    db_end(&d);
}

static void keep_no_other_waiting(const char *damage)
{
    struct once__saga_tally tally = {0};
    struct db d = db_new();

    start(&d, "a", 0);
    start(&d, "b", 0);
    sql(&d, NULL, "%s", damage);
    settle(&d, "a/1/try", DONE);
    settle(&d, "b/1/try", DONE);
    T_EQ(once__saga_due(&d.tx, &tally, NULL), ONCE_ECORRUPT);
    T_EQ(tally.advanced, 1);
    T_EQ(once__saga_advance(&d.tx, "a", &tally, NULL), ONCE_ECORRUPT);
    T_EQ(has(&d, "a/1/try"), 1);
    T_EQ(has(&d, "b/2/try"), 1);
    db_end(&d);
}

static void a_damaged_saga_keeps_no_other_waiting(void)
{
    keep_no_other_waiting("UPDATE @saga_step SET state=99 WHERE gid='a'");
    keep_no_other_waiting("DELETE FROM @saga_step WHERE gid='a' AND branch=1");
}

/* ---- Rows that come late -------------------------------------------------- */

static void a_try_under_way_is_left_to_its_relay(void)
{
    struct db d = db_new();
    int phase;
    char gid[8];

    for (phase = ONCE__ROW_READY; phase <= ONCE__ROW_INDETERMINATE; phase++) {
        (void)snprintf(gid, sizeof(gid), "s%d", phase);
        start(&d, gid, 0);
        sql(&d, NULL,
            "UPDATE @outbox SET attempts=1,lease_ms=%llu WHERE saga='%s'",
            (unsigned long long)now_ms() + 60000, gid);
        T_EQ(order(&d, gid, ONCE__SAGA_ABORT, 0), ONCE_OK);
        T_EQ(calls(&d), 2);
        end(&d, gid, "1/cancel", DONE);
        T_EQ(state(&d, gid), ONCE__SAGA_UNDONE);
        T_EQ(calls(&d), 1);
        end(&d, gid, "1/try", phase); /* whatever it came to: it goes */
        T_EQ(state(&d, gid), ONCE__SAGA_UNDONE);
        T_EQ(calls(&d), 0);
    }
    db_end(&d);
}

static void what_a_lost_relay_left_is_found(void)
{
    struct once__saga_tally tally = {0};
    struct db d = db_new();
    int i;

    start(&d, "s", 1);
    for (i = 1; i <= 3; i++) {
        char id[16];

        (void)snprintf(id, sizeof(id), "s/%d/try", i);
        settle(&d, id, DONE); /* and then it dies */
        T_EQ(once__saga_due(&d.tx, &tally, NULL), ONCE_OK);
    }
    settle(&d, "s/1/confirm", DONE);
    settle(&d, "s/2/confirm", DONE);
    T_EQ(once__saga_due(&d.tx, &tally, NULL), ONCE_OK);
    T_EQ(state(&d, "s"), ONCE__SAGA_DONE);
    T_EQ(calls(&d), 0);
    T_EQ(tally.advanced, 4);
    T_EQ(tally.done, 1);
    T_EQ(once__saga_due(&d.tx, &tally, NULL), ONCE_OK);
    T_EQ(tally.advanced, 4);
    db_end(&d);
}

/* The id of its next call is taken: a program emitted it. */
static void a_saga_that_cannot_go_on_stops_no_other(void)
{
    struct once__saga_tally tally = {0};
    struct db d = db_new();
    char route[64] = "";

    start(&d, "a", 1);
    start(&d, "b", 1);
    settle(&d, "a/1/try", DONE);
    settle(&d, "b/1/try", DONE);
    sql(&d, route, "SELECT try_to FROM @saga_step WHERE gid='a' AND branch=2");
    sql(&d, NULL,
        "INSERT INTO @outbox(phase,kept,due_ms,at_ms,route,id,type,headers,"
        "body) VALUES (0,%s,0,0,'%s','a/2/try','','',%s)",
        as(&d, "true", "1", "1"), route, as(&d, "''", "x''", "''"));
    T_OK(once__saga_due(&d.tx, &tally, NULL) < 0);
    T_EQ(step_state(&d, "a", 1), ONCE__STEP_TRYING);
    T_EQ(step_state(&d, "b", 1), ONCE__STEP_TRIED);
    sql(&d, NULL, "DELETE FROM @outbox WHERE id='a/2/try'");
    T_EQ(once__saga_due(&d.tx, &tally, NULL), ONCE_OK);
    T_EQ(step_state(&d, "a", 1), ONCE__STEP_TRIED);
    db_end(&d);
}

static void an_operator_decides_about_a_row_of_a_saga(void)
{
    struct db d = db_new();
    long seq;

    start(&d, "s", 0);
    seq = number(&d, "SELECT seq FROM @outbox");
    T_EQ(once__outbox_decide(&d.tx, seq, ONCE__ROW_READY, 0, ONCE__OUTBOX_DROP,
                             "no", NULL),
         ONCE_REFUSED); /* the saga would wait for ever */
    settle(&d, "s/1/try", DEAD);
    T_EQ(once__outbox_decide(&d.tx, seq, DEAD, 1, ONCE__OUTBOX_RETRY, "yes",
                             NULL),
         ONCE_OK);
    T_EQ(advance(&d, "s"), ONCE_OK);
    T_EQ(state(&d, "s"), ONCE__SAGA_GOING);
    settle(&d, "s/1/try", LOST);
    T_EQ(once__outbox_decide(&d.tx, seq, LOST, 2, ONCE__OUTBOX_RESOLVE, "yes",
                             NULL),
         ONCE_OK);
    T_EQ(advance(&d, "s"), ONCE_OK);
    T_EQ(step_state(&d, "s", 1), ONCE__STEP_TRIED);
    db_end(&d);
}

static void a_confirm_insists(void)
{
    struct once__outgoing row = {.saga = "g:1"};

    row.m.id = "g:1/2/try";
    T_EQ(once__saga_insists(&row), 0);
    row.m.id = "g:1/2/confirm";
    T_EQ(once__saga_insists(&row), 1);
    row.m.id = "g:1/32/cancel/7";
    T_EQ(once__saga_insists(&row), 1);
    row.m.id = "g:1/33/cancel";
    T_EQ(once__saga_insists(&row), 0);
    row.m.id = "g:1/2/cancelled";
    T_EQ(once__saga_insists(&row), 0);
    row.m.id = "g:12/2/cancel";
    T_EQ(once__saga_insists(&row), 0);
    row.saga = NULL;
    row.m.id = "g:1/2/cancel";
    T_EQ(once__saga_insists(&row), 0);
}

/* ---- The database against the rules ---------------------------------------- */

/* What should stand there. */
struct model {
    struct once__saga saga;
    struct once__saga_call live[ONCE__SAGA_CALLS_MAX];
    size_t n;
};

static const char *name(char id[ONCE_ID_SIZE], const char *gid, size_t step,
                        int op, uint32_t round)
{
    static const char *const names[] = {"", "try", "confirm", "cancel"};
    int n = snprintf(id, ONCE_ID_SIZE, "%s/%zu/%s", gid, step + 1, names[op]);

    if (round > 0)
        (void)snprintf(id + n, ONCE_ID_SIZE - (size_t)n, "/%u", round);
    return id;
}

static void expect(struct model *m, struct once__saga_event e)
{
    struct once__saga_next next = once__saga_next(&m->saga, &e);
    size_t i, k = 0;

    for (i = 0; i < next.n; i++)
        m->live[m->n++] = next.call[i];
    for (i = 0; i < m->n; i++) /* nobody has a call under way in this test */
        if (!once__saga_unwanted(&m->saga, m->live[i].op))
            m->live[k++] = m->live[i];
    m->n = k;
}

static void compare(struct db *d, const char *gid, const struct model *m,
                    const char *how)
{
    struct once__saga_row row;
    struct once__saga_step_row steps[ONCE_SAGA_STEPS_MAX];
    char id[ONCE_ID_SIZE];
    int bad = t__bad;
    size_t i;

    T_EQ(once__saga_get(&d->tx, gid, &row, steps, NULL), ONCE_OK);
    T_EQ(row.state, m->saga.state);
    T_EQ(row.steps, m->saga.n);
    for (i = 0; i < m->saga.n; i++)
        T_MEM(&steps[i].step, &m->saga.step[i], sizeof(steps[i].step));
    T_EQ(number(d, "SELECT count(*) FROM @outbox WHERE saga='%s'", gid), m->n);
    for (i = 0; i < m->n; i++) {
        const struct once__saga_call *c = &m->live[i];

        T_EQ(has(d, name(id, gid, c->step, c->op, c->round)), 1);
        T_EQ(steps[m->live[i].step].seq > 0, 1);
    }
    if (t__bad != bad)
        printf("#   after %s of %s\n", how, gid);
}

/* One event, at random, to both. */
static void take_step(struct db *d, const char *gid, struct model *m,
                      unsigned *seed)
{
    struct once__saga_event e = {0};
    struct once__saga then;
    struct claimed c;
    unsigned what = draw(seed, 10);
    char id[ONCE_ID_SIZE];
    size_t i;

    if (what < 7 && m->n > 0) {
        i = draw(seed, (unsigned)m->n);
        e = (struct once__saga_event){
            ONCE__SAGA_ENDED, m->live[i].step, m->live[i].op, m->live[i].round,
            draw(seed, 3) == 0 ? DONE + 1 + (int)draw(seed, 2) : DONE};
        (void)name(id, gid, e.step, e.op, e.round);
        if (draw(seed, 2) == 0) {
            settle(d, id, e.phase);
            T_EQ(advance(d, gid), ONCE_OK);
        } else {
            claim(d, gid, id, e.phase, &c);
            T_EQ(settle_with(d, &c), ONCE_OK);
        }
        m->live[i] = m->live[--m->n];
    } else if (what == 7 && draw(seed, 6) == 0) {
        e.what = ONCE__SAGA_LATE;
        sql(d, NULL, "UPDATE @saga SET deadline_ms=1 WHERE gid='%s'", gid);
        T_EQ(advance(d, gid), ONCE_OK);
    } else {
        e.what = draw(seed, 8) == 0   ? ONCE__SAGA_ABORT
                 : draw(seed, 2) == 0 ? ONCE__SAGA_RETRY
                                      : ONCE__SAGA_RESOLVE;
        e.step = draw(seed, (unsigned)m->saga.n);
        then = m->saga;
        T_EQ(order(d, gid, e.what, e.step),
             once__saga_next(&then, &e).fits ? ONCE_OK : ONCE_REFUSED);
    }
    expect(m, e);
    compare(d, gid, m, e.what == ONCE__SAGA_ENDED ? id : "an order");
}

static void start_random(struct db *d, const char *gid, struct model *m,
                         unsigned *seed)
{
    once_saga_step steps[3];
    once_saga s = ONCE_SAGA_INIT;
    size_t i;

    memset(m, 0, sizeof(*m));
    s.gid = gid;
    s.kind = "random";
    s.steps = steps;
    s.n = m->saga.n = 1 + draw(seed, 3);
    for (i = 0; i < s.n; i++) {
        m->saga.step[i].has_confirm = (int)draw(seed, 2);
        m->saga.step[i].has_cancel = (int)draw(seed, 2);
        steps[i] = (once_saga_step)ONCE_SAGA_STEP_INIT;
        steps[i].try_to = "a";
        steps[i].confirm_to = m->saga.step[i].has_confirm ? "b" : NULL;
        steps[i].cancel_to = m->saga.step[i].has_cancel ? "c" : NULL;
    }
    begin(d);
    T_EQ(once_saga_start(&d->tx, &s, NULL, NULL), ONCE_OK);
    commit(d);
    expect(m, (struct once__saga_event){.what = ONCE__SAGA_BEGIN});
    compare(d, gid, m, "start");
}

static void the_database_does_what_the_rules_say(void)
{
    struct db d = db_new();
    struct model m;
    unsigned seed = 1;
    char gid[16];
    int i, k, ends[6] = {0};

    for (i = 0; i < 40 && t__bad == 0; i++) {
        (void)snprintf(gid, sizeof(gid), "r%d", i);
        start_random(&d, gid, &m, &seed);
        for (k = 0; k < 30 && t__bad == 0 && m.saga.state != ONCE__SAGA_DONE &&
                    m.saga.state != ONCE__SAGA_UNDONE;
             k++)
            take_step(&d, gid, &m, &seed);
        ends[m.saga.state]++;
    }
    T_OK(ends[ONCE__SAGA_DONE] > 0 && ends[ONCE__SAGA_UNDONE] > 0);
    db_end(&d);
}

/* ---- Many relays ----------------------------------------------------------- */

/* Another process, which advances a saga when it is told to, or settles this call
 * of it. A handle of SQLite must not be open when a process forks. */
struct elsewhere {
    pid_t pid;
    int go[2];
};

static struct elsewhere start_elsewhere(struct db *d, const char *gid,
                                        struct claimed *c, int answer)
{
    struct elsewhere e = {-1, {-1, -1}};
    struct db other;
    char byte;

    db_close(d);
    assert(pipe(e.go) == 0);
    e.pid = fork();
    if (e.pid == 0) {
        assert(read(e.go[0], &byte, 1) == 1);
        other = db_open();
        _exit((c == NULL ? advance(&other, gid) : settle_with(&other, c)) !=
              answer);
    }
    *d = db_open();
    return e;
}

/* Lets it read, and waits until it has to wait for this one's transaction: what
 * it has read is old when it comes to write. */
static void let_it_read(struct db *d, const struct elsewhere *e)
{
    struct db other;
    long waits = 0;
    int i;

    assert(write(e->go[1], "g", 1) == 1);
    if (d->pg == NULL) { /* nobody can see it wait */
        (void)usleep(300000);
        return;
    }
    other = db_open();
    for (i = 0; i < 3000 && waits == 0; i++) {
        (void)usleep(10000);
        waits = number(&other, "SELECT count(*) FROM pg_stat_activity WHERE "
                               "wait_event_type='Lock' AND query LIKE "
                               "'%%saga_%%e_1(%%'");
    }
    T_EQ(waits, 1);
    db_close(&other);
}

static void expect_success(const struct elsewhere *e)
{
    int status = 0;

    T_EQ(waitpid(e->pid, &status, 0), e->pid);
    T_EQ(status, 0);
    (void)close(e->go[0]);
    (void)close(e->go[1]);
}

static void a_decision_that_comes_too_late_is_made_again(void)
{
    struct db d = db_new();
    struct elsewhere e;

    start(&d, "s", 0);
    settle(&d, "s/1/try", DONE);
    e = start_elsewhere(&d, "s", NULL, ONCE_OK);
    begin(&d); /* as an operator's abort, while another has read it */
    sql(&d, NULL, "UPDATE @saga SET version=version+1,state=%d",
        ONCE__SAGA_UNDOING);
    sql(&d, NULL, "UPDATE @saga_step SET state=%d WHERE branch=1",
        ONCE__STEP_CANCELLING);
    let_it_read(&d, &e);
    commit(&d);
    expect_success(&e);
    T_EQ(state(&d, "s"), ONCE__SAGA_UNDOING);
    T_EQ(calls(&d), 0); /* no Try after that */
    T_EQ(step_state(&d, "s", 2), ONCE__STEP_WAITING);
    T_EQ(version(&d, "s"), 3);
    db_end(&d);
}

static void a_call_that_has_changed_is_read_again(void)
{
    struct db d = db_new();
    struct elsewhere e;

    start(&d, "s", 0);
    settle(&d, "s/1/try", DEAD);
    e = start_elsewhere(&d, "s", NULL, ONCE_OK);
    begin(&d); /* as an operator's retry of the row */
    sql(&d, NULL, "UPDATE @outbox SET phase=0");
    let_it_read(&d, &e);
    commit(&d);
    expect_success(&e);
    T_EQ(state(&d, "s"), ONCE__SAGA_GOING);
    T_EQ(has(&d, "s/1/try"), 1);
    T_EQ(version(&d, "s"), 1);
    begin(&d); /* as a relay's claim of a Try that an abort found waiting */
    sql(&d, NULL, "UPDATE @outbox SET attempts=attempts+1,lease_ms=%llu",
        (unsigned long long)now_ms() + 60000);
    commit(&d);
    T_EQ(order(&d, "s", ONCE__SAGA_ABORT, 0), ONCE_OK);
    T_EQ(has(&d, "s/1/try"), 1);
    db_end(&d);
}

/* PostgreSQL: a claim of many writes none of its rows. */
static void a_call_that_was_claimed_is_not_taken_back(void)
{
    struct db d = db_new();
    struct elsewhere e;

    start(&d, "s", 0);
    sql(&d, NULL,
        "INSERT INTO @outbox (phase,kept,due_ms,at_ms,route,id,type,headers,"
        "body) SELECT 0,false,0,1,route,'x','','','' FROM @outbox,"
        "generate_series(1,4)");
    sql(&d, NULL, "UPDATE @saga SET deadline_ms=1");
    e = start_elsewhere(&d, "s", NULL, ONCE_OK);
    begin(&d); /* as a relay that claims while the saga has been read */
    sql(&d, NULL, "SELECT @lock_1(hashtext(route),true) FROM @outbox LIMIT 1");
    let_it_read(&d, &e);
    sql(&d, NULL,
        "SELECT count(*) FROM @outbox_claim_1((SELECT min(route) FROM @outbox),"
        "10,60000,false,false,false)");
    commit(&d);
    expect_success(&e);
    T_EQ(number(&d, "SELECT count(*) FROM @relay_lease"), 1);
    T_EQ(has(&d, "s/1/try"), 1);
    db_end(&d);
}

/* ---- A call's end and what follows, in one transaction --------------------- */

/* What the saga of this call was before it ended. */
static void expect_nothing(struct db *d, const struct claimed *c)
{
    T_EQ(version(d, c->row.saga), 1);
    T_EQ(step_state(d, c->row.saga, 1), ONCE__STEP_TRYING);
    T_EQ(step_state(d, c->row.saga, 2), ONCE__STEP_WAITING);
    T_EQ(number(d,
                "SELECT count(*) FROM @saga_step WHERE gid='%s' AND (status IS"
                " NOT NULL OR reply IS NOT NULL OR error<>'')",
                c->row.saga),
         0);
    T_EQ(number(d, "SELECT count(*) FROM @outbox WHERE saga='%s'", c->row.saga),
         1);
    T_EQ(has(d, c->id), 1);
}

static void a_call_ends_with_what_follows_from_it(void)
{
    struct db d = db_new();
    struct claimed c;

    start(&d, "s", 0);
    claim(&d, "s", "s/1/try", DONE, &c);
    T_EQ(settle_with(&d, &c), ONCE_OK);
    T_EQ(has(&d, "s/1/try"), 0);
    T_EQ(has(&d, "s/2/try"), 1);
    T_EQ(version(&d, "s"), 2);
    T_EQ(step_state(&d, "s", 1), ONCE__STEP_TRIED);
    T_EQ(step_state(&d, "s", 2), ONCE__STEP_TRYING);
    T_EQ(number(&d, "SELECT count(*) FROM @saga_step WHERE branch=1 AND"
                    " status=200 AND length(reply)=3 AND error='said so'"),
         1);
    T_EQ(number(&d, "SELECT count(*) FROM @saga_step WHERE status IS NULL"), 2);
    T_EQ(settle_with(&d, &c), ONCE_AGAIN); /* its answer was lost */
    T_EQ(once__outbox_settle(&d.tx, &c.s, 1, NULL), ONCE_OK);
    T_EQ(c.s.ours, 0);
    T_EQ(advance(&d, "s"), ONCE_OK);
    T_EQ(calls(&d), 1);
    T_EQ(version(&d, "s"), 2);
    claim(&d, "s", "s/2/try", LOST, &c);
    c.s.reply = (once_bytes){NULL, 0};
    T_EQ(settle_with(&d, &c), ONCE_OK);
    T_EQ(has(&d, "s/2/cancel"), 1);
    T_EQ(calls(&d), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @saga_step WHERE branch=2 AND"
                    " status=409 AND reply IS NULL"),
         1);
    db_end(&d);
}

/* What a relay that was late finds. */
static void an_end_that_is_fenced_moves_no_saga(void)
{
    static const char *const then[] = {
        "attempts=attempts+1", /* claimed by another */
        "lease_ms=0",          /* the claim was settled: it is ready again */
        "lease_ms=0,phase=1",  /* or waits */
        "lease_ms=1",          /* the lease has run out */
        "phase=4",             /* the same, with --hold */
    };
    struct db d = db_new();
    struct claimed c;
    char gid[8], id[16];
    size_t i;

    for (i = 0; i < sizeof(then) / sizeof(then[0]); i++) {
        (void)snprintf(gid, sizeof(gid), "s%zu", i);
        (void)snprintf(id, sizeof(id), "%s/1/try", gid);
        start(&d, gid, 0);
        claim(&d, gid, id, DONE, &c);
        sql(&d, NULL, "UPDATE @outbox SET %s WHERE id='%s'", then[i], id);
        T_EQ(settle_with(&d, &c), ONCE_AGAIN);
        expect_nothing(&d, &c);
        T_EQ(once__outbox_settle(&d.tx, &c.s, 1, NULL), ONCE_OK);
        T_EQ(c.s.ours, i >= 3); /* a late end counts while nobody else has it */
        T_EQ(advance(&d, gid), ONCE_OK);
        T_EQ(version(&d, gid), i >= 3 ? 2 : 1);
    }
    db_end(&d);
}

static void an_end_whose_saga_has_moved_is_read_again(void)
{
    struct db d = db_new();
    struct claimed c;
    struct elsewhere e;

    start(&d, "s", 0);
    claim(&d, "s", "s/1/try", DONE, &c);
    e = start_elsewhere(&d, "s", &c, ONCE_OK);
    begin(&d); /* as an operator's abort */
    sql(&d, NULL, "UPDATE @saga SET version=version+1,state=%d",
        ONCE__SAGA_UNDOING);
    sql(&d, NULL, "UPDATE @saga_step SET state=%d WHERE branch=1",
        ONCE__STEP_CANCELLING);
    let_it_read(&d, &e);
    commit(&d);
    expect_success(&e);
    T_EQ(calls(&d), 0); /* the Try has gone, and no other follows */
    T_EQ(step_state(&d, "s", 2), ONCE__STEP_WAITING);
    T_EQ(version(&d, "s"), 3);
    db_end(&d);
}

static void lose_lease_meanwhile(const char *how)
{
    struct db d = db_new();
    struct claimed c;
    struct elsewhere e;

    start(&d, "s", 0);
    claim(&d, "s", "s/1/try", DONE, &c);
    e = start_elsewhere(&d, "s", &c, ONCE_AGAIN);
    begin(&d);
    sql(&d, NULL, "UPDATE @outbox SET %s", how);
    let_it_read(&d, &e);
    commit(&d);
    expect_success(&e);
    expect_nothing(&d, &c);
    db_end(&d);
}

static void an_end_whose_lease_goes_meanwhile_moves_no_saga(void)
{
    lose_lease_meanwhile("attempts=attempts+1"); /* it is claimed once more */
    lose_lease_meanwhile("lease_ms=0,phase=1");  /* it was settled */
    lose_lease_meanwhile("lease_ms=0");          /* the same: ready again */
}

static void of_an_end_all_is_written_or_nothing(void)
{
    static const char *const writes[][2] = {{"UPDATE", "saga"},
                                            {"UPDATE", "saga_step"},
                                            {"DELETE", "outbox"},
                                            {"INSERT", "outbox"}};
    struct db d = db_new();
    struct claimed c;
    size_t i;

    allow_triggers(&d);
    start(&d, "s", 0);
    claim(&d, "s", "s/1/try", DONE, &c);
    for (i = 0; i < sizeof(writes) / sizeof(writes[0]); i++) {
        refuse(&d, writes[i][0], writes[i][1]);
        T_OK(settle_with(&d, &c) < ONCE_OK);
        refuse(&d, NULL, NULL);
        expect_nothing(&d, &c);
    }
    T_EQ(settle_with(&d, &c), ONCE_OK);
    T_EQ(has(&d, "s/2/try"), 1);
    db_end(&d);
}

static const char *proxy_program; /* NULL: there is none */

/* A connection through the proxy. */
static struct db db_through(const struct proxy *p)
{
    const char *direct = server_url, *port = strrchr(server_url, ':');
    char url[200];
    struct db d;

    (void)snprintf(url, sizeof(url), "%.*s:%d%s", (int)(port - direct), direct,
                   p->port, strchr(port, '/'));
    server_url = url;
    d = db_open();
    server_url = direct;
    return d;
}

enum { CUT_WHOLE, CUT_BEFORE, CUT_AFTER };

/* A call ends on a connection that is cut after so many bytes; then it is settled on
 * another one. What the first one did. */
static int cut_after(struct db *d, struct proxy *p, const char *way,
                     unsigned bytes)
{
    struct db through = db_through(p);
    struct claimed c;
    char gid[16], id[32], rule[48];
    int rc;

    (void)snprintf(gid, sizeof(gid), "%s%u", way, bytes);
    (void)snprintf(id, sizeof(id), "%s/1/try", gid);
    start(d, gid, 0);
    claim(d, gid, id, DONE, &c);
    (void)snprintf(rule, sizeof(rule), "open %s cut %u rst", way, bytes);
    proxy_do(p, rule);
    rc = settle_with(&through, &c);
    proxy_do(p, "clear");
    db_close(&through);
    if (rc != ONCE_OK) {
        T_EQ(rc, ONCE_EABORTED);
        T_EQ(once__outbox_settle(&d->tx, &c.s, 1, NULL), ONCE_OK);
        T_EQ(advance(d, gid), ONCE_OK);
    }
    T_EQ(version(d, gid), 2);
    T_EQ(has(d, id), 0);
    (void)snprintf(id, sizeof(id), "%s/2/try", gid);
    T_EQ(has(d, id), 1);
    T_EQ(number(d,
                "SELECT count(*) FROM @saga_step WHERE gid='%s' AND"
                " branch=1 AND status=200 AND state=%d",
                gid, ONCE__STEP_TRIED),
         1);
    return rc == ONCE_OK ? CUT_WHOLE : c.s.ours ? CUT_BEFORE : CUT_AFTER;
}

static void an_end_is_written_once_wherever_the_connection_is_cut(void)
{
    enum { STEP = 7, MOST = 20000 };
    static const char *const ways[] = {"up", "down"};
    const char *host = strchr(server_url, '@') + 1;
    struct db d = db_new();
    struct proxy p = {0};
    char server[64];
    unsigned bytes, seen[3];
    int i;

    (void)snprintf(server, sizeof(server), "%.*s", (int)strcspn(host, "/?"),
                   host);
    proxy_start(&p, proxy_program, server, NULL);
    for (i = 0; i < 2; i++) {
        memset(seen, 0, sizeof(seen));
        for (bytes = 1; bytes < MOST && !seen[CUT_WHOLE] && t__bad == 0;
             bytes += STEP)
            seen[cut_after(&d, &p, ways[i], bytes)]++;
        printf("# %s: cut before it was done %u times, after it %u times\n",
               ways[i], seen[CUT_BEFORE], seen[CUT_AFTER]);
        T_OK(seen[CUT_WHOLE] > 0 && seen[CUT_BEFORE] > 0);
    }
    T_OK(seen[CUT_AFTER] > 0); /* answers were lost */
    proxy_stop(&p);
    db_end(&d);
}

/* ---- Relays that are killed ------------------------------------------------ */

enum { SAGAS = 24, RELAYS = 3, KILLS = 25, CENTS = 100, LEASE_MS = 300 };

/* A service of three accounts, with a barrier. What it answers is how the call
 * ends: it refuses some, and some answers are lost. */
static int serve(struct db *d, const once_message *m, unsigned *seed)
{
    char gid[64] = "", op[16] = "";
    int branch = 0, rc, code = ONCE_TRY;

    if (sscanf(strchr(m->headers, ' ') + 1, "%63[^;]; branch=%d; op=%15s", gid,
               &branch, op) != 3)
        return ONCE__END_REJECTED;
    code = strcmp(op, "confirm") == 0  ? ONCE_CONFIRM
           : strcmp(op, "cancel") == 0 ? ONCE_CANCEL
                                       : ONCE_TRY;
    if (code == ONCE_TRY && draw(seed, 8) == 0)
        return ONCE__END_REJECTED;
    begin(d);
    (void)snprintf(op, sizeof(op), "%d", branch);
    rc = once_barrier_enter(&d->tx, gid, op, code, NULL);
    if (rc == ONCE_OWNER)
        sql(d, NULL,
            "UPDATE @account SET cents=cents+(%d),held=held+(%d) WHERE no=%d",
            code == ONCE_TRY      ? -1
            : code == ONCE_CANCEL ? 1
                                  : 0,
            code == ONCE_TRY ? 1 : -1, branch);
    if (rc == ONCE_OWNER && code == ONCE_CONFIRM)
        sql(d, NULL, "UPDATE @account SET cents=cents+1 WHERE no=4");
    commit(d);
    if (draw(seed, 10) == 0)
        return code == ONCE_TRY ? ONCE__END_UNKNOWN : ONCE__END_SILENT;
    return rc == ONCE_OWNER || rc == ONCE_REPEATED || rc == ONCE_EMPTY
               ? ONCE__END_TAKEN
               : ONCE__END_REJECTED;
}

/* A relay in small: claim, call, settle and advance, at once or one after the other;
 * killed anywhere. */
static void carry(struct db *d, const struct once__outgoing *row,
                  unsigned *seed)
{
    const struct once__row_policy policy = {
        once__saga_insists(row) ? UINT32_MAX : 3, 0, 0, 1, 20, 0};
    struct once__saga_tally tally = {0};
    struct once__settlement s = {.seq = row->seq, .attempts = row->attempts};
    int i;

    s.to = once__row_settle(&row->row, serve(d, &row->m, seed), &policy,
                            now_ms(), 0);
    s.error = "";
    if (s.to.phase >= DONE && draw(seed, 2) == 0 &&
        once__saga_settle(&d->tx, row, &s, &tally, NULL) == ONCE_OK)
        return;
    for (i = 0; i < 5 && once__outbox_settle(&d->tx, &s, 1, NULL) != ONCE_OK;
         i++)
        ;
    if (draw(seed, 4) != 0) /* the rest is for the tender */
        i = once__saga_advance(&d->tx, row->saga, &tally, NULL);
}

static void relay(unsigned seed)
{
    static const char *const routes[] = {"hotel",  "hotel-ok",  "hotel-no",
                                         "flight", "flight-ok", "flight-no",
                                         "mail"};
    struct once__saga_tally tally = {0};
    struct db d = db_open();
    size_t i, k;

    if (d.pg != NULL)
        sql(&d, NULL, "SET statement_timeout='20s'");
    for (;;) {
        for (i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
            const struct once__outbox_ask ask = {routes[i], 3, LEASE_MS,
                                                 0,         0, 1};
            struct once__outgoing_list list = {0};

            if (once__outbox_claim(&d.tx, &ask, &list, NULL) != ONCE_OK)
                continue;
            for (k = 0; k < list.n; k++)
                carry(&d, &list.rows[k], &seed);
            once__outgoing_clear(&list);
        }
        if (once__saga_due(&d.tx, &tally, NULL) == ONCE_OK)
            (void)usleep(2000);
    }
}

static pid_t start_relay(unsigned seed)
{
    pid_t pid = fork();

    if (pid == 0) {
        relay(seed);
        _exit(0);
    }
    return pid;
}

static void start_sagas(struct db *d)
{
    char gid[16];
    int i;

    sql(d, NULL,
        "CREATE TABLE @account(no INTEGER, cents INTEGER, held INTEGER)");
    for (i = 1; i <= 4; i++)
        sql(d, NULL, "INSERT INTO @account VALUES(%d,%d,0)", i,
            i < 4 ? CENTS : 0);
    for (i = 0; i < SAGAS; i++) {
        once_saga_step steps[3];
        once_saga s = ONCE_SAGA_INIT;

        make_steps(steps, 1);
        (void)snprintf(gid, sizeof(gid), "s%d", i);
        s.gid = gid;
        s.kind = "trip";
        s.steps = steps;
        s.n = 2; /* with Confirm and Cancel */
        begin(d);
        T_EQ(once_saga_start(&d->tx, &s, NULL, NULL), ONCE_OK);
        commit(d);
    }
}

static void killed_relays_leave_every_saga_whole(void)
{
    struct db d = db_new();
    pid_t pids[RELAYS];
    unsigned seed = 7;
    long open = 1, done;
    int i, k;

    start_sagas(&d);
    db_close(&d);
    for (i = 0; i < RELAYS; i++)
        pids[i] = start_relay((unsigned)i);
    for (k = 0; k < KILLS; k++) {
        i = (int)draw(&seed, RELAYS);
        (void)usleep(5000 + draw(&seed, 60000));
        (void)kill(pids[i], SIGKILL);
        (void)waitpid(pids[i], NULL, 0);
        pids[i] = start_relay((unsigned)(100 + k));
    }
    d = db_open();
    for (k = 0; k < 600 && open > 0; k++) {
        (void)usleep(100000);
        open =
            number(&d, "SELECT count(*) FROM @saga WHERE state NOT IN (3,4)");
    }
    for (i = 0; i < RELAYS; i++) {
        (void)kill(pids[i], SIGKILL);
        (void)waitpid(pids[i], NULL, 0);
    }
    T_EQ(open, 0);
    T_EQ(number(&d, "SELECT sum(held) FROM @account"), 0);
    T_EQ(number(&d, "SELECT sum(cents) FROM @account"), 3 * CENTS);
    done = number(&d, "SELECT count(*) FROM @saga WHERE state=3");
    T_EQ(number(&d, "SELECT cents FROM @account WHERE no=4"), 2 * done);
    T_OK(done > 0 && done < SAGAS);
    db_end(&d);
}

/* ---- Operators ------------------------------------------------------------- */

static void sagas_are_listed_page_by_page(void)
{
    struct once__saga_row rows[2];
    struct once__saga_step_row steps[ONCE_SAGA_STEPS_MAX];
    struct once__saga_filter all = {-1, NULL};
    struct db d = db_new();
    size_t n = 2;

    start(&d, "a", 1);
    start(&d, "b", 0);
    start(&d, "c", 1);
    end(&d, "b", "1/try", DEAD);
    T_EQ(once__saga_list(&d.tx, &all, rows, &n, NULL), ONCE_OK);
    T_EQ(n, 2);
    T_STR(rows[0].gid, "a");
    T_STR(rows[1].gid, "b");
    T_STR(rows[0].kind, "trip");
    T_EQ(rows[1].state, ONCE__SAGA_UNDOING);
    T_EQ(rows[0].steps, 3);
    T_OK(rows[0].deadline_ms > rows[0].at_ms);
    all.after = "b";
    T_EQ(once__saga_list(&d.tx, &all, rows, &n, NULL), ONCE_OK);
    T_EQ(n, 1);
    all = (struct once__saga_filter){ONCE__SAGA_UNDOING, NULL};
    n = 2;
    T_EQ(once__saga_list(&d.tx, &all, rows, &n, NULL), ONCE_OK);
    T_EQ(n, 1);
    T_STR(rows[0].note, "step 1: its try was refused");
    T_EQ(once__saga_get(&d.tx, "b", rows, steps, NULL), ONCE_OK);
    T_EQ(rows[0].steps, 3);
    T_STR(steps[0].error, "said so");
    T_STR(steps[0].cancel_to, "hotel-no");
    T_STR(steps[0].confirm_to, "");
    T_EQ(steps[0].status, 409);
    T_EQ(steps[0].step.state, ONCE__STEP_CANCELLING);
    T_OK(steps[0].seq > 0);
    T_EQ(steps[1].seq, 0);
    T_EQ(once__saga_get(&d.tx, "x", rows, steps, NULL), ONCE_FREE);
    db_end(&d);
}

static void a_saga_that_ended_is_forgotten_after_the_window(void)
{
    struct db d = db_new();

    start(&d, "over", 0);
    end(&d, "over", "1/try", DEAD);
    end(&d, "over", "1/cancel", DONE);
    start(&d, "open", 0);
    sql(&d, NULL, "UPDATE @saga SET since_ms=1");
    T_EQ(once_message_purge(&d.tx, NULL, NULL), ONCE_OK);
    T_EQ(number(&d, "SELECT count(*) FROM @saga"), 1);
    T_EQ(number(&d, "SELECT count(*) FROM @saga_step"), 3);
    T_EQ(state(&d, "open"), ONCE__SAGA_GOING);
    db_end(&d);
}

/* ---- Main ------------------------------------------------------------------ */

#define RUN(test) T_RUN_ONLY(only, test)

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "sqlite";
    const char *only = argc > 2 ? argv[2] : NULL;

    if (!take_database(what))
        only = what;
    if (only != NULL && strchr(only, '/') != NULL) {
        proxy_program = only;
        only = argc > 3 ? argv[3] : NULL;
    }
    RUN(a_saga_starts_with_its_transaction);
    RUN(a_gid_is_started_once);
    RUN(bad_input_is_refused_before_anything_is_written);
    if (is_postgres())
        RUN(sql_starts_a_saga);
    RUN(without_confirms_the_last_step_ends_it);
    RUN(confirms_go_side_by_side);
    RUN(a_refused_step_undoes_the_ones_before_it);
    RUN(a_step_in_doubt_is_undone);
    RUN(a_stuck_saga_waits_for_an_operator);
    RUN(a_stuck_confirm_stops_no_other);
    RUN(an_operator_aborts_a_saga);
    RUN(a_deadline_undoes_a_saga);
    RUN(a_saga_may_have_many_steps);
    RUN(a_damaged_saga_keeps_no_other_waiting);
    RUN(a_try_under_way_is_left_to_its_relay);
    RUN(what_a_lost_relay_left_is_found);
    RUN(a_saga_that_cannot_go_on_stops_no_other);
    RUN(an_operator_decides_about_a_row_of_a_saga);
    RUN(a_confirm_insists);
    RUN(the_database_does_what_the_rules_say);
    RUN(a_decision_that_comes_too_late_is_made_again);
    RUN(a_call_that_has_changed_is_read_again);
    if (is_postgres())
        RUN(a_call_that_was_claimed_is_not_taken_back);
    RUN(a_call_ends_with_what_follows_from_it);
    RUN(an_end_that_is_fenced_moves_no_saga);
    RUN(an_end_whose_saga_has_moved_is_read_again);
    RUN(an_end_whose_lease_goes_meanwhile_moves_no_saga);
    RUN(of_an_end_all_is_written_or_nothing);
    if (proxy_program != NULL)
        RUN(an_end_is_written_once_wherever_the_connection_is_cut);
    RUN(killed_relays_leave_every_saga_whole);
    RUN(sagas_are_listed_page_by_page);
    RUN(a_saga_that_ended_is_forgotten_after_the_window);
    return t_done();
}
