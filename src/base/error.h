/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - how a function fails: `return once__fail(err, CODE, "...");` */
#ifndef ONCE_BASE_ERROR_H
#define ONCE_BASE_ERROR_H

#include <once/once.h>

/* Fills `*err` if there is one and returns `code`. The text is cut to fit. */
int once__fail(once_error *err, int code, const char *format, ...)
    ONCE_PRINTF(3, 4);

#endif /* ONCE_BASE_ERROR_H */
