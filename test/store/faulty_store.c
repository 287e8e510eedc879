/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faulty_store.c - a store that misbehaves on purpose, around one that does not.
 * No build but that of the tests has it.
 *
 *    faulty:RULE[,RULE...]@INNER-URL
 *    delay_ms=N            each batch sleeps N ms before the inner store is
 *                          asked
 *    open_ms=N             so does opening
 *    fail=VERB:FROM[-TO]   a batch with one of these operations is refused
 *                          before the inner store sees it: ONCE_ESTORE
 *    bad=VERB:FROM[-TO]    so is one with such an operation on a record whose
 *                          name begins with a byte in this range
 *    lose=VERB:FROM[-TO]   ... is applied, and its answer is lost: ONCE_ESTORE
 *    full=VERB:FROM[-TO]   these operations are answered ONCE_EFULL, the others
 *                          of the batch are applied
 *
 * VERB is claim, dispatch, renew, complete, release, give_up, read, reap,
 * resolve, reopen, forget, show or any. Operations are counted from 1 for each
 * verb and each handle, repetitions too; TO may be `*`, for ever.
 *
 * It refuses a rule that it does not understand, by name: a test that asked
 * for a fault and did not get one would prove nothing. It knows nothing of
 * what an operation means: records are the inner store's.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "calls/store/store.h"

enum { RULES_MAX = 16, ANY = 0, DELAY_MAX_MS = 60000 };
enum what { DELAY, OPEN, BAD, FAIL, LOSE, FULL };

struct rule {
    enum what what;
    int verb; /* ANY or enum once_verb */
    uint64_t from, to;
};

struct faulty {
    once_store base;
    once_store_ops ops; /* durable and shared are the inner store's */
    once_store *inner;
    uint64_t seen[ONCE__OP_END]; /* by verb; ANY counts all */
    size_t count;
    struct rule rules[RULES_MAX];
};

static const char *const verbs[ONCE__OP_END] = {
    [ANY] = "any",
    [ONCE_OP_CLAIM] = "claim",
    [ONCE_OP_DISPATCH] = "dispatch",
    [ONCE_OP_RENEW] = "renew",
    [ONCE_OP_COMPLETE] = "complete",
    [ONCE_OP_RELEASE] = "release",
    [ONCE_OP_GIVE_UP] = "give_up",
    [ONCE_OP_READ] = "read",
    [ONCE_OP_REAP] = "reap",
    [ONCE_OP_RESOLVE] = "resolve",
    [ONCE_OP_REOPEN] = "reopen",
    [ONCE_OP_FORGET] = "forget",
    [ONCE_OP_SHOW] = "show",
};

/* ---- Grammar ----------------------------------------------------------- */

static int starts(const char **at, const char *word)
{
    size_t size = strlen(word);

    if (strncmp(*at, word, size) != 0)
        return 0;
    *at += size;
    return 1;
}

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

static int verb(const char **at, int *out)
{
    int v;

    for (v = 0; v < ONCE__OP_END; v++) {
        const char *rest = *at;

        assert(verbs[v] != NULL);
        if (starts(&rest, verbs[v]) && *rest == ':') {
            *at = rest + 1;
            *out = v;
            return 1;
        }
    }
    return 0;
}

static int range(const char **at, struct rule *r)
{
    if (!verb(at, &r->verb) || !number(at, &r->from) || r->from == 0)
        return 0;
    r->to = r->from;
    if (!starts(at, "-"))
        return 1;
    if (starts(at, "*")) {
        r->to = UINT64_MAX;
        return 1;
    }
    return number(at, &r->to) && r->to >= r->from;
}

static int parse_rule(const char **at, struct rule *r)
{
    memset(r, 0, sizeof(*r));
    r->what = FULL;
    if (starts(at, "delay_ms="))
        r->what = DELAY;
    else if (starts(at, "open_ms="))
        r->what = OPEN;
    if (r->what == DELAY || r->what == OPEN)
        return number(at, &r->from) && r->from <= DELAY_MAX_MS;
    if (starts(at, "bad="))
        r->what = BAD;
    else if (starts(at, "fail="))
        r->what = FAIL;
    else if (starts(at, "lose="))
        r->what = LOSE;
    else if (!starts(at, "full="))
        return 0;
    return range(at, r);
}

static int bad_rule(const char *rule, once_error *err)
{
    return once__fail(
        err, ONCE_EURL,
        "faulty: \"%.*s\" is not delay_ms=N, open_ms=N (up to %d), "
        "bad=VERB:FROM[-TO], fail=VERB:FROM[-TO], lose=VERB:FROM[-TO] or "
        "full=VERB:FROM[-TO]",
        (int)strcspn(rule, ",@"), rule, DELAY_MAX_MS);
}

/* Reads the rules and leaves `*at` at the inner store's URL. */
static int parse(struct faulty *f, const char **at, once_error *err)
{
    if (strchr(*at, '@') == NULL)
        return once__fail(err, ONCE_EURL,
                          "faulty: there is no '@' before an inner URL");
    for (;;) {
        const char *rule = *at;

        if (f->count == RULES_MAX)
            return once__fail(err, ONCE_EURL, "faulty: over %d rules",
                              RULES_MAX);
        if (!parse_rule(at, &f->rules[f->count]) ||
            (**at != ',' && **at != '@'))
            return bad_rule(rule, err);
        f->count++;
        if (*(*at)++ == '@')
            return ONCE_OK;
    }
}

/* ---- The store --------------------------------------------------------- */

static void faulty_close(once_store *s)
{
    struct faulty *f = (struct faulty *)s;

    if (f == NULL)
        return;
    once_store_close(f->inner);
    free(f);
}

static void sleep_ms(uint64_t ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};

    if (ms == 0)
        return;
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

static uint64_t total_delay(const struct faulty *f, enum what what)
{
    uint64_t ms = 0;
    size_t i;

    for (i = 0; i < f->count; i++)
        if (f->rules[i].what == what)
            ms += f->rules[i].from;
    return ms;
}

static int faulty_open(const char *rest, const once_store_options *options,
                       once_error *err, once_store **out)
{
    struct faulty *f = calloc(1, sizeof(*f));
    int rc;

    if (f == NULL)
        return once__fail(err, ONCE_ENOMEM, "faulty: %zu bytes", sizeof(*f));
    rc = parse(f, &rest, err);
    if (rc != ONCE_OK)
        goto out;
    sleep_ms(total_delay(f, OPEN));
    rc = once_store_open(rest, options, err, &f->inner);
    if (rc != ONCE_OK)
        goto out;
    f->ops = once__store_faulty;
    f->ops.durable = f->inner->ops->durable;
    f->ops.shared = f->inner->ops->shared;
    if (f->inner->ops->count == NULL)
        f->ops.count = NULL;
    if (f->inner->ops->head == NULL) {
        f->ops.head = NULL;
        f->ops.import = NULL;
        f->ops.fence = NULL;
    }
    f->base.ops = &f->ops;
    *out = &f->base;
    f = NULL;
out:
    if (f != NULL)
        faulty_close(&f->base);
    return rc;
}

/* Counts one operation and adds the bits of the rules that it meets. */
static unsigned meet(struct faulty *f, const once_op *op)
{
    unsigned met = 0;
    int v = op->verb;
    size_t i;

    f->seen[v]++;
    f->seen[ANY]++;
    for (i = 0; i < f->count; i++) {
        const struct rule *r = &f->rules[i];
        uint64_t n = r->what == BAD ? op->name[0] : f->seen[r->verb];

        if (r->what >= BAD && (r->verb == v || r->verb == ANY) &&
            n >= r->from && n <= r->to)
            met |= 1u << (r->what == BAD ? FAIL : r->what);
    }
    return met;
}

/* Returns what the rules say of all, with `others` those that find room. */
static unsigned meet_all(struct faulty *f, once_op **ops, size_t n,
                         once_op **others, size_t *left)
{
    unsigned met = 0, one;
    size_t i;

    for (i = 0; i < n; i++) {
        one = meet(f, ops[i]);
        met |= one;
        if (one & 1u << FULL) {
            ops[i]->rc = ONCE_EFULL;
            ops[i]->left_ms = 0;
            memset(&ops[i]->record, 0, sizeof(ops[i]->record));
        } else {
            others[(*left)++] = ops[i];
        }
    }
    return met;
}

static int faulty_apply(once_store *s, once_op **ops, size_t n, once_error *err)
{
    struct faulty *f = (struct faulty *)s;
    once_op **others = calloc(n + 1, sizeof(*others));
    uint64_t ms = total_delay(f, DELAY);
    unsigned met;
    size_t left = 0;
    int rc = ONCE_OK;

    if (others == NULL)
        return once__fail(err, ONCE_ESTORE, "faulty: out of memory");
    sleep_ms(ms);
    f->inner->forget_ms = s->forget_ms;
    met = meet_all(f, ops, n, others, &left);
    if (met & 1u << FAIL)
        rc = once__fail(err, ONCE_ESTORE, "faulty: failed as asked");
    else if (left > 0)
        rc = f->inner->ops->apply(f->inner, others, left, err);
    if (rc == ONCE_OK && (met & 1u << LOSE))
        rc = once__fail(err, ONCE_ESTORE, "faulty: answer lost as asked");
    free(others);
    return rc;
}

static int faulty_scan(once_store *s, int what, const once_position *after,
                       uint32_t max, once_each *each, void *user,
                       once_error *err)
{
    struct faulty *f = (struct faulty *)s;

    f->inner->forget_ms = s->forget_ms;
    return f->inner->ops->scan(f->inner, what, after, max, each, user, err);
}

static int faulty_tend(once_store *s, once_error *err)
{
    const struct faulty *f = (struct faulty *)s;

    return f->inner->ops->maintain == NULL
               ? ONCE_OK
               : f->inner->ops->maintain(f->inner, err);
}

static int faulty_time(once_store *s, const once_store_time *put,
                       once_store_time *out, once_error *err)
{
    const struct faulty *f = (struct faulty *)s;

    return f->inner->ops->time(f->inner, put, out, err);
}

static int faulty_count(once_store *s, once_counts *out, once_error *err)
{
    const struct faulty *f = (struct faulty *)s;

    return f->inner->ops->count(f->inner, out, err);
}

static int faulty_head(once_store *s, const once_store_head *put,
                       once_store_head *out, once_error *err)
{
    const struct faulty *f = (struct faulty *)s;

    return f->inner->ops->head(f->inner, put, out, err);
}

static int faulty_fence(once_store *s, uint64_t *out, once_error *err)
{
    const struct faulty *f = (struct faulty *)s;

    return f->inner->ops->fence(f->inner, out, err);
}

static int faulty_import(once_store *s, const once_named *r, size_t n,
                         once_error *err)
{
    const struct faulty *f = (struct faulty *)s;

    return f->inner->ops->import(f->inner, r, n, err);
}

const once_store_ops once__store_faulty = {
    .size = sizeof(once_store_ops),
    .name = "faulty",
    .open = faulty_open,
    .close = faulty_close,
    .apply = faulty_apply,
    .scan = faulty_scan,
    .maintain = faulty_tend,
    .time = faulty_time,
    .count = faulty_count,
    .head = faulty_head,
    .import = faulty_import,
    .fence = faulty_fence,
};
