/* SPDX-License-Identifier: Apache-2.0 */
/*
 * robust.h - tests in which a process dies with a lock.
 *
 * A kernel lets go of what a dead process had locked, and says so to the next one
 * (robust mutexes). qemu-user leaves it locked for ever: it knows of no robust
 * lists, and says that when it is asked for one.
 */
#ifndef TEST_STORE_ROBUST_H
#define TEST_STORE_ROBUST_H

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int dead_ones_let_go(void)
{
    void *head;
    size_t size;

    return syscall(SYS_get_robust_list, 0, &head, &size) == 0;
}

/* RUN(), where that is so. */
#define RUN_DEATH(test)                                                        \
    do {                                                                       \
        if (dead_ones_let_go())                                                \
            RUN(test);                                                         \
        else                                                                   \
            printf("# left out, qemu-user has no robust locks: %s\n", #test);  \
    } while (0)

#endif /* TEST_STORE_ROBUST_H */
