/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value.c - a record as the value of a key.
 *
 *    0 version  1 state  2 kind  3 policy, doubt in bit 7
 *    4 attempt (4)       8 fence (8)      16 lease_ms (8)   24 keep_ms (8)
 *   32 granted_ms (8)   40 token (16)     56 fingerprint (32)
 *   88 group (32)      120 note size (4) 124 result size (4)
 *  128 CRC-32C of the result (4)
 *  132 CRC-32C of the name, bytes 0..131 and the note (4)
 *  136 note, result
 *
 * The sums stand in the head, so that the first bytes of a value check by
 * themselves: a scan need not read results, and a head that is the same is the
 * same value. A head with a fence alone is a *grave*: the record was forgotten a
 * moment ago. It refuses to guess: what does not check is an error, never a
 * miss (I9); another version is said so if the head checks.
 */
#include <assert.h>
#include <string.h>

#include "core/apply.h"
#include "core/bytes.h"
#include "core/crc32c.h"
#include "store/redis/redis.h"

enum { VERSION = 1, DOUBT = 0x80, RESULT_SUM = 128, HEAD_SUM = 132 };

size_t once__redis_value_size(const once_record *r)
{
    return ONCE__REDIS_HEAD + r->note.size + r->result.size;
}

static uint32_t head_sum(const uint8_t *name, const uint8_t *head,
                         once_bytes note)
{
    uint32_t sum = once__crc32c(0, name, ONCE_NAME_SIZE);

    sum = once__crc32c(sum, head, HEAD_SUM);
    return once__crc32c(sum, note.data, note.size);
}

void once__redis_value_encode(const once_record *r,
                              const uint8_t name[ONCE_NAME_SIZE], uint8_t *out)
{
    once_bytes note = {out + ONCE__REDIS_HEAD, r->note.size};
    uint8_t *result = out + ONCE__REDIS_HEAD + r->note.size;

    assert(r->result.size <= ONCE_RESULT_MAX && r->note.size <= ONCE_NOTE_MAX);
    out[0] = VERSION;
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
    memcpy(out + 88, r->group, ONCE_GROUP_SIZE);
    once__put(out + 120, r->note.size, 4);
    once__put(out + 124, r->result.size, 4);
    if (r->note.size > 0)
        memcpy(out + ONCE__REDIS_HEAD, r->note.data, r->note.size);
    if (r->result.size > 0)
        memcpy(result, r->result.data, r->result.size);
    once__put(out + RESULT_SUM, once__crc32c(0, result, r->result.size), 4);
    once__put(out + HEAD_SUM, head_sum(name, out, note), 4);
}

static void read_head(const uint8_t *in, once_record *r)
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
    memcpy(r->group, in + 88, ONCE_GROUP_SIZE);
    r->note.size = (size_t)once__get(in + 120, 4);
    r->result.size = (size_t)once__get(in + 124, 4);
}

/* A record that can be written on: the core asserts what is checked here. */
static int usable(const once_record *r)
{
    return r->attempt > 0 && r->attempt < UINT32_MAX &&
           r->fence < UINT64_C(1) << 63 && r->result.size <= ONCE_RESULT_MAX &&
           once__record_sane(r);
}

static int grave(const once_record *r)
{
    return r->attempt == 0 && r->state == ONCE_ABSENT && r->fence > 0 &&
           r->note.size == 0 && r->result.size == 0;
}

int once__redis_value_peek(once_bytes in, const uint8_t name[ONCE_NAME_SIZE],
                           once_record *out, size_t *more)
{
    const uint8_t *p = in.data;
    once_record r;

    *more = 0;
    if (in.size < ONCE__REDIS_HEAD)
        return ONCE_ECORRUPT;
    read_head(p, &r);
    if (r.note.size > ONCE_NOTE_MAX)
        return ONCE_ECORRUPT;
    if (in.size < ONCE__REDIS_HEAD + r.note.size) {
        *more = ONCE__REDIS_HEAD + r.note.size;
        return ONCE_ECORRUPT;
    }
    r.note.data = r.note.size > 0 ? p + ONCE__REDIS_HEAD : NULL;
    if (head_sum(name, p, r.note) != once__get(p + HEAD_SUM, 4))
        return ONCE_ECORRUPT;
    if (p[0] != VERSION)
        return ONCE_EVERSION;
    if (grave(&r)) {
        *out = r;
        return ONCE_FREE;
    }
    if (!usable(&r))
        return ONCE_ECORRUPT;
    *out = r;
    return ONCE_OK;
}

int once__redis_value_decode(once_bytes in, const uint8_t name[ONCE_NAME_SIZE],
                             once_record *out)
{
    const uint8_t *p = in.data;
    once_record r;
    size_t more;
    int rc = once__redis_value_peek(in, name, &r, &more);

    if (rc != ONCE_OK)
        return rc;
    if (in.size != once__redis_value_size(&r))
        return ONCE_ECORRUPT;
    r.result.data = p + ONCE__REDIS_HEAD + r.note.size;
    if (once__crc32c(0, r.result.data, r.result.size) !=
        once__get(p + RESULT_SUM, 4))
        return ONCE_ECORRUPT;
    if (r.result.size == 0)
        r.result.data = NULL;
    *out = r;
    return ONCE_OK;
}
