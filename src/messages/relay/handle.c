/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.c - one message, with a connection of its own to the database.
 *
 *    BEGIN, claim --+--> ours: handler --+--> COMMIT             DONE
 *                   |                    +--> ROLLBACK           FAILED, DEAD,
 *                   |                                            UNKNOWN
 *                   +--> COMMIT: BEFORE
 *                   +--> ROLLBACK: MISMATCH, OUTSIDE, IN_FLIGHT
 *
 * What says BEFORE may be visible and not durable yet, on MySQL: the COMMIT waits
 * until it is.
 *
 * A handler with `inside` or `outside` gets no handle: the claim is taken back
 * before it begins. Afterwards it is looked up (inside), or made for good
 * (outside).
 *
 * It refuses to believe the handler about the transaction: whether it is still
 * open is asked of the connection, and only the tag COMMIT counts.
 */
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "messages/relay/consume.h"
#include "messages/relay/watch.h"
#include "base/backoff.h"

#ifdef ONCE_WITH_POSTGRES
#include <libpq-events.h>
#include <libpq-fe.h>
#endif
#ifdef ONCE_WITH_MYSQL
#include <errmsg.h>
#include <mysql.h>
#include <mysqld_error.h>
#endif

enum { TRIES = 5, PAUSE_MS = 20, PAUSE_MOST_MS = 500 };

/* ---- The connection ----------------------------------------------------- */

enum { UNREACHED = 1, UNWILLING }; /* how it is away */

int once__hand_open(struct once__hand *h, struct once__consumer *c,
                    once_error *err)
{
    int rc;

    h->c = c;
    h->b = NULL;
    h->away = 0;
    rc = once__base_open(c->o.db, ONCE__BASE_READY, &h->b, err);
    return rc == ONCE_OK ? once__watch_add(c->watch, h->b, err) : rc;
}

void once__hand_close(struct once__hand *h)
{
    if (h->b != NULL)
        once__watch_remove(h->c->watch, h->b);
    once__base_close(h->b);
    h->b = NULL;
}

/* Many threads find out, one says it. */
static void set_away(struct once__hand *h, int away, const char *text)
{
    if (away && !h->away && atomic_fetch_add(&h->c->n_away, 1) == 0)
        once__consumer_log(h->c,
                           "the database: %s; nothing is received until "
                           "it answers",
                           text);
    if (!away && h->away && atomic_fetch_sub(&h->c->n_away, 1) == 1)
        once__consumer_log(h->c, "the database answers again");
    h->away = away;
}

int once__hand_connect(struct once__hand *h)
{
    once_error err = {0, ""};
    int rc = once__base_connect(h->b, &err);

    if (rc != ONCE_OK)
        set_away(h, UNREACHED, err.text);
    else if (h->away == UNREACHED)
        set_away(h, 0, "");
    return rc == ONCE_OK;
}

/* An error of a call on the database: whether it is worth another try. */
static int outcome_of(struct once__hand *h, int rc, const once_error *err)
{
    switch (rc) {
    case ONCE_EINVAL:
    case ONCE_ELIMIT:
        return ONCE__UNFIT;
    case ONCE_EABORTED:
    case ONCE_ENOMEM:
    case ONCE_ETX:
        return ONCE__TORN;
    default:
        set_away(h, UNWILLING, err->text);
        once__base_drop(h->b); /* a handler may have spoiled the session */
        return ONCE__UNWILLING;
    }
}

void once__hand_asked(struct once__hand *h, int rc, const once_error *err)
{
    if (rc < 0)
        (void)outcome_of(h, rc, err);
    else
        set_away(h, 0, "");
}

/* ---- The transaction, as the handler leaves it --------------------------- */

enum state { OPEN, BROKEN, ENDED, LOST };

static int sqlite_state(const once_tx *tx)
{
    return sqlite3_get_autocommit(tx->sqlite) ? ENDED : OPEN;
}

#ifdef ONCE_WITH_POSTGRES
static int postgres_state(const once_tx *tx)
{
    if (PQstatus(tx->postgres) != CONNECTION_OK)
        return LOST;
    switch (PQtransactionStatus(tx->postgres)) {
    case PQTRANS_INTRANS:
        return OPEN;
    case PQTRANS_IDLE:
        return ENDED;
    case PQTRANS_UNKNOWN:
        return LOST;
    default:
        return BROKEN;
    }
}
#endif

#ifdef ONCE_WITH_MYSQL
/* Set before the handler, it goes with the transaction, whatever ended that. */
static const char mark[] = "SAVEPOINT once_handler";
static const char unmark[] = "RELEASE SAVEPOINT once_handler";

static int mysql_ask(struct once__hand *h, const char *sql)
{
    int failed = mysql_real_query(once__base_ask(h->b)->mysql, sql,
                                  (unsigned long)strlen(sql)) != 0;

    return once__base_answered(h->b, failed);
}

static int mysql_state(struct once__hand *h, MYSQL *conn)
{
    if (mysql_ask(h, unmark) == 0)
        return OPEN;
    switch (mysql_errno(conn)) {
    case ER_SP_DOES_NOT_EXIST:
        return ENDED;
    case CR_COMMANDS_OUT_OF_SYNC: /* it has left rows unread */
        return BROKEN;
    default:
        return LOST;
    }
}
#endif

static int state_of(struct once__hand *h, const once_tx *tx)
{
#ifdef ONCE_WITH_POSTGRES
    if (tx->postgres != NULL)
        return postgres_state(tx);
#endif
#ifdef ONCE_WITH_MYSQL
    if (tx->mysql != NULL)
        return mysql_state(h, tx->mysql);
#endif
    (void)h;
    return sqlite_state(tx);
}

/*
 * A handler that ends our transaction and begins another leaves one open that
 * holds no claim. So what passes on the connection is watched meanwhile. (ROLLBACK
 * alone is not counted: ROLLBACK TO has the same tag, and does no harm.) On MySQL
 * the savepoint tells.
 */
#ifdef ONCE_WITH_POSTGRES
static void see_trouble(struct once__hand *h, const PGresult *r)
{
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    const char *name = PQresultErrorField(r, PG_DIAG_CONSTRAINT_NAME);

    if (state == NULL || PQresultStatus(r) != PGRES_FATAL_ERROR)
        return;
    (void)snprintf(h->trouble, sizeof(h->trouble), "SQLSTATE %.5s%s%s", state,
                   name == NULL ? "" : ", constraint ",
                   name == NULL ? "" : name);
}

static int see_result(PGEventId event, void *info, void *user)
{
    static const char *const tags[] = {"COMMIT", "BEGIN", "START TRANSACTION",
                                       "PREPARE TRANSACTION"};
    struct once__hand *h = user;
    size_t i;

    if (event != PGEVT_RESULTCREATE)
        return 1;
    see_trouble(h, ((PGEventResultCreate *)info)->result);
    for (i = 0; i < sizeof(tags) / sizeof(tags[0]); i++)
        if (strcmp(PQcmdStatus(((PGEventResultCreate *)info)->result),
                   tags[i]) == 0)
            h->ended = 1;
    return 1;
}
#endif

static int see_commit(void *user)
{
    ((struct once__hand *)user)->ended = 1;
    return 0;
}

static void see_rollback(void *user)
{
    ((struct once__hand *)user)->ended = 1;
}

/* 0: the connection was lost. */
static int watch(struct once__hand *h, const once_tx *tx)
{
#ifdef ONCE_WITH_POSTGRES
    if (tx->postgres != NULL) /* again on the same connection: does nothing */
        (void)PQregisterEventProc(tx->postgres, see_result, "once", h);
#endif
    if (tx->sqlite != NULL) {
        (void)sqlite3_commit_hook(tx->sqlite, see_commit, h);
        (void)sqlite3_rollback_hook(tx->sqlite, see_rollback, h);
    }
    h->ended = 0;
#ifdef ONCE_WITH_MYSQL
    if (tx->mysql != NULL)
        return mysql_ask(h, mark) == 0;
#endif
    return 1;
}

#ifdef ONCE_WITH_MYSQL
static void see_mysql_trouble(struct once__hand *h, MYSQL *conn)
{
    if (conn != NULL && mysql_errno(conn) != 0)
        (void)snprintf(h->trouble, sizeof(h->trouble), "error %u",
                       mysql_errno(conn));
}
#endif

/* `what`, and the error of the database that it came from, if there was one. */
static const char *explain(struct once__hand *h, const char *what)
{
    sqlite3 *lite = once__base_tx(h->b)->sqlite;
    int rc = lite == NULL ? SQLITE_OK : sqlite3_errcode(lite);

    if (rc != SQLITE_OK && rc != SQLITE_ROW && rc != SQLITE_DONE)
        (void)snprintf(h->trouble, sizeof(h->trouble), "%s",
                       sqlite3_errstr(rc));
#ifdef ONCE_WITH_MYSQL
    see_mysql_trouble(h, once__base_tx(h->b)->mysql);
#endif
    if (h->trouble[0] == '\0')
        return what;
    (void)snprintf(h->why, sizeof(h->why), "%s: %s", what, h->trouble);
    return h->why;
}

/* ---- The handler --------------------------------------------------------- */

static int call_handler(struct once__hand *h, const once_tx *tx,
                        const once_message *m, const char **why)
{
    int rc = h->c->handler(tx, m, h->c->handler_user);

    switch (rc) {
    case ONCE_OK:
        return ONCE__DONE;
    case ONCE_DEAD:
        *why = "the handler says that it is dead";
        return ONCE__DEAD;
    case ONCE_UNKNOWN:
        *why = "the handler says that the outcome is not known";
        return ONCE__UNKNOWN;
    case ONCE_AGAIN:
        break;
    default:
        if (rc > 0)
            once__consumer_log(h->c,
                               "the handler has returned %d, which is no "
                               "answer of a handler",
                               rc);
    }
    *why = explain(h, "the handler has failed");
    return ONCE__FAILED;
}

/* The handler's answer, and what it has left of the transaction. */
static int run_handler(struct once__hand *h, const once_message *m,
                       const char **why)
{
    const once_tx *tx = once__base_tx(h->b);
    int outcome, state;

    if (!watch(h, tx))
        return ONCE__TORN;
    outcome = call_handler(h, tx, m, why);
    state = state_of(h, tx);
    if (state == ENDED || (h->ended && state != LOST)) {
        once__consumer_log(h->c, "the handler has ended the transaction by "
                                 "itself: what it did may be unguarded");
        *why = "the handler has ended the transaction by itself";
        return outcome == ONCE__DONE ? ONCE__FAILED : outcome;
    }
    if (outcome != ONCE__DONE || state == OPEN)
        return outcome == ONCE__FAILED && state == LOST ? ONCE__TORN : outcome;
    if (state == LOST)
        return ONCE__TORN;
    *why = explain(h, "the handler has left a failed transaction");
    return ONCE__FAILED;
}

static int commit(struct once__hand *h, const char **why)
{
    once_error err = {0, ""};
    int rc = once__base_commit(h->b, &err);

    if (rc == ONCE_OK) {
        set_away(h, 0, "");
        return ONCE__DONE;
    }
    if (rc != ONCE_EABORTED)
        return ONCE__TORN; /* unknown: the row will tell */
    *why = explain(h, "COMMIT was answered by a rollback");
    return ONCE__FAILED;
}

/* ---- Claims -------------------------------------------------------------- */

static int is_behind(struct once__hand *h, const once_message *m,
                     once_error *err, int *behind)
{
    *behind = 0;
    if (!h->c->o.keyed || m->attempt > 0 || m->key == NULL)
        return ONCE_OK;
    return ONCE__ASK(h->b, once__parked_has_key, m->consumer, m->key, behind,
                     err);
}

/* In an open transaction. DONE: it is ours. */
static int claim(struct once__hand *h, const once_message *m, const char **why)
{
    once_error err = {0, ""};
    int behind = 0, rc = ONCE__ASK(h->b, once_inbox_claim, m, &err);

    switch (rc) {
    case ONCE_OWNER:
        rc = is_behind(h, m, &err, &behind);
        if (rc != ONCE_OK)
            break;
        *why = "behind an earlier message of its key";
        return behind ? ONCE__BEHIND : ONCE__DONE;
    case ONCE_REPEATED:
        return ONCE__BEFORE;
    case ONCE_MISMATCH:
        *why = "mismatch";
        return ONCE__MISMATCH;
    case ONCE_OUTSIDE:
        *why = "outside";
        return ONCE__OUTSIDE;
    case ONCE_IN_FLIGHT:
        *why = "another copy is under way";
        return ONCE__IN_FLIGHT;
    default:
        break;
    }
    *why = "the database does not take it";
    return outcome_of(h, rc, &err);
}

static int begin(struct once__hand *h)
{
    once_error err = {0, ""};

    if (!once__hand_connect(h))
        return ONCE__AWAY;
    return once__base_begin(h->b, &err) == ONCE_OK ? ONCE__DONE : ONCE__TORN;
}

/* DONE: it is ours, and the transaction is open. */
static int begin_with(struct once__hand *h, const once_message *m,
                      const char **why)
{
    int outcome = begin(h);

    if (outcome != ONCE__DONE)
        return outcome;
    outcome = claim(h, m, why);
    if (outcome == ONCE__BEFORE)
        return commit(h, why) == ONCE__DONE ? ONCE__BEFORE : ONCE__TORN;
    if (outcome != ONCE__DONE)
        once__base_rollback(h->b);
    return outcome;
}

/* ---- Handlers without a handle -------------------------------------------- */

static void pause_briefly(struct once__hand *h, uint32_t n)
{
    uint64_t most = once__backoff(PAUSE_MS, PAUSE_MOST_MS, n);

    once__consumer_sleep(h->c, once__steady_ms() + once__up_to(most));
}

/* Whether it has claimed it: then it is done, also for us. */
static int look_up(struct once__hand *h, const once_message *m,
                   const char **why)
{
    int outcome = begin_with(h, m, why);

    if (outcome == ONCE__BEFORE)
        return ONCE__DONE;
    if (outcome != ONCE__DONE)
        return outcome;
    once__base_rollback(h->b);
    *why = "the handler has not claimed it";
    return ONCE__FAILED;
}

static int claim_for_good(struct once__hand *h, const once_message *m,
                          const char **why)
{
    int outcome = begin_with(h, m, why);

    if (outcome == ONCE__BEFORE)
        return ONCE__DONE; /* by another copy, with the result of the call */
    return outcome == ONCE__DONE ? commit(h, why) : outcome;
}

static int apart(struct once__hand *h, const once_message *m, const char **why)
{
    once_tx none = ONCE_TX_INIT;
    uint32_t n;
    int outcome;

    once__base_rollback(h->b);
    none.schema = once__base_schema(h->b);
    outcome = call_handler(h, &none, m, why);
    if (outcome != ONCE__DONE)
        return outcome;
    for (n = 1; n <= TRIES; n++) {
        if (n > 1)
            pause_briefly(h, n - 1);
        outcome =
            h->c->o.inside ? look_up(h, m, why) : claim_for_good(h, m, why);
        if (outcome != ONCE__TORN)
            return outcome;
    }
    return ONCE__AWAY;
}

/* ---- One message ---------------------------------------------------------- */

int once__handle_once(struct once__hand *h, const once_message *m,
                      const char **why)
{
    int outcome = begin_with(h, m, why);

    h->trouble[0] = '\0';
    if (outcome != ONCE__DONE)
        return outcome;
    if (h->c->o.inside || h->c->o.outside)
        return apart(h, m, why);
    outcome = run_handler(h, m, why);
    if (outcome == ONCE__DONE)
        outcome = commit(h, why);
    if (outcome != ONCE__DONE)
        once__base_rollback(h->b);
    return outcome;
}

int once__handle(struct once__hand *h, const once_message *m, const char **why)
{
    uint32_t n;
    int outcome = ONCE__TORN;

    for (n = 1; n <= TRIES && outcome == ONCE__TORN; n++) {
        if (n > 1)
            pause_briefly(h, n - 1);
        outcome = once__handle_once(h, m, why);
    }
    return outcome == ONCE__TORN ? ONCE__AWAY : outcome;
}

int once__handle_batch(struct once__hand *h, const once_message *m, size_t n,
                       size_t *ours)
{
    const char *why = "";
    size_t i;
    int outcome = begin(h);

    for (i = 0; i < n && outcome == ONCE__DONE; i++) {
        outcome = claim(h, &m[i], &why);
        if (outcome == ONCE__DONE) {
            outcome = run_handler(h, &m[i], &why);
            ++*ours;
        } else if (outcome == ONCE__BEFORE) {
            outcome = ONCE__DONE;
        }
    }
    if (outcome == ONCE__DONE && commit(h, &why) == ONCE__DONE)
        return 1;
    once__base_rollback(h->b);
    return 0;
}

/* ---- Parking -------------------------------------------------------------- */

static int keep_once(struct once__hand *h, const once_message *m, int state,
                     uint64_t wait_ms, const char *why)
{
    once_error err = {0, ""};
    int rc;

    if (!once__hand_connect(h))
        return ONCE__AWAY;
    rc = once__base_begin(h->b, &err);
    if (rc != ONCE_OK)
        return ONCE__TORN;
    rc = ONCE__ASK(h->b, once_inbox_park, m, state, wait_ms, why, &err);
    if (rc == ONCE_OK || rc == ONCE_REPEATED) {
        if (once__base_commit(h->b, &err) != ONCE_OK)
            return ONCE__TORN;
        set_away(h, 0, "");
        return rc == ONCE_OK ? ONCE__KEPT : ONCE__BEFORE;
    }
    once__base_rollback(h->b);
    return rc == ONCE_IN_FLIGHT ? ONCE__IN_FLIGHT : outcome_of(h, rc, &err);
}

int once__keep(struct once__hand *h, const once_message *m, int state,
               uint64_t wait_ms, const char *why)
{
    uint32_t n;
    int outcome = ONCE__TORN;

    for (n = 1; n <= TRIES && outcome == ONCE__TORN; n++) {
        if (n > 1)
            pause_briefly(h, n - 1);
        outcome = keep_once(h, m, state, wait_ms, why);
    }
    if (outcome == ONCE__KEPT && state == ONCE_PARKED_WAITING)
        once__consumer_look_in(h->c, wait_ms);
    return outcome == ONCE__TORN ? ONCE__AWAY : outcome;
}
