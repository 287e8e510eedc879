/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_outbox.c - src/message/outbox.h on real databases: one text for both.
 *
 *    test_outbox [sqlite | CASE]
 *    with-server postgres -- test_outbox postgres [CASE]
 */
#include "db.h"

#include "message/outbox.h"

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

static const struct once__outbox_ask any = {"r", 100, LEASE_MS, 0, 0};

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

static int settle(struct db *d, int64_t seq, uint32_t attempts,
                  struct once__row_next to)
{
    struct once__settlement s = {seq, attempts, to, 200, {NULL, 0}, "why", 0};
    once_error err = {0, ""};
    int rc = once__outbox_settle(&d->tx, &s, 1, &err);

    if (rc != ONCE_OK)
        printf("#   settle: %s\n", err.text);
    T_EQ(rc, ONCE_OK);
    return s.ours;
}

static const struct once__row_next done = {ONCE__ROW_DONE, 0, 0, 0};

static void a_row_is_claimed_settled_and_gone(void)
{
    struct db d = db_new();
    struct once__outgoing_list l;

    emit(&d, NULL, NULL);
    emit(&d, "k", NULL);
    emit(&d, "k", "mine");
    l = take(&d, &any);
    T_EQ(l.n, 3);
    if (l.n == 3) {
        T_EQ(l.rows[0].attempts, 1);
        T_EQ(l.rows[0].row.doubt, 1);
        T_OK(l.now_ms >= l.rows[0].row.doubt_ms);
        T_STR(l.rows[2].m.id, "mine");
        T_STR(l.rows[2].m.key, "k");
        T_STR(l.rows[2].m.type, "text/plain");
        T_STR(l.rows[2].m.headers, "A: b\n");
        T_EQ(l.rows[2].m.body.size, 4);
        T_EQ(settle(&d, l.rows[0].seq, 1, done), 1);
        T_EQ(settle(&d, l.rows[0].seq, 1, done), 0);
        T_EQ(settle(&d, l.rows[2].seq, 1, done), 1);
    }
    once__outgoing_clear(&l);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox"), 2);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE phase=2"), 1);
    l = take(&d, &any);
    T_EQ(l.n, 0);
    once__outgoing_clear(&l);
    db_end(&d);
}

#define RUN(test)                                                              \
    do {                                                                       \
        if (only == NULL || strcmp(only, #test) == 0)                          \
            T_RUN(test);                                                       \
    } while (0)

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "sqlite";
    const char *only = argc > 2 ? argv[2] : NULL;

    if (strcmp(what, "postgres") == 0) {
        server_url = getenv("ONCE_TEST_URL");
        if (server_url == NULL)
            t_skip_all("ONCE_TEST_URL names no server");
    } else if (strcmp(what, "sqlite") != 0) {
        only = what;
    }
    RUN(a_row_is_claimed_settled_and_gone);
    return t_done();
}
