/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_clock.c - how much time has certainly passed (core/clock.h).
 */
#include <string.h>

#include "calls/core/clock.h"
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
    w->c.every_ms = 1000;
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
        once__clock_put(&w->c, &w->t);
        once__clock_was_put(&w->c);
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

/* Somebody who did not look while the clock stood back must not undo it, and be
 * it for a moment. */
static void another_ones_step_back_counts(void)
{
    const uint64_t gaps[] = {3000, HOUR};
    struct world w;
    once_clock asleep;
    size_t i;

    for (i = 0; i < 2; i++) {
        w = new_world();
        (void)look(&w);
        pass(&w, HOUR);
        (void)look(&w);
        asleep = w.c;
        w.off = -(int64_t)(10 * 60000);
        (void)look(&w);
        w.off = 0;
        pass(&w, gaps[i]); /* and who was awake may have put more since */
        (void)look(&w);
        w.c = asleep;
        pass(&w, 100);
        near(look(&w), w.true_ms - 10 * 60000, 0);
    }
}

/* A clock that stands behind what is kept was set back, also for who is new. */
static void a_newcomer_notices_what_it_can(void)
{
    struct world w = new_world();
    once_clock here;
    uint64_t steady_ms;

    (void)look(&w);
    here = w.c;
    steady_ms = w.steady_ms;
    w.off = -(int64_t)(10 * 60000);
    anew(&w, 2, 1000, 1);
    (void)look(&w);
    w.off = 0;
    w.c = here;
    w.steady_ms = steady_ms + 1000;
    near(look(&w), w.true_ms - 10 * 60000, 0);
}

/* Seed 49935 of the simulator. One process is away; meanwhile the clock is set
 * back, another one comes, and cannot know that, since nobody has put how much
 * time had passed; then the clock is set ahead again, but by less. */
static void what_a_newcomer_could_not_notice_counts(void)
{
    struct world w = new_world();
    once_clock away;
    uint64_t kept_from;

    (void)look(&w);
    away = w.c;
    w.off = -20000;
    anew(&w, 2, 23000, 1);
    (void)look(&w);
    kept_from = w.t.now_ms; /* a record is completed here */
    pass(&w, 1000);
    (void)look(&w);
    w.off = -16000;
    pass(&w, 8000);
    w.c = away; /* its own steady clock, not that of host 2 */
    w.steady_ms = 5000 + 32000;
    T_OK(look(&w) <= kept_from + 9000 + 1000);
}

/* ... and a newcomer is new until the store has taken what it puts. */
static void what_could_not_be_put_is_put_at_the_next_look(void)
{
    struct world w = new_world();
    struct once__asked asked = {w.steady_ms, w.steady_ms};

    (void)look(&w);
    anew(&w, 2, 1000, 1);
    T_EQ(once__clock_take(&w.c, &w.t, &asked), 1); /* the store fails */
    pass(&w, 1000);
    (void)look(&w);
    T_EQ(w.puts, 2);
    pass(&w, 1000);
    (void)look(&w);
    T_EQ(w.puts, 2);
}

/* Who was not away keeps what it knew: others come and go all the time. */
static void newcomers_cost_nobody_any_time(void)
{
    struct world w = new_world();
    once_clock here;
    uint64_t steady_ms;
    int i;

    (void)look(&w);
    for (i = 0; i < 3600; i++) {
        here = w.c;
        steady_ms = w.steady_ms;
        anew(&w, 2, 0, 1);
        (void)look(&w);
        w.c = here;
        w.steady_ms = steady_ms;
        pass(&w, 1000);
        T_EQ(look(&w), w.true_ms);
    }
}

static void who_was_away_alone_keeps_what_it_knew(void)
{
    struct world w = new_world();

    (void)look(&w);
    pass(&w, DAY);
    T_EQ(look(&w), w.true_ms);
    host(&w, 2); /* also where another host has put what is kept */
    pass(&w, HOUR);
    T_EQ(look(&w), w.true_ms);
}

/* ---- Any history ------------------------------------------------------- */

enum { USERS = 4, STANDS = 64, EVERY = 1000 };

/* Several users of a store, and where its clock stood beside the true time. */
struct history {
    once_store_time t;
    uint64_t random, now_ms;
    int n;
    struct {
        int64_t off;
        uint64_t since_ms, until_ms;
        int looked, hidden;
    } stands[STANDS];
    struct {
        once_clock c;
        uint64_t next_ms, looked_ms; /* 0: it looks for the first time */
    } users[USERS];
};

static uint64_t below(struct history *h, uint64_t limit)
{
    h->random ^= h->random << 13;
    h->random ^= h->random >> 7;
    h->random ^= h->random << 17;
    return (h->random >> 11) % limit;
}

static void steps(struct history *h)
{
    int64_t by = 1500 + (int64_t)below(h, 20000);
    int n = h->n;

    if (n == STANDS)
        return;
    h->stands[n - 1].until_ms = h->now_ms;
    h->stands[n].off = h->stands[n - 1].off + (below(h, 2) ? by : -by);
    h->stands[n].since_ms = h->now_ms;
    h->n++;
}

/* What was completed at any time must not be forgotten before its time: who
 * looks may not be ahead of the lowest stand of the clock, but for those that
 * lay between two looks of somebody who looks regularly. */
static int lowest(const struct history *h, int64_t *off)
{
    int i, any = 0;

    for (i = 0; i < h->n; i++)
        if (h->stands[i].looked && !h->stands[i].hidden &&
            (!any || h->stands[i].off < *off)) {
            *off = h->stands[i].off;
            any = 1;
        }
    return any;
}

static int one_looks(struct history *h, int user)
{
    once_clock *c = &h->users[user].c;
    uint64_t steady_ms = h->now_ms + (uint64_t)user * 7777777;
    uint64_t looked_ms = h->users[user].looked_ms;
    struct once__asked asked = {steady_ms, steady_ms};
    int64_t off = 0;
    int i;

    if (looked_ms == 0)
        memset(c, 0, sizeof(*c));
    memset(c->host, 1 + user, ONCE_HOST_SIZE);
    c->every_ms = EVERY;
    for (i = 0; looked_ms != 0 && i < h->n - 1; i++)
        if (looked_ms < h->stands[i].since_ms &&
            h->now_ms - looked_ms <= 4 * (uint64_t)EVERY)
            h->stands[i].hidden = 1;
    h->stands[h->n - 1].looked = 1;
    h->t.now_ms = BORN + h->now_ms + (uint64_t)h->stands[h->n - 1].off;
    if (once__clock_take(c, &h->t, &asked)) {
        once__clock_put(c, &h->t);
        once__clock_was_put(c);
    }
    h->users[user].looked_ms = h->now_ms;
    return !lowest(h, &off) || (int64_t)(c->seen_ms - BORN - h->now_ms) <=
                                   off + 2500 + (int64_t)h->now_ms / 512;
}

/* 1: nobody was ahead. */
static int history(uint64_t seed)
{
    static struct history h;
    uint64_t end_ms, set, away, away_ms, gone;
    int i, user, users;

    memset(&h, 0, sizeof(h));
    h.random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    h.now_ms = 1;
    h.n = 1;
    for (i = 0; i < USERS; i++)
        h.users[i].next_ms = 1 + below(&h, EVERY);
    users = 2 + (int)below(&h, USERS - 1);
    set = 1 + below(&h, 100);
    away = below(&h, 300);
    away_ms = 1 + below(&h, 60000);
    gone = below(&h, 200);
    for (end_ms = 20000 + below(&h, 200000); h.now_ms < end_ms;) {
        for (i = user = 0; i < users; i++)
            if (h.users[i].next_ms < h.users[user].next_ms)
                user = i;
        while (h.now_ms + 200 < h.users[user].next_ms) {
            h.now_ms += 1 + below(&h, 200);
            if (below(&h, 1000) < set)
                steps(&h);
        }
        h.now_ms = h.users[user].next_ms;
        if (!one_looks(&h, user))
            return 0;
        h.users[user].next_ms = h.now_ms + EVERY / 2 + below(&h, EVERY);
        if (below(&h, 1000) < away)
            h.users[user].next_ms = h.now_ms + 1 + below(&h, away_ms);
        if (below(&h, 1000) < gone)
            h.users[user].looked_ms = 0;
    }
    return 1;
}

static void no_history_makes_anybody_forget_too_early(void)
{
    uint64_t seed;

    for (seed = 1; seed <= 20000; seed++)
        if (!history(seed))
            T_EQ(seed, 0); /* this one did */
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

/* ---- Keys that carry a time ---------------------------------------------- */

static void a_key_is_as_old_as_the_later_clock_says(void)
{
    enum { AGE = 1000, SOON = 300000, T = 9000000 };

    T_EQ(once__key_fits(T, AGE, T, T), ONCE_OK);
    T_EQ(once__key_fits(T, AGE, T + AGE, T + AGE), ONCE_OK);
    T_EQ(once__key_fits(T, AGE, T + AGE + 1, T), ONCE_EXPIRED);
    T_EQ(once__key_fits(T, AGE, T, T + AGE + 1), ONCE_EXPIRED);
    T_EQ(once__key_fits(0, AGE, T, T), ONCE_EXPIRED);
    /* From the future, by the earlier one. */
    T_EQ(once__key_fits(T + SOON, AGE, T, T), ONCE_OK);
    T_EQ(once__key_fits(T + SOON + 1, AGE, T, T + SOON), ONCE_TOO_SOON);
    T_EQ(once__key_fits(T + SOON + 1, AGE, T + SOON, T), ONCE_TOO_SOON);
    T_EQ(once__key_fits((UINT64_C(1) << 50) - 1, AGE, T, T), ONCE_TOO_SOON);
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
    T_RUN(a_newcomer_notices_what_it_can);
    T_RUN(what_a_newcomer_could_not_notice_counts);
    T_RUN(what_could_not_be_put_is_put_at_the_next_look);
    T_RUN(newcomers_cost_nobody_any_time);
    T_RUN(who_was_away_alone_keeps_what_it_knew);
    T_RUN(no_history_makes_anybody_forget_too_early);
    T_RUN(a_host_that_starts_with_a_wrong_clock_is_noticed);
    T_RUN(time_that_nobody_saw_counts_where_it_can_be_known);
    T_RUN(what_somebody_has_accepted_counts_for_all);
    T_RUN(a_store_that_has_lost_it_is_told_again);
    T_RUN(slow_answers_are_no_jumps);
    T_RUN(a_key_is_as_old_as_the_later_clock_says);
    return t_done();
}
