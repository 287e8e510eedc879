/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore.c - from a file into an empty store.
 *
 *    empty --> head: gap, hold --> records, step by step --> head: gap, as asked
 *                   |
 *                   +-- whatever fails from here on leaves a store that grants
 *                       nothing
 */
#include "operate/copy/copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "calls/core/bounds.h"
#include "calls/store/store.h"

enum { DAY_MS = 86400000 };

/* Records with copies of their bytes. */
struct step {
    once_named r[ONCE__COPY_RECORDS];
    void *bytes[ONCE__COPY_RECORDS];
    size_t n, size;
};

static int see(void *user, const uint8_t name[ONCE_NAME_SIZE],
               const once_record *r)
{
    (void)user;
    (void)name;
    (void)r;
    return 1;
}

static int check_empty(once_store *s, once_error *err)
{
    int n;

    if (s->ops->head == NULL || s->ops->import == NULL)
        return once__fail(err, ONCE_ENOSYS,
                          "%s: this store is restored by tools of its own",
                          s->ops->name);
    n = s->ops->scan(s, ONCE_SCAN_ALL, NULL, 1, see, NULL, err);
    if (n < 0)
        return n;
    return n == 0 ? ONCE_OK
                  : once__fail(err, ONCE_EINVAL,
                               "the store is not empty: a copy is restored "
                               "into an empty one only");
}

/* Its owner is gone, and may have done its work. */
static void lose_owner(once_record *r, uint64_t when_ms)
{
    if (r->state != ONCE_CLAIMED && r->state != ONCE_DISPATCHED)
        return;
    r->state = ONCE_INDETERMINATE;
    r->reason = ONCE_REASON_GAP;
    r->ended_ms = when_ms;
    r->lease_ms = 0;
}

/* 0: no memory. */
static int add(struct step *st, const once_named *from)
{
    once_named *to = &st->r[st->n];
    once_bytes *parts[] = {&to->record.result, &to->record.note,
                           &to->record.label};
    uint8_t *at;
    size_t i, size = 1;

    *to = *from;
    for (i = 0; i < 3; i++)
        size += parts[i]->size;
    at = malloc(size);
    if (at == NULL)
        return 0;
    st->bytes[st->n++] = at;
    st->size += size;
    for (i = 0; i < 3; i++) {
        if (parts[i]->size > 0)
            memcpy(at, parts[i]->data, parts[i]->size);
        parts[i]->data = at;
        at += parts[i]->size;
    }
    return 1;
}

static void clear(struct step *st)
{
    while (st->n > 0)
        free(st->bytes[--st->n]);
    st->size = 0;
}

/* Reads up to a step's worth: how many, or an error. */
static int fill(once__copy *c, struct step *st, once_error *err)
{
    once_named one;
    int rc = 1;

    while (st->n < ONCE__COPY_RECORDS && st->size < ONCE__COPY_BYTES) {
        rc = once__copy_next(c, &one, err);
        if (rc <= 0)
            break;
        lose_owner(&one.record, once__copy_about_of(c)->begun_ms);
        if (!add(st, &one))
            return once__fail(err, ONCE_ENOMEM, "copy: out of memory");
    }
    return rc < 0 ? rc : (int)st->n;
}

static int import_all(once__copy *c, once_store *s, const once__restore *how,
                      once_error *err)
{
    struct step *st = calloc(1, sizeof(*st));
    uint64_t done = 0;
    int rc;

    if (st == NULL)
        return once__fail(err, ONCE_ENOMEM, "copy: out of memory");
    while ((rc = fill(c, st, err)) > 0) {
        rc = s->ops->import(s, st->r, st->n, err);
        done += st->n;
        clear(st);
        if (rc != ONCE_OK)
            break;
        if (how->progress != NULL)
            how->progress(how->user, done);
    }
    clear(st);
    free(st);
    return rc;
}

static int check_incarnation(uint32_t incarnation, once_error *err)
{
    return incarnation < ONCE_INCARNATION_MAX
               ? ONCE_OK
               : once__fail(err, ONCE_ELIMIT,
                            "the store was restored %u times: make a new one",
                            incarnation);
}

/* The time from which the gap is counted: a clock that is set ahead before
 * anybody has looked at it must not end the gap. Where the clock was ahead when
 * the copy was made, it is taken to be still ahead by as much. */
static int note_time(once_store *s, uint64_t ahead_ms, once_error *err)
{
    once_clock clock = {.every_ms = 1000};
    int rc = ahead_ms > 0 ? once__store_clock_behind(s, &clock, ahead_ms, err)
                          : once_store_clock(s, &clock, err);

    return rc == ONCE_ENOSYS ? ONCE_OK : rc;
}

static uint64_t longest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

int once__copy_restore(once__copy *c, once_store *s, const once__restore *how,
                       once_store_head *head, once_error *err)
{
    const once__copy_about *about = once__copy_about_of(c);
    once_store_head own, put;
    uint64_t keep_ms = longest(how->keep_ms, longest(about->keep_ms, DAY_MS));
    int rc = check_empty(s, err);

    if (rc == ONCE_OK)
        rc = s->ops->head(s, NULL, &own, err);
    if (rc != ONCE_OK)
        return rc;
    put = own;
    memcpy(put.id, about->id, sizeof(put.id));
    if (own.incarnation < about->incarnation)
        put.incarnation = about->incarnation;
    rc = check_incarnation(put.incarnation, err);
    if (rc != ONCE_OK)
        return rc;
    put.incarnation++;
    put.gap = ONCE_GAP_HOLD;
    put.gap_from_ms = about->begun_ms;
    put.gap_until_ms = once__wall_clock(NULL) + ONCE_KEEP_MAX_MS;
    rc = s->ops->head(s, &put, head, err);
    if (rc == ONCE_OK)
        rc = note_time(s, about->ahead_ms, err);
    if (rc == ONCE_OK)
        rc = import_all(c, s, how, err);
    put.gap = (uint32_t)how->gap;
    put.gap_until_ms = once__time_after(once__wall_clock(NULL), keep_ms);
    return rc == ONCE_OK ? s->ops->head(s, &put, head, err) : rc;
}

int once__copy_adopt(once_store *s, const once__restore *how,
                     once_store_head *head, once_error *err)
{
    once_store_head put;
    uint64_t until_ms;
    int rc;

    if (s->ops->head == NULL)
        return once__fail(err, ONCE_ENOSYS, "%s: this store has no head",
                          s->ops->name);
    rc = s->ops->head(s, NULL, &put, err);
    if (rc == ONCE_OK)
        rc = check_incarnation(put.incarnation, err);
    if (rc == ONCE_OK)
        rc = note_time(s, 0, err);
    if (rc != ONCE_OK)
        return rc;
    put.incarnation++;
    until_ms = put.gap != ONCE_GAP_NONE ? put.gap_until_ms : 0;
    put.gap = (uint32_t)how->gap;
    put.gap_from_ms = 0; /* not known */
    put.gap_until_ms =
        longest(until_ms, once__time_after(once__wall_clock(NULL),
                                           longest(how->keep_ms, DAY_MS)));
    return s->ops->head(s, &put, head, err);
}
