/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arrays.c - operations as arrays of parameters, rows of answers as records.
 *
 * All in PostgreSQL's binary format: nothing is quoted, so nothing can be
 * quoted wrongly. An array has one dimension:
 *
 *    1  has NULLs: 1  element's type  how many  1  { size, bytes }...
 *
 * with 4-byte numbers, most significant byte first, and size -1 for NULL. One
 * without elements has no dimension:
 *
 *    0  has NULLs: 1  element's type
 *
 * What an operation does not look at is NULL, and NULLs at the end of an array
 * are left out: the server fills them in, at no cost. So a batch of claims
 * does not pay for what completes bring along, and the other way round.
 *
 * A row is believed if it has the columns of the type "answer" and
 * once__transition() could have made it; what does not is ECORRUPT, and of
 * another version is EVERSION (I9).
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "calls/core/bounds.h"
#include "calls/core/transition.h"
#include "base/grow.h"
#include "base/must.h"
#include "calls/store/postgres/postgres.h"

enum {
    OID_BOOL = 16,
    OID_BYTEA = 17,
    OID_INT8 = 20,
    OID_INT2 = 21,
    OID_INT4 = 23,
    OID_UUID = 2950,
    OID_BYTEA_ARRAY = 1001,
    OID_INT2_ARRAY = 1005,
    OID_INT8_ARRAY = 1016,
    OID_UUID_ARRAY = 2951
};

/* ---- Numbers ----------------------------------------------------------- */

static void put(uint8_t *out, uint64_t value, size_t size)
{
    while (size-- > 0) {
        out[size] = (uint8_t)value;
        value >>= 8;
    }
}

static uint64_t get(const void *from, size_t size)
{
    const uint8_t *in = from;
    uint64_t value = 0;

    while (size-- > 0)
        value = value << 8 | *in++;
    return value;
}

/* ---- Parameters -------------------------------------------------------- */

enum { ROOM_KEPT = 1 << 20 };

static void params_begin(struct once__pg_params *p)
{
    if (p->room > ROOM_KEPT) {
        free(p->bytes);
        p->bytes = NULL;
        p->room = 0;
    }
    p->size = 0;
    p->count = 0;
    p->failed = 0;
}

void once__pg_params_clear(struct once__pg_params *p)
{
    free(p->bytes);
    memset(p, 0, sizeof(*p));
}

/* Room for `size` bytes more; where they are, or NULL. */
static uint8_t *params_add(struct once__pg_params *p, size_t size)
{
    uint8_t *bytes =
        p->failed ? NULL : once__grown(p->bytes, &p->room, p->size + size, 1);

    if (bytes == NULL) {
        p->failed = 1;
        return NULL;
    }
    p->bytes = bytes;
    p->size += size;
    return p->bytes + p->size - size;
}

static void params_next(struct once__pg_params *p, Oid type)
{
    ONCE__MUST(p->count < ONCE__PG_COLUMNS);
    p->at[p->count] = p->size;
    p->types[p->count] = type;
    p->formats[p->count] = 1;
    p->lengths[p->count] = 0;
    p->count++;
}

static void add_number(struct once__pg_params *p, uint64_t value, size_t size)
{
    uint8_t *to = params_add(p, size);

    if (to != NULL)
        put(to, value, size);
}

static void add_bytes(struct once__pg_params *p, const void *data, size_t size)
{
    uint8_t *to = params_add(p, size);

    if (to != NULL && size > 0)
        memcpy(to, data, size);
}

static void number(struct once__pg_params *p, Oid type, uint64_t value,
                   size_t size)
{
    params_next(p, type);
    add_number(p, value, size);
}

/* NULL where there is none. */
static void maybe_number(struct once__pg_params *p, Oid type,
                         const uint64_t *value)
{
    params_next(p, type);
    if (value != NULL)
        add_number(p, *value, sizeof(*value));
    else
        p->lengths[p->count - 1] = -1;
}

static void bytes(struct once__pg_params *p, const void *data, size_t size)
{
    params_next(p, OID_BYTEA);
    add_bytes(p, data, size);
}

/* The bytes may have moved while there came more: now they stand still. */
static int params_end(struct once__pg_params *p)
{
    size_t end = p->size;
    int i;

    if (p->failed)
        return ONCE_ENOMEM;
    for (i = p->count - 1; i >= 0; i--) {
        ONCE__MUST(end - p->at[i] <= INT_MAX);
        if (p->lengths[i] < 0) {
            p->values[i] = NULL;
        } else {
            p->values[i] = (const char *)p->bytes + p->at[i];
            p->lengths[i] = (int)(end - p->at[i]);
        }
        end = p->at[i];
    }
    return ONCE_OK;
}

struct once__pg_ask once__pg_params_ask(const struct once__pg_params *p,
                                        const char *sql)
{
    return (struct once__pg_ask){sql,        p->count,   p->types, p->values,
                                 p->lengths, p->formats, 0};
}

/* ---- Operations as columns --------------------------------------------- */

static once_bytes of(const void *data, size_t size)
{
    return (once_bytes){data, size};
}

static once_bytes trimmed(const uint8_t *text, size_t size)
{
    while (size > 0 && text[size - 1] == 0)
        size--;
    return of(text, size);
}

enum column {
    VERB,
    NAME,
    TOKEN,
    FENCE,
    KIND,
    POLICY,
    STATE,
    LEASE,
    KEEP,
    REASON,
    TRACE,
    FINGERPRINT,
    SUBJECT,
    GROUP,
    LABEL,
    RESULT,
    NOTE,
    /* Of records only: */
    DOUBT,
    ATTEMPT,
    GRANTED,
    CREATED,
    ENDED,
    COLUMNS,
    COLUMNS_OF_OP = DOUBT
};

#define VERB_OF(name) (1u << ONCE_OP_##name)

enum {
    ANY = (1u << ONCE__OP_END) - 1,
    CLAIM = VERB_OF(CLAIM),
    OUTCOME = VERB_OF(COMPLETE) | VERB_OF(RESOLVE),
    LEASES = CLAIM | VERB_OF(DISPATCH) | VERB_OF(RENEW),
    KEEPS = CLAIM | OUTCOME | VERB_OF(RELEASE) | VERB_OF(REAP) | VERB_OF(REOPEN)
};

static const struct {
    Oid type, element;
    size_t size;    /* of a number; 0: bytes */
    unsigned verbs; /* that look at it: in others it was never checked */
} columns[COLUMNS] = {
    [VERB] = {OID_INT2_ARRAY, OID_INT2, 2, ANY},
    [NAME] = {OID_BYTEA_ARRAY, OID_BYTEA, 0, ANY},
    [TOKEN] = {OID_UUID_ARRAY, OID_UUID, 0, ANY},
    [FENCE] = {OID_INT8_ARRAY, OID_INT8, 8, ANY & ~CLAIM},
    [KIND] = {OID_INT2_ARRAY, OID_INT2, 2, OUTCOME},
    [POLICY] = {OID_INT2_ARRAY, OID_INT2, 2, CLAIM},
    [STATE] = {OID_INT2_ARRAY, OID_INT2, 2, CLAIM},
    [LEASE] = {OID_INT8_ARRAY, OID_INT8, 8, LEASES},
    [KEEP] = {OID_INT8_ARRAY, OID_INT8, 8, KEEPS},
    [REASON] = {OID_INT2_ARRAY, OID_INT2, 2,
                VERB_OF(RELEASE) | VERB_OF(GIVE_UP)},
    [TRACE] = {OID_UUID_ARRAY, OID_UUID, 0, CLAIM},
    [FINGERPRINT] = {OID_BYTEA_ARRAY, OID_BYTEA, 0, CLAIM},
    [SUBJECT] = {OID_BYTEA_ARRAY, OID_BYTEA, 0, CLAIM},
    [GROUP] = {OID_BYTEA_ARRAY, OID_BYTEA, 0, CLAIM},
    [LABEL] = {OID_BYTEA_ARRAY, OID_BYTEA, 0, CLAIM},
    [RESULT] = {OID_BYTEA_ARRAY, OID_BYTEA, 0, OUTCOME},
    [NOTE] = {OID_BYTEA_ARRAY, OID_BYTEA, 0,
              VERB_OF(RESOLVE) | VERB_OF(REOPEN)},
    [DOUBT] = {OID_INT2_ARRAY, OID_INT2, 2, 0},
    [ATTEMPT] = {OID_INT8_ARRAY, OID_INT8, 8, 0},
    [GRANTED] = {OID_INT8_ARRAY, OID_INT8, 8, 0},
    [CREATED] = {OID_INT8_ARRAY, OID_INT8, 8, 0},
    [ENDED] = {OID_INT8_ARRAY, OID_INT8, 8, 0},
};

static uint64_t number_of(const once_op *op, enum column column)
{
    switch (column) {
    case VERB:
        return (uint64_t)op->verb;
    case FENCE:
        return op->fence;
    case KIND:
        return (uint64_t)op->kind;
    case POLICY:
        return op->policy;
    case STATE:
        return op->two_phase ? ONCE_CLAIMED : ONCE_DISPATCHED;
    case LEASE:
        return op->lease_ms;
    case REASON:
        return (uint64_t)op->reason;
    default:
        ONCE__MUST(column == KEEP);
        return op->keep_ms;
    }
}

static once_bytes bytes_of(const once_op *op, enum column column)
{
    switch (column) {
    case NAME:
        return of(op->name, ONCE_NAME_SIZE);
    case TOKEN:
        return of(op->token, ONCE_TOKEN_SIZE);
    case TRACE:
        return of(op->trace, ONCE_TRACE_SIZE);
    case FINGERPRINT:
        return of(op->fingerprint, ONCE_FINGERPRINT_SIZE);
    case SUBJECT:
        return trimmed(op->subject, ONCE_SUBJECT_SIZE);
    case GROUP:
        return trimmed(op->group, ONCE_GROUP_SIZE);
    case LABEL:
        return op->label;
    case RESULT:
        return op->result;
    default:
        ONCE__MUST(column == NOTE);
        return op->note;
    }
}

static uint64_t number_of_record(const once_record *r, enum column column)
{
    switch (column) {
    case FENCE:
        return r->fence;
    case KIND:
        return r->kind;
    case POLICY:
        return r->policy;
    case STATE:
        return r->state;
    case LEASE:
        return r->lease_ms;
    case KEEP:
        return r->keep_ms;
    case REASON:
        return r->reason;
    case DOUBT:
        return r->doubt;
    case ATTEMPT:
        return r->attempt;
    case GRANTED:
        return r->granted_ms;
    case CREATED:
        return r->created_ms;
    default:
        ONCE__MUST(column == ENDED);
        return r->ended_ms;
    }
}

static once_bytes bytes_of_record(const once_named *r, enum column column)
{
    switch (column) {
    case NAME:
        return of(r->name, ONCE_NAME_SIZE);
    case TOKEN:
        return of(r->record.token, ONCE_TOKEN_SIZE);
    case TRACE:
        return of(r->record.trace, ONCE_TRACE_SIZE);
    case FINGERPRINT:
        return of(r->record.fingerprint, ONCE_FINGERPRINT_SIZE);
    case SUBJECT:
        return trimmed(r->record.subject, ONCE_SUBJECT_SIZE);
    case GROUP:
        return trimmed(r->record.group, ONCE_GROUP_SIZE);
    case LABEL:
        return r->record.label;
    case RESULT:
        return r->record.result;
    default:
        ONCE__MUST(column == NOTE);
        return r->record.note;
    }
}

static void add_value(struct once__pg_params *p, enum column column,
                      uint64_t value)
{
    add_number(p, columns[column].size, 4);
    add_number(p, value, columns[column].size);
}

static void add_piece(struct once__pg_params *p, once_bytes b)
{
    add_number(p, b.size, 4);
    add_bytes(p, b.data, b.size);
}

static void array_begin(struct once__pg_params *p, enum column column, size_t n)
{
    params_next(p, columns[column].type);
    add_number(p, n > 0, 4);
    add_number(p, 1, 4);
    add_number(p, columns[column].element, 4);
    if (n == 0)
        return;
    add_number(p, n, 4);
    add_number(p, 1, 4);
}

static int looks_at(const once_op *op, enum column column)
{
    return (columns[column].verbs >> op->verb & 1) != 0;
}

static void array(struct once__pg_params *p, enum column column,
                  once_op *const *ops, size_t n)
{
    size_t i;

    while (n > 0 && !looks_at(ops[n - 1], column))
        n--;
    array_begin(p, column, n);
    for (i = 0; i < n; i++)
        if (!looks_at(ops[i], column))
            add_number(p, UINT32_MAX, 4);
        else if (columns[column].size > 0)
            add_value(p, column, number_of(ops[i], column));
        else
            add_piece(p, bytes_of(ops[i], column));
}

static void array_of_records(struct once__pg_params *p, enum column column,
                             const once_named *r, size_t n)
{
    size_t i;

    array_begin(p, column, n);
    for (i = 0; i < n; i++)
        if (columns[column].size > 0)
            add_value(p, column, number_of_record(&r[i].record, column));
        else
            add_piece(p, bytes_of_record(&r[i], column));
}

int once__pg_params_apply(struct once__pg_params *p,
                          const struct once__pg_call *call, once_op *const *ops,
                          size_t n)
{
    enum column column;

    params_begin(p);
    maybe_number(p, OID_INT8, call->now_ms);
    number(p, OID_BOOL, (uint64_t)call->async, 1);
    number(p, OID_BOOL, (uint64_t)call->grant, 1);
    number(p, OID_INT4, call->lock_ms, 4);
    number(p, OID_INT4, ONCE__PG_INLINE, 4);
    for (column = 0; column < COLUMNS_OF_OP; column++)
        array(p, column, ops, n);
    params_next(p, OID_UUID);
    if (call->id != NULL)
        add_bytes(p, call->id, ONCE_STORE_ID_SIZE);
    else
        p->lengths[p->count - 1] = -1;
    return params_end(p);
}

int once__pg_params_forget(struct once__pg_params *p,
                           const struct once__pg_call *call,
                           once_op *const *ops, size_t n)
{
    params_begin(p);
    maybe_number(p, OID_INT8, call->now_ms);
    number(p, OID_BOOL, (uint64_t)call->async, 1);
    number(p, OID_INT4, call->lock_ms, 4);
    number(p, OID_INT4, ONCE__PG_INLINE, 4);
    array(p, NAME, ops, n);
    array(p, FENCE, ops, n);
    return params_end(p);
}

int once__pg_params_body(struct once__pg_params *p, const once_op *op,
                         uint64_t fence)
{
    params_begin(p);
    bytes(p, op->name, ONCE_NAME_SIZE);
    number(p, OID_INT8, fence, 8);
    return params_end(p);
}

int once__pg_params_scan(struct once__pg_params *p, int what,
                         const uint64_t *now_ms, const once_position *after,
                         uint32_t max)
{
    uint64_t ms = after == NULL ? 0 : after->ms;

    params_begin(p);
    number(p, OID_INT4, (uint64_t)what, 4);
    maybe_number(p, OID_INT8, now_ms);
    number(p, OID_INT8, ms > INT64_MAX ? INT64_MAX : ms, 8);
    bytes(p, after == NULL ? NULL : after->name,
          after == NULL ? 0 : ONCE_NAME_SIZE);
    number(p, OID_INT4, max, 4);
    return params_end(p);
}

void once__pg_params_none(struct once__pg_params *p)
{
    params_begin(p);
    ONCE__MUST(params_end(p) == ONCE_OK);
}

int once__pg_params_fence(struct once__pg_params *p, int async)
{
    params_begin(p);
    number(p, OID_BOOL, (uint64_t)async, 1);
    return params_end(p);
}

int once__pg_params_head(struct once__pg_params *p, int async,
                         const once_store_head *put)
{
    params_begin(p);
    number(p, OID_BOOL, (uint64_t)async, 1);
    params_next(p, OID_UUID);
    add_bytes(p, put->id, ONCE_STORE_ID_SIZE);
    number(p, OID_INT4, put->incarnation, 4);
    number(p, OID_INT2, put->gap, 2);
    number(p, OID_INT8, put->gap_from_ms, 8);
    number(p, OID_INT8, put->gap_until_ms, 8);
    return params_end(p);
}

int once__pg_params_import(struct once__pg_params *p, int async,
                           const once_named *r, size_t n)
{
    enum column column;

    params_begin(p);
    number(p, OID_BOOL, (uint64_t)async, 1);
    for (column = NAME; column < COLUMNS; column++)
        array_of_records(p, column, r, n);
    return params_end(p);
}

int once__pg_params_seen(struct once__pg_params *p,
                         const struct once__pg_call *call,
                         const once_store_time *put)
{
    params_begin(p);
    maybe_number(p, OID_INT8, call->now_ms);
    number(p, OID_BOOL, (uint64_t)call->async, 1);
    number(p, OID_INT4, call->lock_ms, 4);
    maybe_number(p, OID_INT8, put != NULL ? &put->seen_ms : NULL);
    number(p, OID_INT8, put != NULL ? put->steady_ms : 0, 8);
    bytes(p, put != NULL ? put->host : NULL, put != NULL ? ONCE_HOST_SIZE : 0);
    number(p, OID_INT8, put != NULL ? put->backs : 0, 8);
    return params_end(p);
}

/* ---- Rows -------------------------------------------------------------- */

enum answer_column {
    A_NAME,
    A_DID,
    A_NOW,
    A_GRANTED,
    A_VERSION,
    A_STATE,
    A_KIND,
    A_POLICY,
    A_DOUBT,
    A_REASON,
    A_ATTEMPT,
    A_FENCE,
    A_LEASE,
    A_KEEP,
    A_GRANTED_MS,
    A_CREATED,
    A_ENDED,
    A_TOKEN,
    A_TRACE,
    A_FINGERPRINT,
    A_SUBJECT,
    A_GROUP,
    A_LABEL,
    A_NOTE,
    A_SIZE,
    A_BODY,
    A_COLUMNS
};

static const Oid answer_types[A_COLUMNS] = {
    [A_NAME] = OID_BYTEA,      [A_DID] = OID_INT4,
    [A_NOW] = OID_INT8,        [A_GRANTED] = OID_INT8,
    [A_VERSION] = OID_INT2,    [A_STATE] = OID_INT2,
    [A_KIND] = OID_INT2,       [A_POLICY] = OID_INT2,
    [A_DOUBT] = OID_INT2,      [A_REASON] = OID_INT2,
    [A_ATTEMPT] = OID_INT4,    [A_FENCE] = OID_INT8,
    [A_LEASE] = OID_INT8,      [A_KEEP] = OID_INT8,
    [A_GRANTED_MS] = OID_INT8, [A_CREATED] = OID_INT8,
    [A_ENDED] = OID_INT8,      [A_TOKEN] = OID_UUID,
    [A_TRACE] = OID_UUID,      [A_FINGERPRINT] = OID_BYTEA,
    [A_SUBJECT] = OID_BYTEA,   [A_GROUP] = OID_BYTEA,
    [A_LABEL] = OID_BYTEA,     [A_NOTE] = OID_BYTEA,
    [A_SIZE] = OID_INT4,       [A_BODY] = OID_BYTEA,
};

/* How many bytes a value of this type has; 0: any number. */
static int size_of(Oid type)
{
    switch (type) {
    case OID_INT2:
        return 2;
    case OID_INT4:
        return 4;
    case OID_INT8:
        return 8;
    case OID_UUID:
        return ONCE_TOKEN_SIZE;
    default:
        return 0;
    }
}

/* Has row `i` `n` columns of these types, the first `known` not NULL? */
static int has_types(const PGresult *rows, int i, const Oid *types, int n,
                     int known)
{
    int k;

    if (PQnfields(rows) != n || !PQbinaryTuples(rows))
        return 0;
    for (k = 0; k < n; k++) {
        if (PQftype(rows, k) != types[k])
            return 0;
        if (PQgetisnull(rows, i, k)
                ? k < known
                : size_of(types[k]) != 0 &&
                      PQgetlength(rows, i, k) != size_of(types[k]))
            return 0;
    }
    return 1;
}

static int has_shape(const PGresult *rows, int i)
{
    return has_types(rows, i, answer_types, A_COLUMNS, 0) &&
           PQgetlength(rows, i, A_NAME) == ONCE_NAME_SIZE &&
           !PQgetisnull(rows, i, A_DID) && !PQgetisnull(rows, i, A_NOW);
}

static uint64_t field(const PGresult *rows, int i, int k)
{
    return PQgetisnull(rows, i, k)
               ? 0
               : get(PQgetvalue(rows, i, k), (size_t)PQgetlength(rows, i, k));
}

static once_bytes field_bytes(const PGresult *rows, int i, int k)
{
    size_t size = (size_t)PQgetlength(rows, i, k);

    return of(size > 0 ? PQgetvalue(rows, i, k) : NULL, size);
}

/* A number that does not fit becomes one that is not sane. */
static uint8_t small(const PGresult *rows, int i, int k)
{
    uint64_t value = field(rows, i, k);

    return value > 254 ? 255 : (uint8_t)value;
}

static int read_numbers(const PGresult *rows, int i, once_record *r)
{
    r->state = small(rows, i, A_STATE);
    r->kind = small(rows, i, A_KIND);
    r->policy = small(rows, i, A_POLICY);
    r->doubt = small(rows, i, A_DOUBT);
    r->reason = small(rows, i, A_REASON);
    r->attempt = (uint32_t)field(rows, i, A_ATTEMPT);
    r->fence = field(rows, i, A_FENCE);
    r->lease_ms = field(rows, i, A_LEASE);
    r->keep_ms = field(rows, i, A_KEEP);
    r->granted_ms = field(rows, i, A_GRANTED_MS);
    r->created_ms = field(rows, i, A_CREATED);
    r->ended_ms = field(rows, i, A_ENDED);
    r->result.size = (size_t)field(rows, i, A_SIZE);
    return r->attempt <= INT32_MAX && r->fence <= INT64_MAX &&
           r->lease_ms <= INT64_MAX && r->keep_ms <= INT64_MAX &&
           r->granted_ms <= INT64_MAX && r->created_ms <= INT64_MAX &&
           r->ended_ms <= INT64_MAX;
}

/* Copies all of `size` bytes. */
static int copy(once_bytes b, uint8_t *out, size_t size)
{
    if (b.size != size)
        return 0;
    memcpy(out, b.data, size);
    return 1;
}

/* Copies what trimmed() has left; the rest is zero already. */
static int copy_trimmed(once_bytes b, uint8_t *out, size_t size)
{
    if (b.size > size)
        return 0;
    if (b.size > 0)
        memcpy(out, b.data, b.size);
    return 1;
}

static int read_bytes(const PGresult *rows, int i, once_record *r)
{
    r->note = field_bytes(rows, i, A_NOTE);
    r->label = field_bytes(rows, i, A_LABEL);
    return r->note.size <= ONCE_NOTE_MAX && r->label.size <= ONCE_LABEL_MAX &&
           r->result.size <= ONCE_RESULT_MAX &&
           copy(field_bytes(rows, i, A_TOKEN), r->token, ONCE_TOKEN_SIZE) &&
           copy(field_bytes(rows, i, A_TRACE), r->trace, ONCE_TRACE_SIZE) &&
           copy(field_bytes(rows, i, A_FINGERPRINT), r->fingerprint,
                ONCE_FINGERPRINT_SIZE) &&
           copy_trimmed(field_bytes(rows, i, A_GROUP), r->group,
                        ONCE_GROUP_SIZE) &&
           copy_trimmed(field_bytes(rows, i, A_SUBJECT), r->subject,
                        ONCE_SUBJECT_SIZE);
}

/* A row that is not believed has its times in it all the same: they are its
 * place in a scan. */
static int read_record(const PGresult *rows, int i, struct once__pg_row *out)
{
    once_record *r = &out->before;
    once_bytes body = field_bytes(rows, i, A_BODY);
    int fit;

    memset(r, 0, sizeof(*r));
    out->body = 1;
    if (PQgetisnull(rows, i, A_STATE))
        return ONCE_OK; /* there is no row */
    fit = read_numbers(rows, i, r);
    if (field(rows, i, A_VERSION) != ONCE__PG_SCHEMA)
        return ONCE_EVERSION;
    if (!fit || !read_bytes(rows, i, r) || r->attempt == 0 ||
        !once__record_sane(r))
        return ONCE_ECORRUPT;
    r->result.data = body.data;
    out->body = body.size == r->result.size;
    return body.size == 0 || out->body ? ONCE_OK : ONCE_ECORRUPT;
}

int once__pg_row_read(const PGresult *rows, int i, struct once__pg_row *out)
{
    if (!has_shape(rows, i))
        return 0;
    memcpy(out->name, PQgetvalue(rows, i, A_NAME), ONCE_NAME_SIZE);
    out->did = (int)field(rows, i, A_DID);
    out->now_ms = field(rows, i, A_NOW);
    out->granted = field(rows, i, A_GRANTED);
    out->rc = read_record(rows, i, out);
    return 1;
}

int once__pg_seen_read(const PGresult *rows, once_store_time *out)
{
    static const Oid types[] = {OID_INT8, OID_INT8, OID_INT8, OID_BYTEA,
                                OID_INT8};

    memset(out, 0, sizeof(*out));
    if (PQntuples(rows) != 1 || !has_types(rows, 0, types, 5, 1))
        return 0;
    out->now_ms = field(rows, 0, 0);
    if (PQgetisnull(rows, 0, 1))
        return 1; /* nothing was put yet */
    out->seen_ms = field(rows, 0, 1);
    out->steady_ms = field(rows, 0, 2);
    out->backs = field(rows, 0, 4);
    return copy(field_bytes(rows, 0, 3), out->host, ONCE_HOST_SIZE);
}

int once__pg_counts_read(const PGresult *rows, once_counts *out)
{
    static const Oid types[] = {OID_INT8, OID_INT8, OID_INT8, OID_INT8};

    memset(out, 0, sizeof(*out));
    if (PQntuples(rows) != 1 || !has_types(rows, 0, types, 4, 4))
        return 0;
    out->claimed = field(rows, 0, 0);
    out->dispatched = field(rows, 0, 1);
    out->indeterminate = field(rows, 0, 2);
    out->rest = field(rows, 0, 3);
    out->rest_estimated = 1;
    return 1;
}

int once__pg_fence_read(const PGresult *rows, uint64_t *out)
{
    static const Oid types[] = {OID_INT8};

    if (PQntuples(rows) != 1 || !has_types(rows, 0, types, 1, 1))
        return 0;
    *out = field(rows, 0, 0);
    return 1;
}

int once__pg_head_read(const PGresult *rows, once_store_head *out)
{
    static const Oid types[] = {OID_UUID, OID_INT4, OID_INT2, OID_INT8,
                                OID_INT8};

    memset(out, 0, sizeof(*out));
    if (PQntuples(rows) != 1 || !has_types(rows, 0, types, 5, 5))
        return 0;
    out->incarnation = (uint32_t)field(rows, 0, 1);
    out->gap = (uint32_t)field(rows, 0, 2);
    out->gap_from_ms = field(rows, 0, 3);
    out->gap_until_ms = field(rows, 0, 4);
    return once__head_sane(out) &&
           copy(field_bytes(rows, 0, 0), out->id, ONCE_STORE_ID_SIZE);
}
