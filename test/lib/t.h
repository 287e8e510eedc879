/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t.h - the test harness: a test is a function whose name is a sentence, a
 * file is a program that prints TAP.
 *
 *    static void late_complete_is_fenced(void) { T_EQ(apply(...), FENCED); }
 *    int main(void) { T_RUN(late_complete_is_fenced); return t_done(); }
 *
 * A failed check prints where, fails its test and goes on. It refuses to time
 * anything: machines are noisy. t_skip_all() ends a program with status 77.
 */
#ifndef TEST_T_H
#define TEST_T_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int t__number, t__failed, t__bad;

#ifdef __SANITIZE_THREAD__
#include <pthread.h>

/* A thread of a child gets the stack, and so the name, of a thread that only its
 * parent has, and ThreadSanitizer dies of it. A larger stack is a new one. */
static void t__larger_stacks(void)
{
    pthread_attr_t stack;
    size_t size;

    (void)pthread_getattr_default_np(&stack);
    (void)pthread_attr_getstacksize(&stack, &size);
    (void)pthread_attr_setstacksize(&stack, size + ((size_t)1 << 20));
    (void)pthread_setattr_default_np(&stack);
    (void)pthread_attr_destroy(&stack);
}

__attribute__((constructor)) static void t__at_fork(void)
{
    (void)pthread_atfork(NULL, NULL, t__larger_stacks);
}
#endif

#define T_OK(cond)                                                             \
    ((cond)                                                                    \
         ? 1                                                                   \
         : (t__bad++,                                                          \
            printf("#   %s:%d: not so: %s\n", __FILE__, __LINE__, #cond), 0))

#define T_EQ(a, b)                                                             \
    do {                                                                       \
        int64_t t__a = (int64_t)(a), t__b = (int64_t)(b);                      \
        if (t__a != t__b) {                                                    \
            t__bad++;                                                          \
            printf("#   %s:%d: %s is %" PRId64 ", not %s (%" PRId64 ")\n",     \
                   __FILE__, __LINE__, #a, t__a, #b, t__b);                    \
        }                                                                      \
    } while (0)

#define T_MEM(a, b, n) T_OK(memcmp((a), (b), (n)) == 0)
#define T_STR(a, b)                                                            \
    do {                                                                       \
        const char *t__a = (a), *t__b = (b);                                   \
        if (strcmp(t__a, t__b) != 0) {                                         \
            t__bad++;                                                          \
            printf("#   %s:%d: %s is \"%s\", not \"%s\"\n", __FILE__,          \
                   __LINE__, #a, t__a, t__b);                                  \
        }                                                                      \
    } while (0)

static inline void t_named(const char *name, void (*test)(void))
{
    t__bad = 0;
    test();
    t__failed += t__bad != 0;
    printf("%s %d - %s\n", t__bad ? "not ok" : "ok", ++t__number, name);
    fflush(stdout);
}

#define T_RUN(test) t_named(#test, test)

/* The same if `only` is NULL, or the name of this test. */
#define T_RUN_ONLY(only, test)                                                 \
    do {                                                                       \
        if ((only) == NULL || strcmp((only), #test) == 0)                      \
            T_RUN(test);                                                       \
    } while (0)

static inline int t_done(void)
{
    printf("1..%d\n", t__number);
    return t__failed != 0;
}

static inline void t_skip_all(const char *why)
{
    printf("1..0 # SKIP %s\n", why);
    exit(77);
}

#endif /* TEST_T_H */
