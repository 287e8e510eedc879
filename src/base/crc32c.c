/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c.c - CRC-32C, by the processor's own instruction where it has one (SSE
 * 4.2, since 2008), else four bits a step: small and slow.
 *
 * The table is a constant so that there is no state to set up. test_record.c
 * checks both against the polynomial bit by bit.
 */
#include "base/crc32c.h"

#include <string.h>

/* The CRC of each value of four bits. */
static const uint32_t table[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
    0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
    0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};

uint32_t once__crc32c_table(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *p = data;

    crc = ~crc;
    for (; size > 0; size--) {
        crc ^= *p++;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

#ifdef __x86_64__

__attribute__((target("sse4.2"))) static uint32_t
by_processor(uint32_t crc, const uint8_t *p, size_t size)
{
    uint64_t sum = ~crc, word;

    for (; size >= sizeof(word); size -= sizeof(word), p += sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        sum = __builtin_ia32_crc32di(sum, word);
    }
    for (; size > 0; size--)
        sum = __builtin_ia32_crc32qi((uint32_t)sum, *p++);
    return ~(uint32_t)sum;
}

uint32_t once__crc32c(uint32_t crc, const void *data, size_t size)
{
    return __builtin_cpu_supports("sse4.2")
               ? by_processor(crc, data, size)
               : once__crc32c_table(crc, data, size);
}

#else

uint32_t once__crc32c(uint32_t crc, const void *data, size_t size)
{
    return once__crc32c_table(crc, data, size);
}

#endif
