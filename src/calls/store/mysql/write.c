/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write.c - the changes of a batch, and their COMMIT, in one packet if the
 * results are not long.
 *
 *    record                      rows
 *    absent -> granted           INSERT, which draws the fence
 *    granted again               DELETE, INSERT: a new fence
 *    another step                UPDATE, one for all with the same values
 *    completed                   and INSERT of the result
 *    forgotten                   DELETE
 *
 * Statements behind one that fails are not executed, so COMMIT is not reached
 * then. What is changed is locked and was read before, and no answer depends on
 * how many rows a statement says that it has changed. All the same each UPDATE and
 * DELETE of heads names the fence and the state that were read, and the statement
 * behind it fails if one of the rows was not there: whatever happens to locks, no
 * step is written over another one.
 *
 * An INSERT may have waited for another session that inserted the same name, and
 * that one may have been completed and forgotten meanwhile: then ours has drawn a
 * smaller fence. A name that was forgotten so young stands in once_swept with its
 * fence, and the last statement before COMMIT fails if that is larger than ours:
 * slot 0 of once_touch is always there (1062). It reads with locks, since what
 * has given its locks away may not be visible yet.
 */
#include <stdlib.h>
#include <string.h>

#include "calls/store/mysql/mysql.h"

enum { HOUR_MS = 3600000, PACKET_PART = 4 /* of what the server takes */ };

int once__my_send(struct once__my_writer *w)
{
    struct once__my_answer none;

    if (w->text->failed)
        w->no_memory = 1;
    if (w->no_memory || w->end != ONCE__MY_DONE)
        return 0;
    w->end = once__my_ask(w->link, w->text, w->until_ms, &none);
    if (w->end == ONCE__MY_DONE) {
        once__my_answer_clear(&none);
        if (w->link->insert_id != 0)
            w->first_fence = w->link->insert_id;
    }
    once__my_text_reset(w->text);
    return w->end == ONCE__MY_DONE;
}

/* ---- What became of a record ------------------------------------------- */

static int is_granted(const struct once__my_change *c)
{
    return c->after.attempt > 0 && c->after.attempt != c->before.attempt;
}

/* Its row goes, and with it the old fence. */
static int is_gone(const struct once__my_change *c)
{
    return c->before.attempt > 0 && (is_granted(c) || c->after.attempt == 0);
}

static int loses_result(const struct once__my_change *c)
{
    return is_gone(c) && c->before.state == ONCE_COMPLETED;
}

static int is_step(const struct once__my_change *c)
{
    return !is_gone(c) && !is_granted(c);
}

/* ---- Statements -------------------------------------------------------- */

static void put_fence(struct once__my_text *t, const struct once__my_change *c)
{
    once__my_put_number(t, c->before.fence);
}

static void put_name(struct once__my_text *t, const struct once__my_change *c)
{
    once__my_put_hex(t, c->name, ONCE_NAME_SIZE);
}

/* The statement before this one must have changed `n` rows, or all is taken
 * back. */
static void put_count(struct once__my_text *t, size_t n)
{
    once__my_put(t, "INSERT INTO once_touch (slot, n) SELECT 0, 0 FROM DUAL "
                    "WHERE ROW_COUNT() <> ");
    once__my_put_number(t, n);
    once__my_put(t, ";");
}

/* `begin`, what `put` says of each that is `wanted`, `end`; nothing if there is
 * none. Returns how many there were. */
static size_t write_list(struct once__my_writer *w, const char *begin,
                         const struct once__my_change *c, size_t n,
                         int (*wanted)(const struct once__my_change *c),
                         void (*put)(struct once__my_text *t,
                                     const struct once__my_change *c),
                         const char *end)
{
    size_t i, count = 0;

    for (i = 0; i < n; i++) {
        if (!wanted(&c[i]))
            continue;
        once__my_put(w->text, count++ == 0 ? begin : ",");
        put(w->text, &c[i]);
    }
    if (count > 0)
        once__my_put(w->text, end);
    return count;
}

/* A step, as the values of an UPDATE and the state before it. */
struct step {
    const char *values;
    size_t size;
    uint64_t fence;
};

static int by_values(const void *a, const void *b)
{
    const struct step *x = a, *y = b;
    int order =
        memcmp(x->values, y->values, x->size < y->size ? x->size : y->size);

    return order != 0 ? order : (x->size > y->size) - (x->size < y->size);
}

static void put_steps(struct once__my_text *t, const struct step *s, size_t n)
{
    size_t i, first = 0;

    for (i = 0; i < n; i++) {
        if (i == first) {
            once__my_put(t, "UPDATE once_record SET ");
            once__my_put(t, s[i].values);
            once__my_put(t, " AND fence IN (");
        } else {
            once__my_put(t, ",");
        }
        once__my_put_number(t, s[i].fence);
        if (i + 1 < n && by_values(&s[i], &s[i + 1]) == 0)
            continue;
        once__my_put(t, ");");
        put_count(t, i + 1 - first);
        first = i + 1;
    }
}

/* Many steps of a batch write the same values. */
static void write_steps(struct once__my_writer *w,
                        const struct once__my_change *c, size_t n)
{
    struct step *steps = once__arena_take(w->arena, n * sizeof(*steps));
    struct once__my_text text = {NULL, 0, 0, 0};
    size_t i, count = 0, *ends = once__arena_take(w->arena, n * sizeof(*ends));

    w->no_memory |= steps == NULL || ends == NULL;
    for (i = 0; i < n && !w->no_memory; i++) {
        if (!is_step(&c[i]))
            continue;
        once__my_put_changes(&text, &c[i].before, &c[i].after);
        once__my_put(&text, " WHERE state = ");
        once__my_put_number(&text, c[i].before.state);
        once__my_put(&text, "\n"); /* becomes the end of the string */
        steps[count].fence = c[i].before.fence;
        ends[count++] = text.size;
    }
    w->no_memory |= text.failed;
    for (i = 0; i < count && !w->no_memory; i++) {
        size_t begin = i == 0 ? 0 : ends[i - 1];

        text.at[ends[i] - 1] = '\0';
        steps[i].values = text.at + begin;
        steps[i].size = ends[i] - begin;
    }
    if (!w->no_memory) {
        qsort(steps, count, sizeof(*steps), by_values);
        put_steps(w->text, steps, count);
    }
    once__my_text_clear(&text);
}

static void write_grants(struct once__my_writer *w,
                         const struct once__my_change *c, size_t n)
{
    uint32_t columns = 0;
    size_t i, count = 0;

    for (i = 0; i < n; i++)
        if (is_granted(&c[i]))
            columns |= once__my_columns_for(&c[i].after, 0);
    for (i = 0; i < n; i++) {
        if (!is_granted(&c[i]))
            continue;
        if (count++ == 0)
            once__my_put_insert(w->text, columns);
        else
            once__my_put(w->text, ",");
        once__my_put_record(w->text, c[i].name, &c[i].after, 0, columns);
    }
    if (count > 0)
        once__my_put(w->text, ";");
}

void once__my_write_body(struct once__my_writer *w, once_bytes result,
                         uint64_t fence, int *open)
{
    const uint8_t *data = result.data;
    size_t part = 0, at = 0, size;

    do {
        size = result.size - at;
        if (size > ONCE__MY_PART)
            size = ONCE__MY_PART;
        once__my_put(w->text, *open ? ",(" : once__my_insert_body);
        once__my_put(w->text, *open ? "" : "(");
        once__my_put_number(w->text, fence);
        once__my_put(w->text, ",");
        once__my_put_number(w->text, part++);
        once__my_put(w->text, ",");
        once__my_put_number(w->text, result.size);
        once__my_put(w->text, ",");
        once__my_put_hex(w->text, size > 0 ? data + at : NULL, size);
        once__my_put(w->text, ")");
        *open = 1;
        at += size;
        if (w->text->size > w->link->packet_size / PACKET_PART) {
            *open = 0;
            if (!once__my_send(w))
                return;
        }
    } while (at < result.size);
}

static void write_bodies(struct once__my_writer *w,
                         const struct once__my_change *c, size_t n)
{
    size_t i;
    int open = 0;

    for (i = 0; i < n; i++)
        if (is_step(&c[i]) && c[i].after.state == ONCE_COMPLETED &&
            c[i].before.state != ONCE_COMPLETED)
            once__my_write_body(w, c[i].after.result, c[i].after.fence, &open);
    if (open)
        once__my_put(w->text, ";");
}

static void write_swept(struct once__my_writer *w,
                        const struct once__my_change *c, size_t n,
                        uint64_t now_ms)
{
    size_t i, count = 0;

    for (i = 0; i < n; i++) {
        if (c[i].after.attempt > 0 || c[i].before.granted_ms + HOUR_MS < now_ms)
            continue;
        once__my_put(
            w->text,
            count++ == 0
                ? "INSERT INTO once_swept (name, fence, at_ms) VALUES ("
                : ",(");
        put_name(w->text, &c[i]);
        once__my_put(w->text, ",");
        put_fence(w->text, &c[i]);
        once__my_put(w->text, ",");
        once__my_put_number(w->text, now_ms);
        once__my_put(w->text, ")");
    }
    if (count > 0)
        once__my_put(w->text, ";");
}

/* Whether a name that was granted has had a larger fence. The rows of one INSERT
 * have consecutive numbers, so one that is larger than the first of them is
 * another transaction's and larger than all. There is hardly ever one. */
static void write_check(struct once__my_writer *w,
                        const struct once__my_change *c, size_t n)
{
    size_t i, grants = 0;

    for (i = 0; i < n; i++)
        grants += is_granted(&c[i]) != 0;
    if (grants == 0)
        return;
    once__my_put(
        w->text,
        "INSERT INTO once_touch (slot, n) SELECT 0, 0 FROM once_swept s "
        "FORCE INDEX (fence) STRAIGHT_JOIN once_record r FORCE INDEX (PRIMARY) "
        "ON r.name = s.name WHERE s.fence > LAST_INSERT_ID() AND r.fence "
        "BETWEEN LAST_INSERT_ID() AND LAST_INSERT_ID() + ");
    once__my_put_number(w->text, grants - 1);
    once__my_put(w->text, " LIMIT 1 LOCK IN SHARE MODE;");
}

static void set_fences(struct once__my_change *c, size_t n, uint64_t fence)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (is_granted(&c[i]))
            c[i].after.fence = fence++;
}

void once__my_write(struct once__my_writer *w, struct once__my_change *c,
                    size_t n, uint64_t now_ms)
{
    size_t gone;

    (void)write_list(w, "DELETE FROM once_body WHERE fence IN (", c, n,
                     loses_result, put_fence, ");");
    gone = write_list(w, "DELETE FROM once_record WHERE fence IN (", c, n,
                      is_gone, put_fence, ");");
    if (gone > 0)
        put_count(w->text, gone);
    write_grants(w, c, n);
    write_steps(w, c, n);
    write_bodies(w, c, n);
    write_swept(w, c, n, now_ms);
    write_check(w, c, n);
    once__my_put(w->text, "COMMIT");
    if (once__my_send(w))
        set_fences(c, n, w->first_fence);
}
