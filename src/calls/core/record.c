/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.c - the record codec.
 *
 *    0 version  1 state  2 kind  3 policy, doubt in bit 7
 *    4 attempt (4)       8 fence (8)      16 lease_ms (8)   24 keep_ms (8)
 *   32 granted_ms (8)   40 token (16)     56 fingerprint (32)
 *   88 result size (4)  92 note size (4)   96 group (32)
 *  128 created_ms (8) 136 ended_ms (8)  144 subject (8)  152 trace (16)
 *  168 reason (1)     169 zero (1)      170 label size (1) 171 zeros (5)
 *  176 result, note, label, then CRC-32C over the name and all of the above
 * Numbers are little-endian. A wrong length, a wrong checksum, and values that
 * once__record_encode() never writes are errors.
 */
#include "calls/core/record.h"

#include <assert.h>
#include <string.h>

#include "calls/core/transition.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/error.h"

enum { DOUBT = 0x80 };

size_t once__record_size(const once_record *r)
{
    return ONCE__RECORD_HEAD + r->result.size + r->note.size + r->label.size +
           ONCE__RECORD_SUM;
}

void once__record_head(const once_record *r, uint8_t out[ONCE__RECORD_HEAD])
{
    assert(r->result.size <= ONCE_RESULT_MAX && r->note.size <= ONCE_NOTE_MAX &&
           r->label.size <= ONCE_LABEL_MAX);
    out[0] = ONCE__RECORD_VERSION;
    out[1] = r->state;
    out[2] = r->kind;
    out[3] = (uint8_t)(r->policy | (r->doubt ? DOUBT : 0));
    once__put(out + 4, r->attempt, 4);
    once__put(out + 8, r->fence, 8);
    once__put(out + 16, r->lease_ms, 8);
    once__put(out + 24, r->keep_ms, 8);
    once__put(out + 32, r->granted_ms, 8);
    memcpy(out + 40, r->token, ONCE_TOKEN_SIZE);
    memcpy(out + 56, r->fingerprint, ONCE_FINGERPRINT_SIZE);
    once__put(out + 88, r->result.size, 4);
    once__put(out + 92, r->note.size, 4);
    memcpy(out + 96, r->group, ONCE_GROUP_SIZE);
    once__put(out + 128, r->created_ms, 8);
    once__put(out + 136, r->ended_ms, 8);
    memcpy(out + 144, r->subject, ONCE_SUBJECT_SIZE);
    memcpy(out + 152, r->trace, ONCE_TRACE_SIZE);
    memset(out + 168, 0, 8);
    out[168] = r->reason;
    out[170] = (uint8_t)r->label.size;
}

static void add(uint8_t **at, once_bytes bytes)
{
    if (bytes.size > 0)
        memcpy(*at, bytes.data, bytes.size);
    *at += bytes.size;
}

void once__record_encode(const once_record *r,
                         const uint8_t name[ONCE_NAME_SIZE], void *out)
{
    uint8_t *at = (uint8_t *)out + ONCE__RECORD_HEAD;
    uint32_t sum;

    assert(r->attempt > 0 && once__record_sane(r)); /* or it is not readable */
    once__record_head(r, out);
    add(&at, r->result);
    add(&at, r->note);
    add(&at, r->label);
    sum = once__crc32c(0, name, ONCE_NAME_SIZE);
    sum = once__crc32c(sum, out, (size_t)(at - (uint8_t *)out));
    once__put(at, sum, ONCE__RECORD_SUM);
}

void once__record_from_head(const uint8_t in[ONCE__RECORD_HEAD], once_record *r)
{
    memset(r, 0, sizeof(*r));
    r->state = in[1];
    r->kind = in[2];
    r->policy = in[3] & (uint8_t)~DOUBT;
    r->doubt = (in[3] & DOUBT) != 0;
    r->attempt = (uint32_t)once__get(in + 4, 4);
    r->fence = once__get(in + 8, 8);
    r->lease_ms = once__get(in + 16, 8);
    r->keep_ms = once__get(in + 24, 8);
    r->granted_ms = once__get(in + 32, 8);
    memcpy(r->token, in + 40, ONCE_TOKEN_SIZE);
    memcpy(r->fingerprint, in + 56, ONCE_FINGERPRINT_SIZE);
    r->result.size = (size_t)once__get(in + 88, 4);
    r->note.size = (size_t)once__get(in + 92, 4);
    memcpy(r->group, in + 96, ONCE_GROUP_SIZE);
    r->created_ms = once__get(in + 128, 8);
    r->ended_ms = once__get(in + 136, 8);
    memcpy(r->subject, in + 144, ONCE_SUBJECT_SIZE);
    memcpy(r->trace, in + 152, ONCE_TRACE_SIZE);
    r->reason = in[168];
    r->label.size = in[170];
}

/* The bytes that are always zero. */
static int is_padded(const uint8_t *in)
{
    static const uint8_t zeros[5];

    return in[169] == 0 && memcmp(in + 171, zeros, sizeof(zeros)) == 0;
}

int once__record_decode(once_bytes in, const uint8_t name[ONCE_NAME_SIZE],
                        once_record *out, once_error *err)
{
    const uint8_t *p = in.data;
    once_record r;
    uint32_t sum;

    if (in.size < ONCE__RECORD_HEAD + ONCE__RECORD_SUM)
        return once__fail(err, ONCE_ECORRUPT, "record: %zu bytes are too few",
                          in.size);
    sum = once__crc32c(0, name, ONCE_NAME_SIZE);
    sum = once__crc32c(sum, p, in.size - ONCE__RECORD_SUM);
    if (sum != once__get(p + in.size - ONCE__RECORD_SUM, ONCE__RECORD_SUM))
        return once__fail(err, ONCE_ECORRUPT, "record: the checksum differs");
    if (p[0] != ONCE__RECORD_VERSION)
        return once__fail(err, ONCE_EVERSION, "record: version %d, not %d",
                          p[0], ONCE__RECORD_VERSION);
    once__record_from_head(p, &r);
    if (r.result.size > ONCE_RESULT_MAX || r.note.size > ONCE_NOTE_MAX ||
        !is_padded(p) || once__record_size(&r) != in.size || r.attempt == 0 ||
        !once__record_sane(&r))
        return once__fail(err, ONCE_ECORRUPT, "record: it contradicts itself");
    r.result.data = p + ONCE__RECORD_HEAD;
    r.note.data = p + ONCE__RECORD_HEAD + r.result.size;
    r.label.data = p + ONCE__RECORD_HEAD + r.result.size + r.note.size;
    *out = r;
    return ONCE_OK;
}
