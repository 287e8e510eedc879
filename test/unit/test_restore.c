/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_restore.c - copies of stores, the gap after a restore, and the witness
 * that notices a store restored to an earlier state: src/operate/copy, src/calls/engine/gap.c, witness.c.
 *
 * With real stores in a temporary folder; the clock is moved by hand.
 */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <once/store.h>

#include "operate/copy/copy.h"
#include "calls/engine/engine.h"
#include "calls/store/store.h"
#include "t.h"

enum { HOUR = 3600000, DAY = 24 * HOUR };

static char folder[64];
static _Atomic(uint64_t) now; /* of all stores and engines */

static uint64_t hand(void *user)
{
    (void)user;
    return now;
}

static uint64_t real_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static const char *path(const char *name)
{
    static char out[4][160];
    static int i;

    i = (i + 1) % 4;
    (void)snprintf(out[i], sizeof(out[i]), "%s/%s", folder, name);
    return out[i];
}

static const char *url(const char *driver, const char *name)
{
    static char out[4][160];
    static int i;

    i = (i + 1) % 4;
    (void)snprintf(out[i], sizeof(out[i]), "%s:%s/%s", driver, folder, name);
    return out[i];
}

static void shell(const char *command)
{
    char text[400];

    (void)snprintf(text, sizeof(text), "cd %s && %s", folder, command);
    T_EQ(system(text), 0);
}

static once_store *open_store(const char *at)
{
    once_store_options o = {.size = sizeof(o), .clock = hand, .create = 1};
    once_store *s = NULL;
    once_error err = {0, ""};

    if (once_store_open(at, &o, &err, &s) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return s;
}

static int open_engine(const char *at, const char *witness, once_engine **out,
                       once_error *err)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;

    o.clock = hand;
    o.witness = witness;
    o.create = 1;
    return once_engine_open(at, &o, err, out);
}

static once_engine *engine(const char *at, const char *witness)
{
    once_engine *e = NULL;
    once_error err = {0, ""};

    if (open_engine(at, witness, &e, &err) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return e;
}

/* What one attempt is told; an owner ends as `end` says: 'c', 'f', 'g', 'o'
 * (stays the owner until the engine is closed). */
static int attempt(once_engine *e, unsigned key, uint32_t policy, char end)
{
    once_request r = {.size = sizeof(r), .keep_ms = 2 * DAY};
    once_attempt *a = NULL;
    int rc;

    memcpy(r.name, &key, sizeof(key));
    r.policy = policy;
    r.label = (once_bytes){"order=7", 7};
    T_EQ(once_attempt_new(e, &r, NULL, &a), ONCE_OK);
    rc = once_claim(a, NULL);
    if (rc == ONCE_OWNER && end == 'c')
        T_EQ(once_complete(a, ONCE_SUCCESS, (once_bytes){"done", 4}, NULL),
             ONCE_OK);
    if (rc == ONCE_OWNER && end == 'f')
        T_EQ(once_complete(a, ONCE_FAILURE, (once_bytes){"no", 2}, NULL),
             ONCE_OK);
    if (rc == ONCE_OWNER && end == 'g')
        T_EQ(once_give_up(a, ONCE_REASON_TIMEOUT, NULL), ONCE_OK);
    if (end != 'o')
        once_attempt_free(a);
    return rc;
}

static once_record look(once_engine *e, unsigned key)
{
    once_op op = {.verb = ONCE_OP_SHOW};

    memcpy(op.name, &key, sizeof(key));
    T_OK(once_apply(e, &op, NULL) >= 0);
    once_op_clear(&op);
    return op.record;
}

static void told_so(once_attempt *a, int rc, void *user)
{
    (void)a;
    atomic_store((atomic_int *)user, rc);
}

/* What a caller is told who asks what became of it. */
static int told(once_engine *e, unsigned key)
{
    once_request r = {.size = sizeof(r)};
    once_attempt *a = NULL;
    atomic_int rc;

    atomic_init(&rc, -1000);
    memcpy(r.name, &key, sizeof(key));
    T_EQ(once_attempt_new(e, &r, NULL, &a), ONCE_OK);
    T_EQ(once_look_start(a, told_so, &rc), ONCE_OK);
    while (atomic_load(&rc) == -1000)
        (void)sched_yield();
    once_attempt_free(a);
    return atomic_load(&rc);
}

enum { DONE = 1, FAILED, GIVEN_UP, FLYING, LATER, NEVER };

/* A store with one record of each kind, and its copy; then one more record. */
static void make(const char *driver, const char *name, const char *copy,
                 once__copy_about *about)
{
    once_engine *e = engine(url(driver, name), NULL);
    once_store *s;

    T_EQ(attempt(e, DONE, 0, 'c'), ONCE_OWNER);
    T_EQ(attempt(e, FAILED, ONCE_RETRY_FAILED, 'f'), ONCE_OWNER);
    T_EQ(attempt(e, GIVEN_UP, 0, 'g'), ONCE_OWNER);
    {
        once_op op = {.verb = ONCE_OP_CLAIM, .lease_ms = 1000, .keep_ms = DAY};
        unsigned key = FLYING;

        memcpy(op.name, &key, sizeof(key));
        op.token[0] = 1;
        op.two_phase = 1;
        T_EQ(once_apply(e, &op, NULL), ONCE_OWNER);
        once_op_clear(&op);
    }
    s = open_store(url(driver, name));
    T_EQ(once__copy_write(s, copy, NULL, NULL, about, NULL), ONCE_OK);
    T_EQ(about->records, 4);
    T_EQ(about->unreadable, 0);
    T_EQ(about->keep_ms, 2 * DAY);
    T_EQ(about->begun_ms, now);
    once_store_close(s);
    T_EQ(attempt(e, LATER, 0, 'c'), ONCE_OWNER);
    once_engine_close(e);
}

static void restore(const char *at, const char *copy, int gap,
                    once_store_head *head)
{
    once__restore how = {.gap = gap};
    once_store *s = open_store(at);
    once__copy *c = NULL;
    once_error err = {0, ""};

    T_EQ(once__copy_open(copy, &err, &c), ONCE_OK);
    T_EQ(once__copy_restore(c, s, &how, head, &err), ONCE_OK);
    if (err.text[0] != '\0')
        printf("#   %s\n", err.text);
    once__copy_close(c);
    once_store_close(s);
}

static void held(const char *from, const char *to)
{
    once__copy_about about;
    once_store_head head;
    once_engine *e;
    once_record r;
    once_clock clock = {.every_ms = 1000};
    uint64_t largest;
    once_store *s;

    shell("rm -rf a b copy a-wal a-shm b-wal b-shm a-* b-*");
    now = real_now();
    make(from, "a", path("copy"), &about);
    restore(url(to, "b"), path("copy"), ONCE_GAP_HOLD, &head);
    T_EQ(head.incarnation, 1);
    T_EQ(head.gap, ONCE_GAP_HOLD);
    T_EQ(head.gap_from_ms, about.begun_ms);
    T_OK(head.gap_until_ms >= now + 2 * DAY);
    T_MEM(head.id, about.id, ONCE_STORE_ID_SIZE);
    e = engine(url(to, "b"), NULL);
    T_EQ(attempt(e, DONE, 0, 'c'), ONCE_REPLAY);
    T_EQ(attempt(e, FAILED, ONCE_RETRY_FAILED, 'c'), ONCE_UNKNOWN);
    T_EQ(attempt(e, GIVEN_UP, 0, 'c'), ONCE_UNKNOWN);
    T_EQ(attempt(e, FLYING, 0, 'c'), ONCE_UNKNOWN);
    T_EQ(attempt(e, LATER, 0, 'c'), ONCE_UNKNOWN);
    T_EQ(attempt(e, NEVER, 0, 'c'), ONCE_UNKNOWN);
    T_EQ(told(e, DONE), ONCE_REPLAY);
    T_EQ(told(e, FAILED), ONCE_UNKNOWN);
    T_EQ(told(e, FLYING), ONCE_UNKNOWN);
    T_EQ(told(e, LATER), ONCE_UNKNOWN); /* never "absent" */
    T_EQ(told(e, NEVER), ONCE_UNKNOWN);
    T_EQ(look(e, NEVER).attempt, 0); /* nothing was written for it */
    r = look(e, FLYING);
    T_EQ(r.state, ONCE_INDETERMINATE);
    T_EQ(r.reason, ONCE_REASON_GAP);
    T_EQ(r.ended_ms, about.begun_ms);
    T_EQ(look(e, GIVEN_UP).reason, ONCE_REASON_TIMEOUT);
    once_engine_close(e);

    /* A clock that was set ahead does not end it, not even for the first claim
     * of an engine. */
    now = head.gap_until_ms + 1;
    e = engine(url(to, "b"), NULL);
    T_EQ(attempt(e, NEVER, 0, 'c'), ONCE_UNKNOWN);
    once_engine_close(e);
    s = open_store(url(to, "b"));
    T_EQ(once_store_clock_accept(s, &clock, NULL), ONCE_OK);
    once_store_close(s);
    e = engine(url(to, "b"), NULL);
    T_EQ(told(e, NEVER), ONCE_FREE);
    T_EQ(attempt(e, NEVER, 0, 'c'), ONCE_OWNER);
    largest = look(e, NEVER).fence;
    T_OK(largest > UINT64_C(1) << ONCE__FENCE_BITS);
    once_engine_close(e);
    s = open_store(url(to, "b"));
    T_OK(s->caveat == NULL);
    once_store_close(s);
}

static void a_held_gap_grants_nothing_until_it_is_over(void)
{
    held("journal", "journal");
    held("sqlite", "sqlite");
}

/* The clock is set ahead before any engine has looked at it. */
static void a_clock_set_ahead_at_once_ends_no_gap(void)
{
    static const char *const drivers[] = {"journal", "sqlite"};
    once__restore how = {.gap = ONCE_GAP_HOLD};
    once__copy_about about;
    once_store_head head;
    once_engine *e;
    once_store *s;
    size_t i;

    for (i = 0; i < 2; i++) {
        shell("rm -rf a b c copy a-* b-* c-*");
        now = real_now();
        make(drivers[i], "a", path("copy"), &about);
        restore(url(drivers[i], "b"), path("copy"), ONCE_GAP_HOLD, &head);
        s = open_store(url(drivers[i], "c"));
        T_EQ(once__copy_adopt(s, &how, &head, NULL), ONCE_OK);
        once_store_close(s);
        now += 30 * (uint64_t)DAY;
        e = engine(url(drivers[i], "b"), NULL);
        T_EQ(attempt(e, NEVER, 0, 'c'), ONCE_UNKNOWN);
        once_engine_close(e);
        e = engine(url(drivers[i], "c"), NULL);
        T_EQ(attempt(e, NEVER, 0, 'c'), ONCE_UNKNOWN);
        once_engine_close(e);
    }
    shell("rm -rf b c b-* c-*");
}

/* The clock of the store was ahead when it was copied, and so its records were
 * not forgotten. They are not forgotten in the restored store either. */
static void a_copy_tells_that_the_clock_was_ahead(void)
{
    static const char *const drivers[] = {"journal", "sqlite"};
    once__copy_about about;
    once_store_head head;
    once_engine *e;
    once_store *s;
    size_t i;

    for (i = 0; i < 2; i++) {
        shell("rm -rf a b copy earlier a-* b-*");
        now = real_now();
        make(drivers[i], "a", path("earlier"), &about);
        now += 30 * (uint64_t)DAY;
        s = open_store(url(drivers[i], "a"));
        T_EQ(once__copy_write(s, path("copy"), NULL, NULL, &about, NULL),
             ONCE_OK);
        once_store_close(s);
        T_OK(about.ahead_ms > 29 * (uint64_t)DAY);
        restore(url(drivers[i], "b"), path("copy"), ONCE_GAP_ACCEPT, &head);
        e = engine(url(drivers[i], "b"), NULL);
        T_EQ(attempt(e, DONE, 0, 'c'), ONCE_REPLAY);
        T_EQ(attempt(e, LATER, 0, 'c'), ONCE_REPLAY);
        once_engine_close(e);
    }
    shell("rm -rf a b copy earlier a-* b-*");
}

/* An engine has the empty store open while it is filled from the copy: it knows
 * nothing of the gap, so it may grant nothing. */
static void beside(const char *driver)
{
    once__copy_about about;
    once_store_head head;
    once_engine *e;

    shell("rm -rf a b copy a-* b-*");
    now = real_now();
    make(driver, "a", path("copy"), &about);
    e = engine(url(driver, "b"), NULL);
    restore(url(driver, "b"), path("copy"), ONCE_GAP_HOLD, &head);
    T_EQ(attempt(e, DONE, 0, 'c'), ONCE_REPLAY); /* of that store, and true */
    T_EQ(attempt(e, LATER, 0, 'c'), ONCE_ESTORE);
    T_EQ(attempt(e, NEVER, 0, 'c'), ONCE_ESTORE);
    once_engine_close(e);
    e = engine(url(driver, "b"), NULL);
    T_EQ(attempt(e, DONE, 0, 'c'), ONCE_REPLAY);
    T_OK(attempt(e, LATER, 0, 'c') != ONCE_OWNER);
    T_EQ(attempt(e, NEVER, 0, 'c'), ONCE_UNKNOWN);
    T_EQ(look(e, NEVER).attempt, 0); /* the store was not asked again */
    once_engine_close(e);
}

static void who_has_it_open_while_it_is_restored_grants_nothing(void)
{
    beside("journal");
    beside("sqlite");
}

static void a_copy_moves_a_store_to_another_kind(void)
{
    held("journal", "sqlite");
    held("sqlite", "journal");
}

/* What a single claim is told, of once_apply() or, `later`, of once_submit(). */
struct single {
    once_op op; /* first */
    sem_t done;
};

static void single_done(once_op *op)
{
    (void)sem_post(&((struct single *)(void *)op)->done);
}

static int single(once_engine *e, unsigned key, uint32_t policy, int later)
{
    struct single s = {.op = {.verb = ONCE_OP_CLAIM,
                              .lease_ms = 30000,
                              .keep_ms = DAY,
                              .policy = policy,
                              .two_phase = 1,
                              .token = {9},
                              .done = single_done}};
    int rc;

    memcpy(s.op.name, &key, sizeof(key));
    if (!later) {
        rc = once_apply(e, &s.op, NULL);
        once_op_clear(&s.op);
    } else {
        T_EQ(sem_init(&s.done, 0, 0), 0);
        T_EQ(once_submit(e, &s.op, NULL), ONCE_OK);
        T_EQ(sem_wait(&s.done), 0);
        rc = s.op.rc;
        (void)sem_destroy(&s.done);
    }
    T_EQ(s.op.verb, ONCE_OP_CLAIM); /* as it was given */
    return rc;
}

/* Who uses no attempt is held back like one who does. */
static void a_held_gap_grants_nothing_to_single_operations(void)
{
    once_clock clock = {.every_ms = 1000};
    once__copy_about about;
    once_store_head head;
    once_engine *e;
    once_store *s;
    int later;

    shell("rm -rf a b copy");
    now = real_now();
    make("journal", "a", path("copy"), &about);
    restore(url("journal", "b"), path("copy"), ONCE_GAP_HOLD, &head);
    e = engine(url("journal", "b"), NULL);
    for (later = 0; later < 2; later++) {
        T_EQ(single(e, DONE, 0, later), ONCE_REPLAY);
        T_EQ(single(e, FAILED, ONCE_RETRY_FAILED, later), ONCE_UNKNOWN);
        T_EQ(single(e, LATER, 0, later), ONCE_UNKNOWN);
        T_EQ(single(e, NEVER, 0, later), ONCE_UNKNOWN);
        T_EQ(look(e, LATER).attempt, 0);
        T_EQ(look(e, NEVER).attempt, 0); /* nothing was written for it */
    }
    once_engine_close(e);
    now = head.gap_until_ms + 1;
    s = open_store(url("journal", "b"));
    T_EQ(once_store_clock_accept(s, &clock, NULL), ONCE_OK);
    once_store_close(s);
    e = engine(url("journal", "b"), NULL);
    T_EQ(single(e, LATER, 0, 0), ONCE_OWNER);
    T_EQ(single(e, NEVER, 0, 1), ONCE_OWNER);
    once_engine_close(e);
}

static void an_accepted_gap_executes_and_says_class_b(void)
{
    once__copy_about about;
    once_store_head head;
    once_engine *e;
    once_store *s;

    shell("rm -rf a b copy");
    now = real_now();
    make("journal", "a", path("copy"), &about);
    restore(url("journal", "b"), path("copy"), ONCE_GAP_ACCEPT, &head);
    e = engine(url("journal", "b"), NULL);
    T_EQ(attempt(e, DONE, 0, 'c'), ONCE_REPLAY);
    T_EQ(attempt(e, FLYING, 0, 'c'), ONCE_UNKNOWN);
    T_EQ(attempt(e, LATER, 0, 'c'), ONCE_OWNER); /* the second time */
    once_engine_close(e);
    s = open_store(url("journal", "b"));
    T_OK(s->caveat != NULL && strstr(s->caveat, "restored") != NULL);
    once_store_close(s);
    now = head.gap_until_ms + 1;
    s = open_store(url("journal", "b"));
    T_OK(s->caveat == NULL);
    once_store_close(s);
}

/* ---- Copies that are none ------------------------------------------------ */

static int opens(const char *name)
{
    once__copy *c = NULL;
    once_error err = {0, ""};
    int rc = once__copy_open(path(name), &err, &c);

    T_OK(rc == ONCE_OK || err.text[0] != '\0');
    once__copy_close(c);
    return rc;
}

static void half_a_copy_or_a_changed_one_is_refused(void)
{
    once__copy_about about;
    struct stat st;
    char text[200];
    long at;
    size_t bad = 0;

    shell("rm -rf a b copy*");
    now = real_now();
    make("journal", "a", path("copy"), &about);
    T_EQ(opens("copy"), ONCE_OK);
    T_EQ(stat(path("copy"), &st), 0);
    T_EQ(st.st_mode & 0777, 0600);
    for (at = 0; at < st.st_size; at += 7) {
        FILE *f;
        int c;

        (void)snprintf(text, sizeof(text), "cp copy copy2");
        shell(text);
        f = fopen(path("copy2"), "r+");
        T_OK(f != NULL && fseek(f, at, SEEK_SET) == 0);
        c = fgetc(f);
        (void)fseek(f, at, SEEK_SET);
        (void)fputc(c ^ 1, f);
        (void)fclose(f);
        bad += opens("copy2") == ONCE_OK;
    }
    T_EQ(bad, 0);
    shell("head -c -1 copy > copy2");
    T_EQ(opens("copy2"), ONCE_ECORRUPT);
    shell("head -c 20 copy > copy2");
    T_EQ(opens("copy2"), ONCE_ECORRUPT);
    shell(": > copy2");
    T_EQ(opens("copy2"), ONCE_ECORRUPT);
    T_EQ(opens("none"), ONCE_EOPEN);
}

static void a_copy_overwrites_nothing_and_wants_an_empty_store(void)
{
    once__restore how = {.gap = ONCE_GAP_HOLD};
    once__copy_about about;
    once_store_head head;
    once__copy *c = NULL;
    once_store *s;

    shell("rm -rf a b copy*");
    now = real_now();
    make("journal", "a", path("copy"), &about);
    s = open_store(url("journal", "a"));
    T_EQ(once__copy_write(s, path("copy"), NULL, NULL, &about, NULL),
         ONCE_EOPEN);
    T_EQ(once__copy_open(path("copy"), NULL, &c), ONCE_OK);
    T_EQ(once__copy_restore(c, s, &how, &head, NULL), ONCE_EINVAL);
    T_EQ(s->ops->head(s, NULL, &head, NULL), ONCE_OK);
    T_EQ(head.gap, ONCE_GAP_NONE);
    once__copy_close(c);
    once_store_close(s);
    shell("test ! -e copy.part");
}

/* What is absent in a gap stays unknown until that gap is over, whatever is done
 * to the store meanwhile. */
static void a_gap_is_not_made_shorter(void)
{
    once__restore week = {.gap = ONCE_GAP_HOLD, .keep_ms = 7 * (uint64_t)DAY};
    once__restore day = {.gap = ONCE_GAP_HOLD};
    once_store_head first, head;
    once__copy_about about;
    once_engine *e;
    once_store *s;

    shell("rm -rf a b copy*");
    now = real_now();
    s = open_store(url("journal", "a"));
    T_EQ(once__copy_adopt(s, &week, &first, NULL), ONCE_OK);
    T_EQ(once__copy_adopt(s, &day, &head, NULL), ONCE_OK);
    T_OK(head.gap_until_ms >= first.gap_until_ms);
    T_EQ(once__copy_adopt(s, &week, &first, NULL), ONCE_OK);
    T_EQ(once__copy_write(s, path("copy"), NULL, NULL, &about, NULL), ONCE_OK);
    once_store_close(s);
    restore(url("journal", "b"), path("copy"), ONCE_GAP_HOLD, &head);
    T_OK(head.gap_until_ms >= first.gap_until_ms);
    e = engine(url("journal", "b"), NULL);
    now += 3 * (uint64_t)DAY;
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_UNKNOWN);
    once_engine_close(e);
}

/* ---- The witness ----------------------------------------------------------- */

static void a_store_that_was_put_back_is_noticed(void)
{
    once__restore how = {.gap = ONCE_GAP_HOLD};
    once_store_head head;
    once_engine *e = NULL;
    once_store *s;
    once_error err = {0, ""};

    shell("rm -rf a old witness && mkdir witness");
    now = real_now();
    e = engine(url("journal", "a"), path("witness"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_OWNER);
    once_engine_close(e);
    shell("cp -r a old");
    e = engine(url("journal", "a"), path("witness"));
    T_EQ(attempt(e, 2, 0, 'c'), ONCE_OWNER);
    once_engine_close(e);
    e = engine(url("journal", "a"), path("witness")); /* as it should be */
    once_engine_close(e);

    shell("rm -rf a && mv old a");
    T_EQ(open_engine(url("journal", "a"), path("witness"), &e, &err),
         ONCE_EROLLBACK);
    T_OK(strstr(err.text, "once restore --adopt") != NULL);
    s = open_store(url("journal", "a"));
    T_EQ(once__copy_adopt(s, &how, &head, NULL), ONCE_OK);
    T_EQ(head.incarnation, 1);
    once_store_close(s);
    e = engine(url("journal", "a"), path("witness"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_REPLAY);
    T_EQ(attempt(e, 2, 0, 'c'), ONCE_UNKNOWN); /* in the gap */
    once_engine_close(e);
}

/* ---- Another store in its place -------------------------------------------- */

static int refused(const char *at, const char *text)
{
    once_error err = {0, ""};
    once_engine *e = NULL;
    int rc = open_engine(at, path("witness"), &e, &err);

    once_engine_close(e);
    T_OK(rc == ONCE_OK || strstr(err.text, text) != NULL);
    return rc;
}

/* A new, empty store, as once init makes it where one was moved away. */
static void in_its_place(const char *driver)
{
    const char *a = url(driver, "a");
    once__restore how = {.gap = ONCE_GAP_HOLD};
    once_clock clock = {.every_ms = 1000};
    once_store_head head;
    once_engine *e;
    once_store *s;

    shell("rm -rf a a-* old old-* witness && mkdir witness");
    now = real_now();
    e = engine(a, path("witness"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_OWNER);
    once_engine_close(e);
    shell("mv a old; rm -f a-*");
    once_store_close(open_store(a));
    T_EQ(refused(a, "different store"), ONCE_EROLLBACK);
    T_EQ(refused(a, "once restore --adopt"), ONCE_EROLLBACK); /* still */

    s = open_store(a);
    T_EQ(once__copy_adopt(s, &how, &head, NULL), ONCE_OK);
    once_store_close(s);
    e = engine(a, path("witness"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_UNKNOWN); /* in the gap */
    once_engine_close(e);

    /* From now on this one is expected there, also when the gap is over. */
    now = head.gap_until_ms + 1;
    s = open_store(a);
    T_EQ(once_store_clock_accept(s, &clock, NULL), ONCE_OK);
    once_store_close(s);
    e = engine(a, path("witness"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_OWNER);
    once_engine_close(e);
    shell("rm -rf a a-* && mv old a");
    T_EQ(refused(a, "different store"), ONCE_EROLLBACK);
}

static void a_different_store_in_its_place_is_refused(void)
{
    in_its_place("journal");
    in_its_place("sqlite");
}

/* The gap of a store that was accepted, and never opened here in that time. */
static void a_different_store_is_not_accepted_by_an_old_gap(void)
{
    static const int gaps[] = {ONCE_GAP_HOLD, ONCE_GAP_ACCEPT};
    once__restore how = {0};
    once_store_head head;
    once_engine *e;
    once_store *s;
    size_t i;

    for (i = 0; i < 2; i++) {
        once_clock clock = {.every_ms = 1000};

        shell("rm -rf a b witness && mkdir witness");
        now = real_now();
        s = open_store(url("journal", "b"));
        how.gap = gaps[i];
        T_EQ(once__copy_adopt(s, &how, &head, NULL), ONCE_OK);
        now = head.gap_until_ms + 1;
        T_EQ(once_store_clock_accept(s, &clock, NULL), ONCE_OK);
        once_store_close(s);
        e = engine(url("journal", "a"), path("witness"));
        T_EQ(attempt(e, 1, 0, 'c'), ONCE_OWNER);
        once_engine_close(e);
        shell("rm -rf a && mv b a");
        T_EQ(refused(url("journal", "a"), "different store"), ONCE_EROLLBACK);
    }
}

static void a_store_that_has_granted_nothing_may_be_another_one(void)
{
    once_engine *e;

    shell("rm -rf a witness && mkdir witness");
    now = real_now();
    once_engine_close(engine(url("journal", "a"), path("witness")));
    shell("rm -rf a");
    e = engine(url("journal", "a"), path("witness"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_OWNER);
    once_engine_close(e);
    shell("rm -rf a");
    T_OK(open_engine(url("journal", "a"), path("witness"), &e, NULL) ==
         ONCE_EROLLBACK);
}

/* The files of a version that knew only fences. */
static void a_store_is_known_by_its_fences_alone(void)
{
    once_engine *e;

    shell("rm -rf a witness && mkdir witness");
    now = real_now();
    e = engine(url("journal", "a"), path("witness"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_OWNER);
    once_engine_close(e);
    shell("rm witness/at-*");
    once_engine_close(engine(url("journal", "a"), path("witness")));
    shell("rm -rf a");
    once_store_close(open_store(url("journal", "a")));
    T_EQ(refused(url("journal", "a"), "different store"), ONCE_EROLLBACK);
}

/* The file of a store's name leads to another one. */
static void a_name_that_leads_to_another_store_is_refused(void)
{
    once_engine *e;

    shell("rm -rf a b witness stores && mkdir witness stores");
    now = real_now();
    T_EQ(setenv("ONCE_STORES_D", path("stores"), 1), 0);
    shell("echo \"url = journal:$PWD/a\" >stores/pay");
    e = engine("pay", path("witness"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_OWNER);
    once_engine_close(e);
    shell("mv a c && echo \"url = journal:$PWD/c\" >stores/pay");
    T_EQ(refused("name:pay", ""), ONCE_OK); /* the same one, elsewhere */
    shell("echo \"url = journal:$PWD/b\" >stores/pay");
    T_EQ(refused("name:pay", "different store"), ONCE_EROLLBACK);
    T_EQ(unsetenv("ONCE_STORES_D"), 0);
    shell("rm -rf b c stores");
}

static void what_only_says_who_asks_does_not_tell_stores_apart(void)
{
    static const char *const same[][2] = {
        {"pay", "name:pay"},
        {"journal:/x/pay", "journal:/x/pay/"},
        {"journal:/x/pay", "journal:/x/pay?busy_ms=9&segment=65536"},
        {"postgres://db/shop", "postgresql://a:b%40c@db/shop?connect_ms=7"},
        {"postgres://a@db/shop", "postgres://b@db/shop?password=x"},
        {"postgres:///shop?schema=s&host=/run",
         "postgres:///shop?host=/run&lock_ms=1&schema=s"},
        {"redis://h:1/2", "redis://u:p@h:1/2?wait=1"},
    };
    static const char *const other[][2] = {
        {"pay", "journal:pay"},
        {"journal:/x/pay", "sqlite:/x/pay"},
        {"journal:/x/pay", "journal:/x/pay2"},
        {"postgres://db/shop", "postgres://db2/shop"},
        {"postgres://db/shop", "postgres://db/shop2"},
        {"postgres://db/shop", "postgres://db/shop?schema=t"},
        {"postgres:///x?host=a", "postgres:///x?host=b"},
        {"postgres:///x?host=a&port=1", "postgres:///x?host=a&port=2"},
        {"redis://h:1/2", "redis://h:1/3"},
        {"redis://h:1/2?prefix=a", "redis://h:1/2?prefix=b"},
    };
    char here[200];
    uint64_t where;
    size_t i;

    for (i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        T_EQ(once__where(same[i][0]), once__where(same[i][1]));
    for (i = 0; i < sizeof(other) / sizeof(other[0]); i++)
        T_OK(once__where(other[i][0]) != once__where(other[i][1]));
    /* From the root: another program may stand in another folder. */
    T_EQ(chdir(folder), 0);
    where = once__where("journal:pay");
    T_EQ(chdir("/"), 0);
    T_OK(once__where("journal:pay") != where);
    (void)snprintf(here, sizeof(here), "journal:%s/pay", folder);
    T_EQ(once__where(here), where);
}

/* What another process of this host does at the moment at which we ask for the
 * last fence: it is granted more, and writes that down. */
static uint64_t granted;

static int fence_of_many(once_store *s, uint64_t *out, once_error *err)
{
    (void)s;
    (void)err;
    *out = granted;
    granted += 10;
    shell("echo 'once witness 1 15' >"
          " witness/00000000000000000000000000000000");
    return ONCE_OK;
}

static void what_others_are_granted_meanwhile_is_no_alarm(void)
{
    const once_store_ops ops = {
        .name = "many", .durable = 1, .fence = fence_of_many};
    once_store s = {.ops = &ops};
    once_engine *e = calloc(1, sizeof(*e));
    once_error err = {0, ""};

    shell("rm -rf witness && mkdir witness");
    granted = 5;
    e->store = &s;
    e->options.witness = path("witness");
    T_EQ(once__witness_open(e, &err), ONCE_OK);
    T_EQ(once__witness_open(e, &err), ONCE_OK);
    granted = 14;
    T_EQ(once__witness_open(e, &err), ONCE_EROLLBACK);
    free(e);
}

static char said[200];

static void listen(void *user, const char *text)
{
    (void)user;
    if (strstr(text, "witness") != NULL)
        (void)snprintf(said, sizeof(said), "%s", text);
}

/* It may belong to another user, or be damaged: that is no "nothing was
 * granted". */
static void a_witness_that_cannot_be_read_is_reported(void)
{
    static const char *const ways[] = {
        "ln -s elsewhere witness/$(ls witness.ok | grep ^at)",
        "ln -s elsewhere witness/$(ls witness.ok | grep -v ^at)",
        "echo nonsense >witness/$(ls witness.ok | grep ^at)",
        "echo once witness 1 at 12 >witness/$(ls witness.ok | grep ^at)",
        "echo nonsense >witness/$(ls witness.ok | grep -v ^at)"};
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_engine *e;
    size_t i;

    now = real_now();
    shell("rm -rf a witness && mkdir witness");
    e = engine(url("journal", "a"), path("witness"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_OWNER);
    once_engine_close(e);
    shell("rm -rf witness.ok && mv witness witness.ok");
    o.clock = hand;
    o.witness = path("witness");
    o.event = listen;
    for (i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        shell("rm -rf witness && mkdir witness");
        shell(ways[i]);
        said[0] = '\0';
        T_EQ(once_engine_open(url("journal", "a"), &o, NULL, &e), ONCE_OK);
        T_OK(strstr(said, "cannot be read") != NULL);
        once_engine_close(e);
    }
    shell("rm -rf witness witness.ok");
}

static char flushed[64]; /* what stood in a witness as it was flushed last */

/* In place of the C library's. */
int fdatasync(int fd)
{
    char text[sizeof(flushed)] = "";

    if (pread(fd, text, sizeof(text) - 1, 0) > 0 &&
        strncmp(text, "once witness", 12) == 0)
        memcpy(flushed, text, sizeof(text));
    return (int)syscall(SYS_fdatasync, fd);
}

/* Also what was written a while before, without a flush. */
static void a_witness_is_flushed_when_the_engine_closes(void)
{
    once_engine *e;

    shell("rm -rf a witness && mkdir witness");
    now = real_now();
    e = engine(url("journal", "a"), path("witness"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_OWNER); /* written and flushed at once */
    (void)usleep(1100000);
    T_EQ(attempt(e, 2, 0, 'c'), ONCE_OWNER); /* written */
    once_engine_close(e);
    T_EQ(strtoul(flushed + 15, NULL, 10), 2);
}

static void a_witness_that_cannot_be_written_stops_nothing(void)
{
    once_engine *e;

    shell("rm -rf a");
    now = real_now();
    e = engine(url("journal", "a"), path("no-such-folder"));
    T_EQ(attempt(e, 1, 0, 'c'), ONCE_OWNER);
    once_engine_close(e);
}

int main(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/once-restore-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    T_RUN(a_held_gap_grants_nothing_until_it_is_over);
    T_RUN(a_clock_set_ahead_at_once_ends_no_gap);
    T_RUN(a_copy_tells_that_the_clock_was_ahead);
    T_RUN(who_has_it_open_while_it_is_restored_grants_nothing);
    T_RUN(a_copy_moves_a_store_to_another_kind);
    T_RUN(a_held_gap_grants_nothing_to_single_operations);
    T_RUN(an_accepted_gap_executes_and_says_class_b);
    T_RUN(half_a_copy_or_a_changed_one_is_refused);
    T_RUN(a_copy_overwrites_nothing_and_wants_an_empty_store);
    T_RUN(a_gap_is_not_made_shorter);
    T_RUN(a_store_that_was_put_back_is_noticed);
    T_RUN(a_different_store_in_its_place_is_refused);
    T_RUN(a_different_store_is_not_accepted_by_an_old_gap);
    T_RUN(a_store_that_has_granted_nothing_may_be_another_one);
    T_RUN(a_store_is_known_by_its_fences_alone);
    T_RUN(a_name_that_leads_to_another_store_is_refused);
    T_RUN(what_only_says_who_asks_does_not_tell_stores_apart);
    T_RUN(what_others_are_granted_meanwhile_is_no_alarm);
    T_RUN(a_witness_that_cannot_be_read_is_reported);
    T_RUN(a_witness_is_flushed_when_the_engine_closes);
    T_RUN(a_witness_that_cannot_be_written_stops_nothing);
    shell("rm -rf a b copy* witness old a-* b-* old-*");
    (void)rmdir(folder);
    return t_done();
}
