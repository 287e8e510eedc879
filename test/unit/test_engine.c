/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine.c - the engine over real stores, whole and misbehaving.
 *
 * Nothing is timed: the store's clock is moved by hand where leases matter, and
 * what takes a while is waited for, with a limit that only a hang reaches.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <once/store.h>

#include "t.h"

enum { HANG_MS = 60000, SOON = 100000 };

/* ---- A world ----------------------------------------------------------- */

struct world {
    once_engine *e;
    atomic_uint_fast64_t now_ms; /* the store's clock, moved by hand */
    atomic_int events, jumps, settled, flushes, late, dropped, lost, apart;
};

static uint64_t hand(void *user)
{
    return atomic_load(&((struct world *)user)->now_ms);
}

static void event(void *user, const char *text)
{
    struct world *w = user;

    unsigned long long recorded, dropped;

    atomic_fetch_add(&w->events, 1);
    if (sscanf(text,
               "the store did not answer for longer than a lease: %llu "
               "outcomes were recorded late, %llu were not",
               &recorded, &dropped) == 2) {
        atomic_fetch_add(&w->late, (int)recorded);
        atomic_fetch_add(&w->dropped, (int)dropped);
    }
    if (strstr(text, "s behind this host's") != NULL)
        atomic_fetch_add(&w->apart, 1);
    if (strstr(text, "jumped ahead") != NULL)
        atomic_fetch_add(&w->jumps, 1);
    if (strstr(text, "agree again") != NULL || strstr(text, "set back") != NULL)
        atomic_fetch_add(&w->settled, 1);
}

static void flushed(void *user)
{
    atomic_fetch_add(&((struct world *)user)->flushes, 1);
}

static void lost(void *user, const uint8_t name[ONCE_NAME_SIZE],
                 const once_record *r)
{
    struct world *w = user;

    (void)name;
    T_EQ(r->state, ONCE_INDETERMINATE);
    atomic_fetch_add(&w->lost, 1);
}

static once_engine_options options(struct world *w)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;

    atomic_store(&w->now_ms, 1000000000000u);
    o.reap_ms = 5;
    o.create = 1;
    o.user = w;
    o.clock = hand;
    o.event = event;
    o.flush = flushed;
    o.lost = lost;
    return o;
}

static void open_with(struct world *w, const char *url,
                      const once_engine_options *o)
{
    once_error err = {0, ""};

    w->e = NULL;
    if (once_engine_open(url, o, &err, &w->e) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
}

static void open_world(struct world *w, const char *url)
{
    once_engine_options o;

    memset(w, 0, sizeof(*w));
    o = options(w);
    open_with(w, url, &o);
}

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    (void)nanosleep(&t, NULL);
}

#define UNTIL(cond)                                                            \
    do {                                                                       \
        int t__left = HANG_MS;                                                 \
        while (!(cond) && t__left-- > 0)                                       \
            pause_ms(1);                                                       \
        T_OK(cond);                                                            \
    } while (0)

static once_stats stats(const struct world *w)
{
    once_stats s;

    once_engine_stats(w->e, &s);
    return s;
}

static once_request request(unsigned key)
{
    once_request r = {.size = sizeof(r), .lease_ms = 60000};

    memcpy(r.name, &key, sizeof(key));
    memset(r.fingerprint, 7, sizeof(r.fingerprint));
    return r;
}

static once_attempt *attempt_of(struct world *w, const once_request *r)
{
    once_attempt *a = NULL;

    T_EQ(once_attempt_new(w->e, r, NULL, &a), ONCE_OK);
    return a;
}

static once_attempt *attempt(struct world *w, unsigned key)
{
    once_request r = request(key);

    return attempt_of(w, &r);
}

static once_bytes bytes(const char *text)
{
    return (once_bytes){text, strlen(text)};
}

static int claim_once(struct world *w, unsigned key)
{
    once_attempt *a = attempt(w, key);
    int rc = once_claim(a, NULL);

    once_attempt_free(a);
    return rc;
}

/* An operation without an attempt, as of somebody in another process. */
static once_op stranger(int verb, unsigned key)
{
    once_op op;

    memset(&op, 0, sizeof(op));
    op.verb = verb;
    op.lease_ms = 100;
    op.keep_ms = 500;
    memcpy(op.name, &key, sizeof(key));
    memset(op.token, 99, sizeof(op.token));
    memset(op.fingerprint, 7, sizeof(op.fingerprint));
    return op;
}

static int ask(struct world *w, int verb, unsigned key, once_record *out)
{
    once_op op = stranger(verb, key);
    int rc = once_apply(w->e, &op, NULL);

    if (out != NULL)
        *out = op.record;
    once_op_clear(&op);
    return rc;
}

/* ---- Stores that every scenario of a life runs on ---------------------- */

static char sqlite_url[64];

static int have_sqlite(void)
{
    return sqlite_url[0] != '\0';
}

static void each_store(void (*test)(struct world *w))
{
    const char *urls[] = {"memory:", "faulty:delay_ms=1@memory:", sqlite_url};
    struct world w;
    size_t i;

    for (i = 0; i < (have_sqlite() ? 3u : 2u); i++) {
        open_world(&w, urls[i]);
        test(&w);
        once_engine_close(w.e);
        if (i == 2)
            (void)unlink(sqlite_url + strlen("sqlite:"));
    }
}

static void life(struct world *w)
{
    once_attempt *a = attempt(w, 1), *b = attempt(w, 1);

    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(once_attempt_record(a)->attempt, 1);
    T_OK(once_attempt_record(a)->fence > 0);
    T_EQ(claim_once(w, 1), ONCE_IN_FLIGHT);
    T_EQ(once_attempt_keep(b, 4000000), ONCE_EINVAL);
    T_EQ(once_attempt_keep(a, 1), ONCE_EINVAL);
    T_EQ(once_attempt_keep(a, ONCE_KEEP_MAX_MS + 1), ONCE_EINVAL);
    T_EQ(once_attempt_keep(a, 4000000), ONCE_OK);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("paid"), NULL), ONCE_OK);
    T_EQ(once_attempt_keep(a, 4000000), ONCE_EINVAL);
    T_EQ(once_claim(b, NULL), ONCE_REPLAY);
    T_EQ(once_attempt_record(b)->keep_ms - once_attempt_record(b)->ended_ms,
         4000000);
    T_EQ(once_attempt_record(b)->kind, ONCE_SUCCESS);
    T_EQ(once_attempt_record(b)->result.size, 4);
    T_MEM(once_attempt_record(b)->result.data, "paid", 4);
    once_attempt_free(a);
    T_EQ(claim_once(w, 2), ONCE_OWNER);
    T_MEM(once_attempt_record(b)->result.data, "paid", 4);
    once_attempt_free(b);
}

static void an_owner_completes_and_a_repeat_is_told_the_same(void)
{
    each_store(life);
}

/* The claim's request and grant, as a process that was restarted has them. */
static void an_owner_goes_on(struct world *w)
{
    static const uint8_t token[ONCE_TOKEN_SIZE] = {1, 2, 3};
    once_request r = request(40);
    once_attempt *a, *b, *twin;
    once_record granted;

    r.token = token;
    a = attempt_of(w, &r);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    granted = *once_attempt_record(a);
    T_MEM(granted.token, token, sizeof(token));
    /* One that claims with the token is the same owner. */
    twin = attempt_of(w, &r);
    T_EQ(once_claim(twin, NULL), ONCE_OWNER);
    T_EQ(once_attempt_record(twin)->fence, granted.fence);
    T_EQ(once_attempt_record(twin)->attempt, 1);
    /* Freed without an end it gives nothing up. */
    T_EQ(once_attempt_resume(w->e, &r, &granted, NULL, &b), ONCE_OK);
    once_attempt_free(b);
    T_EQ(claim_once(w, 40), ONCE_IN_FLIGHT);
    /* The end, and once more. */
    for (int i = 0; i < 2; i++) {
        T_EQ(once_attempt_resume(w->e, &r, &granted, NULL, &b), ONCE_OK);
        T_EQ(once_claim(b, NULL), ONCE_EINVAL);
        T_EQ(once_complete(b, ONCE_SUCCESS, bytes("paid"), NULL), ONCE_OK);
        once_attempt_free(b);
    }
    T_EQ(once_attempt_resume(w->e, &r, &granted, NULL, &b), ONCE_OK);
    T_EQ(once_complete(b, ONCE_SUCCESS, bytes("other"), NULL), ONCE_REPLAY);
    T_MEM(once_attempt_record(b)->result.data, "paid", 4);
    once_attempt_free(b);
    once_attempt_free(twin);
    once_attempt_free(a);
    T_EQ(claim_once(w, 40), ONCE_REPLAY);
}

static void an_owner_may_go_on_in_another_process(void)
{
    each_store(an_owner_goes_on);
}

static void another_owner_is_refused(struct world *w)
{
    static const uint8_t token[ONCE_TOKEN_SIZE] = {1, 2, 3};
    static const uint8_t other[ONCE_TOKEN_SIZE] = {1, 2, 4};
    once_request r = request(41);
    once_attempt *a, *b = NULL;
    once_record granted;

    T_EQ(once_attempt_resume(w->e, &r, &(once_record){.fence = 1}, NULL, &b),
         ONCE_EINVAL);
    r.token = token;
    T_EQ(once_attempt_resume(w->e, &r, &(once_record){.fence = 0}, NULL, &b),
         ONCE_EINVAL);
    a = attempt_of(w, &r);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    granted = *once_attempt_record(a);
    r.token = other;
    T_EQ(once_attempt_resume(w->e, &r, &granted, NULL, &b), ONCE_OK);
    T_EQ(once_complete(b, ONCE_SUCCESS, bytes("x"), NULL), ONCE_IN_FLIGHT);
    once_attempt_free(b);
    granted.fence++;
    r.token = token;
    T_EQ(once_attempt_resume(w->e, &r, &granted, NULL, &b), ONCE_OK);
    T_EQ(once_complete(b, ONCE_SUCCESS, bytes("x"), NULL), ONCE_IN_FLIGHT);
    once_attempt_free(b);
    T_EQ(claim_once(w, 41), ONCE_IN_FLIGHT);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("paid"), NULL), ONCE_OK);
    once_attempt_free(a);
}

static void who_is_not_the_owner_cannot_go_on(void)
{
    each_store(another_owner_is_refused);
}

static void two_phases(struct world *w)
{
    once_request r = request(3);
    once_attempt *a;

    r.two_phase = 1;
    a = attempt_of(w, &r);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(once_attempt_record(a)->state, ONCE_DISPATCHED);
    T_EQ(once_complete(a, ONCE_FAILURE, bytes("no"), NULL), ONCE_OK);
    T_EQ(claim_once(w, 3), ONCE_REPLAY);
    once_attempt_free(a);
}

static void two_phases_are_dispatched_before_the_owner_is_told(void)
{
    each_store(two_phases);
}

static void other_ends(struct world *w)
{
    once_request r = request(4);
    once_attempt *a = attempt(w, 4), *b = attempt(w, 4);

    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    memset(r.fingerprint, 8, sizeof(r.fingerprint));
    {
        once_attempt *other = attempt_of(w, &r);

        T_EQ(once_claim(other, NULL), ONCE_MISMATCH);
        once_attempt_free(other);
    }
    T_EQ(once_release(a, ONCE_REASON_NOT_SENT, NULL), ONCE_OK);
    once_attempt_free(a);
    T_EQ(once_claim(b, NULL), ONCE_OWNER);
    T_EQ(once_attempt_record(b)->attempt, 2);
    T_EQ(once_give_up(b, ONCE_REASON_TIMEOUT, NULL), ONCE_OK);
    once_attempt_free(b);
    T_EQ(claim_once(w, 4), ONCE_UNKNOWN);
    T_EQ(claim_once(w, 4), ONCE_UNKNOWN);
}

static void release_frees_the_key_and_give_up_leaves_it_unknown(void)
{
    each_store(other_ends);
}

static void abandoned(struct world *w)
{
    once_attempt *a = attempt(w, 5);
    once_record r;

    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    once_attempt_free(a);
    UNTIL(ask(w, ONCE_OP_SHOW, 5, &r) == ONCE_UNKNOWN);
    T_EQ(r.state, ONCE_INDETERMINATE);
    UNTIL(stats(w).live == 0);
}

/* What waits is counted without being asked, and only if it is to be. */
static void records_are_counted_as_often_as_the_options_say(void)
{
    struct world w;
    once_engine_options o;
    once_attempt *a;

    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.count_ms = 5;
    open_with(&w, "memory:", &o);
    UNTIL(stats(&w).counted == 1);
    T_EQ(stats(&w).indeterminate + stats(&w).dispatched, 0);
    a = attempt(&w, 9);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    UNTIL(stats(&w).dispatched == 1);
    T_EQ(stats(&w).oldest_indeterminate_ms, 0);
    T_EQ(once_give_up(a, ONCE_REASON_TIMEOUT, NULL), ONCE_OK);
    once_attempt_free(a);
    UNTIL(stats(&w).indeterminate == 1 && stats(&w).dispatched == 0);
    T_EQ(stats(&w).oldest_indeterminate_ms, 1000000000000u);
    once_engine_close(w.e);

    open_world(&w, "memory:");
    T_EQ(claim_once(&w, 1), ONCE_OWNER);
    T_EQ(stats(&w).counted, 0);
    once_engine_close(w.e);
}

static void a_store_is_up_while_it_answers(void)
{
    struct world w;

    open_world(&w, "faulty:fail=any:2-9@memory:");
    UNTIL(stats(&w).up == 1);
    T_EQ(stats(&w).durable, 0);
    T_EQ(claim_once(&w, 1), ONCE_OWNER);
    UNTIL(stats(&w).up == 0);
    UNTIL(stats(&w).up == 1);
    UNTIL(stats(&w).swept_ms != UINT64_MAX);
    T_EQ(stats(&w).late, 0);
    once_engine_close(w.e);
}

static void an_owner_that_is_freed_is_given_up(void)
{
    each_store(abandoned);
}

static void late(struct world *w)
{
    once_attempt *a = attempt(w, 6), *b = attempt(w, 6);
    once_op op = stranger(ONCE_OP_RESOLVE, 6);
    once_record r;

    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    atomic_fetch_add(&w->now_ms, 120000); /* no renewal comes that fast */
    UNTIL(ask(w, ONCE_OP_SHOW, 6, &r) == ONCE_UNKNOWN);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("late"), NULL), ONCE_OK);
    T_EQ(claim_once(w, 6), ONCE_REPLAY);
    once_attempt_free(a);
    once_attempt_free(b);
    b = attempt(w, 7);
    T_EQ(once_claim(b, NULL), ONCE_OWNER);
    atomic_fetch_add(&w->now_ms, 120000);
    UNTIL(ask(w, ONCE_OP_SHOW, 7, &r) == ONCE_UNKNOWN);
    op.name[0] = 7;
    op.fence = r.fence;
    op.kind = ONCE_SUCCESS;
    op.result = bytes("by hand");
    op.note = bytes("root saw the bank's books");
    T_EQ(once_apply(w->e, &op, NULL), ONCE_OK);
    T_EQ(op.record.note.size, op.note.size);
    once_op_clear(&op);
    T_EQ(once_complete(b, ONCE_SUCCESS, bytes("mine"), NULL), ONCE_REPLAY);
    T_MEM(once_attempt_record(b)->result.data, "by hand", 7);
    once_attempt_free(b);
}

static void a_late_outcome_is_accepted_and_a_resolved_one_stands(void)
{
    each_store(late);
}

/* ---- Misuse, limits ---------------------------------------------------- */

static void what_is_out_of_range_is_refused_with_its_limit(void)
{
    struct world w;
    once_attempt *a = NULL;
    once_request r = request(1);
    once_error err = {0, ""};
    once_op op = stranger(99, 1);

    open_world(&w, "memory:");
    r.lease_ms = ONCE_LEASE_MAX_MS + 1;
    T_EQ(once_attempt_new(w.e, &r, &err, &a), ONCE_EINVAL);
    T_OK(strstr(err.text, "lease_ms") != NULL);
    T_OK(strstr(err.text, "3600000") != NULL);
    r.lease_ms = ONCE_LEASE_MIN_MS - 1;
    T_EQ(once_attempt_new(w.e, &r, &err, &a), ONCE_EINVAL);
    r = request(1);
    r.keep_ms = r.lease_ms - 1;
    T_EQ(once_attempt_new(w.e, &r, &err, &a), ONCE_EINVAL);
    T_OK(strstr(err.text, "keep_ms") != NULL);
    r = request(1);
    r.policy = 4;
    T_EQ(once_attempt_new(w.e, &r, &err, &a), ONCE_EINVAL);
    r = request(1);
    r.size = 0;
    T_EQ(once_attempt_new(w.e, &r, &err, &a), ONCE_EINVAL);
    T_OK(a == NULL);
    T_EQ(once_apply(w.e, &op, &err), ONCE_EINVAL);
    op = stranger(ONCE_OP_RESOLVE, 1);
    op.kind = ONCE_SUCCESS;
    op.note.size = ONCE_NOTE_MAX + 1;
    T_EQ(once_apply(w.e, &op, &err), ONCE_ELIMIT);
    T_EQ(once_submit(w.e, &op, &err), ONCE_EINVAL); /* no `done` */
    once_engine_close(w.e);
}

static void only_an_owner_may_say_what_became_of_it(void)
{
    struct world w;
    once_attempt *a;
    once_bytes big = {"", ONCE_RESULT_MAX + 1};

    open_world(&w, "memory:");
    a = attempt(&w, 1);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes(""), NULL), ONCE_EINVAL);
    T_EQ(once_release(a, ONCE_REASON_NOT_SENT, NULL), ONCE_EINVAL);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(once_claim(a, NULL), ONCE_EINVAL);
    T_EQ(once_complete(a, ONCE_SUCCESS, big, NULL), ONCE_ELIMIT);
    T_EQ(once_complete(a, 3, bytes(""), NULL), ONCE_EINVAL);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes(""), NULL), ONCE_OK);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes(""), NULL), ONCE_EINVAL);
    T_EQ(once_give_up(a, ONCE_REASON_TIMEOUT, NULL), ONCE_EINVAL);
    once_attempt_free(a);
    once_attempt_free(NULL);
    once_engine_close(w.e);
    once_engine_close(NULL);
}

static void an_engine_that_cannot_open_says_why(void)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_engine *e = NULL;
    once_error err = {0, ""};

    T_EQ(once_engine_open("nosuch:secret", &o, &err, &e), ONCE_EURL);
    T_OK(strstr(err.text, "memory:") != NULL);
    T_OK(strstr(err.text, "secret") == NULL);
    o.batch_max = 1u << 30;
    T_EQ(once_engine_open("memory:", &o, &err, &e), ONCE_EINVAL);
    T_OK(strstr(err.text, "batch_max") != NULL);
    o.size = 0;
    T_EQ(once_engine_open("memory:", &o, &err, &e), ONCE_EINVAL);
    T_OK(e == NULL);
}

/* ---- Many threads ------------------------------------------------------ */

enum { THREADS = 8, KEYS = 250, ROUNDS = 1500 };

struct crowd {
    struct world w;
    atomic_int executed[KEYS]; /* work done                          */
    atomic_int wrong;          /* told another outcome than the first */
    atomic_int silent;         /* ends that may not happen without faults */
    atomic_uint next;
    int two_phase;
};

static void work(struct crowd *c, unsigned key, once_attempt *a)
{
    char text[32];
    int rc, n = snprintf(text, sizeof(text), "outcome of %u", key);

    atomic_fetch_add(&c->executed[key], 1);
    rc = once_complete(a, ONCE_SUCCESS, (once_bytes){text, (size_t)n}, NULL);
    if (rc == ONCE_ESTORE)
        atomic_fetch_add(&c->silent, 1);
    else if (rc != ONCE_OK)
        atomic_fetch_add(&c->wrong, 1);
}

static void check(struct crowd *c, unsigned key, const once_record *r)
{
    char text[32];
    int n = snprintf(text, sizeof(text), "outcome of %u", key);

    if (r->result.size != (size_t)n ||
        memcmp(r->result.data, text, (size_t)n) != 0)
        atomic_fetch_add(&c->wrong, 1);
}

static void *one_of_the_crowd(void *argument)
{
    struct crowd *c = argument;
    unsigned i;

    for (i = 0; i < ROUNDS; i++) {
        unsigned key = atomic_fetch_add(&c->next, 1) % KEYS;
        once_request r = request(key);
        once_attempt *a = NULL;
        int rc;

        r.two_phase = (uint32_t)c->two_phase;
        r.store_ms = SOON;
        r.wait_ms = i % 3 == 0 ? SOON : 0;
        if (once_attempt_new(c->w.e, &r, NULL, &a) != ONCE_OK)
            abort();
        rc = once_claim(a, NULL);
        if (rc == ONCE_OWNER)
            work(c, key, a);
        else if (rc == ONCE_REPLAY)
            check(c, key, once_attempt_record(a));
        else if (rc != ONCE_IN_FLIGHT || r.wait_ms != 0)
            atomic_fetch_add(&c->wrong, 1);
        once_attempt_free(a);
    }
    return NULL;
}

static void crowd(const char *url, int two_phase)
{
    struct crowd *c = calloc(1, sizeof(*c));
    pthread_t threads[THREADS];
    size_t i;

    if (c == NULL)
        abort();
    c->two_phase = two_phase;
    open_world(&c->w, url);
    for (i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, one_of_the_crowd, c) != 0)
            abort();
    for (i = 0; i < THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    for (i = 0; i < KEYS; i++)
        T_EQ(atomic_load(&c->executed[i]), 1);
    T_EQ(atomic_load(&c->wrong), 0);
    T_EQ(atomic_load(&c->silent), 0);
    once_engine_close(c->w.e);
    free(c);
}

static void eight_threads_execute_each_key_once(void)
{
    crowd("memory:", 0);
    crowd("memory:", 1);
    if (have_sqlite()) {
        crowd(sqlite_url, 0);
        (void)unlink(sqlite_url + strlen("sqlite:"));
    }
}

static void lost_answers_make_no_second_owner(void)
{
    crowd("faulty:lose=claim:1-3,lose=claim:40-60,lose=complete:5-30,"
          "fail=claim:100-120,fail=complete:60-80,lose=any:900-950@memory:",
          0);
    crowd("faulty:lose=claim:1-20,lose=dispatch:1-20,fail=dispatch:50-60,"
          "lose=complete:1-20,fail=any:700-720@memory:",
          1);
}

/* ---- A store that does not answer -------------------------------------- */

static void a_claim_that_never_arrives_ends_unanswered(void)
{
    struct world w;
    once_request r = request(1);
    once_attempt *a;

    open_world(&w, "faulty:fail=claim:1-*@memory:");
    r.store_ms = 20;
    a = attempt_of(&w, &r);
    T_EQ(once_claim(a, NULL), ONCE_ESTORE);
    once_attempt_free(a);
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, NULL), ONCE_FREE);
    T_OK(stats(&w).unknown > 0);
    T_OK(atomic_load(&w.events) > 0);
    once_engine_close(w.e);
}

static void a_claim_whose_answer_is_lost_is_taken_back_by_its_token(void)
{
    struct world w;
    once_request r = request(1);
    once_attempt *a;
    once_record record;

    open_world(&w, "faulty:lose=claim:1-*@memory:");
    r.store_ms = 20;
    a = attempt_of(&w, &r);
    T_EQ(once_claim(a, NULL), ONCE_ESTORE);
    once_attempt_free(a);
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, &record), ONCE_FREE);
    T_EQ(record.attempt, 1); /* it was applied, and released */
    T_EQ(record.state, ONCE_ABSENT);
    once_engine_close(w.e);
}

static void a_claim_and_its_release_that_are_lost_leave_it_to_the_reaper(void)
{
    struct world w;
    once_request r = request(1);
    once_attempt *a;

    open_world(&w, "faulty:lose=claim:1-*,fail=release:1-*@memory:");
    r.store_ms = 20;
    a = attempt_of(&w, &r);
    T_EQ(once_claim(a, NULL), ONCE_ESTORE);
    once_attempt_free(a);
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, NULL), ONCE_IN_FLIGHT);
    atomic_fetch_add(&w.now_ms, r.lease_ms);
    UNTIL(ask(&w, ONCE_OP_SHOW, 1, NULL) == ONCE_UNKNOWN);
    once_engine_close(w.e);
}

static void a_claim_whose_first_answer_is_lost_keeps_its_fence(void)
{
    struct world w;
    once_attempt *a;

    open_world(&w, "faulty:lose=claim:1-3@memory:");
    a = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(once_attempt_record(a)->attempt, 1);
    T_EQ(once_attempt_record(a)->fence, 1);
    T_EQ(stats(&w).unknown, 3);
    T_EQ(stats(&w).repeated, 3);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("x"), NULL), ONCE_OK);
    once_attempt_free(a);
    once_engine_close(w.e);
}

/* The first one was applied, so "no room" is not the whole truth. */
static void a_claim_that_finds_no_room_later_is_taken_back(void)
{
    struct world w;
    once_attempt *a;
    once_record record;

    open_world(&w, "faulty:lose=claim:1,full=claim:2-*@memory:");
    a = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_ESTORE);
    once_attempt_free(a);
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, &record), ONCE_FREE);
    T_EQ(record.attempt, 1);
    T_EQ(claim_once(&w, 1), ONCE_EFULL); /* this one changed nothing */
    once_engine_close(w.e);
}

static void a_lost_dispatch_is_released_and_nothing_is_sent(void)
{
    struct world w;
    once_request r = request(1);
    once_attempt *a;
    once_record record;

    open_world(&w, "faulty:lose=dispatch:1-*@memory:");
    r.store_ms = 20;
    r.two_phase = 1;
    a = attempt_of(&w, &r);
    T_EQ(once_claim(a, NULL), ONCE_ESTORE);
    once_attempt_free(a);
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, &record), ONCE_FREE);
    T_EQ(record.attempt, 1);
    once_engine_close(w.e);
}

static void complete_is_repeated_until_the_lease_is_over(void)
{
    struct world w;
    once_engine_options o;
    once_request r = request(1);
    once_attempt *a;
    once_record record;

    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.drain_ms = 1;
    open_with(&w, "faulty:fail=complete:1-*@memory:", &o);
    r.store_ms = 20;
    r.lease_ms = 200;
    a = attempt_of(&w, &r);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("lost"), NULL), ONCE_ESTORE);
    once_attempt_free(a);
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, &record), ONCE_IN_FLIGHT);
    T_EQ(record.state, ONCE_DISPATCHED); /* never a release */
    atomic_fetch_add(&w.now_ms, 200);
    UNTIL(ask(&w, ONCE_OP_SHOW, 1, NULL) == ONCE_UNKNOWN);
    once_engine_close(w.e);
}

/* Its caller was told "unknown", and its attempt is gone. */
static void unknown_for_now(struct world *w, unsigned key)
{
    once_request r = request(key);
    once_attempt *a;
    int rc;

    r.store_ms = 20;
    r.lease_ms = 100;
    a = attempt_of(w, &r);
    /* An outcome that is asked again may take the claim's batch with it. */
    while ((rc = once_claim(a, NULL)) == ONCE_ESTORE) {
        once_attempt_free(a);
        a = attempt_of(w, &r);
    }
    T_EQ(rc, ONCE_OWNER);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("late"), NULL), ONCE_ESTORE);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("twice"), NULL), ONCE_EINVAL);
    once_attempt_free(a);
}

static void an_outcome_is_recorded_when_the_store_is_back_after_the_lease(void)
{
    struct world w;
    once_attempt *b;

    open_world(&w, "faulty:fail=complete:1-18@memory:");
    unknown_for_now(&w, 1);
    atomic_fetch_add(&w.now_ms, 200);
    UNTIL(ask(&w, ONCE_OP_SHOW, 1, NULL) == ONCE_UNKNOWN); /* reaped */
    UNTIL(ask(&w, ONCE_OP_SHOW, 1, NULL) == ONCE_REPLAY);
    UNTIL(stats(&w).unrecorded == 0);
    b = attempt(&w, 1);
    T_EQ(once_claim(b, NULL), ONCE_REPLAY);
    T_EQ(once_attempt_record(b)->result.size, 4);
    T_MEM(once_attempt_record(b)->result.data, "late", 4);
    once_attempt_free(b);
    UNTIL(stats(&w).queued == 0);
    T_EQ(atomic_load(&w.late), 1);
    T_EQ(atomic_load(&w.dropped), 0);
    once_engine_close(w.e);
}

static void a_release_is_recorded_when_the_store_is_back_after_the_lease(void)
{
    struct world w;
    once_request r = request(1);
    once_attempt *a;

    open_world(&w, "faulty:fail=release:1-18@memory:");
    r.store_ms = 20;
    r.lease_ms = 100;
    a = attempt_of(&w, &r);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(once_release(a, ONCE_REASON_NOT_SENT, NULL), ONCE_ESTORE);
    once_attempt_free(a);
    atomic_fetch_add(&w.now_ms, 200);
    UNTIL(ask(&w, ONCE_OP_SHOW, 1, NULL) == ONCE_UNKNOWN); /* reaped */
    UNTIL(ask(&w, ONCE_OP_SHOW, 1, NULL) == ONCE_FREE);
    once_engine_close(w.e);
}

static void a_claim_that_is_taken_back_is_not_asked_for_ever(void)
{
    struct world w;
    once_request r = request(1);
    once_attempt *a;

    open_world(&w, "faulty:lose=claim:1-*,fail=release:1-*@memory:");
    r.store_ms = 20;
    a = attempt_of(&w, &r);
    T_EQ(once_claim(a, NULL), ONCE_ESTORE);
    once_attempt_free(a);
    UNTIL(stats(&w).queued == 0);
    T_EQ(atomic_load(&w.late) + atomic_load(&w.dropped), 0);
    once_engine_close(w.e);
}

static void outcomes_that_wait_for_the_store_are_bounded_in_time(void)
{
    struct world w;
    once_engine_options o;

    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.late_ms = 30;
    open_with(&w, "faulty:fail=complete:1-*@memory:", &o);
    unknown_for_now(&w, 1);
    UNTIL(atomic_load(&w.dropped) == 1);
    T_EQ(stats(&w).queued, 0);
    T_EQ(atomic_load(&w.late), 0);
    once_engine_close(w.e);
}

static void outcomes_that_wait_for_the_store_are_bounded_in_bytes(void)
{
    struct world w;
    once_engine_options o;
    int i;

    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.late_bytes = 3 * 2048; /* as many as three small ones count for */
    o.drain_ms = 1;
    open_with(&w, "faulty:fail=complete:1-*@memory:", &o);
    for (i = 0; i < 5; i++)
        unknown_for_now(&w, (unsigned)i);
    T_EQ(stats(&w).queued, 3);
    T_EQ(stats(&w).unrecorded, 3);
    once_engine_close(w.e);
    T_EQ(atomic_load(&w.dropped), 5);
    T_EQ(atomic_load(&w.late), 0);
}

static void an_outcome_whose_answers_are_lost_is_recorded_once(void)
{
    struct world w;
    once_attempt *a;

    open_world(&w, "faulty:lose=complete:1-4@memory:");
    a = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("same"), NULL), ONCE_OK);
    once_attempt_free(a);
    T_EQ(claim_once(&w, 1), ONCE_REPLAY);
    once_engine_close(w.e);
}

static void counted(once_op *op)
{
    atomic_fetch_add((atomic_int *)op->user, 1);
}

static void an_unknown_outcome_keeps_nobody_else_waiting(void)
{
    struct world w;
    once_engine_options o;
    atomic_int claimed = 0;
    once_op op = stranger(ONCE_OP_CLAIM, 1);

    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.drain_ms = 1;
    open_with(&w, "faulty:fail=claim:1-*@memory:", &o);
    op.store_ms = SOON;
    op.done = counted;
    op.user = &claimed;
    T_EQ(once_submit(w.e, &op, NULL), ONCE_OK);
    UNTIL(stats(&w).unknown > 0);
    T_EQ(ask(&w, ONCE_OP_SHOW, 2, NULL), ONCE_FREE);
    T_EQ(atomic_load(&claimed), 0);
    once_engine_close(w.e);
    T_EQ(atomic_load(&claimed), 1);
    T_EQ(op.rc, ONCE_ESTORE);
}

enum { READERS = 40, ROUNDS_OF_BAD = 12 };

/* Readers that ask again as soon as they are answered. */
struct readers {
    struct world w;
    once_op ops[READERS];
    atomic_int stopping, ended;
};

static void read_again(once_op *op)
{
    struct readers *r = op->user;

    if (atomic_load(&r->stopping) || once_submit(r->w.e, op, NULL) != ONCE_OK)
        atomic_fetch_add(&r->ended, 1);
}

/* As a damaged page would do it: whatever is asked together with this one is
 * not answered. */
static void what_fails_each_batch_fails_alone_in_the_end(void)
{
    struct readers *r = calloc(1, sizeof(*r));
    once_op bad = stranger(ONCE_OP_SHOW, 1);
    atomic_int done = 0;
    once_engine_options o;
    once_stats s;
    size_t i;

    if (r == NULL)
        abort();
    o = options(&r->w);
    o.drain_ms = 1;
    open_with(&r->w, "faulty:delay_ms=2,fail=show:1-*@memory:", &o);
    for (i = 0; i < READERS; i++) {
        r->ops[i] = stranger(ONCE_OP_READ, (unsigned)i);
        r->ops[i].store_ms = SOON;
        r->ops[i].done = read_again;
        r->ops[i].user = r;
        T_EQ(once_submit(r->w.e, &r->ops[i], NULL), ONCE_OK);
    }
    bad.store_ms = SOON;
    bad.done = counted;
    bad.user = &done;
    T_EQ(once_submit(r->w.e, &bad, NULL), ONCE_OK);
    UNTIL(stats(&r->w).unknown >= ROUNDS_OF_BAD);
    s = stats(&r->w);
    T_OK(s.repeated - s.unknown < 4 * READERS); /* of twelve times as many */
    atomic_store(&r->stopping, 1);
    UNTIL(atomic_load(&r->ended) == READERS);
    once_engine_close(r->w.e);
    T_EQ(atomic_load(&done), 1);
    free(r);
}

/* ---- Waiting ----------------------------------------------------------- */

enum { WAITERS = 20 };

struct hall {
    atomic_int told, replayed, in_flight, closed, other;
};

static void looked(once_attempt *a, int rc, void *user)
{
    (void)a;
    atomic_store((atomic_int *)user, rc);
}

static void waited(once_attempt *a, int rc, void *user)
{
    struct hall *h = user;

    if (rc == ONCE_REPLAY && once_attempt_record(a)->result.size == 4)
        atomic_fetch_add(&h->replayed, 1);
    else if (rc == ONCE_IN_FLIGHT)
        atomic_fetch_add(&h->in_flight, 1);
    else if (rc == ONCE_ECLOSED)
        atomic_fetch_add(&h->closed, 1);
    else
        atomic_fetch_add(&h->other, 1);
    atomic_fetch_add(&h->told, 1);
}

static void start_waiters(struct world *w, struct hall *h, once_attempt **list,
                          size_t n)
{
    once_request r = request(1);
    size_t i;

    memset(h, 0, sizeof(*h));
    r.wait_ms = SOON;
    for (i = 0; i < n; i++) {
        list[i] = attempt_of(w, &r);
        T_EQ(once_claim_start(list[i], waited, h), ONCE_OK);
    }
}

static void free_all(once_attempt **list, size_t n)
{
    while (n-- > 0)
        once_attempt_free(list[n]);
}

static void waiters_are_told_the_outcome_of_the_one_they_waited_for(void)
{
    struct world w;
    struct hall h;
    once_attempt *a, *list[WAITERS];

    open_world(&w, "memory:");
    a = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    start_waiters(&w, &h, list, WAITERS);
    UNTIL(stats(&w).waiting == WAITERS);
    T_EQ(atomic_load(&h.told), 0);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("paid"), NULL), ONCE_OK);
    UNTIL(atomic_load(&h.told) == WAITERS);
    T_EQ(atomic_load(&h.replayed), WAITERS);
    T_EQ(stats(&w).waiting, 0);
    once_attempt_free(a);
    free_all(list, WAITERS);
    once_engine_close(w.e);
}

/* ---- Looking ------------------------------------------------------------ */

static int look_once(struct world *w, unsigned key)
{
    once_attempt *a = attempt(w, key);
    atomic_int rc;

    atomic_init(&rc, -1000);
    T_EQ(once_look_start(a, looked, &rc), ONCE_OK);
    UNTIL(atomic_load(&rc) != -1000);
    once_attempt_free(a);
    return atomic_load(&rc);
}

static void who_looks_is_told_and_changes_nothing(void)
{
    struct world w;
    once_attempt *a;
    once_record r;

    open_world(&w, "memory:");
    T_EQ(look_once(&w, 1), ONCE_FREE);
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, &r), ONCE_FREE);
    T_EQ(r.attempt, 0); /* no row: it did not claim */
    a = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(look_once(&w, 1), ONCE_IN_FLIGHT);
    T_EQ(once_give_up(a, ONCE_REASON_TIMEOUT, NULL), ONCE_OK);
    T_EQ(look_once(&w, 1), ONCE_UNKNOWN);
    once_attempt_free(a);
    T_EQ(ask(&w, ONCE_OP_CLAIM, 2, NULL), ONCE_OWNER);
    atomic_fetch_add(&w.now_ms, 1); /* but its lease of 100 ms goes on */
    T_EQ(look_once(&w, 2), ONCE_IN_FLIGHT);
    once_engine_close(w.e);
}

/* A store that does not answer is no reason to take back what was not asked. */
static void who_looks_at_a_silent_store_releases_nothing(void)
{
    struct world w;
    once_request r = request(1);
    once_attempt *a;
    atomic_int rc;

    open_world(&w, "faulty:fail=show:1-*@memory:");
    atomic_init(&rc, -1000);
    r.store_ms = 20;
    a = attempt_of(&w, &r);
    T_EQ(once_look_start(a, looked, &rc), ONCE_OK);
    UNTIL(atomic_load(&rc) != -1000);
    T_EQ(atomic_load(&rc), ONCE_ESTORE);
    T_EQ(stats(&w).operations, 0);
    once_attempt_free(a);
    once_engine_close(w.e);
}

static void who_looks_waits_while_it_is_in_flight(void)
{
    struct world w;
    struct hall h = {0};
    once_request r = request(1);
    once_attempt *a, *list[2];
    size_t i;

    open_world(&w, "memory:");
    a = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    r.wait_ms = SOON;
    for (i = 0; i < 2; i++) {
        list[i] = attempt_of(&w, &r);
        T_EQ(once_look_start(list[i], waited, &h), ONCE_OK);
    }
    UNTIL(stats(&w).waiting == 2);
    once_attempt_cancel(list[0]);
    UNTIL(atomic_load(&h.in_flight) == 1);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("paid"), NULL), ONCE_OK);
    UNTIL(atomic_load(&h.replayed) == 1);
    once_attempt_free(a);
    free_all(list, 2);
    once_engine_close(w.e);
}

static void of_many_waiters_one_becomes_the_next_owner(void)
{
    struct world w;
    struct hall h;
    once_attempt *a, *list[WAITERS];

    open_world(&w, "memory:");
    a = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    start_waiters(&w, &h, list, WAITERS);
    UNTIL(stats(&w).waiting == WAITERS);
    T_EQ(once_release(a, ONCE_REASON_NOT_SENT, NULL), ONCE_OK);
    UNTIL(atomic_load(&h.told) == 1);
    T_EQ(atomic_load(&h.other), 1); /* an owner, and only one */
    T_EQ(stats(&w).live, 1);
    T_EQ(stats(&w).waiting, WAITERS - 1);
    once_attempt_free(a);
    once_engine_close(w.e);
    T_EQ(atomic_load(&h.told), WAITERS);
    T_EQ(atomic_load(&h.in_flight), WAITERS - 1);
    free_all(list, WAITERS);
}

static void a_waiter_gives_up_at_its_deadline(void)
{
    struct world w;
    once_request r = request(1);
    once_attempt *a, *b;

    open_world(&w, "memory:");
    a = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    r.wait_ms = 30;
    b = attempt_of(&w, &r);
    T_EQ(once_claim(b, NULL), ONCE_IN_FLIGHT);
    T_OK(once_attempt_left_ms(b) > 0 && once_attempt_left_ms(b) <= 60000);
    once_attempt_free(b);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("paid"), NULL), ONCE_OK);
    once_attempt_free(a);
    once_engine_close(w.e);
}

static void a_waiter_can_be_cancelled(void)
{
    struct world w;
    struct hall h;
    once_attempt *a, *b[2];
    once_request r = request(1);

    open_world(&w, "memory:");
    a = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    start_waiters(&w, &h, b, 1);
    UNTIL(stats(&w).waiting == 1);
    once_attempt_cancel(b[0]);
    once_attempt_cancel(b[0]);
    UNTIL(atomic_load(&h.told) == 1);
    T_EQ(atomic_load(&h.in_flight), 1);
    r.wait_ms = SOON;
    b[1] = attempt_of(&w, &r);
    once_attempt_cancel(b[1]); /* before: it will not wait at all */
    T_EQ(once_claim(b[1], NULL), ONCE_IN_FLIGHT);
    once_attempt_cancel(a); /* an owner does not care */
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("paid"), NULL), ONCE_OK);
    free_all(b, 2);
    once_attempt_free(a);
    once_engine_close(w.e);
}

static void waiters_are_counted_and_bounded(void)
{
    struct world w;
    struct hall h;
    once_engine_options o;
    once_attempt *a, *list[WAITERS];

    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.waiters_max = 5;
    open_with(&w, "memory:", &o);
    a = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    start_waiters(&w, &h, list, WAITERS);
    UNTIL(atomic_load(&h.told) == WAITERS - 5);
    T_EQ(stats(&w).waiting, 5);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("paid"), NULL), ONCE_OK);
    UNTIL(atomic_load(&h.told) == WAITERS);
    T_EQ(atomic_load(&h.replayed), 5);
    free_all(list, WAITERS);
    once_attempt_free(a);
    once_engine_close(w.e);
}

/* ---- Leases, the reaper, forgetting ------------------------------------ */

static void renewal_keeps_an_owner_alive_past_its_lease(void)
{
    struct world w;
    once_request r = request(1);
    once_attempt *a;
    uint64_t seen;
    int i;

    open_world(&w, "memory:");
    r.lease_ms = 300;
    a = attempt_of(&w, &r);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(stats(&w).live, 1);
    for (i = 0; i < 6; i++) { /* 6 * 200 > 300 */
        atomic_fetch_add(&w.now_ms, 200);
        seen = stats(&w).renewed; /* two, for one may have been under way */
        UNTIL(stats(&w).renewed >= seen + 2);
        T_EQ(claim_once(&w, 1), ONCE_IN_FLIGHT);
    }
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("long"), NULL), ONCE_OK);
    T_EQ(stats(&w).live, 0);
    once_attempt_free(a);
    once_engine_close(w.e);
}

static void lost_renewals_are_no_error(void)
{
    struct world w;
    once_request r = request(1);
    once_attempt *a;

    open_world(&w, "faulty:lose=renew:1-3,fail=renew:4-6@memory:");
    r.lease_ms = 60;
    a = attempt_of(&w, &r);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    UNTIL(stats(&w).renewed >= 2);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("x"), NULL), ONCE_OK);
    once_attempt_free(a);
    once_engine_close(w.e);
}

static void the_reaper_makes_a_dead_owners_record_indeterminate(void)
{
    struct world w;
    once_op op = stranger(ONCE_OP_CLAIM, 1);

    open_world(&w, "memory:");
    T_EQ(once_apply(w.e, &op, NULL), ONCE_OWNER);
    op = stranger(ONCE_OP_CLAIM, 2);
    op.two_phase = 1;
    T_EQ(once_apply(w.e, &op, NULL), ONCE_OWNER);
    T_EQ(claim_once(&w, 1), ONCE_IN_FLIGHT);
    atomic_fetch_add(&w.now_ms, 100);
    UNTIL(stats(&w).reaped == 2);
    T_EQ(atomic_load(&w.lost), 1); /* the other one has sent nothing */
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, NULL), ONCE_UNKNOWN);
    T_EQ(ask(&w, ONCE_OP_SHOW, 2, NULL), ONCE_FREE); /* nothing was sent */
    T_EQ(claim_once(&w, 1), ONCE_UNKNOWN);
    once_engine_close(w.e);
}

static void the_reaper_works_in_bounded_steps(void)
{
    struct world w;
    once_engine_options o;
    unsigned i;

    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.reap_max = 7;
    open_with(&w, "memory:", &o);
    for (i = 0; i < 100; i++) {
        once_op op = stranger(ONCE_OP_CLAIM, i);

        T_EQ(once_apply(w.e, &op, NULL), ONCE_OWNER);
    }
    atomic_fetch_add(&w.now_ms, 100);
    UNTIL(stats(&w).reaped == 100);
    once_engine_close(w.e);
}

static void somebody_else_may_be_the_reaper(void)
{
    struct world w;
    once_engine_options o;
    once_op op = stranger(ONCE_OP_CLAIM, 1);

    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.no_reaper = 1;
    open_with(&w, "memory:", &o);
    T_EQ(once_apply(w.e, &op, NULL), ONCE_OWNER);
    atomic_fetch_add(&w.now_ms, 100);
    T_EQ(ask(&w, ONCE_OP_REAP, 1, NULL), ONCE_OK);
    T_EQ(stats(&w).reaped, 0);
    once_engine_close(w.e);
}

static void completed(struct world *w, unsigned key)
{
    once_op op = stranger(ONCE_OP_CLAIM, key);
    uint64_t fence;

    T_EQ(once_apply(w->e, &op, NULL), ONCE_OWNER);
    fence = op.record.fence;
    op = stranger(ONCE_OP_COMPLETE, key);
    op.fence = fence;
    op.kind = ONCE_SUCCESS;
    op.result = bytes("old");
    T_EQ(once_apply(w->e, &op, NULL), ONCE_OK);
    once_op_clear(&op);
}

static void what_was_kept_long_enough_is_forgotten(void)
{
    struct world w;

    open_world(&w, "memory:");
    completed(&w, 1);
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, NULL), ONCE_REPLAY);
    atomic_fetch_add(&w.now_ms, 500);
    UNTIL(stats(&w).forgotten == 1);
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, NULL), ONCE_FREE);
    T_EQ(atomic_load(&w.jumps), 0);
    once_engine_close(w.e);
}

/* As a damaged page or a lock would do it. */
static void one_record_that_fails_keeps_no_other_from_the_reaper(void)
{
    struct world w;
    unsigned i;

    open_world(&w, "faulty:bad=reap:7,bad=forget:109@memory:");
    for (i = 0; i < 100; i++) {
        T_EQ(ask(&w, ONCE_OP_CLAIM, i, NULL), ONCE_OWNER);
        completed(&w, 100 + i);
    }
    atomic_fetch_add(&w.now_ms, 500);
    UNTIL(stats(&w).reaped == 99);
    UNTIL(stats(&w).forgotten == 99);
    T_EQ(atomic_load(&w.lost), 99);
    T_EQ(ask(&w, ONCE_OP_SHOW, 7, NULL), ONCE_IN_FLIGHT);
    T_EQ(ask(&w, ONCE_OP_SHOW, 109, NULL), ONCE_REPLAY);
    once_engine_close(w.e);
}

static void keep_of(struct world *w, unsigned key, uint64_t keep_ms)
{
    once_op op = stranger(ONCE_OP_CLAIM, key);
    uint64_t fence;

    T_EQ(once_apply(w->e, &op, NULL), ONCE_OWNER);
    fence = op.record.fence;
    op = stranger(ONCE_OP_COMPLETE, key);
    op.fence = fence;
    op.keep_ms = keep_ms;
    op.kind = ONCE_SUCCESS;
    T_EQ(once_apply(w->e, &op, NULL), ONCE_OK);
    once_op_clear(&op);
}

static uint64_t host_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* A claim of a key that was made so long ago and may be a minute old. */
static int claim_aged(struct world *w, unsigned key, uint64_t age_ms)
{
    once_request r = request(key);
    once_attempt *a;
    int rc;

    r.policy = ONCE_RETRY_FAILED | ONCE_TAKEOVER;
    r.born_ms = host_ms() - age_ms;
    r.max_age_ms = 60000;
    a = attempt_of(w, &r);
    rc = once_claim(a, NULL);
    if (rc == ONCE_OWNER)
        T_EQ(once_complete(a, ONCE_FAILURE, bytes("no"), NULL), ONCE_OK);
    once_attempt_free(a);
    return rc;
}

/* The store's clock is set, and the engine has read it. */
static void store_is_at(struct world *w, uint64_t ms)
{
    int seen;

    UNTIL(stats(w).swept_ms != UINT64_MAX); /* it was read before */
    seen = atomic_load(&w->jumps) + atomic_load(&w->settled);
    atomic_store(&w->now_ms, ms);
    UNTIL(atomic_load(&w->jumps) + atomic_load(&w->settled) > seen);
}

static void a_key_that_is_too_old_is_read_and_never_claimed(void)
{
    enum { OLD = 61000 };
    struct world w;
    once_attempt *a;
    once_request r;

    open_world(&w, "memory:");
    store_is_at(&w, host_ms());
    T_EQ(claim_aged(&w, 1, 0), ONCE_OWNER);
    T_EQ(claim_aged(&w, 2, OLD), ONCE_EXPIRED);
    T_EQ(ask(&w, ONCE_OP_SHOW, 2, NULL), ONCE_FREE);
    T_EQ(claim_aged(&w, 2, 0), ONCE_OWNER);
    /* A failure that may be tried again is not, by such a key. */
    T_EQ(claim_aged(&w, 2, OLD), ONCE_REPLAY);
    T_EQ(claim_aged(&w, 2, 0), ONCE_OWNER);
    a = attempt(&w, 3);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(claim_aged(&w, 3, OLD), ONCE_IN_FLIGHT);
    T_EQ(once_give_up(a, ONCE_REASON_RESET, NULL), ONCE_OK);
    T_EQ(claim_aged(&w, 3, OLD), ONCE_UNKNOWN);
    once_attempt_free(a);
    a = attempt(&w, 4);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    T_EQ(once_release(a, ONCE_REASON_NOT_SENT, NULL), ONCE_OK);
    T_EQ(claim_aged(&w, 4, OLD), ONCE_EXPIRED);
    once_attempt_free(a);
    r = request(1);
    memset(r.fingerprint, 8, sizeof(r.fingerprint));
    r.max_age_ms = 1; /* and born in 1970 */
    a = attempt_of(&w, &r);
    T_EQ(once_claim(a, NULL), ONCE_MISMATCH);
    once_attempt_free(a);
    r.max_age_ms = r.keep_ms = 60000;
    r.max_age_ms++;
    T_EQ(once_attempt_new(w.e, &r, NULL, &a), ONCE_EINVAL);
    once_engine_close(w.e);
}

/* A store that answers late: the key was young when it was asked. A machine that
 * is too slow for that asks with a key that is too old already. */
static void a_claim_that_was_under_way_for_too_long_is_taken_back(void)
{
    struct world w;

    open_world(&w, "faulty:delay_ms=400@memory:");
    store_is_at(&w, host_ms());
    T_OK(claim_aged(&w, 1, 59800) != ONCE_OWNER);
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, NULL), ONCE_FREE);
    once_engine_close(w.e);
}

static void the_stores_clock_counts_for_the_age_of_a_key(void)
{
    struct world w;

    open_world(&w, "memory:");
    store_is_at(&w, host_ms() + 70000);
    T_EQ(claim_aged(&w, 1, 0), ONCE_EXPIRED);
    store_is_at(&w, host_ms());
    T_EQ(claim_aged(&w, 1, 0), ONCE_OWNER);
    store_is_at(&w, host_ms() - 310000);
    T_EQ(claim_aged(&w, 2, 0), ONCE_TOO_SOON);
    T_EQ(claim_aged(&w, 1, 0), ONCE_REPLAY);
    T_EQ(atomic_load(&w.apart), 1);
    T_EQ(ask(&w, ONCE_OP_SHOW, 2, NULL), ONCE_FREE);
    once_engine_close(w.e);
}

static void what_is_due_by_a_clock_that_jumped_ahead_is_kept(void)
{
    struct world w;

    open_world(&w, "memory:");
    completed(&w, 1);
    atomic_fetch_add(&w.now_ms, 500);
    UNTIL(stats(&w).forgotten == 1); /* the clock was looked at */
    keep_of(&w, 2, 600000);
    atomic_fetch_add(&w.now_ms, 3600000);
    UNTIL(atomic_load(&w.jumps) == 1);
    T_EQ(ask(&w, ONCE_OP_FORGET, 2, NULL), ONCE_REFUSED); /* nor by hand */
    T_EQ(ask(&w, ONCE_OP_SHOW, 2, NULL), ONCE_REPLAY);
    atomic_fetch_sub(&w.now_ms, 3600000);
    UNTIL(atomic_load(&w.settled) > 0);
    T_EQ(stats(&w).forgotten, 1);
    completed(&w, 3); /* and what is due goes */
    atomic_fetch_add(&w.now_ms, 500);
    UNTIL(stats(&w).forgotten == 2);
    T_EQ(ask(&w, ONCE_OP_SHOW, 2, NULL), ONCE_REPLAY);
    once_engine_close(w.e);
}

/* Time that passes is followed, ahead of the store's clock or not. */
static void under_a_clock_that_is_ahead_forgetting_goes_on_at_its_pace(void)
{
    struct world w;

    open_world(&w, "memory:");
    completed(&w, 1);
    atomic_fetch_add(&w.now_ms, 500);
    UNTIL(stats(&w).forgotten == 1);
    keep_of(&w, 2, 300);
    atomic_fetch_add(&w.now_ms, 3600000);
    UNTIL(atomic_load(&w.jumps) == 1);
    UNTIL(stats(&w).forgotten == 2); /* once 300 ms have passed here */
    once_engine_close(w.e);
}

/* ---- The queue --------------------------------------------------------- */

enum { MANY = 2000 };

static void an_owner_gets_through_a_full_queue(void)
{
    struct world w;
    once_engine_options o;
    once_attempt *a, *late;
    once_op *ops = calloc(MANY, sizeof(*ops));
    atomic_int done = 0;
    once_error err = {0, ""};
    int rc = ONCE_OK, n = 0;

    if (ops == NULL)
        abort();
    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.queue_max = 4;
    open_with(&w, "faulty:delay_ms=30@memory:", &o);
    a = attempt(&w, 1);
    late = attempt(&w, 2);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    while (n < MANY && rc == ONCE_OK) {
        ops[n] = stranger(ONCE_OP_READ, 3);
        ops[n].done = counted;
        ops[n].user = &done;
        rc = once_submit(w.e, &ops[n++], &err);
    }
    T_EQ(rc, ONCE_EBUSY);
    T_OK(strstr(err.text, "queue_max") != NULL);
    T_OK(stats(&w).busy > 0);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("in"), NULL), ONCE_OK);
    UNTIL(atomic_load(&done) == n - 1);
    T_EQ(once_claim(late, NULL), ONCE_OWNER); /* there is room again */
    T_EQ(once_release(late, ONCE_REASON_NOT_SENT, NULL), ONCE_OK);
    T_EQ(stats(&w).queued, 0);
    once_attempt_free(a);
    once_attempt_free(late);
    once_engine_close(w.e);
    free(ops);
}

/* Behind an owner, in one turn of the engine: many reads, and what it says. */
struct crush {
    struct world w;
    once_attempt *owner;
    once_op first, ops[MANY];
    int n;                   /* of them are asked                      */
    atomic_int reads, ended; /* answered; the owner was                 */
    int before;              /* reads that were answered before it      */
    uint64_t renewed;        /* renewals before the last read           */
};

static void one_read(once_op *op)
{
    struct crush *c = op->user;

    if (atomic_load(&c->reads) + 1 == c->n)
        c->renewed = stats(&c->w).renewed;
    atomic_fetch_add(&c->reads, 1);
}

static void owner_told(once_attempt *a, int rc, void *user)
{
    struct crush *c = user;

    (void)a;
    T_EQ(rc, ONCE_OK);
    c->before = atomic_load(&c->reads);
    atomic_store(&c->ended, 1);
}

/* Runs on the engine's thread, so all of it arrives in its next turn. */
static void crowd_in(once_op *op)
{
    struct crush *c = op->user;
    int i;

    for (i = 0; i < c->n; i++) {
        c->ops[i] = stranger(ONCE_OP_READ, 3);
        c->ops[i].done = one_read;
        c->ops[i].user = c;
        if (once_submit(c->w.e, &c->ops[i], NULL) != ONCE_OK)
            abort();
    }
    if (c->owner != NULL &&
        once_complete_start(c->owner, ONCE_SUCCESS, bytes("in"), owner_told,
                            c) != ONCE_OK)
        abort();
}

static struct crush *crush(const char *url, int n, uint32_t lease_ms)
{
    struct crush *c = calloc(1, sizeof(*c));
    once_request r = request(1);
    once_engine_options o;

    if (c == NULL)
        abort();
    o = options(&c->w);
    o.batch_max = 1;
    open_with(&c->w, url, &o);
    r.lease_ms = lease_ms;
    c->n = n;
    c->owner = attempt_of(&c->w, &r);
    T_EQ(once_claim(c->owner, NULL), ONCE_OWNER);
    c->first = stranger(ONCE_OP_READ, 3);
    c->first.done = crowd_in;
    c->first.user = c;
    return c;
}

static void an_owner_goes_before_those_who_only_ask(void)
{
    struct crush *c = crush("memory:", MANY, 60000);

    T_EQ(once_submit(c->w.e, &c->first, NULL), ONCE_OK);
    UNTIL(atomic_load(&c->reads) == MANY && atomic_load(&c->ended));
    T_EQ(c->before, 0);
    once_attempt_free(c->owner);
    once_engine_close(c->w.e);
    free(c);
}

static void a_lease_is_renewed_before_those_who_only_ask(void)
{
    struct crush *c = crush("faulty:delay_ms=1@memory:", MANY / 4, 30);
    once_attempt *owner = c->owner;

    c->owner = NULL; /* it says nothing */
    T_EQ(once_submit(c->w.e, &c->first, NULL), ONCE_OK);
    UNTIL(atomic_load(&c->reads) == c->n);
    T_OK(c->renewed > 0);
    once_attempt_free(owner);
    once_engine_close(c->w.e);
    free(c);
}

static void operations_that_queue_up_become_one_batch(void)
{
    struct world w;
    once_op *ops = calloc(MANY, sizeof(*ops));
    atomic_int done = 0;
    int i;

    if (ops == NULL)
        abort();
    open_world(&w, "faulty:delay_ms=20@memory:");
    for (i = 0; i < MANY; i++) {
        ops[i] = stranger(ONCE_OP_READ, 3);
        ops[i].done = counted;
        ops[i].user = &done;
        T_EQ(once_submit(w.e, &ops[i], NULL), ONCE_OK);
    }
    UNTIL(atomic_load(&done) == MANY);
    T_OK(stats(&w).batches < MANY / 2);
    T_EQ(stats(&w).operations, MANY);
    T_OK(stats(&w).apply_us > 0);
    T_OK(atomic_load(&w.flushes) <= (int)stats(&w).batches);
    once_engine_close(w.e);
    T_OK(atomic_load(&w.flushes) > 0);
    free(ops);
}

static void with_manual_wake_one_wake_is_enough_for_all(void)
{
    struct world w;
    once_engine_options o;
    once_op ops[10];
    atomic_int done = 0;
    size_t i;

    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.manual_wake = 1;
    o.no_reaper = 1;
    open_with(&w, "memory:", &o);
    for (i = 0; i < 10; i++) {
        ops[i] = stranger(ONCE_OP_READ, 3);
        ops[i].done = counted;
        ops[i].user = &done;
        T_EQ(once_submit(w.e, &ops[i], NULL), ONCE_OK);
    }
    once_engine_wake(w.e);
    UNTIL(atomic_load(&done) == 10);
    T_EQ(claim_once(&w, 1), ONCE_OWNER); /* synchronous calls wake */
    once_engine_close(w.e);
}

struct chain {
    struct world w;
    once_op op;
    atomic_int left;
};

static void again(once_op *op)
{
    struct chain *c = op->user;

    if (atomic_fetch_sub(&c->left, 1) > 1 &&
        once_submit(c->w.e, op, NULL) != ONCE_OK)
        abort();
}

static void a_callback_may_submit_the_next_operation(void)
{
    struct chain c;

    memset(&c, 0, sizeof(c));
    open_world(&c.w, "memory:");
    c.op = stranger(ONCE_OP_READ, 3);
    c.op.done = again;
    c.op.user = &c;
    atomic_store(&c.left, 1000);
    T_EQ(once_submit(c.w.e, &c.op, NULL), ONCE_OK);
    UNTIL(atomic_load(&c.left) == 0);
    once_engine_close(c.w.e);
}

/* ---- Opening in the background ----------------------------------------- */

static void background(struct world *w, const char *url)
{
    once_engine_options o;

    memset(w, 0, sizeof(*w));
    o = options(w);
    o.background = 1;
    o.drain_ms = 100;
    open_with(w, url, &o);
}

static void what_is_asked_while_a_store_is_opened_waits_for_it(void)
{
    struct world w;
    once_op op = stranger(ONCE_OP_CLAIM, 2);
    atomic_int done = 0;

    background(&w, "faulty:open_ms=300@memory:");
    op.done = counted;
    op.user = &done;
    T_EQ(once_submit(w.e, &op, NULL), ONCE_OK);
    T_EQ(claim_once(&w, 1), ONCE_OWNER);
    T_EQ(atomic_load(&done), 1);
    T_EQ(op.rc, ONCE_OWNER);
    once_engine_close(w.e);
}

static int nobody(void *user, const uint8_t name[ONCE_NAME_SIZE],
                  const once_record *r)
{
    (void)user;
    (void)name;
    (void)r;
    return 0;
}

static void a_store_that_is_not_there_is_opened_when_it_is(void)
{
    char folder[64], url[80];
    struct world w;
    once_error err = {0, ""};
    once_attempt *a, *b;

    if (!have_sqlite())
        return;
    (void)snprintf(folder, sizeof(folder), "/tmp/once-late-%ld",
                   (long)getpid());
    (void)snprintf(url, sizeof(url), "sqlite:%s/db", folder);
    background(&w, url);
    a = attempt(&w, 1);
    b = attempt(&w, 1);
    T_EQ(once_claim(a, NULL), ONCE_EAWAY); /* it waited for the first try */
    T_EQ(once_claim(b, &err), ONCE_EAWAY); /* it did not */
    T_EQ(ask(&w, ONCE_OP_SHOW, 1, NULL), ONCE_EAWAY);
    T_EQ(once_scan(w.e, ONCE_SCAN_ALL, NULL, 1, nobody, NULL, NULL),
         ONCE_EAWAY);
    T_EQ(atomic_load(&w.events), 1); /* why */
    T_EQ(stats(&w).queued, 0);
    T_EQ(mkdir(folder, 0700), 0);
    UNTIL(ask(&w, ONCE_OP_SHOW, 1, NULL) == ONCE_FREE);
    T_EQ(claim_once(&w, 1), ONCE_OWNER);
    T_EQ(atomic_load(&w.events), 2);
    once_attempt_free(a);
    once_attempt_free(b);
    once_engine_close(w.e);
    (void)unlink(url + strlen("sqlite:"));
    (void)rmdir(folder);
}

static void it_closes_while_it_opens(void)
{
    struct world w;
    struct hall h;
    once_attempt *list[WAITERS];

    background(&w, "faulty:open_ms=100@memory:");
    start_waiters(&w, &h, list, WAITERS);
    once_engine_close(w.e);
    T_EQ(atomic_load(&h.told), WAITERS);
    free_all(list, WAITERS);
    background(&w, "faulty:open_ms=100@sqlite:/no/such/folder/db");
    start_waiters(&w, &h, list, WAITERS);
    once_engine_close(w.e);
    T_EQ(atomic_load(&h.told), WAITERS);
    T_EQ(atomic_load(&h.other) + atomic_load(&h.closed), WAITERS);
    free_all(list, WAITERS);
    background(&w, "nosuch:url");
    UNTIL(atomic_load(&w.events) == 1);
    once_engine_close(w.e); /* asleep until the next try */
}

/* ---- Closing ----------------------------------------------------------- */

static void closing_answers_what_is_queued(void)
{
    struct world w;
    once_op *ops = calloc(MANY, sizeof(*ops));
    atomic_int done = 0;
    int i;

    if (ops == NULL)
        abort();
    open_world(&w, "faulty:delay_ms=5@memory:");
    for (i = 0; i < MANY; i++) {
        ops[i] = stranger(ONCE_OP_CLAIM, (unsigned)i);
        ops[i].done = counted;
        ops[i].user = &done;
        T_EQ(once_submit(w.e, &ops[i], NULL), ONCE_OK);
    }
    once_engine_close(w.e);
    T_EQ(atomic_load(&done), MANY);
    for (i = 0; i < MANY; i++)
        T_EQ(ops[i].rc, ONCE_OWNER);
    free(ops);
}

static void closing_ends_what_the_store_never_answers(void)
{
    struct world w;
    struct hall h;
    once_engine_options o;
    once_attempt *list[WAITERS], *owner, *freed, *idle;
    once_op op = stranger(ONCE_OP_READ, 1);
    atomic_int done = 0;
    once_bytes none = {NULL, 0};

    memset(&w, 0, sizeof(w));
    o = options(&w);
    o.drain_ms = 10;
    open_with(&w, "faulty:fail=any:4-*@memory:", &o);
    owner = attempt(&w, 1);
    freed = attempt(&w, 2);
    idle = attempt(&w, 3);
    T_EQ(once_claim(owner, NULL), ONCE_OWNER);
    T_EQ(once_claim(freed, NULL), ONCE_OWNER);
    T_EQ(once_claim(idle, NULL), ONCE_OWNER);
    start_waiters(&w, &h, list, WAITERS);
    op.done = counted;
    op.user = &done;
    op.store_ms = SOON;
    T_EQ(once_submit(w.e, &op, NULL), ONCE_OK);
    T_EQ(once_complete_start(owner, ONCE_SUCCESS, none, waited, &h), ONCE_OK);
    once_attempt_free(freed);
    UNTIL(stats(&w).unknown > 2);
    once_engine_close(w.e);
    T_EQ(atomic_load(&done), 1);
    T_EQ(op.rc, ONCE_ESTORE);
    T_EQ(atomic_load(&h.told), WAITERS + 1);
    free_all(list, WAITERS);
    once_attempt_free(owner);
    once_attempt_free(idle);
}

static void closing_ends_waiting_and_refuses_what_is_new(void)
{
    struct world w;
    struct hall h;
    once_attempt *a, *late, *list[WAITERS];
    once_error err = {0, ""};

    open_world(&w, "memory:");
    a = attempt(&w, 1);
    late = attempt(&w, 2);
    T_EQ(once_claim(a, NULL), ONCE_OWNER);
    start_waiters(&w, &h, list, WAITERS);
    UNTIL(stats(&w).waiting == WAITERS);
    once_engine_close(w.e);
    T_EQ(atomic_load(&h.told), WAITERS);
    T_EQ(atomic_load(&h.in_flight), WAITERS);
    T_EQ(once_claim(late, &err), ONCE_ECLOSED);
    T_EQ(once_complete(a, ONCE_SUCCESS, bytes("x"), &err), ONCE_ECLOSED);
    once_attempt_free(a);
    once_attempt_free(late);
    free_all(list, WAITERS);
}

/* ---- Lists ------------------------------------------------------------- */

struct seen {
    uint8_t last[ONCE_NAME_SIZE];
    int count, unordered, stop_at;
};

static int see(void *user, const uint8_t name[ONCE_NAME_SIZE],
               const once_record *r)
{
    struct seen *s = user;

    if (s->count > 0 && memcmp(s->last, name, ONCE_NAME_SIZE) >= 0)
        s->unordered++;
    if (r->result.data != NULL || r->attempt != 1)
        s->unordered++;
    memcpy(s->last, name, ONCE_NAME_SIZE);
    return ++s->count == s->stop_at;
}

static void listing(struct world *w)
{
    struct seen s;
    once_position middle = {0, {0}};
    unsigned i;

    for (i = 0; i < 600; i++) {
        once_op op = stranger(ONCE_OP_CLAIM, i * 2654435761u);

        T_EQ(once_apply(w->e, &op, NULL), ONCE_OWNER);
    }
    memset(&s, 0, sizeof(s));
    T_EQ(once_scan(w->e, ONCE_SCAN_ALL, NULL, 10000, see, &s, NULL), 600);
    T_EQ(s.unordered, 0);
    memset(&s, 0, sizeof(s));
    T_EQ(once_scan(w->e, ONCE_SCAN_ALL, NULL, 300, see, &s, NULL), 300);
    memcpy(middle.name, s.last, sizeof(middle.name));
    memset(&s, 0, sizeof(s));
    T_EQ(once_scan(w->e, ONCE_SCAN_ALL, &middle, 10000, see, &s, NULL), 300);
    memset(&s, 0, sizeof(s));
    s.stop_at = 270;
    T_EQ(once_scan(w->e, ONCE_SCAN_ALL, NULL, 10000, see, &s, NULL), 270);
    T_EQ(once_scan(w->e, ONCE_SCAN_ALL, NULL, 0, see, &s, NULL), ONCE_EINVAL);
}

static void a_list_shows_all_records_in_the_order_of_their_names(void)
{
    each_store(listing);
}

static void find_sqlite(void)
{
    once_error err = {0, ""};
    int n = snprintf(sqlite_url, sizeof(sqlite_url), "sqlite:/tmp/once-%ld.db",
                     (long)getpid());

    if (n < 0 || once_store_init(sqlite_url, &err) != ONCE_OK) {
        printf("# without sqlite: %s\n", err.text);
        sqlite_url[0] = '\0';
        return;
    }
    (void)unlink(sqlite_url + strlen("sqlite:"));
}

/* Nothing else would ever wake its thread: it has no reaper and no timers. */
static void it_closes_at_whatever_moment_of_its_thread(void)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    volatile unsigned spin;
    once_engine *e;
    unsigned i;

    o.no_reaper = 1;
    for (i = 0; i < 4000; i++) {
        T_EQ(once_engine_open("memory:", &o, NULL, &e), ONCE_OK);
        for (spin = 0; spin < i % 500 * 20; spin++)
            ;
        once_engine_close(e); /* returns, or the test hangs */
    }
}

int main(void)
{
    find_sqlite();
    T_RUN(an_owner_completes_and_a_repeat_is_told_the_same);
    T_RUN(an_owner_may_go_on_in_another_process);
    T_RUN(who_is_not_the_owner_cannot_go_on);
    T_RUN(two_phases_are_dispatched_before_the_owner_is_told);
    T_RUN(release_frees_the_key_and_give_up_leaves_it_unknown);
    T_RUN(records_are_counted_as_often_as_the_options_say);
    T_RUN(a_store_is_up_while_it_answers);
    T_RUN(an_owner_that_is_freed_is_given_up);
    T_RUN(a_late_outcome_is_accepted_and_a_resolved_one_stands);
    T_RUN(what_is_out_of_range_is_refused_with_its_limit);
    T_RUN(only_an_owner_may_say_what_became_of_it);
    T_RUN(an_engine_that_cannot_open_says_why);
    T_RUN(eight_threads_execute_each_key_once);
    T_RUN(lost_answers_make_no_second_owner);
    T_RUN(a_claim_that_never_arrives_ends_unanswered);
    T_RUN(a_claim_whose_answer_is_lost_is_taken_back_by_its_token);
    T_RUN(a_claim_and_its_release_that_are_lost_leave_it_to_the_reaper);
    T_RUN(a_claim_whose_first_answer_is_lost_keeps_its_fence);
    T_RUN(a_claim_that_finds_no_room_later_is_taken_back);
    T_RUN(a_lost_dispatch_is_released_and_nothing_is_sent);
    T_RUN(complete_is_repeated_until_the_lease_is_over);
    T_RUN(an_outcome_is_recorded_when_the_store_is_back_after_the_lease);
    T_RUN(a_release_is_recorded_when_the_store_is_back_after_the_lease);
    T_RUN(a_claim_that_is_taken_back_is_not_asked_for_ever);
    T_RUN(outcomes_that_wait_for_the_store_are_bounded_in_time);
    T_RUN(outcomes_that_wait_for_the_store_are_bounded_in_bytes);
    T_RUN(an_outcome_whose_answers_are_lost_is_recorded_once);
    T_RUN(an_unknown_outcome_keeps_nobody_else_waiting);
    T_RUN(what_fails_each_batch_fails_alone_in_the_end);
    T_RUN(waiters_are_told_the_outcome_of_the_one_they_waited_for);
    T_RUN(who_looks_is_told_and_changes_nothing);
    T_RUN(who_looks_at_a_silent_store_releases_nothing);
    T_RUN(who_looks_waits_while_it_is_in_flight);
    T_RUN(of_many_waiters_one_becomes_the_next_owner);
    T_RUN(a_waiter_gives_up_at_its_deadline);
    T_RUN(a_waiter_can_be_cancelled);
    T_RUN(waiters_are_counted_and_bounded);
    T_RUN(renewal_keeps_an_owner_alive_past_its_lease);
    T_RUN(lost_renewals_are_no_error);
    T_RUN(the_reaper_makes_a_dead_owners_record_indeterminate);
    T_RUN(the_reaper_works_in_bounded_steps);
    T_RUN(somebody_else_may_be_the_reaper);
    T_RUN(what_was_kept_long_enough_is_forgotten);
    T_RUN(one_record_that_fails_keeps_no_other_from_the_reaper);
    T_RUN(a_key_that_is_too_old_is_read_and_never_claimed);
    T_RUN(a_claim_that_was_under_way_for_too_long_is_taken_back);
    T_RUN(the_stores_clock_counts_for_the_age_of_a_key);
    T_RUN(what_is_due_by_a_clock_that_jumped_ahead_is_kept);
    T_RUN(under_a_clock_that_is_ahead_forgetting_goes_on_at_its_pace);
    T_RUN(an_owner_gets_through_a_full_queue);
    T_RUN(an_owner_goes_before_those_who_only_ask);
    T_RUN(a_lease_is_renewed_before_those_who_only_ask);
    T_RUN(operations_that_queue_up_become_one_batch);
    T_RUN(with_manual_wake_one_wake_is_enough_for_all);
    T_RUN(a_callback_may_submit_the_next_operation);
    T_RUN(what_is_asked_while_a_store_is_opened_waits_for_it);
    T_RUN(a_store_that_is_not_there_is_opened_when_it_is);
    T_RUN(it_closes_while_it_opens);
    T_RUN(closing_answers_what_is_queued);
    T_RUN(closing_ends_what_the_store_never_answers);
    T_RUN(closing_ends_waiting_and_refuses_what_is_new);
    T_RUN(a_list_shows_all_records_in_the_order_of_their_names);
    T_RUN(it_closes_at_whatever_moment_of_its_thread);
    return t_done();
}
