/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c - operations as arrays of parameters, rows of answers as records.
 *
 * All in PostgreSQL's binary format: nothing is quoted, so nothing can be
 * quoted wrongly. An array has one dimension:
 *
 *    1  has NULLs: 1  element's type  how many  1  { size, bytes }...
 *
 * with 4-byte numbers, most significant byte first, and size -1 for NULL.
 *
 * A row is believed if it has the columns of the type "answer" and
 * once__transition() could have made it; what does not is ECORRUPT, and of
 * another version is EVERSION (I9).
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/transition.h"
#include "core/must.h"
#include "store/postgres/postgres.h"

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

enum { ROOM_MIN = 16 * 1024, ROOM_KEPT = 1 << 20 };

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
    size_t room = p->room < ROOM_MIN ? ROOM_MIN : p->room;
    uint8_t *bytes;

    if (p->failed)
        return NULL;
    while (room < p->size + size)
        room *= 2;
    if (room != p->room) {
        bytes = realloc(p->bytes, room);
        if (bytes == NULL) {
            p->failed = 1;
            return NULL;
        }
        p->bytes = bytes;
        p->room = room;
    }
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

static size_t trimmed(const uint8_t group[ONCE_GROUP_SIZE])
{
    size_t size = ONCE_GROUP_SIZE;

    while (size > 0 && group[size - 1] == 0)
        size--;
    return size;
}

static once_bytes of(const void *data, size_t size)
{
    return (once_bytes){data, size};
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
    FINGERPRINT,
    GROUP,
    RESULT,
    NOTE,
    COLUMNS
};

static const struct {
    Oid type, element;
    size_t size; /* of a number; 0: bytes */
} columns[COLUMNS] = {
    [VERB] = {OID_INT2_ARRAY, OID_INT2, 2},
    [NAME] = {OID_BYTEA_ARRAY, OID_BYTEA, 0},
    [TOKEN] = {OID_UUID_ARRAY, OID_UUID, 0},
    [FENCE] = {OID_INT8_ARRAY, OID_INT8, 8},
    [KIND] = {OID_INT2_ARRAY, OID_INT2, 2},
    [POLICY] = {OID_INT2_ARRAY, OID_INT2, 2},
    [STATE] = {OID_INT2_ARRAY, OID_INT2, 2},
    [LEASE] = {OID_INT8_ARRAY, OID_INT8, 8},
    [KEEP] = {OID_INT8_ARRAY, OID_INT8, 8},
    [FINGERPRINT] = {OID_BYTEA_ARRAY, OID_BYTEA, 0},
    [GROUP] = {OID_BYTEA_ARRAY, OID_BYTEA, 0},
    [RESULT] = {OID_BYTEA_ARRAY, OID_BYTEA, 0},
    [NOTE] = {OID_BYTEA_ARRAY, OID_BYTEA, 0},
};

/* Only a claim, a complete ... looks at some of them; others may hold what was
 * never checked. */
static int uses_lease(int verb)
{
    return verb == ONCE_OP_CLAIM || verb == ONCE_OP_DISPATCH ||
           verb == ONCE_OP_RENEW;
}

static int uses_keep(int verb)
{
    return verb == ONCE_OP_CLAIM || verb == ONCE_OP_COMPLETE ||
           verb == ONCE_OP_RELEASE || verb == ONCE_OP_REAP ||
           verb == ONCE_OP_RESOLVE || verb == ONCE_OP_REOPEN;
}

static int uses_result(int verb)
{
    return verb == ONCE_OP_COMPLETE || verb == ONCE_OP_RESOLVE;
}

static uint64_t number_of(const once_op *op, enum column column)
{
    int claim = op->verb == ONCE_OP_CLAIM;

    switch (column) {
    case VERB:
        return (uint64_t)op->verb;
    case FENCE:
        return op->fence;
    case KIND:
        return uses_result(op->verb) ? (uint64_t)op->kind : 0;
    case POLICY:
        return claim ? op->policy : 0;
    case STATE:
        return op->two_phase ? ONCE_CLAIMED : ONCE_DISPATCHED;
    case LEASE:
        return uses_lease(op->verb) ? op->lease_ms : 0;
    default:
        ONCE__MUST(column == KEEP);
        return uses_keep(op->verb) ? op->keep_ms : 0;
    }
}

/* Size 0 with no data is NULL: the column is not looked at. */
static once_bytes bytes_of(const once_op *op, enum column column)
{
    int claim = op->verb == ONCE_OP_CLAIM;
    int note = op->verb == ONCE_OP_RESOLVE || op->verb == ONCE_OP_REOPEN;

    switch (column) {
    case NAME:
        return of(op->name, ONCE_NAME_SIZE);
    case TOKEN:
        return of(op->token, ONCE_TOKEN_SIZE);
    case FINGERPRINT:
        return claim ? of(op->fingerprint, ONCE_FINGERPRINT_SIZE) : of(NULL, 0);
    case GROUP:
        return claim ? of(op->group, trimmed(op->group)) : of(NULL, 0);
    case RESULT:
        return uses_result(op->verb)
                   ? of(op->result.size > 0 ? op->result.data : "",
                        op->result.size)
                   : of(NULL, 0);
    default:
        ONCE__MUST(column == NOTE);
        return note ? of(op->note.size > 0 ? op->note.data : "", op->note.size)
                    : of(NULL, 0);
    }
}

static void add_element(struct once__pg_params *p, const once_op *op,
                        enum column column)
{
    once_bytes b;

    if (columns[column].size > 0) {
        add_number(p, columns[column].size, 4);
        add_number(p, number_of(op, column), columns[column].size);
        return;
    }
    b = bytes_of(op, column);
    add_number(p, b.data == NULL ? UINT32_MAX : b.size, 4);
    add_bytes(p, b.data, b.size);
}

static void array(struct once__pg_params *p, enum column column,
                  once_op *const *ops, size_t n)
{
    size_t i;

    params_next(p, columns[column].type);
    add_number(p, 1, 4);
    add_number(p, 1, 4);
    add_number(p, columns[column].element, 4);
    add_number(p, n, 4);
    add_number(p, 1, 4);
    for (i = 0; i < n; i++)
        add_element(p, ops[i], column);
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
    for (column = 0; column < COLUMNS; column++)
        array(p, column, ops, n);
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
                         const uint64_t *now_ms, const uint8_t *after,
                         uint32_t max)
{
    params_begin(p);
    number(p, OID_INT4, (uint64_t)what, 4);
    maybe_number(p, OID_INT8, now_ms);
    bytes(p, after, after == NULL ? 0 : ONCE_NAME_SIZE);
    number(p, OID_INT4, max, 4);
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
    A_ATTEMPT,
    A_FENCE,
    A_LEASE,
    A_KEEP,
    A_GRANTED_MS,
    A_TOKEN,
    A_FINGERPRINT,
    A_GROUP,
    A_NOTE,
    A_SIZE,
    A_BODY,
    A_COLUMNS
};

static const Oid answer_types[A_COLUMNS] = {
    [A_NAME] = OID_BYTEA,   [A_DID] = OID_INT4,
    [A_NOW] = OID_INT8,     [A_GRANTED] = OID_INT8,
    [A_VERSION] = OID_INT2, [A_STATE] = OID_INT2,
    [A_KIND] = OID_INT2,    [A_POLICY] = OID_INT2,
    [A_DOUBT] = OID_INT2,   [A_ATTEMPT] = OID_INT4,
    [A_FENCE] = OID_INT8,   [A_LEASE] = OID_INT8,
    [A_KEEP] = OID_INT8,    [A_GRANTED_MS] = OID_INT8,
    [A_TOKEN] = OID_UUID,   [A_FINGERPRINT] = OID_BYTEA,
    [A_GROUP] = OID_BYTEA,  [A_NOTE] = OID_BYTEA,
    [A_SIZE] = OID_INT4,    [A_BODY] = OID_BYTEA,
};

/* Do the columns have our types, and numbers their sizes? */
static int has_shape(const PGresult *rows, int i)
{
    int k;

    if (PQnfields(rows) != A_COLUMNS || !PQbinaryTuples(rows))
        return 0;
    for (k = 0; k < A_COLUMNS; k++) {
        int size = PQgetlength(rows, i, k);

        if (PQftype(rows, k) != answer_types[k])
            return 0;
        if (!PQgetisnull(rows, i, k) &&
            ((answer_types[k] == OID_INT2 && size != 2) ||
             (answer_types[k] == OID_INT4 && size != 4) ||
             (answer_types[k] == OID_INT8 && size != 8) ||
             (answer_types[k] == OID_UUID && size != ONCE_TOKEN_SIZE)))
            return 0;
    }
    return PQgetlength(rows, i, A_NAME) == ONCE_NAME_SIZE &&
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
    r->attempt = (uint32_t)field(rows, i, A_ATTEMPT);
    r->fence = field(rows, i, A_FENCE);
    r->lease_ms = field(rows, i, A_LEASE);
    r->keep_ms = field(rows, i, A_KEEP);
    r->granted_ms = field(rows, i, A_GRANTED_MS);
    r->result.size = (size_t)field(rows, i, A_SIZE);
    return r->attempt <= INT32_MAX && r->fence <= INT64_MAX &&
           r->lease_ms <= INT64_MAX && r->keep_ms <= INT64_MAX &&
           r->granted_ms <= INT64_MAX;
}

static int read_bytes(const PGresult *rows, int i, once_record *r)
{
    once_bytes token = field_bytes(rows, i, A_TOKEN);
    once_bytes fingerprint = field_bytes(rows, i, A_FINGERPRINT);
    once_bytes group = field_bytes(rows, i, A_GROUP);

    r->note = field_bytes(rows, i, A_NOTE);
    if (token.size != ONCE_TOKEN_SIZE ||
        fingerprint.size != ONCE_FINGERPRINT_SIZE ||
        group.size > ONCE_GROUP_SIZE || r->note.size > ONCE_NOTE_MAX ||
        r->result.size > ONCE_RESULT_MAX)
        return 0;
    memcpy(r->token, token.data, ONCE_TOKEN_SIZE);
    memcpy(r->fingerprint, fingerprint.data, ONCE_FINGERPRINT_SIZE);
    if (group.size > 0)
        memcpy(r->group, group.data, group.size);
    return 1;
}

static int read_record(const PGresult *rows, int i, struct once__pg_row *out)
{
    once_record *r = &out->before;
    once_bytes body = field_bytes(rows, i, A_BODY);

    memset(r, 0, sizeof(*r));
    out->body = 1;
    if (PQgetisnull(rows, i, A_STATE))
        return ONCE_OK; /* there is no row */
    if (field(rows, i, A_VERSION) != 1)
        return ONCE_EVERSION;
    if (!read_numbers(rows, i, r) || !read_bytes(rows, i, r) ||
        r->attempt == 0 || !once__record_sane(r))
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
    enum { COLUMNS_SEEN = sizeof(types) / sizeof(types[0]) };
    int k;

    memset(out, 0, sizeof(*out));
    if (PQntuples(rows) != 1 || PQnfields(rows) != COLUMNS_SEEN ||
        !PQbinaryTuples(rows) || PQgetisnull(rows, 0, 0))
        return 0;
    for (k = 0; k < COLUMNS_SEEN; k++)
        if (PQftype(rows, k) != types[k] ||
            (!PQgetisnull(rows, 0, k) &&
             PQgetlength(rows, 0, k) !=
                 (types[k] == OID_INT8 ? 8 : ONCE_HOST_SIZE)))
            return 0;
    out->now_ms = field(rows, 0, 0);
    if (PQgetisnull(rows, 0, 1))
        return 1; /* nothing was put yet */
    out->seen_ms = field(rows, 0, 1);
    out->steady_ms = field(rows, 0, 2);
    memcpy(out->host, PQgetvalue(rows, 0, 3), ONCE_HOST_SIZE);
    out->backs = field(rows, 0, 4);
    return 1;
}
