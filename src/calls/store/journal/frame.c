/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.c - the bytes of the log.
 *
 * A frame, little-endian:
 *
 *    0 magic (4)       4 sum (4)        8 length (4)
 *   12 kind  13 state  14 pad  15 zero 16 record's sum (4), 4 zeros
 *   24 generation (8) 32 durable (8)   40 fence (8)       48 due (8)
 *   56 name (32); of a MARK: before (8), zeros (8), which checkpoint or zeros
 *      (16)
 *   88 the record as core/record.h has it, then `pad` zeros
 *
 * The sum covers the frame's position and the bytes 8 to 87. So bytes that an
 * earlier use of the file has left never pass, nor do frames that changed
 * places; and a log can be walked without reading results, whose own sum
 * stands in the head. It refuses to guess.
 *
 * A segment's header block:
 *
 *    0 magic (8)   8 version (4)  12 sum (4)  16 id (8)   24 before (8)
 *   32 first (8)  40 fence (8)    48 generation (8), then zeros
 */
#include "calls/store/journal/format.h"

#include <assert.h>
#include <string.h>

#include "base/crc32c.h"
#include "calls/core/record.h"

enum { FRAME_MAGIC = 0x4d52464a, SUMMED = 8 };

static_assert(ONCE__FRAME_HEAD + ONCE__RECORD_HEAD + ONCE_RESULT_MAX +
                      ONCE_NOTE_MAX + ONCE_LABEL_MAX + ONCE__RECORD_SUM +
                      ONCE__FRAME_ALIGN <=
                  ONCE__FRAME_MAX,
              "any record fits a frame");

#define SEGMENT_MAGIC UINT64_C(0x4c4e524a45434e4f)

static uint32_t frame_sum(const uint8_t *in, uint64_t at)
{
    uint8_t place[8];

    once__put(place, at, sizeof(place));
    return once__crc32c(once__crc32c(0, place, sizeof(place)), in + SUMMED,
                        ONCE__FRAME_HEAD - SUMMED);
}

void once__frame_put(const struct once__frame *f, uint64_t at,
                     uint8_t out[ONCE__FRAME_HEAD])
{
    once__put(out, FRAME_MAGIC, 4);
    once__put(out + 8, f->length, 4);
    out[12] = f->kind;
    out[13] = f->state;
    out[14] = f->pad;
    out[15] = 0;
    once__put(out + 16, f->sum, 8);
    once__put(out + 24, f->generation, 8);
    once__put(out + 32, f->durable, 8);
    once__put(out + 40, f->fence, 8);
    once__put(out + 48, f->due, 8);
    memcpy(out + 56, f->name, ONCE_NAME_SIZE);
    if (f->kind == ONCE__FRAME_MARK)
        once__put(out + 56, f->before, 8);
    once__put(out + 4, frame_sum(out, at), 4);
}

int once__frame_hint(const uint8_t in[4])
{
    return once__get(in, 4) == FRAME_MAGIC;
}

int once__frame_get(const uint8_t in[ONCE__FRAME_HEAD], uint64_t at,
                    struct once__frame *out)
{
    if (!once__frame_hint(in) || once__get(in + 4, 4) != frame_sum(in, at))
        return 0;
    out->length = (uint32_t)once__get(in + 8, 4);
    out->kind = in[12];
    out->state = in[13];
    out->pad = in[14];
    out->sum = (uint32_t)once__get(in + 16, 4);
    out->generation = once__get(in + 24, 8);
    out->durable = once__get(in + 32, 8);
    out->fence = once__get(in + 40, 8);
    out->due = once__get(in + 48, 8);
    out->before = once__get(in + 56, 8);
    memcpy(out->name, in + 56, ONCE_NAME_SIZE);
    return out->length >= ONCE__FRAME_HEAD &&
           out->length % ONCE__FRAME_ALIGN == 0 &&
           out->length <= ONCE__FRAME_MAX && out->pad < ONCE__FRAME_ALIGN &&
           out->length >= (uint32_t)ONCE__FRAME_HEAD + out->pad &&
           out->kind >= ONCE__FRAME_RECORD && out->kind <= ONCE__FRAME_MARK;
}

static uint32_t head_sum(const uint8_t *in)
{
    return once__crc32c(0, in + 16, ONCE__JOURNAL_HEADER - 16);
}

void once__segment_head_put(const struct once__segment_head *h,
                            uint8_t out[ONCE__JOURNAL_HEADER])
{
    memset(out, 0, ONCE__JOURNAL_HEADER);
    once__put(out, SEGMENT_MAGIC, 8);
    once__put(out + 8, ONCE__JOURNAL_VERSION, 4);
    once__put(out + 16, h->id, 8);
    once__put(out + 24, h->before, 8);
    once__put(out + 32, h->first, 8);
    once__put(out + 40, h->fence, 8);
    once__put(out + 48, h->generation, 8);
    once__put(out + 12, head_sum(out), 4);
}

int once__segment_head_get(const uint8_t in[ONCE__JOURNAL_HEADER], uint64_t id,
                           struct once__segment_head *out)
{
    if (once__get(in, 8) != SEGMENT_MAGIC ||
        once__get(in + 12, 4) != head_sum(in) || once__get(in + 16, 8) != id)
        return ONCE_ECORRUPT;
    if (once__get(in + 8, 4) != ONCE__JOURNAL_VERSION)
        return ONCE_EVERSION;
    out->id = id;
    out->before = once__get(in + 24, 8);
    out->first = once__get(in + 32, 8);
    out->fence = once__get(in + 40, 8);
    out->generation = once__get(in + 48, 8);
    return ONCE_OK;
}

uint64_t once__journal_due(const once_record *r)
{
    if (r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED)
        return r->lease_ms;
    return r->state == ONCE_INDETERMINATE ? r->ended_ms : r->keep_ms;
}

size_t once__frame_size_of(const once_record *r)
{
    size_t size = ONCE__FRAME_HEAD + once__record_size(r);

    return (size + ONCE__FRAME_ALIGN - 1) & ~(size_t)(ONCE__FRAME_ALIGN - 1);
}

void once__frame_encode(struct once__frame *f, const once_record *r,
                        uint8_t *out)
{
    size_t size = r == NULL ? 0 : once__record_size(r);
    uint8_t *to = out + ONCE__FRAME_HEAD;

    f->length =
        (uint32_t)(r == NULL ? ONCE__FRAME_HEAD : once__frame_size_of(r));
    f->pad = (uint8_t)(f->length - ONCE__FRAME_HEAD - size);
    f->sum = 0;
    if (r == NULL)
        return;
    once__record_encode(r, f->name, to);
    memset(to + size, 0, f->pad);
    f->sum =
        (uint32_t)once__get(to + size - ONCE__RECORD_SUM, ONCE__RECORD_SUM);
}

int once__frame_record(const struct once__frame *f, const uint8_t *bytes,
                       once_record *out)
{
    once_bytes record = {bytes + ONCE__FRAME_HEAD,
                         f->length - ONCE__FRAME_HEAD - f->pad};
    int code = once__record_decode(record, f->name, out, NULL);

    if (code == ONCE_OK &&
        once__get(bytes + f->length - f->pad - ONCE__RECORD_SUM,
                  ONCE__RECORD_SUM) != f->sum)
        code = ONCE_ECORRUPT;
    return code;
}
