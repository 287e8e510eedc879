/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.h - a process that dies at its n-th store to a journal's shared memory.
 *
 *    watch_begin(n)  protects the memory
 *    a store         faults: it is counted. The n-th is the end; any other is
 *                    let through alone, and the memory is protected again
 *    watch_end()     how many there were
 *
 * So a test can die before each single change, without any switch in what is
 * tested. It needs a processor that stops after one instruction when told so
 * (x86-64), and no sanitizer that delays signals: WATCH_WORKS says so.
 */
#ifndef TEST_STORE_WATCH_H
#define TEST_STORE_WATCH_H

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define WATCH_WORKS 1
#else
#define WATCH_WORKS 0
#endif

/* A sanitizer makes more and slower stores: then some deaths are left out. */
#ifdef __SANITIZE_ADDRESS__
enum { WATCH_SLOWER = 5 };
#else
enum { WATCH_SLOWER = 1 };
#endif

enum { WATCH_RANGES = 64, WATCH_STEP = 0x100 /* the processor's trap flag */ };

static struct {
    struct {
        uintptr_t from, to;
    } ranges[WATCH_RANGES];
    int count;
    int last; /* the store that is the end; 0: none */
    atomic_int met;
} watch;

/* Of all that is mapped now, also by other handles of this process. */
static void watch_find(void)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned long from, to;

    watch.count = 0;
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (strstr(line, "/dev/shm/once-") == NULL ||
            sscanf(line, "%lx-%lx", &from, &to) != 2 ||
            watch.count == WATCH_RANGES)
            continue;
        watch.ranges[watch.count].from = from;
        watch.ranges[watch.count++].to = to;
    }
    if (f != NULL)
        (void)fclose(f);
}

static void watch_protect(int how)
{
    int i;

    for (i = 0; i < watch.count; i++)
        if (mprotect((void *)watch.ranges[i].from,
                     watch.ranges[i].to - watch.ranges[i].from, how) != 0)
            _exit(9);
}

static int watch_has(uintptr_t at)
{
    int i;

    for (i = 0; i < watch.count; i++)
        if (at >= watch.ranges[i].from && at < watch.ranges[i].to)
            return 1;
    return 0;
}

#if WATCH_WORKS

static void watch_fault(int number, siginfo_t *info, void *context)
{
    ucontext_t *c = context;

    (void)number;
    if (!watch_has((uintptr_t)info->si_addr))
        _exit(8);
    watch_protect(PROT_READ | PROT_WRITE); /* also for the kernel, which notes
                                            * in there whose lock was left */
    if (atomic_fetch_add(&watch.met, 1) + 1 == watch.last)
        (void)kill(getpid(), SIGKILL);
    c->uc_mcontext.gregs[REG_EFL] |= WATCH_STEP;
    (void)sigdelset(&c->uc_sigmask, SIGTRAP); /* helper threads block it */
}

static void watch_stepped(int number, siginfo_t *info, void *context)
{
    ucontext_t *c = context;

    (void)number;
    (void)info;
    watch_protect(PROT_READ);
    c->uc_mcontext.gregs[REG_EFL] &= ~WATCH_STEP;
}

#else
static void watch_fault(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    _exit(number);
}
#define watch_stepped watch_fault
#endif

static void watch_begin(int last)
{
    struct sigaction a;

    memset(&a, 0, sizeof(a));
    a.sa_flags = SA_SIGINFO | SA_NODEFER;
    a.sa_sigaction = watch_fault;
    (void)sigaction(SIGSEGV, &a, NULL);
    a.sa_sigaction = watch_stepped;
    (void)sigaction(SIGTRAP, &a, NULL);
    watch_find();
    watch.last = last;
    atomic_store(&watch.met, 0);
    watch_protect(PROT_READ);
}

static int watch_end(void)
{
    watch_protect(PROT_READ | PROT_WRITE);
    return atomic_load(&watch.met);
}

#endif /* TEST_STORE_WATCH_H */
