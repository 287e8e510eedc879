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

    if (!has_shape(traceparent) || !once__unhex(text + VERSION, 1, &version) ||
        !once__unhex(text + TRACE, ONCE_TRACE_SIZE, trace) ||
        !once__unhex(text + PARENT, sizeof(parent), parent) ||
        !once__unhex(text + FLAGS, 1, &flags) || version == 0xff ||
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
