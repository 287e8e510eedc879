/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value.c - a record as the value of a key.
 *
 *    0 the fixed part of core/record.h (176): version, state, ..., sizes
 *  176 CRC-32C of the result (4)
 *  180 CRC-32C of the name, bytes 0..179, note and label (4)
 *  184 note, label, result
 *
 * The sums stand in the head, so that the first bytes of a value check by
 * themselves: a scan need not read results, and a head that is the same is the
 * same value. A head with a fence alone is a *tombstone*: the record was
 * forgotten a moment ago. It refuses to guess: what fails its checksum is an
 * error, never a miss (I9); another version is said so if the head checks.
 */
#include <assert.h>
#include <string.h>

#include "calls/core/transition.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "calls/core/record.h"
#include "calls/store/redis/redis.h"

enum { RESULT_SUM = ONCE__RECORD_HEAD, HEAD_SUM = RESULT_SUM + 4 };

static_assert(ONCE__REDIS_HEAD == HEAD_SUM + 4, "swap.lua compares so much");

size_t once__redis_value_size(const once_record *r)
{
    return ONCE__REDIS_HEAD + r->note.size + r->label.size + r->result.size;
}

/* `texts` is note and label, one behind the other. */
static uint32_t head_sum(const uint8_t *name, const uint8_t *head,
                         once_bytes texts)
{
    uint32_t sum = once__crc32c(0, name, ONCE_NAME_SIZE);

    sum = once__crc32c(sum, head, HEAD_SUM);
    return once__crc32c(sum, texts.data, texts.size);
}

void once__redis_value_encode(const once_record *r,
                              const uint8_t name[ONCE_NAME_SIZE], uint8_t *out)
{
    once_bytes texts = {out + ONCE__REDIS_HEAD, r->note.size + r->label.size};
    uint8_t *result = out + ONCE__REDIS_HEAD + texts.size;

    once__record_head(r, out);
    if (r->note.size > 0)
        memcpy(out + ONCE__REDIS_HEAD, r->note.data, r->note.size);
    if (r->label.size > 0)
        memcpy(out + ONCE__REDIS_HEAD + r->note.size, r->label.data,
               r->label.size);
    if (r->result.size > 0)
        memcpy(result, r->result.data, r->result.size);
    once__put(out + RESULT_SUM, once__crc32c(0, result, r->result.size), 4);
    once__put(out + HEAD_SUM, head_sum(name, out, texts), 4);
}

/* A record that can be written on: the core asserts what is checked here. */
static int usable(const once_record *r)
{
    return r->attempt > 0 && r->result.size <= ONCE_RESULT_MAX &&
           once__record_sane(r);
}

static int tombstone(const once_record *r)
{
    return r->attempt == 0 && r->state == ONCE_ABSENT && r->fence > 0 &&
           r->note.size == 0 && r->label.size == 0 && r->result.size == 0;
}

int once__redis_value_peek(once_bytes in, const uint8_t name[ONCE_NAME_SIZE],
                           once_record *out, size_t *more)
{
    const uint8_t *p = in.data;
    once_record r;
    once_bytes texts;

    *more = 0;
    if (in.size < ONCE__REDIS_HEAD)
        return ONCE_ECORRUPT;
    once__record_from_head(p, &r);
    if (r.note.size > ONCE_NOTE_MAX || r.label.size > ONCE_LABEL_MAX)
        return ONCE_ECORRUPT;
    texts = (once_bytes){p + ONCE__REDIS_HEAD, r.note.size + r.label.size};
    if (in.size < ONCE__REDIS_HEAD + texts.size) {
        *more = ONCE__REDIS_HEAD + texts.size;
        return ONCE_ECORRUPT;
    }
    r.note.data = r.note.size > 0 ? p + ONCE__REDIS_HEAD : NULL;
    r.label.data = r.label.size > 0 ? p + ONCE__REDIS_HEAD + r.note.size : NULL;
    if (head_sum(name, p, texts) != once__get(p + HEAD_SUM, 4))
        return ONCE_ECORRUPT;
    if (p[0] != ONCE__RECORD_VERSION)
        return ONCE_EVERSION;
    if (tombstone(&r)) {
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

    if (rc == ONCE_FREE) /* of a tombstone the fence is what counts */
        *out = r;
    if (rc != ONCE_OK)
        return rc;
    if (in.size != once__redis_value_size(&r))
        return ONCE_ECORRUPT;
    r.result.data = p + ONCE__REDIS_HEAD + r.note.size + r.label.size;
    if (once__crc32c(0, r.result.data, r.result.size) !=
        once__get(p + RESULT_SUM, 4))
        return ONCE_ECORRUPT;
    if (r.result.size == 0)
        r.result.data = NULL;
    *out = r;
    return ONCE_OK;
}
