/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - "memory:", records of one process, gone with it.
 *
 * For development, tests and duplicates that live as long as the process. It
 * says that it can lose records. Every operation is once__transition() on a
 * copy of the record; memory is found before the copy is put back, so that a
 * refusal (ONCE_ENOMEM) changes nothing. Fences start at 1: two opened stores
 * share nothing, so no caller can show one's fence to the other.
 *
 * Bytes that were shown in an answer live until the next apply(), also when
 * their record was forgotten by a later operation of the same batch.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "calls/core/transition.h"
#include "base/error.h"
#include "base/must.h"
#include "calls/store/store.h"
#include "calls/store/table.h"

struct memory {
    once_store base;
    once_store_options options;
    once_store_time time; /* as it was put last */
    once_store_head head;
    struct once__table table;
    struct once__blob *retired; /* freed at the next apply */
    uint64_t fence;
};

static void memory_free_retired(struct memory *m)
{
    struct once__blob *blob;

    while ((blob = m->retired) != NULL) {
        m->retired = blob->next;
        free(blob);
    }
}

static void memory_close(once_store *s)
{
    struct memory *m = (struct memory *)s;

    if (m == NULL)
        return;
    memory_free_retired(m);
    once__table_clear(&m->table);
    free(m);
}

static int memory_open(const char *rest, const once_store_options *options,
                       once_error *err, once_store **out)
{
    struct memory *m = NULL;
    uint64_t seed;
    int rc = ONCE_OK;

    if (*rest != '\0')
        return once__fail(err, ONCE_EURL,
                          "memory: nothing may stand after \"memory:\"");
    if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
        return once__fail(err, ONCE_EOPEN, "memory: no random numbers");
    m = calloc(1, sizeof(*m));
    if (m != NULL &&
        getrandom(m->head.id, ONCE_STORE_ID_SIZE, 0) != ONCE_STORE_ID_SIZE) {
        rc = once__fail(err, ONCE_EOPEN, "memory: no random numbers");
        goto out;
    }
    if (m == NULL || once__table_init(&m->table, seed) != ONCE_OK) {
        rc = once__fail(err, ONCE_ENOMEM, "memory: out of memory");
        goto out;
    }
    m->base.ops = &once__store_memory;
    m->options = *options;
    *out = &m->base;
    m = NULL;
out:
    free(m); /* its table owns nothing yet */
    return rc;
}

/* ---- Rows and records -------------------------------------------------- */

static void memory_bytes(const struct once__blob *blob, once_record *r)
{
    r->result = (once_bytes){NULL, 0};
    r->note = (once_bytes){NULL, 0};
    r->label = (once_bytes){NULL, 0};
    memset(r->group, 0, ONCE_GROUP_SIZE);
    if (blob == NULL)
        return;
    r->result = (once_bytes){blob->bytes, blob->result};
    r->note = (once_bytes){blob->bytes + blob->result, blob->note};
    r->label =
        (once_bytes){blob->bytes + blob->result + blob->note, blob->label};
    memcpy(r->group, blob->bytes + blob->result + blob->note + blob->label,
           blob->group);
}

static void memory_read(const struct once__table_row *row, once_record *r)
{
    r->state = row->state;
    r->kind = row->kind;
    r->policy = row->policy;
    r->doubt = row->doubt;
    r->attempt = row->attempt;
    r->fence = row->fence;
    r->lease_ms = row->lease_ms;
    r->keep_ms = row->keep_ms;
    r->granted_ms = row->granted_ms;
    r->created_ms = row->created_ms;
    r->ended_ms = row->ended_ms;
    r->reason = row->reason;
    memcpy(r->trace, row->trace, ONCE_TRACE_SIZE);
    memcpy(r->subject, row->subject, ONCE_SUBJECT_SIZE);
    memcpy(r->token, row->token, ONCE_TOKEN_SIZE);
    memcpy(r->fingerprint, row->fingerprint, ONCE_FINGERPRINT_SIZE);
    memory_bytes(row->blob, r);
}

static void memory_write(struct once__table_row *row, const once_record *r)
{
    row->state = r->state;
    row->kind = r->kind;
    row->policy = r->policy;
    row->doubt = r->doubt;
    row->attempt = r->attempt;
    row->fence = r->fence;
    row->lease_ms = r->lease_ms;
    row->keep_ms = r->keep_ms;
    row->granted_ms = r->granted_ms;
    row->created_ms = r->created_ms;
    row->ended_ms = r->ended_ms;
    row->reason = r->reason;
    memcpy(row->trace, r->trace, ONCE_TRACE_SIZE);
    memcpy(row->subject, r->subject, ONCE_SUBJECT_SIZE);
    memcpy(row->token, r->token, ONCE_TOKEN_SIZE);
    memcpy(row->fingerprint, r->fingerprint, ONCE_FINGERPRINT_SIZE);
}

static int memory_same_place(once_bytes a, once_bytes b)
{
    return a.size == b.size && (a.size == 0 || a.data == b.data);
}

static uint32_t memory_group_size(const once_record *r)
{
    uint32_t size = ONCE_GROUP_SIZE;

    while (size > 0 && r->group[size - 1] == 0)
        size--;
    return size;
}

static uint8_t *memory_add(uint8_t *at, const void *data, size_t size)
{
    if (size > 0)
        memcpy(at, data, size);
    return at + size;
}

/* The blob that `r` needs: the old one, none, or a new one. 0: no memory. */
static int memory_blob(const once_record *r, struct once__blob *old,
                       struct once__blob **out)
{
    uint32_t group = memory_group_size(r);
    once_record was;
    struct once__blob *blob;
    uint8_t *at;

    memory_bytes(old, &was);
    if (memory_same_place(r->result, was.result) &&
        memory_same_place(r->note, was.note) &&
        memory_same_place(r->label, was.label) &&
        memcmp(r->group, was.group, ONCE_GROUP_SIZE) == 0) {
        *out = old;
        return 1;
    }
    *out = NULL;
    if (r->result.size + r->note.size + r->label.size + group == 0)
        return 1;
    blob = malloc(sizeof(*blob) + r->result.size + r->note.size +
                  r->label.size + group);
    if (blob == NULL)
        return 0;
    blob->next = NULL;
    blob->result = (uint32_t)r->result.size;
    blob->note = (uint32_t)r->note.size;
    blob->label = (uint32_t)r->label.size;
    blob->group = group;
    at = memory_add(blob->bytes, r->result.data, r->result.size);
    at = memory_add(at, r->note.data, r->note.size);
    at = memory_add(at, r->label.data, r->label.size);
    (void)memory_add(at, r->group, group);
    *out = blob;
    return 1;
}

/* ---- One operation ----------------------------------------------------- */

/* Puts `r` where it belongs. 0: no memory, and nothing was changed. */
static int memory_keep(struct memory *m, struct once__table_row *row,
                       once_op *op, const once_record *r)
{
    struct once__blob *blob, *old = row == NULL ? NULL : row->blob;

    if (!memory_blob(r, old, &blob))
        return 0;
    if (row == NULL) {
        ONCE__MUST(r->attempt > 0);
        row = once__table_add(&m->table, op->name);
        if (row == NULL) {
            free(blob);
            return 0;
        }
    }
    once__table_undue(&m->table, row);
    if (old != NULL && blob != old) {
        old->next = m->retired;
        m->retired = old;
    }
    row->blob = blob;
    if (r->attempt == 0) {
        ONCE__MUST(blob == NULL);
        once__table_remove(&m->table, row);
        return 1;
    }
    memory_write(row, r);
    once__table_due(&m->table, row);
    memory_bytes(blob, &op->record);
    return 1;
}

static void memory_apply_one(struct memory *m, once_op *op, uint64_t now_ms)
{
    struct once__table_row *row = once__table_find(&m->table, op->name);
    once_record before, r;
    uint64_t fence = m->fence;

    memset(&r, 0, sizeof(r));
    if (row != NULL)
        memory_read(row, &r);
    before = r;
    if (!once__transition(&r, op, now_ms, &fence))
        return;
    if (memory_keep(m, row, op, &r)) {
        m->fence = fence;
        return;
    }
    op->rc = ONCE_ENOMEM;
    op->left_ms = 0;
    op->record = before;
}

static int memory_apply(once_store *s, once_op **ops, size_t n, once_error *err)
{
    struct memory *m = (struct memory *)s;
    uint64_t now_ms = m->options.clock(m->options.user);
    size_t i;

    (void)err;
    memory_free_retired(m);
    for (i = 0; i < n; i++)
        memory_apply_one(
            m, ops[i],
            once__time_of(s, ops[i]->verb == ONCE_OP_FORGET, now_ms));
    return ONCE_OK;
}

/* ---- Scans ------------------------------------------------------------- */

struct memory_view {
    once_each *each;
    void *user;
    int shown;
};

static int memory_show(void *user, const struct once__table_row *row)
{
    struct memory_view *view = user;
    once_record r;

    memory_read(row, &r);
    r.result.data = NULL;
    view->shown++;
    return view->each(view->user, row->name, &r);
}

static void memory_walk(struct memory *m, const uint8_t *after, uint32_t max,
                        struct memory_view *view)
{
    const struct once__table_row *row;

    for (; max > 0; max--) {
        row = once__table_after(&m->table, after);
        if (row == NULL || memory_show(view, row) != 0)
            return;
        after = row->name;
    }
}

/* A page in the order of times. 0: no memory. */
static int memory_page(const struct once__heap *h, const once_position *after,
                       uint32_t max, struct memory_view *view)
{
    size_t i, n;
    struct once__table_row **page = once__heap_page(h, after, max, &n);

    if (page == NULL)
        return 0;
    for (i = 0; i < n && memory_show(view, page[i]) == 0; i++)
        ;
    free(page);
    return 1;
}

static int memory_scan(once_store *s, int what, const once_position *after,
                       uint32_t max, once_each *each, void *user,
                       once_error *err)
{
    struct memory *m = (struct memory *)s;
    uint64_t now_ms = once__time_of(s, what == ONCE_SCAN_KEEP,
                                    m->options.clock(m->options.user));
    struct memory_view view = {each, user, 0};

    int found = 1;

    if (max > INT32_MAX)
        max = INT32_MAX;
    if (what == ONCE_SCAN_LEASE)
        once__heap_walk(&m->table.leases, now_ms, max, memory_show, &view);
    else if (what == ONCE_SCAN_KEEP)
        once__heap_walk(&m->table.keeps, now_ms, max, memory_show, &view);
    else if (what == ONCE_SCAN_WAITING)
        found = memory_page(&m->table.waiting, after, max, &view);
    else if (what == ONCE_SCAN_LIVE)
        found = memory_page(&m->table.leases, after, max, &view);
    else
        memory_walk(m, after == NULL ? NULL : after->name, max, &view);
    return found ? view.shown
                 : once__fail(err, ONCE_ENOMEM, "memory: out of memory");
}

static int memory_count(once_store *s, once_counts *out, once_error *err)
{
    const struct once__table *t = &((struct memory *)s)->table;
    size_t i;

    (void)err;
    memset(out, 0, sizeof(*out));
    for (i = 0; i < t->leases.count; i++)
        if (t->leases.at[i]->state == ONCE_CLAIMED)
            out->claimed++;
    out->dispatched = t->leases.count - out->claimed;
    out->indeterminate = t->waiting.count;
    out->rest = t->rows - t->leases.count - t->waiting.count;
    return ONCE_OK;
}

static int memory_head(once_store *s, const once_store_head *put,
                       once_store_head *out, once_error *err)
{
    struct memory *m = (struct memory *)s;

    (void)err;
    if (put != NULL) {
        m->head = *put;
        m->fence = once__fence_floor(put, m->fence);
    }
    *out = m->head;
    return ONCE_OK;
}

static int memory_fence(once_store *s, uint64_t *out, once_error *err)
{
    (void)err;
    *out = ((struct memory *)s)->fence;
    return ONCE_OK;
}

static int memory_import(once_store *s, const once_named *r, size_t n,
                         once_error *err)
{
    struct memory *m = (struct memory *)s;
    once_op op;
    size_t i;

    for (i = 0; i < n; i++) {
        memset(&op, 0, sizeof(op));
        memcpy(op.name, r[i].name, ONCE_NAME_SIZE);
        if (once__table_find(&m->table, op.name) != NULL)
            return once__fail(err, ONCE_EINVAL, "memory: a record is there");
        if (!memory_keep(m, NULL, &op, &r[i].record))
            return once__fail(err, ONCE_ENOMEM, "memory: out of memory");
        if (r[i].record.fence > m->fence)
            m->fence = r[i].record.fence;
    }
    return ONCE_OK;
}

static int memory_time(once_store *s, const once_store_time *put,
                       once_store_time *out, once_error *err)
{
    struct memory *m = (struct memory *)s;

    (void)err;
    if (put != NULL)
        m->time = *put;
    *out = m->time;
    out->now_ms = m->options.clock(m->options.user);
    return ONCE_OK;
}

const once_store_ops once__store_memory = {
    .size = sizeof(once_store_ops),
    .name = "memory",
    .open = memory_open,
    .close = memory_close,
    .apply = memory_apply,
    .scan = memory_scan,
    .time = memory_time,
    .count = memory_count,
    .head = memory_head,
    .import = memory_import,
    .fence = memory_fence,
};
