/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row.c - records as rows of claim, live and result, and back.
 *
 * It decides nothing: once__transition() has decided when once__sqlite_put() is
 * called, and only the rows that differ are written. It refuses to guess: a sum
 * that differs, a column of another size, a half that is missing is damage.
 */
#include "calls/store/sqlite/sqlite.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

#include "calls/core/transition.h"
#include "base/crc32c.h"

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
    C_REASON,
    C_CREATED,
    C_GRANTED,
    C_ENDED,
    C_KEEP,
    C_TOKEN,
    C_FINGERPRINT,
    C_NOTE,
    C_GROUP,
    C_TRACE,
    C_SUBJECT,
    C_LABEL,
    C_SUM,
    L_FENCE,
    L_STATE,
    L_LEASE,
    L_SUM,
    R_FENCE,
    R_KIND,
    R_ENDED,
    R_KEEP,
    R_SIZE,
    R_BODY_SUM,
    R_SUM,
    R_BODY
};

/* ---- Sums -------------------------------------------------------------- */

/* One call of the checksum for all of them: it is on each operation's way. */
uint32_t once__sqlite_sum(uint32_t sum, const uint64_t *values, size_t n)
{
    uint64_t little[ONCE__SQLITE_SUMMED];
    size_t i;

    assert(n <= ONCE__SQLITE_SUMMED);
    for (i = 0; i < n; i++)
        little[i] = htole64(values[i]);
    return once__crc32c(sum, little, n * sizeof(*little));
}

#define SUM_NUMBERS(sum, values)                                               \
    once__sqlite_sum((sum), (values), sizeof(values) / sizeof((values)[0]))

/* The claim row of a record. */
struct claim {
    uint64_t fence, attempt, phase, policy, doubt, reason, created, granted,
        ended, keep;
};

static uint32_t sum_bytes(uint32_t sum, once_bytes b)
{
    return b.size > 0 ? once__crc32c(sum, b.data, b.size) : sum;
}

static uint32_t claim_sum(const uint8_t *name, const struct claim *c,
                          const once_record *r)
{
    const uint64_t numbers[] = {c->fence,   c->attempt,   c->phase,
                                c->policy,  c->doubt,     c->reason,
                                c->created, c->granted,   c->ended,
                                c->keep,    r->note.size, r->label.size};
    uint32_t sum = once__crc32c(0, name, ONCE_NAME_SIZE);

    sum = SUM_NUMBERS(sum, numbers);
    sum = once__crc32c(sum, r->token, ONCE_TOKEN_SIZE);
    sum = once__crc32c(sum, r->fingerprint, ONCE_FINGERPRINT_SIZE);
    sum = once__crc32c(sum, r->group, ONCE_GROUP_SIZE);
    sum = once__crc32c(sum, r->trace, ONCE_TRACE_SIZE);
    sum = once__crc32c(sum, r->subject, ONCE_SUBJECT_SIZE);
    return sum_bytes(sum_bytes(sum, r->note), r->label);
}

static uint32_t live_sum(const uint8_t *name, const once_record *r)
{
    const uint64_t numbers[] = {r->fence, r->state, r->lease_ms};

    return SUM_NUMBERS(once__crc32c(0, name, ONCE_NAME_SIZE), numbers);
}

static uint32_t body_sum(once_bytes body)
{
    return sum_bytes(0, body);
}

/* The body has a sum of its own, so that forgetting need not read it. */
static uint32_t result_sum(const uint8_t *name, const once_record *r,
                           uint32_t body)
{
    const uint64_t numbers[] = {r->fence,   r->kind,        r->ended_ms,
                                r->keep_ms, r->result.size, body};

    return SUM_NUMBERS(once__crc32c(0, name, ONCE_NAME_SIZE), numbers);
}

/* ---- Statements -------------------------------------------------------- */

int once__sqlite_run(struct once__sqlite_link *link,
                     enum once__sqlite_query query)
{
    int rc = sqlite3_step(link->query[query]);

    (void)sqlite3_reset(link->query[query]);
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
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
        number(q, C_FENCE),   number(q, C_ATTEMPT), number(q, C_PHASE),
        number(q, C_POLICY),  number(q, C_DOUBT),   number(q, C_REASON),
        number(q, C_CREATED), number(q, C_GRANTED), number(q, C_ENDED),
        number(q, C_KEEP),
    };

    if (is_null(q, C_FENCE) || !fixed(q, C_TOKEN, r->token, ONCE_TOKEN_SIZE) ||
        !fixed(q, C_FINGERPRINT, r->fingerprint, ONCE_FINGERPRINT_SIZE) ||
        !filled_up(q, C_GROUP, r->group, ONCE_GROUP_SIZE) ||
        !filled_up(q, C_TRACE, r->trace, ONCE_TRACE_SIZE) ||
        !filled_up(q, C_SUBJECT, r->subject, ONCE_SUBJECT_SIZE))
        return 0;
    r->note = bytes(q, C_NOTE);
    r->label = bytes(q, C_LABEL);
    if (r->note.size > ONCE_NOTE_MAX || r->label.size > ONCE_LABEL_MAX ||
        number(q, C_SUM) != claim_sum(name, &c, r))
        return 0;
    r->attempt = (uint32_t)c.attempt;
    r->fence = c.fence;
    r->policy = (uint8_t)c.policy;
    r->doubt = (uint8_t)c.doubt;
    r->reason = (uint8_t)c.reason;
    r->created_ms = c.created;
    r->granted_ms = c.granted;
    r->ended_ms = c.ended;
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
    r->ended_ms = number(q, R_ENDED);
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

void once__sqlite_damaged(sqlite3_stmt *q, once_record *r)
{
    memset(r, 0, sizeof(*r));
    r->state = 255;
    r->ended_ms = number(q, C_ENDED);
    r->lease_ms = number(q, L_LEASE);
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

/* The end that stands in the claim row: completing does not write there. */
static uint64_t claim_ended(const once_record *r)
{
    return completed(r) ? 0 : r->ended_ms;
}

static int put_claim(struct once__sqlite_link *link, const uint8_t *name,
                     const once_record *r, enum once__sqlite_query query)
{
    const struct claim c = {
        r->fence,  r->attempt,    phase_of(r),   r->policy,      r->doubt,
        r->reason, r->created_ms, r->granted_ms, claim_ended(r), r->keep_ms};
    const uint64_t numbers[] = {c.fence,
                                c.attempt,
                                c.phase,
                                c.policy,
                                c.doubt,
                                c.reason,
                                c.created,
                                c.granted,
                                c.ended,
                                c.keep,
                                claim_sum(name, &c, r)};
    enum { NUMBERS = sizeof(numbers) / sizeof(numbers[0]) };
    sqlite3_stmt *q = link->query[query];
    int rc = bind_bytes(q, 1, name, ONCE_NAME_SIZE), i;

    for (i = 0; i < NUMBERS; i++)
        rc |= bind(q, 2 + i, numbers[i]);
    rc |= bind_bytes(q, 13, r->token, ONCE_TOKEN_SIZE);
    rc |= bind_bytes(q, 14, r->fingerprint, ONCE_FINGERPRINT_SIZE);
    rc |= bind_bytes(q, 15, r->note.data, r->note.size);
    rc |= bind_bytes(q, 16, r->group, trimmed(r->group, ONCE_GROUP_SIZE));
    rc |= bind_bytes(q, 17, r->trace, trimmed(r->trace, ONCE_TRACE_SIZE));
    rc |= bind_bytes(q, 18, r->subject, trimmed(r->subject, ONCE_SUBJECT_SIZE));
    rc |= bind_bytes(q, 19, r->label.data, r->label.size);
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
    rc |= bind(q, 3, r->ended_ms);
    rc |= bind(q, 4, r->keep_ms);
    rc |= bind(q, 5, body);
    rc |= bind(q, 6, result_sum(name, r, body));
    rc |= bind_bytes(q, 7, r->result.data, r->result.size);
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
        a->reason != b->reason || claim_ended(a) != claim_ended(b) ||
        a->note.size != b->note.size ||
        (b->note.size > 0 &&
         memcmp(a->note.data, b->note.data, b->note.size) != 0) ||
        memcmp(a->fingerprint, b->fingerprint, ONCE_FINGERPRINT_SIZE) != 0)
        return 1;
    /* The fence stands for attempt, token, group, times of the grant, trace,
     * subject and label. */
    assert(a->attempt == b->attempt && a->granted_ms == b->granted_ms &&
           a->created_ms == b->created_ms);
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
