/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_call.c - once_call(), its results, and its asynchronous twin.
 *
 * Nothing is timed: the store's clock is moved by hand where leases matter, and
 * what takes a while is waited for, with a limit that only a hang reaches.
 */
#include "calls/call/call.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include <sys/wait.h>

#include "calls/http/http.h"
#include "t.h"

enum { HANG_MS = 60000, DECLINED = 7 };

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

static int same(once_bytes a, once_bytes b)
{
    return a.size == b.size &&
           (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* ---- Names --------------------------------------------------------------- */

/* Sums by Python's hashlib over what name.c says. */
static void names_and_fingerprints_are_those_of_all_releases(void)
{
    static const uint8_t name[32] =
        "\xb7\xaa\x78\x76\x5b\x38\x66\x74\x9b\xfb\x66\xdd\x87\x64\xbd\x03"
        "\xce\xc9\x97\x1e\xd3\x3f\xde\xb4\xce\x97\xc7\x1c\x1a\x36\x7b\xed";
    static const uint8_t print[32] =
        "\xe4\x5e\xc4\x11\xf6\xff\x7d\x0a\x0b\x30\xae\x97\xcb\x0f\x8a\xd9"
        "\x60\x9d\x4d\x24\x49\x41\x42\xd3\x05\x64\x70\x2c\x84\x73\x6e\x42";
    uint8_t out[32] = {0};

    T_EQ(once_name("default", text("order-42"), out), ONCE_OK);
    T_MEM(out, name, 32);
    memset(out, 0, sizeof(out));
    T_EQ(once_name(NULL, text("order-42"), out), ONCE_OK);
    T_MEM(out, name, 32);
    T_EQ(once__call_fingerprint(text("12.50 EUR"), out), ONCE_OK);
    T_MEM(out, print, 32);
}

static void group_and_key_do_not_run_into_each_other(void)
{
    uint8_t a[32] = {1}, b[32] = {2};

    T_EQ(once_name("ab", text("c"), a), ONCE_OK);
    T_EQ(once_name("a", text("bc"), b), ONCE_OK);
    T_OK(memcmp(a, b, 32) != 0);
    T_EQ(once_name("ab", (once_bytes){"c\0", 2}, b), ONCE_OK);
    T_OK(memcmp(a, b, 32) != 0);
}

static void names_have_limits(void)
{
    char group[34], key[257];
    uint8_t out[32] = {9}, before[32] = {9};

    memset(group, 'g', sizeof(group));
    memset(key, 0, sizeof(key));
    group[33] = '\0';
    T_EQ(once_name(group, text("k"), out), ONCE_ELIMIT);
    T_EQ(once_name("", text("k"), out), ONCE_EINVAL);
    T_EQ(once_name("a b", text("k"), out), ONCE_EINVAL);
    T_EQ(once_name("a\x7f", text("k"), out), ONCE_EINVAL);
    T_EQ(once_name("a\xc3\xa4", text("k"), out), ONCE_EINVAL);
    T_EQ(once_name("g", (once_bytes){NULL, 0}, out), ONCE_EINVAL);
    T_EQ(once_name("g", (once_bytes){key, 256}, out), ONCE_ELIMIT);
    T_MEM(out, before, 32);
    group[32] = '\0';
    T_EQ(once_name(group, (once_bytes){key, 255}, out), ONCE_OK);
    T_OK(memcmp(out, before, 32) != 0);
}

/* ---- The codec ----------------------------------------------------------- */

static uint8_t *encoded(const once__result *r, size_t *size)
{
    uint8_t *out;

    if (!T_OK(once__result_size(r, size, NULL) == ONCE_OK))
        abort();
    out = malloc(*size);
    if (out == NULL)
        abort();
    once__result_encode(r, out);
    return out;
}

static void a_result_comes_back_as_it_went_in(void)
{
    static const int codes[] = {0, 1, -1, 255, INT32_MAX, INT32_MIN};
    once__result back = {0, {NULL, 0}, {NULL, 0}};
    size_t i, size = 0;

    for (i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        once__result r = {codes[i], text("a/b; c=\"d\""), {"\0\1\xff", 3}};
        uint8_t *out;

        if (i == 1)
            r.type = r.bytes = (once_bytes){NULL, 0};
        out = encoded(&r, &size);
        T_EQ(once__result_decode((once_bytes){out, size}, &back, NULL),
             ONCE_OK);
        T_EQ(back.code, codes[i]);
        T_OK(same(back.type, r.type) && same(back.bytes, r.bytes));
        free(out);
    }
}

/* One result, one encoding: what is let through encodes to the same bytes. */
static void check_bytes(const uint8_t *in, size_t size, int expect_ok)
{
    once__result r = {0, {NULL, 0}, {NULL, 0}};
    once_error err = {0, ""};
    uint8_t *copy = malloc(size + 1), *again;
    size_t n = 0;
    int rc;

    if (copy == NULL)
        abort();
    memcpy(copy, in, size);
    rc = once__result_decode((once_bytes){copy, size}, &r, &err);
    T_OK(rc == ONCE_OK || rc == ONCE_ECORRUPT || rc == ONCE_EVERSION);
    T_OK(expect_ok < 0 || (rc == ONCE_OK) == expect_ok);
    T_OK(rc == ONCE_OK || err.code == rc);
    if (rc == ONCE_OK) {
        again = encoded(&r, &n);
        T_EQ(n, size);
        T_MEM(again, in, size);
        free(again);
    }
    free(copy);
}

static void damaged_results_are_refused(void)
{
    const once__result r = {3, text("text/plain"), text("some bytes")};
    size_t size = 0, i;
    uint8_t *out = encoded(&r, &size), *more;
    unsigned bit;

    for (i = 0; i < size; i++)
        check_bytes(out, i, 0);
    more = malloc(size + 1);
    if (more == NULL)
        abort();
    memcpy(more, out, size);
    more[size] = 0;
    check_bytes(more, size + 1, 0);
    for (i = 0; i < size; i++)
        for (bit = 0; bit < 8; bit++) {
            memcpy(more, out, size);
            more[i] ^= (uint8_t)(1u << bit);
            /* The code, the letters of the type and the bytes may be others. */
            check_bytes(more, size,
                        (i >= 4 && i < 8) || i >= 26                ? 1
                        : i >= 16 && more[i] >= 32 && more[i] < 127 ? 1
                                                                    : 0);
        }
    free(more);
    free(out);
}

static void results_have_limits(void)
{
    char type[258];
    once__result r = {0, {type, 255}, {NULL, 0}};
    size_t size = 0;

    memset(type, 'x', sizeof(type));
    T_EQ(once__result_size(&r, &size, NULL), ONCE_OK);
    r.type.size = 256;
    T_EQ(once__result_size(&r, &size, NULL), ONCE_ELIMIT);
    r.type = text("a\nb");
    T_EQ(once__result_size(&r, &size, NULL), ONCE_EINVAL);
    r.type = text("t");
    r.bytes = (once_bytes){type, ONCE_RESULT_MAX - 17};
    T_EQ(once__result_size(&r, &size, NULL), ONCE_OK);
    T_EQ(size, ONCE_RESULT_MAX);
    r.bytes.size++;
    T_EQ(once__result_size(&r, &size, NULL), ONCE_ELIMIT);
    r.bytes.size = SIZE_MAX;
    T_EQ(once__result_size(&r, &size, NULL), ONCE_ELIMIT);
}

/* ---- A world -------------------------------------------------------------- */

struct world {
    once_engine *e;
    atomic_uint_fast64_t now_ms; /* the store's clock, moved by hand */
    once_call_options o;
    once_result r;
    once_error err;

    /* What the work is to do, and what it saw. */
    const char *bytes;
    int code;
    int release, unknown;
    atomic_int runs;
    uint32_t attempt;
    uint64_t fence;
};

static uint64_t hand(void *user)
{
    return atomic_load(&((struct world *)user)->now_ms);
}

static void open_engine(struct world *w, const char *url)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;

    o.no_reaper = 1;
    o.create = 1;
    o.clock = hand;
    o.user = w;
    w->e = NULL;
    if (once_engine_open(url, &o, &w->err, &w->e) != ONCE_OK) {
        printf("Bail out! %s\n", w->err.text);
        exit(1);
    }
}

static void open_world(struct world *w, const char *url)
{
    memset(w, 0, sizeof(*w));
    w->o = (once_call_options)ONCE_CALL_OPTIONS_INIT;
    w->r = (once_result)ONCE_RESULT_INIT;
    w->o.group = "orders";
    w->o.key = text("order-42");
    w->o.lease_ms = 60000;
    w->bytes = "receipt";
    atomic_store(&w->now_ms, 1000000000000u);
    open_engine(w, url);
}

static void close_world(struct world *w)
{
    once_result_clear(&w->r);
    once_engine_close(w->e);
}

static int work(once_task *task, void *user)
{
    struct world *w = user;

    atomic_fetch_add(&w->runs, 1);
    w->attempt = once_task_attempt(task);
    w->fence = once_task_fence(task);
    if (w->bytes != NULL)
        T_EQ(once_task_result(task, "text/plain", text(w->bytes), NULL),
             ONCE_OK);
    if (w->release)
        once_task_release(task);
    if (w->unknown)
        once_task_unknown(task);
    if (w->release)
        once_task_release(task); /* too late to say that */
    return w->code;
}

static int call(struct world *w)
{
    once_result_clear(&w->r);
    w->err = (once_error){0, ""};
    return once_call(w->e, &w->o, work, w, &w->err, &w->r);
}

static void expect(struct world *w, int rc, int code, const char *bytes,
                   int runs)
{
    T_EQ(call(w), rc);
    T_EQ(w->r.code, code);
    T_OK(same(w->r.bytes, text(bytes)));
    T_EQ(atomic_load(&w->runs), runs);
    T_OK(rc >= 0 || w->err.code == rc);
}

static void advance(struct world *w, uint64_t ms)
{
    atomic_fetch_add(&w->now_ms, ms);
}

/* ---- Calls ---------------------------------------------------------------- */

static void it_runs_once_and_repeats_get_the_first_result(void)
{
    struct world w;

    open_world(&w, "memory:");
    expect(&w, ONCE_OK, 0, "receipt", 1);
    T_STR(w.r.type, "text/plain");
    T_EQ(w.r.attempt, 1);
    T_EQ(w.r.fence, w.fence);
    T_OK(w.fence > 0 && w.attempt == 1);
    w.bytes = "another";
    expect(&w, ONCE_REPLAY, 0, "receipt", 1);
    T_STR(w.r.type, "text/plain");
    T_EQ(w.r.fence, w.fence);
    w.o.key = text("order-43");
    expect(&w, ONCE_OK, 0, "another", 2);
    w.o.key = text("order-42");
    w.o.group = NULL; /* another group, another key */
    expect(&w, ONCE_OK, 0, "another", 3);
    close_world(&w);
}

static void a_failure_is_a_result(void)
{
    struct world w;

    open_world(&w, "memory:");
    w.code = DECLINED;
    w.bytes = "no money";
    expect(&w, ONCE_OK, DECLINED, "no money", 1);
    w.code = 0;
    expect(&w, ONCE_REPLAY, DECLINED, "no money", 1);
    w.o.retry_failed = 1; /* the record was made without: it is stricter */
    expect(&w, ONCE_REPLAY, DECLINED, "no money", 1);
    w.o.key = text("order-43");
    w.code = -DECLINED;
    expect(&w, ONCE_OK, -DECLINED, "no money", 2);
    w.code = 0;
    w.bytes = "paid";
    expect(&w, ONCE_OK, 0, "paid", 3);
    T_EQ(w.attempt, 2);
    w.code = DECLINED;
    expect(&w, ONCE_REPLAY, 0, "paid", 3);
    close_world(&w);
}

static void an_empty_result_is_one(void)
{
    struct world w;

    open_world(&w, "memory:");
    w.bytes = NULL;
    w.code = DECLINED;
    expect(&w, ONCE_OK, DECLINED, "", 1);
    T_STR(w.r.type, "");
    expect(&w, ONCE_REPLAY, DECLINED, "", 1);
    T_STR(w.r.type, "");
    close_world(&w);
}

static void a_rejected_repeat_gets_no_result(void)
{
    struct world w;

    open_world(&w, "memory:");
    w.o.duplicates = ONCE_DUPLICATES_REJECT;
    w.code = DECLINED;
    expect(&w, ONCE_OK, DECLINED, "receipt", 1);
    expect(&w, ONCE_REPEATED, DECLINED, "", 1);
    T_STR(w.r.type, "");
    close_world(&w);
}

static void another_fingerprint_is_a_mismatch(void)
{
    struct world w;

    open_world(&w, "memory:");
    w.o.fingerprint = text("12.50");
    expect(&w, ONCE_OK, 0, "receipt", 1);
    expect(&w, ONCE_REPLAY, 0, "receipt", 1);
    w.o.fingerprint = text("99.99");
    expect(&w, ONCE_MISMATCH, 0, "", 1);
    w.o.fingerprint = (once_bytes){NULL, 0};
    expect(&w, ONCE_MISMATCH, 0, "", 1);
    close_world(&w);
}

static void a_release_frees_the_key(void)
{
    struct world w;

    open_world(&w, "memory:");
    w.release = 1;
    w.code = DECLINED;
    w.bytes = "closed on Sundays";
    expect(&w, ONCE_FREE, DECLINED, "closed on Sundays", 1);
    T_EQ(w.r.attempt, 1);
    w.release = w.code = 0;
    w.bytes = "receipt";
    expect(&w, ONCE_OK, 0, "receipt", 2);
    T_EQ(w.r.attempt, 2);
    close_world(&w);
}

static void unknown_stays_unknown_until_an_operator_speaks(void)
{
    struct world w;

    open_world(&w, "memory:");
    w.unknown = w.release = 1; /* unknown wins */
    w.o.retry_failed = 1;
    expect(&w, ONCE_UNKNOWN, 0, "", 1);
    T_EQ(w.r.fence, w.fence);
    w.unknown = w.release = 0;
    expect(&w, ONCE_UNKNOWN, 0, "", 1);
    T_EQ(w.r.fence, w.fence);
    advance(&w, 365 * UINT64_C(86400000));
    expect(&w, ONCE_UNKNOWN, 0, "", 1);
    close_world(&w);
}

static void the_record_shows_the_group(void)
{
    struct world w;
    once_op op;

    open_world(&w, "memory:");
    T_EQ(call(&w), ONCE_OK);
    memset(&op, 0, sizeof(op));
    op.verb = ONCE_OP_SHOW;
    T_EQ(once_name("orders", text("order-42"), op.name), ONCE_OK);
    T_EQ(once_apply(w.e, &op, NULL), ONCE_REPLAY);
    T_STR((const char *)op.record.group, "orders");
    T_EQ(op.record.kind, ONCE_SUCCESS);
    once_op_clear(&op);
    close_world(&w);
}

static void bad_options_are_named(void)
{
    struct world w;

    open_world(&w, "memory:");
    w.o.key = text("");
    T_EQ(call(&w), ONCE_EINVAL);
    T_OK(strstr(w.err.text, "key") != NULL);
    w.o.key = text("a secret");
    w.o.group = "a b";
    T_EQ(call(&w), ONCE_EINVAL);
    T_OK(strstr(w.err.text, "group") != NULL);
    T_OK(strstr(w.err.text, "secret") == NULL);
    w.o.group = "g";
    w.o.duplicates = 2;
    T_EQ(call(&w), ONCE_EINVAL);
    w.o.duplicates = 0;
    w.o.takeover = 2;
    T_EQ(call(&w), ONCE_EINVAL);
    w.o.takeover = 0;
    w.o.retry_failed = 2;
    T_EQ(call(&w), ONCE_EINVAL);
    w.o.retry_failed = 0;
    w.o.lease_ms = 1;
    T_EQ(call(&w), ONCE_EINVAL);
    T_OK(strstr(w.err.text, "lease_ms") != NULL);
    w.o.lease_ms = 0;
    w.o.size = 1;
    T_EQ(call(&w), ONCE_EINVAL);
    T_EQ(atomic_load(&w.runs), 0);
    close_world(&w);
}

/* A program built with a header that had fewer options, or that will have more
 * in a result: what lies behind is neither read nor written. */
static void structs_of_other_releases_work(void)
{
    struct {
        once_result known;
        uint64_t more;
    } r = {ONCE_RESULT_INIT, 4711};
    struct world w;

    open_world(&w, "memory:");
    w.o.size = offsetof(once_call_options, duplicates);
    w.o.duplicates = 77; /* not looked at */
    r.known.size = sizeof(r);
    T_EQ(once_call(w.e, &w.o, work, &w, NULL, &r.known), ONCE_OK);
    T_EQ(r.known.size, sizeof(r));
    T_EQ(r.more, 4711);
    once_result_clear(&r.known);
    T_EQ(r.known.size, sizeof(r));
    T_EQ(r.more, 4711);
    T_EQ(once_call(w.e, &w.o, work, &w, NULL, NULL), ONCE_REPLAY);
    r.known.size = 8;
    T_EQ(once_call(w.e, &w.o, work, &w, NULL, &r.known), ONCE_EINVAL);
    close_world(&w);
}

/* ---- Limits of a result ---------------------------------------------------- */

static int fussy(once_task *task, void *user)
{
    char type[300];

    (void)user;
    memset(type, 'x', sizeof(type));
    type[299] = '\0';
    T_EQ(once_task_result(task, "a/b", text("first"), NULL), ONCE_OK);
    T_EQ(once_task_result(task, type, text("second"), NULL), ONCE_ELIMIT);
    T_EQ(once_task_result(task, "a\nb", text("third"), NULL), ONCE_EINVAL);
    T_EQ(
        once_task_result(task, NULL, (once_bytes){type, ONCE_RESULT_MAX}, NULL),
        ONCE_ELIMIT);
    return 0;
}

static void a_refused_result_leaves_the_one_before(void)
{
    struct world w;

    open_world(&w, "memory:");
    T_EQ(once_call(w.e, &w.o, fussy, NULL, NULL, &w.r), ONCE_OK);
    T_OK(same(w.r.bytes, text("first")));
    T_STR(w.r.type, "a/b");
    close_world(&w);
}

/* ---- Lost owners ------------------------------------------------------------ */

struct late {
    struct world *w;
    int takeover_by_other;
    int renewed[3];
};

static int outlives_its_lease(once_task *task, void *user)
{
    struct late *late = user;
    struct world *w = late->w;
    int rc = once_task_renew(task, NULL);

    late->renewed[0] = rc;
    advance(w, 61000);
    T_EQ(once_task_result(task, NULL, text("late"), NULL), ONCE_OK);
    w->bytes = "other";
    rc = call(w); /* it claims, and finds the lease over */
    late->renewed[1] = rc;
    late->renewed[2] = once_task_renew(task, NULL);
    return 0;
}

static void under_hold_nobody_takes_over_and_the_late_result_counts(void)
{
    struct world w;
    struct late late = {&w, 0, {0}};
    once_result r = ONCE_RESULT_INIT;

    open_world(&w, "memory:");
    T_EQ(once_call(w.e, &w.o, outlives_its_lease, &late, NULL, &r), ONCE_OK);
    T_EQ(late.renewed[0], ONCE_OK);
    T_EQ(late.renewed[1], ONCE_UNKNOWN);
    T_EQ(late.renewed[2], ONCE_LOST);
    T_OK(same(r.bytes, text("late")));
    T_EQ(atomic_load(&w.runs), 0);
    expect(&w, ONCE_REPLAY, 0, "late", 0);
    once_result_clear(&r);
    close_world(&w);
}

static void under_takeover_the_next_one_runs_and_wins(void)
{
    struct world w;
    struct late late = {&w, 0, {0}};
    once_result r = ONCE_RESULT_INIT;

    open_world(&w, "memory:");
    w.o.takeover = 1;
    T_EQ(once_call(w.e, &w.o, outlives_its_lease, &late, NULL, &r),
         ONCE_REPLAY);
    T_EQ(late.renewed[1], ONCE_OK);
    T_EQ(late.renewed[2], ONCE_FENCED);
    T_OK(same(r.bytes, text("other"))); /* one result for all */
    T_EQ(w.attempt, 2);
    T_EQ(atomic_load(&w.runs), 1);
    once_result_clear(&r);
    close_world(&w);
}

/* Released by the second, but the first may have done it: not free. */
static int releases_in_doubt(once_task *task, void *user)
{
    struct world *w = user;

    (void)task;
    advance(w, 61000);
    w->release = 1;
    T_EQ(call(w), ONCE_UNKNOWN);
    w->release = 0;
    return 0;
}

static void a_release_in_doubt_is_unknown(void)
{
    struct world w;
    once_result r = ONCE_RESULT_INIT;

    open_world(&w, "memory:");
    w.o.takeover = 1;
    T_EQ(once_call(w.e, &w.o, releases_in_doubt, &w, NULL, &r), ONCE_UNKNOWN);
    once_result_clear(&r);
    close_world(&w);
}

/* ---- A store that does not answer ------------------------------------------- */

static void a_store_that_is_silent_at_the_claim_runs_nothing(void)
{
    struct world w;

    open_world(&w, "faulty:fail=claim:1-*@memory:");
    w.o.store_ms = 20;
    expect(&w, ONCE_ESTORE, 0, "", 0);
    close_world(&w);
}

static void a_lost_answer_to_the_claim_is_asked_again(void)
{
    struct world w;

    open_world(&w, "faulty:lose=claim:1,lose=complete:1@memory:");
    expect(&w, ONCE_OK, 0, "receipt", 1);
    expect(&w, ONCE_REPLAY, 0, "receipt", 1);
    close_world(&w);
}

/* The outcome is still repeated then, and a claim that comes into one batch with
 * it is not answered either: it must have the time to be asked again. */
enum { LONG_MS = 60000 };

static void a_result_that_is_not_recorded_is_told_to_nobody(void)
{
    struct world w;

    open_world(&w, "faulty:fail=complete:1-*@memory:");
    w.o.store_ms = 20;
    w.o.lease_ms = 20;
    expect(&w, ONCE_UNKNOWN, 0, "", 1);
    T_EQ(w.r.fence, w.fence);
    w.o.store_ms = LONG_MS;
    expect(&w, ONCE_IN_FLIGHT, 0, "", 1); /* by the store's clock */
    T_EQ(w.r.left_ms, 20);
    advance(&w, 20);
    expect(&w, ONCE_UNKNOWN, 0, "", 1);
    close_world(&w);
}

static void a_recorded_result_whose_answer_is_lost_is_replayed(void)
{
    struct world w;

    open_world(&w, "faulty:lose=complete:1-*@memory:");
    w.o.store_ms = 20;
    w.o.lease_ms = 20;
    expect(&w, ONCE_UNKNOWN, 0, "", 1);
    w.o.store_ms = LONG_MS;
    expect(&w, ONCE_REPLAY, 0, "receipt", 1);
    close_world(&w);
}

static void a_release_that_is_not_recorded_is_an_error(void)
{
    struct world w;

    open_world(&w, "faulty:fail=release:1-*@memory:");
    w.o.store_ms = 20;
    w.o.lease_ms = 20;
    w.release = 1;
    expect(&w, ONCE_ESTORE, 0, "", 1);
    close_world(&w);
}

/* ---- Operators --------------------------------------------------------------- */

static void resolve(struct world *w, int kind, once_bytes result)
{
    once_op op;

    w->unknown = 1;
    T_EQ(call(w), ONCE_UNKNOWN);
    w->unknown = 0;
    memset(&op, 0, sizeof(op));
    op.verb = ONCE_OP_RESOLVE;
    op.kind = kind;
    op.keep_ms = 86400000;
    op.fence = w->r.fence;
    op.result = result;
    op.note = text("asked the bank");
    T_EQ(once_name(w->o.group, w->o.key, op.name), ONCE_OK);
    T_EQ(once_apply(w->e, &op, NULL), ONCE_OK);
    once_op_clear(&op);
}

static void what_an_operator_says_is_replayed(void)
{
    struct world w;

    open_world(&w, "memory:");
    resolve(&w, ONCE_SUCCESS, text("charge 99"));
    expect(&w, ONCE_REPLAY, 0, "charge 99", 1);
    w.o.key = text("order-43");
    resolve(&w, ONCE_FAILURE, text("refused"));
    expect(&w, ONCE_REPLAY, 1, "refused", 2);
    close_world(&w);
}

static void an_operators_response_is_its_body(void)
{
    static const once__header h = {
        {"Content-Type", 12}, {"application/json", 16}, 0};
    once__response r = {201, 0, {NULL, 0}, &h, 1, {"{}", 2}, {NULL, 0}};
    uint8_t out[200];
    struct world w;
    size_t size = 0;

    open_world(&w, "memory:");
    T_EQ(once__response_size(&r, &size, NULL), ONCE_OK);
    once__response_encode(&r, out);
    resolve(&w, ONCE_SUCCESS, (once_bytes){out, size});
    expect(&w, ONCE_REPLAY, 0, "{}", 1);
    T_STR(w.r.type, "application/json");

    r.flags = ONCE__NO_BODY;
    r.body.size = 0;
    w.o.key = text("order-43");
    T_EQ(once__response_size(&r, &size, NULL), ONCE_OK);
    once__response_encode(&r, out);
    resolve(&w, ONCE_SUCCESS, (once_bytes){out, size});
    expect(&w, ONCE_REPEATED, 0, "", 2);
    close_world(&w);
}

/* As another program might write it. */
static void write_record(struct world *w, int kind, once_bytes result)
{
    once_op op;

    memset(&op, 0, sizeof(op));
    op.verb = ONCE_OP_CLAIM;
    op.lease_ms = 1000;
    op.keep_ms = 100000;
    T_EQ(once_name(w->o.group, w->o.key, op.name), ONCE_OK);
    T_EQ(once__call_fingerprint(w->o.fingerprint, op.fingerprint), ONCE_OK);
    T_EQ(once_apply(w->e, &op, NULL), ONCE_OWNER);
    op.fence = op.record.fence;
    once_op_clear(&op);
    op.verb = ONCE_OP_COMPLETE;
    op.kind = kind;
    op.result = result;
    T_EQ(once_apply(w->e, &op, NULL), ONCE_OK);
    once_op_clear(&op);
}

static void a_record_of_somebody_else_is_an_error(void)
{
    struct world w;

    open_world(&w, "memory:");
    write_record(&w, ONCE_SUCCESS, text("whatever"));
    expect(&w, ONCE_ECORRUPT, 0, "", 0);
    w.o.duplicates = ONCE_DUPLICATES_REJECT; /* completed it is */
    expect(&w, ONCE_REPEATED, 0, "", 0);
    close_world(&w);
}

static void a_code_that_contradicts_its_record_is_an_error(void)
{
    const once__result r = {0, text("t"), text("paid")};
    uint8_t *bytes;
    struct world w;
    size_t size = 0;

    bytes = encoded(&r, &size);
    open_world(&w, "memory:");
    write_record(&w, ONCE_FAILURE, (once_bytes){bytes, size});
    expect(&w, ONCE_ECORRUPT, 0, "", 0);
    w.o.key = text("order-43");
    write_record(&w, ONCE_SUCCESS, (once_bytes){bytes, size});
    expect(&w, ONCE_REPLAY, 0, "paid", 0);
    close_world(&w);
    free(bytes);
}

/* ---- A process that dies ------------------------------------------------------ */

static int dies_after_the_effect(once_task *task, void *user)
{
    (void)task;
    (void)!write(*(int *)user, "x", 1);
    (void)raise(SIGKILL);
    return 0;
}

static void a_crash_between_effect_and_record_is_unknown(void)
{
    char folder[] = "/tmp/once-call-XXXXXX", url[64], command[64];
    struct world w;
    int effect[2], status = 0;
    char c[2];
    pid_t child;

    if (!T_OK(mkdtemp(folder) != NULL && pipe(effect) == 0))
        return;
    (void)snprintf(url, sizeof(url), "sqlite:%s/store.db", folder);
    child = fork(); /* before any engine is open */
    if (child == 0) {
        open_world(&w, url);
        _exit(once_call(w.e, &w.o, dies_after_the_effect, &effect[1], NULL,
                        NULL) < 0);
    }
    T_EQ(waitpid(child, &status, 0), child);
    T_OK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    (void)close(effect[1]);
    open_world(&w, url);
    expect(&w, ONCE_IN_FLIGHT, 0, "", 0);
    T_OK(w.r.left_ms > 0);
    advance(&w, 60000);
    expect(&w, ONCE_UNKNOWN, 0, "", 0);
    T_EQ(read(effect[0], c, 2), 1); /* the effect was there, once */
    (void)close(effect[0]);
    close_world(&w);
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    T_EQ(system(command), 0);
}

/* ---- Threads ------------------------------------------------------------------- */

enum { THREADS = 8, CALLS = 40 };

struct crowd {
    struct world w;
    atomic_int effects[CALLS];
    int one_key;
};

struct member {
    pthread_t thread;
    struct crowd *crowd;
    int number, answered;
};

struct effect {
    struct crowd *crowd;
    int key;
};

static int effect(once_task *task, void *user)
{
    struct effect *e = user;
    int n = atomic_fetch_add(&e->crowd->effects[e->key], 1);
    char bytes[40];

    (void)snprintf(bytes, sizeof(bytes), "key %d run %d", e->key, n);
    return once_task_result(task, "text/plain", text(bytes), NULL);
}

static void *member(void *argument)
{
    struct member *m = argument;
    int i;

    for (i = 0; i < CALLS; i++) {
        int key = m->crowd->one_key ? 0 : (i + m->number) % CALLS;
        struct effect e = {m->crowd, key};
        once_call_options o = m->crowd->w.o;
        once_result r = ONCE_RESULT_INIT;
        char name[20], want[40];
        int rc;

        (void)snprintf(name, sizeof(name), "key-%d", key);
        (void)snprintf(want, sizeof(want), "key %d run 0", key);
        o.key = text(name);
        o.wait_ms = HANG_MS;
        rc = once_call(m->crowd->w.e, &o, effect, &e, NULL, &r);
        m->answered += (rc == ONCE_OK || rc == ONCE_REPLAY) && r.code == 0 &&
                       same(r.bytes, text(want));
        once_result_clear(&r);
    }
    return NULL;
}

static void crowd(int one_key)
{
    static struct crowd c;
    struct member members[THREADS];
    int i;

    memset(&c, 0, sizeof(c));
    open_world(&c.w, "memory:");
    c.one_key = one_key;
    for (i = 0; i < THREADS; i++) {
        members[i] = (struct member){.crowd = &c, .number = i};
        T_EQ(pthread_create(&members[i].thread, NULL, member, &members[i]), 0);
    }
    for (i = 0; i < THREADS; i++) {
        T_EQ(pthread_join(members[i].thread, NULL), 0);
        T_EQ(members[i].answered, CALLS);
    }
    for (i = 0; i < (one_key ? 1 : CALLS); i++)
        T_EQ(atomic_load(&c.effects[i]), 1);
    close_world(&c.w);
}

static void many_threads_on_one_key_run_it_once(void)
{
    crowd(1);
}

static void many_threads_on_many_keys_run_each_once(void)
{
    crowd(0);
}

/* A claim is granted, and its answers are lost for so long that its lease ends
 * and somebody sees that: it has begun nothing, and never will. The somebody
 * may come too late for that, so there are several tries. */
static void *claims_in_vain(void *argument)
{
    struct world *w = argument;

    (void)call(w);
    return NULL;
}

static int in_flight(struct world *w)
{
    once_op op;
    int rc;

    memset(&op, 0, sizeof(op));
    op.verb = ONCE_OP_SHOW;
    T_EQ(once_name(w->o.group, w->o.key, op.name), ONCE_OK);
    rc = once_apply(w->e, &op, NULL);
    once_op_clear(&op);
    return rc == ONCE_IN_FLIGHT;
}

static int comes_too_late(const char *folder)
{
    char url[64], faulty[100];
    struct world late, other;
    pthread_t thread;
    int free_again, patience = HANG_MS;

    (void)snprintf(url, sizeof(url), "sqlite:%s/late.db", folder);
    (void)snprintf(faulty, sizeof(faulty), "faulty:lose=claim:1-8@%s", url);
    open_world(&other, url);
    open_world(&late, faulty);
    late.o.store_ms = HANG_MS;
    T_EQ(pthread_create(&thread, NULL, claims_in_vain, &late), 0);
    while (!in_flight(&other) && patience-- > 0)
        (void)usleep(1000);
    advance(&other, 61000);
    T_EQ(call(&other), ONCE_UNKNOWN);
    T_EQ(pthread_join(thread, NULL), 0);
    free_again = late.err.code == 0 && late.r.attempt == 0 &&
                 atomic_load(&late.runs) == 0 && !in_flight(&other);
    if (free_again)
        T_EQ(call(&other), ONCE_OK);
    close_world(&late);
    close_world(&other);
    return free_again;
}

static void a_claim_that_comes_too_late_runs_nothing(void)
{
    char folder[] = "/tmp/once-call-XXXXXX", command[64];
    int tries = 0, late = 0;

    if (!T_OK(mkdtemp(folder) != NULL))
        return;
    (void)snprintf(command, sizeof(command), "rm -f %s/*", folder);
    while (!late && tries++ < 20) {
        late = comes_too_late(folder);
        T_EQ(system(command), 0);
    }
    T_OK(late);
    T_EQ(rmdir(folder), 0);
}

/* The second is told at once; with `wait_ms` it gets the result. */
struct held {
    struct world *w;
    sem_t begun, go;
    int rc;
};

static int waits(once_task *task, void *user)
{
    struct held *h = user;

    (void)sem_post(&h->begun);
    while (sem_wait(&h->go) != 0)
        ;
    return once_task_result(task, NULL, text("slow"), NULL);
}

static void *holder(void *argument)
{
    struct held *h = argument;

    h->rc = once_call(h->w->e, &h->w->o, waits, h, NULL, NULL);
    return NULL;
}

static void another_call_is_told_in_flight_or_waits(void)
{
    struct world w;
    struct held h = {.w = &w};
    pthread_t thread;

    open_world(&w, "memory:");
    T_EQ(sem_init(&h.begun, 0, 0) | sem_init(&h.go, 0, 0), 0);
    T_EQ(pthread_create(&thread, NULL, holder, &h), 0);
    while (sem_wait(&h.begun) != 0)
        ;
    expect(&w, ONCE_IN_FLIGHT, 0, "", 0);
    T_OK(w.r.left_ms > 0 && w.r.left_ms <= 60000);
    w.o.wait_ms = 30;
    expect(&w, ONCE_IN_FLIGHT, 0, "", 0);
    w.o.wait_ms = HANG_MS;
    T_EQ(sem_post(&h.go), 0);
    expect(&w, ONCE_REPLAY, 0, "slow", 0);
    T_EQ(pthread_join(thread, NULL), 0);
    T_EQ(h.rc, ONCE_OK);
    (void)sem_destroy(&h.begun);
    (void)sem_destroy(&h.go);
    close_world(&w);
}

/* ---- The asynchronous twin -------------------------------------------------------- */

struct later {
    struct world w;
    sem_t begun, told;
    once_task *task;
    int end_at_once;
    int rc, code;
    char bytes[20], type[20];
};

static void begun(once_task *task, void *user)
{
    struct later *l = user;

    atomic_fetch_add(&l->w.runs, 1);
    l->task = task;
    if (l->end_at_once)
        once_task_end(task, DECLINED);
    else
        (void)sem_post(&l->begun);
}

static void called(int rc, const once_result *result, void *user)
{
    struct later *l = user;

    l->rc = rc;
    l->code = result->code;
    (void)snprintf(l->bytes, sizeof(l->bytes), "%.*s", (int)result->bytes.size,
                   result->bytes.size ? (const char *)result->bytes.data : "");
    (void)snprintf(l->type, sizeof(l->type), "%s", result->type);
    (void)sem_post(&l->told);
}

static void open_later(struct later *l)
{
    memset(l, 0, sizeof(*l));
    open_world(&l->w, "memory:");
    T_EQ(sem_init(&l->begun, 0, 0) | sem_init(&l->told, 0, 0), 0);
}

static void close_later(struct later *l)
{
    close_world(&l->w);
    (void)sem_destroy(&l->begun);
    (void)sem_destroy(&l->told);
}

static void await(sem_t *s)
{
    while (sem_wait(s) != 0)
        ;
}

static void start(struct later *l)
{
    T_EQ(once_call_start(l->w.e, &l->w.o, begun, called, l, NULL), ONCE_OK);
}

static void a_started_call_is_ended_by_another_thread_and_replayed(void)
{
    struct later l;

    open_later(&l);
    start(&l);
    await(&l.begun);
    T_EQ(once_task_attempt(l.task), 1);
    T_OK(once_task_fence(l.task) > 0);
    T_EQ(once_task_renew(l.task, NULL), ONCE_OK);
    T_EQ(once_task_result(l.task, "a/b", text("done"), NULL), ONCE_OK);
    once_task_end(l.task, 0);
    await(&l.told);
    T_EQ(l.rc, ONCE_OK);
    T_STR(l.bytes, "done");
    T_STR(l.type, "a/b");
    start(&l);
    await(&l.told);
    T_EQ(l.rc, ONCE_REPLAY);
    T_STR(l.bytes, "done");
    T_EQ(atomic_load(&l.w.runs), 1);
    expect(&l.w, ONCE_REPLAY, 0, "done", 1); /* the same record */
    close_later(&l);
}

static void a_started_call_may_end_within_begin(void)
{
    struct later l;

    open_later(&l);
    l.end_at_once = 1;
    start(&l);
    await(&l.told);
    T_EQ(l.rc, ONCE_OK);
    T_EQ(l.code, DECLINED);
    close_later(&l);
}

static void a_started_call_may_release_or_not_know(void)
{
    struct later l;

    open_later(&l);
    start(&l);
    await(&l.begun);
    once_task_release(l.task);
    once_task_end(l.task, 5);
    await(&l.told);
    T_EQ(l.rc, ONCE_FREE);
    T_EQ(l.code, 5);
    start(&l);
    await(&l.begun);
    T_EQ(once_task_attempt(l.task), 2);
    once_task_unknown(l.task);
    once_task_end(l.task, 0);
    await(&l.told);
    T_EQ(l.rc, ONCE_UNKNOWN);
    start(&l);
    await(&l.told);
    T_EQ(l.rc, ONCE_UNKNOWN);
    T_EQ(atomic_load(&l.w.runs), 2);
    close_later(&l);
}

static void a_started_call_that_outlives_the_engine_is_unknown(void)
{
    struct later l;

    open_later(&l);
    start(&l);
    await(&l.begun);
    once_engine_close(l.w.e);
    l.w.e = NULL;
    T_EQ(once_task_result(l.task, NULL, text("nobody"), NULL), ONCE_OK);
    once_task_end(l.task, 0);
    await(&l.told);
    T_EQ(l.rc, ONCE_UNKNOWN);
    T_STR(l.bytes, "");
    close_later(&l);
}

static void a_call_that_cannot_start_calls_nobody(void)
{
    struct later l;
    once_error err = {0, ""};

    open_later(&l);
    l.w.o.key = text("");
    T_EQ(once_call_start(l.w.e, &l.w.o, begun, called, &l, &err), ONCE_EINVAL);
    T_EQ(err.code, ONCE_EINVAL);
    close_later(&l);
}

/* ---- Several engines ----------------------------------------------------------------- */

static int order_and_mail(once_task *task, void *user)
{
    struct world *mail = user;

    T_EQ(call(mail), ONCE_OK);
    return once_task_result(task, NULL, mail->r.bytes, NULL);
}

static void work_may_call_with_another_engine(void)
{
    struct world orders, mail;

    open_world(&orders, "memory:");
    open_world(&mail, "memory:");
    mail.bytes = "mailed";
    T_EQ(once_call(orders.e, &orders.o, order_and_mail, &mail, NULL, &orders.r),
         ONCE_OK);
    T_OK(same(orders.r.bytes, text("mailed")));
    expect(&mail, ONCE_REPLAY, 0, "mailed", 1); /* the same key, elsewhere */
    close_world(&mail);
    close_world(&orders);
}

int main(void)
{
    T_RUN(names_and_fingerprints_are_those_of_all_releases);
    T_RUN(group_and_key_do_not_run_into_each_other);
    T_RUN(names_have_limits);
    T_RUN(a_result_comes_back_as_it_went_in);
    T_RUN(damaged_results_are_refused);
    T_RUN(results_have_limits);
    T_RUN(it_runs_once_and_repeats_get_the_first_result);
    T_RUN(a_failure_is_a_result);
    T_RUN(an_empty_result_is_one);
    T_RUN(a_rejected_repeat_gets_no_result);
    T_RUN(another_fingerprint_is_a_mismatch);
    T_RUN(a_release_frees_the_key);
    T_RUN(unknown_stays_unknown_until_an_operator_speaks);
    T_RUN(the_record_shows_the_group);
    T_RUN(bad_options_are_named);
    T_RUN(structs_of_other_releases_work);
    T_RUN(a_refused_result_leaves_the_one_before);
    T_RUN(under_hold_nobody_takes_over_and_the_late_result_counts);
    T_RUN(under_takeover_the_next_one_runs_and_wins);
    T_RUN(a_release_in_doubt_is_unknown);
    T_RUN(a_store_that_is_silent_at_the_claim_runs_nothing);
    T_RUN(a_lost_answer_to_the_claim_is_asked_again);
    T_RUN(a_result_that_is_not_recorded_is_told_to_nobody);
    T_RUN(a_recorded_result_whose_answer_is_lost_is_replayed);
    T_RUN(a_release_that_is_not_recorded_is_an_error);
    T_RUN(what_an_operator_says_is_replayed);
    T_RUN(an_operators_response_is_its_body);
    T_RUN(a_record_of_somebody_else_is_an_error);
    T_RUN(a_code_that_contradicts_its_record_is_an_error);
    T_RUN(a_crash_between_effect_and_record_is_unknown);
    T_RUN(many_threads_on_one_key_run_it_once);
    T_RUN(many_threads_on_many_keys_run_each_once);
    T_RUN(a_claim_that_comes_too_late_runs_nothing);
    T_RUN(another_call_is_told_in_flight_or_waits);
    T_RUN(a_started_call_is_ended_by_another_thread_and_replayed);
    T_RUN(a_started_call_may_end_within_begin);
    T_RUN(a_started_call_may_release_or_not_know);
    T_RUN(a_started_call_that_outlives_the_engine_is_unknown);
    T_RUN(a_call_that_cannot_start_calls_nobody);
    T_RUN(work_may_call_with_another_engine);
    return t_done();
}
