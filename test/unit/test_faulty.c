/* SPDX-License-Identifier: Apache-2.0 */
/* test_faulty.c - it fails exactly when asked to, and understands its rules. */
#include <once/store.h>

#include "t.h"

static once_store *open_store(const char *url)
{
    once_store_options o = {.size = sizeof(o), .create = 1};
    once_store *s = NULL;
    once_error err = {0, ""};

    if (once_store_open(url, &o, &err, &s) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return s;
}

static once_op make(int verb, uint8_t key)
{
    once_op op;

    memset(&op, 0, sizeof(op));
    op.verb = verb;
    op.lease_ms = 1000;
    op.keep_ms = 1000;
    op.name[0] = key;
    op.token[0] = key;
    return op;
}

static int apply(once_store *s, once_op *op)
{
    once_error err = {0, ""};

    return s->ops->apply(s, &op, 1, &err);
}

/* Returns the batch's outcome; `key`s differ so that each claim is new. */
static int claim(once_store *s, uint8_t key)
{
    once_op op = make(ONCE_OP_CLAIM, key);

    return apply(s, &op);
}

static int show(once_store *s, uint8_t key)
{
    once_op op = make(ONCE_OP_SHOW, key);
    int rc = apply(s, &op);

    return rc == ONCE_OK ? op.rc : rc;
}

static void bad_fails_by_the_name(void)
{
    once_store *s = open_store("faulty:bad=claim:2-3@memory:");

    T_EQ(claim(s, 2), ONCE_ESTORE);
    T_EQ(claim(s, 4), ONCE_OK);
    T_EQ(claim(s, 3), ONCE_ESTORE);
    T_EQ(show(s, 3), ONCE_FREE);
    once_store_close(s);
}

static void fail_never_reaches_the_inner_store(void)
{
    once_store *s = open_store("faulty:fail=claim:2-3@memory:");

    T_EQ(claim(s, 1), ONCE_OK);
    T_EQ(claim(s, 2), ONCE_ESTORE);
    T_EQ(claim(s, 3), ONCE_ESTORE);
    T_EQ(claim(s, 4), ONCE_OK);
    T_EQ(show(s, 1), ONCE_IN_FLIGHT);
    T_EQ(show(s, 2), ONCE_FREE);
    T_EQ(show(s, 3), ONCE_FREE);
    once_store_close(s);
}

static void lose_applies_and_says_nothing(void)
{
    once_store *s = open_store("faulty:lose=claim:2@memory:");

    T_EQ(claim(s, 1), ONCE_OK);
    T_EQ(claim(s, 2), ONCE_ESTORE);
    T_EQ(claim(s, 3), ONCE_OK);
    T_EQ(show(s, 2), ONCE_IN_FLIGHT);
    once_store_close(s);
}

static void one_such_operation_fails_its_whole_batch(void)
{
    once_store *s = open_store("faulty:fail=read:1@memory:");
    once_op a = make(ONCE_OP_CLAIM, 1), b = make(ONCE_OP_READ, 2);
    once_op *both[] = {&a, &b};
    once_error err = {0, ""};

    T_EQ(s->ops->apply(s, both, 2, &err), ONCE_ESTORE);
    T_EQ(show(s, 1), ONCE_FREE);
    T_EQ(s->ops->apply(s, both, 2, &err), ONCE_OK);
    T_EQ(show(s, 1), ONCE_IN_FLIGHT);
    once_store_close(s);
}

static void any_counts_all_and_a_star_is_for_ever(void)
{
    once_store *s = open_store("faulty:delay_ms=1,lose=any:2-2,fail=any:4-*"
                               "@memory:");

    T_EQ(claim(s, 1), ONCE_OK);
    T_EQ(show(s, 1), ONCE_ESTORE);
    T_EQ(show(s, 1), ONCE_IN_FLIGHT);
    T_EQ(claim(s, 2), ONCE_ESTORE);
    T_EQ(show(s, 1), ONCE_ESTORE);
    once_store_close(s);
}

static void full_refuses_one_and_lets_the_others_pass(void)
{
    once_store *s = open_store("faulty:full=claim:2@memory:");
    once_op a = make(ONCE_OP_CLAIM, 1), b = make(ONCE_OP_CLAIM, 2),
            c = make(ONCE_OP_CLAIM, 3);
    once_op *ops[] = {&a, &b, &c};

    T_EQ(s->ops->apply(s, ops, 3, NULL), ONCE_OK);
    T_EQ(a.rc, ONCE_OWNER);
    T_EQ(b.rc, ONCE_EFULL);
    T_EQ(c.rc, ONCE_OWNER);
    T_EQ(show(s, 2), ONCE_FREE);
    once_store_close(s);
}

static void every_verb_has_a_name(void)
{
    static const char *const names[] = {
        "claim", "dispatch", "renew",   "complete", "release", "give_up",
        "read",  "reap",     "resolve", "reopen",   "forget",  "show"};
    char url[64];
    int i, n;

    for (i = 0; i < ONCE__OP_END - 1; i++) {
        once_op op = make(i + 1, 9), other = make(i == 0 ? 2 : 1, 9);
        once_store *s;

        op.kind = other.kind = ONCE_SUCCESS;
        n = snprintf(url, sizeof(url), "faulty:fail=%s:1-*@memory:", names[i]);
        T_OK(n > 0);
        s = open_store(url);
        T_EQ(apply(s, &other), ONCE_OK);
        T_EQ(apply(s, &op), ONCE_ESTORE);
        once_store_close(s);
    }
}

static void a_rule_that_is_not_one_is_named(void)
{
    static const char *const bad[][2] = {
        {"faulty:@memory:", "\"\""},
        {"faulty:memory:", "'@'"},
        {"faulty:fail=claim:0@memory:", "fail=claim:0"},
        {"faulty:fail=claim:3-2@memory:", "fail=claim:3-2"},
        {"faulty:fail=claim@memory:", "fail=claim"},
        {"faulty:fail=claim:-1@memory:", "fail=claim:-1"},
        {"faulty:fail=claim:+1@memory:", "fail=claim:+1"},
        {"faulty:fail=claim:1-@memory:", "fail=claim:1-"},
        {"faulty:fail=claim:1x@memory:", "fail=claim:1x"},
        {"faulty:fail=clai:1@memory:", "fail=clai:1"},
        {"faulty:fail=claim:99999999999999999999@memory:", "fail=claim:9"},
        {"faulty:delay_ms=@memory:", "delay_ms="},
        {"faulty:delay_ms=60001@memory:", "delay_ms=60001"},
        {"faulty:delay_ms=1,@memory:", "\"\""},
        {"faulty:delay_ms=1,hurt=claim:1@memory:", "\"hurt=claim:1\""},
        {"faulty:delay_ms=1@nosuch:", "scheme"},
        {"faulty:delay_ms=1@memory:x", "memory"},
    };
    once_store *s = NULL;
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        once_error err = {0, ""};

        T_EQ(once_store_open(bad[i][0], NULL, &err, &s), ONCE_EURL);
        if (!T_OK(strstr(err.text, bad[i][1]) != NULL))
            printf("#   %s: %s\n", bad[i][0], err.text);
    }
    T_OK(s == NULL);
}

static void it_is_as_durable_and_shared_as_what_is_inside(void)
{
    int durable = 9, shared = 9, inner_durable = 8, inner_shared = 8;

    T_EQ(once_store_check("memory:", &inner_durable, &inner_shared, NULL),
         ONCE_OK);
    T_EQ(once_store_check("faulty:delay_ms=0@memory:", &durable, &shared, NULL),
         ONCE_OK);
    T_EQ(durable, inner_durable);
    T_EQ(shared, inner_shared);
    T_EQ(durable, 0);
    T_EQ(shared, 0);
}

static int any(void *user, const uint8_t name[ONCE_NAME_SIZE],
               const once_record *r)
{
    (void)name;
    (void)r;
    ++*(int *)user;
    return 0;
}

static void it_can_be_stacked_and_scanned(void)
{
    once_store *s =
        open_store("faulty:fail=claim:1@faulty:fail=claim:1@memory:");
    once_error err = {0, ""};
    int shown = 0;

    T_EQ(claim(s, 1), ONCE_ESTORE);
    T_EQ(claim(s, 1), ONCE_ESTORE);
    T_EQ(claim(s, 1), ONCE_OK);
    T_EQ(s->ops->scan(s, ONCE_SCAN_ALL, NULL, 10, any, &shown, &err), 1);
    T_EQ(shown, 1);
    T_EQ(s->ops->maintain(s, &err), ONCE_OK);
    once_store_close(s);
    once_store_close(NULL);
}

int main(void)
{
    T_RUN(bad_fails_by_the_name);
    T_RUN(fail_never_reaches_the_inner_store);
    T_RUN(lose_applies_and_says_nothing);
    T_RUN(one_such_operation_fails_its_whole_batch);
    T_RUN(any_counts_all_and_a_star_is_for_ever);
    T_RUN(full_refuses_one_and_lets_the_others_pass);
    T_RUN(every_verb_has_a_name);
    T_RUN(a_rule_that_is_not_one_is_named);
    T_RUN(it_is_as_durable_and_shared_as_what_is_inside);
    T_RUN(it_can_be_stacked_and_scanned);
    return t_done();
}
