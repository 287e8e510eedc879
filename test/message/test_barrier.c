/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_barrier.c - one branch of a saga, in every order: Try, Confirm and Cancel
 * arrive twice each, and each transaction is committed or rolled back, on real
 * SQLite in memory.
 *
 * 90 orders x 64 ways to end. The branch does what it is told: it has its effect
 * where the answer is ONCE_OWNER. What must hold is asked of the rows that are
 * there then; there is no table here of what each answer should have been
 * (test_message.c has one).
 */
#include "t.h"

#include <assert.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include <once/message.h>

enum { CALLS = 6, TWICE = 2, OPS = ONCE_CANCEL + 1, TRIED = 1, UNTRIED = 4 };

static sqlite3 *lite;
static once_tx tx = ONCE_TX_INIT;

/* What is committed for one gid. */
struct ledger {
    int effects[OPS]; /* by operation */
    int phase;        /* what the barrier remembers, 0: nothing */
};

static void sql(const char *text)
{
    int rc = sqlite3_exec(lite, text, NULL, NULL, NULL);

    if (rc != SQLITE_OK)
        printf("#   %s: %s\n", text, sqlite3_errmsg(lite));
    T_EQ(rc, SQLITE_OK);
}

static int number(const char *text, const char *gid, int op)
{
    sqlite3_stmt *q = NULL;
    int n = 0;

    T_EQ(sqlite3_prepare_v2(lite, text, -1, &q, NULL), SQLITE_OK);
    (void)sqlite3_bind_text(q, 1, gid, -1, SQLITE_STATIC);
    (void)sqlite3_bind_int(q, 2, op);
    if (sqlite3_step(q) == SQLITE_ROW)
        n = sqlite3_column_int(q, 0);
    (void)sqlite3_finalize(q);
    return n;
}

static struct ledger look(const char *gid)
{
    struct ledger l = {{0}, 0};
    int op;

    for (op = ONCE_TRY; op < OPS; op++)
        l.effects[op] = number(
            "SELECT count(*) FROM effect WHERE gid=?1 AND op=?2", gid, op);
    l.phase = number("SELECT phase FROM once_barrier WHERE gid=?1", gid, 0);
    return l;
}

static int same(const struct ledger *a, const struct ledger *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* What one call may do to what was there. */
static void check_call(const struct ledger *was, const struct ledger *is,
                       int op, int rc, int committed)
{
    int runs = rc == ONCE_OWNER, remembers = runs || rc == ONCE_EMPTY, i;

    if (!committed || !remembers)
        T_OK(same(was, is));
    if (rc == ONCE_EMPTY) {
        T_EQ(op, ONCE_CANCEL);
        T_EQ(was->effects[ONCE_TRY], 0);
        T_EQ(was->phase, 0);
    }
    if (committed && rc == ONCE_EMPTY)
        T_EQ(is->phase, UNTRIED);
    if (runs && op != ONCE_TRY) /* there is something to confirm or undo */
        T_EQ(was->effects[ONCE_TRY], 1);
    if (rc == ONCE_EARLY) { /* Try may still come */
        T_EQ(op, ONCE_CONFIRM);
        T_EQ(was->phase, 0);
    }
    if (rc == ONCE_REPEATED) /* "answer as then": there was a then */
        T_OK(was->effects[op] == 1 ||
             (op == ONCE_CANCEL && was->phase == UNTRIED));
    if (was->effects[op] == 1 && was->effects[ONCE_CANCEL] == 0)
        T_EQ(rc, ONCE_REPEATED);
    for (i = ONCE_TRY; i < OPS; i++)
        if (i != op)
            T_EQ(is->effects[i], was->effects[i]);
}

/* What holds whatever happened. `empty`: a Cancel without Try was committed. */
static void check_ledger(const struct ledger *l, int empty)
{
    T_OK(l->effects[ONCE_TRY] <= 1);
    T_OK(l->effects[ONCE_CONFIRM] + l->effects[ONCE_CANCEL] <=
         l->effects[ONCE_TRY]);
    if (empty) {
        T_EQ(l->effects[ONCE_TRY], 0);
        T_EQ(l->phase, UNTRIED);
    }
}

/* One arrival; returns the answer. */
static int arrives(const char *gid, int op, int commits)
{
    char text[96];
    int rc;

    sql("BEGIN IMMEDIATE");
    rc = once_barrier_enter(&tx, gid, "1", op, NULL);
    T_OK(rc >= 0);
    if (rc == ONCE_OWNER) {
        (void)snprintf(text, sizeof(text),
                       "INSERT INTO effect VALUES('%s', %d)", gid, op);
        sql(text);
    }
    sql(commits ? "COMMIT" : "ROLLBACK");
    return rc;
}

/* All were delivered, and each of the three comes once more and is committed:
 * what was reserved is booked or given back, and nothing changes after that. */
static void check_end(const char *gid)
{
    struct ledger last, again;
    int op;

    for (op = ONCE_TRY; op < OPS; op++)
        (void)arrives(gid, op, 1);
    last = look(gid);
    T_EQ(last.effects[ONCE_CONFIRM] + last.effects[ONCE_CANCEL],
         last.effects[ONCE_TRY]);
    T_OK(last.phase > TRIED);
    for (op = ONCE_TRY; op < OPS; op++)
        (void)arrives(gid, op, 1);
    again = look(gid);
    T_OK(same(&last, &again));
}

/* One order; bit i of `commits`: how call i ends. */
static void run(const char *order, unsigned commits)
{
    static unsigned n;
    char gid[24];
    struct ledger was, is;
    int i, op, rc, committed, empty = 0, bad = t__bad;

    (void)snprintf(gid, sizeof(gid), "g%u", n++);
    is = look(gid);
    for (i = 0; i < CALLS; i++) {
        op = order[i];
        committed = (int)(commits >> i & 1);
        was = is;
        rc = arrives(gid, op, committed);
        is = look(gid);
        empty |= committed && rc == ONCE_EMPTY;
        check_call(&was, &is, op, rc, committed);
        check_ledger(&is, empty);
    }
    check_end(gid);
    if (t__bad == bad)
        return;
    printf("#   in the order");
    for (i = 0; i < CALLS; i++)
        printf(" %s%s",
               (const char *[]){"", "try", "confirm", "cancel"}[(int)order[i]],
               commits >> i & 1 ? "" : " (rolled back)");
    printf("\n");
}

/* Calls each(order) for every order in which what is left can follow. */
static unsigned orders(char order[CALLS], int i, int left[OPS])
{
    unsigned op, n = 0, commits;

    if (i == CALLS) {
        for (commits = 0; commits < 1u << CALLS; commits++)
            run(order, commits);
        return 1;
    }
    for (op = ONCE_TRY; op < OPS; op++)
        if (left[op] > 0) {
            left[op]--;
            order[i] = (char)op;
            n += orders(order, i + 1, left);
            left[op]++;
        }
    return n;
}

static void every_order_of_a_branch_keeps_its_ledger(void)
{
    char order[CALLS];
    int left[OPS] = {0, TWICE, TWICE, TWICE};
    struct ledger other;

    /* Another branch of another saga, which nobody touches. */
    T_EQ(arrives("other", ONCE_TRY, 1), ONCE_OWNER);
    T_EQ(orders(order, 0, left), 90);
    other = look("other");
    T_EQ(other.phase, TRIED);
    T_EQ(arrives("other", ONCE_CONFIRM, 1), ONCE_OWNER);
}

int main(void)
{
    once_error err = {0, ""};

    assert(sqlite3_open(":memory:", &lite) == SQLITE_OK);
    tx.sqlite = lite;
    if (once_message_init(&tx, 0, &err) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    sql("CREATE TABLE effect(gid TEXT NOT NULL, op INTEGER NOT NULL)");
    sql("CREATE INDEX effect_gid ON effect(gid, op)");
    T_RUN(every_order_of_a_branch_keeps_its_ledger);
    assert(sqlite3_close(lite) == SQLITE_OK);
    return t_done();
}
