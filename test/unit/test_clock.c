/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_clock.c - how much time has certainly passed (core/clock.h).
 */
#include <string.h>

#include "core/clock.h"
#include "t.h"

#define HOUR UINT64_C(3600000)
#define DAY (24 * HOUR)
#define BORN UINT64_C(1700000000000)

/* A store, a host, and how their clocks stand. */
struct world {
    once_store_time t;
    once_clock c;
    uint64_t true_ms, steady_ms; /* what has passed; ours since our start */
    int64_t off;                 /* how far the store's clock is ahead    */
    uint64_t delay_ms;           /* of a question                         */
    unsigned puts;
};

static void host(struct world *w, int number)
{
    memset(w->c.host, number, ONCE_HOST_SIZE);
}

static struct world new_world(void)
{
    struct world w;

    memset(&w, 0, sizeof(w));
    w.true_ms = BORN;
    w.steady_ms = 5000;
    host(&w, 1);
    return w;
}

static uint64_t look(struct world *w)
{
    struct once__asked asked = {w->steady_ms, w->steady_ms + w->delay_ms};

    w->t.now_ms = (uint64_t)((int64_t)(w->true_ms + w->delay_ms / 2) + w->off);
    w->true_ms += w->delay_ms;
    w->steady_ms += w->delay_ms;
    if (once__clock_take(&w->c, &w->t, &asked)) {
        w->t.seen_ms = w->c.seen_ms;
        w->t.backs = w->c.backs;
        w->t.steady_ms = w->c.before_ms;
        memcpy(w->t.host, w->c.host, ONCE_HOST_SIZE);
        w->puts++;
    }
    return w->c.seen_ms;
}

static void pass(struct world *w, uint64_t ms)
{
    w->true_ms += ms;
    w->steady_ms += ms;
}

/* A new engine, after `gone_ms`, on the host `number`. */
static void anew(struct world *w, int number, uint64_t gone_ms, int booted)
{
    memset(&w->c, 0, sizeof(w->c));
    host(w, number);
    w->true_ms += gone_ms;
    w->steady_ms = booted ? 3000 : w->steady_ms + gone_ms;
}

/* Off by less than a part of what has passed, and never ahead by more. */
static void near(uint64_t is, uint64_t wanted, uint64_t short_ms)
{
    T_OK(is <= wanted + DAY / 500);
    T_OK(is + short_ms >= wanted);
}

static void it_never_goes_faster_than_what_passed(void)
{
    T_EQ(once__clock_pass(1000, 0, 5000), 1000);
    T_EQ(once__clock_pass(1000, 500, 5000), 1500);
    T_EQ(once__clock_pass(1000, 500, 1200), 1200);
    T_EQ(once__clock_pass(1000, 500, 900), 900);
    T_EQ(once__clock_pass(0, 1024000, UINT64_MAX), 1025000);
}

static void a_new_stores_clock_is_believed_and_followed(void)
{
    struct world w = new_world();
    int i;

    T_EQ(look(&w), BORN);
    T_EQ(w.puts, 1);
    for (i = 0; i < 3600; i++) {
        pass(&w, 1000);
        T_EQ(look(&w), w.true_ms);
        T_EQ(w.c.behind_ms, 0);
        T_EQ(w.c.jumped_ms, 0);
    }
    T_OK(w.puts < 150); /* not each time */
}

static void a_jump_ahead_is_not_followed(void)
{
    struct world w = new_world();

    (void)look(&w);
    pass(&w, 1000);
    w.off = (int64_t)(25 * HOUR);
    near(look(&w), w.true_ms, 0);
    T_EQ(w.c.jumped_ms, 25 * HOUR);
    T_OK(w.c.behind_ms + DAY / 1000 > 25 * HOUR);
    pass(&w, DAY);
    near(look(&w), w.true_ms, 0);
    T_EQ(w.c.jumped_ms, 0); /* it is told once */
    w.off = 0;
    pass(&w, 1000);
    near(look(&w), w.true_ms, 0);
    T_OK(w.c.jumped_ms < 0);
    T_EQ(w.c.behind_ms, 0);
}

/* Each round a little less than what would be a jump. */
static void many_small_steps_are_no_way_around_it(void)
{
    struct world w = new_world();
    int i;

    (void)look(&w);
    for (i = 0; i < 3600; i++) {
        pass(&w, 1000);
        w.off += 900;
        near(look(&w), w.true_ms, 0);
        T_EQ(w.c.jumped_ms, 0);
    }
    T_OK(w.c.behind_ms > 53 * 60000);
}

static void a_clock_that_is_a_little_fast_is_followed(void)
{
    struct world w = new_world();
    int i;

    (void)look(&w);
    for (i = 0; i < 3600; i++) {
        pass(&w, 1000);
        w.off += i % 2; /* 500 of a million */
        (void)look(&w);
        T_EQ(w.c.behind_ms, 0);
    }
}

static void a_step_back_is_taken_at_once_and_kept(void)
{
    struct world w = new_world();

    (void)look(&w);
    pass(&w, HOUR);
    (void)look(&w);
    w.off = -(int64_t)(10 * 60000);
    T_EQ(look(&w), w.true_ms - 10 * 60000);
    T_OK(w.c.jumped_ms < 0);
    T_EQ(w.t.seen_ms, w.c.seen_ms); /* also for those who start now */
    pass(&w, 1000);
    w.off = 0;
    near(look(&w), w.true_ms - 10 * 60000, 0);
    anew(&w, 1, 1000, 0);
    near(look(&w), w.true_ms - 10 * 60000, 0);
}

/* Somebody who slept through the step back must not undo it. */
static void another_ones_step_back_counts(void)
{
    struct world w = new_world();
    once_clock asleep;

    (void)look(&w);
    pass(&w, HOUR);
    (void)look(&w);
    asleep = w.c;
    w.off = -(int64_t)(10 * 60000);
    (void)look(&w);
    w.off = 0;
    w.steady_ms += HOUR; /* and who was awake has told the store again */
    w.true_ms += HOUR;
    (void)look(&w);
    w.c = asleep;
    pass(&w, 1000);
    near(look(&w), w.true_ms - 10 * 60000, 0);
}

static void a_host_that_starts_with_a_wrong_clock_is_noticed(void)
{
    struct world w = new_world();

    (void)look(&w);
    pass(&w, DAY);
    (void)look(&w);
    w.off = (int64_t)(25 * HOUR);
    anew(&w, 1, 0, 1);
    host(&w, 2); /* another start is another one */
    near(look(&w), w.true_ms, 60000);
    T_OK(w.c.behind_ms >= 25 * HOUR);
    pass(&w, HOUR);
    near(look(&w), w.true_ms, 60000);
}

/* Nobody was there: this host's steady clock knows, another one's does not. */
static void time_that_nobody_saw_counts_where_it_can_be_known(void)
{
    struct world w = new_world();

    (void)look(&w);
    anew(&w, 1, 2 * DAY, 0);
    T_EQ(look(&w), w.true_ms);
    anew(&w, 2, 2 * DAY, 1);
    near(look(&w), w.true_ms - 2 * DAY, 60000);
    T_EQ(w.puts, 3);
    pass(&w, DAY); /* once is enough: from then on it is seen to pass */
    near(look(&w), w.true_ms - 2 * DAY, 60000);
    anew(&w, 2, HOUR, 0);
    near(look(&w), w.true_ms - 2 * DAY, 60000);
}

static void what_somebody_has_accepted_counts_for_all(void)
{
    struct world w = new_world();

    (void)look(&w);
    w.off = (int64_t)DAY;
    pass(&w, 1000);
    (void)look(&w);
    T_OK(w.c.behind_ms > 0);
    w.t.seen_ms = w.t.now_ms; /* once_store_clock_accept() elsewhere */
    pass(&w, 1000);
    (void)look(&w);
    T_OK(w.c.behind_ms <= 1000);
}

static void a_store_that_has_lost_it_is_told_again(void)
{
    struct world w = new_world();

    (void)look(&w);
    w.off = (int64_t)DAY;
    pass(&w, 1000);
    memset(&w.t, 0, sizeof(w.t));
    near(look(&w), w.true_ms, 0);
    T_EQ(w.t.seen_ms, w.c.seen_ms);
}

/* A slow answer is no jump, and what it hides adds up to nothing. */
static void slow_answers_are_no_jumps(void)
{
    struct world w = new_world();
    int i;

    for (i = 0; i < 1000; i++) {
        w.delay_ms = i % 3 == 0 ? 5000 : 0;
        (void)look(&w);
        T_EQ(w.c.jumped_ms, 0);
        T_OK(w.c.seen_ms <= w.true_ms + 5000);
        T_OK(w.c.seen_ms + 10000 >= w.true_ms);
        pass(&w, 1000);
    }
}

int main(void)
{
    T_RUN(it_never_goes_faster_than_what_passed);
    T_RUN(a_new_stores_clock_is_believed_and_followed);
    T_RUN(a_jump_ahead_is_not_followed);
    T_RUN(many_small_steps_are_no_way_around_it);
    T_RUN(a_clock_that_is_a_little_fast_is_followed);
    T_RUN(a_step_back_is_taken_at_once_and_kept);
    T_RUN(another_ones_step_back_counts);
    T_RUN(a_host_that_starts_with_a_wrong_clock_is_noticed);
    T_RUN(time_that_nobody_saw_counts_where_it_can_be_known);
    T_RUN(what_somebody_has_accepted_counts_for_all);
    T_RUN(a_store_that_has_lost_it_is_told_again);
    T_RUN(slow_answers_are_no_jumps);
    return t_done();
}
