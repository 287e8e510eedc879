/* SPDX-License-Identifier: Apache-2.0 */
/* stray.h - shared memory of journals that no process has open. */
#ifndef ONCE_CALLS_STORE_JOURNAL_STRAY_H
#define ONCE_CALLS_STORE_JOURNAL_STRAY_H

#include <once/once.h>

struct once__strays {
    uint64_t removed;
    uint64_t bytes;  /* of these                                            */
    uint64_t in_use; /* a process has it open                               */
    uint64_t others; /* of another PID namespace, version or program: left  */
};

/*
 * Removes from /dev/shm what processes left that were killed, and whose journal
 * no process opened again: it may be gone. ONCE_EOPEN: not all open files
 * can be seen, which is root's right; nothing is removed then. ONCE_ENOMEM.
 */
ONCE_CHECK int once__journal_strays(struct once__strays *out, once_error *err);

#endif /* ONCE_CALLS_STORE_JOURNAL_STRAY_H */
