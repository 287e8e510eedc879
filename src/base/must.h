/* SPDX-License-Identifier: Apache-2.0 */
/*
 * must.h - what must hold, or a record would be lost or wrong.
 *
 * assert() is for mistakes that a test finds; a build with NDEBUG is
 * without it. ONCE__MUST() stays in every build: where it fails, the process
 * prints the place and aborts before it can write or answer. Only a mistake of
 * this program may make it fail, never what a file, a server or a caller holds:
 * that is an error to be returned.
 */
#ifndef ONCE_BASE_MUST_H
#define ONCE_BASE_MUST_H

#include <assert.h>

#ifdef NDEBUG /* then <assert.h> does not declare it */
extern void __assert_fail(const char *condition, const char *file,
                          unsigned int line, const char *function)
    __attribute__((noreturn));
#endif

#define ONCE__MUST(condition)                                                  \
    ((condition) ? (void)0                                                     \
                 : __assert_fail(#condition, __FILE__, __LINE__, __func__))

#endif /* ONCE_BASE_MUST_H */
