/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cache.c - what a cache of replays may show, and what never.
 *
 * The rules of cache.h one by one; then two caches in front of one record for
 * each of a few names, with everything that happens to records drawn at random.
 * The record itself, decided by the transition table, says what each hit should
 * have been. Last the engine: when what it has answered counts no more.
 */
#include "calls/engine/cache.h"

#include <once/store.h>

#include "calls/core/transition.h"

#include "t.h"

enum { AGE = ONCE__CACHE_AGE_MS };

static const uint64_t WALL = UINT64_C(1700000000000);
static const once__cache_when NOW = {7, 1000};

static once__cache *new_cache(void)
{
    once__cache *c = once__cache_new();

    if (c == NULL)
        abort();
    return c;
}

static once__cache_when at(uint64_t epoch, uint64_t asked_ms)
{
    once__cache_when when = {epoch, asked_ms};

    return when;
}

static once_request claim_of(uint8_t name, uint8_t fingerprint)
{
    once_request r;

    memset(&r, 0, sizeof(r));
    r.size = sizeof(r);
    memset(r.name, name, sizeof(r.name));
    memset(r.fingerprint, fingerprint, sizeof(r.fingerprint));
    return r;
}

/* Completed, with the result that the text is, and kept for a day. */
static once_record record_of(uint8_t fingerprint, const char *result)
{
    once_record r;

    memset(&r, 0, sizeof(r));
    r.state = ONCE_COMPLETED;
    r.kind = ONCE_SUCCESS;
    r.attempt = 3;
    r.fence = 44;
    r.keep_ms = WALL + 86400000;
    memset(r.token, 9, sizeof(r.token));
    memset(r.trace, 5, sizeof(r.trace));
    memset(r.fingerprint, fingerprint, sizeof(r.fingerprint));
    r.result = (once_bytes){result, strlen(result)};
    r.note = (once_bytes){"a note", 6};
    r.label = (once_bytes){"a label", 7};
    return r;
}

static void replayed(once__cache *c, uint8_t name, const once_record *r)
{
    once_request q = claim_of(name, 0);

    once__cache_note(c, q.name, ONCE_REPLAY, r, NOW, WALL);
}

static const once_record *find(once__cache *c, uint8_t name,
                               uint8_t fingerprint, once__cache_when now)
{
    once_request q = claim_of(name, fingerprint);

    return once__cache_find(c, &q, now);
}

static void a_hit_is_the_record_that_was_replayed(void)
{
    once__cache *c = new_cache();
    char result[] = "HTTP 201 made";
    once_record r = record_of(2, result);
    const once_record *found;

    T_OK(find(c, 1, 2, NOW) == NULL);
    replayed(c, 1, &r);
    memset(result, 'x', sizeof(result)); /* it is a copy */
    found = find(c, 1, 2, NOW);
    if (T_OK(found != NULL)) {
        T_EQ(found->attempt, 3);
        T_EQ(found->fence, 44);
        T_EQ(found->kind, ONCE_SUCCESS);
        T_MEM(found->trace, r.trace, sizeof(r.trace));
        T_EQ(found->result.size, 13);
        T_MEM(found->result.data, "HTTP 201 made", 13);
        T_EQ(found->note.size, 0);
        T_EQ(found->label.size, 0);
    }
    once__cache_free(c);
    once__cache_free(NULL);
}

static void an_empty_result_is_one(void)
{
    once__cache *c = new_cache();
    once_record r = record_of(2, "");
    const once_record *found;

    r.result.data = NULL;
    replayed(c, 1, &r);
    found = find(c, 1, 2, NOW);
    if (T_OK(found != NULL))
        T_EQ(found->result.size, 0);
    once__cache_free(c);
}

static void another_fingerprint_is_no_hit_and_takes_nothing_away(void)
{
    once__cache *c = new_cache();
    once_record r = record_of(2, "of two");

    replayed(c, 1, &r);
    T_OK(find(c, 1, 3, NOW) == NULL);
    T_OK(find(c, 1, 2, NOW) != NULL);
    once__cache_free(c);
}

/* Scope, realm, method and path are parts of the name. */
static void names_that_differ_in_one_bit_share_nothing(void)
{
    once__cache *c = new_cache();
    once_record r = record_of(2, "of one");
    once_request q = claim_of(1, 2);
    size_t i;

    once__cache_note(c, q.name, ONCE_REPLAY, &r, NOW, WALL);
    for (i = 0; i < 8 * sizeof(q.name); i++) {
        q.name[i / 8] ^= (uint8_t)(1u << i % 8);
        T_OK(once__cache_find(c, &q, NOW) == NULL);
        q.name[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    T_OK(once__cache_find(c, &q, NOW) != NULL);
    once__cache_free(c);
}

static void an_entry_is_used_for_a_short_time_only(void)
{
    once__cache *c = new_cache();
    once_record r = record_of(2, "made");

    replayed(c, 1, &r);
    T_OK(find(c, 1, 2, at(7, 1000 + AGE - 1)) != NULL);
    T_OK(find(c, 1, 2, at(7, 1000 + AGE)) == NULL);
    T_OK(find(c, 1, 2, NOW) == NULL); /* it is gone */
    T_EQ(once__cache_bytes(c), 0);
    replayed(c, 1, &r);
    T_OK(find(c, 1, 2, at(7, 999)) == NULL); /* such a time cannot be */
    once__cache_free(c);
}

/* Waiting for another attempt takes long, and when the store was asked last is
 * not known. */
static void the_age_counts_from_the_claim_and_not_from_its_answer(void)
{
    once__cache *c = new_cache();
    once_record r = record_of(2, "made");
    once_request q = claim_of(1, 2);

    once__cache_note(c, q.name, ONCE_REPLAY, &r, at(7, 1000), WALL + 5000);
    T_OK(once__cache_find(c, &q, at(7, 6000)) == NULL);
    once__cache_free(c);
}

static void what_the_store_failed_to_answer_ends_what_was_known(void)
{
    once__cache *c = new_cache();
    once_record r = record_of(2, "made");
    once_request q = claim_of(1, 2);

    replayed(c, 1, &r);
    T_OK(find(c, 1, 2, at(8, 1000)) == NULL); /* it failed meanwhile */
    replayed(c, 1, &r);
    T_OK(find(c, 1, 2, at(0, 1000)) == NULL); /* it fails now */
    T_EQ(once__cache_bytes(c), 0);
    once__cache_note(c, q.name, ONCE_REPLAY, &r, at(0, 1000), WALL);
    T_OK(find(c, 1, 2, at(0, 1000)) == NULL); /* it failed at the claim */
    T_EQ(once__cache_bytes(c), 0);
    once__cache_free(c);
}

/* The record of an owner that is about to be completed is not durable. */
static void only_a_replay_of_the_store_enters(void)
{
    static const int others[] = {ONCE_OK,      ONCE_OWNER,    ONCE_IN_FLIGHT,
                                 ONCE_UNKNOWN, ONCE_LOST,     ONCE_MISMATCH,
                                 ONCE_FREE,    ONCE_FENCED,   ONCE_REFUSED,
                                 ONCE_ESTORE,  ONCE_ECORRUPT, ONCE_EAWAY};
    once__cache *c = new_cache();
    once_record r = record_of(2, "made");
    once_request q = claim_of(1, 2);
    size_t i;

    for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        once__cache_note(c, q.name, others[i], &r, NOW, WALL);
        T_EQ(once__cache_bytes(c), 0);
    }
    T_OK(find(c, 1, 2, NOW) == NULL);
    once__cache_free(c);
}

static void any_later_answer_takes_its_place(void)
{
    static const int others[] = {ONCE_OWNER, ONCE_MISMATCH, ONCE_UNKNOWN,
                                 ONCE_ESTORE};
    once__cache *c = new_cache();
    once_record r = record_of(2, "first"), later = record_of(2, "second one");
    once_request q = claim_of(1, 2);
    const once_record *found;
    size_t i;

    for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        replayed(c, 1, &r);
        once__cache_note(c, q.name, others[i], &r, NOW, WALL);
        T_OK(find(c, 1, 2, NOW) == NULL);
    }
    replayed(c, 1, &r);
    replayed(c, 1, &later);
    found = find(c, 1, 2, NOW);
    if (T_OK(found != NULL)) {
        T_EQ(found->result.size, 10);
        T_MEM(found->result.data, "second one", 10);
    }
    once__cache_free(c);
}

static void a_failure_that_may_be_tried_again_does_not_enter(void)
{
    once__cache *c = new_cache();
    once_record r = record_of(2, "a 500");

    r.kind = ONCE_FAILURE;
    replayed(c, 1, &r);
    T_OK(find(c, 1, 2, NOW) != NULL); /* final */
    r.policy = ONCE_RETRY_FAILED;
    replayed(c, 1, &r);
    T_OK(find(c, 1, 2, NOW) == NULL);
    r.kind = ONCE_SUCCESS;
    replayed(c, 1, &r);
    T_OK(find(c, 1, 2, NOW) != NULL);
    once__cache_free(c);
}

static void what_may_be_forgotten_soon_does_not_enter(void)
{
    once__cache *c = new_cache();
    once_record r = record_of(2, "made");

    r.keep_ms = WALL + 2 * AGE + 1;
    replayed(c, 1, &r);
    T_OK(find(c, 1, 2, NOW) != NULL);
    r.keep_ms = WALL + 2 * AGE;
    replayed(c, 1, &r);
    T_OK(find(c, 1, 2, NOW) == NULL);
    r.keep_ms = WALL - 1;
    replayed(c, 1, &r);
    T_OK(find(c, 1, 2, NOW) == NULL);
    once__cache_free(c);
}

static once_request numbered(uint32_t i)
{
    once_request q = claim_of(0, 2);
    uint32_t mixed = i * 2654435761u; /* every number another one */

    memcpy(q.name, &mixed, sizeof(mixed));
    return q;
}

static void it_never_holds_more_than_its_bytes_and_drops_the_oldest(void)
{
    enum { N = 400 };
    once__cache *c = new_cache();
    once_record r = record_of(2, "");
    char *result = calloc(1, ONCE__CACHE_RESULT_MAX + 1);
    uint32_t i, first = N, kept = 0;
    once_request q;

    if (result == NULL)
        abort();
    r.result = (once_bytes){result, ONCE__CACHE_RESULT_MAX};
    for (i = 0; i < N; i++) {
        q = numbered(i);
        once__cache_note(c, q.name, ONCE_REPLAY, &r, NOW, WALL);
        T_OK(once__cache_bytes(c) <= ONCE__CACHE_BYTES_MAX);
    }
    for (i = 0; i < N; i++) {
        q = numbered(i);
        if (once__cache_find(c, &q, NOW) != NULL) {
            first = first < i ? first : i;
            kept++;
        }
    }
    T_OK(kept > 120); /* of 64 KiB in 8 MiB */
    T_EQ(kept, N - first);
    r.result.size++;
    q = numbered(N);
    once__cache_note(c, q.name, ONCE_REPLAY, &r, NOW, WALL);
    T_OK(once__cache_find(c, &q, NOW) == NULL);
    free(result);
    once__cache_free(c);
}

/* Clients choose their keys, so they can choose names that fall together. */
static void names_that_fall_together_push_each_other_out(void)
{
    enum { N = 100000 };
    once__cache *c = new_cache();
    once_record r = record_of(2, "made");
    once_request q = claim_of(1, 2);
    size_t one;
    uint32_t i;

    once__cache_note(c, q.name, ONCE_REPLAY, &r, NOW, WALL);
    one = once__cache_bytes(c);
    for (i = 0; i < N; i++) {
        memcpy(q.name + 8, &i, sizeof(i));
        once__cache_note(c, q.name, ONCE_REPLAY, &r, NOW, WALL);
    }
    T_OK(once__cache_find(c, &q, NOW) != NULL); /* the newest */
    T_OK(once__cache_bytes(c) <= 8 * one);
    once__cache_free(c);
}

static void a_sweep_frees_what_is_too_old(void)
{
    once__cache *c = new_cache();
    once_record r = record_of(2, "made");
    once_request q;
    uint32_t i;

    for (i = 0; i < 100; i++) {
        q = numbered(i);
        once__cache_note(c, q.name, ONCE_REPLAY, &r, at(7, 1000 + i), WALL);
    }
    once__cache_sweep(c, at(7, 1000 + AGE + 49));
    for (i = 0; i < 100; i++) {
        q = numbered(i);
        T_EQ(once__cache_find(c, &q, at(7, 1100)) != NULL, i >= 50);
    }
    once__cache_sweep(c, at(8, 1100));
    T_EQ(once__cache_bytes(c), 0);
    once__cache_free(c);
}

/* ---- Against the table ------------------------------------------------- */

/*
 * A few names, two fingerprints, two callers with a cache each, and one record
 * for each name. `accepted_ms` is when an operator last accepted a clock that
 * was ahead, by any clock that counts ages.
 */
enum { NAMES = 3, CALLERS = 2, STEPS = 400000, KEEP = 6 * AGE };

struct world {
    once_record records[NAMES];
    char results[NAMES][16];
    once__cache *caches[CALLERS];
    uint64_t now_ms, ahead_ms, fence, epoch, seed, accepted_ms;
    unsigned hits, stale, wrong, forgotten, granted;
};

static uint32_t draw(struct world *w, uint32_t n)
{
    w->seed = w->seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(w->seed >> 33) % n;
}

static uint64_t wall(const struct world *w)
{
    return WALL + w->now_ms + w->ahead_ms;
}

static void ask(struct world *w, uint32_t i, once_op *op)
{
    memset(op->name, (int)i + 1, sizeof(op->name));
    (void)once__transition(&w->records[i], op, wall(w), &w->fence);
}

/* What the store says to this claim, without doing it. */
static int would_replay(struct world *w, uint32_t i, const once_op *claim,
                        once_record *r)
{
    uint64_t fence = w->fence;
    once_op op = *claim;

    *r = w->records[i];
    (void)once__transition(r, &op, wall(w), &fence);
    return op.rc == ONCE_REPLAY;
}

static void judge(struct world *w, uint32_t i, const once_op *claim,
                  const once_record *hit)
{
    once_record r;

    w->hits++;
    if (would_replay(w, i, claim, &r) && r.fence == hit->fence &&
        r.result.size == hit->result.size &&
        memcmp(r.result.data, hit->result.data, r.result.size) == 0)
        return;
    w->stale++;
    w->wrong += w->now_ms - w->accepted_ms >= AGE;
}

static void claims(struct world *w, uint32_t i)
{
    once__cache *c = w->caches[draw(w, CALLERS)];
    once__cache_when now = at(w->epoch, w->now_ms + 1);
    once_request q = claim_of((uint8_t)(i + 1), (uint8_t)(2 + draw(w, 8) / 7));
    once_op op = {.verb = ONCE_OP_CLAIM, .lease_ms = 1000, .keep_ms = KEEP};
    const once_record *hit;

    q.policy = op.policy = draw(w, 4);
    memcpy(op.fingerprint, q.fingerprint, sizeof(op.fingerprint));
    op.token[0] = 1;
    memcpy(op.token + 1, &w->seed, sizeof(w->seed));
    hit = once__cache_find(c, &q, now);
    if (hit != NULL) {
        judge(w, i, &op, hit);
        return;
    }
    if (draw(w, 4) == 0)
        w->now_ms += draw(w, 200); /* the queue of the engine */
    ask(w, i, &op);
    w->granted += op.rc == ONCE_OWNER;
    once__cache_note(c, q.name, op.rc, &op.record, now, wall(w));
}

static void completes(struct world *w, uint32_t i)
{
    once_op op = {.verb = ONCE_OP_COMPLETE, .keep_ms = KEEP};

    op.kind = draw(w, 3) == 0 ? ONCE_FAILURE : ONCE_SUCCESS;
    op.fence = w->records[i].fence;
    memcpy(op.token, w->records[i].token, sizeof(op.token));
    if (w->records[i].state == ONCE_COMPLETED)
        return;
    (void)snprintf(w->results[i], sizeof(w->results[i]), "result %u",
                   draw(w, 1000000));
    op.result = (once_bytes){w->results[i], strlen(w->results[i])};
    ask(w, i, &op);
}

static void forgets(struct world *w, uint32_t i)
{
    once_op op = {.verb = ONCE_OP_FORGET};

    ask(w, i, &op);
    w->forgotten += op.rc == ONCE_OK;
}

static void turn(struct world *w, int jumps)
{
    uint32_t i = draw(w, NAMES), what = draw(w, 100);

    if (what < 70) {
        claims(w, i);
    } else if (what < 85) {
        completes(w, i);
    } else if (what < 92) {
        forgets(w, i);
    } else if (what < 93) {
        w->epoch++;
    } else if (what < 94 && jumps && draw(w, 20) == 0) {
        w->ahead_ms += KEEP;
        w->accepted_ms = w->now_ms;
    } else {
        w->now_ms += draw(w, AGE / 4);
    }
}

static struct world live(int jumps)
{
    struct world w = {.seed = 11, .epoch = 1, .now_ms = 10 * AGE};
    size_t i;

    for (i = 0; i < CALLERS; i++)
        w.caches[i] = new_cache();
    for (i = 0; i < STEPS; i++)
        turn(&w, jumps);
    for (i = 0; i < CALLERS; i++)
        once__cache_free(w.caches[i]);
    return w;
}

static void each_hit_is_what_the_store_would_have_replayed(void)
{
    struct world w = live(0);

    T_OK(w.hits > 10000);
    T_OK(w.forgotten > 1000);
    T_OK(w.granted > 1000);
    T_EQ(w.stale, 0);
}

static void after_a_clock_was_accepted_only_until_the_age_is_over(void)
{
    struct world w = live(1);

    T_OK(w.hits > 10000);
    T_OK(w.stale > 0); /* the test can see it */
    T_EQ(w.wrong, 0);
}

/* ---- The engine -------------------------------------------------------- */

static int read_once(once_engine *e)
{
    once_op op;
    int rc;

    memset(&op, 0, sizeof(op));
    op.verb = ONCE_OP_SHOW;
    rc = once_apply(e, &op, NULL);
    once_op_clear(&op);
    return rc;
}

static once_engine *open_engine(const char *url)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_engine *e = NULL;
    once_error err;

    o.create = 1;
    if (once_engine_open(url, &o, &err, &e) != ONCE_OK) {
        printf("# %s: %s\n", url, err.text);
        abort();
    }
    T_EQ(read_once(e), ONCE_FREE);
    return e;
}

static void a_store_of_this_host_has_an_epoch_while_it_answers(void)
{
    once_engine *e = open_engine("memory:");
    uint64_t epoch = once__engine_epoch(e);

    T_OK(epoch != 0);
    T_EQ(read_once(e), ONCE_FREE);
    T_EQ(once__engine_epoch(e), epoch);
    once_engine_close(e);
}

static void a_store_that_was_moved_away_ends_the_epoch(void)
{
    char folder[] = "/tmp/once-cache-XXXXXX", url[64], command[256];
    uint64_t before;
    once_engine *e;

    if (mkdtemp(folder) == NULL)
        abort();
    (void)snprintf(url, sizeof(url), "journal:%s/pay", folder);
    e = open_engine(url);
    before = once__engine_epoch(e);
    T_OK(before != 0);
    (void)snprintf(command, sizeof(command), "mv %s/pay %s/gone", folder,
                   folder);
    T_EQ(system(command), 0);
    while (read_once(e) != ONCE_ESTORE) /* it looked a moment ago */
        ;
    T_EQ(once__engine_epoch(e), 0);
    (void)snprintf(command, sizeof(command), "mv %s/gone %s/pay", folder,
                   folder);
    T_EQ(system(command), 0);
    while (read_once(e) != ONCE_FREE)
        ;
    T_OK(once__engine_epoch(e) != 0);
    T_OK(once__engine_epoch(e) != before);
    once_engine_close(e);
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    T_EQ(system(command), 0);
}

static void what_is_not_known_to_be_of_this_host_has_none(void)
{
    once_engine *e = open_engine("faulty:fail=read:1000@memory:");

    T_EQ(once__engine_epoch(e), 0);
    once_engine_close(e);
}

int main(void)
{
    T_RUN(a_hit_is_the_record_that_was_replayed);
    T_RUN(an_empty_result_is_one);
    T_RUN(another_fingerprint_is_no_hit_and_takes_nothing_away);
    T_RUN(names_that_differ_in_one_bit_share_nothing);
    T_RUN(an_entry_is_used_for_a_short_time_only);
    T_RUN(the_age_counts_from_the_claim_and_not_from_its_answer);
    T_RUN(what_the_store_failed_to_answer_ends_what_was_known);
    T_RUN(only_a_replay_of_the_store_enters);
    T_RUN(any_later_answer_takes_its_place);
    T_RUN(a_failure_that_may_be_tried_again_does_not_enter);
    T_RUN(what_may_be_forgotten_soon_does_not_enter);
    T_RUN(it_never_holds_more_than_its_bytes_and_drops_the_oldest);
    T_RUN(names_that_fall_together_push_each_other_out);
    T_RUN(a_sweep_frees_what_is_too_old);
    T_RUN(each_hit_is_what_the_store_would_have_replayed);
    T_RUN(after_a_clock_was_accepted_only_until_the_age_is_over);
    T_RUN(a_store_of_this_host_has_an_epoch_while_it_answers);
    T_RUN(a_store_that_was_moved_away_ends_the_epoch);
    T_RUN(what_is_not_known_to_be_of_this_host_has_none);
    return t_done();
}
