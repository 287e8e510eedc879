/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_saga.c - every saga of one to three steps, with and without Confirm and
 * Cancel, through every order of events: calls that end in each way, that end
 * again, late or of a saga that wants them no more, the deadline, and an
 * operator's abort, retry and resolve.
 *
 * The world holds the saga, the calls that are under way, and what really became
 * of each call, in books of its own. Each rule below is looked at in each state
 * that can be reached; a breach prints the way to it.
 */
#include "messages/core/saga.h"

#include "messages/core/row.h"
#include "t.h"

enum {
    STEPS = 3,
    OPS = 4,        /* by enum once_branch_op */
    ROUNDS = 2,     /* retries beyond that lead nowhere new */
    WAYS = 1 << 14, /* longest way to a state, in events */
    TABLE = 1 << 20
};

/* Small, without holes, so that it can be compared as bytes. */
struct world {
    uint8_t state, n;
    uint8_t step[STEPS], failed[STEPS], round[STEPS];
    uint8_t has[STEPS];                   /* 1 Confirm, 2 Cancel          */
    uint8_t live[STEPS][OPS][ROUNDS + 1]; /* a call is under way          */
    uint8_t made[STEPS][OPS][ROUNDS + 1]; /* a call was made              */
    uint8_t done[STEPS][OPS];             /* it was done, or resolved     */
};

struct node {
    struct world w;
    int32_t from;
    char how[24];
};

static struct node *nodes;
static int32_t count, *table;
static int broken;

/* ---- Rules ---------------------------------------------------------------- */

static void say(int32_t at)
{
    char way[64][24];
    int i, n = 0;

    for (; at > 0 && n < 64; at = nodes[at].from)
        (void)snprintf(way[n++], 24, "%s", nodes[at].how);
    for (i = n; i-- > 0;)
        printf("#     %s\n", way[i]);
}

#define RULE(holds, text)                                                      \
    do {                                                                       \
        if (!(holds) && broken++ == 0) {                                       \
            printf("#   broken: %s\n", text);                                  \
            say(from);                                                         \
            printf("#     %s\n", how);                                         \
        }                                                                      \
    } while (0)

static int any(uint8_t calls[STEPS][OPS][ROUNDS + 1], int op)
{
    int i, r, found = 0;

    for (i = 0; i < STEPS; i++)
        for (r = 0; r <= ROUNDS; r++)
            found |= calls[i][op][r];
    return found;
}

/* What is said of each state that can be reached. */
static void judge(struct world *w, int32_t from, const char *how)
{
    int i, r, stuck = 0;

    RULE(!any(w->made, ONCE_CONFIRM) || !any(w->made, ONCE_CANCEL),
         "no saga has a Confirm and a Cancel");
    RULE(w->state != ONCE__SAGA_GOING || any(w->live, ONCE_TRY),
         "a saga that goes on has a Try under way");
    RULE(w->state != ONCE__SAGA_CONFIRMING || any(w->live, ONCE_CONFIRM),
         "a saga that confirms has a Confirm under way");
    RULE(w->state != ONCE__SAGA_UNDOING || any(w->live, ONCE_CANCEL),
         "a saga that undoes has a Cancel under way");
    RULE(w->state != ONCE__SAGA_DONE ||
             (!any(w->live, ONCE_TRY) && !any(w->live, ONCE_CONFIRM)),
         "a saga that is done has no call under way");
    RULE(w->state != ONCE__SAGA_UNDONE || !any(w->live, ONCE_CANCEL),
         "a saga that is undone has no Cancel under way");
    for (i = 0; i < w->n; i++)
        stuck |= w->failed[i] != 0;
    RULE(stuck == (w->state == ONCE__SAGA_STUCK),
         "a saga is stuck if and only if one of its calls failed");
    for (i = 0; i < w->n; i++) {
        int begun = w->made[i][ONCE_TRY][0];

        RULE(w->state != ONCE__SAGA_DONE || w->done[i][ONCE_TRY],
             "done: each step was tried");
        RULE(w->state != ONCE__SAGA_DONE || !(w->has[i] & 1) ||
                 w->done[i][ONCE_CONFIRM],
             "done: each step with a Confirm was confirmed");
        RULE(w->state != ONCE__SAGA_UNDONE || !begun || !(w->has[i] & 2) ||
                 w->done[i][ONCE_CANCEL],
             "undone: each step that was begun was cancelled");
        for (r = 1; r <= ROUNDS; r++)
            RULE(!w->made[i][ONCE_TRY][r], "a Try is called once");
    }
}

/* What is said of each call that is made. */
static void judge_call(struct world *w, const struct once__saga_call *c,
                       int again, int32_t from, const char *how)
{
    int i;

    RULE(c->step < w->n && c->op >= ONCE_TRY && c->op <= ONCE_CANCEL &&
             c->round <= ROUNDS,
         "a call is of a step");
    RULE(c->op == ONCE_TRY ||
             (w->has[c->step] & (c->op == ONCE_CONFIRM ? 1 : 2)),
         "a call has a route");
    RULE(again || !w->made[c->step][c->op][c->round], "no call is made twice");
    RULE(!w->live[c->step][c->op][c->round], "no call is under way twice");
    if (c->op == ONCE_TRY) {
        RULE(!any(w->made, ONCE_CANCEL), "no Try after a Cancel");
        for (i = 0; i < (int)c->step; i++)
            RULE(w->done[i][ONCE_TRY], "no Try before the one before is done");
    }
    for (i = 0; c->op == ONCE_CONFIRM && i < w->n; i++)
        RULE(w->done[i][ONCE_TRY], "no Confirm before all Tries are done");
    for (i = (int)c->step + 1; c->op == ONCE_CANCEL && i < w->n; i++)
        RULE(!w->made[i][ONCE_TRY][0] || !(w->has[i] & 2) ||
                 w->done[i][ONCE_CANCEL],
             "the last step is cancelled first");
    if (c->op == ONCE_CANCEL)
        RULE(w->made[c->step][ONCE_TRY][0], "only what was begun is cancelled");
}

/* ---- The world ------------------------------------------------------------ */

static struct once__saga saga_of(const struct world *w)
{
    struct once__saga s = {.state = w->state, .n = w->n};
    int i;

    for (i = 0; i < w->n; i++)
        s.step[i] = (struct once__step){w->step[i], w->failed[i], w->round[i],
                                        w->has[i] & 1, (w->has[i] & 2) != 0};
    return s;
}

static uint32_t hash_of(const struct world *w)
{
    const uint8_t *p = (const uint8_t *)w;
    uint32_t h = 2166136261u;
    size_t i;

    for (i = 0; i < sizeof(*w); i++)
        h = (h ^ p[i]) * 16777619u;
    return h;
}

/* Adds a state unless it is known. */
static void add(const struct world *w, int32_t from, const char *how)
{
    uint32_t at = hash_of(w) % TABLE;

    for (; table[at] != 0; at = (at + 1) % TABLE)
        if (memcmp(&nodes[table[at]].w, w, sizeof(*w)) == 0)
            return;
    if (count == WAYS * 8) {
        broken++;
        printf("#   too many states\n");
        return;
    }
    table[at] = count;
    nodes[count].w = *w;
    nodes[count].from = from;
    (void)snprintf(nodes[count].how, sizeof(nodes[count].how), "%s", how);
    count++;
}

/* One event, and what the books say after it. 1: it fitted. */
static int happen(struct world w, struct once__saga_event e, int32_t from,
                  const char *how)
{
    struct once__saga s = saga_of(&w), before = s;
    struct once__saga_next next = once__saga_next(&s, &e);
    size_t i, k;

    if (!next.fits) {
        RULE(memcmp(&s, &before, sizeof(s)) == 0 && next.n == 0,
             "an event that does not fit changes nothing");
    }
    for (i = 0; i < next.n; i++) {
        const struct once__saga_call *c = &next.call[i];

        if (c->round > ROUNDS)
            return 1; /* further than we look */
        judge_call(&w, c,
                   e.what == ONCE__SAGA_RETRY &&
                       before.step[c->step].failed == ONCE__ROW_INDETERMINATE,
                   from, how);
        w.live[c->step][c->op][c->round] = 1;
        w.made[c->step][c->op][c->round] = 1;
    }
    if (w.state == ONCE__SAGA_GOING && s.state != ONCE__SAGA_GOING)
        RULE(once__saga_unwanted(&s, ONCE_TRY), "no Try is wanted any more");
    w.state = (uint8_t)s.state;
    for (k = 0; k < w.n; k++) {
        w.step[k] = (uint8_t)s.step[k].state;
        w.failed[k] = (uint8_t)s.step[k].failed;
        w.round[k] = (uint8_t)s.step[k].round;
    }
    judge(&w, from, how);
    add(&w, from, how);
    return next.fits;
}

/* A call ends: under way or not, wanted or not. */
static void end_call(const struct world *w, size_t step, int op, int round,
                     int32_t from)
{
    static const char *const ops[] = {"", "try", "confirm", "cancel"};
    struct once__saga_event e = {ONCE__SAGA_ENDED, step, op, (uint32_t)round,
                                 0};
    char how[24];

    for (e.phase = ONCE__ROW_READY; e.phase <= ONCE__ROW_INDETERMINATE;
         e.phase++) {
        struct world then = *w;
        int live = step < w->n && round <= ROUNDS && w->live[step][op][round];

        (void)snprintf(how, sizeof(how), "%s %zu.%d: phase %d%s", ops[op],
                       step + 1, round, e.phase, live ? "" : " again");
        if (live && e.phase >= ONCE__ROW_DONE) {
            then.live[step][op][round] = 0;
            then.done[step][op] |= e.phase == ONCE__ROW_DONE;
        }
        if (happen(then, e, from, how) && !live)
            RULE(0, "what has ended before fits no more");
    }
}

static void operate(const struct world *w, int32_t from)
{
    struct once__saga_event e = {.what = ONCE__SAGA_RESOLVE};
    const char *how = "operate";

    int going = w->state == ONCE__SAGA_GOING;

    RULE(happen(*w, (struct once__saga_event){.what = ONCE__SAGA_LATE}, from,
                "deadline") == going,
         "the deadline holds until the last Try is done");
    RULE(happen(*w, (struct once__saga_event){.what = ONCE__SAGA_ABORT}, from,
                "abort") == going,
         "so long a saga can be aborted");
    if (happen(*w, (struct once__saga_event){.what = ONCE__SAGA_BEGIN}, from,
               "begin"))
        RULE(0, "a saga begins once");
    if (w->state == ONCE__SAGA_STUCK &&
        !happen(*w, (struct once__saga_event){.what = ONCE__SAGA_RETRY}, from,
                "retry"))
        RULE(0, "what is stuck can be called again");
    for (e.step = 0; e.step <= w->n; e.step++) {
        struct world then = *w;

        if (e.step < w->n && w->failed[e.step])
            then.done[e.step][w->step[e.step] == ONCE__STEP_CONFIRMING
                                  ? ONCE_CONFIRM
                                  : ONCE_CANCEL] = 1;
        if (happen(then, e, from, "resolve") !=
            (e.step < w->n && w->failed[e.step]))
            RULE(0, "what is stuck can be resolved, and nothing else");
    }
}

/* A Try under way may be taken away when its saga wants it no more: the relay
 * has not begun it. */
static void take_away(const struct world *w, int32_t from)
{
    struct world then = *w;
    size_t i;

    if (w->state == ONCE__SAGA_GOING)
        return;
    for (i = 0; i < w->n; i++)
        then.live[i][ONCE_TRY][0] = 0;
    if (memcmp(&then, w, sizeof(then)) != 0)
        add(&then, from, "take away");
}

static void explore(int n, const uint8_t has[STEPS])
{
    struct world first = {.n = (uint8_t)n};
    int32_t i;
    size_t step;
    int op, round;

    count = 1;
    memset(table, 0, TABLE * sizeof(*table));
    memcpy(first.has, has, STEPS);
    T_EQ(happen(first, (struct once__saga_event){.what = ONCE__SAGA_BEGIN}, 0,
                "begin"),
         1);
    for (i = 1; i < count && broken == 0; i++) {
        struct world w = nodes[i].w;

        for (step = 0; step <= w.n && step < STEPS; step++)
            for (op = ONCE_TRY; op <= ONCE_CANCEL; op++)
                for (round = 0; round <= ROUNDS; round++)
                    end_call(&w, step, op, round, i);
        operate(&w, i);
        take_away(&w, i);
    }
}

/* ---- Tests ---------------------------------------------------------------- */

static unsigned seen[6];

static void every_saga_of(int n)
{
    uint8_t has[STEPS];
    int32_t i, states = 0;
    int shape, sagas = 1 << (2 * n);

    broken = 0;
    memset(seen, 0, sizeof(seen));
    for (shape = 0; shape < sagas && broken == 0; shape++) {
        for (i = 0; i < STEPS; i++)
            has[i] = (uint8_t)(shape >> (2 * i) & 3);
        explore(n, has);
        for (i = 1; i < count; i++)
            seen[nodes[i].w.state]++;
        states += count - 1;
    }
    T_EQ(broken, 0);
    for (i = ONCE__SAGA_GOING; i <= ONCE__SAGA_STUCK; i++)
        T_OK(seen[i] > 0);
    printf("# %d sagas, %d states\n", sagas, (int)states);
}

static void every_saga_of_one_step(void)
{
    every_saga_of(1);
}

static void every_saga_of_two_steps(void)
{
    every_saga_of(2);
}

static void every_saga_of_three_steps(void)
{
    every_saga_of(3);
}

/* The longest one, by hand: no state that is kept in a smaller room. */
static void a_saga_of_the_most_steps(void)
{
    struct once__saga s = {.n = ONCE_SAGA_STEPS_MAX};
    struct once__saga_event e = {.what = ONCE__SAGA_BEGIN};
    struct once__saga_next next;
    size_t i;

    for (i = 0; i < s.n; i++)
        s.step[i].has_confirm = s.step[i].has_cancel = 1;
    next = once__saga_next(&s, &e);
    e = (struct once__saga_event){ONCE__SAGA_ENDED, 0, ONCE_TRY, 0,
                                  ONCE__ROW_DONE};
    for (; e.step < s.n; e.step++) {
        T_EQ(next.n, 1);
        T_EQ(next.call[0].step, e.step);
        next = once__saga_next(&s, &e);
    }
    T_EQ(s.state, ONCE__SAGA_CONFIRMING);
    T_EQ(next.n, s.n);
    e.op = ONCE_CONFIRM;
    for (e.step = s.n; e.step-- > 0;)
        T_EQ(once__saga_next(&s, &e).fits, 1);
    T_EQ(s.state, ONCE__SAGA_DONE);
}

int main(void)
{
    nodes = calloc(WAYS * 8, sizeof(*nodes));
    table = calloc(TABLE, sizeof(*table));
    T_RUN(every_saga_of_one_step);
    T_RUN(every_saga_of_two_steps);
    T_RUN(every_saga_of_three_steps);
    T_RUN(a_saga_of_the_most_steps);
    free(nodes);
    free(table);
    return t_done();
}
