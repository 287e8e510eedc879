/* SPDX-License-Identifier: Apache-2.0 */
/*
 * story.c - the tour: attempts of one phase and of two that complete, release,
 * give up, are forgotten by their callers, meet one another and are resolved.
 *
 * "Doing the work" is adding one to a counter, so that doing it twice shows.
 * A call may answer whatever once.h lists for it and nothing else; in a clean
 * tour only what it is there for. The rules of story_check() are those of
 * docs/protocol.md, section 10, and know nothing of how they are kept.
 */
#include "story.h"

#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PLAIN, TWICE, RELEASED, GIVEN_UP, LEFT, CROWDED, LARGE };

#define SET(code) (1u << ((code) + 16))
static const unsigned CLAIMS =
    SET(ONCE_OWNER) | SET(ONCE_REPLAY) | SET(ONCE_IN_FLIGHT) |
    SET(ONCE_UNKNOWN) | SET(ONCE_FREE) | SET(ONCE_ESTORE) | SET(ONCE_ENOMEM);

/* ---- Small things ------------------------------------------------------ */

void story_bad(struct story *s, const char *format, ...)
{
    va_list args;

    s->bad++;
    fputs("#   ", stdout);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

static void note(const struct story *s, const char *what, int key)
{
    char line[64];
    int n;

    if (s->log < 0)
        return;
    n = snprintf(line, sizeof(line), "%s %d\n", what, key);
    if (write(s->log, line, (size_t)n) != n)
        abort(); /* a note that is missing would excuse what must not be */
}

/* Whether `rc` may be answered at all, and in a clean tour: whether it is what
 * the tour is there for. */
static int expect(struct story *s, const char *call, int key, int rc, int want,
                  unsigned allowed)
{
    if (rc < -15 || rc > 15 || !((SET(want) | allowed) & SET(rc)))
        story_bad(s, "%s of key %d answered %d: %s", call, key, rc,
                  once_text(rc));
    else if (s->clean && rc != want)
        story_bad(s, "%s of key %d answered %d, not %d", call, key, rc, want);
    return rc;
}

static void fill(const struct story *s, int key, uint8_t *name, uint8_t *print)
{
    memset(name, key + 1, ONCE_NAME_SIZE);
    memcpy(name, &s->seed, sizeof(s->seed));
    memset(print, 0x40 + key, ONCE_FINGERPRINT_SIZE);
}

static once_bytes outcome(const struct story *s, int key)
{
    static const char large[STORY_FILLING] = "large";
    static const char *const small[] = {"one",  "two", "three", "four",
                                        "five", "six", ""};

    if (key == LARGE)
        return (once_bytes){large, s->fills ? sizeof(large) : STORY_LARGE};
    return (once_bytes){small[key], strlen(small[key])};
}

static const once_bytes DECISION = {"decided", 7};

static int same(once_bytes a, once_bytes b)
{
    return a.size == b.size &&
           (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static void nap(void)
{
    const struct timespec t = {0, 5000000};

    (void)nanosleep(&t, NULL);
}

/* ---- Steps of the tour ------------------------------------------------- */

static once_attempt *attempt(struct story *s, once_engine *e, int key,
                             int two_phase)
{
    once_request r;
    once_attempt *a = NULL;
    int rc;

    memset(&r, 0, sizeof(r));
    r.size = sizeof(r);
    fill(s, key, r.name, r.fingerprint);
    r.two_phase = (uint32_t)two_phase;
    r.lease_ms = STORY_LEASE_MS;
    r.store_ms = STORY_STORE_MS;
    rc = once_attempt_new(e, &r, NULL, &a);
    expect(s, "once_attempt_new", key, rc, ONCE_OK, SET(ONCE_ENOMEM));
    return rc == ONCE_OK ? a : NULL;
}

/* What a replay may show is the first outcome, or the operator's. */
static void check_replay(struct story *s, int key, const once_attempt *a)
{
    once_bytes shown = once_attempt_record(a)->result;
    const struct story_key *k = &s->keys[key];

    if (same(shown, outcome(s, key))) {
        if (k->executed == 0)
            story_bad(s, "key %d replays what nobody did", key);
    } else if (!same(shown, DECISION) || !(k->resolved || k->maybe)) {
        story_bad(s, "key %d replays other bytes", key);
    } else if (k->acknowledged) {
        story_bad(s, "key %d: an outcome was replaced", key);
    }
}

static once_attempt *claim(struct story *s, once_engine *e, int key,
                           int two_phase, int want, int *rc)
{
    once_attempt *a = attempt(s, e, key, two_phase);

    *rc = ONCE_ENOMEM;
    if (a == NULL)
        return NULL;
    *rc = expect(s, "once_claim", key, once_claim(a, NULL), want, CLAIMS);
    if (*rc == ONCE_REPLAY)
        check_replay(s, key, a);
    return a;
}

/* Once by rule: nobody may be the owner of what has been done. */
static void work(struct story *s, int key)
{
    note(s, "executes", key);
    if (s->keys[key].executed++ > 0)
        story_bad(s, "key %d was executed twice", key);
}

static void complete(struct story *s, once_attempt *a, int key)
{
    static const unsigned others = SET(ONCE_REPLAY) | SET(ONCE_IN_FLIGHT) |
                                   SET(ONCE_UNKNOWN) | SET(ONCE_ESTORE) |
                                   SET(ONCE_ENOMEM);
    int kind = key == TWICE ? ONCE_FAILURE : ONCE_SUCCESS, rc;

    rc = expect(s, "once_complete", key,
                once_complete(a, kind, outcome(s, key), NULL), ONCE_OK, others);
    if (rc == ONCE_OK) {
        s->keys[key].acknowledged = 1;
        note(s, "acknowledged", key);
    }
}

/* Claims and, as the owner, does it. */
static void do_it(struct story *s, once_engine *e, int key, int two_phase,
                  int want)
{
    int rc;
    once_attempt *a = claim(s, e, key, two_phase, want, &rc);

    if (rc == ONCE_OWNER) {
        work(s, key);
        complete(s, a, key);
    }
    once_attempt_free(a);
}

static void release_it(struct story *s, once_engine *e)
{
    int rc;
    once_attempt *a = claim(s, e, RELEASED, 0, ONCE_OWNER, &rc);

    if (rc == ONCE_OWNER)
        expect(s, "once_release", RELEASED,
               once_release(a, ONCE_REASON_NOT_SENT, NULL), ONCE_OK,
               SET(ONCE_ESTORE));
    once_attempt_free(a);
    do_it(s, e, RELEASED, 1, ONCE_OWNER);
}

static void resolve(struct story *s, once_engine *e, uint64_t fence)
{
    once_op op;
    int rc;

    memset(&op, 0, sizeof(op));
    fill(s, GIVEN_UP, op.name, op.fingerprint);
    op.verb = ONCE_OP_RESOLVE;
    op.kind = ONCE_SUCCESS;
    op.keep_ms = 60000;
    op.fence = fence;
    op.result = DECISION;
    op.note = (once_bytes){"test", 4};
    op.store_ms = STORY_STORE_MS;
    s->keys[GIVEN_UP].maybe = 1;
    note(s, "decides", GIVEN_UP);
    rc = expect(s, "resolve", GIVEN_UP, once_apply(e, &op, NULL), ONCE_OK,
                SET(ONCE_REFUSED) | SET(ONCE_ESTORE) | SET(ONCE_ENOMEM));
    if (rc == ONCE_OK) {
        s->keys[GIVEN_UP].resolved = 1;
        note(s, "resolved", GIVEN_UP);
    }
    once_op_clear(&op);
}

static void show_and_resolve(struct story *s, once_engine *e)
{
    once_op op;
    int rc;

    memset(&op, 0, sizeof(op));
    fill(s, GIVEN_UP, op.name, op.fingerprint);
    op.verb = ONCE_OP_SHOW;
    op.store_ms = STORY_STORE_MS;
    rc = expect(s, "show", GIVEN_UP, once_apply(e, &op, NULL), ONCE_UNKNOWN,
                SET(ONCE_FREE) | SET(ONCE_IN_FLIGHT) | SET(ONCE_REPLAY) |
                    SET(ONCE_ESTORE) | SET(ONCE_ENOMEM));
    if (rc == ONCE_UNKNOWN)
        resolve(s, e, op.record.fence);
    once_op_clear(&op);
}

static void give_it_up(struct story *s, once_engine *e)
{
    int rc;
    once_attempt *a = claim(s, e, GIVEN_UP, 0, ONCE_OWNER, &rc);

    if (rc == ONCE_OWNER) {
        work(s, GIVEN_UP);
        expect(s, "once_give_up", GIVEN_UP,
               once_give_up(a, ONCE_REASON_TIMEOUT, NULL), ONCE_OK,
               SET(ONCE_ESTORE));
    }
    once_attempt_free(a);
    a = claim(s, e, GIVEN_UP, 0, ONCE_UNKNOWN, &rc);
    if (rc == ONCE_OWNER) { /* the first one never was: its turn now */
        work(s, GIVEN_UP);
        complete(s, a, GIVEN_UP);
    }
    once_attempt_free(a);
    show_and_resolve(s, e);
}

/* The caller of an owner goes away without a word. */
static void leave_it(struct story *s, once_engine *e)
{
    int rc;
    once_attempt *a = claim(s, e, LEFT, 1, ONCE_OWNER, &rc);

    if (rc == ONCE_OWNER)
        work(s, LEFT);
    once_attempt_free(a);
}

/* A second attempt, and another request under the same key, while it lasts. */
static void meet(struct story *s, once_engine *e)
{
    once_request r;
    int rc, other;
    once_attempt *a = claim(s, e, CROWDED, 0, ONCE_OWNER, &rc);
    once_attempt *b = claim(s, e, CROWDED, 0, ONCE_IN_FLIGHT, &other),
                 *c = NULL;

    if (rc == ONCE_OWNER && other == ONCE_OWNER)
        story_bad(s, "key %d has two owners", CROWDED);
    memset(&r, 0, sizeof(r));
    r.size = sizeof(r);
    fill(s, CROWDED, r.name, r.fingerprint);
    r.fingerprint[0] ^= 1;
    r.store_ms = STORY_STORE_MS;
    r.lease_ms = STORY_LEASE_MS;
    if (rc == ONCE_OWNER && once_attempt_new(e, &r, NULL, &c) == ONCE_OK)
        expect(s, "once_claim", CROWDED, once_claim(c, NULL), ONCE_MISMATCH,
               SET(ONCE_ESTORE) | SET(ONCE_ENOMEM));
    once_attempt_free(c);
    if (other == ONCE_OWNER) {
        work(s, CROWDED);
        complete(s, b, CROWDED);
    }
    once_attempt_free(b);
    if (rc == ONCE_OWNER) {
        work(s, CROWDED);
        complete(s, a, CROWDED);
    }
    once_attempt_free(a);
}

static int count_record(void *user, const uint8_t name[ONCE_NAME_SIZE],
                        const once_record *r)
{
    (void)name;
    *(unsigned *)user += 1;
    return r->state == 255;
}

static void list(struct story *s, once_engine *e)
{
    unsigned seen = 0;
    int rc = once_scan(e, ONCE_SCAN_ALL, NULL, 1000, count_record, &seen, NULL);

    if (rc >= 0 && (unsigned)rc != seen)
        story_bad(s, "once_scan says %d, and %u were shown", rc, seen);
    if (rc < 0 && (s->clean || (rc != ONCE_ESTORE && rc != ONCE_ENOMEM)))
        story_bad(s, "once_scan answered %d", rc);
}

struct submitted {
    once_op op;
    sem_t done;
};

static void submitted_done(once_op *op)
{
    struct submitted *m = op->user;

    (void)sem_post(&m->done);
}

static void submit(struct story *s, once_engine *e)
{
    struct submitted m;
    int rc;

    memset(&m, 0, sizeof(m));
    fill(s, PLAIN, m.op.name, m.op.fingerprint);
    m.op.verb = ONCE_OP_READ;
    m.op.store_ms = STORY_STORE_MS;
    m.op.done = submitted_done;
    m.op.user = &m;
    (void)sem_init(&m.done, 0, 0);
    rc = expect(s, "once_submit", PLAIN, once_submit(e, &m.op, NULL), ONCE_OK,
                SET(ONCE_ENOMEM));
    if (rc == ONCE_OK) {
        while (sem_wait(&m.done) != 0)
            ;
        expect(s, "read", PLAIN, m.op.rc, ONCE_REPLAY,
               SET(ONCE_FREE) | SET(ONCE_IN_FLIGHT) | SET(ONCE_UNKNOWN) |
                   SET(ONCE_ESTORE));
    }
    (void)sem_destroy(&m.done);
}

void story_fill(struct story *s, once_engine *e)
{
    do_it(s, e, LARGE, 1, ONCE_OWNER);
    nap(); /* only to be more likely to meet the store's second thread */
    do_it(s, e, LARGE, 1, ONCE_REPLAY);
}

void story_tell(struct story *s, once_engine *e)
{
    do_it(s, e, PLAIN, 0, ONCE_OWNER);
    do_it(s, e, PLAIN, 0, ONCE_REPLAY);
    do_it(s, e, TWICE, 1, ONCE_OWNER);
    do_it(s, e, LARGE, 1, ONCE_OWNER);
    do_it(s, e, LARGE, 1, ONCE_REPLAY);
    release_it(s, e);
    give_it_up(s, e);
    leave_it(s, e);
    meet(s, e);
    submit(s, e);
    list(s, e);
}

/* ---- Afterwards -------------------------------------------------------- */

once_engine *story_open(struct story *s, const char *url)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_error err = {0, ""};
    once_engine *e = NULL;
    int rc;

    o.reap_ms = 20;
    o.drain_ms = 500;
    o.create = 1;
    rc = once_engine_open(url, &o, &err, &e);
    if (rc != ONCE_OK &&
        (s->clean || (rc != ONCE_ENOMEM && rc != ONCE_EOPEN &&
                      !(rc == ONCE_ECORRUPT && s->unreadable))))
        story_bad(s, "once_engine_open answered %d: %s", rc, err.text);
    return rc == ONCE_OK ? e : NULL;
}

/* Claims until the answer is a last one: leases end, and reapers come. */
static once_attempt *settle(struct story *s, once_engine *e, int key, int *rc)
{
    once_attempt *a;
    int tries;

    for (tries = 0; tries < 4000; tries++) {
        a = attempt(s, e, key, 0);
        if (a == NULL) {
            story_bad(s, "key %d: no attempt, and nothing is wrong", key);
            return NULL;
        }
        *rc = once_claim(a, NULL);
        if (*rc != ONCE_IN_FLIGHT && *rc != ONCE_FREE)
            return a;
        once_attempt_free(a);
        nap();
    }
    story_bad(s, "key %d is never settled (L2)", key);
    return NULL;
}

/* It never was begun: a repetition succeeds. */
static void repeat(struct story *s, once_attempt *a, int key)
{
    s->keys[key].executed++;
    if (once_complete(a, ONCE_SUCCESS, outcome(s, key), NULL) != ONCE_OK)
        story_bad(s, "key %d cannot be repeated", key);
}

/* The rules that hold whatever went wrong (I1, I2, I5, I7). */
static void check_key(struct story *s, once_engine *e, int key)
{
    struct story_key *k = &s->keys[key];
    int rc = 0;
    once_attempt *a = settle(s, e, key, &rc);

    if (a == NULL)
        return;
    if (rc == ONCE_REPLAY)
        check_replay(s, key, a);
    else if (k->acknowledged || k->resolved)
        story_bad(s, "key %d: its record is lost, claim says %d", key, rc);
    else if (rc == ONCE_OWNER && k->executed > 0)
        story_bad(s, "key %d is offered a second time", key);
    else if (rc == ONCE_OWNER)
        repeat(s, a, key);
    else if (rc != ONCE_UNKNOWN)
        story_bad(s, "key %d: claim says %d, and nothing is wrong", key, rc);
    once_attempt_free(a);
}

void story_check(struct story *s, once_engine *e)
{
    int key;

    for (key = 0; key < STORY_KEYS; key++)
        check_key(s, e, key);
}
