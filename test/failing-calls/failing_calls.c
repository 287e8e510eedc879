/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failing_calls.c - each allocation and each store call of the tour fails in turn.
 *
 *    failing_calls                every case, with strides where that is many
 *    failing_calls CASE [STRIDE]  one case; STRIDE 1 leaves nothing out
 *
 * For n = 1, 2, 3 ... the n-th one fails, once or from then on, until a tour is
 * over before the n-th came: then nothing is left to fail. After each tour the
 * fault ends, every key is asked for, a clean tour must succeed, and no block
 * may be left. Where allocations are refused to the end, the engine is closed
 * in want of memory, too. Whoever is told an error is told one that once.h
 * lists for that call: "memory" is never "damaged".
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fault.h"
#include "story.h"
#include "t.h"

enum { STEPS_MAX = 200000, CALLS_OUT = 40 };

static char folder[] = "/dev/shm/once-failing-XXXXXX";
static unsigned long stride = 1;
static uint64_t tours, faults;

/* ---- Files ------------------------------------------------------------- */

static const char *path_of(const char *end)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/store.db%s", folder, end);
    return path;
}

static void fresh(void)
{
    (void)unlink(path_of(""));
    (void)unlink(path_of("-wal"));
    (void)unlink(path_of("-shm"));
}

static const char *url_of(const char *store, const char *rule)
{
    static char url[256];

    if (strcmp(store, "memory") == 0)
        (void)snprintf(url, sizeof(url), "%smemory:", rule);
    else
        (void)snprintf(url, sizeof(url), "%ssqlite:%s", rule, path_of(""));
    return url;
}

static struct story new_story(uint32_t seed, int clean)
{
    struct story s;

    memset(&s, 0, sizeof(s));
    s.seed = seed;
    s.clean = clean;
    s.log = -1;
    return s;
}

/* ---- Afterwards -------------------------------------------------------- */

static unsigned clean_tour(once_engine *e)
{
    struct story s = new_story(2, 1);

    story_tell(&s, e);
    story_check(&s, e);
    return s.bad;
}

/* What was told must stand, in the same engine or in a new one. */
static unsigned aftermath(struct story *s, once_engine *e, const char *url)
{
    int own = e == NULL;

    s->clean = own;
    if (own)
        e = story_open(s, url);
    s->clean = 0;
    if (e == NULL)
        return s->bad;
    story_check(s, e);
    s->bad += clean_tour(e);
    if (own)
        once_engine_close(e);
    return s->bad;
}

static void check_blocks(struct story *s)
{
    (void)sqlite3_shutdown();
    if (fault_live() != 0)
        story_bad(s, "%lld blocks are left", (long long)fault_live());
}

/* ---- Allocations ------------------------------------------------------- */

/* A probe of the store by itself, as `once check` and nginx -t do it. */
static void probe(struct story *s, const char *url)
{
    int durable = -1, shared = -1, rc;

    rc = once_store_check(url, &durable, &shared, NULL);
    if (rc != ONCE_OK && rc != ONCE_ENOMEM && rc != ONCE_EOPEN)
        story_bad(s, "once_store_check answered %d", rc);
}

/* One tour; returns how many allocations were refused. */
static uint64_t refuse(const char *store, uint64_t n, int for_ever)
{
    const char *url = url_of(store, "");
    struct story s = new_story(1, 0);
    once_engine *e;
    uint64_t hits;
    int ends_poor;

    fresh();
    fault_sqlite();
    fault_arm(n, for_ever);
    probe(&s, url);
    e = story_open(&s, url);
    if (e != NULL)
        story_tell(&s, e);
    ends_poor = for_ever && strcmp(store, "memory") != 0;
    if (ends_poor) {
        once_engine_close(e);
        e = NULL;
    }
    hits = fault_disarm();
    if (e != NULL || strcmp(store, "memory") != 0)
        (void)aftermath(&s, e, url);
    once_engine_close(e);
    check_blocks(&s);
    if (s.bad > 0)
        printf("#   that was %s, allocation %llu, %s\n", store,
               (unsigned long long)n, for_ever ? "for ever" : "once");
    T_OK(s.bad == 0);
    return hits;
}

static void fail_allocations(const char *store, int for_ever)
{
    uint64_t n, hits = 1;

    for (n = 1; hits > 0 && n < STEPS_MAX; n += stride) {
        hits = refuse(store, n, for_ever);
        tours++;
        faults += hits;
    }
    T_OK(n > 1 + stride && n < STEPS_MAX);
    printf("#   %s: %llu allocations, every %lu. refused %s\n", store,
           (unsigned long long)(n - stride), stride,
           for_ever ? "for ever" : "once");
}

/*
 * Without memory the store's second thread did not let go of the lock under
 * which it makes room in the log, and no writer came in any more.
 */
static void a_lock_is_let_go_of_without_memory(void)
{
    const char *url = url_of("sqlite", "");
    uint64_t n, hits = 1;

    for (n = 1; hits > 0 && n < STEPS_MAX; n += stride) {
        struct story s = new_story(1, 1);
        once_engine *e;

        fresh();
        fault_sqlite();
        e = story_open(&s, url);
        s.clean = 0;
        s.fills = 1;
        if (!T_OK(e != NULL))
            return;
        fault_arm(n, 0);
        story_fill(&s, e);
        hits = fault_disarm();
        T_EQ(aftermath(&s, e, NULL), 0);
        once_engine_close(e);
        check_blocks(&s);
        tours++;
        faults += hits;
    }
    T_OK(n > 10 && n < STEPS_MAX);
}

static void memory_survives_each_refused_allocation(void)
{
    fail_allocations("memory", 0);
}

static void memory_survives_refusal_from_then_on(void)
{
    fail_allocations("memory", 1);
}

static void sqlite_survives_each_refused_allocation(void)
{
    fail_allocations("sqlite", 0);
}

static void sqlite_survives_refusal_from_then_on(void)
{
    fail_allocations("sqlite", 1);
}

/* ---- Store calls ------------------------------------------------------- */

static uint64_t calls_of(once_engine *e)
{
    once_stats stats;

    once_engine_stats(e, &stats);
    return stats.unknown;
}

/* Other tours until the store answers again: memory cannot be opened anew. */
static void outlast(struct story *s, once_engine *e)
{
    struct story more;

    do {
        more = new_story(3 + s->seed, 0);
        s->seed++;
        story_tell(&more, e);
        s->bad += more.bad;
    } while (more.bad == 0 && !more.keys[0].acknowledged);
    s->seed = 1;
}

/* One tour with the n-th operation refused, or applied without an answer. */
static uint64_t disturb(const char *store, const char *what, uint64_t n,
                        int go_on)
{
    struct story s = new_story(1, 0);
    char rule[80];
    once_engine *e;
    uint64_t hits;

    (void)snprintf(rule, sizeof(rule), "faulty:%s=any:%llu-%llu@", what,
                   (unsigned long long)n,
                   (unsigned long long)(go_on ? n + CALLS_OUT : n));
    fresh();
    fault_sqlite();
    e = story_open(&s, url_of(store, rule));
    T_OK(e != NULL);
    story_tell(&s, e);
    hits = calls_of(e);
    if (hits > 0 && strcmp(store, "memory") == 0) {
        outlast(&s, e);
        (void)aftermath(&s, e, NULL);
    }
    once_engine_close(e);
    if (hits > 0 && strcmp(store, "memory") != 0)
        (void)aftermath(&s, NULL, url_of(store, ""));
    check_blocks(&s);
    if (s.bad > 0)
        printf("#   that was %s%s\n", rule, store);
    T_OK(s.bad == 0);
    return hits;
}

static void fail_calls(const char *store, const char *what, int go_on)
{
    uint64_t n, hits = 1;

    for (n = 1; hits > 0 && n < STEPS_MAX; n += stride) {
        hits = disturb(store, what, n, go_on);
        tours++;
        faults += hits;
    }
    T_OK(n > 10 && n < STEPS_MAX);
    printf("#   %s: %llu calls, every %lu., %s, %s\n", store,
           (unsigned long long)(n - stride), stride, what,
           go_on ? "for a while" : "once");
}

static void each_store_call_may_fail(void)
{
    fail_calls("memory", "fail", 0);
    fail_calls("sqlite", "fail", 0);
}

static void each_answer_may_be_lost(void)
{
    fail_calls("memory", "lose", 0);
    fail_calls("sqlite", "lose", 0);
}

static void the_store_may_fail_for_a_while(void)
{
    fail_calls("memory", "fail", 1);
    fail_calls("sqlite", "fail", 1);
}

static void answers_may_be_lost_for_a_while(void)
{
    fail_calls("memory", "lose", 1);
    fail_calls("sqlite", "lose", 1);
}

/* ---- Running ----------------------------------------------------------- */

static void a_clean_tour_is_clean_and_leaves_nothing(void)
{
    struct story s = new_story(1, 0);
    once_engine *e;

    fresh();
    fault_sqlite();
    s.clean = 1;
    e = story_open(&s, url_of("sqlite", ""));
    if (T_OK(e != NULL)) {
        T_EQ(clean_tour(e), 0);
        once_engine_close(e);
    }
    check_blocks(&s);
    T_EQ(s.bad, 0);
}

#define CASE(name, often)                                                      \
    {                                                                          \
#name, name, often                                                     \
    }

/* With the stride of a short run. */
static const struct {
    const char *name;
    void (*test)(void);
    unsigned long stride;
} cases[] = {
    CASE(a_clean_tour_is_clean_and_leaves_nothing, 1),
    CASE(memory_survives_each_refused_allocation, 1),
    CASE(memory_survives_refusal_from_then_on, 1),
    CASE(sqlite_survives_each_refused_allocation, 83),
    CASE(sqlite_survives_refusal_from_then_on, 199),
    CASE(a_lock_is_let_go_of_without_memory, 3),
    CASE(each_store_call_may_fail, 1),
    CASE(each_answer_may_be_lost, 1),
    CASE(the_store_may_fail_for_a_while, 7),
    CASE(answers_may_be_lost_for_a_while, 7),
};

int main(int argc, char **argv)
{
    size_t i;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (mkdtemp(folder) == NULL)
        t_skip_all("no folder in /dev/shm");
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (argc > 1 && strstr(cases[i].name, argv[1]) == NULL)
            continue;
        stride = argc > 2 ? strtoul(argv[2], NULL, 10) : cases[i].stride;
        t_named(cases[i].name, cases[i].test);
    }
    printf("# %llu tours, %llu faults\n", (unsigned long long)tours,
           (unsigned long long)faults);
    fresh();
    (void)rmdir(folder);
    return t_done();
}
