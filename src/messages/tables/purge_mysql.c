/* SPDX-License-Identifier: Apache-2.0 */
/*
 * purge_mysql.c - in steps of so many rows, each a transaction of its own: rows that
 * may go are looked for by an index, without locks, and then removed by their keys.
 *
 * A DELETE that looked by itself would wait for rows that programs have inserted and
 * not committed. It refuses to remove a row that has changed since it was seen.
 */
#include "messages/tables/purge_mysql.h"

#include <stdio.h>
#include <time.h>

#include "base/error.h"
#include "base/steady.h"
#include "messages/tables/query_mysql.h"

enum { ROWS = 500, PAUSE = 4 };

/* A step writes as much as many claims do. The others shall get most of the disk
 * and of the processors, so what follows is a pause, PAUSE times as long. */
static void let_others(uint64_t since_us)
{
    uint64_t us = PAUSE * (once__steady_us() - since_us);
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    (void)nanosleep(&t, NULL);
}

/* ---- One step ----------------------------------------------------------- */

/* Rows that are found by a SELECT of keys, one or two columns of bytes or of
 * numbers; `remove` ends with "IN (", and the keys are put there. */
struct step {
    const char *find;
    const struct once__value *values;
    const char *const *remove; /* up to a NULL */
    int columns, numbers;
    uint64_t found, removed; /* by the last one of `remove` */
};

static void put_column(struct once__my_text *to, const struct once__mysql *q,
                       int column, int number)
{
    once_bytes value = once__mysql_bytes(q, column);

    if (number)
        once__my_put_number(to, (uint64_t)once__mysql_int(q, column));
    else
        once__my_put_hex(to, value.data, value.size);
}

static void put_key(struct once__my_text *to, const struct once__mysql *q,
                    const struct step *s)
{
    once__my_put(to, s->columns == 2 ? "(" : "");
    put_column(to, q, 0, s->numbers);
    if (s->columns == 2) {
        once__my_put(to, ",");
        put_column(to, q, 1, s->numbers);
        once__my_put(to, ")");
    }
}

/* `sql` ends with "IN (". */
static int change(const once_tx *tx, const char *sql,
                  const struct once__my_text *keys, uint64_t *changed,
                  once_error *err)
{
    struct once__my_text text = {0};
    int rc;

    if (keys->size == 0 && !keys->failed)
        return ONCE_OK;
    once__my_put(&text, sql);
    if (keys->failed)
        text.failed = 1;
    else
        once__my_put_part(&text, keys->at, keys->size);
    once__my_put(&text, ")");
    rc = once__mysql_run_text(tx, "purge", changed, err, &text);
    once__my_text_clear(&text);
    return rc;
}

static int find(const once_tx *tx, struct step *s, struct once__my_text *keys,
                once_error *err)
{
    struct once__mysql q = once__mysql(tx, "purge", s->find);

    if (s->values != NULL)
        once__mysql_values(&q, s->values);
    for (s->found = 0; once__mysql_next(&q, err); s->found++) {
        if (s->found > 0)
            once__my_put(keys, ",");
        put_key(keys, &q, s);
    }
    return once__mysql_end(&q, err);
}

static int step_work(const once_tx *tx, void *user, once_error *err)
{
    struct step *s = user;
    struct once__my_text keys = {0};
    int rc = find(tx, s, &keys, err), i;

    s->removed = 0;
    for (i = 0; rc == ONCE_OK && s->remove[i] != NULL; i++)
        rc = change(tx, s->remove[i], &keys, &s->removed, err);
    once__my_text_clear(&keys);
    return rc;
}

/* Steps until there are no more. Rows that were found and not removed have changed,
 * or are locked: they are left for the next purge. */
static int purge_with(const once_tx *tx, struct step s, uint64_t *removed,
                      once_error *err)
{
    int rc;

    do {
        uint64_t since = once__steady_us();

        rc = once__mysql_transaction(tx, "purge", step_work, &s, err);
        if (rc == ONCE_OK && removed != NULL)
            *removed += s.removed;
        if (rc == ONCE_OK && s.found == ROWS)
            let_others(since);
    } while (rc == ONCE_OK && s.found == ROWS && s.removed > 0);
    return rc;
}

/* ---- The inbox ----------------------------------------------------------- */

/* Where a walk over it stands. */
struct place {
    char consumer[ONCE_ID_SIZE], id[ONCE_ID_SIZE];
    int last; /* this step is the last one */
};

struct walk {
    struct place at;
    uint64_t removed;
};

enum { I_CONSUMER, I_ID, I_OLD, I_AHEAD };

static void keep_text(const struct once__mysql *q, int column,
                      char out[ONCE_ID_SIZE])
{
    (void)snprintf(out, ONCE_ID_SIZE, "%s",
                   once__text_of(once__mysql_string(q, column)));
}

static void add_key(struct once__my_text *to, const struct once__mysql *q)
{
    static const struct step pair = {.columns = 2};

    if (to->size > 0)
        once__my_put(to, ",");
    put_key(to, q, &pair);
}

/* The next rows: which of them are old, and which further ahead than the window. */
static int look(const once_tx *tx, struct walk *w, struct once__my_text *old,
                struct once__my_text *ahead, once_error *err)
{
    struct once__mysql q = once__mysql(
        tx, "purge",
        "SELECT i.consumer,i.id,i.at_ms<m.floor_ms AND NOT EXISTS(SELECT 1 FROM"
        " once_parked k WHERE k.consumer=i.consumer AND k.id=i.id),"
        "i.at_ms>?4+m.keep_ms FROM once_inbox i,once_message_meta m WHERE"
        " i.consumer>?1 OR (i.consumer=?1 AND i.id>?2)"
        " ORDER BY i.consumer,i.id LIMIT ?3");
    int n = 0;

    once__mysql_with(&q, ONCE__TEXT(w->at.consumer), ONCE__TEXT(w->at.id),
                     ONCE__NUMBER(ROWS), ONCE__NOW);
    for (; once__mysql_next(&q, err); n++) {
        keep_text(&q, I_CONSUMER, w->at.consumer);
        keep_text(&q, I_ID, w->at.id);
        if (once__mysql_int(&q, I_OLD))
            add_key(old, &q);
        else if (once__mysql_int(&q, I_AHEAD))
            add_key(ahead, &q);
    }
    w->at.last = n < ROWS;
    return once__mysql_end(&q, err);
}

/* What was further ahead than the window counts from a window ahead of now. */
static int walk_work(const once_tx *tx, void *user, once_error *err)
{
    struct walk *w = user;
    struct once__my_text old = {0}, ahead = {0};
    int rc = look(tx, w, &old, &ahead, err);

    w->removed = 0;
    if (rc == ONCE_OK)
        rc = change(tx,
                    "DELETE FROM once_inbox WHERE at_ms<(SELECT floor_ms FROM"
                    " once_message_meta) AND (consumer,id) IN (",
                    &old, &w->removed, err);
    if (rc == ONCE_OK)
        rc = change(tx,
                    "UPDATE once_inbox SET at_ms=" ONCE__MYSQL_NOW
                    "+(SELECT keep_ms FROM once_message_meta)"
                    " WHERE (consumer,id) IN (",
                    &ahead, NULL, err);
    once__my_text_clear(&old);
    once__my_text_clear(&ahead);
    return rc;
}

static int purge_inbox(const once_tx *tx, uint64_t *removed, once_error *err)
{
    struct walk w = {{"", "", 0}, 0};
    int rc = ONCE_OK;

    while (rc == ONCE_OK && !w.at.last) {
        uint64_t since = once__steady_us();

        rc = once__mysql_transaction(tx, "purge", walk_work, &w, err);
        if (rc != ONCE_OK)
            break;
        *removed += w.removed;
        if (w.removed > 0)
            let_others(since);
    }
    return rc;
}

/* ---- The others ---------------------------------------------------------- */

int once__mysql_purge_done(const once_tx *tx, int64_t until_ms,
                           uint64_t *removed, once_error *err)
{
    static const char *const remove[] = {
        "DELETE o FROM once_outbox o FORCE INDEX (PRIMARY)"
        " WHERE phase=2 AND saga IS NULL AND seq IN (",
        NULL};
    struct step s = {
        .find = "SELECT seq FROM once_outbox FORCE INDEX (outbox_done)"
                " WHERE phase=2 AND due_ms<?1 AND saga IS NULL"
                " ORDER BY due_ms LIMIT ?2",
        .values = ONCE__VALUES(ONCE__NUMBER(until_ms), ONCE__NUMBER(ROWS)),
        .remove = remove,
        .columns = 1,
        .numbers = 1};

    return purge_with(tx, s, removed, err);
}

static int purge_barriers(const once_tx *tx, once_error *err)
{
    static const char *const remove[] = {
        "DELETE FROM once_barrier WHERE phase>1 AND (gid,branch) IN (", NULL};
    struct step s = {
        .find = "SELECT gid,branch FROM once_barrier WHERE phase>1 AND at_ms<"
                "(SELECT floor_ms-keep_ms FROM once_message_meta)"
                " ORDER BY at_ms LIMIT ?1 FOR UPDATE SKIP LOCKED",
        .values = ONCE__VALUES(ONCE__NUMBER(ROWS)),
        .remove = remove,
        .columns = 2};

    return purge_with(tx, s, NULL, err);
}

/* The steps go first, in the same transaction. */
static int purge_sagas(const once_tx *tx, once_error *err)
{
    static const char *const remove[] = {
        "DELETE FROM once_saga_step WHERE gid IN (",
        "DELETE FROM once_saga WHERE state IN (3,4) AND gid IN (", NULL};
    struct step s = {
        .find = "SELECT gid FROM once_saga s WHERE state IN (3,4) AND since_ms<"
                "(SELECT floor_ms FROM once_message_meta) AND NOT EXISTS"
                "(SELECT 1 FROM once_outbox o WHERE o.saga=s.gid)"
                " LIMIT ?1 FOR UPDATE SKIP LOCKED",
        .values = ONCE__VALUES(ONCE__NUMBER(ROWS)),
        .remove = remove,
        .columns = 1};

    return purge_with(tx, s, NULL, err);
}

static int raise_floor(const once_tx *tx, void *user, once_error *err)
{
    (void)user;
    return once__mysql_run(tx, "purge", NULL, err,
                           "UPDATE once_message_meta SET"
                           " floor_ms=GREATEST(floor_ms,?1-keep_ms-?2)",
                           ONCE__NOW, ONCE__NUMBER(ONCE__SLACK_MS));
}

static int purge_kept(const once_tx *tx, once_error *err)
{
    struct once__mysql q =
        once__mysql(tx, "purge", "SELECT ?1-keep_ms-?2 FROM once_message_meta");
    int64_t until = 0;
    int rc;

    once__mysql_with(&q, ONCE__NOW, ONCE__NUMBER(ONCE__SLACK_MS));
    if (once__mysql_next(&q, err))
        until = once__mysql_int(&q, 0);
    rc = once__mysql_end(&q, err);
    return rc == ONCE_OK ? once__mysql_purge_done(tx, until, NULL, err) : rc;
}

int once__mysql_purge(const once_tx *tx, uint64_t *removed, once_error *err)
{
    int rc = once__mysql_transaction(tx, "purge", raise_floor, NULL, err);

    if (rc == ONCE_OK)
        rc = purge_inbox(tx, removed, err);
    if (rc == ONCE_OK)
        rc = purge_barriers(tx, err);
    if (rc == ONCE_OK)
        rc = purge_sagas(tx, err);
    return rc == ONCE_OK ? purge_kept(tx, err) : rc;
}
