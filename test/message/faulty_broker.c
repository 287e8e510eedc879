/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faulty_broker.c - a target that misbehaves on purpose, around one that does
 * not. No build but that of the tests has it.
 *
 *    faulty:RULE[,RULE...]@INNER-URL
 *    seed=N        what the dice begin with [1]
 *    copies=P      P in a hundred messages are sent twice
 *    late=P        ... are held back, until HELD_MAX others were sent or the
 *                  caller waits for proofs; never behind one of their own key
 *    silent=P      ... are taken, and their proof is lost: ONCE__END_SILENT
 *    refuse=P      ... are not sent: ONCE__END_REFUSED
 *
 * All depends on the seed and the order in which messages are sent. It refuses a
 * rule that it does not understand: a test that asked for a fault and did not
 * get one would prove nothing. What it receives is the inner target's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "messages/broker/share.h"
#include "base/error.h"
#include "base/steady.h"

enum { HELD_MAX = 8, PROOFS_MAX = 64 };
enum what { COPIES, LATE, SILENT, REFUSE, RULES };

extern const struct once__broker_ops once__broker_faulty;

/* A message that has no proof yet; its place in the table is the inner tag. */
struct flight {
    const once_message *m;
    uint64_t tag;
    int copies;           /* to be sent, or under way; 0: the place is free */
    int held;             /* not sent yet                                   */
    uint64_t number;      /* in the order of sending                        */
    int silent;           /* a proof of it is lost                          */
    struct once__proof p; /* of the copies so far; end -1: none             */
};

struct faulty {
    struct once__broker base;
    struct once__broker_ops ops; /* knows_ids, at_once, ... are the inner's */
    struct once__broker *inner;
    uint64_t dice, sent, percent[RULES];
    struct flight *flights;
    size_t room, held;
    struct once__ended ended; /* those that never got to the inner target */
};

/* ---- Grammar ------------------------------------------------------------ */

static int number(const char **at, uint64_t *out)
{
    char *end;

    if (**at < '0' || **at > '9') /* strtoull would take a sign */
        return 0;
    errno = 0;
    *out = strtoull(*at, &end, 10);
    *at = end;
    return errno == 0;
}

static int parse_rule(struct faulty *f, const char **at)
{
    static const char *const names[RULES] = {
        [COPIES] = "copies=",
        [LATE] = "late=",
        [SILENT] = "silent=",
        [REFUSE] = "refuse=",
    };
    size_t i;

    if (strncmp(*at, "seed=", 5) == 0) {
        *at += 5;
        return number(at, &f->dice);
    }
    for (i = 0; i < RULES; i++) {
        if (strncmp(*at, names[i], strlen(names[i])) != 0)
            continue;
        *at += strlen(names[i]);
        return number(at, &f->percent[i]) && f->percent[i] <= 100;
    }
    return 0;
}

/* Reads the rules and leaves `*at` at the inner URL. A rule is not shown: it may
 * be the inner URL with a password. */
static int parse(struct faulty *f, const char **at, once_error *err)
{
    int rule = 0;

    *at = strchr(*at, ':') + 1;
    f->dice = 1;
    do {
        rule++;
        if (!parse_rule(f, at) || (**at != ',' && **at != '@'))
            return once__fail(err, ONCE_EURL,
                              "faulty: rule %d is not seed=N, copies=P, "
                              "late=P, silent=P or refuse=P, then \"@\" and "
                              "an inner URL",
                              rule);
    } while (*(*at)++ != '@');
    return ONCE_OK;
}

/* ---- Opening ------------------------------------------------------------ */

static void faulty_close(struct once__broker *b)
{
    struct faulty *f = (struct faulty *)b;

    if (f == NULL)
        return;
    if (f->inner != NULL)
        f->inner->ops->close(f->inner);
    once__ended_clear(&f->ended);
    free(f->flights);
    free(f);
}

static int faulty_open(const char *url, const struct once__broker_options *o,
                       struct once__broker **out, once_error *err)
{
    const struct once__broker_ops *inner;
    struct faulty *f = calloc(1, sizeof(*f));
    int rc;

    if (f == NULL)
        return once__fail(err, ONCE_ENOMEM, "faulty: out of memory");
    rc = parse(f, &url, err);
    if (rc != ONCE_OK)
        goto out;
    inner = once__broker_find(url, err);
    rc = inner == NULL ? ONCE_EURL : inner->open(url, o, &f->inner, err);
    if (rc != ONCE_OK)
        goto out;
    f->ops = once__broker_faulty;
    f->ops.knows_ids = inner->knows_ids;
    f->ops.at_once = inner->at_once;
    if (inner->receive == NULL) {
        f->ops.receive = NULL;
        f->ops.ack = NULL;
    }
    f->base.ops = &f->ops;
    *out = &f->base;
    f = NULL;
out:
    if (f != NULL)
        faulty_close(&f->base);
    return rc;
}

static int faulty_connect(struct once__broker *b, once_error *err)
{
    struct once__broker *inner = ((struct faulty *)b)->inner;

    return inner->ops->connect(inner, err);
}

/* ---- Sending ------------------------------------------------------------ */

/* splitmix64 */
static uint64_t roll(struct faulty *f)
{
    uint64_t x = f->dice += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A free place in the table, or NULL: no memory. */
static struct flight *place(struct faulty *f)
{
    size_t i, room = f->room == 0 ? 64 : f->room * 2;
    struct flight *more;

    for (i = 0; i < f->room; i++)
        if (f->flights[i].copies == 0)
            return &f->flights[i];
    more = realloc(f->flights, room * sizeof(*more));
    if (more == NULL)
        return NULL;
    memset(more + f->room, 0, (room - f->room) * sizeof(*more));
    f->flights = more;
    i = f->room;
    f->room = room;
    return &more[i];
}

static void end_here(struct faulty *f, const struct flight *x, int end,
                     const char *why)
{
    struct once__proof p = {.tag = x->tag, .end = end, .why = why};

    once__ended_add(&f->ended, &p, NULL);
}

static int launch(struct faulty *f, struct flight *x, once_error *err)
{
    int copies = x->copies, rc = ONCE_OK, i;

    f->held -= (size_t)x->held;
    x->held = 0;
    for (i = 0; i < copies; i++) {
        int one = f->inner->ops->send(f->inner, x->m,
                                      (uint64_t)(x - f->flights), err);

        x->copies -= one == ONCE_ENOMEM; /* no proof will come of it */
        rc = rc == ONCE_OK ? one : rc;
    }
    if (x->copies == 0)
        end_here(f, x, ONCE__END_UNSENT, NULL);
    return rc == ONCE_ENOMEM ? ONCE_OK : rc;
}

static int same_key(const once_message *a, const once_message *b)
{
    return a->key != NULL && b->key != NULL && strcmp(a->key, b->key) == 0;
}

/* Sends what is held, oldest first: all of it, or up to the last one with the
 * key of `m`. */
static int release(struct faulty *f, const once_message *m, once_error *err)
{
    int rc = ONCE_OK, one;

    while (f->held > 0) {
        struct flight *first = NULL;
        int wanted = m == NULL;
        size_t i;

        for (i = 0; i < f->room; i++) {
            struct flight *x = &f->flights[i];

            if (x->copies == 0 || !x->held)
                continue;
            if (first == NULL || x->number < first->number)
                first = x;
            wanted |= m != NULL && same_key(m, x->m);
        }
        if (!wanted)
            return rc;
        one = launch(f, first, err);
        rc = rc == ONCE_OK ? one : rc;
    }
    return rc;
}

static int faulty_send(struct once__broker *b, const once_message *m,
                       uint64_t tag, once_error *err)
{
    struct faulty *f = (struct faulty *)b;
    struct flight *x = place(f);
    int chosen[RULES], rc, i;

    if (x == NULL || !once__ended_reserve(&f->ended, f->room + 1))
        return once__fail(err, ONCE_ENOMEM, "faulty: out of memory");
    for (i = 0; i < RULES; i++) /* always all: no rule changes another's dice */
        chosen[i] = roll(f) % 100 < f->percent[i];
    *x = (struct flight){.m = m, .tag = tag, .number = f->sent++};
    x->p.end = -1;
    x->silent = chosen[SILENT];
    if (chosen[REFUSE]) {
        end_here(f, x, ONCE__END_REFUSED, "faulty: refused as asked");
        return ONCE_OK;
    }
    rc = f->held < HELD_MAX ? release(f, m, err) : release(f, NULL, err);
    x->copies = chosen[COPIES] ? 2 : 1;
    x->held = chosen[LATE] && rc == ONCE_OK;
    f->held += (size_t)x->held;
    if (!x->held) {
        int own = launch(f, x, err);

        rc = rc == ONCE_OK ? own : rc;
    }
    return rc;
}

/* ---- Proofs ------------------------------------------------------------- */

/* How sure an end is to have had an effect: the surest of two copies counts. */
static int weight(int end)
{
    switch (end) {
    case ONCE__END_TAKEN:
        return 3;
    case ONCE__END_FAILED:
    case ONCE__END_UNKNOWN:
        return 2;
    case ONCE__END_SILENT:
    case ONCE__END_NACKED:
        return 1;
    default:
        return 0;
    }
}

/* One copy's proof. 1: it was the last, and `*p` is the message's. */
static int join(struct faulty *f, struct once__proof *p)
{
    struct flight *x = &f->flights[p->tag];

    if (x->p.end >= 0 && weight(x->p.end) > weight(p->end))
        *p = x->p;
    x->p = *p;
    x->p.reply = (once_bytes){NULL, 0}; /* the next call ends it, and `why` */
    x->p.why = "faulty: the other copy's end";
    if (--x->copies > 0)
        return 0;
    p->tag = x->tag;
    if (x->silent && p->end == ONCE__END_TAKEN) {
        p->end = ONCE__END_SILENT;
        p->reply = (once_bytes){NULL, 0};
        p->why = "faulty: the proof is lost as asked";
    }
    return 1;
}

static size_t faulty_proofs(struct once__broker *b, uint32_t wait_ms,
                            struct once__proof *out, size_t max)
{
    struct faulty *f = (struct faulty *)b;
    uint64_t now = once__steady_ms(), until = now + wait_ms;
    struct once__proof p[PROOFS_MAX];
    size_t n = once__ended_take(&f->ended, out, max), k, i;

    if (n > 0)
        return n;
    (void)release(f, NULL, NULL);
    do {
        k = f->inner->ops->proofs(f->inner, (uint32_t)(until - now), p,
                                  max < PROOFS_MAX ? max : PROOFS_MAX);
        for (i = 0; i < k; i++)
            if (join(f, &p[i]))
                out[n++] = p[i];
        now = once__steady_ms();
    } while (n == 0 && k > 0 && now < until);
    return n > 0 ? n : once__ended_take(&f->ended, out, max);
}

static void faulty_abandon(struct once__broker *b)
{
    struct faulty *f = (struct faulty *)b;
    size_t i;

    for (i = 0; i < f->room; i++)
        if (f->flights[i].copies > 0 && f->flights[i].held) {
            f->flights[i].copies = 0;
            end_here(f, &f->flights[i], ONCE__END_UNSENT, NULL);
        }
    f->held = 0;
    f->inner->ops->abandon(f->inner);
}

/* ---- Receiving ---------------------------------------------------------- */

static int faulty_receive(struct once__broker *b, uint32_t wait_ms,
                          struct once__delivery **out, once_error *err)
{
    struct once__broker *inner = ((struct faulty *)b)->inner;

    return inner->ops->receive(inner, wait_ms, out, err);
}

static int faulty_ack(struct once__broker *b, struct once__delivery *d, int how,
                      once_error *err)
{
    struct once__broker *inner = ((struct faulty *)b)->inner;

    return inner->ops->ack(inner, d, how, err);
}

const struct once__broker_ops once__broker_faulty = {
    .scheme = "faulty",
    .knows_ids = 1,
    .at_once = 0,
    .open = faulty_open,
    .close = faulty_close,
    .connect = faulty_connect,
    .send = faulty_send,
    .proofs = faulty_proofs,
    .abandon = faulty_abandon,
    .receive = faulty_receive,
    .ack = faulty_ack,
};
