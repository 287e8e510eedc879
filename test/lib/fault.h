/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.h - allocations that fail on demand, and a count of what is not freed.
 *
 * Two ways in: our own objects are linked with --wrap for the names below, and
 * SQLite is given an allocator by its own interface. So it works under ASan,
 * too. What libc and libcrypto allocate for themselves never fails here.
 */
#ifndef TEST_FAULT_H
#define TEST_FAULT_H

#include <stdint.h>

/* For the linker: malloc calloc realloc free strdup strndup, and two others
 * that are refused for want of memory: pthread_create getrandom. */

/* Before SQLite is used, and again after each sqlite3_shutdown(). */
void fault_sqlite(void);
/* The n-th allocation from now on fails; `for_ever`: all after it, too. */
void fault_arm(uint64_t n, int for_ever);
/* From here on nothing fails. Returns how many have failed since arming. */
uint64_t fault_disarm(void);
/* Blocks that were handed out and not freed. */
int64_t fault_live(void);

#endif /* TEST_FAULT_H */
