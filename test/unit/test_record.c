/* SPDX-License-Identifier: Apache-2.0 */
/* test_record.c - records as bytes come back whole or not at all (I9). */
#include "calls/core/record.h"

#include "base/crc32c.h"

#include "t.h"

enum { SIZE = ONCE__RECORD_HEAD + 11 + 5 + 7 + ONCE__RECORD_SUM };

static const uint8_t name[ONCE_NAME_SIZE] = {1, 2, 3};

static once_record sample(void)
{
    once_record r;

    memset(&r, 0, sizeof(r));
    r.state = ONCE_COMPLETED;
    r.kind = ONCE_FAILURE;
    r.policy = ONCE_TAKEOVER | ONCE_RETRY_FAILED;
    r.doubt = 1;
    r.attempt = 0x01020304;
    r.fence = UINT64_C(0x1112131415161718);
    r.keep_ms = UINT64_C(0x0000222324252627);
    r.granted_ms = UINT64_C(0x0000323334353637);
    memset(r.token, 0xaa, sizeof(r.token));
    memset(r.fingerprint, 0xbb, sizeof(r.fingerprint));
    memset(r.group, 'g', sizeof(r.group));
    r.result = (once_bytes){"some\0result", 11};
    r.note = (once_bytes){"noted", 5};
    r.created_ms = UINT64_C(0x0000424344454647);
    r.ended_ms = UINT64_C(0x0000525354555657);
    memset(r.subject, 's', sizeof(r.subject));
    memset(r.trace, 't', sizeof(r.trace));
    r.reason = ONCE_REASON_TIMEOUT;
    r.label = (once_bytes){"order=7", 7};
    return r;
}

static void encode(uint8_t out[SIZE])
{
    once_record r = sample();

    T_EQ(once__record_size(&r), SIZE);
    once__record_encode(&r, name, out);
}

static int decode(const void *data, size_t size, once_record *out)
{
    return once__record_decode((once_bytes){data, size}, name, out, NULL);
}

/* The sum is made right again, so that only what is behind it can refuse. */
static void sign(uint8_t *data, size_t size)
{
    uint32_t sum = once__crc32c(0, name, sizeof(name));
    size_t i;

    sum = once__crc32c(sum, data, size - ONCE__RECORD_SUM);
    for (i = 0; i < ONCE__RECORD_SUM; i++)
        data[size - ONCE__RECORD_SUM + i] = (uint8_t)(sum >> (8 * i));
}

static void what_was_written_is_read(void)
{
    uint8_t data[SIZE];
    once_record r, want = sample();

    encode(data);
    T_EQ(decode(data, SIZE, &r), ONCE_OK);
    T_EQ(r.state, want.state);
    T_EQ(r.kind, want.kind);
    T_EQ(r.policy, want.policy);
    T_EQ(r.doubt, want.doubt);
    T_EQ(r.attempt, want.attempt);
    T_EQ(r.fence, want.fence);
    T_EQ(r.lease_ms, want.lease_ms);
    T_EQ(r.keep_ms, want.keep_ms);
    T_EQ(r.granted_ms, want.granted_ms);
    T_MEM(r.token, want.token, sizeof(r.token));
    T_MEM(r.fingerprint, want.fingerprint, sizeof(r.fingerprint));
    T_MEM(r.group, want.group, sizeof(r.group));
    T_EQ(r.result.size, 11);
    T_MEM(r.result.data, want.result.data, 11);
    T_EQ(r.note.size, 5);
    T_MEM(r.note.data, want.note.data, 5);
    T_EQ(r.created_ms, want.created_ms);
    T_EQ(r.ended_ms, want.ended_ms);
    T_EQ(r.reason, want.reason);
    T_MEM(r.subject, want.subject, sizeof(r.subject));
    T_MEM(r.trace, want.trace, sizeof(r.trace));
    T_EQ(r.label.size, 7);
    T_MEM(r.label.data, want.label.data, 7);
}

static void a_record_without_bytes_is_read(void)
{
    uint8_t data[ONCE__RECORD_HEAD + ONCE__RECORD_SUM];
    once_record r = sample(), back;

    r.state = ONCE_DISPATCHED;
    r.kind = ONCE_NO_KIND;
    r.lease_ms = 5;
    r.ended_ms = 0;
    r.reason = ONCE_REASON_NONE;
    r.result.size = r.note.size = r.label.size = 0;
    T_EQ(once__record_size(&r), sizeof(data));
    once__record_encode(&r, name, data);
    T_EQ(decode(data, sizeof(data), &back), ONCE_OK);
    T_EQ(back.state, ONCE_DISPATCHED);
    T_EQ(back.lease_ms, 5);
    T_EQ(back.result.size, 0);
}

/* The layout is a promise to files that exist: it may change with the version
 * and not otherwise. */
static void the_bytes_are_where_they_always_were(void)
{
    static const uint8_t front[40] = {
        2,    3,    2,    0x83, 4,    3,    2,    1,    0x18, 0x17,
        0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0,    0,    0,    0,
        0,    0,    0,    0,    0x27, 0x26, 0x25, 0x24, 0x23, 0x22,
        0,    0,    0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0,    0,
    };
    static const uint8_t sizes[8] = {11, 0, 0, 0, 5, 0, 0, 0};
    uint8_t data[SIZE];

    encode(data);
    T_MEM(data, front, sizeof(front));
    T_MEM(data + 88, sizes, sizeof(sizes));
    T_MEM(data + 96, "gggggggggggggggggggggggggggggggg", 32);
    T_MEM(data + 128, "GFEDCB\0\0WVUTSR\0\0", 16);
    T_MEM(data + 144, "sssssssstttttttttttttttt", 24);
    T_MEM(data + 168, "\2\0\7\0\0\0\0\0", 8);
    T_MEM(data + 176, "some\0resultnotedorder=7", 23);
}

static void every_flipped_bit_is_found(void)
{
    uint8_t data[SIZE];
    size_t i, accepted = 0;
    once_record r;

    encode(data);
    for (i = 0; i < SIZE * 8; i++) {
        data[i / 8] ^= (uint8_t)(1u << i % 8);
        accepted += decode(data, SIZE, &r) != ONCE_ECORRUPT;
        data[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    T_EQ(accepted, 0);
    T_EQ(decode(data, SIZE, &r), ONCE_OK);
}

static void every_shorter_and_longer_one_is_refused(void)
{
    uint8_t data[SIZE + 8] = {0};
    size_t size, accepted = 0;
    once_record r;

    encode(data);
    for (size = 0; size < SIZE + 8; size++)
        accepted += size != SIZE && decode(data, size, &r) != ONCE_ECORRUPT;
    T_EQ(accepted, 0);
    T_EQ(decode(NULL, 0, &r), ONCE_ECORRUPT);
}

static void records_that_changed_names_do_not_check(void)
{
    uint8_t data[SIZE], other[ONCE_NAME_SIZE];
    once_record r;
    size_t i, accepted = 0;

    encode(data);
    for (i = 0; i < ONCE_NAME_SIZE * 8; i++) {
        memcpy(other, name, sizeof(other));
        other[i / 8] ^= (uint8_t)(1u << i % 8);
        accepted += once__record_decode((once_bytes){data, SIZE}, other, &r,
                                        NULL) != ONCE_ECORRUPT;
    }
    T_EQ(accepted, 0);
}

static void another_version_is_told_apart_from_damage(void)
{
    uint8_t data[SIZE];
    once_record r;
    once_error err = {0, ""};

    encode(data);
    data[0] = 1;
    T_EQ(decode(data, SIZE, &r), ONCE_ECORRUPT);
    sign(data, SIZE);
    T_EQ(once__record_decode((once_bytes){data, SIZE}, name, &r, &err),
         ONCE_EVERSION);
    T_OK(strstr(err.text, "version 1") != NULL);
}

/* Rightly signed nonsense: somebody's bug, and still not a record. */
static void what_nobody_can_have_written_is_refused(void)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *what;
    } lies[] = {
        {1, 5, "no such state"},
        {1, ONCE_DISPATCHED, "dispatched with an outcome"},
        {1, ONCE_ABSENT, "absent with an outcome"},
        {2, 0, "completed without a kind"},
        {2, 3, "no such kind"},
        {3, 0x04, "no such policy"},
        {16, 1, "completed with a lease"},
        {88, 12, "a longer result"},
        {88, 10, "a shorter result"},
        {92, 4, "a shorter note"},
        {91, 0x80, "a result over its limit"},
        {95, 0x80, "a note over its limit"},
        {168, ONCE__REASON_END, "no such reason"},
        {169, 1, "a byte that is always zero"},
        {170, 6, "a shorter label"},
        {170, 0xff, "a label over its limit"},
        {175, 1, "another byte that is always zero"},
    };
    once_record r, untouched;
    size_t i;

    memset(&untouched, 0x5a, sizeof(untouched));
    for (i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        uint8_t data[SIZE];

        encode(data);
        data[lies[i].at] = lies[i].value;
        sign(data, SIZE);
        r = untouched;
        if (!T_OK(decode(data, SIZE, &r) == ONCE_ECORRUPT))
            printf("#   %s\n", lies[i].what);
        T_MEM(&r, &untouched, sizeof(r));
    }
}

static void no_attempt_or_no_fence_is_refused(void)
{
    uint8_t data[SIZE];
    once_record r;

    encode(data);
    memset(data + 4, 0, 4);
    sign(data, SIZE);
    T_EQ(decode(data, SIZE, &r), ONCE_ECORRUPT);
    encode(data);
    memset(data + 8, 0, 8);
    sign(data, SIZE);
    T_EQ(decode(data, SIZE, &r), ONCE_ECORRUPT);
}

/* ---- CRC-32C ----------------------------------------------------------- */

/* One bit after the other, by the reflected polynomial. */
static uint32_t slow(uint32_t crc, const uint8_t *p, size_t size)
{
    int bit;

    crc = ~crc;
    while (size-- > 0) {
        crc ^= *p++;
        for (bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

typedef uint32_t sum_of(uint32_t crc, const void *data, size_t size);

static void check_against_slow(sum_of *sum)
{
    uint8_t data[600];
    uint64_t seed = 11;
    size_t i, from, wrong = 0;

    for (i = 0; i < sizeof(data); i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1;
        data[i] = (uint8_t)(seed >> 56);
    }
    for (i = 0; i <= 512; i++)
        for (from = 0; from < 8; from++)
            wrong += sum(0, data + from, i) != slow(0, data + from, i);
    T_EQ(wrong, 0);
    /* Each byte at each place of a step: all the tables, entry by entry. */
    for (i = 0; i < 8 * 256; i++) {
        uint8_t one[8] = {0};

        one[i / 256] = (uint8_t)i;
        wrong += sum(0, one, 8) != slow(0, one, 8);
    }
    T_EQ(wrong, 0);
}

static void the_sum_is_that_of_the_polynomial(void)
{
    check_against_slow(once__crc32c);
    check_against_slow(once__crc32c_table);
}

static void the_sum_of_the_rfcs_examples(void)
{
    uint8_t data[32];
    size_t i;

    memset(data, 0, sizeof(data)); /* RFC 3720, B.4 */
    T_EQ(once__crc32c(0, data, 32), 0x8a9136aau);
    memset(data, 0xff, sizeof(data));
    T_EQ(once__crc32c(0, data, 32), 0x62a8ab43u);
    for (i = 0; i < 32; i++)
        data[i] = (uint8_t)i;
    T_EQ(once__crc32c(0, data, 32), 0x46dd794eu);
    T_EQ(once__crc32c(0, "123456789", 9), 0xe3069283u);
    T_EQ(once__crc32c(0, "", 0), 0);
}

static void a_sum_can_be_made_in_parts(void)
{
    static const char text[] = "what is in two parts is one";
    size_t i, wrong = 0;

    for (i = 0; i < sizeof(text); i++)
        wrong += once__crc32c(once__crc32c(0, text, i), text + i,
                              sizeof(text) - i) !=
                 once__crc32c(0, text, sizeof(text));
    T_EQ(wrong, 0);
}

int main(void)
{
    T_RUN(what_was_written_is_read);
    T_RUN(a_record_without_bytes_is_read);
    T_RUN(the_bytes_are_where_they_always_were);
    T_RUN(every_flipped_bit_is_found);
    T_RUN(every_shorter_and_longer_one_is_refused);
    T_RUN(records_that_changed_names_do_not_check);
    T_RUN(another_version_is_told_apart_from_damage);
    T_RUN(what_nobody_can_have_written_is_refused);
    T_RUN(no_attempt_or_no_fence_is_refused);
    T_RUN(the_sum_is_that_of_the_polynomial);
    T_RUN(the_sum_of_the_rfcs_examples);
    T_RUN(a_sum_can_be_made_in_parts);
    return t_done();
}
