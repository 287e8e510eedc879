/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lin.c - the history checker.
 *
 * A step is once__transition(), so that what the store may do is said in one place.
 * Two things that it needs are not in a history as points:
 *
 *   Time. The store's clock stood somewhere between call and return, widened by
 *   the skew. An answer shows the record, and the record shows when: so the
 *   moments worth trying are few, the ends of the interval, those at which a
 *   lease or a retention runs out, and those that shown records tell of.
 *   Of a call without an answer the moment may be told by any later record.
 *
 *   Fences. A grant's fence is new and larger; which one it was is told by the
 *   answer or, where there is none, by a later record with the same token.
 *
 * A call whose outcome is unknown has no return: it may be placed anywhere
 * behind its call, or nowhere. It refuses to guess in the other direction: a
 * history that takes more than LIN_STEPS is undecided, never explained.
 */
#include "lin.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls/core/transition.h"

enum { MEMO_BITS = 18, MEMO = 1 << MEMO_BITS, MOMENTS = 256 };

struct state {
    once_record r;  /* its bytes point into the history          */
    uint64_t fence; /* the largest that the key has been granted */
};

struct memo {
    uint64_t placed, hash, round;
};

struct lin {
    uint64_t skew;
    uint64_t steps, limit;
    uint64_t round; /* of this history: older entries do not count */
    uint64_t end;   /* later than this nothing makes a difference  */
    const struct lin_op *ops;
    size_t n;
    struct memo *memo;
    uint64_t most; /* the largest set that could be explained */
};

/* Moments worth trying, within [lo, hi]. */
struct moments {
    uint64_t lo, hi;
    size_t n;
    uint64_t at[MOMENTS];
};

struct lin *lin_new(uint64_t skew)
{
    struct lin *l = calloc(1, sizeof(*l));

    if (l == NULL)
        return NULL;
    l->skew = skew;
    l->memo = calloc(MEMO, sizeof(*l->memo));
    if (l->memo == NULL) {
        free(l);
        return NULL;
    }
    return l;
}

void lin_free(struct lin *l)
{
    if (l == NULL)
        return;
    free(l->memo);
    free(l);
}

uint64_t lin_steps(const struct lin *l)
{
    return l->steps;
}

static int answered(const struct lin_op *o)
{
    return o->copy == 0 && o->ret != LIN_NEVER;
}

/* ---- Records ----------------------------------------------------------- */

static int same_bytes(once_bytes a, once_bytes b)
{
    return a.size == b.size &&
           (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static int same_record(const once_record *a, const once_record *b)
{
    return a->state == b->state && a->kind == b->kind &&
           a->policy == b->policy && a->doubt == b->doubt &&
           a->attempt == b->attempt && a->fence == b->fence &&
           a->lease_ms == b->lease_ms && a->keep_ms == b->keep_ms &&
           a->granted_ms == b->granted_ms &&
           memcmp(a->token, b->token, ONCE_TOKEN_SIZE) == 0 &&
           memcmp(a->fingerprint, b->fingerprint, ONCE_FINGERPRINT_SIZE) == 0 &&
           memcmp(a->group, b->group, ONCE_GROUP_SIZE) == 0 &&
           same_bytes(a->result, b->result) && same_bytes(a->note, b->note);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = ((hash + 1) ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

static uint64_t mix_bytes(uint64_t hash, const void *data, size_t size)
{
    const uint8_t *p = data;
    size_t i;

    hash = mix(hash, size);
    for (i = 0; i < size; i++)
        hash = mix(hash, p[i]);
    return hash;
}

/* States are told apart by 64 bits: a collision in 10^5 states, and a false
 * alarm with it, is less likely than 10^-9. */
static uint64_t hash_state(const struct state *s)
{
    const once_record *r = &s->r;
    uint64_t h = mix(mix(1, s->fence), r->fence);

    h = mix(h, (uint64_t)r->state << 24 | (uint64_t)r->kind << 16 |
                   (uint64_t)r->policy << 8 | r->doubt);
    h = mix(h, r->attempt);
    h = mix(h, r->lease_ms);
    h = mix(h, r->keep_ms);
    h = mix(h, r->granted_ms);
    h = mix_bytes(h, r->token, sizeof(r->token));
    h = mix_bytes(h, r->fingerprint, sizeof(r->fingerprint));
    h = mix_bytes(h, r->group, sizeof(r->group));
    h = mix_bytes(h, r->result.data, r->result.size);
    return mix_bytes(h, r->note.data, r->note.size);
}

/* ---- Memory ------------------------------------------------------------ */

/* 1 if this set of placed operations led to this state before. */
static int tried(struct lin *l, uint64_t placed, const struct state *s)
{
    uint64_t hash = hash_state(s);
    size_t i = (size_t)(mix(placed, hash) >> (64 - MEMO_BITS));
    size_t n;

    for (n = 0; n < 64; n++, i = (i + 1) % MEMO) {
        struct memo *m = &l->memo[i];

        if (m->round != l->round)
            break;
        if (m->placed == placed && m->hash == hash)
            return 1;
    }
    /* After 64 neighbours one is forgotten: that costs time, not truth. */
    l->memo[i] = (struct memo){placed, hash, l->round};
    return 0;
}

/* ---- Moments ----------------------------------------------------------- */

static void add_moment(struct moments *m, uint64_t at)
{
    size_t i;

    if (at < m->lo || at > m->hi)
        return;
    for (i = 0; i < m->n; i++)
        if (m->at[i] == at)
            return;
    assert(m->n < MOMENTS);
    m->at[m->n++] = at;
}

/* When `o` must have been decided if `shown` is what it left behind. */
static void add_told(struct moments *m, const once_op *o,
                     const once_record *shown)
{
    add_moment(m, shown->granted_ms);
    add_moment(m, shown->lease_ms - o->lease_ms);
    add_moment(m, shown->keep_ms - o->keep_ms);
}

/* Whether the answer `a` may show what the unanswered `o` did. Of a call that
 * compares tokens only a record with its token can tell. */
static int may_tell(const struct lin_op *o, const struct lin_op *a)
{
    return answered(a) &&
           (o->op.verb > ONCE_OP_GIVE_UP ||
            memcmp(o->op.token, a->op.record.token, ONCE_TOKEN_SIZE) == 0);
}

static void find_moments(const struct lin *l, const struct state *s,
                         const struct lin_op *o, struct moments *m)
{
    size_t i;

    m->lo = o->call > l->skew ? o->call - l->skew : 0;
    m->hi = (o->ret == LIN_NEVER ? l->end : o->ret) + l->skew;
    m->n = 0;
    if (answered(o)) {
        add_told(m, &o->op, &o->op.record);
        add_moment(m, s->r.lease_ms - o->op.left_ms);
        add_moment(m, m->hi);
    } else {
        for (i = 0; i < l->n; i++)
            if (may_tell(o, &l->ops[i]))
                add_told(m, &o->op, &l->ops[i].op.record);
    }
    add_moment(m, m->lo);
    add_moment(m, s->r.lease_ms);
    if (o->op.verb == ONCE_OP_FORGET)
        add_moment(m, s->r.keep_ms);
}

/* ---- Search ------------------------------------------------------------ */

static int search(struct lin *l, uint64_t placed, const struct state *s);

/* The answer is there: the step must give just that. */
static int step_answered(const struct lin_op *o, const once_op *said,
                         int granted, struct state *next)
{
    const once_record *shown = &o->op.record;
    once_record expected = said->record;

    if (granted) {
        if (shown->fence < next->fence)
            return 0; /* a fence is never repeated and never goes back */
        next->fence = next->r.fence = expected.fence = shown->fence;
    }
    return said->rc == o->op.rc && said->left_ms == o->op.left_ms &&
           same_record(&expected, shown);
}

/* Nobody saw which fence was granted, unless a later record shows it. */
static int search_granted(struct lin *l, uint64_t placed,
                          const struct lin_op *o, struct state *next)
{
    uint64_t least = next->fence;
    size_t i;

    for (i = 0; i < l->n; i++) {
        const once_record *shown = &l->ops[i].op.record;

        if (!may_tell(o, &l->ops[i]) || shown->fence < least)
            continue;
        next->fence = next->r.fence = shown->fence;
        if (search(l, placed, next))
            return 1;
    }
    next->fence = next->r.fence = least;
    return search(l, placed, next);
}

/* Places `o` behind `s` at one moment, and all others behind it. */
static int place_at(struct lin *l, uint64_t placed, const struct state *s,
                    const struct lin_op *o, uint64_t now)
{
    struct state next = *s;
    once_op said = o->op;
    int changed, granted;

    l->steps++;
    changed = once__transition(&next.r, &said, now, &next.fence);
    granted = next.fence != s->fence;
    if (answered(o))
        return step_answered(o, &said, granted, &next) &&
               search(l, placed, &next);
    if (!changed)
        return 0; /* nobody saw it and nothing came of it: not needed */
    return granted ? search_granted(l, placed, o, &next)
                   : search(l, placed, &next);
}

static int place(struct lin *l, uint64_t placed, const struct state *s,
                 const struct lin_op *o)
{
    struct moments m;
    size_t i;

    find_moments(l, s, o, &m);
    for (i = 0; i < m.n; i++)
        if (place_at(l, placed, s, o, m.at[i]))
            return 1;
    return 0;
}

/* 1 if `o` is answered and fits here without changing anything. */
static int fits_still(struct lin *l, const struct state *s,
                      const struct lin_op *o)
{
    struct moments m;
    size_t i;

    if (!answered(o))
        return 0;
    find_moments(l, s, o, &m);
    for (i = 0; i < m.n; i++) {
        struct state next = *s;
        once_op said = o->op;

        l->steps++;
        if (!once__transition(&next.r, &said, m.at[i], &next.fence) &&
            step_answered(o, &said, 0, &next))
            return 1;
    }
    return 0;
}

/* Whether a copy of call `i` has no place yet: it must come before `i`. */
static int copy_is_open(const struct lin *l, uint64_t placed, size_t i)
{
    size_t k;

    if (l->ops[i].copy > 0)
        return 0;
    for (k = i + 1; k < l->n && l->ops[k].copy > 0; k++)
        if (!(placed >> k & 1))
            return 1;
    return 0;
}

/* Places all that fits and changes nothing. If there is an order at all there
 * is one with these here: nobody after them can tell. A call with copies is
 * left to the search, since placing it leaves its copies without a place. */
static uint64_t place_still(struct lin *l, uint64_t placed,
                            const struct state *s, uint64_t first)
{
    size_t i;

    for (i = 0; i < l->n; i++)
        if (!(placed >> i & 1) && l->ops[i].call <= first &&
            !copy_is_open(l, placed, i) && fits_still(l, s, &l->ops[i]))
            placed |= UINT64_C(1) << i;
    return placed;
}

/* When the first of those returned that are not placed; LIN_NEVER: none. */
static uint64_t first_return(const struct lin *l, uint64_t placed)
{
    uint64_t first = LIN_NEVER;
    size_t i;

    for (i = 0; i < l->n; i++)
        if (!(placed >> i & 1) && answered(&l->ops[i]) && l->ops[i].ret < first)
            first = l->ops[i].ret;
    return first;
}

/* A copy comes before what it is a copy of, in its turn among copies, and not
 * behind what began when the answer was there. */
static int copy_fits(const struct lin *l, uint64_t placed, size_t i)
{
    const struct lin_op *o = &l->ops[i];
    size_t k;

    for (k = i - o->copy; k < i; k++)
        if ((k == i - o->copy) == (placed >> k & 1))
            return 0;
    for (k = 0; k < l->n; k++)
        if (placed >> k & 1 && l->ops[k].call > o->ret)
            return 0;
    return 1;
}

static int may_forget(const struct lin *l, uint64_t placed)
{
    size_t i;

    for (i = 0; i < l->n; i++)
        if (!(placed >> i & 1) && l->ops[i].op.verb == ONCE_OP_FORGET)
            return 1;
    return 0;
}

/* 0 if somebody has yet to see what is over: an older fence than the newest,
 * or an earlier attempt with nobody left who could forget this one. */
static int may_go_on(const struct lin *l, uint64_t placed,
                     const struct state *s)
{
    uint32_t least = may_forget(l, placed) ? 0 : s->r.attempt;
    size_t i;

    for (i = 0; i < l->n; i++) {
        const once_record *shown = &l->ops[i].op.record;

        if (!(placed >> i & 1) && answered(&l->ops[i]) && shown->attempt != 0 &&
            (shown->fence < s->fence || shown->attempt < least))
            return 0;
    }
    return 1;
}

static int search(struct lin *l, uint64_t placed, const struct state *s)
{
    uint64_t first = first_return(l, placed), before;
    size_t i, k;

    if (l->steps > l->limit || !may_go_on(l, placed, s) || tried(l, placed, s))
        return 0;
    do {
        before = placed;
        placed = place_still(l, placed, s, first);
        first = first_return(l, placed);
    } while (placed != before);
    if (__builtin_popcountll(placed) > __builtin_popcountll(l->most))
        l->most = placed;
    if (first == LIN_NEVER)
        return 1; /* what is left has no answer: nowhere */
    for (k = 0; k < 2 * l->n; k++) {
        const struct lin_op *o = &l->ops[i = k % l->n];

        /* The answered first. Not behind one that returned before it began. */
        if (placed >> i & 1 || o->call > first || answered(o) != (k < l->n) ||
            (o->copy > 0 && !copy_fits(l, placed, i)))
            continue;
        if (place(l, placed | UINT64_C(1) << i, s, o))
            return 1;
    }
    return 0;
}

enum lin_verdict lin_check(struct lin *l, const struct lin_op *ops, size_t n)
{
    struct state s;
    size_t i;

    assert(n <= LIN_OPS);
    memset(&s, 0, sizeof(s));
    l->ops = ops;
    l->n = n;
    l->round++;
    l->limit = l->steps + LIN_STEPS;
    l->end = l->most = 0;
    for (i = 0; i < n; i++) {
        uint64_t at = ops[i].ret == LIN_NEVER ? ops[i].call : ops[i].ret;

        l->end = at > l->end ? at : l->end;
    }
    if (search(l, 0, &s))
        return LIN_EXPLAINED;
    return l->steps > l->limit ? LIN_UNDECIDED : LIN_REJECTED;
}

/* ---- Printing ---------------------------------------------------------- */

static void print_one(const struct lin_op *o, uint64_t zero, int placed)
{
    static const char *const verbs[ONCE__OP_END] = {
        [ONCE_OP_CLAIM] = "claim",     [ONCE_OP_DISPATCH] = "dispatch",
        [ONCE_OP_RENEW] = "renew",     [ONCE_OP_COMPLETE] = "complete",
        [ONCE_OP_RELEASE] = "release", [ONCE_OP_GIVE_UP] = "give_up",
        [ONCE_OP_READ] = "read",       [ONCE_OP_REAP] = "reap",
        [ONCE_OP_RESOLVE] = "resolve", [ONCE_OP_REOPEN] = "reopen",
        [ONCE_OP_FORGET] = "forget",   [ONCE_OP_SHOW] = "show",
    };
    const once_record *r = &o->op.record;

    printf("# %c %u %8" PRIu64 " ", placed ? ' ' : '!', o->worker,
           o->call - zero);
    if (!answered(o)) {
        printf("       ? %-8s token %02x fence %" PRIu64 "\n",
               verbs[o->op.verb], o->op.token[0], o->op.fence);
        return;
    }
    printf("%8" PRIu64 " %-8s token %02x fence %" PRIu64 " -> %d left %" PRIu64
           ": state %u kind %u policy %u doubt %u "
           "attempt %u token %02x fence %" PRIu64 " lease %" PRId64
           " keep %" PRId64 " granted %" PRId64 "\n",
           o->ret - zero, verbs[o->op.verb], o->op.token[0], o->op.fence,
           o->op.rc, o->op.left_ms, r->state, r->kind, r->policy, r->doubt,
           r->attempt, r->token[0], r->fence,
           r->lease_ms == 0 ? 0 : (int64_t)(r->lease_ms - zero),
           r->keep_ms == 0 ? 0 : (int64_t)(r->keep_ms - zero),
           r->granted_ms == 0 ? 0 : (int64_t)(r->granted_ms - zero));
}

void lin_print(const struct lin *l)
{
    uint64_t last, next = LIN_NEVER, zero;
    size_t i;

    for (i = 0; i < l->n; i++)
        next = l->ops[i].call < next ? l->ops[i].call : next;
    for (zero = next; next != LIN_NEVER;) {
        last = next;
        next = LIN_NEVER;
        for (i = 0; i < l->n; i++) {
            if (l->ops[i].call == last)
                print_one(&l->ops[i], zero, l->most >> i & 1);
            if (l->ops[i].call > last && l->ops[i].call < next)
                next = l->ops[i].call;
        }
    }
}
