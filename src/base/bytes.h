/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.h - numbers in stored bytes: little-endian, of 1 to 8 bytes; and bytes
 * as hexadecimal digits. */
#ifndef ONCE_BASE_BYTES_H
#define ONCE_BASE_BYTES_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The number must fit: its upper bytes would be lost. */
static inline void once__put(uint8_t *out, uint64_t value, size_t size)
{
    size_t i;

    assert(size == 8 || (size < 8 && value >> (8 * size) == 0));
    for (i = 0; i < size; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t once__get(const uint8_t *in, size_t size)
{
    uint64_t value = 0;

    assert(size <= 8);
    while (size-- > 0)
        value = value << 8 | in[size];
    return value;
}

static inline int once__is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* Writes 2 * size digits and a NUL. */
static inline void once__hex(const uint8_t *bytes, size_t size, char *out)
{
    static const char digits[] = "0123456789abcdef";
    size_t i;

    for (i = 0; i < size; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * size] = '\0';
}

/* What a hexadecimal digit stands for, or -1. */
static inline int once__hex_digit(char c)
{
    if (once__is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Reads what once__hex() has written, n bytes. 0: other characters are in it,
 * such as digits of upper case. */
static inline int once__unhex(const char *text, size_t n, uint8_t *out)
{
    size_t i;

    memset(out, 0, n);
    for (i = 0; i < 2 * n; i++) {
        int digit = once__hex_digit(text[i]);

        if (digit < 0 || (text[i] >= 'A' && text[i] <= 'F'))
            return 0;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | digit);
    }
    return 1;
}

#endif /* ONCE_BASE_BYTES_H */
