/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lin.c - the history checker itself, on histories written by hand. The
 * answers are those that once__transition() gives in a known order, so that it is
 * known beforehand which histories an order explains.
 */
#include "t.h"

#include "calls/core/transition.h"
#include "lin.h"

enum { OWNER = 1, OTHER = 2, KEEP = 10 };

/* A history, and the record after the calls that were applied so far. */
struct history {
    struct lin_op ops[LIN_OPS];
    size_t n;
    once_record r;
    uint64_t fence;
};

static struct lin_op *add(struct history *h, int verb, unsigned worker,
                          uint64_t call, uint64_t ret)
{
    struct lin_op *o = &h->ops[h->n++];

    memset(o, 0, sizeof(*o));
    o->worker = worker;
    o->call = call;
    o->ret = ret;
    o->op.verb = verb;
    o->op.token[0] = (uint8_t)worker;
    o->op.lease_ms = 100;
    o->op.keep_ms = KEEP;
    o->op.kind = ONCE_SUCCESS;
    o->op.fence = h->fence;
    return o;
}

static void apply(struct history *h, struct lin_op *o, uint64_t now)
{
    (void)once__transition(&h->r, &o->op, now, &h->fence);
}

/* A question that was applied, but whose answer was lost. */
static void lose(struct history *h, const struct lin_op *o, uint64_t now)
{
    once_op op = o->op;

    (void)once__transition(&h->r, &op, now, &h->fence);
}

static enum lin_verdict judge(const struct history *h)
{
    struct lin *l = lin_new(1);
    enum lin_verdict v;

    T_OK(l != NULL);
    v = lin_check(l, h->ops, h->n);
    lin_free(l);
    return v;
}

/*
 * The owner's outcome is recorded, but its answer is lost. Somebody sees the
 * outcome and forgets it, and only then the question is repeated: FENCED. The
 * claim returns in the millisecond in which the outcome is sent.
 */
static void forgotten_before_the_repeat(struct history *h, unsigned copies)
{
    struct lin_op *claim, *complete, *copy, *seen, *forget;
    unsigned i;

    memset(h, 0, sizeof(*h));
    claim = add(h, ONCE_OP_CLAIM, OWNER, 0, 5);
    apply(h, claim, 4);
    T_EQ(claim->op.rc, ONCE_OWNER);
    complete = add(h, ONCE_OP_COMPLETE, OWNER, 5, 90);
    for (i = 1; i <= copies; i++) {
        copy = add(h, ONCE_OP_COMPLETE, OWNER, 5, 91);
        copy->copy = i;
    }
    lose(h, complete, 19);
    seen = add(h, ONCE_OP_CLAIM, OTHER, 23, 33);
    apply(h, seen, 30);
    T_EQ(seen->op.rc, ONCE_REPLAY);
    forget = add(h, ONCE_OP_FORGET, OTHER, 60, 63);
    apply(h, forget, 61);
    T_EQ(forget->op.rc, ONCE_OK);
    apply(h, complete, 89);
    T_EQ(complete->op.rc, ONCE_FENCED);
}

static void a_question_before_its_repeat_explains_what_others_saw(void)
{
    struct history h;

    forgotten_before_the_repeat(&h, 1);
    T_EQ(judge(&h), LIN_EXPLAINED);
    forgotten_before_the_repeat(&h, 2);
    T_EQ(judge(&h), LIN_EXPLAINED);
}

static void a_question_asked_once_explains_it_not(void)
{
    struct history h;

    forgotten_before_the_repeat(&h, 0);
    T_EQ(judge(&h), LIN_REJECTED);
}

/* A repeat is answered after what it repeats: its effect cannot come later. */
static void a_question_has_no_effect_after_its_answer(void)
{
    struct history h;
    struct lin_op *o, *copy;

    memset(&h, 0, sizeof(h));
    o = add(&h, ONCE_OP_CLAIM, OWNER, 0, 5);
    apply(&h, o, 4);
    o = add(&h, ONCE_OP_COMPLETE, OTHER, 6, 10);
    apply(&h, o, 8);
    T_EQ(o->op.rc, ONCE_FENCED);
    o = add(&h, ONCE_OP_COMPLETE, OWNER, 20, LIN_NEVER);
    lose(&h, o, 21);
    o = add(&h, ONCE_OP_READ, OTHER, 22, 24);
    apply(&h, o, 23);
    T_EQ(o->op.rc, ONCE_REPLAY);
    T_EQ(judge(&h), LIN_EXPLAINED);

    /* The same, but the one question that could have had the effect was
     * answered FENCED before anybody saw the outcome. */
    h.ops[2].ret = 21;
    h.ops[2].op.rc = ONCE_FENCED;
    copy = add(&h, ONCE_OP_COMPLETE, OWNER, 30, 40);
    apply(&h, copy, 35);
    T_EQ(judge(&h), LIN_REJECTED);
}

int main(void)
{
    T_RUN(a_question_before_its_repeat_explains_what_others_saw);
    T_RUN(a_question_asked_once_explains_it_not);
    T_RUN(a_question_has_no_effect_after_its_answer);
    return t_done();
}
