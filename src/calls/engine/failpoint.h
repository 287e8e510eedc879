/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failpoint.h - named places at which a test build kills or stops itself.
 *
 *    -DONCE_FAILPOINTS  compiles them in; without it they expand to nothing, so
 *                       that a release has none
 *    ONCE_FAILPOINT=NAME:COUNT:kill|stop
 *                       in the environment: the COUNT-th passing of NAME kills
 *                       the process (SIGKILL) or stops it (SIGSTOP)
 *
 * "claim-sent" is reached when a batch with a claim is about to be passed to
 * the store, and "claim-answered" when it is durable and no caller got the
 * reply yet. There are only crashes and pauses here; the store `faulty:` of the
 * tests makes errors.
 */
#ifndef ONCE_CALLS_ENGINE_FAILPOINT_H
#define ONCE_CALLS_ENGINE_FAILPOINT_H

#ifdef ONCE_FAILPOINTS

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <once/once.h>

static inline void once__failpoint(const char *name)
{
    static atomic_ulong passed; /* one rule a process, one name a file; it
                                 * counts, and orders nothing */
    const char *rule = getenv("ONCE_FAILPOINT");
    size_t size = strlen(name);
    char *end;

    if (rule == NULL || strncmp(rule, name, size) != 0 || rule[size] != ':')
        return;
    if (atomic_fetch_add(&passed, 1) + 1 != strtoul(rule + size + 1, &end, 10))
        return;
    (void)raise(strcmp(end, ":stop") == 0 ? SIGSTOP : SIGKILL);
}

/* "VERB-WHEN" for each operation of a batch. */
static inline void once__failpoint_batch(once_op *const *ops, size_t n,
                                         const char *when)
{
    static const char *const verbs[ONCE__OP_END] = {
        [ONCE_OP_CLAIM] = "claim",     [ONCE_OP_DISPATCH] = "mark",
        [ONCE_OP_RENEW] = "renew",     [ONCE_OP_COMPLETE] = "complete",
        [ONCE_OP_RELEASE] = "release", [ONCE_OP_GIVE_UP] = "give-up",
        [ONCE_OP_RESOLVE] = "resolve", [ONCE_OP_REOPEN] = "reopen",
    };
    char name[40];
    size_t i;

    for (i = 0; i < n; i++) {
        const char *verb = verbs[ops[i]->verb];

        if (verb == NULL)
            continue;
        (void)snprintf(name, sizeof(name), "%s-%s", verb, when);
        once__failpoint(name);
    }
}

#define ONCE_FAILPOINT(name) once__failpoint(name)
#define ONCE_FAILPOINT_BATCH(ops, n, when) once__failpoint_batch(ops, n, when)

#else

#define ONCE_FAILPOINT(name) ((void)0)
#define ONCE_FAILPOINT_BATCH(ops, n, when) ((void)0)

#endif

#endif /* ONCE_CALLS_ENGINE_FAILPOINT_H */
