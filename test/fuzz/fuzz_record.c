/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_record.c - the record codec, both ways. The checksum would keep a fuzzer
 * out, so most inputs get the right one. What is read and written again is the
 * same bytes, and what is written is read as it was. */
#include "fuzz.h"

#include "calls/core/transition.h"
#include "base/crc32c.h"
#include "calls/core/record.h"

static const uint8_t name[ONCE_NAME_SIZE] = "a name of thirty-two bytes, yes";

static void sum(uint8_t *in, size_t size)
{
    uint32_t crc = once__crc32c(0, name, sizeof(name));
    size_t i;

    crc = once__crc32c(crc, in, size - ONCE__RECORD_SUM);
    for (i = 0; i < ONCE__RECORD_SUM; i++)
        in[size - ONCE__RECORD_SUM + i] = (uint8_t)(crc >> (8 * i));
}

static void write_again(const once_record *r, once_bytes in)
{
    uint8_t *out = malloc(once__record_size(r));

    MUST(out != NULL && once__record_size(r) == in.size);
    once__record_encode(r, name, out);
    MUST(memcmp(out, in.data, in.size) == 0);
    free(out);
}

static void read_bytes(const uint8_t *data, size_t size, int with_sum)
{
    uint8_t *in = exact(data, size);
    once_error err = {0, ""};
    once_record r;
    int rc;

    if (with_sum && size >= ONCE__RECORD_SUM)
        sum(in, size);
    rc = once__record_decode((once_bytes){in, size}, name, &r, &err);
    MUST(rc == ONCE_OK || rc == ONCE_ECORRUPT || rc == ONCE_EVERSION);
    MUST(rc == ONCE_OK || (err.code == rc && err.text[0] != '\0'));
    if (rc == ONCE_OK) {
        MUST(r.attempt > 0 && once__record_sane(&r));
        write_again(&r, (once_bytes){in, size});
    }
    free(in);
}

/* A record from bytes, if nobody could say that it cannot be. */
static void write_record(struct feed *f)
{
    once_record r, back;
    uint8_t *out;
    size_t size, i;

    memset(&r, 0, sizeof(r));
    r.state = feed_byte(f) % 6;
    r.kind = feed_byte(f) % 4;
    r.policy = feed_byte(f) % 5;
    r.doubt = feed_byte(f) % 3;
    r.attempt = (uint32_t)feed_number(f, 4);
    r.fence = feed_number(f, 8);
    r.lease_ms = feed_number(f, feed_byte(f) % 9);
    r.keep_ms = feed_number(f, 8);
    r.granted_ms = feed_number(f, 8);
    for (i = 0; i < sizeof(r.token); i++)
        r.token[i] = feed_byte(f);
    memset(r.group, r.token[0], r.token[1] % (ONCE_GROUP_SIZE + 1));
    r.note = feed_bytes(f, feed_byte(f));
    r.result = feed_bytes(f, f->left);
    if (r.attempt == 0 || !once__record_sane(&r))
        return;
    size = once__record_size(&r);
    out = malloc(size);
    MUST(out != NULL);
    once__record_encode(&r, name, out);
    MUST(once__record_decode((once_bytes){out, size}, name, &back, NULL) ==
         ONCE_OK);
    MUST(same(r.note, back.note) && same(r.result, back.result));
    r.note = back.note;
    r.result = back.result;
    write_again(&back, (once_bytes){out, size});
    MUST(r.state == back.state && r.fence == back.fence &&
         r.lease_ms == back.lease_ms && r.keep_ms == back.keep_ms &&
         r.policy == back.policy && r.doubt == back.doubt &&
         r.attempt == back.attempt && r.granted_ms == back.granted_ms &&
         r.kind == back.kind &&
         memcmp(r.token, back.token, sizeof(r.token)) == 0 &&
         memcmp(r.group, back.group, sizeof(r.group)) == 0);
    /* One bit is another, anywhere, and it is no record any more. */
    i = (size_t)(r.keep_ms % size);
    out[i] ^= (uint8_t)(1u << r.granted_ms % 8);
    MUST(once__record_decode((once_bytes){out, size}, name, &back, NULL) ==
         ONCE_ECORRUPT);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {data, size};
    uint8_t how = feed_byte(&f);

    if (how % 4 == 0)
        write_record(&f);
    else
        read_bytes(f.at, f.left, how % 4 > 1);
    return 0;
}
