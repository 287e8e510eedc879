/* SPDX-License-Identifier: Apache-2.0 */
/*
 * about.c - what a record says about its request for operators: the label and
 * the trace id. It decides nothing, and what it cannot read is left out.
 */
#include "calls/http/http.h"
#include "base/bytes.h"

#include <string.h>

enum {
    VERSION = 0, /* where the parts of a traceparent begin */
    TRACE = 3,
    PARENT = 36,
    FLAGS = 53,
    LENGTH = 55
};

size_t once__label_clean(once_bytes text, char out[ONCE_LABEL_MAX])
{
    const unsigned char *in = text.data;
    size_t i, n = text.size < ONCE_LABEL_MAX ? text.size : ONCE_LABEL_MAX;

    for (i = 0; i < n; i++)
        out[i] = in[i] >= ' ' && in[i] <= '~' ? (char)in[i] : '?';
    return n;
}

/* Upper-case digits are no digits here. */
static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads n pairs of digits. 0: some are not digits. */
static int read_hex(const char *text, size_t n, uint8_t *out)
{
    size_t i;

    for (i = 0; i < n; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return 0;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return 1;
}

static int is_zero(const uint8_t *bytes, size_t n)
{
    while (n > 0 && bytes[n - 1] == 0)
        n--;
    return n == 0;
}

/* Version 00 has nothing behind the flags; a later one may go on after a
 * dash. */
static int has_shape(once_bytes t)
{
    const char *text = t.data;

    if (t.size < LENGTH || text[TRACE - 1] != '-' || text[PARENT - 1] != '-' ||
        text[FLAGS - 1] != '-')
        return 0;
    if (t.size == LENGTH)
        return 1;
    return memcmp(text, "00", 2) != 0 && text[LENGTH] == '-';
}

int once__trace_read(once_bytes traceparent, uint8_t out[ONCE_TRACE_SIZE])
{
    const char *text = traceparent.data;
    uint8_t version, flags, parent[8], trace[ONCE_TRACE_SIZE];

    if (!has_shape(traceparent) || !read_hex(text + VERSION, 1, &version) ||
        !read_hex(text + TRACE, ONCE_TRACE_SIZE, trace) ||
        !read_hex(text + PARENT, sizeof(parent), parent) ||
        !read_hex(text + FLAGS, 1, &flags) || version == 0xff ||
        is_zero(trace, sizeof(trace)) || is_zero(parent, sizeof(parent)))
        return 0;
    memcpy(out, trace, sizeof(trace));
    return 1;
}

int once__trace_text(const uint8_t trace[ONCE_TRACE_SIZE],
                     char out[ONCE__TRACE_TEXT])
{
    if (is_zero(trace, ONCE_TRACE_SIZE))
        return 0;
    once__hex(trace, ONCE_TRACE_SIZE, out);
    return 1;
}
