/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_row.c - every end of an attempt with every row and policy that differs,
 * against the rules, each said apart from the table that has them.
 */
#include "messages/core/row.h"

#include "t.h"

enum { ATTEMPTS = 3, FIRST_MS = 1000, MOST_MS = 8000 };

/* One row, its attempt's end, and what became of it. */
struct one {
    int end;
    struct once__row row;
    struct once__row_policy policy;
    uint64_t now_ms, retry_ms;
    struct once__row_next next;
};

/* ---- What each end says, in words ---------------------------------------- */

/* This attempt had no effect, and nobody doubts it. */
static int no_effect(int end)
{
    return end == ONCE__END_UNSENT || end == ONCE__END_AWAY ||
           end == ONCE__END_REFUSED || end == ONCE__END_REJECTED ||
           end == ONCE__END_FAILED;
}

/* The target itself said no to this row. */
static int said_no(int end)
{
    return end == ONCE__END_REFUSED || end == ONCE__END_NACKED ||
           end == ONCE__END_REJECTED || end == ONCE__END_FAILED;
}

/* The target's answer is about all attempts, not about this one. */
static int is_final(int end)
{
    return end == ONCE__END_TAKEN || end == ONCE__END_FAILED ||
           end == ONCE__END_UNKNOWN;
}

/* Attempts that may have been taken. */
static uint32_t in_doubt(const struct one *x)
{
    return x->row.doubt - (uint32_t)no_effect(x->end);
}

static int horizon_reached(const struct one *x)
{
    return x->policy.horizon_ms != 0 &&
           x->now_ms >= x->row.doubt_ms + x->policy.horizon_ms;
}

static int goes_on(const struct one *x)
{
    return x->next.phase == ONCE__ROW_READY ||
           x->next.phase == ONCE__ROW_WAITING;
}

/* ---- The rules ------------------------------------------------------------ */

typedef int rule(const struct one *x);

static int what_is_counted(const struct one *x)
{
    return x->next.harmless == no_effect(x->end) &&
           x->next.refused == said_no(x->end);
}

static int done_is_what_was_taken(const struct one *x)
{
    return (x->next.phase == ONCE__ROW_DONE) == (x->end == ONCE__END_TAKEN);
}

static int a_dead_row_was_provably_not_taken(const struct one *x)
{
    return x->next.phase != ONCE__ROW_DEAD || in_doubt(x) == 0 ||
           x->end == ONCE__END_FAILED;
}

static int a_held_row_in_doubt_is_not_sent_again(const struct one *x)
{
    return !x->policy.hold || in_doubt(x) == 0 || is_final(x->end) ||
           x->next.phase == ONCE__ROW_INDETERMINATE;
}

static int unknown_stays_unknown(const struct one *x)
{
    return x->end != ONCE__END_UNKNOWN ||
           x->next.phase == ONCE__ROW_INDETERMINATE;
}

static int without_doubt_no_row_is_indeterminate(const struct one *x)
{
    return x->next.phase != ONCE__ROW_INDETERMINATE || in_doubt(x) > 0 ||
           x->end == ONCE__END_UNKNOWN;
}

static int what_failed_for_good_is_dead(const struct one *x)
{
    return x->end != ONCE__END_FAILED || x->next.phase == ONCE__ROW_DEAD;
}

static int a_rejected_row_is_not_sent_again(const struct one *x)
{
    return x->end != ONCE__END_REJECTED || !goes_on(x);
}

static int the_last_refusal_ends_a_row(const struct one *x)
{
    return !said_no(x->end) || x->row.refused + 1 < ATTEMPTS || !goes_on(x);
}

static int the_horizon_ends_a_row_in_doubt(const struct one *x)
{
    return !horizon_reached(x) || in_doubt(x) == 0 || !goes_on(x);
}

/* Silence and targets that are away never do. */
static int nothing_else_ends_a_row(const struct one *x)
{
    int may = is_final(x->end) || x->end == ONCE__END_REJECTED ||
              (said_no(x->end) && x->row.refused + 1 >= ATTEMPTS) ||
              (in_doubt(x) > 0 && (x->policy.hold || horizon_reached(x)));

    return may || goes_on(x);
}

static int what_was_not_sent_is_ready_and_the_rest_waits(const struct one *x)
{
    return !goes_on(x) ||
           (x->next.phase == ONCE__ROW_READY) == (x->end == ONCE__END_UNSENT);
}

static int a_pause_is_within_its_limits(const struct one *x)
{
    uint64_t ms = x->next.wait_ms;

    if (x->next.phase != ONCE__ROW_WAITING)
        return ms == 0;
    return ms >= FIRST_MS && ms <= MOST_MS &&
           (ms >= x->retry_ms || ms == MOST_MS);
}

static int a_pause_doubles(const struct one *x)
{
    uint64_t n = (uint64_t)x->row.refused + x->row.doubt, ms = FIRST_MS;

    while (--n > 0)
        ms += ms;
    if (ms > MOST_MS)
        ms = MOST_MS;
    return x->next.phase != ONCE__ROW_WAITING || x->retry_ms != 0 ||
           x->next.wait_ms == ms;
}

/* ---- All of it ------------------------------------------------------------ */

static void each_row(struct one *x, rule *r, int *wrong)
{
    x->next =
        once__row_settle(&x->row, x->end, &x->policy, x->now_ms, x->retry_ms);
    if (r(x))
        return;
    if ((*wrong)++ == 0)
        printf("#   end %d, doubt %u, refused %u, hold %d, horizon %d, now %d: "
               "phase %d\n",
               x->end, x->row.doubt, x->row.refused, x->policy.hold,
               (int)x->policy.horizon_ms, (int)x->now_ms, x->next.phase);
}

static void each_policy(struct one *x, rule *r, int *wrong)
{
    static const uint64_t horizons[] = {0, 100, UINT64_MAX},
                          nows[] = {0, 999, 1000, 1099, 1100, 5000},
                          asked[] = {0, 5000, UINT64_MAX};
    size_t h, n, a;

    for (h = 0; h < 3; h++)
        for (n = 0; n < 6; n++)
            for (a = 0; a < 3; a++) {
                x->policy.horizon_ms =
                    horizons[h] == UINT64_MAX ? UINT64_MAX / 2 : horizons[h];
                x->now_ms = nows[n];
                x->retry_ms = asked[a];
                each_row(x, r, wrong);
            }
}

static int breaches(rule *r)
{
    struct one x;
    int wrong = 0;

    memset(&x, 0, sizeof(x));
    x.row.doubt_ms = 1000;
    for (x.end = ONCE__END_TAKEN; x.end <= ONCE__END_UNKNOWN; x.end++)
        for (x.row.doubt = 1; x.row.doubt <= 3; x.row.doubt++)
            for (x.row.refused = 0; x.row.refused <= ATTEMPTS; x.row.refused++)
                for (x.policy.hold = 0; x.policy.hold < 2; x.policy.hold++) {
                    x.policy.attempts = ATTEMPTS;
                    x.policy.first_ms = FIRST_MS;
                    x.policy.most_ms = MOST_MS;
                    each_policy(&x, r, &wrong);
                }
    return wrong;
}

static void the_rules_hold(void)
{
#define RULE(r)                                                                \
    do {                                                                       \
        int n = breaches(r);                                                   \
        if (n != 0)                                                            \
            printf("#   %s: %d times not so\n", #r, n);                        \
        t__bad += n != 0;                                                      \
    } while (0)
    RULE(what_is_counted);
    RULE(done_is_what_was_taken);
    RULE(a_dead_row_was_provably_not_taken);
    RULE(a_held_row_in_doubt_is_not_sent_again);
    RULE(unknown_stays_unknown);
    RULE(without_doubt_no_row_is_indeterminate);
    RULE(what_failed_for_good_is_dead);
    RULE(a_rejected_row_is_not_sent_again);
    RULE(the_last_refusal_ends_a_row);
    RULE(the_horizon_ends_a_row_in_doubt);
    RULE(nothing_else_ends_a_row);
    RULE(what_was_not_sent_is_ready_and_the_rest_waits);
    RULE(a_pause_is_within_its_limits);
    RULE(a_pause_doubles);
}

/* Values that a damaged row, or options of zero, would bring. */
static void extremes_end_at_once(void)
{
    struct once__row row = {UINT32_MAX, UINT32_MAX, 0};
    struct once__row_policy policy = {UINT32_MAX, 0, 0, 0, UINT32_MAX, 0};
    struct once__row_next next =
        once__row_settle(&row, ONCE__END_SILENT, &policy, 0, 0);

    T_EQ(next.phase, ONCE__ROW_WAITING);
    T_EQ(next.wait_ms, 0);
    policy.first_ms = UINT32_MAX;
    policy.horizon_ms = 1;
    row.doubt_ms = UINT64_MAX; /* a clock that went back */
    next = once__row_settle(&row, ONCE__END_SILENT, &policy, 0, 0);
    T_EQ(next.phase, ONCE__ROW_WAITING);
    T_EQ(next.wait_ms, UINT32_MAX);
}

/* As long as its doubt is small, and only where a repeat is recognised. */
static void an_answer_of_unknown_may_be_asked_for_again(void)
{
    struct once__row row = {3, 0, 0};
    struct once__row_policy policy = {ATTEMPTS, 0, 0, FIRST_MS, MOST_MS, 3};
    struct once__row_next next =
        once__row_settle(&row, ONCE__END_UNKNOWN, &policy, 0, 0);

    T_EQ(next.phase, ONCE__ROW_WAITING);
    T_EQ(next.harmless, 0);
    T_EQ(next.refused, 0);
    T_EQ(next.wait_ms, 4 * FIRST_MS);
    row.doubt = 4;
    next = once__row_settle(&row, ONCE__END_UNKNOWN, &policy, 0, 0);
    T_EQ(next.phase, ONCE__ROW_INDETERMINATE);
    row.doubt = 1;
    policy.hold = 1;
    next = once__row_settle(&row, ONCE__END_UNKNOWN, &policy, 0, 0);
    T_EQ(next.phase, ONCE__ROW_INDETERMINATE);
}

int main(void)
{
    T_RUN(the_rules_hold);
    T_RUN(extremes_end_at_once);
    T_RUN(an_answer_of_unknown_may_be_asked_for_again);
    return t_done();
}
