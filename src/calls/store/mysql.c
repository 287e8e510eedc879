/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mysql.c - the durable store for many machines on MySQL or MariaDB:
 * "mysql://...".
 *
 * A batch is asked in rounds, in which each name occurs once (rounds.h). A round
 * is one transaction at READ COMMITTED and two packets, whatever its size:
 *
 *    1   BEGIN; lock what is there, passing over what others have locked;
 *        read the rest; the time, which is behind the locks
 *        ... here once__transition() decides ...
 *    2   INSERT, UPDATE, DELETE; COMMIT
 *
 * Of most operations it is known beforehand whether they change a row. A claim is
 * only read: either there is no row, or it changes nothing. A step is locked, and
 * decided on what was locked. Those that are otherwise are locked and read by one
 * more packet, in the same transaction.
 *
 * A name that is there and was not locked belongs to another session now. If the
 * operation would change nothing, it is answered from what is committed, else it
 * is left out and asked again (rounds.h). So a gateway that dies with its locks
 * blocks only what it held. A name that is not there may be inserted by another
 * session at the same time: then the INSERT fails (1062), all is rolled back, and
 * asked again.
 *
 * Between INSERT and COMMIT only a session is waited for that forgets a younger
 * record just then (write.c). The server is asked in each round which store it is:
 * another one may stand under the database's name since, and would not know what
 * this one has recorded.
 *
 * Server time only. It refuses to interpret: a packet that was not answered is
 * unknown, also if it was the COMMIT that got lost.
 */
#include <stdlib.h>
#include <string.h>

#include <mysqld_error.h>

#include "calls/core/bounds.h"
#include "calls/core/transition.h"
#include "base/error.h"
#include "base/grow.h"
#include "base/must.h"
#include "base/steady.h"
#include "calls/store/arena.h"
#include "calls/store/mysql/mysql.h"
#include "calls/store/rounds.h"
#include "calls/store/sqlstore.h"
#include "calls/store/store.h"

enum {
    SHOWN_BYTES = 256 << 20, /* long results that one batch shows */
    LOOK_MS = 1000,
    SWEEP_MS = 60000,
    NOWAIT_REFUSED = 3572 /* MySQL's own number for a lock that is not free */
};

/* A fence that is not drawn yet: the last one that there can be. */
#define NOT_DRAWN ONCE__FENCE_MAX

/* How a record is asked for (bits). */
enum {
    LOCK = 1,          /* by its name */
    READ = 2,          /* the same */
    LOCK_BY_FENCE = 4, /* which costs less; of a name that was granted again,
                        * or is absent, nothing is found */
};

/* What was read of an operation's record, and what is to become of it. */
struct item {
    int ways; /* how the next packet asks for it; 0: it does not */
    once_record before;
    int rc; /* of reading it */
    int there, whole;
    int locked;        /* 1: it is, and `before` is what was locked */
    once_record stamp; /* of what was locked: see take_locks() */
    int has_stamp;
    enum { LEFT_OUT, SAME, CHANGED } what;
};

struct mysql {
    once_store base;
    once_store_options options;
    struct once__my_config config;
    struct once__my_link link;
    struct once__my_text text;
    uint8_t id[ONCE_STORE_ID_SIZE]; /* of the store that was opened */
    int known;                      /* 1: it was read */
    uint64_t looked_ms, swept_ms;
    struct once__rounds rounds;
    struct item *items; /* of one round, as `call` of the rounds */
    struct once__my_change *changes;
    MYSQL_RES **kept; /* what answers borrow bytes from, until the next batch */
    size_t kept_count, kept_room;
    struct once__arena arena; /* long results and labels of answers, too */
};

/* ---- Opening and closing ----------------------------------------------- */

static void forget_answers(struct mysql *s)
{
    while (s->kept_count > 0)
        mysql_free_result(s->kept[--s->kept_count]);
    once__arena_reset(&s->arena);
}

static int no_memory(once_error *err)
{
    return once__fail(err, ONCE_ESTORE, "mysql: out of memory");
}

/* Takes `rows`, also on failure. */
static int keep_rows(struct mysql *s, MYSQL_RES *rows, once_error *err)
{
    MYSQL_RES **kept = once__grown(s->kept, &s->kept_room, s->kept_count + 1,
                                   sizeof(MYSQL_RES *));

    if (kept == NULL) {
        mysql_free_result(rows);
        return no_memory(err);
    }
    s->kept = kept;
    kept[s->kept_count++] = rows;
    return ONCE_OK;
}

static void mysql_store_close(once_store *store)
{
    struct mysql *s = (struct mysql *)store;

    if (s == NULL)
        return;
    forget_answers(s);
    once__my_disconnect(&s->link);
    once__my_config_clear(&s->config);
    once__my_text_clear(&s->text);
    once__rounds_clear(&s->rounds);
    once__arena_clear(&s->arena);
    free(s->kept);
    free(s->items);
    free(s->changes);
    free(s);
}

static uint64_t deadline(const struct mysql *s)
{
    return once__steady_ms() + s->config.statement_ms;
}

static int mysql_store_open(const char *rest, const once_store_options *options,
                            once_error *err, once_store **out)
{
    struct mysql *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return once__fail(err, ONCE_ENOMEM, "mysql: out of memory");
    s->base.ops = &once__store_mysql;
    s->options = *options;
    s->link.config = &s->config;
    s->items = calloc(ONCE__MY_ROUND, sizeof(*s->items));
    s->changes = calloc(ONCE__MY_ROUND, sizeof(*s->changes));
    rc = s->items == NULL || s->changes == NULL
             ? once__fail(err, ONCE_ENOMEM, "mysql: out of memory")
             : once__my_config_read(&s->config, rest, err);
    if (rc == ONCE_OK)
        rc = once__my_connect(&s->link, 0, deadline(s), err);
    if (rc != ONCE_OK) {
        mysql_store_close(&s->base);
        return rc;
    }
    s->base.caveat = s->link.caveat;
    *out = &s->base;
    return ONCE_OK;
}

static int connected(struct mysql *s, once_error *err)
{
    if (once__my_connect(&s->link, 0, deadline(s), err) == ONCE_OK)
        return ONCE_OK;
    if (err != NULL)
        err->code = ONCE_ESTORE;
    return ONCE_ESTORE;
}

/* A test has set another clock than the server's. */
static int clock_is_set(const struct mysql *s)
{
    return s->options.clock != once__wall_clock;
}

/* ---- Reading ----------------------------------------------------------- */

struct batch {
    struct mysql *s;
    struct once__rounds *rounds;
    uint64_t now_ms; /* of this round */
    size_t shown;    /* bytes of long results so far */
    once_error *err;
};

/* FORGET needs the result, too, or how long it is. A fence of 0 is any. */
static int ways_of(const once_op *op)
{
    switch (op->verb) {
    case ONCE_OP_CLAIM:
    case ONCE_OP_READ:
    case ONCE_OP_SHOW:
        return READ;
    case ONCE_OP_FORGET:
        return LOCK | READ;
    default:
        return op->fence != 0 ? LOCK_BY_FENCE : LOCK;
    }
}

/* Records that are asked for in this way; nothing if there is none. */
static size_t put_asked(struct batch *b, int way, const char *columns,
                        const char *from, const char *end)
{
    struct once__my_text *t = &b->s->text;
    size_t i, n = 0;

    for (i = 0; i < b->rounds->count; i++) {
        if (!(b->s->items[i].ways & way))
            continue;
        if (n++ == 0) {
            once__my_put(t, "SELECT ");
            once__my_put(t, columns);
            once__my_put(t, from);
        } else {
            once__my_put(t, ",");
        }
        if (way == LOCK_BY_FENCE)
            once__my_put_number(t, b->rounds->call[i]->fence);
        else
            once__my_put_hex(t, b->rounds->call[i]->name, ONCE_NAME_SIZE);
    }
    if (n > 0)
        once__my_put(t, end);
    return n;
}

/* The sets of rows that an answer has. */
struct sets {
    size_t locks, reads; /* of each kind */
};

static struct sets put_reading(struct batch *b, int begin)
{
    struct once__my_text *t = &b->s->text;
    struct sets sets;

    once__my_text_reset(t);
    if (begin)
        once__my_put(t, "BEGIN;");
    sets.locks = put_asked(b, LOCK, once__my_columns_of_head,
                           " FROM once_record r FORCE INDEX (name) WHERE "
                           "r.name IN (",
                           ") ORDER BY r.name FOR UPDATE SKIP LOCKED;") > 0;
    sets.locks += put_asked(b, LOCK_BY_FENCE, once__my_columns_of_head,
                            " FROM once_record r FORCE INDEX (PRIMARY) WHERE "
                            "r.fence IN (",
                            ") ORDER BY r.fence FOR UPDATE SKIP LOCKED;") > 0;
    sets.reads = put_asked(b, READ, once__my_columns,
                           ONCE__MY_FROM("name") "WHERE r.name IN (", ");") > 0;
    once__my_put(t, "SELECT ");
    once__my_put_now(t);
    once__my_put(t, ", version, id, ");
    once__my_put(t, once__my_guard);
    once__my_put(t, " FROM once_meta");
    return sets;
}

static struct item *item_of(struct batch *b, const uint8_t *name)
{
    size_t i = once__rounds_find(b->rounds, name);

    return i < b->rounds->count ? &b->s->items[i] : NULL;
}

/*
 * InnoDB changes the state of a transaction a moment before it leaves the list of
 * active ones. In that moment the row that it inserted can be locked and is not
 * visible: who locks it and then reads sees the record as it was before. So where
 * both are asked for, a lock counts only for a record that is, in all that a step
 * changes, what was locked.
 */
static void take_locks(struct batch *b, MYSQL_RES *rows)
{
    struct item *item;
    struct once__my_row row;

    while (once__my_row_next(rows, &row)) {
        item = item_of(b, row.name);
        if (item == NULL) /* the fence was another name's */
            continue;
        item->has_stamp = 1;
        item->stamp = row.record;
        if (item->ways & READ || row.rc != ONCE_OK)
            continue;
        item->before = row.record;
        item->there = item->whole = item->locked = 1;
    }
}

static int is_stamped(const struct item *item, const once_record *r)
{
    const once_record *s = &item->stamp;

    return item->has_stamp && s->fence == r->fence && s->state == r->state &&
           s->reason == r->reason && s->lease_ms == r->lease_ms &&
           s->keep_ms == r->keep_ms;
}

static int take_records(struct batch *b, MYSQL_RES *rows)
{
    struct once__my_row row;
    struct item *item;

    while (once__my_row_next(rows, &row)) {
        item = item_of(b, row.name);
        if (item == NULL)
            return 0;
        item->before = row.record;
        item->rc = row.rc;
        item->there = 1;
        item->whole = row.whole;
        item->locked = is_stamped(item, &row.record);
    }
    return 1;
}

/* Time, store and server. ONCE_OK or ONCE_ESTORE. */
static int take_place(struct batch *b, MYSQL_RES *rows)
{
    struct mysql *s = b->s;
    MYSQL_ROW row = mysql_fetch_row(rows);
    const unsigned long *sizes = mysql_fetch_lengths(rows);

    if (row == NULL || sizes[2] != ONCE_STORE_ID_SIZE)
        return once__fail(b->err, ONCE_ESTORE, "%s: its tables are not ours",
                          s->link.label);
    if (once__my_number(row[1]) != ONCE__MY_SCHEMA)
        return once__fail(b->err, ONCE_ESTORE,
                          "%s: its schema is of another version",
                          s->link.label);
    if (s->known && memcmp(row[2], s->id, ONCE_STORE_ID_SIZE) != 0)
        return once__fail(b->err, ONCE_ESTORE,
                          "%s: another store is there than the one that was "
                          "opened, and it is asked nothing until it is opened "
                          "as a new one (reload the gateway, restart the "
                          "program)",
                          s->link.label);
    if (once__my_guarded(&s->link, row[3], b->err) != ONCE_OK)
        return ONCE_ESTORE;
    b->now_ms = clock_is_set(s) ? s->options.clock(s->options.user)
                                : once__my_number(row[0]);
    return ONCE_OK;
}

static int take_rows(struct batch *b, const struct once__my_answer *a,
                     struct sets sets)
{
    size_t i;

    if (a->count == sets.locks + sets.reads + 1) {
        for (i = 0; i < sets.locks; i++)
            take_locks(b, a->rows[i]);
        if (!sets.reads || take_records(b, a->rows[sets.locks]))
            return take_place(b, a->rows[a->count - 1]);
    }
    return once__fail(b->err, ONCE_ESTORE, "%s: its tables are not ours",
                      b->s->link.label);
}

/* Answers borrow from the rows, but for those of the last set. */
static int take_reading(struct batch *b, struct once__my_answer *a,
                        struct sets sets)
{
    int rc = take_rows(b, a, sets);

    if (rc == ONCE_OK)
        mysql_free_result(a->rows[--a->count]);
    while (rc == ONCE_OK && a->count > 0)
        rc = keep_rows(b->s, a->rows[--a->count], b->err);
    once__my_answer_clear(a);
    return rc;
}

/* ---- Long results ------------------------------------------------------ */

/* Puts the parts of a result together. 0: they are not as the record says. */
static int join(MYSQL_RES *parts, uint8_t *to, size_t size)
{
    const unsigned long *sizes;
    MYSQL_ROW row;
    size_t at = 0;

    while ((row = mysql_fetch_row(parts)) != NULL) {
        sizes = mysql_fetch_lengths(parts);
        if (sizes[0] > size - at)
            return 0;
        memcpy(to + at, row[0], sizes[0]);
        at += sizes[0];
    }
    return at == size;
}

/* In the same transaction. If the record is not ours, it may have gone
 * meanwhile: then the operation is left out. */
static int fetch_body(struct batch *b, struct item *item)
{
    struct mysql *s = b->s;
    once_bytes *result = &item->before.result;
    struct once__my_answer a;
    uint8_t *to = once__arena_take(&s->arena, result->size);

    once__my_text_reset(&s->text);
    once__my_put(&s->text, "SELECT bytes FROM once_body WHERE fence = ");
    once__my_put_number(&s->text, item->before.fence);
    once__my_put(&s->text, " ORDER BY part");
    if (to == NULL || s->text.failed)
        return no_memory(b->err);
    if (once__my_ask(&s->link, &s->text, b->rounds->until_ms, &a) !=
        ONCE__MY_DONE)
        return once__my_fail(&s->link, ONCE_ESTORE, b->err);
    item->whole = a.count == 1 && join(a.rows[0], to, result->size);
    once__my_answer_clear(&a);
    result->data = to;
    b->shown += result->size;
    if (!item->whole && item->locked)
        item->rc = ONCE_ECORRUPT;
    return ONCE_OK;
}

/* ---- Deciding ---------------------------------------------------------- */

/* Whether it would change the head that was read. */
static int would_change(struct batch *b, const once_op *op,
                        const struct item *item)
{
    once_op question = *op;
    once_record r = item->before;
    uint64_t fence = 0;

    return once__transition(
        &r, &question,
        once__time_of(&b->s->base, op->verb == ONCE_OP_FORGET, b->now_ms),
        &fence);
}

/* What has to be locked and read after all: claims that change a record or show
 * a long result, which must not go meanwhile; and steps whose record was not there,
 * is another session's, or is completed. Returns how many there are. */
static size_t choose_again(struct batch *b)
{
    size_t i, n = 0;

    for (i = 0; i < b->rounds->count; i++) {
        const once_op *op = b->rounds->call[i];
        struct item *item = &b->s->items[i];
        int again = !(item->ways & READ)
                        ? !item->locked
                        : op->verb == ONCE_OP_CLAIM && item->there &&
                              item->rc == ONCE_OK &&
                              (!item->whole || would_change(b, op, item));

        if (again)
            *item = (struct item){.ways = LOCK | READ};
        else
            item->ways = 0;
        n += (size_t)again;
    }
    return n;
}

static void decide(struct batch *b, once_op *op, struct item *item,
                   once_record *after)
{
    int forgets = op->verb == ONCE_OP_FORGET, changed;
    uint64_t fence = NOT_DRAWN - 1;

    *after = item->before;
    changed = once__transition(
        after, op, once__time_of(&b->s->base, forgets, b->now_ms), &fence);
    item->what =
        changed && !once__same_head(&item->before, after) ? CHANGED : SAME;
    if (changed && (((item->there || item->has_stamp) && !item->locked) ||
                    (after->fence == NOT_DRAWN && b->rounds->full)))
        item->what = LEFT_OUT;
}

/* One operation. Returns 1 if it has a change, which is in `*c` then; 0; or
 * ONCE_ESTORE. */
static int decide_one(struct batch *b, size_t i, struct once__my_change *c)
{
    once_op *op = b->rounds->call[i];
    struct item *item = &b->s->items[i];
    int rc = ONCE_OK;

    if (item->rc == ONCE_OK && item->there && !item->whole &&
        !(op->verb == ONCE_OP_FORGET && would_change(b, op, item))) {
        if (b->shown > SHOWN_BYTES)
            return 0; /* in a batch to come */
        rc = fetch_body(b, item);
        if (rc != ONCE_OK)
            return rc;
        if (!item->whole && item->rc == ONCE_OK)
            return 0;
    }
    if (item->rc != ONCE_OK) {
        item->what = SAME;
        return 0;
    }
    c->name = op->name;
    c->before = item->before;
    decide(b, op, item, &c->after);
    return item->what == CHANGED;
}

/* All of the round. Returns how many changes there are, or ONCE_ESTORE. */
static int decide_all(struct batch *b)
{
    size_t i;
    int n = 0, rc = 0;

    for (i = 0; i < b->rounds->count && rc >= 0; i++) {
        rc = decide_one(b, i, &b->s->changes[n]);
        n += rc > 0;
    }
    return rc < 0 ? rc : n;
}

/* ---- Writing and answering --------------------------------------------- */

static void answer(struct batch *b, size_t i)
{
    struct once__rounds *r = b->rounds;
    struct once__rounds_item *to = &r->items[r->places[i]];
    const struct item *item = &b->s->items[i];

    if (item->what == LEFT_OUT)
        return;
    if (item->rc != ONCE_OK) {
        once__answer(r, to, item->rc);
        return;
    }
    once__answer(r, to, to->op->rc);
    once__answer_line(r, to, b->now_ms, &b->s->arena);
}

static void answer_all(struct batch *b)
{
    const struct once__my_change *change = b->s->changes;
    size_t i;

    for (i = 0; i < b->rounds->count; i++) {
        if (b->s->items[i].what == CHANGED) {
            /* A grant's is known only now. */
            b->rounds->call[i]->record.fence = change->after.fence;
            change++;
        }
        answer(b, i);
    }
}

/* Others were in the way, and nothing was changed: it may be asked again. */
static int in_the_way(unsigned number)
{
    return number == ER_DUP_ENTRY || number == ER_LOCK_WAIT_TIMEOUT ||
           number == ER_LOCK_DEADLOCK || number == ER_CHECKREAD ||
           number == NOWAIT_REFUSED;
}

/* ONCE_OK: it is asked again. */
static int not_done(struct batch *b, enum once__my_end end)
{
    unsigned number = b->s->link.number;

    if (end == ONCE__MY_REFUSED && in_the_way(number)) {
        once__rounds_halve(b->rounds);
        return ONCE_OK;
    }
    if (end == ONCE__MY_REFUSED &&
        (number == ER_DISK_FULL || number == ER_RECORD_FILE_FULL)) {
        once__rounds_full(b->rounds);
        return ONCE_OK;
    }
    return once__my_fail(&b->s->link, ONCE_ESTORE, b->err);
}

/* What was read and is answered from must be durable, and locks must go. */
static int finish(struct batch *b, size_t changes)
{
    struct mysql *s = b->s;
    struct once__my_writer w = {.link = &s->link,
                                .text = &s->text,
                                .arena = &s->arena,
                                .until_ms = b->rounds->until_ms,
                                .end = ONCE__MY_DONE};

    once__my_text_reset(&s->text);
    if (changes > 0) {
        once__my_write(&w, s->changes, changes, b->now_ms);
    } else {
        if (s->link.touch)
            once__my_put(&s->text, once__my_touch);
        once__my_put(&s->text, "COMMIT");
        (void)once__my_send(&w);
    }
    if (w.no_memory) {
        once__my_disconnect(&s->link); /* a transaction is open */
        return no_memory(b->err);
    }
    if (w.end != ONCE__MY_DONE)
        return not_done(b, w.end);
    answer_all(b);
    once__rounds_asked(b->rounds);
    return ONCE_OK;
}

/* ---- One round --------------------------------------------------------- */

/* Asks for what `ways` of the items say. */
static int read_items(struct batch *b, int begin, enum once__my_end *end)
{
    struct mysql *s = b->s;
    struct sets sets = put_reading(b, begin);
    struct once__my_answer a;

    if (s->text.failed)
        return no_memory(b->err);
    *end = once__my_ask(&s->link, &s->text, b->rounds->until_ms, &a);
    return *end == ONCE__MY_DONE ? take_reading(b, &a, sets) : ONCE_OK;
}

static int round_of(void *user)
{
    struct batch *b = user;
    struct mysql *s = b->s;
    enum once__my_end end;
    size_t i;
    int rc;

    ONCE__MUST(once__rounds_gather(b->rounds, ~0u) > 0);
    if (s->link.conn == NULL) /* its ROLLBACK was not answered */
        return once__my_fail(&s->link, ONCE_ESTORE, b->err);
    for (i = 0; i < b->rounds->count; i++)
        s->items[i] = (struct item){.ways = ways_of(b->rounds->call[i])};
    rc = read_items(b, 1, &end);
    if (rc == ONCE_OK && end == ONCE__MY_DONE && choose_again(b) > 0)
        rc = read_items(b, 0, &end);
    if (rc == ONCE_OK && end != ONCE__MY_DONE)
        return not_done(b, end);
    if (rc == ONCE_OK)
        rc = decide_all(b);
    if (rc < 0) {
        once__my_disconnect(&s->link); /* a transaction is open */
        return rc;
    }
    return finish(b, (size_t)rc);
}

static int mysql_store_apply(once_store *store, once_op **ops, size_t n,
                             once_error *err)
{
    struct mysql *s = (struct mysql *)store;
    struct batch b = {.s = s, .rounds = &s->rounds, .err = err};
    uint64_t until_ms = deadline(s);

    forget_answers(s);
    if (n == 0)
        return ONCE_OK;
    if (connected(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    if (once__rounds_begin(&s->rounds, ops, n, ONCE__MY_ROUND, until_ms,
                           s->config.lock_ms) != ONCE_OK)
        return no_memory(err);
    return once__rounds_run(&s->rounds, round_of, &b);
}

/* ---- Besides ----------------------------------------------------------- */

static int mysql_store_scan(once_store *store, int what,
                            const once_position *after, uint32_t max,
                            once_each *each, void *user, once_error *err)
{
    struct mysql *s = (struct mysql *)store;
    int forgets = what == ONCE_SCAN_KEEP;
    uint64_t now_ms =
        clock_is_set(s) ? s->options.clock(s->options.user) : UINT64_MAX;

    if (what < ONCE_SCAN_ALL || what >= ONCE__SCAN_END)
        return once__fail(err, ONCE_EINVAL, "what: %d is not a scan", what);
    if (max == 0)
        return 0;
    if (connected(s, err) != ONCE_OK)
        return ONCE_ESTORE;
    now_ms = once__time_of(&s->base, forgets, now_ms);
    return once__my_scan(&s->link, &s->text, what,
                         now_ms == UINT64_MAX ? NULL : &now_ms, after, max,
                         each, user, err);
}

/* Rows of once_swept are for claims that are under way. */
static void sweep(struct mysql *s)
{
    struct once__my_text *t = &s->text;
    struct once__my_answer none;

    once__my_text_reset(t);
    once__my_put(t, "DELETE FROM once_swept WHERE at_ms < ");
    once__my_put_now(t);
    once__my_put(t, " - 7200000 ORDER BY at_ms LIMIT 1000");
    if (!t->failed &&
        once__my_ask(&s->link, t, deadline(s), &none) == ONCE__MY_DONE)
        once__my_answer_clear(&none);
}

/* Looks at what only the status shows, and keeps the session open. */
static int mysql_store_maintain(once_store *store, once_error *err)
{
    struct mysql *s = (struct mysql *)store;
    uint64_t now = once__steady_ms();

    if (!once__my_is_up(&s->link) || now - s->looked_ms < LOOK_MS)
        return ONCE_OK;
    s->looked_ms = now;
    if (now - s->swept_ms >= SWEEP_MS) {
        s->swept_ms = now;
        sweep(s);
    }
    return s->link.conn == NULL ||
                   once__my_look(&s->link, deadline(s), err) == ONCE_OK
               ? ONCE_OK
               : ONCE_ESTORE;
}

static int mysql_store_count(once_store *store, once_counts *out,
                             once_error *err)
{
    struct mysql *s = (struct mysql *)store;

    return connected(s, err) != ONCE_OK
               ? ONCE_ESTORE
               : once__my_count(&s->link, &s->text, out, err);
}

static int mysql_store_head(once_store *store, const once_store_head *put,
                            once_store_head *out, once_error *err)
{
    struct mysql *s = (struct mysql *)store;
    int rc = connected(s, err);

    if (rc == ONCE_OK)
        rc = once__my_head(&s->link, &s->text, put, out, err);
    if (rc == ONCE_OK && (put != NULL || !s->known)) {
        memcpy(s->id, out->id, sizeof(s->id));
        s->known = 1;
    }
    return rc;
}

static int mysql_store_fence(once_store *store, uint64_t *out, once_error *err)
{
    struct mysql *s = (struct mysql *)store;

    return connected(s, err) != ONCE_OK
               ? ONCE_ESTORE
               : once__my_fence(&s->link, &s->text, out, err);
}

static int mysql_store_import(once_store *store, const once_named *r, size_t n,
                              once_error *err)
{
    struct mysql *s = (struct mysql *)store;

    return connected(s, err) != ONCE_OK
               ? ONCE_ESTORE
               : once__my_import(&s->link, &s->text, r, n, err);
}

static int mysql_store_time(once_store *store, const once_store_time *put,
                            once_store_time *out, once_error *err)
{
    struct mysql *s = (struct mysql *)store;
    int rc = connected(s, err);

    if (rc == ONCE_OK)
        rc = once__my_time(&s->link, &s->text, put, out, err);
    if (rc == ONCE_OK && clock_is_set(s))
        out->now_ms = s->options.clock(s->options.user);
    return rc;
}

const once_store_ops once__store_mysql = {
    .size = sizeof(once_store_ops),
    .name = "mysql",
    .durable = 1,
    .shared = 1,
    .open = mysql_store_open,
    .close = mysql_store_close,
    .apply = mysql_store_apply,
    .scan = mysql_store_scan,
    .maintain = mysql_store_maintain,
    .init = once__my_init,
    .print_schema = once__my_print_schema,
    .verify = once__my_verify,
    .dump = once__my_dump,
    .time = mysql_store_time,
    .count = mysql_store_count,
    .head = mysql_store_head,
    .import = mysql_store_import,
    .fence = mysql_store_fence,
};
