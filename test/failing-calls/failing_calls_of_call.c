/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failing_calls_of_call.c - once_call() and its twin, while each allocation and each store call
 * fails in turn.
 *
 * Four calls and their repetitions: one that succeeds with a result, one that
 * fails, one that releases, one that is started and ended by another thread.
 * For n = 1, 2, 3 ... the n-th allocation fails, once or from then on, or the
 * n-th operation is refused or applied without an answer, until nothing is left
 * to fail. Afterwards everything works again and each key is asked for: nothing
 * has run twice, what was told stands, an error has meant that nothing ran, and
 * no block is left.
 */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <once/call.h>

#include "fault.h"
#include "t.h"

enum { STEPS_MAX = 20000, CALLS_OUT = 12 };
enum { PLAIN, FAILS, RELEASES, STARTED, KEYS };

struct key {
    int number;
    unsigned ran; /* times that it had its effect */
    int told;     /* ONCE_OK or ONCE_REPLAY was   */
    int unknown;  /* ONCE_UNKNOWN was             */
    int rc, code; /* of the last call             */
    char bytes[8];
    sem_t done;
};

static const char *const results[KEYS] = {"plain", "fails", "frees", "start"};

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

/* The result first, so that without memory nothing has been done. */
static int work(once_task *task, void *user)
{
    struct key *k = user;

    if (once_task_result(task, "text/plain", text(results[k->number]), NULL) !=
            ONCE_OK ||
        k->number == RELEASES) {
        once_task_release(task);
        return 9;
    }
    k->ran++;
    return k->number == FAILS;
}

static void begin(once_task *task, void *user)
{
    once_task_end(task, work(task, user));
}

static void note(struct key *k, int rc, const once_result *r)
{
    k->rc = rc;
    k->code = r->code;
    (void)snprintf(k->bytes, sizeof(k->bytes), "%.*s", (int)r->bytes.size,
                   r->bytes.size ? (const char *)r->bytes.data : "");
}

static void called(int rc, const once_result *result, void *user)
{
    struct key *k = user;

    note(k, rc, result);
    (void)sem_post(&k->done);
}

static void call(once_engine *e, struct key *k)
{
    once_call_options o = ONCE_CALL_OPTIONS_INIT;
    once_result r = ONCE_RESULT_INIT;
    int rc;

    o.key = text(results[k->number]);
    o.lease_ms = 50;
    o.store_ms = 30;
    if (k->number != STARTED) {
        rc = once_call(e, &o, work, k, NULL, &r);
        note(k, rc, &r);
        once_result_clear(&r);
        return;
    }
    rc = once_call_start(e, &o, begin, called, k, NULL);
    if (rc != ONCE_OK)
        note(k, rc, &r);
    else
        while (sem_wait(&k->done) != 0)
            ;
}

static void check(struct key *k, unsigned ran_before)
{
    int rc = k->rc, whole = rc == ONCE_OK || rc == ONCE_REPLAY;

    T_OK(k->ran <= 1);
    T_OK(whole || rc == ONCE_FREE || rc == ONCE_UNKNOWN ||
         rc == ONCE_IN_FLIGHT || rc == ONCE_ESTORE || rc == ONCE_ENOMEM);
    T_OK(rc >= 0 || k->ran == ran_before); /* an error: it has not run */
    T_OK(rc != ONCE_FREE || k->ran == ran_before);
    T_OK(!whole || k->ran == 1);
    T_OK(!whole || k->code == (k->number == FAILS));
    if (whole)
        T_STR(k->bytes, results[k->number]);
    T_OK(!k->told || whole || rc < 0); /* what was told stands */
    k->told |= whole;
    k->unknown |= rc == ONCE_UNKNOWN;
}

static void tour(once_engine *e, struct key *keys)
{
    int i;

    for (i = 0; i < 2 * KEYS; i++) {
        struct key *k = &keys[i % KEYS];
        unsigned ran = k->ran;

        call(e, k);
        check(k, ran);
    }
}

/* When all is well again: each key has an answer for good. */
static void aftermath(once_engine *e, struct key *keys)
{
    int i, patience;

    for (i = 0; i < KEYS; i++) {
        struct key *k = &keys[i];
        unsigned ran = k->ran;

        for (patience = 0; patience < 10000; patience++) {
            call(e, k);
            if (k->rc >= 0 && k->rc != ONCE_IN_FLIGHT)
                break;
        }
        T_OK(k->rc >= 0 && k->rc != ONCE_IN_FLIGHT);
        check(k, ran);
        T_OK(k->number == RELEASES || k->told || k->unknown);
    }
}

static void make_keys(struct key *keys)
{
    int i;

    memset(keys, 0, KEYS * sizeof(*keys));
    for (i = 0; i < KEYS; i++) {
        keys[i].number = i;
        if (sem_init(&keys[i].done, 0, 0) != 0)
            abort();
    }
}

static once_engine *open_engine(const char *url)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_engine *e = NULL;

    o.create = 1;
    if (once_engine_open(url, &o, NULL, &e) != ONCE_OK)
        abort();
    return e;
}

static void fail_allocations(int for_ever)
{
    uint64_t n, hits = 1;

    for (n = 1; hits > 0 && n < STEPS_MAX; n++) {
        once_engine *e = open_engine("memory:");
        struct key keys[KEYS];

        make_keys(keys);
        fault_arm(n, for_ever);
        tour(e, keys);
        hits = fault_disarm();
        aftermath(e, keys);
        once_engine_close(e);
        T_EQ(fault_live(), 0);
        if (t__bad > 0) {
            printf("#   that was allocation %llu\n", (unsigned long long)n);
            return;
        }
    }
    T_OK(n > 20 && n < STEPS_MAX);
    printf("#   %llu allocations\n", (unsigned long long)n - 1);
}

static void each_allocation_may_fail_once(void)
{
    fail_allocations(0);
}

static void allocations_may_fail_from_then_on(void)
{
    fail_allocations(1);
}

static void fail_calls(const char *what, uint64_t more)
{
    uint64_t n, hits = 1;

    for (n = 1; hits > 0 && n < STEPS_MAX; n++) {
        struct key keys[KEYS];
        once_stats stats;
        once_engine *e;
        char url[80];

        (void)snprintf(url, sizeof(url),
                       "faulty:%s=any:%llu-%llu@memory:", what,
                       (unsigned long long)n, (unsigned long long)(n + more));
        e = open_engine(url);
        make_keys(keys);
        tour(e, keys);
        once_engine_stats(e, &stats);
        hits = stats.unknown;
        aftermath(e, keys);
        once_engine_close(e);
        T_EQ(fault_live(), 0);
        if (t__bad > 0) {
            printf("#   that was %s\n", url);
            return;
        }
    }
    T_OK(n > 8 && n < STEPS_MAX);
    printf("#   %llu calls\n", (unsigned long long)n - 1);
}

static void each_store_call_may_fail(void)
{
    fail_calls("fail", 0);
}

static void each_answer_may_be_lost(void)
{
    fail_calls("lose", 0);
}

static void the_store_may_fail_for_a_while(void)
{
    fail_calls("fail", CALLS_OUT);
}

static void answers_may_be_lost_for_a_while(void)
{
    fail_calls("lose", CALLS_OUT);
}

int main(void)
{
    T_RUN(each_allocation_may_fail_once);
    T_RUN(allocations_may_fail_from_then_on);
    T_RUN(each_store_call_may_fail);
    T_RUN(each_answer_may_be_lost);
    T_RUN(the_store_may_fail_for_a_while);
    T_RUN(answers_may_be_lost_for_a_while);
    return t_done();
}
