/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row.c - records as rows of claim, live and result, and back.
 *
 * It decides nothing: once__transition() has decided when once__sqlite_put() is
 * called, and only the rows that differ are written. It refuses to guess: a sum
 * that differs, a column of another size, a half that is missing is damage.
 */
#include "store/sqlite/sqlite.h"

#include <assert.h>
#include <string.h>

#include "core/transition.h"
#include "core/crc32c.h"

enum { PHASE_ABSENT = 0, PHASE_GRANTED = 1, PHASE_UNKNOWN = 4 };

/*
 * claim.keep is an index key, so completing leaves it as the grant has set it
 * as long as the true one, result.keep, is no more than this before it. The
 * scan looks at the true one.
 */
enum { KEEP_SLACK_MS = 60000 };

/* The columns that every loading statement selects, in this order. */
enum column {
    C_NAME,
    C_FENCE,
    C_ATTEMPT,
    C_PHASE,
    C_POLICY,
    C_DOUBT,
    C_GRANTED,
    C_KEEP,
    C_TOKEN,
    C_FINGERPRINT,
    C_NOTE,
    C_GROUP,
    C_SUM,
    L_FENCE,
    L_STATE,
    L_LEASE,
    L_SUM,
    R_FENCE,
    R_KIND,
    R_KEEP,
    R_SIZE,
    R_BODY_SUM,
    R_SUM,
    R_BODY
};

/* ---- Sums -------------------------------------------------------------- */

static uint32_t sum_numbers(uint32_t sum, const uint64_t *values, size_t n)
{
    uint8_t bytes[8];
    size_t i, k;

    for (i = 0; i < n; i++) {
        for (k = 0; k < sizeof(bytes); k++)
            bytes[k] = (uint8_t)(values[i] >> (8 * k));
        sum = once__crc32c(sum, bytes, sizeof(bytes));
    }
    return sum;
}

#define SUM_NUMBERS(sum, values)                                               \
    sum_numbers((sum), (values), sizeof(values) / sizeof((values)[0]))

/* The claim row of a record. */
struct claim {
    uint64_t fence, attempt, phase, policy, doubt, granted, keep;
};

static uint32_t claim_sum(const uint8_t *name, const struct claim *c,
                          const once_record *r)
{
    const uint64_t numbers[] = {c->fence, c->attempt, c->phase, c->policy,
                                c->doubt, c->granted, c->keep,  r->note.size};
    uint32_t sum = once__crc32c(0, name, ONCE_NAME_SIZE);

    sum = SUM_NUMBERS(sum, numbers);
    sum = once__crc32c(sum, r->token, ONCE_TOKEN_SIZE);
    sum = once__crc32c(sum, r->fingerprint, ONCE_FINGERPRINT_SIZE);
    sum = once__crc32c(sum, r->group, ONCE_GROUP_SIZE);
    if (r->note.size > 0)
        sum = once__crc32c(sum, r->note.data, r->note.size);
    return sum;
}

static uint32_t live_sum(const uint8_t *name, const once_record *r)
{
    const uint64_t numbers[] = {r->fence, r->state, r->lease_ms};

    return SUM_NUMBERS(once__crc32c(0, name, ONCE_NAME_SIZE), numbers);
}

static uint32_t body_sum(once_bytes body)
{
    return body.size > 0 ? once__crc32c(0, body.data, body.size) : 0;
}

/* The body has a sum of its own, so that forgetting need not read it. */
static uint32_t result_sum(const uint8_t *name, const once_record *r,
                           uint32_t body)
{
    const uint64_t numbers[] = {r->fence, r->kind, r->keep_ms, r->result.size,
                                body};

    return SUM_NUMBERS(once__crc32c(0, name, ONCE_NAME_SIZE), numbers);
}

/* ---- Reading ----------------------------------------------------------- */

static uint64_t number(sqlite3_stmt *q, int i)
{
    return (uint64_t)sqlite3_column_int64(q, i);
}

static int is_null(sqlite3_stmt *q, int i)
{
    return sqlite3_column_type(q, i) == SQLITE_NULL;
}

static once_bytes bytes(sqlite3_stmt *q, int i)
{
    once_bytes b;

    b.data = sqlite3_column_blob(q, i);
    b.size = (size_t)sqlite3_column_bytes(q, i);
    return b;
}

static int fixed(sqlite3_stmt *q, int i, uint8_t *out, size_t size)
{
    once_bytes b = bytes(q, i);

    if (sqlite3_column_type(q, i) != SQLITE_BLOB || b.size != size)
        return 0;
    memcpy(out, b.data, size);
    return 1;
}

/* What trimmed() has left, with its NULs again. */
static int filled_up(sqlite3_stmt *q, int i, uint8_t *out, size_t size)
{
    once_bytes b = bytes(q, i);

    if (b.size > size)
        return 0;
    memset(out, 0, size);
    if (b.size > 0)
        memcpy(out, b.data, b.size);
    return 1;
}

static int read_claim(sqlite3_stmt *q, const uint8_t *name, once_record *r,
                      uint64_t *phase)
{
    const struct claim c = {
        number(q, C_FENCE),  number(q, C_ATTEMPT), number(q, C_PHASE),
        number(q, C_POLICY), number(q, C_DOUBT),   number(q, C_GRANTED),
        number(q, C_KEEP),
    };

    if (is_null(q, C_FENCE) || !fixed(q, C_TOKEN, r->token, ONCE_TOKEN_SIZE) ||
        !fixed(q, C_FINGERPRINT, r->fingerprint, ONCE_FINGERPRINT_SIZE) ||
        !filled_up(q, C_GROUP, r->group, ONCE_GROUP_SIZE))
        return 0;
    r->note = bytes(q, C_NOTE);
    if (r->note.size > ONCE_NOTE_MAX ||
        number(q, C_SUM) != claim_sum(name, &c, r))
        return 0;
    r->attempt = (uint32_t)c.attempt;
    r->fence = c.fence;
    r->policy = (uint8_t)c.policy;
    r->doubt = (uint8_t)c.doubt;
    r->granted_ms = c.granted;
    r->keep_ms = c.keep;
    *phase = c.phase;
    return 1;
}

static int read_live(sqlite3_stmt *q, const uint8_t *name, once_record *r)
{
    r->state = (uint8_t)number(q, L_STATE);
    r->lease_ms = number(q, L_LEASE);
    return number(q, L_FENCE) == r->fence && number(q, L_STATE) <= 255 &&
           (r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED) &&
           number(q, L_SUM) == live_sum(name, r);
}

static int read_result(sqlite3_stmt *q, const uint8_t *name, once_record *r)
{
    r->state = ONCE_COMPLETED;
    r->kind = (uint8_t)number(q, R_KIND);
    r->keep_ms = number(q, R_KEEP);
    r->result.size = (size_t)number(q, R_SIZE);
    if (number(q, R_KIND) > 255 || number(q, R_FENCE) != r->fence ||
        r->result.size > ONCE_RESULT_MAX ||
        number(q, R_SUM) !=
            result_sum(name, r, (uint32_t)number(q, R_BODY_SUM)))
        return 0;
    if (sqlite3_column_count(q) <= R_BODY)
        return 1;
    r->result = bytes(q, R_BODY);
    return body_sum(r->result) == number(q, R_BODY_SUM) &&
           r->result.size == number(q, R_SIZE);
}

static int read_parts(sqlite3_stmt *q, const uint8_t *name, once_record *r,
                      uint64_t phase)
{
    int live = !is_null(q, L_SUM), result = !is_null(q, R_SUM);

    switch (phase) {
    case PHASE_ABSENT:
        return !live && !result;
    case PHASE_UNKNOWN:
        r->state = ONCE_INDETERMINATE;
        return !live && !result;
    case PHASE_GRANTED:
        if (live == result)
            return 0;
        return live ? read_live(q, name, r) : read_result(q, name, r);
    default:
        return 0;
    }
}

int once__sqlite_row(sqlite3_stmt *q, uint8_t name[ONCE_NAME_SIZE],
                     once_record *r)
{
    uint64_t phase = 0;

    memset(r, 0, sizeof(*r));
    memset(name, 0, ONCE_NAME_SIZE);
    return fixed(q, C_NAME, name, ONCE_NAME_SIZE) &&
           read_claim(q, name, r, &phase) && read_parts(q, name, r, phase) &&
           r->attempt > 0 && once__record_sane(r);
}

/* ---- Writing ----------------------------------------------------------- */

static int owned(const once_record *r)
{
    return r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED;
}

static int completed(const once_record *r)
{
    return r->state == ONCE_COMPLETED;
}

static uint64_t phase_of(const once_record *r)
{
    if (r->state == ONCE_ABSENT)
        return PHASE_ABSENT;
    return r->state == ONCE_INDETERMINATE ? PHASE_UNKNOWN : PHASE_GRANTED;
}

static int near(uint64_t keep, uint64_t row_keep)
{
    return keep >= row_keep && keep - row_keep <= KEEP_SLACK_MS;
}

/* The statements bind by position: ?1 name, ?2 fence, and so on. */
static int bind(sqlite3_stmt *q, int at, uint64_t value)
{
    return sqlite3_bind_int64(q, at, (sqlite3_int64)value);
}

static int bind_bytes(sqlite3_stmt *q, int at, const void *data, size_t size)
{
    /* A null pointer would be bound as NULL, and a result of no bytes is a
     * result. */
    return sqlite3_bind_blob64(q, at, size > 0 ? data : "", size,
                               SQLITE_STATIC);
}

static size_t trimmed(const uint8_t *text, size_t size)
{
    while (size > 0 && text[size - 1] == 0)
        size--;
    return size;
}

static int put_claim(struct once__sqlite_link *link, const uint8_t *name,
                     const once_record *r, enum once__sqlite_query query)
{
    const struct claim c = {r->fence, r->attempt,    phase_of(r), r->policy,
                            r->doubt, r->granted_ms, r->keep_ms};
    const uint64_t numbers[] = {
        c.fence, c.attempt, c.phase, c.policy,
        c.doubt, c.granted, c.keep,  claim_sum(name, &c, r)};
    sqlite3_stmt *q = link->query[query];
    int rc = bind_bytes(q, 1, name, ONCE_NAME_SIZE), i;

    for (i = 0; i < 8; i++)
        rc |= bind(q, 2 + i, numbers[i]);
    rc |= bind_bytes(q, 10, r->token, ONCE_TOKEN_SIZE);
    rc |= bind_bytes(q, 11, r->fingerprint, ONCE_FINGERPRINT_SIZE);
    rc |= bind_bytes(q, 12, r->note.data, r->note.size);
    rc |= bind_bytes(q, 13, r->group, trimmed(r->group, ONCE_GROUP_SIZE));
    return rc != SQLITE_OK ? rc : once__sqlite_run(link, query);
}

static int put_live(struct once__sqlite_link *link, const uint8_t *name,
                    const once_record *r)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_LIVE_PUT];
    int rc = bind(q, 1, r->fence);

    rc |= bind(q, 2, r->state);
    rc |= bind(q, 3, r->lease_ms);
    rc |= bind_bytes(q, 4, name, ONCE_NAME_SIZE);
    rc |= bind(q, 5, live_sum(name, r));
    return rc != SQLITE_OK ? rc : once__sqlite_run(link, ONCE__SQLITE_LIVE_PUT);
}

static int put_result(struct once__sqlite_link *link, const uint8_t *name,
                      const once_record *r)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_RESULT_INSERT];
    uint32_t body = body_sum(r->result);
    int rc = bind(q, 1, r->fence);

    rc |= bind(q, 2, r->kind);
    rc |= bind(q, 3, r->keep_ms);
    rc |= bind(q, 4, body);
    rc |= bind(q, 5, result_sum(name, r, body));
    rc |= bind_bytes(q, 6, r->result.data, r->result.size);
    return rc != SQLITE_OK ? rc
                           : once__sqlite_run(link, ONCE__SQLITE_RESULT_INSERT);
}

static int delete_fence(struct once__sqlite_link *link,
                        enum once__sqlite_query query, uint64_t fence)
{
    int rc = bind(link->query[query], 1, fence);

    return rc != SQLITE_OK ? rc : once__sqlite_run(link, query);
}

static int delete_claim(struct once__sqlite_link *link, const uint8_t *name)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_CLAIM_DELETE];
    int rc = bind_bytes(q, 1, name, ONCE_NAME_SIZE);

    return rc != SQLITE_OK ? rc
                           : once__sqlite_run(link, ONCE__SQLITE_CLAIM_DELETE);
}

/* Which of two records differ in what their claim rows hold. */
static int claim_differs(const once_record *a, const once_record *b)
{
    if (a->fence != b->fence || phase_of(a) != phase_of(b) ||
        a->policy != b->policy || a->doubt != b->doubt ||
        a->note.size != b->note.size ||
        (b->note.size > 0 &&
         memcmp(a->note.data, b->note.data, b->note.size) != 0) ||
        memcmp(a->fingerprint, b->fingerprint, ONCE_FINGERPRINT_SIZE) != 0)
        return 1;
    /* The fence stands for attempt, token, group and time of the grant. */
    assert(a->attempt == b->attempt && a->granted_ms == b->granted_ms);
    return completed(b) ? !near(b->keep_ms, a->keep_ms)
                        : a->keep_ms != b->keep_ms;
}

static int put_parts(struct once__sqlite_link *link, const uint8_t *name,
                     const once_record *from, const once_record *to)
{
    int same = from->fence == to->fence, rc = SQLITE_OK;

    if (owned(from) && !(owned(to) && same))
        rc = delete_fence(link, ONCE__SQLITE_LIVE_DELETE, from->fence);
    if (rc == SQLITE_OK && completed(from) && !(completed(to) && same))
        rc = delete_fence(link, ONCE__SQLITE_RESULT_DELETE, from->fence);
    if (rc == SQLITE_OK && owned(to))
        rc = put_live(link, name, to);
    if (rc == SQLITE_OK && completed(to) && !(completed(from) && same))
        rc = put_result(link, name, to);
    return rc;
}

int once__sqlite_put(struct once__sqlite_link *link,
                     const uint8_t name[ONCE_NAME_SIZE],
                     const once_record *from, const once_record *to)
{
    int rc = SQLITE_OK;

    assert(once__record_sane(from) && once__record_sane(to));
    if (to->attempt == 0)
        rc = delete_claim(link, name);
    else if (from->attempt == 0)
        rc = put_claim(link, name, to, ONCE__SQLITE_CLAIM_INSERT);
    else if (claim_differs(from, to))
        rc = put_claim(link, name, to, ONCE__SQLITE_CLAIM_UPDATE);
    return rc != SQLITE_OK ? rc : put_parts(link, name, from, to);
}

/* ---- The fence counter ------------------------------------------------- */

/* A counter that was damaged could hand out a fence twice. */
static uint32_t counter_sum(uint64_t fence)
{
    return sum_numbers(once__crc32c(0, "fence", 5), &fence, 1);
}

int once__sqlite_counter(struct once__sqlite_link *link, uint64_t *fence)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_COUNTER];
    int rc = sqlite3_step(q);
    uint64_t sum = 0;

    if (rc == SQLITE_ROW) {
        *fence = (uint64_t)sqlite3_column_int64(q, 0);
        sum = (uint64_t)sqlite3_column_int64(q, 1);
        rc = sum == counter_sum(*fence) ? SQLITE_OK : SQLITE_CORRUPT;
    } else if (rc == SQLITE_DONE) {
        rc = SQLITE_CORRUPT;
    }
    (void)sqlite3_reset(q);
    return rc;
}

int once__sqlite_counter_put(struct once__sqlite_link *link, uint64_t fence)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_COUNTER_PUT];
    int rc = bind(q, 1, fence) | bind(q, 2, counter_sum(fence));

    return rc != SQLITE_OK ? rc
                           : once__sqlite_run(link, ONCE__SQLITE_COUNTER_PUT);
}

/* ---- The time ---------------------------------------------------------- */

static const char *const time_keys[] = {"seen", "steady", "host", "start",
                                        "backs"};

enum { TIMES = sizeof(time_keys) / sizeof(time_keys[0]) };

static uint32_t time_sum(int which, uint64_t value)
{
    const char *key = time_keys[which];

    return sum_numbers(once__crc32c(0, key, strlen(key)), &value, 1);
}

static int time_bind(sqlite3_stmt *q, int which)
{
    return sqlite3_bind_text(q, 1, time_keys[which], -1, SQLITE_STATIC);
}

static int time_load(struct once__sqlite_link *link, int which, uint64_t *value)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_TIME];
    int rc = time_bind(q, which);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    *value = 0;
    if (rc == SQLITE_ROW) {
        *value = (uint64_t)sqlite3_column_int64(q, 0);
        rc = (uint64_t)sqlite3_column_int64(q, 1) == time_sum(which, *value)
                 ? SQLITE_OK
                 : SQLITE_CORRUPT;
    } else if (rc == SQLITE_DONE) {
        rc = SQLITE_OK; /* nobody has put it yet */
    }
    (void)sqlite3_reset(q);
    return rc;
}

int once__sqlite_time(struct once__sqlite_link *link, once_store_time *t)
{
    uint64_t value[TIMES];
    int i, rc = SQLITE_OK;

    for (i = 0; i < TIMES && rc == SQLITE_OK; i++)
        rc = time_load(link, i, &value[i]);
    if (rc != SQLITE_OK)
        return rc;
    t->seen_ms = value[0];
    t->steady_ms = value[1];
    memcpy(t->host, &value[2], ONCE_HOST_SIZE);
    t->backs = value[4];
    return SQLITE_OK;
}

int once__sqlite_time_put(struct once__sqlite_link *link,
                          const once_store_time *t)
{
    sqlite3_stmt *q = link->query[ONCE__SQLITE_TIME_PUT];
    uint64_t value[TIMES] = {t->seen_ms, t->steady_ms, 0, 0, t->backs};
    int i, rc = SQLITE_OK;

    memcpy(&value[2], t->host, ONCE_HOST_SIZE);
    for (i = 0; i < TIMES && rc == SQLITE_OK; i++) {
        rc = time_bind(q, i) | bind(q, 2, value[i]) |
             bind(q, 3, time_sum(i, value[i]));
        if (rc == SQLITE_OK)
            rc = once__sqlite_run(link, ONCE__SQLITE_TIME_PUT);
    }
    return rc;
}
