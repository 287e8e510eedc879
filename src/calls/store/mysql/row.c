/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row.c - records as rows, rows as records.
 *
 * A row is believed if once__transition() could have made it, its columns for the
 * index of scans say what the others say, and a completed one has a result. What
 * is not is ECORRUPT, and of another version EVERSION (I9).
 */
#include <stdlib.h>
#include <string.h>

#include "calls/core/transition.h"
#include "base/must.h"
#include "calls/store/mysql/mysql.h"

/* All numbers as one text: the server describes each column of each answer, which
 * costs more than a row. */
#define HEAD                                                                   \
    "r.name, CONCAT_WS(' ', r.fence, r.class, r.due_ms, r.version, r.state, "  \
    "r.kind, r.policy, r.doubt, r.reason, r.attempt, r.lease_ms, r.keep_ms, "  \
    "r.granted_ms, r.created_ms, r.ended_ms), r.token, r.trace, "              \
    "r.fingerprint, r.subject, r.grp, r.label, r.note, "

const char once__my_columns[] = HEAD "b.size, b.bytes";
const char once__my_columns_of_scan[] = HEAD "b.size";
const char once__my_columns_of_head[] = HEAD "NULL";

enum number {
    FENCE,
    CLASS,
    DUE,
    VERSION,
    STATE,
    KIND,
    POLICY,
    DOUBT,
    REASON,
    ATTEMPT,
    LEASE,
    KEEP,
    GRANTED,
    CREATED,
    ENDED,
    NUMBERS_COUNT
};

enum {
    NAME,
    NUMBERS,
    TOKEN,
    TRACE,
    FINGERPRINT,
    SUBJECT,
    GROUP,
    LABEL,
    NOTE,
    SIZE,
    BYTES
};

/* ---- Places in the index of scans -------------------------------------- */

struct place {
    unsigned class;
    uint64_t due_ms;
};

static struct place place_of(const once_record *r)
{
    if (r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED)
        return (struct place){1, r->lease_ms};
    if (r->state == ONCE_INDETERMINATE)
        return (struct place){3, r->ended_ms};
    return (struct place){2, r->keep_ms};
}

/* ---- Reading ----------------------------------------------------------- */

uint64_t once__my_number(const char *field)
{
    return field == NULL ? 0 : strtoull(field, NULL, 10);
}

/* A number that does not fit becomes one that is not sane. */
static uint8_t small(uint64_t value)
{
    return value > 254 ? 255 : (uint8_t)value;
}

/* The numbers of a row. What is missing is 0. */
static void split(const char *text, uint64_t n[NUMBERS_COUNT])
{
    char *end;
    int i;

    for (i = 0; i < NUMBERS_COUNT; i++) {
        n[i] = text == NULL ? 0 : strtoull(text, &end, 10);
        text = text == NULL ? NULL : end;
    }
}

static void read_numbers(const uint64_t n[NUMBERS_COUNT], once_record *r)
{
    r->state = small(n[STATE]);
    r->kind = small(n[KIND]);
    r->policy = small(n[POLICY]);
    r->doubt = small(n[DOUBT]);
    r->reason = small(n[REASON]);
    r->attempt = (uint32_t)n[ATTEMPT];
    r->fence = n[FENCE];
    r->lease_ms = n[LEASE];
    r->keep_ms = n[KEEP];
    r->granted_ms = n[GRANTED];
    r->created_ms = n[CREATED];
    r->ended_ms = n[ENDED];
}

static once_bytes bytes_of(const MYSQL_ROW row, const unsigned long *sizes,
                           int i)
{
    return (once_bytes){sizes[i] > 0 ? row[i] : NULL, sizes[i]};
}

/* Copies up to `size` bytes; the rest is zero already. */
static int copy(once_bytes b, uint8_t *out, size_t size)
{
    if (b.size > size)
        return 0;
    if (b.size > 0)
        memcpy(out, b.data, b.size);
    return 1;
}

static int read_bytes(const MYSQL_ROW row, const unsigned long *sizes,
                      once_record *r)
{
    r->note = bytes_of(row, sizes, NOTE);
    r->label = bytes_of(row, sizes, LABEL);
    return r->note.size <= ONCE_NOTE_MAX && r->label.size <= ONCE_LABEL_MAX &&
           r->result.size <= ONCE_RESULT_MAX &&
           copy(bytes_of(row, sizes, TOKEN), r->token, ONCE_TOKEN_SIZE) &&
           copy(bytes_of(row, sizes, TRACE), r->trace, ONCE_TRACE_SIZE) &&
           copy(bytes_of(row, sizes, FINGERPRINT), r->fingerprint,
                ONCE_FINGERPRINT_SIZE) &&
           copy(bytes_of(row, sizes, GROUP), r->group, ONCE_GROUP_SIZE) &&
           copy(bytes_of(row, sizes, SUBJECT), r->subject, ONCE_SUBJECT_SIZE);
}

static int is_sane(const MYSQL_ROW row, const uint64_t n[NUMBERS_COUNT],
                   const once_record *r)
{
    struct place place = place_of(r);

    return r->attempt > 0 && once__record_sane(r) && n[CLASS] == place.class &&
           n[DUE] == place.due_ms &&
           (row[SIZE] != NULL) == (r->state == ONCE_COMPLETED);
}

/* A row that is not believed has its times in it all the same: they are its
 * place in a scan. */
static int read_record(const MYSQL_ROW row, const unsigned long *sizes,
                       int bodies, struct once__my_row *out)
{
    once_record *r = &out->record;
    once_bytes body = {NULL, 0};
    uint64_t n[NUMBERS_COUNT];

    split(row[NUMBERS], n);
    read_numbers(n, r);
    r->result.size = (size_t)once__my_number(row[SIZE]);
    if (n[VERSION] != ONCE__MY_SCHEMA)
        return ONCE_EVERSION;
    if (!read_bytes(row, sizes, r) || !is_sane(row, n, r))
        return ONCE_ECORRUPT;
    if (bodies)
        body = bytes_of(row, sizes, BYTES);
    r->result.data = body.data;
    out->whole = body.size == r->result.size;
    return !bodies ||
                   body.size == (r->result.size < ONCE__MY_PART ? r->result.size
                                                                : ONCE__MY_PART)
               ? ONCE_OK
               : ONCE_ECORRUPT;
}

int once__my_row_next(MYSQL_RES *rows, struct once__my_row *out)
{
    MYSQL_ROW row = mysql_fetch_row(rows);
    const unsigned long *sizes;

    if (row == NULL)
        return 0;
    memset(out, 0, sizeof(*out));
    sizes = mysql_fetch_lengths(rows);
    ONCE__MUST(sizes[NAME] == ONCE_NAME_SIZE); /* BINARY(32) */
    memcpy(out->name, row[NAME], ONCE_NAME_SIZE);
    out->rc = read_record(row, sizes, mysql_num_fields(rows) > BYTES, out);
    return 1;
}

/* ---- Writing ----------------------------------------------------------- */

const char once__my_insert_body[] =
    "INSERT INTO once_body (fence, part, size, bytes) VALUES ";

static once_bytes trimmed(const uint8_t *text, size_t size)
{
    while (size > 0 && text[size - 1] == 0)
        size--;
    return (once_bytes){text, size};
}

void once__my_put_now(struct once__my_text *t)
{
    once__my_put(t, "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "
                    "UTC_TIMESTAMP(3)) DIV 1000");
}

/*
 * The columns of a record, numbers before bytes. An INSERT leaves out those that
 * have their default in all of its rows: the server takes longer to parse a value
 * than to store it.
 */
enum { NUMBERS_OF_ROW = 15, BYTES_OF_ROW = 8, ALWAYS = -1 };

static const struct {
    const char *name;
    int usual; /* the default; ALWAYS: there is none */
} numbers_of_row[NUMBERS_OF_ROW] = {
    {"fence", 0},
    {"class", 1},
    {"due_ms", ALWAYS},
    {"lease_ms", ALWAYS},
    {"keep_ms", ALWAYS},
    {"granted_ms", ALWAYS},
    {"created_ms", ALWAYS},
    {"ended_ms", 0},
    {"attempt", 1},
    {"version", 1},
    {"state", ONCE_DISPATCHED},
    {"kind", 0},
    {"policy", 0},
    {"doubt", 0},
    {"reason", 0},
};

static const struct {
    const char *name;
    int always; /* 1: it has no default; 0: that is no bytes */
} bytes_of_row[BYTES_OF_ROW] = {
    {"token", 1}, {"name", 1},    {"fingerprint", 1}, {"trace", 0},
    {"grp", 0},   {"subject", 0}, {"label", 0},       {"note", 0},
};

struct row {
    uint64_t numbers[NUMBERS_OF_ROW];
    once_bytes bytes[BYTES_OF_ROW];
};

static struct row row_of(const uint8_t *name, const once_record *r,
                         uint64_t fence)
{
    const struct place place = place_of(r);

    return (struct row){.numbers = {fence, place.class, place.due_ms,
                                    r->lease_ms, r->keep_ms, r->granted_ms,
                                    r->created_ms, r->ended_ms, r->attempt,
                                    ONCE__MY_SCHEMA, r->state, r->kind,
                                    r->policy, r->doubt, r->reason},
                        .bytes = {{r->token, ONCE_TOKEN_SIZE},
                                  {name, ONCE_NAME_SIZE},
                                  {r->fingerprint, ONCE_FINGERPRINT_SIZE},
                                  trimmed(r->trace, ONCE_TRACE_SIZE),
                                  trimmed(r->group, ONCE_GROUP_SIZE),
                                  trimmed(r->subject, ONCE_SUBJECT_SIZE),
                                  r->label,
                                  r->note}};
}

uint32_t once__my_columns_for(const once_record *r, uint64_t fence)
{
    const struct row row = row_of(NULL, r, fence);
    uint32_t columns = 0;
    unsigned i;

    for (i = 0; i < NUMBERS_OF_ROW; i++)
        if (numbers_of_row[i].usual == ALWAYS ||
            row.numbers[i] != (uint64_t)numbers_of_row[i].usual)
            columns |= 1u << i;
    for (i = 0; i < BYTES_OF_ROW; i++)
        if (bytes_of_row[i].always || row.bytes[i].size > 0)
            columns |= 1u << (NUMBERS_OF_ROW + i);
    return columns;
}

void once__my_put_insert(struct once__my_text *t, uint32_t columns)
{
    const char *between = "INSERT INTO once_record (";
    unsigned i;

    for (i = 0; i < NUMBERS_OF_ROW + BYTES_OF_ROW; i++) {
        if (!(columns & 1u << i))
            continue;
        once__my_put(t, between);
        once__my_put(t, i < NUMBERS_OF_ROW
                            ? numbers_of_row[i].name
                            : bytes_of_row[i - NUMBERS_OF_ROW].name);
        between = ", ";
    }
    once__my_put(t, ") VALUES ");
}

void once__my_put_record(struct once__my_text *t, const uint8_t *name,
                         const once_record *r, uint64_t fence, uint32_t columns)
{
    const struct row row = row_of(name, r, fence);
    const char *between = "(";
    unsigned i;

    for (i = 0; i < NUMBERS_OF_ROW; i++) {
        if (!(columns & 1u << i))
            continue;
        once__my_put(t, between);
        once__my_put_number(t, row.numbers[i]);
        between = ",";
    }
    for (i = 0; i < BYTES_OF_ROW; i++) {
        if (!(columns & 1u << (NUMBERS_OF_ROW + i)))
            continue;
        once__my_put(t, between);
        once__my_put_hex(t, row.bytes[i].data, row.bytes[i].size);
        between = ",";
    }
    once__my_put(t, ")");
}

/* The fence stands for attempt, token, trace, group, subject, label, created_ms
 * and granted_ms. */
void once__my_put_changes(struct once__my_text *t, const once_record *before,
                          const once_record *after)
{
    const struct place place = place_of(after);
    const struct {
        const char *words;
        uint64_t value;
    } numbers[] = {
        {"class=", place.class},         {",due_ms=", place.due_ms},
        {",lease_ms=", after->lease_ms}, {",keep_ms=", after->keep_ms},
        {",ended_ms=", after->ended_ms}, {",state=", after->state},
        {",kind=", after->kind},         {",policy=", after->policy},
        {",doubt=", after->doubt},       {",reason=", after->reason},
    };
    size_t i;

    ONCE__MUST(before->fence == after->fence &&
               before->attempt == after->attempt);
    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        once__my_put(t, numbers[i].words);
        once__my_put_number(t, numbers[i].value);
    }
    if (memcmp(before->fingerprint, after->fingerprint,
               ONCE_FINGERPRINT_SIZE) != 0) {
        once__my_put(t, ",fingerprint=");
        once__my_put_hex(t, after->fingerprint, ONCE_FINGERPRINT_SIZE);
    }
    if (before->note.data != after->note.data) {
        once__my_put(t, ",note=");
        once__my_put_hex(t, after->note.data, after->note.size);
    }
}
