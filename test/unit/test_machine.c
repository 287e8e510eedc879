/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_machine.c - every arrow of src/calls/core/machine.c, as a story: the words
 * that an attempt hears, and what it wants next after each of them.
 */
#include "calls/core/machine.h"

#include "t.h"

enum {
    SILENT = 100, /* nobody answers until patience ends  */
    AGAIN,        /* a waiter looks again                */
    DO_COMPLETE,
    DO_RELEASE,
    DO_GIVE_UP,
    END
};

struct word {
    int heard; /* an answer, or one of the above */
    int wants; /* enum once__action              */
};

struct story {
    const char *name;
    int two_phase;
    int told;
    struct word words[8];
};

/* clang-format off */
#define CLAIM    ONCE__ASK_CLAIM
#define DISPATCH ONCE__ASK_DISPATCH
#define COMPLETE ONCE__ASK_COMPLETE
#define RELEASE  ONCE__ASK_RELEASE
#define GIVE_UP  ONCE__ASK_GIVE_UP
#define READ     ONCE__ASK_READ
#define SEND     ONCE__SEND
#define TELL     ONCE__RETURN
#define STORY(name, two_phase, told, ...) \
    { name, two_phase, told, { __VA_ARGS__, { END, 0 } } }
#define SENT { ONCE_OWNER, SEND }

static const struct story stories[] = {
STORY("claim owner: send; complete ok: told ok", 0, ONCE_OK, SENT, { DO_COMPLETE, COMPLETE }, { ONCE_OK, TELL }),
STORY("claim owner, two-phase: dispatch; ok: send", 1, ONCE_OK, { ONCE_OWNER, DISPATCH }, { ONCE_OK, SEND }, { DO_COMPLETE, COMPLETE }, { ONCE_OK, TELL }),
STORY("claim replay: told", 0, ONCE_REPLAY, { ONCE_REPLAY, TELL }),
STORY("claim in flight: told", 0, ONCE_IN_FLIGHT, { ONCE_IN_FLIGHT, TELL }),
STORY("claim unknown: told", 0, ONCE_UNKNOWN, { ONCE_UNKNOWN, TELL }),
STORY("claim mismatch: told", 0, ONCE_MISMATCH, { ONCE_MISMATCH, TELL }),
STORY("claim corrupt: told", 0, ONCE_ECORRUPT, { ONCE_ECORRUPT, TELL }),
STORY("claim without memory: told", 1, ONCE_ENOMEM, { ONCE_ENOMEM, TELL }),
STORY("claim in flight: a waiter claims again", 0, ONCE_OK, { ONCE_IN_FLIGHT, TELL }, { AGAIN, CLAIM }, { ONCE_IN_FLIGHT, TELL }, { AGAIN, CLAIM }, SENT, { DO_COMPLETE, COMPLETE }, { ONCE_OK, TELL }),
STORY("claim lost: released, told free", 0, ONCE_FREE, { ONCE_LOST, RELEASE }, { ONCE_OK, TELL }),
STORY("claim lost: release fenced, told free", 0, ONCE_FREE, { ONCE_LOST, RELEASE }, { ONCE_FENCED, TELL }),
STORY("claim lost: release unanswered, told so", 0, ONCE_ESTORE, { ONCE_LOST, RELEASE }, { SILENT, TELL }),
STORY("claim fenced: looks once, replay", 0, ONCE_REPLAY, { ONCE_FENCED, READ }, { ONCE_REPLAY, TELL }),
STORY("claim fenced: looks once, in flight", 0, ONCE_IN_FLIGHT, { ONCE_FENCED, READ }, { ONCE_IN_FLIGHT, TELL }),
STORY("claim fenced: looks once, free", 0, ONCE_FREE, { ONCE_FENCED, READ }, { ONCE_FREE, TELL }),
STORY("claim fenced: looks once, unanswered", 0, ONCE_ESTORE, { ONCE_FENCED, READ }, { SILENT, TELL }),
STORY("claim unanswered: released by token, told so", 0, ONCE_ESTORE, { SILENT, RELEASE }, { ONCE_OK, TELL }),
STORY("claim unanswered: release fenced, told so", 0, ONCE_ESTORE, { SILENT, RELEASE }, { ONCE_FENCED, TELL }),
STORY("claim unanswered: release unanswered, told so", 1, ONCE_ESTORE, { SILENT, RELEASE }, { SILENT, TELL }),
STORY("dispatch lost: released, told free", 1, ONCE_FREE, { ONCE_OWNER, DISPATCH }, { ONCE_LOST, RELEASE }, { ONCE_OK, TELL }),
STORY("dispatch fenced: looks once", 1, ONCE_MISMATCH, { ONCE_OWNER, DISPATCH }, { ONCE_FENCED, READ }, { ONCE_MISMATCH, TELL }),
STORY("dispatch unanswered: released, nothing is sent", 1, ONCE_ESTORE, { ONCE_OWNER, DISPATCH }, { SILENT, RELEASE }, { ONCE_OK, TELL }),
STORY("dispatch refused: released, and told why", 1, ONCE_ENOMEM, { ONCE_OWNER, DISPATCH }, { ONCE_ENOMEM, RELEASE }, { ONCE_OK, TELL }),
STORY("dispatch corrupt: told, although it cannot be released", 1, ONCE_ECORRUPT, { ONCE_OWNER, DISPATCH }, { ONCE_ECORRUPT, RELEASE }, { ONCE_ECORRUPT, TELL }),
STORY("complete fenced: looks once, the other outcome", 0, ONCE_REPLAY, SENT, { DO_COMPLETE, COMPLETE }, { ONCE_FENCED, READ }, { ONCE_REPLAY, TELL }),
STORY("complete fenced: looks once, in flight", 0, ONCE_IN_FLIGHT, SENT, { DO_COMPLETE, COMPLETE }, { ONCE_FENCED, READ }, { ONCE_IN_FLIGHT, TELL }),
STORY("complete unanswered: told so, never released", 0, ONCE_ESTORE, SENT, { DO_COMPLETE, COMPLETE }, { SILENT, TELL }),
STORY("complete corrupt: told", 0, ONCE_ECORRUPT, SENT, { DO_COMPLETE, COMPLETE }, { ONCE_ECORRUPT, TELL }),
STORY("release ok: told ok", 0, ONCE_OK, SENT, { DO_RELEASE, RELEASE }, { ONCE_OK, TELL }),
STORY("release fenced: told ok", 0, ONCE_OK, SENT, { DO_RELEASE, RELEASE }, { ONCE_FENCED, TELL }),
STORY("release unanswered: told so", 0, ONCE_ESTORE, SENT, { DO_RELEASE, RELEASE }, { SILENT, TELL }),
STORY("give up ok: told ok", 0, ONCE_OK, SENT, { DO_GIVE_UP, GIVE_UP }, { ONCE_OK, TELL }),
STORY("give up fenced: told ok", 1, ONCE_OK, { ONCE_OWNER, DISPATCH }, { ONCE_OK, SEND }, { DO_GIVE_UP, GIVE_UP }, { ONCE_FENCED, TELL }),
STORY("give up unanswered: told so", 0, ONCE_ESTORE, SENT, { DO_GIVE_UP, GIVE_UP }, { SILENT, TELL }),
};
/* clang-format on */

static int hear(once__machine *a, int heard, const once_record *r)
{
    switch (heard) {
    case SILENT:
        return once__machine_unanswered(a);
    case AGAIN:
        return once__machine_again(a);
    case DO_COMPLETE:
        return once__machine_end(a, ONCE__PHASE_COMPLETE);
    case DO_RELEASE:
        return once__machine_end(a, ONCE__PHASE_RELEASE);
    case DO_GIVE_UP:
        return once__machine_end(a, ONCE__PHASE_GIVE_UP);
    default:
        return once__machine_answer(a, heard, r);
    }
}

static const struct story *this_story;

static void tell_story(void)
{
    const struct story *s = this_story;
    const struct word *w;
    once__machine a;
    once_record r;

    memset(&r, 0, sizeof(r));
    r.fence = 42;
    r.attempt = 7;
    T_EQ(once__machine_begin(&a, s->two_phase), CLAIM);
    T_EQ(a.fence, 0);
    for (w = s->words; w->heard != END; w++) {
        T_EQ(hear(&a, w->heard, &r), w->wants);
        if (w->wants == SEND || w->wants == COMPLETE) {
            T_EQ(a.fence, 42);
            T_EQ(a.number, 7);
        }
    }
    T_EQ(a.phase, ONCE__PHASE_OVER);
    T_EQ(a.reported, s->told);
}

static void a_claim_that_was_never_answered_has_no_fence_to_show(void)
{
    once__machine a;

    (void)once__machine_begin(&a, 0);
    T_EQ(once__machine_unanswered(&a), RELEASE);
    T_EQ(a.fence, 0);
}

static void an_answered_one_shows_its_fence_when_it_is_released(void)
{
    once__machine a;
    once_record r;

    memset(&r, 0, sizeof(r));
    r.fence = 42;
    r.attempt = 7;
    (void)once__machine_begin(&a, 0);
    T_EQ(once__machine_answer(&a, ONCE_LOST, &r), RELEASE);
    T_EQ(a.fence, 42);
    (void)once__machine_begin(&a, 1);
    (void)once__machine_answer(&a, ONCE_OWNER, &r);
    T_EQ(once__machine_unanswered(&a), RELEASE);
    T_EQ(a.fence, 42);
}

static void what_is_released_with_an_older_doubt_is_told_as_unknown(void)
{
    once__machine a;
    once_record r;

    memset(&r, 0, sizeof(r));
    r.fence = 42;
    r.attempt = 7;
    r.state = ONCE_INDETERMINATE;
    (void)once__machine_begin(&a, 0);
    (void)once__machine_answer(&a, ONCE_LOST, &r);
    T_EQ(once__machine_answer(&a, ONCE_OK, &r), TELL);
    T_EQ(a.reported, ONCE_UNKNOWN);
}

static void every_question_is_a_verb(void)
{
    T_EQ(once__action_verb(CLAIM), ONCE_OP_CLAIM);
    T_EQ(once__action_verb(DISPATCH), ONCE_OP_DISPATCH);
    T_EQ(once__action_verb(COMPLETE), ONCE_OP_COMPLETE);
    T_EQ(once__action_verb(RELEASE), ONCE_OP_RELEASE);
    T_EQ(once__action_verb(GIVE_UP), ONCE_OP_GIVE_UP);
    T_EQ(once__action_verb(READ), ONCE_OP_READ);
    T_EQ(once__action_verb(SEND), 0);
    T_EQ(once__action_verb(TELL), 0);
}

int main(void)
{
    size_t i;

    for (i = 0; i < sizeof(stories) / sizeof(stories[0]); i++) {
        this_story = &stories[i];
        t_named(this_story->name, tell_story);
    }
    T_RUN(a_claim_that_was_never_answered_has_no_fence_to_show);
    T_RUN(an_answered_one_shows_its_fence_when_it_is_released);
    T_RUN(what_is_released_with_an_older_doubt_is_told_as_unknown);
    T_RUN(every_question_is_a_verb);
    return t_done();
}
