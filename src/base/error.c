/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.c - texts of errors and answers, and once__fail().
 *
 * The texts of errors come from the list in once.h, which has number, name and
 * text together. Nothing here is kept between calls.
 */
#include "base/error.h"

#include <once/message.h>
#include <stdarg.h>
#include <stdio.h>

static const char *const answers[] = {
    "ok",
    "owner",
    "in flight",
    "replay",
    "unknown",
    "lost",
    "mismatch",
    "free",
    "fenced",
    "refused",
    "repeated",
    "expired",
    "too soon",
    /* once/message.h */
    [ONCE_OUTSIDE] = "outside",
    "empty",
    "early",
    "conflict",
    "again",
    "dead",
};

const char *once_text(int code)
{
    if (code >= 0 && code < (int)(sizeof(answers) / sizeof(answers[0])) &&
        answers[code] != NULL)
        return answers[code];
    switch (code) {
#define TEXT(name, number, again, text)                                        \
    case name:                                                                 \
        return text;
        ONCE_ERRORS(TEXT)
#undef TEXT
    default:
        return "no such code";
    }
}

const char *once_reason_text(int reason)
{
    switch (reason) {
#define TEXT(name, number, word)                                               \
    case name:                                                                 \
        return word;
        ONCE_REASONS(TEXT)
#undef TEXT
    default:
        return "-";
    }
}

int once__fail(once_error *err, int code, const char *format, ...)
{
    va_list args;

    if (err != NULL) {
        err->code = code;
        va_start(args, format);
        (void)vsnprintf(err->text, sizeof(err->text), format, args);
        va_end(args);
    }
    return code;
}
